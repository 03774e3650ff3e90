"""The estimator as trainers load it, and the stages behind `routing estimate`, `wave` and `replay`."""

import json
import subprocess
import sys
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from routing.core.errors import CheckFailedError, DamagedDataError, InputError
from routing.core.fields import FieldError
from routing.core.wave import Group, Head, Observed, Stage, Topology, Wave
from routing.stages.estimate import Comparison, EstimateRequest, estimate, lay_out, replay
from routing.stages.estimator import Estimator
from routing.store.allowances import write_table
from routing.store.model_shapes import find_shape
from routing.store.waves import parse_wave, wave_text
from tests.estimate.tables import table_of
from tests.estimate.waves import MODEL, WAVE_TEXT, flat_wave, ranked_wave


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """(the flat wave, the ranked wave, a table of 1.4 at EP 2), as files."""
    folder = tmp_path_factory.mktemp("waves")
    (folder / "flat.yaml").write_text(wave_text(flat_wave()))
    (folder / "ranked.yaml").write_text(WAVE_TEXT)
    write_table(folder / "table.yaml", table_of(find_shape(MODEL), {(2, 20000): "1.4"}))
    return folder / "flat.yaml", folder / "ranked.yaml", folder / "table.yaml"


def request(wave, table, **changes):
    fields = {"wave": wave, "allowances": table, "model": None, "options": {}, **changes}
    return EstimateRequest(**fields)


def test_a_table_on_disk_prices_the_published_case(files):
    estimator = Estimator.load(files[2], model=MODEL)
    assert estimator.price(flat_wave()).total_bytes == 26805745204
    assert estimator.price(replace(flat_wave(), model="Qwen/Qwen3.5-35B-A3B")).total_bytes == 26805745204


def test_the_packaged_table_prices_the_published_case():
    estimate = Estimator.load(model=MODEL).price(flat_wave())
    assert estimate.total_bytes == 26805745204
    assert (estimate.allowance.batch_tokens, estimate.allowance.warnings) == (200000, ("below_fitted_batch",))


def test_a_model_without_a_packaged_table_still_prices_what_needs_none():
    estimator = Estimator.load(model="qwen3-30b-a3b")
    group = Group(attention_rows=(1000,), longest_packed_tokens=1000)
    one = Wave(model="qwen3-30b-a3b", topology=Topology(ep=1, cp=1), groups=(group,))
    # 48 layers: 49 x 4,096 boundaries and gradient; the attention mixer b (2H + 5A + 3KV) = 52,224; residual 8,192; router state
    # of the EP 2 form, 14 x 128 + 16 = 1,808; 8 x 2 x (3 x 768 + 5 x 2,048) = 200,704 routed; workspaces and transients
    expected = 1000 * (49 * 4096 + 52224 + 8192 + 1808 + 200704) + 167777280 + 67108864
    assert estimator.price(one).total_bytes == expected
    two = replace(one, topology=Topology(ep=2, cp=1))
    assert estimator.price(two, mode="proven").allowance.value == 2
    with pytest.raises(
        InputError, match=r"no allowance for ep=2: the packaged table is of qwen3\.6-35b-a3b; measure it: routing fit"
    ):
        estimator.price(two)


def test_a_named_table_of_another_model_is_refused(files):
    with pytest.raises(InputError, match="another model than qwen3-30b-a3b"):
        Estimator.load(files[2], model="qwen3-30b-a3b")


def test_a_table_edited_by_hand_is_refused(files, tmp_path):
    edited = tmp_path / "edited.yaml"
    edited.write_text(files[2].read_text().replace("allowance: 1.4", "allowance: 1.2"))
    with pytest.raises(DamagedDataError, match="edited by hand"):
        Estimator.load(edited, model=MODEL)


def test_a_wave_of_another_bundled_model_is_refused(files):
    estimator = Estimator.load(files[2], model=MODEL)
    with pytest.raises(FieldError, match=r"model: qwen3-30b-a3b is another model than the estimator's qwen3\.6-35b-a3b"):
        estimator.price(replace(flat_wave(), model="qwen3-30b-a3b"))


def test_a_model_is_a_name_a_config_or_a_shape(files, tmp_path):
    shape = find_shape(MODEL)
    bundled = json.loads((Path(__file__).resolve().parents[2] / "data" / "models" / f"{MODEL}.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(bundled["config"]))
    for model in (shape, shape.routed, str(tmp_path), str(tmp_path / "config.json"), "Qwen3.6-35B-A3B"):
        assert Estimator.load(files[2], model=model).price(flat_wave()).total_bytes == 26805745204
    with pytest.raises(InputError, match="says nothing of attention"):
        Estimator.load(files[2], model=replace(shape, hidden_size=4096).routed)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"topology": Topology(ep=3, cp=2, ep_group_is_cp_group=False)},
            "topology.ep: 3 does not divide 256 experts; valid sizes: 1, 2, 4",
        ),
        ({"layer_inputs": ("attention",) * 39}, "layer_inputs: 39 layers, qwen3.6-35b-a3b has 40"),
        # A group of two ranks: one can hold every row, which is twice the even share, and never more.
        ({"observed": Observed(share=99)}, "observed: share 99 is above 2, the most there can be: ep = 2"),
        ({"observed": Observed(share=Decimal("2.01"))}, "observed: share 2.01 is above 2, the most there can be: ep = 2"),
        (
            {"observed": Observed(share_by_layer=(None,) * 39 + (Decimal("2.5"),))},
            "observed: share 2.5 is above 2, the most there can be: ep = 2",
        ),
        # 256 experts, top-8: a token's experts are distinct, so that a rank of 64 gets at most 32 times the even share.
        (
            {"observed": Observed(share=33), "topology": Topology(ep=64, cp=2, ep_group_is_cp_group=False)},
            "observed: share 33 is above 32, the most there can be: num_experts / top_k = 256 / 8",
        ),
        ({"observed": Observed(share_by_layer=(1, 1))}, "observed.share_by_layer: 2 layers, qwen3.6-35b-a3b has 40"),
    ],
)
def test_what_only_the_model_can_tell_is_refused(files, change, message):
    with pytest.raises(InputError) as raised:
        Estimator.load(files[2], model=MODEL).price(replace(flat_wave(), **change))
    assert str(raised.value).startswith(message)


def test_gdn_rows_of_a_model_without_gdn_are_refused():
    group = Group(attention_rows=(10, 10), gdn_rows=(10, 10), longest_packed_tokens=20)
    wave = Wave(model="qwen3-30b-a3b", topology=Topology(ep=1, cp=2), groups=(group,))
    with pytest.raises(FieldError, match=r"groups\[0\]\.gdn_rows: qwen3-30b-a3b has no GDN layer"):
        Estimator.load(model="qwen3-30b-a3b").price(wave)


def test_pricing_needs_the_standard_library_alone(tmp_path):
    blocked = ("numpy", "torch", "pyarrow", "ruamel", "pydantic", "duckdb", "polars", "scipy", "typer", "rich", "transformers")
    script = f"""
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ImportError(name)
sys.meta_path.insert(0, Blocked())
from routing.core.layers import DecoderShape
from routing.core.wave import Group, Topology, Wave
from routing.stages.estimator import Estimator
shape = DecoderShape(name="t", mixers=("attention",) * 2, moe_layers=(0, 1), hidden_size=64, num_query_heads=2, num_kv_heads=1,
    head_dim=32, output_gate=False, gdn=None, num_experts=8, top_k=2, expert_ffn_size=32, shared_ffn_size=0, shared_gated=False,
    dense_ffn_size=0, vocab_size=100)
wave = Wave(model="t", topology=Topology(ep=1, cp=1), groups=(Group(attention_rows=(5,), longest_packed_tokens=5),))
print(Estimator(shape=shape).price(wave).total_bytes)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0


def test_the_answer_of_routing_estimate_is_the_documented_object(files):
    body = estimate(request(files[1], files[2])).body
    names = (
        "total_bytes",
        "floor_bytes",
        "walk_bytes",
        "required_bytes",
        "total_without_hybridep_bytes",
        "binding_rank",
        "binding_layer",
    )
    assert [body[name] for name in names] == [26792462164, 26792462164, 26792462164, 29471708380, 25738930004, 1, 39]
    assert body["allowance"] == {
        "ep": 2,
        "batch_tokens": 20000,
        "value": 1.4,
        "layer": "all",
        "status": "headroom",
        "warnings": ["above_fitted_batch"],
    }
    assert sum(term["bytes"] for term in body["terms"]) == body["total_bytes"]
    routed = next(term for term in body["terms"] if term["name"] == "routed_stage")
    assert routed == {
        "name": "routed_stage",
        "rank": 1,
        "layer": 39,
        "rows": 48397,
        "bytes_per_row": "218265.6",
        "bytes": 10563400244,
    }
    held = next(term for term in body["terms"] if term["name"] == "executor_retention")
    assert (held["rows"], held["bytes_per_row"], held["bytes"]) == (None, None, 3085833088)


def test_a_measured_peak_is_compared_with_and_without_the_buffer(files):
    comparison = Comparison(peak_bytes=32_670_000_000, baseline_bytes=10_000_000_000)
    answer = estimate(request(files[0], files[2], comparison=comparison))
    assert round(answer.body["over_fraction"], 3) == 0.182
    assert round(answer.body["over_fraction_without_hybridep"], 3) == 0.136
    assert "+18.2%, +13.6% without HybridEP" in answer.text
    with pytest.raises(InputError, match="--peak-bytes: 5 is not above --baseline-bytes 5"):
        Comparison(peak_bytes=5, baseline_bytes=5)


def test_a_budget_is_held_against_what_is_required(files):
    fits = estimate(request(files[0], files[2], budget_bytes=29486319724))
    assert (fits.body["fits"], fits.exceeds) == (True, None)
    over = estimate(request(files[0], files[2], budget_bytes=29486319723))
    assert over.body["fits"] is False
    assert "1 above the budget; the largest term is routed_stage" in over.exceeds
    with_outside = estimate(request(files[0], files[2], budget_bytes=29486319724, options={"outside_bytes": 1}))
    assert with_outside.body["fits"] is False


def test_a_recorded_wave_is_priced_again_to_the_same_bytes(files, tmp_path):
    recorded = tmp_path / "estimate.json"
    for options in ({}, {"mode": "proven", "outside_bytes": 7}, {"per_layer": True}):
        recorded.write_text(json.dumps(estimate(request(files[1], files[2], options=options)).body))
        assert replay(files[1], recorded=recorded, allowances=files[2], model=None)["terms"] == 11


def test_a_term_that_moved_is_named(files, tmp_path):
    body = estimate(request(files[1], files[2])).body
    recorded = tmp_path / "estimate.json"
    moved = json.loads(json.dumps(body))
    next(term for term in moved["terms"] if term["name"] == "mixer")["bytes"] -= 1000
    recorded.write_text(json.dumps(moved))
    with pytest.raises(CheckFailedError, match=r"mixer: 3,040,293,912 bytes recorded, 3,040,294,912 priced now \(\+1,000\)"):
        replay(files[1], recorded=recorded, allowances=files[2], model=None)
    recorded.write_text(json.dumps({**body, "required_bytes": 1}))
    with pytest.raises(CheckFailedError, match="required_bytes: 1 recorded, 29471708380 priced now; every term is the same"):
        replay(files[1], recorded=recorded, allowances=files[2], model=None)


def test_changes_that_cancel_are_named(files, tmp_path):
    body = estimate(request(files[1], files[2])).body
    recorded = tmp_path / "estimate.json"
    halved = json.loads(json.dumps(body))
    mixer = next(term for term in halved["terms"] if term["name"] == "mixer")
    halved["terms"] += [{**mixer, "bytes": 1000}, {**mixer, "bytes": -1000}]
    recorded.write_text(json.dumps(halved))
    with pytest.raises(CheckFailedError, match=r"mixer: \{'name': 'mixer'.*'bytes': 1000\} recorded, None priced now"):
        replay(files[1], recorded=recorded, allowances=files[2], model=None)
    other = json.loads(json.dumps(body))
    next(term for term in other["terms"] if term["name"] == "mixer")["rows"] += 1
    recorded.write_text(json.dumps(other))
    with pytest.raises(CheckFailedError, match="mixer: "):
        replay(files[1], recorded=recorded, allowances=files[2], model=None)


def test_another_allowance_behind_the_same_bytes_is_named(files, tmp_path):
    body = estimate(request(files[1], files[2])).body
    (tmp_path / "estimate.json").write_text(json.dumps({**body, "allowance": {**body["allowance"], "value": 1.2}}))
    with pytest.raises(CheckFailedError, match="allowance: "):
        replay(files[1], recorded=tmp_path / "estimate.json", allowances=files[2], model=None)


@pytest.mark.parametrize("total", ["total_bytes", "floor_bytes", "walk_bytes", "required_bytes", "binding_rank"])
def test_a_record_without_its_totals_is_no_estimate(files, tmp_path, total):
    body = estimate(request(files[1], files[2])).body
    del body[total]
    (tmp_path / "estimate.json").write_text(json.dumps(body))
    with pytest.raises(InputError, match=f"no {total}"):
        replay(files[1], recorded=tmp_path / "estimate.json", allowances=files[2], model=None)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"terms": 3}',
        '{"terms": [{"name": "mixer"}]}',
        '{"terms": [], "options": {"mode": 3}}',
        '{"terms": [], "options": 1}',
    ],
)
def test_what_is_no_estimate_is_not_replayed(files, tmp_path, text):
    (tmp_path / "estimate.json").write_text(text)
    with pytest.raises(InputError, match=r"estimate\.json: "):
        replay(files[1], recorded=tmp_path / "estimate.json", allowances=files[2], model=None)


def test_lengths_are_laid_out_by_even_share_and_marked_so(tmp_path):
    lengths = tmp_path / "lengths.txt"
    lengths.write_text("52480, 44314\n1\n")
    text = lay_out(lengths, ep=2, cp=2, model=MODEL, adapter_rank=8)
    assert text.startswith("# layouts by even share")
    wave = parse_wave(text, where="wave.yaml")
    assert wave.groups[0].attention_rows == wave.groups[0].gdn_rows == (48398, 48397)
    assert (wave.groups[0].longest_packed_tokens, wave.groups[0].attention_stages) == (96795, None)
    assert (wave.adapter.expert_rank, wave.topology.ep_group_is_cp_group) == (8, True)
    plain = parse_wave(lay_out(lengths, ep=4, cp=2, model="qwen3-30b-a3b", adapter_rank=None), where="wave.yaml")
    assert (plain.adapter, plain.groups[0].gdn_rows, plain.topology.ep_group_is_cp_group) == (None, None, False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no length"),
        ("12\nmany", r"lengths\.txt:2: 'many' is no length"),
        ("-4", "'-4' is no length"),
        ("0", "'0' is no length"),
        ("9" * 30, "is no length"),
    ],
)
def test_lengths_that_are_none_are_refused(tmp_path, text, message):
    (tmp_path / "lengths.txt").write_text(text)
    with pytest.raises(InputError, match=message):
        lay_out(tmp_path / "lengths.txt", ep=2, cp=2, model=MODEL, adapter_rank=None)


def test_trainers_may_hand_in_lists_and_array_integers():
    numpy = pytest.importorskip("numpy")
    stages = [[{"q": 256}], []]
    group = Group(attention_rows=numpy.array([52480, 44314]), longest_packed_tokens=numpy.int64(96794))
    assert group == flat_wave().groups[0]
    with pytest.raises(FieldError, match=r"share: '1\.08' is not a decimal number \(a float is none"):
        Observed(share=1.08)
    with pytest.raises(FieldError, match=r"attention_rows\[0\]: '1\.5' is not a whole number"):
        Group(attention_rows=[1.5], longest_packed_tokens=1)
    with pytest.raises(FieldError, match="projected_rows: a number of 10000 bits is above 1000000000"):
        Head(projected_rows=2**9999)
    with pytest.raises(FieldError, match="attention_stages: has 1 ranks, attention_rows has 2"):
        Group(attention_rows=[1, 1], longest_packed_tokens=2, attention_stages=stages[1:])


def test_a_stage_is_priced_with_the_lengths_it_was_planned_at():
    group = ranked_wave().groups[0]
    first = Stage(kind="local", q=52480, k=52480, q_len=52481, k_len=52480)
    longer = replace(group, attention_stages=((first,), group.attention_stages[1]))
    estimator = Estimator.load(model=MODEL)
    padded = estimator.price(replace(ranked_wave(), groups=(longer,)))
    # one query more pads to 52,608: 128 x (8,192 + 8,320), and an output copy of 52,480 x 8,256
    grown = padded.ranks[0].total_bytes - estimator.price(ranked_wave()).ranks[0].total_bytes
    assert grown == 128 * 16512 + 52480 * 8256
