"""Connections of AMQP 1.0 are recognised, and their performatives counted."""

import json
import struct
from typing import Any

import pytest

from tests.dissector.amqp100 import wire as w
from tests.dissector.stream.runs import Wire, dissect

CODES = {
    "open": 0x10, "begin": 0x11, "attach": 0x12, "flow": 0x13, "transfer": 0x14, "disposition": 0x15, "detach": 0x16,
    "end": 0x17, "close": 0x18,
}  # fmt: skip
SASL = {"sasl-mechanisms": 0x40, "sasl-init": 0x41, "sasl-outcome": 0x44}


def header(protocol: int) -> bytes:
    return b"AMQP" + bytes([protocol, 1, 0, 0])


def frame(code: int, payload: bytes = b"", kind: int = 0, extended: int = 0) -> bytes:
    body = bytes(4 * extended) + w.described(bytes([0x53, code]), w.listed(w.string("x"))) + payload
    return struct.pack(">IBBH", 8 + len(body), 2 + extended, kind, 0) + body


def counts(wire: Wire, **how: Any) -> Any:
    wire.close()
    (row,) = dissect(wire.packets, **how)["connections"]
    assert row["protocol"] == "amqp-1.0"
    assert row["frames"] == sum(json.loads(row["performatives"]).values())
    return json.loads(row["performatives"])


@pytest.mark.parametrize("most", [1, 3, 50, 1400])
@pytest.mark.parametrize("compiled", [False, True])
def test_performatives_are_counted(most: int, compiled: bool) -> None:
    wire = Wire(port=5672)
    wire.send(True, header(3) + frame(SASL["sasl-init"], kind=1), most)
    wire.send(False, header(3) + frame(SASL["sasl-mechanisms"], kind=1) + frame(SASL["sasl-outcome"], kind=1), most)
    # bodies that look like frames are not looked into
    inner = frame(CODES["open"]) * 3
    wire.send(True, header(0) + frame(CODES["open"], extended=3) + frame(CODES["transfer"], inner) * 2, most)
    heartbeat = struct.pack(">IBBH", 8, 2, 0, 0)
    wire.send(False, header(0) + b"".join(frame(code) for code in CODES.values()) + heartbeat, most)
    expected = dict.fromkeys(CODES, 1) | dict.fromkeys(SASL, 1) | {"open": 2, "transfer": 3, "heartbeat": 1}
    assert counts(wire, compiled=compiled) == expected


def test_what_is_no_performative() -> None:
    wire = Wire(port=5672)
    wire.send(True, header(0) + frame(0x77) + struct.pack(">IBBH", 9, 2, 0, 0) + b"?" + frame(CODES["open"]))
    assert counts(wire) == {"unknown": 2, "open": 1}


def test_after_nonsense_nothing_is_counted() -> None:
    wire = Wire(port=5672)
    wire.send(True, header(0) + frame(CODES["open"]) + b"\xff" * 20 + frame(CODES["close"]))
    wire.send(False, header(0) + frame(CODES["open"]))
    assert counts(wire) == {"open": 2}


def test_gaps_in_payloads_are_crossed() -> None:
    wire = Wire(port=5672)
    wire.send(True, header(0) + frame(CODES["transfer"], bytes(500))[:100])
    wire.lose(True, 100)
    wire.send(True, frame(CODES["transfer"], bytes(500))[200:] + frame(CODES["close"]))
    assert counts(wire) == {"transfer": 1, "close": 1}
