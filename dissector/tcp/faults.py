"""Faults of connections: rows that become anomalies."""

from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.tcp.state import At, Count, Fault, Results


@kernel
def note(out: Results, slot: int, side: int, code: int, pos: int, value: int, at: At) -> None:
    """Append a fault."""
    packet, ts, capture = at
    faults = out.faults
    n = out.counts[Count.FAULTS]
    faults[Fault.SLOT, n] = slot
    faults[Fault.SIDE, n] = side
    faults[Fault.CODE, n] = code
    faults[Fault.POS, n] = pos
    faults[Fault.VALUE, n] = value
    faults[Fault.PACKET, n] = packet
    faults[Fault.TS, n] = ts
    faults[Fault.CAPTURE, n] = capture
    out.counts[Count.FAULTS] = n + 1
