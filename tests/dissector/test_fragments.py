"""IP fragments: put together in any order, in any batches; copies, overlaps, losses, limits; as tshark has it."""

import io
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpscope.dissector.capture.file import CaptureFile
from amqpscope.dissector.kernels import limits
from amqpscope.dissector.packets.decoder import PacketDecoder
from amqpscope.dissector.packets.fragments import Fragment, Fragments
from tests.dissector.builders import Packet, ethernet, fragments, ipv4, ipv6, pcap, tcp, udp, vxlan
from tests.dissector.runs import BOTH, dissect, dissect_packets, rows
from tests.dissector.segments import by_dpkt, decode
from tests.dissector.wire import Tape, session
from tests.oracles import needs

PAYLOAD = bytes(range(256)) * 2
FOUR, SIX = ipv4(tcp(PAYLOAD, seq=77)), ipv6(tcp(PAYLOAD, seq=77))
versions = pytest.mark.parametrize("ip", [FOUR, SIX], ids=["ipv4", "ipv6"])
places = st.lists(st.integers(1, 66), min_size=1, max_size=8)


def kind(ip: bytes) -> int:
    return 0x0800 if ip[0] >> 4 == 4 else 0x86DD


def frames(parts: list[bytes], begin: int = 0) -> list[Packet]:
    return [Packet((begin + i) * 1000, ethernet(part, kind(part))) for i, part in enumerate(parts)]


def contents(found: list[Any]) -> list[bytes]:
    return [row[-1] for row in found]


@versions
@BOTH
@given(data=st.data(), cuts=places, batch_bytes=st.sampled_from([64, 300, 1 << 16]))
def test_in_any_order_and_batches(ip, compiled, data, cuts, batch_bytes):
    parts = fragments(ip, cuts)
    again = data.draw(st.lists(st.sampled_from(parts), max_size=3))
    order = data.draw(st.permutations([*parts, *again]))
    found, report = decode(pcap(frames(order)), compiled, batch_bytes)
    completing = max(order.index(part) for part in parts) + 1
    assert found == [by_dpkt(ip, completing, (completing - 1) * 1000)]
    assert (report.tcp, report.parts, report.fragments, report.problems) == (1, len(order) - 1, len(order), [])


def test_a_first_fragment_without_the_whole_tcp_header():
    for ip in (FOUR, SIX):
        found, _ = decode(pcap(frames(fragments(ip, [1, 2]))))
        assert contents(found) == [PAYLOAD]


@given(cuts=places, snap=st.lists(st.integers(0, 560), min_size=9, max_size=9))
@BOTH
def test_fragments_cut_by_the_snap_length(compiled, cuts, snap):
    parts = fragments(FOUR, cuts)
    packets = [Packet(i, part[: 20 + keep], len(part)) for i, (part, keep) in enumerate(zip(parts, snap, strict=False))]
    found, report = decode(pcap(packets, link=101), compiled)
    there = bytearray()  # 1 for each byte of the IP payload that was captured
    for part, keep in zip(parts, snap, strict=False):
        size = len(part) - 20
        there += b"\1" * min(keep, size) + b"\0" * (size - min(keep, size))
    headed = 0 not in there[:20]
    assert (report.tcp, len(found) > 0) == (headed, headed)
    # Segments lie side by side, cover all, and have exactly the bytes that were captured.
    at = 0
    for row in found:
        assert row[8] == 77 + at
        known = bytes(there[20 + at : 20 + at + row[12]])
        assert known == b"\1" * len(row[-1]) + b"\0" * (len(known) - len(row[-1]))
        assert row[-1] == PAYLOAD[at : at + len(row[-1])]
        at += row[12]
    assert at == (len(PAYLOAD) if headed else 0)
    assert report.counts == ({"packet-truncated": 1} if 0 in there else {})


def test_only_the_first_fragment_begins_a_connection_and_only_the_last_ends_it():
    parts = fragments(ipv4(tcp(PAYLOAD, seq=2**32 - 10, flags=0x1B)), [20, 40])
    packets = [Packet(i, part[:100], len(part)) for i, part in enumerate(parts)]
    found, _ = decode(pcap(packets, link=101))
    assert [(row[10], row[8], row[12], len(row[-1])) for row in found] == [
        (0x1A, 2**32 - 10, 140, 60), (0x18, 131, 160, 80), (0x19, 291, 212, 80),
    ]  # fmt: skip


@versions
@BOTH
def test_overlaps_make_a_packet_unusable(ip, compiled):
    low, high = fragments(ip, [30])
    _, other = fragments(ip, [29])
    changed = low[:-1] + b"!"
    for order in (
        [low, other, high],
        [other, low, high],
        [high, other, low],
        [low, changed, high],
        [changed, low, high],
    ):
        found, report = decode(pcap(frames([*order, low, high])), compiled)
        assert found == []
        assert report.counts == {"ip-fragment-overlap": 1}
        assert report.problems[0].packet in (2, 3)


def test_a_last_fragment_ends_the_packet():
    first, middle, last = fragments(FOUR, [20, 40])
    early = fragments(FOUR[: 20 + 160], [10])[1]  # says that the packet ends where `middle` begins
    for order in ([first, last, early], [first, early, last], [first, middle, early]):
        _, report = decode(pcap(frames(order)))
        assert report.counts == {"ip-fragment-overlap": 1}


def test_identifications_addresses_and_protocols_keep_packets_apart():
    parts = []
    for number in range(3):
        whole = ipv4(tcp(bytes([number]) * 100, sport=number))
        parts.append(fragments(whole, [5], ident=number))
    parts.append(fragments(ipv4(tcp(b"a" * 100), src="10.0.0.9"), [5], ident=0))
    parts.append(fragments(ipv6(tcp(b"b" * 100)), [5], ident=0))
    parts.append(fragments(ipv4(udp(bytes(100), 53), protocol=17), [5], ident=0))
    found, report = decode(pcap(frames([p[0] for p in parts] + [p[1] for p in parts])))
    assert contents(found) == [bytes(100), b"\1" * 100, b"\2" * 100, b"a" * 100, b"b" * 100]
    assert not report.problems


def test_a_number_that_is_used_again_is_another_packet():
    one, two = (ipv4(tcp(letter * 100)) for letter in (b"a", b"b"))
    parts = fragments(one, [5]) + fragments(one, [5]) + fragments(two, [5]) + fragments(two, [6])
    found, report = decode(pcap(frames(parts)))
    assert contents(found) == [b"a" * 100, b"b" * 100, b"b" * 100]
    assert not report.problems


def test_tunnels_in_fragments_and_fragments_in_tunnels():
    inner = ipv4(tcp(PAYLOAD))
    outer = ipv4(udp(vxlan(ethernet(inner)), 4789), protocol=17)
    for whole in (outer, ipv4(inner, protocol=4), ipv4(b"\0\0\x08\0" + inner, protocol=47)):
        found, report = decode(pcap(frames(fragments(whole, [9, 30]))))
        assert contents(found) == [PAYLOAD]
        assert (report.tcp, report.parts) == (1, 2)
    wrapped = [ipv4(udp(vxlan(ethernet(part)), 4789), protocol=17) for part in fragments(inner, [11])]
    both = [part for i, ip in enumerate(wrapped) for part in fragments(ip, [8, 20], ident=i)]
    found, report = decode(pcap(frames(both)))
    assert contents(found) == [PAYLOAD]
    assert (report.tcp, report.parts, report.problems) == (1, len(both) - 1, [])


def test_what_is_no_fragment_that_can_be():
    broken = [
        ipv4(bytes(20), fragment=0x2000),  # not a multiple of eight
        ipv4(b"", fragment=0x2000),
        ipv4(bytes(24), fragment=0x1FFF),  # beyond 64 KiB
        ipv4(bytes(24), fragment=0x2000, total=0),
        ipv4(bytes(24), fragment=0x2000, total=500),
        fragments(SIX, [9])[0][:4] + b"\0\x06" + fragments(SIX, [9])[0][6:],
    ]
    found, report = decode(pcap(frames(broken)))
    assert (found, report.counts) == ([], {"packet-undecodable": len(broken)})


def lone(ident: int, begin: int = 0, size: int = 1000, protocol: int = 6, data: bytes | None = None) -> Fragment:
    kept = bytes(size) if data is None else data
    return Fragment(4, bytes(8), protocol, ident, begin, begin + size, True, kept)


def test_what_is_never_complete_is_reported_after_a_while():
    known = Fragments()
    known.add(lone(1), 0, 11)
    known.add(lone(2, protocol=17), 1000, 12)  # of no interest
    known.add(lone(3), limits.FRAGMENTS_WAIT_NS, 13)
    assert not known.problems
    known.add(lone(4), limits.FRAGMENTS_WAIT_NS + 1, 14)
    assert known.problems == [("ip-fragment", "the IP packet that began in packet 11 was not complete within 30 s")]
    assert known.finish() == 2
    decoder = PacketDecoder()
    assert decoder.finish() == 0


def test_what_is_missing_at_the_end_is_reported(tmp_path: Path):
    for number, parts in enumerate((fragments(FOUR, [9])[:1], fragments(SIX, [9], ident=5)[1:])):
        (tmp_path / f"{number}.pcap").write_bytes(pcap(frames(parts)))
    (anomaly,) = dissect(tmp_path)["anomalies"].to_pylist()
    assert (anomaly["code"], anomaly["capture"], anomaly["packet"]) == ("ip-fragment", "1.pcap", None)
    assert anomaly["detail"] == "IP packets still incomplete at the end of the capture: 2"


def test_fragments_may_lie_in_several_files(tmp_path: Path):
    tape = Tape().play(session()).end()
    (tmp_path / "whole.pcap").write_bytes(pcap(tape.packets))
    parts = []
    for number, packet in enumerate(tape.packets):
        ip = packet.data[14 : 14 + int.from_bytes(packet.data[16:18])]
        parts += [Packet(packet.ts_ns, ethernet(part)) for part in fragments(ip, [2], ident=number)]
    folder = tmp_path / "parts"
    folder.mkdir()
    for number in range(0, len(parts), 7):
        (folder / f"{number:05}.pcap").write_bytes(pcap(parts[number : number + 7]))
    left_out = ("capture", "first_capture", "last_capture", "packet", "first_packet")
    whole, found = (dissect(path)["amqp091_frames"] for path in (tmp_path / "whole.pcap", folder))
    assert rows(found, *left_out) == rows(whole, *left_out)


@pytest.mark.parametrize("kept", [0, 1000])
def test_memory_is_bounded(kept, monkeypatch):
    monkeypatch.setattr(limits, "FRAGMENT_BYTES", 100_000)
    monkeypatch.setattr(limits, "FRAGMENTED_PACKETS", 150)
    known, reported = Fragments(), 0
    for ident in range(2000):
        for begin in (0, 8000, 16000):
            known.add(lone(ident % 65536, begin, data=bytes(kept)), ident, ident)
        assert known.cost <= 100_000 and len(known._known) <= 150
        reported += len(known.problems)
        known.problems.clear()
    assert reported + known.finish() == 2000
    assert known.cost == 0


def test_memory_is_bounded_over_all_capture_points(monkeypatch):
    """Those of the point out of use for longest go first; the last one keeps what it has."""
    monkeypatch.setattr(limits, "FRAGMENT_BYTES", 100_000)
    monkeypatch.setattr(limits, "FRAGMENT_BYTES_ALL", 250_000)
    decoder = PacketDecoder()
    parts = [fragments(ipv4(tcp(bytes(1000))), [50], ident=ident)[0] for ident in range(60)]
    for point in range(10):
        for batch in CaptureFile(io.BytesIO(pcap(frames(parts))), "x.pcap", 0, compiled=False):
            decoder.segments(batch, False, point)
        held = [known.cost for known in decoder._fragments.values()]
        assert sum(held) <= 250_000 + 2_000
        assert len(held) == min(point + 1, 250_000 // held[-1])
    assert decoder.finish() == 600


def test_fragments_of_few_bytes_that_claim_many_take_little():
    """Two fragments of a hundred bytes that claim to be 64 KB are no reason to hold 64 KB."""
    whole = ipv4(tcp(bytes(65_000)))
    packets = []
    for ident in range(200):
        packets += [Packet(0, part[:100], len(part)) for part in fragments(whole, [4000], ident=ident)]
    found, report = decode(pcap(packets, link=101), batch_bytes=1 << 20)
    assert report.tcp == 200
    assert sum(len(row[-1]) for row in found) == 200 * (60 + 80)


@pytest.mark.parametrize("batch_bytes", [64, 1 << 20])
@BOTH
def test_frames_come_out_of_fragments(batch_bytes, compiled):
    tape = Tape().play(session()).end()
    whole = dissect_packets(tape.packets, compiled=compiled)
    cut = []
    for number, packet in enumerate(tape.packets):
        ip = packet.data[14 : 14 + int.from_bytes(packet.data[16:18])]
        parts = fragments(ip, [1, 4, 7, 50], ident=number) if number % 3 else [ip]
        cut += [Packet(packet.ts_ns, ethernet(part)) for part in reversed(parts)]
    found = dissect_packets(cut, compiled=compiled, batch_bytes=batch_bytes)
    left_out = ("packet", "first_packet", "last_packet", "handshake_evidence", "handshake_steps")
    for name in ("amqp091_frames", "messages", "connections"):
        names = [n for n in left_out if n in whole[name].schema.names]
        assert rows(found[name], *names) == rows(whole[name], *names)


@needs("tshark")
def test_as_tshark_puts_them_together(tmp_path: Path):
    parts = []
    for number, ip in enumerate((FOUR, SIX, ipv4(tcp(PAYLOAD[::-1], seq=9)), ipv6(tcp(b"x" * 900, seq=5)))):
        parts.append(fragments(ip, [3, 17 + number, 40], ident=number + 7))
    order = [part for group in zip(*parts, strict=True) for part in group]
    order = order[::-1][:5] + order[:-5]
    path = tmp_path / "fragments.pcap"
    path.write_bytes(pcap(frames(order)))
    command = ["tshark", "-r", str(path), "-Y", "tcp", "-T", "fields", "-o", "tcp.desegment_tcp_streams:FALSE"]
    for field in ("frame.number", "tcp.seq_raw", "tcp.len", "tcp.payload"):
        command += ["-e", field]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    found, _ = decode(path.read_bytes())
    assert [str(x) for row in found for x in (row[1], row[8], row[12], row[-1].hex())] == lines
