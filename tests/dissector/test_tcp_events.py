"""Events of TCP: made ones, those of the recordings against a plain reading by dpkt, and against tshark."""

import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpscope.dissector.kernels import limits
from tests.dissector.builders import Packet, pcap
from tests.dissector.recordings import ours
from tests.dissector.runs import CAPTURES, SETS, dissect_packets, rows
from tests.dissector.wire import CLIENT, FIN, RST, SERVER, SYN, Tape, handshake, opening
from tests.oracles import needs
from tests.reference import tcp_events as reference

MS = 1_000_000
SINGLE = [capture for capture in CAPTURES if capture not in SETS]
COPIED = {"seen_twice", "two_interfaces"}
"""Recordings of two capture points: the reference does not know which copy counts."""
COLUMNS = ("from_client", "kind", "packet", "of_packet", "bytes", "late_ns")


def found(tape: Tape, **how: Any) -> list[tuple[Any, ...]]:
    made = rows(dissect_packets(tape.packets, check=True, **how)["tcp_events"])
    return [tuple(row[name] for name in COLUMNS) for row in made]


def late(tape: Tape, ms: int) -> None:
    """Move the last packet, and with it all that come, by so much."""
    last = tape.packets.pop()
    tape.packets.append(Packet(last.ts_ns + ms * MS, last.data))
    tape.start_ns += ms * MS


def begun() -> Tape:
    tape = Tape().play([*handshake(), *opening(1)])
    assert not found(tape)
    return tape


def test_bytes_sent_again_are_an_event() -> None:
    tape = begun()
    n = len(tape.packets)
    at = tape.next[CLIENT]
    tape.segment(CLIENT, b"x" * 30)
    tape.segment(CLIENT, b"x" * 30, seq=at)
    tape.segment(CLIENT, b"x" * 50, seq=at)  # and more
    assert found(tape) == [
        (True, "retransmission", n + 2, n + 1, 30, MS), (True, "retransmission", n + 3, n + 1, 30, 2 * MS),
    ]  # fmt: skip


def test_bytes_that_the_other_side_has_delay_nothing_when_they_are_sent_again() -> None:
    tape = begun()
    n = len(tape.packets)
    at = tape.next[CLIENT]
    tape.segment(CLIENT, b"x" * 30)
    tape.next[CLIENT] += 30
    tape.segment(SERVER)
    tape.segment(CLIENT, b"x" * 30, seq=at)
    late(tape, 200)
    assert found(tape) == [(True, "retransmission", n + 3, n + 1, 30, None)]


def test_bytes_lost_before_the_capture_are_late_when_they_come() -> None:
    tape = begun()
    n = len(tape.packets)
    at = tape.next[CLIENT]
    tape.segment(CLIENT, b"y" * 20, seq=at + 30)
    tape.segment(CLIENT, b"x" * 30, seq=at)  # overtaken: a round trip is 2 ms here
    tape.segment(CLIENT, b"y" * 20, seq=at + 90)
    tape.segment(SERVER)
    tape.segment(CLIENT, b"x" * 40, seq=at + 50)
    assert found(tape) == [(True, "retransmission", n + 5, None, 40, 2 * MS)]


def test_a_sender_that_is_ahead_of_its_bytes_shows_that_they_were_lost() -> None:
    tape = begun()
    n = len(tape.packets)
    at = tape.next[SERVER]
    tape.segment(SERVER, seq=at + 40)
    tape.segment(SERVER, b"x" * 40, seq=at)
    late(tape, 200)
    assert found(tape) == [(False, "retransmission", n + 2, None, 40, 201 * MS)]


LEFT_OUT = 60_000
"""Where numbers begin that say how many are left out."""


def numbered(tape: Tape, ttl: int) -> Tape:
    """Number the packets of each side one by one."""
    last: dict[bytes, int] = {}
    for at, packet in enumerate(tape.packets):
        side, number = packet.data[26:30], int.from_bytes(packet.data[18:20])
        last[side] = last.get(side, 100) + 1 + max(number - LEFT_OUT, 0)
        data = packet.data[:18] + last[side].to_bytes(2) + packet.data[20:22] + bytes([ttl]) + packet.data[23:]
        tape.packets[at] = Packet(packet.ts_ns, data)
    return tape


def leave_out(tape: Tape, numbers: int) -> None:
    """Let the sender of the last packet have sent so many before it that were lost."""
    data = tape.packets[-1].data
    tape.packets[-1] = Packet(tape.packets[-1].ts_ns, data[:18] + (LEFT_OUT + numbers).to_bytes(2) + data[20:])


@pytest.mark.parametrize("case", ["lost", "none left out", "no pause", "many", "owes", "Windows", "few before", "cut"])
def test_a_number_left_out_before_a_pause_shows_a_loss(case: str) -> None:
    tape = begun() if case != "few before" else Tape().play(handshake()[:2])
    for _ in range(8):
        tape.send(CLIENT, b"x" * 20)
        tape.segment(SERVER)
    if case == "cut":  # by the card, into as many as there are numbers
        tape.send(CLIENT, b"x" * 4000)
        tape.segment(SERVER)
    if case == "owes":
        tape.send(SERVER, b"x" * 20)
    tape.send(CLIENT, b"x" * 30)
    late(tape, 30 if case == "no pause" else 350)
    leave_out(tape, {"none left out": 0, "many": 9}.get(case, 2))
    n = len(tape.packets)
    made = found(numbered(tape, 128 if case == "Windows" else 64))
    assert made == ([(True, "retransmission", n, None, 30, 200 * MS)] if case == "lost" else [])


def test_keep_alives_are_no_event() -> None:
    tape = begun()
    tape.segment(CLIENT, b"\0", seq=tape.next[CLIENT] - 1)
    tape.segment(SERVER)
    assert not found(tape)


def test_copies_made_by_the_capture_are_no_event() -> None:
    tape = begun()
    tape.segment(CLIENT, b"x" * 30)
    tape.packets.append(Packet(tape.packets[-1].ts_ns + 5, tape.packets[-1].data))
    assert not found(tape)


def test_a_syn_and_a_fin_may_be_sent_again() -> None:
    tape = Tape(syn=False)
    tape.segment(CLIENT, seq=1000, flags=SYN, ack=0)
    tape.segment(CLIENT, seq=1000, flags=SYN, ack=0)
    late(tape, 1000)
    tape.segment(SERVER, seq=2000, flags=SYN | 16)
    tape.segment(CLIENT)
    tape.segment(CLIENT, flags=FIN | 16)
    tape.segment(CLIENT, flags=FIN | 16, window=99)
    late(tape, 200)
    assert found(tape) == [
        (True, "retransmission", 2, 1, 0, 1001 * MS), (True, "retransmission", 6, 5, 0, 201 * MS),
    ]  # fmt: skip


def delayed(tape: Tape, ms: int = 40) -> int:
    """The client writes, the server acknowledges late; return the packet of the acknowledgement."""
    tape.segment(CLIENT, b"x" * 30)
    tape.next[CLIENT] += 30
    tape.segment(SERVER)
    late(tape, ms)
    return len(tape.packets)


def test_an_acknowledgement_is_late_by_its_timer_and_lets_a_write_go() -> None:
    tape = begun()
    n = delayed(tape)
    tape.segment(CLIENT, b"y" * 10)
    assert found(tape) == [
        (False, "delayed-ack", n, n - 1, 30, 41 * MS), (True, "held-write", n + 1, n, 10, 41 * MS),
    ]  # fmt: skip


@pytest.mark.parametrize("ms", [10, 700])
def test_others_are_not_delayed(ms: int) -> None:
    """Fast ones; and nobody delays them for longer than half a second."""
    tape = begun()
    delayed(tape, ms)
    assert not found(tape)


def test_an_answer_does_not_wait_for_a_timer() -> None:
    tape = begun()
    tape.segment(CLIENT, b"x" * 30)
    tape.next[CLIENT] += 30
    tape.segment(SERVER, b"answer")
    late(tape, 40)
    assert not found(tape)


def test_an_acknowledgement_after_a_loss_was_not_delayed() -> None:
    tape = begun()
    at = tape.next[CLIENT]
    tape.segment(CLIENT, b"x" * 30)
    tape.segment(CLIENT, b"x" * 30, seq=at)
    tape.next[CLIENT] += 30
    tape.segment(SERVER)
    late(tape, 40)
    assert [kind for _, kind, *_ in found(tape)] == ["retransmission"]


def test_writes_later_than_the_acknowledgement_or_answers_were_not_held() -> None:
    slow = begun()
    delayed(slow)
    slow.segment(CLIENT, b"y" * 10)
    late(slow, 5)
    answered = begun()
    delayed(answered)
    answered.segment(SERVER, b"z")
    answered.next[SERVER] += 1
    late(answered, -1)
    answered.segment(CLIENT, b"y" * 10)
    for tape in (slow, answered):
        assert [kind for _, kind, *_ in found(tape)] == ["delayed-ack"]


@pytest.mark.parametrize("is_held", [True, False])
def test_a_held_write_needs_the_way_from_the_capture_to_its_sender_alone(is_held: bool) -> None:
    """The broker is 50 ms away, the client 1 ms."""
    tape = Tape()
    tape.packets[1:] = [Packet(packet.ts_ns + 50 * MS, packet.data) for packet in tape.packets[1:]]
    tape.start_ns += 50 * MS
    tape.play([*handshake(), *opening(1)])
    delayed(tape, 90)
    tape.segment(CLIENT, b"y" * 10)
    late(tape, 0 if is_held else 10)
    assert [kind for _, kind, *_ in found(tape)] == ["delayed-ack", *["held-write"] * is_held]


def test_resets_tell_their_distance() -> None:
    tape = begun()
    tape.segment(CLIENT, b"x")
    tape.next[CLIENT] += 1
    tape.segment(CLIENT, flags=RST)
    last = tape.packets[-1]
    forged = bytearray(last.data)
    forged[14 + 8] = 200
    tape.packets[-1] = Packet(last.ts_ns, bytes(forged))
    (row,) = rows(dissect_packets(tape.packets)["tcp_events"])
    assert (row["kind"], row["from_client"], row["ttl"], row["usual_ttl"]) == ("reset", True, 200, 64)


def test_a_reset_without_anything_else_is_an_event_of_its_connection() -> None:
    tape = Tape(syn=False)
    tape.segment(SERVER, flags=RST | 16)
    made = dissect_packets(tape.packets, check=True)
    (row,), (connection,) = rows(made["tcp_events"]), rows(made["connections"])
    assert (row["kind"], row["ttl"], row["usual_ttl"]) == ("reset", None, None)
    assert row["connection_id"] == connection["connection_id"]


def test_a_window_of_zero_is_an_event_that_lasts() -> None:
    tape = begun()
    n = len(tape.packets)
    tape.segment(SERVER, window=0)
    tape.segment(SERVER, window=100)
    late(tape, 49)
    tape.segment(SERVER, window=0)
    assert found(tape) == [
        (False, "zero-window", n + 1, None, None, 50 * MS), (False, "zero-window", n + 3, None, None, None),
    ]  # fmt: skip


def test_more_than_a_connection_may_have_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TCP_EVENTS_PER_CONNECTION", 5)
    tape = begun()
    at = tape.next[CLIENT]
    for _ in range(8):
        tape.segment(CLIENT, b"x" * 30, seq=at)
    tape.segment(SERVER, window=0)
    made = dissect_packets(tape.packets, check=True)
    assert made["tcp_events"].num_rows == 5
    (row,) = rows(made["anomalies"].filter([c == "tcp-events-left-out" for c in made["anomalies"]["code"].to_pylist()]))
    assert row["detail"] == "3 events"


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment that is not remembered is still known to be sent again."""
    monkeypatch.setattr(limits, "SENT_PER_STREAM", 2)
    tape = begun()
    at, n = tape.next[CLIENT], len(tape.packets)
    for number in range(6):
        tape.segment(CLIENT, b"x" * 10, seq=at + 10 * number)
    tape.segment(CLIENT, b"x" * 10, seq=at + 50)
    assert found(tape) == [(True, "retransmission", n + 7, None, 10, None)]


@pytest.mark.parametrize("capture", [c for c in SINGLE if c.stem not in COPIED], ids=lambda path: path.name)
def test_recordings_against_a_plain_reading(capture: Path) -> None:
    made = ours(capture)
    begun = {row["connection_id"] for row in rows(made["connections"]) if row["syn_seen"]}
    found = [row for row in rows(made["tcp_events"]) if row["connection_id"] in begun and row["kind"] != "zero-window"]
    theirs = reference.events(capture)
    names = ("from_client", "kind", "packet", "ttl", "usual_ttl")
    assert sorted(tuple(row.get(name) for name in names) for row in found) == sorted(
        tuple(row.get(name) for name in names) for row in theirs
    )
    expected = {(row["kind"], row["packet"]): row for row in theirs if row["kind"] != "reset"}
    for row in found:
        if row["kind"] != "reset":
            other = expected[row["kind"], row["packet"]]
            assert row["bytes"] == other["bytes"], row
            if row["of_packet"] is not None or row["late_ns"] is not None:
                assert (row["of_packet"], row["late_ns"]) == (other["of_packet"], other["late_ns"]), row


@pytest.mark.parametrize("capture", [c for c in SINGLE if c.stem not in COPIED], ids=lambda path: path.name)
def test_the_shortest_times_to_acknowledgements(capture: Path) -> None:
    begun = [row for row in rows(ours(capture)["connections"]) if row["syn_seen"]]
    names = [f"{side}_{kind}_ns" for side in ("client", "server") for kind in ("ack", "bare_ack")]
    found = [tuple(row[name] for name in names) for row in begun]
    theirs = reference.trips(capture)
    assert Counter(each for each in found if any(each)) == Counter(each for each in theirs if any(each))


def by_tshark(capture: Path) -> dict[str, set[int]]:
    """Packets by what tshark says of them."""
    names = ["retransmission", "spurious_retransmission", "fast_retransmission", "out_of_order", "zero_window"]
    command = ["tshark", "-r", str(capture), "-Y", "tcp", "-T", "fields", "-e", "frame.number", "-e", "tcp.flags.reset"]
    command += [word for name in names for word in ("-e", f"tcp.analysis.{name}")]
    command += ["-e", "tcp.analysis.ack_rtt", "-e", "tcp.len", "-e", "tcp.nxtseq"]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    told: dict[str, set[int]] = {name: set() for name in (*names, "reset", "slow")}
    for line in output.splitlines():
        number, reset, *flags = line.split("\t")
        for name, value in zip(names, flags, strict=False):
            if value:
                told[name].add(int(number))
        if reset in {"1", "True"}:
            told["reset"].add(int(number))
        if flags[5] and float(flags[5]) > 0.03 and flags[6] == "0":
            told["slow"].add(int(number))
    return told


EXPLAINED = {
    "lossy_link.pcap": {87},  # the link doubled it: both have the same identification
    "begun_before.pcap": {5},  # sent before who is who is settled
    "demo.pcap": {1960},  # it acknowledges what was sent again: which of the two?
    "handshake_timeouts.pcap": {36}, "thrown_out.pcap": {52}, "tls_failures.pcap": {163}, "stream_patience.pcap": {96},
}  # fmt: skip
"""Packets of which tshark says what we do not; the last four acknowledge a FIN alone, for which nobody waits."""


@pytest.mark.sampled(11)
@needs("tshark")
@pytest.mark.parametrize("capture", [c for c in SINGLE if c.stem not in COPIED], ids=lambda path: path.name)
def test_recordings_against_tshark(capture: Path) -> None:
    """What was sent soon after it was lost, as acknowledgements told the sender, is out of order to tshark."""
    found: dict[str, set[int]] = {}
    for row in rows(ours(capture)["tcp_events"]):
        found.setdefault(row["kind"], set()).add(row["packet"])
    theirs, explained = by_tshark(capture), EXPLAINED.get(capture.name, set())
    again = theirs["retransmission"] | theirs["spurious_retransmission"] | theirs["fast_retransmission"]
    mine = found.get("retransmission", set())
    assert again - mine <= explained and mine - again <= theirs["out_of_order"]
    assert found.get("reset", set()) == theirs["reset"]
    assert found.get("delayed-ack", set()) | explained - again == theirs["slow"]
    assert found.get("zero-window", set()) <= theirs["zero_window"] - theirs["reset"]


WRITES = st.tuples(
    st.sampled_from([CLIENT, SERVER]), st.integers(0, 3), st.integers(0, 40), st.integers(0, 45), st.booleans()
)


@given(writes=st.lists(WRITES, max_size=40), batch_bytes=st.integers(60, 2000))
def test_any_traffic_in_any_batches(
    writes: list[tuple[int, int, int, int, bool]], batch_bytes: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Segments again, early, late, acknowledged late or before they come."""
    tape = Tape().play(handshake())
    for side, back, size, wait, acks in writes:
        tape.segment(side, b"z" * size, seq=tape.next[side] - 10 * back, ack=tape.next[1 - side] - (0 if acks else 20))
        tape.next[side] = max(tape.next[side], tape.next[side] - 10 * back + size)
        late(tape, wait)
    made = found(tape, batch_bytes=batch_bytes)
    assert made == found(tape)
    path = tmp_path_factory.getbasetemp() / "any.pcap"
    path.write_bytes(pcap(tape.packets, ns=True))
    expected = [tuple(row.get(name) for name in COLUMNS) for row in reference.events(path)]
    assert sorted(made, key=str) == sorted(expected, key=str)
