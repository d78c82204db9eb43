"""Stream metadata: what the broker says of streams, when it is asked, and when one is not available any more.

With the partitions of super streams that clients create: their names follow no rule.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from amqpscope.pipelines.model.events import Events, what
from amqpscope.pipelines.model.remembered import Remembers
from amqpscope.pipelines.model.walk import Needs, Rows, schema
from amqpscope.pipelines.stream.frames import STREAM_FRAMES

_CREATE = "create-super-stream"
COMMANDS = ("metadata", "metadata-update", _CREATE)
_COLUMNS = (
    "connection_id", "frame_no", "capture", "packet", "ts_ns", "from_client", "command", "stream", "streams",
    "response_code", "partitions", "brokers",
)  # fmt: skip
_WORDS = [what(STREAM_FRAMES, command) for command in COMMANDS]
_MOST = 1000
"""Streams of one frame that have rows."""


class StreamMetadata(Remembers):
    """The walk that writes `stream_metadata`: a row for each stream that one of COMMANDS names."""

    tables = ("stream_metadata",)
    needs: ClassVar[Mapping[int, Needs]] = {STREAM_FRAMES: Needs(_COLUMNS, COMMANDS)}

    def feed(self, events: Events) -> Iterator[Rows]:
        """Walk over a batch; yield the rows of its answers and updates."""
        at = np.flatnonzero(events.among(_WORDS))
        if not len(at):
            return
        frames = events.take(STREAM_FRAMES, at, _COLUMNS).to_pylist()
        found = [
            row for frame in frames if frame["from_client"] == (frame["command"] == _CREATE) for row in _rows(frame)
        ]
        if found:
            yield "stream_metadata", pa.Table.from_pylist(found, schema("stream_metadata"))


def _rows(frame: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if frame["command"] == "metadata-update":
        yield frame | {"left_out": 0}
        return
    streams = _listed(frame["partitions" if frame["command"] == _CREATE else "streams"])
    named = [each for each in _listed(frame["brokers"])[:_MOST] if isinstance(each, dict)]
    nodes = {each["reference"]: each for each in named if isinstance(each.get("reference"), int)}
    found = [each if isinstance(each, dict) else {"stream": each} for each in streams if isinstance(each, (dict, str))]
    for number, each in enumerate(found[:_MOST], 1):
        leader = nodes.get(each["leader"], {}) if isinstance(each.get("leader"), int) else {}
        yield frame | {
            "stream": each.get("stream"),
            "response_code": each.get("code"),
            "left_out": len(found) - _MOST if number == _MOST else 0,
            "leader_host": leader.get("host"),
            "leader_port": leader.get("port"),
        }


def _listed(text: str | None) -> list[Any]:
    """Return a list that a column has as JSON text; an empty one where it is none."""
    try:
        made = json.loads(text or "[]")
    except (ValueError, RecursionError):
        return []
    return made if isinstance(made, list) else []
