"""How AMQP 0-10 changes the credit of subscriptions, and the waits that follow: the kernel of `message_credit`.

A subscription (a destination of a session) has a balance of messages and one of bytes, and waits while one of them is
used up. The time before its first credit is no wait.

| event | what it does |
|---|---|
| message.subscribe | both balances are 0; what is known of an earlier subscription is over |
| message.flow | adds to one of the balances, or lifts its limit |
| a delivery | uses one message, and the bytes of its header and body |
| session.completed of the client, with a window | gives back what these deliveries used, unless it was stopped since |
| message.stop, message.flush | both balances are 0 when the command is completed, but for what was granted since |
| message.cancel, the end of the session | ends the subscription, and its wait |
| a gap | the balances are unknown, until both are 0 again |
"""

from __future__ import annotations

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.kernels.lookup import empty, enter, row_of
from amqpscope.dissector.kernels.state import Matrix, column
from amqpscope.pipelines.amqp010 import sessions as ss
from amqpscope.pipelines.amqp010.commands import REFUSALS
from amqpscope.pipelines.amqp010.frames import FRAMES_010
from amqpscope.pipelines.amqp010.sessions import SE
from amqpscope.pipelines.model import connection as cn
from amqpscope.pipelines.model import outstanding as lg
from amqpscope.pipelines.model.channels import ACC
from amqpscope.pipelines.model.connection import CLIENT, CONN, SERVER
from amqpscope.pipelines.model.credit import (
    AT_LEAST,
    MOST_ROUND_TRIP,
    NEVER,
    NONE,
    ST,
    SUB,
    Written,
    cut_off,
    end_wait,
    gaps_of,
    is_certain,
    prove,
    wait,
)
from amqpscope.pipelines.model.events import CONNECTIONS, EV
from amqpscope.pipelines.model.outstanding import SL
from amqpscope.pipelines.model.stopped import DONE, NEEDS_OUTPUT_ROOM, NEEDS_PAGES

PLAIN, TRANSFER, COMPLETED, SUBSCRIBE, CANCEL, MODE, FLOW, STOP, OVER, DETACHED = range(10)
ROLES = {
    "message.transfer": TRANSFER,
    "session.completed": COMPLETED,
    "message.subscribe": SUBSCRIBE,
    "message.cancel": CANCEL,
    "message.set-flow-mode": MODE,
    "message.flow": FLOW,
    "message.stop": STOP,
    "message.flush": STOP,
    "session.detach": OVER,
    "session.detached": DETACHED,
    "execution.exception": OVER,
}
"""What methods do to credit."""
CREDIT, WINDOW = range(2)
"""Flow modes; a window is the default."""
MESSAGE, BYTE = range(2)
UNLIMITED = 0xFFFFFFFF
AT_MOST = 1 << 10
"""Subscriptions of a connection whose credit is counted; further ones are not followed."""
CHANNELS = 1 << 16


class WIN(SUB):
    """Columns of `rows`; SUB.ID is the id of message.subscribe."""

    KEY = column("digest of session and destination")
    SESSION = column("digest of its session")
    LIVE = column("1: from message.subscribe on")
    MODE = column("flow mode: CREDIT or WINDOW")
    MESSAGES = column("messages that may come; NEVER: unlimited")
    BYTES = column("bytes that may come; NEVER: unlimited")
    OPENED = column("1: it has had credit")
    STOPPING = column("id of message.stop or flush that is not completed; -1: none")
    MORE_MESSAGES = column("granted since")
    MORE_BYTES = column("granted since")
    PERIOD = column("counts its subscriptions and stops: what was sent in an earlier one gives nothing back")


class MORE(Matrix):
    """Columns of `more`; -1 for null."""

    IDENTITY = column("id of the event")
    SESSION = column("digest of its name; 0 for null")
    KEY = column("digest of session and destination")
    ROLE = column("what it does to credit; -1: nothing")
    SIZE = column("bytes of header and body in a frame")
    UNIT = column("of message.flow: messages or bytes")
    VALUE = column("of message.flow; UNLIMITED; code of session.detached; flow mode")
    FIRST = column("rows of `ranges`: the first, and the one after the last")
    END = column("the row of `ranges` after its last")
    RTT = column("of connections")


Batch = tuple[Array, Array, Array]
"""EV, MORE, and `ranges`."""
Subscribed = tuple[Array, Array, Array]
"""`table` (`kernels.lookup`), `rows`, and their number."""
Sizes = tuple[Array, Array]
"""Bytes of the delivery under way by channel, by one more; 0 for channels without a delivery so far. And the channels
with deliveries, after their number."""


@kernel
def walk(
    batch: Batch, conn: Array, gaps: Array, subscribed: Subscribed, sessions: ss.State, ledger: lg.Ledger,
    sizes: Sizes, written: Written, state: Array,
) -> int:  # fmt: skip
    """Walk over a batch from state[ST.AT] on; return why it stopped (DONE: at the end of the batch).

    There is room for as many sessions and subscriptions as the batch names.
    """
    events, more, _ = batch
    count = subscribed[2]
    amounts, used = sizes
    for i in range(state[ST.AT], len(events)):
        state[ST.AT] = i
        if state[ST.WAITS] + 2 * count[0] + 2 > len(written[1]):
            return NEEDS_OUTPUT_ROOM
        if ledger[3][lg.BK.FREE] < 0:
            return NEEDS_PAGES
        if events[i, EV.CONNECTION] != conn[CONN.ID]:
            close(conn, gaps, subscribed, sessions, ledger, sizes, written, state)
            cn.open_connection(conn, events[i, EV.CONNECTION])
            state[ST.WINDOW] = AT_LEAST
        if events[i, EV.SOURCE] == CONNECTIONS and 0 <= more[i, MORE.RTT] <= MOST_ROUND_TRIP:
            state[ST.WINDOW] = max(2 * more[i, MORE.RTT], AT_LEAST)
        if events[i, EV.SOURCE] == FRAMES_010 and events[i, EV.FROM_CLIENT] >= 0:
            channel, size = events[i, EV.CHANNEL], more[i, MORE.SIZE]
            if events[i, EV.FROM_CLIENT] == SERVER and size > 0 and 0 <= channel < CHANNELS:
                if amounts[channel] == 0:
                    used[0] += 1
                    used[used[0]] = channel
                    amounts[channel] = 1
                amounts[channel] += size
            if more[i, MORE.ROLE] > PLAIN and more[i, MORE.SESSION] != 0:
                apply_event(batch, i, conn, gaps, subscribed, sessions, ledger, sizes, written, state)
            if events[i, EV.CUT] > 0:
                cn.add_gap(conn, gaps, events[i, EV.FROM_CLIENT], events[i, EV.ORDER], events[i, EV.TS], -1)
        cn.update_connection(conn, gaps, events, i, more[i, MORE.IDENTITY])
    state[ST.AT] = len(events)
    return DONE


@kernel
def apply_event(
    batch: Batch, i: int, conn: Array, gaps: Array, subscribed: Subscribed, sessions: ss.State, ledger: lg.Ledger,
    sizes: Sizes, written: Written, state: Array,
) -> None:  # fmt: skip
    """Apply an event; there is a free page."""
    events, more, _ = batch
    table, rows, count = subscribed
    role, side = more[i, MORE.ROLE], events[i, EV.FROM_CLIENT]
    row = row_of(table, rows, WIN.KEY, more[i, MORE.KEY], WIN.KEY, more[i, MORE.KEY])
    if role == COMPLETED:
        completed(batch, i, conn, gaps, subscribed, sessions, ledger, written, state)
    elif role >= OVER:
        if role == OVER or more[i, MORE.VALUE] not in REFUSALS:
            missing = role == DETACHED and side == SERVER and more[i, MORE.VALUE] <= 0
            for each in range(count[0]):
                if rows[each, WIN.SESSION] == more[i, MORE.SESSION] and rows[each, WIN.LIVE] == 1:
                    since, ts = rows[each, SUB.SINCE], events[i, EV.TS]
                    if missing and since >= 0:  # with the session.detach, what may have ended the wait
                        wait(written, state, conn, rows, each, since, rows[each, SUB.SINCE_TS], -1, ts, 0, 0)
                        rows[each, SUB.SINCE] = -1
                    over(batch, i, rows, each, conn, gaps, written, state)
    elif role == TRANSFER:
        if side == SERVER:
            deliver(batch, i, row, conn, gaps, rows, sessions, ledger, sizes, written, state)
    elif side == CLIENT and role == SUBSCRIBE:
        if row < 0 and count[0] >= AT_MOST:
            return
        if row < 0:
            row = count[0]
            count[0] = row + 1
            rows[row, WIN.KEY] = more[i, MORE.KEY]
            enter(table, rows, WIN.KEY, WIN.KEY, row)
        else:
            over(batch, i, rows, row, conn, gaps, written, state)
        begin(batch, i, rows, row, conn)
    elif side == CLIENT and row >= 0 and rows[row, WIN.LIVE] == 1:
        if role == CANCEL:
            over(batch, i, rows, row, conn, gaps, written, state)
        elif role == MODE:
            rows[row, WIN.MODE] = max(more[i, MORE.VALUE], CREDIT)
        elif role == STOP:
            rows[row, WIN.STOPPING] = events[i, EV.NUMBER]
            rows[row, WIN.MORE_MESSAGES] = 0
            rows[row, WIN.MORE_BYTES] = 0
            if events[i, EV.NUMBER] < 0:  # when it is completed will not be known
                stop(batch, i, rows, row, conn, gaps, written, state)
            remember(batch, i, row, 0, rows, sessions, ledger)
        else:
            grant(batch, i, rows, row)
            look(batch, i, rows, row, conn, gaps, written, state)


@kernel
def remember(batch: Batch, i: int, row: int, size: int, rows: Array, sessions: ss.State, ledger: lg.Ledger) -> None:
    """Remember a command that matters when it is completed: a delivery, or a stop."""
    events, more, _ = batch
    if events[i, EV.NUMBER] < 0:
        rows[row, SUB.GAPS] = -1 if size > 0 else rows[row, SUB.GAPS]  # what it gives back will not be known
        return
    session = row_of(sessions[0][1], sessions[1], SE.KEY, more[i, MORE.SESSION], SE.KEY, more[i, MORE.SESSION])
    if session < 0:
        session = ss.begin(sessions, more[i, MORE.SESSION], 1)
    slot = lg.add(ledger, sessions[0][0], 2 * session + events[i, EV.FROM_CLIENT], events[i, EV.NUMBER])
    if slot >= 0:
        ledger[1][slot, SL.ROW] = row
        ledger[1][slot, SL.FRAME] = rows[row, WIN.PERIOD]
        ledger[1][slot, SL.EXTRA] = size


@kernel
def begin(batch: Batch, i: int, rows: Array, row: int, conn: Array) -> None:
    """Begin a subscription without credit."""
    _, more, _ = batch
    key, period = rows[row, WIN.KEY], rows[row, WIN.PERIOD] + 1
    for number in range(WIN.WIDTH):
        rows[row, number] = 0
    for number in (SUB.ASKED, SUB.SINCE, SUB.PROOF, SUB.RELEASED, WIN.STOPPING):
        rows[row, number] = -1
    rows[row, WIN.KEY] = key
    rows[row, WIN.PERIOD] = period
    rows[row, WIN.SESSION] = more[i, MORE.SESSION]
    rows[row, SUB.ID] = more[i, MORE.IDENTITY]
    rows[row, SUB.GAPS] = gaps_of(conn)
    rows[row, WIN.LIVE] = 1
    rows[row, WIN.MODE] = WINDOW


@kernel
def grant(batch: Batch, i: int, rows: Array, row: int) -> None:
    """Add credit, at once or to what there will be after a stop."""
    _, more, _ = batch
    value = more[i, MORE.VALUE]
    amount = NEVER if value < 0 or value == UNLIMITED else value
    stopping = rows[row, WIN.STOPPING] >= 0
    column = WIN.BYTES if more[i, MORE.UNIT] == BYTE else WIN.MESSAGES
    if stopping:
        column = WIN.MORE_BYTES if more[i, MORE.UNIT] == BYTE else WIN.MORE_MESSAGES
    rows[row, column] = NEVER if amount == NEVER or rows[row, column] == NEVER else rows[row, column] + amount
    if not stopping and rows[row, WIN.MESSAGES] > 0 and rows[row, WIN.BYTES] > 0:
        rows[row, WIN.OPENED] = 1


@kernel
def deliver(
    batch: Batch, i: int, row: int, conn: Array, gaps: Array, rows: Array, sessions: ss.State, ledger: lg.Ledger,
    sizes: Sizes, written: Written, state: Array,
) -> None:  # fmt: skip
    """Use credit for a delivery; it has eleven parameters because it touches all that the walk remembers."""
    events, _, _ = batch
    amounts, _ = sizes
    channel = events[i, EV.CHANNEL] & (CHANNELS - 1)
    size = max(amounts[channel] - 1, 0)
    if row >= 0 and rows[row, WIN.LIVE] == 1:
        limited = rows[row, WIN.MESSAGES] != NEVER or rows[row, WIN.BYTES] != NEVER
        if rows[row, WIN.MODE] == WINDOW and limited:
            remember(batch, i, row, size, rows, sessions, ledger)
        use(rows, row, -1, -size)
        prove(rows, row, events[i, EV.TS], -1, conn, written, state)
        look(batch, i, rows, row, conn, gaps, written, state)
    amounts[channel] = min(amounts[channel], 1)


@kernel
def use(rows: Array, row: int, messages: int, size: int) -> None:
    """Change the balances, as far as they are limited."""
    if rows[row, WIN.MESSAGES] != NEVER:
        rows[row, WIN.MESSAGES] += messages
    if rows[row, WIN.BYTES] != NEVER:
        rows[row, WIN.BYTES] += size


@kernel
def completed(
    batch: Batch, i: int, conn: Array, gaps: Array, subscribed: Subscribed, sessions: ss.State, ledger: lg.Ledger,
    written: Written, state: Array,
) -> None:  # fmt: skip
    """Apply session.completed: of the client it gives credit back, of the server it ends stops."""
    events, more, ranges = batch
    _, rows, _ = subscribed
    accounts = sessions[0][0]
    side = events[i, EV.FROM_CLIENT]
    session = row_of(sessions[0][1], sessions[1], SE.KEY, more[i, MORE.SESSION], SE.KEY, more[i, MORE.SESSION])
    if session < 0:
        return
    account = 2 * session + 1 - side
    for k in range(more[i, MORE.FIRST], more[i, MORE.END]):
        lower, upper = ss.unwrapped(ranges[k, 0], ranges[k, 1], accounts[account, ACC.LAST])
        slot = lg.first_above(ledger, accounts, account, lower - 1)
        while slot >= 0 and lg.number_of(ledger, slot) <= upper:
            following, number = lg.following(ledger, slot), lg.number_of(ledger, slot)
            row, size = ledger[1][slot, SL.ROW], ledger[1][slot, SL.EXTRA]
            same = rows[row, WIN.LIVE] == 1 and rows[row, WIN.PERIOD] == ledger[1][slot, SL.FRAME]
            lg.remove(ledger, accounts, slot)
            if side == SERVER and rows[row, WIN.STOPPING] == number:
                stop(batch, i, rows, row, conn, gaps, written, state)
            elif same and side == CLIENT and rows[row, WIN.MODE] == WINDOW:
                use(rows, row, 1, size)
                look(batch, i, rows, row, conn, gaps, written, state)
            slot = following


@kernel
def stop(batch: Batch, i: int, rows: Array, row: int, conn: Array, gaps: Array, written: Written, state: Array) -> None:
    """Apply a stop that is completed: the balances are what was granted since, and certain.

    If they were not known before, or there may be deliveries under way, it is unknown since when there is no credit.
    """
    if rows[row, SUB.SINCE] >= 0:
        cut_off(rows, row, conn, gaps, NEVER, written, state)
    completed = rows[row, WIN.STOPPING] >= 0
    if rows[row, SUB.SINCE] < 0 and not (completed and is_certain(conn, rows[row, SUB.GAPS])):
        rows[row, WIN.OPENED] = 0
    rows[row, WIN.MESSAGES] = rows[row, WIN.MORE_MESSAGES]
    rows[row, WIN.BYTES] = rows[row, WIN.MORE_BYTES]
    rows[row, WIN.STOPPING] = -1
    rows[row, WIN.PERIOD] += 1
    if completed or rows[row, SUB.SINCE] >= 0:
        rows[row, SUB.GAPS] = gaps_of(conn)
    if rows[row, WIN.MESSAGES] > 0 and rows[row, WIN.BYTES] > 0:
        rows[row, WIN.OPENED] = 1
    look(batch, i, rows, row, conn, gaps, written, state)


@kernel
def look(batch: Batch, i: int, rows: Array, row: int, conn: Array, gaps: Array, written: Written, state: Array) -> None:
    """Begin or end a wait, after the balances of a subscription changed."""
    events, more, _ = batch
    certain = rows[row, WIN.OPENED] == 1 and is_certain(conn, rows[row, SUB.GAPS])
    waits = certain and (rows[row, WIN.MESSAGES] <= 0 or rows[row, WIN.BYTES] <= 0)
    if rows[row, SUB.SINCE] >= 0 and not waits:
        if not cut_off(rows, row, conn, gaps, events[i, EV.ORDER], written, state):
            rows[row, SUB.PROOF] = rows[row, SUB.SINCE]
            rows[row, SUB.PROOF_TS] = rows[row, SUB.SINCE_TS]
            rows[row, SUB.RELEASED] = more[i, MORE.IDENTITY]
            rows[row, SUB.RELEASED_TS] = events[i, EV.TS]
        rows[row, SUB.SINCE] = -1
    elif waits and rows[row, SUB.SINCE] < 0:
        prove(rows, row, NONE, -1, conn, written, state)
        rows[row, SUB.SINCE] = more[i, MORE.IDENTITY]
        rows[row, SUB.SINCE_FRAME] = events[i, EV.ORDER]
        rows[row, SUB.SINCE_TS] = events[i, EV.TS]


@kernel
def over(batch: Batch, i: int, rows: Array, row: int, conn: Array, gaps: Array, written: Written, state: Array) -> None:
    """End a subscription, and its wait."""
    events, more, _ = batch
    prove(rows, row, NONE, -1, conn, written, state)
    if rows[row, SUB.SINCE] >= 0 and not cut_off(rows, row, conn, gaps, events[i, EV.ORDER], written, state):
        wait(written, state, conn, rows, row, rows[row, SUB.SINCE], rows[row, SUB.SINCE_TS], more[i, MORE.IDENTITY],
             events[i, EV.TS], 1, 0)  # fmt: skip
        rows[row, SUB.SINCE] = -1
    rows[row, WIN.LIVE] = 0
    rows[row, WIN.STOPPING] = -1


@kernel
def close(
    conn: Array, gaps: Array, subscribed: Subscribed, sessions: ss.State, ledger: lg.Ledger, sizes: Sizes,
    written: Written, state: Array,
) -> None:  # fmt: skip
    """End all subscriptions of the connection; there is room for two waits of each."""
    table, rows, count = subscribed
    for row in range(count[0]):
        prove(rows, row, NONE, -1, conn, written, state)
        if rows[row, SUB.SINCE] >= 0 and not cut_off(rows, row, conn, gaps, NEVER, written, state):
            end_wait(rows, row, conn, written, state)
    empty(table, rows, WIN.KEY, WIN.KEY, count[0])
    count[0] = 0
    accounts = sessions[0][0]
    for account in range(2 * sessions[0][3][0]):
        slot = lg.first_above(ledger, accounts, account, -1)
        while slot >= 0:
            following = lg.following(ledger, slot)
            lg.remove(ledger, accounts, slot)
            slot = following
    ss.forget(sessions)
    amounts, used = sizes
    for k in range(1, used[0] + 1):
        amounts[used[k]] = 0
    used[0] = 0
