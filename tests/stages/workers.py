"""Workers of a test that end from within, since one that is left alone measures the whole run."""

import itertools
from dataclasses import replace

import pytest

from routing.stages import begin, share
from routing.stages.measure import measure
from routing.stages.share import measure_share
from tests.stages.conftest import Listener, build_request


class Enough(Exception):
    """Ends a worker of a test from within."""


def stop():
    raise Enough


def before_commit(monkeypatch, number, act):
    """Calls `act` when a worker of this process is about to commit its part of that number, from 0."""
    commit, count = share.commit_part, itertools.count()

    def acting(*args, **kwargs):
        if next(count) == number:
            act()
        return commit(*args, **kwargs)

    monkeypatch.setattr(share, "commit_part", acting)


def measured_in_parts(policy_folder, corpus_file, out, *, tokens):
    """`out`, with a run in parts of at most so many tokens."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(begin, "TOKENS_PER_PART", tokens)
        measure(build_request(policy_folder, corpus_file, out), Listener())
    return out


def measure_three(request, worker):
    """What a worker leaves that stops before its fourth part."""
    with pytest.MonkeyPatch.context() as patch:
        before_commit(patch, 3, stop)
        with pytest.raises(Enough):
            measure_share(replace(request, worker=worker), Listener())
