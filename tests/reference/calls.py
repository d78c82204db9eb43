"""Which answer a request has: `calls()` over the rows of `messages()`."""

from __future__ import annotations

from tests.reference.amqp import Row

DIRECT = "amq.rabbitmq.reply-to"


Homes = dict[str, str | None]


def calls(contents: list[Row], homes: Homes | None = None) -> list[Row]:
    """One row per request of these messages, with its answer, or none.

    Args:
        contents: the messages.
        homes: virtual hosts of connections of one broker, None for unknown ones; left out: all have one.
    """
    found: list[Row] = []
    homes = homes if homes and len(set(homes.values()) - {None}) > 1 else {}
    for message in sorted(contents, key=lambda each: each["ts_ns"]):
        properties = message["properties"]
        name, to = properties.get("correlation_id"), properties.get("reply_to")
        if not name or message["exchange"] is None:
            continue
        if message["kind"] == "publish" and to:
            row = {"request": message, "answer": None, "alone": True, "key": key(name, to, message)}
            together = [other for other in found if waits(other, row["key"], message, homes)]
            for each in [*together, row] if together else ():
                each["alone"] = False
            found.append(row)
        elif message["kind"] in ("deliver", "get") and message["exchange"] == "":
            mine = key(name, message["routing_key"], message)
            waiting = [row for row in found if waits(row, mine, message, homes)]
            if waiting:
                waiting[0]["answer"] = message
                ends = {message["connection"], waiting[0]["request"]["connection"]}
                if len(ends) > 1 and homes and None in {homes[each] for each in ends}:
                    waiting[0]["alone"] = False
    return found


def waits(row: Row, key: tuple[str, ...], message: Row, homes: Homes) -> bool:
    """Whether a request of this key waits where a message may be."""
    here, there = homes.get(row["request"]["connection"]), homes.get(message["connection"])
    return row["key"] == key and row["answer"] is None and (here is None or there is None or here == there)


def key(name: str, queue: str, message: Row) -> tuple[str, ...]:
    return (name, DIRECT, str(message["connection"])) if queue.startswith(DIRECT) else (name, queue)
