"""An allowances file reads back as it was written, and anything else in it is refused with its line."""

import re
from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from routing.core.allowance import (
    AllowanceTable,
    Entry,
    Evidence,
    Floor,
    Generated,
    LayerShare,
    ObservedMax,
    Override,
    PolicyEvidence,
    TableModel,
    entries_hash,
)
from routing.core.errors import DamagedDataError, InputError, StorageError
from routing.core.judgement import Level
from routing.core.observed import ExpertLoad
from routing.core.shapes import ModelShape
from routing.store.allowances import read_table, table_text, write_table

SHAPE = ModelShape(num_layers=40, moe_layers=tuple(range(40)), num_experts=256, top_k=8, hidden_size=2048, expert_ffn_size=512)


def _evidence(label="base"):
    return Evidence(
        method="headroom-v1",
        parameters={"headroom": Decimal("1.35"), "reference_batch_tokens": 200_000, "view": "packed"},
        raw_bound=Decimal("1.324000"),
        grid=Decimal("0.1"),
        ceiling=Decimal(2),
        ceiling_reason="ep = 2",
        binds="core",
        num_batches=17,
        num_units=115,
        unit="task",
        num_tokens=3_500_000,
        observed_max=ObservedMax(
            imbalance=Decimal("1.2400000000000002"),
            busiest_rows=62,
            routed_rows=100,
            run="retail",
            label=label,
            batch=3,
            layer=39,
            rank=1,
            top_experts=(ExpertLoad(expert=200, routed_rows=9), ExpertLoad(expert=201, routed_rows=8)),
        ),
        median=Decimal("1.1"),
        p95=None,
        slack=Decimal("0.16"),
        worst_layers=(LayerShare(layer=39, share=Decimal("1.0000")),),
        floors=(Floor(value=Decimal("1.35"), source="production", kind="inferred", batch_tokens=None, layer="all"),),
        coverage=("17 batches: 1/18",),
        warnings=(),
        policies=(
            PolicyEvidence(
                run="retail",
                label=label,
                name="org/model",
                revision="123e456",
                weights_sha256="0" * 64,
                content_hash="1" * 64,
                corpus_hash="0x1f",
                num_batches=17,
                num_tokens=3_500_000,
                dropped_tokens=5,
                num_units=115,
                observed_max=Decimal("1.24"),
                median=None,
                p95=None,
            ),
        ),
    )


def _table(allowances=(("1.4", 2), ("1.6", 4)), *, name="toy", layer="all", label="base", override=None):
    model = TableModel(
        name=name,
        shape_hash=SHAPE.shape_hash,
        aliases=("other",),
        **{field: getattr(SHAPE, field) for field in ModelShape.__slots__},
    )
    entries = tuple(
        Entry(ep=ep, batch_tokens=200_000, layer=layer, allowance=Decimal(text), status="headroom", evidence=_evidence(label))
        for text, ep in allowances
    )
    generated = Generated(tool_version="0.1.0", tool_commit=None, generated_at="2025-01-01T00:00:00Z")
    return AllowanceTable(
        schema_version=2,
        model=model,
        placement="contiguous",
        generated=generated,
        entries=entries,
        content_hash=entries_hash(model, "contiguous", entries, generated),
        override=override,
    )


def _line_of(text, part):
    return next(number for number, line in enumerate(text.splitlines(), start=1) if part in line)


def _refused(tmp_path, text, error=None):
    """The refusal's line and words: damage in a file that a fit wrote, an input that can't be taken in any other."""
    error = error or (DamagedDataError if not text or text.startswith("# How far above") else InputError)
    path = tmp_path / "allowances.yaml"
    path.write_text(text)
    with pytest.raises(error) as caught:
        read_table(path)
    message = str(caught.value)
    assert "\n" not in message
    return message.removeprefix(f"{path}:").removesuffix("; a fit wrote this file, and not so: fit again, or put a copy back")


def _changed(old, new):
    text = table_text(_table())
    assert old in text
    return text.replace(old, new, 1), _line_of(text, old.splitlines()[0])


def test_a_table_reads_back_equal(tmp_path):
    for table in (_table(), _table(layer=7), _table([("2", 2)]), _table(override=Override(reason="why", name="who"))):
        write_table(tmp_path / "allowances.yaml", table)
        assert read_table(tmp_path / "allowances.yaml") == table


def test_a_person_can_read_the_file(tmp_path):
    lines = table_text(_table()).splitlines()
    assert lines[0].startswith("# ")
    assert "schema_version: 2" in lines
    assert "placement: contiguous" in lines
    start = lines.index("entries:")
    assert lines[start + 1 : start + 6] == [
        "- ep: 2",
        "  batch_tokens: 200000",
        "  layer: all",
        "  allowance: 1.4",
        "  status: headroom",
    ]
    assert "      - {expert: 200, routed_rows: 9}" in lines
    assert lines[-1].startswith("content_hash: ")


def test_decimals_are_the_digits_of_the_file(tmp_path):
    write_table(tmp_path / "allowances.yaml", _table())
    entry = read_table(tmp_path / "allowances.yaml").entries[0]
    assert str(entry.allowance) == "1.4"
    assert str(entry.evidence.observed_max.imbalance) == "1.2400000000000002"


@settings(max_examples=60)
@given(name=st.text(max_size=30), label=st.text(max_size=30))
@example(name="next\x85line", label="line\u2028separator")
def test_any_name_reads_back(tmp_path, name, label):
    table = _table([("1.4", 2)], name=name, label=label)
    path = tmp_path / "allowances.yaml"
    try:
        write_table(path, table)
    except UnicodeEncodeError:
        assert any("\ud800" <= letter <= "\udfff" for letter in name + label)
        return
    assert read_table(path) == table


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("allowance: 1.4", "allowance: 0.9", "allowance 0.9 is below 1, the even share"),
        ("allowance: 1.4", "allowance: 2.1", "allowance 2.1 is above 2, ep = 2: one rank can hold every row, not more"),
        ("ep: 2", "ep: 3", "ep=3 does not divide 256 experts into more than one rank"),
        ("ep: 4", "ep: 2", "ep=2 batch_tokens=200000 layer=all has an entry already"),
        ("allowance: 1.6", "allowance: 1.3", "allowance falls from 1.4 at ep=2 to 1.3 at ep=4"),
        ("allowance: 1.4", "allowance: '1.4'", "entries[0].allowance: '1.4' is not a decimal number"),
        ("allowance: 1.4", "allowance: 1:30", "entries[0].allowance: '1:30' is not a decimal number"),
        ("allowance: 1.4", "allowance: .nan", "entries[0].allowance: '.nan' is not a decimal number"),
        ("allowance: 1.4", "allowance: 14e-1", "entries[0].allowance: '14e-1' is not a decimal number"),
        ("allowance: 1.4", "allowance: null", "entries[0].allowance: null is not a decimal number"),
        ("batch_tokens: 200000", "batch_tokens: 200k", "entries[0].batch_tokens: '200k' is not a whole number"),
        ("batch_tokens: 200000", "batch_tokens: 200000.0", "entries[0].batch_tokens: '200000.0' is not a whole number"),
        ("batch_tokens: 200000", "batch_tokens: true", "entries[0].batch_tokens: 'True' is not a whole number"),
        ("layer: all", "layer: some", "entries[0].layer: 'some' is not a whole number or all"),
        ("layer: all", "layer: 40", "layer=40 is no MoE layer of the model"),
        ("status: headroom", "status: guessed", "entries[0].status: 'guessed' is none of fitted, headroom, published"),
        ("status: headroom", "status: [headroom]", "entries[0].status: a list is none of fitted, headroom, published"),
        ("status: headroom", "status: headroom\n  note: mine", "entries[0].note: no such field; there are ep, batch_tokens"),
        ("schema_version: 2", "schema_version: 0", "schema_version 0 is not 2"),
        ("placement: contiguous", "placement: random", "placement 'random' is none of contiguous, round-robin or file sha256:"),
        ("aliases:\n  - other", "aliases: other", "model.aliases: 'other' is not a list"),
    ],
)
def test_what_contradicts_the_table_is_refused_with_its_line(tmp_path, old, new, message):
    text, line = _changed(old, new)
    line += "no such field" in message  # the line that was added
    assert _refused(tmp_path, text).startswith(f"{line}: {message}")


@pytest.mark.fault(
    "YAML tags, anchors, aliases, merges, duplicate keys, nesting of 50",
    how="one of them put into a sound table",
    tries=10,
    outcome="refused with the line",
)
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("  allowance: 1.4", "  allowance: 1.4\n  allowance: 1.9", "key 'allowance' is there twice"),
        ("allowance: 1.4", "allowance: !!python/object:os.system 1.4", "tags (tag:yaml.org,2002:python/object:os.system)"),
        ("allowance: 1.4", "allowance: !money 1.4", "tags (!money)"),
        ("allowance: 1.4", "allowance: &a 1.4", "anchors and aliases (&a)"),
        ("allowance: 1.4", "allowance: *a", "anchors and aliases (&a)"),
        ("allowance: 1.4", "<<: *a", "anchors and aliases (&a)"),
        ("allowance: 1.4", "? [a, b]\n  : 1", "a key is a word"),
        ("allowance: 1.4", "allowance: " + "[" * 50 + "]" * 50, "nested deeper than 16"),
        ("allowance: 1.4", "allowance: [1.4", "not YAML"),
        ("allowance: 1.4", "\tallowance: 1.4", "not YAML"),
    ],
)
def test_yaml_beyond_plain_data_is_refused_with_its_line(tmp_path, old, new, message):
    text, line = _changed(old, new)
    refusal = _refused(tmp_path, text)
    if message != "not YAML":
        line += "twice" in message
        assert refusal.startswith(f"{line}: {message}")
    assert message in refusal


def test_a_field_that_lacks_is_named_with_the_line_of_its_entry(tmp_path):
    text, _ = _changed("  status: headroom\n", "")
    assert _refused(tmp_path, text) == f"{_line_of(text, '- ep: 2')}: entries[0].status: is missing"


@pytest.mark.fault(
    "a bomb of YAML aliases",
    how="40 levels of nine",
    tries=1,
    outcome="refused at the first anchor",
)
def test_a_bomb_of_aliases_is_refused_before_it_grows(tmp_path):
    levels = "\n".join(f"l{level}: &l{level} [{', '.join([f'*l{level - 1}'] * 9)}]" for level in range(1, 40))
    assert _refused(tmp_path, f"l0: &l0 [x]\n{levels}\n").startswith("1: anchors and aliases")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "1: an empty file"),
        ("# only a comment\n", "1: an empty file"),
        ("just text\n", "1: the record: 'just text' is not a mapping"),
        ("[]\n", "1: the record: a list is not a mapping"),
        ("a: 1\n---\nb: 2\n", "2: a second document"),
        ("%YAML 1.1\n---\na: 1\n", "2: directives are refused"),
        ("a: \x07\n", " not YAML"),
    ],
)
def test_what_is_no_table_is_refused(tmp_path, text, message):
    assert _refused(tmp_path, text).startswith(message)


def test_any_digit_edited_by_hand_is_refused_with_its_line(tmp_path):
    lines = table_text(_table()).splitlines()
    tried = 0
    for number, line in enumerate(lines, start=1):
        if line.startswith("#"):
            continue
        for place in [place for place, character in enumerate(line) if character.isdigit()][:24]:
            other = str((int(line[place]) + 1 + number % 9) % 10) if number % 9 != 8 else str((int(line[place]) + 5) % 10)
            text = "\n".join([*lines[: number - 1], line[:place] + other + line[place + 1 :], *lines[number:]]) + "\n"
            message = _refused(tmp_path, text, (DamagedDataError, InputError))
            at = int(message.split(":")[0])
            # A rule may name the field that now contradicts the edited one, of the same model or entry.
            assert at == number or "edited by hand" not in message, (line, message)
            tried += 1
    assert tried > 300


@pytest.mark.parametrize("removed", ["    num_batches: 17\n", "- ep: 4\n"])
def test_a_line_taken_out_is_refused(tmp_path, removed):
    text = table_text(_table())
    assert removed in text
    assert _refused(tmp_path, text.replace(removed, "", 1), (DamagedDataError, InputError))


@pytest.mark.parametrize("field", ["estimate", "stress", "held_out", "seed"])
def test_a_field_that_may_lack_and_was_taken_out_is_refused(tmp_path, field):
    """The reader takes an absent one as null: the hash, not a rule, sees that it was there."""
    level = Level(run="r", label="base", stratum=None, estimate=Decimal("1.2"), low=Decimal("1.1"), high=Decimal("1.3"))
    table = _table()
    entry = table.entries[0]
    policies = tuple(replace(one, seed=5) for one in entry.evidence.policies)
    evidence = replace(entry.evidence, estimate=level, stress=level, held_out=(), policies=policies)
    entries = (replace(entry, evidence=evidence), *table.entries[1:])
    hashed = entries_hash(table.model, table.placement, entries, table.generated)
    text = table_text(replace(table, entries=entries, content_hash=hashed))
    shorter, num_cut = re.subn(rf"\n( +){field}: ?(?:5|\[\]|(?:\n\1  .*)+)(?=\n)", "", text)
    assert num_cut == 1
    message = _refused(tmp_path, shorter, DamagedDataError)
    first, last = _line_of(shorter, "- ep: 2"), _line_of(shorter, "- ep: 4")
    assert "edited by hand" in message
    assert first <= int(message.split(":")[0]) < last


def test_an_entry_taken_out_or_in_is_refused_where_it_lay(tmp_path):
    text, fewer = table_text(_table()), table_text(_table([("1.4", 2)]))
    cut, more = (_before(one, "check_digits:") + _from(other, "check_digits:") for one, other in ((fewer, text), (text, fewer)))
    assert _refused(tmp_path, cut, DamagedDataError).startswith(f"{_line_of(cut, 'entries:')}: edited by hand")
    assert _refused(tmp_path, more, DamagedDataError).startswith(f"{_line_of(more, '- ep: 4')}: edited by hand")


@pytest.mark.parametrize("key", ["check_digits", "content_hash"])
def test_what_vouches_is_refused_where_it_was_edited(tmp_path, key):
    text = table_text(_table())
    start = text.index(f"\n{key}:") + len(key) + 10
    edited = text[:start] + ("0" if text[start] != "0" else "1") + text[start + 1 :]
    assert _refused(tmp_path, edited, DamagedDataError).startswith(f"{1 + text[:start].count(chr(10))}: edited by hand")


def test_a_table_without_its_check_digits_is_refused(tmp_path):
    text = table_text(_table())
    without = _before(text, "check_digits:") + _from(text, "content_hash:")
    assert "lacks check_digits" in _refused(tmp_path, without)
    assert "no list of text" in _refused(tmp_path, without.replace("entries:", "check_digits: 5\nentries:"))


def _before(text, key):
    return text[: text.index(f"\n{key}") + 1]


def _from(text, key):
    return text[text.index(f"\n{key}") + 1 :]


def test_a_hand_edit_passes_when_somebody_answers_for_it(tmp_path):
    text, _ = _changed("allowance: 1.4", "allowance: 1.5")
    path = tmp_path / "allowances.yaml"
    path.write_text(f"{text}override:\n  reason: measured elsewhere\n  name: A. Person\n")
    table = read_table(path)
    assert (str(table.entries[0].allowance), table.override) == ("1.5", Override(reason="measured elsewhere", name="A. Person"))
    for empty in ("override: null", "override: {reason: '', name: x}", "override: {reason: x, name: ' '}"):
        path.write_text(f"{text}{empty}\n")
        with pytest.raises((DamagedDataError, InputError)):
            read_table(path)


def test_a_shape_that_is_not_the_hashed_one_is_seen(tmp_path):
    text, _ = _changed("num_experts: 256", "num_experts: 128")
    message = _refused(tmp_path, text, DamagedDataError)
    assert message.startswith(f"{_line_of(text, 'num_experts')}: the shape is not the one of shape_hash")


def test_a_shape_that_cannot_be_is_refused_at_the_model(tmp_path):
    text, _ = _changed("num_experts: 256", "num_experts: 0")
    assert _refused(tmp_path, text) == f"{_line_of(text, 'num_experts')}: num_experts=0 is not positive"


@pytest.mark.fault(
    "a table written by a newer version", how="schema_version 3 in a table", tries=1, outcome="exit 3, both versions named"
)
def test_a_newer_table_is_refused_as_such(tmp_path):
    message = _refused(tmp_path, "schema_version: 3\nnew_field: 1\n", DamagedDataError)
    assert message == "1: schema_version 3 is newer than this program's 2; update it"


def test_a_table_without_entries_is_refused(tmp_path):
    assert "no entry" in _refused(tmp_path, table_text(_table([])))


def test_bytes_that_are_no_text_are_refused(tmp_path):
    path = tmp_path / "allowances.yaml"
    path.write_bytes(b"model: \xff\n")
    with pytest.raises(InputError, match="not UTF-8 at byte 7"):
        read_table(path)
    path.write_bytes(b"#" * 16_000_001)
    with pytest.raises(InputError, match="at most 16000000"):
        read_table(path)


def test_a_missing_file_says_how_to_make_one_and_a_folder_is_none(tmp_path):
    with pytest.raises(InputError, match="routing fit RUN --out"):
        read_table(tmp_path / "absent.yaml")
    with pytest.raises(InputError, match="is a directory, not a file"):
        read_table(tmp_path)


def test_a_table_is_written_whole_or_not_at_all(tmp_path):
    (tmp_path / "file").write_text("kept")
    with pytest.raises(StorageError, match="not written"):
        write_table(tmp_path / "file" / "allowances.yaml", _table())
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("file", "kept")]


def test_the_folder_of_a_table_is_made(tmp_path):
    write_table(tmp_path / "new" / "folder" / "allowances.yaml", _table())
    assert read_table(tmp_path / "new" / "folder" / "allowances.yaml") == _table()
