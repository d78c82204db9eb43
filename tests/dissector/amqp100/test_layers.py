"""AMQP 1.0 as far as its handshake goes: values, and what is known of connections, in chunks of any size."""

import contextlib
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amqpscope.dissector.handshakes.first_use import FirstUses
from amqpscope.dissector.handshakes.inputs import Side, Tcp
from amqpscope.dissector.handshakes.record import ConnectionRecord
from amqpscope.dissector.handshakes.verdict import Judge
from amqpscope.dissector.kernels.accounting import MemoryAccounting
from amqpscope.dissector.kernels.retained import Buffer
from amqpscope.dissector.protocols.amqp100.handshake import KEPT, Amqp10Handshakes
from amqpscope.dissector.protocols.amqp100.objects import MalformedError, value
from amqpscope.dissector.protocols.registry import Context
from amqpscope.dissector.tcp.state import Chunk
from amqpscope.spec import handshakes as spec_handshakes
from amqpscope.spec import load
from tests.thorough import examples

VALUES = [
    (b"\x40", None), (b"\x41", True), (b"\x56\x00", False), (b"\x43", 0), (b"\x44", 0), (b"\x52\xff", 255),
    (b"\x70\x00\x01\x00\x00", 65536), (b"\x80" + bytes(7) + b"\x05", 5), (b"\xa0\x02\x00\x01", b"\0\1"),
    (b"\xa1\x02hi", "hi"), (b"\xa3\x05PLAIN", "PLAIN"), (b"\xb1\x00\x00\x00\x02hi", "hi"), (b"\x45", []),
    (b"\xc0\x03\x02\x41\x40", [True, None]), (b"\xd0\x00\x00\x00\x06\x00\x00\x00\x02\x41\x40", [True, None]),
    (b"\xc1\x06\x02\xa3\x01a\x52\x07", ["a", 7]), (b"\xe0\x08\x02\xa3\x02ab\x02cd", ["ab", "cd"]),
    (b"\xf0\x00\x00\x00\x0a\x00\x00\x00\x01\xb3\x00\x00\x00\x01x", ["x"]),
    (b"\x00\x53\x10\x45", (0x10, [])), (b"\x00\xa3\x01d\x40", ("d", None)),
]  # fmt: skip
"""Bytes and what they are, by the tables of section 1.6."""


@pytest.mark.parametrize(("data", "wanted"), VALUES)
def test_values(data: bytes, wanted: object) -> None:
    assert value(data + b"\xff", 0) == (wanted, len(data))


@settings(max_examples=examples(300))
@given(st.binary(max_size=60))
def test_bytes_are_a_value_or_none(data: bytes) -> None:
    with contextlib.suppress(MalformedError):
        _, end = value(data, 0)
        assert 0 < end <= len(data)


def test_lists_in_lists_have_an_end() -> None:
    data = b"\x45"
    for _ in range(40):
        data = b"\xd0" + struct.pack(">II", len(data) + 4, 1) + data
    with pytest.raises(MalformedError):
        value(data, 0)


def frame(kind: int, performative: int, fields: bytes) -> bytes:
    listed = b"\x00\x53" + bytes([performative]) + fields
    return struct.pack(">IBBH", 8 + len(listed), 2, kind, 0) + listed


CLIENT = (
    b"AMQP\3\1\0\0" + frame(1, 0x41, b"\xc0\x17\x02\xa3\x05PLAIN\xa0\x0d\0guest\0secret") + b"AMQP\0\1\0\0"
    + frame(0, 0x10, b"\xc0\x12\x02\xa1\x01c\xa1\x0cvhost:orders") + frame(0, 0x11, b"\x45") + frame(0, 0x18, b"\x45")
)  # fmt: skip


def reported(cuts: list[int], data: bytes = CLIENT) -> ConnectionRecord:
    """The record of a client that says this in chunks."""
    record = ConnectionRecord()
    layers = Amqp10Handshakes(
        Context(False, "hash", False, MemoryAccounting(), lambda slot: record, FirstUses(False), {})
    )
    layers.begin(np.zeros(1, np.int64))
    ends = sorted({*(cut % len(data) for cut in cuts), len(data)})
    for begin, end in zip([0, *ends], ends, strict=False):
        chunks = np.zeros((Chunk.WIDTH, 1), np.int64)
        chunks[Chunk.OFFSET], chunks[Chunk.LENGTH], chunks[Chunk.SIDE] = begin, end - begin, 0
        layers.feed(chunks, Buffer(np.frombuffer(data, np.uint8).copy(), len(data)))
    return record


@settings(max_examples=examples(50))
@given(st.lists(st.integers(0, len(CLIENT)), max_size=20))
def test_chunks_may_end_anywhere(cuts: list[int]) -> None:
    record = reported(cuts)
    assert [step.event for step in record.steps] == ["sasl-init", "header", "open", "first use", "close"]
    assert record.user == "guest"
    assert record.arguments["open"]["virtual_host"] == "orders"
    assert "secret" not in repr(record)


@settings(max_examples=examples(200))
@given(st.binary(max_size=80), st.integers(0, len(CLIENT)))
def test_anything_may_follow(data: bytes, at: int) -> None:
    record = reported([], CLIENT[:at] + data + b"\0")
    assert "secret" not in repr(record)


FIELDS = st.lists(st.sampled_from([data for data, _ in VALUES]), max_size=4)
"""Fields of any type."""


@settings(max_examples=examples(300))
@given(st.lists(st.tuples(st.sampled_from([0x10, 0x18, 0x40, 0x41, 0x42, 0x43, 0x44]), FIELDS), min_size=1, max_size=6))
def test_fields_of_the_wrong_type_are_no_fields(frames: list[tuple[int, list[bytes]]]) -> None:
    data = b"".join(
        frame(0, code, b"\xd0" + struct.pack(">II", len(b"".join(fields)) + 4, len(fields)) + b"".join(fields))
        for code, fields in frames
    )
    record = reported([], data)
    assert record.steps
    handshakes = spec_handshakes.load()
    side = Side(1, 1, None, "", None, 0)
    tcp = Tcp(0, (side, side), True, None, 0, False, "amqp-1.0", ("10.0.0.2", 5672))
    assert Judge(handshakes, load("amqp-0-9-1"))(record, tcp, ["a capture"])["handshake_outcome"]


def test_what_goes_on_is_not_kept() -> None:
    head, much = CLIENT[:-12], frame(0, 0x14, b"\x45") * 4000
    assert len(much) > KEPT
    record = reported(list(range(0, len(much), 1000)), head + much + CLIENT[-12:])
    assert "close" not in record.arguments
    assert record.facts["unread"] is False
