"""RabbitMQ streams: what is remembered of frames, what they are made into, and the group in which kernels take it.

Of state.Parser, TYPE holds the key here, and SIZE the bytes after the version; there are no channels.
"""

from typing import NamedTuple

import numpy as np

from amqpscope.dissector.fields.problems import PROBLEM_CODES
from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.state import Matrix, Records, column
from amqpscope.dissector.protocols import state

FAULTS = (
    *state.FAULTS,
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
    len(state.FAULTS), len(state.FAULTS) + 7
)
FIELD_FAULTS = np.array([FAULTS.index(code) if code in FAULTS else -1 for code in PROBLEM_CODES], np.int64)
"""Fault of each problem that a field of a message may have."""
PART = 1 << 20
"""Bytes of an unfinished publish or delivery that are enough for a part; more than there are before the entries."""
PUBLISHED, FILTERED, DELIVERED = 1, 2, 3
"""What entries are like: those of publish, of its second version, of a chunk."""
WHOLE, CUT, MORE = range(3)
"""How bytes end: with the frame, at a gap, or with more to come."""


class Body(Matrix):
    """Directions: the body of the current frame."""

    VERSION = column("version of the command")
    KEEP = column("bytes that are wanted")
    PARTED = column("bytes that were passed on as parts")


class Frame(state.Frame):
    """Frames, one column each; TYPE is the key, with the bit of responses, and LENGTH what has columns."""

    LAYOUT = column("index of the layout; -1: unknown")
    VERSION = column("version of the command")
    CUT = column("1: fields lie in a gap or beyond a limit")
    BODY = column("bytes of the body that lie together from OFFSET on")
    PARTED = column("bytes of it that were passed on before these, as parts")


class Part(Records):
    """Bytes of a publish or delivery that is not complete, in order, one column each."""

    BEFORE = column("frames that were complete before")
    SLOT = column("slot of the connection")
    SIDE = column("side that sent it")
    LAYOUT = column("index of the layout")
    SIZE = column("bytes of the body")
    PARTED = column("bytes of it that were passed on before")
    OFFSET = column("where these lie")
    LENGTH = column("number of bytes")


class Entry(Records):
    """Messages, and sub-batches of them, one column each. When these are opened, each record has a column."""

    REGION = column("index of the bytes that it was in")
    ORDINAL = column("records before it in its region, by the counts announced")
    FIRST = column("ORDINAL of the first record of its entry: those of a sub-batch share it")
    NUMBER = column("publishing id")
    LARGE = column("1: that does not fit into 63 bits, -1: there is none")
    OFFSET = column("where its bytes lie that are there")
    LENGTH = column("number of bytes")
    MISSING = column("number of bytes that lie in a gap")
    CODING = column("coding of a sub-batch; -1: it is none")
    COUNT = column("records announced in a sub-batch")
    SIZE = column("bytes of a sub-batch when unpacked; -1: it does not say")
    FILTER = column("where its filter value lies")
    FILTER_LENGTH = column("bytes of that; -1: there is none")
    OPEN = column("0: a sub-batch that cannot be read, else 1")


class Layout(Matrix):
    """Layouts by (is response, command, version): see `layout.layout_table`."""

    INDEX = column("index of the first layout in the protocol's methods; -1: none", empty=-1)
    KEEP = column("bytes to keep of it; -1: all", empty=-1)


class Own(NamedTuple):
    """What the kernels of the framing have besides.

    Attributes:
        layouts: (layouts, Layout).
        senders: see `layout.sender_table`.
        bodies: (2 * slots, Body).
        variants: see `layout.variant_table`.
        starts, ops, members, shapes: the programs of a `Plan`, with its lists.
    """

    layouts: Array
    senders: Array
    bodies: Array
    variants: Array
    starts: Array
    ops: Array
    members: Array
    shapes: Array
