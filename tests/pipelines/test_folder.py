"""Folders of tables: what their files say of columns saves reading them, and changes no statistics."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from amqpscope.dissector.cli.program import main
from amqpscope.dissector.tables.output import NULLS
from amqpscope.pipelines.folder import least, read_parts
from amqpscope.pipelines.run.local import walk_folder
from tests.dissector.runs import FOLDER


@pytest.fixture(scope="module", params=["many_confirms", "pika_consume", "stream_chunks"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables of a capture: publishes alone, deliveries, and streams."""
    made = tmp_path_factory.mktemp("tables") / request.param
    assert main(["dissect", str(FOLDER / f"{request.param}.pcap"), "-o", str(made)]) == 0
    return made


def statistics(folder: Path) -> dict[str, Counter[str]]:
    found: dict[str, Counter[str]] = {}
    walk_folder(folder, lambda name, rows: found.setdefault(name, Counter()).update(map(repr, rows.to_pylist())))
    return found


def test_columns_without_a_value_are_noted_and_not_read(folder: Path) -> None:
    for path in folder.glob("*/*.parquet"):
        rows = pq.read_table(path)
        noted = json.loads(pq.read_metadata(path).metadata[NULLS.encode()])
        assert noted == sorted(name for name in rows.column_names if rows[name].null_count == len(rows))
        if not len(rows):
            continue
        read = pa.concat_tables(read_parts(folder, path.parent.name, rows.column_names))
        assert len(read) == len(rows)
        assert set(rows.column_names) - set(read.column_names) == {*noted} - {"connection_id"}


def test_statistics_are_the_same_of_files_that_say_nothing_of_columns(folder: Path, tmp_path: Path) -> None:
    for path in folder.glob("*/*.parquet"):
        silent = tmp_path / path.relative_to(folder)
        silent.parent.mkdir(exist_ok=True)
        pq.write_table(pq.read_table(path).replace_schema_metadata(None), silent, write_statistics=False)
    assert least(tmp_path, "messages", "kind") is None
    assert statistics(tmp_path) == statistics(folder)


def test_the_least_text_is_known_from_statistics(folder: Path) -> None:
    kinds = {kind for rows in read_parts(folder, "messages", ["kind"]) for kind in rows["kind"].to_pylist()}
    assert least(folder, "messages", "kind") == min(kinds, default=None)


@pytest.mark.parametrize("entry", [b"[]", b"no JSON", b"7", b'[["a"]]', b"null"])
def test_a_foreign_entry_changes_nothing(entry: bytes, tmp_path: Path) -> None:
    (tmp_path / "messages").mkdir()
    rows = pa.table({"connection_id": [1], "kind": ["publish"]}).replace_schema_metadata({NULLS.encode(): entry})
    pq.write_table(rows, tmp_path / "messages" / "part-0.parquet")
    (read,) = read_parts(tmp_path, "messages", ["connection_id", "kind"])
    assert read.column_names == ["connection_id", "kind"]
