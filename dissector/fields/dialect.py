"""How values are coded in each protocol, as tables for the kernel that renders them as JSON text.

A form is a type code, or from 256 on a type that has none and stands only where the specification says so: ranges, and
structs as fields. Of each form the tables say its kind, how wide it is, and what stands before its items.
"""

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from amqpscope.dissector.fields import state
from amqpscope.dissector.fields.state import Form, Forms, Member
from amqpscope.dissector.kernels.arrays import Ints
from amqpscope.spec.model import Protocol, Struct, WireType

(
    UNKNOWN, SIGNED, UNSIGNED, BOOLEAN, FLOAT, DECIMAL, TIMESTAMP, VOID, BIT, CHARACTER, UUID, FIXED,
    STRING, BYTES, LATIN, UTF16, RANGES,
    TABLE, LIST, ARRAY, STRUCT, STRUCT32,
) = range(22)  # fmt: skip
"""Kinds of values: from `STRING` on they stand after their length, from `TABLE` on there are values in them."""

LETTERS = {
    "t": (BOOLEAN, 1), "b": (SIGNED, 1), "B": (UNSIGNED, 1), "s": (SIGNED, 2), "u": (UNSIGNED, 2), "I": (SIGNED, 4),
    "i": (UNSIGNED, 4), "l": (SIGNED, 8), "L": (SIGNED, 8), "f": (FLOAT, 4), "d": (FLOAT, 8), "D": (DECIMAL, 5),
    "T": (TIMESTAMP, 8), "V": (VOID, 0), "S": (STRING, 4), "x": (BYTES, 4), "F": (TABLE, 4), "A": (LIST, 4),
}  # fmt: skip
"""Kind and width of each type letter of AMQP 0-9-1; for those from `STRING` on, the width of the length in front."""

FIELDS = {"uuid": (UUID, 16, 0), "rfc1982-long-set": (RANGES, 2, 4)}
"""Kind, width and item of types that documents of its time have for fields, besides tables."""

NAMES = {
    "int8": SIGNED, "int16": SIGNED, "int32": SIGNED, "int64": SIGNED, "uint8": UNSIGNED, "uint16": UNSIGNED,
    "uint32": UNSIGNED, "uint64": UNSIGNED, "sequence-no": UNSIGNED, "boolean": BOOLEAN, "float": FLOAT,
    "double": FLOAT, "dec32": DECIMAL, "dec64": DECIMAL, "datetime": TIMESTAMP, "void": VOID, "bit": BIT,
    "char": CHARACTER, "char-utf32": CHARACTER, "uuid": UUID, "str8": STRING, "str16": STRING, "str8-latin": LATIN,
    "str16-latin": LATIN, "str8-utf16": UTF16, "str16-utf16": UTF16, "sequence-set": RANGES, "byte-ranges": RANGES,
    "map": TABLE, "list": LIST, "array": ARRAY, "struct32": STRUCT32,
}  # fmt: skip
"""Kind of each type of AMQP 0-10; all others are bytes."""
ITEMS = {"sequence-set": 4, "byte-ranges": 8, "map": 4, "list": 4, "array": 4}
"""Bytes of a number in ranges, and of the count before items."""
WIDTHS = {high: 1 << high for high in range(8)} | {0x8: 1, 0x9: 2, 0xA: 4, 0xC: 5, 0xD: 9, 0xF: 0}
"""By the upper half of a type code of AMQP 0-10 the bytes of its values, or for 8 to A hexadecimal of their length."""

CODES = 256
MOST_MEMBERS = 32
"""Members of a struct, at most, that it can be rendered: as flags they fit a number."""
UNKNOWN_FORM = 0xB0
"""A type code that nobody can measure; also of members that cannot be rendered."""


@dataclass(frozen=True)
class Dialect:
    """The tables of a protocol."""

    tables: Forms
    growth: int
    """A byte becomes at most this many."""
    head: int
    """And every value may have this many more: the names of bits in a struct, which have no bytes."""
    forms: dict[str, int]
    """Form of each type and struct by its name."""


@dataclass
class _Maker:
    """Collects the structs of a dialect."""

    forms: dict[str, int]
    structs: list[tuple[int, ...]] = field(default_factory=list)
    members: list[tuple[int, ...]] = field(default_factory=list)
    names: bytearray = field(default_factory=bytearray)
    growth: int = 18
    """Of bytes that are values of their own: `{"$bytes":"ff"},`."""
    head: int = 2

    def add(self, struct: Struct) -> None:
        """Add a struct; all forms are known by now."""
        first = len(self.members)
        code = -1 if struct.code is None else struct.class_id << 8 | struct.code
        coded = 0 if struct.code is None else 2
        head = len(struct.name) + 10
        for flag, member in enumerate(struct.fields):
            text = self._text(f'"{member.name}":')
            form = self.forms.get(member.domain if member.type == "struct" else member.type, UNKNOWN_FORM)
            self.members.append((form, flag, *text))
            if member.type == "bit":
                head += len(f'"{member.name}":false,')
            else:  # before one byte at least
                self.growth = max(self.growth, _Maker.growth + text[1] - text[0])
        name = self._text(f'{{"${struct.name}":')
        self.structs.append((code, first, len(self.members), struct.pack, coded, *name))
        self.head = max(self.head, head)
        self.growth = max(self.growth, -(-head // max(struct.size + coded + struct.pack, 1)))

    def _text(self, text: str) -> tuple[int, int]:
        begin = len(self.names)
        self.names += text.encode()
        return begin, len(self.names)


def of_letters() -> Dialect:
    """Return the dialect of AMQP 0-9-1's field tables, whose items are not counted."""
    types = np.zeros((CODES + len(FIELDS), Form.WIDTH), np.int64)
    types[CODES:] = list(FIELDS.values())
    for letter, (kind, width) in LETTERS.items():
        types[ord(letter), :2] = kind, width
    # a control character in a string; a decimal of 6 becomes at most 34
    forms = {"table": ord("F")} | {name: form for form, name in enumerate(FIELDS, CODES)}
    return _dialect(types, _Maker(forms, growth=6))


@lru_cache(maxsize=8)
def of_protocol(protocol: Protocol) -> Dialect:
    """Return the types and structs of AMQP 0-10, as the specification has them; nobody writes to them."""
    structs = [s for s in protocol.structs if len(s.fields) <= min(MOST_MEMBERS, 8 * s.pack or MOST_MEMBERS)]
    uncoded = [t for t in protocol.types if t.code is None]
    types = np.zeros((CODES + len(uncoded) + len(structs), Form.WIDTH), np.int64)
    for code in range(CODES):
        if code >> 4 in WIDTHS:  # values of unknown codes can be skipped, too
            types[code, :2] = BYTES if 8 <= code >> 4 <= 0xA else FIXED, WIDTHS[code >> 4]
    maker = _Maker({})
    for form, kind in enumerate(uncoded, CODES):
        maker.forms[kind.name] = form
    for kind in protocol.types:
        form = maker.forms.setdefault(kind.name, kind.code or 0)
        types[form] = _kind(kind), kind.fixed_width or kind.variable_width or 0, ITEMS.get(kind.name, 0)
    for number, struct in enumerate(structs):
        form = maker.forms[struct.name] = CODES + len(uncoded) + number
        types[form] = STRUCT, struct.size, number
    for struct in structs:
        maker.add(struct)
    return _dialect(types, maker)


def _kind(kind: WireType) -> int:
    return NAMES.get(kind.name, FIXED if kind.variable_width is None else BYTES)


def _dialect(types: Ints, maker: _Maker) -> Dialect:
    return Dialect(
        Forms(
            types,
            np.array(maker.structs, np.int64).reshape(-1, state.Struct.WIDTH),
            np.array(maker.members, np.int64).reshape(-1, Member.WIDTH),
            np.frombuffer(bytes(maker.names) or b"\0", np.uint8).copy(),
        ),
        maker.growth,
        maker.head,
        maker.forms,
    )
