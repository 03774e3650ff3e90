"""JSON as it comes from other people's machines: one strict parser, one line splitter, faults with a line and an excerpt."""

import json
import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from routing.core.errors import InputError, StorageError

MAX_LINE_BYTES = 256 * 2**20
MAX_JSON_FILE_BYTES = 2**30
MAX_SKIPPED_LINES = 1_000
EXCERPT_CHARS = 60
BOM = b"\xef\xbb\xbf"

_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\]:]|NaN|-?Infinity|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?', re.DOTALL)
_SUSPECT_ESCAPE = re.compile(r"\\u(?:0000|[dD][89a-fA-F])")
_LONE_SURROGATE = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)


class JsonFaultError(ValueError):
    """What is wrong with a piece of JSON, at which line of it (1-based), and an escaped excerpt of at most 60 characters."""

    def __init__(self, what: str, *, line: int, excerpt: str) -> None:
        super().__init__(what)
        self.what, self.line, self.excerpt = what, line, excerpt


class _RefusedByHookError(ValueError):
    """Raised inside the parser, which doesn't tell its hooks where it stands; `_fault_position` finds the place afterwards."""


def escape(text: str, max_chars: int = EXCERPT_CHARS) -> str:
    """`text` on one line of printable ASCII, cut to `max_chars`."""
    escaped = text[:max_chars].encode("unicode_escape").decode("ascii")
    return escaped if len(escaped) <= max_chars and len(text) <= max_chars else escaped[: max_chars - 3] + "..."


def printable(text: str) -> str:
    """`text` on one line: as it is where it can be printed and stored, else escaped. File names may hold anything."""
    return text if text.isprintable() and is_encodable(text) else text.encode("unicode_escape").decode("ascii")


def _distinct_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise _RefusedByHookError("the same key twice in one object")
    return members


def _finite(literal: str) -> float:
    number = float(literal)
    if math.isinf(number):
        raise _RefusedByHookError("a number beyond 64-bit floats")
    return number


def _no_constant(literal: str) -> NoReturn:
    raise _RefusedByHookError(f"{literal} is not JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_distinct_keys, parse_float=_finite, parse_constant=_no_constant)


def parse_json(raw: bytes | str) -> object:
    """The value in `raw`, or JsonFaultError.

    Refused beyond the grammar: bytes that aren't UTF-8, NaN and Infinity, floats that overflow, integers beyond Python's digit
    limit (4,300), repeated keys, lone surrogates and NUL in strings, nesting beyond the recursion limit.
    """
    if isinstance(raw, bytes):
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            window = raw[max(error.start - 20, 0) : error.start + 40].decode("utf-8", "backslashreplace")
            line = raw.count(b"\n", 0, error.start) + 1
            raise JsonFaultError(f"byte 0x{raw[error.start]:02x} is not UTF-8", line=line, excerpt=escape(window)) from None
    else:
        text = raw
    try:
        value: object = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise _fault(error.msg, text, error.pos) from None
    except _RefusedByHookError as error:
        raise _fault(str(error), text, _fault_position(text)) from None
    except RecursionError:
        raise _fault("nested too deeply", text, 0) from None
    except ValueError:  # int() itself refuses thousands of digits
        raise _fault(f"an integer of more than {sys.get_int_max_str_digits()} digits", text, _fault_position(text)) from None
    if _SUSPECT_ESCAPE.search(text):
        _require_clean_strings(value, text)
    return value


def _fault(what: str, text: str, position: int) -> JsonFaultError:
    window = text[max(position - 20, 0) : position + 40]
    return JsonFaultError(what, line=text.count("\n", 0, position) + 1, excerpt=escape(window))


def _fault_position(text: str) -> int:
    """Where the first repeated key or impossible number of otherwise well-formed `text` stands, by a plain scan."""
    open_objects: list[set[str] | None] = []
    last_string = None
    for token in _TOKEN.finditer(text):
        literal = token[0]
        if literal in "{[":
            open_objects.append(set() if literal == "{" else None)
        elif literal in "}]":
            if open_objects:
                open_objects.pop()
        elif literal[0] == '"':
            last_string = token
        elif literal == ":":
            keys = open_objects[-1] if open_objects else None
            if keys is not None and last_string is not None:
                key = last_string[0]
                if key in keys:
                    return last_string.start()
                keys.add(key)
        elif literal[-1] in "Ny" or len(literal) > sys.get_int_max_str_digits() or math.isinf(float(literal)):
            return token.start()
    return 0


def _require_clean_strings(value: object, text: str) -> None:
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            pending.extend(item.keys())
            pending.extend(item.values())
        elif isinstance(item, list):
            pending.extend(item)
        elif isinstance(item, str):
            if "\x00" in item:
                raise _fault("NUL in a string", text, text.find("\\u0000"))
            if not is_encodable(item):
                match = _LONE_SURROGATE.search(text)
                raise _fault("a lone surrogate in a string", text, match.start() if match else 0)


def is_encodable(text: str) -> bool:
    """Whether UTF-8 can hold `text`: no lone surrogate is in it."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


class BadLines:
    """What to do with a line that can't be read: stop with its fault, or skip and count it up to MAX_SKIPPED_LINES a file."""

    def __init__(self, *, skip: bool) -> None:
        self.skip = skip
        self.num_skipped = 0

    def take(self, message: str) -> None:
        """Count the fault, or raise it as InputError."""
        if not self.skip:
            raise InputError(f"{message}; mend it or pass --on-bad-line skip")
        self.num_skipped += 1
        if self.num_skipped > MAX_SKIPPED_LINES:
            raise InputError(f"{message}; more than {MAX_SKIPPED_LINES:,} bad lines, this file is damaged or of another format")


def read_lines(path: Path, bad_lines: BadLines, *, name: str) -> Iterator[tuple[int, bytes]]:
    """(1-based line number, line without its end) of every line that isn't blank; split at LF only, so U+2028 is content."""
    try:
        with path.open("rb") as file:
            if file.read(len(BOM)) != BOM:
                file.seek(0)
            number = 0
            while line := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(line) > MAX_LINE_BYTES and not line.endswith(b"\n"):
                    while not line.endswith(b"\n") and (line := file.readline(MAX_LINE_BYTES)):
                        pass
                    bad_lines.take(f"{name}:{number}: a line of more than {MAX_LINE_BYTES:,} bytes")
                    continue
                line = line.strip(b" \t\r\n")
                if line:
                    yield number, line
    except OSError as error:
        raise StorageError(f"{name}: cannot read: {error.strerror}") from None


def read_json_lines(path: Path, bad_lines: BadLines, *, name: str) -> Iterator[tuple[int, object]]:
    """(0-based row, value) of every line that parses; blank lines are no rows, bad lines keep their row number."""
    for row, (number, line) in enumerate(read_lines(path, bad_lines, name=name)):
        try:
            value = parse_json(line)
        except JsonFaultError as fault:
            bad_lines.take(f"{name}:{number}: {fault.what}; near '{fault.excerpt}'")
            continue
        yield row, value


def read_json_file(path: Path, *, name: str) -> object:
    """The one value that the whole file holds; InputError with its line where it doesn't parse."""
    try:
        num_bytes = path.stat().st_size
        if num_bytes > MAX_JSON_FILE_BYTES:
            raise InputError(f"{name}: one JSON value of {num_bytes:,} bytes; write it as JSON Lines, one trajectory a line")
        raw = path.read_bytes()
    except OSError as error:
        raise StorageError(f"{name}: cannot read: {error.strerror}") from None
    try:
        return parse_json(raw.removeprefix(BOM))
    except JsonFaultError as fault:
        raise InputError(f"{name}:{fault.line}: {fault.what}; near '{fault.excerpt}'") from None
