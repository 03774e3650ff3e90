"""`make bench`: what counting costs, as ratios within one run, and whether memory grows with the tokens measured.

Time: the bare base-model forward against the same with counting (hooks, checks and the read-back), on the same batch, in
interleaved pairs, order alternating, one thread, processor time; the median of the pairs' ratios with its 95% interval from
order statistics. Memory: the peak resident size of `routing measure` in a process of its own over 12 and over 98 rows of 4,096
tokens. All rows are of one length, since the peak is that of the largest batch, and a larger corpus would have a longer one.
"""

import argparse
import json
import os
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
TOKENS_PER_BATCH = 4_096
ROW_TOKENS = 4_096


def median_with_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """(median, low, high): the 95% interval between order statistics, which assumes no distribution."""
    ordered = sorted(values)
    num = len(ordered)
    rank = int(binom.ppf(0.025, num, 0.5))
    middle = (ordered[(num - 1) // 2] + ordered[num // 2]) / 2
    return middle, ordered[max(rank - 1, 0)], ordered[min(num - rank, num - 1)]


def counting_ratios(num_pairs: int) -> list[float]:
    """Processor seconds with counting over those without, one a pair; what else runs on the machine does not enter."""
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
        began = time.process_time()
        run()
        seconds[run] = time.process_time() - began
    return seconds[counted] / seconds[bare]


def peak_bytes(num_rows: int) -> tuple[int, int]:
    """(peak resident bytes, tokens measured) of one `routing measure` over rows of one length, in a process of its own."""
    corpus = load_corpus([Path(CORPUS)], tokenizer=load_tokenizer(resolve_policy(POLICY)))
    stream = [token for one in corpus.trajectories for token in one.token_ids.tolist()]
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "rows.jsonl"
        starts = [place * (len(stream) - ROW_TOKENS) // num_rows for place in range(num_rows)]
        rows.write_text("".join(json.dumps({"input_ids": stream[start : start + ROW_TOKENS]}) + "\n" for start in starts))
        command = [sys.executable, "-m", "routing", "measure", POLICY, str(rows), "--out", f"{folder}/run", "--json"]
        done = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert done.stdout is not None
        answer = json.loads(done.stdout.read())
        _, _, usage = os.wait4(done.pid, 0)
        asked = subprocess.Popen(
            [sys.executable, "-m", "routing", "imbalance", f"{folder}/run"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        _, _, asking = os.wait4(asked.pid, 0)
    asking_s = asking.ru_utime + asking.ru_stime
    print(f"routing imbalance over {answer['tokens_logical']:,} tokens: {asking_s:.2f} s of processor time (limit 2)")
    return usage.ru_maxrss * 1024, answer["tokens_logical"]


def main() -> None:
    """Prints both measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--skip-memory", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    middle, low, high = median_with_interval(counting_ratios(options.pairs))
    print(
        f"counting / bare forward: median {middle:.4f}, 95% interval {low:.4f} to {high:.4f}, {options.pairs} pairs (limit 1.03)"
    )
    if not options.skip_memory:
        small, large = peak_bytes(12), peak_bytes(98)
        for num_bytes, tokens in (small, large):
            print(f"routing measure, {tokens:,} tokens: peak {num_bytes / 1e9:.3f} GB resident")
        print(f"peak at {large[1]:,} over peak at {small[1]:,} tokens: {large[0] / small[0]:.3f}")


if __name__ == "__main__":
    main()
