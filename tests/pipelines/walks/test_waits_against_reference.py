"""Heartbeats, flow control and channel errors of all recordings, against a slow, independent decoder."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from amqpscope.pipelines.amqp091.channel_errors import ChannelErrors
from amqpscope.pipelines.amqp091.flow_control import FlowControl
from amqpscope.pipelines.connections.heartbeats import Heartbeats
from amqpscope.pipelines.connections.zero_windows import ZeroWindows
from amqpscope.pipelines.run.engine import walked
from tests import reference
from tests.dissector.recordings import WHOLE, identities, ours, theirs
from tests.dissector.runs import FOLDER
from tests.pipelines.walks.properties import checked

pytestmark = pytest.mark.filterwarnings("ignore:This command is deprecated")

Row = dict[str, Any]
OTHERWISE = {("heartbeats", "wrong_end_octet"): ("longest_silence_ns",)}
"""A frame with a wrong end byte has a row here, and none in the reference."""
COLUMNS = {
    "heartbeats": ("from_client", "negotiated_s", "longest_silence_ns", "missed"),
    "flow_control": (
        "channel", "cause", "side", "evidence", "start_ts_ns", "start_frame_no", "start_packet", "end_ts_ns",
        "end_frame_no", "end_packet",
    ),
    "channel_errors": (
        "channel", "channel_epoch", "from_client", "method", "reply_code", "reply_text", "failed_method", "queue",
        "exchange", "frame_no", "packet", "ts_ns",
    ),
}  # fmt: skip


@cache
def frames(capture: Path) -> list[Row]:
    """The reference's, of connections that speak AMQP 0-9-1."""
    spoken = set(ours(capture)["amqp091_frames"]["connection_id"].to_pylist())
    known = {name for identity, name in identities(capture).items() if identity in spoken}
    return [row for row in theirs(capture) if row["connection"] in known]


def expected_heartbeats(capture: Path) -> list[Row]:
    return reference.heartbeats(frames(capture))


def expected_flow_control(capture: Path) -> list[Row]:
    rows = [row for row in reference.flow_control(frames(capture)) if row["cause"] != "prefetch"]
    packets = {(row["connection"], row["frame_no"]): row["packet"] for row in frames(capture)}
    # The reference takes a flow that the broker does not implement for one; here it has no row.
    refused = {
        (row["connection"], row["frame_no"])
        for row in frames(capture)
        if row["method"] == "connection.close" and row["args"] and row["args"]["reply_code"] == 540
    }
    rows = [row for row in rows if (row["connection"], row["end_frame_no"]) not in refused]
    for row in rows:
        row |= {f"{end}_packet": packets.get((row["connection"], row[f"{end}_frame_no"])) for end in ("start", "end")}
        if row["cause"] == "connection-blocked":
            row["channel"] = None
    return rows


def expected_channel_errors(capture: Path) -> list[Row]:
    found = []
    for close in frames(capture):
        args = close["args"]
        if close["method"] not in ("channel.close", "connection.close") or args.get("reply_code") in (None, 0, 200):
            continue
        index = args["class_id"] << 16 | args["method_id"]
        row = close | {"failed_method": reference.amqp.METHODS[index] if index else None}
        row |= {"reply_code": args["reply_code"], "reply_text": args["reply_text"], "queue": None, "exchange": None}
        before = [
            frame
            for frame in frames(capture)
            if frame["connection"] == close["connection"]
            and frame["frame_no"] < close["frame_no"]
            and frame["from_client"] != close["from_client"]
            and frame["method"] == row["failed_method"]
        ]
        same = [frame for frame in before if all(frame[n] == close[n] for n in ("channel", "channel_epoch"))]
        if close["method"] == "connection.close" and len({frame["channel"] for frame in before}) == 1:
            same = before
        if same:
            row |= {name: same[-1]["args"].get(name) for name in ("queue", "exchange")}
        for name in ("queue", "exchange"):  # what the broker says is not the last request where several were under way
            said = re.search(f"{name} '([^']+)' in vhost", row["reply_text"] or "")
            if said and row[name] is not None:
                row[name] = said[1].replace("amq.default", "")
        found.append(row)
    return found


@pytest.mark.parametrize(
    ("walk", "expected"),
    [
        (Heartbeats, expected_heartbeats),
        (FlowControl, expected_flow_control),
        (ChannelErrors, expected_channel_errors),
    ],
)
def test_rows_are_those_of_the_reference(walk, expected):
    (name,) = walk.tables
    total = 0
    for capture in WHOLE:
        columns = [column for column in COLUMNS[name] if column not in OTHERWISE.get((name, capture.stem), ())]
        rows = [row for row in walked(ours(capture), [walk()])[name].to_pylist() if row.get("cause") != "zero-window"]
        found = Counter((identities(capture)[row["connection_id"]], *(row[c] for c in columns)) for row in rows)
        wanted = Counter((row["connection"], *(row[c] for c in columns)) for row in expected(capture))
        if name == "heartbeats":  # connections without a frame have rows here only
            found = Counter({row: n for row, n in found.items() if row[0] in {connection for connection, *_ in wanted}})
        assert found == wanted, capture.stem
        total += sum(found.values())
    assert total >= {"heartbeats": 100, "flow_control": 8, "channel_errors": 20}[name]


@pytest.mark.parametrize("walk", [Heartbeats, FlowControl, ChannelErrors])
@pytest.mark.parametrize("capture", ["channel_flow", "blocked", "failed_calls", "lossy_link", "heartbeats"])
def test_rows_do_not_depend_on_batches(walk, capture):
    checked(walk, ours(FOLDER / f"{capture}.pcap"), (3, 1000))


def test_a_flow_that_the_broker_refuses_is_no_wait():
    assert len(walked(ours(FOLDER / "channel_flow_by_client.pcap"), [FlowControl()])["flow_control"]) == 0


def test_the_reason_why_the_broker_blocks():
    rows = walked(ours(FOLDER / "blocked.pcap"), [FlowControl()])["flow_control"].to_pylist()
    assert {row["reason"] for row in rows} == {"low on memory"}


def test_windows_of_zero_are_those_of_the_table():
    seen = 0
    for capture in WHOLE:
        wanted = [row for row in ours(capture)["tcp_windows"].to_pylist() if row["kind"] == "zero"]
        rows = walked(ours(capture), [ZeroWindows()])["flow_control"].to_pylist()
        found = [row for row in rows if row["cause"] == "zero-window"]
        ends = [f"{end}_{name}" for end in ("start", "end") for name in ("capture", "packet", "ts_ns")]
        place = ["connection_id", *ends]
        assert Counter(tuple(row[n] for n in place) for row in found) == Counter(
            tuple(row[n] for n in place) for row in wanted
        )
        assert all(row["duration_ns"] >= 0 for row in found)
        seen += len(found)
    assert seen > 0
