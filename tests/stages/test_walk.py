"""A run computes prefixes once or not as it began, ends the same either way, and says which."""

import dataclasses
import hashlib
import json

import pytest

from routing.core.errors import InputError
from routing.measure import anchors
from routing.stages import begin, walk
from routing.stages.measure import measure
from routing.store.manifest import decode, encode
from routing.store.run import MANIFEST_NAME, RunWriter, read_manifest


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(begin, "TOKENS_PER_PART", 700)
    monkeypatch.setattr(anchors, "MIN_SAVED_TOKENS", 100)


def _stop_after(monkeypatch, num_parts):
    commit = RunWriter.commit

    def stop(self, table, index, rows, **changes):
        if (table, index) == ("loads", num_parts):
            raise KeyboardInterrupt
        return commit(self, table, index, rows, **changes)

    monkeypatch.setattr(RunWriter, "commit", stop)


def _begin(monkeypatch, request, listener, num_parts=2):
    with monkeypatch.context() as patched:
        _stop_after(patched, num_parts)
        with pytest.raises(KeyboardInterrupt):
            measure(request, listener)


def test_both_walks_end_with_the_same_content_and_say_which_they_were(request_for, listener, tmp_path, monkeypatch):
    measure(request_for(tmp_path / "once"), listener)
    assert listener.notes == []
    with monkeypatch.context() as patched:
        patched.setattr(walk, "is_trusted", lambda *_: False)
        measure(request_for(tmp_path / "whole"), listener)
    once, whole = (read_manifest(tmp_path / name) for name in ("once", "whole"))
    assert (once.settings.walk, whole.settings.walk) == ("prefix-once", "whole")
    assert once.content_hash == whole.content_hash
    # Every one of six heads of 60 tokens is shared by four trajectories, and no token is computed twice.
    assert (once.planned_tokens, whole.planned_tokens) == (once.corpus.tokens_packed, once.corpus.tokens_logical)
    (note,) = listener.notes
    assert note.startswith("every trajectory is computed whole: the model's cache can't be gone on from")
    assert once.settings.cache_probe.cache_differs == 0


@pytest.mark.parametrize("num_parts", [1, 2, 3])
def test_a_run_stopped_anywhere_goes_on_to_the_same_content(request_for, listener, tmp_path, monkeypatch, num_parts):
    measure(request_for(tmp_path / "through"), listener)
    _begin(monkeypatch, request_for(tmp_path / "stopped"), listener, num_parts)
    measure(request_for(tmp_path / "stopped"), listener)
    through, stopped = (read_manifest(tmp_path / name) for name in ("through", "stopped"))
    assert stopped.content_hash == through.content_hash
    assert stopped.settings.walk == "prefix-once"


def test_a_run_begun_whole_goes_on_whole(request_for, listener, tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(walk, "is_trusted", lambda *_: False)
        _begin(monkeypatch, request_for(tmp_path / "run"), listener)
    monkeypatch.setattr(walk, "probe_cache", lambda *_: pytest.fail("nothing to find out"))
    measure(request_for(tmp_path / "run"), listener)
    assert read_manifest(tmp_path / "run").settings.walk == "whole"


def test_a_run_begun_with_cached_prefixes_is_not_gone_on_with_where_they_fail(request_for, listener, tmp_path, monkeypatch):
    _begin(monkeypatch, request_for(tmp_path / "run"), listener)
    monkeypatch.setattr(walk, "is_trusted", lambda *_: False)
    with pytest.raises(InputError, match="begun with prefixes computed once, now the model's cache can't be gone on from"):
        measure(request_for(tmp_path / "run"), listener)


def test_a_manifest_from_before_there_was_a_choice_is_read_as_whole(request_for, listener, tmp_path):
    measure(request_for(tmp_path / "run"), listener)
    manifest = read_manifest(tmp_path / "run")
    body = json.loads(encode(manifest))
    for name in ("walk", "cache_probe"):
        del body["settings"][name]
    body.pop("manifest_sha256")
    digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    old = decode(json.dumps({**body, "manifest_sha256": digest}).encode(), where=MANIFEST_NAME)
    assert (old.settings.walk, old.settings.cache_probe) == ("whole", None)
    assert dataclasses.replace(old, settings=manifest.settings) == manifest
