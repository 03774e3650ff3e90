"""Whatever verb is killed, whenever: the same command ends with what an untouched one ends with. `make soak` kills more often."""

import random

import pytest

from tests.kills import commands, kill_at_random

KILLS = {"measure": 2, "import": 1, "fit": 1, "refresh": 1}


@pytest.mark.fault(
    "kill -9 of measure, import, fit or refresh at any moment",
    how="a process of the command line, killed after a random time or at a random call of the writer",
    tries=sum(KILLS.values()),
    outcome="what it left opens, every part verified; the same command ends with the same counts or allowances",
)
def test_a_killed_command_ends_like_an_untouched_one(tmp_path):
    draw = random.Random(11)
    for verb, command in commands(tmp_path).items():
        assert kill_at_random(command, num_kills=KILLS[verb], draw=draw).seen.total() == KILLS[verb]
