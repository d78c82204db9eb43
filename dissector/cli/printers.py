"""Frames as lines of text, JSON or CSV."""

import csv
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

import pyarrow as pa

from amqpscope import spec
from amqpscope.dissector.formatting import clean, counted, instant, moment
from amqpscope.spec import documents

if TYPE_CHECKING:  # verdicts and the report need the words here, not what dissects
    from amqpscope.dissector.dissector import Dissector

LEADING = frozenset({
    "connection_id", "frame_no", "capture", "packet", "ts_ns", "ts", "first_capture", "first_packet", "first_ts_ns",
    "from_client", "channel", "channel_epoch", "frame_type", "method", "size", "is_partial", "missing",
    "command", "version", "is_response",
})  # fmt: skip
LONGEST = 240
"""Characters shown of a text value."""
MOST_MS = 1 << 46
"""Times in milliseconds that can be written as dates."""


class Peers:
    """Addresses by connection."""

    def __init__(self, dissector: "Dissector") -> None:
        self.dissector = dissector
        self.known: dict[int, tuple[str, str]] = {}

    def of(self, row: dict[str, Any]) -> tuple[str, str]:
        """Sender and receiver of a frame."""
        identity = row["connection_id"]
        if identity not in self.known:
            from amqpscope.dissector.tables.connections import ends  # noqa: PLC0415 - is there where there is a dissector

            if len(self.known) > 100_000:
                self.known.clear()
            self.known[identity] = ends(identity, self.dissector.tcp.flows.facts)
        client, server = self.known[identity]
        return (client, server) if row["from_client"] else (server, client)


class Json:
    """One JSON object a line; columns that are null are left out."""

    def __init__(self, out: TextIO, dissector: "Dissector") -> None:
        self.out = out
        self.peers = Peers(dissector)

    def frames(self, table: str, batch: pa.RecordBatch) -> None:
        """Print these frames of a table."""
        for told in objects(batch, self.peers):
            self.out.write(json.dumps(told, ensure_ascii=False) + "\n")


KINDS = ("method", "frame_type", "segment_type")
"""Columns that say what a frame is, besides those of streams; the first that has something."""
SIZED = ("control", "command", "header", "body", "method", "?")
"""Frames of which text lines tell the size: parts of contents, and what is not known."""


class Csv:
    """All columns, with a line of their names in front, again where frames of another protocol follow."""

    def __init__(self, out: TextIO, dissector: "Dissector") -> None:
        self.writer = csv.writer(out, lineterminator="\n")
        self.names: list[str] = []

    def frames(self, table: str, batch: pa.RecordBatch) -> None:
        """Print these frames of a table."""
        if batch.schema.names != self.names:
            self.names = batch.schema.names
            self.writer.writerow(self.names)
        for row in batch.to_pylist():
            self.writer.writerow("" if value is None else _plain(value) for value in row.values())


class Text:
    """Packet, time, who to whom, channel, method and arguments; meant to be read."""

    def __init__(self, out: TextIO, dissector: "Dissector") -> None:
        self.out = out
        self.peers = Peers(dissector)

    def frames(self, table: str, batch: pa.RecordBatch) -> None:
        """Print these frames of a table."""
        view = _view(table)
        for row in rows(batch):
            self.out.write(self._line(row, view) + "\n")

    def _line(self, row: dict[str, Any], view: "_View") -> str:
        sender, receiver = self.peers.of(row)
        time = instant(row["ts_ns"])[11:26]
        what = next((row[name] for name in KINDS if name in row), None) or self._command(row)
        told = " ".join(_told(k, v, view) for k, v in row.items() if k not in view.left_out)
        if row.get("is_partial"):
            told += f" [{counted(row['missing'], 'octet')} missing]"
        channel = ".".join(str(row[name]) for name in ("channel", "channel_epoch") if name in row) or "-"
        if not told and what in SIZED:
            told = counted(row["size"], "octet")
        return f"{row['packet']:>7} {time} {sender} > {receiver} {channel:>5} {what} {told}".rstrip()

    @staticmethod
    def _command(row: dict[str, Any]) -> str:
        """Command of a stream frame; answers are marked as AMQP marks its own. What is nothing else is a header."""
        if "version" not in row:
            return "protocol-header"
        version = f".v{row['version']}" if row.get("version", 1) > 1 else ""
        return f"{row.get('command', '?')}{'-response' if row.get('is_response') else ''}{version}"


PRINTERS: dict[str, type[Text] | type[Json] | type[Csv]] = {"text": Text, "json": Json, "csv": Csv}


def rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """The rows without what is null in them; columns of nothing but null are never looked at, nor is `ts`."""
    names = [name for name in batch.schema.names if name != "ts"]
    there = [name for name in names if batch.column(name).null_count < batch.num_rows]
    return [{k: v for k, v in row.items() if v is not None} for row in batch.select(there).to_pylist()]


def objects(batch: pa.RecordBatch, peers: Peers) -> Iterator[dict[str, Any]]:
    """Frames as dicts for programs: their rows, with the time as text, and who sent them to whom."""
    for row in rows(batch):
        sender, receiver = peers.of(row)
        yield {"ts": instant(row["ts_ns"]), "sender": sender, "receiver": receiver} | row


class _View(NamedTuple):
    """How people see the frames of a table: names of numbers by column, times in milliseconds, what is left out."""

    names: dict[str, dict[int, str]]
    milliseconds: tuple[str, ...]
    left_out: frozenset[str]


@documents.caching
def _view(table: str) -> _View:
    protocol = spec.load(spec.tables()[table].methods_of or "amqp-0-9-1")
    shown = protocol.shown
    names = {column: protocol.names_of(column) for column, _ in shown.names}
    return _View(names, shown.milliseconds, LEADING.union(shown.left_out))


def _told(column: str, value: object, view: _View) -> str:
    """A column and its value; numbers that have names with these."""
    told = f"{column}={_value(value)}"
    if not isinstance(value, int):
        return told
    if name := view.names.get(column, {}).get(value):
        return f"{told} ({name})"
    if column in view.milliseconds and 0 <= value < MOST_MS:
        return f"{told} ({moment(value // 1000, value % 1000, 3)})"
    return told


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        if value.startswith(("{", "[")):
            return clean(value if len(value) <= LONGEST else value[:LONGEST] + "…")
        return json.dumps(clean(value if len(value) <= LONGEST else value[:LONGEST] + "…"), ensure_ascii=False)
    return str(value)


def _plain(value: object) -> object:
    return clean(value) if isinstance(value, str) else value
