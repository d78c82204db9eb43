"""A dissection that goes on from batch to batch of captures, with all that it remembers as bytes in between."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from amqpscope.dissector.capture.input import CaptureError, MissingCaptureError
from amqpscope.dissector.capture.sources import Source, reason
from amqpscope.dissector.dissector import Dissector, Options
from amqpscope.dissector.following.folder import SOONEST, Plan
from amqpscope.dissector.kernels import kernel
from amqpscope.dissector.kernels.arrays import Ints
from amqpscope.dissector.kernels.retained import Buffer
from amqpscope.dissector.packets.merging import Capture, Decoded, Merger, cut
from amqpscope.dissector.reading import CapturePass, CaptureSummary, Reports, incomplete, unreadable
from amqpscope.dissector.tables.rows import Work
from amqpscope.dissector.tcp.state import Conn, Facts
from amqpscope.dissector.transfer import opened, sealed

HEAD = b"amqpscope follow 1\n"
HOUR_NS = 3600 * 10**9
LATEST = 1 << 62
"""A time after all others."""
IDLE_HOURS = 24
"""Hours of capture time without a packet after which a connection is evicted; looked at every hour."""
BATCH_BYTES = 6 << 20
"""Bytes of packets that are read at a time."""


class IdleDissector(Dissector):
    """A dissector that evicts idle connections."""

    def evict_idle(self, since_ns: int, segment: tuple[int, int, int]) -> Iterator[Work]:
        """Evict connections without a packet since a time; report it at a segment: its capture, packet and time."""
        flows = self.tcp.flows
        idle = np.flatnonzero((flows.facts[:, Facts.USED] == 1) & (flows.conn[:, Conn.LAST_TS] < since_ns))
        if not len(idle):
            return
        buffer = self.resume(Buffer(np.empty(1 << 16, np.uint8), 0))
        text = f"connections without a packet for {IDLE_HOURS} hours: {len(idle)} evicted"
        yield from self.evict(idle, buffer, segment, text)
        self.retain(buffer)

    @property
    def held_ns(self) -> int:
        """The time of the first bytes that wait for others, so that their rows come later (ns); LATEST without any."""
        return min((since_ns for *_, since_ns in self.held()), default=LATEST)


@dataclass(slots=True)
class Progress:
    """How far a dissection came.

    Attributes:
        taken: when files that were taken were written last (ns since 1970), by name.
        position: time up to which packets were taken (ns).
        held: time of the first packet that waits for other files; None without any.
        files: number of files that were dissected.
        refused: number of files that were not.
        bytes: size of all of them.
    """

    taken: dict[str, int] = field(default_factory=dict)
    position: int = SOONEST
    held: int | None = None
    files: int = 0
    refused: int = 0
    bytes: int = 0

    def written(self) -> list[Any]:
        """Return all as plain values."""
        return [getattr(self, name) for name in self.__slots__]


class Dissection(Reports):
    """One batch of a dissection.

    Args:
        options: of the dissection, the same for all batches.
        state: what `take_out` of the batch before returned; None for the first batch.
        size: bytes of the files of this batch, which decide with those before whether kernels run compiled.
        batch_bytes: bytes of packets that are read at a time.
        make: makes the dissector, of the options and whether kernels run compiled.

    Attributes:
        size: bytes of all files so far, with those of this batch.
        seen: summaries of the captures of this batch so far.
        refused: captures of this batch that were not dissected, or not to their end, with their error.
        progress: how far the dissection came.

    Raises:
        StateError: the state is of another release or of other options.
    """

    dissector: IdleDissector

    def __init__(
        self,
        options: Options,
        state: bytes | None,
        size: int = 0,
        batch_bytes: int = BATCH_BYTES,
        make: Callable[[Options, bool], IdleDissector] = IdleDissector,
    ) -> None:
        inner, waiting, self._hour, known = (None, [], None, []) if state is None else opened(HEAD, state)
        self.progress = Progress(*known)
        self.size = self.progress.bytes + size
        super().__init__(make(options, kernel.worthwhile(self.size)))
        self.seen: list[CaptureSummary] = []
        self.refused: list[Source] = []
        self.batch_bytes = batch_bytes
        self._merger = Merger(self.dissector.points)
        self._waiting: list[Any] = []
        if inner is not None:
            self.dissector.put_back(inner)
            self._merger.put_back(waiting)

    def work(self, plan: Plan, is_last: bool) -> Iterator[Work | None]:
        """Yield functions that make the rows of a batch; None where all rows of the packets so far are made.

        Args:
            plan: the captures.
            is_last: whether there are no further ones, so that connections end.

        Raises:
            MissingCaptureError: a file is gone; the batch is to be made anew, of what is there then.
        """
        self.progress.taken |= plan.written
        for source in plan.sources:
            if source.error:
                self._refuse(source)
            else:
                self._merger.waiting.append(Capture(source.name, source.begin, partial(self._open, source)))
        for decoded, keys in self._merger.segments(plan.until):
            self.dissector.tcp.place(self.dissector.points)
            yield from self._take(decoded, keys)
            yield from self.flush()
            yield None
        self.progress.held = self._merger.first
        self._waiting = self._merger.take_out()
        yield from self.flush()
        if is_last:
            if self.dissector.captures:
                yield partial(incomplete, self.dissector, self.dissector.captures[-1], self.dissector.packets.finish())
            yield from self.dissector.last_work()
            yield from self.flush()

    def take_out(self, is_last: bool) -> bytes:
        """Return the state for the next batch; after the last one, of the captures only which were taken."""
        inner = None if is_last else self.dissector.take_out()
        return sealed(HEAD, [inner, self._waiting, self._hour, self.progress.written()])

    def _open(self, source: Source, index: int, lanes: int) -> Iterator[Decoded]:
        one = CapturePass(self, source, index, self.batch_bytes // lanes)
        self.seen.append(one.summary)
        self.progress.files += 1
        self.progress.bytes += source.size or 0
        return self._read(one, source)

    def _read(self, one: CapturePass, source: Source) -> Iterator[Decoded]:
        try:
            yield from one
        except MissingCaptureError:
            raise
        except CaptureError as error:
            self._refuse(replace(source, error=reason(source, error)))

    def _refuse(self, source: Source) -> None:
        self.progress.refused += 1
        self.refused.append(source)
        self.pending.append(partial(list, [unreadable(source)]))

    def _take(self, decoded: Decoded, keys: Ints) -> Iterator[Work]:
        """Dissect segments; at the first one of each hour, evict connections that are idle."""
        self.progress.position = max(self.progress.position, int(keys[-1]))
        segments, hours, begin = decoded.segments, keys // HOUR_NS, 0
        for at in np.flatnonzero(np.diff(hours, prepend=hours[0] if self._hour is None else self._hour)).tolist():
            if at:
                yield from self.dissector.take(cut(decoded, slice(begin, at)))
            where = int(segments.capture[at]), int(segments.packet[at]), int(segments.ts_ns[at])
            yield from self.dissector.evict_idle((int(hours[at]) - IDLE_HOURS) * HOUR_NS, where)
            begin = at
        self._hour = int(hours[-1])
        yield from self.dissector.take(cut(decoded, slice(begin, None)) if begin else decoded)
