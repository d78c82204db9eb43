"""The jobs over streams: recorded conversations against plain readings of their frames and the clients' books."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from amqpscope import dissector
from amqpscope.pipelines.schemas import schema

CAPTURES = Path(__file__).parents[1] / "captures"
NAMES = ("stream_calls", "stream_chunks", "stream_errors", "stream_js", "stream_rstream", "stream_super")
CONFIRMS = ("stream_frames", "messages", "connections", "anomalies")
Row = dict[str, Any]


def golden(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((CAPTURES / f"{name}.golden.json").read_text())
    return found


@pytest.fixture(scope="module")
def recorded() -> dict[str, dict[str, list[Row]]]:
    """Tables of dissect, by scenario."""
    found: dict[str, dict[str, list[Row]]] = {}
    for name in NAMES:
        tables = {table: reader.read_all() for table, reader in dissector.read(CAPTURES / f"{name}.pcap").items()}
        found[name] = {table: rows.to_pylist() for table, rows in tables.items()}
    return found


@pytest.fixture(scope="module")
def tables(spark, tmp_path_factory):
    """The tables of all scenarios together as DataFrames."""
    folder = tmp_path_factory.mktemp("streams")
    parts: dict[str, list[pa.Table]] = {}
    for name in NAMES:
        for table, reader in dissector.read(CAPTURES / f"{name}.pcap").items():
            parts.setdefault(table, []).append(reader.read_all())
    found = {}
    for table in ("stream_frames", "messages", "connections", "anomalies"):
        (folder / table).mkdir()
        pq.write_table(pa.concat_tables(parts[table]), folder / table / "part-0.parquet")
        found[table] = spark.read.schema(schema(table)).parquet(str(folder / table)).coalesce(1)
    return found


def by_scenario(rows: list[Any], recorded: dict[str, dict[str, list[Row]]], *order: str) -> dict[str, list[Row]]:
    of = {row["connection_id"]: name for name in NAMES for row in recorded[name]["connections"]}
    found: dict[str, list[Row]] = {name: [] for name in NAMES}
    for row in sorted((row.asDict() for row in rows), key=lambda row: [row[k] for k in order]):
        found[of[row["connection_id"]]].append(row)
    return found


# --------------------------------------------------------------------------------------------------------- recorded


@pytest.fixture(scope="module")
def confirmed(tables, recorded):
    from amqpscope.pipelines.stream_confirms import stream_confirms  # noqa: PLC0415

    rows = stream_confirms(*(tables[name] for name in CONFIRMS)).collect()
    return by_scenario(rows, recorded, "connection_id", "publish_frame_no", "publish_seq")


def test_ids_sent_again_are_told(confirmed):
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
    told = {event["publishing_id"] for event in log if event["what"] == "confirmed" and event["confirmed"]}
    assert told <= {row["publish_seq"] for row in rows if row["outcome"] == "ack"}


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


def test_every_confirm_is_somebodys(confirmed, recorded):
    """Each id that the broker confirms or refuses is the answer to one publish; ends are the frames that say so."""
    for name in NAMES:
        told = [
            (row["connection_id"], row["frame_no"], number)
            for row in recorded[name]["stream_frames"]
            for number in [
                *json.loads(row["publishing_ids"] or "[]"),
                *(each["publishing_id"] for each in json.loads(row["publishing_errors"] or "[]")),
            ]
        ]
        rows = [row for row in confirmed[name] if row["outcome"] != "none"]
        assert sorted((r["connection_id"], r["confirm_frame_no"], r["publish_seq"]) for r in rows) == sorted(told)
        frames = {(row["connection_id"], row["frame_no"]): row for row in recorded[name]["stream_frames"]}
        for row in rows:
            frame = frames[row["connection_id"], row["confirm_frame_no"]]
            assert (frame["packet"], frame["ts_ns"]) == (row["confirm_packet"], row["confirm_ts_ns"])
            assert row["latency_ns"] == row["confirm_ts_ns"] - row["publish_ts_ns"] > 0


def test_requests_and_answers(tables, recorded):
    from amqpscope.pipelines.stream_rpcs import stream_rpcs  # noqa: PLC0415

    rows = stream_rpcs(*(tables[name] for name in ("stream_frames", "connections", "anomalies"))).collect()
    found = by_scenario(rows, recorded, "connection_id", "request_frame_no")
    for name in NAMES:
        # plainly: an answer has the number of its request; tune has none, and one a connection
        asked: dict[tuple[Any, ...], Row] = {}
        answers = {}
        for row in recorded[name]["stream_frames"]:
            if row["command"] in (None, "credit") or (row["correlation_id"] is None and row["command"] != "tune"):
                continue
            side = row["from_client"] != row["is_response"]
            key = row["connection_id"], row["command"], row["correlation_id"], side
            if row["is_response"]:
                request = asked.pop(key)
                answers[request["connection_id"], request["frame_no"]] = row
            else:
                asked[key] = row
        got = {(r["connection_id"], r["request_frame_no"]): r for r in found[name]}
        assert set(got) == set(answers) | {(r["connection_id"], r["frame_no"]) for r in asked.values()}
        for key, answer in answers.items():
            code = answer["response_code"]
            assert (got[key]["response_frame_no"], got[key]["latency_ns"]) == (
                answer["frame_no"], answer["ts_ns"] - got[key]["request_ts_ns"]
            )  # fmt: skip
            assert got[key]["outcome"] == ("ok" if code in (None, 1) else "error")
            assert got[key]["reply_code"] == (None if code in (None, 1) else code)
    refused = [(r["request"], r["reply_code"]) for r in found["stream_errors"] if r["response"] == "close"]
    assert sorted(refused) == [("create", 13), ("exchange-command-versions", 13), ("stream-stats", 13)]


def test_credit_is_counted(tables, recorded):
    from amqpscope.pipelines.stream_credit import stream_credit  # noqa: PLC0415

    found = by_scenario(stream_credit(tables["stream_frames"]).collect(), recorded, "connection_id", "frame_no")
    for name in NAMES:
        expected = [row for rows in plain_accounts(recorded[name]["stream_frames"]).values() for row in rows]
        got = [
            (r["connection_id"], r["frame_no"], r["event"], r["granted"], r["used"], r["balance"], r["stream"])
            for r in found[name]
        ]
        assert sorted(got, key=str) == sorted(expected, key=str)
    zero = [row for row in found["stream_chunks"] if row["balance"] == 0]
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


def test_ages_and_lags(tables, recorded):
    from amqpscope.pipelines.stream_deliveries import stream_deliveries  # noqa: PLC0415

    rows = stream_deliveries(tables["stream_frames"], tables["connections"]).collect()
    found = by_scenario(rows, recorded, "connection_id", "frame_no")
    for name in NAMES:
        frames = {
            (row["connection_id"], row["frame_no"]): row
            for row in recorded[name]["stream_frames"]
            if row["command"] == "deliver"
        }
        assert {(row["connection_id"], row["frame_no"]) for row in found[name]} == set(frames)
        records = Counter(
            (m["connection_id"], m["frame_no"]) for m in recorded[name]["messages"] if m["kind"] == "deliver"
        )
        for row in found[name]:
            frame = frames[row["connection_id"], row["frame_no"]]
            assert row["chunk_ts_ns"] == frame["chunk_timestamp"] * 1_000_000
            assert row["age_ns"] == row["ts_ns"] - row["chunk_ts_ns"] > 0
            assert row["last_offset"] == frame["chunk_id"] + frame["chunk_records"] - 1
            if row["chunk_type"] == 0:
                assert row["records"] == records[row["connection_id"], row["frame_no"]]
            seen = [
                r["last_offset"] for r in found[name] if r["stream"] == row["stream"] and r["ts_ns"] <= row["ts_ns"]
            ]
            stored = [
                r["offset"]
                for r in recorded[name]["stream_frames"]
                if r["command"] == "store-offset" and r["stream"] == row["stream"] and r["ts_ns"] <= row["ts_ns"]
            ]
            assert row["stream_offset"] == max(seen + stored)
            assert row["lag_records"] == row["stream_offset"] - row["last_offset"]


# -------------------------------------------------------------------------------------------------- by hand


class Talk:
    """One connection of the stream protocol; each call appends a frame, at 1000 ns a frame."""

    def __init__(self, number: int, **columns: Any) -> None:
        self.number = number
        self.frames: list[Row] = []
        self.messages: list[Row] = []
        self.anomalies: list[Row] = []
        self.columns = columns

    def lose(self) -> None:
        """The last frame has a hole in front of it."""
        names = ("connection_id", "frame_no", "capture", "packet", "ts_ns", "from_client")
        self.anomalies.append({k: self.frames[-1][k] for k in names} | {"code": "tcp-gap"})

    def frame(self, from_client: bool, command: str, *, is_response: bool = False, **columns: Any) -> int:
        no = len(self.frames)
        leading = {"connection_id": self.number, "frame_no": no, "capture": "a.pcap", "packet": no + 1}
        leading |= {"ts_ns": columns.pop("ts_ns", no * 1000), "from_client": from_client}
        self.frames.append(leading | {"command": command, "is_response": is_response, "version": 1} | columns)
        return no

    def ask(self, command: str, correlation: int, code: int = 1, told: Row | None = None, **columns: Any) -> None:
        """A request and its answer."""
        self.frame(True, command, correlation_id=correlation, **columns)
        answer = {"correlation_id": correlation, "response_code": code} | (told or {})
        self.frame(False, command, is_response=True, **answer)

    def publish(self, number: int, epoch: int | None = 1, publisher: int = 1, records: int = 1, **columns: Any) -> None:
        no = self.frame(True, "publish", publisher_id=publisher)
        row = {k: v for k, v in self.frames[no].items() if k not in ("command", "is_response", "version")}
        row |= {"protocol": "rabbitmq-stream", "kind": "publish", "publish_seq": number, "publisher_epoch": epoch}
        self.messages += [row | {"stream": "s", "body_size": 10} | columns] * records

    def confirm(self, *numbers: int, publisher: int = 1) -> None:
        self.frame(False, "publish-confirm", publisher_id=publisher, publishing_ids=json.dumps(list(numbers)))

    def refuse(self, *errors: tuple[int, int], publisher: int = 1) -> None:
        told = json.dumps([{"publishing_id": n, "code": c} for n, c in errors], separators=(",", ":"))
        self.frame(False, "publish-error", publisher_id=publisher, publishing_errors=told)


def frames_of(spark, name: str, talks: list[Talk]):
    rows = {
        "stream_frames": [row for talk in talks for row in talk.frames],
        "messages": [row for talk in talks for row in talk.messages],
        "anomalies": [row for talk in talks for row in talk.anomalies],
        "connections": [
            {
                "connection_id": talk.number, "protocol": "rabbitmq-stream", "last_ts_ns": len(talk.frames) * 1000,
                "lost_bytes": 0, "server_ip": "::1", "rtt_ns": 10_000,
            } | talk.columns
            for talk in talks
        ],
    }[name]  # fmt: skip
    declared = schema(name)
    assert {key for row in rows for key in row} <= set(declared.names)
    return spark.createDataFrame([tuple(row.get(column) for column in declared.names) for row in rows], declared)


def test_confirms_by_hand(spark):
    from amqpscope.pipelines.stream_confirms import stream_confirms  # noqa: PLC0415

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
    talks = [anonymous, unknown, closed]
    rows = stream_confirms(*(frames_of(spark, name, talks) for name in CONFIRMS))
    names = (
        "connection_id", "publisher_id", "publisher_epoch", "publish_seq", "publish_frame_no", "confirm_frame_no",
        "outcome", "reply_code", "records", "deduplicated", "ended_by", "end_ts_ns",
    )  # fmt: skip
    assert sorted((tuple(row[name] for name in names) for row in rows.collect()), key=lambda row: (row[0], row[4])) == [
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


def test_deduplication_by_hand(spark):
    from amqpscope.pipelines.stream_confirms import stream_confirms  # noqa: PLC0415

    def sent(talk: Talk, name: str, *numbers: int, epoch: int = 1) -> None:
        for number in numbers:
            talk.publish(number, epoch=epoch, publisher_reference=name)
        talk.confirm(*numbers)

    talk = Talk(1)
    sent(talk, "a", 5, 4, 6)  # nothing is known of what was stored
    talk.ask("query-publisher-sequence", 1, told={"sequence": 6}, stream="s", publisher_reference="a")
    sent(talk, "a", 6, 7, epoch=2)
    talk.ask("query-publisher-sequence", 2, told={"sequence": 0}, stream="s", publisher_reference="b")
    sent(talk, "b", 0, 1, 1, epoch=3)
    talk.ask("create", 3, stream="s")
    sent(talk, "a", 0, 1, epoch=4)
    tables = [frames_of(spark, name, [talk]) for name in CONFIRMS]
    rows = sorted(stream_confirms(*tables).collect(), key=lambda row: row["publish_frame_no"])
    assert [(row["publisher_epoch"], row["publish_seq"], row["deduplicated"]) for row in rows] == [
        (1, 5, None), (1, 4, True), (1, 6, None), (2, 6, True), (2, 7, False), (3, 0, None), (3, 1, False),
        (3, 1, True), (4, 0, False), (4, 1, False),
    ]  # fmt: skip


def test_waits_for_credit_by_hand(spark):
    from amqpscope.pipelines.stream_credit import credit_waits, stream_credit  # noqa: PLC0415

    talk = Talk(1)
    talk.ask("subscribe", 1, subscription_id=3, stream="s", credit=2, properties='{"name":"app"}')  # 0, 1
    for _ in range(2):
        talk.frame(False, "deliver", subscription_id=3)  # 2, 3: none left
    talk.frame(True, "credit", subscription_id=3, credit=1)  # 4
    talk.frame(False, "deliver", subscription_id=3)  # 5: none left
    talk.ask("subscribe", 2, code=3, subscription_id=3, stream="other", credit=9)  # 6, 7: refused
    talk.frame(True, "credit", subscription_id=3, credit=2)  # 8
    talk.frame(False, "deliver", subscription_id=3, ts_ns=900_000)  # 9: too late to prove anything
    talk.ask("unsubscribe", 3, subscription_id=3)  # 10, 11
    talk.ask("subscribe", 4, subscription_id=3, stream="s2", credit=0)  # 12, 13: none from the start
    talk.frame(False, "deliver", subscription_id=4)  # 14: of a subscription that was not seen
    frames, connections = (frames_of(spark, name, [talk]) for name in ("stream_frames", "connections"))
    rows = sorted(stream_credit(frames).collect(), key=lambda row: row["frame_no"])
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
    waits = credit_waits(stream_credit(frames), frames, connections).collect()
    waits.sort(key=lambda row: row["start_frame_no"])
    names = ("start_frame_no", "end_frame_no", "duration_ns", "evidence", "side", "cause", "consumer_tag")
    assert [tuple(row[name] for name in names) for row in waits] == [
        (3, 4, 1000, "proven", "client", "stream-credit", "3"),
        (5, 8, 3000, "possible", "client", "stream-credit", "3"),
        (12, None, 3000, "possible", "client", "stream-credit", "3"),
    ]


def test_behind_a_hole_there_is_no_balance(spark):
    from amqpscope.pipelines.stream_credit import stream_credit  # noqa: PLC0415

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
    frames, anomalies = (frames_of(spark, name, [talk, alone]) for name in ("stream_frames", "anomalies"))
    found = stream_credit(frames, anomalies).orderBy("connection_id", "frame_no").collect()
    assert [row["balance"] for row in found] == [2, 1, None, None, None, 2, 1, None]


def test_lag_against_other_connections(spark):
    from amqpscope.pipelines.stream_deliveries import stream_deliveries  # noqa: PLC0415

    def deliver(talk: Talk, chunk: int, ts_ns: int, **columns: Any) -> None:
        talk.frame(
            False, "deliver", subscription_id=1, chunk_id=chunk, chunk_records=10, chunk_entries=10, chunk_type=0,
            chunk_timestamp=0, ts_ns=ts_ns, **columns,
        )  # fmt: skip

    ahead, behind = Talk(1), Talk(2)
    for talk in (ahead, behind):
        talk.ask("subscribe", 1, subscription_id=1, stream="s", credit=10)
    deliver(ahead, 0, 10_000)
    deliver(ahead, 100, 20_000, committed_chunk_id=150)
    deliver(behind, 0, 15_000)
    deliver(behind, 10, 20_000)
    behind.frame(True, "store-offset", stream="s", offset=700, ts_ns=3_000_000_000)
    deliver(behind, 20, 3_000_000_001)
    tables = [frames_of(spark, name, [ahead, behind]) for name in ("stream_frames", "connections")]
    rows = sorted(stream_deliveries(*tables).collect(), key=lambda row: (row["connection_id"], row["frame_no"]))
    assert [(row["last_offset"], row["stream_offset"], row["lag_records"], row["age_ns"]) for row in rows] == [
        (9, 9, 0, 10_000), (109, 150, 41, 20_000), (9, 9, 0, 15_000), (19, 150, 131, 20_000),
        (29, 700, 671, 3_000_000_001),
    ]  # fmt: skip


def test_numbers_that_cannot_be(spark):
    from amqpscope.pipelines.stream_credit import credit_waits, stream_credit  # noqa: PLC0415
    from amqpscope.pipelines.stream_deliveries import stream_deliveries  # noqa: PLC0415

    talk = Talk(1, rtt_ns=2**63 - 1)
    talk.ask("subscribe", 1, subscription_id=1, stream="s", credit=1)
    for time in (-(2**63), 2**63 - 1, -(2**63) // 1_000_000):
        talk.frame(False, "deliver", subscription_id=1, chunk_id=2**63 - 1, chunk_records=9, chunk_timestamp=time)
        talk.frame(True, "credit", subscription_id=1, credit=1)
    talk.ask("stream-stats", 2, stream="s", told={"statistics": '{"committed_chunk_id":99999999999999999999}'})
    frames, connections = (frames_of(spark, name, [talk]) for name in ("stream_frames", "connections"))
    assert [row["age_ns"] for row in stream_deliveries(frames, connections).collect()] == [None] * 3
    waits = credit_waits(stream_credit(frames), frames, connections).collect()
    assert {row["evidence"] for row in waits} == {"possible"}


def test_chunks_of_connections_without_a_row(spark):
    from amqpscope.pipelines.stream_deliveries import stream_deliveries  # noqa: PLC0415

    talk = Talk(1)
    talk.ask("subscribe", 1, subscription_id=1, stream="s", credit=1)
    talk.frame(False, "deliver", subscription_id=1, chunk_id=5, chunk_records=5)
    frames, connections = (frames_of(spark, *of) for of in (("stream_frames", [talk]), ("connections", [])))
    rows = stream_deliveries(frames, connections).collect()
    assert [(row["stream"], row["last_offset"], row["lag_records"]) for row in rows] == [("s", 9, None)]


def test_one_connection_is_many_tasks(spark):
    """Neither windows over all requests of a connection, nor over all deliveries of a consumer whose credit is lost."""
    from amqpscope.pipelines.stream_credit import stream_credit  # noqa: PLC0415
    from amqpscope.pipelines.stream_rpcs import stream_rpcs  # noqa: PLC0415

    talk = Talk(1)
    frames, connections, anomalies = (
        frames_of(spark, name, [talk]) for name in ("stream_frames", "connections", "anomalies")
    )
    for result in (stream_credit(frames), stream_rpcs(frames, connections, anomalies)):
        plan = result._jdf.queryExecution().optimizedPlan().toString()
        # but over one correlation id
        windows = [line for line in plan.splitlines() if "Window [" in line and "correlation_id#" not in line]
        assert windows
        assert all("bucket#" in line.split("], [", 1)[1] for line in windows)
