"""Conversations of `from` and `value`, as ShareGPT began them and fine-tuning sets keep them."""

from collections import Counter
from collections.abc import Iterable, Mapping

from routing.corpus.documents import Conversation, FileFacts, RawDocument, RefusedError
from routing.corpus.formats.format import Format, Row, holds_objects, json_text, kind, required_list

_ROLES = {
    "human": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "observation": "tool",
    "function_response": "tool",
}


def _is_row(row: Row, facts: FileFacts) -> bool:
    return holds_objects(row.get("conversations"))


def _read(row: Row, facts: FileFacts) -> list[RawDocument]:
    body = Conversation(
        messages=required_list(row, "conversations"),
        tools=row.get("tools"),
        policy=row.get("system") or None,
        columnar=facts.columnar,
        dialect=_message,
        key="conversations",
    )
    return [RawDocument(body=body)]


def _message(entry: Row, at: str, counts: Counter[str]) -> Iterable[Row]:
    """A message of role and content; roles that are not renamed here are left to the rules for all formats."""
    speaker = entry.get("from")
    if not isinstance(speaker, str):
        yield entry
        return
    counts["from_value_to_message"] += 1
    others = {key: value for key, value in entry.items() if key not in ("from", "value")}
    if speaker != "function_call":
        yield {**others, "role": _ROLES.get(speaker, speaker), "content": entry.get("value")}
        return
    called = json_text(entry.get("value"))
    calls = called if isinstance(called, list) else [called]
    if not calls or not all(isinstance(call, Mapping) for call in calls):
        raise RefusedError("tool_calls", f"{at}: a function_call is {kind(called)}, not a call or a list of calls")
    yield {**others, "role": "assistant", "content": "", "tool_calls": calls}


SHAREGPT = Format(name="sharegpt", keys=("conversations", "system", "tools"), is_row=_is_row, read=_read)
