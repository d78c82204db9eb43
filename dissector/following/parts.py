"""A directory that is followed in parts: one process reads and merges captures, others dissect some of the flows each.

Files come in the order in which they are written, and to read them takes a small part of the time of a dissection. So
one process does that for all, and all that depends on several connections or files is decided as in a dissection of one
process. What it passes on lies in a file for each part: segments, secrets, and when to look for idle connections.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from amqpscope.dissector.capture.model import PacketBatch
from amqpscope.dissector.dissector import Options
from amqpscope.dissector.following.dissection import IdleDissector
from amqpscope.dissector.packets.merging import Decoded
from amqpscope.dissector.parallel import flows
from amqpscope.dissector.tables.rows import Work

SCHEMA = pa.schema([("segments", pa.binary()), ("secrets", pa.binary()), ("idle", pa.list_(pa.int64()))])
"""What a part takes one after the other, one of: segments (a stream of Arrow, `flows.SCHEMA`), a TLS key log, the
arguments of `IdleDissector.evict_idle`."""
Idle = tuple[int, tuple[int, int, int]]


class Cutter(IdleDissector):
    """Reads packets for other dissectors.

    Attributes:
        taken: what it took for them, since the caller emptied the list.
    """

    def __init__(self, options: Options, compiled: bool) -> None:
        super().__init__(options, compiled)
        self.taken: list[Decoded | bytes | Idle] = []

    def decode(self, batch: PacketBatch) -> Decoded:
        """Do as a dissector; what is wrong with secrets is reported here, and by none of the others."""
        self.taken += batch.secrets
        return super().decode(batch)

    def take(self, decoded: Decoded) -> Iterator[Work]:
        """Take segments."""
        self.end_ns = max(self.end_ns, int(decoded.segments.ts_ns.max(initial=0)))
        self.taken.append(decoded)
        return iter(())

    def evict_idle(self, since_ns: int, segment: tuple[int, int, int]) -> Iterator[Work]:
        """Have the others evict connections."""
        self.taken.append((since_ns, segment))
        return iter(())

    def last_work(self, end_ns: int | None = None) -> Iterator[Work]:
        """Do nothing: there are no connections here."""
        return iter(())


class Files:
    """The files of all parts.

    Args:
        paths: of the files.
        compiled: whether kernels run compiled.
    """

    def __init__(self, paths: Sequence[Path], compiled: bool) -> None:
        self._compiled = compiled
        self._writers = [pa.ipc.new_stream(str(path), SCHEMA) for path in paths]

    def write(self, found: Decoded | bytes | Idle) -> None:
        """Write what a `Cutter` took: segments to the file of their part, anything else to all files."""
        if isinstance(found, Decoded):
            parts = flows.split(found, len(self._writers), self._compiled)
            for writer, rows in zip(self._writers, parts, strict=True):
                if rows.num_rows:
                    _put(writer, segments=flows.written([rows], "lz4"))
            return
        for writer in self._writers:
            if isinstance(found, bytes):
                _put(writer, secrets=found)
            else:
                _put(writer, idle=[found[0], *found[1]])

    def close(self) -> None:
        """Complete the files."""
        for writer in self._writers:
            writer.close()


def _put(writer: pa.RecordBatchWriter, **what: object) -> None:
    writer.write_batch(pa.RecordBatch.from_pylist([what], SCHEMA))


class Sequel(NamedTuple):
    """What the dissectors of all parts know of a batch.

    Attributes:
        captures: names of the captures, by index.
        points: for each, the index of the first one of the same capture point.
        options: of the dissection.
        compiled: whether kernels run compiled.
        end_ns: end of the captures, up to which waits are measured, if no further ones come; else None.
    """

    captures: list[str]
    points: list[int]
    options: Options
    compiled: bool
    end_ns: int | None

    def dissector(self, state: bytes | None) -> IdleDissector:
        """Return the dissector of a part; `state` is what it returned in the batch before."""
        dissector = IdleDissector(self.options, self.compiled)
        dissector.captures += self.captures
        dissector.points += self.points
        dissector.tcp.place(self.points)
        if state is not None:
            dissector.put_back(state)
        return dissector

    def work(self, dissector: IdleDissector, file: Path) -> Iterator[Work | None]:
        """Yield functions that make the rows of a part; None where all rows of the packets so far are made."""
        with pa.OSFile(str(file)) as source, pa.ipc.open_stream(source) as stream:
            for rows in stream:
                segments, secrets, idle = (column[0].as_py() for column in rows.columns)
                if segments is not None:
                    yield from dissector.take(flows.joined(list(pa.ipc.open_stream(segments))))
                elif secrets is not None:
                    dissector.tls.add(secrets, 0)
                    dissector.tls.problems.clear()  # the reader of the captures reports them
                else:
                    yield from dissector.evict_idle(idle[0], (idle[1], idle[2], idle[3]))
                yield from dissector.reported()
                yield None
        if self.end_ns is not None:
            yield from dissector.last_work(self.end_ns)
            yield from dissector.reported()
