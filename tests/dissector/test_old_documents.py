"""AMQP 0-8, 0-9 and the draft of 0-10 of 2007, by header and by documents: an encoder from these makes frames."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from amqpscope import spec
from amqpscope.dissector.dissector import Options
from amqpscope.spec.model import Method
from tests.dissector.amqp010 import wire as final
from tests.dissector.runs import dissect, dissect_packets, rows
from tests.dissector.wire import CLIENT, SERVER, Tape, Turn, raw

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


def sent(methods: list[Method], header: bytes) -> tuple[Tape, list[tuple[str, dict[str, Any]]]]:
    """A connection on which each of these methods is sent, and their names and columns."""
    tape, expected = Tape().play([(CLIENT, header)]), []
    for method in methods:
        payload, shown = encoded(method)
        tape.send(CLIENT if method.from_client else SERVER, raw(1, 0 if method.class_id == 10 else 1, payload))
        expected.append((method.full_name, shown))
    return tape, expected


def check(path: Path, header: bytes) -> None:
    """Every method of the document has its row with all of its columns."""
    user = spec.load_xml(path)
    assert not spec.left_out(user)
    merged = spec.overlay(spec.load(), user)
    methods = [merged.by_id(m.class_id, m.id) for m in user.methods if m.full_name != "connection.close"]
    tape, expected = sent(methods, header)
    found = dissect_packets(tape.end().packets, options=Options(protocol=merged))
    columns = merged.method_columns()
    shown_rows = [row for row in rows(found["amqp091_frames"]) if row["method"] is not None]
    assert [
        (row["method"], {name: row[name] for name in columns if row[name] is not None}) for row in shown_rows
    ] == expected
    codes = {row["code"] for row in rows(found["anomalies"])}
    assert not codes & WRONG


WRONG = {"field-overrun", "bytes-left-over", "method-unknown", "table-malformed", "text-not-utf8"}
HEADERS = {
    "amqp-0-8": b"AMQP\x01\x01\x08\x00",
    "amqp-0-9": b"AMQP\x01\x01\x00\x09",
    "amqp-0-10-draft": b"AMQP\x01\x01\x00\x0a",
}
DRAFT = HEADERS["amqp-0-10-draft"]
BASIC = {f.column for c in spec.load().classes for f in c.fields if f.column}
"""Columns of properties that the table of messages has."""


@pytest.mark.parametrize("name", HEADERS)
def test_frames_by_their_header(name: str) -> None:
    """Arguments that 0-9-1 has not are in one column, as JSON text."""
    version, own = spec.load(name), spec.load().method_columns()
    methods = [m for m in version.methods if m.full_name != "connection.close"]
    tape, expected = sent(methods, HEADERS[name])
    found = dissect_packets(tape.end().packets)
    assert len(rows(found["amqp010_frames"])) == 0
    shown = [row for row in rows(found["amqp091_frames"]) if row["method"] is not None]
    assert [row["method"] for row in shown] == [method for method, _ in expected]
    for row, (_, columns), method in zip(shown, expected, methods, strict=True):
        assert {k: row[k] for k in own if row[k] is not None} == {k: v for k, v in columns.items() if k in own}
        coded = {f.column for f in method.fields if f.type in ("table", "rfc1982-long-set")}
        others = {k: json.loads(v) if k in coded else v for k, v in columns.items() if k not in own}
        assert json.loads(row["other_arguments"] or "{}") == others
    assert not {row["code"] for row in rows(found["anomalies"])} & WRONG
    [connection] = rows(found["connections"])
    assert connection["protocol"] == ("amqp-0-10-draft" if name == "amqp-0-10-draft" else "amqp-0-9-1")


@pytest.mark.parametrize("name", HEADERS)
def test_contents_of_all_classes(name: str) -> None:
    """Messages have the properties of their class that the table has; none is taken for another."""
    version = spec.load(name)
    classes = {c.name: c for c in version.classes}
    methods = [m for m in version.methods if m.content]
    tape = Tape().play([(CLIENT, HEADERS[name])])
    expected = []
    for method in methods:
        side, properties = CLIENT if method.from_client else SERVER, classes[method.class_name].fields
        flags = sum(1 << 15 - place for place in range(len(properties)))
        head = struct.pack(">HHQH", method.class_id, 0, 5, flags) + b"".join(VALUES[f.type][0] for f in properties)
        for kind, payload in ((1, encoded(method)[0]), (2, head), (3, b"hello")):
            tape.send(side, raw(kind, 1, payload))
        shown = {f.column: VALUES[f.type][1] for f in properties if f.column in BASIC}
        expected.append((method.full_name, shown))
    found = dissect_packets(tape.end().packets)
    assert [
        (full_name, {column: row[column] for column in shown})
        for row, (full_name, shown) in zip(rows(found["messages"]), expected, strict=True)
    ] == expected
    assert {row["body_size"] for row in rows(found["messages"])} == {5}
    assert rows(found["anomalies"]) == []


def close(name: str) -> bytes:
    """The payload of connection.close as a version has it."""
    method = spec.load(name).method("connection.close")
    return struct.pack(">HHH", method.class_id, method.id, 320) + b"\3bye" + bytes(4)


@pytest.mark.parametrize("name", ["amqp-0-8", "amqp-0-9", "amqp-0-10-draft"])
def test_a_close_is_one_in_every_version(name: str) -> None:
    """0-8 numbers it as RabbitMQ numbers connection.blocked in 0-9-1."""
    tape, _ = sent([spec.load(name).method(f"connection.{m}") for m in ("start", "start-ok", "tune")], HEADERS[name])
    tape.send(SERVER, raw(1, 0, close(name)))
    [connection] = rows(dissect_packets(tape.end().packets)["connections"])
    assert (connection["reply_code"], connection["reply_text"]) == (320, "bye")


def test_a_redirect_tells_where_to() -> None:
    version = spec.load("amqp-0-9")
    names = ("start", "start-ok", "tune", "tune-ok", "open", "redirect")
    tape, _ = sent([version.method(f"connection.{name}") for name in names], HEADERS["amqp-0-9"])
    [connection] = rows(dissect_packets(tape.end().packets)["connections"])
    assert connection["handshake_outcome"] == "redirected"
    assert "short" in connection["handshake_cause"]


START = encoded(spec.load("amqp-0-10-draft").method("connection.start"))[0]
FINAL_START = b"".join(final.operation("connection.start", 0, mechanisms=("str16", ["PLAIN"])))
FINAL_OK = b"".join(final.operation("connection.start-ok", 0, mechanism="PLAIN"))


@pytest.mark.parametrize(
    ("turns", "protocol", "frames"),
    [
        ([(SERVER, raw(1, 0, START))], "amqp-0-10-draft", 2),
        ([(SERVER, raw(1, 0, START)[:1]), (SERVER, raw(1, 0, START)[1:])], "amqp-0-10-draft", 2),
        ([(SERVER, DRAFT + FINAL_START)], "amqp-0-10", 3),
        ([(SERVER, DRAFT), (SERVER, FINAL_START)], "amqp-0-10", 3),
        ([(SERVER, b"AMQP\0\0\x09\x01")], "amqp-0-10", 2),
        ([(CLIENT, FINAL_OK)], "amqp-0-10", 2),
        ([(CLIENT, raw(8, 0, b""))], "amqp-0-10", 1),
        ([], "amqp-0-10", 1),
    ],
    ids=["draft", "byte-by-byte", "final", "header-alone", "refused", "client-first", "neither", "nobody-answers"],
)
def test_the_first_frame_tells_the_draft_from_the_final_protocol(turns: list[Turn], protocol: str, frames: int) -> None:
    for step in (None, 1):  # whole, and one byte a packet
        tape = Tape()
        for side, data in [(CLIENT, DRAFT), *turns]:
            for at in range(0, len(data), step or len(data)):
                tape.send(side, data[at : at + (step or len(data))])
        found = dissect_packets(tape.end().packets)
        [connection] = rows(found["connections"])
        assert connection["protocol"] == protocol
        table = "amqp010_frames" if protocol == "amqp-0-10" else "amqp091_frames"
        assert [len(rows(found[name])) for name in ("amqp010_frames", "amqp091_frames")] == [
            frames if name == table else 0 for name in ("amqp010_frames", "amqp091_frames")
        ]


@pytest.mark.parametrize("port", [5672, 25_999])
@pytest.mark.parametrize(
    ("name", "methods"),
    [
        ("amqp-0-10-draft", ["message.transfer", "message.ok", "queue.bind"]),
        ("amqp-0-10-draft", ["message.ok", "execution.complete"]),
        ("amqp-0-9", ["message.ok", "message.transfer", "message.consume", "channel.flow"]),
    ],
)
def test_a_version_is_recognised_in_the_middle(name: str, methods: list[str], port: int) -> None:
    """By a method whose arguments no other version has; what came just before is decoded as well."""
    version = spec.load(name)
    tape = Tape(syn=False, server_port=port)
    expected = []
    for method in [version.method(each) for each in methods * 2]:
        payload, shown = encoded(method)
        expected.append((method.full_name, shown.get("routing_key")))
        tape.send(CLIENT if method.from_client else SERVER, raw(1, 1, payload))
    found = dissect_packets(tape.end().packets)
    assert [(row["method"], row["routing_key"]) for row in rows(found["amqp091_frames"])] == expected
    assert not {row["code"] for row in rows(found["anomalies"])} & WRONG
    [connection] = rows(found["connections"])
    assert connection["protocol"] == ("amqp-0-10-draft" if name == "amqp-0-10-draft" else "amqp-0-9-1")


def test_the_preview_is_recognised() -> None:
    tape = Tape().play([(CLIENT, b"AMQP\x01\x01\x63\x00"), (SERVER, b"AMQP\x01\x01\x63\x00" + bytes(40))])
    found = dissect_packets(tape.end().packets)
    [connection] = rows(found["connections"])
    assert (connection["protocol"], connection["handshake_outcome"]) == ("amqp-0-10-preview", "preview-not-decoded")
    assert len(rows(found["anomalies"])) == 0


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_frames_by_a_published_document(path: Path) -> None:
    if not path.exists():
        pytest.skip("document not at hand")
    check(path, HEADER)
    check(path, b"AMQP\0\0\x09\x01")


def test_types_of_old_documents(tmp_path: Path) -> None:
    path = tmp_path / "own.xml"
    path.write_text(OWN)
    check(path, HEADER)


VENDORS = """<amqp major="0" minor="10">
 <type name="bit" code="0xf1" fixed-width="0"/><type name="str8" code="0x85" variable-width="1"/>
 <class name="gadget" code="0x40">
  <control name="poke" code="0x1"><implement role="server" handle="MUST"/><field name="word" type="str8"/></control>
 </class></amqp>"""
FINAL = [PUBLISHED / "0-10/amqp.0-10.stripped.xml", PUBLISHED / "0-10-qpid/amqp.0-10-qpid-errata.stripped.xml"]


def test_a_document_of_the_final_0_10_adds_to_it(tmp_path: Path) -> None:
    path = tmp_path / "vendors.xml"
    path.write_text(VENDORS)
    user = spec.load_xml(path)
    assert spec.base_of(user) == "amqp-0-10"
    options = Options(protocol=spec.overlay(spec.load("amqp-0-10"), user))
    poke = final.frame(final.CONTROL, b"\x40\x01\1\0\5word!", 1)
    tape = Tape().play([*final.opening(), (CLIENT, poke + b"".join(final.operation("message.stop", destination="d")))])
    found = dissect_packets(tape.end().packets, options=options)
    shown = [(row["method"], row["word"], row["destination"]) for row in rows(found["amqp010_frames"])]
    assert shown[-2:] == [("gadget.poke", "word!", None), ("message.stop", None, "d")]
    [connection] = rows(found["connections"])
    assert connection["handshake_outcome"] == "ok"


@pytest.mark.parametrize("path", FINAL, ids=lambda path: path.name)
def test_published_documents_of_the_final_0_10_change_no_rows(path: Path) -> None:
    if not path.exists():
        pytest.skip("document not at hand")
    options = Options(protocol=spec.overlay(spec.load("amqp-0-10"), spec.load_xml(path)))
    capture = "tests/captures/qpid_props.pcap"
    ours, theirs = dissect(capture), dissect(capture, options=options)
    for table in ("amqp010_frames", "messages", "anomalies"):
        assert theirs[table].select(ours[table].schema.names).equals(ours[table])
        assert set(theirs[table].schema.names) == set(ours[table].schema.names)
