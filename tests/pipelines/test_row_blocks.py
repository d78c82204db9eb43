"""Rows of tables are cut by connection, and come together again as they were. Without Spark."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from amqpscope.pipelines.folder import read_parts
from amqpscope.pipelines.model.events import decoded
from amqpscope.pipelines.run.local import FIRST, then
from amqpscope.pipelines.run.runner import Runner
from amqpscope.pipelines.spark import row_blocks
from tests.dissector.recordings import ours
from tests.dissector.runs import FOLDER


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two recordings, each of which is a part file of several row groups."""
    folder = tmp_path_factory.mktemp("tables")
    for capture in ("demo", "orders_pika"):
        for table, rows in ours(FOLDER / f"{capture}.pcap").items():
            (folder / table).mkdir(exist_ok=True)
            pq.write_table(rows, folder / table / f"{capture}.parquet", row_group_size=200)
    return folder


@pytest.mark.sampled(3)
@pytest.mark.parametrize("parts", [1, 3, 16])
@pytest.mark.parametrize("size", [1, 7])
def test_all_rows_of_a_connection_come_to_one_part_in_their_order(tables: Path, parts: int, size: int) -> None:
    units = row_blocks.units(tables)
    groups = [units[first : first + size] for first in range(0, len(units), size)]
    made = [
        batch
        for number in range(len(groups))
        for batch in row_blocks.cut(groups, parts, [pa.record_batch({"id": [number]})])
    ]
    columns, seats = Runner(threads=0).columns, dict[int, set[int]]()
    blocks = sorted(made, key=lambda batch: (batch["part"][0].as_py(), batch["number"][0].as_py()))
    found: dict[str, list[pa.Table]] = {}
    for batch in blocks:
        for table, rows in row_blocks.blocks([batch]):
            found.setdefault(table, []).append(decoded(rows))
            for identity in rows["connection_id"].drop_null().to_pylist():
                seats.setdefault(identity, set()).add(batch["part"][0].as_py())
    assert all(len(each) == 1 for each in seats.values())
    for table in FIRST + then():
        names = columns(table)
        wanted = pa.concat_tables(map(decoded, read_parts(tables, table, names)), promote_options="default")
        rows = pa.concat_tables(found[table], promote_options="default") if table in found else wanted.slice(0, 0)
        assert len(rows) == len(wanted), table
        for identity in pc.unique(wanted["connection_id"]):
            mine = [each.filter(pc.equal(each["connection_id"], identity)) for each in (rows, wanted)]
            assert mine[0].select(mine[1].column_names).to_pylist() == mine[1].to_pylist(), table


def test_blocks_bring_no_texts_of_others() -> None:
    texts = pa.array([f"text {number}" for number in range(100)]).dictionary_encode()
    rows = pa.table({"connection_id": pa.array(range(100), pa.int64()), "detail": texts})
    for some in row_blocks.split(rows, 10):
        assert len(some) == 10
        assert all(len(chunk.dictionary) == 10 for chunk in some["detail"].chunks)
    for some in row_blocks.split(rows.set_column(0, "connection_id", pa.nulls(100, pa.int64())), 2):
        assert len(some) in (0, 100)
