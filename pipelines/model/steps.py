"""A walk in plain Python over the few events that matter to it, whose rows are made of columns (`plain` takes dicts).

What waits is remembered as ids of events; their rows lie beside, as Arrow.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from amqpscope.dissector.kernels.arrays import Ints
from amqpscope.pipelines.model.events import Events
from amqpscope.pipelines.model.opened import OVER, Opened
from amqpscope.pipelines.model.records import as_lists, from_lists
from amqpscope.pipelines.model.rows import Waiting
from amqpscope.pipelines.model.speaking import concerns
from amqpscope.pipelines.model.store import pack, unpack
from amqpscope.pipelines.model.walk import Rows


class StepWalk(ABC):
    """What such walks share (`walk.Walk`).

    Args:
        compiled: whether kernels run compiled.

    Attributes:
        opened: what is known of the open connection.
        frames: rows of events that wait.
    """

    SOURCE: ClassVar[int]
    """The table of its frames."""
    NAME: str
    """Of its state."""
    VERSION: ClassVar[int]
    COLUMNS: tuple[str, ...]
    """Of frames that wait."""
    tables: ClassVar[tuple[str, ...]]

    def __init__(self, compiled: bool = False) -> None:
        self.compiled = compiled
        self._renew()

    def _renew(self) -> None:
        self.opened = Opened(self.compiled)
        self.frames = Waiting(self.SOURCE, self.COLUMNS)
        self._begin()

    @abstractmethod
    def _begin(self) -> None:
        """Remember nothing."""

    @property
    @abstractmethod
    def state(self) -> Any:
        """What is remembered of the open connection: a dataclass (`records`)."""

    @state.setter
    @abstractmethod
    def state(self, state: Any) -> None: ...

    @property
    @abstractmethod
    def needed(self) -> set[int]:
        """Ids of events of which rows wait, since this was emptied."""

    @abstractmethod
    def _taken(self, events: Events) -> tuple[Ints, list[Any]]:
        """Return the positions of the events of a batch that matter, and what `_take` needs of each."""

    @abstractmethod
    def _take(self, step: Any, event: int) -> None:
        """Take an event, which has this id."""

    @abstractmethod
    def _over(self) -> None:
        """End the connection."""

    @abstractmethod
    def _decided(self, events: Events | None) -> Iterator[Rows]:
        """Yield rows of what ended; `events`: the batch, None behind the last one."""

    def feed(self, events: Events) -> Iterator[Rows]:
        """See `walk.Walk`."""
        if not concerns(events, self.opened.conn, self.SOURCE):
            return
        self.frames.begin(events)
        base = self.frames.base
        at, steps = self._taken(events)
        ids = (at + base).tolist()
        for number in self.opened.steps(events, at):
            if number == OVER:
                self._over()
            else:
                self._take(steps[number], ids[number])
        yield from self._decided(events)
        self.frames.end(np.array(sorted(self.needed), np.int64) - base)
        self.needed.clear()

    def finish(self) -> Iterator[Rows]:
        """See `walk.Walk`."""
        self._over()
        yield from self._decided(None)
        self._renew()

    def take_out(self) -> bytes:
        """See `walk.Walk`."""
        parts = {"opened": self.opened.parts(), "state": as_lists(self.state), "frames": self.frames.parts()}
        self._renew()
        return pack(self.NAME, self.VERSION, parts)

    def put_back(self, state: bytes) -> None:
        """See `walk.Walk`."""
        parts = unpack(self.NAME, self.VERSION, state)
        self.opened.put_back(parts["opened"])
        self.state = from_lists(type(self.state), parts["state"])
        self.frames.put_back(parts["frames"])
