"""Connections that speak AMQP 1.0: their performatives are recognised and counted, not more.

A frame is a 32-bit size, the place of its body in words, a type, and a channel (part 2, section 2.3); its body begins
with a performative, a described list, and is empty in a heartbeat. Eight bytes that begin with `AMQP` are a header.
"""

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from amqpscope.dissector.kernels import limits
from amqpscope.dissector.kernels.arrays import Array, Bytes, Ints
from amqpscope.dissector.kernels.coding import PLAIN, Target
from amqpscope.dissector.kernels.kernel import call, i64, kernel
from amqpscope.dissector.kernels.retained import Buffer, Ranges
from amqpscope.dissector.protocols.amqp100.handshake import Amqp10Handshakes
from amqpscope.dissector.protocols.amqp100.state import Count
from amqpscope.dissector.protocols.registry import Context
from amqpscope.dissector.protocols.state import HEAD as HEAD_STATE
from amqpscope.dissector.protocols.state import SEARCH
from amqpscope.dissector.tcp.state import Chunk, Facts, both
from amqpscope.spec import amqp100

HEAD = 8
FIRST = 11
"""Bytes from a frame's beginning to the number of its performative: 00 53 and the number stand after the head."""
HEARTBEAT, OTHER = 256, 257
COUNTS = 258
"""Columns of the counts: the numbers of performatives, heartbeats, and what is none of them."""
LOST = 1


@kernel
def count_frames(chunks: Array, n: int, data: Array, facts: Array, walk: Array, counts: Array) -> None:
    """Follow the frames of all chunks; from a gap on a direction is not followed."""
    for i in range(n):
        row = 2 * chunks[Chunk.SLOT, i] + chunks[Chunk.SIDE, i]
        p = chunks[Chunk.OFFSET, i]
        left = chunks[Chunk.LENGTH, i]
        if p < 0:
            if walk[row, Count.LEFT] > left and walk[row, Count.HAVE] >= HEAD + 3:
                walk[row, Count.LEFT] -= left
            else:
                walk[row, Count.STATE] = LOST
            continue
        while left > 0 and walk[row, Count.STATE] != LOST:
            have = walk[row, Count.HAVE]
            if have < HEAD:
                byte = i64(data[p])
                if have < 4:
                    walk[row, Count.MAGIC] = walk[row, Count.MAGIC] << 8 | byte
                elif have == 4:
                    walk[row, Count.WORDS] = byte
                elif have == 5:
                    walk[row, Count.TYPE] = byte
                walk[row, Count.HAVE] = have + 1
                p += 1
                left -= 1
                if have + 1 == HEAD:
                    size = walk[row, Count.MAGIC]
                    if size == 0x414D5150:
                        walk[row, Count.HAVE] = 0
                        walk[row, Count.MAGIC] = 0
                        continue
                    if size < HEAD or size > limits.FRAME or walk[row, Count.WORDS] < 2 or walk[row, Count.TYPE] > 1:
                        walk[row, Count.STATE] = LOST
                        continue
                    walk[row, Count.SIZE] = size
                    walk[row, Count.LEFT] = size - HEAD
                    walk[row, Count.CODE] = HEARTBEAT if size == HEAD else OTHER
            else:
                # where the body begins, there are 00 53 and the number of the performative
                at = walk[row, Count.SIZE] - walk[row, Count.LEFT] - 4 * walk[row, Count.WORDS]
                take = min(left, walk[row, Count.LEFT])
                if 0 <= at <= 2 and walk[row, Count.HAVE] == HEAD + at:
                    byte = i64(data[p])
                    take = 1
                    if (at == 0 and byte == 0) or (at == 1 and byte == 0x53):
                        walk[row, Count.HAVE] += 1
                    elif at == 2:
                        walk[row, Count.CODE] = byte
                        walk[row, Count.HAVE] += 1
                elif at < 0:
                    take = min(take, -at)
                walk[row, Count.LEFT] -= take
                p += take
                left -= take
            if walk[row, Count.HAVE] >= HEAD and walk[row, Count.LEFT] == 0:
                code = walk[row, Count.CODE]
                if walk[row, Count.TYPE] == 1 and code < HEARTBEAT:
                    code = code if code >= 0x40 else OTHER
                counts[chunks[Chunk.SLOT, i], code] += 1
                facts[chunks[Chunk.SLOT, i], Facts.FRAMES] += 1
                walk[row, Count.HAVE] = 0
                walk[row, Count.MAGIC] = 0


class Amqp10:
    """Counts of all connections that speak AMQP 1.0, and what is known of them."""

    ranges: tuple[Ranges, ...] = ()

    def __init__(self, context: Context) -> None:
        self.compiled = context.compiled
        self.record = context.record
        self.handshakes = Amqp10Handshakes(context)
        self.walk = Count.make(0)
        self.counts = np.zeros((0, COUNTS), np.int64)
        self.names = {code: name for names in amqp100.load().performatives.values() for code, name in names.items()}
        self.names[HEARTBEAT] = "heartbeat"

    def begin(self, slots: Ints, states: Ints, capacity: int) -> None:
        """Take over connections; one that was under way when it was first seen is not followed."""
        self.handshakes.begin(slots[states == HEAD_STATE])
        more = capacity - len(self.counts)
        if more > 0:
            self.walk = Count.grown(self.walk, len(self.walk) + 2 * more)
            self.counts = np.concatenate([self.counts, np.zeros((more, COUNTS), np.int64)])
        self.counts[slots] = 0
        for side in range(2):
            self.walk[2 * slots + side] = 0
            self.walk[2 * slots + side, Count.STATE] = np.where(states == HEAD_STATE, 0, LOST)

    def feed(self, chunks: Ints, count: int, buffer: Buffer, facts: Ints) -> Iterator[Any]:
        """Take the first `count` chunks; no rows come of them."""
        self.handshakes.feed(chunks[:, :count], buffer)
        call(count_frames, self.compiled, chunks, count, buffer.data, facts, self.walk, self.counts)
        yield from ()

    def end(self, slots: Ints, facts: Ints, buffer: Buffer) -> Iterator[Any]:
        """Yield the counts of connections that are over."""
        self.handshakes.end(slots)
        for slot in slots.tolist():
            found: Counter[str] = Counter()
            for code in np.flatnonzero(self.counts[slot]).tolist():
                found[self.names.get(code, "unknown")] += int(self.counts[slot, code])
            self.record(slot).columns["performatives"] = json.dumps(found, separators=(",", ":"))
        yield from ()

    def take_out(self, slots: Ints, data: Bytes) -> bytes:
        """Take the state of connections out; no bytes are retained in `data`."""
        rows = both(slots)
        return PLAIN.written([self.walk[rows], self.counts[slots], self.handshakes.take_out(slots)])

    def put_back(self, data: bytes, target: Target) -> None:
        """Put back what `take_out` took."""
        walk, counts, handshakes = PLAIN.read(data)
        self.begin(target.slots, np.full(len(target.slots), SEARCH), target.capacity)
        self.walk[both(target.slots)], self.counts[target.slots] = walk, counts
        self.handshakes.put_back(handshakes, target)

    def end_lost(self, slots: Ints) -> NDArray[np.bool_]:
        """Return which connections may lack the last frames of a direction: after a gap, none is followed."""
        lost: NDArray[np.bool_] = (self.walk[both(slots), Count.STATE] == LOST).reshape(-1, 2).any(1)
        return lost

    def holding(self, slots: Ints) -> Iterator[tuple[int, int, bool, int]]:
        """Return nothing: no chunks are held back."""
        yield from ()
