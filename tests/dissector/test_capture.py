"""Capture files: what they hold comes out, in any batch size, interpreted and compiled; whatever else is reported."""

import bz2
import gzip
import io
import lzma
import os
import struct
import threading
import time
from decimal import Decimal
from pathlib import Path

import dpkt
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpscope.dissector.capture.file import CaptureError, CaptureFile
from amqpscope.dissector.capture.scanner import MAX_RECORD
from amqpscope.dissector.kernels import limits
from tests.dissector.batches import batch_sizes, batches, rows
from tests.dissector.builders import Packet, block, enhanced, interface, pcap, pcapng, section
from tests.dissector.runs import BOTH

CAPTURES = Path(__file__).parents[1] / "captures"
TIME = 1_700_000_000_123_456_789

packets = st.lists(
    st.builds(
        lambda us, data, more: Packet(us * 1000, data, len(data) + more),
        st.integers(0, 2**32 * 10**6 - 1),
        st.binary(max_size=90),
        st.integers(0, 2000),
    ),
    max_size=12,
)
orders = st.sampled_from("<>")


def expected(given: list[Packet], link: int = 1) -> list[tuple[int, int, bytes, int, int]]:
    return [(number, p.ts_ns, p.data, p.wire, link) for number, p in enumerate(given, 1)]


@BOTH
@given(given=packets, order=orders, kind=st.sampled_from(["us", "ns", "modified"]), batch_bytes=batch_sizes)
def test_pcap_gives_back_what_was_written(compiled, given, order, kind, batch_bytes):
    content = pcap(given, order, ns=kind == "ns", link=113, snap_length=7, modified=kind == "modified")
    found, file = batches(content, compiled, batch_bytes)
    assert rows(found) == expected(given, link=113)
    assert (file.info.format, file.info.link_types, file.info.packets) == ("pcap", [113], len(given))
    assert file.info.captured_bytes == sum(len(p.data) for p in given)
    assert not file.info.problems
    assert not file.info.truncated


@BOTH
@given(given=packets, order=orders, batch_bytes=batch_sizes)
def test_pcapng_gives_back_what_was_written(compiled, given, order, batch_bytes):
    found, file = batches(pcapng(given, order), compiled, batch_bytes)
    assert rows(found) == expected(given)
    assert not file.info.problems


def test_batches_leave_untouched_room_and_tell_how_far_they_are():
    given = [Packet(TIME, bytes(50))] * 40
    found, _ = batches(pcap(given), batch_bytes=500)
    assert len(found) > 3
    for batch in found:
        assert batch.data.flags.writeable
        assert batch.data.flags.c_contiguous
        assert batch.data.size - batch.used >= 1000
        assert batch.capture == 3
        assert all(c.dtype == np.int64 and c.flags.c_contiguous for c in (batch.offset, batch.ts_ns, batch.link))
    assert [batch.consumed for batch in found] == sorted(batch.consumed for batch in found)
    assert found[-1].consumed == 24 + 40 * 66


def test_room_of_a_batch_may_be_overwritten_while_reading():
    given = [Packet(i * 1000, bytes([i]) * 50) for i in range(40)]
    seen = []
    for batch in CaptureFile(io.BytesIO(pcap(given)), "test", 0, batch_bytes=300):
        seen += rows([batch])
        batch.data[batch.used :] = 0xFF
    assert seen == expected(given)


@pytest.mark.parametrize("make", [pcap, pcapng])
@BOTH
def test_a_record_larger_than_a_batch(make, compiled):
    given = [Packet(0, b"a"), Packet(1000, bytes(range(250)) * 4000), Packet(2000, b"b")]
    found, file = batches(make(given), compiled, batch_bytes=1000)
    assert rows(found) == expected(given)
    assert not file.info.problems


@pytest.mark.parametrize("make", [pcap, pcapng])
@pytest.mark.parametrize("order", "<>")
@BOTH
def test_cut_anywhere_everything_before_is_there(make, order, compiled):
    given = [Packet(1000, b"one"), Packet(2000, b"second packet", 99)]
    whole = make(given, order)
    head = len(make([], order))
    first = len(make(given[:1], order))
    start = first + (16 if make is pcap else 28)  # of the second packet's bytes
    for end in range(head, len(whole)):
        found, file = batches(whole[:end], compiled, 100)
        cut = expected(given[:1]) if end >= first else []
        if end >= start:
            cut.append((2, 2000, b"second packet"[: end - start], 99, 1))
        elif head + start - first <= end < first:
            cut.append((1, 1000, b"one"[: end - head - start + first], 3, 1))
        assert rows(found) == cut
        assert file.info.truncated == (end not in (head, first))
        assert [p.code for p in file.info.problems] == ["capture-truncated"] * file.info.truncated
        if file.info.truncated:
            assert file.info.problems[0].offset == (first if end > first else head)


@pytest.mark.parametrize("length", [MAX_RECORD + 1, 0x7FFFFFFF, 0xFFFFFFFF])
@BOTH
def test_a_record_that_cannot_be_right_ends_the_reading(length, compiled):
    given = [Packet(0, b"abc")] * 5
    content = pcap(given) + struct.pack("<IIII", 1, 1, length, length) + pcap(given)
    found, file = batches(content, compiled)
    assert len(rows(found)) == 5
    [problem] = file.info.problems
    assert (problem.code, problem.packet, problem.offset) == ("header-unknown", 6, 24 + 5 * 19)
    assert str(length) in problem.detail


@BOTH
def test_lengths_that_only_claim_much_take_no_memory(compiled):
    content = pcap([Packet(0, b"abc")]) + struct.pack("<IIII", 1, 1, MAX_RECORD, MAX_RECORD) + b"xyz"
    found, file = batches(content, compiled)
    assert [data for _, _, data, _, _ in rows(found)] == [b"abc", b"xyz"]
    assert file.info.truncated


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"\xd4", "not a pcap"),
        (pcap([])[:23], "inside the file header"),
        (section()[:20], "inside the section header"),
        (section().replace(b"\x4d\x3c\x2b\x1a", b"\0\0\0\0"), "byte-order"),
        (b"<!DOCTYPE html><html>", "an HTML page"),
        (b"<?xml version='1.0'?>", "XML"),
        (b'{"frames": []}', "JSON"),
        (b"no.,time,source\n1,0.0,10.0.0.1\n", "text"),
        (b"PK\x03\x04abcd", "zip"),
        (b"PAR1\0\0\0", "Parquet"),
        (b"\x00\x01\x02\x03\x04", "begins with bytes 00 01 02 03"),
        (gzip.compress(b"plain text", mtime=0), "text"),
        (gzip.compress(pcap([Packet(0, bytes(500))]), mtime=0)[:15], "truncated or damaged"),
    ],
)
def test_what_is_no_capture_is_named(content, words):
    with pytest.raises(CaptureError, match=words) as caught:
        batches(content)
    assert str(caught.value).startswith("test: ")
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_opened(tmp_path):
    with pytest.raises(CaptureError, match=r"x\.pcap: no such file"):
        list(CaptureFile(str(tmp_path / "x.pcap"), "x.pcap", 0))
    with pytest.raises(CaptureError, match="is a directory"):
        list(CaptureFile(str(tmp_path), "x", 0))
    with pytest.raises(CaptureError, match="cannot open"):
        list(CaptureFile("a\0b", "x", 0))
    secret = tmp_path / "secret.pcap"
    secret.write_bytes(pcap([]))
    secret.chmod(0)
    if not os.access(secret, os.R_OK):  # root may read everything
        with pytest.raises(CaptureError, match="permission denied"):
            list(CaptureFile(str(secret), "x", 0))


def test_a_read_error_is_reported():
    class Broken(io.BytesIO):
        def readinto(self, buffer):
            if self.tell() > 50:
                raise OSError(5, "Input/output error")
            return super().readinto(buffer.cast("B")[:40])

    with pytest.raises(CaptureError, match="reading failed at byte 86: input/output error"):
        list(CaptureFile(Broken(pcap([Packet(0, bytes(100))])), "x", 0))


COMPRESSORS = {
    "gzip": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zstd": lambda data: pa.compress(data, "zstd", asbytes=True),
    "lz4": lambda data: pa.compress(data, "lz4", asbytes=True),
}


@pytest.mark.compiled
@pytest.mark.parametrize("compression", COMPRESSORS)
def test_compressed(compression, tmp_path):
    given = [Packet(i * 1000, os.urandom(100)) for i in range(10_000)]
    content, compress = pcap(given), COMPRESSORS[compression]
    path = tmp_path / "named.anyhow"
    middle = len(content) // 2
    for packed in compress(content), compress(content[:middle]) + compress(content[middle:]):
        path.write_bytes(packed)
        file = CaptureFile(str(path), "x", 0, batch_bytes=200_000)
        found = list(file)
        assert rows(found) == expected(given)
        assert file.info.compression == compression
        assert found[-1].consumed <= path.stat().st_size
        assert not file.info.problems
    path.write_bytes(compress(content)[:-100_000])
    file = CaptureFile(str(path), "x", 0, batch_bytes=200_000)
    found = rows(list(file))
    assert found[:-1] == expected(given)[: len(found) - 1]
    assert len(found) > 7000
    assert file.info.truncated
    assert any(p.code == "capture-truncated" and compression in p.detail for p in file.info.problems)


@pytest.mark.parametrize("exponent", [17, 18, 21])
def test_zstd_that_needs_much_memory_is_not_unpacked(exponent):
    """A frame by hand: window of 2 ** (10 + exponent), one raw block."""
    content = pcap([Packet(0, b"abc")])
    block_header = struct.pack("<I", len(content) << 3 | 1)[:3]
    packed = b"\x28\xb5\x2f\xfd" + bytes([0, exponent << 3]) + block_header + content
    if 1 << (10 + exponent) <= limits.UNPACKING:
        assert len(batches(packed)[0]) == 1
    else:
        with pytest.raises(CaptureError, match="zstd data needs more than 128 MiB to decompress"):
            batches(packed)


@pytest.mark.parametrize("dictionary", [1 << 20, 64 << 20])
def test_xz_that_needs_much_memory_is_not_unpacked(dictionary, monkeypatch):
    monkeypatch.setattr(limits, "UNPACKING", 8 << 20)
    content = pcap([Packet(i * 1000, os.urandom(100)) for i in range(20_000)])
    xz = lzma.LZMACompressor(filters=[{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": dictionary}])
    packed = xz.compress(content) + xz.flush()
    if dictionary < limits.UNPACKING:
        assert sum(len(batch.offset) for batch in batches(packed)[0]) == 20_000
    else:
        with pytest.raises(CaptureError, match="xz data needs more than 8 MiB to decompress"):
            batches(packed)


def test_streams_of_xz_may_be_padded_with_zeros():
    given = [Packet(i * 1000, bytes(50)) for i in range(5)]
    content = pcap(given)
    packed = lzma.compress(content[:100]) + bytes(8) + lzma.compress(content[100:]) + bytes(4)
    found, file = batches(packed)
    assert rows(found) == expected(given)
    assert not file.info.problems


@pytest.mark.compiled
@pytest.mark.parametrize("compression", COMPRESSORS)
def test_a_bomb_is_read_in_bounded_chunks(compression):
    """64 MB of zeros are 4 million packets of no bytes; as records of pcap they are right."""
    packed = COMPRESSORS[compression](pcap([]) + bytes(64 << 20))
    count = 0
    for batch in CaptureFile(io.BytesIO(packed), "bomb", 0, batch_bytes=1 << 20, compiled=True):
        assert batch.used <= 1 << 20 and batch.data.nbytes <= 3 << 20
        count += len(batch.offset)
    assert count == 4 << 20


def test_standard_input(monkeypatch):
    given = [Packet(1000, b"abc"), Packet(2000, b"de")]
    reading, writing = os.pipe()
    os.write(writing, pcap(given))
    os.close(writing)
    kept = os.dup(0)
    try:
        os.dup2(reading, 0)
        assert rows(list(CaptureFile("-", "standard input", 0))) == expected(given)
    finally:
        os.dup2(kept, 0)
        os.close(kept)
        os.close(reading)


def test_a_pipe_is_read_while_it_is_written():
    given = [Packet(i * 1000, bytes([i]) * 30) for i in range(3)]
    reading, writing = os.pipe()
    seen = threading.Semaphore(0)

    def write() -> None:
        os.write(writing, pcap(given[:1]))
        for packet in given[1:]:
            assert seen.acquire(timeout=10)
            record = pcap([packet])[24:]
            os.write(writing, record[:20])
            time.sleep(0.01)
            os.write(writing, record[20:])
        os.close(writing)

    writer = threading.Thread(target=write)
    writer.start()
    found = []
    with os.fdopen(reading, "rb") as file:
        for batch in CaptureFile(file, "pipe", 0):
            found.append(batch)
            seen.release()
    writer.join()
    assert len(found) == 3
    assert rows(found) == expected(given)


@pytest.mark.parametrize(("count", "compiled"), [(10, False), (12_000, True)])
def test_small_captures_are_not_compiled_for(count, compiled):
    file = CaptureFile(io.BytesIO(pcap([Packet(0, bytes(100))] * count)), "x", 0)
    for _ in file:
        assert file.compiled == compiled


def test_the_callers_file_stays_open():
    content = io.BytesIO(pcap([Packet(0, b"a")]))
    list(CaptureFile(content, "x", 0))
    assert not content.closed


valid = st.sampled_from([
    pcap([Packet(i * 1000, bytes([i]) * i * 9, 100) for i in range(9)], order) for order in "<>"
] + [
    section(order)
    + interface(1, order, resolution=r)
    + b"".join(enhanced(Packet(0, bytes(20)), i << 29, order) for i in range(6))
    + block(99, b"abcd", order)
    + section(order)
    for order in "<>"
    for r in (6, 9, 0x80 | 40, 0xFF)
])  # fmt: skip


@st.composite
def damaged(draw) -> bytes:
    """Captures with some bytes, or 32-bit fields, changed; cut; or put together from chunks."""
    content = bytearray(draw(valid))
    for _ in range(draw(st.integers(0, 5))):
        at = draw(st.integers(0, len(content) - 4))
        value = draw(
            st.sampled_from([0, 1, 12, 28, 2**31 - 4, 2**31, 2**32 - 4, 2**32 - 1]) | st.integers(0, 2**32 - 1)
        )
        content[at : at + 4] = struct.pack(draw(orders) + "I", value)
    content = content[: draw(st.integers(0, len(content)))] if draw(st.booleans()) else content
    return bytes(content) + draw(st.binary(max_size=40))


@pytest.mark.compiled
@given(content=damaged() | st.binary(max_size=200), batch_bytes=batch_sizes)
def test_hostile_bytes_never_crash_and_mean_the_same_in_both_modes(content, batch_bytes):
    outcomes = []
    for compiled, size in ((False, batch_bytes), (True, batch_bytes), (False, 1 << 16)):
        try:
            found, file = batches(content, compiled, size)
        except CaptureError as error:
            outcomes.append(str(error))
        else:
            for batch in found:
                assert (batch.offset >= 0).all()
                assert (batch.caplen >= 0).all()
                assert (batch.offset + batch.caplen <= batch.used).all()
            outcomes.append((rows(found), file.info))
    assert outcomes[0] == outcomes[1] == outcomes[2]


def microseconds(time: float | Decimal) -> int:
    """dpkt has floats for microseconds and decimals for nanoseconds."""
    return int(time * 10**6) if isinstance(time, Decimal) else round(time * 10**6)


@pytest.mark.compiled
@pytest.mark.parametrize("path", sorted(CAPTURES.glob("*.pcap")), ids=lambda path: path.name)
def test_recorded_captures_against_dpkt(path):
    with path.open("rb") as file:
        wanted = [(microseconds(t), data) for t, data in dpkt.pcap.Reader(file)]
    found = rows(list(CaptureFile(str(path), path.name, 0, batch_bytes=50_000)))
    assert [(t // 1000, data) for _, t, data, _, _ in found] == wanted
