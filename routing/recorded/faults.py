"""What recorded routes are refused for: the known faults of the engines that record them, each found before it is counted."""

import math

import numpy as np
import numpy.typing as npt

from routing.core.errors import CheckFailedError

# Why a recorded sequence was refused. Each is explained in docs/recorded.md.
FAULTS = (
    "layout",
    "token_ids",
    "num_experts",
    "layers",
    "top_k",
    "shared_expert_id",
    "last_token_missing",
    "tokens_missing",
    "not_recorded",
    "id_out_of_range",
    "expert_twice",
    "repeated_rows",
    "exact_repeat",
)
MIN_REPEATED_TOKENS = 16
# Below these many bits a chance agreement is no wonder: the toy of two experts chooses alike in every layer.
MIN_ROW_BITS, MIN_COLUMN_BITS = 16, 64

# Dimensions: T tokens, L MoE layers, K experts a token.
Routes = npt.NDArray[np.integer]


class FaultError(Exception):
    """A sequence that can't be counted; `reason` is one of FAULTS, `detail` one line without user text."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason, self.detail = reason, detail


def unrecorded_tokens(routes_TLK: Routes) -> npt.NDArray[np.bool_]:
    """[T], whether a token's row is what buffers hold before anything is written: a negative id, or one id in every place."""
    negative_T: npt.NDArray[np.bool_] = np.any(routes_TLK < 0, axis=(1, 2))
    if routes_TLK.shape[2] == 1:  # a token of a top-1 router may choose one expert everywhere
        return negative_T
    alike_T: npt.NDArray[np.bool_] = np.all(routes_TLK == routes_TLK[:, :1, :1], axis=(1, 2))
    return negative_T | alike_T


def require_routes(routes_TLK: Routes, *, first: int, num_experts: int, layers: tuple[int, ...]) -> None:
    """FaultError names the first token, layer and ids that no router gives; `first` is the position of the first row."""
    missing = np.flatnonzero(unrecorded_tokens(routes_TLK))
    if len(missing):
        raise FaultError(
            "not_recorded",
            f"{len(missing)} of {len(routes_TLK)} tokens hold zeros, one id or -1 in every place, the first at "
            f"{first + missing[0]}: padding, or never written",
        )
    for what, wrong_TL in (
        ("id_out_of_range", ((routes_TLK < 0) | (routes_TLK >= num_experts)).any(-1)),
        ("expert_twice", (np.diff(np.sort(routes_TLK, axis=-1), axis=-1) == 0).any(-1)),
    ):
        if wrong_TL.any():
            token, place = (int(index) for index in np.argwhere(wrong_TL)[0])
            ids = ", ".join(map(str, routes_TLK[token, place].tolist()))
            said = f"beyond {num_experts} experts" if what == "id_out_of_range" else "one expert twice"
            raise FaultError(what, f"token {first + token}, layer {layers[place]}: ids {ids}, {said}")
    _require_changing(routes_TLK, num_experts)


def _require_changing(routes_TLK: Routes, num_experts: int) -> None:
    num_tokens, num_layers, top_k = routes_TLK.shape
    if num_tokens < MIN_REPEATED_TOKENS or num_layers * bits_of_choice(num_experts, top_k) < MIN_ROW_BITS:
        return
    repeated = int((routes_TLK[1:] == routes_TLK[:-1]).all((1, 2)).sum())
    if 2 * repeated > num_tokens:
        raise FaultError(
            "repeated_rows", f"{repeated} of {num_tokens} tokens repeat the row before them in every layer: a stale buffer"
        )


def require_layers_differ(digests: dict[int, bytes], *, num_tokens: int, num_experts: int, top_k: int) -> None:
    """CheckFailedError where two layers chose the same experts for every token; `digests` are of what each layer holds."""
    if num_tokens * bits_of_choice(num_experts, top_k) < MIN_COLUMN_BITS:
        return
    seen: dict[bytes, int] = {}
    for layer, digest in digests.items():
        if (other := seen.setdefault(digest, layer)) != layer:
            raise CheckFailedError(
                f"layers {other} and {layer} hold the same experts for all {num_tokens} tokens: one layer was recorded in "
                "several slots; record again with another version of the engine"
            )


def bits_of_choice(num_experts: int, top_k: int) -> float:
    """log2 of the ways to choose a token's experts in one layer."""
    return math.log2(math.comb(num_experts, top_k))
