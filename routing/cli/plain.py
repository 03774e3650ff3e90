"""The way to the terminal: what a name or a file holds can't steer it, and no password or token in an address is shown."""

import re
import sys
from typing import Any

import typer
from rich.console import Console
from rich.text import Text

# The user information of an address (RFC 3986, 3.2.1), of whose two slashes a path keeps one; access tokens of the model hub.
_USER_OF_ADDRESS = re.compile(r"\b([A-Za-z][A-Za-z0-9+.-]*:/{1,2})[^/\s]*@")
_HUB_TOKEN = re.compile(r"\bhf_[A-Za-z0-9]{16,}")
_LAYOUT = "\n\t"


def plain(text: str) -> str:
    """`text` as a terminal may show it: escape sequences, marks of direction and lone surrogates as `\\x1b`, `\\u202e`."""
    text = without_secrets(text)
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in _LAYOUT else one.encode("unicode_escape").decode("ascii") for one in text)


def without_secrets(text: str) -> str:
    """`text` with `***` for the user and password of an address, and for tokens of the model hub."""
    return _HUB_TOKEN.sub("***", _USER_OF_ADDRESS.sub(r"\1***@", text))


def command_given() -> tuple[str, ...]:
    """The words of the command line, as a run records them."""
    return tuple(map(without_secrets, sys.argv[1:]))


def say(text: str, *, err: bool = False, nl: bool = True) -> None:
    """`text` on stdout, or on stderr."""
    typer.echo(plain(text), err=err, nl=nl)


class PlainConsole(Console):
    """A console to which text is text: `[red]`, `:warning:` and escape sequences in it are shown as they are written."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(plain(text), **options)
