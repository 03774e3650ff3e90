"""Documents to token ids: rendered, encoded a few at a time, or checked where they are ids already."""

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from routing.core.errors import InputError
from routing.core.masks import kept_places
from routing.corpus.documents import Conversation, RawDocument, RefusedError, TokenIds
from routing.corpus.files import DealtRow
from routing.corpus.normalise import normalise
from routing.corpus.render import ChatRenderer, tokenizer_renderer
from routing.corpus.strict_json import escape

_ROWS_AT_ONCE = 16

Ids = npt.NDArray[np.int32]


@dataclass(frozen=True, kw_only=True, slots=True)
class EncodedRow:
    """What became of a dealt row: its ids, int32 [T], or a refusal; `applied` counts the normalising rules."""

    dealt: DealtRow
    ids: Ids | RefusedError
    applied: Counter[str]


def encode_rows(dealt_rows: Iterator[DealtRow], *, tokenizer: Any) -> Iterator[EncodedRow]:
    """Ids or a refusal for every row, in order; texts go to the tokenizer a few at a time, which then uses every core it may."""
    render = tokenizer_renderer(tokenizer)
    vocabulary_size = len(tokenizer)
    while chunk := list(itertools.islice(dealt_rows, _ROWS_AT_ONCE)):
        contents: list[str | Ids | RefusedError] = []
        applied = [Counter[str]() for _ in chunk]
        for dealt, counts in zip(chunk, applied, strict=True):
            try:
                content = text_or_ids(dealt.document, render, counts)
                contents.append(_checked_ids(content, vocabulary_size) if isinstance(content, TokenIds) else content)
            except RefusedError as refusal:
                contents.append(refusal)
        encoded = iter(_encode([content for content in contents if isinstance(content, str)], tokenizer, chunk))
        for dealt, outcome, counts in zip(chunk, contents, applied, strict=True):
            yield EncodedRow(dealt=dealt, ids=next(encoded) if isinstance(outcome, str) else outcome, applied=counts)


def text_or_ids(document: RawDocument, render: ChatRenderer, applied: Counter[str]) -> str | TokenIds:
    """The text to encode, or the ids that need none; adds to `applied`. RefusedError where a rule refuses the row."""
    body = document.body
    if isinstance(body, RefusedError):
        raise body
    if isinstance(body, TokenIds):
        return body
    if isinstance(body, Conversation):
        try:
            messages, tools = normalise(body, applied)
        except RecursionError:
            raise RefusedError("too_deep", "nested too deeply") from None
        text = render(messages, tools)
    else:
        text = body.text
    if not text:
        raise RefusedError("empty", "no text")
    if "\x00" in text:
        raise RefusedError("content", "NUL in the text")
    return text


def _encode(texts: list[str], tokenizer: Any, chunk: Sequence[DealtRow]) -> list[Ids]:
    if not texts:
        return []
    try:
        encoded = tokenizer(texts, add_special_tokens=False, return_attention_mask=False, verbose=False)["input_ids"]
    except Exception as error:  # a tokenizer is someone else's code and data
        where = f"{chunk[0].file.path}: row {chunk[0].row} or one of the {len(chunk) - 1} dealt after it"
        raise InputError(f"{where}: the tokenizer raised {type(error).__name__}: {escape(str(error))}") from None
    return [np.asarray(ids, dtype=np.int32) for ids in encoded]


def _checked_ids(body: TokenIds, vocabulary_size: int) -> Ids:
    """The ids at unmasked positions; RefusedError where ids, mask or positions are no such thing."""
    ids = _whole_numbers(body.input_ids, "input_ids")
    kept = _mask(body.attention_mask, len(ids))
    if body.position_ids is not None:
        _require_one_sequence(body.position_ids, kept)
    ids = ids[kept]
    if len(ids) and not (ids.min() >= 0 and ids.max() < vocabulary_size):
        worst = ids.min() if ids.min() < 0 else ids.max()
        raise RefusedError("token_ids", f"id {escape(str(worst), 40)} is outside the vocabulary of {vocabulary_size}")
    return ids.astype(np.int32)


def _whole_numbers(values: object, key: str) -> npt.NDArray[Any]:
    """`values` as an array of one dimension; of Python's own integers where they exceed 64 bits."""
    if isinstance(values, np.ndarray):
        return values
    if not isinstance(values, list) or not all(type(value) is int for value in values):
        raise RefusedError("token_ids", f"{key} holds something other than integers")
    try:
        return np.asarray(values, dtype=np.int64)
    except OverflowError:
        return np.asarray(values, dtype=object)


def _mask(mask: object, num_ids: int) -> npt.NDArray[np.bool_]:
    if mask is None:
        return np.ones(num_ids, dtype=np.bool_)
    try:
        return np.asarray(kept_places(mask, num_ids), dtype=np.bool_)
    except ValueError as error:
        raise RefusedError("token_ids", str(error)) from None


def _require_one_sequence(positions: object, kept: npt.NDArray[np.bool_]) -> None:
    """Positions are looked at for one thing: several sequences packed into a row restart them, and would see each other here."""
    places = _whole_numbers(positions, "position_ids")
    if len(places) != len(kept):
        raise RefusedError("token_ids", f"position_ids are {len(places)} numbers beside {len(kept)} ids")
    jumps = np.flatnonzero(np.diff(places[kept]) != 1)
    if len(jumps):
        raise RefusedError("token_ids", f"position_ids restart or jump after token {jumps[0]}: write each sequence as a row")
