"""What the program takes and prints: selections, times and zones, and the same values in all formats."""

import argparse
import csv
import io
import json
import os
import re
import subprocess
import sys
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from amqpscope import spec
from amqpscope.dissector.cli import times
from amqpscope.dissector.cli.program import main
from amqpscope.dissector.formatting import exact, instant
from tests.dissector.builders import pcap
from tests.dissector.runs import FOLDER
from tests.dissector.wire import Tape, handshake, session

DEMO, FAILED = FOLDER / "orders_pika.pcap", FOLDER / "failed_handshakes.pcap"
BERLIN = ZoneInfo("Europe/Berlin")


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*words: str | Path, status: int = 0) -> str:
        capsys.readouterr()
        assert main([str(word) for word in words]) == status
        return capsys.readouterr().out

    return run


def objects(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


# ---------------------------------------------------------------------------------------------------------- selection


@pytest.fixture
def frames(shown: Any) -> Any:
    return lambda *words: objects(shown("frames", *words, "--format", "json"))


def test_frames_are_selected_by_what_they_hold(frames: Any) -> None:
    path = FOLDER / "topology.pcap"
    whole = frames(path)
    for words, wanted in (
        (["--channel", "0"], lambda f: f["channel"] == 0),
        (["--method", "queue.*", "--method", "heartbeat"], lambda f: f.get("method", "").startswith("queue.")),
        (["--method", "protocol-header"], lambda f: f["frame_type"] == "protocol-header"),
        (["--queue", "t-queue"], lambda f: f.get("queue") == "t-queue"),
        (["--exchange", "t-source"], lambda f: "t-source" in (f.get("exchange"), f.get("source"))),
        (
            ["--method", "*.bind", "--exchange", "t-sink"],
            lambda f: "t-sink" in f.values() and f["method"].endswith(".bind"),
        ),
    ):
        expected = [frame for frame in whole if wanted(frame)]
        assert 0 < len(expected) < len(whole)
        assert frames(path, *words) == expected


def test_connections_are_named_by_id_address_and_port(frames: Any) -> None:
    whole = frames(FAILED)
    one = next(frame for frame in whole if frame.get("method") == "connection.start-ok")
    expected = [frame for frame in whole if frame["connection_id"] == one["connection_id"]]
    assert 0 < len(expected) < len(whole)
    assert frames(FAILED, "--connection", one["connection_id"]) == expected
    assert frames(FAILED, "--connection", one["sender"]) == expected
    assert frames(FAILED, "--connection", "1.2.3.4", "--connection", one["sender"]) == expected
    assert frames(FAILED, "--connection", "127.0.0.1") == whole


def test_an_address_may_be_written_in_other_ways(frames: Any) -> None:
    path = FOLDER / "ipv6.pcap"
    one = frames(path, "-c", "1")[0]["sender"]
    assert one.startswith("[::1]:")
    chosen = frames(path, "--connection", one)
    assert chosen and chosen == frames(path, "--connection", one.replace("[::1]", "[0:0::1]"))
    assert frames(path) == frames(path, "--connection", "::1") == frames(path, "--connection", "[::1]")


@pytest.mark.parametrize("words", [
    ["-c", "0"], ["--count", "many"], ["--channel", "x"], ["--channel", "-1"], ["--channel", "65536"],
    ["--connection", "localhost"], ["--connection", "10.0.0.300"], ["--connection", "10.0.0.3:amqp"],
    ["--connection", ":5672"],
])  # fmt: skip
def test_what_nothing_can_match_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as status:
        main(["frames", str(DEMO), *words])
    assert status.value.code == 2
    assert repr(words[1]) in capsys.readouterr().err


def test_other_protocols_are_selected_by_their_names(frames: Any) -> None:
    streams = FOLDER / "stream_super.pcap"
    assert {f["command"] for f in frames(streams, "--method", "*-response")} > {"partitions"}
    assert all(f["is_response"] for f in frames(streams, "--method", "*-response"))
    assert {f.get("super_stream", f.get("stream")) for f in frames(streams, "--queue", "invoices")} == {"invoices"}
    transfers = frames(FOLDER / "qpid_props.pcap", "--method", "message.*")
    assert transfers and {f["method"].split(".")[0] for f in transfers} == {"message"}
    assert not frames(streams, "--exchange", "invoices")


def test_reading_ends_with_the_last_frame_wanted(frames: Any, tmp_path: Path) -> None:
    assert frames(DEMO, "-c", "3") == frames(DEMO)[:3]
    assert frames(DEMO, "-c", "2", "--method", "queue.*") == frames(DEMO, "--method", "queue.*")[:2]
    whole = (FOLDER / "demo.pcap").read_bytes()
    path = tmp_path / "damaged.pcap"
    path.write_bytes(whole[: len(whole) // 2] + b"\xff" * 64)
    assert len(frames(path, "-c", "5")) == 5


def test_a_selection_that_nothing_matches_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["frames", str(DEMO), "--queue", "nowhere"]) == 0
    out, err = capsys.readouterr()
    assert not out and re.fullmatch(r"amqpscope: none of \d+ frames matches the selection\n", err)


def test_arguments_are_in_the_order_of_the_specification(frames: Any, shown: Any) -> None:
    methods = {m.full_name: [f.column for f in m.fields if f.column] for m in spec.load().methods}
    whole = frames(FOLDER / "topology.pcap") + frames(DEMO)
    seen = set()
    for frame in whole:
        known = methods.get(frame.get("method", ""), [])
        assert [name for name in frame if name in known] == [name for name in known if name in frame]
        seen.add(frame.get("method"))
    assert {"queue.bind", "queue.declare", "basic.publish", "connection.close"} <= seen
    assert 'queue.bind queue="' in shown("frames", FOLDER / "topology.pcap", "--method", "queue.bind")


# -------------------------------------------------------------------------------------------------- times and zones


@pytest.mark.parametrize(
    ("text", "zone", "expected"),
    [
        ("2026-01-31T12:00:00.5Z", BERLIN, "2026-01-31T12:00:00.500000000Z"),
        ("2026-01-31 12:00+01:00", UTC, "2026-01-31T11:00:00.000000000Z"),
        ("2026-01-31T12:00", BERLIN, "2026-01-31T11:00:00.000000000Z"),
        ("2026-07-31", BERLIN, "2026-07-30T22:00:00.000000000Z"),
        ("1700000000.000000001", BERLIN, "2023-11-14T22:13:20.000000001Z"),
        ("17:40", UTC, "2026-03-04T17:40:00.000000000Z"),
        ("17:40:01.25", BERLIN, "2026-03-05T16:40:01.250000000Z"),
    ],
)
def test_times_are_dates_or_of_the_day(text: str, zone: tzinfo, expected: str) -> None:
    begin_ns = int(datetime(2026, 3, 4, 23, 30, tzinfo=UTC).timestamp()) * 10**9  # in Berlin it is the next day
    assert instant(times.given(text).ns(zone, begin_ns)) == expected


@pytest.mark.parametrize("text", ["noon", "25:00", "17:40:61", "2026-13-01", "", "-5", "1.0000000001", "17.40.1"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="not a time"):
        times.given(text)


def test_an_end_of_the_day_follows_its_start() -> None:
    night = times.Range(times.given("2026-01-31T23:50Z"), times.given("00:10"))
    start, end = night.ns(UTC, 0)
    assert start is not None and end == start + 20 * 60 * 10**9
    assert times.Range(None, times.given("00:10")).ns(UTC, 0) == (None, 600 * 10**9)


@pytest.mark.parametrize("text", ["Mars/Base", "../etc/passwd", "Europe", ""])
def test_what_is_no_zone_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="not a time zone"):
        times.zone(text)


def test_the_local_zone_is_that_of_the_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    assert times.zone("local") == BERLIN
    monkeypatch.delenv("TZ")
    monkeypatch.setattr(times, "LOCAL", tmp_path / "none")
    assert times.zone("local") is UTC


@pytest.mark.parametrize("piped", [False, True])
def test_a_time_of_the_day_is_of_the_captures_day(piped: bool, frames: Any, tmp_path: Path) -> None:
    whole, path = frames(DEMO), DEMO
    middle = datetime.fromisoformat(whole[len(whole) // 2]["ts"][:26] + "+00:00").astimezone(BERLIN)
    if piped:
        os.mkfifo(path := tmp_path / "pipe")
        writer = subprocess.Popen(["/bin/sh", "-c", f"cat '{DEMO}' > '{path}'"])
    found = frames(path, "--tz", "Europe/Berlin", "--from", f"{middle:%H:%M:%S.%f}")
    assert not piped or writer.wait() == 0
    expected = [frame for frame in whole if int(frame["ts_ns"]) >= int(middle.timestamp() * 10**6) * 1000]
    assert 0 < len(expected) < len(whole)
    assert [f["ts"] for f in found] == [instant(int(f["ts_ns"]), BERLIN) for f in expected]


def test_tables_have_a_day_too(tmp_path: Path, shown: Any) -> None:
    shown("dissect", FAILED, "-o", tmp_path)
    begun = [row["first"] for row in json.loads(shown("handshakes", FAILED, "--format", "json"))["connections"]]
    for source in (FAILED, tmp_path):
        words = ["handshakes", source, "--from", "09:33:49.1", "--format", "json"]
        found = [row["first"] for row in json.loads(shown(*words))["connections"]]
        assert found and len(found) < len(begun) and set(found) < set(begun)


# ------------------------------------------------------------------------------------------------ the same everywhere


def test_all_formats_have_the_same_values(shown: Any) -> None:
    """Truth, times, ids and addresses are the same text; JSON alone has numbers where they are exact."""
    as_json = objects(shown("frames", DEMO, "--format", "json", "--tz", "Europe/Berlin"))
    as_csv = list(csv.DictReader(io.StringIO(shown("frames", DEMO, "--format", "csv", "--tz", "Europe/Berlin"))))
    lines = shown("frames", DEMO, "--tz", "Europe/Berlin").splitlines()
    (day,) = [line for line in lines if line == "# 2026-11-21, CET"]
    ports = dict(re.findall(r"# (\S+) is client (\S+) of server \S+", "\n".join(lines)))
    as_text = [line for line in lines if not line.startswith("#")]
    assert len(as_json) == len(as_csv) == len(as_text)
    for one, other, line in zip(as_json, as_csv, as_text, strict=True):
        assert {name: value for name, value in other.items() if value} == {
            name: json.dumps(value) if isinstance(value, bool) else str(value)
            for name, value in one.items()
            if value != ""
        }
        packet, time, side, port = line.split()[:4]
        assert (packet, f"{day[2:12]}T{time}") == (str(one["packet"]), one["ts"][:26])
        assert ports[port] == (one["sender"] if side == "client" else one["receiver"])
        for name in ("durable", "no_wait", "multiple"):
            if name in one:
                assert f" {name}={json.dumps(one[name])}" in line


@pytest.mark.sampled(3)
@pytest.mark.parametrize("stem", ["demo", "stream_chunks", "qpid_messaging", "rpc_calls", "gets"])
def test_frames_fit_a_terminal_with_their_method_beside_their_time(stem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    out = Terminal()
    for name, value in {"COLUMNS": "80", "NO_COLOR": "1", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stdout", out)
    assert main(["frames", str(FOLDER / f"{stem}.pcap")]) == 0
    lines = out.getvalue().splitlines()
    begins = [line for line in lines if not line.startswith(("#", " " * 8))]
    begin = re.compile(r" *\d+ \d\d:\d\d:\d\d\.\d{6} (client|server)( +\S+){2} [a-z?][a-z0-9.?-]+")
    assert len(begins) > 10
    assert all((found := begin.match(line)) and found.end() <= 80 for line in begins)
    long = [line for line in lines if len(line) > 80]
    assert all(line.startswith(" " * 8) and len(re.findall(r" \w+=", line)) == 1 for line in long), (
        "one argument is longer"
    )


def test_a_port_that_another_client_had_before_has_a_number(shown: Any) -> None:
    labels = re.findall(r"# (\S+) is client", shown("frames", FOLDER / "port_reused.pcap"))
    assert any(label.endswith("/2") for label in labels)


def test_numbers_that_readers_of_json_round_are_text() -> None:
    row = {"connection_id": 5, "first_ts_ns": 6, "delivery_tag": 7, "offset": 1 << 60, "of": [{"ts_ns": 1}]}
    assert exact(row) == {
        "connection_id": "5", "first_ts_ns": "6", "delivery_tag": 7, "offset": str(1 << 60),
        "of": [{"ts_ns": "1"}],
    }  # fmt: skip


def test_an_id_from_json_is_found_again(shown: Any) -> None:
    document = json.loads(shown("handshakes", FAILED, "--format", "json"))
    for row in document["connections"]:
        assert isinstance(row["connection_id"], str) and isinstance(row["handshake_steps"][0]["ts_ns"], str)
        out = shown("handshakes", FAILED, "--connection", row["connection_id"])
        assert out.startswith(f"{row['client']} > {row['server']}, ")


# --------------------------------------------------------------------------------------------------- failing on purpose


@pytest.mark.parametrize(
    ("stem", "words", "status"),
    [
        ("failed_handshakes", ["handshake"], 1),
        ("demo", ["handshake"], 0),
        ("demo", ["ending"], 0),
        ("heartbeats", ["handshake"], 0),
        ("heartbeats", ["ending"], 1),
        ("heartbeats", ["handshake", "ending:error"], 1),
        ("failed_handshakes", ["ending"], 0),
        ("failed_handshakes", ["ending:note"], 0),
    ],
)
def test_failing_on_what_is_asked(stem: str, words: list[str], status: int, shown: Any) -> None:
    shown("handshakes", FOLDER / f"{stem}.pcap", *[w for word in words for w in ("--fail-on", word)], status=status)


@pytest.mark.parametrize("text", ["handshake:fine", "end", "ending:", ":error", "ending:bad"])
def test_what_cannot_be_failed_on(text: str) -> None:
    with pytest.raises(SystemExit) as status:
        main(["handshakes", str(FAILED), "--fail-on", text])
    assert status.value.code == 2


def test_a_capture_without_packets_does_not_pass(tmp_path: Path, shown: Any) -> None:
    path = tmp_path / "none.pcap"
    path.write_bytes(pcap([]))
    shown("dissect", path, "-o", tmp_path / "tables")
    for source in (path, tmp_path / "tables"):
        shown("handshakes", source, "--fail-on", "handshake", status=2)
        shown("handshakes", source)


def test_a_time_range_without_connections_does_not_pass(tmp_path: Path, shown: Any) -> None:
    shown("dissect", DEMO, "-o", tmp_path / "tables")
    for source in (DEMO, tmp_path / "tables"):
        shown("handshakes", source, "--fail-on", "handshake", "--from", "2099-01-01", status=2)


# -------------------------------------------------------------------------------------------------- widths and colours


@pytest.mark.parametrize("columns", [60, 80, 100, 200])
def test_no_line_is_wider_than_the_terminal(columns: int, shown: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    listing = shown("handshakes", FAILED)
    ladder = shown("handshakes", FAILED, "--connection", "127.0.0.1:56800")
    steps = [line for line in ladder.splitlines() if "|" in line]
    for line in [*listing.splitlines(), *(line for line in ladder.splitlines() if line not in steps)]:
        assert len(line) <= max(columns, 65 if "server" in line else 0), line
    assert "…" not in listing + ladder
    text = (
        "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. For details see the broker logfile."
    )
    assert f"403 {text}" in " ".join(ladder.split())


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("command", [["frames", str(DEMO)], ["handshakes", str(FAILED)], ["spec", "basic.publish"]])
def test_colours_are_for_terminals_that_want_them(command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for terminal, quiet in ((True, ""), (True, "1"), (False, "")):
        out = Terminal() if terminal else io.StringIO()
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("COLUMNS", "100")
        monkeypatch.setenv("NO_COLOR", quiet)
        assert main(command) == 0
        found.append(out.getvalue())
    if command[0] == "frames":  # on a terminal, arguments go on in the next line
        found = [text.replace("\n" + " " * 8, " ") for text in found]
    coloured, *plain = found
    assert "\x1b[" in coloured and plain[0] == plain[1] == re.sub(r"\x1b\[[\d;]*m", "", coloured)


@pytest.mark.parametrize(
    ("option", "variables", "is_coloured"),
    [
        ([], {}, False),
        ([], {"FORCE_COLOR": "1"}, True),
        ([], {"CLICOLOR_FORCE": "1"}, True),
        ([], {"CLICOLOR_FORCE": "0"}, False),
        ([], {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        (["--color", "always"], {"NO_COLOR": "1"}, True),
        (["--color", "never"], {"FORCE_COLOR": "1"}, False),
    ],
)
def test_colours_are_as_asked_for_where_there_is_no_terminal(
    option: list[str], variables: dict[str, str], is_coloured: bool, shown: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE"):
        monkeypatch.setenv(name, variables.get(name, ""))
    assert ("\x1b[" in shown("spec", "basic.publish", *option)) is is_coloured


def test_alone_the_program_prints_its_help(shown: Any, capsys: pytest.CaptureFixture[str]) -> None:
    alone = shown()
    with pytest.raises(SystemExit):
        main(["--help"])
    assert alone == capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["handshake", "x.pcap"], "did you mean handshakes?"),
        (["dissct"], "did you mean dissect?"),
        (["frames", "x.pcap", "--conection", "1"], "did you mean --connection"),
        (["handshakes", "x.pcap", "--failon=handshake"], "did you mean --fail-on?"),
        (["report", "--outptu", "x.html"], "did you mean --output?"),
        (["--vresion"], "did you mean --version?"),
    ],
)
def test_near_misses_are_named(words: list[str], meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status = main(words)
    except SystemExit as ended:
        status = int(str(ended.code))
    (line,) = capsys.readouterr().err.splitlines()
    assert (status, meant in line) == (2, True), line


def test_verdicts_in_csv_are_those_in_json(shown: Any) -> None:
    rows = list(csv.DictReader(io.StringIO(shown("handshakes", FAILED, "--format", "csv"))))
    found = json.loads(shown("handshakes", FAILED, "--format", "json"))["connections"]
    assert len(rows) == len(found) > 3
    for row, wanted in zip(rows, found, strict=True):
        assert {name: str(wanted[name] if wanted[name] is not None else "") for name in row} == row
    best = list(csv.DictReader(io.StringIO(shown("handshakes", FAILED, "--format", "csv", "--top", "2"))))
    assert best == rows[:2]


def test_the_worst_lines_come_alone(shown: Any) -> None:
    assert "more, of" in shown("handshakes", FAILED, "--top", "2")
    assert "more, of" not in shown("handshakes", FAILED)


def test_groups_of_hundreds_of_connections_come_first(shown: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    few = shown("handshakes", FAILED)
    monkeypatch.setattr("amqpscope.dissector.cli.verdict_groups.MANY", 2)
    many = shown("handshakes", FAILED)
    assert many.endswith(few) and many.startswith("What is wrong with ")
    groups = many.removesuffix(few)
    codes = {each["code"] for each in json.loads(shown("handshakes", FAILED, "--format", "json"))["connections"]}
    assert sum(f" x {code} " in groups for code in codes) > 3


def test_a_ladder_marks_its_proof_and_keeps_its_sides(shown: Any, tmp_path: Path) -> None:
    path = tmp_path / "one.pcap"
    path.write_bytes(pcap(Tape().play(handshake()).packets))
    lines = shown("handshakes", path, "--connection", "10.0.0.1").splitlines()
    arrows = [line.index("|") for line in lines if "|<" in line or ">|" in line]
    assert len(set(arrows)) == 1


def test_the_zone_is_named_again_when_clocks_go_back(tmp_path: Path, shown: Any) -> None:
    """Half past two comes twice."""
    start = int(datetime(2026, 10, 25, 0, 30, tzinfo=UTC).timestamp()) * 10**9
    for number, ns in enumerate((start, start + 3600 * 10**9)):
        (tmp_path / f"{number}.pcap").write_bytes(
            pcap(Tape(start_ns=ns, port=40_000 + number).play(session()).packets, ns=True)
        )
    printed = shown("frames", tmp_path, "--tz", "Europe/Berlin").splitlines()
    assert [line for line in printed if line.startswith("# 2026")] == ["# 2026-10-25, CEST", "# 2026-10-25, CET"]
