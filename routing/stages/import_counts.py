"""`routing import counts`: rows that another engine counted by layer and expert, to a run; prefixes are not known."""

import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from routing.core.errors import InputError
from routing.core.segments import PrefixTree, Segment
from routing.core.shapes import ModelShape
from routing.corpus.containers import check_readable
from routing.corpus.files import distinct_names
from routing.corpus.sequences import CorpusFile, Refusal
from routing.corpus.strict_json import printable
from routing.corpus.tree import tree_tables
from routing.recorded.counts import UnitCounts, dense_units, read_count_table
from routing.recorded.dumps import META, read_sglang, read_trtllm, step_units
from routing.stages.corpus_record import corpus_record
from routing.stages.importing import UNKNOWN, Imported, ImportResult, file_account, settled_label, write_import
from routing.store.settings import Recording

_FORMATS = {b"PK\x03\x04": "sglang-recorder", b"PAR1": "parquet"}  # by the first four bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class CountsRequest:
    """What the user asked for. `num_tokens` and `top_k` are null where the files say, `model` where widths stay unknown."""

    files: tuple[Path, ...]
    out: Path
    num_tokens: int | None
    top_k: int | None
    num_experts: int | None
    model: Path | None
    label: str | None
    engine: str | None
    command: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class CountedUnit:
    """One unit as a run keeps a trajectory; the hash is over its counts, since nobody knows its tokens."""

    trajectory_hash: str
    unit: str
    stratum: str
    source_file: str
    source_row: int
    num_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class CountedCorpus:
    """The account of counts, with the fields of a `Corpus`."""

    trajectories: tuple[CountedUnit, ...]
    files: tuple[CorpusFile, ...]
    refusals: tuple[Refusal, ...]
    normalised: dict[str, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Counted:
    """One file: the layers that it holds, its units, and the top-k that they fit."""

    file: CorpusFile
    layers: tuple[int, ...]
    units: tuple[UnitCounts, ...]
    top_k: int


def import_counts(request: CountsRequest, note: Callable[[str], None]) -> ImportResult:
    """Reads and checks every file, then writes the run: each unit one trajectory of one segment that shares nothing."""
    label = settled_label(request.out, label=request.label, engine=request.engine)
    model, architecture, config_sha256 = _model(request)
    repairs: Counter[str] = Counter()
    read = _read(request, model, repairs)
    _require_alike(read, model)
    shape = _shape(read[0], model)
    corpus = _corpus(read)
    tree = _tree(corpus.trajectories)
    loads = [unit.loads_LE for one in read for unit in one.units]
    longest = max(unit.num_tokens for unit in corpus.trajectories)
    missing = None if model is None else tuple(layer for layer in model.moe_layers if layer not in shape.moe_layers)
    widths = () if model else ("model", "layers of the model")
    return write_import(
        request.out,
        Imported(
            label=label,
            architecture=architecture,
            config_sha256=config_sha256,
            shape=shape,
            corpus=corpus_record(corpus, tree, segment_tokens=longest),
            tree=tree,
            tables=tree_tables(tree, corpus.trajectories),
            loads=lambda segments: np.stack([loads[segment] for segment in segments]),
            segment_tokens=longest,
            recording=Recording(
                kind="counts",
                engine=request.engine,
                missing_layers=missing,
                unknown=("weights", "dtype", "tokens", "prefixes", *widths),
                repairs={},
            ),
            repairs=repairs,
            command=request.command,
        ),
        note,
    )


def _model(request: CountsRequest) -> tuple[ModelShape | None, str, str]:
    """(shape, architecture, sha256 of the configuration) where one is named; torch is not loaded for less."""
    if request.model is None:
        return None, UNKNOWN, UNKNOWN
    from routing.measure.policy import read_model

    model = read_model(request.model)
    for flag, given, theirs in (
        ("--top-k", request.top_k, model.shape.top_k),
        ("--num-experts", request.num_experts, model.shape.num_experts),
    ):
        if given not in (None, theirs):
            raise InputError(f"{flag}: {given}, but {request.model} says {theirs}")
    return model.shape, model.architecture, model.config_sha256


def _read(request: CountsRequest, model: ModelShape | None, repairs: Counter[str]) -> list[_Counted]:
    read = []
    for name, path in zip(distinct_names(list(map(str, request.files))), request.files, strict=True):
        shown = printable(str(path))
        format = _format(path, shown)
        top_k = model.top_k if model else request.top_k
        if format in ("csv", "parquet"):
            top_k = _known(top_k, shown)
            table = read_count_table(path, is_parquet=format == "parquet", name=shown)
            num_experts = model.num_experts if model else request.num_experts
            layers, units = dense_units(table, num_tokens=request.num_tokens, top_k=top_k, num_experts=num_experts, name=shown)
        else:
            layers, units, top_k = _dump(path, format, request, top_k, shown, repairs)
        file = file_account(path, name, format, rows=len(units), kept=len(units), refused=0)
        read.append(_Counted(file=file, layers=layers, units=units, top_k=top_k))
    return read


def _dump(
    path: Path, format: str, request: CountsRequest, top_k: int | None, name: str, repairs: Counter[str]
) -> tuple[tuple[int, ...], tuple[UnitCounts, ...], int]:
    """(layers, units, top-k) of a statistic dump, whose steps tell their tokens by their rows."""
    if request.num_tokens is not None:
        raise InputError(f"{name}: a dump tells the tokens of each step by its rows; leave --num-tokens out")
    if format == "sglang-recorder":
        counts = read_sglang(path, name=name)
        layers, known = tuple(range(counts.shape[1])), _known(top_k, name)
    else:
        counts, layers, known = read_trtllm(path, name=name)
        if top_k not in (None, known):
            raise InputError(f"{name}: {META} says top-{known}, not {top_k}")
    return *step_units(counts, layers, top_k=known, name=name, repairs=repairs), known


def _known(top_k: int | None, name: str) -> int:
    if top_k is None:
        raise InputError(f"{name}: how many experts has a token? --top-k K, or --model config.json")
    return top_k


def _format(path: Path, name: str) -> str:
    """By content; a zip, which the corpus refuses, is what torch saves."""
    if (path / META).is_file():
        return "trtllm-statistic"
    if path.is_file():
        with path.open("rb") as file:
            head = file.read(4)
        if head in _FORMATS:
            return _FORMATS[head]
    check_readable(path, name=name)
    return "csv"


def _require_alike(read: list[_Counted], model: ModelShape | None) -> None:
    """InputError where two files, or a file and the model, are of different layers, experts or top-k."""
    for one in read:
        mine = (one.layers, one.top_k, one.units[0].loads_LE.shape[1])
        first = (read[0].layers, read[0].top_k, read[0].units[0].loads_LE.shape[1])
        for what, left, right in zip(("layers", "top-k", "experts"), mine, first, strict=True):
            if left != right:
                raise InputError(f"{one.file.name}: {what} {str(left)[:60]}, {read[0].file.name} has {str(right)[:60]}")
        odd = [layer for layer in one.layers if model and layer not in model.moe_layers]
        if odd or (model and mine[2] != model.num_experts):
            raise InputError(
                f"{one.file.name}: layers {odd[:4]} are no MoE layers of the model"
                if odd
                else f"{one.file.name}: {mine[2]} experts, the model has {model.num_experts if model else 0}"
            )


def _shape(first: _Counted, model: ModelShape | None) -> ModelShape:
    """The model's shape with the layers that were recorded; without a model the widths are 0, not known."""
    if model is not None:
        return replace(model, moe_layers=first.layers)
    return ModelShape(
        num_layers=first.layers[-1] + 1,
        moe_layers=first.layers,
        num_experts=first.units[0].loads_LE.shape[1],
        top_k=first.top_k,
        hidden_size=0,
        expert_ffn_size=0,
    )


def _corpus(read: list[_Counted]) -> CountedCorpus:
    """Units in file order; counts tell no tokens, so each is told apart by its file, its name and its counts."""
    units = []
    for one in read:
        for row, unit in enumerate(one.units):
            text = f"{one.file.sha256}\0{unit.unit}\0{unit.num_tokens}\0".encode()
            digest = hashlib.sha256(text + unit.loads_LE.astype("<i4").tobytes()).hexdigest()
            units.append(
                CountedUnit(
                    trajectory_hash=digest,
                    unit=f"{one.file.name}/{unit.unit}",
                    stratum=one.file.name,
                    source_file=one.file.name,
                    source_row=row,
                    num_tokens=unit.num_tokens,
                )
            )
    return CountedCorpus(trajectories=tuple(units), files=tuple(one.file for one in read), refusals=(), normalised={})


def _tree(units: tuple[CountedUnit, ...]) -> PrefixTree:
    segments = tuple(
        Segment(
            segment_id=place,
            parent_segment_id=None,
            segment_hash=hashlib.sha256(f"counts\0{unit.trajectory_hash}".encode()).hexdigest(),
            first_position=0,
            num_tokens=unit.num_tokens,
        )
        for place, unit in enumerate(units)
    )
    return PrefixTree(segments=segments, paths=tuple((place,) for place in range(len(units))))
