"""One run's counts as the resampling takes them: which segments each trajectory passes through, and what each one loads."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Booleans = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, slots=True)
class Counts:
    """Steps in the order of the corpus, a step being one (trajectory, position); T trajectories, S segments.

    `trajectory_ids`, `segment_ids` and `num_tokens` are columns of one table of steps. `units_T` and `strata_T` index
    `unit_names` and `stratum_names`. `loads_SBL` are routed rows of each segment by block of experts and MoE layer: a rank of
    EP n is num_blocks / n neighbouring blocks, or every n-th block where they are strided. They are whole numbers, exact in
    float64 below 2**53.
    """

    trajectory_ids: Integers
    segment_ids: Integers
    num_tokens: Integers
    units_T: Integers
    strata_T: Integers
    unit_names: tuple[str, ...]
    stratum_names: tuple[str, ...]
    layers: tuple[int, ...]
    loads_SBL: Floats
    is_strided: bool = False

    @property
    def num_tokens_packed(self) -> int:
        """Tokens of the distinct segments of these steps."""
        _, first = np.unique(self.segment_ids, return_index=True)
        return int(self.num_tokens[first].sum())

    @property
    def num_trajectories(self) -> int:
        """Trajectories that have a step here."""
        return len(np.unique(self.trajectory_ids))

    @property
    def longest_trajectory_tokens(self) -> int:
        """Tokens of the longest of these, shared segments with it; a batch that is no larger may lie inside it."""
        return int(np.bincount(self.trajectory_ids, weights=self.num_tokens).max())

    @property
    def units(self) -> frozenset[str]:
        """Names of the units that have a step here."""
        return frozenset(self.unit_names[place] for place in np.unique(self.units_T[self.trajectory_ids]).tolist())

    @property
    def own_units(self) -> frozenset[str]:
        """Units with a segment that no other unit passes through: those that make a resampled batch grow."""
        pairs = np.unique(np.stack([self.segment_ids, self.units_T[self.trajectory_ids]]), axis=1)
        _, place, num_units = np.unique(pairs[0], return_index=True, return_counts=True)
        return frozenset(self.unit_names[unit] for unit in pairs[1][place[num_units == 1]].tolist())

    @property
    def strata(self) -> tuple[str, ...]:
        """Names of the strata that have a step here, sorted."""
        return tuple(sorted(self.stratum_names[place] for place in np.unique(self.strata_T[self.trajectory_ids]).tolist()))

    def of_units(self, names: frozenset[str]) -> "Counts":
        """The steps of these units alone, in the same order."""
        return self.of_steps(_is_named(self.unit_names, names)[self.units_T][self.trajectory_ids])

    def of_strata(self, names: frozenset[str]) -> "Counts":
        """The steps of these strata alone, in the same order."""
        return self.of_steps(_is_named(self.stratum_names, names)[self.strata_T][self.trajectory_ids])

    def of_steps(self, rows: Booleans | Integers) -> "Counts":
        """The steps that a mask keeps, or those of these rows in their order."""
        return replace(self, **{name: getattr(self, name)[rows] for name in ("trajectory_ids", "segment_ids", "num_tokens")})


def rank_loads(loads_BX: Floats, ep: int, *, is_strided: bool) -> Floats:
    """Loads by rank, from loads by block along the first axis."""
    blocks, rest = len(loads_BX), loads_BX.shape[1:]
    if is_strided:
        return np.asarray(loads_BX.reshape(blocks // ep, ep, *rest).sum(axis=0))
    return np.asarray(loads_BX.reshape(ep, blocks // ep, *rest).sum(axis=1))


def _is_named(all_names: Sequence[str], names: frozenset[str]) -> Booleans:
    return np.array([name in names for name in all_names], dtype=np.bool_)
