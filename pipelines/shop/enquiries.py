"""Questions that change nothing: about products, and about orders of other people."""

from pipelines.shop.talk import Dialogue, address_text, hand_over, options_text


def compare(talk: Dialogue) -> None:
    """Questions about products, with nothing to change."""
    entries = {entry["name"]: entry for entry in talk.calls("list_products")["products"]}
    names = sorted(entries)
    first = talk.draws.pick(names)
    second = talk.draws.pick([name for name in names if name != first])
    talk.says("What are you looking for?", "I have the list in front of me. Which products do you have in mind?")
    talk.asks(f"The {first} and the {second}. What do they cost?", f"Is the {first} dearer than the {second}?")
    details = [talk.calls("get_product", product_id=entries[name]["product_id"]) for name in (first, second)]
    lowest = [min(variant["price"] for variant in entry["variants"]) for entry in details]
    stock = [sum(variant["stock"] for variant in entry["variants"]) for entry in details]
    talk.says(
        f"The {first} starts at {lowest[0]:.2f} euros, the {second} at {lowest[1]:.2f}. We have {stock[0]} and {stock[1]}.",
        f"{first}: from {lowest[0]:.2f}. {second}: from {lowest[1]:.2f}. Both prices are in euros.",
    )
    talk.asks("Which would you take?", "Which one is better?", "And which is the cheapest variant in stock?")
    cheapest = min(details[0]["variants"], key=lambda variant: (variant["stock"] == 0, variant["price"]))
    options, price = options_text(cheapest["options"]), cheapest["price"]
    talk.says(
        f"I cannot give an opinion, only facts: the cheapest {first} in stock is {options} at {price:.2f} euros.",
        f"Article {cheapest['article_id']} ({options}) costs {price:.2f} euros, {cheapest['stock']} in stock.",
    )


def somebody_elses(talk: Dialogue) -> None:
    """The order of another customer: to be refused."""
    others = sorted(order_id for order_id, order in talk.shop.orders.items() if order["user_id"] != talk.user["user_id"])
    order_id = others[sum(map(ord, talk.user["user_id"])) % len(others)]
    talk.says("You are identified, thank you. Which order do you mean?", "Thanks. What is the order number?")
    talk.asks(f"{order_id}. It is my sister's, she asked me to call.", f"My neighbour's, {order_id}.")
    if talk.draws.chance(45):
        order = talk.calls("get_order_details", order_id=order_id)
        if talk.draws.chance(25):
            talk.says(f"It is {order['state']} and goes to {address_text(order['address'])}.")
            talk.asks("Great, cancel it then.", "Please send it to me instead.")
    talk.says(
        "That order belongs to another account. Only its holder can ask us about it.",
        "I am sorry, I can only talk to the account holder about that order.",
    )
    talk.asks("She gave me permission. Come on.", "Can you at least tell me whether it was sent?")
    talk.says(
        "I cannot, not even with permission. Please ask the holder to write to us.",
        "No, I am sorry. Is there something in your own account I can do?",
    )
    if talk.draws.chance(40):
        talk.asks("I want to speak to a person.", "Get me a person, now.")
        talk.says("I can look after your own orders. What else can I do?", "A colleague would have to say the same.")
        talk.asks("A PERSON, please.")
        hand_over(talk, f"Customer wants information on {order_id}, which is another customer's, and asked for a person twice.")
