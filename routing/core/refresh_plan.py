"""A refresh plan: which policies to measure over which files, how to fit them, and which committed table that is held against.

Refused at the door: a name that tables can't show, a size that is none, two runs in one folder. Paths stand as the plan has them.
"""

import os
from dataclasses import dataclass
from typing import Literal

from routing.core.fields import FieldError, FieldPath, boolean, put, sequence, whole
from routing.core.units import MAX_SIZE

MAX_SEED = 10**18


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedRun:
    """One measurement, in the words of `routing measure`; `corpus` holds files or patterns, sizes are in tokens."""

    out: str
    policy: str
    corpus: tuple[str, ...]
    label: str
    max_tokens: int | None = None
    tokenizer: str | None = None
    format: str | None = None
    domain: str | None = None
    segment_tokens: int = 1024
    device: str = "auto"
    dtype: str = "auto"

    def __post_init__(self) -> None:
        for name in ("out", "policy", "label", "device", "dtype"):
            _words((name,), getattr(self, name))
        for name in ("tokenizer", "format", "domain"):
            if getattr(self, name) is not None:
                _words((name,), getattr(self, name))
        if len(self.label) > 100:
            raise FieldError(("label",), f"{len(self.label)} letters, a label has at most 100")
        put(self, "corpus", sequence(("corpus",), self.corpus))
        if not self.corpus:
            raise FieldError(("corpus",), "names no file")
        for place, pattern in enumerate(self.corpus):
            _words(("corpus", place), pattern)
        put(self, "segment_tokens", whole(("segment_tokens",), self.segment_tokens, low=1, high=MAX_SIZE))
        if self.max_tokens is not None:
            put(self, "max_tokens", whole(("max_tokens",), self.max_tokens, low=1, high=MAX_SIZE))


@dataclass(frozen=True, kw_only=True, slots=True)
class RefreshPlan:
    """The runs, the parameters of the fit over all of them, and the table to keep; `ep` null: those of 2, 4, 8 that divide."""

    table: str
    runs: tuple[PlannedRun, ...]
    batch_tokens: tuple[int, ...]
    ep: tuple[int, ...] | None = None
    order: Literal["corpus"] | int = "corpus"
    per_layer: bool = False

    def __post_init__(self) -> None:
        _words(("table",), self.table)
        put(self, "runs", sequence(("runs",), self.runs))
        if not self.runs:
            raise FieldError(("runs",), "names no run")
        _sizes(self, "batch_tokens", low=1, high=MAX_SIZE)
        if self.ep is not None:
            _sizes(self, "ep", low=2, high=4096)
        if self.order != "corpus":
            put(self, "order", whole(("order",), self.order, high=MAX_SEED))
        boolean(self, "per_layer")
        folders = [os.path.normpath(run.out) for run in self.runs]
        for place, folder in enumerate(folders):
            if folder in folders[:place]:
                raise FieldError(("runs", place, "out"), f"{folder[:60]!r} is that of runs[{folders.index(folder)}] too")


def _words(path: FieldPath, text: str) -> None:
    if not isinstance(text, str) or not text.strip() or not text.isprintable():
        raise FieldError(path, f"{str(text)[:40]!a} is no printable text")


def _sizes(plan: RefreshPlan, name: str, *, low: int, high: int) -> None:
    sizes = sequence((name,), getattr(plan, name))
    put(plan, name, tuple(whole((name, place), one, low=low, high=high) for place, one in enumerate(sizes)))
    if not sizes:
        raise FieldError((name,), "names no size")
    if len(set(sizes)) != len(sizes):
        raise FieldError((name,), "names a size twice")
