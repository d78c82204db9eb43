"""The table `rpcs`: synchronous requests, and what came back. A protocol says what its frames do to the machine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa

from amqpscope.dissector.kernels.arrays import Ints
from amqpscope.pipelines.model.ends import ended, latency
from amqpscope.pipelines.model.events import SPOKEN, Events
from amqpscope.pipelines.model.opened import OVER, Opened
from amqpscope.pipelines.model.records import as_lists, from_lists
from amqpscope.pipelines.model.rows import Waiting
from amqpscope.pipelines.model.speaking import concerns
from amqpscope.pipelines.model.store import pack, unpack
from amqpscope.pipelines.model.walk import Rows, conform, known
from amqpscope.pipelines.requests.numbered import NumberedRequests
from amqpscope.pipelines.requests.queues import DROPPED, NONE, REFUSED, Found
from amqpscope.pipelines.requests.requests import Requests

Machine = Requests | NumberedRequests

_POINT = ("ts_ns", "frame_no", "capture", "packet")


class Pairs(NamedTuple):
    """Requests of which is known what became of them.

    Attributes:
        asked: their rows.
        answers: rows of their answers, all null where there is none.
        answered: which (bool) have an answer.
        refused: which (bool) have a close with an error as their answer.
        notes: what `Found.note` says.
    """

    asked: pa.Table
    answers: pa.Table
    answered: Any
    refused: Any
    notes: Sequence[str | None]


class RpcWalk(ABC):
    """A walk that pairs requests of a protocol with their answers; rows of `rpcs`.

    Args:
        compiled: whether kernels run compiled.
    """

    SOURCE: ClassVar[int]
    """The table of its frames."""
    COLUMNS: tuple[str, ...]
    """Of them: what rows are made of, besides `connection_id` and so on."""
    VERSION: ClassVar[int] = 6
    tables: ClassVar[tuple[str, ...]] = ("rpcs",)

    def __init__(self, compiled: bool = False) -> None:
        self.compiled = compiled
        self._renew()

    def _renew(self) -> None:
        self._opened = Opened(self.compiled)
        self.machine = self._machine(self._opened)
        self._frames = Waiting(self.SOURCE, ("connection_id", "from_client", *_POINT, *self.COLUMNS))

    @property
    def _name(self) -> str:
        return f"rpcs of {SPOKEN[self.SOURCE]}"

    @abstractmethod
    def _machine(self, opened: Opened) -> Machine:
        """Return the machine."""

    @abstractmethod
    def _taken(self, events: Events) -> tuple[Ints, list[Any]]:
        """Return the positions of the frames of a batch that matter, and what `_take` needs of each."""

    @abstractmethod
    def _take(self, frame: Any, event: int) -> None:
        """Take a frame, whose event has this id."""

    @abstractmethod
    def _columns(self, pairs: Pairs) -> dict[str, Any]:
        """Return the columns that depend on the protocol."""

    def feed(self, events: Events) -> Iterator[Rows]:
        """See `walk.Walk`."""
        if not concerns(events, self._opened.conn, self.SOURCE):
            return
        self._frames.begin(events)
        base = self._frames.base
        at, frames = self._taken(events)
        ids = (at + base).tolist()
        for number in self._opened.steps(events, at):
            if number == OVER:
                self.machine.over()
            else:
                self._take(frames[number], ids[number])
        yield from self._decided()
        self._frames.end(np.array(sorted(self.machine.needed), np.int64) - base)
        self.machine.needed.clear()

    def finish(self) -> Iterator[Rows]:
        """See `walk.Walk`."""
        self.machine.over()
        yield from self._decided()
        self._renew()

    def take_out(self) -> bytes:
        """See `walk.Walk`."""
        parts = self._opened.take_out() | {"asked": as_lists(self.machine.asked), "base": self._frames.base}
        if (waiting := self._frames.table()) is not None:
            parts["rows"] = waiting
        self._renew()
        return pack(self._name, self.VERSION, parts)

    def put_back(self, state: bytes) -> None:
        """See `walk.Walk`."""
        parts = unpack(self._name, self.VERSION, state)
        self._opened.put_back(parts)
        self.machine.asked = from_lists(type(self.machine.asked), parts["asked"])
        self._frames.put_back(parts.get("rows"), parts["base"])

    def _decided(self) -> Iterator[Rows]:
        """Yield rows of what became of requests."""
        if not self.machine.found:
            return
        found = [each for each in self.machine.found if each.how != DROPPED]
        if len(found) < len(self.machine.found):
            self._frames.take(np.array([each.answer for each in self.machine.found if each.how == DROPPED], np.int64))
        self.machine.found = []
        if found:
            yield "rpcs", self._rows(found)

    def _rows(self, found: list[Found]) -> pa.Table:
        *numbers, notes = zip(*found, strict=True)
        requests, answers, how, ends = (np.array(column, np.int64) for column in numbers)
        asked, answered, refused = self._frames.take(requests), answers >= 0, how == REFUSED
        plain = answered & ~refused
        place = np.full(len(found), NONE, np.int64)
        place[refused] = np.arange(np.count_nonzero(refused))
        place[plain] = np.count_nonzero(refused) + np.arange(np.count_nonzero(plain))
        closes = self._frames.get(answers[refused])  # a close is a request as well, so its row is needed again
        parts = [asked.slice(0, 0), closes, self._frames.take(answers[plain])]
        rows = pa.concat_tables(parts, promote_options="default").take(known(place))
        sent = asked["ts_ns"].fill_null(0).to_numpy()
        columns = {
            **{name: asked[name] for name in ("connection_id", "from_client")},
            **{f"request_{name}": asked[name] for name in _POINT},
            **{f"response_{name}": rows[name] for name in _POINT},
            **ended(np.where(answered, 0, how), ends, sent),
            "latency_ns": latency(sent, rows["ts_ns"], answered),
            **self._columns(Pairs(asked, rows, answered, refused, notes)),
        }
        return conform("rpcs", columns, len(found))
