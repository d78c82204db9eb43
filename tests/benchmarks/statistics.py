"""`python -m tests.benchmarks.statistics`: how long the walks take over made-up traffic, and how that grows with it.

The tables are written here, not dissected: publishes in confirm mode over channels that are used as in Zipf's law, one
of which has half of all; three tenths as many answers as publishes, out of order, most of them `multiple`, one in a
hundred negative; channels are opened anew now and then. DuckDB, where it is installed, is asked for a confirm of each
publish by SQL over the same Parquet. No time is asserted.

    python -m tests.benchmarks.statistics --messages 1000000 10000000 [--master local[2]] [--unconfirmed]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from amqpscope.pipelines.walks.walk import conform

PART = 1 << 20
"""Publishes of a part file."""
STEP_NS = 10_000
LAG = 1000
"""Publishes that come before the answer to one."""
CHANNELS = 200_000
PER_CONNECTION = 2000
EPOCH = 50_000
"""Publishes of a channel, on average, until it is opened anew."""

SQL = """
with answers as (select connection_id, channel, channel_epoch, delivery_tag as tag, frame_no, ts_ns
                 from 'TABLES/amqp091_frames/*.parquet' where method in ('basic.ack', 'basic.nack')),
sent as (select connection_id, channel, channel_epoch, publish_seq, frame_no, ts_ns
         from 'TABLES/messages/*.parquet' where publish_seq is not null)
select count(*), count(a.frame_no), max(a.ts_ns - s.ts_ns) from sent s asof left join answers a
on s.connection_id = a.connection_id and s.channel = a.channel and s.channel_epoch = a.channel_epoch
and a.tag >= s.publish_seq
"""
"""Nearly the question: of the answers at or above a number the smallest, not the earliest."""


def write(folder: Path, count: int, *, confirmed: bool = True, seed: int = 1) -> None:
    """Write the tables of so many publishes."""
    for table in ("messages", "amqp091_frames", "connections", "captures"):
        (folder / table).mkdir(parents=True)
    for table in ("anomalies", "stream_frames", "amqp010_frames", "tcp_windows"):
        (folder / table).mkdir()
    chance = np.random.default_rng(seed)
    used = np.zeros(CHANNELS, np.int64)
    frames = np.zeros(CHANNELS // PER_CONNECTION, np.int64)
    for part, first in enumerate(range(0, count, PART)):
        size = min(PART, count - first)
        for table, rows in zip(
            ("messages", "amqp091_frames"), _part(chance, used, frames, first, size, confirmed), strict=True
        ):
            pq.write_table(rows, folder / table / f"part-{part:05d}.parquet", compression="zstd")
    ids = np.arange(1, len(frames) + 1)
    last = (count + LAG) * STEP_NS
    ends = {
        "connection_id": ids,
        "protocol": ["amqp-0-9-1"] * len(ids),
        "first_ts_ns": ids * 0,
        "last_ts_ns": ids * 0 + last,
    }
    pq.write_table(pa.table(ends), folder / "connections/part-0.parquet")
    captures = conform("captures", {"capture": "a.pcap", "bytes": 600 * count}, 1)
    pq.write_table(captures, folder / "captures/part-0.parquet")


def _part(chance: Any, used: Any, frames: Any, first: int, size: int, confirmed: bool) -> Iterator[pa.Table]:
    """The publishes from `first` on and the answers to them; `used` and `frames` are counted on."""
    channel = np.minimum(chance.zipf(1.3, size) - 1, CHANNELS - 1)
    channel[chance.random(size) < 0.5] = 0
    order = np.argsort(channel, kind="stable")
    _, begins, counts = np.unique(channel[order], return_index=True, return_counts=True)
    turn = np.empty(size, np.int64)
    turn[order] = np.arange(size) - np.repeat(begins, counts)
    turn += used[channel]
    np.add.at(used, channel, 1)
    epoch, number = turn // EPOCH + 1, turn % EPOCH + 1
    when = np.arange(first, first + size) * 2
    answered = np.flatnonzero(chance.random(size) < (0.3 if confirmed else 0))
    answers_when = when[answered] + 2 * chance.integers(1, LAG, len(answered)) + 1
    kind = np.concatenate([np.zeros(size, np.int8), np.ones(len(answered), np.int8)])
    of = np.concatenate([channel, channel[answered]])
    time_ = np.concatenate([when, answers_when])
    connection = of // PER_CONNECTION
    by = np.lexsort((time_, connection))
    _, begins, counts = np.unique(connection[by], return_index=True, return_counts=True)
    frame = np.empty(len(by), np.int64)
    frame[by] = np.arange(len(by)) - np.repeat(begins, counts)
    frame = 3 * frame + frames[connection]
    np.add.at(frames, connection, 3)
    for is_answer, rows in ((0, slice(0, size)), (1, answered)):
        mine = kind == is_answer
        place = {
            "connection_id": connection[mine] + 1, "frame_no": frame[mine],
            "channel": (of[mine] % PER_CONNECTION + 1).astype(np.int32),
            "channel_epoch": epoch[rows].astype(np.int32),
            "ts_ns": time_[mine] * STEP_NS // 2, "packet": frame[mine] // 3 + 1,
        }  # fmt: skip
        place["first_ts_ns"] = place["ts_ns"]
        if is_answer:
            negative = chance.random(len(answered)) < 0.01
            extra = {
                "from_client": False, "frame_type": "method", "delivery_tag": number[rows], "is_partial": False,
                "multiple": chance.random(len(answered)) < 0.8,
                "method": pa.array(["basic.ack", "basic.nack"]).take(pa.array(negative.astype(np.int8))),
            }  # fmt: skip
        else:
            extra = {
                "from_client": True, "first_frame_no": frame[mine] - 2, "kind": "publish", "protocol": "amqp-0-9-1",
                "exchange": "orders", "mandatory": False, "is_partial": False, "publish_seq": number[rows],
                "publish_seq_unsure": False, "body_size": 300, "body_hash": when * 7919,
                "routing_key": pa.array([f"eu.{i}" for i in range(100)]).take(pa.array(number[rows] % 100)),
            }  # fmt: skip
        yield _table({**place, **extra, "capture": "a.pcap"}, int(mine.sum()))


def _table(columns: dict[str, Any], count: int) -> pa.Table:
    arrays = (np.ndarray, pa.Array, pa.ChunkedArray)
    return pa.table({k: v if isinstance(v, arrays) else pa.repeat(pa.scalar(v), count) for k, v in columns.items()})


def measure(folder: Path, output: Path, master: str | None) -> dict[str, float]:
    """The time and memory of `amqpscope analyze` as a process of its own."""
    command = [sys.executable, "-m", "amqpscope.dissector.cli.program", "analyze", str(folder), "-o", str(output)]
    begun = time.perf_counter()
    subprocess.run([*command, *(["--master", master] if master else [])], check=True, capture_output=True)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "wall_s": time.perf_counter() - begun,
        "cpu_s": used.ru_utime + used.ru_stime,
        "peak_mb": used.ru_maxrss / 1024,
    }


def duckdb_seconds(folder: Path) -> float | None:
    """How long DuckDB takes for the confirm question; None where it is not installed."""
    try:
        import duckdb  # noqa: PLC0415
    except ImportError:
        return None
    begun = time.perf_counter()
    duckdb.sql(SQL.replace("TABLES", str(folder))).fetchall()
    return time.perf_counter() - begun


def main() -> None:
    """Measure each size in a process of its own, and print a line of JSON for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, nargs="+", default=[1_000_000, 4_000_000])
    parser.add_argument("--master", help="on Spark, here")
    parser.add_argument("--unconfirmed", action="store_true", help="nothing is answered")
    arguments = parser.parse_args()
    for count in arguments.messages:
        if len(arguments.messages) > 1:  # a process each, for its peak of memory
            others = [
                *(["--master", arguments.master] if arguments.master else []),
                *(["--unconfirmed"] * arguments.unconfirmed),
            ]
            subprocess.run([sys.executable, "-m", __spec__.name, "--messages", str(count), *others], check=True)
            continue
        scratch = Path(tempfile.mkdtemp(prefix="amqpscope-", dir=os.environ.get("TMPDIR")))
        try:
            write(scratch / "tables", count, confirmed=not arguments.unconfirmed)
            found = {"messages": count} | measure(scratch / "tables", scratch / "statistics", arguments.master)
            outcomes = pq.read_table(scratch / "statistics" / "confirms", columns=["outcome"])["outcome"]
            found["outcomes"] = {each["values"]: each["counts"] for each in outcomes.value_counts().to_pylist()}
            found["duckdb_s"] = duckdb_seconds(scratch / "tables")
        finally:
            shutil.rmtree(scratch)
        print(json.dumps(found))


if __name__ == "__main__":
    main()
