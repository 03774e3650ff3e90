"""Conversations in the messages of OpenAI's chat interface: plain rows, and the runs of tau-bench and tau2."""

import re
from collections.abc import Mapping

from routing.corpus.documents import Conversation, FileFacts, RawDocument, RefusedError
from routing.corpus.formats.format import Format, Row, chat, holds_objects
from routing.corpus.labels import label

_HEADING = re.compile(r"^# (\w+) agent policy\s*$", re.IGNORECASE | re.MULTILINE)


def _is_chat(row: Row, facts: FileFacts) -> bool:
    return holds_objects(row.get("messages"))


def _read_chat(row: Row, facts: FileFacts) -> list[RawDocument]:
    return [RawDocument(body=chat(row, facts))]


OPENAI_CHAT = Format(name="openai-chat", keys=("messages", "tools", "functions"), is_row=_is_chat, read=_read_chat)


def _is_tau2(row: Row, facts: FileFacts) -> bool:
    return "simulations" in facts.header


def _read_tau2(row: Row, facts: FileFacts) -> list[RawDocument]:
    info = facts.header.get("info")
    environment = info.get("environment_info") if isinstance(info, Mapping) else None
    environment = environment if isinstance(environment, Mapping) else {}
    policy = environment.get("policy")
    body = Conversation(messages=chat(row, facts).messages, policy=policy if isinstance(policy, str) and policy else None)
    return [RawDocument(body=body, domain=label(environment.get("domain_name")))]


TAU2 = Format(name="tau2", keys=(), is_row=_is_tau2, read=_read_tau2)


def _is_tau_bench(row: Row, facts: FileFacts) -> bool:
    return _tau_bench_messages(row) is not None


def _read_tau_bench(row: Row, facts: FileFacts) -> list[RawDocument]:
    messages = _tau_bench_messages(row)
    if messages is None:
        raise RefusedError("shape", "no list of messages under 'traj' or 'trajectory'")
    body = Conversation(messages=messages, tools=row.get("tools"), columnar=facts.columnar)
    return [RawDocument(body=body, implied_domain=_heading_domain(messages))]


def _tau_bench_messages(row: Row) -> list[object] | None:
    """The messages under `traj` or `trajectory`, or one level below; SWE-agent's `trajectory` of steps has no roles."""
    for key in ("traj", "trajectory"):
        nested = row.get(key)
        if isinstance(nested, Mapping):
            nested = nested.get("traj", nested.get("messages"))
        if isinstance(nested, list) and all(isinstance(message, Mapping) and "role" in message for message in nested[:1]):
            return nested
    return None


def _heading_domain(messages: list[object]) -> str | None:
    """`retail` from a system prompt that is headed `# Retail agent policy`."""
    first = messages[0] if messages else None
    if isinstance(first, Mapping) and first.get("role") == "system" and isinstance(content := first.get("content"), str):
        heading = _HEADING.search(content)
        return heading[1].lower() if heading else None
    return None


TAU_BENCH = Format(name="tau-bench", keys=("traj", "trajectory", "tools"), is_row=_is_tau_bench, read=_read_tau_bench)
