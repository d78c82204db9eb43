"""Channel errors: channels and connections that were closed with an error, and what it is about.

A close names the class and method of the request that it refuses. The queue and the exchange are those of the last such
request of the other side on that channel (connection.close: on any channel, where channels do not differ). They are
unknown if unseen frames may lie between the two. Requests may be most of all frames, errors are few: of the requests
before an error, or anything else that matters to it, only the last ones of their kind are looked at.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa

from amqpscope import spec
from amqpscope.dissector.kernels.arrays import Ints
from amqpscope.pipelines.amqp091.frames import FRAMES, PROTOCOL
from amqpscope.pipelines.model.connection import CLIENT, GAP_WORDS, GAPS
from amqpscope.pipelines.model.events import ANOMALIES, EV, Events, what
from amqpscope.pipelines.model.refusals import FINE, REACH
from amqpscope.pipelines.model.remembered import Remembers
from amqpscope.pipelines.model.walk import Needs, Rows, schema

_AMQP = spec.load(PROTOCOL)
REQUESTS = tuple(
    method.full_name
    for method in _AMQP.methods
    if method.from_client and {"queue", "exchange"} & {field.name for field in method.fields}
)
"""Methods of clients that name a queue or an exchange."""
DECLARED = "queue.declare-ok"
"""The queue that an empty name means."""
CLOSES = ("channel.close", "connection.close")

_CLOSE, _CONNECTION_CLOSE = _CLOSES = [what(FRAMES, method) for method in CLOSES]
_REQUESTS = [what(FRAMES, method) for method in REQUESTS]
_DECLARED, _DECLARE = what(FRAMES, DECLARED), what(FRAMES, "queue.declare")
_METHODS = {(method.class_id, method.id): method.full_name for method in _AMQP.methods} | {(0, 0): None}
_NAMES = ("queue", "exchange")
_SAID = {name: re.compile(rf"{name} '([^']+)' in vhost") for name in _NAMES}
_CLOSE_COLUMNS = (
    "connection_id", "channel", "channel_epoch", "from_client", "method", "reply_code", "reply_text", "frame_no",
    "capture", "packet", "ts_ns",
)  # fmt: skip
_CUT = 0
"""EV.WHAT of a frame whose content is unknown."""
_GAP = -1
"""Stands for that of all gaps."""

Kind = tuple[int, int]
"""EV.WHAT and side."""


class Request(NamedTuple):
    """A request, a queue.declare-ok, or a frame with unknown content."""

    order: int
    """Number of its frame."""
    epoch: int
    queue: str | None
    exchange: str | None


class ChannelErrors(Remembers):
    """The walk that writes `channel_errors`: one row per close with an error.

    State is the last request of each method on each channel of the open connection, within REACH and since the last
    gap of its side.
    """

    tables = ("channel_errors",)
    needs: ClassVar[Mapping[int, Needs]] = {
        ANOMALIES: Needs((), GAPS),
        FRAMES: Needs(
            ("reply_code", "reply_text", "class_id", "method_id", *_NAMES), (*REQUESTS, DECLARED, *CLOSES), REQUESTS
        ),
    }
    STATE = ("_connection", "_remembered")

    def forget(self) -> None:
        """See `Remembers`."""
        self._connection = -1
        self.last: dict[Kind, dict[int, Request]] = {}
        """By channel, the latest one last."""

    def feed(self, events: Events) -> Iterator[Rows]:
        """Walk over a batch; yield rows of its errors."""
        if not len(events):
            return
        at, words = _that_matter(events)
        steps = events.matrix[at[:, None], (EV.CONNECTION, EV.FROM_CLIENT, EV.CHANNEL, EV.EPOCH, EV.ORDER)].tolist()
        names = iter(events.take(FRAMES, at[words != _GAP], _NAMES).to_pylist())
        closing = at[np.isin(words, _CLOSES)]
        closes = iter(events.take(FRAMES, closing, (*_CLOSE_COLUMNS, "class_id", "method_id")).to_pylist())
        found = []
        for word, (connection, side, channel, epoch, order) in zip(words.tolist(), steps, strict=True):
            self._go_on(connection)
            if word == _GAP:
                self.last = {kind: requests for kind, requests in self.last.items() if kind[1] != side}
                continue
            request = Request(order, epoch, **next(names))
            if word in _CLOSES:
                close = next(closes)
                if close["reply_code"] is not None and close["reply_code"] not in FINE:
                    found.append(self._error(close, request, word, CLIENT - side, channel))
                continue
            if request.queue == "" and word != _DECLARED:
                declared = None if word == _DECLARE else self._on_channel(_DECLARED, CLIENT - side, channel, request)
                request = request._replace(queue=declared and declared.queue)
            requests = self.last.setdefault((word, side), {})
            requests.pop(channel, None)
            requests[channel] = request
        if found:
            yield "channel_errors", pa.Table.from_pylist(found, schema("channel_errors"))
        connection, order = events.matrix[-1, [EV.CONNECTION, EV.ORDER]].tolist()
        self._go_on(connection)
        for kind, requests in self.last.items():
            self.last[kind] = {channel: each for channel, each in requests.items() if _near(each, order)}

    def _go_on(self, connection: int) -> None:
        """Forget what is remembered of another connection."""
        if connection != self._connection:
            self.forget()
            self._connection = connection

    def _error(self, close: dict[str, Any], at: Request, word: int, side: int, channel: int) -> dict[str, Any]:
        """Return the row of a close; `side`: whose request it refuses."""
        ids = close.pop("class_id") or 0, close.pop("method_id") or 0
        failed = _METHODS.get(ids, "{}.{}".format(*ids))
        request = None
        if failed in REQUESTS:
            kind = what(FRAMES, failed), side
            request = self._on_channel(*kind, channel, at) if word == _CLOSE else self._on_any(*kind, at)
            cuts = self.last.get((_CUT, side), {})
            cut = self._on_channel(_CUT, side, channel, at) if word == _CLOSE else next(reversed(cuts.values()), None)
            if request and cut and cut.order > request.order:
                request = None
        names = {name: request and _as_said(name, close["reply_text"], getattr(request, name)) for name in _NAMES}
        return {**close, "failed_method": failed, **names}

    def _on_channel(self, word: int, side: int, channel: int, before: Request) -> Request | None:
        found = self.last.get((word, side), {}).get(channel)
        return found if found and found.epoch == before.epoch and _near(found, before.order) else None

    def _on_any(self, word: int, side: int, before: Request) -> Request | None:
        """Return the last one on any channel; None where the last ones of several channels are near."""
        latest = reversed(self.last.get((word, side), {}).values())
        near = [each for each in islice(latest, 2) if _near(each, before.order)]
        return near[0] if len(near) == 1 else None

    @property
    def _remembered(self) -> list[list[Any]]:
        return [[*kind, channel, *each] for kind, requests in self.last.items() for channel, each in requests.items()]

    @_remembered.setter
    def _remembered(self, remembered: list[list[Any]]) -> None:
        for word, side, channel, *request in remembered:
            self.last.setdefault((word, side), {})[channel] = Request(*request)


def _near(request: Request, order: int) -> bool:
    return request.order >= order - REACH


def _that_matter(events: Events) -> tuple[Ints, Ints]:
    """Return the positions of closes, of what is unknown, and of the last requests of their kind before each of these.

    Also returns what they are: EV.WHAT, or _GAP.
    """
    matrix = events.matrix
    gap = events.among(GAP_WORDS) & (matrix[:, EV.FROM_CLIENT] >= 0)
    marks = gap | events.among((*_CLOSES, _DECLARED))
    if events.lacking:
        marks |= (matrix[:, EV.CUT] == 1) & (events.source == FRAMES)
    at = np.flatnonzero(marks | events.among(_REQUESTS))
    connection, side, channel, word = matrix[at[:, None], (EV.CONNECTION, EV.FROM_CLIENT, EV.CHANNEL, EV.WHAT)].T
    begins = np.append(True, connection[1:] != connection[:-1])[: len(at)]
    part = np.cumsum(marks[at] | begins)
    kind = part << 33 | word << 17 | (side & 1) << 16 | channel & 0xFFFF
    kept = np.sort(len(at) - 1 - np.unique(kind[::-1], return_index=True)[1])
    return at[kept], np.where(gap[at], _GAP, word)[kept]


def _as_said(name: str, text: str | None, requested: str | None) -> str | None:
    """Return the name of a queue or an exchange, that which the broker's text says instead of the last request's.

    Clients that do not wait have other requests under way behind the one that failed.
    """
    said = _SAID[name].search(text or "")
    if requested is None or said is None:
        return requested
    return "" if said[1] == "amq.default" else said[1]
