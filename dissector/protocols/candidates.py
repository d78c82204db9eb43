"""Candidates for frame boundaries: which place in held-back bytes is verified to be one, by the rules of `resync`.

The kernels `next_frame` and `may_begin` are templates, as are the constants: a protocol lays its own under
their names (`resync.build_search`).
"""

from typing import Any

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.protocols.state import HEAD_ROOM, Cursor, Parser, ParserState, Trial
from amqpscope.dissector.tcp.state import Facts

USUAL = 0
"""Largest frame in bytes that peers agree upon by default; each protocol has its own."""
HIDES_NONE = 0
"""A gap of fewer bytes cannot hold the beginning of a body."""
MARKED_ENDS = True
"""Whether there is a byte after each frame that says so."""
LONG = 400
"""Bytes of frames on average that hardly begin and end with a segment by chance: in a body full of such, one of
160,000 would."""
FEW = 4
"""Frames of which no segment in a body is made up that is full of frames, but for a last one."""
SEGMENTS = 3
"""Segments in a row that must begin with a frame, after one that did not."""
FRAMES_IN_A_ROW = 3
"""Whole frames that must follow a damaged head which is not that of a body."""
KNOWN = 16
"""After these many frames of a connection the largest counts; until then `UNKNOWN_LARGEST` stands for it."""
UNKNOWN_LARGEST = 16_384

Own = Any
"""What only the protocol's own kernels look into: a NamedTuple of arrays."""


@kernel
def next_frame(data: Array, p: int, end: int, trial: Array, own: Own) -> int:
    """Return the size of the frame that begins at p; 0 when its end is not there, -1 when none can begin here."""
    raise NotImplementedError


@kernel
def may_begin(data: Array, p: int) -> bool:
    """Return whether the bytes before p allow for a boundary there. There is one byte at least."""
    return True


@kernel
def try_places(
    walk: ParserState, row: int, n: int, count: int, pos: int, ended: bool, snapped: bool, how: tuple[bool, bool, bool],
    own: Own,
) -> int:  # fmt: skip
    """Return the first of these n bytes at which a frame is verified to begin, or -1.

    `how` says whether what there is must do, whether nothing of the direction was seen before, and whether its sender
    has no more to say for now.
    """
    must_do, begun, marked = how
    parsers, facts, trial = walk.parsers, walk.facts, walk.trial
    slot = row // 2
    largest = parsers[row, Parser.LARGEST]
    reach = max(USUAL, largest)
    if facts[slot, Facts.FRAMES] < KNOWN:
        largest = max(largest, UNKNOWN_LARGEST)
    lost = parsers[row, Parser.LOST]
    trial[Trial.ENOUGH] = 0
    is_damaged = parsers[row, Parser.DAMAGED] == 1
    if lost >= 0 and pos - lost < (HEAD_ROOM if is_damaged else HIDES_NONE) and parsers[row, Parser.REST] <= 0:
        reach = 0
        if is_damaged:
            trial[Trial.ENOUGH] = FRAMES_IN_A_ROW
    place: int = choose(walk, n, count, (ended, snapped, must_do), reach, 2 * largest, own)
    # if nothing marks ends, frames before a segment's beginning may be inside of one that ends there
    together = trial[Trial.FITTING] > SEGMENTS and 2 * trial[Trial.FITTING] >= trial[Trial.COUNT] - trial[Trial.BEFORE]
    if place >= 0 and not MARKED_ENDS and trial[Trial.SEGMENT] > place and together:
        place = trial[Trial.SEGMENT]
    if place < 0 and begun and is_verified(trial, n, marked):
        place = trial[Trial.OPEN]
    if place < 0 and snapped and walk.edges[0] == 0:
        unconfirmed = max(parsers[row, Parser.UNCONFIRMED] - 1, 0) if trial[Trial.OPEN] == 0 else SEGMENTS
        parsers[row, Parser.UNCONFIRMED] = unconfirmed
        if unconfirmed == 0 and n >= 7:
            place = 0
    if place >= 0:
        parsers[row, Parser.REST] = 0
    return place


@kernel
def is_verified(trial: Array, n: int, marked: bool) -> bool:
    """Return whether the frames tried last begin with segments, and end with the last one.

    One of these segments must follow one that is not full.

    Where that is full (not `marked`), they must be long; where nothing marks their ends, long or few.
    """
    p = trial[Trial.OPEN]
    if p < 0 or trial[Trial.MARKED] == 0 or trial[Trial.END] != n or trial[Trial.SEGMENT] != p:
        return False
    short = marked and (MARKED_ENDS or trial[Trial.COUNT] <= FEW)
    return bool(2 * trial[Trial.CUT] <= trial[Trial.FITTING] and (short or n - p >= LONG * trial[Trial.COUNT]))


@kernel
def choose(
    walk: ParserState, n: int, count: int, how: tuple[bool, bool, bool], reach: int, enough: int, own: Own
) -> int:
    """Return the first of these n bytes at which a frame is verified to begin, or -1.

    `how` says whether a gap follows, whether the snap length made it, and whether what there is must do.
    """
    edges, marks, trial = walk.edges, walk.marks, walk.trial
    base = walk.cursor[Cursor.ARENA]
    for k in range(n):
        marks[k] = 0
    trial[Trial.OPEN] = -1
    edge = 0
    for p in range(n):
        while edge < count and edges[edge] < p:
            edge += 1
        segment = edge < count and edges[edge] == p
        if marks[p] != 0 or (p > 0 and not segment and not may_begin(walk.data, base + p)):
            continue
        if follow(walk, n, p, edge, count, own) == 0:
            continue
        trial[Trial.OPEN] = p
        if trial[Trial.COUNT] > 0 and confirmed(trial, n, p, how, reach, enough) == 1:
            return p
        break  # what begins after it is in its last frame, which has not come to its end
    return -1


@kernel
def confirmed(trial: Array, n: int, p: int, how: tuple[bool, bool, bool], reach: int, enough: int) -> int:
    """Return 1 when the frames that follow each other from p to the end of these n bytes are enough evidence."""
    ended, snapped, must_do = how
    if trial[Trial.END] >= reach:
        return 1
    if not (ended or must_do):
        return 0
    fitting = trial[Trial.FITTING]
    exact = trial[Trial.END] == n
    if exact and snapped:  # it is by chance that frames end where the snap length cuts
        exact = False
        fitting -= 1
    if ended and trial[Trial.COUNT] >= 2 and (trial[Trial.END] >= max(enough, 2 * trial[Trial.LARGEST]) or exact):
        return 1
    if fitting >= 2 and 2 * fitting >= trial[Trial.EDGES]:
        return 1
    # far more than there would be if segments began anywhere
    if fitting >= 3 and fitting * (trial[Trial.END] - p) >= 16 * trial[Trial.EDGES] * trial[Trial.COUNT]:
        return 1
    return 0


@kernel
def follow(walk: ParserState, n: int, p: int, edge: int, count: int, own: Own) -> int:
    """Follow frames from p on; 0 when they do not reach the end. Marks where they begin: a later one is no better."""
    edges, marks, trial = walk.edges, walk.marks, walk.trial
    base = walk.cursor[Cursor.ARENA]
    trial[Trial.CHANNEL] = -1
    trial[Trial.COUNT] = 0
    trial[Trial.LARGEST] = 0
    trial[Trial.EDGES] = 0
    trial[Trial.FITTING] = 0
    trial[Trial.CUT] = 0
    trial[Trial.MARKED] = 0
    trial[Trial.SEGMENT] = -1
    trial[Trial.BEFORE] = 0
    q = p
    trial[Trial.END] = p
    while q < n:
        if marks[q] != 0:
            return 0
        size = next_frame(walk.data, base + q, base + n, trial, own)
        if size < 0:
            return 1 if 0 < trial[Trial.ENOUGH] <= trial[Trial.COUNT] else 0
        if edge < count and edges[edge] < q:
            trial[Trial.CUT] += 1
        while edge < count and edges[edge] < q:
            trial[Trial.EDGES] += 1
            edge += 1
        if edge < count and edges[edge] == q:
            trial[Trial.EDGES] += 1
            trial[Trial.FITTING] += 1
            if edge > 0 and edges[edge] > p and edges[edge] - edges[edge - 1] < trial[Trial.SHORT]:
                trial[Trial.MARKED] += 1
            edge += 1
            if trial[Trial.SEGMENT] < 0:
                trial[Trial.SEGMENT] = q
                trial[Trial.BEFORE] = trial[Trial.COUNT]
        marks[q] = 1
        if size == 0:
            break
        q += size
        trial[Trial.COUNT] += 1
        trial[Trial.END] = q
        trial[Trial.LARGEST] = max(trial[Trial.LARGEST], size)
    trial[Trial.EDGES] += count - edge + 1
    if q == n:
        trial[Trial.FITTING] += 1
    return 1
