"""TLS as a stage between TCP and the protocols: pieces of encrypted connections in, pieces of what is in them out."""

import numpy as np

from dissector import limits
from dissector.arrays import Ints
from dissector.capture import Problem
from dissector.carry import Buffer
from dissector.tcp.layout import (
    S_CAPTURE,
    S_FIRST_CAPTURE,
    S_FIRST_PACKET,
    S_FIRST_TS,
    S_HEIGHT,
    S_LENGTH,
    S_OFFSET,
    S_PACKET,
    S_POS,
    S_SIDE,
    S_SLOT,
    S_TS,
)
from dissector.tls import ciphers
from dissector.tls.keylog import KeyLog
from dissector.tls.records import At
from dissector.tls.session import Plain, Session
from dissector.tls.shown import Shown

ROWS = (
    S_SLOT, S_SIDE, S_OFFSET, S_LENGTH, S_FIRST_PACKET, S_FIRST_TS, S_FIRST_CAPTURE, S_PACKET, S_TS, S_CAPTURE,
)  # fmt: skip
PLAIN_ROWS = (
    S_SLOT, S_SIDE, S_POS, S_OFFSET, S_LENGTH, S_PACKET, S_TS, S_CAPTURE, S_FIRST_PACKET, S_FIRST_TS, S_FIRST_CAPTURE,
)  # fmt: skip


class Tls:
    """All connections whose content is TLS.

    Args:
        keylog: path of a key log, or None.

    Raises:
        CaptureError: the key log cannot be read, or the library that decrypts is not installed.
    """

    def __init__(self, keylog: str | None) -> None:
        self.keylog = KeyLog(keylog)
        if keylog is not None:
            ciphers.needs()
        self.sessions: dict[int, Session] = {}
        self.taken = np.zeros(0, np.bool_)
        """Slots that are TLS."""
        self.positions: dict[int, list[int]] = {}
        """Octets handed on, by slot and side."""
        self.stuck: set[int] = set()
        """Slots that wait for secrets."""
        self.held = 0
        """Octets that wait."""
        self.plain: list[Plain] = []
        """What sessions hand on."""
        self.problems: list[Problem] = []
        """What was given up since the caller last emptied the list."""
        self.sealed = 0
        """Connections that are over and of which nothing was decrypted, though there was something encrypted."""
        self.lacks = self.full = False
        """The library that decrypts is not there; more secrets came than are kept."""

    def begin(self, slot: int, begun: bool, capacity: int) -> Shown:
        """Take over a connection; returns what will be known of it."""
        if len(self.taken) < capacity:
            self.taken = np.concatenate([self.taken, np.zeros(capacity - len(self.taken), np.bool_)])
        self.taken[slot] = True
        session = self.sessions[slot] = Session(self.keylog, begun, slot, self.plain)
        self.positions[slot] = [0, 0]
        return session.shown

    def add(self, secrets: bytes) -> None:
        """Take in a key log that came with a capture."""
        if ciphers.is_installed():
            self.keylog.add(secrets)
        elif not self.lacks:
            self.lacks = True
            self.problems.append(Problem("tls-undecrypted", 0, None, f"the capture holds secrets, but {ciphers.LACKS}"))

    def mine(self, slots: Ints) -> np.ndarray[tuple[int], np.dtype[np.bool_]] | None:
        """Which of these slots are TLS; None where none is."""
        if not self.sessions:
            return None
        mask = np.zeros(len(slots), np.bool_)
        inside = slots < len(self.taken)
        mask[inside] = self.taken[slots[inside]]
        return mask if mask.any() else None

    def feed(self, pieces: Ints, buffer: Buffer) -> Ints:
        """Pieces of what these pieces, all of TLS connections, hold; the octets are in the buffer's arena."""
        data = buffer.data
        for slot, side, offset, length, *where in pieces[ROWS, :].T.tolist():
            session = self.sessions[slot]
            octets = data[offset : offset + length].tobytes() if offset >= 0 else None
            before = session.held
            session.feed(side, octets, length, tuple(where[:3]), tuple(where[3:]))
            if session.held != before:
                self._hold(slot, session, before, tuple(where[3:]))
            if session.problems:
                self._note(session)
        return self._pieces(buffer)

    def look(self, slots: Ints | None, buffer: Buffer) -> Ints:
        """Go on where secrets were missing and have come since; for these slots, which are over, for the last time."""
        over = set() if slots is None else self.stuck.intersection(slots.tolist())
        if over or (self.stuck and slots is None):
            self.keylog.look()
            if self.keylog.full and not self.full:
                self.full = True
                told = f"the key logs hold more than {limits.TLS_SECRETS} secrets; later ones are not used"
                self.problems.append(Problem("limit-reached", 0, None, told))
            for slot in sorted(over or self.stuck):
                session = self.sessions[slot]
                before = session.held
                session.resume()
                if over:
                    session.give_up()
                self._hold(slot, session, before, (0, 0, 0))
                self._note(session)
        return self._pieces(buffer)

    def _hold(self, slot: int, session: Session, before: int, at: At) -> None:
        """Count what waits."""
        if self.held + session.held - before > limits.TLS_HELD_ALL:
            session.stop_waiting(at)
        self.held += session.held - before
        if session.held:
            self.stuck.add(slot)
        else:
            self.stuck.discard(slot)

    def free(self, slots: Ints) -> None:
        """Forget connections that are over."""
        if self.sessions:
            for slot in slots.tolist():
                session = self.sessions.pop(slot, None)
                if session:
                    self.sealed += session.is_sealed
                    self.taken[slot] = False
                    self.stuck.discard(slot)
                    del self.positions[slot]

    def _note(self, session: Session) -> None:
        self.problems += [Problem(code, packet, None, told) for code, packet, told in session.problems]
        session.problems.clear()

    def _pieces(self, buffer: Buffer) -> Ints:
        """What sessions have handed on, as pieces."""
        pieces = np.zeros((S_HEIGHT, len(self.plain)), np.int64)
        if not self.plain:
            return pieces
        at = buffer.append(np.frombuffer(b"".join([plain.octets or b"" for plain in self.plain]), np.uint8))
        rows = []
        for slot, side, octets, length, first, last in self.plain:
            position = self.positions[slot]
            rows.append((slot, side, position[side], -1 if octets is None else at, length, *last, *first))
            position[side] += length
            at += 0 if octets is None else length
        pieces[PLAIN_ROWS, :] = np.array(rows, np.int64).T
        self.plain.clear()
        return pieces
