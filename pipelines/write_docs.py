"""`make docs`: writes what the program or its tests know of themselves, so that the documents can't say something else.

docs/commands.md and the JSON Schemas come from the program, docs/architectures.md from the families that are tested.
"""

from pathlib import Path
from typing import Any

import typer

from routing.audit.record_rows import AuditRecord
from routing.cli.app import app
from routing.cli.examples import EXAMPLES
from routing.measure.refusals import REASONS
from routing.store.table_schema import PLAN_SCHEMA_ID, SCHEMA_ID, plan_schema_text, record_schema_text, schema_text
from tests.measure.families import FAMILIES, TRIED_WITH
from tests.measure.tiny import NUM_LAYERS

TARGET = Path("docs/commands.md")
ARCHITECTURES = Path("docs/architectures.md")
SCHEMAS = Path("data/schemas")
AUDIT_SCHEMA_ID = "audit.schema.json"


def verbs(group: Any) -> dict[str, Any]:
    """Every command by name, one inside a group with the group's name before it: `import counts`."""
    found = {}
    for name, command in group.commands.items():
        inner = verbs(command) if hasattr(command, "commands") else {}
        found |= {f"{name} {verb}": one for verb, one in inner.items()} or {name: command}
    return found


def commands_text() -> str:
    """Every command with its help, arguments and flags, as Markdown."""
    lines = ["# Commands", "", "Written by `make docs` from the program.", ""]
    for name, command in sorted(verbs(typer.main.get_command(app)).items()):
        lines += [
            f"## routing {name}",
            "",
            " ".join(command.help.split()),
            "",
            f"    {EXAMPLES[name]}",
            "",
            "| argument or flag | default | what |",
            "|---|---|---|",
        ]
        for parameter in command.params:
            flag = (
                f"`{max(parameter.opts, key=len)}`"
                if parameter.param_type_name == "option"
                else f"`{parameter.metavar or parameter.name.upper()}`"
            )
            default = "required" if parameter.required else "" if parameter.default in (None, False) else f"`{parameter.default}`"
            lines.append(f"| {flag} | {default} | {parameter.help} |")
        lines.append("")
    return "\n".join(lines)


def architectures_text() -> str:
    """The families whose routing is counted, refused or not tried, as Markdown."""
    lines = [
        "# Architectures",
        "",
        "Written by `make docs` from the table that `tests/measure/test_families.py` holds against a tiny random model of each",
        f"family (transformers {TRIED_WITH}, float32, {NUM_LAYERS} layers). Names are the `model_type` of a configuration, or of",
        "its text part where transformers builds that alone; vision and audio towers are built tiny and see nothing.",
        "",
        f"## Counted: {len(FAMILIES)}",
        "",
        "Under each experts implementation named, an expert is counted with just the tokens whose output turns NaN when its",
        "weights do. Every token has top-k rows in every layer, padding and shared experts none; the layers are those whose",
        "parameters hold experts; rows padded on the right, without a mask, route as the sequences alone. Prefixes are",
        "computed once where passes that go on from the model's cache chose the same experts, else every trajectory whole",
        "([decision 0006](decisions/0006-a-prefix-once.md)); each run probes its own model again.",
        "",
        "| model type | router | tokens mixed by | layers with experts | shared expert | experts implementations | walk |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, family in FAMILIES.items():
        layers, shared = ", ".join(map(str, family.layers)), "yes" if family.shared else "no"
        implementations = ", ".join(family.implementations)
        lines.append(f"| `{name}` | {family.router} | {family.mixer} | {layers} | {shared} | {implementations} | {family.walk} |")
    lines += ["", f"## Refused: {len(REASONS)}", "", "| model type | why |", "|---|---|"]
    lines += [f"| `{name}` | {why} |" for name, why in REASONS.items()]
    lines += [
        "",
        "Also refused: a configuration with `is_causal` off, and a model whose modules show no argument that we read.",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    """Writes the files."""
    ARCHITECTURES.write_text(architectures_text())
    TARGET.write_text(commands_text())
    SCHEMAS.mkdir(exist_ok=True)
    (SCHEMAS / SCHEMA_ID).write_text(schema_text())
    (SCHEMAS / PLAN_SCHEMA_ID).write_text(plan_schema_text())
    (SCHEMAS / AUDIT_SCHEMA_ID).write_text(record_schema_text(AuditRecord, AUDIT_SCHEMA_ID))


if __name__ == "__main__":
    main()
