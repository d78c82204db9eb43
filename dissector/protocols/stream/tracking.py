"""Tracking data: what a stream keeps of its publishers and consumers, as chunks and trailers bring it.

An item is a kind (8 bits), a name after an 8-bit length, and 64 bits: of kind 0 the last publishing id of a publisher
(in a snapshot the id of its chunk before that), of kind 1 the offset that a consumer stored, of kind 2 a time. The
chunk of a delta or a snapshot is one entry that holds items; a trailer is items alone. In early 2021 items of a trailer
had no kind. Such data come only where all kinds of chunks are asked for.
"""

import numpy as np
import pyarrow as pa

from amqpscope.dissector.fields import columns
from amqpscope.dissector.fields.json_text import ESCAPES, QUOTE, write_escaped, write_integer
from amqpscope.dissector.fields.text import copy
from amqpscope.dissector.kernels.arrays import Array, Bytes, Ints
from amqpscope.dissector.kernels.integers import be32
from amqpscope.dissector.kernels.kernel import call, i64, kernel
from amqpscope.spec.model import Protocol

COMMA, OPEN, CLOSE = (ord(c) for c in ",[]")
SNAPSHOT = 2
"""Type of a chunk that is a snapshot."""
SEQUENCE, MOST_KINDS = 0, 3
ROOM = 40
"""Bytes that each of the fixed texts has in the table, its length in front."""
NAME, CHUNK, VALUE, END = range(MOST_KINDS, MOST_KINDS + 4)
GROWTH, LEAST = 8, 9
"""A byte becomes at most this many; an item without a kind has at least this many."""


def texts(protocol: Protocol) -> Bytes:
    """Return the fixed texts: of each kind, by its name in the specification, and what stands between."""
    prefix = "tracking-item-"
    kinds = {c.value: c.name.removeprefix(prefix) for c in protocol.constants if c.name.startswith(prefix)}
    found = [f'{{"kind":"{kinds[kind]}"' for kind in range(MOST_KINDS)]
    found += [',"name":"', '","chunk_id":', ',"value":', "}"]
    table = np.zeros(ROOM * len(found), np.uint8)
    for k, text in enumerate(found):
        table[ROOM * k : ROOM * k + len(text) + 1] = [len(text), *text.encode()]
    return table


def render(
    data: Bytes, n: int, row: Ints, at: Ints, size: Ints, kind: Ints, table: Bytes, compiled: bool
) -> tuple[pa.Array, Ints]:
    """Return the column `tracking` of n frames, and which entries do not end where their items do.

    Args:
        data: the bytes.
        n: frames.
        row: (k,) frames that have tracking data, ascending.
        at: (k,) where these are.
        size: (k,) bytes of them.
        kind: (k,) type of the chunk; of a chunk of records it is its trailer.
        table: as `texts`.
        compiled: whether the kernels run compiled.
    """
    out = np.empty(int(size.sum()) * GROWTH + 2 * len(row) + (int(size.sum()) // LEAST) * 2 * ROOM, np.uint8)
    sizes, torn = np.empty(len(row), np.int64), np.zeros(len(row), np.int64)
    used = call(render_items, compiled, data, at, size, kind, table, ESCAPES, out, sizes, torn)
    valid = columns.validity(n, row)
    return columns.texts(valid, row, sizes, out[:used].copy(), compiled), np.flatnonzero(torn)


@kernel
def items_end(data: Array, p: int, end: int, snapshot: bool, kinds: bool) -> int:
    """Return where the items end that are whole."""
    while p < end:
        q = p
        kind = 0
        if kinds:
            kind = i64(data[q])
            q += 1
        if q >= end or kind >= MOST_KINDS:
            return p
        q += 1 + i64(data[q]) + (16 if snapshot and kind == SEQUENCE else 8)
        if q > end:
            return p
        p = q
    return p


@kernel
def put_text(table: Array, which: int, out: Array, j: int) -> int:
    """Write one of the fixed texts; returns where it ends."""
    begin = which * ROOM + 1
    return copy(table, begin, begin + i64(table[begin - 1]), out, j)


@kernel
def render_items(
    data: Array, at: Array, size: Array, kind: Array, table: Array, escapes: Array, out: Array, sizes: Array,
    torn: Array,
) -> int:  # fmt: skip
    """Render all items as JSON; returns the bytes written."""
    j = 0
    for e in range(len(at)):
        begin = j
        p = at[e]
        end = p + size[e]
        if kind[e] != 0:
            if p + 4 > end or p + 4 + be32(data, p) != end:
                torn[e] = 1
            p = min(p + 4, end)
        snapshot = kind[e] == SNAPSHOT
        last = items_end(data, p, end, snapshot, True)
        kinds = True
        if last < end and kind[e] == 0 and items_end(data, p, end, False, False) == end:
            kinds = False
            last = end
        if last < end:
            torn[e] = 1
        out[j] = OPEN
        j += 1
        first = True
        while p < last:
            if not first:
                out[j] = COMMA
                j += 1
            first = False
            what = SEQUENCE
            if kinds:
                what = i64(data[p])
                p += 1
            j = put_text(table, what, out, j)
            length = i64(data[p])
            p += 1
            j = put_text(table, NAME, out, j)
            j = write_escaped(data, p, p + length, escapes, out, j)
            p += length
            if snapshot and what == SEQUENCE:
                j = put_text(table, CHUNK, out, j)
                j = write_integer(data, p, 8, False, out, j)
                p += 8
            else:
                out[j] = QUOTE
                j += 1
            j = put_text(table, VALUE, out, j)
            j = write_integer(data, p, 8, what == MOST_KINDS - 1, out, j)
            p += 8
            j = put_text(table, END, out, j)
        out[j] = CLOSE
        j += 1
        sizes[e] = j - begin
    return j
