"""The traced steps: the tracker against the allocator's own events, components worked by hand, sampled cells of the grid."""

import warnings
from contextlib import nullcontext

import pytest
import torch
import transformers

from pipelines.trace import experts, gdn
from pipelines.trace.allocator import cpu_peak
from pipelines.trace.geometries import GEOMETRIES, config_of, shape_of
from pipelines.trace.grid import FIELDS, OUT, TOKENS, VERSIONS, Cell, cells, read_rows
from pipelines.trace.step import Step, build, run, trace
from pipelines.trace.tracker import StorageTracker
from routing.core.config_json import decoder_shape
from routing.estimate.autograd import Sizes, peak

SMALL = {
    "hidden_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "vocab_size": 512,
}
SMALL_ATTENTION = {**SMALL, "num_hidden_layers": 2, "decoder_sparse_step": 1, "mlp_only_layers": []}
SMALL_HYBRID = {
    **SMALL,
    "num_hidden_layers": 2,
    "full_attention_interval": 2,
    "shared_expert_intermediate_size": 64,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 64,
    "linear_num_value_heads": 4,
    "linear_value_head_dim": 64,
}
ATTENTION = ("qwen3-30b-a3b", "attention-h4096-e128-k8-f1536")
SAMPLED = (
    ("qwen3-30b-a3b", 4, 8192, "2.0", 8),
    ("qwen3-30b-a3b", 8, 2048, "1.0", 8),
    ("qwen3.6-35b-a3b", 4, 8192, "2.0", 0),
    ("qwen3.6-35b-a3b", 8, 16384, "1.0", 8),
    ("attention-h4096-e128-k8-f1536", 8, 8192, "1.0", 0),
    ("hybrid-h4096-e512-k10-f1024", 4, 2048, "2.0", 8),
)


@pytest.fixture(autouse=True)
def _quiet():
    torch.set_num_threads(1)
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        yield
    transformers.logging.set_verbosity(before)


@pytest.fixture(scope="module")
def committed():
    """Rows of the committed grid by cell."""
    rows = read_rows(OUT)
    assert all(tuple(row) == FIELDS for row in rows.values())
    return rows


def traced(geometry="qwen3-30b-a3b", layers=2, **step):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return trace(config_of(geometry, layers), Step(**step))


@pytest.mark.parametrize(
    ("model_type", "keys", "expert_rank", "kernels"),
    [("qwen3_moe", SMALL_ATTENTION, 0, "mirrored"), ("qwen3_5_moe_text", SMALL_HYBRID, 8, "fallback")],
)
def test_a_real_small_run_takes_what_its_trace_says(model_type, keys, expert_rank, kernels):
    step = Step(num_tokens=192, expert_rank=expert_rank, gdn=kernels, head="full")
    fake = trace(transformers.AutoConfig.for_model(model_type, **keys), step, block_bytes=1).peak_bytes
    with gdn.mirrored() if kernels == "mirrored" else nullcontext():
        model = build(transformers.AutoConfig.for_model(model_type, **keys), step)
        ids = torch.zeros(1, step.num_tokens, dtype=torch.int64)
        run(model, step, ids)  # what a first call alone allocates is not the step's
        model.zero_grad(set_to_none=True)
        measured = cpu_peak(lambda: run(model, step, ids))
        model.zero_grad(set_to_none=True)
        with StorageTracker([*model.parameters(), *model.buffers(), ids], block_bytes=1) as tracker:
            run(model, step, ids)
    assert tracker.peak_bytes == fake
    assert measured == pytest.approx(fake, rel=0.0015)


def test_our_experts_take_what_the_library_s_own_do(monkeypatch):
    ours = traced(num_tokens=512).peak_bytes
    monkeypatch.setattr(experts, "NAME", "grouped_mm")
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS, grouped_mm_experts_forward

    monkeypatch.setattr(experts, "experts_forward", grouped_mm_experts_forward)
    theirs = traced(num_tokens=512).peak_bytes
    assert ALL_EXPERTS_FUNCTIONS["grouped_mm"] is grouped_mm_experts_forward
    assert ours == theirs


def test_a_layer_more_adds_its_boundary_and_nothing_else():
    # the last layer binds; H = 2048 in BF16
    four, eight = (traced(layers=layers, num_tokens=8192).peak_bytes for layers in (4, 8))
    assert eight - four == 4 * 8192 * 2 * 2048


def test_exactly_one_incoming_gradient_is_alive():
    alive = traced(layers=3, num_tokens=8192).at_peak
    hidden = sum(num for (_, dtype, shape), num in alive.items() if (dtype, shape) == ("bfloat16", (1, 8192, 2048)))
    # 3 boundaries, the residual after attention, two norms' outputs, one gradient
    assert hidden == (3 + 1 + 2 + 1) * 8192 * 2 * 2048


def test_a_routed_row_costs_what_its_tensors_do():
    even, more = (traced(num_tokens=4096, routed_rows=rows).peak_bytes for rows in (49152, 65536))
    # H = 2048, F = 768: rows, product, weighted and gradient of H; gate and up, the activated gate of F; five indices, a weight
    assert (more - even) / 16384 == 4 * 2 * 2048 + 3 * 2 * 768 + 5 * 8 + 2


def test_adapter_gradients_are_those_of_the_layers_above():
    # 64 tokens, rank 64: layer 0 binds after its experts; a layer's expert LoRA is 128 experts x 64 x (2048 + 1536 + 768 + 2048)
    two, four = (
        trace(config_of("qwen3-30b-a3b", layers), Step(num_tokens=64, linear_rank=0, expert_rank=64)).peak_bytes
        for layers in (2, 4)
    )
    boundary = 64 * 2 * 2048
    of_a_layer = 2 * 128 * 64 * (2048 + 1536 + 768 + 2048)
    assert of_a_layer * 2 <= four - two <= of_a_layer * 2 + 2 * boundary


def test_the_fused_delta_rule_holds_what_its_source_does():
    # T 128, two key heads and four value heads of 64: rows of 2 x 64 and 4 x 64 in BF16, two chunks
    keys, values, states = 128 * 2 * 64 * 2, 128 * 4 * 64 * 2, 2 * 4 * 64 * 64 * 2
    a_head, decay = 128 * 2 * 4, 128 * 4 * 4
    q, k, v = (torch.empty(1, 128, heads, 64, dtype=torch.bfloat16, requires_grad=True) for heads in (2, 2, 4))
    g = torch.empty(1, 128, 4, requires_grad=True)
    beta = torch.empty(1, 128, 4, dtype=torch.bfloat16, requires_grad=True)
    gradient = torch.empty_like(v)
    with StorageTracker([q, k, v, g, beta, gradient], block_bytes=1) as tracker:
        output, _ = gdn.delta_rule(q, k, v, g=g, beta=beta)
        # queries and keys normed and their norms; the decay's sum; one 64 x 64 system a chunk and head; the output
        saved = 2 * (keys + a_head) + decay + 128 * 4 * 64 * 2
        assert tracker.alive_bytes == saved + values
        # w, u, states, new values
        assert tracker.peak_bytes == saved + values + 3 * values + states
        del output
        tracker.peak_bytes = 0
        output, _ = gdn.delta_rule(q, k, v, g=g, beta=beta)
        tracker.peak_bytes = 0
        output.backward(gradient)
    # u, new values, their gradient twice, w and its gradient, keys' gradient at value heads; queries and keys summed, and again
    assert tracker.peak_bytes == saved + values + 7 * values + 2 * states + 3 * keys + 2 * decay + 128 * 4 * 2


@pytest.mark.parametrize("geometry", [name for name in GEOMETRIES if name not in ATTENTION])
def test_where_few_rows_are_routed_the_fused_mixer_binds(geometry):
    priced = peak(shape_of(geometry, 1), Sizes(tokens=12320, pairs=64, linear_rank=8, expert_rank=0))
    measured = traced(geometry, layers=1, num_tokens=12320, routed_rows=64).peak_bytes
    assert priced.name in ("delta rule backward", "norm backward")
    assert 0 <= priced.num_bytes / measured - 1 <= 0.02


def test_the_fallback_is_priced_where_its_scan_binds_and_a_chunk_is_not_whole():
    tokens, pairs = 600, 64
    config = {**SMALL_HYBRID, "num_hidden_layers": 1, "linear_num_key_heads": 4}
    step = Step(num_tokens=tokens, routed_rows=pairs, linear_rank=8, gdn="fallback")
    measured = trace(transformers.AutoConfig.for_model("qwen3_5_moe_text", **config), step).peak_bytes
    shape = decoder_shape({"model_type": "qwen3_5_moe_text", **config}, name="small", where="small")
    priced = peak(shape, Sizes(tokens=tokens, pairs=pairs, linear_rank=8, expert_rank=0, fused_gdn=False))
    assert priced.name == "delta rule backward"
    assert 0 <= priced.num_bytes / measured - 1 <= 0.02


@pytest.mark.parametrize("cell", SAMPLED, ids=lambda cell: "-".join(map(str, cell)))
def test_a_sampled_cell_traces_to_the_committed_bytes(cell, committed):
    geometry, layers, tokens, share, rank = cell
    again = Cell(geometry=geometry, num_layers=layers, tokens=tokens, share=share, expert_rank=rank)
    row = committed[again.key]
    if {name: row[name] for name in VERSIONS} != VERSIONS:
        pytest.skip(f"traced with torch {row['torch']} and transformers {row['transformers']}")
    assert {name: str(value) for name, value in again.measure().items()} == row


def test_the_price_is_never_under_a_traced_cell_and_at_most_two_percent_over(committed):
    assert list(committed) == [cell.key for cell in cells(GEOMETRIES, TOKENS)]
    assert len(committed) == 5 * (4 * 2 * 4 + 1) + 3 * 6
    for row in committed.values():
        shape = shape_of(row["geometry"], int(row["num_layers"]))
        sizes = Sizes(
            tokens=int(row["tokens"]),
            pairs=int(row["routed_pairs"]),
            linear_rank=int(row["linear_rank"]),
            expert_rank=int(row["expert_rank"]),
            full_head=row["head"] == "full",
            fused_gdn=row["gdn"] != "fallback",
        )
        priced = peak(shape, sizes).num_bytes
        assert priced == int(row["priced_bytes"])
        assert 0 <= priced / int(row["traced_bytes"]) - 1 <= 0.02
