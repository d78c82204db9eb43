"""`python -m tests.benchmarks.statistics`: how long the walks take over made-up traffic, and how that grows with it.

The tables are written here, not dissected: publishes in confirm mode over channels that are used as in Zipf's law, one
of which has half of all; three tenths as many answers as publishes, out of order, most of them `multiple`, one in a
hundred negative; channels are opened anew now and then. DuckDB, where it is installed, is asked for the confirm of each
publish by SQL over the same Parquet: one question, of which it writes nothing, where `analyze` writes whole rows of all
tables. No time is asserted.

    python -m tests.benchmarks.statistics --messages 1000000 10000000 [--master local[2]] [--unconfirmed]
"""

from __future__ import annotations

import argparse
import importlib.util
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

from amqpscope.dissector.tables.output import CODEC, GROUP_ROWS
from amqpscope.pipelines.model.walk import conform

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
with answers as (
    select connection_id, channel, channel_epoch, delivery_tag as tag, multiple,
           min({'frame_no': frame_no, 'ts_ns': ts_ns, 'method': method}) as answer
    from 'TABLES/amqp091_frames/*.parquet' where method in ('basic.ack', 'basic.nack') group by all),
many as (
    select connection_id, channel, channel_epoch, tag, min(answer) over (
        partition by connection_id, channel, channel_epoch order by tag desc rows unbounded preceding) as answer
    from answers where multiple),
sent as (
    select connection_id, channel, channel_epoch, publish_seq as tag, ts_ns
    from 'TABLES/messages/*.parquet' where publish_seq is not null),
found as (
    select sent.ts_ns, case when one.answer is null or many.answer.frame_no < one.answer.frame_no
                            then many.answer else one.answer end as answer
    from sent left join (from answers where not multiple) one using (connection_id, channel, channel_epoch, tag)
    asof left join many on sent.connection_id = many.connection_id and sent.channel = many.channel
    and sent.channel_epoch = many.channel_epoch and sent.tag <= many.tag)
select coalesce(split_part(answer.method, '.', 2), 'none') as outcome, count(*), sum(answer.ts_ns - ts_ns)::double
from found group by outcome
"""
"""The earliest of a publish's own answers and of those to many at or above its number: outcomes and their latencies.

Here frames and times grow alike, and no answer comes before its publish, no gap and no close before an answer: of those
this says nothing.
"""


def write(folder: Path, count: int, *, confirmed: bool = True, seed: int = 1) -> None:
    """Write the tables of so many publishes."""
    for table in ("messages", "amqp091_frames", "connections", "captures"):
        (folder / table).mkdir(parents=True)
    for table in ("anomalies", "stream_frames", "amqp010_frames", "tcp_windows", "tcp_events"):
        (folder / table).mkdir()
    chance = np.random.default_rng(seed)
    used = np.zeros(CHANNELS, np.int64)
    frames = np.zeros(CHANNELS // PER_CONNECTION, np.int64)
    for part, first in enumerate(range(0, count, PART)):
        size = min(PART, count - first)
        for table, rows in zip(
            ("messages", "amqp091_frames"), _part(chance, used, frames, first, size, confirmed), strict=True
        ):
            pq.write_table(rows, folder / table / f"part-{part:05d}.parquet", GROUP_ROWS, compression=CODEC)
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


def measure(folder: Path, output: Path, master: str | None) -> dict[str, Any]:
    """The time and memory of `amqpscope analyze` as a process of its own; without a master without Spark."""
    command = ["-m", "amqpscope", "analyze", str(folder), "-o", str(output)]
    command += ["--master", master] if master else []
    begun = time.perf_counter()
    subprocess.run([sys.executable, *command], check=True, capture_output=True)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "wall_s": time.perf_counter() - begun,
        "cpu_s": used.ru_utime + used.ru_stime,
        "peak_mb": used.ru_maxrss / 1024,
    }


def outcomes(statistics: Path) -> dict[str, list[float]]:
    """How many publishes had each outcome, and the sum of their latencies."""
    rows = pq.read_table(statistics / "confirms", columns=["outcome", "latency_ns"])
    sums = rows.group_by("outcome").aggregate([([], "count_all"), ("latency_ns", "sum")]).to_pylist()
    return {row["outcome"]: [row["count_all"], float(row["latency_ns_sum"] or 0)] for row in sums}


def ask_duckdb(tables: Path, same: dict[str, list[float]]) -> dict[str, Any]:
    """The time and memory that DuckDB takes for the confirm question alone, and whether it answers the same."""
    if importlib.util.find_spec("duckdb") is None:
        return {}
    ask = f"duckdb.sql({SQL.replace('TABLES', str(tables))!r}).fetchall()"
    question = f"import duckdb, json; duckdb.sql('set enable_progress_bar = false'); print(json.dumps({ask}))"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begun = time.perf_counter()
    reported = subprocess.run([sys.executable, "-c", question], check=True, capture_output=True).stdout
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    found = {outcome: [count, latency or 0.0] for outcome, count, latency in json.loads(reported)}
    return {
        "duckdb_wall_s": time.perf_counter() - begun,
        "duckdb_cpu_s": used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime,
        "duckdb_same": found == same,
    }


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
            reported = outcomes(scratch / "statistics")
            found["outcomes"] = {outcome: count for outcome, (count, _) in reported.items()}
            found |= ask_duckdb(scratch / "tables", reported)
        finally:
            shutil.rmtree(scratch)
        print(json.dumps(found))


if __name__ == "__main__":
    main()
