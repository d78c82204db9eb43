"""What the matrices of TCP hold: connections, their two directions, bytes that wait, and what comes out.

A connection has a slot in the matrix `conn`, its two directions have rows `2 * slot + side` in `half`, where
side 0 is the endpoint with the lower (address, port). Bytes that came too early wait as `parts`, linked in
stream order. What leaves this stage are pieces: bytes of one direction in stream order, each once, the first
copy seen; a gap is a piece without bytes.
"""

# Columns of `conn`. Addresses are 128 bits in two signed halves; times are ns since the epoch.
(
    C_A_HI, C_A_LO, C_A_PORT, C_B_HI, C_B_LO, C_B_PORT,
    C_USED,  # 1 while the slot holds a connection, 2 when that is over and its last pieces are being read
    C_CLIENT,  # side that opened the connection; -1: not known yet. Where no SYN tells, the readers of bytes decide
    C_OPENER,  # the same by SYNs alone
    C_SYN,  # bit 0: SYN seen, bit 1: SYN-ACK seen
    C_ISN,  # the client's initial sequence number, when bit 0 or 1 of C_SYN is set; else that of the first segment
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
    C_LIST, C_OLDER, C_NEWER,  # OPEN or CLOSED, and neighbours in that list, which is in order of the last segment
    C_SEEN,  # number of the last segment, over all connections
    C_VANTAGE,  # first capture of the capture point at which it is timed
    C_POINT,  # the same; another when nothing was seen there any more
    C_GAPPED,  # 1: frames of the client may have been lost
    C_WIDTH,
) = range(36)  # fmt: skip

OPEN, CLOSED = range(2)

# Columns of `half`.
(
    H_STARTED,
    H_NEXT,  # sequence number (32 bits) of the next byte
    H_POS,  # position of the next byte in the stream
    H_TOP,  # position behind the highest byte seen
    H_ACKED,  # position up to which the other side has acknowledged
    H_ACK_TS,  # when it did, where bytes are missing before that; else, of the last
    H_HEAD, H_TAIL,  # parts that wait, in stream order; -1: none
    H_WAITING,  # bytes in them
    H_COUNT,  # how many
    H_ELSEWHERE,  # how many of these were seen at another capture point
    H_LOST,  # bytes in gaps
    H_AGAIN, H_TWICE,  # bytes that came more than once: sent again; captured twice
    H_WSCALE,  # window scale of the SYN; -1: SYN not seen, -2: SYN without that option
    H_WINDOW,  # window that this side last announced, not scaled; -1: none
    H_STALL,  # what that window does to the other side: one of the kinds below; 0: nothing
    H_STALL_TS, H_STALL_PACKET, H_STALL_CAPTURE, H_STALL_COUNT,  # since when; packets of the connection until then
    H_ZERO_NS, H_FULL_NS,  # how long in all it was so, up to the last change
    H_PACKETS,  # packets that this side sent, SYNs left out
    H_SYNS,  # SYNs (or SYN-ACKs), copies of one left out
    H_SYN_LAST_TS,
    H_SYN_TS, H_SYN_PACKET, H_SYN_CAPTURE,  # the first of these
    H_END,  # the first FIN or RST: its flag; 0: none
    H_END_TS, H_END_PACKET, H_END_CAPTURE,
    H_SAID_TS,  # time of the last new bytes before any FIN or RST; 0: none
    H_RUN_SEEN, H_RUN_PACKET, H_RUN_TS, H_RUN_CAPTURE,  # the latest segment that the parts handed on had to wait for
    H_REPEATS,  # packets with a SYN or with bytes that were sent again, as far as they are kept
    H_REPEAT,  # time, packet, capture and length (0: SYN) of each of those, one behind the other
) = range(40)  # fmt: skip
REPEATS, REPEAT_WIDTH = 4, 4
H_WIDTH = H_REPEAT + REPEATS * REPEAT_WIDTH

# Columns of `parts`. P_OFFSET -1 is a gap. P_ELSEWHERE 1: seen at another capture point; it is handed on when the
# connection's own has missed it. P_SEEN: number of its segment, over all connections. P_NEEDS: position up to which its
# segment acknowledges the other direction, which therefore comes before it.
(
    P_NEXT, P_POS, P_LENGTH, P_OFFSET, P_PACKET, P_TS, P_CAPTURE, P_USED, P_ELSEWHERE, P_SEEN, P_NEEDS, P_WIDTH,
) = range(12)  # fmt: skip

# Rows of `pieces`, one column a piece: the packet that carried the bytes (first), and the packet after which
# they could be read in order.
(
    S_SLOT, S_SIDE, S_POS, S_OFFSET, S_LENGTH, S_PACKET, S_TS, S_CAPTURE,
    S_FIRST_PACKET, S_FIRST_TS, S_FIRST_CAPTURE, S_HEIGHT,
) = range(12)  # fmt: skip

# Rows of `windows`, one column an interval in which the window of a side held the other up: its kind; the packet
# with which it began, and that with which it ended (0: it did not); packets of the connection in between.
(
    V_SLOT, V_SIDE, V_KIND, V_PACKET, V_TS, V_CAPTURE, V_END_PACKET, V_END_TS, V_END_CAPTURE, V_PACKETS, V_HEIGHT,
) = range(11)  # fmt: skip
ZERO, FULL = 1, 2

# Rows of `faults`, one column each; the code is an index into FAULTS.
T_SLOT, T_SIDE, T_CODE, T_POS, T_VALUE, T_PACKET, T_TS, T_CAPTURE, T_HEIGHT = range(9)
FAULTS = (
    "overlap-mismatch",  # value: bytes that differ
    "connection-reused-port",  # value: packets of the connection that was not seen to end
)
MISMATCH, REUSED = range(2)

# Items of `control`, what the kernels remember between calls.
(
    K_PIECES, K_FAULTS, K_WINDOWS, K_ENDED,  # how many were made
    K_CLOCK,
    K_SEGMENTS,  # taken so far
    K_WAITING,  # bytes in all parts
    K_TOMBSTONES,
    K_LIVE,  # connections that are not over
    K_KNOWN,  # identities in the younger table of them
    K_GIVEN_UP,  # open connections that were ended to make room
    K_WANT,  # why the walk stopped
    K_OLDEST,  # of the lists OPEN and CLOSED
    _K_OLDEST_CLOSED,
    K_NEWEST,
    _K_NEWEST_CLOSED,
    K_WIDTH,
) = range(17)  # fmt: skip

# Why the walk stopped: what came out is to be read; a row for a connection is needed; there are too many of these;
# rows for parts are needed; identities are to be given more room; too much waits.
READ, SLOT, FEWER, PARTS, IDENTITIES, CROWDED = range(6)

ANYWHERE = 1 << 62
"""Behind all positions."""

FIN, SYN, RST, ACK = 1, 2, 4, 16

LINGER_NS = 30_000_000_000
"""A closed connection is over when no packet of it came for this long."""
LINGER_SEGMENTS = 256
"""And not before so many other segments: a few wrong times end nothing."""
COPY_NS = 100_000_000
"""The same packet so soon after another is a copy by the capture, and so is another SYN: retransmissions of SYNs wait
for a second (RFC 6298 §2)."""
RECENT = 1 << 16
"""Places for packets whose copies may come. A capture of several interfaces may have hundreds of one in between."""
HOLE_NS = 1_000_000_000
"""An acknowledged byte that is still missing after this long was lost by the capture."""
