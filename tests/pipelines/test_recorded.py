"""All recorded scenarios through all jobs at once, against what their clients wrote down."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dissector
from pipelines.analysis import analyze
from pipelines.output import Output

CAPTURES = Path(__file__).parents[1] / "captures"
JUDGED = ("confirms", "settlements", "rpcs", "flow_control")
ORDER = {
    "confirms": ("publish_frame_no",),
    "settlements": ("deliver_frame_no",),
    "rpcs": ("request_frame_no",),
    "flow_control": ("start_frame_no",),
}
LOSSY = {"lossy_link", "snapped"}
"""Captures with holes: what they lack cannot be judged."""


def goldens() -> dict[str, dict[str, Any]]:
    found = {path.name.split(".")[0]: json.loads(path.read_text()) for path in sorted(CAPTURES.glob("*.golden.json"))}
    return {name: golden for name, golden in found.items() if name not in LOSSY and golden.keys() & set(JUDGED)}


def capture(name: str) -> Path:
    return next(path for path in (CAPTURES / f"{name}{end}" for end in (".pcap", ".pcapng", "")) if path.exists())


@pytest.fixture(scope="module")
def statistics(spark, tmp_path_factory):
    """For each scenario the ids of its clients' connections, and the rows of each table by connection."""
    folder = tmp_path_factory.mktemp("recorded")
    parts: dict[str, list[pa.Table]] = {}
    clients: dict[str, dict[str, int]] = {}
    for name, golden in goldens().items():
        path = capture(name)
        keylog = str(path.with_suffix(".keylog")) if path.with_suffix(".keylog").exists() else None
        tables = {table: reader.read_all() for table, reader in dissector.read(path, keylog=keylog).items()}
        for table, rows in tables.items():
            parts.setdefault(table, []).append(rows)
        ids: dict[tuple[str, int], list[int]] = {}
        for row in sorted(tables["connections"].to_pylist(), key=lambda row: row["first_ts_ns"]):
            ids.setdefault((row["client_ip"], row["client_port"]), []).append(row["connection_id"])
        clients[name] = {
            client["client"]: ids[client["client_ip"], client["client_port"]].pop(0) for client in golden["clients"]
        }
    for table, rows in parts.items():
        (folder / "tables" / table).mkdir(parents=True)
        pq.write_table(pa.concat_tables(rows), folder / "tables" / table / "part-0.parquet")
    output = Output(folder / "statistics", {})
    analyze(spark, folder / "tables", output)
    found: dict[str, dict[int, list[dict[str, Any]]]] = {}
    for table, order in ORDER.items():
        by_connection = found.setdefault(table, {})
        rows = pq.read_table(folder / "statistics" / table).to_pylist()
        for row in sorted(rows, key=lambda row: [row[column] for column in order]):
            by_connection.setdefault(row["connection_id"], []).append(row)
    return clients, found


@pytest.mark.parametrize("table", ["confirms", "settlements", "rpcs"])
@pytest.mark.parametrize("name", goldens())
def test_agrees_with_the_clients_books(statistics, name, table):
    clients, found = statistics
    golden = goldens()[name]
    if table not in golden:
        pytest.skip("not what this scenario is about")
    names = {connection: client for client, connection in clients[name].items()}
    rows = [row | {"client": names[each]} for each in names for row in found[table].get(each, [])]
    if table == "rpcs":
        rows = [row for row in rows if row["from_client"]]
    for client in {row["client"] for row in golden[table]}:
        expected = [row for row in golden[table] if row["client"] == client]
        actual = [row for row in rows if row["client"] == client]
        if table == "rpcs":
            # Written down per channel; requests of different channels may overtake each other in the books.
            asked = {(row["channel"], row["request"]) for row in expected}
            actual = [row for row in actual if (row["channel"], row["request"]) in asked]
            # The books have no response where there was an error; the table has the close.
            expected = [{k: v for k, v in row.items() if k != "response" or v} for row in expected]
        if name == "pika_consume":  # pika closes its channels before the connection, and does not say so in its book
            expected[-1]["ended_by"] = "channel-close"
        got = [{key: row[key] for key in wanted} for row, wanted in zip(actual, expected, strict=False)]
        assert got == expected
        assert len(actual) == len(expected)


@pytest.mark.parametrize("name", [n for n, g in goldens().items() if "flow_control" in g and n != "zero_window"])
def test_waits_agree_with_the_clients_books(statistics, name):
    clients, found = statistics
    for client, connection in clients[name].items():
        expected = [row for row in goldens()[name]["flow_control"] if row["client"] == client]
        actual = found["flow_control"].get(connection, [])
        assert [(row["cause"], row["consumer_tag"]) for row in actual] == [
            (row["cause"], row["consumer_tag"]) for row in expected
        ]
        for row, wanted in zip(actual, expected, strict=True):
            assert abs(row["start_ts_ns"] - wanted["start_ns"]) < 50_000_000  # the client's clock ticks later
            assert wanted["end_ns"] is None or abs(row["end_ts_ns"] - wanted["end_ns"]) < 50_000_000
            assert "evidence" not in wanted or row["evidence"] == wanted["evidence"]
