"""Rows that tests of this room write into corpora."""


def chat(*contents: str, **row: object) -> dict[str, object]:
    """A row of user and assistant messages in turn."""
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[index % 2], "content": text} for index, text in enumerate(contents)], **row}
