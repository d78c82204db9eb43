from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpscope.pipelines.across.keys import COLUMNS, KEYED, ORDER, keyed, ordered
from amqpscope.pipelines.across.matching import STATE
from amqpscope.pipelines.across.transits import HOUR_NS, Transits, transits
from amqpscope.pipelines.model import walk
from tests import reference
from tests.dissector.recordings import WHOLE, identities, ours, theirs
from tests.pipelines.scenario import TICK, Connection, arrow, arrow_table

Row = dict[str, Any]
Expected = list[tuple[str, int | None]]
"""Of each delivery in order: what made the match, and which of the publishes (from 0) it was."""
NAMES = ("connection_id", "frame_no", "ts_ns", "packet", "capture")
WINDOW = 10


def talk(publishes: list[Row], deliveries: list[Row]) -> tuple[Connection, Connection]:
    producer, consumer = Connection(), Connection()
    for columns in publishes:
        producer.publish(None, **columns)
    for _ in range(7):
        consumer.server("basic.qos-ok")
    for tag, columns in enumerate(deliveries, 1):
        given = dict(columns)
        if given.pop("kind", "deliver") == "get":
            consumer.message("get", delivery_tag=tag, **given)
        else:
            consumer.deliver(tag, **given)
    while len(consumer.frames) <= len(producer.frames):
        consumer.server("basic.qos-ok")
    late = len(producer.frames)
    for message in consumer.messages:  # after all publishes, in order
        message["ts_ns"] += late * TICK
    return producer, consumer


SCENARIOS: dict[str, tuple[list[Row], list[Row], Expected]] = {
    "by message id": (
        [{"message_id": "m1"}, {"message_id": "m2"}],
        [
            {"message_id": "m2", "exchange": "dead", "headers": '{"x-death":[]}'},
            {"message_id": "m1"},
            {"message_id": "m2", "kind": "get"},
        ],
        [("message-id", 1), ("message-id", 0), ("message-id", 1)],
    ),
    "a message id used again": (
        [{"message_id": "n", "body_hash": 1}, {"message_id": "n", "body_hash": 2}, {"message_id": "", "body_hash": 3}],
        [{"message_id": "n", "body_hash": 2}, {"message_id": "n", "body_hash": 4}, {"message_id": "", "body_hash": 3}],
        [("content", 1), ("ambiguous", None), ("content", 2)],
    ),
    "a message id used again by a client that was not captured": (
        [
            {"message_id": "again-1", "body_hash": 1},
            {"message_id": "again-2", "body_hash": None},
            {"message_id": "again-3"},
        ],
        [
            {"message_id": "again-1", "body_hash": 2},
            {"message_id": "again-1", "body_hash": 1, "body_size": 7},
            {"message_id": "again-2", "body_hash": 3},
            {"message_id": "again-3", "body_hash": 4, "routing_key": None},
            {"message_id": "again-1", "body_hash": 2, "headers": '{"x-received-from":[]}'},
        ],
        [("ambiguous", None), ("ambiguous", None), ("message-id", 1), ("message-id", 2), ("message-id", 0)],
    ),
    "by trace": (
        [{"trace_id": "t", "span_id": "1"}, {"trace_id": "t", "span_id": "2"}, {"trace_id": "u"}],
        [{"trace_id": "t", "span_id": "2"}, {"trace_id": "v", "span_id": "1"}],
        [("trace", 1), ("ambiguous", None)],
    ),
    "by content": (
        [
            {"routing_key": "c", "body_hash": 11},
            {"routing_key": "c", "body_hash": 12, "content_type": "a"},
            {"routing_key": "c", "body_hash": 12, "content_type": "b"},
            {"routing_key": "c", "body_hash": 13},
            {"routing_key": "c", "body_hash": 13},
            {"routing_key": "c", "body_hash": 14, "body_size": 0},
            {"routing_key": "c", "body_hash": None},
        ],
        [
            {"routing_key": "c", "body_hash": 11, "cluster_id": ""},
            {"routing_key": "c", "body_hash": 12, "content_type": "b"},
            {"routing_key": "c", "body_hash": 13},
            {"routing_key": "c", "body_hash": 14, "body_size": 0},
            {"routing_key": "c", "body_hash": None},
            {"routing_key": "c", "body_hash": 15},
            {"routing_key": "d", "body_hash": 11},
        ],
        [("content", 0), ("content", 2), *[("ambiguous", None)] * 5],
    ),
    "a message id used again, refined by trace, then by content": (
        [
            {"message_id": "r", "trace_id": "t", "span_id": "1"},
            {"message_id": "r", "trace_id": "t", "span_id": "2"},
            {"message_id": "r", "trace_id": "t", "span_id": "3", "body_hash": 1},
            {"message_id": "r", "trace_id": "t", "span_id": "3", "body_hash": 2},
            {"message_id": "s", "trace_id": "t", "span_id": "4"},
        ],
        [
            {"message_id": "r", "trace_id": "t", "span_id": "2"},
            {"message_id": "r", "trace_id": "t", "span_id": "3", "body_hash": 2},
            {"message_id": "r", "trace_id": "t", "span_id": "3", "body_hash": 3},
            {"message_id": "r", "trace_id": "t", "span_id": "4", "body_hash": 4},
            {"message_id": "s"},
            {"message_id": "x", "trace_id": "t", "span_id": "4"},
        ],
        [("trace", 1), ("content", 3), *[("ambiguous", None)] * 2, ("message-id", 4), ("ambiguous", None)],
    ),
    "a trace used again, refined by content": (
        [{"trace_id": "t", "span_id": "7", "body_hash": value} for value in (1, 2, 3, 3)],
        [{"trace_id": "t", "span_id": "7", "body_hash": value} for value in (1, 2, 3, 4)],
        [("content", 0), ("content", 1), *[("ambiguous", None)] * 2],
    ),
}


@pytest.fixture(scope="module")
def found():
    made = {name: talk(publishes, deliveries) for name, (publishes, deliveries, _) in SCENARIOS.items()}
    result = transits(separate(arrow([each for pair in made.values() for each in pair])["messages"], made))
    assert result.schema == walk.schema("transits")
    return made, result.to_pylist()


def separate(messages: pa.Table, made: dict[str, tuple[Connection, Connection]]) -> pa.Table:
    """Give each scenario an exchange of its own, for contents that are alike."""
    rows = messages.to_pylist()
    names = {each.id: name for name, pair in made.items() for each in pair}
    for row in rows:
        row["exchange"] += names[row["connection_id"]]
    return arrow_table("messages", rows)


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(found, name):
    made, rows = found
    producer, consumer = made[name]
    mine = sorted(
        (row for row in rows if row["deliver_connection_id"] == consumer.id), key=lambda row: row["deliver_frame_no"]
    )
    assert [row["matched_by"] for row in mine] == [how for how, _ in SCENARIOS[name][2]]
    for row, delivery, (how, which) in zip(mine, consumer.messages, SCENARIOS[name][2], strict=True):
        assert {each: row[f"deliver_{each}"] for each in NAMES} == {each: delivery[each] for each in NAMES}
        assert (row["exchange"], row["routing_key"]) == (delivery["exchange"] + name, delivery["routing_key"])
        if how == "ambiguous":
            assert {row[f"publish_{each}"] for each in NAMES} | {row["latency_ns"]} == {None}
        else:
            publish = producer.messages[which]
            assert {each: row[f"publish_{each}"] for each in NAMES} == {each: publish[each] for each in NAMES}
            assert row["latency_ns"] == delivery["ts_ns"] - publish["ts_ns"]


def message(kind: str, ts_ns: int | None, frame_no: int, **columns: Any) -> Row:
    place = {"connection_id": 1 if kind == "publish" else 2, "frame_no": frame_no, "packet": frame_no + 1}
    content = {"exchange": "e", "routing_key": "k", "body_size": 1, "body_hash": 1}
    return place | {"kind": kind, "ts_ns": ts_ns, "capture": f"{frame_no % 3}.pcap"} | content | columns


def matched(rows: list[Row], **options: Any) -> list[tuple[str, int | None, int | None]]:
    """Of each delivery, by frame number: what made the match, the frame of its publish, the latency."""
    result = transits(arrow_table("messages", rows), **options).to_pylist()
    result.sort(key=lambda row: row["deliver_frame_no"])
    return [(row["matched_by"], row["publish_frame_no"], row["latency_ns"]) for row in result]


def test_a_publish_is_a_candidate_for_an_hour():
    at = [0, 5, HOUR_NS + 5, HOUR_NS + 6]
    publishes = [message("publish", at[0], 0, message_id="a"), message("publish", at[1], 1, message_id="b")]
    deliveries = [message("deliver", at[2], 2 + n, message_id=name) for n, name in enumerate("ab")]
    late = message("deliver", at[3], 4, message_id="b")
    assert matched([*publishes, *deliveries, late]) == [
        ("ambiguous", None, None), ("message-id", 1, HOUR_NS), ("ambiguous", None, None),
    ]  # fmt: skip
    assert matched([publishes[0], deliveries[0]], window_ns=1 << 63) == [("message-id", 0, HOUR_NS + 5)]


def test_a_message_id_used_again_by_a_later_run_is_that_runs():
    rows = [message("publish", n * 20, n, message_id="a") for n in range(3)]
    rows += [message("deliver", n * 20 + 3, 3 + n, message_id="a") for n in range(3)]
    assert matched(rows, window_ns=WINDOW) == [("message-id", n, 3) for n in range(3)]
    assert matched(rows) == [("message-id", 0, 3), ("ambiguous", None, None), ("ambiguous", None, None)]


def test_a_publish_after_the_delivery_is_no_candidate():
    rows = [message("publish", n, n, message_id="a") for n in (5, 7)]
    rows += [message("deliver", ts, 10 + n, message_id="a") for n, ts in enumerate((4, 5, 6, 7))]
    assert [how for how, *_ in matched(rows)] == ["ambiguous", "message-id", "message-id", "ambiguous"]
    assert [latency for *_, latency in matched(rows)] == [None, 0, 1, None]


def test_unfinished_messages_have_no_latency():
    rows = [message("publish", 1, n, message_id=f"{n}", unfinished=n == 0) for n in range(3)]
    rows += [message("deliver", 4, 3 + n, message_id=f"{n}", unfinished=[None, True, False][n]) for n in range(3)]
    assert matched(rows) == [("message-id", 0, None), ("message-id", 1, None), ("message-id", 2, 3)]


def test_without_times_publishes_differ_by_what_they_have():
    rows = [message("publish", None, 0, message_id="a"), message("publish", 5, 1, message_id="b")]
    rows += [message("deliver", ts, 2 + n, message_id=name) for n, (ts, name) in enumerate([(None, "a"), (5, "a")])]
    rows += [message("deliver", None, 4, message_id="b")]
    assert matched(rows) == [("message-id", 0, None), *[("ambiguous", None, None)] * 2]
    result = transits(arrow_table("messages", rows)).to_pylist()
    assert [row["publish_ts_ns"] for row in result] == [None] * 3


def test_all_protocols_and_nothing_but_publishes_and_deliveries():
    rows = [message("publish", 1, 0, protocol="rabbitmq-stream", exchange=None, routing_key=None, stream="s")]
    rows += [message("deliver", 2, 1, protocol="rabbitmq-stream", exchange=None, routing_key=None, stream="s")]
    rows += [message("return", 2, 2), message("get", 3, 3, protocol="amqp-0-10", exchange=None, routing_key=None)]
    assert matched(rows) == [("content", 0, 1), ("content", 0, 2)]


def test_times_that_lie_too_far_apart_have_no_latency():
    ends = [message("publish", -(1 << 61), 0), message("deliver", (1 << 63) - 1, 1)]
    assert matched(ends, window_ns=1 << 63) == [("ambiguous", None, None)]


def test_no_messages():
    empty = arrow_table("messages", [])
    assert transits(empty).schema == walk.schema("transits")
    assert transits(empty).num_rows == 0
    assert keyed(empty).schema == KEYED
    assert set(ORDER) <= set(KEYED.names)
    walked = Transits()
    assert [len(rows) for _, rows in walked.feed(keyed(empty))] == [0]
    assert list(walked.finish()) == []


def test_what_no_key_can_find_is_left_out_and_spread():
    none = {"body_hash": None}
    rows = keyed(arrow_table("messages", [message("publish", n, n, **none) for n in range(3)]))
    assert len(rows) == 0
    rows = keyed(arrow_table("messages", [message("deliver", n, n, **none) for n in range(9)]))
    assert len(set(rows["key"].to_pylist())) == 9


def test_a_window_and_a_limit_must_be_positive():
    for options in ({"window_ns": -1}, {"limit": 0}):
        with pytest.raises(ValueError, match="positive"):
            Transits(**options)


# --- any batches


def expected(rows: list[Row], window_ns: int) -> list[tuple[int, str, int | None]]:
    """Of each delivery (frame number): what made the match, and the frame of its publish. The rule in plain words."""

    def kinds(row: Row) -> list[tuple[str, Any]]:
        trace = row["trace_id"] and row["span_id"] and (row["trace_id"], row["span_id"])
        body = tuple(row[name] for name in ("message_id", "headers", "body_hash")) if row["body_hash"] else None
        every = [("message-id", row["message_id"]), ("trace", trace), ("content", body)]
        return [(how, value) for how, value in every if value]

    found = []
    for row in rows:
        if row["kind"] == "publish":
            continue
        near = [
            other for other in rows if other["kind"] == "publish" and 0 <= row["ts_ns"] - other["ts_ns"] <= window_ns
        ]
        near = [other for other in near if kinds(row) and kinds(other)[:1] == kinds(row)[:1]]
        match = ("ambiguous", None)
        for how, value in kinds(row):
            alike = [other for other in near if (how, value) in kinds(other)]
            if len(alike) == 1:
                if None in (bodies := {each["body_hash"] for each in (row, alike[0])}) or len(bodies) == 1:
                    match = (how, alike[0]["frame_no"])
                break
        found.append((row["frame_no"], *match))
    return found


def random_rows(seed: int, count: int, names: int) -> list[Row]:
    """Messages of few ids, traces and contents; the trace is part of the headers, as it is on the wire."""
    some = random.Random(seed)
    rows = []
    ts_ns = 0
    for n in range(count):
        ts_ns += some.choice((0, 0, 1, 2, WINDOW))
        trace = some.choice((None, *range(names)))
        columns = {
            "message_id": some.choice((None, "", *map(str, range(names)))),
            "trace_id": None if trace is None else "t",
            "span_id": None if trace is None else str(trace),
            "headers": None if trace is None else f'{{"traceparent": "{trace}"}}',
            "body_hash": some.choice((None, *range(1, 1 + names))),
        }
        rows.append(message(some.choice(("publish", "deliver", "get")), ts_ns, n, **columns))
    return rows


def in_batches(rows: pa.Table, size: int, hop: bool = False, **options: Any) -> pa.Table:
    """Rows of the walk over batches of a size; with `hop` each batch is walked by another one."""
    walked = Transits(WINDOW, **options)
    parts = [walk.schema("transits").empty_table()]
    for first in range(0, len(rows), size):
        parts += [part for _, part in walked.feed(rows.slice(first, size))]
        if hop:
            state = walked.take_out()
            assert [len(part) for _, part in walked.feed(rows.slice(0, 0))] == [0]
            walked = Transits(1)
            walked.put_back(state)
    parts += [part for _, part in walked.finish()]
    return pa.concat_tables(parts)


def plain(result: pa.Table) -> list[tuple[int, str, int | None]]:
    return sorted((row["deliver_frame_no"], row["matched_by"], row["publish_frame_no"]) for row in result.to_pylist())


@given(seed=st.integers(0, 1 << 30), count=st.integers(1, 40), names=st.integers(1, 4))
def test_rows_are_those_of_the_rule_for_any_batches(seed, count, names):
    rows = random_rows(seed, count, names)
    made = ordered(keyed(arrow_table("messages", random.Random(seed).sample(rows, len(rows))).select(COLUMNS)))
    whole = in_batches(made, len(rows))
    assert plain(whole) == expected(rows, WINDOW)
    for size in (1, 2, 3, 7, 1000):
        for hop in (False, True):
            assert in_batches(made, size, hop).equals(whole)


@given(seed=st.integers(0, 1 << 30), limit=st.integers(1, 8))
def test_beyond_the_limit_deliveries_are_ambiguous_but_never_wrong(seed, limit):
    made = ordered(keyed(arrow_table("messages", random_rows(seed, 90, 6))))
    whole, limited = in_batches(made, 90), in_batches(made, 90, limit=limit)
    for row, less in zip(plain(whole), plain(limited), strict=True):
        assert less in (row, (row[0], "ambiguous", None))
    assert in_batches(made, 3, hop=True, limit=limit).equals(limited)


def crowded(step: int, count: int = 3000) -> pa.Table:
    """One message id for messages of different contents, each delivered at once."""
    rows = [message(kind, n * step, 2 * n + (kind == "deliver"), message_id="a", body_hash=n + 1)
            for n in range(count) for kind in ("publish", "deliver")]  # fmt: skip
    return ordered(keyed(arrow_table("messages", rows)))


def test_sub_keys_beyond_the_limit_are_counted():
    walked = Transits(1 << 40, limit=1001)
    ((_, rows),) = walked.feed(crowded(step=1))
    assert list(walked.finish()) == []
    assert walked.overflowed == 2000  # the key itself and 1000 contents were kept
    hows = [row["matched_by"] for row in sorted(rows.to_pylist(), key=lambda row: row["deliver_frame_no"])]
    assert hows == ["message-id"] + ["content"] * 999 + ["ambiguous"] * 2000


def limited(rows: list[Row], limit: int) -> list[tuple[int, str, int | None]]:
    """Matches of messages of one id, where so many sub-keys may be kept; without a limit they are those of the rule."""
    others = dict.fromkeys(("trace_id", "span_id", "headers"))
    rows = [others | {"message_id": "a"} | row for row in rows]
    made = ordered(keyed(arrow_table("messages", rows)))
    assert plain(in_batches(made, len(rows))) == expected(rows, WINDOW)
    return plain(in_batches(made, len(rows), limit=limit))


def test_a_sub_key_that_has_room_again_may_have_been_refused_before():
    rows = [message("publish", ts, ts, body_hash=value) for ts, value in ((0, 1), (8, 2), (11, 2), (12, 3))]
    rows += [message("deliver", 13, 13, body_hash=2), message("deliver", 20, 20, body_hash=2)]
    assert limited(rows, limit=2) == [(13, "ambiguous", None), (20, "content", 11)]


def test_what_was_refused_is_not_replaced_by_the_next_kind():
    trace = {"trace_id": "t", "span_id": "1"}
    rows = [message("publish", 0, 0), message("publish", 5, 1, **trace), message("publish", 6, 2, body_hash=2)]
    rows += [message("deliver", 12, 3, **trace)]
    assert limited(rows, limit=9) == [(3, "trace", 1)]
    assert limited(rows, limit=2) == [(3, "ambiguous", None)]


def test_sub_keys_out_of_the_window_make_room():
    walked = Transits(window_ns=1000, limit=1001)
    ((_, rows),) = walked.feed(crowded(step=3))
    assert walked.overflowed == 0
    assert walked.state[STATE.COUNT] <= 1001
    assert rows["matched_by"].to_pylist().count("content") == 2999


def test_a_large_group_is_forgotten_when_it_is_over():
    walked = Transits(1 << 40)
    list(walked.feed(crowded(1, count=9000)))
    size = len(walked.slots)
    state = walked.take_out()
    assert len(state) > 9000 * walked.slots[0].nbytes
    walked.put_back(state)
    other = ordered(keyed(arrow_table("messages", [message("publish", 1, 0, message_id="b")])))
    list(walked.feed(other))
    list(walked.feed(other.slice(0, 0)))
    assert len(walked.slots) < size
    assert len(walked.take_out()) < 3000


def test_the_state_of_something_else_is_refused():
    with pytest.raises(ValueError, match="state"):
        Transits().put_back(b"?")


@pytest.mark.compiled
def test_compiled_rows_are_the_same():
    made = ordered(keyed(arrow_table("messages", random_rows(7, 4000, 30))))
    whole = in_batches(made, 4000)
    assert in_batches(made, 4000, compiled=True).equals(whole)
    assert in_batches(made, 700, hop=True, compiled=True).equals(whole)
    big = crowded(step=3)
    for limit in (50, 1001):
        assert in_batches(big, 5000, limit=limit, compiled=True).equals(in_batches(big, 5000, limit=limit))
    messages = arrow_table("messages", random_rows(8, 300, 9))
    assert keyed(messages, compiled=True).equals(keyed(messages, compiled=False))


# --- recordings


@pytest.mark.thorough
def test_recorded_rows_are_those_of_the_reference():
    """All recordings as one: a message of one may be delivered in another. `test_against_reference` has them too."""
    messages, frames, names, spoken = [], [], {}, set()
    for capture in WHOLE:
        messages.append(ours(capture)["messages"])
        frames += [row | {"connection": (capture.stem, *row["connection"])} for row in theirs(capture)]
        names |= {connection: (capture.stem, *name) for connection, name in identities(capture).items()}
        # The reference takes the broker's answer to the header of another protocol for a frame.
        spoken |= {names[each] for each in ours(capture)["amqp091_frames"]["connection_id"].unique().to_pylist()}
    found = transits(pa.concat_tables(messages))
    columns = ("matched_by", "latency_ns", "deliver_frame_no", "deliver_packet", "deliver_ts_ns")
    mine = Counter(
        (names[row["deliver_connection_id"]], *place(row, "publish_", names), *(row[name] for name in columns))
        for row in found.to_pylist()
    )
    expected = Counter(
        (row["deliver_connection"], *publish_of(row), *(row[name] for name in columns))
        for row in reference.transits([row for row in frames if row["connection"] in spoken], homes=False)
    )
    assert sum(mine.values()) > 1000
    assert sorted((mine - expected).elements(), key=repr) == []
    assert sorted((expected - mine).elements(), key=repr) == []


def place(row: Row, end: str, names: dict[int, Any]) -> tuple[Any, ...]:
    return names.get(row[f"{end}connection_id"]), *(row[f"{end}{name}"] for name in ("frame_no", "packet", "ts_ns"))


def publish_of(row: Row) -> tuple[Any, ...]:
    publish = row["publish"] or dict.fromkeys(("connection", "frame_no", "packet", "ts_ns"))
    return tuple(publish[name] for name in ("connection", "frame_no", "packet", "ts_ns"))
