"""Limits over all connections: each is reported where it decides about rows, once."""

from pathlib import Path

import pytest
from pamqp import commands

from amqpscope.dissector.kernels import limits
from amqpscope.dissector.kernels.accounting import MemoryAccounting
from amqpscope.dissector.tls.stage import Tls
from tests.dissector.builders import Packet, pcap
from tests.dissector.runs import dissect, rows
from tests.dissector.wire import CLIENT, Tape, handshake, method, opening, publish

BEGIN = [*handshake(), *opening(1)]


def reported(folder: Path, packets: list[Packet]) -> list[str]:
    """What limits were reached."""
    path = folder / "limits.pcap"
    path.write_bytes(pcap(packets, ns=True))
    return [row["detail"] for row in rows(dissect(path)["anomalies"]) if row["code"] == "limit-reached"]


def test_consumers_without_room(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    consumes = [(CLIENT, method(commands.Basic.Consume(queue="q", consumer_tag=f"c{n}"))) for n in range(6)]
    packets = Tape().play([*BEGIN, *consumes, *consumes]).end().packets
    assert reported(tmp_path, packets) == []
    monkeypatch.setattr(limits, "PENDING", 4)
    (text,) = reported(tmp_path, packets)
    assert "no_ack" in text


def test_bytes_searched_for_the_next_frame(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    packets: list[Packet] = []
    for number in range(20):
        tape = Tape(port=40_000 + number, start_ns=1_700_000_000_000_000_000 + number * 1_000_000).play(BEGIN)
        tape.next[CLIENT] += 30
        tape.say(CLIENT, b"".join(publish(bytes(20_000), largest=20_000))[50:], range(1_000, 19_000, 1_000))
        packets += tape.packets
    packets.sort(key=lambda packet: packet.ts_ns)
    assert reported(tmp_path, packets) == []
    monkeypatch.setattr(limits, "WAITING_BYTES", 100_000)
    assert any("searched for the next frame" in text for text in reported(tmp_path, packets))


def test_secrets_tried_for_resumed_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TLS_MASTERS", 5)
    monkeypatch.setattr(limits, "TLS_SECRETS", 8)
    tls = Tls(None, MemoryAccounting(), compiled=False)
    tls.add(b"".join(b"CLIENT_RANDOM %064x %096x\n" % (number, number) for number in range(9)), 0)
    assert len(list(tls.keylog.masters())) == 5
    assert len(list(tls.keylog.masters())) == 0
    for _ in range(2):
        tls.report()
    assert [problem.code for _, problem in tls.problems] == ["limit-reached"] * 2
