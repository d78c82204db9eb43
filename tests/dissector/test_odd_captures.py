"""Captures that are odd, though little or nothing is lost: what is said of their connections stays true."""

import json
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from pamqp import commands

from amqpscope.pipelines.connections.heartbeats import Heartbeats
from amqpscope.pipelines.run.engine import walked
from tests.captures.damage.odd import compared, connections
from tests.captures.damage.recordings import Recording
from tests.captures.damage.verdicts import UNKNOWN
from tests.captures.damage.ways import (
    FIN_SYN_RST,
    ODD,
    POINT_NS,
    Capture,
    numbered,
    slower,
    toward_server,
    two_points_in_one,
    without_begin,
)
from tests.dissector.builders import Packet, pcap
from tests.dissector.runs import FOLDER, Row, dissect, dissect_packets, rows
from tests.dissector.wire import ACK, CLIENT, FIN, RST, SERVER, T0, Tape, handshake, method, opening, raw

SECOND = 1_000_000_000
BEAT = raw(8, 0, b"")

RECORDED = ("orders_pika", "orders_aio_pika", "orders_amqplib", "stream_rstream", "failed_handshakes", "refused_opens",
            "thrown_out", "tls_failures", "qpid_python_peers", "port_reused")  # fmt: skip
"""By several clients; of those that failed, the verdict must stay as well."""


def connection(packets: list[Packet], *, compiled: bool = False) -> Row:
    """The row of the only connection."""
    (row,) = rows(dissect_packets(packets, compiled=compiled)["connections"])
    return row


@pytest.mark.sampled(3)
@pytest.mark.parametrize("way", ODD)
@pytest.mark.parametrize("name", RECORDED)
def test_times_are_not_order(name: str, way: str) -> None:
    recording = Recording.of(FOLDER / f"{name}.pcap")
    for seed in range(2):
        kinds = {kind for kind, _, _ in compared(recording, way, seed)}
        assert kinds == {"same"}


@pytest.mark.parametrize("skew_ms", [-40, -7, 7, 40])
def test_what_an_end_acknowledges_came_before_it(skew_ms: int) -> None:
    tape = Tape().play([*handshake(), *opening(1)])
    tape.segment(CLIENT, flags=FIN | ACK)
    tape.next[CLIENT] += 1
    tape.segment(SERVER, flags=FIN | ACK)
    capture = Capture(numbered(tape.packets), 1)
    skewed = [
        Packet(packet.ts_ns + skew_ms * 1_000_000 * (segment is not None and segment.flow[2] == 5672), packet.data)
        for packet, segment in zip(capture.packets, capture.segments, strict=True)
    ]
    row = connection(sorted(skewed, key=lambda packet: packet.ts_ns))
    assert (row["handshake_outcome"], row["ending"], row["closed_by"]) == ("ok", "client-gone", "client-fin")


@pytest.mark.parametrize("is_closed", [True, False])
@pytest.mark.parametrize("isns", [(50_000, 90_000), (4_294_917_296, 200), (3_000_000, 77)])
@pytest.mark.parametrize("skew_ms", [-8, -3, 3, 8])
def test_the_end_of_a_connection_whose_port_is_used_again_may_come_late(
    skew_ms: int, isns: tuple[int, int], is_closed: bool
) -> None:
    """Whichever card is ahead; the sequence numbers of the next one are higher, wrap, or are lower."""
    first = Tape(isn=(isns[0], 60_000)).play([*handshake(), *opening(1), *opening(2)])
    if is_closed:
        first.segment(CLIENT, flags=RST | ACK)
    second = Tape(isn=(isns[1], 100_000), start_ns=first.packets[-1].ts_ns + 1).play([*handshake(), *opening(1)]).end()
    capture = Capture(numbered(first.packets + second.packets), 1)
    skewed = [
        replace(packet, ts_ns=packet.ts_ns + skew_ms * SECOND // 1000 * to)
        for packet, to in zip(capture.packets, toward_server(capture), strict=True)
    ]
    whole, found = (
        dissect_packets(packets, check=True)
        for packets in (capture.packets, sorted(skewed, key=lambda packet: packet.ts_ns))
    )
    names = ("connection_id", "handshake_outcome", "ending", "closed_by", "packets", "lost_bytes", "frames")
    assert [[row[name] for name in names] for row in rows(found["connections"])] == [
        [row[name] for name in names] for row in rows(whole["connections"])
    ]
    assert [row["code"] for row in rows(found["anomalies"])] == ["connection-reused-port"] * (not is_closed)


@pytest.mark.parametrize("lost", [1, 2, 3])
@pytest.mark.parametrize("side", [CLIENT, SERVER])
def test_what_was_acknowledged_and_nobody_saw_is_a_gap(side: int, lost: int) -> None:
    tape = Tape().play([*handshake(), *opening(1), *opening(2)]).end()
    capture = Capture(numbered(tape.packets), 1)
    port = 40000 if side == CLIENT else 5672
    mine = [i for i, segment in enumerate(capture.segments) if segment and segment.flow[1] == port]
    missing = sum(capture.data(i) for i in mine[: lost + 1])
    row = connection([packet for i, packet in enumerate(capture.packets) if i not in mine[: lost + 1]])
    assert (row["lost_bytes"], row["handshake_outcome"]) == (missing, "ok")


def test_bytes_under_way_when_the_capture_began_are_not_missing() -> None:
    tape = Tape().play([*handshake(), *opening(1), *opening(2)])
    for begin in range(4, len(tape.packets)):
        row = connection(tape.packets[begin:])
        assert row["lost_bytes"] == 0, begin


@pytest.mark.parametrize(
    ("lost", "is_whole"), [([], True), ([5], True), ([6, 7], True), ([5, 6, 7, 8], False), ([8], False)]
)
def test_how_long_a_handshake_took_is_known_where_its_last_step_is_there(lost: list[int], is_whole: bool) -> None:
    """Packets 3 to 8 are its own: who took how long is known where none of them is missing."""
    packets = Tape().play([*handshake(), *opening(1)]).end().packets
    packets = [replace(packet, ts_ns=T0 + n * 10 * SECOND) for n, packet in enumerate(packets)]
    whole = connection(packets)
    row = connection([packet for n, packet in enumerate(packets) if n not in lost])
    assert (row["handshake_outcome"], row["handshake_stage"]) == ("ok", "ready")
    assert row["handshake_ns"] == (whole["handshake_ns"] if is_whole else None)
    assert (row["handshake_client_ns"] is None) == (row["handshake_server_ns"] is None) == bool(lost)
    slow, all_slow = (
        {note["detail"] for note in json.loads(each["handshake_notes"] or "[]") if note["code"] == "slow-step"}
        for each in (row, whole)
    )
    assert slow <= all_slow


def begun_at(second: float, side: int) -> list[Row]:
    """The anomalies of a connection begun in the middle, of which a side's first method is not in the capture.

    It is acknowledged so many seconds later, and the next one is there.
    """
    ask, said = method(commands.Basic.Qos(prefetch_count=1)), method(commands.Basic.QosOk())
    tape = Tape(syn=False)
    tape.send(1 - side, said if side == CLIENT else ask)
    tape.next[side] += len(ask if side == CLIENT else said)
    tape.start_ns += int(second * SECOND)
    tape.send(1 - side, BEAT)
    tape.send(side, BEAT + (ask if side == CLIENT else said))
    tape.end()
    return rows(dissect_packets(tape.packets, check=True)["anomalies"])


@pytest.mark.parametrize("side", [CLIENT, SERVER])
def test_what_is_acknowledged_as_the_capture_begins_may_be_lost_or_not(side: int) -> None:
    (row,) = begun_at(0.01, side)
    assert (row["code"], row["from_client"], row["frame_no"]) == ("bytes-under-way", side == CLIENT, 2)
    size = len(method(commands.Basic.Qos(prefetch_count=1)) if side == CLIENT else method(commands.Basic.QosOk()))
    assert row["detail"] == f"{size} bytes at the beginning acknowledged, but not captured"


@pytest.mark.parametrize("side", [CLIENT, SERVER])
def test_a_gap_before_the_first_bytes_of_a_connection_begun_before_is_reported_where_it_is(side: int) -> None:
    (row,) = begun_at(0.8, side)
    assert (row["code"], row["from_client"], row["frame_no"]) == ("tcp-gap", side == CLIENT, 2)


@pytest.mark.parametrize("name", ["many_confirms", "failed_calls", "qpid_tx", "stream_rstream"])
def test_where_the_servers_beginning_is_lost_there_is_a_gap(name: str) -> None:
    recording = Recording.of(FOLDER / f"{name}.pcap")
    for seed in range(3):
        damaged = without_begin(recording.capture, random.Random(seed))
        lost = {row["connection_id"]: row["lost_bytes"] for row in rows(recording.dissect(damaged)["connections"])}
        whole = {row["connection_id"]: row["bytes"] for row in rows(recording.tables["connections"])}
        found = {row["connection_id"]: row["bytes"] for row in rows(recording.dissect(damaged)["connections"])}
        assert {name: whole[name] - size for name, size in found.items() if name in whole} == {
            name: size for name, size in lost.items() if name in whole
        }


def beats(tape: Tape, *turns: tuple[float, int, bool]) -> Tape:
    """Heartbeats: at which second, who, and whether the other side acknowledges it at once."""
    for second, side, is_answered in turns:
        tape.send(side, BEAT)
        tape.packets[-1] = replace(tape.packets[-1], ts_ns=T0 + int(second * SECOND))
        if is_answered:
            tape.segment(1 - side)
            tape.packets[-1] = replace(tape.packets[-1], ts_ns=T0 + int(second * SECOND) + 1_000_000)
    return tape


def unanswered(tape: Tape, side: int, *seconds: float) -> Tape:
    """A heartbeat that the other side does not receive, though it is sent again at these times."""
    tape.send(side, BEAT)
    tape.next[side] -= len(BEAT)
    last = tape.packets.pop()
    tape.packets += [replace(last, ts_ns=T0 + int(second * SECOND)) for second in seconds]
    return tape


AGAIN = (30, 30.2, 30.6, 31.4, 33, 36.2, 42.6, 55.4)
"""When a heartbeat is sent whose acknowledgement does not come."""
BY_SERVER, BY_CLIENT = ([(second, side, True) for second in (60, 90, 120)] for side in (SERVER, CLIENT))
DARK = [
    (None, BY_SERVER, SERVER, FIN | ACK, "heartbeat-missed-by-client"),
    (None, BY_CLIENT, CLIENT, FIN | ACK, "heartbeat-missed-by-server"),
    (CLIENT, BY_SERVER, SERVER, RST, "path-lost-to-server"),
    (SERVER, BY_CLIENT, CLIENT, RST, "path-lost-to-client"),
    (CLIENT, [], SERVER, FIN | ACK, "path-lost"),
    (SERVER, [], SERVER, FIN | ACK, "path-lost"),
    (CLIENT, [], CLIENT, RST, "path-lost"),
    (None, [], SERVER, FIN | ACK, "client-silent"),
    (None, [], CLIENT, RST, "server-silent"),
]
"""Whose heartbeat is lost on the way, what is heard then, who ends the connection, how, and the ending."""


@pytest.mark.parametrize(("sender", "heard", "side", "flags", "ending"), DARK)
def test_a_dark_path_blames_no_program(
    sender: int | None, heard: list[tuple[float, int, bool]], side: int, flags: int, ending: str
) -> None:
    tape = beats(Tape().play([*handshake(), *opening(1)]), (5, CLIENT, True), (5.5, SERVER, True))
    if sender is not None:
        unanswered(tape, sender, *AGAIN)
    beats(tape, *heard).segment(side, flags=flags)
    row = connection([*tape.packets[:-1], replace(tape.packets[-1], ts_ns=T0 + 125 * SECOND)])
    assert (row["handshake_outcome"], row["ending"]) == ("ok", ending)


@pytest.mark.parametrize(("side", "ending"), [(SERVER, "client-silent"), (CLIENT, "server-silent")])
@pytest.mark.parametrize("sender", [CLIENT, SERVER])
def test_a_path_is_not_dark_where_nothing_was_sent_again(sender: int, side: int, ending: str) -> None:
    """The acknowledgement of what was sent once, as always before, is missing from the capture."""
    tape = beats(Tape().play([*handshake(), *opening(1)]), (5, CLIENT, True), (5.5, SERVER, True))
    unanswered(tape, CLIENT, 10, 10.2)
    beats(tape, (10.3, CLIENT, True), (30, sender, False)).segment(side, flags=FIN | ACK)
    row = connection([*tape.packets[:-1], replace(tape.packets[-1], ts_ns=T0 + 125 * SECOND)])
    assert (row["handshake_outcome"], row["ending"]) == ("ok", ending)


@pytest.mark.parametrize("silent", [CLIENT, SERVER])
@pytest.mark.parametrize(("end", "missed"), [(5, 0), (59, 0), (85, 1), (95, 1)])
def test_no_heartbeat_is_missed_before_the_first_was_due(silent: int, end: int, missed: int) -> None:
    """A side that has sent nothing since the handshake, with a heartbeat of 60 s; the other one ends the connection."""
    tape = beats(Tape().play([*handshake(), *opening(1)]), *((n, 1 - silent, True) for n in range(4, end, 20)))
    tape.segment(1 - silent, flags=FIN | ACK)
    tables = dissect_packets([*tape.packets[:-1], replace(tape.packets[-1], ts_ns=T0 + end * SECOND)])
    (row,) = rows(tables["connections"])
    blames = {CLIENT: "heartbeat-missed-by-client", SERVER: "heartbeat-missed-by-server"}
    assert row["heartbeat"] == 60 and (row["ending"] == blames[silent]) == (end > 90)
    assert end > 90 or not ("heartbeat" in row["ending"] or "silent" in row["ending"])
    found = walked(tables, [Heartbeats()])["heartbeats"].to_pylist()
    assert {each["from_client"]: each["missed"] for each in found} == {silent == CLIENT: missed, silent != CLIENT: 0}


@pytest.mark.parametrize("name", ["orders_pika", "stream_js", "orders_amqplib", "other_port"])
def test_a_capture_that_begins_at_a_close_blames_nobody(name: str) -> None:
    recording = Recording.of(FOLDER / f"{name}.pcap")
    closes = [
        row["packet"]
        for table, kinds in (("amqp091_frames", ("connection.close", "connection.close-ok")),
                             ("stream_frames", ("close",)))
        for row in rows(recording.tables[table])
        if row.get("method", row.get("command")) in kinds
    ]  # fmt: skip
    assert closes
    for packet in closes:
        found = rows(recording.dissect(recording.capture.packets[packet - 1 :])["connections"])
        assert {row["severity"] for row in found if not row["syn_seen"]} <= {"fine", "note", "warning"}
        assert not {row["handshake_outcome"] for row in found} & {"client-closed", "client-gave-up"}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["orders_pika", "stream_rstream", "orders_amqplib", "thrown_out"])
@pytest.mark.parametrize("begin", [0.05, 0.2, 0.4])
def test_a_lost_file_in_the_middle_blames_nobody(name: str, begin: float) -> None:
    recording = Recording.of(FOLDER / f"{name}.pcap")
    packets = recording.capture.packets
    right = connections(recording.tables)
    for end in (0.5, 0.7, 0.9, 0.95):
        kept = packets[: round(len(packets) * begin)] + packets[round(len(packets) * end) :]
        for key, row in connections(recording.dissect(kept)).items():
            was = right.get(key)
            if row["last_packet"] <= round(len(packets) * begin):
                continue  # of what it did later there is no packet
            assert row["handshake_outcome"] in (*UNKNOWN, "begun-before", "ok", was and was["handshake_outcome"])


@pytest.mark.parametrize("name", ["orders_pika", "orders_amqplib", "heartbeats", "stream_rstream", "qpid_heartbeat"])
def test_what_was_not_seen_agreed_is_not_stated(name: str) -> None:
    recording = Recording.of(FOLDER / f"{name}.pcap")
    tunes = {
        row["packet"]
        for table in ("amqp091_frames", "amqp010_frames", "stream_frames")
        for row in rows(recording.tables[table])
        if row.get("method", row.get("command")) in ("connection.tune-ok", "tune") and row["from_client"]
    }
    assert tunes
    lost = recording.dissect([p for i, p in enumerate(recording.capture.packets, 1) if i not in tunes])
    for row in rows(lost["connections"]):
        assert (row["heartbeat"], row["frame_max"], row["channel_max"]) == (None, None, None)


REFUSED = {
    "amqp-0-10-refused": ("amqp-0-10", b"AMQP\x01\x01\x00\x0a"),
    "amqp-1-0-refused": ("amqp-1.0", b"AMQP\x00\x01\x00\x00"),
    "version-refused": ("amqp-0-8", b"AMQP\x01\x01\x08\x00"),
}


@pytest.mark.parametrize("end", [None, FIN | ACK, RST | ACK])
@pytest.mark.parametrize("code", REFUSED)
def test_a_lost_end_changes_no_refusal(code: str, end: int | None) -> None:
    tape = Tape().play([(CLIENT, REFUSED[code][1]), (SERVER, b"AMQP\0\0\x09\x01")])
    if end is not None:
        tape.segment(SERVER, flags=end)
    other = Tape(port=50000, start_ns=T0 + 20 * SECOND)
    found = rows(dissect_packets([*tape.packets, *other.packets])["connections"])
    assert [row["handshake_outcome"] for row in found if row["client_port"] == 40000] == [code]


@pytest.mark.parametrize("ahead", [70_000, 1_000_000, 2_000_000, 2_000_000_000])
@pytest.mark.parametrize("side", [CLIENT, SERVER])
@pytest.mark.parametrize("place", [0, 3, 6])
def test_a_reset_outside_the_window_ends_nothing(place: int, side: int, ahead: int) -> None:
    turns = [*handshake(), *opening(1), *opening(2)]
    tape = Tape().play(turns[: place + 2])
    tape.segment(side, flags=RST, seq=tape.next[side] + ahead)
    row = connection(tape.play(turns[place + 2 :]).end().packets)
    assert (row["lost_bytes"], row["closed_by"], row["ending"]) == (0, "client-fin", "client-gone")


FORGED = (
    "orders_pika", "orders_amqplib", "stream_js", "qpid_props", "stream_super", "refused_tunings", "cut_handshakes",
    "amqp10_handshakes", "qpid_framing_errors", "broken_contents", "tls_sessions_13",
)  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", FORGED)
def test_a_forged_reset_changes_no_verdict(name: str) -> None:
    recording = Recording.of(FOLDER / f"{name}.pcap")
    for seed in range(3):
        assert {kind for kind, *_ in compared(recording, "forged reset", seed)} == {"same"}


@pytest.mark.parametrize("name", ["orders_pika", "orders_amqplib", "many_confirms", "stream_js", "qpid_props"])
def test_of_two_points_in_one_file_the_times_are_those_of_one(name: str) -> None:
    recording = Recording.of(FOLDER / f"{name}.pcap")
    alone = recording.dissect(slower(recording.capture))
    both = recording.dissect(two_points_in_one(recording.capture, random.Random()))
    for table in ("amqp091_frames", "amqp010_frames", "stream_frames"):
        mine, theirs = (
            [
                (row["connection_id"], row["frame_no"], row["from_client"], row["first_ts_ns"], row["ts_ns"])
                for row in found
            ]
            for found in (rows(both[table]), rows(alone[table]))
        )
        assert mine == theirs
    begun = [row["connection_id"] for row in rows(alone["connections"]) if row["syn_seen"]]
    said = [row["connection_id"] for row in rows(both["anomalies"]) if row["code"] == "capture-points"]
    assert sorted(said) == sorted(begun)


@pytest.mark.parametrize("name", ["orders_pika", "orders_amqplib", "many_confirms", "stream_js", "qpid_props"])
def test_what_the_nearest_of_two_points_lacks_has_the_time_of_the_other_one(name: str) -> None:
    """Not that of the next packet, which may be a second later."""
    recording, rnd = Recording.of(FOLDER / f"{name}.pcap"), random.Random(name)
    capture = recording.capture
    alone = slower(capture)
    lost = {
        (packet.interface, packet.ts_ns)
        for packet, segment in zip(alone, capture.segments, strict=True)
        if segment and not segment.flags & FIN_SYN_RST and rnd.random() < 0.2
    }
    both = [packet for packet in two_points_in_one(capture, rnd) if (packet.interface, packet.ts_ns) not in lost]

    def times(packets: list[Packet]) -> list[tuple[int, bool, int]]:
        tables = recording.dissect(packets)
        found = (row for name in ("amqp091_frames", "amqp010_frames", "stream_frames") for row in rows(tables[name]))
        ordered = sorted(found, key=lambda row: (row["connection_id"], row["from_client"], row["frame_no"]))
        return [(row["connection_id"], row["from_client"], row["ts_ns"]) for row in ordered]

    farther = Counter[int]()
    for mine, theirs in zip(times(both), times(alone), strict=True):
        assert mine[:2] == theirs[:2]
        farther[(mine[2] - theirs[2]) * (1 if mine[1] else -1)] += 1
    assert set(farther) == {0, POINT_NS} and farther[POINT_NS] > 2


@pytest.mark.sampled(4)
@pytest.mark.parametrize("skew_ms", [-900, -50, 0, 50, 900])
@pytest.mark.parametrize("name", ["orders_pika", "orders_amqplib", "failed_calls", "stream_js", "qpid_props"])
def test_a_file_per_direction_is_one_capture(name: str, skew_ms: int, tmp_path: Path) -> None:
    recording = Recording.of(FOLDER / f"{name}.pcap")
    packets = recording.capture.packets
    directions: tuple[list[Packet], list[Packet]] = ([], [])
    for packet, to_server in zip(packets, toward_server(recording.capture), strict=True):
        directions[to_server].append(replace(packet, ts_ns=packet.ts_ns + skew_ms * 1_000_000 * to_server))
    paths = [tmp_path / "down.pcap", tmp_path / "up.pcap"]
    for path, mine in zip(paths, directions, strict=True):
        path.write_bytes(pcap(mine, ns=True, link=recording.link))
    found = dissect(*paths)
    for table in ("amqp091_frames", "amqp010_frames", "stream_frames"):
        assert found[table].num_rows == recording.tables[table].num_rows
    judged, right = connections(found), connections(recording.tables)
    for key, row in right.items():
        assert (judged[key]["handshake_outcome"], judged[key]["ending"]) == (row["handshake_outcome"], row["ending"])
        assert judged[key]["lost_bytes"] == 0
    said = [row["connection_id"] for row in rows(found["anomalies"]) if row["code"] == "clocks-differ"]
    assert len(said) == (len(right) if skew_ms else 0)
