"""AMQP 0-10 as data: whole, consistent, and with columns for all that is decoded."""

import pytest

from amqpscope import spec

UNCODED = {"session.header", "session.command-fragment", "message.reply-to"}


@pytest.fixture
def protocol():
    return spec.load("amqp-0-10")


def test_controls_and_commands(protocol):
    kinds = {cls.name: {m.kind for m in cls.methods} for cls in protocol.classes}
    assert kinds.pop("connection") == kinds.pop("session") == {"control"}
    assert set(map(frozenset, kinds.values())) == {frozenset(["command"])}
    assert len(protocol.methods) == 84
    for method in protocol.methods:
        assert protocol.method(method.full_name) is protocol.by_id(method.class_id, method.id) is method
        assert method.doc.endswith(".")
        assert method.content == bool(method.entries) or method.full_name == "file.stage"
        assert (method.result is None) == ("execution.result" not in method.responses)
        for name in method.responses:
            assert protocol.method(name).synchronous, name


def test_every_field_has_a_type_words_and_where_it_is_decoded_a_column(protocol):
    types = {t.name for t in protocol.types}
    structs = {s.name for s in protocol.structs}
    heads = {name for m in protocol.methods for name in m.entries} | {"session.header"}
    holders = [(m.fields, True) for m in protocol.methods] + [(s.fields, s.name in heads) for s in protocol.structs]
    for fields, decoded in holders:
        names = [f.column for f in fields]
        assert not decoded or len(set(names)) == len(names)
        for field in fields:
            assert field.doc.endswith("."), field
            assert field.type in types or (field.type == "struct" and field.domain in structs)
            assert (field.column is not None) == decoded


def test_structs(protocol):
    assert {s.name for s in protocol.structs if s.code is None} == UNCODED
    codes = [(s.class_id, s.code) for s in protocol.structs if s.code is not None]
    assert len(set(codes)) == len(codes) == 14
    xid = protocol.struct("dtx.xid")
    assert (xid.class_id, xid.code, xid.size, xid.pack) == (6, 4, 4, 2)
    with pytest.raises(KeyError):
        protocol.struct("xid")


def test_codes_give_the_width(protocol):
    """The upper half of a type's code says how long its values are."""
    fixed, variable = {n: 1 << n for n in range(8)} | {0xC: 5, 0xD: 9, 0xF: 0}, {8: 1, 9: 2, 0xA: 4}
    for kind in protocol.types:
        if kind.code is not None:
            assert (kind.fixed_width, kind.variable_width) == (fixed.get(kind.code >> 4), variable.get(kind.code >> 4))


def test_columns(protocol):
    columns = protocol.method_columns()
    assert columns["sync"] == columns["set_redelivered"] == "bool"
    assert columns["commands"] == columns["transfers"] == columns["xid"] == columns["name"] == "string"
    assert (columns["value"], columns["value_uint32"]) == ("string", "int64")
    assert not columns.keys() & {c.name for c in spec.tables()["amqp010_frames"].columns}
    messages = {c.name: c.type for c in spec.tables()["messages"].columns}
    shared = protocol.property_columns().keys() & messages.keys()
    assert {name: protocol.property_columns()[name] for name in shared} == {name: messages[name] for name in shared}
    assert {"headers", "timestamp", "exchange", "routing_key", "correlation_id", "reply_to"} <= shared


def test_secrets(protocol):
    secret = {(m.full_name, f.name) for m in protocol.methods for f in m.fields if f.secret}
    assert secret == {("connection.start-ok", "response"), ("connection.secure-ok", "response")}
