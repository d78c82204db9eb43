"""An archive of captures, dissected in parts: what all dissectors know, and the pass of one over its segments."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from amqpscope.dissector.capture.sources import Source
from amqpscope.dissector.dissector import Dissector, Options
from amqpscope.dissector.parallel.arrangement import RANGE, chains, surveyed
from amqpscope.dissector.parallel.blocks import Block, Seated, merged
from amqpscope.dissector.parallel.ranges import Run
from amqpscope.dissector.parallel.survey import Survey
from amqpscope.dissector.reading import capture_row, incomplete, unreadable
from amqpscope.dissector.tables.rows import Row, Work
from amqpscope.dissector.tls.keylog import KeyLog


class Archive(NamedTuple):
    """What the dissectors of an archive need besides their segments.

    Attributes:
        captures: names of the captures, by index.
        points: for each, the index of the first one of the same capture point.
        end_ns: end of the captures, up to which waits are measured.
        keylog: the key log that the user named, or nothing.
        options: of the dissection; without the path of the key log.
    """

    captures: list[str]
    points: list[int]
    end_ns: int
    keylog: bytes
    options: Options

    def dissector(self, compiled: bool) -> Dissector:
        """Return a dissector for one part of the flows."""
        dissector = Dissector(self.options, compiled)
        dissector.captures += self.captures
        dissector.points += self.points
        dissector.tcp.place(self.points)
        if self.keylog:
            dissector.tls.add(self.keylog, 0)
        return dissector


class Plan(NamedTuple):
    """Captures after the light pass.

    Attributes:
        surveys: what it showed.
        chains: what is to be read.
        known: what the dissectors need to know.
        options: of the dissection.
    """

    surveys: list[Survey]
    chains: list[list[Seated]]
    known: Archive
    options: Options


def planned(sources: Iterable[Source], run: Run, options: Callable[[int], Options], size: int = RANGE) -> Plan:
    """Return the plan for captures, by a light pass over them.

    Args:
        sources: the captures, in any order.
        run: returns the surveys of lists of splits, which may be made side by side.
        options: returns those of the dissection, given the time of the first packet (ns).
        size: bytes of the ranges into which bigger files are split.

    Raises:
        CaptureError: a file that the user named, every file, or the key log cannot be read.
    """
    surveys = surveyed(sources, run, size)
    read = chains(surveys)
    wanted = options(min(each.source.begin for chain in read for each in chain))
    return Plan(surveys, read, archive(surveys, read, wanted), wanted)


def archive(surveys: Sequence[Survey], read: Iterable[Sequence[Seated]], options: Options) -> Archive:
    """Return what the dissectors of captures need to know.

    Raises:
        CaptureError: the key log cannot be read.
    """
    seated = {each.capture: each for chain in read for each in chain}
    places = [seated[capture] for capture in sorted(seated)]
    keylog = b""
    if options.keylog is not None:
        known = KeyLog(options.keylog)
        known.add(b"")  # so that what the file holds is written, too
        keylog = known.written()
    return Archive(
        [each.source.name for each in places],
        [each.seat.point for each in places],
        max((each.times.last for each in surveys if each.times), default=0),
        keylog,
        replace(options, keylog=None),
    )


def dissect(blocks: Iterable[Block], dissector: Dissector, end_ns: int) -> Iterator[Work]:
    """Yield functions that make the rows of the flows of one part.

    Args:
        blocks: of the part, sorted.
        dissector: `Archive.dissector`.
        end_ns: `Archive.end_ns`.
    """
    return chain.from_iterable(steps(blocks, dissector, end_ns))


def steps(blocks: Iterable[Block], dissector: Dissector, end_ns: int) -> Iterator[Iterator[Work]]:
    """Do as `dissect`, in steps after each of which all rows of the packets so far can be made."""
    for found in merged(blocks):
        if isinstance(found, bytes):
            dissector.tls.add(found, 0)
            yield dissector.reported()
        else:
            yield chain(dissector.take(found), dissector.reported())
    yield chain(dissector.last_work(end_ns), dissector.reported())


def rows_of_captures(surveys: Sequence[Survey], known: Archive) -> Iterator[Row]:
    """Yield rows about the captures."""
    dissector = Dissector(known.options, compiled=False)
    for each in surveys:
        yield capture_row(each.summary) if each.summary else unreadable(each.source)
        problems, times = [problem for problem, _ in each.noted], [ts_ns for _, ts_ns in each.noted]
        yield from dissector.tables.problems(each.source.name, problems, times)
    yield from incomplete(dissector, known.captures[-1], sum(survey.incomplete for survey in surveys))
