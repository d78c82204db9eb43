"""The light pass over captures: their times, from which their order follows, and all rows about captures themselves."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from amqpscope.dissector.capture.file import CaptureError
from amqpscope.dissector.capture.sources import Source, place, reason
from amqpscope.dissector.dissector import Dissector
from amqpscope.dissector.packets.merging import Span, arrange
from amqpscope.dissector.parallel.blocks import BATCH, Seated
from amqpscope.dissector.reading import CapturePass, CaptureSummary, unreadable
from amqpscope.dissector.tables.rows import Row, Work


@dataclass(frozen=True, slots=True)
class Survey:
    """What the light pass shows of a capture.

    Attributes:
        source: the capture; with the time of its first packet, or its error.
        first: time of its first segment; None without segments.
        last: latest time of its segments.
        summary: None where nothing could be read.
        incomplete: number of IP packets of which fragments are missing, where this capture is the last one.
        rows: rows about the capture.
    """

    source: Source
    first: int | None = None
    last: int | None = None
    summary: CaptureSummary | None = None
    incomplete: int = 0
    rows: tuple[Row, ...] = field(default=(), repr=False)

    @property
    def snap_length(self) -> int:
        """Most bytes captured of a packet; 0: no limit."""
        return self.summary.info.snap_length if self.summary else 0

    @property
    def fragments(self) -> int:
        """Number of packets that are fragments of IP packets."""
        return self.summary.fragments if self.summary else 0


class _Surveyor:
    """Reads captures one after the other, by one decoder of packets."""

    def __init__(self, compiled: bool) -> None:
        self.dissector = Dissector(compiled=compiled)
        self.pending: list[Work] = []

    def survey(self, source: Source, index: int) -> Survey:
        """Read a capture."""
        one = CapturePass(self, source, index, BATCH)
        first = last = None
        for decoded in one:
            times = decoded.segments.ts_ns
            if len(times):
                first = int(times[0]) if first is None else first
                last = max(int(times.max()), first if last is None else last)
        return self._survey(replace(source, begin=one.summary.info.first_ts_ns or 0), first, last, one.summary)

    def _survey(self, source: Source, first: int | None, last: int | None, summary: CaptureSummary) -> Survey:
        rows = [row for work in (*self.pending, *self.dissector.reported()) for row in work()]
        self.pending.clear()
        return Survey(source, first, last, summary, rows=tuple(rows))


def survey(sources: Iterable[Source], compiled: bool) -> list[Survey]:
    """Return what a light pass shows of captures. They are read as one sequence, in this order."""
    surveyor = _Surveyor(compiled)
    found: list[Survey] = []
    for index, source in enumerate(sources):
        try:
            found.append(surveyor.survey(source, index))
        except CaptureError as error:
            surveyor.pending.clear()
            bad = replace(source, error=reason(source, error))
            found.append(Survey(bad, rows=(unreadable(bad),)))
    found[-1] = replace(found[-1], incomplete=surveyor.dissector.packets.finish())
    return found


def surveyed(sources: Iterable[Source], run: Callable[[list[list[Source]]], Iterable[Survey]]) -> list[Survey]:
    """Return what light passes show of captures; those of a point with IP fragments are read as one sequence.

    Args:
        sources: the captures, in any order.
        run: returns the surveys of lists of captures, which may be read side by side.

    Raises:
        CaptureError: a file that the user named, or every file, cannot be read.
    """
    found = list(run([[source] for source in sources]))
    together = [[each.source for each in chain] for chain in chains(found) if len(chain) > 1]
    anew = {each.source.name: each for each in (run(together) if together else ())}
    return [anew.get(each.source.name, each) for each in found]


def chains(surveys: Iterable[Survey]) -> list[list[Seated]]:
    """Return the captures that can be read, in chains, each of which is to be read by one decoder of packets.

    A chain is one capture, or all of a capture point with IP fragments: these may lie in several captures.

    Raises:
        CaptureError: a file that the user named, or every file, cannot be read.
    """
    surveys = list(surveys)
    readable = [each for each in surveys if not each.source.error]
    for each in surveys:
        if each.source.error and (each.source.is_named or not readable):
            raise CaptureError(f"{each.source.given}: {each.source.error}")
    readable.sort(key=lambda each: place(each.source))
    seats = arrange(Span(each.source.name, each.source.begin, each.first, each.last) for each in readable)
    fragmented = {seat.point for each, seat in zip(readable, seats, strict=True) if each.fragments}
    found: dict[int, list[Seated]] = {}
    for index, (each, seat) in enumerate(zip(readable, seats, strict=True)):
        key = seat.point if seat.point in fragmented else index
        found.setdefault(key, []).append(Seated(each.source, index, seat))
    return list(found.values())
