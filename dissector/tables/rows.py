"""Turn rows of the stages into Arrow record batches, with the columns and types that `spec` declares."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from amqpscope import spec
from amqpscope.dissector.capture.model import Problem
from amqpscope.dissector.fields.arrow import array, of_rows
from amqpscope.dissector.fields.columns import TYPES, filled, nulls, repeated, spread
from amqpscope.dissector.fields.decoding import PROBLEM_CODES, Decoded
from amqpscope.dissector.kernels.arrays import Ints
from amqpscope.dissector.protocols.acknowledged import Acked
from amqpscope.dissector.protocols.rows import Faults, Made
from amqpscope.dissector.protocols.state import Fault as Anomaly
from amqpscope.dissector.protocols.state import Place
from amqpscope.dissector.tcp.roles import clients
from amqpscope.dissector.tcp.state import EVENTS, ZERO, Event, Facts, Window
from amqpscope.dissector.tcp.state import FAULTS as TCP_FAULTS
from amqpscope.dissector.tcp.state import Fault as TcpFault
from amqpscope.dissector.tls.shown import Fault
from amqpscope.spec import documents, handshakes
from amqpscope.spec.model import Protocol

SPANS = {"connections": ("first_ts_ns", "last_ts_ns"), "tcp_windows": ("start_ts_ns", "end_ts_ns")}
"""Columns with the first and last time of a row, for tables whose rows span an interval."""


def schemas(protocol: Protocol | None = None) -> dict[str, pa.Schema]:
    """Return the schemas of all tables of a dissection; see `schema`."""
    return {name: schema(name, protocol) for name, table in spec.tables().items() if table.written_by == "dissect"}


def schema(name: str, protocol: Protocol | None = None) -> pa.Schema:
    """Return the Arrow schema of a table.

    If given, `protocol` replaces our own data for the table that has the columns of its methods.
    """
    return _schema(name, protocol, documents.generation())


def kinds(name: str, protocol: Protocol | None = None) -> Mapping[str, pa.DataType]:
    """Return the columns of a table and their types, as `schema` has them."""
    return _kinds(name, protocol, documents.generation())


@cache
def _kinds(name: str, protocol: Protocol | None, _: object) -> Mapping[str, pa.DataType]:
    return {field.name: field.type for field in schema(name, protocol)}


@cache
def _schema(name: str, protocol: Protocol | None, _: object) -> pa.Schema:
    table = spec.tables()[name]
    if table.methods_of:
        theirs = protocol is not None and protocol.name == table.methods_of
        table = table.with_methods(protocol if protocol and theirs else spec.load(table.methods_of))
    return pa.schema([(column.name, TYPES[column.type]) for column in table.columns])


class Ends(NamedTuple):
    """The connections that rows belong to, copied from state while it exists."""

    connection_id: Ints
    from_client: NDArray[np.bool_]

    @classmethod
    def of(cls, facts: Ints, slot: Ints, side: Ints, brokers: Ints) -> "Ends":
        """Look up the connections of rows with these slots and sides; see `clients`."""
        return cls(facts[:, Facts.ID].copy()[slot], side == clients(facts, slot, brokers))


class Wanted(NamedTuple):
    """Which rows are wanted.

    Attributes:
        from_ns: leave out rows before this time.
        to_ns: leave out rows at or after this time.
        only: leave out all tables but this one.
    """

    from_ns: int | None = None
    to_ns: int | None = None
    only: str | None = None

    def rows(self, table: str, rows: pa.RecordBatch | None) -> list["Row"]:
        """Return those of these rows of a table that are wanted."""
        if rows is None or self.only not in (None, table):
            return []
        first, last = SPANS.get(table, ("ts_ns", "ts_ns"))
        # Rows without a time, such as an anomaly of a whole file, always stay.
        if self.from_ns is not None:
            rows = rows.filter(pc.fill_null(pc.greater_equal(rows.column(last), self.from_ns), True))
        if self.to_ns is not None:
            rows = rows.filter(pc.fill_null(pc.less(rows.column(first), self.to_ns), True))
        return [(table, rows)] if rows.num_rows else []


class Tables:
    """Makes rows of all tables: those that are wanted.

    Args:
        protocol: replaces our own data for the table that has the columns of its methods; see `schema`.
        captures: names of the captures by index; may grow.
        wanted: which rows to make.
        compiled: whether kernels run compiled.
    """

    def __init__(
        self, protocol: Protocol | None, captures: Sequence[str], wanted: Wanted, compiled: bool = False
    ) -> None:
        self.compiled = compiled
        self.protocol = protocol
        self.captures = captures
        self.wanted = wanted
        self.anomalies = spec.anomalies()
        self.outcomes = {code: cause.anomaly for code, cause in handshakes.load().causes.items() if cause.anomaly}

    def rows(self, made: Made, ends: Ends) -> list["Row"]:
        """Return the rows that a protocol emits, and rows of `anomalies` for their fields."""
        columns, decoded, faults = made.make()
        leading = self._leading(ends, made.rows, made.counts)
        batch = record_batch(made.table, leading | columns, self.protocol)
        rows = self.wanted.rows(made.table, batch)
        if decoded is not None and len(decoded.problem_row):
            rows += self._problems(batch, decoded)
        if faults is not None:
            rows += self.faults(faults, ends)
        return rows

    def faults(self, faults: Faults, ends: Ends) -> list["Row"]:
        """Return rows of `anomalies` for faults in framing and contents."""
        rows = faults.rows
        codes = [faults.codes[code] for code in rows[Anomaly.CODE].tolist()]
        channel = array(rows[Anomaly.CHANNEL], pa.int32(), mask=rows[Anomaly.CHANNEL] < 0)
        offset = array(rows[Anomaly.POS], mask=rows[Anomaly.POS] < 0)
        leading = self._leading(ends, rows)
        return self._anomalies(codes, self._details(codes, rows[Anomaly.VALUE]), channel, offset, leading)

    def tcp_faults(self, rows: Ints, ends: Ends) -> list["Row"]:
        """Return rows of `anomalies` for faults in TCP."""
        codes = [TCP_FAULTS[code] for code in rows[TcpFault.CODE].tolist()]
        offset = array(rows[TcpFault.POS], mask=rows[TcpFault.POS] < 0)
        leading = self._leading(ends, _of_packets(rows[TcpFault.CAPTURE], rows[TcpFault.PACKET], rows[TcpFault.TS]))
        return self._anomalies(
            codes, self._details(codes, rows[TcpFault.VALUE]), nulls(len(codes), "int32"), offset, leading
        )

    def tls_faults(self, faults: Sequence[Fault], ends: Ends) -> list["Row"]:
        """Return rows of `anomalies` for faults in TLS."""
        packet, ts, capture = np.array([fault.at for fault in faults], np.int64).T
        leading = self._leading(ends, _of_packets(capture, packet, ts))
        codes, details = [fault.code for fault in faults], [fault.detail for fault in faults]
        return self._anomalies(codes, details, nulls(len(codes), "int32"), nulls(len(codes), "int64"), leading)

    def connections(self, rows: pa.RecordBatch) -> list["Row"]:
        """Return rows of `connections`, and of `anomalies` for those without decoded frames."""
        made = []
        first = [f"first_{name}" for name in ("capture", "packet", "ts_ns")]
        outcomes = rows["handshake_outcome"].to_pylist()
        for n, (protocol, outcome) in enumerate(zip(rows["protocol"].to_pylist(), outcomes, strict=True)):
            size = rows["bytes"][n].as_py() if protocol == "unknown" else 0
            if outcome in self.outcomes:
                code, detail = self.outcomes[outcome], rows["handshake_cause"][n].as_py()
            elif size:
                code, detail = "stream-unrecognised", f"{size:,} bytes"
            else:
                continue
            row = {name: rows[name][n].as_py() for name in ("connection_id", *first)}
            row |= {name.removeprefix("first_"): row[name] for name in first}
            row |= {
                "code": code,
                "severity": self.anomalies[code].severity,
                "detail": detail,
                "ts": row["ts_ns"] // 1000,
            }
            made.append(row)
        found = record_batch("anomalies", of_rows(made, kinds("anomalies"))) if made else None
        return self.wanted.rows("connections", rows) + self.wanted.rows("anomalies", found)

    def problems(
        self, capture: str, problems: Sequence[Problem], times: Sequence[int | None] | None = None
    ) -> list["Row"]:
        """Return rows of `anomalies` for problems of a capture; `times` are those of their packets (ns), if known."""
        times = times or [None] * len(problems)
        columns = {
            "capture": array([capture] * len(problems), pa.string()),
            "packet": array([problem.packet or None for problem in problems], pa.int64()),
            "ts_ns": array(times, pa.int64()),
            "ts": array([None if ts is None else ts // 1000 for ts in times], pa.int64()).view(TYPES["timestamp"]),
            "code": array([problem.code for problem in problems], pa.string()),
            "severity": array([self.anomalies[problem.code].severity for problem in problems], pa.string()),
            "offset": array([problem.offset for problem in problems], pa.int64()),
            "detail": array([problem.detail for problem in problems], pa.string()),
        }
        return self.wanted.rows("anomalies", record_batch("anomalies", columns))

    def windows(self, rows: Ints, ends: Ends) -> list["Row"]:
        """Return rows of `tcp_windows`."""
        unended = rows[Window.END_PACKET] == 0
        capture = array(self.captures, pa.string()).take(array(rows[Window.END_CAPTURE], mask=unended))
        columns = {
            "connection_id": array(ends.connection_id),
            "from_client": array(ends.from_client),
            "kind": array(["zero" if kind == ZERO else "full" for kind in rows[Window.KIND].tolist()], pa.string()),
            "start_capture": self._capture(rows[Window.CAPTURE]),
            "start_packet": array(rows[Window.PACKET]),
            "start_ts_ns": array(rows[Window.TS]),
            "end_capture": capture,
            "end_packet": array(rows[Window.END_PACKET], mask=unended),
            "end_ts_ns": array(rows[Window.END_TS], mask=unended),
            "packets": array(rows[Window.PACKETS]),
            "is_partial": array(rows[Window.PARTIAL] == 1),
        }
        return self.wanted.rows("tcp_windows", record_batch("tcp_windows", columns)) + self._closed(rows, ends)

    def _closed(self, rows: Ints, ends: Ends) -> list["Row"]:
        """Return rows of `tcp_events` for windows of zero."""
        counted = np.flatnonzero(rows[Window.COUNTED])
        if not len(counted):
            return []
        rows = rows[:, counted]
        unknown = (rows[Window.END_PACKET] == 0) | (rows[Window.PARTIAL] == 1)
        columns = {
            "connection_id": array(ends.connection_id[counted]),
            "from_client": array(ends.from_client[counted]),
            "kind": repeated("zero-window", len(counted)),
            "capture": self._capture(rows[Window.CAPTURE]),
            "packet": array(rows[Window.PACKET]),
            "ts_ns": array(rows[Window.TS]),
            "ts": _time(rows[Window.TS]),
            "late_ns": array(np.maximum(rows[Window.END_TS] - rows[Window.TS], 0), mask=unknown),
        }
        return self.wanted.rows("tcp_events", record_batch("tcp_events", columns))

    def tcp_events(self, rows: Ints, ends: Ends) -> list["Row"]:
        """Return rows of `tcp_events`."""
        alone = rows[Event.OF_PACKET] == 0
        columns = {
            "connection_id": array(ends.connection_id),
            "from_client": array(ends.from_client),
            "kind": array([EVENTS[kind] for kind in rows[Event.KIND].tolist()], pa.string()),
            "capture": self._capture(rows[Event.CAPTURE]),
            "packet": array(rows[Event.PACKET]),
            "ts_ns": array(rows[Event.TS]),
            "ts": _time(rows[Event.TS]),
            "of_capture": array(self.captures, pa.string()).take(array(rows[Event.OF_CAPTURE], mask=alone)),
            "of_packet": array(rows[Event.OF_PACKET], mask=alone),
            "of_ts_ns": array(rows[Event.OF_TS], mask=alone),
            "bytes": array(rows[Event.BYTES]),
            "late_ns": array(rows[Event.LATE_NS], mask=rows[Event.LATE_NS] < 0),
            "ttl": array(rows[Event.TTL], pa.int32(), mask=rows[Event.TTL] < 0),
            "usual_ttl": array(rows[Event.USUAL_TTL], pa.int32(), mask=rows[Event.USUAL_TTL] < 0),
            "round_trip_ns": array(rows[Event.TRIP_NS], mask=rows[Event.TRIP_NS] < 0),
            "usual_round_trip_ns": array(rows[Event.USUAL_TRIP_NS], mask=rows[Event.TRIP_NS] < 0),
        }
        return self.wanted.rows("tcp_events", record_batch("tcp_events", columns))

    def tcp_acks(self, rows: Ints, ends: Ends) -> list["Row"]:
        """Return rows of `tcp_acks`."""
        columns = {
            "connection_id": array(ends.connection_id),
            "from_client": array(ends.from_client),
            "first_frame_no": array(rows[Acked.FIRST]),
            "last_frame_no": array(rows[Acked.LAST]),
            "capture": self._capture(rows[Acked.CAPTURE]),
            "packet": array(rows[Acked.PACKET]),
            "ts_ns": array(rows[Acked.TS]),
        }
        return self.wanted.rows("tcp_acks", record_batch("tcp_acks", columns))

    def _problems(self, batch: pa.RecordBatch, decoded: Decoded) -> list["Row"]:
        """Return rows of `anomalies` for the fields of the rows of another batch."""
        index = array(decoded.problem_row)
        codes = [PROBLEM_CODES[code] for code in decoded.problem_code.tolist()]
        names = [name for name in schema("anomalies").names if name in batch.schema.names]
        leading = {name: batch.column(name).take(index) for name in names}
        channel = leading.pop("channel", nulls(len(codes), "int32"))
        leading.pop("offset", None)
        what = next(name for name in ("method", "command", "kind") if name in batch.schema.names)
        method = batch.column(what).take(index).to_pylist()
        details = [f"in {name}" if name else "in a frame" for name in method]
        return self._anomalies(codes, details, channel, nulls(len(codes), "int64"), leading)

    def _details(self, codes: Sequence[str], values: Ints) -> list[str]:
        return [self.anomalies[code].describe(value) for code, value in zip(codes, values.tolist(), strict=True)]

    def _anomalies(
        self, codes: list[str], details: list[str], channel: pa.Array, offset: pa.Array, leading: dict[str, pa.Array]
    ) -> list["Row"]:
        columns = leading | {
            "code": array(codes, pa.string()),
            "severity": array([self.anomalies[code].severity for code in codes], pa.string()),
            "channel": channel,
            "offset": offset,
            "detail": array(details, pa.string()),
        }
        return self.wanted.rows("anomalies", record_batch("anomalies", columns))

    def _leading(self, ends: Ends, places: Ints, counts: Ints | None = None) -> dict[str, pa.Array]:
        """Return the leading columns, with each row repeated as `counts` says."""
        number, capture, packet, ts, first_capture, first_packet, first_ts = places[Place.NUMBER : Place.WIDTH]
        columns = {
            "connection_id": array(ends.connection_id),
            "frame_no": array(number, mask=number < 0),
            "packet": array(packet),
            "ts_ns": array(ts),
            "ts": _time(ts),
            "first_packet": array(first_packet),
            "first_ts_ns": array(first_ts),
            "from_client": array(ends.from_client),
        }
        if counts is not None:
            columns = spread(columns, counts, self.compiled)
        captures = {"capture": capture, "first_capture": first_capture}
        return columns | {name: self._capture(index, counts) for name, index in captures.items()}

    def _capture(self, index: Ints, counts: Ints | None = None) -> pa.Array:
        """Return names of captures, each repeated as `counts` says."""
        if len(index) and (index == index[0]).all():
            return repeated(self.captures[int(index[0])], len(index) if counts is None else int(counts.sum()))
        return array(self.captures, pa.string()).take(array(index if counts is None else np.repeat(index, counts)))


def record_batch(table: str, columns: Mapping[str, pa.Array], protocol: Protocol | None = None) -> pa.RecordBatch:
    """Return rows of a table with these columns; the others are null."""
    held = filled(columns, kinds(table, protocol), len(next(iter(columns.values()))))
    return pa.RecordBatch.from_arrays(list(held.values()), schema=schema(table, protocol))


def _of_packets(capture: Ints, packet: Ints, ts: Ints) -> Ints:
    """Return places (Place, n) of rows that belong to a packet, but to no frame."""
    none = np.full(len(packet), -1, np.int64)
    return np.stack((none, none, none, capture, packet, ts, capture, packet, ts))


def _time(ns: Ints) -> pa.Array:
    return array(ns // 1000).view(TYPES["timestamp"])


Row = tuple[str, pa.RecordBatch]
"""A table's name and some rows of it."""
Work = Callable[[], list[Row]]
"""A function that makes rows later. It touches no state but its own."""
