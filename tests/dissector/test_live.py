"""Captures that are read while they are made: when a frame comes, and what the end of reading brings."""

import fcntl
import io
import os
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pamqp import commands

from amqpscope.dissector.capture.file import CaptureFile
from amqpscope.dissector.dissector import Dissector
from amqpscope.dissector.tcp.late_syn import SETTLE_NS
from tests.dissector.builders import Packet, pcap
from tests.dissector.runs import FOLDER, dissect_packets, recorded, rows
from tests.dissector.stream import wire as stream
from tests.dissector.stream.runs import Wire
from tests.dissector.wire import CLIENT, SERVER, Tape, deliver, handshake, method, opening, publish, raw

HEARTBEAT = raw(8, 0, b"")
ACK = method(commands.Basic.Ack(delivery_tag=1))
LARGE = b"".join(publish(bytes(range(256)) * 20))


def spread(packets: list[Packet]) -> list[Packet]:
    """The packets so far apart that none waits for a SYN that comes late."""
    return [Packet(packet.ts_ns + 2 * n * SETTLE_NS, packet.data, packet.length) for n, packet in enumerate(packets)]


def arrivals(packets: list[Packet], compiled: bool = False) -> list[tuple[str, int, int]]:
    """What each frame is, its packet, and with which packet its row came; beyond the last where that took the end."""
    dissector = Dissector(compiled=compiled)
    dissector.captures.append("live.pcap")
    found = []
    packets = spread(packets)
    batches = CaptureFile(io.BytesIO(pcap(packets, ns=True)), "live.pcap", 0, batch_bytes=64, compiled=compiled)
    for batch in (*batches, None):
        now = len(packets) + 1 if batch is None else int(batch.packet[-1])
        for table, batch_of_rows in dissector.finish() if batch is None else dissector.feed(batch):
            if table in ("amqp091_frames", "stream_frames"):
                for row in batch_of_rows.to_pylist():
                    what = row.get("method") or row.get("command") or row.get("frame_type")
                    found.append((what, row["packet"], now))
    return found


def at_once(packets: list[Packet], since: int) -> list[str]:
    """The frames: from packet `since` on all came with their packets, those before with that one at the latest."""
    found = arrivals(packets)
    assert all(packet <= came <= max(packet, since) for _, packet, came in found)
    return [what for what, _, _ in found]


def begun(port: int = 5672) -> Tape:
    return Tape(syn=False, server_port=port)


# A connection that was up before the capture


@pytest.mark.parametrize("port", [5672, 7777])
def test_publishes_show_when_each_side_has_spoken_twice(port: int) -> None:
    tape = begun(port).play([(CLIENT, b"".join(publish())), (SERVER, ACK)] * 3)
    assert at_once(tape.packets, 4) == ["basic.publish", "header", "body", "basic.ack"] * 3


def test_publishes_alone_show_with_the_second() -> None:
    tape = begun().play([(CLIENT, b"".join(publish()))] * 4)
    assert at_once(tape.packets, 2) == ["basic.publish", "header", "body"] * 4


def test_heartbeats_show_when_each_side_has_spoken_twice() -> None:
    tape = begun().play([(SERVER, HEARTBEAT), (CLIENT, HEARTBEAT)] * 3)
    assert at_once(tape.packets, 4) == ["heartbeat"] * 6


def test_deliveries_and_acknowledgements_show_when_each_side_has_spoken_twice() -> None:
    tape = begun(7777).play([(SERVER, b"".join(deliver(n))) if n % 2 else (CLIENT, ACK) for n in range(1, 9)])
    assert at_once(tape.packets, 4) == ["basic.deliver", "header", "body", "basic.ack"] * 4


@pytest.mark.parametrize("segment", [1448, 3000, 8000])
def test_messages_longer_than_a_segment_show_with_the_next_after_a_second(segment: int) -> None:
    """On the sender's own host segments are seen before they are cut."""
    tape = begun()
    for _ in range(2):
        tape.send(CLIENT, LARGE, range(segment, len(LARGE), segment))
    half = len(tape.packets) // 2
    later = [Packet(packet.ts_ns + 2_000_000_000, packet.data) for packet in tape.packets[half:]]
    found = arrivals(tape.packets[:half] + later)
    assert [what for what, _, _ in found] == ["basic.publish", "header", "body", "body"] * 2
    assert all(came <= len(tape.packets) for _, _, came in found)


@pytest.mark.compiled
@pytest.mark.parametrize("size", [10, 100, 1000])
@pytest.mark.parametrize("segment", [536, 1448, 65_000])
@pytest.mark.parametrize("count", [3, 40, 110])
def test_a_body_that_was_written_by_itself_shows_nothing(size: int, segment: int, count: int) -> None:
    """The capture begins after the head of its frame; the end of the frame is a segment of its own."""
    tape = begun()
    large = publish(b"".join(publish(b"x" * size)) * count, largest=1 << 20)
    tape.send(CLIENT, b"".join(large[:-1]) + large[-1][:7])
    head = len(tape.packets)
    tape.send(CLIENT, large[-1][7:-1], range(segment, len(large[-1]) - 8, segment))
    tape.send(CLIENT, large[-1][-1:])
    inside = len(tape.packets) - head
    tape.play([(CLIENT, b"".join(publish(b"real %d" % n))) for n in range(3)])
    found = arrivals(tape.packets[head:], compiled=True)
    assert [what for what, _, _ in found] == ["basic.publish", "header", "body"] * 3
    assert all(packet > inside for _, packet, _ in found)


def test_frames_that_do_not_tell_who_is_the_client_wait_for_some_that_do() -> None:
    """On ports that nobody knows."""
    tape = begun(50_000).play([(CLIENT, HEARTBEAT), (CLIENT, b"".join(publish()))])
    assert [(what, came) for what, _, came in arrivals(tape.packets)] == [
        ("heartbeat", 2), ("basic.publish", 2), ("header", 2), ("body", 2),
    ]  # fmt: skip


def test_a_full_segment_of_frames_may_lie_inside_of_a_body() -> None:
    """There it ends where one of them does, by chance; on loopback segments are larger."""
    inner = b"".join(publish(b"x" * 300))
    data = b"".join(publish(inner * 40, largest=1 << 17))
    tape = begun()
    tape.send(CLIENT, data, range(data.index(inner), len(data), len(inner) * 4))
    tape.packets.pop(0)
    assert arrivals(tape.packets) == []


def test_frames_of_streams_show_when_each_side_has_spoken_twice() -> None:
    wire = Wire(begun=False)
    for n in range(3):
        wire.send(True, stream.publish(3, [(n, stream.simple(b"x"))]))
        wire.send(False, stream.confirm(3, [n]))
    assert at_once(wire.packets, 4) == ["publish", "publish-confirm"] * 3


# The program at the end of a pipe

ROOT = Path(__file__).parents[2]
TAPE = begun().play([(CLIENT, b"".join(publish())), (SERVER, ACK)] * 2)


class Program:
    """`amqpscope`, whose standard input is written chunk by chunk."""

    def __init__(self, *words: str) -> None:
        command = [sys.executable, "-m", "amqpscope.dissector.cli.program", *words]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe)

    def send(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def lines(self, count: int, errors: bool = False) -> list[bytes]:
        """The next lines of its output, which come while the pipe is open."""
        file = self.process.stderr if errors else self.process.stdout
        assert file is not None
        data = b""
        while data.count(b"\n") < count:
            assert select.select([file], [], [], 60)[0], data
            data += os.read(file.fileno(), 1 << 16)
        return data.splitlines()

    def listens(self) -> None:
        """Wait until it takes signals (Linux tells) and has read what was written."""
        status, bit = Path(f"/proc/{self.process.pid}/status"), 1 << signal.SIGTERM - 1
        assert self.process.stdin is not None
        for _ in range(6000):
            left = fcntl.ioctl(self.process.stdin, termios.FIONREAD, bytes(4))
            if left == bytes(4) and int(status.read_text().split("SigCgt:")[1].split()[0], 16) & bit:
                return
            time.sleep(0.01)
        raise TimeoutError

    def end(self, number: int | None = None) -> tuple[int, bytes, bytes]:
        """Ask for the end by a signal, or close the pipe: its status, and what it still says."""
        if number is not None:
            self.listens()
            self.process.send_signal(number)
            self.left_open, self.process.stdin = self.process.stdin, None
        out, errors = self.process.communicate(timeout=60)
        return self.process.returncode, out, errors


@contextmanager
def program(*words: str) -> Iterator[Program]:
    running = Program(*words)
    try:
        yield running
    finally:
        running.process.kill()
        running.process.wait()


def test_lines_come_while_the_pipe_is_open() -> None:
    with program("frames", "-") as running:
        running.send(pcap(spread(TAPE.packets)))
        day, sides, *lines = running.lines(10)
        status, out, errors = running.end()
    assert day[:2] == sides[:2] == b"# " and len(lines) == 8
    assert [b"basic.publish" in lines[0], b"basic.ack" in lines[3]] == [True, True]
    assert (status, out, errors) == (0, b"", b"")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_is_held_is_printed_when_the_user_ends_it(number: int) -> None:
    """And reported before: frames whose connection is not known."""
    tape = begun(25_999).play([(CLIENT, HEARTBEAT), (CLIENT, HEARTBEAT + HEARTBEAT)])
    with program("frames", "-") as running:
        running.send(pcap(spread(tape.packets)))
        reported = running.lines(1, errors=True)
        status, out, errors = running.end(number)
    assert reported == [
        b"amqpscope: 10.0.0.1:40000 -> 10.0.0.2:25999 was under way when the capture began; "
        b"its frames are shown when more bytes arrive"
    ]
    assert (status, out.count(b"heartbeat"), errors) == (0, 3, b"")


def test_what_waits_for_a_missing_packet_is_reported_and_printed_at_the_end() -> None:
    tape = Tape().play([*handshake(), *opening(1), *[(CLIENT, b"".join(publish()))] * 3])
    tape.packets.pop(-2)
    with program("frames", "-") as running:
        running.send(pcap(spread(tape.packets)))
        reported = running.lines(1, errors=True)
        status, out, errors = running.end(signal.SIGINT)
    assert b"10.0.0.1:40000 -> 10.0.0.2:5672 waits for bytes that the capture may have missed" in reported[0]
    assert (status, out.count(b"basic.publish")) == (0, 2)
    assert b"missing in 1 gap of 1 connection" in errors


@pytest.mark.parametrize("words", [["dissect", "-", "-o"], ["handshakes", "-", "--format", "json"]])
def test_tables_and_verdicts_are_made_of_what_came_until_then(words: list[str], tmp_path: Path) -> None:
    whole = (FOLDER / "orders_pika.pcap").read_bytes()
    words = [*words, str(tmp_path / "tables")] if words[-1] == "-o" else words
    with program(*words) as running:
        running.send(whole)
        status, out, errors = running.end(signal.SIGINT)
    assert status == 0
    assert b"1 connection" in errors + out


def test_a_second_signal_leaves_at_once() -> None:
    with program("frames", "-") as running:
        running.send(pcap(spread(TAPE.packets)))
        running.lines(4)
        running.process.send_signal(signal.SIGINT)
        time.sleep(0.1)  # two at once are one
        running.process.send_signal(signal.SIGINT)
        status, _, errors = running.end()
    assert (status in (0, 130), b"Traceback" in errors) == (True, False)


def test_a_signal_that_was_ignored_stays_so() -> None:
    """As is SIGINT, of what a script started beside itself."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        running = Program("frames", "-")
    finally:
        signal.signal(signal.SIGINT, before)
    try:
        running.send(pcap(spread(TAPE.packets)[:-1]))
        running.listens()
        running.process.send_signal(signal.SIGINT)
        time.sleep(1)
        running.send(pcap(spread(TAPE.packets)[-1:])[24:])
        running.lines(4)
        assert running.end(signal.SIGTERM)[0] == 0
    finally:
        running.process.kill()
        running.process.wait()


def test_the_end_before_anything_came_is_no_error() -> None:
    with program("frames", "-") as running:
        assert running.end(signal.SIGINT) == (130, b"", b"")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["begun_before.pcap", "stream_rstream.pcap", "lossy_link.pcap", "prefetch.pcap"])
@pytest.mark.parametrize("share", [0.0, 0.4])
def test_rows_do_not_depend_on_the_sizes_of_reads(name: str, share: float) -> None:
    packets, link = recorded(name)
    packets = packets[round(share * len(packets)) :]
    whole = dissect_packets(packets, link)
    for data in (64, 700, 9000):
        found = dissect_packets(packets, link, batch_bytes=data)
        for table in ("amqp091_frames", "stream_frames", "messages", "connections"):
            assert rows(found[table]) == rows(whole[table]), (table, data)
