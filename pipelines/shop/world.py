"""A made-up mail-order shop: its products, customers and orders.

Everything is drawn from a seed; no person, address or article exists.
"""

from dataclasses import dataclass, field
from datetime import date, timedelta
from itertools import product as combinations
from random import Random
from typing import Any

TODAY = date(2031, 3, 14)
RETURN_DAYS = 30
Json = dict[str, Any]

# name, options, price of the cheapest variant in cents
CATALOGUE: tuple[tuple[str, dict[str, tuple[str, ...]], int], ...] = (
    ("Fjell rain jacket", {"size": ("S", "M", "L", "XL"), "colour": ("moss", "rust", "navy")}, 11900),
    ("Tarn wool jumper", {"size": ("S", "M", "L"), "colour": ("oat", "slate", "berry")}, 7450),
    ("Brae walking boots", {"size": ("39", "41", "43", "45"), "width": ("regular", "wide")}, 13900),
    ("Ember camping stove", {"fuel": ("gas", "spirit"), "burners": ("1", "2")}, 5990),
    ("Wick oil lantern", {"finish": ("brass", "black", "zinc"), "height": ("22 cm", "30 cm")}, 3890),
    ("Harbour rucksack", {"volume": ("18 l", "28 l", "40 l"), "colour": ("sand", "pine", "coal")}, 8900),
    ("Nook tent", {"sleeps": ("2", "3", "4"), "season": ("summer", "all year")}, 21900),
    ("Drift sleeping bag", {"length": ("185 cm", "200 cm"), "comfort": ("5 C", "-2 C", "-9 C")}, 12900),
    ("Kettle flask", {"capacity": ("0.5 l", "0.75 l", "1 l"), "lid": ("cup", "sip")}, 2790),
    ("Thresh door mat", {"size": ("60 x 40", "75 x 45"), "weave": ("plain", "herringbone")}, 3150),
    ("Gable bird feeder", {"wood": ("larch", "oak"), "roof": ("felt", "slate", "copper")}, 4490),
    ("Plait storage basket", {"size": ("small", "medium", "large"), "handles": ("rope", "leather")}, 2450),
    ("Lowland picnic blanket", {"size": ("140 x 140", "180 x 140"), "pattern": ("check", "stripe", "plain")}, 4290),
    ("Anvil pocket knife", {"blade": ("6 cm", "8 cm"), "handle": ("ash", "horn", "steel")}, 5390),
)
FIRST_NAMES = [
    "Odile",
    "Bram",
    "Ksenia",
    "Tobiah",
    "Maren",
    "Ilario",
    "Sunniva",
    "Pavol",
    "Greta",
    "Anselm",
    "Yusra",
    "Corentin",
    "Wanda",
    "Edric",
    "Luzia",
    "Halvard",
    "Nerys",
    "Matthijs",
    "Zofia",
    "Leopold",
    "Imke",
    "Raffael",
    "Birgit",
    "Oskari",
    "Delphine",
    "Jorun",
    "Casimir",
    "Tilda",
    "Emrys",
    "Alwine",
]
LAST_NAMES = [
    "Quillfeather",
    "Vandermoor",
    "Ostrander",
    "Pellworm",
    "Birkenshaw",
    "Lindqvistad",
    "Marrowby",
    "Tannhauser",
    "Crossbill",
    "Eskelund",
    "Wetherall",
    "Dunmorrow",
    "Halloway-Finch",
    "Sarkozia",
    "Brandreth",
    "Okafor-Lund",
    "Petrovane",
    "Ashgrove",
    "Mirefield",
    "Castellan",
]
STREETS = [
    "Tanner Row",
    "Mill Bank",
    "Old Ferry Road",
    "Heather Close",
    "Quayside",
    "Chapel Hill",
    "Sawpit Lane",
    "Linden Allee",
    "Kiln Street",
]
CITIES = (
    ("Marholm", "NL"),
    ("Eastrigg", "UK"),
    ("Vellbruck", "DE"),
    ("Saint-Aubry", "FR"),
    ("Tornvik", "NO"),
    ("Port Ellery", "IE"),
)
CARRIERS = ("Ganderpost", "Blue Mule", "Northway Parcels")


@dataclass(kw_only=True, slots=True)
class Shop:
    """One copy of the shop, which the tools change."""

    products: dict[str, Json] = field(default_factory=dict)
    users: dict[str, Json] = field(default_factory=dict)
    orders: dict[str, Json] = field(default_factory=dict)

    def article(self, article_id: str) -> tuple[Json, Json] | None:
        """(product, variant) of an article number."""
        for entry in self.products.values():
            for variant in entry["variants"]:
                if variant["article_id"] == article_id:
                    return entry, variant
        return None


def make_shop(rng: Random, *, num_users: int) -> Shop:
    """Every user has two or three orders: at least one has arrived and one has not."""
    shop = Shop()
    for index, (name, options, cents) in enumerate(CATALOGUE):
        product_id = f"P{2100 + 37 * index + rng.randrange(30)}"
        variants = []
        for position, values in enumerate(combinations(*options.values())):
            chosen = dict(zip(options, values, strict=True))
            price = (cents + 250 * rng.randrange(6)) / 100
            stock = 0 if rng.randrange(4) == 0 else rng.randrange(1, 60)
            article_id = f"A{product_id[1:]}{position:02d}{rng.randrange(10)}"
            variants.append({"article_id": article_id, "options": chosen, "price": price, "stock": stock})
        shop.products[product_id] = {"product_id": product_id, "name": name, "variants": variants}
    for index in range(num_users):
        _add_user(shop, rng, index)
    return shop


def age_order(order: Json, days: int) -> None:
    """Moves the history of an order back by so many days."""
    for entry in order["history"]:
        entry["date"] = (date.fromisoformat(entry["date"]) - timedelta(days=days)).isoformat()


def make_address(rng: Random) -> Json:
    """A place that doesn't exist."""
    city, country = rng.choice(CITIES)
    street = f"{rng.randrange(1, 140)} {rng.choice(STREETS)}"
    return {"street": street, "city": city, "postcode": str(rng.randrange(10000, 99999)), "country": country}


def _add_user(shop: Shop, rng: Random, index: int) -> None:
    first, last = FIRST_NAMES[index % len(FIRST_NAMES)], rng.choice(LAST_NAMES)
    user_id = f"{first}.{last}.{rng.randrange(100, 999)}".lower()
    methods: list[Json] = [{"id": f"pay-{rng.randrange(10000, 99999)}", "kind": kind} for kind in ("card", "bank transfer")]
    if rng.randrange(2):
        balance = rng.randrange(500, 9000) / 100
        methods.append({"id": f"vou-{rng.randrange(10000, 99999)}", "kind": "voucher", "balance": balance})
    shop.users[user_id] = {
        "user_id": user_id,
        "name": f"{first} {last}",
        "email": f"{first}.{last}{rng.randrange(10, 99)}@example.org".lower(),
        "address": make_address(rng),
        "payment_methods": methods,
        "orders": [],
    }
    for state in ("arrived", rng.choice(("open", "open", "packed")), *(["sent"] if rng.randrange(2) else [])):
        _add_order(shop, rng, shop.users[user_id], state)


def _add_order(shop: Shop, rng: Random, user: Json, state: str) -> None:
    order_id = f"LL-{rng.randrange(100000, 999999)}"
    placed = TODAY - timedelta(days=rng.randrange(8, 25) if state == "arrived" else rng.randrange(1, 6))
    lines = []
    for entry in rng.sample(list(shop.products.values()), rng.randrange(1, 4)):
        variant = rng.choice(entry["variants"])
        line = {"article_id": variant["article_id"], "product_id": entry["product_id"], "name": entry["name"]}
        lines.append(line | {"options": variant["options"], "price": variant["price"]})
    history = [{"date": placed.isoformat(), "event": "paid"}]
    if state != "open":
        history.append({"date": (placed + timedelta(days=1)).isoformat(), "event": "packed"})
    tracking = None
    if state in ("sent", "arrived"):
        tracking = {"carrier": rng.choice(CARRIERS), "number": f"{rng.randrange(10**9, 10**10)}"}
        history.append({"date": (placed + timedelta(days=2)).isoformat(), "event": "sent"})
    if state == "arrived":
        history.append({"date": (placed + timedelta(days=4)).isoformat(), "event": "arrived"})
    shop.orders[order_id] = {
        "order_id": order_id,
        "user_id": user["user_id"],
        "state": state,
        "articles": lines,
        "total": round(sum(line["price"] for line in lines), 2),
        "paid_with": rng.choice(user["payment_methods"])["id"],
        "address": dict(user["address"]),
        "tracking": tracking,
        "history": history,
    }
    user["orders"].append(order_id)
