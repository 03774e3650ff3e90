"""The demo policies as they ship: small, of the promised architecture, loadable offline, with a tolerant template."""

import hashlib
import json
import math
from pathlib import Path

import pytest

DEMO = Path(__file__).resolve().parents[2] / "data" / "demo"
POLICIES = ("policy", "policy-untrained")
GDN, ATTENTION = "linear_attention", "full_attention"


@pytest.fixture(scope="module")
def report():
    return json.loads((DEMO / "policy" / "training.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def tokenizer():
    transformers = pytest.importorskip("transformers")
    return transformers.AutoTokenizer.from_pretrained(DEMO / "policy")


@pytest.mark.parametrize("name", POLICIES)
def test_the_weights_are_bf16_and_at_most_five_megabytes(name):
    safetensors = pytest.importorskip("safetensors")
    path = DEMO / name / "model.safetensors"
    assert path.stat().st_size <= 5_000_000
    with safetensors.safe_open(path, framework="pt") as weights:
        keys = list(weights.keys())
        assert {weights.get_slice(key).get_dtype() for key in keys} == {"BF16"}
        assert sum(math.prod(weights.get_slice(key).get_shape()) for key in keys) < 2_500_000
        embedding = next(key for key in keys if key.endswith("embed_tokens.weight"))
        assert weights.get_slice(embedding).get_shape() == [4096, 64]


@pytest.mark.parametrize("name", POLICIES)
def test_the_architecture_is_qwen3_5_moe_with_gdn_and_attention_three_to_one(name):
    config = json.loads((DEMO / name / "config.json").read_text())
    assert config["model_type"] == "qwen3_5_moe_text"
    assert config["layer_types"] == [GDN, GDN, GDN, ATTENTION] * 2
    assert (config["num_experts"], config["num_experts_per_tok"]) == (64, 8)
    assert (config["vocab_size"], config["max_position_embeddings"]) == (4096, 131_072)


@pytest.mark.parametrize("name", POLICIES)
def test_it_loads_from_its_folder_with_every_weight_in_place(name):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    model, info = transformers.AutoModel.from_pretrained(DEMO / name, dtype=torch.float32, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    with torch.inference_mode():
        states = model(input_ids=torch.arange(20)[None]).last_hidden_state
    assert states.shape == (1, 20, 64)
    assert states.isfinite().all()


def test_both_policies_read_text_alike_and_differ_in_their_weights():
    for name in ("tokenizer.json", "chat_template.jinja", "config.json"):
        assert (DEMO / "policy" / name).read_bytes() == (DEMO / "policy-untrained" / name).read_bytes()
    assert (DEMO / "policy" / "model.safetensors").read_bytes() != (DEMO / "policy-untrained" / "model.safetensors").read_bytes()


def test_the_policy_is_at_least_a_quarter_under_the_unigram_model_on_tasks_it_never_saw(report):
    for figures in (report["nats_per_held_out_token"], report["nats_per_held_out_token_after_the_first_turn"]):
        assert figures["after"] <= 0.75 * figures["unigram"] < figures["before"]
    assert report["split"]["held_out_units"]


def test_the_curve_falls_and_counts_its_tokens(report):
    curve = report["curve"]
    assert curve[-1]["step"] == report["plan"]["steps"]
    assert curve[-1]["tokens"] == report["tokens_trained_on"]
    assert curve[-1]["held_out_loss"] < curve[len(curve) // 2]["held_out_loss"] < curve[0]["held_out_loss"]


def test_no_layer_of_the_trained_router_has_collapsed(report):
    entropy = report["expert_entropy_nats_by_layer"]
    assert entropy["even"] == pytest.approx(math.log(64))
    assert len(entropy["before"]) == len(entropy["after"]) == 8
    # exp(entropy) is the number of experts that would carry the load if it were even: at least twice the top-k
    assert all(math.exp(value) >= 16 for value in entropy["after"])
    assert max(entropy["after"] + entropy["before"]) < math.log(64)


def test_the_report_names_the_weights_that_ship(report):
    for entry in report["weights"]:
        path = DEMO / entry["file"]
        assert (entry["bytes"], entry["sha256"]) == (path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest())


def test_it_was_trained_on_the_published_retail_files(report, shared_trajectories):
    published = {entry["file"]: entry["sha256"] for entry in json.loads((shared_trajectories / "manifest.json").read_text())}
    trained_on = {Path(entry["file"]).name: entry["sha256"] for entry in report["source_files"]}
    assert trained_on == {name: digest for name, digest in published.items() if "_retail_" in name and name.endswith(".json")}


def test_the_tokenizer_files_hold_word_pieces_and_no_sentence():
    files = {path.name for name in POLICIES for path in (DEMO / name).iterdir()}
    assert files == {
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "training.json",
    }
    vocabulary = json.loads((DEMO / "policy" / "tokenizer.json").read_text())["model"]["vocab"]
    assert len(vocabulary) == 4096
    assert not [piece for piece in vocabulary if "\u0120" in piece.lstrip("\u0120")]  # a space inside a piece


def test_text_survives_tokenization_and_digits_stand_alone(tokenizer):
    text = 'Grüße \u2028 {"a": [1, 2.50]}\r\n\t  order 0123456789 \U0001f600'
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.decode(ids) == text
    assert len(tokenizer("0123456789")["input_ids"]) == 10


def test_marks_of_a_turn_are_one_token_each(tokenizer):
    marks = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>"]
    assert tokenizer("".join(marks))["input_ids"] == [0, 1, 2, 3, 4]
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|endoftext|>")


def rendered(tokenizer, messages, **how):
    return tokenizer.apply_chat_template(messages, tokenize=False, **how)


def test_a_conversation_may_open_with_the_assistant_and_without_a_system_turn(tokenizer):
    messages = [{"role": "assistant", "content": "Hi!"}, {"role": "user", "content": "Hello."}]
    assert rendered(tokenizer, messages) == "<|im_start|>assistant\nHi!<|im_end|>\n<|im_start|>user\nHello.<|im_end|>\n"


def test_a_tool_call_is_written_as_json_and_its_result_is_a_turn_of_its_own(tokenizer):
    call = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": {"who": "Zoë", "n": [1, None]}}}
    messages = [
        {"role": "system", "content": "Rules."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "name": "find", "content": '{"ok": true}'},
    ]
    assert rendered(tokenizer, messages) == (
        "<|im_start|>system\nRules.<|im_end|>\n"
        "<|im_start|>assistant\n<tool_call>\n"
        '{"name": "find", "arguments": {"who": "Zoë", "n": [1, null]}}\n'
        "</tool_call><|im_end|>\n"
        '<|im_start|>tool\n{"ok": true}<|im_end|>\n'
    )


def test_arguments_may_be_text_calls_several_and_content_parts(tokenizer):
    calls = [{"function": {"name": "a", "arguments": '{"x": 1}'}}, {"name": "b", "arguments": {}}]
    messages = [
        {"role": "assistant", "content": [{"type": "text", "text": "So"}, {"type": "text", "text": "."}], "tool_calls": calls}
    ]
    assert rendered(tokenizer, messages) == (
        '<|im_start|>assistant\nSo.\n<tool_call>\n{"name": "a", "arguments": {"x": 1}}\n</tool_call>\n'
        '<tool_call>\n{"name": "b", "arguments": {}}\n</tool_call><|im_end|>\n'
    )


@pytest.mark.parametrize(("messages", "opening"), [([{"role": "system", "content": "Rules."}], "Rules.\n\n"), ([], "")])
def test_tools_are_listed_in_the_system_turn(tokenizer, messages, opening):
    tools = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in ("a", "b")]
    assert rendered(tokenizer, [*messages, {"role": "user", "content": "?"}], tools=tools, add_generation_prompt=True) == (
        f"<|im_start|>system\n{opening}# Tools\n"
        'Call a tool by writing {"name": ..., "arguments": {...}} between <tool_call> and </tool_call>.\n'
        '{"type": "function", "function": {"name": "a", "parameters": {"type": "object"}}}\n'
        '{"type": "function", "function": {"name": "b", "parameters": {"type": "object"}}}<|im_end|>\n'
        "<|im_start|>user\n?<|im_end|>\n<|im_start|>assistant\n"
    )
