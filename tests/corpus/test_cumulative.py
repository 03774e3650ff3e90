"""Formats that repeat the conversation in every row: each request is a trajectory, and no shared prefix is counted twice."""

import pytest
from chat_rows import units

from routing.corpus.cumulative import Conversations
from routing.corpus.load import load_corpus
from routing.corpus.tree import build_tree

FIRST = [{"role": "user", "content": " a b "}]
SECOND = [*FIRST, {"role": "assistant", "content": " c "}, {"role": "user", "content": " d "}]
THIRD = [*SECOND, {"role": "assistant", "content": " e "}, {"role": "user", "content": " f g "}]
OTHER = [{"role": "user", "content": " a z "}]


def exchange(messages):
    return {"request": {"messages": messages}, "response": None}


@pytest.mark.parametrize(
    ("rows", "of_rows"),
    [
        ([{"request_params": {"messages": messages}} for messages in (FIRST, SECOND, THIRD, OTHER)], [0, 0, 0, 3]),
        ([{"answer_generation": {"train_messages": lists}} for lists in ([FIRST, SECOND, THIRD], [OTHER])], [0, 0, 0, 1]),
        (
            [
                {"trajectories": [{"exchanges": {"chat_completions": list(map(exchange, requests))}}]}
                for requests in ([FIRST, SECOND, THIRD], [OTHER])
            ],
            [0, 0, 0, 1],
        ),
    ],
    ids=["request-log", "toolbench", "art"],
)
@pytest.mark.fault(
    "a log whose every request repeats the conversation so far",
    how="three requests of one conversation and one of another are written in each format that does so",
    tries=3,
    outcome="four trajectories in two units; the packed view counts each shared token once",
)
def test_a_conversation_told_again_in_every_request_is_counted_once_when_packed(words, write, rows, of_rows):
    corpus = load_corpus([write("log.jsonl", rows)], tokenizer=words)
    # a word is a token, and so is each <|role|>: 1+2, that and 1+1 and 1+1, that and 1+1 and 1+2; the other 1+2
    assert [trajectory.num_tokens for trajectory in corpus.trajectories] == [3, 7, 12, 3]
    tree = build_tree([trajectory.token_ids for trajectory in corpus.trajectories], segment_tokens=1024)
    assert tree.tokens_logical == 3 + 7 + 12 + 3
    assert tree.tokens_packed == 12 + 1  # the longest holds the two before it; the other adds one word to `<|user|> a`
    assert units(corpus) == [f"log.jsonl#{row}" for row in of_rows]


def test_a_reply_belongs_to_its_request_and_each_choice_is_a_trajectory(words, write):
    answers = [{"message": {"role": "assistant", "content": text}} for text in (" c ", " no ")]
    rows = [
        {"request": {"messages": FIRST}, "response": {"choices": answers}},
        {"request": {"messages": SECOND}, "response": {"role": "assistant", "content": " e "}},
        {"body": {"messages": OTHER}, "response": {"body": {"choices": answers[:1]}}},
        {"request": {"messages": OTHER}, "response": " told "},
        {"request": {"messages": OTHER}, "response": {"error": "overloaded"}},
        {"request": {"prompt": "x"}},
    ]
    corpus = load_corpus([write("log.jsonl", rows)], tokenizer=words)
    assert [trajectory.num_tokens for trajectory in corpus.trajectories] == [5, 5, 9, 5, 5]
    assert units(corpus) == ["log.jsonl#0", "log.jsonl#0", "log.jsonl#0", "log.jsonl#2", "log.jsonl#2"]
    # numbered over the trajectories of the file: the first row held two
    assert [(one.source_row, one.reason) for one in corpus.refusals] == [(5, "shape"), (6, "shape")]
    tree = build_tree([trajectory.token_ids for trajectory in corpus.trajectories], segment_tokens=1024)
    assert (tree.tokens_logical, tree.tokens_packed) == (29, 9 + 1 + 3 + 1)


def test_a_request_continues_the_longest_earlier_one_that_it_begins_with():
    conversations = Conversations()
    assert conversations.first_row(OTHER, 0) == 0
    assert conversations.first_row(SECOND, 1) == 1  # its beginning was never asked by itself
    assert conversations.first_row(FIRST, 2) == 2
    assert conversations.first_row(THIRD, 3) == 1
    assert conversations.first_row([*OTHER, *FIRST], 4) == 0
    assert conversations.first_row(THIRD, 5) == 1
    assert conversations.first_row([], 6) == 6
    assert conversations.first_row(None, 7) == 7
    deep = []
    for _ in range(100_000):
        deep = [deep]
    assert conversations.first_row([{"content": deep}], 8) == 8  # refused later, with a reason


def test_two_requests_of_a_row_that_differ_are_refused(read, write):
    first, other = ({"messages": [{"role": "user", "content": text}]} for text in "xy")
    rows = [{"request": first, "body": other}, {"request": first, "body": first}, {"request": other, "body": {"id": 1}}]
    texts, corpus = read(write("log.jsonl", rows))
    assert len(texts) == 2
    assert [(refusal.source_row, refusal.reason) for refusal in corpus.refusals] == [(0, "shape")]


def test_a_system_prompt_beside_the_messages_opens_the_request(read, write):
    request = {"system": [{"type": "text", "text": "Be brief."}], "messages": [{"role": "user", "content": "x"}]}
    texts, corpus = read(write("log.json", [{"request_params": request}]))
    assert texts == ["<|system|>Be brief.<|user|>x"]
    assert corpus.normalised == {"policy_as_system": 1, "content_parts_joined": 1}
