"""Delays by TCP: bytes lost and sent again, held back, stopped by a closed window, or waiting before a full link.

What a capture shows of them is in `tcp_events`; here each has its beginning and its end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from amqpscope.pipelines.model.events import CONNECTIONS, Events
from amqpscope.pipelines.model.listed import listed
from amqpscope.pipelines.model.remembered import Remembers
from amqpscope.pipelines.model.walk import Needs, Rows, conform

KINDS = pa.array(["retransmission", "delayed-ack", "held-write", "zero-window", "full-link"])


class TcpDelays(Remembers):
    """The walk that writes `tcp_delays`."""

    tables = ("tcp_delays",)
    needs: ClassVar[Mapping[int, Needs]] = {CONNECTIONS: Needs(("tcp_events",))}

    def feed(self, events: Events) -> Iterator[Rows]:
        """Walk over a batch; yield the delays of its connections."""
        found = listed(events, np.flatnonzero(events.source == CONNECTIONS), "tcp_events", ("last_ts_ns",))
        if found is None:
            return
        rows, connections = found
        some = pa.array(np.flatnonzero(pc.is_in(rows["kind"], value_set=KINDS).to_numpy()))
        if not len(some):
            return
        rows, connections = rows.take(some), connections.take(some)
        opens = pc.equal(rows["kind"], "zero-window")
        late = rows["late_ns"]
        last = pc.max_element_wise(connections["last_ts_ns"], rows["ts_ns"])
        until = pc.if_else(opens, pc.coalesce(pc.add(rows["ts_ns"], late), last), rows["ts_ns"])
        since = pc.if_else(opens, rows["ts_ns"], pc.coalesce(pc.subtract(rows["ts_ns"], late), rows["ts_ns"]))
        columns: dict[str, Any] = {
            "connection_id": connections["connection_id"], "start_ts_ns": since, "end_ts_ns": until,
            "duration_ns": pc.subtract(until, since),
        }  # fmt: skip
        columns |= {name: rows[name] for name in ("from_client", "kind", "bytes", "capture", "packet")}
        columns |= {name: rows[name] for name in ("of_capture", "of_packet", "round_trip_ns", "usual_round_trip_ns")}
        yield "tcp_delays", conform("tcp_delays", columns, len(rows))
