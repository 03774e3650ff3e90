"""`routing report`: finished runs and an allowance table in, one HTML page out that loads nothing."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, fields
from importlib.resources import files
from pathlib import Path

from routing.audit.claims import Comparison, unmeasured
from routing.audit.facts import Facts, LayerRow, Pairs, Query, RunFacts, WorstRow, entry_facts
from routing.audit.page import page
from routing.audit.verdict import judge
from routing.audit.words import distinct_names
from routing.core.allowance import AllowanceTable
from routing.core.placement import Placement, recorded_placement
from routing.query.checks import LOADS_CHECKS, TREE_CHECKS
from routing.query.imbalance import Tabulated, tabulated
from routing.query.runner import ask
from routing.stages.check import Cut, compared, cuts, other_choices, propose, require_same_model
from routing.stages.imbalance import as_lines, open_distinct
from routing.stages.provenance import tool_commit, tool_version, utc_now, versions
from routing.stages.run_facts import commit_text, run_facts
from routing.store.allowances import read_table
from routing.store.files import require_replaceable, write_bytes
from routing.store.run import Run

USUAL_BATCH_SIZES = (200_000, 20_000, 2_000)
QUERIES = ("imbalance", "imbalance_by_layer", "batch_imbalances", "layer_imbalances", "rank_loads", "block_loads", "batches")
_TOLD_ON_THE_PAGE = ("no_full_batch", "partial_batch_dropped", "one_batch")
_PACKAGES = ("routing", "duckdb", "pyarrow", "numpy", "altair", "vl-convert-python", "jinja2")

GENERATOR = '<meta name="generator" content="routing report">'  # in every page of ours; nothing else is replaced


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportAnswer:
    """The verdict, and `warnings` one line each."""

    headline: str
    sentences: tuple[str, ...]
    warnings: tuple[str, ...]


def report(folders: Sequence[Path], *, allowances: Path, out: Path, command: tuple[str, ...]) -> ReportAnswer:
    """Writes `out` whole or not at all; InputError where a run is of another model than the table."""
    table = read_table(allowances)
    runs = open_distinct(folders)
    for run in runs:
        require_same_model(table, run.manifest.shape, allowances, where=str(run.folder))
    placed = recorded_placement(table.placement, None)
    names = distinct_names([(run.manifest.label, run.name) for run in runs])
    the_cuts = cuts(table, allowances)
    measured, comparisons, warnings = [], list[Comparison](), list[str]()
    for name, run in zip(names, runs, strict=True):
        one, found, cautions = _measured(name, run, the_cuts, placed)
        measured.append(one)
        comparisons += found
        warnings += [*run.notices, *other_choices(table, run), *cautions]
    facts = Facts(
        table=table,
        table_name=allowances.name,
        runs=tuple(measured),
        entries=entry_facts(table, comparisons),
        proposals=propose(table, comparisons),
        view=the_cuts[0].view,
        order=str(the_cuts[0].order),
        checks=(*TREE_CHECKS, *LOADS_CHECKS, "nested_ep"),
        queries=tuple(Query(name=f"sql/{name}.sql", text=_package_text("routing.query", f"sql/{name}.sql")) for name in QUERIES),
        provenance=_provenance(table, command),
    )
    require_replaceable(out, what="a page", marks=(GENERATOR.encode(),))
    write_bytes(out, page(_package_text("routing.audit", "report.html.jinja"), facts).encode(errors="backslashreplace"))
    verdict = judge(facts)
    lines = dict.fromkeys([*warnings, *unmeasured(comparisons)])
    return ReportAnswer(headline=verdict.headline, sentences=verdict.sentences, warnings=tuple(lines))


def _measured(
    name: str, run: Run, the_cuts: Sequence[Cut], placement: Placement
) -> tuple[RunFacts, list[Comparison], list[str]]:
    """A run cut as the table's entries were, and as its first entry was at the usual sizes too, which the charts show."""
    comparisons, cautions, worsts, layers = list[Comparison](), list[str](), list[WorstRow](), list[LayerRow]()
    for place, cut in enumerate(the_cuts):
        sizes = sorted({*cut.batch_sizes, *(USUAL_BATCH_SIZES if place == 0 else ())}, reverse=True)
        with tabulated(run, eps=cut.eps, batch_sizes=sizes, view=cut.view, order=cut.order, placement=placement) as tables:
            comparisons += compared(cut, run, tables)
            cautions += as_lines([one for one in tables.cautions if one.code not in _TOLD_ON_THE_PAGE])
            if place == 0:
                worsts = _worsts(tables, cut)
                layers = [
                    LayerRow(**{field.name: row[field.name] for field in fields(LayerRow)})
                    for row in ask(tables.con, "sql/imbalance_by_layer.sql")
                ]
    return run_facts(name, run, worsts, layers), comparisons, cautions


def _worsts(tables: Tabulated, cut: Cut) -> list[WorstRow]:
    """A row for every EP and batch size; a usual size that the table lacks only where the run has a full batch of it."""
    answers = {(row["ep"], row["batch_tokens"]): row for row in ask(tables.con, "sql/imbalance.sql")}
    own = ("num_batches", "num_tokens", "dropped_tokens", "ep", "batch_tokens")
    values = [field.name for field in fields(WorstRow) if field.name not in own]
    return [
        WorstRow(
            ep=ep,
            batch_tokens=batches.batch_tokens,
            num_batches=batches.num_batches,
            num_tokens=batches.num_tokens,
            dropped_tokens=batches.dropped_tokens,
            **{name: answers.get((ep, batches.batch_tokens), {}).get(name) for name in values},
        )
        for ep in cut.eps
        for batches in tables.batches
        if batches.num_batches or batches.batch_tokens in cut.batch_sizes
    ]


def _provenance(table: AllowanceTable, command: tuple[str, ...]) -> Pairs:
    made = ", ".join(f"{name} {version}" for name, version in versions(_PACKAGES).items())
    return (
        ("table content hash", table.content_hash),
        ("table shape hash", table.model.shape_hash),
        ("table written", f"{table.generated.generated_at} by routing {table.generated.tool_version}"),
        ("table commit", commit_text(table.generated.tool_commit, None)),
        ("this page", f"{utc_now()} by routing {tool_version()}"),
        ("commit", commit_text(*tool_commit())),
        ("versions", made),
        ("command", shlex.join(("routing", *command))),
    )


def _package_text(package: str, name: str) -> str:
    return files(package).joinpath(name).read_text(encoding="utf-8")
