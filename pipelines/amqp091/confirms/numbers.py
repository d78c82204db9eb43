"""Numbers of publishes after gaps, or where the capture begins in the middle, derived from the confirms.

This is a stage before walks that pair publishes with their confirms: it emits the same events with the numbers filled
in (`publish_seq` and `number` of `messages`), and how each is known (`numbered_by`: `counted`, `proven`, null for
none). A publish that expects a confirm of an unknown number has no `publish_seq`, and the `number` EXPECTS. The rules
are in `numbering_rules`, the kernels in `numbering`.

The numbers are known at the end of the connection. Its events pass straight through until a publish has no certain
number; from then on they are held (`deferred_events`), and a row for each publish, confirm and end is noted
(`numbering_log`). While events pass, the last rows are noted as well, because what a client sends after a gap is read
after its answers. A connection that begins and ends in one batch is never held.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from amqpscope import spec
from amqpscope.pipelines.amqp091.confirms.deferred_events import Held
from amqpscope.pipelines.amqp091.confirms.numbering_log import KEEP, Noted, derive_whole
from amqpscope.pipelines.amqp091.confirms.numbering_rows import SWALLOWS, is_publish
from amqpscope.pipelines.amqp091.confirms.numbering_rules import COUNTED, EXPECTS, TURN, UNSURE
from amqpscope.pipelines.amqp091.frames import FRAMES
from amqpscope.pipelines.model.connection import CLIENT
from amqpscope.pipelines.model.events import ANOMALIES, CONNECTIONS, EV, MESSAGES, Events
from amqpscope.pipelines.model.store import SPILL, pack, unpack
from amqpscope.pipelines.model.walk import Needs

COUNTER = "x-dotnet-pub-seq-no"
"""The header with the number of the publish: RabbitMQ's .NET client from 7.0 on. Other headers with a growing number
belong to applications."""
VERSION = 5

_BY = pa.array(["", "counted", "proven"])
_HEADER = rf'[{{,]\s*"{COUNTER}"\s*:\s*"?(?P<given>\d{{1,18}})"?\s*[,}}]'
_METHODS = tuple(
    method.full_name
    for method in spec.load("amqp-0-9-1").methods
    if method.full_name.partition(".")[0] in ("connection", "channel", "confirm", "tx")
    or method.full_name in ("basic.ack", "basic.nack")
)
_KINDS = ("publish", "return")


class Numbering:
    """Fills in the numbers of publishes that have no certain one.

    Of a held connection only what walks over publishes need is emitted: messages of `_KINDS`, frames of `_METHODS`,
    connections and anomalies; of other frames the last before each of those (`Held`).

    Args:
        compiled: whether kernels are compiled.
        room: bytes of rows in memory; more than that go to files.
    """

    needs: Mapping[int, Needs] = {
        CONNECTIONS: Needs(),
        ANOMALIES: Needs(),
        FRAMES: Needs((), _METHODS),
        MESSAGES: Needs(("publish_seq_unsure", "headers"), _KINDS),
    }

    def __init__(self, compiled: bool = False, room: int = SPILL) -> None:
        self.compiled = compiled
        self.room = room
        self._swallowed = -1
        self._begin(-1)

    def _begin(self, identity: int) -> None:
        self._identity = identity
        self._is_held = False
        self._noted = Noted(self.compiled)
        self._held = Held(_METHODS, _KINDS, self.room)

    def feed(self, events: Events) -> Iterator[Events]:
        """Take a batch; yield events that are final, of this batch and of earlier ones, in order."""
        total = len(events)
        if not total:
            return
        identity = events.matrix[:, EV.CONNECTION]
        unsure = events.ints("publish_seq_unsure", 0) == 1
        if len(doubtful := self._after_swallowing(events.matrix)):
            events = _numbered(events, doubtful, np.full(len(doubtful), -1), np.full(len(doubtful), COUNTED))
            unsure[doubtful] = True
        goes_on = _length(identity, self._identity)
        last = total - _length(identity[::-1], int(identity[-1]))
        if not self._is_held and not unsure.any():
            if last >= goes_on and goes_on < total:
                self._begin(int(identity[-1]))
            self._note(events.slice(last, total - last))
            yield events
            return
        if goes_on:
            yield from self._go_on(events.slice(0, goes_on), unsure[:goes_on])
        if goes_on == total:
            return
        yield from self._over()
        if last > goes_on:
            yield self._whole(events.slice(goes_on, last - goes_on), unsure[goes_on:last])
        self._begin(int(identity[-1]))
        yield from self._go_on(events.slice(last, total - last), unsure[last:])

    def finish(self) -> Iterator[Events]:
        """Yield the held events, and reset the stage."""
        yield from self._over()
        self._begin(-1)

    def take_out(self) -> bytes:
        """Return the state of the open connection as versioned bytes, and reset the stage."""
        parts: dict[str, Any] = {"noted": self._noted.parts(), "held": self._held.parts()}
        parts["open"] = [self._identity, self._is_held, self._swallowed]
        state = pack("numbers", VERSION, parts)
        self._begin(-1)
        return state

    def put_back(self, state: bytes) -> None:
        """Restore the state that `take_out` returned.

        Raises:
            ValueError: the bytes are the state of something else.
        """
        parts = unpack("numbers", VERSION, state)
        self._begin(parts["open"][0])
        self._is_held, self._swallowed = parts["open"][1:]
        self._noted.put_back(parts["noted"])
        self._held.put_back(parts["held"])

    def _after_swallowing(self, matrix: Any) -> Any:
        """Return the positions of publishes after a frame of their client in which others may lie."""
        swallows = (matrix[:, EV.WHAT] == SWALLOWS) & (matrix[:, EV.FROM_CLIENT] == CLIENT)
        last = np.maximum.accumulate(np.where(swallows, np.arange(1, len(matrix) + 1), 0))
        connections = np.append(self._swallowed, matrix[:, EV.CONNECTION])[last]
        self._swallowed = int(connections[-1])
        return np.flatnonzero((connections == matrix[:, EV.CONNECTION]) & is_publish(matrix))

    def _note(self, events: Events) -> None:
        """Note events of the open connection that pass through."""
        self._noted.add(events.matrix, np.zeros(len(events), bool))
        if self._noted.count > 2 * KEEP:
            self._noted.fold(self._noted.count - KEEP)

    def _go_on(self, events: Events, unsure: Any) -> Iterator[Events]:
        """Take events of the open connection."""
        if not self._is_held and not unsure.any():
            self._note(events)
            yield events
            return
        before = self._noted.count
        self._noted.add(events.matrix, unsure, _given(events, unsure))
        if not self._is_held:
            self._is_held = True
            surplus = max(self._noted.first_unsure() - KEEP, 0)
            self._noted.fold(surplus)
            before = max(before - surplus, 0)
        self._held.add(events, (before, self._noted.count))

    def _over(self) -> Iterator[Events]:
        """End the open connection."""
        if not self._is_held:
            return
        rows = self._noted.derive()
        for events, (first, end) in self._held.blocks():
            at = np.flatnonzero(is_publish(events.matrix))
            mine = rows[first:end]
            mine = mine[mine[:, TURN.KIND] <= UNSURE]
            at = at[len(at) - len(mine) :]  # the rows of others before them are forgotten
            yield _numbered(events, at, mine[:, TURN.NUMBER], mine[:, TURN.GIVEN])
            self._noted.release(first, end)

    def _whole(self, events: Events, unsure: Any) -> Events:
        """Number the publishes of connections that lie in this batch."""
        if not unsure.any():
            return events
        identity = events.matrix[:, EV.CONNECTION]
        mine = np.flatnonzero(np.isin(identity, np.unique(identity[unsure])))
        given = _given(events, unsure)
        at, numbers, by = derive_whole(
            events.matrix[mine], unsure[mine], None if given is None else given[mine], self.compiled
        )
        return _numbered(events, mine[at], numbers, by)


def _length(values: Any, value: int) -> int:
    """Return the number of leading values that equal this one."""
    other = values != value
    return int(np.argmax(other)) if other.any() else len(values)


def _numbered(events: Events, at: Any, numbers: Any, by: Any) -> Events:
    """Return the events with the numbers of some publishes.

    Args:
        events: a batch.
        at: positions of publishes.
        numbers: of each; EXPECTS, or -1 for none.
        by: how it is known; 0 where the number stays as it is.
    """
    if MESSAGES not in events.tables:
        return events
    rows = events.rows_of(MESSAGES)
    derived = by > 0
    place = np.searchsorted(np.flatnonzero(events.source == MESSAGES), at[derived])
    for name in ("number", "publish_seq"):
        column = rows[name].combine_chunks()
        values = column.fill_null(-1).to_numpy().copy()
        values[place] = numbers[derived]
        known = column.is_valid().to_numpy(zero_copy_only=False).copy()
        known[place] = numbers[derived] >= (EXPECTS if name == "number" else 0)
        known[place] &= numbers[derived] != -1
        rows = rows.set_column(rows.column_names.index(name), name, pa.array(values, mask=~known))
    how = np.zeros(len(rows), np.int64)
    how[place] = np.where(numbers[derived] >= 0, by[derived], 0)
    place_of_column = rows.column_names.index("numbered_by")
    made = events.with_rows(MESSAGES, rows.set_column(place_of_column, "numbered_by", _by(rows, how)))
    matrix = events.matrix.copy()
    matrix[at[derived], EV.NUMBER] = numbers[derived]
    made.__dict__["matrix"] = matrix
    return made


def _by(rows: pa.Table, how: Any) -> Any:
    """Return the column `numbered_by`: how the numbers are known, 0 for `counted` where there is one."""
    counted = rows["publish_seq"].combine_chunks().is_valid().to_numpy(zero_copy_only=False)
    how = np.where((how == 0) & counted, COUNTED, how)
    return _BY.take(pa.array(how, mask=how == 0))


def _given(events: Events, unsure: Any) -> Any:
    """Return the numbers that headers give to publishes without a certain one.

    Returns:
        int64 per event, -1 for none; None for none at all.
    """
    at = np.flatnonzero(unsure)
    if not len(at) or "headers" not in events.tables[MESSAGES].column_names:
        return None
    headers = events.take(MESSAGES, at, ["headers"])["headers"].combine_chunks()
    some = np.flatnonzero(pc.fill_null(pc.match_substring(headers, COUNTER), False).to_numpy(zero_copy_only=False))
    if not len(some):
        return None
    headers = headers.take(pa.array(some))
    found = pc.struct_field(pc.extract_regex(headers, _HEADER), "given").cast(pa.int64()).fill_null(-1)
    values = found.to_numpy(zero_copy_only=False).copy()
    tables = pc.count_substring(headers, "{").to_numpy(zero_copy_only=False)
    for place in np.flatnonzero((values < 0) | (tables > 1)).tolist():
        values[place] = _parsed(headers[place].as_py())
    result = np.full(len(events), -1, np.int64)
    result[at[some]] = values
    return result


def _parsed(headers: str) -> int:
    """Return the number that headers (JSON) give, -1 for none."""
    with suppress(ValueError, AttributeError):
        given = json.loads(headers).get(COUNTER)
        if not isinstance(given, bool | float) and given is not None and 0 < int(given) < 1 << 63:
            return int(given)
    return -1
