"""The floor: the least that any program must do which turns a capture into these tables with pyarrow.

That is reading the capture once and writing the tables, which are in memory as Arrow, in the way that proves to be
fastest. Run as a program it measures a capture and a folder of tables, and prints JSON.
"""

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from amqpscope.dissector.tables import output

CORES = 2
ROWS_AT_ONCE = 1 << 20
"""Rows of a table in memory at a time; the more memory, the less would it be the machine's that is measured."""
WAYS: dict[str, dict[str, Any]] = {
    f"{name}{', no statistics' if not statistics else ''}": {
        "use_dictionary": dictionary, "data_page_size": page, "write_statistics": statistics,
    }
    for statistics in (True, False)
    for name, dictionary, page in (
        ("dictionaries", True, 1 << 20), ("dictionaries, large pages", True, 8 << 20),
        ("dictionaries of texts", None, 1 << 20), ("plain", False, 1 << 20), ("plain, large pages", False, 8 << 20),
    )
}  # fmt: skip
"""Settings tried; None stands for the columns of text."""


def measure(capture: Path, tables: Path) -> dict[str, Any]:
    """Seconds of reading and of writing, on the wall and of the processor, with the fastest way.

    Which way that is, processor time decides: on the wall other programs would.
    """
    begin, cpu = time.perf_counter(), time.process_time()
    buffer = bytearray(16 << 20)
    with capture.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass
    reading = time.perf_counter() - begin, time.process_time() - cpu
    ways: dict[str, float] = {}
    total = [0.0, 0.0]
    with tempfile.TemporaryDirectory(dir=tables.parent) as name:
        folder = Path(name)
        best = ""
        for turn in _turns(tables):
            if not best:
                _write(turn, folder, WAYS["plain"])  # warms up
                for _ in range(2):
                    for way, settings in WAYS.items():
                        _, cpu = _write(turn, folder, settings)
                        ways[way] = min(cpu, ways.get(way, cpu))
                best = min(ways, key=ways.__getitem__)
            tried = [_write(turn, folder, WAYS[best]) for _ in range(2)]
            total = [a + b for a, b in zip(total, min(tried), strict=True)]
    return {
        "read_s": reading[0], "read_cpu_s": reading[1], "write_s": total[0], "write_cpu_s": total[1],
        "wall_s": reading[0] + total[0], "cpu_s": reading[1] + total[1], "way": best, "first_turn_cpu_s": ways,
    }  # fmt: skip


def _turns(tables: Path) -> Iterator[list[tuple[str, pa.Table]]]:
    """The tables in chunks that fit in memory, each about half of what a core has to write at a time."""
    readers = {
        folder.name: _batches(sorted(folder.glob("*.parquet")))
        for folder in sorted(tables.iterdir())
        if folder.is_dir()
    }
    while readers:
        turn = []
        for name, reader in list(readers.items()):
            batch = next(reader, None)
            if batch is None:
                del readers[name]
            elif batch.num_rows:
                half = -(-batch.num_rows // CORES)
                turn += [(name, batch.slice(at, half)) for at in range(0, batch.num_rows, half)]
        if turn:
            # Large chunks first, so that no core waits long for the other.
            yield sorted(turn, key=lambda item: -item[1].nbytes)


def _batches(parts: list[Path]) -> Iterator[pa.Table]:
    waiting: list[pa.Table] = []
    for part in parts:
        file = pq.ParquetFile(part)
        for group in range(file.num_row_groups):
            waiting.append(file.read_row_group(group))
            if sum(t.num_rows for t in waiting) >= ROWS_AT_ONCE:
                yield pa.concat_tables(waiting).combine_chunks()
                waiting = []
    if waiting:
        yield pa.concat_tables(waiting).combine_chunks()


def _write(turn: list[tuple[str, pa.Table]], folder: Path, settings: dict[str, Any]) -> tuple[float, float]:
    def one(item: tuple[int, tuple[str, pa.Table]]) -> None:
        number, (name, table) = item
        own = dict(settings)
        if own["use_dictionary"] is None:
            own["use_dictionary"] = [f.name for f in table.schema if pa.types.is_string(f.type)]
        pq.write_table(table, folder / f"{name}-{number}.parquet", compression=output.CODEC, **own)

    begin, cpu = time.perf_counter(), time.process_time()
    with ThreadPoolExecutor(CORES) as pool:
        list(pool.map(one, enumerate(turn)))
    taken = time.perf_counter() - begin, time.process_time() - cpu
    for file in folder.iterdir():
        file.unlink()
    return taken


if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1]), Path(sys.argv[2]))))
