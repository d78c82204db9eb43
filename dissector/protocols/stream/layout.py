"""RabbitMQ streams: the rows and columns of the matrices that the kernels share.

Of the columns of the walk (`amqpscope.dissector.protocols.framing`), `W_TYPE` holds the key here, `W_CHANNEL` the
version, `W_SIZE` the bytes after the version.
"""

import numpy as np

from amqpscope.dissector.fields.plan import Plan
from amqpscope.dissector.fields.problems import PROBLEM_CODES
from amqpscope.dissector.fields.walk import O_WIDTH
from amqpscope.dissector.kernels.arrays import Ints
from amqpscope.dissector.protocols import framing
from amqpscope.spec.model import Protocol

NAME = "rabbitmq-stream"

# Rows of `frames`, one column a frame.
(
    R_SLOT, R_SIDE, R_NO, R_CAPTURE, R_PACKET, R_TS, R_FIRST_CAPTURE, R_FIRST_PACKET, R_FIRST_TS,  # as in `rows`
    R_LAYOUT, R_KEY, R_VERSION, R_SIZE,  # R_LAYOUT: index of the layout, -1: unknown
    R_OFFSET, R_LENGTH,  # the body's bytes that are there, up to the first gap or as many as are kept
    R_CUT, R_MISSING,  # 1: fields lie in a gap or beyond a limit; bytes in gaps
    R_POS,
    R_BODY,  # bytes of the body that lie together from R_OFFSET on; R_LENGTH of them have columns
    R_PARTED,  # bytes of the body that were handed on before these, as parts
    R_HEIGHT,
) = range(21)  # fmt: skip

# Columns of `directions`, one row a direction, of the frame at hand: bytes that are wanted; those handed on as parts.
A_KEEP, A_PARTED, A_WIDTH = range(3)

# Rows of `parts`: bytes of a publish or delivery that is not complete, in order. P_BEFORE is the number of frames that
# were complete before.
P_BEFORE, P_SLOT, P_SIDE, P_LAYOUT, P_SIZE, P_PARTED, P_OFFSET, P_LENGTH, P_HEIGHT = range(9)
PART = 1 << 20
"""Bytes of an unfinished publish or delivery that are enough for a part; more than there are before the entries."""

# Rows of `entries`: messages, and sub-batches of them. When these are opened, each record has a column.
(
    E_REGION,  # index of the bytes that they were in
    E_ORDINAL,  # records before it in its region, by the counts announced
    E_NUMBER, E_LARGE,  # publishing id; 1: it does not fit into 63 bits, -1: there is none
    E_OFFSET, E_LENGTH, E_MISSING,  # bytes that are there, and how many lie in a gap
    E_CODING, E_COUNT, E_SIZE,  # of a sub-batch: coding (else -1), records announced, size when unpacked (-1: unsaid)
    E_FILTER, E_FILTER_LENGTH,  # filter value; length -1: none
    E_OPEN,  # 0: a sub-batch that cannot be read, else 1
    E_HEIGHT,
) = range(14)  # fmt: skip
PUBLISHED, FILTERED, DELIVERED = 1, 2, 3
"""What entries are like: those of publish, of its second version, of a chunk."""
WHOLE, CUT, MORE = range(3)
"""How bytes end: with the frame, at a gap, or with more to come."""

FAULTS = (
    *framing.FAULTS,
    "command-unknown",  # value: key << 16 | version
    "chunk-crc-wrong",  # value: the CRC that the data have
    "records-malformed",  # value: bytes not read
    "record-count-wrong",  # value: records found
    "sub-batch-unreadable",  # value: its coding
    "integer-too-large",  # value: 0 for publishing ids beyond 63 bits, else as the following
    "message-malformed",  # value: records with that, as of the following
    *(code for code in PROBLEM_CODES if code not in ("field-overrun", "bytes-left-over", "integer-too-large")),
)
COMMAND_UNKNOWN, CRC_WRONG, MALFORMED, COUNT_WRONG, UNREADABLE, ID_TOO_LARGE, MESSAGE_MALFORMED = range(
    len(framing.FAULTS), len(framing.FAULTS) + 7
)
FIELD_FAULTS = np.array([FAULTS.index(code) if code in FAULTS else -1 for code in PROBLEM_CODES], np.int64)
"""Fault of each problem that a field of a message may have."""

HEAD_OCTETS = 8
"""Length, key and version."""
LENGTH_OCTETS = 4
RESPONSE = 0x8000
UNMARKED = (20, 24, 25)
"""Commands whose answers lack the response bit with some peers: tune, route, partitions."""
COMMANDS, VERSIONS = 64, 4
"""Commands and versions below these are looked up in a table."""
UNKNOWN_FRAME = 1 << 20
"""A longer frame of an unknown command is taken for a lost boundary: it is the size that brokers propose."""

# Chunk: key of the frame that brings it, and its header (osiris).
DELIVER = 8
CHUNK_MAGIC = 5
CHUNK_HEADER, CHUNK_HEADER_2021 = 48, 44
CHUNK_DATA_LENGTH, CHUNK_TRAILER_LENGTH = 36, 40
"""Where in the header these are."""

# Columns of the table of layouts, one row for (is response, command, version): see `layout_table`.
L_INDEX, L_KEEP, L_WIDTH = range(3)


def layout_table(protocol: Protocol, plan: Plan) -> Ints:
    """What is behind a frame's head: index of the first layout in `protocol.methods` (-1: none), bytes to keep of it.

    Of most layouts all bytes are kept; of those that end in `rest`, the bytes before that.
    """
    table = np.full((2 * COMMANDS * VERSIONS, L_WIDTH), -1, np.int64)
    for index, method in reversed(list(enumerate(protocol.methods))):
        place = (method.class_id * COMMANDS + method.id) * VERSIONS + method.version
        rest = bool(method.fields) and method.fields[-1].type == "rest"
        begin, end = plan.starts[index], plan.starts[index + 1]
        table[place] = index, int(plan.ops[begin:end, O_WIDTH].sum()) if rest else -1
    return table


def variant_table(protocol: Protocol) -> Ints:
    """For each layout the next that may be meant when it does not fit, or -1."""
    table = np.full(len(protocol.methods), -1, np.int64)
    last: dict[tuple[int, int, int], int] = {}
    for index, method in enumerate(protocol.methods):
        key = method.class_id, method.id, method.version
        if method.variant:
            table[last[key]] = index
        last[key] = index
    return table


def sender_table(protocol: Protocol) -> Ints:
    """Who may send requests of each command: 1 the client, 2 the server, 3 both; 0 for unknown commands."""
    table = np.zeros(COMMANDS, np.int64)
    for method in protocol.methods:
        if method.class_id == 0:
            table[method.id] |= method.from_client | method.from_server << 1
    return table
