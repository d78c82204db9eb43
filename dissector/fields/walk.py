"""The walk over the fields of many records: one op after the other, each over all records of a program.

Records in the order in which they came would have the processor guess at each op what comes next; so a program's
records go through it together. Each loop here and in `readers` does one thing to many records.

Bounds, for all kernels of both: `data` is read between `AT` and `END` of a record, which `begin` holds against its
length; programs, ops and slots are those of a `Plan`; a record gives a slot one value and one problem at most, and each
of its packing flags and its end one problem, which is what there is room for.
"""

from amqpscope.dissector.fields.opcodes import (
    BIT,
    BYTES,
    FIXED,
    FLAG_BIT,
    FLAGS,
    LIST,
    NULLABLE,
    PACKING,
    REST,
    SIZED_PACKING,
    TABLE,
    TAIL,
    TEXT,
    VALUE,
)
from amqpscope.dissector.fields.problems import BYTES_LEFT_OVER
from amqpscope.dissector.fields.readers import (
    problem,
    put_bits,
    take_bytes,
    take_flags,
    take_lists,
    take_numbers,
    take_packing,
    take_texts,
)
from amqpscope.dissector.fields.state import Decoding, Op, Record, Tally
from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import proven


@proven
def group(program: Array, place: Array, order: Array) -> None:
    """Sort records by program; `place` is where the first of each goes, those without a program in front."""
    for r in range(len(program)):
        p = max(program[r], -1) + 1
        order[place[p]] = r
        place[p] += 1


@proven
def walk(of: Decoding, groups: Array, starts: Array, offset: Array, length: Array) -> None:
    """Run all programs; `order[groups[p]:groups[p + 1]]` are the records of program p."""
    order, records = of.order, of.records
    for p in range(len(starts) - 1):
        first = groups[p]
        last = begin(of, first, groups[p + 1], offset, length)
        bit = 8
        for op in range(starts[p], starts[p + 1]):
            if first == last:
                break
            what = of.ops[op, Op.KIND]
            flag = of.ops[op, Op.FLAG]
            slot = of.ops[op, Op.SLOT]
            chosen = order
            a = first
            b = last
            if flag >= 0 and what != FLAG_BIT:
                chosen = of.picked
                a = 0
                b = pick(of, first, last, flag)
            if what == BIT:
                # bits that follow each other share bytes, lowest first
                if bit == 8:
                    take_bytes(of, first, last)
                    last = going(of, first, last)
                    bit = 0
                if slot >= 0:
                    put_bits(of, first, last, Record.BITS, bit, slot)
                bit += 1
            elif what == FLAG_BIT:
                if slot >= 0:
                    put_bits(of, first, last, Record.FLAGS, flag, slot)
            elif what == FLAGS:
                take_flags(of, first, last)
            elif what in (PACKING, SIZED_PACKING):
                take_packing(of, first, last, op)
            elif what == TAIL:
                finish(of, chosen, a, b)
            elif what == REST:
                for k in range(a, b):
                    records[Record.AT, chosen[k]] = records[Record.END, chosen[k]]
            else:
                bit = 8
                if what == LIST:
                    take_lists(of, chosen, a, b, op)
                elif what in (TEXT, TABLE, NULLABLE, BYTES, VALUE, FIXED):
                    take_texts(of, chosen, a, b, op)
                else:
                    take_numbers(of, chosen, a, b, op)
            if of.tally[Tally.DONE] > 0:
                last = going(of, first, last)
        for k in range(first, last):
            r = order[k]
            if records[Record.AT, r] < records[Record.END, r]:
                problem(of, r, BYTES_LEFT_OVER, records[Record.AT, r])


@proven
def begin(of: Decoding, first: int, last: int, offset: Array, length: Array) -> int:
    """Set out; returns the end of the records that lie in the data."""
    order, records = of.order, of.records
    kept = first
    for k in range(first, last):
        r = order[k]
        at = offset[r]
        end = at + length[r]
        records[Record.AT, r] = at
        records[Record.END, r] = end
        records[Record.FLAGS, r] = 0
        order[kept] = r
        if at >= 0 and end <= len(of.data):
            kept += 1
    return kept


@proven
def pick(of: Decoding, first: int, last: int, flag: int) -> int:
    """Pick the records that have a flag; returns their number."""
    n = 0
    for k in range(first, last):
        of.picked[n] = of.order[k]
        n += (of.records[Record.FLAGS, of.order[k]] >> flag) & 1
    return n


@proven
def going(of: Decoding, first: int, last: int) -> int:
    """Leave out finished records. Return the end of the others."""
    if of.tally[Tally.DONE] == 0:
        return last
    of.tally[Tally.DONE] = 0
    kept = first
    for k in range(first, last):
        r = of.order[k]
        of.order[kept] = r
        if of.records[Record.AT, r] >= 0:
            kept += 1
    return kept


@proven
def finish(of: Decoding, chosen: Array, a: int, b: int) -> None:
    """Finish the records that end here."""
    for k in range(a, b):
        r = chosen[k]
        if of.records[Record.AT, r] >= of.records[Record.END, r]:
            of.records[Record.AT, r] = -1
            of.tally[Tally.DONE] += 1
