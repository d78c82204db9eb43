"""What the walk over deliveries stores and writes, and what its steps share: windows, queues, rows of `out`."""

from __future__ import annotations

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.kernels.state import Matrix, column
from amqpscope.pipelines.amqp091.frames import FRAMES
from amqpscope.pipelines.amqp091.settlements import consumers as co
from amqpscope.pipelines.amqp091.settlements import prefetch as pf
from amqpscope.pipelines.amqp091.settlements import transactions as tx
from amqpscope.pipelines.amqp091.settlements.consumers import CHAN, CONS
from amqpscope.pipelines.amqp091.settlements.transactions import ACT, PERHAPS, PLAIN, TX
from amqpscope.pipelines.model import channels as ch
from amqpscope.pipelines.model import outstanding as lg
from amqpscope.pipelines.model.connection import CLIENT, CONN, GAP_FRAME
from amqpscope.pipelines.model.events import CONNECTIONS, MESSAGES, what
from amqpscope.pipelines.model.stopped import ST

NONE, ACK, NACK, REJECT, AUTO = range(5)
ROLLED = 1 << 40
"""Added to a row of `acts`: EXTRA of a delivery that a rollback brought back. Otherwise EXTRA is the consumer (-1:
unknown); for got messages it is -3 - the id of the event that names the queue (-2: their request is unknown)."""

ON_DELIVER, ON_GET = what(MESSAGES, "deliver"), what(MESSAGES, "get")
ON_ACK, ON_NACK, ON_REJECT = (what(FRAMES, f"basic.{name}") for name in ("ack", "nack", "reject"))
ON_CONSUME, ON_CONSUME_OK = what(FRAMES, "basic.consume"), what(FRAMES, "basic.consume-ok")
ON_CANCEL, ON_CANCEL_OK = what(FRAMES, "basic.cancel"), what(FRAMES, "basic.cancel-ok")
ON_ASK_GET, ON_GET_OK, ON_GET_EMPTY = (what(FRAMES, f"basic.{name}") for name in ("get", "get-ok", "get-empty"))
ON_DECLARE_OK, ON_QOS = what(FRAMES, "queue.declare-ok"), what(FRAMES, "basic.qos")
ON_RECOVER, ON_RECOVER_OK = what(FRAMES, "basic.recover"), what(FRAMES, "basic.recover-ok")
ON_RECOVER_ASYNC, ON_CONFIRM = what(FRAMES, "basic.recover-async"), what(FRAMES, "confirm.select")
ON_SELECT = what(FRAMES, "tx.select")
ON_COMMIT, ON_COMMIT_OK = what(FRAMES, "tx.commit"), what(FRAMES, "tx.commit-ok")
ON_TX_ROLLBACK, ON_ROLLBACK_OK = what(FRAMES, "tx.rollback"), what(FRAMES, "tx.rollback-ok")
ON_CONNECTION_CLOSE = what(FRAMES, "connection.close")
ON_CONNECTION = what(CONNECTIONS)


class OUT(Matrix):
    """Columns of `out`: a delivery that is no longer outstanding."""

    ROW = column("its id")
    OUTCOME = column("number in OUTCOMES")
    ANSWER = column("id of the frame with which it took effect; -1: none")
    MULTIPLE = column("-1: null, as REQUEUE")
    REQUEUE = column("1: it was put back; -1: null")
    BY = column("of `unanswered.ENDED_BY`")
    END_TS = column("-1: not known")
    QUEUE = column("id of the event that names its queue; -1: not known")


class MORE(Matrix):
    """Columns of `more`: what this walk needs of an event besides EV."""

    TAG = column("hash of consumer_tag; 0 where it is null or empty")
    NO_ACK = column("of deliveries")
    REQUEUE = column("`requeue` of rejections")
    UNNAMED = column("1: the queue's name is empty")
    LIMIT = column("prefetch_count; of connections rtt_ns")
    WHOLE = column("`global`")


Book = tuple[Array, Array, ch.Channels, lg.Ledger]
"""`conn`, `gaps`, channels and ledger: what is outstanding, and on which channel."""
Own = tuple[co.Consumers, tx.Transactions, pf.Prefetch]
Result = tuple[Array, Array]
"""`out` and `state`."""


@kernel
def notice_gaps(account: int, book: Book, own: Own) -> None:
    """Apply a gap in what the client sends to windows and transactions, at the next event of their channel."""
    conn, gaps, _, _ = book
    ends = own[0][3]
    seen = ends[account, CHAN.GAPS]
    if seen != conn[CONN.CLIENT_GAPS]:
        unsure_windows(account, gaps[2 * (conn[CONN.CLIENT_GAPS] - 1) + CLIENT, GAP_FRAME] - 1, -1, own)
        if own[1][0][account, TX.MODE] == PLAIN:  # a tx.select may have been missed
            own[1][0][account, TX.MODE] = PERHAPS
        ends[account, CHAN.GAPS] = conn[CONN.CLIENT_GAPS]


@kernel
def close_windows(account: int, identity: int, ts: int, seen: int, own: Own) -> None:
    """Close the windows of a channel, at a frame, or (identity -1) at a time.

    `seen` is 0 if the time of the end is unknown.
    """
    consumers, _, prefetch = own
    window, each = 2 * account, consumers[3][account, CHAN.CONSUMER]
    while window >= 0:
        pf.closed(prefetch, window, identity, ts, seen)
        if identity >= 0:
            prefetch[0][window, pf.WIN.LIMIT] = 0
        window = 2 * each + 1 if each >= 0 else -1
        each = consumers[0][each, CONS.AFTER_IT] if each >= 0 else -1


@kernel
def unsure_windows(account: int, frame: int, ts: int, own: Own) -> None:
    """Note that deliveries up to a frame may have been settled, none before `ts`; -1: in a gap, before as well."""
    consumers, _, prefetch = own
    window, each = 2 * account, consumers[3][account, CHAN.CONSUMER]
    while window >= 0:
        pf.closed(prefetch, window, -1, ts, 0)
        prefetch[0][window, pf.WIN.COUNT] = 0
        prefetch[0][window, pf.WIN.SINCE] = frame
        window = 2 * each + 1 if each >= 0 else -1
        each = consumers[0][each, CONS.AFTER_IT] if each >= 0 else -1


@kernel
def leave_windows(account: int, extra: int, frame: int, identity: int, ts: int, answers: int, own: Own) -> None:
    """Take a settled delivery out of its windows; got messages are in none."""
    _, _, prefetch = own
    if extra >= -1:
        pf.settled(prefetch, 2 * account, frame, identity, ts, answers)
        if extra >= 0:
            pf.settled(prefetch, 2 * extra + 1, frame, identity, ts, answers)


@kernel
def plain(extra: int, transactions: tx.Transactions) -> int:
    """Return EXTRA of a delivery as it was before a rollback, which is forgotten."""
    if extra < ROLLED:
        return extra
    act = extra - ROLLED
    extra = transactions[1][act, ACT.EXTRA]
    tx.free(transactions, act)
    return extra


@kernel
def finish(
    result: Result, consumers: co.Consumers, row: int, outcome: int, answer: int, multiple: int, requeue: int, by: int,
    end_ts: int, extra: int,
) -> None:  # fmt: skip
    """Write a row of `out` for a delivery with this EXTRA."""
    out, state = result
    at = state[ST.OUT]
    out[at, OUT.ROW] = row
    out[at, OUT.OUTCOME] = outcome
    out[at, OUT.ANSWER] = answer
    out[at, OUT.MULTIPLE] = multiple
    out[at, OUT.REQUEUE] = requeue
    out[at, OUT.BY] = by
    out[at, OUT.END_TS] = end_ts
    out[at, OUT.QUEUE] = consumers[0][extra, CONS.QUEUE] if extra >= 0 else -3 - extra if extra <= -3 else -1
    state[ST.OUT] = at + 1
