"""Bodies of messages that are kept, as bytes of them come."""

from amqpscope.dissector.kernels.arrays import Bytes, Ints


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
