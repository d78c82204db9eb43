"""Packets to segments: all headers against dpkt, rare layers, cut and hostile packets, real captures against tshark."""

import io
import struct
import subprocess
from ipaddress import IPv6Address, ip_address
from pathlib import Path

import dpkt
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from amqpscope.dissector.capture.file import CaptureFile
from amqpscope.dissector.capture.model import MAX_PROBLEMS
from amqpscope.dissector.packets.decoder import PacketDecoder
from tests.dissector.builders import (
    Packet,
    enhanced,
    ethernet,
    interface,
    ipv4,
    ipv6,
    loopback,
    pcap,
    section,
    sll,
    tcp,
    udp,
)  # fmt: skip
from tests.dissector.links import LINKS
from tests.dissector.runs import BOTH
from tests.dissector.segments import by_dpkt, decode
from tests.oracles import needs
from tests.thorough import examples

HERE = Path(__file__).parents[1] / "captures"
SHARED = Path(__file__).parents[3] / "shared/captures"
ODD = [
    "any_sll.pcap",
    "any_sll2.pcap",
    "ipv6.pcap",
    "nanoseconds.pcap",
    "seen_twice.pcapng",
    "snapped.pcap",
    "two_interfaces.pcapng",
]


options = st.lists(
    st.sampled_from([b"\x01", b"\x02\x04\x05\xb4", b"\x03\x03\x07", b"\x04\x02", b"\x08\x0a" + bytes(8)]), max_size=4
).map(b"".join)
segments = st.builds(
    tcp,
    st.binary(max_size=60),
    st.integers(0, 65535),
    st.integers(0, 65535),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**32 - 1),
    st.integers(0, 255),
    st.integers(0, 65535),
    options,
)
networks = st.builds(
    ipv4,
    segments,
    st.ip_addresses(v=4).map(str),
    st.ip_addresses(v=4).map(str),
    options=st.binary(max_size=40),
    fragment=st.sampled_from([0, 0x4000]),
) | st.builds(ipv6, segments, st.ip_addresses(v=6).map(str), st.ip_addresses(v=6).map(str))


UNKNOWN_TO_TSHARK = {"vxlan, old port", "mpls link", "mpls, ethernet inside"}
WITH_OPTIONS_UNKNOWN_TO_DPKT = {"mpls", "vlan, mpls", "mpls link"}


@pytest.mark.compiled
@pytest.mark.parametrize("link", LINKS)
@settings(max_examples=examples(15))  # of each kind of link
@given(given=st.lists(networks, min_size=1, max_size=5), batch_bytes=st.sampled_from([64, 1 << 16]))
def test_headers_as_dpkt_has_them(link, given, batch_bytes):
    number, wrap = LINKS[link]
    if link in WITH_OPTIONS_UNKNOWN_TO_DPKT:
        given = [ip for ip in given if ip[0] in (0x45, 0x60)]
    packets = [Packet(i * 1000, wrap(ip, 0x0800 if ip[0] >> 4 == 4 else 0x86DD)) for i, ip in enumerate(given)]
    expected = [by_dpkt(ip, i + 1, i * 1000) for i, ip in enumerate(given)]
    for compiled in (False, True):
        found, report = decode(pcap(packets, link=number), compiled, batch_bytes)
        assert found == expected
        assert (report.packets, report.tcp, report.other) == (len(given), len(given), 0)
        assert not report.problems


@BOTH
def test_links_of_one_version(compiled):
    four, six = ipv4(tcp(b"four")), ipv6(tcp(b"six"))
    for link, right, wrong in ((228, four, six), (229, six, four)):
        found, report = decode(pcap([Packet(0, right), Packet(0, wrong)], link=link), compiled)
        assert found == [by_dpkt(right)]
        assert report.counts == {"packet-undecodable": 1}


def extensions(kinds: list[int], segment: bytes) -> bytes:
    """IPv6 with hop-by-hop (0), routing (43), destination (60), authentication (51), atomic fragment (44) headers."""
    data, following = segment, 6
    for kind in reversed(kinds):
        if kind == 44:
            data = bytes([following, 0, 0, 0]) + bytes(4) + data
        elif kind == 51:
            data = bytes([following, 4]) + bytes(22) + data
        elif kind == 43:
            data = bytes([following, 2, 0, 0]) + bytes(20) + data
        else:
            data = bytes([following, 1, 1, 12]) + bytes(12) + data
        following = kind
    return ipv6(data, protocol=following)


@given(kinds=st.lists(st.sampled_from([0, 43, 60, 51, 44]), min_size=1, max_size=4), segment=segments)
def test_extension_headers(kinds, segment):
    assume(kinds[0] != 44 or kinds[-1] == 44)  # dpkt reads the last header as a fragment's when the first is one
    whole = ethernet(extensions(kinds, segment), 0x86DD)
    found, report = decode(pcap([Packet(0, whole)]))
    assert found == [by_dpkt(ipv6(segment))]
    assert not report.problems


def test_rare_packets_stand_in_their_place():
    common, rare = ethernet(ipv4(tcp(b"common"))), LINKS["pppoe"][1](ipv4(tcp(b"rare")), 0x0800)
    found, _ = decode(pcap([Packet(0, data) for data in (common, rare, rare, common, b"", rare)]))
    assert [(row[1], row[-1]) for row in found] == [
        (1, b"common"), (2, b"rare"), (3, b"rare"), (4, b"common"), (6, b"rare"),
    ]  # fmt: skip


@BOTH
def test_padding_is_no_payload(compiled):
    found, _ = decode(pcap([Packet(0, ethernet(ipv4(tcp()))), Packet(0, ethernet(ipv4(tcp(b"x"))))]), compiled)
    assert [row[-1] for row in found] == [b"", b"x"]


@BOTH
def test_lengths_left_to_the_network_card(compiled):
    long = bytes(70_000)
    given = [
        Packet(0, ethernet(ipv4(tcp(b"x" * 99), total=0))),
        Packet(0, ethernet(ipv4(tcp(long), total=0))),
        Packet(0, ethernet(ipv6(tcp(long), size=0), 0x86DD)),
        Packet(0, ethernet(ipv4(tcp(b"x" * 100), total=0))[:100], 14 + 20 + 20 + 100),
        Packet(0, ethernet(ethernet(ipv4(tcp(b"y" * 99), total=0)), 0x6558)),
        Packet(
            0, ethernet(extensions([0], tcp(b"z" * 99))[:4] + bytes(2) + extensions([0], tcp(b"z" * 99))[6:], 0x86DD)
        ),
    ]
    found, _ = decode(pcap(given), compiled)
    assert [(row[12], len(row[-1])) for row in found] == [
        (99, 99), (70_000, 70_000), (70_000, 70_000), (100, 46), (99, 99), (99, 99),
    ]  # fmt: skip


@pytest.mark.parametrize("link", LINKS)
@BOTH
def test_cut_by_the_snap_length(link, compiled):
    number, wrap = LINKS[link]
    payload = b"0123456789" * 6
    for ip, kind in (
        (ipv4(tcp(payload, options=b"\x08\x0a" + bytes(8))), 0x0800),
        (ipv6(tcp(payload, options=b"\x08\x0a" + bytes(8))), 0x86DD),
    ):
        whole = wrap(ip, kind)
        start = whole.index(payload)
        given = [Packet(0, whole[:size], len(whole)) for size in range(len(whole) + 1)]
        found, report = decode(pcap(given, link=number), compiled)
        wanted = by_dpkt(ip)
        assert [row[1] for row in found] == list(range(start - 12 + 1, len(whole) + 2))  # TCP options may be missing
        for row in found:
            size = row[1] - 1
            assert row[2:-1] == wanted[2:-1]
            assert row[-1] == payload[: max(0, size - start)]
        codes = {problem.packet: problem.code for problem in report.problems}
        assert codes == {i + 1: "packet-truncated" for i in range(start + len(payload))}
        assert report.counts == {"packet-truncated": start + len(payload)}


BROKEN = {
    "empty": b"",
    "ethernet too short": bytes(13),
    "tag too short": ethernet(b"", 0x8100, pad=False) + b"\0\1",
    "nothing behind ethernet": ethernet(b"", pad=False),
    "ipv4 header too short": ethernet(b"\x45" + bytes(18), pad=False),
    "ipv4 header length": ethernet(b"\x44" + ipv4(tcp())[1:]),
    "ipv4 options beyond the total": ethernet(b"\x4f" + ipv4(tcp())[1:]),
    "ipv4 total": ethernet(ipv4(tcp(), total=19)),
    "ipv4 total without TCP": ethernet(ipv4(tcp(), total=39)),
    "ip version": ethernet(b"\x55" + ipv4(tcp())[1:]),
    "ipv6 called ipv4": ethernet(ipv6(tcp())),
    "ipv6 header too short": ethernet(ipv6(b"")[:39], 0x86DD, pad=False),
    "ipv6 size": ethernet(ipv6(tcp(), size=19), 0x86DD),
    "tcp header length": ethernet(ipv4(tcp()[:12] + b"\x40" + tcp()[13:])),
    "tcp header beyond the packet": ethernet(ipv4(tcp()[:12] + b"\xf0" + tcp()[13:])),
    "tcp missing": ethernet(ipv4(b"123")),
    "pppoe, tcp missing": LINKS["pppoe"][1](ipv4(b"123"), 0x0800),
    "extension beyond the packet": ethernet(ipv6(b"\x06\xff" + bytes(6), protocol=0), 0x86DD, pad=False),
}


@pytest.mark.parametrize("name", BROKEN)
@BOTH
def test_broken_headers(name, compiled):
    good = ethernet(ipv4(tcp(b"good")))
    found, report = decode(pcap([Packet(0, BROKEN[name]), Packet(0, good)]), compiled)
    assert [row[1] for row in found] == [2]
    [problem] = report.problems
    assert (problem.code, problem.packet, problem.offset) == ("packet-undecodable", 1, None)


@BOTH
def test_what_is_not_tcp_is_counted(compiled):
    given = [
        ethernet(ipv4(bytes(20), protocol=17)),
        ethernet(ipv6(bytes(20), protocol=58), 0x86DD),
        ethernet(bytes(28), 0x0806),
        ethernet(ipv4(udp(b"no tunnel", 53), protocol=17)),
        ethernet(ipv4(udp(bytes(16), 4789), protocol=17)),  # without the flag that says which network
        ethernet(ipv4(udp(b"\0\0\x08\0" + bytes(20), 6081), protocol=17)),  # IP in Geneve
        ethernet(ipv4(bytes(20), protocol=1, fragment=0x2000)),
        ethernet(extensions([0], b"")[:40] + b"\x11\0" + bytes(26), 0x86DD),
        ethernet(ipv4(ipv4(b"\x03\x03" + bytes(6) + ipv4(tcp()), protocol=1), protocol=4)),  # an error message quotes
        ethernet(ipv4(ipv4(bytes(20), protocol=1, fragment=0x0001), protocol=4)),
    ]
    found, report = decode(pcap([Packet(0, data) for data in given]), compiled)
    assert (found, report.other, report.problems) == ([], len(given), [])
    found, report = decode(pcap([Packet(0, loopback(b"", 7))], link=0), compiled)
    assert (found, report.other) == ([], 1)


def test_unknown_links_are_reported_up_to_a_limit():
    count = MAX_PROBLEMS + 500
    found, report = decode(pcap([Packet(0, b"abc")] * count, link=147), batch_bytes=1000)
    assert found == []
    assert report.counts == {"link-type-unknown": count}
    assert len(report.problems) == MAX_PROBLEMS
    assert "147" in report.problems[0].detail


def test_problems_are_listed_up_to_a_limit_of_each_capture():
    decoder, listed = PacketDecoder(), [0, 0]
    for capture in (0, 1, 0):
        data = io.BytesIO(pcap([Packet(0, b"abc")] * MAX_PROBLEMS, link=147))
        for batch in CaptureFile(data, "x.pcap", capture, compiled=False):
            listed[capture] += len(decoder.segments(batch, compiled=False)[1].problems)
    assert listed == [MAX_PROBLEMS, MAX_PROBLEMS]


def test_interfaces_of_different_links():
    content = section() + interface(1) + interface(113) + interface(0)
    ip = ipv4(tcp(b"abc"))
    for i, data in enumerate((ethernet(ip), sll(ip), loopback(ip))):
        content += enhanced(Packet(0, data, interface=i), 0)
    found, _ = decode(content)
    assert found == [by_dpkt(ip, i) for i in (1, 2, 3)]


def test_addresses_by_the_standard_library():
    given = [("255.0.0.1", "127.0.0.1", ipv4), ("ffff:ffff:8000::1", "::8000:0:0:0", ipv6), ("::", "::1", ipv6)]
    found, _ = decode(pcap([Packet(0, build(tcp(), src, dst)) for src, dst, build in given], link=101))
    for row, (src, dst, _) in zip(found, given, strict=True):
        for high, low, text in ((*row[2:4], src), (*row[4:6], dst)):
            address = IPv6Address(struct.pack(">qq", high, low))
            assert ip_address(text) in (address, address.ipv4_mapped)


hostile = st.binary(max_size=80) | st.builds(
    lambda wrap, ip, changes: mutate(LINKS[wrap][1](ip, 0x0800 if ip[0] >> 4 == 4 else 0x86DD), changes),
    st.sampled_from(sorted(LINKS)),
    networks,
    st.lists(
        st.tuples(st.integers(0, 70), st.sampled_from([0, 1, 4, 6, 0x7F, 0x80, 0xFF]) | st.integers(0, 255)), max_size=6
    ),
)


def mutate(data: bytes, changes: list[tuple[int, int]]) -> bytes:
    changed = bytearray(data)
    for at, value in changes:
        if at < len(changed):
            changed[at] = value
    return bytes(changed)


@pytest.mark.compiled
@settings(max_examples=examples(200))
@given(
    given=st.lists(st.tuples(hostile, st.integers(-40, 2**32 - 1) | st.just(0)), max_size=6),
    link=st.sampled_from(
        [0, 1, 9, 12, 51, 101, 104, 105, 108, 113, 117, 127, 192, 219, 228, 229, 239, 258, 276, 65535]
    ),
)
def test_hostile_packets_never_crash_and_mean_the_same_in_both_modes(given, link):
    packets = [Packet(0, data, min(max(0, len(data) + more), 2**32 - 1)) for data, more in given]
    content = pcap(packets, link=link)
    found, report = decode(content, False)
    assert (found, report) == decode(content, True)
    assert report.packets == len(packets)
    assert report.tcp == len({row[1] for row in found})
    # Every packet is accounted for; a cut one may be a segment as well.
    unseen = {p.packet for p in report.problems} - {row[1] for row in found}
    assert report.tcp + report.other + report.parts + len(unseen) == len(packets)
    assert all(0 <= len(row[-1]) <= row[12] for row in found)


@pytest.mark.parametrize("path", sorted([*HERE.glob("*.pcap"), *SHARED.glob("*/*.pcap")]), ids=lambda path: path.name)
def test_real_captures_against_dpkt(path):
    wanted = []
    with path.open("rb") as file:
        reader = dpkt.pcap.Reader(file)
        header = {1: 14, 101: 0, 113: 16, 276: 20}[reader.datalink()]
        for number, (_, data) in enumerate(reader, 1):
            wanted.append(by_dpkt(data[header:], number))
    found, report = decode(path.read_bytes())
    cut = path.name == "snapped.pcap"
    assert set(report.counts) == ({"packet-truncated"} if cut else set())
    # Without the time, of which dpkt makes a float, and without lengths that dpkt cannot know.
    columns = [i for i in range(1, 16) if not (cut and i == 12)]
    assert [[row[i] for i in columns] for row in found] == [[row[i] for i in columns] for row in wanted]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("path", [*(HERE / name for name in ODD), *SHARED.glob("*/suite_*.pcap")], ids=lambda p: p.name)
@needs("tshark")
def test_real_captures_against_tshark(path):
    fields = (
        "frame.number frame.time_epoch tcp.srcport tcp.dstport tcp.seq_raw tcp.ack_raw tcp.window_size_value tcp.len"
    )
    command = ["tshark", "-r", str(path), "-n", "-Y", "tcp", "-T", "fields"]
    for option in ("tcp.desegment_tcp_streams:FALSE", "tcp.analyze_sequence_numbers:FALSE"):
        command += ["-o", option]
    for field in fields.split():
        command += ["-e", field]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    found, _ = decode(path.read_bytes())
    assert len(found) == len(lines)
    for row, line in zip(found, lines, strict=True):
        number, time, *rest = line.split("\t")
        whole, fraction = time.split(".")
        assert row[0] == int(whole) * 10**9 + int(fraction.ljust(9, "0"))
        assert [row[1], row[6], row[7], row[8], row[9], row[11], row[12]] == [int(number), *map(int, rest)]


@needs("tshark")
def test_link_layers_against_tshark(tmp_path):
    """One capture with an interface of each kind: what tshark finds in our packets is what we find."""
    content, number = section(), 0
    blocks = b""
    for name, (link, wrap) in LINKS.items():
        if name in UNKNOWN_TO_TSHARK:
            continue
        content += interface(link, name=name)
        for ip, kind in ((ipv4(tcp(b"four" * 20, seq=number)), 0x0800), (ipv6(tcp(b"six" * 20, seq=number)), 0x86DD)):
            blocks += enhanced(Packet(0, wrap(ip, kind), interface=number // 2), 0)
            number += 1
    path = tmp_path / "links.pcapng"
    path.write_bytes(content + blocks)
    command = ["tshark", "-r", str(path), "-Y", "tcp", "-T", "fields", "-o", "tcp.desegment_tcp_streams:FALSE"]
    for name in ("frame.interface_name", "frame.number", "tcp.srcport", "tcp.seq_raw", "tcp.payload"):
        command += ["-e", name]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    found, _ = decode(path.read_bytes())
    assert len(found) == number
    assert [f"{row[1]}\t{row[6]}\t{row[8]}\t{row[-1].hex()}" for row in found] == [
        line.split("\t", 1)[1] for line in lines
    ]
