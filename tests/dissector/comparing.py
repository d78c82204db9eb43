"""What of the tables two runs of the dissector are to have in common."""

import pyarrow as pa

from tests.dissector.runs import Row, rows

TIMED = ("packet", "ts_ns", "ts", "first_packet", "first_ts_ns")
COUNTED = (
    "packets", "first_packet", "last_packet", "first_ts_ns", "last_ts_ns", "retransmitted_bytes", "rtt_ns",
    "client_rtt_ns", "client_ack_ns", "client_bare_ack_ns", "server_ack_ns", "server_bare_ack_ns",
    "handshake_ns", "handshake_client_ns", "handshake_server_ns", "handshake_steps", "handshake_evidence",
    "handshake_notes", "handshake_facts", "closed_ts_ns", "quiet_ns", "outlived_ns",
)  # fmt: skip


def exact(tables: dict[str, pa.Table]) -> dict[str, list[Row]]:
    return {
        name: rows(table) if name != "anomalies" else sorted(rows(table), key=str)
        for name, table in tables.items()
        if name != "captures"
    }
