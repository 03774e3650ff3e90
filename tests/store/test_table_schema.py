"""The JSON Schema is what the program says, and refuses of single fields what the strict reader refuses."""

import json
import subprocess
import sys
from decimal import Decimal

import pytest
from pydantic import ValidationError

from pipelines.write_docs import SCHEMAS
from routing.core.allowance import Override
from routing.core.errors import DamagedDataError, InputError
from routing.store.allowances import parse_table, table_text
from routing.store.table_schema import SCHEMA_ID, file_model, schema_text
from routing.store.yaml_nodes import read_nodes
from tests.conftest import REPOSITORY
from tests.store.test_allowances import _table

COMMITTED = REPOSITORY / "allowances.yaml"
SCHEMA = REPOSITORY / SCHEMAS / SCHEMA_ID


def _values(text):
    return read_nodes(text, where="file").plain()


def _reader_refuses(text):
    """Whether a field or value is refused; a hash that no longer fits is another matter."""
    try:
        parse_table(text, where="file")
    except InputError:
        return True
    except DamagedDataError:
        return False
    return False


def _model_refuses(text):
    try:
        file_model().model_validate(_values(text))
    except ValidationError:
        return True
    return False


def test_the_committed_schema_is_what_the_program_says():
    assert SCHEMA.read_text() == schema_text(), "run `make docs`"


def test_the_schema_names_its_dialect_and_describes_every_record():
    schema = json.loads(SCHEMA.read_text())
    assert (schema["$schema"], schema["$id"]) == ("https://json-schema.org/draft/2020-12/schema", SCHEMA_ID)
    records = [schema, *schema["$defs"].values()]
    assert all(record["description"] and record["additionalProperties"] is False for record in records)
    assert schema["$defs"]["Entry"]["properties"]["allowance"] == {"type": "number", "minimum": 1}
    assert schema["properties"]["schema_version"]["const"] == 2


def test_the_committed_table_validates():
    model = file_model().model_validate(_values(COMMITTED.read_text()))
    table = parse_table(COMMITTED.read_text(), where="file")
    assert [entry.allowance for entry in model.entries] == [entry.allowance for entry in table.entries]


def test_a_json_schema_validator_takes_the_committed_table_and_refuses_another():
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    validator = jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text()))
    validator.check_schema(validator.schema)
    body = json.loads(json.dumps(_values(COMMITTED.read_text()), default=float))
    assert list(validator.iter_errors(body)) == []
    body["entries"][0]["allowance"] = 0.9
    del body["entries"][1]["status"]
    body["note"] = "mine"
    assert sorted(error.validator for error in validator.iter_errors(body)) == ["additionalProperties", "minimum", "required"]


VALID = (
    _table(),
    _table(layer=7),
    _table([("2", 2)]),
    _table(name="", label="ü\n# no comment"),
    _table(override=Override(reason="why", name="who")),
)


@pytest.mark.parametrize("table", VALID)
def test_reader_and_model_take_what_is_valid(table):
    text = table_text(table)
    assert not _reader_refuses(text)
    assert not _model_refuses(text)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("allowance: 1.4", "allowance: 0.9"),
        ("allowance: 1.4", "allowance: '1.4'"),
        ("allowance: 1.4", "allowance: null"),
        ("allowance: 1.4", "allowance: true"),
        ("allowance: 1.4", "allowance: [1.4]"),
        ("allowance: 1.4", "allowance: .nan"),
        ("allowance: 1.4", "allowance: .inf"),
        ("allowance: 1.4", "allowance: 14e-1"),
        ("  allowance: 1.4\n", ""),
        ("  allowance: 1.4\n", "  allowance: 1.4\n  note: mine\n"),
        ("- ep: 2", "- ep: 1"),
        ("- ep: 2", "- ep: -2"),
        ("- ep: 2", "- ep: 2.0"),
        ("- ep: 2", "- ep: two"),
        ("batch_tokens: 200000", "batch_tokens: 0"),
        ("batch_tokens: 200000", "batch_tokens: 200k"),
        ("batch_tokens: 200000", "batch_tokens: true"),
        ("layer: all", "layer: some"),
        ("layer: all", "layer: 1.0"),
        ("layer: all", "layer: null"),
        ("status: headroom", "status: guessed"),
        ("status: headroom", "status: null"),
        ("    num_units: 115", "    num_units: many"),
        ("    binds: core", "    binds: 1"),
        ("    median: 1.1", "    median: high"),
        ("  aliases:\n  - other", "  aliases: other"),
        ("  aliases:\n  - other", "  aliases:\n  - 1"),
        ("  name: toy", "  name: [toy]"),
        ("  num_experts: 256", "  num_experts: 0"),
        ("  top_k: 8", "  top_k: 8.0"),
        ("schema_version: 2", "schema_version: 0"),
        ("schema_version: 2", "schema_version: one"),
        ("placement: contiguous", "placement: random"),
        ("generated:\n", "generated: now\nother:\n"),
        ("kind: inferred", "kind: guessed"),
        ("  reason: why", "  reason: ' '"),
        ("  reason: why\n", ""),
    ],
)
def test_reader_and_model_refuse_the_same_fields(old, new):
    text = table_text(VALID[-1])
    assert old in text
    text = text.replace(old, new, 1)
    assert _reader_refuses(text)
    assert _model_refuses(text)


@pytest.mark.parametrize("value", ["[]", "entries", "null"])
def test_reader_and_model_refuse_what_is_no_list_of_entries(value):
    text = table_text(_table())
    text = text[: text.index("entries:")] + f"entries: {value}\n" + text[text.index("\ncontent_hash:") + 1 :]
    assert _reader_refuses(text)
    assert _model_refuses(text)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("- ep: 2", "- ep: 3"),  # no divisor of 256
        ("allowance: 1.4", "allowance: 2.5"),  # above EP 2
        ("layer: all", "layer: 40"),  # of 40 layers, from 0
        ("top_k: 8", "top_k: 257"),  # of 256 experts
    ],
)
def test_what_fields_say_of_each_other_is_the_reader_s_alone(old, new):
    text = table_text(_table()).replace(old, new, 1)
    assert _reader_refuses(text)
    assert not _model_refuses(text)


def test_a_whole_number_is_a_decimal_for_both():
    text = table_text(_table([("2", 2)])).replace("allowance: 2.0", "allowance: 2")
    assert parse_table(text, where="file").entries[0].allowance == Decimal(2)
    assert file_model().model_validate(_values(text)).entries[0].allowance == Decimal(2)


def test_reading_a_table_needs_no_pydantic():
    script = (
        "import sys; sys.modules['pydantic'] = None; import routing.store.table_schema; from pathlib import Path; "
        "from routing.store.allowances import read_table; print(len(read_table(Path('allowances.yaml')).entries))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=REPOSITORY, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "3"), done.stderr
