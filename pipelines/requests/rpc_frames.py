"""How frames drive the machine that pairs requests with answers (`requests`)."""

from __future__ import annotations

from typing import NamedTuple

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.pipelines.model.connection import CONN, update_connection
from amqpscope.pipelines.model.events import EV
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
from amqpscope.pipelines.requests.uncertain import may_lack_requests

_SUCCESS = 200


class Arguments(NamedTuple):
    """What kernels need of an event besides EV, as columns; -1 for null."""

    ASKS: int  # kind that it asks
    ANSWERS: int  # kind that it answers
    MAY_ANSWER: int  # another kind, which it answers where none of that one is open
    WAITS: int  # 1 for a request that asks for an answer, 0 for one that does not; -1: unknown
    CODE: int  # reply code, or closing code
    KIND: int  # kind of request that a close names; UNKNOWN where that part of it is missing
    OPENS: int  # 1 for what opens a channel
    DECLARES: int  # 1 for a request that declares a queue, 2 for its answer
    KEY: int  # digest of what an answer repeats of its request; 0 for nothing
    NAME: int  # number of the name of a queue that is declared; of other requests NO_NAME where it is empty


AR = declare(Arguments)


@kernel
def walk(events: Array, arguments: Array, state: State, asks: Array, base: int, of: int) -> None:
    """Walk over a batch of events; `asks` becomes 1 for those whose rows may be needed later.

    Args:
        events: EV.
        arguments: AR.
        state: see `open_requests`.
        asks: as long as events; written.
        base: id of the first event.
        of: EV.SOURCE of the frames that ask and answer.
    """
    conn, gaps, _, _, _, _, _, _ = state
    for i in range(len(events)):
        identity = events[i, EV.CONNECTION]
        if identity != conn[CONN.ID]:
            end_connection(state)
            begin_connection(state, identity)
        side = events[i, EV.FROM_CLIENT]
        if side >= 0:
            state[6][HEAP.BEFORE] = conn[CONN.LAST_SERVER + side]
        update_connection(conn, gaps, events, i, base + i)
        if events[i, EV.SOURCE] == of and side >= 0 and (events[i, EV.CUT] == 1 or events[i, EV.WHAT] > 0):
            asks[i] = method_frame(events, arguments, state, i, base + i)


@kernel
def method_frame(events: Array, arguments: Array, state: State, i: int, identity: int) -> int:
    """Apply a frame; return whether its row may be needed later."""
    conn, gaps, _, channels, _, _, _, _ = state
    declares = arguments[i, AR.DECLARES]
    side = events[i, EV.FROM_CLIENT]
    frame = events[i, EV.ORDER]
    ts = events[i, EV.TS]
    asked = arguments[i, AR.ASKS]
    answered = arguments[i, AR.ANSWERS]
    cut = events[i, EV.CUT] == 1 or (asked >= 0 and arguments[i, AR.WAITS] < 0)
    if asked < 0 and answered < 0 and not cut:
        return 0
    slot = channel_of(state, events[i, EV.CHANNEL], events[i, EV.EPOCH], frame, ts, arguments[i, AR.OPENS])
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
        if declares == 2 and request >= 0 and request == channels[slot, CH.DECLARED_BY]:
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
    if declares == 1:
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
