"""What dissectors in other processes counted of their connections, for the warnings about all captures."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from amqpscope.dissector.dissector import Dissector
from amqpscope.dissector.tables.guesses import Guesses


class Counts(NamedTuple):
    """What a dissector counted.

    Attributes:
        gaps: gaps of its connections, bytes in them, connections with gaps.
        sealed: connections that stay encrypted.
        has_secrets: whether it had a key log.
        spoken: connections of each protocol.
        contradicted: connections whose protocol the user named against the content, by both protocols.
        guesses: what shows who is the client of its connections.
    """

    gaps: tuple[int, int, int]
    sealed: int
    has_secrets: bool
    spoken: Counter[str]
    contradicted: Counter[tuple[str, str]]
    guesses: Guesses

    @classmethod
    def of(cls, dissector: Dissector) -> Counts:
        """Return what a dissector counted."""
        gaps, tls, known = dissector.gaps, dissector.tls, dissector.connections
        counts = gaps.count, gaps.bytes, gaps.connections
        return cls(counts, tls.sealed, tls.keylog.expecting, known.spoken, known.contradicted, known.guesses)

    def add_to(self, dissector: Dissector) -> None:
        """Add this to what another dissector counted."""
        gaps, tls, known = dissector.gaps, dissector.tls, dissector.connections
        gaps.count += self.gaps[0]
        gaps.bytes += self.gaps[1]
        gaps.connections += self.gaps[2]
        tls.sealed += self.sealed
        tls.keylog.expecting |= self.has_secrets
        known.spoken += self.spoken
        known.contradicted += self.contradicted
        known.guesses += self.guesses
