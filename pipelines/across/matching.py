"""Kernels that match deliveries with publishes by sub-keys; the rules are in `transits`."""

from __future__ import annotations

from typing import NamedTuple

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.hashing import mix
from amqpscope.dissector.kernels.kernel import i64, kernel, u64
from amqpscope.dissector.kernels.words import MASK
from amqpscope.pipelines.across.homes import UNKNOWN, UNSURE
from amqpscope.pipelines.across.keys import FROM_AFAR, KINDS, STAYED, TRACE
from amqpscope.pipelines.model.store import declare

NEVER = -(1 << 63)
"""A time that is in no window."""


class Row(NamedTuple):
    """Columns of rows as a matrix (int64); -1 for null."""

    KEY: int
    KIND: int
    TRACE: int  # digest, 0 for none
    CONTENT: int
    IS_DELIVERY: int
    TS: int
    UNFINISHED: int
    CONNECTION: int
    FRAME: int
    PACKET: int
    CAPTURE: int  # number of its name
    PLACE: int  # of `keyed`; 0 for unknown
    BODY: int  # of `keyed`; 0 for unknown
    MOVED: int  # of `keyed`
    BROKER: int  # of `Homes`; 0 for unknown
    HOME: int  # of `Homes`; UNKNOWN, or UNSURE, where its virtual host is not known
    REDELIVERED: int
    RETURNS: int


class Slot(NamedTuple):
    """Columns of the table of sub-keys; from TS on those of `Row`: of the latest publish."""

    GROUP: int  # the slot is free unless this is the open group
    SUB_KEY: int
    BEFORE: int  # time of the publish before the latest (or one that may have been it), or NEVER
    TS: int
    UNFINISHED: int
    CONNECTION: int
    FRAME: int
    PACKET: int
    CAPTURE: int
    PLACE: int
    BODY: int
    MOVED: int
    BROKER: int
    HOME: int
    FIRSTS: int  # deliveries matched with it
    REPEATED: int  # the same, redelivered


class Match(NamedTuple):
    """Columns of matches, one row per delivery; from TS on those of `Row`: of its publish."""

    KIND: int  # of the match; KINDS: ambiguous
    TS: int
    UNFINISHED: int
    CONNECTION: int
    FRAME: int
    PACKET: int
    CAPTURE: int
    ATTEMPT: int


class State(NamedTuple):
    """Further state of the walk."""

    GROUP: int  # number of the open group; 0 before the first
    KEY: int
    COUNT: int  # sub-keys of it
    REFUSED: int  # time of the latest publish of which a sub-key was not stored, or NEVER
    NEW: int  # sub-keys, stored or not, since those out of the window were dropped
    LIMIT: int
    WINDOW: int
    SCOPES: int  # for which a sub-key is stored: 2 where there are several homes
    OVERFLOWED: int
    WRITTEN: int  # matches of this batch


ROW, SLOT, MATCH, STATE = declare(Row), declare(Slot), declare(Match), declare(State)
_PUBLISH = SLOT.FIRSTS - SLOT.TS
_MATCHED = MATCH.ATTEMPT - MATCH.TS
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
            for column in range(_PUBLISH):
                slots[at, SLOT.TS + column] = rows[i, ROW.TS + column]
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
            for column in range(_MATCHED):
                matches[line, MATCH.TS + column] = slots[at, SLOT.TS + column]
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
        for column in range(len(SLOT)):
            slots[at, column] = kept[i, column]
