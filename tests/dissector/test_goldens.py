"""The tables of every recording against the books of the clients that made it (see the README there)."""

import functools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.captures import naive
from tests.dissector.recordings import ours
from tests.dissector.runs import CAPTURES, FOLDER, Row, rows
from tests.dissector.values import of_typed, parsed, same

KINDS = {"basic.publish": "publish", "basic.deliver": "deliver", "basic.get-ok": "get", "basic.return": "return"}
FIELDS = (
    "kind", "from_client", "channel", "channel_epoch", "exchange", "routing_key", "consumer_tag", "delivery_tag",
    "redelivered", "mandatory", "publish_seq", "body_size", "body_hash",
)  # fmt: skip
LEFT_OUT = {
    "snapped", "wrong_end_octet", "violations", "failed_handshakes", "wrong_ports", "tls_sessions", "tls_sessions_13",
    "tls_pika",
}  # fmt: skip
"""Captures that are not to be read by counting."""
NOT_STATED = {("failed_calls", 4, 0, "queue.declare")}
"""Requests that are in no book: capture, channel, epoch, method."""
VIOLATIONS = {
    "content cut by another content": {"content-interrupted": 1},
    "content cut by a method": {"content-interrupted": 1},
    "body larger than announced": {"body-too-large": 1},
    "body without method and header": {"content-unexpected": 1},
    "header without method": {"content-unexpected": 2},  # the header and its body
    "body without header": {"content-unexpected": 1, "content-abandoned": 1},
    "content inside a content": {"content-interrupted": 1},
    "body without a header": {"content-unexpected": 1},
    "header without a method": {"content-unexpected": 1},
    "wrong frame end": {"frame-end-wrong": 1},
    "unknown frame type": {"frame-type-unknown": 1},
    "unknown method": {"method-unknown": 1},
}


def golden(capture: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((FOLDER / f"{capture.stem}.golden.json").read_text(encoding="utf-8"))
    return document


def having(table: str) -> list[Any]:
    return [pytest.param(c, id=c.stem) for c in CAPTURES if table in golden(c)]


@functools.cache
def clients(capture: Path) -> dict[int, str]:
    """Which client a `connection_id` is: its addresses are in the book, in the order of their beginning."""
    found = sorted(rows(ours(capture)["connections"]), key=lambda row: row["first_ts_ns"])
    names = {}
    for client in golden(capture)["clients"]:
        ends = [client[f"{side}_{what}"] for side in ("client", "server") for what in ("ip", "port")]
        row = next(
            row
            for row in found
            if row["connection_id"] not in names
            and [row["client_ip"], row["client_port"], row["server_ip"], row["server_port"]] == ends
        )
        names[row["connection_id"]] = client["client"]
    return names


def of_clients(capture: Path, table: str) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {name: [] for name in clients(capture).values()}
    for row in rows(ours(capture)[table]):
        if row["connection_id"] in clients(capture):
            found[clients(capture)[row["connection_id"]]].append(row)
    return found


@pytest.mark.parametrize("capture", CAPTURES, ids=lambda path: path.stem)
def test_every_client_is_a_connection(capture: Path) -> None:
    document = golden(capture)
    assert sorted(clients(capture).values()) == sorted(client["client"] for client in document["clients"])


@pytest.mark.parametrize("capture", having("messages"))
def test_messages_are_those_of_the_books(capture: Path) -> None:
    """In the order in which they were sent; a book has the whole ones only."""
    book: dict[str, list[Row]] = {}
    for row in golden(capture)["messages"]:
        book.setdefault(row["client"], []).append(row)
    for client, found in of_clients(capture, "messages").items():
        whole = [row for row in found if row["body_hash"] is not None]
        for sent in (True, False):  # a client does not know how its own and the broker's messages crossed
            mine = [row for row in whole if row["from_client"] is sent]
            theirs = [row for row in book.get(client, []) if row["from_client"] is sent]
            stated = [[n for n in FIELDS if n in row] for row in theirs]
            assert len(mine) == len(theirs)
            assert [{n: r[n] for n in names} for r, names in zip(mine, stated, strict=True)] == [
                {n: r[n] for n in names} for r, names in zip(theirs, stated, strict=True)
            ]
            for row, written in zip(mine, theirs, strict=True):
                assert {n: row[n] for n in written["properties"]} == written["properties"]
                if "headers" in written:
                    headers = {name: of_typed(typed) for name, typed in written["headers"].items()}
                    assert same(parsed(row["headers"]) or {}, headers)


@pytest.mark.parametrize("capture", having("confirms"))
def test_publishes_have_the_numbers_of_the_books(capture: Path) -> None:
    names = ("channel", "channel_epoch", "publish_seq", "exchange", "routing_key")
    book = golden(capture)["confirms"]
    for client, found in of_clients(capture, "messages").items():
        numbered = [row for row in found if row["kind"] == "publish" and row["publish_seq"] is not None]
        assert [tuple(row[n] for n in names) for row in sorted(numbered, key=lambda row: row["frame_no"])] == [
            tuple(row[n] for n in names) for row in book if row["client"] == client
        ]


@pytest.mark.parametrize("capture", having("settlements"))
def test_deliveries_are_those_of_the_books(capture: Path) -> None:
    book = golden(capture)["settlements"]
    for client, found in of_clients(capture, "messages").items():
        delivered = [row for row in found if row["kind"] in ("deliver", "get")]
        names = ("channel", "channel_epoch", "delivery_tag", "consumer_tag")
        mine = [row for row in book if row["client"] == client]
        assert Counter(tuple(row[n] for n in names) for row in delivered) == Counter(
            tuple(row[n] for n in names) for row in mine
        )
        auto = {tuple(row[n] for n in names) for row in mine if row["outcome"] == "auto"}
        for row in delivered:
            if row["no_ack"] is not None:  # null where the consume was before the capture
                assert row["no_ack"] == (tuple(row[n] for n in names) in auto)
        if capture.stem != "begun_before":
            assert all(row["no_ack"] is not None for row in delivered)


@pytest.mark.parametrize("capture", having("rpcs"))
def test_requests_are_those_of_the_books(capture: Path) -> None:
    """Every request a client wrote down is there, in its order, and every answer it got."""
    book = golden(capture)["rpcs"]
    requests = {row["request"] for row in book}
    for client, found in of_clients(capture, "amqp091_frames").items():
        mine = [row for row in book if row["client"] == client]
        sent = [
            (row["channel"], row["channel_epoch"], row["method"])
            for row in found
            if row["from_client"] and row["method"] in requests and not row["no_wait"]
        ]
        sent = [request for request in sent if (capture.stem, *request) not in NOT_STATED]
        assert Counter(sent) == Counter((row["channel"], row["channel_epoch"], row["request"]) for row in mine)
        answers = Counter((row["channel"], row["channel_epoch"], row["response"]) for row in mine if row["response"])
        there = Counter(
            (row["channel"], row["channel_epoch"], row["method"]) for row in found if not row["from_client"]
        )
        assert answers <= there


@pytest.mark.parametrize("capture", having("connections"))
def test_connections_agreed_on_what_the_books_say(capture: Path) -> None:
    for written in golden(capture)["connections"]:
        (row,) = of_clients(capture, "connections")[written["client"]]
        names = written.keys() - {"client", "closed_by"}
        assert {name: row[name] for name in names} == {name: written[name] for name in names}
        if "closed_by" in written:
            assert row["closed_by"] == f"{written['closed_by']}-close"
        assert (row["handshake_stage"], row["handshake_outcome"]) == ("ready", "ok")


@pytest.mark.parametrize("capture", having("heartbeats"))
def test_heartbeats_are_counted_and_agreed_on(capture: Path) -> None:
    frames, agreed = of_clients(capture, "amqp091_frames"), of_clients(capture, "connections")
    for written in golden(capture)["heartbeats"]:
        beats = [
            row
            for row in frames[written["client"]]
            if row["frame_type"] == "heartbeat" and row["from_client"] == written["from_client"]
        ]
        assert len(beats) == written.get("frames", len(beats))
        assert agreed[written["client"]][0]["heartbeat"] == written["negotiated_s"]


@pytest.mark.parametrize("capture", having("counts"))
def test_counts_are_those_of_the_books(capture: Path) -> None:
    frames = rows(ours(capture)["amqp091_frames"])
    found = Counter(row["method"] for row in frames)
    found |= Counter({f"{kind} frames": n for kind, n in Counter(row["frame_type"] for row in frames).items()})
    found["connections"] = ours(capture)["connections"].num_rows
    wanted = golden(capture)["counts"]
    assert {what: found[what] for what in wanted} == wanted


@pytest.mark.parametrize(
    "capture", [c for c in CAPTURES if c.suffix == ".pcap" and c.stem not in LEFT_OUT], ids=lambda path: path.stem
)
def test_methods_are_as_many_as_a_naive_reading_finds(capture: Path) -> None:
    counts = naive.counts(capture)
    found = Counter(row["method"] for row in rows(ours(capture)["amqp091_frames"]) if row["method"])
    assert found == {what: n for what, n in counts.items() if "." in what}


@pytest.mark.parametrize("capture", having("anomalies"))
def test_every_violation_is_an_anomaly(capture: Path) -> None:
    codes: Counter[tuple[str, str]] = Counter()
    for client, found in of_clients(capture, "anomalies").items():
        codes.update((client, row["code"]) for row in found)
    for client in clients(capture).values():
        wanted: Counter[str] = Counter()
        for row in golden(capture)["anomalies"]:
            if row["client"] == client:
                for code, count in VIOLATIONS[row["violation"]].items():
                    wanted[code] += count * row["count"]
        assert {code: codes[client, code] for code in wanted} == wanted
