"""`routing allowance` and `routing explain`: an allowance in each stack's own units, and what binds it."""

import itertools
import json
from decimal import Decimal
from fractions import Fraction

import pytest

from routing.core.capacity import STACKS
from tests.conftest import REPOSITORY

PUBLISHED = str(REPOSITORY / "allowances.yaml")


def _rows_of_a_rank(stack, factor, *, ep, num_experts, top_k):
    """Rows a token of one rank that the stack's buffer holds, by its own formula; calibrated on an even dispatch."""
    even = Fraction(top_k)
    if stack == "torchtitan":
        return Fraction(factor) * ep * min(num_experts // ep, top_k)
    return Fraction(factor) * even


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize(("ep", "num_experts", "top_k"), [(2, 256, 8), (8, 256, 8), (64, 256, 8), (8, 8, 2), (4, 128, 6)])
def test_every_factor_holds_the_busiest_ranks_rows_and_hardly_more(stack, ep, num_experts, top_k):
    for hundredths in range(100, int(100 * min(ep, num_experts / top_k)), 7):
        allowance = Decimal(hundredths) / 100
        factor = STACKS[stack](allowance, ep=ep, num_experts=num_experts, top_k=top_k).factor
        held = _rows_of_a_rank(stack, factor, ep=ep, num_experts=num_experts, top_k=top_k)
        needed = Fraction(allowance) * top_k
        assert needed <= held < needed + Fraction(ep * top_k, 10_000)
        assert stack != "torchtitan" or factor <= 1


def test_the_proven_ceiling_is_torchtitans_worst_case():
    # 64 ranks of 4 experts, top-8: a token reaches a rank 4 times at most, E/k = 32.
    assert STACKS["torchtitan"](Decimal(32), ep=64, num_experts=256, top_k=8).factor == 1
    assert STACKS["torchtitan"](Decimal(8), ep=8, num_experts=256, top_k=8).factor == 1


def test_an_allowance_is_looked_up_as_the_estimator_does(invoke):
    code, out, err = invoke("allowance", "--ep", 8, "--batch-tokens", "20k", "--layer", 12, "--json")
    body = json.loads(out)
    assert (code, body["allowance"], body["layer"]) == (0, 2.0, 12)
    assert body["entry"] == {"batch_tokens": 200_000, "layer": "all", "status": "published", "binds": "floor"}
    assert err.startswith("warning: below_fitted_batch: 20000 tokens, the smallest fitted batch has 200000")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--ep", 16, "--batch-tokens", "200k"), "no allowance for ep=16 (has 2, 4, 8)"),
        (("--ep", 3, "--batch-tokens", "200k"), "ep: 3 is refused, it does not divide 256 experts; valid sizes: 2, 4, 8, 16"),
        (("--ep", 8, "--batch-tokens", "200k", "--layer", 40), "layer 40 is no MoE layer of qwen3.6-35b-a3b"),
        (("--ep", 8, "--batch-tokens", "200k", "--for", "vllm"), "--for: 'vllm' is none of automodel, megatron-core, torchtitan"),
        (("--ep", 8, "--batch-tokens", "lots"), "--batch-tokens: 'lots' is no size"),
    ],
)
def test_what_the_table_does_not_say_is_refused(invoke, arguments, said):
    code, out, err = invoke("allowance", *arguments)
    assert (code, out) == (2, "")
    assert said in err


@pytest.fixture
def wave(tmp_path, invoke):
    (tmp_path / "lengths.txt").write_text("96794\n")

    def laid_out(ep, cp):
        path = tmp_path / f"wave{ep}{cp}.yaml"
        code, out, _ = invoke(
            "wave", "--lengths", tmp_path / "lengths.txt", "--ep", ep, "--cp", cp, "--model", "qwen3.6-35b-a3b"
        )
        assert code == 0
        path.write_text(out)
        return path

    return laid_out


def test_a_tighter_entry_admits_more_tokens_in_the_same_bytes(invoke, wave):
    code, out, _ = invoke("explain", PUBLISHED, "--wave", wave(2, 2), "--json")
    assert code == 0
    body = json.loads(out)
    admits = body["admits"]
    assert [row["allowance"] for row in admits] == [1.4, 1.3, 1.2, 1.1, 1.0]
    assert (admits[0]["tokens"], admits[0]["more"]) == (96_794, 0)  # the wave itself, in its own bytes
    assert all(before["tokens"] < after["tokens"] for before, after in itertools.pairwise(admits))
    # A floor of 1.35 and a largest of 1.24: no batch can lower 1.4.
    assert [row["is_open_to_evidence"] for row in admits] == [True, False, False, False, False]
    assert body["least_by_evidence"] == 1.4


def test_a_wave_that_no_allowance_prices_has_none_to_explain(invoke, wave):
    code, out, err = invoke("explain", PUBLISHED, "--wave", wave(1, 1))
    assert (code, out) == (2, "")
    assert "at EP 1 no allowance is looked up, none binds" in err


def _observed(path, share):
    path.write_text(path.read_text().replace("observed: null", f"observed: {{share: {share}}}"))
    return path


def test_an_observed_share_above_the_entry_is_named_as_what_binds(invoke, wave):
    # 1.9 and the margin of 0.10 are 2.0, above the entry's 1.4.
    path = _observed(wave(2, 2), "1.9")
    code, out, _ = invoke("explain", PUBLISHED, "--wave", path)
    assert code == 0
    assert "priced at 2: its observed share and the margin bind, not the entry" in out
    assert "a tighter entry changes nothing" in out
    assert "more batches" not in out
    body = json.loads(invoke("explain", PUBLISHED, "--wave", path, "--json")[1])
    assert body["seen_with_margin"] == 2.0
    assert [(row["allowance"], row["tokens"], row["more"]) for row in body["admits"]] == [(1.4, 96_794, 0)]
    assert "the observed share binds, not the allowance: 2 with its margin of 0.10" in invoke("estimate", path)[1]
    assert json.loads(invoke("estimate", path, "--json")[1])["seen_with_margin"] == 2.0


@pytest.mark.parametrize(("share", "steps"), [("1.31", [1.4]), ("1.3", [1.4]), ("1.2", [1.4, 1.3]), ("1.05", [1.4, 1.3, 1.2])])
def test_no_step_below_an_observed_share_claims_tokens(invoke, wave, share, steps):
    body = json.loads(invoke("explain", PUBLISHED, "--wave", _observed(wave(2, 2), share), "--json")[1])
    assert [row["allowance"] for row in body["admits"]] == steps
    assert all(row["more"] >= 0 for row in body["admits"])
    assert (body["seen_with_margin"] is None) == (share != "1.31")


def test_a_directory_for_an_input_is_the_users_fault(invoke, wave, tmp_path):
    path = wave(2, 2)
    for arguments in [
        ("estimate", tmp_path),
        ("estimate", path, "--allowances", tmp_path),
        ("estimate", path, "--allowances", PUBLISHED, "--placement", tmp_path),
        ("estimate", path, "--allowances", PUBLISHED, "--placement", ""),
        ("explain", tmp_path, "--wave", path),
    ]:
        code, out, err = invoke(*arguments)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert "is a directory, not a file" in err
