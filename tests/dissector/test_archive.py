"""An archive in parts: captures read apart, their segments merged where they go; the rows are those of one pass."""

import os
import signal
import time
from multiprocessing import get_context
from pathlib import Path
from threading import Timer

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from amqpscope.dissector.capture.input import CaptureError
from amqpscope.dissector.capture.sources import find
from amqpscope.dissector.dissector import Options
from amqpscope.dissector.parallel import blocks
from amqpscope.dissector.parallel.sharing import share
from amqpscope.dissector.reading import Reading
from tests.dissector.builders import Packet, ethernet, fragments, pcap
from tests.dissector.parts import at_once, in_parts, options_of
from tests.dissector.runs import FOLDER, recorded
from tests.dissector.wire import T0
from tests.thorough import examples

SECOND = 1_000_000_000


SEVERAL = (
    "rotated", "seen_twice.pcapng", "two_interfaces.pcapng", "tls_secrets.pcapng", "tls_sessions_13.pcap",
    "tls_sessions.pcap", "stream_super.pcap", "violations.pcap", "lossy_link.pcap", "qpid_multi_session.pcap",
    "port_reused.pcap", "zero_window.pcap",
)  # fmt: skip


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", SEVERAL)
def test_rows_are_those_of_one_pass(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BATCH", 1 << 12)
    monkeypatch.setattr(blocks, "ROOM", 1 << 13)
    monkeypatch.setattr(blocks, "ENOUGH", 1 << 12)
    options = options_of(FOLDER / name)
    assert in_parts([str(FOLDER / name)], options, 3) == at_once([str(FOLDER / name)], options)


def test_all_recordings_are_one_archive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their times overlap in many ways, and some have the same connections."""
    monkeypatch.setattr(blocks, "ENOUGH", 1 << 15)
    paths = [str(FOLDER / name) for name in SEVERAL[:5]]
    assert in_parts(paths, Options(), 2) == at_once(paths, Options())


SESSION, _ = recorded("orders_pika.pcap")
SPANS = st.lists(st.tuples(st.integers(0, len(SESSION) - 2), st.integers(1, 60)), min_size=1, max_size=6)


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(spans=SPANS, parts=st.integers(1, 4), are_fragments=st.booleans(), room=st.sampled_from([1, 3000, 1 << 20]))
@example(spans=[(0, 1), (1, 1)], parts=1, are_fragments=True, room=1)
def test_any_overlap(spans: list[tuple[int, int]], parts: int, are_fragments: bool, room: int, tmp_path: Path) -> None:
    """Also where the fragments of a packet lie in several files."""
    packets = SESSION
    if are_fragments:
        packets = []
        for number, packet in enumerate(SESSION):
            ip = packet.data[14 : 14 + int.from_bytes(packet.data[16:18])]
            parts_of = fragments(ip, [2], ident=number)
            packets += [Packet(packet.ts_ns + half, ethernet(part)) for half, part in enumerate(parts_of)]
    for old in tmp_path.iterdir():
        old.unlink()
    for number, (begin, count) in enumerate(spans):
        (tmp_path / f"f{number}.pcap").write_bytes(pcap(packets[begin : begin + count], ns=True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BATCH", 2000)
        patch.setattr(blocks, "ROOM", room)
        patch.setattr(blocks, "ENOUGH", room)
        found = in_parts([str(tmp_path)], Options(), parts)
    assert found == at_once([str(tmp_path)], Options())


def test_bad_files_are_named_and_stop_nothing(tmp_path: Path) -> None:
    packets = [Packet(T0 + n * SECOND, packet.data) for n, packet in enumerate(SESSION)]
    (tmp_path / "good.pcap").write_bytes(pcap(packets, ns=True))
    (tmp_path / "cut.pcap").write_bytes(pcap(packets, ns=True)[:-5])
    (tmp_path / "text.pcap").write_text("hello")
    (tmp_path / "empty.pcap").write_bytes(b"")
    found = in_parts([str(tmp_path)], Options(), 2)
    assert found == at_once([str(tmp_path)], Options())
    errors = {row["capture"]: row["error"] for row in found["captures"]}
    assert errors["good.pcap"] is errors["cut.pcap"] is None
    assert "not a pcap" in errors["text.pcap"]
    with pytest.raises(CaptureError, match="text"):
        in_parts([str(tmp_path / "text.pcap")], Options(), 2)


def test_a_file_that_vanishes_is_named_and_stops_nothing(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"trace-{number}.pcap").write_bytes(pcap(SESSION[number * 20 : number * 20 + 20], ns=True))
    sources = find([str(tmp_path)], [])
    (tmp_path / "trace-1.pcap").unlink()
    reading = Reading(sources, compiled=False)
    rows = [row for table, batch in reading if table == "captures" for row in batch.to_pylist()]
    assert {row["capture"]: row["error"] for row in rows} == {
        "trace-0.pcap": None, "trace-1.pcap": "no such file", "trace-2.pcap": None
    }  # fmt: skip
    assert [each.name for each in reading.skipped] == ["trace-1.pcap"]


def test_pieces_are_made_once_by_whoever_comes_first(tmp_path: Path) -> None:
    """The first process leaves one result to another one, which ends before it is done."""
    made: list[str] = []

    def make(path: Path) -> None:
        made.append(path.name.split(".")[1])
        path.write_text("made")

    results = dict.fromkeys("abc", make)
    ours, theirs = get_context("fork").Pipe()
    if not (pid := os.fork()):
        share(tmp_path, {"b": lambda path: (theirs.send("begun"), time.sleep(60))})
    assert ours.recv() == "begun"
    timer = Timer(0.2, os.kill, (pid, signal.SIGKILL))
    timer.start()
    assert [path.read_text() for path in share(tmp_path, results, first=1)] == ["made"] * 3
    os.waitpid(pid, 0)
    assert made == ["c", "a", "b"]
    share(tmp_path, results)
    assert len(made) == 3


def test_what_is_being_made_has_no_name_yet(tmp_path: Path) -> None:
    def fail(path: Path) -> None:
        path.write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        share(tmp_path, {"a": fail})
    assert share(tmp_path, {"a": lambda path: path.mkdir()}) == [tmp_path / "a"]
    assert (tmp_path / "a").is_dir()
