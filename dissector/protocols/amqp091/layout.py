"""AMQP 0-9-1: its numbers on the wire, and tables of its methods that kernels look into."""

import functools

import numpy as np

from amqpscope.dissector.kernels.arrays import Array, Ints
from amqpscope.dissector.kernels.kernel import i64, kernel
from amqpscope.spec.model import Method, Protocol

NAME = "amqp-0-9-1"

METHOD, HEADER, BODY, HEARTBEAT, PROTOCOL_HEADER = 1, 2, 3, 8, 0x41
"""Frame types; a protocol header has the number of its first byte, `A`."""
FRAME_END = 0xCE
OVERHEAD, HEAD_BYTES, FRAME_END_BYTES = 8, 7, 1
IDS_BYTES = 4
"""Class and method id, before the arguments."""
IDS = 128
"""Class and method ids below this are looked up in a square table, others in the list after it."""


def method_table(ids: list[tuple[int, int]]) -> Ints:
    """Return the index of each method in a square table of class and method id, -1 where there is none.

    After it pairs of numbers for ids that are too large for that: class << 16 | method, and the index.
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
    """Return the index of a method, -1 when there is none; `methods` is a `method_table`."""
    if class_id < IDS and method_id < IDS:
        return i64(methods[class_id * IDS + method_id])
    for k in range(IDS * IDS, len(methods), 2):
        if methods[k] == class_id << 16 | method_id:
            return i64(methods[k + 1])
    return -1


BY_CLIENT, BY_SERVER, CARRIES_CONTENT, OF_CONNECTION = 1, 2, 4, 8
"""Bits of a method's traits."""


def trait_table(protocol: Protocol) -> Ints:
    """Return the traits of each method, by its index: who may send it (both by default), and what it is."""
    traits = []
    for m in protocol.methods:
        senders = m.from_client * BY_CLIENT | m.from_server * BY_SERVER
        own = OF_CONNECTION if m.class_name == "connection" else 0
        traits.append((senders or BY_CLIENT | BY_SERVER) | m.content * CARRIES_CONTENT | own)
    return np.array(traits, np.int64)


# What a method means for content and channel state.
(
    PLAIN, PUBLISH, DELIVER, GET_OK, RETURN,  # the last four carry content
    OPEN, SELECT, CONFIRMS, CONSUME, CONSUME_OK, CANCEL, GET, GET_EMPTY, CONNECTION, CLOSE,
) = range(15)  # fmt: skip
ROLES = {
    "basic.publish": PUBLISH,
    "basic.deliver": DELIVER,
    "basic.get-ok": GET_OK,
    "basic.return": RETURN,
    "channel.open": OPEN,
    "session.open": OPEN,  # of the draft of 2007
    "channel.close": CLOSE,
    "confirm.select": SELECT,
    "confirm.select-ok": CONFIRMS,
    "basic.ack": CONFIRMS,
    "basic.nack": CONFIRMS,
    "basic.consume": CONSUME,
    "basic.consume-ok": CONSUME_OK,
    "basic.cancel": CANCEL,
    "basic.get": GET,
    "basic.get-empty": GET_EMPTY,
}
KINDS = {PUBLISH: "publish", DELIVER: "deliver", GET_OK: "get", RETURN: "return"}


@functools.lru_cache(maxsize=32)
def role_table(protocol: Protocol) -> Ints:
    """Return the role of each method, by its index. Contents of older versions are not only those of class basic."""
    return np.array([_role(method) for method in protocol.methods], np.int64)


def _role(method: Method) -> int:
    if method.class_name == "connection":
        return CONNECTION
    if method.full_name in ROLES or not method.content:
        return ROLES.get(method.full_name, PLAIN)
    if method.name == "return":
        return RETURN
    return PUBLISH if method.from_client else DELIVER
