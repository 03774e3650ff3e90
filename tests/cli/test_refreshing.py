"""`routing refresh` as a user runs it: what goes to stdout, the exit code, one line for what is wrong."""

import json
from dataclasses import replace
from decimal import Decimal

import pytest

from routing.audit.pull_request import MARK
from routing.core.allowance import entries_hash
from routing.store.allowances import read_table, write_table
from tests.policies import write_tiny_policy

PLAN = """\
table: allowances.yaml
ep: [2]
batch_tokens: [400]
runs:
- out: runs/tiny
  label: tiny
  policy: policy
  corpus: [corpus.jsonl]
  segment_tokens: 100
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A plan, its policy and 12 trajectories of 200 tokens; what one test measures and fits, the next finds up to date."""
    folder = tmp_path_factory.mktemp("refreshing")
    write_tiny_policy(folder / "policy")
    rows = [{"input_ids": [(7 * row + place * place) % 256 for place in range(200)]} for row in range(12)]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "plan.yaml").write_text(PLAN)
    return folder


@pytest.fixture
def refresh(folder, invoke, monkeypatch):
    """Runs the verb in this process, in the plan's folder: (exit code, stdout, what stderr says without progress)."""

    def call(*arguments):
        monkeypatch.chdir(folder)
        code, out, err = invoke("refresh", *arguments)
        return code, out, [line for line in err.splitlines() if line.startswith("routing: ")]

    return call


def _violate(path):
    """The table with its allowances at 1.0, hashed anew: what a person could have had reviewed."""
    table = read_table(path)
    entries = tuple(replace(one, allowance=Decimal("1.0")) for one in table.entries)
    hashed = entries_hash(table.model, table.placement, entries, table.generated)
    write_table(path, replace(table, entries=entries, content_hash=hashed))


def test_tables_for_people_and_one_object_for_programs(refresh, folder):
    code, out, said = refresh("plan.yaml")
    assert (code, said) == (0, [])
    assert "measure runs/tiny: " in out
    assert "fit runs/plan.refresh.yaml: " in out
    assert "new" in out
    assert not (folder / "allowances.yaml").exists()
    code, out, said = refresh("plan.yaml", "--json")
    body = json.loads(out)
    assert (code, said, body["check"], body["is_written"]) == (0, [], None, False)
    assert [(step["of"], step["did"]) for step in body["steps"]] == [
        ("runs/tiny", "up to date"),
        ("runs/plan.refresh.yaml", "up to date"),
    ]
    assert [(row["ep"], row["batch_tokens"], row["change"]) for row in body["difference"]] == [(2, 400, "new")]


def test_markdown_goes_to_stdout_or_to_a_file(refresh, folder):
    code, out, _ = refresh("plan.yaml", "--markdown", "-")
    assert code == 0
    assert out.startswith(MARK)
    assert refresh("plan.yaml", "--markdown", "pull.md", "--json")[0] == 0
    assert (folder / "pull.md").read_text() == out


def test_two_things_on_stdout_are_refused(refresh):
    code, out, said = refresh("plan.yaml", "--markdown", "-", "--json")
    assert (code, out) == (2, "")
    assert said == ["routing: --markdown: - and --json both print on stdout; name a file"]


def test_a_violated_table_is_exit_1_after_everything_was_shown(refresh, folder):
    assert refresh("plan.yaml", "--write")[0] == 0
    assert refresh("plan.yaml")[0] == 0
    _violate(folder / "allowances.yaml")
    before = (folder / "allowances.yaml").read_bytes()
    code, out, said = refresh("plan.yaml")
    assert code == 1
    assert "batches above their allowance" in out
    assert "raised" in out
    assert len(said) == 1
    assert said[0].startswith("routing: allowances.yaml: one allowance is exceeded, the furthest at ep=2 batch_tokens=400: ")
    assert "against 1.0, policy 'tiny' (run tiny), layer " in said[0]
    assert (folder / "allowances.yaml").read_bytes() == before
    code, out, _ = refresh("plan.yaml", "--json")
    assert code == 1
    assert json.loads(out)["check"]["holds"] is False
    assert refresh("plan.yaml", "--write")[0] == 1
    assert refresh("plan.yaml")[0] == 0


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("table:", "tables:", "plan.yaml:1: tables: no such field"),
        ("[400]", "[many]", "plan.yaml:3: batch_tokens[0]: 'many' is not a whole number"),
        ("corpus.jsonl", "missing.jsonl", "plan.yaml:8: runs[0].corpus[0]: missing.jsonl: no such file"),
        ("corpus.jsonl", "none*.jsonl", "plan.yaml:8: runs[0].corpus[0]: none*.jsonl: no file matches"),
        ("policy: policy", "policy: ./nothing", "plan.yaml:7: runs[0].policy: nothing: no folder"),
        ("ep: [2]", "ep: [3]", "ep: 3 is refused"),
        ("ep: [2]", "ep: &a [2]", "plan.yaml:2: anchors and aliases"),
    ],
)
def test_a_bad_plan_is_exit_2_in_one_line(refresh, folder, old, new, words):
    assert PLAN.count(old) == 1
    (folder / "plan.yaml").write_text(PLAN.replace(old, new))
    try:
        code, out, said = refresh("plan.yaml")
    finally:
        (folder / "plan.yaml").write_text(PLAN)
    assert (code, out, len(said)) == (2, "", 1)
    assert words in said[0]
