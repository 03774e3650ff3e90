"""A router without any preference, computed and drawn."""

import numpy as np
import pytest

from routing.audit.uniform import uniform_worst


@pytest.mark.parametrize(("ep", "num_batches", "num_layers"), [(2, 1, 1), (2, 10, 4), (4, 10, 4), (8, 10, 4)])
def test_the_median_is_that_of_drawn_routers(ep, num_batches, num_layers):
    """Tokens one by one are multivariate hypergeometric: top-4 of 16 experts, 200 tokens a batch, 150 repetitions."""
    num_experts, top_k, batch_tokens = 16, 4, 200
    rng = np.random.default_rng(3)
    rows = rng.multivariate_hypergeometric(
        [num_experts // ep] * ep, top_k, size=(150, num_batches * num_layers, batch_tokens)
    ).sum(axis=2)
    worsts = rows.max(axis=(1, 2)) * ep / (top_k * batch_tokens)
    found = uniform_worst(
        ep=ep,
        num_experts=num_experts,
        top_k=top_k,
        num_layers=num_layers,
        num_batches=num_batches,
        batch_tokens=batch_tokens,
    )
    assert found - 1 == pytest.approx(float(np.median(worsts)) - 1, rel=0.12)


def test_it_falls_with_the_root_of_the_batch_size():
    sizes = {"ep": 8, "num_experts": 256, "top_k": 8, "num_layers": 40, "num_batches": 17}
    small, large = (uniform_worst(batch_tokens=tokens, **sizes) - 1 for tokens in (2_000, 200_000))
    assert small == pytest.approx(10 * large)


def test_every_expert_for_every_token_is_even():
    assert uniform_worst(ep=2, num_experts=4, top_k=4, num_layers=1, num_batches=1, batch_tokens=10) == 1.0
