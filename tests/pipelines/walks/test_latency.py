"""Latencies: what is counted where, percentiles, and that parts merge to the same tables however the rows are split."""

from __future__ import annotations

import itertools
import math
import random
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpscope.pipelines.latencies import histograms
from amqpscope.pipelines.latencies.groupings import FINEST
from amqpscope.pipelines.latencies.latency import (
    COLUMNS,
    COUNTS,
    GROUPINGS,
    PARTIAL,
    PERCENTILES,
    Latencies,
    latency_buckets,
    latency_summary,
)
from amqpscope.pipelines.latencies.log_linear import BUCKETS, bucket_of, high_of, low_of, middle_of
from amqpscope.pipelines.model import folding
from amqpscope.pipelines.model.walk import Collected, schema
from tests.pipelines.scenario import arrow_table
from tests.reference import latency_summary as exact

Row = dict[str, Any]
Rows = dict[str, list[Row]]

TABLES = {"confirm": "confirms", "settlement": "settlements", "rpc": "rpcs", "transit": "transits"}
USED = {
    "confirm": ("all", "connection", "channel", "exchange", "routing_key", "stream"),
    "settlement": ("all", "connection", "channel", "exchange", "routing_key", "queue", "consumer_tag"),
    "rpc": ("all", "connection", "channel", "request"),
    "transit": ("all", "exchange", "routing_key"),
}
NEEDED = {"channel": "channel", "exchange": "exchange", "routing_key": "exchange", "stream": "stream"}
CENSORED = ("capture-end", "gap", "evicted")
LARGEST = 2**63 - 1
EVERYTHING = [None] * len(COLUMNS)


def table(metric: str, rows: list[Row]) -> pa.Table:
    return arrow_table(TABLES[metric], rows)


def summaries(**rows: list[Row]) -> dict[tuple[Any, ...], Row]:
    """The summary of these rows by metric, grouping and the columns that name a group."""
    made = latency_summary(**{TABLES[metric]: table(metric, some) for metric, some in rows.items()})
    assert made.schema == schema("latency_summary")
    named = {(row["metric"], row["grouping"], *(row[name] for name in COLUMNS)): row for row in made.to_pylist()}
    assert len(named) == made.num_rows
    return named


def bucket(value: int) -> int:
    """The definition, in Python's integers."""
    shift = max(value.bit_length() - 8, 0)
    return shift * 128 + (value >> shift)


def groups(metric: str, rows: list[Row]) -> Iterator[tuple[tuple[Any, ...], list[Row]]]:
    """The rows of each group, in plain loops."""
    for grouping in USED[metric]:
        found: dict[tuple[Any, ...], list[Row]] = {}
        for row in rows:
            if grouping not in NEEDED or row.get(NEEDED[grouping]) is not None:
                key = tuple(row.get(name) if name in GROUPINGS[grouping] else None for name in COLUMNS)
                found.setdefault((metric, grouping, *key), []).append(row)
        yield from found.items()


def counted(metric: str, rows: list[Row]) -> Row:
    """What the rows of a group count for."""
    counts = dict.fromkeys(COUNTS, 0)
    for row in rows:
        latency, outcome = row.get("latency_ns"), row.get("outcome") if metric != "transit" else "ok"
        usable = latency is not None and latency >= 0
        ended_by = row.get("ended_by") if outcome == "none" else None
        censored, unanswered = ended_by in CENSORED, ended_by is not None and ended_by not in CENSORED
        counts["count"] += usable
        counts["failed"] += outcome in ("nack", "reject", "error") or unanswered
        counts["censored"] += censored
        counts["unanswered"] += unanswered
        counts["unusable"] += not usable and outcome not in (None, "none", "auto", "unknown")
    return counts


def check(made: dict[tuple[Any, ...], Row], rows: Rows) -> int:
    """Compare a summary with plain loops over the rows; return the number of groups."""
    expected = {key: (metric, some) for metric, all_ in rows.items() for key, some in groups(metric, all_)}
    assert made.keys() == expected.keys()
    for key, (metric, some) in expected.items():
        found = made[key]
        assert {name: found[name] for name in COUNTS} == counted(metric, some)
        reference = exact(row.get("latency_ns") for row in some)
        assert (found["count"], found["max_ns"]) == (reference["count"], reference["max_ns"])
        values = sorted(
            row["latency_ns"] for row in some if row.get("latency_ns") is not None and row["latency_ns"] >= 0
        )
        for name in PERCENTILES:
            if reference[name] is None:
                assert found[name] is None
            else:
                assert abs(found[name] - reference[name]) * 1000 <= 4 * reference[name], (key, name)
                assert bucket(found[name]) == bucket(reference[name])
                assert found[name] == reference[name] or reference[name] >= 256
                assert found[name] == reference[name] or values[0] < values[-1]
                assert found[name] <= found["max_ns"]
    return len(expected)


@pytest.fixture(scope="module")
def samples() -> Rows:
    """Confirms of two connections, settlements and rpcs, with latencies of every size."""
    chance = random.Random(1)
    confirms: list[Row] = [
        {
            "connection_id": 1 + i % 2,
            "channel": i % 3,
            "channel_epoch": 1,
            "exchange": "x",
            "routing_key": f"k{i % 5}",
            "latency_ns": chance.choice([int(chance.lognormvariate(12, 3)), 5, 5_000_000_000]),
            "outcome": "nack" if i % 10 == 0 else "ack",
        }
        for i in range(3000)
    ]
    confirms += [
        {"connection_id": 1, "outcome": "none", "ended_by": ended_by}
        for ended_by in ("capture-end", "gap", "evicted", "discarded", "channel-close")
    ]
    confirms.append({"connection_id": 1, "outcome": "ack", "latency_ns": -1})
    channel: Row = {"connection_id": 1, "channel": 1, "channel_epoch": 1}
    settlements = [
        channel | {"queue": "q", "consumer_tag": tag, "latency_ns": latency, "outcome": outcome}
        for tag, latency, outcome in (
            ("a", 0, "ack"),
            ("a", 100, "reject"),
            ("b", 255, "ack"),
            ("b", None, "auto"),
            ("b", None, "unknown"),
        )
    ]
    rpcs = [
        channel | {"channel": 0, "request": "connection.open", "latency_ns": 7, "outcome": "ok"},
        channel | {"request": "queue.declare", "latency_ns": 9, "outcome": "error"},
    ]
    transits = [{"exchange": "x", "routing_key": "k", "latency_ns": latency} for latency in (3, None, 1_000_000)]
    return {"confirm": confirms, "settlement": settlements, "rpc": rpcs, "transit": transits}


def test_buckets_hold_their_values_and_no_others() -> None:
    chance = random.Random(2)
    edges = [value for power in range(63) for value in (2**power - 1, 2**power, 2**power + 1)]
    edges += [LARGEST, *(chance.randrange(2 ** chance.randint(1, 63)) for _ in range(2000))]
    values = np.array(sorted({value for value in edges if value <= LARGEST}))
    buckets = bucket_of(values)
    rows = zip(values, buckets, low_of(buckets), middle_of(buckets), high_of(buckets), strict=True)
    for value, number, low, middle, high in (map(int, row) for row in rows):
        assert low <= value < high or (number == BUCKETS - 1 and value == high == LARGEST)
        assert low <= middle < high
        assert high - low == 1 or (high - low) * 128 <= low
        assert number == bucket(value)
    whole = np.arange(BUCKETS)
    assert low_of(whole)[0] == 0
    assert (high_of(whole)[:-1] == low_of(whole)[1:]).all()
    assert (bucket_of(low_of(whole)) == whole).all()
    assert bucket(LARGEST) == BUCKETS - 1


def test_summary_of_every_group(samples: Rows) -> None:
    made = summaries(**samples)
    assert check(made, samples) > 1 + 2 + 6 + 1 + 5
    everything = made["confirm", "all", *EVERYTHING]
    assert [everything[name] for name in COUNTS] == [3000, 302, 3, 2, 1]
    for row in made.values():
        assert row["failed"] <= row["count"] + row["unanswered"]
    settled = made["settlement", "all", *EVERYTHING]
    assert [settled[name] for name in COUNTS] == [3, 1, 0, 0, 0]  # the others asked for no answer
    assert (settled["p50_ns"], settled["max_ns"]) == (100, 255)
    assert made["settlement", "consumer_tag", 1, 1, 1, None, None, None, "a", None, None]["count"] == 2
    assert made["settlement", "queue", *[None] * 5, "q", *[None] * 3]["p9999_ns"] == 255
    assert made["rpc", "request", *[None] * 7, "queue.declare", None]["failed"] == 1
    assert not any(row["grouping"] == "request" for row in made.values() if row["metric"] != "rpc")
    passed = made["transit", "all", *EVERYTHING]
    assert [passed[name] for name in COUNTS] == [2, 0, 0, 0, 1]


def test_percentiles_are_nearest_rank(samples: Rows) -> None:
    values = list(range(256)) * 3
    random.Random(3).shuffle(values)
    made = summaries(transit=[{"latency_ns": value} for value in values])["transit", "all", *EVERYTHING]
    for name, share in PERCENTILES.items():
        assert made[name] == sorted(values)[math.ceil(len(values) * share / 10_000) - 1]


def test_one_latency_is_exact_and_none_is_above_the_largest() -> None:
    one = summaries(transit=[{"latency_ns": 123_456_789}])["transit", "all", *EVERYTHING]
    assert {one[name] for name in (*PERCENTILES, "max_ns")} == {123_456_789}
    some = bucket_of(np.array([1_000_500]))
    low, middle = int(low_of(some)[0]), int(middle_of(some)[0])
    two = summaries(transit=[{"latency_ns": low}, {"latency_ns": middle - 5}])["transit", "all", *EVERYTHING]
    assert {two[name] for name in (*PERCENTILES, "max_ns")} == {middle - 5}
    two = summaries(transit=[{"latency_ns": middle + 5}, {"latency_ns": middle + 9}])["transit", "all", *EVERYTHING]
    assert [two["p50_ns"], two["max_ns"]] == [middle + 5, middle + 9]


def test_extremes() -> None:
    latencies = (-(2**63), -1, 0, LARGEST, LARGEST - 1, None)
    rows = {"confirm": [{"connection_id": LARGEST, "latency_ns": value, "outcome": "ack"} for value in latencies]}
    made = summaries(**rows)
    check(made, rows)
    everything = made["confirm", "all", *EVERYTHING]
    assert [everything[name] for name in COUNTS] == [3, 0, 0, 0, 3]
    assert everything["max_ns"] == LARGEST
    last = latency_buckets(confirms=table("confirm", rows["confirm"])).to_pylist()[1]
    assert (last["bucket"], last["low_ns"], last["high_ns"], last["count"]) == (BUCKETS - 1, 255 << 55, LARGEST, 2)


def test_only_todays_words_are_censored() -> None:
    words = ("capture-end", "gap", "evicted", "hole", "recover", "rollback", None)
    rows: list[Row] = [{"outcome": "none", "ended_by": word} for word in words]
    rows += [{"outcome": "ack", "ended_by": "gap", "latency_ns": 1}, {"outcome": "unknown", "ended_by": "gap"}, {}]
    made = summaries(settlement=rows)["settlement", "all", *EVERYTHING]
    assert [made[name] for name in COUNTS] == [1, 3, 3, 3, 0]


def test_groups_without_latency_have_a_row_and_no_buckets() -> None:
    rows: list[Row] = [{"connection_id": 1, "outcome": "auto"}, {"connection_id": 2, "outcome": "ack", "latency_ns": 7}]
    made = summaries(settlement=rows)
    silent = made["settlement", "connection", 1, *EVERYTHING[1:]]
    assert [silent[name] for name in COUNTS] == [0] * 5
    assert all(silent[name] is None for name in (*PERCENTILES, "max_ns"))
    found = latency_buckets(settlements=table("settlement", rows))
    assert 1 not in found["connection_id"].to_pylist()


def test_nulls_name_groups_but_for_what_does_not_belong() -> None:
    rows = [
        {"connection_id": 1, "stream": "s", "latency_ns": 1, "outcome": "ack"},
        {"connection_id": 1, "channel": 1, "channel_epoch": 1, "exchange": "", "latency_ns": 2, "outcome": "ack"},
    ]
    made = summaries(confirm=rows)
    check(made, {"confirm": rows})
    assert {key[1] for key in made} == {*USED["confirm"]}
    assert made["confirm", "routing_key", None, None, None, "", *[None] * 5]["count"] == 1
    assert made["confirm", "connection", 1, *EVERYTHING[1:]]["count"] == 2
    made = summaries(settlement=[{"latency_ns": 3, "outcome": "ack"}])
    assert {key[1:] for key in made} == {(name, *EVERYTHING) for name in ("all", "connection", "queue", "consumer_tag")}


def test_nothing() -> None:
    for made, name in ((Latencies().summary(), "latency_summary"), (Latencies().buckets(), "latency_buckets")):
        assert (made.num_rows, made.schema) == (0, schema(name))
    empty = {TABLES[metric]: table(metric, []) for metric in TABLES}
    assert latency_summary(**empty) == schema("latency_summary").empty_table()
    assert latency_buckets(**empty) == schema("latency_buckets").empty_table()
    assert Latencies().partial() == PARTIAL.empty_table()
    with pytest.raises(ValueError, match="no table"):
        latency_summary()


def test_buckets_add_up_to_the_summary(samples: Rows) -> None:
    tables = {TABLES[metric]: table(metric, rows) for metric, rows in samples.items()}
    made = latency_buckets(**tables)
    assert made.schema == schema("latency_buckets")
    group = ["metric", "grouping", *COLUMNS]
    totals = made.group_by(group).aggregate([("count", "sum")]).rename_columns([*group, "count"])
    summary = latency_summary(**tables).select([*group, "count"])
    summary = summary.filter(pc.field("count") > 0)
    order = [(name, "ascending") for name in group]
    assert totals.sort_by(order) == summary.sort_by(order).combine_chunks()
    buckets = bucket_of(made["low_ns"].to_numpy())
    assert (buckets == made["bucket"].to_numpy()).all()
    expected: dict[int, int] = {}
    for row in samples["confirm"]:
        if row.get("latency_ns", -1) >= 0:
            expected[bucket(row["latency_ns"])] = expected.get(bucket(row["latency_ns"]), 0) + 1
    all_ = made.filter((pc.field("metric") == "confirm") & (pc.field("grouping") == "all"))
    assert dict(zip(all_["bucket"].to_pylist(), all_["count"].to_pylist(), strict=True)) == expected


def test_rows_are_ordered(samples: Rows) -> None:
    tables = {TABLES[metric]: table(metric, rows) for metric, rows in samples.items()}
    for made, behind in ((latency_summary(**tables), ()), (latency_buckets(**tables), ("bucket",))):
        keys = [
            (
                [*TABLES].index(row["metric"]),
                USED[row["metric"]].index(row["grouping"]),
                *((row[name] is None, row[name]) for name in COLUMNS),
                *(row[name] for name in behind),
            )
            for row in made.to_pylist()
        ]
        assert all(one < two for one, two in itertools.pairwise(keys))


def test_other_types_of_the_same_columns(samples: Rows) -> None:
    rows = table("confirm", samples["confirm"])
    texts = [name for name in rows.schema.names if rows.schema.field(name).type == pa.string()]
    expected = latency_summary(confirms=rows)
    for kind in (pa.large_string(), pa.dictionary(pa.int32(), pa.string())):
        fields = [pa.field(f.name, kind if f.name in texts else f.type) for f in rows.schema]
        assert latency_summary(confirms=rows.cast(pa.schema(fields))) == expected
    chunked = pa.Table.from_batches(rows.to_batches(max_chunksize=7))
    assert latency_summary(confirms=chunked) == expected


def test_columns_that_are_not_used_may_be_missing(samples: Rows) -> None:
    rows = table("transit", samples["transit"])
    few = rows.select(["exchange", "routing_key", "latency_ns"])
    assert latency_summary(transits=few) == latency_summary(transits=rows)
    with pytest.raises(KeyError):
        latency_summary(confirms=few)
    with pytest.raises(KeyError):
        Latencies().add("confirms", few)


def test_partial_results_are_rows_that_sum_up(samples: Rows) -> None:
    latencies = Latencies()
    for metric, rows in samples.items():
        latencies.add(metric, table(metric, rows))
    made = latencies.partial()
    assert made.schema == PARTIAL
    everything = pc.field("metric") == "confirm"
    channels = made.filter(everything & (pc.field("grouping") == "channel"))
    assert [pc.sum(channels[name]).as_py() for name in COUNTS] == [3000, 302, 3, 2, 1]
    assert pc.max(channels["max_ns"]).as_py() == max(row.get("latency_ns", 0) for row in samples["confirm"])
    # As an engine hands them back: in batches, and not in order.
    mixed = made.take(np.random.default_rng(4).permutation(made.num_rows))
    again = Latencies()
    again.merge(*(pa.Table.from_batches([batch]) for batch in mixed.to_batches(max_chunksize=100)))
    assert (again.summary(), again.buckets()) == (latencies.summary(), latencies.buckets())


def test_what_is_no_partial_result() -> None:
    row = dict.fromkeys(PARTIAL.names) | {"metric": "confirm", "grouping": "connection"}
    with pytest.raises(ValueError, match="confirm by connection"):
        Latencies().merge(pa.Table.from_pylist([row], PARTIAL))
    with pytest.raises(KeyError):
        Latencies().merge(latency_summary(transits=table("transit", [])))


def test_other_groupings_are_made_of_the_finest() -> None:
    assert {metric: [*kept] for metric, kept in FINEST.items()} == {
        "confirm": ["channel", "routing_key", "stream"],
        "settlement": ["consumer_tag", "routing_key", "queue"],
        "rpc": ["channel", "request"],
        "transit": ["routing_key"],
    }
    for metric, kept in FINEST.items():
        assert sorted(itertools.chain(*kept.values())) == sorted(USED[metric])


@pytest.mark.parametrize("few", [0, 50])
def test_many_batches_are_folded(monkeypatch: pytest.MonkeyPatch, samples: Rows, few: int) -> None:
    monkeypatch.setattr(folding, "FEW", few)
    rows, nothing = table("confirm", samples["confirm"]), table("transit", [])
    whole, parts = Latencies(), Latencies()
    whole.add("confirm", rows)
    for batch in rows.to_batches(max_chunksize=10):
        parts.add("confirm", batch)
        parts.add("transit", nothing)
    assert (parts.summary(), parts.buckets()) == (whole.summary(), whole.buckets())
    for each in (whole, parts):  # goes on after a result
        each.add("confirm", rows.slice(0, 100))
    assert (parts.summary(), parts.buckets()) == (whole.summary(), whole.buckets())


def test_more_combinations_of_keys_than_integers() -> None:
    chance, rows = np.random.default_rng(6), 60_000
    keys = np.stack([chance.permutation(rows) for _ in range(4)])
    assert rows**4 > LARGEST
    twice = {name: pa.array(np.tile(values, 2)) for name, values in zip("abcd", keys, strict=True)}
    found = histograms.of_rows(twice, np.arange(2 * rows), np.ones((1, 2 * rows), np.bool_)).by("abcd").ordered()
    assert (found.groups, found.figures.tolist()) == (rows, [[2] * rows])
    assert (found.keys["a"].to_numpy() == np.arange(rows)).all()
    assert (keys[1][found.least] == found.keys["b"].to_numpy()).all()
    assert (found.most == found.least + rows).all()
    assert (found.counts() == 2).all()


def test_memory_grows_with_the_result_only() -> None:
    rows = pa.table({"exchange": ["x"] * 1000, "routing_key": ["k"] * 1000, "latency_ns": range(1000)})
    held = folding.Folding(lambda parts: parts[0], rows)
    for _ in range(1000):
        held.add(rows)
        assert sum(len(part) for part in held._parts) <= folding.FEW + 2 * len(rows)
    latencies = Latencies()
    for _ in range(100):
        latencies.add("transit", rows)
    assert latencies.partial().num_rows == len(set(map(bucket, range(1000))))


def test_spark_is_not_imported() -> None:
    modules = "amqpscope.pipelines.latencies.latency, amqpscope.pipelines.connections.failures"
    code = f"import sys; import {modules}; assert 'pyspark' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


names = st.sampled_from([None, "", "a", "b", "ü"])
numbers = st.sampled_from([None, 0, 1, 2])
latencies_ns = st.none() | st.integers(-2, 300) | st.integers(-(2**63), LARGEST) | st.sampled_from([1_000_000, LARGEST])
ENDS = (*CENSORED, "channel-close", "recover")
OUTCOMES = {
    "confirm": ("ack", "nack", "none"),
    "settlement": ("ack", "nack", "reject", "auto", "none", "unknown"),
    "rpc": ("ok", "error", "none"),
}


def columns_of(metric: str) -> dict[str, st.SearchStrategy[Any]]:
    columns: dict[str, st.SearchStrategy[Any]] = {"latency_ns": latencies_ns}
    if metric in OUTCOMES:
        columns["outcome"] = st.sampled_from([None, *OUTCOMES[metric]])
        columns["ended_by"] = st.sampled_from([None, *ENDS])
    for grouping in USED[metric]:
        for name in GROUPINGS[grouping]:
            columns[name] = numbers if name in COLUMNS[:3] else names
    return columns


some_rows = st.fixed_dictionaries(
    {metric: st.lists(st.fixed_dictionaries(columns_of(metric)), max_size=12) for metric in TABLES}
)


@given(some_rows)
def test_any_rows(rows: Rows) -> None:
    check(summaries(**rows), rows)


@given(some_rows, st.lists(st.integers(0, 2), max_size=2))
def test_what_tasks_know_of_their_connections_is_whole(rows: Rows, unfinished: list[int]) -> None:
    whole, driver = Latencies(), Latencies()
    tasks = [Latencies(), Latencies()]
    for metric, some in rows.items():
        whole.add(metric, table(metric, some))
        mine = [row for n, row in enumerate(some) if n % 2 or row.get("connection_id") not in unfinished]
        driver.add(metric, table(metric, [row for row in some if not any(row is each for each in mine)]))
        for number, task in enumerate(tasks):
            task.add(metric, table(metric, [row for row in mine if hash(row.get("connection_id")) % 2 == number]))
    found = Collected()
    for task in tasks:
        found.add(task.by_connection(pa.array(unfinished, pa.int64())))
        assert {*task.partial()["connection_id"].to_pylist()} <= {None, *unfinished}
        driver.merge(task.partial())
    found.add([("latency_buckets", driver.buckets()), ("latency_summary", driver.summary())])
    for name, expected in (("latency_buckets", whole.buckets()), ("latency_summary", whole.summary())):
        assert sorted(map(repr, found.table(name).to_pylist())) == sorted(map(repr, expected.to_pylist()))


@given(some_rows, st.data())
def test_any_split_in_any_order_gives_the_same_tables(rows: Rows, data: st.DataObject) -> None:
    whole = Latencies()
    tables = {metric: table(metric, some) for metric, some in rows.items()}
    for metric, some in tables.items():
        whole.add(metric, some)
    shuffled = data.draw(st.permutations([(metric, at) for metric, some in rows.items() for at in range(len(some))]))
    tasks = [Latencies() for _ in range(4)]
    for metric, at in shuffled:
        tasks[data.draw(st.integers(0, 3))].add(metric, tables[metric].slice(at, 1))
    order = data.draw(st.permutations(tasks))
    middle, last = Latencies(), order[3]
    middle.merge(order[0].partial(), order[1].partial())
    last.merge(middle.partial())
    last.merge(order[2].partial())
    assert last.summary() == whole.summary()
    assert last.buckets() == whole.buckets()
