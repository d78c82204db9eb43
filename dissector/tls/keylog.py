"""Secrets by connection, from key logs in the NSS format: files, even if still being written, and captures.

A line is `LABEL client-random secret`, both hexadecimal. Source: RFC 9850 (the SSLKEYLOGFILE format). Secrets are never
shown, logged or written.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from amqpscope.dissector.capture.input import CaptureError, MissingCaptureError
from amqpscope.dissector.kernels import limits
from amqpscope.errors import reason

LINE = 1024
"""Most bytes of a line; a longer one does not belong to a key log."""
STEP = 1 << 20
MASTER = b"CLIENT_RANDOM"
LABELS = frozenset(
    {
        MASTER, b"CLIENT_EARLY_TRAFFIC_SECRET", b"CLIENT_HANDSHAKE_TRAFFIC_SECRET",
        b"SERVER_HANDSHAKE_TRAFFIC_SECRET", b"CLIENT_TRAFFIC_SECRET_0", b"SERVER_TRAFFIC_SECRET_0",
    }
)  # fmt: skip
"""Labels of the secrets in use. Later generations follow from the first."""


class KeyLog:
    """All known secrets.

    Args:
        path: a key log to read, and to read further when it grows.

    Attributes:
        expecting: whether secrets may still come, so that records wait for them.
        grown: whether secrets have come since the caller last reset it.
        full: whether more secrets came than are kept.
        tries_exhausted: whether no more of them are tried for resumed sessions.

    Raises:
        CaptureError: the file does not exist, or cannot be read.
    """

    def __init__(self, path: str | None = None) -> None:
        self.expecting = path is not None
        self.grown = False
        self.full = self.tries_exhausted = False
        self._secrets: dict[bytes, dict[bytes, bytes]] = {}
        self._masters: dict[bytes, bytes] = {}
        self._count = self._tried = 0
        self._rest = b""
        self._path = path
        self._read_to = 0
        self._added = False
        self.look()

    def __repr__(self) -> str:
        return f"KeyLog({self._count} secrets)"

    def __len__(self) -> int:
        return self._count

    def look(self) -> None:
        """Read what was added to the file since.

        Raises:
            CaptureError: the file cannot be read.
        """
        if self._path is None:
            return
        try:
            with Path(self._path).open("rb") as file:
                if file.seek(0, 2) < self._read_to:
                    self._read_to, self._rest = 0, b""  # the file was written anew
                file.seek(self._read_to)
                self._read(file)
        except OSError as error:
            kind = MissingCaptureError if isinstance(error, FileNotFoundError) else CaptureError
            raise kind(f"{self._path}: cannot read the key log: {reason(error)}") from error

    def add(self, data: bytes) -> None:
        """Add a key log that a capture holds."""
        self.expecting = self._added = True
        for line in data.splitlines():
            self._line(line)

    def written(self) -> bytes:
        """Return all secrets as a key log if some came with captures; a file can be read again by its name."""
        lines = [
            b"%s %s %s\n" % (label, random.hex().encode(), secret.hex().encode())
            for random, labels in self._secrets.items()
            for label, secret in labels.items()
        ]
        return b"".join(lines) if self._added else b""

    def secrets(self, random: bytes) -> dict[bytes, bytes]:
        """Return the secrets, by label, of the connection with this client random."""
        return self._secrets.get(random, {})

    def masters(self) -> Iterator[bytes]:
        """Yield all master secrets up to TLS 1.2, latest first; none when too many were tried."""
        for master in reversed(self._masters.values()):
            if self._tried >= limits.TLS_MASTERS:
                self.tries_exhausted = True
                return
            self._tried += 1
            yield master

    def _read(self, file: BinaryIO) -> None:
        while data := file.read(STEP):
            self._read_to += len(data)
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                self._line(line)
            if len(self._rest) > LINE:
                self._rest = self._rest[:1]  # not a line of a key log; neither is the rest of it
        self._line(self._rest)  # perhaps the whole last line; if more of it follows, that counts

    def _line(self, line: bytes) -> None:
        words = line[:LINE].split()
        if len(words) != 3 or words[0] not in LABELS:
            return
        try:
            random, secret = bytes.fromhex(words[1].decode("ascii")), bytes.fromhex(words[2].decode("ascii"))
        except ValueError:
            return
        if len(random) != 32 or (len(secret) != 48 and (words[0] == MASTER or len(secret) != 32)):
            return
        if self._count >= limits.TLS_SECRETS:
            self.full = True
            return
        labels = self._secrets.setdefault(random, {})
        self._count += words[0] not in labels
        labels[words[0]] = secret
        if words[0] == MASTER:
            self._masters[random] = secret
        self.grown = True
