"""Statistics of a directory that is followed: those of one pass, whatever is killed, and where files end.

So they are on Spark, and so are the tables of the dissection there.
"""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from amqpscope.dissector.capture.sources import find
from amqpscope.dissector.dissector import Options
from amqpscope.dissector.following.parts import Cutter
from amqpscope.dissector.reading import Reading
from amqpscope.pipelines.run import incremental, local
from amqpscope.pipelines.run.following import Analysis, Shown, schemas
from amqpscope.pipelines.statistics import HOUR_NS
from tests.dissector.builders import pcap
from tests.dissector.follows import follow, is_evicted_once, killed, paused, rotate, written
from tests.dissector.moves import by_connection
from tests.dissector.runs import FOLDER, dissect, recorded
from tests.thorough import examples

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MAKE = partial(Analysis, Options(), HOUR_NS, most=0)
RECORDINGS = sorted(path.name for path in FOLDER.glob("*.pcap") if path.stat().st_size < 1 << 16)


def rows(folder: Path) -> dict[str, Counter[str]]:
    """The rows of all statistics in a folder, in any order."""
    return {
        name: Counter(map(repr, pq.read_table(folder / name, schema=declared).to_pylist()))
        for name, declared in schemas().items()
        if name != "captures"
    }


def expected(folder: Path, out: Path) -> dict[str, Counter[str]]:
    """The rows of one pass."""
    local.analyze_captures(Reading(find([str(folder)]), compiled=False), out, {}, relations=())
    return rows(out)


def rotated(name: str, borders: list[int], slower: int) -> list[tuple[int, str, bytes]]:
    """The files of a recording, as if its capture had rotated and taken longer (`rotate`)."""
    packets, link = recorded(name)
    begin = packets[0].ts_ns
    packets = [replace(packet, ts_ns=begin + slower * (packet.ts_ns - begin)) for packet in packets]
    return rotate(packets, borders, "trace", link)


@settings(
    deadline=None,
    max_examples=examples(6),
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
@given(
    name=st.sampled_from(RECORDINGS),
    borders=st.lists(st.integers(1, 1 << 16), min_size=1, max_size=4),
    kills=st.lists(st.integers(0, 120), max_size=3),
    slower=st.sampled_from([1, 1000]),
)
@example(
    name="broken_contents.pcap", borders=[1690, 52200], kills=[], slower=1
)  # events of different batches wait together
@example(
    name="begun_before.pcap", borders=[65536], kills=[], slower=1
)  # publishes are known later than their deliveries
@example(name="begun_before.pcap", borders=[65536], kills=[], slower=1000)  # more than a minute later
@example(
    name="stream_super.pcap", borders=[462, 485, 34247], kills=[], slower=1000
)  # a request that TCP did not acknowledge while others went on
def test_statistics_are_those_of_one_pass_whatever_is_killed(
    name: str, borders: list[int], kills: list[int], slower: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder, out = tmp_path_factory.mktemp("captures"), tmp_path_factory.mktemp("statistics")
    for _, file, content in rotated(name, borders, slower):
        (folder / file).write_bytes(content)
        with killed(kills.pop() if kills else None):
            follow(folder, out / "followed", make=MAKE, tables=schemas())
    follow(folder, out / "followed", until_idle=0, make=MAKE, tables=schemas())
    assert rows(out / "followed") == expected(folder, out / "at once")


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", [
    "lossy_link.pcap", "blocked.pcap", "rpc_calls.pcap", "qpid_multi_session.pcap", "stream_super.pcap",
    "failed_handshakes.pcap", "begun_before.pcap", "transactions.pcap", "blocked_untold.pcap",
])  # fmt: skip
def test_what_is_shown_after_a_batch_is_all_until_then(name: str, tmp_path: Path) -> None:
    """As of a capture that ends with the files that were taken."""
    folder, so_far, out = tmp_path / "captures", tmp_path / "so far", tmp_path / "followed"
    folder.mkdir()
    so_far.mkdir()
    packets = len(recorded(name)[0])
    make = partial(Shown, Options(), HOUR_NS, most=0)
    before: Path | None = None
    for number, (_, file, content) in enumerate(rotated(name, [packets // 5, packets // 3, packets // 2], 1)):
        (folder / file).write_bytes(content)
        taken = follow(folder, out, make=make, tables=schemas()).progress.files
        if before is not None:
            shutil.copy(before, so_far)
        assert taken == number
        assert taken == 0 or rows(out) == expected(so_far, tmp_path / f"at once {number}")
        before = folder / file
    follow(folder, out, until_idle=0, make=make, tables=schemas())
    assert rows(out) == expected(folder, tmp_path / "at once")


@pytest.mark.parametrize(("window_ns", "most"), [(90 * 10**9, incremental.MOST_WAITING), (HOUR_NS, 1)])
def test_deliveries_wait_for_bytes_that_are_held_back_within_bounds(
    window_ns: int, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No longer than the window, nor where too many rows wait."""
    monkeypatch.setattr(incremental, "MOST_WAITING", most)
    (tmp_path / "captures").mkdir()
    make = partial(Analysis, Options(), window_ns)
    for _, file, content in rotated("begun_before.pcap", [65536], 1000):
        (tmp_path / "captures" / file).write_bytes(content)
        follow(tmp_path / "captures", tmp_path / "out", make=make, tables=schemas())
    follow(tmp_path / "captures", tmp_path / "out", until_idle=0, make=make, tables=schemas())
    found = pq.read_table(tmp_path / "out" / "transits", columns=["matched_by"])["matched_by"].to_pylist()
    assert Counter(found) == {"ambiguous": 6, "content": 1}


def test_what_is_open_when_a_connection_is_evicted_is_censored_by_that(tmp_path: Path) -> None:
    """Three days pass between two files, and with them the last confirm; what comes then has unknown numbers."""
    (tmp_path / "captures").mkdir()
    packets, link = recorded("pika_confirms.pcap")
    late = [replace(packet, ts_ns=packet.ts_ns + 72 * HOUR_NS) for packet in packets[40:]]
    for number, some in enumerate((packets[:40], late)):
        (tmp_path / "captures" / f"trace-{number}.pcap").write_bytes(pcap(some, ns=True, link=link))
    follow(tmp_path / "captures", tmp_path / "out", until_idle=0, make=MAKE, tables=schemas())
    found = pq.read_table(tmp_path / "out" / "confirms", columns=["publish_seq", "outcome", "ended_by"]).to_pylist()
    open_ = [row for row in found if row["outcome"] == "none"]
    assert [row["ended_by"] for row in open_ if row["publish_seq"] is not None] == ["evicted"]
    assert {row["ended_by"] for row in open_ if row["publish_seq"] is None} == {"gap"}


def test_a_request_whose_connection_goes_on_is_given_up_after_an_hour(tmp_path: Path) -> None:
    """Two hours pass behind it; the connection ends after the pass that gives it up."""
    (tmp_path / "captures").mkdir()
    packets, link = recorded("rpc_calls.pcap")
    (call,) = [row for row in dissect(FOLDER / "rpc_calls.pcap")["messages"].to_pylist()
               if row["correlation_id"] == "call-6" and row["kind"] == "publish"]  # fmt: skip
    border = call["packet"]
    late = [replace(packet, ts_ns=packet.ts_ns + 2 * HOUR_NS) for packet in packets[border:]]
    for number, some in enumerate((packets[:border], late[:2], late[2:])):
        (tmp_path / "captures" / f"trace-{number}.pcap").write_bytes(pcap(some, ns=True, link=link))
        follow(tmp_path / "captures", tmp_path / "out", make=MAKE, tables=schemas())
    follow(tmp_path / "captures", tmp_path / "out", until_idle=0, make=MAKE, tables=schemas())
    found = pq.read_table(tmp_path / "out" / "calls").to_pylist()
    (lost,) = [row for row in found if row["correlation_id"] == "call-6"]
    assert (lost["ended_by"], lost["end_ts_ns"]) == ("evicted", None)


SPREAD = ("lossy_link.pcap", "orders_pika.pcap", "qpid_multi_session.pcap", "stream_super.pcap", "tls_secrets.pcapng")


@settings(
    deadline=None, max_examples=1, phases=(Phase.explicit, Phase.generate), suppress_health_check=list(HealthCheck)
)
@given(
    name=st.sampled_from(SPREAD),
    border=st.integers(1, 1 << 16),
    kills=st.lists(st.integers(0, 150), max_size=2),
    of_statistics=st.booleans(),
)
@example(name="tls_secrets.pcapng", border=1, kills=[30], of_statistics=False)  # secrets go to all parts
@example(name="stream_super.pcap", border=300, kills=[20, 90], of_statistics=True)
def test_on_spark_rows_are_those_of_one_pass(
    name: str, border: int, kills: list[int], of_statistics: bool, spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:  # fmt: skip
    from amqpscope.pipelines.spark.following import Spread, SpreadAnalysis  # noqa: PLC0415

    folder, out = tmp_path_factory.mktemp("captures"), tmp_path_factory.mktemp("followed")
    make = partial(SpreadAnalysis, HOUR_NS, spark, most=0) if of_statistics else partial(Spread, spark)
    how = {"make": make, "tables": schemas() if of_statistics else None, "dissector": Cutter}
    files = [(0, name, (FOLDER / name).read_bytes())]
    if name.endswith(".pcap"):
        packets, link = recorded(name)
        files = rotate(packets, [border], "trace", link)
    for _, file, content in files:
        (folder / file).write_bytes(content)
        with killed(kills.pop() if kills else None):
            follow(folder, out, **how)
    follow(folder, out, until_idle=0, **how)
    if of_statistics:
        assert rows(out) == expected(folder, out / "at once")
    else:
        assert by_connection(written(out)) == by_connection(dissect(folder))


def test_on_spark_idle_connections_are_evicted(spark: SparkSession, tmp_path: Path) -> None:
    """Their state is that of the batch before."""
    from amqpscope.pipelines.spark.following import Spread  # noqa: PLC0415

    (tmp_path / "captures").mkdir()
    for number, (file, content) in enumerate(paused()):
        (tmp_path / "captures" / file).write_bytes(content)
        if number:
            until_idle = 0 if number == 2 else None
            follow(tmp_path / "captures", tmp_path / "out", until_idle, make=partial(Spread, spark), dissector=Cutter)
    is_evicted_once(written(tmp_path / "out"))
