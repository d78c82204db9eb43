"""The numbers of publishes, derived from the confirms of their channel: the rules, and what is noted of each publish.

The k-th publish seen of a channel epoch has turn k, and the number k + ahead. `ahead` changes only at gaps in what the
client sent, and only grows; from one gap to the next is a segment. These rules find it there:

- No confirm comes before its publish: a confirm of number t, before which k publishes were seen to begin, shows that
  `ahead` is at least t - k. The largest of these bounds in a segment is `ahead` itself if at any one time the newest
  publish was confirmed. It is too small if a client always has some outstanding, so it alone gives no number.
- If the client sent nothing for `QUIET_NS` after the confirm that gave the bound, and no other confirm came, the newest
  publish was confirmed: a broker does not take that long. Because a broker may stall once, the bound is proven only
  when the confirm of another publish reaches it too. It is also proven if it agrees with the number that the client
  itself puts into a header.
- So it is if client and broker take turns: `TURNS` times, and at least every other time, the newest publish began, the
  bound was reached, and then the client sent nothing for `TIMES` times as long as that took, and for `PAUSE_NS`. Else
  each of these publishes had waited through the whole pause, and was confirmed just when the next one had begun.
- A gap has room for so many publishes (`room_for`). Where `ahead` was certain before it, and the bound shows as many
  more as it has room for, it is proven; where there is room for none, `ahead` goes on. Where a content without a
  method follows, the gap holds its method, and room for more of others (`BEHIND`).

Order is judged by the time of a publish's first byte, not by the order of frames alone: what a client sends after a gap
is read late, when it is certain that the gap will not be filled, and answers are read before it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from amqpscope.dissector.kernels.state import Matrix, column

QUIET_NS = 10_000_000_000
"""No confirm takes as long as this while others come."""

TURNS, TIMES, PAUSE_NS = 20, 20, 250_000_000
"""How often client and broker take turns; how much longer than an answer the pause behind it is; and how long it is: a
system may hold a confirm back until what came before is acknowledged, with the next publish or after 200 ms."""

SHORTEST = 39
"""Bytes of the shortest publish: a method of no names (17), and the header of an empty body without properties (22)."""
RAGGED = 54
"""Bytes that more fit where a gap cuts frames: of the first publish all but its method's last byte, of the last all
but its method's first (whose header lies behind the gap)."""
BEHIND = 22
"""Bytes of the shortest header: so many more fit where the content of the last publish lies behind the gap."""
ANY = 1 << 40
"""Room where nobody knows how much is missing; sums of it do not overflow."""

NONE = -(1 << 62)
"""Stands for null among numbers that may be below zero."""
SURE, UNSURE, CONFIRM, CLIENT_CLOSE, OTHER_CLOSE, CLIENT_CLOSES_ALL, OTHER_CLOSES_ALL, OVER = range(8)
"""Kinds of rows: a publish whose number is certain, or not; a confirm; the end of an epoch by its client, or else; the
same for all epochs of the connection; the end of what was captured of it."""
COUNTED, PROVEN, UNKNOWN = 1, 2, 3
"""How a number is known. UNKNOWN: it is not, but confirms show that the publish expects one; 0: nothing shows that."""
EXPECTS = -2
"""The number of a publish that expects a confirm of an unknown number."""


class TURN(Matrix):
    """Columns of `rows`: what happened, in its order; connections one after the other, each with its OVER."""

    KIND = column("what it is: one of those above")
    EPOCH = column("row of `epochs`; of what concerns a connection its first")
    TS = column("`derive`: of confirms the largest so far in the epoch, of publishes the least BEGUN from here on")
    BEGUN = column("first_ts_ns of a publish")
    NUMBER = column(
        "publish_seq (-1 for none), or the number confirmed (0: not to be looked at). Of what concerns a "
        "connection: its last epoch + 1, or -1 for that of all. `derive`: the turn of a publish, at last its "
        "number"
    )
    GIVEN = column(
        "number that the client itself gave, -1 for none. `derive`: the next publish of the epoch, at last how "
        "its number is known"
    )
    GAP = column("the last gap before it in what the client sent: row of the times of gaps")
    LOST = column("gaps before it in what the broker sent. `derive`: of publishes the segment")
    PARTIAL = column("1: a publish that lacks a part")


class BASE(Matrix):
    """Columns of `bases`: publishes of an epoch that are no longer among the rows."""

    COUNT = column("how many they are")
    AHEAD = column("the number of the last with one, less its turn; NONE")
    GAP = column("before the last of them")
    UNTIL = column("the largest time")


class EPOCH(Matrix):
    """Columns of `epochs`."""

    COUNT = column("publishes; going backward, up to the current one")
    UNTIL = column("the largest time of its confirms so far")
    LOST = column("the most gaps of the broker before any of its turns")
    GAP = column("the gap before its latest publish")
    END_TURN = column("turn at which the client ended it, else after all; -1 for not yet")
    END_TS = column("when anyone did")
    END_GAP = column("the gap before that")
    NEXT = column("row of the first publish that had not begun")
    LEAST = column("the least BEGUN of publishes from here on")
    SEGMENT = column("of the current publish; at last of the first")
    LAST_SEGMENT = column("of what follows the last publish")
    SENT = column("publishes begun")
    # The confirms with which no further publish had begun:
    TURN = column("of the publish that follows them; 0 for none")
    FOLLOWS = column("that publish's row, -1 for none")
    TAG = column("the largest of their numbers")
    WHEN = column("time of the last of them")
    BEGAN = column("BEGUN of the publish before them; -1: none since the beginning")
    SINCE = column("GAP of the last of them")
    LOST_BEFORE = column("LOST of the last of them")
    # Along the segments:
    AHEAD = column("`ahead` of the last segment; NONE")
    EXACT = column("1: its number is certain")
    UP_TO = column("its GAP")


class SEGMENT(Matrix):
    """Columns of `segments`: publishes of an epoch between two gaps."""

    EPOCH = column("row of `epochs`")
    GAP = column("the gap before it")
    FIRST = column("first turn without a certain number; 0 for none")
    COUNTED = column("what certain numbers are ahead of their turns; NONE")
    GIVEN_LEAST = column("what numbers that the client gave are ahead of their turns: the least")
    GIVEN_MOST = column("the most")
    TAG = column("the largest number confirmed in it")
    BOUND = column("the largest bound")
    BOUND_FIRST = column("the first turn with that bound")
    BOUND_LAST = column("the last one")
    FOLLOWED = column("the largest bound before a publish")
    QUIET_LOST = column("the most gaps of the broker before a bound that silence followed")
    QUIET_BOUND = column("the largest of these bounds")
    TURNS = column("turns with confirms, since the last gap of the broker")
    IN_TURN = column("of these that reached the bound, with a long pause behind a quick answer")
    TURNS_LOST = column("gaps of the broker up to then")
    AHEAD = column("`ahead`")
    BY = column("how its numbers are known; 0: no publish asks")


def room_for(missing: Any, ragged: Any) -> Any:
    """Return how many publishes (int64) each gap has room for.

    Args:
        missing: bytes of each gap (int64), -1 for unknown.
        ragged: which of them (bool) cut a publish, so that others may lie across their edges as well.
    """
    return np.where(missing < 0, ANY, (missing + np.where(ragged, RAGGED, 0)) // SHORTEST)
