"""Consumers: which queue a delivery came from, by the consume of its tag or by the get that it answers.

A consumer (`consumers`, CONS) is found by its channel and the hash of its tag (`kernels.lookup`). Requests whose answer
names what they got (basic.get, and basic.consume without a tag) are open in their order; where a gap makes that order
uncertain they are forgotten, and the queue is unknown. A queue is the id of the event that names it: the request, or,
where the request leaves the name empty, the queue.declare-ok before it on that channel.
"""

from __future__ import annotations

import numpy as np

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.kernels.lookup import enter, leave, table_of
from amqpscope.dissector.kernels.state import Matrix, column
from amqpscope.pipelines.model import connection as cn
from amqpscope.pipelines.model.reuse import ASKED_FREE, ASKED_USED, FREE, USED, give, take
from amqpscope.pipelines.model.store import grown


class CONS(Matrix):
    """Columns of `consumers`."""

    NEXT = column("of a free row the next one")
    ACCOUNT = column("-1: free")
    TAG = column("hash of its tag")
    QUEUE = column("id of the event that names its queue")
    COUNT = column("its outstanding deliveries")
    DEAD = column("1: its tag is used by another one, or it was cancelled")
    BEFORE_IT = column("neighbours on its channel; -1: none")
    AFTER_IT = column("the one after it; -1: none")


class ASK(Matrix):
    """Columns of `asked`: requests without an answer yet."""

    QUEUE = column("id of the event that names the queue")
    FRAME = column("of the request")
    LIMIT = column("prefetch limit of a consumer")
    NEXT = column("the request after it; -1: none")


class CHAN(Matrix):
    """Columns of `ends`, a row for each account (`channels`); -1: none unless noted otherwise."""

    CONSUMER = column("its first consumer")
    GET = column("the oldest basic.get without an answer")
    GET_LAST = column("the newest")
    CONSUME = column("the oldest basic.consume without a tag and an answer")
    CONSUME_LAST = column("the newest")
    DECLARED = column("id of the last queue.declare-ok")
    GOT = column("id of the event that names the queue of the get-ok seen last")
    LIMIT = column("limit of consumers begun later; 0: none")
    GAPS = column("gaps of the client that were applied")
    MISTAKE = column(
        "frame with which the client settled what certainly was not outstanding, or the server's last one of that"
        " channel since; 0: none. After that, a gap of the server may hold the close of the channel"
    )


Consumers = tuple[Array, Array, Array, Array, Array]
"""`consumers`, their `table`, `asked`, `ends`, `counts`."""
BY = CONS.ACCOUNT, CONS.TAG


def fresh() -> Consumers:
    """Return the state without consumers."""
    return (
        np.zeros((16, CONS.WIDTH), np.int64),
        np.zeros(32, np.int64),
        np.zeros((16, ASK.WIDTH), np.int64),
        np.full((16, CHAN.WIDTH), -1, np.int64),
        np.array([-1, 0, -1, 0], np.int64),
    )


def roomy(state: Consumers, accounts: int, more: int, compiled: bool = False) -> Consumers:
    """Return the state with room for this many accounts in all, and for more consumers and requests."""
    consumers, table, asked, ends, counts = state
    consumers = grown(consumers, int(counts[USED]) + more)
    if len(table) < 2 * len(consumers):
        table = table_of(consumers, BY, table, None, compiled)
    asked = grown(asked, int(counts[ASKED_USED]) + more)
    return consumers, table, asked, grown(ends, accounts, -1), counts


@kernel
def begin(state: Consumers, account: int, tag: int, queue: int) -> int:
    """Begin a consumer and return it; the caller has made room, and ended one with the same tag."""
    consumers, table, _, ends, counts = state
    each = take(consumers, CONS.NEXT, counts, FREE, USED)
    consumers[each, CONS.ACCOUNT] = account
    consumers[each, CONS.TAG] = tag
    consumers[each, CONS.QUEUE] = queue
    consumers[each, CONS.COUNT] = 0
    consumers[each, CONS.DEAD] = 0
    enter(table, consumers, CONS.ACCOUNT, CONS.TAG, each)
    first = ends[account, CHAN.CONSUMER]
    consumers[each, CONS.BEFORE_IT] = -1
    consumers[each, CONS.AFTER_IT] = first
    if first >= 0:
        consumers[first, CONS.BEFORE_IT] = each
    ends[account, CHAN.CONSUMER] = each
    return each


@kernel
def end(state: Consumers, consumer: int) -> None:
    """Free the tag of a consumer; its outstanding deliveries refer to the consumer until they are settled."""
    consumers, table, _, ends, _ = state
    leave(table, consumers, CONS.ACCOUNT, CONS.TAG, consumer)
    before, after = consumers[consumer, CONS.BEFORE_IT], consumers[consumer, CONS.AFTER_IT]
    if before >= 0:
        consumers[before, CONS.AFTER_IT] = after
    else:
        ends[consumers[consumer, CONS.ACCOUNT], CHAN.CONSUMER] = after
    if after >= 0:
        consumers[after, CONS.BEFORE_IT] = before
    consumers[consumer, CONS.DEAD] = 1
    release(state, consumer, 0)


@kernel
def release(state: Consumers, consumer: int, count: int) -> None:
    """Note that deliveries of a consumer are no longer outstanding."""
    consumers, _, _, _, counts = state
    consumers[consumer, CONS.COUNT] -= count
    if consumers[consumer, CONS.DEAD] == 1 and consumers[consumer, CONS.COUNT] <= 0:
        consumers[consumer, CONS.DEAD] = 2
        consumers[consumer, CONS.ACCOUNT] = -1
        give(consumers, CONS.NEXT, counts, FREE, consumer)


@kernel
def ask(state: Consumers, account: int, kind: int, queue: int, frame: int, limit: int) -> None:
    """Add a request to the open ones of its kind (CHAN.GET or CHAN.CONSUME)."""
    _, _, asked, ends, counts = state
    each = take(asked, ASK.NEXT, counts, ASKED_FREE, ASKED_USED)
    asked[each, ASK.QUEUE] = queue
    asked[each, ASK.FRAME] = frame
    asked[each, ASK.LIMIT] = limit
    asked[each, ASK.NEXT] = -1
    if ends[account, kind] < 0:
        ends[account, kind] = each
    else:
        asked[ends[account, kind + 1], ASK.NEXT] = each
    ends[account, kind + 1] = each


@kernel
def answer(state: Consumers, account: int, kind: int, conn: Array, gaps: Array) -> int:
    """Take the oldest open request of a kind; its row stays as it is until the next `ask`.

    If several are open, and a gap since the oldest may hold answers or requests, it is unknown whose the answer is: all
    are forgotten. The same holds if one is open, and gaps may hold both its answer and another request.

    Returns:
        Its row; -1: there is none, or it is unknown which one.
    """
    _, _, asked, ends, counts = state
    first = ends[account, kind]
    if first < 0:
        return -1
    frame = asked[first, ASK.FRAME]
    answers_lost = cn.first_gap(conn, gaps, cn.SERVER, frame) >= 0
    requests_lost = cn.first_gap(conn, gaps, cn.CLIENT, frame) >= 0
    many = asked[first, ASK.NEXT] >= 0
    unknown = (many and (answers_lost or requests_lost)) or (answers_lost and requests_lost)
    each = first
    while each >= 0:
        ends[account, kind] = asked[each, ASK.NEXT]
        give(asked, ASK.NEXT, counts, ASKED_FREE, each)
        each = ends[account, kind] if unknown else -1
    return -1 if unknown else first
