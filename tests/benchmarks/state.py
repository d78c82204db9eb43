"""State of open connections from batch to batch on Spark: carried by `transformWithState`, by `foreachBatch`, by us.

A batch has a block of segments of each connection. Each way takes the state of a connection, as a dissector writes it,
and puts it back unchanged: so this is the price of carrying alone. `transformWithState` keeps it in RocksDB, by
connection, or all connections of a part as one value; the others keep it in a file of each part, renamed when the
batch is complete. `python -m tests.benchmarks.state FOLDER CONNECTIONS BATCHES`; needs pandas and protobuf.
"""

import os
import pickle
import random
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from amqpscope.pipelines.spark.session import session
from tests.benchmarks import running
from tests.benchmarks.following import Traffic
from tests.dissector.builders import pcap
from tests.dissector.follows import follow

PARTS = 2
SEGMENTS = 2000
"""Bytes of a connection's segments in a batch."""
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
Mark = Callable[[], None]


def weight(folder: Path, connections: int = 100) -> int:
    """The bytes of state of an open connection that publishes with confirms."""
    traffic = Traffic(connections)
    for number in range(2):  # a file is taken when the next one is there
        (folder / f"trace-{number}.pcap").write_bytes(pcap(traffic.packets(), ns=True))
    follow(folder, folder / "tables")
    return sum(path.stat().st_size for path in (folder / "tables" / "_state").rglob("dissection")) // connections


def first(key: int, size: int) -> bytes:
    """The first state of a key."""
    return random.Random(key).randbytes(size)


class Carrying(StatefulProcessor):
    """Takes the state of a key, and puts it back."""

    def __init__(self, size: int) -> None:
        self.size = size

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state."""
        self.state = handle.getValueState("state", "state binary")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timers: Any) -> Iterator[pd.DataFrame]:
        """Carry the state of a connection or of a part."""
        count = sum(map(len, rows))
        known = self.state.get()
        self.state.update((known[0] if known is not None else first(int(key[0]), self.size),))
        yield pd.DataFrame({"rows": [count]})

    def close(self) -> None:
        """Do nothing."""


def transformed(by: str, size: int, rows: DataFrame) -> DataFrame:
    return rows.groupBy(by).transformWithStateInPandas(Carrying(size), "rows long", "append", "none")


def carry(folder: str, size: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Carry the states of a part, and write them to a file of this attempt."""
    found = pa.Table.from_batches(batches)
    if not len(found):
        return
    before = Path(folder, f"state-{found['part'][0].as_py()}")
    state = pickle.loads(before.read_bytes()) if before.exists() else {}
    for flow in found["flow"].to_pylist():
        state[flow] = bytes(state.get(flow) or first(flow, size))
    new = before.with_suffix(f".{os.getpid()}")
    new.write_bytes(pickle.dumps(state))
    yield pa.RecordBatch.from_pylist([{"new": str(new), "name": str(before)}])


def carried(folder: Path, size: int, mark: Mark, rows: DataFrame, number: int = 0) -> None:
    """Carry states in one job, and commit them."""
    tasks = rows.repartitionById(PARTS, "part").mapInArrow(partial(carry, str(folder), size), "new string, name string")
    for each in tasks.collect():
        Path(each.new).rename(each.name)
    mark()


def collected(mark: Mark, rows: DataFrame, number: int) -> None:
    rows.collect()
    mark()


def measure(folder: Path, flows: int, batches: int, log: Callable[[str], None]) -> dict[str, tuple[float, float]]:
    """Seconds on the wall and of processor time for a batch, in each way; the first two batches do not count."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "input").mkdir(parents=True)
    size = weight(folder)
    log(f"{flows} connections with {size:,} bytes of state each, {batches} batches")
    columns: dict[str, Any] = {
        "flow": range(flows),
        "part": pa.array([flow % PARTS for flow in range(flows)], pa.int32()),
    }
    for number in range(batches):
        rows = pa.table({**columns, "segments": [os.urandom(SEGMENTS) for _ in range(flows)]})
        pq.write_table(rows, folder / "input" / f"{number:05d}.parquet")
    spark = session(
        f"local[{PARTS}]", small=True, spark_sql_shuffle_partitions=f"{PARTS}",
        spark_sql_streaming_stateStore_providerClass=ROCKSDB,
    )  # fmt: skip
    files = (folder / "input").iterdir()
    schema = spark.read.parquet(str(next(files))).schema
    found = {}

    def stream(name: str, make: Callable[[DataFrame], DataFrame], sink: Callable[[DataFrame, int], None]) -> None:
        source = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder / "input"))
        writer = make(source).writeStream.foreachBatch(sink).option("checkpointLocation", str(folder / name))
        writer.trigger(availableNow=True).start().awaitTermination()

    def batch(sink: Callable[[DataFrame], None]) -> None:
        for path in sorted((folder / "input").iterdir()):
            sink(spark.read.schema(schema).parquet(str(path)))

    for name, how in ways(folder, size, flows, stream, batch).items():
        marks: list[tuple[float, float]] = []
        how(name, lambda marks=marks: marks.append((time.perf_counter(), running.cpu_s())))
        (wall, cpu), (last_wall, last_cpu) = marks[1], marks[-1]
        count = len(marks) - 2
        found[name] = (last_wall - wall) / count, (last_cpu - cpu) / count
        log(f"{name:<46}{found[name][0]:>9.2f}{found[name][1]:>9.2f}")
    spark.stop()
    return found


def ways(folder: Path, size: int, flows: int, stream: Any, batch: Any) -> dict[str, Callable[[str, Mark], None]]:
    """The ways by name, each of which takes its name, and what to call after each batch."""
    for name in ("own", "each"):
        (folder / name).mkdir()
    by_flow, by_part = partial(transformed, "flow", size), partial(transformed, "part", size * flows // PARTS)
    return {
        "transformWithState, by connection": lambda name, mark: stream(name, by_flow, partial(collected, mark)),
        "transformWithState, by part": lambda name, mark: stream(name, by_part, partial(collected, mark)),
        "foreachBatch": lambda name, mark: stream(
            name, lambda rows: rows, partial(carried, folder / "each", size, mark)
        ),
        "batches of our own": lambda name, mark: batch(partial(carried, folder / "own", size, mark)),
    }


if __name__ == "__main__":
    measure(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), lambda line: print(line, file=sys.stderr))
