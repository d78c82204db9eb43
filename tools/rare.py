"""Kernels that no recording needs: at limits, after damage, for large values, in several processes.

A type stands for a group of arrays, as other kernels take it.
"""

from typing import Any

import numpy as np

from amqpscope.dissector.kernels import lookup
from amqpscope.dissector.kernels.hashing import hash_begin, hash_end, hash_feed
from amqpscope.dissector.packets.segments import SegmentBatch
from amqpscope.dissector.parallel.flows import choose, pack
from amqpscope.dissector.protocols.amqp010 import boundary as boundary010
from amqpscope.dissector.protocols.amqp091 import boundary as boundary091
from amqpscope.dissector.protocols.amqp091.content import evict_contents
from amqpscope.dissector.protocols.amqp091.state import Channels
from amqpscope.dissector.protocols.amqp100.section_walk import write_forms
from amqpscope.dissector.protocols.payloads import drop_chain
from amqpscope.dissector.protocols.state import ParserState
from amqpscope.dissector.protocols.stream.entries import entry_bytes, read_mixed
from amqpscope.dissector.tcp.endings import evict, relieve
from amqpscope.dissector.tcp.identities import remember_all
from amqpscope.dissector.tcp.slots import rebuild
from amqpscope.dissector.tcp.state import Flows, Results
from amqpscope.pipelines.across import lost, matching
from amqpscope.pipelines.stream import publishing_ids

BYTES, INTS = np.empty(2, np.uint8), np.empty(2, np.int64)
ROWS, LANES = np.empty((2, 2), np.int64), np.empty((2, 2), np.uint64)
RARE: list[tuple[Any, tuple[Any, ...]]] = [
    (choose, (SegmentBatch, 0, INTS)),
    (pack, (BYTES, INTS, INTS, BYTES)),
    (evict, (Flows, Results, 0)),
    (relieve, (Flows, Results)),
    (rebuild, (Flows,)),
    (remember_all, (INTS, Flows)),
    (drop_chain, (ParserState, 0)),
    (boundary091.KERNELS.frame_follows, (BYTES, 0, 0, 0, INTS)),
    (boundary010.KERNELS.frame_follows, (BYTES, 0, 0, 0, INTS)),
    (evict_contents, (Channels, ROWS, 0)),
    (entry_bytes, (BYTES, 0, 0, 0, 0)),
    (read_mixed, (BYTES, INTS, INTS, INTS, ROWS, INTS, INTS)),
    (write_forms, (BYTES, INTS, INTS, INTS, BYTES, INTS)),
    (hash_begin, (LANES, 0)),
    (hash_feed, (LANES, BYTES, 0, BYTES, 0, 0)),
    (hash_end, (LANES, BYTES, 0)),
    (lookup.enter_all, (INTS, ROWS, 0, 0, INTS)),
    (publishing_ids.build, (ROWS, INTS, 0, 0)),
    (matching.fill, (ROWS, ROWS)),
    (lost.find_gaps, (ROWS, ROWS, INTS, ROWS, BYTES)),
]
