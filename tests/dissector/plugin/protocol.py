"""The gizmo protocol as a plug-in: what dissects it, and what the registry learns of it."""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import numpy as np

from amqpscope.dissector.fields.arrow import array
from amqpscope.dissector.fields.columns import Names
from amqpscope.dissector.fields.decoding import Decoded, decode
from amqpscope.dissector.fields.plan import Plan
from amqpscope.dissector.handshakes.record import PacketRef
from amqpscope.dissector.kernels.arrays import Array, Ints
from amqpscope.dissector.kernels.integers import be16
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.kernels.retained import Buffer
from amqpscope.dissector.protocols.boundaries import lose
from amqpscope.dissector.protocols.emitting import frame_fault
from amqpscope.dissector.protocols.mid_stream_detection import FramesRecogniser
from amqpscope.dissector.protocols.parser import build_parser
from amqpscope.dissector.protocols.registry import Context, ProtocolPlugin
from amqpscope.dissector.protocols.rows import Columns, Faults, Made
from amqpscope.dissector.protocols.stage import FramedStage
from amqpscope.dissector.protocols.state import FAULTS, PAYLOAD, Frame, Parser, ParserState

NONSENSE = len(FAULTS)
HEAD, MAGIC, COMMANDS, PUT, TOOK, STORED, BYE = 4, 0x67, 6, 3, 4, 5, 6


class Own(NamedTuple):
    nothing: Array


OWN = Own(np.zeros(0, np.int64))


@kernel
def next_frame(data: Array, p: int, end: int, trial: Array, own: Own) -> int:
    if data[p] != MAGIC or (end - p > 1 and not 1 <= data[p + 1] <= COMMANDS):
        return -1
    size = HEAD + be16(data, p + 2) if end - p >= HEAD else 0
    return size if p + size <= end else 0


@kernel
def head_bytes(byte: int) -> int:
    return HEAD


@kernel
def begin_payload(walk: ParserState, chunks: Array, i: int, row: int, head: Array, p: int, own: Own) -> None:
    walk.parsers[row, Parser.TYPE] = head[p + 1]
    walk.parsers[row, Parser.SIZE] = be16(head, p + 2)
    walk.parsers[row, Parser.STATE] = PAYLOAD
    if head[p] != MAGIC or not 1 <= head[p + 1] <= COMMANDS:
        frame_fault(walk, chunks, i, row, NONSENSE, head[p])
        lose(walk, row, -1, HEAD)


searching = {"next_frame": next_frame, "USUAL": 64}
walk_chunks = build_parser(searching, head_bytes=head_bytes, begin_payload=begin_payload)


class Gizmo(FramedStage):
    own = OWN

    def __init__(self, context: Context) -> None:
        codes = (*FAULTS, "gizmo-nonsense")
        super().__init__(context, walk_chunks, Frame.room(4096), Frame.room(8), codes, (HEAD, 0))
        protocol = context.specification("gizmo")
        self.plan, self.context = Plan.of_methods(protocol), context
        self.names = [m.full_name for m in protocol.methods]

    def take(self, frames: int, aside: int, buffer: Buffer, facts: Ints) -> Iterator[Made | Faults]:
        rows = self.frames[:, :frames].copy()
        wanted = [Frame.SLOT, Frame.SIDE, Frame.TYPE, Frame.TS, Frame.PACKET, Frame.CAPTURE]
        for slot, side, command, *at in rows[wanted].T.tolist():
            record = self.context.record(slot)
            if command >= PUT:
                record.use(side, PacketRef(*at))
            else:
                record.step(self.names[command - 1], side, PacketRef(*at))
        if not self.context.handshakes:
            offset, length, cut = rows[Frame.OFFSET], rows[Frame.LENGTH], (rows[Frame.MISSING] > 0).astype(np.uint8)
            fields = decode(self.plan, buffer.data, offset, length, rows[Frame.TYPE] - 1, cut, self.compiled)
            yield Made("gizmo_frames", rows, partial(self.columns, rows, fields))

    def columns(self, rows: Ints, fields: Decoded) -> Columns:
        method = Names(self.names).column(rows[Frame.TYPE] - 1, self.compiled)
        return Columns({"method": method, "size": array(rows[Frame.SIZE].astype(np.int32))} | fields.columns, fields)


PROTOCOL = ProtocolPlugin(
    "gizmo",
    headers=(b"g\1",),
    ports=(6767,),
    recogniser=lambda context: FramesRecogniser(context.compiled, next_frame, OWN),
    stage=Gizmo,
    statistics=f"{__package__}.statistics:STATISTICS",
)
