"""What the verbs share: arguments that mean the same everywhere, answers to stdout, warnings to stderr."""

import json
import os
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from routing.cli.plain import say
from routing.core.batches import BATCH_SIZES
from routing.core.errors import InputError
from routing.core.units import format_size, parse_size_list

Runs = Annotated[list[Path], typer.Argument(help="Run directories that `routing measure` wrote.")]
Allowances = Annotated[Path | None, typer.Option("--allowances", help="The allowance table. Default: the packaged one.")]
Placed = Annotated[
    str, typer.Option("--placement", help="Experts to ranks: contiguous, round-robin, or a file (at its own EP alone).")
]
Ep = Annotated[str | None, typer.Option("--ep", help="Expert-parallel sizes, as 2,4,8. Default: those of 2, 4, 8 that divide.")]
BatchTokens = Annotated[str, typer.Option("--batch-tokens", help="Batch sizes in tokens of the view, as 200k,20k,2k.")]
View = Annotated[str, typer.Option("--view", help="packed: a shared prefix once a batch; logical: every trajectory in full.")]
Order = Annotated[str, typer.Option("--order", help="Trajectory order: `corpus`, or a seed (a whole number) to shuffle by.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout instead of a table.")]
DEFAULT_BATCH_TOKENS = ",".join(map(format_size, BATCH_SIZES))


def print_answer(body: dict[str, Any], as_json: bool, show: Callable[[dict[str, Any]], object]) -> None:
    """`body` on stdout, flushed: as one JSON object, or by `show` for a person."""
    if as_json:
        say(json.dumps(body, allow_nan=False, default=str))
    else:
        show(body)
    sys.stdout.flush()


def warn(warnings: Iterable[str]) -> None:
    """One line each on stderr."""
    for warning in warnings:
        say(f"warning: {warning}", err=True)


def quiet_transformers() -> None:
    """Keeps transformers' bars and advice from between ours; what it would say of absent kernels is in the manifest."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")


def ep_sizes(text: str | None) -> tuple[int, ...] | None:
    """The sizes as asked; that they divide the experts is for the stage to say, which knows how many there are."""
    if text is None:
        return None
    sizes = []
    for part in text.split(","):
        if not re.fullmatch(r"\s*[+-]?[0-9]{1,8}\s*", part):
            raise InputError(f"--ep: {part[:20]!r} is not a whole number; sizes that divide the experts, as 2,4,8")
        sizes.append(int(part))
    if len(set(sizes)) != len(sizes):
        raise InputError(f"--ep: {text!r} names a size twice")
    return tuple(sizes)


def batch_sizes_of(text: str) -> tuple[int, ...]:
    """The sizes of `--batch-tokens`."""
    return parse_size_list(text, name="--batch-tokens")


def order_of(text: str) -> str | int:
    """`corpus`, or the seed of `--order`."""
    if text == "corpus":
        return text
    if not text.isdecimal() or len(text) > 18:
        raise InputError(f"--order: {text[:40]!r} is neither corpus nor a seed (a whole number from 0)")
    return int(text)
