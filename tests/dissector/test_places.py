"""Captures and tables on an object store: as from and to local folders."""

import gzip
import io
import json
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpscope.dashboards.tables import locate
from amqpscope.dissector import places, stores
from amqpscope.dissector.capture.sources import find, named
from amqpscope.dissector.cli.program import main
from amqpscope.dissector.dissector import Options
from amqpscope.dissector.places import place, readable
from amqpscope.dissector.stores import StoreFile
from amqpscope.dissector.tables.output import NOTE, Output
from amqpscope.dissector.tables.rows import schemas
from tests import store
from tests.dissector.parts import at_once, in_parts
from tests.dissector.runs import FOLDER

TABLES = tuple(schemas())
CAPTURES = ("one.pcap", "deep/two.pcapng", "deep/three.pcap.gz")


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with store.running() as url:
        yield url


@pytest.fixture(scope="module")
def day(bucket: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A folder of captures on the store, and the same one here."""
    contents = dict(zip(CAPTURES, ("pika_confirms.pcap", "two_interfaces.pcapng", "recover.pcap"), strict=True))
    local = tmp_path_factory.mktemp("day")
    (local / "deep").mkdir()
    for name, recording in contents.items():
        data = (FOLDER / recording).read_bytes()
        (local / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        put(f"{bucket}/day/{name}", (local / name).read_bytes())
    put(f"{bucket}/day/notes.txt", b"no capture")
    return f"{bucket}/day", str(local)


def put(url: str, data: bytes) -> None:
    with places.writable(place(url)) as file:
        file.write(data)


def rows_in(folder: str, names: Iterable[str] = TABLES) -> dict[str, list[str]]:
    found = {}
    for name in names:
        parts = [part for part in (place(folder) / name).iterdir() if not part.name.startswith(".")]
        found[name] = sorted(str(row) for part in parts for row in pq.read_table(readable(part)).to_pylist())
    return found


def test_captures_are_found(day: tuple[str, str]) -> None:
    for mine, theirs in ((source, source.replace(day[0], day[1])) for source in (day[0], f"{day[0]}/**/*.pcap*")):
        found, expected = find([mine]), find([theirs])
        assert [(each.name, each.size, each.begin) for each in found] == [
            (each.name, each.size, each.begin) for each in expected
        ]
        assert len(found) == 3
    assert [source.given for source in named([f"{day[0]}/*.pcap"])] == [f"{day[0]}/one.pcap"]
    assert [source.name for source in named([f"{day[0]}/deep/two.pcapng"])] == ["two.pcapng"]


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_tables_are_those_of_local_files(jobs: str, bucket: str, day: tuple[str, str], tmp_path: Path) -> None:
    there, here = f"{bucket}/tables{jobs}", str(tmp_path / "tables")
    assert main(["dissect", day[1], "-o", here]) == 0
    for _ in range(3 - int(jobs)):  # a second run replaces what the first one wrote
        assert main(["dissect", day[0], "-o", there, "--jobs", jobs]) == 0
    assert {path.name for path in place(there).iterdir()} == {NOTE, *schemas()}
    assert json.loads((place(there) / NOTE).read_text())["complete"]
    assert rows_in(there) == rows_in(here)


def test_what_is_read_of_tables_is_that_of_local_ones(
    bucket: str, day: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In both formats: verdicts, statistics, and what pages are made of."""
    printed = []
    for root, captures, form in ((bucket, day[0], "arrow"), (str(tmp_path), day[1], "parquet")):
        tables, stats = f"{root}/tables", f"{root}/stats"
        assert main(["dissect", captures, "-o", tables, "--format", form]) == 0
        capsys.readouterr()
        assert main(["handshakes", tables]) == 0
        assert main(["analyze", tables, "-o", stats]) == 0
        printed.append((capsys.readouterr().out, rows_in(stats, ("confirms", "settlements", "rpcs"))))
    assert printed[0] == printed[1]
    page = locate([place(f"{bucket}/stats")])
    for table in ("confirms", "connections"):  # its note names the folder of the other one
        assert sum(batch.num_rows for batch in page.scan(table, ["connection_id"])) > 0


def test_big_captures_are_read_in_ranges(day: tuple[str, str]) -> None:
    url, path = (f"{folder}/deep/two.pcapng" for folder in day)
    assert in_parts([url], Options(), 2, 1500) == at_once([path], Options())


def test_an_output_that_is_given_up_leaves_no_part(bucket: str) -> None:
    output = Output(f"{bucket}/left", schemas())
    output.abort()
    assert [path.name for path in place(f"{bucket}/left").iterdir()] == [NOTE]
    assert not json.loads((place(f"{bucket}/left") / NOTE).read_text())["complete"]


def test_other_files_are_left_alone(bucket: str, day: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    put(f"{bucket}/mine/thesis.txt", b"years of work")
    assert main(["dissect", day[0], "-o", f"{bucket}/mine"]) == 2
    assert "holds files that are not from an earlier run (thesis.txt)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("path", "what"),
    [
        ("s3://nowhere-at-all/day", "no such bucket: nowhere-at-all"),
        ("{}/day/none.pcap", "{}/day/none.pcap: no such file"),
        ("{}/day/*.none", "{}/day/*.none: no file matches"),
        ("{}/day/notes.txt", "{}/day/notes.txt: not a pcap or pcapng file (looks like text)"),
        ("ftp://host/day", "Unrecognized filesystem type in URI: ftp://host"),
    ],
)
def test_errors_are_one_line(path: str, what: str, bucket: str, day: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["handshakes", path.format(bucket)]) == 2
    assert capsys.readouterr().err == f"amqpscope: {what.format(bucket)}\n"


def test_a_bucket_for_the_output_must_be_there(day: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dissect", day[0], "-o", "s3://nowhere-at-all/tables"]) == 2
    line = "amqpscope: s3://nowhere-at-all/tables: cannot write: no such bucket: nowhere-at-all"
    assert line in capsys.readouterr().err.splitlines()


def test_a_store_that_does_not_answer(
    bucket: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(stores, "ANSWER_S", 0.5)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        assert main(["handshakes", "s3://silent/day"]) == 2
    assert capsys.readouterr().err == "amqpscope: s3://silent did not answer within 0 s\n"


class Remote(io.BytesIO):
    """A file as pyarrow opens it on a store."""

    def size(self) -> int:
        return len(self.getvalue())

    def read_at(self, count: int, at: int) -> bytes:
        return self.getvalue()[at : at + count]


@given(
    content=st.binary(max_size=300),
    reads=st.lists(st.tuples(st.none() | st.integers(0, 320), st.integers(0, 90)), max_size=12),
)
def test_files_on_a_store(content: bytes, reads: list[tuple[int | None, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stores, "LEAST_BLOCK", 7)
        patch.setattr(stores, "MOST_BLOCK", 50)
        file, expected = io.BufferedReader(StoreFile(Remote(content)), 3), io.BytesIO(content)
    for at, count in reads:
        if at is not None:
            assert file.seek(at) == expected.seek(at)
        assert file.read(count) == expected.read(count)
    file.close()
