"""Files that were concatenated: what follows a further file header is read by it."""

import bz2
import gzip
import io
import lzma
import struct
from collections.abc import Callable
from functools import partial
from itertools import pairwise, permutations, product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from amqpscope.dissector.capture import pcapng as reader
from amqpscope.dissector.capture.file import CaptureFile
from amqpscope.dissector.capture.sources import named
from amqpscope.dissector.parallel.arrangement import chains, surveyed
from tests.dissector.builders import Packet, block, pcap, pcapng, sll
from tests.dissector.parts import here
from tests.dissector.runs import BOTH, Row, dissect, rows
from tests.dissector.wire import Tape, publish, session

SESSION = Tape().play(session()).end().packets
FORMATS = [{"order": order, "ns": ns} for order, ns in product("<>", (False, True))]


def found(path: Path, **how: Any) -> dict[str, list[Row]]:
    tables = dissect(path, **how)
    return {
        name: rows(tables[name], "capture", "first_capture", "last_capture", "vantage")
        for name in ("amqp091_frames", "messages", "connections")
    }


def cooked(packets: list[Packet]) -> list[Packet]:
    """The same packets with the link layer of cooked captures."""
    return [Packet(packet.ts_ns, sll(packet.data[14:])) for packet in packets]


@BOTH
@pytest.mark.parametrize("formats", list(product(FORMATS, FORMATS)))
def test_concatenated_captures_are_read_to_the_end(formats: Any, compiled: bool, tmp_path: Path) -> None:
    whole, both = tmp_path / "whole.pcap", tmp_path / "both.pcap"
    whole.write_bytes(pcap(SESSION))
    one, two = formats
    both.write_bytes(pcap(SESSION[:15], **one) + pcap(SESSION[15:], **two))
    assert found(both, compiled=compiled) == found(whole)


@pytest.mark.parametrize("cut", [1, 7, 15, 16, 20, 23])
def test_a_header_inside_which_the_file_ends_loses_nothing_before_it(cut: int, tmp_path: Path) -> None:
    whole, torn = tmp_path / "whole.pcap", tmp_path / "torn.pcap"
    whole.write_bytes(pcap(SESSION))
    torn.write_bytes(pcap(SESSION) + pcap(SESSION)[:cut])
    assert found(torn) == found(whole)


@pytest.mark.parametrize("places", [(10,), (3, 20), (1, 2, 3)])
def test_each_header_has_its_link_type(places: tuple[int, ...], tmp_path: Path) -> None:
    whole, many = tmp_path / "whole.pcap", tmp_path / "many.pcap"
    whole.write_bytes(pcap(SESSION))
    edges = [0, *places, len(SESSION)]
    parts = [SESSION[a:b] for a, b in pairwise(edges)]
    many.write_bytes(b"".join(pcap(cooked(part), link=113) if n % 2 else pcap(part) for n, part in enumerate(parts)))
    assert found(many) == found(whole)


PCAPNG = [partial(pcapng, order="<"), partial(pcapng, order=">")]
MIXED = [pair for one in FORMATS for two in PCAPNG for pair in permutations((partial(pcap, **one), two))]
COMPRESSED: dict[str, Callable[[bytes], bytes]] = {
    "plain": bytes, "gzip": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress,
    "zstd": lambda data: pa.compress(data, "zstd", asbytes=True),
    "lz4": lambda data: pa.compress(data, "lz4", asbytes=True),
}  # fmt: skip


@pytest.mark.sampled(3)
@BOTH
@pytest.mark.parametrize("formats", MIXED)
def test_a_capture_of_the_other_format_may_follow(formats: Any, compiled: bool, tmp_path: Path) -> None:
    whole, both = tmp_path / "whole.pcap", tmp_path / "both"
    whole.write_bytes(pcap(SESSION))
    one, two = formats
    for batch_bytes in (1 << 20, 200):
        both.write_bytes(one(SESSION[:15]) + two(SESSION[15:]))
        assert found(both, compiled=compiled, batch_bytes=batch_bytes) == found(whole)
        both.write_bytes(one(SESSION[:5]) + two(SESSION[5:15]) + two([]) + one(SESSION[15:]))
        assert found(both, compiled=compiled, batch_bytes=batch_bytes) == found(whole)


@pytest.mark.parametrize("compression", COMPRESSED)
@pytest.mark.parametrize("formats", MIXED[:2])
def test_captures_of_both_formats_may_be_compressed(formats: Any, compression: str, tmp_path: Path) -> None:
    whole, both = tmp_path / "whole.pcap", tmp_path / "both"
    whole.write_bytes(pcap(SESSION))
    one, two = formats
    parts = (one(SESSION[:15]), two(SESSION[15:]))
    both.write_bytes(b"".join(map(COMPRESSED[compression], parts)))
    assert found(both) == found(whole)
    both.write_bytes(COMPRESSED[compression](b"".join(parts)))
    assert found(both) == found(whole)


@pytest.mark.parametrize("cut", [1, 8, 13, 27])
@pytest.mark.parametrize("formats", MIXED[:2])
def test_the_other_header_inside_which_the_file_ends_loses_nothing_before_it(
    formats: Any, cut: int, tmp_path: Path
) -> None:
    whole, torn = tmp_path / "whole.pcap", tmp_path / "torn"
    whole.write_bytes(pcap(SESSION))
    one, two = formats
    torn.write_bytes(one(SESSION) + two(SESSION)[:cut])
    assert found(torn) == found(whole)


@pytest.mark.parametrize("formats", MIXED[:2])
def test_what_holds_a_capture_of_the_other_format_is_a_packet(formats: Any, tmp_path: Path) -> None:
    one, two = formats
    inner = two(SESSION)
    tape = Tape().play([*session(), (0, b"".join(publish(inner, largest=1 << 17)))]).end()
    whole, again = tmp_path / "whole.pcap", tmp_path / "again"
    whole.write_bytes(pcap(tape.packets))
    again.write_bytes(one(tape.packets))
    assert found(again) == found(whole)


@pytest.mark.parametrize("formats", MIXED[:2])
def test_ranges_of_a_capture_with_both_formats(formats: Any, tmp_path: Path) -> None:
    one, two = formats
    many = [Packet(packet.ts_ns + n, packet.data) for n, packet in enumerate(SESSION * 40)]
    both = tmp_path / "both"
    both.write_bytes(one(many[:900]) + two(many[900:]))
    expected = [(number, ts) for number, ts in enumerate((packet.ts_ns // 1000 for packet in many), 1)]
    for size in (1 << 13, 1 << 15):
        chain_of = chains(surveyed(named([str(both)]), here, size))
        read = [
            (int(number), int(ts) // 1000)
            for chain in chain_of for source, capture, _, part in chain
            for batch in CaptureFile(source.path, source.given, capture, compiled=False, part=part)
            for number, ts in zip(batch.packet, batch.ts_ns, strict=True)
        ]  # fmt: skip
        assert read == expected


def test_secrets_of_all_parts_have_one_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MAX_SECRETS", 1 << 16)
    section = block(0x0A0D0D0A, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1))
    secrets = block(0xA, struct.pack("<II", 0x544C534B, 60_000) + b"x" * 60_000)
    file = CaptureFile(io.BytesIO((section + secrets + pcap([])) * 30), "many.pcapng", 0, compiled=False)
    list(file)
    assert sum(map(len, file.info.secrets)) == 60_000
    assert file.info.counts == {"limit-reached": 29}
