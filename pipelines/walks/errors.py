"""What walks over errors share: requests of the open connection, to which errors may belong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np
import pyarrow as pa

from amqpscope.pipelines.walks.store import pack, unpack
from amqpscope.pipelines.walks.walk import Rows


class Errors:
    """A walk whose state is the last requests, as keys and names.

    Attributes:
        NAME: name of the walk in its state.
        KEYS: number of columns of keys.
        NAMES: columns of names.
    """

    NAME: ClassVar[str]
    VERSION: ClassVar[int] = 1
    KEYS: ClassVar[int]
    NAMES: ClassVar[Sequence[str]]

    def __init__(self, compiled: bool = False) -> None:
        self.compiled = compiled
        self._renew()

    def _renew(self) -> None:
        self._keys = np.zeros((0, self.KEYS), np.int64)
        """Keys of the remembered requests, in order."""
        self._names = pa.table({name: pa.nulls(0, pa.string()) for name in self.NAMES})
        """What they name, such as queues."""

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
