"""Failures: what is grouped, and what of the first of a group is told."""

from __future__ import annotations

from typing import Any

import pytest

from tests.pipelines.conftest import Recorded

UNKNOWN = {
    "severity": "error", "handshake_outcome": "vhost-not-found", "handshake_cause": "unknown virtual host /prod",
    "client_ip": "10.0.3.7", "server_ip": "10.0.0.1", "server_port": 5672, "vhost": "/prod", "user": "shop",
}  # fmt: skip
BLOCKED = UNKNOWN | {
    "severity": "warning", "handshake_outcome": "ok", "handshake_cause": "the connection came up", "ending": "blocked",
    "ending_cause": "blocked by the broker",
}  # fmt: skip
FINE = BLOCKED | {"severity": "fine", "ending": "closed"}
SECOND = 1_000_000_000


def grouped(spark: Any, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    from amqpscope.pipelines.failures import failures  # noqa: PLC0415
    from amqpscope.pipelines.schemas import schema  # noqa: PLC0415

    names = schema("connections").names
    data = [tuple(row.get(name) for name in names) for row in rows]
    made = failures(spark.createDataFrame(data, schema("connections")))
    assert made.schema.simpleString() == schema("failures").simpleString()
    return [row.asDict() for row in made.orderBy("code", "client_ip").collect()]


@pytest.fixture(scope="module")
def found(spark: Any) -> list[dict[str, Any]]:
    rows = [UNKNOWN | {"connection_id": n, "first_ts_ns": 5 * n * SECOND, "first_packet": n} for n in range(412, 0, -1)]
    rows += [UNKNOWN | {"connection_id": 500, "first_ts_ns": 7, "client_ip": "10.0.3.8"}]
    rows += [kind | {"connection_id": 600 + n, "first_ts_ns": n} for n, kind in enumerate((BLOCKED, FINE))]
    return grouped(spark, rows)


def test_the_same_failure_of_a_client_is_one_row(found: list[dict[str, Any]]) -> None:
    assert [(row["code"], row["client_ip"], row["connections"]) for row in found] == [
        ("blocked", "10.0.3.7", 1), ("vhost-not-found", "10.0.3.7", 412), ("vhost-not-found", "10.0.3.8", 1),
    ]  # fmt: skip


def test_the_first_of_them_stands_for_all(found: list[dict[str, Any]]) -> None:
    many = found[1]
    assert (many["connection_id"], many["first_packet"], many["first_ts_ns"]) == (1, 1, 5 * SECOND)
    assert (many["latest_ts_ns"], many["every_ns"]) == (412 * 5 * SECOND, 5 * SECOND)
    assert many["cause"] == "unknown virtual host /prod"


def test_one_alone_has_no_pause_and_an_ending_tells_more(found: list[dict[str, Any]]) -> None:
    assert found[2]["every_ns"] is None
    assert (found[0]["cause"], found[0]["came_up"], found[2]["came_up"]) == ("blocked by the broker", True, False)


def test_recorded_failures_are_all_there(recorded: Recorded, spark: Any) -> None:
    from amqpscope.pipelines import read  # noqa: PLC0415

    connections = read(spark, str(recorded.tables), "connections")
    bad = connections.where("severity in ('error', 'warning')").count()
    rows = read(spark, str(recorded.statistics), "failures").collect()
    assert bad == sum(row["connections"] for row in rows) > len(rows) > 30


def test_times_that_cannot_be(spark: Any) -> None:
    times = (-(2**63), 0, 2**63 - 1)
    rows = grouped(spark, [UNKNOWN | {"connection_id": n, "first_ts_ns": time} for n, time in enumerate(times)])
    assert [(row["connections"], row["every_ns"]) for row in rows] == [(3, None)]
