"""Corpus files by name: told apart, opened when their turn comes, read row by row as documents."""

import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from routing.core.errors import InputError
from routing.corpus.containers import open_container
from routing.corpus.cumulative import Conversations
from routing.corpus.documents import FileFacts, RawDocument
from routing.corpus.formats.format import Format
from routing.corpus.formats.registry import COLUMNS, FORMATS, detect_format, read_row
from routing.corpus.hashing import hash_path, state_of
from routing.corpus.hub import located
from routing.corpus.sequences import CorpusFile
from routing.corpus.strict_json import BadLines, printable

BAD_LINE_ACTIONS = ("stop", "skip")
_ROWS_TO_DETECT = 20


class OpenFile:
    """One corpus file while it is read; the counts grow as rows are dealt."""

    def __init__(
        self, *, index: int, name: str, path: str, location: Path, format: str | None, on_bad_line: str
    ) -> None:
        self.index, self.name, self.path = index, printable(name), printable(path)
        self._location = location
        self._state = state_of(location, name=self.path)
        self.format = format
        self.bad_lines = BadLines(skip=on_bad_line == "skip")
        self.rows = self.kept = self.refused = 0

    def documents(self) -> Iterator["DealtRow"]:
        """Every trajectory in file order; counts them, finds out the format where none was named."""
        container = open_container(
            self._location, self.bad_lines, name=self.path, columns=COLUMNS, as_text=self.format == "text"
        )
        if container is None:
            raise self._unknown_format()
        head = list(itertools.islice(container.rows, _ROWS_TO_DETECT))
        format = self._settled_format([value for _, value in head], container.facts)
        conversations = Conversations()
        num_split = 0
        for row, value in itertools.chain(head, container.rows):
            documents = read_row(value, format, container.facts)
            for place, document in enumerate(documents):
                self.rows += 1
                unit_row = conversations.first_row(document.request, row) if document.group is None else document.group
                yield DealtRow(file=self, row=row + num_split + place, unit_row=unit_row, document=document)
            num_split += len(documents) - 1

    def _settled_format(self, head: list[object], facts: FileFacts) -> Format:
        """The format that was named, or that the first rows have; InputError where there is none."""
        if not head:
            skipped = f" but {self.bad_lines.num_skipped} bad lines" if self.bad_lines.num_skipped else ""
            raise InputError(f"{self.path}: the file holds no rows{skipped}")
        if self.format == "tau2" and "simulations" not in facts.header:
            raise InputError(f"{self.path}: no tau2 run file, it has no list under 'simulations'")
        format = detect_format(head, facts) if self.format is None else FORMATS[self.format]
        if format is None:
            raise self._unknown_format()
        self.format = format.name
        return format

    def account(self) -> CorpusFile:
        """The file's counts and hash, once every row was dealt or left."""
        sha256, num_bytes = hash_path(self._location, name=self.path)
        if state_of(self._location, name=self.path) != self._state:
            raise InputError(f"{self.path}: changed while it was read; measure again once nothing writes to it")
        return CorpusFile(
            name=self.name,
            path=self.path,
            format=self.format or "",
            sha256=sha256,
            num_bytes=num_bytes,
            rows=self.rows,
            kept=self.kept,
            refused=self.refused,
            not_taken=self.rows - self.kept - self.refused,
            bad_lines=self.bad_lines.num_skipped,
        )

    def _unknown_format(self) -> InputError:
        return InputError(
            f"{self.path}: none of the known formats ({', '.join(FORMATS)}); see docs/formats.md, or name one with --format"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class DealtRow:
    """A trajectory whose turn it is: the 0-based `row` of it, and of what shares its unit where no task is named."""

    file: OpenFile
    row: int
    unit_row: int
    document: RawDocument


def open_files(paths: Sequence[str | os.PathLike[str]], *, format: str | None, on_bad_line: str = "stop") -> tuple[OpenFile, ...]:
    """The files of a corpus in the order given, checked to be there and not empty; InputError, StorageError."""
    if not paths:
        raise InputError("no corpus file given")
    if format is not None and format not in FORMATS:
        raise InputError(f"--format: '{format}' is not known; one of {', '.join(FORMATS)}")
    if on_bad_line not in BAD_LINE_ACTIONS:
        raise InputError(f"--on-bad-line: '{on_bad_line}' is not known; one of {', '.join(BAD_LINE_ACTIONS)}")
    given = [os.fspath(path) for path in paths]
    names = distinct_names(given)
    locations = [located(path) for path in given]
    return tuple(
        OpenFile(index=index, name=name, path=path, location=location, format=format, on_bad_line=on_bad_line)
        for index, (name, path, location) in enumerate(zip(names, given, locations, strict=True))
    )


def deal_rows(files: Sequence[OpenFile], *, in_turn: bool) -> Iterator[DealtRow]:
    """Every row: file by file, or in turn (the first row of each file, then the second of each)."""
    if not in_turn:
        for file in files:
            yield from file.documents()
        return
    hands = [(file, file.documents()) for file in files]
    while hands:
        left = []
        for file, cards in hands:
            if (card := next(cards, None)) is not None:
                left.append((file, cards))
                yield card
        hands = left


def distinct_names(paths: Sequence[str]) -> tuple[str, ...]:
    """Base names, with as many parent folders as tell files of the same base name apart; InputError for one given twice."""
    parts = [Path(os.path.abspath(path)).parts for path in paths]
    for index, path in enumerate(paths):
        if parts[index] in parts[:index]:
            raise InputError(f"{printable(path)}: given twice")
    names = []
    for own in parts:
        namesakes = [other for other in parts if other != own and other[-1:] == own[-1:]]
        depth = 1
        while any(other[-depth:] == own[-depth:] for other in namesakes):
            depth += 1
        names.append("/".join(own[-depth:]).removeprefix("//"))
    return tuple(names)
