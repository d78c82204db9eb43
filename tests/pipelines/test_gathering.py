"""Rows that are too many for memory: the statistics are the same, and nothing of them is left in files."""

from __future__ import annotations

import tempfile
from collections import Counter
from functools import cache, partial
from itertools import product
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from amqpscope.dissector.capture.sources import find
from amqpscope.dissector.reading import Reading
from amqpscope.errors import Error
from amqpscope.pipelines.run import engine, runner
from amqpscope.pipelines.run.buckets import Buckets, Pile
from amqpscope.pipelines.run.event_store import SPAN, EventStore
from amqpscope.pipelines.run.local import FIRST, then, walk_captures, walk_folder
from amqpscope.pipelines.run.runner import NOTE, ROOM, Runner
from amqpscope.pipelines.statistics import needs_of
from tests.captures.damage.ways import HARMFUL, Capture, numbered
from tests.dissector.builders import pcap
from tests.dissector.recordings import ours
from tests.dissector.runs import FOLDER, recorded


def test_a_bucket_has_all_of_its_rows_in_their_order():
    buckets = Buckets()
    for first in (0, 100):
        rows = pa.table({"key": [number % 23 for number in range(100)], "value": range(first, first + 100)})
        buckets.write("rows", rows, rows["key"].to_numpy() % 20)
        looked = pa.concat_tables(buckets.look("rows"))
        assert sorted(looked["value"].to_pylist()) == list(range(first + 100))
    found = [rows for number in range(20) if (rows := buckets.read("rows", number)) is not None]
    assert sorted(value for rows in found for value in rows["value"].to_pylist()) == list(range(200))
    keys = [set(rows["key"].to_pylist()) for rows in found]
    assert sum(map(len, keys)) == len(set().union(*keys)) == 23
    assert all(rows["value"].to_pylist() == sorted(rows["value"].to_pylist()) for rows in found)
    assert all(buckets.read("rows", number) is None for number in range(20))


def test_it_is_an_error_where_files_cannot_be_written(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    buckets = Buckets()
    for folder in tmp_path.iterdir():
        folder.rmdir()
    rows = pa.table({"key": [1]})
    with pytest.raises(Error, match=f"{tmp_path}.*: cannot write: .*; set TMPDIR"):
        buckets.write("rows", rows, rows["key"].to_numpy())


@pytest.mark.parametrize("room", [0, 300, 1 << 20])
def test_a_pile_gives_back_all_rows(room):
    pile = Pile("key", room)
    for number in range(5):
        texts = pa.array([f"text {number}", "another", None]).dictionary_encode()
        pile.add(pa.table({"key": pa.array([number, -number, 7]), "text": texts}))
    found = [rows for parts in pile.groups() for part in parts for rows in part.to_pylist()]
    assert len(found) == 15
    assert Counter(row["text"] for row in found) == Counter(
        {"another": 5, None: 5} | {f"text {n}": 1 for n in range(5)}
    )


def statistics(tables: dict[str, pa.Table], room: int, complete: bool, span: int = SPAN) -> dict[str, Counter[str]]:
    found: dict[str, Counter[str]] = {}
    whole = engine.Engine(emit=adding(found), note={**NOTE, "complete": complete})
    whole.runner.store = EventStore(needs_of(whole.runner.chains), room=room, span=span)
    whole._keyed = Pile("key", room)
    for name in FIRST + then():
        rows = tables[name].select(whole.runner.columns(name))
        for first in range(0, len(rows), 200) or (0,):
            whole.add(whole.runner.prepare(name, rows.slice(first, 200)))
    whole.finish()
    return found


def adding(found: dict[str, Counter[str]]) -> engine.Emit:
    return lambda name, rows: found.setdefault(name, Counter()).update(map(repr, rows.to_pylist()))


def dissected(name: str, complete: bool = True) -> dict[str, pa.Table]:
    tables = dict(ours(FOLDER / f"{name}.pcap"))
    if not complete:  # killed before the rows of connections were written
        tables["connections"] = tables["connections"].slice(0, 0)
    return tables


@cache
def in_memory(name: str, complete: bool = True) -> dict[str, Counter[str]]:
    return statistics(dissected(name, complete), 1 << 30, complete)


SMALL = ("failed_handshakes", "lossy_link", "orders_aio_pika", "stream_chunks")


@pytest.mark.sampled(11)
@pytest.mark.parametrize(
    ("name", "complete", "span"), [*product(SMALL, [True, False], [SPAN, 1000, 30]), ("demo", True, SPAN)]
)
def test_what_lies_in_files_is_as_in_memory(name, complete, span, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert statistics(dissected(name, complete), 20_000, complete, span) == in_memory(name, complete)
    assert not list(Path(tmp_path).iterdir())


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("name", "room"), [*product(SMALL, [ROOM, 20_000]), ("demo", 20_000)])
def test_connections_that_are_complete_are_walked_over_before_the_others(name, room, monkeypatch, tmp_path):
    for table, rows in dissected(name).items():
        (tmp_path / table).mkdir()
        with pa.ipc.new_file(tmp_path / table / "part-0.arrow", rows.schema) as file:
            file.write_table(rows, max_chunksize=200)
    monkeypatch.setattr(runner, "LEAST", 0)
    monkeypatch.setattr(engine, "Runner", partial(Runner, room=room))
    ended: list[pa.Array] = []
    end = Runner.end
    monkeypatch.setattr(Runner, "end", lambda self, some: (ended.append(some), end(self, some)))
    found: dict[str, Counter[str]] = {}
    walk_folder(tmp_path, adding(found))
    assert found.pop("captures") == Counter(map(repr, dissected(name)["captures"].to_pylist()))
    assert found == in_memory(name)
    assert ended


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("name", "room", "many"),
    [
        *product(["broken_contents", "qpid_multi_session", "stream_errors", "lossy_link"], [ROOM], [1]),
        ("lossy_link", 5000, 20),
    ],
)
def test_connections_are_walked_over_while_captures_are_read(name, room, many, monkeypatch, tmp_path):
    """Those that ended, and those that go on and have many rows, whatever else goes to files."""
    packets, link = recorded(f"{name}.pcap")
    lossy = HARMFUL["lossy"](Capture(numbered(packets), link), Random(name))
    (tmp_path / "lossy.pcap").write_bytes(pcap(lossy, ns=True, link=link))

    def read() -> dict[str, Counter[str]]:
        found: dict[str, Counter[str]] = {}
        for path in (FOLDER / f"{name}.pcap", tmp_path / "lossy.pcap"):
            walk_captures(Reading(find([str(path)]), compiled=False, batch_bytes=2000), adding(found))
        return found

    expected = read()
    monkeypatch.setattr(runner, "LEAST", 0)
    monkeypatch.setattr(runner, "MANY", many)
    monkeypatch.setattr(engine, "Runner", partial(Runner, room=room))
    assert read() == expected
