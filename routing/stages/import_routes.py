"""`routing import routes`: expert ids that another engine recorded, token by token, to a run like a measured one."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from routing.core.errors import CheckFailedError, InputError
from routing.core.segments import PrefixTree
from routing.core.shapes import ModelShape
from routing.corpus.labels import read_labels
from routing.corpus.sequences import Corpus, CorpusFile, Refusal, TokenizedTrajectory, token_hash
from routing.corpus.strict_json import printable
from routing.corpus.tree import build_tree, tree_tables
from routing.measure.policy import read_model
from routing.recorded.count import Providers, counted, providers, uncovered
from routing.recorded.faults import FaultError, require_layers_differ
from routing.recorded.routes import AskedRepairs, LayerDigests, Recorded, held_to_model, recorded_layers
from routing.recorded.rows import read_recorded, sequences
from routing.stages.corpus_record import corpus_record
from routing.stages.importing import Imported, ImportResult, file_account, settled_label, write_import
from routing.stages.route_files import route_sources
from routing.store.settings import Recording


@dataclass(frozen=True, kw_only=True, slots=True)
class RoutesRequest:
    """What the user asked for; sizes in tokens."""

    files: tuple[Path, ...]
    model: Path
    out: Path
    label: str | None
    engine: str | None
    domain: str | None
    segment_tokens: int
    asked: AskedRepairs
    skip_bad: bool
    command: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Kept:
    trajectory: TokenizedTrajectory
    recorded: Recorded


def import_routes(request: RoutesRequest, note: Callable[[str], None]) -> ImportResult:
    """Reads and checks every file, then writes the run; CheckFailedError, without --skip-bad, for the first bad sequence."""
    label = settled_label(request.out, label=request.label, engine=request.engine)
    model = read_model(request.model)
    layers = recorded_layers(model.shape, request.asked)
    repairs: Counter[str] = Counter()
    kept, refusals, files = _read(request, model.shape, repairs)
    tree, kept, providing = _cover(kept, refusals, request)
    recorded = [one.recorded for one in kept]
    _require_layers_differ(recorded, layers, model.shape)
    shape = replace(model.shape, moe_layers=layers)
    trajectories = tuple(one.trajectory for one in kept)
    corpus = Corpus(trajectories=trajectories, files=tuple(files), refusals=tuple(refusals), normalised={})
    return write_import(
        request.out,
        Imported(
            label=label,
            architecture=model.architecture,
            config_sha256=model.config_sha256,
            shape=shape,
            corpus=corpus_record(corpus, tree, segment_tokens=request.segment_tokens),
            tree=tree,
            tables=tree_tables(tree, trajectories),
            loads=lambda segments: counted(
                tree, recorded, providing, segments=segments, num_experts=shape.num_experts, repairs=repairs
            ),
            segment_tokens=request.segment_tokens,
            recording=Recording(
                kind="routes",
                engine=request.engine,
                missing_layers=tuple(layer for layer in model.shape.moe_layers if layer not in layers),
                unknown=("weights", "dtype"),
                repairs={},
            ),
            repairs=repairs,
            command=request.command,
        ),
        note,
    )


def _read(
    request: RoutesRequest, model: ModelShape, repairs: Counter[str]
) -> tuple[list[_Kept], list[Refusal], list[CorpusFile]]:
    """(what is kept, what is refused, the account of each file), in the order of the files."""
    kept: list[_Kept] = []
    refusals: list[Refusal] = []
    files: list[CorpusFile] = []
    seen: dict[str, str] = {}
    for source in route_sources(request.files):
        num_kept, num_refused = len(kept), len(refusals)
        for place, row in source.rows:
            for part in sequences(row):
                try:
                    kept.append(_kept(part, row, source.name, place, request, model, seen, repairs))
                except FaultError as fault:
                    _refuse(fault, source.name, place, refusals, request)
        num_kept, num_refused = len(kept) - num_kept, len(refusals) - num_refused
        if not num_kept + num_refused:
            raise InputError(f"{printable(str(source.path))}: holds no recorded sequence")
        account = {"rows": num_kept + num_refused, "kept": num_kept, "refused": num_refused}
        files.append(file_account(source.path, source.name, source.format, **account))
    return kept, refusals, files


def _kept(
    part: Mapping[str, Any],
    row: Mapping[str, Any],
    name: str,
    place: int,
    request: RoutesRequest,
    model: ModelShape,
    seen: dict[str, str],
    repairs: Counter[str],
) -> _Kept:
    raw = read_recorded(part, num_layers=model.num_layers, top_k=model.top_k)
    recorded = held_to_model(raw, model, request.asked, repairs)
    if not len(recorded.token_ids):
        raise FaultError("token_ids", "no tokens")
    trajectory_hash = token_hash(recorded.token_ids)
    if (original := seen.setdefault(trajectory_hash, f"row {place} of {name}")) != f"row {place} of {name}":
        raise FaultError("exact_repeat", f"the same tokens as {original}")
    task_id, domain = read_labels(row)
    trajectory = TokenizedTrajectory(
        trajectory_hash=trajectory_hash,
        unit=f"{name}#{place}" if task_id is None else f"{domain or request.domain or name}/{task_id}",
        stratum=name,
        source_file=name,
        source_row=place,
        token_ids=recorded.token_ids,
    )
    return _Kept(trajectory=trajectory, recorded=recorded)


def _refuse(fault: FaultError, name: str, place: int, refusals: list[Refusal], request: RoutesRequest) -> None:
    """Counts an exact repeat, and any fault with --skip-bad; else CheckFailedError."""
    if fault.reason != "exact_repeat" and not request.skip_bad:
        raise CheckFailedError(f"{name}: row {place}: {fault.detail} ({fault.reason}); leave such rows out: --skip-bad")
    refusals.append(Refusal(source_file=name, source_row=place, reason=fault.reason, detail=fault.detail))


def _cover(kept: list[_Kept], refusals: list[Refusal], request: RoutesRequest) -> tuple[PrefixTree, list[_Kept], Providers]:
    """The tree of what somebody recorded in full; prefixes that nobody did are a fault of those that lack them."""
    while kept:
        tree = build_tree([one.recorded.token_ids for one in kept], segment_tokens=request.segment_tokens)
        providing = providers(tree, [one.recorded for one in kept])
        lacking = uncovered(tree, providing)
        if not lacking:
            return tree, kept, providing
        for trajectory in lacking:
            one = kept[trajectory]
            detail = f"no other sequence recorded the first {one.recorded.first} tokens that a prefix cache held"
            source = one.trajectory
            _refuse(FaultError("tokens_missing", detail), source.source_file, source.source_row, refusals, request)
        kept = [one for place, one in enumerate(kept) if place not in lacking]
    raise InputError(f"{request.files[0]}: nothing is kept; refused: {len(refusals)}, the first for {refusals[0].reason}")


def _require_layers_differ(recorded: Sequence[Recorded], layers: tuple[int, ...], model: ModelShape) -> None:
    digests = LayerDigests(layers)
    for one in recorded:
        digests.add(one.routes)
    tokens = digests.num_tokens
    require_layers_differ(digests.found(), num_tokens=tokens, num_experts=model.num_experts, top_k=model.top_k)
