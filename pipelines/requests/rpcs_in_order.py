"""Requests and answers of protocols whose answers come in order, by what a protocol says of them (`Asking`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from amqpscope import spec
from amqpscope.dissector.kernels.arrays import Ints
from amqpscope.pipelines.model.connection import CONN
from amqpscope.pipelines.model.digests import hashed
from amqpscope.pipelines.model.events import EV, FRAMES_OF, SPOKEN, WORDS, Events, what
from amqpscope.pipelines.model.names import NO_NAME
from amqpscope.pipelines.model.walk import Needs, Rows
from amqpscope.pipelines.requests.calm import pairs_of, whole
from amqpscope.pipelines.requests.frames import SUCCESS, Frame
from amqpscope.pipelines.requests.queues import CLOSES_CHANNEL, CLOSES_CONNECTION, NONE, ONCE, Channel, Request
from amqpscope.pipelines.requests.requests import UNKNOWN, Requests
from amqpscope.pipelines.requests.rpcs import Pairs, RpcWalk
from amqpscope.spec.model import Method

_COLUMNS = ("channel", "channel_epoch", "method", "reply_code", "reply_text", "queue")
ASKS, ANSWERS, MAY_ANSWER, MAY_NOT_WAIT = range(4)


@dataclass(frozen=True)
class Asking:
    """What requests and answers of a protocol hold besides their names.

    Attributes:
        columns: that its table of frames has of `rpcs` and of those below.
        keys: columns that a request and its answer have in common, and the methods that have them.
        opens: the method that opens a channel, and its answer.
        declares: the method that declares a queue, which the server may name, and its answer.
        about_queues: methods with a column `queue`: empty, it means the last one that was declared.
        code: column of answers with an error code besides `reply_code`, which is 0 where all is well.
        waits: column that says that no answer is wanted.
        refuses: columns of closes with class and method of what they refuse.
    """

    columns: tuple[str, ...]
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    opens: tuple[str, ...] = ()
    declares: tuple[str, ...] = ()
    about_queues: tuple[str, ...] = ()
    code: str = ""
    waits: str = ""
    refuses: tuple[str, ...] = ()


@cache
def asking(source: int) -> dict[str, Method]:
    """Return the methods of a protocol that ask, by name, but for commands: their answers name their ids."""
    methods = spec.load(SPOKEN[source]).methods
    return {method.full_name: method for method in methods if method.responses and method.kind != "command"}


@cache
def kinds(source: int) -> tuple[str, ...]:
    """Return the methods that ask for an answer; first what closes connection and channel, then what occurs once.

    Args:
        source: the protocol's table of frames.
    """
    frames = FRAMES_OF[source]
    first = ((*frames.closes, "")[0], frames.closes_channel, *frames.once)
    first += ("",) * (ONCE - len(first))
    return (*first, *(name for name in asking(source) if name not in first))


@cache
def roles(source: int) -> Any:
    """Return what methods ask and answer, by EV.WHAT.

    Columns: the kind that it asks, the kind that it answers, another that it answers where none of these is open (-1
    for none), whether it may not wait.
    """
    made = np.full((WORDS, 4), NONE, np.int64)
    for name, method in asking(source).items():
        kind, word = kinds(source).index(name), what(source, name)
        made[word, ASKS] = kind
        made[word, MAY_NOT_WAIT] = any(field.name == "no_wait" for field in method.fields)
        for response in method.responses:
            word = what(source, response)
            made[word, MAY_ANSWER] = made[word, ANSWERS]
            made[word, ANSWERS] = kind
    return made


class RpcsInOrder(RpcWalk):
    """Pair synchronous requests of a protocol (ASKING) with their answers, first in, first out."""

    ASKING: ClassVar[Asking]
    machine: Requests

    def __init__(self, compiled: bool = False) -> None:
        self.OWN = (*_COLUMNS, *filter(None, [self.ASKING.code]))
        self._roles = roles(self.SOURCE)
        self._has_role = (self._roles[:, [ASKS, ANSWERS]] >= 0).any(axis=1)
        super().__init__(compiled)

    @property
    def needs(self) -> Mapping[int, Needs]:
        """See `walk.Walk`."""
        asks = asking(self.SOURCE)
        answers = sorted({response for method in asks.values() for response in method.responses})
        return {self.SOURCE: Needs(self.ASKING.columns, (*asks, *answers), asks=tuple(asks))}

    def _begin(self) -> None:
        super()._begin()
        self._calm = [np.zeros(0, np.int64)] * 2
        """Ids of requests, and of their answers, that need no machine."""

    def _machine(self) -> Requests:
        return Requests(self.opened)

    def _among(self, events: Events, *names: str) -> Any:
        """Return which events (bool) are one of these methods."""
        return events.among([what(self.SOURCE, name) for name in names if name])

    def _taken(self, events: Events) -> tuple[Ints, list[Frame]]:
        matrix = events.matrix
        cut = (matrix[:, EV.CUT] == 1) & (events.source == self.SOURCE)
        at = np.flatnonzero((self._has_role[events.what] | cut) & (matrix[:, EV.FROM_CLIENT] >= 0))
        of, some, role = self.ASKING, events.only(at), self._roles[events.what[at]]
        no_wait = some.ints({self.SOURCE: of.waits} if of.waits else {})
        unknown = (no_wait < 0) & (matrix[at, EV.PARTIAL] == 1) & (role[:, MAY_NOT_WAIT] == 1)
        declares = self._numbered(some, of.declares)
        rows = np.stack(
            [
                *matrix[at[:, None], (EV.FROM_CLIENT, EV.ORDER, EV.TS, EV.CHANNEL, EV.EPOCH)].T,
                cut[at],
                matrix[at, EV.PARTIAL],
                *role[:, [ASKS, ANSWERS, MAY_ANSWER]].T,
                np.where(unknown, NONE, no_wait != 1),
                some.ints({self.SOURCE: "reply_code"}),
                self._refused(some),
                self._numbered(some, of.opens),
                declares,
                self._keys(some),
                self._named(some, declares),
            ],
            axis=1,
        )
        calm, *pairs = pairs_of(rows, matrix[at, EV.CONNECTION], whole(events, at, int(self.opened.conn[CONN.ID])))
        self._calm = [at[each] + self.frames.base for each in pairs]
        return at[~calm], list(map(Frame._make, rows[~calm].tolist()))

    def _decided(self, events: Events | None) -> Iterator[Rows]:
        yield from super()._decided(events)
        requests, answers = self._calm
        if len(requests):
            count = len(requests)
            yield "rpcs", self._rows(requests, answers, np.zeros(count, np.int64), np.full(count, NONE), [None] * count)
        self._calm = [np.zeros(0, np.int64)] * 2

    def _numbered(self, events: Events, names: tuple[str, ...]) -> Ints:
        """Return which of these methods each event is: 1 for the first; 0 for none."""
        made = np.zeros(len(events), np.int64)
        for number, name in enumerate(names, 1):
            made[self._among(events, name)] = number
        return made

    def _keys(self, events: Events) -> Ints:
        """Return digests of what requests and answers have in common."""
        made = np.zeros(len(events), np.int64)
        for column, methods in self.ASKING.keys.items():
            at = np.flatnonzero(self._among(events, *methods))
            if len(at):
                texts = events.take(self.SOURCE, at, (column,))[column]
                made[at] = np.where(pc.fill_null(pc.equal(texts, ""), True), 0, hashed(texts, self.compiled))
        return made

    def _named(self, events: Events, declares: Any) -> Ints:
        """Return numbers of queues (`Frame.name`), whose names are those of `_texts`."""
        made = np.full(len(events), NONE, np.int64)
        self._texts: list[str] = [""]
        at = np.flatnonzero(self._among(events, *self.ASKING.about_queues))
        if len(at):
            texts = events.take(self.SOURCE, at, ("queue",))["queue"].combine_chunks()
            empty = pc.fill_null(pc.equal(texts, ""), False).to_numpy(zero_copy_only=False)
            named = (declares[at] > 0) & ~empty & texts.is_valid().to_numpy(zero_copy_only=False)
            self._texts += texts.filter(pa.array(named)).to_pylist()
            made[at[empty]] = NO_NAME
            made[at[named]] = np.arange(1, len(self._texts))
        return made

    def _refused(self, events: Events) -> Ints:
        """Return the kind of request that each close names; UNKNOWN where that part of it is missing."""
        made, refuses = np.full(len(events), NONE, np.int64), self.ASKING.refuses
        frames, methods = FRAMES_OF[self.SOURCE], asking(self.SOURCE)
        at = np.flatnonzero(self._among(events, *frames.closes, frames.closes_channel)) if refuses else ()
        if len(at):
            by_id = {(each.class_id, each.id): kinds(self.SOURCE).index(name) for name, each in methods.items()}
            rows = events.take(self.SOURCE, at, refuses)
            named = zip(*(column.to_pylist() for column in rows.columns), strict=True)
            made[at] = [UNKNOWN if each[1] is None else by_id.get((each[0] or 0, each[1]), NONE) for each in named]
        return made

    def _take(self, frame: Frame, event: int) -> None:
        machine, side = self.machine, frame.side
        channel = machine.channel(frame.channel, frame.epoch, frame.number, frame.opens == 1)
        if frame.opens == 2:
            machine.reopened(channel, frame.number, frame.ts)
        if frame.is_cut or (frame.asks >= 0 and frame.waits < 0):
            machine.cut_frame(channel, side, frame.number, frame.ts)
        elif frame.answers >= 0:
            self._answer(channel, frame, event)
        else:
            if frame.asks in (CLOSES_CHANNEL, CLOSES_CONNECTION):
                self._close(channel, frame, event)
            note = self._note(channel, frame, event)
            if frame.waits == 1:
                machine.ask(channel, frame.asks, side, Request(event, frame.number, frame.ts, frame.key, note))

    def _answer(self, channel: Channel, frame: Frame, event: int) -> None:
        machine, other, kind = self.machine, 1 - frame.side, frame.answers
        request = machine.answer(channel, kind, other, event, frame.number, frame.key)
        if request == NONE and frame.may_answer >= 0:
            request = machine.answer(channel, frame.may_answer, other, event, frame.number, frame.key)
        if request == NONE and kind in (CLOSES_CHANNEL, CLOSES_CONNECTION):
            machine.close_missing(channel, other, frame.number, frame.ts, kind == CLOSES_CONNECTION)
        if frame.declares == 2 and 0 <= request == channel.declared_by:
            channel.declared = self._texts[frame.name] if frame.name > NO_NAME else None

    def _close(self, channel: Channel, frame: Frame, event: int) -> None:
        side, whole = frame.side, frame.asks == CLOSES_CONNECTION
        if frame.is_partial == 1 and frame.refuses == UNKNOWN and frame.code != SUCCESS:
            self.machine.close_missing(channel, side, frame.number, frame.ts, whole)
        named = frame.refuses if frame.code >= 0 and frame.code != SUCCESS else NONE
        self.machine.close(channel, side, frame.number, frame.ts, whole, named, event)

    def _note(self, channel: Channel, frame: Frame, event: int) -> str | None:
        """Return the name of the queue that a request means by an empty one."""
        if frame.declares == 1:
            channel.declared = self._texts[frame.name] if frame.name > NO_NAME else None
            channel.declared_by = event if frame.name == NO_NAME else NONE
            channel.declared_frame = frame.number
        elif frame.name == NO_NAME and channel.declared is not None:
            if not self.machine.may_lack_requests(channel, frame.side, channel.declared_frame, frame.number):
                return channel.declared
        return None

    def _columns(self, pairs: Pairs) -> dict[str, Any]:
        of, asked, answers = self.ASKING, pairs.asked, pairs.answers
        declared = pa.array(pairs.notes, pa.string())
        if of.declares:
            declared = pc.if_else(pc.equal(asked["method"], of.declares[0]), answers["queue"], declared)
        code = pc.if_else(pa.array(pairs.refused), answers["reply_code"], None)
        if of.code:
            code = pc.coalesce(code, pc.if_else(pc.not_equal(answers[of.code], 0), answers[of.code], None))
        error = pc.or_(pc.is_valid(code), pa.array(pairs.refused))
        return {
            "channel": asked["channel"],
            "channel_epoch": asked["channel_epoch"],
            "request": asked["method"],
            "response": answers["method"],
            "outcome": pc.if_else(error, "error", pa.array(np.where(pairs.answered, "ok", "none"))),
            "reply_code": code,
            "reply_text": pc.if_else(error, answers["reply_text"], None),
            "queue": pc.if_else(pc.fill_null(pc.equal(asked["queue"], ""), False), declared, asked["queue"]),
        }
