"""AMQP 0-8, 0-9 and the transitional 0-10 by documents of theirs: an encoder from the document, frames by `--spec`."""

import struct
from pathlib import Path
from typing import Any

import pytest

from amqpscope import spec
from amqpscope.dissector.dissector import Options
from amqpscope.spec.model import Method
from tests.dissector.runs import dissect_packets, rows
from tests.dissector.wire import CLIENT, SERVER, Tape, raw

PUBLISHED = Path("/usr/share/amqp/specs")
SHARED = Path(__file__).parents[3] / "shared" / "specs"
DOCUMENTS = [
    PUBLISHED / "0-8/amqp0-8.stripped.xml",
    PUBLISHED / "0-8-qpid/amqp0-8-qpid.stripped.xml",
    PUBLISHED / "0-9/amqp0-9.stripped.xml",
    PUBLISHED / "0-9-qpid/amqp0-9-qpid.stripped.xml",
    SHARED / "amqp-transitional.0-10.xml",
]
OWN = """<amqp major="0" minor="9">
 <domain name="uuid" type="uuid"/><domain name="set" type="rfc1982-long-set"/>
 <domain name="rfc1982-long-set" type="rfc1982-long-set"/>
 <class name="connection" index="10">
  <method name="start" index="10"><field name="locales" type="longstr"/></method>
 </class>
 <class name="parcel" index="120">
  <method name="send" index="10"><field name="body" type="content"/><field name="stamp" type="timestamp"/>
   <field name="id" type="uuid"/><field name="first" type="bit"/><field name="last" type="bit"/>
   <field name="marks" domain="set"/></method>
 </class></amqp>"""
HEADER = b"AMQP\x01\x01\x00\x09"
VALUES: dict[str, tuple[bytes, Any]] = {
    "octet": (b"\x07", 7), "short": (b"\x12\x34", 0x1234), "long": (b"\0\x12\x34\x56", 0x123456),
    "longlong": (bytes(4) + b"\x12\x34\x56\x78", 0x12345678), "timestamp": (bytes(4) + b"\x65\0\0\0", 0x65000000),
    "shortstr": (b"\5short", "short"), "longstr": (b"\0\0\0\4long", "long"),
    "table": (b"\0\0\0\7\1kI\0\0\0\5", '{"k":5}'), "content": (b"\0\0\0\0\3abc", 3),
    "uuid": (bytes(range(16)), "00010203-0405-0607-0809-0a0b0c0d0e0f"),
    "rfc1982-long-set": (b"\0\x08" + struct.pack(">II", 1, 5), "[[1,5]]"),
}  # fmt: skip
"""What each type is on the wire, and in its column."""


def encoded(method: Method) -> tuple[bytes, dict[str, Any]]:
    """The payload of a method's frame, with every second bit true, and the columns that its row must have."""
    data, shown, bits = struct.pack(">HH", method.class_id, method.id), {}, 0
    for place, item in enumerate(method.fields):
        if item.type == "bit":
            value: Any = bits % 2 == 0
            data = data[:-1] + bytes([data[-1] | value << bits % 8]) if bits % 8 else data + bytes([value])
            bits += 1
            follows = place + 1 < len(method.fields) and method.fields[place + 1].type == "bit"
            bits = bits if follows else 0
        else:
            coded, value = VALUES[item.type]
            data += coded
        if item.column is not None:
            shown[item.column] = "<redacted>" if item.secret else value
    return data, shown


def check(path: Path) -> None:
    """Every method of the document has its row with all of its columns."""
    user = spec.load_xml(path)
    assert not spec.left_out(user)
    merged = spec.overlay(spec.load(), user)
    methods = [merged.by_id(m.class_id, m.id) for m in user.methods if m.full_name != "connection.close"]
    tape = Tape().play([(CLIENT, HEADER)])
    expected = []
    for method in methods:
        payload, shown = encoded(method)
        tape.say(CLIENT if method.from_client else SERVER, raw(1, 0 if method.class_id == 10 else 1, payload))
        expected.append((method.full_name, shown))
    found = dissect_packets(tape.end().packets, options=Options(protocol=merged))
    columns = merged.method_columns()
    shown_rows = [row for row in rows(found["amqp091_frames"]) if row["method"] is not None]
    assert [
        (row["method"], {name: row[name] for name in columns if row[name] is not None}) for row in shown_rows
    ] == expected
    codes = {row["code"] for row in rows(found["anomalies"])}
    assert not codes & {"field-overrun", "bytes-left-over", "method-unknown", "table-malformed", "text-not-utf8"}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_frames_by_a_published_document(path: Path) -> None:
    if not path.exists():
        pytest.skip("document not at hand")
    check(path)


def test_types_of_old_documents(tmp_path: Path) -> None:
    path = tmp_path / "own.xml"
    path.write_text(OWN)
    check(path)
