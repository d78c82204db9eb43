"""Frames of the recordings against tshark, where that is installed and right.

tshark 4.0 does not show the standard protocol header of 0-9-1, does not know connection.update-secret, gives up on
truncated packets, and goes its own way after broken frames: these are left out.
"""

import json
import subprocess
from pathlib import Path
from typing import Any

from amqpscope import spec
from amqpscope.dissector.dissector import Options
from tests.dissector.runs import CAPTURES, FOLDER, SETS, dissect, rows
from tests.oracles import needs

LEFT_OUT = {"snapped", "update_secret", "tls_secrets"}  # the last because its secrets are lost in what is merged
NUMBERS = {"method": 1, "header": 2, "body": 3, "heartbeat": 8}
FIELDS = ("frame.number", "frame.time_epoch", "amqp.type", "amqp.channel", "amqp.method.class", "amqp.method.method")
PORTS = (25999, 25998)

pytestmark = needs("tshark", "mergecap")


def usable(capture: Path) -> bool:
    golden = json.loads((FOLDER / f"{capture.stem}.golden.json").read_text(encoding="utf-8"))
    return "anomalies" not in golden and "handshakes" not in golden and capture.stem not in LEFT_OUT


def merged(folder: Path) -> Path:
    """All recordings one after the other: starting tshark takes longer than what it is to do."""
    parts = [part for c in CAPTURES if usable(c) for part in (sorted(c.glob("*.pcap")) if c in SETS else [c])]
    whole = folder / "all.pcapng"
    subprocess.run(["mergecap", "-a", "-w", str(whole), *map(str, parts)], check=True, capture_output=True)
    return whole


def keys(folder: Path) -> Path:
    """All key logs in one."""
    whole = folder / "all.keylog"
    whole.write_text("".join(path.read_text() for path in sorted(FOLDER.glob("*.keylog"))))
    return whole


def tshark(capture: Path, keylog: Path) -> dict[int, tuple[Any, ...]]:
    """By packet: its time, and the types, channels, classes and methods of the frames that end in it."""
    command = ["tshark", "-r", str(capture), "-Y", "amqp.type", "-T", "fields"]
    command += ["-o", "tcp.reassemble_out_of_order:TRUE", "-o", f"tls.keylog_file:{keylog}"]
    command += [word for port in PORTS for word in ("-d", f"tcp.port=={port},amqp")]
    command += [word for name in FIELDS for word in ("-e", name)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = {}
    for line in output.splitlines():
        number, time, *lists = line.split("\t")
        seconds, _, fraction = time.partition(".")
        ts_ns = int(seconds) * 10**9 + int(fraction.ljust(9, "0")[:9])
        found[int(number)] = (ts_ns, *[[int(n) for n in text.split(",") if n] for text in lists])
    return found


def test_tshark_sees_the_same_frames(tmp_path: Path) -> None:
    capture = merged(tmp_path)
    ids = {m.full_name: (m.class_id, m.id) for m in spec.load("amqp-0-9-1").methods}
    ours: dict[int, list[Any]] = {}
    keylog = keys(tmp_path)
    for row in rows(dissect(capture, options=Options(keylog=str(keylog)))["amqp091_frames"]):
        if row["frame_type"] != "protocol-header":
            ours.setdefault(row["packet"], []).append(row)
    theirs = tshark(capture, keylog)
    assert len(theirs) > 2000
    assert ours.keys() == theirs.keys()
    for packet, found in ours.items():
        methods = [ids[row["method"]] for row in found if row["method"]]
        assert theirs[packet] == (
            found[0]["ts_ns"],
            [NUMBERS[row["frame_type"]] for row in found],
            [row["channel"] for row in found],
            [class_id for class_id, _ in methods],
            [method_id for _, method_id in methods],
        ), packet


def test_tshark_sees_the_same_windows() -> None:
    """Where intervals of windows begin; tshark tells a window of zero with every packet that announces it."""
    capture = FOLDER / "zero_window.pcap"
    fields = ("tcp.analysis.zero_window", "tcp.analysis.window_full")
    command = ["tshark", "-r", str(capture), "-T", "fields", "-e", "frame.number"]
    command += [word for name in fields for word in ("-e", name)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    reported = [[int(number), *lists] for number, *lists in (line.split("\t") for line in output.splitlines())]
    ours = rows(dissect(capture)["tcp_windows"])
    zero, full = ([row for row in ours if row["kind"] == kind] for kind in ("zero", "full"))
    assert {row["start_packet"] for row in full} == {number for number, _, is_full in reported if is_full}
    spans = [range(row["start_packet"], row["end_packet"]) for row in zero]
    theirs = [number for number, is_zero, _ in reported if is_zero]
    assert theirs and {span[0] for span in spans} <= set(theirs)
    assert all(any(number in span for span in spans) for number in theirs)
