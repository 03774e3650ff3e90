"""The committed allowances.yaml is what its published figures give, and no digit of it changes unseen."""

import re
from decimal import Decimal

import pytest

from pipelines.publish_table import FIGURES, OUT, publish, published_table
from routing.core.errors import DamagedDataError, InputError
from routing.store.allowances import parse_table, read_table
from routing.store.model_shapes import bundled_models, find_shape
from routing.store.published import read_published_worsts
from tests.conftest import REPOSITORY

COMMITTED = REPOSITORY / OUT
TEXT = COMMITTED.read_text()
# When and by what the table was made: no number rests on it, and the hash leaves it out.


def test_the_committed_table_is_refitted_from_its_figures():
    committed = read_table(COMMITTED)
    refitted, _ = published_table(REPOSITORY / FIGURES, committed.generated)
    assert refitted == committed


def test_the_committed_table_holds_the_published_allowances():
    entries = read_table(COMMITTED).entries
    assert [(entry.ep, entry.batch_tokens, entry.layer, str(entry.allowance), entry.status) for entry in entries] == [
        (2, 200_000, "all", "1.4", "published"),
        (4, 200_000, "all", "1.6", "published"),
        (8, 200_000, "all", "2.0", "published"),
    ]


def test_the_committed_table_warns_of_what_it_rests_on():
    told = {entry.ep: " ".join(entry.evidence.warnings) for entry in read_table(COMMITTED).entries}
    assert "EP 8 rests on one small sample" in told[8]
    assert "EP 4 has no small-batch evidence" in told[4]
    for warnings in told.values():
        assert "low_evidence: " in warnings
        assert "3.5M tokens are 17 batches of 200k: the next batch passes the largest of 17 once in 18" in warnings


def test_the_table_belongs_to_the_bundled_model_and_its_equal_shapes():
    model = read_table(COMMITTED).model
    assert (model.num_layers, model.moe_layers, model.num_experts, model.top_k) == (40, tuple(range(40)), 256, 8)
    assert (model.hidden_size, model.expert_ffn_size) == (2048, 512)
    names = next(bundled.names for bundled in bundled_models() if model.name in bundled.names)
    assert (model.name, *model.aliases) == names
    assert {find_shape(name).routed.shape_hash for name in names} == {model.shape_hash}


def test_the_kept_figures_are_the_published_ones():
    shared = REPOSITORY.parent / "shared" / "published"
    if not shared.is_dir():
        pytest.skip("the published figures (../shared/published) are not beside this checkout")
    for name in ("routing_worsts.csv", "memory_errors.csv", "memory_case_ep2_cp2.yaml"):
        kept, published = ((folder / name).read_text() for folder in (REPOSITORY / "data" / "published", shared))
        assert _without_comments(kept) == _without_comments(published)


def _without_comments(text):
    return [line for line in text.splitlines() if not line.lstrip().startswith("#")]


def test_publishing_again_changes_no_byte(tmp_path):
    out = tmp_path / "allowances.yaml"
    out.write_text(TEXT)
    assert "up to date" in publish(REPOSITORY / FIGURES, out)
    assert out.read_text() == TEXT


def test_publishing_makes_the_table_from_nothing(tmp_path):
    out = tmp_path / "allowances.yaml"
    assert "written" in publish(REPOSITORY / FIGURES, out)
    committed, made = read_table(COMMITTED), read_table(out)
    assert (made.entries, made.model) == (committed.entries, committed.model)


def test_publishing_mends_a_hand_edit_and_keeps_comments(tmp_path):
    out = tmp_path / "allowances.yaml"
    out.write_text(TEXT.replace("- ep: 8", "# too high?\n- ep: 8").replace("allowance: 2.0", "allowance: 1.9"))
    assert "written" in publish(REPOSITORY / FIGURES, out)
    assert read_table(out).entries == read_table(COMMITTED).entries
    assert "\n# too high?\n- ep: 8\n" in out.read_text()


def test_another_figure_gives_another_table(tmp_path):
    figures = tmp_path / "worsts.csv"
    figures.write_text((REPOSITORY / FIGURES).read_text().replace("1.41", "1.45"))
    assert max(row.worst_imbalance for row in read_published_worsts(figures) if row.ep == 4) == Decimal("1.45")
    table, _ = published_table(figures, read_table(COMMITTED).generated)
    assert [str(entry.allowance) for entry in table.entries] == ["1.4", "1.7", "2.0"]  # 1 + 1.35 x 0.45 = 1.6075


def _digits():
    """Places of digits outside comments: all of the numbers that are priced or belong to the model, each fifth of the others."""
    at = 0
    for line in TEXT.splitlines(keepends=True):
        key = line.strip().removeprefix("- ")
        places = [] if key.startswith("#") else [at + place for place, letter in enumerate(line) if letter.isdigit()]
        named = ("ep:", "batch_tokens:", "allowance:", "value:", "schema_version:", "num_layers:", "num_experts:", "top_k:")
        whole = key.startswith((*named, "hidden_size:", "expert_ffn_size:", "name:", "imbalance:", "raw_bound:", "ceiling:"))
        yield from places if whole else places[::5]
        at += len(line)


def test_no_digit_changes_unseen(tmp_path):
    changed = list(_digits())
    assert len(changed) > 150
    lines = len(TEXT.splitlines())
    for place in changed:
        tampered = f"{TEXT[:place]}{(int(TEXT[place]) + 1) % 10}{TEXT[place + 1 :]}"
        with pytest.raises((InputError, DamagedDataError)) as caught:
            parse_table(tampered, where="allowances.yaml")
        found = re.match(r"allowances\.yaml:(\d+): [^\n]+$", str(caught.value))
        assert found is not None, str(caught.value)
        assert 1 <= int(found.group(1)) <= lines


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("allowance: 2.0", "allowance: 3.0", "allowance: 3.0"),
        ("allowance: 2.0", "allowance: 9.0", "allowance: 9.0"),
        ("allowance: 1.6", "allowance: 1.3", "allowance: 1.3"),
        ("value: 1.95", "value: 1.85", "- value: 1.85"),
        ("batch_tokens: 200000", "batch_tokens: 100000", "batch_tokens: 100000"),
        ("- ep: 8", "- ep: 7", "- ep: 7"),
        ("num_experts: 256", "num_experts: 255", "num_experts: 255"),
        ("name: qwen3.6-35b-a3b", "name: qwen3.5-35b-a3b", "name: qwen3.5-35b-a3b"),
    ],
)
def test_a_changed_file_is_refused_with_the_line(tmp_path, old, new, line):
    path = tmp_path / "allowances.yaml"
    assert old in TEXT
    path.write_text(TEXT.replace(old, new, 1))
    number = max(number for number, one in enumerate(path.read_text().splitlines(), start=1) if one.strip().startswith(line))
    with pytest.raises((InputError, DamagedDataError), match=re.escape(f"{path}:{number}: ")):
        read_table(path)
