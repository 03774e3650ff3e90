"""The simulated shop: its file comes from the seed alone, says that it is simulated, and branches as rollouts do."""

import json
from collections import defaultdict
from pathlib import Path

import pytest

from pipelines.shop.tools import cancel_order, exchange_articles, find_user_by_name, return_articles
from pipelines.shop.world import Shop
from pipelines.simulate_shop import as_json_lines, simulate

DEMO = Path(__file__).resolve().parents[2] / "data" / "demo"
FILE = DEMO / "trajectories" / "shop.jsonl"


@pytest.fixture(scope="module")
def rows():
    return [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def attempts(rows):
    by_task = defaultdict(list)
    for row in rows:
        by_task[row["task_id"]].append(row["messages"])
    return list(by_task.values())


def shared_turns(first, second):
    count = 0
    while count < min(len(first), len(second)) and first[count] == second[count]:
        count += 1
    return count


def test_the_file_is_what_the_seed_gives_every_time():
    assert as_json_lines(simulate()) == as_json_lines(simulate()) == FILE.read_bytes()


def test_every_row_says_that_it_is_simulated(rows):
    assert {(row["origin"], row["domain"]) for row in rows} == {("simulated", "shop")}


def test_there_are_several_attempts_at_enough_tasks_in_a_small_file(attempts):
    assert len(attempts) >= 24
    assert all(len(messages) >= 3 for messages in attempts)
    assert sum(map(len, attempts)) >= 72
    assert FILE.stat().st_size < 1_000_000


def test_all_rows_share_the_policy_and_a_task_its_first_request(rows, attempts):
    assert len({row["messages"][0]["content"] for row in rows}) == 1
    assert {row["messages"][0]["role"] for row in rows} == {"system"}
    for task in attempts:
        assert task[0][1]["role"] == "user"
        assert all(shared_turns(task[0], other) >= 3 for other in task[1:])


def test_attempts_part_from_each_other_at_different_turns(attempts):
    parted_at = {shared_turns(task[0], other) for task in attempts for other in task[1:]}
    assert len(parted_at) >= 6
    for task in attempts:
        assert all(first != second for index, first in enumerate(task) for second in task[:index])


def test_every_tool_call_is_of_a_known_tool_and_answered_in_the_next_turn(rows):
    num_calls = 0
    for row in rows:
        parameters = {tool["function"]["name"]: tool["function"]["parameters"] for tool in row["tools"]}
        for message, answer in zip(row["messages"], row["messages"][1:], strict=False):
            if "tool_calls" not in message:
                continue
            (call,) = message["tool_calls"]
            num_calls += 1
            assert message["content"] is None
            assert json.loads(call["function"]["arguments"]).keys() == parameters[call["function"]["name"]]["properties"].keys()
            assert (answer["role"], answer["tool_call_id"]) == ("tool", call["id"])
            json.loads(answer["content"])
    assert num_calls > 5 * len(rows)


def test_some_calls_fail_and_some_attempts_end_with_a_colleague(rows):
    answers = [json.loads(message["content"]) for row in rows for message in row["messages"] if message["role"] == "tool"]
    assert sum("error" in answer for answer in answers) >= 20
    assert sum("queue" in answer for answer in answers) >= 10


def test_the_demo_tokenizer_counts_enough_tokens(rows):
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer.from_file(str(DEMO / "policy" / "tokenizer.json"))
    texts = [message["content"] or json.dumps(message["tool_calls"]) for row in rows for message in row["messages"]]
    num_tokens = sum(len(encoding.ids) for encoding in tokenizer.encode_batch(texts))
    system_tokens = len(tokenizer.encode(rows[0]["messages"][0]["content"]).ids)
    assert num_tokens >= 130_000
    assert num_tokens - len(rows) * system_tokens >= 100_000  # the prompt is shared, so it is dispatched once
    assert 800 <= system_tokens <= 1_300


@pytest.fixture
def shop():
    boots = {"product_id": "P1", "name": "boots", "variants": []}
    for article_id, price, stock in (("A1", 100.0, 5), ("A2", 112.5, 1), ("A3", 90.0, 0)):
        boots["variants"].append({"article_id": article_id, "options": {}, "price": price, "stock": stock})
    user = {"user_id": "u", "name": "Ann Oak", "address": {"postcode": "11"}, "payment_methods": [{"id": "pay-1"}]}
    orders = {}
    for order_id, state, last_day in (
        ("LL-1", "arrived", "2031-03-01"),
        ("LL-2", "packed", "2031-03-12"),
        ("LL-3", "arrived", "2031-02-01"),
    ):
        line = {"article_id": "A1", "price": 100.0}
        order = {"order_id": order_id, "user_id": "u", "state": state, "articles": [line], "total": 100.0, "paid_with": "pay-1"}
        orders[order_id] = order | {"history": [{"date": last_day, "event": state}]}
    return Shop(products={"P1": boots}, users={"u": user}, orders=orders)


def test_a_dearer_variant_costs_the_difference_and_one_out_of_stock_is_refused(shop):
    assert exchange_articles(shop, "LL-1", ["A1"], ["A3"], "pay-1") == {"error": "A3 is out of stock"}
    assert exchange_articles(shop, "LL-1", ["A1"], ["A2"], "pay-1")["difference"] == 12.5
    assert exchange_articles(shop, "LL-1", ["A1"], ["A2"], "pay-1") == {"error": "LL-1 already has a booked exchange"}


def test_goods_come_back_for_thirty_days(shop):
    assert return_articles(shop, "LL-1", ["A1"], "pay-1")["refund"] == 100.0
    assert return_articles(shop, "LL-3", ["A1"], "pay-1") == {"error": "LL-3 arrived more than 30 days ago"}
    assert return_articles(shop, "LL-2", ["A1"], "pay-1") == {"error": "LL-2 is packed, not arrived"}


def test_only_an_open_order_is_cancelled(shop):
    assert "LL-2 is packed" in cancel_order(shop, "LL-2", "too slow")["error"]


def test_a_name_is_found_with_its_own_postcode_only(shop):
    assert find_user_by_name(shop, "ann oak", "11") == {"user_id": "u"}
    assert "error" in find_user_by_name(shop, "ann oak", "12")
