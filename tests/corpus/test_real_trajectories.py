"""The real runs beside the checkout: all kept but the three that are empty, under a template as strict as Qwen3.5's."""

import json
import sys
from collections import Counter

import pytest

from routing.corpus.load import load_corpus

FLAT_TRANSCRIPTS = "tau_bench_retail_few_shot.jsonl"


@pytest.fixture(scope="module")
def manifest(shared_trajectories):
    return {entry["file"]: entry for entry in json.loads((shared_trajectories / "manifest.json").read_text())}


def test_every_message_trajectory_is_kept_but_the_three_empty_ones(shared_trajectories, manifest, words):
    names = [name for name in manifest if name != FLAT_TRANSCRIPTS]
    corpus = load_corpus([shared_trajectories / name for name in names], tokenizer=words)
    assert sum(file.rows for file in corpus.files) == 1_096
    assert {file.name: file.rows for file in corpus.files} == {name: manifest[name]["trajectories"] for name in names}
    assert {file.name: file.sha256 for file in corpus.files} == {name: manifest[name]["sha256"] for name in names}
    empty = [refusal for refusal in corpus.refusals if refusal.reason == "empty"]
    assert Counter(refusal.source_file for refusal in empty) == {
        "tau_bench_retail_gpt41.json": 2,
        "tau_bench_retail_gpt4o.json": 1,
    }
    assert {refusal.reason for refusal in corpus.refusals} <= {"empty", "exact_repeat"}
    assert len(corpus.trajectories) == 1_096 - len(corpus.refusals)
    for file in corpus.files:
        expected = "tau2" if file.name.startswith("tau2_") else "tau-bench"
        assert file.format == ("openai-chat" if file.name.endswith(".jsonl") else expected)


def test_the_flat_transcripts_are_kept_as_plain_text(shared_trajectories, words):
    corpus = load_corpus([shared_trajectories / FLAT_TRANSCRIPTS], tokenizer=words)
    assert (corpus.files[0].format, corpus.files[0].kept, corpus.refusals) == ("text-rows", 69, ())


def test_the_retail_tasks_of_both_benchmarks_are_the_same_units(shared_trajectories, words):
    paths = sorted(shared_trajectories.glob("*retail*.json"))
    assert len(paths) == 8
    corpus = load_corpus(paths, tokenizer=words)
    # tau-bench numbers its tasks from 0 to 114, tau2 took 114 of them over
    assert {trajectory.unit for trajectory in corpus.trajectories} == {f"retail/{task}" for task in range(115)}


def test_a_telecom_run_holds_nothing_that_only_the_user_saw(shared_trajectories, words):
    words.chat_template = "{% for message in messages %}{{ message.content }} {{ message.tool_calls or '' }} {% endfor %}"
    corpus = load_corpus([shared_trajectories / "tau2_telecom_gpt41.json"], tokenizer=words)
    simulations = json.loads((shared_trajectories / "tau2_telecom_gpt41.json").read_text())["simulations"]
    calls = [call for run in simulations for message in run["messages"] for call in message.get("tool_calls") or []]
    assert corpus.normalised["user_tool_call_dropped"] == sum(call["requestor"] == "user" for call in calls) == 482
    results = [message for run in simulations for message in run["messages"] if message["role"] == "tool"]
    assert corpus.normalised["user_tool_result_dropped"] == sum(result["requestor"] == "user" for result in results)
    assert {trajectory.unit for trajectory in corpus.trajectories} == {f"telecom/{run['task_id']}" for run in simulations}


def test_a_real_run_is_rendered_turn_by_turn(shared_trajectories, byte_tokenizer, tmp_path):
    runs = json.loads((shared_trajectories / "tau_bench_retail_grok3.json").read_text())[:2]
    (tmp_path / "two.json").write_text(json.dumps(runs))
    text = byte_tokenizer.decode(load_corpus([tmp_path / "two.json"], tokenizer=byte_tokenizer).trajectories[0].token_ids)
    assert text.startswith("<|system|># Retail agent policy\n\nAs a retail agent")
    turns = [message["role"] for message in runs[0]["traj"]]
    assert text.count("<|assistant|>") == turns.count("assistant")
    assert text.count("<|tool|>") == turns.count("tool")
    assert text.count("<call ") == sum(len(message.get("tool_calls") or []) for message in runs[0]["traj"])
    assert "None" not in text


def test_the_measuring_side_needs_none_of_the_packages_it_does_not_name(shared_trajectories, words, monkeypatch):
    for package in ("datasets", "duckdb", "polars", "pydantic", "ruamel"):
        monkeypatch.setitem(sys.modules, package, None)
    corpus = load_corpus([shared_trajectories / FLAT_TRANSCRIPTS], tokenizer=words, max_tokens=10_000)
    assert corpus.num_tokens <= 10_000
