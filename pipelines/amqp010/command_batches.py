"""A batch of events as the kernel of `command_walk` reads it: numbers, digests of names, and ranges of ids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from amqpscope import spec
from amqpscope.dissector.kernels.arrays import Ints
from amqpscope.pipelines.amqp010.commands import EXPECTED, MORE, TRANSFER, Batch
from amqpscope.pipelines.amqp010.frames import FRAMES_010, PROTOCOL
from amqpscope.pipelines.amqp010.sessions import sessions_of, unnamed_at
from amqpscope.pipelines.model.digests import NOT_ZERO, combined, hashed
from amqpscope.pipelines.model.events import CONNECTIONS, EV, MESSAGES, WORDS, Events, what
from amqpscope.pipelines.model.latest import last_before
from amqpscope.pipelines.model.names import NONE, Names
from amqpscope.pipelines.model.numbers_in_text import numbers_in
from amqpscope.pipelines.model.speaking import matrix_of

_METHODS = spec.load(PROTOCOL).methods
METHODS = tuple(each.full_name for each in _METHODS)
KINDS = tuple(f"{PROTOCOL} {kind}" for kind in ("publish", "deliver"))
"""Events of messages."""
SETS = {"session.completed": "commands", "session.expected": "commands"} | dict.fromkeys(
    ("message.accept", "message.reject", "message.release"), "transfers"
)
"""Methods with ids of commands, and the column that has them."""
FRAME_COLUMNS = (
    "session", "sync", "command_id_sequence_no", "code", "error_code", "timeout", "commands", "transfers", "queue",
    "destination", "text", "description", "value", "xid",
)  # fmt: skip
SCOPE = ("user", "vhost", "server_ip")
"""Columns of connections: names of sessions are those of a user, on a virtual host of a broker."""
_BRANCH = (1 << 31) - 1
"""The bits of a branch's digest that are used."""
_STATUS = r'^\{"\$dtx\.xa-result":\{"status":(?P<status>\d+)'
"""The result of a step of a distributed transaction."""
_RESULT = what(FRAMES_010, "execution.result")
_OF_BRANCHES = [what(FRAMES_010, f"dtx.{name}") for name in ("start", "end", "prepare", "commit", "rollback")]
_SUBSCRIBE = what(FRAMES_010, "message.subscribe")
_DELIVER = what(MESSAGES, KINDS[1])
SUBSCRIPTIONS = 1 << 16
"""Subscriptions of a connection of which queues are remembered."""


def _table(values: dict[int, int]) -> Ints:
    made = np.zeros(WORDS, np.int64)
    made[list(values)] = list(values.values())
    return made


_TRANSFERS = [what(MESSAGES, kind) for kind in KINDS]
_ANSWERS = ("message.transfer", "execution.result", "execution.exception")
"""Commands that are not asked about here: transfers have tables of their own."""
COMMANDS = tuple(m.full_name for m in _METHODS if m.kind == "command")
ASKING = tuple(name for name in COMMANDS if name not in _ANSWERS)
_MAY_ASK = _table({what(FRAMES_010, name): 1 for name in ASKING})
_HAS_RESULT = _table({what(FRAMES_010, m.full_name): 1 for m in _METHODS if m.result})
"""By EV.WHAT: 1 for commands that ask for an answer where they say so (`sync`), and for those with a result."""


_ATTACHED = what(FRAMES_010, "session.attached")


class Queues:
    """Queues of subscriptions, as numbers of names.

    Attributes:
        keys: digests of connection, session and destination (int64, one column) of those of the open connection.
        queues: numbers of their queues.
    """

    def __init__(self) -> None:
        self.names = Names()
        self.keys, self.queues = np.zeros((0, 2), np.int64), np.zeros(0, np.int64)

    def of(self, events: Events, at: Ints, sessions: Ints) -> Ints:
        """Return the number of the queue of each event (int64) that is a delivery, -1 for unknown, and for others.

        Args:
            events: the batch.
            at: positions of the events.
            sessions: digests of their sessions.
        """
        words, connection = events.what[at], events.matrix[at, EV.CONNECTION]
        found = np.full(len(at), NONE, np.int64)
        begun, delivered = np.flatnonzero(words == _SUBSCRIBE), np.flatnonzero(words == _DELIVER)
        if not len(begun) and not len(delivered):
            return found
        rows = events.take(FRAMES_010, at[begun], ("queue", "destination"))
        numbers = self.names.numbers(rows["queue"].cast(pa.string()).combine_chunks())
        keys = self._keys(connection[begun], sessions[begun], rows["destination"])
        keys, queues = np.concatenate([self.keys, keys]), np.concatenate([self.queues, numbers])
        places = np.concatenate([np.full(len(self.keys), -1), begun])
        if len(delivered):
            tags = events.take(MESSAGES, at[delivered], ("consumer_tag",))["consumer_tag"]
            wanted = self._keys(connection[delivered], sessions[delivered], tags)
            last = last_before(keys, places, wanted, delivered, [0, 1])
            found[delivered] = np.where(last >= 0, np.append(queues, NONE)[last], NONE)
        mine = np.flatnonzero(keys[:, 0] == events.matrix[-1, EV.CONNECTION])[::-1]
        mine = np.sort(mine[np.unique(keys[mine, 1], return_index=True)[1]])[-SUBSCRIPTIONS:]
        self.keys, self.queues = keys[mine], queues[mine]
        return found

    def parts(self) -> dict[str, Any]:
        """Return what is remembered, for `put_back`."""
        return {"keys": self.keys, "queues": self.queues, "names": self.names.table()}

    def put_back(self, parts: Mapping[str, Any]) -> None:
        """Restore what `parts` returned."""
        self.keys, self.queues = parts["keys"], parts["queues"]
        self.names.put_back(parts["names"])

    @staticmethod
    def _keys(connection: Ints, session: Ints, destination: Any) -> Ints:
        return np.stack([connection, combined([session, destination.cast(pa.string()).fill_null("")])], 1)


def batch_of(events: Events, at: Ints, base: int, roles: Mapping[str, int]) -> Batch:
    """Return what any walk over commands reads of some events.

    Args:
        events: the batch.
        at: positions of the events.
        base: id of the batch's first event.
        roles: what methods do to sessions.
    """
    matrix = matrix_of(events, at)
    more = np.full((len(at), MORE.WIDTH), -1, np.int64)
    words = matrix[:, EV.WHAT]
    more[:, MORE.IDENTITY] = at + base
    more[:, MORE.ROLE] = _table({what(FRAMES_010, name): role for name, role in roles.items()})[words]
    more[:, MORE.SESSION] = _sessions(events, at)
    more[:, MORE.TARGET] = events.ints({FRAMES_010: "command_id_sequence_no"})[at]
    attached = np.flatnonzero(words == _ATTACHED)
    if len(attached):
        more[attached, MORE.TARGET] = unnamed_at(events, at[attached])
    for column in ("code", "error_code", "timeout"):
        more[:, MORE.CODE] = np.maximum(more[:, MORE.CODE], events.ints({FRAMES_010: column})[at])
    return matrix, more, _ranges(events, at, more, roles)


def describe(batch: Batch, events: Events, at: Ints, queues: Queues) -> None:
    """Write what `session_statistics` needs besides to a batch.

    Args:
        batch: from `batch_of`.
        events: the batch that it is of.
        at: positions of its events.
        queues: those of subscriptions so far.
    """
    matrix, more, _ = batch
    words = matrix[:, EV.WHAT]
    more[events.among(_TRANSFERS)[at], MORE.ROLE] = TRANSFER
    sync = events.ints({FRAMES_010: "sync"})[at] == 1
    more[:, MORE.ASKS] = (_MAY_ASK[words] == 1) & (sync | (_HAS_RESULT[words] == 1))
    more[:, MORE.MODE] = events.ints({MESSAGES: "accept_mode"})[at]
    more[:, MORE.ACQUIRE] = events.ints({MESSAGES: "acquire_mode"})[at]
    more[:, MORE.BRANCH] = _branches(events, at)
    results = np.flatnonzero(words == _RESULT)
    if len(results):
        more[results, MORE.STATUS] = statuses(events.take(FRAMES_010, at[results], ("value",))["value"]).fill_null(-1)
    more[:, MORE.QUEUE] = queues.of(events, at, more[:, MORE.SESSION])


def _branches(events: Events, at: Ints) -> Ints:
    """Return digests of the branches that commands of dtx name; 0 for all others."""
    found = np.zeros(len(at), np.int64)
    mine = np.flatnonzero(events.among(_OF_BRANCHES)[at])
    if len(mine):
        digests = hashed(events.take(FRAMES_010, at[mine], ("xid",))["xid"]) & _BRANCH
        found[mine] = np.maximum(digests, NOT_ZERO)
    return found


def statuses(values: pa.ChunkedArray) -> pa.Array:
    """Return the statuses (xa-status, int64) in values of execution.result, null for results of other classes."""
    status = pc.struct_field(pc.extract_regex(values.cast(pa.string()), _STATUS), "status")
    return status.cast(pa.int64()).combine_chunks()


def _sessions(events: Events, at: Ints) -> Ints:
    """Return digests of sessions; of connections those of what their names are unique in."""
    source, found = events.source[at], np.zeros(len(at), np.int64)
    for of in (FRAMES_010, MESSAGES):
        mine = np.flatnonzero(source == of)
        if len(mine):
            found[mine] = sessions_of(events, of, at[mine])
    mine = np.flatnonzero(source == CONNECTIONS)
    if len(mine):
        rows = events.take(CONNECTIONS, at[mine], SCOPE)
        found[mine] = combined([rows[name] for name in SCOPE])
    return found


def _ranges(events: Events, at: Ints, more: Ints, roles: Mapping[str, int]) -> Ints:
    """Return ranges of ids (two columns); write their places to `more`, and CODE 0 where ids are expected."""
    words = events.what[at]
    parts, begin = [np.zeros((0, 2), np.int64)], 0
    more[:, [MORE.FIRST, MORE.END]] = 0
    for method, column in ((method, column) for method, column in SETS.items() if method in roles):
        rows = np.flatnonzero(words == what(FRAMES_010, method))
        if len(rows):
            texts = events.take(FRAMES_010, at[rows], (column,))[column]
            pairs, ends = pairs_of(texts)
            more[rows, MORE.FIRST], more[rows, MORE.END] = ends[:-1] + begin, ends[1:] + begin
            if roles[method] == EXPECTED:
                more[rows, MORE.CODE] = np.where(texts.is_valid().to_numpy(), 0, -1)
            parts.append(pairs)
            begin += len(pairs)
    return np.concatenate(parts)


def pairs_of(texts: pa.ChunkedArray) -> tuple[Ints, Ints]:
    """Return the pairs of numbers (int64, 32 bits) in texts such as `[[0,3],[7,7]]`, and where those of each text end.

    A text with an odd number of them counts as empty.
    """
    numbers, ends = numbers_in(texts)
    counts = np.diff(ends)
    odd = counts % 2 == 1
    kept = np.repeat(~odd, counts)
    pairs = numbers[kept].reshape(-1, 2) & 0xFFFFFFFF
    return pairs, np.concatenate([[0], np.cumsum(np.where(odd, 0, counts // 2))])
