"""Counting, on the device, the rows that each expert receives: the ids the model used, taken where it hands them over.

Every fused experts module of transformers takes the chosen ids as an argument. Rebuilding them from router logits would
be another routing: biased and grouped routers do not order by logits, and BF16 ties at the k-th place are common.

T tokens of a padded batch, K experts a token, S segment slots of a batch, L MoE layers, E experts.
"""

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn

from routing.core.errors import CheckFailedError, InputError

_ID_ARGUMENTS = ("top_k_index", "router_indices")
_WEIGHT_ARGUMENTS = ("top_k_weights", "routing_weights")
# The first two are what a policy may do with some text, the others show that its routing was read wrongly.
_FAULTS = (
    "NaN or Inf router weights",
    "the same weight for every expert (all logits equal)",
    "ids out of range",
    "one expert twice in a token",
)
_NUM_OF_POLICY = 2
# Fewer counted tokens than this may all tie: at BF16 and top-2 about one token in 150 does.
_MIN_TOKENS_TO_JUDGE = 16


class RouterError(CheckFailedError):
    """A router that gave no number, or one for all experts, to tokens of `segment_ids`."""

    def __init__(self, message: str, *, segment_ids: Sequence[int]) -> None:
        super().__init__(message)
        self.segment_ids = tuple(segment_ids)


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
        self._counts: dict[int, Tensor] = {}
        self._faults: dict[int, Tensor] = {}
        self._has_no_router: dict[int, Tensor] = {}
        self._dtype: torch.dtype | None = None
        self._handles: list[Any] = []

    def __enter__(self) -> Self:
        self._handles = [e.module.register_forward_pre_hook(self._hook(e), with_kwargs=True) for e in self.experts]
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def begin(self, slot_T: Tensor, *, segment_ids: Sequence[int]) -> None:
        """Announces a batch: each token's place in `segment_ids`; their number S for padding and context, not counted."""
        self._slot_T, self._segment_ids = slot_T, segment_ids
        self._slots = {slot_T.device: slot_T}
        self._counts, self._faults, self._has_no_router = {}, {}, {}

    def collect(self) -> Tensor:
        """Routed rows [S, L, E] as int32 on the CPU; CheckFailedError names the layer and segment that broke a rule.

        RouterError where the policy, and not how we read it, is at fault.
        """
        missing = [experts.layer for experts in self.experts if experts.layer not in self._counts]
        if missing:
            raise CheckFailedError(f"layers {missing[:8]}: the forward pass never reached their experts")
        layers = [experts.layer for experts in self.experts]
        assert self._slot_T is not None
        home, num_faults = self._slot_T.device, 2 * len(_FAULTS)
        found = [torch.cat([self._counts[layer].flatten(), self._faults[layer].flatten()]).to(home) for layer in layers]
        read = torch.stack(found).cpu()
        self._raise_on_fault(layers, read[:, -num_faults:].reshape(len(layers), len(_FAULTS), 2))
        self._slot_T, self._slots = None, {}
        counts_LSE = read[:, :-num_faults].reshape(len(layers), -1, self.num_experts)
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
        if layer in self._counts:
            raise CheckFailedError(f"layer {layer}: its experts ran twice in one forward pass (recompute, or a shared module)")
        num_slots = len(self._segment_ids)
        in_range_TK = ids_TK.clamp(0, self.num_experts - 1)
        index_TK = in_range_TK.add(slot_T[:, None], alpha=self.num_experts)
        size = (num_slots + 1) * self.num_experts
        # Not `bincount`, which on CUDA waits for the device to learn the largest index.
        counts = index_TK.new_zeros(size, dtype=torch.int32)
        ones = index_TK.new_ones((), dtype=torch.int32).expand(index_TK.numel())
        self._counts[layer] = counts.scatter_add_(0, index_TK.flatten(), ones).view(-1, self.num_experts)
        faults_FT = _faults(ids_TK, in_range_TK, weights_TK, slot_T < num_slots)
        self._faults[layer] = torch.stack([faults_FT.sum(-1), faults_FT.int().argmax(-1)], dim=-1).to(torch.int32)
        self._has_no_router[layer] = faults_FT[:_NUM_OF_POLICY].any(0)
        self._dtype = None if weights_TK is None else weights_TK.dtype

    def _raise_on_fault(self, layers: list[int], faults_LF2: Tensor) -> None:
        for layer, faults_F2 in zip(layers, faults_LF2.tolist(), strict=True):
            for fault, (num_tokens, first) in enumerate(faults_F2):
                if num_tokens:
                    message = self._said(layer, fault, num_tokens, first)
                    if fault < _NUM_OF_POLICY:
                        raise RouterError(message, segment_ids=self._without_router())
                    raise CheckFailedError(message)

    def _said(self, layer: int, fault: int, num_tokens: int, first: int) -> str:
        slot_T = self._slot_T
        assert slot_T is not None
        slot = int(slot_T[first])
        place = int((slot_T[:first] == slot).sum())
        dtype = f"{self._dtype}, ".removeprefix("torch.") if self._dtype else ""
        return (
            f"layer {layer}, segment {self._segment_ids[slot]}: {num_tokens} tokens of the batch with {_FAULTS[fault]}, "
            f"the first its token {place} ({dtype}0..{self.num_experts - 1} are its experts)"
        )

    def _without_router(self) -> list[int]:
        """The segments of the batch with a token to which some layer's router gave nothing to choose by."""
        assert self._slot_T is not None
        at_T = torch.stack([one_T.cpu() for one_T in self._has_no_router.values()]).any(0)
        return [self._segment_ids[slot] for slot in sorted(set(self._slot_T.cpu()[at_T].tolist()))]


def _argument(at: tuple[str, int], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    name, position = at
    value: Tensor = kwargs[name] if name in kwargs else args[position]
    return value


def _faults(ids_TK: Tensor, in_range_TK: Tensor, weights_TK: Tensor | None, counted_T: Tensor) -> Tensor:
    """For each of _FAULTS [F, T]: which counted tokens show it."""
    out_of_range_T = (ids_TK != in_range_TK).any(-1)
    repeated_T = torch.zeros_like(counted_T)
    ids_KT = ids_TK.t().to(torch.int32).contiguous()  # tokens side by side: a third of the time on a CPU
    for shift in range(1, len(ids_KT)):
        repeated_T |= (ids_KT[shift:] == ids_KT[:-shift]).any(0)
    not_finite_T = all_equal_T = torch.zeros_like(counted_T)
    if weights_TK is not None:
        weights_KT = weights_TK.t().contiguous()
        low_T, high_T = weights_KT.amin(0), weights_KT.amax(0)
        not_finite_T = ~torch.isfinite(high_T - low_T)
        # A token may tie by chance in BF16, and a sparse mixer gives most of what it chooses a weight of one; a whole batch of
        # many that ties, and goes to the same experts, has a router that does not choose.
        first_1K = ids_TK.index_select(0, counted_T.int().argmax().view(1))
        ties_T = (low_T == high_T) & (ids_TK == first_1K).all(-1)
        is_dead = (ties_T | ~counted_T).all() & (counted_T.sum() >= _MIN_TOKENS_TO_JUDGE) & (ids_TK.shape[1] > 1)
        all_equal_T = is_dead.expand_as(counted_T)
    return torch.stack([not_finite_T, all_equal_T, out_of_range_T, repeated_T]) & counted_T
