"""Recorded routes held against the model that is said to have made them, repaired only where a flag asks for it."""

import hashlib
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from routing.core.errors import InputError
from routing.core.shapes import ModelShape
from routing.recorded.faults import FaultError, Routes, require_routes, unrecorded_tokens
from routing.recorded.rows import RecordedRow

# What is changed or left out on the way in, counted. Each is explained in docs/recorded.md.
REPAIRS = (
    "last_token_dropped",
    "prefix_tokens_absent",
    "shared_expert_id_dropped",
    "dense_layers_dropped",
    "empty_units_dropped",
    "shared_tokens_differ",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class AskedRepairs:
    """What the user allows: `layers` are the decoder layers that the files hold, in order, where it isn't all of them."""

    layers: tuple[int, ...] | None
    drop_last: bool
    fill_prefixes: bool
    drop_shared_expert: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Recorded:
    """One sequence: `token_ids` int32 [T], `routes` [T - first, L, K] of the tokens from position `first` on."""

    token_ids: npt.NDArray[np.int32]
    routes: Routes
    first: int


def recorded_layers(model: ModelShape, asked: AskedRepairs) -> tuple[int, ...]:
    """The MoE layers that the run will hold; InputError where --layers names one that the model does not have."""
    if asked.layers is None:
        return model.moe_layers
    odd = next((layer for layer in asked.layers if layer not in model.moe_layers), None)
    if odd is not None or list(asked.layers) != sorted(set(asked.layers)):
        what = f"{odd} is no MoE layer of the model" if odd is not None else "not rising"
        raise InputError(f"--layers: {what}; its MoE layers: {', '.join(map(str, model.moe_layers))}"[:300])
    return asked.layers


def held_to_model(row: RecordedRow, model: ModelShape, asked: AskedRepairs, repairs: Counter[str]) -> Recorded:
    """The sequence with one row of `top_k` distinct experts for each token; FaultError otherwise. Adds to `repairs`."""
    layers = recorded_layers(model, asked)
    if row.num_experts not in (None, model.num_experts):
        raise FaultError("num_experts", f"recorded with {row.num_experts} experts, the model has {model.num_experts}")
    if row.routes.dtype.itemsize == 1 and model.num_experts > np.iinfo(row.routes.dtype).max + 1:
        raise FaultError("num_experts", f"ids of type {row.routes.dtype} can't name {model.num_experts} experts")
    routes = _moe_layers(row.routes, model, layers, repairs)
    routes = _top_k(routes, model, asked, repairs)
    recorded = _placed(row, routes, asked, repairs)
    require_routes(recorded.routes, first=recorded.first, num_experts=model.num_experts, layers=layers)
    # All sequences of an import are held at once; ids from JSON come as int64, where a byte or two would do.
    return replace(recorded, routes=recorded.routes.astype(np.min_scalar_type(model.num_experts - 1)))


def _moe_layers(routes: Routes, model: ModelShape, layers: tuple[int, ...], repairs: Counter[str]) -> Routes:
    found = routes.shape[1]
    if found == len(layers):
        return routes
    if found == model.num_layers:
        repairs["dense_layers_dropped"] += len(model.moe_layers) != model.num_layers
        return routes[:, list(layers)]
    raise FaultError(
        "layers",
        f"{found} layers, the model has {len(model.moe_layers)} MoE layers of {model.num_layers}; name those recorded: --layers",
    )


def _top_k(routes: Routes, model: ModelShape, asked: AskedRepairs, repairs: Counter[str]) -> Routes:
    found = routes.shape[2]
    if found == model.top_k:
        return routes
    is_shared = routes >= model.num_experts
    if found != model.top_k + 1 or not (is_shared.sum(-1) == 1).all():
        raise FaultError("top_k", f"{found} ids a token and layer, the model chooses {model.top_k}")
    if not asked.drop_shared_expert:
        raise FaultError(
            "shared_expert_id",
            f"{found} ids a token, one beyond {model.num_experts} experts: a shared expert; drop it: --drop-shared-expert",
        )
    repairs["shared_expert_id_dropped"] += 1
    return routes[~is_shared].reshape(*routes.shape[:2], model.top_k)


def _placed(row: RecordedRow, routes: Routes, asked: AskedRepairs, repairs: Counter[str]) -> Recorded:
    """Rows put beside their tokens: engines return none for the last token, and none for tokens from a prefix cache."""
    ids = row.token_ids.astype(np.int32)
    cached = row.cached_tokens if len(routes) + row.cached_tokens in (len(ids), len(ids) - 1) else 0
    absent = len(ids) - cached - len(routes)
    if absent == 0 and len(ids) > 1 and unrecorded_tokens(routes[-1:]).all() and not unrecorded_tokens(routes[-2:-1]).all():
        routes, absent = routes[:-1], 1
    if absent == 1 and len(ids) > 1:
        if not asked.drop_last:
            detail = "no routes for the last token, which was sampled and not run; drop it: --drop-last"
            raise FaultError("last_token_missing", detail)
        repairs["last_token_dropped"] += 1
        ids, absent = ids[:-1], 0
    if absent:
        raise FaultError("tokens_missing", f"{len(routes)} rows of routes for {len(ids)} tokens")
    held = unrecorded_tokens(routes)
    leading = 0 if held.all() else int(held.argmin())  # rows that are all unwritten are no cached prefix
    first = cached + leading
    if first and not asked.fill_prefixes:
        raise FaultError(
            "tokens_missing",
            f"no routes for the first {first} of {len(ids)} tokens, from a prefix cache; record without one, or --fill-prefixes",
        )
    repairs["prefix_tokens_absent"] += first
    return Recorded(token_ids=ids, routes=routes[leading:], first=first)


class LayerDigests:
    """Tells, over all sequences of an import, whether two layers hold the same."""

    def __init__(self, layers: tuple[int, ...]) -> None:
        self._digests = {layer: hashlib.blake2b(digest_size=16) for layer in layers}
        self.num_tokens = 0

    def add(self, routes_TLK: Routes) -> None:
        """Takes the routes of one more sequence; which of a token's places an expert has does not count."""
        sorted_TLK = np.sort(routes_TLK, axis=-1).astype("<i4")
        self.num_tokens += len(routes_TLK)
        for place, digest in enumerate(self._digests.values()):
            digest.update(np.ascontiguousarray(sorted_TLK[:, place]).tobytes())

    def found(self) -> dict[int, bytes]:
        """By decoder layer."""
        return {layer: digest.digest() for layer, digest in self._digests.items()}
