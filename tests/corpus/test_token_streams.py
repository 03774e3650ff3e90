"""Ids that were made elsewhere are counted once each: no padding, no second sequence in a row, nothing outside the vocabulary."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chat_rows import refused

from routing.core.errors import InputError


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, ">i4", np.uint64])
def test_an_array_of_ids_is_a_sequence_and_its_rows_are_sequences(read, tmp_path, dtype):
    np.save(tmp_path / "stream.npy", np.array([64, 65, 66], dtype))
    np.save(tmp_path / "rows.npy", np.asfortranarray(np.array([[64, 65], [66, 67]], dtype)))
    texts, corpus = read(tmp_path / "stream.npy", tmp_path / "rows.npy")
    assert texts == ["abc", "ab", "cd"]
    assert [file.format for file in corpus.files] == ["token-ids"] * 2


@pytest.mark.parametrize(
    ("array", "what"),
    [
        (np.array([0.5]), "float64 of shape"),
        (np.zeros((1, 2, 3), np.int32), r"shape \(1, 2, 3\)"),
        (np.array(["a"]), "of shape"),
        (np.array([{"a": 1}], dtype=object), "cannot be read as a .npy file"),
        (np.zeros((2, 0), np.int32), "nothing is kept; refused: empty 2"),
        (np.array([64, -1]), "nothing is kept; refused: token_ids 1"),
        (np.array([2**63], np.uint64), "nothing is kept; refused: token_ids 1"),
    ],
)
def test_an_array_of_anything_else_is_refused(read, tmp_path, array, what):
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(InputError, match=what):
        read(tmp_path / "a.npy")


@pytest.mark.fault(
    "a .npy file of token ids that was cut short",
    how="the file is cut in its magic bytes, its header and its values",
    tries=3,
    outcome="refused in one line that names the file",
)
def test_an_array_cut_short_is_refused(read, tmp_path):
    np.save(tmp_path / "a.npy", np.arange(100))
    raw = (tmp_path / "a.npy").read_bytes()
    for cut in (7, 60, len(raw) - 5):
        (tmp_path / "a.npy").write_bytes(raw[:cut])
        with pytest.raises(InputError, match=r"cannot be read as a \.npy file"):
            read(tmp_path / "a.npy")


@pytest.mark.parametrize("container", ["parquet", "arrow"])
def test_columns_of_ids_are_read_without_their_padding_and_labels(read, tmp_path, container):
    padded = {
        "input_ids": [64, 65, 66, 66],
        "attention_mask": [1, 1, 0, 0],
        "position_ids": [0, 1, 0, 0],
        "labels": [-100, 65, 9, 9],
    }
    split = {"prompt_token_ids": [64], "completion_token_ids": [66, 67]}
    for name, row in (("padded", padded), ("split", split)):
        table = pa.Table.from_pylist([row])
        if container == "parquet":
            pq.write_table(table, tmp_path / name)
        else:
            with pa.OSFile(str(tmp_path / name), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as stream:
                stream.write_table(table)
    texts, corpus = read(tmp_path / "padded", tmp_path / "split")
    assert (texts, corpus.num_tokens) == (["ab", "acd"], 5)


def test_a_prompt_and_its_completion_are_one_sequence(read, write):
    rows = [{"prompt_token_ids": [64], "completion_token_ids": [65, 66]}, {"prompt_token_ids": [64]}]
    texts, corpus = read(write("a.jsonl", rows))
    assert texts == ["abc"]
    assert corpus.refusals[0].detail == "'completion_token_ids' is absent or null, not a list"


def test_beside_a_completion_input_ids_are_the_prompt(read, write):
    both = {"input_ids": [64], "completion_token_ids": [65, 66]}
    texts, corpus = read(write("a.jsonl", [both, {**both, "prompt_token_ids": [67]}, {**both, "completion_token_ids": 5}]))
    assert texts == ["abc"]
    assert [refusal.detail for refusal in corpus.refusals] == [
        "'input_ids' beside 'prompt_token_ids' and 'completion_token_ids': leave out what is not meant",
        "'completion_token_ids' is a number, not a list",
    ]


@pytest.mark.parametrize("prompt", ["prompt_token_ids", "input_ids"])
@pytest.mark.parametrize(
    ("beside", "is_kept"),
    [
        ({"attention_mask": [0, 0, 1, 1, 0, 0]}, True),
        ({"attention_mask": [0, 0, 1]}, False),
        ({"attention_mask": [0, 0, 1, 1, 0, 2]}, False),
        ({"attention_mask": [0, 0, 1, 1, 0, 0], "position_ids": [0, 0, 0, 1, 0, 0]}, True),
        ({"attention_mask": [0, 0, 1, 1, 0, 0], "position_ids": [0, 0, 0, 0, 0, 0]}, False),
        ({"position_ids": [0, 1, 2, 0, 1, 2]}, False),
    ],
)
def test_mask_and_positions_are_those_of_a_prompt_with_its_completion(read, write, prompt, beside, is_kept):
    row = {prompt: [256, 256, 64], "completion_token_ids": [65, 256, 256], **beside}
    texts, corpus = read(write("a.jsonl", [{"input_ids": [67]}, row]))
    assert texts == (["d", "ab"] if is_kept else ["d"])
    assert refused(corpus) == ([] if is_kept else [(1, "token_ids")])


@pytest.mark.parametrize(
    ("positions", "is_kept"),
    [
        ([0, 1, 2, 3], True),
        ([1, 1, 2, 3], True),
        ([0, 0, 1, 2], True),
        ([9, 0, 1, 0], False),
        ([0, 0, 2, 3], False),
        ([0, 1], False),
        (["a"], False),
    ],
)
def test_positions_that_restart_are_several_sequences_and_refused(read, write, positions, is_kept):
    padded = {"input_ids": [256, 64, 65, 66], "attention_mask": [0, 1, 1, 1], "labels": [-100, -100, 65, 66]}
    _, corpus = read(write("a.jsonl", [{"input_ids": [67]}, {**padded, "position_ids": positions}]))
    assert refused(corpus) == ([] if is_kept else [(1, "token_ids")])
    assert corpus.num_tokens == (4 if is_kept else 1)  # three of four: the padding is no token
