"""Frames and messages of every recording against a slow, independent decoder (dpkt and pamqp)."""

from pathlib import Path
from typing import Any

import pytest

from tests import reference
from tests.dissector.recordings import BEHIND_A_PROXY, READABLE, identities, ours, theirs
from tests.dissector.runs import SETS, Row, rows
from tests.dissector.values import of_pamqp, parsed, same

pytestmark = pytest.mark.filterwarnings("ignore:This command is deprecated")

FRAMES = (
    "frame_no", "packet", "ts_ns", "first_packet", "first_ts_ns", "from_client", "channel", "channel_epoch",
    "frame_type", "size", "is_partial", "missing",
)  # fmt: skip
MESSAGES = (
    "kind", "from_client", "channel", "channel_epoch", "frame_no", "first_frame_no", "packet", "ts_ns", "first_packet",
    "first_ts_ns", "exchange", "routing_key", "consumer_tag", "delivery_tag", "redelivered", "mandatory", "no_ack",
    "reply_code", "publish_seq", "body_size", "body_hash", "cut_by",
)  # fmt: skip
PROPERTIES = (
    "content_type", "content_encoding", "delivery_mode", "priority", "correlation_id", "reply_to", "expiration",
    "message_id", "timestamp", "type", "user_id", "app_id", "cluster_id",
)  # fmt: skip
TABLES = {"arguments", "client_properties", "server_properties"}
RESERVED = {"cluster_id"}
"""pamqp's name for what the final draft reserves in basic.get-empty; it has no column."""
PROTOCOLS_LEFT_OUT = {"failed_handshakes", "wrong_ports", "amqp10_handshakes"}
"""Connections of other protocols: the broker's answer to their headers has a row in the reference only."""


MISPLACED_END = "frame-end-wrong"
"""A frame with a wrong end byte has a row here, for its head was seen, and none in the reference."""


def pick(row: Row, names: tuple[str, ...]) -> Row:
    return {name: row[name] for name in names}


def sort_out(capture: Path, table: str) -> list[Row]:
    """Our rows, less those that the reference does not have; numbers are then not to be compared."""
    wrong = {
        (row["connection_id"], row["frame_no"])
        for row in rows(ours(capture)["anomalies"])
        if row["code"] == MISPLACED_END
    }
    number = "frame_no" if table == "amqp091_frames" else "first_frame_no"
    found = [row for row in rows(ours(capture)[table]) if row.get("protocol", "amqp-0-9-1") == "amqp-0-9-1"]
    return [row for row in found if (row["connection_id"], row[number]) not in wrong]


def names_of(capture: Path, names: tuple[str, ...]) -> tuple[str, ...]:
    broken = any(row["code"] == MISPLACED_END for row in rows(ours(capture)["anomalies"]))
    return tuple(name for name in names if not (broken and name.endswith("frame_no")))


def grouped(capture: Path, table: str) -> dict[Any, list[Row]]:
    groups: dict[Any, list[Row]] = {}
    for row in sort_out(capture, table):
        groups.setdefault(identities(capture)[row["connection_id"]], []).append(row)
    return groups


def theirs_grouped(capture: Path, found: list[Row]) -> dict[Any, list[Row]]:
    groups: dict[Any, list[Row]] = {}
    known = grouped(capture, "amqp091_frames") if capture.stem in PROTOCOLS_LEFT_OUT else None
    for row in found:
        if known is None or row["connection"] in known:
            groups.setdefault(row["connection"], []).append(row)
    return groups


@pytest.mark.sampled(3)
@pytest.mark.parametrize("capture", [c for c in READABLE if c.stem != BEHIND_A_PROXY], ids=lambda path: path.stem)
def test_frames_are_those_of_the_reference(capture: Path) -> None:
    found, expected = grouped(capture, "amqp091_frames"), theirs_grouped(capture, theirs(capture))
    assert found.keys() == expected.keys()
    for connection, frames in expected.items():
        names = names_of(capture, (*FRAMES, "capture") if capture in SETS else FRAMES)
        assert [pick(row, names) for row in found[connection]] == [pick(row, names) for row in frames]
        for row, frame in zip(found[connection], frames, strict=True):
            known = frame["method"] and frame["method"][0].isalpha()
            assert row["method"] == (frame["method"] if known else None)
            if frame["frame_type"] == "method":
                for name in frame["args"].keys() - RESERVED:
                    value = frame["args"][name]
                    if name in TABLES:
                        assert same(parsed(row[name]), of_pamqp(value)), (row["frame_no"], name)
                    else:
                        assert row[name] == value, (row["frame_no"], name)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("capture", READABLE, ids=lambda path: path.stem)
def test_messages_are_those_of_the_reference(capture: Path) -> None:
    expected = theirs_grouped(capture, reference.messages(theirs(capture)))
    found = grouped(capture, "messages")
    assert found.keys() == expected.keys()
    for connection, messages in expected.items():
        names = names_of(capture, MESSAGES)
        assert [pick(row, names) for row in found[connection]] == [pick(row, names) for row in messages]
        for row, message in zip(found[connection], messages, strict=True):
            assert (row["is_partial"] or row["body_hash"] is None) == message["is_partial"]
            assert {k: row[k] for k in PROPERTIES if row[k] is not None} == message["properties"]
            assert same(parsed(row["headers"]), of_pamqp(message["headers"])), row["frame_no"]
