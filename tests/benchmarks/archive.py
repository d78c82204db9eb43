"""An archive of rotated captures: one process against Spark on two cores, and against what one would write without us.

Spark's event log has the time of each task. From these follows how long two and four workers take (the next free
worker takes the next task), how even tasks are, and what part of their time goes to the shuffle.

As a program, this starts a session as we do for captures, or is what one would write otherwise: dpkt in
`mapPartitions`, which brings the segments of each flow together and counts frames, and tshark behind `pipe`.
"""

import argparse
import json
import os
import shutil
import struct
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from amqpscope.pipelines.spark import session
from tests.benchmarks import captures, running, spark
from tests.benchmarks.running import AMQPSCOPE, Run, run

MB = 1_000_000
FILES = 20
MASTER = "local[2]"
TABLES = 200 * MB
"""Bytes of captures of whose tables statistics are made: on Spark, that takes five minutes for each gigabyte."""
OTHERS = 100 * MB
"""Bytes of captures that the others read: they take ten minutes and more for each gigabyte."""
WORKERS = (1, 2, 4)
PORT = 5672


@contextmanager
def rotated(size: int) -> Iterator[list[Path]]:
    """FILES files of together `size` bytes, as one capture that goes on from file to file."""
    folder = captures.folder() / f"rotated{size // MB}mb"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    paths = [folder / f"trace-{number:02d}.pcap" for number in range(1, FILES + 1)]
    try:
        with ExitStack() as opened:
            files = [opened.enter_context(path.open("wb")) for path in paths]
            for file in files:
                file.write(captures.header())
            written = 0
            for data, at in captures.turns(size - FILES * captures.HEADER):
                places = (written + at) * FILES // size  # the file of each packet
                borders = [0, *(np.flatnonzero(np.diff(places[:-1])) + 1), len(at) - 1]
                for first, last in pairwise(borders):
                    files[places[first]].write(data[at[first] : at[last]].data)
                written += len(data)
        yield paths
    finally:
        shutil.rmtree(folder)


def measure(size: int, output: Path, log: Callable[[str], None]) -> dict[str, Any]:
    """All of it.

    Args:
        size: of the archive in bytes.
        output: a folder that is not there, and is removed.
        log: prints a line.
    """
    found: dict[str, Any] = {"bytes": size, "files": FILES}
    with rotated(size) as files:
        given, stats = str(files[0].parent), str(output / "statistics")
        tables, some_tables = str(output / "tables"), str(output / "some")
        commands = {
            "dissect": ["dissect", given, "-o", tables],
            "analyze captures": ["analyze", given, "-o", stats],
            "analyze tables": ["analyze", some_tables, "-o", stats],
        }
        part, some = _first(files, TABLES), _first(files, OTHERS)
        weights = dict.fromkeys(commands, size) | {"analyze tables": _weight(part)}
        run([*AMQPSCOPE, "dissect", *map(str, part), "-o", some_tables])
        program = [sys.executable, "-m", __name__]
        starts = {
            "analyze tables": run(spark.commands(output, output, MASTER)["start"]),
            "dissect": (start := run([*program, "start", MASTER])),
            "analyze captures": start,
        }
        for where, more in {"one process": [], MASTER: ["--master", MASTER]}.items():
            for name, command in commands.items():
                start = starts[name] if more else Run(0, 0)
                one = _on_spark([*AMQPSCOPE, *command, *more], output) if more else _here([*AMQPSCOPE, *command])
                one |= {key: one[key] - getattr(start, key[:-2]) for key in ("wall_s", "cpu_s")}
                found[f"{name}, {where}"] = one | {"bytes": weights[name]}
                what = f"{name}, {where}, {weights[name] / MB:,.0f} MB"
                log(f"{what:<46}{one['wall_s']:>9.2f}{one['cpu_s']:>9.2f}{_notes(one)}")
        for name in commands:
            one, other = found[f"{name}, {MASTER}"], found[f"{name}, one process"]
            log(f"{f'{name}, {MASTER} / one process':<46}{_ratio(one, other, 'wall_s')}{_ratio(one, other, 'cpu_s')}")
        direct, first, then = (found[f"{name}, {MASTER}"] for name in ("analyze captures", "dissect", "analyze tables"))
        both = {key: first[key] + then[key] * size / then["bytes"] for key in ("wall_s", "cpu_s")}
        ratios = _ratio(both, direct, "wall_s"), _ratio(both, direct, "cpu_s")
        log(f"{'dissect, then analyze / analyze captures':<46}{''.join(ratios)}")
        data = _weight(some)
        for name in ("dpkt", "tshark"):
            if name == "tshark" and not shutil.which(name):
                continue
            start, taken = starts["analyze tables"], run([*program, name, MASTER, *map(str, some)])
            one = {"wall_s": taken.wall - start.wall, "cpu_s": taken.cpu - start.cpu, "bytes": data}
            found[name] = one
            rate = size / direct["wall_s"] * one["wall_s"] / data
            log(f"{f'{name} on {MASTER}, {data / MB:,.0f} MB':<46}{one['wall_s']:>9.2f}{one['cpu_s']:>9.2f}"
                f"   analyze captures is {rate:.1f} times as fast")  # fmt: skip
    shutil.rmtree(output, ignore_errors=True)
    return found


def _first(files: Sequence[Path], size: int) -> Sequence[Path]:
    """The first files of together this size, about."""
    return files[: max(round(size * len(files) / _weight(files)), 1)]


def _weight(files: Iterable[Path]) -> int:
    return sum(path.stat().st_size for path in files)


def _ratio(one: dict[str, Any], other: dict[str, Any], key: str) -> str:
    return f"{one[key] / other[key]:>8.1f}x"


def _here(command: Sequence[str]) -> dict[str, Any]:
    taken = run(command, memory=True)
    return {"wall_s": taken.wall, "cpu_s": taken.cpu, "peak": taken.peak}


def _on_spark(command: Sequence[str], output: Path) -> dict[str, Any]:
    """Run a command on Spark; return its times, the peak of its Python workers, and what its event log shows."""
    events = output / "events"
    events.mkdir(parents=True, exist_ok=True)
    settings = {"enabled": "true", "compress": "false", "dir": events.absolute().as_uri()}
    words = " ".join(f"--conf spark.eventLog.{name}={value}" for name, value in settings.items())
    os.environ["PYSPARK_SUBMIT_ARGS"] = running.ENVIRONMENT["PYSPARK_SUBMIT_ARGS"] = f"{words} pyspark-shell"
    over = threading.Event()
    peaks: dict[int, int] = defaultdict(int)
    watcher = threading.Thread(target=_watch_workers, args=(os.getpid(), peaks, over))
    watcher.start()
    try:
        taken = run(command)
    finally:
        over.set()
        watcher.join()
        del os.environ["PYSPARK_SUBMIT_ARGS"], running.ENVIRONMENT["PYSPARK_SUBMIT_ARGS"]
    found = {"wall_s": taken.wall, "cpu_s": taken.cpu, "peak": max(peaks.values(), default=0)}
    logs = [path for path in events.rglob("[!.]*") if path.is_file() and path.stat().st_size]
    found |= _of_tasks(json.loads(line) for path in logs for line in path.open())
    shutil.rmtree(events)
    return found


def _watch_workers(pid: int, peaks: dict[int, int], over: threading.Event) -> None:
    """Note the most memory that each Python worker below a process takes."""
    while not over.wait(running.SAMPLE_S * 5):
        for each in running.tree(pid):
            if running.is_python_worker(each):
                peaks[each] = max(peaks[each], running.pss(each))


def _of_tasks(events: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return what tasks took.

    Returns:
        `workers_s`: seconds of all stages, by the number of workers; `uneven`: of the stage with most time in tasks,
        the longest task over the mean; `shuffle`: the part of the tasks' time that goes to writing the shuffle and
        waiting for it; `shuffle_bytes`: of it; `tasks`: their number.
    """
    stages: dict[tuple[int, int], list[float]] = defaultdict(list)
    shuffle = written = 0.0
    for event in events:
        metrics = event.get("Task Metrics")
        if event["Event"] != "SparkListenerTaskEnd" or not metrics:
            continue
        stages[event["Stage ID"], event["Stage Attempt ID"]].append(metrics["Executor Run Time"] / 1e3)
        shuffle += metrics["Shuffle Write Metrics"]["Shuffle Write Time"] / 1e9
        shuffle += metrics["Shuffle Read Metrics"]["Fetch Wait Time"] / 1e3
        written += metrics["Shuffle Write Metrics"]["Shuffle Bytes Written"]
    if not stages:
        return {}
    heaviest = max(stages.values(), key=sum)
    return {
        "workers_s": {count: sum(_makespan(tasks, count) for tasks in stages.values()) for count in WORKERS},
        "uneven": max(heaviest) / (sum(heaviest) / len(heaviest)),
        "shuffle": shuffle / sum(map(sum, stages.values())),
        "shuffle_bytes": written,
        "tasks": sum(map(len, stages.values())),
    }


def _makespan(tasks: Sequence[float], workers: int) -> float:
    """Return when the last task ends, if each free worker takes the next one."""
    free = [0.0] * workers
    for task in tasks:
        free[free.index(min(free))] += task
    return max(free)


def _notes(found: dict[str, Any]) -> str:
    peak = f"{found['peak'] / MB:>9.0f} MB at most"
    if "workers_s" not in found:
        return peak
    workers = ", ".join(f"{count}: {found['workers_s'][count]:.1f} s" for count in WORKERS)
    shuffle = f"shuffle {100 * found['shuffle']:.0f} % ({found['shuffle_bytes'] / MB:,.0f} MB)"
    tasks = f"{found['tasks']} tasks, longest / mean {found['uneven']:.2f}"
    return f"{peak} in a worker; {tasks}, {shuffle}; by workers {workers}"


# ---- what one would write otherwise


def packets(path: str) -> Iterator[tuple[tuple[bytes, int, bytes, int], tuple[int, bytes]]]:
    """The payloads of a capture: addresses and ports, sequence number and bytes."""
    import dpkt  # noqa: PLC0415 - in tasks only

    with Path(path).open("rb") as file:
        for _, data in dpkt.pcap.Reader(file):
            ip = dpkt.ethernet.Ethernet(data).data
            tcp = getattr(ip, "data", None)
            if isinstance(tcp, dpkt.tcp.TCP) and tcp.data and PORT in (tcp.sport, tcp.dport):
                yield (ip.src, tcp.sport, ip.dst, tcp.dport), (tcp.seq, bytes(tcp.data))


def frames(segments: Iterable[tuple[int, bytes]]) -> int:
    """The number of frames in one direction of a connection: in order, without what came twice, nothing missing."""
    data, expected = bytearray(), None
    for seq, payload in sorted(segments):
        if expected is None or seq >= expected:
            data += payload
            expected = seq + len(payload)
    at, count = 8 * data.startswith(b"AMQP"), 0
    while at + 7 <= len(data):
        at += 8 + int(struct.unpack_from(">I", data, at + 3)[0])
        count += 1
    return count


def otherwise(name: str, master: str, paths: list[str]) -> int:
    """Count frames in captures with dpkt, or lines of frames with tshark."""
    with session.running(master) as begin:
        files = begin().sparkContext.parallelize(paths, len(paths))
        if name == "dpkt":
            flows = files.mapPartitions(lambda some: (each for path in some for each in packets(path))).groupByKey()
            return int(flows.mapValues(frames).values().sum())
        fields = (
            "-T fields -e frame.time_epoch -e tcp.stream -e amqp.channel -e amqp.method.class -e amqp.method.method"
        )
        return int(files.pipe(f"xargs -n1 tshark -n -d tcp.port=={PORT},amqp {fields} -r").count())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=("start", "dpkt", "tshark"))
    parser.add_argument("master")
    parser.add_argument("captures", nargs="*")
    arguments = parser.parse_args()
    if arguments.name == "start":
        with session.running(arguments.master, small=True) as start:
            start()
        return
    begin = time.perf_counter()
    count = otherwise(arguments.name, arguments.master, arguments.captures)
    sys.stdout.write(f"{count:,} frames or packets in {time.perf_counter() - begin:.1f} s\n")


if __name__ == "__main__":
    main()
