"""Outstanding publishing ids, found by publisher and id.

`waiting` (WAIT) has a row for each sending, in order. `index` (`kernels.lookup`) finds the oldest sending of an id that
an answer can belong to. Rows stay where they are until there is no room for more: then `compact` drops answered ones.
"""

from __future__ import annotations

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.kernels.lookup import place_of, row_of
from amqpscope.dissector.kernels.state import Matrix, column

FINDABLE, SUPERSEDED, UNCERTAIN = range(3)
"""What may become of a sending: an answer finds it by its id; the publisher's id was declared again and the same
publishing id sent again, so answers belong to the later sending; a gap may hold its answer or another's."""


class WAIT(Matrix):
    """Columns of `waiting`: a publishing id that was sent."""

    OPENER = column("id of a message's event; -1: it is no longer outstanding")
    OTHER = column("id of a message of the same sending in this batch, where OPENER is of an earlier one; -1: none")
    RANK = column("among names of messages in this batch, of the one of them that is in it")
    FRAME = column("its frame")
    ENTRY = column("of the frame")
    PUBLISHER = column("publisher_id")
    EPOCH = column("publisher_epoch")
    NUMBER = column("publishing_id")
    RECORDS = column("messages that stand for it")
    SIZE = column("of all bodies; -1: not known")
    NEXT = column("row of the next sending of the same id; -1: none")
    LAST = column("row of the last one, where this is the first")
    FATE = column("FINDABLE, SUPERSEDED, UNCERTAIN")
    LOST_TS = column("of UNCERTAIN: when the gap was")
    GUESS = column("`deduplicated` if it is acknowledged: UNKNOWN, NO, YES, SENT_BEFORE")


class CT(Matrix):
    """Columns of `counts`, which `waiting` and `index` come with."""

    ROWS = column("rows of `waiting`")
    LIVE = column("of these outstanding")
    OLDEST = column("no row before this is outstanding")
    LAST_FRAME = column("first row of the last frame")
    FRESH = column("first row of the frame that was the last when the batch began")


@kernel
def found(waiting: Array, index: Array, publisher: int, number: int) -> int:
    """Return the row of the oldest sending of an id that an answer can belong to; -1: none."""
    row = row_of(index, waiting, WAIT.PUBLISHER, publisher, WAIT.NUMBER, number)
    if row < 0 or waiting[row, WAIT.OPENER] < 0 or waiting[row, WAIT.FATE] != FINDABLE:
        return -1
    return row


@kernel
def enter(waiting: Array, index: Array, row: int) -> None:
    """Make a row findable, after other sendings of the same id; those of an earlier epoch are superseded."""
    publisher, number = waiting[row, WAIT.PUBLISHER], waiting[row, WAIT.NUMBER]
    place = place_of(index, waiting, WAIT.PUBLISHER, publisher, WAIT.NUMBER, number)
    first = index[place] - 1
    waiting[row, WAIT.NEXT] = -1
    waiting[row, WAIT.LAST] = row
    if first >= 0 and waiting[first, WAIT.OPENER] >= 0:
        if waiting[first, WAIT.EPOCH] == waiting[row, WAIT.EPOCH]:
            if waiting[first, WAIT.FATE] == UNCERTAIN:  # an answer may still belong to earlier ones
                settle_all(waiting, row, UNCERTAIN, waiting[first, WAIT.LOST_TS])
            else:
                waiting[waiting[first, WAIT.LAST], WAIT.NEXT] = row
                waiting[first, WAIT.LAST] = row
            return
        if waiting[first, WAIT.FATE] == FINDABLE:
            settle_all(waiting, first, SUPERSEDED, -1)
    index[place] = row + 1


@kernel
def settle_all(waiting: Array, first: int, fate: int, ts: int) -> None:
    """Note that no answer belongs to these sendings of an id any more."""
    row = first
    while row >= 0:
        waiting[row, WAIT.FATE] = fate
        waiting[row, WAIT.LOST_TS] = ts
        row = waiting[row, WAIT.NEXT]


@kernel
def leave(waiting: Array, index: Array, counts: Array, row: int) -> None:
    """Remove a row that is no longer outstanding; it is the first sending of its id, or is not findable."""
    if waiting[row, WAIT.FATE] == FINDABLE and waiting[row, WAIT.NEXT] >= 0:
        following = waiting[row, WAIT.NEXT]
        waiting[following, WAIT.LAST] = waiting[row, WAIT.LAST]
        publisher, number = waiting[row, WAIT.PUBLISHER], waiting[row, WAIT.NUMBER]
        index[place_of(index, waiting, WAIT.PUBLISHER, publisher, WAIT.NUMBER, number)] = following + 1
    waiting[row, WAIT.OPENER] = -1
    counts[CT.LIVE] -= 1


@kernel
def compact(waiting: Array, counts: Array, first: int, end: int, kept: int) -> int:
    """Drop answered rows among these, and move the others up to `kept`; return the number of rows there then.

    Call this for all rows in order, then build `index` anew.
    """
    for row in range(first, min(end, counts[CT.ROWS])):
        if row == counts[CT.LAST_FRAME]:
            counts[CT.LAST_FRAME] = kept
        if row == counts[CT.FRESH]:
            counts[CT.FRESH] = kept
        if waiting[row, WAIT.OPENER] >= 0:
            if kept < row:
                for column in range(WAIT.WIDTH):
                    waiting[kept, column] = waiting[row, column]
            kept += 1
    return kept


@kernel
def build(waiting: Array, index: Array, first: int, end: int) -> None:
    """Make some rows findable, except superseded ones. Call this for all rows in order; `index` is empty at first."""
    for row in range(first, end):
        if waiting[row, WAIT.OPENER] >= 0 and waiting[row, WAIT.FATE] != SUPERSEDED:
            enter(waiting, index, row)
