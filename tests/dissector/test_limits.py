"""Limits are reported where they decide about rows; those of a connection leave all others alone."""

from pathlib import Path

import pytest
from pamqp import commands

from amqpscope.dissector.capture.sources import find
from amqpscope.dissector.dissector import Options
from amqpscope.dissector.kernels import limits
from amqpscope.dissector.kernels.accounting import MemoryAccounting
from amqpscope.dissector.tls.stage import Tls
from tests.dissector.builders import Packet, pcap
from tests.dissector.moves import Relay, by_connection
from tests.dissector.runs import FOLDER, dissect, dissect_packets, rows, tables
from tests.dissector.wire import CLIENT, Tape, handshake, method, opening, publish

BEGIN = [*handshake(), *opening(1)]
HALVES = [publish(bytes([n]) * 200, n, largest=100) for n in range(1, 12)]
GREEDY: dict[str, tuple[int, bytes]] = {
    "FRAGMENTS_PER_CONNECTION": (8, b"".join(publish(headers={"key": "x" * 300}))),
    "CONTENTS_PER_CONNECTION": (200, b"".join(frames[step] for step in range(4) for frames in HALVES)),
    "BODIES_PER_CONNECTION": (1_000, b"".join(frames[step] for step in range(4) for frames in HALVES)),
    "PENDING_PER_CONNECTION": (4, b"".join(method(commands.Basic.Get(queue="q")) for _ in range(6))),
}
"""A small limit of a connection, and what one sends that exceeds it."""


def reported(folder: Path, packets: list[Packet]) -> list[str]:
    """What limits were reached."""
    path = folder / "limits.pcap"
    path.write_bytes(pcap(packets, ns=True))
    return [row["detail"] for row in rows(dissect(path)["anomalies"]) if row["code"] == "limit-reached"]


@pytest.mark.parametrize("limit", GREEDY)
def test_limits_of_a_connection_leave_others_alone(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    most, data = GREEDY[limit]
    greedy = Tape().play(BEGIN)
    greedy.send(CLIENT, data, range(20, len(data), 20))
    greedy.end()
    modest = Tape(port=40_001).play([*BEGIN, (CLIENT, b"".join(publish(b"y" * 50, 1))), (CLIENT, data[:40])]).end()
    packets = sorted([*greedy.packets, *modest.packets], key=lambda packet: packet.ts_ns)

    def found(packets: list[Packet]) -> list[str]:
        """All rows, without numbers of packets: these count the packets of other connections as well."""
        made = dissect_packets(packets, options=Options(bodies="full"))
        some = [row for table in ("amqp091_frames", "messages", "anomalies") for row in rows(made[table])]
        return [str({key: value for key, value in row.items() if "packet" not in key}) for row in some]

    usual = found(modest.packets)
    monkeypatch.setattr(limits, limit, most)
    alone, both = found(greedy.packets), found(packets)
    assert any("'limit-reached'" in row for row in alone) or limit.startswith("PENDING")
    assert sorted(both) == sorted([*alone, *usual])


def test_consumers_without_room(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    consumes = [(CLIENT, method(commands.Basic.Consume(queue="q", consumer_tag=f"c{n}"))) for n in range(6)]
    packets = Tape().play([*BEGIN, *consumes, *consumes]).end().packets
    assert reported(tmp_path, packets) == []
    monkeypatch.setattr(limits, "PENDING", 4)
    (text,) = reported(tmp_path, packets)
    assert "no_ack" in text
    monkeypatch.undo()
    monkeypatch.setattr(limits, "PENDING_PER_CONNECTION", 4)
    assert reported(tmp_path, packets) == [text]


def test_bytes_searched_for_the_next_frame(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    packets: list[Packet] = []
    for number in range(20):
        tape = Tape(port=40_000 + number, start_ns=1_700_000_000_000_000_000 + number * 1_000_000).play(BEGIN)
        tape.next[CLIENT] += 30
        tape.send(CLIENT, b"".join(publish(bytes(20_000), largest=20_000))[50:], range(1_000, 19_000, 1_000))
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


def test_bytes_that_wait_for_secrets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A connection stops to wait at the same packet whatever the batches; all together stop where there is no room."""
    keylog = tmp_path / "empty.keylog"
    keylog.write_bytes(b"")
    options = Options(keylog=str(keylog))

    def found(batch_bytes: int) -> dict[str, list[dict[str, object]]]:
        path = str(FOLDER / "tls_sessions.pcap")
        return by_connection(tables(Relay(find([path]), options, compiled=False, batch_bytes=batch_bytes)))

    def details() -> set[object]:
        return {row["detail"] for row in found(1 << 20)["anomalies"] if row["code"] == "limit-reached"}

    assert details() == set()
    monkeypatch.setattr(limits, "TLS_HELD", 1_000)
    expected = found(1 << 20)
    assert all("did not come" in str(text) for text in details()) and len(details()) > 1
    for batch_bytes in (700, 5_000):
        assert found(batch_bytes) == expected
    monkeypatch.undo()
    monkeypatch.setattr(limits, "TLS_HELD_ALL", 1_000)
    assert details() == {
        "more than 1000 bytes of all connections waited for TLS secrets; the connection stays encrypted"
    }
