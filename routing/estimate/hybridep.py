"""The HybridEP communication buffer, outside the PyTorch allocator.

    ranks = EP x ETP    columns = E x ETP    unit = 4 / gcd(4, ranks)
    capacity   = max(min(S, 2 ceil(S / (512 CP)) 512), busiest rank's rows in either layout)
    rows_alloc = ceil to 64 of max(ceil to unit of capacity, 512)
    bytes      = rows_alloc x ranks x (2 H + 5 columns + 4 floor(H / 128))

Token (2 H), FP32 probability and one routing-map byte an expert, FP32 scale per 128.
Source: published (DeepEP hybrid-ep allocator).
"""

from math import gcd
from typing import NamedTuple

from routing.core.layers import DecoderShape


class Buffer(NamedTuple):
    """`rows` allocated, and what each of them costs."""

    rows: int
    bytes_per_row: int


def hybridep_buffer(shape: DecoderShape, *, ep: int, cp: int, etp: int, longest_packed_tokens: int, busiest_rows: int) -> Buffer:
    """The buffer for a wave whose longest packed group has `longest_packed_tokens`, on every rank the same."""
    ranks, columns = ep * etp, shape.num_experts * etp
    unit = 4 // gcd(4, ranks)
    even = 2 * -(-longest_packed_tokens // (512 * cp)) * 512
    capacity = max(min(longest_packed_tokens, even), busiest_rows)
    rows = max(-(-capacity // unit) * unit, 512)
    return Buffer(
        rows=-(-rows // 64) * 64,
        bytes_per_row=ranks * (2 * shape.hidden_size + 5 * columns + 4 * (shape.hidden_size // 128)),
    )
