"""Each format is told by its content, read row by row, and refused in one line where it isn't what it seems."""

import builtins
import json
import os
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chat_rows import chat

from routing.core.errors import InputError, StorageError
from routing.corpus.formats.registry import FORMATS
from routing.corpus.load import load_corpus

CALL = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"zip": "19122"}'}}
MESSAGES = [
    {"role": "system", "content": "# Retail agent policy\n\nBe kind."},
    {"role": "user", "content": "hello"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "name": "find", "content": "yusuf"},
]
# MESSAGES through the strict template, by hand
TEXT = "<|system|># Retail agent policy\n\nBe kind.<|user|>hello<|assistant|><call find><zip>19122<|tool|>yusuf"
TAU2 = {
    "info": {"environment_info": {"domain_name": "telecom", "policy": "Be kind."}},
    "tasks": [],
    "simulations": [
        {
            "id": "s",
            "task_id": "a|b",
            "messages": [
                {"role": "assistant", "content": "Hi!", "tool_calls": None},
                {
                    "role": "user",
                    "content": None,
                    "tool_calls": [{"id": "u", "name": "look", "arguments": {}, "requestor": "user"}],
                },
                {"role": "tool", "id": "u", "content": "dark", "requestor": "user"},
                {"role": "user", "content": "It is dark.", "tool_calls": None},
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [{"id": "c", "name": "get", "arguments": {"n": 1}, "requestor": "assistant"}],
                },
                {"role": "tool", "id": "c", "content": "on", "requestor": "assistant", "error": False},
            ],
        }
    ],
}
TAU2_TEXT = "<|system|>Be kind.<|assistant|>Hi!<|user|>It is dark.<|assistant|><call get><n>1<|tool|>on"


def load(tokenizer, *paths, **options):
    return load_corpus(paths, tokenizer=tokenizer, **options)


def texts(tokenizer, *paths, **options):
    return [tokenizer.decode(trajectory.token_ids) for trajectory in load(tokenizer, *paths, **options).trajectories]


def parquet(path, rows, **columns):
    pq.write_table(pa.Table.from_pylist(rows) if rows else pa.table(columns), path)
    return path


@pytest.mark.parametrize(
    ("name", "content", "format", "expected"),
    [
        ("a.jsonl", [{"messages": MESSAGES}, chat("x", "y")], "openai-chat", [TEXT, "<|user|>x<|assistant|>y"]),
        ("a.json", {"messages": MESSAGES}, "openai-chat", [TEXT]),
        ("a.json", [{"messages": MESSAGES}], "openai-chat", [TEXT]),
        ("a.json", json.dumps([{"messages": MESSAGES}], indent=1), "openai-chat", [TEXT]),
        ("a.json", json.dumps({"messages": MESSAGES}, indent=1), "openai-chat", [TEXT]),
        ("a.json", [{"task_id": 0, "traj": []}, {"task_id": 1, "traj": MESSAGES}], "tau-bench", [TEXT]),
        ("a.json", [{"task_id": 1, "trajectory": MESSAGES}], "tau-bench", [TEXT]),
        ("a.json", [{"task_id": 1, "trajectory": {"traj": MESSAGES}}], "tau-bench", [TEXT]),
        ("a.jsonl", [{"task_id": 1, "traj": MESSAGES}], "tau-bench", [TEXT]),
        ("a.json", TAU2, "tau2", [TAU2_TEXT]),
        ("a.json", json.dumps(TAU2, indent=2), "tau2", [TAU2_TEXT]),
        ("a.jsonl", json.dumps(TAU2) + "\n", "tau2", [TAU2_TEXT]),
        ("a.jsonl", [{"messages_display": "user: x\nassistant: None"}], "text-rows", ["user: x\nassistant: None"]),
        ("a.jsonl", [{"text": "prose"}, {"text": "more"}], "text-rows", ["prose", "more"]),
        ("a.txt", "prose\r\nand more\n", "text", ["prose\r\nand more\n"]),
        ("a.log", "user: x\nassistant: y\n", "text", ["user: x\nassistant: y\n"]),
        ("a.jsonl", [{"input_ids": [64, 65]}], "token-ids", ["ab"]),
        ("a.jsonl", [{"input_ids": [64, 65, 0], "attention_mask": [1, 1, 0], "labels": []}], "token-ids", ["ab"]),
    ],
)
def test_a_format_is_told_by_its_content(byte_tokenizer, write, name, content, format, expected):
    path = write(name, content)
    corpus = load(byte_tokenizer, path)
    assert [byte_tokenizer.decode(trajectory.token_ids) for trajectory in corpus.trajectories] == expected
    assert corpus.files[0].format == format
    wrong_suffix = path.rename(path.with_suffix(".parquet"))
    if not name.endswith(".txt"):
        assert texts(byte_tokenizer, wrong_suffix) == expected


def test_a_text_is_never_rendered_and_no_special_token_is_added(byte_tokenizer, write):
    assert load(byte_tokenizer, write("a.txt", "ab")).trajectories[0].token_ids.tolist() == [64, 65]
    assert 256 not in load(byte_tokenizer, write("a.jsonl", [chat("x", "y")])).trajectories[0].token_ids


def test_tools_of_a_row_reach_the_template(byte_tokenizer, write):
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"default": None}}}]
    rendered = '<|tools|>[{"type": "function", "function": {"name": "f", "parameters": {"default": null}}}]<|user|>x'
    assert texts(byte_tokenizer, write("a.jsonl", [chat("x", tools=tools)])) == [rendered]
    assert texts(byte_tokenizer, write("b.jsonl", [chat("x", tools=json.dumps(tools))])) == [rendered]
    assert texts(byte_tokenizer, write("c.jsonl", [chat("x", tools=[]), chat("y", tools=None)])) == ["<|user|>x", "<|user|>y"]


def test_parquet_messages_lose_the_keys_that_structs_fill_with_none(byte_tokenizer, tmp_path):
    def called(**arguments):
        calls = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}]
        return {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": None, "tool_calls": calls}]}

    path = parquet(tmp_path / "a", [called(a="1"), called(b=[{"c": 1}, {"d": 2}])])
    assert "None" in str(pq.read_table(path).to_pylist()[0]["messages"][1]["tool_calls"])
    corpus = load(byte_tokenizer, path)
    rendered = [byte_tokenizer.decode(trajectory.token_ids) for trajectory in corpus.trajectories]
    assert rendered == ["<|user|>x<|assistant|><call f><a>1", '<|user|>x<|assistant|><call f><b>[{"c": 1}, {"d": 2}]']
    # tool_calls of both users; b of the first call, a, c, d of the second
    assert corpus.normalised == {"null_key_dropped": 6, "content_null_to_empty": 2}


def test_a_null_argument_in_json_is_an_argument(byte_tokenizer, write):
    call = {"function": {"name": "f", "arguments": {"a": None}}}
    row = {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [call]}]}
    assert texts(byte_tokenizer, write("a.jsonl", [row])) == ["<|user|>x<|assistant|><call f><a>null"]


def test_parquet_holds_messages_as_json_text_too(byte_tokenizer, tmp_path):
    path = parquet(tmp_path / "a", [{"messages": json.dumps(MESSAGES)}, {"messages": "[{"}])
    corpus = load(byte_tokenizer, path)
    assert byte_tokenizer.decode(corpus.trajectories[0].token_ids) == TEXT
    assert [(refusal.source_row, refusal.reason) for refusal in corpus.refusals] == [(1, "shape")]


def test_parquet_token_ids_and_texts_are_read(byte_tokenizer, tmp_path):
    rows = [{"input_ids": [64, 65, 0], "attention_mask": [1, 1, 0]}, {"input_ids": [66], "attention_mask": [1]}]
    assert texts(byte_tokenizer, parquet(tmp_path / "a", rows)) == ["ab", "c"]
    assert texts(byte_tokenizer, parquet(tmp_path / "b", [{"text": "ab"}, {"text": "c"}])) == ["ab", "c"]


@pytest.mark.parametrize("is_file", [True, False])
def test_arrow_files_and_streams_are_read(byte_tokenizer, tmp_path, is_file):
    table = pa.table({"text": [str(number) for number in range(150)], "other": [None] * 150})
    with pa.OSFile(str(tmp_path / "a"), "wb") as sink:
        writer = pa.ipc.new_file(sink, table.schema) if is_file else pa.ipc.new_stream(sink, table.schema)
        with writer:
            writer.write_table(table, max_chunksize=100)
    assert texts(byte_tokenizer, tmp_path / "a") == [str(number) for number in range(150)]


@pytest.mark.parametrize("container", ["parquet", "file", "stream"])
def test_a_column_that_is_there_twice_is_refused_by_name(byte_tokenizer, tmp_path, container):
    table = pa.Table.from_arrays([pa.array([[64]]), pa.array([[65, 66]])], names=["input_ids", "input_ids"])
    if container == "parquet":
        pq.write_table(table, tmp_path / "a")
    else:
        write = {"file": pa.ipc.new_file, "stream": pa.ipc.new_stream}[container]
        with pa.OSFile(str(tmp_path / "a"), "wb") as sink, write(sink, table.schema) as writer:
            writer.write_table(table)
    with pytest.raises(InputError, match="a: has the column 'input_ids' twice"):
        load(byte_tokenizer, tmp_path / "a")


def test_saved_datasets_are_read_split_by_split(byte_tokenizer, tmp_path):
    datasets = pytest.importorskip("datasets")
    one = datasets.Dataset.from_list([{"messages": MESSAGES}, chat("x")])
    two = datasets.Dataset.from_list([chat("y"), chat("z")])
    one.save_to_disk(tmp_path / "one")
    datasets.DatasetDict(train=one, test=two.select([1, 0])).save_to_disk(tmp_path / "both")
    assert texts(byte_tokenizer, tmp_path / "one") == [TEXT, "<|user|>x"]
    corpus = load(byte_tokenizer, tmp_path / "both")
    assert [trajectory.source_row for trajectory in corpus.trajectories] == [0, 1, 2, 3]
    assert byte_tokenizer.decode(corpus.trajectories[2].token_ids) == "<|user|>z"
    assert (corpus.files[0].name, corpus.files[0].format, corpus.files[0].rows) == ("both", "openai-chat", 4)
    arrow = next((tmp_path / "one").glob("*.arrow"))
    assert texts(byte_tokenizer, arrow) == [TEXT, "<|user|>x"]


def test_the_hash_of_a_directory_follows_its_content(byte_tokenizer, tmp_path):
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_list([{"text": "a"}]).save_to_disk(tmp_path / "one")
    before = load(byte_tokenizer, tmp_path / "one").files[0]
    shutil.copytree(tmp_path / "one", tmp_path / "copy")
    assert load(byte_tokenizer, tmp_path / "copy").files[0].sha256 == before.sha256
    (tmp_path / "one" / "note").write_text("x")
    after = load(byte_tokenizer, tmp_path / "one").files[0]
    assert after.sha256 != before.sha256
    assert after.num_bytes == before.num_bytes + 1


def test_without_the_package_a_saved_dataset_is_refused_in_a_sentence(byte_tokenizer, tmp_path, monkeypatch):
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "state.json").write_text("{}")
    real_import = builtins.__import__

    def no_datasets(name, *rest):
        if name == "datasets":
            raise ImportError(name)
        return real_import(name, *rest)

    monkeypatch.setattr(builtins, "__import__", no_datasets)
    with pytest.raises(InputError, match="reading a dataset needs the package `datasets`"):
        load(byte_tokenizer, tmp_path / "saved")


def test_a_named_format_overrides_the_content(byte_tokenizer, write):
    path = write("a.jsonl", [chat("x", input_ids=[64], text="prose")])
    assert texts(byte_tokenizer, path) == ["<|user|>x"]
    assert texts(byte_tokenizer, path, format="token-ids") == ["a"]
    assert texts(byte_tokenizer, path, format="text-rows") == ["prose"]
    assert texts(byte_tokenizer, path, format="text") == [path.read_text()]
    assert texts(byte_tokenizer, write("b.md", "# prose"), format="text") == ["# prose"]


def test_a_row_of_another_shape_is_refused_and_the_rest_is_read(byte_tokenizer, write):
    path = write("a.jsonl", [chat("x"), {"note": 1}, [1], {"messages": "x"}, chat("y")])
    corpus = load(byte_tokenizer, path)
    assert [trajectory.source_row for trajectory in corpus.trajectories] == [0, 4]
    assert [(refusal.source_row, refusal.reason) for refusal in corpus.refusals] == [(1, "shape"), (2, "shape"), (3, "shape")]
    assert corpus.refusals[1].detail == "the row is a list, not an object"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("steps.traj", {"trajectory": [{"action": "ls", "observation": "a.py"}]}),
        ("log.json", [{"request_params": {"prompt": "x"}}]),
        ("atif.json", {"schema_version": "ATIF-v2.0", "steps": [{"source": "user", "message": "x"}]}),
        ("list.yaml", "- user: x\n- system: y\n"),
        ("table.csv", "role,content\nuser,x\n"),
        ("compose.yaml", "user: x\n"),
        ("number.json", "[1, 2]"),
    ],
)
def test_a_file_of_no_known_format_is_refused_with_the_known_ones(byte_tokenizer, write, name, content):
    with pytest.raises(InputError) as caught:
        load(byte_tokenizer, write(name, content))
    message = str(caught.value)
    assert name in message
    assert all(format in message for format in FORMATS)
    assert "\n" not in message


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("a.jsonl", b"", "is empty"),
        ("a.jsonl", b"\n \r\n", "no rows"),
        ("a.jsonl", b"\xef\xbb\xbf", "no rows"),
        ("a.json", b"[]", "no rows"),
        ("a.json", b'{"simulations": []}', "no rows"),
        ("a.json", b'{"messages": [', r"a\.json:1: Expecting value"),
        ("a.json", b'[{"messages": []},\n{"messages": NaN}]', r"a\.json:2: NaN is not JSON"),
        ("a.jsonl", b'{"messages": []}\n{"messages"', r"a\.jsonl:2: Expecting ':'"),
        ("a.json", '{"messages": []}'.encode("utf-16"), "UTF-16"),
        ("a.jsonl.gz", b"\x1f\x8b\x08", "gzip-compressed"),
        ("a.txt", b"caf\xe9", r"a\.txt:1: byte 0xe9 is not UTF-8"),
        ("a.txt", b"x\ny\x00", r"a\.txt:2: NUL"),
        ("a.parquet", b"PAR1 and no more", "cannot be read as Parquet"),
        ("a.arrow", b"\xff\xff\xff\xff\x10\x00\x00\x00\x00", "cannot be read as Arrow"),
        ("a.arrow", b"ARROW1\x00\x00cut", "cannot be read as Arrow"),
    ],
)
def test_a_damaged_file_is_refused_in_one_line(byte_tokenizer, write, name, content, what):
    with pytest.raises(InputError, match=what) as caught:
        load(byte_tokenizer, write(name, content))
    assert "\n" not in str(caught.value)


def test_a_parquet_file_cut_short_or_without_rows_is_refused(byte_tokenizer, tmp_path, write):
    path = parquet(tmp_path / "a.parquet", [{"text": "x" * 1_000}])
    with pytest.raises(InputError, match="cannot be read as Parquet"):
        load(byte_tokenizer, write("cut.parquet", path.read_bytes()[:-30]))
    with pytest.raises(InputError, match="no rows"):
        load(byte_tokenizer, parquet(tmp_path / "b.parquet", [], text=pa.array([], pa.string())))
    with pytest.raises(InputError, match="none of the known formats"):
        load(byte_tokenizer, parquet(tmp_path / "c.parquet", [{"other": 1}]))


def test_a_damaged_saved_dataset_is_refused_in_one_line(byte_tokenizer, tmp_path):
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_list([{"text": "a"}]).save_to_disk(tmp_path / "one")
    (tmp_path / "one" / "state.json").write_text("{")
    with pytest.raises(InputError, match="cannot be read as a saved dataset") as caught:
        load(byte_tokenizer, tmp_path / "one")
    assert "\n" not in str(caught.value)


def test_paths_that_hold_no_corpus_are_refused(byte_tokenizer, tmp_path, write):
    with pytest.raises(InputError, match=r"absent\.jsonl: no such file"):
        load(byte_tokenizer, tmp_path / "absent.jsonl")
    with pytest.raises(InputError, match="a directory, but none that `datasets` saved"):
        load(byte_tokenizer, tmp_path)
    with pytest.raises(InputError, match="not a regular file"):
        load(byte_tokenizer, os.devnull)
    with pytest.raises(InputError, match="no corpus file given"):
        load(byte_tokenizer)
    path = write("a.jsonl", [chat("x")])
    with pytest.raises(InputError, match="given twice"):
        load(byte_tokenizer, path, path.parent / "." / path.name)
    with pytest.raises(InputError, match="'xml' is not known; one of text, tau2, art, "):
        load(byte_tokenizer, path, format="xml")
    with pytest.raises(InputError, match="no tau2 run file"):
        load(byte_tokenizer, path, format="tau2")


def test_all_paths_are_looked_at_before_any_is_tokenized(words, tmp_path, write):
    with pytest.raises(InputError, match="no such file"):
        load(words, write("a.jsonl", [chat("x")]), tmp_path / "absent")
    assert words.num_encoded == 0


def test_a_file_closed_to_us_is_a_storage_error(byte_tokenizer, write, monkeypatch):
    path = write("a.jsonl", [chat("x")])

    def closed(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.open", closed)
    with pytest.raises(StorageError, match=r"a\.jsonl: cannot read: Permission denied$"):
        load(byte_tokenizer, path)


def test_symlinks_are_followed(byte_tokenizer, write, tmp_path):
    (tmp_path / "link").symlink_to(write("a.jsonl", [chat("x")]))
    assert load(byte_tokenizer, tmp_path / "link").files[0].name == "link"
