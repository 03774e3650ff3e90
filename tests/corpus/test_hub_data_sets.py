"""A data set of the hub is read by its id and revision, from the hub's cache; nothing of it is run."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chat_rows import chat

from routing.core.errors import InputError, StorageError
from routing.corpus.hub import located
from tests.hub import ask, serving

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CALLED = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]}


@pytest.fixture
def snapshot(tmp_path, monkeypatch):
    """The folder of `invented/shop` at COMMIT, tagged v1, in a cache that the hub's client would have made."""
    repository = tmp_path / "hub" / "datasets--invented--shop"
    folder = repository / "snapshots" / COMMIT
    (folder / "data").mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "v1").write_text(COMMIT)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    return folder


def test_the_splits_of_a_data_set_follow_each_other(read, snapshot):
    pytest.importorskip("datasets")
    pq.write_table(pa.Table.from_pylist([chat("x"), chat("y")]), snapshot / "data" / "train-00000-of-00001.parquet")
    pq.write_table(pa.Table.from_pylist([chat("z")]), snapshot / "data" / "test-00000-of-00001.parquet")
    (snapshot / "shop.py").write_text("raise SystemExit('a script was run')")
    texts, corpus = read("invented/shop@v1")
    assert texts == ["<|user|>x", "<|user|>y", "<|user|>z"]
    (file,) = corpus.files
    assert (file.name, file.path, file.format, file.rows) == ("shop@v1", "invented/shop@v1", "openai-chat", 3)
    assert read(f"invented/shop@{COMMIT}")[1].files[0].sha256 == file.sha256


def test_messages_that_differ_in_kind_are_messages(read, snapshot):
    pytest.importorskip("datasets")
    rows = [
        {"messages": [{"role": "user", "content": "x"}, CALLED]},
        chat("y"),
        {"messages": [{"role": "user", "content": ["z"]}]},
    ]
    (snapshot / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert read("invented/shop@v1")[0] == ["<|user|>x<|assistant|><call f><a>1", "<|user|>y", "<|user|>z"]


def test_a_file_of_a_data_set_is_read_as_a_file(read, snapshot):
    groups = [{"trajectories": [{"messages_and_choices": [{"role": "user", "content": text}]} for text in "ab"]}]
    (snapshot / "data" / "groups.json").write_text(json.dumps(groups))
    texts, corpus = read("invented/shop@v1/data/groups.json")
    assert texts == ["<|user|>a", "<|user|>b"]
    assert (corpus.files[0].format, corpus.files[0].name) == ("art", "groups.json")


@pytest.mark.parametrize("given", ["invented/shop@v2", "invented/none@v1", "invented/shop@v1/none.jsonl"])
def test_what_the_hub_does_not_hold_is_refused_in_one_line(read, snapshot, given):
    with pytest.raises(InputError, match=f"^{given}: no such file, and not fetched from the hub: ") as caught:
        read(given)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "given", ["invented/shop", "invented/shop@", "../shop@v1", "invented/shop@../v1", "invented/shop@v1/../../../secret"]
)
def test_an_id_without_a_revision_is_a_path(read, snapshot, given):
    with pytest.raises(InputError, match=r"no such file$"):
        read(given)


def test_a_path_comes_before_an_id(read, write):
    write("invented/shop@v1", json.dumps(chat("local")))
    assert read(write("invented/shop@v1", json.dumps(chat("local"))))[0] == ["<|user|>local"]


def test_a_data_set_that_cannot_be_loaded_is_refused_in_one_line(read, snapshot):
    pytest.importorskip("datasets")
    (snapshot / "notes.bin").write_bytes(b"\x00")
    with pytest.raises(InputError, match=r"cannot be read as a dataset \(name one of its files") as caught:
        read("invented/shop@v1")
    assert "\n" not in str(caught.value)


@pytest.fixture
def online(tmp_path, monkeypatch):
    with serving() as hub:
        ask(hub.url, monkeypatch, cache=tmp_path / "cache")
        yield hub


def _push(hub, folder, text):
    folder.mkdir()
    (folder / "rows.jsonl").write_text(json.dumps(chat(text)))
    return hub.push("invented/shop", folder)


@pytest.mark.parametrize("file", ["", "/rows.jsonl"])
def test_a_branch_is_one_commit_and_that_commit_is_read(online, tmp_path, file):
    first = _push(online, tmp_path / "first", "x")
    location = located(f"invented/shop@main{file}")
    assert f"snapshots/{first}" in str(location)
    second = _push(online, tmp_path / "second", "y")
    assert f"snapshots/{second}" in str(located(f"invented/shop@main{file}"))
    assert [one for one in online.requests if "/main" in one] == ["/api/datasets/invented/shop/revision/main"] * 2


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("invented/none@main", "invented/none: not on the hub, or private; check the name"),
        ("invented/shop@v9", "invented/shop: has no revision 'v9'"),
        ("invented/shop@main/none.jsonl", "invented/shop: has no such file in commit"),
    ],
)
def test_what_is_not_on_the_hub_is_the_users_input(online, tmp_path, given, said):
    _push(online, tmp_path / "first", "x")
    with pytest.raises(InputError, match=f"^{given}: no such file, and not fetched from the hub: {said}") as told:
        located(given)
    assert online.url not in str(told.value)


@pytest.mark.fault(
    "the hub is unreachable when a corpus is asked for",
    how="an endpoint on localhost where nothing listens, with a password in its address",
    tries=2,
    outcome="exit 4, one line that does not repeat the address",
)
@pytest.mark.parametrize("file", ["", "/rows.jsonl"])
def test_a_hub_that_is_unreachable_is_input_output(tmp_path, monkeypatch, file):
    ask("http://user:secret@127.0.0.1:9", monkeypatch, cache=tmp_path)
    with pytest.raises(StorageError, match="the hub can't be reached") as told:
        located(f"invented/shop@main{file}")
    assert "secret" not in str(told.value)
