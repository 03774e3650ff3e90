"""The GPU script, tried out on the CPU with tiny shapes, in a process without the packages that it may not need."""

import csv
import importlib.util
import os
import subprocess
import sys

import pytest
import torch

from pipelines.flex_stages import kept_bytes, padded
from pipelines.gpu_peak import FIELDS, gdn_kernels
from pipelines.trace.rows import write_rows
from routing.core.wave import Stage
from routing.estimate.executor import executor_rates, retained_bytes
from routing.store.model_shapes import find_shape
from tests.conftest import REPOSITORY
from tests.estimate.waves import MODEL

BLOCKED = ("duckdb", "polars", "pydantic", "ruamel", "ruamel.yaml", "datasets", "altair", "vl_convert", "hypothesis")
LOCAL = Stage(kind="local", q=300, k=300, q_len=320, k_len=320)
REMOTE = Stage(kind="remote", q=300, k=100, q_len=320, k_len=120)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The rows of a whole run on the CPU."""
    out = tmp_path_factory.mktemp("measured") / "cpu.csv"
    code = f"import sys; sys.modules.update(dict.fromkeys({BLOCKED!r})); from pipelines.gpu_peak import main; main(sys.argv[1:])"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", code, "--device", "cpu", "--out", str(out)]
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert os.listdir(out.parent) == ["cpu.csv"]
    with out.open(newline="") as file:
        return list(csv.DictReader(file))


def test_steps_take_what_their_trace_says(written):
    steps = [row for row in written if row["what"] == "step"]
    assert [(row["case"], row["expert_rank"]) for row in steps] == [("tiny attention", "0"), ("tiny hybrid", "8")]
    for row in steps:
        assert tuple(row) == FIELDS
        assert (row["device"], row["measured_by"]) == ("cpu", "allocator events")
        assert int(row["measured_bytes"]) == pytest.approx(int(row["traced_bytes"]), rel=0.0015)
        assert int(row["priced_bytes"]) >= int(row["traced_bytes"])


def test_kernels_are_named(written):
    absent = next((name for name in ("fla", "causal_conv1d") if importlib.util.find_spec(name) is None), None)
    if absent is not None:
        named = {row["gdn_kernels"] for row in written if row["case"] == "tiny hybrid"}
        assert named == {f"fallback ({absent} is not there)"}
    assert {row["gdn_kernels"] for row in written if row["case"] != "tiny hybrid"} == {"none"}


@pytest.mark.parametrize(
    ("there", "named"),
    [
        ((), "fallback (fla is not there)"),
        (("fla",), "fallback (causal_conv1d is not there)"),
        (("causal_conv1d",), "fallback (fla is not there)"),
        (("fla", "causal_conv1d"), "flash-linear-attention 9.1 fla-core 9.1, causal-conv1d 9.1"),
    ],
)
def test_both_kernels_are_needed(monkeypatch, there, named):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if name in there else None)
    monkeypatch.setattr("pipelines.gpu_peak.version", lambda _package: "9.1")
    assert gdn_kernels() == named


def test_flex_rows_stand_beside_the_retention(written):
    flex = {row["case"]: row for row in written if row["what"] == "flex"}
    assert set(flex) == {"one local stage", "unaligned, one remote", "aligned, one remote"}
    assert all(abs(float(row["over_fraction"])) < 0.005 for row in flex.values())


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")
@pytest.mark.parametrize("stages", [(LOCAL,), (LOCAL, REMOTE)], ids=["local", "local and remote"])
def test_flex_attention_saves_what_the_executor_is_said_to_retain(stages):
    shape = find_shape(MODEL)
    assert [padded(stage) for stage in stages] == [(384, 320), (384, 128)][: len(stages)]
    assert kept_bytes(shape, stages, torch.device("cpu")) == retained_bytes(stages, executor_rates(shape))


def test_a_failed_write_leaves_what_was_there(tmp_path):
    out = tmp_path / "peaks.csv"
    out.write_text("before")
    with pytest.raises(ValueError, match="fields not in fieldnames"):
        write_rows(out, FIELDS, [{"no such column": 1}])
    assert (out.read_text(), os.listdir(tmp_path)) == ("before", ["peaks.csv"])


def test_the_committed_file_is_never_a_cpu_s():
    for arguments, sentence in ((["--device", "cpu"], "give --device cpu another --out"), ([], "torch finds no CUDA GPU")):
        if not arguments and torch.cuda.is_available():
            continue
        from pipelines.gpu_peak import main

        with pytest.raises(SystemExit, match=sentence):
            main(arguments)
