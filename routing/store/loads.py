"""The table `loads` from counts, and the one check that no counted part may break."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from routing.core.errors import CheckFailedError
from routing.store.schemas import SCHEMAS

# Dimensions: S segments, L layers, E experts.
Counts = npt.NDArray[np.int32]


def require_conserved(
    loads_SLE: Counts, tokens_S: npt.NDArray[np.int64], *, first_segment: int, top_k: int, layers: Sequence[int]
) -> None:
    """CheckFailedError names the layer and segment without top-k rows a token, or with an expert above its tokens."""
    rows_SL = loads_SLE.sum(-1, dtype=np.int64)
    most = tokens_S[:, None, None]
    wrong_SL = (rows_SL != tokens_S[:, None] * top_k) | (loads_SLE > most).any(-1) | (loads_SLE < 0).any(-1)
    if wrong_SL.any():
        slot, place = (int(index) for index in np.argwhere(wrong_SL)[0])
        rows, tokens = int(rows_SL[slot, place]), int(tokens_S[slot])
        where = f"layer {layers[place]}, segment {first_segment + slot}"
        raise CheckFailedError(
            f"{where}: {rows} routed rows, expected {tokens} tokens x top-{top_k} = {tokens * top_k}, at most {tokens} an expert"
        )


def loads_table(loads_SLE: Counts, *, first_segment: int, layers: Sequence[int]) -> pa.Table:
    """The rows of `loads` of neighbouring segments, dense, sorted by segment, layer, expert."""
    num_segments, num_layers, num_experts = loads_SLE.shape
    segment_S = np.arange(first_segment, first_segment + num_segments, dtype=np.int32)
    columns = {
        "segment_id": np.repeat(segment_S, num_layers * num_experts),
        "layer": np.tile(np.repeat(np.asarray(layers, dtype=np.int32), num_experts), num_segments),
        "expert": np.tile(np.arange(num_experts, dtype=np.int32), num_segments * num_layers),
        "routed_rows": loads_SLE.reshape(-1),
    }
    return pa.table({name: pa.array(values) for name, values in columns.items()}, schema=SCHEMAS["loads"])
