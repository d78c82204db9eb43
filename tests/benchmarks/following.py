"""A directory that is followed for hours: does a file take longer, or more memory, the longer it goes on?

Each file is some minutes of capture: connections that stay open publish with confirms, others come and go, and some
fall silent, so that they are evicted after 24 hours. `python -m tests.benchmarks.following DIR FILES CONNECTIONS
[--minutes M] [--analyze] [--spark]`
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pamqp import commands

from amqpscope.dissector.dissector import Options
from amqpscope.dissector.following.dissection import IdleDissector
from amqpscope.dissector.following.loop import Dissected
from amqpscope.dissector.following.parts import Cutter
from amqpscope.pipelines.run import following
from amqpscope.pipelines.statistics import HOUR_NS
from tests.benchmarks import running
from tests.dissector.builders import Packet, pcap
from tests.dissector.follows import follow
from tests.dissector.wire import CLIENT, SERVER, Tape, handshake, method, opening, publish

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MINUTE_NS = 60 * 10**9
SHORT, SILENT = 20, 5
"""Connections that come and go in each file, and that begin in it and fall silent."""


class Traffic:
    """Files of connections, most of which stay open."""

    def __init__(self, count: int, minutes: int = 1) -> None:
        self.every_ns = minutes * MINUTE_NS
        self.tapes = [self._tape(10_000 + number) for number in range(count)]
        self.tags = [0] * count
        self.file = self.others = 0

    @staticmethod
    def _tape(port: int, number: int = 0) -> Tape:
        tape = Tape(port=port, isn=(port * 77 + number, port * 99))
        turns = [*handshake(), *opening(1), (CLIENT, method(commands.Confirm.Select())),
                 (SERVER, method(commands.Confirm.SelectOk()))]  # fmt: skip
        return tape.play(turns)

    def _silent(self) -> Tape:
        self.others += 1
        return self._tape(30_000 + self.others % 20_000, self.others)

    def _short(self) -> Tape:
        tape = self._silent()
        tape.send(CLIENT, b"".join(publish(b"x", message_id=f"short {self.others}")))
        tape.send(SERVER, method(commands.Basic.Ack(delivery_tag=1)))
        return tape.end()

    def packets(self) -> list[Packet]:
        """Those of the next file."""
        found = []
        self.file += 1
        short = [self._short() for _ in range(SHORT)] + [self._silent() for _ in range(SILENT)]
        for number, tape in enumerate(self.tapes):
            for _ in range(10):
                self.tags[number] += 1
                tape.send(CLIENT, b"".join(publish(b"x" * 100, message_id=f"{number} {self.tags[number]}")))
                tape.send(SERVER, method(commands.Basic.Ack(delivery_tag=self.tags[number])))
        for number, tape in enumerate((*self.tapes, *short)):
            begin = tape.start_ns + self.file * self.every_ns + number * 1000
            found += [Packet(begin + n * self.every_ns // (len(tape.packets) + 1), packet.data, packet.length)
                      for n, packet in enumerate(tape.packets)]  # fmt: skip
            tape.packets.clear()
        return sorted(found, key=lambda packet: packet.ts_ns)


def measure(
    folder: Path, files: int, traffic: Traffic, analyzing: bool, spark: SparkSession | None = None
) -> list[dict[str, Any]]:
    """Follow a directory, one file after the other; return time, memory and state after each tenth of the files.

    `peak_mb` is of this process; `workers_mb` of the Python worker of Spark that takes most now.
    """
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "captures").mkdir(parents=True)
    make: Any = partial(following.Analysis, Options(), HOUR_NS) if analyzing else Dissected
    if spark is not None:
        from amqpscope.pipelines.spark.following import Spread, SpreadAnalysis  # noqa: PLC0415

        make = partial(SpreadAnalysis, HOUR_NS, spark) if analyzing else partial(Spread, spark)
    dissector = IdleDissector if spark is None else Cutter
    tables = following.schemas() if analyzing else None
    found, spent = [], 0.0
    for number in range(files + 1):  # a file is taken when the next one is there
        (folder / "captures" / f"trace-{number:05d}.pcap").write_bytes(pcap(traffic.packets(), ns=True))
        if number >= 3:
            (folder / "captures" / f"trace-{number - 3:05d}.pcap").unlink()
        began = running.cpu_s()
        follow(folder / "captures", folder / "tables", make=make, tables=tables, dissector=dissector)
        spent += running.cpu_s() - began
        if number and number % (files // 10) == 0:
            state = max((folder / "tables" / "_state").glob("0*"))
            workers = [running.pss(pid) for pid in running.tree(os.getpid())[1:] if running.is_python_worker(pid)]
            found.append({
                "hours": round(number * traffic.every_ns / HOUR_NS, 1),
                "seconds_per_file": round(spent / (files // 10), 3),
                "rss_mb": running.pss(os.getpid()) >> 20,
                "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
                "workers_mb": max(workers, default=0) >> 20,
                "state_kb": sum(path.stat().st_size for path in state.iterdir() if path.is_file()) >> 10,
            })  # fmt: skip
            print(found[-1], file=sys.stderr)
            spent = 0.0
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("files", type=int)
    parser.add_argument("connections", type=int)
    parser.add_argument("--minutes", type=int, default=1, help="of capture in a file (default: 1)")
    parser.add_argument("--analyze", action="store_true")
    parser.add_argument("--spark", action="store_true")
    given = parser.parse_args()
    spark = None
    if given.spark:
        from amqpscope.pipelines.spark.session import session  # noqa: PLC0415

        spark = session("local[2]", small=True)
    measure(given.folder, given.files, Traffic(given.connections, given.minutes), given.analyze, spark)


if __name__ == "__main__":
    main()
