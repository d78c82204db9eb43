"""Where fuzzing begins: well-formed inputs of every target, most of them built by hand, some out of recordings."""

import struct
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from tests.dissector.amqp010 import wire as amqp010
from tests.dissector.amqp010.wire import PROTOCOL, arguments, header
from tests.dissector.amqp100 import wire as w
from tests.dissector.builders import (
    Packet,
    block,
    enhanced,
    ethernet,
    fragments,
    interface,
    ipv4,
    ipv6,
    obsolete,
    option,
    pcap,
    pcapng,
    secrets,
    section,
    simple,
    statistics,
    tcp,
)  # fmt: skip
from tests.dissector.letters import LETTERS
from tests.dissector.links import LINKS as KNOWN
from tests.dissector.runs import CAPTURES, FOLDER, SETS, recorded
from tests.dissector.wire import CLIENT, SERVER, session
from tests.fuzz.targets import LINKS

RECORDED = 24
"""Segments of each recording that become a seed."""


def seeds(target: str) -> list[bytes]:
    """The seeds of a target."""
    return list(_SEEDS[target]())


def _captures() -> Iterator[bytes]:
    given = [Packet(i * 1000, ethernet(ipv4(tcp(b"x" * i))), 100) for i in range(3)]
    for order in "<>":
        for ns, modified in ((False, False), (True, False), (False, True)):
            yield pcap(given, order, ns=ns, modified=modified)
        yield pcapng(given, order)
        for resolution in (0, 6, 9, 18, 0x80, 0x80 | 30, 0x80 | 62, 0xFF):
            head = section(order) + interface(1, order, resolution=resolution, offset_s=-5, snap_length=9, name="e")
            yield head + enhanced(given[0], 1 << 62, order) + simple(given[0], order) + obsolete(given[1], 7, order)
        content = section(order) + secrets(b"CLIENT_RANDOM", order) + interface(1, order) + statistics(0, 5, 6, order)
        content += enhanced(given[1], 5, order, option(1, b"comment", order)) + secrets(b"x", order)
        yield content + enhanced(given[2], 5, order) + block(99, b"abcd", order) + section(order) + interface(0, order)
    for length in (2**31 - 4, 2**31, 2**32 - 4, 2**32 - 1, 16 << 20, 17 << 20):
        yield pcap(given[:1]) + struct.pack("<IIII", 1, 1, length, length) + b"xyz"
        yield section() + struct.pack("<II", 6, length & ~3) + bytes(40)


def _one(data: bytes, cut: int = 0) -> bytes:
    return bytes([len(data), cut]) + data


def _packets() -> Iterator[bytes]:
    for link, wrap in KNOWN.values():
        for ip, kind in (
            (ipv4(tcp(b"four", flags=2, options=b"\2\4\5\xb4\3\3\7")), 0x0800),
            (ipv6(tcp(b"six")), 0x86DD),
        ):
            data = wrap(ip, kind)[:255]
            yield bytes([LINKS.index(link)]) + _one(data) + _one(data[:-3], 3)
    for ip in (ipv4(tcp(b"0123456789" * 5)), ipv6(tcp(b"0123456789" * 5))):
        for places in ([1, 3], [2], [4, 6]):
            parts = fragments(ip, places)
            yield bytes([1]) + b"".join(_one(part) for part in [*parts, *parts[:1]])
            yield bytes([1]) + b"".join(_one(part[:50], max(0, len(part) - 50)) for part in reversed(parts))


def _fragments() -> Iterator[bytes]:
    yield bytes([1, 0, 0, 1, 0, 1, 1, 0, 0, 0])
    yield bytes([2, 2, 1, 0, 0, 2, 0, 1, 0x11, 0, 2, 0, 1, 0x11, 0])
    yield bytes([3, 0, 3, 3, 9, 3, 4, 0, 2, 3, 3, 4, 0, 2, 3, 3, 2, 1, 1, 0])


def _turns(turns: list[tuple[int, bytes]], how: int = 0) -> bytes:
    chunks = [(side, data[at : at + 200]) for side, data in turns for at in range(0, len(data), 200)]
    return bytes([how]) + b"".join(bytes([side, 0, len(data)]) + data for side, data in chunks)


def _segments() -> Iterator[bytes]:
    yield _turns(session())
    yield _turns(session()[6:], 1)
    sent = b"".join(amqp010.transfer(b"body" * 20, largest=60) + amqp010.operation("session.flush", completed=True))
    turns = [*amqp010.opening(), *amqp010.attaching(), (CLIENT, sent), (SERVER, sent)]
    yield _turns(turns)
    yield _turns(turns[8:], 1)
    for number, path in enumerate(CAPTURES):
        if path in SETS or path.suffix != ".pcap" or path.stat().st_size > 1 << 20:
            continue
        packets, link = recorded(path.name)
        skip = {1: 14, 101: 0, 113: 16, 276: 20}.get(link)
        turns = []
        for packet in packets if skip is not None else []:
            ip = packet.data[skip:]
            head = (ip[0] & 15) * 4
            if ip[0] >> 4 == 4 and len(ip) > head + 20:
                payload = ip[head + (ip[head + 12] >> 4) * 4 :]
                if payload:
                    turns.append((int(ip[head : head + 2] > ip[head + 2 : head + 4]) ^ 1, payload))
        yield _turns(turns[8 : 8 + RECORDED], 1) if number % 2 else _turns(turns[:RECORDED])


def _tables() -> Iterator[bytes]:
    table = b"".join(bytes([1, 97 + number % 26]) + data for number, (data, _) in enumerate(LETTERS))
    for at in range(0, len(LETTERS), 4):
        yield b"".join(b"\1k" + data for data, _ in LETTERS[at : at + 4])
    yield table[:300]
    for size in (2**31 - 1, 2**31, 2**32 - 1):
        yield b"\1aS" + struct.pack(">I", size) + b"abc"
        yield b"\1aF" + struct.pack(">I", size) + b"\1b" + b"A" + struct.pack(">I", size)
    nested = b""
    for _ in range(40):
        nested = b"\1aF" + struct.pack(">I", len(nested)) + nested
    yield nested


def _values() -> list[bytes]:
    return [
        w.string("text"), w.string("wide", wide=True), w.symbol("s"), w.binary(b"\0\xff"), w.ulong(2**64 - 1),
        w.uuid("12345678-1234-5678-1234-567812345678"), w.timestamp(-1), w.NULL, w.EMPTY,
        w.listed(w.NULL, w.string("x")), w.mapped(w.symbol("a"), w.mapped(w.string("b"), w.NULL)),
        w.array(0xA1, b"\1a", b"\1b"), b"\x70\x80\0\0\0", b"\x82" + bytes(8), b"\x94" + bytes(16),
    ]  # fmt: skip


def _maps() -> Iterator[bytes]:
    for value in _values():
        yield w.mapped(w.symbol("key"), value)
        yield w.mapped(value, value, wide=True)
    for size in (2**31 - 1, 2**31, 2**32 - 1):
        yield b"\xd1" + struct.pack(">II", size, 2) + w.string("k") + w.string("v")


def _records() -> Iterator[bytes]:
    for value in _values():
        yield w.described(b"\x53\x77", value)
    properties = w.described(b"\x53\x73", w.listed(*_values()[:9]))
    application = w.described(b"\x53\x74", w.mapped(w.string("traceparent"), w.string("00-1-2-3")))
    body = w.described(b"\x53\x75", w.binary(b"body"))
    for parts in ([properties, application, body], [body, body], [application], [properties, properties, body]):
        yield b"".join(parts)


def _operations() -> Iterator[bytes]:
    methods = [m.full_name for m in PROTOCOL.methods]
    given: dict[str, dict[str, Any]] = {
        "message.transfer": {"destination": "d", "accept_mode": 1}, "message.accept": {"transfers": [(1, 2), (4, 4)]},
        "dtx.start": {"xid": {"format": 1, "global_id": b"g"}, "join": True},
        "connection.start": {"server_properties": [("a", "list", [("void", None)])], "locales": ("str16", ["en"])},
        "execution.result": {"command_id": 3, "value": ("exchange.exchange-query-result", {"type": "direct"})},
    }  # fmt: skip
    for name, fields in given.items():
        index = methods.index(name)
        yield bytes([index, 0]) + arguments(PROTOCOL.methods[index], fields, True)
    properties = {"reply_to": {"exchange": "e"}, "application_headers": [("n", "dec64", Decimal("-1.5"))]}
    yield b"\0\0" + header(("message.delivery-properties", {"ttl": 7}), ("message.message-properties", properties))


def _handshakes() -> Iterator[bytes]:
    for name in ("tls_sessions", "tls_sessions_13", "tls_failures"):
        for packet in recorded(f"{name}.pcap")[0]:
            at = packet.data.find(b"\x16\x03")
            kind = packet.data[at + 5] if 0 <= at < len(packet.data) - 9 else 0
            body = packet.data[at + 9 : at + 600]
            if kind in (1, 2):
                yield bytes([kind - 1]) + body
            certificate = body.find(b"\x0b\0")
            if kind == 2 and certificate > 0:
                yield b"\3" + body[certificate + 4 :]
                yield b"\5" + body[certificate + 10 :]
        yield b"\6" + (FOLDER / f"{name}.keylog").read_bytes()[:600]


_SEEDS = {
    "captures": _captures, "packets": _packets, "fragments": _fragments, "segments": _segments, "tables": _tables,
    "maps": _maps, "records": _records, "operations": _operations, "handshakes": _handshakes,
}  # fmt: skip
