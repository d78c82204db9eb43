"""One direction of a TLS connection, and what is carried in it."""

from typing import NamedTuple

from amqpscope.dissector.tls.opener import Found, Opener
from amqpscope.dissector.tls.records import At, Walk


class PlainChunk(NamedTuple):
    """Bytes of what is carried; None for a gap of `length`."""

    slot: int
    side: int
    octets: bytes | None
    length: int
    first: At
    last: At


class TlsDirection:
    """One direction."""

    __slots__ = (
        "changed", "counted", "finished", "found", "message", "missed", "opener", "passing", "read", "said", "sealed",
        "walk",
    )  # fmt: skip

    def __init__(self, walk: Walk) -> None:
        self.walk = walk
        self.opener: Opener | None = None
        self.changed = False
        """Up to TLS 1.2: change_cipher_spec was sent."""
        self.message = bytearray()
        self.passing = 0
        """Bytes of a long message that are passed over."""
        self.found: Found | None = None
        """The record that a search has just confirmed."""
        self.finished = False
        self.missed: list[int] = []
        """Lengths of the first records under these keys, as long as none was opened: 0 for what carries nothing."""
        self.sealed = 0
        """Encrypted records that were not opened."""
        self.said = False
        """Something came after the handshake."""
        self.read = self.counted = 0
        """Bytes of messages that were read; bytes kept when the caller counted them last."""

    @property
    def kept(self) -> int:
        """Bytes of unfinished records and messages, and of messages of which something is kept."""
        return len(self.walk.octets) + len(self.message) + self.read

    def tear(self) -> None:
        """Something was lost: the next message begins with a record."""
        self.message.clear()
        self.passing = 0
