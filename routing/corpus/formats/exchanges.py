"""Request logs: every row is one request with the whole conversation so far, and maybe what was answered."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from routing.corpus.documents import Conversation, FileFacts, RawDocument, RefusedError
from routing.corpus.formats.format import Format, Row, holds_objects, json_text, kind, required_list

_REQUEST_KEYS = ("request_params", "request", "body")
_RESPONSE_KEY = "response"


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """What a model was asked: the conversation so far, its tools, and a system prompt that stands beside the messages."""

    messages: list[object]
    tools: object
    system: object


def request_messages(request: object, at: str) -> Request:
    """The messages and tools of a request; RefusedError where it holds none."""
    request = json_text(request)
    if not isinstance(request, Mapping):
        raise RefusedError("shape", f"{at}: the request is {kind(request)}, not an object")
    tools = request.get("tools") or request.get("functions")
    return Request(messages=required_list(request, "messages"), tools=tools, system=request.get("system"))


def reply(response: object, at: str) -> Sequence[list[object]]:
    """What was answered, once for each choice, as the messages that follow the request; one empty answer where none is kept."""
    response = json_text(response)
    if isinstance(response, Mapping) and isinstance(response.get("body"), Mapping):  # a batch interface wraps it
        response = response["body"]
    if response is None:
        return [[]]
    if isinstance(response, str):
        return [[{"role": "assistant", "content": response}]]
    if isinstance(response, Mapping) and isinstance(response.get("role"), str):
        return [[response]]
    choices = response.get("choices") if isinstance(response, Mapping) else None
    if not isinstance(choices, list) or not all(isinstance(one, Mapping) and "message" in one for one in choices):
        raise RefusedError("shape", f"{at}: the response is neither text, a message nor a list of choices with messages")
    return [[choice["message"]] for choice in choices] or [[]]


def _request(row: Row) -> object:
    return next((json_text(row[key]) for key in _REQUEST_KEYS if row.get(key) is not None), None)


def _require_one_request(row: Row, request: Request) -> None:
    for key in _REQUEST_KEYS:
        other = json_text(row.get(key))
        if isinstance(other, Mapping) and "messages" in other and request_messages(other, "the row") != request:
            raise RefusedError("shape", f"'{key}' asks something else than a request beside it: leave out what is not meant")


def _is_row(row: Row, facts: FileFacts) -> bool:
    request = _request(row)
    return isinstance(request, Mapping) and holds_objects(request.get("messages"))


def _read(row: Row, facts: FileFacts) -> list[RawDocument]:
    request = request_messages(_request(row), "the row")
    _require_one_request(row, request)
    return [
        RawDocument(
            body=Conversation(
                messages=[*request.messages, *entry], tools=request.tools, policy=request.system, columnar=facts.columnar
            ),
            request=request.messages,
        )
        for entry in reply(row.get(_RESPONSE_KEY), "the row")
    ]


REQUEST_LOG = Format(name="request-log", keys=(*_REQUEST_KEYS, _RESPONSE_KEY), is_row=_is_row, read=_read)
