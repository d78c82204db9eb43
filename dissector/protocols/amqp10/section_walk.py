"""The walk over the sections of messages of AMQP 1.0, in kernels."""

from amqpscope.dissector.fields.json_text import write_integer, write_uuid
from amqpscope.dissector.fields.text import copy
from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.hashing import hash_begin, hash_bytes, hash_end, hash_feed
from amqpscope.dissector.kernels.integers import unsigned
from amqpscope.dissector.kernels.kernel import i64, kernel, proven
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
)
from amqpscope.dissector.protocols.amqp10.values import TEXT as TEXTUAL

KINDS = ("raw", "data", "amqp-sequence", "amqp-value", "none")
RAW, DATA, SEQUENCE, VALUE, NOTHING = range(len(KINDS))
"""What a body is: all bytes of the record, or those of sections; `none` where a message has no body."""
BROKEN = len(KINDS)
"""Begins with a section, and does not end with one; it counts as `raw`."""


# What a slot holds.
TEXTS, NUMBERS, MAPS = range(3)
# Columns of the table of sections: what is in it, first slot, how many.
I_KIND, I_SLOT, I_SLOTS = range(3)
A_LIST, A_MAP, A_BODY = range(3)


FIRST_CODE = 0x70


DATA_HEAD = 5
"""Bytes in front of the data of a section of up to 255 octets: descriptor, constructor, length."""
BODY_SECTION = 5
"""Sections from this one on, up to the one with this number and two more, are bodies."""


@proven
def section(data: Array, p: int, end: int, widths: Array, symbols: Array, place: Array) -> int:
    """Where the section that begins at p ends; -1 when none does, or it is cut off.

    Bounds: p is not below 0, and `end` not beyond the data; it only grows, and nothing is read from `end` on. A symbol
    has 31 bytes at most, behind its length.

    `place` gets its number (-1: none), where its value's constructor is (of data: its bytes), and how many bytes it
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
    """Whether the first bytes of a message may be those between p and end."""
    if p < end and data[p] != 0:
        return False
    return p + 1 >= end or data[p + 1] in (0x53, 0x80, 0xA3, 0xB3)


@proven
def read_sections(
    data: Array, at: Array, length: Array, missing: Array, kinds: Array, widths: Array, sections: Array, symbols: Array,
    what: Array, body: Array, fill: Array, row: Array, value: Array, size: Array, form: Array, place: Array,
) -> None:  # fmt: skip
    """Read the sections of all records.

    `body` gets kind (-1: not seen), place, bytes (-1: not seen) and pieces of each body; `fill` how many entries each
    slot has, which are a row, and a number, or place, bytes and form of a text or map.

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
    """Write texts, and numbers and UUIDs as texts; returns the bytes written."""
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
            hashed[r] = hash_bytes(data, begin[r], size[r] if there else 0)
            continue
        hash_begin(lanes, 0)
        p = at[r]
        end = p + length[r]
        while 0 <= p < end:
            p = section(data, p, end, widths, symbols, place)
            if p >= 0 and BODY_SECTION <= place[0] < BODY_SECTION + 3:
                hash_feed(lanes, waiting, 0, data, place[1], p - place[1])
        hashed[r] = hash_end(lanes, waiting, 0)
