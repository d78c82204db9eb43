"""Connections that fall silent while something is held for them: the packets of others show that time passes."""

from collections.abc import Callable
from dataclasses import replace
from operator import attrgetter

import pytest
from pamqp import commands

from tests.dissector.builders import Packet
from tests.dissector.runs import Row, dissect_packets, rows
from tests.dissector.wire import CLIENT, SERVER, T0, Tape, handshake, method, opening, publish, raw

SECOND = 1_000_000_000
BEGIN = handshake() + opening(1)
BEAT = raw(8, 0, b"")
PORT = 40_000
Silent = Callable[[], tuple[list[Packet], list[Packet]]]
"""The packets of a connection, and those that come after it was silent."""


def others(seconds: int) -> list[Packet]:
    """Three connections with a packet a second."""
    tapes = [Tape(port=50_000 + n) for n in range(3)]
    for tape in tapes:
        for second in range(seconds):
            tape.segment(second & 1)
            tape.packets[-1] = replace(tape.packets[-1], ts_ns=T0 + second * SECOND)
    return [packet for tape in tapes for packet in tape.packets]


def gap_in_a_frame() -> tuple[list[Packet], list[Packet]]:
    """A message has a gap, what follows is acknowledged, and then the missing packet comes after all."""
    tape = Tape().play(BEGIN)
    tape.send(CLIENT, b"".join(publish(bytes(900))), range(300, 900, 300))
    missing = tape.packets.pop(-2)
    tape.segment(SERVER)
    return [*tape.packets], [missing, *after(tape)]


def unacknowledged_gap() -> tuple[list[Packet], list[Packet]]:
    packets, later = gap_in_a_frame()
    return packets[:-1], later


def answer_to_what_is_missing() -> tuple[list[Packet], list[Packet]]:
    """The client's last request was not captured, its answer was."""
    tape = Tape().play([*BEGIN, (CLIENT, BEAT), (SERVER, method(commands.Basic.Ack(delivery_tag=1)))])
    missing = tape.packets.pop(-2)
    return [*tape.packets], [missing, *after(tape)]


def no_beginning() -> tuple[list[Packet], list[Packet]]:
    """A SYN may have been captured late."""
    tape = Tape(syn=False).play(BEGIN[:1])
    return [*tape.packets], after(tape)


def after(tape: Tape) -> list[Packet]:
    count = len(tape.packets)
    return tape.play([(SERVER, BEAT), (CLIENT, b"".join(publish(b"later")))]).packets[count:]


SILENT = pytest.mark.parametrize(
    "silent", [gap_in_a_frame, unacknowledged_gap, answer_to_what_is_missing, no_beginning]
)


def found(packets: list[Packet], batch_bytes: int = 1 << 20, ends: bool = True) -> list[list[Row]]:
    """Frames and anomalies of the connection, from a capture of these packets in order of time."""
    tables = dissect_packets(sorted(packets, key=attrgetter("ts_ns")), batch_bytes=batch_bytes, ends=ends)
    mine = {row["connection_id"] for row in rows(tables["connections"]) if row["client_port"] == PORT}
    named = (rows(tables[name], "packet", "first_packet") for name in ("amqp091_frames", "anomalies"))
    return [[row for row in each if not mine or row["connection_id"] in mine] for each in named]


@SILENT
def test_rows_come_while_others_go_on(silent: Silent) -> None:
    packets, _ = silent()
    whole, _ = found(packets)
    assert len(found(packets + others(100), ends=False)[0]) < len(whole)
    assert found(packets + others(200), ends=False)[0] == whole


@pytest.mark.sampled(4)
@SILENT
@pytest.mark.parametrize("seconds", [100, 125, 170])
def test_rows_are_the_same_whatever_others_do(silent: Silent, seconds: int) -> None:
    packets, later = silent()
    packets += [replace(packet, ts_ns=packet.ts_ns + seconds * SECOND) for packet in later]
    alone = found(packets)
    for batch_bytes in (1 << 20, 300):
        assert found(packets + others(200), batch_bytes) == alone
