"""AMQP 0-9-1: the rows and columns of the matrices that the kernels share."""

import numpy as np

from dissector.arrays import Ints

# States of a direction.
SEARCH, HEAD, PAYLOAD, END, LOST = range(5)
"""LOST: not of this protocol any more; everything is skipped."""

# Columns of `walk`, one row a direction (2 * slot + side).
(
    W_STATE,
    W_HEADS, W_HEAD,  # octets of the head so far, and these as a big-endian number
    W_TYPE, W_CHANNEL, W_SIZE,  # of the frame at hand; W_SIZE: payload
    W_GOT, W_MISSING,  # payload octets passed, and how many of these lay in holes
    W_POS,  # stream position of the frame
    W_FIRST_PACKET, W_FIRST_TS, W_FIRST_CAPTURE,
    W_CHAIN, W_CHAIN_END, W_CHAINED,  # fragments of the payload; octets in them
    W_SKIPPED,  # octets passed over in the search at hand
    W_LAST,  # the last of them; -1: none
    W_WIDTH,
) = range(18)  # fmt: skip

# Columns of `fragments`: octets of payloads that go on in a later piece.
F_NEXT, F_OFFSET, F_LENGTH, F_USED, F_WIDTH = range(5)

# Rows of `frames`, one column a frame.
(
    R_SLOT, R_SIDE, R_NO, R_TYPE, R_CHANNEL, R_SIZE,
    R_OFFSET, R_LENGTH,  # the payload's present octets before its first hole
    R_MISSING, R_METHOD,  # octets in holes; index of the method, -1: none, -2: unknown
    R_PACKET, R_TS, R_CAPTURE, R_FIRST_PACKET, R_FIRST_TS, R_FIRST_CAPTURE,
    R_EPOCH, R_POS, R_HEIGHT,
) = range(19)  # fmt: skip

# Rows of `spans`: octets (or with offset -1 a hole) of a body frame that lies in several pieces; X_BEFORE is the
# number of frames that were complete before.
X_BEFORE, X_SLOT, X_SIDE, X_CHANNEL, X_OFFSET, X_LENGTH, X_HEIGHT = range(7)

# Rows of `faults`, what becomes rows of `anomalies`. Y_VALUE depends on the code.
(
    Y_CODE, Y_SLOT, Y_SIDE, Y_NO, Y_CHANNEL, Y_POS, Y_VALUE,
    Y_PACKET, Y_TS, Y_CAPTURE, Y_FIRST_PACKET, Y_FIRST_TS, Y_FIRST_CAPTURE, Y_HEIGHT,
) = range(14)  # fmt: skip

FAULTS = (
    "tcp-hole",  # value: octets lost
    "octets-skipped",  # value: octets
    "frame-type-unknown",  # value: the type octet
    "frame-end-wrong",  # value: the octet found
    "frame-too-large",  # value: announced size
    "frame-cut",  # value: octets still missing
    "method-unknown",  # value: class << 16 | method
    "header-unknown",  # value: the first four octets
    "limit-reached",  # value: octets
    "content-interrupted",
    "content-unexpected",
    "content-abandoned",
    "body-too-large",  # value: octets beyond
    "channel-wrong",
)
(
    HOLE, SKIPPED, TYPE_UNKNOWN, END_WRONG, TOO_LARGE, CUT, METHOD_UNKNOWN, HEADER_UNKNOWN, LIMIT,
    INTERRUPTED, UNEXPECTED, ABANDONED, BODY_TOO_LARGE, CHANNEL_WRONG,
) = range(14)  # fmt: skip

# Items of `control`.
(
    M_PIECE, M_AT,  # cursor: piece, and octets of it already taken
    M_FRAMES, M_SPANS, M_FAULTS, M_ARENA,
    M_CHAINED,  # octets in all fragments
    M_COUNT,  # pieces
    M_WIDTH,
) = range(9)  # fmt: skip

METHOD, HEADER, BODY, HEARTBEAT, PROTOCOL_HEADER = 1, 2, 3, 8, 0x41
"""Frame types; a protocol header has the number of its first octet, `A`."""
FRAME_END = 0xCE
OVERHEAD = 8
IDS = 128
"""Class and method ids below this are looked up in a square table."""


def method_table(ids: list[tuple[int, int]]) -> Ints:
    """The square table from class and method id to the method's index; -1 where there is none."""
    table = np.full(IDS * IDS, -1, np.int64)
    for index, (class_id, method_id) in enumerate(ids):
        if class_id < IDS and method_id < IDS:
            table[class_id * IDS + method_id] = index
    return table


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
    N_CONSUMERS,  # list of (hash of the tag, no_ack)
    N_CONSUMES, N_CONSUMES_END,  # consumes that wait for their -ok: (hash of the tag or 0, no_ack)
    N_GETS, N_GETS_END,  # gets that wait: (0, no_ack)
    N_WIDTH,
) = range(13)  # fmt: skip

# Columns of `contents`, rows 2 * channel + (0 client's, 1 server's).
(
    B_KIND,  # role of the method; 0: nothing under way
    B_STATE,  # 1: the header is next, 2: the body
    B_METHOD, B_METHOD_OFFSET, B_METHOD_LENGTH, B_METHOD_MISSING,
    B_HEADER_OFFSET, B_HEADER_LENGTH, B_HEADER_MISSING,
    B_SIZE, B_GOT, B_MISSING,  # of the body, in octets
    B_SEQ, B_NO_ACK,  # -1: null
    B_FIRST_NO, B_FIRST_PACKET, B_FIRST_TS, B_FIRST_CAPTURE,
    B_NO, B_PACKET, B_TS, B_CAPTURE,  # of its last frame so far
    B_OVER,  # octets beyond the announced body
    B_BODY,  # number under which the body is kept; -1: it is not
    B_WIDTH,
) = range(25)  # fmt: skip

# Rows of `messages`, one column a message.
(
    G_SLOT, G_SIDE, G_KIND, G_CHANNEL, G_EPOCH, G_NO, G_FIRST_NO,
    G_METHOD, G_METHOD_OFFSET, G_METHOD_LENGTH, G_HEADER_OFFSET, G_HEADER_LENGTH, G_HEADER_CUT,
    G_SIZE, G_MISSING, G_HASH, G_SEQ, G_NO_ACK, G_PARTIAL,
    G_PACKET, G_TS, G_CAPTURE, G_FIRST_PACKET, G_FIRST_TS, G_FIRST_CAPTURE, G_BODY, G_HEIGHT,
) = range(27)  # fmt: skip

# Columns of `nodes`, the members of all lists.
Z_NEXT, Z_KEY, Z_VALUE, Z_WIDTH = range(4)

# Items of `control`.
(
    Q_FRAME, Q_SPAN,  # cursor
    Q_MESSAGES, Q_FAULTS, Q_KEPT, Q_BODIES, Q_TOMBSTONES,
    Q_FULL,  # 1: no more channels may be made
    Q_WIDTH,
) = range(9)  # fmt: skip

# Rows of `kept`: octets of bodies to keep, in order (body number, offset, length).
E_BODY, E_OFFSET, E_LENGTH, E_HEIGHT = range(4)


def role_table(names: list[str]) -> Ints:
    """Role of each method, by its index."""
    roles = [CONNECTION if n.startswith("connection.") else ROLES.get(n, PLAIN) for n in names]
    return np.array(roles, np.int64)
