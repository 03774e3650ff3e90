"""Requests about goods that arrived: exchanging them, sending them back, broken ones."""

from datetime import timedelta

from pipelines.shop.talk import Dialogue, confirm, find_order, hand_over, options_text
from pipelines.shop.world import RETURN_DAYS, TODAY, Json


def exchange(talk: Dialogue) -> None:
    """Another variant of something that arrived."""
    order = find_order(talk, talk.order("arrived"))
    line = talk.draws.pick(order["articles"])
    wanted = _choose_variant(talk, line)
    method = talk.draws.pick(talk.user["payment_methods"])
    difference = wanted["price"] - line["price"]
    money = f"{abs(difference):.2f} euros are {'due' if difference > 0 else 'refunded'} by {method['kind']}"
    money = money if difference else "the price is the same"
    if not confirm(talk, f"{line['name']} from {order['order_id']} becomes {options_text(wanted['options'])}; {money}."):
        talk.says("Understood. Nothing was booked.")
        return
    booking = {"order_id": order["order_id"], "article_ids": [line["article_id"]], "new_article_ids": [wanted["article_id"]]}
    result = talk.calls("exchange_articles", **booking, payment_method="card" if talk.draws.chance(12) else method["id"])
    if "no payment method" in result.get("error", ""):
        talk.calls("get_user_details", user_id=talk.user["user_id"])
        result = talk.calls("exchange_articles", **booking, payment_method=method["id"])
    if "error" not in result:
        talk.says(
            f"Booked. Put label {result['label']} on the parcel; the new article leaves once the old one is here.",
            f"Done: label {result['label']}, difference {result['difference']:.2f} euros.",
        )
        return
    talk.says(
        f"I could not book it: {result['error']}. Would you rather send the article back?",
        f"The exchange was refused ({result['error']}). A return is possible, though.",
    )
    talk.asks("Then send me a return label.", "No, I will keep it then.")
    if "label" in talk.messages[-1]["content"]:
        taken_back = {"order_id": order["order_id"], "article_ids": [line["article_id"]]}
        result = talk.calls("return_articles", **taken_back, refund_to=order["paid_with"])
        talk.says(f"That is refused as well: {result['error']}." if "error" in result else "Done. The label comes by email.")


def _choose_variant(talk: Dialogue, line: Json) -> Json:
    """The variant that the customer settles on; it may be out of stock."""
    entry = talk.calls("get_product", product_id=line["article_id"] if talk.draws.chance(12) else line["product_id"])
    if "error" in entry:
        entry = talk.calls("get_product", product_id=line["product_id"])
    others = [variant for variant in entry["variants"] if variant["article_id"] != line["article_id"]]
    in_stock = [variant for variant in others if variant["stock"]] or others
    if talk.draws.chance(60):
        listed = "\n".join(f"- {options_text(v['options'])}: {v['price']:.2f}, {v['stock']} in stock" for v in in_stock[:5])
        has = f"Your {line['name']} is {options_text(line['options'])}."
        talk.says(f"{has} These are in stock:\n{listed}\nWhich one would you like?")
    else:
        talk.says(f"I see the {line['name']} ({options_text(line['options'])}). Which variant would you like instead?")
    wanted: Json = talk.draws.pick(others if talk.draws.chance(35) else in_stock)
    options = options_text(wanted["options"])
    talk.asks(f"The one with {options}, please.", f"{options}.", f"Could I have {options}?")
    if not wanted["stock"] and talk.draws.chance(60):
        wanted = talk.draws.pick(in_stock)
        talk.says(f"That one is sold out. The nearest in stock is {options_text(wanted['options'])}; would that do?")
        talk.asks("Yes, then that one.", "All right, take that.")
    return wanted


def take_back(talk: Dialogue) -> None:
    """A return, refused by the clerk or by the tool where 30 days are over."""
    order = find_order(talk, talk.order("arrived"))
    lines = order["articles"] if talk.draws.chance(30) else [talk.draws.pick(order["articles"])]
    talk.says(
        "Which articles should come back, and where should the money go?",
        "I have the order here. What would you like to send back, and should the money return the way you paid?",
    )
    names = " and the ".join(line["name"] for line in lines)
    talk.asks(
        f"The {names}. Money back the way I paid.", f"Just the {names}.", f"The {names}, please. It is not what I expected."
    )
    ids = [line["article_id"] for line in lines]
    if order["history"][-1]["date"] < (TODAY - timedelta(days=RETURN_DAYS)).isoformat() and talk.draws.chance(65):
        talk.says(
            f"That order arrived on {order['history'][-1]['date']}, more than 30 days ago. I cannot take it back any more.",
            "I am afraid the 30 days for a return are over for this order.",
        )
        talk.asks("I was in hospital! Can you not make an exception?", "But I never even opened it.")
        talk.says(
            "I am sorry to hear that. I still cannot book it after 30 days.", "I understand, but the rule leaves me no room."
        )
        talk.asks("Then let me talk to a person.", "Fine. Not your fault.")
        if "person" in talk.messages[-1]["content"]:
            hand_over(talk, f"Customer asks to return {names} from {order['order_id']} after the 30 days.")
        return
    refund = sum(line["price"] for line in lines)
    if not confirm(
        talk, f"Back from {order['order_id']}: the {names}. {refund:.2f} euros go to the payment method of the order."
    ):
        talk.says("Then I leave it. You have time until 30 days after arrival.")
        return
    if talk.draws.chance(20):
        product_ids = [line["product_id"] for line in lines]
        talk.calls("return_articles", order_id=order["order_id"], article_ids=product_ids, refund_to=order["paid_with"])
    result = talk.calls("return_articles", order_id=order["order_id"], article_ids=ids, refund_to=order["paid_with"])
    if "error" in result:
        talk.says(f"The system refuses the return: {result['error']}.", f"That did not work: {result['error']}. I am sorry.")
        return
    talk.says(
        f"Your label is {result['label']}. You get {result['refund']:.2f} euros back once the parcel is here.",
        f"Booked, {result['refund']:.2f} euros will come back. Label: {result['label']}.",
    )


def faulty(talk: Dialogue) -> None:
    """Something arrived broken: a colleague's case."""
    order = find_order(talk, talk.order("arrived"))
    line = talk.draws.pick(order["articles"])
    talk.says(
        "I am sorry about that. Which article is broken, and how?",
        "That should not happen. What exactly is wrong, and with which article?",
    )
    talk.asks(
        f"The {line['name']}. A seam came apart.",
        f"The {line['name']} arrived with a crack.",
        f"A part of the {line['name']} is missing.",
    )
    if talk.draws.chance(35):
        entry = talk.calls("get_product", product_id=line["product_id"])
        stock = next(variant["stock"] for variant in entry["variants"] if variant["article_id"] == line["article_id"])
        talk.says(f"There are {stock} of the same article in stock. A colleague decides whether you get a new one or the money.")
        talk.asks("A new one, if possible.", "Rather the money.")
    hand_over(talk, f"{line['name']} ({line['article_id']}) of {order['order_id']} arrived faulty.")
