"""A trace for Perfetto: tracks for connections, publishes and deliveries as slices, flows, levels, findings.

Source: perfetto.dev, "Synthetic track events" (release 49). Slices of one track must nest, and publishes overlap: they
lie on as many tracks as overlap, each on the first that is free.
"""

from __future__ import annotations

import hashlib
import heapq
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from amqpscope.dashboards import findings, relations, units
from amqpscope.dashboards.tables import Tables
from amqpscope.errors import Error
from amqpscope.pipelines.relations import compute

BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4
"""Types of a track event."""
SEQUENCE = 1
BATCH = 1 << 14
SLICES = """
    select c.connection_id, c.channel, 'publish' as kind, coalesce(c.exchange, c.stream) as name, c.routing_key,
        c.publish_ts_ns as begin_ns, coalesce(c.confirm_ts_ns, c.end_ts_ns) as end_ns, c.outcome,
        c.publish_packet as begin_packet, c.confirm_packet as end_packet, c.publish_frame_no as frame_no,
        cast(null as bigint) as from_connection, cast(null as bigint) as from_frame
    from confirms c where c.publish_ts_ns is not null
    union all
    select s.connection_id, s.channel, 'deliver', coalesce(s.queue, s.consumer_tag), s.routing_key, s.deliver_ts_ns,
        coalesce(s.settle_ts_ns, s.end_ts_ns), s.outcome, s.deliver_packet, s.settle_packet, s.deliver_frame_no,
        t.publish_connection_id, t.publish_frame_no
    from settlements s
    left join (
        select deliver_connection_id, deliver_frame_no, max(publish_connection_id) as publish_connection_id,
            max(publish_frame_no) as publish_frame_no
        from transits where publish_frame_no is not null group by deliver_connection_id, deliver_frame_no
    ) t on s.connection_id = t.deliver_connection_id and s.deliver_frame_no = t.deliver_frame_no
    where s.deliver_ts_ns is not null
    order by connection_id, channel, kind, begin_ns, frame_no"""


def write(tables: Tables, path: Path) -> str:
    """Write a trace to a file.

    Raises:
        Error: nothing was published in confirm mode or delivered.
        OSError: the file cannot be written.
    """
    if tables.analyzed is None or not (tables.rows("confirms") or tables.rows("settlements")):
        raise Error("nothing to export: nothing was published in confirm mode, and nothing delivered")
    with path.open("wb") as file:
        trace = Trace(file)
        named = {row["connection_id"]: row for row in relations.rows(tables, "endpoints")}
        for identity, row in named.items():
            client = f"{row['client'] or 'client'} {row['client_ip']}:{row['client_port']}"
            trace.track(_uuid(identity), units.visible(client))
        with compute.opened(tables.analyzed, ("confirms", "settlements", "transits")) as database:
            for batch in database.sql(SLICES).to_arrow_reader(BATCH):
                for row in batch.to_pylist():
                    trace.slice(row)
        _levels(tables, trace)
        rows, _ = findings.read(tables)
        trace.track(_uuid("findings"), "findings")
        for row in rows:
            if row["first_ts_ns"] is not None:
                trace.event(row["first_ts_ns"], INSTANT, _uuid("findings"), f"[{row['code']}] {row['text']}")
    return f"{units.counted(trace.slices, 'slice')}, {units.counted(trace.flows, 'flow')}"


def _levels(tables: Tables, trace: Trace) -> None:
    known: set[int] = set()
    for row in sorted(relations.rows(tables, "occupancy"), key=lambda row: row["ts_ns"] or 0):
        if row["ts_ns"] is None:
            continue
        of = row["consumer_tag"] or f"channel {row['channel']}"
        subject = f"{row['level']} of {of}"
        track = _uuid(f"{row['connection_id']} {row['channel']} {row['channel_epoch']} {subject}")
        if track not in known:
            known.add(track)
            trace.track(track, units.visible(subject), _uuid(row["connection_id"]), is_counter=True)
        trace.count(row["ts_ns"], track, row["high"])
        trace.count(row["ts_ns"] + row["width_ns"], track, row["last"])


class Trace:
    """A trace that is written packet by packet.

    Args:
        file: gets the bytes.

    Attributes:
        slices: slices written.
        flows: deliveries that are tied to their publish.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.slices = self.flows = 0
        self._group: Any = None
        self._busy: list[tuple[int, int]] = []
        self._free: list[int] = []
        self._count = 0

    def track(self, uuid: int, name: str, parent: int | None = None, is_counter: bool = False) -> None:
        """Describe a track."""
        body = _varint(1, uuid) + _bytes(2, name.encode())
        body += _varint(5, parent) if parent is not None else b""
        body += _bytes(8, b"") if is_counter else b""
        self._packet(_bytes(60, body))

    def slice(self, row: dict[str, Any]) -> None:
        """Write a publish or delivery, from its begin to its answer; rows of a channel come in the order of time."""
        group = (row["connection_id"], row["channel"], row["kind"])
        if group != self._group:
            self._group, self._busy, self._free, self._count = group, [], [], 0
        begin, end = row["begin_ns"], row["end_ns"]
        end = begin if end is None or end < begin else end
        while self._busy and self._busy[0][0] <= begin:
            heapq.heappush(self._free, heapq.heappop(self._busy)[1])
        if self._free:
            lane = heapq.heappop(self._free)
        else:
            lane, self._count = self._count, self._count + 1
            name = f"{row['kind']} on channel {row['channel']}" + (f" ({lane + 1})" if lane else "")
            self.track(_lane(group, lane), name, _uuid(row["connection_id"]))
        heapq.heappush(self._busy, (max(end, begin + 1), lane))
        text = " ".join(filter(None, (row["name"] or "(default)", row["routing_key"])))
        facts = {"outcome": row["outcome"], "packet": row["begin_packet"], "answer": row["end_packet"]}
        flow = (row["connection_id"], row["frame_no"])
        if row["kind"] == "deliver":
            flow = (row["from_connection"], row["from_frame"])
        self.event(begin, BEGIN, _lane(group, lane), units.visible(text), facts, None if None in flow else _uuid(flow))
        self.event(max(end, begin + 1), END, _lane(group, lane))
        self.slices += 1
        self.flows += row["kind"] == "deliver" and None not in flow

    def event(
        self,
        ts_ns: int,
        kind: int,
        track: int,
        name: str = "",
        facts: dict[str, Any] | None = None,
        flow: int | None = None,
    ) -> None:
        """Write an event of a track."""
        body = _varint(9, kind) + _varint(11, track) + (_bytes(23, name.encode()) if name else b"")
        for key, value in (facts or {}).items():
            if value is not None:
                told = _varint(4, value) if isinstance(value, int) else _bytes(6, str(value).encode())
                body += _bytes(4, _bytes(10, key.encode()) + told)
        body += _fixed64(47, flow) if flow is not None else b""
        self._packet(_varint(8, ts_ns) + _bytes(11, body))

    def count(self, ts_ns: int, track: int, value: int) -> None:
        """Write a value of a counter."""
        self._packet(_varint(8, ts_ns) + _bytes(11, _varint(9, COUNTER) + _varint(11, track) + _varint(30, value)))

    def _packet(self, body: bytes) -> None:
        self._file.write(_bytes(1, body + _varint(10, SEQUENCE)))


def _lane(group: Any, lane: int) -> int:
    return _uuid((*group, lane))


def _uuid(of: Any) -> int:
    return int.from_bytes(hashlib.blake2b(repr(of).encode(), digest_size=8).digest(), "little") >> 1


def _varint(field: int, value: int) -> bytes:
    return bytes(_number(field << 3)) + bytes(_number(value & (1 << 64) - 1))


def _bytes(field: int, value: bytes) -> bytes:
    return bytes(_number(field << 3 | 2)) + bytes(_number(len(value))) + value


def _fixed64(field: int, value: int) -> bytes:
    return bytes(_number(field << 3 | 1)) + struct.pack("<Q", value)


def _number(value: int) -> Iterator[int]:
    while value > 0x7F:
        yield value & 0x7F | 0x80
        value >>= 7
    yield value
