from __future__ import annotations

import random
from typing import Any

import pytest

from amqpscope.pipelines.holes import mute
from amqpscope.pipelines.rpcs import rpcs
from amqpscope.pipelines.schemas import schema
from tests.pipelines.scenario import TICK, Connection, check, collect, lost, tables

# Each scenario gives a connection and, for each request in the order of frames, the columns that must be.


def one_after_the_other() -> tuple[Connection, list[dict[str, Any]]]:
    c = Connection()
    start = c.server("connection.start", channel=0, epoch=0)
    started = c.client("connection.start-ok", channel=0, epoch=0)
    asked = c.client("queue.declare", queue="q")
    answer = c.server("queue.declare-ok", queue="q")
    return c, [
        {
            "channel": 0,
            "channel_epoch": 0,
            "request": "connection.start",
            "response": "connection.start-ok",
            "from_client": False,
            "outcome": "ok",
            "latency_ns": (started - start) * TICK,
        },
        {
            "request": "queue.declare",
            "response": "queue.declare-ok",
            "from_client": True,
            "outcome": "ok",
            "request_frame_no": asked,
            "request_packet": asked + 1,
            "request_capture": "a.pcap",
            "request_ts_ns": asked * TICK,
            "response_frame_no": answer,
            "response_packet": answer + 1,
            "response_capture": "a.pcap",
            "response_ts_ns": answer * TICK,
            "latency_ns": (answer - asked) * TICK,
            "reply_code": None,
            "ended_by": None,
            "end_ts_ns": None,
        },
    ]


def pipelined_gets() -> tuple[Connection, list[dict[str, Any]]]:
    c = Connection()
    for _ in range(3):
        c.client("basic.get", queue="q")
    c.client("basic.qos")
    first = c.message("get", delivery_tag=1) - 2
    c.server("basic.qos-ok")
    second = c.server("basic.get-empty")
    third = c.message("get", delivery_tag=2) - 2
    return c, [
        {"response": "basic.get-ok", "response_frame_no": first, "latency_ns": first * TICK},
        {"response": "basic.get-empty", "response_frame_no": second},
        {"response": "basic.get-ok", "response_frame_no": third},
        {"request": "basic.qos", "response": "basic.qos-ok", "outcome": "ok"},
    ]


def no_wait_is_no_request() -> tuple[Connection, list[dict[str, Any]]]:
    c = Connection()
    c.client("queue.bind", no_wait=True)
    c.client("queue.bind", no_wait=False)
    answer = c.server("queue.bind-ok")
    c.server("basic.cancel", no_wait=True, consumer_tag="c")
    return c, [{"request": "queue.bind", "request_frame_no": 1, "response_frame_no": answer}]


def channel_closed_as_an_answer() -> tuple[Connection, list[dict[str, Any]]]:
    c = Connection()
    c.client("queue.declare", queue="gone", passive=True)
    c.client("queue.bind")  # pipelined behind it: not what the close is about
    close = c.server("channel.close", reply_code=404)
    c.client("queue.delete")
    c.client("channel.close-ok")
    return c, [
        {
            "outcome": "error",
            "reply_code": 404,
            "response": "channel.close",
            "response_frame_no": close,
            "response_packet": close + 1,
            "response_capture": "a.pcap",
            "latency_ns": close * TICK,
            "ended_by": None,
        },
        {"outcome": "none", "ended_by": "channel-close", "end_ts_ns": close * TICK, "response": None},
        {"request": "channel.close", "from_client": False, "outcome": "ok"},
        {"outcome": "none", "ended_by": "discarded", "end_ts_ns": close * TICK, "latency_ns": None, "reply_code": None},
    ]


def connection_closed_as_an_answer() -> tuple[Connection, list[dict[str, Any]]]:
    c = Connection(closed_by="server")
    c.client("exchange.declare")
    c.client("connection.open", channel=0, epoch=0)
    c.server("connection.close", channel=0, epoch=0, reply_code=530)
    return c, [
        {"request": "exchange.declare", "outcome": "error", "reply_code": 530, "response": "connection.close"},
        {"request": "connection.open", "outcome": "error", "reply_code": 530, "response": "connection.close"},
        {"request": "connection.close", "outcome": "none", "ended_by": "connection-close"},
    ]


def closed_in_peace() -> tuple[Connection, list[dict[str, Any]]]:
    c = Connection()
    c.server("channel.flow", active=True)
    close = c.client("channel.close", reply_code=200)
    c.server("channel.close-ok")
    return c, [{"outcome": "none", "ended_by": "channel-close", "end_ts_ns": close * TICK}, {"outcome": "ok"}]


def closes_that_cross() -> tuple[Connection, list[dict[str, Any]]]:
    c = Connection()
    c.client("channel.close")
    c.server("channel.close", reply_code=406)
    c.client("channel.close-ok")
    c.server("channel.close-ok")
    return c, [
        {"from_client": True, "outcome": "ok", "latency_ns": 3 * TICK},
        {"from_client": False, "outcome": "ok", "latency_ns": TICK},
    ]


def capture_begins_between_request_and_answer() -> tuple[Connection, list[dict[str, Any]]]:
    c = Connection()
    c.server("basic.get-empty", epoch=0)
    c.client("basic.get", epoch=0)
    c.server("basic.get-empty", epoch=0)
    c.server("basic.get-empty", epoch=0)
    last = c.client("basic.get", epoch=0)
    return c, [
        {"outcome": "ok", "request_frame_no": 1, "response_frame_no": 2},
        {"outcome": "none", "request_frame_no": last, "ended_by": "capture-end", "end_ts_ns": c.end},
    ]


def both_sides_ask_the_same() -> tuple[Connection, list[dict[str, Any]]]:
    c = Connection()
    c.server("channel.flow", active=False)
    c.client("channel.flow", active=False)
    c.server("channel.flow-ok", active=False)
    c.client("channel.flow-ok", active=False)
    return c, [
        {"from_client": False, "response_frame_no": 3, "outcome": "ok"},
        {"from_client": True, "response_frame_no": 2, "outcome": "ok"},
    ]


def no_answer() -> tuple[Connection, list[dict[str, Any]]]:
    c = Connection()
    c.client("queue.purge")
    c.client("queue.purge", channel=2)
    c.lose(from_client=True)
    cut = c.server(None, frame_type="method", is_partial=True)
    hole = c.lose(from_client=False)
    c.server("basic.deliver", is_partial=True)
    c.client("queue.purge")
    return c, [
        {"outcome": "none", "ended_by": "gap", "end_ts_ns": cut * TICK, "response": None, "response_frame_no": None},
        {"channel": 2, "outcome": "none", "ended_by": "gap", "end_ts_ns": hole * TICK},
        {"outcome": "none", "ended_by": "capture-end"},
    ]


def one_at_a_time_around_holes() -> tuple[Connection, list[dict[str, Any]]]:
    c = Connection()
    c.client("basic.get")  # its answer is lost, which shows behind the next request
    second = c.client("basic.get")
    hole = c.lose(from_client=False)
    answer = c.server("basic.get-empty")
    c.client("basic.qos")
    c.server("basic.get-empty")  # the request is lost
    c.lose(from_client=True)
    last = c.client("basic.get")
    c.server("basic.get-empty")
    return c, [
        {"outcome": "none", "ended_by": "gap", "end_ts_ns": hole * TICK, "latency_ns": None},
        {"request_frame_no": second, "outcome": "ok", "response_frame_no": answer},
        {"request": "basic.qos"},
        {"request_frame_no": last, "outcome": "ok", "response_frame_no": last + 1},
    ]


def answer_and_next_request_are_lost() -> tuple[Connection, list[dict[str, Any]]]:
    """What comes may be the answer to the other."""
    c = Connection()
    c.client("basic.get")
    hole = c.lose(from_client=False)
    c.server("basic.get-empty")
    c.lose(from_client=True)
    last = c.client("basic.get")
    c.server("basic.get-empty")
    return c, [
        {"outcome": "none", "ended_by": "gap", "end_ts_ns": hole * TICK, "response": None},
        {"request_frame_no": last, "outcome": "ok"},
    ]


def pipelined_around_a_hole() -> tuple[Connection, list[dict[str, Any]]]:
    """Which answer is lost nobody knows."""
    c = Connection()
    c.client("basic.get")
    c.client("basic.get")
    c.server("basic.get-empty")
    c.client("basic.get")
    hole = c.lose(from_client=False)
    c.server("basic.get-empty")
    c.client("basic.get")
    c.server("basic.get-empty")
    lost = {"outcome": "none", "ended_by": "gap", "latency_ns": None}
    return c, [
        {"outcome": "ok", "response_frame_no": 2},
        {**lost, "end_ts_ns": hole * TICK},
        {**lost, "end_ts_ns": hole * TICK},
        lost,
    ]


def pipelined_behind_lost_requests() -> tuple[Connection, list[dict[str, Any]]]:
    c = Connection()
    c.client("channel.open")
    c.server("channel.open-ok")
    c.lose(from_client=True)
    c.client("basic.get")
    c.client("basic.get")
    for _ in range(4):
        c.server("basic.get-empty")
    c.client("channel.close", reply_code=200)
    lost = {"request": "basic.get", "outcome": "none", "ended_by": "gap", "response": None}
    return c, [{"outcome": "ok"}, lost, lost, {"request": "channel.close"}]


def refused_behind_a_hole() -> tuple[Connection, list[dict[str, Any]]]:
    """The first had its answer: it is lost."""
    c = Connection()
    c.client("channel.open")
    hole = c.lose(from_client=False)
    c.server("basic.get-empty")
    c.client("queue.declare")
    c.server("channel.close", reply_code=404)
    return c, [
        {"request": "channel.open", "outcome": "none", "ended_by": "gap", "end_ts_ns": hole * TICK},
        {"request": "queue.declare", "outcome": "error", "reply_code": 404},
        {"request": "channel.close"},
    ]


def cut_in_front_of_its_no_wait() -> tuple[Connection, list[dict[str, Any]]]:
    """Nobody knows whether it asks for an answer."""
    c = Connection()
    c.client("queue.delete", is_partial=True)
    c.client("queue.delete", no_wait=False)
    c.server("queue.delete-ok")
    return c, [{"request_frame_no": 1, "response_frame_no": 2}]


def times_that_cannot_be() -> tuple[Connection, list[dict[str, Any]]]:
    c = Connection()
    c.client("queue.purge", ts_ns=-(2**63))
    c.server("queue.purge-ok", ts_ns=2**63 - 1)
    return c, [{"outcome": "ok", "latency_ns": None}]


SCENARIOS = {
    f.__name__: f
    for f in (
        one_after_the_other,
        pipelined_gets,
        no_wait_is_no_request,
        channel_closed_as_an_answer,
        connection_closed_as_an_answer,
        closed_in_peace,
        closes_that_cross,
        capture_begins_between_request_and_answer,
        both_sides_ask_the_same,
        no_answer,
        one_at_a_time_around_holes,
        answer_and_next_request_are_lost,
        pipelined_around_a_hole,
        pipelined_behind_lost_requests,
        refused_behind_a_hole,
        cut_in_front_of_its_no_wait,
        times_that_cannot_be,
    )
}


def random_connection(seed: int) -> tuple[Connection, list[dict[str, Any]]]:
    """Requests and answers at random, some answers without a request; a queue says what belongs together."""
    chance = random.Random(seed)
    c = Connection()
    expected: list[dict[str, Any]] = []
    waiting: dict[str, list[dict[str, Any]]] = {"basic.get": [], "queue.bind": []}
    gap = chance.choice([0, 0, 40000])  # now and then over several buckets
    number = 0
    for _ in range(chance.randint(1, 60)):
        number += 1 + chance.randint(0, gap)
        request = chance.choice(list(waiting))
        if chance.random() < 0.5:
            frame = c.client(request)
            row = {"request": request, "request_frame_no": number, "response_frame_no": None}
            expected.append(row)
            waiting[request].append(row)
        else:
            frame = c.server({"basic.get": "basic.get-empty", "queue.bind": "queue.bind-ok"}[request])
            if waiting[request]:
                waiting[request].pop(0)["response_frame_no"] = number
        c.frames[frame]["frame_no"] = number
    return c, expected


@pytest.fixture(scope="module")
def runs(spark):
    made = {name: scenario() for name, scenario in SCENARIOS.items()}
    made |= {f"random {seed}": random_connection(seed) for seed in range(80)}
    each = [connection for connection, _ in made.values()]
    frames, _, connections = tables(spark, each)
    result = rpcs(frames, connections, lost(spark, each))
    assert result.schema.simpleString() == schema("rpcs").simpleString()
    rows = collect(result, "connection_id", "request_frame_no")
    return {name: (rows.get(connection.id, []), expected) for name, (connection, expected) in made.items()}


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(runs, name):
    check(*runs[name])


def test_of_one_direction_alone_the_answers_are_missing(spark):
    c = Connection(closed_by="client-close")
    c.client("basic.get")
    c.client("channel.close", reply_code=200)
    other = Connection(closed_by="server-fin")
    other.server("connection.start", channel=0, epoch=0)  # nobody said anything to it
    frames, _, connections = tables(spark, [c, other])
    rows = collect(rpcs(frames, connections, mute(frames)), "request_frame_no")
    check(rows[c.id], [{"outcome": "none", "ended_by": "gap"}, {"outcome": "none", "ended_by": "gap"}])
    check(rows[other.id], [{"outcome": "none", "ended_by": "connection-close"}])


def test_random_conversations_agree_with_a_queue(runs):
    for name, (rows, expected) in runs.items():
        if name.startswith("random"):
            check(rows, expected)
