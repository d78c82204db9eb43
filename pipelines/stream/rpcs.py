"""Requests and answers of streams: by correlation id."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from amqpscope import spec
from amqpscope.dissector.kernels.arrays import Ints
from amqpscope.pipelines.model.events import EV, Events, what
from amqpscope.pipelines.model.walk import Needs
from amqpscope.pipelines.requests.numbered import Numbered, NumberedRequests
from amqpscope.pipelines.requests.rpcs import Pairs, RpcWalk
from amqpscope.pipelines.stream.frames import PROTOCOL, STREAM_FRAMES
from amqpscope.pipelines.stream.streams import OK

ANSWERED_ALWAYS = tuple(
    sorted(
        {
            method.name
            for method in spec.load(PROTOCOL).methods
            if method.class_id == 0
            and method.responses
            and (method.name == "tune" or any(field.name == "correlation_id" for field in method.fields))
        }
    )
)
"""Commands with a correlation id, and tune; credit is answered where it fails."""
_WORDS = [what(STREAM_FRAMES, name) for name in ANSWERED_ALWAYS]
_CLOSE, _TUNE = what(STREAM_FRAMES, "close"), what(STREAM_FRAMES, "tune")
_BY_OFFSET = 4
"""Type of the offset in subscribe that names one."""
_WELL = (OK, 10)
"""Response codes that mean success: ok, and a further challenge."""


class Frame(NamedTuple):
    """What the machine needs of a frame; -1 for null."""

    side: int
    number: int
    ts: int
    command: int
    """EV.WHAT"""
    is_response: int
    asks: int
    """1 for ANSWERED_ALWAYS."""
    hides: int
    """1 where it may be the answer to anything."""
    code: int
    """Closing code."""
    correlation: int


class Rpcs(RpcWalk):
    """The walk that writes rows of `rpcs`."""

    SOURCE = STREAM_FRAMES
    OWN = (
        "command", "response_code", "closing_code", "closing_reason", "stream", "super_stream", "offset", "offset_type",
    )  # fmt: skip
    needs: ClassVar[Mapping[int, Needs]] = {
        STREAM_FRAMES: Needs(("correlation_id", *OWN[1:]), ANSWERED_ALWAYS, asks=ANSWERED_ALWAYS)
    }
    machine: NumberedRequests

    def _machine(self) -> NumberedRequests:
        return NumberedRequests(self.opened, _CLOSE)

    def _taken(self, events: Events) -> tuple[Ints, list[Frame]]:
        matrix, correlation = events.matrix, events.ints({STREAM_FRAMES: "correlation_id"})
        asks, response = events.among(_WORDS), matrix[:, EV.RESPONSE]
        unknown = (events.what == 0) | ((response != 0) & (correlation < 0))
        hides = (matrix[:, EV.CUT] > 0) & unknown
        mine = (events.source == STREAM_FRAMES) & (matrix[:, EV.FROM_CLIENT] >= 0)
        at = np.flatnonzero(mine & (asks | hides))
        columns = (EV.FROM_CLIENT, EV.ORDER, EV.TS, EV.WHAT, EV.RESPONSE)
        code = events.ints({STREAM_FRAMES: "closing_code"})
        rows = np.stack([*matrix[at[:, None], columns].T, asks[at], hides[at], code[at], correlation[at]], axis=1)
        return at, list(map(Frame._make, rows.tolist()))

    def _take(self, frame: Frame, event: int) -> None:
        machine, command, number = self.machine, frame.command, frame.correlation
        if frame.hides:
            self.opened.add_gap(frame.side, frame.number, frame.ts)
        if not frame.asks or frame.is_response < 0 or (number < 0 and command != _TUNE):
            return
        if frame.is_response:
            machine.answer(command, number, 1 - frame.side, event)
            return
        if command == _CLOSE and frame.code >= 0 and frame.code != OK:
            machine.close(frame.side, frame.number, frame.ts, event)
        machine.ask(Numbered(event, frame.number, frame.ts, command, number, frame.side))

    def _columns(self, pairs: Pairs) -> dict[str, Any]:
        asked, answers, error = pairs.asked, pairs.answers, pa.array(pairs.refused)
        code = pc.if_else(error, answers["closing_code"], answers["response_code"])
        well = pc.and_(pc.invert(error), pc.fill_null(pc.is_in(code, value_set=pa.array(_WELL, code.type)), False))
        failed = pc.and_(pc.invert(pc.or_(well, pc.is_null(code))), pa.array(pairs.answered))
        response = pc.binary_join_element_wise(asked["command"], "response", "-")
        response = pc.if_else(pa.array(pairs.answered), pc.if_else(error, "close", response), None)
        return {
            "request": asked["command"],
            "response": response,
            "outcome": pc.if_else(pa.array(pairs.answered), pc.if_else(failed, "error", "ok"), "none"),
            "reply_code": pc.if_else(failed, code, None),
            "reply_text": pc.if_else(error, answers["closing_reason"], None),
            "stream": pc.coalesce(asked["stream"], asked["super_stream"]),
            "from_offset": pc.if_else(
                pc.fill_null(pc.equal(asked["offset_type"], _BY_OFFSET), False), asked["offset"], None
            ),
        }
