"""Long and large, once, in 1.5 GB of memory: a corpus and recorded routes of 2 GB each, 1,000 parts, ten runs in one question.

    python -m pipelines.soak_large [--gigabytes 2] [--trajectories 100000]

Writes its files into a temporary folder (some 3 GB of disk) and removes them. Every count is known from the writing: rows are
built from stretches of 64 tokens that all begin differently, so that what rows share is told by their stretches alone. Exits 1
where one is another or a process takes more memory.
"""

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pipelines.timing import Spent, spent_by

PEAK_BYTES = 1_500_000_000
STRETCH = 64  # tokens
NUM_STRETCHES = 4_096  # to draw from
NUM_ROUTES = 64  # stretches of routes; that of a stretch of tokens is always the same
FAMILY = 10  # rows that begin alike
FIRST_FREE_ID = 1_000_000  # the first tokens of families; below it lie those of stretches
NUM_LAYERS, NUM_EXPERTS, TOP_K = 40, 256, 8  # as Qwen3.6-35B-A3B
NUM_PARTS, NUM_RUNS = 1_000, 10
PARTED = """
import sys
from routing.cli import main
from routing.stages import importing
importing.ROWS_PER_PART = int(sys.argv.pop(1))
main()
"""
READ = "import sys; from pipelines.soak_large import read_counts; read_counts(sys.argv[1])"


@dataclass(frozen=True, kw_only=True, slots=True)
class Counts:
    """What a corpus holds: trajectories, tokens in full, tokens with every shared prefix once."""

    trajectories: int
    tokens_logical: int
    tokens_packed: int


class _IdsOnly:
    """Stands in for a tokenizer where rows are ids already."""

    chat_template = None

    def __len__(self) -> int:
        return 2**31 - 1


def write_corpus(path: Path, *, num_bytes: int, num_trajectories: int, with_routes: bool = False, seed: int = 0) -> Counts:
    """JSON Lines of token ids, `with_routes` their experts too, of about `num_bytes`; families of FAMILY rows share half."""
    draw = random.Random(seed)
    stretches = [_stretch(draw, first) for first in range(NUM_STRETCHES)]
    routes = [_routes(draw) for _ in range(NUM_ROUTES if with_routes else 0)]
    bytes_a_stretch = len(stretches[0]) + (len(routes[0]) if routes else 0)
    per_row = max(2, num_bytes // num_trajectories // bytes_a_stretch)
    head_routes = _token_routes(draw)
    tokens_packed = 0
    with path.open("w") as file:
        for family in range(num_trajectories // FAMILY):
            seen: set[tuple[int, ...]] = set()
            shared = draw.choices(range(NUM_STRETCHES), k=per_row // 2)
            for _ in range(FAMILY):
                chosen = (*shared, *draw.choices(range(NUM_STRETCHES), k=per_row - len(shared)))
                seen |= {chosen[:size] for size in range(1, per_row + 1)}
                ids = f"{FIRST_FREE_ID + family}, " + ", ".join(stretches[one] for one in chosen)
                file.write(f'{{"task_id": "{family}", "input_ids": [{ids}]')
                if routes:
                    file.write(f', "routed_experts": [{head_routes}, {", ".join(routes[one % NUM_ROUTES] for one in chosen)}]')
                file.write("}\n")
            tokens_packed += 1 + STRETCH * len(seen)
    rows = num_trajectories // FAMILY * FAMILY
    return Counts(trajectories=rows, tokens_logical=rows * (1 + STRETCH * per_row), tokens_packed=tokens_packed)


def _stretch(draw: random.Random, first: int) -> str:
    return ", ".join(map(str, (first, *(draw.randrange(NUM_STRETCHES, FIRST_FREE_ID) for _ in range(STRETCH - 1)))))


def _routes(draw: random.Random) -> str:
    return ", ".join(_token_routes(draw) for _ in range(STRETCH))


def _token_routes(draw: random.Random) -> str:
    return str([draw.sample(range(NUM_EXPERTS), TOP_K) for _ in range(NUM_LAYERS)])


def read_counts(path: str) -> None:
    """Prints the counts of the corpus in `path`, read and cut as a measurement would."""
    from routing.corpus.load import load_corpus
    from routing.corpus.tree import build_tree

    corpus = load_corpus([path], tokenizer=_IdsOnly())
    tree = build_tree([one.token_ids for one in corpus.trajectories], segment_tokens=1024)
    counts = Counts(
        trajectories=len(corpus.trajectories), tokens_logical=tree.tokens_logical, tokens_packed=tree.tokens_packed
    )
    print(json.dumps(asdict(counts)))


def corpus_step(folder: Path, *, num_bytes: int, num_trajectories: int) -> Iterator[str]:
    """Faults of reading a corpus of token ids."""
    path = folder / "corpus.jsonl"
    expected = write_corpus(path, num_bytes=num_bytes, num_trajectories=num_trajectories)
    spent = _spent(f"corpus, {path.stat().st_size / 1e9:.2f} GB", [sys.executable, "-c", READ, str(path)])
    path.unlink()
    yield from _faults("corpus", spent, asdict(expected))


def routes_step(folder: Path, *, num_bytes: int, num_trajectories: int) -> Iterator[str]:
    """Faults of importing recorded routes as nested lists, which is as long as they get."""
    path, model = folder / "routes.jsonl", folder / "config.json"
    expected = write_corpus(path, num_bytes=num_bytes, num_trajectories=num_trajectories, with_routes=True)
    sizes = {"num_hidden_layers": NUM_LAYERS, "num_experts": NUM_EXPERTS, "num_experts_per_tok": TOP_K}
    widths = {"hidden_size": 64, "moe_intermediate_size": 8, "num_attention_heads": 2, "num_key_value_heads": 1}
    model.write_text(json.dumps({"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], **sizes, **widths}))
    command = [*_routing(), "import", "routes", str(path), "--model", str(model), "--out", str(folder / "imported"), "--json"]
    spent = _spent(f"routes, {path.stat().st_size / 1e9:.2f} GB", command)
    path.unlink()
    yield from _faults("routes", spent, asdict(expected))
    shutil.rmtree(folder / "imported", ignore_errors=True)


def parts_step(folder: Path) -> Iterator[str]:
    """Faults of a run of 1,000 parts, which must answer as the same run of one part does, and of ten runs in one question."""
    table = folder / "counts.csv"
    draw = random.Random(0)
    lines = ["unit,layer,expert,routed_rows,num_tokens"]
    for unit in range(NUM_PARTS):
        for layer in range(2):
            first = draw.randrange(100, 900)
            lines += [f"u{unit},{layer},0,{first},1000", f"u{unit},{layer},1,{1000 - first},1000"]
    table.write_text("\n".join(lines) + "\n")
    loads_a_unit = 4
    answers = []
    for name, rows_per_part in (("many", loads_a_unit), ("one", loads_a_unit * NUM_PARTS)):
        imported = ["import", "counts", str(table), "--top-k", "1", "--label", "same", "--out", str(folder / name)]
        num_parts = loads_a_unit * NUM_PARTS // rows_per_part
        spent = _spent(f"import into {num_parts:,} parts", [sys.executable, "-c", PARTED, str(rows_per_part), *imported])
        yield from _faults(f"{name} parts", spent, None)
        answers.append(_asked(f"imbalance, {name} parts", [folder / name]))
    if _without_run(answers[0]) != _without_run(answers[1]):
        yield "1,000 parts answer otherwise than one"
    copies = [shutil.copytree(folder / "one", folder / f"run{place}") for place in range(NUM_RUNS)]
    together = _without_run(_asked(f"imbalance of {NUM_RUNS} runs", copies))
    if together != _without_run(answers[1]) * NUM_RUNS:
        yield f"{NUM_RUNS} runs answer otherwise together than each alone"


def _asked(what: str, runs: Sequence[Path]) -> list[dict[str, object]]:
    command = [*_routing(), "imbalance", *map(str, runs), "--ep", "2", "--batch-tokens", "100k,10k", "--json"]
    spent = _spent(what, command)
    rows: list[dict[str, object]] = json.loads(spent.stdout)["rows"] if spent.exit_code == 0 else []
    return rows


def _without_run(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    return [{name: value for name, value in row.items() if name != "run"} for row in rows]


def _routing() -> list[str]:
    return [sys.executable, "-m", "routing"]


def _spent(what: str, command: list[str]) -> Spent:
    began = time.monotonic()
    spent = spent_by(command)
    times = f"{spent.processor_s:.0f} s of processor time, {time.monotonic() - began:.0f} s"
    print(f"{what}: exit {spent.exit_code}, peak {spent.peak_bytes / 1e6:,.0f} MB, {times}", flush=True)
    return spent


def _faults(what: str, spent: Spent, expected: dict[str, int] | None) -> Iterator[str]:
    if spent.exit_code:
        yield f"{what}: exit {spent.exit_code}"
        return
    if spent.peak_bytes > PEAK_BYTES:
        yield f"{what}: {spent.peak_bytes:,} bytes at the peak, the limit is {PEAK_BYTES:,}"
    if expected is not None:
        found = {name: json.loads(spent.stdout)[name] for name in expected}
        print(f"  {', '.join(f'{name} {value:,}' for name, value in found.items())}", flush=True)
        if found != expected:
            yield f"{what}: {found}, written were {expected}"


def main() -> None:
    """Prints a line a step; exits 1 with the faults."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=2.0, help="bytes of each large file, in GB (1e9)")
    parser.add_argument("--trajectories", type=int, default=100_000, help="of the corpus; the routes have a hundredth of it")
    options = parser.parse_args()
    num_bytes = int(options.gigabytes * 1e9)
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        if shutil.disk_usage(folder).free < 1.5 * num_bytes:
            raise SystemExit(f"{folder}: {shutil.disk_usage(folder).free:,} bytes free, {1.5 * num_bytes:,.0f} are needed")
        faults = [
            *parts_step(folder),
            *corpus_step(folder, num_bytes=num_bytes, num_trajectories=options.trajectories),
            *routes_step(folder, num_bytes=num_bytes, num_trajectories=max(FAMILY, options.trajectories // 100)),
        ]
    if faults:
        raise SystemExit("\n".join(faults))


if __name__ == "__main__":
    main()
