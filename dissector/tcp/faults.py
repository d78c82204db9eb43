"""What is wrong with a connection: rows that become anomalies."""

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.tcp.layout import K_FAULTS, T_CAPTURE, T_CODE, T_PACKET, T_POS, T_SIDE, T_SLOT, T_TS, T_VALUE


@kernel
def note(
    faults: Array, control: Array, slot: int, side: int, code: int, pos: int, value: int,
    packet: int, ts: int, capture: int,
) -> None:  # fmt: skip
    """Append a fault."""
    n = control[K_FAULTS]
    faults[T_SLOT, n] = slot
    faults[T_SIDE, n] = side
    faults[T_CODE, n] = code
    faults[T_POS, n] = pos
    faults[T_VALUE, n] = value
    faults[T_PACKET, n] = packet
    faults[T_TS, n] = ts
    faults[T_CAPTURE, n] = capture
    control[K_FAULTS] = n + 1
