"""The recordings themselves: nothing without its other half, nothing too big, nothing unreadable."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from tests.captures import naive

FOLDER = Path(__file__).parent
SETS = [path for path in FOLDER.iterdir() if path.is_dir() and any(path.glob("*.pcap"))]  # rotated captures
ALL = sorted([*FOLDER.glob("*.pcap"), *FOLDER.glob("*.pcapng"), *SETS])
CAPTURES = [capture for capture in ALL if not capture.stem.startswith("qpid_")]
"""Those with a golden: traffic of Qpid is held to what tshark sees of it."""
LARGE = {"large_message", "large_message_small_frames", "demo"}  # these may be bigger than the rest
CUT = {"snapped"}  # these have gaps
BROKEN = {"broken_contents", "violations", "wrong_end_octet"}  # not all of their messages are whole
SEALED = {"tls_sessions", "tls_sessions_13", "tls_secrets", "tls_pika"}  # these are encrypted
COMMON = {"client", "channel", "channel_epoch"}
COLUMNS = {
    "clients": {"client", "client_ip", "client_port", "server_ip", "server_port"},
    "confirms": COMMON | {"publish_seq", "exchange", "routing_key", "outcome", "multiple", "returned", "ended_by"},
    "settlements": COMMON | {"consumer_tag", "queue", "delivery_tag", "outcome", "multiple", "requeue", "ended_by"},
    "messages": COMMON | {"kind", "exchange", "routing_key", "body_size", "body_hash", "properties"},
    "rpcs": COMMON | {"request", "response", "outcome", "reply_code"},
    "flow_control": COMMON | {"consumer_tag", "cause", "start_ns", "end_ns"},
    "connections": {"client", "user", "vhost", "mechanism", "channel_max", "frame_max", "heartbeat"},
    "handshakes": {"client", "stage", "cause"},
    "heartbeats": {"client", "from_client", "negotiated_s"},
    "anomalies": {"violation", "count"},
}
OTHERS = {"scenario", "about", "counts", "notes", "secrets", "records", "codes", "lag", "calls", "transits"}
ENDS = {"capture-end", "gap", "channel-close", "connection-close", "discarded", "recover", "rollback"}
OUTCOMES = {
    "confirms": {"ack", "nack", "none"},
    "settlements": {"ack", "nack", "reject", "auto", "none", "unknown"},
    "rpcs": {"ok", "error", "none"},
}


def golden_of(capture: Path) -> dict[str, object]:
    document = json.loads((FOLDER / f"{capture.stem}.golden.json").read_text(encoding="utf-8"))
    assert isinstance(document, dict)
    return document


def test_nothing_is_an_orphan() -> None:
    stems = {capture.stem for capture in CAPTURES}
    assert stems
    for suffix in (".golden.json", ".log.json"):
        assert {path.name.removesuffix(suffix) for path in FOLDER.glob(f"*{suffix}")} == stems
    listed = re.findall(r"^\| `([^`]+)` \|", (FOLDER / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(capture.name for capture in ALL)


def test_the_set_stays_small() -> None:
    for capture in [*ALL, *FOLDER.glob("*/*.pcap")]:
        assert capture.stat().st_size < (3_000_000 if capture.stem in LARGE else 120_000), capture.name
    assert sum(path.stat().st_size for path in FOLDER.iterdir() if path.is_file()) < 7_000_000


@pytest.mark.parametrize("capture", CAPTURES, ids=lambda path: path.name)
def test_a_capture_is_readable_and_holds_its_clients(capture: Path) -> None:
    joined = b"".join(naive.packets(capture))
    clients = golden_of(capture)["clients"]
    assert isinstance(clients, list) and clients
    for client in clients:
        assert client["client_port"].to_bytes(2, "big") + client["server_port"].to_bytes(2, "big") in joined


@pytest.mark.parametrize("capture", CAPTURES, ids=lambda path: path.name)
def test_a_golden_keeps_to_the_schema(capture: Path) -> None:
    golden = golden_of(capture)
    assert golden["scenario"] == capture.stem
    assert set(golden) <= set(COLUMNS) | OTHERS
    clients = golden["clients"]
    assert isinstance(clients, list)
    names = {client["client"] for client in clients}
    for table in set(golden) & set(COLUMNS):
        rows = golden[table]
        assert isinstance(rows, list)
        for row in rows:
            assert COLUMNS[table] - {"ended_by"} <= set(row), (table, row)
            assert row.get("client", next(iter(names))) in names
            if table in OUTCOMES:
                assert row["outcome"] in OUTCOMES[table]
            if table in ("confirms", "settlements"):
                if row["outcome"] == "unknown":
                    assert "ended_by" not in row
                else:
                    assert row["ended_by"] in (ENDS if row["outcome"] == "none" else {None})


@pytest.mark.parametrize("capture", CAPTURES, ids=lambda path: path.name)
def test_a_log_is_in_order(capture: Path) -> None:
    log = json.loads((FOLDER / f"{capture.stem}.log.json").read_text(encoding="utf-8"))
    times = [event["t_ns"] for event in log["events"]]
    assert times == sorted(times)


def having(table: str, but: set[str]) -> list[Path]:
    """Captures whose goldens have this, but some."""
    return [capture for capture in CAPTURES if table in golden_of(capture) and capture.stem not in but]


@pytest.mark.parametrize("capture", having("counts", CUT | SEALED), ids=lambda path: path.name)
def test_a_capture_holds_what_its_golden_counts(capture: Path) -> None:
    wanted = golden_of(capture)["counts"]
    assert isinstance(wanted, dict) and wanted
    found = naive.counts(capture)
    assert {what: found[what] for what in wanted} == wanted


@pytest.mark.parametrize("capture", having("messages", SEALED | BROKEN), ids=lambda path: path.name)
def test_a_capture_holds_the_messages_of_its_golden(capture: Path) -> None:
    golden = golden_of(capture)
    clients, rows = golden["clients"], golden["messages"]
    assert isinstance(clients, list) and isinstance(rows, list)
    ports = {client["client"]: client["client_port"] for client in clients}
    assert naive.messages(capture) == Counter(
        (ports[row["client"]], row["kind"], row["channel"], row["body_size"], row["body_hash"]) for row in rows
    )
