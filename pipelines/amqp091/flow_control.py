"""Flow control: the intervals in which one side made the other wait, where that side asked for it.

Two causes are found here: connection.blocked and channel.flow. Few frames matter: `flow_steps`
selects them, and plain Python goes over them. What an event does to waits:

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
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from amqpscope.pipelines.amqp091.flow_steps import (
    ASKED,
    BLOCKED,
    CHANNEL_CLOSE,
    CLOSE,
    FLOW,
    FLOW_OK,
    METHODS,
    OPEN,
    UNBLOCKED,
    Step,
    relevant,
    silences,
)
from amqpscope.pipelines.amqp091.frames import FRAMES
from amqpscope.pipelines.model.connection import CLIENT, GAP_WORDS, GAPS, SERVER
from amqpscope.pipelines.model.ends import durations
from amqpscope.pipelines.model.events import ANOMALIES, CONNECTIONS, EV, Events
from amqpscope.pipelines.model.rows import Waiting
from amqpscope.pipelines.model.store import pack, unpack
from amqpscope.pipelines.model.walk import Needs, Rows, conform, known

NAME, VERSION = "flow_control", 2
_OPENER = (
    "connection_id", "channel", "channel_epoch", "method", "reason", "from_client", "frame_no", "capture", "packet",
    "ts_ns",
)  # fmt: skip

Scope = tuple[int, int]
"""What a wait belongs to: a channel's number and the side that holds it (channel.flow), or THE_CONNECTION."""
THE_CONNECTION: Scope = (-1, SERVER)


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


@dataclass
class Open:
    """The connection that is open."""

    identity: int = -1
    silence_ts: int = -1
    """Time of its first FIN or RST, else of its last packet; -1 where it has no row."""
    ended: bool = False
    """Whether there was a FIN or RST."""
    closed: bool = False
    """Whether connection.close was seen."""
    waits: dict[Scope, Wait] = field(default_factory=dict)
    """At most two for each of 65,535 channels, and one."""
    shut: dict[int, int] = field(default_factory=dict)
    """Channels that were closed, with their epoch."""
    flowed: set[Scope] = field(default_factory=set)
    """Channels and sides with a channel.flow since the last gap."""
    lossy: bool = False
    """Whether there was a gap."""


@dataclass
class Ended:
    """Waits that ended in a batch, as columns."""

    opener: list[int] = field(default_factory=list)
    at: list[int] = field(default_factory=list)
    """Position of the frame with which it ended; -1 for none."""
    until: list[int] = field(default_factory=list)
    """When it ended, or until when it certainly went on; -1 where that is unknown."""
    seen: list[bool] = field(default_factory=list)
    """Whether its end was seen."""
    begun: list[bool] = field(default_factory=list)
    """Whether its beginning was seen."""

    def add(self, wait: Wait, at: int, until: int, seen: bool) -> None:
        """Add a wait that ended."""
        self.opener.append(wait.opener)
        self.at.append(at)
        self.until.append(until)
        self.seen.append(seen)
        self.begun.append(wait.begun)


class FlowControl:
    """The walk that writes rows of `flow_control` of causes connection-blocked and channel-flow.

    The state of a connection is at most two waits per channel and one more, and a number per closed channel.
    """

    tables = ("flow_control",)
    needs: ClassVar[Mapping[int, Needs]] = {
        CONNECTIONS: Needs(),
        ANOMALIES: Needs((), GAPS),
        FRAMES: Needs(("reason", *ASKED), METHODS),
    }

    def __init__(self, compiled: bool = False) -> None:
        self.compiled = compiled
        self._renew()

    def _renew(self) -> None:
        self._open = Open()
        self._openers = Waiting(FRAMES, _OPENER)
        self._refused: list[int] = []

    def feed(self, events: Events) -> Iterator[Rows]:
        """Walk over a batch; yield rows of waits that ended."""
        if not len(events):
            return
        self._openers.begin(events)
        ended, stepped = Ended(), False
        for step in relevant(events, self._open.identity, self._open.waits):
            if step.identity != self._open.identity:
                self._silence(ended)
                self._open = Open(step.identity, step.silence_ts, step.ended)
                stepped = False
            self._step(step, ended)
            stepped |= step.is_gap
        self._remember(events, ended, stepped)
        yield from self._rows(ended, events)
        base = self._openers.base
        still = [wait.opener - base for wait in self._open.waits.values() if wait.opener >= base]
        self._openers.end(np.array(sorted(still), np.int64))

    def finish(self) -> Iterator[Rows]:
        """Yield rows of waits that are still open."""
        ended = Ended()
        self._silence(ended)
        yield from self._rows(ended, None)
        self._renew()

    def take_out(self) -> bytes:
        """Return the state of the open connection as versioned bytes, and reset the walk."""
        now = self._open
        waits = [[*scope, wait.opener, wait.epoch, wait.accepted, wait.begun] for scope, wait in now.waits.items()]
        parts: dict[str, Any] = {
            "connection": [now.identity, now.silence_ts, now.ended, now.closed, now.lossy],
            "waits": np.array(waits, np.int64).reshape(-1, 6),
            "flowed": np.array(list(now.flowed), np.int64).reshape(-1, 2),
            "shut": np.array(list(now.shut.items()), np.int64).reshape(-1, 2),
            "base": self._openers.base,
        }
        openers = self._openers.table()
        if openers is not None:
            parts["openers"] = openers
        self._renew()
        return pack(NAME, VERSION, parts)

    def put_back(self, state: bytes) -> None:
        """Restore the state that `take_out` returned.

        Raises:
            ValueError: the bytes are the state of something else.
        """
        parts = unpack(NAME, VERSION, state)
        waits = {
            (channel, side): Wait(opener, epoch, bool(accepted), bool(begun))
            for channel, side, opener, epoch, accepted, begun in parts["waits"].tolist()
        }
        self._renew()
        identity, silence_ts, ended, closed, lossy = parts["connection"]
        flowed = {(channel, side) for channel, side in parts["flowed"].tolist()}
        self._open = Open(identity, silence_ts, ended, closed, waits, dict(parts["shut"].tolist()), flowed, lossy)
        self._openers.put_back(parts.get("openers"), parts["base"])

    def _step(self, step: Step, ended: Ended) -> None:
        """Apply an event to waits, as the table above says."""
        word, channel = step.word, step.channel
        if word == BLOCKED and step.side == SERVER:
            self._hold(THE_CONNECTION, step)
        elif word == UNBLOCKED and step.side == SERVER:
            self._release(THE_CONNECTION, step, ended)
        elif word == FLOW and step.active is False:
            self._hold((channel, step.side), step)
        elif word == FLOW and step.active is True:
            self._release((channel, step.side), step, ended)
        elif word == FLOW:  # what it asks for is unknown
            self._lose([(channel, step.side)], step, ended)
        elif word == FLOW_OK:
            wait = self._open.waits.get((channel, CLIENT - step.side))
            if wait is not None and step.active is not True:
                wait.accepted = True
        elif word == CLOSE:
            self._over(list(self._open.waits), step, ended)
            self._open.closed = True
        elif word == CHANNEL_CLOSE:
            self._over(_of(channel), step, ended)
            self._open.shut[channel] = step.epoch
        elif word == OPEN:
            self._over(_of(channel), step, ended)
        elif step.is_gap:
            self._lose(list(self._open.waits), step, ended)
            self._open.flowed.clear()
            self._open.lossy = True
        elif step.is_cut:
            self._lose(_of(channel) if channel else [THE_CONNECTION], step, ended)

    def _hold(self, scope: Scope, step: Step) -> None:
        now = self._open
        is_over = now.closed or (scope != THE_CONNECTION and now.shut.get(step.channel, -1) >= step.epoch)
        if scope not in now.waits and not is_over:
            begun = scope in now.flowed or scope == THE_CONNECTION or (step.epoch > 0 and not now.lossy)
            now.waits[scope] = Wait(self._openers.base + step.at, step.epoch, begun=begun)
        if scope != THE_CONNECTION:
            now.flowed.add(scope)

    def _release(self, scope: Scope, step: Step, ended: Ended) -> None:
        wait = self._open.waits.pop(scope, None)
        if scope != THE_CONNECTION:
            self._open.flowed.add(scope)
        if wait is not None:
            ended.add(wait, step.at, step.ts, True)

    def _lose(self, scopes: Iterable[Scope], step: Step, ended: Ended) -> None:
        """End waits that may or may not go on."""
        for scope in scopes:
            wait = self._open.waits.pop(scope, None)
            if wait is not None:
                self._unknown(scope, wait, step.ts, False, ended)

    def _over(self, scopes: Iterable[Scope], step: Step, ended: Ended) -> None:
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
                self._refused.append(wait.opener)
            else:
                ended.add(wait, step.at, step.ts, True)

    def _silence(self, ended: Ended) -> None:
        """End the connection: open waits end with its FIN or RST, or go on at the end of the capture."""
        now = self._open
        for scope, wait in now.waits.items():
            self._unknown(scope, wait, now.silence_ts, now.ended, ended)
        now.waits.clear()

    def _unknown(self, scope: Scope, wait: Wait, until: int, seen: bool, ended: Ended) -> None:
        """End a wait without a frame. A client's that the broker was not seen to accept was none."""
        if scope != THE_CONNECTION and scope[1] == CLIENT and not wait.accepted:
            self._refused.append(wait.opener)
        else:
            ended.add(wait, -1, until, seen)

    def _remember(self, events: Events, ended: Ended, stepped: bool) -> None:
        """Remember what the next batch needs of the last connection of this one; `stepped`: its gaps were steps."""
        connection = events.matrix[:, EV.CONNECTION]
        last = int(connection[-1])
        if last != self._open.identity:
            self._silence(ended)
            silence_ts, has_end = silences(events, np.array([len(events) - 1]))
            self._open = Open(last, int(silence_ts[0]), bool(has_end[0]))
        closes = np.flatnonzero((events.what == CLOSE) | (events.what == CHANNEL_CLOSE))
        closes = closes[connection[closes] == last]
        self._open.closed |= bool(np.any(events.what[closes] == CLOSE))
        lost = events.among(GAP_WORDS) & (connection == last) & (events.matrix[:, EV.FROM_CLIENT] >= 0)
        if lost.any() and not stepped:
            self._open.flowed.clear()
        self._open.lossy |= bool(lost.any())
        shut = events.matrix[closes[events.what[closes] == CHANNEL_CLOSE]]
        self._open.shut.update(zip(shut[:, EV.CHANNEL].tolist(), shut[:, EV.EPOCH].tolist(), strict=True))

    def _rows(self, ended: Ended, events: Events | None) -> Iterator[Rows]:
        if self._refused:
            self._openers.take(np.array(self._refused, np.int64))
            self._refused = []
        if not ended.opener:
            return
        opener = self._openers.take(np.array(ended.opener, np.int64))
        at, seen = np.array(ended.at, np.int64), np.array(ended.seen, bool)
        start, until = opener["ts_ns"].to_numpy(), np.array(ended.until, np.int64)
        # What is not timed by a frame lasted until then, if it had begun by then.
        until = np.where((at < 0) & (until >= 0), np.maximum(start, until), until)
        blocked = pc.equal(opener["method"], "connection.blocked")
        columns = {
            "connection_id": opener["connection_id"],
            **{name: pc.if_else(blocked, None, opener[name]) for name in ("channel", "channel_epoch")},
            "cause": pc.if_else(blocked, "connection-blocked", "channel-flow"),
            **{f"start_{name}": opener[name] for name in ("frame_no", "ts_ns", "capture", "packet")},
            **_ends(at, events),
            "end_ts_ns": known(np.where(seen, until, -1)),
            "duration_ns": known(np.where(ended.begun, durations(start, until), -1)),
            "side": pc.if_else(opener["from_client"], "client", "server"),
            "evidence": "proven",
            "reason": pc.if_else(blocked, opener["reason"], None),
        }
        yield "flow_control", conform("flow_control", columns, len(at))


def _of(channel: int) -> tuple[Scope, ...]:
    return (channel, SERVER), (channel, CLIENT)


def _ends(at: Any, events: Events | None) -> dict[str, Any]:
    """Return columns of the frames at these positions; null for -1."""
    there = at >= 0
    if events is None or not there.any():
        return {}
    frames = events.take(FRAMES, at[there], ("frame_no", "capture", "packet"))
    place = pa.array(np.cumsum(there) - 1, mask=~there)
    return {f"end_{name}": frames[name].take(place) for name in frames.column_names}
