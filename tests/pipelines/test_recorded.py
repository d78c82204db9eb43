"""All recorded scenarios through all jobs at once, against what their clients wrote down."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.contract import ANALYZED, WORDS

CAPTURES = Path(__file__).parents[1] / "captures"
JUDGED = ("confirms", "settlements", "rpcs", "flow_control", "heartbeats")
ORDER = {
    "confirms": ("publish_frame_no",),
    "settlements": ("deliver_frame_no",),
    "rpcs": ("request_frame_no",),
    "flow_control": ("start_ts_ns", "start_packet"),
    "heartbeats": (),
}
LOSSY = {"lossy_link", "snapped"}
"""Captures with gaps: what they lack cannot be judged."""


def goldens() -> dict[str, dict[str, Any]]:
    found = {path.name.split(".")[0]: json.loads(path.read_text()) for path in sorted(CAPTURES.glob("*.golden.json"))}
    return {name: golden for name, golden in found.items() if name not in LOSSY and golden.keys() & set(JUDGED)}


@pytest.fixture(scope="module")
def statistics(recorded):
    """For each scenario the ids of its clients' connections, and the rows of each table by connection."""
    ids: dict[tuple[str, str], list[int]] = {}
    for identity, (name, client, _, _) in recorded.names.items():
        ids.setdefault((name, client), []).append(identity)
    clients = {
        name: {
            client["client"]: ids[name, f"{client['client_ip']}:{client['client_port']}"].pop(0)
            for client in golden["clients"]
        }
        for name, golden in goldens().items()
    }
    found: dict[str, dict[int, list[dict[str, Any]]]] = {}
    for table, order in ORDER.items():
        by_connection = found.setdefault(table, {})
        rows = pq.read_table(recorded.statistics / table).to_pylist()
        for row in sorted(rows, key=lambda row: [row[column] for column in order]):
            by_connection.setdefault(row["connection_id"], []).append(row)
    return clients, found


@pytest.mark.parametrize(
    ("name", "table"),
    [
        (name, table)
        for name, golden in goldens().items()
        for table in ("confirms", "settlements", "rpcs")
        if table in golden
    ],
)
def test_agrees_with_the_clients_books(statistics, name, table):
    clients, found = statistics
    golden = goldens()[name]
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


def test_publishes_have_rows_without_a_number_where_the_capture_begins_in_the_middle(statistics):
    """The scenario sent three before it."""
    clients, found = statistics
    rows = found["confirms"][clients["begun_before"]["producer"]]
    reported = [(row["publish_seq"], row["numbered_by"], row["outcome"], row["ended_by"]) for row in rows]
    assert reported == [(None, None, "none", "gap")] * 7


@pytest.mark.parametrize("name", [n for n, g in goldens().items() if "flow_control" in g])
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


def test_heartbeats_kept_and_missed(statistics):
    clients, found = statistics
    for row in goldens()["heartbeats"]["heartbeats"]:
        each = {sign["from_client"]: sign for sign in found["heartbeats"][clients["heartbeats"][row["client"]]]}
        sign = each[row["from_client"]]
        assert sign["negotiated_s"] == row["negotiated_s"]
        assert (sign["missed"] > 0) == (row["frames"] == 0)


@pytest.mark.parametrize(("table", "column"), [key for key in WORDS if key[0] in ANALYZED])
def test_columns_hold_no_other_words(recorded, table, column):
    values = pq.read_table(recorded.statistics / table, columns=[column])[column]
    assert {*values.unique().drop_null().to_pylist()} <= {*WORDS[table, column].split()}
