"""`python -m tests.benchmarks.statistics`: how long the Spark jobs take over one busy channel, task by task.

The tables are written here, not dissected: one channel on which so many messages are published and confirmed, or
delivered and acknowledged, three tenths as many answers as messages, most `multiple`. The event log of Spark says
what each task took; a channel must not be one task. No time is asserted.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

PART = 1 << 20
"""Rows of a part file."""
STEP_NS = 10_000
LAG = 1000
"""Messages that are under way until the answer."""


def frame_of(number: Any) -> Any:
    """The last frame of a message: each has three, and one is left for an answer."""
    return 4 * number + 3


def messages(kind: str, first: int, count: int) -> pa.Table:
    """Rows of `messages`, numbers from `first` on."""
    number = np.arange(first, first + count, dtype=np.int64)
    frame = frame_of(number)
    delivered = kind == "deliver"
    return _rows(
        frame, not delivered, first_frame_no=frame - 2, kind=kind, protocol="amqp-0-9-1", exchange="orders",
        routing_key=pa.array([f"eu.{i % 100}" for i in range(100)]).take(pa.array(number % 100)),
        mandatory=False, body_size=np.full(count, 300), body_hash=number * 7919, is_partial=False,
        **({"delivery_tag": number, "consumer_tag": "c", "no_ack": False} if delivered else {"publish_seq": number}),
    )  # fmt: skip


def answers(kind: str, first: int, count: int) -> pa.Table:
    """Rows of `amqp091_frames`: the acknowledgements of these messages."""
    number = np.arange(first, first + count, dtype=np.int64)
    number = number[(number * 2654435761 >> 8) % 10 < 3]
    before = np.concatenate([[first - 1], number[:-1]])
    return _rows(
        frame_of(number + LAG) + 1, kind == "deliver", frame_type="method", method="basic.ack",
        delivery_tag=number, multiple=number - before > 1, is_partial=False,
    )  # fmt: skip


def _rows(frame: Any, from_client: bool, **columns: Any) -> pa.Table:
    count = len(frame)
    columns = {
        "connection_id": 1, "frame_no": frame, "capture": "a.pcap", "packet": frame // 4 + 1, "ts_ns": frame * STEP_NS,
        "first_ts_ns": frame * STEP_NS, "from_client": from_client, "channel": np.int32(1),
        "channel_epoch": np.int32(1),
    } | columns  # fmt: skip
    columns = {
        name: value if isinstance(value, np.ndarray | pa.Array) else pa.repeat(pa.scalar(value), count)
        for name, value in columns.items()
    }
    return pa.table(columns)


def write(folder: Path, kind: str, count: int) -> None:
    """The tables of one channel."""
    for table in ("messages", "amqp091_frames", "connections", "anomalies", "stream_frames"):
        (folder / table).mkdir(parents=True)
    for part, first in enumerate(range(1, count + 1, PART)):
        size = min(PART, count + 1 - first)
        for table, make in (("messages", messages), ("amqp091_frames", answers)):
            pq.write_table(make(kind, first, size), folder / table / f"part-{part:05d}.parquet")
    last = int(frame_of(count + LAG)) * STEP_NS
    ends = {"connection_id": [1], "protocol": ["amqp-0-9-1"], "first_ts_ns": [0], "last_ts_ns": [last]}
    pq.write_table(pa.table(ends | {"lost_bytes": [0], "skipped_bytes": [0]}), folder / "connections/part-0.parquet")


def jobs() -> dict[str, tuple[str, Callable[..., Any]]]:
    """Jobs that are measured, each with the kind of message that it is about."""
    from amqpscope.pipelines.confirms import confirms  # noqa: PLC0415 - Spark is slow to import
    from amqpscope.pipelines.settlements import settlements  # noqa: PLC0415

    return {"confirms": ("publish", confirms), "settlements": ("deliver", settlements)}


def measure(name: str, count: int, scratch: Path) -> dict[str, Any]:
    """One job over one channel of so many messages; the result is counted by outcome, not written."""
    from amqpscope.pipelines.reader import read_table  # noqa: PLC0415
    from amqpscope.pipelines.session import session  # noqa: PLC0415

    kind, job = jobs()[name]
    tables, log = scratch / f"{name}-tables", scratch / f"{name}-log"
    log.mkdir()
    write(tables, kind, count)
    spark = session(
        "local[*]", spark_eventLog_enabled="true", spark_eventLog_dir=str(log), spark_eventLog_rolling_enabled="false",
        spark_eventLog_compress="false",
    )  # fmt: skip
    try:
        begun = time.perf_counter()
        rows = job(*(read_table(spark, tables, each) for each in ("amqp091_frames", "messages", "connections")))
        output = scratch / f"{name}-rows"
        rows.write.parquet(str(output))
        wall = time.perf_counter() - begun
    finally:
        spark.stop()
    outcomes = pq.read_table(output, columns=["outcome"])["outcome"].value_counts().to_pylist()
    found = {"job": name, "messages": count, "wall_s": wall, "outcomes": {o["values"]: o["counts"] for o in outcomes}}
    return found | tasks(next(log.iterdir()))


def tasks(log: Path) -> dict[str, Any]:
    """Processor time of all tasks; of each stage of more than a second the longest task and the median."""
    stages: dict[int, list[float]] = {}
    cpu = collecting = 0.0
    with log.open() as lines:
        for line in lines:
            if '"SparkListenerTaskEnd"' in line:
                event = json.loads(line)
                spent = event["Task Metrics"]
                stages.setdefault(event["Stage ID"], []).append(spent["Executor Run Time"] / 1000)
                cpu += spent["Executor CPU Time"] / 1e9
                collecting += spent["JVM GC Time"] / 1000
    large = [
        {"tasks": len(times), "sum_s": sum(times), "median_s": statistics.median(times), "max_s": max(times)}
        for times in stages.values()
        if sum(times) > 1
    ]
    return {"task_cpu_s": cpu, "gc_s": collecting, "stages": large}


def main() -> None:
    """Measure, and say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", nargs="*", default=["confirms", "settlements"])
    parser.add_argument("--messages", type=int, default=2_000_000)
    arguments = parser.parse_args()
    os.environ.setdefault("SPARK_LOCAL_DIRS", tempfile.gettempdir())
    for name in arguments.job:
        scratch = Path(tempfile.mkdtemp(prefix="amqpscope-"))
        try:
            found = measure(name, arguments.messages, scratch)
        finally:
            shutil.rmtree(scratch)
        print(
            f"{name}: {found['messages']:,} messages in {found['wall_s']:.1f} s, "
            f"{found['task_cpu_s']:.1f} s of tasks' processor time; {found['outcomes']}"
        )
        for stage in found["stages"]:
            shape = "{tasks:5d} tasks, {sum_s:6.1f} s in all, median {median_s:6.3f} s, longest {max_s:6.3f} s"
            print(shape.format(**stage))


if __name__ == "__main__":
    main()
