"""RabbitMQ streams: its numbers on the wire, and tables of its commands that kernels look into."""

import functools

import numpy as np

from amqpscope.dissector.fields.plan import Plan
from amqpscope.dissector.fields.state import Op
from amqpscope.dissector.kernels.arrays import Ints
from amqpscope.dissector.protocols.stream.state import Layout
from amqpscope.spec.model import Protocol

NAME = "rabbitmq-stream"

HEAD_BYTES = 8
"""Length, key and version."""
LENGTH_BYTES = 4
RESPONSE = 0x8000
UNMARKED = (20, 24, 25)
"""Commands whose answers lack the response bit with some peers: tune, route, partitions."""
COMMANDS, VERSIONS = 64, 4
"""Commands and versions below these are looked up in a table."""
UNKNOWN_FRAME = 1 << 20
"""A longer frame of an unknown command is taken for a lost boundary: it is the size that brokers propose."""

# Keys of frames, and the header of the chunk that a delivery brings (osiris).
PUBLISH, DELIVER, TUNE = 2, 8, 20
CHUNK_MAGIC = 5
CHUNK_HEADER, CHUNK_HEADER_2021 = 48, 44
CHUNK_DATA_LENGTH, CHUNK_TRAILER_LENGTH = 36, 40
"""Where in the header these are."""


@functools.lru_cache(maxsize=8)  # every dissector asks for the same one
def layout_table(protocol: Protocol) -> Ints:
    """Return the index of the first layout in `protocol.methods` of each command (-1: none), and the bytes to keep.

    Of most layouts all bytes are kept; of those that end in `rest`, the bytes before that.
    """
    plan = Plan.of_methods(protocol)
    table = Layout.make(2 * COMMANDS * VERSIONS)
    for index, method in reversed(list(enumerate(protocol.methods))):
        place = (method.class_id * COMMANDS + method.id) * VERSIONS + method.version
        rest = bool(method.fields) and method.fields[-1].type == "rest"
        begin, end = plan.starts[index], plan.starts[index + 1]
        table[place] = index, int(plan.ops[begin:end, Op.BYTES].sum()) if rest else -1
    return table


def variant_table(protocol: Protocol) -> Ints:
    """Return for each layout the next one to try when it does not fit, or -1."""
    table = np.full(len(protocol.methods), -1, np.int64)
    last: dict[tuple[int, int, int], int] = {}
    for index, method in enumerate(protocol.methods):
        key = method.class_id, method.id, method.version
        if method.variant:
            table[last[key]] = index
        last[key] = index
    return table


def sender_table(protocol: Protocol) -> Ints:
    """Return who may send requests of each command: 1 the client, 2 the server, 3 both; 0 for unknown commands."""
    table = np.zeros(COMMANDS, np.int64)
    for method in protocol.methods:
        if method.class_id == 0:
            table[method.id] |= method.from_client | method.from_server << 1
    return table
