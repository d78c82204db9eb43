"""AMQP 0-10 sessions: which one a channel is attached to at each frame, and the ids of its commands.

Ids are not on the wire: each side counts its commands, from the id of its last session.command-point on, and wraps at
2^32. Unwrapped they go on, also where a session is attached anew. Where a command may be lost they are not known until
the next command-point. A session that no channel is attached to is forgotten, unless its ids are so high that they
wrap.
"""

import numpy as np
import pyarrow as pa

from amqpscope.dissector.fields.arrow import array, numbers, picked, valid
from amqpscope.dissector.fields.decoding import Decoded
from amqpscope.dissector.kernels import coding
from amqpscope.dissector.kernels.accounting import CHUNK_COST, MemoryAccounting
from amqpscope.dissector.kernels.arrays import Array, Ints
from amqpscope.dissector.kernels.kernel import call, kernel
from amqpscope.dissector.kernels.pool import Pool, give_rows, take_row, take_rows
from amqpscope.dissector.protocols.amqp010.layout import (
    ATTACH,
    ATTACHED,
    COMMAND,
    COMMAND_POINT,
    CONNECTION,
    DETACHED,
    PLAIN,
)
from amqpscope.dissector.protocols.amqp010.state import Channel, Frame, Session
from amqpscope.dissector.tcp.state import Facts

WRAP = 1 << 32
"""Ids wrap there."""
FAR = WRAP // 2
"""Lower ids are what a command-point says, whatever they were before."""
POINT = "command_id_sequence_no"
"""Column of the id that session.command-point names."""


class Sessions:
    """The sessions of all connections."""

    def __init__(self, roles: Ints, accounting: MemoryAccounting, compiled: bool) -> None:
        self.roles = roles
        self.accounting = accounting
        self.compiled = compiled
        self.rows = Pool(Session.WIDTH, 64)
        self.known: dict[int, dict[str, int]] = {}
        """By slot the rows of its sessions, by name."""
        self.names: dict[int, str] = {}

    def take(self, frames: Ints, fields: Decoded, channels: Ints, facts: Ints) -> None:
        """Fill SESSION, EPOCH and COMMAND of frames, whose operations have these fields."""
        self._prune()
        role = np.where(frames[Frame.METHOD] >= 0, self.roles[frames[Frame.METHOD]], PLAIN)
        named = np.full(frames.shape[1], -1, np.int64)
        naming = np.flatnonzero((role >= ATTACH) & (role <= DETACHED))
        names = picked(fields.columns["name"], naming)
        for i, slot, name in zip(naming.tolist(), frames[Frame.SLOT, naming].tolist(), names, strict=True):
            if name:
                named[i] = self._row(slot, name)
        column = fields.columns[POINT]
        points = np.where(valid(column), numbers(column), 0) if (role == COMMAND_POINT).any() else named
        call(number, self.compiled, frames, frames.shape[1], role, named, points, channels, self.rows.rows, facts)

    def column(self, rows: Ints) -> pa.Array:
        """Return the names of sessions; null for those below 0."""
        found, places = np.unique(rows, return_inverse=True)
        return array([self.names.get(row) for row in found.tolist()], pa.string()).take(array(places))

    def take_out(self, slots: Ints, attached: Ints) -> tuple[bytes, Ints]:
        """Take the sessions of connections out; returns them, and for the rows `attached` which of them they are."""
        names = [list(self.known.get(slot, {})) for slot in slots.tolist()]
        rows = np.array([row for slot in slots.tolist() for row in self.known.get(slot, {}).values()], np.int64)
        place = np.full(len(self.rows) + 1, -1, np.int64)  # and of -1 it is the last one
        place[rows] = np.arange(len(rows))
        taken = coding.PLAIN.written([names, Session.written(self.rows.rows[rows])])
        self.forget(slots)
        return taken, place[attached]

    def put_back(self, data: bytes, slots: Ints) -> Ints:
        """Put back what `take_out` took. Returns their rows, and -1 after them."""
        names, sessions = coding.PLAIN.read(data)
        sessions = Session.read(sessions)
        self.rows.reserve(len(sessions))
        rows = take_rows(self.rows.free, len(sessions))
        self.rows.rows[rows] = sessions
        owned = [(slot, name) for slot, own in zip(slots.tolist(), names, strict=True) for name in own]
        for row, (slot, name) in zip(rows.tolist(), owned, strict=True):
            self.rows.rows[row, Session.SLOT] = slot
            self.known.setdefault(slot, {})[name] = row
            self.names[row] = name
            self.accounting.change(slot, CHUNK_COST + len(name))
        return np.append(rows, -1)

    def forget(self, slots: Ints) -> None:
        """Forget connections that ended."""
        for slot in slots.tolist():
            self._drop(list(self.known.get(slot, {}).values()))
            self.known.pop(slot, None)

    def _prune(self) -> None:
        """Forget sessions of which nothing is known but the name. Rows that were made have it."""
        rows = self.rows.rows
        idle = (rows[:, Session.USED] == 1) & (rows[:, Session.ATTACHED] == 0)
        self._drop(np.flatnonzero(idle & (rows[:, Session.CLIENT_NEXT : Session.WIDTH] < 0).all(axis=1)).tolist())

    def _drop(self, rows: list[int]) -> None:
        for row in rows:
            slot, name = int(self.rows.rows[row, Session.SLOT]), self.names.pop(row)
            del self.known[slot][name]
            self.accounting.change(slot, -CHUNK_COST - len(name))
        self.rows.rows[rows, Session.USED] = 0
        give_rows(self.rows.free, np.array(rows, np.int64))

    def _row(self, slot: int, name: str) -> int:
        known = self.known.setdefault(slot, {})
        row = known.get(name)
        if row is None:
            if self.rows.left == 0:
                self.rows.grow(2 * len(self.rows))
            row = known[name] = take_row(self.rows.free)
            Session.clear(self.rows.rows, np.array([row]))
            self.rows.rows[row, [Session.USED, Session.SLOT]] = 1, slot
            self.names[row] = name
            self.accounting.change(slot, CHUNK_COST + len(name))
        return row


@kernel
def number(
    frames: Array, n: int, roles: Array, named: Array, points: Array, channels: Array, sessions: Array, facts: Array
) -> None:  # fmt: skip
    """Fill SESSION, EPOCH and COMMAND of n frames.

    Args:
        frames: (Frame, n).
        n: how many.
        roles: (n,) what their operations mean for sessions.
        named: (n,) the session that an operation names; -1: none.
        points: (n,) the id that session.command-point names.
        channels: (channels, Channel).
        sessions: (sessions, Session).
        facts: (slots, Facts).
    """
    for i in range(n):
        frames[Frame.SESSION, i] = -1
        frames[Frame.EPOCH, i] = 0
        frames[Frame.COMMAND, i] = -1
        row = frames[Frame.ROW, i]
        if row < 0:
            continue
        role = roles[i]
        if role == ATTACH:
            channels[row, Channel.EPOCH] += 1
        if role == ATTACHED or (role == ATTACH and channels[row, Channel.SESSION] < 0):
            attach(channels, sessions, row, named[i])
        session = channels[row, Channel.SESSION]
        frames[Frame.EPOCH, i] = channels[row, Channel.EPOCH]
        if session < 0:
            continue
        if role != CONNECTION:
            frames[Frame.SESSION, i] = session
        server = 0 if frames[Frame.SIDE, i] == facts[frames[Frame.SLOT, i], Facts.CLIENT] else 1
        after = sessions[session, Session.CLIENT_NEXT + server]
        if frames[Frame.GAPPED, i] != 0:
            after = -1
        if role == COMMAND_POINT:
            after = unwrapped(points[i], sessions[session, Session.CLIENT_NEXT + server])
        elif frames[Frame.OPERATION, i] == COMMAND and after >= 0:
            frames[Frame.COMMAND, i] = after
            after += 1
        sessions[session, Session.CLIENT_NEXT + server] = after
        if role == DETACHED and named[i] == session:
            attach(channels, sessions, row, -1)


@kernel
def attach(channels: Array, sessions: Array, row: int, session: int) -> None:
    """Attach a channel to a session; -1: to none."""
    before = channels[row, Channel.SESSION]
    if before == session:
        return
    channels[row, Channel.SESSION] = session
    if session >= 0:
        sessions[session, Session.ATTACHED] += 1
    if before >= 0:
        sessions[before, Session.ATTACHED] -= 1
        if sessions[before, Session.ATTACHED] == 0:
            for k in range(Session.CLIENT_NEXT, Session.SERVER_NEXT + 1):
                if sessions[before, k] < FAR:
                    sessions[before, k] = -1


@kernel
def unwrapped(number: int, near: int) -> int:
    """Return the id with these 32 bits that is nearest to another; -1: none is known."""
    if near < 0:
        return number
    step = (number - near) & (WRAP - 1)
    if step >= FAR:
        step -= WRAP
    return near + step if near + step >= 0 else number
