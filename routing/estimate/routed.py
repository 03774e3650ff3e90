"""Rows that a rank's experts receive, and the largest stage of their computation.

    R = local rows (EP 1) | even share, ceil(sum over ranks / EP) (the EP group is the CP group) | the busiest rank's rows
    stage = K rho b (elements per pair) R, rounded up once, + fixed bytes

Elements per (token, expert) pair, c dispatched copies (2 at EP 1, else 1), r_eff = max(8, r):

    FC2 sum          c H + 3F + 3H          + 2 r_eff with gradient  FC1 and FC2 padding with gradient
    FC2 second GEMM  c H + 3F + 2H + r_eff  + r_eff with gradient    FC2 padding and transposes, FC1 padding with gradient
    FC1 second GEMM  c H + 4F + r_eff                                FC1 padding and transposes
    FC1 sum          c H + 6F               + r_eff with gradient    FC1 padding with gradient

Transposes = local experts x r_eff x (in + out) x b; padding is the same amount where r < 8. Without expert LoRA there are no
rank columns, transposes or padding. Source: published (OpenPipe/ART TrainerRank, checkpoint floor).
"""

from decimal import Decimal
from typing import NamedTuple

from routing.core.layers import DecoderShape
from routing.estimate.executor import BYTES_PER_ELEMENT

MIN_RANK = 8
Ratio = tuple[int, int]  # numerator and denominator of an exact decimal
Routing = tuple[Ratio, Ratio | None]  # an allowance, and an imbalance already seen with its margin


class RoutedStage(NamedTuple):
    """One stage: bytes a routed row at allowance 1, and bytes that don't depend on rows."""

    name: str
    bytes_per_row: int
    fixed_bytes: int


class RoutedPrice(NamedTuple):
    """The largest stage at some rows and allowance; `rows` as priced, which observed routing may have raised."""

    rows: int
    stage: RoutedStage
    num_bytes: int


def ratio(value: Decimal) -> Ratio:
    """The exact quotient of a decimal; a binary float of 1.1 or 1.6 would cost a byte too many at one row count in five."""
    return value.as_integer_ratio()


def routed_stages(shape: DecoderShape, *, ep: int, rank: int, gradient: bool) -> tuple[RoutedStage, ...]:
    """The stages of one layer's experts, those left out that another is never below."""
    hidden, ffn, copies = shape.hidden_size, shape.expert_ffn_size, 2 if ep == 1 else 1
    columns = max(MIN_RANK, rank) if rank else 0
    saved = columns if gradient else 0
    local = shape.num_experts // ep * columns * BYTES_PER_ELEMENT
    fc1_transposes, fc2_transposes = local * (hidden + 2 * ffn), local * (ffn + hidden)
    fc1_padding, fc2_padding = (fc1_transposes, fc2_transposes) if 0 < rank < MIN_RANK else (0, 0)
    late_padding = fc1_padding if gradient else 0
    base = copies * hidden + 3 * ffn + 3 * hidden
    elements = (
        ("FC2 sum", base + 2 * saved, late_padding + (fc2_padding if gradient else 0)),
        ("FC2 second GEMM", base - hidden + columns + saved, fc2_padding + fc2_transposes + late_padding),
        ("FC1 second GEMM", copies * hidden + 4 * ffn + columns, fc1_padding + fc1_transposes),
        ("FC1 sum", copies * hidden + 6 * ffn + saved, late_padding),
    )
    per_element = shape.top_k * BYTES_PER_ELEMENT
    kept: list[RoutedStage] = []
    for name, count, fixed in elements:
        stage = RoutedStage(name, count * per_element, fixed)
        if not any(_covers(other, stage) for other in kept):
            kept = [other for other in kept if not _covers(stage, other)] + [stage]
    return tuple(kept)


def _covers(one: RoutedStage, other: RoutedStage) -> bool:
    return one.bytes_per_row >= other.bytes_per_row and one.fixed_bytes >= other.fixed_bytes


def routed_price(stages: tuple[RoutedStage, ...], even_rows: int, routing: Routing) -> RoutedPrice:
    """The largest stage at an allowance rho; rows are raised to what the imbalance seen asks for.

    R priced = max(R, ceil(R seen / rho)). The product with the allowance is exact and rounded up once.
    """
    (above, below), seen = routing
    rows = even_rows if seen is None else max(even_rows, -(-even_rows * seen[0] * below // (seen[1] * above)))
    widest, most = stages[0], -1
    for stage in stages:
        num_bytes = -(-rows * stage.bytes_per_row * above // below) + stage.fixed_bytes
        if num_bytes > most:
            widest, most = stage, num_bytes
    return RoutedPrice(rows, widest, most)
