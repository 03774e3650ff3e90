"""`routing report`: finished runs and an allowance table in, one HTML page out that loads nothing."""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from routing.audit.claims import unmeasured
from routing.audit.difference import difference
from routing.audit.entries import entry_facts
from routing.audit.facts import Facts, Query
from routing.audit.page import page
from routing.audit.pull_report import MARK, report_markdown
from routing.audit.record import audit_body
from routing.audit.verdict import judge
from routing.audit.words import distinct_names
from routing.core.allowance import AllowanceTable
from routing.core.calibration import Calibration
from routing.core.placement import recorded_placement
from routing.query.checks import RUN_CHECKS
from routing.query.script import query_text
from routing.stages.check import cuts, other_choices, propose, require_same_model
from routing.stages.imbalance import open_distinct
from routing.stages.peaks import PeakFiles, peak_facts
from routing.stages.provenance import tool_commit, tool_version, utc_now, versions
from routing.stages.report_tables import measured, policy_pairs
from routing.stages.run_facts import commit_text
from routing.store.allowances import read_table
from routing.store.calibrations import read_calibrations
from routing.store.files import require_replaceable, sha256_of, write_bytes
from routing.store.packaged import packaged

QUERIES = ("imbalance", "imbalance_by_layer", "worst_rank_loads", "worst_distribution")
GENERATOR = '<meta name="generator" content="routing report">'  # in every page of ours; nothing else is replaced
_PACKAGES = ("routing", "duckdb", "pyarrow", "numpy", "altair", "vl-convert-python", "jinja2")


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportRequest:
    """The arguments of `routing report`; `command` is what was typed, for the provenance."""

    runs: tuple[Path, ...]
    allowances: Path
    out: Path
    against: Path | None = None
    peaks: PeakFiles | None = None
    markdown: Path | None = None
    command: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportAnswer:
    """The verdict, `body` as `--json` gives it, `markdown` for a pull request, and `warnings` one line each."""

    headline: str
    sentences: tuple[str, ...]
    body: dict[str, Any]
    markdown: str
    warnings: tuple[str, ...]


def report(request: ReportRequest) -> ReportAnswer:
    """Writes the page whole or not at all; InputError where a run is of another model than the table."""
    require_replaceable(request.out, what="a page", marks=(GENERATOR.encode(),))
    if request.markdown is not None:
        require_replaceable(request.markdown, what="a summary of a report", marks=(MARK.encode(),))
    facts, warnings = _facts(request)
    text = page(files("routing.audit").joinpath("report.html.jinja").read_text(encoding="utf-8"), facts)
    write_bytes(request.out, text.encode(errors="backslashreplace"))
    markdown = report_markdown(facts)
    if request.markdown is not None:
        write_bytes(request.markdown, markdown.encode(errors="backslashreplace"))
    verdict = judge(facts)
    return ReportAnswer(
        headline=verdict.headline,
        sentences=(f"What to do: {verdict.action}", *verdict.sentences),
        body=audit_body(facts),
        markdown=markdown,
        warnings=tuple(dict.fromkeys([*warnings, *unmeasured(facts.comparisons)])),
    )


def _facts(request: ReportRequest) -> tuple[Facts, list[str]]:
    table = read_table(request.allowances)
    runs = open_distinct(request.runs)
    for run in runs:
        require_same_model(table, run.manifest.shape, request.allowances, where=str(run.folder))
    against = None if request.against is None else read_table(request.against)
    if against is not None:
        require_same_model(table, against.model.shape, request.allowances, where=str(request.against))
    peaks = () if request.peaks is None else peak_facts(request.peaks, allowances=request.allowances)
    the_cuts = cuts(table, request.allowances)
    names = distinct_names([(run.manifest.label, run.name) for run in runs])
    placed = recorded_placement(table.placement, None)
    found = [measured(name, run, the_cuts, placed) for name, run in zip(names, runs, strict=True)]
    comparisons = [comparison for one in found for comparison in one.comparisons]
    facts = Facts(
        table=table,
        table_name=request.allowances.name,
        runs=tuple(one.facts for one in found),
        entries=entry_facts(table, comparisons),
        proposals=propose(table, comparisons),
        view=the_cuts[0].view,
        order=str(the_cuts[0].order),
        checks=RUN_CHECKS,
        queries=tuple(Query(name=f"sql/{name}.sql", text=query_text(name)) for name in QUERIES),
        provenance=tuple(_provenance(table, against, request)),
        pairs=policy_pairs(found, the_cuts[0].eps) if found else (),
        peaks=peaks,
        calibrations=_calibrations(table),
        against=None if against is None else difference(against, table),
        against_name=None if request.against is None else request.against.name,
    )
    cautions = [line for one, run in zip(found, runs, strict=True) for line in (*other_choices(table, run), *one.cautions)]
    return facts, [*(notice for run in runs for notice in run.notices), *cautions]


def _calibrations(table: AllowanceTable) -> tuple[Calibration, ...]:
    """Of the methods that bound the table's entries."""
    methods = {entry.evidence.method for entry in table.entries}
    methods |= {one.method for entry in table.entries for one in entry.evidence.policies if one.method is not None}
    return tuple(one for one in read_calibrations(packaged("measured/calibration.csv")) if one.method in methods)


def _provenance(table: AllowanceTable, against: AllowanceTable | None, request: ReportRequest) -> Iterator[tuple[str, str]]:
    yield "table content hash", table.content_hash
    yield "table shape hash", table.model.shape_hash
    yield "table written", f"{table.generated.generated_at} by routing {table.generated.tool_version}"
    yield "table commit", commit_text(table.generated.tool_commit, None)
    if against is not None:
        yield "earlier table content hash", against.content_hash
        yield "earlier table written", f"{against.generated.generated_at} by routing {against.generated.tool_version}"
    if request.peaks is not None:
        for what, path in (("peaks sha256", request.peaks.peaks), ("waves sha256", request.peaks.waves)):
            yield what, sha256_of(path)
    yield "this page", f"{utc_now()} by routing {tool_version()}"
    yield "commit", commit_text(*tool_commit())
    yield "versions", ", ".join(f"{name} {version}" for name, version in versions(_PACKAGES).items())
    yield "command", shlex.join(("routing", *request.command))
