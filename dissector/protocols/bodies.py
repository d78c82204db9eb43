"""Bodies of messages: bytes that are kept of them as they come, and why some never are whole."""

from amqpscope.dissector.fields.columns import Names
from amqpscope.dissector.kernels import limits
from amqpscope.dissector.kernels.arrays import Array, Bytes, Ints
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.protocols.state import Assembly, Body, Kept, Usage
from amqpscope.dissector.tcp.state import CAPTURE_ENDED, Facts

UNFINISHED, CUT_BY_SENDER, CUT_BY_CAPTURE = 2, 3, 4
"""What messages are besides whole (0), and with bytes missing (1): frames at their ends were not seen; nothing is
missing, and their senders sent no more; the same, and the capture ended before."""
CUT_BY = Names(["sender", "capture-end"])


@kernel
def cut_by(facts: Array, slot: int, side: int) -> int:
    """Return why a content is not whole that is under way where its connection ends, if no byte is missing."""
    ended = facts[slot, Facts.ENDED]
    if (ended >> side) & 1:
        return CUT_BY_SENDER
    return CUT_BY_CAPTURE if ended & CAPTURE_ENDED else UNFINISHED


@kernel
def keep_bytes(
    bodies: Array, k: int, kept: Array, assembly: Array, usage: Array, slot: int, offset: int, length: int
) -> int:
    """Keep bytes of a body, if it is kept. Return the number dropped where that are too many.

    Args:
        bodies: (contents, Body).
        k: whose bytes they are.
        kept: (Kept, room).
        assembly: (Assembly,).
        usage: (slots, Usage).
        slot: of the connection.
        offset: where they lie.
        length: number of bytes.
    """
    if bodies[k, Body.BODY] < 0:
        return 0
    n = assembly[Assembly.KEPT]
    assembly[Assembly.KEPT] = n + 1
    kept[Kept.BODY, n] = bodies[k, Body.BODY]
    kept[Kept.OFFSET, n] = offset
    kept[Kept.LENGTH, n] = length
    has: int = bodies[k, Body.KEPT]
    if (
        has + length > limits.BODY
        or usage[slot, Usage.KEEPING] + length > limits.BODIES_PER_CONNECTION
        or assembly[Assembly.KEEPING] + length > limits.BODIES
    ):
        kept[Kept.LENGTH, n] = -1
        assembly[Assembly.KEEPING] -= has
        usage[slot, Usage.KEEPING] -= has
        bodies[k, Body.KEPT] = 0
        bodies[k, Body.BODY] = -1
        return has + length
    bodies[k, Body.KEPT] = has + length
    assembly[Assembly.KEEPING] += length
    usage[slot, Usage.KEEPING] += length
    return 0


@kernel
def begin_body(bodies: Array, k: int, assembly: Array) -> None:
    """Give a body a number where bodies are kept."""
    bodies[k, Body.KEPT] = 0
    bodies[k, Body.BODY] = -1
    if assembly[Assembly.KEEP]:
        bodies[k, Body.BODY] = assembly[Assembly.BODIES]
        assembly[Assembly.BODIES] += 1


def take(bodies: dict[int, list[bytes]], kept: Ints, data: Bytes) -> None:
    """Take bytes of bodies, `kept` (state.Kept, n) in order; forget the bodies that are too large to be kept."""
    for body, offset, length in kept.T.tolist():
        if length < 0:
            bodies.pop(body, None)
        else:
            bodies.setdefault(body, []).append(data[offset : offset + length].tobytes())


def pop(bodies: dict[int, list[bytes]], numbers: Ints, is_whole: Ints) -> list[bytes | None]:
    """Return the bodies of messages that are over, by their numbers; None where one is not whole, or was not kept."""
    found: list[bytes | None] = []
    for body, whole in zip(numbers.tolist(), is_whole.tolist(), strict=True):
        data = b"".join(bodies.pop(body, []))
        found.append(data if whole and body >= 0 else None)
    return found
