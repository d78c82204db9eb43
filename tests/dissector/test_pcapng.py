"""Next-generation captures: sections, interfaces, times, and the blocks that carry something else."""

import io
import struct
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpscope.dissector.capture.file import CaptureFile
from amqpscope.dissector.capture.pcapng import MAX_INTERFACES, MAX_PAUSES, MAX_SECONDS
from tests.dissector.batches import batch_sizes, batches, rows
from tests.dissector.builders import (
    Packet,
    block,
    enhanced,
    interface,
    names,
    obsolete,
    option,
    secrets,
    section,
    simple,
    statistics,
)  # fmt: skip
from tests.dissector.runs import BOTH

TIME = 1_700_000_000_123_456_789


@BOTH
def test_sections_interfaces_and_byte_orders(compiled):
    content = b"".join(
        [
            section("<"),
            names(),
            interface(1, name="eth0", snap_length=96),
            interface(113, resolution=9),
            enhanced(Packet(0, b"a", 1000, interface=0), TIME // 1000),
            enhanced(Packet(0, b"bb", interface=1), TIME, options=option(1, b"a comment")),
            section(">"),
            interface(276, ">", resolution=3),
            enhanced(Packet(0, b"ccc", interface=0), TIME // 10**6, ">"),
            obsolete(Packet(0, b"dddd", 5, interface=0), TIME // 10**6, ">"),
            block(0x0BAD, b"some vendor's", ">"),
            simple(Packet(0, b"e" * 7), ">"),
        ]
    )
    found, file = batches(content, compiled)
    assert rows(found) == [
        (1, TIME // 1000 * 1000, b"a", 1000, 1),
        (2, TIME, b"bb", 2, 113),
        (3, TIME // 10**6 * 10**6, b"ccc", 3, 276),
        (4, TIME // 10**6 * 10**6, b"dddd", 5, 276),
        (5, TIME // 10**6 * 10**6, b"e" * 7, 7, 276),
    ]
    info = file.info
    assert info.link_types == [1, 113, 276]
    assert [i.name for i in info.interfaces] == ["eth0", "", ""]
    assert info.snap_length == 96
    assert info.dropped is None
    assert (info.first_ts_ns, info.last_ts_ns) == (TIME // 1000 * 1000, TIME // 10**6 * 10**6)
    assert not info.problems


def seconds(ticks: int, resolution: int) -> tuple[int, int]:
    """Exact: seconds and nanoseconds, rounded down."""
    per_second = 2 ** (resolution & 0x7F) if resolution & 0x80 else 10**resolution
    return divmod(ticks * 10**9 // per_second, 10**9)


@BOTH
@given(
    resolution=st.integers(0, 18) | st.integers(0x80, 0x80 + 62),
    ticks=st.integers(0, 2**64 - 1) | st.integers(0, 2**33),
    offset_s=st.integers(-(2**63), 2**63 - 1) | st.integers(-(2**32), 2**32) | st.just(0),
    order=st.sampled_from("<>"),
)
def test_times_are_exact(compiled, resolution, ticks, offset_s, order):
    content = section(order) + interface(1, order, resolution, offset_s)
    found, file = batches(content + enhanced(Packet(0, b""), ticks, order), compiled)
    [(_, ts_ns, _, _, _)] = rows(found)
    whole, fraction = seconds(ticks, resolution)
    whole += max(-MAX_SECONDS, min(MAX_SECONDS, offset_s))
    if whole > MAX_SECONDS or ticks >= 2**63:
        assert ts_ns == MAX_SECONDS * 10**9
        assert [p.code for p in file.info.problems] == ["header-unknown"]
    else:
        assert ts_ns == whole * 10**9 + fraction
        assert not file.info.problems


@BOTH
def test_simple_packets_are_cut_by_the_snap_length_and_have_the_time_before(compiled):
    content = section() + interface(1, snap_length=5) + enhanced(Packet(0, b"x"), 77)
    found, _ = batches(content + simple(Packet(0, b"12345", 900)) + simple(Packet(0, b"123")), compiled)
    assert rows(found)[1:] == [(2, 77_000, b"12345", 900, 1), (3, 77_000, b"123", 3, 1)]


@BOTH
@given(batch_bytes=batch_sizes)
def test_packets_of_unknown_interfaces_are_counted_and_numbered(compiled, batch_bytes):
    content = b"".join(
        [
            section(),
            simple(Packet(0, b"nowhere")),
            interface(),
            enhanced(Packet(0, b"a"), 0),
            enhanced(Packet(0, b"b", interface=1), 0),
            section(),
            enhanced(Packet(0, b"c"), 0),
            interface(),
            enhanced(Packet(0, b"d"), 0),
        ]
    )
    found, file = batches(content, compiled, batch_bytes)
    assert [(number, data) for number, _, data, _, _ in rows(found)] == [(2, b"a"), (5, b"d")]
    assert file.info.counts == {"header-unknown": 3}
    assert len(file.info.problems) == 1


def test_drop_counts_are_those_of_the_last_statistics():
    content = b"".join(
        [
            section(),
            interface(),
            interface(),
            statistics(0, 5),
            statistics(1, 7, 1),
            statistics(0, 6),
            statistics(9, 1000),  # no such interface
            section(),
            interface(),
            statistics(0, 100),
            statistics(0, None),
        ]
    )
    _, file = batches(content)
    assert file.info.dropped == 6 + 8 + 100


def test_secrets_are_kept_but_not_shown():
    text = b"CLIENT_RANDOM 0123 4567\n"
    others = block(10, struct.pack("<II", 0x57474B4C, 4) + b"wire")  # of another protocol
    content = section(">") + secrets(text, ">") + section("<") + secrets(b"", "<") + others
    found, file = batches(content + interface() + enhanced(Packet(0, b"a"), 0))
    assert file.info.secrets == found[0].secrets == [text, b""]
    assert "CLIENT" not in repr(file.info) + repr(found)


@BOTH
@given(batch_bytes=batch_sizes)
def test_secrets_are_known_before_the_packets_after_them_and_not_sooner(compiled, batch_bytes):
    content = section() + interface() + enhanced(Packet(0, b"a"), 0) + secrets(b"one") + secrets(b"two")
    content += enhanced(Packet(0, b"b"), 0) + enhanced(Packet(0, b"c"), 0) + secrets(b"three") + secrets(b"last")
    found, file = batches(content + enhanced(Packet(0, b"d"), 0), compiled, batch_bytes)
    known, seen = [], {}
    for batch in found:
        known += batch.secrets
        for _, _, data, _, _ in rows([batch]):
            seen[data] = list(known)
    assert seen == {
        b"a": [], b"b": [b"one", b"two"], b"c": [b"one", b"two"], b"d": [b"one", b"two", b"three", b"last"],
    }  # fmt: skip
    assert file.info.secrets == known


def test_secrets_between_all_packets_do_not_make_a_batch_of_each():
    content = section() + interface() + (enhanced(Packet(0, b"a"), 0) + secrets(b"x")) * 2000
    found, file = batches(content, batch_bytes=1 << 20)
    assert len(found) == MAX_PAUSES + 1
    assert len(file.info.secrets) == sum(len(batch.secrets) for batch in found) == 2000


@pytest.mark.parametrize("cut", [0, 3, 7])
@pytest.mark.parametrize("tail", [b"", b"\x63\0\0\0\x0e\0\0\0" + bytes(600)])
@given(batch_bytes=batch_sizes)
def test_the_size_of_a_damaged_file_does_not_depend_on_batches(cut, tail, batch_bytes):
    content = (section() + interface() + enhanced(Packet(0, bytes(50)), 0) * 9)[: -cut or None]
    _, file = batches(content + tail, batch_bytes=batch_bytes)
    _, whole = batches(content + tail, batch_bytes=1 << 20)
    assert file.info.size == whole.info.size <= len(content + tail)


@pytest.mark.parametrize(
    "broken",
    [
        block(6, bytes(16)),  # shorter than its header
        block(6, bytes(12) + b"\x05\0\0\0" + bytes(4) + b"1234"),  # more bytes than the block holds
        block(3, b""),
        block(99, bytes(8))[:-4] + b"\x18\0\0\0",  # lengths differ
        b"\x63\0\0\0\x0e\0\0\0" + bytes(6),  # not a multiple of four
        b"\x63\0\0\0\x04\0\0\0" + bytes(6),
        b"\x63\0\0\0\xfc\xff\xff\xff" + bytes(6),
        b"\x0a\x0d\x0d\x0a\x1c\0\0\0" + bytes(20),  # a section without byte order
        b"\x01\0\0\0\x04\0\0\0" + bytes(6),
    ],
)
@BOTH
def test_a_block_that_cannot_be_right_ends_the_reading(broken, compiled):
    good = section() + interface() + enhanced(Packet(0, b"a"), 0)
    found, file = batches(good + broken + enhanced(Packet(0, b"b"), 0), compiled)
    assert [data for _, _, data, _, _ in rows(found)] == [b"a"]
    [problem] = file.info.problems
    assert (problem.code, problem.packet, problem.offset) == ("header-unknown", 2, len(good))


def test_long_names_of_interfaces_are_cut():
    _, file = batches(section() + interface(name="e" * 60_000))
    assert file.info.interfaces[0].name == "e" * 256


def test_more_interfaces_than_are_remembered():
    _, file = batches(section() + interface() * (MAX_INTERFACES + 3))
    assert file.info.counts == {"limit-reached": 3}
    assert len(file.info.interfaces) <= MAX_INTERFACES


@BOTH
def test_many_interfaces(compiled):
    content = section() + b"".join(interface(i) for i in range(300))
    found, _ = batches(content + b"".join(enhanced(Packet(0, b"", interface=i), i) for i in range(300)), compiled)
    assert [(t, link) for _, t, _, _, link in rows(found)] == [(i * 1000, i) for i in range(300)]


def test_sections_and_odd_blocks_by_the_thousand_take_linear_time():
    def cost(count: int) -> float:
        content = (section() + interface() + enhanced(Packet(0, b"a"), 0) + block(77, b"") + statistics(0, 1)) * count
        start = time.process_time()
        found = sum(len(batch.offset) for batch in CaptureFile(io.BytesIO(content), "x", 0, compiled=False))
        assert found == count
        return time.process_time() - start

    cost(100)
    assert cost(8000) < 30 * cost(1000)  # 8 times as many; 64 times the cost if it were quadratic
