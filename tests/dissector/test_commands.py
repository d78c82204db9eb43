"""The commands `dissect` and `frames`: what they read and write, and how they say what is wrong."""

import csv
import gzip
import io
import json
import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from amqpscope.dissector import CaptureError, read
from amqpscope.dissector.cli.program import main
from amqpscope.dissector.cli.warnings import MOST
from amqpscope.dissector.tables.rows import schema, schemas
from tests.dissector.builders import Packet, ethernet, ipv4, pcap, tcp
from tests.dissector.runs import CAPTURES, FOLDER, SETS, dissect, rows
from tests.dissector.wire import CLIENT, Tape, handshake, opening, publish, raw

ROOT = Path(__file__).parents[2]
SESSION = FOLDER / "any_sll2.pcap"
ROTATED = FOLDER / "rotated"
SECRETS = sorted(
    {
        secret
        for path in FOLDER.glob("*.golden.json")
        for secret in json.loads(path.read_text(encoding="utf-8")).get("secrets", [])
    }
)

NAMES = tuple(schemas())


def table(folder: Path, name: str) -> pa.Table:
    """All parts of a table."""
    parts = sorted((folder / name).iterdir())
    assert all(part.name.startswith("part-") for part in parts)
    if parts[0].suffix == ".parquet":
        return pa.concat_tables([pq.read_table(part) for part in parts])
    return pa.concat_tables([pa.ipc.open_file(part).read_all() for part in parts])


def fails(capsys: pytest.CaptureFixture[str], *words: str | Path) -> str:
    """Run; it must end with status 2, nothing on standard output and one line, which is given back."""
    assert main([str(word) for word in words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("amqpscope: ") and err.endswith("\n") and err.count("\n") == 1
    return err


def program(*words: str | Path, **how: Any) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "amqpscope.dissector.cli.program", *map(str, words)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, check=False, **how)


def test_programs_read_utf_8_whatever_the_terminal_can_show() -> None:
    done = program("frames", FOLDER / "field_types.pcap", env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0 and not done.stdout.isascii() and done.stdout.decode()


def test_closed_streams_are_no_error() -> None:
    command = shlex.join([sys.executable, "-m", "amqpscope", "frames", str(SESSION), "--method", "none"]) + " >&- 2>&-"
    assert subprocess.run(command, shell=True, cwd=ROOT, check=False).returncode == 0


# input that is none

UNREADABLE: dict[str, tuple[bytes | None, str]] = {
    "missing.pcap": (None, "no such file"),
    "empty.pcap": (b"", "is empty"),
    "text.pcap": (b"hello\n", "text"),
    "short.pcap": (SESSION.read_bytes()[:20], "short.pcap"),
}


@pytest.mark.parametrize("command", ["dissect", "frames"])
@pytest.mark.parametrize("name", UNREADABLE)
def test_what_cannot_be_read_is_one_line(
    command: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, reported = UNREADABLE[name]
    if data is not None:
        (tmp_path / name).write_bytes(data)
    output = ["-o", str(tmp_path / "out")] if command == "dissect" else []
    line = fails(capsys, command, tmp_path / name, *output)
    assert str(tmp_path / name) in line and reported in line
    assert not (tmp_path / "out").exists()


def test_a_file_named_among_others_that_cannot_be_read_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.pcap"
    assert fails(capsys, "frames", SESSION, bad) == f"amqpscope: {bad}: no such file\n"
    bad.write_text("hello")
    assert str(bad) in fails(capsys, "frames", SESSION, bad)
    assert str(bad) in fails(capsys, "frames", tmp_path, bad, SESSION)


@pytest.mark.parametrize("given", ["", "*.pcap"])
def test_a_file_of_a_folder_that_cannot_be_read_is_reported_and_the_others_are_read(
    given: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(SESSION, tmp_path / "a.pcap")
    (tmp_path / "b.pcap").write_text("hello")
    (tmp_path / "c.pcap").write_bytes(SESSION.read_bytes()[:20])
    shutil.copy(SESSION, tmp_path / "d.pcap")
    for command in (["frames"], ["handshakes"], ["handshakes", "--fail-on", "handshake"], ["dissect", "-o", "out"]):
        words = [str(tmp_path / word) if word == "out" else word for word in command]
        assert main([*words, str(tmp_path / given)]) == 2
        reported = capsys.readouterr().err.splitlines()
        why = "not a pcap or pcapng file (looks like text); skipped, the other files are read"
        assert reported[0] == f"amqpscope: {tmp_path / 'b.pcap'}: {why}"
        assert str(tmp_path / "c.pcap") in reported[1]
    captures = {row["capture"]: row for row in pq.read_table(tmp_path / "out" / "captures").to_pylist()}
    assert {name: row["error"] for name, row in captures.items()} == {
        "a.pcap": None, "d.pcap": None, "b.pcap": "not a pcap or pcapng file (looks like text)",
        "c.pcap": captures["c.pcap"]["error"],
    }  # fmt: skip
    assert captures["c.pcap"]["error"] and captures["c.pcap"]["packets"] is None
    with pytest.raises(CaptureError, match=r"b\.pcap"):
        read(tmp_path)
    for name in "ad":
        (tmp_path / f"{name}.pcap").unlink()
    assert "b.pcap" in fails(capsys, "frames", tmp_path)


def test_a_capture_without_packets_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "none.pcap"
    path.write_bytes(pcap([]))
    assert main(["handshakes", str(path)]) == 0
    assert capsys.readouterr().err == "amqpscope: no packets in this capture\n"


def test_one_thing_is_reported_as_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "one.pcap"
    path.write_bytes(pcap([Packet(0, ethernet(ipv4(tcp(flags=2))))]))
    assert main(["dissect", str(path), "-o", str(tmp_path / "out")]) == 0
    assert "out: 1 connection, 0 frames, 0 messages, 0 anomalies\n" in capsys.readouterr().err


def test_an_empty_file_beside_others_is_reported_and_the_others_are_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The newest file of a rotating capture has no bytes yet."""
    (tmp_path / "a.pcap").write_bytes(SESSION.read_bytes())
    (tmp_path / "b.pcap").write_bytes(b"")
    assert main(["frames", str(tmp_path)]) == 0
    reported = capsys.readouterr()
    assert reported.out.count("\n") > 10
    assert reported.err == "amqpscope: b.pcap: the file is empty\n"
    assert main(["dissect", str(tmp_path), "-o", str(tmp_path / "out")]) == 0
    captures = pq.read_table(tmp_path / "out" / "captures").to_pylist()
    assert {row["capture"]: (row["packets"] > 0, row["truncated"]) for row in captures} == {
        "a.pcap": (True, False),
        "b.pcap": (False, True),
    }


def test_a_directory_without_captures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "readme.txt").write_text("nothing here")
    assert "no file in this directory" in fails(capsys, "frames", tmp_path)


def test_an_empty_path_is_not_this_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["frames", ""], ["handshakes", ""], ["dissect", SESSION, "-o", ""]):
        assert fails(capsys, *words) == "amqpscope: the path of a file or folder is empty\n"


def test_a_glob_that_matches_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no file matches" in fails(capsys, "frames", tmp_path / "*.pcap")


@pytest.mark.parametrize(("words", "what"), [
    (["frames", str(SESSION), "--queue", "--a b", "--nonsense"], "unrecognized arguments: --nonsense (amqpscope"),
    (["frames", str(SESSION), "--queue", "--a=b c", "--nonsense"], "unrecognized arguments: --nonsense (amqpscope"),
    (["frames", str(SESSION), "--nonsense"], "unrecognized arguments: --nonsense (amqpscope frames"),
    (["frames"], "the following arguments are required: CAPTURE (amqpscope frames"),
])  # fmt: skip
def test_wrong_usage_is_one_line(words: list[str], what: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as status:
        main(words)
    assert status.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith(f"amqpscope: {what}") and err.endswith(" --help has all options)\n") and err.count("\n") == 1


def test_help_offers_no_protocol_that_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["frames", "--help"])
    (names,) = re.findall(r"whatever its\s+content\s+\(([^)]*)\)", capsys.readouterr().out)
    for name in "".join(names.split()).split(","):
        main(["frames", str(SESSION), "--port", f"1={name}", "-c", "1"])


def test_help_names_bodies_only_where_these_go_to_tables(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("dissect", "frames", "handshakes"):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        assert ("--bodies" in capsys.readouterr().out) == (command == "dissect")


def test_an_empty_time_range(capsys: pytest.CaptureFixture[str]) -> None:
    assert "the time range is empty" in fails(capsys, "frames", SESSION, "--from", "5", "--to", "5")


def test_standard_input_and_files_do_not_go_together(capsys: pytest.CaptureFixture[str]) -> None:
    assert "standard input" in fails(capsys, "frames", "-", SESSION)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_no_permission(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.pcap"
    shutil.copy(SESSION, path)
    path.chmod(0)
    assert "permission denied" in fails(capsys, "frames", path)
    tmp_path.chmod(0)
    assert "permission denied" in fails(capsys, "frames", tmp_path)
    tmp_path.chmod(0o700)


@pytest.mark.parametrize("words", [["--port", "x=tls"], ["--port", "5672=smtp"], ["--from", "noon"], ["--bodies", "x"]])
def test_options_that_make_no_sense(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as status:
        main(["frames", str(SESSION), *words])
    assert status.value.code == 2
    assert words[1] in capsys.readouterr().err


@pytest.mark.parametrize(("data", "expected"), [(b"<amqp", "not"), (b"", "")])
def test_a_document_that_is_none(
    data: bytes, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "vendor.xml"
    path.write_bytes(data)
    assert "vendor.xml" in fails(capsys, "frames", SESSION, "--spec", path)
    assert "nowhere.xml" in fails(capsys, "frames", SESSION, "--spec", tmp_path / "nowhere.xml")


@pytest.mark.parametrize("missing", [1, 30, 200])
def test_a_capture_that_breaks_off_gives_what_came_before(missing: int, tmp_path: Path) -> None:
    path = tmp_path / "cut.pcap"
    path.write_bytes(SESSION.read_bytes()[:-missing])
    assert main(["dissect", str(path), "-o", str(tmp_path / "out")]) == 0
    (capture,) = table(tmp_path / "out", "captures").to_pylist()
    assert capture["truncated"]
    assert "capture-truncated" in [row["code"] for row in table(tmp_path / "out", "anomalies").to_pylist()]


def reported(capsys: pytest.CaptureFixture[str], *words: str | Path, status: int = 0) -> list[str]:
    """The lines on standard error."""
    capsys.readouterr()
    assert main([str(word) for word in words]) == status
    return capsys.readouterr().err.splitlines()


def test_what_was_cut_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "cut.pcap"
    path.write_bytes(SESSION.read_bytes()[:-3])
    for words in (["frames"], ["handshakes"], ["dissect", "-o", tmp_path / "out"]):
        line = reported(capsys, words[0], path, *words[1:])[-1]
        assert re.fullmatch(
            r"amqpscope: cut\.pcap: truncated inside packet \d+ \(byte [\d,]+\); everything before it was read", line
        )


def test_what_is_missing_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of connections that are decoded, also to those who see no anomalies."""
    data = b"".join(publish(b"x" * 30))
    tapes = [Tape(port=port).play([*handshake(), *opening(1), *[(CLIENT, data)] * 4]).end() for port in (1000, 2000)]
    foreign = Tape(port=3000, server_port=80).play([(CLIENT, b"GET / HTTP/1.1\r\n")] * 3).end()
    first = 3 + len(handshake()) + 2
    for tape, lost in ((tapes[0], (first + 2, first)), (tapes[1], (first,)), (foreign, (4,))):
        for place in lost:
            tape.packets.pop(place)
    path = tmp_path / "lossy.pcap"
    path.write_bytes(pcap([p for tape in (*tapes, foreign) for p in tape.packets]))
    missing = f"{3 * len(data)} bytes missing in 3 gaps of 2 connections; frames there are missing or partial"
    for command in ("frames", "handshakes"):
        assert reported(capsys, command, path) == [f"amqpscope: {missing}"]


def test_why_there_are_no_frames_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.pcap"
    first = 1_700_000_000_000_000_000
    for packets, link, words, expected in (
        ([], 1, [], "no packets in this capture"),
        ([Packet(first, ethernet(bytes(28), 0x0806))] * 2, 1, [], "no TCP in 2 packets"),
        ([Packet(first, bytes(28))], 147, [], "1 packet skipped: unsupported link layer (link type 147"),
        ([Packet(first, ethernet(ipv4(tcp(b"GET / HT"))))], 1, [], "no frames of a known protocol in 1 TCP segment;"),
        ([Packet(first, ethernet(ipv4(tcp())))], 1, ["--from", "2024-01-01T00:00:00"],
         "nothing in this time range; the capture has packets from 2023-11-14T22:13:20.000000000Z to "),
    ):  # fmt: skip
        path.write_bytes(pcap(packets, link=link, ns=True))
        lines = reported(capsys, "frames", path, *words)
        assert any(expected in line for line in lines), lines


@pytest.mark.parametrize("words", [["handshakes"], ["dissect", "-o", "out"]])
def test_a_time_range_beside_the_capture_is_reported(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A time of another zone looks like a capture in which nothing happened."""
    monkeypatch.chdir(tmp_path)
    for option, time in (("--from", "2099-01-01"), ("--to", "1999-01-01")):
        lines = reported(capsys, words[0], SESSION, *words[1:], option, time)
        assert "amqpscope: nothing in this time range; the capture has packets from " in lines[-1]


def test_where_the_clock_went_back_packets_may_be_in_the_range(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.pcap"
    times = [1_700_000_000_000_000_000 + seconds * 10**9 for seconds in (0, 100, 1)]
    path.write_bytes(pcap([Packet(ns, ethernet(ipv4(tcp()))) for ns in times], link=1, ns=True))
    assert reported(capsys, "handshakes", path, "--from", "1700000050") == []


def test_no_more_than_some_lines_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(MOST + 5):
        (tmp_path / f"{number:02}.pcap").write_bytes(SESSION.read_bytes()[: -3 - number])
    lines = reported(capsys, "frames", tmp_path)
    assert len(lines) == MOST
    assert lines[-1].startswith("amqpscope: 6 more of that kind")


# output


def test_what_a_killed_run_left_is_no_obstacle(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    assert main(["dissect", str(SESSION), "-o", str(folder)]) == 0
    (folder / "messages" / ".part-00001.parquet.writing").write_bytes(b"half")
    (folder / "._amqpscope.json.writing").write_bytes(b"{")
    assert main(["dissect", str(SESSION), "-o", str(folder)]) == 0
    assert table(folder, "messages").num_rows == 6


def test_folders_that_a_run_on_a_full_disk_left_are_no_obstacle(tmp_path: Path) -> None:
    """There was no room for the note either."""
    folder = tmp_path / "out"
    for name in NAMES:
        (folder / name).mkdir(parents=True)
    assert main(["dissect", str(SESSION), "-o", str(folder)]) == 0
    assert table(folder, "messages").num_rows == 6


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_all_tables_are_there_whatever_is_in_them(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "a" / "b"
    assert main(["dissect", str(SESSION), "-o", str(folder), "--format", form]) == 0
    out, err = capsys.readouterr()
    assert out == "" and "40 frames" in err
    expected = dissect(SESSION)
    for name in NAMES:
        found = table(folder, name)
        assert found.schema.equals(schema(name))
        assert found.to_pylist() == expected[name].to_pylist()
    note = json.loads((folder / "_amqpscope.json").read_text())
    assert note["complete"] and note["rows"]["amqp091_frames"] == 40


def test_an_earlier_output_is_replaced(tmp_path: Path) -> None:
    for capture, connections in ((FOLDER / "violations.pcap", 7), (SESSION, 1)):
        assert main(["dissect", str(capture), "-o", str(tmp_path / "out"), "--replace"]) == 0
        assert table(tmp_path / "out", "connections").num_rows == connections


@pytest.mark.parametrize("inside", [False, True])
def test_a_folder_with_other_files_is_left_alone(
    inside: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    if inside:
        assert main(["dissect", str(SESSION), "-o", str(folder)]) == 0
        capsys.readouterr()
    folder.mkdir(exist_ok=True)
    (folder / "thesis.txt").write_text("years of work")
    assert "thesis.txt" in fails(capsys, "dissect", SESSION, "-o", folder)
    assert (folder / "thesis.txt").read_text() == "years of work"


def test_a_file_of_somebody_in_a_table_of_ours_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    assert main(["dissect", str(SESSION), "-o", str(folder)]) == 0
    capsys.readouterr()
    (folder / "messages" / "notes.txt").write_text("mine")
    assert "notes.txt" in fails(capsys, "dissect", SESSION, "-o", folder)
    assert (folder / "messages" / "notes.txt").exists()


def test_the_output_is_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out").write_text("x")
    assert f"{tmp_path / 'out'} is a file, not a folder" in fails(capsys, "dissect", SESSION, "-o", tmp_path / "out")
    assert "out" in fails(capsys, "dissect", SESSION, "-o", tmp_path / "out" / "below")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_a_full_disk_is_one_line(form: str, tmp_path: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (8_000, 8_000))

    words = ["-o", str(tmp_path / "out"), "--format", form]
    done = program("dissect", FOLDER / "many_confirms.pcap", *words, preexec_fn=limit)
    assert done.returncode == 2
    assert done.stderr.count(b"\n") == 1 and b"cannot write" in done.stderr
    left = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert all(path.name == "_amqpscope.json" or path.name.startswith("part-") for path in left)
    assert not json.loads((tmp_path / "out" / "_amqpscope.json").read_text())["complete"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_standard_output_that_is_full() -> None:
    with Path("/dev/full").open("wb") as full:
        command = [sys.executable, "-m", "amqpscope.dissector.cli.program", "frames", str(SESSION)]
        done = subprocess.run(command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 2
    assert done.stderr == b"amqpscope: cannot write: no space left on device\n"


KILLED = """
import os, pathlib, signal, sys
left = int(sys.argv.pop(1))
def moving(function):
    def move(*arguments):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments)
    return move
pathlib.Path.rename, pathlib.Path.replace = moving(pathlib.Path.rename), moving(pathlib.Path.replace)
from amqpscope.dissector.cli.program import main
main()
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("moves", [0, 1, 4, len(NAMES) + 1])
def test_a_killed_run_leaves_complete_parts_and_is_no_obstacle(moves: int, tmp_path: Path) -> None:
    """Killed when the next file of the output was to be put in its place; then run again, undisturbed."""
    folder, capture = tmp_path / "out", str(FOLDER / "interleaved_channels.pcap")
    command = [sys.executable, "-c", KILLED, str(moves), "dissect", capture, "-o", str(folder)]
    assert subprocess.run(command, cwd=ROOT, stderr=subprocess.DEVNULL, check=False).returncode == -signal.SIGKILL
    assert len(list(folder.rglob("part-*"))) == max(moves - 1, 0)
    assert list(folder.rglob(".*.writing"))
    for name in NAMES:
        for part in (folder / name).glob("part-*"):
            assert pq.read_table(part).schema.equals(schema(name))
    if moves:
        assert not json.loads((folder / "_amqpscope.json").read_text())["complete"]
    assert main(["dissect", capture, "-o", str(folder)]) == 0
    assert json.loads((folder / "_amqpscope.json").read_text())["complete"]
    assert main(["dissect", capture, "-o", str(tmp_path / "undisturbed")]) == 0
    for name in NAMES:
        assert table(folder, name).equals(table(tmp_path / "undisturbed", name))


def test_a_reader_that_has_gone_is_no_error() -> None:
    command = (
        shlex.join([sys.executable, "-m", "amqpscope", "frames", str(FOLDER / "many_confirms.pcap")]) + " | head -1"
    )
    done = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, check=False)
    assert done.stdout.count(b"\n") == 1 and done.stderr == b""


# input that is several


def test_standard_input_is_a_capture() -> None:
    with SESSION.open("rb") as file:
        done = program("frames", "-", "--format", "json", stdin=file)
    assert (done.returncode, done.stderr) == (0, b"")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) == 40 and {line["capture"] for line in lines} == {"-"}


def test_files_globs_and_directories_are_the_same_input(tmp_path: Path) -> None:
    """A rotated capture is one sequence in the order of its packets, however it was named."""
    parts = sorted(ROTATED.glob("*.pcap"))
    ways = [[str(ROTATED)], [str(ROTATED / "part-?.pcap")], [str(part) for part in reversed(parts)]]
    ways.append([*ways[1], str(parts[2]), str(ROTATED)])
    found = []
    for number, words in enumerate(ways):
        assert main(["dissect", *words, "-o", str(tmp_path / str(number))]) == 0
        found.append({name: table(tmp_path / str(number), name).to_pylist() for name in NAMES})
    assert all(one == found[0] for one in found)
    assert len(found[0]["connections"]) == 2
    assert [row["capture"] for row in found[0]["captures"]] == [part.name for part in parts]


def test_the_files_of_a_rotated_capture_are_one_connection(tmp_path: Path) -> None:
    tape = Tape().play([*handshake(), *opening(1), *[(CLIENT, b"".join(publish(b"q" * 99)))] * 20]).end()
    whole = tmp_path / "whole.pcap"
    whole.write_bytes(pcap(tape.packets, ns=True))
    cut = tmp_path / "cut"
    cut.mkdir()
    for number, at in enumerate(range(0, len(tape.packets), 3)):
        (cut / f"x_{number:03}.pcap").write_bytes(pcap(tape.packets[at : at + 3], ns=True))
    left_out = (
        "capture", "packet", "first_capture", "first_packet", "last_capture", "last_packet", "vantage",
        "handshake_evidence", "handshake_steps",
    )  # fmt: skip
    for name in ("amqp091_frames", "messages", "connections"):
        one, many = (dissect(path)[name] for path in (whole, cut))
        names = [n for n in left_out if n in one.schema.names]
        assert rows(one, *names) == rows(many, *names)


def test_pipes_are_put_in_order_like_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts = sorted(ROTATED.glob("*.pcap"))[:3]
    expected = lines(capsys, *parts)
    (tmp_path / "first.gz").write_bytes(gzip.compress(parts[0].read_bytes(), mtime=0))
    ways = [tmp_path / "third", tmp_path / "first", parts[1]]
    writers = []
    for pipe, source in zip(ways[:2], (parts[2], tmp_path / "first.gz"), strict=True):
        os.mkfifo(pipe)
        writers.append(subprocess.Popen(["/bin/sh", "-c", f"cat '{source}' > '{pipe}'"]))
    left_out = dict.fromkeys(("capture", "first_capture", "last_capture"))
    found = lines(capsys, *ways)
    assert [row | left_out for row in found] == [row | left_out for row in expected]
    assert {row["capture"] for row in found} >= {str(ways[0]), parts[1].name}
    assert all(writer.wait() == 0 for writer in writers)


# options


def lines(capsys: pytest.CaptureFixture[str], *words: str | Path) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert main(["frames", *map(str, words), "--format", "json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_port_can_be_forced(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(lines(capsys, SESSION)) == 40
    assert not lines(capsys, SESSION, "--port", "5672=unknown")
    assert len(lines(capsys, SESSION, "--port", "1=tls", "--port", "5672=amqp-0-9-1")) == 40


def test_a_time_range_leaves_rows_out_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    whole = lines(capsys, SESSION)
    start, end = (int(whole[n]["ts_ns"]) for n in (10, 30))
    words = [f"{ns // 10**9}.{ns % 10**9:09}" for ns in (start, end)]
    found = lines(capsys, SESSION, "--from", words[0], "--to", words[1])
    assert found == [row for row in whole if start <= int(row["ts_ns"]) < end]
    assert found and found[0]["frame_no"] == next(r["frame_no"] for r in whole if r["ts_ns"] == str(start))


def test_bodies_are_hashed_kept_or_neither(tmp_path: Path) -> None:
    found = {}
    for how in ("none", "hash", "full"):
        assert main(["dissect", str(FOLDER / "body_sizes.pcap"), "-o", str(tmp_path / how), "--bodies", how]) == 0
        found[how] = table(tmp_path / how, "messages").to_pylist()
    assert all(row["body_hash"] is None and row["body"] is None for row in found["none"])
    assert all(row["body_hash"] is not None and row["body"] is None for row in found["hash"])
    assert all(len(row["body"]) == row["body_size"] for row in found["full"])
    for rest in ("none", "full"):
        assert [r | {"body": None, "body_hash": None} for r in found[rest]] == [
            r | {"body_hash": None} for r in found["hash"]
        ]


def test_lines_of_text_tell_the_size_of_parts_of_contents_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["frames", str(SESSION)]) == 0
    printed = [
        re.sub(r"^ *\d+ \S+ (client|server) \d+ +\S+ ", "", line) for line in capsys.readouterr().out.splitlines()
    ]
    assert {"protocol-header", "channel.open", "connection.open-ok"} < set(printed)
    assert {line.split()[0] for line in printed if line.endswith(" bytes")} == {"header", "body"}


def test_lines_of_all_formats_tell_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    as_json = lines(capsys, SESSION)
    assert main(["frames", str(SESSION), "--format", "csv"]) == 0
    as_csv = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert main(["frames", str(SESSION)]) == 0
    printed = capsys.readouterr().out.splitlines()
    as_text = [line for line in printed if not line.startswith("#")]
    assert printed[:2] == ["# 2026-11-21, UTC", "# 54612 is client 127.0.0.1:54612 of server 127.0.0.1:5672"]
    assert len(as_json) == len(as_csv) == len(as_text) == len(printed) - 2 == 40
    for one, other, text in zip(as_json, as_csv, as_text, strict=True):
        assert (str(one["packet"]), one.get("method", ""), str(one["channel"])) == (
            other["packet"], other["method"], other["channel"],
        )  # fmt: skip
        assert text.split()[0] == other["packet"]
        assert one.get("method", one["frame_type"]) in text


def test_a_vendors_document_names_its_method(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = tmp_path / "vendor.xml"
    document.write_text(
        """<amqp major="0" minor="9" revision="1" port="5672">
        <domain name="shortstr" type="shortstr"/>
        <class name="basic" index="60" handler="channel">
          <method name="vendor" index="99"><chassis name="server" implement="MUST"/>
            <field name="special" domain="shortstr"/></method>
        </class></amqp>"""
    )
    capture = tmp_path / "vendor.pcap"
    payload = b"\0\x3c\0\x63\4mine"  # class 60, method 99
    capture.write_bytes(pcap(Tape().play([*handshake(), *opening(1), (CLIENT, raw(1, 1, payload))]).packets))
    assert "method" not in lines(capsys, capture)[-1]
    found = lines(capsys, capture, "--spec", document)[-1]
    assert (found["method"], found["special"]) == ("basic.vendor", "mine")


def test_read_gives_the_same_tables() -> None:
    found = {name: reader.read_all() for name, reader in read(SESSION).items()}
    assert {name: t.to_pylist() for name, t in found.items()} == {
        name: t.to_pylist() for name, t in dissect(SESSION).items()
    }


# secrets


@pytest.mark.sampled(3)
@pytest.mark.parametrize("form", ["text", "json", "csv"])
def test_no_secret_is_printed(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    parts = [str(part) for c in CAPTURES if c.stem != "demo" for part in (c.glob("*.pcap") if c in SETS else [c])]
    assert main(["frames", *parts, "--format", form]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) > 3000
    assert SECRETS and not [secret for secret in SECRETS if secret in out + err]


def test_no_secret_is_written(tmp_path: Path) -> None:
    parts = [str(part) for c in CAPTURES if c.stem != "demo" for part in (c.glob("*.pcap") if c in SETS else [c])]
    assert main(["dissect", *parts, "-o", str(tmp_path / "out"), "--bodies", "full"]) == 0
    reported = repr([table(tmp_path / "out", name).to_pylist() for name in NAMES])
    reported += (tmp_path / "out" / "_amqpscope.json").read_text()
    assert "connection.start-ok" in reported and "redacted" in reported
    for secret in SECRETS:
        assert secret not in reported and repr(secret)[1:-1] not in reported
        assert secret.encode().hex() not in reported
