"""A directory that is followed for hours: does a file take longer, or more memory, the longer it goes on?

Each file is a minute of capture: connections that stay open publish with confirms, and others come and go.
"""

import os
import resource
import shutil
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from pamqp import commands

from amqpscope.dissector.dissector import Options
from amqpscope.dissector.following.loop import Dissected
from amqpscope.pipelines import following
from amqpscope.pipelines.statistics import HOUR_NS
from tests.dissector.builders import Packet, pcap
from tests.dissector.follows import follow
from tests.dissector.wire import CLIENT, SERVER, Tape, handshake, method, opening, publish

MINUTE_NS = 60 * 10**9
SHORT = 20
"""Connections that come and go in each minute."""


class Traffic:
    """Minutes of connections, most of which stay open."""

    def __init__(self, count: int) -> None:
        self.tapes = [self._tape(10_000 + number) for number in range(count)]
        self.tags = [0] * count
        self.minute = self.others = 0

    @staticmethod
    def _tape(port: int, number: int = 0) -> Tape:
        tape = Tape(port=port, isn=(port * 77 + number, port * 99))
        turns = [*handshake(), *opening(1), (CLIENT, method(commands.Confirm.Select())),
                 (SERVER, method(commands.Confirm.SelectOk()))]  # fmt: skip
        return tape.play(turns)

    def _short(self) -> Tape:
        self.others += 1
        tape = self._tape(30_000 + self.others % 20_000, self.others)
        tape.send(CLIENT, b"".join(publish(b"x", message_id=f"short {self.others}")))
        tape.send(SERVER, method(commands.Basic.Ack(delivery_tag=1)))
        return tape.end()

    def packets(self) -> list[Packet]:
        """The next minute."""
        found = []
        self.minute += 1
        short = [self._short() for _ in range(SHORT)]
        for number, tape in enumerate(self.tapes):
            for _ in range(10):
                self.tags[number] += 1
                tape.send(CLIENT, b"".join(publish(b"x" * 100, message_id=f"{number} {self.tags[number]}")))
                tape.send(SERVER, method(commands.Basic.Ack(delivery_tag=self.tags[number])))
        for number, tape in enumerate((*self.tapes, *short)):
            begin = tape.start_ns + self.minute * MINUTE_NS + number * 1000
            found += [Packet(begin + n * MINUTE_NS // (len(tape.packets) + 1), packet.data, packet.length)
                      for n, packet in enumerate(tape.packets)]  # fmt: skip
            tape.packets.clear()
        return sorted(found, key=lambda packet: packet.ts_ns)


def measure(folder: Path, minutes: int, connections: int, analyzing: bool) -> list[dict[str, Any]]:
    """Follow so many minutes, one file after the other; return time, memory and state after each tenth of them."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "captures").mkdir(parents=True)
    make: Any = partial(following.Analysis, Options(), HOUR_NS) if analyzing else Dissected
    tables = following.schemas() if analyzing else None
    traffic, found, spent = Traffic(connections), [], 0.0
    for minute in range(minutes + 1):  # a file is taken when the next one is there
        (folder / "captures" / f"trace-{minute:05d}.pcap").write_bytes(pcap(traffic.packets(), ns=True))
        if minute >= 3:
            (folder / "captures" / f"trace-{minute - 3:05d}.pcap").unlink()
        began = time.process_time()
        follow(folder / "captures", folder / "tables", make=make, tables=tables)
        spent += time.process_time() - began
        if minute and minute % (minutes // 10) == 0:
            state = max((folder / "tables" / "_state").glob("0*"))
            found.append({
                "minutes": minute,
                "seconds_per_file": round(spent / (minutes // 10), 3),
                "rss_mb": int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20,
                "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
                "state_kb": sum(path.stat().st_size for path in state.iterdir() if path.is_file()) >> 10,
            })  # fmt: skip
            print(found[-1], file=sys.stderr)
            spent = 0.0
    return found


if __name__ == "__main__":
    measure(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), analyzing="analyze" in sys.argv)
