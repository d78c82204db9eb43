"""Statistics of damaged recordings: no latency but that of the undamaged one, and nothing failed that did not.

All recordings and ways of damage: `python -m tests.captures.damage.answers`.
"""

from __future__ import annotations

import pyarrow as pa
import pytest

from amqpscope.pipelines import confirms, heartbeats
from amqpscope.pipelines.run.preparing import timed
from tests.captures.damage.answers import analyzed, judge, runs_of
from tests.captures.damage.recordings import FOLDER, Recording
from tests.dissector.recordings import COVERED
from tests.pipelines.scenario import arrow_table

RECORDINGS = (
    "many_confirms", "mandatory_returns", "gets", "recover", "prefetch", "tag_zero", "failed_handshakes",
    "stream_rstream", "stream_calls",
)  # fmt: skip
WAYS = ("lossy", "without ends", "snapped", "one way")


def test_no_pair_that_was_not_there(tmp_path):
    assert {*RECORDINGS} <= COVERED
    recordings = [Recording.of(FOLDER / f"{name}.pcap") for name in RECORDINGS]
    found = judge(analyzed(runs_of(recordings, WAYS, range(1)), tmp_path))
    assert [(kind, table, mine.run.name, mine) for kind, table, mine, _ in found.examples] == []
    for way in WAYS:
        counts = found.counts[way, "rpcs"]
        assert counts["right"] + counts["censored"] == counts["found"] > 0
    assert found.counts["lossy", "confirms"]["right"] > 100
    assert found.counts["snapped", "settlements"]["right"] > 0.8 * found.counts["snapped", "settlements"]["found"]


def test_no_answer_in_sessions_that_was_not_there(tmp_path):
    """The undamaged rows are those of another reading (`test_sessions_against_reference`)."""
    names = ("tx", "flow_credit", "multi_session", "messaging")
    recordings = [Recording.of(FOLDER / f"qpid_{name}.pcap") for name in names]
    found = judge(analyzed(runs_of(recordings, ("lossy", "one way"), range(2)), tmp_path))
    assert [(kind, table, mine.run.name, mine) for kind, table, mine, _ in found.examples] == []
    for table in ("confirms", "settlements", "rpcs"):
        counts = found.counts["lossy", table]
        assert counts["right"] > 0.8 * counts["found"] > 0


def test_a_publish_of_unknown_number_blames_nobody():
    """A recording in which the broker leaves publishes unanswered, without its first confirm.select."""
    recording = Recording.of(FOLDER / "never_confirmed.pcap")
    frames = recording.tables["amqp091_frames"].to_pylist()
    select = next(row for row in frames if row["method"] == "confirm.select")
    tables = recording.dissect([p for p in recording.capture.packets if p.interface != select["packet"]])
    found = confirms(*(tables[name] for name in ("amqp091_frames", "messages", "connections", "anomalies"))).to_pylist()
    unknown = [(row["publish_seq"], row["outcome"], row["ended_by"]) for row in found if row["numbered_by"] is None]
    assert set(unknown) == {(None, "none", "gap")}


def test_a_message_whose_last_packet_may_be_missing_has_no_time():
    """Where packets are cut it is the one that its other bytes are in."""
    row = {"capture": "a.pcap", "body_size": 5000, "unfinished": False}
    messages = arrow_table("messages", [{**row, "is_partial": True}, {**row, "is_partial": False}])
    for cut, unfinished in ((), [True, False]), (("a.pcap",), [False, False]):
        assert timed(messages, pa.array(cut, pa.string()))["unfinished"].to_pylist() == unfinished


@pytest.mark.compiled
def test_under_dense_loss_answers_stay_among_what_they_answer(tmp_path):
    """Both directions lack bytes again and again: which of them came first decides what a lost answer may be of."""
    whole = Recording.of(FOLDER / "demo.pcap")
    mine = [p for p, s in zip(whole.capture.packets, whole.capture.segments, strict=True) if s and 51003 in s.flow[1:]]
    consumer = Recording("one consumer", mine[:500], whole.link)
    found = judge(analyzed(runs_of([consumer], ["bursts"], range(8, 16)), tmp_path))
    assert [(kind, table, mine) for kind, table, mine, _ in found.examples] == []
    assert found.counts["bursts", "settlements"]["right"] > 1000


@pytest.mark.compiled
def test_a_publish_that_ends_in_a_gap_blames_nobody(tmp_path):
    """Both directions lack the end of a large message: its confirm may have come after it."""
    recordings = [Recording.of(FOLDER / f"large_message{name}.pcap", compiled=True) for name in ("", "_small_frames")]
    found = judge(analyzed(runs_of(recordings, ["middle missing"], range(1, 12)), tmp_path))
    assert [(kind, table, mine) for kind, table, mine, _ in found.examples] == []


@pytest.mark.parametrize("name", ["heartbeats", "orders_amqplib", "qpid_heartbeat"])
def test_of_one_direction_heartbeats_are_known_where_it_has_what_was_agreed_on(name):
    """The client's tune-ok decides; the broker's proposal alone proves nothing."""
    recording = Recording.of(FOLDER / f"{name}.pcap")
    for seed in range(4):
        tables = recording.dissect(recording.damaged("one way", seed))
        frames = [row for of in ("amqp091_frames", "amqp010_frames") for row in tables[of].to_pylist()]
        agreed = {row["connection_id"] for row in frames if row["method"] == "connection.tune-ok"}
        sent = {(row["connection_id"], row["from_client"]) for row in frames}
        names = ("amqp091_frames", "connections", "anomalies")
        found = heartbeats(*(tables[of] for of in names), amqp010_frames=tables["amqp010_frames"]).to_pylist()
        assert found
        for row in found:
            identity, is_agreed = row["connection_id"], row["connection_id"] in agreed
            assert (row["negotiated_s"] is not None) == is_agreed
            assert (row["missed"] is not None) == (is_agreed and (identity, row["from_client"]) in sent)
