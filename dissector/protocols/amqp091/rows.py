"""AMQP 0-9-1: what rows of `amqp091_frames` and `messages` have besides the leading columns."""

import functools
import json
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from amqpscope.dissector.fields.arrow import array, picked, valid
from amqpscope.dissector.fields.columns import Names, repeated
from amqpscope.dissector.fields.decoding import Decoded, decode
from amqpscope.dissector.fields.plan import Plan
from amqpscope.dissector.kernels.arrays import Bytes, Ints
from amqpscope.dissector.protocols import registry
from amqpscope.dissector.protocols.amqp091 import layout as ly
from amqpscope.dissector.protocols.amqp091.state import Frame, Message
from amqpscope.dissector.protocols.bodies import CUT_BY, CUT_BY_SENDER, UNFINISHED
from amqpscope.dissector.protocols.rows import Columns, Made, asking, ends
from amqpscope.spec.model import Protocol

HEADER_BYTES = 12
"""Class, weight and body size, before the property flags."""
MESSAGE_ARGUMENTS = (
    "exchange", "routing_key", "consumer_tag", "delivery_tag", "redelivered", "mandatory", "reply_code", "reply_text",
)  # fmt: skip
"""Arguments of the method that a message row repeats."""
JSON_TYPES = ("table", "rfc1982-long-set")
"""Types whose values are JSON text in their columns."""
FRAME_TYPES = {
    ly.METHOD: "method", ly.HEADER: "header", ly.BODY: "body", ly.HEARTBEAT: "heartbeat",
    ly.PROTOCOL_HEADER: "protocol-header",
}  # fmt: skip


class Messages(NamedTuple):
    """Some messages: `rows` is (Message, n), `hashes` (n,) uint64. Their fields still lie in `data`."""

    rows: Ints
    hashes: NDArray[np.uint64]
    data: Bytes
    bodies: list[bytes | None] | None


class RowMaker:
    """Makes the columns of frames and messages. It touches no state: any thread may do it."""

    @classmethod
    @functools.lru_cache(maxsize=32)
    def of(cls, protocol: Protocol, own: Protocol, version: str, compiled: bool, bodies: str) -> "RowMaker":
        """Return one that all dissectors share; `own` is the specification whose arguments have columns."""
        return cls(protocol, own, version, compiled, bodies)

    def __init__(self, protocol: Protocol, own: Protocol, version: str, compiled: bool, bodies: str) -> None:
        self.compiled = compiled
        self.protocol = registry.shown_name(version)
        self.show_hashes = bodies != "none"
        self.methods = Names([m.full_name for m in protocol.methods])
        self.asks = asking(protocol)
        self.frame_types = Names([FRAME_TYPES.get(k, "") for k in range(max(FRAME_TYPES) + 1)])
        self.kinds = Names([ly.KINDS.get(k, "") for k in range(max(ly.KINDS) + 1)])
        self.arguments = Plan.of_methods(protocol, only=MESSAGE_ARGUMENTS)
        columns = own.method_columns()
        fields = {f.column: f for f in protocol.arguments() if f.column not in columns}
        self.others = {name: f.type in JSON_TYPES for name, f in fields.items() if name}
        contents = sorted(protocol.classes, key=lambda k: k.name != "basic")
        contents = [k for k in contents if k.name == "basic" or any(m.content for m in k.methods)]
        self.properties = Plan.of_properties(*contents)
        self.contents = np.array([k.id for k in contents], np.int64)
        names = [k.name for k in contents]
        self.content_of = np.array([names.index(m.class_name) if m.content else -1 for m in protocol.methods], np.int64)

    def frames(self, rows: Ints, fields: Decoded) -> Made:
        """Return rows of `amqp091_frames`: `rows` is (Frame, n), `fields` the methods' arguments."""
        is_content = (rows[Frame.TYPE] == ly.HEADER) | (rows[Frame.TYPE] == ly.BODY)
        after = ends(rows, rows[Frame.POS] + rows[Frame.SIZE], is_content | self.asks[rows[Frame.METHOD]])
        return Made("amqp091_frames", rows, partial(self._frames, rows, fields), ends=after)

    def messages(self, messages: Messages) -> Made:
        """Return rows of `messages`."""
        return Made("messages", messages.rows, partial(self._messages, messages))

    def _frames(self, rows: Ints, fields: Decoded) -> Columns:
        columns = {
            "channel": array(rows[Frame.CHANNEL].astype(np.int32)),
            "channel_epoch": array(rows[Frame.EPOCH].astype(np.int32)),
            "frame_type": self.frame_types.column(rows[Frame.TYPE], self.compiled),
            "method": self.methods.column(rows[Frame.METHOD], self.compiled),
            "size": array(rows[Frame.SIZE].astype(np.int32)),
            "is_partial": array(rows[Frame.MISSING] > 0),
            "missing": array(rows[Frame.MISSING]),
        }
        if self.others:
            columns["other_arguments"] = self._others(fields)
        return Columns(columns | fields.columns, fields)

    def _others(self, fields: Decoded) -> pa.Array:
        """Return the arguments that have no columns as JSON text; null where there are none."""
        there = {name: valid(fields.columns[name]) for name in self.others}
        index = np.flatnonzero(np.any(list(there.values()), axis=0))
        members: list[list[str]] = [[] for _ in index]
        for name, is_json in self.others.items():
            for held, value in zip(members, picked(fields.columns[name], index), strict=True):
                if value is not None:
                    held.append(f'"{name}":{value if is_json else json.dumps(value, ensure_ascii=False)}')
        texts: list[str | None] = [None] * len(fields.columns[name])
        for place, held in zip(index.tolist(), members, strict=True):
            texts[place] = "{" + ",".join(held) + "}"
        return array(texts, pa.string())

    def _messages(self, messages: Messages) -> Columns:
        rows = messages.rows
        arguments, properties = self._decoded(messages)
        columns = {
            "first_frame_no": array(rows[Message.FIRST_NUMBER]),
            "protocol": repeated(self.protocol, rows.shape[1]),
            "kind": self.kinds.column(rows[Message.KIND], self.compiled),
            "channel": array(rows[Message.CHANNEL].astype(np.int32)),
            "channel_epoch": array(rows[Message.EPOCH].astype(np.int32)),
            "no_ack": array(rows[Message.NO_ACK] == 1, mask=rows[Message.NO_ACK] < 0),
            "publish_seq": array(rows[Message.SEQ], mask=rows[Message.SEQ] < 0),
            "publish_seq_unsure": array(
                (rows[Message.SEQ] == -2) | (rows[Message.EPOCH] == 0), mask=rows[Message.KIND] != ly.PUBLISH
            ),
            "body_size": array(rows[Message.SIZE], mask=rows[Message.SIZE] < 0),
            "body_hash": array(messages.hashes.view(np.int64), mask=(rows[Message.HASH] == 0) | (not self.show_hashes)),
            "is_partial": array(rows[Message.PARTIAL] > 0),
            "unfinished": array(rows[Message.PARTIAL] >= UNFINISHED),
            "cut_by": CUT_BY.column(rows[Message.PARTIAL] - CUT_BY_SENDER, self.compiled),
            "missing": array(rows[Message.MISSING]),
        }
        if messages.bodies is not None:
            columns["body"] = array(messages.bodies, pa.binary())
        return Columns(columns | arguments.columns | properties.columns, properties)

    def _decoded(self, messages: Messages) -> tuple[Decoded, Decoded]:
        """Return the arguments that message rows repeat, and the properties."""
        rows, data = messages.rows, messages.data
        at, size = rows[Message.METHOD_OFFSET] + ly.IDS_BYTES, rows[Message.METHOD_LENGTH] - ly.IDS_BYTES
        cut = (rows[Message.PARTIAL] > 0).astype(np.uint8)
        arguments = decode(self.arguments, data, at, size, rows[Message.METHOD], cut, self.compiled)
        offset, length = rows[Message.HEADER_OFFSET], rows[Message.HEADER_LENGTH]
        there = (offset >= 0) & (length >= HEADER_BYTES)
        programs = np.where(there, self.content_of[rows[Message.METHOD]], -1)
        properties = decode(
            self.properties, data, offset + HEADER_BYTES, length - HEADER_BYTES, programs,
            (rows[Message.HEADER_CUT] > 0).astype(np.uint8), self.compiled,
        )  # fmt: skip
        return arguments, properties
