"""Deliveries of AMQP 0-9-1 and what became of them: acknowledged, refused, voided, or nothing.

A delivery is outstanding from its first frame on. What ends that:

| event | what it does |
|---|---|
| basic.ack, basic.nack, basic.reject of its tag | settles it; in a transaction, when that is committed |
| the same with `multiple` | settles all up to that tag (0: all), except those that a gap may have settled |
| basic.recover-ok, basic.recover-async | voids all; acknowledgements between request and answer have no effect |
| tx.rollback-ok | deliveries acknowledged since the last commit are outstanding again |
| a gap in what the client sends | deliveries may have been settled in it: `multiple` does not apply to them |
| the server's close | what the client sends after it has no effect |
| a close of either side, the channel opened again, the connection's end | nobody settles it: `ended_by` |

The same events open and fill the windows of `prefetch`; `consumers` knows the queue of each delivery.
"""

from __future__ import annotations

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.kernels.lookup import row_of
from amqpscope.pipelines.amqp091.closes import ON_CLOSE, ON_CLOSE_OK, ON_OPEN_OK, note_close, note_open_ok
from amqpscope.pipelines.amqp091.settlements import consumers as co
from amqpscope.pipelines.amqp091.settlements import prefetch as pf
from amqpscope.pipelines.amqp091.settlements.consumers import ASK, CHAN, CONS
from amqpscope.pipelines.amqp091.settlements.delivered import (
    AUTO,
    MORE,
    NONE,
    ON_ACK,
    ON_ASK_GET,
    ON_CANCEL,
    ON_CANCEL_OK,
    ON_COMMIT,
    ON_COMMIT_OK,
    ON_CONFIRM,
    ON_CONNECTION,
    ON_CONNECTION_CLOSE,
    ON_CONSUME,
    ON_CONSUME_OK,
    ON_DECLARE_OK,
    ON_DELIVER,
    ON_GET,
    ON_GET_EMPTY,
    ON_GET_OK,
    ON_NACK,
    ON_QOS,
    ON_RECOVER,
    ON_RECOVER_ASYNC,
    ON_RECOVER_OK,
    ON_REJECT,
    ON_ROLLBACK_OK,
    ON_SELECT,
    ON_TX_ROLLBACK,
    Book,
    Own,
    Result,
    close_windows,
    finish,
    notice_gaps,
    plain,
    unsure_windows,
)
from amqpscope.pipelines.amqp091.settlements.settling import acknowledge, close, drain, transact, void
from amqpscope.pipelines.amqp091.settlements.transactions import ACT, PERHAPS, PLAIN, TX
from amqpscope.pipelines.model import channels as ch
from amqpscope.pipelines.model import connection as cn
from amqpscope.pipelines.model import outstanding as lg
from amqpscope.pipelines.model.connection import CLIENT, CONN, SERVER
from amqpscope.pipelines.model.events import EV
from amqpscope.pipelines.model.outstanding import SL
from amqpscope.pipelines.model.reuse import USED
from amqpscope.pipelines.model.stopped import DONE, NEEDS_ACCOUNTS, NEEDS_OUTPUT_ROOM, NEEDS_PAGES, ST
from amqpscope.pipelines.model.unanswered import ANSWERED, EVICTED, NEVER

ON_TRANSACTION = ON_SELECT, ON_COMMIT, ON_COMMIT_OK, ON_TX_ROLLBACK, ON_ROLLBACK_OK, ON_CONFIRM
"""What is of the class tx, or shows that the channel is in no transaction."""
WANTED = (
    ON_DELIVER, ON_GET, ON_ACK, ON_NACK, ON_REJECT, ON_CONSUME, ON_CONSUME_OK, ON_CANCEL, ON_CANCEL_OK, ON_ASK_GET,
    ON_GET_OK, ON_GET_EMPTY, ON_DECLARE_OK, ON_QOS, ON_RECOVER, ON_RECOVER_OK, ON_RECOVER_ASYNC, ON_OPEN_OK, ON_CLOSE,
    ON_CLOSE_OK, *ON_TRANSACTION,
)  # fmt: skip
"""Events of a channel that concern deliveries."""
DELIVERY, ANSWER, WINDOW = range(3)
"""Columns of `still`."""


@kernel
def walk(events: Array, more: Array, book: Book, own: Own, result: Result) -> int:
    """Walk over a batch from state[ST.AT] on; return why it stopped (DONE: at the end of the batch)."""
    conn, gaps, channels, _ = book
    consumers, transactions, prefetch = own
    out, state = result
    for i in range(state[ST.AT], len(events)):
        state[ST.AT] = i
        needed = 2 * (consumers[4][USED] + channels[3][0]) + 8
        if state[ST.OUT] + 2 > len(out) or prefetch[2][pf.WAITS] + needed > len(prefetch[1]):
            return NEEDS_OUTPUT_ROOM
        if channels[3][0] >= len(channels[0]):
            return NEEDS_ACCOUNTS
        if events[i, EV.CONNECTION] != conn[CONN.ID]:
            if not close(book, own, result):
                return NEEDS_OUTPUT_ROOM
            cn.open_connection(conn, events[i, EV.CONNECTION])
            prefetch[2][pf.CONNECTION] = events[i, EV.CONNECTION]
            prefetch[2][pf.SOON] = pf.SOON_NS
        word = events[i, EV.WHAT]
        if word == ON_CONNECTION:
            prefetch[2][pf.SOON] = max(pf.SOON_NS, 2 * more[i, MORE.LIMIT])
        elif word == ON_CONNECTION_CLOSE:
            for account in range(channels[3][0]):
                notice_gaps(account, book, own)
                close_windows(account, state[ST.BASE] + i, events[i, EV.TS], 1, own)
        elif word in WANTED and events[i, EV.CHANNEL] >= 0:
            account = account_for(events, i, book, own, result)
            if account == -1:
                return NEEDS_OUTPUT_ROOM
            if account >= 0:
                if events[i, EV.FROM_CLIENT] == SERVER and own[0][3][account, CHAN.MISTAKE] > 0:
                    own[0][3][account, CHAN.MISTAKE] = max(events[i, EV.ORDER], events[i, EV.LAST_FRAME])
                notice_gaps(account, book, own)
                why = apply_event(events, more, i, account, book, own, result)
                if why != DONE:
                    return why
        if events[i, EV.CUT] > 0 and events[i, EV.FROM_CLIENT] == CLIENT:
            account = ch.account_of(channels, events[i, EV.CHANNEL], events[i, EV.EPOCH])
            if account >= 0:
                frame, ts = events[i, EV.ORDER], events[i, EV.TS]
                ch.note_cut(channels, account, conn, CLIENT, frame, ts, conn[CONN.LAST_CLIENT])
                unsure_windows(account, frame, ts, own)
                if events[i, EV.CUT] == 1 and transactions[0][account, TX.MODE] == PLAIN:
                    transactions[0][account, TX.MODE] = PERHAPS  # it may have been a tx.select
        cn.update_connection(conn, gaps, events, i, state[ST.BASE] + i)
    state[ST.AT] = len(events)
    return DONE


@kernel
def apply_event(events: Array, more: Array, i: int, account: int, book: Book, own: Own, result: Result) -> int:
    """Apply an event of a channel; return DONE, or what has run out: then apply it again."""
    word = events[i, EV.WHAT]
    if word == ON_DELIVER or word == ON_GET:
        return deliver(events, more, i, account, book, own, result)
    if word == ON_ACK or word == ON_NACK or word == ON_REJECT:
        if events[i, EV.FROM_CLIENT] == CLIENT:
            return acknowledge(events, more, i, account, book, own, result)
    elif word == ON_OPEN_OK or word == ON_CLOSE or word == ON_CLOSE_OK:
        if word != ON_OPEN_OK:
            note_close(book[2], account, events, i)
        if word == ON_CLOSE_OK:  # where its close was seen, they are closed
            close_windows(account, -1, events[i, EV.TS], 0, own)
        else:
            close_windows(account, result[1][ST.BASE] + i, events[i, EV.TS], 1, own)
    elif word == ON_RECOVER or word == ON_RECOVER_OK or word == ON_RECOVER_ASYNC:
        work = own[1][0]
        if word == ON_RECOVER:
            work[account, TX.RECOVER] = events[i, EV.ORDER]
            work[account, TX.RECOVER_TS] = events[i, EV.TS]
        elif not void(account, NEVER, result[1][ST.BASE] + i, events[i, EV.TS], book, own, result):
            return NEEDS_OUTPUT_ROOM
        else:
            work[account, TX.RECOVER] = -1
    elif word in ON_TRANSACTION:
        return transact(events, i, account, book, own, result)
    else:
        consume(events, more, i, account, book, own, result[1])
    return DONE


@kernel
def account_for(events: Array, i: int, book: Book, own: Own, result: Result) -> int:
    """Return the account of an event; -1: `out` is full; -2: there is none, and none is needed."""
    conn, _, channels, _ = book
    consumers, transactions, prefetch = own
    channel, epoch = events[i, EV.CHANNEL], events[i, EV.EPOCH]
    if events[i, EV.WHAT] == ON_OPEN_OK:
        note_open_ok(channels, events, i)
        account = ch.account_of(channels, channel, epoch - 1)
        return account if account >= 0 else -2
    account = ch.account_of(channels, channel, epoch)
    if account >= 0:
        return account
    account = channels[1][ch.place_of(channel, epoch)]
    if account < 0:
        account = channels[3][0]
        channels[3][0] = account + 1
    elif not drain(account, book, own, result):
        return -1
    ch.begin(channels, account, channel, epoch)
    ends, work = consumers[3], transactions[0]
    for column in range(CHAN.WIDTH):
        ends[account, column] = -1
    ends[account, CHAN.LIMIT] = 0
    ends[account, CHAN.GAPS] = conn[CONN.CLIENT_GAPS]
    ends[account, CHAN.MISTAKE] = 0
    for column in range(TX.WIDTH):
        work[account, column] = -1
    work[account, TX.MODE] = PERHAPS if epoch == 0 else PLAIN
    pf.reset(prefetch, 2 * account, channel, epoch, 1, 0)
    return account


@kernel
def consume(events: Array, more: Array, i: int, account: int, book: Book, own: Own, state: Array) -> None:
    """Note where deliveries come from, and the limit on unsettled ones."""
    conn, gaps, _, _ = book
    consumers, _, prefetch = own
    asked, ends = consumers[2], consumers[3]
    word, identity, ts = events[i, EV.WHAT], state[ST.BASE] + i, events[i, EV.TS]
    epoch, tag = events[i, EV.EPOCH], more[i, MORE.TAG]
    queue, limit, begins = identity, ends[account, CHAN.LIMIT], False
    if more[i, MORE.UNNAMED] == 1 and ends[account, CHAN.DECLARED] >= 0:
        queue = ends[account, CHAN.DECLARED]
    if word == ON_DECLARE_OK:
        ends[account, CHAN.DECLARED] = identity
    elif word == ON_QOS:
        limit = more[i, MORE.LIMIT]
        if limit >= 0 and events[i, EV.FROM_CLIENT] == CLIENT:
            if more[i, MORE.WHOLE] == 1:
                prefetch[0][2 * account, pf.WIN.LIMIT] = limit
                pf.adjust(prefetch, 2 * account, identity, ts, 0)
            else:
                ends[account, CHAN.LIMIT] = limit
    elif word == ON_ASK_GET:
        co.ask(consumers, account, CHAN.GET, queue, events[i, EV.ORDER], 0)
    elif word == ON_GET_OK or word == ON_GET_EMPTY:
        row = co.answer(consumers, account, CHAN.GET, conn, gaps)
        ends[account, CHAN.GOT] = asked[row, ASK.QUEUE] if row >= 0 else -1
    elif word == ON_CONSUME and events[i, EV.FROM_CLIENT] == CLIENT:
        begins = tag != 0
        if not begins:
            co.ask(consumers, account, CHAN.CONSUME, queue, events[i, EV.ORDER], limit)
    elif word == ON_CONSUME_OK:
        if tag != 0 and row_of(consumers[1], consumers[0], CONS.ACCOUNT, account, CONS.TAG, tag) < 0:
            row = co.answer(consumers, account, CHAN.CONSUME, conn, gaps)
            if row >= 0:
                queue, limit, begins = asked[row, ASK.QUEUE], asked[row, ASK.LIMIT], True
    elif (word == ON_CANCEL or word == ON_CANCEL_OK) and tag != 0:
        consumer = row_of(consumers[1], consumers[0], CONS.ACCOUNT, account, CONS.TAG, tag)
        if consumer >= 0:
            window = 2 * consumer + 1
            if word == ON_CANCEL_OK and prefetch[0][window, pf.WIN.LIMIT] > 0:  # what it answers was not seen
                pf.closed(prefetch, window, -1, ts, 0)
            pf.closed(prefetch, window, identity, ts, 1)
            prefetch[0][window, pf.WIN.LIMIT] = 0
            if word == ON_CANCEL_OK:
                co.end(consumers, consumer)
    if begins:  # one with the same tag ends
        old = row_of(consumers[1], consumers[0], CONS.ACCOUNT, account, CONS.TAG, tag)
        if old >= 0:
            pf.closed(prefetch, 2 * old + 1, identity, ts, 1)
            co.end(consumers, old)
        consumer = co.begin(consumers, account, tag, queue)
        pf.reset(prefetch, 2 * consumer + 1, events[i, EV.CHANNEL], epoch, 0, limit)


@kernel
def deliver(events: Array, more: Array, i: int, account: int, book: Book, own: Own, result: Result) -> int:
    """Add a delivery that must be settled; return DONE, or what has run out."""
    conn, _, channels, ledger = book
    consumers, transactions, prefetch = own
    state = result[1]
    accounts, slots = channels[0], ledger[1]
    number, row = events[i, EV.NUMBER], state[ST.BASE] + i
    pushed = events[i, EV.WHAT] == ON_DELIVER
    if number < 0:
        return DONE
    consumer, extra = -1, -1
    if pushed:
        consumer = row_of(consumers[1], consumers[0], CONS.ACCOUNT, account, CONS.TAG, more[i, MORE.TAG])
        extra = consumer
    elif more[i, MORE.NO_ACK] >= 0:
        extra = -3 - consumers[3][account, CHAN.GOT]
    else:
        extra = -2
    if more[i, MORE.NO_ACK] == 1:
        finish(result, consumers, row, AUTO, -1, -1, -1, ANSWERED, -1, extra)
        return DONE
    ch.note_floor(channels, account, conn, CLIENT)
    slot = lg.add(ledger, accounts, account, number) if ledger[3][lg.BK.COUNT] < state[ST.LIMIT] else -2
    if slot == -1:
        return NEEDS_PAGES
    if slot < 0:
        finish(result, consumers, row, NONE, -1, -1, -1, EVICTED, events[i, EV.TS], extra)
        return DONE
    if slots[slot, SL.ROW] >= 0:  # the tag occurs twice: what became of the first is unknown
        old = plain(slots[slot, SL.EXTRA], transactions)
        finish(result, consumers, slots[slot, SL.ROW], NONE, -1, -1, -1, EVICTED, events[i, EV.TS], old)
        if old >= 0:
            co.release(consumers, old, 1)
    slots[slot, SL.ROW] = row
    slots[slot, SL.FRAME] = events[i, EV.ORDER]
    slots[slot, SL.EXTRA] = extra
    ch.note_late(channels, account, conn, CLIENT, events[i, EV.TS])
    if consumer >= 0:
        consumers[0][consumer, CONS.COUNT] += 1
    if pushed and more[i, MORE.NO_ACK] == 0:
        pf.delivered(prefetch, 2 * account, row, events[i, EV.TS])
        if consumer >= 0:
            pf.delivered(prefetch, 2 * consumer + 1, row, events[i, EV.TS])
    return DONE


@kernel
def mark(events: Array, book: Book, own: Own, state: Array, still: Array) -> int:
    """Set `still` (uint8 per event) for events of this batch whose rows are still needed.

    These are outstanding deliveries, acknowledgements before their commit, and events with which waits for a window
    begin or end.

    Returns:
        The smallest id of an acknowledgement before its commit; NEVER for none.
    """
    conn, _, channels, ledger = book
    consumers, transactions, prefetch = own
    base, count = state[ST.BASE], len(events)
    for i in range(count):
        word = events[i, EV.WHAT]
        if (word == ON_DELIVER or word == ON_GET) and events[i, EV.CONNECTION] == conn[CONN.ID]:
            account = ch.account_of(channels, events[i, EV.CHANNEL], events[i, EV.EPOCH])
            slot = lg.slot_of(ledger, account, events[i, EV.NUMBER]) if account >= 0 else -1
            if slot >= 0 and ledger[1][slot, SL.ROW] == base + i:
                still[i, DELIVERY] = 1
    acts, first = transactions[1], NEVER
    for act in range(transactions[3][USED]):
        if acts[act, ACT.ROW] >= 0:
            first = min(first, acts[act, ACT.ACK])
            if acts[act, ACT.ROW] >= base:
                still[acts[act, ACT.ROW] - base, DELIVERY] = 1
            if acts[act, ACT.ACK] >= base:
                still[acts[act, ACT.ACK] - base, ANSWER] = 1
    windows = prefetch[0]
    for window in range(2 * max(consumers[4][USED], channels[3][0])):
        for column in (pf.WIN.START, pf.WIN.END, pf.WIN.WAS):
            if windows[window, column] >= base:
                still[windows[window, column] - base, WINDOW] = 1
    return first
