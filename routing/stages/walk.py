"""Whether a run computes shared prefixes once: as it began, or as the probe of the model's cache allows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from routing.core.errors import InputError
from routing.core.segments import PrefixTree
from routing.measure.anchors import Anchor, find_anchors, tokens_once
from routing.measure.attention import go_on_without_mask
from routing.measure.capture import ExpertCounter
from routing.measure.plan import PartPlan
from routing.measure.policy import LoadedPolicy
from routing.measure.prefixes import HELD_BYTES, HeldCaches
from routing.measure.probe import is_trusted, probe_cache, said_of
from routing.stages.begin import Prepared, Progress
from routing.store.run import RunWriter
from routing.store.settings import CacheProbe

WHOLE, PREFIX_ONCE = "whole", "prefix-once"


@dataclass(frozen=True, kw_only=True, slots=True)
class Probed:
    """What the probe of the model's cache found, and the shared prefixes that it was asked for."""

    cache: CacheProbe
    anchors: Mapping[int, Anchor]


def probe_walk(prepared: Prepared, policy: LoadedPolicy, *, begun: str | None) -> Probed | None:
    """Tries the model's cache; None where nothing is shared, or the run was begun with whole trajectories.

    None too for a policy that is spread over devices, whose caches lie on several. The model is left as it goes on from a cache.
    """
    if begun == WHOLE or policy.layers_by_device is not None:
        return None
    anchors = find_anchors(prepared.tree, prepared.parts)
    if not anchors:
        return None
    go_on_without_mask(policy.model, on=True)
    with ExpertCounter(policy.experts, top_k=policy.top_k) as counter:
        cache = probe_cache(policy, counter, [one.token_ids for one in prepared.corpus.trajectories])
    return Probed(cache=cache, anchors=anchors)


def settle_walk(
    prepared: Prepared, policy: LoadedPolicy, probed: Probed | None, writer: RunWriter, progress: Progress
) -> HeldCaches | None:
    """What passes go on from, None where every trajectory is computed whole; the manifest says which, and what was found first.

    InputError where a run that began with cached prefixes can't go on with them.
    """
    begun = writer.manifest.settings.walk
    trusted = probed is not None and is_trusted(probed.cache, prepared.dtype)
    if probed is not None and not trusted:
        why = f"the model's cache can't be gone on from ({said_of(probed.cache)})"
        if begun == PREFIX_ONCE:
            raise InputError(f"{writer.folder}: was begun with prefixes computed once, now {why}; choose another --out")
        progress.note(f"every trajectory is computed whole: {why}")
    once = trusted and begun != WHOLE  # another worker may have settled it meanwhile
    anchors = probed.anchors if probed is not None and once else None
    if begun is None:
        walk, cache_probe = PREFIX_ONCE if once else WHOLE, None if probed is None else probed.cache
        settings = replace(writer.manifest.settings, walk=walk, cache_probe=cache_probe)
        writer.update(settings=settings, planned_tokens=tokens_to_compute(prepared.parts, prepared.tree, anchors))
    if anchors is None:
        go_on_without_mask(policy.model, on=False)
        return None
    return HeldCaches(anchors=anchors, budget_bytes=HELD_BYTES[policy.device.type])


def tokens_to_compute(parts: Sequence[PartPlan], tree: PrefixTree, anchors: Mapping[int, Anchor] | None) -> int:
    """Of these parts, whole without anchors; what a part computes again of prefixes that earlier ones brought is left out."""
    return sum(part.num_tokens for part in parts) if anchors is None else sum(tokens_once(tree, parts, anchors))
