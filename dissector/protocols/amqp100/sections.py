"""Messages of AMQP 1.0 (part 3, section 3.2): their sections to columns, and which bytes are the body.

A record that does not begin with a section is plain bytes, and so is one whose sections do not end where it does.
Sections may come in any order, as clients write them; of those that are no body, the first of a kind counts.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from amqpscope.dissector.fields import columns, text
from amqpscope.dissector.fields.plan import TRACE_COLUMNS, TRACE_TABLE
from amqpscope.dissector.fields.problems import INTEGER_TOO_LARGE, TEXT_NOT_UTF8
from amqpscope.dissector.fields.state import Problem
from amqpscope.dissector.fields.trace import trace_columns
from amqpscope.dissector.kernels.arrays import Array, Bytes, Ints
from amqpscope.dissector.kernels.hashing import LANES
from amqpscope.dissector.kernels.kernel import call
from amqpscope.dissector.protocols.amqp100 import values
from amqpscope.dissector.protocols.amqp100.section_walk import (
    A_BODY,
    A_LIST,
    A_MAP,
    BODY_SECTION,
    FIRST_CODE,
    KINDS,
    MAPS,
    NUMBERS,
    RAW,
    TEXTS,
    hash_bodies,
    read_sections,
    section,
    write_forms,
)
from amqpscope.dissector.protocols.amqp100.state import Body, Messages, Place, Section
from amqpscope.dissector.protocols.amqp100.values import CONSTRUCTORS
from amqpscope.dissector.protocols.amqp100.values import TEXT as TEXTUAL
from amqpscope.spec import amqp100

KIND_NAMES = columns.Names((*KINDS, KINDS[RAW]))
WIDEST_TEXT = 36
"""A number or UUID as text."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A column, and what becomes of its numbers."""

    column: str
    what: int
    type: str
    add: int = 0
    divide: int = 1


def _plan() -> tuple[tuple[Slot, ...], Ints, Bytes]:
    """Return slots, sections by their code from 0x70 on, and their descriptors as symbols, 32 bytes each."""
    numbers = {"boolean": "int32", "ubyte": "int32", "uint": "int64", "timestamp": "int64"}
    slots: list[Slot] = []
    sections = amqp100.load().sections
    table, symbols = Section.make(len(sections)), np.zeros((len(sections), 32), np.uint8)
    for k, each in enumerate(sections):
        assert each.code == FIRST_CODE + k
        table[k] = {"list": A_LIST, "map": A_MAP, "body": A_BODY}[each.kind], len(slots), len(each.fields)
        symbols[k, : len(each.symbol) + 1] = [len(each.symbol), *each.symbol.encode()]
        if each.column:
            slots.append(Slot(each.column, MAPS, "string"))
        for field in each.fields:
            kind = "bool" if field.type == "boolean" and not field.add else numbers.get(field.type, "string")
            what = TEXTS if kind == "string" else NUMBERS
            slots.append(Slot(field.column, what, kind, field.add, field.divide))
    return tuple(slots), table, symbols.ravel()


SLOTS, SECTIONS, SYMBOLS = _plan()
WHAT = np.array([slot.what for slot in SLOTS], np.int64)
COLUMNS = {slot.column: slot.type for slot in SLOTS} | TRACE_COLUMNS | {"body_kind": "string"}
"""Columns that records get besides size and hash of the body, and their types."""


class Sections(NamedTuple):
    """What n records hold."""

    columns: dict[str, pa.Array]
    """Those of `COLUMNS`."""
    body: Ints
    """(state.Body, n)."""
    problems: Ints
    """(problems, 3): record, index into `PROBLEM_CODES`, place in the data."""


def read(data: Bytes, at: Ints, length: Ints, missing: Ints, compiled: bool) -> Sections:
    """Read records.

    Args:
        data: the bytes.
        at: (n,) where each record begins.
        length: (n,) its bytes that are there.
        missing: (n,) bytes that follow them and are not there; what is before these is read.
        compiled: whether the kernels run compiled.
    """
    n = len(at)
    found = _room(n)
    call(read_sections, compiled, found, data, at, length, missing)
    made = {"body_kind": KIND_NAMES.column(found.body[Body.KIND], compiled)}
    problems: list[Ints] = []
    for s, slot in enumerate(SLOTS):
        k = int(found.fill[s])
        if k:
            row, value, size, form = (each[s, :k] for each in (found.row, found.value, found.size, found.form))
            more, wrong = _column(n, slot, data, row, value, size, form, compiled)
            made |= more
            problems.append(wrong)
    return Sections(
        columns.filled(made, COLUMNS, n),
        found.body,
        np.concatenate([np.empty((0, Problem.WIDTH), np.int64), *problems]),
    )


def _room(n: int) -> Messages:
    """Return what is needed to read this number of records."""
    slots = len(SLOTS)
    row, value, size, form = (np.empty((slots, n), np.int64) for _ in range(4))  # touched where there are values
    return Messages(
        *CONSTRUCTORS, SECTIONS, SYMBOLS, WHAT, Place.make(1)[0], Body.room(n), np.zeros(slots, np.int64),
        row, value, size, form,
    )  # fmt: skip


def hashes(data: Bytes, at: Ints, length: Ints, found: Sections, compiled: bool) -> Array:
    """Return the hash of each body, (n,) uint64; meaningless where bytes of the record are missing."""
    hashed = np.empty(len(at), np.uint64)
    lanes, waiting = np.zeros((1, LANES), np.uint64), np.zeros(32, np.uint8)
    call(
        hash_bodies, compiled, data, at, length, found.body, CONSTRUCTORS.widths, SYMBOLS, Place.make(1)[0],
        lanes, waiting, hashed,
    )  # fmt: skip
    return hashed


def body(data: Bytes, at: int, length: int, found_at: int, size: int, sections: int) -> bytes:
    """Return the bytes of one whole body."""
    if sections <= 1:
        return data[found_at : found_at + size].tobytes()
    place = Place.make(1)[0]
    parts = []
    p = at
    while p < at + length:
        p = call(section, False, data, p, at + length, CONSTRUCTORS.widths, SYMBOLS, place)
        if BODY_SECTION <= place[Place.NUMBER] < BODY_SECTION + 3:
            parts.append(data[place[Place.AT] : p].tobytes())
    return b"".join(parts)


def _column(
    n: int, slot: Slot, data: Bytes, row: Ints, value: Ints, size: Ints, form: Ints, compiled: bool
) -> tuple[dict[str, pa.Array], Ints]:
    if slot.what == NUMBERS:
        fits = value <= ((1 << 31) - 1 if slot.type == "int32" else (1 << 63) - 1)
        wrong = _problems(row[~fits], INTEGER_TOO_LARGE, row[~fits])
        numbers = value[fits] // slot.divide + slot.add
        return {slot.column: columns.numbers(columns.validity(n, row[fits]), slot.type, row[fits], numbers)}, wrong
    valid = columns.validity(n, row)
    if slot.what == MAPS:
        maps = values.render(data, value.copy(), size.copy(), compiled)
        made = {slot.column: columns.texts(valid, row, maps.sizes, maps.data, compiled)}
        problems = maps.problems
        problems[:, 0] = row[problems[:, 0]]
        if slot.column == TRACE_TABLE:
            traced, wrong = trace_columns(n, data, row, maps.trace, compiled)
            return made | traced, np.concatenate([problems, wrong])
        return made, problems
    if (form != TEXTUAL).any():
        content, sizes = np.empty(int(np.maximum(size, WIDEST_TEXT).sum()), np.uint8), np.empty(len(row), np.int64)
        used = call(write_forms, compiled, data, value.copy(), size.copy(), form.copy(), content, sizes)
        begins = np.cumsum(sizes) - sizes
        data, value, size = content[:used].copy(), begins, sizes
    texts = text.gather(data, value.copy(), size.copy(), compiled)
    wrong = _problems(row[texts.invalid], TEXT_NOT_UTF8, texts.invalid_at)
    return {slot.column: columns.texts(valid, row, texts.sizes, texts.data, compiled)}, wrong


def _problems(row: Ints, code: int, at: Ints) -> Ints:
    return np.column_stack((row, np.full(len(row), code, np.int64), at))
