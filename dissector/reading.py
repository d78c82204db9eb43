"""Read captures to record batches: run the `Dissector` over files. `read` is the entry point in Python."""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from amqpscope.dissector.capture.file import CaptureFile
from amqpscope.dissector.capture.input import CaptureError
from amqpscope.dissector.capture.live import Watch
from amqpscope.dissector.capture.model import CaptureInfo, PacketBatch, Problem, Range
from amqpscope.dissector.capture.sources import Source, find, reason, total_size
from amqpscope.dissector.dissector import Dissector, Options
from amqpscope.dissector.fields.arrow import of_rows
from amqpscope.dissector.kernels import kernel
from amqpscope.dissector.packets.merging import Capture, Decoded, merge
from amqpscope.dissector.tables.rows import Row, Work, kinds, record_batch, schemas
from amqpscope.dissector.time_range import When, time_range
from amqpscope.spec.model import Protocol as Specification

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]

LINK_NAMES = {
    0: "null", 1: "ethernet", 9: "ppp", 12: "raw", 14: "raw", 50: "ppp", 51: "pppoe", 101: "raw", 104: "c-hdlc",
    105: "802.11", 108: "loop", 113: "linux-sll", 117: "pflog", 127: "radiotap", 192: "ppi", 219: "mpls", 228: "ipv4",
    229: "ipv6", 239: "nflog", 258: "pktap", 276: "linux-sll2",
}  # fmt: skip
"""Link types by their number in capture files (https://www.tcpdump.org/linktypes.html)."""
LEAST_BATCH = 1 << 18
"""Least size of a batch in bytes, however many captures are read side by side."""
MAX_CLOCK_STEPS = 1000
"""Most anomalies `clock-step` listed per capture."""


@dataclass(slots=True)
class CaptureSummary:
    """A summary of one capture.

    Attributes:
        name: name of the capture.
        info: metadata of its file; complete at the end of the file.
        segments: number of packets with TCP.
        others: number of packets without.
        fragments: number of packets that are fragments of IP packets, those that complete one as well.
        counts: number of packets with a problem, by its code.
    """

    name: str
    info: CaptureInfo
    segments: int = 0
    others: int = 0
    fragments: int = 0
    counts: Counter[str] = field(default_factory=Counter)


class Reports:
    """What is learned of captures and reported beside the rows of connections.

    Attributes:
        dissector: decodes the packets.
        pending: rows about captures that are still to be made.
    """

    def __init__(self, dissector: Dissector) -> None:
        self.dissector = dissector
        self.pending: list[Work] = []

    def note(self, capture: str, problems: list[Problem], times: list[int | None]) -> None:
        """Have rows made about problems of a capture."""
        self.pending.append(partial(self.dissector.tables.problems, capture, problems.copy(), times))

    def conclude(self, summary: CaptureSummary) -> None:
        """Have the row of a capture made."""
        self.pending.append(partial(list, [capture_row(summary)]))
        # There may be thousands of files: the first problem of each kind is kept, for warnings.
        info = summary.info
        info.problems = list({problem.code: problem for problem in reversed(info.problems)}.values())
        info.secrets, info.interfaces = [], []

    def flush(self) -> Iterator[Work]:
        """Yield rows that belong to no connection: limits reached, and problems of captures."""
        yield from self.dissector.reported()
        yield from self.pending
        self.pending.clear()


class Reading(Reports):
    """One pass over captures. Iterating yields (table name, record batch) for all tables, in the order of reading.

    Args:
        sources: the captures, in reading order.
        options: options of the dissection.
        progress: called with the number of bytes of input read since the last call.
        compiled: whether kernels run compiled; None decides by the size of the input.
        batch_bytes: size of a batch in bytes.
        watch: waits for a capture that is still being written, and may end it.
        make: makes the dissector, of the options and whether kernels run compiled.
        about_captures: whether to make rows about the captures themselves.

    Attributes:
        seen: summaries of the captures so far.
        skipped: captures of folders and globs that could not be read to their end, with their error.
        rows: number of rows so far, which whoever takes them counts.
    """

    def __init__(
        self,
        sources: list[Source],
        options: Options | None = None,
        progress: Callable[[int], None] | None = None,
        compiled: bool | None = None,
        batch_bytes: int = 6 << 20,
        watch: Watch | None = None,
        make: Callable[[Options, bool], Dissector] = Dissector,
        about_captures: bool = True,
    ) -> None:
        self.sources = sources
        self._readable = [source for source in sources if not source.error]
        self.options = options or Options()
        self.seen: list[CaptureSummary] = []
        self.skipped: list[Source] = []
        self.rows = 0
        self.progress = progress or (lambda size: None)
        self.batch_bytes = batch_bytes
        self.watch = watch
        self.compiled = kernel.worthwhile(total_size(sources)) if compiled is None else compiled
        self.about_captures = about_captures
        super().__init__(make(self.options, self.compiled))

    def __iter__(self) -> Iterator[Row]:
        for work in self.work():
            yield from work()

    def work(self) -> Iterator[Work]:
        """Iterate, but yield functions that make the rows: later, in any thread, in any order."""
        return chain.from_iterable(self.steps())

    def _last(self) -> Iterator[Work]:
        yield from self.flush()
        yield from self.dissector.last_work()
        yield from self.flush()

    def steps(self) -> Iterator[Iterator[Work]]:
        """Do as `work`, in steps after each of which all rows of the packets so far can be made."""
        captures = [Capture(source.name, source.begin, partial(self._open, source)) for source in self._readable]
        self.pending += [partial(list, [unreadable(source)]) for source in self.sources if source.error]
        points = self.dissector.points
        for decoded in merge(captures, points):
            self.dissector.tcp.place(points)
            yield chain(self.dissector.take(decoded), self.flush())
        if self._readable:
            missing = self.dissector.packets.finish()
            self.pending.append(partial(incomplete, self.dissector, self._readable[-1].name, missing))
        yield self._last()
        if self.compiled:
            kernel.note_run()

    def flush(self) -> Iterator[Work]:
        """Yield rows that belong to no connection."""
        if not self.about_captures:
            self.pending.clear()
        yield from super().flush()

    def _open(self, source: Source, index: int, lanes: int) -> Iterator[Decoded]:
        """Open a capture beside `lanes` - 1 others. Reading it adds rows about it to `pending`."""
        size = max(self.batch_bytes // lanes, min(self.batch_bytes, LEAST_BATCH))
        one = CapturePass(self, source, index, size, len(self.sources) == 1, self.watch)
        self.seen.append(one.summary)
        return self._advanced(one, source)

    def _advanced(self, one: "CapturePass", source: Source) -> Iterator[Decoded]:
        taken = 0
        try:
            for decoded in one:
                yield decoded
                self.progress(one.consumed - taken)
                taken = one.consumed
        except CaptureError as error:
            if source.is_named:
                raise
            self.skipped.append(replace(source, error=reason(source, error)))
            self.pending.append(partial(list, [unreadable(self.skipped[-1])]))


class Owner(Protocol):
    """What reads captures: its dissector, and what it does with what is learned of a capture."""

    @property
    def dissector(self) -> Dissector:
        """Decodes packets."""

    def note(self, capture: str, problems: list[Problem], times: list[int | None]) -> None:
        """Take problems of a capture, with the times of their packets."""

    def conclude(self, summary: CaptureSummary) -> None:
        """Take the summary of a capture, which is complete."""


class CapturePass:
    """A pass over one capture. Iterating yields its segments.

    Args:
        owner: its dissector decodes the packets, and it receives rows about the capture.
        source: the capture.
        index: its index among the captures of the dissector.
        batch_bytes: size of a batch in bytes.
        alone: whether this is the only capture.
        watch: waits for a capture that is still being written, and may end it.
        part: the range of the capture to read; None: all of it.

    Attributes:
        file: what is read.
        summary: complete at the end.
        first_packet: number of the first packet; 0 before it.
        consumed: number of bytes of the file read.
    """

    def __init__(
        self,
        owner: Owner,
        source: Source,
        index: int,
        batch_bytes: int,
        alone: bool = False,
        watch: Watch | None = None,
        part: Range | None = None,
    ) -> None:
        self._owner, self._name = owner, source.name
        how: dict[str, Any] = {"batch_bytes": batch_bytes, "compiled": owner.dissector.compiled, "part": part}
        self.file = CaptureFile(source.path, source.given, index, alone=alone, watch=watch, **how)
        self.summary = CaptureSummary(source.name, self.file.info)
        self.first_packet = self.consumed = 0
        owner.dissector.captures.append(source.name)

    def __iter__(self) -> Iterator[Decoded]:
        owner, seen, info, steps, last = self._owner, self.summary, self.file.info, 0, None
        for batch in self.file:
            self.first_packet = self.first_packet or int(batch.packet[0])
            decoded = owner.dissector.decode(batch)
            problems: list[Problem] = []
            for report in owner.dissector.reports:
                seen.segments += report.tcp
                seen.others += report.packets - report.tcp
                seen.fragments += report.fragments
                seen.counts.update(report.counts)
                problems += report.problems
            owner.dissector.reports.clear()
            back = self._clock_steps(batch, last)[: MAX_CLOCK_STEPS - steps]
            steps += len(back)
            seen.counts["clock-step"] += len(back)
            last = int(batch.ts_ns[-1])
            if problems or back:
                problems += back
                owner.note(self._name, problems, _times(problems, batch))
            self.consumed = batch.consumed
            yield decoded
        owner.note(self._name, info.problems, [None] * len(info.problems))
        owner.conclude(seen)

    def _clock_steps(self, batch: PacketBatch, last: int | None) -> list[Problem]:
        times = batch.ts_ns
        before = np.concatenate([times[:1] if last is None else [last], times[:-1]])
        rows = np.flatnonzero(times < before)[:MAX_CLOCK_STEPS]
        return [clock_step(int(batch.packet[i]), int(before[i] - times[i])) for i in rows.tolist()]


def clock_step(packet: int, ns: int) -> Problem:
    """Return the problem of a packet that is earlier than the one before it."""
    return Problem("clock-step", packet, None, f"{ns} ns earlier than the packet before it")


def capture_row(seen: CaptureSummary) -> Row:
    """Return the row of a capture."""
    info = seen.info
    return _captures({
        "capture": seen.name,
        "format": info.format,
        "link_types": ",".join(LINK_NAMES.get(link, str(link)) for link in info.link_types),
        "packets": info.packets,
        "bytes": info.size,
        "first_ts_ns": info.first_ts_ns,
        "last_ts_ns": info.last_ts_ns,
        "snap_length": info.snap_length or None,
        "interfaces": len(info.interfaces),
        "dropped": info.dropped,
        "truncated": info.truncated,
        "tcp_segments": seen.segments,
        "other_packets": seen.others,
    })  # fmt: skip


def unreadable(source: Source) -> Row:
    """Return the row of a capture that cannot be read."""
    return _captures({"capture": source.name, "error": source.error})


def incomplete(dissector: Dissector, capture: str, count: int) -> list[Row]:
    """Return a row about IP packets of which fragments are missing when the last capture ends."""
    text = f"IP packets still incomplete at the end of the capture: {count}"
    return dissector.tables.problems(capture, [Problem("ip-fragment", 0, None, text)]) if count else []


def _captures(row: dict[str, Any]) -> Row:
    return "captures", record_batch("captures", of_rows([row], kinds("captures")))


def _times(problems: list[Problem], batch: PacketBatch) -> list[int | None]:
    """Return the times of the packets that these problems belong to."""
    rows = np.searchsorted(batch.packet, [p.packet for p in problems]).tolist()
    there = [p.packet > 0 and row < len(batch.packet) for p, row in zip(problems, rows, strict=True)]
    return [int(batch.ts_ns[row]) if ok else None for row, ok in zip(rows, there, strict=True)]


def read(
    paths: Paths,
    *,
    ports: dict[int, str] | None = None,
    protocol: Specification | None = None,
    bodies: str = "hash",
    from_: When = None,
    to: When = None,
    keylog: str | None = None,
) -> dict[str, pa.RecordBatchReader]:
    """Dissect captures in Python.

    Args:
        paths: a capture file, directory or glob, or several.
        ports: protocol names by TCP port, for ports where detection by content is not wanted.
        protocol: AMQP 0-9-1 or 0-10 extended by a user's document (`spec.overlay`).
        bodies: `none`, `hash`, or `full` for bodies in `messages`.
        from_: leave out rows before this time: a datetime with its zone, or ns since the epoch (UTC).
        to: leave out rows at or after this time.
        keylog: TLS key log (NSS format) to decrypt with.

    Returns:
        A reader for each table, by name. Readers are lazy and independent: each makes its own pass over the captures
        when its first batch is read, in bounded memory.

    Raises:
        CaptureError: a path does not exist (then it is also a `FileNotFoundError`), a file is not a capture, or TLS
            cannot be decrypted.
    """
    named = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    sources = find(named)
    options = Options(ports or {}, protocol, bodies, *time_range(from_, to), keylog=keylog)

    def rows(table: str) -> Iterator[pa.RecordBatch]:
        for name, batch in Reading(sources, options):
            if name == table:
                yield batch

    return {name: pa.RecordBatchReader.from_batches(found, rows(name)) for name, found in schemas(protocol).items()}
