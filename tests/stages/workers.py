"""Workers of a test that end from within, since one that is left alone measures the whole run."""

import itertools
from dataclasses import replace

import pytest

from routing.stages import share
from routing.stages.share import measure_share
from tests.stages.conftest import Listener


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


def measure_three(request, worker):
    """What a worker leaves that stops before its fourth part."""
    with pytest.MonkeyPatch.context() as patch:
        before_commit(patch, 3, stop)
        with pytest.raises(Enough):
            measure_share(replace(request, worker=worker), Listener())
