"""ART's four generations: every history is a trajectory, every group a unit, and nothing of YAML but plain data is read."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chat_rows import CALL, CHOICE, SPOKEN, SPOKEN_TEXT, refused, units

from routing.core.errors import InputError

SIDE = [
    {"role": "user", "content": "Sum up."},
    {"finish_reason": "stop", "index": 0, "message": {"role": "assistant", "content": "None."}},
]
SIDE_TEXT = "<|user|>Sum up.<|assistant|>None."
TRAJECTORY = {
    "reward": 1.0,
    "metrics": {"turns": 2},
    "metadata": {},
    "logs": [],
    "tools": None,
    "messages_and_choices": SPOKEN,
    "additional_histories": [{"messages_and_choices": SIDE, "tools": None}],
}
GROUPS_YAML = """\
# rollouts of an invented store room
- trajectories:
  - additional_histories: []
    logs: []
    messages_and_choices:
    - content: Be brief.
      role: system
    - content: 'Is it there?'
      role: user
    - finish_reason: tool_calls
      index: 0
      message:
        content: null
        role: assistant
        tool_calls:
        - function:
            arguments: '{"bay": 3}'
            name: look
          id: c1
          type: function
    - content: empty
      role: tool
      tool_call_id: c1
    - finish_reason: stop
      index: 0
      message:
        content: "No."
        role: assistant
    metadata: {}
    metrics: {share: 0.5}
    reward: 1.0
- trajectories:
  - messages_and_choices: [{role: user, content: 'yes'}]
"""


def test_every_history_of_an_art_group_is_a_trajectory_and_the_group_a_unit(read, write):
    second = {**TRAJECTORY, "additional_histories": [], "messages_and_choices": [{"role": "user", "content": "again"}]}
    path = write(
        "groups.jsonl",
        [{"trajectories": [TRAJECTORY, second]}, {"trajectories": []}, {"trajectories": [{**second, "tools": []}]}],
    )
    texts, corpus = read(path)
    assert texts == [SPOKEN_TEXT, SIDE_TEXT, "<|user|>again"]
    assert [trajectory.source_row for trajectory in corpus.trajectories] == [0, 1, 2]
    assert units(corpus) == ["groups.jsonl#0"] * 3
    assert refused(corpus) == [(3, "empty"), (4, "exact_repeat")]
    assert (corpus.files[0].rows, corpus.files[0].kept, corpus.files[0].refused) == (5, 3, 2)


def test_an_art_yaml_file_is_the_list_of_its_groups(read, write):
    texts, corpus = read(write("groups.yaml", GROUPS_YAML))
    assert texts == [SPOKEN_TEXT, "<|user|>yes"]
    assert (corpus.files[0].format, units(corpus)) == ("art", ["groups.yaml#0", "groups.yaml#1"])


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("- trajectories: &a []\n- trajectories: *a\n", ":1: anchors and aliases"),
        ("- trajectories:\n  - !!python/object:os.system {}\n", ":2: tags"),
        ("- trajectories: []\n  trajectories: []\n", ":2: key 'trajectories' is there twice"),
        ("- trajectories: []\n---\n- trajectories: []\n", ":2: a second document"),
        ("- trajectories: " + "[" * 80 + "]" * 80 + "\n", ":1: nested deeper than 64"),
        ("- trajectories: [\n", ": not YAML"),
        ('- trajectories: ["\\uD800"]\n', ": a lone surrogate in a string"),
    ],
)
@pytest.mark.fault(
    "a YAML corpus with a tag, an alias, a key twice, a second document, deep nesting, a torn end or a lone surrogate",
    how="the construct is written into a file of ART's groups",
    tries=7,
    outcome="refused with the file and the line, nothing of it is built",
)
def test_yaml_that_is_more_than_plain_data_is_refused_with_its_line(read, write, text, what):
    with pytest.raises(InputError) as caught:
        read(write("groups.yaml", text))
    assert what in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_yaml_file_beyond_its_limit_is_refused_before_it_is_parsed(read, write, monkeypatch):
    monkeypatch.setattr("routing.corpus.whole_files.MAX_YAML_FILE_BYTES", 100)
    with pytest.raises(InputError, match="more than 100; write it as JSON Lines"):
        read(write("groups.yaml", GROUPS_YAML))


def flat(message, trainable=False):
    """A message as ART's Parquet v1 keeps it."""
    calls = message.get("tool_calls")
    kept = {"role": message["role"], "content": message["content"], "tool_call_id": message.get("tool_call_id")}
    return {**kept, "tool_calls": json.dumps(calls) if calls else None, "trainable": trainable}


def test_art_parquet_v1_is_a_trajectory_a_row(read, tmp_path):
    messages = [flat(one.get("message", one), "message" in one) for one in SPOKEN]
    again = [flat({"role": "user", "content": "again"})]
    rows = [
        {"group_index": 4, "reward": 1.0, "metadata": None, "messages": messages, "additional_histories": None},
        {"group_index": 4, "reward": 0.0, "metadata": '{"task_id": "t"}', "messages": again, "additional_histories": None},
        {"group_index": 5, "reward": 0.5, "metadata": None, "messages": None, "additional_histories": None},
        {
            "group_index": 6,
            "reward": 0.5,
            "metadata": None,
            "messages": [flat({"role": "user", "content": "more"})],
            "additional_histories": json.dumps([{"messages_and_choices": SIDE}]),
        },
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "v1.parquet")
    texts, corpus = read(tmp_path / "v1.parquet")
    assert texts == [SPOKEN_TEXT, "<|user|>again", "<|user|>more", SIDE_TEXT]
    assert units(corpus) == ["v1.parquet#4", "v1.parquet/t", "v1.parquet#6", "v1.parquet#6"]
    assert refused(corpus) == [(2, "empty")]
    assert corpus.files[0].format == "art"


def test_art_parquet_v2_is_what_its_json_says_not_its_columns(read, tmp_path):
    def row(group, trajectory, version=2):
        index = None if trajectory is None else 0
        text = None if trajectory is None else json.dumps(trajectory)
        row = {
            "format_version": version,
            "group_index": group,
            "trajectory_index": index,
            "group_json": "{}",
            "trajectory_json": text,
        }
        return {**row, "messages": [flat({"role": "user", "content": "a query-friendly copy"})]}

    call = {**CALL, "function": {"name": "look", "arguments": {"bay": None}}}
    nulls = {
        "messages_and_choices": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    }
    rows = [row(0, TRAJECTORY), row(0, nulls), row(1, None), row(2, TRAJECTORY, version=3), row(3, [1])]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "v2.parquet")
    texts, corpus = read(tmp_path / "v2.parquet")
    # a null argument in the JSON was an argument: no struct filled it in
    assert texts == [SPOKEN_TEXT, SIDE_TEXT, "<|user|>x<|assistant|><call look><bay>null"]
    assert units(corpus) == ["v2.parquet#0"] * 3
    assert refused(corpus) == [(3, "empty"), (4, "shape"), (5, "shape")]
    assert corpus.refusals[1].detail == "'format_version' is 3, not 2"


def test_art_exchanges_are_requests_with_their_replies(read, write):
    request = {"messages": SPOKEN[:2]}
    longer = {"messages": [*SPOKEN[:2], CHOICE["message"], SPOKEN[3]]}
    chats = [{"request": request, "response": {"choices": [CHOICE]}}, {"request": longer, "response": {"choices": [SPOKEN[4]]}}]
    exchanges = {"chat_completions": chats, "completions": [], "responses": [{"request": {}, "response": {}}]}
    texts, corpus = read(write("a.jsonl", [{"trajectories": [{"exchanges": exchanges, "reward": 1.0}]}]))
    assert texts == [SPOKEN_TEXT.partition("<|tool|>")[0], SPOKEN_TEXT]
    assert units(corpus) == ["a.jsonl#0"] * 2
    assert [refusal.detail for refusal in corpus.refusals] == ["exchanges.responses[0] is no exchange of chat completions"]


def test_routes_and_ids_that_a_choice_carries_are_counted_as_left(read, write):
    choice = {**SPOKEN[4], "prompt_token_ids": [1], "completion_token_ids": [2], "routed_experts": [[[0, 1]], [[1, 2]]]}
    row = {"trajectories": [{"messages_and_choices": [*SPOKEN[:4], choice]}]}
    texts, corpus = read(write("a.jsonl", [row]))
    assert texts == [SPOKEN_TEXT]
    assert (corpus.normalised["recorded_routes_left"], corpus.normalised["recorded_ids_left"]) == (1, 1)
