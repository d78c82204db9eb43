"""Heartbeats: whether each side showed signs of life as often as was agreed.

Any byte is a sign of life (AMQP 0-9-1, 4.2.7): the first and the last byte of frames count, and so do skipped bytes.
Silence counts from connection.tune-ok, which agrees the interval, to the first connection.close; if these were not
seen, from the first packet and to the last. The time of bytes that the capture lacks is unknown: what ends with a gap,
or begins with one, is no silence, and of a missing direction nothing is known. Where the connection's ending shows that
the path was lost, nothing says what a side sent that did not arrive, or waited for what it had sent before: of such a
side it is unknown what it missed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import call, kernel
from amqpscope.dissector.kernels.state import Matrix, column
from amqpscope.pipelines.model.connection import CLIENT, CONN, fresh, is_missing, open_connection, update_connection
from amqpscope.pipelines.model.events import (
    ANOMALIES,
    CONNECTIONS,
    EV,
    FIRST_FRAMES,
    FRAMES_OF,
    MESSAGES,
    SPOKEN,
    Events,
    what,
)
from amqpscope.pipelines.model.protocols import Frames
from amqpscope.pipelines.model.remembered import Remembers
from amqpscope.pipelines.model.walk import Needs, Rows, conform, known

SECOND = 1_000_000_000
LONGEST = (1 << 63) - 1
"""292 years: longer silences are clamped to it."""


class SPAN(Matrix):
    """Columns of `span`: the times between which silence counts on the open connection."""

    APPLIES = column("1: it has a row, and speaks a protocol that agrees on heartbeats")
    NEGOTIATED = column("seconds; 0 for none, -1 where that was not seen")
    DARK = column("bit 0: what the server sent was lost on the way; bit 1: what the client sent")
    AGREED = column("1: the method that agrees (connection.tune-ok) was seen")
    CLOSED = column("1: a frame that closes the connection was seen")
    END = column("time of that, else of the last packet")


class SIGN(Matrix):
    """Columns of `signs`, which has a row for each side."""

    HEARD = column("1: something of it was seen")
    LATEST = column("time of its last sign of life, and not before silence counts")
    SILENCE = column("longest silence so far")
    MISSED = column("whole intervals without a sign")
    LOST = column("1: its last sign of life is a gap")


class ROW(Matrix):
    """Columns of `rows`; -1 for null."""

    CONNECTION = column("connection_id")
    FROM_CLIENT = column("1: the client was silent, 0: the server")
    NEGOTIATED = column("seconds")
    SILENCE = column("its longest silence (ns)")
    MISSED = column("whole intervals without a sign")


DARK = {"path-lost": 3, "path-lost-to-server": 1 << CLIENT, "path-lost-to-client": 1 << (1 - CLIENT)}
"""Endings that show that the path lost what a side sent, and SPAN.DARK then."""
NOT_MINE = -2
"""Value of `negotiated` for a connection of another protocol."""

_GAP, _SKIPPED = what(ANOMALIES, "tcp-gap"), what(ANOMALIES, "bytes-skipped")


class Heartbeats(Remembers):
    """The walk that writes `heartbeats`: one row per connection that may agree on them (`Frames.agrees`) and direction.

    The state has a fixed size.
    """

    tables = ("heartbeats",)
    VERSION = 3
    STATE = ("_conn", "_span", "_signs")

    @property
    def needs(self) -> Mapping[int, Needs]:
        """What it needs."""
        made = {CONNECTIONS: Needs(("heartbeat", "ending")), ANOMALIES: Needs((), ("tcp-gap", "bytes-skipped"))}
        return made | {source: Needs((), (of.agrees, *of.closes)) for source, of in _agreeing().items()}

    def forget(self) -> None:
        """See `Remembers`."""
        self._conn, _ = fresh()
        self._span = np.zeros(SPAN.WIDTH, np.int64)
        self._signs = np.zeros((2, SIGN.WIDTH), np.int64)

    def feed(self, events: Events) -> Iterator[Rows]:
        """Walk over a batch; yield rows of connections that ended."""
        if not len(events):
            return
        begun = int(np.count_nonzero(events.source == CONNECTIONS))
        rows = np.zeros((2 * (begun + 1), ROW.WIDTH), np.int64)
        no_gaps = np.zeros((0, 3), np.int64)
        state = (self._conn, no_gaps, self._span, self._signs)
        agrees = events.among([what(source, of.agrees) for source, of in _agreeing().items()])
        count = call(listen, self.compiled, *state, events.matrix, agrees, _negotiated(events), _dark(events), rows)
        yield from _rows(rows[:count])

    def finish(self) -> Iterator[Rows]:
        """Yield rows of the last connection."""
        rows = np.zeros((2, ROW.WIDTH), np.int64)
        count = call(conclude, False, self._conn, self._span, self._signs, rows, 0)
        self.forget()
        yield from _rows(rows[:count])


def _agreeing() -> dict[int, Frames]:
    """Return the tables of frames of protocols that agree on heartbeats."""
    return {source: of for source, of in FRAMES_OF.items() if of.agrees}


def _negotiated(events: Events) -> Array:
    """Return the interval (s) per event: for a connection's row, -1 where it was not seen, or NOT_MINE."""
    found = events.ints({CONNECTIONS: "heartbeat"})
    at = np.flatnonzero(events.source == CONNECTIONS)
    if len(at):
        protocol = events.take(CONNECTIONS, at, ["protocol"])["protocol"]
        mine = pc.fill_null(
            pc.is_in(protocol.cast(pa.string()), value_set=pa.array([SPOKEN[of] for of in _agreeing()])), False
        ).to_numpy()
        found[at[~mine]] = NOT_MINE
    return found


def _dark(events: Events) -> Array:
    """Return SPAN.DARK per event."""
    found = np.zeros(len(events), np.int64)
    at = np.flatnonzero(events.source == CONNECTIONS)
    if len(at):
        endings = events.take(CONNECTIONS, at, ["ending"])["ending"].cast(pa.string()).to_pylist()
        found[at] = [DARK.get(ending or "", 0) for ending in endings]
    return found


def _rows(rows: Array) -> Iterator[Rows]:
    if len(rows):
        columns = {
            "connection_id": rows[:, ROW.CONNECTION],
            "from_client": pa.array(rows[:, ROW.FROM_CLIENT] == CLIENT),
            "negotiated_s": known(rows[:, ROW.NEGOTIATED]),
            "longest_silence_ns": known(rows[:, ROW.SILENCE]),
            "missed": known(rows[:, ROW.MISSED]),
        }
        yield "heartbeats", conform("heartbeats", columns, len(rows))


@kernel
def listen(
    conn: Array, gaps: Array, span: Array, signs: Array, events: Array, agrees: Array, negotiated: Array, dark: Array,
    rows: Array,
) -> int:  # fmt: skip
    """Walk over a batch.

    Args:
        conn: CONN.
        gaps: empty; gaps are not needed later.
        span: SPAN.
        signs: SIGN, of each side.
        events: EV.
        agrees: bool, whether an event agrees on heartbeats.
        negotiated: see `_negotiated`.
        dark: see `_dark`.
        rows: ROW; two for each connection that may end here.

    Returns:
        Number of rows that were written.
    """
    count = 0
    for i in range(len(events)):
        if events[i, EV.CONNECTION] != conn[CONN.ID]:
            count = conclude(conn, span, signs, rows, count)
            open_connection(conn, events[i, EV.CONNECTION])
            for column in range(len(span)):
                span[column] = 0
        update_connection(conn, gaps, events, i, i)
        source = events[i, EV.SOURCE]
        if source == CONNECTIONS and span[SPAN.APPLIES] == 1:  # of a connection that goes on, more is known by now
            span[SPAN.NEGOTIATED] = negotiated[i]
            span[SPAN.DARK] = dark[i]
            if span[SPAN.CLOSED] == 0:
                span[SPAN.END] = events[i, EV.TS]
        elif source == CONNECTIONS:
            span[SPAN.APPLIES] = 0 if negotiated[i] == NOT_MINE else 1
            span[SPAN.NEGOTIATED] = negotiated[i]
            span[SPAN.DARK] = dark[i]
            span[SPAN.END] = events[i, EV.TS]
            for side in range(2):  # until more is seen, silence counts from the first packet to the last
                for column in range(SIGN.WIDTH):
                    signs[side, column] = 0
                signs[side, SIGN.LATEST] = events[i, EV.FIRST_TS]
        elif span[SPAN.APPLIES] == 1 and events[i, EV.FROM_CLIENT] >= 0:
            word = events[i, EV.WHAT]
            is_gap = source == ANOMALIES and word == _GAP
            if FIRST_FRAMES <= source < MESSAGES:
                if agrees[i] and span[SPAN.AGREED] == 0:  # silence counts from now on
                    span[SPAN.AGREED] = 1
                    for side in range(2):
                        signs[side, SIGN.LATEST] = max(signs[side, SIGN.LATEST], events[i, EV.TS])
                        signs[side, SIGN.SILENCE] = 0
                        signs[side, SIGN.MISSED] = 0
                if events[i, EV.CLOSES] == 1 and span[SPAN.CLOSED] == 0:
                    span[SPAN.CLOSED] = 1
                    span[SPAN.END] = events[i, EV.TS]
            elif not is_gap and not (source == ANOMALIES and word == _SKIPPED):
                continue
            side, first, last = events[i, EV.FROM_CLIENT], events[i, EV.FIRST_TS], events[i, EV.TS]
            # A sign of life. The time of a gap is unknown, so no silence ends or begins with it.
            if not is_gap and signs[side, SIGN.LOST] == 0:
                note_silence(span, signs, side, first if first >= 0 else last)
            if not is_gap:
                signs[side, SIGN.HEARD] = 1
            signs[side, SIGN.LOST] = 1 if is_gap else 0
            signs[side, SIGN.LATEST] = max(signs[side, SIGN.LATEST], last)
    return count


@kernel
def note_silence(span: Array, signs: Array, side: int, until: int) -> None:
    """Count the silence of a side until a time."""
    early = signs[side, SIGN.LATEST]
    late = min(until, span[SPAN.END])
    if late <= early:
        return
    silence = LONGEST
    if early >= 0 or late <= LONGEST + early:
        silence = late - early
    signs[side, SIGN.SILENCE] = max(signs[side, SIGN.SILENCE], silence)
    if span[SPAN.NEGOTIATED] > 0:
        signs[side, SIGN.MISSED] += silence // (span[SPAN.NEGOTIATED] * SECOND)


@kernel
def conclude(conn: Array, span: Array, signs: Array, rows: Array, count: int) -> int:
    """Write the rows of the open connection; return the number of rows written so far."""
    if span[SPAN.APPLIES] != 1:
        return count
    span[SPAN.APPLIES] = 0
    for side in range(2):
        if signs[side, SIGN.LOST] == 0:
            note_silence(span, signs, side, span[SPAN.END])
        unknown = signs[side, SIGN.HEARD] == 0 and (signs[side, SIGN.LOST] == 1 or is_missing(conn, side))
        rows[count, ROW.CONNECTION] = conn[CONN.ID]
        rows[count, ROW.FROM_CLIENT] = side
        rows[count, ROW.NEGOTIATED] = span[SPAN.NEGOTIATED]
        rows[count, ROW.SILENCE] = -1 if unknown else signs[side, SIGN.SILENCE]
        is_dark = span[SPAN.DARK] >> side & 1
        rows[count, ROW.MISSED] = -1 if unknown or is_dark or span[SPAN.NEGOTIATED] < 0 else signs[side, SIGN.MISSED]
        count += 1
    return count
