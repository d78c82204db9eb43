"""The table `rpcs`: synchronous requests, and what came back. A protocol says what its frames do to the machine."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from amqpscope.dissector.kernels.arrays import Ints
from amqpscope.pipelines.model.ends import ended, latency
from amqpscope.pipelines.model.event_rows import ACKED
from amqpscope.pipelines.model.events import SPOKEN, Events
from amqpscope.pipelines.model.steps import StepWalk
from amqpscope.pipelines.model.walk import Rows, conform, known
from amqpscope.pipelines.requests.numbered import NumberedRequests
from amqpscope.pipelines.requests.queues import DROPPED, NONE, REFUSED
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


class RpcWalk(StepWalk):
    """A walk that pairs requests of a protocol with their answers; rows of `rpcs`."""

    OWN: tuple[str, ...]
    """Columns of frames that rows are made of, besides `connection_id` and so on."""
    VERSION = 11
    tables = ("rpcs",)

    def __init__(self, compiled: bool = False) -> None:
        self.NAME = f"rpcs of {SPOKEN[self.SOURCE]}"
        self.COLUMNS = ("connection_id", "from_client", *_POINT, ACKED, *self.OWN)
        super().__init__(compiled)

    def _begin(self) -> None:
        self.machine = self._machine()

    @abstractmethod
    def _machine(self) -> Machine:
        """Return the machine."""

    @property
    def state(self) -> Any:
        """See `StepWalk`."""
        return self.machine.asked

    @state.setter
    def state(self, state: Any) -> None:
        self.machine.asked = state

    @property
    def needed(self) -> set[int]:
        """See `StepWalk`."""
        return self.machine.needed

    def _over(self) -> None:
        self.machine.over()

    @abstractmethod
    def _columns(self, pairs: Pairs) -> dict[str, Any]:
        """Return the columns that depend on the protocol."""

    def _decided(self, events: Events | None) -> Iterator[Rows]:
        found = [each for each in self.machine.found if each.how != DROPPED]
        if len(found) < len(self.machine.found):
            self.frames.take(np.array([each.answer for each in self.machine.found if each.how == DROPPED], np.int64))
        self.machine.found = []
        if found:
            *numbers, notes = zip(*found, strict=True)
            requests, answers, how, ends = (np.array(column, np.int64) for column in numbers)
            yield "rpcs", self._rows(requests, answers, how, ends, notes)

    def _rows(self, requests: Ints, answers: Ints, how: Ints, ends: Ints, notes: Sequence[str | None]) -> pa.Table:
        """Return rows; columns are those of `Found`."""
        asked, answered, refused = self.frames.take(requests), answers >= 0, how == REFUSED
        plain = answered & ~refused
        place = np.full(len(requests), NONE, np.int64)
        place[refused] = np.arange(np.count_nonzero(refused))
        place[plain] = np.count_nonzero(refused) + np.arange(np.count_nonzero(plain))
        closes = self.frames.get(answers[refused])  # a close is a request as well, so its row is needed again
        parts = [asked.slice(0, 0), closes, self.frames.take(answers[plain])]
        rows = pa.concat_tables(parts, promote_options="default").take(known(place))
        sent = asked["ts_ns"].fill_null(0).to_numpy()
        columns = {
            **{name: asked[name] for name in ("connection_id", "from_client")},
            **{f"request_{name}": asked[name] for name in _POINT},
            **{f"response_{name}": rows[name] for name in _POINT},
            **ended(np.where(answered, 0, how), ends, sent),
            "latency_ns": latency(sent, rows["ts_ns"], answered),
            "request_acked_ts_ns": asked[ACKED],
            **self._columns(Pairs(asked, rows, answered, refused, notes)),
        }
        return conform("rpcs", columns, len(requests))
