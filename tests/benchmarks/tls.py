"""`python -m tests.benchmarks.tls`: what TLS costs, in processor time, against the same traffic in plain text.

The traffic is made by OpenSSL in memory: publishes of one size, each in as few records as it fits in, in segments of
one size; the same without TLS. Nothing is written; rows of all tables are made. The first run, which compiles, is not
counted.
"""

import argparse
import os
import random
import resource
import tempfile
from pathlib import Path

from amqpscope.dissector.capture.sources import find
from amqpscope.dissector.dissector import Options
from amqpscope.dissector.reading import Reading
from tests.dissector.builders import pcap, pcap_record
from tests.dissector.tls.tunnel import Tunnel
from tests.dissector.wire import CLIENT, STEP, Tape, publish, session

MB = 1_000_000
CASES = (
    ("TLS 1.3 AES-GCM, 16 kB records, Ethernet", "1.3", "", 16_000, 1448),
    ("TLS 1.3 AES-GCM, 16 kB records, loopback", "1.3", "", 16_000, 65_000),
    ("TLS 1.2 AES-GCM, 16 kB records, Ethernet", "1.2", "ECDHE-ECDSA-AES128-GCM-SHA256", 16_000, 1448),
    ("TLS 1.2 ChaCha20, 16 kB records, Ethernet", "1.2", "ECDHE-ECDSA-CHACHA20-POLY1305", 16_000, 1448),
    ("TLS 1.2 AES-CBC, 16 kB records, Ethernet", "1.2", "ECDHE-ECDSA-AES128-SHA256", 16_000, 1448),
    ("TLS 1.3 AES-GCM, a publish of 900 bytes each", "1.3", "", 900, 1448),
    ("TLS 1.3 AES-GCM, a publish of 150 bytes each", "1.3", "", 150, 1448),
    ("TLS 1.2 AES-GCM, a publish of 150 bytes each", "1.2", "ECDHE-ECDSA-AES128-GCM-SHA256", 150, 1448),
    ("TLS 1.2 ChaCha20, a publish of 150 bytes each", "1.2", "ECDHE-ECDSA-CHACHA20-POLY1305", 150, 1448),
    ("TLS 1.2 AES-CBC, a publish of 150 bytes each", "1.2", "ECDHE-ECDSA-AES128-SHA256", 150, 1448),
)


def make(folder: Path, version: str, suites: str, body: int, segment: int, size: int) -> tuple[Path, Path, Path]:
    """Captures in TLS and in plain text, and the key log."""
    tunnel = Tunnel(version, suites)
    paths = folder / "tls.pcap", folder / "plain.pcap"
    tapes = Tape(server_port=5671).play(tunnel.opening), Tape()
    data = b"".join(publish(random.Random(7).randbytes(body), largest=131_072))
    if body < 1000:
        size //= 10  # making it takes longest
    turns = [*session()[:8], *[(CLIENT, data)] * (size // len(data))]
    with paths[0].open("wb") as sealed, paths[1].open("wb") as plain:
        files = sealed, plain
        for file in files:
            file.write(pcap([], ns=True))
        for side, data in turns:
            for file, tape, spoken in zip(files, tapes, (tunnel.send(side, data), data), strict=True):
                tape.send(side, spoken, range(segment, len(spoken), segment))
                file.writelines(pcap_record(packet, ns=True) for packet in tape.packets)
                tape.start_ns += len(tape.packets) * STEP
                tape.packets.clear()
    keylog = folder / "keylog"
    keylog.write_bytes(tunnel.keylog)
    return *paths, keylog


def measure(capture: Path, keylog: Path | None) -> float:
    """Seconds of processor time to make all rows."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    for _ in Reading(find([str(capture)]), Options(keylog=str(keylog) if keylog else None), compiled=True):
        pass
    after = resource.getrusage(resource.RUSAGE_SELF)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.tls", description=__doc__)
    parser.add_argument("--size", type=int, default=100, metavar="MB", help="of each capture (default: 100)")
    size = parser.parse_args().size * MB
    print(f"{'seconds of processor time':<50}{'TLS':>7}{'MB/s':>7}{'no key':>8}{'MB/s':>7}{'plain':>7}{'MB/s':>7}")
    for n, (name, version, suites, body, segment) in enumerate(CASES):
        with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
            sealed, plain, keylog = make(Path(folder), version, suites, body, segment, size)
            if n == 0:
                measure(sealed, keylog)
            line = f"{name:<50}"
            for capture, keys, width in ((sealed, keylog, 7), (sealed, None, 8), (plain, None, 7)):
                taken = min(measure(capture, keys) for _ in range(3))
                line += f"{taken:>{width}.2f}{capture.stat().st_size / taken / MB:>7.0f}"
            print(line, flush=True)


if __name__ == "__main__":
    main()
