"""What a corpus is once it is read: token sequences with their origin, what was refused and why, and a count per file."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

NO_ROUTER = "router"  # found only by forward passes
# Why a row was refused. Each is explained in docs/formats.md.
REFUSAL_REASONS = (
    "empty",
    "exact_repeat",
    "shape",
    "unknown_role",
    "content",
    "tool_calls",
    "tools",
    "template",
    "token_ids",
    "too_deep",
    "too_long",
    NO_ROUTER,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizedTrajectory:
    """One trajectory as the policy would read it; `token_ids` is int32 [T], T >= 1.

    `trajectory_hash` is the sha256 (hex) of the ids as little-endian int32. `unit` names what moves together in a resample:
    `{domain}/{task_id}` where the file names a task, else `{source_file}#{source_row}`. `source_row` is 0-based.
    """

    trajectory_hash: str
    unit: str
    stratum: str
    source_file: str
    source_row: int
    token_ids: npt.NDArray[np.int32]

    @property
    def num_tokens(self) -> int:
        """T."""
        return len(self.token_ids)


def token_hash(token_ids: npt.NDArray[np.int32]) -> str:
    """sha256 (hex) of the ids as little-endian int32: what makes two trajectories the same."""
    return hashlib.sha256(token_ids.astype("<i4", copy=False).tobytes()).hexdigest()


class Described(Protocol):
    """What a run keeps of a trajectory; of recorded counts there is no more."""

    @property
    def trajectory_hash(self) -> str: ...
    @property
    def unit(self) -> str: ...
    @property
    def stratum(self) -> str: ...
    @property
    def source_file(self) -> str: ...
    @property
    def source_row(self) -> int: ...
    @property
    def num_tokens(self) -> int: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """A row that was read and not kept: `reason` is one of REFUSAL_REASONS, `detail` one line that holds no user text."""

    source_file: str
    source_row: int
    reason: str
    detail: str


@dataclass(frozen=True, kw_only=True, slots=True)
class CorpusFile:
    """One file, or one `datasets` directory, of a corpus: `rows` = `kept` + `refused` + `not_taken`.

    `name` is the short name that trajectories carry, `path` what the user gave. `not_taken` rows lie behind --max-tokens.
    `bad_lines` were skipped before they became rows. The sha256 of a directory is taken over its files' names and hashes.
    """

    name: str
    path: str
    format: str
    sha256: str
    num_bytes: int
    rows: int
    kept: int
    refused: int
    not_taken: int
    bad_lines: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Corpus:
    """Trajectories in corpus order (files as given, rows as in the file), with the account of everything else.

    `normalised` counts, by rule, how often the rows dealt (kept or refused) were changed on the way to the template.
    """

    trajectories: tuple[TokenizedTrajectory, ...]
    files: tuple[CorpusFile, ...]
    refusals: tuple[Refusal, ...]
    normalised: dict[str, int]

    @property
    def num_tokens(self) -> int:
        """Tokens of the logical view: every trajectory in full."""
        return sum(len(trajectory.token_ids) for trajectory in self.trajectories)


class ReadCorpus(Protocol):
    """The account of a corpus, whatever its trajectories hold."""

    @property
    def trajectories(self) -> Sequence[Described]: ...
    @property
    def files(self) -> Sequence[CorpusFile]: ...
    @property
    def refusals(self) -> Sequence[Refusal]: ...
    @property
    def normalised(self) -> dict[str, int]: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class RenderedText:
    """One document as text, before any tokenizer: what a tokenizer is trained on."""

    unit: str
    source_file: str
    source_row: int
    text: str
