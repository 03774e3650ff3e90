"""The command line: verbs to stages. The only room that prints or exits."""

from routing.cli.app import main

__all__ = ["main"]
