"""All tables of statistics over all recordings, against a slow, independent decoder (dpkt, pamqp and plain loops)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from amqpscope.pipelines.latencies.latency import PERCENTILES
from tests import reference
from tests.dissector.recordings import WHOLE, theirs

pytestmark = pytest.mark.filterwarnings("ignore:This command is deprecated")

OTHERWISE = {
    # The end of a gap within a packet is that packet here, and the next frame in the reference.
    ("confirms", "snapped"): ("end_ts_ns",),
    # A frame with a wrong end byte has a row here, and none in the reference.
    ("heartbeats", "wrong_end_octet"): ("longest_silence_ns",),
}
"""Columns that differ for a reason."""
Row = dict[str, Any]
PLACE = ("channel", "channel_epoch")
OUTCOME = ("outcome", "ended_by", "end_ts_ns", "latency_ns")
COLUMNS = {
    "confirms": (
        *PLACE,
        "publish_seq",
        "exchange",
        "routing_key",
        "multiple",
        "returned",
        "reply_code",
        *OUTCOME,
        "incomplete",
    ),
    "settlements": (
        *PLACE,
        "kind",
        "consumer_tag",
        "queue",
        "delivery_tag",
        "multiple",
        "requeue",
        *OUTCOME,
        "incomplete",
    ),
    "rpcs": (*PLACE, "from_client", "request", "response", "reply_code", *OUTCOME),
    "flow_control": (
        "consumer_tag",
        "cause",
        "side",
        "evidence",
        "start_ts_ns",
        "start_frame_no",
        "end_ts_ns",
        "end_frame_no",
    ),
    "heartbeats": ("from_client", "negotiated_s", "longest_silence_ns", "missed"),
    "transits": ("matched_by", "latency_ns"),
}
ENDS = {
    "confirms": ("publish", "confirm"),
    "settlements": ("deliver", "settle"),
    "rpcs": ("request", "response"),
    "flow_control": (),
    "heartbeats": (),
    "transits": ("deliver",),
}
ENDINGS = ("frame_no", "packet", "ts_ns")


@pytest.fixture(scope="module")
def both(recorded):
    """Names of connections, and rows of each table: ours, and the reference's."""
    stems = {capture.stem for capture in WHOLE}
    names = {identity: name for identity, name in recorded.names.items() if name[0] in stems}
    frames = [row | {"connection": (capture.stem, *row["connection"])} for capture in WHOLE for row in theirs(capture)]
    # The reference takes the broker's answer to the header of another protocol for a frame.
    spoken = pq.read_table(recorded.tables / "amqp091_frames", columns=["connection_id"])["connection_id"]
    known = {names.get(connection) for connection in pc.unique(spoken).to_pylist()}
    frames = [row for row in frames if row["connection"] in known]
    expected = {table: getattr(reference, table)(frames) for table in COLUMNS}
    found = {table: pq.read_table(recorded.statistics / table) for table in [*COLUMNS, "latency_summary"]}
    return names, found, expected


@pytest.mark.parametrize("table", COLUMNS)
def test_rows_are_those_of_the_reference(both, table):
    names, found, expected = both
    columns = [*COLUMNS[table], *(f"{end}_{name}" for end in ENDS[table] for name in ENDINGS)]
    side = "deliver_" if table == "transits" else ""

    def counted(rows: list[Row], identify: Callable[[Row], tuple[Any, ...]]) -> Counter[tuple[Any, ...]]:
        found: Counter[tuple[Any, ...]] = Counter()
        for row in rows:
            connection = identify(row)
            skipped = OTHERWISE.get((table, connection[0]), ())
            found[connection, *(row[c] for c in columns if c not in skipped)] += 1
        return found

    mine = [row for row in found[table].to_pylist() if row[f"{side}connection_id"] in names]
    if table == "confirms":
        mine = [row for row in mine if row["publish_seq"] is not None]  # the reference counts
    if table == "flow_control":
        mine = [row for row in mine if row["cause"] != "zero-window"]  # the reference sees streams, not segments
    ours = counted(mine, lambda row: names[row[f"{side}connection_id"]])
    theirs = counted(expected[table], lambda row: row[f"{side}connection"])
    if table == "heartbeats":  # connections without a frame have rows here only
        ours = Counter({row: n for row, n in ours.items() if row[0] in {connection for connection, *_ in theirs}})
    assert sum(ours.values()) > 20
    assert sorted((ours - theirs).elements(), key=repr) == []
    assert sorted((theirs - ours).elements(), key=repr) == []


@pytest.mark.parametrize(("metric", "table"), [("confirm", "confirms"), ("settlement", "settlements"), ("rpc", "rpcs")])
def test_summaries_are_those_of_the_reference(both, metric, table):
    names, found, expected = both
    groups: dict[Any, list[Row]] = {}
    for row in expected[table]:
        groups.setdefault(row["connection"], []).append(row)
    summary = [row for row in found["latency_summary"].to_pylist() if row["metric"] == metric]
    summary = [row for row in summary if row["grouping"] == "connection" and row["connection_id"] in names]
    others = [row for row in summary if names[row["connection_id"]] not in groups]
    assert all(row["count"] == 0 for row in others), (
        "their numbers are unknown, and the reference gives such publishes no rows"
    )
    summary = [row for row in summary if row not in others]
    assert {names[row["connection_id"]] for row in summary} == groups.keys()
    for row in summary:
        rows = groups[names[row["connection_id"]]]
        wanted = reference.latency_summary(each["latency_ns"] for each in rows)
        outcomes = Counter(each["outcome"] for each in rows)
        endings = Counter(each["ended_by"] for each in rows if each["outcome"] == "none")
        wanted["censored"] = endings["capture-end"] + endings["gap"]
        wanted["unanswered"] = outcomes["none"] - wanted["censored"]
        wanted["failed"] = outcomes["nack"] + outcomes["reject"] + outcomes["error"] + wanted["unanswered"]
        percentiles = {name: wanted.pop(name) for name in PERCENTILES}
        assert {name: row[name] for name in wanted} == wanted
        for name, value in percentiles.items():
            assert (row[name] is None) == (value is None)
            assert value is None or abs(row[name] - value) * 1000 <= 4 * value  # of buckets
        asked = sum(outcomes.values()) - outcomes["auto"] - outcomes["unknown"]
        assert row["count"] + row["censored"] + row["unanswered"] + row["unusable"] == asked
