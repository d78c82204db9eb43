"""What ops take from records: bits, flags, numbers, and where texts, tables and lists lie. Bounds: see `walk`."""

from amqpscope.dissector.fields.columns import BOOLS, ENTRIES, INT32S
from amqpscope.dissector.fields.lists import COUNT, list_end
from amqpscope.dissector.fields.opcodes import FIXED, NULLABLE, SELECT, SIGNED, SIZE, SIZED_PACKING, TABLE, VALUE
from amqpscope.dissector.fields.problems import FIELD_OVERRUN, FLAGS_UNKNOWN, INTEGER_TOO_LARGE
from amqpscope.dissector.fields.state import Decoding, Entry, Op, Problem, Record, Tally, Target
from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import i64, kernel, proven


@proven
def problem(of: Decoding, r: int, code: int, at: int) -> None:
    """Note a problem."""
    n = of.tally[Tally.PROBLEMS]
    of.problems[n, Problem.ROW] = r
    of.problems[n, Problem.CODE] = code
    of.problems[n, Problem.AT] = at
    of.tally[Tally.PROBLEMS] = n + 1


@proven
def overrun(of: Decoding, r: int, at: int) -> None:
    """Report a record that ends inside a field at `at`, unless its end lies in a gap."""
    of.records[Record.AT, r] = -1
    of.tally[Tally.DONE] += 1
    if of.cut[r] == 0:
        problem(of, r, FIELD_OVERRUN, at)


@proven
def mark(bits: Array, at: int, r: int) -> None:
    """Set a row's bit in the bitmap that begins at `at`."""
    place = at + (r >> 3)
    bits[place] = bits[place] | (1 << (r & 7))


@proven
def take_bytes(of: Decoding, first: int, last: int) -> None:
    """Take the byte with the next bits."""
    records = of.records
    for k in range(first, last):
        r = of.order[k]
        at = records[Record.AT, r]
        if at >= records[Record.END, r]:
            overrun(of, r, at)
        else:
            records[Record.BITS, r] = of.data[at]
            records[Record.AT, r] = at + 1


@proven
def put_bits(of: Decoding, first: int, last: int, row: int, bit: int, slot: int) -> None:
    """Put one bit of the bytes or flags into a column of bools."""
    bits = of.bits
    valid = of.targets[slot, Target.VALID]
    value = of.targets[slot, Target.VALUE]
    for k in range(first, last):
        r = of.order[k]
        mark(bits, valid, r)
        place = value + (r >> 3)
        bits[place] = bits[place] | (((of.records[row, r] >> bit) & 1) << (r & 7))
    of.targets[slot, Target.FILL] += last - first


@proven
def take_flags(of: Decoding, first: int, last: int) -> None:
    """Take property flags: words of 15, of which the lowest bit says that another follows."""
    data, records = of.data, of.records
    for k in range(first, last):
        r = of.order[k]
        at = records[Record.AT, r]
        end = records[Record.END, r]
        flags = 0
        shift = 0
        more = 1
        while more == 1 and at + 2 <= end:
            word = i64(data[at]) * 256 + i64(data[at + 1])
            at += 2
            more = word & 1
            if shift < 60:
                flags |= (word >> 1) << shift
                shift += 15
        records[Record.FLAGS, r] = flags
        records[Record.AT, r] = at
        if more == 1:
            overrun(of, r, at)


@proven
def take_packing(of: Decoding, first: int, last: int, op: int) -> None:
    """Take packing flags: bytes of which the lowest bit of the first is the first field's."""
    data, records = of.data, of.records
    width = of.ops[op, Op.BYTES]
    for k in range(first, last):
        r = of.order[k]
        at = records[Record.AT, r]
        end = records[Record.END, r]
        size = width
        if of.ops[op, Op.KIND] == SIZED_PACKING:
            size = 0
            for i in range(at, min(at + width, end)):
                size = size * 256 + i64(data[i])
            at += width
        flags = 0
        more = 0
        for i in range(at, min(at + size, end)):
            if i < at + 4:
                flags |= i64(data[i]) << (8 * (i - at))
            else:
                more |= i64(data[i])
        records[Record.FLAGS, r] = flags
        records[Record.AT, r] = at + size
        if at + size > end:
            overrun(of, r, end)
        elif flags >> of.ops[op, Op.SHAPE] != 0 or more != 0:
            problem(of, r, FLAGS_UNKNOWN, at)


@proven
def take_numbers(of: Decoding, chosen: Array, a: int, b: int, op: int) -> None:
    """Take integers; those that are too large for their column are problems."""
    data, records = of.data, of.records
    what = of.ops[op, Op.KIND]
    width = of.ops[op, Op.BYTES]
    slot = of.ops[op, Op.SLOT]
    limit = 0
    if slot >= 0:
        limit = of.targets[slot, Target.LIMIT]
    for k in range(a, b):
        r = chosen[k]
        at = records[Record.AT, r]
        if at + width > records[Record.END, r]:
            overrun(of, r, at)
            continue
        v = i64(data[at])
        large = False
        if v >= 128:
            if what == SIGNED:
                v -= 256
            elif width == 8:
                large = True
                v = 0
        for i in range(at + 1, at + width):
            v = v * 256 + i64(data[i])
        records[Record.AT, r] = at + width
        if what == SIZE:
            records[Record.AT, r] = at + width + v
            if at + width + v > records[Record.END, r]:
                overrun(of, r, at)
        if what == SELECT:
            records[Record.FLAGS, r] = 1 << v if v < 62 else 0
        elif slot >= 0 and (large or v > limit or v < -limit - 1):
            problem(of, r, INTEGER_TOO_LARGE, at)
            continue
        if slot >= 0:
            put_number(of, slot, r, v)


@proven
def put_number(of: Decoding, slot: int, r: int, v: int) -> None:
    """Put a number where its column is, or into an entry."""
    targets = of.targets
    store = targets[slot, Target.STORE]
    value = targets[slot, Target.VALUE]
    fill = targets[slot, Target.FILL]
    mark(of.bits, targets[slot, Target.VALID], r)
    if store == INT32S:
        of.ints[value + r] = v
    elif store == BOOLS:
        if v != 0:
            mark(of.bits, value, r)
    elif store == ENTRIES:
        of.entries[Entry.ROW, fill] = r
        of.entries[Entry.AT, fill] = v
        of.entries[Entry.SIZE, fill] = 0
    else:
        of.longs[value + r] = v
    targets[slot, Target.FILL] = fill + 1


@proven
def put_entry(of: Decoding, slot: int, r: int, at: int, size: int) -> None:
    """Note where the value of a record lies."""
    targets, entries = of.targets, of.entries
    fill = targets[slot, Target.FILL]
    mark(of.bits, targets[slot, Target.VALID], r)
    entries[Entry.ROW, fill] = r
    entries[Entry.AT, fill] = at
    entries[Entry.SIZE, fill] = size
    targets[slot, Target.FILL] = fill + 1


@proven
def take_texts(of: Decoding, chosen: Array, a: int, b: int, op: int) -> None:
    """Take texts and tables, which stand after their length. A table that is cut gives what is there of it."""
    data, records = of.data, of.records
    what = of.ops[op, Op.KIND]
    width = of.ops[op, Op.BYTES]
    slot = of.ops[op, Op.SLOT]
    for k in range(a, b):
        r = chosen[k]
        at = records[Record.AT, r]
        end = records[Record.END, r]
        text = at + width
        if text > end:
            overrun(of, r, at)
            continue
        size = width
        if what == FIXED:
            text = at
        else:
            size = i64(data[at])
            for i in range(at + 1, text):
                size = size * 256 + i64(data[i])
        if (what == VALUE and size == 0) or (what == NULLABLE and size == (1 << (8 * width)) - 1):
            records[Record.AT, r] = text
            continue
        records[Record.AT, r] = text + size
        if text + size > end:
            overrun(of, r, at)
            if what not in (TABLE, VALUE) or of.cut[r] == 0:
                continue
            size = ~(end - text)
        if slot >= 0:
            put_entry(of, slot, r, text, size)


@kernel
def take_lists(of: Decoding, chosen: Array, a: int, b: int, op: int) -> None:
    """Take lists. Of one that overruns its record, what is there."""
    slot = of.ops[op, Op.SLOT]
    for k in range(a, b):
        r = chosen[k]
        at = of.records[Record.AT, r]
        end = of.records[Record.END, r]
        if at + COUNT > end:
            overrun(of, r, at)
            continue
        after = list_end(of.data, at, end, of.ops[op, Op.SHAPE], of.parts, of.shapes)
        size = after - at
        of.records[Record.AT, r] = after
        if after < 0:
            overrun(of, r, at)
            size = ~(end - at)
        if slot >= 0:
            put_entry(of, slot, r, at, size)
