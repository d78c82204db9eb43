"""Which answer a request has: `calls()` over the rows of `messages()`."""

from __future__ import annotations

from tests.reference.amqp import Row

DIRECT = "amq.rabbitmq.reply-to"


def calls(contents: list[Row]) -> list[Row]:
    """One row per request of these messages, with its answer, or none."""
    found: list[Row] = []
    for message in sorted(contents, key=lambda each: each["ts_ns"]):
        properties = message["properties"]
        name, to = properties.get("correlation_id"), properties.get("reply_to")
        if not name or message["exchange"] is None:
            continue
        if message["kind"] == "publish" and to:
            row = {"request": message, "answer": None, "alone": True, "key": key(name, to, message)}
            together = [other for other in found if other["key"] == row["key"] and other["answer"] is None]
            for each in [*together, row] if together else ():
                each["alone"] = False
            found.append(row)
        elif message["kind"] in ("deliver", "get") and message["exchange"] == "":
            mine = key(name, message["routing_key"], message)
            waiting = [row for row in found if row["key"] == mine and row["answer"] is None]
            if waiting:
                waiting[0]["answer"] = message
    return found


def key(name: str, queue: str, message: Row) -> tuple[str, ...]:
    return (name, DIRECT, str(message["connection"])) if queue.startswith(DIRECT) else (name, queue)
