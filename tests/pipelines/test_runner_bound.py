"""Bounds: from which number of rows on connections are walked over, and what each such step looks at."""

from typing import Any

import pyarrow as pa
import pytest

from amqpscope.pipelines.latencies.latency import Latencies
from amqpscope.pipelines.model.walk import conform
from amqpscope.pipelines.run import engine as module
from amqpscope.pipelines.run.engine import Engine
from amqpscope.pipelines.run.runner import Runner
from tests.pipelines.scenario import arrow_table


def test_events_of_connections_of_no_known_protocol_fill_the_store() -> None:
    row = {"connection_id": 1, "kind": "retransmission", "capture": "a.pcap", "packet": 1, "ts_ns": 1, "ts": 0}
    events = arrow_table("tcp_events", [row | {"packet": number} for number in range(1000)])
    runner = Runner(threads=0)
    runner.least = runner._full = 3 * events.nbytes
    for _ in range(3):
        runner.add(runner.prepare("tcp_events", events))
        assert not runner.is_full
    runner.add(runner.prepare("tcp_events", events))
    assert runner.is_full
    state = runner.take_out()
    other = Runner(threads=0)
    other._full = 3 * events.nbytes
    other.put_back(state)
    assert other.is_full
    ended = arrow_table("connections", [{"connection_id": 1, "protocol": "unknown", "first_ts_ns": 0, "last_ts_ns": 9}])
    other.add(other.prepare("connections", ended))
    list(other.step())
    assert not other.is_full and other._held == 0


def test_steps_do_not_go_through_all_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests of a thousand connections wait, one more from step to step."""
    steps, seen, emitted = iter(range(1000)), list[int](), list[int]()

    def step(_: Runner) -> Any:
        one = {"connection_id": pa.array([next(steps)]), "latency_ns": pa.array([1]), "outcome": pa.array(["ok"])}
        yield "rpcs", conform("rpcs", one | {"channel": pa.array([1], pa.int32())}, 1)
        name = next(iter(engine._shared))
        yield name, pa.table({"connection_id": one["connection_id"]})

    def distinct(columns: Any, plainly: Any = module.distinct) -> pa.Array:
        columns = list(columns)
        seen.append(sum(map(len, columns)))
        return plainly(columns)

    def by_connection(_: Latencies, unfinished: pa.Array) -> Any:
        emitted.append(len(unfinished))
        return iter(())

    monkeypatch.setattr(module, "MOST_ADDED", 8)
    monkeypatch.setattr(module, "distinct", distinct)
    monkeypatch.setattr(Latencies, "by_connection", by_connection)
    monkeypatch.setattr(Runner, "is_full", True)
    monkeypatch.setattr(Runner, "step", step)
    engine = Engine()
    for _ in range(1000):
        engine.step()
    assert emitted[0] == 9 and len(emitted) < 10 and emitted == sorted(emitted)
    assert sum(seen) < 6000
