"""Gizmo as it goes over the wire."""

from tests.dissector.stream.runs import Wire

PORT = 7000
HELLO, WELCOME = b"g\1\0\7\6client", b"g\2\0\0"
TOOK, STORED, BYE = b"g\4\0\0", b"g\5\0\0", b"g\6\0\0"


def put(count: int, part: bytes) -> bytes:
    payload = count.to_bytes(4, "big") + bytes([len(part)]) + part
    return b"g\3" + len(payload).to_bytes(2, "big") + payload


def session(puts: int = 5, welcomed: bool = True) -> Wire:
    wire = Wire(port=PORT)
    wire.send(True, HELLO)
    if welcomed:
        wire.send(False, WELCOME)
    for n in range(puts):
        wire.send(True, put(n, b"wheel"), most=6)
    wire.close()
    return wire
