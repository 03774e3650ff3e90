"""A tiny policy and a small corpus with shared prefixes, measured through the stages."""

import functools
import json
import random

import pytest

from routing.stages.begin import MeasureRequest
from tests.policies import write_tiny_policy


class Listener:
    """A `Progress` that remembers what it was told."""

    def __init__(self):
        self.notes, self.tokens = [], 0

    def note(self, text):
        self.notes.append(text)

    def begin(self, what, total_tokens):
        self.tokens = 0

    def advance(self, tokens):
        self.tokens += tokens


@pytest.fixture
def listener():
    return Listener()


@pytest.fixture(scope="session")
def policy_folder(tmp_path_factory):
    return write_tiny_policy(tmp_path_factory.mktemp("stage-policies") / "tiny")


@pytest.fixture(scope="session")
def corpus_file(tmp_path_factory):
    """24 trajectories of 90 to 240 tokens in six families; a family shares its first 60 tokens."""
    path = tmp_path_factory.mktemp("corpora") / "corpus.jsonl"
    draw = random.Random(3)
    heads = [[draw.randrange(256) for _ in range(60)] for _ in range(6)]
    rows = [heads[row % 6] + [draw.randrange(256) for _ in range(draw.randrange(30, 180))] for row in range(24)]
    lines = [json.dumps({"input_ids": ids, "task_id": row % 6, "domain": "made"}) for row, ids in enumerate(rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


def build_request(policy_folder, corpus_file, out, **changes):
    """A MeasureRequest with defaults; keywords replace them."""
    values = {
        "policy": str(policy_folder),
        "corpus": (corpus_file,),
        "out": out,
        "label": None,
        "tokenizer": None,
        "format": None,
        "domain": None,
        "segment_tokens": 32,
        "max_tokens": None,
        "device": "cpu",
        "dtype": "auto",
        "on_bad_line": "stop",
        "command": ("test",),
    }
    return MeasureRequest(**{**values, **changes})


@pytest.fixture
def request_for(policy_folder, corpus_file):
    """`build_request` for the tiny policy and its corpus."""
    return functools.partial(build_request, policy_folder, corpus_file)
