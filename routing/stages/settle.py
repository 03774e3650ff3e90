"""What only the loaded weights can say, asked of them and settled in the manifest before the first part.

Of several workers each asks for itself; whoever writes first settles it for all.
"""

from dataclasses import dataclass, replace

from routing.core.errors import InputError
from routing.measure.budget import find_batch_memory, tokens_that_fit
from routing.measure.policy import LoadedPolicy
from routing.measure.prefixes import HeldCaches
from routing.stages.begin import Prepared, Progress
from routing.stages.walk import Probed, probe_walk, settle_walk
from routing.store.manifest import Manifest
from routing.store.run import RunWriter
from routing.store.settings import BatchMemory


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """What was asked: the cache's probe and the memory that a batch takes, None where the run needs no answer."""

    probed: Probed | None
    batch_memory: BatchMemory | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Settled:
    """What passes go on from, None where trajectories are computed whole, and how many padded tokens a batch holds at first."""

    held: HeldCaches | None
    tokens_per_batch: int


def ask(prepared: Prepared, policy: LoadedPolicy, begun: Manifest | None) -> Found:
    """Runs the policy a few times, for seconds; what `begun` has settled is not asked again."""
    memory = None
    if policy.device.type == "cuda" and (begun is None or begun.settings.tokens_per_batch == 0):
        sequences = [one.token_ids for one in prepared.corpus.trajectories]
        memory = find_batch_memory(policy, sequences)
    probed = probe_walk(prepared, policy, begun=None if begun is None else begun.settings.walk)
    return Found(probed=probed, batch_memory=memory)


def settle(prepared: Prepared, policy: LoadedPolicy, found: Found, writer: RunWriter, progress: Progress) -> Settled:
    """Records what was found where nothing is settled yet; InputError where a run that has begun can't go on so."""
    _settle_implementations(policy, writer)
    if found.batch_memory is not None and writer.manifest.settings.tokens_per_batch == 0:
        tokens = tokens_that_fit(found.batch_memory)
        writer.update(settings=replace(writer.manifest.settings, tokens_per_batch=tokens, batch_memory=found.batch_memory))
    held = settle_walk(prepared, policy, found.probed, writer, progress)
    return Settled(held=held, tokens_per_batch=writer.manifest.settings.tokens_per_batch)


def _settle_implementations(policy: LoadedPolicy, writer: RunWriter) -> None:
    """Records what the model chose, known only now; a run that began with another is not gone on with."""
    chosen = {name: getattr(policy, name) for name in ("attention_implementation", "experts_implementation")}
    for name, now in chosen.items():
        before = getattr(writer.manifest.settings, name)
        if before not in (None, now):
            raise InputError(f"{writer.folder}: was measured with {name} {before}, now {now}; choose another --out")
    settings = replace(writer.manifest.settings, **chosen, layers_by_device=policy.layers_by_device)
    if settings != writer.manifest.settings:
        writer.update(settings=settings)
