"""Publishes that a capture lacks: where they may have been sent to, and when.

A publish that was lost may equal one that was captured, so equal contents alone do not prove that a delivery came from
the latter. It is possible where a connection publishes to the same exchange with the same routing key (a place), and
bytes of its client are missing at a time when the delivery's publish may have been sent.

A walk over connections yields which places each connection with gaps publishes to, and between which times bytes of its
client are missing, as partial results (LOST); and of each connection where its home is (`homes`). Other walks add the
queues of its consumers (`consumed`). Of those of all connections `Lost`, `Homes` and `Queues` are made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from amqpscope import spec
from amqpscope.dissector.kernels.arrays import Array, Ints
from amqpscope.dissector.kernels.kernel import call, kernel
from amqpscope.pipelines.across import homes
from amqpscope.pipelines.model.connection import CLIENT, FRAME_CUT, GAP_WORDS, MAY_BE_ANOTHER
from amqpscope.pipelines.model.digests import combined
from amqpscope.pipelines.model.events import ANOMALIES, CONNECTIONS, EV, MESSAGES, Events, kinds, names_of, what
from amqpscope.pipelines.model.remembered import Remembers
from amqpscope.pipelines.model.walk import Needs, Rows, facts

LOST = "lost publishes"
"""Name of the partial results."""
SCHEMA = pa.schema(
    [
        *((name, pa.int64()) for name in ("connection_id", "place", "since_ns", "until_ns", *homes.HOME)),
        *(("consumer", pa.int64()), ("since_frame", pa.int64()), ("queue", pa.string())),
    ]
)
"""Of these: a place alone, the times of a gap alone, a home alone, or what deliveries come from (`consumed`) alone."""
EVER = -(1 << 62)
"""A time before all others."""
PLACE = ("exchange", "routing_key")
_PUBLISHES = kinds("publish")
_LACKS = sorted({*GAP_WORDS, *MAY_BE_ANOTHER} - {FRAME_CUT})
_GAPS = tuple(code for code in spec.anomalies() if what(ANOMALIES, code) in _LACKS)


def places(rows: pa.Table, compiled: bool | None = None) -> Any:
    """Return digests (int64) of exchange and routing key; 0 where both are null, as in streams."""
    return combined([rows[name] for name in PLACE], compiled)


class LostPublishes(Remembers):
    """The walk over connections that yields LOST, of connections with gaps alone.

    A gap begins at the last publish before it, else with the connection: the walk remembers that time, and until there
    is a gap the places.
    """

    tables = ()
    partial = (LOST,)
    needs: ClassVar[Mapping[int, Needs]] = {
        CONNECTIONS: Needs(homes.COLUMNS), ANOMALIES: Needs((), _GAPS),
        MESSAGES: Needs(PLACE, tuple(names_of(_PUBLISHES))),
    }  # fmt: skip

    STATE = ("_last", "_has_gap", "_places")

    def forget(self) -> None:
        """See `Remembers`."""
        self._last = (0, EVER)
        self._has_gap = False
        self._places = np.zeros(0, np.int64)

    def feed(self, events: Events) -> Iterator[Rows]:
        """Walk over a batch; a place may come again with the next one."""
        matrix = events.matrix
        if not len(matrix):
            return
        publishes = events.among(_PUBLISHES)
        lacking = np.flatnonzero(events.among(_LACKS) & (matrix[:, EV.FROM_CLIENT] == CLIENT))
        begins = (events.source == CONNECTIONS) & (matrix[:, EV.CONNECTION] != self._last[0])
        yield from self._homes(events, np.flatnonzero(events.source == CONNECTIONS))
        marks = np.flatnonzero(publishes | begins)
        connections = np.append(self._last[0], matrix[marks, EV.CONNECTION])
        times = np.append(self._last[1], matrix[marks, np.where(begins[marks], EV.FIRST_TS, EV.TS)])
        whose, place = self._published(events, np.flatnonzero(publishes))
        with_gaps = matrix[lacking, EV.CONNECTION]
        if self._has_gap:
            with_gaps = np.append(with_gaps, self._last[0])
        is_lost = np.isin(whose, with_gaps)
        if is_lost.any():
            yield LOST, facts(SCHEMA, whose[is_lost], place=place[is_lost])
        if len(lacking):
            before = np.searchsorted(marks, lacking)
            of = matrix[lacking, EV.CONNECTION]
            since = np.where(connections[before] == of, times[before], EVER)
            yield LOST, facts(SCHEMA, of, since_ns=since, until_ns=matrix[lacking, EV.TS])
        self._last = int(connections[-1]), int(times[-1])
        self._has_gap = bool(np.isin(self._last[0], with_gaps))
        self._places = place[~is_lost & (whose == self._last[0])]

    def _homes(self, events: Events, at: Any) -> Iterator[Rows]:
        """Yield where connections (their positions) are."""
        if len(at):
            found = homes.digests(events.take(CONNECTIONS, at, homes.COLUMNS), self.compiled)
            yield LOST, facts(SCHEMA, events.matrix[at, EV.CONNECTION], **dict(zip(homes.HOME, found, strict=True)))

    def _published(self, events: Events, published: Any) -> tuple[Any, Any]:
        """Return connections and places, each pair once: those of these events, and what is remembered."""
        whose, place = np.full(len(self._places), self._last[0]), self._places
        if len(published):
            rows = events.tables[MESSAGES].select(PLACE).take(pa.array(events.row[published]))
            whose = np.append(whose, events.matrix[published, EV.CONNECTION])
            place = np.append(place, places(rows, self.compiled))
        first = np.unique(combined([whose, place]), return_index=True)[1]
        return whose[first], place[first]


def still_needed(rows: pa.Table, since_ns: int, going_on: pa.Array, keyed: pa.Array) -> pa.Table:
    """Return the rows of LOST that later deliveries may need, each of them once.

    Args:
        rows: of SCHEMA.
        since_ns: gaps that ended before this time are over.
        going_on: connections (int64) that may still have gaps.
        keyed: connections (int64) of messages that are still to be matched, or that others may be matched with.
    """
    rows = rows.group_by(SCHEMA.names).aggregate([])
    kept = pc.fill_null(pc.greater_equal(rows["until_ns"], since_ns), False)
    publishing = pa.chunked_array([*rows.filter(kept)["connection_id"].chunks, going_on], pa.int64()).unique()
    speaking = pa.chunked_array([going_on, keyed], pa.int64()).unique()
    for name, needed in (("place", publishing), ("server", speaking), ("consumer", speaking)):
        kept = pc.or_(kept, pc.and_(pc.is_valid(rows[name]), pc.is_in(rows["connection_id"], value_set=needed)))
    return rows.filter(kept)


class Lost:
    """What LOST of all connections says.

    Args:
        rows: of SCHEMA.
        compiled: whether kernels run compiled.
    """

    def __init__(self, rows: pa.Table, compiled: bool = False) -> None:
        self.compiled = compiled
        gaps = rows.filter(pc.is_valid(rows["until_ns"]))
        whose, of = np.unique(gaps["connection_id"].to_numpy(), return_inverse=True)
        since, until = gaps["since_ns"].to_numpy(), gaps["until_ns"].to_numpy()
        order = np.lexsort((until, of))
        since = _earliest(of[order].tolist(), since[order].tolist())
        self._gaps = np.stack([of[order], until[order], since], 1)
        self._first = np.searchsorted(of[order], np.arange(len(whose) + 1))
        published = rows.filter(pc.and_(pc.is_valid(rows["place"]), pc.is_in(rows["connection_id"], pa.array(whose))))
        place, by = published["place"].to_numpy(), np.searchsorted(whose, published["connection_id"].to_numpy())
        order = np.argsort(place, kind="stable")
        self._places = np.stack([place[order], by[order]], 1)

    def __bool__(self) -> bool:
        """Return whether there are any gaps of connections that publish."""
        return bool(len(self._places))

    def may_lack(self, place: Any, since_ns: Any, until_ns: Any) -> Any:
        """Return where (bool) a publish to a place, sent between two times, may be missing (int64 each)."""
        found = np.zeros(len(place), np.uint8)
        asked = np.stack([place, since_ns, until_ns], 1)
        call(find_gaps, self.compiled, asked, self._places, self._first, self._gaps, found)
        return found.astype(bool)


def _earliest(of: list[int], since: list[int]) -> Ints:
    """Return the least time from each on, of the same connection."""
    for i in range(len(of) - 2, -1, -1):
        if of[i] == of[i + 1]:
            since[i] = min(since[i], since[i + 1])
    return np.array(since, np.int64)


@kernel
def find_gaps(asked: Array, places: Array, first: Array, gaps: Array, found: Array) -> None:
    """Set `found` where a gap of a connection that publishes to a place is not over before, nor begins after, a span.

    Args:
        asked: place, first and last time.
        places: place and number of a connection, by place.
        first: of each connection, its first row in `gaps`.
        gaps: number of the connection, end, and the earliest begin from there on; by connection and end.
        found: uint8 per row of `asked`.
    """
    for i in range(len(asked)):
        row = lowest(places, 0, asked[i, 0], 0, len(places))
        while row < len(places) and places[row, 0] == asked[i, 0] and found[i] == 0:
            who = places[row, 1]
            gap = lowest(gaps, 1, asked[i, 1], first[who], first[who + 1])
            if gap < first[who + 1] and gaps[gap, 2] <= asked[i, 2]:
                found[i] = 1
            row += 1


@kernel
def lowest(rows: Array, column: int, value: int, low: int, high: int) -> int:
    """Return the first of some rows, sorted by a column, that is not below a value."""
    while low < high:
        middle = (low + high) // 2
        if rows[middle, column] < value:
            low = middle + 1
        else:
            high = middle
    return low
