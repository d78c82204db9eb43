"""Deliveries of AMQP 0-9-1 and what became of them: acknowledged, refused, voided, or nothing.

A delivery waits from its first frame on. What ends that:

| event | what it does |
|---|---|
| basic.ack, basic.nack, basic.reject of its tag | settles it; in a transaction, once that is committed |
| the same with `multiple` | settles all up to that tag (0: all), but those that a gap may have settled |
| basic.recover-ok, basic.recover-async | voids all that wait; what is said between request and answer does nothing |
| tx.rollback-ok | what was acknowledged since the last commit waits again |
| a gap in what the client sends | what waits may have been settled in it: `multiple` says nothing of it |
| the server's close | what the client says behind it does nothing |
| a close of either side, the channel opened anew, the connection's end | nobody settles it: `ended_by` |

The same events open and fill the windows of `prefetch`; `consumers` knows the queue of each delivery.
"""

from __future__ import annotations

from typing import NamedTuple

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import called, kernel
from amqpscope.pipelines.walks import channels as ch
from amqpscope.pipelines.walks import connection as cn
from amqpscope.pipelines.walks import consumers as co
from amqpscope.pipelines.walks import ledger as lg
from amqpscope.pipelines.walks import prefetch as pf
from amqpscope.pipelines.walks import transactions as tx
from amqpscope.pipelines.walks.channels import ACC, DISCARDED, EVICTED, RECOVER, ROLLBACK
from amqpscope.pipelines.walks.channels import GAP as IN_GAP
from amqpscope.pipelines.walks.connection import CLIENT, CONN, GAP_FRAME, GAP_TS, SERVER
from amqpscope.pipelines.walks.consumers import ASK, CHAN, CONS
from amqpscope.pipelines.walks.events import CONNECTIONS, EV, FRAMES, MESSAGES, what
from amqpscope.pipelines.walks.ledger import SL
from amqpscope.pipelines.walks.store import declare
from amqpscope.pipelines.walks.transactions import ACT, ASKED, PERHAPS, PLAIN, SELECTED, TX

NONE, ACK, NACK, REJECT, AUTO = range(5)
ROLLED = 1 << 40
"""Added to a row of `acts`: EXTRA of a delivery that a rollback brought back. Else EXTRA is the consumer, -1 where that
is not known; of what was got -3 - id of the event that names its queue, -2 where that is not known."""

_DELIVER, _GET = what(MESSAGES, "deliver"), what(MESSAGES, "get")
_ACK, _NACK, _REJECT = (what(FRAMES, f"basic.{name}") for name in ("ack", "nack", "reject"))
_CONSUME, _CONSUME_OK = what(FRAMES, "basic.consume"), what(FRAMES, "basic.consume-ok")
_CANCEL, _CANCEL_OK = what(FRAMES, "basic.cancel"), what(FRAMES, "basic.cancel-ok")
_ASK_GET, _GET_OK, _GET_EMPTY = (what(FRAMES, f"basic.{name}") for name in ("get", "get-ok", "get-empty"))
_DECLARE_OK, _QOS = what(FRAMES, "queue.declare-ok"), what(FRAMES, "basic.qos")
_RECOVER, _RECOVER_OK = what(FRAMES, "basic.recover"), what(FRAMES, "basic.recover-ok")
_RECOVER_ASYNC, _CONFIRM = what(FRAMES, "basic.recover-async"), what(FRAMES, "confirm.select")
_SELECT = what(FRAMES, "tx.select")
_COMMIT, _COMMIT_OK = what(FRAMES, "tx.commit"), what(FRAMES, "tx.commit-ok")
_TX_ROLLBACK, _ROLLBACK_OK = what(FRAMES, "tx.rollback"), what(FRAMES, "tx.rollback-ok")
_OPEN, _CLOSE, _CONNECTION_CLOSE = ch.OPEN, ch.CLOSE, what(FRAMES, "connection.close")
_CONNECTION = what(CONNECTIONS)


class Output(NamedTuple):
    """Columns of `out`: a delivery that waits no more."""

    ROW: int  # its id
    OUTCOME: int
    ANSWER: int  # id of the frame with which it took effect; -1: none
    MULTIPLE: int  # -1: null, as REQUEUE
    REQUEUE: int
    BY: int  # of `channels.ENDED_BY`
    END_TS: int  # -1: not known
    QUEUE: int  # id of the event that names its queue; -1: not known


class More(NamedTuple):
    """Columns of `more`: what this walk wants of an event besides EV."""

    TAG: int  # hash of consumer_tag; 0 where it is null or empty
    NO_ACK: int  # of deliveries
    REQUEUE: int
    UNNAMED: int  # 1: the queue's name is empty
    LIMIT: int  # prefetch_count; of connections rtt_ns
    WHOLE: int  # `global`


class State(NamedTuple):
    """Columns of `state`."""

    AT: int  # the next event of the batch
    BASE: int  # id of the first event of the batch
    OUT: int  # rows of `out`
    LIMIT: int  # deliveries that may wait


OUT, MORE, ST = declare(Output), declare(More), declare(State)
Book = tuple[Array, Array, ch.Channels, lg.Ledger]
"""`conn`, `gaps`, channels and ledger: what waits, and on what."""
Own = tuple[co.Consumers, tx.Transactions, pf.Prefetch]
Result = tuple[Array, Array]
"""`out` and `state`."""
SPENT_OUT, SPENT_PAGES, SPENT_ACCOUNTS, SPENT_ACTS, DONE = range(5)
"""Why the kernel returned."""


@kernel
def walk(events: Array, more: Array, book: Book, own: Own, result: Result) -> int:
    """Walk over a batch from state[ST.AT] on; returns why it stopped (DONE: at the end of the batch)."""
    conn, gaps, channels, _ = book
    consumers, transactions, prefetch = own
    out, state = result
    for i in range(state[ST.AT], len(events)):
        state[ST.AT] = i
        needed = 2 * (consumers[4][co.USED] + channels[3][0]) + 8
        if state[ST.OUT] + 2 > len(out) or prefetch[2][pf.WAITS] + needed > len(prefetch[1]):
            return SPENT_OUT
        if channels[3][0] >= len(channels[0]):
            return SPENT_ACCOUNTS
        if events[i, EV.CONNECTION] != conn[CONN.ID]:
            if not close(book, own, result):
                return SPENT_OUT
            cn.open_connection(conn, events[i, EV.CONNECTION])
            prefetch[2][pf.CONNECTION] = events[i, EV.CONNECTION]
            prefetch[2][pf.SOON] = pf.SOON_NS
        word = events[i, EV.WHAT]
        if word == _CONNECTION:
            prefetch[2][pf.SOON] = max(pf.SOON_NS, 2 * more[i, MORE.LIMIT])
        elif word == _CONNECTION_CLOSE:
            for account in range(channels[3][0]):
                close_windows(account, state[ST.BASE] + i, events[i, EV.TS], 1, own)
        elif is_wanted(word) and events[i, EV.CHANNEL] >= 0:
            account = account_for(events, i, book, own, result)
            if account == -1:
                return SPENT_OUT
            if account >= 0:
                notice_gaps(account, book, own)
                why = happen(events, more, i, account, book, own, result)
                if why != DONE:
                    return why
        if events[i, EV.CUT] > 0 and events[i, EV.FROM_CLIENT] == CLIENT:
            account = ch.account_of(channels, events[i, EV.CHANNEL], events[i, EV.EPOCH])
            if account >= 0:
                frame, ts = events[i, EV.ORDER], events[i, EV.TS]
                ch.note_cut(channels, account, conn, CLIENT, frame, ts, conn[CONN.LAST_CLIENT])
                unsure_windows(account, frame, ts, own)
                if events[i, EV.CUT] == 1:
                    doubt_mode(account, transactions)
        cn.attend(conn, gaps, events, i, state[ST.BASE] + i)
    state[ST.AT] = len(events)
    return DONE


@kernel
def is_wanted(word: int) -> bool:
    """Whether an event of a channel says anything of deliveries."""
    return (
        word == _DELIVER or word == _GET or word == _ACK or word == _NACK or word == _REJECT
        or word == _CONSUME or word == _CONSUME_OK or word == _CANCEL or word == _CANCEL_OK
        or word == _ASK_GET or word == _GET_OK or word == _GET_EMPTY or word == _DECLARE_OK or word == _QOS
        or word == _RECOVER or word == _RECOVER_OK or word == _RECOVER_ASYNC or word == _OPEN or word == _CLOSE
        or is_transaction(word)
    )  # fmt: skip


@kernel
def is_transaction(word: int) -> bool:
    """Whether an event is of the class tx, or says that the channel is in no transaction."""
    return (
        word == _SELECT or word == _COMMIT or word == _COMMIT_OK or word == _TX_ROLLBACK or word == _ROLLBACK_OK
        or word == _CONFIRM
    )  # fmt: skip


@kernel
def happen(events: Array, more: Array, i: int, account: int, book: Book, own: Own, result: Result) -> int:
    """What an event of a channel does; returns DONE, or what is spent: it is then to be taken again."""
    word = events[i, EV.WHAT]
    if word == _DELIVER or word == _GET:
        return deliver(events, more, i, account, book, own, result)
    if word == _ACK or word == _NACK or word == _REJECT:
        if events[i, EV.FROM_CLIENT] == CLIENT:
            return acknowledge(events, more, i, account, book, own, result)
    elif word == _OPEN or word == _CLOSE:
        ch.note_close(book[2], account, events, i)
        close_windows(account, result[1][ST.BASE] + i, events[i, EV.TS], 1, own)
    elif word == _RECOVER or word == _RECOVER_OK or word == _RECOVER_ASYNC:
        return recover(events, i, account, book, own, result)
    elif is_transaction(word):
        return transact(events, i, account, book, own, result)
    else:
        consume(events, more, i, account, book, own, result[1])
    return DONE


@called
def account_for(events: Array, i: int, book: Book, own: Own, result: Result) -> int:
    """The account of an event; -1: `out` is full; -2: there is none, and none is needed."""
    conn, _, channels, _ = book
    consumers, transactions, prefetch = own
    channel, epoch = events[i, EV.CHANNEL], events[i, EV.EPOCH]
    if events[i, EV.WHAT] == _OPEN:
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
    channels[0][account, ACC.EXTRA] = conn[CONN.CLIENT_GAPS]
    co.begin_channel(consumers, account)
    tx.begin_channel(transactions, account, PERHAPS if epoch == 0 else PLAIN)
    pf.reset(prefetch, pf.of_channel(account), channel, epoch, 1, 0)
    return account


@called
def notice_gaps(account: int, book: Book, own: Own) -> None:
    """What a gap in what the client sends means for windows and transactions, when its channel is next heard of."""
    conn, gaps, channels, _ = book
    seen = channels[0][account, ACC.EXTRA]
    if seen != conn[CONN.CLIENT_GAPS]:
        first, last = 2 * seen + CLIENT, 2 * (conn[CONN.CLIENT_GAPS] - 1) + CLIENT
        close_windows(account, -1, gaps[first, GAP_TS], 0, own)
        unsure_windows(account, gaps[last, GAP_FRAME] - 1, gaps[first, GAP_TS], own)
        doubt_mode(account, own[1])
        channels[0][account, ACC.EXTRA] = conn[CONN.CLIENT_GAPS]


@kernel
def doubt_mode(account: int, transactions: tx.Transactions) -> None:
    """A tx.select may have been missed."""
    if transactions[0][account, TX.MODE] == PLAIN:
        transactions[0][account, TX.MODE] = PERHAPS


@called
def close_windows(account: int, identity: int, ts: int, seen: int, own: Own) -> None:
    """Nobody waits on a channel any more: since a frame, for good, or (identity -1) a time.

    `seen` 0: it is not known since when.
    """
    consumers, _, prefetch = own
    pf.closed(prefetch, pf.of_channel(account), identity, ts, seen)
    if identity >= 0:
        prefetch[0][pf.of_channel(account), pf.WIN.LIMIT] = 0
    each = consumers[3][account, CHAN.CONSUMER]
    while each >= 0:
        pf.closed(prefetch, pf.of_consumer(each), identity, ts, seen)
        if identity >= 0:
            prefetch[0][pf.of_consumer(each), pf.WIN.LIMIT] = 0
        each = consumers[0][each, CONS.AFTER_IT]


@called
def unsure_windows(account: int, frame: int, ts: int, own: Own) -> None:
    """What was delivered up to a frame may have been settled in a gap."""
    consumers, _, prefetch = own
    pf.unsure(prefetch, pf.of_channel(account), frame, ts)
    each = consumers[3][account, CHAN.CONSUMER]
    while each >= 0:
        pf.unsure(prefetch, pf.of_consumer(each), frame, ts)
        each = consumers[0][each, CONS.AFTER_IT]


@called
def consume(events: Array, more: Array, i: int, account: int, book: Book, own: Own, state: Array) -> None:
    """What says where deliveries come from, and how many may wait."""
    conn, gaps, _, _ = book
    consumers, _, prefetch = own
    asked, ends = consumers[2], consumers[3]
    word, identity, ts = events[i, EV.WHAT], state[ST.BASE] + i, events[i, EV.TS]
    epoch, tag = events[i, EV.EPOCH], more[i, MORE.TAG]
    queue = identity
    if more[i, MORE.UNNAMED] == 1 and ends[account, CHAN.DECLARED] >= 0:
        queue = ends[account, CHAN.DECLARED]
    if word == _DECLARE_OK:
        ends[account, CHAN.DECLARED] = identity
    elif word == _QOS:
        limit = more[i, MORE.LIMIT]
        if limit >= 0 and events[i, EV.FROM_CLIENT] == CLIENT:
            if more[i, MORE.WHOLE] == 1:
                pf.limited(prefetch, pf.of_channel(account), limit, identity, ts)
            else:
                ends[account, CHAN.LIMIT] = limit
    elif word == _ASK_GET:
        co.ask(consumers, account, CHAN.GET, queue, events[i, EV.ORDER], 0)
    elif word == _GET_OK or word == _GET_EMPTY:
        row = co.answer(consumers, account, CHAN.GET, conn, gaps)
        ends[account, CHAN.GOT] = asked[row, ASK.QUEUE] if row >= 0 else -1
    elif word == _CONSUME and events[i, EV.FROM_CLIENT] == CLIENT:
        limit = ends[account, CHAN.LIMIT]
        if tag == 0:
            co.ask(consumers, account, CHAN.CONSUME, queue, events[i, EV.ORDER], limit)
        else:
            begin_consumer(account, events[i, EV.CHANNEL], epoch, tag, queue, limit, identity, ts, own)
    elif word == _CONSUME_OK:
        if tag != 0 and co.find(consumers, account, epoch, tag) < 0:
            row = co.answer(consumers, account, CHAN.CONSUME, conn, gaps)
            if row >= 0:
                queue, limit = asked[row, ASK.QUEUE], asked[row, ASK.LIMIT]
                begin_consumer(account, events[i, EV.CHANNEL], epoch, tag, queue, limit, identity, ts, own)
    elif (word == _CANCEL or word == _CANCEL_OK) and tag != 0:
        consumer = co.find(consumers, account, epoch, tag)
        if consumer >= 0:
            pf.closed(prefetch, pf.of_consumer(consumer), identity, ts, 1)
            prefetch[0][pf.of_consumer(consumer), pf.WIN.LIMIT] = 0
            if word == _CANCEL_OK:
                co.end(consumers, consumer)


@called
def begin_consumer(
    account: int, channel: int, epoch: int, tag: int, queue: int, limit: int, identity: int, ts: int, own: Own
) -> None:
    """A consumer begins; one with the same tag is over."""
    consumers, _, prefetch = own
    old = co.find(consumers, account, epoch, tag)
    if old >= 0:
        pf.closed(prefetch, pf.of_consumer(old), identity, ts, 1)
        co.end(consumers, old)
    consumer = co.begin(consumers, account, epoch, tag, queue)
    pf.reset(prefetch, pf.of_consumer(consumer), channel, epoch, 0, limit)


@kernel
def deliver(events: Array, more: Array, i: int, account: int, book: Book, own: Own, result: Result) -> int:
    """A delivery begins to wait, where it is to be settled; returns DONE, or what is spent."""
    conn, _, channels, ledger = book
    consumers, transactions, prefetch = own
    state = result[1]
    accounts, slots = channels[0], ledger[1]
    number, row = events[i, EV.NUMBER], state[ST.BASE] + i
    pushed = events[i, EV.WHAT] == _DELIVER
    if number < 0:
        return DONE
    consumer, extra = -1, -1
    if pushed:
        consumer = co.find(consumers, account, events[i, EV.EPOCH], more[i, MORE.TAG])
        extra = consumer
    else:
        extra = -3 - consumers[3][account, CHAN.GOT]
    if more[i, MORE.NO_ACK] == 1:
        finish(result, row, AUTO, -1, -1, -1, ch.ANSWERED, -1, queue_of(extra, consumers))
        return DONE
    ch.note_floor(channels, account, conn, CLIENT)
    slot = lg.add(ledger, accounts, account, number) if ledger[3][lg.BK.COUNT] < state[ST.LIMIT] else -2
    if slot == -1:
        return SPENT_PAGES
    if slot < 0:
        finish(result, row, NONE, -1, -1, -1, EVICTED, events[i, EV.TS], queue_of(extra, consumers))
        return DONE
    if slots[slot, SL.ROW] >= 0:  # the tag stands twice: what became of the first is not known
        old = plain(slots[slot, SL.EXTRA], transactions)
        finish(result, slots[slot, SL.ROW], NONE, -1, -1, -1, EVICTED, events[i, EV.TS], queue_of(old, consumers))
        if old >= 0:
            co.release(consumers, old, 1)
    slots[slot, SL.ROW] = row
    slots[slot, SL.FRAME] = events[i, EV.ORDER]
    slots[slot, SL.EXTRA] = extra
    if consumer >= 0:
        consumers[0][consumer, CONS.COUNT] += 1
    if pushed and more[i, MORE.NO_ACK] == 0:
        pf.delivered(prefetch, pf.of_channel(account), row, events[i, EV.TS])
        if consumer >= 0:
            pf.delivered(prefetch, pf.of_consumer(consumer), row, events[i, EV.TS])
    return DONE


@kernel
def acknowledge(events: Array, more: Array, i: int, account: int, book: Book, own: Own, result: Result) -> int:
    """An ack, nack or reject of the client; returns DONE, or what is spent."""
    conn, gaps, channels, ledger = book
    _, transactions, _ = own
    out, state = result
    accounts, work = channels[0], transactions[0]
    number, word = events[i, EV.NUMBER], events[i, EV.WHAT]
    if number < 0 or accounts[account, ACC.SERVER_CLOSE] >= 0 or conn[CONN.SERVER_CLOSE] >= 0:
        return DONE
    if work[account, TX.RECOVER] >= 0:
        if cn.first_gap(conn, gaps, SERVER, work[account, TX.RECOVER]) < 0:
            return DONE
        if not void(account, work[account, TX.RECOVER], -1, work[account, TX.RECOVER_TS], book, own, result):
            return SPENT_OUT
        work[account, TX.RECOVER] = -1
    if work[account, TX.MODE] == PERHAPS and not lose_patience(account, events[i, EV.TS], own, result):
        return SPENT_OUT
    outcome = ACK if word == _ACK else NACK if word == _NACK else REJECT
    flag = 1 if events[i, EV.MULTIPLE] == 1 else 0
    multiple = flag if word != _REJECT else 0
    if flag == 0:
        slot = lg.slot_of(ledger, account, number)
        if slot >= 0 and not settle(
            slot, outcome, multiple, more[i, MORE.REQUEUE], events, i, account, book, own, result
        ):
            return SPENT_ACTS
        return DONE
    ch.note_floor(channels, account, conn, CLIENT)
    floor = accounts[account, ACC.FLOOR]
    slot = lg.first_above(ledger, accounts, account, floor)
    if slot >= 0:
        accounts[account, ACC.FLOOR] = lg.below(ledger, slot, floor)
    while slot >= 0 and (number == 0 or lg.number_of(ledger, slot) <= number):
        if state[ST.OUT] >= len(out):
            return SPENT_OUT
        following = lg.following(ledger, slot)
        if not settle(slot, outcome, multiple, more[i, MORE.REQUEUE], events, i, account, book, own, result):
            return SPENT_ACTS
        slot = following
    return DONE


@kernel
def settle(
    slot: int, outcome: int, multiple: int, requeue: int, events: Array, i: int, account: int, book: Book, own: Own,
    result: Result,
) -> bool:  # fmt: skip
    """A delivery is acknowledged: at once, or perhaps later; False: there is no room in `acts`."""
    _, _, channels, ledger = book
    consumers, transactions, _ = own
    slots, acts = ledger[1], transactions[1]
    row, frame, identity = slots[slot, SL.ROW], slots[slot, SL.FRAME], result[1][ST.BASE] + i
    mode = transactions[0][account, TX.MODE]
    if mode != PLAIN:
        act = tx.act(transactions, account)
        if act < 0:
            return False
        acts[act, ACT.ROW] = row
        acts[act, ACT.FRAME] = frame
        extra = slots[slot, SL.EXTRA]
        acts[act, ACT.ROLLED_TS] = acts[extra - ROLLED, ACT.ROLLED_TS] if extra >= ROLLED else -1
        acts[act, ACT.EXTRA] = plain(extra, transactions)
        acts[act, ACT.NUMBER] = lg.number_of(ledger, slot)
        acts[act, ACT.OUTCOME] = outcome
        acts[act, ACT.MULTIPLE] = multiple
        acts[act, ACT.REQUEUE] = requeue
        acts[act, ACT.SAID] = identity
        acts[act, ACT.SAID_FRAME] = events[i, EV.ORDER]
        acts[act, ACT.SAID_TS] = events[i, EV.TS]
        if mode == PERHAPS:
            leave_windows(account, acts[act, ACT.EXTRA], frame, identity, events[i, EV.TS], 1, own)
    else:
        extra = plain(slots[slot, SL.EXTRA], transactions)
        finish(result, row, outcome, identity, multiple, requeue, ch.ANSWERED, -1, queue_of(extra, consumers))
        leave_windows(account, extra, frame, identity, events[i, EV.TS], 1, own)
        if extra >= 0:
            co.release(consumers, extra, 1)
    lg.remove(ledger, channels[0], slot)
    return True


@kernel
def leave_windows(account: int, extra: int, frame: int, identity: int, ts: int, answers: int, own: Own) -> None:
    """A delivery is settled, as far as windows go; what was got is in none."""
    _, _, prefetch = own
    if extra >= -1:
        pf.settled(prefetch, pf.of_channel(account), frame, identity, ts, answers)
        if extra >= 0:
            pf.settled(prefetch, pf.of_consumer(extra), frame, identity, ts, answers)


@kernel
def plain(extra: int, transactions: tx.Transactions) -> int:
    """EXTRA of a delivery as it was before a rollback, which is forgotten."""
    if extra < ROLLED:
        return extra
    act = extra - ROLLED
    extra = transactions[1][act, ACT.EXTRA]
    tx.free(transactions, act)
    return extra


@kernel
def queue_of(extra: int, consumers: co.Consumers) -> int:
    """Id of the event that names the queue of a delivery; -1: it is not known."""
    return consumers[0][extra, CONS.QUEUE] if extra >= 0 else -3 - extra if extra <= -3 else -1


@called
def take_effect(act: int, outcome: int, answer: int, by: int, ts: int, own: Own, result: Result) -> None:
    """An acknowledgement that waited takes effect, or (NONE) never will."""
    consumers, transactions, _ = own
    acts = transactions[1]
    extra = acts[act, ACT.EXTRA]
    multiple, requeue = acts[act, ACT.MULTIPLE], acts[act, ACT.REQUEUE]
    if outcome == NONE:
        multiple, requeue = -1, -1
    finish(result, acts[act, ACT.ROW], outcome, answer, multiple, requeue, by, ts, queue_of(extra, consumers))
    if extra >= 0:
        co.release(consumers, extra, 1)
    tx.free(transactions, act)


@called
def lose_patience(account: int, now: int, own: Own, result: Result) -> bool:
    """Acknowledgements that waited too long for signs of a transaction were in none; False: `out` is full."""
    _, transactions, _ = own
    work, acts, _, _ = transactions
    while work[account, TX.OPEN] >= 0:
        act = work[account, TX.OPEN]
        if now - acts[act, ACT.SAID_TS] < tx.PATIENCE_NS:
            return True
        if result[1][ST.OUT] >= len(result[0]):
            return False
        work[account, TX.OPEN] = acts[act, ACT.NEXT]
        take_effect(act, acts[act, ACT.OUTCOME], acts[act, ACT.SAID], ch.ANSWERED, -1, own, result)
    return True


@called
def transact(events: Array, i: int, account: int, book: Book, own: Own, result: Result) -> int:
    """A method of the class tx, or confirm.select; returns DONE, or what is spent."""
    conn, gaps, _, _ = book
    _, transactions, _ = own
    work, acts, asked, _ = transactions
    word, identity = events[i, EV.WHAT], result[1][ST.BASE] + i
    if word == _SELECT or word == _CONFIRM:
        if work[account, TX.MODE] == PERHAPS and not lose_patience(account, ch.NEVER, own, result):
            return SPENT_OUT
        work[account, TX.MODE] = SELECTED if word == _SELECT else PLAIN
    elif word == _COMMIT or word == _TX_ROLLBACK:
        work[account, TX.MODE] = SELECTED
        tx.ask(transactions, account, 1 if word == _COMMIT else 0, events[i, EV.ORDER])
    else:
        commits = 1 if word == _COMMIT_OK else 0
        while work[account, TX.ASKED] >= 0:
            first = work[account, TX.ASKED]
            frame = asked[first, ASKED.FRAME]
            lost = cn.first_gap(conn, gaps, SERVER, frame)
            unsure = lost >= 0 and (asked[first, ASKED.NEXT] >= 0 or cn.first_gap(conn, gaps, CLIENT, frame) >= 0)
            mine = asked[first, ASKED.COMMITS] == commits and not unsure
            while asked[first, ASKED.FIRST] >= 0:
                act = asked[first, ASKED.FIRST]
                if result[1][ST.OUT] >= len(result[0]):
                    return SPENT_OUT
                missed = cn.first_gap(conn, gaps, CLIENT, acts[act, ACT.SAID_FRAME])
                following = acts[act, ACT.NEXT]
                if missed >= 0 and gaps[missed, GAP_FRAME] <= frame:
                    take_effect(act, NONE, -1, IN_GAP, gaps[missed, GAP_TS], own, result)
                elif not mine:
                    ts = gaps[lost, GAP_TS] if lost >= 0 else events[i, EV.TS]
                    take_effect(act, NONE, -1, IN_GAP, ts, own, result)
                elif commits == 1:
                    leave_windows(
                        account, acts[act, ACT.EXTRA], acts[act, ACT.FRAME], identity, events[i, EV.TS], 1, own
                    )
                    take_effect(act, acts[act, ACT.OUTCOME], identity, ch.ANSWERED, -1, own, result)
                elif not bring_back(account, act, events[i, EV.TS], book, own, result):
                    return SPENT_PAGES
                asked[first, ASKED.FIRST] = following
            over = asked[first, ASKED.COMMITS] == commits and not unsure
            tx.answered(transactions, account)
            if over:
                break
    return DONE


@called
def bring_back(account: int, act: int, ts: int, book: Book, own: Own, result: Result) -> bool:
    """A rollback: the delivery waits again; False: there is no free page."""
    _, _, channels, ledger = book
    _, transactions, _ = own
    acts, slots = transactions[1], ledger[1]
    slot = lg.add(ledger, channels[0], account, acts[act, ACT.NUMBER])
    if slot == -1:
        return False
    if slot < 0 or slots[slot, SL.ROW] >= 0:
        take_effect(act, NONE, -1, ROLLBACK, ts, own, result)
        return True
    slots[slot, SL.ROW] = acts[act, ACT.ROW]
    slots[slot, SL.FRAME] = acts[act, ACT.FRAME]
    slots[slot, SL.EXTRA] = ROLLED + act
    acts[act, ACT.ROLLED_TS] = ts
    return True


@called
def recover(events: Array, i: int, account: int, book: Book, own: Own, result: Result) -> int:
    """A basic.recover, or what makes it happen; returns DONE, or what is spent."""
    work = own[1][0]
    if events[i, EV.WHAT] == _RECOVER:
        work[account, TX.RECOVER] = events[i, EV.ORDER]
        work[account, TX.RECOVER_TS] = events[i, EV.TS]
    else:
        if not void(account, ch.NEVER, result[1][ST.BASE] + i, events[i, EV.TS], book, own, result):
            return SPENT_OUT
        work[account, TX.RECOVER] = -1
    return DONE


@called
def void(account: int, until: int, identity: int, ts: int, book: Book, own: Own, result: Result) -> bool:
    """What was delivered before a frame is void; False: `out` is full."""
    _, _, channels, ledger = book
    consumers, transactions, _ = own
    slots = ledger[1]
    slot = lg.first_above(ledger, channels[0], account, -1)
    while slot >= 0:
        if result[1][ST.OUT] >= len(result[0]):
            return False
        following = lg.following(ledger, slot)
        if slots[slot, SL.FRAME] < until:
            extra = plain(slots[slot, SL.EXTRA], transactions)
            finish(result, slots[slot, SL.ROW], NONE, -1, -1, -1, RECOVER, ts, queue_of(extra, consumers))
            leave_windows(account, extra, slots[slot, SL.FRAME], identity, ts, 0, own)
            if extra >= 0:
                co.release(consumers, extra, 1)
            lg.remove(ledger, channels[0], slot)
        slot = following
    return True


@called
def drain(account: int, book: Book, own: Own, result: Result) -> bool:
    """Nobody settles any more what waits on a channel epoch; False: `out` is full, and it is to be drained on."""
    conn, gaps, channels, ledger = book
    consumers, transactions, _ = own
    out, state = result
    work, acts, asked, _ = transactions
    accounts, slots = channels[0], ledger[1]
    notice_gaps(account, book, own)
    if work[account, TX.MODE] == PERHAPS and not lose_patience(account, ch.NEVER, own, result):
        return False
    while work[account, TX.OPEN] >= 0:  # neither committed nor rolled back
        if state[ST.OUT] >= len(out):
            return False
        act = work[account, TX.OPEN]
        work[account, TX.OPEN] = acts[act, ACT.NEXT]
        by, ts = ch.ending(channels, account, conn, gaps, CLIENT, acts[act, ACT.FRAME])
        if acts[act, ACT.ROLLED_TS] >= 0:
            by, ts = ROLLBACK, acts[act, ACT.ROLLED_TS]
        take_effect(act, NONE, -1, by, ts, own, result)
    while work[account, TX.ASKED] >= 0:
        first = work[account, TX.ASKED]
        lost = cn.first_gap(conn, gaps, SERVER, asked[first, ASKED.FRAME])
        while asked[first, ASKED.FIRST] >= 0:
            if state[ST.OUT] >= len(out):
                return False
            act = asked[first, ASKED.FIRST]
            asked[first, ASKED.FIRST] = acts[act, ACT.NEXT]
            by, ts = ch.ending(channels, account, conn, gaps, CLIENT, acts[act, ACT.FRAME])
            if lost >= 0 and by != DISCARDED:
                by, ts = IN_GAP, gaps[lost, GAP_TS]
            elif acts[act, ACT.ROLLED_TS] >= 0:
                by, ts = ROLLBACK, acts[act, ACT.ROLLED_TS]
            take_effect(act, NONE, -1, by, ts, own, result)
        tx.answered(transactions, account)
    if work[account, TX.RECOVER] >= 0:
        if not void(account, work[account, TX.RECOVER], -1, work[account, TX.RECOVER_TS], book, own, result):
            return False
        work[account, TX.RECOVER] = -1
    slot = lg.first_above(ledger, accounts, account, -1)
    while slot >= 0:
        if state[ST.OUT] >= len(out):
            return False
        following = lg.following(ledger, slot)
        frame, extra = slots[slot, SL.FRAME], slots[slot, SL.EXTRA]
        ch.pass_own_gaps(channels, account, frame)
        by, ts = ch.ending(channels, account, conn, gaps, CLIENT, frame)
        if extra >= ROLLED:
            by, ts = ROLLBACK, acts[extra - ROLLED, ACT.ROLLED_TS]
        extra = plain(extra, transactions)
        finish(result, slots[slot, SL.ROW], NONE, -1, -1, -1, by, ts, queue_of(extra, consumers))
        if extra >= 0:
            co.release(consumers, extra, 1)
        lg.remove(ledger, accounts, slot)
        slot = following
    end_channel(account, book, own)
    return True


@called
def end_channel(account: int, book: Book, own: Own) -> None:
    """Windows and consumers of a channel epoch are over."""
    conn = book[0]
    consumers, _, _ = own
    if cn.is_missing(conn, CLIENT):
        unsure_windows(account, conn[CONN.LAST_FRAME], conn[CONN.LAST_TS], own)
    seen = 1 if conn[CONN.CLOSED] == 1 else 0
    ts = conn[CONN.SILENCE_TS] if conn[CONN.HAS_ROW] == 1 else conn[CONN.LAST_TS]
    close_windows(account, -1, ts, seen, own)
    while consumers[3][account, CHAN.CONSUMER] >= 0:
        co.end(consumers, consumers[3][account, CHAN.CONSUMER])


@called
def close(book: Book, own: Own, result: Result) -> bool:
    """The connection is over; False: `out` is full, and it is to be closed on."""
    channels = book[2]
    for account in range(channels[3][0]):
        if not drain(account, book, own, result):
            return False
    ch.forget(channels)
    co.forget(own[0])
    tx.forget(own[1])
    return True


@kernel
def finish(
    result: Result, row: int, outcome: int, answer: int, multiple: int, requeue: int, by: int, end_ts: int, queue: int
) -> None:
    """A row of `out`."""
    out, state = result
    at = state[ST.OUT]
    out[at, OUT.ROW] = row
    out[at, OUT.OUTCOME] = outcome
    out[at, OUT.ANSWER] = answer
    out[at, OUT.MULTIPLE] = multiple
    out[at, OUT.REQUEUE] = requeue
    out[at, OUT.BY] = by
    out[at, OUT.END_TS] = end_ts
    out[at, OUT.QUEUE] = queue
    state[ST.OUT] = at + 1


DELIVERY, ANSWER, WINDOW = range(3)
"""Columns of `still`."""


@kernel
def mark(events: Array, book: Book, own: Own, state: Array, still: Array) -> int:
    """Set `still` (uint8 per event) for events of this batch of which the rows are still needed.

    Those are deliveries that wait, acknowledgements that wait for a commit, and events with which waits for a window
    begin or end.

    Returns:
        The smallest id of an acknowledgement that waits for a commit; NEVER for none.
    """
    conn, _, channels, ledger = book
    consumers, transactions, prefetch = own
    base, count = state[ST.BASE], len(events)
    for i in range(count):
        word = events[i, EV.WHAT]
        if (word == _DELIVER or word == _GET) and events[i, EV.CONNECTION] == conn[CONN.ID]:
            account = ch.account_of(channels, events[i, EV.CHANNEL], events[i, EV.EPOCH])
            slot = lg.slot_of(ledger, account, events[i, EV.NUMBER]) if account >= 0 else -1
            if slot >= 0 and ledger[1][slot, SL.ROW] == base + i:
                still[i, DELIVERY] = 1
    acts, first = transactions[1], ch.NEVER
    for act in range(transactions[3][tx.USED]):
        if acts[act, ACT.ROW] >= 0:
            first = min(first, acts[act, ACT.SAID])
            if acts[act, ACT.ROW] >= base:
                still[acts[act, ACT.ROW] - base, DELIVERY] = 1
            if acts[act, ACT.SAID] >= base:
                still[acts[act, ACT.SAID] - base, ANSWER] = 1
    windows = prefetch[0]
    for window in range(2 * max(consumers[4][co.USED], channels[3][0])):
        for column in (pf.WIN.START, pf.WIN.END, pf.WIN.WAS):
            if windows[window, column] >= base:
                still[windows[window, column] - base, WINDOW] = 1
    return first
