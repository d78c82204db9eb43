"""Recordings of Qpid's broker and clients: every operation, counted by tshark as well, and no anomaly but those meant.

Some of them come with the tests; the others are read where they are there.
"""

import json
import os
import subprocess
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from amqpscope import handshakes
from amqpscope.dissector.cli.program import main
from tests.dissector.amqp010.wire import PROTOCOL
from tests.dissector.runs import FOLDER, Row, dissect, rows
from tests.oracles import needs

SHARED = Path(os.environ.get("AMQPSCOPE_CAPTURES", Path(__file__).parents[4] / "shared/captures")) / "qpid-0-10"
CAPTURES = {path.stem.removeprefix("qpid_"): path for path in [*SHARED.glob("*.pcap"), *FOLDER.glob("qpid_*.pcap")]}
MALFORMED = {
    "frame-too-short": "a frame of 6 bytes is announced",
    "frame-version-unknown": "version 1 of the frame format",
    "frame-flags-unknown": "flags 0x1f",
    "frame-type-unknown": "frame type 9",
    "control-unknown": "class id 99, control id 99",
    "frame-track-wrong": "track 256",
    "frame-reserved-set": "0xdeadbeef instead of zeros",
    "method-unknown": "class id 4, method id 99",
    "content-unexpected": "frame type 2, but no content is expected",
    "field-overrun": "in queue.declare",
}
"""What is wrong with each frame that was malformed on purpose, and how it is said."""
ANOMALIES = {
    # five of the heads say where the next frame begins; the first connection sends a control without flags
    "framing_errors": Counter([*MALFORMED, "field-overrun", *["bytes-skipped"] * 6]),
    "versions": Counter({"version-mismatch": 6, "stream-unrecognised": 1}),  # the seventh is HTTP
    "large": Counter({"clock-step": 1}),
}
IDS = {m.full_name: (m.class_name, m.id) for m in PROTOCOL.methods}
CLASSES = {c.id: c.name for c in PROTOCOL.classes}
EXCEPTION = "execution.exception"
Counts = Counter[tuple[str, int]]
MISREAD: dict[str, Counts] = {
    "framing_errors": Counter({("connection", 10): 4, ("message", 99): 1}),  # heads that no receiver takes; no command
    "python_peers": Counter({("connection", 0): 1}),  # the rest of a command that is cut
}
"""What tshark takes for operations and is none."""

by_capture = pytest.mark.parametrize("name", sorted(CAPTURES))


@cache
def tables(name: str) -> dict[str, pa.Table]:
    return dissect(CAPTURES[name], check=True)


@cache
def frames(name: str) -> list[Row]:
    return rows(tables(name)["amqp010_frames"])


@by_capture
def test_there_is_no_anomaly_but_those_meant(name: str) -> None:
    found = Counter(row["code"] for row in rows(tables(name)["anomalies"]))
    assert found == ANOMALIES.get(name, Counter())


@pytest.mark.sampled(4)
@by_capture
@needs("tshark")
def test_as_many_of_each_operation_as_tshark_sees(name: str) -> None:
    """It counts what an execution.exception names as one more of that, and calls all commands of class tx select."""
    ours = Counter(IDS[row["method"]] for row in frames(name) if row["method"])
    for row in frames(name):
        if row["method"] == EXCEPTION and row["class_code"]:
            ours[CLASSES[row["class_code"]], row["command_code"]] += 1
    theirs = by_tshark(CAPTURES[name])
    assert without_tx(ours + MISREAD.get(name, Counter())) == without_tx(theirs)


def by_tshark(path: Path) -> Counts:
    fields = [part for name in CLASSES.values() for part in ("-e", f"amqp.{name}.method")]
    command = ["tshark", "-r", str(path), "-d", "tcp.port==5672,amqp", "-Y", "amqp", "-T", "fields", *fields]
    out = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    cells = [zip(CLASSES.values(), line.split("\t"), strict=True) for line in out.splitlines()]
    return Counter((name, int(each, 0)) for line in cells for name, cell in line for each in cell.split(",") if each)


def without_tx(counts: Counts) -> Counter[Any]:
    """Commands of class tx by their class alone."""
    found: Counter[Any] = Counter()
    for (name, number), count in counts.items():
        found[name if name == "tx" else (name, number)] += count
    return found


@by_capture
def test_what_a_side_completes_the_other_has_sent(name: str) -> None:
    """The last id that session.completed names has a row before it, in the same session."""
    sent: dict[tuple[int, str, bool], set[int]] = {}
    completed = 0
    for row in frames(name):
        if row["command_id"] is not None:
            sent.setdefault((row["connection_id"], row["session"], row["from_client"]), set()).add(row["command_id"])
        if row["method"] == "session.completed" and row["commands"] not in (None, "[]"):
            ids = sent[row["connection_id"], row["session"], not row["from_client"]]
            assert json.loads(row["commands"])[-1][1] in {number % 2**32 for number in ids}
            completed += 1
    assert completed > 0 or name in ("bad_password", "plain", "versions")


def test_peers_that_do_all_that_the_protocol_has() -> None:
    """Cut commands and headers, ids that wrap, and controls inside of assemblies."""
    found = frames("python_peers")
    wrapped = [row["command_id"] for row in found if row["destination"] == "wrap"]
    assert wrapped == [2**32 - 2, 2**32 - 1, 2**32, 2**32 + 1]
    (declared,) = (row for row in found if row["queue"] == "q" * 30)
    assert (declared["command_id"], declared["session"], declared["size"]) == (0, "split", 31)
    outcomes = [row["handshake_outcome"] for row in rows(tables("python_peers")["connections"])]
    assert Counter(outcomes)["redirected"] == 1


def test_each_malformed_frame_is_an_anomaly_of_its_own_kind() -> None:
    found = rows(tables("framing_errors")["anomalies"])
    assert MALFORMED.items() <= {(row["code"], row["detail"]) for row in found}
    where = [row["connection_id"] for row in found if (row["code"], row["detail"]) in MALFORMED.items()]
    assert len(set(where)) == len(where) == 10


def test_a_malformed_frame_does_not_hide_how_the_connection_ended() -> None:
    """Qpid's broker ends TCP without a word after each, but after one that it can answer."""
    found = Counter(row["ending"] for row in handshakes(str(CAPTURES["framing_errors"])))
    assert found == {"server-gone": 9, "frame-error": 1, None: 1}


@pytest.mark.parametrize(
    ("name", "outcome", "user"),
    [("bad_password", "auth-failed", "guest"), ("plain", "ok", "guest")],
)
def test_logins(name: str, outcome: str, user: str) -> None:
    found = {(row["handshake_outcome"], row["user"]) for row in rows(tables(name)["connections"])}
    assert found == {(outcome, user)}
    (login,) = (row for row in frames(name) if row["method"] == "connection.start-ok")
    assert login["response"] == "<redacted>"


def test_lines_of_text_name_operations_and_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["frames", str(CAPTURES["topology"])]) == 0
    _, _, *lines = capsys.readouterr().out.splitlines()  # the day and the sides
    assert lines[0].endswith("- protocol-header")
    assert any(" 1.1 queue.declare command_id=" in line and 'queue="q1"' in line for line in lines)
    assert main(["frames", str(CAPTURES["props"])]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(" 1.1 header 429 bytes" in line for line in lines)
    assert any(" 1.1 command 18 bytes" in line for line in lines)
    assert any("reply_code=200 (normal)" in line for line in lines)
    assert any(" session.detached " in line and line.endswith(" code=0 (normal)") for line in lines)


def test_frames_are_listed_in_the_order_of_packets(capsys: pytest.CaptureFixture[str]) -> None:
    """Headers wait for the frame that tells which 0-10 is spoken, and come with it, not before all else."""
    assert main(["frames", str(CAPTURES["exceptions"])]) == 0
    lines = capsys.readouterr().out.splitlines()
    packets = [int(line.split()[0]) for line in lines if not line.startswith("#")]
    assert packets == sorted(packets) and len(set(packets)) > 100
