"""`make bench`: how fast, with how much memory, and what the time goes into. No time is asserted.

All runs are of one machine, one after the other and in turns, so that what else the machine does falls on both
sides; ratios are of medians. Processor time is reported beside time on the wall, for it is the steadier of the two.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tests.benchmarks import archive, captures, spark, stages, streams
from tests.benchmarks.running import AMQPSCOPE, ROOT, Run, middle, run

MB = 1_000_000
FIELDS = (
    "frame.time_epoch", "tcp.stream", "amqp.channel", "amqp.method.class", "amqp.method.method",
    "amqp.method.arguments.delivery_tag", "amqp.method.arguments.exchange", "amqp.method.arguments.routing_key",
)  # fmt: skip
SMALL = ROOT / "tests/captures/pika_confirms.pcap"
MEASUREMENTS = ("speed", "floor", "stages", "analyze", "streams", "sessions", "small", "memory", "spark")
FURTHER = ("archive",)
"""What is measured when it is asked for: others take long."""
TRAFFICS = {"recorded": ("", None), "small messages": ("small", captures.small)}
"""What statistics are measured with: names of captures, and what is repeated in them."""


def dissect(capture: Path, output: Path) -> list[str]:
    """The command that is measured: all tables, everything as it is by default."""
    return [*AMQPSCOPE, "dissect", str(capture), "-o", str(output), "--replace"]


def tshark(capture: Path) -> list[str]:
    """What it is compared with."""
    fields = [word for name in FIELDS for word in ("-e", name)]
    return ["tshark", "-n", "-r", str(capture), "-d", "tcp.port==5672,amqp", "-T", "fields", *fields]


def speed(capture: Path, output: Path, pairs: int) -> dict[str, Any]:
    """Dissect against tshark, in turns."""
    ours, theirs = [], []
    run(dissect(capture, output))  # the capture is in memory then, as it is for the floor
    for _ in range(pairs):
        ours.append(run(dissect(capture, output)))
        if shutil.which("tshark"):
            theirs.append(run(tshark(capture)))
    if pairs == 1:  # one of theirs takes minutes; ours before and after it
        ours += [run(dissect(capture, output)) for _ in range(2)]
    rows = {t.name: sum(pq.read_metadata(p).num_rows for p in t.glob("*.parquet")) for t in output.iterdir()}
    frames, data = rows["amqp091_frames"], capture.stat().st_size
    found: dict[str, Any] = {"bytes": data, "rows": rows, "frames_per_kb": frames / data * 1000}
    found |= {"dissect": middle(ours), "written": sum(p.stat().st_size for p in output.rglob("*.parquet"))}
    log(
        f"{data / MB:,.0f} MB, {frames:,} frames ({found['frames_per_kb']:.1f} per kB), "
        f"{rows['messages']:,} messages; {found['written'] / MB:,.0f} MB of Parquet"
    )
    show("dissect", found["dissect"], frames, data)
    if theirs:
        found["tshark"] = middle(theirs)
        show("tshark -T fields", found["tshark"], frames, data)
        found["ratio"] = compare("tshark / dissect", found["tshark"], found["dissect"])
    return found


def floor(capture: Path, output: Path, measured: dict[str, float], pairs: int) -> dict[str, Any]:
    """Dissect against reading the capture and writing the same tables."""
    command = [sys.executable, "-m", "tests.benchmarks.floor", str(capture), str(output)]
    tries = []
    for _ in range(pairs):
        printed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
        tries.append(json.loads(printed))
    found: dict[str, Any] = min(tries, key=lambda t: t["wall_s"])
    log(f"{'floor (' + found['way'] + ')':<46}{found['wall_s']:>9.2f}{found['cpu_s']:>9.2f}")
    found["ratio"] = compare("dissect / floor", measured, found)
    return found


def profile(capture: Path, frames: int) -> dict[str, Any]:
    """Processor time of the stages."""
    printed = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.stages", str(capture)],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    found: dict[str, Any] = json.loads(printed)
    log(stages.report(found, capture.stat().st_size, frames))
    return found


def analyze(size: int, output: Path, pairs: int) -> dict[str, Any]:
    """All statistics of the tables, in this process, against dissect of the same capture, in turns."""
    command = [*AMQPSCOPE, "analyze", str(output), "-o", str(output.with_name("statistics")), "--replace"]
    found: dict[str, Any] = {}
    for traffic, (name, repeated) in TRAFFICS.items():
        with captures.made(size, name, repeated) as capture:
            theirs, ours = [], []
            for _ in range(pairs):
                theirs.append(run(dissect(capture, output)))
                ours.append(run(command))
        found[traffic] = mine = {"dissect": middle(theirs), "analyze": middle(ours)}
        show(f"dissect, {traffic}", mine["dissect"])
        show(f"analyze, {traffic}", mine["analyze"])
        mine["ratio"] = compare("analyze / dissect", mine["analyze"], mine["dissect"])
        mine["peak"] = run(command, memory=True).peak  # by itself: looking at memory takes time
        log(f"{'':<46}{mine['peak'] / MB:>9.0f} MB at most")
    return found


def small(output: Path, runs: int = 5) -> dict[str, Any]:
    """A capture of a few kilobytes: nothing is compiled, and start-up is nearly all."""
    found: dict[str, Any] = {"bytes": SMALL.stat().st_size}
    for name, command in {
        "frames": [*AMQPSCOPE, "frames", str(SMALL)],
        "dissect": dissect(SMALL, output),
        "python -c pass": [sys.executable, "-c", "pass"],
        "import numpy, pyarrow": [sys.executable, "-c", "import numpy, pyarrow"],
    }.items():
        found[name] = middle([run(command) for _ in range(runs)])
        show(f"{name}, {found['bytes']:,} bytes" if name in ("frames", "dissect") else name, found[name])
    return found


def stream(size: int, output: Path, pairs: int) -> dict[str, Any]:
    """Records of streams a second, beside a plain decoder that writes the same tables; that reads a tenth as much."""
    with streams.made(size) as capture, streams.made(max(size // 10, 20 * MB)) as part:
        plain = [sys.executable, "-m", "tests.reference.stream", str(part), str(output.with_name("plain"))]
        ours, theirs = [], []
        for _ in range(pairs):
            ours.append(run(dissect(capture, output)))
            theirs.append(run(plain))
        records = sum(pq.read_metadata(p).num_rows for p in (output / "messages").glob("*.parquet"))
        fewer = pq.read_metadata(output.with_name("plain") / "messages.parquet").num_rows
    found: dict[str, Any] = {"bytes": size, "records": records, "dissect": middle(ours), "plain": middle(theirs)}
    log(f"{size / MB:,.0f} MB of streams, {records:,} records; both write frames, messages and connections")
    for name, count in (("dissect", records), ("plain", fewer)):
        found[name] |= {"per_s": count / found[name]["wall_s"], "per_cpu_s": count / found[name]["cpu_s"]}
        show(f"streams, {name}", found[name])
        log(f"{'':<46}{found[name]['per_s']:>9,.0f} records/s,{found[name]['per_cpu_s']:>9,.0f} by processor time")
    found["ratio"] = {key: found["dissect"][key] / found["plain"][key] for key in ("per_s", "per_cpu_s")}
    log(f"{'dissect / plain decoder':<46}{found['ratio']['per_s']:>8.1f}x{found['ratio']['per_cpu_s']:>8.1f}x")
    return found


def sessions(size: int, output: Path, pairs: int) -> dict[str, Any]:
    """Frames of AMQP 0-10 a second."""
    with captures.made(size, "sessions", captures.sessions) as capture:
        run(dissect(capture, output))  # compiles what is not compiled yet
        taken = middle([run(dissect(capture, output)) for _ in range(pairs)])
    frames = sum(pq.read_metadata(p).num_rows for p in (output / "amqp010_frames").glob("*.parquet"))
    found = {"bytes": size, "frames": frames, "dissect": taken}
    found |= {"per_s": frames / taken["wall_s"], "per_cpu_s": frames / taken["cpu_s"]}
    show(f"AMQP 0-10, {size / MB:,.0f} MB, {frames:,} frames", taken)
    log(f"{'':<46}{found['per_s']:>9,.0f} frames/s,{found['per_cpu_s']:>9,.0f} by processor time")
    return found


def memory(sizes: tuple[int, ...], output: Path) -> dict[str, Any]:
    """Peak over all processes, for small and large captures."""
    found = {}
    for size in sizes:
        with captures.made(size) as capture:
            taken: Run = run(dissect(capture, output), memory=True)
        found[str(size)] = {"peak": taken.peak, "wall_s": taken.wall, "cpu_s": taken.cpu}
        log(f"{f'dissect, {size // MB:,} MB':<46}{taken.wall:>9.2f}{taken.cpu:>9.2f}{taken.peak / MB:>9.0f} MB at most")
    return found


def on_spark(tables: Path, pairs: int, master: str = "local[2]") -> dict[str, Any]:
    """Analyze on Spark against reading, shuffling and sorting the same columns; both after the start of a session."""
    commands = spark.commands(tables, tables.with_name("statistics"), master)
    runs: dict[str, list[Run]] = {name: [] for name in commands}
    for _ in range(pairs):
        for name, command in commands.items():
            runs[name].append(run(command))
    found: dict[str, Any] = {name: middle(each) for name, each in runs.items()}
    for name in ("floor", "analyze"):
        found[name] |= {key: found[name][key] - found["start"][key] for key in ("wall_s", "cpu_s")}
    for name in runs:
        show(f"Spark, {name}", found[name])
    found["ratio"] = compare("Spark, analyze / floor", found["analyze"], found["floor"])
    return found


def log(text: str) -> None:
    print(text, flush=True)


def show(name: str, found: dict[str, float], frames: int = 0, data: int = 0) -> None:
    """A line of the table."""
    line = f"{name:<46}{found['wall_s']:>9.2f}{found['cpu_s']:>9.2f}"
    if frames:
        line += f"{data / found['wall_s'] / MB:>9.0f}{frames / found['wall_s'] / 1000:>11,.0f}"
    log(f"{line}   {found['runs']} runs, {found['wall_least_s']:.2f} to {found['wall_most_s']:.2f}")


def compare(name: str, one: dict[str, Any], other: dict[str, Any]) -> dict[str, float]:
    """How many times as long `one` took as the other."""
    ratio = {key: one[f"{key}_s"] / other[f"{key}_s"] for key in ("wall", "cpu")}
    log(f"{name:<46}{ratio['wall']:>8.1f}x{ratio['cpu']:>8.1f}x")
    return ratio


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("--size", type=int, default=1000, metavar="MB", help="of the capture (default: 1000)")
    parser.add_argument("--quick", action="store_true", help="100 MB for all, memory at 50 and 200 MB")
    parser.add_argument("--pairs", type=int, metavar="N", help="turns of each (default: 1; quick: 3)")
    parser.add_argument(
        "--only", nargs="+", choices=MEASUREMENTS + FURTHER, default=MEASUREMENTS, help="what to measure"
    )
    parser.add_argument("--json", type=Path, default=ROOT / "build/bench.json", help="default: build/bench.json")
    arguments = parser.parse_args()
    size = (100 if arguments.quick else arguments.size) * MB
    pairs = arguments.pairs or (3 if arguments.quick else 1)
    only = set(arguments.only)
    found: dict[str, Any] = {"processors": os.cpu_count(), "load": os.getloadavg(), "size": size}
    folder = captures.folder()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as name:
        output = Path(name) / "tables"
        with captures.made(20 * MB) as capture:
            run(dissect(capture, output))  # compiles what is not compiled yet
        log(f"{'':<46}{'wall s':>9}{'cpu s':>9}{'MB/s':>9}{'kframes/s':>11}")
        if only & {"speed", "floor", "stages"}:
            with captures.made(size) as capture:
                found["speed"] = speed(capture, output, pairs)
                if "floor" in only:
                    found["floor"] = floor(capture, output, found["speed"]["dissect"], pairs)
                if "stages" in only:
                    found["stages"] = profile(capture, found["speed"]["rows"]["amqp091_frames"])
        if "analyze" in only:
            found["analyze"] = analyze(size, output, pairs)
        if "streams" in only:
            found["streams"] = stream(size, output, pairs)
        if "sessions" in only:
            found["sessions"] = sessions(size, output, pairs)
        if "small" in only:
            found["small"] = small(output)
        if "spark" in only:
            with captures.made(size) as capture:
                run(dissect(capture, output))
            found["spark"] = on_spark(output, pairs)
        if "archive" in only:
            found["archive"] = archive.measure(size, Path(name) / "archive", log)
        if "memory" in only:
            found["memory"] = memory((50 * MB, 200 * MB) if arguments.quick else (250 * MB, 2000 * MB), output)
    found["load_after"] = os.getloadavg()
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps(found, indent=1) + "\n")
    log(f"written: {arguments.json}")


if __name__ == "__main__":
    main()
