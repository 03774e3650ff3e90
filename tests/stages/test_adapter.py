"""A policy under an adapter is another policy: measured as if its weights were merged, told apart from its base."""

import json
import shutil
from dataclasses import replace

import pytest
import torch

from routing.core.errors import InputError
from routing.core.worker import Worker
from routing.stages.begin import require_same
from routing.stages.measure import measure
from routing.stages.share import measure_share
from routing.store.run import open_run, read_manifest
from tests.policies import write_tokenizer

peft = pytest.importorskip("peft")

WHERE = {
    "attention": {"target_modules": ["q_proj", "o_proj"]},
    "router": {"target_parameters": ["mlp.gate.weight"]},
    "experts": {"target_parameters": ["experts.gate_up_proj", "experts.down_proj"]},
}


def _write_adapter(policy_folder, folder, where, *, merged=None, seed=7):
    """A LoRA of random weights at `where`, as peft saves it; the merged model beside it, with its tokenizer."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_pretrained(policy_folder, dtype=torch.float32)
    lora = peft.get_peft_model(model, peft.LoraConfig(r=4, lora_alpha=8, **WHERE[where]))
    for name, parameter in lora.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    lora.save_pretrained(folder)
    if merged is not None:
        lora.merge_and_unload().save_pretrained(merged)
        write_tokenizer(merged)
    return folder


@pytest.mark.parametrize("where", list(WHERE))
def test_an_adapter_changes_the_routing_as_its_merged_weights_do(request_for, listener, policy_folder, tmp_path, where):
    adapter = _write_adapter(policy_folder, tmp_path / where, where, merged=tmp_path / "merged")
    request = request_for(tmp_path / "adapted", adapter=adapter, base_out=tmp_path / "base", max_tokens=2_000)
    measure(request, listener)
    measure(request_for(tmp_path / "by-weights", policy=str(tmp_path / "merged"), max_tokens=2_000), listener)
    base, under, by_weights = (open_run(tmp_path / name) for name in ("base", "adapted", "by-weights"))
    assert under.read("loads").equals(by_weights.read("loads"))
    assert not under.read("loads").equals(base.read("loads"))
    assert under.manifest.corpus == base.manifest.corpus
    assert (base.manifest.label, under.manifest.label) == ("tiny", f"tiny+{where}")
    assert base.manifest.policy.adapter_sha256 is None
    assert under.manifest.policy.adapter_sha256
    assert under.manifest.policy.weights_sha256 != base.manifest.policy.weights_sha256


def test_the_base_measured_beside_an_adapter_is_the_base_measured_alone(request_for, listener, policy_folder, tmp_path):
    adapter = _write_adapter(policy_folder, tmp_path / "lora", "router")
    measure(request_for(tmp_path / "adapted", adapter=adapter, base_out=tmp_path / "base", max_tokens=1_000), listener)
    alone = request_for(tmp_path / "base", max_tokens=1_000)
    measure(alone, listener)
    assert any("finished already" in note for note in listener.notes)
    with pytest.raises(InputError, match="was measured with policy revision"):
        measure(request_for(tmp_path / "base", adapter=adapter, max_tokens=1_000), listener)


def test_workers_measure_base_and_adapted_policy_as_one_process_does(request_for, listener, policy_folder, tmp_path):
    adapter = _write_adapter(policy_folder, tmp_path / "lora", "router")
    pairs = []
    for name, of, worker in (("alone", measure, Worker()), ("shared", measure_share, Worker(index=1, count=2))):
        outs = {"out": tmp_path / name, "base_out": tmp_path / f"{name}-base"}
        request = request_for(outs["out"], adapter=adapter, base_out=outs["base_out"], max_tokens=1_000)
        of(replace(request, worker=worker), listener)
        pairs.append([read_manifest(folder).content_hash for folder in outs.values()])
    assert pairs[0] == pairs[1]
    assert pairs[0][0] != pairs[0][1]


@pytest.mark.fault(
    "a run gone on with under another adapter",
    how="the same command with an adapter of other weights",
    tries=1,
    outcome="exit 2, both values named",
)
def test_a_run_goes_on_only_with_the_adapter_it_began_with(request_for, listener, policy_folder, tmp_path):
    runs = []
    for seed in (1, 2):
        adapter = _write_adapter(policy_folder, tmp_path / f"seed{seed}", "router", seed=seed)
        measure(request_for(tmp_path / f"run{seed}", adapter=adapter, max_tokens=300), listener)
        runs.append(read_manifest(tmp_path / f"run{seed}"))
    with pytest.raises(InputError, match="was measured with policy"):
        require_same(tmp_path, *runs)


def test_an_adapter_of_another_model_is_refused(request_for, listener, policy_folder, tmp_path):
    from safetensors.torch import load_file, save_file

    adapter = _write_adapter(policy_folder, tmp_path / "lora", "attention")
    tensors = load_file(adapter / "adapter_model.safetensors")
    name = sorted(tensors)[0]
    tensors[name.replace("layers.3", "layers.9")] = tensors.pop(name)
    save_file(tensors, adapter / "adapter_model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match="2 tensors without a place in this policy or the reverse"):
        measure(request_for(tmp_path / "run", adapter=adapter), listener)
    assert not (tmp_path / "run" / "manifest.json").exists()


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda folder: shutil.rmtree(folder), r"no adapter_config\.json"),
        (lambda folder: (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin"), "safetensors only"),
        (lambda folder: (folder / "adapter_config.json").write_text('{"peft_type": "PREFIX_TUNING"}'), "only LoRA"),
        (lambda folder: (folder / "adapter_config.json").write_text("{"), "not JSON"),
    ],
)
def test_what_is_no_lora_in_safetensors_is_refused(request_for, listener, tmp_path, spoil, said):
    folder = tmp_path / "lora"
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"}))
    (folder / "adapter_model.safetensors").write_bytes(b"")
    spoil(folder)
    with pytest.raises(InputError, match=said):
        measure(request_for(tmp_path / "run", adapter=folder), listener)


def test_a_base_run_needs_an_adapter_and_a_folder_of_its_own(request_for, listener, tmp_path):
    with pytest.raises(InputError, match="name one with --adapter"):
        measure(request_for(tmp_path / "run", base_out=tmp_path / "base"), listener)
    with pytest.raises(InputError, match="are two runs"):
        measure(request_for(tmp_path / "run", adapter=tmp_path, base_out=tmp_path / "run"), listener)
