"""The walk over pieces, and where it finds the next frame when it has lost the way.

A boundary is lost behind a gap that swallowed the head of a frame, at the beginning of a capture in the middle of a
connection, and behind bytes that are no frame. What follows may be the inside of a body, and bodies may hold frames,
even whole captures; a frame that was never sent must have no row. So bytes are passed over rather than guessed at:

1. Where the beginning of the lost frame and the rest of its content are known, so is where its body ends; that place
   is tried first.
2. Else every place is a candidate that could be a boundary. From it frames must follow each other to the end of what
   is there: their heads, ends, methods and senders plausible, and on each channel a header behind a method with
   content, bodies that add up to what it announces, and no body without. Frames inside of a body cannot get past its
   end, for there a frame end, or the next head, stands where none can be. One misfit, and the candidate is none.
3. A candidate is believed when its frames reach so far that no body that began in the gap can: beyond the largest
   frame of this direction, or of the usual kind where that is larger.
4. When no more is to come, by another gap or the end of the connection, or has not come for a while, less is enough:
   to reach twice as far as the largest frame seen; or frames that begin where segments do, for senders write whole
   frames, while segments cut a body anywhere.
5. Where the snap length leaves no more than the beginnings of segments, these are frames' until one is not; then only
   after three in a row that could be.
6. Where nothing marks the ends of frames, a body may end with frames, and others follow. So those in front of the first
   with which a segment begins are passed over, if that is followed by several, and segments begin with most of them.
7. A gap that is too short for the beginning of a content hides none, and the first candidate is believed.
8. Where the capture begins nothing is known to be lost, and a quiet connection may say no more for long. There frames
   are believed that begin where a segment does and end where one does, if others follow that begin with the segment
   behind one that is not full: TCP fills segments while its sender has more to say. The first alone may be a body that
   was written by itself, behind which stands its end. Those that nothing marks the ends of must be long or few. No more
   than half as many may have ends of segments inside, and they or the port must tell who is the client.

Until then the pieces of the connection, of both directions, are held back, so that rows keep their order; the limits
`RESYNC` and `HELD_PIECES` bound how many. What is passed over is counted.

The kernels here are templates: each protocol lays its own `walk_piece`, `next_frame`, `sender` and others under their
names.
"""

from amqpscope.dissector.kernels import limits
from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.protocols.framing import (
    M_ARENA,
    M_HELD,
    V_NEXT,
    W_DOUBT,
    W_FOUND,
    W_HOLES,
    W_LARGEST,
    W_LAST,
    W_LOST,
    W_OCTETS,
    W_OVER,
    W_QUEUE,
    W_QUEUE_END,
    W_QUEUED,
    W_REST,
    W_TAKEN,
    W_TRIED,
    W_UNTIL,
)
from amqpscope.dissector.tcp.layout import (
    C_A_HI,
    C_A_LO,
    C_A_PORT,
    C_B_HI,
    C_B_LO,
    C_B_PORT,
    C_CLIENT,
    C_FRAMES,
    C_SYN,
    S_FIRST_PACKET,
    S_LENGTH,
    S_OFFSET,
    S_POS,
    S_SIDE,
    S_TS,
)

USUAL = 0
"""Bytes of the largest frame that peers agree upon when nobody asks for more; each protocol has its own."""
HIDES_NONE = 0
"""A gap of fewer bytes cannot hold the beginning of a body."""
MARKED_ENDS = True
"""Whether there is a byte behind each frame that says so."""
PORTS = (-1, -1)
"""Where brokers listen, if that is to be relied on where no SYN was seen."""
BROKERS = (-1, -1)
"""Where brokers listen, if frames do not tell who is the client."""
FULL, FULL_LOOPBACK = 1_200, 32_000
"""Segments of fewer bytes are not full: links carry more (IPv6 at least 1,280 with heads), and loopback far more."""
SHORT = 512
"""Segments of fewer bytes are not full, longer ones beside yet longer ones: TCP fills at least 536 (RFC 9293)."""
LONG = 400
"""Bytes of frames on average that hardly begin and end with a segment by chance: in a body full of such, one of
160,000 would."""
FEW = 4
"""Frames of which no segment in a body is made up that is full of frames, but for a last one."""
ANY_TIME = 4_096
"""So few bytes are tried again with every segment that is not full."""
DOUBTS = 3
"""Segments in a row that must begin with a frame, after one that did not."""
SLOW_NS = 1_000_000_000
"""After so long what there is must do."""
KNOWN = 16
"""After so many frames of a connection its largest one tells something; until then `UNKNOWN_LARGEST` stands for it."""
UNKNOWN_LARGEST = 16_384

WAIT, DECIDED, NO_ROOM = range(3)

# Items of `trial`.
(
    T_CHANNEL, T_EXPECT, T_REST,  # a protocol's own: what must follow
    T_SENDER,  # 1: the client, 2: the server, 3: not known
    T_COUNT,  # whole frames
    T_END,  # where the last of them ends
    T_LARGEST,
    T_EDGES, T_FITTING,  # beginnings and ends of segments from the candidate on; those where a frame begins or ends
    T_CUT,  # frames with others inside
    T_OPEN,  # first candidate that was not refuted, -1: none
    T_SEGMENT, T_BEFORE,  # the first of its frames with which a segment begins, -1: none; whole frames in front of that
    T_SHORT,  # segments of fewer bytes are not full
    T_SAID,  # beginnings of segments behind such a one with which a frame begins
) = range(15)  # fmt: skip

Own = tuple[Array, ...]
"""What only the protocol's own kernels look into."""


@kernel
def next_frame(data: Array, p: int, end: int, trial: Array, own: Own) -> int:
    """Bytes of the frame that begins at p; 0 when its end is not there, -1 when none can begin here."""
    raise NotImplementedError


@kernel
def may_begin(data: Array, p: int) -> bool:
    """Whether the bytes before p allow for a boundary there. There is one byte at least."""
    raise NotImplementedError


@kernel
def sender(data: Array, p: int, end: int, own: Own) -> int:
    """Who sends the frames that follow each other from p on: 1 the client, 2 the server, 3 not known."""
    raise NotImplementedError


@kernel
def expected_boundary(data: Array, base: int, n: int, pos: int, walk: Array, row: int, trial: Array, own: Own) -> int:
    """Where a boundary is known to be in these n bytes, whose position is `pos`.

    -1: nothing is known; -2: it lies behind them; -3: and so surely that there is none in them.
    """
    raise NotImplementedError


@kernel
def search(
    data: Array, conn: Array, walk: Array, row: int, held: Array, edges: Array, marks: Array, trial: Array,
    control: Array, own: Own,
) -> int:  # fmt: skip
    """Look for a boundary in what a direction holds back; says in W_UNTIL up to where bytes are none of a frame."""
    slot = row // 2
    queue = 2 * slot
    first = walk[queue, W_QUEUE]
    reach = max(USUAL, walk[row, W_LARGEST])
    window = min(2 * reach + UNKNOWN_LARGEST, limits.RESYNC)
    octets = walk[row, W_OCTETS]
    full = (
        octets - walk[queue, W_TAKEN] >= window
        or walk[queue, W_QUEUED] >= limits.HELD_PIECES
        or control[M_HELD] > limits.WAITING_OCTETS
    )
    ended = walk[queue, W_OVER] == 1 or walk[row, W_HOLES] > 0
    slow = held[walk[queue, W_QUEUE_END], S_TS] - held[first, S_TS] >= SLOW_NS
    begun = conn[slot, C_SYN] == 0 and walk[row, W_LARGEST] == 0 and walk[row, W_LOST] < 0 and not (ended or full)
    said = begun and walk[row, W_LAST] < full_segment(conn, slot)
    tried = walk[row, W_TRIED]
    # another trial must have an eighth more bytes, or as many again before there is haste
    known = tried >> 2
    early = octets < 2 * known
    few = 8 * octets < 9 * known
    if begun and not few:
        early = False
    if slow:
        early = tried & 1 == 1 and few
    if said:
        early = early and tried & 2 == 2 and few and octets > ANY_TIME
    if early and not (ended or full):
        return WAIT
    if control[M_ARENA] + window + 8 > len(data):
        return NO_ROOM
    base = control[M_ARENA]
    n = 0
    count = 0
    h = first
    ended = walk[queue, W_OVER] == 1
    packet = -1
    snapped = False
    longest = 0
    while h >= 0 and n < window:
        if held[h, S_SIDE] == row & 1:
            if held[h, S_OFFSET] < 0:
                ended = True
                snapped = held[h, S_FIRST_PACKET] == packet
                break
            packet = held[h, S_FIRST_PACKET]
            skip = walk[queue, W_TAKEN] if h == first else 0
            if skip == 0:
                edges[count] = n
                count += 1
            longest = max(longest, held[h, S_LENGTH])
            take = min(held[h, S_LENGTH] - skip, window - n)
            start = held[h, S_OFFSET] + skip
            for k in range(take):
                data[base + n + k] = data[start + k]
            n += take
        h = held[h, V_NEXT]
    for k in range(8):  # kernels may look a little beyond
        data[base + n + k] = 0
    edges[count] = n
    pos = held[first, S_POS] + walk[queue, W_TAKEN]
    trial[T_SHORT] = min(max(longest, SHORT), full_segment(conn, slot))
    trial[T_SENDER] = 3
    by_port = conn[slot, C_A_PORT] in PORTS
    if conn[slot, C_SYN] != 0:
        trial[T_SENDER] = 1 if row & 1 == conn[slot, C_CLIENT] else 2
    elif by_port != (conn[slot, C_B_PORT] in PORTS):
        trial[T_SENDER] = 2 if by_port == (row & 1 == 0) else 1
    walk[row, W_TRIED] = 4 * octets + (2 if said else 0) + (1 if slow else 0)
    place = expected_boundary(data, base, n, pos, walk, row, trial, own)
    if place == -3 and (ended or full):
        walk[row, W_UNTIL] = pos + n
        walk[row, W_FOUND] = 0
        return DECIDED
    if place < -1 and not (ended or full):
        return WAIT
    if place < 0:
        largest = walk[row, W_LARGEST] if conn[slot, C_FRAMES] >= KNOWN else max(walk[row, W_LARGEST], UNKNOWN_LARGEST)
        lost = walk[row, W_LOST]
        if lost >= 0 and pos - lost < HIDES_NONE and walk[row, W_REST] <= 0:
            reach = 0
        place = choose(data, base, n, ended, snapped, slow or full, reach, 2 * largest, edges, count, marks, trial, own)
        # if nothing marks ends, frames in front of a segment's beginning may be inside of one that ends there
        together = trial[T_FITTING] > DOUBTS and 2 * trial[T_FITTING] >= trial[T_COUNT] - trial[T_BEFORE]
        if place >= 0 and not MARKED_ENDS and trial[T_SEGMENT] > place and together:
            place = trial[T_SEGMENT]
        if place < 0 and begun and whole(data, base, n, said, conn, slot, trial, own):
            place = trial[T_OPEN]
        if place < 0 and snapped and edges[0] == 0:
            walk[row, W_DOUBT] = max(walk[row, W_DOUBT] - 1, 0) if trial[T_OPEN] == 0 else DOUBTS
            if walk[row, W_DOUBT] == 0 and n >= 7:
                place = 0
        if place >= 0:
            walk[row, W_REST] = 0
    if place >= 0:
        walk[row, W_UNTIL] = pos + place
        walk[row, W_FOUND] = 1
        if conn[slot, C_SYN] == 0 and conn[slot, C_FRAMES] == 0:
            who = sender(data, base + place, base + n, own)
            if who != 3:
                conn[slot, C_CLIENT] = row & 1 if who == 1 else 1 - (row & 1)
        return DECIDED
    if not (ended or full):
        return WAIT
    walk[row, W_FOUND] = 0
    walk[row, W_UNTIL] = pos + n
    if not ended:  # there is more to come, which may show what the latter half is
        walk[row, W_UNTIL] = pos + max(n // 2 + 1, trial[T_OPEN])
    return DECIDED


@kernel
def full_segment(conn: Array, slot: int) -> int:
    """A segment of fewer bytes is not full."""
    loopback = conn[slot, C_A_HI] == conn[slot, C_B_HI] and conn[slot, C_A_LO] == conn[slot, C_B_LO]
    return FULL_LOOPBACK if loopback else FULL


@kernel
def whole(data: Array, base: int, n: int, said: bool, conn: Array, slot: int, trial: Array, own: Own) -> bool:
    """Whether the frames tried last begin with segments, end with the last one, and tell or leave no doubt whose.

    One of these segments must follow one that is not full.

    Where that is full (not `said`), they must be long; where nothing marks their ends, long or few.
    """
    p = trial[T_OPEN]
    if p < 0 or trial[T_SAID] == 0 or trial[T_END] != n or trial[T_SEGMENT] != p:
        return False
    short = said and (MARKED_ENDS or trial[T_COUNT] <= FEW)
    if 2 * trial[T_CUT] > trial[T_FITTING] or (not short and n - p < LONG * trial[T_COUNT]):
        return False
    known = conn[slot, C_FRAMES] > 0 or (conn[slot, C_A_PORT] in BROKERS) != (conn[slot, C_B_PORT] in BROKERS)
    return bool(known or sender(data, base + p, base + n, own) != 3)


@kernel
def choose(
    data: Array, base: int, n: int, ended: bool, snapped: bool, slow: bool, reach: int, enough: int, edges: Array,
    count: int, marks: Array, trial: Array, own: Own,
) -> int:  # fmt: skip
    """The first of these n bytes at which a frame is believed to begin, or -1."""
    for k in range(n):
        marks[k] = 0
    trial[T_OPEN] = -1
    edge = 0
    for p in range(n):
        while edge < count and edges[edge] < p:
            edge += 1
        segment = edge < count and edges[edge] == p
        if marks[p] != 0 or (p > 0 and not segment and not may_begin(data, base + p)):
            continue
        if follow(data, base, n, p, edges, edge, count, marks, trial, own) == 0:
            continue
        trial[T_OPEN] = p
        if trial[T_COUNT] > 0 and confirmed(n, p, ended, snapped, slow, reach, enough, trial) == 1:
            return p
        break  # what begins behind it is in its last frame, which has not come to its end
    return -1


@kernel
def confirmed(n: int, p: int, ended: bool, snapped: bool, slow: bool, reach: int, enough: int, trial: Array) -> int:
    """Whether frames that follow each other from p on to the end of these n bytes are enough; 1 when they are."""
    if trial[T_END] >= reach:
        return 1
    if not (ended or slow):
        return 0
    fitting = trial[T_FITTING]
    exact = trial[T_END] == n
    if exact and snapped:  # it is by chance that frames end where the snap length cuts
        exact = False
        fitting -= 1
    if ended and trial[T_COUNT] >= 2 and (trial[T_END] >= max(enough, 2 * trial[T_LARGEST]) or exact):
        return 1
    if fitting >= 2 and 2 * fitting >= trial[T_EDGES]:
        return 1
    # far more than there would be if segments began anywhere
    if fitting >= 3 and fitting * (trial[T_END] - p) >= 16 * trial[T_EDGES] * trial[T_COUNT]:
        return 1
    return 0


@kernel
def follow(
    data: Array, base: int, n: int, p: int, edges: Array, edge: int, count: int, marks: Array, trial: Array, own: Own
) -> int:
    """Follow frames from p on; 0 when they do not reach the end. Marks where they begin: a later one is no better."""
    trial[T_CHANNEL] = -1
    trial[T_COUNT] = 0
    trial[T_LARGEST] = 0
    trial[T_EDGES] = 0
    trial[T_FITTING] = 0
    trial[T_CUT] = 0
    trial[T_SAID] = 0
    trial[T_SEGMENT] = -1
    trial[T_BEFORE] = 0
    q = p
    trial[T_END] = p
    while q < n:
        if marks[q] != 0:
            return 0
        octets = next_frame(data, base + q, base + n, trial, own)
        if octets < 0:
            return 0
        if edge < count and edges[edge] < q:
            trial[T_CUT] += 1
        while edge < count and edges[edge] < q:
            trial[T_EDGES] += 1
            edge += 1
        if edge < count and edges[edge] == q:
            trial[T_EDGES] += 1
            trial[T_FITTING] += 1
            if edge > 0 and edges[edge] > p and edges[edge] - edges[edge - 1] < trial[T_SHORT]:
                trial[T_SAID] += 1
            edge += 1
            if trial[T_SEGMENT] < 0:
                trial[T_SEGMENT] = q
                trial[T_BEFORE] = trial[T_COUNT]
        marks[q] = 1
        if octets == 0:
            break
        q += octets
        trial[T_COUNT] += 1
        trial[T_END] = q
        trial[T_LARGEST] = max(trial[T_LARGEST], octets)
    trial[T_EDGES] += count - edge + 1
    if q == n:
        trial[T_FITTING] += 1
    return 1
