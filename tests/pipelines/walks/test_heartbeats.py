from __future__ import annotations

import random
from typing import Any

import pytest

from amqpscope.pipelines.connections.heartbeats import Heartbeats
from tests.pipelines.scenario import Connection, arrow
from tests.pipelines.walks.properties import check_made, checked, rows_of

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

    def lack(self, from_client: bool, first: float, last: float, code: str = "tcp-gap") -> None:
        self.lose(from_client)
        self.anomalies[-1] |= {"first_ts_ns": int(first * S), "ts_ns": int(last * S), "code": code}


def row(negotiated: int | None, silence: float | None, missed: int | None) -> dict[str, Any]:
    silence_ns = None if silence is None else int(silence * S)
    return {"negotiated_s": negotiated, "longest_silence_ns": silence_ns, "missed": missed}


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


def long_frames_and_gaps() -> tuple[Connection, list[dict[str, Any]]]:
    c = Timed().agreed()
    c.at(True, 19, first=10.5)  # bytes of it came all the while
    c.at(False, 11)
    c.lack(False, 15, 16)
    return c, [row(2, 1, 0), row(2, 1, 0)]  # when lost bytes came nobody knows, nor when the last of them did


def a_frame_behind_a_gap() -> tuple[Connection, list[dict[str, Any]]]:
    c = Timed().agreed()
    c.lack(True, 15, 16)
    c.at(True, 18)
    c.at(True, 19)
    c.at(False, 20)
    return c, [row(2, 10, 5), row(2, 1, 0)]


def skipped_bytes_came() -> tuple[Connection, list[dict[str, Any]]]:
    c = Timed().agreed()
    c.lack(True, 13, 14, "bytes-skipped")
    c.at(True, 15.5)
    c.at(True, 19)
    c.at(False, 20)
    return c, [row(2, 10, 5), row(2, 3.5, 2)]


def a_long_frame_over_the_close() -> tuple[Connection, list[dict[str, Any]]]:
    c = Timed().agreed()
    c.at(True, 16, method="connection.close")
    c.at(False, 18, first=12)
    return c, [row(2, 2, 1), row(2, 6, 3)]


def of_one_direction_alone() -> tuple[Connection, list[dict[str, Any]]]:
    c = Timed().agreed()
    c.at(True, 19)
    return c, [row(2, None, None), row(2, 9, 4)]


def of_one_direction_nothing_but_a_gap() -> tuple[Connection, list[dict[str, Any]]]:
    c = Timed().agreed()
    c.lack(False, 14, 15)
    return c, [row(2, None, None), row(2, 10, 5)]


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


def without_frames() -> tuple[Connection, list[dict[str, Any]]]:
    return Timed(), [row(2, 20, 10), row(2, 20, 10)]


def centuries() -> tuple[Connection, list[dict[str, Any]]]:
    c = Timed(first_ts_ns=-(1 << 63) + 1, last_ts_ns=(1 << 63) - 1)
    years = (1 << 63) - 1
    return c, [{"longest_silence_ns": years, "missed": years // (2 * S)}] * 2


SCENARIOS = {
    f.__name__: f
    for f in (
        kept,
        missed,
        before_tuning_and_behind_the_close,
        long_frames_and_gaps,
        a_frame_behind_a_gap,
        skipped_bytes_came,
        a_long_frame_over_the_close,
        of_one_direction_alone,
        of_one_direction_nothing_but_a_gap,
        none_agreed,
        begun_before,
        other_protocols,
        without_frames,
        centuries,
    )
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(name):
    check_made(Heartbeats, [SCENARIOS[name]()], "from_client")


def some(seed: int) -> list[Connection]:
    chance = random.Random(seed)
    found = []
    for _ in range(chance.randint(1, 12)):
        c = Timed(heartbeat=chance.choice([None, 0, 1, 2]), protocol=chance.choice(["amqp-0-9-1"] * 4 + ["tls"]))
        now = 0.0
        for _ in range(chance.randint(0, 12)):
            now += chance.choice([0, 0.5, 1, 4])
            side = chance.random() < 0.5
            method = chance.choice([None, "connection.tune-ok", "connection.close", "channel.open"])
            if chance.random() < 0.2:
                c.lack(side, now - 0.5, now, chance.choice(["tcp-gap", "bytes-skipped", "frame-cut"]))
            c.at(
                side,
                now,
                now - chance.choice([0, 0, 3]),
                **({"method": method, "frame_type": "method"} if method else {}),
            )
        found.append(c)
    return found


@pytest.mark.parametrize("seed", range(10))
def test_connections_together_are_as_alone(seed):
    connections = some(seed)
    rows = checked(Heartbeats, arrow(connections), (1, 7, 100))
    alone = [row for c in connections for row in rows_of(Heartbeats, arrow([c]))]
    assert rows == sorted(alone, key=repr)
    assert all(row["longest_silence_ns"] is None or row["longest_silence_ns"] >= 0 for row in rows)


def test_without_a_connection_no_row():
    tables = arrow([kept()[0]])
    assert rows_of(Heartbeats, tables | {"connections": tables["connections"][:0]}) == []


def test_state_of_another_walk_is_refused():
    walk = Heartbeats()
    with pytest.raises(ValueError, match="not a state"):
        walk.put_back(b"something else")


@pytest.mark.compiled
def test_compiled_rows_are_the_same():
    connections = [c for seed in range(20) for c in some(seed)] + [make()[0] for make in SCENARIOS.values()]
    tables = arrow(connections)
    expected = rows_of(Heartbeats, tables)
    for size in (7, 1000):
        assert rows_of(lambda: Heartbeats(compiled=True), tables, size, stop=True) == expected
