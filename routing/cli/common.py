"""What the verbs share: arguments that mean the same everywhere, answers to stdout, warnings to stderr."""

import json
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

Runs = Annotated[list[Path], typer.Argument(help="Run directories that `routing measure` wrote.")]
Allowances = Annotated[Path | None, typer.Option("--allowances", help="The allowance table. Default: the packaged one.")]
Placed = Annotated[
    str, typer.Option("--placement", help="Experts to ranks: contiguous, round-robin, or a file (at its own EP alone).")
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout instead of a table.")]


def print_answer(body: dict[str, Any], as_json: bool, show: Callable[[dict[str, Any]], object]) -> None:
    """`body` on stdout, flushed: as one JSON object, or by `show` for a person."""
    if as_json:
        typer.echo(json.dumps(body, allow_nan=False, default=str))
    else:
        show(body)
    sys.stdout.flush()


def warn(warnings: Iterable[str]) -> None:
    """One line each on stderr."""
    for warning in warnings:
        typer.echo(f"warning: {warning}", err=True)


def quiet_transformers() -> None:
    """Keeps transformers' bars and advice from between ours; what it would say of absent kernels is in the manifest."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
