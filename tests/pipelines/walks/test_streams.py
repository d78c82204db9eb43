"""Statistics of streams: recordings against plain readings of their frames and the clients' logs, and cases by hand."""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from amqpscope.pipelines.model import store
from amqpscope.pipelines.model.events import SOURCES
from amqpscope.pipelines.model.walk import schema
from amqpscope.pipelines.run.engine import batches, walked
from amqpscope.pipelines.stream import stored, stream_confirms
from amqpscope.pipelines.stream.stream_confirms import StreamConfirms
from amqpscope.pipelines.stream.stream_credit import StreamCredit
from amqpscope.pipelines.stream.stream_deliveries import OFFSETS, PARTIAL, StreamOffsets
from amqpscope.pipelines.stream.stream_lag import StreamLag, lagging, sort
from amqpscope.pipelines.stream.stream_metadata import StreamMetadata
from tests.pipelines.walks.talks import (
    CAPTURES,
    RECORDED,
    Row,
    Tables,
    Talk,
    recorded,
    rows_of,
    same_in_every_manner,
    tables_of,
    together,
    walk,
)  # fmt: skip

WALKS = (StreamConfirms, StreamCredit, StreamOffsets)


def confirms(tables: Tables, **options: Any) -> list[Row]:
    """Rows of `confirms`, with what all connections together tell, in the order of publishes."""
    parts = walk(tables, lambda: StreamConfirms(**options))
    found = pa.concat_tables([schema("confirms").empty_table(), *parts.get("confirms", ())])
    known = pa.concat_tables([stored.SCHEMA.empty_table(), *parts.get(stored.PARTIAL, ())])
    rows: list[Row] = stored.resolve(found, stored.verdicts(known)).to_pylist()
    return sorted(rows, key=lambda row: (row["connection_id"], row["publish_frame_no"], row["publish_seq"]))


def of_connections(tables: Tables, **options: Any) -> list[Row]:
    """Rows of `confirms`, with what each connection alone tells."""
    rows = rows_of(walk(tables, lambda: StreamConfirms(**options)), "confirms")
    return sorted(rows, key=lambda row: (row["connection_id"], row["publish_frame_no"], row["publish_seq"]))


def credit(tables: Tables) -> tuple[list[Row], list[Row]]:
    """Rows of `stream_credit` and `flow_control`."""
    parts = walk(tables, StreamCredit)
    return (
        sorted(rows_of(parts, "stream_credit"), key=lambda row: (row["connection_id"], row["frame_no"])),
        sorted(rows_of(parts, "flow_control"), key=lambda row: (row["connection_id"], row["start_frame_no"])),
    )


def deliveries(tables: Tables) -> list[Row]:
    """Rows of `stream_deliveries`."""
    parts = [part for make in WALKS for part in walk(tables, make).get(PARTIAL, [])]
    rows: list[Row] = lagging(pa.concat_tables([OFFSETS.empty_table(), *parts])).to_pylist()
    return sorted(rows, key=lambda row: (row["connection_id"], row["frame_no"]))


def golden(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((CAPTURES / f"{name}.golden.json").read_text())
    return found


@pytest.fixture(scope="module")
def tables() -> dict[str, dict[str, pa.Table]]:
    """Tables of dissect, by scenario."""
    return {name: recorded(name) for name in RECORDED}


@pytest.fixture(scope="module")
def frames(tables) -> dict[str, list[Row]]:
    return {name: found["stream_frames"].to_pylist() for name, found in tables.items()}


# --------------------------------------------------------------------------------------------------------- recorded


@pytest.fixture(scope="module")
def confirmed(tables) -> dict[str, list[Row]]:
    return {name: confirms(found) for name, found in tables.items()}


def test_ids_sent_again_are_reported(confirmed):
    rows = confirmed["stream_calls"]
    names = ("publisher_id", "publisher_reference", "publish_seq", "outcome", "reply_code", "deduplicated", "ended_by")
    assert [tuple(row[name] for name in names) for row in rows] == [
        (5, "ref", 5, "ack", None, False, None),
        (5, "ref", 6, "ack", None, False, None),
        (5, "ref", 7, "ack", None, False, None),
        (5, "ref", 6, "ack", None, True, None),
        (5, "ref", 7, "ack", None, True, None),
        (5, "ref", 8, "ack", None, False, None),
        (9, None, 1, "nack", 18, None, None),
        (9, None, 2, "nack", 18, None, None),
    ]


@pytest.mark.parametrize("name", ["stream_rstream", "stream_chunks"])
def test_publishes_are_those_of_the_books(confirmed, name):
    records = [row for row in golden(name)["records"] if row["kind"] == "publish"]
    book = Counter((row["stream"], row["publish_seq"]) for row in records)
    rows = [row for row in confirmed[name] if row["stream"] == records[0]["stream"]]
    assert {(row["stream"], row["publish_seq"]): row["records"] for row in rows} == book
    # the last publish of rstream was not confirmed before its publisher was deleted
    open_still = [(30, "none", "connection-close", None)] if name == "stream_rstream" else []
    assert [
        (row["publish_seq"], row["outcome"], row["ended_by"], row["deduplicated"])
        for row in rows
        if row["outcome"] != "ack"
    ] == open_still
    # the streams were created before in the same capture, so that nothing was stored
    assert {row["deduplicated"] for row in rows if row["outcome"] == "ack"} == {False}
    log = json.loads((CAPTURES / f"{name}.log.json").read_text())["events"]
    reported = {event["publishing_id"] for event in log if event["what"] == "confirmed" and event["confirmed"]}
    assert reported <= {row["publish_seq"] for row in rows if row["outcome"] == "ack"}


def test_ids_that_a_client_sent_again_were_dropped(confirmed):
    """A second connection of the same publisher sent some ids anew; the consumer got them once."""
    book = [row for row in golden("stream_super")["records"] if row["kind"] == "publish" and row["stream"] == "twice"]
    rows = sorted(
        (row for row in confirmed["stream_super"] if row["stream"] == "twice"), key=lambda row: row["publish_ts_ns"]
    )
    assert [(row["publish_seq"], row["deduplicated"]) for row in rows] == [
        (row["publish_seq"], row["deduplicated"]) for row in book
    ]
    got = [r for r in golden("stream_super")["records"] if r["kind"] == "deliver" and r["stream"] == "twice"]
    assert len(got) == sum(not row["deduplicated"] for row in rows)


@pytest.mark.parametrize("name", RECORDED)
def test_every_confirm_is_somebodys(confirmed, frames, name):
    """Each id that the broker confirms or refuses is the answer to one publish; ends are the frames that say so."""
    reported = [
        (row["connection_id"], row["frame_no"], number)
        for row in frames[name]
        for number in [
            *json.loads(row["publishing_ids"] or "[]"),
            *(each["publishing_id"] for each in json.loads(row["publishing_errors"] or "[]")),
        ]
    ]
    rows = [row for row in confirmed[name] if row["outcome"] != "none"]
    assert sorted((r["connection_id"], r["confirm_frame_no"], r["publish_seq"]) for r in rows) == sorted(reported)
    by_number = {(row["connection_id"], row["frame_no"]): row for row in frames[name]}
    for row in rows:
        frame = by_number[row["connection_id"], row["confirm_frame_no"]]
        assert (frame["packet"], frame["ts_ns"]) == (row["confirm_packet"], row["confirm_ts_ns"])
        assert row["latency_ns"] == row["confirm_ts_ns"] - row["publish_ts_ns"] > 0


def test_credit_is_counted(tables, frames):
    for name in RECORDED:
        expected = [row for rows in plain_accounts(frames[name]).values() for row in rows]
        found, _ = credit(tables[name])
        got = [
            (r["connection_id"], r["frame_no"], r["event"], r["granted"], r["used"], r["balance"], r["stream"])
            for r in found
        ]
        assert sorted(got, key=str) == sorted(expected, key=str)
    zero = [row for row in credit(tables["stream_chunks"])[0] if row["balance"] == 0]
    assert zero
    assert all(row["zero_since_ts_ns"] == row["ts_ns"] for row in zero)
    assert all((row["zero_since_ts_ns"] is not None) == (row["balance"] <= 0) for row in zero)


def plain_accounts(frames: list[Row]) -> dict[tuple[int, int], list[tuple[Any, ...]]]:
    """Credit by subscription, counted frame by frame."""
    codes = {
        (row["connection_id"], row["correlation_id"]): row["response_code"]
        for row in frames
        if row["command"] == "subscribe" and row["is_response"]
    }
    accounts: dict[tuple[int, int], list[int]] = {}
    streams: dict[tuple[int, int], str] = {}
    found: dict[tuple[int, int], list[tuple[Any, ...]]] = defaultdict(list)
    for row in sorted(frames, key=lambda row: (row["connection_id"], row["frame_no"])):
        if row["command"] not in ("subscribe", "credit", "deliver", "unsubscribe") or row["is_response"]:
            continue
        key = row["connection_id"], row["subscription_id"]
        if row["command"] == "subscribe":
            if codes.get((row["connection_id"], row["correlation_id"]), 1) != 1:
                continue
            accounts[key], streams[key] = [0, 0], row["stream"]
        account = accounts.get(key, [0, 0])
        account[0] += row["credit"] or 0
        account[1] += row["command"] == "deliver"
        balance = account[0] - account[1] if key in accounts else None
        event = (row["connection_id"], row["frame_no"], row["command"], *account, balance, streams.get(key))
        found[key].append(event)
    return found


@pytest.mark.parametrize("name", RECORDED)
def test_ages_and_lags(tables, frames, name):
    rows = deliveries(tables[name])
    sent = {(r["connection_id"], r["frame_no"]): r for r in frames[name] if r["command"] == "deliver"}
    assert {(row["connection_id"], row["frame_no"]) for row in rows} == set(sent)
    records = Counter(
        (m["connection_id"], m["frame_no"]) for m in tables[name]["messages"].to_pylist() if m["kind"] == "deliver"
    )
    stored_offsets = [row for row in frames[name] if row["command"] == "store-offset"]
    published = [row for row in tables[name]["messages"].to_pylist() if row["kind"] == "publish"]
    confirmed = [row for row in confirms(tables[name]) if row["outcome"] == "ack" and row["deduplicated"] is False]
    for row in rows:
        frame = sent[row["connection_id"], row["frame_no"]]
        assert row["chunk_ts_ns"] == frame["chunk_timestamp"] * 1_000_000
        assert row["age_ns"] == row["ts_ns"] - row["chunk_ts_ns"] > 0
        assert row["last_offset"] == frame["chunk_id"] + frame["chunk_records"] - 1
        if row["chunk_type"] == 0:
            assert row["records"] == records[row["connection_id"], row["frame_no"]]
        seen = [r["last_offset"] for r in rows if r["stream"] == row["stream"] and r["ts_ns"] <= row["ts_ns"]]
        seen += [r["offset"] for r in stored_offsets if r["stream"] == row["stream"] and r["ts_ns"] <= row["ts_ns"]]
        more = sum(r["stream"] == row["stream"] and r["ts_ns"] <= row["ts_ns"] for r in published)
        assert max(seen) <= row["stream_offset"] <= max(seen) + more
        is_known = (frame["committed_chunk_id"] or -1) >= frame["chunk_id"] or any(
            r["stream"] == row["stream"] and r["confirm_ts_ns"] <= row["ts_ns"] for r in confirmed
        )
        lag = row["stream_offset"] - row["last_offset"]
        assert row["lag_records"] == (lag if lag or is_known else None)


@pytest.mark.parametrize("make", WALKS)
def test_recordings_in_every_manner(tables, make):
    same_in_every_manner(together(tables.values()), make, (7, 1000))


@pytest.mark.compiled
@pytest.mark.parametrize("make", WALKS)
def test_recordings_compiled(tables, make):
    chance = random.Random(3)
    found = together([*tables.values(), tables_of(*(any_talk(chance, number) for number in range(1, 9)))])
    plain, compiled = (walk(found, lambda c=c: make(compiled=c), 500) for c in (False, True))
    assert {name: rows_of(plain, name) for name in plain} == {name: rows_of(compiled, name) for name in compiled}
    if PARTIAL in plain:
        rows = pa.concat_tables(plain[PARTIAL])
        assert lagging(rows).equals(lagging(rows, compiled=True))


# --------------------------------------------------------------------------------------------------------- confirms


def test_confirms_by_hand():
    anonymous = Talk(1)  # ids declared anew, errors, sub-batches, numbers beyond 63 bits
    anonymous.confirm(7)  # of a publish before the capture
    anonymous.publish(1, records=3)
    anonymous.publish(2)
    anonymous.confirm(1, 2**64 - 1)
    anonymous.publish(1, epoch=2)  # 2 is never answered: what comes now is of the second publisher
    anonymous.publish(2, epoch=2)
    anonymous.publish(3, epoch=2, publisher=9)
    anonymous.confirm(2, 1)
    anonymous.refuse((3, 18), (4, 17), publisher=9)
    unknown = Talk(2)
    unknown.publish(5, epoch=None)
    unknown.frame(False, "heartbeat")
    unknown.lose()
    unknown.publish(6, epoch=None)
    closed = Talk(3, closed_by="server-close")
    closed.publish(1)
    closed.frame(False, "close", correlation_id=1, closing_code=13)
    closed.publish(2)
    tables = tables_of(anonymous, unknown, closed)
    names = (
        "connection_id", "publisher_id", "publisher_epoch", "publish_seq", "publish_frame_no", "confirm_frame_no",
        "outcome", "reply_code", "records", "deduplicated", "ended_by", "end_ts_ns",
    )  # fmt: skip
    assert [tuple(row[name] for name in names) for row in confirms(tables)] == [
        (1, 1, 1, 1, 1, 3, "ack", None, 3, False, None, None),
        (1, 1, 1, 2, 2, None, "none", None, 1, None, "capture-end", 9000),
        (1, 1, 2, 1, 4, 7, "ack", None, 1, False, None, None),
        (1, 1, 2, 2, 5, 7, "ack", None, 1, False, None, None),
        (1, 9, 2, 3, 6, 8, "nack", 18, 1, None, None, None),
        (2, 1, None, 5, 0, None, "none", None, 1, None, "gap", 1000),
        (2, 1, None, 6, 2, None, "none", None, 1, None, "capture-end", 3000),
        (3, 1, 1, 1, 0, None, "none", None, 1, None, "connection-close", 1000),
        (3, 1, 1, 2, 2, None, "none", None, 1, None, "discarded", 1000),
    ]
    same_in_every_manner(tables, StreamConfirms)


def test_all_columns():
    talk = Talk(1)
    talk.frame(False, "heartbeat")
    talk.publish(4, 5, publisher_reference="r", message_id="m")
    talk.frame(False, "heartbeat")
    talk.confirm(5, 4)
    row = confirms(tables_of(talk))[0]
    assert {name: value for name, value in row.items() if value is not None} == {
        "connection_id": 1, "protocol": "rabbitmq-stream", "publish_seq": 4, "publisher_id": 1, "publisher_epoch": 1,
        "publisher_reference": "r", "stream": "s", "message_id": "m", "body_size": 10, "records": 1, "outcome": "ack",
        "multiple": True, "returned": False, "publish_frame_no": 1, "publish_packet": 2, "publish_ts_ns": 1000,
        "publish_capture": "a.pcap", "confirm_frame_no": 3, "confirm_packet": 4, "confirm_ts_ns": 3000,
        "confirm_capture": "a.pcap", "latency_ns": 2000,
    }  # fmt: skip


def test_records_of_an_id_are_one_row():
    """Records of one frame and id are counted together, under the least of their names; sent again is another row."""
    talk = Talk(1)
    talk.publish(1, records=2, message_id="c")
    for name, number in (("b", 1), ("z", 2), ("a", 1), (None, 3), ("y", 2), ("x", 3)):
        row = talk.messages[-1] | {"message_id": name, "publish_seq": number, "body_size": None if name == "z" else 1}
        talk.messages.append(row)
    talk.publish(1, message_id="d")
    talk.confirm(1, 2, 3, 1)
    rows = confirms(tables_of(talk))
    names = ("publish_frame_no", "publish_seq", "records", "body_size", "message_id", "outcome")
    assert [tuple(row[name] for name in names) for row in rows] == [
        (0, 1, 4, 22, "a", "ack"), (0, 2, 2, 1, "y", "ack"), (0, 3, 2, 2, "x", "ack"), (1, 1, 1, 10, "d", "ack"),
    ]  # fmt: skip
    same_in_every_manner(tables_of(talk), StreamConfirms)


@pytest.mark.parametrize(("reference", "dropped"), [("p", [False, False, True, True]), (None, [False] * 4)])
def test_an_id_that_is_twice_in_a_frame_was_sent_twice(reference, dropped):
    """Records of a sub-batch are one sending; each other entry is its own, with its own answer."""
    talk, creator = Talk(2), Talk(1)
    creator.ask("create", 1, stream="s", ts_ns=0)
    talk.publish(1, epoch=1, ts_ns=5000, publisher_reference=reference)
    talk.messages *= 6
    for row, (number, entry) in enumerate([(1, 0), (2, 1), (2, 1), (2, 1), (1, 4), (2, 5)]):
        talk.messages[row] = talk.messages[row] | {"publish_seq": number, "entry": entry}
    talk.confirm(1, 2)
    talk.confirm(1, 2)
    rows = confirms(tables_of(creator, talk))
    found = [(r["publish_seq"], r["records"], r["confirm_frame_no"], r["deduplicated"]) for r in rows]
    assert sorted(found) == sorted(
        (number, records, frame, gone)
        for (number, records, frame), gone in zip([(1, 1, 1), (2, 3, 1), (1, 1, 2), (2, 1, 2)], dropped, strict=True)
    )
    same_in_every_manner(tables_of(creator, talk), StreamConfirms)


def test_answers_are_one_for_each_sending():
    talk = Talk(1)
    talk.publish(1)
    talk.publish(1)
    talk.publish(1)
    talk.confirm(1)
    talk.refuse((1, 6))
    rows = confirms(tables_of(talk))
    assert [(row["outcome"], row["confirm_frame_no"], row["ended_by"]) for row in rows] == [
        ("ack", 3, None), ("nack", 4, None), ("none", None, "capture-end"),
    ]  # fmt: skip


def test_after_a_gap_it_is_unknown_which_sending_was_answered():
    talk = Talk(1)
    talk.publish(1, 2)
    talk.frame(False, "heartbeat")
    talk.lose()
    talk.publish(1)
    talk.confirm(1, 2)  # 2 was sent once: that is certain
    talk.publish(1)
    talk.confirm(1)  # it may be of the sending before
    rows = confirms(tables_of(talk))
    assert [(row["publish_seq"], row["outcome"], row["ended_by"], row["end_ts_ns"]) for row in rows] == [
        (1, "none", "gap", 1000), (2, "ack", None, None), (1, "none", "gap", 2000), (1, "none", "gap", 4000),
    ]  # fmt: skip
    same_in_every_manner(tables_of(talk), StreamConfirms)


def test_the_first_gap_counts():
    talk = Talk(1, closed_by="client")
    talk.publish(1)
    for _ in range(2):
        talk.frame(False, "heartbeat")
        talk.lose()
    talk.publish(2)
    talk.frame(False, "close", correlation_id=1)
    talk.lose(from_client=True)  # of the other side
    talk.frame(False, "heartbeat")
    talk.lose()  # after the close nothing is answered
    rows = confirms(tables_of(talk))
    assert [(row["ended_by"], row["end_ts_ns"]) for row in rows] == [("gap", 1000), ("connection-close", 4000)]


@pytest.mark.parametrize("command", ["publish-confirm", None])
def test_a_cut_answer_is_a_gap(command):
    talk = Talk(1)
    talk.publish(1, 2)
    talk.frame(False, command, publisher_id=1, publishing_ids="[2", is_partial=True)
    talk.publish(3)
    rows = confirms(tables_of(talk))
    first = [("none", "gap"), ("ack", None)] if command else [("none", "gap"), ("none", "gap")]
    assert [(row["outcome"], row["ended_by"]) for row in rows] == [*first, ("none", "capture-end")]


def test_a_cut_delivery_is_no_gap_for_confirms():
    talk = Talk(1)
    talk.publish(1)
    talk.frame(False, "deliver", subscription_id=1, is_partial=True)
    assert [row["ended_by"] for row in confirms(tables_of(talk))] == ["capture-end"]


def test_one_direction():
    alone = Talk(1)
    alone.publish(1)
    alone.publish(2)
    answers = Talk(2)
    answers.confirm(1)
    rows = confirms(tables_of(alone, answers))
    assert [(row["outcome"], row["ended_by"], row["end_ts_ns"]) for row in rows] == [("none", "gap", 1000)] * 2
    same_in_every_manner(tables_of(alone, answers), StreamConfirms)


def test_deduplication_by_hand():
    def sent(talk: Talk, name: str, *numbers: int, epoch: int = 1) -> None:
        for number in numbers:
            talk.publish(number, epoch=epoch, publisher_reference=name)
        talk.confirm(*numbers)

    talk = Talk(1)
    sent(talk, "a", 5, 4, 6)  # nothing is known of what was stored
    talk.ask("query-publisher-sequence", 1, reported={"sequence": 6}, stream="s", publisher_reference="a")
    sent(talk, "a", 6, 7, epoch=2)
    talk.ask("query-publisher-sequence", 2, reported={"sequence": 0}, stream="s", publisher_reference="b")
    sent(talk, "b", 0, 1, 1, epoch=3)
    talk.ask("create", 3, stream="s")
    sent(talk, "a", 0, 1, epoch=4)
    for read in (confirms, of_connections):
        assert [(row["publisher_epoch"], row["publish_seq"], row["deduplicated"]) for row in read(tables_of(talk))] == [
            (1, 5, None), (1, 4, True), (1, 6, None), (2, 6, True), (2, 7, False), (3, 0, None), (3, 1, False),
            (3, 1, True), (4, 0, False), (4, 1, False),
        ]  # fmt: skip
    same_in_every_manner(tables_of(talk), StreamConfirms)


def named(number: int, *ids: int, begin: int = 0, confirmed: tuple[int, ...] | None = None, **columns: Any) -> Talk:
    """A connection with a publisher named `a`, whose frames come from a time on."""
    talk = Talk(number, **columns)
    talk.frame(True, "declare-publisher", publisher_id=1, correlation_id=9, stream="s", publisher_reference="a")
    talk.publish(*ids, publisher_reference="a")
    talk.confirm(*(ids if confirmed is None else confirmed))
    for row in (*talk.frames, *talk.messages):
        row["ts_ns"] += begin
    return talk


def deduplicated(*talks: Talk) -> list[tuple[int, int, Any]]:
    """Of the second connection."""
    return [(r["publish_seq"], r["deduplicated"]) for r in confirms(tables_of(*talks)) if r["connection_id"] == 2]


def test_what_other_connections_tell_of_deduplication():
    creator = Talk(3)
    creator.ask("create", 1, stream="s")
    assert deduplicated(named(2, 1, 2, begin=10_000)) == [(1, None), (2, None)]
    first, second = named(1, 1, 2, begin=100_000), named(2, 2, 3, begin=200_000)
    assert deduplicated(first, second) == [(2, True), (3, None)]
    assert deduplicated(creator, first, second) == [(2, True), (3, False)]
    # at the same time: who knows what came first
    assert deduplicated(creator, first, named(2, 2, 3, begin=100_500)) == [(2, None), (3, None)]
    # what the first sent without an answer may be stored, or not
    lost = named(1, 1, 2, 3, begin=100_000, confirmed=(1,))
    assert deduplicated(creator, lost, named(2, 1, 2, 3, 4, begin=200_000)) == [
        (1, True), (2, None), (3, None), (4, False),
    ]  # fmt: skip
    # deleted in between: nothing is stored any more
    deleter = Talk(4)
    deleter.ask("delete", 1, stream="s")
    for row in deleter.frames:
        row["ts_ns"] += 150_000
    assert deduplicated(creator, first, deleter, second) == [(2, False), (3, False)]
    refuser = Talk(5)
    refuser.ask("create", 1, code=5, stream="s")
    assert deduplicated(refuser, named(2, 1, begin=10_000)) == [(1, None)]


def test_deduplication_where_publishes_may_be_lost():
    creator = Talk(3)
    creator.ask("create", 1, stream="s")
    lossy = named(2, 1, 3, begin=100_000)
    place = {k: lossy.frames[1][k] for k in ("connection_id", "frame_no", "ts_ns", "from_client")}
    lossy.anomalies.append(place | {"code": "tcp-gap"})
    assert deduplicated(creator, lossy) == [(1, None), (3, None)]
    lossy.anomalies[0]["frame_no"] = 0  # before the publisher was declared
    assert deduplicated(creator, lossy) == [(1, False), (3, False)]


def test_an_id_is_no_repetition_of_one_that_was_refused():
    def rows(**columns: Any) -> list[Any]:
        talk = Talk(1)
        talk.ask("create", 1, stream="s")
        talk.publish(5, 9, publisher_reference="a")
        talk.refuse((9, 17))
        if columns.get("first"):
            talk.confirm(5)
        talk.publish(5, 8, publisher_reference="a")
        talk.confirm(*([5] if not columns.get("first") else []), 5, 8)
        return [(row["publish_seq"], row["deduplicated"]) for row in confirms(tables_of(talk))]

    assert rows(first=True) == [(5, False), (9, None), (5, True), (8, False)]
    # 9 was the highest that was sent, and nobody had reported 5 by then
    assert rows() == [(5, False), (9, None), (5, None), (8, None)]


def test_more_than_may_wait():
    talk = Talk(1)
    talk.publish(1, 2)
    talk.publish(3)
    talk.publish(4, 5)
    talk.confirm(1, 2, 3, 4, 5)
    talk.publish(6)
    rows = confirms(tables_of(talk), limit=3)
    assert [(row["publish_seq"], row["outcome"], row["ended_by"], row["end_ts_ns"]) for row in rows] == [
        (1, "none", "evicted", 2000), (2, "none", "evicted", 2000), *((n, "ack", None, None) for n in (3, 4, 5)),
        (6, "none", "capture-end", 5000),
    ]  # fmt: skip
    same_in_every_manner(tables_of(talk), lambda: StreamConfirms(limit=3))


def any_talk(chance: random.Random, number: int, *, gaps: bool = True) -> Talk:
    """A connection in which ids are sent again, refused, forgotten, and publishers declared anew."""
    talk = Talk(number, closed_by=chance.choice([None, "client"]))
    epochs: dict[int, Any] = {1: 1, 2: 1, 3: None}
    sent: list[tuple[int, int]] = []
    for correlation in range(chance.randrange(10, 40)):
        publisher, what = chance.choice([1, 1, 1, 2, 3]), chance.random()
        if what < 0.45:
            numbers = [chance.randrange(12) for _ in range(chance.randrange(1, 5))]
            sent += [(publisher, each) for each in dict.fromkeys(numbers)]
            columns = {"publisher": publisher, "epoch": epochs[publisher], "records": chance.choice([1, 1, 3])}
            talk.publish(*numbers, **columns, publisher_reference="a" if publisher == 1 else None)
            for row in talk.messages[-3:]:
                row["message_id"] = chance.choice([None, "x", "y", "z"])
        elif what < 0.75:
            numbers = [each for of, each in sent if of == publisher][: chance.randrange(1, 6)]
            for each in numbers:
                sent.remove((publisher, each))
            if chance.random() < 0.2:
                talk.refuse(*((each, 17) for each in numbers), publisher=publisher)
            else:
                talk.confirm(*numbers, publisher=publisher)
        elif what < 0.8 and epochs[publisher] is not None and gaps:
            epochs[publisher] += 1
            talk.frame(True, "declare-publisher", publisher_id=publisher, correlation_id=correlation, stream="s")
        elif what < 0.86:
            reported = {"sequence": chance.randrange(12)}
            talk.ask("query-publisher-sequence", correlation, reported=reported, stream="s", publisher_reference="a")
        elif what < 0.9:
            talk.ask("create", correlation, code=chance.choice([1, 1, 5]), stream="s")
        elif what < 0.95 and gaps:
            talk.frame(chance.random() < 0.5, "heartbeat")
            talk.lose()
        elif what < 0.97 and gaps:
            talk.frame(chance.random() < 0.3, "close", correlation_id=0)
    return talk


def damaged(talk: Talk, chance: random.Random, from_client: bool) -> Talk:
    """The same without some frames of one side; frames have the times that they had."""
    made = Talk(talk.number)
    missing = False
    for row in talk.frames:
        if row["from_client"] == from_client and chance.random() < 0.2:
            missing = True
            continue
        made.frame(**row)
        if missing:
            made.lose(from_client=from_client)
            missing = False
        places = {"frame_no": made.frames[-1]["frame_no"]}
        made.messages += [each | places for each in talk.messages if each["frame_no"] == row["frame_no"]]
    return made


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(60))
def test_no_wrong_pairs_where_answers_are_lost(seed):
    """Whatever frames of the server are missing, what is paired was paired before."""
    chance = random.Random(seed)
    talk = any_talk(chance, 1, gaps=False)
    names = ("publisher_id", "publish_ts_ns", "publish_seq", "confirm_ts_ns", "outcome")
    whole = {tuple(row[name] for name in names) for row in confirms(tables_of(talk)) if row["outcome"] != "none"}
    rows = confirms(tables_of(damaged(talk, chance, from_client=False)))
    assert {tuple(row[name] for name in names) for row in rows if row["outcome"] != "none"} <= whole


def numbers_reported(frames: list[Row]) -> Counter[tuple[int, int, int, int]]:
    """How often each answer names an id: no answer is of more sendings than that."""
    reported: Counter[tuple[int, int, int, int]] = Counter()
    for row in frames:
        numbers = json.loads(row["publishing_ids"] or "[]")
        numbers += [each["publishing_id"] for each in json.loads(row["publishing_errors"] or "[]")]
        reported.update((row["connection_id"], row["frame_no"], row["publisher_id"], number) for number in numbers)
    return reported


@pytest.mark.parametrize("seed", range(4))
def test_confirms_in_every_manner(seed):
    chance = random.Random(seed)
    tables = tables_of(*(any_talk(chance, number) for number in range(1, 4)))
    same_in_every_manner(tables, lambda: StreamConfirms(limit=20), (1, 3, 50))
    rows = confirms(tables)
    assert sum(row["records"] for row in rows) == len(tables["messages"])
    names = ("connection_id", "confirm_frame_no", "publisher_id", "publish_seq")
    reported = numbers_reported(tables["stream_frames"].to_pylist())
    found = Counter(tuple(row[name] for name in names) for row in rows if row["outcome"] != "none")
    assert all(count <= reported[key] for key, count in found.items())


@pytest.mark.parametrize(("columns", "compiled"), [(1, False), (3, True)])
def test_room_that_grows_and_spills(monkeypatch, columns, compiled):
    """With room for four ids at first, rows out of the way of others, and arrays in files."""
    monkeypatch.setattr(stream_confirms, "FIRST", 4)
    monkeypatch.setattr(store, "SPILL", 1 << 10)
    talk = Talk(1)
    for start in range(0, 300, 20):
        talk.publish(*range(start, start + 20))
        if start % 40:
            talk.confirm(*range(start - 20, start + 20, columns))
    tables = tables_of(talk, Talk(2))
    rows = confirms(tables, compiled=compiled)
    assert [row["publish_seq"] for row in rows] == list(range(300))
    assert [row["outcome"] for row in rows] == [
        "ack" if number < 280 and (number - number // 40 * 40) % columns == 0 else "none" for number in range(300)
    ]
    same_in_every_manner(tables, lambda: StreamConfirms(compiled=compiled), (7, 100))


# ----------------------------------------------------------------------------------------------------------- credit


def test_waits_for_credit_by_hand():
    talk = Talk(1)
    talk.ask("subscribe", 1, subscription_id=3, stream="s", credit=2, properties='{"name":"app"}')  # 0, 1
    for _ in range(2):
        talk.frame(False, "deliver", subscription_id=3)  # 2, 3: none left
    talk.frame(True, "credit", subscription_id=3, credit=1)  # 4
    talk.frame(False, "deliver", subscription_id=3)  # 5: none left
    talk.ask("subscribe", 2, code=3, subscription_id=3, stream="other", credit=9)  # 6, 7: refused
    talk.frame(True, "credit", subscription_id=3, credit=2)  # 8
    talk.frame(False, "deliver", subscription_id=3, ts_ns=1_008_001)  # 9: too late to prove anything
    talk.ask("unsubscribe", 3, subscription_id=3)  # 10, 11
    talk.ask("subscribe", 4, subscription_id=3, stream="s2", credit=0)  # 12, 13: none from the start
    talk.frame(False, "deliver", subscription_id=4)  # 14: of a subscription that was not seen
    rows, waits = credit(tables_of(talk))
    names = ("frame_no", "event", "subscription_epoch", "stream", "consumer", "granted", "used", "balance")
    assert [(*(row[name] for name in names), row["zero_since_ts_ns"]) for row in rows] == [
        (0, "subscribe", 1, "s", "app", 2, 0, 2, None),
        (2, "deliver", 1, "s", "app", 2, 1, 1, None),
        (3, "deliver", 1, "s", "app", 2, 2, 0, 3000),
        (4, "credit", 1, "s", "app", 3, 2, 1, None),
        (5, "deliver", 1, "s", "app", 3, 3, 0, 5000),
        (8, "credit", 1, "s", "app", 5, 3, 2, None),
        (9, "deliver", 1, "s", "app", 5, 4, 1, None),
        (10, "unsubscribe", 1, "s", "app", 5, 4, 1, None),
        (12, "subscribe", 2, "s2", None, 0, 0, 0, 12000),
        (14, "deliver", 0, None, None, 0, 1, None, None),
    ]
    names = ("start_frame_no", "end_frame_no", "duration_ns", "evidence", "side", "cause", "consumer_tag")
    assert [tuple(row[name] for name in names) for row in waits] == [
        (3, 4, 1000, "proven", "client", "stream-credit", "3"),
        (5, 8, 3000, "possible", "client", "stream-credit", "3"),
        (12, None, 3000, "possible", "client", "stream-credit", "3"),
    ]
    same_in_every_manner(tables_of(talk), StreamCredit)


@pytest.mark.parametrize(
    ("rtt_ns", "behind", "evidence"),
    [
        (10_000, 1_000_000, "proven"), (10_000, 1_000_001, "possible"), (600_000, 1_200_000, "proven"),
        (600_000, 1_200_001, "possible"), (None, 1_000_000, "proven"), (10_000, -1, "possible"),
    ],
)  # fmt: skip
def test_what_proves_a_wait(rtt_ns, behind, evidence):
    talk = Talk(1, rtt_ns=rtt_ns)
    talk.ask("subscribe", 1, subscription_id=3, stream="s", credit=1)
    talk.frame(False, "deliver", subscription_id=3)
    talk.frame(True, "credit", subscription_id=3, credit=1)
    talk.frame(False, "deliver", subscription_id=3, ts_ns=3000 + behind)
    assert [row["evidence"] for row in credit(tables_of(talk))[1]] == [evidence, "possible"]


@pytest.mark.parametrize("ahead_ms", [-90_000, 0, 90_000])
@pytest.mark.parametrize(
    ("written_ms", "evidence"), [(110, "proven"), (248, "proven"), (250, "possible"), (320, "possible")]
)
def test_a_chunk_that_was_written_before_the_credit_came_waited_for_it(ahead_ms, written_ms, evidence):
    """Credit comes at 300 ms; the first chunk took 50 ms at most. The broker's clock says nothing alone."""
    talk = Talk(1)
    talk.ask("subscribe", 1, subscription_id=3, stream="s", credit=1)
    base = 1_000_000
    for event, ms, written in (("deliver", 150, 100), ("credit", 300, None), ("deliver", 400, written_ms)):
        columns = {"credit": 1} if event == "credit" else {"chunk_timestamp": base + written + ahead_ms}
        talk.frame(event == "credit", event, subscription_id=3, ts_ns=(base + ms) * 1_000_000, **columns)
    (row, _) = credit(tables_of(talk))[1]
    assert (row["evidence"], row["duration_ns"]) == (evidence, 150_000_000)
    same_in_every_manner(tables_of(talk), StreamCredit)


def test_a_wait_across_a_clock_that_steps_back_has_no_length():
    talk = Talk(1)
    talk.ask("subscribe", 1, subscription_id=3, stream="s", credit=1)
    talk.frame(False, "deliver", subscription_id=3)
    talk.frame(True, "credit", subscription_id=3, credit=1, ts_ns=1000)
    (row,) = credit(tables_of(talk))[1]
    assert (row["start_ts_ns"], row["end_ts_ns"], row["duration_ns"]) == (2000, 1000, None)


def test_waits_end_with_the_connection_the_subscription_or_in_a_gap():
    def begun(number: int, **columns: Any) -> Talk:
        talk = Talk(number, **columns)
        talk.ask("subscribe", 1, subscription_id=3, stream="s", credit=1)
        talk.frame(False, "deliver", subscription_id=3)  # 2: none left
        return talk

    closed, cut, replaced, ended = (begun(number) for number in (1, 3, 4, 5))
    reset = begun(2, closed_by="reset", closed_ts_ns=7000)
    closed.frame(True, "close", correlation_id=5)
    cut.frame(False, "heartbeat")
    cut.lose()
    cut.frame(True, "credit", subscription_id=3, credit=1)
    replaced.ask("subscribe", 2, subscription_id=3, stream="t", credit=1)
    ended.ask("unsubscribe", 2, subscription_id=3)
    tables = tables_of(closed, reset, cut, replaced, ended)
    names = ("connection_id", "start_frame_no", "end_frame_no", "end_packet", "end_ts_ns", "duration_ns", "evidence")
    assert [tuple(row[name] for name in names) for row in credit(tables)[1]] == [
        (1, 2, 3, 4, 3000, 1000, "possible"),
        (2, 2, None, None, 7000, 5000, "possible"),
        (3, 2, None, None, None, 1000, "possible"),
        (4, 2, 3, 4, 3000, 1000, "possible"),
        (5, 2, 3, 4, 3000, 1000, "possible"),
    ]
    same_in_every_manner(tables, StreamCredit)


def test_after_a_gap_there_is_no_balance():
    talk, alone = Talk(1), Talk(2)
    talk.ask("subscribe", 1, subscription_id=3, stream="s", credit=2)
    talk.frame(False, "deliver", subscription_id=3)
    talk.frame(False, "deliver", subscription_id=3)
    talk.lose()
    talk.frame(True, "credit", subscription_id=3, credit=1)
    talk.ask("unsubscribe", 2, subscription_id=3)
    talk.ask("subscribe", 3, subscription_id=3, stream="s", credit=2)
    talk.frame(False, "deliver", subscription_id=3)
    alone.frame(True, "subscribe", correlation_id=1, subscription_id=3, stream="s", credit=2)
    found, _ = credit(tables_of(talk, alone))
    assert [row["balance"] for row in found] == [2, 1, None, None, None, 2, 1, None]
    same_in_every_manner(tables_of(talk, alone), StreamCredit)


def test_without_the_first_credit_there_is_no_balance():
    """The end of the subscribe is cut off: what is granted later is not all."""
    talk = Talk(1)
    talk.ask("subscribe", 1, subscription_id=3, stream="s", credit=None)
    talk.frame(False, "deliver", subscription_id=3)
    talk.frame(True, "credit", subscription_id=3, credit=1)
    talk.frame(False, "deliver", subscription_id=3)
    talk.frame(True, "subscribe", correlation_id=2, subscription_id=4, stream="s", credit=None)
    talk.frame(True, "credit", subscription_id=4, credit=1)
    found, waits = credit(tables_of(talk))
    assert [row["balance"] for row in found] == [None] * len(found)
    assert waits == []


def test_a_subscription_begins_for_the_client_when_it_asks_and_for_the_server_when_it_answers():
    talk = Talk(1)
    talk.ask("subscribe", 1, subscription_id=3, stream="s", credit=2)
    talk.frame(True, "unsubscribe", correlation_id=2, subscription_id=3)  # 2
    talk.frame(True, "subscribe", correlation_id=3, subscription_id=3, stream="t", credit=5)  # 3
    talk.frame(True, "credit", subscription_id=3, credit=1)  # 4: of the new one
    talk.frame(False, "deliver", subscription_id=3, chunk_id=0)  # 5: of the old one, still under way
    talk.frame(False, "unsubscribe", correlation_id=2, is_response=True, response_code=1)
    talk.frame(False, "subscribe", correlation_id=3, is_response=True, response_code=1)
    talk.frame(False, "deliver", subscription_id=3, chunk_id=0)  # 8
    rows, _ = credit(tables_of(talk))
    names = ("frame_no", "event", "stream", "subscription_epoch", "balance")
    assert [tuple(row[name] for name in names) for row in rows] == [
        (0, "subscribe", "s", 1, 2), (2, "unsubscribe", "s", 1, 2), (3, "subscribe", "t", 2, 5),
        (4, "credit", "t", 2, 6), (5, "deliver", "s", 1, 1), (8, "deliver", "t", 2, 5),
    ]  # fmt: skip
    assert [(row["frame_no"], row["stream"]) for row in deliveries(tables_of(talk))] == [(5, "s"), (8, "t")]
    same_in_every_manner(tables_of(talk), StreamCredit)


def test_an_answer_that_a_gap_took_was_no_refusal():
    talk = Talk(1)
    talk.frame(False, "heartbeat")
    talk.frame(True, "subscribe", correlation_id=3, subscription_id=3, stream="t", credit=5)
    talk.frame(False, "deliver", subscription_id=3, chunk_id=0)
    talk.lose()
    rows, _ = credit(tables_of(talk))
    assert [(row["event"], row["stream"], row["balance"]) for row in rows] == [
        ("subscribe", "t", 5), ("deliver", "t", None),
    ]  # fmt: skip
    assert [row["stream"] for row in deliveries(tables_of(talk))] == ["t"]


def test_an_answer_whose_correlation_id_is_cut_off_may_be_that_of_each_request():
    talk = Talk(1)
    talk.frame(True, "subscribe", correlation_id=1, subscription_id=3, stream="s", credit=2)
    talk.frame(False, "subscribe", is_response=True, is_partial=True)
    talk.frame(False, "deliver", subscription_id=3, chunk_id=0)  # 2
    talk.frame(True, "credit", subscription_id=3, credit=1)
    talk.frame(True, "subscribe", correlation_id=2, subscription_id=3, stream="t", credit=9)  # 4: mostly refused
    talk.frame(False, "subscribe", is_response=True, is_partial=True)
    talk.frame(False, "deliver", subscription_id=3, chunk_id=1)  # 6
    rows, _ = credit(tables_of(talk))
    assert [(row["frame_no"], row["event"], row["balance"]) for row in rows] == [
        (0, "subscribe", 2), (2, "deliver", 1), (3, "credit", 2), (4, "subscribe", 9), (6, "deliver", None),
    ]  # fmt: skip
    same_in_every_manner(tables_of(talk), StreamCredit)


@pytest.mark.parametrize("seed", range(4))
def test_subscriptions_in_every_manner(seed):
    chance = random.Random(seed)
    talks = []
    for number in range(1, 4):
        talk = Talk(number, closed_by=chance.choice([None, "client"]))
        for correlation in range(chance.randrange(40)):
            which, what = {"subscription_id": chance.choice([1, 2])}, chance.random()
            if what < 0.15:
                code = chance.choice([1, 1, 3, None])
                talk.frame(True, "subscribe", correlation_id=correlation, stream=chance.choice("st"), credit=2, **which)
                if chance.random() < 0.3:
                    talk.frame(False, "deliver", chunk_id=correlation, chunk_records=3, **which)
                if chance.random() < 0.9:
                    talk.frame(False, "subscribe", is_response=True, correlation_id=correlation, response_code=code)
            elif what < 0.55:
                talk.frame(False, "deliver", chunk_id=correlation, chunk_records=3, chunk_timestamp=0, **which)
            elif what < 0.8:
                talk.frame(True, "credit", credit=chance.choice([1, 2, -1]), **which)
            elif what < 0.85:
                talk.frame(True, "unsubscribe", correlation_id=correlation, **which)
            elif what < 0.9:
                talk.ask(chance.choice(["create", "delete"]), correlation, stream=chance.choice("st"))
            elif what < 0.95:
                talk.ask("stream-stats", correlation, stream="s", reported={"statistics": '{"committed_chunk_id":30}'})
            else:
                talk.frame(chance.random() < 0.5, "heartbeat")
                talk.lose()
        talks.append(talk)
    for make in (StreamCredit, StreamOffsets):
        same_in_every_manner(tables_of(*talks), make, (1, 3, 50))


# ------------------------------------------------------------------------------------------------------- deliveries


def deliver(talk: Talk, chunk: int, ts_ns: int, **columns: Any) -> None:
    talk.frame(
        False, "deliver", subscription_id=1, chunk_id=chunk, chunk_records=10, chunk_entries=10, chunk_type=0,
        chunk_timestamp=0, ts_ns=ts_ns, **columns,
    )  # fmt: skip


def test_lag_against_other_connections():
    ahead, behind = Talk(1), Talk(2)
    for talk in (ahead, behind):
        talk.ask("subscribe", 1, subscription_id=1, stream="s", credit=10)
    deliver(ahead, 0, 10_000)
    deliver(ahead, 100, 20_000, committed_chunk_id=150)
    deliver(behind, 0, 15_000)
    deliver(behind, 10, 20_000)
    behind.frame(True, "store-offset", stream="s", offset=700, ts_ns=3_000_000_000)
    deliver(behind, 20, 3_000_000_001)
    rows = deliveries(tables_of(ahead, behind))
    assert [(row["last_offset"], row["stream_offset"], row["lag_records"], row["age_ns"]) for row in rows] == [
        (9, 9, None, 10_000), (109, 150, 41, 20_000), (9, 9, None, 15_000), (19, 150, 131, 20_000),
        (29, 700, 671, 3_000_000_001),
    ]  # fmt: skip
    for make in (StreamCredit, StreamOffsets):
        same_in_every_manner(tables_of(ahead, behind), make)
    elsewhere = Talk(2, server_ip="::2")
    elsewhere.ask("subscribe", 1, subscription_id=1, stream="s", credit=10)
    deliver(elsewhere, 10, 20_000)
    assert deliveries(tables_of(ahead, elsewhere))[-1]["lag_records"] is None


@pytest.mark.parametrize(("committed", "lags"), [(None, [None] * 3), (20, [11, 1, 0]), (0, [0, None, None])])
def test_a_consumer_alone_lags_by_what_its_deliveries_say(committed, lags):
    """Brokers that send no committed chunk do not say how far the stream goes."""
    talk = Talk(1)
    talk.ask("subscribe", 1, subscription_id=1, stream="s", credit=10)
    for chunk in (0, 10, 20):
        deliver(talk, chunk, 10_000 + chunk, committed_chunk_id=committed)
    assert [row["lag_records"] for row in deliveries(tables_of(talk))] == lags


def test_a_consumer_lags_by_what_was_confirmed_and_not_delivered():
    """100 records were confirmed before it gets the first 10; of 50 more, 20 are not confirmed yet at the second."""
    reader, writer = Talk(1), Talk(2)
    reader.ask("subscribe", 1, subscription_id=1, stream="s", credit=10)
    for number in range(1, 101):
        writer.publish(number, ts_ns=number)
    writer.frame(False, "publish-confirm", publisher_id=1, publishing_ids=json.dumps(list(range(1, 101))), ts_ns=1000)
    deliver(reader, 0, 2000)
    for number in range(101, 151):
        writer.publish(number, ts_ns=3000)
    writer.frame(False, "publish-confirm", publisher_id=1, publishing_ids=json.dumps(list(range(101, 131))), ts_ns=4000)
    deliver(reader, 10, 5000)
    deliver(reader, 140, 6000)  # it is further than anything else shows
    writer.frame(False, "publish-confirm", publisher_id=1, publishing_ids=json.dumps(list(range(131, 151))), ts_ns=7000)
    deliver(reader, 140, 8000)  # these 20 may be among the first 150
    rows = deliveries(tables_of(reader, writer))
    assert [(row["last_offset"], row["stream_offset"], row["lag_records"]) for row in rows] == [
        (9, 99, 90), (19, 129, 110), (149, 149, 0), (149, 149, 0),
    ]  # fmt: skip
    same_in_every_manner(tables_of(reader, writer), StreamConfirms)
    elsewhere = Talk(2, server_ip="::2")
    elsewhere.frames, elsewhere.messages = writer.frames, writer.messages
    assert [row["lag_records"] for row in deliveries(tables_of(reader, elsewhere))] == [None] * 4


@pytest.mark.parametrize(("reference", "lag"), [(None, 1), ("p", None)])
def test_what_may_have_been_dropped_counts_for_no_lag(reference, lag):
    """A named publisher may repeat ids of another connection: the broker confirms those without storing them."""
    reader, writer = Talk(1), Talk(2)
    reader.ask("subscribe", 1, subscription_id=1, stream="s", credit=10)
    writer.publish(*range(1, 12), publisher_reference=reference)
    writer.confirm(*range(1, 12))
    deliver(reader, 0, 9000)
    assert [row["lag_records"] for row in deliveries(tables_of(reader, writer))] == [lag]


@pytest.mark.parametrize("command", ["create", "delete"])
def test_a_stream_that_begins_anew(command):
    reader, other = Talk(1), Talk(2)
    reader.ask("subscribe", 1, subscription_id=1, stream="s", credit=10)
    deliver(reader, 500, 10_000)
    reader.frame(True, "subscribe", correlation_id=2, subscription_id=1, stream="s", credit=10, ts_ns=30_000)
    reader.frame(False, "subscribe", correlation_id=2, response_code=1, is_response=True, ts_ns=31_000)
    deliver(reader, 0, 32_000)
    other.frame(True, command, correlation_id=2, stream="s", ts_ns=19_000)
    other.frame(False, command, correlation_id=2, response_code=1, is_response=True, ts_ns=20_000)
    rows = deliveries(tables_of(reader, other))
    assert [(row["last_offset"], row["stream_offset"], row["lag_records"]) for row in rows] == [
        (509, 509, None),
        (9, 9, None),
    ]
    other.frames[-1]["response_code"] = 5
    assert [row["stream_offset"] for row in deliveries(tables_of(reader, other))] == [509, 509]


def test_statistics_tell_how_long_a_stream_is():
    talk = Talk(1)
    talk.ask("subscribe", 1, subscription_id=1, stream="s", credit=10)
    talk.ask("stream-stats", 2, stream="s", reported={"statistics": '{"first_chunk_id":0,"committed_chunk_id":70}'})
    deliver(talk, 0, 10_000)
    assert [(row["stream_offset"], row["lag_records"]) for row in deliveries(tables_of(talk))] == [(70, 61)]


def test_the_walk_over_streams_in_every_manner():
    chance = random.Random(1)
    talks = []
    for number in range(1, 6):
        talk = Talk(number, server_ip=chance.choice(["::1", "::2", None]))
        talk.ask("subscribe", 1, subscription_id=1, stream=chance.choice("st"), credit=10, ts_ns=0)
        for _ in range(30):
            deliver(talk, chance.randrange(1000), chance.randrange(15))
            if chance.random() < 0.2:
                talk.ask("create", 2, stream=chance.choice("st"), ts_ns=chance.randrange(15))
        talks.append(talk)
    found = tables_of(*talks)
    parts = [part for make in (StreamCredit, StreamOffsets) for part in walk(found, make)[PARTIAL]]
    rows = sort(pa.concat_tables(parts))
    whole = lagging(rows).to_pylist()
    for size in (1, 2, 3, 7, 1000):
        for moved in (False, True):
            one, parts = StreamLag(), []
            for first in range(0, len(rows), size):
                parts += [part for _, part in one.feed(rows.slice(first, size))]
                if moved:
                    state, one = one.take_out(), StreamLag()
                    one.put_back(state)
            parts += [part for _, part in one.finish()]
            assert pa.concat_tables(parts).to_pylist() == whole


def test_numbers_that_cannot_be():
    talk = Talk(1, rtt_ns=2**63 - 1)
    talk.ask("subscribe", 1, subscription_id=1, stream="s", credit=1)
    for time in (-(2**63), 2**63 - 1, -(2**63) // 1_000_000):
        talk.frame(False, "deliver", subscription_id=1, chunk_id=2**63 - 1, chunk_records=9, chunk_timestamp=time)
        talk.frame(True, "credit", subscription_id=1, credit=1)
    talk.ask("stream-stats", 2, stream="s", reported={"statistics": '{"committed_chunk_id":99999999999999999999}'})
    tables = tables_of(talk)
    assert [(row["age_ns"], row["last_offset"]) for row in deliveries(tables)] == [(None, None)] * 3
    # no round trip takes that long: a millisecond counts
    assert [row["evidence"] for row in credit(tables)[1]] == ["proven", "proven", "possible"]
    for times in ((-(2**63), 2**63 - 1), (2**63 - 1, -(2**63))):
        for frame, ts_ns in zip(talk.frames[3:5], times, strict=True):
            frame["ts_ns"] = ts_ns
        assert credit(tables_of(talk))[1][0]["evidence"] == "possible"


def test_chunks_of_connections_without_a_row():
    talk = Talk(1)
    talk.ask("subscribe", 1, subscription_id=1, stream="s", credit=1)
    talk.frame(False, "deliver", subscription_id=1, chunk_id=5, chunk_records=5)
    tables = tables_of(talk)
    tables["connections"] = tables["connections"].slice(0, 0)
    assert [(row["stream"], row["last_offset"], row["lag_records"]) for row in deliveries(tables)] == [("s", 9, None)]


# -------------------------------------------------------------------------------------------------------------- all


def test_without_streams_nothing_is_read():
    """Connections of another protocol cost next to nothing: not even their matrix is made."""
    tables = tables_of(Talk(1, protocol="amqp-0-9-1"))
    tables["messages"] = pa.concat_tables([tables["messages"]]).slice(0, 0)
    for make in WALKS:
        for events in batches(tables, [make()]):
            assert list(make().feed(events)) == []
            assert "matrix" not in vars(events)


@pytest.mark.parametrize("make", WALKS)
def test_state_is_of_one_walk(make):
    one = make()
    state = one.take_out()
    one.put_back(state)
    for other in WALKS:
        if other is not make:
            with pytest.raises(ValueError, match="state of"):
                other().put_back(state)


def test_needs_are_columns_that_there_are(tables):
    for make in WALKS:
        for source, needs in make().needs.items():
            table = SOURCES[source]
            assert set(needs.columns) <= set(schema(table).names)
    assert pc.sum(pc.is_valid(tables["stream_calls"]["stream_frames"]["publishing_ids"])).as_py()


def test_a_recorded_consumer_behind_its_stream():
    """The script knows how long the stream was: 62 records had been confirmed, and one of another frame was dropped."""
    found = recorded("stream_lag")
    truth = golden("stream_lag")["lag"]
    rows = [row for row in deliveries(found) if row["chunk_type"] == 0]
    assert len(rows) == truth["chunks"]
    assert [row["lag_records"] for row in rows] == [truth["stored"] - 1 - row["last_offset"] for row in rows]
    waits = [row["evidence"] for row in credit(found)[1]]
    assert waits == ["proven"] * (truth["chunks"] - 1) + ["possible"]  # nothing came after the last
    again = [row for row in confirms(found) if row["publisher_id"] == 1]
    assert [(row["publish_seq"], row["outcome"], row["deduplicated"]) for row in again] == [
        (1, "ack", False), (1, "ack", True), (2, "ack", False),
    ]  # fmt: skip


# --------------------------------------------------------------------------------------------------------- metadata


def test_streams_that_have_no_row_are_counted():
    talk = Talk(1)
    for count in (2, 1000, 1234):
        streams = json.dumps([{"stream": f"s{number}", "code": 1} for number in range(count)])
        talk.frame(False, "metadata", is_response=True, correlation_id=count, streams=streams)
    talk.frame(False, "metadata-update", stream="s0", response_code=6)
    rows = walked(tables_of(talk), [StreamMetadata()])["stream_metadata"].to_pylist()
    assert Counter(row["frame_no"] for row in rows) == {0: 2, 1: 1000, 2: 1000, 3: 1}
    assert [(row["frame_no"], row["stream"], row["left_out"]) for row in rows if row["left_out"]] == [(2, "s999", 234)]
    assert {row["left_out"] for row in rows} == {0, 234}


def test_a_stream_has_the_host_of_its_leader():
    talk = Talk(1)
    nodes = [{"reference": 0, "host": "a", "port": 5552}, {"reference": 1, "host": "b", "port": 2**32 - 1}, 7, {}]
    streams = [{"stream": f"s{at}", "code": 1, "leader": leader} for at, leader in enumerate((1, 0, 2, None, [1]))]
    for brokers in (json.dumps(nodes), "[", None):
        talk.frame(False, "metadata", is_response=True, correlation_id=1, streams=json.dumps(streams), brokers=brokers)
    rows = walked(tables_of(talk), [StreamMetadata()])["stream_metadata"].to_pylist()
    nobody = (None, None)
    assert [(row["leader_host"], row["leader_port"]) for row in rows] == [
        ("b", 2**32 - 1), ("a", 5552), *[nobody] * 3, *[nobody] * 10,
    ]  # fmt: skip


def test_partitions_that_are_asked_for_have_rows():
    talk = Talk(1)
    names = json.dumps(["a-b-c", "d"])
    talk.frame(True, "create-super-stream", correlation_id=1, super_stream="s", partitions=names)
    talk.frame(True, "create-super-stream", correlation_id=2, super_stream="s", partitions='[1, "e"')
    rows = walked(tables_of(talk), [StreamMetadata()])["stream_metadata"].to_pylist()
    assert [(row["command"], row["stream"], row["response_code"]) for row in rows] == [
        ("create-super-stream", "a-b-c", None), ("create-super-stream", "d", None),
    ]  # fmt: skip
