"""Four ways to learn how a model routes, each around the same forward passes of its base model.

What each keeps is what it is known to keep: counts of the part at hand, router logits, ids of every token, a library's window.
B rows of T positions, N = B x T tokens, K experts a token, S segments, L MoE layers, E experts.
"""

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from routing.measure.capture import ExpertCounter
from routing.measure.policy import LoadedPolicy

SEGMENT_TOKENS = 1024


class Recorder(Protocol):
    """Entered once; `take` runs a batch of ids [B, T] and keeps what it keeps, `counts` are routed rows [L, E] of all batches."""

    def __enter__(self) -> Self: ...
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...
    def take(self, ids_BT: Tensor) -> None: ...
    def counts(self) -> Tensor: ...


def record(recorder: Recorder, batches: Sequence[Tensor]) -> Tensor:
    """Routed rows [L, E] of `batches` by one recorder, its hooks set and removed."""
    with recorder, torch.inference_mode():
        for ids_BT in batches:
            recorder.take(ids_BT)
        return recorder.counts()


def forward_only(policy: LoadedPolicy, batches: Sequence[Tensor]) -> None:
    """The same passes with nothing around them."""
    with torch.inference_mode():
        for ids_BT in batches:
            policy.model(input_ids=ids_BT, use_cache=False)


def recorders(policy: LoadedPolicy, *, part_tokens: int) -> Mapping[str, Callable[[], Recorder]]:
    """Every way that can be had here by its name; `part_tokens` are those after which ours hands its counts on."""
    ways: dict[str, Callable[[], Recorder]] = {
        "routing": lambda: SegmentCounts(policy, part_tokens=part_tokens),
        "output_router_logits": lambda: RouterLogits(policy),
        "ids of every token": lambda: TokenExperts(policy),
    }
    if importlib.util.find_spec("moewatch") is not None:
        ways["moewatch"] = lambda: Moewatch(policy)
    return ways


class SegmentCounts:
    """Ours: counts by segment, int32 [S, L, E] read back once a batch, handed on (a run writes them) after every part."""

    def __init__(self, policy: LoadedPolicy, *, part_tokens: int) -> None:
        self._model = policy.model
        self._counter = ExpertCounter(policy.experts, top_k=policy.top_k)
        self._part_tokens = part_tokens
        self._part: list[Tensor] = []
        self._tokens = 0
        self._total_LE = torch.zeros(len(policy.experts), self._counter.num_experts, dtype=torch.int64)

    def __enter__(self) -> Self:
        self._counter.__enter__()
        return self

    def __exit__(self, *raised: object) -> None:
        self._counter.__exit__(*raised)

    def take(self, ids_BT: Tensor) -> None:
        num_tokens = ids_BT.numel()
        slot_N = torch.arange(num_tokens, device=ids_BT.device) // SEGMENT_TOKENS
        self._counter.begin(slot_N, segment_ids=range(-(-num_tokens // SEGMENT_TOKENS)))
        self._model(input_ids=ids_BT, use_cache=False)
        self._part.append(self._counter.collect())
        self._tokens += num_tokens
        if self._tokens >= self._part_tokens:
            self._hand_on()

    def counts(self) -> Tensor:
        self._hand_on()
        return self._total_LE

    def _hand_on(self) -> None:
        for counts_SLE in self._part:
            self._total_LE += counts_SLE.sum(0)
        self._part, self._tokens = [], 0


class RouterLogits:
    """What transformers offers: `output_router_logits=True`, the logits kept, experts chosen from them again at the end.

    The hooks that transformers sets for it stay on the model, idle in the other ways.
    """

    def __init__(self, policy: LoadedPolicy) -> None:
        self._policy = policy
        self._kept: list[Sequence[Tensor]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self._kept = []

    def take(self, ids_BT: Tensor) -> None:
        self._kept.append(self._policy.model(input_ids=ids_BT, use_cache=False, output_router_logits=True).router_logits)

    def counts(self) -> Tensor:
        top_k = self._policy.top_k
        return _sum([_count(one.topk(top_k).indices, one.shape[-1]) for one in logits_LNE] for logits_LNE in self._kept)


class TokenExperts:
    """What inference servers hand out on request: the chosen ids of every token and layer, int32 [N, L, K] on the host."""

    def __init__(self, policy: LoadedPolicy) -> None:
        self._policy = policy
        self._handles: list[Any] = []
        self._batch: list[Tensor] = []
        self._kept: list[Tensor] = []

    def __enter__(self) -> Self:
        for experts in self._policy.experts:
            hook = self._hook(*experts.ids_at)
            self._handles.append(experts.module.register_forward_pre_hook(hook, with_kwargs=True))
        return self

    def __exit__(self, *raised: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles, self._kept = [], []

    def take(self, ids_BT: Tensor) -> None:
        self._policy.model(input_ids=ids_BT, use_cache=False)
        self._kept.append(torch.stack(self._batch, dim=1).to(torch.int32).cpu())
        self._batch = []

    def counts(self) -> Tensor:
        num_experts = self._policy.experts[0].num_experts
        return _sum([_count(ids_NK, num_experts) for ids_NK in ids_NLK.unbind(1)] for ids_NLK in self._kept)

    def _hook(self, name: str, position: int) -> Callable[..., None]:
        def keep(_module: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._batch.append(kwargs[name] if name in kwargs else args[position])

        return keep


class Moewatch:
    """moewatch 0.1.0 with every pass sampled: its hooks on the routers and its collector; no analysis, no alerts.

    It is told the routers, which it doesn't know in every class. Where it sees logits it counts each token's first choice alone.
    """

    def __init__(self, policy: LoadedPolicy) -> None:
        from moewatch.collector.stat_collector import StatCollector
        from moewatch.config import OutputMode, WatchConfig
        from moewatch.hooks.manager import HookManager

        names = [f"{experts.name.rpartition('.')[0]}.gate" for experts in policy.experts]
        config = WatchConfig(sample_every=1, output=OutputMode.SILENT, router_modules=names)
        self._model, self._names = policy.model, names
        self._collector = StatCollector(layer_names=names, config=config)
        self._hooks = HookManager(model=policy.model, router_module_names=names, collector=self._collector, config=config)

    def __enter__(self) -> Self:
        self._hooks.attach()
        return self

    def __exit__(self, *raised: object) -> None:
        self._hooks.detach()

    def take(self, ids_BT: Tensor) -> None:
        self._model(input_ids=ids_BT, use_cache=False)

    def counts(self) -> Tensor:
        stats = self._collector.get_all_stats()
        return torch.stack([stats[name].expert_counts for name in self._names])


def _sum(batches: Any) -> Tensor:
    """[L, E] over batches that are each a list of L counts [E]."""
    return torch.stack([torch.stack(layers) for layers in batches]).sum(0).cpu()


def _count(ids_NK: Tensor, num_experts: int) -> Tensor:
    return torch.bincount(ids_NK.flatten(), minlength=num_experts)


def shown(counts_LE: Tensor, *, ep: int) -> tuple[float, float, float]:
    """(worst layer, mean over layers, layers pooled) of busiest rank over even share, contiguous blocks of experts."""
    ranks_LR = counts_LE.view(len(counts_LE), ep, -1).sum(-1)
    imbalance_L = ranks_LR.amax(-1) * ep / ranks_LR.sum(-1)
    pooled_R = ranks_LR.sum(0)
    return imbalance_L.max().item(), imbalance_L.mean().item(), (pooled_R.max() * ep / pooled_R.sum()).item()
