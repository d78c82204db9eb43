from __future__ import annotations

import random
from typing import Any

import pytest

from amqpscope.pipelines.flow_control import flow_control, zero_windows
from amqpscope.pipelines.schemas import schema
from amqpscope.pipelines.settlements import settlements
from tests.pipelines.scenario import TICK, Connection, check, collect, lost, table, tables

# Each scenario gives a connection and, for each interval in the order of beginnings, the columns that must be.
# Round trips are 10 ticks, and a delivery is three.


def consume(c: Connection, limit: int | None, consumer: str = "c", everyone: bool = False, **where: int) -> int:
    if limit is not None:
        c.client("basic.qos", prefetch_count=limit, **{"global": everyone}, **where)
        c.server("basic.qos-ok", **where)
    c.client("basic.consume", consumer_tag=consumer, queue="q", no_ack=False, **where)
    return c.server("basic.consume-ok", consumer_tag=consumer, **where)


def blocked() -> tuple[Connection, list[dict[str, Any]]]:
    c = Connection()
    start = c.server("connection.blocked", channel=0, epoch=0)
    c.publish(None)
    c.server("connection.blocked", channel=0, epoch=0)
    end = c.server("connection.unblocked", channel=0, epoch=0)
    again = c.server("connection.blocked", channel=0, epoch=0)
    c.publish(None)
    return c, [
        {
            "cause": "connection-blocked",
            "channel": None,
            "channel_epoch": None,
            "consumer_tag": None,
            "start_frame_no": start,
            "start_packet": start + 1,
            "start_capture": "a.pcap",
            "start_ts_ns": start * TICK,
            "end_frame_no": end,
            "end_packet": end + 1,
            "end_capture": "a.pcap",
            "end_ts_ns": end * TICK,
            "duration_ns": (end - start) * TICK,
            "side": "server",
            "evidence": "proven",
        },
        {"start_frame_no": again, "end_frame_no": None, "end_ts_ns": None, "duration_ns": c.end - again * TICK},
    ]


def blocked_until_closed() -> tuple[Connection, list[dict[str, Any]]]:
    c = Connection(closed_by="client")
    start = c.server("connection.blocked", channel=0, epoch=0)
    close = c.client("connection.close", channel=0, epoch=0)
    c.server("connection.close-ok", channel=0, epoch=0)
    return c, [{"start_frame_no": start, "end_frame_no": close, "end_ts_ns": close * TICK}]


def channel_flow() -> tuple[Connection, list[dict[str, Any]]]:
    c = Connection()
    c.client("channel.flow", active=False)
    c.server("channel.flow-ok", active=False)
    other = c.server("channel.flow", active=False, channel=2)
    c.client("channel.flow-ok", active=False, channel=2)
    end = c.client("channel.flow", active=True)
    c.server("channel.flow", active=True)
    return c, [
        {"cause": "channel-flow", "channel": 1, "side": "client", "evidence": "proven", "end_frame_no": end},
        {"cause": "channel-flow", "channel": 2, "side": "server", "start_frame_no": other, "end_frame_no": None},
    ]


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
    c.ack(1, client=True)
    c.deliver(2)  # three ticks later
    return c, [{"evidence": "possible"}, {"evidence": "possible", "end_frame_no": None}]


def round_trip_unknown() -> tuple[Connection, list[dict[str, Any]]]:
    c = Connection(rtt_ns=None)
    consume(c, 1)
    c.deliver(1)
    c.ack(1, client=True)
    c.deliver(2)
    c.ack(2, client=True)
    return c, [{"evidence": "possible"}, {"evidence": "possible"}]


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


SCENARIOS = {
    f.__name__: f
    for f in (
        blocked,
        blocked_until_closed,
        channel_flow,
        full_window,
        delivery_too_late_for_a_proof,
        round_trip_unknown,
        qos_is_for_later_consumers,
        for_the_whole_channel,
        cancelled_while_full,
        opened_by_recover,
        closed_while_full,
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


@pytest.fixture(scope="module")
def runs(spark, tmp_path_factory):
    made = {name: scenario() for name, scenario in SCENARIOS.items()}
    made |= {f"random {seed}": random_connection(seed) for seed in range(60)}
    frames, messages, connections = tables(spark, [connection for connection, _ in made.values()])
    settled = str(tmp_path_factory.mktemp("settlements") / "settlements")
    settlements(frames, messages, connections).write.parquet(settled)
    result = flow_control(frames, spark.read.parquet(settled), connections)
    assert result.schema.simpleString() == schema("flow_control").simpleString()
    rows = collect(result, "connection_id", "start_frame_no")
    return {name: (rows.get(connection.id, []), expected) for name, (connection, expected) in made.items()}


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(runs, name):
    check(*runs[name])


def test_random_windows_agree_with_a_count(runs):
    for name, (rows, expected) in runs.items():
        if name.startswith("random"):
            check(rows, expected)


def test_nobody_knows_what_goes_on_behind_a_hole(spark):
    c = Connection()
    consume(c, 2)
    c.deliver(1)
    full = c.deliver(2)
    hole = c.lose(from_client=True)  # acknowledgements may be lost
    c.client("basic.qos", prefetch_count=2)
    c.deliver(3)
    again = c.deliver(4)
    opened = c.ack(4, True, client=True)
    blocked = c.server("connection.blocked", channel=0, epoch=0)
    c.lose(from_client=False)
    c.server("connection.unblocked", channel=0, epoch=0)
    frames, messages, connections = tables(spark, [c])
    places = lost(spark, [c])
    settled = settlements(frames, messages, connections, places)
    rows = collect(flow_control(frames, settled, connections, places), "start_frame_no")[c.id]
    check(
        rows,
        [
            {"start_frame_no": full, "end_frame_no": None, "end_ts_ns": None, "duration_ns": (hole - full) * TICK},
            {"start_frame_no": again, "end_frame_no": opened},
            {"start_frame_no": blocked, "end_frame_no": None, "duration_ns": TICK},
        ],
    )


def test_windows_of_nothing(spark):
    c = Connection(last_ts_ns=90 * TICK)
    place = {"connection_id": c.id, "start_capture": "a.pcap", "start_packet": 3, "start_ts_ns": 10 * TICK}
    done = {"end_capture": "b.pcap", "end_packet": 1, "end_ts_ns": 25 * TICK}
    windows = [
        place | done | {"kind": "zero", "from_client": True},
        place | done | {"kind": "full", "from_client": True},  # a window that is used up is no window of nothing
        place | {"kind": "zero", "from_client": False, "start_ts_ns": 30 * TICK},
    ]
    rows = zero_windows(table(spark, "tcp_windows", windows), tables(spark, [c])[2])
    one = {"cause": "zero-window", "channel": None, "start_frame_no": None, "evidence": "proven"}
    check(
        collect(rows, "start_ts_ns")[c.id],
        [
            one | place | done | {"side": "client", "duration_ns": 15 * TICK},
            one | {"side": "server", "end_ts_ns": None, "end_packet": None, "duration_ns": 60 * TICK},
        ],
    )
