"""Tables of a made-up broker that refuses: nacks, returns, a blocked publisher, channels closed with errors."""

import json
from pathlib import Path

from tests.dashboards.synthetic import SECOND, START, summarise, write


def refusing(folder: Path, reasons: bool = True) -> tuple[Path, Path]:
    """Write tables of a broker that refuses: 1,000 of 2,000 publishes, a publisher blocked for 3.67 s, closed channels.

    All connections come up and end well. Without `reasons` the statistics are as older versions wrote them: no reason
    of a wait, no text or queue of a request, no table of channel errors.
    """
    tables, stats = folder / "tables", folder / "stats"
    file = "orders.pcap"
    end = START + 20 * SECOND
    ends = {"client_ip": "10.0.0.7", "server_ip": "10.0.0.2", "server_port": 5672, "protocol": "amqp-0-9-1"}
    fine = {"handshake_stage": "ready", "handshake_outcome": "ok", "ending": "closed", "severity": "fine"}
    write(
        tables,
        "captures",
        [{"capture": file, "format": "pcap", "packets": 9000, "first_ts_ns": START, "last_ts_ns": end}],
    )
    write(
        tables,
        "connections",
        [
            {"connection_id": c, "client_port": 50_000 + c, "first_ts_ns": START, "last_ts_ns": end, **ends, **fine}
            for c in (1, 2)
        ],
    )
    for name in ("amqp091_frames", "stream_frames", "amqp010_frames", "messages", "tcp_windows", "anomalies"):
        write(tables, name)
    published = []
    for i in range(2000):
        at = START + i * 5_000_000
        latency = 2_000_000 + i if i % 2 else 400_000 + i
        published.append(
            {"connection_id": 1, "channel": 1, "channel_epoch": 1, "publish_seq": i + 1, "protocol": "amqp-0-9-1"}
            | {"exchange": "orders", "routing_key": "order.created", "publish_ts_ns": at, "publish_packet": 100 + i}
            | {"publish_capture": file, "confirm_capture": file, "confirm_packet": 101 + i, "returned": i in (7, 9, 11)}
            | {"outcome": "nack" if i % 2 else "ack", "confirm_ts_ns": at + latency, "latency_ns": latency}
            | {"reply_code": 312 if i in (7, 9, 11) else None, "multiple": False}
        )
    blocked = {"connection_id": 1, "cause": "connection-blocked", "evidence": "proven", "side": "server"}
    blocked |= {"start_ts_ns": START + 12 * SECOND, "duration_ns": 3_670_000_000, "start_packet": 4711}
    blocked |= {"end_ts_ns": START + 15_670_000_000, "start_capture": file, "end_packet": 4800, "end_capture": file}
    closes = [
        (404, "NOT_FOUND - no queue 'invoices' in vhost '/'", "queue.declare", "invoices"),
        (406, "PRECONDITION_FAILED - inequivalent arg 'durable' for queue 'billing'", "queue.declare", "billing"),
        (406, "PRECONDITION_FAILED - unknown delivery tag 9", "basic.ack", None),
    ]
    errors, asked = [], []
    for i, (code, text, method, queue) in enumerate(closes):
        at = {"connection_id": 2, "channel": i + 1, "channel_epoch": 1, "reply_code": code}
        reported = {"queue": queue, "reply_text": text} if reasons else {}
        close = {"capture": file, "packet": 6000 + i, "ts_ns": START + (2 + i) * SECOND, "frame_no": 50 + i}
        errors.append(
            at | close | {"method": "channel.close", "failed_method": method, "from_client": False, **reported}
        )
        if method == "queue.declare":
            answer = {f"response_{k}": v for k, v in close.items()}
            asked.append(at | answer | {"request": method, "response": "channel.close", "outcome": "error", **reported})
    write(stats, "confirms", published)
    write(stats, "rpcs", asked)
    if reasons:
        write(stats, "channel_errors", errors)
    write(stats, "flow_control", [blocked | ({"reason": "low on memory"} if reasons else {})])
    for name in ("settlements", "transits", "heartbeats", "failures"):
        write(stats, name)
    summary, buckets = summarise("confirm", published, {"ack"}, {"all": (), "exchange": ("exchange",)})
    write(stats, "latency_summary", summary)
    write(stats, "latency_buckets", buckets)
    (stats / "_amqpscope.json").write_text(json.dumps({"tables": str(tables.resolve())}))
    return tables, stats
