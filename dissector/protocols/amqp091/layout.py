"""AMQP 0-9-1: the rows and columns of the matrices that the kernels share."""

import numpy as np

from amqpscope.dissector.kernels.arrays import Array, Ints
from amqpscope.dissector.kernels.kernel import i64, kernel
from amqpscope.dissector.protocols import framing
from amqpscope.spec.model import Protocol

NAME = "amqp-0-9-1"

# Rows of `frames`, one column a frame.
(
    R_SLOT, R_SIDE, R_NO, R_CAPTURE, R_PACKET, R_TS, R_FIRST_CAPTURE, R_FIRST_PACKET, R_FIRST_TS,  # as in `rows`
    R_TYPE, R_CHANNEL, R_SIZE,
    R_OFFSET, R_LENGTH,  # the payload's present bytes before its first gap
    R_MISSING, R_METHOD,  # bytes in gaps; index of the method, -1: none, -2: unknown
    R_EPOCH, R_POS, R_HEIGHT,
) = range(19)  # fmt: skip

# Rows of `spans`: bytes (or with offset -1 a gap) of a body frame that lies in several pieces; X_BEFORE is the
# number of frames that were complete before.
X_BEFORE, X_SLOT, X_SIDE, X_CHANNEL, X_OFFSET, X_LENGTH, X_HEIGHT = range(7)
LOST_WAY = -2
"""An offset that says that the length is one of these, for all that is under way in this direction."""
FOUND, LOST, NOT_TAKEN = range(3)
"""Nothing was lost but bytes of bodies, told next; frames may have been lost; the next frame is one nobody takes."""

FAULTS = (
    *framing.FAULTS,
    "frame-end-wrong",  # value: the byte found
    "method-unknown",  # value: class << 16 | method
    "header-unknown",  # value: the first four bytes
    "content-interrupted",
    "content-unexpected",
    "content-abandoned",
    "body-too-large",  # value: bytes beyond
    "channel-wrong",
)
(
    END_WRONG, METHOD_UNKNOWN, HEADER_UNKNOWN, INTERRUPTED, UNEXPECTED, ABANDONED, BODY_TOO_LARGE, CHANNEL_WRONG,
) = range(len(framing.FAULTS), len(FAULTS))  # fmt: skip

# Columns of `directions`, one row a direction: of the content that is announced there, whose rest is `framing.W_REST`.
A_CHANNEL, A_BODY = range(2)
"""Its channel; bytes of its last body frame."""
A_PASSED, A_WIDTH = 2, 3
"""Bytes of it that are known to be among those passed over in a search."""

METHOD, HEADER, BODY, HEARTBEAT, PROTOCOL_HEADER = 1, 2, 3, 8, 0x41
"""Frame types; a protocol header has the number of its first byte, `A`."""
FRAME_END = 0xCE
OVERHEAD, HEAD_OCTETS, FRAME_END_OCTETS = 8, 7, 1
IDS_OCTETS = 4
"""Class and method id, in front of the arguments."""
IDS = 128
"""Class and method ids below this are looked up in a square table, others in the list behind it."""


def method_table(ids: list[tuple[int, int]]) -> Ints:
    """The index of each method in a square table of class and method id, -1 where there is none.

    Behind it pairs of numbers for ids that are too large for that: class << 16 | method, and the index.
    """
    table = np.full(IDS * IDS, -1, np.int64)
    large = []
    for index, (class_id, method_id) in enumerate(ids):
        if class_id < IDS and method_id < IDS:
            table[class_id * IDS + method_id] = index
        else:
            large += [class_id << 16 | method_id, index]
    return np.concatenate([table, np.array(large, np.int64)])


@kernel
def method_index(methods: Array, class_id: int, method_id: int) -> int:
    """The index of a method, -1 when there is none; `methods` is a `method_table`."""
    if class_id < IDS and method_id < IDS:
        return i64(methods[class_id * IDS + method_id])
    for k in range(IDS * IDS, len(methods), 2):
        if methods[k] == class_id << 16 | method_id:
            return i64(methods[k + 1])
    return -1


BY_CLIENT, BY_SERVER, CARRIES_CONTENT, OF_CONNECTION = 1, 2, 4, 8
"""Bits of a method's traits."""


def trait_table(protocol: Protocol) -> Ints:
    """Traits of each method, by its index: who may send it (both, where nothing is said), and what it is."""
    traits = []
    for m in protocol.methods:
        senders = m.from_client * BY_CLIENT | m.from_server * BY_SERVER
        own = OF_CONNECTION if m.class_name == "connection" else 0
        traits.append((senders or BY_CLIENT | BY_SERVER) | m.content * CARRIES_CONTENT | own)
    return np.array(traits, np.int64)


# What a method means for content and channel state.
(
    PLAIN, PUBLISH, DELIVER, GET_OK, RETURN,  # the last four carry content
    OPEN, SELECT, CONSUME, CONSUME_OK, CANCEL, GET, GET_EMPTY, CONNECTION,
) = range(13)  # fmt: skip
ROLES = {
    "basic.publish": PUBLISH,
    "basic.deliver": DELIVER,
    "basic.get-ok": GET_OK,
    "basic.return": RETURN,
    "channel.open": OPEN,
    "confirm.select": SELECT,
    "basic.consume": CONSUME,
    "basic.consume-ok": CONSUME_OK,
    "basic.cancel": CANCEL,
    "basic.get": GET,
    "basic.get-empty": GET_EMPTY,
}
KINDS = {PUBLISH: "publish", DELIVER: "deliver", GET_OK: "get", RETURN: "return"}

# Columns of `channels`.
(
    N_USED, N_SLOT, N_CHANNEL, N_NEXT,  # N_NEXT: next channel of the connection
    N_EPOCH, N_CONFIRM, N_SEQ,  # N_SEQ: number of the last publish
    N_UNSURE,  # whether that is known: one of the below
    N_STRAYED,  # 0: requests pair with their answers by order; else bits as below
    N_CONSUMERS,  # list of (hash of the tag, no_ack)
    N_CONSUMES, N_CONSUMES_END,  # consumes that wait for their -ok: (hash of the tag or 0, no_ack)
    N_GETS, N_GETS_END,  # gets that wait: (0, no_ack); in all of these no_ack is -1 where it was not seen
    N_WIDTH,
) = range(15)  # fmt: skip
BEGUN, STRAYED = 4, 8
"""Bits 0 and 1 of N_STRAYED: unless the last gap of the client's, of the server's, held nothing but bodies. Then:
no request was seen, so answers to those in front of the capture may come; requests or answers may be lost, or out of
order."""
KNOWN, DOUBTFUL, UNKNOWN = range(3)
"""All was seen since channel.open; it was, if the last gap of the client's held nothing but bodies; it was not."""

# Columns of `contents`, rows 2 * channel + (0 client's, 1 server's).
(
    B_KIND,  # role of the method; 0: nothing under way
    B_STATE,  # 1: the header is next, 2: the body
    B_METHOD, B_METHOD_OFFSET, B_METHOD_LENGTH, B_METHOD_MISSING,
    B_HEADER_OFFSET, B_HEADER_LENGTH, B_HEADER_MISSING,
    B_SIZE, B_GOT, B_MISSING,  # of the body, in bytes
    B_SEQ, B_NO_ACK,  # -1: null; -2: a number that is not known, if the channel is in confirm mode
    B_FIRST_NO, B_FIRST_PACKET, B_FIRST_TS, B_FIRST_CAPTURE,
    B_NO, B_PACKET, B_TS, B_CAPTURE,  # of its last frame so far
    B_OVER,  # bytes beyond the announced body
    B_BODY, B_KEPT,  # number under which the body is kept, -1: it is not; bytes of it
    B_LOST,  # LOST: what follows on the channel need not be of it; NOT_TAKEN; else FOUND
    B_WIDTH,
) = range(27)  # fmt: skip
UNFINISHED = 2
"""In G_PARTIAL: not only are bytes missing, but frames at the end were not seen."""

# Rows of `messages`, one column a message.
(
    G_SLOT, G_SIDE, G_NO, G_CAPTURE, G_PACKET, G_TS, G_FIRST_CAPTURE, G_FIRST_PACKET, G_FIRST_TS,  # as in `rows`
    G_KIND, G_CHANNEL, G_EPOCH, G_FIRST_NO,
    G_METHOD, G_METHOD_OFFSET, G_METHOD_LENGTH, G_HEADER_OFFSET, G_HEADER_LENGTH, G_HEADER_CUT,
    G_SIZE, G_MISSING, G_HASH, G_SEQ, G_NO_ACK, G_PARTIAL,
    G_BODY, G_HEIGHT,
) = range(27)  # fmt: skip

# Columns of `nodes`, the members of all lists.
Z_NEXT, Z_KEY, Z_VALUE, Z_WIDTH = range(4)

# Items of `control`.
(
    Q_FRAME, Q_SPAN,  # cursor
    Q_MESSAGES, Q_FAULTS, Q_KEPT, Q_BODIES, Q_TOMBSTONES,
    Q_FULL,  # 1: no more channels may be made
    Q_HELD,  # bytes of methods and headers of all contents under way
    Q_KEEPING,  # bytes of their bodies that are kept
    Q_WIDTH,
) = range(11)  # fmt: skip

# Rows of `kept`: bytes of bodies to keep, in order (body number, offset, length; -1: none of this body after all).
E_BODY, E_OFFSET, E_LENGTH, E_HEIGHT = range(4)


def role_table(names: list[str]) -> Ints:
    """Role of each method, by its index."""
    roles = [CONNECTION if n.startswith("connection.") else ROLES.get(n, PLAIN) for n in names]
    return np.array(roles, np.int64)
