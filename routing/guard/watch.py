"""The guard that a trainer holds: every dispatch against its allowance, each one exceeded reported once per layer."""

import logging
import os
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from decimal import Decimal
from fractions import Fraction
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, Self

from routing.core.allowance import AllowanceTable, Layer, ceil_to
from routing.core.errors import InputError
from routing.core.exceedance import FLOOR_GRID, MAX_STEP, Exceedance
from routing.core.fields import MAX_ROWS, whole
from routing.core.lookup import find_entry, sizes_at
from routing.core.placement import CONTIGUOUS, Placement
from routing.core.wave import Observed
from routing.guard.rows import HeldRows

_LOG = logging.getLogger("routing.guard")


class _Limit(NamedTuple):
    """An entry's allowance as a quotient of whole numbers, and where it stands."""

    numerator: int
    denominator: int
    allowance: Decimal
    batch_tokens: int
    layer: Layer
    grid: Decimal


class AllowanceGuard:
    """Holds what a trainer dispatches against an allowance table. Standard library alone; a tensor is read back once a step.

        guard = AllowanceGuard.load("allowances.yaml", ep=8, log="guard.jsonl")
        guard.see(layer, rows)        # in every MoE layer: rows by expert, or by rank, over the whole EP group
        guard.end_step(step)          # what was exceeded for the first time; also one warning each, and a line of the log

    What is seen together is what is dispatched together: call `see` once a micro-batch and layer. Recomputing a layer sees it
    again, which changes nothing. One process of an EP group is enough; its threads may share a guard. After construction only
    rows that are no counts, and a layer or step that is none, raise; a log that can't be written is a warning, and its lines
    are tried again.
    """

    def __init__(
        self,
        table: AllowanceTable,
        *,
        ep: int,
        log: str | os.PathLike[str] | None = None,
        per_layer: bool = False,
        placement: Placement = CONTIGUOUS,
    ) -> None:
        """`per_layer` holds a layer against its own entry where it has one, for trainers that plan so.

        InputError for an EP size without an entry, a table of another placement, and a log that is no path.
        """
        ep = whole(("ep",), ep, low=-MAX_ROWS)  # the lookup says which sizes there are
        if not isinstance(placement, Placement):
            raise InputError(f"guard: placement {str(placement)[:40]!r} is none; load() takes its name or its file")
        if placement.name != table.placement:
            raise InputError(f"guard: the table is of placement {table.placement}, the guard of {placement.name}")
        model, self.table, self.ep = table.model, table, ep
        placement.require_fits(moe_layers=model.moe_layers, num_experts=model.num_experts, eps=(ep,))
        self._sizes = sizes_at(table, ep)
        self._limits = {
            layer: [_limit(table, ep, size, layer if per_layer else None) for size in self._sizes] for layer in model.moe_layers
        }
        self._owned = {layer: _owned(placement, layer, ep, model.num_experts) for layer in model.moe_layers}
        self._log = None if log is None else _as_path(log)
        self._unwritten: list[str] = []
        self._held = HeldRows(_rank_sums(placement, ep))
        self._reported: dict[tuple[int, int], Decimal] = {}
        self._largest: dict[int, tuple[int, int]] = {}
        self._told: set[str] = set()
        self._lock = threading.Lock()  # a recomputed layer is seen from autograd's own threads

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str] | None = None,
        *,
        ep: int,
        log: str | os.PathLike[str] | None = None,
        per_layer: bool = False,
        placement: str = CONTIGUOUS.name,
    ) -> Self:
        """The guard of the table at `path`, by default the packaged one; `placement` is a name or a file."""
        from routing.store.allowances import read_table
        from routing.store.packaged import packaged
        from routing.store.placements import find_placement

        if not isinstance(placement, str | os.PathLike):
            raise InputError(f"guard: placement {str(placement)[:40]!r} is none; contiguous, round-robin or a file")
        table = read_table(packaged("allowances.yaml") if path is None else path)
        return cls(table, ep=ep, log=log, per_layer=per_layer, placement=find_placement(placement))

    def see(self, layer: int, rows: Any) -> None:
        """Takes the routed rows of one layer's dispatch: by expert (all of them) or by rank (`ep` of them).

        A list, a NumPy array or a torch tensor of one dimension, which the caller may overwrite afterwards. InputError for
        another length or layer.
        """
        if type(layer) is not int:
            layer = whole(("layer",), layer)
        if layer not in self._limits:
            raise InputError(f"guard: layer {layer} is no MoE layer of {self.table.model.name}")
        what = f"{self.table.model.num_experts} experts or {self.ep} ranks"
        if not hasattr(rows, "shape") and not isinstance(rows, Sequence):
            raise InputError(f"guard: layer {layer}: rows are a {type(rows).__name__}, not a list, array or tensor of {what}")
        if getattr(rows, "ndim", 1) != 1 or len(rows) not in (self.table.model.num_experts, self.ep):
            shape = rows.shape if hasattr(rows, "shape") else len(rows)
            raise InputError(f"guard: layer {layer}: rows of shape {shape}, not of {what}")
        with self._lock:
            self._held.add(layer, rows)

    def end_step(self, step: int) -> tuple[Exceedance, ...]:
        """Judges what was seen since the last call; returns what is exceeded for the first time in its layer.

        InputError for a step that is no whole number, which takes nothing, and for rows that are no counts, with which the
        step is lost and no later one.
        """
        step = whole(("step",), step, high=MAX_STEP)
        with self._lock:
            found = [one for layer, rows in self._held.take() if (one := self._judge(step, layer, rows)) is not None]
            self._write(found)
        first = tuple(one for one in found if one.event == "exceeded")
        for one in first:
            _LOG.warning("%s", one.sentence())
        return first

    def observed(self) -> Observed | None:
        """The largest imbalance seen in every layer so far, up to 1e-6, as a wave records it; None before the first rows."""
        if not self._largest:
            return None
        shares = {layer: ceil_to(Fraction(*quotient), FLOOR_GRID) for layer, quotient in self._largest.items()}
        return Observed(share_by_layer=tuple(shares.get(layer) for layer in range(self.table.model.num_layers)))

    def _judge(self, step: int, layer: int, rows: list[int]) -> Exceedance | None:
        by_rank = rows if len(rows) == self.ep else [sum(of_rank(rows)) for of_rank in self._owned[layer]]
        routed = sum(by_rank)
        if not routed:  # a dummy or warm-up dispatch: undefined, and never an imbalance
            return None
        scaled = max(by_rank) * self.ep
        most, of = self._largest.get(layer, (0, 1))
        if scaled * of > most * routed:
            self._largest[layer] = (scaled, routed)
        tokens, rest = divmod(routed, self.table.model.top_k)
        if rest:
            why = f"{routed} rows are no whole tokens of top-{self.table.model.top_k}: dropped, padded or of one rank alone"
            self._tell("no whole tokens", f"layer {layer} at step {step}: {why}")
        at = max(bisect_right(self._sizes, tokens) - 1, 0)
        limit = self._limits[layer][at]
        if scaled * limit.denominator <= limit.numerator * routed:
            return None
        needed = ceil_to(Fraction(scaled, routed), limit.grid)
        before = self._reported.get((layer, at))
        if before is not None and needed <= before:
            return None
        exceedance = Exceedance(
            event="exceeded" if before is None else "larger",
            step=step,
            layer=layer,
            rank=by_rank.index(max(by_rank)),
            ep=self.ep,
            batch_tokens=max(tokens, 1),
            busiest_rows=scaled // self.ep,
            routed_rows=routed,
            imbalance=Decimal(repr(scaled / routed)),
            allowance=limit.allowance,
            allowance_batch_tokens=limit.batch_tokens,
            allowance_layer=limit.layer,
            placement=self.table.placement,
            shape_hash=self.table.model.shape_hash,
            table_hash=self.table.content_hash,
            time=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        )
        self._reported[layer, at] = needed
        return exceedance

    def _write(self, found: list[Exceedance]) -> None:
        if self._log is None or not (found or self._unwritten):
            return
        from routing.store.guard_log import append_lines, exceedance_line

        self._unwritten += map(exceedance_line, found)
        try:
            append_lines(self._log, self._unwritten)
        except OSError as error:
            what = f"{self._log}: not written, {error.strerror or error}; training goes on, the lines are tried again"
            self._tell("log", what)
        else:
            self._unwritten.clear()

    def _tell(self, kind: str, sentence: str) -> None:
        """Each kind of fault once: a trainer's log is not filled by it."""
        if kind not in self._told:
            self._told.add(kind)
            _LOG.warning("%s", sentence)


def _as_path(log: str | os.PathLike[str]) -> Path:
    try:
        if b"\0" not in os.fsencode(log):
            return Path(log)
    except (TypeError, ValueError):
        pass
    raise InputError(f"guard: log {str(log)[:40]!r} is no path; hand in the file to append to")


def _limit(table: AllowanceTable, ep: int, batch_tokens: int, layer: int | None) -> _Limit:
    entry = find_entry(table, ep=ep, tokens=batch_tokens, layer=layer)
    numerator, denominator = entry.allowance.as_integer_ratio()
    return _Limit(numerator, denominator, entry.allowance, entry.batch_tokens, entry.layer, entry.evidence.grid)


def _owned(placement: Placement, layer: int, ep: int, num_experts: int) -> list[Callable[[list[int]], tuple[int, ...]]]:
    """For each rank what picks its experts' rows."""
    ranks = placement.ranks(layer, ep=ep, num_experts=num_experts)
    experts = [[expert for expert, owner in enumerate(ranks) if owner == rank] for rank in range(ep)]
    return [itemgetter(*some) if len(some) > 1 else lambda rows, only=some[0]: (rows[only],) for some in experts]  # type: ignore[misc]


def _rank_sums(placement: Placement, ep: int) -> Callable[[Any], Any] | None:
    """Sums of a tensor by rank where the same view of it holds for every layer; rows by rank already stay as they are."""
    if placement.kind == "contiguous":
        return lambda rows_NE: rows_NE.reshape(len(rows_NE), ep, -1).sum(2)
    if placement.kind == "round-robin":
        return lambda rows_NE: rows_NE.reshape(len(rows_NE), -1, ep).sum(1)
    return None
