"""Token ids and expert ids of recorded sequences, under the keys that training and serving stacks give them."""

import base64
import binascii
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from routing.core.masks import kept_places
from routing.recorded.faults import FaultError, Routes

ROUTES_KEYS = ("routed_experts", "rollout_routed_experts", "expert_ids", "topk_ids")
PROMPT_ROUTES_KEY = "prompt_routed_experts"
WHOLE_KEYS = ("input_ids", "tokens", "token_ids")
PROMPT_KEYS = ("prompt_token_ids", "prompt_ids", "input_ids")
MASK_KEY = "attention_mask"
COMPLETION_KEYS = ("completion_token_ids", "response_token_ids", "response_ids", "output_ids", "token_ids")
_OTHER_KEYS = (
    MASK_KEY,
    "num_experts",
    "cached_tokens",
    "meta_info",
    "choices",
    "messages_and_choices",
    "trajectories",
    "task_id",
    "domain",
)
# The columns of a Parquet or Arrow file that a row is looked at through.
ROW_KEYS = tuple(dict.fromkeys((*ROUTES_KEYS, PROMPT_ROUTES_KEY, *WHOLE_KEYS, *PROMPT_KEYS, *COMPLETION_KEYS, *_OTHER_KEYS)))
_NUMPY_MAGIC = b"\x93NUMPY"


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedRow:
    """One sequence without its padding: `token_ids` int64 [T], `routes` [rows, layers, top-k] as recorded, unchecked.

    `cached_tokens` leading tokens came from a prefix cache, where the row says so. `num_experts` is what the row claims.
    """

    token_ids: npt.NDArray[np.int64]
    routes: Routes
    cached_tokens: int
    num_experts: int | None


def sequences(row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The parts of a row that hold routes each: the choices of a response, the Choices of ART histories, else the row itself."""
    if isinstance(trajectories := row.get("trajectories"), list):
        return [part for one in trajectories if isinstance(one, Mapping) for part in sequences(one)]
    if isinstance(row.get("messages_and_choices"), list):
        return list(_art_choices(row))
    if isinstance(choices := row.get("choices"), list):
        shared = {key: value for key, value in row.items() if key != "choices"}
        return [{**shared, **choice} for choice in choices if isinstance(choice, Mapping)]
    inner = row.get("meta_info")
    return [{**inner, **row}] if isinstance(inner, Mapping) else [row]


def _art_choices(history: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Every Choice of a trajectory and of its additional histories that carries routes."""
    for one in history["messages_and_choices"]:
        if isinstance(one, Mapping) and any(key in one for key in ROUTES_KEYS):
            yield one
    for more in history.get("additional_histories") or []:
        if isinstance(more, Mapping) and isinstance(more.get("messages_and_choices"), list):
            yield from _art_choices(more)


def read_recorded(part: Mapping[str, Any], *, num_layers: int, top_k: int) -> RecordedRow:
    """The sequence in one of `sequences`; FaultError where ids or routes are absent, unreadable or two, or the mask is none.

    Routes as base64 text are a `.npy` file, or int32 of every one of `num_layers` decoder layers and `top_k` (SGLang).
    """
    keys = [_held(part, (PROMPT_ROUTES_KEY,)), _held(part, ROUTES_KEYS)]
    told = [{key: _routes(part[key], num_layers, top_k) for key in alike} for alike in keys]
    routes = [_agreed(one, reason="layout") for one in told if one]
    if not routes:
        raise FaultError("layout", f"no expert ids under {', '.join(ROUTES_KEYS)}")
    if len({one.shape[1:] for one in routes}) > 1:
        raise FaultError("layout", f"prompt and completion routes of shapes {routes[0].shape} and {routes[1].shape}")
    joined = np.concatenate(routes) if len(routes) > 1 else routes[0]
    token_ids, kept_routes = _without_padding(_token_ids(part), joined, part.get(MASK_KEY))
    return RecordedRow(
        token_ids=token_ids,
        routes=kept_routes,
        cached_tokens=_count(part.get("cached_tokens"), "cached_tokens") or 0,
        num_experts=_count(part.get("num_experts"), "num_experts"),
    )


def _token_ids(part: Mapping[str, Any]) -> npt.NDArray[np.int64]:
    prompts, completions = _held(part, PROMPT_KEYS), _held(part, COMPLETION_KEYS)
    if not (prompts and completions):
        wholes = {key: _ids(part[key], key) for key in _held(part, WHOLE_KEYS)}
        if not wholes:
            raise FaultError("token_ids", f"no token ids under {', '.join(WHOLE_KEYS)}, nor a prompt with a completion")
        return _agreed(wholes, reason="token_ids")
    if "input_ids" in prompts[1:]:
        said = f"input_ids beside {prompts[0]} and {completions[0]}: leave out what is not meant"
        raise FaultError("token_ids", said)
    halves = [_agreed({key: _ids(part[key], key) for key in keys}, reason="token_ids") for keys in (prompts, completions)]
    joined = {f"{prompts[0]} with {completions[0]}": np.concatenate(halves)}
    return _agreed(joined | {key: _ids(part[key], key) for key in _held(part, ("tokens",))}, reason="token_ids")


def _without_padding(ids: npt.NDArray[np.int64], routes: Routes, mask: Any) -> tuple[npt.NDArray[np.int64], Routes]:
    """The ids and the rows of routes where the mask is 1."""
    if mask is None:
        return ids, routes
    try:
        kept = np.asarray(kept_places(mask.tolist() if isinstance(mask, np.ndarray) else mask, len(ids)), dtype=np.bool_)
    except ValueError as error:
        raise FaultError("token_ids", str(error)) from None
    if kept.all():
        return ids, routes
    if len(routes) != len(ids):
        raise FaultError("token_ids", f"{MASK_KEY} marks padding, but {len(routes)} rows of routes stand beside {len(ids)} ids")
    return ids[kept], routes[kept]


def _held(part: Mapping[str, Any], keys: tuple[str, ...]) -> list[str]:
    """Those of `keys` under which ids may stand: a number is a count of them."""
    return [key for key in keys if part.get(key) is not None and not isinstance(part[key], int)]


def _agreed(said: Mapping[str, npt.NDArray[Any]], *, reason: str) -> npt.NDArray[Any]:
    """What every key of one meaning says; FaultError where two of them say two things."""
    first, *others = said
    for other in others:
        if not np.array_equal(said[first], said[other]):
            raise FaultError(reason, f"{first} and {other} differ: leave out what is not meant")
    return said[first]


def _ids(value: Any, key: str) -> npt.NDArray[np.int64]:
    ids = _array(value, key, "token_ids")
    if ids.ndim != 1 or (len(ids) and (ids.min() < 0 or ids.max() >= 2**31)):
        raise FaultError("token_ids", f"{key} is no list of token ids")
    return ids.astype(np.int64)


def _routes(value: Any, num_layers: int, top_k: int) -> Routes:
    if isinstance(value, str):
        return _decoded(value, num_layers, top_k)
    routes = _array(value, "the routes", "layout")
    if routes.ndim != 3:
        raise FaultError("layout", f"routes of {routes.ndim} dimensions, not [tokens, layers, top-k]")
    return routes


def _decoded(text: str, num_layers: int, top_k: int) -> Routes:
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise FaultError("layout", "routes are text and no base64") from None
    if raw.startswith(_NUMPY_MAGIC):
        try:
            return _routes(np.load(io.BytesIO(raw), allow_pickle=False), num_layers, top_k)
        except (ValueError, EOFError, OSError):
            raise FaultError("layout", "routes are base64 of a .npy file that can't be read") from None
    if len(raw) % (4 * num_layers * top_k):
        raise FaultError("layout", f"routes are {len(raw)} bytes, no whole tokens of int32 [{num_layers} layers, top-{top_k}]")
    return np.frombuffer(raw, dtype="<i4").reshape(-1, num_layers, top_k)


def _array(value: Any, key: str, reason: str) -> Routes:
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError):
        raise FaultError(reason, f"{key}: lists of unequal length") from None
    if array.dtype.kind not in "iu":
        if array.size:
            raise FaultError(reason, f"{key}: {array.dtype} values, not whole numbers")
        array = array.astype(np.int64)
    return array


def _count(value: Any, key: str) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not hasattr(value, "__index__") or int(value) < 0:
        raise FaultError("layout", f"{key} is no whole number")
    return int(value)
