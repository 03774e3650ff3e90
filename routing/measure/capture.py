"""Counting, on the device, the rows that each expert receives: the ids the model used, taken where it hands them over.

Every fused experts module of transformers takes the chosen ids as an argument. Rebuilding them from router logits would
be another routing: biased and grouped routers do not order by logits, and BF16 ties at the k-th place are common.

T tokens of a padded batch, K experts a token, S segment slots of a batch, L MoE layers, E experts.
"""

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Self

import torch
from torch import Tensor, nn

from routing.core.errors import CheckFailedError, InputError
from routing.measure.router_faults import FAULTS, OF_POLICY, RouterError
from routing.measure.tally import Counted, Tally

_ID_ARGUMENTS = ("top_k_index", "router_indices")
_WEIGHT_ARGUMENTS = ("top_k_weights", "routing_weights")


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpertsModule:
    """One decoder layer's experts, and where its `forward` takes ids [T, K] and weights [T, K]."""

    layer: int
    name: str
    module: nn.Module
    num_experts: int
    ids_at: tuple[str, int]
    weights_at: tuple[str, int] | None


def find_experts(model: nn.Module) -> tuple[ExpertsModule, ...]:
    """Every experts module by decoder layer; InputError where the model has none, or two in one layer."""
    found = [experts for name, module in model.named_modules() if (experts := _as_experts(name, module)) is not None]
    if not found:
        kind = type(model).__name__
        raise InputError(
            f"{kind}: no module takes chosen expert ids ({', '.join(_ID_ARGUMENTS)}); not a Mixture-of-Experts model we know"
        )
    layers = [experts.layer for experts in found]
    if len(set(layers)) != len(layers):
        raise InputError(
            f"{type(model).__name__}: two experts modules in one decoder layer ({[e.name for e in found][:4]}); refused"
        )
    if len({experts.num_experts for experts in found}) != 1:
        raise InputError(f"{type(model).__name__}: layers differ in their number of experts; refused")
    return tuple(sorted(found, key=lambda experts: experts.layer))


def _as_experts(name: str, module: nn.Module) -> ExpertsModule | None:
    parameters = list(inspect.signature(type(module).forward).parameters)[1:]
    ids = next((one for one in _ID_ARGUMENTS if one in parameters), None)
    if ids is None:
        return None
    layer = re.search(r"(?:^|\.)(\d+)(?:\.|$)", name)
    num_experts = getattr(module, "num_experts", None)
    if layer is None or not isinstance(num_experts, int):
        raise InputError(f"{name}: an experts module without a decoder layer or a number of experts; refused")
    weights = next((one for one in _WEIGHT_ARGUMENTS if one in parameters), None)
    return ExpertsModule(
        layer=int(layer.group(1)),
        name=name,
        module=module,
        num_experts=num_experts,
        ids_at=(ids, parameters.index(ids)),
        weights_at=(weights, parameters.index(weights)) if weights else None,
    )


class ExpertCounter:
    """Hooks on every experts module; counts one batch between `begin` and `collect`.

    Use as a context manager. Nothing is read back from a device before `collect`, which reads once. A layer is counted on the
    device that it runs on.
    """

    def __init__(self, experts: Sequence[ExpertsModule], *, top_k: int) -> None:
        self.experts = tuple(experts)
        self.num_experts = experts[0].num_experts
        self.top_k = top_k
        self._slot_T: Tensor | None = None
        self._slots: dict[torch.device, Tensor] = {}  # the same on every device that a layer ran on
        self._segment_ids: Sequence[int] = ()
        self._seen: set[int] = set()
        self._tally: Tally | None = None
        self._counted: dict[int, Counted] = {}
        self._handles: list[Any] = []

    def __enter__(self) -> Self:
        self._handles = [e.module.register_forward_pre_hook(self._hook(e), with_kwargs=True) for e in self.experts]
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def begin(self, slot_T: Tensor, *, segment_ids: Sequence[int]) -> None:
        """Announces a batch: each token's place in `segment_ids`; their number S for padding and context, not counted.

        `slot_T` is read until `collect`, and must not change before.
        """
        self._slot_T, self._segment_ids = slot_T, segment_ids
        self._slots = {slot_T.device: slot_T}
        self._seen, self._tally, self._counted = set(), None, {}

    def collect(self) -> Tensor:
        """Routed rows [S, L, E] as int32 on the CPU; CheckFailedError names the layer and segment that broke a rule.

        RouterError where the policy, and not how we read it, is at fault.
        """
        missing = [experts.layer for experts in self.experts if experts.layer not in self._seen]
        if missing:
            raise CheckFailedError(f"layers {missing[:8]}: the forward pass never reached their experts")
        layers = [experts.layer for experts in self.experts]
        assert self._slot_T is not None
        self._count_waiting()
        home = self._slot_T.device
        read = torch.stack([self._counts_and_fault(layer).to(home) for layer in layers]).cpu()
        if read[:, -1].any():
            self._raise_on_fault()
        self._slot_T, self._slots = None, {}
        counts_LSE = read[:, :-1].reshape(len(layers), -1, self.num_experts)
        return counts_LSE[:, : len(self._segment_ids)].permute(1, 0, 2).contiguous()

    def _hook(self, experts: ExpertsModule) -> Callable[..., None]:
        def count(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if self._slot_T is None:
                return
            ids_TK = _argument(experts.ids_at, args, kwargs)
            weights_TK = _argument(experts.weights_at, args, kwargs) if experts.weights_at else None
            self._count_layer(experts.layer, ids_TK, weights_TK)

        return count

    def _count_layer(self, layer: int, ids_TK: Tensor, weights_TK: Tensor | None) -> None:
        slot_T = self._slots.get(ids_TK.device)
        if slot_T is None:
            assert self._slot_T is not None
            slot_T = self._slots[ids_TK.device] = self._slot_T.to(ids_TK.device)
        if tuple(ids_TK.shape) != (len(slot_T), self.top_k):
            shape = f"{tuple(ids_TK.shape)}, expected {(len(slot_T), self.top_k)} (tokens, top-k)"
            raise CheckFailedError(f"layer {layer}: the model chose experts of shape {shape}")
        if ids_TK.is_floating_point():
            raise CheckFailedError(f"layer {layer}: the model handed its experts ids of {ids_TK.dtype}, which are no ids")
        if weights_TK is not None and (weights_TK.dim() != 2 or len(weights_TK) != len(slot_T)):
            shape = f"{tuple(weights_TK.shape)}, expected {len(slot_T)} rows of tokens"
            raise CheckFailedError(f"layer {layer}: the model weighed its experts in the shape {shape}")
        if layer in self._seen:
            raise CheckFailedError(f"layer {layer}: its experts ran twice in one forward pass (recompute, or a shared module)")
        self._seen.add(layer)
        kind = None if weights_TK is None else (weights_TK.dtype, weights_TK.shape[1])
        tally = self._tally
        if tally is None or tally.slot_T is not slot_T or tally.weights_kind != kind:
            self._count_waiting()
            num_slots = len(self._segment_ids)
            tally = Tally(slot_T=slot_T, num_slots=num_slots, num_experts=self.num_experts, weights_kind=kind)
            self._tally = tally
        tally.add(layer, ids_TK, weights_TK)
        if tally.is_full:
            self._count_waiting()

    def _count_waiting(self) -> None:
        if self._tally is not None:
            self._counted |= self._tally.count()
            self._tally = None

    def _counts_and_fault(self, layer: int) -> Tensor:
        """int32: a layer's counts, then 0 where it has no fault."""
        counted = self._counted[layer]
        return torch.cat([counted.rows.view(-1), counted.largest_bits.view(1).to(torch.int32)])

    def _raise_on_fault(self) -> NoReturn:
        bits_LT = torch.stack([self._counted[experts.layer].fault_bits.cpu() for experts in self.experts])
        row = int((bits_LT.amax(1) > 0).int().argmax())
        fault = next(fault for fault in FAULTS if (bits_LT[row] & fault).any())
        at_T = bits_LT[row] & fault
        found = {"num_tokens": int(at_T.count_nonzero()), "first": int(at_T.argmax())}
        message = self._said(self.experts[row].layer, FAULTS[fault], **found)
        if not OF_POLICY & fault:
            raise CheckFailedError(message)
        assert self._slot_T is not None
        slots = set(self._slot_T.cpu()[(bits_LT & OF_POLICY).amax(0) > 0].tolist())
        raise RouterError(message, segment_ids=[self._segment_ids[slot] for slot in sorted(slots)])

    def _said(self, layer: int, fault: str, *, num_tokens: int, first: int) -> str:
        slot_T = self._slot_T
        assert slot_T is not None
        slot = int(slot_T[first])
        place = int((slot_T[:first] == slot).sum())
        dtype = self._counted[layer].weights_dtype
        of_weights = f"{dtype}, ".removeprefix("torch.") if dtype else ""
        return (
            f"layer {layer}, segment {self._segment_ids[slot]}: {num_tokens} tokens of the batch with {fault}, "
            f"the first its token {place} ({of_weights}0..{self.num_experts - 1} are its experts)"
        )


def _argument(at: tuple[str, int], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    name, position = at
    value: Tensor = kwargs[name] if name in kwargs else args[position]
    return value
