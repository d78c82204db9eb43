"""The data source of Spark: rows are those of `dissect`, whatever is asked of them, and one dissection makes all."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from amqpscope import pipelines
from amqpscope.dissector.cli.program import main
from amqpscope.pipelines.folder import ReadError
from tests.dissector.follows import rotate
from tests.dissector.runs import FOLDER, recorded

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = pytest.mark.spark
NAMES = ("orders_pika.pcap", "stream_super.pcap", "tls_sessions_13.pcap", "violations.pcap")
KEYLOG = str(FOLDER / "tls_sessions_13.keylog")


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("archive")
    for name in NAMES:
        shutil.copy(FOLDER / name, folder)
    (folder / "text.pcap").write_text("hello")
    return folder


@pytest.fixture(scope="module")
def tables(captures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    main(["dissect", str(captures), "-o", str(folder), "--keylog", KEYLOG, "--port", "5672=amqp-0-9-1"])
    return folder


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def rows(found: DataFrame) -> Counter[str]:
    return Counter(map(repr, found.collect()))


def read(spark: SparkSession, captures: Path, cache: Path, table: str, **options: str) -> DataFrame:
    ports = "5672=amqp-0-9-1, 1=tls"
    return pipelines.read(spark, captures, table, keylog=KEYLOG, port=ports, parts="3", cache=str(cache), **options)


def test_tables_are_those_of_one_process(spark: SparkSession, captures: Path, tables: Path, cache: Path) -> None:
    """All are read from one dissection, in three parts."""
    for name in ("captures", "connections", "messages", "anomalies"):
        found, expected = read(spark, captures, cache, name), pipelines.read(spark, tables, name)
        assert found.schema == expected.schema
        assert rows(found) == rows(expected), name
    (folder,) = cache.iterdir()
    made = {path.name: path.stat().st_mtime_ns for path in folder.iterdir() if not path.name.startswith(".")}
    chains = len(NAMES)
    assert Counter(name.partition("-")[0] for name in made) == {
        "survey": chains + 1, "plan": 1, "blocks": chains, "part": 3
    }  # fmt: skip


FILTERS = (
    "ts_ns >= 1795254443524803000 and ts < timestamp'2026-11-21 10:00:00'",
    "kind = 'publish' and channel in (1, 2) and exchange is not null",
    "not routing_key = 'orders.new' and redelivered is null",
    "channel not in (3) and not (mandatory) and body_size % 2 = 0",
    "routing_key like 'o%' or delivery_tag > 3",
    "trace_id is not null and publish_seq <= 7 and body_hash = 5",
)


def test_filters_and_columns(spark: SparkSession, captures: Path, tables: Path, cache: Path) -> None:
    every, expected = read(spark, captures, cache, "messages"), pipelines.read(spark, tables, "messages")
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    for each in FILTERS:
        pushed = read(spark, captures, cache, "messages", pushFilters="true").where(each)
        assert rows(pushed) == rows(every.where(each)) == rows(expected.where(each)), each
        plan = pushed._jdf.queryExecution().executedPlan().toString()
        assert ("Filter (" in plan) == ("%" in each), plan
    some = spark.read.format("amqpscope").schema("kind string, ts_ns long").option("table", "messages")
    some = some.options(keylog=KEYLOG, port="5672=amqp-0-9-1, 1=tls", parts=3, cache=str(cache))
    assert rows(some.load(str(captures))) == rows(expected.select("kind", "ts_ns"))
    assert len(list(cache.iterdir())) == 1


def test_connections_of_an_address(spark: SparkSession, captures: Path, tmp_path: Path) -> None:
    """Others are not dissected."""
    data = (captures / NAMES[0]).read_bytes()
    (tmp_path / "one.pcap").write_bytes(data)
    (tmp_path / "two.pcap").write_bytes(data.replace(bytes([127, 0, 0, 1]), bytes([10, 0, 0, 9])))
    every = pipelines.read(spark, tmp_path, "messages")
    found = pipelines.read(spark, tmp_path, "messages", address="10.0.0.9, ::1:2")
    assert rows(found) == rows(every.where("capture = 'two.pcap'"))
    assert found.count() == every.count() // 2 > 0
    with pytest.raises(Exception, match="'nowhere' does not appear to be an IPv4 or IPv6 address"):
        pipelines.read(spark, captures, "messages", address="nowhere").collect()


def test_what_cannot_be_read(spark: SparkSession, captures: Path) -> None:
    named = [str(captures / name) for name in (NAMES[0], "text.pcap")]
    with pytest.raises(Exception, match="not a pcap or pcapng file"):
        pipelines.read(spark, named, "captures").collect()
    found = pipelines.read(spark, named, "captures", ignoreCorruptFiles="true")
    errors = {row.capture: row.error for row in found.collect()}
    assert errors[NAMES[0]] is None
    assert "looks like text" in errors["text.pcap"]
    with pytest.raises(Exception, match="PORT=PROTOCOL"):
        pipelines.read(spark, captures, "messages", port="5672").collect()
    with pytest.raises(Exception, match=r"no table 'confirms'; option.* takes captures, connections"):
        spark.read.format("amqpscope").option("table", "confirms").load(str(captures))
    listed = {row.table: row.rows for row in spark.read.format("amqpscope").load(str(captures)).collect()}
    assert "messages" in listed and "confirms" not in listed and all(listed.values())
    with pytest.raises(Exception, match="no column kind of type int in messages"):
        spark.read.format("amqpscope").option("table", "messages").schema("kind int").load(str(captures)).collect()


@pytest.mark.parametrize("schema", [None, "kind string"])
@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"prot": "5672=amqp-0-9-1"}, "no option 'prot'; did you mean port?"),
        ({"port": "5672"}, "argument --port: '5672' is not PORT=PROTOCOL"),
        ({"parts": "many"}, "parts: 'many' is not a number of 0 or more"),
        ({"address": "nowhere"}, "address: 'nowhere' does not appear to be an IPv4 or IPv6 address"),
        ({"path": "/nowhere/*.pcap"}, "/nowhere/*.pcap: no such file or folder"),
    ],
)
def test_what_is_wrong_is_one_sentence_when_it_is_loaded(
    spark: SparkSession, captures: Path, options: dict[str, str], told: str, schema: str | None
) -> None:
    """With a schema of the user, Spark makes the source when it plans a query."""
    from amqpscope.pipelines.spark.source import register  # noqa: PLC0415

    register(spark)
    options = dict(options)
    path = options.pop("path", str(captures))
    reader = spark.read.format("amqpscope").option("table", "messages").options(**options)
    with pytest.raises(Exception, match="amqpscope") as raised:
        reader.schema(schema).load(path).collect() if schema else reader.load(path)
    text = str(raised.value)
    assert told in text
    assert "Traceback" not in text and "File " not in text


def test_tables_need_no_key_log(spark: SparkSession, tables: Path) -> None:
    with pytest.raises(ReadError, match="keylog is for captures"):
        pipelines.read(spark, tables, "messages", keylog=KEYLOG)


def test_a_stream_has_the_rows_of_a_batch(spark: SparkSession, tmp_path: Path) -> None:
    """Its query ends with what there is, and goes on; another table comes from the same dissection."""
    folder = tmp_path / "captures"
    folder.mkdir()
    packets, link = recorded("stream_super.pcap")
    *first, last = rotate(packets, [200, 400], "trace", link)
    for _, file, content in first:
        (folder / file).write_bytes(content)
    stream(spark, tmp_path, "messages", {"availableNow": True}).awaitTermination()
    (folder / last[1]).write_bytes(last[2])
    streams = {name: stream(spark, tmp_path, name, {}, untilIdle="0") for name in ("messages", "connections")}
    for each in streams.values():
        each.processAllAvailable()
    for name, each in streams.items():
        each.processAllAvailable()  # either of them may have dissected
        each.stop()
        expected = read(spark, folder, tmp_path / "batch", name)
        assert rows(spark.read.schema(expected.schema).parquet(str(tmp_path / name))) == rows(expected), name


def stream(spark: SparkSession, folder: Path, table: str, trigger: dict[str, bool], **options: str) -> StreamingQuery:
    from amqpscope.pipelines.spark.source import register  # noqa: PLC0415

    register(spark)
    source = spark.readStream.format("amqpscope").option("table", table).option("cache", str(folder / "followed"))
    sink = source.options(**options).load(str(folder / "captures")).writeStream.format("parquet")
    if trigger:
        sink = sink.trigger(**trigger)
    return sink.option("checkpointLocation", str(folder / "checkpoints" / table)).start(str(folder / table))


def test_a_stream_needs_a_folder(spark: SparkSession, captures: Path) -> None:
    from amqpscope.pipelines.spark.source import register  # noqa: PLC0415

    register(spark)
    source = spark.readStream.format("amqpscope").option("table", "messages").load(str(captures))
    with pytest.raises(Exception, match=r"needs option.*cache"):
        source.writeStream.format("noop").start().processAllAvailable()
