"""TCP reassembly: segments to pieces of streams, in the order in which they were captured.

Sources: RFC 9293 §3.4 (sequence numbers), §3.10.7.4 (segment arrival); RFC 7323 §2.2 (window scale).
"""

from amqpscope.dissector.kernels import limits
from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.tcp.buffered import displace, emit
from amqpscope.dissector.tcp.buffering import fill, keep_waiting
from amqpscope.dissector.tcp.copies import is_copy, repeat
from amqpscope.dissector.tcp.endings import due, end, expire
from amqpscope.dissector.tcp.faults import note
from amqpscope.dissector.tcp.identities import identify
from amqpscope.dissector.tcp.layout import (
    ACK,
    C_BYTES,
    C_CLIENT,
    C_CLOSED,
    C_CLOSER,
    C_ID,
    C_ISN,
    C_LAST_PACKET,
    C_LAST_TS,
    C_OPENER,
    C_PACKETS,
    C_POINT,
    C_RTT,
    C_SYN,
    C_SYN_TS,
    C_UP_CAPTURE,
    C_UP_PACKET,
    C_UP_TS,
    COPY_NS,
    CROWDED,
    FEWER,
    FIN,
    H_ACK_TS,
    H_ACKED,
    H_AGAIN,
    H_COUNT,
    H_ELSEWHERE,
    H_END,
    H_END_CAPTURE,
    H_END_PACKET,
    H_END_TS,
    H_HEAD,
    H_LOST,
    H_NEXT,
    H_PACKETS,
    H_POS,
    H_SAID_TS,
    H_STALL,
    H_STARTED,
    H_SYN_CAPTURE,
    H_SYN_LAST_TS,
    H_SYN_PACKET,
    H_SYN_TS,
    H_SYNS,
    H_TOP,
    H_TWICE,
    H_WINDOW,
    H_WSCALE,
    HOLE_NS,
    IDENTITIES,
    K_CLOCK,
    K_FAULTS,
    K_KNOWN,
    K_LIVE,
    K_PIECES,
    K_SEGMENTS,
    K_TOMBSTONES,
    K_WAITING,
    K_WANT,
    K_WINDOWS,
    LINGER_NS,
    P_POS,
    PARTS,
    READ,
    REUSED,
    RST,
    SLOT,
    SYN,
)
from amqpscope.dissector.tcp.numbers import difference, lower
from amqpscope.dissector.tcp.order import overdue, release, settled
from amqpscope.dissector.tcp.slots import closed, find, open_slot, over, touch
from amqpscope.dissector.tcp.windows import stall, watch


@kernel
def synchronize(
    conn: Array, half: Array, younger: Array, older: Array, control: Array, slot: int, side: int,
    seq: int, ack: int, flags: int, wscale: int, copy: int, packet: int, ts: int, capture: int,
) -> None:  # fmt: skip
    """Take a SYN or a SYN-ACK."""
    row = 2 * slot + side
    other = 2 * slot + 1 - side
    if half[row, H_SYNS] == 0 or ts - half[row, H_SYN_LAST_TS] > COPY_NS:
        half[row, H_SYNS] += 1
        if half[row, H_SYNS] > 1:
            repeat(half, row, 0, packet, ts, capture)
    half[row, H_SYN_LAST_TS] = ts
    if half[row, H_SYN_PACKET] == 0:
        half[row, H_SYN_TS] = ts
        half[row, H_SYN_PACKET] = packet
        half[row, H_SYN_CAPTURE] = capture
    silent = half[row, H_POS] + half[other, H_POS] + half[row, H_COUNT] + half[other, H_COUNT] == 0
    if not silent and conn[slot, C_SYN] == 0:
        pass  # too late: its bytes were already taken for those of a connection begun before
    elif flags & ACK == 0:
        if conn[slot, C_SYN] & 1:
            if copy == 0:
                conn[slot, C_SYN_TS] = 0  # sent again: which one was answered is not known
        elif conn[slot, C_PACKETS] == 1:
            conn[slot, C_SYN_TS] = ts
        if conn[slot, C_SYN] == 0:
            conn[slot, C_OPENER] = side
            conn[slot, C_ISN] = seq
        conn[slot, C_SYN] |= 1
    else:
        if conn[slot, C_SYN] == 0:
            conn[slot, C_OPENER] = 1 - side
            conn[slot, C_ISN] = (ack - 1) & 0xFFFFFFFF
        conn[slot, C_SYN] |= 2
    if conn[slot, C_CLIENT] < 0:
        conn[slot, C_CLIENT] = conn[slot, C_OPENER]
    if conn[slot, C_ID] == 0:
        identify(conn, slot, conn[slot, C_ISN], 0, younger, older, control)
    if half[row, H_STARTED] == 0:
        half[row, H_STARTED] = 1
        half[row, H_NEXT] = (seq + 1) & 0xFFFFFFFF
        half[row, H_WSCALE] = wscale if wscale >= 0 else -2


@kernel
def acknowledged(half: Array, row: int, ack: int) -> int:
    """Position in a direction up to which this number acknowledges it."""
    if half[row, H_STARTED] == 0:
        return 0
    acked: int = half[row, H_POS] + difference(ack, half[row, H_NEXT])
    return acked - 1 if acked == half[row, H_TOP] + 1 else acked  # a FIN counts as a byte, and may have been missed


@kernel
def acknowledge(
    half: Array, parts: Array, row: int, other: int, acked: int, flags: int, window: int, ts: int
) -> None:  # fmt: skip
    """Take what a side says of the bytes it received, and of the room it has for more."""
    if half[other, H_STARTED]:
        if acked > half[other, H_ACKED]:
            head = half[other, H_HEAD]
            # What is missing was acknowledged once, though bytes behind it go on to be.
            if half[other, H_ACKED] <= half[other, H_POS] or (head >= 0 and half[other, H_ACKED] < parts[head, P_POS]):
                half[other, H_ACK_TS] = ts
            half[other, H_ACKED] = acked
        elif acked < half[other, H_ACKED]:
            return  # overtaken by a later one
    if flags & SYN == 0:  # where the window is never scaled
        half[row, H_WINDOW] = window


@kernel
def reassemble(
    ts: Array, packet: Array, src_hi: Array, src_lo: Array, dst_hi: Array, dst_lo: Array, sport: Array, dport: Array,
    seq: Array, ack: Array, flags: Array, window: Array, mark: Array, offset: Array, caplen: Array, length: Array,
    wscale: Array, captures: Array, begin: int, most: int, points: Array, data: Array, conn: Array, half: Array,
    table: Array, parts: Array, free_slots: Array, free_parts: Array, younger: Array, older: Array, recent: Array,
    pieces: Array, faults: Array, windows: Array, ended: Array, control: Array,
) -> int:  # fmt: skip
    """Take segments from `begin` on; return the index of the first not taken, with the reason in K_WANT.

    What it does depends on the sequence of segments alone, not on where it was stopped: a segment is taken whole,
    or nothing but connections that are over is changed for it. At most `most` connections are held.
    """
    for i in range(begin, len(ts)):
        now = ts[i]
        capture = captures[i]
        if now < control[K_CLOCK] - LINGER_NS:
            control[K_CLOCK] = now  # the clock stepped back, or another capture begins
        control[K_CLOCK] = max(control[K_CLOCK], now)
        clock = control[K_CLOCK]
        if due(conn, control, clock) and expire(
            clock, conn, half, table, parts, free_parts, younger, older, pieces, windows, ended, control
        ) == 0:  # fmt: skip
            return i
        if 2 * control[K_KNOWN] >= len(younger):
            control[K_WANT] = IDENTITIES
            return i
        side = lower(src_hi[i], src_lo[i], sport[i], dst_hi[i], dst_lo[i], dport[i])
        if side == 0:
            place = find(conn, table, src_hi[i], src_lo[i], sport[i], dst_hi[i], dst_lo[i], dport[i])
        else:
            place = find(conn, table, dst_hi[i], dst_lo[i], dport[i], src_hi[i], src_lo[i], sport[i])
        waiting = 0
        late = 0
        orients = 0
        if place >= 0:
            slot = table[place] - 1
            # A SYN tells who the client is, and so do bytes: what was found before is told as it was known then.
            orients = 1 if conn[slot, C_CLIENT] < 0 and (flags[i] & SYN != 0 or length[i] > 0) else 0
            waiting = half[2 * slot, H_COUNT] + half[2 * slot + 1, H_COUNT]
            # What the reader of earlier pieces is to know of the connection must not depend on a later SYN.
            if flags[i] & SYN and conn[slot, C_SYN] != 0 and half[2 * slot, H_POS] + half[2 * slot + 1, H_POS] > 0:
                late = 1 if conn[slot, C_SYN] & (2 if flags[i] & ACK else 1) == 0 else 0
        if (
            (late and control[K_PIECES] > 0)
            or (orients and control[K_FAULTS] + control[K_WINDOWS] > 0)
            or control[K_PIECES] + 2 * waiting + 8 > pieces.shape[1]
            or control[K_FAULTS] + 2 > faults.shape[1]
            or control[K_WINDOWS] + 4 > windows.shape[1]
        ):
            control[K_WANT] = READ
            return i
        if free_parts[0] < waiting + 4 and parts.shape[0] < limits.WAITING_PARTS:
            control[K_WANT] = PARTS
            return i
        if free_parts[0] < waiting + 4 or control[K_WAITING] > limits.WAITING_OCTETS:
            control[K_WANT] = CROWDED
            return i
        if place >= 0:
            slot = table[place] - 1
            opening = flags[i] & (SYN | ACK) == SYN
            known = conn[slot, C_SYN] != 0 and (conn[slot, C_OPENER] != side or conn[slot, C_ISN] == seq[i])
            # Another capture point may see the next connection before ours has seen the end of this one.
            here = conn[slot, C_POINT] == points[capture] or closed(conn, slot) or conn[slot, C_LAST_TS] + HOLE_NS < now
            if over(conn, slot, clock) or (opening and not known and here):
                count = conn[slot, C_PACKETS]
                reused = opening and closed(conn, slot) == 0
                if end(
                    slot, conn, half, table, parts, free_parts, younger, older, pieces, windows, ended, control
                ) == 0:  # fmt: skip
                    return i
                if reused:
                    note(faults, control, slot, side, REUSED, -1, count, packet[i], now, capture)
                place = -1 - place
        if place < 0:
            if control[K_LIVE] >= most:
                control[K_WANT] = FEWER
                return i
            if free_slots[0] == 0:
                control[K_WANT] = SLOT
                return i
            place = -1 - place
            if side == 0:
                slot = open_slot(
                    conn, half, control, free_slots, src_hi[i], src_lo[i], sport[i], dst_hi[i], dst_lo[i], dport[i],
                    seq[i], now, packet[i], capture, points[capture],
                )  # fmt: skip
            else:
                slot = open_slot(
                    conn, half, control, free_slots, dst_hi[i], dst_lo[i], dport[i], src_hi[i], src_lo[i], sport[i],
                    seq[i], now, packet[i], capture, points[capture],
                )  # fmt: skip
            if table[place] < 0:
                control[K_TOMBSTONES] -= 1
            table[place] = slot + 1
        row = 2 * slot + side
        other = 2 * slot + 1 - side
        start = seq[i]
        if flags[i] & SYN:
            start = (start + 1) & 0xFFFFFFFF
        needs = acknowledged(half, other, ack[i]) if flags[i] & ACK else 0

        if points[capture] != conn[slot, C_POINT]:
            new = length[i] > 0 and (
                half[row, H_STARTED] == 0 or difference(start, half[row, H_NEXT]) + length[i] > 0
            )  # fmt: skip
            if new and conn[slot, C_LAST_TS] + HOLE_NS < now:
                conn[slot, C_POINT] = points[capture]  # where it was seen first, nothing of it is seen any more
            else:
                isn = seq[i] if flags[i] & ACK == 0 else (ack[i] - 1) & 0xFFFFFFFF
                mine = flags[i] & SYN == 0 or (conn[slot, C_SYN] != 0 and conn[slot, C_ISN] == isn)
                if mine and flags[i] & SYN and half[row, H_SYNS] == 0:
                    synchronize(
                        conn, half, younger, older, control, slot, side, seq[i], ack[i], flags[i], wscale[i], 1,
                        packet[i], conn[slot, C_LAST_TS], capture,
                    )  # fmt: skip
                if mine and length[i] > 0 and flags[i] & RST == 0:
                    fill(
                        data, conn, half, parts, free_parts, pieces, younger, older, control, slot, side, start,
                        offset[i], min(caplen[i], length[i]), needs, packet[i], capture,
                    )  # fmt: skip
                    release(
                        half, parts, control, free_parts, pieces, slot, packet[i], conn[slot, C_LAST_TS], capture,
                        overdue(half, parts, 2 * slot, clock), overdue(half, parts, 2 * slot + 1, clock),
                    )  # fmt: skip
                touch(conn, control, slot)
                control[K_SEGMENTS] += 1
                continue

        copy = is_copy(
            recent, src_lo[i], dst_lo[i], sport[i] << 16 | dport[i], seq[i], ack[i], mark[i], window[i], flags[i],
            length[i], now,
        )  # fmt: skip
        conn[slot, C_LAST_TS] = max(conn[slot, C_LAST_TS], now)
        conn[slot, C_LAST_PACKET] = packet[i]
        if copy == 0:
            conn[slot, C_PACKETS] += 1
            conn[slot, C_BYTES] += length[i]
            if flags[i] & SYN == 0:
                half[row, H_PACKETS] += 1

        if flags[i] & SYN:
            synchronize(
                conn, half, younger, older, control, slot, side, seq[i], ack[i], flags[i], wscale[i], copy,
                packet[i], now, capture,
            )  # fmt: skip
        elif (
            conn[slot, C_UP_TS] == 0
            and conn[slot, C_SYN] & 2
            and flags[i] & (ACK | RST) == ACK
            and side == conn[slot, C_OPENER]
        ):
            conn[slot, C_UP_TS] = now
            conn[slot, C_UP_PACKET] = packet[i]
            conn[slot, C_UP_CAPTURE] = capture
            if conn[slot, C_SYN] == 3 and conn[slot, C_SYN_TS] > 0:
                conn[slot, C_RTT] = max(now - conn[slot, C_SYN_TS], 0)

        if flags[i] & RST:
            half[row, H_WINDOW] = -1
            half[other, H_WINDOW] = -1
        elif flags[i] & ACK:
            acknowledge(half, parts, row, other, needs, flags[i], window[i], now)
        if length[i] > 0 and flags[i] & RST == 0:  # a reset may carry an explanation: RFC 9293 §3.5.3
            if half[row, H_STARTED] == 0:
                half[row, H_STARTED] = 1
                half[row, H_NEXT] = start
            if conn[slot, C_ID] == 0:
                identify(conn, slot, start, now, younger, older, control)
            again = H_TWICE if copy else H_AGAIN
            here = half[row, H_POS]
            pos = here + difference(start, half[row, H_NEXT])
            behind = pos + length[i]
            if not copy and behind <= half[row, H_TOP] and not (length[i] == 1 and behind == half[row, H_TOP]):
                repeat(half, row, length[i], packet[i], now, capture)
            if behind <= here:
                if not (length[i] == 1 and pos == here - 1):  # a keep-alive is no loss
                    half[row, again] += length[i]
            else:
                skip = max(here - pos, 0)
                half[row, again] += skip
                if behind <= half[row, H_ACKED]:
                    needs = 0  # sent again, or captured late: that tells nothing of when the bytes were first sent
                half[row, H_TOP] = max(half[row, H_TOP], behind)
                if conn[slot, C_CLOSER] < 0:
                    half[row, H_SAID_TS] = now
                if half[row, H_ELSEWHERE]:
                    displace(half, parts, control, free_parts, row, pos, behind)
                if (
                    pos > here
                    or half[row, H_HEAD] >= 0
                    or needs > settled(half, parts, other, overdue(half, parts, other, clock))
                ):
                    keep_waiting(
                        data, half, parts, free_parts, pieces, faults, control, slot, side, pos, skip, length[i],
                        offset[i], caplen[i], needs, again, packet[i], now, capture,
                    )  # fmt: skip
                else:
                    if caplen[i] > skip:
                        emit(
                            pieces, control, slot, side, here, offset[i] + skip, caplen[i] - skip,
                            packet[i], now, capture, packet[i], now, capture,
                        )  # fmt: skip
                    cut = length[i] - max(caplen[i], skip)  # the snap length may have cut some off
                    if cut > 0:
                        half[row, H_LOST] += cut
                        emit(
                            pieces, control, slot, side, behind - cut, -1, cut,
                            packet[i], now, capture, packet[i], now, capture,
                        )  # fmt: skip
                    half[row, H_POS] = behind
                    half[row, H_NEXT] = (half[row, H_NEXT] + behind - here) & 0xFFFFFFFF
        if half[row, H_HEAD] >= 0 or half[other, H_HEAD] >= 0:
            release(
                half, parts, control, free_parts, pieces, slot, packet[i], now, capture,
                overdue(half, parts, 2 * slot, clock), overdue(half, parts, 2 * slot + 1, clock),
            )  # fmt: skip
        if stall(half, row, other) != half[row, H_STALL] or stall(half, other, row) != half[other, H_STALL]:
            watch(conn, half, windows, younger, older, control, slot, packet[i], now, capture)

        if flags[i] & (FIN | RST):
            if conn[slot, C_CLOSER] < 0:
                conn[slot, C_CLOSER] = side
            conn[slot, C_CLOSED] |= 4 if flags[i] & RST else 1 << side
            if half[row, H_END] == 0:
                half[row, H_END] = RST if flags[i] & RST else FIN
                half[row, H_END_TS] = now
                half[row, H_END_PACKET] = packet[i]
                half[row, H_END_CAPTURE] = capture
        touch(conn, control, slot)
        control[K_SEGMENTS] += 1
    return len(ts)
