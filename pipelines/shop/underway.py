"""Requests about orders that have not arrived: stopping them, sending them elsewhere, finding the parcel."""

from random import Random

from pipelines.shop.talk import Dialogue, address_text, confirm, find_order, hand_over
from pipelines.shop.tools import REASONS
from pipelines.shop.world import make_address


def cancel(talk: Dialogue) -> None:
    """An order that is open, or already packed."""
    order = find_order(talk, talk.order("open", "packed"))
    if order["state"] != "open" and talk.draws.chance(70):
        talk.says(
            f"{order['order_id']} is already {order['state']} and cannot be stopped any more. Send it back when it arrives.",
            "It has been packed and I cannot stop it any more. A return is free for 30 days after arrival.",
        )
        talk.asks("That is ridiculous, it was an hour ago. Please try.", "OK, then I will return it later. Thanks.")
        if "try" not in talk.messages[-1]["content"]:
            return
        if talk.draws.chance(50):
            talk.calls("cancel_order", order_id=order["order_id"], reason="no longer needed")
        talk.says("I have no way to stop it, I am sorry. Refuse the parcel or send it back, and the money returns in full.")
        return
    talk.says("May I ask why you would like to cancel?", "I can do that. What is the reason?")
    reason = talk.draws.pick(REASONS)
    talk.asks(f"It is simply {reason}.", f"{reason}", f"Let us say: {reason}.")
    if not confirm(
        talk, f"{order['order_id']} is cancelled as a whole, {order['total']:.2f} euros go back to {order['paid_with']}."
    ):
        talk.says("All right, the order stays as it is.")
        return
    result = talk.calls("cancel_order", order_id=order["order_id"], reason="changed mind" if talk.draws.chance(20) else reason)
    if "reason must" in result.get("error", ""):
        result = talk.calls("cancel_order", order_id=order["order_id"], reason=reason)
    if "error" in result:
        talk.says(
            f"It could not be cancelled: {result['error']}.", "The warehouse has it already, so the cancellation was refused."
        )
        return
    talk.says(
        f"{order['order_id']} is cancelled; {result['refund']:.2f} euros are on their way back.",
        "Done. You will see the refund within six working days.",
    )


def move(talk: Dialogue) -> None:
    """A new address for an order, and perhaps for the profile."""
    order = find_order(talk, talk.order("open", "packed"))
    address = make_address(Random(order["order_id"]))
    talk.says(
        "Where should it go instead?", f"At the moment it goes to {address_text(order['address'])}. What is the new address?"
    )
    if talk.draws.chance(30):
        talk.asks(f"{address['street']}, {address['city']}.", f"To {address['street']} in {address['city']}.")
        if talk.draws.chance(50):
            talk.calls("modify_address", target=order["order_id"], **address | {"postcode": ""})
        talk.says("I also need the postcode and the country.")
        talk.asks(f"{address['postcode']}, {address['country']}.")
    else:
        talk.asks(address_text(address), f"It is {address_text(address)}. We moved last week.")
    if not confirm(talk, f"{order['order_id']} goes to {address_text(address)}.", skipped_percent=20):
        talk.says("Then it goes to the old address.")
        return
    talk.calls("modify_address", target=order["order_id"], **address)
    talk.says(
        "Changed. Should the address in your profile follow?",
        "That order now goes to the new address. Have you moved, should I change the profile too?",
    )
    if talk.draws.chance(60):
        talk.asks("Yes, please.", "Yes, we live there now.")
        talk.calls("modify_address", target=talk.user["user_id"], **address)
        talk.says("Both are up to date now.")
    else:
        talk.asks("No, only this order.", "No, it is a present.")


def chase_parcel(talk: Dialogue) -> None:
    """A parcel that is late, held or lost."""
    order = find_order(talk, talk.order("sent", "packed"))
    result = talk.calls("track_parcel", order_id=order["order_id"])
    if "error" in result:
        talk.says(
            f"{order['order_id']} is {order['state']}; the carrier has not fetched it yet.",
            "It has not left us yet, so there is no parcel to follow.",
        )
        talk.asks("When will it?", "I need it by Friday.")
        talk.says("The tools give me no date, so I would be guessing. You get a mail when it is sent.")
        return
    stop = result["stops"][-1]
    talk.says(
        f"{result['carrier']} {result['number']}: on {stop['date']} at {stop['place']}, {stop['event']}.",
        f"The last entry is from {stop['date']}: {stop['event']} ({stop['place']}).",
    )
    if "held" in stop["event"] or talk.draws.chance(30):
        talk.asks("It has been there for days. I think it is lost.", "The carrier told me it is gone.", "So what now?")
        hand_over(talk, f"Parcel {result['number']} of {order['order_id']} is stuck with {result['carrier']}: {stop['event']}.")
        return
    talk.asks("Good, then I will wait.", "Fine, thank you.")
