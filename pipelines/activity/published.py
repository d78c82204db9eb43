"""Published: how many messages a channel published to each exchange and routing key, second by second.

Confirms have a row for each publish only where a channel is in confirm mode. Here all publishes count that may have
been whole, summed up as they come, so that rates and topology need no pass over messages. A row is a run: publishes of
one connection within one second of the capture's clock, without publishes of another second between them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from amqpscope.pipelines.model.events import MESSAGES, Events, kinds
from amqpscope.pipelines.model.open_rows import OpenRows
from amqpscope.pipelines.model.walk import Needs, Rows, conform, schema

SECOND = 1_000_000_000
_WORDS = kinds("publish")
_KEY = ("connection_id", "channel", "channel_epoch", "exchange", "routing_key", "stream")
_COLUMNS = (
    *_KEY, "frame_no", "ts_ns", "capture", "packet", "body_size", "mandatory", "reply_to", "correlation_id",
    "expiration", "cut_by",
)  # fmt: skip
_SUMS = ("count", "bytes", "mandatories", "requests", "replies", "expirations", "unknown_sizes")
_LEAST, _MOST = ("first_frame_no", "first_ts_ns"), ("last_frame_no", "last_ts_ns", "max_bytes", "max_expiration_ms")
_PLACES = {"first_frame_no": ("first_capture", "first_packet"), "last_frame_no": ("last_capture", "last_packet")}
"""Columns of the rows at which a run begins and ends."""
_RUN = "run"
_SUMMED = pa.schema([field for field in schema("published") if field.name != "ts_ns"])


class Published(OpenRows):
    """The walk that writes `published`. Its state is the sums of the run that is open."""

    tables, VERSION = ("published",), 2
    needs: ClassVar[Mapping[int, Needs]] = {
        MESSAGES: Needs(tuple(name for name in _COLUMNS if name not in ("connection_id", "frame_no", "ts_ns")))
    }

    def feed(self, events: Events) -> Iterator[Rows]:
        """Walk over a batch; yield rows of runs that are over."""
        at = np.flatnonzero(events.among(_WORDS))
        if not len(at):
            return
        found = events.take(MESSAGES, at, _COLUMNS)
        rows = _ones(found.filter(pc.is_null(found["cut_by"])))
        if not len(rows):
            return
        if self._open is not None:
            rows = pa.concat_tables([self._open.select(rows.column_names), rows])
        rows = _summed(rows)
        self._open = rows.filter(pc.equal(rows[_RUN], pc.max(rows[_RUN])))
        over = rows.slice(0, len(rows) - len(self._open))
        if len(over):
            yield "published", _declared(over)

    def declared(self, rows: pa.Table) -> pa.Table:
        """See `OpenRows`."""
        return _declared(rows)


def _ones(messages: pa.Table) -> pa.Table:
    """Return sums of one message each."""
    size, count = messages["body_size"].cast(pa.int64()), len(messages)
    asks, answers = (pc.is_valid(messages[name]) for name in ("reply_to", "correlation_id"))
    columns: dict[str, Any] = {name: messages[name] for name in _KEY}
    columns |= {
        "count": pa.array(np.ones(count, np.int64)),
        "bytes": size.fill_null(0),
        "max_bytes": size,
        "mandatories": messages["mandatory"].fill_null(False).cast(pa.int64()),
        "requests": asks.cast(pa.int64()),
        "replies": pc.and_not(answers, asks).cast(pa.int64()),
        "expirations": pc.is_valid(messages["expiration"]).cast(pa.int64()),
        "max_expiration_ms": _milliseconds(messages["expiration"]),
        "unknown_sizes": pc.is_null(size).cast(pa.int64()),
    }
    for end, places in (("first", _PLACES["first_frame_no"]), ("last", _PLACES["last_frame_no"])):
        columns |= {f"{end}_frame_no": messages["frame_no"], f"{end}_ts_ns": messages["ts_ns"]}
        columns |= {name: messages[name.partition("_")[2]] for name in places}
    return pa.table({f.name: columns[f.name] for f in _SUMMED}).cast(_SUMMED)


def _milliseconds(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return times to live (ms) that publishers give as text; null for what is no such number: brokers refuse it."""
    if texts.null_count == len(texts):
        return texts.cast(pa.int64())
    return pc.if_else(pc.match_substring_regex(texts, "^[0-9]{1,18}$"), texts, None).cast(pa.int64())


def _summed(rows: pa.Table) -> pa.Table:
    """Return one row for each key of each run, in order, with the number of the run.

    Args:
        rows: sums, in the order of their publishes; rows of a run that was open before come first.
    """
    connection, ts = rows["connection_id"].to_numpy(), rows["first_ts_ns"].to_numpy()
    second = ts // SECOND
    begins = (np.diff(connection) != 0) | (np.diff(second) != 0)
    rows = rows.append_column(_RUN, pa.array(np.concatenate([[0], np.cumsum(begins)])))
    sums = [(name, "sum") for name in _SUMS]
    ends = [(name, "min") for name in _LEAST] + [(name, "max") for name in _MOST]
    places = [(name, how) for how, names in zip(("first", "last"), _PLACES.values(), strict=True) for name in names]
    made = rows.group_by([_RUN, *_KEY], use_threads=False).aggregate([*sums, *ends, *places])
    made = made.rename_columns([_RUN, *_KEY, *(name for name, _ in (*sums, *ends, *places))])
    made = made.select([_RUN, *_SUMMED.names])
    return made.sort_by([(_RUN, "ascending"), ("first_frame_no", "ascending")])


def _declared(rows: pa.Table) -> pa.Table:
    second = rows["first_ts_ns"].to_numpy() // SECOND * SECOND
    columns = {name: rows[name] for name in rows.column_names if name != _RUN}
    return conform("published", columns | {"ts_ns": pa.array(second)}, len(rows))
