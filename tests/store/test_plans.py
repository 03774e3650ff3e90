"""Refresh plans are read strictly: one line with the plan's line and field, before anything slow begins."""

import json
import os
from dataclasses import MISSING, fields

import pytest
from pydantic import ValidationError

from pipelines.write_docs import SCHEMAS
from routing.core.errors import InputError
from routing.core.refresh_plan import PlannedRun, RefreshPlan
from routing.store.plans import read_plan, start_of
from routing.store.table_schema import PLAN_SCHEMA_ID, plan_model, plan_schema_text
from routing.store.yaml_nodes import read_nodes
from tests.conftest import REPOSITORY

PLAN = """\
table: allowances.yaml
ep: [2, 4]
batch_tokens: [2000, 200]
runs:
- out: runs/one
  label: one
  policy: policy
  corpus: [data/a.jsonl, data/b*.jsonl]
- out: runs/two
  label: two
  policy: org/name@main
  corpus: [data/*.jsonl]
  max_tokens: 500
"""


@pytest.fixture
def checkout(tmp_path):
    """A folder with `.git`, a policy, three corpus files, and the plan in `plans/`."""
    for name in (".git", "policy", "data", "plans"):
        (tmp_path / name).mkdir()
    for name in ("a.jsonl", "b2.jsonl", "b1.jsonl"):
        (tmp_path / "data" / name).touch()
    (tmp_path / "plans" / "plan.yaml").write_text(PLAN)
    return tmp_path


def test_paths_start_at_the_root_of_the_plans_checkout_and_patterns_are_sorted(checkout):
    plan = read_plan(checkout / "plans" / "plan.yaml")
    one, two = plan.runs
    assert plan.table == str(checkout / "allowances.yaml")
    assert (one.out, one.policy) == (str(checkout / "runs/one"), str(checkout / "policy"))
    assert one.corpus == tuple(str(checkout / "data" / name) for name in ("a.jsonl", "b1.jsonl", "b2.jsonl"))
    assert two.corpus == one.corpus
    assert two.policy == "org/name@main"
    assert (plan.order, plan.per_layer, one.segment_tokens, two.max_tokens) == ("corpus", False, 1024, 500)


def test_inside_the_current_folder_paths_stay_short(checkout, monkeypatch):
    monkeypatch.chdir(checkout)
    assert read_plan("plans/plan.yaml").runs[0].corpus[0] == "data/a.jsonl"
    monkeypatch.chdir(checkout / "plans")
    assert read_plan("plan.yaml").runs[0].out == str(checkout / "runs/one")


def test_without_a_checkout_paths_start_beside_the_plan(checkout):
    (checkout / ".git").rmdir()
    assert start_of(checkout / "plans" / "plan.yaml") == checkout / "plans"
    with pytest.raises(InputError, match=r"plan\.yaml:7: runs\[0\]\.policy: .*plans/policy: no folder"):
        read_plan(checkout / "plans" / "plan.yaml")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("ep: [2, 4]", "eps: [2, 4]", "2: eps: no such field; there are table, runs, batch_tokens, ep, order, per_layer"),
        ("ep: [2, 4]", "ep: [2, four]", "2: ep[1]: 'four' is not a whole number"),
        ("ep: [2, 4]", "ep: [2, 1]", "2: ep[1]: 1 is below 2"),
        ("ep: [2, 4]", "ep: [2, 2]", "2: ep: names a size twice"),
        ("[2000, 200]", "200k", "3: batch_tokens: '200k' is not a list"),
        ("[2000, 200]", "[200k]", "3: batch_tokens[0]: '200k' is not a whole number"),
        ("[2000, 200]", "[]", "3: batch_tokens: names no size"),
        ("[2000, 200]", "[0]", "3: batch_tokens[0]: 0 is below 1"),
        ("[2000, 200]", "[2000]\norder: random", "4: order: 'random' is not corpus or a whole number"),
        ("[2000, 200]", "[2000]\norder: -1", "4: order: -1 is below 0"),
        ("[2000, 200]", "[2000]\nper_layer: 1", "4: per_layer: '1' is not true or false"),
        ("runs/two", "runs/one", "9: runs[1].out: 'runs/one' is that of runs[0] too"),
        ("runs/two", "runs/../runs/one/", "9: runs[1].out: 'runs/one' is that of runs[0] too"),
        ("out: runs/two", "out: 'runs/t o'", "9: runs[1].out: "),
        ("  label: two\n", "", "9: runs[1].label: is missing"),
        ("label: two", "label: ''", "10: runs[1].label: '' is no printable text"),
        ("label: two", 'label: "two\\nlines"', "10: runs[1].label: 'two\\nlines' is no printable text"),
        ("label: two", f"label: {'x' * 101}", "10: runs[1].label: 101 letters, a label has at most 100"),
        ("max_tokens: 500", "max_tokens: 0", "13: runs[1].max_tokens: 0 is below 1"),
        ("max_tokens: 500", "segment_tokens: null", "13: runs[1].segment_tokens: null is not a whole number"),
        ("max_tokens: 500", "tokenizer: nowhere", "13: runs[1].tokenizer: "),
        ("policy: policy", "policy: nowhere/to/be", "7: runs[0].policy: "),
        ("policy: policy", "policy: data/a.jsonl", "7: runs[0].policy: "),
        ("[data/*.jsonl]", "[data/none.jsonl]", "12: runs[1].corpus[0]: "),
        ("[data/*.jsonl]", "[data/*.csv]", "12: runs[1].corpus[0]: "),
        ("[data/*.jsonl]", "[data/a.jsonl, data/*]", "12: runs[1].corpus[1]: "),
        ("[data/*.jsonl]", "[]", "12: runs[1].corpus: names no file"),
        ("[data/*.jsonl]", "data/a.jsonl", "12: runs[1].corpus: 'data/a.jsonl' is not a list"),
        ("table: allowances.yaml\n", "", "1: table: is missing"),
    ],
)
def test_a_bad_plan_is_one_line_that_names_line_and_field(checkout, old, new, message):
    path = checkout / "plans" / "plan.yaml"
    assert PLAN.count(old) == 1
    path.write_text(PLAN.replace(old, new))
    with pytest.raises(InputError) as raised:
        read_plan(path)
    assert str(raised.value).startswith(f"{path}:{message}")
    assert "\n" not in str(raised.value)


def test_one_folder_under_two_names_is_refused(checkout):
    (checkout / "runs" / "one").mkdir(parents=True)
    (checkout / "runs" / "two").symlink_to("one")
    with pytest.raises(InputError, match=r"plan\.yaml:9: runs\[1\]\.out: the folder of runs\[0\] under another name"):
        read_plan(checkout / "plans" / "plan.yaml")


def test_an_absent_plan_names_one_to_start_from(tmp_path):
    with pytest.raises(InputError, match=r"no such file; pipelines/retail\.yaml is one"):
        read_plan(tmp_path / "plan.yaml")


def test_the_worked_plan_is_the_issues_eight_files_and_both_demo_policies(shared_trajectories):
    plan = read_plan(REPOSITORY / "pipelines" / "retail.yaml")
    assert [os.path.relpath(run.out, REPOSITORY) for run in plan.runs] == ["runs/retail-trained", "runs/retail-untrained"]
    for run in plan.runs:
        names = [os.path.basename(file) for file in run.corpus]
        assert names == sorted(names)
        assert len(names) == 8
        assert all("_retail_" in name for name in names)


def test_the_committed_schema_is_what_the_program_says_and_has_the_readers_fields():
    text = (REPOSITORY / SCHEMAS / PLAN_SCHEMA_ID).read_text()
    assert text == plan_schema_text(), "run `make docs`"
    schema = json.loads(text)
    for kind, record in ((RefreshPlan, schema), (PlannedRun, schema["$defs"]["PlannedRun"])):
        assert list(record["properties"]) == [field.name for field in fields(kind)]
        assert set(record["required"]) == {field.name for field in fields(kind) if field.default is MISSING}


def test_the_schema_takes_the_worked_plan_and_refuses_text_for_a_number():
    text = (REPOSITORY / "pipelines" / "retail.yaml").read_text()
    plan_model().model_validate(read_nodes(text, where="plan").plain())
    with pytest.raises(ValidationError):
        plan_model().model_validate(read_nodes(text.replace("[2, 4, 8]", "[two]"), where="plan").plain())


def test_the_page_on_refreshing_names_every_field():
    page = (REPOSITORY / "docs" / "refresh.md").read_text()
    names = [field.name for kind in (RefreshPlan, PlannedRun) for field in fields(kind)]
    assert [name for name in names if f"`{name}`" not in page] == []
