from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from amqpscope.pipelines.amqp091.flow_control import FlowControl
from amqpscope.pipelines.connections.zero_windows import ZeroWindows
from amqpscope.pipelines.model.walk import schema
from amqpscope.pipelines.run.engine import batches
from amqpscope.pipelines.run.preparing import with_tcp
from tests.pipelines.scenario import TICK, Connection, arrow, arrow_table, check
from tests.pipelines.walks.properties import check_made, checked, rows_of

Made = tuple[Connection, list[dict[str, Any]]]

# Each scenario gives a connection and, for each interval in the order of beginnings, the columns that must be.


def hold(c: Connection, why: str = "low on memory") -> int:
    return c.server("connection.blocked", channel=0, epoch=0, reason=why)


def release(c: Connection) -> int:
    return c.server("connection.unblocked", channel=0, epoch=0)


def close(c: Connection, *, client: bool = False, **columns: Any) -> int:
    return c.frame(client, 0, 0, method="connection.close", **({"reply_code": 200} | columns))


NOT_IMPLEMENTED = {"reply_code": 540, "class_id": 20, "method_id": 20}


def blocked() -> Made:
    c = Connection()
    start = hold(c)
    c.publish(None)
    hold(c, "low on disk")
    end = release(c)
    again = hold(c, "low on disk")
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
            "reason": "low on memory",
        },
        {
            "start_frame_no": again,
            "end_frame_no": None,
            "end_ts_ns": None,
            "duration_ns": c.end - again * TICK,
            "reason": "low on disk",
        },
    ]


def blocked_until_closed() -> Made:
    c = Connection(closed_by="client")
    start = hold(c)
    end = close(c, client=True)
    hold(c)  # too late
    c.server("connection.close-ok", channel=0, epoch=0)
    return c, [{"start_frame_no": start, "end_frame_no": end, "end_ts_ns": end * TICK}]


def blocked_in_one_direction() -> Made:
    """The client may have closed before the FIN."""
    c = Connection(closed_by="server-fin", handshake_outcome="one-direction")
    hold(c)
    return c, [{"end_frame_no": None, "end_ts_ns": None}]


def blocked_until_reset() -> Made:
    c = Connection(closed_by="server", closed_ts_ns=7 * TICK, last_ts_ns=9 * TICK)
    hold(c)
    return c, [{"end_frame_no": None, "end_packet": None, "end_ts_ns": 7 * TICK, "duration_ns": 7 * TICK}]


def blocked_behind_the_fin() -> Made:
    c = Connection(closed_by="client", closed_ts_ns=0, last_ts_ns=9 * TICK)
    c.publish(None)
    start = hold(c)
    return c, [{"end_ts_ns": start * TICK, "duration_ns": 0}]


def channel_flow() -> Made:
    c = Connection()
    c.client("channel.flow", active=False)
    c.server("channel.flow-ok", active=False)
    other = c.server("channel.flow", active=False, channel=2)
    c.client("channel.flow-ok", active=False, channel=2)
    end = c.client("channel.flow", active=True)
    c.server("channel.flow", active=True)
    return c, [
        {
            "cause": "channel-flow",
            "channel": 1,
            "channel_epoch": 1,
            "side": "client",
            "end_frame_no": end,
            "reason": None,
        },
        {"cause": "channel-flow", "channel": 2, "side": "server", "start_frame_no": other, "end_frame_no": None},
    ]


def a_channel_that_is_closed_or_opened_anew() -> Made:
    c = Connection()
    c.server("channel.flow", active=False)
    c.server("channel.flow", active=False, channel=2)
    end = c.client("channel.close")
    c.server("channel.flow", active=False)  # crossed the close
    c.server("channel.close-ok")
    anew = c.client("channel.open", channel=2, epoch=2)
    c.client("channel.open", epoch=2)
    again = c.server("channel.flow", active=False, epoch=2)
    last = close(c)
    return c, [
        {"channel": 1, "end_frame_no": end},
        {"channel": 2, "channel_epoch": 1, "end_frame_no": anew},
        {"channel": 1, "channel_epoch": 2, "start_frame_no": again, "end_frame_no": last},
    ]


def refused() -> Made:
    c = Connection()
    c.client("channel.flow", active=True)
    c.server("channel.flow-ok", active=True)
    c.client("channel.flow", active=False)
    close(c, **NOT_IMPLEMENTED)
    c.client("connection.close-ok", channel=0, epoch=0)
    return c, []


def refused_behind_its_close() -> Made:
    """The client closes before it reads that the broker does not do it."""
    c = Connection()
    c.client("channel.flow", active=False)
    close(c, client=True)
    close(c, **NOT_IMPLEMENTED)
    c.server("connection.close-ok", channel=0, epoch=0)
    return c, []


def closed_before_it_was_accepted() -> Made:
    """Another channel's was, and the broker's own goes on until the close."""
    c = Connection()
    c.client("channel.flow", active=False, channel=2)
    c.server("channel.flow-ok", active=False, channel=2)
    c.client("channel.flow", active=False)
    c.server("channel.flow", active=False)
    end = close(c, client=True)
    return c, [{"channel": 2, "end_frame_no": end}, {"channel": 1, "side": "server", "end_frame_no": end}]


def refused_on_the_second_of_two_channels() -> Made:
    c = Connection()
    c.client("channel.flow", active=True)
    c.server("channel.flow-ok", active=True)
    c.client("channel.flow", active=False, channel=2)
    c.client("channel.flow", active=False)
    close(c, client=True)
    close(c, **NOT_IMPLEMENTED)
    return c, []


def refused_on_another_channel() -> Made:
    c = Connection()
    c.client("channel.flow", active=False)
    c.server("channel.flow-ok", active=False)
    c.server("channel.flow", active=False)
    c.client("channel.flow", active=False, channel=2)
    end = close(c, **NOT_IMPLEMENTED)
    return c, [
        {"channel": 1, "side": "client", "end_frame_no": end},
        {"channel": 1, "side": "server", "end_frame_no": end},
    ]


def refused_by_the_channel_alone() -> Made:
    c = Connection()
    c.client("channel.flow", active=False)
    c.client("channel.flow", active=False, channel=2)
    c.server("channel.flow-ok", active=False, channel=2)
    c.server("channel.close", **NOT_IMPLEMENTED)
    return c, [{"channel": 2, "end_frame_no": None}]


def refused_by_a_close_that_is_cut() -> Made:
    c = Connection()
    c.client("channel.flow", active=False)
    close(c, reply_code=540, is_partial=True)
    return c, []


def closed_for_something_else() -> Made:
    c = Connection()
    c.client("channel.flow", active=False)
    end = close(c, reply_code=540, class_id=60, method_id=40)
    return c, [{"end_frame_no": end}]


def a_gap() -> Made:
    c = Connection()
    start = hold(c)
    c.client("channel.flow", active=False)
    c.server("channel.flow-ok", active=False)
    c.client("channel.flow", active=False, channel=2)  # nobody accepts it
    c.publish(None)
    gap = c.lose(from_client=False)
    release(c)
    c.lose(from_client=True)
    again = hold(c)
    end = release(c)
    lost = {"end_frame_no": None, "end_ts_ns": None, "end_packet": None}
    return c, [
        lost | {"start_frame_no": start, "duration_ns": (gap - start) * TICK},
        lost | {"cause": "channel-flow", "duration_ns": (gap - start - 1) * TICK},
        {"start_frame_no": again, "end_frame_no": end},
    ]


def a_flow_after_a_gap() -> Made:
    """An earlier one may be lost: it has waited for longer, perhaps."""
    c = Connection()
    c.publish(None)
    c.lose(from_client=False)
    c.server("channel.flow", active=False)
    c.server("channel.flow", active=True)
    start = c.server("channel.flow", active=False)
    end = c.server("channel.flow", active=True)
    return c, [{"duration_ns": None}, {"duration_ns": (end - start) * TICK}]


def a_flow_in_the_middle() -> Made:
    c = Connection()
    c.server("channel.flow", epoch=0, active=False)
    end = c.server("channel.flow", epoch=0, active=True)
    return c, [{"end_frame_no": end, "duration_ns": None}]


def a_gap_that_begins_early() -> Made:
    c = Connection()
    c.publish(None)
    hold(c)
    c.lose(from_client=True)
    c.anomalies[-1]["ts_ns"] = 0
    return c, [{"end_ts_ns": None, "duration_ns": 0}]


def a_frame_that_is_cut() -> Made:
    c = Connection()
    for channel in (1, 2):
        c.server("channel.flow", active=False, channel=channel)
    hold(c)
    cut = c.frame(False, 1, is_partial=True, frame_type="method")
    c.frame(False, 3, is_partial=True, frame_type="method")
    flow = c.server("channel.flow", channel=2, active=None, is_partial=True)
    end = release(c)
    return c, [
        {"channel": 1, "end_frame_no": None, "duration_ns": cut * TICK},
        {"channel": 2, "end_frame_no": None, "duration_ns": (flow - 1) * TICK},
        {"channel": None, "end_frame_no": end},
    ]


def a_clock_that_steps_back() -> Made:
    c = Connection()
    c.publish(None)
    hold(c)
    end = release(c)
    c.frames[-1]["ts_ns"] = 0
    return c, [{"end_frame_no": end, "end_ts_ns": 0, "duration_ns": None}]


def centuries() -> Made:
    c = Connection()
    hold(c)
    c.frames[-1]["ts_ns"] = -(1 << 62)
    release(c)
    c.frames[-1]["ts_ns"] = (1 << 63) - 1
    return c, [{"duration_ns": None}]


SCENARIOS = {
    f.__name__: f
    for f in (
        blocked,
        blocked_until_closed,
        blocked_in_one_direction,
        blocked_until_reset,
        blocked_behind_the_fin,
        channel_flow,
        a_channel_that_is_closed_or_opened_anew,
        refused,
        refused_behind_its_close,
        closed_before_it_was_accepted,
        refused_on_the_second_of_two_channels,
        refused_on_another_channel,
        refused_by_the_channel_alone,
        refused_by_a_close_that_is_cut,
        closed_for_something_else,
        a_gap,
        a_flow_after_a_gap,
        a_flow_in_the_middle,
        a_gap_that_begins_early,
        a_frame_that_is_cut,
        a_clock_that_steps_back,
        centuries,
    )
}


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["start_frame_no"] or 0, row["start_ts_ns"]))


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(name):
    check_made(FlowControl, [SCENARIOS[name]()], "start_frame_no", "start_ts_ns")


def test_all_connections_at_once():
    check_made(FlowControl, [scenario() for scenario in SCENARIOS.values()], "start_frame_no", "start_ts_ns")


def test_of_a_connection_without_a_row_durations_are_unknown():
    c = Connection()
    hold(c)
    tables = arrow([c])
    (row,) = checked(FlowControl, tables | {"connections": tables["connections"][:0]})
    assert row["start_ts_ns"] == 0
    assert row["end_ts_ns"] is row["duration_ns"] is None


def counted(c: Connection) -> list[tuple[Any, ...]]:
    """Intervals as a plain loop finds them: cause, channel, side, first and last frame (None where that is unknown)."""
    found: list[tuple[Any, ...]] = []
    waits: dict[Any, tuple[Any, ...]] = {}
    shut: set[Any] = set()
    gaps = {row["frame_no"] for row in c.anomalies}

    def end(key: Any, at: int | None) -> None:
        wait = waits.pop(key, None)
        if wait and (at is not None or wait[2] == "server"):  # nothing is accepted here
            found.append((*wait, at))

    for frame in c.frames:
        number, method = frame["frame_no"], frame.get("method")
        if number in gaps:
            for key in list(waits):
                end(key, None)
        channel, epoch = frame["channel"], frame["channel_epoch"]
        side = "client" if frame["from_client"] else "server"
        if method in ("connection.blocked", "connection.unblocked"):
            if method == "connection.unblocked":
                end("all", number)
            elif 0 not in shut:
                waits.setdefault("all", ("connection-blocked", None, "server", number))
        elif method == "channel.flow":
            if frame["active"]:
                end((channel, side), number)
            elif 0 not in shut and (channel, epoch) not in shut:
                waits.setdefault((channel, side), ("channel-flow", channel, side, number))
        elif method in ("channel.close", "channel.open"):
            end((channel, "client"), number)
            end((channel, "server"), number)
            if method == "channel.close":
                shut.add((channel, epoch))
        elif method == "connection.close":
            for key in list(waits):
                gone = side == "client" and key[1:] == ("client",)  # nor is anything accepted behind it
                end(key, None if gone else number)
            shut.add(0)
    for key in list(waits):
        end(key, None)
    return sorted(found, key=repr)


def some(seed: int) -> Connection:
    chance = random.Random(seed)
    c = Connection()
    epochs = {1: 1, 2: 1}
    for _ in range(chance.randint(1, 60)):
        channel, side = chance.choice([1, 2]), chance.random() < 0.5
        kind = chance.choice(["hold", "release", *4 * ["flow"], "close", "open", "publish", "lose", "end"])
        if kind == "hold":
            hold(c)
        elif kind == "release":
            release(c)
        elif kind == "flow":
            active = chance.random() < 0.5
            c.frame(side, channel, epochs[channel], method="channel.flow", active=active)
        elif kind == "close":
            c.frame(side, channel, epochs[channel], method="channel.close", reply_code=200)
        elif kind == "open":
            epochs[channel] += 1
            c.client("channel.open", channel, epochs[channel])
        elif kind == "lose":
            c.lose(side)
            c.publish(None)
        elif kind == "end" and chance.random() < 0.2:
            close(c, client=side)
        else:
            c.publish(None)
    return c


@pytest.mark.parametrize("seed", range(5))
def test_random_connections_agree_with_a_loop(seed):
    connections = [some(1000 * seed + n) for n in range(8)]
    rows = checked(FlowControl, arrow(connections), (1, 7, 100))
    for c in connections:
        mine = [row for row in rows if row["connection_id"] == c.id]
        names = ("cause", "channel", "side", "start_frame_no", "end_frame_no")
        assert sorted((tuple(row[name] for name in names) for row in mine), key=repr) == counted(c)
        times = [row["duration_ns"] for row in mine]
        assert all(time >= 0 for time in times if time is not None)
        assert None not in times or c.anomalies


# ------------------------------------------------------------------------------------------------------------- windows


def with_some_windows() -> tuple[dict[str, pa.Table], Connection, Connection]:
    c, other = Connection(last_ts_ns=90 * TICK), Connection()
    place = {"connection_id": c.id, "start_capture": "a.pcap", "start_packet": 3, "start_ts_ns": 10 * TICK}
    done = {"end_capture": "b.pcap", "end_packet": 1, "end_ts_ns": 25 * TICK}
    windows = [
        place | {"kind": "zero", "from_client": False, "start_ts_ns": 30 * TICK},
        place | done | {"kind": "zero", "from_client": True, "connection_id": c.id + 10**6},  # of nothing that is there
        place | done | {"kind": "zero", "from_client": True},
        place | done | {"kind": "full", "from_client": True},  # a window that is used up is no window of nothing
        place | done | {"kind": "zero", "from_client": True, "start_ts_ns": 35 * TICK},  # the clock stepped back
        place | {"kind": "zero", "from_client": True, "start_ts_ns": 95 * TICK},
        place | done | {"kind": "zero", "from_client": True, "start_ts_ns": 12 * TICK, "is_partial": True},
    ]
    return arrow([other, c]) | {"tcp_windows": arrow_table("tcp_windows", windows)}, c, other


def test_windows_of_zero():
    tables, c, _ = with_some_windows()
    done = {"end_capture": "b.pcap", "end_packet": 1, "end_ts_ns": 25 * TICK}
    one = {"connection_id": c.id, "cause": "zero-window", "channel": None, "start_frame_no": None, "evidence": "proven"}
    one |= {"start_capture": "a.pcap", "start_packet": 3, "reason": None}
    check(
        in_order(checked(ZeroWindows, tables)),
        [
            one | done | {"side": "client", "start_ts_ns": 10 * TICK, "duration_ns": 15 * TICK},
            one | done | {"start_ts_ns": 12 * TICK, "duration_ns": None, "evidence": "possible"},
            one | {"side": "server", "end_ts_ns": None, "end_packet": None, "duration_ns": 60 * TICK},
            one | done | {"side": "client", "duration_ns": None},
            one | {"start_ts_ns": 95 * TICK, "end_ts_ns": None, "duration_ns": 0},
        ],
    )


def test_windows_are_lists_of_their_connections():
    tables, c, other = with_some_windows()
    found = with_tcp(tables["connections"], {"tcp_windows": tables["tcp_windows"]})
    assert found.drop_columns("windows") == tables["connections"]
    lists = dict(zip(found["connection_id"].to_pylist(), found["windows"].to_pylist(), strict=True))
    assert lists[other.id] is None
    assert [(row["kind"], row["start_ts_ns"] // TICK) for row in lists[c.id]] == [
        ("zero", 30),
        ("zero", 10),
        ("full", 10),
        ("zero", 35),
        ("zero", 95),
        ("zero", 12),
    ]
    names = [field.name for field in schema("tcp_windows")][1:]
    assert [field.name for field in found["windows"].type.value_type.fields] == names
    assert with_tcp(tables["connections"], {"tcp_windows": tables["tcp_windows"][:0]})["windows"].to_pylist() == [
        None,
        None,
    ]
    assert len(with_tcp(tables["connections"][:0], {"tcp_windows": tables["tcp_windows"]})) == 0


def test_without_windows_there_are_none():
    assert rows_of(FlowControl, arrow([Connection()])) == []
    (events,) = batches(arrow([Connection()]), [])
    assert list(FlowControl().feed(events)) == []
