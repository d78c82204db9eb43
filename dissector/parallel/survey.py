"""The light pass over captures: their times, from which their order follows, and all that is reported of captures."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from amqpscope.dissector.capture.file import CaptureError
from amqpscope.dissector.capture.model import Problem, Range
from amqpscope.dissector.capture.ranges import trial
from amqpscope.dissector.capture.scanner import After
from amqpscope.dissector.capture.sources import Source, reason
from amqpscope.dissector.dissector import Dissector
from amqpscope.dissector.packets.merging import Times
from amqpscope.dissector.parallel.blocks import BATCH
from amqpscope.dissector.reading import CapturePass, CaptureSummary

Noted = tuple[Problem, int | None]
"""A problem, and the time of its packet."""


class Split(NamedTuple):
    """What is read at once, as by a task of a cluster: a capture, or a range of it."""

    source: Source
    part: Range | None = None


@dataclass(frozen=True, slots=True)
class Survey:
    """What the light pass shows of a capture, or of a range of it.

    Attributes:
        source: the capture; with the time of its first packet, or its error.
        part: the range; None: all of the capture.
        summary: None where nothing could be read.
        noted: its problems.
        times: those of its segments; None without any.
        first_packet: number of its first packet; 0 without packets.
        incomplete: number of IP packets of which fragments are missing, where this capture is the last one.
        over: number of bytes after the range that belong to its last record; None where the capture ends.
        after: what the range says of the capture; None if it was not read.
        secrets: TLS key logs that come after its last packet.
        parts: the ranges in which the capture is to be read, if there are several.
    """

    source: Source
    part: Range | None = None
    summary: CaptureSummary | None = None
    noted: tuple[Noted, ...] = ()
    times: Times | None = None
    first_packet: int = 0
    incomplete: int = 0
    over: int | None = None
    after: After | None = None
    secrets: tuple[bytes, ...] = field(default=(), repr=False)
    parts: tuple["Survey", ...] = ()

    @property
    def snap_length(self) -> int:
        """Most bytes captured of a packet; 0: no limit."""
        return self.summary.info.snap_length if self.summary else 0

    @property
    def fragments(self) -> int:
        """Number of packets that are fragments of IP packets, those that complete one as well."""
        return self.summary.fragments if self.summary else 0


class _Surveyor:
    """Reads captures one after the other, by one decoder of packets."""

    def __init__(self, compiled: bool) -> None:
        self.dissector = Dissector(compiled=compiled)
        self.noted: list[Noted] = []

    def note(self, capture: str, problems: list[Problem], times: list[int | None]) -> None:
        """Take problems of a capture."""
        self.noted += zip(problems, times, strict=True)

    def conclude(self, summary: CaptureSummary) -> None:
        """Take what was learned of its secrets."""
        problems = self.dissector.tls.problems
        self.noted += [(problem, None) for _, problem in problems]
        problems.clear()

    def survey(self, split: Split, index: int) -> Survey:
        """Read a capture, or a range of it."""
        source, part = split
        if part is not None and part.skip is None:
            part = part._replace(skip=trial(str(source.path), source.given, part))
            if part.skip is None:
                return Survey(source, part)
        one = CapturePass(self, source, index, BATCH, part=part)
        times = None
        for decoded in one:
            if len(decoded.segments.ts_ns):
                times = Times.joined([times, Times.of(decoded.segments.ts_ns)])
        noted, self.noted = tuple(self.noted), []
        source = replace(source, begin=one.summary.info.first_ts_ns or 0)
        after = one.file.scanner.after() if one.file.scanner else None
        ends: dict[str, Any] = {"over": one.file.over, "after": after, "secrets": one.file.waiting}
        return Survey(source, part, one.summary, noted, times, one.first_packet, **ends)


def survey(splits: Iterable[Split], compiled: bool) -> list[Survey]:
    """Return what a light pass shows of captures. They are read as one sequence, in this order."""
    surveyor = _Surveyor(compiled)
    found: list[Survey] = []
    for index, split in enumerate(splits):
        try:
            found.append(surveyor.survey(split, index))
        except CaptureError as error:
            surveyor.noted.clear()
            found.append(Survey(replace(split.source, error=reason(split.source, error)), split.part))
    found[-1] = replace(found[-1], incomplete=surveyor.dissector.packets.finish())
    return found
