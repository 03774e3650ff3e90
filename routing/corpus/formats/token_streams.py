"""Token ids that somebody's tokenizer made already: of a whole row, or of a prompt and its completion."""

import numpy as np

from routing.corpus.documents import FileFacts, RawDocument, RefusedError, TokenIds
from routing.corpus.formats.format import Format, Row, kind, required_list

_SPLIT = ("prompt_token_ids", "completion_token_ids")
_KEYS = ("input_ids", "attention_mask", "position_ids", *_SPLIT)


def _is_ids(value: object) -> bool:
    return isinstance(value, list | np.ndarray)


def _is_row(row: Row, facts: FileFacts) -> bool:
    return _is_ids(row.get("input_ids")) or all(_is_ids(row.get(key)) for key in _SPLIT)


def _read(row: Row, facts: FileFacts) -> list[RawDocument]:
    """Masks and positions are those of `input_ids`; a row of prompt and completion has neither."""
    if row.get("input_ids") is None and any(row.get(key) is not None for key in _SPLIT):
        prompt, completion = (required_list(row, key) for key in _SPLIT)
        return [RawDocument(body=TokenIds(input_ids=[*prompt, *completion]))]
    ids = row.get("input_ids")
    if not _is_ids(ids):
        raise RefusedError("shape", f"'input_ids' is {kind(ids)}, not a list")
    mask, positions = row.get("attention_mask"), row.get("position_ids")
    return [RawDocument(body=TokenIds(input_ids=ids, attention_mask=mask, position_ids=positions))]


TOKEN_IDS = Format(name="token-ids", keys=_KEYS, is_row=_is_row, read=_read)
