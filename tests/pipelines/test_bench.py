"""`make bench` compares ways to learn a routing: the same rows by each, memory worked by hand, and turns that favour none."""

import importlib.util
import sys

import pytest
import torch
from scipy.stats import binom

from pipelines import bench
from pipelines.bench import Case, as_table, compare, random_policy
from pipelines.recorders import record, recorders, shown
from pipelines.timing import interleaved, median_with_interval, ratios, spent_by

LAYERS, EXPERTS, TOP_K = 2, 8, 3
TINY = {
    **{"hidden_size": 32, "num_hidden_layers": LAYERS, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16},
    **{"num_experts": EXPERTS, "num_experts_per_tok": TOP_K, "moe_intermediate_size": 16, "vocab_size": 97},
}
EXACT = ("routing", "output_router_logits", "ids of every token")


@pytest.fixture(scope="module")
def policy():
    return random_policy(**TINY)


@pytest.fixture(scope="module")
def batches():
    return list(torch.randint(0, 97, (3, 1, 50), generator=torch.Generator().manual_seed(1)))


def test_every_way_is_timed_once_a_round_after_each_of_the_others():
    now, calls = [0.0], []

    def way(name, seconds):
        def call():
            calls.append(name)
            now[0] += seconds

        return call

    costs = {"a": 1.0, "b": 2.0, "c": 4.0}
    seconds = interleaved({name: way(name, cost) for name, cost in costs.items()}, rounds=30, clock=lambda: now[0])
    rounds = ["".join(calls[start : start + 3]) for start in range(0, 93, 3)]
    assert rounds[0] == "abc"  # the calls that aren't counted
    assert set(rounds[1:]) == {"abc", "acb", "bac", "bca", "cab", "cba"}
    assert seconds == {"a": [1.0] * 30, "b": [2.0] * 30, "c": [4.0] * 30}
    assert ratios(seconds, "c", over="b") == [2.0] * 30


@pytest.mark.parametrize("num", [1, 2, 5, 6, 24, 40, 60, 61])
def test_the_interval_lies_between_order_statistics_of_the_binomial(num):
    rank = int(binom.ppf(0.025, num, 0.5))
    low, high = (max(rank, 1), min(num - rank + 1, num))
    assert median_with_interval(range(num, 0, -1)) == ((num + 1) / 2, low, high)


def test_a_process_is_charged_for_its_own_memory_and_not_for_ours():
    assert len(b"x" * 200_000_000)  # this process has held 200 MB by now
    small, large = (spent_by([sys.executable, "-c", f"print(len(b'x' * {size}))"]) for size in (1, 100_000_000))
    assert (small.exit_code, small.stdout) == (0, "1\n")
    assert small.peak_bytes < 50e6 < 100e6 < large.peak_bytes < 150e6
    assert spent_by([sys.executable, "-c", "raise SystemExit(3)"]).exit_code == 3


def test_pooling_hides_layers_that_lean_to_different_ranks():
    # ranks of layer 0: 8 and 2 rows, of layer 1: 2 and 8, of both: 10 and 10
    assert shown(torch.tensor([[6, 2, 1, 1], [1, 1, 4, 4]]), ep=2) == (pytest.approx(1.6), pytest.approx(1.6), 1.0)


def test_every_exact_way_counts_the_same_rows(policy, batches):
    ways = recorders(policy, part_tokens=100)
    counts = {name: record(ways[name](), batches) for name in EXACT}
    assert all(torch.equal(counts["routing"], counts[name]) for name in EXACT)
    assert counts["routing"].sum(-1).tolist() == [150 * TOP_K] * LAYERS


def test_a_recorder_leaves_no_hook_behind(batches):
    policy = random_policy(**TINY)
    ways = recorders(policy, part_tokens=100)
    for name in ways.keys() - {"output_router_logits"}:  # transformers keeps the hooks that it sets for it
        record(ways[name](), batches)
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in policy.model.modules())


def test_moewatch_is_compared_only_where_it_is_installed(policy, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert tuple(recorders(policy, part_tokens=100)) == EXACT


def test_moewatch_counts_first_choices_alone(policy, batches):
    pytest.importorskip("moewatch")
    counts = record(recorders(policy, part_tokens=100)["moewatch"](), batches)
    assert counts.sum(-1).tolist() == [150] * LAYERS


def test_our_memory_does_not_grow_with_tokens_and_theirs_does_by_what_they_keep(policy, monkeypatch, capsys):
    monkeypatch.setattr(bench, "MEMORY_BATCH_TOKENS", 64)
    case = Case(name="tiny", policy=policy, batch_tokens=64, ids=[(7 * place) % 97 for place in range(8 * 64)])
    rows = {row.way: row for row in compare(case, rounds=2)}
    growth = {name: rows[name].bytes_a_token for name in EXACT}
    assert growth == {
        "routing": 0,
        "output_router_logits": LAYERS * EXPERTS * 4,  # float32
        "ids of every token": LAYERS * TOP_K * 4,  # int32
    }
    assert rows["routing"].shown == rows["ids of every token"].shown
    assert as_table(list(rows.values())) in capsys.readouterr().out
