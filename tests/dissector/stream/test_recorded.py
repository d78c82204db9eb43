"""Recorded connections with a broker: what it answered, and the same rows however the capture is read."""

import json
from pathlib import Path
from typing import Any

import pytest

from amqpscope.dissector.cli.program import main
from amqpscope.dissector.dissector import Options
from amqpscope.dissector.protocols.stream.messages import Records
from tests.dissector import runs
from tests.dissector.builders import Packet
from tests.dissector.recordings import BROKEN_STREAMS, COVERED
from tests.dissector.stream.runs import Row, dissect
from tests.reference.packets import read_packets

FOLDER = Path(__file__).parents[2] / "captures"
NAMES = sorted(path.stem for path in FOLDER.glob("stream_*.pcap"))


def golden(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((FOLDER / f"{name}.golden.json").read_text(encoding="utf-8"))
    return document


def read(name: str, **how: Any) -> dict[str, list[Row]]:
    packets = [Packet(packet.ts_ns, packet.data) for packet in read_packets(FOLDER / f"{name}.pcap")]
    return dissect(packets, **how)


def test_response_codes_are_those_the_client_received() -> None:
    rows = read("stream_calls")["stream_frames"]
    answers = [row for row in rows if row["is_response"] and row["correlation_id"] is not None]
    coded = [row["response_code"] for row in answers if row["response_code"] is not None]
    reported = list(golden("stream_calls")["codes"].values())
    assert coded == [1, 1, 1, 1, *reported, 1]  # the handshake before, the close after


def test_errors_without_a_request_of_their_own() -> None:
    rows = read("stream_calls")["stream_frames"]
    assert [json.loads(row["publishing_errors"]) for row in rows if row["command"] == "publish-error"] == [
        [{"publishing_id": 1, "code": 18}, {"publishing_id": 2, "code": 18}]
    ]
    assert [row["response_code"] for row in rows if row["command"] == "credit" and row["is_response"]] == [4]
    assert [(row["stream"], row["response_code"]) for row in rows if row["command"] == "metadata-update"] == [
        ("calls", 6)
    ]


def test_confirms_are_those_of_the_publishes() -> None:
    rows = read("stream_calls")["stream_frames"]
    confirms = [json.loads(row["publishing_ids"]) for row in rows if row["command"] == "publish-confirm"]
    assert [number for numbers in confirms for number in numbers] == [5, 6, 7, 6, 7, 8]


def test_what_the_broker_does_not_know_it_closes_upon() -> None:
    found = read("stream_errors")
    closes = [row for row in found["stream_frames"] if row["command"] == "close" and not row["is_response"]]
    assert [row["closing_code"] for row in closes] == [13] * 5
    assert sorted(row["code"] for row in found["anomalies"]) == [
        "command-unknown", "field-overrun", "frame-cut", "records-malformed",
        "stream-unrecognised",  # the connection whose first bytes are no command of streams
    ]  # fmt: skip


COLUMNS = ("kind", "stream", "publish_seq", "offset", "publisher_reference", "body_size", "body_hash")


@pytest.mark.parametrize("name", ["stream_rstream", "stream_chunks"])
def test_messages_are_those_in_the_clients_books(name: str) -> None:
    """Every published record with its id; every delivered one with its offset, size and hash."""
    found = [row for row in read(name)["messages"] if row["stream"] == golden(name)["records"][0]["stream"]]
    for kind in ("publish", "deliver"):
        wanted = [row for row in golden(name)["records"] if row["kind"] == kind]
        if wanted:
            rows = [row for row in found if row["kind"] == kind]
            assert [{k: row[k] for k in COLUMNS if k in wanted[0]} for row in rows] == [
                {k: row[k] for k in COLUMNS if k in row} for row in wanted
            ]


def test_two_subscriptions_got_the_same_records() -> None:
    """Offsets go on over tracking chunks, which have one of their own."""
    found = read("stream_chunks")["messages"]
    published = [row["body_hash"] for row in found if row["kind"] == "publish"]
    by_connection: dict[int, list[Row]] = {}
    for row in found:
        if row["kind"] == "deliver":
            by_connection.setdefault(row["connection_id"], []).append(row)
    assert len(by_connection) == 2
    for rows in by_connection.values():
        assert [row["offset"] for row in rows] == [*range(9), 10]
        assert [row["body_hash"] for row in rows[:9]] == published
        assert {(row["stream"], row["subscription_id"]) for row in rows} == {("chunks", 1)}


def test_tracking_data_of_a_broker() -> None:
    """What the writer stored and published comes to who asks for all kinds of chunks."""
    reported = [row for row in read("stream_chunks")["stream_frames"] if row["tracking"]]
    assert {row["chunk_type"] for row in reported} == {0, 1}
    items = [item for row in reported for item in json.loads(row["tracking"])]
    assert {"kind": "offset", "name": "cons1", "value": 4} in items
    # a writer of AMQP has a reference, too, which the broker made up
    assert {item["name"] for item in items} > {"cons1", "ref"}
    assert {item["kind"] for item in items if item["name"] == "ref"} == {"sequence"}


def test_publishers_ids_mean_what_was_declared_last() -> None:
    rows = [row for row in read("stream_calls")["messages"] if row["kind"] == "publish"]
    assert [(row["publisher_id"], row["publish_seq"]) for row in rows] == [
        (5, 5), (5, 6), (5, 7), (5, 6), (5, 7), (5, 8), (9, 1), (9, 2),
    ]  # fmt: skip
    # a second declaration of the id was refused, and publisher 9 was never declared
    assert [(row["stream"], row["publisher_reference"], row["publisher_epoch"]) for row in rows] == [
        *[("calls", "ref", 1)] * 6, (None, None, None), (None, None, None),
    ]  # fmt: skip


def test_bodies_of_a_second_library_are_its_texts() -> None:
    found = read("stream_js", bodies="full")["messages"]
    for kind, further in (("publish", ["packed 6", "packed 7", "packed 8"]), ("deliver", [])):
        texts = [row["text"] for row in golden("stream_js")["records"] if row["kind"] == kind] + further
        rows = [row for row in found if row["kind"] == kind]
        assert [row["body"].decode() for row in rows] == texts
        assert {row["body_kind"] for row in rows} == {"data"}
        assert [row["body_size"] for row in rows] == [len(text) for text in texts]


def test_properties_are_those_that_the_second_library_was_given() -> None:
    for kind in ("publish", "deliver"):
        rows = [row for row in read("stream_js")["messages"] if row["kind"] == kind][:5]
        for n, row in enumerate(rows, 1):
            reported = [row[name] for name in ("message_id", "correlation_id", "content_type", "annotations")]
            assert reported == [f"m-{n}", f"c-{n}", "text/plain", '{"x-node":"yes"}']
            assert json.loads(row["headers"]) == {"n": n, "shop": "größe"}


def test_what_was_published_by_amqp_comes_out_of_the_stream() -> None:
    """The broker makes an AMQP 1.0 message of one of AMQP 0-9-1."""
    rows = [row for row in read("stream_chunks", bodies="full")["messages"] if row["body_kind"] == "data"]
    assert len(rows) == 2
    for row in rows:
        names = ("body", "body_size", "content_type", "message_id", "headers")
        assert [row[name] for name in names] == [b"by AMQP", 7, "text/plain", "m-1", '{"n":5,"s":"text"}']
        reported = json.loads(row["annotations"])
        assert (reported["x-routing-key"], reported["x-exchange"], reported["x-basic-priority"]) == ("chunks", "", 3)
        assert row["record_size"] > 7


@pytest.mark.sampled(3)
@pytest.mark.compiled
@pytest.mark.parametrize("name", NAMES)
def test_rows_do_not_depend_on_how_the_capture_is_read(name: str) -> None:
    assert name in COVERED | BROKEN_STREAMS, "what is right of these is said here by hand"
    whole = read(name)
    for compiled, batch_bytes in ((False, 3_000), (True, 1 << 20), (True, 3_000)):
        other = read(name, compiled=compiled, batch_bytes=batch_bytes)
        for table, rows in whole.items():
            assert ordered(other[table]) == ordered(rows), table


@pytest.mark.parametrize("name", [name for name in NAMES if name != "stream_wrong_ports"])
def test_nothing_is_skipped_or_unread(name: str) -> None:
    found = read(name)
    assert found["stream_frames"]
    assert {row["protocol"] for row in found["connections"]} <= {"rabbitmq-stream", "unknown"}
    assert not [row for row in found["connections"] if row["skipped_bytes"] and row["protocol"] == "rabbitmq-stream"]
    if name != "stream_errors":
        assert not found["anomalies"]


def test_no_secret_gets_out() -> None:
    for name in NAMES:
        reported = str(read(name, bodies="full"))
        for secret in golden(name).get("secrets", []):
            assert secret not in reported


def ordered(rows: list[Row]) -> list[str]:
    return sorted(map(str, rows))


def test_lines_name_what_numbers_mean(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["frames", str(FOLDER / "stream_calls.pcap")]) == 0
    out = capsys.readouterr().out
    for part in (
        "create-response correlation_id=6 response_code=5 (stream-already-exists)",
        "offset_type=4 (offset) offset=1 credit=10",
        "chunk_type=0 (user) chunk_entries=",
        "credit-response response_code=4 (subscription-id-does-not-exist) subscription_id=99",
    ):
        assert part in out, part
    assert "chunk_crc" not in out


@pytest.mark.parametrize("kind", ["publish", "deliver"])
def test_super_streams_and_ids_sent_again(kind: str) -> None:
    """A super stream is three streams; which of them a message goes to, the client's hash tells, not its book."""
    found = [row for row in read("stream_super", bodies="full")["messages"] if row["kind"] == kind]
    names = ("body", "publish_seq", "message_id", "offset")
    book = [row for row in golden("stream_super")["records"] if row["kind"] == kind]
    for stream in ("twice", "invoices"):
        rows = [row for row in found if row["stream"].startswith(stream)]
        wanted = [row for row in book if row["stream"].startswith(stream)]
        for row in wanted:
            mine = [r for r in rows if r["body_hash"] == row["body_hash"]]
            assert any(all(r[n] == row[n] for n in names if n in row) for r in mine), row
        assert len(rows) == len(wanted)
        if kind == "deliver" or stream == "twice":
            assert {row["stream"] for row in rows} == {row["stream"] for row in wanted}
    partitions = {row["stream"] for row in found if row["stream"] != "twice"}
    assert partitions <= {"invoices-0", "invoices-1", "invoices-2"}
    assert len(partitions) > 1
    assert {row["body_kind"] for row in found if row["stream"] != "twice"} == {"data"}
    assert {row["group_id"] for row in found if row["stream"] != "twice"} == {"invoices"}


@pytest.mark.parametrize("name", ["stream_rstream", "stream_refusals", "stream_errors"])
def test_handshakes_are_found_without_the_records(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def verdicts(options: Options) -> list[tuple[Any, ...]]:
        found = runs.dissect(FOLDER / f"{name}.pcap", options=options)["connections"]
        names = [c for c in found.schema.names if c.startswith(("handshake", "ending", "severity", "vhost", "user"))]
        return sorted((tuple(row[c] for c in ["connection_id", *names]) for row in found.to_pylist()), key=repr)

    whole = verdicts(Options())
    for method in ("take", "long_frames"):
        monkeypatch.setattr(Records, method, None)
    assert verdicts(Options(handshakes=True)) == whole
