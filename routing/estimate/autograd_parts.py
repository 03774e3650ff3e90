"""Named bytes of an instant on the `transformers` stack, and the sizes of what they are made of."""

from typing import NamedTuple

BF16, FP32, INT64 = 2, 4, 8
BLOCK_BYTES = 512  # every block is rounded up to it


class Part(NamedTuple):
    """Named bytes: rows x bytes a row."""

    name: str
    rows: int
    bytes_per_row: int

    @property
    def num_bytes(self) -> int:
        """Their product."""
        return self.rows * self.bytes_per_row
