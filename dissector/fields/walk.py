"""The walk over the fields of many records: one op after the other, each over all records of a program.

Records in the order in which they came would have the processor guess at each op what comes next; so a program's
records go through it together. Each loop here does one thing to many records.

Bounds, for all kernels here: `data` is read between `at` and `end` of a record, which `begin` holds against its length;
programs, ops and slots are those of a `Plan`; a record gives a slot one value and one problem at most, and each of its
packing flags and its end one problem, which is what there is room for.
"""

from amqpscope.dissector.fields.columns import BOOLS, ENTRIES, INT32S
from amqpscope.dissector.fields.lists import COUNT, list_end
from amqpscope.dissector.fields.problems import BYTES_LEFT_OVER, FIELD_OVERRUN, FLAGS_UNKNOWN, INTEGER_TOO_LARGE
from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import i64, kernel, proven

(
    UNSIGNED, SIGNED, BIT, TEXT, TABLE, FLAGS, FLAG_BIT,
    SELECT,  # as UNSIGNED; ops with a flag are run where its value is the flag
    LIST,
    NULLABLE,  # as TEXT; a length of all ones means null
    TAIL,  # the record may end here
    REST,  # all bytes to the end
    PACKING,  # packing flags of AMQP 0-10, lowest byte first; its shape is the number of fields
    SIZED_PACKING,  # the same behind their size
    OCTETS,  # as TEXT, and need not be any
    VALUE,  # as TABLE; a length of 0 means null
    FIXED,  # a value of so many bytes, as text
    SIZE,  # as UNSIGNED, and so many bytes behind it, which are passed over
) = range(18)  # fmt: skip
O_KIND, O_WIDTH, O_SLOT, O_FLAG, O_SHAPE, O_HEIGHT = range(6)
"""Columns of the ops of a plan. Slot -1: read and forgotten; flag -1: always there; shape of a list or form."""
T_LIMIT, T_STORE, T_VALID, T_VALUE, T_FILL, T_HEIGHT = range(6)
"""Columns of slots: largest number; what holds the values; where validity and values are; the next entry."""
E_ROW, E_AT, E_SIZE, E_HEIGHT = range(4)
"""Rows of entries. Of a table or list that is cut the size is the complement of the bytes that are there."""
A_AT, A_END, A_FLAGS, A_OCTET, A_HEIGHT = range(5)
"""Rows of the state: where each record is, -1 when it is done; its end; its flags; the byte with its bits."""
N_PROBLEMS, N_DONE, N_HEIGHT = range(3)
"""Counts: problems, and records that are newly done."""


@proven
def group(program: Array, place: Array, order: Array) -> None:
    """Sort records by program; `place` is where the first of each goes, those without a program in front."""
    for r in range(len(program)):
        p = max(program[r], -1) + 1
        order[place[p]] = r
        place[p] += 1


@proven
def walk(
    data: Array, order: Array, groups: Array, offset: Array, length: Array, cut: Array, starts: Array, ops: Array,
    slots: Array, bits: Array, ints: Array, longs: Array, entries: Array, problems: Array, members: Array,
    shapes: Array, state: Array, picked: Array, counts: Array,
) -> None:  # fmt: skip
    """Run all programs; `order[groups[p]:groups[p + 1]]` are the records of program p."""
    for p in range(len(starts) - 1):
        first = groups[p]
        last = begin(data, order, first, groups[p + 1], offset, length, state)
        bit = 8
        for op in range(starts[p], starts[p + 1]):
            if first == last:
                break
            what = ops[op, O_KIND]
            width = ops[op, O_WIDTH]
            s = ops[op, O_SLOT]
            chosen = order
            a = first
            b = last
            if ops[op, O_FLAG] >= 0 and what != FLAG_BIT:
                chosen = picked
                a = 0
                b = pick(order, first, last, state, ops[op, O_FLAG], picked)
            if what == BIT:
                # bits that follow each other share bytes, lowest first
                if bit == 8:
                    take_octets(data, order, first, last, state, cut, problems, counts)
                    last = going(order, first, last, state, counts)
                    bit = 0
                if s >= 0:
                    put_bits(order, first, last, state, A_OCTET, bit, s, slots, bits)
                bit += 1
            elif what == FLAG_BIT:
                if s >= 0:
                    put_bits(order, first, last, state, A_FLAGS, ops[op, O_FLAG], s, slots, bits)
            elif what == FLAGS:
                take_flags(data, order, first, last, state, cut, problems, counts)
            elif what in (PACKING, SIZED_PACKING):
                take_packing(
                    data, order, first, last, state, cut, what, width, ops[op, O_SHAPE], problems, counts
                )  # fmt: skip
            elif what == TAIL:
                finish(chosen, a, b, state, counts)
            elif what == REST:
                for k in range(a, b):
                    state[A_AT, chosen[k]] = state[A_END, chosen[k]]
            else:
                bit = 8
                if what == LIST:
                    take_lists(
                        data, chosen, a, b, state, cut, ops[op, O_SHAPE], s, slots, bits, entries, problems, members,
                        shapes, counts,
                    )  # fmt: skip
                elif what in (TEXT, TABLE, NULLABLE, OCTETS, VALUE, FIXED):
                    take_texts(data, chosen, a, b, state, cut, what, width, s, slots, bits, entries, problems, counts)
                else:
                    take_numbers(
                        data, chosen, a, b, state, cut, what, width, s, slots, bits, ints, longs, entries, problems,
                        counts,
                    )  # fmt: skip
            if counts[N_DONE] > 0:
                last = going(order, first, last, state, counts)
        for k in range(first, last):
            r = order[k]
            if state[A_AT, r] < state[A_END, r]:
                problem(r, BYTES_LEFT_OVER, state[A_AT, r], problems, counts)


@proven
def begin(data: Array, order: Array, first: int, last: int, offset: Array, length: Array, state: Array) -> int:
    """Set out; returns the end of the records that lie in the data."""
    kept = first
    for k in range(first, last):
        r = order[k]
        at = offset[r]
        end = at + length[r]
        state[A_AT, r] = at
        state[A_END, r] = end
        state[A_FLAGS, r] = 0
        order[kept] = r
        if at >= 0 and end <= len(data):
            kept += 1
    return kept


@proven
def pick(order: Array, first: int, last: int, state: Array, flag: int, picked: Array) -> int:
    """The records that have a flag; returns how many."""
    n = 0
    for k in range(first, last):
        picked[n] = order[k]
        n += (state[A_FLAGS, order[k]] >> flag) & 1
    return n


@proven
def going(order: Array, first: int, last: int, state: Array, counts: Array) -> int:
    """Leave out the records that are done; returns the end of the others."""
    if counts[N_DONE] == 0:
        return last
    counts[N_DONE] = 0
    kept = first
    for k in range(first, last):
        r = order[k]
        order[kept] = r
        if state[A_AT, r] >= 0:
            kept += 1
    return kept


@proven
def problem(r: int, code: int, at: int, problems: Array, counts: Array) -> None:
    """Note a problem."""
    n = counts[N_PROBLEMS]
    problems[n, 0] = r
    problems[n, 1] = code
    problems[n, 2] = at
    counts[N_PROBLEMS] = n + 1


@proven
def overrun(r: int, at: int, state: Array, cut: Array, problems: Array, counts: Array) -> None:
    """A record ends inside of a field at `at`, which is no problem where its end lies in a gap."""
    state[A_AT, r] = -1
    counts[N_DONE] += 1
    if cut[r] == 0:
        problem(r, FIELD_OVERRUN, at, problems, counts)


@proven
def finish(chosen: Array, a: int, b: int, state: Array, counts: Array) -> None:
    """Records may end here."""
    for k in range(a, b):
        r = chosen[k]
        if state[A_AT, r] >= state[A_END, r]:
            state[A_AT, r] = -1
            counts[N_DONE] += 1


@proven
def take_octets(
    data: Array, order: Array, first: int, last: int, state: Array, cut: Array, problems: Array, counts: Array
) -> None:
    """Take the byte with the next bits."""
    for k in range(first, last):
        r = order[k]
        at = state[A_AT, r]
        if at >= state[A_END, r]:
            overrun(r, at, state, cut, problems, counts)
        else:
            state[A_OCTET, r] = data[at]
            state[A_AT, r] = at + 1


@proven
def put_bits(
    order: Array, first: int, last: int, state: Array, row: int, bit: int, s: int, slots: Array, bits: Array
) -> None:
    """Put one bit of the bytes or flags into a column of bools."""
    valid = slots[s, T_VALID]
    value = slots[s, T_VALUE]
    for k in range(first, last):
        r = order[k]
        place = r >> 3
        bits[valid + place] = bits[valid + place] | (1 << (r & 7))
        bits[value + place] = bits[value + place] | (((state[row, r] >> bit) & 1) << (r & 7))
    slots[s, T_FILL] += last - first


@proven
def take_flags(
    data: Array, order: Array, first: int, last: int, state: Array, cut: Array, problems: Array, counts: Array
) -> None:
    """Take property flags: words of 15, of which the lowest bit says that another follows."""
    for k in range(first, last):
        r = order[k]
        at = state[A_AT, r]
        end = state[A_END, r]
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
        state[A_FLAGS, r] = flags
        state[A_AT, r] = at
        if more == 1:
            overrun(r, at, state, cut, problems, counts)


@proven
def take_packing(
    data: Array, order: Array, first: int, last: int, state: Array, cut: Array, what: int, width: int, fields: int,
    problems: Array, counts: Array,
) -> None:  # fmt: skip
    """Take packing flags: bytes of which the lowest bit of the first is the first field's."""
    for k in range(first, last):
        r = order[k]
        at = state[A_AT, r]
        end = state[A_END, r]
        size = width
        if what == SIZED_PACKING:
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
        state[A_FLAGS, r] = flags
        state[A_AT, r] = at + size
        if at + size > end:
            overrun(r, end, state, cut, problems, counts)
        elif flags >> fields != 0 or more != 0:
            problem(r, FLAGS_UNKNOWN, at, problems, counts)


@proven
def take_numbers(
    data: Array, chosen: Array, a: int, b: int, state: Array, cut: Array, what: int, width: int, s: int, slots: Array,
    bits: Array, ints: Array, longs: Array, entries: Array, problems: Array, counts: Array,
) -> None:  # fmt: skip
    """Take integers; those that are too large for their column are problems."""
    store = -1
    limit = 0
    valid = 0
    value = 0
    fill = 0
    if s >= 0:
        store = slots[s, T_STORE]
        limit = slots[s, T_LIMIT]
        valid = slots[s, T_VALID]
        value = slots[s, T_VALUE]
        fill = slots[s, T_FILL]
    for k in range(a, b):
        r = chosen[k]
        at = state[A_AT, r]
        if at + width > state[A_END, r]:
            overrun(r, at, state, cut, problems, counts)
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
        state[A_AT, r] = at + width
        if what == SIZE:
            state[A_AT, r] = at + width + v
            if at + width + v > state[A_END, r]:
                overrun(r, at, state, cut, problems, counts)
        if what == SELECT:
            state[A_FLAGS, r] = 1 << v if v < 62 else 0
        elif s >= 0 and (large or v > limit or v < -limit - 1):
            problem(r, INTEGER_TOO_LARGE, at, problems, counts)
            continue
        if s < 0:
            continue
        place = valid + (r >> 3)
        bits[place] = bits[place] | (1 << (r & 7))
        if store == INT32S:
            ints[value + r] = v
        elif store == BOOLS:
            place = value + (r >> 3)
            if v != 0:
                bits[place] = bits[place] | (1 << (r & 7))
        elif store == ENTRIES:
            entries[E_ROW, fill] = r
            entries[E_AT, fill] = v
            entries[E_SIZE, fill] = 0
        else:
            longs[value + r] = v
        fill += 1
    if s >= 0:
        slots[s, T_FILL] = fill


@proven
def take_texts(
    data: Array, chosen: Array, a: int, b: int, state: Array, cut: Array, what: int, width: int, s: int, slots: Array,
    bits: Array, entries: Array, problems: Array, counts: Array,
) -> None:  # fmt: skip
    """Take texts and tables, which stand behind their length. A table that is cut gives what is there of it."""
    valid = 0
    fill = 0
    if s >= 0:
        valid = slots[s, T_VALID]
        fill = slots[s, T_FILL]
    for k in range(a, b):
        r = chosen[k]
        at = state[A_AT, r]
        end = state[A_END, r]
        text = at + width
        if text > end:
            overrun(r, at, state, cut, problems, counts)
            continue
        size = width
        if what == FIXED:
            text = at
        else:
            size = i64(data[at])
            for i in range(at + 1, text):
                size = size * 256 + i64(data[i])
        if (what == VALUE and size == 0) or (what == NULLABLE and size == (1 << (8 * width)) - 1):
            state[A_AT, r] = text
            continue
        state[A_AT, r] = text + size
        if text + size > end:
            overrun(r, at, state, cut, problems, counts)
            if what not in (TABLE, VALUE) or cut[r] == 0:
                continue
            size = ~(end - text)
        if s >= 0:
            place = valid + (r >> 3)
            bits[place] = bits[place] | (1 << (r & 7))
            entries[E_ROW, fill] = r
            entries[E_AT, fill] = text
            entries[E_SIZE, fill] = size
            fill += 1
    if s >= 0:
        slots[s, T_FILL] = fill


@kernel
def take_lists(
    data: Array, chosen: Array, a: int, b: int, state: Array, cut: Array, shape: int, s: int, slots: Array,
    bits: Array, entries: Array, problems: Array, members: Array, shapes: Array, counts: Array,
) -> None:  # fmt: skip
    """Take lists. Of one that overruns its record, what is there."""
    for k in range(a, b):
        r = chosen[k]
        at = state[A_AT, r]
        end = state[A_END, r]
        if at + COUNT > end:
            overrun(r, at, state, cut, problems, counts)
            continue
        after = list_end(data, at, end, shape, members, shapes)
        size = after - at
        state[A_AT, r] = after
        if after < 0:
            overrun(r, at, state, cut, problems, counts)
            size = ~(end - at)
        if s >= 0:
            fill = slots[s, T_FILL]
            place = slots[s, T_VALID] + (r >> 3)
            bits[place] = bits[place] | (1 << (r & 7))
            entries[E_ROW, fill] = r
            entries[E_AT, fill] = at
            entries[E_SIZE, fill] = size
            slots[s, T_FILL] = fill + 1
