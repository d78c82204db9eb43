"""The table `rpcs`: synchronous requests, first in, first out, and what came back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from amqpscope.dissector.kernels.kernel import call
from amqpscope.pipelines.model.digests import hashed
from amqpscope.pipelines.model.events import FRAMES_OF, Events, what
from amqpscope.pipelines.model.names import NO_NAME, Names
from amqpscope.pipelines.model.rows import Waiting
from amqpscope.pipelines.model.speaking import concerns
from amqpscope.pipelines.model.store import pack, unpack
from amqpscope.pipelines.model.unanswered import ENDED_BY
from amqpscope.pipelines.model.walk import Needs, Rows, conform, known
from amqpscope.pipelines.requests import requests
from amqpscope.pipelines.requests.open_requests import CH, DROPPED, FO, HEAP, NO, NONE, REFUSED
from amqpscope.pipelines.requests.requests import UNKNOWN, Requests, end_connection
from amqpscope.pipelines.requests.rpc_frames import AR, walk

VERSION = 5
_COLUMNS = (
    "connection_id", "channel", "channel_epoch", "from_client", "method", "frame_no", "ts_ns", "capture", "packet",
    "reply_code", "reply_text", "queue",
)  # fmt: skip
_POINT = ("ts_ns", "frame_no", "capture", "packet")


@dataclass(frozen=True)
class Asking:
    """What requests and answers of a protocol hold besides their names.

    Attributes:
        source: its table of frames.
        columns: that it has of `rpcs` and of those below.
        keys: columns that a request and its answer have in common, and the methods that have them.
        opens: the method that opens a channel.
        declares: the method that declares a queue, which the server may name, and its answer.
        about_queues: methods with a column `queue`: empty, it means the last one that was declared.
        code: column of answers with an error code besides `reply_code`, which is 0 where all is well.
        waits: column that says that no answer is wanted.
        refuses: columns of closes with class and method of what they refuse.
    """

    source: int
    columns: tuple[str, ...]
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    opens: str = ""
    declares: tuple[str, str] | None = None
    about_queues: tuple[str, ...] = ()
    code: str = ""
    waits: str = ""
    refuses: tuple[str, ...] = ()

    def words(self, *names: str) -> list[int]:
        """Return the numbers (EV.WHAT) of methods."""
        return [what(self.source, name) for name in names if name]


class Rpcs:
    """Pair synchronous requests of a protocol (ASKING) with their answers; rows of `rpcs`."""

    ASKING: ClassVar[Asking]
    tables: ClassVar[tuple[str, ...]] = ("rpcs",)

    def __init__(self, compiled: bool = False) -> None:
        self._compiled = compiled
        self._roles = requests.roles(self.ASKING.source)
        self._has_role = (self._roles[:, [requests.ASKS, requests.ANSWERS]] >= 0).any(axis=1)
        self._fresh()

    @property
    def needs(self) -> Mapping[int, Needs]:
        """What it needs."""
        return {self.ASKING.source: Needs(self.ASKING.columns, requests.methods_of(self.ASKING.source))}

    def _fresh(self) -> None:
        self._requests, self._names = Requests(), Names()
        self._frames = Waiting(self.ASKING.source, (*_COLUMNS, *filter(None, [self.ASKING.code])))

    def feed(self, events: Events) -> Iterator[Rows]:
        """Walk over a batch."""
        if not concerns(events, self._requests.conn, self.ASKING.source):
            return
        self._frames.begin(events)
        asks = np.zeros(len(events), np.int64)
        at = np.flatnonzero(self._has_role[events.what])
        arguments = self._arguments(events, at)
        state, base = self._requests.state(len(at) + events.lacking, events.lacking), self._frames.base
        call(walk, self._compiled, events.matrix, arguments, state, asks, base, self.ASKING.source)
        found = self._requests.decided()
        done(asks, found, base)
        if len(found):
            yield from self._rows(found)
        self._frames.end(np.flatnonzero(asks == 1))
        machine = self._requests
        self._names.prune(
            machine.channels[: machine.heap[HEAP.CHANNELS], CH.DECLARED],
            machine.nodes[: machine.heap[HEAP.NODES], NO.NOTE],
        )

    def finish(self) -> Iterator[Rows]:
        """Yield what is still open: it was not answered."""
        call(end_connection, self._compiled, self._requests.state(0, 0))
        if len(found := self._requests.decided()):
            yield from self._rows(found)
        self._fresh()

    def _arguments(self, events: Events, at: Any) -> Any:
        """Return columns of `Arguments` per event; those that are not at these positions have none."""
        made = np.full((len(events), len(AR)), NONE, np.int64)
        made[at] = self._arguments_of(events.only(at))
        return made

    def _arguments_of(self, events: Events) -> Any:
        of, made = self.ASKING, np.full((len(events), len(AR)), NONE, np.int64)
        role = self._roles[events.what]
        made[:, [AR.ASKS, AR.ANSWERS, AR.MAY_ANSWER]] = role[:, [requests.ASKS, requests.ANSWERS, requests.MAY_ANSWER]]
        no_wait = events.ints({of.source: of.waits} if of.waits else {})
        unknown = (no_wait < 0) & (events.ints("is_partial") == 1) & (role[:, requests.MAY_NOT_WAIT] == 1)
        made[:, AR.WAITS] = np.where(unknown, NONE, no_wait != 1)
        made[:, AR.CODE] = events.ints({of.source: "reply_code"})
        made[:, AR.OPENS] = events.among(of.words(of.opens))
        made[:, AR.DECLARES] = 0
        made[:, AR.KEY] = 0
        at = np.flatnonzero(self._closes(events)) if of.refuses else ()
        if len(at):
            made[at, AR.KIND] = self._refused(events.take(of.source, at, of.refuses))
        for column, methods in of.keys.items():
            at = np.flatnonzero(events.among(of.words(*methods)))
            if len(at):
                texts = events.take(of.source, at, (column,))[column]
                made[at, AR.KEY] = np.where(pc.fill_null(pc.equal(texts, ""), True), 0, hashed(texts, self._compiled))
        at = np.flatnonzero(events.among(of.words(*of.about_queues)))
        if len(at):
            texts = events.take(of.source, at, ("queue",))["queue"].combine_chunks()
            made[at, AR.NAME] = np.where(pc.fill_null(pc.equal(texts, ""), False), NO_NAME, NONE)
            for number, word in enumerate(of.words(*(of.declares or ())), 1):
                made[:, AR.DECLARES] += number * (events.what == word)
            declares = np.flatnonzero(made[at, AR.DECLARES] > 0)
            if len(declares):
                made[at[declares], AR.NAME] = self._names.numbers(texts.take(pa.array(declares)))
        return made

    def _closes(self, events: Events) -> Any:
        """Return which events (bool) close a channel or the connection."""
        frames = FRAMES_OF[self.ASKING.source]
        return events.among(self.ASKING.words(*frames.closes, frames.closes_channel))

    def _refused(self, closes: pa.Table) -> Any:
        """Return the kind of request that each close names; UNKNOWN where that part of it is missing."""
        methods, kinds = requests.asking(self.ASKING.source), requests.kinds(self.ASKING.source)
        by_id = {(method.class_id << 16) | method.id: kinds.index(name) for name, method in methods.items()}
        known_ids, known_kinds = (np.array(each, np.int64) for each in zip(*sorted(by_id.items()), strict=True))
        ids = [pc.fill_null(column, 0).to_numpy().astype(np.int64) for column in closes.columns]
        named = (ids[0] << 16) | ids[1]
        place = np.minimum(np.searchsorted(known_ids, named), len(known_ids) - 1)
        found = np.where(known_ids[place] == named, known_kinds[place], NONE)
        return np.where(pc.is_null(closes[self.ASKING.refuses[1]]), UNKNOWN, found)

    def _rows(self, found: Any) -> Iterator[Rows]:
        """Yield rows of what became of requests."""
        of, waiting = self.ASKING, self._frames
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
        server_named = pc.if_else(
            pc.equal(asked["method"], of.declares[0] if of.declares else ""), answers["queue"], declared
        )
        code = pc.if_else(pa.array(refused), answers["reply_code"], None)
        if of.code:
            code = pc.coalesce(code, pc.if_else(pc.not_equal(answers[of.code], 0), answers[of.code], None))
        error = pc.or_(pc.is_valid(code), pa.array(refused))
        yield from rows(
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

    def take_out(self) -> bytes:
        """Return the state as versioned bytes, and reset the walk."""
        parts: dict[str, Any] = {f"requests {name}": part for name, part in self._requests.parts().items()}
        parts |= {"base": self._frames.base, "names": self._names.table()}
        if (waiting := self._frames.table()) is not None:
            parts["rows"] = waiting
        state = pack("rpcs", VERSION, parts)
        self._fresh()
        return state

    def put_back(self, state: bytes) -> None:
        """Restore the state that `take_out` returned.

        Raises:
            ValueError: the bytes are the state of something else.
        """
        parts = unpack("rpcs", VERSION, state)
        machine = {k.removeprefix("requests "): part for k, part in parts.items() if k.startswith("requests ")}
        self._requests.put_back(machine)
        self._frames.put_back(parts.get("rows"), parts["base"])
        self._names.put_back(parts["names"])


def done(asks: Any, found: Any, base: int) -> None:
    """Unmark events of this batch that are no longer open."""
    for ids in (found[:, FO.REQUEST], found[found[:, FO.HELD] == 1, FO.ANSWER]):
        asks[ids[ids >= base] - base] = 0


def rows(found: Any, asked: pa.Table, answers: pa.Table, columns: dict[str, Any]) -> Iterator[Rows]:
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
