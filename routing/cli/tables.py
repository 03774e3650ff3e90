"""Answers as tables that a person reads."""

from typing import Any

from rich.table import Table

from routing.cli.plain import PlainConsole
from routing.core.units import format_size


def show_facts(facts: dict[str, Any]) -> None:
    """One name and value a line."""
    table = Table(show_header=False, box=None, pad_edge=False)
    for name, value in facts.items():
        table.add_row(name, _cell(value))
    print_table(table)


def show_imbalance(answer: dict[str, Any]) -> None:
    """The rows of `routing imbalance`; what no full batch defines is a dash."""
    rows = answer["rows"]
    names = list(rows[0]) if rows else []
    table = Table(
        title=f"imbalance = busiest rank / even share (1.0 is even); {answer['placement']} placement; indices are 0-based"
    )
    for name in names:
        table.add_column(name.replace("_", " "), justify="left" if name in ("run", "label", "view") else "right")
    for row in rows:
        table.add_row(*(format_size(value) if name == "batch_tokens" else _cell(value) for name, value in row.items()))
    print_table(table)


def show_runs(answer: dict[str, Any]) -> None:
    """Each run's facts, nested ones indented."""
    for facts in answer["runs"]:
        table = Table(show_header=False, box=None, pad_edge=False)
        for name, value in facts.items():
            if isinstance(value, dict):
                for inner, item in value.items():
                    table.add_row(f"{name}.{inner}", _cell(item))
            else:
                table.add_row(name, _cell(value))
        print_table(table)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.4f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, list | tuple):
        return ", ".join(_cell(item) for item in value)
    return str(value)


def print_table(table: Table) -> None:
    """The table at its own width: a number cut to fit a terminal would be a wrong number."""
    wide = PlainConsole(width=10_000)
    PlainConsole(width=max(80, wide.measure(table).maximum)).print(table, crop=False)
