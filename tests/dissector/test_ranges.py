"""Big captures in ranges: packets, and what is reported of captures, are those of one pass, however files are split."""

import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from amqpscope.dissector.capture import frames
from amqpscope.dissector.capture.file import CaptureFile
from amqpscope.dissector.capture.ranges import first_record, trial
from amqpscope.dissector.capture.sources import named
from amqpscope.dissector.dissector import Options
from amqpscope.dissector.parallel import archive
from amqpscope.dissector.parallel.arrangement import RANGE, chains, surveyed
from amqpscope.dissector.parallel.survey import Survey
from tests.dissector import builders
from tests.dissector.batches import rows
from tests.dissector.builders import Packet, ethernet, fragments, ipv4, pcap, tcp
from tests.dissector.parts import at_once, here, in_parts, options_of
from tests.dissector.runs import CAPTURES, FOLDER, recorded
from tests.dissector.wire import T0
from tests.thorough import examples

MILLISECOND = 1_000_000
FILES = [path for path in CAPTURES if path.is_file()]


def read(path: Path, size: int) -> tuple[list[Any], list[Any], tuple[Survey, ...]]:
    """The packets and secrets of a capture in ranges of this size, the rows about it, and its ranges."""
    surveys = surveyed(named([str(path)]), here, size)
    read = chains(surveys)
    packets: list[Any] = []
    for source, capture, _, part in (each for chain in read for each in chain):
        for batch in CaptureFile(source.path, source.given, capture, batch_bytes=1 << 14, compiled=False, part=part):
            packets += [*batch.secrets, *rows([batch])]
    known = archive.archive(surveys, read, Options())
    about = [(table, row) for table, found in archive.rows_of_captures(surveys, known) for row in found.to_pylist()]
    return packets, sorted(about, key=str), surveys[0].parts


def compare(path: Path, size: int) -> tuple[Survey, ...]:
    """Compare reading in ranges with reading at once; return the ranges."""
    packets, about, parts = read(path, size)
    assert (packets, about) == read(path, RANGE)[:2]
    return parts


@pytest.mark.sampled(9)
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_recordings(path: Path) -> None:
    size = max(path.stat().st_size // 20, 800 + zlib.crc32(path.name.encode()) % 700)
    parts = compare(path, size)
    assert parts or path.stat().st_size < 2 * size


@pytest.mark.parametrize("name", ["seen_twice.pcapng", "tls_secrets.pcapng", "lossy_link.pcap", "port_reused.pcap"])
def test_rows_are_those_of_one_pass(name: str) -> None:
    path, options = FOLDER / name, options_of(FOLDER / name)
    assert in_parts([str(path)], options, 2, 1500) == at_once([str(path)], options)


def hidden(count: int, payload: int) -> list[Packet]:
    """Packets whose bodies hold a capture: each record of it spans the head of the packet after."""
    packets = []
    for number in range(count):
        inner = struct.pack("<IIII", T0 // 10**9, 0, payload + 54, payload + 54)
        body = inner + bytes(payload - 16)
        packets.append(Packet(T0 + number * MILLISECOND, ethernet(ipv4(tcp(body, seq=1 + number * payload)))))
    return packets


def test_captures_in_bodies_mislead_trials_alone(tmp_path: Path) -> None:
    """Some trials find records of the captures in bodies, which go on from packet to packet."""
    path = tmp_path / "outer.pcap"
    path.write_bytes(pcap(hidden(80, 200)))
    parts = [each.part for each in compare(path, 1000) if each.part]
    assert len(parts) > 10
    wrong = [part for part in parts if trial(str(path), path.name, part) != part.skip]
    assert 0 < len(wrong) < len(parts) / 2


def test_captures_with_much_state_are_read_as_one(tmp_path: Path) -> None:
    """Each range would have to know all of it."""
    path = tmp_path / "secrets.pcapng"
    secret = builders.secrets(b"CLIENT_RANDOM 00 11\n" * 10_000)
    packet = builders.enhanced(Packet(T0, bytes(100)), T0 // 1000)
    path.write_bytes(builders.section() + builders.interface(1) + (packet + secret) * 6)
    assert not compare(path, 300_000)


STATES = st.sampled_from(
    [
        builders.interface(1, name="more"),
        builders.interface(1, resolution=9),
        builders.section() + builders.interface(113) + builders.interface(1),
        builders.section(),
        builders.statistics(0, 3),
        builders.statistics(1, 5, 1),
        builders.secrets(b"CLIENT_RANDOM 00 11\n"),
        builders.names(),
        builders.block(0x0BAD, b"of somebody else"),
    ]
)
PACKET = Packet(T0, ethernet(ipv4(tcp(b"x" * 30))))
PACKETS = st.builds(
    lambda write, interface, more: write(Packet(T0, PACKET.data, -1, interface), T0 // 1000 + more),
    st.sampled_from([builders.enhanced, builders.obsolete, lambda packet, _: builders.simple(packet)]),
    st.integers(0, 2),
    st.integers(-2000, 2000),
)


@pytest.mark.parametrize("microseconds", [(1 << 62) // 1000 + 1, (1 << 63) // 1000 - 1])
def test_times_of_another_century(microseconds: int, tmp_path: Path) -> None:
    """Times that only damage or malice writes are read to their end as well."""
    path = tmp_path / "x.pcapng"
    content = builders.section() + builders.interface(1)
    path.write_bytes(content + builders.enhanced(PACKET, T0 // 1000) + builders.enhanced(PACKET, microseconds))
    compare(path, 300)


@settings(
    max_examples=examples(20),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    deadline=None,
)
@given(
    blocks=st.lists(st.one_of(STATES, PACKETS, PACKETS), min_size=8, max_size=40),
    size=st.integers(100, 1500),
    lost=st.integers(0, 30),
    damage=st.integers(0, 20_000),
)
def test_sections_interfaces_and_damage(blocks: list[bytes], size: int, lost: int, damage: int, tmp_path: Path) -> None:
    content = bytearray(builders.section() + builders.interface(1) + b"".join(blocks))
    del content[len(content) - lost :]
    if 100 < damage < len(content):
        content[damage] ^= 0xFF
    path = tmp_path / "x.pcapng"
    path.write_bytes(content)
    compare(path, size)


@settings(
    max_examples=examples(20),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    deadline=None,
)
@given(
    sizes=st.lists(st.integers(0, 300) | st.integers(2000, 4000), min_size=5, max_size=40),
    size=st.integers(200, 1500),
    lost=st.integers(0, 30),
    order=st.sampled_from("<>"),
    steps=st.integers(-3, 3),
)
def test_records_of_any_length(sizes: list[int], size: int, lost: int, order: str, steps: int, tmp_path: Path) -> None:
    """Also longer than a range, and in a file that ends in the middle; times may run backwards."""
    packets = [Packet(T0 + number * steps, bytes([number]) * size) for number, size in enumerate(sizes)]
    content = pcap(packets, order, ns=True)
    path = tmp_path / "x.pcap"
    path.write_bytes(content[: len(content) - lost])
    compare(path, size)


def test_fragments_in_several_ranges(tmp_path: Path) -> None:
    packets, _ = recorded("pika_confirms.pcap")
    parts: list[Packet] = []
    for number, packet in enumerate(packets[:60]):
        ip = packet.data[14 : 14 + int.from_bytes(packet.data[16:18])]
        frames = fragments(ip, [2], ident=number) if number % 9 == 0 else [ip]
        parts += [Packet(packet.ts_ns, ethernet(part)) for part in frames]
    path = tmp_path / "fragments.pcap"
    path.write_bytes(pcap(parts, ns=True))
    assert in_parts([str(path)], Options(), 2, 500) == at_once([str(path)], Options())


def bgzf(content: bytes, length: int, level: int = 6) -> bytes:
    """Blocks of BGZF, by the SAM specification, with the empty one at the end."""
    written = b""
    for at in (*range(0, len(content), length), len(content)):
        data = content[at : at + length]
        packer = zlib.compressobj(level, zlib.DEFLATED, -15)
        packed = packer.compress(data) + packer.flush()
        head = struct.pack("<4s6xH2sHH", b"\x1f\x8b\x08\x04", 6, b"BC", 2, len(packed) + 25)
        written += head + packed + struct.pack("<II", zlib.crc32(data), len(data))
    return written


def zstd(content: bytes, length: int) -> list[bytes]:
    """Frames of Zstandard."""
    chunks = [content[at : at + length] for at in range(0, len(content), length)]
    return [pa.compress(chunk, codec="zstd", asbytes=True) for chunk in chunks]


def with_table(frames: Sequence[bytes], lengths: Sequence[int]) -> bytes:
    """Frames in the seekable format, whose table says that they have these lengths."""
    entries = b"".join(struct.pack("<II", length, 0) for length in lengths)
    foot = struct.pack("<IBI", len(lengths), 0, 0x8F92EAB1)
    return b"".join(frames) + struct.pack("<II", 0x184D2A5E, len(entries) + len(foot)) + entries + foot


CONTENT = (FOLDER / "stream_super.pcap").read_bytes()
SKIPPED = struct.pack("<II", 0x184D2A50, 100) + bytes(100)


@pytest.mark.parametrize("kind", ["bgzf", "zstd", "skipped", "seekable"])
def test_compressed(kind: str, tmp_path: Path) -> None:
    packed = zstd(CONTENT, 3000)
    content = {
        "bgzf": bgzf(CONTENT, 2000),
        "zstd": b"".join(packed),
        "skipped": SKIPPED.join(packed),
        "seekable": with_table(packed, [len(each) for each in packed]),
    }[kind]
    path = tmp_path / "x.pcap.z"
    path.write_bytes(content)
    assert len(compare(path, 2000)) > 3


@pytest.mark.parametrize("kind", ["stored", "lying", "cut", "damaged", "one", "gzip"])
def test_compressed_that_cannot_be_split(kind: str, tmp_path: Path) -> None:
    noise = np.random.default_rng(1).bytes(300_000)
    packed = zstd(pcap([Packet(T0 + at, noise[at : at + 1000]) for at in range(0, len(noise), 1000)]), 20_000)
    lying = [len(each) - 7 * (not number) for number, each in enumerate(packed)]
    whole = b"".join(packed)
    inner = [Packet(T0 + number, bgzf(CONTENT[:1500], 150)) for number in range(40)]
    content = {
        "stored": bgzf(pcap(inner), 15_000, level=0),
        "lying": with_table(packed, lying),
        "cut": whole[:-40],
        "damaged": whole[:200_000] + whole[200_100:],
        "one": zstd(CONTENT, len(CONTENT))[0],
        "gzip": bgzf(CONTENT, 2000).replace(b"BC", b"XY"),
    }[kind]
    path = tmp_path / "x.pcap.z"
    path.write_bytes(content)
    assert not compare(path, 30_000)


@given(content=st.binary(max_size=300) | st.binary(max_size=40).map(lambda some: b"\x28\xb5\x2f\xfd" + some))
def test_headers_of_frames_may_be_anything(content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "frames"
    path.write_bytes(content)
    for compression in ("zstd", "gzip"):
        found = frames.begins(str(path), len(content), compression, 10)
        assert found[0] == 0 and all(0 <= at < len(content) for at in found[1:])


def test_a_trial_looks_at_each_record_once() -> None:
    """Bodies of many small records that end nowhere would otherwise take the square of their number."""
    lengths = np.ones(1 << 20, np.int64)
    lengths[-1::-100_000] = 0
    assert first_record(lengths, None) is None


@pytest.mark.parametrize("formats", [("<", "<"), ("<", ">"), (">", "<", ">")])
@pytest.mark.parametrize("size", [1000, 5000, 20000])
def test_concatenated_captures(formats: tuple[str, ...], size: int, tmp_path: Path) -> None:
    path = tmp_path / "all.pcap"
    path.write_bytes(b"".join(pcap(hidden(60, 200), order, ns=order == ">") for order in formats))
    compare(path, size)
