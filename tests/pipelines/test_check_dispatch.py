"""What the query says a rank receives is what arrives there by a real all-to-all."""

import json
import random

from pipelines.check_dispatch import asked_and_received
from tests.policies import write_tiny_policy

EP, LAYERS, TOP_K = 2, 4, 2


def test_each_rank_receives_the_rows_that_the_query_names_in_every_layer(tmp_path):
    draw = random.Random(5)
    head = [draw.randrange(256) for _ in range(40)]
    rows = [head + [draw.randrange(256) for _ in range(length)] for length in (30, 11, 70, 5, 24)]
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"input_ids": ids}) + "\n" for ids in rows))
    policy = str(write_tiny_policy(tmp_path / "policy"))
    asked, received = asked_and_received(policy, corpus, eps=(EP,), max_tokens=10_000)
    assert received == asked
    assert set(received) == {(EP, layer, rank) for layer in range(LAYERS) for rank in range(EP)}
    num_rows = TOP_K * sum(len(one) for one in rows)
    assert all(received[EP, layer, 0] + received[EP, layer, 1] == num_rows for layer in range(LAYERS))
    assert any(received[EP, layer, 0] != received[EP, layer, 1] for layer in range(LAYERS))
