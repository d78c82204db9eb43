"""Ciphers that open records. Each is tried with a record number and tells whether it fits.

Sources: RFC 5246 section 6.2.3 (CBC, AEAD), RFC 5288 (GCM), RFC 6655 (CCM), RFC 7905 (ChaCha20-Poly1305), RFC 7366
(encrypt-then-MAC), RFC 8446 section 5.2 (TLS 1.3). Needs the library `cryptography`; `needs` says so where it lacks.
"""

import hmac
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from dissector.input import CaptureError
from spec.tls import Suite

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESCCM, AESGCM, ChaCha20Poly1305

    Aead = AESGCM | AESCCM | ChaCha20Poly1305

LACKS = "the library cryptography is not installed; pip install 'amqpscope[tls]'"
BLOCK = 16
"""Octets of a block of AES, and of its initialisation vector."""


class Opened(NamedTuple):
    """What was in a record."""

    kind: int
    content: bytes


class Cipher(Protocol):
    """The keys of one direction."""

    overhead: int
    """Octets of a record that are not its content; with CBC about so many."""

    def open(self, number: int, head: bytes, body: bytes) -> Opened | None:
        """What is in the record of this number, or None when it is another's; `head` are its first five octets."""

    def guess(self, last: bytes, body: bytes) -> int | None:
        """How many records further than `last` this one probably is; None when it does not show."""


def needs() -> None:
    """See to it that records can be decrypted.

    Raises:
        CaptureError: the library for it is not installed.
    """
    try:
        import cryptography.hazmat.primitives.ciphers.aead  # noqa: F401, PLC0415
    except ImportError as error:
        raise CaptureError(f"TLS cannot be decrypted: {LACKS}") from error


def is_installed() -> bool:
    """Whether records can be decrypted."""
    try:
        needs()
    except CaptureError:
        return False
    return True


def of_12(suite: Suite, mac: bytes, key: bytes, iv: bytes, then_mac: bool) -> Cipher:
    """The cipher of one direction up to TLS 1.2."""
    if suite.mode == "cbc":
        return Cbc(key, mac, suite.mac, then_mac)
    return Chacha12(_aead(suite, key), iv) if suite.mode == "chacha" else Explicit(_aead(suite, key), iv, suite.tag)


def of_13(suite: Suite, key: bytes, iv: bytes) -> Cipher:
    """The cipher of one direction in TLS 1.3."""
    return Aead13(_aead(suite, key), iv, suite.tag)


def _aead(suite: Suite, key: bytes) -> "Aead":
    from cryptography.hazmat.primitives.ciphers import aead  # noqa: PLC0415

    if suite.mode == "ccm":
        return aead.AESCCM(key, suite.tag)
    return aead.ChaCha20Poly1305(key) if suite.mode == "chacha" else aead.AESGCM(key)


class _Authenticated:
    def __init__(self, aead: "Aead", iv: bytes) -> None:
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415

        self.decrypt = aead.decrypt
        self.wrong: type[Exception] = InvalidTag
        self.iv = iv
        self.mask = int.from_bytes(iv, "big")

    def guess(self, last: bytes, body: bytes) -> int | None:
        """As `Cipher.guess`."""
        return None


class Explicit(_Authenticated):
    """GCM and CCM in TLS 1.2: eight octets of the nonce stand before the content."""

    def __init__(self, aead: "Aead", iv: bytes, tag: int) -> None:
        super().__init__(aead, iv)
        self.tag = tag
        self.overhead = 8 + tag

    def open(self, number: int, head: bytes, body: bytes) -> Opened | None:
        """As `Cipher.open`."""
        length = len(body) - self.overhead
        if length < 0:
            return None
        data = number.to_bytes(8, "big") + head[:3] + length.to_bytes(2, "big")
        try:
            return Opened(head[0], self.decrypt(self.iv + body[:8], body[8:], data))
        except self.wrong:
            return None

    def guess(self, last: bytes, body: bytes) -> int | None:
        """Most senders count in the nonce."""
        return int.from_bytes(body[:8], "big") - int.from_bytes(last[:8], "big")


class Chacha12(_Authenticated):
    """ChaCha20-Poly1305 in TLS 1.2."""

    overhead = 16

    def open(self, number: int, head: bytes, body: bytes) -> Opened | None:
        """As `Cipher.open`."""
        length = len(body) - 16
        if length < 0:
            return None
        data = number.to_bytes(8, "big") + head[:3] + length.to_bytes(2, "big")
        try:
            return Opened(head[0], self.decrypt((self.mask ^ number).to_bytes(12, "big"), body, data))
        except self.wrong:
            return None


class Aead13(_Authenticated):
    """Any cipher in TLS 1.3: the kind of the content stands behind it, then zeros."""

    def __init__(self, aead: "Aead", iv: bytes, tag: int) -> None:
        super().__init__(aead, iv)
        self.overhead = tag + 1

    def open(self, number: int, head: bytes, body: bytes) -> Opened | None:
        """As `Cipher.open`."""
        if len(body) < self.overhead:
            return None
        try:
            content = self.decrypt((self.mask ^ number).to_bytes(12, "big"), body, head)
        except self.wrong:
            return None
        if not content[-1]:
            content = content.rstrip(b"\0")
            if not content:
                return Opened(0, b"")
        return Opened(content[-1], content[:-1])


class Cbc:
    """AES-CBC with HMAC, the one before or behind the other, with an initialisation vector in each record."""

    def __init__(self, key: bytes, mac: bytes, mac_hash: str, then_mac: bool) -> None:
        from cryptography.hazmat.primitives.ciphers import algorithms  # noqa: PLC0415

        self.key: Any = algorithms.AES(key)
        self.mac, self.mac_hash, self.then_mac = mac, mac_hash, then_mac
        self.size = len(mac)
        self.overhead = BLOCK + self.size + BLOCK // 2

    def open(self, number: int, head: bytes, body: bytes) -> Opened | None:
        """As `Cipher.open`."""
        if self.then_mac:
            body, sent = body[: -self.size], body[-self.size :]
            if len(body) < 2 * BLOCK or self._mac(number, head, body) != sent:
                return None
            content = self._decrypt(body)
            return Opened(head[0], content[: max(len(content) - content[-1] - 1, 0)]) if content else None
        content = self._decrypt(body)
        end = len(content) - self.size - content[-1] - 1 if content else -1
        if end < 0:
            return None
        if content[end + self.size :] != bytes([content[-1]]) * (content[-1] + 1):
            return None
        if self._mac(number, head, content[:end]) != content[end : end + self.size]:
            return None
        return Opened(head[0], content[:end])

    def guess(self, last: bytes, body: bytes) -> int | None:
        """As `Cipher.guess`."""
        return None

    def _mac(self, number: int, head: bytes, octets: bytes) -> bytes:
        return hmac.digest(
            self.mac, number.to_bytes(8, "big") + head[:3] + len(octets).to_bytes(2, "big") + octets, self.mac_hash
        )

    def _decrypt(self, body: bytes) -> bytes:
        from cryptography.hazmat.primitives.ciphers import Cipher as Mode  # noqa: PLC0415
        from cryptography.hazmat.primitives.ciphers import modes  # noqa: PLC0415

        if len(body) < 2 * BLOCK or len(body) % BLOCK:
            return b""
        decryptor = Mode(self.key, modes.CBC(body[:BLOCK])).decryptor()
        return bytes(decryptor.update(body[BLOCK:]) + decryptor.finalize())
