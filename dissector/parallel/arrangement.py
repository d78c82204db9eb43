"""The order of captures, from the light pass over them: which are read side by side, and from where on."""

from collections.abc import Iterable

from amqpscope.dissector.capture.input import CaptureError
from amqpscope.dissector.capture.model import Range
from amqpscope.dissector.capture.ranges import split
from amqpscope.dissector.capture.sources import Source, place
from amqpscope.dissector.packets.merging import Span, arrange
from amqpscope.dissector.parallel import ranges
from amqpscope.dissector.parallel.blocks import Seated
from amqpscope.dissector.parallel.ranges import Run
from amqpscope.dissector.parallel.survey import Split, Survey

RANGE = 128 << 20
"""Bytes of a big file that are read as one."""


def surveyed(sources: Iterable[Source], run: Run, size: int = RANGE) -> list[Survey]:
    """Return what light passes show of captures; those of a point with IP fragments are read as one sequence.

    Args:
        sources: the captures, in any order.
        run: returns the surveys of lists of splits, which may be made side by side.
        size: bytes of the ranges into which bigger files are split.

    Raises:
        CaptureError: a file that the user named, or every file, cannot be read.
    """
    found = ranges.surveyed([ranges.Surveying(source, _split(source, size)) for source in sources], run)
    together = [chain for chain in chains(found) if len(chain) > 1]
    anew = {
        (each.source.name, each.part): each
        for each in (run([[Split(one.source, one.part) for one in chain] for chain in together]) if together else ())
    }
    return [_renewed(each, anew) for each in found]


def _split(source: Source, size: int) -> list[Range]:
    try:
        return split(source, size)
    except (CaptureError, OSError):  # reading it as a whole says why
        return []


def _renewed(each: Survey, anew: dict[tuple[str, Range | None], Survey]) -> Survey:
    """Return a survey with those splits that were read anew."""
    if not each.parts:
        return anew.get((each.source.name, None), each)
    renewed = [anew.get((each.source.name, part.part), part) for part in each.parts]
    bad = next((part for part in renewed if part.source.error), None)
    return Survey(bad.source) if bad else ranges.joined(each.source, renewed)


def chains(surveys: Iterable[Survey]) -> list[list[Seated]]:
    """Return the captures that can be read, or their ranges, in chains that are to be read by one decoder of packets.

    A chain is one of them, or all of a capture point that have IP fragments: these may lie in several.

    Raises:
        CaptureError: a file that the user named, or every file, cannot be read.
    """
    surveys = list(surveys)
    readable = [each for each in surveys if not each.source.error]
    for each in surveys:
        if each.source.error and (each.source.is_named or not readable):
            raise CaptureError(f"{each.source.given}: {each.source.error}")
    readable.sort(key=lambda each: place(each.source))
    seats = arrange(Span(each.source.name, each.source.begin, each.times) for each in readable)
    found: list[list[Seated]] = []
    fragmented: dict[int, list[Seated]] = {}
    for index, (each, seat) in enumerate(zip(readable, seats, strict=True)):
        floor = seat.floor
        for part in each.parts or (each,):
            seated = Seated(each.source, index, seat._replace(floor=floor), part.part)
            if part.times:
                floor = max(floor, part.times.last)
            chain = fragmented.setdefault(seat.point, []) if part.fragments else []
            if not chain:
                found.append(chain)
            chain.append(seated)
    return found
