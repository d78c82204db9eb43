"""The fields of many records at once: bytes to Arrow columns, as the specification says.

A record is what stands after a method's ids or a command's version, or a content header's property flags. Each kind
of record has a program: one op per field, in wire order (AMQP 0-9-1, section 4.2.5). The walk over them puts numbers
where their columns are; of text, tables and lists it notes row, place and bytes as entries, from which other kernels
make the columns. A further protocol adds programs, and where it must, ops.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from amqpscope.dissector.fields import columns, lists, text, walk
from amqpscope.dissector.fields import tables as fieldtable
from amqpscope.dissector.fields.arrow import array
from amqpscope.dissector.fields.columns import ENTRIES, Room, Validity
from amqpscope.dissector.fields.lists import list_end
from amqpscope.dissector.fields.opcodes import (
    BYTES,
    FIXED,
    LIST,
    NULLABLE,
    PACKING,
    REST,
    SELECT,
    SIZED_PACKING,
    TABLE,
    TAIL,
    TEXT,
    VALUE,
)
from amqpscope.dissector.fields.plan import TRACE_COLUMNS, TRACE_TABLE, Plan, Slot
from amqpscope.dissector.fields.problems import PROBLEM_CODES, TABLE_MALFORMED, TEXT_NOT_UTF8
from amqpscope.dissector.fields.state import Decoding, Entry, Op, Record, Tally, Target
from amqpscope.dissector.fields.text import Bytes, Integers
from amqpscope.dissector.fields.trace import _problems, trace_columns
from amqpscope.dissector.kernels.integers import unsigned
from amqpscope.dissector.kernels.kernel import call, i64, kernel

__all__ = ["PROBLEM_CODES", "REDACTED", "Decoded", "Plan", "decode"]

REDACTED = "<redacted>"
"""What stands in the column of a secret, whatever it was."""


@dataclass(frozen=True)
class Decoded:
    """The fields of n records. Problems are in the order of their rows and, within a row, of their places."""

    columns: dict[str, pa.Array]
    """Every column of the plan, n rows each; null where the record does not have the field, or not legibly."""
    problem_row: Integers
    problem_code: Integers
    """Index into `PROBLEM_CODES`."""
    problem_at: Integers
    """Place in the data at which the problem was noticed."""


def decode(
    plan: Plan, data: Bytes, offset: Integers, length: Integers, program: Integers, cut: Bytes, compiled: bool
) -> Decoded:
    """Decode n records.

    Args:
        plan: the programs.
        data: the bytes that hold all records, less than 256 MiB of them; writable, as all that kernels get.
        offset: (n,) where each record begins.
        length: (n,) its bytes; `offset + length` is never beyond `data`.
        program: (n,) number of its program; below 0 for a record without fields.
        cut: (n,) 1 where the end of the record lies in a gap: what is there is decoded (of a table, the entries in
            front of the gap) and what is missing is no problem.
        compiled: whether the kernels run compiled.
    """
    n = len(program)
    counts = np.bincount(np.maximum(program, -1) + 1, minlength=len(plan.uses) + 1)
    ends = np.cumsum(counts)
    present = counts[1:] @ plan.uses
    room = Room(n, plan.stores, present > 0)
    held = np.where(plan.stores == ENTRIES, present, 0)
    fill = np.cumsum(held) - held
    targets = np.column_stack((plan.limits, plan.stores, room.valid_at, room.value_at, fill))
    entries = Entry.room(int(held.sum()))
    problems = np.empty((3 * n + int(present.sum()), 3), np.int64)
    order, picked = np.empty(n, np.int64), np.empty(n, np.int64)
    tally = Tally.make(1)[0]
    call(walk.group, compiled, program, ends - counts, order)
    of = Decoding(
        data, cut, plan.ops, plan.lists.parts, plan.lists.shapes, order, picked, Record.room(n), targets,
        room.bits, room.ints, room.longs, entries, problems, tally,
    )  # fmt: skip
    call(walk.walk, compiled, of, ends, plan.starts, offset, length)
    row = entries[Entry.ROW]
    used = counts[1:] > 0
    in_order = used @ plan.uses < 2  # one program alone has the rows in their order
    arrays: dict[str, pa.Array] = {}
    found = [problems[: tally[Tally.PROBLEMS]]]
    for k in np.flatnonzero(targets[:, Target.FILL] > fill).tolist():
        slot, begin, end = plan.slots[k], int(fill[k]), int(targets[k, Target.FILL])
        if plan.stores[k] != ENTRIES:
            arrays[slot.name] = room.numbers(k, slot.type, end - begin)
            continue
        part = slice(begin, end)
        if not in_order[k]:
            entries[:, part] = entries[:, part].take(np.argsort(row[part], kind="stable"), axis=1)
        here = row[part]
        if slot.secret:
            arrays[slot.name] = columns.constant(room.validity(k, end - begin), here, REDACTED)
            continue
        kinds = {kind for kind in plan.kinds[used, k].tolist() if kind >= 0}
        for kind in kinds:
            valid, held = room.validity(k, end - begin), entries[:, part]
            if len(kinds) > 1:  # what several kinds of records have, each its own way
                held = held[:, plan.kinds[program[here], k] == kind]
                valid = columns.validity(n, held[Entry.ROW])
            made, more = _column(plan, k, kind, valid, data, program, held, compiled)
            if slot.name in arrays:
                made[slot.name] = pc.coalesce(arrays[slot.name], made[slot.name])
            arrays |= made
            found += more
    all_problems = found[0] if len(found) == 1 else np.concatenate(found)
    if len(all_problems):
        all_problems = all_problems[np.lexsort((all_problems[:, 1], all_problems[:, 2], all_problems[:, 0]))]
    return Decoded(columns.filled(arrays, plan.columns, n), *all_problems.T.copy())


LENGTH_FIRST = (TEXT, TABLE, BYTES, VALUE, SIZED_PACKING)
"""Ops of fields that begin with the length of the rest."""
EMPTY = 2
"""Bytes of the JSON text of a table or list without entries."""


def _column(
    plan: Plan, k: int, kind: int, valid: Validity, data: Bytes, program: Integers, entries: Integers, compiled: bool
) -> tuple[dict[str, pa.Array], Iterable[Integers]]:
    """Return the columns of slot k with text, tables, values or lists, and the problems in them."""
    slot = plan.slots[k]
    row, at, size = entries
    if kind == LIST:
        return _lists(plan, slot, valid, data, row, at, size, plan.shapes[program[row], k], compiled)
    if kind in (TABLE, VALUE, FIXED):
        clipped = size < 0
        form = plan.shapes[program[row], k]
        tables = fieldtable.render(data, at, np.where(clipped, ~size, size), compiled, plan.dialect, form)
        made = {}
        if slot.name in plan.columns:
            column = columns.texts(valid, row, tables.sizes, tables.data, compiled)
            made[slot.name] = _without(column, row[clipped & (tables.sizes == EMPTY)])
        found = tables.problems
        if len(found):
            found = found[~(clipped[found[:, 0]] & (found[:, 1] == TABLE_MALFORMED))]
            found[:, 0] = row[found[:, 0]]
        if slot.name == TRACE_TABLE and not TRACE_COLUMNS.keys().isdisjoint(plan.columns):
            traced, wrong = trace_columns(valid.rows, data, row, tables.trace, compiled)
            return made | traced, (found, wrong)
        return made, (found,)
    texts = text.gather(data, at, size, compiled)
    made = {slot.name: columns.texts(valid, row, texts.sizes, texts.data, compiled)}
    if kind == BYTES or not len(texts.invalid):
        return made, ()
    return made, (_problems(row[texts.invalid], TEXT_NOT_UTF8, texts.invalid_at),)


def _lists(
    plan: Plan, slot: Slot, valid: Validity, data: Bytes, row: Integers, value: Integers, size: Integers,
    shapes: Integers, compiled: bool,
) -> tuple[dict[str, pa.Array], Iterable[Integers]]:  # fmt: skip
    """Return the column of a slot with lists, and the problems in them."""
    clipped = size < 0
    size = np.where(clipped, ~size, size)
    found = lists.render(data, value, size, shapes, plan.growth, plan.lists, compiled)
    found.problems[:, 0] = row[found.problems[:, 0]]
    made = columns.texts(valid, row, found.sizes, found.data, compiled)
    return {slot.name: _without(made, row[clipped & (found.sizes == EMPTY)])}, (found.problems,)


def _without(column: pa.Array, rows: Integers) -> pa.Array:
    """Return a column with null in these rows: of what was cut before its first entry nothing is known."""
    if not len(rows):
        return column
    mask = np.zeros(len(column), np.bool_)
    mask[rows] = True
    return pc.if_else(array(mask), None, column)


@kernel
def reversed_bytes(data: Bytes, at: int, end: int) -> int:
    """Read an integer whose lowest byte comes first; of more than four bytes the first ones."""
    value = 0
    for k in range(min(end - at, 4)):
        value |= i64(data[at + k]) << 8 * k
    return value


@kernel
def fields_end(
    data: Bytes, at: int, end: int, begin: int, stop: int, ops: Integers, members: Integers, shapes: Integers
) -> int:
    """Return where the fields of ops `begin` to `stop` end; -1 if not before `end`. No bits share bytes in them.

    If fields that may be left out do not end before `end`, they are.
    """
    flags = 0
    least = -1
    for op in range(begin, stop):
        what = ops[op, Op.KIND]
        if ops[op, Op.FLAG] >= 0 and (flags >> ops[op, Op.FLAG]) & 1 == 0:
            continue
        if what == REST or (what == TAIL and at == end):
            return end
        if what == TAIL and at < end:
            least = at
        w = ops[op, Op.BYTES]
        if at + w > end:
            return least
        if what == LIST:
            at = list_end(data, at, end, ops[op, Op.SHAPE], members, shapes)
            if at < 0:
                return least
            continue
        v = 0
        if w <= 4:
            v = unsigned(data, at, w)
        at += w
        if what == SELECT and v < 62:
            flags = 1 << v
        elif what == PACKING:
            flags = reversed_bytes(data, at - w, at)
        elif what == SIZED_PACKING:
            flags = reversed_bytes(data, at, min(at + v, end))
        if what in (PACKING, SIZED_PACKING) and flags >> ops[op, Op.SHAPE] != 0:
            return least
        if what in LENGTH_FIRST or (what == NULLABLE and v != (1 << (8 * w)) - 1):
            at += v
    return at if at <= end else least
