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
            found.append({"request": message, "answer": None, "alone": True, "key": key(name, to, message)})
        elif message["kind"] in ("deliver", "get") and message["exchange"] == "":
            mine = key(name, message["routing_key"], message)
            waiting = [row for row in found if row["key"] == mine and row["answer"] is None]
            if waiting:
                waiting[0]["answer"] = message
                together = [row for row in found if row["key"] == mine]
                waiting[0]["alone"] = not used_twice(together, message["ts_ns"])
    return found


def key(name: str, queue: str, message: Row) -> tuple[str, ...]:
    return (name, DIRECT, str(message["connection"])) if queue.startswith(DIRECT) else (name, queue)


def used_twice(requests: list[Row], until_ns: int) -> bool:
    """Whether a request was sent while another one of its key waited."""
    for number, row in enumerate(requests):
        sent = row["request"]["ts_ns"]
        for other in requests[:number]:
            if sent <= until_ns and (other["answer"] is None or sent < other["answer"]["ts_ns"]):
                return True
    return False
