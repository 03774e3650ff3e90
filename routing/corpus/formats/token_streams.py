"""Token ids that somebody's tokenizer made already, with the mask that marks their padding."""

from routing.corpus.documents import FileFacts, RawDocument, RefusedError, TokenIds
from routing.corpus.formats.format import Format, Row, kind

_KEYS = ("input_ids", "attention_mask")


def _is_row(row: Row, facts: FileFacts) -> bool:
    return isinstance(row.get("input_ids"), list)


def _read(row: Row, facts: FileFacts) -> list[RawDocument]:
    if not isinstance(row.get("input_ids"), list):
        raise RefusedError("shape", f"'input_ids' is {kind(row.get('input_ids'))}, not a list")
    return [RawDocument(body=TokenIds(input_ids=row["input_ids"], attention_mask=row.get("attention_mask")))]


TOKEN_IDS = Format(name="token-ids", keys=_KEYS, is_row=_is_row, read=_read)
