"""What a strict template cannot take is changed by a named rule, or refused by one; both are counted."""

from collections import Counter

import pytest

from routing.corpus.documents import Conversation, RefusedError
from routing.corpus.normalise import RULES, normalise

USER = {"role": "user", "content": "x"}


def normal(*messages, **options):
    """(messages, rules applied)"""
    counts = Counter()
    result, _ = normalise(Conversation(messages=list(messages), **options), counts)
    assert set(counts) <= set(RULES)
    return result, {rule: count for rule, count in counts.items() if count}


def called(arguments, **call):
    """An assistant message that calls f."""
    return {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": arguments}, **call}]}


def arguments_of(message):
    return message["tool_calls"][0]["function"]["arguments"]


def refusal(*messages, **options):
    with pytest.raises(RefusedError) as caught:
        normal(*messages, **options)
    return caught.value.reason, caught.value.detail


def test_a_plain_conversation_is_left_as_it_is():
    messages = [{"role": "system", "content": "s"}, USER, {"role": "assistant", "content": "y", "reasoning_content": "r"}]
    assert normal(*messages) == (messages, {})


def test_an_assistant_may_speak_first_and_no_system_prompt_is_needed():
    messages = [{"role": "assistant", "content": "Hi!"}, USER]
    assert normal(*messages) == (messages, {})


@pytest.mark.fault(
    "content null or absent",
    how="an assistant message of each",
    tries=2,
    outcome="the empty text, counted",
)
@pytest.mark.parametrize("message", [{"role": "assistant"}, {"role": "assistant", "content": None}])
def test_null_or_absent_content_is_the_empty_text(message):
    assert normal(message) == ([{"role": "assistant", "content": ""}], {"content_null_to_empty": 1})


def test_text_parts_are_joined_without_a_separator():
    parts = [{"type": "text", "text": "a"}, "b", {"type": "input_text", "text": "c", "cache_control": {}}]
    assert normal({"role": "user", "content": parts}) == ([{"role": "user", "content": "abc"}], {"content_parts_joined": 1})
    assert normal({"role": "user", "content": []})[0] == [{"role": "user", "content": ""}]


@pytest.mark.fault(
    "content as a list with a part that is no text",
    how="parts of other kinds",
    tries=7,
    outcome="the row is refused, its content not repeated",
)
@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "secret"}},
        {"type": "text", "text": None},
        {"type": ["text"], "text": "secret"},
        {"type": {"text": 1}, "text": "secret"},
        {"type": None, "text": "secret"},
        7,
        None,
    ],
)
def test_a_part_that_is_no_text_is_refused_without_its_content(part):
    reason, detail = refusal({"role": "user", "content": [part]})
    assert reason == "content"
    assert detail.startswith("messages[0]: a part of content is no text")
    assert "secret" not in detail


@pytest.mark.parametrize("content", [7, True, {"a": 1}])
def test_content_that_is_neither_text_nor_parts_is_refused(content):
    assert refusal(USER, {"role": "tool", "content": content})[0] == "content"


@pytest.mark.fault(
    "arguments as text, as an object, as neither",
    how="one call each",
    tries=12,
    outcome="an object for the template, by a rule that is counted",
)
@pytest.mark.parametrize(
    ("stored", "object_", "rule"),
    [
        ('{"a": 1}', {"a": 1}, "arguments_text_parsed"),
        ({"a": 1}, {"a": 1}, None),
        ("", {}, "arguments_empty_to_object"),
        (" \n", {}, "arguments_empty_to_object"),
        (None, {}, "arguments_empty_to_object"),
        ('{"a": 1', {"arguments": '{"a": 1'}, "arguments_wrapped"),
        ('{"a": 1, "a": 2}', {"arguments": '{"a": 1, "a": 2}'}, "arguments_wrapped"),
        ('{"a": NaN}', {"arguments": '{"a": NaN}'}, "arguments_wrapped"),
        ('{"a": "\\ud800"}', {"arguments": '{"a": "\\ud800"}'}, "arguments_wrapped"),
        ("[1]", {"arguments": "[1]"}, "arguments_wrapped"),
        ([1], {"arguments": [1]}, "arguments_wrapped"),
        ("[" * 100_000, {"arguments": "[" * 100_000}, "arguments_wrapped"),
    ],
)
def test_arguments_reach_the_template_as_an_object(stored, object_, rule):
    messages, applied = normal(called(stored))
    assert arguments_of(messages[0]) == object_
    assert applied == ({rule: 1} if rule else {})


def test_absent_arguments_are_none_at_all():
    message = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {"name": "f"}}]}
    assert arguments_of(normal(message)[0][0]) == {}


def test_parallel_calls_keep_their_order_and_ids():
    calls = [{"id": str(number), "function": {"name": "f", "arguments": {"n": number}}} for number in range(3)]
    message = normal({"role": "assistant", "content": "", "tool_calls": calls})[0][0]
    assert [(call["id"], call["type"], call["function"]["arguments"]) for call in message["tool_calls"]] == [
        ("0", "function", {"n": 0}),
        ("1", "function", {"n": 1}),
        ("2", "function", {"n": 2}),
    ]


def test_a_flat_tool_call_is_nested():
    flat = {"id": "c", "name": "f", "arguments": {"a": 1}, "requestor": "assistant"}
    messages, applied = normal({"role": "assistant", "content": "", "tool_calls": [flat]})
    assert messages[0]["tool_calls"] == [{"id": "c", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}]
    assert applied == {"flat_tool_call_nested": 1}


def test_the_old_function_call_becomes_a_tool_call_unless_there_is_one():
    old = {"name": "f", "arguments": "{}"}
    messages, applied = normal({"role": "assistant", "content": "", "function_call": old})
    assert messages[0]["tool_calls"] == [{"type": "function", "function": {"name": "f", "arguments": {}}}]
    assert applied == {"function_call_to_tool_calls": 1, "arguments_text_parsed": 1}
    messages, applied = normal({**called({}), "function_call": old})
    assert len(messages[0]["tool_calls"]) == 1
    assert applied == {"extra_key_dropped": 1}


def test_tool_calls_stored_as_text_are_parsed_or_refused():
    stored = '[{"id": "c", "function": {"name": "f", "arguments": {}}}]'
    messages, applied = normal({"role": "assistant", "content": "", "tool_calls": stored})
    assert messages[0]["tool_calls"][0]["function"]["name"] == "f"
    assert applied == {"tool_calls_text_parsed": 1}
    assert refusal({"role": "assistant", "content": "", "tool_calls": "[{"})[0] == "tool_calls"
    assert normal({"role": "assistant", "content": "y", "tool_calls": ""})[0] == [{"role": "assistant", "content": "y"}]


@pytest.mark.parametrize("calls", [7, {"a": 1}, [7], [{}], [{"function": {"arguments": {}}}], [{"function": {"name": 7}}]])
def test_calls_that_name_no_function_are_refused(calls):
    assert refusal(USER, {"role": "assistant", "content": "", "tool_calls": calls})[0] == "tool_calls"


@pytest.mark.parametrize("calls", [None, []])
def test_no_calls_are_no_key(calls):
    assert normal({"role": "assistant", "content": "y", "tool_calls": calls})[0] == [{"role": "assistant", "content": "y"}]


def test_null_and_unknown_keys_are_dropped_and_counted():
    message = {"role": "assistant", "content": "y", "refusal": None, "function_call": None, "annotations": [], "cost": 0.1}
    assert normal(message) == ([{"role": "assistant", "content": "y"}], {"null_key_dropped": 2, "extra_key_dropped": 2})


def test_developer_and_function_are_older_and_newer_names_of_known_roles():
    messages, applied = normal({"role": "developer", "content": "s"}, USER, {"role": "function", "name": "f", "content": "1"})
    assert messages == [{"role": "system", "content": "s"}, USER, {"role": "tool", "name": "f", "content": "1"}]
    assert applied == {"role_developer_to_system": 1, "role_function_to_tool": 1}


@pytest.mark.parametrize(
    ("message", "detail"),
    [
        ({"role": "exit", "content": "x"}, "messages[1]: role 'exit'"),
        ({"role": "Orchestrator (thought)\n", "content": "x"}, "messages[1]: role 'Orchestrator (thought)\\n'"),
        ({"role": "User", "content": "x"}, "messages[1]: role 'User'"),
        ({"content": "x"}, "messages[1] has no role"),
        ({"role": 7, "content": "x"}, "messages[1] has no role"),
    ],
)
def test_another_role_is_refused_by_name(message, detail):
    assert refusal(USER, message) == ("unknown_role", detail)


def test_a_message_that_is_no_object_is_refused():
    assert refusal(USER, "x") == ("shape", "messages[1] is not an object")


def test_no_messages_are_refused_as_empty():
    assert refusal() == ("empty", "no messages")
    assert refusal(policy="s") == ("empty", "no messages")


def test_what_a_user_did_with_tools_of_their_own_is_not_what_the_policy_saw():
    look = {"id": "u", "name": "look", "arguments": {}, "requestor": "user"}
    messages, applied = normal(
        {"role": "user", "content": None, "tool_calls": [look, look]},
        {"role": "tool", "id": "u", "content": "dark", "requestor": "user"},
        {"role": "user", "content": "wait", "tool_calls": [look]},
        {"role": "tool", "id": "c", "content": "on", "requestor": "assistant"},
    )
    assert messages == [{"role": "user", "content": "wait"}, {"role": "tool", "content": "on", "tool_call_id": "c"}]
    assert applied == {
        "content_null_to_empty": 1,
        "flat_tool_call_nested": 3,
        "user_tool_call_dropped": 3,
        "empty_user_message_dropped": 1,
        "user_tool_result_dropped": 1,
        "tool_result_id_renamed": 1,
    }


def test_the_policy_opens_a_conversation_that_has_no_system_message():
    assert normal(USER, policy="s") == ([{"role": "system", "content": "s"}, USER], {"policy_as_system": 1})
    own = {"role": "system", "content": "own"}
    assert normal(own, USER, policy="s") == ([own, USER], {})


def test_tools_are_passed_on_parsed_from_text_or_refused():
    def tools(value):
        return normalise(Conversation(messages=[USER], tools=value), Counter())[1]

    assert tools([{"type": "function"}]) == [{"type": "function"}]
    assert tools('[{"type": "function"}]') == [{"type": "function"}]
    assert tools([]) is tools(None) is tools("") is tools("[]") is tools("null") is None
    for bad in ("[", {"a": 1}, [7], 7):
        assert refusal(USER, tools=bad)[0] == "tools"


def test_the_messages_handed_in_are_not_changed():
    message = called('{"a": 1}')
    normal(message)
    assert message == called('{"a": 1}')
