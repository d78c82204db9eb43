"""What walks remember between batches, as attributes: begun anew, taken out and put back as bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from amqpscope.pipelines.model.store import pack, unpack
from amqpscope.pipelines.model.walk import Rows


class Remembers:
    """What walks share that remember nothing, or attributes (`walk.Walk`); by default no row is outstanding at the end.

    Args:
        compiled: whether kernels run compiled.
    """

    tables: ClassVar[tuple[str, ...]]
    VERSION: ClassVar[int] = 1
    STATE: ClassVar[tuple[str, ...]] = ()
    """Attributes with what is remembered of the open connection, which `store.pack` can hold."""

    def __init__(self, compiled: bool = False) -> None:
        self.compiled = compiled
        self.forget()

    def forget(self) -> None:
        """Set the attributes to what they are before all events."""

    def finish(self) -> Iterator[Rows]:
        """See `walk.Walk`; nothing is outstanding."""
        self.forget()
        return iter(())

    def take_out(self) -> bytes:
        """See `walk.Walk`."""
        state = pack(type(self).__name__, self.VERSION, {name: getattr(self, name) for name in self.STATE})
        self.forget()
        return state

    def put_back(self, state: bytes) -> None:
        """See `walk.Walk`."""
        for name, part in unpack(type(self).__name__, self.VERSION, state).items():
            setattr(self, name, part)
