"""Kernels that match deliveries with publishes by sub-keys; the rules are in `transits`."""

from __future__ import annotations

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.hashing import mix
from amqpscope.dissector.kernels.kernel import i64, kernel, u64
from amqpscope.dissector.kernels.state import Matrix, column
from amqpscope.dissector.kernels.words import MASK
from amqpscope.pipelines.across.homes import UNKNOWN, UNSURE
from amqpscope.pipelines.across.keys import FROM_AFAR, KINDS, STAYED, TRACE

NEVER = -(1 << 63)
"""A time that is in no window."""


class FOUND(Matrix):
    """What a match says of a publish: the first columns of those below; -1 for null."""

    TS = column("ts_ns")
    UNFINISHED = column("1: a part of it was not seen")
    CONNECTION = column("connection_id")
    FRAME = column("frame_no")
    PACKET = column("its packet")
    CAPTURE = column("number of its name")


class MESSAGE(FOUND):
    """What is compared besides; the first columns of ROW and SLOT."""

    PLACE = column("of `keyed`; 0 for unknown")
    BODY = column("of `keyed`; 0 for unknown")
    MOVED = column("of `keyed`")
    BROKER = column("of `Homes`; 0 for unknown")
    HOME = column("of `Homes`; UNKNOWN, or UNSURE, where its virtual host is not known")


class ROW(MESSAGE):
    """Columns of rows as a matrix (int64); -1 for null."""

    KEY = column("digest of the first kind of key that it has")
    KIND = column("of the key; KINDS: there is none")
    TRACE = column("digest, 0 for none")
    CONTENT = column("digest of its content; 0 for none")
    IS_DELIVERY = column("1: a delivery, 0: a publish")
    REDELIVERED = column("1: it was delivered before")
    RETURNS = column("how often a quorum queue took it back; -1: not said")


class SLOT(MESSAGE):
    """Columns of the table of sub-keys: the latest publish of each."""

    GROUP = column("the slot is free unless this is the open group")
    SUB_KEY = column("digest of a kind of key, in a scope")
    BEFORE = column("time of the publish before the latest (or one that may have been it), or NEVER")
    FIRSTS = column("deliveries matched with it")
    REPEATED = column("the same, redelivered")


class MATCH(FOUND):
    """Columns of matches, one row per delivery: its publish."""

    KIND = column("of the match; KINDS: ambiguous")
    ATTEMPT = column("which delivery of it this is, from 1 on")


class STATE(Matrix):
    """Further state of the walk."""

    GROUP = column("number of the open group; 0 before the first")
    KEY = column("key of the open group")
    COUNT = column("sub-keys of it")
    REFUSED = column("time of the latest publish of which a sub-key was not stored, or NEVER")
    NEW = column("sub-keys, stored or not, since those out of the window were dropped")
    LIMIT = column("sub-keys that a group may have")
    WINDOW = column("ns for which a publish is remembered")
    SCOPES = column("for which a sub-key is stored: 2 where there are several homes")
    OVERFLOWED = column("groups that had more than that")
    WRITTEN = column("matches of this batch")


_EVERYWHERE, _NOWHERE_KNOWN = 0, 1
"""Scopes besides the numbers of homes: all publishes; those of unknown homes."""
_ASK_NEXT, _STAYS_OPEN = -1, -2
"""Instead of a slot: the next kind decides; nothing does."""


@kernel
def match(rows: Array, first: int, slots: Array, state: Array, matches: Array) -> int:
    """Walk over rows from `first` on.

    Args:
        rows: ROW.
        first: where to begin.
        slots: SLOT, a power of two of them.
        state: STATE.
        matches: MATCH, of -1, a row for each delivery.

    Returns:
        The number of rows; or less: the publish that needs room first.
    """
    for i in range(first, len(rows)):
        if rows[i, ROW.KIND] < KINDS and (state[STATE.GROUP] == 0 or rows[i, ROW.KEY] != state[STATE.KEY]):
            state[STATE.GROUP] += 1
            state[STATE.KEY] = rows[i, ROW.KEY]
            state[STATE.COUNT] = 0
            state[STATE.NEW] = 0
            state[STATE.REFUSED] = NEVER
        if rows[i, ROW.IS_DELIVERY] == 1:
            find_publish(rows, i, slots, state, matches)
            continue
        # Sub-keys out of the window are dropped when half as many as the limit came since the last time: each pays for
        # two of them.
        needed = state[STATE.COUNT] + KINDS * state[STATE.SCOPES]
        limit = state[STATE.LIMIT]
        if (2 * state[STATE.NEW] >= limit) if needed > limit else (2 * needed > len(slots)):
            return i
        keep_publish(rows, i, slots, state)
    return len(rows)


@kernel
def keep_publish(rows: Array, i: int, slots: Array, state: Array) -> None:
    """Make a publish the latest of its sub-keys, in each scope."""
    refused = 0
    for kind in range(rows[i, ROW.KIND], KINDS):
        sub_key = sub_key_of(rows, i, kind)
        if sub_key < 0:
            continue
        for scope in range(state[STATE.SCOPES]):
            own = max(i64(rows[i, ROW.HOME]), _NOWHERE_KNOWN) if scope == 1 else _EVERYWHERE
            own_key = scoped(sub_key, own)
            at = slot_of(slots, state[STATE.GROUP], own_key)
            if slots[at, SLOT.GROUP] == state[STATE.GROUP]:
                slots[at, SLOT.BEFORE] = slots[at, SLOT.TS]
            else:
                state[STATE.NEW] += 1
                if state[STATE.COUNT] >= state[STATE.LIMIT]:
                    state[STATE.REFUSED] = rows[i, ROW.TS]
                    refused = 1
                    continue
                state[STATE.COUNT] += 1
                slots[at, SLOT.GROUP] = state[STATE.GROUP]
                slots[at, SLOT.SUB_KEY] = own_key
                slots[at, SLOT.BEFORE] = state[STATE.REFUSED]  # it may have been of this sub-key
            for number in range(MESSAGE.WIDTH):
                slots[at, number] = rows[i, number]
            slots[at, SLOT.FIRSTS] = 0
            slots[at, SLOT.REPEATED] = 0
    state[STATE.OVERFLOWED] += refused


@kernel
def find_publish(rows: Array, i: int, slots: Array, state: Array, matches: Array) -> None:
    """Write the match of a delivery: see the table in the module."""
    line = state[STATE.WRITTEN]
    state[STATE.WRITTEN] += 1
    again = 1 if rows[i, ROW.REDELIVERED] == 1 else 0
    matches[line, MATCH.KIND] = KINDS
    matches[line, MATCH.ATTEMPT] = max(i64(rows[i, ROW.RETURNS]), again) + 1
    for kind in range(rows[i, ROW.KIND], KINDS):
        sub_key = sub_key_of(rows, i, kind)
        at = only_publish(rows, i, sub_key, slots, state) if sub_key >= 0 else _ASK_NEXT
        if at == _ASK_NEXT:
            continue
        if at >= 0 and may_come(rows, i, slots, at):
            matches[line, MATCH.KIND] = kind
            for number in range(FOUND.WIDTH):
                matches[line, number] = slots[at, number]
            slots[at, SLOT.FIRSTS + again] += 1
            if again == 1 and rows[i, ROW.RETURNS] < 0:
                queues = max(i64(slots[at, SLOT.FIRSTS]), 1)
                matches[line, MATCH.ATTEMPT] = 1 + (slots[at, SLOT.REPEATED] + queues - 1) // queues
        return


@kernel
def only_publish(rows: Array, i: int, sub_key: int, slots: Array, state: Array) -> int:
    """Return the slot whose latest publish is the only one of a sub-key in the window before a delivery.

    Returns:
        The slot; or _ASK_NEXT where there is none, or several; or _STAYS_OPEN where it may be one that was not stored.
    """
    ts = rows[i, ROW.TS]
    window = state[STATE.WINDOW]
    is_wide = state[STATE.SCOPES] == 1 or rows[i, ROW.HOME] <= UNKNOWN or rows[i, ROW.MOVED] == FROM_AFAR
    only = _ASK_NEXT
    publishes = 0
    for scope in range(1 if is_wide else 2):
        where = _EVERYWHERE if is_wide else _NOWHERE_KNOWN if scope == 1 else rows[i, ROW.HOME]
        at = slot_of(slots, state[STATE.GROUP], scoped(sub_key, where))
        if slots[at, SLOT.GROUP] != state[STATE.GROUP]:
            if is_within(state[STATE.REFUSED], ts, window):
                return _STAYS_OPEN
        elif is_within(slots[at, SLOT.TS], ts, window):
            publishes += 2 if is_within(slots[at, SLOT.BEFORE], ts, window) else 1
            only = at
    return only if publishes == 1 else _ASK_NEXT


@kernel
def may_come(rows: Array, i: int, slots: Array, at: int) -> bool:
    """Return whether a delivery may be of a publish: home, body and place agree as far as known, or headers say why."""
    if rows[i, ROW.MOVED] == FROM_AFAR:
        return True
    is_unsure = rows[i, ROW.HOME] == UNSURE or slots[at, SLOT.HOME] == UNSURE
    if is_unsure and rows[i, ROW.CONNECTION] != slots[at, SLOT.CONNECTION]:
        return False
    here = rows[i, ROW.BROKER]
    there = slots[at, SLOT.BROKER]
    if here != 0 and there != 0 and here != there:
        return False
    body = rows[i, ROW.BODY]
    sent = slots[at, SLOT.BODY]
    if body != 0 and sent != 0 and body != sent:
        return False
    if rows[i, ROW.MOVED] != STAYED or slots[at, SLOT.MOVED] != STAYED:
        return True
    place = rows[i, ROW.PLACE]
    published = slots[at, SLOT.PLACE]
    return place == 0 or published == 0 or place == published


@kernel
def scoped(sub_key: int, scope: int) -> int:
    """Return a sub-key in a scope."""
    return sub_key if scope == _EVERYWHERE else mix(scope, sub_key)


@kernel
def sub_key_of(rows: Array, i: int, kind: int) -> int:
    """Return the sub-key of a message for a kind; -1 where it has none."""
    digest = rows[i, ROW.KEY]
    if kind != rows[i, ROW.KIND]:
        digest = rows[i, ROW.TRACE] if kind == TRACE else rows[i, ROW.CONTENT]
        if digest == 0:
            return -1
    return mix(kind, digest)


@kernel
def slot_of(slots: Array, group: int, sub_key: int) -> int:
    """Return the slot of a sub-key, or the free one for it."""
    last = len(slots) - 1
    at = sub_key & last
    while slots[at, SLOT.GROUP] == group and slots[at, SLOT.SUB_KEY] != sub_key:
        at = (at + 1) & last
    return at


@kernel
def is_within(earlier: int, later: int, window: int) -> bool:
    """Return whether a time is at most `window` before another, and not after it."""
    return ((u64(later) - u64(earlier)) & MASK) <= u64(window)


@kernel
def fill(slots: Array, kept: Array) -> None:
    """Put the slots of a group into a table that is empty and has room for them."""
    for i in range(len(kept)):
        at = slot_of(slots, i64(kept[i, SLOT.GROUP]), i64(kept[i, SLOT.SUB_KEY]))
        for number in range(SLOT.WIDTH):
            slots[at, number] = kept[i, number]
