"""AMQP 0-10: what rows of `amqp010_frames` and `messages` have besides the leading columns."""

from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from amqpscope.dissector.fields.arrow import array, numbers, valid
from amqpscope.dissector.fields.columns import Names, repeated
from amqpscope.dissector.fields.decoding import Decoded, decode
from amqpscope.dissector.fields.headers import Headers
from amqpscope.dissector.fields.plan import Plan
from amqpscope.dissector.kernels.arrays import Bytes, Ints
from amqpscope.dissector.protocols.amqp010 import layout as ly
from amqpscope.dissector.protocols.amqp010.state import Frame, Message
from amqpscope.dissector.protocols.bodies import CUT_BY, CUT_BY_SENDER, UNFINISHED
from amqpscope.dissector.protocols.registry import Context
from amqpscope.dissector.protocols.rows import Columns, Made, asking, ends
from amqpscope.spec import tables
from amqpscope.spec.model import Protocol

SEGMENT_TYPES = {ly.CONTROL: "control", ly.COMMAND: "command", ly.HEADER: "header", ly.BODY: "body"}
KINDS = ("publish", "deliver", "return")
PUBLISH, DELIVER, RETURN = range(len(KINDS))
NO_ACK = 1
"""Accept mode in which a delivery counts as accepted once sent; absent it is 0."""
MODES = ("accept_mode", "acquire_mode")
OWN_ARGUMENTS = ("destination", *MODES)
ARGUMENTS = (
    "exchange", "routing_key", "consumer_tag", "redelivered", "mandatory", "reply_code", "reply_text",
)  # fmt: skip
"""Arguments of commands with content that rows of messages repeat; message.transfer has the others."""


TTL, EXPIRES = "ttl", "expiration_datetime"
"""Properties that have other names in the table of messages."""
FIRST_MS = 100_000_000_000
"""Times from here on are milliseconds: as seconds they would be of the year 5138."""


class Messages(NamedTuple):
    """Some messages: `rows` is (Message, n), the others (n,). Their fields still lie in `data`."""

    rows: Ints
    hashes: NDArray[np.uint64]
    data: Bytes
    bodies: list[bytes | None] | None
    session: pa.Array
    epoch: Ints
    command: Ints
    from_client: NDArray[np.bool_]


class RowMaker:
    """Makes the columns of frames and messages. It touches no state: any thread may do it."""

    def __init__(self, protocol: Protocol, context: Context) -> None:
        self.compiled = context.compiled
        self.asks = asking(protocol)
        self.show_hashes = context.bodies != "none"
        self.methods = Names([m.full_name for m in protocol.methods])
        self.segment_types = Names([SEGMENT_TYPES.get(k, "") for k in range(max(SEGMENT_TYPES) + 1)])
        self.kinds = Names(list(KINDS))
        self.returns = np.array([m.name == "return" for m in protocol.methods])
        self.transfers = np.array([m.full_name == "message.transfer" for m in protocol.methods])
        wanted = [column.name for column in tables()["messages"].columns]
        self.arguments = Plan.of_methods(protocol, only=OWN_ARGUMENTS + ARGUMENTS)
        self.headers = Headers.of(protocol, (*wanted, TTL, EXPIRES))

    def frames(self, rows: Ints, fields: Decoded, session: pa.Array) -> Made:
        """Return rows of `amqp010_frames`: `rows` is (Frame, n), `fields` the arguments of operations completed."""
        is_awaited = (rows[Frame.TYPE] != ly.CONTROL) | self.asks[rows[Frame.METHOD]]
        after = ends(rows, rows[Frame.POS] + rows[Frame.SIZE], is_awaited)
        return Made("amqp010_frames", rows, partial(self._frames, rows, fields, session), ends=after)

    def messages(self, messages: Messages) -> Made:
        """Return rows of `messages`."""
        return Made("messages", messages.rows, partial(self._messages, messages))

    def _frames(self, rows: Ints, fields: Decoded, session: pa.Array) -> Columns:
        headless = rows[Frame.TYPE] == ly.PROTOCOL_HEADER
        columns = {
            "channel": array(rows[Frame.CHANNEL].astype(np.int32), mask=headless),
            "channel_epoch": array(rows[Frame.EPOCH].astype(np.int32), mask=headless),
            "track": array(rows[Frame.TRACK].astype(np.int32), mask=headless),
            "segment_type": self.segment_types.column(np.where(headless, -1, rows[Frame.TYPE]), self.compiled),
            "method": self.methods.column(rows[Frame.METHOD], self.compiled),
            "size": array(rows[Frame.SIZE].astype(np.int32)),
            "is_partial": array(rows[Frame.MISSING] > 0),
            "missing": array(rows[Frame.MISSING]),
            "session": session,
            "command_id": array(rows[Frame.COMMAND], mask=rows[Frame.COMMAND] < 0),
        }
        return Columns(columns | fields.columns, fields)

    def _messages(self, messages: Messages) -> Columns:
        rows, client, command = messages.rows, messages.from_client, messages.command
        kind = np.where(self.returns[rows[Message.METHOD]], RETURN, np.where(client, PUBLISH, DELIVER))
        publishes, delivers = kind == PUBLISH, kind == DELIVER
        arguments, properties = self._decoded(messages)
        held = {name: pc.coalesce(arguments[name], properties.columns.get(name, arguments[name])) for name in ARGUMENTS}
        destination, mode = arguments["destination"], arguments["accept_mode"]
        sure = self.transfers[rows[Message.METHOD]] & (rows[Message.CUT] == 0)
        # absent, it is empty: the default exchange
        exchange = pc.if_else(array(publishes & (rows[Message.CUT] == 0)), destination.fill_null(""), destination)
        columns = {
            "exchange": pc.if_else(array(publishes), pc.coalesce(arguments["exchange"], exchange), held["exchange"]),
            "consumer_tag": pc.if_else(array(delivers), pc.coalesce(held["consumer_tag"], destination), None),
            "first_frame_no": array(rows[Message.FIRST_NUMBER]),
            "protocol": repeated(ly.NAME, rows.shape[1]),
            "kind": self.kinds.column(kind, self.compiled),
            "channel": array(rows[Message.CHANNEL].astype(np.int32)),
            "channel_epoch": array(messages.epoch.astype(np.int32)),
            "no_ack": array(numbers(mode) == NO_ACK, mask=~delivers | ((rows[Message.CUT] > 0) & ~valid(mode))),
            "publish_seq": array(command, mask=~publishes | (command < 0)),
            "delivery_tag": array(command, mask=~delivers | (command < 0)),
            "body_size": array(rows[Message.SIZE], mask=rows[Message.SIZE] < 0),
            "body_hash": array(messages.hashes.view(np.int64), mask=(rows[Message.HASH] == 0) | (not self.show_hashes)),
            "is_partial": array(rows[Message.PARTIAL] > 0),
            "unfinished": array(rows[Message.PARTIAL] >= UNFINISHED),
            "cut_by": CUT_BY.column(rows[Message.PARTIAL] - CUT_BY_SENDER, self.compiled),
            "missing": array(rows[Message.MISSING]),
            "session": messages.session,
            "expiration": properties.columns[TTL].cast(pa.string()),
            "expiry_ts_ms": _milliseconds(properties.columns[EXPIRES]),
            "timestamp": _seconds(properties.columns["timestamp"]),
            **{name: _absent_is_0(arguments[name], sure) for name in MODES},
        }
        if messages.bodies is not None:
            columns["body"] = array(messages.bodies, pa.binary())
        return Columns(properties.columns | held | columns, properties)

    def _decoded(self, messages: Messages) -> tuple[dict[str, pa.Array], Decoded]:
        """Return the arguments that message rows repeat, and the properties in their headers."""
        rows, data = messages.rows, messages.data
        arguments = decode(
            self.arguments, data, rows[Message.AT] + ly.IDS_BYTES, rows[Message.BYTES] - ly.IDS_BYTES,
            rows[Message.METHOD], rows[Message.CUT].astype(np.uint8), self.compiled,
        )  # fmt: skip
        there = rows[Message.HEADER_AT] >= 0
        properties = self.headers.decode(
            data, np.where(there, rows[Message.HEADER_AT], 0), np.where(there, rows[Message.HEADER_BYTES], 0),
            (rows[Message.HEADER_CUT] > 0).astype(np.uint8), self.compiled,
        )  # fmt: skip
        return arguments.columns, properties


def _seconds(times: pa.Array) -> pa.Array:
    """Return times since 1970 in seconds; Qpid's Java client states milliseconds where seconds are meant."""
    stated = numbers(times)
    return array(np.where(stated < FIRST_MS, stated, stated // 1000), mask=~valid(times))


def _milliseconds(times: pa.Array) -> pa.Array:
    """Return the same in milliseconds."""
    stated = numbers(times)
    return array(np.where(stated < FIRST_MS, stated * 1000, stated), mask=~valid(times))


def _absent_is_0(values: pa.Array, sure: NDArray[np.bool_]) -> pa.Array:
    """Values of an enumeration: where it is sure that a field is absent, it has the value 0."""
    return array(numbers(values).astype(np.int32), mask=~valid(values) & ~sure)
