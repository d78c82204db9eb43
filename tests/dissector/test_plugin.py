"""A made-up protocol joins as a plug-in: one document, one module, and no other file knows of it."""

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from amqpscope import spec
from amqpscope.dissector.cli.program import main
from amqpscope.dissector.dissector import Options
from amqpscope.dissector.protocols import registry
from tests.dissector.builders import pcap
from tests.dissector.plugin.protocol import PROTOCOL
from tests.dissector.plugin.wire import HELLO, PORT, WELCOME, put, session
from tests.dissector.runs import dissect_packets, rows
from tests.dissector.stream.runs import Wire

HERE = Path(__file__).parent / "plugin"
MODES = [False, pytest.param(True, marks=pytest.mark.compiled)]


@pytest.fixture(autouse=True)
def _known() -> Iterator[None]:
    registry.add(PROTOCOL, HERE / "gizmo.toml")
    yield
    registry.remove("gizmo")


def test_the_module_is_small() -> None:
    assert len((HERE / "protocol.py").read_text(encoding="utf-8").splitlines()) < 120


@pytest.mark.parametrize("compiled", MODES)
def test_frames_are_recognised_and_decoded(compiled: bool) -> None:
    tables = dissect_packets(session().packets, compiled=compiled)
    found = rows(tables["gizmo_frames"])
    assert [row["method"] for row in found] == ["gizmo.hello", "gizmo.welcome", *["gizmo.put"] * 5]
    assert [row["frame_no"] for row in found] == list(range(7))
    assert found[0]["client_name"] == "client" and found[0]["from_client"] and not found[1]["from_client"]
    assert [(row["count"], row["part"], row["size"]) for row in found[2:]] == [(n, "wheel", 14) for n in range(5)]
    (connection,) = rows(tables["connections"])
    assert connection["protocol"] == "gizmo" and connection["frames"] == 7
    assert (connection["handshake_outcome"], connection["handshake_stage"]) == ("ok", "ready")
    assert "gizmo_part" in tables["messages"].column_names


def test_what_broke_the_handshake_is_reported_in_its_own_words() -> None:
    (connection,) = rows(dissect_packets(session(0, welcomed=False).packets)["connections"])
    assert connection["handshake_outcome"] == "gizmo-unwelcome"
    assert connection["handshake_cause"] == "the gizmo broker did not welcome the client"


def test_frames_after_a_gap_are_found() -> None:
    wire = Wire(port=PORT)
    wire.send(True, HELLO)
    wire.send(False, WELCOME)
    wire.send(True, put(0, b"first"))
    wire.lose(True, 40)
    for n in range(1, 30):
        wire.send(True, put(n, b"behind"))
    wire.close()
    tables = dissect_packets(wire.packets)
    assert [row["count"] for row in rows(tables["gizmo_frames"])[2:]] == list(range(30))
    assert "tcp-gap" in [row["code"] for row in rows(tables["anomalies"])]


def test_what_is_no_frame_is_an_anomaly_of_its_own() -> None:
    wire = session(2)
    wire.packets = wire.packets[:-2]
    wire.send(True, b"\xffnonsense")
    wire.close()
    (row,) = [r for r in rows(dissect_packets(wire.packets)["anomalies"]) if r["code"] == "gizmo-nonsense"]
    assert (row["detail"], row["severity"]) == ("0xff where 0x67 must be", "error")


def test_it_is_recognised_in_the_middle() -> None:
    wire = Wire(begun=False, port=6767)
    for n in range(3):
        wire.send(True, put(n, b"late"))
    found = dissect_packets(wire.packets)
    assert [row["count"] for row in rows(found["gizmo_frames"])] == [0, 1, 2]
    assert rows(found["connections"])[0]["server_port"] == 6767


def test_a_port_may_be_given_to_it() -> None:
    options = Options(ports={PORT: "gizmo"})
    assert rows(dissect_packets(session().packets, options=options)["connections"])[0]["protocol"] == "gizmo"


@pytest.mark.parametrize("seed", range(20))
def test_any_bytes_may_come(seed: int) -> None:
    chance = random.Random(seed)
    wire = Wire(port=PORT)
    wire.send(True, HELLO)
    for _ in range(30):
        data = bytearray(put(chance.randrange(9), b"part"))
        data[chance.randrange(len(data))] = chance.randrange(256)
        wire.send(True, bytes(data), most=chance.randrange(1, 20))
    wire.close()
    dissect_packets(wire.packets, check=True)


def test_commands_show_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "gizmo.pcap"
    path.write_bytes(pcap(session().packets, ns=True))
    assert main(["frames", str(path)]) == 0
    assert 'gizmo.put count=3 part="wheel"' in capsys.readouterr().out
    assert main(["frames", "--format", "json", str(path)]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["part"] == "wheel"
    assert main(["handshakes", str(path)]) == 0
    assert "ok" in capsys.readouterr().out
    assert main(["spec", "gizmo.put"]) == 0
    assert "How many." in capsys.readouterr().out
    assert main(["dissect", str(path), "-o", str(tmp_path / "tables")]) == 0
    assert pq.read_table(tmp_path / "tables/gizmo_frames").num_rows == 7


def test_an_installed_plug_in_is_found(tmp_path: Path) -> None:
    (tmp_path / "gizmo").mkdir()
    for name in ("protocol.py", "statistics.py", "gizmo.toml", "__init__.py"):
        shutil.copy(HERE / name, tmp_path / "gizmo")
    info = tmp_path / "gizmo-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: gizmo\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[amqpscope.protocols]\ngizmo = gizmo.protocol:PROTOCOL\n")
    (tmp_path / "gizmo.pcap").write_bytes(pcap(session().packets, ns=True))
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "amqpscope.dissector.cli.program", "frames", str(tmp_path / "gizmo.pcap")]
    ran = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path}, check=True)
    assert ran.stdout.count("gizmo.put") == 5 and ran.stderr == ""


def test_a_name_is_taken_once() -> None:
    with pytest.raises(ValueError, match="gizmo: a protocol of this name is known"):
        registry.add(PROTOCOL, HERE / "gizmo.toml")


def test_it_is_gone_when_it_is_removed() -> None:
    registry.remove("gizmo")
    assert "gizmo_frames" not in spec.tables() and "gizmo" not in registry.names()
    registry.add(PROTOCOL, HERE / "gizmo.toml")
