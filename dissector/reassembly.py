"""TCP reassembly as kernels: segments to pieces of streams.

A connection has a slot in the matrix `conn`, its two directions have rows `2 * slot + side` in `half`, where
side 0 is the endpoint with the lower (address, port). Octets that came too early wait as `parts`, linked in
stream order. What leaves this stage are pieces: octets of one direction in stream order, each once, the first
copy seen; a hole is a piece without octets. Sources: RFC 9293 §3.4 (sequence numbers), §3.10.7.4 (segment
arrival); RFC 7323 §2.2 (window scale).
"""

from dissector import limits
from dissector.arrays import Array
from dissector.kernel import i64, kernel, u64

# Columns of `conn`. Addresses are 128 bits in two signed halves; times are ns since the epoch.
(
    C_A_HI, C_A_LO, C_A_PORT, C_B_HI, C_B_LO, C_B_PORT,
    C_USED,  # 1 while the slot holds a connection
    C_CLIENT,  # side that opened the connection; -1: not known yet
    C_SYN,  # bit 0: SYN seen, bit 1: SYN-ACK seen
    C_ISN,  # the client's initial sequence number, when bit 0 or 1 of C_SYN is set
    C_ID,  # connection_id; 0: not decided yet
    C_FIRST_TS, C_LAST_TS, C_FIRST_PACKET, C_FIRST_CAPTURE, C_LAST_PACKET,
    C_PACKETS, C_BYTES,
    C_SYN_TS,  # time of the (only) SYN; 0: none, or sent again
    C_RTT,  # SYN to the client's acknowledgement of the SYN-ACK; -1: not seen
    C_CLOSED,  # bits 0, 1: FIN of side 0, 1; bit 2: RST
    C_CLOSER,  # side that sent the first FIN or RST; -1: none
    C_FRAMES,  # frames so far: the next frame_no
    C_PROTOCOL,  # index into detect.PROTOCOLS; 0: not decided yet
    C_UP_TS, C_UP_PACKET, C_UP_CAPTURE,  # the client's acknowledgement of the SYN-ACK; time 0: not seen
    C_WIDTH,
) = range(28)  # fmt: skip

# Columns of `half`.
(
    H_STARTED,
    H_NEXT,  # sequence number (32 bits) of the next octet
    H_POS,  # position of the next octet in the stream
    H_ACKED,  # position up to which the other side has acknowledged
    H_ACK_TS,  # when it did
    H_HEAD, H_TAIL,  # parts that wait, in stream order; -1: none
    H_WAITING,  # octets in them
    H_COUNT,  # how many
    H_LOST, H_AGAIN,  # octets in holes; octets that came more than once
    H_WSCALE,  # window scale of the SYN; -1: not seen
    H_PACKETS,  # packets that this side sent, SYNs left out
    H_SYNS,  # SYNs (or SYN-ACKs), copies of one left out
    H_SYN_LAST_TS,
    H_SYN_TS, H_SYN_PACKET, H_SYN_CAPTURE,  # the first of these
    H_END,  # the first FIN or RST: its flag; 0: none
    H_END_TS, H_END_PACKET, H_END_CAPTURE,
    H_SAID_TS,  # time of the last new octets before any FIN or RST; 0: none
    H_WIDTH,
) = range(24)  # fmt: skip

# Columns of `parts`. P_OFFSET -1 is a hole.
P_NEXT, P_POS, P_LENGTH, P_OFFSET, P_PACKET, P_TS, P_CAPTURE, P_USED, P_WIDTH = range(9)

# Rows of `pieces`, one column a piece: the packet that carried the octets (first), and the packet after which
# they could be read in order.
(
    S_SLOT, S_SIDE, S_POS, S_OFFSET, S_LENGTH, S_PACKET, S_TS, S_CAPTURE,
    S_FIRST_PACKET, S_FIRST_TS, S_FIRST_CAPTURE, S_HEIGHT,
) = range(12)  # fmt: skip

# Items of `control`, what the kernel remembers between calls.
K_PIECES, K_CLOCK, K_FREE_SLOTS, K_FREE_PARTS, K_WAITING, K_ENDED, K_TOMBSTONES, K_WIDTH = range(8)

FIN, SYN, RST, ACK = 1, 2, 4, 16

LINGER_NS = 30_000_000_000
"""A closed connection is over when no packet of it came for this long."""
COPY_NS = 100_000_000
"""A SYN so soon after another is a copy by the capture; retransmissions wait for a second (RFC 6298 §2)."""
HOLE_NS = 1_000_000_000
"""An acknowledged octet that is still missing after this long was lost by the capture."""


@kernel
def difference(a: int, b: int) -> int:
    """A - b of 32-bit sequence numbers, as a signed number."""
    return ((a - b + 0x80000000) & 0xFFFFFFFF) - 0x80000000


@kernel
def mix(h: int, value: int) -> int:
    """One step of a 63-bit multiplicative hash. Products wrap, which only unsigned integers may."""
    product = ((u64(h) ^ u64(value)) * u64(0x1D8E4E27C47D124F)) & u64(0x7FFFFFFFFFFFFFFF)
    return i64(product ^ (product >> u64(31)))


@kernel
def identity(conn: Array, slot: int, anchor: int, time: int) -> int:
    """`connection_id`, of both addresses and ports and the client's initial sequence number (time 0).

    Without a SYN the anchor is the first data segment's sequence number, and its time counts too.
    """
    h = mix(0x2545F4914F6CDD1D, conn[slot, C_A_HI])
    h = mix(h, conn[slot, C_A_LO])
    h = mix(h, conn[slot, C_A_PORT])
    h = mix(h, conn[slot, C_B_HI])
    h = mix(h, conn[slot, C_B_LO])
    h = mix(h, conn[slot, C_B_PORT])
    h = mix(mix(mix(h, anchor), time), 0)
    if h == 0:
        h = 1
    return h


@kernel
def find(conn: Array, table: Array, a_hi: int, a_lo: int, a_port: int, b_hi: int, b_lo: int, b_port: int) -> int:
    """Place in the hash table of this pair of endpoints, or -1 - place of a free entry."""
    mask = len(table) - 1
    place = mix(mix(mix(mix(a_lo, b_lo), a_port << 16 | b_port), a_hi), b_hi) & mask
    free = -1
    while True:
        entry = table[place]
        if entry == 0:
            return -1 - (free if free >= 0 else place)
        if entry < 0:
            if free < 0:
                free = place
        else:
            slot = entry - 1
            if (
                conn[slot, C_A_LO] == a_lo
                and conn[slot, C_B_LO] == b_lo
                and conn[slot, C_A_PORT] == a_port
                and conn[slot, C_B_PORT] == b_port
                and conn[slot, C_A_HI] == a_hi
                and conn[slot, C_B_HI] == b_hi
            ):
                return place
        place = (place + 1) & mask


@kernel
def emit(
    pieces: Array, control: Array, slot: int, side: int, pos: int, offset: int, length: int,
    packet: int, ts: int, capture: int, first_packet: int, first_ts: int, first_capture: int,
) -> None:  # fmt: skip
    """Append one piece."""
    n = control[K_PIECES]
    pieces[S_SLOT, n] = slot
    pieces[S_SIDE, n] = side
    pieces[S_POS, n] = pos
    pieces[S_OFFSET, n] = offset
    pieces[S_LENGTH, n] = length
    pieces[S_PACKET, n] = packet
    pieces[S_TS, n] = ts
    pieces[S_CAPTURE, n] = capture
    pieces[S_FIRST_PACKET, n] = first_packet
    pieces[S_FIRST_TS, n] = first_ts
    pieces[S_FIRST_CAPTURE, n] = first_capture
    control[K_PIECES] = n + 1


@kernel
def keep(
    half: Array, parts: Array, control: Array, free: Array, row: int, before: int, after: int,
    pos: int, length: int, offset: int, packet: int, ts: int, capture: int,
) -> int:  # fmt: skip
    """Put a part between two others of the list (-1: none) and return its index. A free one must be there."""
    control[K_FREE_PARTS] -= 1
    part = free[control[K_FREE_PARTS]]
    parts[part, P_NEXT] = after
    parts[part, P_POS] = pos
    parts[part, P_LENGTH] = length
    parts[part, P_OFFSET] = offset
    parts[part, P_PACKET] = packet
    parts[part, P_TS] = ts
    parts[part, P_CAPTURE] = capture
    parts[part, P_USED] = 1
    if before < 0:
        half[row, H_HEAD] = part
    else:
        parts[before, P_NEXT] = part
    if after < 0:
        half[row, H_TAIL] = part
    if offset >= 0:
        half[row, H_WAITING] += length
        control[K_WAITING] += length
    half[row, H_COUNT] += 1
    return part


@kernel
def store(
    half: Array, parts: Array, control: Array, free: Array, row: int,
    pos: int, length: int, offset: int, packet: int, ts: int, capture: int,
) -> None:  # fmt: skip
    """Keep octets that came too early, less those already waiting: the first copy wins."""
    end = pos + length
    before = -1
    part = half[row, H_HEAD]
    tail = half[row, H_TAIL]
    if tail >= 0 and parts[tail, P_POS] + parts[tail, P_LENGTH] <= pos:
        before = tail
        part = -1
    while part >= 0 and pos < end and control[K_FREE_PARTS] > 0:
        start = parts[part, P_POS]
        stop = start + parts[part, P_LENGTH]
        if stop > pos:
            if start >= end:
                break
            if pos < start:
                before = keep(
                    half, parts, control, free, row, before, part, pos, start - pos, offset, packet, ts, capture
                )
            lap = min(stop, end) - max(start, pos)
            half[row, H_AGAIN] += lap
            if offset >= 0:
                offset += min(stop, end) - pos
            pos = min(stop, end)
        before = part
        part = parts[part, P_NEXT]
    if pos < end and control[K_FREE_PARTS] > 0:
        keep(half, parts, control, free, row, before, part, pos, end - pos, offset, packet, ts, capture)


@kernel
def release(
    half: Array, parts: Array, control: Array, free: Array, pieces: Array,
    slot: int, side: int, packet: int, ts: int, capture: int, through: int,
) -> None:  # fmt: skip
    """Hand on the parts that are next in order; with `through` also over holes."""
    row = 2 * slot + side
    part = half[row, H_HEAD]
    while part >= 0:
        start = parts[part, P_POS]
        here = half[row, H_POS]
        if start > here:
            if through == 0:
                break
            emit(pieces, control, slot, side, here, -1, start - here, packet, ts, capture, packet, ts, capture)
            half[row, H_LOST] += start - here
            half[row, H_NEXT] = (half[row, H_NEXT] + start - here) & 0xFFFFFFFF
            here = start
        skip = here - start
        length = parts[part, P_LENGTH]
        if skip < length:
            offset = parts[part, P_OFFSET]
            if offset >= 0:
                offset += skip
            else:
                half[row, H_LOST] += length - skip
            emit(
                pieces, control, slot, side, here, offset, length - skip, packet, ts, capture,
                parts[part, P_PACKET], parts[part, P_TS], parts[part, P_CAPTURE],
            )  # fmt: skip
            half[row, H_NEXT] = (half[row, H_NEXT] + length - skip) & 0xFFFFFFFF
            here += length - skip
            half[row, H_AGAIN] += skip
        else:
            half[row, H_AGAIN] += length
        half[row, H_POS] = here
        if parts[part, P_OFFSET] >= 0:
            half[row, H_WAITING] -= length
            control[K_WAITING] -= length
        half[row, H_COUNT] -= 1
        parts[part, P_USED] = 0
        free[control[K_FREE_PARTS]] = part
        control[K_FREE_PARTS] += 1
        part = parts[part, P_NEXT]
    half[row, H_HEAD] = part
    if part < 0:
        half[row, H_TAIL] = -1


@kernel
def open_slot(
    conn: Array, half: Array, control: Array, free_slots: Array,
    a_hi: int, a_lo: int, a_port: int, b_hi: int, b_lo: int, b_port: int, ts: int, packet: int, capture: int,
) -> int:  # fmt: skip
    """A fresh slot for a connection. A free one must be there."""
    control[K_FREE_SLOTS] -= 1
    slot = free_slots[control[K_FREE_SLOTS]]
    for column in range(C_WIDTH):
        conn[slot, column] = 0
    conn[slot, C_A_HI] = a_hi
    conn[slot, C_A_LO] = a_lo
    conn[slot, C_A_PORT] = a_port
    conn[slot, C_B_HI] = b_hi
    conn[slot, C_B_LO] = b_lo
    conn[slot, C_B_PORT] = b_port
    conn[slot, C_USED] = 1
    conn[slot, C_CLIENT] = -1
    conn[slot, C_CLOSER] = -1
    conn[slot, C_RTT] = -1
    conn[slot, C_FIRST_TS] = ts
    conn[slot, C_LAST_TS] = ts
    conn[slot, C_FIRST_PACKET] = packet
    conn[slot, C_FIRST_CAPTURE] = capture
    for row in range(2 * slot, 2 * slot + 2):
        for column in range(H_WIDTH):
            half[row, column] = 0
        half[row, H_HEAD] = -1
        half[row, H_TAIL] = -1
        half[row, H_WSCALE] = -1
    return slot


@kernel
def over(conn: Array, slot: int, clock: int) -> int:
    """1 when a closed connection has been idle for so long that a further packet belongs to another one."""
    closed = conn[slot, C_CLOSED]
    if (closed & 4 or closed & 3 == 3) and conn[slot, C_LAST_TS] + LINGER_NS < clock:
        return 1
    return 0


@kernel
def reassemble(
    ts: Array, packet: Array, src_hi: Array, src_lo: Array, dst_hi: Array, dst_lo: Array, sport: Array, dport: Array,
    seq: Array, ack: Array, flags: Array, offset: Array, caplen: Array, length: Array, wscale: Array, capture: int,
    begin: int, conn: Array, half: Array, table: Array, parts: Array, free_slots: Array, free_parts: Array,
    ended: Array, pieces: Array, control: Array,
) -> int:  # fmt: skip
    """Take segments from `begin` on; return the index of the first not taken.

    It stops early when a slot or parts are needed and not free, or when `pieces` or `ended` is nearly full.
    """
    room = pieces.shape[1]
    for i in range(begin, len(ts)):
        now = ts[i]
        if now < control[K_CLOCK] - LINGER_NS:
            control[K_CLOCK] = now  # the clock stepped back, or another capture begins
        control[K_CLOCK] = max(control[K_CLOCK], now)
        clock = control[K_CLOCK]
        # The lower endpoint is side 0.
        side = 1 if src_hi[i] > dst_hi[i] else 0
        if src_hi[i] == dst_hi[i] and src_lo[i] > dst_lo[i]:
            side = 1
        if src_hi[i] == dst_hi[i] and src_lo[i] == dst_lo[i] and sport[i] > dport[i]:
            side = 1
        if side == 0:
            place = find(conn, table, src_hi[i], src_lo[i], sport[i], dst_hi[i], dst_lo[i], dport[i])
        else:
            place = find(conn, table, dst_hi[i], dst_lo[i], dport[i], src_hi[i], src_lo[i], sport[i])
        opening = flags[i] & SYN != 0 and flags[i] & ACK == 0
        if place >= 0:
            slot = table[place] - 1
            again = (
                opening
                and conn[slot, C_SYN] != 0
                and (conn[slot, C_CLIENT] != side or conn[slot, C_ISN] == seq[i])
            )  # fmt: skip
            if over(conn, slot, clock) or (opening and not again):
                if control[K_ENDED] == len(ended):
                    return i
                ended[control[K_ENDED]] = slot
                control[K_ENDED] += 1
                table[place] = -1
                control[K_TOMBSTONES] += 1
                place = -1 - place
        if place < 0:
            if control[K_FREE_SLOTS] == 0:
                return i
            place = -1 - place
            if side == 0:
                slot = open_slot(
                    conn, half, control, free_slots, src_hi[i], src_lo[i], sport[i], dst_hi[i], dst_lo[i], dport[i],
                    now, packet[i], capture,
                )  # fmt: skip
            else:
                slot = open_slot(
                    conn, half, control, free_slots, dst_hi[i], dst_lo[i], dport[i], src_hi[i], src_lo[i], sport[i],
                    now, packet[i], capture,
                )  # fmt: skip
            if table[place] < 0:
                control[K_TOMBSTONES] -= 1
            table[place] = slot + 1
        row = 2 * slot + side
        other = 2 * slot + 1 - side
        if control[K_PIECES] + half[row, H_COUNT] * 2 + half[other, H_COUNT] * 2 + 8 > room:
            return i
        if control[K_FREE_PARTS] < half[row, H_COUNT] + 4 and parts.shape[0] < limits.WAITING_PARTS:
            return i
        conn[slot, C_LAST_TS] = max(conn[slot, C_LAST_TS], now)
        conn[slot, C_LAST_PACKET] = packet[i]
        conn[slot, C_PACKETS] += 1
        conn[slot, C_BYTES] += length[i]
        if flags[i] & SYN == 0:
            half[row, H_PACKETS] += 1

        if flags[i] & SYN:
            if half[row, H_SYNS] == 0 or now - half[row, H_SYN_LAST_TS] > COPY_NS:
                half[row, H_SYNS] += 1
            half[row, H_SYN_LAST_TS] = now
            if half[row, H_SYN_PACKET] == 0:
                half[row, H_SYN_TS] = now
                half[row, H_SYN_PACKET] = packet[i]
                half[row, H_SYN_CAPTURE] = capture
            silent = half[row, H_POS] + half[other, H_POS] + half[row, H_COUNT] + half[other, H_COUNT] == 0
            if not silent and conn[slot, C_SYN] == 0:
                pass  # too late: its octets were already taken for those of a connection begun before
            elif opening:
                if conn[slot, C_SYN] & 1:
                    conn[slot, C_SYN_TS] = 0  # sent again: which one was answered is not known
                elif conn[slot, C_PACKETS] == 1:
                    conn[slot, C_SYN_TS] = now
                if conn[slot, C_SYN] == 0:
                    conn[slot, C_CLIENT] = side
                    conn[slot, C_ISN] = seq[i]
                conn[slot, C_SYN] |= 1
            else:
                if conn[slot, C_SYN] == 0 and conn[slot, C_CLIENT] < 0:
                    conn[slot, C_CLIENT] = 1 - side
                    conn[slot, C_ISN] = (ack[i] - 1) & 0xFFFFFFFF
                conn[slot, C_SYN] |= 2
            if conn[slot, C_ID] == 0:
                conn[slot, C_ID] = identity(conn, slot, conn[slot, C_ISN], 0)
            if half[row, H_STARTED] == 0:
                half[row, H_STARTED] = 1
                half[row, H_NEXT] = (seq[i] + 1) & 0xFFFFFFFF
                half[row, H_WSCALE] = max(wscale[i], 0)
        elif (
            conn[slot, C_UP_TS] == 0
            and conn[slot, C_SYN] & 2
            and flags[i] & (ACK | RST) == ACK
            and side == conn[slot, C_CLIENT]
        ):
            conn[slot, C_UP_TS] = now
            conn[slot, C_UP_PACKET] = packet[i]
            conn[slot, C_UP_CAPTURE] = capture
            if conn[slot, C_SYN] == 3 and conn[slot, C_SYN_TS] > 0:
                conn[slot, C_RTT] = max(now - conn[slot, C_SYN_TS], 0)

        start = seq[i]
        if flags[i] & SYN:
            start = (start + 1) & 0xFFFFFFFF
        if length[i] > 0 and flags[i] & RST == 0:  # a reset may carry an explanation: RFC 9293 §3.5.3
            if half[row, H_STARTED] == 0:
                half[row, H_STARTED] = 1
                half[row, H_NEXT] = start
            if conn[slot, C_ID] == 0:
                conn[slot, C_ID] = identity(conn, slot, start, now)
            here = half[row, H_POS]
            pos = here + difference(start, half[row, H_NEXT])
            end = pos + length[i]
            if end <= here:
                if not (length[i] == 1 and pos == here - 1):  # a keep-alive is no loss
                    half[row, H_AGAIN] += length[i]
            else:
                skip = max(here - pos, 0)
                half[row, H_AGAIN] += skip
                if conn[slot, C_CLOSER] < 0:
                    half[row, H_SAID_TS] = now
                there = caplen[i]  # octets present; the snap length may have cut the rest
                if pos > here or half[row, H_HEAD] >= 0:
                    # Something is missing before it, or overlaps it: through the waiting parts.
                    if (
                        control[K_FREE_PARTS] < half[row, H_COUNT] + 4
                        or control[K_WAITING] > limits.WAITING_OCTETS
                        or half[row, H_WAITING] > limits.WAITING_OCTETS_PER_STREAM
                    ):
                        release(half, parts, control, free_parts, pieces, slot, side, packet[i], now, capture, 1)
                        here = half[row, H_POS]
                        skip = min(max(here - pos, 0), length[i])
                    if there > skip:
                        store(
                            half, parts, control, free_parts, row, pos + skip, there - skip, offset[i] + skip,
                            packet[i], now, capture,
                        )  # fmt: skip
                    if length[i] > max(there, skip):
                        store(
                            half, parts, control, free_parts, row, pos + max(there, skip), length[i] - max(there, skip),
                            -1, packet[i], now, capture,
                        )  # fmt: skip
                    release(half, parts, control, free_parts, pieces, slot, side, packet[i], now, capture, 0)
                else:
                    if there > skip:
                        emit(
                            pieces, control, slot, side, here, offset[i] + skip, there - skip,
                            packet[i], now, capture, packet[i], now, capture,
                        )  # fmt: skip
                    if length[i] > max(there, skip):
                        cut = length[i] - max(there, skip)
                        half[row, H_LOST] += cut
                        emit(
                            pieces, control, slot, side, end - cut, -1, cut,
                            packet[i], now, capture, packet[i], now, capture,
                        )  # fmt: skip
                    half[row, H_POS] = end
                    half[row, H_NEXT] = (half[row, H_NEXT] + end - here) & 0xFFFFFFFF

        if flags[i] & ACK and half[other, H_STARTED]:
            acked = half[other, H_POS] + difference(ack[i], half[other, H_NEXT])
            if acked > half[other, H_ACKED]:
                half[other, H_ACKED] = acked
                half[other, H_ACK_TS] = now
        for k in range(2 * slot, 2 * slot + 2):
            head = half[k, H_HEAD]
            if (
                head >= 0
                and half[k, H_ACKED] >= parts[head, P_POS]
                and half[k, H_ACK_TS] + HOLE_NS < clock
                and parts[head, P_TS] + HOLE_NS < clock
            ):
                release(half, parts, control, free_parts, pieces, slot, k & 1, packet[i], now, capture, 1)

        if flags[i] & (FIN | RST):
            if conn[slot, C_CLOSER] < 0:
                conn[slot, C_CLOSER] = side
            conn[slot, C_CLOSED] |= 4 if flags[i] & RST else 1 << side
            if half[row, H_END] == 0:
                half[row, H_END] = RST if flags[i] & RST else FIN
                half[row, H_END_TS] = now
                half[row, H_END_PACKET] = packet[i]
                half[row, H_END_CAPTURE] = capture
    return len(ts)


@kernel
def flush(
    slots: Array, conn: Array, half: Array, parts: Array, free_parts: Array, pieces: Array, control: Array, begin: int
) -> int:
    """Hand on all that still waits in these slots, over holes.

    Returns the index of the first slot not done for lack of room.
    """
    for i in range(begin, len(slots)):
        slot = slots[i]
        if control[K_PIECES] + (half[2 * slot, H_COUNT] + half[2 * slot + 1, H_COUNT]) * 2 + 8 > pieces.shape[1]:
            return i
        for side in range(2):
            tail = half[2 * slot + side, H_TAIL]
            if tail >= 0:
                release(
                    half, parts, control, free_parts, pieces, slot, side,
                    parts[tail, P_PACKET], parts[tail, P_TS], parts[tail, P_CAPTURE], 1,
                )  # fmt: skip
    return len(slots)


@kernel
def rebuild(conn: Array, table: Array, live: Array) -> None:
    """Fill an empty hash table with the slots that are marked live."""
    for slot in range(len(live)):
        if live[slot]:
            place = find(
                conn, table, conn[slot, C_A_HI], conn[slot, C_A_LO], conn[slot, C_A_PORT],
                conn[slot, C_B_HI], conn[slot, C_B_LO], conn[slot, C_B_PORT],
            )  # fmt: skip
            if place < 0:
                table[-1 - place] = slot + 1


@kernel
def forget(slots: Array, conn: Array, table: Array, free_slots: Array, control: Array) -> None:
    """Free these slots, and take them out of the hash table where they still are."""
    for i in range(len(slots)):
        slot = slots[i]
        place = find(
            conn, table, conn[slot, C_A_HI], conn[slot, C_A_LO], conn[slot, C_A_PORT],
            conn[slot, C_B_HI], conn[slot, C_B_LO], conn[slot, C_B_PORT],
        )  # fmt: skip
        if place >= 0 and table[place] == slot + 1:
            table[place] = -1
            control[K_TOMBSTONES] += 1
        conn[slot, C_USED] = 0
        free_slots[control[K_FREE_SLOTS]] = slot
        control[K_FREE_SLOTS] += 1
