"""Files of tables say what their columns mean."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import amqpscope
from amqpscope import spec
from amqpscope.dissector.tables.descriptions import described
from tests.dissector.runs import FOLDER


def said(folder: Path, name: str) -> pa.Schema:
    (path,) = (folder / name).iterdir()
    return pq.read_schema(path) if path.suffix == ".parquet" else pa.ipc.open_file(path).schema


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_each_column_of_each_table_has_its_description(tmp_path: Path, form: str) -> None:
    amqpscope.dissect(FOLDER / "orders_pika.pcap", tmp_path / "tables", form=form)
    for name, table in spec.tables().items():
        if table.written_by == "dissect":
            schema = said(tmp_path / "tables", name)
            assert schema.metadata[b"description"].decode() == table.doc
            for column in table.columns:
                metadata = schema.field(column.name).metadata
                assert metadata[b"description"].decode() == column.doc, (name, column.name)
                assert metadata.get(b"unit", b"").decode() == (column.unit or ""), (name, column.name)


def test_arguments_of_methods_have_theirs() -> None:
    schema = described("amqp091_frames", pa.schema([("queue", pa.string()), ("of_a_user", pa.string())]))
    assert schema.field("queue").metadata[b"description"]
    assert schema.field("of_a_user").metadata is None


def test_tables_that_nobody_declared_stay_as_they_are() -> None:
    schema = pa.schema([("a", pa.int32())], {"kept": "yes"})
    assert described("theirs", schema).equals(schema, check_metadata=True)
