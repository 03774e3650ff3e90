"""A fitted table beside the committed one: which allowances moved, by how much, and which lost what they rested on."""

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

from routing.core.allowance import AllowanceTable, Entry, Layer, PolicyEvidence, decimal_text
from routing.core.judgement import HeldOut

Change = Literal["new", "gone", "raised", "lowered", "same"]
CHANGES: tuple[Change, ...] = ("raised", "lowered", "new", "gone", "same")
# From the strongest evidence to the weakest. Published maxima come before a headroom of our own: that is what few batches get.
_STATUSES = ("fitted", "published", "headroom", "implied", "proven")


@dataclass(frozen=True, kw_only=True, slots=True)
class Moved:
    """One place of either table. `lost_support` says, each in a few words, what only the committed entry rests on."""

    committed: Entry | None
    fitted: Entry | None
    lost_support: tuple[str, ...]

    @property
    def entry(self) -> Entry:
        """The fitted entry, the committed one where there is none."""
        entry = self.fitted or self.committed
        assert entry is not None
        return entry

    @property
    def delta(self) -> Decimal | None:
        """Fitted minus committed; None where one of them is missing."""
        if self.fitted is None or self.committed is None:
            return None
        return self.fitted.allowance - self.committed.allowance

    @property
    def change(self) -> Change:
        if self.delta is None:
            return "new" if self.committed is None else "gone"
        return "same" if not self.delta else "raised" if self.delta > 0 else "lowered"

    @property
    def is_quiet(self) -> bool:
        """Whether nobody needs to read of it: the same allowance on no less."""
        return self.change == "same" and not self.lost_support


def difference(committed: AllowanceTable | None, fitted: AllowanceTable) -> tuple[Moved, ...]:
    """Every place that has an entry in either: all layers before single ones, large batches before small, then by EP size."""
    old = {_place(entry): entry for entry in committed.entries} if committed is not None else {}
    new = {_place(entry): entry for entry in fitted.entries}
    return tuple(
        Moved(committed=old.get(place), fitted=new.get(place), lost_support=_lost_support(old.get(place), new.get(place)))
        for place in sorted(old.keys() | new.keys(), key=_order)
    )


def same_entries(committed: AllowanceTable | None, fitted: AllowanceTable) -> bool:
    """Whether writing `fitted` would change nothing but by what and when it was made."""
    names = ("model", "placement", "entries", "override")
    return committed is not None and all(getattr(committed, name) == getattr(fitted, name) for name in names)


def halves_of(entry: Entry) -> list[HeldOut]:
    """The fits on half of a run's units, each held against the other half."""
    return [one for one in entry.evidence.held_out or () if one.kind == "units"]


def held_out_of(entry: Entry) -> tuple[int, int] | None:
    """(held-out batches above the fit of the other half of the units, all that were held out); None where none was judged."""
    halves = halves_of(entry)
    return (sum(one.num_above for one in halves), sum(one.num_batches for one in halves)) if halves else None


def difference_rows(moved: tuple[Moved, ...]) -> list[dict[str, Any]]:
    """As `routing refresh --json` gives them; null where a table has no such entry."""
    rows = []
    for one in moved:
        evidence = one.fitted.evidence if one.fitted is not None else None
        most = evidence.observed_max if evidence is not None else None
        held_out = held_out_of(one.fitted) if one.fitted is not None else None
        rows.append(
            {
                "ep": one.entry.ep,
                "batch_tokens": one.entry.batch_tokens,
                "layer": one.entry.layer,
                "change": one.change,
                "committed": None if one.committed is None else float(one.committed.allowance),
                "committed_status": None if one.committed is None else one.committed.status,
                "fitted": None if one.fitted is None else float(one.fitted.allowance),
                "fitted_status": None if one.fitted is None else one.fitted.status,
                "delta": None if one.delta is None else float(one.delta),
                "binds": None if evidence is None else evidence.binds,
                "observed_max": None if most is None else float(most.imbalance),
                "held_out_above": None if held_out is None else held_out[0],
                "held_out_batches": None if held_out is None else held_out[1],
                "lost_support": list(one.lost_support),
            }
        )
    return rows


def _lost_support(committed: Entry | None, fitted: Entry | None) -> tuple[str, ...]:
    if committed is None:
        return ()
    return ("no entry",) if fitted is None else tuple(_losses(committed, fitted))


def _losses(committed: Entry, fitted: Entry) -> Iterator[str]:
    if _STATUSES.index(fitted.status) > _STATUSES.index(committed.status):
        yield f"{committed.status} -> {fitted.status}"
    old, new = committed.evidence, fitted.evidence
    if new.num_batches < old.num_batches:
        yield f"{old.num_batches} -> {new.num_batches} batches"
    if old.num_units is not None and (new.num_units or 0) < old.num_units:
        yield f"{old.num_units} -> {new.num_units or 0} units"
    policies = {_identity(one) for one in new.policies}
    for label in dict.fromkeys(one.label for one in old.policies if _identity(one) not in policies):
        yield f"without policy {label}"
    floors = {(one.value, one.source) for one in new.floors}
    for floor in old.floors:
        if (floor.value, floor.source) not in floors:
            yield f"without floor {decimal_text(floor.value)}"


def _identity(policy: PolicyEvidence) -> str:
    return policy.weights_sha256 or policy.label


def _place(entry: Entry) -> tuple[int, int, Layer]:
    return entry.ep, entry.batch_tokens, entry.layer


def _order(place: tuple[int, int, Layer]) -> tuple[int, int, int]:
    ep, batch_tokens, layer = place
    return (-1 if layer == "all" else layer, -batch_tokens, ep)
