"""`routing doctor` says what is missing, what would be refused or slow, and what to do about each."""

import importlib.metadata
import json
import shutil
import types

import pytest
import torch

from routing.stages import doctor as stage
from routing.stages.doctor import doctor


def _kinds(answer, word):
    return [one.kind for one in answer.findings if word in one.what]


def test_the_versions_are_those_of_what_routing_requires(invoke):
    code, out, _ = invoke("doctor", "--json")
    told = json.loads(out)
    assert (code, told["is_whole"]) == (0, True)
    assert told["versions"]["duckdb"] == importlib.metadata.version("duckdb")
    assert told["versions"]["torch"] == importlib.metadata.version("torch")
    assert "pytest" not in told["versions"]


def test_a_person_reads_each_finding_with_its_remedy(invoke, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    code, out, _ = invoke("doctor")
    assert code == 0
    assert "refused: HF_HUB_OFFLINE is set: a policy by hub id is refused" in out
    assert "-> name a checkpoint folder" in out


@pytest.mark.parametrize(
    ("requires", "kind", "code"),
    [
        (["duckdb>=2.0"], None, 0),
        (["duckdb>=999"], "missing", 1),
        (["polars-of-another-world"], "missing", 1),
        (['pytest-of-another-world; extra == "dev"'], None, 0),
    ],
)
def test_what_is_absent_or_too_old_is_exit_1(invoke, monkeypatch, requires, kind, code):
    monkeypatch.setattr(stage.importlib.metadata, "requires", lambda _name: requires)
    found, out, err = invoke("doctor", "--json")
    told = json.loads(out)
    name = requires[0].partition(">")[0].partition(";")[0]
    assert found == code, err
    assert [one["kind"] for one in told["findings"] if name in one["what"]] == ([kind] if kind else [])
    assert told["is_whole"] == (code == 0)


def test_what_only_some_verbs_need_is_refused_and_named(monkeypatch, tmp_path):
    real = stage.versions
    monkeypatch.setattr(stage, "versions", lambda names: {name: found for name, found in real(names).items() if name != "scipy"})
    answer = doctor({}, tmp_path)
    (finding,) = [one for one in answer.findings if "scipy" in one.what]
    assert (finding.kind, "fit" in finding.what, finding.remedy) == ("refused", True, "pip install 'scipy>=1.16'")
    assert answer.is_whole


def test_a_gpu_is_named_and_kernels_that_it_lacks_are_slow(monkeypatch, tmp_path):
    card = types.SimpleNamespace(name="a card", total_memory=80_000_000_000)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _index: card)
    monkeypatch.setattr(stage, "kernels", lambda: {"flash_attention": True, "causal_conv1d": False})
    answer = doctor({}, tmp_path)
    assert answer.facts["device"]["gpus"] == [{"name": "a card", "memory_bytes": 80_000_000_000}]
    assert (_kinds(answer, "causal_conv1d"), _kinds(answer, "flash_attention"), _kinds(answer, "no GPU")) == (["slow"], [], [])


def test_a_machine_without_a_gpu_is_slow(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert _kinds(doctor({}, tmp_path), "no GPU") == ["slow"]


def test_a_full_disk_and_an_offline_hub_are_told_before_they_stop_a_run(monkeypatch, tmp_path):
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: types.SimpleNamespace(free=1_000_000))
    answer = doctor({"HF_HUB_OFFLINE": "1"}, tmp_path)
    assert (_kinds(answer, "disk free"), _kinds(answer, "HF_HUB_OFFLINE")) == (["refused"], ["refused"])
    assert _kinds(doctor({"HF_HUB_OFFLINE": "0"}, tmp_path), "HF_HUB_OFFLINE") == []
