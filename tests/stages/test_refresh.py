"""A refresh does what is missing and nothing twice, tells what moved, and touches the committed table only when told to."""

import json
import shutil
from dataclasses import replace
from decimal import Decimal

import pytest

from routing.core.allowance import Override, entries_hash
from routing.core.errors import DamagedDataError, InputError
from routing.stages import begin, candidate, refresh
from routing.stages.fit import fit
from routing.stages.measure import measure
from routing.store.allowances import read_table, write_table
from routing.store.run import RunWriter, open_run, read_manifest
from tests.faulty_disk import Written, fail_each_call
from tests.policies import tiny_config, write_tiny_policy
from tests.stages.conftest import Listener

BATCH_TOKENS = (800, 200)


@pytest.fixture(scope="session")
def other_policy(tmp_path_factory):
    return write_tiny_policy(tmp_path_factory.mktemp("refresh-policies") / "other", seed=1)


def _write_plan(folder, corpus_file, runs, **fields):
    body = {"table": "allowances.yaml", "ep": [2, 4], "batch_tokens": list(BATCH_TOKENS), **fields}
    body["runs"] = [
        {"out": f"runs/{name}", "label": name, "policy": str(policy), "corpus": [str(corpus_file)], "segment_tokens": 32}
        for name, policy in runs
    ]
    (folder / "plan.yaml").write_text(json.dumps(body))
    return folder / "plan.yaml"


@pytest.fixture
def plan(tmp_path, policy_folder, corpus_file):
    """Writes `plan.yaml` with a run for each (name, policy) given, by default one of the tiny policy; returns its path."""
    return lambda *runs, **fields: _write_plan(tmp_path, corpus_file, runs or (("one", policy_folder),), **fields)


@pytest.fixture(scope="session")
def refreshed(tmp_path_factory, policy_folder, other_policy, corpus_file):
    """A folder where the runs `one` and `two` are measured and the plan of `one` alone is fitted."""
    folder = tmp_path_factory.mktemp("refreshed")
    one, two = ("one", policy_folder), ("two", other_policy)
    for runs in ((two,), (one,)):
        _refresh(_write_plan(folder, corpus_file, runs), Listener())
    return folder


@pytest.fixture
def have(refreshed, tmp_path):
    """Puts the named runs of `refreshed` and the fit of `one` in place, as if an earlier call had left them."""

    def copy(*names):
        for name in names:
            shutil.copytree(refreshed / "runs" / name, tmp_path / "runs" / name)
        for path in refreshed.glob("runs/plan.refresh.yaml*"):
            shutil.copy2(path, tmp_path / "runs")

    return copy


@pytest.fixture
def calls(monkeypatch):
    """What was committed to runs and what was fitted, as the stages do it."""
    found = []
    commit = RunWriter.commit

    def committed(self, table, index, rows, **changes):
        found.append(f"{self.folder.name} {table}")
        return commit(self, table, index, rows, **changes)

    def fitted(*arguments, **keywords):
        found.append("fit")
        return fit(*arguments, **keywords)

    monkeypatch.setattr(RunWriter, "commit", committed)
    monkeypatch.setattr(candidate, "fit", fitted)
    return found


def _refresh(path, listener, *, write=False, markdown_path=None):
    return refresh.refresh(path, listener, write=write, markdown_path=markdown_path, command=("refresh", "plan.yaml"))


def _files(folder):
    return {one: (one.read_bytes(), one.stat().st_mtime_ns) for one in sorted(folder.rglob("*")) if one.is_file()}


def _did(answer):
    return [(step["step"], step["did"]) for step in answer.answer["steps"]]


def _set(path, allowance):
    """The committed table with every allowance as given, hashed anew: what a person could have had reviewed."""
    table = read_table(path)
    entries = tuple(replace(one, allowance=Decimal(allowance)) for one in table.entries)
    hashed = entries_hash(table.model, table.placement, entries, table.generated)
    write_table(path, replace(table, entries=entries, content_hash=hashed))


def test_from_nothing_it_measures_fits_and_shows_every_entry_as_new(plan, listener, tmp_path):
    answer = _refresh(plan(), listener)
    assert _did(answer) == [("measure", "measured"), ("fit", "fitted")]
    assert read_manifest(tmp_path / "runs" / "one").command == ("refresh", "plan.yaml")
    rows = answer.answer["difference"]
    assert [(row["ep"], row["batch_tokens"], row["change"]) for row in rows] == [
        *((ep, size, "new") for size in BATCH_TOKENS for ep in (2, 4))
    ]
    fitted = read_table(tmp_path / "runs" / "plan.refresh.yaml")
    assert [row["fitted"] for row in rows] == [float(entry.allowance) for entry in fitted.entries]
    assert (answer.failure, answer.answer["check"], answer.answer["is_written"]) == (None, None, False)
    assert not (tmp_path / "allowances.yaml").exists()


def test_what_is_up_to_date_is_not_repeated(plan, listener, tmp_path, calls):
    _refresh(plan(), listener)
    before = _files(tmp_path)
    calls.clear()
    answer = _refresh(plan(), listener)
    assert _did(answer) == [("measure", "up to date"), ("fit", "up to date")]
    assert calls == []
    assert {**_files(tmp_path), tmp_path / "plan.yaml": None} == {**before, tmp_path / "plan.yaml": None}


def test_a_finished_run_is_not_even_read_for_again(plan, listener, tmp_path, have, monkeypatch):
    have("one")
    _refresh(plan(), listener)
    with monkeypatch.context() as patched:
        patched.setattr(begin, "read_corpus", lambda *_, **__: pytest.fail("the corpus was read"))
        assert _did(_refresh(plan(), listener)) == [("measure", "up to date"), ("fit", "up to date")]
    (tmp_path / "runs" / "one.made.json").write_text("[]")
    assert _did(_refresh(plan(), listener)) == [("measure", "up to date"), ("fit", "up to date")]


def test_a_part_that_was_damaged_since_is_named(plan, listener, tmp_path, have):
    have("one")
    _refresh(plan(), listener)
    part = tmp_path / "runs" / "one" / "loads-00000.parquet"
    part.write_bytes(part.read_bytes()[:-1])
    with pytest.raises(DamagedDataError, match=r"loads-00000\.parquet"):
        _refresh(plan(), listener)


@pytest.mark.parametrize("changed", ["file", "policy"])
def test_other_files_or_weights_are_never_taken_for_the_same(
    tmp_path, listener, policy_folder, corpus_file, other_policy, changed
):
    policy, corpus = shutil.copytree(policy_folder, tmp_path / "policy"), shutil.copy(corpus_file, tmp_path / "corpus.jsonl")
    path = _write_plan(tmp_path, corpus, (("one", policy),))
    _refresh(path, listener)
    if changed == "file":
        lines = corpus.read_text().splitlines(keepends=True)
        corpus.write_text("".join(lines[1:]))
    else:
        shutil.copy(other_policy / "model.safetensors", policy)
    what = "corpus" if changed == "file" else "policy revision"
    with pytest.raises(InputError, match=rf"runs/one: was measured with {what} .*; choose another --out, or remove the run"):
        _refresh(path, listener)


def test_warnings_of_a_fit_are_told_again_where_it_is_not_repeated(plan, listener):
    first, second = _refresh(plan(batch_tokens=[100_000, 200]), listener), _refresh(plan(batch_tokens=[100_000, 200]), listener)
    assert any("size_left_out" in line for line in first.warnings)
    assert second.warnings == first.warnings


def test_a_new_run_in_the_plan_is_the_only_one_measured(plan, listener, policy_folder, other_policy, calls, have):
    have("one")
    calls.clear()
    answer = _refresh(plan(("one", policy_folder), ("two", other_policy)), listener)
    assert _did(answer) == [("measure", "up to date"), ("measure", "measured"), ("fit", "fitted")]
    assert {call.split()[0] for call in calls} == {"two", "fit"}


@pytest.mark.parametrize("changed", [{"batch_tokens": [200]}, {"ep": [2]}, {"order": 7}, {"per_layer": True}])
def test_another_parameter_fits_anew_and_measures_nothing(plan, listener, calls, changed, have):
    have("one")
    calls.clear()
    _refresh(plan(**changed), listener)
    assert calls == ["fit"]


def test_other_code_of_the_fit_fits_anew(plan, listener, calls, monkeypatch, have):
    have("one")
    calls.clear()
    monkeypatch.setattr(candidate, "code_hash", lambda _rooms: "another")
    _refresh(plan(), listener)
    assert calls == ["fit"]


@pytest.mark.parametrize("damage", ["mark", "gone", "edited"])
def test_a_fit_that_cannot_be_trusted_is_made_again(plan, listener, tmp_path, calls, damage, have):
    have("one")
    fitted = tmp_path / "runs" / "plan.refresh.yaml"
    whole = read_table(fitted).entries
    calls.clear()
    if damage == "mark":
        (tmp_path / "runs" / "plan.refresh.yaml.made.json").write_text("{")
    elif damage == "gone":
        fitted.unlink()
    else:
        fitted.write_text(fitted.read_text().replace("allowance: 1.", "allowance: 1.0", 1))
    _refresh(plan(), listener)
    assert calls == ["fit"]
    assert read_table(fitted).entries == whole


def test_an_interrupted_refresh_goes_on_where_it_stopped(
    plan, listener, tmp_path, policy_folder, other_policy, monkeypatch, calls, have
):
    path = plan(("one", policy_folder), ("two", other_policy))
    have("one")
    commit = RunWriter.commit

    def stopped(self, table, index, rows, **changes):
        if (self.folder.name, table) == ("two", "loads"):
            raise KeyboardInterrupt
        return commit(self, table, index, rows, **changes)

    with monkeypatch.context() as patched:
        patched.setattr(RunWriter, "commit", stopped)
        with pytest.raises(KeyboardInterrupt):
            _refresh(path, listener)
    assert [read_manifest(tmp_path / "runs" / name).state for name in ("one", "two")] == ["finished", "measuring"]
    calls.clear()
    answer = _refresh(path, listener)
    assert _did(answer) == [("measure", "up to date"), ("measure", "went on"), ("fit", "fitted")]
    assert set(calls) == {"two loads", "fit"}


@pytest.mark.fault(
    "a full disk, or an I/O error, in a refresh",
    how="the rename of the fitted table, its mark, the committed table and the Markdown fails in turn",
    tries=4,
    outcome="exit 4 with the file named, old files whole, no temporary; the same command ends like an untouched one",
)
def test_a_refresh_outlives_every_failing_rename(plan, listener, tmp_path, have):
    have("one")
    path, table, text = plan(), tmp_path / "allowances.yaml", tmp_path / "pull.md"

    def begin_anew():
        for one in (table, text, *tmp_path.glob("runs/plan.refresh.yaml*")):
            one.unlink(missing_ok=True)

    written = Written(
        folder=tmp_path,
        begin=begin_anew,
        operate=lambda: _refresh(path, listener, write=True, markdown_path=text),
        look=lambda: open_run(tmp_path / "runs" / "one"),
        result=lambda: (read_table(table).entries, text.exists()),
    )
    assert fail_each_call("rename", written) == 4


def test_a_violated_table_fails_with_names_and_stays_as_it_is(plan, listener, tmp_path, have):
    table = tmp_path / "allowances.yaml"
    have("one")
    _refresh(plan(), listener, write=True)
    _set(table, "1.0")
    before = table.read_bytes()
    answer = _refresh(plan(), listener, markdown_path=tmp_path / "pull.md")
    assert table.read_bytes() == before
    assert answer.failure.startswith(f"{table}: 4 allowances are exceeded, the furthest at ep=")
    assert "policy 'one' (run one), layer " in answer.failure
    assert answer.failure.endswith("nothing was changed, --write replaces it by the fitted table")
    exceeded = answer.answer["check"]["exceeded"]
    assert {(one["policy"], one["allowance"]) for one in exceeded} == {("one", 1.0)}
    assert all(one["factor"] > 1 for one in exceeded)
    assert {row["change"] for row in answer.answer["difference"]} == {"raised"}
    assert "is violated**" in (tmp_path / "pull.md").read_text()


def test_write_keeps_a_persons_comments_and_is_then_up_to_date(plan, listener, tmp_path, policy_folder, other_policy, have):
    table = tmp_path / "allowances.yaml"
    have("one", "two")
    assert _refresh(plan(), listener, write=True).answer["is_written"]
    table.write_text(table.read_text().replace("entries:\n", "# Ada: agreed with the trainers\nentries:\n", 1))
    path = plan(("one", policy_folder), ("two", other_policy))
    answer = _refresh(path, listener, write=True)
    assert answer.answer["is_written"]
    assert "# Ada: agreed with the trainers\nentries:\n" in table.read_text()
    assert read_table(table).entries == read_table(tmp_path / "runs" / "plan.refresh.yaml").entries
    before = _files(tmp_path)
    again = _refresh(path, listener, write=True)
    assert not again.answer["is_written"]
    assert {row["change"] for row in again.answer["difference"]} == {"same"}
    assert again.failure is None
    assert _files(tmp_path) == before


def test_a_violated_table_that_is_written_still_fails_once(plan, listener, tmp_path, have):
    have("one")
    _refresh(plan(), listener, write=True)
    _set(tmp_path / "allowances.yaml", "1.0")
    written = _refresh(plan(), listener, write=True)
    assert written.failure.endswith("the fitted table replaces it")
    assert _refresh(plan(), listener).failure is None


def test_a_policy_that_the_plan_no_longer_has_is_lost_support(plan, listener, policy_folder, other_policy, have):
    have("one", "two")
    _refresh(plan(("one", policy_folder), ("two", other_policy)), listener, write=True)
    rows = _refresh(plan(), listener).answer["difference"]
    assert all("without policy two" in row["lost_support"] for row in rows)


def test_a_table_of_another_model_is_refused_before_anything_is_measured(plan, listener, tmp_path, policy_folder, calls, have):
    wide = write_tiny_policy(tmp_path / "wide", config=tiny_config(num_experts=16))
    have("one")
    _refresh(plan(), listener, write=True)
    calls.clear()
    with pytest.raises(InputError, match=r"runs/wide: another model, num_experts 16 against 8 of tiny in .*allowances\.yaml"):
        _refresh(plan(("wide", wide)), listener)
    with pytest.raises(InputError, match=r"runs/one and .*runs/wide: two models, num_experts 8 against 16; a plan is of one"):
        _refresh(plan(("one", policy_folder), ("wide", wide), table="none.yaml"), listener)
    assert calls == []


def test_an_ep_that_does_not_divide_is_refused_before_anything_is_measured(plan, listener, tmp_path):
    with pytest.raises(InputError, match="ep: 3 is refused, it does not divide 8 experts; valid sizes: 2, 4, 8"):
        _refresh(plan(ep=[3]), listener)
    assert not (tmp_path / "runs").exists()


def test_a_table_edited_by_hand_is_refused_unless_somebody_answers_for_it(plan, listener, tmp_path, have):
    table = tmp_path / "allowances.yaml"
    have("one")
    _refresh(plan(), listener, write=True)
    whole = read_table(table)
    write_table(table, replace(whole, override=Override(reason="a trial", name="Ada")))
    answer = _refresh(plan(), listener, write=True)
    assert any(line.startswith("override_dropped") for line in answer.warnings)
    table.write_text(table.read_text().replace("num_batches: ", "num_batches: 1", 1))
    with pytest.raises(DamagedDataError, match=r"allowances\.yaml:\d+: edited by hand"):
        _refresh(plan(), listener, write=True)


def test_a_run_keeps_the_label_it_was_measured_with_and_that_is_said(plan, listener, request_for, tmp_path):
    measure(request_for(tmp_path / "runs" / "one", label="earlier"), listener)
    answer = _refresh(plan(), listener)
    assert any("other_label" in line and "'earlier'" in line for line in answer.warnings)
    assert "<code>earlier</code>" in answer.markdown


def test_runs_without_a_full_batch_of_the_tables_sizes_say_nothing_of_it(plan, listener, have):
    have("one")
    _refresh(plan(batch_tokens=[1200]), listener, write=True)
    small = plan()
    body = json.loads(small.read_text())
    body["runs"][0] |= {"out": "runs/small", "max_tokens": 1000}
    small.write_text(json.dumps({**body, "batch_tokens": [200]}))
    answer = _refresh(small, listener)
    assert "nothing was checked" in answer.nothing_said
    assert "Nothing is said of" in answer.markdown
    assert [(row["change"], row["lost_support"]) for row in answer.answer["difference"]] == [
        *(("gone", ["no entry"]) for _ in (2, 4)),
        *(("new", []) for _ in (2, 4)),
    ]


def test_the_markdown_replaces_its_own_kind_of_file_alone(plan, listener, tmp_path, have):
    notes = tmp_path / "notes.md"
    notes.write_text("mine\n")
    with pytest.raises(InputError, match="holds something else than a refresh's Markdown"):
        _refresh(plan(), listener, markdown_path=notes)
    assert notes.read_text() == "mine\n"
    assert not (tmp_path / "runs").exists()
    notes.unlink()
    have("one")
    answers = [_refresh(plan(), listener, markdown_path=notes) for _ in range(2)]
    assert notes.read_text() == answers[1].markdown


def test_the_table_is_not_where_the_fit_goes(plan, listener):
    with pytest.raises(InputError, match=r"table: .*plan\.refresh\.yaml is where the fit of this plan goes"):
        _refresh(plan(table="runs/plan.refresh.yaml"), listener)
