"""Wave files: read strictly, refused in one line that names line and field, described by the committed schema."""

import json
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Literal, get_args, get_origin, get_type_hints

import pytest

from routing.core.errors import InputError
from routing.core.wave import TARGETS, Wave
from routing.store.waves import parse_wave, read_wave, read_waves, wave_text
from tests.estimate.waves import WAVE_TEXT, ranked_wave

SCHEMA = Path(__file__).resolve().parents[2] / "data" / "schemas" / "wave.schema.json"


def refusal(old, new):
    assert WAVE_TEXT.count(old) == 1, old
    with pytest.raises(InputError) as raised:
        parse_wave(WAVE_TEXT.replace(old, new), where="wave.yaml")
    message = str(raised.value)
    assert "\n" not in message
    assert len(message) < 300
    return message


def test_a_planners_wave_is_read_as_it_stands():
    assert parse_wave(WAVE_TEXT, where="wave.yaml") == ranked_wave()


def test_json_is_read_as_yaml_is():
    body = json.dumps(
        {
            "model": "qwen3.6-35b-a3b",
            "topology": {"ep": 2, "cp": 2},
            "adapter": {"expert_rank": 8},
            "groups": [{"attention_rows": [52480, 44314], "longest_packed_tokens": 96794}],
            "observed": {"share": 1.08},
        },
        indent=1,
    )
    wave = parse_wave(body, where="wave.json")
    assert wave.groups[0].attention_rows == (52480, 44314)
    assert str(wave.observed.share) == "1.08"


def test_what_is_left_out_is_as_documented():
    wave = parse_wave(
        "model: m\ntopology: {ep: 2, cp: 2}\ngroups: [{attention_rows: [1, 1], longest_packed_tokens: 2}]\n", where="wave.yaml"
    )
    assert (wave.stack, wave.gdn_kernels, wave.adapter, wave.observed, wave.outputs, wave.head) == (
        "megatron-te",
        "fused",
        None,
        None,
        (),
        None,
    )
    assert (wave.te_workspaces_held, wave.first_gradient_execution, wave.held_hybridep_rows) == (False, True, 0)
    assert (wave.terms.cold_transients, wave.terms.adapter_gradients) == (True, True)
    group, topology = wave.groups[0], wave.topology
    assert (group.gradient, group.gdn_rows, group.attention_stages) == (True, None, None)
    assert (topology.tp, topology.pp, topology.etp, topology.ep_group_is_cp_group) == (1, 1, 1, True)


def test_written_text_is_the_example_in_our_order():
    text = wave_text(ranked_wave(), comment="by hand")
    assert text.startswith(
        "# by hand\nmodel: qwen3.6-35b-a3b\ntopology: {ep: 2, cp: 2, tp: 1, pp: 1, etp: 1, ep_group_is_cp_group: true}\n"
    )
    assert "  - [{kind: local, q: 52480, k: 52480, q_len: 52480, k_len: 52480}]\n" in text
    assert parse_wave(text, where="wave.yaml") == ranked_wave()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[52480, 44314]", "[52480]", "wave.yaml:12: groups[0].attention_rows: has 1 ranks, attention_stages has 2"),
        (
            "  - [{kind: local, q: 52480, k: 52480, q_len: 52480, k_len: 52480}]\n",
            "",
            "wave.yaml:15: groups[0].attention_stages: has 1 ranks, attention_rows has 2",
        ),
        ("[48194, 48600]", "[48194]", "wave.yaml:13: groups[0].gdn_rows: rows of 1 ranks, topology.cp is 2"),
        ("[48194, 48600]", "[48194, -1]", "wave.yaml:13: groups[0].gdn_rows[1]: -1 is below 0"),
        ("[48194, 48600]", "[48194, many]", "wave.yaml:13: groups[0].gdn_rows[1]: 'many' is not a whole number"),
        ("[48194, 48600]", "[48194, 4.5]", "wave.yaml:13: groups[0].gdn_rows[1]: '4.5' is not a whole number"),
        ("[48194, 48600]", "[48194, true]", "wave.yaml:13: groups[0].gdn_rows[1]: 'True' is not a whole number"),
        ("[48194, 48600]", "48194", "wave.yaml:13: groups[0].gdn_rows: '48194' is not a list"),
        ("[48194, 48600]", "[48194, 99999999999]", "wave.yaml:13: groups[0].gdn_rows[1]: 99999999999 is above 1000000000"),
        (
            "[48194, 48600]",
            "[48194, " + "9" * 5000 + "]",
            "wave.yaml:13: groups[0].gdn_rows[1]: '" + "9" * 40 + "' is not a whole number",
        ),
        (
            "longest_packed_tokens: 96794",
            "longest_packed_tokens: 0",
            "wave.yaml:14: groups[0].longest_packed_tokens: 0 is below 1",
        ),
        ("  longest_packed_tokens: 96794\n", "", "wave.yaml:11: groups[0].longest_packed_tokens: is missing"),
        ("ep: 2, ", "", "wave.yaml:3: topology.ep: is missing"),
        (" tp: 1, ", " tp: 2, ", "wave.yaml:3: topology.tp: 2 is not priced; the published formulas are for tp: 1"),
        ("pp: 1, ", "pp: 4, ", "wave.yaml:3: topology.pp: 4 is not priced; the published formulas are for pp: 1"),
        ("etp: 1, ", "etp: 2, ", "wave.yaml:3: topology.etp: 2 is not priced; the published formulas are for etp: 1"),
        ("ep: 2, ", "ep: 4, ", "wave.yaml:3: topology.ep_group_is_cp_group: true, and ep=4 is another size than cp=2"),
        (
            "k: 44314, q_len",
            "k: 44000, q_len",
            "wave.yaml:17: groups[0].attention_stages[1][0]: a local stage of q=44314, k=44000 is not the rank's own 44314 rows",
        ),
        (
            "q: 44314, k: 16504",
            "q: 44315, k: 16504",
            "wave.yaml:18: groups[0].attention_stages[1][1].q: 44315 queries of a rank with 44314 rows",
        ),
        ("k_len: 16512", "k_len: 16500", "wave.yaml:18: groups[0].attention_stages[1][1].k_len: 16500 is below k=16504"),
        (
            "{kind: local, q: 44314, k: 44314, q_len: 44352, k_len: 44352},\n     ",
            "",
            "wave.yaml:17: groups[0].attention_stages[1]: stages with 16504 k rows leave out some of the rank's own 44314",
        ),
        ("kind: remote", "kind: far", "wave.yaml:18: groups[0].attention_stages[1][1].kind: 'far' is none of local, remote"),
        (
            "stack: megatron-te",
            "stack: deepspeed",
            "wave.yaml:2: stack: 'deepspeed' is no stack that is priced; megatron-te and transformers are",
        ),
        (
            "stack: megatron-te",
            "gdn_kernels: fast",
            "wave.yaml:2: gdn_kernels: 'fast' is neither fused nor fallback",
        ),
        (
            "stack: megatron-te",
            "gdn_kernels: fallback",
            "wave.yaml:2: gdn_kernels: fallback is PyTorch's code of the transformers stack, stack is megatron-te",
        ),
        ("stack: megatron-te", "fp8: true", "wave.yaml:2: fp8: FP8 is not priced: every tensor counts as BF16"),
        (
            "stack: megatron-te",
            "capacity_factor: 1.5",
            "wave.yaml:2: capacity_factor: capacity factors are not priced: every routed row is, none is dropped",
        ),
        (
            "stack: megatron-te",
            "dispatcher: deepep",
            "wave.yaml:2: dispatcher: only HybridEP (EP > 1) and the local all-to-all (EP 1) are priced; no field says so",
        ),
        ("observed: null", "observed: {}", "wave.yaml:7: observed: one of share and share_by_layer"),
        ("observed: null", "observed: {share: 0.9}", "wave.yaml:7: observed.share: 0.9 is no imbalance; 1.0 is even"),
        ("expert_rank: 8", "expert_rank: -1", "wave.yaml:4: adapter.expert_rank: -1 is below 0"),
        (
            "targets: [experts]",
            "targets: [everything]",
            "wave.yaml:4: adapter.targets[0]: 'everything' is none of " + ", ".join(TARGETS),
        ),
        ("held_hybridep_rows: 0", "held_hybridep_rows: null", "wave.yaml:8: held_hybridep_rows: null is not a whole number"),
        ("te_workspaces_held: false", "te_workspaces_held: no", "wave.yaml:5: te_workspaces_held: 'no' is not true or false"),
        ("layer_inputs: null", "layer_inputs: [mamba]", "wave.yaml:9: layer_inputs[0]: 'mamba' is none of attention, gdn"),
        ("outputs: []", "outputs: [{kind: top_k, rows: 3}]", "wave.yaml:19: outputs[0].k: top_k needs it, the entries a row"),
        ("model: qwen3.6-35b-a3b", "model: 3", "wave.yaml:1: model: '3' is not text"),
        ("model: qwen3.6-35b-a3b", "model: a\nmodel: b", "wave.yaml:2: key 'model' is there twice"),
    ],
)
def test_a_bad_wave_is_one_line_that_names_line_and_field(old, new, message):
    assert refusal(old, new) == message


def test_a_rank_without_rows_and_a_group_without_any_differ():
    assert "no rank holds a row" in refusal("attention_rows: [52480, 44314]", "attention_rows: [0, 0]")
    empty = WAVE_TEXT[: WAVE_TEXT.index("  gdn_rows")] + "  longest_packed_tokens: 5\n"
    assert parse_wave(empty.replace("44314", "0"), where="wave.yaml").groups[0].attention_rows == (52480, 0)


def test_which_gdn_kernels_run_survives_a_round_trip():
    text = WAVE_TEXT.replace("stack: megatron-te", "stack: transformers\ngdn_kernels: fallback")
    wave = parse_wave(text, where="wave.yaml")
    assert wave.gdn_kernels == "fallback"
    assert "stack: transformers\ngdn_kernels: fallback\n" in wave_text(wave)
    assert wave_text(parse_wave(wave_text(wave), where="wave.yaml")) == wave_text(wave)


def test_an_absent_unreadable_or_huge_file_is_said_in_one_line(tmp_path):
    with pytest.raises(InputError, match=r"no-such\.yaml: no such file; lay one out: routing wave"):
        read_wave(tmp_path / "no-such.yaml")
    with pytest.raises(InputError, match="is a directory, not a file"):
        read_wave(tmp_path)
    (tmp_path / "bytes.yaml").write_bytes(b"model: \xff")
    with pytest.raises(InputError, match="not UTF-8 at byte 7"):
        read_wave(tmp_path / "bytes.yaml")
    (tmp_path / "huge.yaml").write_bytes(b"#" * 4_000_001)
    with pytest.raises(InputError, match="a wave has at most"):
        read_wave(tmp_path / "huge.yaml")
    (tmp_path / "empty.yaml").write_text("")
    with pytest.raises(InputError, match="an empty file"):
        read_wave(tmp_path / "empty.yaml")


def test_the_committed_schema_knows_every_field_and_what_may_be_left_out():
    _compare(Wave, json.loads(SCHEMA.read_text()), "wave")


def test_the_committed_schema_takes_the_example():
    jsonschema = pytest.importorskip("jsonschema")
    from ruamel.yaml import YAML

    schema = json.loads(SCHEMA.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(YAML(typ="safe").load(WAVE_TEXT), schema)
    for old, new in ((" tp: 1, ", " tp: 2, "), ("stack: megatron-te", "fp8: true"), ("kind: remote", "kind: far")):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(YAML(typ="safe").load(WAVE_TEXT.replace(old, new)), schema)


def _compare(kind, schema, where):
    hints = get_type_hints(kind)
    assert set(schema["properties"]) == set(hints), where
    assert set(schema["required"]) == {field.name for field in fields(kind) if field.default is MISSING}, where
    assert schema["additionalProperties"] is False, where
    for name, hint in hints.items():
        _compare_value(hint, schema["properties"][name], f"{where}.{name}")


def _compare_value(hint, schema, where):
    arms = get_args(hint)
    if get_origin(hint) is UnionType:
        assert {"type": "null"} in schema["anyOf"], where
        inner = next(arm for arm in arms if arm is not type(None))
        return _compare_value(inner, next(one for one in schema["anyOf"] if one != {"type": "null"}), where)
    if get_origin(hint) is tuple:
        assert schema["type"] == "array", where
        return _compare_value(arms[0], schema["items"], f"{where}[]")
    if get_origin(hint) is Literal:
        assert tuple(schema["enum"]) == arms, where
    elif is_dataclass(hint):
        _compare(hint, schema, where)
    return None


def test_waves_by_name_are_each_read_as_one(tmp_path):
    path = tmp_path / "waves.yaml"
    text = "\n".join(f"  {line}" for line in WAVE_TEXT.splitlines())
    path.write_text(f"first:\n{text}\nsecond wave:\n{text}\n")
    found = read_waves(path)
    assert list(found) == ["first", "second wave"]
    assert set(found.values()) == {parse_wave(WAVE_TEXT, where="one")}


@pytest.mark.parametrize("text", ["[]", "one: 1", "one:\n- 2", "null"])
def test_what_is_no_mapping_of_waves_is_refused(tmp_path, text):
    (tmp_path / "waves.yaml").write_text(text)
    with pytest.raises(InputError, match="no mapping of names to waves"):
        read_waves(tmp_path / "waves.yaml")


def test_a_fault_in_one_of_several_waves_is_named_with_its_line(tmp_path):
    path = tmp_path / "waves.yaml"
    path.write_text("first:\n  model: m\n  topology: {ep: 2, cp: 3}\n  groups: []\n")
    with pytest.raises(InputError, match=r"waves\.yaml:3: topology\.cp: 3 is not priced"):
        read_waves(path)
