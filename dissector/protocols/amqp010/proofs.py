"""AMQP 0-10: ids of commands after a gap, or where the capture begins in the middle, proven by the answers to them.

As with the numbers of publishes of AMQP 0-9-1 (`numbering_rules` there): the k-th command that was seen since then has
the id k + ahead. No answer comes before its command, so an answer that names id t, before which k commands were seen,
shows that `ahead` is at least t - k. The largest of these is `ahead` itself if at any one time the last command was
answered. That is certain if its sender was silent for `QUIET_NS` after the answer, and if an answer to another command
shows the same, for a peer may stall once.

What is sent after a gap is read late, and answers to it before it. So a command that began before the answers that were
counted refutes what they show.
"""

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.protocols.amqp010.state import Session

QUIET_NS = 10_000_000_000
"""No answer takes as long as this while others come."""
AGREED, QUIET = 1, 2
"""Answers to several commands show the same; the sender was silent after one of these."""
WRAP = 1 << 32


@kernel
def begin(sessions: Array, session: int, server: int) -> None:
    """Note that the ids of a side are not known from here on."""
    sessions[session, Session.CLIENT_NEXT + server] = -1
    sessions[session, Session.CLIENT_SENT + server] = 0
    sessions[session, Session.CLIENT_AHEAD + server] = -1
    sessions[session, Session.CLIENT_TS + server] = 0
    sessions[session, Session.CLIENT_PROOF + server] = 0


@kernel
def answered(sessions: Array, session: int, server: int, number: int, ts: int) -> None:
    """Take an answer to the commands of a side, whose last one that it names has this id (32 bits)."""
    sent, ahead = sessions[session, Session.CLIENT_SENT + server], sessions[session, Session.CLIENT_AHEAD + server]
    shown = number + 1 - sent
    if ahead >= 0:  # ids may have wrapped since
        step = (shown - ahead) & (WRAP - 1)
        shown = ahead + step - (WRAP if step >= WRAP // 2 else 0)
    if shown < max(ahead, 0):
        sessions[session, Session.CLIENT_TS + server] = 0
        return
    if shown > ahead:
        sessions[session, Session.CLIENT_AHEAD + server] = shown
        sessions[session, Session.CLIENT_REACHED + server] = sent
        sessions[session, Session.CLIENT_PROOF + server] = 0
    elif sent != sessions[session, Session.CLIENT_REACHED + server]:
        sessions[session, Session.CLIENT_PROOF + server] |= AGREED
    sessions[session, Session.CLIENT_TS + server] = ts


@kernel
def sends(sessions: Array, session: int, server: int, begun: int) -> int:
    """Count a command of a side that begins at this time; return its id, -1 while that is not proven."""
    ts, ahead = sessions[session, Session.CLIENT_TS + server], sessions[session, Session.CLIENT_AHEAD + server]
    sent = sessions[session, Session.CLIENT_SENT + server]
    if ahead >= 0 and ts > 0 and begun - ts >= QUIET_NS:
        sessions[session, Session.CLIENT_PROOF + server] |= QUIET
    if ts > begun:
        begin(sessions, session, server)
        sent = 0
    sessions[session, Session.CLIENT_SENT + server] = sent + 1
    sessions[session, Session.CLIENT_TS + server] = 0
    return sent + ahead if sessions[session, Session.CLIENT_PROOF + server] == AGREED | QUIET else -1
