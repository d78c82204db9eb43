"""Deaths: deliveries of messages that were dead-lettered before, and how often.

The broker counts in the header x-death, for each queue and reason; the oldest pair stands last. Source: RabbitMQ, Dead
Letter Exchanges, "Effects on messages".
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from amqpscope.pipelines.model.events import MESSAGES, Events, what
from amqpscope.pipelines.model.remembered import Remembers
from amqpscope.pipelines.model.walk import Needs, Rows, conform

_COPIED = (
    "connection_id", "channel", "channel_epoch", "frame_no", "capture", "packet", "ts_ns", "message_id", "headers",
)  # fmt: skip
_GIVEN = [what(MESSAGES, kind) for kind in ("deliver", "get")]
_TEXTS = ("queue", "reason", "exchange")


class Deaths(Remembers):
    """The walk that writes `deaths`."""

    tables = ("deaths",)
    needs: ClassVar[Mapping[int, Needs]] = {MESSAGES: Needs(("message_id", "headers"), ("deliver", "get"))}

    def feed(self, events: Events) -> Iterator[Rows]:
        """Walk over a batch; yield a row for each delivery with x-death."""
        at = np.flatnonzero(events.among(_GIVEN))
        if not len(at):
            return
        rows = events.take(MESSAGES, at, _COPIED)
        rows = rows.filter(pc.is_valid(rows["headers"]))
        found = [_deaths(text) for text in rows["headers"].to_pylist()]
        rows = rows.filter(pa.array([bool(each) for each in found], pa.bool_()))
        found = [each for each in found if each]
        if found:
            columns: dict[str, Any] = {name: rows[name] for name in _COPIED[:-1]}
            kinds = {"count": pa.int64(), "places": pa.int32()} | dict.fromkeys(_TEXTS, pa.string())
            columns |= {name: pa.array([each[name] for each in found], kind) for name, kind in kinds.items()}
            yield "deaths", conform("deaths", columns, len(found))


def _deaths(text: str) -> dict[str, Any]:
    """Return what headers (JSON text) say of deaths: where and why first, and the largest count; {} for none."""
    try:
        headers = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    deaths = headers.get("x-death") if isinstance(headers, dict) else None
    places = [each for each in deaths if isinstance(each, dict)] if isinstance(deaths, list) else []
    if not places:
        return {}
    counts = [n for each in places if type(n := each.get("count")) is int and 0 <= n < 1 << 63]
    texts = {name: value if isinstance(value := places[-1].get(name), str) else None for name in _TEXTS}
    return {**texts, "count": max(counts, default=None), "places": len(places)}
