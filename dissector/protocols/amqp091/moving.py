"""Channels of AMQP 0-9-1 and their contents under way, taken out as bytes and put back."""

from typing import TYPE_CHECKING

import numpy as np

from amqpscope.dissector.kernels.arrays import Bytes, Ints
from amqpscope.dissector.kernels.coding import PLAIN, Target
from amqpscope.dissector.kernels.pool import chained, give_rows, put_chains
from amqpscope.dissector.kernels.retained import Ranges, gather, put_bytes
from amqpscope.dissector.protocols.amqp091.state import Assembly, Channel, Content, Node
from amqpscope.dissector.tcp.state import both

if TYPE_CHECKING:
    from amqpscope.dissector.protocols.amqp091.protocol import Amqp091

LISTS = [Channel.CONSUMERS, Channel.CONSUMES, Channel.GETS]
ENDED = [Channel.CONSUMES, Channel.GETS]
"""Lists whose last node stands in the column behind."""
WAITING = 32
"""Bytes of a body that wait to be hashed, at most."""


def _ranges(contents: Ints) -> list[Ranges]:
    return [
        Ranges(contents, Content.STATE, Content.METHOD_OFFSET, Content.METHOD_LENGTH, len(contents)),
        Ranges(contents, Content.STATE, Content.HEADER_OFFSET, Content.HEADER_LENGTH, len(contents)),
    ]


def take_out(stage: "Amqp091", slots: Ints, data: Bytes) -> bytes:
    """Take the channels of connections out; `data` has the bytes that are retained of them."""
    rows, lengths = chained(stage.channels.rows, stage.first[slots], Channel.NEXT)
    channels, places = stage.channels.rows[rows], both(rows)
    contents = stage.contents[places]
    octets = gather(_ranges(contents), data, stage.compiled).data
    nodes, node_lengths = chained(stage.nodes.rows, channels[:, LISTS].ravel(), Node.NEXT)
    state = [
        Channel.written(channels), lengths, Content.written(contents), octets, stage.lanes[places],
        stage.waiting.reshape(-1, WAITING)[places], Node.written(stage.nodes.rows[nodes]), node_lengths,
        [stage.bodies.pop(body, None) for body in contents[_keeps(contents), Content.BODY].tolist()],
    ]  # fmt: skip
    _count(stage, contents, -1)
    give_rows(stage.nodes.free, nodes)
    stage.channels.rows[rows, Channel.USED] = 0
    stage.contents[places] = 0
    give_rows(stage.channels.free, rows)
    stage.first[slots] = -1
    stage.rebuild(len(stage.table))
    return PLAIN.written(state)


def put_back(stage: "Amqp091", octets: bytes, target: Target) -> None:
    """Put channels back."""
    state = PLAIN.read(octets)
    channels, lengths, contents, retained, lanes, waiting, nodes, node_lengths, bodies = state
    channels, nodes = Channel.read(channels), Node.read(nodes)
    contents = Content.read(contents, target.captures)
    put_bytes(_ranges(contents), retained, target.buffer, stage.compiled)
    while stage.channels.left < len(channels):
        stage.grow_channels(2 * len(stage.channels))
    stage.nodes.reserve(len(nodes))
    _, firsts, lasts = put_chains(stage.nodes.rows, stage.nodes.free, nodes, node_lengths, Node.NEXT)
    channels[:, LISTS] = firsts.reshape(-1, len(LISTS))
    channels[:, np.array(ENDED) + 1] = lasts.reshape(-1, len(LISTS))[:, -len(ENDED) :]
    channels[:, Channel.SLOT] = np.repeat(target.slots, lengths)
    rows, stage.first[target.slots], _ = put_chains(
        stage.channels.rows, stage.channels.free, channels, lengths, Channel.NEXT
    )
    kept = np.flatnonzero(_keeps(contents))
    contents[kept, Content.BODY] = stage.assembly[Assembly.BODIES] + np.arange(len(kept))
    stage.assembly[Assembly.BODIES] += len(kept)
    stage.bodies |= {
        body: parts
        for body, parts in zip(contents[kept, Content.BODY].tolist(), bodies, strict=True)
        if parts is not None
    }
    places = both(rows)
    stage.contents[places], stage.lanes[places] = contents, lanes
    stage.waiting.reshape(-1, WAITING)[places] = waiting
    _count(stage, contents, 1)
    stage.rebuild(len(stage.table))


def _keeps(contents: Ints) -> Ints:
    """Whether the body of a content is kept."""
    keeps: Ints = (contents[:, Content.STATE] != 0) & (contents[:, Content.BODY] >= 0)
    return keeps


def _count(stage: "Amqp091", contents: Ints, sign: int) -> None:
    """Count the bytes of these contents, or with -1 count them no more."""
    going = contents[contents[:, Content.STATE] != 0]
    stage.assembly[Assembly.HELD] += sign * going[:, [Content.METHOD_LENGTH, Content.HEADER_LENGTH]].sum()
    stage.assembly[Assembly.KEEPING] += sign * going[:, Content.KEPT].sum()
