"""`make bench`: what it costs to learn how a model routes, by five ways within one run, and whether memory grows with tokens.

Ways: the bare base-model forward; `routing` (hooks, checks, read-back); `output_router_logits=True`; a recorder of every token's
ids; moewatch where it is installed. On the demo policy and on a random Qwen3-MoE of 52.8M parameters.
Time: the same batch in turns, one thread, processor time; the median of each round's ratio to the bare forward with its 95%
interval from order statistics. Memory: the CPU allocator's own peak above that of the bare forward, at two numbers of tokens.
Figure: the imbalance that follows from the rows each way counted. Last, the peak resident size of `routing measure` in a process
of its own over 12 and over 98 rows of 4,096 tokens; of one length, since the peak is that of the largest batch.
"""

import argparse
import importlib.util
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import transformers

from pipelines.recorders import forward_only, record, recorders, shown
from pipelines.timing import interleaved, median_with_interval, ratios, spent_by
from pipelines.trace.allocator import cpu_peak
from routing.corpus.load import load_corpus
from routing.measure.policy import LoadedPolicy, as_policy, load_policy, load_tokenizer, resolve_policy

POLICY = "data/demo/policy"
CORPUS = "data/demo/trajectories/shop.jsonl"
ROW_TOKENS = 4_096
EP = 8
BARE = "bare forward"
MEMORY_BATCH_TOKENS = 1_024
MEMORY_BATCHES = (2, 8)
LIMIT = 1.03
RANDOM = {
    **{"hidden_size": 256, "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 32},
    **{"num_experts": 64, "num_experts_per_tok": 8, "moe_intermediate_size": 128, "vocab_size": 4096},
    **{"decoder_sparse_step": 1, "mlp_only_layers": []},
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A policy, the tokens of its timed batch, and the ids that all batches are cut from."""

    name: str
    policy: LoadedPolicy
    batch_tokens: int
    ids: Sequence[int]

    def batches(self, num: int, num_tokens: int) -> list[torch.Tensor]:
        """`num` batches of one row each, ids [1, T], from the start."""
        return list(torch.tensor(self.ids[: num * num_tokens]).view(num, 1, num_tokens))


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """What one way costs and shows: ratio to the bare forward with its interval, peak bytes above it at both numbers of tokens.

    `shown` are worst layer, mean over layers and layers pooled; empty for the bare forward, as `extra_bytes` are.
    """

    way: str
    over_bare: tuple[float, float, float]
    extra_bytes: tuple[int, ...]
    shown: tuple[float, ...]

    @property
    def bytes_a_token(self) -> float:
        """How the peak grows with tokens."""
        few, many = (num * MEMORY_BATCH_TOKENS for num in MEMORY_BATCHES)
        return (self.extra_bytes[1] - self.extra_bytes[0]) / (many - few)


def compare(case: Case, *, rounds: int) -> list[Row]:
    """A row a way, the bare forward first; prints the table."""
    few, many = MEMORY_BATCHES
    ways = recorders(case.policy, part_tokens=few * MEMORY_BATCH_TOKENS)
    batch = case.batches(1, case.batch_tokens)
    calls = {BARE: lambda: forward_only(case.policy, batch)}
    calls |= {name: lambda make=make: record(make(), batch) for name, make in ways.items()}
    seconds = interleaved(calls, rounds=rounds)
    rows = [Row(way=BARE, over_bare=(1.0, 1.0, 1.0), extra_bytes=(), shown=())]
    runs = [case.batches(num, MEMORY_BATCH_TOKENS) for num in (few, many)]
    bare = [cpu_peak(partial(forward_only, case.policy, run)) for run in runs]
    for name, make in ways.items():
        extra = (cpu_peak(partial(record, make(), run)) - least for run, least in zip(runs, bare, strict=True))
        over = median_with_interval(ratios(seconds, name, over=BARE))
        rows.append(Row(way=name, over_bare=over, extra_bytes=tuple(extra), shown=shown(record(make(), batch), ep=EP)))
    bare_s = "{:.3f} s of processor time, {:.3f} to {:.3f}".format(*median_with_interval(seconds[BARE]))
    print(f"\n{case.name}, batches of {case.batch_tokens:,} tokens: bare forward {bare_s}")
    print(f"\n{as_table(rows)}\n", flush=True)
    return rows


def overhead(case: Case, *, rounds: int) -> tuple[float, float, float]:
    """(median, low, high) of ours over the bare forward with no other way between them, which a limit of 3% needs."""
    batch = case.batches(1, case.batch_tokens)
    ours = recorders(case.policy, part_tokens=case.batch_tokens)["routing"]
    calls = {BARE: partial(forward_only, case.policy, batch), "routing": lambda: record(ours(), batch)}
    return median_with_interval(ratios(interleaved(calls, rounds=rounds), "routing", over=BARE))


def as_table(rows: Sequence[Row]) -> str:
    """Markdown; KB = 1e3 bytes."""
    few, many = (num * MEMORY_BATCH_TOKENS for num in MEMORY_BATCHES)
    lines = [
        f"| way | time over bare | 95% interval | extra peak at {few:,} tokens, KB | at {many:,} | bytes more a token "
        f"| worst at EP {EP} | mean over layers | pooled |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        middle, low, high = row.over_bare
        cells = [row.way, f"{middle:.3f}", f"{low:.3f} to {high:.3f}", *(f"{one / 1e3:,.0f}" for one in row.extra_bytes)]
        cells += [f"{row.bytes_a_token:,.1f}", *(f"{one:.4f}" for one in row.shown)] if row.extra_bytes else [""] * 6
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def random_policy(**changes: int) -> LoadedPolicy:
    """A random Qwen3-MoE base model in float32 on the CPU, the shape of RANDOM."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model("qwen3_moe", **{**RANDOM, **changes})
    model = transformers.AutoModel.from_config(config, dtype=torch.float32).eval()
    return as_policy(model, top_k=config.num_experts_per_tok, device=torch.device("cpu"))


def cases() -> list[Case]:
    """The demo policy and the random one, over the shop's ids."""
    ids = shop_ids()
    demo = load_policy(resolve_policy(POLICY), device=torch.device("cpu"), dtype=torch.float32)
    made = random_policy()
    millions = sum(one.numel() for one in made.model.parameters()) / 1e6
    return [
        Case(name="demo policy", policy=demo, batch_tokens=ROW_TOKENS, ids=ids),
        Case(name=f"random Qwen3-MoE of {millions:.1f}M parameters", policy=made, batch_tokens=MEMORY_BATCH_TOKENS, ids=ids),
    ]


def shop_ids() -> list[int]:
    """The shop's trajectories, one after the other, by the demo policy's tokenizer."""
    corpus = load_corpus([Path(CORPUS)], tokenizer=load_tokenizer(resolve_policy(POLICY)))
    return [token for one in corpus.trajectories for token in one.token_ids.tolist()]


def peak_bytes(num_rows: int, ids: Sequence[int]) -> tuple[int, int]:
    """(peak resident bytes, tokens measured) of one `routing measure` over rows of one length, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "rows.jsonl"
        starts = [place * (len(ids) - ROW_TOKENS) // num_rows for place in range(num_rows)]
        rows.write_text("".join(json.dumps({"input_ids": ids[start : start + ROW_TOKENS]}) + "\n" for start in starts))
        measuring = [sys.executable, "-m", "routing", "measure", POLICY, str(rows), "--out", f"{folder}/run", "--json"]
        measured = spent_by(measuring)
        asked = spent_by([sys.executable, "-m", "routing", "imbalance", f"{folder}/run"])
    tokens: int = json.loads(measured.stdout)["tokens_logical"]
    print(f"routing imbalance over {tokens:,} tokens: {asked.processor_s:.2f} s of processor time (limit 2)")
    return measured.peak_bytes, tokens


def main() -> None:
    """Prints the overhead that has a limit, both tables, and the memory."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=60, help="of ours and the bare forward, for the figure that has a limit")
    parser.add_argument("--rounds", type=int, default=24, help="of all ways")
    parser.add_argument("--skip-memory", action="store_true", help="without the two processes of `routing measure`")
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    if importlib.util.find_spec("moewatch") is None:
        print("moewatch is not installed here, so it is left out (pip install --no-deps moewatch)")
    demo, made = cases()
    middle, low, high = overhead(demo, rounds=options.pairs)
    interval = f"95% interval {low:.4f} to {high:.4f}, {options.pairs} pairs (limit {LIMIT})"
    print(f"demo policy, counting / bare forward: median {middle:.4f}, {interval}", flush=True)
    for case in (demo, made):
        compare(case, rounds=options.rounds)
    if not options.skip_memory:
        small, large = (peak_bytes(num_rows, shop_ids()) for num_rows in (12, 98))
        for num_bytes, tokens in (small, large):
            print(f"routing measure, {tokens:,} tokens: peak {num_bytes / 1e9:.3f} GB resident")
        print(f"peak at {large[1]:,} over peak at {small[1]:,} tokens: {large[0] / small[0]:.3f}")


if __name__ == "__main__":
    main()
