"""AMQP 0-10 sessions: which one a channel is attached to at each frame, and the ids of its commands.

Ids are not on the wire: each side counts its commands, from the id of its last session.command-point on, and wraps at
2^32. Unwrapped they go on, also where a session is attached anew. Where a command may be lost they are not known until
the next command-point, or until answers prove them (`proofs`). A session that no channel is attached to is forgotten,
unless its ids are so high that they wrap. One that was attached before the capture has no name, and is its channel's.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

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
    DETACH,
    DETACHED,
    PLAIN,
)
from amqpscope.dissector.protocols.amqp010.proofs import WRAP, answered, begin, sends
from amqpscope.dissector.protocols.amqp010.state import NAMELESS, Channel, Frame, Session, Track
from amqpscope.dissector.tcp.state import Facts

FAR = WRAP // 2
"""Lower ids are what a command-point says, whatever they were before."""
POINT = "command_id_sequence_no"
"""Column of the id that session.command-point names, or an answer to one command."""
SETS = ("commands", "transfers")
"""Columns of sets of ids that answers to commands name."""
LAST = r"(?P<last>\d+)\]\]$"
UNNAMED = "\0"
"""Begins what stands for the name of a session that was attached before the capture; its channel follows."""


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

    def take(self, frames: Ints, fields: Decoded, channels: Ints, tracks: Ints, facts: Ints) -> None:
        """Fill SESSION, EPOCH and COMMAND of frames, whose operations have these fields, and EPOCH of `tracks`."""
        self._prune()
        role = np.where(frames[Frame.METHOD] >= 0, self.roles[frames[Frame.METHOD]], PLAIN)
        self._add_unnamed(frames, role, channels, facts)
        named = np.full(frames.shape[1], -1, np.int64)
        naming = np.flatnonzero((role >= ATTACH) & (role <= DETACHED))
        names = picked(fields.columns["name"], naming)
        for i, slot, name in zip(naming.tolist(), frames[Frame.SLOT, naming].tolist(), names, strict=True):
            if name:
                named[i] = self._row(slot, name)
        column = fields.columns[POINT]
        points = np.where(valid(column), numbers(column), 0) if (role == COMMAND_POINT).any() else named
        answers = self._answers(frames, fields, role)
        call(
            number, self.compiled, frames, frames.shape[1], role, named, points, answers, channels, tracks,
            self.rows.rows, facts,
        )  # fmt: skip

    def _add_unnamed(self, frames: Ints, role: Ints, channels: Ints, facts: Ints) -> None:
        """Begin sessions on channels that are in use where the capture begins in the middle."""
        used = frames[:, (frames[Frame.ROW] >= 0) & (frames[Frame.OPERATION] >= 0) & (role == PLAIN)]
        rows, first = np.unique(used[Frame.ROW], return_index=True)
        begun = (channels[rows, Channel.SESSION] < 0) & (channels[rows, Channel.EPOCH] == 0)
        begun &= facts[:, Facts.SYN].copy()[used[Frame.SLOT, first]] == 0
        for row, slot in zip(rows[begun].tolist(), used[Frame.SLOT, first[begun]].tolist(), strict=True):
            session = self._row(slot, f"{UNNAMED}{channels[row, Channel.CHANNEL]}")
            channels[row, Channel.SESSION] = session
            self.rows.rows[session, [Session.USED, Session.ATTACHED]] = NAMELESS, 1

    def _answers(self, frames: Ints, fields: Decoded, role: Ints) -> Ints:
        """Return the last id that each frame names of commands of the other side; -1: none, or all ids are known."""
        rows = self.rows.rows
        unknown = (rows[:, [Session.CLIENT_NEXT, Session.SERVER_NEXT]] < 0).any(axis=1)
        may_change = frames[Frame.GAPPED].any() or (role > CONNECTION).any()
        if not may_change and not (unknown & (rows[:, Session.USED] != 0)).any():
            return np.zeros(0, np.int64)
        texts = pc.coalesce(*(fields.columns[name] for name in SETS))
        last = pc.struct_field(pc.extract_regex(texts, LAST), "last").cast(pa.int64())
        column = fields.columns[POINT]
        single = np.where(valid(column) & (role != COMMAND_POINT), numbers(column), -1)
        return np.where(frames[Frame.CUT] > 0, -1, np.where(valid(last), numbers(last), single))

    def column(self, rows: Ints) -> pa.Array:
        """Return the names of sessions; null for those below 0."""
        found, places = np.unique(rows, return_inverse=True)
        names = (self.names.get(row, UNNAMED) for row in found.tolist())
        return array([None if n.startswith(UNNAMED) else n for n in names], pa.string()).take(array(places))

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
        idle = (rows[:, Session.USED] != 0) & (rows[:, Session.ATTACHED] == 0)
        self._drop(
            np.flatnonzero(idle & (rows[:, [Session.CLIENT_NEXT, Session.SERVER_NEXT]] < 0).all(axis=1)).tolist()
        )

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
    frames: Array, n: int, roles: Array, named: Array, points: Array, answers: Array, channels: Array, tracks: Array,
    sessions: Array, facts: Array,
) -> None:  # fmt: skip
    """Fill SESSION, EPOCH and COMMAND of n frames.

    Args:
        frames: (Frame, n).
        n: their number.
        roles: (n,) what their operations mean for sessions.
        named: (n,) the session that an operation names; -1: none.
        points: (n,) the id that session.command-point names.
        answers: (n,) the last id that an answer to commands names, -1: none; or empty, if all ids are known.
        channels: (channels, Channel).
        tracks: (4 * channels, Track).
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
        current = channels[row, Channel.SESSION]
        is_free = current < 0 or sessions[current, Session.USED] == NAMELESS or channels[row, Channel.LEAVING] == 1
        is_other = role == DETACH and named[i] >= 0 and named[i] != current and lacks_ids(sessions, current)
        if role == ATTACHED or (role == ATTACH and is_free) or is_other:
            attach(channels, sessions, row, named[i])
        session = channels[row, Channel.SESSION]
        frames[Frame.EPOCH, i] = channels[row, Channel.EPOCH]
        server = 0 if frames[Frame.SIDE, i] == facts[frames[Frame.SLOT, i], Facts.CLIENT] else 1
        tracks[4 * row + 2 * server + frames[Frame.TRACK, i], Track.EPOCH] = channels[row, Channel.EPOCH]
        if session < 0:
            continue
        if role != CONNECTION:
            frames[Frame.SESSION, i] = session
        near = after = sessions[session, Session.CLIENT_NEXT + server]
        if frames[Frame.GAPPED, i] != 0:
            begin(sessions, session, server)
            after = -1
        if role == COMMAND_POINT:
            after = unwrapped(points[i], near)
        elif frames[Frame.OPERATION, i] == COMMAND:
            if after < 0:
                after = sends(sessions, session, server, frames[Frame.FIRST_TS, i])
            if after >= 0:
                frames[Frame.COMMAND, i] = after
                after += 1
        sessions[session, Session.CLIENT_NEXT + server] = after
        if len(answers) > 0 and answers[i] >= 0 and sessions[session, Session.SERVER_NEXT - server] < 0:
            answered(sessions, session, 1 - server, answers[i], frames[Frame.TS, i])
        if role == DETACH and named[i] == session:
            channels[row, Channel.LEAVING] = 1
        elif role == DETACHED and named[i] == session:
            attach(channels, sessions, row, -1)


@kernel
def lacks_ids(sessions: Array, session: int) -> bool:
    """Return whether ids of a session are unknown, as after a gap, in which its channel may have got another one."""
    if session < 0 or sessions[session, Session.USED] == NAMELESS:
        return False
    are_unknown: bool = sessions[session, Session.CLIENT_NEXT] < 0 or sessions[session, Session.SERVER_NEXT] < 0
    return are_unknown


@kernel
def attach(channels: Array, sessions: Array, row: int, session: int) -> None:
    """Attach a channel to a session; -1: to none."""
    before = channels[row, Channel.SESSION]
    channels[row, Channel.LEAVING] = 0
    if before == session:
        return
    channels[row, Channel.SESSION] = session
    if session >= 0:
        sessions[session, Session.ATTACHED] += 1
    if before >= 0:
        sessions[before, Session.ATTACHED] -= 1
        if sessions[before, Session.ATTACHED] == 0:
            for server in range(2):
                if sessions[before, Session.CLIENT_NEXT + server] < FAR:
                    begin(sessions, before, server)


@kernel
def unwrapped(number: int, near: int) -> int:
    """Return the id with these 32 bits that is nearest to another; -1: none is known."""
    if near < 0:
        return number
    step = (number - near) & (WRAP - 1)
    if step >= FAR:
        step -= WRAP
    return near + step if near + step >= 0 else number
