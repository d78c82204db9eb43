"""What a framing remembers of connections, and what their contents take: taken out as bytes and put back."""

import numpy as np

from amqpscope.dissector.kernels.arrays import Bytes, Ints
from amqpscope.dissector.kernels.coding import PLAIN, Target
from amqpscope.dissector.kernels.pool import chained, give_rows, put_chains
from amqpscope.dissector.kernels.retained import Ranges, gather, put_bytes
from amqpscope.dissector.protocols.framing import Framing
from amqpscope.dissector.protocols.state import HEAD_ROOM, Assembly, Cursor, Fragment, Parser, PendingChunk, Usage
from amqpscope.dissector.tcp.state import both


def _ranges(fragments: Ints, held: Ints) -> list[Ranges]:
    return [
        Ranges(fragments, Fragment.USED, Fragment.OFFSET, Fragment.LENGTH, len(fragments)),
        Ranges(held, PendingChunk.USED, PendingChunk.OFFSET, PendingChunk.LENGTH, len(held)),
    ]


def take_out(framing: Framing, slots: Ints, data: Bytes) -> bytes:
    """Take connections out; `data` has the bytes that are retained of them."""
    rows = both(slots)
    parsers = framing.parsers[rows]
    payloads, payload_lengths = chained(framing.fragments.rows, parsers[:, Parser.CHAIN], Fragment.NEXT)
    queue, queue_lengths = chained(framing.held.rows, parsers[:, Parser.QUEUE], PendingChunk.NEXT)
    fragments, held = framing.fragments.rows[payloads], framing.held.rows[queue]
    content = gather(_ranges(fragments, held), data, framing.compiled).data
    for pool, places, used in ((framing.fragments, payloads, Fragment.USED), (framing.held, queue, PendingChunk.USED)):
        pool.rows[places, used] = 0
        give_rows(pool.free, places)
    _count(framing, parsers, -1)
    heads = framing.heads.reshape(-1, HEAD_ROOM)[rows]
    Parser.clear(framing.parsers, rows)
    return PLAIN.written(
        [
            Parser.written(parsers), heads, Fragment.written(fragments), payload_lengths, PendingChunk.written(held),
            queue_lengths, content,
        ]
    )  # fmt: skip


def put_back(framing: Framing, data: bytes, target: Target) -> None:
    """Put connections back, which have begun."""
    state = PLAIN.read(data)
    parsers, heads, fragments, payload_lengths, held, queue_lengths, retained = state
    parsers, held = Parser.read(parsers, target.captures), PendingChunk.read(held, target.captures)
    fragments = Fragment.read(fragments, target.captures)
    put_bytes(_ranges(fragments, held), retained, target.buffer, framing.compiled)
    fragments[:, Fragment.SLOT] = np.repeat(np.repeat(target.slots, 2), payload_lengths)
    held[:, PendingChunk.SLOT] = np.repeat(np.repeat(target.slots, 2), queue_lengths)
    for pool, count in ((framing.fragments, len(fragments)), (framing.held, len(held))):
        pool.reserve(count)
    chains, queues = framing.fragments, framing.held
    _, *ends = put_chains(chains.rows, chains.free, fragments, payload_lengths, Fragment.NEXT)
    parsers[:, Parser.CHAIN], parsers[:, Parser.CHAIN_END] = ends
    _, *ends = put_chains(queues.rows, queues.free, held, queue_lengths, PendingChunk.NEXT)
    parsers[:, Parser.QUEUE], parsers[:, Parser.QUEUE_END] = ends
    rows = both(target.slots)
    framing.parsers[rows] = parsers
    framing.heads.reshape(-1, HEAD_ROOM)[rows] = heads
    _count(framing, parsers, 1)


def _count(framing: Framing, parsers: Ints, sign: int) -> None:
    """Count the bytes that are kept of these directions, or with -1 count them no more."""
    framing.cursor[Cursor.CHAINED] += sign * parsers[:, Parser.CHAINED].sum()
    framing.cursor[Cursor.HELD] += sign * parsers[:, Parser.BYTES].sum()


def take_usage(kind: type[Usage], usage: Ints, assembly: Ints, slots: Ints) -> bytes:
    """Take out what contents of connections take, of the protocol's kind; `assembly` counts it no more."""
    rows = usage[slots]
    _count_usage(assembly, rows, -1)
    kind.clear(usage, slots)
    return kind.written(rows)


def put_usage(kind: type[Usage], usage: Ints, assembly: Ints, slots: Ints, data: bytes) -> None:
    """Put back what `take_usage` took."""
    usage[slots] = rows = kind.read(data)
    _count_usage(assembly, rows, 1)


def _count_usage(assembly: Ints, rows: Ints, sign: int) -> None:
    assembly[Assembly.HELD] += sign * rows[:, Usage.HELD].sum()
    assembly[Assembly.KEEPING] += sign * rows[:, Usage.KEEPING].sum()
