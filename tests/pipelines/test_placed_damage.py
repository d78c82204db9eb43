"""Recordings of which chosen packets are missing, held against the whole ones: what their rows must still say, or not.

Where chance chooses the packets: `test_damaged`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pamqp import commands

from amqpscope.pipelines import confirms
from tests.captures.damage.answers import WHOLE, Judgement, Run, analyzed, judge, runs_of
from tests.captures.damage.recordings import FOLDER, Recording
from tests.dissector.builders import Packet, pcap
from tests.dissector.runs import Row, dissect_packets
from tests.dissector.wire import CLIENT, SERVER, Tape, handshake, method, opening, publish
from tests.pipelines.analyzed import findings, statistics, walked

Choice = Callable[[Row], bool]
FRAMES = ("amqp091_frames", "amqp010_frames")
COPIED, COPIED_OF = "tagged copies", ("orders_pika", "prefetch", "stream_lag")


def packets_of(recording: Recording, chosen: Choice) -> list[int]:
    """The packets of the recording that hold a frame of this choice, in their order."""
    return sorted({row["packet"] for table in FRAMES for row in recording.tables[table].to_pylist() if chosen(row)})


def without(recordings: dict[str, list[list[int]]], folder: Path) -> Judgement:
    """Statistics of recordings that lack each of some sets of packets."""
    runs = []
    for name, all_lost in recordings.items():
        recording = Recording.of(FOLDER / f"{name}.pcap")
        runs.append(Run(recording, WHOLE, recording.capture.packets, recording.tables))
        for lost in all_lost:
            kept = [packet for packet in recording.capture.packets if packet.interface not in lost]
            runs.append(Run(recording, f"{name} without {lost}", kept, recording.dissect(kept)))
    return judge(analyzed(runs, folder))


def damaged(recording: Recording, kept: Callable[[Packet], bool], folder: Path) -> dict[str, pa.Table]:
    """Statistics of some packets of a recording."""
    path = folder / "damaged.pcap"
    path.write_bytes(pcap(list(filter(kept, recording.capture.packets)), ns=True))
    return walked(path)


def placed(names: dict[str, Choice], most: int) -> dict[str, list[list[int]]]:
    """Of each recording the packets of its choice, one at a time; at most so many, spread evenly."""
    found = {}
    for name, chosen in names.items():
        packets = packets_of(Recording.of(FOLDER / f"{name}.pcap"), chosen)
        found[name] = [[packet] for packet in packets[:: -(-len(packets) // most)]]
    return found


def settles(row: Row) -> bool:
    return row["method"] in ("basic.ack", "basic.nack", "basic.reject", "message.accept", "message.release")


def test_a_lost_settlement_before_a_recover_or_a_commit_is_a_gap(tmp_path: Path) -> None:
    """Nothing else is blamed for it: neither the recover, nor the end of the channel or transaction."""
    names = ("recover", "recover_async", "requeued", "transactions", "qpid_tx")
    found = without(placed(dict.fromkeys(names, settles), 3), tmp_path)
    assert [(kind, table, mine) for kind, table, mine, _ in found.examples if kind != "otherwise"] == []
    counts = [found.counts[way, table] for way, table in found.counts if table == "settlements"]
    assert len(counts) > 10 and all(count["right"] + count["censored"] == count["found"] for count in counts)
    assert sum(count["censored"] for count in counts) > 20


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "publishes"), [("blocked", 5), ("reject_publish", 8), ("second_confirm_select", 6), ("pika_confirms", 10)]
)
def test_one_lost_publish_costs_its_own_confirm(name: str, publishes: int, tmp_path: Path) -> None:
    """Any but the first of a channel, before which nothing says what has been counted.

    Of pika, which sends them apart, the method is lost: header and body lie behind the gap.
    """
    recording = Recording.of(FOLDER / f"{name}.pcap")
    sent = [row for row in recording.tables["messages"].to_pylist() if row["kind"] == "publish"]
    sent = [row for row in sent if row["connection_id"] == sent[0]["connection_id"]]
    assert len(sent) == publishes
    found = without({name: [[row["first_packet"]] for row in sent[1:]]}, tmp_path)
    assert [(kind, table, mine) for kind, table, mine, _ in found.examples] == []
    for (way, table), count in found.counts.items():
        if table == "confirms":
            assert (count["right"], count["found"]) == (count["there"] - 1, count["there"] - 1), way


@pytest.mark.sampled(4)
@pytest.mark.parametrize("lost", [(0,), (0, 1), (0, 1, 2)])
@pytest.mark.parametrize("window", [0, 1, 3])
@pytest.mark.parametrize("is_settled", [True, False])
def test_a_publish_whose_content_lies_behind_the_gap_counts(
    lost: tuple[int, ...], window: int, is_settled: bool
) -> None:
    """A client with some publishes under way sends method, header and body in a packet each; of one some are lost."""
    tape = Tape().play([*handshake(), *opening(1), (CLIENT, method(commands.Confirm.Select()))])
    missing: list[int] = []
    acked = 0
    for number in range(1, 61):
        if number == 30:
            missing = [len(tape.packets) + part for part in lost]
        tape.play([(CLIENT, part) for part in publish(b"x" * 20)])
        for tag in range(acked + 1, number - window + 1):
            tape.play([(SERVER, method(commands.Basic.Ack(delivery_tag=tag)))])
            acked = tag
    if is_settled:
        tape.play([(SERVER, method(commands.Basic.Ack(delivery_tag=60, multiple=True)))])
    kept = [packet for at, packet in enumerate(tape.packets) if at not in missing]
    sent, found = (
        confirms(*(tables[name] for name in ("amqp091_frames", "messages", "connections", "anomalies"))).to_pylist()
        for tables in map(dissect_packets, (tape.packets, kept))
    )
    truth = {row["publish_ts_ns"]: row["publish_seq"] for row in sent}
    assert len(found) == 59
    assert all(row["publish_seq"] in (None, truth[row["publish_ts_ns"]]) for row in found)
    if window == 0 or is_settled:
        assert all(row["publish_seq"] for row in found)


def test_what_was_completed_behind_an_attach_that_was_not_seen_is_answered(tmp_path: Path) -> None:
    lost = {}
    for name in ("qpid_tx", "qpid_plain", "qpid_multi_session", "qpid_messaging"):
        attached = packets_of(Recording.of(FOLDER / f"{name}.pcap"), lambda row: row["method"] == "session.attached")
        lost[name] = [list(range(1, attached[0] + 1)), list(range(1, attached[-1] + 1))]
    found = without(lost, tmp_path)
    assert [(kind, table, mine) for kind, table, mine, _ in found.examples if kind != "otherwise"] == []
    assert sum(count["right"] for (_, table), count in found.counts.items() if table == "commands") > 100


def test_a_flow_that_the_broker_refuses_behind_a_close_is_no_wait(tmp_path: Path) -> None:
    """Also where the refusal is missing."""
    recording = Recording.of(FOLDER / "flow_and_close.pcap")
    refusals = packets_of(recording, lambda row: row["reply_code"] == 540)
    single = (
        refusals[0],
        refusals[2],
    )  # the other connection asked twice, and the refusal does not say on which channel
    for lost in (0, *refusals):
        found = damaged(recording, lambda packet, lost=lost: packet.interface != lost, tmp_path)  # type: ignore[misc]
        assert len(found["flow_control"]) == 0
        asked = [row for row in found["rpcs"].to_pylist() if row["request"] == "channel.flow"]
        assert [row["reply_code"] for row in asked].count(540) == len({*single} - {lost})
        assert len(asked) == 4


@pytest.mark.parametrize("name", ["passed_on", "passed_on_pika", "passed_on_aio_pika"])
def test_equal_messages_elsewhere_or_passed_on_are_of_no_publish_that_was_seen(name: str, tmp_path: Path) -> None:
    """Another virtual host has the same ids and bodies, and a worker that was not captured republishes with both."""
    golden = json.loads((FOLDER / f"{name}.golden.json").read_text())
    ports = {row["client"]: row["client_port"] for row in golden["clients"]}
    recording = Recording.of(FOLDER / f"{name}.pcap")
    of = {row["client_port"]: row["connection_id"] for row in recording.tables["connections"].to_pylist()}
    found = damaged(recording, lambda _: True, tmp_path)["transits"].to_pylist()
    for reader in ("reader in one", "reader in two"):
        mine = [row for row in found if row["deliver_connection_id"] == of[ports[reader]]]
        mine.sort(key=lambda row: row["deliver_frame_no"])
        wanted = [row for row in golden["transits"] if row["client"] == reader]
        assert len(mine) == len(wanted) > 5
        for row, truth in zip(mine, wanted, strict=True):
            publisher = truth["publisher"] and of[ports[truth["publisher"]]]
            assert (row["routing_key"], row["publish_connection_id"]) == (truth["routing_key"], publisher)
            assert (row["latency_ns"] is None) == (row["matched_by"] == "ambiguous") == (publisher is None)


@pytest.mark.parametrize("name", ["passed_on", "passed_on_pika", "passed_on_aio_pika"])
def test_where_a_broker_has_several_virtual_hosts_one_that_is_not_known_proves_nothing(
    name: str, tmp_path: Path
) -> None:
    """The connection.open of the publisher is lost, or of the reader beside it: that of the other reader is seen."""
    recording = Recording.of(FOLDER / f"{name}.pcap")
    opens = [row for row in recording.tables["amqp091_frames"].to_pylist() if row["method"] == "connection.open"]
    found = without({name: [[row["packet"]] for row in opens if row["virtual_host"] == "one"]}, tmp_path)
    counts = [count for (_, table), count in found.counts.items() if table == "transits"]
    assert [(count["wrong"], count["found"], count["right"]) for count in counts] == [(0, 18, 12)] * 2


@pytest.mark.parametrize("name", ["orders_aio_pika", "rpc_calls"])
def test_where_no_virtual_host_is_known_messages_are_followed(name: str, tmp_path: Path) -> None:
    """As in a capture that begins in the middle."""
    recording = Recording.of(FOLDER / f"{name}.pcap")
    opens = set(packets_of(recording, lambda row: row.get("method") == "connection.open"))
    sure = [
        sum(row["matched_by"] != "ambiguous" for row in damaged(recording, kept, tmp_path)["transits"].to_pylist())
        for kept in (lambda _: True, lambda packet: packet.interface not in opens)
    ]
    assert sure[0] == sure[1] > 10


@pytest.mark.parametrize("name", ["stream_lag", "stream_behind"])
def test_a_consumer_behind_its_stream_lags_by_what_was_confirmed(name: str, tmp_path: Path) -> None:
    """All was confirmed before it began; without its publishers, nobody knows how long the stream is."""
    recording = Recording.of(FOLDER / f"{name}.pcap")
    truth = json.loads((FOLDER / f"{name}.golden.json").read_text())["lag"]
    found = {table: rows.to_pylist() for table, rows in damaged(recording, lambda _: True, tmp_path).items()}
    rows = [row for row in found["stream_deliveries"] if row["chunk_type"] == 0]
    assert [row["lag_records"] for row in rows] == [truth["stored"] - 1 - row["last_offset"] for row in rows]
    assert rows[0]["lag_records"] > 50
    waits = [row["evidence"] for row in found["flow_control"] if row["cause"] == "stream-credit"]
    assert waits == ["proven"] * (len(waits) - 1) + ["possible"]  # nothing came after the last
    names = ("connection_id", "publisher_id", "publish_seq")
    sent = Counter(tuple(row[name] for name in names) for row in found["confirms"])
    twice = [row for row in found["confirms"] if sent[tuple(row[name] for name in names)] > 1]
    assert twice and all(row["outcome"] == "ack" and row["latency_ns"] is not None for row in twice)
    assert sum(row["deduplicated"] for row in twice) == len(truth["dropped"])
    ports = {row["connection_id"]: row["client_port"] for row in recording.tables["connections"].to_pylist()}
    reader = ports[rows[0]["connection_id"]]

    def is_readers(packet: Packet) -> bool:
        segment = recording.capture.segments[packet.interface - 1]
        return segment is not None and reader in segment.flow[1:]

    assert {
        row["lag_records"] for row in damaged(recording, is_readers, tmp_path)["stream_deliveries"].to_pylist()
    } == {None}


def test_who_cannot_be_told_of_an_alarm_waits_for_the_broker() -> None:
    """Its confirms say so: no channel.blocked, no window of zero, and not nobody."""
    found = findings(statistics("blocked_untold"))
    late = [row for row in found if row["code"] == "pub-late"]
    assert {row["client"] for row in late} == {"pika", "aio-pika"}
    assert {row["client"] for row in found if row["code"] == "pub-blocked"} == {"told"}
    assert {row["party"] for row in found if row["severity"] != "note"} == {"broker"}
    assert all("other connections were blocked then" in row["text"] for row in late)


def test_a_broker_that_stops_reading_from_who_gets_no_report_is_not_the_network() -> None:
    """What is sent again into a window that closes is not lost by the path, nor measured by captured bytes alone."""
    found = {row["code"]: row for row in findings(walked(FOLDER.parent / "tickets" / "mute_alarm_full.pcap"))}
    assert found["pub-throttled"]["party"] == "broker"
    assert (
        "without the capability connection.blocked the broker reports no alarm to it" in found["pub-throttled"]["text"]
    )
    assert "net-retrans" not in found
    told = {row["code"] for row in findings(walked(FOLDER.parent / "tickets" / "told_alarm_full.pcap"))}
    assert "pub-blocked" in told and not told & {"net-retrans", "pub-throttled"}


def test_of_a_mirror_port_that_lacks_copies_no_time_is_another_one(tmp_path: Path) -> None:
    """Each packet is there twice, but for a tenth: the copy that is left has the time of both."""
    runs = runs_of([Recording.of(FOLDER / f"{name}.pcap") for name in COPIED_OF], [COPIED], [0])
    found = judge(analyzed(runs, tmp_path))
    assert [(kind, table, mine) for kind, table, mine, _ in found.examples] == []
    for table in ("settlements", "transits", "stream_credit", "stream_deliveries"):
        count = found.counts[COPIED, table]
        assert count["right"] == count["found"] > 10, table
