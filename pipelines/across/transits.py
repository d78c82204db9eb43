"""Transits: deliveries and the publishes that they came from, on whichever connection. A walk over keys (`keys`).

The messages with the same key are a group. A delivery came from the one publish of its group that is in the window
before it. If there are several, the kinds of keys after the group's own decide: the one publish of the group with the
delivery's trace, else the one with its content. For that, each sub-key (the key itself, key and trace, key and content)
stores its latest publish and the time of the one before:

    sub-key       latest publish      the one before      a delivery
    unknown       -                   -                   asks the next kind; is ambiguous where the sub-key may be one
                                                          that was not stored for lack of room
    known         out of the window   -                   asks the next kind
    known         in the window       out of the window   came from the latest publish
    known         in the window       in the window       asks the next kind

A delivery is ambiguous if no kind is left; and if only its content is that of a publish, while an equal one may have
been lost in the window (`lost`), or lie in another virtual host, as that of one of both connections is not known. A
correlation id makes contents differ enough.

Where connections have several homes (`homes`), each sub-key is stored for its home and for all of them (scopes): a
delivery asks for publishes of its home and of unknown ones; it asks for all where its own home is unknown, or where
headers say that it comes from afar. It is ambiguous too if the one publish has another broker, another body, or another
exchange or routing key, and no header says why: a client that was not captured may publish with the same id.

A delivery that is repeated has its attempt: as the broker counts it (quorum queues), else one more than was seen of its
publish, divided by the queues that first deliveries show.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from amqpscope.dissector.kernels.kernel import call, worthwhile
from amqpscope.pipelines.across.consumed import Queues
from amqpscope.pipelines.across.homes import Homes
from amqpscope.pipelines.across.keys import COLUMNS, CONTENT, KINDS, NO_TIME, keyed, ordered
from amqpscope.pipelines.across.lost import Lost, places
from amqpscope.pipelines.across.matching import FOUND, MATCH, NEVER, ROW, SLOT, STATE, fill, match
from amqpscope.pipelines.model.store import pack, unpack
from amqpscope.pipelines.model.walk import Rows, conform, known

HOUR_NS = 3_600_000_000_000
SUB_KEYS = 1_000_000
"""Most sub-keys that are stored of one key."""
MATCHED_BY = ("message-id", "trace", "content", "ambiguous")
LONGEST_NS = 1 << 61
"""The longest window; NO_TIME and NEVER are further away from all times, and from each other."""
_SLOTS = 1024


def transits(messages: pa.Table, window_ns: int = HOUR_NS, compiled: bool | None = None) -> pa.Table:
    """Return one row per delivery, pushed or got, with the publish it came from.

    Args:
        messages: rows of `messages` with COLUMNS, in any order.
        window_ns: how far before a delivery to look for its publish (ns).
        compiled: whether to run compiled; None leaves it to the size of the columns.

    Returns:
        The table `transits`.
    """
    if compiled is None:
        compiled = worthwhile(messages.select(COLUMNS).nbytes)
    walk = Transits(window_ns, compiled=compiled)
    ((_, found),) = walk.feed(ordered(keyed(messages, compiled)))
    return found


class Transits:
    """The walk over rows of `keyed` in ORDER.

    Attributes:
        overflowed: publishes of which not all sub-keys were stored, because the window had too many; deliveries that
            need these are ambiguous.
    """

    tables = ("transits",)

    def __init__(
        self, window_ns: int = HOUR_NS, limit: int = SUB_KEYS, compiled: bool = False, lost: Lost | None = None,
        homes: Homes | None = None, queues: Queues | None = None,
    ) -> None:  # fmt: skip
        """Create the walk.

        Args:
            window_ns: how far before a delivery to look for its publish (ns).
            limit: sub-keys of a key.
            compiled: whether to run compiled.
            lost: where publishes may be missing; None for nowhere.
            homes: where connections are; None where nothing is known of them.
            queues: what deliveries come from; None where nothing is known of it.

        Raises:
            ValueError: the window is negative, or the limit is not positive.
        """
        if window_ns < 0 or limit < 1:
            raise ValueError("the window and the limit must be positive")
        self.compiled = compiled
        self.lost, self.queues, self.known_homes = lost, queues, homes
        self.homes = homes if homes and homes.several else None
        self.state = np.zeros(STATE.WIDTH, np.int64)
        self.state[STATE.WINDOW] = min(window_ns, LONGEST_NS)
        self.state[STATE.LIMIT] = limit
        self.state[STATE.SCOPES] = 2 if self.homes else 1
        self._clear()

    def _clear(self) -> None:
        for column in (STATE.GROUP, STATE.KEY, STATE.COUNT, STATE.NEW, STATE.OVERFLOWED):
            self.state[column] = 0
        self.slots = np.zeros((_SLOTS, SLOT.WIDTH), np.int64)
        self.captures: dict[str, int] = {}

    @property
    def overflowed(self) -> int:
        """See the class."""
        return int(self.state[STATE.OVERFLOWED])

    def feed(self, rows: pa.Table) -> Iterator[Rows]:
        """Walk over a batch, and yield a row for each of its deliveries."""
        matrix = self._matrix(rows)
        is_delivery = rows["is_delivery"]
        matches = np.full((pc.sum(is_delivery).as_py() or 0, MATCH.WIDTH), -1, np.int64)
        self.state[STATE.WRITTEN] = 0
        if len(self.slots) > 8 * max(_SLOTS, int(self.state[STATE.COUNT])):
            self._fill(self._open(NEVER))  # of a group that was large
        at = 0
        while (at := call(match, self.compiled, matrix, at, self.slots, self.state, matches)) < len(matrix):
            self._make_room(int(matrix[at, ROW.TS]))
        deliveries = rows.filter(is_delivery)
        self._doubt(deliveries, matches)
        yield "transits", self._rows(deliveries, matches)

    def finish(self) -> Iterator[Rows]:
        """End the last group, and reset the walk except for `overflowed`. No row is outstanding."""
        overflowed = self.overflowed
        self._clear()
        self.state[STATE.OVERFLOWED] = overflowed
        yield from ()

    def take_out(self) -> bytes:
        """Return the state as versioned bytes, and reset the walk."""
        parts = {"state": self.state, "slots": self._open(NEVER), "captures": list(self.captures)}
        state = pack("transits", 5, parts)
        self._clear()
        return state

    def put_back(self, state: bytes) -> None:
        """Restore the state that `take_out` returned; window and limit are those of that walk.

        Raises:
            ValueError: the bytes are the state of something else.
        """
        parts = unpack("transits", 5, state)
        self.state = parts["state"]
        self.captures = {name: number for number, name in enumerate(parts["captures"])}
        self._fill(parts["slots"])

    def _open(self, since: int) -> Any:
        """Return the slots of the open group whose latest publish is not before a time."""
        found = (self.slots[:, SLOT.GROUP] == self.state[STATE.GROUP]) & (self.slots[:, SLOT.TS] >= since)
        return self.slots[found & (self.slots[:, SLOT.GROUP] > 0)]

    def _make_room(self, ts: int) -> None:
        """Make the table larger; at its limit, drop what is out of the window."""
        if self.state[STATE.COUNT] + KINDS * self.state[STATE.SCOPES] > self.state[STATE.LIMIT]:
            kept = self._open(max(ts - int(self.state[STATE.WINDOW]), NEVER))
            self.state[STATE.NEW] = 0
        else:
            kept = self._open(NEVER)
        self.state[STATE.COUNT] = len(kept)
        self._fill(kept)

    def _fill(self, kept: Any) -> None:
        size = _SLOTS
        while size < 2 * (len(kept) + KINDS * self.state[STATE.SCOPES]):
            size *= 2
        self.slots = np.zeros((size, SLOT.WIDTH), np.int64)
        call(fill, self.compiled, self.slots, kept)

    def _matrix(self, rows: pa.Table) -> Any:
        """Return rows as a matrix, columns as ROW."""
        columns: dict[int, Any] = {column: rows[name] for column, name in _NUMBERS.items()}
        columns[ROW.CAPTURE] = self._numbers(rows["capture"])
        columns[ROW.REDELIVERED] = rows["redelivered"].fill_null(False)
        matrix = np.zeros((ROW.WIDTH, len(rows)), np.int64).T  # filled by columns
        if self.homes:
            found = self.homes.doubted(rows["connection_id"].fill_null(-1).to_numpy())
            matrix[:, ROW.HOME], matrix[:, ROW.BROKER] = found
        for column, values in columns.items():
            if values.null_count:
                values = values.fill_null(-1)  # noqa: PLW2901
            matrix[:, column] = values.to_numpy()
        return matrix

    def _numbers(self, names: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return the numbers of captures, null for null."""
        encoded = names.combine_chunks().dictionary_encode()
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.combine_chunks()
        found = [self.captures.setdefault(name, len(self.captures)) for name in encoded.dictionary.to_pylist()]
        return pa.chunked_array([pa.array(found, pa.int64()).take(encoded.indices)])

    def _doubt(self, deliveries: pa.Table, matches: Any) -> None:
        """Remove matches by content where an equal publish may have been lost, or lie in another virtual host."""
        by_content = (matches[:, MATCH.KIND] == CONTENT) & ~deliveries["correlated"].to_numpy()
        if not by_content.any():
            return
        rows = deliveries.filter(pa.array(by_content))
        may_be_others = np.zeros(len(rows), bool)
        if self.lost:
            until = rows["ts_ns"].to_numpy()
            since = until - self.state[STATE.WINDOW]
            may_be_others |= self.lost.may_lack(places(rows, self.compiled), since, until)
        if self.known_homes:
            ends = rows["connection_id"].fill_null(-1).to_numpy(), matches[by_content, MATCH.CONNECTION]
            may_be_others |= self.known_homes.half_known(*ends)
        doubted = np.flatnonzero(by_content)[may_be_others]
        matches[doubted, MATCH.KIND] = KINDS
        matches[doubted, : FOUND.WIDTH] = -1

    def _rows(self, deliveries: pa.Table, matches: Any) -> pa.Table:
        found = matches[:, MATCH.KIND] < KINDS
        published, delivered = matches[:, MATCH.TS], deliveries["ts_ns"].to_numpy()
        finished = (matches[:, MATCH.UNFINISHED] == 0) & ~deliveries["unfinished"].to_numpy()
        with np.errstate(over="ignore"):
            latency = delivered - published
        timed = found & finished & (published != NO_TIME) & (latency >= 0)  # a delivery is not before its publish
        captures = pa.array(list(self.captures), pa.string())
        columns = {
            "publish_connection_id": known(matches[:, MATCH.CONNECTION]),
            "publish_frame_no": known(matches[:, MATCH.FRAME]),
            "publish_packet": known(matches[:, MATCH.PACKET]),
            "publish_capture": captures.take(known(matches[:, MATCH.CAPTURE])),
            "publish_ts_ns": pa.array(published, mask=~found | (published == NO_TIME)),
            **{f"deliver_{name}": deliveries[name] for name in ("connection_id", "frame_no", "packet", "capture")},
            "deliver_ts_ns": known(delivered, NO_TIME),
            "exchange": deliveries["exchange"],
            "routing_key": deliveries["routing_key"],
            "message_id": deliveries["message_id"],
            "redelivered": deliveries["redelivered"],
            "queue": self.queues.of(*(deliveries[each].to_numpy() for each in FROM)) if self.queues else None,
            "attempt": pa.array(matches[:, MATCH.ATTEMPT].astype(np.int32)),
            "latency_ns": pa.array(latency, mask=~timed),
            "matched_by": pa.array(MATCHED_BY).take(pa.array(matches[:, MATCH.KIND])),
        }
        return conform("transits", columns, len(matches))


FROM = ("consumer", "frame_no")
"""What `Queues.of` takes."""
_NUMBERS = {
    ROW.KEY: "key", ROW.KIND: "key_kind", ROW.TRACE: "trace", ROW.CONTENT: "content", ROW.IS_DELIVERY: "is_delivery",
    ROW.TS: "ts_ns", ROW.UNFINISHED: "unfinished", ROW.CONNECTION: "connection_id", ROW.FRAME: "frame_no",
    ROW.PACKET: "packet", ROW.PLACE: "place", ROW.BODY: "body", ROW.MOVED: "moved", ROW.RETURNS: "returns",
}  # fmt: skip
