"""Rows of the stages as Arrow record batches, with the columns and types that `spec` declares."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from amqpscope import spec
from amqpscope.dissector.fields.arrow import array, numbers, of_rows, valid
from amqpscope.dissector.fields.columns import TYPES, Names, nulls, spread
from amqpscope.dissector.fields.decoding import PROBLEM_CODES, Decoded
from amqpscope.dissector.kernels.arrays import Ints
from amqpscope.dissector.protocols import framing
from amqpscope.dissector.protocols.amqp091 import layout as ly
from amqpscope.dissector.protocols.amqp091.protocol import Faults, Frames, Messages
from amqpscope.dissector.protocols.stream import layout as sl
from amqpscope.dissector.protocols.stream.messages import StreamMessages
from amqpscope.dissector.protocols.stream.protocol import PROTOCOL as STREAM
from amqpscope.dissector.protocols.stream.protocol import StreamFaults, StreamFrames
from amqpscope.dissector.tcp.state import FAULTS as TCP_FAULTS
from amqpscope.dissector.tcp.state import ZERO, Facts, Window, clients
from amqpscope.dissector.tcp.state import Fault as TcpFault
from amqpscope.dissector.tls.shown import Fault
from amqpscope.spec.model import Protocol

NAMES = (
    "captures", "connections", "amqp091_frames", "stream_frames", "amqp010_frames", "messages", "tcp_windows",
    "anomalies",
)  # fmt: skip
"""The tables that dissection gives."""
FRAME_TYPES = {
    ly.METHOD: "method", ly.HEADER: "header", ly.BODY: "body", ly.HEARTBEAT: "heartbeat",
    ly.PROTOCOL_HEADER: "protocol-header",
}  # fmt: skip
MISMATCHES = ("version-refused", "amqp-1-0-refused", "amqp-0-10-refused")
"""Outcomes of handshakes that failed because the sides want different versions of AMQP."""
DETAILS = {
    "tcp-gap": "{octets} not captured, the next frame's head among them",
    "bytes-skipped": "{octets} passed over until the next frame",
    "frame-type-unknown": "frame type {value}",
    "frame-end-wrong": "0x{value:02x} where 0xce must be",
    "frame-too-large": "a payload of {octets} is announced",
    "frame-cut": "ended inside a frame, {octets} before its end",
    "header-unknown": "begins like a protocol header, with 0x{value:08x}",
    "limit-reached": "{octets} not put together",
    "content-interrupted": "another method inside the content that began with frame {value}",
    "content-unexpected": "frame type {value} where no content is under way",
    "content-abandoned": "the content that began with frame {value} was not finished",
    "body-too-large": "{octets} beyond the announced body size",
    "channel-wrong": "this method or content does not belong on this channel",
    "chunk-crc-wrong": "the data have the CRC 0x{value:08x}",
    "records-malformed": "{octets} that make no entry",
    "record-count-wrong": "{value} found",
    "sub-batch-unreadable": "of coding {value}",
    "message-malformed": "{records}",
    "overlap-mismatch": "{octets} other than those that came first",
    "connection-reused-port": "the connection had {packets} until then",
}
"""What `detail` says of each fault; `value` is the number that came with it, `octets` and the like so many of them."""

COUNTED = ("octets", "records", "packets")


@cache
def schema(name: str, protocol: Protocol | None = None) -> pa.Schema:
    """The Arrow schema of a table; `protocol` adds the columns of its methods (default: those of our own data)."""
    table = spec.tables()[name]
    if table.methods_of:
        table = table.with_methods(protocol or spec.load(table.methods_of))
    return pa.schema([(column.name, TYPES[column.type]) for column in table.columns])


class Ends(NamedTuple):
    """Whose rows they are: taken from the connections' state while it is there."""

    connection_id: Ints
    from_client: NDArray[np.bool_]

    @classmethod
    def of(cls, facts: Ints, slot: Ints, side: Ints) -> "Ends":
        """Look it up for rows of these slots and sides."""
        return cls(facts[:, Facts.ID].copy()[slot], side == clients(facts, slot))


class Tables:
    """Makes record batches. `captures` names the captures by their index and may grow."""

    def __init__(
        self, protocol: Protocol, captures: Sequence[str], show_hashes: bool = True, compiled: bool = False
    ) -> None:
        self.compiled = compiled
        self.show_hashes = show_hashes
        self.protocol = protocol
        self.captures = captures
        self.methods = Names([m.full_name for m in protocol.methods])
        self.severities = {code: anomaly.severity for code, anomaly in spec.anomalies().items()}
        self.frame_types = Names([FRAME_TYPES.get(k, "") for k in range(max(FRAME_TYPES) + 1)])
        self.kinds = Names([ly.KINDS.get(k, "") for k in range(max(ly.KINDS) + 1)])
        layouts = spec.load(STREAM).methods
        self.commands = array([m.name for m in layouts], pa.string())
        self.answers = np.array([m.class_id == 1 for m in layouts], np.bool_)

    def frames(self, frames: Frames, ends: Ends) -> pa.RecordBatch:
        """Rows of `amqp091_frames`."""
        rows = frames.rows
        columns = self._leading(
            ends, rows[ly.R_NO], rows[ly.R_CAPTURE], rows[ly.R_PACKET], rows[ly.R_TS],
            rows[ly.R_FIRST_CAPTURE], rows[ly.R_FIRST_PACKET], rows[ly.R_FIRST_TS],
        )  # fmt: skip
        columns |= {
            "channel": _int32(rows[ly.R_CHANNEL]),
            "channel_epoch": _int32(rows[ly.R_EPOCH]),
            "frame_type": self.frame_types.column(rows[ly.R_TYPE], self.compiled),
            "method": self.methods.column(rows[ly.R_METHOD], self.compiled),
            "size": _int32(rows[ly.R_SIZE]),
            "is_partial": array(rows[ly.R_MISSING] > 0),
            "missing": array(rows[ly.R_MISSING]),
        }
        return record_batch(schema("amqp091_frames", self.protocol), columns | frames.fields.columns)

    def stream_frames(self, frames: StreamFrames, ends: Ends) -> pa.RecordBatch:
        """Rows of `stream_frames`."""
        rows = frames.rows
        columns = self._stream_leading(rows, ends)
        layout = rows[sl.R_LAYOUT]
        answers = np.where(layout >= 0, self.answers[layout], rows[sl.R_KEY] & sl.RESPONSE != 0)
        columns |= {
            "command": self.commands.take(array(layout, mask=layout < 0)),
            "version": _int32(rows[sl.R_VERSION]),
            "is_response": array(answers),
            "size": _int32(rows[sl.R_SIZE]),
            "is_partial": array(rows[sl.R_MISSING] > 0),
            "missing": array(rows[sl.R_MISSING]),
        }
        return record_batch(schema("stream_frames"), columns | frames.fields.columns)

    def stream_messages(self, messages: StreamMessages, own: dict[str, pa.Array], ends: Ends) -> pa.RecordBatch:
        """Rows of `messages` for records of streams; `own` are the columns that these themselves tell."""
        rows, counts = messages.rows, messages.counts
        captures = {"capture": rows[sl.R_CAPTURE], "first_capture": rows[sl.R_FIRST_CAPTURE]}
        leading = {name: column for name, column in self._stream_leading(rows, ends).items() if name not in captures}
        columns = spread(leading | messages.shared, counts, self.compiled) | own
        columns |= {name: self._capture(index, counts) for name, index in captures.items()}
        if "chunk_id" in columns:
            offset = numbers(columns["chunk_id"]) + messages.ordinal
            columns["offset"] = array(offset, mask=~valid(columns["chunk_id"]))
        columns |= {"first_frame_no": columns["frame_no"], "protocol": _same(STREAM, int(counts.sum()))}
        if not self.show_hashes:
            del columns["body_hash"]
        return record_batch(schema("messages"), columns)

    def _stream_leading(self, rows: Ints, ends: Ends) -> dict[str, pa.Array]:
        return self._leading(
            ends, rows[sl.R_NO], rows[sl.R_CAPTURE], rows[sl.R_PACKET], rows[sl.R_TS],
            rows[sl.R_FIRST_CAPTURE], rows[sl.R_FIRST_PACKET], rows[sl.R_FIRST_TS],
        )  # fmt: skip

    def messages(self, messages: Messages, arguments: Decoded, properties: Decoded, ends: Ends) -> pa.RecordBatch:
        """Rows of `messages`."""
        rows = messages.rows
        n = rows.shape[1]
        columns = self._leading(
            ends, rows[ly.G_NO], rows[ly.G_CAPTURE], rows[ly.G_PACKET], rows[ly.G_TS],
            rows[ly.G_FIRST_CAPTURE], rows[ly.G_FIRST_PACKET], rows[ly.G_FIRST_TS],
        )  # fmt: skip
        columns |= {
            "first_frame_no": array(rows[ly.G_FIRST_NO]),
            "protocol": _same("amqp-0-9-1", n),
            "kind": self.kinds.column(rows[ly.G_KIND], self.compiled),
            "channel": _int32(rows[ly.G_CHANNEL]),
            "channel_epoch": _int32(rows[ly.G_EPOCH]),
            "no_ack": array(rows[ly.G_NO_ACK] == 1, mask=rows[ly.G_NO_ACK] < 0),
            "publish_seq": array(rows[ly.G_SEQ], mask=rows[ly.G_SEQ] < 0),
            "publish_seq_unsure": array(
                (rows[ly.G_SEQ] == -2) | (rows[ly.G_EPOCH] == 0), mask=rows[ly.G_KIND] != ly.PUBLISH
            ),
            "body_size": array(rows[ly.G_SIZE], mask=rows[ly.G_SIZE] < 0),
            "body_hash": array(messages.hashes.view(np.int64), mask=(rows[ly.G_HASH] == 0) | (not self.show_hashes)),
            "is_partial": array(rows[ly.G_PARTIAL] > 0),
            "unfinished": array(rows[ly.G_PARTIAL] == ly.UNFINISHED),
            "missing": array(rows[ly.G_MISSING]),
        }
        if messages.bodies is not None:
            columns["body"] = array(messages.bodies, pa.binary())
        columns |= arguments.columns | properties.columns
        return record_batch(schema("messages"), columns)

    def faults(self, faults: Faults | StreamFaults, ends: Ends) -> pa.RecordBatch:
        """Rows of `anomalies` for what framing and contents had."""
        rows = faults.rows
        names = sl.FAULTS if isinstance(faults, StreamFaults) else ly.FAULTS
        codes = [names[code] for code in rows[framing.Y_CODE].tolist()]
        details = [self._detail(code, value) for code, value in zip(codes, rows[framing.Y_VALUE].tolist(), strict=True)]
        leading = self._leading(
            ends, rows[framing.Y_NO], rows[framing.Y_CAPTURE], rows[framing.Y_PACKET],
            rows[framing.Y_TS], rows[framing.Y_FIRST_CAPTURE], rows[framing.Y_FIRST_PACKET], rows[framing.Y_FIRST_TS],
        )  # fmt: skip
        channel = array(rows[framing.Y_CHANNEL], pa.int32(), mask=rows[framing.Y_CHANNEL] < 0)
        offset = array(rows[framing.Y_POS], mask=rows[framing.Y_POS] < 0)
        return self._anomalies(codes, details, channel, offset, leading)

    def tcp_faults(self, rows: Ints, ends: Ends) -> pa.RecordBatch:
        """Rows of `anomalies` for what segments had."""
        codes = [TCP_FAULTS[code] for code in rows[TcpFault.CODE].tolist()]
        details = [self._detail(code, value) for code, value in zip(codes, rows[TcpFault.VALUE].tolist(), strict=True)]
        number = np.full(len(codes), -1, np.int64)
        where = rows[TcpFault.CAPTURE], rows[TcpFault.PACKET], rows[TcpFault.TS]
        offset = array(rows[TcpFault.POS], mask=rows[TcpFault.POS] < 0)
        leading = self._leading(ends, number, *where, *where)
        return self._anomalies(codes, details, nulls(len(codes), "int32"), offset, leading)

    def tls_faults(self, faults: Sequence[Fault], ends: Ends) -> pa.RecordBatch:
        """Rows of `anomalies` for what TLS had."""
        packet, ts, capture = np.array([fault.at for fault in faults], np.int64).T
        leading = self._leading(ends, np.full(len(faults), -1), capture, packet, ts, capture, packet, ts)
        codes, details = [fault.code for fault in faults], [fault.told for fault in faults]
        return self._anomalies(codes, details, nulls(len(codes), "int32"), nulls(len(codes), "int64"), leading)

    def connections(self, rows: pa.RecordBatch) -> pa.RecordBatch | None:
        """Rows of `anomalies` for connections of which nothing is decoded, by their rows of `connections`."""
        made = []
        first = [f"first_{name}" for name in ("capture", "packet", "ts_ns")]
        outcomes = rows["handshake_outcome"].to_pylist()
        for n, (protocol, outcome) in enumerate(zip(rows["protocol"].to_pylist(), outcomes, strict=True)):
            octets = rows["bytes"][n].as_py() if protocol == "unknown" else 0
            if outcome in MISMATCHES:
                code, detail = "version-mismatch", rows["handshake_cause"][n].as_py()
            elif octets:
                code, detail = "stream-unrecognised", f"{octets:,} octets"
            else:
                continue
            row = {name: rows[name][n].as_py() for name in ("connection_id", *first)}
            row |= {name.removeprefix("first_"): row[name] for name in first}
            row |= {"code": code, "severity": self.severities[code], "detail": detail, "ts": row["ts_ns"] // 1000}
            made.append(row)
        target = schema("anomalies")
        return record_batch(target, of_rows(made, target)) if made else None

    def windows(self, rows: Ints, ends: Ends) -> pa.RecordBatch:
        """Rows of `tcp_windows`."""
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
        }
        return record_batch(schema("tcp_windows"), columns)

    def problems(self, batch: pa.RecordBatch, decoded: Decoded) -> pa.RecordBatch | None:
        """Rows of `anomalies` for the fields of the rows of another batch; None when there were none."""
        if not len(decoded.problem_row):
            return None
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

    def _detail(self, code: str, value: int) -> str:
        if code == "method-unknown":
            return f"class {value >> 16}, method {value & 0xFFFF}"
        if code == "command-unknown":
            return f"key 0x{value >> 16:04x}, version {value & 0xFFFF}"
        if code == "integer-too-large" and not value:
            return "a publishing id"
        return DETAILS.get(code, "in {records}").format(
            value=value, **{several: f"{value} {several[: len(several) - (value == 1)]}" for several in COUNTED}
        )

    def _anomalies(
        self, codes: list[str], details: list[str], channel: pa.Array, offset: pa.Array, leading: dict[str, pa.Array]
    ) -> pa.RecordBatch:
        columns = leading | {
            "code": array(codes, pa.string()),
            "severity": array([self.severities[code] for code in codes], pa.string()),
            "channel": channel,
            "offset": offset,
            "detail": array(details, pa.string()),
        }
        return record_batch(schema("anomalies"), columns)

    def _leading(
        self, ends: Ends, number: Ints, capture: Ints, packet: Ints, ts: Ints,
        first_capture: Ints, first_packet: Ints, first_ts: Ints,
    ) -> dict[str, pa.Array]:  # fmt: skip
        return {
            "connection_id": array(ends.connection_id),
            "frame_no": array(number, mask=number < 0),
            "capture": self._capture(capture),
            "packet": array(packet),
            "ts_ns": array(ts),
            "ts": _time(ts),
            "first_capture": self._capture(first_capture),
            "first_packet": array(first_packet),
            "first_ts_ns": array(first_ts),
            "from_client": array(ends.from_client),
        }

    def _capture(self, index: Ints, counts: Ints | None = None) -> pa.Array:
        """Names of captures, each as often as `counts` says."""
        if len(index) and (index == index[0]).all():
            return _same(self.captures[int(index[0])], len(index) if counts is None else int(counts.sum()))
        return array(self.captures, pa.string()).take(array(index if counts is None else np.repeat(index, counts)))


def record_batch(target: pa.Schema, columns: Mapping[str, pa.Array]) -> pa.RecordBatch:
    """The columns in the schema's order; those that are not given are null."""
    n = len(next(iter(columns.values())))
    arrays = [columns[field.name] if field.name in columns else nulls(n, field.type) for field in target]
    return pa.RecordBatch.from_arrays(arrays, schema=target)


def _int32(values: Ints) -> pa.Array:
    return array(values.astype(np.int32))


def _time(ns: Ints) -> pa.Array:
    return array(ns // 1000).view(TYPES["timestamp"])


def _same(text: str, n: int) -> pa.Array:
    """A column with the same text in every row; shares memory with others."""
    return _repeated(text, 1 << max(n - 1, 0).bit_length()).slice(0, n)


@lru_cache(4)
def _repeated(text: str, n: int) -> pa.Array:
    octets = text.encode()
    offsets = np.arange(n + 1, dtype=np.int32) * len(octets)
    return pa.Array.from_buffers(pa.string(), n, [None, pa.py_buffer(offsets), pa.py_buffer(octets * n)])


Row = tuple[str, pa.RecordBatch]
"""A table's name and some rows of it."""
Work = Callable[[], list[Row]]
"""Rows still to be made. It touches no state but its own."""
