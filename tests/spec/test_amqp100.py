"""AMQP 1.0 as data: what the standard has, and that there is a column for all of it."""

from amqpscope import spec
from amqpscope.spec import amqp100, describe


def test_every_constructor_of_the_standard_once() -> None:
    codes = """
        40 56 41 42 50 60 70 52 43 80 53 44 51 61 71 54 81 55 72 82 74 84 94 73 83 98 a0 b0 a1 b1 a3 b3 45 c0 d0 c1 d1
        e0 f0"""
    assert sorted(amqp100.load().constructors) == sorted(int(code, 16) for code in codes.split())


def test_sections_and_their_columns() -> None:
    sections = amqp100.load().sections
    assert [section.code for section in sections] == list(range(0x70, 0x79))
    assert [len(section.fields) for section in sections] == [5, 0, 0, 13, 0, 0, 0, 0, 0]
    columns = {column.name for column in spec.tables()["messages"].columns}
    for section in sections:
        assert {field.column for field in section.fields} <= columns
        assert section.symbol.startswith(f"amqp:{section.name}:")
        assert (section.kind == "map") == (section.column in columns)


def test_performatives() -> None:
    names = amqp100.load().performatives
    assert sorted(names[0]) == list(range(0x10, 0x19))
    assert sorted(names[1]) == list(range(0x40, 0x45))


def test_it_can_be_asked_for() -> None:
    reported = "\n".join(describe.describe("amqp-1.0", spec.load()))
    assert "application-properties" in reported
    assert "transfer" in reported
    fields = "\n".join(describe.describe("properties", spec.load()))
    assert "absolute-expiry-time" in fields
