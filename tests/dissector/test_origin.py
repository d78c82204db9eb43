"""Tables and pages of other captures stay, unless the user says otherwise."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import amqpscope
from amqpscope.dissector.capture.sources import find
from amqpscope.dissector.cli import program
from amqpscope.dissector.tables import origin
from amqpscope.dissector.tables.output import NOTE, OutputError

CAPTURES = Path(__file__).parents[1] / "captures"
ONE, OTHER = CAPTURES / "pika_confirms.pcap", CAPTURES / "many_confirms.pcap"


def run(*words: object) -> int:
    return program.main(list(map(str, words)))


def rows(folder: Path) -> dict[str, int]:
    return json.loads((folder / NOTE).read_text())["rows"]


@pytest.mark.parametrize("command", ["dissect", "analyze"])
def test_tables_of_other_captures_stay(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "made"
    assert run(command, ONE, "-o", folder) == 0
    before = rows(folder)
    assert run(command, OTHER, "-o", folder) == 2
    assert f"{folder}: holds tables of other captures ({ONE})" in capsys.readouterr().err
    assert rows(folder) == before
    assert run(command, OTHER, "-o", folder, "--replace") == 0
    assert rows(folder) != before


def test_the_same_capture_is_replaced_wherever_it_lies(tmp_path: Path) -> None:
    folder, copy = tmp_path / "tables", tmp_path / "another name.pcap"
    shutil.copy(ONE, copy)
    assert run("dissect", ONE, "-o", folder) == run("dissect", copy, "-o", folder) == 0
    assert run("dissect", ONE, OTHER, "-o", folder) == 0, "the folder gains captures"
    assert run("dissect", ONE, "-o", folder) == 2, "it would lose one"


@pytest.mark.parametrize("size", [100, origin.END - 1, origin.END + 1, 3 * origin.END])
def test_a_grown_file_is_the_same(size: int, tmp_path: Path) -> None:
    path = tmp_path / "growing.pcap"
    data = OTHER.read_bytes() * (1 + 4 * origin.END // OTHER.stat().st_size)
    path.write_bytes(data[:size])
    (before,) = origin.of_captures(find([path]))
    path.write_bytes(data[: size + 7])
    (after,) = origin.of_captures(find([path]))
    assert after.is_same(before.mark)
    assert not before.is_same(after.mark), "it would lose packets"
    path.write_bytes(data[: size - 1] + bytes([data[size - 1] ^ 1]) + data[size:])
    (changed,) = origin.of_captures(find([path]))
    assert not changed.is_same(before.mark)


def test_what_came_through_a_pipe_is_never_the_same(tmp_path: Path) -> None:
    folder = tmp_path / "tables"
    for replaces, status in ([], 0), ([], 2), (["--replace"], 0):
        command = [sys.executable, "-m", "amqpscope", "dissect", "-", "-o", str(folder), *replaces]
        with ONE.open("rb") as file:
            assert subprocess.run(command, stdin=file, check=False).returncode == status


def test_only_what_was_written_is_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "tables"
    assert run("dissect", ONE, "-o", folder) == 0
    (folder / "thesis.txt").write_text("years of work")
    assert run("dissect", OTHER, "-o", folder, "--replace") == 2
    assert "thesis.txt" in capsys.readouterr().err
    assert (folder / "thesis.txt").exists()


def test_statistics_of_grown_tables_are_replaced_and_of_others_not(tmp_path: Path) -> None:
    tables, others, stats = (tmp_path / name for name in ("tables", "others", "stats"))
    assert run("dissect", ONE, "-o", tables) == run("analyze", tables, "-o", stats) == 0
    assert run("dissect", OTHER, "-o", others) == 0
    assert run("analyze", tables, "-o", stats) == 0
    assert run("analyze", others, "-o", stats) == 2
    with pytest.raises(OutputError, match="other captures"):
        amqpscope.analyze(others, stats)
    amqpscope.analyze(others, stats, replace=True)


def test_following_replaces_no_other_captures(tmp_path: Path) -> None:
    tables, followed = tmp_path / "tables", tmp_path / "captures"
    followed.mkdir()
    shutil.copy(OTHER, followed)
    follow = ("dissect", "--follow", followed, "--until-idle", "0", "-o", tables)
    assert run("dissect", ONE, "-o", tables) == 0
    assert run(*follow) == 2
    assert run(*follow, "--replace") == 0
    assert run(*follow) == 0, "it goes on"
    assert run(*follow, "--bodies", "none") == 2, "other options"
    assert run(*follow, "--bodies", "none", "--replace") == 0
    assert run("dissect", ONE, "-o", tables) == 2


def test_pages_of_other_captures_and_other_files_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    page, letter, tables = tmp_path / "page.html", tmp_path / "letter.html", tmp_path / "tables"
    letter.write_text("Dear reader")
    assert run("report", ONE, "-o", page) == run("report", ONE, "-o", page) == 0
    assert run("dissect", ONE, "-o", tables) == run("report", tables, "-o", page) == 0
    first = page.read_bytes()
    for file, what in ((page, "is a page about other captures"), (letter, "is a file that is no page of amqpscope")):
        capsys.readouterr()
        assert run("report", OTHER, "-o", file) == 2
        assert what in capsys.readouterr().err
    assert page.read_bytes() == first
    assert letter.read_text() == "Dear reader"
    letter.write_bytes(b"")
    assert run("report", OTHER, "-o", letter) == 0, "an empty file has nothing to lose"
