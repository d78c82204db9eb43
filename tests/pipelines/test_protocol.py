"""A protocol brings its statistics: the made-up one, and what our own are wired with."""

import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import amqpscope
from amqpscope import spec
from amqpscope.dissector.protocols import registry
from amqpscope.pipelines import statistics
from amqpscope.pipelines.model import protocols, walk
from amqpscope.pipelines.run.engine import in_order
from tests.dissector.builders import pcap
from tests.dissector.plugin.members import Puts
from tests.dissector.plugin.protocol import PROTOCOL
from tests.dissector.plugin.wire import BYE, HELLO, PORT, STORED, TOOK, WELCOME, put
from tests.dissector.runs import Row, dissect_packets, plain_rows
from tests.dissector.stream.runs import Wire
from tests.pipelines.walks.properties import over

HERE = Path(__file__).parents[1] / "dissector" / "plugin"
ROOT = Path(__file__).parents[2]
MODES = [False, pytest.param(True, marks=pytest.mark.compiled)]


@pytest.fixture
def _gizmo() -> Iterator[None]:
    registry.add(PROTOCOL, HERE / "gizmo.toml")
    yield
    registry.remove("gizmo")


def connection(seed: int) -> Wire:
    """Puts and answers; some of these are lost, one side may say bye, and the capture may end before the connection."""
    chance, wire, waiting = random.Random(seed), Wire(port=PORT), []
    wire.send(True, HELLO)
    wire.send(False, WELCOME)
    for n in range(30):
        does = chance.choice(["put", "put", "answer", "answer", "lose", "bye"] if n > 20 else ["put", "answer"])
        if does == "put":
            wire.send(True, put(n, b"wheel"))
            waiting += [TOOK, STORED]
        elif does == "answer" and waiting:
            wire.send(False, waiting.pop(0))
        elif does == "lose" and len(waiting) > 1:
            wire.lose(False, sum(len(waiting.pop(0)) for _ in range(chance.choice([1, 2]))))
        elif does == "bye" and chance.random() < 0.3:
            wire.send(chance.random() < 0.5, BYE)
    if chance.random() < 0.5:
        wire.close()
    return wire


def reference(tables: dict[str, pa.Table]) -> Iterator[Row]:
    """What `gizmo_puts` must hold, by loops over rows of one connection."""
    frames = sorted(plain_rows(tables["gizmo_frames"]), key=lambda row: row["frame_no"])
    (closed,) = tables["connections"]["closed_ts_ns"].to_pylist()
    last = tables["connections"]["last_ts_ns"][0].as_py()
    lost = [r for r in plain_rows(tables["anomalies"]) if r["code"] == "tcp-gap" and not r["from_client"]]
    byes = [row for row in frames if row["method"] == "gizmo.bye"]
    said = max((row["frame_no"] for row in frames if not row["from_client"]), default=-1)
    puts, took, done = [], False, {}
    for row in frames:
        if row["method"] == "gizmo.put":
            puts.append(row)
        elif row["method"] in ("gizmo.took", "gizmo.stored"):
            while puts and any(puts[0]["frame_no"] < gap["frame_no"] <= row["frame_no"] for gap in lost):
                puts.pop(0)
                took = False
            if puts and row["method"] == "gizmo.took":
                took = True
            elif puts and took:
                done[puts.pop(0)["frame_no"]], took = row, False
    for row in (each for each in frames if each["method"] == "gizmo.put"):
        number, answer = row["frame_no"], done.get(row["frame_no"])
        made = {"count": row["count"], "put_frame_no": number, "stored_frame_no": answer and answer["frame_no"]}
        made["latency_ns"] = answer and answer["ts_ns"] - row["ts_ns"]
        before = [bye for bye in byes if bye["frame_no"] < number and not bye["from_client"]]
        bye = next((bye for bye in byes if bye["frame_no"] > number), None)
        if bye and bye["from_client"] and said < bye["frame_no"] and closed is None:
            bye = None  # the server answers in order: what it did not say yet, the capture lacks
        gap = next((gap for gap in lost if gap["frame_no"] > number), None)
        heard = [f["frame_no"] for f in frames if gap and f["frame_no"] < gap["frame_no"] and not f["from_client"]]
        if answer:
            why = (None, None)
        elif before:
            why = ("discarded", before[0]["ts_ns"])
        elif gap and (bye is None or heard[-1] < bye["frame_no"]):
            why = ("gap", gap["ts_ns"])
        elif bye:
            why = ("connection-close", bye["ts_ns"])
        else:
            why = ("connection-close", closed) if closed is not None else ("capture-end", last)
        yield {"connection_id": row["connection_id"], **made, "ended_by": why[0], "end_ts_ns": why[1]}


@pytest.mark.parametrize("compiled", MODES)
@pytest.mark.usefixtures("_gizmo")
def test_the_statistic_of_a_plug_in_is_that_of_plain_loops(compiled: bool) -> None:
    seen = set()
    for seed in range(8 if compiled else 20):
        tables = dissect_packets(connection(seed).packets)
        expected = sorted(reference(tables), key=lambda row: row["put_frame_no"])
        for size, moved in ((1, True), (7, False), (1 << 17, False)):
            found = over(lambda: Puts(compiled), in_order(tables, [Puts()]), size, moved).table("gizmo_puts")
            assert sorted(plain_rows(found), key=lambda row: row["put_frame_no"]) == expected, (seed, size)
        seen |= {row["ended_by"] for row in expected}
    assert compiled or seen == {None, "gap", "connection-close", "capture-end", "discarded"}


@pytest.mark.usefixtures("_gizmo")
def test_analyze_writes_it_beside_all_others(tmp_path: Path) -> None:
    wire = connection(1)
    (tmp_path / "gizmo.pcap").write_bytes(pcap(wire.packets, ns=True))
    found = amqpscope.analyze(tmp_path / "gizmo.pcap")
    expected = sorted(reference(dissect_packets(wire.packets)), key=lambda row: row["put_frame_no"])
    declared = [column.name for column in spec.tables()["gizmo_puts"].columns]
    puts = plain_rows(found["gizmo_puts"].select(declared))
    assert sorted(puts, key=lambda row: row["put_frame_no"]) == expected
    assert {*found["gizmo_puts"]["client_ip"].to_pylist()} == {"10.0.0.1"}
    assert found["endpoints"]["protocol"].to_pylist() == ["gizmo"]


def test_it_takes_less_than_sixty_lines() -> None:
    texts = [(HERE / name).read_text(encoding="utf-8") for name in ("statistics.py", "members.py")]
    assert sum(len(text.splitlines()) for text in texts) < 60


def test_a_statistic_is_known_to_its_folder_and_to_its_table_alone() -> None:
    """Wiring a new one touches its module, one line among the members of its protocol, and `tables.toml`."""
    texts = {path: path.read_text(encoding="utf-8") for path in (ROOT / "pipelines").rglob("*.py")}
    for protocol, brought in protocols.known().items():
        folder = ROOT / "pipelines" / brought.walks.split(".")[2]
        for member in protocols.loaded(brought.walks).over_connections:
            module = folder.parent / Path(*member.walk.__module__.split(".")[2:]).with_suffix(".py")
            assert module.is_relative_to(folder), (protocol, member.walk)
            package = re.escape(f"from {member.walk.__module__} import ")
            users = [path for path, text in texts.items() if re.search(rf"{package}.*\b{member.walk.__name__}\b", text)]
            lines = texts[folder / "members.py"].count(f"({member.walk.__name__}")
            assert (users, lines) == ([folder / "members.py"], 1), member.walk
            assert {*member.walk(False).tables} <= {*spec.tables()}
    assert "gizmo_puts" not in statistics.tables()


INSTALLED = """
import sys
from pathlib import Path
from amqpscope.dissector.protocols import registry
from tests.dissector.plugin.protocol import PROTOCOL

registry.add(PROTOCOL, Path(sys.argv[1]))  # as an entry point does: before anything of pipelines is imported
import amqpscope

print(amqpscope.analyze(sys.argv[2])["gizmo_puts"].num_rows)
"""


@pytest.mark.usefixtures("_gizmo")
def test_a_protocol_may_be_there_before_statistics_are(tmp_path: Path) -> None:
    wire = connection(1)
    path = tmp_path / "gizmo.pcap"
    path.write_bytes(pcap(wire.packets))
    command = [sys.executable, "-c", INSTALLED, str(HERE / "gizmo.toml"), str(path)]
    made = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert int(made.stdout) == amqpscope.analyze(path)["gizmo_puts"].num_rows > 0


def test_a_protocol_that_was_removed_leaves_nothing() -> None:
    before = walk.schema("messages")
    registry.add(PROTOCOL, HERE / "gizmo.toml")
    assert walk.schema("messages") != before
    registry.remove("gizmo")
    assert walk.schema("messages") == before
