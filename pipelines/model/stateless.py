"""A walk that remembers nothing between batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from amqpscope.pipelines.model.store import pack, unpack
from amqpscope.pipelines.model.walk import Rows


class Stateless:
    """What walks without a state share (`walk.Walk`).

    Args:
        compiled: whether kernels run compiled.
    """

    tables: ClassVar[tuple[str, ...]]
    VERSION: ClassVar[int] = 1

    def __init__(self, compiled: bool = False) -> None:
        self.compiled = compiled

    def finish(self) -> Iterator[Rows]:
        """Yield nothing: nothing is outstanding."""
        return iter(())

    def take_out(self) -> bytes:
        """See `walk.Walk`; the state is empty."""
        return pack(type(self).__name__, self.VERSION, {})

    def put_back(self, state: bytes) -> None:
        """See `walk.Walk`."""
        unpack(type(self).__name__, self.VERSION, state)
