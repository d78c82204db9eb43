"""Endpoints: who the two ends of each connection are, by name, and how the connection fared; one row each.

A client is its connection name (client property `connection_name`), else its product and address: behind one address
there may be many. Properties are JSON texts in `connections`; here those that people look for have columns.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from amqpscope.pipelines.model.events import CONNECTIONS, EV, Events, what
from amqpscope.pipelines.model.open_rows import OpenRows
from amqpscope.pipelines.model.walk import Needs, Rows, conform

KEPT = (
    "connection_id", "protocol", "client_ip", "client_port", "server_ip", "server_port", "vhost", "user", "mechanism",
    "first_capture", "first_packet", "last_capture", "last_packet", "first_ts_ns", "last_ts_ns", "syn_seen", "packets",
    "bytes", "frames", "messages", "rtt_ns", "vantage", "handshake_stage", "handshake_outcome", "handshake_cause",
    "ending", "ending_cause", "severity", "handshake_ns", "closed_by", "closed_ts_ns", "reply_code", "reply_text",
    "heartbeat", "channel_max", "frame_max", "tls_version", "tls_decrypted", "tls_certificate_ends_ns", "lost_bytes",
    "skipped_bytes", "retransmitted_bytes", "client_zero_window_ns", "server_zero_window_ns", "capture_points",
    "quiet_ns", "outlived_ns", "client_rtt_ns",
)  # fmt: skip
"""Columns as in `connections`."""
PROPERTIES = ("client_properties", "server_properties")
ACKNOWLEDGED = tuple(f"{side}_{kind}_ns" for side in ("client", "server") for kind in ("ack", "bare_ack"))
"""How soon each side acknowledged bytes at the soonest: by any segment, by one without bytes."""
HELD_NS = ((35_000_000, 60_000_000), (90_000_000, 110_000_000), (190_000_000, 210_000_000))
"""Systems hold acknowledgements back for bytes to send with them, by 40, 100 or 200 ms: what takes another time was not
held."""
_READ = (*KEPT, *PROPERTIES, *ACKNOWLEDGED)
_CONNECTION = what(CONNECTIONS)
_NAMED = ("product", "version", "platform")
_LONGEST = 200
"""Characters of a name that are kept: names are labels, and hostile clients have long ones."""


class Endpoints(OpenRows):
    """The walk that writes `endpoints`. Its state is the row of the open connection: a later one replaces it."""

    tables, VERSION = ("endpoints",), 6
    needs: ClassVar[Mapping[int, Needs]] = {CONNECTIONS: Needs(_READ)}

    def feed(self, events: Events) -> Iterator[Rows]:
        """Walk over a batch; yield rows of connections that are over."""
        if not len(events):
            return
        last = int(events.matrix[-1, EV.CONNECTION])
        at = np.flatnonzero(events.among((_CONNECTION,)))
        rows = events.take(CONNECTIONS, at, _READ) if len(at) else None
        if self._open is not None and (rows is None or self._identity not in rows["connection_id"].to_pylist()):
            rows = self._open if rows is None else pa.concat_tables([self._open, rows], promote_options="default")
        self._open = None
        if rows is None:
            return
        is_last = pc.equal(rows["connection_id"], last)
        over, still = rows.filter(pc.invert(is_last)), rows.filter(is_last)
        if len(still):
            self._open = still.slice(len(still) - 1)
        if len(over):
            yield "endpoints", _declared(over)

    @property
    def _identity(self) -> int:
        assert self._open is not None
        return int(self._open["connection_id"][0].as_py())

    def declared(self, rows: pa.Table) -> pa.Table:
        """See `OpenRows`."""
        return _declared(rows)


def _declared(rows: pa.Table) -> pa.Table:
    client, server = (_properties(rows[name]) for name in PROPERTIES)
    addresses = zip(*(rows[name].to_pylist() for name in ("client_ip", "server_ip", "server_port")), strict=True)
    names, servers = [], []
    for properties, (client_ip, server_ip, port) in zip(client, addresses, strict=True):
        product = properties.get("product")
        names.append(properties.get("connection_name") or (f"{product} {client_ip}" if product else client_ip))
        servers.append(f"[{server_ip}]:{port}" if ":" in (server_ip or "") else f"{server_ip}:{port}")
    columns: dict[str, Any] = {name: rows[name] for name in KEPT}
    columns |= {"client": pa.array(names, pa.string()), "server": pa.array(servers, pa.string())}
    columns |= dict(zip(("rtt_ns", "client_rtt_ns"), _round_trips(rows), strict=True))
    columns |= {"announces_blocked": _announced(rows)}
    columns |= {"connection_name": _texts(client, "connection_name")}
    columns |= {name: _texts(client, name) for name in _NAMED}
    columns |= {f"server_{name}": _texts(server, name) for name in _NAMED[:2]}
    columns |= {"cluster_name": _texts(server, "cluster_name"), "unreadable": _unreadable(rows)}
    return conform("endpoints", columns, len(rows))


def _round_trips(rows: pa.Table) -> tuple[Any, Any]:
    """Return round trips, and their parts between capture point and client (int64): the handshake's, or by _way."""
    soonest = np.stack([rows[name].fill_null(-1).to_numpy() for name in ACKNOWLEDGED])
    (client, client_bare), (server, server_bare) = soonest[:2], soonest[2:]
    near, far = _way(client, client_bare), _way(server, server_bare)
    # what may have been held as well counts where it is little beside the other one
    near = np.where((near < 0) & (far >= 0) & (client >= 0) & (10 * client <= far), client, near)
    far = np.where((far < 0) & (near >= 0) & (server >= 0) & (10 * server <= near), server, far)
    is_known = (near >= 0) & (far >= 0)
    both = pa.array(near + far, mask=~is_known), pa.array(near, mask=~is_known)
    is_timed = rows["rtt_ns"].is_valid()
    return tuple(
        pc.if_else(is_timed, rows[name], own) for name, own in zip(("rtt_ns", "client_rtt_ns"), both, strict=True)
    )


def _way(soonest: Any, bare: Any) -> Any:
    """Return how long the way to a side and back takes (int64 array, ns); -1 where it may be shorter."""
    may_wait = np.any([(low <= bare) & (bare <= high) for low, high in HELD_NS], axis=0)
    return np.where((bare >= 0) & ~may_wait, np.minimum(soonest, bare), -1)


def _unreadable(rows: pa.Table) -> pa.Array:
    """Return why what a connection says cannot be read; null where it can."""
    outcome = rows["handshake_outcome"].fill_null("")
    is_tls = pc.or_(rows["tls_version"].is_valid(), pc.equal(rows["protocol"].fill_null(""), "tls"))
    is_open = pc.or_(rows["tls_decrypted"].fill_null(False), pc.equal(outcome, "tls-on-plain-port"))
    is_half = pc.and_(pc.equal(outcome, "one-direction"), pc.greater(rows["bytes"].fill_null(0), 0))
    reasons = pc.if_else(is_half, "one-direction", pa.scalar(None, pa.string()))
    return pc.if_else(pc.and_(is_tls, pc.invert(is_open)), "encrypted", reasons)


def _properties(texts: pa.ChunkedArray) -> list[dict[str, str]]:
    """Return the properties of each row that are texts."""
    distinct = pc.dictionary_encode(texts.cast(pa.string()).combine_chunks())
    found = [_strings(text) for text in distinct.dictionary.to_pylist()]
    return [found[at] if at is not None else {} for at in distinct.indices.to_pylist()]


def _strings(text: str) -> dict[str, str]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(value, dict):
        return {}
    return {key: each[:_LONGEST] for key, each in value.items() if isinstance(each, str)}


def _announced(rows: pa.Table) -> pa.Array:
    """Return whether clients announce connection.blocked (bool); null where the broker does not, or unseen."""
    client, server = (
        pc.match_substring_regex(rows[name].cast(pa.string()), r'"connection\.blocked": ?true') for name in PROPERTIES
    )
    return pc.if_else(pc.fill_null(server, True), client, None).combine_chunks()


def _texts(properties: list[dict[str, str]], name: str) -> pa.Array:
    return pa.array([each.get(name) for each in properties], pa.string())
