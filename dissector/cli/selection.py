"""Choose the frames that a user names: by connection, channel, method, queue and exchange."""

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from ipaddress import ip_address
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from amqpscope.dissector.cli.deliveries import Queues
from amqpscope.dissector.cli.options import suggest
from amqpscope.dissector.cli.printers import KIND_COLUMNS, Peers, View, kind
from amqpscope.spec.handshakes import SEVERITIES

COLUMNS = ("channel", "queue", "exchange")
"""Columns whose values can be named; what a protocol calls otherwise stands in its document (`shown.same`)."""

FAILS = {"handshake": "error", "ending": "warning"}
"""What --fail-on may name, and the severity from which on the listing counts it as failed, or as ended badly."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options that choose frames."""
    group = parser.add_argument_group(
        "selection", "Frames that match all of these options; where one is repeated, any of its values."
    )
    add_connection(group)
    for name, metavar, type_, what in (
        ("channel", "N", _channel, "on this channel"),
        ("method", "GLOB", str, "whose name in the output matches: basic.publish, 'queue.*', heartbeat"),
        ("queue", "NAME", str, "that name this queue or stream, or were delivered from it to a consumer that was seen"),
        ("exchange", "NAME", str, "that name this exchange"),
    ):
        action = group.add_argument(
            f"--{name}", metavar=metavar, action="append", default=[], type=type_, help=f"only frames {what}"
        )
        if name == "method":
            suggest(action, _methods)
    group.add_argument("-c", "--count", metavar="N", type=_count, help="stop after this number of frames")


def _methods() -> list[str]:
    """Return the names of all methods and commands."""
    from amqpscope import spec  # noqa: PLC0415 - it reads all documents
    from amqpscope.spec.documents import names  # noqa: PLC0415

    return sorted({method.full_name for name in names() for method in spec.load(name).methods})


def fails() -> list[str]:
    """Return what --fail-on may be given."""
    return [what for part in FAILS for what in (part, *(f"{part}:{severity}" for severity in SEVERITIES[1:]))]


def add_connection(parser: "argparse._ActionsContainer") -> None:
    """Declare the option that names connections."""
    parser.add_argument(
        "--connection",
        metavar="ID|IP[:PORT]",
        action="append",
        default=[],
        type=_connection,
        help="only connections with this id, or with this address on either side; may be repeated",
    )


@dataclass
class Selection:
    """What is wanted: a connection's names, globs for methods, and values by column; empty where all are."""

    connections: frozenset[str] = frozenset()
    methods: Sequence[str] = ()
    values: dict[str, list[Any]] = field(default_factory=dict)
    _queues: Queues = field(default_factory=Queues)
    _matching: dict[tuple[Any, ...], bool] = field(default_factory=dict)

    @staticmethod
    def of(arguments: argparse.Namespace) -> "Selection":
        """Return what the arguments name."""
        values = {name: getattr(arguments, name) for name in COLUMNS if getattr(arguments, name)}
        return Selection(frozenset(arguments.connection), arguments.method, values)

    def take(self, batch: pa.RecordBatch, peers: Peers, view: View) -> pa.RecordBatch:
        """Return the frames that are wanted of these, which are of one table."""
        chosen = [_has_any(batch, (name, *view.same.get(name, ())), each) for name, each in self.values.items()]
        if "queue" in self.values and {"method", "consumer_tag"} <= {*batch.schema.names}:
            delivered = pc.is_in(self._queues.of(batch), pa.array(self.values["queue"], pa.string()))
            at = list(self.values).index("queue")
            chosen[at] = pc.or_(pc.fill_null(chosen[at], False), delivered)
        for mask in chosen[1:]:
            chosen[0] = pc.and_(chosen[0], mask)
        if chosen:
            batch = batch.filter(chosen[0])
        if self.connections and batch.num_rows:
            batch = batch.filter(self._connections(batch.column("connection_id"), peers))
        if self.methods and batch.num_rows:
            batch = batch.filter(pa.array(self._named(batch)))
        return batch

    def _connections(self, identities: pa.Array, peers: Peers) -> pa.Array:
        wanted = [identity for identity in identities.unique().to_pylist() if self._wants(identity, peers)]
        return pc.is_in(identities, pa.array(wanted, pa.int64()))

    def _wants(self, identity: int, peers: Peers) -> bool:
        return not self.connections.isdisjoint(names_of(identity, peers.ends(identity)))

    def _named(self, batch: pa.RecordBatch) -> list[bool]:
        columns = [name for name in KIND_COLUMNS if name in batch.schema.names]
        each = zip(*(batch.column(name).to_pylist() for name in columns), strict=True)
        return [self._matches(dict(zip(columns, values, strict=True)), values) for values in each]

    def _matches(self, row: dict[str, Any], values: tuple[Any, ...]) -> bool:
        if values not in self._matching:
            self._matching[values] = any(fnmatchcase(kind(row), glob) for glob in self.methods)
        return self._matching[values]


def _has_any(batch: pa.RecordBatch, columns: Sequence[str], wanted: list[Any]) -> pa.Array:
    """Return which rows have one of the wanted values in one of these columns."""
    found = pa.array(np.zeros(batch.num_rows, np.bool_))
    for name in columns:
        if name in batch.schema.names:
            column = batch.column(name)
            found = pc.or_(found, pc.is_in(column, pa.array(wanted, column.type)))
    return found


def fail_on(text: str) -> tuple[str, str]:
    """Return which part of a connection is looked at (`handshake` or `ending`), and the least severity that fails.

    Raises:
        argparse.ArgumentTypeError: the text names neither.
    """
    part, sign, severity = text.partition(":")
    if part not in FAILS or (sign and severity not in SEVERITIES[1:]):
        raise argparse.ArgumentTypeError(f"{text!r}; give handshake or ending, also with :{', :'.join(SEVERITIES[1:])}")
    return part, severity or FAILS[part]


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"not a number of frames: {text!r}; give 1 or more")
    return int(text)


def _channel(text: str) -> int:
    if not text.isdecimal() or int(text) >= 1 << 16:
        raise argparse.ArgumentTypeError(f"not a channel: {text!r}; give 0 to 65535")
    return int(text)


def _connection(text: str) -> str:
    """Return a name of a connection as `names_of` has it."""
    if text.isdecimal():
        return text
    host, port = text, ""
    if re.fullmatch(r"(\[.*\]|[^:]*):\d+", text):
        host, _, port = text.rpartition(":")
    try:
        address = ip_address(host.strip("[]"))
    except ValueError:
        known = "10.0.3.7, 10.0.3.7:41418, [fd00::7]:41418 or the id of a connection"
        raise argparse.ArgumentTypeError(f"not an address: {text!r}; give {known}") from None
    return f"{f'[{address}]' if address.version == 6 else address}:{port}" if port else str(address)


def names_of(identity: int, ends: Sequence[str]) -> set[str]:
    """Return the names of a connection: its id, and its addresses (`ip:port`), with and without their ports."""
    return {str(identity), *ends, *(end.rpartition(":")[0].strip("[]") for end in ends)}
