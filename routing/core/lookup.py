"""Which entry of an allowance table counts for a number of tokens."""

from bisect import bisect_right
from collections.abc import Sequence

from routing.core.allowance import AllowanceTable, Entry
from routing.core.errors import InputError
from routing.core.placement import require_ep_size


def batch_size_for(sizes: Sequence[int], tokens: int) -> int:
    """The largest of the rising `sizes` that is not above `tokens`, else the smallest."""
    return sizes[max(bisect_right(sizes, tokens) - 1, 0)]


def sizes_at(table: AllowanceTable, ep: int) -> list[int]:
    """The batch sizes with an entry of all layers at `ep`, rising.

    InputError for an EP size without one: that it can't be fitted and which can, or which have one.
    """
    sizes = sorted(entry.batch_tokens for entry in table.entries if (entry.ep, entry.layer) == (ep, "all"))
    if not sizes:
        require_ep_size(ep, table.model.num_experts, name="allowances: ep")
        fitted = sorted({entry.ep for entry in table.entries})
        asked = ",".join(str(size) for size in sorted({*fitted, ep}))
        raise InputError(
            f"allowances: no allowance for ep={ep} (has {', '.join(map(str, fitted))}); "
            f"measure it: routing fit RUN --ep {asked} --out FILE"
        )
    return sizes


def find_entry(table: AllowanceTable, *, ep: int, tokens: int, layer: int | None = None) -> Entry:
    """The entry for a batch of `tokens`: of `layer` where it has its own, else of all layers.

    InputError for an EP size without an entry, and for a layer that is no MoE layer.
    """
    if layer is not None and layer not in table.model.moe_layers:
        known = ", ".join(map(str, table.model.moe_layers))
        raise InputError(f"layer {layer} is no MoE layer of {table.model.name}; those are {known}")
    size = batch_size_for(sizes_at(table, ep), tokens)
    here = {one.layer: one for one in table.entries if (one.ep, one.batch_tokens) == (ep, size)}
    return here["all"] if layer is None else here.get(layer, here["all"])
