"""Requests and answers: what belongs together, what nobody answered, and what a gap makes unknown."""

from __future__ import annotations

import random
from collections import Counter
from functools import partial
from typing import Any

import pytest

from amqpscope.pipelines.amqp091.rpcs import Rpcs
from amqpscope.pipelines.model.walk import schema
from amqpscope.pipelines.requests import requests
from amqpscope.pipelines.run.engine import walked
from tests import reference
from tests.dissector.recordings import WHOLE, identities, ours, theirs
from tests.pipelines.scenario import TICK, Connection, arrow, by_connection, check
from tests.pipelines.walks.made_connections import ANSWERS, MadeConnection
from tests.pipelines.walks.properties import check_made, checked, rows_of

QUEUE_DECLARE, EXCHANGE_DECLARE, CONNECTION_OPEN, BASIC_PUBLISH, BASIC_GET = (
    {"class_id": a, "method_id": b} for a, b in ((50, 10), (40, 10), (10, 40), (60, 40), (60, 70))
)
"""What closes name."""
ALONE: list[dict[str, Any]] = [{"request": "basic.qos", "outcome": "ok"}] * 2
"""What `one_at_a_time` begins with."""


def one_at_a_time() -> Connection:
    """A client that shows that it asks one at a time."""
    c = Connection()
    for _ in ALONE:
        c.client("basic.qos", channel=9)
        c.server("basic.qos-ok", channel=9)
    return c


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
    c.client("queue.bind")  # pipelined after it: not what the close is about
    close = c.server("channel.close", reply_code=404, reply_text="NOT_FOUND - no queue", **QUEUE_DECLARE)
    c.client("queue.delete")
    c.client("channel.close-ok")
    return c, [
        {
            "outcome": "error",
            "reply_code": 404,
            "reply_text": "NOT_FOUND - no queue",
            "queue": "gone",
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
    c.server("connection.close", channel=0, epoch=0, reply_code=530, **CONNECTION_OPEN)
    return c, [
        {"request": "exchange.declare", "outcome": "none", "reply_code": None, "ended_by": "connection-close"},
        {"request": "connection.open", "outcome": "error", "reply_code": 530, "response": "connection.close"},
        {"request": "connection.close", "outcome": "none", "ended_by": "connection-close"},
    ]


def closed_in_peace() -> tuple[Connection, list[dict[str, Any]]]:
    c = Connection()
    c.server("channel.flow", active=True)
    close = c.client("channel.close", reply_code=200)
    c.server("channel.close-ok")
    return c, [{"outcome": "none", "ended_by": "channel-close", "end_ts_ns": close * TICK}, {"outcome": "ok"}]


def a_request_that_comes_late() -> tuple[Connection, list[dict[str, Any]]]:
    """The answer before it, in the order of frames, may be its own."""
    c = Connection(closed_by="client-close")
    c.client("channel.open")
    c.server("channel.open-ok")
    c.server("basic.cancel-ok", consumer_tag="c")
    c.client("basic.cancel", consumer_tag="c")
    c.delay(1)
    return c, [{"outcome": "ok"}, {"outcome": "none", "ended_by": "gap"}]


def a_frame_of_another_type() -> tuple[Connection, list[dict[str, Any]]]:
    """A content where none is expected may be a method, whose type was damaged."""
    c = Connection(closed_by="client-close")
    c.client("queue.delete", queue="q")
    c.frame(False)
    c.lose(from_client=False)
    c.anomalies[-1] |= {"frame_no": 1, "code": "content-unexpected"}
    return c, [{"outcome": "none", "ended_by": "gap"}]


def one_direction() -> tuple[Connection, list[dict[str, Any]]]:
    c = Connection(closed_by="server-rst", handshake_outcome="one-direction")
    c.server("connection.start", channel=0, epoch=0)
    return c, [{"outcome": "none", "ended_by": "gap"}]


def an_error_of_one_of_two() -> tuple[Connection, list[dict[str, Any]]]:
    """The answer to the first may be lost, so the error may be that of either."""
    c = Connection(closed_by="server-close")
    c.client("channel.flow", active=True)
    c.lose(from_client=False)
    c.client("channel.flow", active=False)
    c.server("connection.close", channel=0, epoch=0, reply_code=540, class_id=20, method_id=20)
    c.client("connection.close-ok", channel=0, epoch=0)
    unknown = {"outcome": "none", "ended_by": "gap"}
    return c, [unknown, unknown, {"outcome": "ok"}]


def closes_that_cross_one_of_which_is_missing() -> tuple[Connection, list[dict[str, Any]]]:
    """The client answers a close of the server that was not captured, nor what the server said before it."""
    c = Connection()
    c.frame(False, 0, 0, frame_type="heartbeat")
    c.client("queue.declare", queue="q")
    c.client("channel.close")
    answered = c.client("channel.close-ok")
    return c, [
        {"request": "queue.declare", "ended_by": "gap", "end_ts_ns": answered * TICK},
        {"request": "channel.close", "ended_by": "gap", "end_ts_ns": answered * TICK},
    ]


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
    c = one_at_a_time()
    c.client("queue.purge")
    c.client("queue.purge", channel=2)
    c.lose(from_client=True)
    cut = c.server(None, frame_type="method", is_partial=True)
    gap = c.lose(from_client=False)
    c.server("basic.deliver", is_partial=True)
    c.client("queue.purge")
    return c, [
        *ALONE,
        {"outcome": "none", "ended_by": "gap", "end_ts_ns": cut * TICK, "response": None, "response_frame_no": None},
        {"channel": 2, "outcome": "none", "ended_by": "gap", "end_ts_ns": gap * TICK},
        {"outcome": "none", "ended_by": "capture-end"},
    ]


def one_at_a_time_around_gaps() -> tuple[Connection, list[dict[str, Any]]]:
    c = one_at_a_time()
    c.client("basic.get")  # its answer is lost, which shows after the next request
    second = c.client("basic.get")
    gap = c.lose(from_client=False)
    answer = c.server("basic.get-empty")
    c.client("basic.qos")
    c.server("basic.get-empty")  # the request is lost
    c.lose(from_client=True)
    last = c.client("basic.get")
    c.server("basic.get-empty")
    return c, [
        *ALONE,
        {"outcome": "none", "ended_by": "gap", "end_ts_ns": gap * TICK, "latency_ns": None},
        {"request_frame_no": second, "outcome": "ok", "response_frame_no": answer},
        {"request": "basic.qos"},
        {"request_frame_no": last, "outcome": "ok", "response_frame_no": last + 1},
    ]


def answer_and_next_request_are_lost() -> tuple[Connection, list[dict[str, Any]]]:
    """What comes may be the answer to the other."""
    c = one_at_a_time()
    c.client("basic.get")
    gap = c.lose(from_client=False)
    c.server("basic.get-empty")
    c.lose(from_client=True)
    last = c.client("basic.get")
    c.server("basic.get-empty")
    return c, [
        *ALONE,
        {"outcome": "none", "ended_by": "gap", "end_ts_ns": gap * TICK, "response": None},
        {"request_frame_no": last, "outcome": "ok"},
    ]


def pipelined_around_a_gap() -> tuple[Connection, list[dict[str, Any]]]:
    """Which answer is lost nobody knows."""
    c = Connection()
    c.client("basic.get")
    c.client("basic.get")
    c.server("basic.get-empty")
    c.client("basic.get")
    gap = c.lose(from_client=False)
    c.server("basic.get-empty")
    c.client("basic.get")
    c.server("basic.get-empty")
    lost = {"outcome": "none", "ended_by": "gap", "latency_ns": None}
    return c, [
        {"outcome": "ok", "response_frame_no": 2},
        {**lost, "end_ts_ns": gap * TICK},
        {**lost, "end_ts_ns": gap * TICK},
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


def pipelined_for_the_first_time_behind_a_lost_request() -> tuple[Connection, list[dict[str, Any]]]:
    """What a side did before shows nothing any more once it asks otherwise."""
    c = one_at_a_time()
    c.lose(from_client=True)
    c.client("basic.get")
    c.client("basic.get")
    for _ in range(3):
        c.server("basic.get-empty")
    lost = {"request": "basic.get", "outcome": "none", "ended_by": "gap", "response": None}
    return c, [*ALONE, lost, lost]


def two_answers_behind_a_lost_request() -> tuple[Connection, list[dict[str, Any]]]:
    """The first is to the lost one, so that the side did not ask one at a time."""
    c = one_at_a_time()
    c.lose(from_client=True)
    c.client("basic.get")
    c.server("basic.get-empty")
    c.server("basic.get-empty")
    return c, [*ALONE, {"request": "basic.get", "outcome": "none", "ended_by": "gap", "response": None}]


def refused_behind_a_gap() -> tuple[Connection, list[dict[str, Any]]]:
    """The first had its answer: it is lost."""
    c = Connection()
    c.client("channel.open")
    gap = c.lose(from_client=False)
    c.server("basic.get-empty")
    c.client("queue.declare")
    c.server("channel.close", reply_code=404, **QUEUE_DECLARE)
    return c, [
        {"request": "channel.open", "outcome": "none", "ended_by": "gap", "end_ts_ns": gap * TICK},
        {"request": "queue.declare", "outcome": "error", "reply_code": 404},
        {"request": "channel.close"},
    ]


def refused_behind_a_gap_and_another_close_missing() -> tuple[Connection, list[dict[str, Any]]]:
    """The close may be the answer to either; that there was another one behind it says nothing else."""
    c = one_at_a_time()
    c.lose(True)
    c.client("queue.declare", queue="one")
    c.client("queue.declare", queue="two")
    c.server("channel.close", reply_code=404, reply_text="NOT_FOUND", **QUEUE_DECLARE)
    c.client("channel.close-ok")
    c.lose(True)
    c.lose(False)
    c.client("channel.close-ok")
    c.server("connection.close", channel=0, epoch=0, reply_code=320)
    either = {"request": "queue.declare", "outcome": "none", "ended_by": "gap"}
    closes = {"request": "channel.close", "outcome": "ok"}
    return c, [*ALONE, either, either, closes, {"request": "connection.close", "ended_by": "capture-end"}]


def cut_in_front_of_its_no_wait() -> tuple[Connection, list[dict[str, Any]]]:
    """Nobody knows whether it asks for an answer."""
    c = one_at_a_time()
    c.client("queue.delete", is_partial=True)
    asked = c.client("queue.delete", no_wait=False)
    answer = c.server("queue.delete-ok")
    return c, [*ALONE, {"request_frame_no": asked, "response_frame_no": answer}]


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
        closes_that_cross_one_of_which_is_missing,
        a_request_that_comes_late,
        a_frame_of_another_type,
        one_direction,
        an_error_of_one_of_two,
        capture_begins_between_request_and_answer,
        both_sides_ask_the_same,
        no_answer,
        one_at_a_time_around_gaps,
        answer_and_next_request_are_lost,
        pipelined_around_a_gap,
        pipelined_behind_lost_requests,
        pipelined_for_the_first_time_behind_a_lost_request,
        two_answers_behind_a_lost_request,
        refused_behind_a_gap,
        refused_behind_a_gap_and_another_close_missing,
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


MADE = {name: scenario() for name, scenario in SCENARIOS.items()}
RANDOM = [random_connection(seed) for seed in range(80)]


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(name):
    check_made(Rpcs, [MADE[name]], "request_frame_no", sizes=())


def test_random_connections_agree_with_a_queue():
    check_made(Rpcs, RANDOM, "request_frame_no", sizes=())


def test_rows_depend_on_nothing_but_events():
    check_made(Rpcs, MADE.values(), "request_frame_no")
    assert walked(arrow([MADE["pipelined_gets"][0]]), [Rpcs()])["rpcs"].schema == schema("rpcs")


def test_connections_change_nothing_for_each_other():
    connections = [connection for connection, _ in (*MADE.values(), *RANDOM)]
    alone = [row for connection in connections for row in rows_of(Rpcs, arrow([connection]))]
    assert rows_of(Rpcs, arrow(connections)) == sorted(alone, key=repr)


@pytest.mark.compiled
def test_compiled_rows_are_the_same():
    lossy = [made_connection(seed, 4).captured(0.1) for seed in range(20)]
    tables = arrow([*(connection for connection, _ in (*MADE.values(), *RANDOM)), *lossy])
    expected = rows_of(Rpcs, tables, 1 << 20)
    assert rows_of(partial(Rpcs, True), tables) == rows_of(partial(Rpcs, True), tables, 7, stop=True) == expected


def made_connection(seed: int, at_once: int, kinds: tuple[str, ...] = tuple(ANSWERS)) -> MadeConnection:
    return MadeConnection(random.Random(seed), at_once, list(kinds)).talk(60)


KINDS = (("basic.get",), ("queue.declare", "basic.consume"), tuple(ANSWERS))
LOSSES = ((0.0, (True, False)), (0.03, (False,)), (0.03, (True,)), (0.03, (True, False)), (0.15, (True, False)))
AT_LEAST = {1: (1, 0.99, 0.9, 0.9, 0.45), 2: (1, 0.6, 0.3, 0.3, 0.05), 4: (1, 0.6, 0.3, 0.3, 0.04)}
"""Share of the pairs both ends of which were captured that are found, by how many are asked at once, for LOSSES."""


@pytest.mark.sampled(6)
@pytest.mark.parametrize("at_once", AT_LEAST)
@pytest.mark.parametrize("kinds", KINDS, ids=len)
def test_loss_pairs_nothing_that_does_not_belong_together(at_once, kinds):
    for (losing, sides), share in zip(LOSSES, AT_LEAST[at_once], strict=True):
        connections = [made_connection(seed, at_once, kinds) for seed in range(40)]
        captured = [each.captured(losing, sides=sides) for each in connections]
        rows = by_connection(walked(arrow(captured), [Rpcs()])["rpcs"], "request_frame_no")
        right, lacking, wrong = map(
            sum,
            zip(*(each.judged(rows.get(c.id, [])) for each, c in zip(connections, captured, strict=True)), strict=True),
        )
        assert wrong == 0
        assert right / (right + lacking) >= share


def test_loss_in_any_batches():
    captured = [made_connection(seed, at_once).captured(0.05) for seed in range(2) for at_once in (1, 2, 4)]
    checked(Rpcs, arrow(captured), (2, 7))


def test_of_one_direction_alone_the_answers_are_missing():
    c = Connection(closed_by="client-close")
    c.client("basic.get")
    c.client("channel.close", reply_code=200)
    other = Connection(closed_by="server-fin")
    other.server("connection.start", channel=0, epoch=0)  # nobody sent anything to it
    rows = by_connection(walked(arrow([c, other]), [Rpcs()])["rpcs"], "request_frame_no")
    check(rows[c.id], [{"outcome": "none", "ended_by": "gap"}, {"outcome": "none", "ended_by": "gap"}])
    check(rows[other.id], [{"outcome": "none", "ended_by": "connection-close"}])


def rows_alone(c: Connection) -> list[dict[str, Any]]:
    return sorted(checked(Rpcs, arrow([c])), key=lambda row: row["request_frame_no"])


def test_what_is_evicted(monkeypatch):
    monkeypatch.setattr(requests, "OPEN_AT_MOST", 2)
    c = Connection()
    for _ in range(4):
        c.client("basic.get")
    for _ in range(4):
        c.server("basic.get-empty")
    check(
        rows_alone(c),
        [
            {"outcome": "none", "ended_by": "evicted", "end_ts_ns": 2 * TICK},
            {"outcome": "none", "ended_by": "evicted", "end_ts_ns": 3 * TICK},
            {"outcome": "ok", "response_frame_no": 6},
            {"outcome": "ok", "response_frame_no": 7},
        ],
    )


def test_answers_that_are_held_at_most(monkeypatch):
    monkeypatch.setattr(requests, "HELD_AT_MOST", 2)
    c = Connection()
    for _ in range(5):
        c.client("basic.get")
    c.lose(from_client=False)
    for _ in range(5):
        c.server("basic.get-empty")
    last = c.client("basic.get")
    c.server("basic.get-empty")
    lost = {"outcome": "none", "ended_by": "gap", "end_ts_ns": 5 * TICK}
    check(rows_alone(c), [lost] * 5 + [{"request_frame_no": last, "outcome": "none", "ended_by": "gap"}])


def test_a_pipelined_burst_around_a_gap_in_which_nothing_of_it_was_lost():
    c = Connection()
    for _ in range(3):
        c.client("basic.get")
    c.server("basic.get-empty")
    c.lose(from_client=False)
    c.server("basic.get-empty")
    c.server("basic.get-empty")
    c.client("basic.get")
    check(rows_alone(c), [{"response_frame_no": n} for n in (3, 4, 5)] + [{"ended_by": "capture-end"}])


def test_the_content_of_answers_shows_whose_they_are():
    c = Connection()
    for name in ("a", "b", "c", "d"):
        c.client("queue.declare", queue=name)
    c.client("basic.consume", consumer_tag="x")
    c.client("basic.consume", consumer_tag="")
    c.lose(from_client=False)
    c.server("queue.declare-ok", queue="c")
    c.server("queue.declare-ok", queue="d")
    c.server("basic.consume-ok", consumer_tag="y")
    c.client("queue.declare", queue="e")
    c.client("basic.consume", consumer_tag="z")
    lost = {"outcome": "none", "ended_by": "gap", "end_ts_ns": 6 * TICK}
    check(
        rows_alone(c),
        [
            lost,
            lost,
            {"queue": "c", "outcome": "ok", "response_frame_no": 6},
            {"queue": "d", "outcome": "ok", "response_frame_no": 7},
            {"request": "basic.consume", **lost},
            {"request": "basic.consume", "outcome": "ok", "response_frame_no": 8},
            {"ended_by": "capture-end"},
            {"ended_by": "capture-end"},
        ],
    )


def test_an_error_is_of_the_method_that_the_close_names():
    c = Connection()
    c.publish(None, exchange="gone")
    c.client("queue.declare", queue="q")
    c.client("basic.get", queue="q", channel=2)
    close = c.server("channel.close", reply_code=404, reply_text="no exchange", **BASIC_PUBLISH)
    c.server("connection.close", channel=0, epoch=0, reply_code=541, reply_text="INTERNAL", **BASIC_GET)
    check(
        rows_alone(c),
        [
            {"request": "queue.declare", "outcome": "none", "ended_by": "channel-close", "end_ts_ns": close * TICK}
            | {"reply_code": None, "reply_text": None},
            {"request": "basic.get", "outcome": "error", "reply_code": 541, "reply_text": "INTERNAL", "queue": "q"},
            {"request": "channel.close", "reply_text": None},
            {"request": "connection.close"},
        ],
    )


def test_a_close_that_is_cut_may_be_the_error_of_any():
    c = Connection()
    c.client("queue.declare", queue="q")
    c.client("queue.declare", queue="q", channel=2)
    first = c.server("channel.close", reply_code=404, is_partial=True)
    second = c.server("connection.close", channel=0, epoch=0, is_partial=True)
    check(
        rows_alone(c),
        [
            {"outcome": "none", "ended_by": "gap", "end_ts_ns": first * TICK},
            {"outcome": "none", "ended_by": "gap", "end_ts_ns": second * TICK},
            {"request": "channel.close"},
            {"request": "connection.close"},
        ],
    )


def test_a_close_that_was_answered_but_not_seen_may_be_the_error_of_any():
    c = Connection(closed_by="server")
    c.client("queue.declare", queue="q")
    c.client("queue.declare", queue="q", channel=2)
    first = c.client("channel.close-ok")
    second = c.client("connection.close-ok", channel=0, epoch=0)
    c.server("heartbeat", channel=0, epoch=0)
    check(
        rows_alone(c),
        [
            {"outcome": "none", "ended_by": "gap", "end_ts_ns": first * TICK},
            {"outcome": "none", "ended_by": "gap", "end_ts_ns": second * TICK},
        ],
    )


def test_an_error_of_one_of_several_channels_is_of_none():
    c = Connection()
    c.client("basic.get", channel=1)
    c.client("basic.get", channel=2)
    c.server("connection.close", channel=0, epoch=0, reply_code=541, **BASIC_GET)
    check(rows_alone(c), [{"outcome": "none", "ended_by": "connection-close"}] * 2 + [{"request": "connection.close"}])


def test_a_channel_that_is_opened_anew():
    c = Connection()
    c.client("channel.open", epoch=1)
    c.server("channel.open-ok", epoch=1)
    c.client("basic.get", epoch=1)
    c.client("channel.open", epoch=2)
    again = c.server("channel.open-ok", epoch=2)
    c.client("basic.get", epoch=2)
    c.server("basic.get-empty", epoch=2)
    c.client("channel.open", epoch=3)
    check(
        rows_alone(c),
        [
            {"outcome": "ok"},
            {"outcome": "none", "ended_by": "gap", "end_ts_ns": again * TICK},
            {"request": "channel.open", "outcome": "ok"},
            {"channel_epoch": 2, "outcome": "ok", "response_frame_no": 6},
            {"channel_epoch": 3, "outcome": "none", "ended_by": "capture-end"},
        ],
    )


def test_a_channel_that_was_closed_is_open_again_where_the_server_says_so():
    """The channel.open of the next epoch is cut."""
    c = Connection()
    c.server("channel.close", epoch=1, reply_code=404)
    c.client("channel.close-ok", epoch=1)
    c.frame(True, epoch=1, frame_type="method", is_partial=True)
    c.server("channel.open-ok", epoch=1)
    c.client("basic.get", epoch=1)
    c.client("connection.close", channel=0, epoch=0, reply_code=200)
    found = {row["request"]: row["ended_by"] for row in rows_alone(c)}
    assert found["basic.get"] == "gap"


def test_a_client_closes_a_channel_before_it_is_open():
    """It sends all at once; the server answers the channel.open behind the close, and nothing is missing."""
    c = Connection()
    c.client("channel.open", epoch=1)
    c.client("basic.consume", epoch=1, queue="q")
    c.client("channel.close", epoch=1, reply_code=200)
    c.server("channel.open-ok", epoch=1)
    c.server("channel.close", epoch=1, reply_code=404)
    c.client("connection.close", channel=0, epoch=0, reply_code=200)
    found = {row["request"]: row["ended_by"] for row in rows_alone(c)}
    assert found["basic.consume"] == "channel-close"


def test_a_close_behind_a_close_is_answered():
    """Each side answers the close of the other one, also behind its own: this one is cut, or behind the capture."""
    c = Connection()
    c.client("connection.close", channel=0, epoch=0, reply_code=200)
    c.server("connection.close", channel=0, epoch=0, reply_code=540)
    c.frame(True, 0, 0, frame_type="method", is_partial=True)
    assert [row["ended_by"] for row in rows_alone(c)] == ["capture-end", "gap"]
    c = Connection()
    c.client("connection.close", channel=0, epoch=0, reply_code=200)
    c.server("connection.close", channel=0, epoch=0, reply_code=540)
    assert [row["ended_by"] for row in rows_alone(c)] == ["capture-end", "capture-end"]
    c.columns["closed_by"] = "client-fin"
    assert [row["ended_by"] for row in rows_alone(c)] == ["connection-close", "discarded"]


def test_what_comes_late_may_answer_a_channel_that_was_opened_twice_since():
    c = Connection()
    c.client("channel.open", epoch=1)
    c.server("channel.open-ok", epoch=1)
    for epoch in range(1, 5):
        if epoch > 1:
            c.client("channel.open", epoch=epoch)
        c.client("basic.get", epoch=epoch)
        c.client("channel.close", epoch=epoch)
    c.lose(from_client=False)  # the answers of all are read now, where a length was damaged
    c.server("basic.get-empty", epoch=4)
    check(rows_alone(c), [{"outcome": "ok"}, *[{"outcome": "none", "ended_by": "gap"}] * 11])


def test_nothing_came_late_where_the_server_goes_on_without_a_gap():
    c = Connection()
    for epoch in range(1, 5):
        c.client("channel.open", epoch=epoch)
        if epoch == 1:
            c.server("channel.open-ok", epoch=1)
            asked = c.client("basic.get", epoch=1)
            closed = c.client("channel.close", epoch=1)
    c.server("connection.start", channel=0, epoch=0)
    found = {row["request_frame_no"]: row for row in rows_alone(c)}
    assert (found[asked]["ended_by"], found[asked]["end_ts_ns"]) == ("channel-close", closed * TICK)


def test_queues_that_requests_name():
    c = Connection()
    c.client("basic.get", queue="")  # declared before the capture
    c.client("queue.declare", queue="first", no_wait=True)
    c.client("queue.bind", queue="")
    c.client("queue.declare", queue="")
    c.client("basic.consume", queue="")  # nobody knows the name yet
    c.client("basic.get", queue="", channel=2)
    c.server("queue.declare-ok", queue="amq.gen-1")
    c.client("basic.consume", queue="")
    c.client("basic.qos")
    c.lose(from_client=True)
    c.client("queue.purge", queue="")  # another may be declared
    c.client("queue.purge", queue="named")
    check(
        rows_alone(c),
        [
            {"request": "basic.get", "queue": None},
            {"request": "queue.bind", "queue": "first"},
            {"request": "queue.declare", "queue": "amq.gen-1"},
            {"request": "basic.consume", "queue": None},
            {"request": "basic.get", "channel": 2, "queue": None},
            {"request": "basic.consume", "queue": "amq.gen-1"},
            {"request": "basic.qos", "queue": None},
            {"request": "queue.purge", "queue": None},
            {"request": "queue.purge", "queue": "named"},
        ],
    )


def test_queues_of_which_many_are_declared():
    c = Connection()
    for number in range(20):
        c.client("queue.declare", queue=f"q{number}")
        c.server("queue.declare-ok", queue=f"q{number}")
        c.client("queue.bind", queue="")
    rows = rows_alone(c)
    assert [row["queue"] for row in rows if row["request"] == "queue.bind"] == [f"q{number}" for number in range(20)]


def test_more_answers_than_requests():
    """Behind a gap; the client shows only later that it asks one at a time."""
    c = Connection()
    c.client("queue.declare", queue="a")
    c.lose(from_client=False)
    for name in ("a", "x", "x"):
        c.server("queue.declare-ok", queue=name)
    third = c.client("queue.declare", queue="c")
    for _ in ALONE:
        c.client("basic.qos", channel=9)
        c.server("basic.qos-ok", channel=9)
    last = c.client("queue.declare", queue="d")
    check(
        rows_alone(c),
        [
            {"queue": "a", "outcome": "ok", "response_frame_no": 1},
            {"request_frame_no": third, "queue": "c", "outcome": "none", "ended_by": "gap"},
            *ALONE,
            {"request_frame_no": last, "queue": "d", "outcome": "none", "ended_by": "capture-end"},
        ],
    )


def test_state_of_something_else():
    with pytest.raises(ValueError, match="not a state of rpcs"):
        Rpcs().put_back(b"something")


COLUMNS = (
    "channel", "channel_epoch", "from_client", "request", "response", "reply_code", "outcome", "ended_by", "end_ts_ns",
    "latency_ns", "request_frame_no", "request_packet", "request_ts_ns", "response_frame_no", "response_packet",
    "response_ts_ns",
)  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize("capture", WHOLE, ids=lambda path: path.stem)
def test_recordings_against_the_reference(capture):
    tables, connections = ours(capture), identities(capture)
    rows = rows_of(Rpcs, tables, 100)
    spoken = {connections[identity] for identity in tables["amqp091_frames"]["connection_id"].to_pylist()}
    expected = [row for row in reference.rpcs(theirs(capture)) if row["connection"] in spoken]
    mine = Counter((connections[row["connection_id"]], *(row[name] for name in COLUMNS)) for row in rows)
    assert mine == Counter((row["connection"], *(row[name] for name in COLUMNS)) for row in expected)
