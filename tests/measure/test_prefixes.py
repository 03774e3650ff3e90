"""Prefixes computed once give the loads of whole trajectories; a cache that can't be trusted is found out before the run."""

import numpy as np
import pytest
import torch

from routing.corpus.tree import build_tree
from routing.measure import anchors as anchors_module
from routing.measure import forward
from routing.measure.anchors import find_anchors
from routing.measure.capture import ExpertCounter
from routing.measure.forward import Budget, measure_part
from routing.measure.plan import plan_parts
from routing.measure.policy import LoadedPolicy
from routing.measure.prefixes import HeldCaches, cache_keyword
from tests.measure.test_families import build

NESTED = ("qwen3_moe", "qwen3_5_moe_text", "gpt_oss", "deepseek_v3")  # attention, GDN, sliding windows, latent attention
WINDOW = 16


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """Short prefixes are worth a pass, and passes go on in several chunks."""
    monkeypatch.setattr(anchors_module, "MIN_SAVED_TOKENS", 20)
    monkeypatch.setattr(forward, "CHUNK_TOKENS", 48)


@pytest.fixture(scope="module")
def sequences():
    """A stem of 70 tokens; three branches off it, two of which part again at 120; one parts by a token; one ends inside; one alone."""
    draw = np.random.default_rng(11)
    stem, branch = draw.integers(3, 96, 70), draw.integers(3, 96, 50)

    def own(num_tokens):
        return draw.integers(3, 96, num_tokens)

    deep = np.concatenate([stem, branch, own(65)])
    made = [
        np.concatenate([stem, own(30)]),
        deep,
        np.concatenate([stem, branch, own(20)]),
        np.concatenate([stem, branch[:1], own(110)]),
        deep[:100],
        own(90),
        np.concatenate([stem, branch, own(7)]),
    ]
    return [one.astype(np.int32) for one in made]


@pytest.fixture(scope="module", params=NESTED)
def family_policy(request):
    changes = {"sliding_window": WINDOW} if request.param == "gpt_oss" else {}
    return as_policy(build(request.param, **changes))


def as_policy(model) -> LoadedPolicy:
    return LoadedPolicy(
        model=model.decoder,
        experts=model.experts,
        top_k=model.geometry.shape.top_k,
        device=torch.device("cpu"),
        attention_implementation="sdpa",
        experts_implementation="eager",
        cache_keyword=cache_keyword(model.decoder),
    )


def _loads(policy, sequences, *, once, tokens_per_part=10**9, tokens_per_batch=4096, budget_bytes=10**9, order=None, held=None):
    """(loads of all parts, computed tokens, the most bytes held)."""
    tree = build_tree(sequences, segment_tokens=32)
    parts = plan_parts(tree, tokens_per_part=tokens_per_part)
    held = HeldCaches(anchors=find_anchors(tree, parts), budget_bytes=budget_bytes) if once else None
    heard, loads = [], {}
    with ExpertCounter(policy.experts, top_k=policy.top_k) as counter:
        for place in order or range(len(parts)):
            budget = Budget(tokens_per_batch=tokens_per_batch)
            loads[place] = measure_part(policy, counter, parts[place], tree, sequences, budget, held=held, on_tokens=heard.append)
    return torch.cat([loads[place] for place in range(len(parts))]), sum(heard)


def test_prefixes_computed_once_give_the_loads_of_whole_trajectories(family_policy, sequences):
    whole, whole_tokens = _loads(family_policy, sequences, once=False)
    once, once_tokens = _loads(family_policy, sequences, once=True)
    assert torch.equal(once, whole)
    # 100 + 185 + 140 + 181 + 90 + 127, the one that ends inside another left out; once, the stem is computed a single time
    # and what it branches into too, but for the one token that the fourth repeats: 70 + 50 + 30 + 65 + 20 + 7 + 111 + 90.
    assert (whole_tokens, once_tokens) == (823, 443)


@pytest.mark.parametrize("tokens_per_part", [1, 200])
def test_parts_and_their_order_change_no_load(family_policy, sequences, tokens_per_part):
    whole, _ = _loads(family_policy, sequences, once=False)
    once, _ = _loads(family_policy, sequences, once=True, tokens_per_part=tokens_per_part, tokens_per_batch=1)
    assert torch.equal(once, whole)
    num_parts = len(plan_parts(build_tree(sequences, segment_tokens=32), tokens_per_part=tokens_per_part))
    backwards, _ = _loads(
        family_policy, sequences, once=True, tokens_per_part=tokens_per_part, order=list(range(num_parts))[::-1]
    )
    assert torch.equal(backwards, whole)
