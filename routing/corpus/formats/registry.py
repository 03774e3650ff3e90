"""Every format, in the order in which a row is tried. One more is a module beside this one and a line in `REGISTRY`.

Each is explained in docs/formats.md.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from routing.corpus.documents import FileFacts, RawDocument, RefusedError
from routing.corpus.formats.agents import AGENTBENCH, MINI_SWE_AGENT, SWE_AGENT, TOOLBENCH
from routing.corpus.formats.art import ART
from routing.corpus.formats.atif import ATIF
from routing.corpus.formats.chat import OPENAI_CHAT, TAU2, TAU_BENCH
from routing.corpus.formats.exchanges import REQUEST_LOG
from routing.corpus.formats.format import Format, kind
from routing.corpus.formats.sharegpt import SHAREGPT
from routing.corpus.formats.texts import TEXT, TEXT_ROWS
from routing.corpus.formats.token_streams import TOKEN_IDS
from routing.corpus.labels import LABEL_KEYS, read_labels

REGISTRY = (
    TEXT,
    TAU2,
    # those that say what they are, or have messages of their own kind beside `messages` or `trajectory`
    ART,
    ATIF,
    MINI_SWE_AGENT,
    SWE_AGENT,
    OPENAI_CHAT,
    TAU_BENCH,
    SHAREGPT,
    AGENTBENCH,
    TOOLBENCH,
    REQUEST_LOG,
    TEXT_ROWS,
    TOKEN_IDS,
)
FORMATS = {format.name: format for format in REGISTRY}
# The columns of a Parquet file, an Arrow file or a dataset that some format looks at.
COLUMNS = tuple(dict.fromkeys((*LABEL_KEYS, *(key for format in REGISTRY for key in format.keys))))


def detect_format(rows: Iterable[object], facts: FileFacts) -> Format | None:
    """The format of the first of `rows` that has one."""
    objects = (row for row in rows if isinstance(row, Mapping))
    return next((format for row in objects for format in REGISTRY if format.is_row(row, facts)), None)


def read_row(row: object, format: Format, facts: FileFacts) -> Sequence[RawDocument]:
    """The trajectories in `row`, at least one; its body a RefusedError where the row lacks what `format` asks for."""
    if not isinstance(row, Mapping):
        return [RawDocument(body=RefusedError("shape", f"the row is {kind(row)}, not an object"))]
    try:
        documents = format.read(row, facts)
    except RefusedError as refusal:
        other = detect_format([row], facts)
        hint = f"; it looks like {other.name}, a file is of one format" if other not in (None, format) else ""
        documents = [RawDocument(body=RefusedError(refusal.reason, refusal.detail + hint))]
    task_id, domain = read_labels(row)
    return [replace(one, task_id=one.task_id or task_id, domain=one.domain or domain) for one in documents]
