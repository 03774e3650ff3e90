"""Small runs written through the store, for tests that need a run and no forward pass."""

import hashlib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from routing.core.observed import MeasuredRun
from routing.core.shapes import ModelShape
from routing.query.imbalance import observed_run, tabulated
from routing.store.content import content_hash
from routing.store.manifest import SCHEMA_VERSION, CorpusRecord, FileRecord, Manifest, PolicyRecord
from routing.store.run import Run, RunWriter, open_run, writing
from routing.store.schemas import SCHEMAS
from routing.store.settings import Settings

Loads = Mapping[tuple[int, int], Sequence[int]]  # (segment_id, layer) to the routed rows of every expert

# Two trajectories that share segment 0: 4 + 2 and 4 + 3 tokens. Packed 9, logical 13. Each token goes to 2 of 4 experts.
TREE = {"paths": [[0, 1], [0, 2]], "segment_tokens": [4, 2, 3]}
MODEL = {"num_experts": 4, "top_k": 2, "layers": [1, 3]}
LOADS = {
    (0, 1): [4, 2, 1, 1],
    (0, 3): [0, 4, 4, 0],
    (1, 1): [2, 2, 0, 0],
    (1, 3): [1, 1, 1, 1],
    (2, 1): [0, 0, 3, 3],
    (2, 3): [3, 1, 1, 1],
}


def sha(text: str) -> str:
    """A stable stand-in for any sha256."""
    return hashlib.sha256(text.encode()).hexdigest()


def tiny_manifest(
    *, shape: ModelShape, label: str = "tiny", dtype: str = "float32", segment_tokens: int = 1024, **corpus: object
) -> Manifest:
    """A manifest of a run in measuring, of a policy that never existed."""
    counts = {"tokens_logical": 0, "tokens_packed": 0, "num_trajectories": 0, "num_segments": 0}
    file = FileRecord(
        name="tiny.jsonl",
        format="input_ids",
        sha256=sha("file"),
        num_bytes=1,
        rows=1,
        kept=1,
        refused=0,
        not_taken=0,
        bad_lines=0,
    )
    corpus_fields = {"corpus_hash": sha("corpus"), "files": (file,), "refusals": (), "normalised": {}, **counts, **corpus}
    return Manifest(
        schema_version=SCHEMA_VERSION,
        label=label,
        state="measuring",
        policy=PolicyRecord(
            name=f"tiny/{label}",
            revision=sha(f"revision {label}"),
            architecture="tiny_moe",
            weights_sha256=sha(f"weights {label}"),
            config_sha256=sha("config"),
            tokenizer_sha256=sha("tokenizer"),
            template_sha256=None,
        ),
        shape=shape,
        corpus=CorpusRecord(**corpus_fields),  # type: ignore[arg-type]
        settings=Settings(
            segment_tokens=segment_tokens,
            max_tokens=None,
            device="cpu",
            device_name="cpu",
            dtype=dtype,
            attention_implementation="eager",
            experts_implementation="eager",
            kernels={},
            tokens_per_batch=1,
            tokens_per_part=1,
            num_threads=1,
            seed=0,
        ),
        versions={},
        tool_commit=None,
        tool_dirty=None,
        command=("test",),
        started_at="2025-01-01T00:00:00Z",
        finished_at=None,
        elapsed_s=0.0,
        planned_load_parts=1,
        planned_tokens=int(str(corpus_fields["tokens_packed"])),
        halvings=0,
        parts=(),
        content_hash=None,
    )


def write_tiny_run(
    folder: Path,
    *,
    paths: Sequence[Sequence[int]],
    segment_tokens: Sequence[int],
    loads: Loads | Sequence[Loads],
    num_experts: int,
    top_k: int,
    layers: Sequence[int] = (0,),
    units: Sequence[str] | None = None,
    label: str = "tiny",
    dtype: str = "float32",
    cut_tokens: int = 1024,
    is_finished: bool = True,
    planned_load_parts: int | None = None,
    content_hash_text: str | None = None,
) -> Run:
    """Writes and opens a run of trajectories whose `paths` are segment ids and whose segments hold `segment_tokens`.

    `loads` gives the routed rows of each expert by (segment, layer), a list of such mappings one part each; nothing is
    checked, so that a test can write what must be refused. `cut_tokens` is the segment size that the settings name;
    `content_hash_text` stands in where the true content hash can't be made.
    """
    load_parts = [loads] if isinstance(loads, Mapping) else list(loads)
    parents, starts = _tree(paths, segment_tokens)
    shape = ModelShape(
        num_layers=max(layers) + 1,
        moe_layers=tuple(layers),
        num_experts=num_experts,
        top_k=top_k,
        hidden_size=8,
        expert_ffn_size=8,
    )
    lengths = [sum(segment_tokens[segment] for segment in path) for path in paths]
    counts = {"tokens_logical": sum(lengths), "tokens_packed": sum(segment_tokens)}
    counts |= {"num_trajectories": len(paths), "num_segments": len(segment_tokens)}
    tables = {
        "segments": {
            "segment_id": range(len(segment_tokens)),
            "parent_segment_id": parents,
            "segment_hash": [sha(f"segment {segment}") for segment in range(len(segment_tokens))],
            "first_position": starts,
            "num_tokens": segment_tokens,
        },
        "trajectories": {
            "trajectory_id": range(len(paths)),
            "trajectory_hash": [sha(f"trajectory {trajectory}") for trajectory in range(len(paths))],
            "unit": units or [f"task/{trajectory}" for trajectory in range(len(paths))],
            "stratum": ["tiny.jsonl"] * len(paths),
            "source_file": ["tiny.jsonl"] * len(paths),
            "source_row": range(len(paths)),
            "num_tokens": lengths,
        },
        "paths": {
            "trajectory_id": [trajectory for trajectory, path in enumerate(paths) for _ in path],
            "position": [position for path in paths for position in range(len(path))],
            "segment_id": [segment for path in paths for segment in path],
        },
    }
    corpus_hash = _corpus_hash(tables["trajectories"], cut_tokens)
    manifest = tiny_manifest(
        shape=shape, label=label, dtype=dtype, segment_tokens=cut_tokens, corpus_hash=corpus_hash, **counts
    )
    with writing(folder):
        writer = RunWriter(folder, manifest)
        writer.update(planned_load_parts=planned_load_parts or len(load_parts))
        for name, columns in tables.items():
            schema = SCHEMAS[name]
            arrays = {key: pa.array(list(values), schema.field(key).type) for key, values in columns.items()}
            writer.commit(name, 0, pa.table(arrays))
        for index, part in enumerate(load_parts):
            writer.commit("loads", index, loads_table(part), rows_per_segment=len(layers) * num_experts)
        if is_finished:
            run = Run(folder=folder, manifest=writer.manifest)
            writer.update(
                state="finished", finished_at="2025-01-01T00:00:01Z", content_hash=content_hash_text or content_hash(run)
            )
    return open_run(folder)


def _corpus_hash(trajectories: Mapping[str, Iterable[object]], segment_tokens: int) -> str:
    """By the definition: the segment cut, then each trajectory's hash, unit, stratum, file and row."""
    columns = [trajectories[name] for name in ("trajectory_hash", "unit", "stratum", "source_file", "source_row")]
    rows = ("\0".join(map(str, row)) for row in zip(*columns, strict=True))
    return sha("".join(f"{line}\n" for line in (f"segment_tokens={segment_tokens}", *rows)))


def loads_table(loads: Loads) -> pa.Table:
    """The rows of `loads`, sorted by segment, layer and expert."""
    rows = [
        (segment, layer, expert, routed_rows)
        for (segment, layer), by_expert in sorted(loads.items())
        for expert, routed_rows in enumerate(by_expert)
    ]
    columns = zip(*rows, strict=True) if rows else ([], [], [], [])
    named = zip(SCHEMAS["loads"].names, columns, strict=True)
    return pa.table({name: pa.array(list(column), pa.int32()) for name, column in named})


def random_loads(
    rng: np.random.Generator, *, segment_tokens: Sequence[int], layers: Sequence[int], num_experts: int, top_k: int
) -> Loads:
    """Loads as a router could give them: `top_k` distinct experts a token, some experts far likelier than others."""
    loads = {}
    for layer in layers:
        liking = rng.gumbel(size=num_experts) * rng.integers(1, 4)
        for segment, num_tokens in enumerate(segment_tokens):
            scores = liking + rng.gumbel(size=(num_tokens, num_experts))
            chosen = np.argsort(-scores, axis=1)[:, :top_k]
            loads[segment, layer] = np.bincount(chosen.ravel(), minlength=num_experts).tolist()
    return loads


def random_tree(rng: np.random.Generator, *, num_segments: int, max_tokens: int = 9) -> tuple[list[list[int]], list[int]]:
    """(paths, tokens of each segment) of a random forest: every leaf ends a trajectory, and some inner segments do."""
    parents: list[int | None] = [None]
    for segment in range(1, num_segments):
        parents.append(None if rng.random() < 0.2 else int(rng.integers(0, segment)))
    inner = set(parents)
    paths = []
    for segment in range(num_segments):
        if segment not in inner or rng.random() < 0.2:
            path, step = [], segment
            while step is not None:
                path.append(step)
                step = parents[step]  # type: ignore[assignment]
            paths.append(path[::-1])
    return [paths[place] for place in rng.permutation(len(paths))], rng.integers(1, max_tokens + 1, num_segments).tolist()


def _tree(paths: Sequence[Sequence[int]], segment_tokens: Sequence[int]) -> tuple[list[int | None], list[int]]:
    parents: list[int | None] = [None] * len(segment_tokens)
    starts = [0] * len(segment_tokens)
    for path in paths:
        for parent, child in itertools.pairwise(path):
            parents[child] = parent
            starts[child] = starts[parent] + segment_tokens[parent]
    return parents, starts


def measured_run(run: Run, *, eps: Sequence[int], batch_sizes: Sequence[int]) -> MeasuredRun:
    """The run as the fit takes it, in the packed view and the order of the corpus."""
    with tabulated(run, eps=eps, batch_sizes=batch_sizes, view="packed", order="corpus") as tables:
        return observed_run(run, tables, eps=eps, view="packed", order="corpus")
