"""Requests that an error may be about: what walks over errors remember of them, and as bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import pyarrow as pa

from amqpscope.pipelines.model.store import pack, unpack
from amqpscope.pipelines.model.walk import Rows

FINE = (0, 200)
"""Reply codes that are no error; php-amqplib closes with 0."""
REACH = 1 << 17
"""Frames of a connection: an error whose request lies further back has no queue and no exchange."""


class RemembersRequests:
    """A walk whose state is requests of the open connection: keys, and texts beside them.

    Args:
        compiled: whether kernels run compiled.
    """

    tables = ("channel_errors",)
    NAME: ClassVar[str]
    VERSION: ClassVar[int]
    WIDTH: ClassVar[int]
    """Numbers in a key."""
    TEXTS: ClassVar[tuple[str, ...]]
    """Names of the texts."""

    def __init__(self, compiled: bool = False) -> None:
        self.compiled = compiled
        self._renew()

    def _renew(self) -> None:
        self._keys = np.zeros((0, self.WIDTH), np.int64)
        """Of the remembered requests, in order."""
        self._names = pa.table({name: pa.nulls(0, pa.string()) for name in self.TEXTS})

    def finish(self) -> Iterator[Rows]:
        """Yield nothing: no error is outstanding at the end."""
        self._renew()
        return iter(())

    def take_out(self) -> bytes:
        """See `walk.Walk`."""
        state = pack(self.NAME, self.VERSION, {"keys": self._keys, "names": self._names})
        self._renew()
        return state

    def put_back(self, state: bytes) -> None:
        """See `walk.Walk`."""
        parts = unpack(self.NAME, self.VERSION, state)
        self._keys, self._names = parts["keys"], parts["names"]
