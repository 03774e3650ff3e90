"""What the context-parallel attention executor keeps for backward, in bytes; sizes only.

For each stage, with q_pad = max(256, ceil to 128 of q_len) and k_pad = max(128, ceil to 64 of k_len):

    query x q_pad + kv x k_pad (local) | kv x k + kv x k_pad where k_pad != k (remote)
    + flex output x q_pad + output copy x q where q_pad != q + merge tape x q for every stage but one

Source: published (OpenPipe/ART TrainerRank). The flash block (128, 64) is that of H200 at head dim 256.
"""

from collections.abc import Sequence
from typing import NamedTuple

from routing.core.layers import DecoderShape
from routing.core.wave import Stage

BYTES_PER_ELEMENT = 2  # BF16
FP32_BYTES = 4
FLASH_BLOCK_HEAD_DIM = 256


class ExecutorRates(NamedTuple):
    """Bytes a row of what a stage keeps."""

    query: int
    kv: int
    flex_output: int
    output_copy: int
    merge_tape: int

    @property
    def least(self) -> int:
        """What every row costs at least: its query, its key and value, its output."""
        return self.query + self.kv + self.flex_output


def executor_rates(shape: DecoderShape) -> ExecutorRates:
    """2A; Hkv (d + d) b; A b + 2 FP32 log-sum-exps; A b + one; an FP32 accumulator and a sum a head."""
    output = shape.query_width * BYTES_PER_ELEMENT
    return ExecutorRates(
        query=output,
        kv=2 * shape.kv_width * BYTES_PER_ELEMENT,
        flex_output=output + 2 * FP32_BYTES * shape.num_query_heads,
        output_copy=output + FP32_BYTES * shape.num_query_heads,
        merge_tape=shape.num_query_heads * (shape.head_dim + 1) * FP32_BYTES,
    )


def retained_bytes(stages: Sequence[Stage], rates: ExecutorRates) -> int:
    """Bytes kept over all stages of one rank; a stage without rows keeps nothing.

    The stage that needs no merge tape is the local one, or, without one, that with the smallest tape.
    """
    total, tapes, local_tape = 0, [], None
    for stage in stages:
        if not stage.q or not stage.k:
            continue
        q_pad = max(256, -(-stage.q_len // 128) * 128)
        k_pad = max(128, -(-stage.k_len // 64) * 64)
        total += (rates.query + rates.flex_output) * q_pad
        if q_pad != stage.q:
            total += rates.output_copy * stage.q
        tape = rates.merge_tape * stage.q
        tapes.append(tape)
        if stage.kind == "local":
            total += rates.kv * k_pad
            local_tape = tape
        else:
            total += rates.kv * (stage.k + (k_pad if k_pad != stage.k else 0))
    spared = local_tape if local_tape is not None else min(tapes, default=0)
    return total + sum(tapes) - spared
