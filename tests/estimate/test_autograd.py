"""The transformers stack: terms worked by hand, what grows, and what is refused."""

from dataclasses import replace

import pytest

from routing.core.errors import InputError
from routing.core.fields import FieldError
from routing.core.wave import Adapter, Group, Head, Output, Topology, Wave
from routing.estimate.autograd import Sizes, instants, peak
from routing.estimate.autograd_price import AUTOGRAD_SOURCES
from routing.stages.estimator import Estimator
from routing.store.model_shapes import find_shape
from tests.conftest import REPOSITORY
from tests.estimate.waves import MODEL

LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj")


@pytest.fixture(scope="module")
def attention():
    """Qwen3-30B-A3B: 48 attention layers, H 2048, A 4096, KV 512, 128 experts, top-8, F 768."""
    return find_shape("qwen3-30b-a3b")


def wave(rows=32768, **changes):
    plain = Wave(
        model="qwen3-30b-a3b",
        stack="transformers",
        topology=Topology(ep=1, cp=1),
        adapter=Adapter(expert_rank=8, targets=LINEARS),
        groups=(Group(attention_rows=(rows,), longest_packed_tokens=rows),),
    )
    return replace(plain, **changes)


def test_terms_of_an_attention_step_are_those_worked_by_hand(attention):
    estimate = Estimator(shape=attention).price(wave())
    found = {term.name: term for term in estimate.terms}
    assert estimate.binding_layer == 47
    assert found["boundaries"].bytes == 48 * 2 * 2048 * 32768
    assert found["incoming_gradient"].bytes == 2 * 2048 * 32768
    assert found["norms"].bytes_per_row == 2 * (4 * 2048 + 2 * 2048 + 4)
    # queries, keys in float32; rotated; values; output; two sums a query head, one a key head for its norm; four LoRA rows of 8
    assert found["mixer"].bytes_per_row == 4 * 4608 + 2 * (4096 + 512 + 512 + 4096) + 4 * (2 * 32 + 4) + 4 * 16
    # rows, product, weighted, gradient; gate and up and the activated gate; five indices and a weight
    assert (found["routed_rows"].rows, found["routed_rows"].bytes_per_row) == (8 * 32768, 8 * 2048 + 6 * 768 + 42)
    assert found["adapter_gradients"].bytes == 16 * (2048 + 4096 + 2 * (2048 + 512) + 4096 + 2048)
    assert sum(term.bytes for term in estimate.terms) == estimate.total_bytes == estimate.floor_bytes == estimate.walk_bytes
    assert estimate.required_bytes == estimate.total_bytes * 11 // 10
    assert "largest instant" in estimate.explain()


def test_a_short_step_peaks_in_the_head_and_full_logits_always(attention):
    short = Estimator(shape=attention).price(wave(1024))
    assert short.binding_layer is None
    assert {term.name: term.bytes for term in short.terms}["lm_head"] == 12 * 151936 * 512
    full = Estimator(shape=attention).price(wave(outputs=(Output(kind="logits", rows=32768),)))
    assert {term.name: term.bytes for term in full.terms}["lm_head"] == 12 * 151936 * 32768


def test_the_fallback_s_chunks_are_those_worked_by_hand():
    # 30 GDN layers, 16 key heads of 128, 32 value heads of 128; H 2048, F 512, 256 experts, top-8
    shape = find_shape(MODEL)
    plain = wave(8192, model=MODEL)
    fused, fallback = (Estimator(shape=shape).price(replace(plain, gdn_kernels=one)) for one in ("fused", "fallback"))
    assert {caution.code for caution in fused.cautions} - {caution.code for caution in fallback.cautions} == {"gdn_mirrored"}
    assert fallback.total_bytes > fused.total_bytes
    sizes = Sizes(tokens=100, pairs=800, linear_rank=8, expert_rank=0, fused_gdn=False)
    parts = {part.name: part for part in next(one for one in instants(shape, sizes) if one.name == "delta rule backward").parts}
    row, system, state = 32 * 128, 32 * 64, 32 * 128 * 128
    # nine rows kept and seven gathered or added a token, six systems, one state, four decays and one a chunk
    chunk = 4 * (64 * (16 * row + 6 * system + 4 * 32) + state + 32) + 2 * 512
    assert (parts["gdn_chunks"].rows, parts["gdn_chunks"].bytes_per_row) == (2, chunk)
    # the convolution's input and output; queries and keys in float32; decay's input, two norms, beta; two LoRA rows
    assert parts["mixer"].bytes_per_row == 2 * 2 * 8192 + 2 * 4 * row + 32 * (3 * 4 + 2) + 2 * 16


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("model", ["qwen3-30b-a3b", MODEL])
def test_more_never_costs_less(model, fused):
    shape = find_shape(model)
    plain = Sizes(tokens=3000, pairs=24000, linear_rank=8, expert_rank=8, fused_gdn=fused)
    base = peak(shape, plain).num_bytes
    for name, value in (("tokens", 3001), ("pairs", 24001), ("linear_rank", 9), ("expert_rank", 9)):
        assert peak(shape, plain._replace(**{name: value})).num_bytes >= base
    assert peak(shape, plain._replace(pending_gradients=False)).num_bytes <= base
    assert {part.name for one in instants(shape, plain) for part in one.parts} <= set(AUTOGRAD_SOURCES)


def test_the_largest_wave_is_the_largest(attention):
    estimator = Estimator(shape=attention)
    found = estimator.largest_wave(Topology(ep=1, cp=1), 20 * 10**9, shape=wave())
    assert found.estimate.required_bytes <= 20 * 10**9 < estimator.price(wave(found.rows + 1)).required_bytes


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"topology": Topology(ep=2, cp=1)}, "topology.ep: 2 is not priced on the transformers stack; ep: 1 is"),
        ({"adapter": None}, "adapter: none, or of rank 0; a step on the transformers stack is priced with LoRA"),
        ({"adapter": Adapter(expert_rank=8, targets=("lm_head",))}, "adapter.targets: lm_head is not priced"),
        ({"adapter": Adapter(expert_rank=4)}, "adapter.expert_rank: 4 on the transformers stack: grouped products take rows of"),
        ({"head": Head(projected_rows=5)}, "head: on the transformers stack the loss is taken over every row"),
        ({"outputs": (Output(kind="hidden", rows=5),)}, "outputs: on the transformers stack only logits of every row"),
        (
            {"groups": (Group(attention_rows=(5,), longest_packed_tokens=5, gradient=False),)},
            "groups[0].gradient: a group without gradient is not priced",
        ),
        ({"gdn_kernels": "fallback"}, "gdn_kernels: fallback, and qwen3-30b-a3b has no GDN layer: leave it out"),
        ({"held_hybridep_rows": 5}, "held_hybridep_rows: means nothing on the transformers stack"),
        ({"te_workspaces_held": True}, "te_workspaces_held: means nothing on the transformers stack"),
        ({"groups": wave().groups * 2}, "groups: 2 groups are not priced on the transformers stack; price each by itself"),
    ],
)
def test_what_was_not_traced_is_refused_with_a_sentence(attention, changes, sentence):
    with pytest.raises(FieldError) as refused:
        Estimator(shape=attention).price(wave(**changes))
    assert sentence in str(refused.value)


def test_another_class_is_refused(attention):
    other = replace(attention, shared_ffn_size=512, shared_gated=False)
    with pytest.raises(FieldError, match="neither class that was traced"):
        Estimator(shape=other).price(wave())


def test_every_term_is_in_the_docs():
    text = (REPOSITORY / "docs" / "estimator.md").read_text()
    assert [name for name in AUTOGRAD_SOURCES if f"`{name}`" not in text] == []


def test_linears_left_out_are_priced_and_said():
    shape = find_shape(MODEL)
    attention_only = wave(8192, model=MODEL)
    every = ("in_proj_qkv", "in_proj_z", "out_proj", "gate_proj", "up_proj", "down_proj", *LINEARS)
    codes = [
        {
            one.code
            for one in Estimator(shape=shape)
            .price(replace(attention_only, adapter=Adapter(expert_rank=8, targets=targets)))
            .cautions
        }
        for targets in (LINEARS, every, ("experts",))
    ]
    assert ["linears_as_all" in found for found in codes] == [True, False, False]


def test_an_unknown_mode_is_refused_on_either_stack(attention):
    with pytest.raises(InputError, match="mode"):
        Estimator(shape=attention).price(wave(), mode="nonsense")
