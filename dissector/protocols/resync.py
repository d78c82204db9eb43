"""Resynchronise: search for the next frame boundary after it was lost.

A boundary is lost after a gap that contains the head of a frame, at the beginning of a capture in the middle of a
connection, and after bytes that are no frame. What follows may be the inside of a body, and bodies may hold frames,
even whole captures; a frame that was never sent must have no row. So bytes are skipped rather than guessed at:

1. Where the beginning of the lost frame and the rest of its content are known, or a doubted frame's fields say how long
   it is, so is where its body ends; that place is tried first.
2. Else every place is a candidate that could be a boundary. From it frames must follow each other to the end of what
   is there: their heads, sizes, ends, methods and senders plausible, and on each channel a header after a method with
   content, bodies that add up to what it announces, and no body without. Frames inside of a body cannot get past its
   end, for there a frame end, or the next head, stands where none can be. One misfit, and the candidate is none.
3. A candidate counts when its frames reach so far that no body that began in the gap can: beyond the largest
   frame of this direction, or of the usual kind where that is larger.
4. When no more is to come, by another gap or the end of the connection, or has not come for a while, less is enough:
   to reach twice as far as the largest frame seen; or frames that begin where segments do, for senders write whole
   frames, while segments cut a body anywhere.
5. Where the snap length leaves no more than the beginnings of segments, these are frames' until one is not; then only
   after three in a row that could be.
6. Where nothing marks the ends of frames, a body may end with frames, and others follow. So those before the first
   with which a segment begins are skipped, if that is followed by several, and segments begin with most of them.
7. A gap that is too short for the beginning of a content hides none, and the first candidate counts.
8. Where the capture begins nothing is known to be lost, and a quiet connection may say no more for long. There frames
   count that begin where a segment does and end where one does, if others follow that begin with the segment
   after one that is not full: TCP fills segments while its sender has more to say. The first alone may be a body that
   was written by itself, after which stands its end. Those that nothing marks the ends of must be long or few. No more
   than half as many may have ends of segments inside.

Until then the chunks of the connection, of both parsers, are held back, so that rows keep their order; the limits
`RESYNC` and `HELD_CHUNKS` bound their number. What is skipped is counted.

The kernel `expected_boundary` is a template, as are those of `candidates` and the constants: a protocol lays its own
under their names (`build_search`).
"""

from collections.abc import Callable
from typing import Any

from amqpscope.dissector.kernels import limits
from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import kernel, specialize
from amqpscope.dissector.protocols.candidates import (
    FRAMES_IN_A_ROW,
    UNKNOWN_LARGEST,
    USUAL,
    Own,
    choose,
    follow,
    is_verified,
    next_frame,
    try_places,
)
from amqpscope.dissector.protocols.pending_chunks import first_held, full_segment, gather, processed
from amqpscope.dissector.protocols.state import HEAD_ROOM, Cursor, Parser, ParserState, PendingChunk, Trial
from amqpscope.dissector.protocols.suspect_length import accept_length, is_agreed, pass_over
from amqpscope.dissector.tcp.state import Facts

END_BYTES = 0
"""Bytes after a payload that belong to the frame."""
PORTS = (-1, -1)
"""Where brokers listen, if that is to be relied on where no SYN was seen."""
ANY_TIME = 4_096
"""This number of bytes are tried again with every segment that is not full."""
SLOW_NS = 1_000_000_000
"""After so long what there is must do."""

WAIT, DECIDED, NO_ROOM = range(3)


@kernel
def expected_boundary(walk: ParserState, base: int, n: int, pos: int, row: int, own: Own) -> int:
    """Return where a boundary is known to be in the n bytes from `base` on, whose position is `pos`.

    -1: nothing is known; -2: it lies after them; -3: and so surely that there is none in them.
    """
    return -1


@kernel
def may_end(data: Array, p: int, end: int, trial: Array, own: Own) -> bool:
    """Return whether a frame may end before p, and another begin there."""
    return p == end or next_frame(data, p, end, trial, own) >= 0


def build_search(**own: Any) -> Callable[..., int]:
    """Return `search` for a protocol, with its kernels and constants."""
    own = {"may_end": specialize(may_end, **own)} | own
    parts = own | {
        "is_verified": specialize(is_verified, **own),
        "choose": specialize(choose, **own, follow=specialize(follow, **own)),
    }
    return specialize(
        search,
        **own,
        may_end_at=specialize(may_end_at, **own),
        end_before=specialize(end_before, **parts),
        note_sender=specialize(note_sender, **own),
        try_places=specialize(try_places, **parts),
    )


@kernel
def search(walk: ParserState, row: int, own: Own) -> int:
    """Look for a boundary in what a direction holds back; says in Parser.UNTIL up to where bytes are no frame's."""
    parsers, facts, cursor = walk.parsers, walk.facts, walk.cursor
    slot = row // 2
    queue = 2 * slot
    claimed = parsers[row, Parser.SUSPECT_SIZE] - 1 + END_BYTES
    is_claimed = claimed >= END_BYTES
    window = 2 * max(USUAL, parsers[row, Parser.LARGEST]) + UNKNOWN_LARGEST
    window = min(max(window, claimed + HEAD_ROOM), limits.RESYNC)
    crowded = cursor[Cursor.HELD] > limits.WAITING_BYTES
    if crowded:
        cursor[Cursor.CROWDED] = 1
    first = first_held(walk, row)
    taken = processed(walk, queue, first)
    there = parsers[row, Parser.BYTES] - taken
    full = there >= window or parsers[queue, Parser.QUEUED] >= limits.HELD_CHUNKS or crowded
    over = parsers[queue, Parser.OVER] == 1
    is_last = full or over or parsers[row, Parser.GAPS] > 0
    slow = walk.held[parsers[queue, Parser.QUEUE_END], PendingChunk.TS] - walk.held[first, PendingChunk.TS] >= SLOW_NS
    begun = (
        facts[slot, Facts.SYN] == 0
        and parsers[row, Parser.LARGEST] == 0
        and parsers[row, Parser.LOST] < 0
        and not is_last
    )
    marked = begun and parsers[row, Parser.LAST] < full_segment(facts, slot)
    if not is_last and too_early(parsers, row, there, claimed if is_claimed else -1, (begun, slow, marked)):
        return WAIT
    if cursor[Cursor.ARENA] + window + 8 > len(walk.data):
        return NO_ROOM
    n, count, ended, snapped = gather(walk, row, window)
    note_sender(walk, row)
    parsers[row, Parser.TRIED] = parsers[row, Parser.BYTES]
    parsers[row, Parser.TRIED_SLOW] = 1 if slow else 0
    parsers[row, Parser.TRIED_MARKED] = 1 if marked else 0
    pos = walk.held[first, PendingChunk.POS] + taken
    place = -1
    if is_claimed and claimed <= n:
        may_end_there = may_end_at(walk, n, claimed, own)
        if may_end_there:
            place = end_before(walk, row, n, count, pos, claimed, own)
        if may_end_there and place < 0:
            if parsers[row, Parser.TYPE] >= 0:
                accept_length(walk, row)
            else:
                pass_over(parsers, row, pos, claimed)
            return DECIDED
        parsers[row, Parser.SUSPECT_SIZE] = -1
    # after its chunks or a gap nothing more comes to what was gathered
    ended = ended or over
    if place < 0:
        place = expected_boundary(walk, cursor[Cursor.ARENA], n, pos, row, own)
    if place == -3 and (ended or full):
        parsers[row, Parser.UNTIL] = pos + n
        parsers[row, Parser.FOUND] = 0
        return DECIDED
    if place < -1 and not (ended or full):
        return WAIT
    if place < 0:
        place = try_places(walk, row, n, count, pos, ended, snapped, (slow or full, begun, marked), own)
    if place >= 0:
        parsers[row, Parser.SUSPECT_SIZE] = -1 if parsers[row, Parser.SUSPECT_SIZE] != 0 else 0
        parsers[row, Parser.UNTIL] = pos + place
        parsers[row, Parser.FOUND] = 1
        return DECIDED
    if not (ended or full):
        return WAIT
    if (
        is_claimed and parsers[row, Parser.SUSPECT_SIZE] > 0 and parsers[row, Parser.TYPE] >= 0 and is_agreed(walk, row)
    ):  # nothing speaks against it
        accept_length(walk, row)
        return DECIDED
    parsers[row, Parser.FOUND] = 0
    parsers[row, Parser.UNTIL] = pos + n
    if not ended:  # there is more to come, which may show what the latter half is
        parsers[row, Parser.UNTIL] = pos + max(n // 2 + 1, walk.trial[Trial.OPEN])
    return DECIDED


@kernel
def may_end_at(walk: ParserState, n: int, place: int, own: Own) -> bool:
    """Return whether a frame may end before this place of n bytes, and another begin there."""
    base = walk.cursor[Cursor.ARENA]
    walk.trial[Trial.CHANNEL] = -1
    return bool(may_end(walk.data, base + place, base + n, walk.trial, own))


@kernel
def end_before(walk: ParserState, row: int, n: int, count: int, pos: int, claimed: int, own: Own) -> int:
    """Return where a frame seems to end before its head says, or -1: its content does, or others follow in it."""
    place = -1
    if walk.parsers[row, Parser.DAMAGED] == 0 or walk.parsers[row, Parser.NATURAL] >= 0:
        place = expected_boundary(walk, walk.cursor[Cursor.ARENA], n, pos, row, own)
    if place == -1 and walk.parsers[row, Parser.DAMAGED] != 0:
        walk.trial[Trial.ENOUGH] = FRAMES_IN_A_ROW
        place = choose(walk, n, count, (False, False, True), 0, 0, own)
        if 0 <= place < claimed:
            walk.parsers[row, Parser.REST] = 0
    return place if 0 <= place < claimed else -1


@kernel
def too_early(parsers: Array, row: int, there: int, claimed: int, how: tuple[bool, bool, bool]) -> bool:
    """Return whether another trial has too little more to go by; `there` is the number of bytes.

    It must have all bytes that a doubted head claims (-1: there is none), or its fields, and another head after these.
    Else, and where that is slow to come, it must have an eighth more bytes than the last, or as many again before there
    is haste.
    """
    begun, slow, marked = how
    size = parsers[row, Parser.BYTES]
    tried = parsers[row, Parser.TRIED]
    natural = parsers[row, Parser.NATURAL]
    if natural > 0 or claimed >= 0:
        needed = natural - 1 + HEAD_ROOM if natural > 0 else claimed
        if natural <= 0 and claimed > limits.RESYNC - HEAD_ROOM:
            needed = 0  # of a body that is too long to be held back, nothing is waited for
        if there >= needed or not slow:
            return there < needed
    few = 8 * size < 9 * tried
    early = size < 2 * tried and (few or not begun)
    if slow:
        early = parsers[row, Parser.TRIED_SLOW] == 1 and few
    if marked:
        early = early and parsers[row, Parser.TRIED_MARKED] == 1 and few and size > ANY_TIME
    return early


@kernel
def note_sender(walk: ParserState, row: int) -> None:
    """Note who sends what is searched, and how large its frames may be, where that is known."""
    facts, trial = walk.facts, walk.trial
    slot = row // 2
    most = walk.parsers[row, Parser.MOST]
    trial[Trial.MOST] = max(most, walk.parsers[row, Parser.LARGEST]) if most > 0 else 0
    trial[Trial.SENDER] = 3
    by_port = facts[slot, Facts.A_PORT] in PORTS
    if facts[slot, Facts.SYN] != 0:
        trial[Trial.SENDER] = 1 if row & 1 == facts[slot, Facts.CLIENT] else 2
    elif by_port != (facts[slot, Facts.B_PORT] in PORTS):
        trial[Trial.SENDER] = 2 if by_port == (row & 1 == 0) else 1
