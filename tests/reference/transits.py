"""Which publish a delivery came from: `transits()` over the rows of `frames()`."""

from __future__ import annotations

import re
from collections.abc import Callable

from tests.reference.amqp import ENDS, Row, messages

TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32}-[0-9a-f]{16})-[0-9a-f]{2}(-.*)?")
DIRECT = "amq.rabbitmq.reply-to"
HOUR_NS = 3600 * 10**9


def transits(rows: list[Row], window_ns: int = HOUR_NS) -> list[Row]:
    """One row per delivery, as `messages()` has them; `publish` is its publish, None when that is ambiguous."""
    contents = messages(rows)
    publishes = [message for message in contents if message["kind"] == "publish"]
    found = []
    for delivery in contents:
        if delivery["kind"] not in ("deliver", "get"):
            continue
        row = {f"deliver_{name}": delivery[name] for name in ("connection", *ENDS)}
        row |= {"matched_by": "ambiguous", "publish": None, "latency_ns": None}
        group = [publish for publish in publishes if 0 <= delivery["ts_ns"] - publish["ts_ns"] <= window_ns]
        kinds = [(how, key) for how, key in KEYS.items() if key(delivery)]
        for number, (how, key) in enumerate(kinds):
            likes = [publish for publish in group if key(publish) == key(delivery)]
            if len(likes) == 1:
                publish = likes[0]
                latency_ns = delivery["ts_ns"] - publish["ts_ns"]
                row |= {"matched_by": how, "publish": publish, "latency_ns": latency_ns}
                break
            if number == 0:
                group = likes
        found.append(row)
    return found


def _trace(message: Row) -> str | None:
    found = TRACEPARENT.fullmatch(str((message["headers"] or {}).get("traceparent", "")))
    return found and found[1]


def _content(message: Row) -> str | None:
    if message["is_partial"] or not message["body_size"]:
        return None
    names = ("exchange", "routing_key", "headers", "body_size", "body_hash")
    properties = {name: value for name, value in message["properties"].items() if name != "cluster_id"}
    if str(properties.get("reply_to", "")).startswith(f"{DIRECT}."):  # the broker adds a name of its own
        properties["reply_to"] = DIRECT
    return repr([message[name] for name in names] + sorted(properties.items()))


KEYS: dict[str, Callable[[Row], str | None]] = {
    "message-id": lambda message: message["properties"].get("message_id"),
    "trace": _trace,
    "content": _content,
}
