"""What a row says before any rule: a conversation, a text or token ids, with what names its unit, or why it says nothing."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

# One entry of a conversation, its place for errors, the counts of rules, to messages with `role` and `content`.
Dialect = Callable[[Mapping[str, object], str, Counter[str]], Iterable[Mapping[str, object]]]


class RefusedError(Exception):
    """A row that no rule makes fit; `reason` is one of REFUSAL_REASONS, `detail` names keys and roles, never content."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason, self.detail = reason, detail


@dataclass(frozen=True, kw_only=True, slots=True)
class FileFacts:
    """What a file says about all of its rows.

    `columnar`: struct columns fill absent keys with None. `header`: the object around a tau2 run file's simulations.
    `whole_text`: the file is one document of plain text.
    """

    columnar: bool = False
    header: Mapping[str, object] = field(default_factory=dict)
    whole_text: bool = False


def unchanged(entry: Mapping[str, object], at: str, counts: Counter[str]) -> Iterable[Mapping[str, object]]:
    """The dialect of formats whose entries are messages already."""
    yield entry


@dataclass(frozen=True, kw_only=True, slots=True)
class Conversation:
    """Entries as the file holds them under `key`, before any rule; `dialect` turns each into messages.

    `policy` goes in front as the system message where there is none.
    """

    messages: Sequence[object]
    tools: object = None
    policy: object = None
    columnar: bool = False
    dialect: Dialect = unchanged
    key: str = "messages"


@dataclass(frozen=True, kw_only=True, slots=True)
class PlainText:
    """A document that no chat template renders."""

    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenIds:
    """Ids that someone else's tokenizer made, with the mask that marks padding and the positions, all unchecked."""

    input_ids: object
    attention_mask: object = None
    position_ids: object = None


@dataclass(frozen=True, kw_only=True, slots=True)
class RawDocument:
    """One trajectory: `domain` as the file states it, `implied_domain` as a rule of the format reads it.

    Without a `task_id` its unit is the file's row `group` (default: the row that it stands in). `request` holds the messages of
    a request that repeats the conversation so far: the unit is then the conversation's first request.
    """

    body: Conversation | PlainText | TokenIds | RefusedError
    task_id: str | None = None
    domain: str | None = None
    implied_domain: str | None = None
    group: int | None = None
    request: Sequence[object] | None = None
