"""Split a big capture file into ranges that are read side by side.

Where the first record of a range begins, only the range before it can tell for sure: the bodies of packets may hold
captures. `trial` guesses it from records that follow each other.
"""

import numpy as np

from amqpscope.dissector.capture import frames
from amqpscope.dissector.capture.file import scanner_of
from amqpscope.dissector.capture.input import Input
from amqpscope.dissector.capture.model import Before, CaptureInfo, Range
from amqpscope.dissector.capture.pcapng import in_force
from amqpscope.dissector.capture.scanner import Packet
from amqpscope.dissector.capture.sources import Source
from amqpscope.dissector.kernels.arrays import Ints

SEEN = 1 << 20
"""Bytes that a trial looks at."""
FAR = 1 << 17
"""Bytes that plausible records must follow each other for: further than one packet that holds a capture."""
ENOUGH = 4
"""Least number of such records, unless they end where the file ends."""
_HEAD = 1 << 16  # bytes that show the format and, mostly, all interfaces


def split(source: Source, size: int) -> list[Range]:
    """Return the ranges of a file, each at least `size` bytes, in order; none if it is not to be split.

    The first range knows where its first record begins. The others guess the blocks that count in them.

    Raises:
        CaptureError: the file cannot be read, or is not a capture.
    """
    if not isinstance(source.path, str) or (source.size or 0) < 2 * size:
        return []
    file = Input(source.path, source.given)
    try:
        data = np.zeros(_HEAD, np.uint8)
        filled, _ = file.fill(data.data, 0, len(data))
        compression = file.compression
    finally:
        file.close()
    begins = frames.begins(source.path, source.size or 0, compression, size)
    if len(begins) < 2:
        return []
    info = CaptureInfo()
    scanner = scanner_of(bytes(data[:64]), source.given, info)
    before = Before(bytes(data[:64]))
    scanner.resume(before)
    scanner.scan(data, scanner.begin, filled, Packet.room(1), 0, compiled=False)
    guess = before._replace(blocks=in_force((), scanner.after()))
    ends = [*begins[1:], None]
    ranges = [Range(begin, end, compression, guess, None) for begin, end in zip(begins, ends, strict=True)]
    return [ranges[0]._replace(before=before, skip=scanner.begin), *ranges[1:]]


def trial(path: str, name: str, part: Range) -> int | None:
    """Return a guess of the number of bytes before the first record of a range; None where no record is plausible.

    Raises:
        CaptureError: the file cannot be read.
    """
    file = Input(path, name, part=part._replace(end=None))
    try:
        data = np.zeros(SEEN, np.uint8)
        filled, ended = file.fill(data.data, 0, len(data))
    finally:
        file.close()
    scanner = scanner_of(part.before.head, name, CaptureInfo())
    scanner.resume(part.before)
    return first_record(scanner.lengths(data[:filled]), filled if ended else None)


def first_record(lengths: Ints, end: int | None) -> int | None:
    """Return the first position from which on records follow each other; None if there is none.

    Args:
        lengths: for each position, the length of a plausible record there; 0: there is none.
        end: where the file ends, if that is seen.
    """
    follows = lengths.tolist()
    for first in np.flatnonzero(lengths).tolist():
        at, count = first, 0
        while at < len(follows) and follows[at] and (at - first < FAR or count < ENOUGH):
            at += follows[at]
            count += 1
        if at == end or (count >= ENOUGH and (at >= len(follows) or at - first >= FAR)):
            return first
        at = first
        while at < len(follows) and follows[at]:  # none of these begins such records
            follows[at], at = 0, at + follows[at]
    return None
