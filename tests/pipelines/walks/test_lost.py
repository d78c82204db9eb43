"""Deliveries whose publish has the same contents as one that may have been lost."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpscope.pipelines import jobs
from amqpscope.pipelines.across.lost import LOST, SCHEMA, Lost, LostPublishes, still_needed
from amqpscope.pipelines.run.engine import Engine, batches
from amqpscope.pipelines.statistics import KEYED
from tests.pipelines.scenario import TICK, Connection, arrow

NOBODY = pa.array([], pa.int64())
ALIKE = {"exchange": "e", "routing_key": "k", "body_hash": 7}


def captured(
    who: str = "both", where: str = "k", from_client: bool = True, behind: int = 0, **columns: Any
) -> list[Connection]:
    """A publish, another publisher of the same or another place, one of which (`who`) has a gap, and a delivery."""
    one, other, consumer = Connection(), Connection(), Connection()
    one.publish(None, **ALIKE, **columns)
    other.publish(None, exchange="e", routing_key=where, body_hash=99)
    consumer.deliver(1, **ALIKE, **columns)
    consumer.messages[-1]["ts_ns"] += TICK
    for connection in {"one": [one], "other": [other], "both": [one, other], "nobody": []}[who]:
        for _ in range(behind):
            connection.client("basic.qos")
        connection.lose(from_client)
        connection.publish(None, exchange="e", routing_key="further", body_hash=98)
    return [one, other, consumer]


def matched(connections: list[Connection], window_ns: int = 1_000_000_000) -> str:
    tables = arrow(connections)
    found = jobs.transits(tables["messages"], window_ns, anomalies=tables["anomalies"]).to_pylist()
    return str(found[0]["matched_by"])


@pytest.mark.parametrize(
    ("connections", "how"),
    [
        (captured("nobody"), "content"),
        (captured("one"), "ambiguous"),
        (captured("other"), "ambiguous"),
        (captured("other", where="elsewhere"), "content"),
        (captured("both", from_client=False), "content"),
        (captured("both", correlation_id="1"), "content"),
        (captured("both", correlation_id=""), "ambiguous"),
        (captured("both", message_id="m"), "message-id"),
    ],
)
def test_equal_contents_are_not_enough_where_a_publish_may_be_missing(connections, how):
    assert matched(connections) == how


def test_a_gap_counts_within_the_window_before_the_delivery():
    late = captured("one")
    late[0].messages.insert(1, late[0].messages[0] | {"frame_no": 2, "body_hash": 97, "ts_ns": 9 * TICK})
    late[0].messages[0]["frame_no"] = 1
    assert matched(late) == "content"  # the gap begins after the delivery
    early = captured("one")
    for message in (early[0].messages[0], early[2].messages[0]):
        message["ts_ns"] += 1000 * TICK
    assert matched(early, 100 * TICK) == "content"
    assert matched(early, 2000 * TICK) == "ambiguous"


def some_rows(seed: int) -> pa.Table:
    some = random.Random(seed)
    rows = []
    for _ in range(some.randint(0, 30)):
        since = some.randint(0, 50)
        gap = {"since_ns": since, "until_ns": since + some.randint(0, 20)}
        rows.append({"connection_id": some.randint(1, 4), **some.choice([gap, {"place": some.randint(0, 3)}])})
    return pa.Table.from_pylist(rows, SCHEMA)


@given(seed=st.integers(0, 1 << 30), since=st.integers(0, 60), long=st.integers(0, 20))
def test_it_is_the_rule(seed, since, long):
    rows = some_rows(seed)
    lost = Lost(rows)
    asked = np.arange(5), np.full(5, since), np.full(5, since + long)
    mine = lost.may_lack(*asked).tolist() if lost else [False] * 5
    every = rows.to_pylist()
    gaps = [row for row in every if row["until_ns"] is not None]
    near = {row["connection_id"] for row in gaps if row["until_ns"] >= since and row["since_ns"] <= since + long}
    assert mine == [any(row["place"] == place and row["connection_id"] in near for row in every) for place in range(5)]
    later = Lost(still_needed(rows, since, NOBODY, NOBODY))
    assert (later.may_lack(*asked).tolist() if later else [False] * 5) == mine


def test_it_is_left_out_where_there_are_no_deliveries():
    engine = Engine(deliveries=False)
    assert not engine.rows & {KEYED, LOST}
    assert LOST not in {name for chain in engine.runner.chains for name in getattr(chain.walk, "partial", ())}


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("hop", [False, True])
def test_rows_say_the_same_for_any_batches(size, hop):
    def rows(size: int, hop: bool = False) -> list[dict[str, Any]]:
        walk, found = LostPublishes(), [SCHEMA.empty_table()]
        for events in batches(tables, [walk], size):
            found += [part for _, part in walk.feed(events)]
            if hop:
                state = walk.take_out()
                walk = LostPublishes()
                walk.put_back(state)
        return sorted(
            still_needed(pa.concat_tables(found), 0, NOBODY, NOBODY).to_pylist(),
            key=lambda row: [value or -1 for value in row.values()],
        )

    tables = arrow([*captured("one"), *captured("both", behind=2), *captured("other", where="x")])
    assert len(rows(1000)) > 8
    assert rows(size, hop) == rows(1000)
    tables = arrow(captured("nobody"))
    assert rows(size, hop) == []
