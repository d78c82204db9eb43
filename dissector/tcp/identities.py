"""The identity of a connection: a hash that depends on nothing but the connection, and is unique.

Connections of the same endpoints can begin with the same sequence number: in files that repeat packets long after, in
captures out of order, by intent. The hash of the later one then includes its time. To find such cases, identities are
remembered in two tables; the older one is dropped when the younger one is full.
"""

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.hashing import mix
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.tcp.state import Conn, Control, Facts, Flows


@kernel
def identity(facts: Array, slot: int, anchor: int, time: int) -> int:
    """Return `connection_id`, from both addresses and ports and the client's initial sequence number (time 0).

    Without a SYN, the anchor is the sequence number of the first data segment, and its time is included.
    """
    h = mix(0x2545F4914F6CDD1D, facts[slot, Facts.A_HI])
    h = mix(h, facts[slot, Facts.A_LO])
    h = mix(h, facts[slot, Facts.A_PORT])
    h = mix(h, facts[slot, Facts.B_HI])
    h = mix(h, facts[slot, Facts.B_LO])
    h = mix(h, facts[slot, Facts.B_PORT])
    return max(mix(mix(mix(h, anchor), time), 0), 1)


@kernel
def place_of(table: Array, name: int) -> int:
    """Return the place of an identity in a table, or where it may be put: there 0 stands."""
    mask = len(table) - 1
    place = name & mask
    while table[place] != 0 and table[place] != name:
        place = (place + 1) & mask
    return place


@kernel
def is_known(flows: Flows, name: int) -> bool:
    """Return whether a connection had this identity."""
    younger, older = flows.younger, flows.older
    found: bool = younger[place_of(younger, name)] != 0 or older[place_of(older, name)] != 0
    return found


@kernel
def remember(flows: Flows, name: int) -> int:
    """Remember an identity; return 0 when it was known. The younger table must have a free place."""
    fresh = 0 if is_known(flows, name) else 1
    place = place_of(flows.younger, name)
    if flows.younger[place] == 0:
        flows.younger[place] = name
        flows.control[Control.KNOWN] += 1
    return fresh


@kernel
def identify(flows: Flows, slot: int, anchor: int, time: int) -> None:
    """Determine the identity of a connection."""
    name = identity(flows.facts, slot, anchor, time)
    if remember(flows, name) == 0:
        flows.conn[slot, Conn.TWICE] = 1
        base = mix(name, flows.conn[slot, Conn.FIRST_TS])
        name = max(base, 1)
        tried = 0
        while remember(flows, name) == 0:  # at the same time, too: those that came before count
            name = max(mix(base, flows.conn[slot, Conn.BEFORE] + tried), 1)
            tried += 1
    flows.facts[slot, Facts.ID] = name


@kernel
def remember_all(names: Array, flows: Flows) -> None:
    """Move identities to a larger table."""
    for i in range(len(names)):
        if names[i] != 0:
            remember(flows, names[i])
