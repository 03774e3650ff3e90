"""With --skip-bad a run holds all but the trajectories that a router gave no number for, and says which."""

import json
from dataclasses import replace

import pytest

from routing.core.errors import CheckFailedError, InputError
from routing.core.worker import Worker
from routing.measure import anchors
from routing.stages import begin
from routing.stages.measure import measure
from routing.stages.share import measure_share
from routing.stages.show import show
from routing.store.run import RunWriter, open_run, read_manifest
from tests.policies import changed_policy
from tests.stages.conftest import Listener, build_request

POISON = 255  # a token whose embedding is NaN


def _rows():
    """24 trajectories of 60 tokens without the poison; the sixth and seventh share 50 tokens, of which one is the poison."""
    rows = [[(7 * row + place * place) % POISON for place in range(60)] for row in range(24)]
    rows[6][:50] = rows[5][:50]
    rows[5][40] = rows[6][40] = POISON
    return rows


def _write(path, rows):
    path.write_text("".join(json.dumps({"input_ids": row}) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def request_for(policy_folder, tmp_path_factory):
    """`build_request` for a policy that meets NaN at one token, and a corpus with that token."""
    folder = tmp_path_factory.mktemp("poisoned")
    policy = changed_policy(policy_folder, folder / "policy", "embed_tokens.weight", POISON, float("nan"))
    corpus = _write(folder / "corpus.jsonl", _rows())
    return lambda out, **changes: build_request(policy, corpus, out, **changes)


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch):
    monkeypatch.setattr(begin, "TOKENS_PER_PART", 300)


@pytest.fixture(scope="module")
def clean_hash(policy_folder, tmp_path_factory):
    """The content hash of the same corpus without the two."""
    folder = tmp_path_factory.mktemp("clean")
    rows = _rows()
    corpus = _write(folder / "corpus.jsonl", rows[:5] + rows[7:])
    measure(build_request(policy_folder, corpus, folder / "run"), Listener())
    return read_manifest(folder / "run").content_hash


@pytest.mark.fault(
    "a router that gives NaN for some text, with --skip-bad",
    how="a token whose embedding is NaN in 2 of 24 trajectories",
    tries=1,
    outcome="both left out and named in the manifest, show and report count them; content hash of the corpus without them",
)
def test_what_meets_no_number_is_left_out_and_named(request_for, listener, tmp_path, clean_hash):
    out = tmp_path / "run"
    with pytest.raises(CheckFailedError, match=r"layer 0, .* NaN or Inf"):
        measure(request_for(tmp_path / "without"), listener)
    result = measure(request_for(out, skip_bad=True), listener)
    run = open_run(out)
    assert (result.trajectories, result.refused, run.notices) == (22, 2, ())
    assert run.manifest.content_hash == clean_hash
    assert [(one.source_row, one.reason) for one in run.manifest.corpus.refusals] == [(5, "router"), (6, "router")]
    assert all("NaN or Inf" in one.detail and "float32" in one.detail for one in run.manifest.corpus.refusals)
    (file,) = run.manifest.corpus.files
    assert (file.rows, file.kept, file.refused) == (24, 22, 2)
    assert any("2 trajectories left out, the run begins anew without them" in note for note in listener.notes)
    assert show(out).facts["corpus"]["refused"] == {"router": 2}
    assert sorted(path.name for path in out.iterdir()) == sorted(["manifest.json", *(part.name for part in run.manifest.parts)])


def test_a_run_that_left_some_out_goes_on_with_the_flag_alone(request_for, listener, tmp_path, clean_hash, monkeypatch):
    request = request_for(tmp_path / "run", skip_bad=True)
    commit = RunWriter.commit

    def stop(self, table, index, rows, **changes):
        if (table, index) == ("loads", 2):
            raise KeyboardInterrupt
        commit(self, table, index, rows, **changes)

    with monkeypatch.context() as patched:
        patched.setattr(RunWriter, "commit", stop)
        with pytest.raises(KeyboardInterrupt):
            measure(request, listener)
    assert read_manifest(request.out).corpus.num_trajectories == 22
    with pytest.raises(InputError, match="was measured with corpus"):
        measure(replace(request, skip_bad=False), listener)
    measure(request, listener)
    assert read_manifest(request.out).content_hash == clean_hash
    measure(request, listener)
    assert "finished already" in listener.notes[-1]


@pytest.fixture(scope="module")
def shared_prefix(request_for, policy_folder, tmp_path_factory):
    """31 trajectories of 60 to 430 tokens: three share 400, the poison is in the longest, which the cache is tried on."""
    folder = tmp_path_factory.mktemp("shared")
    rows = [[(7 * row + place * place) % POISON for place in range(60)] for row in range(31)]
    stem = [(5 * place + place * place // 3) % POISON for place in range(400)]
    for row in (3, 4, 5):
        rows[row] = stem + rows[row][:20]
    rows[9] = [(3 * place + place * place // 7) % POISON for place in range(430)]
    rows[9][40] = POISON
    policy = request_for(folder).policy
    clean = build_request(policy_folder, _write(folder / "clean.jsonl", rows[:9] + rows[10:]), folder / "clean")
    return build_request(policy, _write(folder / "poisoned.jsonl", rows), folder / "run", skip_bad=True), clean


def test_a_trajectory_that_the_cache_was_tried_on_is_the_only_one_left_out(shared_prefix, listener, monkeypatch):
    """What the try counts are tokens and no segments; without the bad one, prefixes are computed once after all."""
    monkeypatch.setattr(begin, "TOKENS_PER_PART", 700)
    monkeypatch.setattr(anchors, "MIN_SAVED_TOKENS", 100)
    request, clean = shared_prefix
    assert measure(request, listener).refused == 1
    measure(clean, Listener())
    found, expected = read_manifest(request.out), read_manifest(clean.out)
    assert [(one.source_row, one.reason) for one in found.corpus.refusals] == [(9, "router")]
    assert (found.content_hash, found.settings.walk) == (expected.content_hash, "prefix-once")
    assert "computed whole: the model's cache can't be gone on from (a router gave nothing to choose by" in listener.notes[0]


def test_a_policy_without_numbers_for_all_text_is_at_fault(policy_folder, corpus_file, listener, tmp_path):
    broken = changed_policy(policy_folder, tmp_path / "broken", "layers.2.mlp.gate.weight", 0, float("nan"))
    request = build_request(broken, corpus_file, tmp_path / "run", skip_bad=True)
    with pytest.raises(CheckFailedError, match=r"layer 2, .*; --skip-bad would leave out \d+ of 24 trajectories; mend the"):
        measure(request, listener)
    assert read_manifest(tmp_path / "run").corpus.refusals == ()


def test_workers_and_base_runs_do_not_skip(request_for, listener, tmp_path):
    request = request_for(tmp_path / "run", skip_bad=True)
    with pytest.raises(InputError, match="--skip-bad: 2 workers"):
        measure_share(replace(request, worker=Worker(index=0, count=2)), listener)
    with pytest.raises(InputError, match="--skip-bad: with --base-out"):
        measure(replace(request, adapter=tmp_path, base_out=tmp_path / "base"), listener)
