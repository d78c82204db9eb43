"""Sessions of AMQP 0-10 that go on on another connection: a walk over sessions, in the order of time.

Its rows are partial results of `session_statistics`: commands that were outstanding when their connection ended, where
the session may have gone on, and answers on connections whose session had gone on from another one. So nothing of a
session that lives on one connection is brought together. A command is answered by the first answer after it, on another
connection, that names its id; ids are those on the wire, 32 bits.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from amqpscope.pipelines.amqp010.commands import (
    DELIVERY,
    KIND,
    NACK,
    NONE,
    OUTCOMES,
    PUBLISH,
    REQUEST,
    ROLL_BACK,
    outcome_of,
)  # fmt: skip
from amqpscope.pipelines.amqp010.sessions import WRAP
from amqpscope.pipelines.model.connection import CLIENT, SERVER
from amqpscope.pipelines.model.ends import COLUMNS
from amqpscope.pipelines.model.speaking import difference
from amqpscope.pipelines.model.walk import Rows, conform, schema

KEY = ("key",)
ORDER = ("key", "at_ns", "is_answer", "connection_id", "lower")
_OWN = (
    ("key", pa.int64()),
    ("at_ns", pa.int64()),
    ("is_answer", pa.bool_()),
    ("from_side", pa.int64()),
    ("lower", pa.int64()),
    ("upper", pa.int64()),
)


class _Table(NamedTuple):
    """A table whose rows are joined."""

    sent: str  # prefixes of the columns of both ends
    answer: str
    kind: int  # what its rows stand for
    sides: tuple[int, ...]  # whose commands these are
    further: tuple[str, ...]  # columns that come from an answer, besides those of its end and the outcome

    @property
    def answered(self) -> tuple[str, ...]:
        """Columns that come from an answer."""
        return *(f"{self.answer}_{name}" for name in COLUMNS), "outcome", *self.further


_REFUSAL = ("reply_code", "reply_text")
_TABLES = {
    "confirms": _Table("publish", "confirm", PUBLISH, (CLIENT,), _REFUSAL),
    "settlements": _Table("deliver", "settle", DELIVERY, (SERVER,), ("requeue",)),
    "rpcs": _Table("request", "response", REQUEST, (SERVER, CLIENT), ("response", *_REFUSAL)),
    "commands": _Table("sent", "answer", REQUEST, (SERVER, CLIENT), _REFUSAL),
}
JOINED = {name: f"{name}_of_sessions" for name in _TABLES}
"""Names of the partial results, by table."""
_OUTCOME = np.array([[outcome_of(role, kind) for kind in range(KIND + 1)] for role in range(ROLL_BACK + 1)])


def schema_of(table: str) -> pa.Schema:
    """Return the schema of the partial results for a table: its own columns, and what joins them."""
    return pa.schema([*(pa.field(*each) for each in _OWN), *schema(table)])


def parted(table: str, rows: pa.Table, sessions: Any, numbers: pa.ChunkedArray) -> Iterator[Rows]:
    """Yield rows of a table, and as partial results those whose session may go on on another connection.

    Args:
        table: its name.
        rows: its rows.
        sessions: int64, digest of each row's session; 0 where it does not go on.
        numbers: ids of the commands.
    """
    goes_on = sessions != 0
    if not goes_on.any():
        yield table, rows
        return
    yield table, rows.filter(pa.array(~goes_on))
    kept = pa.array(goes_on)
    some = rows.filter(kept)
    on_wire = numbers.filter(kept).to_numpy() & (WRAP - 1)
    sent, sides = _TABLES[table].sent, _TABLES[table].sides
    side = np.full(len(some), sides[0]) if len(sides) == 1 else some["from_client"].cast(pa.int64())
    own = (sessions[goes_on], some[f"{sent}_ts_ns"].fill_null(0), False, side, on_wire, on_wire)
    yield JOINED[table], _with(table, own, some)


def answers(
    tables: Iterable[str], reported: Mapping[str, Any], frames: Mapping[str, pa.ChunkedArray]
) -> Iterator[Rows]:
    """Yield answers as partial results.

    Args:
        tables: those whose rows they may answer.
        reported: columns of `commands.Reported`.
        frames: of the frames that they are: `connection_id`, `method`, `description`, `ends.COLUMNS`; also `text`, if
            refusals have it.
    """
    for table in tables:
        to = _TABLES[table]
        outcome = _OUTCOME[reported["ROLE"], to.kind]
        mine = np.flatnonzero((outcome != NONE) & np.isin(reported["SIDE"], to.sides))
        if not len(mine):
            continue
        of = {name: column.take(pa.array(mine)) for name, column in frames.items()}
        some = {name: column[mine] for name, column in reported.items()}
        refused = pa.array(outcome[mine] >= NACK)
        texts = [of[name] for name in ("text", "description") if name in of]
        columns: dict[str, Any] = {
            **{f"{to.answer}_{name}": of[name] for name in COLUMNS},
            "connection_id": of["connection_id"],
            "outcome": pa.array(OUTCOMES, pa.string()).take(pa.array(outcome[mine])),
            "reply_code": pc.if_else(refused, pa.array(some["CODE"], mask=some["CODE"] < 0), None),
            "reply_text": pc.if_else(refused, pc.coalesce(*texts), None),
            "response": of["method"],
            "requeue": pa.array(outcome[mine] == NACK, mask=outcome[mine] < NACK),
        }
        columns = {name: value for name, value in columns.items() if name in (*to.answered, "connection_id")}
        own = (some["SESSION"], of["ts_ns"].fill_null(0), True, some["SIDE"], some["LOWER"], some["UPPER"])
        yield JOINED[table], _with(table, own, conform(table, columns, len(mine)))


def _with(table: str, own: tuple[Any, ...], rows: pa.Table) -> pa.Table:
    """Return rows with the columns that join them."""
    columns = [pa.repeat(pa.scalar(each), len(rows)) if isinstance(each, bool) else each for each in own]
    return pa.table([*columns, *rows.columns], schema=schema_of(table))


class Joins:
    """Writes rows of a table whose session may have gone on, with the answer of another connection if there is one.

    Args:
        table: one of JOINED.
    """

    def __init__(self, table: str) -> None:
        self.table = table
        self._held: list[pa.Table] = []
        """Rows of the last session."""

    def feed(self, rows: pa.Table) -> Iterator[Rows]:
        """Walk over rows sorted by ORDER."""
        if not len(rows):
            return
        last = pc.equal(rows["key"], rows["key"][-1])
        first = pc.index(last, True).as_py()
        same = bool(self._held) and self._held[-1]["key"][-1] == rows["key"][-1]
        if first > 0 or not same:
            yield from self._joined([*self._held, rows.slice(0, first)])
            self._held = []
        self._held.append(rows.slice(first))

    def finish(self) -> Iterator[Rows]:
        """Yield the rows of the last session."""
        yield from self._joined(self._held)
        self._held = []

    def _joined(self, parts: list[pa.Table]) -> Iterator[Rows]:
        """Yield the commands of these rows, all those of some sessions."""
        if not parts:
            return
        rows = pa.concat_tables(parts).combine_chunks()
        is_answer = rows["is_answer"].to_numpy()
        commands = np.flatnonzero(~is_answer)
        if not len(commands):
            return
        session = rows["key"].to_numpy()
        both = np.intersect1d(session[is_answer], session[commands])
        answer = np.full(len(rows), -1)
        if len(both):
            _pair(rows, np.flatnonzero(np.isin(session, both)), answer)
        yield self.table, self._answered(rows, commands, answer[commands])

    def _answered(self, rows: pa.Table, commands: Any, answer: Any) -> pa.Table:
        found = rows.select(schema(self.table).names).take(pa.array(commands))
        answered = answer >= 0
        if not answered.any():
            return found
        there, of = pa.array(answered), _TABLES[self.table]
        answers = rows.select(found.column_names).take(pa.array(answer, mask=~answered))
        columns = {name: found[name] for name in found.column_names}
        columns |= {name: pc.if_else(there, answers[name], columns[name]) for name in of.answered}
        columns |= {name: pc.if_else(there, None, columns[name]) for name in ("ended_by", "end_ts_ns")}
        columns["latency_ns"] = difference(columns[f"{of.answer}_ts_ns"], columns[f"{of.sent}_ts_ns"])
        if "multiple" in columns:
            several = np.bincount(answer[answered], minlength=len(rows))[np.where(answered, answer, 0)] > 1
            columns["multiple"] = pa.array(several, mask=~answered)
        return conform(self.table, columns, len(found))


def _pair(rows: pa.Table, some: Any, answer: Any) -> None:
    """Write the row of the answer of each command of these rows, which are sorted by ORDER."""
    names = ("key", "from_side", "connection_id", "is_answer", "lower", "upper")
    outstanding: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
    columns = rows.select(names).take(pa.array(some)).to_pydict()
    for row, session, side, connection, is_answer, lower, upper in zip(
        some.tolist(), *(columns[name] for name in names), strict=True
    ):
        waiting = outstanding.setdefault((session, side), [])
        if not is_answer:
            waiting.insert(bisect_left(waiting, (lower,)), (lower, row, connection))
            continue
        for low, high in [(lower, upper)] if lower <= upper else [(0, upper), (lower, WRAP - 1)]:
            first, end = bisect_left(waiting, (low,)), bisect_left(waiting, (high + 1,))
            own = [each for each in waiting[first:end] if each[2] == connection]
            for _, command, _ in (each for each in waiting[first:end] if each[2] != connection):
                answer[command] = row
            waiting[first:end] = own
