"""Progress on stderr: a bar with tokens a second and time left in a terminal, plain lines elsewhere."""

import time
from typing import Self

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from routing.cli.plain import PlainConsole, plain

_SECONDS_BETWEEN_LINES = 5.0


class StderrProgress:
    """Implements the stages' `Progress`; use as a context manager."""

    def __init__(self, *, is_alone: bool = True) -> None:
        """Several processes that share one terminal get lines too: their bars would overwrite each other."""
        self._is_alone = is_alone
        self._console = PlainConsole(stderr=True, soft_wrap=True)
        self._what, self._done, self._began, self._spoke = "", 0, 0.0, 0.0
        self._total: int | None = None
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal and self._is_alone:
            columns = (
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                TextColumn("{task.fields[done]}"),
                TextColumn("{task.fields[speed]}"),
                TimeRemainingColumn(),
            )
            self._bar = Progress(*columns, console=self._console, transient=True)
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def note(self, text: str) -> None:
        """One line for the user, beside whatever bar is shown."""
        self._console.print(text)

    def begin(self, what: str, total_tokens: int | None) -> None:
        """A new activity of `total_tokens`, None where nobody knows."""
        self._what, self._total, self._done = what, total_tokens, 0
        self._began = self._spoke = time.monotonic()
        if self._bar is not None:
            if self._task is not None:
                self._bar.remove_task(self._task)
            self._task = self._bar.add_task(plain(what), total=total_tokens, done="", speed="")

    def advance(self, tokens: int) -> None:
        """`tokens` more are done."""
        self._done += tokens
        now = time.monotonic()
        speed = self._done / max(now - self._began, 1e-9)
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=self._done, done=f"{self._done:,} tokens", speed=f"{speed:,.0f} tokens/s")
        elif self._bar is None and now - self._spoke >= _SECONDS_BETWEEN_LINES:
            self._spoke = now
            of = f" of {self._total:,}" if self._total else ""
            left = f", {max(0, self._total - self._done) / speed:,.0f} s left" if self._total else ""
            self.note(f"{self._what}: {self._done:,}{of} tokens, {speed:,.0f} tokens/s{left}")
