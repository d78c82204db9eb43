"""Statistics in a notebook: each job by itself gives what `analyze` gives, and `analyze` the same from anywhere."""

import inspect
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import amqpscope
from amqpscope import pipelines, spec
from amqpscope.dissector.cli.program import main
from amqpscope.pipelines import jobs
from amqpscope.pipelines.model.when_read import completed
from amqpscope.pipelines.relations.compute import NAMES as RELATIONS
from amqpscope.pipelines.relations.texts import SOURCES
from tests.dissector.recordings import ours
from tests.pipelines.analyzed import statistics
from tests.pipelines.walks import sessions010

CAPTURES = Path(__file__).parents[1] / "captures"
LATENCIES = ("latency_summary", "latency_buckets")
NAMES = {"frames": "amqp091_frames"}
"""Tables whose arguments are not called as they are."""


def rows(table: pa.Table) -> list[str]:
    return sorted(map(repr, table.to_pylist()))


def made(name: str, tables: dict[str, Any]) -> Any:
    """What a job returns for all tables that it takes."""
    job = getattr(pipelines, name)
    return job(**{each: tables[NAMES.get(each, each)] for each in taken(job)})


def taken(job: Any) -> Iterable[str]:
    return (each for each in inspect.signature(job).parameters if each != "window_ns")


RECORDED = (
    "orders_aio_pika", "failed_handshakes", "lossy_link", "stream_chunks", "blocked", "qpid_messaging",
    "qpid_exceptions",
)  # fmt: skip
"""Of which every table of statistics has rows."""


@pytest.mark.sampled(9)
@pytest.mark.parametrize("capture", RECORDED)
def test_jobs_give_what_analyze_gives(capture: str) -> None:
    path = CAPTURES / f"{capture}.pcap"
    tables = ours(path)
    written = statistics(capture)
    whole = {name: completed(name, table, written["endpoints"]) for name, table in written.items()}
    assert set(whole) == {*jobs.__all__, *RELATIONS, "captures"} - {"relation"}
    for name in RELATIONS[RECORDED.index(capture) % 3 :: 3]:  # each of two or three recordings
        assert rows(jobs.relation(name, **{each: whole[each] for each in SOURCES})) == rows(whole[name]), name
    for name in set(jobs.__all__) - {"relation"}:
        found = made(name, whole if name in LATENCIES else tables)
        assert found.schema == whole[name].schema
        assert rows(found) == rows(whole[name]), name


def test_swapped_tables_are_refused() -> None:
    tables = ours(CAPTURES / "orders_aio_pika.pcap")
    frames, messages, connections = (tables[name] for name in ("amqp091_frames", "messages", "connections"))
    with pytest.raises(amqpscope.Error, match=r"confirms expects the table `amqp091_frames` here, .* of `messages`"):
        pipelines.confirms(messages, frames, connections)
    with pytest.raises(ValueError, match="`messages` here, and got one with the columns of `connections`"):
        pipelines.transits(connections)
    few = messages.select(["connection_id", "ts_ns"])
    assert pipelines.transits(few).num_rows == 0, "columns that several tables have"


def test_what_a_job_takes_is_in_its_help_and_in_its_errors() -> None:
    needs = "confirms needs frames, messages, connections, and takes anomalies, stream_frames, captures, amqp010_frames"
    needs += ", tcp_acks"
    with pytest.raises(ValueError, match=f"^{needs}$"):
        pipelines.confirms()  # type: ignore[call-arg]
    messages = ours(CAPTURES / "orders_aio_pika.pcap")["messages"]
    with pytest.raises(TypeError, match=f"^{needs}: missing a required argument: 'frames'$"):
        pipelines.confirms(messages=messages)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"^deaths needs messages, and takes connections: .* 'rows'$"):
        pipelines.deaths(messages, rows=messages)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="latency_summary needs one of confirms, settlements, "):
        pipelines.latency_summary()
    lines = inspect.getdoc(pipelines.transits).splitlines()  # type: ignore[union-attr]
    assert lines[0].startswith("Return the table `transits`: ")
    assert lines[1:5] == [
        "", "Args:", "    messages: rows of the table `messages`.",
        "    window_ns: how far before a delivery to look for its publish (ns).",
    ]  # fmt: skip
    assert "    frames: rows of the table `amqp091_frames`; None for none." in lines
    undocumented = {
        name
        for name in {*jobs.__all__} - {"relation"}
        for each in taken(getattr(pipelines, name))
        if f"    {each}: " not in (inspect.getdoc(getattr(pipelines, name)) or "")
    }
    assert undocumented == set()


def test_jobs_on_spark_give_the_same_rows(spark: Any) -> None:
    captures = [CAPTURES / "blocked.pcap", CAPTURES / "stream_js.pcap"]
    tables = {name: reader.read_all() for name, reader in amqpscope.read(captures).items()}
    for name, found in sessions010.tables_of(sessions010.lost(), sessions010.resumed()).items():
        tables[name] = pa.concat_tables([tables[name], found])
    given = {name: spark.createDataFrame(table) for name, table in tables.items()}
    assert made("confirms", tables)["request_acked_ts_ns"].null_count < made("confirms", tables).num_rows
    for name in ("confirms", "settlements", "rpcs", "flow_control", "transits", "stream_deliveries", "failures"):
        here = made(name, tables)
        assert rows(made(name, given).toArrow().cast(here.schema)) == rows(here), name
    here = pipelines.confirms(*(tables[name] for name in ("amqp091_frames", "messages", "connections")))
    found = pipelines.latency_summary(confirms=spark.createDataFrame(here)).toArrow()
    assert rows(found) == rows(pipelines.latency_summary(confirms=here))


def test_tables_that_are_left_out_have_no_rows() -> None:
    tables = {name: reader.read_all() for name, reader in amqpscope.read(CAPTURES / "pika_confirms.pcap").items()}
    given = [tables[name] for name in ("amqp091_frames", "messages", "connections")]
    found = pipelines.confirms(*given)
    tables["tcp_acks"] = tables["tcp_acks"].slice(0, 0)
    assert len(found) and rows(found) == rows(made("confirms", tables))
    with pytest.raises(ValueError, match="latency_summary needs one of confirms, settlements, rpcs, transits"):
        pipelines.latency_summary()
    with pytest.raises(TypeError, match="not both"):
        pipelines.confirms(given[0], given[1], "a DataFrame")


def test_analyze_writes_what_it_returns(tmp_path: Path) -> None:
    path = CAPTURES / "pika_confirms.pcap"
    whole = amqpscope.analyze(path)
    assert main(["dissect", str(path), "-o", str(tmp_path / "tables")]) == 0
    assert amqpscope.analyze(path, tmp_path / "stats") == tmp_path / "stats"
    of_tables = amqpscope.analyze(tmp_path / "tables")
    of_folder = amqpscope.read_tables(tmp_path / "stats")
    for name, table in whole.items():
        written = ds.dataset(str(tmp_path / "stats" / name)).to_table()
        assert written.column_names == [each.name for each in spec.tables()[name].columns]
        assert rows(written) == rows(table.select(written.column_names))
        assert rows(table) == rows(of_tables[name]) == rows(of_folder[name].read_all())
    assert main(["analyze", str(tmp_path / "tables"), "--to", "1", "-o", str(tmp_path / "none")]) == 2
    assert not (tmp_path / "none").exists()
    with pytest.raises(ValueError, match="are for captures"):
        amqpscope.analyze(tmp_path / "tables", to=1)
    with pytest.raises(FileNotFoundError):
        amqpscope.analyze(tmp_path / "none.pcap")


def test_the_package_is_light_and_complete() -> None:
    code = (
        "import sys, amqpscope.pipelines as p; dir(p);"
        "light = not {'pyarrow', 'numpy', 'pyspark'} & set(sys.modules);"
        "print(light, p.confirms.__name__, 'pyspark' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["True", "confirms", "False"]
    assert (
        set(pipelines.__all__)
        == {"read", *jobs.__all__}
        == set(dir(pipelines)) - {name for name in dir(pipelines) if name.startswith("__")}
    )
    folders = {path.stem for path in Path(pipelines.__file__).parent.iterdir()}
    assert not folders & {*pipelines.__all__}, "an imported module would hide the function"
    with pytest.raises(AttributeError, match="no attribute 'confirm'"):
        _ = pipelines.confirm  # type: ignore[attr-defined]
