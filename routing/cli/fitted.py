"""The answer of `routing fit` as a person reads it, within 100 columns; `--json` has every field of it.

What is allowed and what binds it; below, what that rests on; then the sentences that say how far it reaches.
"""

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from rich.table import Table

from routing.cli.plain import say
from routing.cli.tables import print_table
from routing.core.coverage import HELD_OUT
from routing.core.units import format_size

_WIDTH = 100
_STRATUM = "stratum "
_HELD_OUT = ("units", "stratum", "policy")
_ALLOWED = ("ep", "batch\ntokens", "layer", "allowance", "status", "binds", "slack", "raw bound", "observed\nmax")
_RESTS = ("ep", "batch\ntokens", "batches", "units", "H (95% interval)", "S", "halves", "strata", "policies")


def show_fit(table: dict[str, Any]) -> None:
    """A table of allowances as plain values."""
    entries = table["entries"]
    names = sorted({name for entry in entries for name in _strata(entry)})
    numbers = {name: f"{_STRATUM}{number}" for number, name in enumerate(names, start=1)}
    allowed = _view(f"allowances for {table['model']['name']} ({table['placement']} placement)", _ALLOWED)
    for entry in entries:
        allowed.add_row(*_allowed(entry, numbers))
    print_table(allowed)
    rests = _view("H: level that 1 batch in 1,000 exceeds; S: the largest inside a stratum; held out: above / of", _RESTS)
    of_all = [entry for entry in entries if entry["layer"] == "all"]
    for entry in of_all:
        rests.add_row(*_rests(entry, numbers))
    print_table(rests)
    for line in (*(f"{number}: {name}" for name, number in numbers.items()), *dict.fromkeys(_sentences(of_all))):
        say(textwrap.fill(line, _WIDTH, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False))


def _view(title: str, names: Sequence[str]) -> Table:
    view = Table(title=title)
    for name in names:
        view.add_column(name, justify="left" if name in ("status", "binds") else "right")
    return view


def _strata(entry: dict[str, Any]) -> Iterator[str]:
    """Names that the tables say by number."""
    binds, stress = entry["evidence"]["binds"], entry["evidence"]["stress"]
    if binds.startswith(_STRATUM):
        yield binds.removeprefix(_STRATUM)
    if stress is not None:
        yield stress["stratum"]


def _allowed(entry: dict[str, Any], numbers: dict[str, str]) -> Iterator[str]:
    evidence = entry["evidence"]
    most = evidence["observed_max"] or {}
    binds = evidence["binds"]
    what, _, size = binds.partition("batch_tokens=")
    yield str(entry["ep"])
    yield format_size(entry["batch_tokens"])
    yield str(entry["layer"])
    yield f"{entry['allowance']:g}"
    yield entry["status"]
    yield f"batch {format_size(int(size))}" if size else numbers.get(what.removeprefix(_STRATUM), what)
    yield from map(_ratio, (evidence["slack"], evidence["raw_bound"], most.get("imbalance")))


def _rests(entry: dict[str, Any], numbers: dict[str, str]) -> Iterator[str]:
    evidence = entry["evidence"]
    level, stress, units = evidence["estimate"], evidence["stress"], evidence["num_units"]
    yield str(entry["ep"])
    yield format_size(entry["batch_tokens"])
    yield f"{evidence['num_batches']:,}"
    yield "-" if units is None else f"{units:,}"
    yield "-" if level is None else f"{level['estimate']:.3f} ({level['low']:.3f}, {level['high']:.3f})"
    yield "-" if stress is None else f"{stress['high']:.3f}, {numbers[stress['stratum']].removeprefix(_STRATUM)}"
    for kind in _HELD_OUT:
        held = [one for one in evidence["held_out"] or () if one["kind"] == kind]
        above, of = (sum(one[name] for one in held) for name in ("num_above", "num_batches"))
        yield f"{above:,}/{of:,}" if held else "-"


def _sentences(entries: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Where the largest was, and the coverage; of what was held out only what is above, the rest is in the table."""
    for entry in entries:
        most = entry["evidence"]["observed_max"]
        if most is not None:
            where = f"batch {most['batch']}, layer {most['layer']}, rank {most['rank']}" if most["run"] else "not stated where"
            size = format_size(entry["batch_tokens"])
            yield f"EP {entry['ep']}, {size}: observed max {most['imbalance']:.4f} of {most['label']}, {where}."
    for entry in entries:
        held = [one for one in entry["evidence"]["held_out"] or () if not one["num_above"]]
        clean = tuple(f"{one['label']}{HELD_OUT}{'as a policy' if one['kind'] == 'policy' else one['part']}: " for one in held)
        yield from (sentence for sentence in entry["evidence"]["coverage"] if not sentence.startswith(clean))


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
