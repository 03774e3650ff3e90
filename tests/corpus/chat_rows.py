"""Rows that tests of this room write into corpora."""


def chat(*contents: str, **row: object) -> dict[str, object]:
    """A row of user and assistant messages in turn."""
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[index % 2], "content": text} for index, text in enumerate(contents)], **row}


# A conversation with a call, as ART keeps one: what the policy sampled is a Choice
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"bay": 3}'}}
CHOICE = {"finish_reason": "tool_calls", "index": 0, "message": {"role": "assistant", "content": None, "tool_calls": [CALL]}}
SPOKEN = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Is it there?"},
    CHOICE,
    {"role": "tool", "tool_call_id": "c1", "content": "empty"},
    {"finish_reason": "stop", "index": 0, "message": {"role": "assistant", "content": "No."}},
]
# SPOKEN through the strict template, by hand
SPOKEN_TEXT = "<|system|>Be brief.<|user|>Is it there?<|assistant|><call look><bay>3<|tool|>empty<|assistant|>No."


def units(corpus):
    return [trajectory.unit for trajectory in corpus.trajectories]


def refused(corpus):
    return [(refusal.source_row, refusal.reason) for refusal in corpus.refusals]
