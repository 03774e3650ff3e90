"""ATIF, the agent trajectory interchange format (harbor, RFC 0001), versions 1.0 to 1.7: steps of a user, an agent, a system."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from routing.corpus.documents import Conversation, FileFacts, RawDocument, RefusedError
from routing.corpus.formats.format import Format, Row, holds_objects, json_text, kind, required_list

_SOURCES = {"system": "system", "user": "user", "agent": "assistant"}
_TOKEN_IDS = ("prompt_token_ids", "completion_token_ids")


def _is_row(row: Row, facts: FileFacts) -> bool:
    version = row.get("schema_version")
    return isinstance(version, str) and version.startswith("ATIF-v1.") and holds_objects(row.get("steps"))


def _read(row: Row, facts: FileFacts) -> list[RawDocument]:
    """The trajectory, then those of its sub-agents that are embedded in it: they had contexts of their own."""
    agent = json_text(row.get("agent"))
    tools = agent.get("tool_definitions") if isinstance(agent, Mapping) else None
    steps = required_list(row, "steps")
    body = Conversation(messages=steps, tools=tools, columnar=facts.columnar, dialect=_messages, key="steps")
    embedded = json_text(row.get("subagent_trajectories")) or []
    if not isinstance(embedded, list) or not all(isinstance(one, Mapping) for one in embedded):
        raise RefusedError("shape", "'subagent_trajectories' is no list of objects")
    return [RawDocument(body=body), *(document for one in embedded for document in _read(one, facts))]


def _messages(step: Row, at: str, counts: Counter[str]) -> Iterable[Row]:
    """A step's message, and what the environment answered to it."""
    source = step.get("source")
    if not isinstance(source, str) or source not in _SOURCES:
        raise RefusedError("unknown_role", f"{at}: a source other than {', '.join(_SOURCES)}")
    counts["step_to_messages"] += 1
    metrics = step.get("metrics")
    counts["recorded_ids_left"] += isinstance(metrics, Mapping) and any(metrics.get(key) is not None for key in _TOKEN_IDS)
    calls = json_text(step.get("tool_calls")) or []
    if not isinstance(calls, list):
        raise RefusedError("tool_calls", f"{at}: tool_calls is no list")
    message = {"role": _SOURCES[source], "content": step.get("message")}
    if step.get("reasoning_content") is not None:
        message["reasoning_content"] = step["reasoning_content"]
    if calls:
        message["tool_calls"] = [_call(call, at) for call in calls]
    yield message
    yield from _results(step.get("observation"), at, counts, has_calls=bool(calls))


def _call(call: object, at: str) -> Row:
    if not isinstance(call, Mapping):
        raise RefusedError("tool_calls", f"{at}: a tool call is {kind(call)}, not an object")
    function = {"name": call.get("function_name"), "arguments": call.get("arguments")}
    return {"id": call.get("tool_call_id"), "type": "function", "function": function}


def _results(observation: object, at: str, counts: Counter[str], *, has_calls: bool) -> Iterator[Row]:
    """Results of calls as tool messages; without a call the environment spoke as the user does."""
    if observation is None:
        return
    results = json_text(observation.get("results")) if isinstance(observation, Mapping) else None
    if not isinstance(results, list) or not all(isinstance(result, Mapping) for result in results):
        raise RefusedError("shape", f"{at}: observation holds no list of results")
    for result in results:
        call_id = result.get("source_call_id")
        if call_id is None and not has_calls:
            counts["observation_to_user"] += 1
            yield {"role": "user", "content": result.get("content")}
        else:
            counts["observation_to_tool"] += 1
            message = {"role": "tool", "content": result.get("content")}
            yield message if call_id is None else {**message, "tool_call_id": call_id}


_KEYS = ("schema_version", "agent", "steps", "subagent_trajectories")
ATIF = Format(name="atif", keys=_KEYS, is_row=_is_row, read=_read)
