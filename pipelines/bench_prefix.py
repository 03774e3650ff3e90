"""`make bench`, the prefixes' part: prefixes computed once against whole trajectories, as a share of what can be saved.

The limit is logical / packed tokens. Processor time of the same corpus in interleaved pairs, order alternating, one thread; the
median of the pairs' ratios with its 95% interval. Retail: a cut of the retail files, where they are there. Logs: simulated
requests in which half of the tokens are shared.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from pipelines.bench import POLICY, median_with_interval
from routing.corpus.load import load_corpus
from routing.corpus.tree import build_tree
from routing.measure.anchors import find_anchors
from routing.measure.attention import go_on_without_mask
from routing.measure.budget import CPU_TOKENS_PER_BATCH, Budget
from routing.measure.capture import ExpertCounter
from routing.measure.forward import measure_part
from routing.measure.plan import TOKENS_PER_PART, TokenIds, plan_parts
from routing.measure.policy import LoadedPolicy, load_policy, load_tokenizer, resolve_policy
from routing.measure.prefixes import HELD_BYTES, HeldCaches

RETAIL = "../shared/trajectories"
RETAIL_TOKENS = 100_000
TARGET_RETAIL, TARGET_LOGS = 0.9, 0.85
# Requests of one length; half of their tokens, but for one reading of each prompt, are shared.
NUM_PROMPTS, REQUESTS_A_PROMPT, PROMPT_TOKENS, OWN_TOKENS = 3, 16, 1_536, 1_440
SEGMENT_TOKENS = 1_024


def retail() -> list[TokenIds]:
    """Token ids of the first trajectories of each retail file, none where the files are not there."""
    paths = sorted(Path(RETAIL).glob("*retail*.json"))
    if not paths:
        return []
    tokenizer = load_tokenizer(resolve_policy(POLICY))
    return [one.token_ids for one in load_corpus(paths, tokenizer=tokenizer, max_tokens=RETAIL_TOKENS).trajectories]


def request_logs() -> list[TokenIds]:
    """Requests behind shared prompts, ids drawn at random (simulated): 48 x 2,976 tokens logical, half as many packed."""
    draw = np.random.default_rng(20261130)
    prompts = [draw.integers(3, 4_000, PROMPT_TOKENS) for _ in range(NUM_PROMPTS)]
    rows = [prompt for prompt in prompts for _ in range(REQUESTS_A_PROMPT)]
    return [np.concatenate([prompt, draw.integers(3, 4_000, OWN_TOKENS)]).astype(np.int32) for prompt in rows]


def bench(policy: LoadedPolicy, name: str, sequences: Sequence[TokenIds], *, num_pairs: int, target: float) -> None:
    """Prints one corpus's line."""
    tree = build_tree(sequences, segment_tokens=SEGMENT_TOKENS)
    parts = plan_parts(tree, tokens_per_part=TOKENS_PER_PART)
    anchors = find_anchors(tree, parts)

    def seconds(*, once: bool) -> float:
        held = HeldCaches(anchors=anchors, budget_bytes=HELD_BYTES["cpu"]) if once else None
        with ExpertCounter(policy.experts, top_k=policy.top_k) as counter:
            began = time.process_time()
            for part in parts:
                budget = Budget(tokens_per_batch=CPU_TOKENS_PER_BATCH)
                measure_part(policy, counter, part, tree, sequences, budget, held=held)
            return time.process_time() - began

    limit = tree.tokens_logical / tree.tokens_packed
    ratios = []
    for place in range(num_pairs):
        taken = {once: seconds(once=once) for once in ((True, False) if place % 2 else (False, True))}
        ratios.append(taken[False] / taken[True])
    middle, low, high = (ratio / limit for ratio in median_with_interval(ratios))
    print(
        f"{name}, {tree.tokens_logical:,} tokens: whole / once {middle * limit:.3f} of at most {limit:.3f}; share {middle:.3f}, "
        f"95% interval {low:.3f} to {high:.3f}, {num_pairs} pairs (target {target})",
        flush=True,
    )


def main() -> None:
    """Prints a line a corpus."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=8)
    options = parser.parse_args()
    torch.set_num_threads(1)
    policy = load_policy(resolve_policy(POLICY), device=torch.device("cpu"), dtype=torch.float32)
    go_on_without_mask(policy.model, on=True)
    if sequences := retail():
        bench(policy, "retail", sequences, num_pairs=options.pairs, target=TARGET_RETAIL)
    bench(policy, "request logs (simulated)", request_logs(), num_pairs=options.pairs, target=TARGET_LOGS)


if __name__ == "__main__":
    main()
