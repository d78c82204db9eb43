"""An archive on Spark: the rows are those of one process, whatever becomes of its tasks."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

import amqpscope
from amqpscope.dissector.capture.input import CaptureError
from amqpscope.dissector.capture.sources import find, named
from amqpscope.dissector.cli.program import main
from amqpscope.dissector.dissector import Options
from amqpscope.dissector.places import Place, place, readable, writable
from amqpscope.dissector.reading import Reading
from amqpscope.dissector.tables.output import NOTE
from amqpscope.dissector.tables.rows import schemas
from amqpscope.pipelines.run import local
from tests import store
from tests.dissector.builders import pcap
from tests.dissector.runs import FOLDER, recorded, tables
from tests.pipelines.clusters import cluster
from tests.pipelines.failing import fail

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
NAMES = (
    "orders_pika.pcap", "pika_confirms.pcap", "stream_super.pcap", "tls_secrets.pcapng", "seen_twice.pcapng",
    "violations.pcap", "qpid_plain.pcap",
)  # fmt: skip


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive: recordings, one of them in rotated files, and files that are broken."""
    folder = tmp_path_factory.mktemp("archive")
    for name in NAMES:
        shutil.copy(FOLDER / name, folder)
    packets, link = recorded("interleaved_channels.pcap")
    for begin in range(0, len(packets), 50):
        (folder / f"rotated{begin:05}.pcap").write_bytes(pcap(packets[begin : begin + 50], ns=True, link=link))
    (folder / "text.pcap").write_text("hello")
    (folder / "cut.pcap").write_bytes((FOLDER / "prefetch.pcap").read_bytes()[:-3])
    return folder


def rows_of(folder: Path, names: Iterable[str] = schemas()) -> dict[str, Counter[str]]:
    return {name: Counter(map(repr, pq.read_table(folder / name).to_pylist())) for name in names}


def in_order(folder: Path) -> list[tuple[int, int]]:
    """Frames as they lie in files, without those of other connections between them."""
    rows = pq.read_table(folder / "amqp091_frames", columns=["connection_id", "frame_no"])
    found = list(zip(rows["connection_id"].to_pylist(), rows["frame_no"].to_pylist(), strict=True))
    return sorted(found, key=lambda row: row[0])


@pytest.mark.parametrize("parts", [1, 3])
def test_tables_are_those_of_one_process(
    parts: int, spark: SparkSession, captures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from amqpscope.pipelines.spark import archive  # noqa: PLC0415

    monkeypatch.setattr(archive, "parts", lambda *_: parts)
    monkeypatch.setattr("amqpscope.pipelines.spark.progress.LOOK_EVERY_S", 0.01)
    if parts > 1:  # so that most captures are read in ranges
        monkeypatch.setattr(archive, "LEAST", 3000)
        monkeypatch.setattr(archive, "RANGE", 3000)
    assert main(["dissect", str(captures), "-o", str(tmp_path / "one")]) == 2
    sources, steps = named([captures]), []
    note = {"captures": [str(captures)]}
    to = archive.Submission(
        spark.sparkContext.master, tmp_path / "spark", note, lambda *step, counts="": steps.append((*step, counts))
    )
    made = archive.dissect_captures(sources, lambda begin: Options(), to)
    names = list(dict.fromkeys(name for name, *_ in steps))
    assert names[0] == "starting Spark"
    assert names[-1] in {"reading packets", "dissecting connections"}  # a short last step may pass between two looks
    assert all(0 <= done <= total == sum(source.size for source in sources) for _, done, total, _ in steps[1:])
    shown = [re.fullmatch(r"(\d+) of (\d+) files, ([\d,]+) rows?", counts) for *_, counts in steps[1:]]
    assert all(each and int(each[2]) == len(sources) for each in shown)
    assert shown[-1][1] == str(len(sources) - 1), "text.pcap is not read"
    rows = [int(each[3].replace(",", "")) for each in shown]  # how many are seen before the end depends on the machine
    assert rows == sorted(rows)
    found, expected = rows_of(tmp_path / "spark"), rows_of(tmp_path / "one")
    for name, rows in expected.items():
        assert found[name] == rows, name
    assert in_order(tmp_path / "spark") == in_order(tmp_path / "one")
    assert {path.name for path in (tmp_path / "spark").iterdir()} == {NOTE, *schemas()}
    note = json.loads((tmp_path / "spark" / NOTE).read_text())
    assert note["complete"] and note["rows"] == made.rows == {name: rows.total() for name, rows in found.items()}
    assert [source.name for source in made.reading.sources if source.error] == ["text.pcap"]


def test_statistics_are_those_of_one_process(
    spark: SparkSession,
    captures: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from amqpscope.pipelines.spark import archive  # noqa: PLC0415

    monkeypatch.setattr(archive, "parts", lambda *_: 3)
    given = ["analyze", str(captures), "-o", str(tmp_path / "one"), "--keylog", str(FOLDER / "tls_sessions_13.keylog")]
    assert main(given) == 2
    given[3] = str(tmp_path / "spark")
    assert main([*given, "--master", spark.sparkContext.master]) == 2
    assert "text.pcap: not a pcap or pcapng file (looks like text); skipped" in capsys.readouterr().err
    found, expected = rows_of(tmp_path / "spark", local.schemas()), rows_of(tmp_path / "one", local.schemas())
    assert all(expected[name] for name in ("confirms", "settlements", "rpcs", "failures", "heartbeats", "transits"))
    for name, rows in expected.items():
        assert found[name] == rows, name
    assert {path.name for path in (tmp_path / "spark").iterdir()} == {NOTE, *local.schemas()}


@pytest.mark.thorough
def test_archives_on_a_store(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Captures, tables and statistics, in both directions."""
    from amqpscope.pipelines.spark import archive, engine  # noqa: PLC0415

    monkeypatch.setattr(archive, "LEAST", 1000)
    monkeypatch.setattr(archive, "parts", lambda *_: 1)
    monkeypatch.setattr(engine, "FEW", 30)  # so that Spark reads what tasks wrote
    master = spark.sparkContext.master
    capture = FOLDER / "orders_pika.pcap"
    assert main(["analyze", str(capture), "-o", str(tmp_path / "stats")]) == 0
    with store.running() as bucket:
        # tasks do not have the environment of this process
        options = f"?scheme=http&endpoint_override={os.environ['AWS_ENDPOINT_URL'].removeprefix('http://')}"
        root = place(bucket.replace("//", "//key:secret@") + options)
        with writable(root / "orders_pika.pcap") as file:
            file.write(capture.read_bytes())
        sources = named([root / "orders_pika.pcap"])
        archive.analyze_captures(sources, lambda begin: Options(), archive.Submission(master, root / "stats"))
        archive.dissect_captures(sources, lambda begin: Options(), archive.Submission(master, root / "tables"))
        engine.analyze_folder(root / "tables", engine.Submission(master, root / "again"))
        expected = rows_of(tmp_path / "stats", local.schemas())
        for folder in (root / "stats", root / "again"):
            assert {path.name for path in folder.iterdir()} == {NOTE, *local.schemas()}
            assert {name: Counter(map(repr, rows)) for name, rows in on_store(folder)} == expected


def on_store(folder: Place) -> Iterable[tuple[str, list[Any]]]:
    for name in local.schemas():
        parts = [path for path in (folder / name).iterdir() if path.suffix == ".parquet"]
        yield name, [row for path in parts for row in pq.read_table(readable(path)).to_pylist()]


KILLED = """
import os, signal, sys, time
from pathlib import Path
from amqpscope.dissector.capture.sources import named
from amqpscope.dissector.dissector import Options
from amqpscope.pipelines.spark import archive

captures, output, master = sys.argv[1:]
dissect_part = archive.dissect_part

def parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

def killed_once(job, batches):
    found = list(dissect_part(job, batches))  # all is written
    try:
        (Path(job.folder).parents[1] / "flag").touch(exist_ok=False)
    except FileExistsError:
        return iter(found)
    os.kill(parent(os.getppid()), signal.SIGKILL)  # the JVM above the daemon that forked this worker
    time.sleep(60)

archive.dissect_part = killed_once
to = archive.Submission(master, Path(output), settings={"spark_executor_memory": "512m"})
archive.dissect_captures(named([captures]), lambda begin: Options(), to)
"""


@contextmanager
def submitted(spark: SparkSession, folder: Path) -> Iterator[tuple[list[str], str]]:
    """How a program starts on a cluster to whose executors the package goes as an archive; and the master."""
    found = find_spec("pyspark")
    assert found is not None and found.origin is not None
    home = Path(found.origin).parent
    packages = folder / "packages.tar.gz"
    with tarfile.open(packages, "w:gz", dereference=True) as archive:
        archive.add(Path(amqpscope.__file__).parent, "amqpscope")
    (folder / "program.py").write_text(KILLED)
    with cluster(spark, folder) as master:
        command = [str(home / "bin" / "spark-submit"), "--master", master, "--archives", f"{packages}#packages"]
        given = (
            "executorEnv.PYTHONPATH=packages",
            "executor.cores=1",
            "driver.host=127.0.0.1",
            "driver.bindAddress=127.0.0.1",
            f"executor.extraJavaOptions={os.environ.get('SPARK_SUBMIT_OPTS', '')}",  # the driver has them anyway
        )
        settings = [word for each in given for word in ("--conf", f"spark.{each}")]
        yield [*command, *settings, str(folder / "program.py")], master


@pytest.mark.thorough
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for the executor in /proc")
def test_a_lost_executor_changes_nothing(spark: SparkSession, captures: Path, tmp_path: Path) -> None:
    """The blocks that it kept are lost with it, and cut again."""
    with submitted(spark, tmp_path) as (command, master):
        variables = os.environ | {"PYSPARK_PYTHON": sys.executable}
        given = [str(captures), str(tmp_path / "out"), master]
        subprocess.run([*command, *given], check=True, capture_output=True, env=variables)
    are_those_of_one_process(captures, tmp_path)


def test_a_lost_task_changes_nothing(
    spark: SparkSession, captures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from amqpscope.pipelines.spark import archive  # noqa: PLC0415

    fail(monkeypatch, archive, "dissect_part", "killed", tmp_path / "flag")
    to = archive.Submission(spark.sparkContext.master, tmp_path / "out")
    archive.dissect_captures(named([captures]), lambda begin: Options(), to)
    are_those_of_one_process(captures, tmp_path)


def are_those_of_one_process(captures: Path, folder: Path) -> None:
    """Whether the tables in a folder are, of which a task was lost."""
    assert (folder / "flag").exists()
    main(["dissect", str(captures), "-o", str(folder / "one")])
    assert rows_of(folder / "out") == rows_of(folder / "one")
    assert {path.name for path in (folder / "out").iterdir()} == {NOTE, *schemas()}


def test_a_file_that_vanishes_after_the_light_pass_is_reported_as_by_one_process(
    spark: SparkSession, tmp_path: Path
) -> None:
    from amqpscope.pipelines.spark import archive  # noqa: PLC0415

    folder = tmp_path / "captures"
    folder.mkdir()
    for name in ("pika_confirms.pcap", "gets.pcap"):
        shutil.copy(FOLDER / name, folder)
    sources = named([folder])
    reading = Reading(find([str(folder)]), compiled=False)

    def options(begin: int) -> Options:
        (folder / "gets.pcap").unlink(missing_ok=True)
        return Options()

    archive.dissect_captures(sources, options, archive.Submission(spark.sparkContext.master, tmp_path / "out"))
    expected = {name: Counter(map(repr, rows.to_pylist())) for name, rows in tables(reading).items()}
    assert [source.name for source in reading.skipped] == ["gets.pcap"]
    assert rows_of(tmp_path / "out") == expected


def test_nothing_is_written_when_no_file_can_be_read(spark: SparkSession, tmp_path: Path) -> None:
    from amqpscope.pipelines.spark import archive  # noqa: PLC0415

    (tmp_path / "text.pcap").write_text("hello")
    with pytest.raises(CaptureError, match="looks like text"):
        to = archive.Submission(spark.sparkContext.master, tmp_path / "out")
        archive.dissect_captures(named([tmp_path]), lambda begin: Options(), to)
    assert not (tmp_path / "out").exists()


def test_the_command(spark: SparkSession, captures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    master, keylog = spark.sparkContext.master, str(FOLDER / "tls_sessions_13.keylog")
    given = ["dissect", str(captures), "-o", str(tmp_path / "out"), "--master", master, "--keylog", keylog]
    assert main([*given, "--jobs", "2"]) == 2
    assert "give one of them" in capsys.readouterr().err
    printed = []
    for further in (["--master", master], []):
        assert main([*given[:2], "-o", str(tmp_path / "out"), *given[6:], *further]) == 2
        printed.append(capsys.readouterr().err)
    assert printed[0] == printed[1]
    assert "text.pcap: not a pcap or pcapng file (looks like text); skipped, the other files are read" in printed[0]
    assert f"{tmp_path / 'out'}: 29 connections" in printed[0]
    assert "cut.pcap: truncated inside packet" in printed[0]
