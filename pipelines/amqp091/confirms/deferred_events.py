"""Events of one connection that are held until more is known of it, in memory or in mapped files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from amqpscope.pipelines.amqp091.frames import FRAMES
from amqpscope.pipelines.model.connection import CLIENT, SERVER
from amqpscope.pipelines.model.events import EV, MESSAGES, SOURCES, WORDS, Events, decoded, what
from amqpscope.pipelines.model.rows import spilled
from amqpscope.pipelines.model.store import SPILL

BLOCK = 1 << 16
"""Events that are written and read together."""


class Block(NamedTuple):
    """Events in order; the rows of each source are in that order as well."""

    tables: dict[int, pa.Table]
    source: Any
    marks: tuple[int, int]

    def events(self) -> Events:
        """Return the block as a batch."""
        row = np.empty(len(self.source), np.int64)
        for source in self.tables:
            at = np.flatnonzero(self.source == source)
            row[at] = np.arange(len(at))
        return Events(self.tables, self.source, row)


class Held:
    """Held events; each row is written once.

    All frames of `methods` and all cut frames are held. Of other frames, only the last one in a row of each side is
    held: its number and time stand for the others. So is the first method of each side.

    Args:
        methods: methods whose frames are all held.
        kinds: kinds of messages that are held.
        room: bytes of rows in memory; more than that go to files.
    """

    def __init__(self, methods: Sequence[str], kinds: Sequence[str], room: int = SPILL) -> None:
        self.room = room
        self._words = np.zeros(WORDS, bool)
        self._words[[what(FRAMES, name) for name in methods]] = True
        self._words[[what(MESSAGES, name) for name in kinds]] = True
        self._blocks: list[Block] = []
        self._in_memory = 0
        self._young: list[Block] = []
        """Less than a block."""
        self._waiting = 0

    def add(self, events: Events, marks: tuple[int, int]) -> None:
        """Hold events.

        Args:
            events: of one connection.
            marks: two numbers that come back with the block: the least and the largest of those added to it.
        """
        kept = self._wanted(events.matrix)
        source, row = events.source[kept], events.row[kept]
        tables = {
            number: decoded(events.tables[number].take(pa.array(row[source == number])))
            for number in SOURCES
            if (source == number).any()
        }
        self._append(Block(tables, source, marks))

    def _append(self, block: Block) -> None:
        self._young.append(block)
        self._waiting += len(block.source)
        if self._waiting >= BLOCK:
            self._write()

    def _wanted(self, matrix: Any) -> Any:
        """Return the positions of the events to hold."""
        source = matrix[:, EV.SOURCE]
        kept = self._words[matrix[:, EV.WHAT]] | (matrix[:, EV.CUT] > 0) | ((source != FRAMES) & (source != MESSAGES))
        bare = np.flatnonzero(~kept & (source == FRAMES))
        run = np.cumsum(kept)[bare]
        some = matrix[bare]
        for side in (SERVER, CLIENT):
            mine = np.flatnonzero(some[:, EV.FROM_CLIENT] == side)
            if len(mine):
                in_run, ts = run[mine], some[mine, EV.TS]
                last = np.append((in_run[1:] != in_run[:-1]) | (ts[:-1] > ts[1:]), True)
                kept[bare[mine[last]]] = True
                kept[bare[mine[np.argmax(some[mine, EV.WHAT] > 0)]]] = True
        return np.flatnonzero(kept)

    def _write(self) -> None:
        young, self._young, self._waiting = self._young, [], 0
        if not young:
            return
        tables = {}
        for source in SOURCES:
            parts = [block.tables[source] for block in young if source in block.tables]
            if parts:
                rows = pa.concat_tables(parts, promote_options="default").combine_chunks()
                if self._in_memory + rows.nbytes > self.room:
                    rows, _ = spilled(rows)
                else:
                    self._in_memory += rows.nbytes
                tables[source] = rows
        marks = min(block.marks[0] for block in young), max(block.marks[1] for block in young)
        self._blocks.append(Block(tables, np.concatenate([block.source for block in young]), marks))

    def blocks(self) -> Iterator[tuple[Events, tuple[int, int]]]:
        """Yield all events in order, each block with its marks; nothing is held afterwards."""
        self._write()
        blocks, self._blocks = self._blocks[::-1], []
        self._in_memory = 0
        while blocks:
            block = blocks.pop()
            yield block.events(), block.marks

    def parts(self) -> dict[str, Any]:
        """Return what is held, as parts of a state (`store.pack`)."""
        blocks = [*self._blocks, *self._young]
        parts: dict[str, Any] = {
            "source": np.concatenate([np.zeros(0, np.int8), *(block.source for block in blocks)]),
            "blocks": [(len(block.source), *block.marks) for block in blocks],
        }
        for source, name in SOURCES.items():
            rows = [block.tables[source] for block in blocks if source in block.tables]
            if rows:
                parts[name] = pa.concat_tables(rows, promote_options="default")
        return parts

    def put_back(self, parts: Mapping[str, Any]) -> None:
        """Restore what `parts` returned."""
        at, rows = 0, dict.fromkeys(SOURCES, 0)
        for count, *marks in parts["blocks"]:
            source = parts["source"][at : at + count]
            at += count
            tables = {}
            for number, name in SOURCES.items():
                mine = int(np.count_nonzero(source == number))
                if mine:
                    tables[number] = parts[name].slice(rows[number], mine)
                    rows[number] += mine
            self._append(Block(tables, source, (marks[0], marks[1])))
