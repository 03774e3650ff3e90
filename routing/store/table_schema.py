"""The allowances file as a pydantic model and a JSON Schema, both made from the dataclasses that the reader fills; a plan too.

They say what a field may hold by itself. What fields say of each other (the hash, the ceiling, EP sizes that divide the experts,
no value that falls in EP) is `read_table`'s alone.
"""

import json
from dataclasses import MISSING, fields, is_dataclass
from decimal import Decimal
from functools import cache, reduce
from operator import or_
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from routing.core.allowance import TABLE_SCHEMA_VERSION, AllowanceTable, Entry, Override, TableModel
from routing.core.placement import PLACEMENT
from routing.core.refresh_plan import PlannedRun, RefreshPlan
from routing.core.shapes import ModelShape
from routing.store.check_digits import KEY

if TYPE_CHECKING:
    from pydantic import BaseModel

SCHEMA_ID = "allowances.schema.json"
PLAN_SCHEMA_ID = "refresh_plan.schema.json"
_POSITIVE, _WRITTEN = {"ge": 1}, {"pattern": r"\S"}
_SHAPE = dict.fromkeys((name for name in ModelShape.__slots__ if name != "moe_layers"), _POSITIVE)
# What the reader refuses of a field by itself, in the words of pydantic's Field.
_LIMITS: dict[type, dict[str, dict[str, Any]]] = {
    Entry: {"ep": {"ge": 2}, "batch_tokens": _POSITIVE, "allowance": _POSITIVE},
    AllowanceTable: {"entries": {"min_length": 1}},
    TableModel: _SHAPE | {"moe_layers": {"min_length": 1}, "shape_hash": {"pattern": "^[0-9a-f]{64}$"}},
    Override: {"reason": _WRITTEN, "name": _WRITTEN},
    PlannedRun: dict.fromkeys(("out", "policy", "device", "dtype"), _WRITTEN)
    | {
        "label": _WRITTEN | {"max_length": 100},
        "corpus": {"min_length": 1},
        "segment_tokens": _POSITIVE,
        "max_tokens": _POSITIVE,
    },
    RefreshPlan: {"table": _WRITTEN} | {name: {"min_length": 1} for name in ("runs", "batch_tokens", "ep")},
}
_FIXED: dict[str, Any] = {"schema_version": Literal[TABLE_SCHEMA_VERSION], "placement": Literal[PLACEMENT]}


@cache
def file_model() -> "type[BaseModel]":
    """The pydantic model of the file's plain values, strict: no field too many, no text for a number."""
    return _model_of(AllowanceTable)


@cache
def plan_model() -> "type[BaseModel]":
    """The pydantic model of a refresh plan's plain values."""
    return _model_of(RefreshPlan)


def schema_text() -> str:
    """The JSON Schema (draft 2020-12) of the allowances file as it is committed."""
    return _schema_text(file_model(), SCHEMA_ID)


def plan_schema_text() -> str:
    """The JSON Schema (draft 2020-12) of a refresh plan as it is committed."""
    return _schema_text(plan_model(), PLAN_SCHEMA_ID)


def record_schema_text(kind: type[Any], schema_id: str) -> str:
    """The JSON Schema (draft 2020-12) of what is written from the dataclass `kind`."""
    return _schema_text(_model_of(kind), schema_id)


def _schema_text(model: "type[BaseModel]", schema_id: str) -> str:
    from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

    class OfTheFile(GenerateJsonSchema):
        """Decimals are numbers; no title for each field, which would only repeat its name."""

        def field_title_should_be_set(self, schema: Any) -> bool:
            return False

        def decimal_schema(self, schema: Any) -> JsonSchemaValue:
            return {"type": "number"} | ({"minimum": schema["ge"]} if "ge" in schema else {})

        def generate(self, schema: Any, mode: Any = "validation") -> JsonSchemaValue:
            body = super().generate(schema, mode)
            return {"$schema": self.schema_dialect, "$id": schema_id, **body}

    return json.dumps(model.model_json_schema(schema_generator=OfTheFile), indent=1) + "\n"


def _model_of(kind: type[Any]) -> "type[BaseModel]":
    """A model with the fields of the dataclass `kind`, its docstring as description."""
    from pydantic import ConfigDict, Field, create_model

    hints = get_type_hints(kind) | (_FIXED if kind is AllowanceTable else {})
    limits = _LIMITS.get(kind, {})
    defaults = {field.name: ... if field.default is MISSING else field.default for field in fields(kind)}
    columns: dict[str, Any] = {
        name: (_annotation(hints[name]), Field(default, **limits.get(name, {}))) for name, default in defaults.items()
    }
    if kind is AllowanceTable:
        columns[KEY] = (list[str], ...)  # of the file alone, which the writer adds
    config = ConfigDict(extra="forbid", strict=True, frozen=True)
    model: type[BaseModel] = create_model(kind.__name__, __config__=config, __doc__=kind.__doc__, **columns)
    return model


def _annotation(kind: Any) -> Any:
    """A field's kind in pydantic's words: a list for a tuple, a model for a dataclass, decimals that are numbers in the file."""
    origin, arms = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        assert isinstance(kind, type)
        return _model_of(kind)
    if origin is tuple:
        return list[_annotation(arms[0])]  # type: ignore[misc]
    if origin is dict:
        return dict[str, _annotation(arms[1])]  # type: ignore[misc]
    if origin in (UnionType, Union):
        return reduce(or_, (_annotation(arm) for arm in arms))
    if kind is Decimal:
        return _number()
    return None if kind is NoneType else kind


@cache
def _number() -> Any:
    from pydantic import BeforeValidator

    def exact(value: Any) -> Any:
        return Decimal(value) if type(value) is int else value

    return Annotated[Decimal, BeforeValidator(exact)]
