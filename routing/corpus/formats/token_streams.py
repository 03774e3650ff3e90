"""Token ids that somebody's tokenizer made already: of a whole row, or of a prompt and its completion."""

import numpy as np

from routing.corpus.documents import FileFacts, RawDocument, RefusedError, TokenIds
from routing.corpus.formats.format import Format, Row, kind, required_list

_WHOLE, _PROMPT, _COMPLETION = "input_ids", "prompt_token_ids", "completion_token_ids"
_KEYS = (_WHOLE, "attention_mask", "position_ids", _PROMPT, _COMPLETION)


def _is_ids(value: object) -> bool:
    return isinstance(value, list | np.ndarray)


def _is_row(row: Row, facts: FileFacts) -> bool:
    return _is_ids(row.get(_WHOLE)) or all(_is_ids(row.get(key)) for key in (_PROMPT, _COMPLETION))


def _read(row: Row, facts: FileFacts) -> list[RawDocument]:
    """Masks and positions are those of the whole row, be it a prompt and its completion."""
    mask, positions = row.get("attention_mask"), row.get("position_ids")
    return [RawDocument(body=TokenIds(input_ids=_ids(row), attention_mask=mask, position_ids=positions))]


def _ids(row: Row) -> object:
    """The ids of the row; beside a completion `input_ids` is the prompt, as serving engines write it."""
    has_whole, has_prompt, has_completion = (row.get(key) is not None for key in (_WHOLE, _PROMPT, _COMPLETION))
    if has_whole and has_prompt and has_completion:
        raise RefusedError("shape", f"'{_WHOLE}' beside '{_PROMPT}' and '{_COMPLETION}': leave out what is not meant")
    if has_completion or (has_prompt and not has_whole):
        prompt = required_list(row, _WHOLE if has_whole else _PROMPT)
        return [*prompt, *required_list(row, _COMPLETION)]
    ids = row.get(_WHOLE)
    if not _is_ids(ids):
        raise RefusedError("shape", f"'{_WHOLE}' is {kind(ids)}, not a list")
    return ids


TOKEN_IDS = Format(name="token-ids", keys=_KEYS, is_row=_is_row, read=_read)
