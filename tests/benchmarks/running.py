"""Other programs, run one after the other and measured: time on the wall, processor time, memory of all processes."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[2]
AMQPSCOPE = (sys.executable, "-m", "amqpscope.dissector.cli.program")
SAMPLE_S = 0.02
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
"""Without what keeps the bytecode of a checkout from being kept: where the program is installed, it is."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run.

    Attributes:
        wall: seconds on the wall.
        cpu: processor seconds, user and system, of all its processes.
        peak: largest sum of bytes (proportional set size) over its processes at one moment; 0 when not asked for.
    """

    wall: float
    cpu: float
    peak: int = 0


def run(command: Sequence[str], memory: bool = False) -> Run:
    """Run a program; what it prints goes nowhere.

    Raises:
        RuntimeError: it failed.
    """
    begin = time.perf_counter()
    process = subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    peaks = [0]
    watcher = threading.Thread(target=_watch, args=(process.pid, peaks), daemon=True) if memory else None
    if watcher:
        watcher.start()
    assert process.stderr is not None
    errors = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    process.stderr.close()
    if watcher:
        watcher.join()
    if process.returncode:
        raise RuntimeError(f"{' '.join(command[:4])}: status {process.returncode}: {errors.decode(errors='replace')}")
    return Run(wall, usage.ru_utime + usage.ru_stime, peaks[0])


def middle(runs: Sequence[Run]) -> dict[str, float]:
    """Medians over runs, and how far they were apart."""
    walls = [r.wall for r in runs]
    return {
        "wall_s": median(walls), "cpu_s": median(r.cpu for r in runs), "runs": len(runs),
        "wall_least_s": min(walls), "wall_most_s": max(walls),
    }  # fmt: skip


def _watch(pid: int, peaks: list[int]) -> None:
    while (taken := sum(pss(p) for p in tree(pid))) > 0:
        peaks[0] = max(peaks[0], taken)
        time.sleep(SAMPLE_S)


def tree(pid: int) -> list[int]:
    """A process and those below it."""
    found = [pid]
    for parent in found:
        try:
            for task in Path(f"/proc/{parent}/task").iterdir():
                found += [int(child) for child in (task / "children").read_text().split()]
        except OSError:
            continue
    return found


def pss(pid: int) -> int:
    """Bytes of memory of a process, its part of what it shares; 0 when it is gone."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def cpu_s() -> float:
    """Processor seconds of this process and all below it, with those that ended."""
    ticks = 0
    for pid in tree(os.getpid()):
        with suppress(OSError):  # it may just have ended
            ticks += sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def is_python_worker(pid: int) -> bool:
    """Whether a process is a Python worker of Spark, or forks them."""
    try:
        return b"pyspark.daemon" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
