"""Accidents that happen to files: bytes, lines, keys and numbers, and what people's machines put between them."""

import random
import re

# What people's machines, editors and exporters put where it does not belong, and what a parser might take for more than text.
ODD = (
    *(b"\xef\xbb\xbf", b"\r", b"\r\n", b"\xe2\x80\xa8", b"\x00", b"\xff", b"\xed\xa0\x80", b"\xc2\x85", b"\x0c", b"\x1c"),
    *(b"\\ud800", b"\\u0000", b"\\ud83d\\ude00", b"\\", b'"', b"'", b"{", b"}", b"[", b"]", b",", b":", b"\n", b"\t", b"#", b"%"),
    *(b"NaN", b"-Infinity", b"1e999", b"1e3", b"1.0", b"-0", b"007", b"0x10", b"1_000", b"1:30", b"null", b"true", b"~", b".5"),
    *(b"9" * 5_000, b"[" * 3_000, b'{"a":' * 1_200, b"2147483647", b"2147483648", b"9223372036854775808"),
    *(b"18446744073709551616", b"2305843009213693952", b"&a ", b"*a", b"!!python/object/apply:os.system ", b"<<: *a"),
    *(b"- ", b"? ", b"| ", b"---\n", b"...\n", b"%YAML 1.1\n", b'"a": 1, ', b"\xf0\x9f\x99\x82", b"-1", b"0", b" ", b"[red]"),
    *(b"\xe2\x80\xae", b"\x1b[2J"),
)
_NUMBER = re.compile(rb"-?[0-9]+(?:\.[0-9]+)?")
_MEMBER = re.compile(rb'"?[a-z_]+"?: *[^,\n{}\[\]]+')


def mutated(draw: random.Random, raw: bytes) -> bytes:
    """`raw` after one to three accidents, mostly one."""
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        raw = draw.choice(_ACCIDENTS)(draw, raw)
    return raw


def _flip(draw: random.Random, raw: bytes) -> bytes:
    at = draw.randrange(len(raw)) if raw else 0
    return raw[:at] + bytes([raw[at] ^ 1 << draw.randrange(8)]) + raw[at + 1 :] if raw else raw


def _insert(draw: random.Random, raw: bytes) -> bytes:
    at = draw.randint(0, len(raw))
    return raw[:at] + draw.choice(ODD) + raw[at:]


def _repeat(draw: random.Random, raw: bytes) -> bytes:
    start, end = sorted((draw.randint(0, len(raw)), draw.randint(0, len(raw))))
    return raw[:end] + raw[start:end] + raw[end:]


def _cut(draw: random.Random, raw: bytes) -> bytes:
    start, end = sorted((draw.randint(0, len(raw)), draw.randint(0, len(raw))))
    return raw[:start] + raw[min(end, start + 40) :]


def _truncate(draw: random.Random, raw: bytes) -> bytes:
    return raw[: draw.randint(0, len(raw))]


def _swap_lines(draw: random.Random, raw: bytes) -> bytes:
    lines = raw.split(b"\n")
    draw.shuffle(lines)
    return b"\n".join(lines)


def _renumber(draw: random.Random, raw: bytes) -> bytes:
    return _replaced(draw, raw, _NUMBER, draw.choice(ODD))


def _key_twice(draw: random.Random, raw: bytes) -> bytes:
    return _replaced(draw, raw, _MEMBER, None)


def _replaced(draw: random.Random, raw: bytes, pattern: re.Pattern[bytes], by: bytes | None) -> bytes:
    found = list(pattern.finditer(raw))
    if not found:
        return raw
    one = draw.choice(found)
    return raw[: one.start()] + (one[0] + b", " + one[0] if by is None else by) + raw[one.end() :]


_ACCIDENTS = (_flip, _insert, _repeat, _cut, _truncate, _swap_lines, _renumber, _key_twice)
