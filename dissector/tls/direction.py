"""State of one direction of a TLS connection, and chunks of its content."""

from typing import NamedTuple

from amqpscope.dissector.tls.opener import Found, Opener
from amqpscope.dissector.tls.records import At, Walk


class PlainChunk(NamedTuple):
    """Decrypted bytes; None for a gap of `length`."""

    slot: int
    side: int
    data: bytes | None
    length: int
    first: At
    last: At


class TlsDirection:
    """State of one direction."""

    __slots__ = (
        "changed",
        "counted",
        "finished",
        "found",
        "has_sent",
        "message",
        "missed",
        "opener",
        "passing",
        "read",
        "sealed",
        "walk",
    )  # fmt: skip

    def __init__(self, walk: Walk) -> None:
        self.walk = walk
        self.opener: Opener | None = None
        self.changed = False
        """Up to TLS 1.2: whether change_cipher_spec was sent."""
        self.message = bytearray()
        self.passing = 0
        """Bytes of a long message that are still to be skipped."""
        self.found: Found | None = None
        """The record that a search has just confirmed."""
        self.finished = False
        self.missed: list[int] = []
        """Lengths of the first records under these keys, while none was decrypted; 0: without application data."""
        self.sealed = 0
        """Number of encrypted records that were not decrypted."""
        self.has_sent = False
        """Whether application data followed the handshake."""
        self.read = self.counted = 0
        """Bytes of messages that were read; bytes retained when the caller last counted them."""

    @property
    def kept(self) -> int:
        """Bytes retained of unfinished records and messages, and of messages with kept fields."""
        return len(self.walk.buffered) + len(self.message) + self.read

    def tear(self) -> None:
        """Note a loss: the next message begins with a record."""
        self.message.clear()
        self.passing = 0
