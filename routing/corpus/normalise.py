"""Messages as people store them to messages that a strict chat template takes, by named rules that are counted.

Every rule and every refusal is explained in docs/formats.md.
"""

from collections import Counter
from collections.abc import Mapping

from routing.corpus.documents import Conversation, RefusedError
from routing.corpus.labels import MAX_NAME_CHARS
from routing.corpus.strict_json import JsonFaultError, escape, parse_json

RULES = (
    "policy_as_system",
    "null_key_dropped",
    "extra_key_dropped",
    "content_null_to_empty",
    "content_parts_joined",
    "role_developer_to_system",
    "role_function_to_tool",
    "arguments_text_parsed",
    "arguments_empty_to_object",
    "arguments_wrapped",
    "flat_tool_call_nested",
    "function_call_to_tool_calls",
    "tool_calls_text_parsed",
    "tool_result_id_renamed",
    "user_tool_call_dropped",
    "user_tool_result_dropped",
    "empty_user_message_dropped",
    "tools_text_parsed",
    "flat_tool_nested",
    # applied by the formats whose entries are no messages yet
    "choice_to_message",
    "exit_message_dropped",
    "from_value_to_message",
    "observation_to_tool",
    "observation_to_user",
    "recorded_ids_left",
    "recorded_routes_left",
    "role_agent_to_assistant",
    "step_to_messages",
)
_KEPT_KEYS = ("role", "content", "tool_calls", "name", "tool_call_id", "reasoning_content")
_READ_KEYS = frozenset((*_KEPT_KEYS, "function_call", "requestor", "id"))
_ROLES = frozenset(("system", "user", "assistant", "tool"))
_TEXT_PARTS = frozenset(("text", "input_text", "output_text"))


def normalise(conversation: Conversation, counts: Counter[str]) -> tuple[list[dict[str, object]], list[object] | None]:
    """(messages, tools) for a chat template; adds to `counts` how often each of RULES was applied. Raises RefusedError."""
    messages: list[dict[str, object]] = []
    for index, raw in enumerate(conversation.messages):
        at = f"{conversation.key}[{index}]"
        if not isinstance(raw, Mapping):
            raise RefusedError("shape", f"{at} is not an object")
        for entry in conversation.dialect(raw, at, counts):
            message = _message(entry, at, counts, columnar=conversation.columnar)
            if message is not None:
                messages.append(message)
    if not messages:
        raise RefusedError("empty", "no messages")
    if conversation.policy is not None and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": _content(conversation.policy, "the system prompt", counts)})
        counts["policy_as_system"] += 1
    return messages, _tools(conversation.tools, counts, columnar=conversation.columnar)


def _message(raw: Mapping[str, object], at: str, counts: Counter[str], *, columnar: bool) -> dict[str, object] | None:
    """One message by the rules, or None where the policy never saw it."""
    present = {key: value for key, value in raw.items() if value is not None}
    counts["null_key_dropped"] += sum(value is None and key != "content" for key, value in raw.items())
    role = _role(present.get("role"), at, counts)
    counts["extra_key_dropped"] += sum(key not in _READ_KEYS or (key == "id" and role != "tool") for key in present)
    if role == "tool" and present.get("requestor") == "user":
        counts["user_tool_result_dropped"] += 1
        return None
    message: dict[str, object] = {"role": role, "content": _content(present.get("content"), at, counts)}
    calls = _tool_calls(present, at, counts, columnar=columnar)
    if calls and role == "assistant":
        message["tool_calls"] = calls
    elif calls:
        counts["user_tool_call_dropped"] += len(calls)
        if role == "user" and not message["content"]:
            counts["empty_user_message_dropped"] += 1
            return None
    if role == "tool":
        result_id = present.get("tool_call_id")
        if result_id is None and (result_id := present.get("id")) is not None:
            counts["tool_result_id_renamed"] += 1
        if isinstance(result_id, str):
            message["tool_call_id"] = result_id
    for key in ("name", "reasoning_content"):
        if isinstance(value := present.get(key), str):
            message[key] = value
    return message


def _role(role: object, at: str, counts: Counter[str]) -> str:
    if role == "developer":
        counts["role_developer_to_system"] += 1
        return "system"
    if role == "function":
        counts["role_function_to_tool"] += 1
        return "tool"
    if not isinstance(role, str):
        raise RefusedError("unknown_role", f"{at} has no role")
    if role not in _ROLES:
        shown = f"role '{escape(role)}'" if len(role) <= MAX_NAME_CHARS else f"a role of {len(role)} characters"
        raise RefusedError("unknown_role", f"{at}: {shown}")
    return role


def _content(content: object, at: str, counts: Counter[str]) -> str:
    if content is None:
        counts["content_null_to_empty"] += 1
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RefusedError("content", f"{at}: content is neither text nor a list of parts")
    texts = []
    for part in content:
        kind = part.get("type", "text") if isinstance(part, Mapping) else None
        text = part.get("text") if isinstance(part, Mapping) and isinstance(kind, str) and kind in _TEXT_PARTS else part
        if not isinstance(text, str):
            shown = f"type '{escape(kind)}'" if isinstance(kind, str) and len(kind) <= MAX_NAME_CHARS else "no type"
            raise RefusedError("content", f"{at}: a part of content is no text ({shown})")
        texts.append(text)
    counts["content_parts_joined"] += 1
    return "".join(texts)


def _tool_calls(present: Mapping[str, object], at: str, counts: Counter[str], *, columnar: bool) -> list[dict[str, object]]:
    calls = present.get("tool_calls")
    if isinstance(calls, str):
        calls = _parsed(calls, "tool_calls", f"{at}.tool_calls", counts)
    if function_call := present.get("function_call"):
        counts["extra_key_dropped" if calls else "function_call_to_tool_calls"] += 1
        calls = calls or [{"function": function_call}]
    if calls is None:
        return []
    if not isinstance(calls, list):
        raise RefusedError("tool_calls", f"{at}: tool_calls is no list")
    return [_tool_call(call, f"{at}.tool_calls[{index}]", counts, columnar=columnar) for index, call in enumerate(calls)]


def _tool_call(call: object, at: str, counts: Counter[str], *, columnar: bool) -> dict[str, object]:
    if not isinstance(call, Mapping):
        raise RefusedError("tool_calls", f"{at} is not an object")
    function = call.get("function")
    if function is None and isinstance(call.get("name"), str):
        counts["flat_tool_call_nested"] += 1
        function = call
    if not isinstance(function, Mapping) or not isinstance(name := function.get("name"), str):
        raise RefusedError("tool_calls", f"{at} names no function")
    arguments = _arguments(function.get("arguments"), counts)
    if columnar and not isinstance(function.get("arguments"), str):
        arguments = _without_nulls(arguments, counts)
    normal: dict[str, object] = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return {"id": call["id"], **normal} if isinstance(call.get("id"), str) else normal


def _arguments(arguments: object, counts: Counter[str]) -> dict[str, object]:
    """Arguments as an object; text that holds none is kept under the key `arguments`, so that the trajectory is kept."""
    if isinstance(arguments, dict):
        return arguments
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        counts["arguments_empty_to_object"] += 1
        return {}
    if isinstance(arguments, str):
        try:
            value = parse_json(arguments)
        except JsonFaultError:
            value = None
        if isinstance(value, dict):
            counts["arguments_text_parsed"] += 1
            return value
    counts["arguments_wrapped"] += 1
    return {"arguments": arguments}


def _tools(tools: object, counts: Counter[str], *, columnar: bool) -> list[object] | None:
    if isinstance(tools, str):
        tools = _parsed(tools, "tools", "tools", counts)
    if not tools:
        return None
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise RefusedError("tools", "tools is not a list of objects")
    return [_tool(_without_nulls(tool, counts) if columnar else tool, counts) for tool in tools]


def _tool(tool: dict[str, object], counts: Counter[str]) -> dict[str, object]:
    """The old `functions`, and tools that keep their name beside their type, as the tools that templates take."""
    if "function" in tool or not isinstance(tool.get("name"), str):
        return tool
    counts["flat_tool_nested"] += 1
    return {"type": "function", "function": {key: value for key, value in tool.items() if key != "type"}}


def _parsed(text: str, reason: str, at: str, counts: Counter[str]) -> object:
    if not text.strip():
        return None
    try:
        value = parse_json(text)
    except JsonFaultError as fault:
        raise RefusedError(reason, f"{at} is text that is no JSON: {fault.what}") from None
    counts[f"{reason}_text_parsed"] += 1
    return value


def _without_nulls(value: dict[str, object], counts: Counter[str]) -> dict[str, object]:
    """`value` without the keys that a struct column filled with None, at any depth."""

    def strip(item: object) -> object:
        return (
            _without_nulls(item, counts) if isinstance(item, dict) else list(map(strip, item)) if isinstance(item, list) else item
        )

    counts["null_key_dropped"] += sum(member is None for member in value.values())
    return {key: strip(member) for key, member in value.items() if member is not None}
