from __future__ import annotations

from typing import Any

import pytest

from amqpscope.pipelines.heartbeats import heartbeats
from amqpscope.pipelines.holes import mute
from amqpscope.pipelines.schemas import schema
from tests.pipelines.scenario import Connection, check, collect, table, tables

S = 1_000_000_000


class Timed(Connection):
    """A connection whose frames come at the seconds given; tune-ok at 10 s."""

    def __init__(self, **columns: Any) -> None:
        super().__init__(**{"heartbeat": 2, "first_ts_ns": 0, "last_ts_ns": 20 * S} | columns)

    def agreed(self) -> Timed:
        self.at(True, 10, method="connection.tune-ok")
        return self

    def at(self, from_client: bool, second: float, first: float | None = None, **columns: Any) -> None:
        times = {"ts_ns": int(second * S), "first_ts_ns": int((second if first is None else first) * S)}
        self.frame(from_client, 0, 0, **({"frame_type": "heartbeat"} | times | columns))


def row(negotiated: int | None, silence: float, missed: int | None) -> dict[str, Any]:
    return {"negotiated_s": negotiated, "longest_silence_ns": int(silence * S), "missed": missed}


# Each gives a connection and its rows: what the server sent, what the client sent.


def kept() -> tuple[Connection, list[dict[str, Any]]]:
    c = Timed().agreed()
    for second in range(11, 20):
        c.at(True, second)
        c.at(False, second + 0.5)
    return c, [row(2, 1.5, 0), row(2, 1, 0)]


def missed() -> tuple[Connection, list[dict[str, Any]]]:
    c = Timed().agreed()
    c.at(False, 12)  # just so
    c.at(False, 18.5)  # three intervals
    return c, [row(2, 6.5, 4), row(2, 10, 5)]


def before_tuning_and_behind_the_close() -> tuple[Connection, list[dict[str, Any]]]:
    c = Timed()
    c.at(True, 1, frame_type="protocol-header")
    c.agreed()
    c.at(False, 11)
    c.at(True, 11.5, method="connection.close")
    c.at(False, 19, method="connection.close-ok")
    return c, [row(2, 1, 0), row(2, 1.5, 0)]


def long_frames_and_holes() -> tuple[Connection, list[dict[str, Any]]]:
    c = Timed().agreed()
    c.at(True, 19, first=10.5)  # octets of it came all the while
    c.at(False, 11)
    lost = c.lose(from_client=False)
    c.anomalies[-1] |= {"first_ts_ns": 15 * S, "ts_ns": 16 * S}
    assert lost == 3
    return c, [row(2, 4, 2), row(2, 1, 0)]  # when lost octets came nobody knows


def of_one_direction_alone() -> tuple[Connection, list[dict[str, Any]]]:
    c = Timed().agreed()
    c.at(True, 19)
    return c, [{"negotiated_s": 2, "longest_silence_ns": None, "missed": None}, row(2, 9, 4)]


def none_agreed() -> tuple[Connection, list[dict[str, Any]]]:
    c = Timed(heartbeat=0).agreed()
    c.at(False, 10)
    return c, [row(0, 10, 0), row(0, 10, 0)]


def begun_before() -> tuple[Connection, list[dict[str, Any]]]:
    c = Timed(heartbeat=None)
    c.at(True, 3)
    c.at(True, 2)  # the clock stepped back
    return c, [row(None, 20, None), row(None, 17, None)]


def other_protocols() -> tuple[Connection, list[dict[str, Any]]]:
    return Timed(protocol="amqp-1.0"), []


SCENARIOS = {
    f.__name__: f
    for f in (
        kept,
        missed,
        before_tuning_and_behind_the_close,
        long_frames_and_holes,
        of_one_direction_alone,
        none_agreed,
        begun_before,
        other_protocols,
    )
}


@pytest.fixture(scope="module")
def runs(spark):
    made = {name: scenario() for name, scenario in SCENARIOS.items()}
    connections = [connection for connection, _ in made.values()]
    frames, _, rows = tables(spark, connections)
    anomalies = table(spark, "anomalies", [row for each in connections for row in each.anomalies])
    result = heartbeats(frames, anomalies, rows, mute(frames))
    assert result.schema.simpleString() == schema("heartbeats").simpleString()
    found = collect(result, "connection_id", "from_client")
    return {name: (found.get(connection.id, []), expected) for name, (connection, expected) in made.items()}


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(runs, name):
    check(*runs[name])
