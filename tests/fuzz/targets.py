"""What is fuzzed: functions from bytes to what came of them, which must be the same however the kernels run.

Each target makes something of any bytes, holds what comes out to its rules, and returns it for comparison.
"""

import functools
import io
import json
import struct
import zlib
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import numpy as np

from amqpscope import spec
from amqpscope.dissector.capture.file import CaptureError, CaptureFile
from amqpscope.dissector.capture.model import PacketBatch
from amqpscope.dissector.dissector import Dissector
from amqpscope.dissector.fields import tables as fieldtable
from amqpscope.dissector.fields.decoding import decode
from amqpscope.dissector.fields.headers import Headers
from amqpscope.dissector.fields.plan import Plan
from amqpscope.dissector.kernels import kernel, retained
from amqpscope.dissector.kernels.arrays import Bytes, Ints
from amqpscope.dissector.packets.decoder import PacketDecoder
from amqpscope.dissector.packets.fragments import Fragment, Fragments
from amqpscope.dissector.protocols.amqp100 import sections, values
from amqpscope.dissector.tls import certificates, keylog, messages
from tests.dissector.builders import Packet, ethernet, ipv4, ipv6, pcap, tcp
from tests.dissector.wire import ACK, CLIENT, PSH, T0, handshake, opening

Target = Callable[[bytes, bool], Any]

LINKS = (1, 101, 0, 9, 12, 14, 50, 51, 104, 105, 108, 113, 117, 127, 192, 219, 228, 229, 239, 258, 276, 65535)
CODES = frozenset(spec.anomalies())


def captures(data: bytes, compiled: bool) -> Any:
    """A whole file, read in batches of two sizes."""
    found = []
    for batch_bytes in (128, 1 << 14):
        file = CaptureFile(io.BytesIO(data), "fuzz", 0, batch_bytes=batch_bytes, spare=64, compiled=compiled)
        try:
            rows = [row for batch in file for row in _packets(batch)]
        except CaptureError as error:
            assert "\n" not in str(error)
            rows = [str(error)]
        assert all(problem.code in CODES for problem in file.info.problems)
        info = file.info
        found.append((rows, info.problems, info.counts, info.size, info.secrets, info.dropped, info.interfaces))
    assert found[0] == found[1]
    return found[0]


def _packets(batch: PacketBatch) -> Iterator[Any]:
    for at, caplen, *rest in zip(
        *(c.tolist() for c in (batch.offset, batch.caplen, batch.length, batch.ts_ns, batch.packet, batch.link)),
        strict=True,
    ):
        assert 0 <= at <= at + caplen <= batch.used <= len(batch.data)
        yield bytes(batch.data[at : at + caplen]), *rest


def packets(data: bytes, compiled: bool) -> Any:
    """Packets of one link type: the first byte names it; before each its length, and how many bytes were cut off."""
    link, at, given = LINKS[data[0] % len(LINKS)] if data else 1, 1, []
    while at + 2 <= len(data) and len(given) < 16:
        size, cut = data[at], data[at + 1]
        content = data[at + 2 : at + 2 + size]
        given.append(Packet(len(given) << (cut % 40), content, len(content) + (cut if cut < 200 else cut << 24)))
        at += 2 + size
    found = []
    for batch_bytes in (100, 1 << 14):
        decoder, rows, problems, counted = PacketDecoder(), [], [], 0
        for batch in CaptureFile(
            io.BytesIO(pcap(given, link=link)), "fuzz", 0, batch_bytes=batch_bytes, spare=64, compiled=compiled
        ):
            segments, report = decoder.segments(batch, compiled)
            for i, offset, caplen, length, seq, sport in zip(
                *(getattr(segments, name).tolist() for name in ("row", "offset", "caplen", "length", "seq", "sport")),
                strict=True,
            ):
                assert 0 <= offset <= offset + caplen <= batch.used <= len(batch.data)
                assert 0 <= caplen <= length and 0 <= seq < 1 << 32
                rows.append((int(batch.packet[i]), bytes(batch.data[offset : offset + caplen]), length, seq, sport))
            problems += report.problems
            lost = {p.packet for p in report.problems} - {int(n) for n in segments.packet}
            counted += report.tcp + report.other + report.parts
            assert report.packets - report.tcp - report.other - report.parts <= len(lost)
        found.append((rows, problems, decoder.finish()))
    assert found[0] == found[1]
    return found[0]


def fragments(data: bytes, compiled: bool) -> Any:
    """Fragments, five bytes each: identification, begin, size, flags, bytes lost; held to a slow model of them."""
    known, model, made = Fragments(), _Model(), []
    for at in range(0, len(data) - 4, 5):
        ident, begin, size, flags, cut = data[at : at + 5]
        size = (size % 32 + 1) * 8
        content = bytes([flags >> 4]) * max(size - cut % 64 * (flags & 2), 0)
        more, version = bool(flags & 1), 4 if ident % 2 else 6
        fragment = Fragment(version, bytes(8), 6, ident % 6, begin % 32 * 8, begin % 32 * 8 + size, more, content)
        whole = known.add(fragment, 0, at)
        assert (whole and (whole.data[-len(whole.data) :], whole.size)) == model.add(fragment)
        if whole:
            assert sum(count for _, count in whole.runs) == len(whole.data)
            assert all(a + n < b for (a, n), (b, _) in zip(whole.runs, whole.runs[1:], strict=False))
            made.append(whole)
    return made, known.problems, known.finish()


class _Model:
    """Fragments byte by byte."""

    def __init__(self) -> None:
        self.packets: dict[Any, list[Fragment]] = {}
        self.complete: dict[Any, list[Fragment]] = {}
        self.bad: set[Any] = set()

    def add(self, new: Fragment) -> tuple[bytes, int] | None:
        key = new.key
        if key in self.complete:
            if any(self._copy(old, new) for old in self.complete[key]):
                return None
            del self.complete[key]
        if key in self.bad:
            return None
        fragments = self.packets.setdefault(key, [])
        if any(self._copy(old, new) for old in fragments):
            return None
        lasts = {fragment.end for fragment in [*fragments, new] if not fragment.more}
        places = [set(range(fragment.begin, fragment.end, 8)) for fragment in [*fragments, new]]
        if len(set().union(*places)) != sum(map(len, places)) or len(lasts) > 1 or (
            lasts and max(fragment.end for fragment in [*fragments, new]) > max(lasts)
        ):  # fmt: skip
            self.bad.add(key)
            del self.packets[key]
            return None
        fragments.append(new)
        if not lasts or sum(fragment.end - fragment.begin for fragment in fragments) != max(lasts):
            return None
        self.complete[key] = self.packets.pop(key)
        ordered = sorted(fragments, key=lambda fragment: fragment.begin)
        size = max(lasts)
        build = ipv4 if new.version == 4 else ipv6
        header = len(build(b"")) if new.version == 4 else 8 + len(new.addresses)
        start = bytes(0)
        if new.version == 4:
            start = struct.pack(">BBHHHBBH", 0x45, 0, 20 + size, 0, 0, 0, 6, 0) + new.addresses
        else:
            start = struct.pack(">IHBB", 0x60000000, size, 6, 0) + new.addresses
        assert len(start) == header
        return start + b"".join(fragment.data for fragment in ordered), header + size

    @staticmethod
    def _copy(old: Fragment, new: Fragment) -> bool:
        common = min(len(old.data), len(new.data))
        same = (old.begin, old.end, old.more) == (new.begin, new.end, new.more)
        return same and old.data[:common] == new.data[:common]


BEGIN = handshake() + opening(1)


def segments(data: bytes, compiled: bool) -> Any:
    """A connection: before each segment its side and flags, what is skipped or sent again, and its length."""
    given, nexts, at = [], [1000, 2000], 1
    settled = bool(data) and data[0] & 1
    if not data or not data[0] & 2:
        for side in (0, 1):
            given.append(_segment(given, side, b"", nexts, 0x02 if side == CLIENT else 0x12))
            nexts[side] += 1
    if settled:
        for side, content in BEGIN:
            given.append(_segment(given, side, content, nexts, PSH | ACK))
            nexts[side] += len(content)
    while at + 3 <= len(data) and len(given) < 60:
        how, move, size = data[at : at + 3]
        side, content = how & 1, data[at + 3 : at + 3 + size]
        nexts[side] = (nexts[side] + (move - 256 if move > 200 else move if move > 100 else 0)) % 2**32
        flags = ACK | (how >> 1 & 0x07 if how & 0x80 else 0)
        packet = _segment(given, side, content, nexts, flags)
        if how & 0x40:
            packet = Packet(packet.ts_ns, packet.data[: 60 + size // 2], len(packet.data))
        given.append(packet)
        nexts[side] = (nexts[side] + len(content)) % 2**32
        at += 3 + size
    return _dissected(given, compiled, not REUSED or zlib.crc32(data) % MAKE_ROWS == 0)


def _segment(given: list[Packet], side: int, data: bytes, nexts: list[int], flags: int) -> Packet:
    ends = (40000, 5672) if side == CLIENT else (5672, 40000)
    hosts = ("10.0.0.1", "10.0.0.2") if side == CLIENT else ("10.0.0.2", "10.0.0.1")
    whole = ethernet(ipv4(tcp(data, *ends, nexts[side], nexts[1 - side], flags), *hosts))
    return Packet(T0 + len(given) * 1000, whole)


REUSED: list[Dissector] = []
"""While fuzzing, a dissector that has finished one input takes the next: to make one takes longer than to use it."""


MAKE_ROWS = 4
"""One input in so many has its rows made while fuzzing; that takes longer than all else."""


def reuse() -> None:
    """Be quick: one dissector, and the moving of bytes compiled, which goes through all room there is."""
    retained.call = lambda function, compiled, *arguments: kernel.call(function, True, *arguments)
    REUSED.append(_dissector(False))


def _dissector(compiled: bool) -> Dissector:
    if REUSED:
        dissector = REUSED[0]
        dissector.tcp, dissector.packets, dissector.over = type(dissector.tcp)(compiled), PacketDecoder(), False
        dissector.reports.clear()
        return dissector
    dissector = Dissector(None, compiled)
    dissector.captures.append("fuzz")
    return dissector


def _dissected(given: list[Packet], compiled: bool, rows_wanted: bool) -> Any:
    dissector = _dissector(compiled)
    made: dict[str, list[Any]] = {}
    file = CaptureFile(io.BytesIO(pcap(given, ns=True)), "fuzz", 0, batch_bytes=1 << 14, compiled=compiled)

    def rows() -> Iterator[Any]:
        for work in chain(chain.from_iterable(map(dissector.work, file)), dissector.last_work()):
            if rows_wanted:
                yield from work()

    for table, batch in rows():
        batch.validate(full=True)
        wanted = batch
        if REUSED and table != "anomalies":
            wanted = batch.select([n for n in ("connection_id", "frame_no") if n in batch.schema.names])
        made.setdefault(table, []).extend(wanted.to_pylist())
    assert {row["code"] for row in made.get("anomalies", [])} <= CODES
    for table, found in made.items():
        if table.endswith("_frames"):
            numbers = [(row["connection_id"], row["frame_no"]) for row in found]
            assert len(numbers) == len(set(numbers))
    return made


def _columns(data: bytes) -> tuple[Bytes, Ints, Ints]:
    """Chunks of the bytes, cut where the first bytes say."""
    cuts = [0, *sorted(byte % max(len(data), 1) for byte in data[:2]), len(data)]
    at = np.array(cuts[:-1], np.int64)
    # After them lies other data, as in a capture.
    return np.frombuffer(data + b"\xff" * 8, np.uint8).copy(), at, np.array(cuts[1:], np.int64) - at


def tables(data: bytes, compiled: bool) -> Any:
    """Field tables to JSON."""
    content, at, size = _columns(data)
    made = fieldtable.render(content, at, size, compiled)
    return *_json(made.data, made.sizes), made.problems.tolist(), made.trace.tolist()


def maps(data: bytes, compiled: bool) -> Any:
    """Maps of AMQP 1.0 to JSON."""
    content, at, size = _columns(data)
    made = values.render(content, at, size, compiled)
    return *_json(made.data, made.sizes), made.problems.tolist(), made.trace.tolist()


def _json(data: Bytes, sizes: Ints) -> list[str]:
    """Each is JSON."""
    text, ends = data.tobytes(), np.cumsum(sizes).tolist()
    assert ends[-1] == len(text)
    found = [text[end - size : end].decode() for end, size in zip(ends, sizes.tolist(), strict=True)]
    assert all(isinstance(json.loads(each), dict) for each in found)
    return found


def records(data: bytes, compiled: bool) -> Any:
    """Messages of AMQP 1.0 in columns; the last bytes of one may be missing."""
    content, at, size = _columns(data)
    missing = np.array([0, data[0] % 3 if data else 0, 0], np.int64)
    made = sections.read(content, at, size, missing, compiled)
    for column in made.columns.values():
        column.validate(full=True)
    columns = {name: column.to_pylist() for name, column in made.columns.items()}
    return columns, made.body.tolist(), made.problems.tolist()


@functools.cache
def _packed() -> tuple[Plan, Headers]:
    protocol = spec.load("amqp-0-10")
    return Plan.of_methods(protocol), Headers(protocol)


def operations(data: bytes, compiled: bool) -> Any:
    """Of AMQP 0-10 a control or command, by the first byte, and a header segment; cut by a gap by the second."""
    if len(data) < 2:
        return None
    plan, headers = _packed()
    content = np.frombuffer(data, np.uint8).copy()
    offset, length = np.array([2], np.int64), np.array([len(data) - 2], np.int64)
    program, cut = np.array([data[0] % len(plan.uses)], np.int64), np.array([data[1] & 1], np.uint8)
    found = []
    for made in (
        decode(plan, content, offset, length, program, cut, compiled),
        headers.decode(content, offset, length, cut, compiled),
    ):
        row = {name: column[0].as_py() for name, column in made.columns.items() if column.null_count == 0}
        for name in row.keys() & {"arguments", "commands", "transfers", "value", "xid", "locales", "headers"}:
            json.loads(row[name])
        found.append((row, made.problem_code.tolist(), made.problem_at.tolist()))
    return found


def handshakes(data: bytes, compiled: bool) -> Any:
    """What TLS says in the clear, and key logs; the first byte says which."""
    readers: tuple[Callable[[bytes], Any], ...] = (
        messages.client_hello,
        messages.server_hello,
        messages.encrypted_extensions,
        lambda body: messages.certificates(body, 0x0303),
        lambda body: messages.certificates(body, 0x0304),
        certificates.read,
        keylog.KeyLog().add,
    )
    try:
        return readers[data[0] % len(readers)](data[1:]) if data else None
    except messages.MalformedError:
        return "malformed"


TARGETS: dict[str, Target] = {
    "captures": captures, "packets": packets, "fragments": fragments, "segments": segments, "tables": tables,
    "maps": maps, "records": records, "operations": operations, "handshakes": handshakes,
}  # fmt: skip
