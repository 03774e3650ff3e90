"""What a configuration says of its model before a weight is loaded: layers, experts, widths, the arithmetic of a token."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from routing.core.errors import InputError
from routing.core.shapes import ModelShape
from routing.measure.capture import find_experts
from routing.measure.refusals import refuse_unproven

_TOP_K_NAMES = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "top_k_experts", "moe_top_k", "moe_k")
_EXPERT_FFN_NAMES = ("moe_intermediate_size", "expert_ffn_hidden_size", "intermediate_size", "ffn_hidden_size")
_MAX_POSITION_NAMES = ("max_position_embeddings", "max_sequence_length", "n_positions")


@dataclass(frozen=True, kw_only=True, slots=True)
class Geometry:
    """`active_parameters` take part in one token's forward pass: embeddings are looked up, of the experts top-k are used."""

    shape: ModelShape
    active_parameters: int
    max_positions: int | None


def read_geometry(config: Any, *, where: str) -> Geometry:
    """From the model built on the meta device; InputError where none can be built, it has no experts, or isn't proven."""
    from transformers import AutoModel

    with told_as(f"{where}: no model of this configuration"):
        text = text_config(config)
    refuse_unproven(config, text, where=where)
    with told_as(f"{where}: no model of this configuration"), torch.device("meta"):
        skeleton = text_decoder(AutoModel.from_config(config, trust_remote_code=False))  # type: ignore[no-untyped-call]
    experts = find_experts(skeleton)
    parts = (text, *(getattr(text, name, None) for name in getattr(text, "sub_configs", ())))  # DBRX keeps its experts in a part

    def width(names: tuple[str, ...], what: str) -> int:
        values = (getattr(part, name, None) for part in parts for name in names)
        found = next((value for value in values if isinstance(value, int)), None)
        if found is None:
            raise InputError(f"{where}/config.json: no {what} (none of {', '.join(names)})")
        return found

    shape = ModelShape(
        num_layers=width(("num_hidden_layers", "n_layers"), "number of layers"),
        moe_layers=tuple(one.layer for one in experts),
        num_experts=experts[0].num_experts,
        top_k=width(_TOP_K_NAMES, "top-k"),
        hidden_size=width(("hidden_size", "d_model"), "hidden size"),
        expert_ffn_size=width(_EXPERT_FFN_NAMES, "expert width"),
    )
    looked_up = sum(_size(module) for module in skeleton.modules() if isinstance(module, nn.Embedding))
    routed = sum(_size(one.module) for one in experts)
    idle = routed - routed * shape.top_k // shape.num_experts
    positions = next((getattr(text, name) for name in _MAX_POSITION_NAMES if getattr(text, name, None)), None)
    return Geometry(shape=shape, active_parameters=_size(skeleton) - looked_up - idle, max_positions=positions)


def least_seconds(geometry: Geometry, num_tokens: int, *, device: torch.device, dtype: torch.dtype) -> tuple[float, float]:
    """(seconds that the matrix products of `num_tokens` take at least, the FLOP/s of a matrix product measured here).

    2 FLOPs a token and active parameter, source: one multiply and one add each. Attention scores and all that is no matrix
    product are left out, so small models take many times longer.
    """
    flops = _matrix_flops(device, dtype)
    return 2 * geometry.active_parameters * num_tokens / flops, flops


def _matrix_flops(device: torch.device, dtype: torch.dtype, *, size: int = 1024, repeats: int = 8) -> float:
    matrix = torch.ones((size, size), device=device, dtype=dtype)
    best = float("inf")
    for _ in range(repeats):
        began = time.perf_counter()
        (matrix @ matrix)[0, 0].item()  # reading one element waits for a device that runs ahead
        best = min(best, time.perf_counter() - began)
    return float(2 * size**3 / best)


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def text_config(config: Any) -> Any:
    """The text part of a multimodal configuration; others are their own."""
    return config.get_text_config(decoder=True)


def text_decoder(model: nn.Module) -> nn.Module:
    """The text decoder of a multimodal base model; other base models are their own."""
    inner = getattr(model, "language_model", model)
    assert isinstance(inner, nn.Module)
    return inner


@contextlib.contextmanager
def told_as(what: str, *, then: str = "") -> Iterator[None]:
    """Whatever a library raises inside as an InputError of one line, `what` with its own words and `then`.

    Configurations, weights and tokenizer files fail wherever the library first touches them, in kinds of its choosing. Out of
    memory stays what it is.
    """
    try:
        yield
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise InputError(f"{what}, {first_line(error)}{then}") from error


def first_line(error: BaseException) -> str:
    """What a library said, on one line; a validator names the field in its first line and the reason in its second."""
    return " ".join(str(error).split())[:300] or type(error).__name__
