"""Columns of TCP's matrices by the names that the stages behind it still call them."""

from amqpscope.dissector.tcp.state import Chunk, Facts

C_A_HI, C_A_LO, C_A_PORT, C_B_HI, C_B_LO, C_B_PORT = (
    Facts.A_HI, Facts.A_LO, Facts.A_PORT, Facts.B_HI, Facts.B_LO, Facts.B_PORT,
)  # fmt: skip
C_USED, C_SYN, C_CLIENT, C_PROTOCOL = Facts.USED, Facts.SYN, Facts.CLIENT, Facts.PROTOCOL
C_FRAMES, C_GAPPED = Facts.FRAMES, Facts.GAPPED
(
    S_SLOT, S_SIDE, S_POS, S_OFFSET, S_LENGTH, S_PACKET, S_TS, S_CAPTURE, S_FIRST_PACKET, S_FIRST_TS, S_FIRST_CAPTURE,
) = range(Chunk.WIDTH)  # fmt: skip
S_HEIGHT = Chunk.WIDTH
