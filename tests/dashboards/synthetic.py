"""Tables of a made-up shop, with the columns of the contract: numbers that are known without any analysis.

`shop` writes both folders. Latencies are log-normal with a stall; one connection is blocked; some publishes are
nacked, returned, discarded, or still outstanding at the end. `write` makes a table from rows; columns that are
not named are null.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from amqpscope import spec
from amqpscope.dashboards.tables import Tables

START = 1_792_000_000_000_000_000
SECOND = 1_000_000_000
TYPES = {
    "int64": pa.int64(),
    "int32": pa.int32(),
    "bool": pa.bool_(),
    "string": pa.string(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", "UTC"),
    "double": pa.float64(),
}


def write(folder: Path, table: str, rows: Iterable[Mapping[str, Any]] = (), parts: int = 1) -> None:
    """Write a table with its schema, also without rows."""
    declared = spec.tables()[table]
    declared = declared.with_methods(spec.load(declared.methods_of)) if declared.methods_of else declared
    schema = pa.schema([(c.name, TYPES[c.type]) for c in declared.columns])
    rows = list(rows)
    unknown = {key for row in rows for key in row} - set(schema.names)
    assert not unknown, unknown
    (folder / table).mkdir(parents=True)
    size = -(-len(rows) // parts) or 1
    for part in range(parts):
        whole = pa.Table.from_pylist([dict(r) for r in rows[part * size : (part + 1) * size]], schema=schema)
        pq.write_table(whole, folder / table / f"part-{part:05}.parquet")


def bucket(latency: int) -> tuple[int, int, int]:
    """A log-linear bucket with 7 bits: its number, first latency, and the latency just above it."""
    if latency < 256:
        return latency, latency, latency + 1
    shift = latency.bit_length() - 8
    low = latency >> shift
    return (shift + 1) * 128 + low - 128, low << shift, (low + 1) << shift


def summarise(
    metric: str, rows: list[dict[str, Any]], good: set[str], keys: Mapping[str, tuple[str, ...]]
) -> tuple[list, list]:
    """Rows of latency_summary and latency_buckets, by exact sorting."""
    summary, buckets = [], []
    for grouping, columns in keys.items():
        groups: dict[tuple, list[dict[str, Any]]] = {}
        for row in rows:
            groups.setdefault(tuple(row[c] for c in columns), []).append(row)
        for key, members in groups.items():
            named = {"metric": metric, "grouping": grouping, **dict(zip(columns, key, strict=True))}
            known = sorted(r["latency_ns"] for r in members if r["latency_ns"] is not None)
            figures = {
                c: known[min(len(known) - 1, int(np.ceil(q * len(known))) - 1)] if known else None
                for c, q in (
                    ("p50_ns", 0.5),
                    ("p90_ns", 0.9),
                    ("p99_ns", 0.99),
                    ("p999_ns", 0.999),
                    ("p9999_ns", 0.9999),
                )
            }
            summary.append(
                {
                    **named,
                    "count": len(known),
                    "failed": sum(r["outcome"] in {"nack", "reject", "error"} for r in members),
                    "censored": sum(r["outcome"] == "none" for r in members),
                    **figures,
                    "max_ns": known[-1] if known else None,
                }
            )
            counts: dict[tuple[int, int, int], int] = {}
            for latency in known:
                counts[bucket(latency)] = counts.get(bucket(latency), 0) + 1
            buckets += [
                {**named, "bucket": b, "low_ns": low, "high_ns": high, "count": n}
                for (b, low, high), n in sorted(counts.items())
            ]
    return summary, buckets


def confirms(
    rng: np.random.Generator, connection: int, channel: int, number: int, seconds: float, file: str
) -> list[dict[str, Any]]:
    """Publishes of one channel, with a stall of two seconds at 40 % of the time."""
    times = START + np.sort(rng.uniform(0, seconds * SECOND, number)).astype(np.int64)
    latency = rng.lognormal(np.log(900_000), 0.7, number).astype(np.int64)
    stall = START + int(0.4 * seconds * SECOND)
    answer = times + latency
    held = (times < stall + 2 * SECOND) & (answer > stall)
    answer = np.where(held, stall + 2 * SECOND + latency // 8, answer)
    rows = []
    for i in range(number):
        outcome = "nack" if rng.random() < 0.004 else "ack"
        if i > number - 6:
            outcome = "none"
        answered = outcome != "none"
        rows.append(
            {
                "connection_id": connection,
                "channel": channel,
                "channel_epoch": 1,
                "publish_seq": i + 1,
                "protocol": "amqp-0-9-1",
                "exchange": "orders" if channel == 1 else "",
                "routing_key": f"order.{'eu' if i % 3 else 'us'}.created",
                "message_id": f"m-{connection}-{i}",
                "body_size": 300 + i % 50,
                "publish_ts_ns": int(times[i]),
                "publish_frame_no": 3 * i,
                "publish_capture": file,
                "publish_packet": 10 + 2 * i,
                "confirm_ts_ns": int(answer[i]) if answered else None,
                "confirm_frame_no": 3 * i + 9 if answered else None,
                "confirm_capture": file if answered else None,
                "confirm_packet": 11 + 2 * i + int(latency[i] // 500_000) if answered else None,
                "outcome": outcome,
                "multiple": bool(i % 4 == 0),
                "returned": bool(rng.random() < 0.003),
                "ended_by": None if answered else "capture-end",
                "end_ts_ns": None if answered else START + int((seconds + 1) * SECOND),
                "latency_ns": int(answer[i] - times[i]) if answered else None,
                "records": 1,
            }
        )
    return rows


def settlements(
    rng: np.random.Generator, connection: int, number: int, seconds: float, file: str
) -> list[dict[str, Any]]:
    times = START + np.sort(rng.uniform(0, seconds * SECOND, number)).astype(np.int64)
    latency = rng.lognormal(np.log(12_000_000), 1.1, number).astype(np.int64)
    outcomes = rng.choice(["ack", "ack", "ack", "ack", "reject", "none"], number, p=[0.3, 0.3, 0.3, 0.08, 0.01, 0.01])
    return [
        {
            "connection_id": connection,
            "channel": 1,
            "channel_epoch": 1,
            "protocol": "amqp-0-9-1",
            "kind": "deliver",
            "consumer_tag": f"ctag1.{connection}",
            "queue": "billing",
            "exchange": "orders",
            "routing_key": "order.eu.created",
            "delivery_tag": i + 1,
            "redelivered": False,
            "body_size": 300,
            "deliver_ts_ns": int(times[i]),
            "deliver_frame_no": 4 * i,
            "deliver_capture": file,
            "deliver_packet": 7 + i,
            "settle_ts_ns": int(times[i] + latency[i]) if outcomes[i] != "none" else None,
            "settle_capture": file if outcomes[i] != "none" else None,
            "settle_packet": 9 + i if outcomes[i] != "none" else None,
            "outcome": str(outcomes[i]),
            "multiple": False,
            "ended_by": "channel-close" if outcomes[i] == "none" else None,
            "end_ts_ns": START + int(seconds * SECOND) if outcomes[i] == "none" else None,
            "latency_ns": int(latency[i]) if outcomes[i] != "none" else None,
        }
        for i in range(number)
    ]


def shop(folder: Path, publishes: int = 4000, seconds: float = 90.0, seed: int = 7) -> tuple[Path, Path]:
    """Write both folders of the shop; returns that of dissect and that of analyze."""
    rng = np.random.default_rng(seed)
    tables, stats = folder / "tables", folder / "stats"
    file = "shop/2026-10-14.pcapng"
    end = START + int((seconds + 1) * SECOND)
    write(
        tables,
        "captures",
        [
            {
                "capture": file,
                "format": "pcapng",
                "link_types": "ethernet",
                "packets": 21_734,
                "bytes": 9_412_331,
                "first_ts_ns": START,
                "last_ts_ns": end,
                "snap_length": 262_144,
                "interfaces": 1,
                "dropped": 12,
                "truncated": False,
                "tcp_segments": 21_700,
                "other_packets": 34,
            },
            {
                "capture": "shop/2026-10-14-1.pcapng",
                "format": "pcapng",
                "link_types": "ethernet",
                "packets": 3,
                "bytes": 4_331,
                "first_ts_ns": end,
                "last_ts_ns": end,
                "truncated": True,
                "tcp_segments": 3,
                "other_packets": 0,
            },
        ],
    )
    write(
        tables,
        "connections",
        [
            {
                "connection_id": 100 + i,
                "protocol": "amqp-0-9-1",
                "client_ip": "10.0.3.7" if i % 3 else "fd00:12::7",
                "client_port": 40_112 + i,
                "server_ip": "10.0.1.2" if i % 3 else "fd00:12::2",
                "server_port": 5672,
                "first_ts_ns": START + i,
                "last_ts_ns": end - i,
                "packets": 5000 - i,
                "bytes": 2_000_000 // (i + 1),
                "frames": 9000 - 100 * i,
                "messages": 4000 - 40 * i,
                "vantage": "eth0",
                "rtt_ns": 180_000 + 1000 * i,
                "handshake_stage": "start" if i == 5 else "ready",
                "handshake_outcome": "vhost-not-found" if i == 5 else "ok",
                "severity": "error" if i == 5 else "fine",
                "closed_by": "server" if i == 5 else None,
                "reply_code": 403 if i == 5 else None,
                "reply_text": "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN."
                if i == 5
                else None,
                "vhost": "/shop",
                "user": "web" if i < 3 else "billing",
                "lost_bytes": 2_920 if i == 1 else 0,
                "retransmitted_bytes": 0,
                "skipped_bytes": 812 if i == 1 else 0,
            }
            for i in range(40)
        ],
    )
    for name in ("amqp091_frames", "stream_frames", "amqp010_frames", "messages"):
        write(tables, name)
    write(
        tables,
        "anomalies",
        [
            *(
                {"connection_id": 101, "code": "tcp-gap", "severity": "warning", "detail": "1460 bytes"}
                for _ in range(2)
            ),
            {"connection_id": 101, "code": "bytes-skipped", "severity": "warning"},
            {"connection_id": None, "code": "capture-truncated", "severity": "error", "capture": file},
            *({"connection_id": 100 + i, "code": "content-abandoned", "severity": "note"} for i in range(3)),
        ],
    )

    published = [
        *confirms(rng, 100, 1, publishes, seconds, file),
        *confirms(rng, 100, 2, publishes // 8, seconds, file),
        *confirms(rng, 101, 1, publishes // 4, seconds, file),
    ]
    delivered = settlements(rng, 103, publishes // 2, seconds, file)
    asked = [
        {
            "connection_id": 100 + i % 40,
            "channel": 0,
            "channel_epoch": 0,
            "from_client": True,
            "request": request,
            "response": f"{request}-ok",
            "request_ts_ns": START + i * 1000,
            "request_capture": file,
            "request_packet": i,
            "outcome": "ok",
            "latency_ns": int(rng.lognormal(np.log(700_000), 0.5)),
        }
        for i, request in enumerate(
            ["connection.open", "channel.open", "queue.declare", "basic.consume", "confirm.select"] * 16
        )
    ]
    asked.append(
        {
            "connection_id": 101,
            "channel": 1,
            "channel_epoch": 1,
            "from_client": True,
            "request": "queue.declare",
            "response": "channel.close",
            "request_ts_ns": START,
            "outcome": "error",
            "reply_code": 406,
            "latency_ns": 812_000,
        }
    )
    write(stats, "confirms", published, parts=3)
    write(stats, "settlements", delivered)
    write(stats, "rpcs", asked)
    write(stats, "transits")
    write(stats, "heartbeats")
    write(stats, "flow_control", waits(rng, seconds, file))
    summary, buckets = [], []
    for metric, rows, good, keys in (
        (
            "confirm",
            published,
            {"ack"},
            {
                "all": (),
                "connection": ("connection_id",),
                "channel": ("connection_id", "channel", "channel_epoch"),
                "exchange": ("exchange",),
                "routing_key": ("exchange", "routing_key"),
            },
        ),
        (
            "settlement",
            delivered,
            {"ack"},
            {"all": (), "queue": ("queue",), "consumer_tag": ("connection_id", "consumer_tag")},
        ),
        ("rpc", asked, {"ok"}, {"all": (), "request": ("request",)}),
    ):
        some, more = summarise(metric, rows, good, keys)
        summary += some
        buckets += more
    write(stats, "latency_summary", summary)
    write(stats, "latency_buckets", buckets)
    (stats / "_amqpscope.json").write_text(json.dumps({"tables": str(tables.resolve())}))
    return tables, stats


def waits(rng: np.random.Generator, seconds: float, file: str) -> list[dict[str, Any]]:
    def row(cause: str, begin: float, length: float, evidence: str, **more: Any) -> dict[str, Any]:
        start = START + int(begin * SECOND)
        return {
            "connection_id": 100,
            "channel": 1,
            "channel_epoch": 1,
            "cause": cause,
            "start_ts_ns": start,
            "end_ts_ns": start + int(length * SECOND),
            "duration_ns": int(length * SECOND),
            "side": "server",
            "evidence": evidence,
            "start_capture": file,
            "start_packet": int(begin * 100),
            "end_capture": file,
            "end_packet": int((begin + length) * 100),
            **more,
        }

    stall = 0.4 * seconds
    full = [
        row(
            "prefetch",
            b,
            rng.uniform(0.01, 0.6),
            "proven" if b % 3 < 1 else "possible",
            connection_id=103,
            side="client",
            consumer_tag="ctag1.103",
        )
        for b in np.sort(rng.uniform(0, seconds - 1, 60))
    ]
    return [
        row("connection-blocked", stall, 2.0, "proven"),
        row("connection-blocked", seconds - 5, 6.0, "proven", end_ts_ns=None, end_packet=None, end_capture=None),
        row("channel-flow", 10.0, 0.25, "possible"),
        *full,
    ]


def rows(at: Tables, name: str) -> list[dict[str, Any]]:
    """All rows of a table."""
    found: list[dict[str, Any]] = at.dataset(name).to_table().to_pylist()
    return found
