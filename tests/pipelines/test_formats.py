"""Folders and states of other releases: read where their columns suffice, else one line with what to do."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from amqpscope.dissector.cli.program import main
from amqpscope.dissector.tables.formats import FORMAT, FormatError
from amqpscope.dissector.tables.output import NOTE
from amqpscope.errors import Error
from amqpscope.pipelines.model.store import StateError, pack, unpack
from amqpscope.pipelines.relations.compute import of_folder
from tests.dissector.runs import FOLDER

CAPTURE = FOLDER / "pika_confirms.pcap"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Folders of tables and of statistics."""
    folder = tmp_path_factory.mktemp("formats")
    tables, statistics = folder / "tables", folder / "stats"
    assert main(["dissect", str(CAPTURE), "-o", str(tables)]) == 0
    assert main(["analyze", str(tables), "-o", str(statistics)]) == 0
    return tables, statistics


def noted(folder: Path, number: int | None) -> None:
    """Write another format into a note; None for none, as before there were numbers."""
    note = json.loads((folder / NOTE).read_text())
    note.pop("format")
    (folder / NOTE).write_text(json.dumps(note if number is None else note | {"format": number}))


@pytest.fixture
def folders(made: tuple[Path, Path], tmp_path: Path) -> tuple[Path, Path]:
    """Copies of these that a test may change."""
    copies = [tmp_path / each.name for each in made]
    for folder, copy in zip(made, copies, strict=True):
        for file in folder.rglob("*"):
            if file.is_file():
                (copy / file.relative_to(folder)).parent.mkdir(parents=True, exist_ok=True)
                (copy / file.relative_to(folder)).write_bytes(file.read_bytes())
    note = json.loads((copies[1] / NOTE).read_text())
    (copies[1] / NOTE).write_text(json.dumps(note | {"tables": str(copies[0])}))
    return copies[0], copies[1]


def without(table: Path, column: str) -> None:
    """Write the part of a table anew without a column."""
    (part,) = table.glob("part-*")
    pq.write_table(pq.ParquetFile(part).read().drop_columns(column), part)


def test_notes_have_the_format(made):
    for folder in made:
        assert json.loads((folder / NOTE).read_text())["format"] == FORMAT


def test_what_a_later_release_wrote_is_refused(folders, capsys, tmp_path):
    tables, statistics = folders
    noted(tables, FORMAT + 1)
    assert main(["analyze", str(tables), "-o", str(tmp_path / "new")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"tables: format {FORMAT + 1}, of a later release; this one reads up to {FORMAT}" in line
    assert line.endswith(f"make it anew: amqpscope dissect {CAPTURE} -o {tables} --replace")
    noted(tables, FORMAT)
    noted(statistics, FORMAT + 1)
    assert main(["summary", str(statistics)]) == 2
    assert "-o " + str(statistics) in capsys.readouterr().err


def test_what_an_earlier_release_wrote_is_read_where_its_columns_suffice(folders, capsys, tmp_path):
    tables, _ = folders
    noted(tables, None)
    assert main(["analyze", str(tables), "-o", str(tmp_path / "new")]) == 0
    without(tables / "messages", "headers")
    assert main(["analyze", str(tables), "-o", str(tmp_path / "again")]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert (
        "tables: format 0, of an earlier release, has no column headers of messages; make it anew: amqpscope " in line
    )


def test_relations_of_statistics_that_lack_a_column_are_refused(folders):
    _, statistics = folders
    noted(statistics, None)
    assert dict(of_folder(statistics, ["exchanges"]))["exchanges"]
    without(statistics / "confirms", "returned")
    text = "stats: format 0, of an earlier release, has no column returned of confirms; make it anew: "
    with pytest.raises(FormatError, match=text):
        dict(of_folder(statistics, ["exchanges"]))


def test_folders_of_two_formats_are_refused(folders, capsys):
    tables, statistics = folders
    noted(tables, None)
    assert main(["summary", str(tables), str(statistics)]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert f"{tables} has format 0 and {statistics} has format {FORMAT}; make it anew: amqpscope dissect " in line


def test_a_state_of_another_release_is_one_line():
    state = pack("confirms", 1, {})
    with pytest.raises(StateError, match="state of confirms version 1, not of confirms version 2; another release"):
        unpack("confirms", 2, state)
    assert issubclass(StateError, Error)
