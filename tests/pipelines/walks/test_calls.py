"""Calls: requests over reply_to and their answers, also on other connections."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import amqpscope
from amqpscope.pipelines import jobs
from amqpscope.pipelines.across import calls as module
from amqpscope.pipelines.across.callers import ENDS, WHEN, still_needed
from amqpscope.pipelines.across.calls import CALLS, PARTS, CallParts, Calls
from amqpscope.pipelines.model.walk import Collected, facts
from amqpscope.pipelines.run import engine
from amqpscope.pipelines.run.buckets import Pile
from amqpscope.pipelines.run.engine import in_order
from tests import reference
from tests.dissector.runs import dissect
from tests.pipelines.scenario import TICK, Connection, arrow
from tests.pipelines.walks.properties import over
from tests.reference import calls as plain
from tests.reference.amqp import messages

RECORDING = Path(__file__).parents[2] / "captures" / "rpc_calls.pcap"
DIRECT = "amq.rabbitmq.reply-to"


def ask(c: Connection, name: str, to: str = "mine", **columns: Any) -> int:
    return c.publish(None, exchange="", routing_key="work", correlation_id=name, reply_to=to, **columns)


def answer(c: Connection, name: str, to: str = "mine", **columns: Any) -> int:
    return c.deliver(1, exchange="", routing_key=to, correlation_id=name, **columns)


def place(vhost: str | None, /, **columns: Any) -> Connection:
    return Connection(**{"server_ip": "10.0.0.1", "server_port": 5672, "vhost": vhost} | columns)


def called(connections: list[Connection], size: int = 100) -> list[dict[str, Any]]:
    tables = arrow(connections)
    found: list[dict[str, Any]] = jobs.calls(
        tables["messages"], tables["connections"], tables["anomalies"], tables["amqp091_frames"]
    ).to_pylist()
    return sorted(found, key=lambda row: (row["request_ts_ns"], row["request_connection_id"]))


def test_an_answer_comes_to_the_queue_that_the_request_names() -> None:
    c = Connection()
    at = ask(c, "1")
    answer(c, "1", "another")
    answer(c, "2")
    c.deliver(1, exchange="e", routing_key="mine", correlation_id="1")
    end = answer(c, "1")
    answer(c, "1")  # again: the call is over
    (row,) = called([c])
    assert (row["request_frame_no"], row["answer_frame_no"], row["evidence"]) == (at, end, "proven")
    assert row["latency_ns"] == (end - at) * TICK and row["ended_by"] is None


def test_it_may_come_on_another_connection() -> None:
    caller, other = Connection(), Connection()
    ask(caller, "1")
    other.frame(True, method="basic.consume")
    answer(other, "1")
    (row,) = called([caller, other])
    assert (row["request_connection_id"], row["answer_connection_id"]) == (caller.id, other.id)


def test_no_direct_reply_comes_on_a_channel_that_is_closed() -> None:
    c = Connection()
    ask(c, "1", DIRECT)
    ask(c, "2", "mine")
    c.frame(True, channel=2, method="channel.close")
    ask(c, "3", DIRECT)
    at = c.frame(False, method="channel.close")
    c.frame(True, method="channel.close-ok")
    ends = {row["correlation_id"]: (row["ended_by"], row["end_ts_ns"]) for row in called([c])}
    assert ends["1"] == ends["3"] == ("channel-close", at * TICK)
    assert ends["2"][0] == "capture-end", "its answer may come on any"


def test_an_answer_may_lie_in_a_gap_before_its_channel_is_closed() -> None:
    c = Connection()
    ask(c, "1", DIRECT)
    c.lose(from_client=False)
    ask(c, "2", DIRECT)
    c.frame(True, method="channel.close")
    c.lose(from_client=False)
    assert {row["correlation_id"]: row["ended_by"] for row in called([c])} == {"1": "gap", "2": "channel-close"}


def test_direct_replies_come_on_the_same_one() -> None:
    one, two = Connection(), Connection()
    for c in (one, two):
        ask(c, "1", DIRECT)
    answer(two, "1", DIRECT + ".g1h2AA.b")
    rows = {row["request_connection_id"]: row for row in called([one, two])}
    assert rows[one.id]["ended_by"] == "capture-end" and rows[one.id]["evidence"] is None
    assert (rows[two.id]["answer_connection_id"], rows[two.id]["evidence"]) == (two.id, "proven")


def test_an_id_used_again_pairs_in_order_and_is_only_possible() -> None:
    c = Connection()
    first, second = ask(c, "1"), ask(c, "1")
    ends = [answer(c, "1"), answer(c, "1")]
    assert [(row["request_frame_no"], row["answer_frame_no"], row["evidence"]) for row in called([c])] == [
        (first, ends[0], "possible"), (second, ends[1], "possible"),
    ]  # fmt: skip


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6])
def test_an_id_is_free_again_when_no_request_waits(size: int) -> None:
    """Whatever the batches are."""
    c = Connection()
    asked = [ask(c, "1"), ask(c, "1")]
    for _ in asked:
        answer(c, "1")
    asked.append(ask(c, "1"))
    answer(c, "1")
    parts = over(CallParts, in_order(arrow([c]), [CallParts()]), 100).parts
    rows, walk, found = pa.concat_tables(parts[CALLS]), Calls(pa.concat_tables(parts[ENDS])), Collected()
    for at in range(0, len(rows), size):
        found.add(walk.feed(rows.slice(at, size)))
    found.add(walk.finish())
    assert [(row["request_frame_no"], row["evidence"]) for row in found.table("calls").to_pylist()] == [
        (asked[0], "possible"), (asked[1], "possible"), (asked[2], "proven"),
    ]  # fmt: skip


def test_messages_without_queue_or_id_are_no_calls() -> None:
    c = Connection()
    ask(c, "")
    ask(c, "1", "")
    c.publish(None, exchange="e", correlation_id="1")
    c.deliver(1, exchange="", routing_key="mine", correlation_id="1", reply_to="mine")
    assert called([c]) == []


def test_what_is_not_answered_says_why() -> None:
    gap, closed, goes_on = place("a"), place("b", closed_by="client-fin"), place("c")
    for c in (gap, closed, goes_on):
        ask(c, f"{c.id}")
    lost = gap.lose(False)
    gap.frame(False, method="basic.ack")
    rows = {row["request_connection_id"]: row for row in called([gap, closed, goes_on])}
    assert (rows[gap.id]["ended_by"], rows[gap.id]["end_ts_ns"]) == ("gap", lost * TICK)
    assert rows[closed.id]["ended_by"] == "connection-close"
    assert rows[goes_on.id]["ended_by"] == "capture-end"


@pytest.mark.parametrize(
    ("one", "other", "evidence"),
    [
        ({}, {}, "proven"),
        ({}, {"vhost": "b"}, None),
        ({}, {"server_ip": "10.0.0.2"}, None),
        ({}, {"vhost": None}, "possible"),
        ({"vhost": None}, {}, "possible"),
        ({"vhost": None}, {"server_ip": "10.0.0.2"}, None),
        ({}, {"server_ip": None}, "possible"),
    ],
)
def test_both_ends_have_one_broker_and_virtual_host_as_far_as_known(
    one: dict[str, Any], other: dict[str, Any], evidence: str | None
) -> None:
    caller, listener, elsewhere = place("a", **one), place("a", **other), place("c", server_ip="10.0.0.3")
    ask(caller, "1")
    ask(elsewhere, "2")
    answer(listener, "1")
    rows = {row["request_connection_id"]: row for row in called([caller, listener, elsewhere])}
    assert rows[caller.id]["evidence"] == evidence
    assert rows[caller.id]["answer_connection_id"] == (listener.id if evidence else None)


def test_requests_of_other_places_do_not_wait_together() -> None:
    callers = [place("a"), place("b")]
    for c in callers:
        ask(c, "1")
    for c in reversed(callers):
        answer(c, "1")
    columns = ("request_connection_id", "answer_connection_id", "evidence")
    found = [tuple(row[name] for name in columns) for row in called(callers)]
    assert found == [(c.id, c.id, "proven") for c in callers]


def test_an_answer_may_lie_in_a_gap_where_answers_of_its_queue_came() -> None:
    caller, listener, other = place("a"), place("a"), place("a")
    ask(caller, "1")
    answer(listener, "0")
    lost = listener.lose(False)
    answer(listener, "2")
    assert [(row["ended_by"], row["end_ts_ns"]) for row in called([caller, listener])] == [("gap", lost * TICK)]
    listener.anomalies.clear()
    for c in (caller, other):
        c.frame(False, method="basic.ack")
        c.frame(False, method="basic.ack")
        c.lose(False)
        c.frame(False, method="basic.ack")
    assert [row["ended_by"] for row in called([caller, listener, other])] == ["capture-end"], "it came elsewhere"


def test_where_no_answer_of_the_queue_came_it_may_lie_in_any_gap_of_its_home() -> None:
    caller, listener, foreign = place("a"), place("a"), place("b")
    ask(caller, "1")
    ask(caller, "1", DIRECT)
    ask(foreign, "1")
    for _ in range(7):
        listener.frame(False, method="basic.ack")
    lost = listener.lose(False)
    listener.frame(False, method="basic.ack")
    found = {(row["request_connection_id"], row["reply_to"]): row for row in called([caller, listener, foreign])}
    there = found[caller.id, "mine"]
    assert (there["ended_by"], there["end_ts_ns"]) == ("gap", lost * TICK)
    assert found[caller.id, DIRECT]["ended_by"] == found[foreign.id, "mine"]["ended_by"] == "capture-end"


def test_nothing_is_kept_of_connections_without_calls() -> None:
    silent = [place("a") for _ in range(3)]
    for c in silent:
        c.publish(None, exchange="e")
    caller = place("a")
    ask(caller, "1")
    parts = over(CallParts, in_order(arrow([*silent, caller]), [CallParts()]), 2, moved=True).parts
    assert [row["connection_id"] for row in pa.concat_tables(parts[ENDS]).to_pylist()] == [caller.id]


def test_of_channels_only_those_with_direct_replies_are_kept() -> None:
    """Their first closes; a program may open and close a channel for each thing that it does."""
    c, other = place("a"), place("a")
    ask(c, "1")
    ask(c, "2", DIRECT)
    for channel in (2, 1, 1, 3):
        c.frame(True, channel=channel, method="channel.close")
    other.frame(True, method="channel.close")
    parts = over(CallParts, in_order(arrow([c, other]), [CallParts()]), 2, moved=True).parts
    closed = [row["channel"] for row in pa.concat_tables(parts[ENDS]).to_pylist() if row["ended_by"] == "channel-close"]
    assert closed == [(1 << 16) + 1]


def test_of_connections_that_ended_what_no_request_needs_is_forgotten() -> None:
    homes = {"server": pa.array([7] * 5), "cluster": pa.array([0] * 5), "vhost": pa.array([8] * 5)}
    rows = pa.concat_tables([
        facts(WHEN, pa.array([1, 2, 3, 4, 4]), at_ns=pa.array([5] * 5), ended_by=["capture-end"] * 5, **homes),
        facts(WHEN, pa.array([2, 3, 4]), at_ns=pa.array([9, 11, 9]), ended_by=["gap"] * 3),
        facts(WHEN, pa.array([1, 2, 4]), queue=pa.array([6] * 3)),
    ])  # fmt: skip
    kept = still_needed(rows, 10, pa.array([4]), pa.array([1])).to_pylist()
    found = sorted((row["connection_id"], row["ended_by"] or "", row["at_ns"], row["queue"]) for row in kept)
    assert found == [
        (1, "", None, 6), (1, "capture-end", 5, None), (3, "capture-end", 5, None), (3, "gap", 11, None),
        (4, "", None, 6), (4, "capture-end", 5, None),
    ]  # fmt: skip


def test_of_too_many_the_oldest_is_evicted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OUTSTANDING", 2)
    c = Connection()
    for _ in range(3):
        ask(c, "1")
    end = answer(c, "1")
    assert [(row["ended_by"], row["answer_frame_no"]) for row in called([c])] == [
        ("evicted", None), (None, end), ("capture-end", None),
    ]  # fmt: skip


STEPS = st.lists(
    st.tuples(st.integers(0, 2), st.booleans(), st.sampled_from("12"), st.sampled_from(["mine", DIRECT])), max_size=30
)


@settings(deadline=None)
@given(
    STEPS, st.integers(1, 7), st.integers(1, 7), st.booleans(),
    st.lists(st.sampled_from(["a", "b", None]), min_size=3, max_size=3),
)  # fmt: skip
def test_any_calls_in_any_batches(
    steps: list[tuple[int, bool, str, str]], size: int, sorted_size: int, moved: bool, vhosts: list[str | None]
) -> None:
    """Against the plain reading; rows of a key may be in several batches, and keys in several tasks."""
    connections = [place(vhost) for vhost in vhosts]
    contents: list[dict[str, Any]] = []
    for tick, (number, asks, name, to) in enumerate(steps):
        c = connections[number]
        row = {"correlation_id": name, "ts_ns": tick, "exchange": ""}
        row |= {"routing_key": "work", "reply_to": to} if asks else {"routing_key": to, "reply_to": None}
        frame = (c.publish if asks else c.deliver)(1, **row)
        contents.append(
            {"properties": row, **row, "kind": "publish" if asks else "deliver", "connection": c.id, "frame_no": frame}
        )
    expected = [
        (row["request"]["connection"], row["request"]["frame_no"],
         *((row["answer"][each] if row["answer"] else None) for each in ("connection", "frame_no")),
         ("proven" if row["alone"] else "possible") if row["answer"] else None)
        for row in plain.calls(contents, {c.id: c.columns["vhost"] for c in connections if c.messages})
    ]  # fmt: skip
    made = over(CallParts, list(in_order(arrow(connections), [CallParts()])), size, moved)
    parts = pa.concat_tables([PARTS.empty_table(), *made.parts.get(CALLS, ())])
    ends = pa.concat_tables([WHEN.empty_table(), *made.parts.get(ENDS, ())])
    parts = parts.sort_by([(name, "ascending") for name in module.ORDER])
    found = []
    for task in range(2):
        mine = parts.filter(pa.array([key % 2 == task for key in parts["key"].to_pylist()], pa.bool_()))
        walk, rows = Calls(ends), Collected()
        for at in range(0, len(mine), sorted_size):
            rows.add(walk.feed(mine.slice(at, sorted_size)))
        rows.add(walk.finish())
        found += rows.table("calls").to_pylist()
    columns = ("request_connection_id", "request_frame_no", "answer_connection_id", "answer_frame_no", "evidence")
    assert sorted([tuple(row[name] for name in columns) for row in found], key=str) == sorted(expected, key=str)


def test_a_recording_has_the_calls_of_its_client() -> None:
    golden = json.loads(RECORDING.with_suffix(".golden.json").read_text())["calls"]
    made = {row["correlation_id"]: row for row in amqpscope.analyze(RECORDING)["calls"].to_pylist()}
    assert [(name, row["reply_to"], row["answer_packet"] is not None) for name, row in sorted(made.items())] == [
        (row["correlation_id"], row["reply_to"], row["answered"]) for row in golden
    ]
    assert made["call-6"]["ended_by"] == "connection-close"
    elsewhere = made["call-7"]
    assert elsewhere["request_connection_id"] != elsewhere["answer_connection_id"]
    expected = {
        row["request"]["properties"]["correlation_id"]: row
        for row in plain.calls(messages(reference.frames(RECORDING)))
    }
    for name, row in made.items():
        for side in ("request", "answer"):
            other = expected[name][side] or {}
            assert [row[f"{side}_{each}"] for each in ("frame_no", "packet", "ts_ns")] == [
                other.get(each) for each in ("frame_no", "packet", "ts_ns")
            ]
    answered = [row for row in made.values() if row["answer_packet"]]
    assert all(row["latency_ns"] >= 2_000_000 and row["evidence"] == "proven" for row in answered), "the server sleeps"


def test_requests_that_exceed_memory_go_to_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of all keys, of which each has its rows together."""
    tables = dissect(RECORDING)
    given = [tables[name] for name in ("messages", "connections", "anomalies")]
    expected = jobs.calls(*given)
    monkeypatch.setattr(engine, "ROOM", 0)
    spilled = []
    monkeypatch.setattr(Pile, "_spill", lambda self, spill=Pile._spill: (spilled.append(self), spill(self)))
    assert sorted(jobs.calls(*given).to_pylist(), key=str) == sorted(expected.to_pylist(), key=str)
    assert len(expected) == 8 and spilled


def test_calls_on_spark_are_the_same(spark: Any) -> None:
    tables = dissect(RECORDING)
    here = jobs.calls(tables["messages"], tables["connections"], tables["anomalies"])
    there = jobs.calls(*(spark.createDataFrame(tables[name]) for name in ("messages", "connections", "anomalies")))
    assert sorted(there.toArrow().to_pylist(), key=str) == sorted(here.to_pylist(), key=str)
    assert len(here) == 8
