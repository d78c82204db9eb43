"""TLS as a stage between TCP and the protocols: from chunks of encrypted connections to chunks of their content."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from amqpscope.dissector.capture.model import Problem
from amqpscope.dissector.kernels import limits
from amqpscope.dissector.kernels.accounting import MemoryAccounting
from amqpscope.dissector.kernels.arrays import Ints
from amqpscope.dissector.kernels.coding import Target
from amqpscope.dissector.kernels.retained import Buffer
from amqpscope.dissector.tcp.state import Chunk
from amqpscope.dissector.tls import ciphers, runs, transfer
from amqpscope.dissector.tls.direction import PlainChunk, TlsDirection
from amqpscope.dissector.tls.keylog import KeyLog
from amqpscope.dissector.tls.records import NOWHERE, At
from amqpscope.dissector.tls.session import Session
from amqpscope.dissector.tls.shown import Fault, Shown

AT = Chunk.PACKET, Chunk.TS, Chunk.CAPTURE
FIRST = Chunk.FIRST_PACKET, Chunk.FIRST_TS, Chunk.FIRST_CAPTURE
ROWS = (Chunk.SIDE, Chunk.OFFSET, Chunk.LENGTH, *FIRST, *AT)
PLAIN_ROWS = (Chunk.SLOT, Chunk.SIDE, Chunk.OFFSET, Chunk.LENGTH, *AT, *FIRST)
REACH = 64
"""Chunks that the first run tries; the next tries twice as many as the last one took."""
FEW = 8
"""Fewest chunks that make a run worth it."""
WORTH = 4096
"""Fewest bytes that make a run worth it."""


class Tls:
    """All connections that use TLS.

    Args:
        keylog: path of a key log, or None.
        compiled: whether kernels run compiled.

    Raises:
        CaptureError: the key log cannot be read, or the library that decrypts is not installed.
    """

    def __init__(self, keylog: str | None, accounting: MemoryAccounting, compiled: bool = True) -> None:
        self.accounting = accounting
        self.compiled = compiled
        self.keylog = KeyLog(keylog)
        if keylog is not None:
            ciphers.needs()
        self.sessions: dict[int, Session] = {}
        self.taken = np.zeros(0, np.bool_)
        """Slots of TLS connections."""
        self.positions = np.zeros(0, np.int64)
        """Number of bytes emitted, by 2 * slot + side."""
        self.stuck: set[int] = set()
        """Slots of connections that wait for secrets."""
        self.held = 0
        """Number of bytes that wait for secrets."""
        self.plain: list[PlainChunk] = []
        """Chunks that sessions emit."""
        self.order: list[int] = []
        """The index of the current chunk for each of these."""
        self.opened: list[runs.Opened] = []
        """Content that runs emit."""
        self.faults: list[Fault] = []
        """Faults of connections since the caller last emptied the list."""
        self.problems: list[tuple[int, Problem]] = []
        """Problems with secrets, each with the index of its capture, since the caller last emptied the list."""
        self.sealed = 0
        """Number of ended connections with encrypted records of which none was decrypted."""
        self.library_missing = self.full = self.tries_exhausted = False
        """Problems already reported: the decryption library is missing; more secrets came than are kept."""

    def begin(self, slot: int, begun: bool, capacity: int) -> Shown:
        """Take over a connection; return what its handshake will show."""
        if len(self.taken) < capacity:
            self.taken = np.concatenate([self.taken, np.zeros(capacity - len(self.taken), np.bool_)])
            self.positions = np.concatenate([self.positions, np.zeros(2 * capacity - len(self.positions), np.int64)])
        self.taken[slot] = True
        session = self.sessions[slot] = Session(self.keylog, begun, slot, self.plain, self.faults)
        self.positions[2 * slot : 2 * slot + 2] = 0
        return session.handshake.shown

    def take_out(self, slots: Ints) -> bytes:
        """Take connections out."""
        taken: list[Any] = []
        for index, slot in enumerate(slots.tolist()):
            session = self.sessions.pop(slot, None)
            if session:
                taken.append((index, self.positions[2 * slot : 2 * slot + 2].tolist(), transfer.values(session)))
                self._leave(session)
        return transfer.STATE.written(taken)

    def put_back(self, data: bytes, target: Target, shown: Callable[[int], Shown | None]) -> None:
        """Put back what `take_out` returned; `shown` returns what the handshake of a connection shows."""
        for index, positions, values in transfer.STATE.read(data, target.captures):
            slot = int(target.slots[index])
            self.begin(slot, False, target.capacity)
            self.positions[2 * slot : 2 * slot + 2] = positions
            session = self.sessions[slot]
            transfer.give(session, values)
            session.handshake.shown = shown(slot) or session.handshake.shown
            self.held += session.held
            if session.held:
                self.stuck.add(slot)

    def add(self, secrets: bytes, capture: int) -> None:
        """Add a key log that a capture holds."""
        if ciphers.is_installed():
            self.keylog.add(secrets)
        elif not self.library_missing:
            self.library_missing = True
            problem = Problem("tls-undecrypted", 0, None, f"the capture holds TLS secrets, but {ciphers.LACKS}")
            self.problems.append((capture, problem))

    def mine(self, slots: Ints) -> np.ndarray[tuple[int], np.dtype[np.bool_]] | None:
        """Return which of these slots use TLS; None if none does."""
        if not self.sessions:
            return None
        mask = np.zeros(len(slots), np.bool_)
        inside = slots < len(self.taken)
        mask[inside] = self.taken[slots[inside]]
        return mask if mask.any() else None

    def feed(self, chunks: Ints, buffer: Buffer) -> Ints:
        """Return chunks of the content of these chunks of TLS connections; their bytes are in the buffer's arena."""
        for slot, mine in _groups(chunks[Chunk.SLOT]):
            self._feed(self.sessions[slot], chunks if len(mine) == chunks.shape[1] else chunks[:, mine], mine, buffer)
        return self._chunks(buffer)

    def _feed(self, session: Session, chunks: Ints, order: Ints, buffer: Buffer) -> None:
        """Take the chunks of one connection: in runs, and one by one where there is more to do."""
        rows = np.ascontiguousarray(chunks[ROWS, :].T)
        at, reach, left, again, alone = 0, REACH, int(chunks[Chunk.LENGTH].sum()), 0, 0
        while at < len(rows):
            side, offset, length, *where = rows[at].tolist()
            if at >= again and left >= WORTH and session.is_smooth(side):
                taken, opened = runs.run(session, chunks[:, at : at + reach], buffer, self.compiled)
                self.opened += [runs.Opened(found, order[at + index]) for found, index in opened]
                left -= int(chunks[Chunk.LENGTH, at : at + taken].sum())
                at, reach = at + taken, max(2 * taken, REACH)
                # If runs end as soon as they begin, ever more chunks go one by one before the next run is tried.
                alone = 0 if taken >= FEW else min(2 * alone + 1, REACH)
                again = at + alone
                if taken:
                    for half in session.halves:
                        self._weigh(session, half)
                    continue
            data = buffer.data[offset : offset + length].tobytes() if offset >= 0 else None
            before = session.held
            session.feed(side, data, length, At(*where[:3]), At(*where[3:]))
            if session.held != before:
                self._hold(session, before, side, At(*where[3:]))
            self._weigh(session, session.halves[side])
            self.order += [int(order[at])] * (len(self.plain) - len(self.order))
            left -= length
            at += 1

    def _weigh(self, session: Session, half: TlsDirection) -> None:
        """Account for the bytes that a direction retains."""
        kept = half.kept
        if kept != half.counted:
            self.accounting.change(session.slot, kept - half.counted)
            half.counted = kept

    def look(self, slots: Ints | None, buffer: Buffer) -> Ints:
        """Continue connections whose missing secrets have come; for these slots, which have ended, a last time."""
        ended = [] if slots is None else [slot for slot in slots.tolist() if slot in self.sessions]
        for slot in ended:
            session = self.sessions[slot]
            before = session.held
            session.end()
            self._hold(session, before, 0, NOWHERE)
        over = self.stuck.intersection(ended)
        if over or (self.stuck and slots is None):
            self.keylog.look()
            for slot in sorted(over or self.stuck):
                session = self.sessions[slot]
                before = session.held
                session.resume()
                if over:
                    session.give_up()
                self._hold(session, before, 0, NOWHERE)
        self.report()
        return self._chunks(buffer)

    def report(self) -> None:
        """Report limits that the key logs have reached, each once."""
        if self.keylog.full and not self.full:
            self.full = True
            text = f"the key logs hold more than {limits.TLS_SECRETS} secrets; later ones are ignored"
            self.problems.append((0, Problem("limit-reached", 0, None, text)))
        if self.keylog.tries_exhausted and not self.tries_exhausted:
            self.tries_exhausted = True
            text = f"{limits.TLS_MASTERS} secrets were tried for resumed sessions: further sessions stay encrypted"
            self.problems.append((0, Problem("limit-reached", 0, None, text)))

    def _hold(self, session: Session, before: int, side: int, at: At) -> None:
        """Account for the bytes that wait."""
        if self.held + session.held - before > limits.TLS_HELD_ALL:
            why = f"more than {limits.TLS_HELD_ALL} bytes of all connections waited for TLS secrets"
            session.stop_waiting(side, at, why)
        self.held += session.held - before
        if session.held:
            self.stuck.add(session.slot)
        else:
            self.stuck.discard(session.slot)

    def free(self, slots: Ints) -> None:
        """Drop the state of ended connections."""
        if self.sessions:
            for slot in slots.tolist():
                session = self.sessions.pop(slot, None)
                if session:
                    self.sealed += session.is_sealed
                    self._leave(session)

    def _leave(self, session: Session) -> None:
        """Remove a connection."""
        self.held -= session.held
        self.taken[session.slot] = False
        self.stuck.discard(session.slot)

    def _chunks(self, buffer: Buffer) -> Ints:
        """Return what sessions and runs have emitted, as chunks, in the order of the chunks that held it."""
        order = np.array(self.order or [0] * len(self.plain), np.int64)
        found = [(self._plain(buffer), order), *self.opened]
        self.order.clear()
        self.opened.clear()
        chunks = np.concatenate([each for each, _ in found], axis=1)
        if len(found) > 1:
            chunks = chunks[:, np.argsort(np.concatenate([order for _, order in found]), kind="stable")]
        for direction, mine in _groups(2 * chunks[Chunk.SLOT] + chunks[Chunk.SIDE]):
            ends = self.positions[direction] + np.cumsum(chunks[Chunk.LENGTH, mine])
            chunks[Chunk.POS, mine] = ends - chunks[Chunk.LENGTH, mine]
            self.positions[direction] = ends[-1]
        return chunks

    def _plain(self, buffer: Buffer) -> Ints:
        """Return what sessions have emitted, as chunks without their positions."""
        chunks = np.zeros((Chunk.WIDTH, len(self.plain)), np.int64)
        if not self.plain:
            return chunks
        at = buffer.append(np.frombuffer(b"".join([plain.data or b"" for plain in self.plain]), np.uint8))
        rows = []
        for slot, side, data, length, first, last in self.plain:
            rows.append((slot, side, -1 if data is None else at, length, *last, *first))
            at += 0 if data is None else length
        chunks[PLAIN_ROWS, :] = np.array(rows, np.int64).T
        self.plain.clear()
        return chunks


def _groups(numbers: Ints) -> Iterator[tuple[int, Ints]]:
    """Yield each of these numbers, and where it occurs."""
    if not len(numbers):
        return
    order = np.argsort(numbers, kind="stable")
    for mine in np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1):
        yield int(numbers[mine[0]]), mine
