"""A refresh as Markdown for a pull request: what moved and why, what was exceeded, by which runs. No text but names, labels."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from routing.audit.claims import Comparison
from routing.audit.difference import CHANGES, Moved, held_out_of
from routing.audit.words import DASH, binding, count, exact, listed, number_of, size
from routing.core.allowance import AllowanceTable

MARK = "<!-- routing refresh -->"  # tells a file of ours from any other
MAX_ROWS = 60
MAX_ABOVE = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class RunLine:
    """A run that the fitted table rests on; tokens as packed."""

    run: str
    label: str
    tokens_packed: int
    num_trajectories: int
    content_hash: str
    corpus_hash: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RefreshFacts:
    """What the text is made of; `comparisons` hold the committed table against the runs, None where there is no table yet."""

    fitted: AllowanceTable
    moved: tuple[Moved, ...]
    comparisons: tuple[Comparison, ...] | None
    runs: tuple[RunLine, ...]
    table: str
    command: str
    is_written: bool


def markdown(facts: RefreshFacts) -> str:
    """Short, and safe to paste: every name is code, letter by letter escaped."""
    number = {change: sum(one.change == change for one in facts.moved) for change in CHANGES}
    summary = listed(f"{number[change]} {change}" for change in CHANGES if number[change])
    return "\n".join(
        [
            MARK,
            f"### Allowances of {code(facts.fitted.model.name)}: {summary}",
            "",
            *_verdict(facts),
            *_moved(facts.moved),
            *_above(facts.comparisons or ()),
            *_provenance(facts),
        ]
    )


def code(text: str) -> str:
    """`text` as inline code in which nothing is Markdown, HTML, a table's bar, a link or a mention."""
    return "<code>" + "".join(map(_letter, text)) + "</code>"


def plain(text: str) -> str:
    """`text` as running text that means nothing to Markdown or HTML; a space of no width keeps a mention from being one."""
    return "".join(f"{_letter(letter)}&#8203;" if letter in "@#" else _letter(letter) for letter in text)


def _letter(letter: str) -> str:
    if letter.isalnum() or letter == " ":
        return letter
    return f"&#{ord(letter)};" if letter.isprintable() else "&#65533;"


def _verdict(facts: RefreshFacts) -> Iterator[str]:
    table = code(facts.table)
    if facts.comparisons is None:
        yield f"There is no table {table} yet."
    elif exceeded := [one for one in facts.comparisons if one.above]:
        entries = number_of(len({one.where for one in exceeded}), "allowance")
        batches = number_of(sum(len(one.above) for one in exceeded), "batch", "batches")
        yield f"**{table} is violated**: {entries} exceeded by {batches} of these runs."
    elif all(one.outcome == "unmeasured" for one in facts.comparisons):
        yield f"**Nothing is said of {table}**: no run has a full batch of any of its sizes."
    else:
        yield f"{table} holds on every full batch of these runs."
    yield ""


def _moved(moved: Sequence[Moved]) -> Iterator[str]:
    loud = [one for one in moved if not one.is_quiet]
    if loud:
        yield "| EP | batch tokens | layer | committed | fitted | delta | what binds | held out above | lost support |"
        yield "|---:|---:|---:|---:|---:|---:|---|---:|---|"
    for one in loud[:MAX_ROWS]:
        old, new, held_out = one.committed, one.fitted, None if one.fitted is None else held_out_of(one.fitted)
        cells = (
            str(one.entry.ep),
            size(one.entry.batch_tokens),
            str(one.entry.layer),
            DASH if old is None else f"{exact(old.allowance)} {old.status}",
            DASH if new is None else f"**{exact(new.allowance)}** {new.status}",
            DASH if one.delta is None else f"{one.delta:+}",
            DASH if new is None else _binds(new.evidence.binds),
            DASH if held_out is None else f"{held_out[0]:,} of {held_out[1]:,}",
            "; ".join(map(_loss, one.lost_support)),
        )
        yield f"| {' | '.join(cells)} |"
    if loud:
        yield ""
    if len(loud) > MAX_ROWS:
        yield f"And {number_of(len(loud) - MAX_ROWS, 'more entry', 'more entries')}, with `--json`.\n"
    if quiet := len(moved) - len(loud):
        yield f"{number_of(quiet, 'entry is', 'entries are')} as committed, on no less evidence.\n"


def _loss(text: str) -> str:
    prefix = "without policy "
    return f"{prefix}{code(text.removeprefix(prefix))}" if text.startswith(prefix) else text.replace("->", "to")


def _binds(binds: str) -> str:
    prefix = "stratum "
    return f"{prefix}{code(binds.removeprefix(prefix))}" if binds.startswith(prefix) else binding(binds)


def _above(comparisons: Sequence[Comparison]) -> Iterator[str]:
    above = [(one, batch.worst) for one in comparisons for batch in one.above]
    if not above:
        return
    yield "| exceeded at EP | batch tokens | allowance | factor | policy | layer | batch | rank |"
    yield "|---:|---:|---:|---:|---|---:|---:|---:|"
    above.sort(key=lambda pair: -pair[1].decimal(pair[0].entry.ep) / pair[0].entry.allowance)
    for one, worst in above[:MAX_ABOVE]:
        factor = f"{worst.ratio(one.entry.ep):.4f}"
        cells = (one.entry.ep, size(one.entry.batch_tokens), exact(one.entry.allowance), factor, code(one.identity.label))
        yield f"| {' | '.join(map(str, (*cells, worst.layer, worst.batch, worst.rank)))} |"
    yield ""
    if len(above) > MAX_ABOVE:
        yield f"And {number_of(len(above) - MAX_ABOVE, 'more batch', 'more batches')}, with `--json`.\n"


def _provenance(facts: RefreshFacts) -> Iterator[str]:
    yield "| run | policy | tokens | trajectories | counts | corpus |"
    yield "|---|---|---:|---:|---|---|"
    for run in facts.runs:
        hashes = (code(run.content_hash[:16]), code(run.corpus_hash[:16]))
        cells = (code(run.run), code(run.label), count(run.tokens_packed), count(run.num_trajectories), *hashes)
        yield f"| {' | '.join(cells)} |"
    made = facts.fitted.generated
    commit = "" if made.tool_commit is None else f", commit {code(made.tool_commit[:12])}"
    yield ""
    yield (
        f"{code(facts.command)}: fitted {made.generated_at} by routing {made.tool_version}{commit}; {facts.fitted.placement} "
        f"placement, table {code(facts.fitted.content_hash[:16])}{', written' if facts.is_written else ', not written'}. "
        "Only min(EP, experts / top-k) is proven."
    )
    yield ""
