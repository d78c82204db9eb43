"""TCP reassembly: segments to pieces of streams, in the order in which they were captured.

Sources: RFC 9293 §3.4 (sequence numbers), §3.10.7.4 (segment arrival); RFC 7323 §2.2 (window scale).
"""

from dissector import limits
from dissector.arrays import Array
from dissector.kernel import kernel
from dissector.tcp.layout import (
    ACK,
    C_BYTES,
    C_CLIENT,
    C_CLOSED,
    C_CLOSER,
    C_ID,
    C_ISN,
    C_LAST_PACKET,
    C_LAST_TS,
    C_PACKETS,
    C_RTT,
    C_SYN,
    C_SYN_TS,
    C_UP_CAPTURE,
    C_UP_PACKET,
    C_UP_TS,
    COPY_NS,
    FIN,
    H_ACK_TS,
    H_ACKED,
    H_AGAIN,
    H_COUNT,
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
    H_STARTED,
    H_SYN_CAPTURE,
    H_SYN_LAST_TS,
    H_SYN_PACKET,
    H_SYN_TS,
    H_SYNS,
    H_WAITING,
    H_WSCALE,
    HOLE_NS,
    K_CLOCK,
    K_ENDED,
    K_PIECES,
    K_TOMBSTONES,
    K_WAITING,
    LINGER_NS,
    P_POS,
    P_TS,
    RST,
    SYN,
)
from dissector.tcp.parts import emit, release, store
from dissector.tcp.slots import find, identity, open_slot, over


@kernel
def difference(a: int, b: int) -> int:
    """A - b of 32-bit sequence numbers, as a signed number."""
    return ((a - b + 0x80000000) & 0xFFFFFFFF) - 0x80000000


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
            if free_slots[0] == 0:
                return i
            place = -1 - place
            if side == 0:
                slot = open_slot(
                    conn, half, free_slots, src_hi[i], src_lo[i], sport[i], dst_hi[i], dst_lo[i], dport[i],
                    now, packet[i], capture,
                )  # fmt: skip
            else:
                slot = open_slot(
                    conn, half, free_slots, dst_hi[i], dst_lo[i], dport[i], src_hi[i], src_lo[i], sport[i],
                    now, packet[i], capture,
                )  # fmt: skip
            if table[place] < 0:
                control[K_TOMBSTONES] -= 1
            table[place] = slot + 1
        row = 2 * slot + side
        other = 2 * slot + 1 - side
        if control[K_PIECES] + half[row, H_COUNT] * 2 + half[other, H_COUNT] * 2 + 8 > room:
            return i
        if free_parts[0] < half[row, H_COUNT] + 4 and parts.shape[0] < limits.WAITING_PARTS:
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
                        free_parts[0] < half[row, H_COUNT] + 4
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
