"""Waits for prefetch windows, which the walk over deliveries writes as well."""

from __future__ import annotations

import random
from typing import Any

import pytest

from amqpscope.pipelines.amqp091.settlements.settlements import Settlements
from amqpscope.pipelines.run.engine import walked
from tests.pipelines.scenario import TICK, Connection, arrow, by_connection, check

MS = 1_000_000
# Each scenario gives a connection and, for each interval in the order of beginnings, the columns that must be.


def consume(c: Connection, limit: int | None, consumer: str = "c", everyone: bool = False, **where: int) -> int:
    if limit is not None:
        c.client("basic.qos", prefetch_count=limit, **{"global": everyone}, **where)
        c.server("basic.qos-ok", **where)
    c.client("basic.consume", consumer_tag=consumer, queue="q", no_ack=False, **where)
    return c.server("basic.consume-ok", consumer_tag=consumer, **where)


def full_window() -> tuple[Connection, list[dict[str, Any]]]:
    c = Connection()
    consume(c, 2)
    c.deliver(1)
    start = c.deliver(2)
    end = c.ack(1, client=True)
    again = c.deliver(3)
    done = c.ack(3, True, client=True)
    return c, [
        {
            "cause": "prefetch",
            "channel": 1,
            "channel_epoch": 1,
            "consumer_tag": "c",
            "side": "client",
            "start_frame_no": start,
            "end_frame_no": end,
            "evidence": "proven",
            "duration_ns": (end - start) * TICK,
        },
        {"start_frame_no": again, "end_frame_no": done, "evidence": "possible"},  # nothing came
    ]


def delivery_too_late_for_a_proof() -> tuple[Connection, list[dict[str, Any]]]:
    c = Connection(rtt_ns=TICK)
    consume(c, 1)
    c.deliver(1)
    acked = c.ack(1, client=True)
    c.deliver(2, ts_ns=acked * TICK + MS + 1)
    acked = c.ack(2, client=True)
    c.deliver(3, ts_ns=acked * TICK + MS)
    return c, [{"evidence": "possible"}, {"evidence": "proven"}, {"evidence": "possible", "end_frame_no": None}]


def two_slow_round_trips_are_soon() -> tuple[Connection, list[dict[str, Any]]]:
    c = Connection(rtt_ns=3 * MS)
    consume(c, 1)
    c.deliver(1)
    acked = c.ack(1, client=True)
    c.deliver(2, ts_ns=acked * TICK + 6 * MS)
    return c, [{"evidence": "proven"}, {"evidence": "possible", "end_frame_no": None}]


def round_trip_unknown() -> tuple[Connection, list[dict[str, Any]]]:
    c = Connection(rtt_ns=None)
    consume(c, 1)
    c.deliver(1)
    acked = c.ack(1, client=True)
    c.deliver(2, ts_ns=acked * TICK + MS)
    acked = c.ack(2, client=True)
    c.deliver(3, ts_ns=acked * TICK + MS + 1)
    c.ack(3, client=True)
    return c, [{"evidence": "proven"}, {"evidence": "possible"}, {"evidence": "possible"}]


def qos_is_for_later_consumers() -> tuple[Connection, list[dict[str, Any]]]:
    c = Connection()
    consume(c, None, "unlimited")
    consume(c, 1, "one")
    c.client("basic.qos", prefetch_count=5)
    c.deliver(1, "unlimited")
    c.deliver(2, "unlimited")
    start = c.deliver(3, "one")
    end = c.ack(3, client=True)
    return c, [{"consumer_tag": "one", "start_frame_no": start, "end_frame_no": end}]


def for_the_whole_channel() -> tuple[Connection, list[dict[str, Any]]]:
    c = Connection()
    consume(c, None, "a")
    consume(c, None, "b")
    c.deliver(1, "a")
    start = c.client("basic.qos", prefetch_count=1, **{"global": True})
    c.server("basic.qos-ok")
    c.message("get", delivery_tag=2, no_ack=False)
    end = c.client("basic.qos", prefetch_count=3, **{"global": True})
    c.deliver(3, "b")
    c.deliver(5, "b", no_ack=True)
    full = c.deliver(4, "a")
    c.ack(2, client=True)  # got: does not count
    opened = c.ack(1, client=True)
    return c, [
        {"consumer_tag": None, "channel": 1, "start_frame_no": start, "end_frame_no": end, "evidence": "possible"},
        {"consumer_tag": None, "start_frame_no": full, "end_frame_no": opened},
    ]


def cancelled_while_full() -> tuple[Connection, list[dict[str, Any]]]:
    c = Connection()
    consume(c, 1)
    start = c.deliver(1)
    end = c.client("basic.cancel", consumer_tag="c", no_wait=False)
    c.server("basic.cancel-ok", consumer_tag="c")
    c.ack(1, client=True)
    return c, [{"start_frame_no": start, "end_frame_no": end, "evidence": "possible"}]


def opened_by_recover() -> tuple[Connection, list[dict[str, Any]]]:
    c = Connection()
    consume(c, 2)
    c.deliver(1)
    start = c.deliver(2)
    c.client("basic.recover", requeue=True)
    end = c.server("basic.recover-ok")
    c.deliver(3)
    again = c.deliver(4)
    return c, [{"start_frame_no": start, "end_frame_no": end}, {"start_frame_no": again, "end_frame_no": None}]


def closed_while_full() -> tuple[Connection, list[dict[str, Any]]]:
    c = Connection()
    consume(c, 1)
    c.deliver(1)
    close = c.client("channel.close")
    c.server("channel.close-ok")
    c.ack(1, client=True)  # too late
    c.client("channel.open", epoch=2)
    consume(c, 1, epoch=2)
    start = c.deliver(1, epoch=2)
    return c, [
        {"channel_epoch": 1, "end_frame_no": close, "evidence": "possible"},
        {"channel_epoch": 2, "start_frame_no": start, "end_frame_no": None},
    ]


def after_a_gap_nobody_knows() -> tuple[Connection, list[dict[str, Any]]]:
    c = Connection()
    consume(c, 2)
    c.deliver(1)
    full = c.deliver(2)
    c.lose(from_client=True)  # acknowledgements may be lost
    c.client("basic.qos", prefetch_count=2)
    c.deliver(3)
    again = c.deliver(4)
    opened = c.ack(4, True, client=True)
    return c, [
        {"start_frame_no": full, "end_frame_no": None, "end_ts_ns": None, "duration_ns": None},
        {"start_frame_no": again, "end_frame_no": opened},
    ]


def nothing_more_after_a_gap_until_the_connection_closes() -> tuple[Connection, list[dict[str, Any]]]:
    """The acknowledgement may be lost: that the connection closes says nothing of when the wait ended."""
    c = Connection(closed_by="client-close")
    consume(c, 1)
    full = c.deliver(1)
    c.lose(from_client=True)
    c.client("connection.close", channel=0, epoch=0)
    c.server("connection.close-ok", channel=0, epoch=0)
    return c, [{"start_frame_no": full, "end_frame_no": None, "duration_ns": None}]


def nothing_more_after_a_gap_at_all() -> tuple[Connection, list[dict[str, Any]]]:
    c = Connection(closed_by="client-fin")
    consume(c, 1)
    full = c.deliver(1)
    c.lose(from_client=True)
    c.client("basic.qos", channel=2, prefetch_count=2)
    c.server("basic.qos-ok", channel=2)
    return c, [{"start_frame_no": full, "end_frame_no": None, "duration_ns": None}]


def acknowledged_whole_where_deliveries_are_cut() -> tuple[Connection, list[dict[str, Any]]]:
    c = Connection()
    consume(c, 1)
    full = c.deliver(1)
    c.lose(from_client=False)
    opened = c.ack(1, client=True, ts_ns=50 * MS)
    return c, [{"start_frame_no": full, "end_frame_no": opened, "duration_ns": 50 * MS - full * TICK}]


def in_a_transaction() -> tuple[Connection, list[dict[str, Any]]]:
    c = Connection()
    c.client("channel.open")
    c.server("channel.open-ok")
    consume(c, 1)
    c.client("tx.select")
    c.server("tx.select-ok")
    full = c.deliver(1)
    c.ack(1, client=True)
    c.client("tx.commit")
    opened = c.server("tx.commit-ok")
    return c, [{"start_frame_no": full, "end_frame_no": opened}]


SCENARIOS = {
    f.__name__: f
    for f in (
        full_window,
        delivery_too_late_for_a_proof,
        two_slow_round_trips_are_soon,
        round_trip_unknown,
        qos_is_for_later_consumers,
        for_the_whole_channel,
        cancelled_while_full,
        opened_by_recover,
        closed_while_full,
        after_a_gap_nobody_knows,
        nothing_more_after_a_gap_until_the_connection_closes,
        nothing_more_after_a_gap_at_all,
        acknowledged_whole_where_deliveries_are_cut,
        in_a_transaction,
    )
}


def random_connection(seed: int) -> tuple[Connection, list[dict[str, Any]]]:
    """Two consumers with windows of their own; a loop counts what is outstanding after each frame."""
    chance = random.Random(seed)
    c = Connection()
    limits = {"a": chance.randint(0, 3), "b": chance.randint(1, 4)}
    for consumer, limit in limits.items():
        consume(c, limit, consumer)
    owner: dict[int, str] = {}
    outstanding: dict[str, set[int]] = {"a": set(), "b": set()}
    running: dict[str, dict[str, Any] | None] = {"a": None, "b": None}
    expected = []
    for tag in range(1, chance.randint(3, 30)):
        consumer = chance.choice("ab")
        frame = c.deliver(tag, consumer)
        owner[tag] = consumer
        outstanding[consumer].add(tag)
        frames = [frame]
        if chance.random() < 0.6:
            number, many = chance.randint(1, tag), chance.random() < 0.5
            frames.append(c.ack(number, many, client=True))
        for frame in frames:
            if frame is not frames[0]:
                for each in outstanding.values():
                    each -= {t for t in each if t == number or (many and t <= number)}
            for name, limit in limits.items():
                full = 0 < limit <= len(outstanding[name])
                row = running[name]
                if full and row is None:
                    running[name] = {"consumer_tag": name, "start_frame_no": frame, "end_frame_no": None}
                    expected.append(running[name])
                elif not full and row is not None:
                    row["end_frame_no"] = frame
                    running[name] = None
    return c, expected


MADE = {name: scenario() for name, scenario in SCENARIOS.items()}
MADE |= {f"random {seed}": random_connection(seed) for seed in range(100)}
ORDER = ("connection_id", "start_frame_no")


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(name):
    connection, expected = MADE[name]
    rows = walked(arrow([connection]), [Settlements()])["flow_control"]
    check(by_connection(rows, *ORDER).get(connection.id, []), expected)


@pytest.mark.parametrize(("size", "step"), [(1, 5), (7, 3), (1 << 17, 1)])
def test_batches_of_any_size(size, step):
    made = list(MADE.values())[::step]
    rows = by_connection(walked(arrow([c for c, _ in made]), [Settlements()], size)["flow_control"], *ORDER)
    for connection, expected in made:
        check(rows.get(connection.id, []), expected)
