from __future__ import annotations

from typing import Any

import pytest

from amqpscope.pipelines.schemas import schema
from amqpscope.pipelines.transits import transits
from tests.pipelines.scenario import TICK, Connection, tables

Expected = list[tuple[str, int | None]]
"""Of each delivery in order: what made the match, and which of the publishes (from 0) it was."""


def talk(publishes: list[dict[str, Any]], deliveries: list[dict[str, Any]]) -> tuple[Connection, Connection]:
    producer, consumer = Connection(), Connection()
    for columns in publishes:
        producer.publish(None, **columns)
    for _ in range(7):
        consumer.server("basic.qos-ok")
    for tag, columns in enumerate(deliveries, 1):
        if columns.pop("kind", "deliver") == "get":
            consumer.message("get", delivery_tag=tag, **columns)
        else:
            consumer.deliver(tag, **columns)
    return producer, consumer


SCENARIOS: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]], Expected]] = {
    "by message id": (
        [{"message_id": "m1"}, {"message_id": "m2"}],
        [{"message_id": "m2", "exchange": "dead"}, {"message_id": "m1"}, {"message_id": "m2", "kind": "get"}],
        [("message-id", 1), ("message-id", 0), ("message-id", 1)],
    ),
    "a message id used again": (
        [{"message_id": "n", "body_hash": 1}, {"message_id": "n", "body_hash": 2}, {"message_id": "", "body_hash": 3}],
        [{"message_id": "n", "body_hash": 2}, {"message_id": "n", "body_hash": 4}, {"message_id": "", "body_hash": 3}],
        [("content", 1), ("ambiguous", None), ("content", 2)],
    ),
    "by trace": (
        [{"trace_id": "t", "span_id": "1"}, {"trace_id": "t", "span_id": "2"}, {"trace_id": "u"}],
        [{"trace_id": "t", "span_id": "2"}, {"trace_id": "u", "span_id": "1"}],
        [("trace", 1), ("ambiguous", None)],
    ),
    "by content": (
        [
            {"routing_key": "c", "body_hash": 11},
            {"routing_key": "c", "body_hash": 12, "content_type": "a"},
            {"routing_key": "c", "body_hash": 12, "content_type": "b"},
            {"routing_key": "c", "body_hash": 13},
            {"routing_key": "c", "body_hash": 13},
            {"routing_key": "c", "body_hash": 14, "body_size": 0},
            {"routing_key": "c", "body_hash": None},
        ],
        [
            {"routing_key": "c", "body_hash": 11, "cluster_id": ""},
            {"routing_key": "c", "body_hash": 12, "content_type": "b"},
            {"routing_key": "c", "body_hash": 13},
            {"routing_key": "c", "body_hash": 14, "body_size": 0},
            {"routing_key": "c", "body_hash": None},
            {"routing_key": "c", "body_hash": 15},
            {"routing_key": "d", "body_hash": 11},
        ],
        [("content", 0), ("content", 2), *[("ambiguous", None)] * 5],
    ),
}


@pytest.fixture(scope="module")
def found(spark):
    made = {name: talk(publishes, deliveries) for name, (publishes, deliveries, _) in SCENARIOS.items()}
    _, messages, _ = tables(spark, [each for pair in made.values() for each in pair])
    result = transits(messages)
    assert result.schema.simpleString() == schema("transits").simpleString()
    return made, [row.asDict() for row in result.collect()]


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(found, name):
    made, rows = found
    producer, consumer = made[name]
    mine = sorted(
        (row for row in rows if row["deliver_connection_id"] == consumer.id), key=lambda row: row["deliver_frame_no"]
    )
    sent = [message["frame_no"] for message in producer.messages]
    got = [message["frame_no"] for message in consumer.messages]
    assert [row["matched_by"] for row in mine] == [how for how, _ in SCENARIOS[name][2]]
    for row, frame, (how, which) in zip(mine, got, SCENARIOS[name][2], strict=True):
        assert (row["deliver_frame_no"], row["deliver_packet"], row["deliver_capture"]) == (frame, frame + 1, "a.pcap")
        if how == "ambiguous":
            names = ("connection_id", "frame_no", "ts_ns", "packet", "capture")
            assert {row[f"publish_{name}"] for name in names} | {row["latency_ns"]} == {None}
        else:
            assert (row["publish_connection_id"], row["publish_frame_no"]) == (producer.id, sent[which])
            assert row["latency_ns"] == (frame - sent[which]) * TICK
