"""A corpus from its files: dealt, rendered, tokenized, without exact repeats, everything counted."""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from routing.core.errors import InputError
from routing.corpus.documents import RefusedError, TokenIds
from routing.corpus.encoding import EncodedRow, encode_rows, text_or_ids
from routing.corpus.files import DealtRow, OpenFile, deal_rows, open_files
from routing.corpus.normalise import RULES
from routing.corpus.render import template_renderer
from routing.corpus.sequences import Corpus, Refusal, RenderedText, TokenizedTrajectory, token_hash
from routing.corpus.strict_json import escape

Paths = Sequence[str | os.PathLike[str]]


def load_corpus(
    paths: Paths,
    *,
    tokenizer: Any,
    format: str | None = None,
    domain: str | None = None,
    max_tokens: int | None = None,
    max_positions: int | None = None,
    on_bad_line: str = "stop",
    on_trajectory: Callable[[int], None] | None = None,
) -> Corpus:
    """`read_corpus` of the files in `paths`; its errors, and those of `open_files`."""
    return read_corpus(
        open_files(paths, format=format, on_bad_line=on_bad_line),
        tokenizer=tokenizer,
        domain=domain,
        max_tokens=max_tokens,
        max_positions=max_positions,
        on_trajectory=on_trajectory,
    )


def read_corpus(
    files: Sequence[OpenFile],
    *,
    tokenizer: Any,
    domain: str | None,
    max_tokens: int | None,
    max_positions: int | None,
    on_trajectory: Callable[[int], None] | None,
) -> Corpus:
    """The trajectories of `files`, opened and not yet read, as the policy of `tokenizer` would read them.

    With `max_tokens` whole trajectories are dealt round-robin over the files until one would exceed it; the rest is not taken,
    not tokenized. Trajectories beyond `max_positions` tokens are refused. Of exact repeats the first in corpus order is kept.
    `on_trajectory` is told the tokens of each trajectory as it is taken. Raises InputError for input that can't be read, for
    a first trajectory above `max_tokens` and for a corpus of which nothing is kept; StorageError where reading fails.
    """
    _require_domain(domain)
    taken: list[tuple[OpenFile, TokenizedTrajectory]] = []
    refused: list[tuple[OpenFile, Refusal]] = []
    applied: Counter[str] = Counter()
    hashes: set[str] = set()
    num_tokens = 0
    dealt_rows = deal_rows(files, in_turn=max_tokens is not None)
    for outcome in encode_rows(dealt_rows, tokenizer=tokenizer):
        trajectory = _trajectory(outcome, domain=domain, max_positions=max_positions)
        if isinstance(trajectory, TokenizedTrajectory) and trajectory.trajectory_hash not in hashes:
            size = len(trajectory.token_ids)
            if max_tokens is not None and num_tokens + size > max_tokens:
                _require_some(hashes, trajectory, max_tokens=max_tokens)
                break
            hashes.add(trajectory.trajectory_hash)
            num_tokens += size
            if on_trajectory is not None:
                on_trajectory(size)
        file = outcome.dealt.file
        if isinstance(trajectory, TokenizedTrajectory):
            taken.append((file, trajectory))
        else:
            refused.append((file, _refusal(file, outcome.dealt.row, trajectory)))
        applied.update(outcome.applied)
    for _ in dealt_rows:  # the rows behind the budget are read to be counted, not tokenized
        pass
    return _account(files, taken, refused, applied)


def render_texts(
    paths: Paths, *, chat_template: str, format: str | None = None, domain: str | None = None
) -> Iterator[RenderedText]:
    """Every document of `paths` that `chat_template` takes, as text, repeats included; refused rows are left out.

    For the training of a tokenizer, which needs text before there are tokens. Raises InputError as `load_corpus` does, and for
    rows of token ids, which have no text.
    """
    _require_domain(domain)
    render = template_renderer(chat_template)
    for dealt in deal_rows(open_files(paths, format=format), in_turn=False):
        try:
            content = text_or_ids(dealt.document, render, Counter())
        except RefusedError:
            continue
        if isinstance(content, TokenIds):
            raise InputError(f"{dealt.file.path}: token ids have no text to render")
        unit = _unit(dealt, domain=domain)
        yield RenderedText(unit=unit, source_file=dealt.file.name, source_row=dealt.row, text=content)


def _trajectory(outcome: EncodedRow, *, domain: str | None, max_positions: int | None) -> TokenizedTrajectory | RefusedError:
    if isinstance(outcome.ids, RefusedError):
        return outcome.ids
    ids, dealt = outcome.ids, outcome.dealt
    if not len(ids):
        return RefusedError("empty", "no tokens")
    if max_positions is not None and len(ids) > max_positions:
        return RefusedError("too_long", f"{len(ids)} tokens, the model takes {max_positions}")
    ids.setflags(write=False)
    return TokenizedTrajectory(
        trajectory_hash=token_hash(ids),
        unit=_unit(dealt, domain=domain),
        stratum=dealt.file.name,
        source_file=dealt.file.name,
        source_row=dealt.row,
        token_ids=ids,
    )


def _unit(dealt: DealtRow, *, domain: str | None) -> str:
    document = dealt.document
    if document.task_id is None:
        return f"{dealt.file.name}#{dealt.unit_row}"
    return f"{document.domain or domain or document.implied_domain or dealt.file.name}/{document.task_id}"


def _require_domain(domain: str | None) -> None:
    if domain is not None and (not domain.strip() or not domain.isprintable()):
        raise InputError(f"--domain: '{escape(domain)}' is no name")


def _require_some(hashes: set[str], trajectory: TokenizedTrajectory, *, max_tokens: int) -> None:
    if not hashes:
        raise InputError(
            f"--max-tokens: {max_tokens} is below the first trajectory, row {trajectory.source_row} of "
            f"{trajectory.source_file}, which has {len(trajectory.token_ids)} tokens"
        )


def _refusal(file: OpenFile, row: int, refused: RefusedError) -> Refusal:
    return Refusal(source_file=file.name, source_row=row, reason=refused.reason, detail=refused.detail)


def _account(
    files: Sequence[OpenFile],
    taken: list[tuple[OpenFile, TokenizedTrajectory]],
    refused: list[tuple[OpenFile, Refusal]],
    applied: Counter[str],
) -> Corpus:
    """The corpus in corpus order, exact repeats moved to the refusals, every file's counts closed."""
    first: dict[str, TokenizedTrajectory] = {}
    for file, trajectory in sorted(taken, key=lambda pair: (pair[0].index, pair[1].source_row)):
        original = first.setdefault(trajectory.trajectory_hash, trajectory)
        if original is trajectory:
            file.kept += 1
        else:
            repeat = RefusedError("exact_repeat", f"the same tokens as row {original.source_row} of {original.source_file}")
            refused.append((file, _refusal(file, trajectory.source_row, repeat)))
    refused.sort(key=lambda pair: (pair[0].index, pair[1].source_row))
    for file, _ in refused:
        file.refused += 1
    refusals = tuple(refusal for _, refusal in refused)
    if not first:
        reasons = Counter(refusal.reason for refusal in refusals)
        counted = ", ".join(f"{reason} {count}" for reason, count in reasons.most_common())
        told = f"the first, row {refusals[0].source_row} of {refusals[0].source_file}: {refusals[0].detail}"
        raise InputError(f"{files[0].path}{' ...' if len(files) > 1 else ''}: nothing is kept; refused: {counted}; {told}")
    return Corpus(
        trajectories=tuple(first.values()),
        files=tuple(file.account() for file in files),
        refusals=refusals,
        normalised={rule: applied[rule] for rule in RULES if applied[rule]},
    )
