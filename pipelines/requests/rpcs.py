"""The table `rpcs`: synchronous requests of AMQP 0-9-1, controls of 0-10 and of streams, and what came back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from amqpscope import spec
from amqpscope.dissector.kernels.kernel import call
from amqpscope.pipelines.model.digests import hashed
from amqpscope.pipelines.model.events import FRAMES, FRAMES_010, STREAM_FRAMES, Events, what
from amqpscope.pipelines.model.names import NO_NAME, Names
from amqpscope.pipelines.model.rows import Waiting
from amqpscope.pipelines.model.store import pack, unpack
from amqpscope.pipelines.model.unanswered import ENDED_BY
from amqpscope.pipelines.model.walk import Needs, Rows, conform, known
from amqpscope.pipelines.requests import requests
from amqpscope.pipelines.requests.open_requests import CH, DROPPED, FO, HEAP, NO, NONE, REFUSED, State
from amqpscope.pipelines.requests.requests import NAMED, ROLES, UNKNOWN, Requests
from amqpscope.pipelines.requests.rpc_frames import AR, finish, walk
from amqpscope.pipelines.requests.stream_requests import ANSWERED_ALWAYS, StreamRequests
from amqpscope.pipelines.requests.stream_requests import ROLES as STREAM_ROLES

VERSION = 4
_DECLARE, _DECLARE_OK = what(FRAMES, "queue.declare"), what(FRAMES, "queue.declare-ok")
_CLOSES = (what(FRAMES, "channel.close"), what(FRAMES, "connection.close"))
_NAMED, _NAMED_KINDS = (np.array(each, np.int64) for each in zip(*sorted(NAMED.items()), strict=True))
_KEYS = {
    (FRAMES, "queue"): ("queue.declare", "queue.declare-ok"),
    (FRAMES, "consumer_tag"): tuple(f"basic.{name}" for name in ("consume", "consume-ok", "cancel", "cancel-ok")),
    (FRAMES_010, "name"): tuple(f"session.{name}" for name in ("attach", "attached", "detach", "detached")),
}
"""Columns that a request and its answer have in common, and these."""
_WITH_QUEUE = tuple(
    what(FRAMES, method.full_name)
    for method in spec.load().methods
    if (method.responses or method.full_name == "queue.declare-ok") and any(f.name == "queue" for f in method.fields)
)
_WITH_ROLE = (ROLES[:, [requests.ASKS, requests.ANSWERS]] >= 0).any(axis=1)
"""By EV.WHAT."""
_EXTRA = ("no_wait", "reply_code", "class_id", "method_id", "queue", "consumer_tag", "reply_text")
_FRAME_COLUMNS = (
    "connection_id", "channel", "channel_epoch", "from_client", "method", "frame_no", "ts_ns", "capture", "packet",
    "reply_code", "reply_text", "queue",
)  # fmt: skip
_STREAM_COLUMNS = (
    "connection_id", "from_client", "command", "frame_no", "ts_ns", "capture", "packet", "response_code",
    "closing_code", "closing_reason",
)  # fmt: skip
_POINT = ("ts_ns", "frame_no", "capture", "packet")
_WELL = (1, 10)
"""Response codes of streams that mean success: ok, and a further challenge."""


class Rpcs:
    """Pair synchronous requests with their answers; rows of `rpcs`."""

    tables: ClassVar[tuple[str, ...]] = ("rpcs",)
    needs: ClassVar[Mapping[int, Needs]] = {
        FRAMES: Needs(
            _EXTRA,
            requests.methods_of(FRAMES),
        ),
        FRAMES_010: Needs(("name", "code", "reply_code", "reply_text", "queue"), requests.methods_of(FRAMES_010)),
        STREAM_FRAMES: Needs(("correlation_id", "response_code", "closing_code", "closing_reason"), ANSWERED_ALWAYS),
    }

    def __init__(self, compiled: bool = False) -> None:
        self._compiled = compiled
        self._fresh()

    def _fresh(self) -> None:
        self._requests, self._streams = Requests(), StreamRequests()
        self._frames = Waiting(FRAMES, _FRAME_COLUMNS)
        self._frames_010 = Waiting(FRAMES_010, (*_FRAME_COLUMNS, "code"))
        self._stream_frames = Waiting(STREAM_FRAMES, _STREAM_COLUMNS)
        self._names = Names()

    def feed(self, events: Events) -> Iterator[Rows]:
        """Walk over a batch."""
        for waiting in self._stores:
            waiting.begin(events)
        asks = np.zeros(len(events), np.int64)
        of_streams = events.source == STREAM_FRAMES
        at = np.flatnonzero(_WITH_ROLE[events.what] | of_streams)
        arguments = self._arguments(events, at)
        state, streams = self._states(len(at) + events.lacking, int(np.count_nonzero(of_streams)), events.lacking)
        call(walk, self._compiled, events.matrix, arguments, state, streams, asks, self._frames.base)
        base = self._frames.base
        for machine, made in ((self._requests, self._rows), (self._streams, self._stream_rows)):
            found = machine.decided()
            _done(asks, found, base)
            if len(found):
                yield from made(found)
        for waiting in self._stores:
            waiting.end(np.flatnonzero((asks == 1) & (events.source == waiting.source)))
        machine = self._requests
        self._names.prune(
            machine.channels[: machine.heap[HEAP.CHANNELS], CH.DECLARED],
            machine.nodes[: machine.heap[HEAP.NODES], NO.NOTE],
        )

    def finish(self) -> Iterator[Rows]:
        """Yield what is still open: it was not answered."""
        state, streams = self._states(0, 0, 0)
        call(finish, self._compiled, state, streams)
        if len(found := self._requests.decided()):
            yield from self._rows(found)
        if len(found := self._streams.decided()):
            yield from self._stream_rows(found)
        self._fresh()

    def _states(self, count: int, of_streams: int, lacking: int) -> tuple[State, State]:
        state = self._requests.state(count, lacking)
        return state, self._streams.state(self._requests.conn, self._requests.gaps, of_streams)

    def _arguments(self, events: Events, at: Any) -> Any:
        """Return columns of `Arguments` per event; those that are not at these positions have none."""
        made = np.full((len(events), len(AR)), NONE, np.int64)
        made[at] = self._arguments_of(events.only(at))
        return made

    def _arguments_of(self, events: Events) -> Any:
        made = np.empty((len(events), len(AR)), np.int64)
        roles = ROLES[events.what]
        made[:, AR.ASKS] = roles[:, requests.ASKS]
        streams = events.source == STREAM_FRAMES
        made[streams, AR.ASKS] = STREAM_ROLES[events.what[streams]]
        made[:, AR.ANSWERS] = roles[:, requests.ANSWERS]
        made[:, AR.MAY_ANSWER] = roles[:, requests.MAY_ANSWER]
        no_wait = events.ints({FRAMES: "no_wait"})
        unknown = (no_wait < 0) & (events.ints("is_partial") == 1) & (roles[:, requests.MAY_NOT_WAIT] == 1)
        made[:, AR.WAITS] = np.where(unknown, NONE, no_wait != 1)
        made[:, AR.CODE] = events.ints({FRAMES: "reply_code", FRAMES_010: "reply_code", STREAM_FRAMES: "closing_code"})
        made[:, AR.CORRELATION] = events.ints({STREAM_FRAMES: "correlation_id"})
        made[:, AR.KIND] = NONE
        made[:, AR.KEY] = 0
        made[:, AR.NAME] = NONE
        at = np.flatnonzero(events.among(_CLOSES))
        if len(at):
            rows = events.take(FRAMES, at, ("class_id", "method_id"))
            ids = [pc.fill_null(rows[name], 0).to_numpy().astype(np.int64) for name in rows.column_names]
            named = (ids[0] << 16) | ids[1]
            place = np.minimum(np.searchsorted(_NAMED, named), len(_NAMED) - 1)
            kinds = np.where(_NAMED[place] == named, _NAMED_KINDS[place], NONE)
            made[at, AR.KIND] = np.where(pc.is_null(rows["method_id"]), UNKNOWN, kinds)
        for (source, column), methods in _KEYS.items():
            at = np.flatnonzero(events.among([what(source, name) for name in methods]))
            if len(at):
                texts = events.take(source, at, (column,))[column]
                made[at, AR.KEY] = np.where(pc.fill_null(pc.equal(texts, ""), True), 0, hashed(texts, self._compiled))
        at = np.flatnonzero(events.among(_WITH_QUEUE))
        if len(at):
            texts = events.take(FRAMES, at, ("queue",))["queue"].combine_chunks()
            made[at, AR.NAME] = np.where(pc.fill_null(pc.equal(texts, ""), False), NO_NAME, NONE)
            declares = np.flatnonzero(events.among((_DECLARE, _DECLARE_OK))[at])
            if len(declares):
                made[at[declares], AR.NAME] = self._names.numbers(texts.take(pa.array(declares)))
        return made

    @property
    def _stores(self) -> tuple[Waiting, ...]:
        """Rows of open requests."""
        return self._frames, self._frames_010, self._stream_frames

    def _rows(self, found: Any) -> Iterator[Rows]:
        """Yield rows of AMQP."""
        ids = np.where(found[:, FO.HOW] == DROPPED, found[:, FO.ANSWER], found[:, FO.REQUEST])
        for waiting in (self._frames, self._frames_010):
            mine = waiting.has(ids)
            if mine.any():
                yield from self._rows_of(waiting, found[mine])

    def _rows_of(self, waiting: Waiting, found: Any) -> Iterator[Rows]:
        """Yield rows of requests of one table of frames."""
        dropped = found[found[:, FO.HOW] == DROPPED, FO.ANSWER]
        if len(dropped):
            waiting.take(dropped)
        found = found[found[:, FO.HOW] != DROPPED]
        asked = waiting.take(found[:, FO.REQUEST])
        answered = found[:, FO.ANSWER] >= 0
        refused = found[:, FO.HOW] == REFUSED
        plain = answered & ~refused
        place = np.full(len(found), NONE, np.int64)
        place[refused] = np.arange(np.count_nonzero(refused))
        place[plain] = np.count_nonzero(refused) + np.arange(np.count_nonzero(plain))
        closes = waiting.get(found[refused, FO.ANSWER])  # a close is a request as well, so its row is needed again
        others = waiting.take(found[plain, FO.ANSWER])
        parts = [asked.slice(0, 0), closes, others]
        answers = pa.concat_tables(parts, promote_options="default").take(known(place))
        empty = pc.equal(asked["queue"], "")
        declared = self._names.take(np.where(found[:, FO.NOTE] > NO_NAME, found[:, FO.NOTE], NONE))
        server_named = pc.if_else(pc.equal(asked["method"], "queue.declare"), answers["queue"], declared)
        code = pc.if_else(pa.array(refused), answers["reply_code"], None)
        if "code" in answers.column_names:  # of session.detached
            code = pc.coalesce(code, pc.if_else(pc.not_equal(answers["code"], 0), answers["code"], None))
        error = pc.or_(pc.is_valid(code), pa.array(refused))
        yield from _made(
            found,
            asked,
            answers,
            {
                "channel": asked["channel"],
                "channel_epoch": asked["channel_epoch"],
                "request": asked["method"],
                "response": answers["method"],
                "outcome": pc.if_else(error, "error", pa.array(np.where(answered, "ok", "none"))),
                "reply_code": code,
                "reply_text": pc.if_else(error, answers["reply_text"], None),
                "queue": pc.if_else(pc.fill_null(empty, False), server_named, asked["queue"]),
            },
        )

    def _stream_rows(self, found: Any) -> Iterator[Rows]:
        """Yield rows of the stream protocol."""
        asked = self._stream_frames.take(found[:, FO.REQUEST])
        refused = found[:, FO.HOW] == REFUSED
        answered = found[:, FO.ANSWER] >= 0
        place = np.full(len(found), NONE, np.int64)
        place[answered] = np.arange(np.count_nonzero(answered))
        parts = [asked.slice(0, 0), self._stream_frames.get(found[answered, FO.ANSWER])]
        answers = pa.concat_tables(parts, promote_options="default").take(known(place))
        error = pa.array(refused)
        code = pc.if_else(error, answers["closing_code"], answers["response_code"])
        well = pc.and_(pc.invert(error), pc.fill_null(pc.is_in(code, value_set=pa.array(_WELL, code.type)), False))
        failed = pc.and_(pc.invert(pc.or_(well, pc.is_null(code))), pa.array(answered))
        response = pc.binary_join_element_wise(asked["command"], "response", "-")
        response = pc.if_else(pa.array(answered), pc.if_else(error, "close", response), None)
        outcome = pc.if_else(pa.array(answered), pc.if_else(failed, "error", "ok"), "none")
        yield from _made(
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
        parts: dict[str, Any] = {f"requests {name}": part for name, part in self._requests.parts().items()}
        parts |= {f"streams {name}": part for name, part in self._streams.parts().items()}
        for number, waiting in enumerate(self._stores):
            rows = waiting.table()
            if rows is not None:
                parts[f"rows {number}"] = rows
        parts |= {"base": self._frames.base, "names": self._names.table()}
        state = pack("rpcs", VERSION, parts)
        self._fresh()
        return state

    def put_back(self, state: bytes) -> None:
        """Restore the state that `take_out` returned.

        Raises:
            ValueError: the bytes are the state of something else.
        """
        parts = unpack("rpcs", VERSION, state)
        for prefix, machine in (("requests ", self._requests), ("streams ", self._streams)):
            machine.put_back({k.removeprefix(prefix): part for k, part in parts.items() if k.startswith(prefix)})
        for number, waiting in enumerate(self._stores):
            waiting.put_back(parts.get(f"rows {number}"), parts["base"])
        self._names.put_back(parts["names"])


def _done(asks: Any, found: Any, base: int) -> None:
    """Unmark events of this batch that are no longer open."""
    for ids in (found[:, FO.REQUEST], found[found[:, FO.HELD] == 1, FO.ANSWER]):
        asks[ids[ids >= base] - base] = 0


def _made(found: Any, asked: pa.Table, answers: pa.Table, columns: dict[str, Any]) -> Iterator[Rows]:
    """Yield rows of `rpcs`: who asked and who answered when, or why nobody did."""
    columns |= {"connection_id": asked["connection_id"], "from_client": asked["from_client"]}
    columns |= {f"request_{name}": asked[name] for name in _POINT}
    columns |= {f"response_{name}": answers[name] for name in _POINT}
    ended = pa.array(found[:, FO.ANSWER] < 0)
    columns["ended_by"] = pa.array((*ENDED_BY, None, None), pa.string()).take(pa.array(found[:, FO.HOW]))
    columns["end_ts_ns"] = pc.if_else(ended, pa.array(found[:, FO.END_TS]), None)
    start, end = (pc.fill_null(each["ts_ns"], 0).to_numpy() for each in (asked, answers))
    latency = end - start
    overflows = ((end ^ start) & (end ^ latency)) < 0
    missing = found[:, FO.ANSWER] < 0
    columns["latency_ns"] = pa.array(latency, pa.int64(), mask=missing | overflows)
    yield "rpcs", conform("rpcs", columns, len(found))
