"""Flow control: the intervals in which one side made the other wait, where that side asked for it.

Two causes are found here: connection.blocked and channel.flow. What an event does to waits:

| event                                | waits                                                                      |
|--------------------------------------|----------------------------------------------------------------------------|
| connection.blocked, of the broker    | one of the connection begins, unless it waits already                      |
| connection.unblocked, of the broker  | that one ends                                                              |
| channel.flow, not active             | one of the channel and that side begins, unless it waits already; the      |
|                                      | first after a gap, or in the middle of a channel, has no duration: an      |
|                                      | earlier one may be missing                                                 |
| channel.flow, active                 | that one ends                                                              |
| channel.flow that is cut             | that one ends, when is unknown                                             |
| channel.flow-ok, not active          | that of the other side was accepted                                        |
| channel.close, or channel.open anew  | those of the channel end                                                   |
| connection.close                     | all end; later frames begin none                                           |
| one of these that refuses flows, 540 | those of the other side that were not accepted were none: they have no row |
|                                      | (what is cut off of it may say so)                                         |
| connection.close, of the client      | its own flows that were not accepted were none: they have no row           |
| gap, of either side                  | all end, when is unknown: what would end them may lie there                |
| frame of which nothing is known      | those of its channel end, when is unknown (channel 0: of the connection)   |
| FIN or RST                           | all end                                                                    |
| end of the capture                   | all end, when is unknown                                                   |
| one of the last four                 | a client's channel.flow that was not accepted was none                     |
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np
import pyarrow.compute as pc

from amqpscope import spec
from amqpscope.dissector.kernels.arrays import Ints
from amqpscope.pipelines.amqp091.frames import FRAMES, PROTOCOL
from amqpscope.pipelines.model.connection import CLIENT, CONN, GAP_WORDS, GAPS, SERVER
from amqpscope.pipelines.model.ends import answers_of, durations
from amqpscope.pipelines.model.events import ANOMALIES, CONNECTIONS, EV, Events, what
from amqpscope.pipelines.model.steps import StepWalk
from amqpscope.pipelines.model.walk import Needs, Rows, conform, known

METHODS = (
    "connection.blocked", "connection.unblocked", "connection.close", "channel.flow", "channel.flow-ok",
    "channel.open", "channel.close",
)  # fmt: skip
BLOCKED, UNBLOCKED, CLOSE, FLOW, FLOW_OK, OPEN, CHANNEL_CLOSE = _WORDS = [what(FRAMES, method) for method in METHODS]
_CONNECTION = what(CONNECTIONS)
_AMQP = spec.load(PROTOCOL)
REFUSAL = (
    _AMQP.constant("not-implemented").value, _AMQP.method("channel.flow").class_id, _AMQP.method("channel.flow").id,
)  # fmt: skip
"""Reply code, class and method of the close with which RabbitMQ answers a client's channel.flow that is not active."""

Scope = tuple[int, int]
"""What a wait belongs to: a channel's number and the side that holds it (channel.flow), or THE_CONNECTION."""
THE_CONNECTION: Scope = (-1, SERVER)


class Step(NamedTuple):
    """An event that may matter to waits; -1 for null."""

    word: int
    """EV.WHAT"""
    side: int
    channel: int
    epoch: int
    ts: int
    is_gap: int
    is_cut: int
    """1 where its content is unknown."""
    active: int
    refuses: int
    """1 for a close that says that channel.flow is not implemented."""
    silence_ts: int
    """Of a connection's row: time of its first FIN or RST, else of its last packet."""
    ended: int
    """Of a connection's row: whether there was a FIN or RST; not where a direction is missing, in which it may have
    been closed before."""


@dataclass(slots=True)
class Wait:
    """A wait that is not over."""

    opener: int
    """Id of the event with which it began."""
    epoch: int
    accepted: bool = False
    """Of channel.flow: whether it was answered."""
    begun: bool = True
    """Whether it began with its opener for sure: an earlier one may not have been captured."""


@dataclass(slots=True)
class Open:
    """The connection that is open."""

    silence_ts: int = -1
    """Time of its first FIN or RST, else of its last packet; -1 where it has no row."""
    ended: bool = False
    """Whether there was a FIN or RST."""
    closed: bool = False
    """Whether connection.close was seen."""
    waits: dict[tuple[int, int], Wait] = field(default_factory=dict)
    """At most two for each of 65,535 channels, and one; by scope."""
    shut: dict[int, int] = field(default_factory=dict)
    """Channels that were closed, with their epoch."""
    flowed: set[tuple[int, int]] = field(default_factory=set)
    """Channels and sides with a channel.flow since the last gap."""
    lossy: bool = False
    """Whether there was a gap."""


class Ended(NamedTuple):
    """A wait that ended."""

    opener: int
    closer: int
    """Id of the frame with which it ended; -1 for none."""
    until: int
    """When it ended, or until when it certainly went on; -1 where that is unknown."""
    seen: bool
    """Whether its end was seen."""
    begun: bool
    """Whether its beginning was seen."""


class FlowControl(StepWalk):
    """The walk that writes rows of `flow_control` of causes connection-blocked and channel-flow.

    The state of a connection is at most two waits per channel and one more, and a number per closed channel.
    """

    SOURCE, NAME, VERSION = FRAMES, "flow_control", 4
    COLUMNS = (
        "connection_id", "channel", "channel_epoch", "method", "reason", "from_client", "frame_no", "capture", "packet",
        "ts_ns",
    )  # fmt: skip
    tables = ("flow_control",)
    needs: ClassVar[Mapping[int, Needs]] = {
        CONNECTIONS: Needs(),
        ANOMALIES: Needs((), GAPS),
        FRAMES: Needs(("reason", "active", "reply_code", "class_id", "method_id"), METHODS),
    }

    def _begin(self) -> None:
        self._open = Open()
        self._openers: set[int] = set()
        self._ended: list[Ended] = []
        self._refused: list[int] = []

    @property
    def state(self) -> Open:
        """See `StepWalk`."""
        return self._open

    @state.setter
    def state(self, state: Open) -> None:
        self._open = state

    @property
    def needed(self) -> set[int]:
        """See `StepWalk`."""
        return self._openers

    def _taken(self, events: Events) -> tuple[Ints, list[Step]]:
        matrix = events.matrix
        cut = (matrix[:, EV.CUT] == 1) & (events.source == FRAMES)
        gap = events.among(GAP_WORDS) & (matrix[:, EV.FROM_CLIENT] >= 0)
        connection = matrix[:, EV.CONNECTION]
        waiting = [*connection[events.among((BLOCKED, FLOW))], self.opened.conn[CONN.ID], *connection[-1:]]
        at = np.flatnonzero(events.among([*_WORDS, _CONNECTION]) | cut | gap)
        at = at[np.isin(connection[at], waiting)]
        some, rows = events.only(at), matrix[at]
        own = [some.ints({FRAMES: name}) for name in ("reply_code", "class_id", "method_id")]
        unread = rows[:, EV.PARTIAL] == 1
        refuses = np.all(
            [(column == value) | (unread & (column < 0)) for column, value in zip(own, REFUSAL, strict=True)], axis=0
        )
        closed = rows[:, EV.NUMBER]
        columns = (
            *rows[:, (EV.WHAT, EV.FROM_CLIENT, EV.CHANNEL, EV.EPOCH, EV.TS)].T,
            gap[at],
            cut[at],
            some.ints({FRAMES: "active"}),
            refuses,
            np.where(closed >= 0, closed, rows[:, EV.TS]),
            (rows[:, EV.MULTIPLE] == 1) & (rows[:, EV.RESPONSE] != 1),
        )
        return at, list(map(Step._make, np.stack(columns, axis=1).tolist()))

    def _take(self, step: Step, event: int) -> None:
        """Apply an event to waits, as the table above says."""
        word, channel = step.word, step.channel
        if word == _CONNECTION:
            self._open.silence_ts, self._open.ended = step.silence_ts, bool(step.ended)
        elif word == BLOCKED and step.side == SERVER:
            self._hold(THE_CONNECTION, step, event)
        elif word == UNBLOCKED and step.side == SERVER:
            self._release(THE_CONNECTION, step, event)
        elif word == FLOW and step.active == 0:
            self._hold((channel, step.side), step, event)
        elif word == FLOW and step.active == 1:
            self._release((channel, step.side), step, event)
        elif word == FLOW:  # what it asks for is unknown
            self._lose([(channel, step.side)], step)
        elif word == FLOW_OK:
            wait = self._open.waits.get((channel, CLIENT - step.side))
            if wait is not None and step.active != 1:
                wait.accepted = True
        elif word == CLOSE:
            self._close(list(self._open.waits), step, event)
            self._open.closed = True
        elif word == CHANNEL_CLOSE:
            self._close(_of(channel), step, event)
            self._open.shut[channel] = step.epoch
        elif word == OPEN:
            self._close(_of(channel), step, event)
        elif step.is_gap:
            self._lose(list(self._open.waits), step)
            self._open.flowed.clear()
            self._open.lossy = True
        elif step.is_cut:
            self._lose(_of(channel) if channel else [THE_CONNECTION], step)

    def _hold(self, scope: Scope, step: Step, event: int) -> None:
        now = self._open
        is_over = now.closed or (scope != THE_CONNECTION and now.shut.get(step.channel, -1) >= step.epoch)
        if scope not in now.waits and not is_over:
            begun = scope in now.flowed or scope == THE_CONNECTION or (step.epoch > 0 and not now.lossy)
            now.waits[scope] = Wait(event, step.epoch, begun=begun)
            self._openers.add(event)
        if scope != THE_CONNECTION:
            now.flowed.add(scope)

    def _release(self, scope: Scope, step: Step, event: int) -> None:
        wait = self._open.waits.pop(scope, None)
        if scope != THE_CONNECTION:
            self._open.flowed.add(scope)
        if wait is not None:
            self._end(wait, event, step.ts, True)

    def _lose(self, scopes: Iterable[Scope], step: Step) -> None:
        """End waits that may or may not go on."""
        for scope in scopes:
            wait = self._open.waits.pop(scope, None)
            if wait is not None:
                self._unknown(scope, wait, step.ts, False)

    def _close(self, scopes: Iterable[Scope], step: Step, event: int) -> None:
        """End these waits with their channel or connection; those that were refused were none.

        Nor were those of a client that closes its connection before the broker accepts them: it may refuse them behind
        that close.
        """
        for scope in scopes:
            wait = self._open.waits.pop(scope, None)
            if wait is None:
                continue
            gone = step.word == CLOSE and scope[1] == CLIENT == step.side
            refused = gone or (step.refuses and scope[1] != step.side)
            if refused and scope != THE_CONNECTION and not wait.accepted:
                self._refuse(wait)
            else:
                self._end(wait, event, step.ts, True)

    def _over(self) -> None:
        """End the connection: open waits end with its FIN or RST, or go on at the end of the capture."""
        now = self._open
        for scope, wait in now.waits.items():
            self._unknown(scope, wait, now.silence_ts, now.ended)
        self._open = Open()

    def _unknown(self, scope: Scope, wait: Wait, until: int, seen: bool) -> None:
        """End a wait without a frame. A client's that the broker was not seen to accept was none."""
        if scope != THE_CONNECTION and scope[1] == CLIENT and not wait.accepted:
            self._refuse(wait)
        else:
            self._end(wait, -1, until, seen)

    def _end(self, wait: Wait, closer: int, until: int, seen: bool) -> None:
        self._openers.discard(wait.opener)
        self._ended.append(Ended(wait.opener, closer, until, seen, wait.begun))

    def _refuse(self, wait: Wait) -> None:
        self._openers.discard(wait.opener)
        self._refused.append(wait.opener)

    def _decided(self, events: Events | None) -> Iterator[Rows]:
        if self._refused:
            self.frames.take(np.array(self._refused, np.int64))
            self._refused = []
        if not self._ended:
            return
        openers, closers, until, seen, begun = (np.array(each) for each in zip(*self._ended, strict=True))
        self._ended = []
        opener = self.frames.take(openers)
        ends = answers_of(events, closers, self.frames.base, FRAMES, ("frame_no", "capture", "packet"))
        start = opener["ts_ns"].to_numpy()
        # What is not timed by a frame lasted until then, if it had begun by then.
        until = np.where((closers < 0) & (until >= 0), np.maximum(start, until), until)
        blocked = pc.equal(opener["method"], "connection.blocked")
        columns = {
            "connection_id": opener["connection_id"],
            **{name: pc.if_else(blocked, None, opener[name]) for name in ("channel", "channel_epoch")},
            "cause": pc.if_else(blocked, "connection-blocked", "channel-flow"),
            **{f"start_{name}": opener[name] for name in ("frame_no", "ts_ns", "capture", "packet")},
            **{f"end_{name}": column for name, column in ends.items()},
            "end_ts_ns": known(np.where(seen, until, -1)),
            "duration_ns": known(np.where(begun, durations(start, until), -1)),
            "side": pc.if_else(opener["from_client"], "client", "server"),
            "evidence": "proven",
            "reason": pc.if_else(blocked, opener["reason"], None),
        }
        yield "flow_control", conform("flow_control", columns, len(openers))


def _of(channel: int) -> tuple[Scope, ...]:
    return (channel, SERVER), (channel, CLIENT)
