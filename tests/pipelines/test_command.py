"""The command `amqpscope analyze`, over tables and captures, in this process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from amqpscope import dissector, pipelines
from amqpscope.dissector.cli.program import main
from amqpscope.dissector.tables.output import NOTE, OutputError
from amqpscope.pipelines.folder import ReadError, dissected
from amqpscope.pipelines.model.walk import schema
from amqpscope.pipelines.run import local
from tests.pipelines.scenario import TICK, Connection, written

CAPTURE = Path(__file__).parents[1] / "captures" / "pika_confirms.pcap"


def test_spark_is_not_imported(tmp_path):
    code = (
        "import sys; from amqpscope.dissector.cli.program import main; "
        f"main(['analyze', {str(CAPTURE)!r}, '-o', sys.argv[1]]); sys.exit('pyspark' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "statistics")], check=True, capture_output=True)


def test_folder_without_tables(tmp_path):
    with pytest.raises(ReadError, match="no such folder"):
        dissected(tmp_path / "nowhere")
    with pytest.raises(ReadError, match="no table captures in it"):
        dissected(tmp_path)


@pytest.mark.spark
@pytest.mark.parametrize(
    ("master", "why"),
    [("local[x]", "Could not parse Master URL: 'local[x]'"), ("nonsense", "Master must either be yarn or start with")],
)
def test_a_master_that_is_none(master: str, why: str) -> None:
    """In a process of its own: Spark runs in this one."""
    begin = "from amqpscope.pipelines.spark.session import SessionError, session\n"
    code = f"{begin}try: session({master!r})\nexcept SessionError as error: print(error)"
    printed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert printed.stdout.startswith(f"Spark cannot be started: {why}")
    assert printed.stdout.count("\n") == 1 and not printed.stderr


def test_output_refuses_what_is_not_ours(tmp_path):
    tables = written(tmp_path / "tables", [Connection()])
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("")
    with pytest.raises(OutputError, match="thesis"):
        local.analyze_folder(tables, tmp_path / "mine", {})
    assert (tmp_path / "mine" / "thesis.tex").exists()


def rows_of(folder: Path, tmp_path: Path, table: str) -> list[dict[str, Any]]:
    local.analyze_folder(folder, tmp_path / "statistics", {})
    return pq.read_table(tmp_path / "statistics" / table).to_pylist()


def ends(rows: list[dict[str, Any]]) -> dict[int, tuple[Any, ...]]:
    return {row["publish_seq"]: (row["ended_by"], row["end_ts_ns"]) for row in rows}


def test_what_lies_after_the_time_range_ends_nothing(tmp_path):
    c = Connection(last_ts_ns=99 * TICK, closed_by="client-close")
    c.publish(1)
    reset = Connection(last_ts_ns=99 * TICK, closed_by="server-rst", closed_ts_ns=6 * TICK)
    reset.publish(2)
    later = Connection(last_ts_ns=99 * TICK, closed_by="server-rst", closed_ts_ns=7 * TICK)
    later.publish(3)
    folder = written(tmp_path / "tables", [c, reset, later], to_ns=7 * TICK)
    assert ends(rows_of(folder, tmp_path, "confirms")) == {
        1: ("capture-end", 7 * TICK),
        2: ("connection-close", 6 * TICK),
        3: ("capture-end", 7 * TICK),
    }


def test_tables_of_a_dissection_that_was_killed(tmp_path):
    c = Connection(connection_id=0)  # was open, so has no row
    c.publish(1)
    last = c.publish(2)
    folder = written(tmp_path / "tables", [c], complete=False)
    expected = {1: ("capture-end", last * TICK), 2: ("capture-end", last * TICK)}
    assert ends(rows_of(folder, tmp_path, "confirms")) == expected


def test_reports_that_dissection_was_killed(tmp_path, capsys):
    folder = written(tmp_path / "tables", [Connection()], complete=False)
    assert main(["analyze", str(folder), "-o", str(tmp_path / "statistics")]) == 0
    printed = capsys.readouterr().err
    assert "tables: incomplete: dissect was interrupted; this is what it wrote" in printed
    assert json.loads((tmp_path / "statistics" / NOTE).read_text())["tables_complete"] is False


def test_a_column_of_another_type_is_named(tmp_path):
    folder = written(tmp_path / "tables", [Connection()])
    columns = {each.name: pa.nulls(1, each.type) for each in schema("anomalies")}
    pq.write_table(pa.table(columns | {"connection_id": pa.array(["x"])}), folder / "anomalies" / "part-0.parquet")
    with pytest.raises(ReadError, match="column connection_id has type string, not int64"):
        local.analyze_folder(folder, tmp_path / "statistics", {})


def test_captures_give_the_rows_of_their_tables(tmp_path):
    tables, once, again = (tmp_path / name for name in ("tables", "once", "again"))
    assert main(["dissect", str(CAPTURE), "-o", str(tables)]) == 0
    assert main(["analyze", str(tables), "-o", str(once)]) == 0
    assert main(["analyze", str(CAPTURE), "-o", str(again)]) == 0
    for table in local.schemas():
        first, second = (pq.read_table(folder / table) for folder in (once, again))
        assert first.schema.equals(schema(table))
        assert first.equals(second), table
    assert len(pq.read_table(once / "confirms")) == 10


def test_spark_reads_arrow_parts_and_captures(spark, tmp_path):
    batches = dissector.read(CAPTURE)["messages"].read_all()
    (tmp_path / "messages").mkdir()
    with pa.ipc.new_file(str(tmp_path / "messages" / "part-0.arrow"), batches.schema) as file:
        file.write_table(batches)
    with pa.ipc.new_stream(str(tmp_path / "messages" / "part-1.arrow"), batches.schema) as stream:
        stream.write_table(batches)
    from_parts = pipelines.read(spark, tmp_path, "messages")
    from_capture = pipelines.read(spark, [CAPTURE], "messages")
    assert from_parts.schema == from_capture.schema
    assert from_parts.count() == 2 * from_capture.count() == 20
    columns = ["frame_no", "publish_seq", "body_hash", "ts_ns"]
    rows = [tuple(row.values()) for row in batches.select(columns).to_pylist()]
    assert [tuple(row) for row in from_capture.select(columns).orderBy("frame_no").collect()] == rows


def test_nothing_to_read(spark, tmp_path):
    with pytest.raises(ReadError, match="no such table"):
        pipelines.read(spark, tmp_path, "frames")
    with pytest.raises(ReadError, match="no such file"):
        pipelines.read(spark, tmp_path / "no.pcap", "messages")
    with pytest.raises(ReadError, match="no table confirms in it"):
        pipelines.read(spark, CAPTURE, "confirms")


def test_what_lies_before_the_time_range_is_no_silence(tmp_path):
    begun = Connection(heartbeat=1, first_ts_ns=-(10**12), handshake_outcome="refused", severity="error")
    begun.client("basic.get")
    folder = written(tmp_path / "tables", [begun], from_ns=0)
    assert [row["missed"] for row in rows_of(folder, tmp_path, "heartbeats")] == [0, 0]
    assert pq.read_table(tmp_path / "statistics" / "failures")["first_ts_ns"].to_pylist() == [-(10**12)]


def test_heartbeats_of_a_dissection_that_was_killed(tmp_path):
    c = Connection(connection_id=0)  # was open, so has no row
    c.publish(1)
    folder = written(tmp_path / "tables", [c], complete=False)
    rows = rows_of(folder, tmp_path, "heartbeats")
    assert [row["connection_id"] for row in rows if row["connection_id"] != c.id] == [0, 0]


def test_parts_are_for_spark(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("dissect", "analyze"):
        assert main([command, str(tmp_path), "-o", str(tmp_path / "out"), "--parts", "3"]) == 2
        assert capsys.readouterr().err == "amqpscope: --parts goes with --master\n"
