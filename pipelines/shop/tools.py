"""The tools of the clerk: each takes the shop and the arguments of the call, and answers with a result or an error."""

from collections.abc import Callable
from datetime import date, timedelta

from pipelines.shop.world import RETURN_DAYS, TODAY, Json, Shop

REASONS = ("no longer needed", "ordered by mistake", "found elsewhere", "too slow")


def find_user_by_email(shop: Shop, email: str) -> Json:
    """The user's number, or an error."""
    found = [user["user_id"] for user in shop.users.values() if user["email"] == email.lower()]
    return {"user_id": found[0]} if found else {"error": f"no account with the email {email}"}


def find_user_by_name(shop: Shop, name: str, postcode: str) -> Json:
    """The user's number, or an error."""
    for user in shop.users.values():
        if user["name"].lower() == name.lower() and user["address"]["postcode"] == postcode:
            return {"user_id": user["user_id"]}
    return {"error": "no account with this name and postcode"}


def get_user_details(shop: Shop, user_id: str) -> Json:
    """The profile."""
    return shop.users.get(user_id) or {"error": f"no user {user_id}"}


def get_order_details(shop: Shop, order_id: str) -> Json:
    """One order with its articles and history."""
    return shop.orders.get(order_id) or {"error": f"no order {order_id}; order numbers look like LL-123456"}


def get_product(shop: Shop, product_id: str) -> Json:
    """A product with all its variants."""
    if product_id.startswith("A"):
        return {"error": f"{product_id} is an article number; a product number begins with P"}
    return shop.products.get(product_id) or {"error": f"no product {product_id}"}


def list_products(shop: Shop) -> Json:
    """Names and numbers of all products."""
    return {"products": [{"product_id": entry["product_id"], "name": entry["name"]} for entry in shop.products.values()]}


def track_parcel(shop: Shop, order_id: str) -> Json:
    """Where the carrier says the parcel is."""
    order = shop.orders.get(order_id)
    if order is None or order["tracking"] is None:
        return {"error": f"no parcel for {order_id} yet"}
    last = order["history"][-1]
    stops = [{"date": last["date"], "place": "Larch & Lantern warehouse", "event": "handed to carrier"}]
    if int(order["tracking"]["number"][-1]) % 2:
        stops.append(
            {"date": (TODAY - timedelta(days=1)).isoformat(), "place": "sorting hall east", "event": "address unreadable, held"}
        )
    else:
        stops.append(
            {"date": TODAY.isoformat(), "place": f"depot {order['address']['city']}", "event": "out for delivery tomorrow"}
        )
    return {"order_id": order_id, **order["tracking"], "stops": stops}


def cancel_order(shop: Shop, order_id: str, reason: str) -> Json:
    """Cancels an open order as a whole."""
    order = shop.orders.get(order_id)
    if order is None or order["state"] != "open":
        return {"error": "only an open order can be cancelled" + (f"; {order_id} is {order['state']}" if order else "")}
    if reason not in REASONS:
        return {"error": "reason must be one of: " + ", ".join(REASONS)}
    order["state"] = "cancelled"
    return {"order_id": order_id, "state": "cancelled", "refund": order["total"], "refund_to": order["paid_with"]}


def modify_address(shop: Shop, target: str, street: str, city: str, postcode: str, country: str) -> Json:
    """Changes where an open or packed order goes, or the address in a profile."""
    address = {"street": street, "city": city, "postcode": postcode, "country": country}
    if not all(address.values()):
        return {"error": "address incomplete: " + ", ".join(key for key, value in address.items() if not value)}
    owner = shop.orders.get(target) or shop.users.get(target)
    if owner is None:
        return {"error": f"no order or user {target}"}
    if owner.get("state", "open") not in ("open", "packed"):
        return {"error": f"{target} is {owner['state']}; its address can no longer change"}
    owner["address"] = address
    return {"target": target, "address": address}


def return_articles(shop: Shop, order_id: str, article_ids: list[str], refund_to: str) -> Json:
    """Books the one return of an order."""
    order = shop.orders.get(order_id)
    problem = _return_problem(shop, order, article_ids, refund_to)
    if order is None or problem:
        return {"error": problem or f"no order {order_id}"}
    refund = sum(line["price"] for line in order["articles"] if line["article_id"] in article_ids)
    order["booked"] = "return"
    label = f"R{order_id[3:]}-{len(article_ids)}"
    return {"order_id": order_id, "articles": article_ids, "refund": round(refund, 2), "refund_to": refund_to, "label": label}


def exchange_articles(shop: Shop, order_id: str, article_ids: list[str], new_article_ids: list[str], payment_method: str) -> Json:
    """Books the one exchange of an order; each new article is a variant of the product of the old one."""
    order = shop.orders.get(order_id)
    problem = _return_problem(shop, order, article_ids, payment_method)
    if order is None or problem:
        return {"error": problem or f"no order {order_id}"}
    difference = 0.0
    for old_id, new_id in zip(article_ids, new_article_ids, strict=True):
        old, new = shop.article(old_id), shop.article(new_id)
        if old is None or new is None or old[0] is not new[0]:
            return {"error": f"{new_id} is no variant of the product of {old_id}"}
        if not new[1]["stock"]:
            return {"error": f"{new_id} is out of stock"}
        difference += new[1]["price"] - old[1]["price"]
    order["booked"] = "exchange"
    result = {"order_id": order_id, "articles": article_ids, "new_articles": new_article_ids}
    return result | {"difference": round(difference, 2), "charged_to": payment_method, "label": f"X{order_id[3:]}"}


def _return_problem(shop: Shop, order: Json | None, article_ids: list[str], payment_method: str) -> str:
    if order is None:
        return ""
    if order["state"] != "arrived":
        return f"{order['order_id']} is {order['state']}, not arrived"
    if "booked" in order:
        return f"{order['order_id']} already has a booked {order['booked']}"
    if date.fromisoformat(order["history"][-1]["date"]) < TODAY - timedelta(days=RETURN_DAYS):
        return f"{order['order_id']} arrived more than {RETURN_DAYS} days ago"
    missing = set(article_ids) - {line["article_id"] for line in order["articles"]}
    if missing:
        return f"not in {order['order_id']}: " + ", ".join(sorted(missing))
    methods = {method["id"] for method in shop.users[order["user_id"]]["payment_methods"]}
    return "" if payment_method in methods else f"no payment method {payment_method} on file"


def transfer_to_human(shop: Shop, summary: str) -> Json:
    """Ends the clerk's part."""
    return {"queue": "colleagues", "position": 1 + len(summary) % 4}


TOOLS: dict[str, tuple[Callable[..., Json], str, dict[str, str]]] = {
    "find_user_by_email": (find_user_by_email, "User number from an email address.", {"email": "string"}),
    "find_user_by_name": (
        find_user_by_name,
        "User number from full name and postcode.",
        {"name": "string", "postcode": "string"},
    ),
    "get_user_details": (get_user_details, "Profile: address, payment methods, orders.", {"user_id": "string"}),
    "get_order_details": (get_order_details, "One order: state, articles, history.", {"order_id": "string"}),
    "list_products": (list_products, "All products with their numbers.", {}),
    "get_product": (get_product, "A product with its variants, prices and stock.", {"product_id": "string"}),
    "track_parcel": (track_parcel, "Where a sent parcel is.", {"order_id": "string"}),
    "cancel_order": (cancel_order, "Cancels an open order.", {"order_id": "string", "reason": "string"}),
    "modify_address": (
        modify_address,
        "New address for an order, or for a profile.",
        {"target": "string", "street": "string", "city": "string", "postcode": "string", "country": "string"},
    ),
    "return_articles": (
        return_articles,
        "Books the return of articles that arrived.",
        {"order_id": "string", "article_ids": "array", "refund_to": "string"},
    ),
    "exchange_articles": (
        exchange_articles,
        "Exchanges articles that arrived for variants of the same products.",
        {"order_id": "string", "article_ids": "array", "new_article_ids": "array", "payment_method": "string"},
    ),
    "transfer_to_human": (transfer_to_human, "Hands the conversation to a colleague.", {"summary": "string"}),
}


def tool_schemas() -> list[Json]:
    """The tools in the OpenAI form."""
    schemas = []
    for name, (_function, description, types) in TOOLS.items():
        properties: Json = {
            key: {"type": "array", "items": {"type": "string"}} if kind == "array" else {"type": kind}
            for key, kind in types.items()
        }
        parameters = {"type": "object", "properties": properties, "required": list(types)}
        schemas.append({"type": "function", "function": {"name": name, "description": description, "parameters": parameters}})
    return schemas
