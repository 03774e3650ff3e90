"""Groups of trajectories as ART keeps them: YAML, JSON Lines of one group a line, Parquet of one trajectory a row (v1, v2).

Told from ART's own writers and readers (OpenPipe/ART, `art.utils.trajectory_logging` and `trajectory_migration`).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from routing.corpus.documents import Conversation, FileFacts, RawDocument, RefusedError
from routing.corpus.formats.exchanges import reply, request_messages
from routing.corpus.formats.format import Format, Row, holds_objects, json_text, kind, required_list
from routing.corpus.labels import read_labels

# Parquet v2: the other columns repeat what `trajectory_json` holds, for queries.
_VERSION = 2
ART_JSON_KEY = "trajectory_json"
ART_JSON_KEYS = ("format_version", ART_JSON_KEY)  # of a Parquet v2 row, what `stored_trajectory` looks at
_KEYS = (
    "trajectories",
    "messages_and_choices",
    "additional_histories",
    "exchanges",
    "tools",
    "metadata",
    "group_index",
    *ART_JSON_KEYS,
    "messages",
)


def _is_row(row: Row, facts: FileFacts) -> bool:
    return (
        holds_objects(row.get("trajectories"))
        or holds_objects(row.get("messages_and_choices"))
        or ART_JSON_KEY in row
        or (row.get("group_index") is not None and "messages" in row)
    )


def _read(row: Row, facts: FileFacts) -> list[RawDocument]:
    if "trajectories" in row:
        trajectories = required_list(row, "trajectories")
        if not trajectories:
            raise RefusedError("empty", "a group without trajectories")
        return [document for one in trajectories for document in _trajectory(one, facts, group=None)]
    group = row.get("group_index")
    group = group if type(group) is int else None
    if ART_JSON_KEY in row:
        return _trajectory(stored_trajectory(row), FileFacts(), group=group)  # JSON text: no struct filled it with nulls
    if "messages_and_choices" in row:
        return _trajectory(row, facts, group=group)
    if row.get("messages") is None:
        raise RefusedError("empty", "a group without trajectories")
    return _trajectory({**row, "messages_and_choices": row["messages"]}, facts, group=group)


def stored_trajectory(row: Row) -> object:
    """The trajectory of a Parquet v2 row; RefusedError for the row of an empty group, and for another version."""
    if (version := row.get("format_version")) != _VERSION:
        raise RefusedError("shape", f"'format_version' is {version if type(version) is int else kind(version)}, not {_VERSION}")
    if row[ART_JSON_KEY] is None:
        raise RefusedError("empty", "a group without trajectories")
    return json_text(row[ART_JSON_KEY])


def _trajectory(trajectory: object, facts: FileFacts, *, group: int | None) -> list[RawDocument]:
    """The trajectory's own history, then its additional ones, each as a document."""
    if not isinstance(trajectory, Mapping):
        return [RawDocument(body=RefusedError("shape", f"a trajectory is {kind(trajectory)}, not an object"), group=group)]
    metadata = json_text(trajectory.get("metadata"))
    task_id, domain = read_labels(metadata) if isinstance(metadata, Mapping) else (None, None)
    bodies = list(_bodies(trajectory, facts)) or [RefusedError("empty", "a trajectory without messages")]
    return [RawDocument(body=body, task_id=task_id, domain=domain, group=group) for body in bodies]


def _bodies(trajectory: Row, facts: FileFacts) -> Iterator[Conversation | RefusedError]:
    exchanges = trajectory.get("exchanges")
    if isinstance(exchanges, Mapping):
        yield from _exchanged(exchanges, facts)
    additional = json_text(trajectory.get("additional_histories")) or []
    if not isinstance(additional, list):
        yield RefusedError("shape", f"'additional_histories' is {kind(additional)}, not a list")
        additional = []
    for place, history in enumerate([trajectory, *additional]):
        if not isinstance(history, Mapping):
            yield RefusedError("shape", f"additional_histories[{place - 1}] is {kind(history)}, not an object")
        elif history.get("messages_and_choices") is not None:
            yield _history(history, facts)


def _history(history: Row, facts: FileFacts) -> Conversation | RefusedError:
    try:
        entries = required_list(history, "messages_and_choices")
    except RefusedError as refusal:
        return refusal
    key = "messages_and_choices"
    return Conversation(messages=entries, tools=history.get("tools"), columnar=facts.columnar, dialect=_message, key=key)


def _exchanged(exchanges: Row, facts: FileFacts) -> Iterator[Conversation | RefusedError]:
    """Requests with their replies, as ART keeps them instead of histories since its Parquet v2."""
    for interface, calls in exchanges.items():
        for place, call in enumerate(calls if isinstance(calls, list) else []):
            at = f"exchanges.{interface}[{place}]"
            if interface != "chat_completions" or not isinstance(call, Mapping):
                yield RefusedError("shape", f"{at} is no exchange of chat completions")
                continue
            try:
                request = request_messages(call.get("request"), at)
                for entry in reply(call.get("response"), at):
                    yield Conversation(messages=[*request.messages, *entry], tools=request.tools, columnar=facts.columnar)
            except RefusedError as refusal:
                yield refusal


def _message(entry: Row, at: str, counts: Counter[str]) -> Iterable[Row]:
    """A message as it is; of a Choice, which the policy sampled, its message."""
    if entry.get("message") is None:
        yield entry
        return
    if not isinstance(message := entry["message"], Mapping):
        raise RefusedError("shape", f"{at}: the Choice's message is {kind(message)}, not an object")
    counts["choice_to_message"] += 1
    counts["recorded_routes_left"] += entry.get("routed_experts") is not None
    counts["recorded_ids_left"] += entry.get("prompt_token_ids") is not None or entry.get("completion_token_ids") is not None
    yield message


ART = Format(name="art", keys=_KEYS, is_row=_is_row, read=_read)
