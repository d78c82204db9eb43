"""Connections of TCP, taken out as bytes and put back."""

import numpy as np

from amqpscope.dissector.kernels.arrays import Bytes, Ints
from amqpscope.dissector.kernels.coding import PLAIN
from amqpscope.dissector.kernels.pool import chained, give_rows, put_chains, take_rows
from amqpscope.dissector.kernels.retained import Buffer, Ranges, gather, put_bytes
from amqpscope.dissector.tcp.reassembler import Reassembler
from amqpscope.dissector.tcp.sending import Sending, Sent
from amqpscope.dissector.tcp.state import REPEATS, Conn, Control, Direction, Facts, Queue, Repeat, Segment, both

CONTROLS = [Control.CLOCK, Control.SEGMENTS, Control.SWEPT]
"""What only grows: the later of two counts."""


def _repeats(rows: Ints) -> Ints:
    places: Ints = (REPEATS * rows[:, None] + np.arange(REPEATS)).ravel()
    return places


def _ranges(segments: Ints) -> list[Ranges]:
    return [Ranges(segments, Segment.USED, Segment.OFFSET, Segment.LENGTH, len(segments))]


def take_out(tcp: Reassembler, slots: Ints, data: Bytes) -> bytes:
    """Take connections out; `data` has the bytes that are buffered of them."""
    flows, rows = tcp.flows, both(slots)
    direction = flows.direction[rows]
    queues = np.concatenate([flows.queues[rows], flows.elsewhere[rows]])
    places, lengths = chained(flows.segments, queues[:, Queue.HEAD], Segment.NEXT)
    segments = flows.segments[places]
    content = gather(_ranges(segments), data, tcp.compiled).data
    flows.segments[places, Segment.USED] = 0
    give_rows(flows.free_segments, places)
    flows.control[Control.WAITING] -= queues[:, Queue.BYTES].sum()
    flows.control[Control.LIVE] -= len(slots)
    pairs = flows.conn[slots, Conn.SENDING]
    pairs = pairs[pairs >= 0]
    own = flows.sending[both(pairs)]
    sent, counts = chained(flows.sent, own[:, Sending.HEAD], Sent.NEXT)
    Sending.clear(flows.sending, both(pairs))
    give_rows(flows.free_sending, pairs)
    give_rows(flows.free_sent, sent)
    facts, conn = flows.facts[slots], flows.conn[slots]
    tcp.free(slots)
    tcp.link()
    return PLAIN.written(
        [
            Facts.written(facts), Conn.written(conn), Direction.written(direction),
            Repeat.written(flows.repeats[_repeats(rows)]), flows.recent[rows], Queue.written(queues),
            Segment.written(segments), lengths, content, Sending.written(own), Sent.written(flows.sent[sent]), counts,
            flows.control[CONTROLS],
        ]
    )  # fmt: skip


def put_back(tcp: Reassembler, data: bytes, captures: Ints, buffer: Buffer) -> Ints:
    """Put connections back; returns their slots."""
    state = PLAIN.read(data)
    facts, conn, direction, repeats, recent, queues, segments, lengths, retained, sending, sent, counts, control = state
    facts, conn, direction = Facts.read(facts), Conn.read(conn, captures), Direction.read(direction, captures)
    queues, segments = Queue.read(queues), Segment.read(segments, captures)
    sending, sent = Sending.read(sending, captures), Sent.read(sent, captures)
    tcp.reserve(len(facts), len(segments), len(sending) // 2, len(sent))
    flows = tcp.flows
    put_bytes(_ranges(segments), retained, buffer, tcp.compiled)
    ends = put_chains(flows.segments, flows.free_segments, segments, lengths, Segment.NEXT)
    _, queues[:, Queue.HEAD], queues[:, Queue.TAIL] = ends
    _, sending[:, Sending.HEAD], sending[:, Sending.TAIL] = put_chains(
        flows.sent, flows.free_sent, sent, counts, Sent.NEXT
    )
    pairs = take_rows(flows.free_sending, len(sending) // 2)
    conn[conn[:, Conn.SENDING] >= 0, Conn.SENDING] = pairs
    flows.sending[both(pairs)] = sending
    slots = take_rows(flows.free, len(facts))
    rows = both(slots)
    flows.facts[slots], flows.conn[slots], flows.direction[rows] = facts, conn, direction
    flows.queues[rows], flows.elsewhere[rows] = np.split(queues, 2)
    flows.repeats[_repeats(rows)] = Repeat.read(repeats, captures)
    flows.recent[rows] = recent
    flows.control[CONTROLS] = np.maximum(flows.control[CONTROLS], control)
    flows.control[Control.WAITING] += queues[:, Queue.BYTES].sum()
    flows.control[Control.LIVE] += len(slots)
    tcp.remember(facts[facts[:, Facts.ID] != 0, Facts.ID])
    tcp.link()
    return slots
