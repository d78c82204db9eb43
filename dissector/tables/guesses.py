"""Connections whose client is a guess by ports, and what other connections show of the same endpoints."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Self

from amqpscope.dissector.kernels.arrays import Ints
from amqpscope.dissector.protocols import registry
from amqpscope.dissector.tcp.state import BY_CONTENT, BY_LOWER_PORT, Facts

MOST = 4_096
"""Endpoints of either kind that are remembered."""
SIDES = ([Facts.A_HI, Facts.A_LO, Facts.A_PORT], [Facts.B_HI, Facts.B_LO, Facts.B_PORT])

Endpoint = tuple[int, int, int]
"""The halves of an address, and a port."""


@dataclass(slots=True)
class Guesses:
    """What ended connections showed.

    Attributes:
        servers: endpoints that are surely servers'.
        clients: endpoints taken for clients' without a sign, and their protocol, with the number of connections.
    """

    servers: set[Endpoint] = field(default_factory=set)
    clients: Counter[tuple[Endpoint, str]] = field(default_factory=Counter)

    def note(self, facts: Ints, client: Ints, roles_by: Ints) -> None:
        """Note connections: (n, Facts), their client's side, and what shows it."""
        for row, side, by in zip(facts, client.tolist(), roles_by.tolist(), strict=True):
            if by >= BY_CONTENT and len(self.servers) < MOST:
                self.servers.add(tuple(row[SIDES[1 - side]].tolist()))
            elif by == BY_LOWER_PORT and len(self.clients) < MOST:
                name = registry.name_of(int(row[Facts.PROTOCOL]))
                self.clients[tuple(row[SIDES[side]].tolist()), name] += 1

    def __iadd__(self, other: Self) -> Self:
        """Add what another dissector found."""
        self.servers |= other.servers
        self.clients += other.clients
        return self

    def refuted(self) -> Iterator[tuple[Endpoint, str, int]]:
        """Yield the endpoints taken for clients' that are servers', each with protocol and number of connections."""
        for (endpoint, protocol), count in sorted(self.clients.items()):
            if endpoint in self.servers:
                yield endpoint, protocol, count
