"""The fields of many records at once: octets to Arrow columns, as the specification says.

A record is what stands behind a method's ids or a command's version, or a content header's property flags. Each kind
of record has a program: one op per field, in wire order (AMQP 0-9-1, section 4.2.5). The walk over them puts numbers
where their columns are; of text, tables and lists it notes row, place and octets as entries, from which other kernels
make the columns. A further protocol adds programs, and where it must, ops.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from amqpscope.dissector.fields import columns, lists, text, walk
from amqpscope.dissector.fields import tables as fieldtable
from amqpscope.dissector.fields.arrow import array
from amqpscope.dissector.fields.columns import BOOLS, ENTRIES, STORES, Room, Validity
from amqpscope.dissector.fields.lists import list_end
from amqpscope.dissector.fields.problems import PROBLEM_CODES, TABLE_MALFORMED, TEXT_NOT_UTF8, TRACEPARENT_MALFORMED
from amqpscope.dissector.fields.tables import unsigned
from amqpscope.dissector.fields.text import Integers, Octets
from amqpscope.dissector.fields.walk import (
    BIT,
    FLAG_BIT,
    FLAGS,
    LIST,
    NULLABLE,
    O_FLAG,
    O_KIND,
    O_SHAPE,
    O_WIDTH,
    REST,
    SELECT,
    SIGNED,
    TABLE,
    TAIL,
    TEXT,
    UNSIGNED,
)
from amqpscope.dissector.kernels.kernel import call, i64, kernel, proven
from amqpscope.spec.model import Class, Field, Protocol, Struct

__all__ = ["PROBLEM_CODES", "REDACTED", "Decoded", "Plan", "decode"]

REDACTED = "<redacted>"
"""What stands in the column of a secret, whatever it was."""

AMQP_TYPES = {
    "bit": (BIT, 0), "octet": (UNSIGNED, 1), "short": (UNSIGNED, 2), "long": (UNSIGNED, 4), "longlong": (UNSIGNED, 8),
    "timestamp": (UNSIGNED, 8), "shortstr": (TEXT, 1), "longstr": (TEXT, 4), "table": (TABLE, 4),
}  # fmt: skip
"""Op and width of each type of AMQP 0-9-1; the width of text and tables is that of the length in front."""

STREAM_TYPES = {
    "uint8": (UNSIGNED, 1), "uint16": (UNSIGNED, 2), "uint32": (UNSIGNED, 4), "uint64": (UNSIGNED, 8),
    "int16": (SIGNED, 2), "int64": (SIGNED, 8), "boolean": (UNSIGNED, 1), "string": (TEXT, 2), "short-bytes": (TEXT, 2),
    "bytes": (NULLABLE, 4), "rest": (REST, 0),
}  # fmt: skip
"""The same for the stream protocol; what is not here is a list."""
TYPES = AMQP_TYPES | STREAM_TYPES

LIMITS = {"int32": 2**31 - 1, "int64": 2**63 - 1}
FLAG_WORD = 15
"""Properties per word of flags; the lowest bit says that another word follows."""
MOST_PROPERTIES = 4 * FLAG_WORD
TRACE_COLUMNS = {"trace_id": "string", "span_id": "string", "trace_flags": "int32"}
TRACE_TABLE = "headers"
"""The table in which the trace context travels."""


@dataclass(frozen=True, slots=True)
class Slot:
    """Where the entries of one column go."""

    name: str
    type: str
    op: int
    secret: bool


@dataclass(frozen=True)
class Plan:
    """Programs for records, as tables for the kernels. Made by `of_methods` and `of_properties`.

    `shapes`: (programs, slots), of a column of lists the shape that the program gives it.
    """

    columns: dict[str, str]
    """Name and type (`bool`, `int32`, `int64`, `string`) of all columns that `decode` gives, in order."""
    slots: tuple[Slot, ...]
    ops: Integers
    """(ops, O_HEIGHT)."""
    starts: Integers
    """First op of each program, and the end of the last."""
    uses: Integers
    """(programs, slots): 1 where the program has the column."""
    limits: Integers
    """Largest number of each slot."""
    stores: Integers
    """Where the values of each slot go, as `Room` says."""
    shapes: Integers
    lists: tuple[Integers, Integers, Octets]
    """Tables of the shapes of lists."""
    growth: Integers

    @classmethod
    def of_methods(cls, protocol: Protocol, only: Collection[str] | None = None) -> "Plan":
        """Program i is for the arguments of `protocol.methods[i]`; a record begins behind its method id.

        Args:
            protocol: the specification.
            only: names of the columns that are wanted; all of them when None.

        Raises:
            ValueError: a field's type is unknown, or fields of one column do not agree on its type.
        """
        maker = _Maker(only, structs=protocol.structs)
        for method in protocol.methods:
            maker.begin()
            fields = method.fields
            for argument, following in zip(fields, [*fields[1:], None], strict=False):
                maker.add_argument(argument, following)
        return maker.plan(maker.columns())

    @classmethod
    def of_properties(cls, content: Class, only: Collection[str] | None = None, trace: bool = True) -> "Plan":
        """The one program is for the properties of a class; a record begins at the property flags (section 4.2.6.1).

        Args:
            content: the class, such as basic.
            only: names of the columns that are wanted; all of them when None.
            trace: also read `traceparent` (W3C Trace Context) in the table `headers`, as the columns `trace_id`,
                `span_id` and `trace_flags`.

        Raises:
            ValueError: as `of_methods`; also when there are more than 60 properties.
        """
        if len(content.fields) > MOST_PROPERTIES:
            raise ValueError(f"class {content.name} has more than {MOST_PROPERTIES} properties")
        trace = trace and any(f.column == TRACE_TABLE and f.type == "table" for f in content.fields)
        traced = {n: t for n, t in TRACE_COLUMNS.items() if trace and (only is None or n in only)}
        maker = _Maker(only, {TRACE_TABLE} if traced else ())
        maker.begin()
        maker.add_op(FLAGS, 0, -1, -1)
        for k, prop in enumerate(content.fields):
            # flags run from the high bit of each word down; a word's lowest bit is dropped
            maker.add(prop, k // FLAG_WORD * FLAG_WORD + FLAG_WORD - 1 - k % FLAG_WORD)
        return maker.plan(maker.columns() | traced)


@dataclass
class _Maker:
    """Collects the ops of a plan."""

    only: Collection[str] | None
    also: Collection[str] = ()
    structs: tuple[Struct, ...] = ()
    shapes: lists.Shapes = field(default_factory=lists.Shapes)
    slots: dict[str, Slot] = field(default_factory=dict)
    ops: list[tuple[int, int, int, int]] = field(default_factory=list)
    list_ops: dict[int, int] = field(default_factory=dict)
    starts: list[int] = field(default_factory=list)

    def begin(self) -> None:
        """Begin the next program."""
        self.starts.append(len(self.ops))

    def add_argument(self, field: Field, following: Field | None) -> None:
        """Add the ops for an argument; the one behind it may depend on it."""
        if field.optional:
            self.add_op(TAIL, 0, -1, -1)
        self.add(field, -1 if field.when is None else field.when)
        if field.when is None and following is not None and following.when is not None:
            _, width, slot, flag = self.ops.pop()
            self.add_op(SELECT, width, slot, flag)

    def add(self, field: Field, flag: int = -1) -> None:
        """Add the op for a field; with a flag, of a property."""
        shape = self.shapes.number(field.type, self.structs)
        if field.type not in TYPES and shape is None:
            raise ValueError(f"field {field.name} has the unknown type {field.type}")
        if shape is not None:
            self.list_ops[len(self.ops)] = shape
        kind, width = TYPES[field.type] if shape is None else (LIST, lists.COUNT)
        if kind == BIT and flag >= 0:
            kind = FLAG_BIT
        self.add_op(kind, width, self._slot(field, kind), flag)

    def add_op(self, kind: int, width: int, slot: int, flag: int) -> None:
        """Add an op as it stands."""
        self.ops.append((kind, width, slot, flag))

    def _slot(self, field: Field, kind: int) -> int:
        name = field.column
        if name is None or not (self.only is None or name in self.only or name in self.also):
            return -1
        new = Slot(name, field.column_type, kind, field.secret)
        old = self.slots.setdefault(name, new)
        if old.type != new.type or (old.op != new.op and {TABLE, LIST} & {old.op, new.op}):
            raise ValueError(f"column {name} has fields of different types")
        if new.secret:  # once secret, always secret
            self.slots[name] = new
        return list(self.slots).index(name)

    def columns(self) -> dict[str, str]:
        """The columns of the fields that are wanted."""
        return {s.name: s.type for s in self.slots.values() if self.only is None or s.name in self.only}

    def plan(self, names: dict[str, str]) -> Plan:
        """The plan, with these columns."""
        slots = tuple(self.slots.values())
        starts = np.array([*self.starts, len(self.ops)], np.int64)
        uses = np.zeros((len(self.starts), len(slots)), np.int64)
        for program in range(len(self.starts)):
            for _, _, slot, _ in self.ops[starts[program] : starts[program + 1]]:
                if slot >= 0:
                    if uses[program, slot]:
                        raise ValueError(f"column {slots[slot].name} has two fields in one record")
                    uses[program, slot] = 1
        shapes = np.full_like(uses, -1)
        of_ops = np.full(len(self.ops), -1, np.int64)
        for op, shape in self.list_ops.items():
            of_ops[op] = shape
            program = int(np.searchsorted(starts, op, "right")) - 1
            shapes[program, self.ops[op][2]] = shape
        stores = np.array([ENTRIES if s.secret else STORES.get(s.type, ENTRIES) for s in slots], np.int64)
        for kind, _, slot, _ in self.ops:
            fit = {BIT: BOOLS, FLAG_BIT: BOOLS, TEXT: ENTRIES, TABLE: ENTRIES, NULLABLE: ENTRIES, LIST: ENTRIES}
            if slot >= 0 and stores[slot] != fit.get(kind, stores[slot]):
                raise ValueError(f"column {slots[slot].name} is of a type that its fields are not")
        ops = np.column_stack((np.array(self.ops, np.int64).reshape(-1, O_SHAPE), of_ops))
        limits = np.array([LIMITS.get(s.type, LIMITS["int64"]) for s in slots], np.int64)
        growth = np.array(self.shapes.growth, np.int64)
        return Plan(names, slots, ops, starts, uses, limits, stores, shapes, self.shapes.tables(), growth)


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
    plan: Plan, data: Octets, offset: Integers, length: Integers, program: Integers, cut: Octets, compiled: bool
) -> Decoded:
    """Decode n records.

    Args:
        plan: the programs.
        data: the octets that hold all records, less than 256 MiB of them; writable, as all that kernels get.
        offset: (n,) where each record begins.
        length: (n,) its octets; `offset + length` is never beyond `data`.
        program: (n,) number of its program; below 0 for a record without fields.
        cut: (n,) 1 where the end of the record lies in a hole: what is there is decoded (of a table, the entries in
            front of the hole) and what is missing is no problem.
        compiled: whether the kernels run compiled.
    """
    n = len(program)
    counts = np.bincount(np.maximum(program, -1) + 1, minlength=len(plan.uses) + 1)
    ends = np.cumsum(counts)
    present = counts[1:] @ plan.uses
    room = Room(n, plan.stores, present > 0)
    held = np.where(plan.stores == ENTRIES, present, 0)
    fill = np.cumsum(held) - held
    slots = np.column_stack((plan.limits, plan.stores, room.valid_at, room.value_at, fill))
    entries = np.empty((walk.E_HEIGHT, int(held.sum())), np.int64)
    problems = np.empty((n + int(present.sum()), 3), np.int64)
    order, picked = np.empty(n, np.int64), np.empty(n, np.int64)
    state = np.empty((walk.A_HEIGHT, n), np.int64)
    told = np.zeros(walk.N_HEIGHT, np.int64)
    call(walk.group, compiled, program, ends - counts, order)
    call(
        walk.walk, compiled, data, order, ends, offset, length, cut, plan.starts, plan.ops, slots,
        room.bits, room.ints, room.longs, entries, problems, plan.lists[0], plan.lists[1], state, picked, told,
    )  # fmt: skip
    row, value, size = entries
    in_order = (counts[1:] > 0) @ plan.uses < 2  # one program alone has the rows in their order
    arrays: dict[str, pa.Array] = {}
    found = [problems[: told[walk.N_PROBLEMS]]]
    for k, (slot, begin, end) in enumerate(zip(plan.slots, fill.tolist(), slots[:, walk.T_FILL].tolist(), strict=True)):
        if begin == end:
            continue
        if plan.stores[k] != ENTRIES:
            arrays[slot.name] = room.numbers(k, slot.type, end - begin)
            continue
        part = slice(begin, end)
        if not in_order[k]:
            entries[:, part] = entries[:, part].take(np.argsort(row[part], kind="stable"), axis=1)
        valid = room.validity(k, end - begin)
        if slot.op == LIST and not slot.secret:
            shapes = plan.shapes[program[row[part]], k]
            made, more = _lists(plan, slot, valid, data, row[part], value[part], size[part], shapes, compiled)
        else:
            made, more = _column(plan, slot, valid, data, row[part], value[part], size[part], compiled)
        arrays |= made
        found += more
    for name, kind in plan.columns.items():
        if name not in arrays:
            arrays[name] = columns.nulls(n, kind)
    all_problems = found[0] if len(found) == 1 else np.concatenate(found)
    if len(all_problems):
        all_problems = all_problems[np.lexsort((all_problems[:, 1], all_problems[:, 2], all_problems[:, 0]))]
    return Decoded({name: arrays[name] for name in plan.columns}, *all_problems.T.copy())


EMPTY = 2
"""Octets of the JSON text of a table or list without entries."""


def _column(
    plan: Plan, slot: Slot, valid: Validity, data: Octets, row: Integers, at: Integers, size: Integers, compiled: bool
) -> tuple[dict[str, pa.Array], Iterable[Integers]]:
    """The columns of one slot of text or tables and the problems in them."""
    if slot.secret:
        return {slot.name: columns.constant(valid, row, REDACTED)}, ()
    if slot.op == TABLE:
        clipped = size < 0
        tables = fieldtable.render(data, at, np.where(clipped, ~size, size), compiled)
        made = {}
        if slot.name in plan.columns:
            column = columns.texts(valid, row, tables.sizes, tables.octets, compiled)
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
    made = {slot.name: columns.texts(valid, row, texts.sizes, texts.octets, compiled)}
    if not len(texts.invalid):
        return made, ()
    return made, (_problems(row[texts.invalid], TEXT_NOT_UTF8, texts.invalid_at),)


def _lists(
    plan: Plan, slot: Slot, valid: Validity, data: Octets, row: Integers, value: Integers, size: Integers,
    shapes: Integers, compiled: bool,
) -> tuple[dict[str, pa.Array], Iterable[Integers]]:  # fmt: skip
    """The column of a slot with lists, and the problems in them."""
    clipped = size < 0
    size = np.where(clipped, ~size, size)
    found = lists.render(data, value, size, shapes, plan.growth, plan.lists, compiled)
    found.problems[:, 0] = row[found.problems[:, 0]]
    made = columns.texts(valid, row, found.sizes, found.octets, compiled)
    return {slot.name: _without(made, row[clipped & (found.sizes == EMPTY)])}, (found.problems,)


def _without(column: pa.Array, rows: Integers) -> pa.Array:
    """A column with null in these rows: of what was cut in front of its first entry nothing is known."""
    if not len(rows):
        return column
    mask = np.zeros(len(column), np.bool_)
    mask[rows] = True
    return pc.if_else(array(mask), None, column)


def trace_columns(
    n: int, data: Octets, row: Integers, trace: Integers, compiled: bool
) -> tuple[dict[str, pa.Array], Integers]:
    """The columns of the trace context from the places of `traceparent`, and where it is malformed."""
    has = trace[:, 0] >= 0
    row, at, size = row[has], trace[has, 0], trace[has, 1]
    if not len(row):
        return {}, np.empty((0, 3), np.int64)
    flags = np.empty(len(at), np.int64)
    call(trace_flags, compiled, data, at, size, flags)
    good = flags >= 0
    wrong = _problems(row[~good], TRACEPARENT_MALFORMED, at[~good])
    row, at = row[good], at[good]
    valid = columns.validity(n, row)
    made = {"trace_flags": columns.numbers(valid, "int32", row, flags[good])}
    for name, begin, width in (("trace_id", 3, 32), ("span_id", 36, 16)):
        texts = text.gather(data, at + begin, np.full(len(at), width, np.int64), compiled)
        made[name] = columns.texts(valid, row, texts.sizes, texts.octets, compiled)
    return made, wrong


def _problems(row: Integers, code: int, at: Integers) -> Integers:
    return np.column_stack((row, np.full(len(row), code, np.int64), at))


@kernel
def fits(
    data: Octets, at: int, end: int, begin: int, stop: int, ops: Integers, members: Integers, shapes: Integers
) -> bool:  # fmt: skip
    """Whether the fields of ops `begin` to `stop` end exactly at `end`. Only ops of the stream protocol."""
    flags = 0
    for op in range(begin, stop):
        what = ops[op, O_KIND]
        if ops[op, O_FLAG] >= 0 and (flags >> ops[op, O_FLAG]) & 1 == 0:
            continue
        if what == REST or (what == TAIL and at == end):
            return True
        w = ops[op, O_WIDTH]
        if at + w > end:
            return False
        if what == LIST:
            at = list_end(data, at, end, ops[op, O_SHAPE], members, shapes)
            if at < 0:
                return False
            continue
        v = 0
        if w <= 4:
            v = unsigned(data, at, w)
        at += w
        if what == SELECT and v < 62:
            flags = 1 << v
        elif what == TEXT or (what == NULLABLE and v != (1 << (8 * w)) - 1):
            at += v
    return at == end


@proven
def trace_flags(data: Octets, at: Integers, size: Integers, flags: Integers) -> None:
    """Flags of each `traceparent`, -1 where it is not of the form of version 00 (W3C Trace Context, section 3.2.2).

    That is `00-<trace id>-<span id>-<flags>` in 2, 32, 16 and 2 lower-case hexadecimal digits, neither id all zeros.

    Bounds: entries lie within `data`.
    """
    for e in range(len(at)):
        flags[e] = -1
        begin = at[e]
        if size[e] != 55 or data[begin] != 48 or data[begin + 1] != 48:
            continue
        if data[begin + 2] != 45 or data[begin + 35] != 45 or data[begin + 52] != 45:
            continue
        trace = 0
        for p in range(begin + 3, begin + 35):
            trace |= hex_value(data[p])
        span = 0
        for p in range(begin + 36, begin + 52):
            span |= hex_value(data[p])
        high = hex_value(data[begin + 53])
        low = hex_value(data[begin + 54])
        if trace > 0 and span > 0 and trace | span | high | low < 16:
            flags[e] = high * 16 + low


@proven
def hex_value(octet: int) -> int:
    """Value of a lower-case hexadecimal digit; 16 for any other octet."""
    octet = i64(octet)
    digit = octet - 48 if octet <= 57 else octet - 87
    return digit if 0 <= digit <= 15 and (octet <= 57 or octet >= 97) else 16
