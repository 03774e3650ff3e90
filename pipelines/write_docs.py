"""`make docs`: writes docs/commands.md and the JSON Schemas from the program itself, so that they can't say something else."""

from pathlib import Path

import typer

from routing.cli.app import app
from routing.store.table_schema import SCHEMA_ID, schema_text

TARGET = Path("docs/commands.md")
SCHEMAS = Path("data/schemas")


def commands_text() -> str:
    """Every command with its help, arguments and flags, as Markdown."""
    lines = ["# Commands", "", "Written by `make docs` from the program.", ""]
    group = typer.main.get_command(app)
    for name, command in sorted(group.commands.items()):  # type: ignore[attr-defined]
        lines += [
            f"## routing {name}",
            "",
            " ".join(command.help.split()),
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


def main() -> None:
    """Writes the files."""
    TARGET.write_text(commands_text())
    SCHEMAS.mkdir(exist_ok=True)
    (SCHEMAS / SCHEMA_ID).write_text(schema_text())


if __name__ == "__main__":
    main()
