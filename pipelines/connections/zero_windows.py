"""Zero windows: the intervals in which one side's TCP had no room for what the other sends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

import numpy as np
import pyarrow.compute as pc

from amqpscope.pipelines.model.ends import durations
from amqpscope.pipelines.model.events import CONNECTIONS, Events
from amqpscope.pipelines.model.listed import listed
from amqpscope.pipelines.model.remembered import Remembers
from amqpscope.pipelines.model.walk import Needs, Rows, conform, known

_WINDOW = tuple(f"{end}_{name}" for end in ("start", "end") for name in ("ts_ns", "capture", "packet"))


class ZeroWindows(Remembers):
    """The walk that writes rows of `flow_control` of cause zero-window.

    Windows come as a list in the connection's row (`windows`, see `preparing.with_tcp`).
    """

    tables = ("flow_control",)
    needs: ClassVar[Mapping[int, Needs]] = {CONNECTIONS: Needs(("windows",))}

    def feed(self, events: Events) -> Iterator[Rows]:
        """Walk over a batch; yield rows of the zero windows of connections that begin in it."""
        at = np.flatnonzero(events.source == CONNECTIONS)
        found = listed(events, at, "windows", ("last_ts_ns",))
        if found is None:
            return
        windows, connections = found
        zero = np.flatnonzero(pc.equal(windows["kind"], "zero").to_numpy())
        if not len(zero):
            return
        windows, connections = windows.take(zero), connections.take(zero)
        start = windows["start_ts_ns"].to_numpy()
        end = windows["end_ts_ns"].fill_null(-1).to_numpy()
        # One that did not end lasts to the last packet, if it had begun by then.
        until = np.where(end >= 0, end, np.maximum(start, connections["last_ts_ns"].fill_null(-1).to_numpy()))
        is_partial = pc.fill_null(windows["is_partial"], False)
        columns = {
            "connection_id": connections["connection_id"],
            "cause": "zero-window",
            **{name: windows[name] for name in _WINDOW},
            "duration_ns": known(np.where(is_partial.to_numpy(), -1, durations(start, until))),
            "side": pc.if_else(windows["from_client"], "client", "server"),
            "evidence": pc.if_else(is_partial, "possible", "proven"),
        }
        yield "flow_control", conform("flow_control", columns, len(zero))
