"""RabbitMQ streams: what rows of `stream_frames` and `messages` have besides the leading columns."""

from functools import partial

import numpy as np
import pyarrow as pa

from amqpscope.dissector.fields.arrow import array, numbers, valid
from amqpscope.dissector.fields.columns import repeated, spread
from amqpscope.dissector.fields.decoding import Decoded
from amqpscope.dissector.kernels.arrays import Ints
from amqpscope.dissector.protocols.registry import Context
from amqpscope.dissector.protocols.rows import Columns, Faults, Made, asking, ends
from amqpscope.dissector.protocols.stream import layout as sl
from amqpscope.dissector.protocols.stream.messages import StreamMessages, faults_of
from amqpscope.dissector.protocols.stream.state import FAULTS, Frame
from amqpscope.spec.model import Protocol


class RowMaker:
    """Makes the columns of frames and messages. It touches no state: any thread may do it."""

    def __init__(self, protocol: Protocol, context: Context) -> None:
        self.compiled = context.compiled
        self.asks = asking(protocol, "publish")
        self.show_hashes = context.bodies != "none"
        self.commands = array([m.name for m in protocol.methods], pa.string())
        self.answers = np.array([m.class_id == 1 for m in protocol.methods], np.bool_)

    def frames(self, rows: Ints, fields: Decoded) -> Made:
        """Return rows of `stream_frames`: `rows` is (Frame, n), `fields` those of the commands."""
        after = ends(rows, rows[Frame.POS] + rows[Frame.SIZE], self.asks[rows[Frame.LAYOUT]])
        return Made("stream_frames", rows, partial(self._frames, rows, fields), ends=after)

    def messages(self, messages: StreamMessages) -> Made:
        """Return rows of `messages`."""
        return Made("messages", messages.rows, partial(self._messages, messages), messages.counts)

    def _frames(self, rows: Ints, fields: Decoded) -> Columns:
        layout = rows[Frame.LAYOUT]
        answers = np.where(layout >= 0, self.answers[layout], rows[Frame.TYPE] & sl.RESPONSE != 0)
        columns = {
            "command": self.commands.take(array(layout, mask=layout < 0)),
            "version": array(rows[Frame.VERSION].astype(np.int32)),
            "is_response": array(answers),
            "size": array(rows[Frame.SIZE].astype(np.int32)),
            "is_partial": array(rows[Frame.MISSING] > 0),
            "missing": array(rows[Frame.MISSING]),
        }
        return Columns(columns | fields.columns, fields)

    def _messages(self, messages: StreamMessages) -> Columns:
        counts = messages.counts
        own, wrong = messages.unread.columns()
        columns = spread(messages.shared, counts, self.compiled) | own
        if "chunk_id" in columns:
            offset = numbers(columns["chunk_id"]) + messages.ordinal
            columns["offset"] = array(offset, mask=~valid(columns["chunk_id"]))
        columns["first_frame_no"] = array(np.repeat(messages.rows[Frame.NUMBER], counts))
        columns["protocol"] = repeated(sl.NAME, int(counts.sum()))
        if not self.show_hashes:
            del columns["body_hash"]
        return Columns(columns, faults=Faults(faults_of(messages.rows, wrong), FAULTS) if wrong else None)
