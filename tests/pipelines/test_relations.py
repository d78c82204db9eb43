"""Relations: their dialect, their rows against plain loops over frames, and on both engines."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpscope.pipelines import memory
from amqpscope.pipelines.model.walk import conform, schema
from amqpscope.pipelines.relations import compute, database, routes
from amqpscope.pipelines.relations.texts import MADE, SOURCES, begins_with, needed, read_by_rules, tables_of, texts
from amqpscope.spec.findings import load
from tests.dissector.recordings import ours
from tests.pipelines.analyzed import statistics

CAPTURES = Path(__file__).parents[1] / "captures"
RECORDED = (
    "demo",
    "orders_pika",
    "gets",
    "blocked",
    "mandatory_returns",
    "qpid_messaging",
    "stream_chunks",
    "lossy_link",
)
FUNCTIONS = {
    "count_star", "count", "lag", "sum", "min", "max", "min_by", "max_by", "lpad", "||", "coalesce", "nullif",
    "greatest", "row_number", "floor", "ln", "+", "-", "*", "/", "%", "~~", "!~~",
}  # fmt: skip
"""What texts may call; `~~` is like. `min_by` and `max_by` only by what is unique within its group."""
TYPES = ("bigint", "int", "double", "string", "boolean")
CLASSES = {
    "COLUMN_REF", "CONSTANT", "FUNCTION", "COMPARISON", "CONJUNCTION", "OPERATOR", "CASE", "CAST", "TYPE", "WINDOW",
}  # fmt: skip
OPERATORS = {"OPERATOR_IS_NULL", "OPERATOR_IS_NOT_NULL", "OPERATOR_NOT", "OPERATOR_COALESCE", "OPERATOR_NULLIF"}


def sources(stem: str) -> dict[str, pa.Table]:
    return {name: statistics(stem)[name] for name in SOURCES}


def in_any_order(table: pa.Table) -> list[str]:
    return sorted(map(repr, table.to_pylist()))


EXTREMES = (0, 1, -1, 1 << 52, (1 << 62) - 1, (1 << 63) - 1, -(1 << 63), None)
SAID = ("body_size", "delivery_tag", "expires_ms", "message_ttl_ms", "max_length", "max_length_bytes", "message_count")
"""Columns of what brokers and clients write, whatever it is."""


def with_extremes(seed: int) -> dict[str, pa.Table]:
    """Statistics of the demo; of each column some values are extreme, or null."""
    chance = random.Random(seed)
    given = {}
    for name, rows in sources("demo").items():
        columns = {}
        for field in rows.schema:
            values = rows[field.name].to_pylist()
            if field.name in SAID or database.is_time(field):
                for at in chance.sample(range(len(values)), min(len(values), 2)):
                    values[at] = chance.choice(EXTREMES)
            elif field.name != "connection_id" and values:
                values[chance.randrange(len(values))] = None
            columns[field.name] = pa.array(values, field.type)
        given[name] = pa.table(columns, schema=rows.schema) if columns else rows
    return given


# ---- the dialect


def nodes(tree: Any) -> Any:
    if isinstance(tree, dict):
        yield tree
        for each in tree.values():
            yield from nodes(each)
    elif isinstance(tree, list):
        for each in tree:
            yield from nodes(each)


def wrong(text: str) -> list[str]:
    """What a text has that not both engines understand alike."""
    tree = json.loads(duckdb.execute("select json_serialize_sql(?)", [text]).fetchone()[0])  # type: ignore[index]
    assert not tree["error"], tree
    code = re.sub(r"--[^\n]*", "", text)
    found = ["::"] if "::" in code else []
    if len(re.findall(rf" as ({'|'.join(TYPES)})\)", code)) != code.count("cast("):
        found.append("cast to another type")
    for node in nodes(tree["statements"]):
        kind = node.get("class")
        if kind is not None and kind not in CLASSES:
            found.append(kind)
        if kind in ("FUNCTION", "WINDOW") and node["function_name"] not in FUNCTIONS:
            found.append(node["function_name"])
        if kind == "OPERATOR" and node["type"] not in OPERATORS:
            found.append(node["type"])
        if kind == "WINDOW" and node["orders"]:
            found += [
                "order without nulls first or last" for each in node["orders"] if each["null_order"] == "ORDER_DEFAULT"
            ]
        if node.get("type") == "JOIN":
            if node["join_type"] not in ("INNER", "LEFT"):
                found.append(node["join_type"])
            if node["condition"] is None or not any(
                each.get("type") == "COMPARE_EQUAL" for each in nodes(node["condition"])
            ):
                found.append("join without an equality")
    return found


@pytest.mark.parametrize("name", texts())
def test_texts_are_in_the_dialect_of_both_engines(name: str) -> None:
    assert wrong(texts()[name]) == []
    lines = [line.partition("--")[0] for line in texts()[name].splitlines()]
    code = " ".join(lines)
    assert code.count(" / ") + code.count("% ") == code.count("/ nullif(") + code.count("% nullif("), (
        "divides by null at worst"
    )
    assert code.count("sum(") == code.count("cast(sum(") + code.count("cast(coalesce(sum("), "a sum is no HUGEINT"


@pytest.mark.parametrize(
    "text",
    [
        "select list(a) from t", "select median(a) from t", "select a from t full join u on t.a = u.a",
        "select a from t cross join u", "select row_number() over (order by a) from t", "select a::json from t",
        "select regexp_matches(a, 'x') from t", "select a from t join u on t.a < u.a",
    ],
)  # fmt: skip
def test_others_are_not(text: str) -> None:
    assert wrong(text)


def test_products_of_times_and_counts_are_no_whole_numbers() -> None:
    """Two of them do not fit into 64 bits, nor does a cast afterwards help."""
    own = "\n".join([*texts().values(), *(f"{rule.sql}\n{rule.applies}\n{rule.unsure}" for rule in load())])
    factors = re.findall(r"(\S+) \* ", re.sub(r"(\S+)((?: \* [\w.]+)+)", r"\1 * ", own))
    whole = [each for each in factors if not re.search(r"(^|\()\d+(\.\d+)?$|double\)$", each)]
    assert len(factors) > 50 and whole == []


def test_texts_come_after_those_that_they_read() -> None:
    known = {*SOURCES, *MADE}
    for name, text in texts().items():
        assert tables_of(text) <= known, name
        known.add(name)
    order = needed(["queues"])
    assert order[0] == "changes" and order[-1] == "queues"
    assert {*order} == {
        "changes",
        "channels",
        "dead_paths",
        "requeued",
        "deletions",
        "exclusives",
        "consumers",
        "servers",
        "queues",
    }


def test_their_order_is_the_same_in_all_runs() -> None:
    asked = "from amqpscope.pipelines.relations.texts import texts; print(*texts())"
    orders = {
        subprocess.run(
            [sys.executable, "-c", asked], env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in "123"
    }
    assert len(orders) == 1


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", [name for name in texts() if begins_with(name)])
@pytest.mark.parametrize("stem", ["demo", "blocked"])
def test_what_a_text_says_it_begins_with_it_has_no_rows_without(
    stem: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else they would be missing: the text is not run then."""
    begun = begins_with(name)
    assert begun in SOURCES
    monkeypatch.setattr(compute, "begins_with", lambda _: None)
    tables = sources(stem) | {begun: schema(begun).empty_table()}
    assert [len(rows) for _, rows in compute.compute(tables, [name])] == [0]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", compute.NAMES)
def test_a_relation_alone_is_as_among_all(name: str) -> None:
    assert in_any_order(dict(compute.compute(sources("demo"), [name]))[name]) == in_any_order(statistics("demo")[name])


def test_many_rows_are_planned_for_and_make_the_same_relations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "FEW", 0)
    for name, rows in compute.compute(sources("demo")):
        assert in_any_order(rows) == in_any_order(statistics("demo")[name]), name


def test_words_in_comments_and_values_are_no_tables() -> None:
    assert tables_of("select a -- from b\nfrom t join u on t.a = u.a where t.a like '% from the server'") == {"t", "u"}
    assert read_by_rules() <= {*SOURCES, *MADE, *texts()}


# ---- routing keys


def matches(pattern: list[str], words: list[str]) -> bool:
    """A topic pattern, by its definition."""
    if not pattern:
        return not words
    if pattern[0] == "#":
        return matches(pattern[1:], words) or bool(words and matches(pattern, words[1:]))
    return bool(words) and pattern[0] in ("*", words[0]) and matches(pattern[1:], words[1:])


@given(
    st.lists(st.sampled_from(["#", "*", "a", "b"]), min_size=1, max_size=5),
    st.lists(st.sampled_from("abc"), max_size=5),
)
def test_topics_match_by_their_definition(pattern: list[str], words: list[str]) -> None:
    assert routes.topic_matches(".".join(pattern), ".".join(words)) == matches(pattern, words)


def test_hostile_topics_take_no_time() -> None:
    assert routes.topic_matches("#." * 200 + "z", "a." * 200 + "z")
    assert not routes.topic_matches("#.a." * 200 + "z", "a." * 400 + "b")


def bound(*ends: tuple[str, str, bool], kind: str, key: str = "") -> dict[routes.Place, routes.Bindings]:
    """Bindings of exchanges to others (False) or to queues (True), in one virtual host."""
    made = routes.Bindings()
    made.types |= {each: kind for each, *_ in ends}
    made.bindings = [
        routes.Binding(exchange, f"{key}{number}", None, to, is_queue, 0, 9, None)
        for number, (exchange, to, is_queue) in enumerate(ends)
    ]
    return {("b", "/"): made}


@pytest.mark.parametrize(
    ("made", "exchange", "key"),
    [
        # forty bindings from each to the next: a message takes forty to the eighth ways
        (bound(*((f"e{at}", f"e{at + 1}", at == 7) for at in range(8) for _ in range(40)), kind="fanout"), "e0", "k"),
        (bound(*(("e", f"q{at}", True) for at in range(2000)), kind="fanout"), "e", "k"),
        (bound(*(("e", f"q{at}", True) for at in range(2000)), kind="topic", key="#." * 120), "e", "a." * 120),
    ],
)  # fmt: skip
def test_what_leads_to_too_many_queues_is_not_known(
    made: dict[routes.Place, routes.Bindings], exchange: str, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "MOST_TRIED", 20_000)
    monkeypatch.setattr(routes, "MOST_WAYS", 5_000)
    keys = [("b", "/", exchange, f"{key}{number}") for number in range(50)]
    found = within(10_000_000, lambda: routes.routed_table(made, keys, []))
    reached = {row["routing_key"]: (row["queue"], row["queues"]) for row in found.to_pylist()}
    assert len(reached) == 50 and reached[max(keys)[3]] == (None, routes.TOO_MANY)
    assert pc.count(found["queue"]).as_py() <= 20_000


def test_each_virtual_host_has_its_own_room_and_direct_bindings_need_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "MOST_TRIED", 100)
    (full,) = bound(*(("e", f"q{at}", True) for at in range(200)), kind="fanout").values()
    (direct,) = bound(("d", "q", True), kind="direct", key="k").values()
    full.types |= {"d": "direct"}
    full.bindings += direct.bindings
    made = {("b", "a"): full, ("b", "z"): direct}
    keys = [("b", "a", "e", "x"), ("b", "a", "f", "x"), ("b", "a", "d", "k0"), ("b", "z", "d", "k0")]
    found = {(row["vhost"], row["exchange"]): (row["queue"], row["queues"]) for row in
             routes.routed_table(made, keys, []).to_pylist()}  # fmt: skip
    assert found == {("a", "e"): (None, 0), ("a", "f"): (None, 0), ("a", "d"): ("q", 1), ("z", "d"): ("q", 1)}


def test_long_names_of_sensors_are_no_many_ways() -> None:
    made = bound(
        *(("e", f"q{at}", True) for at in range(100)), kind="topic", key="factory.*.line-3.machine-003.*.temperature"
    )
    keys = [("b", "/", "e", f"factory.north.line-3.machine-003.sensor-17.temperature{at}") for at in range(2000)]
    assert None not in routes.routed_table(made, keys, [])["queue"].to_pylist()


def test_where_ways_are_too_many_nothing_is_said_of_what_goes_into_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "MOST_WAYS", 0)
    assert {row["ins"] for row in dict(compute.compute(sources("demo"), ["queues"]))["queues"].to_pylist()} == {None}


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)).map(sorted).map(tuple), max_size=8))
def test_merged_intervals_hold_the_same_times(intervals: list[tuple[int, int]]) -> None:
    found = routes.merged(intervals)
    assert {t for a, b in found for t in range(a, b)} == {t for a, b in intervals for t in range(a, b)}
    assert all(a[1] < b[0] for a, b in pairwise(found))


# ---- rows against plain loops


def test_queues_of_the_demo_are_those_of_plain_loops() -> None:
    """Publishes held against bindings one by one; deliveries and gets counted from messages."""
    tables = ours(CAPTURES / "demo.pcap")
    frames = [row for row in tables["amqp091_frames"].to_pylist() if row["method"]]
    bound: dict[str, list[tuple[int, str]]] = defaultdict(list)
    removed: dict[str, int] = {}
    of_tag: dict[tuple[int, str], str] = {}
    asked: dict[tuple[int, int], list[str]] = defaultdict(list)
    for row in sorted(frames, key=lambda row: row["ts_ns"]):
        if row["method"] == "queue.bind":
            bound[row["queue"]].append((row["ts_ns"], row["routing_key"]))
        elif row["method"] == "queue.delete":
            removed[row["queue"]] = row["ts_ns"]
        elif row["method"] == "basic.consume":
            of_tag[row["connection_id"], row["consumer_tag"]] = row["queue"]
        elif row["method"] == "basic.get":
            asked[row["connection_id"], row["channel"]].append(row["queue"])
        elif row["method"] == "basic.get-empty":
            asked[row["connection_id"], row["channel"]].pop(0)
    ins: Counter[str] = Counter()
    outs: Counter[str] = Counter()
    for row in sorted(tables["messages"].to_pylist(), key=lambda row: row["ts_ns"]):
        if row["kind"] == "publish" and row["exchange"] == "":
            ins[row["routing_key"]] += 1
        elif row["kind"] == "publish":
            words = row["routing_key"].split(".")
            for queue, bindings in bound.items():
                there = row["ts_ns"] < removed.get(queue, 1 << 62)
                if there and any(t < row["ts_ns"] and matches(key.split("."), words) for t, key in bindings):
                    ins[queue] += 1
        elif row["kind"] == "deliver":
            outs[of_tag[row["connection_id"], row["consumer_tag"]]] += 1
        elif row["kind"] == "get":
            outs["carts"] += 1
    refused = sum(row["outcome"] == "nack" for row in statistics("demo")["confirms"].to_pylist())
    ins["carts"] -= refused  # only its publishes were
    found = {row["queue"]: row for row in statistics("demo")["queues"].to_pylist()}
    assert len(found) == 50
    for queue in ("warehouse", "carts", "billing", "statistics"):
        assert (found[queue]["ins"], found[queue]["outs"]) == (ins[queue], outs[queue]), queue
        assert found[queue]["left_over"] == ins[queue] - outs[queue]
    assert found["carts"]["nacked"] == refused
    assert sum(row["outs"] for row in found.values()) == sum(outs.values())


@pytest.mark.sampled(3)
@pytest.mark.parametrize("stem", RECORDED)
def test_sums_agree_with_the_tables_that_they_are_of(stem: str) -> None:
    whole, frames = statistics(stem), ours(CAPTURES / f"{stem}.pcap")
    messages = frames["messages"]
    published = messages.filter(pc.equal(messages["kind"], "publish"))
    assert sum(whole["published"]["count"].to_pylist()) == len(published)
    assert sum(whole["published"]["bytes"].to_pylist()) == sum(each or 0 for each in published["body_size"].to_pylist())
    rates = whole["rates"].filter(pc.equal(whole["rates"]["grouping"], "all"))
    assert sum(rates["publishes"].to_pylist()) == len(published)
    chunks = whole["stream_deliveries"].filter(pc.equal(whole["stream_deliveries"]["chunk_type"], 0))
    delivered = len(whole["settlements"]) + sum(chunks["records"].to_pylist())
    assert sum(rates["deliveries"].to_pylist()) == delivered
    outcomes = Counter(whole["confirms"]["outcome"].to_pylist())
    assert (sum(rates["confirms"].to_pylist()), sum(rates["nacks"].to_pylist())) == (outcomes["ack"], outcomes["nack"])
    assert sum(whole["clients"]["connections"].to_pylist()) == len(frames["connections"])
    assert sum(whole["clients"]["deliveries"].to_pylist()) + sum(whole["clients"]["gets"].to_pylist()) == delivered


@pytest.mark.parametrize("stem", ["demo", "orders_pika", "lossy_link"])
def test_occupancy_is_that_of_a_plain_loop(stem: str) -> None:
    whole = statistics(stem)
    found: dict[Any, int] = defaultdict(int)
    for row in whole["occupancy"].to_pylist():
        key = tuple(row[each] for each in ("level", "connection_id", "channel", "channel_epoch", "consumer_tag"))
        assert 0 <= row["low"] <= row["high"], row
        found[key] = max(found[key], row["high"])
    steps: dict[Any, list[tuple[int, int]]] = defaultdict(list)
    for row in whole["settlements"].to_pylist():
        if row["kind"] == "deliver" and row["outcome"] not in ("auto", "unknown"):
            key = ("unacked", row["connection_id"], row["channel"], row["channel_epoch"], row["consumer_tag"])
            steps[key].append((row["deliver_frame_no"], 1))
            if row["settle_frame_no"] is not None:
                steps[key].append((row["settle_frame_no"], -1))
    for key, moves in steps.items():
        height, most, moments = 0, 0, defaultdict(int)
        for frame, step in moves:
            moments[frame] += step
        for frame in sorted(moments):
            height += moments[frame]
            most = max(most, height)
        assert found[key] == most, key


# ---- engines


@pytest.mark.parametrize("stem", ["demo", "orders_pika"])
def test_rows_in_another_order_make_the_same_relations(stem: str) -> None:
    chance = random.Random(7)
    tables = {}
    for name, rows in sources(stem).items():
        order = list(range(len(rows)))
        chance.shuffle(order)
        tables[name] = rows.take(pa.array(order, pa.int64()))
    for name, rows in compute.compute(tables):
        assert in_any_order(rows) == in_any_order(statistics(stem)[name]), name


@pytest.mark.parametrize(("stem", "share"), [("demo", 300), ("lossy_link", 20)])
def test_relations_of_shares_of_the_connections_are_the_same(
    stem: str, share: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compute, "SHARE", share)
    for name, rows in compute.compute(sources(stem), compute.BY_CONNECTION):
        assert in_any_order(rows) == in_any_order(statistics(stem)[name]), name


def test_a_folder_of_statistics_has_them_and_they_are_those_of_memory(demo_statistics: Path, tmp_path: Path) -> None:
    folder = tmp_path / "statistics [1] of o'clock"
    shutil.copytree(demo_statistics, folder)
    for name, rows in compute.of_folder(folder):
        assert rows.schema == schema(name)
        assert in_any_order(rows) == in_any_order(statistics("demo")[name]), name


def test_nothing_but_the_folder_is_read(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "secret.csv").write_text("a\n1\n")
    with database.connect(tmp_path / "in") as connection:
        for text in (
            f"select * from read_csv('{tmp_path}/secret.csv')",
            f"copy (select 1) to '{tmp_path}/out.csv'",
            "install httpfs",
            "set enable_external_access = true",
        ):
            with pytest.raises(duckdb.Error):
                connection.execute(text)


def test_nothing_at_all_makes_empty_tables() -> None:
    found = dict(compute.compute({}))
    assert set(found) == set(compute.NAMES)
    assert all(rows.schema == schema(name) for name, rows in found.items())
    assert [name for name, rows in found.items() if len(rows)] == ["rules"]  # and none of them is clear
    assert (
        "clear"
        not in found["rules"].filter(pc.invert(pc.starts_with(found["rules"]["code"], "cap-")))["state"].to_pylist()
    )


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [None, 0, 1])
def test_relations_on_spark_are_the_same(spark: Any, seed: int | None) -> None:
    """Of two recordings as of one capture: planning is most of the work, and gaps are in the second."""
    from amqpscope.pipelines.spark import relations  # noqa: PLC0415
    from amqpscope.pipelines.spark.versions import of_arrow  # noqa: PLC0415

    first = sources("demo") if seed is None else with_extremes(seed)
    given = {name: pa.concat_tables([rows, sources("lossy_link")[name]]) for name, rows in first.items()}
    tables = {name: of_arrow(spark, rows) for name, rows in given.items()}
    assert {name: rows.count() for name, rows in tables.items()} == {name: len(rows) for name, rows in given.items()}
    expected = dict(compute.compute(given))
    before = spark.sql("show tables").count()
    for name, rows in relations.relations(spark, tables):
        wanted = expected[name]
        assert in_any_order(rows.toArrow().cast(wanted.schema)) == in_any_order(wanted), name
    assert spark.sql("show tables").count() == before


def test_words_in_literals_and_comments_are_no_tables() -> None:
    text = "-- join one\nselect n.a like '% from the %' from endpoints n -- it's\njoin rates r on r.b = n.b"
    assert tables_of(text) == {"endpoints", "rates"}


def test_topology_has_what_is_published_to_streams() -> None:
    messages = ours(CAPTURES / "stream_rstream.pcap")["messages"].to_pylist()
    sent = Counter(row["stream"] for row in messages if row["kind"] == "publish")
    rows = [row for row in statistics("stream_rstream")["topology"].to_pylist() if row["edge"] == "publish"]
    assert {(row["exchange"], row["routing_key"]) for row in rows} == {(None, None)}
    assert Counter({row["queue"]: row["messages"] for row in rows}) == sent and sent


@pytest.mark.thorough
def test_relations_on_spark_without_rows_to_begin_with_are_empty(spark: Any) -> None:
    from amqpscope.pipelines.spark import relations  # noqa: PLC0415

    wanted = [name for name in texts() if begins_with(name)]
    made = dict(relations.relations(spark, {}, wanted))
    assert [made[name].count() for name in wanted] == [0] * len(wanted)


def within(steps: int, run: Callable[[], Any]) -> Any:
    """What a function returns; it fails where that takes more steps (lines of Python, also repeated ones)."""
    left = steps

    def trace(*_: Any) -> Any:
        nonlocal left
        left -= 1
        assert left, f"more than {steps:,} steps"
        return trace

    former = sys.gettrace()
    sys.settrace(trace)
    try:
        return run()
    finally:
        sys.settrace(former)


def test_queues_that_are_bound_and_deleted_take_a_few_steps_each() -> None:
    """A deletion looks at its own bindings only."""
    count = 4_000
    rows = [
        {
            "server": "a", "vhost": "a", "method": method, "exchange": "e", "queue": f"q{number}", "packet": number,
            "done_ts_ns": number + since, "passive": False,
        }
        for method, since in (("queue.bind", 0), ("queue.delete", count)) for number in range(count)
    ]  # fmt: skip
    changes = conform("changes", {name: pa.array([row[name] for row in rows]) for name in rows[0]}, len(rows))
    (found,) = within(60 * len(rows), lambda: routes.bindings(changes.to_batches())).values()
    assert [(each.since_ns, each.until_ns) for each in found.bindings] == [(n, n + count) for n in range(count)]


def test_too_little_memory_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "MEMORY", 16_000_000)
    line = r"^relations of 10,000 rows of statistics need more than 16 MB of memory: use fewer captures"
    with pytest.raises(database.MemoryLimitError, match=line), database.connect() as connection:
        connection.execute("select count(distinct i || 'long text') from range(20000000) t(i)").fetchall()


def test_memory_grows_with_rows_to_half_of_the_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "of_machine", lambda: 4_000_000_000)
    for rows, expected in ((0, 244.1), (10**7, 244.1), (3 * 10**7, 572.2)):
        with database.connect(rows=rows) as connection:
            ((found,),) = connection.execute("select current_setting('memory_limit')").fetchall()
            assert found.endswith(" MiB") and float(found.split()[0]) == pytest.approx(expected, abs=0.2)
    with database.connect(rows=10**9) as connection:
        ((found,),) = connection.execute("select current_setting('memory_limit')").fetchall()
        assert found == "1.8 GiB"


@pytest.mark.parametrize(
    ("group", "file", "said"),
    [
        ("0::/a/b", "a/memory.max", "123000000"), ("0::/a/b", "memory.max", "123000000"),
        ("1:cpu:/\n4:memory:/docker/1f9c", "memory/memory.limit_in_bytes", "123000000"),
        ("0::/../out", "memory.max", "max"), ("0::/a", "a/memory.max", str((1 << 63) - 4096)), ("", "memory.max", "1"),
    ],
)  # fmt: skip
def test_a_control_group_has_the_memory_that_it_says(
    group: str, file: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_machine = memory.of_machine()
    (tmp_path / "groups" / file).parent.mkdir(parents=True)
    (tmp_path / "groups" / file).write_text(f"{said}\n")
    (tmp_path / "own").write_text(group)
    monkeypatch.setattr(memory, "CONTROL_GROUPS", tmp_path / "groups")
    monkeypatch.setattr(memory, "OF_THIS_PROCESS", tmp_path / "own")
    assert memory.of_machine() == (123_000_000 if said == "123000000" else of_machine)


ENDLESS = """
[[rule]]
code = "my-endless"
severity = "note"
party = "client"
from = "operations a join operations b on a.channel >= b.channel join operations c on true join operations d on true"
where = "a.frame_no + b.frame_no + c.frame_no + d.frame_no = -1"
[rule.values]
count = "a.frame_no"
[rule.texts]
text = "never"
"""


def test_ctrl_c_ends_the_program_while_duckdb_computes(tmp_path: Path) -> None:
    """DuckDB raises an error of its own then, which would be a trace for people who stop the program."""
    (tmp_path / "endless.toml").write_text(ENDLESS)
    command = [sys.executable, "-m", "amqpscope", "summary", str(CAPTURES / "demo.pcap"), "--rules", "endless.toml"]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            while not list(tmp_path.glob("amqpscope-*")):
                assert process.poll() is None
                time.sleep(0.02)
            time.sleep(1)  # so that it computes
            process.send_signal(signal.SIGINT)
            errors = process.communicate(timeout=60)[1]
        finally:
            process.kill()
    assert process.returncode in (130, -signal.SIGINT) and "Traceback" not in errors, errors  # the same for a shell


STEPS = """
from amqpscope.pipelines.relations import database
with database.connect() as connection:
    print("ready", flush=True)
    connection.execute("select sum(a.range + b.range) from range(100000) a, range(100000000) b")
"""


def test_ctrl_c_ends_a_single_step_that_is_long() -> None:
    """DuckDB looks for signals between steps alone, and a hostile product is one."""
    with subprocess.Popen([sys.executable, "-c", STEPS], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.stdout and process.stdout.readline()
            time.sleep(1)  # so that it computes
            process.send_signal(signal.SIGINT)
            errors = process.communicate(timeout=20)[1].decode()
        finally:
            process.kill()
    assert process.returncode == -signal.SIGINT and errors.rstrip().endswith("KeyboardInterrupt"), errors


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(4))
def test_no_value_of_a_statistic_ends_relations_or_rules(seed: int) -> None:
    assert {name for name, _ in compute.compute(with_extremes(seed))} == {*compute.NAMES}
