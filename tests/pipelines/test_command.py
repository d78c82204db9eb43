from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pyarrow as pa
import pytest
from pyspark.sql import functions as sf

from amqpscope import dissector, pipelines
from amqpscope.dissector.cli.program import main
from amqpscope.pipelines.analysis import analyze
from amqpscope.pipelines.output import NOTE, Output, OutputError
from amqpscope.pipelines.reader import ReadError, dissected
from amqpscope.pipelines.schemas import schema
from tests.pipelines.scenario import TICK, Connection, table, tables

CAPTURE = Path(__file__).parents[1] / "captures" / "pika_confirms.pcap"


def test_the_package_does_not_import_spark():
    code = "import sys; from amqpscope.pipelines import command; sys.exit('pyspark' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_folder_without_tables(tmp_path):
    with pytest.raises(ReadError, match="no such folder"):
        dissected(tmp_path / "nowhere")
    with pytest.raises(ReadError, match="no table captures here"):
        dissected(tmp_path)


@pytest.mark.spark
@pytest.mark.parametrize(
    ("master", "why"),
    [("local[x]", "Could not parse Master URL: 'local[x]'"), ("nonsense", "Master must either be yarn or start with")],
)
def test_a_master_that_is_none(master: str, why: str) -> None:
    """In a process of its own: Spark runs in this one."""
    begin = "from amqpscope.pipelines.session import SessionError, session\n"
    code = f"{begin}try: session({master!r})\nexcept SessionError as error: print(error)"
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert said.stdout.startswith(f"Spark cannot be started: {why}")
    assert said.stdout.count("\n") == 1 and not said.stderr


def test_output_refuses_what_is_not_ours(tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(OutputError, match=r"holds files that are not of an earlier run \(thesis.tex\)"):
        Output(tmp_path, {})
    (tmp_path / NOTE).write_text("{}")
    with pytest.raises(OutputError, match=r"holds other files \(thesis.tex\)"):
        Output(tmp_path, {})
    assert (tmp_path / "thesis.tex").exists()


def test_output_is_complete_or_says_that_it_is_not(spark, tmp_path):
    output = Output(tmp_path / "new" / "folder", {"tables": "t"})
    (output.folder / ".rpcs.writing").mkdir()  # of a run that was killed
    output = Output(output.folder, {"tables": "t"})
    assert json.loads((output.folder / NOTE).read_text()) == {"complete": False, "tables": "t"}
    output.write("confirms", table(spark, "confirms", []))
    assert sorted(path.name for path in output.folder.iterdir()) == [NOTE, "confirms"]
    read = pipelines.read(spark, output.folder, "confirms")
    assert read.count() == 0
    assert read.schema.simpleString() == schema("confirms").simpleString()
    output.finish()
    assert json.loads((output.folder / NOTE).read_text())["complete"] is True
    with pytest.raises(OutputError, match="cannot write"):
        output.write("confirms", spark.range(3).selectExpr("raise_error('no')"))


def test_an_error_is_one_line(spark, tmp_path, capfd):
    output = Output(tmp_path, {})
    with pytest.raises(OutputError) as told:
        output.write("confirms", spark.range(3).select(sf.lit(1) / sf.col("id")))
    assert "\n" not in str(told.value)
    assert capfd.readouterr().err == ""


def written(spark, folder, connections, **note):
    """A folder as `dissect` leaves it."""
    frames, messages, rows = tables(spark, connections)
    empty = {
        name: table(spark, name, [])
        for name in ("anomalies", "captures", "stream_frames", "amqp010_frames", "tcp_windows")
    }
    for name, each in {"amqp091_frames": frames, "messages": messages, "connections": rows, **empty}.items():
        each.write.parquet(str(folder / name))
    (folder / NOTE).write_text(json.dumps(note))
    return folder


def confirms_of(spark, folder, tmp_path):
    output = Output(tmp_path / "statistics", {})
    analyze(spark, folder, output)
    rows = pipelines.read(spark, output.folder, "confirms").collect()
    return {row["publish_seq"]: (row["ended_by"], row["end_ts_ns"]) for row in rows}


def test_what_lies_behind_the_time_range_ends_nothing(spark, tmp_path):
    c = Connection(last_ts_ns=99 * TICK, closed_by="client-close")
    c.publish(1)
    reset = Connection(last_ts_ns=99 * TICK, closed_by="server-rst", closed_ts_ns=6 * TICK)
    reset.publish(2)
    later = Connection(last_ts_ns=99 * TICK, closed_by="server-rst", closed_ts_ns=7 * TICK)
    later.publish(3)
    folder = written(spark, tmp_path / "tables", [c, reset, later], complete=True, to_ns=7 * TICK)
    assert confirms_of(spark, folder, tmp_path) == {
        1: ("capture-end", 7 * TICK),
        2: ("connection-close", 6 * TICK),
        3: ("capture-end", 7 * TICK),
    }


def test_tables_of_a_dissection_that_was_killed(spark, tmp_path):
    c = Connection(connection_id=0)  # was open, so has no row
    c.publish(1)
    last = c.publish(2)
    folder = written(spark, tmp_path / "tables", [c], complete=False)
    assert confirms_of(spark, folder, tmp_path) == {
        1: ("capture-end", last * TICK),
        2: ("capture-end", last * TICK),
    }


def test_says_that_dissection_was_killed(spark, tmp_path, capsys, monkeypatch):
    folder = written(spark, tmp_path / "tables", [Connection()], complete=False)
    monkeypatch.setattr("amqpscope.pipelines.analysis.jobs", dict)
    monkeypatch.setattr(
        "amqpscope.pipelines.session.session", lambda *_, **__: Mock(conf=Mock(get=Mock(return_value="false")))
    )
    assert main(["analyze", str(folder), "-o", str(tmp_path / "statistics")]) == 0
    assert "tables: dissect did not finish; this is what it wrote until then" in capsys.readouterr().err
    assert json.loads((tmp_path / "statistics" / NOTE).read_text())["tables_complete"] is False


def test_reads_arrow_parts_and_captures(spark, tmp_path):
    readers = dissector.read(CAPTURE)
    batches = readers["messages"].read_all()
    (tmp_path / "messages").mkdir()
    with pa.ipc.new_file(str(tmp_path / "messages" / "part-0.arrow"), batches.schema) as file:
        file.write_table(batches)
    with pa.ipc.new_stream(str(tmp_path / "messages" / "part-1.arrow"), batches.schema) as stream:
        stream.write_table(batches)
    from_parts = pipelines.read(spark, tmp_path, "messages")
    from_capture = pipelines.read(spark, [CAPTURE], "messages")
    assert from_parts.schema == from_capture.schema == schema("messages")
    assert from_parts.count() == 2 * from_capture.count() == 20
    columns = ["frame_no", "publish_seq", "body_hash", "ts_ns"]
    rows = [tuple(row.values()) for row in batches.select(columns).to_pylist()]
    assert [tuple(row) for row in from_capture.select(columns).orderBy("frame_no").collect()] == rows


def test_nothing_to_read(spark, tmp_path):
    with pytest.raises(ReadError, match="no such table"):
        pipelines.read(spark, tmp_path, "frames")
    with pytest.raises(ReadError, match="no such file"):
        pipelines.read(spark, tmp_path / "no.pcap", "messages")
    with pytest.raises(ReadError, match="no table confirms here"):
        pipelines.read(spark, CAPTURE, "confirms")


def test_scenario_tables_have_the_declared_columns(spark):
    assert table(spark, "connections", [Connection().row()]).count() == 1


def rows_of(spark, folder, tmp_path, table):
    output = Output(tmp_path / "statistics", {})
    analyze(spark, folder, output)
    return pipelines.read(spark, output.folder, table).collect()


def test_what_lies_before_the_time_range_is_no_silence(spark, tmp_path):
    begun = Connection(heartbeat=1, first_ts_ns=-(10**12), handshake_outcome="refused", severity="error")
    begun.client("basic.get")
    folder = written(spark, tmp_path / "tables", [begun], complete=True, from_ns=0)
    assert [row["missed"] for row in rows_of(spark, folder, tmp_path, "heartbeats")] == [0, 0]
    assert pipelines.read(spark, tmp_path / "statistics", "failures").first()["first_ts_ns"] == -(10**12)


def test_heartbeats_of_a_dissection_that_was_killed(spark, tmp_path):
    c = Connection(connection_id=0)  # was open, so has no row
    c.publish(1)
    folder = written(spark, tmp_path / "tables", [c], complete=False)
    rows = rows_of(spark, folder, tmp_path, "heartbeats")
    assert {(row["connection_id"], row["negotiated_s"]) for row in rows} == {(c.id, None), (0, None)}
