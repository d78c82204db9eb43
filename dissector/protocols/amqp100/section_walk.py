"""The walk over the sections of messages of AMQP 1.0, in kernels."""

from amqpscope.dissector.fields.json_text import write_integer, write_uuid
from amqpscope.dissector.fields.text import copy
from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.hashing import hash_begin, hash_bytes, hash_end, hash_feed
from amqpscope.dissector.kernels.integers import unsigned
from amqpscope.dissector.kernels.kernel import i64, kernel, proven
from amqpscope.dissector.protocols.amqp100.state import Body, Messages, Place, Section
from amqpscope.dissector.protocols.amqp100.values import (
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
from amqpscope.dissector.protocols.amqp100.values import TEXT as TEXTUAL

KINDS = ("raw", "data", "amqp-sequence", "amqp-value", "none")
RAW, DATA, SEQUENCE, VALUE, NOTHING = range(len(KINDS))
"""What a body is: all bytes of the record, or those of sections; `none` where a message has no body."""
BROKEN = len(KINDS)
"""Begins with a section, and does not end with one; it counts as `raw`."""
TEXTS, NUMBERS, MAPS = range(3)
"""What a slot holds."""
A_LIST, A_MAP, A_BODY = range(3)
"""What is in a section."""
FIRST_CODE = 0x70
DATA_HEAD = 5
"""Bytes before the data of a section of up to 255 bytes: descriptor, constructor, length."""
BODY_SECTION = 5
"""Sections from this one on, up to the one with this number and two more, are bodies."""


@proven
def section(data: Array, p: int, end: int, widths: Array, symbols: Array, place: Array) -> int:
    """Return where the section that begins at p ends; -1 when none does, or it is cut off.

    Bounds: p is not below 0, and `end` not beyond the data; it only grows, and nothing is read from `end` on. A symbol
    has 31 bytes at most, after its length.

    `place` gets its number (-1: none), where its value's constructor is (of data: its bytes), and how many bytes it
    has from there on, as announced.
    """
    place[Place.NUMBER] = -1
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
    place[Place.NUMBER] = number
    place[Place.AT] = q
    place[Place.SIZE] = 0
    after = value_end(data, q, end, widths)
    if number == BODY_SECTION:  # data: a binary
        constructor = i64(data[q])
        width = 1 if constructor == 0xA0 else 4
        if constructor not in (0xA0, 0xB0) or q + 1 + width > end:
            place[Place.NUMBER] = -1
            return -1
        place[Place.AT] = q + 1 + width
        place[Place.SIZE] = unsigned(data, q + 1, width)
    elif after >= 0:
        place[Place.SIZE] = after - q
    return after


@proven
def is_data(data: Array, p: int, end: int) -> bool:
    """Return whether this is one section of data in its shortest form, up to the end: what most messages are.

    Bounds: as `section`.
    """
    if p + DATA_HEAD > end or data[p] != 0 or data[p + 1] != 0x53 or data[p + 2] != 0x75 or data[p + 3] != 0xA0:
        return False
    return p + DATA_HEAD + i64(data[p + 4]) == end


@kernel
def may_begin(data: Array, p: int, end: int) -> bool:
    """Return whether the first bytes of a message may be those between p and end."""
    if p < end and data[p] != 0:
        return False
    return p + 1 >= end or data[p + 1] in (0x53, 0x80, 0xA3, 0xB3)


@proven
def read_sections(of: Messages, data: Array, at: Array, length: Array, missing: Array) -> None:
    """Read the sections of all records.

    Bounds: a record that does not lie in the data is not looked into. What `section` and `value_end` find lies in it.
    """
    body = of.body
    for r in range(len(at)):
        p = at[r]
        end = p + length[r]
        put_body(body, r, RAW, p, length[r] + missing[r])
        if p < 0 or end > len(data) or (length[r] >= 3 and data[p] != 0):
            continue
        if is_data(data, p, end) and missing[r] == 0:
            put_body(body, r, DATA, p + DATA_HEAD, length[r] - DATA_HEAD)
        else:
            read_record(of, data, r, p, end, missing[r])


@proven
def put_body(body: Array, r: int, kind: int, at: int, size: int) -> None:
    """Note a body of one section."""
    body[Body.KIND, r] = kind
    body[Body.AT, r] = at
    body[Body.SIZE, r] = size
    body[Body.SECTIONS, r] = 1


@proven
def read_record(of: Messages, data: Array, r: int, begin: int, end: int, missing: int) -> None:
    """Read the sections of a record from `begin` on, whose body was put down as all of its bytes."""
    body, place = of.body, of.place
    p = begin
    after = section(data, p, end, of.widths, of.symbols, place)
    if place[Place.NUMBER] < 0:
        if missing > 0 and may_begin(data, p, end):
            body[Body.KIND, r] = -1
            body[Body.SIZE, r] = -1
        return
    kind = NOTHING
    size = 0
    sections = 0
    seen = 0
    while place[Place.NUMBER] >= 0:
        number = place[Place.NUMBER]
        q = place[Place.AT]
        if of.sections[number, Section.KIND] == A_BODY:
            sections += 1
            if sections == 1:
                kind = number - BODY_SECTION + DATA
                body[Body.AT, r] = q
            size = size + place[Place.SIZE] if after >= 0 or number == BODY_SECTION else -1
        elif after >= 0 and (seen >> number) & 1 == 0:
            seen |= 1 << number
            read_section(of, data, r, number, q, after)
        if after < 0 or after == end:
            break
        p = after
        after = section(data, p, end, of.widths, of.symbols, place)
    if after < 0 and missing == 0:
        body[Body.KIND, r] = BROKEN
        body[Body.AT, r] = begin
        for slot in range(len(of.fill)):
            if of.fill[slot] > 0 and of.row[slot, of.fill[slot] - 1] == r:
                of.fill[slot] -= 1
        return
    if missing > 0 and sections == 0:
        kind = -1
        size = -1
    body[Body.KIND, r] = kind
    body[Body.SIZE, r] = size
    body[Body.SECTIONS, r] = sections


@proven
def read_section(of: Messages, data: Array, r: int, number: int, q: int, after: int) -> None:
    """Take what a section holds that is no body: a map as it is, of a list its fields."""
    slot = of.sections[number, Section.SLOT]
    kind = i64(of.kinds[i64(data[q])])
    if of.sections[number, Section.KIND] == A_MAP:
        if kind == MAP:
            put(of, slot, r, q, after - q, MAP)
    elif kind == LIST:
        i = inside(data, q, of.widths)
        for f in range(min(items(data, q, after, of.widths), of.sections[number, Section.SLOTS])):
            follows = value_end(data, i, after, of.widths)
            if follows < 0:
                break
            put_field(of, data, i, follows, slot + f, r)
            i = follows


@proven
def put(of: Messages, slot: int, r: int, number: int, size: int, kind: int) -> None:
    """Add an entry to a slot. Bounds: a record adds one at most to each, and there is room for one of each record."""
    k = of.fill[slot]
    of.row[slot, k] = r
    of.value[slot, k] = number
    of.size[slot, k] = size
    of.form[slot, k] = kind
    of.fill[slot] = k + 1


@proven
def put_field(of: Messages, data: Array, p: int, after: int, slot: int, r: int) -> None:
    """Add the value from p to `after` to a slot, where it is of a kind that the slot takes.

    Bounds: as `put`; `value_end` found the value to lie in the data.
    """
    code = i64(data[p])
    kind = i64(of.kinds[code])
    q = p + 1
    if of.widths[code] >= SIZED:
        q += of.widths[code] - SIZED
    if of.what[slot] == TEXTS:
        if kind in (TEXTUAL, BINARY, UNSIGNED, SIGNED, UUID):
            put(of, slot, r, q, after - q, kind)
    elif kind in (TRUE, FALSE):
        put(of, slot, r, 1 if kind == TRUE else 0, 0, kind)
    elif kind in (BOOLEAN, UNSIGNED, SIGNED, TIMESTAMP):
        number = 0
        for k in range(q, after):
            byte = i64(data[k])
            if k == q and byte >= 0x80:
                if kind in (SIGNED, TIMESTAMP):
                    byte -= 256
                elif after - q == 8:
                    return
            number = number * 256 + byte
        put(of, slot, r, number, 0, kind)


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
    data: Array, at: Array, length: Array, body: Array, widths: Array, symbols: Array, place: Array,
    lanes: Array, waiting: Array, hashed: Array,
) -> None:  # fmt: skip
    """Hash each body, over all of its sections."""
    for r in range(len(at)):
        begin = body[Body.AT, r]
        size = body[Body.SIZE, r]
        if body[Body.SECTIONS, r] <= 1:
            there = body[Body.SECTIONS, r] == 1 and begin >= 0 and size > 0 and begin + size <= len(data)
            hashed[r] = hash_bytes(data, begin, size if there else 0)
            continue
        hash_begin(lanes, 0)
        p = at[r]
        end = p + length[r]
        while 0 <= p < end:
            p = section(data, p, end, widths, symbols, place)
            if p >= 0 and BODY_SECTION <= place[Place.NUMBER] < BODY_SECTION + 3:
                hash_feed(lanes, waiting, 0, data, place[Place.AT], p - place[Place.AT])
        hashed[r] = hash_end(lanes, waiting, 0)
