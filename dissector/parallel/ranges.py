"""A big capture in ranges that are read side by side.

What was read of a range counts only if it began where the range before it ends, with the same interfaces; else the
range is read again, from there on. So what trials guess decides about nothing but time.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import islice

from amqpscope.dissector.capture.file import TORN, scanner_of
from amqpscope.dissector.capture.model import MAX_PROBLEMS, Before, CaptureInfo, Problem, Range
from amqpscope.dissector.capture.pcapng import MAX_KEPT, in_force
from amqpscope.dissector.capture.sources import Source
from amqpscope.dissector.packets.merging import Times
from amqpscope.dissector.parallel.survey import Noted, Split, Survey
from amqpscope.dissector.reading import CaptureSummary, clock_step

ROUNDS = 5
"""How often ranges are read before the capture is read as one."""

Run = Callable[[list[list[Split]]], Iterable[Survey]]
"""Returns the surveys of lists of splits, which may be made side by side."""


class Surveying:
    """The survey of one capture, in ranges as long as that is possible.

    Args:
        source: the capture.
        ranges: its ranges; none if it is read as one.

    Attributes:
        wanted: ranges to read now, by their number; None stands for the whole capture.
        survey: the outcome, once nothing more is wanted.
    """

    def __init__(self, source: Source, ranges: Sequence[Range]) -> None:
        self.source = source
        self.wanted: dict[int, Range | None] = dict(enumerate(ranges or [None]))
        self.survey = Survey(source)
        self._ranges = ranges
        self._found: dict[int, Survey] = {}
        self._rounds = 0

    def take(self, surveys: Iterable[Survey]) -> None:
        """Take the surveys of what was wanted."""
        self._found |= zip(self.wanted, surveys, strict=True)
        self._rounds += 1
        found = [self._found[number] for number in sorted(self._found)]
        if None in self.wanted.values():
            self.survey, self.wanted = found[0], {}
        elif self._rounds == ROUNDS or any(map(_is_refused, found)) or sum(map(_kept, found)) > MAX_KEPT:
            self._found, self.wanted = {}, {0: None}
        else:
            proven, again = _proven(found, self._ranges[0])
            self.wanted = again
            if not again:
                self.survey = joined(self.source, proven)


def surveyed(captures: Iterable[Surveying], run: Run) -> list[Survey]:
    """Return the surveys of captures."""
    captures = list(captures)
    while under_way := [each for each in captures if each.wanted]:
        splits = [[Split(each.source, part)] for each in under_way for part in each.wanted.values()]
        found = iter(run(splits))
        for each in under_way:
            each.take(list(islice(found, len(each.wanted))))
    return [each.survey for each in captures]


def _is_refused(each: Survey) -> bool:
    """Return whether a range cannot be read apart from others."""
    if each.summary is None or each.part is None or each.after is None:
        return bool(each.source.error)
    is_damaged = bool(each.part.compression and each.summary.info.truncated)  # how much is lost depends on the range
    return is_damaged or each.after.kept is None


def _kept(each: Survey) -> int:
    """Return the number of bytes of blocks with state in a range: those after it need them."""
    return sum(len(block) for _, block in (each.after.kept or ())) if each.after else 0


def _proven(found: Sequence[Survey], first: Range) -> tuple[list[Survey], dict[int, Range | None]]:
    """Return the ranges that count, and, by their number, those to read again, from where they really begin."""
    proven: list[Survey] = []
    again: dict[int, Range | None] = {}
    part: Range | None = first
    for number, each in enumerate(found):
        is_wrong = part is not None and not _began(each, part)
        if part is not None and is_wrong:
            again[number] = part
        elif part is not None and not again:
            proven.append(_numbered(each, part))
            if each.over is None:
                break
        following = found[number + 1].part if number + 1 < len(found) else None
        part = _following(each, part, following) if part and following else None
        if part and following and is_wrong:  # it ends anywhere: the next one may be right
            part = part._replace(skip=following.skip)
    return proven, again


def _began(each: Survey, part: Range) -> bool:
    """Return whether a range was read from where it begins, knowing what it needs."""
    if each.part is None or each.summary is None:
        return False
    given, needed = each.part.before, part.before
    may_share = each.summary.info.first_ts_ns == given.last_ns  # its first packet has the time of the one before
    is_timed = given.last_ns == needed.last_ns or not may_share
    return each.part.skip == part.skip and given.blocks == needed.blocks and is_timed


def _following(each: Survey, part: Range, following: Range) -> Range | None:
    """Return the range after this one, as far as its end is known; `part` is where it really begins."""
    if each.over is None or each.after is None or each.part is None or each.summary is None:
        return None
    given, before = each.part.before, part.before
    last_ns, secrets = each.after.last_ns, each.secrets
    if not each.summary.info.packets:
        last_ns, secrets = before.last_ns, before.secrets + secrets[len(given.secrets) :]
    number = before.number + each.after.number - given.number
    known = Before(before.head, in_force(before.blocks, each.after), number, last_ns, secrets)
    return following._replace(before=known, skip=each.over)


def _numbered(each: Survey, part: Range) -> Survey:
    """Return the survey of a range whose packets get the numbers that they have in the capture."""
    more = part.before.number - (each.part.before.number if each.part else 0)
    noted: list[Noted] = []
    for problem, ts_ns in each.noted:
        number = problem.packet + more if problem.packet else 0
        is_torn = problem.code == "capture-truncated" and number
        detail = TORN.format(number) if is_torn else problem.detail
        noted.append((problem._replace(packet=number, detail=detail), ts_ns))
    first = each.first_packet + more if each.first_packet else 0
    return replace(each, part=part, noted=tuple(noted), first_packet=first)


def joined(source: Source, parts: Sequence[Survey]) -> Survey:
    """Return the survey of a capture from those of its ranges."""
    info = CaptureInfo()
    summary = CaptureSummary(source.name, info)
    scanner, at = None, 0  # byte of the decompressed file
    noted: list[Noted] = []
    for each in parts:
        assert each.part is not None and each.summary is not None and each.after is not None
        found, skip = each.summary.info, each.part.skip or 0
        if scanner is None:
            scanner, at = scanner_of(each.part.before.head, source.given, info), skip
        scanner.add(each.after, at - skip)
        if info.last_ts_ns is not None and found.first_ts_ns is not None and found.first_ts_ns < info.last_ts_ns:
            noted.append((clock_step(each.first_packet, info.last_ts_ns - found.first_ts_ns), found.first_ts_ns))
        noted += ((_moved(problem, at - skip), ts_ns) for problem, ts_ns in each.noted)
        _add(summary, each.summary)
        at += found.size - skip
    info.size = at
    if scanner is not None:
        scanner.finish()
    noted += ((problem, None) for problem in info.problems)
    info.secrets.clear()
    return Survey(
        replace(source, begin=info.first_ts_ns or 0),
        summary=summary,
        noted=_listed(noted),
        times=Times.joined(each.times for each in parts),
        incomplete=sum(each.incomplete for each in parts),
        parts=tuple(parts),
    )


def _moved(problem: Problem, origin: int) -> Problem:
    """Return a problem whose position is that in the file, not in the range."""
    return problem if problem.offset is None else problem._replace(offset=problem.offset + origin)


def _add(summary: CaptureSummary, more: CaptureSummary) -> None:
    """Add what was read of a range."""
    summary.segments += more.segments
    summary.others += more.others
    summary.fragments += more.fragments
    summary.counts.update(more.counts)
    info, found = summary.info, more.info
    info.compression, info.truncated = found.compression, found.truncated
    info.packets += found.packets
    info.captured_bytes += found.captured_bytes
    if found.last_ts_ns is not None:
        info.first_ts_ns = found.first_ts_ns if info.first_ts_ns is None else info.first_ts_ns
        info.last_ts_ns = found.last_ts_ns


def _listed(noted: Iterable[Noted]) -> tuple[Noted, ...]:
    """Return the first problems of each kind, as many as are listed."""
    counts: Counter[str] = Counter()
    found: list[Noted] = []
    for each in noted:
        counts[each[0].code] += 1
        if counts[each[0].code] <= MAX_PROBLEMS:
            found.append(each)
    return tuple(found)
