"""One dissection by several processes: the rows are those of one."""

import os
import shutil
import signal
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpscope.dissector.capture.file import CaptureFile
from amqpscope.dissector.capture.sources import find
from amqpscope.dissector.cli.program import main
from amqpscope.dissector.dissector import Dissector, Options
from amqpscope.dissector.packets.segments import SegmentBatch
from amqpscope.dissector.parallel import flows
from amqpscope.dissector.parallel.jobs import JobError, Jobs, Share, Target
from amqpscope.dissector.reading import Reading
from amqpscope.dissector.tables.output import HIDDEN, NOTE, Output, OutputError, Part
from amqpscope.dissector.tables.rows import schemas
from tests.dissector.builders import Packet, ethernet, fragments, pcap
from tests.dissector.moves import by_connection
from tests.dissector.runs import BOTH, FOLDER, Row, dissect, recorded

SEVERAL = (
    "rotated", "seen_twice.pcapng", "two_interfaces.pcapng", "tls_secrets.pcapng", "tls_sessions_13.pcap",
    "stream_super.pcap", "violations.pcap", "lossy_link.pcap", "qpid_multi_session.pcap", "port_reused.pcap",
)  # fmt: skip


def shared(count: int, path: Path, options: Options, folder: Path) -> dict[str, list[Row]]:
    """The rows that so many processes write."""
    output = Output(str(folder), schemas(options.protocol))
    for number in range(count):
        make = partial(Share, number, count)
        sources = find([str(path)])
        first = number == 0
        for work in Reading(
            sources, options, compiled=False, batch_bytes=1 << 14, make=make, about_captures=first
        ).work():
            output.add(work)
    output.finish()
    return written(folder)


def written(folder: Path) -> dict[str, list[Row]]:
    return comparable({name: pq.read_table(folder / name) for name in schemas()})


def comparable(tables: dict[str, pa.Table]) -> dict[str, list[Row]]:
    """Rows, whose order between connections, and without one, is any."""
    found = by_connection(tables)
    return found | {"anomalies": sorted(found["anomalies"], key=str)}


def options_of(path: Path) -> Options:
    keylog = path.with_suffix(".keylog")
    return Options(keylog=str(keylog) if keylog.exists() else None)


def target(folder: Path) -> Target:
    return Target(str(folder), "parquet", "zstd")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", SEVERAL)
def test_rows_are_those_of_one_process(name: str, tmp_path: Path) -> None:
    options = options_of(FOLDER / name)
    found = shared(3, FOLDER / name, options, tmp_path / "out")
    assert found == comparable(dissect(FOLDER / name, options=options))


def test_fragments_are_put_together_before_flows_part(tmp_path: Path) -> None:
    packets, _ = recorded("orders_pika.pcap")
    parts: list[Packet] = []
    for number, packet in enumerate(packets):
        ip = packet.data[14 : 14 + int.from_bytes(packet.data[16:18])]
        parts += [Packet(packet.ts_ns, ethernet(part)) for part in fragments(ip, [2], ident=number)]
    path = tmp_path / "fragments.pcap"
    path.write_bytes(pcap(parts, ns=True))
    found = shared(2, path, Options(), tmp_path / "out")
    assert found == comparable(dissect(path))
    assert len(found["amqp091_frames"]) > 0


def test_processes(tmp_path: Path) -> None:
    """Options reach them, and nothing but tables is left."""
    path, folder = FOLDER / "rotated", tmp_path / "out"
    given = ["dissect", str(path), "-o", str(folder), "--jobs", "2", "--bodies", "full"]
    assert main(given) == 0
    assert written(folder) == comparable(dissect(path, options=Options(bodies="full")))
    assert {each.name for each in folder.iterdir()} == {NOTE, *schemas()}


def test_warnings_are_those_of_one_process(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    packets, link = recorded("pika_confirms.pcap")
    path = tmp_path / "lossy.pcap"
    path.write_bytes(pcap([packet for n, packet in enumerate(packets) if n % 40 != 39], ns=True, link=link))
    printed = []
    for jobs in ("1", "2"):
        assert main(["dissect", str(path), "-o", str(tmp_path / "out"), "--jobs", jobs]) == 0
        printed.append(capsys.readouterr().err)
    assert printed[0] == printed[1]
    assert "missing in" in printed[0]


@pytest.mark.parametrize("jobs", ["0", "-1", "two"])
def test_jobs_are_a_number(jobs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["dissect", str(FOLDER / "demo.pcap"), "-o", str(tmp_path / "out"), "--jobs", jobs])
    assert f"{jobs!r} is not a number of 1 or more" in capsys.readouterr().err


def begun(folder: Path) -> tuple[Jobs, Reading]:
    """One more process, for captures that are there, and the reading of this one."""
    jobs = Jobs(2, target(folder))
    reading = Reading(find([str(FOLDER / "demo.pcap")]), compiled=False, make=jobs.make)
    jobs.begin(reading)
    return jobs, reading


def test_a_process_that_is_killed_is_named(tmp_path: Path) -> None:
    jobs, reading = begun(tmp_path / "out")
    output = Output(str(tmp_path / "out"), schemas())
    with jobs, pytest.raises(JobError, match=r"^a process of `--jobs` ended by signal 9"):
        os.kill(jobs.pids[0], signal.SIGKILL)
        jobs.finish(reading.dissector, output)
    output.abort()


def test_errors_of_a_process_are_raised_here(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    jobs, reading = begun(tmp_path / "out")
    output = Output(str(tmp_path / "other"), schemas())
    with jobs, pytest.raises(OutputError, match="cannot write"):
        jobs.finish(reading.dissector, output)
    output.abort()


def test_a_process_ends_when_nobody_waits_for_it(tmp_path: Path) -> None:
    with begun(tmp_path / "out")[0] as jobs:
        pass
    assert not Path("/proc", str(jobs.pids[0])).exists()


@pytest.mark.parametrize(
    ("below", "parts", "kept"),
    [
        ("", 1, "complete parts are kept"),
        ("", 0, "nothing of this run is kept"),
        (f"{HIDDEN}/job-1", 1, "nothing of this run is kept"),
    ],
)
def test_an_error_of_writing_names_the_folder_that_the_user_knows(
    tmp_path: Path, below: str, parts: int, kept: str
) -> None:
    output = Output(str(tmp_path / "out" / below), schemas())
    for number in range(parts):
        (tmp_path / f"{number}.parquet").touch()
        output.adopt(Part("connections", tmp_path / f"{number}.parquet", 1))
    shutil.rmtree(tmp_path / "out")
    (tmp_path / "out").write_text("in the way")
    with pytest.raises(OutputError) as told:
        output.finish()
    (tmp_path / "out").unlink()
    output.abort()
    assert str(told.value) == f"{tmp_path / 'out'}: cannot write: not a directory; {kept}"


def test_pipes_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert main(["dissect", str(tmp_path / "pipe"), "-o", str(tmp_path / "out"), "--jobs", "2"]) == 2
    assert "a pipe can be read by one process only" in capsys.readouterr().err


def test_captures_that_are_none_make_no_folder(tmp_path: Path) -> None:
    (tmp_path / "text.pcap").write_text("no capture")
    assert main(["dissect", str(tmp_path / "text.pcap"), "-o", str(tmp_path / "out"), "--jobs", "2"]) == 2
    assert not (tmp_path / "out").exists()


def segments_of(name: str, compiled: bool) -> Any:
    dissector = Dissector(compiled=compiled)
    (batch,) = CaptureFile(str(FOLDER / name), name, 0, batch_bytes=1 << 22, compiled=compiled)
    return dissector.decode(batch)


@BOTH
@pytest.mark.parametrize("count", [1, 2, 7])
def test_both_directions_of_a_flow_are_in_one_part(count: int, compiled: bool) -> None:
    decoded = segments_of("port_reused.pcap" if count == 2 else "stream_super.pcap", compiled)
    parts = [flows.joined([rows]) for rows in flows.split(decoded, count, compiled)]
    assert sum(len(part.segments.ts_ns) for part in parts) == len(decoded.segments.ts_ns)
    seen: dict[frozenset[Any], int] = {}
    for number, part in enumerate(parts):
        s = part.segments
        for ends in zip(s.src_hi, s.src_lo, s.sport, s.dst_hi, s.dst_lo, s.dport, strict=True):
            assert seen.setdefault(frozenset([ends[:3], ends[3:]]), number) == number


@BOTH
@pytest.mark.parametrize("varied", ["sport", "dport", "src_lo", "dst_lo", "both"])
def test_flows_are_spread_over_parts(varied: str, compiled: bool) -> None:
    """Of 160 flows, each of 16 parts has some, and none three times its share; also where both ends are one address."""
    columns = {name: np.zeros(160, np.int64) for name in SegmentBatch._fields}
    for end, address in (("src", "127.0.0.1"), ("dst", "127.0.0.2" if varied in ("src_lo", "dst_lo") else "127.0.0.1")):
        columns[f"{end}_hi"][:], columns[f"{end}_lo"][:] = flows.halves(address)
    columns["sport"][:], columns["dport"][:] = 40_000, 5672
    for each in ("src_lo", "dst_lo") if varied == "both" else (varied,):
        columns[each] += np.arange(0, 320, 2)
    segments = SegmentBatch(**columns)
    sizes = [len(flows.part(segments, number, 16, compiled).sport) for number in range(16)]
    assert sum(sizes) == 160
    assert min(sizes) > 0
    assert max(sizes) < 30


@given(st.lists(st.integers(0, 400), min_size=1, max_size=6).map(np.cumsum))
def test_segments_survive_arrow(borders: Any) -> None:
    """However many batches they come in."""
    decoded = segments_of("seen_twice.pcapng", compiled=False)
    whole = flows.split(decoded, 1, compiled=False)[0]
    at = [0, *[int(border) for border in borders if border < whole.num_rows], whole.num_rows]
    found = flows.joined([whole.slice(begin, end - begin) for begin, end in pairwise(at)])
    given_, got = decoded.segments, found.segments
    for name in flows.NUMBERS:
        assert (getattr(got, name) == getattr(given_, name)).all(), name
    assert payloads(found.data, got) == payloads(decoded.data, given_)


def payloads(data: Any, segments: SegmentBatch) -> list[bytes]:
    places = zip(segments.offset.tolist(), segments.caplen.tolist(), strict=True)
    return [data[offset : offset + caplen].tobytes() for offset, caplen in places]
