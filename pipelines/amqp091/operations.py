"""Operations: the methods by which clients and broker set things up, change and close them, one row each.

They are few beside publishes, deliveries and acknowledgements. Relations make channels, consumers, queues and bindings
of them, so that nobody has to read all frames again. What broker and clients give as a table of arguments and decides
about messages (a limit, a time to live) has typed columns.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from amqpscope.pipelines.amqp091.frames import FRAMES
from amqpscope.pipelines.model.events import Events, what
from amqpscope.pipelines.model.remembered import Remembers
from amqpscope.pipelines.model.walk import Needs, Rows, conform

METHODS = (
    "channel.open", "channel.open-ok", "channel.close", "channel.close-ok", "channel.flow",
    "exchange.declare", "exchange.delete", "exchange.bind", "exchange.unbind",
    "queue.declare", "queue.declare-ok", "queue.bind", "queue.unbind", "queue.purge", "queue.purge-ok",
    "queue.delete",
    "basic.qos", "basic.consume", "basic.consume-ok", "basic.cancel", "basic.cancel-ok", "basic.recover",
    "basic.return", "confirm.select", "tx.select", "connection.blocked", "connection.unblocked", "connection.close",
)  # fmt: skip
"""Methods that have a row."""
_LEADING = (
    "connection_id", "frame_no", "capture", "packet", "ts_ns", "from_client", "channel", "channel_epoch", "method",
)  # fmt: skip
_ARGUMENTS = (
    "exchange", "type", "queue", "routing_key", "destination", "source", "consumer_tag", "prefetch_count", "global",
    "passive", "durable", "exclusive", "auto_delete", "no_ack", "no_wait", "active", "message_count", "consumer_count",
    "reply_code", "reply_text", "reason", "arguments",
)  # fmt: skip
RENAMED = {"type": "exchange_type", "source": "source_exchange", "destination": "to_exchange", "global": "is_global"}
"""Columns that have another name here, which needs no quoting in SQL; `destination` is the exchange bound to."""
TYPED: Mapping[str, tuple[str, type]] = {
    "x-max-length": ("max_length", int),
    "x-max-length-bytes": ("max_length_bytes", int),
    "x-overflow": ("overflow", str),
    "x-message-ttl": ("message_ttl_ms", int),
    "x-delivery-limit": ("delivery_limit", int),
    "x-expires": ("expires_ms", int),
    "x-dead-letter-exchange": ("dead_letter_exchange", str),
    "x-dead-letter-routing-key": ("dead_letter_routing_key", str),
    "x-queue-type": ("queue_type", str),
    "x-single-active-consumer": ("single_active_consumer", bool),
    "alternate-exchange": ("alternate_exchange", str),
    "x-match": ("headers_match", str),
}
"""Arguments of declarations and bindings with columns of their own, and the types that they have there."""
_WORDS = [what(FRAMES, method) for method in METHODS]


class Operations(Remembers):
    """The walk that writes `operations`."""

    tables = ("operations",)
    needs: ClassVar[Mapping[int, Needs]] = {FRAMES: Needs(_ARGUMENTS, METHODS)}

    def feed(self, events: Events) -> Iterator[Rows]:
        """Walk over a batch; yield a row for each of METHODS."""
        at = np.flatnonzero(events.among(_WORDS))
        if len(at):
            rows = events.take(FRAMES, at, (*_LEADING, *_ARGUMENTS))
            columns = {RENAMED.get(name, name): rows[name] for name in rows.column_names}
            yield "operations", conform("operations", columns | typed(rows["arguments"]), len(rows))


def typed(arguments: pa.ChunkedArray) -> dict[str, pa.Array]:
    """Return the columns of TYPED.

    Args:
        arguments: JSON texts of field tables; null for none. A value of another type than declared is null.
    """
    distinct = pc.dictionary_encode(arguments.combine_chunks())
    found = [_object(text) for text in distinct.dictionary.to_pylist()]
    made = {}
    for key, (column, kind) in TYPED.items():
        values = [value if type(value := each.get(key)) is kind else None for each in found]
        made[column] = pa.array(values, _KINDS[kind]).take(distinct.indices)
    return made


_KINDS: Mapping[type, Any] = {int: pa.int64(), str: pa.string(), bool: pa.bool_()}


def _object(text: str | None) -> dict[str, Any]:
    """Return a JSON object; an empty one for anything else, and without numbers that no int64 can hold."""
    try:
        value = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}
    if not isinstance(value, dict):
        return {}
    return {k: v for k, v in value.items() if not isinstance(v, int) or -(1 << 63) <= v < 1 << 63}
