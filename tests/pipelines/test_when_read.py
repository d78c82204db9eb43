"""What statistics have besides where they are read: times and addresses, by a plain loop, and the same everywhere."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import amqpscope
from amqpscope import pipelines, spec
from amqpscope.dissector.cli.program import main
from amqpscope.pipelines.model.walk import schema
from amqpscope.pipelines.model.when_read import ADDRESSES, added, completed

DEMO = Path(__file__).parents[1] / "captures" / "demo.pcap"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ANALYZED = [name for name, table in spec.tables().items() if table.written_by == "analyze"]
Ends = dict[int | None, tuple[Any, ...]]


def checked(rows: list[dict[str, Any]], ends: Ends) -> tuple[int, int]:
    """Compare added columns with what they follow from; return the number of times and of addresses there."""
    times = addresses = 0
    for row in rows:
        for name, value in row.items():
            if name == "ts_ns" or name.endswith("_ts_ns"):
                wanted = None if value is None else EPOCH + timedelta(microseconds=value // 1000)
                assert row[name.removesuffix("_ns")] == wanted
                times += wanted is not None
            elif name.endswith("connection_id"):
                before = name.removesuffix("connection_id")
                assert tuple(row[before + each] for each in ADDRESSES) == ends.get(value, (None,) * 4)
                addresses += value in ends
    return times, addresses


def of_connections(folder: Path) -> Ends:
    rows = amqpscope.read_tables(folder / "tables")["connections"].read_all().to_pylist()
    return {row["connection_id"]: tuple(row[each] for each in ADDRESSES) for row in rows}


def test_every_time_and_every_connection_of_statistics(demo_folder: Path) -> None:
    ends, readers = of_connections(demo_folder), amqpscope.read_tables(demo_folder / "stats")
    seen = {}
    for name in ANALYZED:
        rows = [row for row in readers[name].read_all().to_pylist() if name not in ("failures", "routed")]
        seen[name] = checked(rows, ends)
    for name in ("confirms", "settlements", "rpcs", "transits", "endpoints", "lifecycles", "consumers", "findings"):
        assert min(seen[name]) > 0, name
    assert seen["rules"] == (0, 0)


@pytest.mark.parametrize("name", ANALYZED)
def test_each_table_declares_them(name: str) -> None:
    table = spec.tables()[name]
    stored, besides = ([each.name for each in some] for some in (table.columns, table.when_read))
    wanted = {each.removesuffix("_ns") for each in stored if each == "ts_ns" or each.endswith("_ts_ns")}
    befores = {each.removesuffix("connection_id") for each in stored if each.endswith("connection_id")}
    if "client_ip" not in stored:
        wanted |= {before + each for before in befores for each in ADDRESSES}
    assert {*besides} == wanted
    assert not {*besides} & {*stored}


def test_times_that_cannot_be() -> None:
    given = [0, 1_999, -1, -1_000_000_001, (1 << 62) - 1, 1 << 62, -(1 << 62), -(1 << 63), None]
    rows = schema("rates").empty_table().to_pydict() | {"ts_ns": given}
    columns = {name: rows[name] or [None] * len(given) for name in rows}
    found = completed("rates", pa.table(columns, schema=schema("rates")))["ts"].to_pylist()
    late = EPOCH + timedelta(microseconds=((1 << 62) - 1) // 1000)
    before = [EPOCH + timedelta(microseconds=each) for each in (-1, -1_000_001)]
    assert found == [EPOCH, EPOCH + timedelta(microseconds=1), *before, late, None, None, None, None]


def test_tables_that_are_computed_when_read(demo_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "captures"
    folder.mkdir()
    (folder / "demo.pcap").write_bytes(DEMO.read_bytes())
    followed = tmp_path / "followed"
    assert main(["analyze", "--follow", str(folder), "-o", str(followed), "--until-idle", "0"]) == 0
    assert not (followed / "queues").exists()
    one, other = amqpscope.read_tables(followed), amqpscope.read_tables(demo_folder / "stats")
    for name in ("channels", "settlements"):
        assert one[name].schema == other[name].schema
        found, wanted = (sorted(map(repr, each[name].read_all().to_pylist())) for each in (one, other))
        assert found == wanted


def test_spark_reads_the_same(spark: Any, demo_folder: Path, tmp_path: Path) -> None:
    from amqpscope.pipelines.spark.versions import to_arrow  # noqa: PLC0415 - Spark is optional

    readers = amqpscope.read_tables(demo_folder / "stats")
    wanted = {name: readers[name].read_all() for name in ("transits", "heartbeats", "rates", "channels", "routed")}
    for name, table in wanted.items():
        found = to_arrow(pipelines.read(spark, demo_folder / "stats", name))
        assert found.column_names == table.column_names
        assert sorted(map(repr, found.cast(table.schema).to_pylist())) == sorted(map(repr, table.to_pylist()))
    lacking = tmp_path / "stats"
    lacking.mkdir()
    for each in (demo_folder / "stats").iterdir():
        if each.name != "channels":
            (lacking / each.name).symlink_to(each)
    found = to_arrow(pipelines.read(spark, lacking, "channels")).cast(wanted["channels"].schema)
    assert sorted(map(repr, found.to_pylist())) == sorted(map(repr, wanted["channels"].to_pylist()))


def test_a_folder_without_tables(tmp_path: Path) -> None:
    with pytest.raises(amqpscope.Error, match="no table captures in it"):
        amqpscope.read_tables(tmp_path)
    assert not added("messages").names
