"""Each format of other people's files reaches the policy word for word; what is left out is counted."""

import itertools
import json
import re
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chat_rows import CALL, CHOICE, SPOKEN, SPOKEN_TEXT, refused, units

from routing.core.errors import InputError
from routing.corpus.cumulative import Conversations
from routing.corpus.documents import FileFacts, RefusedError
from routing.corpus.encoding import text_or_ids
from routing.corpus.formats.registry import FORMATS, detect_format, read_row
from routing.corpus.normalise import RULES
from routing.corpus.render import template_renderer
from routing.corpus.sequences import REFUSAL_REASONS

ROWS = {
    "sharegpt": (
        {
            "conversations": [
                {"from": "system", "value": "Be brief."},
                {"from": "human", "value": "Is it there?"},
                {"from": "function_call", "value": '{"name": "look", "arguments": {"bay": 3}}'},
                {"from": "observation", "value": "empty"},
                {"from": "gpt", "value": "No."},
            ]
        },
        {"from_value_to_message": 5, "flat_tool_call_nested": 1},
    ),
    "swe-agent": (
        {
            "trajectory": [{"action": "look", "observation": "empty", "query": [{"role": "user", "content": "Is it there?"}]}],
            "history": [
                {"role": "system", "content": "Be brief.", "agent": "main", "message_type": "system_prompt"},
                {"role": "user", "content": [{"type": "text", "text": "Is it there?"}], "agent": "main"},
                {"role": "assistant", "content": "", "thought": "", "action": "look", "agent": "main", "tool_calls": [CALL]},
                {"role": "tool", "content": "empty", "agent": "main", "tool_call_ids": ["c1"]},
                {"role": "assistant", "content": "No.", "agent": "main"},
            ],
            "info": {"exit_status": "submitted"},
        },
        # agent five times, message_type, thought, action
        {"content_parts_joined": 1, "extra_key_dropped": 8, "arguments_text_parsed": 1, "tool_result_id_renamed": 1},
    ),
    "mini-swe-agent": (
        {
            "trajectory_format": "mini-swe-agent-1.1",
            "info": {},
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "Is it there?", "extra": {"timestamp": 1.5}},
                {"role": "assistant", "content": "", "tool_calls": [CALL], "extra": {"cost": 0.1}},
                {"role": "tool", "tool_call_id": "c1", "content": "empty"},
                {"role": "assistant", "content": "No."},
                {"role": "exit", "content": "a patch", "extra": {"exit_status": "Submitted"}},
            ],
        },
        {"extra_key_dropped": 2, "arguments_text_parsed": 1, "exit_message_dropped": 1},
    ),
    "agentbench": (
        {
            "index": 7,
            "error": None,
            "output": {
                "status": "completed",
                "history": [
                    {"role": "system", "content": "Be brief."},
                    {"role": "user", "content": "Is it there?"},
                    {"role": "agent", "content": "", "tool_calls": [CALL]},
                    {"role": "tool", "content": "empty"},
                    {"role": "agent", "content": "No."},
                ],
            },
        },
        {"role_agent_to_assistant": 2, "arguments_text_parsed": 1},
    ),
    "toolbench": (
        {
            "win": True,
            "answer_generation": {
                "query": "Is it there?",
                "train_messages": [
                    [
                        {"role": "system", "content": "Be brief."},
                        {"role": "user", "content": "Is it there?"},
                        {"role": "assistant", "content": "", "function_call": {"name": "look", "arguments": '{"bay": 3}'}},
                        {"role": "function", "name": "look", "content": "empty"},
                        {"role": "assistant", "content": "No.", "valid": True},
                    ]
                ],
            },
        },
        {
            "function_call_to_tool_calls": 1,
            "arguments_text_parsed": 1,
            "role_function_to_tool": 1,
            "extra_key_dropped": 1,
        },
    ),
    "request-log": (
        {
            "request_params": {
                "model": "invented",
                "messages": [*SPOKEN[:2], CHOICE["message"], SPOKEN[3]],
            },
            "response": {"choices": [SPOKEN[4]]},
        },
        {"content_null_to_empty": 1, "arguments_text_parsed": 1},
    ),
    "atif": (
        {
            "schema_version": "ATIF-v1.4",
            "session_id": "s",
            "agent": {"name": "invented", "version": "1"},
            "steps": [
                {"step_id": 1, "source": "system", "message": "Be brief."},
                {"step_id": 2, "source": "user", "message": "Is it there?"},
                {
                    "step_id": 3,
                    "source": "agent",
                    "message": "",
                    "tool_calls": [{"tool_call_id": "c1", "function_name": "look", "arguments": {"bay": 3}}],
                    "observation": {"results": [{"source_call_id": "c1", "content": "empty"}]},
                    "metrics": {"prompt_token_ids": [1, 2], "completion_token_ids": [3]},
                },
                {"step_id": 4, "source": "agent", "message": "No."},
            ],
        },
        {"step_to_messages": 4, "observation_to_tool": 1, "recorded_ids_left": 1},
    ),
    "art": (
        {"trajectories": [{"messages_and_choices": SPOKEN, "reward": 0.0}]},
        {"choice_to_message": 2, "content_null_to_empty": 1, "arguments_text_parsed": 1},
    ),
}


@pytest.mark.parametrize("format", ROWS)
@pytest.mark.parametrize("name", ["rows.jsonl", "row.json", "list.json", "indented.traj"])
def test_a_row_is_told_by_its_content_and_rendered_as_it_was_spoken(read, write, format, name):
    row, rules = ROWS[format]
    content = {"rows.jsonl": [row], "list.json": [row], "indented.traj": json.dumps(row, indent=1)}.get(name, row)
    texts, corpus = read(write(name, content))
    assert texts == [SPOKEN_TEXT]
    assert corpus.files[0].format == format
    assert corpus.normalised == rules


@pytest.mark.parametrize("is_text", [False, True], ids=["structs", "JSON text"])
@pytest.mark.parametrize("format", ROWS)
def test_a_row_from_parquet_is_the_row_from_json(read, tmp_path, format, is_text):
    row = {key: value for key, value in ROWS[format][0].items() if key != "info"}  # Parquet has no empty struct
    if is_text:
        row = {key: json.dumps(value) if isinstance(value, list | dict) else value for key, value in row.items()}
    elif format == "swe-agent":  # and no column of both texts and parts
        row["history"] = [{**entry, "content": "Is it there?"} if entry["role"] == "user" else entry for entry in row["history"]]
    pq.write_table(pa.Table.from_pylist([{**row, "other": 1}]), tmp_path / "a")
    texts, corpus = read(tmp_path / "a")
    assert (texts, corpus.files[0].format) == ([SPOKEN_TEXT], format)


def test_tools_reach_the_template_from_wherever_a_format_keeps_them(read, write):
    bare = {"name": "look", "parameters": {"type": "object"}}
    nested = {"type": "function", "function": bare}
    ask = [{"role": "user", "content": "x"}]
    rows = {
        "a": {"conversations": [{"from": "human", "value": "x"}], "tools": json.dumps([bare])},
        "b": {"answer_generation": {"function": [bare], "train_messages": [ask]}},
        "c": {"request_params": {"messages": ask, "functions": [bare]}},
        "d": {
            "schema_version": "ATIF-v1.5",
            "agent": {"tool_definitions": [nested]},
            "steps": [{"source": "user", "message": "x"}],
        },
        "e": {"trajectories": [{"messages_and_choices": ask, "tools": [nested]}]},
        "f": {"messages": ask, "functions": [bare]},
        "g": {"messages": ask, "tools": [{"type": "function", **bare}]},
    }
    rendered = '<|tools|>[{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]<|user|>x'
    for name, row in rows.items():
        texts, corpus = read(write(f"{name}.jsonl", [row]))
        assert texts == [rendered], name
        assert corpus.normalised.get("flat_tool_nested", 0) == (name not in "de"), name


def test_a_swe_agent_run_counts_its_history_and_no_query(read, write):
    query = [{"role": "user", "content": "told again and again"}]
    row = {"trajectory": [{"query": query}] * 5, "history": [{"role": "user", "content": "once", "agent": "main"}]}
    assert read(write("a.traj", row))[0] == ["<|user|>once"]
    # an agent that never acted leaves an empty trajectory, which is no tau-bench run
    texts, corpus = read(write("b.traj", {**row, "trajectory": []}))
    assert (texts, corpus.files[0].format) == (["<|user|>once"], "swe-agent")


def test_of_several_agents_each_saw_its_own_messages(read, write):
    said = [
        ("main", "user", "fix it"),
        ("helper", "user", "find it"),
        ("helper", "assistant", "here"),
        ("main", "assistant", "done"),
    ]
    history = [{"agent": agent, "role": role, "content": content} for agent, role, content in said]
    texts, corpus = read(write("a.traj", {"trajectory": [], "history": history}))
    assert texts == ["<|user|>fix it<|assistant|>done", "<|user|>find it<|assistant|>here"]
    assert units(corpus) == ["a.traj#0"] * 2
    with pytest.raises(InputError, match="nothing is kept; refused: shape 1"):
        read(write("b.traj", {"trajectory": [], "history": [*history, {"role": "user", "content": "whose?"}]}))


def test_instances_and_indices_name_units(read, write):
    mini = {**ROWS["mini-swe-agent"][0], "instance_id": "store__room-1"}
    texts, corpus = read(write("a.traj.json", mini), write("runs.jsonl", [ROWS["agentbench"][0]]), domain="d")
    assert texts == [SPOKEN_TEXT]
    assert units(corpus) == ["d/store__room-1"]
    assert units(read(write("runs.jsonl", [ROWS["agentbench"][0]]))[1]) == ["runs.jsonl/7"]


def test_an_exit_message_is_dropped_where_mini_swe_agent_wrote_it_and_refused_elsewhere(read, write):
    messages = [{"role": "user", "content": "x"}, {"role": "exit", "content": "y"}]
    texts, corpus = read(write("a.jsonl", [{"messages": messages}, {"messages": messages[:1]}]))
    assert (texts, refused(corpus)) == (["<|user|>x"], [(0, "unknown_role")])


def test_reasoning_reaches_the_template(byte_tokenizer, read, write, monkeypatch):
    template = "{% for m in messages %}{{ m.role }}:{{ m.reasoning_content or '' }}/{{ m.content }};{% endfor %}"
    monkeypatch.setattr(byte_tokenizer, "chat_template", template)
    said = {"role": "assistant", "content": "b", "reasoning_content": "a"}
    mini = {"trajectory_format": "mini-swe-agent-1", "messages": [said]}
    atif = {"schema_version": "ATIF-v1.0", "steps": [{"source": "agent", "message": "b", "reasoning_content": "a"}]}
    for row in (mini, atif):
        assert read(write("a.json", row))[0] == ["assistant:a/b;"]


def test_an_observation_without_a_call_is_what_the_user_says(read, write):
    steps = [
        {"source": "user", "message": "go"},
        {"source": "agent", "message": "ls", "observation": {"results": [{"content": "a.py"}]}},
        {
            "source": "agent",
            "message": [{"type": "text", "text": "look"}],
            "tool_calls": [{"tool_call_id": "c", "function_name": "f", "arguments": {}}],
            "observation": {"results": [{"content": "found", "source_call_id": None}, {"source_call_id": "c"}]},
        },
    ]
    texts, corpus = read(write("a.json", {"schema_version": "ATIF-v1.6", "steps": steps}))
    assert texts == ["<|user|>go<|assistant|>ls<|user|>a.py<|assistant|>look<call f><|tool|>found<|tool|>"]
    assert corpus.normalised["observation_to_user"] == 1
    assert corpus.normalised["observation_to_tool"] == 2


def test_an_embedded_sub_agent_is_a_trajectory_of_its_own(read, write):
    inner = {"schema_version": "ATIF-v1.7", "steps": [{"source": "user", "message": "inner"}]}
    outer = {"schema_version": "ATIF-v1.7", "steps": [{"source": "user", "message": "outer"}], "subagent_trajectories": [inner]}
    texts, corpus = read(write("a.json", outer))
    assert (texts, units(corpus)) == (["<|user|>outer", "<|user|>inner"], ["a.json#0"] * 2)


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        ({"source": "critic", "message": "x"}, "unknown_role"),
        ({"message": "x"}, "unknown_role"),
        ({"source": "user", "message": [{"type": "image", "source": {"path": "secret.png"}}]}, "content"),
        ({"source": "agent", "message": "x", "tool_calls": {"a": 1}}, "tool_calls"),
        ({"source": "agent", "message": "x", "tool_calls": [7]}, "tool_calls"),
        ({"source": "agent", "message": "x", "tool_calls": [{"tool_call_id": "c"}]}, "tool_calls"),
        ({"source": "agent", "message": "x", "observation": "secret"}, "shape"),
        ({"source": "agent", "message": "x", "observation": {"results": ["secret"]}}, "shape"),
    ],
)
def test_a_step_that_no_rule_covers_is_refused_without_its_words(read, write, step, reason):
    fine = {"schema_version": "ATIF-v1.4", "steps": [{"source": "user", "message": "x"}]}
    _, corpus = read(write("a.json", [fine, {**fine, "steps": [{"source": "user", "message": "y"}, step]}]))
    assert refused(corpus) == [(1, reason)]
    assert "secret" not in corpus.refusals[0].detail


@pytest.mark.parametrize("value", ["look", '["look"]', "[]", "", None, 7])
def test_a_function_call_that_names_no_call_is_refused(read, write, value):
    rows = [{"conversations": [{"from": "human", "value": "x"}]}]
    rows.append({"conversations": [*rows[0]["conversations"], {"from": "function_call", "value": value}]})
    assert refused(read(write("a.jsonl", rows))[1]) == [(1, "tool_calls")]


def test_sharegpt_speakers_are_renamed_by_the_written_list_and_others_refused(read, write):
    def row(*speakers):
        return {"conversations": [{"from": speaker, "value": "x"} for speaker in ("human", *speakers)]}

    rows = [row("chatgpt"), row("assistant", "function_response"), row("bing"), row("assistant", "user", "tool")]
    texts, corpus = read(write("a.jsonl", rows))
    assert texts == ["<|user|>x<|assistant|>x", "<|user|>x<|assistant|>x<|tool|>x", "<|user|>x<|assistant|>x<|user|>x<|tool|>x"]
    assert [(one.reason, one.detail) for one in corpus.refusals] == [("unknown_role", "conversations[1]: role 'bing'")]


def test_a_sharegpt_system_prompt_beside_the_conversation_opens_it(read, write):
    rows = [{"conversations": [{"role": "user", "content": "x"}], "system": "Be brief."}]
    texts, corpus = read(write("a.jsonl", rows))
    assert (texts, corpus.normalised) == (["<|system|>Be brief.<|user|>x"], {"policy_as_system": 1})


def test_a_row_of_another_format_is_refused_and_says_which(read, write):
    rows = [ROWS["sharegpt"][0], {"messages": [{"role": "user", "content": "x"}]}, {"output": None}]
    _, corpus = read(write("a.jsonl", rows))
    assert corpus.files[0].format == "sharegpt"
    looks = "'conversations' is absent or null, not a list; it looks like openai-chat, a file is of one format"
    assert [one.detail for one in corpus.refusals] == [looks, "'conversations' is absent or null, not a list"]


def test_a_row_of_two_formats_is_of_the_first_in_the_list_unless_one_is_named(read, write):
    both = {**ROWS["sharegpt"][0], "messages": [{"role": "user", "content": "x"}]}
    path = write("a.jsonl", [both])
    assert read(path)[0] == ["<|user|>x"]
    assert read(path, format="sharegpt")[0] == [SPOKEN_TEXT]


ODD = (None, [], {}, 7, True, "secret", ["secret"], [None], [[]], {"secret": "secret"}, '["secret"', [{"role": "secret"}])


def places(value, path=()):
    """Every path into a value, the value itself left out."""
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, member in members:
        yield (*path, key)
        yield from places(member, (*path, key))


def with_at(value, path, odd):
    if not path:
        return odd
    key, *rest = path
    changed = dict(value) if isinstance(value, dict) else list(value)
    changed[key] = with_at(value[key], rest, odd)
    return changed


@pytest.mark.fault(
    "a trajectory with null, an empty list, a number, text or an object where its format wants something else",
    how="each of twelve odd values takes each place of a row, in eight formats",
    tries=8,
    outcome="a trajectory, or a refusal with a reason that quotes no content; never a traceback",
)
@pytest.mark.parametrize("format", ROWS)
def test_whatever_stands_in_any_place_ends_in_a_trajectory_or_a_refusal_that_names_no_content(byte_tokenizer, format):
    render = template_renderer(byte_tokenizer.chat_template)
    row = ROWS[format][0]
    num_read, refusals, counts = 0, [], Counter()
    for path, odd in itertools.product(places(row), ODD):
        changed = with_at(row, path, odd)
        detect_format([changed], FileFacts())
        documents = read_row(changed, FORMATS[format], FileFacts(columnar=odd is None))
        Conversations().first_row(documents[0].request, 0)
        for document in documents:
            try:
                num_read += bool(text_or_ids(document, render, counts))
            except RefusedError as refusal:
                refusals.append(refusal)
    assert num_read
    assert {refusal.reason for refusal in refusals} <= set(REFUSAL_REASONS)
    # roles and types of parts are named, as they are in every format
    assert not [one.detail for one in refusals if "secret" in re.sub(r"(role|type) '.*'", "", one.detail)]
    assert set(counts) <= set(RULES)
