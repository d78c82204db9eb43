"""What commands of AMQP 0-10 are while they are outstanding, what answers make of them; matrices of their walk."""

from __future__ import annotations

from typing import NamedTuple

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.kernels.state import Matrix, column
from amqpscope.pipelines.amqp010 import sessions as ss
from amqpscope.pipelines.model import outstanding as lg
from amqpscope.pipelines.model.outstanding import SL
from amqpscope.pipelines.model.unanswered import ANSWERED

PLAIN, TRANSFER, POINT, ATTACH, DETACH, DETACHED, TIMEOUT, EXPECTED, COMPLETED, RESULT, EXCEPTION = range(11)
ACCEPT, REJECT, RELEASE, SELECT, COMMIT, ROLL_BACK, START, END = range(11, 19)  # after END no branch is open
PREPARE_BRANCH, COMMIT_BRANCH, ROLL_BACK_BRANCH = range(19, 22)
ROLES = {
    "session.command-point": POINT,
    "session.attach": ATTACH,
    "session.attached": ATTACH,
    "session.detach": DETACH,
    "session.detached": DETACHED,
    "session.timeout": TIMEOUT,
    "session.expected": EXPECTED,
    "session.completed": COMPLETED,
    "execution.result": RESULT,
    "execution.exception": EXCEPTION,
    "message.accept": ACCEPT,
    "message.reject": REJECT,
    "message.release": RELEASE,
    "tx.select": SELECT,
    "tx.commit": COMMIT,
    "tx.rollback": ROLL_BACK,
    "dtx.select": END,
    "dtx.start": START,
    "dtx.end": END,
    "dtx.prepare": PREPARE_BRANCH,
    "dtx.commit": COMMIT_BRANCH,
    "dtx.rollback": ROLL_BACK_BRANCH,
}
"""What controls and commands do to sessions; a transfer is an event of `messages`."""
REFUSALS = (1, 2)
"""Codes of session.detached that refuse a session.attach: the session or the channel is busy. It ends no session."""

PUBLISH, QUIET, DELIVERY, SEEN, UNSURE, ACCEPTED, HELD, COMMITTING, ROLLED, DOUBTED, REQUEST = range(1, 12)
PREPARING, COMMITTING_BRANCH, ROLLING_BACK = range(12, 15)
"""What is outstanding (the low bits of SL.EXTRA): a publish; one whose sender need not wait; a delivery; one that is
not acquired; one of which it is unknown whether it is to be accepted; accepted in a transaction that is not committed;
accepted, perhaps in a transaction; in one whose commit is under way; in one that was rolled back; in one that ended
with a command of unknown id, or may have in a gap; any other command that asks. Of those, the last three end a branch
of a distributed transaction."""
KIND = (1 << 4) - 1
SEVERAL_BIT, QUEUE_BITS, BRANCH_BITS = 1 << 4, 5, 32
QUEUES = (1 << (BRANCH_BITS - QUEUE_BITS)) - 1
"""SL.EXTRA has the kind in KIND, whether several were accepted with it, the number of a queue, by one more, and the
branch of a distributed transaction: that in which a delivery was accepted, or which a command ends; 0: none."""
NONE, ACK, NACK, REFUSED, AUTO, UNKNOWN, OK, ERROR, SILENT = range(9)
OUTCOMES = ("none", "ack", "nack", "reject", "auto", "unknown", "ok", "error", None)
"""Names of these; SILENT: there is no row."""


class MORE(Matrix):
    """Columns of `more`: what this walk needs of an event besides EV; -1 for null."""

    IDENTITY = column("id of the event")
    SESSION = column("digest of the session's name; of connections that of user, virtual host and broker; 0 for null")
    ROLE = column("one of ROLES; -1: none")
    ASKS = column("1: a command other than a transfer that asks for an answer")
    FIRST = column("rows of `ranges`: the first, and the one after the last")
    END = column("the row of `ranges` after its last")
    TARGET = column("id that a result, an exception or a command-point names")
    CODE = column("of an answer or session.detached; timeout of session.timeout")
    MODE = column("accept_mode of transfers")
    ACQUIRE = column("acquire_mode of transfers")
    QUEUE = column("number of a delivery's queue")
    BRANCH = column("digest of the branch (its xid) that a command of dtx names, of 31 bits; 0: none")
    STATUS = column("of a result of dtx (xa-status)")
    SLOT = column("written: its slot")


class OUT(Matrix):
    """Columns of `out`: a command that is no longer outstanding."""

    ROW = column("its id")
    KIND = column("what it is: PUBLISH and those that follow")
    OUTCOME = column("number in OUTCOMES")
    ANSWER = column("id of the event that answers it; -1: none")
    BY = column("of `unanswered.ENDED_BY`")
    END_TS = column("-1: not known")
    CODE = column("-1: none")
    MULTIPLE = column("1: its answer was about several")
    QUEUE = column("number of its queue")
    SESSION = column("digest of a session that may go on, name and scope; 0: it does not")


class REPORTED(Matrix):
    """Columns of `reported`: ids of a session's commands that an event answers, which another connection may have."""

    SESSION = column("as in `out`")
    SIDE = column("whose commands")
    ANSWER = column("id of the event")
    ROLE = column("one of ROLES")
    LOWER = column("32 bits")
    UPPER = column("the last number, 32 bits")
    CODE = column("that the event has")


class AT(Matrix):
    """Columns of `accepts`: the message.accept of an ACCEPTED or HELD delivery, or the rollback of a ROLLED one."""

    ID = column("of the event; of a rollback the time")
    FRAME = column("frame_no")


class ST(Matrix):
    """Columns of `state`."""

    AT = column("the next event of the batch")
    OUT = column("rows of `out`")
    REPORTED = column("rows of `reported`")
    LIMIT = column("commands that may be outstanding")
    SCOPE = column("MORE.SESSION of the connection")
    SEVERAL = column("whether the event names several outstanding commands; -1: not counted yet")


Batch = tuple[Array, Array, Array]
"""EV, MORE, and `ranges` (int64, two columns: first and last id, 32 bits each)."""


class Outstanding(NamedTuple):
    """What is outstanding on the open connection, and room for what comes of it.

    Attributes:
        conn: CONN.
        gaps: where frames may be missing.
        sessions: sessions, with an account for the commands of each side.
        ledger: what is outstanding in the accounts.
        accepts: AT, a row for each slot of the ledger.
        out: OUT.
        reported: REPORTED.
        state: ST.
    """

    conn: Array
    gaps: Array
    sessions: ss.State
    ledger: lg.Ledger
    accepts: Array
    out: Array
    reported: Array
    state: Array


@kernel
def outcome_of(role: int, kind: int) -> int:
    """Return what an answer makes of what is outstanding; NONE: nothing."""
    publish = kind == PUBLISH or kind == QUIET
    if role == COMPLETED:
        if publish:
            return ACK
        if kind >= REQUEST:
            return OK
        return AUTO if kind == SEEN else NONE
    if role == RESULT:
        return OK if kind >= REQUEST else NONE
    if role == EXCEPTION:
        return ERROR if kind >= REQUEST else NACK if publish else NONE
    if role == COMMIT:
        return ACK if kind == COMMITTING else NONE
    if kind >= REQUEST or (publish and role == ACCEPT):
        return NONE
    if publish or role == RELEASE:
        return NACK
    return ACK if role == ACCEPT else REFUSED


@kernel
def mark(of: Outstanding, slot: int, kind: int) -> None:
    """Change what is outstanding."""
    slots = of.ledger[1]
    slots[slot, SL.EXTRA] = (slots[slot, SL.EXTRA] & ~KIND) | kind


@kernel
def roll_back(of: Outstanding, slot: int, frame: int, ts: int) -> None:
    """Note that a delivery was accepted in a transaction that was rolled back."""
    mark(of, slot, ROLLED)
    of.accepts[slot, AT.ID] = ts
    of.accepts[slot, AT.FRAME] = frame


@kernel
def settle(batch: Batch, i: int, slot: int, outcome: int, of: Outstanding) -> None:
    """Answer what is in a slot."""
    _, more, _ = batch
    slots = of.ledger[1]
    extra, identity = slots[slot, SL.EXTRA], slots[slot, SL.ROW]
    kind = extra & KIND
    several = of.state[ST.SEVERAL] if kind != COMMITTING else 1 if extra & SEVERAL_BIT else 0
    lg.remove(of.ledger, of.sessions[0][0], slot)
    code = more[i, MORE.CODE] if outcome >= NACK else -1
    answered = more[i, MORE.IDENTITY] if outcome != AUTO else -1
    finish(of, identity, extra, outcome, answered, ANSWERED, -1, code, several, 0)


@kernel
def settle_held(of: Outstanding, slot: int) -> None:
    """Apply the message.accept of a delivery that was held: it was in no transaction."""
    extra, identity = of.ledger[1][slot, SL.EXTRA], of.ledger[1][slot, SL.ROW]
    lg.remove(of.ledger, of.sessions[0][0], slot)
    several = 1 if extra & SEVERAL_BIT else 0
    finish(of, identity, extra, ACK, of.accepts[slot, AT.ID], ANSWERED, -1, -1, several, 0)


@kernel
def report(of: Outstanding, session: int, side: int, more: Array, i: int, lower: int, upper: int) -> None:
    """Write a row of `reported`."""
    reported, at = of.reported, of.state[ST.REPORTED]
    reported[at, REPORTED.SESSION] = session
    reported[at, REPORTED.SIDE] = side
    reported[at, REPORTED.ANSWER] = more[i, MORE.IDENTITY]
    reported[at, REPORTED.ROLE] = more[i, MORE.ROLE]
    reported[at, REPORTED.LOWER] = lower
    reported[at, REPORTED.UPPER] = upper
    reported[at, REPORTED.CODE] = more[i, MORE.CODE]
    of.state[ST.REPORTED] = at + 1


@kernel
def finish(
    of: Outstanding, row: int, extra: int, outcome: int, answer: int, by: int, end_ts: int, code: int, multiple: int,
    session: int,
) -> None:  # fmt: skip
    """Write a row of `out` for what has this SL.EXTRA."""
    out, at = of.out, of.state[ST.OUT]
    out[at, OUT.ROW] = row
    out[at, OUT.KIND] = extra & KIND
    out[at, OUT.OUTCOME] = outcome
    out[at, OUT.ANSWER] = answer
    out[at, OUT.BY] = by
    out[at, OUT.END_TS] = end_ts
    out[at, OUT.CODE] = code
    out[at, OUT.MULTIPLE] = multiple
    out[at, OUT.QUEUE] = ((extra >> QUEUE_BITS) & QUEUES) - 1
    out[at, OUT.SESSION] = session
    of.state[ST.OUT] = at + 1
