"""What walks remember between batches, as attributes: begun anew, taken out and put back as bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

from amqpscope.pipelines.model.store import pack, unpack
from amqpscope.pipelines.model.walk import Rows

Form = Callable[[Any], Any]


class Remembers:
    """What walks share that remember nothing, or attributes (`walk.Walk`); by default no row is outstanding at the end.

    Args:
        compiled: whether kernels run compiled.
    """

    tables: ClassVar[tuple[str, ...]]
    VERSION: ClassVar[int] = 1
    STATE: ClassVar[tuple[str, ...]] = ()
    """Attributes with what is remembered of the open connection: what `store.pack` can hold, or stores of rows."""
    FORMS: ClassVar[Mapping[str, tuple[Form, Form]]] = {}
    """How some of them are taken out and put back, where not as they are."""

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
        parts = {}
        for name in self.STATE:
            value = getattr(self, name)
            value = value.parts() if hasattr(value, "put_back") else value
            parts[name] = self.FORMS[name][0](value) if name in self.FORMS else value
        state = pack(type(self).__name__, self.VERSION, parts)
        self.forget()
        return state

    def put_back(self, state: bytes) -> None:
        """See `walk.Walk`."""
        for name, part in unpack(type(self).__name__, self.VERSION, state).items():
            if hasattr(store := getattr(self, name), "put_back"):
                store.put_back(part)
            else:
                setattr(self, name, self.FORMS[name][1](part) if name in self.FORMS else part)
