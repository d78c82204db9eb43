"""A batch of events as the kernel of `publishing` reads it: numbers, digests of names, and the lists of answers."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from amqpscope.dissector.kernels.arrays import Ints
from amqpscope.dissector.kernels.state import Matrix, column
from amqpscope.pipelines.model.digests import combined, hashed
from amqpscope.pipelines.model.events import EV, MESSAGES, Events, what
from amqpscope.pipelines.model.numbers_in_text import numbers_in
from amqpscope.pipelines.model.speaking import matrix_of
from amqpscope.pipelines.stream.frames import STREAM_FRAMES


class MORE(Matrix):
    """Columns of `Batch.more`; -1 for null unless noted otherwise."""

    IDENTITY = column("id of the event; of messages, of the one with the least name")
    POSITION = column("its position in the batch")
    PUBLISHER = column("publisher_id")
    EPOCH = column("publisher_epoch of messages")
    ENTRY = column("of its frame that messages are in")
    RECORDS = column("messages that stand for one event")
    SIZE = column("of their bodies")
    RANK = column("of the least name among names; meaningful where an id stands several times in a frame")
    STREAM = column("digest; 0 for null; where a publisher may begin, and of requests")
    REFERENCE = column("digest of stream and reference; 0 without a reference")
    CORRELATION = column("of answers and requests that report stored ids")
    CODE = column("response_code")
    SEQUENCE = column("stored id that an answer reports")
    FIRST = column("where in `listed` the ids of an answer begin; those of errors are each followed by its code")
    END = column("the place in `listed` after its last id")


class Batch(NamedTuple):
    """What the kernel reads."""

    matrix: Ints
    """EV; messages of one entry of a frame that follow each other are one event."""
    more: Ints
    listed: Ints
    """The ids that answers list; negative beyond 63 bits."""


_PUBLISH = what(MESSAGES, "publish")
_LISTS = {
    what(STREAM_FRAMES, "publish-confirm"): "publishing_ids",
    what(STREAM_FRAMES, "publish-error"): "publishing_errors",
}
_ANSWERING = tuple(what(STREAM_FRAMES, name) for name in ("query-publisher-sequence", "create", "delete"))


def publications(events: Events, at: Ints, base: int) -> Batch:
    """Return what the kernel reads of some events.

    Args:
        events: the batch.
        at: positions of the events.
        base: id of the batch's first event.
    """
    matrix = matrix_of(events, at)
    more = np.full((len(at), MORE.WIDTH), -1, np.int64)
    more[:, MORE.IDENTITY] = at + base
    more[:, MORE.POSITION] = at
    more[:, MORE.PUBLISHER] = events.ints("publisher_id")[at]
    more[:, MORE.RECORDS] = 1
    more[:, [MORE.RANK, MORE.STREAM, MORE.REFERENCE]] = 0
    published = np.flatnonzero(matrix[:, EV.WHAT] == _PUBLISH)
    if len(published):
        more[published, MORE.EPOCH] = events.ints({MESSAGES: "publisher_epoch"})[at[published]]
        more[published, MORE.ENTRY] = events.ints({MESSAGES: "entry"})[at[published]]
        more[published, MORE.SIZE] = events.ints({MESSAGES: "body_size"})[at[published]]
        _name(events, matrix, more, published)
        kept = _joined(events, matrix, more, published)
        if kept is not None:
            matrix, more = matrix[kept], more[kept]
    _note_answers(events, matrix, more)
    return Batch(matrix, more, _lists(events, matrix, more))


def _changes(matrix: Ints, more: Ints, rows: Ints, columns: tuple[int, ...], further: tuple[int, ...]) -> Any:
    """Return which of these rows differ from the one before them (bool)."""
    changed = np.ones(len(rows), np.bool_)
    changed[1:] = False
    for values in (*(matrix[rows, number] for number in columns), *(more[rows, number] for number in further)):
        changed[1:] |= values[1:] != values[:-1]
    return changed


def _name(events: Events, matrix: Ints, more: Ints, published: Ints) -> None:
    """Write digests of stream and reference where a publisher may begin."""
    if events.tables[MESSAGES]["publisher_reference"].null_count == len(events.tables[MESSAGES]):
        return
    begins = published[_changes(matrix, more, published, (EV.CONNECTION,), (MORE.PUBLISHER, MORE.EPOCH))]
    _digest(events, MESSAGES, more, begins)


def _digest(events: Events, source: int, more: Ints, rows: Ints) -> None:
    names = events.take(source, more[rows, MORE.POSITION], ["stream", "publisher_reference"])
    stream = hashed(names["stream"])
    together = combined([stream, names["publisher_reference"]])
    known = pc.is_valid(names["publisher_reference"]).to_numpy() & (stream != 0)
    more[rows, MORE.STREAM] = stream
    more[rows, MORE.REFERENCE] = np.where(known, together, 0)


def _joined(events: Events, matrix: Ints, more: Ints, published: Ints) -> Any:
    """Join messages of one entry that follow each other: those of a sub-batch.

    Returns:
        Which rows are left (bool), the first of each; None for all.
    """
    same = (EV.CONNECTION, EV.ORDER, EV.NUMBER)
    first = _changes(matrix, more, published, same, (MORE.PUBLISHER, MORE.ENTRY))
    frame = _changes(matrix, more, published, same[:2], ())
    disorder = np.zeros(len(published), np.bool_)
    disorder[1:] = ~frame[1:] & first[1:] & (matrix[published[1:], EV.NUMBER] <= matrix[published[:-1], EV.NUMBER])
    if first.all() and not disorder.any():
        return None
    run = np.cumsum(first) - 1
    starts = np.flatnonzero(first)
    _rank(events, more, published, run, np.cumsum(frame) - 1, disorder)
    order = np.lexsort((more[published, MORE.RANK], run))[starts]
    sizes = more[published, MORE.SIZE]
    total = np.add.reduceat(np.maximum(sizes, 0), starts)
    heads = published[starts]
    more[heads, MORE.SIZE] = np.where(np.maximum.reduceat(sizes, starts) < 0, -1, total)
    more[heads, MORE.RECORDS] = np.diff(starts, append=len(published))
    for number in (MORE.IDENTITY, MORE.RANK):
        more[heads, number] = more[published[order], number]
    kept = np.ones(len(matrix), np.bool_)
    kept[published[~first]] = False
    return kept


def _rank(events: Events, more: Ints, published: Ints, run: Ints, frame: Ints, disorder: Any) -> None:
    """Write ranks of the names of messages that share an event, or may share it with others of their frame."""
    names = events.tables[MESSAGES]["message_id"]
    if names.null_count == len(names):
        return
    several = np.isin(frame, frame[disorder]) if disorder.any() else np.zeros(len(run), np.bool_)
    several |= np.bincount(run)[run] > 1
    rows = published[several]
    named = events.take(MESSAGES, more[rows, MORE.POSITION], ["message_id"])["message_id"].combine_chunks()
    more[rows, MORE.RANK] = pc.rank(named, tiebreaker="first").to_numpy().astype(np.int64)


def _note_answers(events: Events, matrix: Ints, more: Ints) -> None:
    """Write what answers and requests report of stored ids."""
    rows = np.flatnonzero(np.isin(matrix[:, EV.WHAT], _ANSWERING))
    if not len(rows):
        return
    found = events.take(STREAM_FRAMES, more[rows, MORE.POSITION], ["correlation_id", "response_code", "sequence"])
    for number, name in (
        (MORE.CORRELATION, "correlation_id"),
        (MORE.CODE, "response_code"),
        (MORE.SEQUENCE, "sequence"),
    ):
        more[rows, number] = found[name].cast(pa.int64()).fill_null(-1).to_numpy()
    _digest(events, STREAM_FRAMES, more, rows)


def _lists(events: Events, matrix: Ints, more: Ints) -> Ints:
    """Return the ids that answers list, one list after the other; write their places to `more`."""
    parts, begin = [np.zeros(0, np.int64)], 0
    for word, ids in _LISTS.items():
        rows = np.flatnonzero(matrix[:, EV.WHAT] == word)
        if len(rows):
            listed, ends = numbers_in(events.take(STREAM_FRAMES, more[rows, MORE.POSITION], [ids])[ids])
            more[rows, MORE.FIRST], more[rows, MORE.END] = ends[:-1] + begin, ends[1:] + begin
            parts.append(listed)
            begin += len(listed)
    return np.concatenate(parts)
