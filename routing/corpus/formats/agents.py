"""What agent harnesses leave behind: SWE-agent, mini-swe-agent, AgentBench and ToolBench."""

from collections import Counter
from collections.abc import Iterable, Mapping

from routing.corpus.documents import Conversation, FileFacts, RawDocument, RefusedError
from routing.corpus.formats.format import Format, Row, chat, holds_objects, json_text, kind, required_list
from routing.corpus.labels import task_label


def _is_swe_agent(row: Row, facts: FileFacts) -> bool:
    return "trajectory" in row and holds_objects(row.get("history"))


def _read_swe_agent(row: Row, facts: FileFacts) -> list[RawDocument]:
    """`history`, which holds each message once; the queries under `trajectory` repeat it and are not read.

    Of several agents each saw its own messages: a document for each, in the order in which they first speak.
    """
    history = required_list(row, "history")
    by_agent: dict[object, list[object]] = {}
    for entry in history:
        agent = entry.get("agent") if isinstance(entry, Mapping) else None
        by_agent.setdefault(agent if isinstance(agent, str) else None, []).append(entry)
    if len(by_agent) > 1 and None in by_agent:
        raise RefusedError("shape", "the history holds entries of no agent beside those of one")
    return [
        RawDocument(body=Conversation(messages=entries, columnar=facts.columnar, dialect=_swe_message, key="history"))
        for entries in by_agent.values() or [[]]
    ]


def _swe_message(entry: Row, at: str, counts: Counter[str]) -> Iterable[Row]:
    match entry:
        case {"role": "tool", "tool_call_ids": [str(only)], **others} if others.get("tool_call_id") is None:
            counts["tool_result_id_renamed"] += 1
            yield {**others, "role": "tool", "tool_call_id": only}
        case _:
            yield entry


SWE_AGENT = Format(name="swe-agent", keys=("history", "trajectory"), is_row=_is_swe_agent, read=_read_swe_agent)


def _is_mini_swe_agent(row: Row, facts: FileFacts) -> bool:
    format = row.get("trajectory_format")
    return isinstance(format, str) and format.startswith("mini-swe-agent") and holds_objects(row.get("messages"))


def _read_mini_swe_agent(row: Row, facts: FileFacts) -> list[RawDocument]:
    return [RawDocument(body=chat(row, facts, dialect=_mini_swe_message), task_id=task_label(row.get("instance_id")))]


def _mini_swe_message(entry: Row, at: str, counts: Counter[str]) -> Iterable[Row]:
    """The harness notes how a run ended in a last message of role `exit`, which no model was sent."""
    if entry.get("role") == "exit":
        counts["exit_message_dropped"] += 1
        return
    yield entry


MINI_SWE_AGENT = Format(
    name="mini-swe-agent",
    keys=("trajectory_format", "messages", "tools", "instance_id"),
    is_row=_is_mini_swe_agent,
    read=_read_mini_swe_agent,
)


def _is_agentbench(row: Row, facts: FileFacts) -> bool:
    output = json_text(row.get("output"))
    return isinstance(output, Mapping) and holds_objects(output.get("history"))


def _read_agentbench(row: Row, facts: FileFacts) -> list[RawDocument]:
    output = json_text(row.get("output"))
    if not isinstance(output, Mapping):
        raise RefusedError("shape", f"'output' is {kind(output)}, not an object")
    history = required_list(output, "history")
    body = Conversation(messages=history, columnar=facts.columnar, dialect=_agentbench_message, key="history")
    return [RawDocument(body=body, task_id=task_label(row.get("index")))]


def _agentbench_message(entry: Row, at: str, counts: Counter[str]) -> Iterable[Row]:
    if entry.get("role") == "agent":
        counts["role_agent_to_assistant"] += 1
        entry = {**entry, "role": "assistant"}
    yield entry


AGENTBENCH = Format(name="agentbench", keys=("index", "output"), is_row=_is_agentbench, read=_read_agentbench)


def _is_toolbench(row: Row, facts: FileFacts) -> bool:
    answer = json_text(row.get("answer_generation"))
    return isinstance(answer, Mapping) and isinstance(json_text(answer.get("train_messages")), list)


def _read_toolbench(row: Row, facts: FileFacts) -> list[RawDocument]:
    """A document for each list under `train_messages`: what was sent for one answer, often the one before and more."""
    answer = json_text(row.get("answer_generation"))
    if not isinstance(answer, Mapping):
        raise RefusedError("shape", f"'answer_generation' is {kind(answer)}, not an object")
    sent = required_list(answer, "train_messages")
    if not sent:
        raise RefusedError("empty", "no lists under 'train_messages'")
    tools = answer.get("function")
    return [
        RawDocument(
            body=Conversation(messages=messages, tools=tools, columnar=facts.columnar, key=f"train_messages[{place}]")
            if isinstance(messages, list)
            else RefusedError("shape", f"train_messages[{place}] is {kind(messages)}, not a list")
        )
        for place, messages in enumerate(sent)
    ]


TOOLBENCH = Format(name="toolbench", keys=("answer_generation",), is_row=_is_toolbench, read=_read_toolbench)
