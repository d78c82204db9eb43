"""Who is the client of a connection, and what shows it."""

import numpy as np
from numpy.typing import NDArray

from amqpscope.dissector.kernels.arrays import Ints, among
from amqpscope.dissector.tcp.state import BY_LOWER_PORT, BY_PORT, BY_SYN, Facts


def clients(facts: Ints, slots: Ints, brokers: Ints) -> Ints:
    """Return the client's side in these slots: by protocol, else by SYN, else by ports.

    The server has one of the ports `brokers`; where both sides have one, or none, it has the lower port.
    """
    found: Ints = facts[:, Facts.CLIENT].copy()[slots]
    if (found < 0).any():
        found = np.where(found < 0, facts[slots, Facts.OPENER], found)
        one, other = _serving(facts, slots, brokers)
        is_lower = facts[slots, Facts.A_PORT] < facts[slots, Facts.B_PORT]
        found = np.where(found < 0, np.where(one != other, one, is_lower), found)
    return found


def roles_by(facts: Ints, slots: Ints, brokers: Ints) -> Ints:
    """Return what shows who is the client in these slots, as `clients` has it: BY_...."""
    found: Ints = facts[slots, Facts.ROLES_BY]
    if (found == 0).any():
        one, other = _serving(facts, slots, brokers)
        by_ports = np.where(one != other, BY_PORT, BY_LOWER_PORT)
        found = np.where(found == 0, np.where(facts[slots, Facts.OPENER] >= 0, BY_SYN, by_ports), found)
    return found


def _serving(facts: Ints, slots: Ints, brokers: Ints) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which side of these slots has one of the ports `brokers`."""
    return among(facts[slots, Facts.A_PORT], brokers), among(facts[slots, Facts.B_PORT], brokers)
