"""Spark writes the rows that this process writes, whatever becomes of its tasks; and it ends when it is to."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from amqpscope import errors
from amqpscope.dissector.cli.program import main
from amqpscope.dissector.cli.progress import Advance, quiet
from amqpscope.dissector.tables.output import HIDDEN, NOTE
from amqpscope.pipelines.model import events as ev
from amqpscope.pipelines.run import local
from amqpscope.pipelines.run.event_store import layouts
from amqpscope.pipelines.statistics import chains, needs_of
from tests.dissector.recordings import ours
from tests.dissector.runs import CAPTURES
from tests.pipelines.failing import fail
from tests.pipelines.scenario import Connection, written
from tests.pipelines.walks import sessions010

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
COMMAND = [sys.executable, "-m", "amqpscope.dissector.cli.program", "analyze"]
PARTS = 3


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All recordings, dissected, and a session that goes on on another connection, each table in some parts."""
    folder = tmp_path_factory.mktemp("recordings") / "tables"
    parts: dict[str, list[pa.Table]] = {}
    for capture in [*CAPTURES, *sessions010.CAPTURES]:
        for table, rows in ours(capture).items():
            parts.setdefault(table, []).append(rows)
    for table, rows in sessions010.tables_of(sessions010.lost(), sessions010.resumed()).items():
        parts[table].append(rows)
    for table, found in parts.items():
        (folder / table).mkdir(parents=True)
        for number in range(PARTS):
            pq.write_table(pa.concat_tables(found[number::PARTS]), folder / table / f"part-{number}.parquet")
    return folder


@pytest.fixture(scope="module")
def expected(tables: Path) -> dict[str, Counter[str]]:
    local.analyze_folder(tables, tables.parent / "here", {})
    return rows_of(tables.parent / "here")


def rows_of(folder: Path) -> dict[str, Counter[str]]:
    return {name: Counter(map(repr, pq.read_table(folder / name).to_pylist())) for name in local.schemas()}


def analyzed(spark: SparkSession, folder: Path, output: Path, advance: Advance = quiet) -> dict[str, Counter[str]]:
    """With the session that there is."""
    from amqpscope.pipelines.spark import engine  # noqa: PLC0415

    to = engine.Submission(spark.sparkContext.master, output, {"made_of": "nothing"}, advance=advance)
    counts = engine.analyze_folder(folder, to)
    assert {path.name for path in output.iterdir()} == {NOTE, *local.schemas()}
    note = json.loads((output / NOTE).read_text())
    assert note["complete"] and note["made_of"] == "nothing" and note["rows"] == counts
    found = rows_of(output)
    assert {name: rows.total() for name, rows in found.items()} == counts
    return found


@pytest.mark.sampled(2)
@pytest.mark.parametrize("partitions", [5, 1])
def test_rows_are_those_of_this_process(spark, tables, expected, tmp_path, monkeypatch, partitions):
    """And progress is of tasks."""
    monkeypatch.setattr("amqpscope.pipelines.spark.progress.LOOK_EVERY_S", 0.01)
    monkeypatch.setattr("amqpscope.pipelines.spark.engine.partitions", lambda *_: partitions)
    # Batches with borders everywhere.
    monkeypatch.setattr("amqpscope.pipelines.spark.engine.READ_EVERY", 1000)
    monkeypatch.setattr("amqpscope.pipelines.spark.engine.AT_A_TIME", 1)
    if partitions > 1:  # walks over keys run as tasks
        monkeypatch.setattr("amqpscope.pipelines.spark.engine.FEW", 1)
    seen: list[tuple[str, int, int, str]] = []

    def advance(what: str, done: int, total: int, counts: str = "") -> None:
        seen.append((what, done, total, counts))

    found = analyzed(spark, tables, tmp_path / "statistics", advance)
    assert seen[0] == ("starting Spark", 0, 0, "")
    assert len(seen) > 1
    assert all(what == "tasks on Spark" and 0 <= done <= total and total > 0 for what, done, total, _ in seen[1:])
    assert all(re.fullmatch(r"[\d,]+ rows?", counts) for *_, counts in seen[1:])
    assert all(expected[name] for name in ("confirms", "transits", "stream_deliveries", "failures", "flow_control"))
    for name, rows in expected.items():
        assert found[name] == rows, name


def test_each_job_says_how_many_rows_its_tasks_get_at_a_time(spark):
    from amqpscope.pipelines.spark import tasks  # noqa: PLC0415

    def sizes(batches):
        yield from (
            pa.record_batch(
                {"name": ["size"], "file": ["none"], "rows": [len(each)], "counts": pa.nulls(1, pa.binary())}
            )
            for each in batches
        )

    setting = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(setting)
    rows = spark.range(0, 10, 1, 1).mapInArrow(sizes, tasks.WRITTEN)
    for at_a_time, expected in ((4, [4, 4, 2]), (10, [10])):
        assert [part.rows for part in tasks.collected(rows, at_a_time)["size"]] == expected
    assert spark.conf.get(setting) == before


def test_a_dissection_that_was_killed(spark, tmp_path):
    """Connections without a row get one."""
    c = Connection(connection_id=0)  # was open
    c.publish(1)
    folder = written(tmp_path / "tables", [c], complete=False)
    local.analyze_folder(folder, tmp_path / "here", {})
    assert analyzed(spark, folder, tmp_path / "spark") == rows_of(tmp_path / "here")


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["raises", "killed"])
def test_a_repeated_task_leaves_nothing_double(spark, tables, expected, tmp_path, monkeypatch, how):
    from amqpscope.pipelines.spark import engine  # noqa: PLC0415

    fail(monkeypatch, engine, "walk_connections", how, tmp_path / "flag")
    assert analyzed(spark, tables, tmp_path / "statistics") == expected
    assert (tmp_path / "flag").exists()


def test_a_failed_task_is_an_error(spark, tables, tmp_path, monkeypatch):
    from amqpscope.pipelines.spark import engine, tasks  # noqa: PLC0415

    fail(monkeypatch, engine, "walk_connections", "raises", None)
    with pytest.raises(tasks.SparkError, match=r"^Spark: MemoryError: all gone$"):
        analyzed(spark, tables, tmp_path / "statistics")
    assert not json.loads((tmp_path / "statistics" / NOTE).read_text())["complete"]
    assert not (tmp_path / "statistics" / HIDDEN).exists()


def jvms(of: int) -> list[int]:
    """Processes of Java, and of its workers, that a test started."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "environ").read_bytes().split(b"\0")
            is_java = any(name in (path / "cmdline").read_bytes() for name in (b"java", b"pyspark"))
        except OSError:
            continue
        if is_java and f"AMQPSCOPE_TEST={of}".encode() in words:
            found.append(int(path.name))
    return found


@pytest.mark.thorough
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize("seconds", [0.5, 3, None])
def test_ctrl_c_ends_it_all(tables, tmp_path, seconds):
    """While the JVM starts and plans, and while a task walks (None)."""
    mark = hash((tmp_path, seconds))
    command = [*COMMAND, str(tables), "-o", str(tmp_path / "statistics"), "--master", "local[2]"]
    (tmp_path / "temporary").mkdir()
    environment = os.environ | {"AMQPSCOPE_TEST": str(mark), "TMPDIR": str(tmp_path / "temporary")}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    hidden = tmp_path / "statistics" / HIDDEN
    while not (jvms(mark) if seconds else list(hidden.glob("*-*-*"))):  # folders of tasks
        assert process.poll() is None
        time.sleep(0.05)
    time.sleep(seconds or 0)
    process.send_signal(signal.SIGINT)
    _, printed = process.communicate(timeout=60)
    assert process.returncode == 130
    assert printed == "amqpscope: on Spark, local[2]\n"
    assert not jvms(mark)
    assert not list((tmp_path / "temporary").iterdir())
    assert not hidden.exists()


def refused(tmp_path: Path, tables: Path, master: str, *options: str, **environment: str) -> str:
    command = [*COMMAND, str(tables), "-o", str(tmp_path / "statistics"), "--master", master, *options]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    first, printed = done.stderr.splitlines()
    assert first == f"amqpscope: on Spark, {master}"
    return printed


def plan(spark: SparkSession, capture: str, folder: Path) -> str:
    """The plans of statistics, without what Spark counts on from plan to plan, and where that cuts texts off."""
    from amqpscope.pipelines.spark import union  # noqa: PLC0415
    from amqpscope.pipelines.spark.reader import read_table  # noqa: PLC0415

    main(["dissect", str(Path(CAPTURES[0]).with_name(capture)), "-o", str(folder)])
    tables = {at: read_table(spark, folder, name) for at, name in ev.sources().items()}
    rows = union.ordered(tables, layouts(needs_of(chains())))
    return re.sub(r"#\d+|plan_id=\d+|[\w#]*\.\.\.", "", rows._jdf.queryExecution().toString())


def test_plans_do_not_grow_with_what_went_wrong(spark, tmp_path):
    clean, damaged = plan(spark, "pika_confirms.pcap", tmp_path / "a"), plan(spark, "snapped.pcap", tmp_path / "b")
    assert pq.read_table(tmp_path / "b" / "anomalies").num_rows > pq.read_table(tmp_path / "a" / "anomalies").num_rows
    assert len(clean) == len(damaged)


def test_an_unreachable_master(tables, tmp_path):
    assert refused(tmp_path, tables, "spark://127.0.0.1:1") == (
        "amqpscope: no Spark master at 127.0.0.1:1: connection refused"
    )
    assert refused(tmp_path, tables, "spark://nowhere.invalid:7077").startswith(
        "amqpscope: no Spark master at nowhere.invalid:7077: "
    )
    assert refused(tmp_path, tables, "spark://nowhere") == (
        "amqpscope: not a Spark master: spark://nowhere; give spark://HOST:PORT"
    )


def test_a_master_that_is_something_else(tables, tmp_path):
    """It takes connections, and answers none; it has as long as the option says."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        assert refused(tmp_path, tables, f"spark://{address}", "--master-timeout", "3") == (
            f"amqpscope: no Spark master at {address}: it does not answer"
        )


@pytest.mark.thorough
def test_parts_are_as_many_as_are_asked_for(tables, tmp_path):
    """Here, without them, one."""
    capture = str(Path(CAPTURES[0]).with_name("demo.pcap"))
    command = [*COMMAND[:-1], "dissect", capture, "-o", str(tmp_path / "out"), "--master", "local[1]"]
    subprocess.run([*command, "--parts", "3"], capture_output=True, check=True)
    assert len(list((tmp_path / "out" / "connections").glob("part-*"))) == 3


def test_a_wrong_java_home(tables, tmp_path):
    assert refused(tmp_path, tables, "local[2]", JAVA_HOME="/nowhere") == (
        "amqpscope: Spark cannot be started: JAVA_HOME is /nowhere, but there is no bin/java; Spark needs Java 17 or 21"
    )


@pytest.mark.parametrize(("release", "number"), [('JAVA_VERSION="11.0.2"', 11), ('JAVA_VERSION="1.8.0_392"', 8)])
def test_an_old_java(tables, tmp_path, release, number):
    """It is named before it is started."""
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.symlink_to("/bin/false")
    (tmp_path / "java" / "release").write_text(f'IMPLEMENTOR="x"\n{release}\n')
    home = str(tmp_path / "java")
    assert refused(tmp_path, tables, "local[2]", JAVA_HOME=home) == (
        f"amqpscope: Spark cannot be started: JAVA_HOME={home} is Java {number}; Spark needs Java 17 or 21"
    )


def test_a_java_that_does_not_run(tables, tmp_path):
    """Java says why on standard output."""
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\necho Error occurred during initialization of boot layer\nexit 1\n")
    java.chmod(0o755)
    home = str(tmp_path / "java")
    assert refused(tmp_path, tables, "local[2]", JAVA_HOME=home) == (
        "amqpscope: Spark cannot be started: Error occurred during initialization of boot layer"
        f" (JAVA_HOME={home} is Java of an unknown version; Spark needs Java 17 or 21)"
    )


def test_errors_are_ours():
    from amqpscope.pipelines.spark import session, tasks  # noqa: PLC0415

    assert issubclass(tasks.SparkError, errors.Error) and issubclass(session.SessionError, errors.Error)
