"""What the matrices of TCP hold: connections, their two directions, octets that wait, pieces.

A connection has a slot in the matrix `conn`, its two directions have rows `2 * slot + side` in `half`, where
side 0 is the endpoint with the lower (address, port). Octets that came too early wait as `parts`, linked in
stream order. What leaves this stage are pieces: octets of one direction in stream order, each once, the first
copy seen; a hole is a piece without octets.
"""

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
K_PIECES, K_CLOCK, K_WAITING, K_ENDED, K_TOMBSTONES, K_WIDTH = range(6)

FIN, SYN, RST, ACK = 1, 2, 4, 16

LINGER_NS = 30_000_000_000
"""A closed connection is over when no packet of it came for this long."""
COPY_NS = 100_000_000
"""A SYN so soon after another is a copy by the capture; retransmissions wait for a second (RFC 6298 §2)."""
HOLE_NS = 1_000_000_000
"""An acknowledged octet that is still missing after this long was lost by the capture."""
