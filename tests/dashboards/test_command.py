"""The command `report` and `amqpscope.report`: from captures, and from folders of tables, in this process."""

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import amqpscope
from amqpscope.dissector.cli.program import main

CAPTURE = Path(__file__).parents[1] / "captures" / "pika_confirms.pcap"


def shown(page: Path) -> str:
    """What a page says, but for the name of what it was made of."""
    return re.sub(r"<title>.*?</title>", "", page.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a capture."""
    return amqpscope.report(CAPTURE, tmp_path_factory.mktemp("page") / "page.html")


def test_of_a_capture_the_page_has_everything_and_names_it(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert CAPTURE.name in text
    assert "amqpscope analyze" not in text
    assert {'id="first"', 'id="waits"', 'id="slowest"'} <= set(re.findall(r'id="\w+"', text))
    assert "/tmp" not in text and [each.name for each in page.parent.iterdir()] == [page.name]


def test_captures_tables_and_statistics_make_the_same_page(page: Path, tmp_path: Path) -> None:
    tables, stats = tmp_path / "tables", tmp_path / "stats"
    assert main(["dissect", str(CAPTURE), "-o", str(tables)]) == 0
    for paths in ([CAPTURE], [tables]):
        assert main(["report", *map(str, paths), "-o", str(tmp_path / "page.html")]) == 0
        assert shown(tmp_path / "page.html") == shown(page)
    assert amqpscope.analyze(tables, stats) == stats
    for paths in ([tables], [stats], [tables, stats]):
        amqpscope.report(paths, tmp_path / "page.html")
        assert shown(tmp_path / "page.html") == shown(page)


def test_statistics_of_other_tables_are_made_anew_unless_they_are_named(tmp_path: Path) -> None:
    tables, stats = tmp_path / "tables", tmp_path / "stats"
    main(["dissect", str(CAPTURE), "-o", str(tables)])
    amqpscope.analyze(tables, stats)
    main(["dissect", str(CAPTURE), "-o", str(tables), "--to", "2100-01-01"])
    out = tmp_path / "page.html"
    assert "changed after the statistics" not in amqpscope.report(tables, out).read_text(encoding="utf-8")
    assert "changed after the statistics" in amqpscope.report([tables, stats], out).read_text(encoding="utf-8")


def test_options_for_captures(tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    assert main(["report", str(CAPTURE), "--port", "5672=unknown", "--to", "2100-01-01", "-o", str(out)]) == 0
    assert out.exists()


@pytest.mark.parametrize(
    ("arguments", "reported"),
    [
        (["CAPTURE", "TABLES"], "TABLES is a folder of tables and CAPTURE is not; name captures, or a folder of"),
        (["TABLES", "--port", "5672=amqp-0-9-1"], "--port applies to captures; give it to `amqpscope dissect`"),
        (["TABLES", "--from", "0"], "--from applies to captures"),
        (["TABLES", "COPY"], "two folders of the same kind: TABLES and COPY"),
        (["none.pcap"], "none.pcap: no such file"),
        (["EMPTY"], "no tables of `amqpscope dissect` or `analyze` in EMPTY"),
    ],
)
def test_wrong_arguments_are_one_line(
    arguments: list[str], reported: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = {"CAPTURE": CAPTURE} | {name: tmp_path / name.lower() for name in ("TABLES", "COPY", "EMPTY")}
    names["EMPTY"].mkdir()
    main(["dissect", str(CAPTURE), "-o", str(names["TABLES"])])
    shutil.copytree(names["TABLES"], names["COPY"])
    capsys.readouterr()
    out = tmp_path / "page.html"
    assert main(["report", *(str(names.get(each, each)) for each in arguments), "-o", str(out)]) == 2
    printed = capsys.readouterr().err
    for name, path in names.items():
        printed = printed.replace(str(path), name)
    assert printed.startswith(f"amqpscope: {reported}") and printed.count("\n") == 1
    assert not out.exists()


def test_no_spark_is_loaded(tmp_path: Path) -> None:
    code = (
        f"import sys, amqpscope; amqpscope.report({str(CAPTURE)!r}, {str(tmp_path / 'page.html')!r});"
        "sys.exit('pyspark' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_page_of_a_directory_that_is_followed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """After each batch it is whole and loads itself again; at the end it does so no more, and has everything."""
    rotated = tmp_path / "rotated"
    rotated.mkdir()
    shutil.copy(CAPTURE, rotated / "one_00001.pcap")
    page = tmp_path / "page.html"
    written: list[str] = []
    replace = os.replace

    def noted(source: str, target: str) -> None:
        if str(target) == str(page):
            written.append(Path(source).read_text(encoding="utf-8"))
        replace(source, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "replace", noted)
        assert main(["report", "--follow", str(rotated), "-o", str(page), "--until-idle", "0.5"]) == 0
    assert len(written) >= 2 and all(text.rstrip().endswith("</html>") for text in written)
    assert ['http-equiv="refresh"' in text for text in written] == [True] * (len(written) - 1) + [False]
    assert "incomplete" not in page.read_text(encoding="utf-8")
    assert str(page) in capsys.readouterr().err


@pytest.fixture
def rotated(tmp_path: Path) -> Path:
    """A directory in which two batches are to be taken: connections are open at the end of the first."""
    folder = tmp_path / "rotated"
    folder.mkdir()
    data = CAPTURE.read_bytes()
    packets, at = [], 24
    while at < len(data):
        size = 16 + int.from_bytes(data[at + 8 : at + 12], sys.byteorder)
        packets.append(data[at : at + size])
        at += size
    half = len(packets) // 2
    for number, part in enumerate((packets[:half], packets[half:]), 1):
        path = folder / f"one_{number:05}.pcap"
        path.write_bytes(data[:24] + b"".join(part))
        os.utime(path, (1e9 + number, 1e9 + number) if number == 1 else None)
    return folder


def test_first_screens_of_a_directory_that_is_followed(rotated: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One behind the other where output is no terminal, each behind the time; the last is that of the whole."""
    given = ["summary", "--follow", str(rotated), "--until-idle", "0.5"]
    assert main([*given, "--fail-on", "note"]) == 1
    _, first, last = re.split(r"^--- \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC\n\n", capsys.readouterr().out, flags=re.M)
    assert "the capture goes on: connections that are open count as if it ended here" in first
    assert "1 connection, which came up" in first and "RabbitMQ 3.10.8" in first
    assert "1 connection, which came up" in last and "goes on" not in last
    assert main(["summary", str(rotated)]) == 0
    assert last == capsys.readouterr().out


def test_packets_of_several_captures_have_their_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Packets are counted by file: what is shown from one to another begins in the first."""
    data = (CAPTURE.parent / "thrown_out.pcap").read_bytes()
    (tmp_path / "one.pcap").write_bytes(data)
    shutil.copy(CAPTURE.parent / "any_sll.pcap", tmp_path / "two.pcap")
    assert main(["summary", str(tmp_path / "one.pcap"), str(tmp_path / "two.pcap")]) == 0
    both = capsys.readouterr().out
    assert main(["summary", str(tmp_path / "one.pcap")]) == 0
    alone = capsys.readouterr().out
    assert " of one.pcap" in both and " of one.pcap" not in alone


def test_first_screens_for_programs(rotated: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["summary", "--follow", str(rotated), "--until-idle", "0.5", "--format", "json"]) == 0
    first, last = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["goes_on"], first["connections"], last["goes_on"], last["connections"]) == (True, 1, False, 1)


def test_a_screen_on_a_terminal_takes_the_place_of_the_one_before(rotated: Path) -> None:
    """And Ctrl-C ends it, with the status that findings ask for."""
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "amqpscope", "summary", "--follow", str(rotated), "--fail-on", "warning"]
    with subprocess.Popen(command, stdout=follower, stderr=subprocess.PIPE, env=os.environ | {"TERM": "xterm"}) as run:
        os.close(follower)
        seen = b""
        while b"more: " not in seen:
            seen += os.read(leader, 65536)
        run.send_signal(signal.SIGINT)
        assert run.stderr is not None
        said = run.stderr.read().decode()
        assert run.wait() == 0
    os.close(leader)
    assert seen.startswith(b"\x1b[H\x1b[2J") and b"---" not in seen
    assert said.splitlines()[-1].endswith(": ended") and "Traceback" not in said
