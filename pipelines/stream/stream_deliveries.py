"""Deliveries of streams: each delivered chunk, its age, and other frames that show how long its stream is.

How far a consumer was behind its stream is known only together with other connections to that broker: this walk yields
partial results (OFFSETS); `stream_lag` merges them and writes the table.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from amqpscope.dissector.kernels.arrays import Array, Ints
from amqpscope.dissector.kernels.kernel import call, kernel
from amqpscope.pipelines.model import connection as cn
from amqpscope.pipelines.model.connection import CLIENT, CONN, SERVER
from amqpscope.pipelines.model.credit import SUB
from amqpscope.pipelines.model.events import CONNECTIONS, EV, Events, what
from amqpscope.pipelines.model.rows import Retained
from amqpscope.pipelines.model.speaking import difference, matrix_of
from amqpscope.pipelines.model.stopped import DONE, NEEDS_OUTPUT_ROOM
from amqpscope.pipelines.model.store import declare, group, named, pack, unpack
from amqpscope.pipelines.model.walk import Needs, Rows, schema
from amqpscope.pipelines.stream import subscriptions as sb
from amqpscope.pipelines.stream.frames import STREAM_FRAMES
from amqpscope.pipelines.stream.streams import ASKED, OK, of_streams
from amqpscope.pipelines.stream.subscriptions import consumers

PARTIAL = "stream_offsets"
"""Name of the partial results."""
REACHED, DELIVERY, RENEWED, STORED = range(4)
"""Kinds of partial results: an offset that the stream has reached; a delivery, which also shows one; the stream was
deleted or created: its offsets begin again; records of one publish that the broker stored (`stream_confirms`)."""
OFFSETS = pa.schema(
    [
        *schema("stream_deliveries"),
        ("server_ip", pa.string()),
        ("reached", pa.int64()),
        ("kind", pa.int64()),
        ("tells_end", pa.bool_()),
        ("sent_ts_ns", pa.int64()),
    ]
)
"""Columns of partial results: those of `stream_deliveries`, the broker, the reached offset (or null), the kind, whether
a delivery says which chunk is the stream's last, and when records that were stored had been published."""
MILLISECOND = 1_000_000

_SUBSCRIBE, _DELIVER = what(STREAM_FRAMES, "subscribe"), what(STREAM_FRAMES, "deliver")
_STORE, _STATS = what(STREAM_FRAMES, "store-offset"), what(STREAM_FRAMES, "stream-stats")
_CREATE, _DELETE = what(STREAM_FRAMES, "create"), what(STREAM_FRAMES, "delete")


class More(NamedTuple):
    """Columns of `more`."""

    IDENTITY: int  # id of the event
    SUBSCRIPTION: int  # subscription_id; -1 for null
    CORRELATION: int  # -1 for null
    CODE: int  # response_code; -1 for null


class Output(NamedTuple):
    """Columns of `out`: a partial result."""

    EVENT: int  # id of the frame
    OF: int  # id of the frame that names the stream: subscribe, another request, or the same frame; -1: none
    CONNECTION: int  # id of the connection's row; -1: none
    KIND: int
    EPOCH: int  # of the subscription


class State(NamedTuple):
    """Columns of `state`."""

    AT: int
    OUT: int
    ROW: int  # id of the event of the connection's row; -1: none


MORE, OUT, ST = declare(More), declare(Output), declare(State)
ROOM = 1 << 16
"""Rows of `out`."""


@kernel
def walk(
    events: Array, more: Array, conn: Array, gaps: Array, subs: sb.Subscriptions, asked: Array, out: Array, state: Array
) -> int:
    """Walk over a batch from state[ST.AT] on; return why it stopped (DONE: at the end of the batch).

    Args:
        events: EV.
        more: MORE.
        conn: CONN.
        gaps: see `connection`.
        subs: see `subscriptions`.
        asked: requests by correlation id: connection, correlation id, command, id of the event.
        out: OUT.
        state: ST.
    """
    rows = subs[0]
    for i in range(state[ST.AT], len(events)):
        state[ST.AT] = i
        if state[ST.OUT] >= len(out):
            return NEEDS_OUTPUT_ROOM
        if events[i, EV.CONNECTION] != conn[CONN.ID]:
            sb.forget(subs)
            cn.open_connection(conn, events[i, EV.CONNECTION])
            state[ST.ROW] = -1
        cn.update_connection(conn, gaps, events, i, more[i, MORE.IDENTITY])
        word, side, response = events[i, EV.WHAT], events[i, EV.FROM_CLIENT], events[i, EV.RESPONSE]
        number, identity = more[i, MORE.SUBSCRIPTION], more[i, MORE.IDENTITY]
        if events[i, EV.SOURCE] == CONNECTIONS:
            state[ST.ROW] = identity
        elif word == _DELIVER and response == 0 and number >= 0:
            row = sb.row_of(subs, number)
            if sb.is_overdue(rows, row, conn):
                sb.grant(rows, row)
            note(out, state, identity, rows[row, SUB.EVENT], DELIVERY, rows[row, SUB.EPOCH])
        elif word == _STORE and side == CLIENT:
            note(out, state, identity, identity, REACHED, 0)
        elif word == _SUBSCRIBE and response == 0 and number >= 0:
            row = sb.row_of(subs, number)
            if rows[row, SUB.ASKED] >= 0:
                sb.grant(rows, row)
            sb.ask(subs, row, conn, identity, events[i, EV.ORDER], events[i, EV.TS], more[i, MORE.CORRELATION], 0)
        elif word == _SUBSCRIBE and response == 1:
            row = sb.asker(subs, conn, more[i, MORE.CORRELATION])
            if row >= 0 and more[i, MORE.CODE] >= 0 and more[i, MORE.CODE] != OK:
                sb.refuse(rows, row)
            elif row >= 0:
                sb.grant(rows, row)
        elif word == _STATS or word == _CREATE or word == _DELETE:
            at = max(more[i, MORE.CORRELATION], 0) % ASKED
            if response == 0 and side == CLIENT:
                asked[at, 0] = conn[CONN.ID]
                asked[at, 1] = more[i, MORE.CORRELATION]
                asked[at, 2] = word
                asked[at, 3] = identity
            elif response == 1 and side == SERVER and asked[at, 0] == conn[CONN.ID] and asked[at, 2] == word:
                if asked[at, 1] == more[i, MORE.CORRELATION] and more[i, MORE.CODE] == OK:
                    note(out, state, identity, asked[at, 3], REACHED if word == _STATS else RENEWED, 0)
                asked[at, 0] = -1
                asked[at, 3] = -1
    state[ST.AT] = len(events)
    return DONE


@kernel
def note(out: Array, state: Array, event: int, of: int, kind: int, epoch: int) -> None:
    """Write a row of `out`."""
    at = state[ST.OUT]
    out[at, OUT.EVENT] = event
    out[at, OUT.OF] = of
    out[at, OUT.CONNECTION] = state[ST.ROW]
    out[at, OUT.KIND] = kind
    out[at, OUT.EPOCH] = epoch
    state[ST.OUT] = at + 1


class StreamDeliveries:
    """Yields partial results for `stream_lag`, under the name PARTIAL.

    Args:
        compiled: whether kernels run compiled.
    """

    tables = ()
    partial = (PARTIAL,)
    needs: Mapping[int, Needs] = {
        CONNECTIONS: Needs(("server_ip",)),
        STREAM_FRAMES: Needs(
            (
                "subscription_id", "correlation_id", "response_code", "stream", "properties", "size", "chunk_type",
                "chunk_id", "chunk_entries", "chunk_records", "chunk_timestamp", "committed_chunk_id", "offset",
                "statistics",
            ),
            ("subscribe", "deliver", "store-offset", "stream-stats", "create", "delete"),
        ),
    }  # fmt: skip
    VERSION = 2

    def __init__(self, compiled: bool = False) -> None:
        self.compiled = compiled
        self.named = Retained(STREAM_FRAMES, ("stream", "properties"))
        self.servers = Retained(CONNECTIONS, ("server_ip",))
        self.out = np.zeros((ROOM if compiled else ROOM >> 8, len(OUT)), np.int64)
        self._reset()

    def _reset(self) -> None:
        self.conn, self.gaps = cn.fresh()
        self.subscriptions = sb.fresh()
        self.asked = np.full((ASKED, 4), -1, np.int64)
        self.state = np.array([0, 0, -1], np.int64)
        self.named.drop()
        self.servers.drop()

    def feed(self, events: Events) -> Iterator[Rows]:
        """See `walk.Walk`."""
        at = of_streams(events, self.conn)
        if not len(at):
            return
        matrix = matrix_of(events, at)
        more = np.empty((len(at), len(MORE)), np.int64)
        more[:, MORE.IDENTITY] = at + self.named.base
        for column, name in (
            (MORE.SUBSCRIPTION, "subscription_id"), (MORE.CORRELATION, "correlation_id"), (MORE.CODE, "response_code")
        ):  # fmt: skip
            more[:, column] = events.ints({STREAM_FRAMES: name})[at]
        self.gaps = cn.with_room(self.conn, self.gaps, events.lacking)
        self.named.begin(events)
        self.servers.begin(events)
        self.state[ST.AT] = 0
        why = NEEDS_OUTPUT_ROOM
        while why != DONE:
            why = call(walk, self.compiled, matrix, more, self.conn, self.gaps, self.subscriptions, self.asked,
                       self.out, self.state)  # fmt: skip
            yield from self._rows(events)
        rows, _, _, count = self.subscriptions
        waits = self.asked[self.asked[:, 0] == self.conn[CONN.ID], 3]
        self.named.end(np.concatenate([rows[: count[0], [SUB.EVENT, SUB.ASKED]].ravel(), waits]))
        self.servers.end(self.state[[ST.ROW]])

    def finish(self) -> Iterator[Rows]:
        """See `walk.Walk`."""
        self._reset()
        yield from ()

    def take_out(self) -> bytes:
        """See `walk.Walk`."""
        parts: dict[str, Any] = {"conn": self.conn, "gaps": self.gaps, "asked": self.asked, "state": self.state}
        parts |= named("subscriptions", self.subscriptions)
        parts |= self.named.parts("named") | self.servers.parts("servers")
        state = pack("stream_deliveries", self.VERSION, parts)
        self._reset()
        return state

    def put_back(self, state: bytes) -> None:
        """See `walk.Walk`."""
        parts = unpack("stream_deliveries", self.VERSION, state)
        self.conn, self.gaps, self.asked, self.state = (parts[name] for name in ("conn", "gaps", "asked", "state"))
        rows, places, requests, count = group(parts, "subscriptions")
        self.subscriptions = rows, places, requests, count
        self.named.put_back("named", parts)
        self.servers.put_back("servers", parts)

    def _rows(self, events: Events) -> Iterator[Rows]:
        """Yield what the kernel wrote, as rows."""
        out = self.out[: self.state[ST.OUT]]
        self.state[ST.OUT] = 0
        if len(out):
            rows = self._made(events, out)
            if len(rows):
                yield PARTIAL, rows

    def _made(self, events: Events, out: Ints) -> pa.Table:
        names = (
            "connection_id", "subscription_id", "frame_no", "capture", "packet", "ts_ns", "size", "chunk_type",
            "chunk_id", "chunk_entries", "chunk_records", "chunk_timestamp", "committed_chunk_id", "offset",
            "statistics",
        )  # fmt: skip
        frames = events.take(STREAM_FRAMES, out[:, OUT.EVENT] - self.named.base, names)
        delivers = out[:, OUT.KIND] == DELIVERY
        count = len(out)
        chunk, records = (frames[name].cast(pa.int64()).combine_chunks() for name in ("chunk_id", "chunk_records"))
        # chunk_id + chunk_records - 1
        last = difference(chunk, difference(pa.array(np.ones(count, np.int64)), records))
        made, age = _ages(frames)
        servers = self.servers.get(out[:, OUT.CONNECTION])
        columns: dict[str, Any] = {
            "subscription_epoch": pa.array(out[:, OUT.EPOCH].astype(np.int32)),
            **consumers(self.named.get(out[:, OUT.OF]), count),
            "last_offset": last,
            "entries": frames["chunk_entries"],
            "records": records,
            "chunk_ts_ns": made,
            "age_ns": age,
            "server_ip": servers["server_ip"] if servers is not None else None,
            "reached": pa.array(_reached(frames, last, delivers), pa.int64()),
            "kind": pa.array(out[:, OUT.KIND]),
            "tells_end": pc.greater_equal(frames["committed_chunk_id"].cast(pa.int64()), frames["chunk_id"]),
        }
        columns |= {name: frames[name] for name in OFFSETS.names if name in frames.column_names}
        rows = partial(columns, count)
        whole = chunk.is_valid().to_numpy(zero_copy_only=False)
        useful = rows["reached"].is_valid().to_numpy() | (out[:, OUT.KIND] == RENEWED)
        return rows.filter(pa.array(np.where(delivers, whole, useful)))


def partial(columns: Mapping[str, Any], count: int) -> pa.Table:
    """Return partial results (OFFSETS) of these columns; the others are null."""
    made = [
        columns[field.name] if columns.get(field.name) is not None else pa.nulls(count, field.type) for field in OFFSETS
    ]
    return pa.table(made, schema=OFFSETS)


def _ages(frames: pa.Table) -> tuple[pa.Array, pa.Array]:
    """Return when chunks were made, and how old they were (ns); null where that is out of the range of times."""
    stamps = frames["chunk_timestamp"].cast(pa.int64()).combine_chunks()
    milliseconds = stamps.fill_null(0).to_numpy(zero_copy_only=False)
    most = (1 << 63) // MILLISECOND
    sane = (milliseconds > -most) & (milliseconds < most) & stamps.is_valid().to_numpy(zero_copy_only=False)
    made = pa.array(np.where(sane, milliseconds, 0) * MILLISECOND, mask=~sane)
    return made, difference(frames["ts_ns"], made)


def _reached(frames: pa.Table, last: pa.Array, delivers: Any) -> Any:
    """Return the offsets that streams have reached, as far as frames show (masked where they show none)."""

    def numbers(column: Any) -> Any:
        return column.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)

    reached = np.where(
        delivers, np.maximum(numbers(last), numbers(frames["committed_chunk_id"])), numbers(frames["offset"])
    )
    for row in np.flatnonzero(frames["statistics"].is_valid().to_numpy()).tolist():  # few
        reached[row] = _committed(frames["statistics"][row].as_py())
    return np.ma.masked_less(reached, 0)


def _committed(statistics: str) -> int:
    """Return the id of the last committed chunk in the statistics of a stream; -1: none that can be."""
    try:
        found = json.loads(statistics)
    except ValueError:  # cut by a gap
        return -1
    reached = found.get("committed_chunk_id") if isinstance(found, dict) else None
    return reached if isinstance(reached, int) and 0 <= reached < 1 << 63 else -1
