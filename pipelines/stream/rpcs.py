"""Requests and answers of streams: by correlation id."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import call, kernel
from amqpscope.pipelines.model import connection as cn
from amqpscope.pipelines.model.connection import CONN, add_gap, open_connection, update_connection
from amqpscope.pipelines.model.events import EV, Events, what
from amqpscope.pipelines.model.rows import Waiting
from amqpscope.pipelines.model.speaking import concerns
from amqpscope.pipelines.model.store import declare, pack, unpack
from amqpscope.pipelines.model.walk import Needs, Rows, known
from amqpscope.pipelines.requests.open_requests import FO, NONE, REFUSED, State
from amqpscope.pipelines.requests.rpcs import done, rows
from amqpscope.pipelines.stream.frames import STREAM_FRAMES
from amqpscope.pipelines.stream.requests import (
    ANSWERED_ALWAYS,
    ROLES,
    StreamRequests,
    answer_stream,
    ask_stream,
    close_stream,
    end_stream,
)

VERSION = 5
_CLOSE, _TUNE = what(STREAM_FRAMES, "close"), what(STREAM_FRAMES, "tune")
_EXTRA = ("correlation_id", "response_code", "closing_code", "closing_reason")
_COLUMNS = (
    "connection_id", "from_client", "command", "frame_no", "ts_ns", "capture", "packet", "response_code",
    "closing_code", "closing_reason",
)  # fmt: skip
_WELL = (1, 10)
"""Response codes that mean success: ok, and a further challenge."""


class Arguments(NamedTuple):
    """What kernels need of an event besides EV, as columns; -1 for null."""

    ASKS: int  # 1 for ANSWERED_ALWAYS
    CODE: int  # closing code
    CORRELATION: int


AR = declare(Arguments)


class Rpcs:
    """Pair requests with their answers; rows of `rpcs`."""

    tables: ClassVar[tuple[str, ...]] = ("rpcs",)
    needs: ClassVar[Mapping[int, Needs]] = {STREAM_FRAMES: Needs(_EXTRA, ANSWERED_ALWAYS)}

    def __init__(self, compiled: bool = False) -> None:
        self._compiled = compiled
        self._fresh()

    def _fresh(self) -> None:
        self._conn, self._gaps = cn.fresh()
        self._requests = StreamRequests()
        self._frames = Waiting(STREAM_FRAMES, _COLUMNS)

    def feed(self, events: Events) -> Iterator[Rows]:
        """Walk over a batch."""
        if not concerns(events, self._conn, STREAM_FRAMES):
            return
        self._frames.begin(events)
        asks = np.zeros(len(events), np.int64)
        arguments = np.full((len(events), len(AR)), NONE, np.int64)
        at = np.flatnonzero(events.source == STREAM_FRAMES)
        arguments[at, AR.ASKS] = ROLES[events.what[at]]
        arguments[:, AR.CODE] = events.ints({STREAM_FRAMES: "closing_code"})
        arguments[:, AR.CORRELATION] = events.ints({STREAM_FRAMES: "correlation_id"})
        self._gaps = cn.with_room(self._conn, self._gaps, events.lacking)
        state = self._requests.state(self._conn, self._gaps, len(at))
        call(walk, self._compiled, events.matrix, arguments, state, asks, self._frames.base)
        found = self._requests.decided()
        done(asks, found, self._frames.base)
        if len(found):
            yield from self._rows(found)
        self._frames.end(np.flatnonzero(asks == 1))

    def finish(self) -> Iterator[Rows]:
        """Yield what is still open: it was not answered."""
        call(end_stream, self._compiled, self._requests.state(self._conn, self._gaps, 0))
        if len(found := self._requests.decided()):
            yield from self._rows(found)
        self._fresh()

    def _rows(self, found: Any) -> Iterator[Rows]:
        """Yield rows of what became of requests."""
        asked = self._frames.take(found[:, FO.REQUEST])
        refused = found[:, FO.HOW] == REFUSED
        answered = found[:, FO.ANSWER] >= 0
        place = np.full(len(found), NONE, np.int64)
        place[answered] = np.arange(np.count_nonzero(answered))
        parts = [asked.slice(0, 0), self._frames.get(found[answered, FO.ANSWER])]
        answers = pa.concat_tables(parts, promote_options="default").take(known(place))
        error = pa.array(refused)
        code = pc.if_else(error, answers["closing_code"], answers["response_code"])
        well = pc.and_(pc.invert(error), pc.fill_null(pc.is_in(code, value_set=pa.array(_WELL, code.type)), False))
        failed = pc.and_(pc.invert(pc.or_(well, pc.is_null(code))), pa.array(answered))
        response = pc.binary_join_element_wise(asked["command"], "response", "-")
        response = pc.if_else(pa.array(answered), pc.if_else(error, "close", response), None)
        outcome = pc.if_else(pa.array(answered), pc.if_else(failed, "error", "ok"), "none")
        yield from rows(
            found,
            asked,
            answers,
            {
                "request": asked["command"],
                "response": response,
                "outcome": outcome,
                "reply_code": pc.if_else(failed, code, None),
                "reply_text": pc.if_else(error, answers["closing_reason"], None),
            },
        )

    def take_out(self) -> bytes:
        """Return the state as versioned bytes, and reset the walk."""
        parts: dict[str, Any] = {f"streams {name}": part for name, part in self._requests.parts().items()}
        parts |= {"conn": self._conn, "gaps": cn.used(self._conn, self._gaps), "base": self._frames.base}
        if (waiting := self._frames.table()) is not None:
            parts["rows"] = waiting
        state = pack("rpcs of streams", VERSION, parts)
        self._fresh()
        return state

    def put_back(self, state: bytes) -> None:
        """Restore the state that `take_out` returned.

        Raises:
            ValueError: the bytes are the state of something else.
        """
        parts = unpack("rpcs of streams", VERSION, state)
        machine = {k.removeprefix("streams "): part for k, part in parts.items() if k.startswith("streams ")}
        self._requests.put_back(machine)
        self._conn, self._gaps = parts["conn"], parts["gaps"]
        self._frames.put_back(parts.get("rows"), parts["base"])


@kernel
def walk(events: Array, arguments: Array, state: State, asks: Array, base: int) -> None:
    """Walk over a batch of events; `asks` becomes 1 for those whose rows may be needed later."""
    conn, gaps, _, _, _, _ = state
    for i in range(len(events)):
        identity = events[i, EV.CONNECTION]
        if identity != conn[CONN.ID]:
            end_stream(state)
            open_connection(conn, identity)
        side = events[i, EV.FROM_CLIENT]
        is_mine = events[i, EV.SOURCE] == STREAM_FRAMES and side >= 0
        if is_mine and events[i, EV.CUT] > 0:
            unknown = events[i, EV.RESPONSE] != 0 and arguments[i, AR.CORRELATION] < 0
            if events[i, EV.WHAT] == 0 or unknown:
                add_gap(conn, gaps, side, events[i, EV.ORDER], events[i, EV.TS])
        update_connection(conn, gaps, events, i, base + i)
        if is_mine:
            asks[i] = stream_frame(events, arguments, state, i, base + i)


@kernel
def stream_frame(events: Array, arguments: Array, state: State, i: int, identity: int) -> int:
    """Apply a frame of the stream protocol; return whether its row may be needed later."""
    word = events[i, EV.WHAT]
    side = events[i, EV.FROM_CLIENT]
    response = events[i, EV.RESPONSE]
    correlation = arguments[i, AR.CORRELATION]
    if arguments[i, AR.ASKS] < 1 or response < 0 or (correlation < 0 and word != _TUNE):
        return 0
    if response == 1:
        answer_stream(state, word, correlation, 1 - side, identity)
        return 0
    frame = events[i, EV.ORDER]
    if word == _CLOSE:
        close_stream(state, side, frame, events[i, EV.TS], arguments[i, AR.CODE], identity)
    ask_stream(state, word, correlation, side, identity, frame, events[i, EV.TS])
    return 1
