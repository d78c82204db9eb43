"""How much sub-batches may unpack to: each stretch of a stream has its account, and all that are read at a time one."""

from collections.abc import Callable
from dataclasses import dataclass

from amqpscope.dissector.kernels import limits


@dataclass(slots=True)
class Account:
    """Bytes to which sub-batches unpacked that begin in one stretch of a stream.

    So whether a sub-batch is opened depends on those before it in its stretch alone, not on batches of packets.
    """

    stretch: int = -1
    spent: int = 0

    def fits(self, position: int, size: int) -> bool:
        """Return whether a sub-batch of this size (bytes), which begins at this position, may be opened."""
        if position // limits.STRETCH != self.stretch:
            self.stretch, self.spent = position // limits.STRETCH, 0
        return self.spent == 0 or self.spent + size <= limits.UNPACKED_PER_STREAM


Accounts = Callable[[int], tuple[Account, int]]
"""Returns the account of a region, by its index, and the position that the first byte of the buffer would have."""


class Unpacked:
    """Bytes to which the sub-batches unpacked that are read at a time; protects the process."""

    def __init__(self, reached: set[str]) -> None:
        self.reached = reached
        """Where a message goes when the limit is reached."""
        self.spent = 0

    def fits(self, size: int) -> bool:
        """Return whether a sub-batch of this size (bytes) may be opened."""
        if self.spent + size <= limits.UNPACKED:
            return True
        self.reached.add(f"sub-batches unpack to more than {limits.UNPACKED} bytes at a time: some stay closed")
        return False
