"""Rows of each rank in the two layouts, and what its experts receive."""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from routing.core.layers import DecoderShape, Mixer
from routing.core.wave import Group, Topology, Wave
from routing.estimate.executor import ExecutorRates, retained_bytes

COARSE_CP = 4  # from here on ranks are not told apart


class RankRows(NamedTuple):
    """One rank's rows of one group; `even_*` are its experts' rows at imbalance 1 in that layout's layers.

    `retained` is what the attention executor keeps, null where it isn't mirrored.
    """

    attention: int
    gdn: int
    even_attention: int
    even_gdn: int
    retained: int | None

    def of(self, mixer: Mixer) -> int:
        """Rows of a layer's stage; a rank with 0 rows is priced at 1."""
        return max(1, self.attention if mixer == "attention" else self.gdn)

    def even(self, mixer: Mixer) -> int:
        """Routed rows of a layer's stage."""
        return max(1, self.even_attention if mixer == "attention" else self.even_gdn)


class Boundaries(NamedTuple):
    """How many of layers 0..i have their input in the attention and in the GDN layout, by i."""

    attention: tuple[int, ...]
    gdn: tuple[int, ...]


@lru_cache(maxsize=256)
def boundary_layouts(shape: DecoderShape, layer_inputs: tuple[Mixer, ...] | None) -> Boundaries:
    """Counts from the recorded layouts, or from the layer pattern: GDN rows between two GDN layers, attention rows otherwise."""
    attention, counts = 0, []
    for layout in layer_inputs or shape.input_layouts:
        attention += layout == "attention"
        counts.append(attention)
    return Boundaries(tuple(counts), tuple(layer + 1 - count for layer, count in enumerate(counts)))


def priced_ranks(wave: Wave) -> tuple[int, ...]:
    """The ranks to price: all, or the busiest alone where they are not told apart."""
    if wave.topology.cp < COARSE_CP:
        return tuple(range(wave.topology.cp))
    rows = [sum(group.attention_rows[rank] for group in wave.groups) for rank in range(wave.topology.cp)]
    return (rows.index(max(rows)),)


def rank_rows(group: Group, topology: Topology, ranks: Sequence[int], executor: ExecutorRates) -> tuple[RankRows, ...]:
    """The rows of `ranks`.

    Without GDN rows every rank holds the busiest rank's attention rows there. From CP 4 on every rank holds the busiest rank's
    rows of either layout and nothing is mirrored.
    """
    busiest = max(group.attention_rows)
    attention = group.attention_rows
    gdn = group.gdn_rows if group.gdn_rows is not None else (busiest,) * topology.cp
    stages = group.attention_stages
    if topology.cp >= COARSE_CP:
        attention = gdn = (max(busiest, *gdn),) * topology.cp
        stages = None
    even_attention = _even_rows(group.attention_rows, topology)
    even_gdn = _even_rows(group.gdn_rows or group.attention_rows, topology)
    return tuple(
        RankRows(
            attention=attention[rank],
            gdn=gdn[rank],
            even_attention=attention[rank] if even_attention is None else even_attention,
            even_gdn=gdn[rank] if even_gdn is None else even_gdn,
            retained=None if stages is None else retained_bytes(stages[rank], executor),
        )
        for rank in ranks
    )


def _even_rows(rows: tuple[int, ...], topology: Topology) -> int | None:
    """ceil(sum / EP) where the EP group is the CP group, else the busiest rank's; null at EP 1, where each has its own."""
    if topology.ep == 1:
        return None
    return -(-sum(rows) // topology.ep) if topology.shares_rows else max(rows)
