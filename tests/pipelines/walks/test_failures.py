"""Failures: what is grouped, and what is reported of the first of a group."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpscope.pipelines.connections.failures import PARTIAL, Failures, failures
from amqpscope.pipelines.model import folding
from amqpscope.pipelines.model.walk import schema

Row = dict[str, Any]

UNKNOWN: Row = {
    "severity": "error", "handshake_outcome": "vhost-not-found", "handshake_cause": "unknown virtual host /prod",
    "client_ip": "10.0.3.7", "server_ip": "10.0.0.1", "server_port": 5672, "vhost": "/prod", "user": "shop",
}  # fmt: skip
BLOCKED = UNKNOWN | {
    "severity": "warning", "handshake_outcome": "ok", "handshake_cause": "the connection came up", "ending": "blocked",
    "ending_cause": "blocked by the broker",
}  # fmt: skip
FINE = BLOCKED | {"severity": "fine", "ending": "closed"}
SECOND = 1_000_000_000
LARGEST = 2**63 - 1
GROUP = ("code", "severity", "came_up", "client_ip", "server_ip", "server_port", "vhost", "user")
FIRST = ("first_ts_ns", "connection_id", "first_capture", "first_packet", "cause")


def connections(rows: list[Row]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema("connections"))


def grouped(rows: list[Row]) -> list[Row]:
    made = failures(connections(rows))
    assert made.schema == schema("failures")
    found: list[Row] = made.to_pylist()
    return found


def smallest_first(values: tuple[Any, ...]) -> list[tuple[bool, Any]]:
    return [(value is not None, value) for value in values]


def plain(rows: list[Row]) -> list[Row]:
    """The same in plain loops."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        if row.get("severity") in ("error", "warning"):
            up = row.get("ending") is not None
            code = row["ending"] if up else row.get("handshake_outcome")
            cause = row["ending_cause"] if row.get("ending_cause") is not None else row.get("handshake_cause")
            key = (code, row["severity"], up, *(row.get(name) for name in GROUP[3:]))
            groups.setdefault(key, []).append(row | {"cause": cause})
    made = []
    for key, some in groups.items():
        first = min((tuple(row.get(name) for name in FIRST) for row in some), key=smallest_first)
        times = [row["first_ts_ns"] for row in some if row.get("first_ts_ns") is not None]
        latest = max(times, default=None)
        every = None
        if len(some) > 1 and first[0] is not None and latest - first[0] <= LARGEST:
            every = (latest - first[0]) // (len(some) - 1)
        last = {"connections": len(some), "latest_ts_ns": latest, "every_ns": every}
        last["same_cause"] = len({row.get("cause") for row in some}) == 1
        made.append(dict(zip((*GROUP, *FIRST), (*key, *first), strict=True)) | last)
    return sorted(made, key=lambda row: [(row[name] is None, row[name]) for name in GROUP])


@pytest.fixture(scope="module")
def found() -> list[Row]:
    rows = [UNKNOWN | {"connection_id": n, "first_ts_ns": 5 * n * SECOND, "first_packet": n} for n in range(412, 0, -1)]
    rows += [UNKNOWN | {"connection_id": 500, "first_ts_ns": 7, "client_ip": "10.0.3.8"}]
    rows += [kind | {"connection_id": 600 + n, "first_ts_ns": n} for n, kind in enumerate((BLOCKED, FINE))]
    return grouped(rows)


def test_the_same_failure_of_a_client_is_one_row(found: list[Row]) -> None:
    assert [(row["code"], row["client_ip"], row["connections"]) for row in found] == [
        ("blocked", "10.0.3.7", 1), ("vhost-not-found", "10.0.3.7", 412), ("vhost-not-found", "10.0.3.8", 1),
    ]  # fmt: skip


def test_the_first_of_them_stands_for_all(found: list[Row]) -> None:
    many = found[1]
    assert (many["connection_id"], many["first_packet"], many["first_ts_ns"]) == (1, 1, 5 * SECOND)
    assert (many["latest_ts_ns"], many["every_ns"]) == (412 * 5 * SECOND, 5 * SECOND)
    assert many["cause"] == "unknown virtual host /prod"


def test_one_alone_has_no_pause_and_an_ending_says_more(found: list[Row]) -> None:
    assert found[2]["every_ns"] is None
    assert (found[0]["cause"], found[0]["came_up"], found[2]["came_up"]) == ("blocked by the broker", True, False)


def test_times_that_cannot_be() -> None:
    times = (-(2**63), 0, LARGEST)
    rows = grouped([UNKNOWN | {"connection_id": n, "first_ts_ns": time} for n, time in enumerate(times)])
    assert [(row["connections"], row["every_ns"]) for row in rows] == [(3, None)]
    rows = grouped([UNKNOWN | {"connection_id": n, "first_ts_ns": time} for n, time in enumerate((0, LARGEST))])
    assert rows[0]["every_ns"] == LARGEST  # as an integer, not as a double


def test_unknown_times_and_names() -> None:
    rows = grouped([{"severity": "error", "connection_id": n, "first_ts_ns": time} for n, time in ((1, 5), (2, None))])
    assert len(rows) == 1
    assert (rows[0]["connection_id"], rows[0]["first_ts_ns"], rows[0]["latest_ts_ns"]) == (2, None, 5)
    assert rows[0]["every_ns"] is None
    assert all(rows[0][name] is None for name in GROUP[3:])


def test_nothing() -> None:
    assert failures(connections([])) == schema("failures").empty_table()
    assert failures(connections([FINE, {}])) == schema("failures").empty_table()
    assert Failures().table() == schema("failures").empty_table()
    assert Failures().partial() == PARTIAL.empty_table()


def test_a_column_is_missing() -> None:
    with pytest.raises(KeyError):
        failures(connections([UNKNOWN]).drop_columns(["user"]))


some_rows = st.lists(
    st.fixed_dictionaries(
        {
            "severity": st.sampled_from([None, "fine", "note", "warning", "error"]),
            "handshake_outcome": st.sampled_from([None, "ok", "refused"]),
            "handshake_cause": st.sampled_from([None, "because", "none"]),
            "ending": st.sampled_from([None, "blocked"]),
            "ending_cause": st.sampled_from([None, "stalled"]),
            "client_ip": st.sampled_from(["10.0.0.1", "10.0.0.2"]),
            "server_port": st.sampled_from([None, 5672, 5671]),
            "user": st.sampled_from([None, "", "ü"]),
            "connection_id": st.integers(0, 3),
            "first_capture": st.sampled_from([None, "a.pcap", "b.pcap"]),
            "first_packet": st.integers(0, 2),
            "first_ts_ns": st.none() | st.integers(0, 9) | st.integers(-(2**63), LARGEST),
        }
    ),
    max_size=15,
)


@given(some_rows)
def test_any_rows(rows: list[Row]) -> None:
    assert grouped(rows) == plain(rows)


@given(some_rows, st.data())
def test_any_split_in_any_order_gives_the_same_table(rows: list[Row], data: st.DataObject) -> None:
    tasks = [Failures() for _ in range(3)]
    for row in data.draw(st.permutations(rows)):
        tasks[data.draw(st.integers(0, 2))].add(connections([row]))
    first, second, third = data.draw(st.permutations(tasks))
    first.merge(second.partial(), third.partial())
    assert first.table() == failures(connections(rows))


def test_many_batches_are_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "FEW", 5)
    rows = [UNKNOWN | {"connection_id": n, "first_ts_ns": n, "user": f"u{n % 7}"} for n in range(200)]
    parts = Failures()
    for at in range(0, len(rows), 3):
        parts.add(connections(rows[at : at + 3]).to_batches()[0])
    assert parts.table() == failures(connections(rows))


def test_recorded_failures_are_all_there(recorded) -> None:
    connections = pq.read_table(recorded.tables / "connections", columns=["severity"])["severity"]
    bad = pc.sum(pc.is_in(connections, value_set=pa.array(["error", "warning"]))).as_py()
    rows = pq.read_table(recorded.statistics / "failures")
    assert bad == pc.sum(rows["connections"]).as_py() > len(rows) > 30
