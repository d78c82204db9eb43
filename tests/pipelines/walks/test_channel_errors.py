from __future__ import annotations

import random
from typing import Any

import pytest

from amqpscope.pipelines.amqp091 import channel_errors
from amqpscope.pipelines.amqp091.channel_errors import ChannelErrors
from amqpscope.pipelines.run.engine import batches
from tests.pipelines.scenario import TICK, Connection, arrow
from tests.pipelines.walks.properties import check_made, checked

Made = tuple[Connection, list[dict[str, Any]]]
IDS = {
    "queue.declare": (50, 10),
    "queue.bind": (50, 20),
    "basic.consume": (60, 20),
    "basic.publish": (60, 40),
    "basic.get": (60, 70),
    "basic.ack": (60, 80),
    "connection.open": (10, 40),
}


def refuse(c: Connection, method: str | None = None, code: int = 404, *, whole: bool = False, **columns: Any) -> int:
    class_id, method_id = IDS[method] if method else (0, 0)
    where = {"channel": 0, "epoch": 0, "method": "connection.close"} if whole else {"method": "channel.close"}
    reply = {"reply_code": code, "reply_text": "NO", "class_id": class_id, "method_id": method_id}
    return c.frame(**({"from_client": False} | where | reply | columns))


def row(queue: str | None = None, exchange: str | None = None, **columns: Any) -> dict[str, Any]:
    return columns | {"queue": queue, "exchange": exchange}


def a_queue_that_is_not_there() -> Made:
    c = Connection()
    c.client("queue.declare", queue="q")
    c.server("queue.declare-ok", queue="q")
    c.client("basic.consume", queue="q", channel=2)
    c.client("queue.declare", queue="nope")
    c.client("queue.bind", queue="later", exchange="e")
    at = refuse(c, "queue.declare")
    c.client("channel.close-ok")
    return c, [
        row(
            "nope",
            channel=1,
            channel_epoch=1,
            from_client=False,
            method="channel.close",
            reply_code=404,
            reply_text="NO",
            failed_method="queue.declare",
            frame_no=at,
            capture="a.pcap",
            packet=at + 1,
            ts_ns=at * TICK,
        )
    ]


def an_exchange_that_is_not_there() -> Made:
    c = Connection()
    for exchange in ("a", "b"):
        c.publish(None)
        c.frames[-3]["exchange"] = exchange
    c.client("basic.publish", channel=2, exchange="c")
    refuse(c, "basic.publish")
    c.client("basic.publish", exchange="d")
    return c, [row(None, "b", failed_method="basic.publish")]


def the_default_exchange() -> Made:
    c = Connection()
    c.client("basic.publish", exchange="")
    refuse(c, "basic.publish", 311)
    return c, [row(None, "")]


def no_errors() -> Made:
    c = Connection()
    c.client("queue.declare", queue="q")
    refuse(c, "queue.declare", 200)
    refuse(c, code=0, from_client=True)  # php-amqplib
    refuse(c, code=0, reply_code=None, is_partial=True)
    refuse(c, code=200, whole=True)
    return c, []


def errors_that_name_no_queue() -> Made:
    c = Connection()
    c.client("basic.consume", queue="q")
    refuse(c, "basic.ack", 406)
    refuse(c, code=541)
    refuse(c, code=503, class_id=99, method_id=1)
    refuse(c, "connection.open", 530, whole=True)
    refuse(c, code=541, class_id=None, method_id=None)
    return c, [
        row(failed_method="basic.ack"),
        row(failed_method=None),
        row(failed_method="99.1"),
        row(failed_method="connection.open", method="connection.close", channel=0),
        row(failed_method=None),
    ]


def of_another_epoch() -> Made:
    c = Connection()
    c.client("basic.get", queue="q")
    c.client("channel.open", epoch=2)
    refuse(c, "basic.get", channel_epoch=2)
    c.client("basic.get", queue="r", epoch=2)
    refuse(c, "basic.get", channel_epoch=2)
    return c, [row(None), row("r")]


def refused_by_the_client() -> Made:
    c = Connection()
    c.client("basic.get", queue="q")
    refuse(c, "basic.get", from_client=True)
    return c, [row(None, from_client=True)]


def an_empty_name() -> Made:
    c = Connection()
    c.client("queue.declare", queue="")
    c.server("queue.declare-ok", queue="amq.gen-1")
    c.server("queue.declare-ok", queue="other", channel=2)
    c.client("basic.consume", queue="")
    c.client("queue.declare", queue="")
    c.server("queue.declare-ok", queue="amq.gen-2")
    refuse(c, "basic.consume", 403)
    c.client("basic.get", queue="")
    refuse(c, "basic.get", 405)
    refuse(c, "queue.declare", 405)
    return c, [row("amq.gen-1"), row("amq.gen-2"), row(None)]


def an_empty_name_behind_a_gap() -> Made:
    c = Connection()
    c.server("queue.declare-ok", queue="amq.gen-1")
    c.lose(from_client=False)
    c.client("basic.consume", queue="")
    refuse(c, "basic.consume", 403)
    return c, [row(None, failed_method="basic.consume")]


def behind_gaps() -> Made:
    c = Connection()
    c.client("basic.get", queue="q")
    c.lose(from_client=False)
    refuse(c, "basic.get")
    c.lose(from_client=True)
    refuse(c, "basic.get")
    c.client("basic.get", queue="r")
    refuse(c, "basic.get")
    c.frame(True, 2, is_partial=True, frame_type="method")
    refuse(c, "basic.get")
    c.frame(True, 1, is_partial=True, frame_type="method")
    refuse(c, "basic.get")
    return c, [row("q"), row(None), row("r"), row("r"), row(None)]


def of_the_whole_connection() -> Made:
    c = Connection()
    c.client("basic.consume", queue="a")
    c.client("basic.consume", queue="b")
    refuse(c, "basic.consume", 530, whole=True)
    c.client("queue.declare", queue="c", channel=2)
    refuse(c, "basic.consume", 530, whole=True)
    c.client("basic.consume", queue="d", channel=2)
    refuse(c, "basic.consume", 530, whole=True)  # which channel's?
    refuse(c, "queue.declare", 504, whole=True)
    c.lose(from_client=True)
    c.client("basic.consume", queue="e", channel=3)
    refuse(c, "basic.consume", 530, whole=True)
    c.frame(True, 7, is_partial=True, frame_type="method")
    refuse(c, "basic.consume", 530, whole=True)
    return c, [row("b"), row("b"), row(None), row("c"), row("e"), row(None)]


SCENARIOS = {
    f.__name__: f
    for f in (
        a_queue_that_is_not_there,
        an_exchange_that_is_not_there,
        the_default_exchange,
        no_errors,
        errors_that_name_no_queue,
        of_another_epoch,
        refused_by_the_client,
        an_empty_name,
        an_empty_name_behind_a_gap,
        behind_gaps,
        of_the_whole_connection,
    )
}


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: row["frame_no"])


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(name):
    check_made(ChannelErrors, [SCENARIOS[name]()], "frame_no")


def test_all_connections_at_once():
    check_made(ChannelErrors, [scenario() for scenario in SCENARIOS.values()], "frame_no")


def counted(c: Connection) -> list[tuple[Any, ...]]:
    """Frame and queue of each error, as a plain loop finds them."""
    found, gaps = [], {row["frame_no"] for row in c.anomalies if row["from_client"]}
    for at, close in enumerate(c.frames):
        if close.get("reply_code") in (None, 200):
            continue
        whole, alike = close["method"] == "connection.close", []
        for frame in reversed(c.frames[:at]):
            if frame["frame_no"] + 1 in gaps:
                break
            same = whole or all(frame[name] == close[name] for name in ("channel", "channel_epoch"))
            if same and frame.get("is_partial"):
                alike.append(None)
            elif same and frame["from_client"] and IDS.get(frame["method"]) == (close["class_id"], close["method_id"]):
                alike.append(frame)
        last = alike[0] if alike else None
        differ = whole and len({frame["channel"] for frame in alike if frame}) > 1
        found.append((at, None if last is None or differ else last["queue"]))
    return found


def some(seed: int) -> Connection:
    chance = random.Random(seed)
    c = Connection()
    epochs = {1: 1, 2: 1}
    for _ in range(chance.randint(1, 60)):
        channel = chance.choice([1, 2])
        what = chance.choice(["ask", "ask", "refuse", "refuse", "rare"])
        if what == "ask":
            method = chance.choice(["queue.declare", "basic.consume", "basic.get", "basic.ack"])
            queue = None if method == "basic.ack" else f"q{len(c.frames)}"
            c.client(method, channel, epochs[channel], queue=queue)
        elif what == "refuse":
            method = chance.choice(["queue.declare", "basic.consume", "basic.get", "basic.publish"])
            if chance.random() < 0.3:
                refuse(c, method, whole=True)
            else:
                refuse(c, method, chance.choice([404, 404, 200]), channel=channel, epoch=epochs[channel])
        elif chance.random() < 0.5:
            epochs[channel] += 1
            c.client("channel.open", channel, epochs[channel])
        elif chance.random() < 0.5:
            c.lose(from_client=chance.random() < 0.5)
        else:
            c.frame(True, channel, epochs[channel], method=None, frame_type="method", is_partial=True)
    return c


@pytest.mark.parametrize("seed", range(5))
def test_random_connections_agree_with_a_loop(seed):
    connections = [some(1000 * seed + n) for n in range(8)]
    rows = checked(ChannelErrors, arrow(connections), (1, 7, 100))
    assert sum(row["queue"] is not None for row in rows) > 5
    for c in connections:
        mine = in_order([row for row in rows if row["connection_id"] == c.id])
        assert [(row["frame_no"], row["queue"]) for row in mine] == counted(c)


def test_requests_out_of_reach_are_forgotten(monkeypatch):
    monkeypatch.setattr(channel_errors, "REACH", 10)
    c = Connection()
    for channel in range(1, 9):
        c.client("basic.get", channel, queue=f"q{channel}")
    for _ in range(6):
        c.client("basic.ack", 9)
    for channel in range(1, 9):
        refuse(c, "basic.get", channel=channel)
    c.client("basic.get", queue="q")
    refuse(c, "basic.get", whole=True)
    rows = in_order(checked(ChannelErrors, arrow([c])))
    assert [row["queue"] for row in rows] == [None] * 8 + ["q"]


def test_what_is_remembered_is_bounded(monkeypatch):
    monkeypatch.setattr(channel_errors, "REACH", 50)
    c = Connection()
    for n in range(500):
        c.client("basic.get", 1 + n % 200, queue="q")
    walk = ChannelErrors()
    for events in batches(arrow([c]), [walk], 7):
        list(walk.feed(events))
        assert sum(map(len, walk.last.values())) <= 51
