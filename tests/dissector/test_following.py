"""A directory that a capture rotates into, followed: the rows are those of one dissection, each written once."""

import gzip
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from amqpscope.dissector.capture.file import CaptureFile
from amqpscope.dissector.cli.program import main
from amqpscope.dissector.dissector import Options
from amqpscope.dissector.following.dissection import LATEST, IdleDissector
from amqpscope.dissector.following.folder import AGAIN, LATE, SETTLED_S
from amqpscope.dissector.following.journal import Journal
from amqpscope.dissector.tables.output import OutputError
from amqpscope.dissector.tables.rows import schemas
from tests.dissector.builders import pcap
from tests.dissector.follows import follow, is_evicted_once, killed, paused, rotate, written
from tests.dissector.moves import by_connection
from tests.dissector.runs import FOLDER, Row, dissect, recorded
from tests.thorough import examples

RECORDINGS = ("stream_super.pcap", "lossy_link.pcap", "qpid_multi_session.pcap", "violations.pcap", "tls_pika.pcap")
SMALL = sorted(path.name for path in FOLDER.glob("*.pcap") if path.stat().st_size < 1 << 14)
SECOND = 10**9


@settings(deadline=None, max_examples=examples(8), phases=(Phase.generate,), suppress_health_check=list(HealthCheck))
@given(
    name=st.sampled_from(RECORDINGS),
    borders=st.lists(st.lists(st.integers(1, 1 << 16), min_size=1, max_size=3), min_size=1, max_size=2),
    kills=st.lists(st.integers(0, 120), max_size=8),
)
def test_rows_are_those_of_one_dissection_whatever_is_killed(
    name: str, borders: list[list[int]], kills: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Of rotated captures from one or two capture points, each file of which appears after the one before."""
    folder, out = tmp_path_factory.mktemp("captures"), tmp_path_factory.mktemp("tables")
    packets, link = recorded(name)
    files = []
    for number, some in enumerate(borders):
        copies = [replace(packet, ts_ns=packet.ts_ns + 200_000 * number) for packet in packets]
        files += rotate(copies, some, "xy"[number], link)
    for _, file, content in sorted(files):
        (folder / file).write_bytes(content)
        with killed(kills.pop() if kills else None):
            follow(folder, out)
    for after in kills:
        with killed(after):
            follow(folder, out, until_idle=0)
    follow(folder, out, until_idle=0)
    assert comparable(written(out)) == comparable(dissect(folder))


@settings(deadline=None, max_examples=examples(10), phases=(Phase.explicit, Phase.generate))
@given(name=st.sampled_from(SMALL), lost=st.sets(st.integers(1, 100), max_size=20))
@example(name="begun_before.pcap", lost={1, 2})  # the first segment waits for a late SYN until its client says more
def test_rows_come_at_once_unless_bytes_are_held_back(name: str, lost: set[int]) -> None:
    """All but those of contents that a gap cut, which shows later."""
    packets, link = recorded(name)
    dissector = IdleDissector(Options(), compiled=False)
    dissector.captures.append(name)
    held_ns = LATEST
    for packet in (packet for number, packet in enumerate(packets) if number not in lost):
        (batch,) = CaptureFile(BytesIO(pcap([packet], ns=True, link=link)), name, 0, compiled=False)
        for table, rows in dissector.feed(batch):
            if "is_partial" in rows.schema.names:
                times = pa.table(rows).filter(~pc.field("is_partial"))["ts_ns"].to_pylist()
                assert min(times, default=LATEST) >= min(packet.ts_ns, held_ns), table
        held_ns = dissector.held_ns


def comparable(tables: dict[str, pa.Table]) -> dict[str, list[Row]]:
    """The rows of tables, those of a connection in their order."""
    return by_connection(tables | {"captures": tables["captures"].sort_by("capture")})


def files_of(folder: Path, name: str = "stream_super.pcap", parts: int = 3) -> list[Path]:
    """The files of a rotated recording, none of which is growing."""
    packets, link = recorded(name)
    made = []
    for _, file, content in rotate(packets, [len(packets) * n // parts for n in range(1, parts)], "trace", link):
        (folder / file).write_bytes(content)
        made.append(folder / file)
    return made


def errors(out: Path) -> dict[str, str | None]:
    """What the table `captures` says of each file that was not dissected."""
    rows = written(out)["captures"].to_pylist()
    return {row["capture"]: row["error"] for row in rows if row["error"]}


def test_the_newest_file_of_each_rotation_waits(tmp_path: Path) -> None:
    first, second, third = files_of(tmp_path)
    follower = follow(tmp_path, tmp_path / "tables")
    assert sorted(follower.progress.taken) == [first.name, second.name]
    long_ago = time.time() - 2 * SETTLED_S
    os.utime(third, (long_ago, long_ago))
    for path in (first, second):
        os.utime(path, (long_ago - 1, long_ago - 1))
    assert third.name in follow(tmp_path, tmp_path / "tables").progress.taken


def test_what_cannot_be_merged_is_listed(tmp_path: Path) -> None:
    (tmp_path / "captures").mkdir()
    folder, out = tmp_path / "captures", tmp_path / "tables"
    first, second, _ = files_of(folder)
    (folder / "letter.pcap").write_text("Dear broker, how are you? All is well here, the queues are short. " * 9)
    late = first.read_bytes()
    first.unlink()
    follow(folder, out)
    first.write_bytes(late)
    with second.open("ab") as file:
        file.write(late[24:])
    follow(folder, out)
    follow(folder, out, until_idle=0)
    assert errors(out) == {
        first.name: LATE,
        second.name: AGAIN,
        "letter.pcap": "not a pcap or pcapng file (looks like text)",
    }
    with second.open("ab") as file:
        file.write(late[24:])
    follow(folder, out, until_idle=0)
    assert written(out)["captures"].num_rows == 5  # that is not listed again


def test_files_that_are_compressed_later_are_the_same(tmp_path: Path) -> None:
    (tmp_path / "captures").mkdir()
    folder, out = tmp_path / "captures", tmp_path / "tables"
    first, *_ = files_of(folder)
    follow(folder, out)
    expected = comparable(dissect(folder))
    Path(f"{first}.gz").write_bytes(gzip.compress(first.read_bytes()))
    first.unlink()
    follow(folder, out, until_idle=0)
    assert comparable(written(out)) == expected


def test_idle_connections_are_evicted(tmp_path: Path) -> None:
    (tmp_path / "captures").mkdir()
    for file, content in paused():
        (tmp_path / "captures" / file).write_bytes(content)
    follow(tmp_path / "captures", tmp_path / "tables", until_idle=0)
    is_evicted_once(written(tmp_path / "tables"))


def test_what_other_options_began_is_refused(tmp_path: Path) -> None:
    (tmp_path / "captures").mkdir()
    folder, out = tmp_path / "captures", str(tmp_path / "tables")
    files_of(folder)
    how = ["dissect", "--follow", str(folder), "-o", out, "--until-idle", "0"]
    assert main(how) == 0
    assert main([*how, "--bodies", "full"]) == 2
    assert main(["dissect", str(folder), "-o", out]) == 2
    assert main(["dissect", str(folder), "-o", out, "--replace"]) == 0
    assert not (tmp_path / "tables" / "_state").exists()
    expected = comparable(written(Path(out)))
    assert main(how) == 0
    assert comparable(written(Path(out))) == expected


def test_bad_files_are_reported_as_by_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "captures").mkdir()
    *_, last = files_of(tmp_path / "captures")
    last.write_bytes(last.read_bytes()[:-5])
    (tmp_path / "captures" / "text.pcap").write_text("hello")
    printed = []
    for how in ([], ["--follow", "--until-idle", "0"]):
        assert main(["dissect", str(tmp_path / "captures"), "-o", str(tmp_path / "tables"), *how]) == 2
        printed.append({line for line in capsys.readouterr().err.splitlines() if line.startswith("amqpscope: ")})
    assert printed[0] == printed[1]
    assert len(printed[0]) == 2


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--follow", "DIR", "--jobs", "2"], "without --jobs"),
        (["--follow", "DIR", "DIR"], "needs one directory"),
        (["--follow", "nowhere"], "needs one directory"),
        (["--follow", "DIR", "--from", "17:40"], "need a date"),
        (["DIR", "--until-idle", "3"], "goes with --follow"),
    ],
)
def test_options_that_contradict(
    given: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(tmp_path) if word == "DIR" else word for word in given]
    assert main(["dissect", *arguments, "-o", str(tmp_path / "tables")]) == 2
    assert message in capsys.readouterr().err


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with Journal(str(tmp_path), schemas(None)), pytest.raises(OutputError, match="another process"):
        Journal(str(tmp_path), schemas(None)).__enter__()


def test_the_user_ends_it_and_goes_on(tmp_path: Path) -> None:
    (tmp_path / "captures").mkdir()
    folder, out = tmp_path / "captures", tmp_path / "tables"
    files_of(folder)
    code = "from amqpscope.dissector.cli.program import main; import sys; sys.exit(main())"
    how = ["dissect", "--follow", str(folder), "-o", str(out)]
    process = subprocess.Popen([sys.executable, "-c", code, *how], stderr=subprocess.PIPE, text=True)
    assert process.stderr
    assert "2 files" in process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    assert "goes on from here" in process.stderr.read()
    assert process.wait() == 0
    assert main([*how, "--until-idle", "0"]) == 0
    assert comparable(written(out)) == comparable(dissect(folder))
