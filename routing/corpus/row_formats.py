"""What a row says: a conversation, a text or token ids, in the formats of docs/formats.md; told apart by the row's keys."""

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from routing.corpus.strict_json import JsonFaultError, parse_json

# The names that --format takes and the manifest holds.
FORMATS = ("openai-chat", "tau-bench", "tau2", "text-rows", "text", "token-ids")
MAX_LABEL_CHARS = 512  # the task ids of tau2 telecom spell out every fault and pass 200
MAX_NAME_CHARS = 64  # of a name with blanks in it; longer, it is prose, which is somebody's
_HEADING = re.compile(r"^# (\w+) agent policy\s*$", re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Conversation:
    """Messages as the file holds them, before any rule. `policy` goes in front as the system message (tau2)."""

    messages: list[object]
    tools: object = None
    policy: str | None = None
    columnar: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class PlainText:
    """A document that no chat template renders."""

    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenIds:
    """Ids that someone else's tokenizer made, with the mask that marks padding, both unchecked."""

    input_ids: object
    attention_mask: object


@dataclass(frozen=True, kw_only=True, slots=True)
class Misfit:
    """A row without what its file's format asks for."""

    detail: str


Body = Conversation | PlainText | TokenIds | Misfit


@dataclass(frozen=True, kw_only=True, slots=True)
class RawDocument:
    """One row: `domain` as the file states it, `implied_domain` as a rule of the format reads it."""

    body: Body
    task_id: str | None = None
    domain: str | None = None
    implied_domain: str | None = None


def detect_format(rows: Iterable[object], *, header: Mapping[str, object], whole_text: bool) -> str | None:
    """The format of the first of `rows` that has one; the keys are tried in the order written here."""
    if whole_text:
        return "text"
    if "simulations" in header:
        return "tau2"
    for row in rows:
        if not isinstance(row, Mapping):
            continue
        if _has_messages(row.get("messages")):
            return "openai-chat"
        if _tau_bench_messages(row) is not None:
            return "tau-bench"
        if isinstance(row.get("messages_display"), str) or isinstance(row.get("text"), str):
            return "text-rows"
        if isinstance(row.get("input_ids"), list):
            return "token-ids"
    return None


def read_row(row: object, *, format: str, header: Mapping[str, object], columnar: bool) -> RawDocument:
    """The document in `row`, its body a Misfit where the row lacks what `format` asks for."""
    if not isinstance(row, Mapping):
        return RawDocument(body=Misfit(detail=f"the row is {_kind(row)}, not an object"))
    task_id, domain = read_labels(row)
    if format == "tau2":
        environment = _environment(header)
        body = _tau2_body(row, policy=environment.get("policy"))
        return RawDocument(body=body, task_id=task_id, domain=_label(environment.get("domain_name")) or domain)
    if format == "tau-bench":
        messages = _tau_bench_messages(row)
        if messages is None:
            return RawDocument(body=Misfit(detail="no list of messages under 'traj' or 'trajectory'"))
        body = Conversation(messages=messages, tools=row.get("tools"), columnar=columnar)
        return RawDocument(body=body, task_id=task_id, domain=domain, implied_domain=_tau_bench_domain(messages))
    return RawDocument(body=_plain_body(row, format=format, columnar=columnar), task_id=task_id, domain=domain)


def read_labels(row: Mapping[str, object]) -> tuple[str | None, str | None]:
    """(task id, domain) as any row may carry them."""
    return _task_id(row.get("task_id")), _label(row.get("domain"))


def _plain_body(row: Mapping[str, object], *, format: str, columnar: bool) -> Body:
    if format == "openai-chat":
        messages = _json_text(row.get("messages"))
        if not isinstance(messages, list):
            return Misfit(detail=f"'messages' is {_kind(messages)}, not a list")
        return Conversation(messages=messages, tools=row.get("tools"), columnar=columnar)
    if format == "token-ids":
        if not isinstance(row.get("input_ids"), list):
            return Misfit(detail=f"'input_ids' is {_kind(row.get('input_ids'))}, not a list")
        return TokenIds(input_ids=row["input_ids"], attention_mask=row.get("attention_mask"))
    for key in ("messages_display", "text"):
        if isinstance(text := row.get(key), str):
            return PlainText(text=text)
    return Misfit(detail="no text under 'messages_display' or 'text'")


def _tau2_body(row: Mapping[str, object], *, policy: object) -> Body:
    messages = row.get("messages")
    if not isinstance(messages, list):
        return Misfit(detail=f"'messages' is {_kind(messages)}, not a list")
    return Conversation(messages=messages, policy=policy if isinstance(policy, str) and policy else None)


def _environment(header: Mapping[str, object]) -> Mapping[str, object]:
    info = header.get("info")
    environment = info.get("environment_info") if isinstance(info, Mapping) else None
    return environment if isinstance(environment, Mapping) else {}


def _tau_bench_messages(row: Mapping[str, object]) -> list[object] | None:
    """The messages under `traj` or `trajectory`, or one level below; SWE-agent's `trajectory` of steps has no roles."""
    for key in ("traj", "trajectory"):
        nested = row.get(key)
        if isinstance(nested, Mapping):
            nested = nested.get("traj", nested.get("messages"))
        if isinstance(nested, list) and all(isinstance(message, Mapping) and "role" in message for message in nested[:1]):
            return nested
    return None


def _tau_bench_domain(messages: list[object]) -> str | None:
    """`retail` from a system prompt that is headed `# Retail agent policy`."""
    first = messages[0] if messages else None
    if isinstance(first, Mapping) and first.get("role") == "system" and isinstance(content := first.get("content"), str):
        heading = _HEADING.search(content)
        return heading[1].lower() if heading else None
    return None


def _has_messages(messages: object) -> bool:
    messages = _json_text(messages)
    return isinstance(messages, list) and all(isinstance(message, Mapping) for message in messages[:1])


def _json_text(value: object) -> object:
    """A list or object that a column holds as JSON text; anything else as it is."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        try:
            return parse_json(value)
        except JsonFaultError:
            return value
    return value


def _task_id(value: object) -> str | None:
    if isinstance(value, float) and value.is_integer():  # pandas turns a column with gaps into floats
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    return _label(value)


def _label(value: object) -> str | None:
    """A name from a file, printable on one line and no prose, else its hash; None where there is none."""
    if not isinstance(value, str) or not (name := value.strip()):
        return None
    if len(name) <= (MAX_NAME_CHARS if " " in name else MAX_LABEL_CHARS) and name.isprintable():
        return name
    return "sha256:" + hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", int: "a number", float: "a number"}
    return "absent or null" if value is None else names.get(type(value), type(value).__name__)
