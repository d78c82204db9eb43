"""AMQP 0-10: its numbers on the wire, and tables of its controls and commands that kernels look into."""

import numpy as np

from amqpscope.dissector.kernels.arrays import Ints
from amqpscope.spec.model import Protocol

NAME = "amqp-0-10"

HEAD_BYTES, HEADER_BYTES = 12, 8
"""Bytes of a frame's head, and of the protocol header."""
CONTROL, COMMAND, HEADER, BODY, PROTOCOL_HEADER = 0, 1, 2, 3, 0x41
"""Types of segments; a protocol header has the number of its first byte, `A`."""
FIRST_SEGMENT, LAST_SEGMENT, FIRST_FRAME, LAST_FRAME = 8, 4, 2, 1
"""Flags of a frame: whether its segment begins or ends an assembly, whether the frame begins or ends its segment."""
BEGINS = FIRST_SEGMENT | FIRST_FRAME
WHOLE = FIRST_FRAME | LAST_FRAME
FLAGS = 16
"""Flags are below this; the two bits above are reserved."""
VERSIONS = 64
"""The highest two bits of the byte with the flags are the version of the frame format, which is 0."""
IDS_BYTES = 2
"""Class and code of a control or command, before its arguments."""
IDS = 1 << 16
LARGEST = 65_535
"""Bytes of the largest frame."""

BY_CLIENT, BY_SERVER, CARRIES_CONTENT, OPENS, TUNES, LOGS_IN = 1, 2, 4, 8, 16, 32
"""Bits of traits: who may send it, whether it may have header and body, whether a SASL layer may begin after it,
whether it says how large frames may be, and whether it names the login mechanism."""
OPENING = ("connection.open", "connection.open-ok")
TUNING = "connection.tune-ok"
LOGIN = "connection.start-ok"

PLAIN, CONNECTION, ATTACH, ATTACHED, DETACH, DETACHED, COMMAND_POINT = range(7)
"""What a control means for the session of its channel."""
ROLES = {
    "session.attach": ATTACH,
    "session.attached": ATTACHED,
    "session.detach": DETACH,
    "session.detached": DETACHED,
    "session.command-point": COMMAND_POINT,
}


def method_table(protocol: Protocol) -> Ints:
    """Return the index of each control by class << 8 | code, then of each command; -1 where there is none."""
    table = np.full(2 * IDS, -1, np.int64)
    for index, m in enumerate(protocol.methods):
        table[(m.kind == "command") * IDS + (m.class_id << 8 | m.id)] = index
    return table


def trait_table(protocol: Protocol) -> Ints:
    """Return the traits of each control and command, by its index."""
    return np.array(
        [
            m.from_client * BY_CLIENT
            | m.from_server * BY_SERVER
            | m.content * CARRIES_CONTENT
            | (m.full_name in OPENING) * OPENS
            | (m.full_name == TUNING) * TUNES
            | (m.full_name == LOGIN) * LOGS_IN
            for m in protocol.methods
        ],
        np.int64,
    )


def role_table(protocol: Protocol) -> Ints:
    """Return the role of each control and command, by its index."""
    return np.array(
        [CONNECTION if m.class_name == "connection" else ROLES.get(m.full_name, PLAIN) for m in protocol.methods],
        np.int64,
    )
