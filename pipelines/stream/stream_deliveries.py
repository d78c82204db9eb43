"""Deliveries of streams: each delivered chunk, its age, and other frames that show how long its stream is.

How far a consumer was behind its stream is known only together with other connections to that broker: walks yield
partial results (OFFSETS); `stream_lag` merges them and writes the table. Those of deliveries come from `stream_credit`,
which knows the subscription of each; those of other frames from the walk here, in plain Python.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from amqpscope.pipelines.model.connection import CLIENT, CONN
from amqpscope.pipelines.model.events import CONNECTIONS, Events
from amqpscope.pipelines.model.plain import Plain, Row
from amqpscope.pipelines.model.speaking import difference
from amqpscope.pipelines.model.walk import Needs, Rows, schema
from amqpscope.pipelines.stream.streams import ASKED, OK, Servers

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
CHUNK = (
    "size", "chunk_type", "chunk_id", "chunk_entries", "chunk_records", "chunk_timestamp", "committed_chunk_id",
)  # fmt: skip
"""What partial results need of deliveries besides _PLACE and what `stream_credit` needs."""
MILLISECOND = 1_000_000
_PLACE = ("connection_id", "frame_no", "capture", "packet", "ts_ns")


class StreamOffsets(Plain):
    """Yields partial results for `stream_lag`, under the name PARTIAL: those of frames that deliver nothing.

    The state of a connection is a request for each correlation id, of which the last 8 bits differ.
    """

    SOURCE, NAMES = "stream_frames", ("store-offset", "stream-stats", "create", "delete")
    COLUMNS = (
        *_PLACE, "size", "from_client", "command", "is_response", "correlation_id", "response_code", "stream", "offset",
        "statistics",
    )  # fmt: skip
    tables = ()
    partial = (PARTIAL,)

    STATE = ("opened", "state", "_servers")

    def forget(self) -> None:
        """See `Remembers`."""
        super().forget()
        self._servers = Servers()

    @property
    def needs(self) -> Mapping[int, Needs]:
        """See `walk.Walk`."""
        return {**super().needs, CONNECTIONS: Needs(("server_ip",))}

    def fresh(self) -> dict[str, list[Any]]:
        """Return no request by correlation id: what was asked, and about which stream."""
        return {}

    def feed(self, events: Events) -> Iterator[Rows]:
        """See `walk.Walk`."""
        self._servers.begin(events)
        yield from super().feed(events)
        self._servers.end(int(self.opened.conn[CONN.ID]))

    def frame(self, frame: Row) -> Iterator[Row]:
        """See `Plain`."""
        side, response, command = frame["from_client"], frame["is_response"], frame["command"]
        number = -1 if frame["correlation_id"] is None else frame["correlation_id"]
        place = str(max(number, 0) % ASKED)
        if command == "store-offset":
            if side == CLIENT:
                yield from self._reached(frame, frame["stream"], REACHED)
        elif response is False and side == CLIENT:
            self.state[place] = [number, command, frame["stream"]]
        elif response and side is not None and side != CLIENT and self.state.get(place, ["", ""])[1] == command:
            asked, _, stream = self.state.pop(place)
            if asked == number and frame["response_code"] == OK:
                yield from self._reached(frame, stream, REACHED if command == "stream-stats" else RENEWED)

    def _reached(self, frame: Row, stream: str | None, kind: int) -> Iterator[Row]:
        offset = frame["offset"] if frame["statistics"] is None else _committed(frame["statistics"])
        reached = None if offset is None or offset < 0 else offset
        if reached is not None or kind == RENEWED:
            yield {
                **{name: frame[name] for name in (*_PLACE, "size")},
                "subscription_epoch": 0,
                "stream": stream,
                "reached": reached,
                "kind": kind,
                "server_ip": self._servers.get(frame["connection_id"]),
            }

    def over(self) -> Iterator[Row]:
        """See `Plain`; requests without an answer are in no row."""
        return iter(())

    def _rows(self, found: list[Row]) -> Iterator[Rows]:
        if found:
            yield PARTIAL, pa.Table.from_pylist(found, OFFSETS)


def delivered(frames: pa.Table, consumers: Mapping[str, Any], epochs: Any, servers: Any) -> pa.Table:
    """Return partial results of deliveries of whole chunks.

    Args:
        frames: rows with CHUNK, `_PLACE` and `subscription_id`.
        consumers: columns of their subscriptions (`subscriptions.consumers`).
        epochs: of these (int64).
        servers: addresses of their brokers.
    """
    count = len(frames)
    chunk, records = (frames[name].cast(pa.int64()).combine_chunks() for name in ("chunk_id", "chunk_records"))
    # chunk_id + chunk_records - 1
    last = difference(chunk, difference(pa.array(np.ones(count, np.int64)), records))
    made, age = _ages(frames)
    committed = frames["committed_chunk_id"].cast(pa.int64())
    ends = (column.fill_null(-1).to_numpy(zero_copy_only=False) for column in (last, committed.combine_chunks()))
    reached = np.maximum(*ends)
    columns: dict[str, Any] = {
        "subscription_epoch": pa.array(epochs.astype(np.int32)),
        **consumers,
        "last_offset": last,
        "entries": frames["chunk_entries"],
        "records": records,
        "chunk_ts_ns": made,
        "age_ns": age,
        "server_ip": servers,
        "reached": pa.array(reached, mask=reached < 0),
        "kind": pa.array(np.full(count, DELIVERY)),
        "tells_end": pc.greater_equal(committed, frames["chunk_id"]),
    }
    columns |= {name: frames[name] for name in OFFSETS.names if name in frames.column_names}
    return partial(columns, count).filter(chunk.is_valid())


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


def _committed(statistics: str) -> int:
    """Return the id of the last committed chunk in the statistics of a stream; -1: none that can be."""
    try:
        found = json.loads(statistics)
    except ValueError:  # cut by a gap
        return -1
    reached = found.get("committed_chunk_id") if isinstance(found, dict) else None
    return reached if isinstance(reached, int) and 0 <= reached < 1 << 63 else -1
