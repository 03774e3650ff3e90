"""Whatever a user can get wrong: one line on stderr, the exit code of its kind, nothing on stdout, no traceback."""

import json
import os
import shlex
import shutil
import subprocess
import sys

import pytest

from routing.store.manifest import decode, encode
from routing.store.run import MANIFEST_NAME
from tests.conftest import REPOSITORY
from tests.policies import tiny_config, write_tiny_policy
from tests.stores import write_tiny_run


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return write_tiny_policy(tmp_path_factory.mktemp("cli-policies") / "tiny")


@pytest.fixture
def run_folder(tmp_path):
    """Eight trajectories of 100 tokens, one layer of 8 experts, top-1: 100 rows on expert 0, or spread over two."""
    loads = {(segment, 0): [50 + segment, 50 - segment, 0, 0, 0, 0, 0, 0] for segment in range(8)}
    write_tiny_run(tmp_path / "run", paths=[[s] for s in range(8)], segment_tokens=[100] * 8, loads=loads, num_experts=8, top_k=1)
    return tmp_path / "run"


def _refused(answer, exit_code, *words):
    code, out, err = answer
    said = [line for line in err.splitlines() if line.startswith("routing: ")]
    assert code == exit_code, err
    assert len(said) == 1
    assert "Traceback" not in err
    assert all(word in said[0] for word in words), said[0]
    return out


@pytest.mark.fault(
    "an EP that is 0, 1, negative, a float, no number, above the experts or no divisor of them",
    how="--ep on the command line",
    tries=10,
    outcome="exit 2 with the valid sizes; EP 1 is exactly 1.0",
)
@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (["--ep", "3"], "valid sizes: 2, 4, 8"),
        (["--ep", "1"], "exactly 1.0"),
        (["--ep", "0"], "valid sizes: 2, 4, 8"),
        (["--ep", "-2"], "valid sizes: 2, 4, 8"),
        (["--ep", "16"], "valid sizes: 2, 4, 8"),
        (["--ep", "2.0"], "whole number"),
        (["--ep=--2"], "whole number"),
        (["--ep", "2,2"], "twice"),
        (["--ep", ""], "whole number"),
        (["--ep", "9" * 400], "whole number"),
    ],
)
def test_an_ep_that_can_not_be_is_exit_2(invoke, run_folder, flags, word):
    _refused(invoke("imbalance", run_folder, *flags), 2, word)


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (["--batch-tokens", "99999999999G"], "above"),
        (["--batch-tokens", "0"], "whole positive"),
        (["--batch-tokens", "-5"], "--batch-tokens"),
        (["--batch-tokens", "1.5"], "whole positive"),
        (["--batch-tokens", "2k,2000"], "twice"),
        (["--batch-tokens", "many"], "no size"),
        (["--batch-tokens", "200k"], "no full batch"),
        (["--view", "flat"], "--view"),
        (["--order", "random"], "--order"),
        (["--order", "-1"], "--order"),
        (["--by", "rank"], "--by"),
        (["--nonsense"], "--nonsense"),
    ],
)
def test_a_bad_flag_of_imbalance_is_exit_2(invoke, run_folder, flags, word):
    _refused(invoke("imbalance", run_folder, *flags), 2, word)


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (["--segment-tokens", "0"], "--segment-tokens"),
        (["--max-tokens", "none"], "--max-tokens"),
        (["--max-tokens", "5"], "--max-tokens"),
        (["--device", "abacus"], "--device"),
        (["--device", "hpu"], "--device"),
        (["--dtype", "int3"], "--dtype"),
        (["--label", ""], "--label"),
        (["--label", "two\nlines"], "--label"),
        (["--label", "\udcff"], "--label"),
        (["--label", "x" * 101], "--label"),
        (["--format", "papyrus"], "papyrus"),
        (["--tokenizer", "/nowhere"], "--tokenizer"),
        (["--on-bad-line", "guess"], "on-bad-line"),
    ],
)
def test_a_bad_flag_of_measure_is_exit_2(invoke, policy, tmp_path, flags, word):
    (tmp_path / "corpus.jsonl").write_text('{"text": "hello there"}\n')
    _refused(invoke("measure", policy, tmp_path / "corpus.jsonl", "--out", tmp_path / "run", *flags), 2, word)
    assert not (tmp_path / "run").exists()


@pytest.mark.fault(
    "a pickle checkpoint; a repository that needs remote code",
    how="folders with pytorch_model.bin alone, and with auto_map",
    tries=2,
    outcome="refused, exit 2, nothing loaded",
)
def test_a_policy_that_is_none_is_exit_2(invoke, tmp_path, policy):
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"text": "hello there"}\n')
    (tmp_path / "empty").mkdir()
    pickled = tmp_path / "pickled"
    pickled.mkdir()
    (pickled / "config.json").write_text((policy / "config.json").read_text())
    (pickled / "pytorch_model.bin").write_bytes(b"\x80")
    remote = tmp_path / "remote"
    remote.mkdir()
    (remote / "model.safetensors").write_bytes(b"")
    (remote / "config.json").write_text(json.dumps({"model_type": "x", "auto_map": {"AutoModel": "code.Model"}}))
    for folder, word in (("missing", "no folder"), ("empty", "no config.json"), (pickled, "pickle"), (remote, "auto_map")):
        target = tmp_path / folder
        _refused(invoke("measure", target, corpus, "--out", tmp_path / "run"), 2, word)


def test_a_dense_model_is_exit_2(invoke, tmp_path):
    from transformers import Qwen3Config

    config = Qwen3Config(
        vocab_size=256,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=16,
    )
    dense = write_tiny_policy(tmp_path / "dense", config=config)
    (tmp_path / "corpus.jsonl").write_text('{"text": "hello there"}\n')
    _refused(invoke("measure", dense, tmp_path / "corpus.jsonl", "--out", tmp_path / "run"), 2, "not a Mixture-of-Experts")


def test_a_checkpoint_that_lacks_a_weight_is_exit_2(invoke, tmp_path):
    from safetensors.torch import load_file, save_file

    folder = write_tiny_policy(tmp_path / "holed", config=tiny_config(num_hidden_layers=2))
    weights = load_file(folder / "model.safetensors")
    weights.pop(next(name for name in weights if "mlp.gate.weight" in name))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "corpus.jsonl").write_text('{"text": "hello there"}\n')
    _refused(invoke("measure", folder, tmp_path / "corpus.jsonl", "--out", tmp_path / "run"), 2, "1 weights missing")


def test_a_run_that_is_none_is_exit_2(invoke, tmp_path):
    for verb in (["imbalance"], ["show"], ["fit", "--out", tmp_path / "a.yaml"]):
        _refused(invoke(verb[0], tmp_path / "missing", *verb[1:]), 2, "no run here")


def test_a_run_named_twice_is_exit_2(invoke, run_folder, tmp_path):
    _refused(invoke("fit", run_folder, run_folder, "--out", tmp_path / "a.yaml", "--batch-tokens", "100"), 2, "twice")


@pytest.mark.parametrize("name", ["loads-00000.parquet", "segments-00000.parquet", "paths-00000.parquet", MANIFEST_NAME])
@pytest.mark.parametrize("damage", ["cut", "flip", "empty"])
def test_a_damaged_file_of_a_run_is_exit_3_before_any_number(invoke, run_folder, name, damage, tmp_path):
    path = run_folder / name
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 3] ^= 4
    path.write_bytes({"cut": bytes(raw[:-9]), "flip": bytes(raw), "empty": b""}[damage])
    for verb in (["imbalance", "--batch-tokens", "100"], ["show"], ["fit", "--out", tmp_path / "a.yaml"]):
        out = _refused(invoke(verb[0], run_folder, *verb[1:]), 3, name)
        assert out == ""
    assert not (tmp_path / "a.yaml").exists()


def test_a_failed_check_is_exit_1(invoke, tmp_path):
    loads = {(0, 0): [60, 40], (1, 0): [100, 99]}
    write_tiny_run(tmp_path / "run", paths=[[0], [1]], segment_tokens=[100, 100], loads=loads, num_experts=2, top_k=1)
    _refused(invoke("imbalance", tmp_path / "run", "--batch-tokens", "100"), 1, "rows_conserved")
    _refused(invoke("show", tmp_path / "run"), 1, "rows_conserved")


def test_an_unfinished_run_has_no_imbalance_yet(invoke, tmp_path):
    write_tiny_run(
        tmp_path / "run", paths=[[0]], segment_tokens=[10], loads={(0, 0): [6, 4]}, num_experts=2, top_k=1, is_finished=False
    )
    _refused(invoke("imbalance", tmp_path / "run"), 2, "unfinished")
    code, out, _ = invoke("show", tmp_path / "run")
    assert code == 0
    assert "measuring" in out


def test_another_hosts_lock_is_exit_4(invoke, policy, tmp_path):
    (tmp_path / "corpus.jsonl").write_text('{"text": "hello there"}\n')
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "lock").write_text('{"host": "elsewhere", "pid": 3}')
    _refused(invoke("measure", policy, tmp_path / "corpus.jsonl", "--out", tmp_path / "run"), 4, "host elsewhere")


def test_an_out_that_cannot_be_written_is_exit_4(invoke, run_folder, tmp_path):
    (tmp_path / "file").write_text("")
    _refused(invoke("fit", run_folder, "--batch-tokens", "100", "--out", tmp_path / "file" / "a.yaml"), 4, "a.yaml")


def test_json_on_stdout_is_one_object_and_warnings_stay_on_stderr(invoke, run_folder):
    code, out, err = invoke("imbalance", run_folder, "--batch-tokens", "400,300", "--ep", "2", "--json")
    rows = json.loads(out)["rows"]
    assert code == 0
    assert [(row["batch_tokens"], row["num_batches"]) for row in rows] == [(400, 2), (300, 2)]
    assert "partial_batch_dropped" in err
    # Segments 0 to 3 hold 200 + 6 rows on expert 0 of 400; with all experts of rank 0 busy the imbalance is 2 x 400 / 400.
    assert rows[0]["worst_imbalance"] == 2.0


def test_one_full_batch_is_a_value_with_a_warning(invoke, run_folder):
    code, out, err = invoke("imbalance", run_folder, "--batch-tokens", "500", "--ep", "2", "--json")
    (row,) = json.loads(out)["rows"]
    assert (code, row["num_batches"], row["worst_imbalance"]) == (0, 1, 2.0)
    assert "one_batch" in err


def test_a_size_without_a_full_batch_is_null_beside_one_that_has(invoke, run_folder):
    code, out, err = invoke("imbalance", run_folder, "--batch-tokens", "200k,400", "--ep", "2", "--json")
    large, small = json.loads(out)["rows"]
    assert code == 0
    assert (large["num_batches"], large["worst_imbalance"], large["worst_layer"]) == (0, None, None)
    assert small["num_batches"] == 2
    assert "no_full_batch" in err


def test_default_sizes_that_do_not_divide_are_named(invoke, tmp_path):
    loads = {(0, 0): [5, 3, 1, 1, 0, 0]}
    write_tiny_run(tmp_path / "run", paths=[[0]], segment_tokens=[10], loads=loads, num_experts=6, top_k=1)
    code, out, err = invoke("imbalance", tmp_path / "run", "--batch-tokens", "10", "--json")
    assert code == 0
    assert [row["ep"] for row in json.loads(out)["rows"]] == [2]
    assert "EP 4, 8 left out" in err


def test_a_manifest_survives_its_own_encoding(run_folder):
    raw = (run_folder / MANIFEST_NAME).read_bytes()
    assert encode(decode(raw, where="here")) == raw


def test_a_fit_replaces_a_table_and_nothing_else(invoke, run_folder, tmp_path):
    manifest = (run_folder / MANIFEST_NAME).read_bytes()
    _refused(invoke("fit", run_folder, "--batch-tokens", "100", "--out", run_folder / MANIFEST_NAME), 2, "something else than")
    assert (run_folder / MANIFEST_NAME).read_bytes() == manifest
    table = tmp_path / "a.yaml"
    assert [invoke("fit", run_folder, "--batch-tokens", "100", "--out", table)[0] for _ in range(2)] == [0, 0]
    kept = table.read_bytes()
    _refused(invoke("report", run_folder, "--allowances", table, "--out", table), 2, "something else than a page")
    assert table.read_bytes() == kept


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("text", ["[]", "null", "5", "{"])
def test_tokenizer_files_of_another_kind_are_exit_2(invoke, policy, tmp_path, name, text):
    folder = shutil.copytree(policy, tmp_path / "policy")
    (folder / name).write_text(text)
    (tmp_path / "corpus.jsonl").write_text('{"text": "hello there"}\n')
    _refused(invoke("measure", folder, tmp_path / "corpus.jsonl", "--out", tmp_path / "run"), 2, "no tokenizer")


@pytest.mark.parametrize("key", ["head_dim", "num_attention_heads", "num_key_value_heads"])
def test_a_configuration_of_zeros_is_exit_2(invoke, policy, tmp_path, key):
    folder = shutil.copytree(policy, tmp_path / "policy")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, key: 0}))
    (tmp_path / "corpus.jsonl").write_text('{"text": "hello there"}\n')
    _refused(invoke("measure", folder, tmp_path / "corpus.jsonl", "--out", tmp_path / "run"), 2, str(folder))


@pytest.mark.parametrize(("name", "neighbour"), [("g[1]", "g1"), ("b*", "bx"), ("c?", "cx"), ("[!a]", "b"), ("**", "d")])
def test_a_run_below_a_folder_that_reads_as_a_pattern_is_read_itself(invoke, tmp_path, name, neighbour):
    """Beside it stands a run that the pattern would find: all ranks even, where its own has all rows on one."""
    for folder, loads in ((name, [100, 0, 0, 0]), (neighbour, [25, 25, 25, 25])):
        rows = {(segment, 0): loads for segment in range(2)}
        write_tiny_run(tmp_path / folder / "run", paths=[[0], [1]], segment_tokens=[100] * 2, loads=rows, num_experts=4, top_k=1)
    code, out, err = invoke("imbalance", tmp_path / name / "run", "--ep", "4", "--batch-tokens", "100", "--json")
    assert (code, json.loads(out)["rows"][0]["worst_imbalance"]) == (0, 4.0), err


@pytest.mark.parametrize("kind", ["absent", "folder", "empty vocabulary"])
def test_a_tokenizer_without_a_vocabulary_is_exit_2(invoke, policy, tmp_path, kind):
    folder = shutil.copytree(policy, tmp_path / "policy")
    file = folder / "tokenizer.json"
    if kind == "empty vocabulary":
        body = json.loads(file.read_text())
        body["model"]["vocab"], body["added_tokens"] = {}, []
        file.write_text(json.dumps(body))
    else:
        file.unlink()
    if kind == "folder":
        file.mkdir()
    (tmp_path / "corpus.jsonl").write_text('{"text": "hello there"}\n')
    _refused(invoke("measure", folder, tmp_path / "corpus.jsonl", "--out", tmp_path / "run"), 2, "vocabulary")


def test_a_report_replaces_no_other_page(invoke, run_folder, tmp_path):
    table, corpus = tmp_path / "a.yaml", tmp_path / "mine.jsonl"
    assert invoke("fit", run_folder, "--batch-tokens", "100", "--out", table)[0] == 0
    corpus.write_text('{"text": "see <html> tags"}\n')
    _refused(invoke("report", run_folder, "--allowances", table, "--out", corpus), 2, "something else than a page")
    assert corpus.read_text() == '{"text": "see <html> tags"}\n'
    page = tmp_path / "page.html"
    assert [invoke("report", run_folder, "--allowances", table, "--out", page)[0] for _ in range(2)] == [0, 0]
    other = tmp_path / "other.yaml"
    other.write_text("x: 1\nentries:\n- mine\ncontent_hash: 5\n")
    _refused(invoke("fit", run_folder, "--batch-tokens", "100", "--out", other), 2)
    assert other.read_text().startswith("x: 1")


def test_parts_without_a_manifest_are_somebody_s(invoke, policy, tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    (out / "loads-00000.parquet").write_text("precious")
    (tmp_path / "corpus.jsonl").write_text('{"text": "hello there"}\n')
    _refused(invoke("measure", policy, tmp_path / "corpus.jsonl", "--out", out), 2, "loads-00000.parquet")
    assert (out / "loads-00000.parquet").read_text() == "precious"


@pytest.mark.parametrize("row", ['{"input_ids": [' + "9" * 400 + "]}", '{"text": "a", "\\u0074ext": "b"} 1-', '{"text": "a"} 1-'])
def test_odd_numbers_in_a_row_are_no_traceback(invoke, policy, tmp_path, row):
    (tmp_path / "corpus.jsonl").write_text('{"text": "ok"}\n' + row + "\n")
    command = [
        "measure",
        policy,
        tmp_path / "corpus.jsonl",
        "--out",
        tmp_path / "run",
        "--plan",
        "--json",
        "--on-bad-line",
        "skip",
    ]
    code, out, err = invoke(*command)
    assert (code, json.loads(out)["trajectories"]) == (0, 1), err


def test_a_run_below_a_tilde_is_where_it_was_asked_for(policy, tmp_path):
    (tmp_path / "corpus.jsonl").write_text('{"text": "hello there"}\n')
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "HOME": str(tmp_path / "home")}
    for arguments in (["measure", str(policy), "corpus.jsonl", "--out", "~/run"], ["show", "~/run"]):
        command = [sys.executable, "-m", "routing", *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "~" / "run" / MANIFEST_NAME).is_file()


def test_paths_that_are_no_text_are_written_and_told(run_folder, tmp_path):
    table, page = (tmp_path / os.fsdecode(b"\xff" + name) for name in (b".yaml", b".html"))
    for arguments in (
        ["fit", run_folder, "--batch-tokens", "100", "--out", table],
        ["check", table, run_folder],
        ["report", run_folder, "--allowances", table, "--out", page],
    ):
        command = [sys.executable, "-m", "routing", *map(str, arguments)]
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, check=False)
        assert (done.returncode, b"Traceback" in done.stderr) == (0, False), done.stderr
    assert b"<html" in page.read_bytes()
    missing = tmp_path / os.fsdecode(b"\xfe.yaml")
    done = subprocess.run(
        [sys.executable, "-m", "routing", "estimate", str(missing)], cwd=REPOSITORY, capture_output=True, check=False
    )
    assert (done.returncode, done.stderr.count(b"\n"), b"Traceback" in done.stderr) == (2, 1, False)


@pytest.mark.parametrize("value", [1.5, [], [3], ["\udcff"], [""], {"a": 1}, True, "", None])
def test_architectures_of_another_kind_name_no_class(invoke, policy, tmp_path, value):
    folder = shutil.copytree(policy, tmp_path / "policy")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": value}))
    (tmp_path / "corpus.jsonl").write_text('{"text": "hello there"}\n')
    code, _, err = invoke("measure", folder, tmp_path / "corpus.jsonl", "--out", tmp_path / "run")
    assert code == 0, err
    recorded = json.loads((tmp_path / "run" / MANIFEST_NAME).read_text())["policy"]["architecture"]
    assert recorded == "qwen3_5_moe_text"  # the model type, where no class is named


@pytest.mark.parametrize("kept_bytes", [0, 100, -100])
def test_cut_weights_are_exit_2_and_leave_no_run(invoke, policy, tmp_path, kept_bytes):
    folder = shutil.copytree(policy, tmp_path / "policy")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:kept_bytes])
    (tmp_path / "corpus.jsonl").write_text('{"text": "hello there"}\n')
    _refused(invoke("measure", folder, tmp_path / "corpus.jsonl", "--out", tmp_path / "run"), 2, "weights not loaded")
    assert not (tmp_path / "run" / MANIFEST_NAME).exists()


def test_a_pipe_for_weights_is_exit_2_and_not_waited_for(invoke, policy, tmp_path):
    folder = shutil.copytree(policy, tmp_path / "policy")
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "model.safetensors")
    (tmp_path / "corpus.jsonl").write_text('{"text": "hello there"}\n')
    _refused(invoke("measure", folder, tmp_path / "corpus.jsonl", "--out", tmp_path / "run"), 2, "model.safetensors: not a file")


def test_a_validator_s_reason_is_told(invoke, policy, tmp_path):
    folder = shutil.copytree(policy, tmp_path / "policy")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "hidden_size": "wide"}))
    (tmp_path / "corpus.jsonl").write_text('{"text": "hello there"}\n')
    _refused(invoke("measure", folder, tmp_path / "corpus.jsonl", "--out", tmp_path / "run"), 2, "hidden_size", "int")


def test_ids_beyond_the_embedding_name_their_row(invoke, policy, tmp_path):
    folder = shutil.copytree(policy, tmp_path / "policy")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": 100}))
    (tmp_path / "corpus.jsonl").write_text('{"input_ids": [1, 2]}\n{"input_ids": [1, 100]}\n')
    answer = invoke("measure", folder, tmp_path / "corpus.jsonl", "--out", tmp_path / "run")
    _refused(answer, 2, "corpus.jsonl: row 1: token id 100", "vocabulary of 100")


def test_a_closed_stdout_leaves_the_exit_code(run_folder):
    command = "exec 1>&-; exec " + shlex.join([sys.executable, "-m", "routing", "show", str(run_folder)])
    done = subprocess.run(["sh", "-c", command], cwd=REPOSITORY, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
