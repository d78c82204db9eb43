from __future__ import annotations

import itertools
import math
import random

import pytest
from pyspark.sql import functions as sf

from amqpscope.pipelines.latency import (
    COUNTS,
    PERCENTILES,
    bucket_of,
    high_of,
    latency_buckets,
    latency_summary,
    low_of,
)
from amqpscope.pipelines.schemas import schema
from tests.pipelines.scenario import table


@pytest.fixture(scope="module")
def samples(spark):
    """Confirms of two connections, settlements and rpcs, with latencies of every size."""
    chance = random.Random(1)
    made = {"confirms": [], "settlements": [], "rpcs": []}
    for i in range(3000):
        latency = chance.choice([int(chance.lognormvariate(12, 3)), 5, 5_000_000_000])
        row = {
            "connection_id": 1 + i % 2,
            "channel": i % 3,
            "channel_epoch": 1,
            "exchange": "x",
            "routing_key": f"k{i % 5}",
        }
        made["confirms"].append(row | {"latency_ns": latency, "outcome": "nack" if i % 10 == 0 else "ack"})
    made["confirms"] += [
        {"connection_id": 1, "outcome": "none", "ended_by": ended_by}
        for ended_by in ("capture-end", "gap", "discarded", "channel-close")
    ]
    made["confirms"].append({"connection_id": 1, "outcome": "ack", "latency_ns": -1})
    made["settlements"] = [
        {
            "connection_id": 1,
            "channel": 1,
            "channel_epoch": 1,
            "queue": "q",
            "consumer_tag": tag,
            "latency_ns": n,
            "outcome": out,
        }
        for tag, n, out in (
            ("a", 0, "ack"),
            ("a", 100, "reject"),
            ("b", 255, "ack"),
            ("b", None, "auto"),
            ("b", None, "unknown"),
        )
    ]
    made["rpcs"] = [
        {
            "connection_id": 1,
            "channel": 0,
            "channel_epoch": 0,
            "request": "connection.open",
            "latency_ns": 7,
            "outcome": "ok",
        },
        {
            "connection_id": 1,
            "channel": 1,
            "channel_epoch": 1,
            "request": "queue.declare",
            "latency_ns": 9,
            "outcome": "error",
        },
    ]
    return made, {name: table(spark, name, rows) for name, rows in made.items()}


def test_buckets_hold_their_values_and_no_others(spark):
    chance = random.Random(2)
    edges = [value for power in range(63) for value in (2**power - 1, 2**power, 2**power + 1)]
    values = sorted({2**63 - 1, *edges, *(chance.randrange(2 ** chance.randint(1, 63)) for _ in range(2000))})
    values = [value for value in values if 0 <= value < 2**63]
    frame = spark.createDataFrame([(value,) for value in values], "v bigint").withColumn("b", bucket_of(sf.col("v")))
    rows = frame.select("v", "b", low_of(sf.col("b")), high_of(sf.col("b"))).collect()
    last = max(row[1] for row in rows)
    assert len(rows) == len(values)
    for value, bucket, low, high in rows:
        assert low <= value < high or (bucket == last and high == 2**63 - 1)
        assert high - low == 1 or (high - low) * 128 <= low
        # the definition, in Python's integers
        shift = max(value.bit_length() - 8, 0)
        assert bucket == shift * 128 + (value >> shift)
    whole = spark.range(last).select(low_of(sf.col("id")), high_of(sf.col("id"))).collect()
    assert whole[0][0] == 0
    assert all(one[1] == two[0] for one, two in itertools.pairwise(whole))


def test_summary_is_exact(samples):
    made, frames = samples
    result = latency_summary(**frames)
    assert result.schema.simpleString() == schema("latency_summary").simpleString()
    rows = [row.asDict() for row in result.collect()]
    keys = ("connection_id", "channel", "channel_epoch", "exchange", "routing_key", "queue", "consumer_tag", "request")
    by_group = {(row["metric"], row["grouping"], *(row[key] for key in keys)): row for row in rows}
    assert len(by_group) == len(rows)
    groups = {
        "all": (),
        "connection": keys[:1],
        "channel": keys[:3],
        "exchange": ("exchange",),
        "routing_key": ("exchange", "routing_key"),
    }
    checked = 0
    for grouping, used in groups.items():
        values: dict[tuple, list[int]] = {}
        for row in made["confirms"]:
            if row.get("latency_ns", -1) >= 0:
                values.setdefault(tuple(row.get(key) if key in used else None for key in keys), []).append(
                    row["latency_ns"]
                )
        for group, latencies in values.items():
            found = by_group["confirm", grouping, *group]
            latencies.sort()
            assert found["count"] == len(latencies)
            assert found["max_ns"] == latencies[-1]
            for name, share in PERCENTILES.items():
                assert found[name] == latencies[math.ceil(len(latencies) * share / 10000) - 1], (grouping, group, name)
            checked += 1
    assert checked == 1 + 2 + 6 + 1 + 5
    everything = by_group["confirm", "all", *[None] * 8]
    assert [everything[name] for name in COUNTS] == [3000, 302, 2, 2, 1]
    for row in rows:
        assert row["failed"] <= row["count"] + row["unanswered"]
    settled = by_group["settlement", "all", *[None] * 8]
    assert [settled[name] for name in COUNTS] == [3, 1, 0, 0, 0]  # the others asked for no answer
    assert (settled["p50_ns"], settled["max_ns"]) == (100, 255)
    assert by_group["settlement", "consumer_tag", 1, 1, 1, None, None, None, "a", None]["count"] == 2
    assert by_group["settlement", "queue", *[None] * 5, "q", None, None]["p9999_ns"] == 255
    assert by_group["rpc", "request", *[None] * 7, "queue.declare"]["failed"] == 1
    assert not any(row["grouping"] == "request" for row in rows if row["metric"] != "rpc")


def test_buckets_add_up_to_the_summary(samples):
    _, frames = samples
    result = latency_buckets(**frames)
    assert result.schema.simpleString() == schema("latency_buckets").simpleString()
    totals = result.groupBy("metric", "grouping").agg(sf.sum("count").alias("count"))
    summary = latency_summary(**frames).groupBy("metric", "grouping").agg(sf.sum("count").alias("count"))
    assert {tuple(row) for row in totals.collect()} == {tuple(row) for row in summary.collect()}
