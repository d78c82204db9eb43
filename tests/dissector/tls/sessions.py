"""What a session in TLS is to have in common with the same session in clear."""

from functools import cache

import pyarrow as pa

from tests.dissector.comparing import TIMED
from tests.dissector.runs import Row, dissect_packets, rows
from tests.dissector.wire import Tape, session

SESSION = tuple(session())
AGREED = (
    "protocol", "frames", "messages", "skipped_bytes", "handshake_stage", "handshake_outcome", "ending", "ending_cause",
    "severity", "closed_by", "reply_code", "reply_text", "vhost", "user", "mechanism", "channel_max", "frame_max",
    "heartbeat", "client_properties", "server_properties",
)  # fmt: skip
"""Columns of connections that tell of what is inside of TCP and TLS."""


def inside(found: dict[str, pa.Table], *left_out: str) -> dict[str, list[Row]]:
    """All that does not tell of packets, TCP and TLS."""
    return {
        "frames": rows(found["amqp091_frames"], "connection_id", *TIMED, *left_out),
        "messages": rows(found["messages"], "connection_id", *TIMED, *left_out),
        "connections": found["connections"].select(AGREED).to_pylist(),
        "anomalies": sorted(rows(found["anomalies"], "connection_id", *TIMED, *left_out), key=str),
    }


@cache
def in_clear() -> dict[str, list[Row]]:
    return inside(dissect_packets(Tape().play(SESSION).end().packets))


def records(data: bytes) -> list[bytes]:
    """The records of TLS, one by one."""
    found = []
    while data:
        length = 5 + int.from_bytes(data[3:5], "big")
        found.append(data[:length])
        data = data[length:]
    return found
