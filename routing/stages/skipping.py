"""`--skip-bad`: trajectories to which a router gave no number are left out of a run, each named in its manifest."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from routing.core.errors import CheckFailedError
from routing.corpus.sequences import NO_ROUTER, Refusal
from routing.corpus.tree import build_tree
from routing.measure.plan import plan_parts
from routing.measure.router_faults import RouterError
from routing.stages.begin import Prepared, existing
from routing.stages.corpus_record import corpus_record
from routing.store.run import RunWriter, writing

MAX_SHARE = 0.1  # of the trajectories: where a policy gives no number to more, it is broken and not the text

_Details = Mapping[tuple[str, int], str]  # what is said of a trajectory, by its file and row


def without_recorded(out: Path, prepared: Prepared) -> Prepared:
    """What is left to measure where an earlier call left trajectories out; all of it where there is no run."""
    found = existing(out)
    refusals = () if found is None else found.corpus.refusals
    return _without(prepared, {(one.source_file, one.source_row): one.detail for one in refusals if one.reason == NO_ROUTER})


def without_bad(out: Path, prepared: Prepared, error: RouterError, note: Callable[[str], None]) -> Prepared:
    """What is to be measured without the trajectories through the segments of `error`; the run in `out` begins anew with it.

    CheckFailedError where more than MAX_SHARE of all are left out by now.
    """
    bad = [place for place, path in enumerate(prepared.tree.paths) if not set(error.segment_ids).isdisjoint(path)]
    origins = [prepared.corpus.trajectories[place] for place in bad]
    smaller = _without(prepared, {(one.source_file, one.source_row): str(error) for one in origins})
    num_left_out = sum(one.reason == NO_ROUTER for one in smaller.corpus.refusals)
    num_all = num_left_out + len(smaller.corpus.trajectories)
    if num_left_out > MAX_SHARE * num_all:
        raise CheckFailedError(f"{error}; --skip-bad would leave out {num_left_out} of {num_all} trajectories; mend the policy")
    note(f"{out}: {len(bad)} trajectories left out, the run begins anew without them: {error}")
    _begin_anew(out, smaller)
    return smaller


def _without(prepared: Prepared, details: _Details) -> Prepared:
    if not details:
        return prepared
    corpus = prepared.corpus
    left_out = [one for one in corpus.trajectories if (one.source_file, one.source_row) in details]
    num_of = Counter(one.source_file for one in left_out)
    refusals = (
        Refusal(source_file=file, source_row=row, reason=NO_ROUTER, detail=details[file, row])
        for file, row in ((one.source_file, one.source_row) for one in left_out)
    )
    smaller = replace(
        corpus,
        trajectories=tuple(one for one in corpus.trajectories if (one.source_file, one.source_row) not in details),
        files=tuple(
            replace(one, kept=one.kept - num_of[one.name], refused=one.refused + num_of[one.name]) for one in corpus.files
        ),
        refusals=(*corpus.refusals, *refusals),
    )
    settings = prepared.manifest.settings
    tree = build_tree([one.token_ids for one in smaller.trajectories], segment_tokens=settings.segment_tokens)
    parts = plan_parts(tree, tokens_per_part=settings.tokens_per_part)
    manifest = replace(
        prepared.manifest,
        corpus=corpus_record(smaller, tree, segment_tokens=settings.segment_tokens),
        planned_load_parts=len(parts),
        planned_tokens=sum(part.num_tokens for part in parts),
    )
    return replace(prepared, corpus=smaller, tree=tree, parts=parts, manifest=manifest)


def _begin_anew(out: Path, prepared: Prepared) -> None:
    """A manifest without parts, then no part of the old one: killed in between, what is left over is ignored."""
    with writing(out):
        found = existing(out)
        RunWriter(out, prepared.manifest).update()
        for part in () if found is None else found.parts:
            (out / part.name).unlink(missing_ok=True)
