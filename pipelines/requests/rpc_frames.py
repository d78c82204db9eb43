"""How frames drive the machines that pair requests with answers: AMQP (`requests`) and streams."""

from __future__ import annotations

from typing import NamedTuple

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import called, kernel
from amqpscope.pipelines.model.connection import CONN, add_gap, update_connection
from amqpscope.pipelines.model.events import EV, FRAMES, FRAMES_010, STREAM_FRAMES, what
from amqpscope.pipelines.model.names import NO_NAME
from amqpscope.pipelines.model.store import declare
from amqpscope.pipelines.requests.open_requests import (
    CH,
    CLOSES_CHANNEL,
    CLOSES_CONNECTION,
    HEAP,
    NONE,
    State,
    cut_frame,
)
from amqpscope.pipelines.requests.refusals import close_missing, closing
from amqpscope.pipelines.requests.requests import (
    HELD,
    UNKNOWN,
    answer,
    ask,
    begin_connection,
    channel_of,
    end_connection,
)
from amqpscope.pipelines.requests.stream_requests import answer_stream, ask_stream, close_stream, end_stream
from amqpscope.pipelines.requests.uncertain import may_lack_requests

_STREAM_CLOSE, _TUNE = what(STREAM_FRAMES, "close"), what(STREAM_FRAMES, "tune")
_CHANNEL_OPEN = what(FRAMES, "channel.open")
_DECLARE, _DECLARE_OK = what(FRAMES, "queue.declare"), what(FRAMES, "queue.declare-ok")
_SUCCESS = 200


class Arguments(NamedTuple):
    """What kernels need of an event besides EV, as columns; -1 for null."""

    ASKS: int  # kind that it asks; of streams 1 for ANSWERED_ALWAYS
    ANSWERS: int  # kind that it answers
    MAY_ANSWER: int  # another kind, which it answers where none of that one is open
    WAITS: int  # 1 for a request that asks for an answer, 0 for one that does not; -1: unknown
    CODE: int  # reply code, or closing code
    KIND: int  # kind of request that a close names; UNKNOWN where that part of it is missing
    CORRELATION: int
    KEY: int  # digest of what an answer repeats of its request; 0 for nothing
    NAME: int  # number of the name of a queue that is declared; of other requests NO_NAME where it is empty


AR = declare(Arguments)


@kernel
def walk(events: Array, arguments: Array, state: State, streams: State, asks: Array, base: int) -> None:
    """Walk over a batch of events; `asks` becomes 1 for those whose rows may be needed later."""
    conn, gaps, _, _, _, _, _, _ = state
    for i in range(len(events)):
        identity = events[i, EV.CONNECTION]
        if identity != conn[CONN.ID]:
            finish(state, streams)
            begin_connection(state, identity)
        source = events[i, EV.SOURCE]
        side = events[i, EV.FROM_CLIENT]
        if source == STREAM_FRAMES and events[i, EV.CUT] > 0 and side >= 0:
            unknown = events[i, EV.RESPONSE] != 0 and arguments[i, AR.CORRELATION] < 0
            if events[i, EV.WHAT] == 0 or unknown:
                add_gap(conn, gaps, side, events[i, EV.ORDER], events[i, EV.TS])
        if side >= 0:
            state[6][HEAP.BEFORE] = conn[CONN.LAST_SERVER + side]
        update_connection(conn, gaps, events, i, base + i)
        if (source == FRAMES or source == FRAMES_010) and side >= 0:
            if events[i, EV.CUT] == 1 or events[i, EV.WHAT] > 0:
                asks[i] = method_frame(events, arguments, state, i, base + i)
        elif source == STREAM_FRAMES and side >= 0:
            asks[i] = stream_frame(events, arguments, streams, i, base + i)


@kernel
def method_frame(events: Array, arguments: Array, state: State, i: int, identity: int) -> int:
    """Apply a method frame of AMQP 0-9-1, or a control of 0-10; return whether its row may be needed later."""
    conn, gaps, _, channels, _, _, _, _ = state
    word = events[i, EV.WHAT]
    side = events[i, EV.FROM_CLIENT]
    frame = events[i, EV.ORDER]
    ts = events[i, EV.TS]
    asked = arguments[i, AR.ASKS]
    answered = arguments[i, AR.ANSWERS]
    cut = events[i, EV.CUT] == 1 or (asked >= 0 and arguments[i, AR.WAITS] < 0)
    if asked < 0 and answered < 0 and not cut:
        return 0
    opens = 1 if word == _CHANNEL_OPEN else 0
    slot = channel_of(state, events[i, EV.CHANNEL], events[i, EV.EPOCH], frame, ts, opens)
    if cut:
        cut_frame(state, slot, side, frame, ts)
        return 0
    key = arguments[i, AR.KEY]
    name = arguments[i, AR.NAME]
    if answered >= 0:
        request = answer(state, slot, answered, 1 - side, identity, frame, ts, key)
        if request == NONE and arguments[i, AR.MAY_ANSWER] >= 0:
            request = answer(state, slot, arguments[i, AR.MAY_ANSWER], 1 - side, identity, frame, ts, key)
        if request == NONE and answered in (CLOSES_CHANNEL, CLOSES_CONNECTION):
            close_missing(state, slot, 1 - side, frame, ts, answered == CLOSES_CONNECTION)
        if word == _DECLARE_OK and request >= 0 and request == channels[slot, CH.DECLARED_BY]:
            channels[slot, CH.DECLARED] = name
        return 1 if request == HELD else 0
    if asked in (CLOSES_CHANNEL, CLOSES_CONNECTION):
        code = arguments[i, AR.CODE]
        whole = asked == CLOSES_CONNECTION
        named = arguments[i, AR.KIND] if code >= 0 and code != _SUCCESS else NONE
        if events[i, EV.PARTIAL] == 1 and arguments[i, AR.KIND] == UNKNOWN and code != _SUCCESS:
            close_missing(state, slot, side, frame, ts, whole)
        closing(state, slot, side, frame, ts, whole, named, identity)
    note = NONE
    if word == _DECLARE:
        channels[slot, CH.DECLARED] = name if name > NO_NAME else NONE
        channels[slot, CH.DECLARED_BY] = identity if name == NO_NAME else NONE
        channels[slot, CH.DECLARED_FRAME] = frame
    elif name == NO_NAME and not may_lack_requests(
        conn, gaps, channels, slot, side, channels[slot, CH.DECLARED_FRAME], frame
    ):
        note = channels[slot, CH.DECLARED]
    if arguments[i, AR.WAITS] == 1:
        ask(state, slot, asked, side, identity, frame, ts, key, note)
        return 1
    return 0


@kernel
def stream_frame(events: Array, arguments: Array, streams: State, i: int, identity: int) -> int:
    """Apply a frame of the stream protocol; return whether its row may be needed later."""
    word = events[i, EV.WHAT]
    side = events[i, EV.FROM_CLIENT]
    response = events[i, EV.RESPONSE]
    correlation = arguments[i, AR.CORRELATION]
    if arguments[i, AR.ASKS] < 1 or response < 0 or (correlation < 0 and word != _TUNE):
        return 0
    if response == 1:
        answer_stream(streams, word, correlation, 1 - side, identity)
        return 0
    frame = events[i, EV.ORDER]
    if word == _STREAM_CLOSE:
        close_stream(streams, side, frame, events[i, EV.TS], arguments[i, AR.CODE], identity)
    ask_stream(streams, word, correlation, side, identity, frame, events[i, EV.TS])
    return 1


@called
def finish(state: State, streams: State) -> None:
    """End the connection."""
    end_connection(state)
    end_stream(streams)
