"""Events: rows of several tables, in the order in which they happened on their connection.

The order is (connection_id, order, rank): first the connection's own row; then, at each frame number, what is missing
before that frame (`anomalies` name the next frame), the frame, and the message that it completes. A delivery stands at
its first frame, because a client may settle it before its last frame was captured; other messages stand at their last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from amqpscope import spec
from amqpscope.dissector.kernels.state import Matrix, column
from amqpscope.pipelines.model import protocols
from amqpscope.pipelines.model.protocols import Frames

CONNECTIONS, ANOMALIES, FIRST_FRAMES, MESSAGES, ACKS = 0, 1, 2, 31, 32
"""Numbers of tables, in the order of their ranks: those of frames lie between, as their protocols are known. Rows about
acknowledgements are no events: they are joined with others (`run.acknowledged`)."""
SOURCES = {CONNECTIONS: "connections", ANOMALIES: "anomalies", MESSAGES: "messages", ACKS: "tcp_acks"}
"""Tables by their numbers."""
FRAMES_OF: dict[int, Frames] = {}
"""Tables of frames: what their protocols say of them."""
SPOKEN: dict[int, str] = {}
"""Tables of frames, and the protocol of each."""
EVENT_OF = {CONNECTIONS: "protocol", ANOMALIES: "code", MESSAGES: "kind"}
"""The column of each table that says what happened."""
KINDS = ("publish", "deliver", "get", "return")
WORDS = 1 << 11
"""Numbers of events (`what`) are below this."""
_words: dict[tuple[int, str], int] = {(CONNECTIONS, ""): 1}


def learn() -> None:
    """Take up the protocols that are known, and were not before; numbers that were given stay."""

    def number(source: int, name: str) -> None:
        _words.setdefault((source, name), len(_words) + 1)

    for code in spec.anomalies():
        number(ANOMALIES, code)
    for kind in KINDS:
        number(MESSAGES, kind)
    for protocol, statistics in protocols.known().items():
        frames = statistics.frames
        if frames.table not in SOURCES.values():
            source = FIRST_FRAMES + len(FRAMES_OF)
            SOURCES[source], FRAMES_OF[source] = frames.table, frames
            SPOKEN[source], EVENT_OF[source] = protocol, frames.named_by
            for method in spec.load(protocol).methods:
                number(source, method.full_name if frames.named_by == "method" else method.name)
            for kind in KINDS if frames.own_kinds else ():
                number(MESSAGES, f"{protocol} {kind}")
    if len(_words) >= WORDS or FIRST_FRAMES + len(FRAMES_OF) > MESSAGES:
        raise ValueError(f"too many protocols: {len(FRAMES_OF)} with {len(_words)} methods and codes")


def sources() -> dict[int, str]:
    """Return the tables that there are now by number, in the order in which rows of one frame stand."""
    there = protocols.known().keys()
    return {source: SOURCES[source] for source in sorted(SOURCES) if SPOKEN.get(source) in (None, *there)}


def order(source: int) -> str:
    """Return the column by which rows of a connection are sorted; "" for its own row."""
    return {CONNECTIONS: "", MESSAGES: "order", ACKS: "last_frame_no"}.get(source, "frame_no")


def merges(source: int) -> bool:
    """Return whether frames of a table may stand for each other (`protocols.Frames.merges`)."""
    return source in FRAMES_OF and FRAMES_OF[source].merges


def spoken() -> dict[int, str]:
    """Return the protocols that are known now, by the numbers of their tables of frames."""
    return {source: SPOKEN[source] for source in sources() if source in SPOKEN}


def source_of(table: str) -> int:
    """Return the number of a table.

    Raises:
        KeyError: its rows are not events.
    """
    if table not in SOURCES.values():
        learn()
    return {name: source for source, name in SOURCES.items()}[table]


def own_kinds() -> tuple[str, ...]:
    """Return the protocols whose messages are events of their own: their kinds have the protocol in front."""
    return tuple(SPOKEN[source] for source, frames in FRAMES_OF.items() if frames.own_kinds)


def kinds(*names: str) -> list[int]:
    """Return the numbers (EV.WHAT) of messages of these kinds, of all protocols."""
    return [what(MESSAGES, of + kind) for of in ("", *(f"{name} " for name in own_kinds())) for kind in names]


def what(source: int, name: str = "") -> int:
    """Return the number (EV.WHAT) of an event: a method, command, anomaly code or message kind; CONNECTIONS has one.

    Raises:
        KeyError: the specification has none of that name.
    """
    return _words[source, name]


def names_of(numbers: Iterable[int]) -> list[str]:
    """Return the names of numbers (EV.WHAT)."""
    names = {number: name for (_, name), number in _words.items()}
    return [names[number] for number in numbers]


class EV(Matrix):
    """Columns of `Events.matrix` (int64); -1 for null unless noted otherwise."""

    CONNECTION = column("connection_id")
    ORDER = column("frame number at which it stands")
    SOURCE = column("one of SOURCES")
    WHAT = column("see `what`; 0: something else")
    TS = column("ts_ns; of a connection last_ts_ns")
    FIRST_TS = column("first_ts_ns")
    FROM_CLIENT = column("1: the client sent it, 0: the server")
    CHANNEL = column("of AMQP")
    EPOCH = column("channel_epoch")
    NUMBER = column(
        "delivery_tag of frames and deliveries, publish_seq of publishes, command_id; of a connection "
        "closed_ts_ns; of a gap the bytes that are missing"
    )
    MULTIPLE = column("of a connection: 1 if it has closed_by, 2 if that is `evicted`")
    PARTIAL = column("is_partial; of a connection, whether only a part of it was dissected")
    CUT = column(
        "of a frame: 1 if its content is unknown, 2 for an answer without its number; 0-10: 1 if some of it is"
    )
    RESPONSE = column("is_response of stream frames; of a connection, whether one direction is missing")
    LAST_FRAME = column("frame_no of a message, also where ORDER is its first frame's")
    CLOSES = column("of a frame: 1 if it closes its connection")
    SHOWS = column("of a frame: 1 if it shows that both sides have spoken")


def decoded(rows: pa.Table) -> pa.Table:
    """Return rows with texts decoded."""
    kinds = rows.schema.types
    if not any(map(pa.types.is_dictionary, kinds)):
        return rows
    columns = [
        column.cast(kind.value_type) if pa.types.is_dictionary(kind) else column
        for column, kind in zip(rows.columns, kinds, strict=True)
    ]
    return pa.table(columns, names=rows.schema.names)


class _Places(NamedTuple):
    """Where the events of a source are."""

    at: Any
    """Positions of the events."""
    rows: Any
    """Their rows in the table."""
    first: int
    """The first of these in the table."""
    span: int
    """So many rows of the table from there on have them all."""
    order: Any
    """Which of those, in the order of the events: an index."""


class Events:
    """A batch of events in their order.

    Attributes:
        tables: rows of each source, with the columns that walks need; texts may be dictionaries.
        source: int8 per event.
        row: int64 per event, the row in its source's table.
    """

    def __init__(self, tables: Mapping[int, pa.Table], source: Any, row: Any) -> None:
        self.tables = tables
        self.source = source
        self.row = row

    @classmethod
    def mixed(cls, tables: Mapping[int, pa.Table], sources: Any) -> Events:
        """Return events of rows that came together, those of each source in the order of its table.

        Args:
            tables: rows of each source.
            sources: int8 per event.
        """
        row = np.zeros(len(sources), np.int64)
        for source in np.unique(sources):
            at = np.flatnonzero(sources == source)
            row[at] = np.arange(len(at))
        return cls(tables, sources, row)

    def __len__(self) -> int:
        return len(self.source)

    def slice(self, first: int, count: int) -> Events:
        """Return some of the events; neither tables nor an existing matrix are copied."""
        some = slice(first, first + count)
        return self._with(self.tables, self.source[some], self.row[some], some)

    def only(self, at: Any) -> Events:
        """Return some of the events, by position; tables are not copied."""
        made = Events(self.tables, self.source[at], self.row[at])
        made.__dict__["what"] = self.what[at]
        return made

    def with_rows(self, source: int, rows: pa.Table) -> Events:
        """Return the same events with other rows of a source; no column that EV is made of may differ.

        Args:
            source: one of SOURCES.
            rows: one for each of its events, in their order.
        """
        row = self.row.copy()
        at = np.flatnonzero(self.source == source)
        row[at] = np.arange(len(at))
        return self._with({**self.tables, source: rows}, self.source, row, slice(None))

    def rows_of(self, source: int) -> pa.Table:
        """Return the rows of a source's events, in order; not copied where they lie together."""
        rows = self.row[self.source == source]
        if source not in self.tables:
            raise KeyError(source)
        first = int(rows[0]) if len(rows) else 0
        if np.array_equal(rows, np.arange(first, first + len(rows))):
            return self.tables[source].slice(first, len(rows))
        return self.tables[source].take(pa.array(rows))

    def _with(self, tables: Mapping[int, pa.Table], source: Any, row: Any, some: Any) -> Events:
        """Return events that reuse what was already computed."""
        made = Events(tables, source, row)
        for name in ("what", "matrix"):
            if name in self.__dict__:
                made.__dict__[name] = self.__dict__[name][some]
        return made

    @cached_property
    def _places(self) -> dict[int, _Places]:
        """Return the places of each source that has events."""
        found = {}
        for source in self.tables:
            at = np.flatnonzero(self.source == source)
            if len(at):
                rows = self.row[at]
                first = int(rows.min())
                order = rows - first
                together = np.array_equal(order, np.arange(len(rows)))
                found[source] = _Places(at, rows, first, int(order.max()) + 1, slice(None) if together else order)
        return found

    def _values(self, source: int, column: str, places: _Places, missing: int) -> Any:
        """Return values of a numeric or boolean column with `missing` for null."""
        values = self.tables[source].column(column)
        if values.null_count == len(values):
            return missing
        values = values.slice(places.first, places.span)
        if values.null_count:
            values = values.cast(pa.int64()).fill_null(missing)
        return values.to_numpy()[places.order]

    def ints(self, columns: str | Mapping[int, str], missing: int = -1) -> Any:
        """Return values per event (int64) of a numeric or boolean column, `missing` for null and where there is none.

        Args:
            columns: a name for all sources that have it, or a name for some sources.
            missing: stands for null.
        """
        result = np.full(len(self), missing, np.int64)
        self._fill(result, columns, missing)
        return result

    def _fill(self, result: Any, columns: str | Mapping[int, str], missing: int = -1) -> None:
        """Write what `ints` returns where a source has the column."""
        for source, places in self._places.items():
            name = columns if isinstance(columns, str) else columns.get(source)
            if name is not None and self.tables[source].schema.get_field_index(name) >= 0:
                result[places.at] = self._values(source, name, places, missing)

    @cached_property
    def what(self) -> Any:
        """EV.WHAT per event (int64)."""
        result = np.zeros(len(self), np.int64)
        for source, places in self._places.items():
            if source == CONNECTIONS:
                result[places.at] = what(CONNECTIONS)
            elif self.tables[source].schema.get_field_index("what") >= 0:
                result[places.at] = self._values(source, "what", places, 0)
            else:
                result[places.at] = words_of(source, self.tables[source].take(pa.array(places.rows))).to_numpy()
        return result

    @cached_property
    def lacking(self) -> int:
        """Number of events after which frames may be missing, at most: anomalies, and frames that are cut."""
        return int(np.count_nonzero(self.source == ANOMALIES) + np.count_nonzero(self.matrix[:, EV.CUT] > 0))

    def among(self, words: Sequence[int]) -> Any:
        """Return which events (bool) have one of these numbers (EV.WHAT)."""
        return _flags(tuple(words))[self.what]

    @cached_property
    def matrix(self) -> Any:
        """int64 of len(self) rows, columns as EV; all walks share it, so nobody writes to it."""
        made = np.full((EV.WIDTH, len(self)), -1, np.int64)
        made[EV.SOURCE] = self.source
        made[EV.WHAT] = self.what
        for number, of in _columns(len(SOURCES)).items():
            self._fill(made[number], of)
        for source, places in self._places.items():
            if source in FRAMES_OF:
                closes, shows = _effects(source)
                at, side = places.at, made[EV.FROM_CLIENT, places.at]
                made[EV.CLOSES, at] = closes[made[EV.WHAT, at]] & (made[EV.RESPONSE, at] != 1)
                made[EV.SHOWS, at] = shows[side, made[EV.WHAT, at]]
        return np.ascontiguousarray(made.T)

    def take(self, source: int, positions: Any, columns: Sequence[str]) -> pa.Table:
        """Return a source's rows for events (positions in this batch, all of that source), texts decoded."""
        if source not in self.tables:
            return pa.table({name: pa.nulls(0) for name in columns})
        return decoded(self.tables[source].select(list(columns)).take(pa.array(self.row[positions])))


@cache
def _flags(words: tuple[int, ...]) -> Any:
    made = np.zeros(WORDS, np.bool_)
    made[list(words)] = True
    return made


@cache
def _effects(source: int) -> tuple[Any, Any]:
    """Return by EV.WHAT which frames of a table may close their connection, and by side which show that both spoke."""
    frames = FRAMES_OF[source]
    closes, shows = np.zeros(WORDS, np.bool_), np.ones((2, WORDS), np.bool_)
    closes[[what(source, name) for name in frames.closes]] = True
    shows[:, 0] = frames.unnamed_shows
    for side, names in enumerate((frames.begins, frames.begins_client)):
        shows[side, [what(source, name) for name in names]] = False
    return closes, shows


_COLUMNS: dict[int, str | dict[int, str]] = {
    EV.CONNECTION: "connection_id",
    EV.ORDER: {ANOMALIES: "frame_no", MESSAGES: "order"},
    EV.TS: {ANOMALIES: "ts_ns", MESSAGES: "ts_ns", CONNECTIONS: "last_ts_ns"},
    EV.FIRST_TS: "first_ts_ns",
    EV.FROM_CLIENT: "from_client",
    EV.CHANNEL: {MESSAGES: "channel"},
    EV.EPOCH: {MESSAGES: "channel_epoch"},
    EV.MULTIPLE: {CONNECTIONS: "closed"},
    EV.PARTIAL: {CONNECTIONS: "is_partial", MESSAGES: "is_partial"},
    EV.CUT: {},
    EV.RESPONSE: {CONNECTIONS: "one_direction"},
    EV.LAST_FRAME: {MESSAGES: "frame_no"},
    EV.NUMBER: {MESSAGES: "number", CONNECTIONS: "closed_ts_ns", ANOMALIES: "missing"},
}
"""The column of each table for those of EV; tables of frames say theirs besides `frame_no` and `ts_ns`."""


@cache
def _columns(_: int) -> dict[int, str | dict[int, str]]:
    """Return `_COLUMNS` with those of all tables of frames; as many tables are known."""
    made = dict(_COLUMNS)
    for source, frames in FRAMES_OF.items():
        for name, theirs in {"ORDER": "frame_no", "TS": "ts_ns", **frames.columns}.items():
            of = made[getattr(EV, name)]
            assert isinstance(of, dict)
            made[getattr(EV, name)] = of | {source: theirs}
    return made


def words(source: int, names: Any) -> Any:
    """Return the number of each name (EV.WHAT, Arrow int64); 0 for names that are not known, and for null."""
    known = [name for of, name in _words if of == source]
    numbers = pa.array([_words[source, name] for name in known], pa.int64())
    if pa.types.is_dictionary(names.type):
        names = names.combine_chunks() if isinstance(names, pa.ChunkedArray) else names
        chunks = names.chunks if isinstance(names, pa.ChunkedArray) else [names]
        made = [pc.take(words(source, chunk.dictionary), chunk.indices) for chunk in chunks]
        return pc.fill_null(pa.chunked_array(made, pa.int64()), 0)
    return pc.fill_null(pc.take(numbers, pc.index_in(names, value_set=pa.array(known, pa.string()))), 0)


def words_of(source: int, rows: pa.Table) -> Any:
    """Return the number of each row's event (EV.WHAT, Arrow int64)."""
    names = rows[EVENT_OF[source]]
    made = words(source, names)
    for protocol in own_kinds() if source == MESSAGES else ():
        own = pc.fill_null(pc.equal(rows["protocol"], protocol), False)
        if pc.any(own).as_py():
            own_names = pc.binary_join_element_wise(protocol, names.cast(pa.string()), " ")
            made = pc.if_else(own, words(source, own_names), made)
    return made


learn()  # at the end: what a protocol brings may need all of this module
