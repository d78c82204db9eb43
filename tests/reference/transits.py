"""Which publish a delivery came from: `transits()` over the rows of `frames()`."""

from __future__ import annotations

import re
from collections.abc import Callable

from tests.reference.amqp import ENDS, Row, messages

TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32}-[0-9a-f]{16})-[0-9a-f]{2}(-.*)?")
DIRECT = "amq.rabbitmq.reply-to"
HOUR_NS = 3600 * 10**9


def transits(rows: list[Row], window_ns: int = HOUR_NS, homes: bool = True) -> list[Row]:
    """One row per delivery that may be whole, as `messages()` has them; `publish` is its publish, None where ambiguous.

    With `homes` a message stays in its virtual host, as far as connections were seen to open one; a connection that was
    not may be in any of those of its server, and where these are several, that is proof for its own messages only.
    Another exchange or routing key than it was published with needs a header that says why; it has the same body.
    """
    contents = messages(rows)
    opened = {row["connection"]: row["args"]["virtual_host"] for row in rows if row["method"] == "connection.open"}
    vhosts = opened if homes else {}
    of_server: dict[str, set[str]] = {}
    for connection, vhost in vhosts.items():
        of_server.setdefault(connection[-2], set()).add(vhost)
    publishes = [message for message in contents if message["kind"] == "publish" and not message["cut_by"]]
    found = []
    for delivery in contents:
        if delivery["kind"] not in ("deliver", "get") or delivery["cut_by"]:
            continue
        row = {f"deliver_{name}": delivery[name] for name in ("connection", *ENDS)}
        row |= {"matched_by": "ambiguous", "publish": None, "latency_ns": None}
        group = [publish for publish in publishes if 0 <= delivery["ts_ns"] - publish["ts_ns"] <= window_ns]
        here = vhosts.get(delivery["connection"])
        group = [
            each
            for each in group
            if None in (here, vhosts.get(each["connection"])) or vhosts[each["connection"]] == here
        ]
        kinds = [(how, key) for how, key in KEYS.items() if key(delivery)]
        for number, (how, key) in enumerate(kinds):
            likes = [publish for publish in group if key(publish) == key(delivery)]
            if len(likes) == 1:
                publish = likes[0]
                ends = {publish["connection"], delivery["connection"]}
                unsure = any(end not in vhosts and len(of_server.get(end[-2], ())) > 1 for end in ends)
                if not _may_be(publish, delivery) or (unsure and len(ends) > 1):
                    break
                latency_ns = delivery["ts_ns"] - publish["ts_ns"]
                row |= {"matched_by": how, "publish": publish, "latency_ns": latency_ns}
                break
            if number == 0:
                group = likes
        found.append(row)
    return found


def _may_be(publish: Row, delivery: Row) -> bool:
    """Whether a delivery is where its publish went, or a header of one of them says why it is not; with its body."""
    bodies = [(each["body_size"], each["body_hash"]) for each in (publish, delivery) if not each["is_partial"]]
    if len(set(bodies)) > 1:
        return False
    moved = any({"x-death", "CC", "BCC"} & {*(message["headers"] or {})} for message in (publish, delivery))
    return moved or all(publish[name] == delivery[name] for name in ("exchange", "routing_key"))


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
