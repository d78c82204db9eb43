"""Messages of the TLS handshake: what they tell of a connection. Every length is held to what there is.

Sources: RFC 5246 section 7.4, RFC 8446 section 4; extensions: RFC 6066 (server_name), RFC 7301 (ALPN).
"""

from collections.abc import Iterator
from dataclasses import dataclass

from amqpscope.spec import tls

KNOWN = tls.load()
RETRY = bytes.fromhex("cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c")
"""Random of a ServerHello that asks for another ClientHello (RFC 8446 section 4.1.3)."""
NAMES = 64
"""Names and numbers of a list that are kept."""
NAME = 256
"""Bytes of one name that are kept."""

SERVER_NAME, ALPN, EARLY_DATA, VERSIONS, SHARED_KEY, THEN_MAC = (
    KNOWN.number("extensions", name)
    for name in (
        "server_name", "application_layer_protocol_negotiation", "early_data", "supported_versions", "pre_shared_key",
        "encrypt_then_mac",
    )
)  # fmt: skip


class MalformedError(Exception):
    """A message contradicts its lengths."""


@dataclass(frozen=True, slots=True)
class ClientHello:
    """What the client offers."""

    random: bytes
    session: bytes
    versions: tuple[int, ...]
    """In its order; values of RFC 8701, which mean nothing, left out."""
    suites: tuple[int, ...]
    server_name: str | None
    protocols: tuple[str, ...]
    early_data: bool


@dataclass(frozen=True, slots=True)
class ServerHello:
    """What the server chose."""

    random: bytes
    session: bytes
    version: int
    suite: int
    protocol: str | None
    shared_key: bool
    then_mac: bool

    @property
    def retry(self) -> bool:
        """It chose nothing yet: the client is to say hello again."""
        return self.random == RETRY


class Reader:
    """Takes fields off the front of bytes.

    Raises:
        MalformedError: there is less than is asked for.
    """

    def __init__(self, octets: bytes) -> None:
        self.octets, self.at = octets, 0

    def take(self, count: int) -> bytes:
        """So many bytes."""
        end = self.at + count
        if end > len(self.octets):
            raise MalformedError
        taken = self.octets[self.at : end]
        self.at = end
        return taken

    def number(self, count: int) -> int:
        """An unsigned integer of so many bytes."""
        return int.from_bytes(self.take(count), "big")

    def vector(self, count: int) -> "Reader":
        """What a length of so many bytes announces."""
        return Reader(self.take(self.number(count)))

    @property
    def left(self) -> int:
        """Bytes that are left."""
        return len(self.octets) - self.at

    def rest(self) -> bytes:
        """All of them."""
        return self.take(self.left)


def client_hello(body: bytes) -> ClientHello:
    """A ClientHello without its head.

    Raises:
        MalformedError: it contradicts its lengths.
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
    """A ServerHello without its head.

    Raises:
        MalformedError: it contradicts its lengths.
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
    """The application protocol that the server chose in TLS 1.3.

    Raises:
        MalformedError: the message contradicts its lengths.
    """
    return next((next(_protocols(value), None) for kind, value in _extensions(Reader(body)) if kind == ALPN), None)


def certificates(body: bytes, version: int) -> list[bytes]:
    """The certificates (DER) of a Certificate message, the sender's own first.

    Raises:
        MalformedError: it contradicts its lengths.
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
    """Whether it is one of the values that clients put in to be ignored (RFC 8701)."""
    return number & 0x0F0F == 0x0A0A and number >> 8 == number & 0xFF


def suite_name(number: int) -> str:
    """Name of a suite; its number where there is none."""
    known = KNOWN.suites.get(number)
    return known.name if known else f"0x{number:04X}"


def version_name(number: int) -> str:
    """Name of a version; its number where there is none."""
    return KNOWN.versions.get(number) or f"0x{number:04X}"


def printable(octets: bytes) -> str:
    """Bytes off the wire as text that can be shown anywhere."""
    text = octets[:NAME].decode("utf-8", "replace")
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def _numbers(reader: Reader) -> list[int]:
    octets = reader.rest()
    return [int.from_bytes(octets[i : i + 2], "big") for i in range(0, min(len(octets) - 1, 2 * 512), 2)]


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
