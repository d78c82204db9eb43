"""Rows of tables as events need them: the columns that all events have, and those derived from others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from amqpscope.pipelines.model import events as ev
from amqpscope.pipelines.model.digests import content, content_columns
from amqpscope.pipelines.model.events import ACKS, ANOMALIES, CONNECTIONS, MESSAGES, kinds, words_of
from amqpscope.pipelines.model.protocols import loaded

ACKED = "acked_ts_ns"
"""When TCP acknowledged the last byte of a row: a column of those of which a walk asks for it (`walk.Needs.asks`)."""
_LEADING: dict[int, tuple[str, ...]] = {
    CONNECTIONS: (
        "connection_id", "protocol", "first_ts_ns", "last_ts_ns", "closed_ts_ns", "closed_by", "handshake_outcome",
    ),
    ANOMALIES: ("connection_id", "frame_no", "code", "from_client", "ts_ns", "first_ts_ns", "detail"),
    MESSAGES: (
        "connection_id", "frame_no", "first_frame_no", "kind", "protocol", "from_client", "ts_ns", "first_ts_ns",
        "channel", "channel_epoch", "delivery_tag", "publish_seq", "is_partial", "unfinished", "capture", "packet",
    ),
    ACKS: ("connection_id", "from_client", "first_frame_no", "last_frame_no", "ts_ns"),
}  # fmt: skip
_DERIVED: dict[int, dict[str, tuple[str, ...]]] = {
    CONNECTIONS: {"closed": ("closed_by", "closed_ts_ns"), "one_direction": ("handshake_outcome",)},
    ANOMALIES: {"what": ("code",), "missing": ("code", "detail")},
    MESSAGES: {
        "what": ("kind", "protocol"),
        "order": ("kind", "first_frame_no", "frame_no"),
        "number": ("kind", "delivery_tag", "publish_seq"),
        "numbered_by": ("publish_seq",),
        "content": content_columns(),
        ACKED: (),
    },
    ACKS: {},
}
_SPENT: dict[int, tuple[str, ...]] = {
    CONNECTIONS: (),
    ANOMALIES: (),
    MESSAGES: ("first_frame_no", "protocol", "delivery_tag"),
    ACKS: (),
}


def leading(source: int) -> tuple[str, ...]:
    """Return the columns of a table that all of its events have."""
    return ev.FRAMES_OF[source].leading if source in ev.FRAMES_OF else _LEADING[source]


def derived(source: int) -> Mapping[str, tuple[str, ...]]:
    """Return the columns that `prepared` makes, of which others.

    `content` (`digests.content`) is made for walks that ask for it.
    """
    return (
        {"what": (ev.EVENT_OF[source],), ACKED: (), **ev.FRAMES_OF[source].derived}
        if source in ev.FRAMES_OF
        else _DERIVED[source]
    )


def spent(source: int) -> tuple[str, ...]:
    """Return the leading columns that only `prepared` reads."""
    return ev.FRAMES_OF[source].spent if source in ev.FRAMES_OF else _SPENT[source]


DERIVED_WHEN_ASKED = ("content", ACKED)
"""Those of DERIVED that are made only for walks that need them; ACKED when all rows are there."""
ONE_DIRECTION = "one-direction"
"""What `handshake_outcome` says where nothing of one direction was captured."""
GAP = "tcp-gap"
X_DEATH = '"x-death"'
"""What headers (JSON text) of dead-lettered messages contain."""
_BYTES = r"^(?P<n>[0-9,]{1,20}) bytes? not captured"


def needed(source: int, columns: Sequence[str]) -> tuple[str, ...]:
    """Return the columns of a table that `prepared` takes, where walks want these besides the leading ones."""
    made = derived(source)
    wanted = [base for name in columns for base in made.get(name, (name,))]
    return tuple(dict.fromkeys((*leading(source), *wanted)))


def prepared(source: int, rows: pa.Table, columns: Sequence[str] = (), compiled: bool | None = None) -> pa.Table:
    """Return rows of a table with the `derived` columns that events need.

    Args:
        source: one of SOURCES.
        rows: with the columns that are `needed`.
        columns: those that walks want besides the leading ones.
        compiled: whether digests are computed by compiled kernels; None leaves it to their size.
    """
    if source == ACKS:
        return rows
    if source == CONNECTIONS:
        rows = rows.append_column("one_direction", pc.equal(rows["handshake_outcome"].cast(pa.string()), ONE_DIRECTION))
        is_evicted = pc.fill_null(pc.equal(rows["closed_by"].cast(pa.string()), "evicted"), False)
        # A close of the protocol alone ends nothing: its answer, a FIN or a RST may have come after the capture.
        is_over = pc.or_(pc.is_valid(rows["closed_ts_ns"]), is_evicted)
        closed = pc.add(is_over.cast(pa.int8()), is_evicted.cast(pa.int8()))
        return rows.append_column("closed", closed)
    rows = rows.append_column("what", words_of(source, rows).cast(pa.int16()))
    if source == ANOMALIES:
        return rows.append_column("missing", _missing(rows))
    if source in ev.FRAMES_OF:
        prepare = ev.FRAMES_OF[source].prepare
        return loaded(prepare)(rows) if prepare else rows
    delivered = pc.is_in(rows["what"], value_set=pa.array(kinds("deliver", "get"), pa.int16()))
    order = pc.if_else(
        pc.and_(delivered, pc.is_valid(rows["first_frame_no"])), rows["first_frame_no"], rows["frame_no"]
    )
    if "numbered_by" not in rows.column_names:
        by = pc.if_else(pc.is_valid(rows["publish_seq"]), pa.scalar("counted"), pa.scalar(None, pa.string()))
        rows = rows.append_column("numbered_by", by)
    if "content" in columns and "content" not in rows.column_names:
        rows = rows.append_column("content", pa.array(content(rows, compiled)))
    if "headers" in columns:
        rows = rows.set_column(rows.column_names.index("headers"), "headers", _wanted_headers(rows))
    return rows.append_column("order", order).append_column(
        "number", pc.if_else(delivered, rows["delivery_tag"], rows["publish_seq"])
    )


def _missing(anomalies: pa.Table) -> Any:
    """Return the bytes (int64) that a gap lacks, as its detail says; null of all else."""
    is_gap = pc.equal(anomalies["code"].cast(pa.string()), GAP)
    said = pc.extract_regex(pc.if_else(is_gap, anomalies["detail"].cast(pa.string()), None), _BYTES)
    return pc.replace_substring(pc.struct_field(said, "n"), ",", "").cast(pa.int64())


def _wanted_headers(messages: pa.Table) -> pa.ChunkedArray:
    """Return headers of publishes without a certain number, which they may give, and those that name deaths.

    Other headers are not needed.
    """
    wanted = pc.fill_null(pc.match_substring(messages["headers"].cast(pa.string()), X_DEATH), False)
    if "publish_seq_unsure" in messages.column_names:
        wanted = pc.or_(wanted, pc.fill_null(messages["publish_seq_unsure"], False))
    there = wanted.to_numpy()
    if not there.any():
        return pa.chunked_array([pa.nulls(len(messages), pa.string())])
    place = pa.array(np.cumsum(there) - 1, mask=~there)
    return messages["headers"].filter(wanted).cast(pa.string()).take(place)
