"""Spans for OpenTelemetry, as JSON lines of ExportTraceServiceRequest: a span for each publish and each delivery.

Source: opentelemetry-proto 1.3 (JSON encoding), messaging conventions in release 1.27. A `traceparent` in the headers
of a message is the parent of its span. Where there is none, ids are derived from the capture and marked
`amqpscope.synthetic`; a delivery then belongs to the trace of its publish, if that is known.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from amqpscope.dashboards import relations, units
from amqpscope.dashboards.tables import Tables
from amqpscope.errors import Error
from amqpscope.pipelines.relations import compute

SCHEMA = "https://opentelemetry.io/schemas/1.27.0"
BATCH = 1 << 12
PRODUCER, CONSUMER = 4, 5
"""Kinds of spans."""
FAILED = 2
"""Status of a span that failed."""
PARENTS = pa.schema(
    [("connection_id", pa.int64()), ("frame_no", pa.int64()), ("trace", pa.string()), ("span", pa.string())]
)
SPANS = """
    select 'send' as kind, c.connection_id, c.publish_frame_no as frame_no, coalesce(c.exchange, c.stream) as name,
        c.routing_key, c.publish_seq as number, c.message_id, c.body_size, c.publish_ts_ns as begin_ns,
        coalesce(c.confirm_ts_ns, c.end_ts_ns) as end_ns, c.outcome, c.publish_packet as packet, p.trace, p.span,
        cast(null as bigint) as from_connection, cast(null as bigint) as from_frame
    from confirms c left join parents p on c.connection_id = p.connection_id and c.publish_frame_no = p.frame_no
    where c.publish_ts_ns is not null
    union all
    select 'process', s.connection_id, s.deliver_frame_no, coalesce(s.queue, s.consumer_tag), s.routing_key,
        s.delivery_tag, t.message_id, s.body_size, s.deliver_ts_ns, coalesce(s.settle_ts_ns, s.end_ts_ns), s.outcome,
        s.deliver_packet, p.trace, p.span, t.publish_connection_id, t.publish_frame_no
    from settlements s
    left join parents p on s.connection_id = p.connection_id and s.deliver_frame_no = p.frame_no
    left join (
        select deliver_connection_id, deliver_frame_no, max(publish_connection_id) as publish_connection_id,
            max(publish_frame_no) as publish_frame_no, max(message_id) as message_id
        from transits group by deliver_connection_id, deliver_frame_no
    ) t on s.connection_id = t.deliver_connection_id and s.deliver_frame_no = t.deliver_frame_no
    where s.deliver_ts_ns is not null
    order by connection_id, frame_no"""


def write(tables: Tables, path: Path) -> str:
    """Write all spans to a file, a request per line.

    Raises:
        Error: nothing was published in confirm mode or delivered.
        OSError: the file cannot be written.
    """
    if tables.analyzed is None or not (tables.rows("confirms") or tables.rows("settlements")):
        raise Error("nothing to export: nothing was published in confirm mode, and nothing delivered")
    clients = {row["connection_id"]: row for row in relations.rows(tables, "endpoints")}
    count = 0
    with (
        path.open("w", encoding="utf-8") as file,
        compute.opened(tables.analyzed, ("confirms", "settlements", "transits")) as database,
    ):
        database.register("given", pa.RecordBatchReader.from_batches(PARENTS, _parents(tables)))
        database.execute("create table parents as select * from given")  # read twice
        for batch in database.sql(SPANS).to_arrow_reader(BATCH):
            grouped: dict[int, list[dict[str, Any]]] = {}
            for row in batch.to_pylist():
                grouped.setdefault(row["connection_id"], []).append(span(row, clients.get(row["connection_id"], {})))
                count += 1
            file.writelines(json.dumps(_request(clients.get(of, {}), spans)) + "\n" for of, spans in grouped.items())
    return units.counted(count, "span")


def _parents(tables: Tables) -> Iterator[pa.RecordBatch]:
    """Yield the messages whose headers have a `traceparent`: its trace and the span that it names."""
    columns = ["connection_id", "frame_no", "trace_id", "headers"]
    for rows in tables.scan("messages", columns, pc.field("trace_id").is_valid()):
        spans = [_parent(text) for text in rows["headers"].to_pylist()]
        made = pa.table([rows["connection_id"], rows["frame_no"], rows["trace_id"], pa.array(spans, pa.string())],
                        schema=PARENTS)  # fmt: skip
        yield from made.combine_chunks().to_batches()


def _parent(headers: str | None) -> str | None:
    """Return the span that a `traceparent` names: 16 hexadecimal digits; None where it is none."""
    try:
        value = json.loads(headers or "{}").get("traceparent")
    except (ValueError, AttributeError, RecursionError):
        return None
    parts = value.split("-") if isinstance(value, str) else []
    is_one = len(parts) >= 3 and len(parts[2]) == 16 and set(parts[2]) <= set("0123456789abcdef")
    return parts[2] if is_one else None


def span(row: dict[str, Any], client: dict[str, Any]) -> dict[str, Any]:
    """Return one span.

    Args:
        row: of SPANS.
        client: the row of its connection in `endpoints`; empty where it is not known.
    """
    is_send = row["kind"] == "send"
    own = (row["connection_id"], row["frame_no"])
    of = own if is_send or row["from_frame"] is None else (row["from_connection"], row["from_frame"])
    begin, end = row["begin_ns"], row["end_ns"]
    name = row["name"] or "(default)"
    made: dict[str, Any] = {
        "traceId": row["trace"] or _digest("trace", of, 16),
        "spanId": _digest("span", own, 8),
        "name": units.visible(f"{row['kind']} {name}"),
        "kind": PRODUCER if is_send else CONSUMER,
        "startTimeUnixNano": str(begin),
        "endTimeUnixNano": str(begin if end is None else max(begin, end)),
    }
    if row["span"] is not None:
        made["parentSpanId"] = row["span"]
    elif not is_send and of != own and row["trace"] is None:
        made["parentSpanId"] = _digest("span", of, 8)
    given = {
        "messaging.system": "rabbitmq",
        "messaging.operation.name": row["kind"] if is_send else row["outcome"] or "process",
        "messaging.operation.type": row["kind"],
        "messaging.destination.name": name,
        "messaging.rabbitmq.destination.routing_key": row["routing_key"] or None,
        "messaging.rabbitmq.message.delivery_tag": row["number"],
        "messaging.message.id": row["message_id"],
        "messaging.message.body.size": row["body_size"],
        "server.address": client.get("server_ip"),
        "server.port": client.get("server_port"),
        "amqpscope.packet": row["packet"],
        "amqpscope.outcome": row["outcome"],
        "amqpscope.synthetic": True if row["trace"] is None else None,
    }
    is_bad = row["outcome"] in ("nack", "reject", "none")
    if is_bad:
        given["error.type"] = row["outcome"]
        made["status"] = {"code": FAILED, "message": f"{row['outcome']}"}
    made["attributes"] = [_attribute(key, value) for key, value in given.items() if value is not None]
    return made


def _request(client: dict[str, Any], spans: list[dict[str, Any]]) -> dict[str, Any]:
    known = {"service.name": client.get("client") or "unknown", "network.peer.address": client.get("client_ip")}
    attributes = [_attribute(key, value) for key, value in known.items() if value is not None]
    scope = {"scope": {"name": "amqpscope"}, "spans": spans, "schemaUrl": SCHEMA}
    return {"resourceSpans": [{"resource": {"attributes": attributes}, "scopeSpans": [scope], "schemaUrl": SCHEMA}]}


def _attribute(key: str, value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"key": key, "value": {"boolValue": value}}
    if isinstance(value, int):
        return {"key": key, "value": {"intValue": str(value)}}
    return {"key": key, "value": {"stringValue": units.visible(str(value), 1000)}}


def _digest(what: str, of: Any, size: int) -> str:
    return hashlib.blake2b(f"{what} {of}".encode(), digest_size=size).hexdigest()
