"""Writes small connections as rows of the tables that `dissect` would write for them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from amqpscope.dissector.tables.output import NOTE
from amqpscope.pipelines.model import walk

TICK = 1000
"""Frame n is complete at n * TICK ns, in packet n + 1 of `a.pcap`, unless a test says otherwise."""

_ids = itertools.count(1)


class Connection:
    """A connection; each call appends frames and gives the number of the last."""

    def __init__(self, **columns: Any) -> None:
        self.id = next(_ids)
        self.frames: list[dict[str, Any]] = []
        self.messages: list[dict[str, Any]] = []
        self.anomalies: list[dict[str, Any]] = []
        self.columns = columns

    def frame(self, from_client: bool, channel: int = 1, epoch: int = 1, **columns: Any) -> int:
        number = len(self.frames)
        self.frames.append(
            {
                "connection_id": self.id,
                "frame_no": number,
                "capture": "a.pcap",
                "packet": number + 1,
                "ts_ns": number * TICK,
                "first_ts_ns": number * TICK,
                "from_client": from_client,
                "channel": channel,
                "channel_epoch": epoch,
                "frame_type": "method" if "method" in columns else "body",
                **columns,
            }
        )
        return number

    def client(self, method: str, channel: int = 1, epoch: int = 1, **columns: Any) -> int:
        return self.frame(True, channel, epoch, method=method, **columns)

    def server(self, method: str, channel: int = 1, epoch: int = 1, **columns: Any) -> int:
        return self.frame(False, channel, epoch, method=method, **columns)

    def message(self, kind: str, channel: int = 1, epoch: int = 1, **columns: Any) -> int:
        """A message in three frames: method, header and body."""
        method = {"publish": "publish", "deliver": "deliver", "get": "get-ok", "return": "return"}[kind]
        from_client = kind == "publish"
        first = self.frame(from_client, channel, epoch, method=f"basic.{method}")
        self.frame(from_client, channel, epoch, frame_type="header")
        last = self.frame(from_client, channel, epoch)
        row = {k: v for k, v in self.frames[last].items() if k not in ("frame_type", "method")}
        defaults = {"exchange": "", "routing_key": "q", "body_size": 5, "body_hash": 99}
        if from_client:
            defaults["mandatory"] = False
        row |= {"first_frame_no": first, "protocol": "amqp-0-9-1", "kind": kind}
        self.messages.append(row | defaults | columns)
        return last

    def publish(self, seq: int | None, **columns: Any) -> int:
        return self.message("publish", publish_seq=seq, **columns)

    def deliver(self, tag: int, consumer: str = "c", no_ack: bool | None = False, **columns: Any) -> int:
        return self.message("deliver", delivery_tag=tag, consumer_tag=consumer, no_ack=no_ack, **columns)

    def ack(self, tag: int, multiple: bool = False, *, client: bool = False, **columns: Any) -> int:
        return self.frame(client, method="basic.ack", delivery_tag=tag, multiple=multiple, **columns)

    def nack(self, tag: int, multiple: bool = False, *, client: bool = False, **columns: Any) -> int:
        return self.frame(client, method="basic.nack", delivery_tag=tag, multiple=multiple, **columns)

    def lose(self, from_client: bool) -> int:
        """A gap before the next frame."""
        where = {"connection_id": self.id, "frame_no": len(self.frames), "ts_ns": len(self.frames) * TICK}
        self.anomalies.append(where | {"from_client": from_client, "code": "tcp-gap"})
        return len(self.frames)

    def break_rules(self, from_client: bool, code: str, detail: str) -> int:
        """An anomaly of a side before the next frame."""
        at = self.lose(from_client)
        self.anomalies[-1] |= {"code": code, "detail": detail}
        return at

    def delay(self, frames: int, messages: int = 0) -> None:
        """The last frames come late, for the length of one before them was damaged: they were sent at the beginning."""
        rows = [*self.frames[len(self.frames) - frames :], *self.messages[len(self.messages) - messages :]]
        first = len(self.frames) - frames
        where = {
            "connection_id": self.id,
            "frame_no": first,
            "ts_ns": 0,
            "from_client": self.frames[first]["from_client"],
        }
        self.anomalies.append(where | {"code": "frame-length-wrong"})
        for row in rows:
            row["ts_ns"] = row["first_ts_ns"] = 0

    @property
    def end(self) -> int:
        return len(self.frames) * TICK

    def row(self) -> dict[str, Any]:
        defaults = {"connection_id": self.id, "protocol": "amqp-0-9-1", "last_ts_ns": self.end, "lost_bytes": 0}
        return ended(defaults | {"first_ts_ns": 0, "rtt_ns": 10 * TICK} | self.columns)


def ended(row: dict[str, Any]) -> dict[str, Any]:
    """The row of a connection: one that is closed had a FIN or a RST, by default at its end."""
    return {"closed_ts_ns": row["last_ts_ns"]} | row if row.get("closed_by") not in (None, "evicted") else row


def arrow(connections: Iterable[Connection]) -> dict[str, pa.Table]:
    """All tables for these connections, as `dissect` would write them."""
    connections = list(connections)
    rows = {
        "connections": [each.row() for each in connections],
        "anomalies": [row for each in connections for row in each.anomalies],
        "amqp091_frames": [row for each in connections for row in each.frames],
        "messages": [row for each in connections for row in each.messages],
    }
    return {name: arrow_table(name, found) for name, found in rows.items()}


def arrow_table(name: str, rows: Iterable[dict[str, Any]]) -> pa.Table:
    """Rows of a declared table; columns that a row lacks are null."""
    declared = walk.schema(name)
    rows = list(rows)
    given = {key for row in rows for key in row}
    assert given <= set(declared.names), given - set(declared.names)
    columns = [
        pa.array([row.get(key) for row in rows], kind) if key in given else pa.nulls(len(rows), kind)
        for key, kind in zip(declared.names, declared.types, strict=True)
    ]
    return pa.table(columns, schema=declared)


def by_connection(result: pa.Table, *order: str) -> dict[int, list[dict[str, Any]]]:
    """Rows by connection, ordered by the given columns."""
    found: dict[int, list[dict[str, Any]]] = {}
    for row in sorted(result.to_pylist(), key=lambda row: [row[name] for name in order]):
        found.setdefault(row["connection_id"], []).append(row)
    return found


def check(rows: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    """The rows have these values in these columns, in this order, and there are no others."""
    got = [{key: row[key] for key in wanted} for row, wanted in zip(rows, expected, strict=False)]
    assert got == expected
    assert len(rows) == len(expected)


EMPTY = ("anomalies", "captures", "stream_frames", "amqp010_frames", "tcp_windows", "tcp_events")


def written(folder: Path, connections: list[Connection], **note: Any) -> Path:
    """A folder as `dissect` leaves it."""
    empty = {name: walk.schema(name).empty_table() for name in EMPTY}
    for name, table in (empty | arrow(connections)).items():
        (folder / name).mkdir(parents=True)
        pq.write_table(table, folder / name / "part-0.parquet")
    (folder / NOTE).write_text(json.dumps({"complete": True, "from_ns": None, "to_ns": None} | note))
    return folder
