"""Writes the demo trajectories: customers of a made-up shop and the clerk who serves them, several attempts a task.

    python -m pipelines.simulate_shop --out data/demo/trajectories/shop.jsonl

Everything is drawn from the seed; each row says `"origin": "simulated"`. Attempts at one task draw alike up to a decision and
apart from there, so their prefixes are shared and then branch, as those of several rollouts of one prompt do.
"""

import argparse
import itertools
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

from pipelines.shop.arrived import exchange, faulty, take_back
from pipelines.shop.enquiries import compare, somebody_elses
from pipelines.shop.talk import Dialogue, Draws, identify
from pipelines.shop.tools import tool_schemas
from pipelines.shop.underway import cancel, chase_parcel, move
from pipelines.shop.world import Json, Shop, age_order, make_shop

SEED = 20260101
NUM_TASKS = 27
NUM_ATTEMPTS = 3
# Decisions after which an attempt goes its own way; the first attempt never does.
PART_AFTER = (10**9, 6, 12)

Flow = Callable[[Dialogue], None]
# kind, what the customer writes first, what the clerk then does
KINDS: tuple[tuple[str, tuple[str, ...], Flow], ...] = (
    (
        "exchange",
        (
            "Hello, something I got from you is the wrong size. Can I swap it?",
            "Hi, I would like to exchange an article for another variant.",
        ),
        exchange,
    ),
    ("return", ("I want to send something back, please.", "Good morning. How do I return part of an order?"), take_back),
    ("cancel", ("Please stop my last order, I do not need it any more.", "Can I still cancel an order from this week?"), cancel),
    (
        "move",
        (
            "My order is going to the wrong place. Can you change the address?",
            "We have moved. Please send my open order to the new flat.",
        ),
        move,
    ),
    (
        "late",
        (
            "I have had this parcel for a while and would like my money back.",
            "Hi! I need to return a thing I bought some time ago.",
        ),
        take_back,
    ),
    (
        "compare",
        ("Hello, I have a question about two of your products.", "I would like to know some prices before I order."),
        compare,
    ),
    ("parcel", ("Where is my parcel?", "My delivery should have been here days ago."), chase_parcel),
    (
        "other",
        ("I am calling about an order of somebody in my family.", "Could you look something up for my neighbour?"),
        somebody_elses,
    ),
    ("faulty", ("What I ordered arrived broken.", "One of the articles in my parcel is damaged."), faulty),
)
SECOND_REQUESTS: tuple[tuple[str, Flow], ...] = (
    ("One more thing: can I also exchange something?", exchange),
    ("And another order of mine, can you cancel it?", cancel),
    ("By the way, where is my other parcel?", chase_parcel),
    ("While you are here: what do two of your products cost?", compare),
    ("Could you also change a delivery address?", move),
)


def task_name(index: int) -> str:
    """`exchange-00`."""
    return f"{KINDS[index % len(KINDS)][0]}-{index:02d}"


def attempt_messages(shop: Shop, index: int, attempt: int, variation: int) -> list[Json]:
    """The messages of one attempt at task `index`; another variation gives an attempt that repeats a former one its own end."""
    kind, openings, flow = KINDS[index % len(KINDS)]
    draws = Draws(f"{SEED}/{task_name(index)}", f"{attempt}/{variation}", PART_AFTER[attempt])
    talk = Dialogue(shop, list(shop.users.values())[index], draws, draws.pick(openings))
    if kind == "late":
        age_order(talk.order("arrived"), days=35)
    identify(talk)
    flow(talk)
    while talk.messages[-1]["role"] == "assistant" and not talk.handed_over and draws.chance(40):
        wish, next_flow = draws.pick([request for request in SECOND_REQUESTS if request[1] is not flow])
        talk.asks(wish)
        next_flow(talk)
    if talk.messages[-1]["role"] == "assistant":
        talk.asks("Thank you, that was all.", "Great, bye.", "Thanks for your help!", "OK.")
    talk.says("You are welcome. Have a good day.", "Thank you for writing to Larch & Lantern.", "Goodbye, and enjoy your things.")
    return talk.messages


def task_rows(shop: Shop, index: int) -> list[Json]:
    """All attempts at one task, no two alike."""
    rows: list[Json] = []
    for attempt in range(NUM_ATTEMPTS):
        drawn = (attempt_messages(shop, index, attempt, variation) for variation in itertools.count())
        messages = next(messages for messages in drawn if all(messages != row["messages"] for row in rows))
        labels = {"origin": "simulated", "domain": "shop", "task_id": task_name(index), "attempt": attempt}
        rows.append(labels | {"messages": messages, "tools": tool_schemas()})
    return rows


def simulate() -> list[Json]:
    """All rows, task by task."""
    shop = make_shop(Random(f"{SEED}/shop"), num_users=NUM_TASKS)
    return [row for index in range(NUM_TASKS) for row in task_rows(shop, index)]


def as_json_lines(rows: list[Json]) -> bytes:
    """One row a line."""
    return "".join(json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n" for row in rows).encode()


def main() -> None:
    """Writes the file, whole or not at all."""
    parser = argparse.ArgumentParser(description="Write the simulated shop trajectories as OpenAI chat JSON Lines.")
    parser.add_argument("--out", type=Path, default=Path("data/demo/trajectories/shop.jsonl"), help="the file to write")
    out = parser.parse_args().out
    out.parent.mkdir(parents=True, exist_ok=True)
    rows = simulate()
    content = as_json_lines(rows)
    temporary = out.with_name(out.name + ".tmp")
    temporary.write_bytes(content)
    os.replace(temporary, out)
    print(f"{out}: {len(rows)} trajectories, {len(content)} bytes", file=sys.stderr)


if __name__ == "__main__":
    main()
