"""Rows about TCP count towards the bound from which on connections are walked over."""

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
