"""How far consumers were behind their streams: a walk over streams, in the order of time.

Its rows are partial results of `stream_deliveries` of all connections, sorted by KEY and ORDER. All rows of a stream on
a broker go to the same walk. The lag counts from the highest offset that the stream is known to have reached so far
(rows of the same time included), on any connection to that broker: it is a lower bound, because no frame says how long
a stream is. Frames show offsets; and each record that was stored is one more, if it was published after the frame that
showed the offset: what was published before may be among what that counts. Before any frame shows one, a stream holds
at least what was stored. Where nothing shows an offset beyond the delivery, no publisher of the stream was captured,
and the delivery does not say which chunk is the last, the lag is unknown. When a stream is deleted or created again,
its offsets begin again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import call, kernel
from amqpscope.dissector.kernels.state import Matrix, column
from amqpscope.pipelines.model.credit import NEVER
from amqpscope.pipelines.model.digests import hashed
from amqpscope.pipelines.model.remembered import Remembers
from amqpscope.pipelines.model.speaking import difference
from amqpscope.pipelines.model.walk import Rows, conform
from amqpscope.pipelines.stream.stream_deliveries import DELIVERY, OFFSETS, RENEWED, STORED

KEY = ("server_ip", "stream")
"""Columns that group rows."""
ORDER = ("ts_ns", "connection_id", "frame_no")
_INNER = ("server_ip", "reached", "kind", "tells_end", "sent_ts_ns")
"""The last columns of partial results, which rows do not have."""
MOST_RECORDS = 1 << 40
"""Of one publish: sums of these do not overflow."""
MOST_AT_ONCE = 1 << 20
"""Rows of one stream and time; beyond that, later ones do not count for earlier ones."""


EVER = -(1 << 62)
"""Before all times."""


class ST(Matrix):
    """Columns of `state`, one row."""

    SERVER = column("keys of the last row")
    STREAM = column("the other key")
    REACHED = column("the highest offset that the stream has reached; -1: none")
    SHOWN_TS = column("when a frame showed the offset from which records that were stored are counted")
    PUBLISHED = column("1: records of a publisher were stored")


@kernel
def walk(
    keys: Array, times: Array, kind: Array, reached: Array, records: Array, sent: Array, state: Array, seen: Array,
    published: Array,
) -> None:  # fmt: skip
    """Find the highest offset at each row.

    Args:
        keys: two int64 per row; 0 for null.
        times: ns.
        kind: DELIVERY, ...
        reached: -1 for none.
        records: of STORED, how many.
        sent: of STORED, when they were published (ns).
        state: ST.
        seen: written, -1 for none.
        published: written, 1 where a publisher of the stream was captured.
    """
    first = 0
    for i in range(len(times)):
        other = keys[i, 0] != state[ST.SERVER] or keys[i, 1] != state[ST.STREAM]
        if other or kind[i] == RENEWED or (i > 0 and times[i] != times[i - 1]):
            write(state, seen, published, first, i)
            first = i
        if other or kind[i] == RENEWED:
            state[ST.SERVER] = keys[i, 0]
            state[ST.STREAM] = keys[i, 1]
            state[ST.REACHED] = -1
            state[ST.SHOWN_TS] = EVER if other else times[i]
            state[ST.PUBLISHED] = 0
        if keys[i, 0] == 0 or keys[i, 1] == 0:
            continue
        if kind[i] == STORED:
            state[ST.PUBLISHED] = 1
            if sent[i] > state[ST.SHOWN_TS] and records[i] <= MOST_RECORDS:
                state[ST.REACHED] = min(state[ST.REACHED] + records[i], NEVER - MOST_RECORDS)
        elif reached[i] > state[ST.REACHED]:
            state[ST.REACHED] = reached[i]
            state[ST.SHOWN_TS] = times[i]
    write(state, seen, published, first, len(times))


@kernel
def write(state: Array, seen: Array, published: Array, first: int, end: int) -> None:
    """Write what is known at some rows of one stream and time."""
    for row in range(first, end):
        seen[row] = state[ST.REACHED]
        published[row] = state[ST.PUBLISHED]


class StreamLag(Remembers):
    """Writes `stream_deliveries`.

    Args:
        compiled: whether kernels run compiled.
    """

    tables = ("stream_deliveries",)
    VERSION = 3
    STATE = ("state", "held")

    def forget(self) -> None:
        """See `Remembers`."""
        self.state = np.array([0, 0, -1, EVER, 0], np.int64)
        self.held = OFFSETS.empty_table()
        """The last rows, of one stream and time: more of them may come."""

    def feed(self, rows: pa.Table) -> Iterator[Rows]:
        """Walk over a batch; yield rows that are final. Exhaust it before the next call.

        Args:
            rows: partial results (OFFSETS), sorted by KEY and ORDER, also between batches.
        """
        rows = pa.concat_tables([self.held, rows]).combine_chunks() if len(self.held) else rows
        if not len(rows):
            return
        keys, times = self._keys(rows), rows["ts_ns"].to_numpy()
        differs = (keys[1:] != keys[:-1]).any(1) | (times[1:] != times[:-1])
        last = int(np.flatnonzero(differs)[-1]) + 1 if differs.any() else 0
        if len(rows) - last > MOST_AT_ONCE:
            last = len(rows)
        self.held = rows.slice(last)
        yield from self._walked(rows.slice(0, last), keys[:last], times[:last])

    def finish(self) -> Iterator[Rows]:
        """Yield the rows that are still held, and reset the walk."""
        rows = self.held
        yield from self._walked(rows, self._keys(rows), rows["ts_ns"].to_numpy())
        self.forget()

    @staticmethod
    def _keys(rows: pa.Table) -> Any:
        return np.stack([hashed(rows[name]) for name in KEY], 1)

    def _walked(self, rows: pa.Table, keys: Any, times: Any) -> Iterator[Rows]:
        if not len(rows):
            return
        kind = rows["kind"].to_numpy()
        numbers = (rows[name].fill_null(-1).to_numpy() for name in ("reached", "records", "sent_ts_ns"))
        seen, published = np.empty((2, len(rows)), np.int64)
        arrays = (np.ascontiguousarray(each) for each in (keys, times, kind, *numbers))
        call(walk, self.compiled, *arrays, self.state, seen, published)
        delivered = pa.array(kind == DELIVERY)
        found = rows.filter(delivered)
        if not len(found):
            return
        offset = pa.array(seen, mask=seen < 0).filter(delivered)
        columns = {name: found[name] for name in OFFSETS.names[: -len(_INNER)]}
        lag = difference(offset, found["last_offset"])
        known = pc.or_(pc.greater(lag, 0), pc.fill_null(found["tells_end"], False))
        known = pc.or_(known, pa.array(published == 1).filter(delivered))
        columns |= {"stream_offset": offset, "lag_records": pc.if_else(known, lag, None)}
        yield "stream_deliveries", conform("stream_deliveries", columns, len(found))


def sort(partial: pa.Table) -> pa.Table:
    """Return partial results in the order of the walk."""
    return partial.sort_by([(name, "ascending") for name in (*KEY, *ORDER)])


def lagging(partial: pa.Table, compiled: bool = False) -> pa.Table:
    """Return the table `stream_deliveries`.

    Args:
        partial: partial results of all connections, in any order.
        compiled: whether kernels run compiled.
    """
    walk_ = StreamLag(compiled)
    parts = [part for _, part in (*walk_.feed(sort(partial)), *walk_.finish())]
    return pa.concat_tables([conform("stream_deliveries", {}, 0), *parts])
