"""AMQP 1.0: what is remembered of frames and found in messages, and the groups in which kernels take it."""

from typing import NamedTuple

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.state import Matrix, Records, column


class Count(Matrix):
    """Directions: the current frame."""

    HAVE = column("bytes of it that came, up to the number of its performative")
    LEFT = column("bytes of it still to come")
    TYPE = column("its type")
    CODE = column("number of its performative")
    STATE = column("1: the direction cannot be followed")
    MAGIC = column("its first four bytes, as far as they came")
    SIZE = column("its bytes")
    WORDS = column("where its body begins, in words of four bytes")


class Section(Matrix):
    """Sections of messages, by their code from `FIRST_CODE` on."""

    KIND = column("what is in it: list, map or body")
    SLOT = column("first slot of what it holds")
    SLOTS = column("slots of that")


class Body(Records):
    """Bodies of messages, one column each."""

    KIND = column("index into `KINDS`; -1: not seen")
    AT = column("where its bytes begin, of several sections the first")
    SIZE = column("its bytes, as announced where some are missing; -1: not seen")
    SECTIONS = column("sections that it consists of")


class Place(Matrix):
    """A section that was found: one row."""

    NUMBER = column("its number; -1: none")
    AT = column("where the constructor of its value is; of data its bytes")
    SIZE = column("its bytes from there on, as announced")


class Constructors(NamedTuple):
    """Constructors, by their code.

    Attributes:
        kinds: (256,) kind of the value.
        widths: (256,) bytes of the value; -1: there is no such constructor.
    """

    kinds: Array
    widths: Array


class Messages(NamedTuple):
    """What is looked up to read messages, and room for what they hold: of each slot as many entries as messages.

    Attributes:
        kinds: as of `Constructors`.
        widths: as of `Constructors`.
        sections: (sections, Section).
        symbols: their descriptors as symbols, 32 bytes each.
        what: (slots,) what a slot takes.
        place: (Place,).
        body: (Body, n).
        fill: (slots,) entries.
        row: (slots, n) the message of each entry.
        value: (slots, n) its number, or where it lies.
        size: (slots, n) bytes of a text or map.
        form: (slots, n) kind of its value.
    """

    kinds: Array
    widths: Array
    sections: Array
    symbols: Array
    what: Array
    place: Array
    body: Array
    fill: Array
    row: Array
    value: Array
    size: Array
    form: Array
