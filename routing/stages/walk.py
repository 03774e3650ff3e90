"""Whether a run computes shared prefixes once: as it began, or as the probe of the model's cache allows."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

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

WHOLE, PREFIX_ONCE = "whole", "prefix-once"


def settle_walk(
    prepared: Prepared, policy: LoadedPolicy, counter: ExpertCounter, writer: RunWriter, progress: Progress
) -> HeldCaches | None:
    """What passes go on from, None where every trajectory is computed whole; the manifest says which, and what the probe found.

    InputError where a run that began with cached prefixes can't go on with them.
    """
    begun = writer.manifest.settings.walk
    anchors = find_anchors(prepared.tree, prepared.parts)
    if begun == WHOLE or (begun is None and not anchors):
        _record(writer, WHOLE, tokens_to_compute(prepared.parts, prepared.tree, None))
        return None
    go_on_without_mask(policy.model, on=True)
    probe = probe_cache(policy, counter, [one.token_ids for one in prepared.corpus.trajectories])
    if not is_trusted(probe, prepared.dtype):
        why = f"the model's cache can't be gone on from ({said_of(probe)})"
        if begun == PREFIX_ONCE:
            raise InputError(f"{writer.folder}: was begun with prefixes computed once, now {why}; choose another --out")
        go_on_without_mask(policy.model, on=False)
        progress.note(f"every trajectory is computed whole: {why}")
    walk = PREFIX_ONCE if is_trusted(probe, prepared.dtype) else WHOLE
    held = HeldCaches(anchors=anchors, budget_bytes=HELD_BYTES[policy.device.type]) if walk == PREFIX_ONCE else None
    _record(writer, walk, tokens_to_compute(prepared.parts, prepared.tree, held.anchors if held else None), cache_probe=probe)
    return held


def tokens_to_compute(parts: Sequence[PartPlan], tree: PrefixTree, anchors: Mapping[int, Anchor] | None) -> int:
    """Of these parts, whole without anchors; what a part computes again of prefixes that earlier ones brought is left out."""
    return sum(part.num_tokens for part in parts) if anchors is None else sum(tokens_once(tree, parts, anchors))


def _record(writer: RunWriter, walk: str, planned_tokens: int, **changes: object) -> None:
    settings = replace(writer.manifest.settings, walk=walk, **changes)  # type: ignore[arg-type]
    writer.update(settings=settings, planned_tokens=planned_tokens)
