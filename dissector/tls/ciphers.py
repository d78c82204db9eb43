"""Ciphers that decrypt records. Each is tried with a record number, and authentication shows whether that fits.

Sources: RFC 5246 section 6.2.3 (CBC, AEAD), RFC 5288 (GCM), RFC 6655 (CCM), RFC 7905 (ChaCha20-Poly1305), RFC 7366
(encrypt-then-MAC), RFC 8446 section 5.2 (TLS 1.3). This needs the library `cryptography`;
`needs` reports its absence.
"""

import contextlib
import struct
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from amqpscope.dissector.capture.input import CaptureError
from amqpscope.dissector.kernels.arrays import Bytes, Ints
from amqpscope.dissector.tls.records import HEAD
from amqpscope.errors import installing
from amqpscope.spec.tls import Suite

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESCCM, AESGCM, ChaCha20Poly1305

    Aead = AESGCM | AESCCM | ChaCha20Poly1305

LACKS = "the library cryptography is not installed (extra amqpscope[tls])"
NUMBERED = struct.Struct(">Q3sH")
"""Number, kind with version, and length: the additional authenticated data of a record up to TLS 1.2."""
BLOCK = 16
"""Size of an AES block, and of an initialisation vector."""


class Opened(NamedTuple):
    """The content of a record."""

    kind: int
    content: bytes


class Cipher(Protocol):
    """The keys of one direction."""

    overhead: int
    """Bytes of a record besides its content; approximate with CBC."""
    hides: bool
    """Whether kind and padding follow the content."""

    def open(self, number: int, head: bytes, body: bytes) -> Opened | None:
        """Return the content of the record with this number, or None if that is wrong; `head`: its first five bytes."""

    def open_run(self, number: int, data: bytes, edges: Ints) -> list[bytes]:
        """Return the contents of consecutive records, numbered from this one on, up to one that does not decrypt.

        Each begins at one of `edges` and ends at the next. In TLS 1.3, kind and padding follow each content.
        """

    def guess(self, last: bytes, body: bytes) -> int | None:
        """Return by how many records this one probably follows `last`; None if that is not visible."""


def needs() -> None:
    """Check that records can be decrypted.

    Raises:
        CaptureError: the library is not installed.
    """
    try:
        import cryptography.hazmat.primitives.ciphers.aead  # noqa: F401, PLC0415
    except ImportError as error:
        raise CaptureError(f"TLS cannot be decrypted: {LACKS}: {installing('tls')}") from error


def is_installed() -> bool:
    """Return whether records can be decrypted."""
    try:
        needs()
    except CaptureError:
        return False
    return True


def of_12(suite: Suite, mac: bytes, key: bytes, iv: bytes, then_mac: bool) -> Cipher:
    """Return the cipher of one direction up to TLS 1.2."""
    if suite.mode == "cbc":
        return Cbc(key, mac, suite.mac, then_mac)
    return Chacha12(_aead(suite, key), iv) if suite.mode == "chacha" else Explicit(_aead(suite, key), iv, suite.tag)


def of_13(suite: Suite, key: bytes, iv: bytes) -> Cipher:
    """Return the cipher of one direction in TLS 1.3."""
    return Aead13(_aead(suite, key), iv, suite.tag)


def _aead(suite: Suite, key: bytes) -> "Aead":
    from cryptography.hazmat.primitives.ciphers import aead  # noqa: PLC0415

    if suite.mode == "ccm":
        return aead.AESCCM(key, suite.tag)
    return aead.ChaCha20Poly1305(key) if suite.mode == "chacha" else aead.AESGCM(key)


class _Authenticated:
    hides = False

    def __init__(self, aead: "Aead", iv: bytes, overhead: int) -> None:
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415

        self.decrypt = aead.decrypt
        self.wrong: type[Exception] = InvalidTag
        self.iv = iv
        self.mask = int.from_bytes(iv, "big")
        self.overhead = overhead

    def guess(self, last: bytes, body: bytes) -> int | None:
        """Guess as `Cipher.guess` does."""
        return None

    def _decrypted(self, nonces: list[bytes], bodies: list[bytes], others: list[bytes]) -> list[bytes]:
        """Return contents, up to one that is not authentic; the list keeps those before the exception."""
        found: list[bytes] = []
        with contextlib.suppress(self.wrong):
            found.extend(map(self.decrypt, nonces, bodies, others))
        return found

    def _nonces(self, numbers: Ints) -> list[bytes]:
        """Return nonces that contain the records' numbers."""
        made = np.zeros((len(numbers), 12), np.uint8)
        made[:, 4:] = _in_bytes(numbers)
        return _listed(made ^ np.frombuffer(self.iv, np.uint8))

    def _long_enough(self, edges: Ints) -> Ints:
        """Return the records up to the first that is too short."""
        short = np.flatnonzero(np.diff(edges) < HEAD + self.overhead)
        return edges[: short[0] + 1] if len(short) else edges

    def _others(self, data: bytes, edges: Ints, numbers: Ints) -> list[bytes]:
        """Return the additional authenticated data up to TLS 1.2: number, kind, version, length of the content."""
        made = np.empty((len(numbers), 13), np.uint8)
        made[:, :8] = _in_bytes(numbers)
        made[:, 8:11] = np.frombuffer(data, np.uint8)[edges[:-1, None] + np.arange(3)]
        made[:, 11:] = _in_bytes(np.diff(edges) - HEAD - self.overhead)[:, 6:]
        return _listed(made)


class Explicit(_Authenticated):
    """GCM and CCM in TLS 1.2: eight bytes of the nonce precede the content."""

    def __init__(self, aead: "Aead", iv: bytes, tag: int) -> None:
        super().__init__(aead, iv, 8 + tag)

    def open(self, number: int, head: bytes, body: bytes) -> Opened | None:
        """Decrypt as `Cipher.open` does."""
        length = len(body) - self.overhead
        if length < 0:
            return None
        data = NUMBERED.pack(number, head[:3], length)
        try:
            return Opened(head[0], self.decrypt(self.iv + body[:8], body[8:], data))
        except self.wrong:
            return None

    def open_run(self, number: int, data: bytes, edges: Ints) -> list[bytes]:
        """Decrypt as `Cipher.open_run` does."""
        edges = self._long_enough(edges)
        others = self._others(data, edges, number + np.arange(len(edges) - 1))
        starts = (edges[:-1] + HEAD).tolist()
        nonces = [self.iv + data[at : at + 8] for at in starts]
        bodies = [data[at + 8 : end] for at, end in zip(starts, edges[1:].tolist(), strict=True)]
        return self._decrypted(nonces, bodies, others)

    def guess(self, last: bytes, body: bytes) -> int | None:
        """Guess from the nonce, which most senders use as a counter."""
        return int.from_bytes(body[:8], "big") - int.from_bytes(last[:8], "big")


class Chacha12(_Authenticated):
    """ChaCha20-Poly1305 in TLS 1.2."""

    def __init__(self, aead: "Aead", iv: bytes) -> None:
        super().__init__(aead, iv, 16)

    def open(self, number: int, head: bytes, body: bytes) -> Opened | None:
        """Decrypt as `Cipher.open` does."""
        length = len(body) - 16
        if length < 0:
            return None
        data = NUMBERED.pack(number, head[:3], length)
        try:
            return Opened(head[0], self.decrypt((self.mask ^ number).to_bytes(12, "big"), body, data))
        except self.wrong:
            return None

    def open_run(self, number: int, data: bytes, edges: Ints) -> list[bytes]:
        """Decrypt as `Cipher.open_run` does."""
        edges = self._long_enough(edges)
        numbers = number + np.arange(len(edges) - 1)
        others = self._others(data, edges, numbers)
        return self._decrypted(self._nonces(numbers), _bodies(data, edges), others)


class Aead13(_Authenticated):
    """Any cipher in TLS 1.3: the kind of the content follows it, then zeros."""

    hides = True

    def __init__(self, aead: "Aead", iv: bytes, tag: int) -> None:
        super().__init__(aead, iv, tag + 1)

    def open(self, number: int, head: bytes, body: bytes) -> Opened | None:
        """Decrypt as `Cipher.open` does."""
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

    def open_run(self, number: int, data: bytes, edges: Ints) -> list[bytes]:
        """Decrypt as `Cipher.open_run` does."""
        edges = self._long_enough(edges)
        heads = [data[at : at + HEAD] for at in edges[:-1].tolist()]
        return self._decrypted(self._nonces(number + np.arange(len(heads))), _bodies(data, edges), heads)


class Cbc:
    """AES-CBC with HMAC, in either order, with an initialisation vector in each record."""

    hides = False

    def __init__(self, key: bytes, mac: bytes, mac_hash: str, then_mac: bool) -> None:
        from cryptography.hazmat.primitives import hashes, hmac  # noqa: PLC0415
        from cryptography.hazmat.primitives.ciphers import algorithms  # noqa: PLC0415

        self.key: Any = algorithms.AES(key)
        self.mac: Any = hmac.HMAC(mac, getattr(hashes, mac_hash.upper())())
        """An HMAC with the key; each record uses a copy."""
        self.then_mac = then_mac
        self.size = len(mac)
        self.overhead = BLOCK + self.size + BLOCK // 2

    def open(self, number: int, head: bytes, body: bytes) -> Opened | None:
        """Decrypt as `Cipher.open` does."""
        sealed = self._sealed(number, head, body)
        content = self._content(number, head, self._decrypt(sealed)[BLOCK:]) if sealed else None
        return None if content is None else Opened(head[0], content)

    def open_run(self, number: int, data: bytes, edges: Ints) -> list[bytes]:
        """Decrypt as `Cipher.open_run` does. All are decrypted at once: a block needs only the one before it."""
        found: list[bytes] = []
        places = list(enumerate(pairwise(edges.tolist()), number))
        sealed = [self._sealed(n, data[at : at + HEAD], data[at + HEAD : end]) for n, (at, end) in places]
        content, end = self._decrypt(b"".join(sealed)), 0
        for (n, (at, _)), each in zip(places, sealed, strict=True):
            begin, end = end + BLOCK, end + len(each)
            opened = self._content(n, data[at : at + HEAD], content[begin:end]) if each else None
            if opened is None:
                break
            found.append(opened)
        return found

    def guess(self, last: bytes, body: bytes) -> int | None:
        """Guess as `Cipher.guess` does."""
        return None

    def _sealed(self, number: int, head: bytes, body: bytes) -> bytes:
        """Return the ciphertext with its initialisation vector; nothing if the record cannot have this number."""
        sealed = body[: -self.size] if self.then_mac else body
        if len(sealed) < 2 * BLOCK or len(sealed) % BLOCK:
            return b""
        return b"" if self.then_mac and self._mac(number, head, sealed) != body[-self.size :] else sealed

    def _content(self, number: int, head: bytes, padded: bytes) -> bytes | None:
        """Return the plaintext without padding; None if it is not authentic."""
        end = len(padded) - padded[-1] - 1
        if self.then_mac:
            return padded[: max(end, 0)]
        end -= self.size
        if end < 0 or padded[end + self.size :] != bytes([padded[-1]]) * (padded[-1] + 1):
            return None
        return padded[:end] if self._mac(number, head, padded[:end]) == padded[end : end + self.size] else None

    def _mac(self, number: int, head: bytes, data: bytes) -> bytes:
        mac = self.mac.copy()
        mac.update(NUMBERED.pack(number, head[:3], len(data)) + data)
        return bytes(mac.finalize())

    def _decrypt(self, sealed: bytes) -> bytes:
        """Decrypt blocks that follow others; the first of each record, its initialisation vector, means nothing."""
        from cryptography.hazmat.primitives.ciphers import Cipher as Mode  # noqa: PLC0415
        from cryptography.hazmat.primitives.ciphers import modes  # noqa: PLC0415

        decryptor = Mode(self.key, modes.CBC(bytes(BLOCK))).decryptor()
        return bytes(decryptor.update(sealed) + decryptor.finalize())


def _in_bytes(numbers: Ints) -> Bytes:
    """Return numbers as eight bytes each, big-endian."""
    return numbers.astype(">u8").view(np.uint8).reshape(-1, 8)


def _listed(rows: Bytes) -> list[bytes]:
    """Return each row of a matrix as bytes."""
    found: list[bytes] = rows.view(f"V{rows.shape[1]}").ravel().tolist()
    return found


def _bodies(data: bytes, edges: Ints) -> list[bytes]:
    """Return records without their headers."""
    return [data[at + HEAD : end] for at, end in pairwise(edges.tolist())]
