"""Documents of plain text, which no chat template renders: whole files, and rows that hold a transcript."""

from routing.corpus.documents import FileFacts, PlainText, RawDocument, RefusedError
from routing.corpus.formats.format import Format, Row

_KEYS = ("messages_display", "text")


def _text(row: Row) -> str | None:
    return next((text for key in _KEYS if isinstance(text := row.get(key), str)), None)


def _read(row: Row, facts: FileFacts) -> list[RawDocument]:
    text = _text(row)
    if text is None:
        raise RefusedError("shape", "no text under 'messages_display' or 'text'")
    return [RawDocument(body=PlainText(text=text))]


TEXT = Format(name="text", keys=(), is_row=lambda row, facts: facts.whole_text, read=_read)
TEXT_ROWS = Format(name="text-rows", keys=_KEYS, is_row=lambda row, facts: _text(row) is not None, read=_read)
