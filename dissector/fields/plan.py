"""Plans: what the fields of each kind of record are, as programs for the walk over many records."""

import functools
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from amqpscope.dissector.fields import dialect, lists
from amqpscope.dissector.fields.columns import BOOLS, ENTRIES, STORES
from amqpscope.dissector.fields.dialect import Dialect
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
    SELECT,
    SIGNED,
    SIZE,
    SIZED_PACKING,
    TABLE,
    TAIL,
    TEXT,
    UNSIGNED,
    VALUE,
)
from amqpscope.dissector.fields.state import ListForms, Op
from amqpscope.dissector.fields.tables import FIELD_TABLES
from amqpscope.dissector.fields.text import Integers
from amqpscope.spec.model import Class, Field, Protocol, Struct

AMQP_TYPES = {
    "bit": (BIT, 0), "octet": (UNSIGNED, 1), "short": (UNSIGNED, 2), "long": (UNSIGNED, 4), "longlong": (UNSIGNED, 8),
    "timestamp": (UNSIGNED, 8), "shortstr": (TEXT, 1), "longstr": (TEXT, 4), "table": (TABLE, 4),
}  # fmt: skip
"""Op and width of each type of AMQP 0-9-1; the width of text and tables is that of the length in front."""

OLD_TYPES = {"content": (SIZE, 4), "uuid": (FIXED, 16), "rfc1982-long-set": (TABLE, 2)}
"""The same of types that AMQP 0-9 and its drafts have besides."""

STREAM_TYPES = {
    "uint8": (UNSIGNED, 1), "uint16": (UNSIGNED, 2), "uint32": (UNSIGNED, 4), "uint64": (UNSIGNED, 8),
    "int16": (SIGNED, 2), "int64": (SIGNED, 8), "boolean": (UNSIGNED, 1), "string": (TEXT, 2), "short-bytes": (TEXT, 2),
    "bytes": (NULLABLE, 4), "rest": (REST, 0),
}  # fmt: skip
"""The same for the stream protocol; what is not here is a list."""
TYPES = AMQP_TYPES | OLD_TYPES | STREAM_TYPES

PACKED_KINDS = {
    dialect.SIGNED: SIGNED, dialect.UNSIGNED: UNSIGNED, dialect.BOOLEAN: UNSIGNED, dialect.TIMESTAMP: UNSIGNED,
    dialect.BIT: BIT, dialect.STRING: TEXT, dialect.BYTES: BYTES, dialect.RANGES: TABLE, dialect.TABLE: VALUE,
    dialect.LIST: VALUE, dialect.ARRAY: VALUE, dialect.STRUCT32: VALUE, dialect.STRUCT: VALUE,
}  # fmt: skip
"""Op of each kind of value of AMQP 0-10; of others there are as many bytes as they are wide."""

FIT = {BIT: BOOLS, FLAG_BIT: BOOLS} | dict.fromkeys(
    (TEXT, TABLE, NULLABLE, LIST, BYTES, VALUE, FIXED), ENTRIES
)  # fmt: skip
"""Where the values of an op may go, when that is not for its column to say."""
PACK, COMMAND_HEADER_SIZE = 2, 1
"""Bytes of the packing flags of arguments, and of the size of the header before them (AMQP 0-10)."""
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

    `shapes`: (programs, slots), of a column of lists the shape that the program gives it, of one of values the form.
    """

    columns: dict[str, str]
    """Name and type (`bool`, `int32`, `int64`, `string`) of all columns that `decode` gives, in order."""
    slots: tuple[Slot, ...]
    ops: Integers
    """(ops, state.Op)."""
    starts: Integers
    """First op of each program, and the end of the last."""
    uses: Integers
    """(programs, slots): 1 where the program has the column."""
    limits: Integers
    """Largest number of each slot."""
    stores: Integers
    """Where the values of each slot go, as `Room` says."""
    kinds: Integers
    """(programs, slots): the op that the program has for the column; -1 where it has none."""
    shapes: Integers
    dialect: Dialect
    """How the values are coded."""
    lists: ListForms
    """How the lists are coded."""
    growth: Integers

    @classmethod
    @functools.lru_cache(maxsize=32)  # every dissector asks for the same ones
    def of_methods(cls, protocol: Protocol, only: tuple[str, ...] | None = None) -> "Plan":
        """Return a plan whose program i decodes arguments of `protocol.methods[i]`; records begin after the method id.

        Of a command of AMQP 0-10 that is its session header.

        Args:
            protocol: the specification.
            only: names of the columns that are wanted; all of them when None.

        Raises:
            ValueError: a field's type is unknown, or fields of one column do not agree on its type.
        """
        maker = _Maker(only, structs=protocol.structs, **_coding(protocol))
        for method in protocol.methods:
            maker.begin()
            fields = method.fields
            if protocol.types and method.kind != "method":
                if method.kind == "command":
                    maker.add_packed(SIZED_PACKING, COMMAND_HEADER_SIZE, protocol.command_header)
                maker.add_packed(PACKING, PACK, fields)
                continue
            for argument, following in zip(fields, [*fields[1:], None], strict=False):
                maker.add_argument(argument, following)
        return maker.plan(maker.columns())

    @classmethod
    def of_struct(cls, protocol: Protocol, struct: Struct, only: Collection[str] | None = None) -> "Plan":
        """Return a plan with one program, for a struct of AMQP 0-10; a record begins after its class and code.

        Args:
            protocol: the specification.
            struct: one that headers hold.
            only: names of the columns that are wanted; all of them when None.

        Raises:
            ValueError: as `of_methods`.
        """
        traced = _traced(any(f.column == TRACE_TABLE for f in struct.fields), only)
        maker = _Maker(only, {TRACE_TABLE} if traced else (), protocol.structs, **_coding(protocol))
        maker.begin()
        maker.add_packed(PACKING, struct.pack, struct.fields)
        return maker.plan(maker.columns() | traced)

    @classmethod
    def of_properties(
        cls, content: Class, *others: Class, only: Collection[str] | None = None, trace: bool = True
    ) -> "Plan":
        """Return a plan with a program for the properties of each class; a record begins at their flags (§4.2.6.1).

        Args:
            content: the class, such as basic.
            others: further classes; what they have under the name of another type has no column.
            only: names of the columns that are wanted; all of them when None.
            trace: also read `traceparent` (W3C Trace Context) in the table `headers`, as the columns `trace_id`,
                `span_id` and `trace_flags`.

        Raises:
            ValueError: as `of_methods`; also when there are more than 60 properties.
        """
        trace = trace and any(f.column == TRACE_TABLE and f.type == "table" for f in content.fields)
        traced = _traced(trace, only)
        maker = _Maker(only, {TRACE_TABLE} if traced else ())
        types = {prop.column: prop.type for prop in content.fields}
        for each in (content, *others):
            if len(each.fields) > MOST_PROPERTIES:
                raise ValueError(f"class {each.name} has more than {MOST_PROPERTIES} properties")
            maker.begin()
            maker.add_op(FLAGS, 0, -1, -1)
            for k, prop in enumerate(each.fields):
                is_other = each is not content and types.setdefault(prop.column, prop.type) != prop.type
                # flags run from the high bit of each word down; a word's lowest bit is dropped
                flag = k // FLAG_WORD * FLAG_WORD + FLAG_WORD - 1 - k % FLAG_WORD
                maker.add(replace(prop, column=None) if is_other else prop, flag)
        return maker.plan(maker.columns() | traced)


def _traced(there: bool, only: Collection[str] | None) -> dict[str, str]:
    """Return the columns of the trace context that are wanted, where the table that holds it is there."""
    return {name: kind for name, kind in TRACE_COLUMNS.items() if there and (only is None or name in only)}


def _coding(protocol: Protocol) -> dict[str, Any]:
    """Return how the fields of a protocol are coded, as arguments of `_Maker`: AMQP 0-10 alone says so itself."""
    if not protocol.types:
        return {}
    values = dialect.of_protocol(protocol)
    forms = {name: values.tables.types[form].tolist() for name, form in values.forms.items()}
    types = {name: (PACKED_KINDS.get(kind, FIXED), width) for name, (kind, width, _) in forms.items()}
    return {"types": types, "dialect": values}


@dataclass
class _Maker:
    """Collects the ops of a plan."""

    only: Collection[str] | None
    also: Collection[str] = ()
    structs: tuple[Struct, ...] = ()
    types: Mapping[str, tuple[int, int]] = field(default_factory=lambda: TYPES)
    dialect: Dialect = FIELD_TABLES
    shapes: lists.Shapes = field(default_factory=lists.Shapes)
    slots: dict[str, Slot] = field(default_factory=dict)
    ops: list[tuple[int, int, int, int]] = field(default_factory=list)
    of_ops: dict[int, int] = field(default_factory=dict)
    """Shapes, forms and numbers of fields by op."""
    starts: list[int] = field(default_factory=list)

    def begin(self) -> None:
        """Begin the next program."""
        self.starts.append(len(self.ops))

    def add_argument(self, field: Field, following: Field | None) -> None:
        """Add the ops for an argument; the one after it may depend on it."""
        if field.optional:
            self.add_op(TAIL, 0, -1, -1)
        self.add(field, -1 if field.when is None else field.when)
        if field.when is None and following is not None and following.when is not None:
            _, width, slot, flag = self.ops.pop()
            self.add_op(SELECT, width, slot, flag)

    def add(self, field: Field, flag: int = -1) -> None:
        """Add the op for a field; with a flag, of a property."""
        name = field.domain if field.type == "struct" else field.type
        kind, width = self.types.get(name, (LIST, lists.COUNT))
        shape = self.shapes.number(name, self.structs) if kind == LIST else self.dialect.forms.get(name, -1)
        if shape is None:
            raise ValueError(f"field {field.name} has the unknown type {name}")
        if kind == BIT and flag >= 0:
            kind = FLAG_BIT
        if kind == SIZE:  # after a byte that says whether it is the content or a reference to it
            self.add_op(UNSIGNED, 1, -1, flag)
        self.of_ops[len(self.ops)] = shape
        self.add_op(kind, width, self._slot(field, kind), flag)

    def add_packed(self, kind: int, width: int, fields: tuple[Field, ...]) -> None:
        """Add the ops for packing flags and the fields that they are for."""
        self.of_ops[len(self.ops)] = len(fields)
        self.add_op(kind, width, -1, -1)
        for flag, item in enumerate(fields):
            self.add(item, flag)

    def add_op(self, kind: int, width: int, slot: int, flag: int) -> None:
        """Add an op as it stands."""
        self.ops.append((kind, width, slot, flag))

    def _slot(self, field: Field, kind: int) -> int:
        name = field.column
        if name is None or not (self.only is None or name in self.only or name in self.also):
            return -1
        new = Slot(name, field.column_type, kind, field.secret)
        old = self.slots.setdefault(name, new)
        if old.type != new.type:
            raise ValueError(f"column {name} has fields of different types")
        if new.secret:  # once secret, always secret
            self.slots[name] = new
        return list(self.slots).index(name)

    def columns(self) -> dict[str, str]:
        """Return the columns of the fields that are wanted."""
        return {s.name: s.type for s in self.slots.values() if self.only is None or s.name in self.only}

    def plan(self, names: dict[str, str]) -> Plan:
        """Return the plan, with these columns."""
        slots = tuple(self.slots.values())
        starts = np.array([*self.starts, len(self.ops)], np.int64)
        uses = np.zeros((len(self.starts), len(slots)), np.int64)
        for program in range(len(self.starts)):
            for _, _, slot, _ in self.ops[starts[program] : starts[program + 1]]:
                if slot >= 0:
                    if uses[program, slot]:
                        raise ValueError(f"column {slots[slot].name} has two fields in one record")
                    uses[program, slot] = 1
        kinds, shapes = np.full_like(uses, -1), np.full_like(uses, -1)
        of_ops = np.array([self.of_ops.get(op, -1) for op in range(len(self.ops))], np.int64)
        for program in range(len(self.starts)):
            for op in range(starts[program], starts[program + 1]):
                kind, _, slot, _ = self.ops[op]
                if slot >= 0:
                    kinds[program, slot], shapes[program, slot] = kind, of_ops[op]
        stores = np.array([ENTRIES if s.secret else STORES.get(s.type, ENTRIES) for s in slots], np.int64)
        for kind, _, slot, _ in self.ops:
            if slot >= 0 and stores[slot] != FIT.get(kind, stores[slot]):
                raise ValueError(f"column {slots[slot].name} is of a type that its fields are not")
        ops = np.column_stack((np.array(self.ops, np.int64).reshape(-1, Op.SHAPE), of_ops))
        limits = np.array([LIMITS.get(s.type, LIMITS["int64"]) for s in slots], np.int64)
        growth = np.array(self.shapes.growth, np.int64)
        return Plan(
            names, slots, ops, starts, uses, limits, stores, kinds, shapes, self.dialect, self.shapes.tables(), growth
        )  # fmt: skip
