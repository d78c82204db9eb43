"""Parse messages of the TLS handshake. Every length is checked against the bytes that are there.

Sources: RFC 5246 section 7.4, RFC 8446 section 4; extensions: RFC 6066 (server_name), RFC 7301 (ALPN).
"""

from collections.abc import Iterator
from dataclasses import dataclass

from amqpscope.spec import tls

KNOWN = tls.load()
RETRY = bytes.fromhex("cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c")
"""The random of a ServerHello that asks for another ClientHello (RFC 8446 section 4.1.3)."""
NAMES = 64
"""Most names or numbers kept of a list."""
NAME = 256
"""Most bytes kept of a name."""

SERVER_NAME, ALPN, EARLY_DATA, VERSIONS, SHARED_KEY, THEN_MAC = (
    KNOWN.number("extensions", name)
    for name in (
        "server_name", "application_layer_protocol_negotiation", "early_data", "supported_versions", "pre_shared_key",
        "encrypt_then_mac",
    )
)  # fmt: skip


class MalformedError(Exception):
    """The lengths in a message contradict each other."""


@dataclass(frozen=True, slots=True)
class ClientHello:
    """The offer of a client."""

    random: bytes
    session: bytes
    versions: tuple[int, ...]
    """In the client's order, without the meaningless values of RFC 8701."""
    suites: tuple[int, ...]
    server_name: str | None
    protocols: tuple[str, ...]
    early_data: bool


@dataclass(frozen=True, slots=True)
class ServerHello:
    """The choice of a server."""

    random: bytes
    session: bytes
    version: int
    suite: int
    protocol: str | None
    shared_key: bool
    then_mac: bool

    @property
    def retry(self) -> bool:
        """Whether this is a HelloRetryRequest, which asks for another ClientHello."""
        return self.random == RETRY


class Reader:
    """Reads fields from the front of bytes.

    Raises:
        MalformedError: there are fewer bytes than asked for.
    """

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, count: int) -> bytes:
        """Read this many bytes."""
        end = self.at + count
        if end > len(self.data):
            raise MalformedError
        taken = self.data[self.at : end]
        self.at = end
        return taken

    def number(self, count: int) -> int:
        """Read an unsigned integer of this many bytes."""
        return int.from_bytes(self.take(count), "big")

    def vector(self, count: int) -> "Reader":
        """Read a length of this many bytes, and the bytes that it counts."""
        return Reader(self.take(self.number(count)))

    @property
    def left(self) -> int:
        """Number of bytes left."""
        return len(self.data) - self.at

    def rest(self) -> bytes:
        """Read all bytes left."""
        return self.take(self.left)


def client_hello(body: bytes) -> ClientHello:
    """Parse a ClientHello without its header.

    Raises:
        MalformedError: its lengths contradict each other.
    """
    reader = Reader(body)
    version = reader.number(2)
    random, session = reader.take(32), reader.vector(1).rest()
    listed = reader.vector(2)
    suites = tuple(number for number in _numbers(listed) if not is_grease(number))
    reader.vector(1)  # compression methods
    versions: tuple[int, ...] = (version,)
    server_name, early_data = None, False
    protocols: tuple[str, ...] = ()
    for kind, value in _extensions(reader):
        if kind == SERVER_NAME:
            server_name = _server_name(value)
        elif kind == ALPN:
            protocols = tuple(_protocols(value))
        elif kind == VERSIONS:
            versions = tuple(number for number in _numbers(value.vector(1)) if not is_grease(number)) or versions
        elif kind == EARLY_DATA:
            early_data = True
    return ClientHello(random, session, versions, suites, server_name, protocols, early_data)


def server_hello(body: bytes) -> ServerHello:
    """Parse a ServerHello without its header.

    Raises:
        MalformedError: its lengths contradict each other.
    """
    reader = Reader(body)
    version = reader.number(2)
    random, session, suite = reader.take(32), reader.vector(1).rest(), reader.number(2)
    reader.take(1)  # compression method
    protocol, shared_key, then_mac = None, False, False
    for kind, value in _extensions(reader):
        if kind == VERSIONS:
            version = value.number(2)
        elif kind == ALPN:
            protocol = next(_protocols(value), None)
        elif kind == SHARED_KEY:
            shared_key = True
        elif kind == THEN_MAC:
            then_mac = True
    return ServerHello(random, session, version, suite, protocol, shared_key, then_mac)


def encrypted_extensions(body: bytes) -> str | None:
    """Return the application protocol that the server chose in TLS 1.3.

    Raises:
        MalformedError: the lengths in the message contradict each other.
    """
    return next((next(_protocols(value), None) for kind, value in _extensions(Reader(body)) if kind == ALPN), None)


def certificates(body: bytes, version: int) -> list[bytes]:
    """Return the certificates (DER) of a Certificate message, the sender's own first.

    Raises:
        MalformedError: its lengths contradict each other.
    """
    reader = Reader(body)
    if version >= 0x0304:
        reader.vector(1)  # context
    listed = reader.vector(3)
    found: list[bytes] = []
    while listed.left and len(found) < NAMES:
        found.append(listed.vector(3).rest())
        if version >= 0x0304:
            listed.vector(2)  # extensions
    return found


def is_grease(number: int) -> bool:
    """Return whether this is one of the values that servers must ignore (RFC 8701)."""
    return number & 0x0F0F == 0x0A0A and number >> 8 == number & 0xFF


def suite_name(number: int) -> str:
    """Return the name of a cipher suite; its number if it has none."""
    known = KNOWN.suites.get(number)
    return known.name if known else f"0x{number:04X}"


def version_name(number: int) -> str:
    """Return the name of a version; its number if it has none."""
    return KNOWN.versions.get(number) or f"0x{number:04X}"


def printable(data: bytes) -> str:
    """Return bytes from the wire as printable text."""
    text = data[:NAME].decode("utf-8", "replace")
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def _numbers(reader: Reader) -> list[int]:
    data = reader.rest()
    return [int.from_bytes(data[i : i + 2], "big") for i in range(0, min(len(data) - 1, 2 * 512), 2)]


def _extensions(reader: Reader) -> Iterator[tuple[int, Reader]]:
    if not reader.left:
        return
    listed = reader.vector(2)
    while listed.left:
        yield listed.number(2), listed.vector(2)


def _server_name(value: Reader) -> str | None:
    if not value.left:
        return None
    listed = value.vector(2)
    while listed.left:
        kind, name = listed.number(1), listed.vector(2).rest()
        if kind == 0:
            return printable(name)
    return None


def _protocols(value: Reader) -> Iterator[str]:
    listed = value.vector(2)
    for _ in range(NAMES):
        if not listed.left:
            return
        yield printable(listed.vector(1).rest())
