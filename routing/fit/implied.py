"""What fitted EP sizes say of one that nothing was counted or published at: ranks are nested, so f_n <= f_m <= (m / n) f_n.

    implied(m) = min over fitted n of lcm(m, n) / n x allowance(n), and m, and E / k;
                 at least the allowance of every fitted divisor of m

n and m both divide E, hence so does lcm(m, n): f_m <= f_lcm <= (lcm / n) f_n. A divisor n of m gives m / n, a multiple 1.
It is as good as the entries that it rests on, and says nothing of them.
"""

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from math import lcm

from routing.core.allowance import ALLOWANCE_GRID, Entry, Evidence, TableModel, proven_ceiling
from routing.core.placement import require_ep_size
from routing.fit.sentences import ceiling_sentence

METHOD = "nested-ep-v1"


def implied_allowance(ep: int, fitted: Mapping[int, Decimal], *, num_experts: int, top_k: int) -> tuple[Decimal, str]:
    """(The formula's value, which of the fitted sizes decides or `ceiling`); all sizes divide the experts."""
    ceiling, _ = proven_ceiling(ep, num_experts=num_experts, top_k=top_k)
    sizes = sorted(fitted.items())
    least = min([(ceiling, "ceiling"), *((lcm(ep, one) // one * value, f"ep={one}") for one, value in sizes)], key=_value)
    return max([least, *((value, f"ep={one}") for one, value in sizes if ep % one == 0)], key=_value)


def implied_entries(entries: Sequence[Entry], *, eps: Sequence[int], model: TableModel) -> Iterator[Entry]:
    """An entry for every batch size at each of `eps` that none of the entries of all layers is at.

    Raises InputError for an EP size that doesn't divide the experts.
    """
    of_all = [entry for entry in entries if entry.layer == "all"]
    known = {entry.ep for entry in of_all}
    lacking = sorted(require_ep_size(ep, model.num_experts) for ep in set(eps) - known)
    for size in sorted({entry.batch_tokens for entry in of_all}, reverse=True):
        fitted = {entry.ep: entry.allowance for entry in of_all if entry.batch_tokens == size}
        yield from (_entry(ep, size, fitted, model) for ep in lacking)


def _entry(ep: int, batch_tokens: int, fitted: Mapping[int, Decimal], model: TableModel) -> Entry:
    allowance, binds = implied_allowance(ep, fitted, num_experts=model.num_experts, top_k=model.top_k)
    ceiling, reason = proven_ceiling(ep, num_experts=model.num_experts, top_k=model.top_k)
    sizes = ", ".join(map(str, fitted))
    evidence = Evidence(
        method=METHOD,
        parameters={"implied_by_ep_sizes": sizes},
        raw_bound=allowance,
        grid=ALLOWANCE_GRID,
        ceiling=ceiling,
        ceiling_reason=reason,
        binds=binds,
        num_batches=0,
        num_units=None,
        unit="nothing was counted at this EP size",
        num_tokens=0,
        observed_max=None,
        median=None,
        p95=None,
        slack=None,
        worst_layers=(),
        floors=(),
        coverage=(f"EP {ep} rests on the entries at EP {sizes} and on nested ranks alone.", ceiling_sentence(ceiling)),
        warnings=(f"implied: EP {ep} has no data, {allowance} follows from {binds}; it is no better than what it follows from",),
        policies=(),
    )
    return Entry(ep=ep, batch_tokens=batch_tokens, layer="all", allowance=allowance, status="implied", evidence=evidence)


def _value(bound: tuple[Decimal, str]) -> Decimal:
    return bound[0]
