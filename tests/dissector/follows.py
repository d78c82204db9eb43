"""Processes that follow a directory, and are killed; and directories that captures rotate into."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from amqpscope.dissector.capture.live import Watch
from amqpscope.dissector.dissector import Options
from amqpscope.dissector.following.dissection import IdleDissector
from amqpscope.dissector.following.folder import Folder
from amqpscope.dissector.following.journal import Journal
from amqpscope.dissector.following.loop import Dissected, Follower, Make
from amqpscope.dissector.tables.rows import schemas
from tests.dissector.builders import Packet, pcap
from tests.dissector.runs import recorded

HOUR = 3600 * 10**9


class Killed(BaseException):
    """The process was killed."""


class Killer:
    """Kills the process before one of its calls that change files: from then on it changes none."""

    def __init__(self) -> None:
        self.left: int | None = None
        sys.addaudithook(self.audit)

    def audit(self, event: str, arguments: tuple[object, ...]) -> None:
        writes = event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+")
        if self.left is not None and (writes or event in ("os.rename", "os.remove", "os.mkdir", "os.rmdir")):
            self.left -= 1
            if self.left < 0:
                raise Killed


KILLER = Killer()


@contextmanager
def killed(after: int | None) -> Iterator[None]:
    """Kill what runs here after so many changes of files; it may end before."""
    KILLER.left = after
    try:
        yield
    except Killed:
        pass
    finally:
        KILLER.left = None


class Once(Watch):
    """Ends when there is nothing to do."""

    def rest(self, seconds: float) -> None:
        self._until = 0.0


def follow(
    folder: Path, out: Path, until_idle: float | None = None, make: Make = Dissected,
    tables: Mapping[str, pa.Schema] | None = None,
    dissector: Callable[[Options, bool], IdleDissector] = IdleDissector,
) -> Follower:  # fmt: skip
    """Follow a directory as one process would, up to what is complete."""
    with Once() as watch, Journal(str(out), tables or schemas(None)) as journal:
        follower = Follower(
            Folder(str(folder)), journal, Options(), make, lambda sources: None,
            lambda progress, plan: None, watch, until_idle, dissector,
        )  # fmt: skip
        follower.run()
    return follower


def written(out: Path, tables: Mapping[str, pa.Schema] | None = None) -> dict[str, pa.Table]:
    """The tables in a folder."""
    return {name: pq.read_table(out / name, schema=schema) for name, schema in (tables or schemas(None)).items()}


def rotate(packets: list[Packet], borders: list[int], stem: str, link: int) -> list[tuple[int, str, bytes]]:
    """The files of a rotated capture: time of the first packet, name, content."""
    ends = sorted({0, len(packets), *(border % len(packets) for border in borders)})
    return [
        (packets[first].ts_ns, f"{stem}-{number}.pcap", pcap(packets[first:last], ns=True, link=link))
        for number, (first, last) in enumerate(pairwise(ends), 8)
    ]


def paused() -> Iterator[tuple[str, bytes]]:
    """The files of a connection that pauses for 23 hours, and then for two days: name, content."""
    packets, link = recorded("pika_confirms.pcap")
    for number, (moved, some) in enumerate([(0, slice(40)), (23 * HOUR, slice(40, 60)), (72 * HOUR, slice(60, None))]):
        later = [replace(packet, ts_ns=packet.ts_ns + moved) for packet in packets[some]]
        yield f"trace-{number}.pcap", pcap(later, ns=True, link=link)


def is_evicted_once(tables: Mapping[str, pa.Table]) -> None:
    """Whether the connection was evicted in the longer pause, and what followed is another one."""
    details = [row["detail"] for row in tables["anomalies"].to_pylist() if row["code"] == "limit-reached"]
    assert details == ["connections without a packet for 24 hours: 1 evicted"]
    rows = {(row["packets"], row["closed_by"], row["ending"]) for row in tables["connections"].to_pylist()}
    packets, _ = recorded("pika_confirms.pcap")
    assert rows == {(60, "evicted", "evicted"), (len(packets) - 60, "client-close", "closed")}
