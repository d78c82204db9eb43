"""Who a connection is: a hash that depends on nothing but the connection, and is given once only.

Connections of the same endpoints can begin with the same sequence number: in files that repeat packets long after,
in captures out of order, by intent. The later one gets a hash that its time is part of. To see that, identities are
remembered, in two tables of which the older is forgotten when the younger is full.
"""

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.hashing import mix
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.tcp.layout import (
    C_A_HI,
    C_A_LO,
    C_A_PORT,
    C_B_HI,
    C_B_LO,
    C_B_PORT,
    C_FIRST_TS,
    C_ID,
    K_KNOWN,
    K_SEGMENTS,
)


@kernel
def identity(conn: Array, slot: int, anchor: int, time: int) -> int:
    """`connection_id`, of both addresses and ports and the client's initial sequence number (time 0).

    Without a SYN the anchor is the first data segment's sequence number, and its time counts too.
    """
    h = mix(0x2545F4914F6CDD1D, conn[slot, C_A_HI])
    h = mix(h, conn[slot, C_A_LO])
    h = mix(h, conn[slot, C_A_PORT])
    h = mix(h, conn[slot, C_B_HI])
    h = mix(h, conn[slot, C_B_LO])
    h = mix(h, conn[slot, C_B_PORT])
    return max(mix(mix(mix(h, anchor), time), 0), 1)


@kernel
def remember(younger: Array, older: Array, control: Array, name: int) -> int:
    """Take note of an identity; 0 when it was known. The younger table must have a free place."""
    fresh = 1
    mask = len(older) - 1
    place = name & mask
    while older[place] != 0:
        if older[place] == name:
            fresh = 0
            break
        place = (place + 1) & mask
    mask = len(younger) - 1
    place = name & mask
    while younger[place] != 0:
        if younger[place] == name:
            return 0
        place = (place + 1) & mask
    younger[place] = name
    control[K_KNOWN] += 1
    return fresh


@kernel
def identify(conn: Array, slot: int, anchor: int, time: int, younger: Array, older: Array, control: Array) -> None:
    """Decide who a connection is."""
    name = identity(conn, slot, anchor, time)
    if remember(younger, older, control, name) == 0:
        base = mix(name, conn[slot, C_FIRST_TS])
        name = max(base, 1)
        tried = 0
        while remember(younger, older, control, name) == 0:  # at the same time, too: its place among all segments
            name = max(mix(base, control[K_SEGMENTS] + tried), 1)
            tried += 1
    conn[slot, C_ID] = name


@kernel
def remember_all(names: Array, younger: Array, older: Array, control: Array) -> None:
    """Move identities to a table with more room."""
    for i in range(len(names)):
        if names[i] != 0:
            remember(younger, older, control, names[i])
