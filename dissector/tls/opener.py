"""Decrypt the records of one direction, through changes of keys and unknown record numbers after gaps.

In TLS 1.3 keys follow each other: handshake, application, its successors. Where the next keys begin is found by trial,
because a gap may hide the change; so are record numbers after a gap.
"""

from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

from amqpscope.dissector.kernels import limits
from amqpscope.dissector.tls import keys
from amqpscope.dissector.tls.ciphers import Cipher, Opened
from amqpscope.dissector.tls.records import HEAD, LONGEST, Record
from amqpscope.spec.tls import Suite

SHORTEST = 17
"""Bytes of the shortest encrypted record after its header: a tag and one more."""
AHEAD = 16
"""Record numbers tried if a record without a gap before it does not decrypt."""
REFUSED = 32
"""Number of records in a row that no key decrypts, after which none is tried any more."""


class Epoch:
    """Keys of one direction and the number of the next record under them.

    `carries`: these records hold application data; `secret`: the traffic secret of TLS 1.3; `master`: the inputs of the
    keys up to TLS 1.2.
    """

    def __init__(
        self, cipher: Cipher, carries: bool, suite: Suite, secret: bytes = b"", master: keys.Master | None = None
    ) -> None:
        self.cipher, self.carries, self.suite, self.secret, self.master = cipher, carries, suite, secret, master
        self.number = 0

    @property
    def ends_first(self) -> bool:
        """Up to TLS 1.2: the first record under these keys ends the handshake, the others hold application data."""
        return not self.secret

    def following(self) -> "Epoch | None":
        """Return the keys after a key update; None up to TLS 1.2, and in the handshake."""
        if not self.secret or not self.carries:
            return None
        return of_secret(keys.following(self.secret, self.suite), self.suite, True)


class Found(NamedTuple):
    """A record after a gap: its content, its number, count of lost records under its keys, whether these are old."""

    opened: Opened
    number: int
    lost: int
    known: bool


class Opener:
    """The keys of one direction, in their order."""

    def __init__(self, epochs: list[Epoch]) -> None:
        self.epochs = epochs
        self.worked = False
        """Whether a record was decrypted."""
        self._next: Epoch | None = None
        self._last = b""
        """First bytes of the last record decrypted, which some ciphers use as a counter."""
        self._before = 0
        """Number of that record."""
        self._refused = self._tries = 0

    @property
    def epoch(self) -> Epoch:
        """The current keys."""
        return self.epochs[0]

    @property
    def keys_failed(self) -> bool:
        """Whether too many records did not decrypt."""
        return self._refused >= REFUSED

    @property
    def steady(self) -> bool:
        """Whether the current keys decrypt records of application data."""
        return self.worked and self.epoch.carries and not self.keys_failed

    def open(self, record: Record, unsure: bool = False) -> Opened | None:
        """Return the content of the next record; None if no key decrypts it. `unsure`: the first ones were lost."""
        body = record.body or b""
        epoch = self.epochs[0]
        opened = epoch.cipher.open(epoch.number, record.head, body)
        if opened is None:
            for later in self._later():
                if opened := later.cipher.open(later.number, record.head, body):
                    self._enter(later)
                    break
            else:
                opened = self._ahead(epoch, record.head, body) if self.worked or unsure else None
        if opened is None:
            self._refused += 1
            return None
        self._opened(body)
        return opened

    def miss(self) -> None:
        """Count a lost record."""
        self.epochs[0].number += 1

    def advance(self, count: int, body: bytes) -> None:
        """Count decrypted records; `body`: the first bytes of the last one."""
        self.epochs[0].number += count - 1
        self._opened(body)

    def find(self, head: bytes, body: bytes, gap: int) -> Found | None:
        """Return the content of a record after a number of bytes with unknown records; None if it does not decrypt.

        Its number becomes that of the current record.
        """
        fewest, most = gap // (HEAD + LONGEST), gap // (HEAD + SHORTEST)
        for index, epoch in enumerate([self.epochs[0], *self._later()]):
            begin = epoch.number + (fewest if index == 0 else 0)
            numbers = range(begin, min(epoch.number + most, begin + limits.TLS_TRIES) + 1)
            guess = epoch.cipher.guess(self._last, body) if index == 0 and self._last else None
            likely = [self._before + guess] if guess is not None and self._before + guess in numbers else []
            for number in chain(likely, numbers):
                if self._tries >= limits.TLS_TRIES_ALL:
                    return None
                self._tries += 1
                if opened := epoch.cipher.open(number, head, body):
                    found = Found(opened, number, number - epoch.number, index == 0)
                    epoch.number = number
                    self._enter(epoch)
                    self._opened(body)
                    return found
        return None

    def _ahead(self, epoch: Epoch, head: bytes, body: bytes) -> Opened | None:
        for number in range(epoch.number + 1, epoch.number + AHEAD + 1):
            if self._tries >= limits.TLS_TRIES_ALL:
                return None
            self._tries += 1
            if opened := epoch.cipher.open(number, head, body):
                epoch.number = number
                return opened
        return None

    def _opened(self, body: bytes) -> None:
        self._before = self.epochs[0].number
        self.epochs[0].number += 1
        self._last = body[:8]
        self._refused, self.worked = 0, True

    def _later(self) -> Iterator[Epoch]:
        yield from self.epochs[1:]
        if self._next is None:
            self._next = self.epochs[-1].following()
        if self._next is not None:
            yield self._next

    def _enter(self, epoch: Epoch) -> None:
        if epoch is self._next:
            self.epochs, self._next = [epoch], None
        elif epoch is not self.epochs[0]:
            del self.epochs[: self.epochs.index(epoch)]


def of_secret(secret: bytes, suite: Suite, carries: bool) -> Epoch:
    """Return the keys of a traffic secret of TLS 1.3."""
    return Epoch(keys.of_traffic(secret, suite), carries, suite, secret)


def of_master(master: keys.Master, suite: Suite) -> Epoch:
    """Return the keys of a master secret up to TLS 1.2."""
    return Epoch(keys.of_master(master, suite), True, suite, master=master)
