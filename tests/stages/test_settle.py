"""What the loaded weights were asked is written down once and holds for the whole run."""

from dataclasses import replace

import pytest
import torch

from routing.measure.policy import load_policy
from routing.stages import settle
from routing.stages.begin import prepare
from routing.stages.measure import begin_run
from routing.stages.settle import Found, ask
from routing.store.run import read_manifest
from routing.store.settings import BatchMemory

MEMORY = BatchMemory(free_bytes=10_000_000_000, bytes_per_token=200_000)
ON_GPU = torch.device("cuda", 0)


@pytest.fixture
def prepared(request_for, listener, tmp_path):
    """As on CUDA, where the tokens of a batch aren't known before the weights are loaded."""
    found = prepare(request_for(tmp_path / "run"), listener)
    settings = replace(found.manifest.settings, tokens_per_batch=0)
    return replace(found, manifest=replace(found.manifest, settings=settings))


@pytest.fixture
def policy(prepared):
    return load_policy(prepared.files, device=prepared.device, dtype=prepared.dtype)


def test_the_tokens_of_a_batch_are_found_once_and_said_with_what_they_follow_from(prepared, policy, listener, tmp_path):
    found = Found(probed=None, batch_memory=MEMORY)
    first = settle.settle(prepared, policy, found, begin_run(tmp_path / "run", None, prepared), listener)
    written = read_manifest(tmp_path / "run")
    # Half of 10 GB at 0.2 MB a token, a multiple of 1,024.
    assert first.tokens_per_batch == written.settings.tokens_per_batch == 24_576
    assert written.settings.batch_memory == MEMORY
    less = replace(found, batch_memory=replace(MEMORY, free_bytes=1_000_000_000))
    later = settle.settle(prepared, policy, less, begin_run(tmp_path / "run", written, prepared), listener)
    assert later.tokens_per_batch == 24_576
    assert read_manifest(tmp_path / "run") == written


def test_memory_is_looked_at_on_cuda_and_where_no_run_has_settled_it(prepared, policy, monkeypatch):
    monkeypatch.setattr(settle, "find_batch_memory", lambda *_args, **_kwargs: MEMORY)
    monkeypatch.setattr(settle, "probe_walk", lambda *_args, **_kwargs: None)
    on_gpu = replace(policy, device=ON_GPU)
    settled = replace(prepared.manifest, settings=replace(prepared.manifest.settings, tokens_per_batch=24_576))
    asked = [ask(prepared, *given).batch_memory for given in ((on_gpu, None), (on_gpu, prepared.manifest))]
    assert asked == [MEMORY, MEMORY]
    assert [ask(prepared, *given).batch_memory for given in ((on_gpu, settled), (policy, None))] == [None, None]
