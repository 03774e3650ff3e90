"""`make bench`: what counting costs, as ratios within one run, and whether memory grows with the tokens measured.

Time: the bare base-model forward against the same with counting (hooks, checks and the read-back), on the same batches, in
interleaved pairs, order alternating; the median of the pairs' ratios with its 95% interval from order statistics.
Memory: the peak resident size of `routing measure` in a process of its own at 50k and at 400k tokens.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from scipy.stats import binom

from routing.corpus.load import load_corpus
from routing.corpus.tree import build_tree
from routing.measure.capture import ExpertCounter
from routing.measure.forward import batch_tensors
from routing.measure.plan import by_length, next_batch, plan_parts
from routing.measure.policy import load_policy, load_tokenizer, resolve_policy

POLICY = "data/demo/policy"
CORPUS = "data/demo/trajectories/shop.jsonl"
REAL_CORPUS = Path("../shared/trajectories")
TOKENS_PER_BATCH = 8_192


def median_with_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """(median, low, high): the 95% interval between order statistics, which assumes no distribution."""
    ordered = sorted(values)
    num = len(ordered)
    rank = int(binom.ppf(0.025, num, 0.5))
    middle = (ordered[(num - 1) // 2] + ordered[num // 2]) / 2
    return middle, ordered[max(rank - 1, 0)], ordered[min(num - rank, num - 1)]


def counting_ratios(num_pairs: int) -> list[float]:
    """Seconds with counting over seconds without, one a pair."""
    files = resolve_policy(POLICY)
    corpus = load_corpus([Path(CORPUS)], tokenizer=load_tokenizer(files))
    sequences = [one.token_ids for one in corpus.trajectories]
    tree = build_tree(sequences, segment_tokens=1024)
    policy = load_policy(files, device=torch.device("cpu"), dtype=torch.float32)
    (part,) = plan_parts(tree, tokens_per_part=tree.tokens_logical)
    batch = next_batch(by_length(part.passes), tokens_per_batch=TOKENS_PER_BATCH)
    segment_ids, ids_BT, slot_BT = batch_tensors(batch, tree, sequences)

    def bare() -> None:
        with torch.inference_mode():
            policy.model(input_ids=ids_BT, use_cache=False)

    def counted() -> None:
        with ExpertCounter(policy.experts, top_k=policy.top_k) as counter, torch.inference_mode():
            counter.begin(slot_BT.flatten(), segment_ids=segment_ids)
            policy.model(input_ids=ids_BT, use_cache=False)
            counter.collect()

    for warm_up in (bare, counted, bare, counted):
        warm_up()
    print(
        f"{ids_BT.shape[0]} x {ids_BT.shape[1]} tokens, {len(segment_ids)} segments, {torch.get_num_threads()} thread", flush=True
    )
    return [_pair(bare, counted, place) for place in range(num_pairs)]


def _pair(bare: Callable[[], None], counted: Callable[[], None], place: int) -> float:
    seconds = {}
    for run in (bare, counted) if place % 2 else (counted, bare):
        began = time.perf_counter()
        run()
        seconds[run] = time.perf_counter() - began
    return seconds[counted] / seconds[bare]


def peak_bytes(tokens: str) -> tuple[int, int]:
    """(peak resident bytes, tokens measured) of one `routing measure` in a process of its own."""
    corpus = [str(path) for path in sorted(REAL_CORPUS.glob("*retail*.json"))]
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "routing",
            "measure",
            POLICY,
            *corpus,
            "--out",
            f"{folder}/run",
            "--max-tokens",
            tokens,
            "--json",
        ]
        done = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert done.stdout is not None
        answer = json.loads(done.stdout.read())
        _, _, usage = os.wait4(done.pid, 0)
    return usage.ru_maxrss * 1024, answer["tokens_logical"]


def main() -> None:
    """Prints both measurements; fails where counting costs above 3% beyond doubt, which no test does."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--skip-memory", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    middle, low, high = median_with_interval(counting_ratios(options.pairs))
    print(
        f"counting / bare forward: median {middle:.4f}, 95% interval {low:.4f} to {high:.4f}, {options.pairs} pairs (limit 1.03)"
    )
    print(f"this process peaked at {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.2f} GB")
    if not REAL_CORPUS.is_dir():
        print("memory: not measured, the real trajectories are not beside this checkout")
    elif not options.skip_memory:
        small, large = peak_bytes("50k"), peak_bytes("400k")
        for num_bytes, tokens in (small, large):
            print(f"routing measure, {tokens:,} tokens: peak {num_bytes / 1e9:.3f} GB resident")
        print(f"peak at {large[1]:,} over peak at {small[1]:,} tokens: {large[0] / small[0]:.3f}")


if __name__ == "__main__":
    main()
