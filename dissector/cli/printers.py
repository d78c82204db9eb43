"""Print frames as lines of text, JSON or CSV."""

import csv
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, tzinfo
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

import pyarrow as pa

from amqpscope import spec
from amqpscope.dissector.cli.deliveries import TABLE, Unsettled
from amqpscope.dissector.formatting import clean, counted, exact, instant, moment, plain, zone_name
from amqpscope.spec.layout import paint
from amqpscope.spec.model import Protocol

if TYPE_CHECKING:  # verdicts and the report need the words here, not what dissects
    from amqpscope.dissector.dissector import Dissector

LEADING = frozenset({
    "connection_id", "frame_no", "capture", "packet", "ts_ns", "ts", "first_capture", "first_packet", "first_ts_ns",
    "from_client", "channel", "channel_epoch", "frame_type", "method", "size", "is_partial", "missing",
    "command", "version", "is_response",
})  # fmt: skip
LONGEST = 240
"""Most characters shown of a text value."""
INDENT = " " * 8
"""Before arguments that go on in a line of their own."""
MOST_LABELS = 100_000
"""Connections whose labels are remembered; those of others are said again."""
MOST_MS = 1 << 46
"""Times in milliseconds below this can be written as dates."""


class Peers:
    """Addresses by connection."""

    def __init__(self, dissector: "Dissector") -> None:
        self.dissector = dissector
        self.known: dict[int, tuple[str, str]] = {}

    def ends(self, identity: int) -> tuple[str, str]:
        """Return client and server of a connection that is open, or whose frames were the last."""
        if identity not in self.known:
            from amqpscope.dissector.tables.connections import ends  # noqa: PLC0415 - is there where there is a dissector

            if len(self.known) > 100_000:
                self.known.clear()
            self.known[identity] = ends(identity, self.dissector.tcp.flows.facts)
        return self.known[identity]

    def of(self, row: dict[str, Any]) -> tuple[str, str]:
        """Return sender and receiver of a frame."""
        client, server = self.ends(row["connection_id"])
        return (client, server) if row["from_client"] else (server, client)


class Printer:
    """What all printers have: where to print, addresses, the zone of times, and how each table is shown.

    Args:
        out: gets the lines.
        peers: addresses of the connections.
        zone: time zone of printed times.
        protocol: the user's, which stands for ours of the same name.
    """

    def __init__(self, out: TextIO, peers: Peers, zone: tzinfo = UTC, protocol: Protocol | None = None) -> None:
        self.out = out
        self.peers = peers
        self.zone = zone
        self.views = Views(protocol)

    def look(self, table: str, batch: pa.RecordBatch) -> None:
        """Take notice of frames, those that are not printed among them, before any of them are printed."""

    def frames(self, table: str, batch: pa.RecordBatch) -> None:
        """Print these frames of a table."""
        raise NotImplementedError


class Json(Printer):
    """One JSON object per line, without columns that are null."""

    def frames(self, table: str, batch: pa.RecordBatch) -> None:
        """Print these frames of a table."""
        for frame in objects(batch, self.peers, self.views[table], self.zone):
            self.out.write(json.dumps(exact(frame), ensure_ascii=False) + "\n")


KINDS = ("method", "frame_type", "segment_type")
"""Columns that say what a frame is, besides those of streams; the first that has something."""
KIND_COLUMNS = (*KINDS, "command", "version", "is_response")
"""All columns that `kind` reads."""
SIZED = {
    "control": "control", "command": "command", "header": "header", "body": "body",
    "method": "unknown method,", "?": "unknown command,",
}  # fmt: skip
"""Names, before their size, of frames without fields: parts of contents, and unknown frames."""


class Csv(Printer):
    """All columns, after a line of their names, which is repeated where frames of another protocol follow."""

    names: tuple[str, ...] = ()

    def frames(self, table: str, batch: pa.RecordBatch) -> None:
        """Print these frames of a table."""
        writer = csv.writer(self.out, lineterminator="\n")
        columns = batch.drop_columns(["ts"])
        names = ("ts", "sender", "receiver", *columns.schema.names)
        if names != self.names:
            self.names = names
            writer.writerow(names)
        for row in columns.to_pylist():
            cells = (instant(row["ts_ns"], self.zone), *self.peers.of(row), *row.values())
            writer.writerow("" if cell is None else _cell(cell) for cell in cells)


class Text(Printer):
    """Packet, time of the day, side and port of the client, channel, method and arguments, for people.

    Lines that begin with # say which day it is, and which addresses a connection has; on a terminal, arguments go on in
    lines of their own where they do not fit.
    """

    notes: Mapping[tuple[int, int], str] = {}
    """What acks of the batch settle, by connection and frame."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.unsettled = Unsettled()
        self.width = get_terminal_size().columns if self.out.isatty() else 0
        self._day = ""
        self._labels: dict[int, str] = {}
        self._used: Counter[str] = Counter()

    def look(self, table: str, batch: pa.RecordBatch) -> None:
        """Remember deliveries, for what acks settle."""
        self.notes = self.unsettled.notes(batch) if table == TABLE else {}

    def frames(self, table: str, batch: pa.RecordBatch) -> None:
        """Print these frames of a table."""
        view = self.views[table]
        for row in rows(batch):
            self.out.write(self._line(row, view) + "\n")

    def _line(self, row: dict[str, Any], view: "View") -> str:
        day, time = instant(row["ts_ns"], self.zone).split("T")
        if (said := f"{day}, {zone_name(row['ts_ns'], self.zone)}") != self._day:
            self._day = said
            self._remark(said)
        label = self._label(row["connection_id"])
        what = kind(row)
        fields = [self._field(what, k, v, view) for k, v in view.ordered(row) if k not in view.left_out]
        if not fields and what in SIZED:
            what, fields = SIZED[what], [counted(row["size"], "byte")]
        channel = ".".join(str(row[name]) for name in ("channel", "channel_epoch") if name in row) or "-"
        begin = f"{row['packet']:>7} {time[:15]}"
        middle = f" {'client' if row['from_client'] else 'server'} {label:>5} {channel:>5} "
        asides = []
        if row.get("is_partial"):
            asides.append((f"[{counted(row['missing'], 'byte')} missing]", "warning"))
        if note := self.notes.get((row["connection_id"], row["frame_no"])):
            asides.append((f"[{note}]", "aside"))
        text, at = f"{paint(begin, 'aside')}{middle}{paint(what, 'name')}", len(begin) + len(middle) + len(what)
        for field, look in [*((field, "") for field in fields), *asides]:
            at += 1 + len(field)
            is_next = 0 < self.width < at
            at = len(INDENT) + len(field) if is_next else at
            text += ("\n" + INDENT if is_next else " ") + (paint(field, look) if look else field)
        return text

    def _label(self, identity: int) -> str:
        """Return what stands for a connection: the client's port, with a number where another one had it before."""
        if identity not in self._labels:
            client, server = self.peers.ends(identity)
            port = client.rpartition(":")[2]
            if len(self._labels) > MOST_LABELS:
                self._labels.clear()
            self._used[port] += 1
            self._labels[identity] = f"{port}/{self._used[port]}" if self._used[port] > 1 else port
            self._remark(f"{self._labels[identity]} is client {client} of server {server}")
        return self._labels[identity]

    def _remark(self, text: str) -> None:
        self.out.write(paint(f"# {text}", "aside") + "\n")

    def _field(self, what: str, column: str, value: object, view: "View") -> str:
        """Return a column of a method and its value; a number that has a name is followed by it."""
        field = f"{column}={_value(value)}"
        if not isinstance(value, int):
            return field
        names = view.names.get(column) or view.names.get(f"{what}.{column}", {})
        if name := names.get(value):
            return f"{field} ({name})"
        if column in view.milliseconds and 0 <= value < MOST_MS:
            return f"{field} ({moment(value // 1000, value % 1000, 3, self.zone)})"
        return field


PRINTERS: dict[str, type[Printer]] = {"text": Text, "json": Json, "csv": Csv}


def rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return the rows without what is null in them; columns of nothing but null are never looked at, nor is `ts`."""
    names = [name for name in batch.schema.names if name != "ts"]
    there = [name for name in names if batch.column(name).null_count < batch.num_rows]
    return [{k: v for k, v in row.items() if v is not None} for row in batch.select(there).to_pylist()]


def objects(batch: pa.RecordBatch, peers: Peers, view: "View", zone: tzinfo = UTC) -> Iterator[dict[str, Any]]:
    """Yield frames as dicts for programs: their rows, with the time as text, sender and receiver."""
    for row in rows(batch):
        sender, receiver = peers.of(row)
        leading = {"ts": instant(row["ts_ns"], zone), "sender": sender, "receiver": receiver}
        yield leading | dict(view.ordered(row))


def kind(row: dict[str, Any]) -> str:
    """Return what a frame is: its method or command, or its type; responses of streams end in -response, as in -ok."""
    found: str | None = next((row[name] for name in KINDS if row.get(name)), None)
    if found is not None:
        return found
    if row.get("version") is None:
        return "protocol-header"
    version = f".v{row['version']}" if row["version"] > 1 else ""
    return f"{row.get('command') or '?'}{'-response' if row.get('is_response') else ''}{version}"


class View(NamedTuple):
    """How the frames of a table are printed.

    Attributes:
        names: names of numbers, by column, or by method and column where methods differ in them.
        milliseconds: columns that are times in milliseconds.
        left_out: columns that lines of text leave out.
        same: columns that hold what another protocol's column of this name holds.
        arguments: columns of arguments in the order of the specification, by name of the method or command and
            whether it is a response.
    """

    names: dict[str, dict[int, str]]
    milliseconds: tuple[str, ...]
    left_out: frozenset[str]
    same: dict[str, tuple[str, ...]]
    arguments: dict[tuple[str, bool], dict[str, int]]

    def ordered(self, row: dict[str, Any]) -> list[tuple[str, Any]]:
        """Return the columns of a row: arguments in their order, after all others."""
        places = self.arguments.get((row.get("method") or row.get("command", ""), row.get("is_response", False)))
        return sorted(row.items(), key=lambda item: places.get(item[0], -1)) if places else list(row.items())


class Views(dict[str, View]):
    """The views of tables, made when they are asked for; `protocol` is the user's, which stands for ours."""

    def __init__(self, protocol: Protocol | None = None) -> None:
        super().__init__()
        self.protocol = protocol

    def __missing__(self, table: str) -> View:
        name = spec.tables()[table].methods_of or spec.load().name
        own = self.protocol if self.protocol and self.protocol.name == name else None
        self[table] = _view(own or spec.load(name))
        return self[table]


def _view(protocol: Protocol) -> View:
    shown = protocol.shown
    names = {column: protocol.names_of(column) for column, _ in shown.names}
    arguments: dict[tuple[str, bool], dict[str, int]] = {}
    for method in protocol.methods:
        for name in {method.full_name, method.name}:
            places = arguments.setdefault((name, method.class_name == "response"), {})
            for field in method.fields:
                if field.column:
                    places.setdefault(field.column, len(places))
    return View(names, shown.milliseconds, LEADING.union(shown.left_out), dict(shown.same), arguments)


def _value(value: object) -> str:
    if not isinstance(value, str):
        return str(plain(value))
    short = clean(value if len(value) <= LONGEST else value[:LONGEST] + "…")
    return short if value.startswith(("{", "[")) else json.dumps(short, ensure_ascii=False)


def _cell(value: object) -> object:
    return clean(value) if isinstance(value, str) else plain(value)
