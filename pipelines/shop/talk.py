"""How the clerk and a customer talk: one attempt's decisions, its messages, and the steps that all requests share."""

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import TypeVar

from pipelines.shop.tools import TOOLS
from pipelines.shop.world import Json, Shop

POLICY = Path(__file__).with_name("policy.md")

T = TypeVar("T")


class Draws:
    """Decisions of one attempt: the first `part_after` are the task's, the others the attempt's own."""

    def __init__(self, seed: str, attempt: str, part_after: int) -> None:
        self._shared, self._own = Random(seed), Random(f"{seed}/{attempt}")
        self._left = part_after

    def pick(self, options: Sequence[T]) -> T:
        """One of the options."""
        self._left -= 1
        return (self._shared if self._left >= 0 else self._own).choice(options)

    def chance(self, percent: int) -> bool:
        """True in so many of a hundred cases."""
        return self.pick(range(100)) < percent


class Dialogue:
    """The messages of one attempt, on its own copy of the shop."""

    def __init__(self, shop: Shop, user: Json, draws: Draws, opening: str) -> None:
        self.shop, self.draws = copy.deepcopy(shop), draws
        self.user = self.shop.users[user["user_id"]]
        self.profile_opened = self.handed_over = False
        self.messages: list[Json] = [
            {"role": "system", "content": POLICY.read_text(encoding="utf-8")},
            {"role": "user", "content": opening},
        ]

    def asks(self, *wordings: str) -> None:
        """The customer writes one of the wordings."""
        self.messages.append({"role": "user", "content": self.draws.pick(wordings)})

    def says(self, *wordings: str) -> None:
        """The clerk writes one of the wordings."""
        self.messages.append({"role": "assistant", "content": self.draws.pick(wordings)})

    def calls(self, tool: str, **arguments: object) -> Json:
        """The clerk calls a tool; its result is the next turn."""
        result = TOOLS[tool][0](self.shop, **arguments)
        self.profile_opened |= tool == "get_user_details"
        self.handed_over |= tool == "transfer_to_human"
        call_id = f"call_{len(self.messages):03d}"
        call = {
            "id": call_id,
            "type": "function",
            "function": {"name": tool, "arguments": json.dumps(arguments, ensure_ascii=False)},
        }
        self.messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        content = json.dumps(result, ensure_ascii=False)
        self.messages.append({"role": "tool", "tool_call_id": call_id, "name": tool, "content": content})
        return copy.deepcopy(result)

    def order(self, *states: str) -> Json:
        """The customer's first order in one of the states."""
        orders = [self.shop.orders[order_id] for order_id in self.user["orders"]]
        return next((order for order in orders if order["state"] in states), orders[0])


def options_text(options: dict[str, str]) -> str:
    """`size M, colour moss`."""
    return ", ".join(f"{key} {value}" for key, value in options.items())


def address_text(address: Json) -> str:
    """An address on one line."""
    return ", ".join(address.values())


def identify(talk: Dialogue) -> None:
    """The clerk finds the account; sometimes a typing error or an order number comes first."""
    user, draws = talk.user, talk.draws
    if draws.chance(15):
        talk.says("Happy to help. What is your order number?", "Of course. Which order is it about?")
        talk.asks(f"It is {user['orders'][0]}, I think.", f"{user['orders'][0]}.")
        if draws.chance(40):
            talk.calls("get_order_details", order_id=user["orders"][0])
            talk.says(
                "Sorry, before I can talk about an order I have to know who you are. Which email address is the account under?"
            )
        else:
            talk.says("Thank you. An order number alone is not enough, I am afraid. Which email address do you use with us?")
    elif draws.chance(70):
        talk.says(
            "I will look into that. Which email address is your account under?",
            "Gladly. Please tell me the email address of your account first.",
            "Let us sort this out. To find your account I need your email address, or your full name and postcode.",
        )
    else:
        _identify_by_name(talk)
        return
    if draws.chance(20):
        talk.asks(f"{user['email'].replace('@example.org', '@example.ogr')}", f"it's {user['email'].replace('.', '-', 1)}")
        talk.calls("find_user_by_email", email=talk.messages[-1]["content"].split()[-1])
        talk.says("I find no account under that address. Could there be a typing error, or is it under another one?")
    if draws.chance(20):
        talk.asks("Honestly I do not remember which one I used. Can we do it another way?")
        _identify_by_name(talk)
        return
    talk.asks(f"{user['email']}", f"Sure: {user['email']}", f"My email is {user['email']}. I hope this does not take long.")
    talk.calls("find_user_by_email", email=user["email"])
    if draws.chance(50):
        talk.calls("get_user_details", user_id=user["user_id"])


def _identify_by_name(talk: Dialogue) -> None:
    name, postcode = talk.user["name"], talk.user["address"]["postcode"]
    talk.says(
        "No problem. Please give me your full name and the postcode of your address.", "Your full name and postcode will do."
    )
    if talk.draws.chance(25):
        talk.asks(f"{name}, {postcode[:3]}{postcode[4]}{postcode[3]}.")
        result = talk.calls("find_user_by_name", name=name, postcode=f"{postcode[:3]}{postcode[4]}{postcode[3]}")
        if "error" in result:
            talk.says("Nothing comes up for that name and postcode. Would you check the postcode, please?")
            talk.asks(f"Oh, I swapped two digits. {postcode}.")
    else:
        talk.asks(f"{name}, {postcode}", f"I am {name} and my postcode is {postcode}.")
    talk.calls("find_user_by_name", name=name, postcode=postcode)
    talk.calls("get_user_details", user_id=talk.user["user_id"])


def find_order(talk: Dialogue, order: Json) -> Json:
    """The clerk opens the order, asked for by number or found by going through all of them."""
    if talk.draws.chance(55):
        talk.says(
            "Thank you, I have your account. Which order is it?",
            f"Thanks, {talk.user['name'].split()[0]}. What is the order number?",
        )
        if talk.draws.chance(25):
            wrong = order["order_id"][:-1] + str((int(order["order_id"][-1]) + 1) % 10)
            talk.asks(f"{wrong}", f"The mail says {wrong}.")
            talk.calls("get_order_details", order_id=wrong)
            talk.says("That number leads nowhere. Is every digit right?")
        talk.asks(
            f"{order['order_id']}.",
            f"It should be {order['order_id']}.",
            f"{order['order_id']} - the one with the {order['articles'][0]['name']}.",
        )
        return talk.calls("get_order_details", order_id=order["order_id"])
    if not talk.profile_opened:
        talk.calls("get_user_details", user_id=talk.user["user_id"])
    found: Json = {}
    for order_id in talk.user["orders"] if talk.draws.chance(50) else reversed(talk.user["orders"]):
        found = talk.calls("get_order_details", order_id=order_id)
        if order_id == order["order_id"]:
            break
    return found


def confirm(talk: Dialogue, summary: str, *, skipped_percent: int = 10) -> bool:
    """The clerk sums up and waits for a yes; now and then the yes is not waited for, or a no comes."""
    if talk.draws.chance(skipped_percent):
        return True
    talk.says(
        f"{summary} Shall I go ahead?",
        f"To be sure: {summary} Do you agree (yes or no)?",
        f"{summary} Please answer yes and I will book it.",
    )
    if talk.draws.chance(15):
        talk.asks("And if I think it over until tomorrow?", "Wait, how long does the money take?")
        talk.says(
            "That is fine, nothing is booked until you say yes. Vouchers are credited at once, the rest within six working days.",
            "Nothing changes before your yes. A refund to a card or account takes up to six working days.",
        )
    if talk.draws.chance(10):
        talk.asks("No, leave everything as it is, please.", "Then rather not. I will keep it.")
        return False
    talk.asks("Yes.", "Yes, please do.", "yes go ahead", "Yes, that is right.")
    return True


def hand_over(talk: Dialogue, summary: str) -> None:
    """Transfer with one sentence."""
    talk.calls("transfer_to_human", summary=summary)
    talk.says(
        "A colleague takes over from here. You need not repeat anything; I have passed it on.",
        "I have handed this to a colleague, who will write to you in this chat.",
    )
