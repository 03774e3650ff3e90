"""A hub id is one commit, resolved once: what moves, is absent or is closed is said in one line, and no token leaves."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from routing.core.errors import InputError, StorageError
from routing.measure import hub as ours
from routing.store.run import read_manifest
from tests.conftest import REPOSITORY
from tests.hub import ask, serving
from tests.policies import write_tiny_policy

NAME = "shop/tiny-moe"
TOKEN = "hf_NobodyMayReadThis"


@pytest.fixture(scope="module")
def commits(tmp_path_factory):
    """Two policies of one shape, the folders of two commits; each has a pickle and a copy in a folder, which nobody wants."""
    folders = [write_tiny_policy(tmp_path_factory.mktemp("hub") / f"commit{seed}", seed=seed) for seed in (1, 2)]
    for folder in folders:
        (folder / "pytorch_model.bin").write_bytes(b"a pickle")
        (folder / "original").mkdir()
        shutil.copy(folder / "model.safetensors", folder / "original" / "model.safetensors")
    return folders


@pytest.fixture
def hub():
    with serving() as one:
        yield one


@pytest.fixture
def online(hub, tmp_path, monkeypatch):
    """This process's huggingface_hub asks the hub of the test."""
    ask(hub.url, monkeypatch, cache=tmp_path / "home" / "hub")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    return hub


@pytest.fixture
def arguments(tmp_path):
    """`measure` of the hub's policy over a corpus of the test's own."""
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"input_ids": [(row + place) % 256 for place in range(40)]}) + "\n" for row in range(3)))
    return ["measure", NAME, str(corpus), "--out", str(tmp_path / "run")]


def _run(hub, home, arguments):
    """The command in a process of its own, online at the hub of the test, with the token in its environment."""
    settings = {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": hub.url, "HF_HOME": str(home), "HF_TOKEN": TOKEN}
    command = [sys.executable, "-m", "routing", *arguments]
    return subprocess.run(command, cwd=REPOSITORY, env={**os.environ, **settings}, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("name", "revision"), [(f"{NAME}@", None), (NAME, "")])
def test_an_empty_revision_is_not_the_default_branch(name, revision):
    with pytest.raises(InputError, match="an empty revision"):
        ours.pin(name, revision=revision)


@pytest.mark.fault(
    "a branch of the hub moves between two calls of a run",
    how="a hub on localhost, whose branch moves to a second commit",
    tries=1,
    outcome="exit 2 before anything is fetched, naming both commits; the first one goes on when it is named",
)
def test_a_run_keeps_the_commit_it_began_with_when_the_branch_moves(online, commits, tmp_path, arguments, invoke):
    first = online.push(NAME, commits[0])
    began = _run(online, tmp_path / "home", [*arguments, "--revision", "main"])
    assert began.returncode == 0, began.stderr
    assert f"main is commit {first}" in began.stderr
    manifest = read_manifest(tmp_path / "run")
    assert (manifest.policy.name, manifest.policy.revision) == (NAME, first)
    _require_only_safetensors_and_no_token(online, tmp_path / "run", began.stdout + began.stderr)

    second = online.push(NAME, commits[1])
    online.requests.clear()
    code, _, err = invoke(*arguments, "--revision", "main")
    assert (code, err.count("\n")) == (2, 1)
    assert f"was measured with {first}, {NAME}@main is {second} now; go on with {NAME}@{first}" in err
    assert online.requests == [f"/api/models/{NAME}/revision/main"]  # one question, nothing fetched

    online.requests.clear()
    code, _, err = invoke(*arguments, "--revision", first)
    assert code == 0, err
    assert "finished already" in err
    assert online.requests == []  # a whole commit that is in the cache asks nobody


def _require_only_safetensors_and_no_token(hub, run, said):
    asked = {one.rpartition("/resolve/")[2].partition("/")[2] for one in hub.requests}
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= asked
    assert not {"pytorch_model.bin", "original/model.safetensors"} & asked
    assert f"Bearer {TOKEN}" in hub.tokens  # the token was used
    written = b"".join(path.read_bytes() for path in run.iterdir())
    assert TOKEN.encode() not in written + said.encode()


def _fetch(policy, revision=None):
    return ours.fetch(ours.pin(policy, revision=revision))


@pytest.mark.parametrize(
    ("policy", "revision", "said"),
    [
        ("shop/absent", None, "shop/absent: not on the hub, or private; check the name, or set HF_TOKEN"),
        (NAME, "v9", f"{NAME}: has no revision 'v9'; name a branch, a tag or a commit"),
        (NAME, "0" * 40, f"{NAME}: has no revision '{'0' * 40}'"),
        (f"{NAME}@main", "main", "--revision: .* names one already"),
        ("shop/a b", None, "'shop/a b': no hub id"),
    ],
)
def test_what_the_hub_does_not_have_is_the_users_input(online, commits, policy, revision, said):
    online.push(NAME, commits[0])
    with pytest.raises(InputError, match=said) as told:
        _fetch(policy, revision)
    assert TOKEN not in str(told.value)
    assert online.url not in str(told.value)


@pytest.mark.parametrize(
    ("status", "code", "kind", "said"),
    [
        (403, "GatedRepo", InputError, "gated; ask for access on its page, then set HF_TOKEN"),
        (403, None, InputError, r"the hub refuses it \(403\)"),
        (404, "EntryNotFound", StorageError, "the hub answered 404"),
    ],
)
def test_files_that_the_hub_keeps_back_are_said_with_what_to_do(online, commits, status, code, kind, said):
    online.push(NAME, commits[0])
    online.refusals[NAME] = (status, code)
    with pytest.raises(kind, match=f"{NAME}: .*{said}"):
        _fetch(NAME)


@pytest.mark.fault(
    "the hub is unreachable",
    how="an endpoint on localhost where nothing listens",
    tries=1,
    outcome="exit 4, one line that says what to do and not the address, which may hold a password",
)
def test_a_hub_that_is_unreachable_is_input_output(online, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://user:secret@127.0.0.1:9")
    with pytest.raises(StorageError, match=r"the hub can't be reached \(ConnectError\); the same command tries again") as told:
        ours.pin(NAME)
    assert "secret" not in str(told.value)


def test_without_the_hub_a_commit_fetched_before_is_taken_from_the_cache(online, commits, monkeypatch):
    from huggingface_hub import constants

    commit = online.push(NAME, commits[0])
    folder = _fetch(NAME)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    online.requests.clear()
    assert _fetch(NAME, commit) == folder
    with pytest.raises(InputError, match="v2 is not in the cache and HF_HUB_OFFLINE is set"):
        _fetch(NAME, "v2")
    assert online.requests == []


def test_a_folder_has_no_revisions(tmp_path):
    with pytest.raises(InputError, match="is a folder, which has no revisions"):
        ours.pin(str(tmp_path), revision="main")
