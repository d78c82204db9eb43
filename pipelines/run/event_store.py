"""Rows of tables as they come: what walks need of them is stored until all rows are there.

Rows of a table come in parts, in any order, though mostly by time. Columns that no walk reads are dropped at once. Of
frames, columns beyond `event_rows.LEADING` are stored only for the methods that a walk needs: most frames are bodies
and headers, of which only numbers matter, and many of these are merged (`merging`). Texts are encoded as dictionaries.
Columns that are null in a whole part are left out of it, until rows become events.
Connections whose rows have all come can be taken out before the others. Rows that exceed memory all the same go to
files, in buckets of connections (`buckets`); what a connection has beyond its first SPAN frames, in a bucket of its own
for each SPAN frames more.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from amqpscope.pipelines.model import events as ev
from amqpscope.pipelines.model.event_rows import ACKED, DERIVED_WHEN_ASKED, derived, leading, needed, prepared, spent
from amqpscope.pipelines.model.listed import LISTED
from amqpscope.pipelines.model.walk import Needs, schema
from amqpscope.pipelines.run import acknowledged
from amqpscope.pipelines.run.buckets import COUNT, Buckets
from amqpscope.pipelines.run.incomplete_deliveries import waits
from amqpscope.pipelines.run.merging import merged, wanted, with_gaps
from amqpscope.pipelines.run.sorting import PLACE, Sorted, encoded, joined

PART = 1 << 17
"""Smaller parts are joined."""
ROOM = 3 << 28
"""Bytes of rows in memory beyond which they go to files."""
SPAN = 1 << 20
"""Frames of one connection that are read at a time from files."""


_Group = dict[int, tuple[list[pa.Table], list[pa.Table]]]
"""By source, rows in parts and what is stored of some of them besides."""


class Layout(NamedTuple):
    """The columns of a table that are stored.

    Attributes:
        base: columns to read.
        leading: columns stored of all rows.
        further: columns stored only of the rows with one of `words`.
        words: EV.WHAT; None for all rows.
    """

    base: tuple[str, ...]
    leading: tuple[str, ...]
    further: tuple[str, ...]
    words: pa.Array | None


def layouts(needs: Sequence[Mapping[int, Needs]]) -> dict[int, Layout]:
    """Return what to store of each table for walks with these needs."""
    made = {}
    for source in ev.sources():
        wanted = [each[source] for each in needs if source in each]
        columns = tuple(dict.fromkeys(name for each in wanted for name in each.columns))
        columns += (ACKED,) if any(each.asks for each in wanted) else ()
        kept = tuple(name for name in leading(source) if name not in spent(source))
        kept += tuple(name for name in derived(source) if name not in DERIVED_WHEN_ASKED)
        further = tuple(name for name in columns if name not in kept)
        words = None
        if source in ev.FRAMES_OF and all(each.names is not None for each in wanted):
            names, of_some = {name for each in wanted for name in each.names or ()}, (ev.EVENT_OF[source], *_PLACE)
            words = pa.array(sorted(ev.what(source, name) for name in names), pa.int16())
            further += tuple(name for name in kept if name in of_some)
            kept = tuple(name for name in kept if name not in of_some)
        elif source == ev.CONNECTIONS:
            kept = (*kept, "is_partial")
        if words is None:
            kept, further = kept + further, ()
        base = tuple(name for name in needed(source, columns) if name not in (*LISTED, "is_partial", "numbered_by")
                     or name in leading(source))  # fmt: skip
        made[source] = Layout(base, kept, further, words)
    return made


_PLACE = ("capture", "packet")
"""Leading columns that, as the name of what happened, are read only of rows of which a walk takes rows."""


class EventStore:
    """Rows of all sources, as they come; then their events in order.

    Args:
        needs: of the walks (`walk.Walk.needs`).
        compiled: whether kernels run compiled.
        room: bytes of rows in memory; None for no bound.
        span: frames of one connection that are read at a time from files.

    Attributes:
        rows: number of rows that were added.
        held: bytes of rows in memory.
        parts_in_memory: by source.
    """

    def __init__(
        self,
        needs: Sequence[Mapping[int, Needs]],
        compiled: bool = False,
        room: int | None = ROOM,
        span: int = SPAN,
    ) -> None:
        self.compiled = compiled
        self.room = room
        self.span = span
        self.rows = 0
        self.held = 0
        self._buckets: Buckets | None = None
        self._spilled = pa.array([], pa.int64())
        """Connections with rows in files."""
        self._later: dict[tuple[int, int], int] = {}
        """Buckets by connection and span, of all spans but the first."""
        self.layouts = layouts(needs)
        self.asks = acknowledged.asking(needs)
        self._wanted = {source: wanted(needs, source) for source in self.layouts if ev.merges(source)}
        self.parts_in_memory: dict[int, list[pa.Table]] = {source: [] for source in self.layouts}
        self._further: dict[int, list[pa.Table]] = {source: [] for source in self.layouts}
        self._small = dict.fromkeys(self.layouts, 0)
        """The last parts with few rows."""

    def prepare(self, source: int, rows: pa.Table) -> tuple[pa.Table, pa.Table | None]:
        """Return what to store of all rows, and what to store of some of them. Any thread may call this.

        Args:
            source: one of `events.SOURCES`.
            rows: with the columns `layouts[source].base`, as far as they exist; texts may be dictionaries.
        """
        layout = self.layouts[source]
        rows = completed(source, rows, layout.base)
        if "is_partial" in layout.leading and "is_partial" not in rows.column_names:
            rows = rows.append_column("is_partial", pa.repeat(pa.scalar(False), len(rows)))
        rows = prepared(source, rows, (*layout.leading, *layout.further), self.compiled)
        there = set(rows.schema.names)
        all_rows = encoded(_with_values(source, rows.select([name for name in layout.leading if name in there])))
        further = None
        if layout.words is not None:
            asked = pc.is_in(rows["what"], value_set=layout.words).to_numpy()
            further = rows.select([name for name in layout.further if name in there]).filter(pa.array(asked))
            further = encoded(_with_values(source, further))
            all_rows = all_rows.append_column(PLACE, pa.array(np.cumsum(asked) - 1, pa.int32(), mask=~asked))
        return all_rows, further

    def add(self, source: int, prepared: tuple[pa.Table, pa.Table | None]) -> None:
        """Store prepared rows."""
        rows, further = prepared
        if not len(rows):
            return
        if further is not None:
            self._further[source].append(further)
        self.parts_in_memory[source].append(rows)
        self._join(source, len(rows))
        self.rows += len(rows)
        self.held += _size(rows, further)
        if self.room is not None and self.held > self.room:
            self._spill(self.connections(1))
            if self.held > self.room:
                self._spill()

    def _join(self, source: int, rows: int) -> None:
        """Join the last small parts: their columns share memory with columns of the dissector that are not needed."""
        self._small[source] = 0 if rows >= PART else self._small[source] + 1
        small = self._small[source]
        parts, further = self.parts_in_memory[source][-small:], self._further[source][-small:]
        if not small or sum(map(len, parts)) < PART:
            return
        if further:
            parts = _placed(parts, further)
            self._further[source][-small:] = [joined(further)]
        self.parts_in_memory[source][-small:] = [joined(parts)]
        self._small[source] = 0

    def connections(self, least: int = 0) -> pa.Array:
        """Return the connections with at least this many frames and messages in memory, and no rows in files."""
        if not least:
            return self._in_memory(_connections(part for parts in self.parts_in_memory.values() for part in parts))
        parts = self._of_frames("connection_id")
        counts = pa.chunked_array([chunk for part in parts for chunk in part.chunks], pa.int64()).value_counts()
        found = counts.field("values").filter(pc.greater_equal(counts.field("counts"), least))
        return self._in_memory(found.drop_null())

    def since_ns(self, default: int) -> int:
        """Return the time of the first frame or message in memory (ns)."""
        found = (pc.min(times).as_py() for times in self._of_frames("ts_ns"))
        return min((time for time in found if time is not None), default=default)

    def _of_frames(self, name: str) -> list[pa.ChunkedArray]:
        """Return a column of all frames and messages in memory."""
        sources = (source for source in self.layouts if ev.FIRST_FRAMES <= source <= ev.MESSAGES)
        return [part[name] for source in sources for part in self.parts_in_memory[source]]

    def _in_memory(self, some: pa.Array) -> pa.Array:
        return some.filter(pc.invert(pc.is_in(some, value_set=self._spilled)))

    def _spill(self, some: pa.Array | None = None) -> None:
        """Put the rows of these connections into buckets; None for all."""
        self._buckets = self._buckets or Buckets()
        group = self._take(some)
        connections = _connections(part for parts, _ in group.values() for part in parts)
        self._spilled = pa.chunked_array([self._spilled, connections]).unique()
        for source, (parts, further) in group.items():
            name = ev.SOURCES[source]
            for part, more in itertools.zip_longest(parts, further):
                rows, span = self._spans(source, part)
                bucket = self._bucket(rows, span)
                self._buckets.write(name, rows, bucket)
                if more is not None and len(more):
                    self._buckets.write(f"{name} further", more, bucket[part[PLACE].is_valid().to_numpy()])

    def _spans(self, source: int, rows: pa.Table) -> tuple[pa.Table, Any]:
        """Return rows, and the span of each (int64)."""
        if source == ev.ACKS:
            return acknowledged.spread(rows, self.span)
        if not ev.order(source):
            return rows, np.zeros(len(rows), np.int64)
        return rows, rows[ev.order(source)].fill_null(0).to_numpy() // self.span

    def _bucket(self, rows: pa.Table, span: Any) -> Any:
        """Return the number of each row's bucket (int64)."""
        identity = rows["connection_id"].fill_null(0).to_numpy()
        bucket = identity % COUNT
        later = np.flatnonzero(span > 0)
        for at in np.unique(span[later]).tolist():
            mine = later[span[later] == at]
            keys, which = np.unique(identity[mine], return_inverse=True)
            numbers = [self._later.setdefault((of, at), COUNT + len(self._later)) for of in keys.tolist()]
            bucket[mine] = np.array(numbers, np.int64)[which]
        return bucket

    def _take(self, some: pa.Array | None = None, cuts: pa.Table | None = None) -> _Group:
        """Return the rows of these connections that are in memory and not cut, and remove them; None for all."""
        group: _Group = {}
        self.held = 0
        for source in self.layouts:
            taken = group[source] = self.parts_in_memory[source], self._further[source]
            self.parts_in_memory[source], self._further[source], self._small[source] = [], [], 0
            if some is not None:
                group[source] = [], []
                for part, more in itertools.zip_longest(*taken):
                    mine = pc.is_in(part["connection_id"], value_set=some).to_numpy()
                    later = ~mine
                    if cuts is not None and len(cuts) and ev.order(source):
                        later |= waits(part, ev.order(source), cuts)
                        mine &= ~waits(part, "first_frame_no" if source == ev.ACKS else ev.order(source), cuts)
                    _put(group[source], part, more, mine)
                    _put((self.parts_in_memory[source], self._further[source]), part, more, later)
                self.held += sum(map(_size, self.parts_in_memory[source])) + sum(map(_size, self._further[source]))
        return group

    def parts(self, source: int) -> Iterator[pa.Table]:
        """Yield the stored rows of a source, in parts."""
        if self._buckets is not None:
            yield from self._buckets.look(ev.SOURCES[source])
        yield from self.parts_in_memory[source]

    def take(self, some: pa.Array, apart: pa.Array | None, cuts: pa.Table | None = None) -> Sorted:
        """Return the rows of connections as sorted events, and remove them.

        Args:
            some: connections; those with rows in files are left out.
            apart: those of which all frames stay (`merging`), because other rows of them were taken before; None
                for all.
            cuts: `incomplete_deliveries.cuts`: rows that wait for others are left out.
        """
        return self._sorted(self._take(self._in_memory(some), cuts), apart)

    def sorted(self, apart: pa.Array) -> Iterator[Sorted]:
        """Yield all rows as sorted events, and remove them: connections in groups, or a part of one.

        Args:
            apart: connections of which rows were taken before.
        """
        if self._buckets is None:
            yield self._sorted(self._take(), apart)
            return
        apart = pa.chunked_array([with_gaps(self.parts(ev.ANOMALIES)), apart], pa.int64()).combine_chunks()
        self._spill()
        later: dict[int, list[int]] = {}
        for (of, _), number in sorted(self._later.items()):
            later.setdefault(of, []).append(number)
        for number in range(COUNT):
            long = [of for of in later if of % COUNT == number]
            others, *firsts = self._read(number, long)
            yield self._sorted(others, apart)
            for of, first in zip(long, firsts, strict=True):
                yield self._sorted(first, apart)
                for each in later[of]:
                    (rows,) = self._read(each)
                    yield self._sorted(rows, apart)
        self._buckets, self._later, self._spilled = None, {}, self._spilled[:0]

    def _read(self, number: int, apart: Sequence[int] = ()) -> list[_Group]:
        """Return the rows of a bucket: those of all connections but some, then those of each of these."""
        assert self._buckets is not None
        groups: list[_Group] = [{} for _ in range(1 + len(apart))]
        for source, name in ev.sources().items():
            rows, further = (self._buckets.read(each, number) for each in (name, f"{name} further"))
            if rows is None:
                continue
            of = pc.index_in(rows["connection_id"], value_set=pa.array(apart, pa.int64())).fill_null(-1).to_numpy()
            for at, group in enumerate(groups, -1):
                _put(group.setdefault(source, ([], [])), rows, further, of == at)
        return groups

    def _sorted(self, group: _Group, apart: pa.Array | None) -> Sorted:
        if apart is not None:
            lossy = with_gaps(group[ev.ANOMALIES][0] if ev.ANOMALIES in group else ())
            apart = pa.chunked_array([lossy, apart], pa.int64()).combine_chunks()
        tables = {}
        for source in list(group):
            parts, further = group.pop(source)
            if parts:
                if further:
                    parts = _placed(parts, further)
                if source in self._wanted and apart is not None:
                    for number, part in enumerate(parts):
                        parts[number] = merged(source, part, self._wanted[source], apart, self.compiled)
                tables[source] = joined(parts, narrow=True), joined(further, narrow=True) if further else None
        acks, _ = tables.pop(ev.ACKS, (None, None))
        acknowledged.join(tables, acks, self.asks)
        columns = {source: (*layout.leading, *layout.further) for source, layout in self.layouts.items()}
        return Sorted(tables, columns, self.compiled)

    def take_out(self) -> dict[str, pa.Table]:
        """Return all rows by name, and remove them; none may be in files."""
        made = {}
        for source, (parts, further) in self._take().items():
            if parts:
                made[ev.SOURCES[source]] = joined(_placed(parts, further) if further else parts)
                if further:
                    made[f"{ev.SOURCES[source]} further"] = joined(further)
        return made

    def put_back(self, rows: Mapping[str, pa.Table]) -> None:
        """Add rows that `take_out` returned."""
        for source, name in ev.sources().items():
            if name in rows:
                self.add(source, (rows[name], rows.get(f"{name} further")))


def completed(source: int, rows: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Return these columns; those that a table lacks are null."""
    there = set(rows.schema.names)
    fields = schema(ev.SOURCES[source])
    made = [rows[name] if name in there else pa.nulls(len(rows), fields.field(name).type) for name in columns]
    extra = [
        name for name in ("is_partial", *LISTED, "numbered_by", "content") if name in there and name not in columns
    ]
    return pa.table([*made, *(rows[name] for name in extra)], names=[*columns, *extra])


def _with_values(source: int, rows: pa.Table) -> pa.Table:
    """Return rows without the columns of some walks that are null in all rows."""
    always = {*leading(source), *derived(source)}
    kept = [
        name
        for name, column in zip(rows.schema.names, rows.columns, strict=True)
        if name in always or column.null_count < len(rows)
    ]
    return rows.select(kept) if kept else rows


def _connections(parts: Iterable[pa.Table]) -> pa.Array:
    """Return the distinct connections of rows."""
    return pa.chunked_array([part["connection_id"].unique() for part in parts], pa.int64()).unique().drop_null()


def _size(rows: pa.Table, further: pa.Table | None = None) -> int:
    return int(rows.nbytes) + (int(further.nbytes) if further is not None else 0)


def _put(
    to: tuple[list[pa.Table], list[pa.Table]], rows: pa.Table, further: pa.Table | None, some: NDArray[np.bool_]
) -> None:
    """Append some rows to parts, with what is stored of them besides."""
    if not some.any():
        return
    if further is not None:
        there = rows[PLACE].is_valid().to_numpy()
        if not some.all():
            further, there = further.filter(pa.array(some[there])), there[some]
    if not some.all():
        rows = rows.filter(pa.array(some))
    if further is not None:
        place = pa.array(np.cumsum(there) - 1, pa.int32(), mask=~there)
        rows = rows.set_column(rows.column_names.index(PLACE), PLACE, place)
        to[1].append(encoded(further))
    to[0].append(encoded(rows))


def _placed(parts: list[pa.Table], further: list[pa.Table]) -> list[pa.Table]:
    """Return parts whose places count from the first row of all `further`."""
    made, before = [], 0
    for part, more in zip(parts, further, strict=True):
        at = part.column_names.index(PLACE)
        place = pc.add(part[PLACE], pa.scalar(before, pa.int32()))
        made.append(part.set_column(at, PLACE, place))
        before += len(more)
    return made
