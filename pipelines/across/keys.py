"""Keys of messages: what identifies one on whichever connection it is seen.

The key of a message is the first of message id, trace and content that it has. Rows with a key are the input of walks
over keys: an engine groups and sorts them by key.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from amqpscope.pipelines.across.consumed import consumers
from amqpscope.pipelines.model.digests import combined, content, content_columns, has_body, hashed

MESSAGE_ID, TRACE, CONTENT, KINDS = range(4)
"""Kinds of keys, best first; KINDS stands for none."""
NO_TIME = -(1 << 62)
"""Stands for a null time: it is in the window of other null times, and of no real time."""
COLUMNS = tuple(
    dict.fromkeys(
        (
            "connection_id", "frame_no", "capture", "packet", "ts_ns", "kind", "unfinished", "cut_by", "message_id",
            "trace_id", "span_id", "redelivered", "headers", "channel", "channel_epoch", "consumer_tag",
            *content_columns(),
        )
    )
)  # fmt: skip
"""What `keyed` takes of `messages`."""
KEYED = pa.schema(
    [
        pa.field("key", pa.int64(), nullable=False),
        pa.field("key_kind", pa.int8(), nullable=False),
        pa.field("trace", pa.int64(), nullable=False),
        pa.field("content", pa.int64(), nullable=False),
        pa.field("ts_ns", pa.int64(), nullable=False),
        pa.field("is_delivery", pa.bool_(), nullable=False),
        pa.field("unfinished", pa.bool_(), nullable=False),
        pa.field("correlated", pa.bool_(), nullable=False),
        pa.field("connection_id", pa.int64()),
        pa.field("frame_no", pa.int64()),
        pa.field("packet", pa.int64()),
        pa.field("capture", pa.string()),
        pa.field("exchange", pa.string()),
        pa.field("routing_key", pa.string()),
        pa.field("message_id", pa.string()),
        pa.field("redelivered", pa.bool_()),
        pa.field("place", pa.int64(), nullable=False),
        pa.field("moved", pa.int8(), nullable=False),
        pa.field("returns", pa.int64()),
        pa.field("consumer", pa.int64(), nullable=False),
        pa.field("body", pa.int64(), nullable=False),
    ]
)
"""Rows of publishes and deliveries. Digests are 0 where a message has none; `ts_ns` is NO_TIME where it is null;
`correlated`: there is a correlation id. `place` is the digest of exchange and routing key, where both are known;
`moved` says whether headers allow another; `returns`: how often a quorum queue took it back (x-delivery-count);
`consumer` is the digest of what it was delivered to (`consumed.consumers`), `body` that of its body, where brokers pass
it on as it is."""
STAYED, ELSEWHERE, FROM_AFAR = range(3)
"""Of `moved`: at its place; perhaps at another (dead-lettered, CC, BCC); perhaps at another broker or virtual host."""
DELIVERIES = ("deliver", "get")
"""Kinds of messages that are deliveries."""
ORDER = ("key", "ts_ns", "is_delivery", "connection_id", "frame_no")
"""Columns that rows are sorted by, ascending; all rows of a key go to one walk."""
_ELSEWHERE = r'"(x-death|CC|BCC)": ?\['
_FROM_AFAR = r'"(x-received-from|x-shovelled|x-shovelled-by)": ?[\[{"t]'
_COUNT = r'"x-delivery-count": ?(?P<n>[0-9]{1,9})\b'
_EMPTY = hashed(pa.array([""]))[0]


def keyed(messages: pa.Table, compiled: bool | None = None) -> pa.Table:
    """Make rows with keys, yet to be sorted.

    Publishes without a key, and messages that are not whole, are left out. Deliveries without one have a key of their
    own each, so that they spread.

    Args:
        messages: rows of `messages` with COLUMNS; and `content`, where that is known already.
        compiled: whether to run compiled; None leaves it to the size of the columns.

    Returns:
        Rows of the schema KEYED.
    """
    is_delivery = pc.fill_null(pc.is_in(messages["kind"], value_set=pa.array(DELIVERIES)), False)
    is_publish = pc.fill_null(pc.equal(messages["kind"], "publish"), False)
    kinds = _kinds(messages, compiled)
    key = combined([np.where(first, digests, 0) for first, digests in _firsts(kinds)], compiled)
    key_kind = np.select([digests != 0 for digests in kinds], range(KINDS), KINDS).astype(np.int8)
    without = key == 0
    if without.any():
        mask = pa.array(without)
        key[without] = combined([messages[name].filter(mask) for name in ("connection_id", "frame_no")], compiled)
    rows = pa.table(
        [
            pa.array(key),
            pa.array(key_kind),
            pa.array(kinds[TRACE]),
            pa.array(kinds[CONTENT]),
            messages["ts_ns"].fill_null(NO_TIME),
            is_delivery,
            messages["unfinished"].fill_null(False),
            pc.fill_null(pc.not_equal(messages["correlation_id"].cast(pa.string()), ""), False),
            *(messages[name] for name in KEYED.names[8:16]),
            pa.array(place := _places(messages, compiled)),
            _moved(messages["headers"]),
            _returns(messages),
            pa.array(consumers(messages, compiled)),
            pa.array(_bodies(messages, place, compiled)),
        ],
        schema=KEYED,
    )
    wanted = pc.or_(is_delivery, pc.and_(is_publish, pa.array(~without)))
    wanted = pc.and_not(wanted, pc.is_valid(messages["cut_by"]))
    return rows if pc.all(wanted).as_py() else rows.filter(wanted)


def _kinds(messages: pa.Table, compiled: bool | None) -> list[Any]:
    """Return digests (int64) by kind, 0 where a message has none."""
    message_id, trace_id, span_id = (hashed(messages[name], compiled) for name in ("message_id", "trace_id", "span_id"))
    message_id[message_id == _EMPTY] = 0
    trace = combined([trace_id, span_id])
    trace[(trace_id == 0) | (span_id == 0)] = 0
    found = messages["content"].to_numpy().copy() if "content" in messages.column_names else content(messages, compiled)
    found[~has_body(messages)] = 0
    return [message_id, trace, found]


def _places(messages: pa.Table, compiled: bool | None) -> Any:
    """Return digests (int64) of exchange and routing key, 0 unless both are known: those of streams are null."""
    found = combined([messages["exchange"], messages["routing_key"]], compiled)
    found[pc.or_(messages["exchange"].is_null(), messages["routing_key"].is_null()).to_numpy()] = 0
    return found


def _bodies(messages: pa.Table, places: Any, compiled: bool | None) -> Any:
    """Return digests (int64) of bodies, 0 unless these and the places are known.

    Where messages have no exchange and key, their bodies have sections, which brokers may write anew.
    """
    found = combined([messages["body_size"], messages["body_hash"]], compiled)
    found[messages["body_hash"].is_null().to_numpy() | (places == 0)] = 0
    return found


def _moved(headers: Any) -> Any:
    """Return what headers (JSON text) say of the way that a message took, as `moved` (int8)."""
    if headers.null_count == len(headers):
        return pa.array(np.zeros(len(headers), np.int8))
    text = headers.cast(pa.string())
    elsewhere, afar = (pc.fill_null(pc.match_substring_regex(text, by), False) for by in (_ELSEWHERE, _FROM_AFAR))
    return pc.if_else(afar, FROM_AFAR, pc.if_else(elsewhere, ELSEWHERE, STAYED)).cast(pa.int8())


def _returns(messages: pa.Table) -> Any:
    """Return x-delivery-count (int64) of deliveries that are repeated; null without."""
    if not pc.any(messages["redelivered"]).as_py():
        return pa.nulls(len(messages), pa.int64())
    text = pc.if_else(messages["redelivered"], messages["headers"].cast(pa.string()), None)
    return pc.struct_field(pc.extract_regex(text, _COUNT), "n").cast(pa.int64())


def _firsts(kinds: list[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield, for each kind, where it is the first that a message has, and its digests."""
    none = np.ones(len(kinds[0]), bool)
    for digests in kinds:
        yield none, digests
        none = none & (digests == 0)


def ordered(rows: pa.Table) -> pa.Table:
    """Sort rows of `keyed` by ORDER."""
    columns = [rows[name].to_numpy() for name in reversed(ORDER)]
    return rows.take(pa.array(np.lexsort(columns)))
