"""Messages of AMQP 1.0 (part 3, section 3.2): their sections to columns, and which octets are the body.

A record that does not begin with a section is plain octets, and so is one whose sections do not end where it does.
Sections may come in any order, as clients write them; of those that are no body, the first of a kind counts.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from amqpscope.dissector.fields import columns, text
from amqpscope.dissector.fields.decoding import TRACE_COLUMNS, TRACE_TABLE, trace_columns
from amqpscope.dissector.fields.problems import INTEGER_TOO_LARGE, TEXT_NOT_UTF8
from amqpscope.dissector.fields.tables import unsigned, write_integer
from amqpscope.dissector.fields.text import copy
from amqpscope.dissector.kernels.arrays import Array, Ints, Octets
from amqpscope.dissector.kernels.hashing import L_WIDTH, hash_begin, hash_end, hash_feed, hash_octets
from amqpscope.dissector.kernels.kernel import call, i64, kernel, proven
from amqpscope.dissector.protocols.amqp10 import values
from amqpscope.dissector.protocols.amqp10.values import (
    BINARY,
    BOOLEAN,
    FALSE,
    LIST,
    MAP,
    SIGNED,
    SIZED,
    TIMESTAMP,
    TRUE,
    UNSIGNED,
    UUID,
    inside,
    items,
    value_end,
    write_uuid,
)
from amqpscope.dissector.protocols.amqp10.values import TEXT as TEXTUAL
from amqpscope.spec import amqp10

KINDS = ("raw", "data", "amqp-sequence", "amqp-value", "none")
RAW, DATA, SEQUENCE, VALUE, NOTHING = range(len(KINDS))
"""What a body is: all octets of the record, or those of sections; `none` where a message has no body."""
BROKEN = len(KINDS)
"""Begins with a section, and does not end with one; it counts as `raw`."""
KIND_NAMES = columns.Names((*KINDS, KINDS[RAW]))
WIDEST_TEXT = 36
"""A number or UUID as text."""

# What a slot holds.
TEXTS, NUMBERS, MAPS = range(3)
# Columns of the table of sections: what is in it, first slot, how many.
I_KIND, I_SLOT, I_SLOTS = range(3)
A_LIST, A_MAP, A_BODY = range(3)


@dataclass(frozen=True, slots=True)
class Slot:
    """A column, and what becomes of its numbers."""

    column: str
    what: int
    type: str
    add: int = 0
    divide: int = 1


def _plan() -> tuple[tuple[Slot, ...], Ints, Octets]:
    """Slots, sections by their code from 0x70 on, and their descriptors as symbols, 32 octets each."""
    numbers = {"boolean": "int32", "ubyte": "int32", "uint": "int64", "timestamp": "int64"}
    slots: list[Slot] = []
    sections = amqp10.load().sections
    table, symbols = np.zeros((len(sections), 3), np.int64), np.zeros((len(sections), 32), np.uint8)
    for k, section in enumerate(sections):
        assert section.code == FIRST_CODE + k
        table[k] = {"list": A_LIST, "map": A_MAP, "body": A_BODY}[section.kind], len(slots), len(section.fields)
        symbols[k, : len(section.symbol) + 1] = [len(section.symbol), *section.symbol.encode()]
        if section.column:
            slots.append(Slot(section.column, MAPS, "string"))
        for field in section.fields:
            kind = "bool" if field.type == "boolean" and not field.add else numbers.get(field.type, "string")
            what = TEXTS if kind == "string" else NUMBERS
            slots.append(Slot(field.column, what, kind, field.add, field.divide))
    return tuple(slots), table, symbols.ravel()


FIRST_CODE = 0x70
SLOTS, SECTIONS, SYMBOLS = _plan()
WHAT = np.array([slot.what for slot in SLOTS], np.int64)
COLUMNS = {slot.column: slot.type for slot in SLOTS} | TRACE_COLUMNS | {"body_kind": "string"}
"""Columns that records get besides size and hash of the body, and their types."""


class Sections(NamedTuple):
    """What n records hold."""

    columns: dict[str, pa.Array]
    """Those of `COLUMNS`."""
    kind: Ints
    """(n,) index into `KINDS`, or BROKEN."""
    at: Ints
    """(n,) where the body begins (its first piece, where there are several)."""
    size: Ints
    """(n,) octets of the body, as announced where octets are missing."""
    pieces: Ints
    """(n,) sections that make it up; 1 of plain octets."""
    problems: Ints
    """(problems, 3): record, index into `PROBLEM_CODES`, place in the data."""


def read(data: Octets, at: Ints, length: Ints, missing: Ints, compiled: bool) -> Sections:
    """Read records.

    Args:
        data: the octets.
        at: (n,) where each record begins.
        length: (n,) its octets that are there.
        missing: (n,) octets that follow them and are not there; what is in front of these is read.
        compiled: whether the kernels run compiled.
    """
    n = len(at)
    body = np.empty((4, n), np.int64)
    fill = np.zeros(len(SLOTS), np.int64)
    row, value, size, form = (np.empty((len(SLOTS), n), np.int64) for _ in range(4))  # touched where there are values
    call(
        read_sections, compiled, data, at, length, missing, values.KINDS, values.WIDTHS, SECTIONS, SYMBOLS, WHAT,
        body, fill, row, value, size, form, np.zeros(3, np.int64),
    )  # fmt: skip
    kind = body[0]
    made = {"body_kind": KIND_NAMES.column(kind, compiled)}
    problems: list[Ints] = []
    for s, slot in enumerate(SLOTS):
        k = int(fill[s])
        if k:
            entries = row[s, :k], value[s, :k], size[s, :k], form[s, :k]
            more, wrong = _column(n, slot, data, *entries, compiled)
            made |= more
            problems.append(wrong)
    for name, type_ in COLUMNS.items():
        if name not in made:
            made[name] = columns.nulls(n, type_)
    found = np.concatenate(problems) if problems else np.empty((0, 3), np.int64)
    return Sections(made, kind, body[1], body[2], body[3], found)


def hashes(data: Octets, at: Ints, length: Ints, found: Sections, compiled: bool) -> Array:
    """(n,) uint64: the hash of each body; of no use where octets of the record are missing."""
    hashed = np.empty(len(at), np.uint64)
    lanes, waiting = np.zeros((1, L_WIDTH), np.uint64), np.zeros(32, np.uint8)
    call(
        hash_bodies, compiled, data, at, length, found.at, found.size, found.pieces, values.WIDTHS, SYMBOLS,
        np.zeros(3, np.int64), lanes, waiting, hashed,
    )  # fmt: skip
    return hashed


def body(data: Octets, at: int, length: int, found_at: int, size: int, pieces: int) -> bytes:
    """The octets of one whole body."""
    if pieces <= 1:
        return data[found_at : found_at + size].tobytes()
    place = np.zeros(3, np.int64)
    parts = []
    p = at
    while p < at + length:
        p = call(section, False, data, p, at + length, values.WIDTHS, SYMBOLS, place)
        if BODY_SECTION <= place[0] < BODY_SECTION + 3:
            parts.append(data[place[1] : p].tobytes())
    return b"".join(parts)


def _column(
    n: int, slot: Slot, data: Octets, row: Ints, value: Ints, size: Ints, form: Ints, compiled: bool
) -> tuple[dict[str, pa.Array], Ints]:
    if slot.what == NUMBERS:
        fits = value <= ((1 << 31) - 1 if slot.type == "int32" else (1 << 63) - 1)
        wrong = _problems(row[~fits], INTEGER_TOO_LARGE, row[~fits])
        numbers = value[fits] // slot.divide + slot.add
        return {slot.column: columns.numbers(columns.validity(n, row[fits]), slot.type, row[fits], numbers)}, wrong
    valid = columns.validity(n, row)
    if slot.what == MAPS:
        maps = values.render(data, value.copy(), size.copy(), compiled)
        made = {slot.column: columns.texts(valid, row, maps.sizes, maps.octets, compiled)}
        problems = maps.problems
        problems[:, 0] = row[problems[:, 0]]
        if slot.column == TRACE_TABLE:
            traced, wrong = trace_columns(n, data, row, maps.trace, compiled)
            return made | traced, np.concatenate([problems, wrong])
        return made, problems
    if (form != TEXTUAL).any():
        octets, sizes = np.empty(int(np.maximum(size, WIDEST_TEXT).sum()), np.uint8), np.empty(len(row), np.int64)
        used = call(write_forms, compiled, data, value.copy(), size.copy(), form.copy(), octets, sizes)
        begins = np.cumsum(sizes) - sizes
        data, value, size = octets[:used].copy(), begins, sizes
    texts = text.gather(data, value.copy(), size.copy(), compiled)
    wrong = _problems(row[texts.invalid], TEXT_NOT_UTF8, texts.invalid_at)
    return {slot.column: columns.texts(valid, row, texts.sizes, texts.octets, compiled)}, wrong


def _problems(row: Ints, code: int, at: Ints) -> Ints:
    return np.column_stack((row, np.full(len(row), code, np.int64), at))


DATA_HEAD = 5
"""Octets in front of the data of a section of up to 255 octets: descriptor, constructor, length."""
BODY_SECTION = 5
"""Sections from this one on, up to the one with this number and two more, are bodies."""


@proven
def section(data: Array, p: int, end: int, widths: Array, symbols: Array, place: Array) -> int:
    """Where the section that begins at p ends; -1 when none does, or it is cut off.

    Bounds: p is not below 0, and `end` not beyond the data; it only grows, and nothing is read from `end` on. A symbol
    has 31 octets at most, behind its length.

    `place` gets its number (-1: none), where its value's constructor is (of data: its octets), and how many octets it
    has from there on, as announced.
    """
    place[0] = -1
    if p + 3 > end or data[p] != 0:
        return -1
    code = i64(data[p + 1])
    number = -1
    q = p + 2
    if code == 0x53:
        number = i64(data[q]) - FIRST_CODE
        q += 1
    elif code == 0x80:
        if q + 8 > end or unsigned(data, q, 7) != 0:
            return -1
        number = i64(data[q + 7]) - FIRST_CODE
        q += 8
    elif code in (0xA3, 0xB3):
        width = 1 if code == 0xA3 else 4
        if q + width > end:
            return -1
        length = unsigned(data, q, width)
        q += width
        if length > 31 or q + length > end:
            return -1
        for s in range(len(symbols) // 32):
            same = i64(symbols[32 * s]) == length
            for k in range(length):
                if same and symbols[32 * s + 1 + k] != data[q + k]:
                    same = False
            if same:
                number = s
        q += length
    if number < 0 or number >= len(symbols) // 32 or q >= end:
        return -1
    place[0] = number
    place[1] = q
    place[2] = 0
    after = value_end(data, q, end, widths)
    if number == BODY_SECTION:  # data: a binary
        constructor = i64(data[q])
        width = 1 if constructor == 0xA0 else 4
        if constructor not in (0xA0, 0xB0) or q + 1 + width > end:
            place[0] = -1
            return -1
        place[1] = q + 1 + width
        place[2] = unsigned(data, q + 1, width)
    elif after >= 0:
        place[2] = after - q
    return after


@proven
def is_data(data: Array, p: int, end: int) -> bool:
    """Whether this is one section of data in its shortest form, up to the end: what most messages are.

    Bounds: as `section`.
    """
    if p + DATA_HEAD > end or data[p] != 0 or data[p + 1] != 0x53 or data[p + 2] != 0x75 or data[p + 3] != 0xA0:
        return False
    return p + DATA_HEAD + i64(data[p + 4]) == end


@kernel
def may_begin(data: Array, p: int, end: int) -> bool:
    """Whether the first octets of a message may be those between p and end."""
    if p < end and data[p] != 0:
        return False
    return p + 1 >= end or data[p + 1] in (0x53, 0x80, 0xA3, 0xB3)


@proven
def read_sections(
    data: Array, at: Array, length: Array, missing: Array, kinds: Array, widths: Array, sections: Array, symbols: Array,
    what: Array, body: Array, fill: Array, row: Array, value: Array, size: Array, form: Array, place: Array,
) -> None:  # fmt: skip
    """Read the sections of all records.

    `body` gets kind (-1: not seen), place, octets (-1: not seen) and pieces of each body; `fill` how many entries each
    slot has, which are a row, and a number, or place, octets and form of a text or map.

    Bounds: a record that does not lie in the data is not looked into. What `section` and `value_end` find lies in it.
    """
    for r in range(len(at)):
        p = at[r]
        end = p + length[r]
        body[0, r] = RAW
        body[1, r] = p
        body[2, r] = length[r] + missing[r]
        body[3, r] = 1
        if p < 0 or end > len(data) or (length[r] >= 3 and data[p] != 0):
            continue
        if is_data(data, p, end) and missing[r] == 0:
            body[0, r] = DATA
            body[1, r] = p + DATA_HEAD
            body[2, r] = length[r] - DATA_HEAD
            continue
        after = section(data, p, end, widths, symbols, place)
        if place[0] < 0:
            if missing[r] > 0 and may_begin(data, p, end):
                body[0, r] = -1
                body[2, r] = -1
            continue
        kind = NOTHING
        octets = 0
        pieces = 0
        seen = 0
        while True:
            number = place[0]
            if number < 0:
                break
            q = place[1]
            if sections[number, I_KIND] == A_BODY:
                pieces += 1
                if pieces == 1:
                    kind = number - BODY_SECTION + DATA
                    body[1, r] = q
                octets = octets + place[2] if after >= 0 or number == BODY_SECTION else -1
            elif after >= 0 and (seen >> number) & 1 == 0:
                seen |= 1 << number
                slot = sections[number, I_SLOT]
                code = i64(data[q])
                if sections[number, I_KIND] == A_MAP:
                    if kinds[code] == MAP:
                        put(row, value, size, form, fill, slot, r, q, after - q, MAP)
                elif kinds[code] == LIST:
                    i = inside(data, q, widths)
                    for f in range(min(items(data, q, after, widths), sections[number, I_SLOTS])):
                        follows = value_end(data, i, after, widths)
                        if follows < 0:
                            break
                        put_field(data, i, follows, kinds, widths, what, row, value, size, form, fill, slot + f, r)
                        i = follows
            if after < 0 or after == end:
                break
            p = after
            after = section(data, p, end, widths, symbols, place)
        if after < 0 and missing[r] == 0:
            body[0, r] = BROKEN
            body[1, r] = at[r]
            for slot in range(len(fill)):
                if fill[slot] > 0 and row[slot, fill[slot] - 1] == r:
                    fill[slot] -= 1
            continue
        if missing[r] > 0 and pieces == 0:
            kind = -1
            octets = -1
        body[0, r] = kind
        body[2, r] = octets
        body[3, r] = pieces


@proven
def put(
    row: Array, value: Array, size: Array, form: Array, fill: Array, slot: int, r: int, number: int, octets: int,
    kind: int,
) -> None:  # fmt: skip
    """Add an entry to a slot. Bounds: a record adds one at most to each, and there is room for one of each record."""
    k = fill[slot]
    row[slot, k] = r
    value[slot, k] = number
    size[slot, k] = octets
    form[slot, k] = kind
    fill[slot] = k + 1


@proven
def put_field(
    data: Array, p: int, after: int, kinds: Array, widths: Array, what: Array, row: Array, value: Array, size: Array,
    form: Array, fill: Array, slot: int, r: int,
) -> None:  # fmt: skip
    """Add the value from p to `after` to a slot, where it is of a kind that the slot takes.

    Bounds: as `put`; `value_end` found the value to lie in the data.
    """
    code = i64(data[p])
    kind = i64(kinds[code])
    q = p + 1
    if widths[code] >= SIZED:
        q += widths[code] - SIZED
    if what[slot] == TEXTS:
        if kind in (TEXTUAL, BINARY, UNSIGNED, SIGNED, UUID):
            put(row, value, size, form, fill, slot, r, q, after - q, kind)
    elif kind in (TRUE, FALSE):
        put(row, value, size, form, fill, slot, r, 1 if kind == TRUE else 0, 0, kind)
    elif kind in (BOOLEAN, UNSIGNED, SIGNED, TIMESTAMP):
        number = 0
        for k in range(q, after):
            octet = i64(data[k])
            if k == q and octet >= 0x80:
                if kind in (SIGNED, TIMESTAMP):
                    octet -= 256
                elif after - q == 8:
                    return
            number = number * 256 + octet
        put(row, value, size, form, fill, slot, r, number, 0, kind)


@kernel
def write_forms(data: Array, at: Array, size: Array, form: Array, out: Array, sizes: Array) -> int:
    """Write texts, and numbers and UUIDs as texts; returns the octets written."""
    j = 0
    for e in range(len(at)):
        begin = j
        if form[e] == UUID:
            j = write_uuid(data, at[e], out, j)
        elif form[e] in (UNSIGNED, SIGNED):
            if size[e] == 0:
                out[j] = 48  # the constructors that are zero by themselves
                j += 1
            else:
                j = write_integer(data, at[e], size[e], form[e] == SIGNED, out, j)
        else:
            j = copy(data, at[e], at[e] + size[e], out, j)
        sizes[e] = j - begin
    return j


@kernel
def hash_bodies(
    data: Array, at: Array, length: Array, begin: Array, size: Array, pieces: Array, widths: Array, symbols: Array,
    place: Array, lanes: Array, waiting: Array, hashed: Array,
) -> None:  # fmt: skip
    """The hash of each body; of several pieces, of all of them together."""
    for r in range(len(at)):
        if pieces[r] <= 1:
            there = pieces[r] == 1 and begin[r] >= 0 and size[r] > 0 and begin[r] + size[r] <= len(data)
            hashed[r] = hash_octets(data, begin[r], size[r] if there else 0)
            continue
        hash_begin(lanes, 0)
        p = at[r]
        end = p + length[r]
        while 0 <= p < end:
            p = section(data, p, end, widths, symbols, place)
            if p >= 0 and BODY_SECTION <= place[0] < BODY_SECTION + 3:
                hash_feed(lanes, waiting, 0, data, place[1], p - place[1])
        hashed[r] = hash_end(lanes, waiting, 0)
