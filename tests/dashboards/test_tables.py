import json
from collections import defaultdict
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from amqpscope.dashboards import tables
from amqpscope.dashboards.tables import NotTablesError, Tables
from tests.dashboards import synthetic
from tests.dashboards.synthetic import rows


def test_group_equals_a_dictionary(shop: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    expected: dict = defaultdict(lambda: [0, 0, None])
    for row in rows(shop, "confirms"):
        group = expected[row["connection_id"], row["channel"]]
        group[0] += 1
        group[1] += row["outcome"] == "nack"
        group[2] = max((v for v in (group[2], row["latency_ns"]) if v is not None), default=None)
    monkeypatch.setattr(tables, "_BATCH_ROWS", 100)
    monkeypatch.setattr(tables, "_MOST_PARTIAL_ROWS", 3)  # merges many times
    found = shop.group(
        "confirms", ["connection_id", "channel"],
        {"n": ("publish_ts_ns", "count"), "nacks": ("nack", "sum"), "most": ("latency_ns", "max")},
        columns={"nack": (pc.field("outcome") == "nack").cast("int64")},
    )  # fmt: skip
    assert {(r["connection_id"], r["channel"]): [r["n"], r["nacks"], r["most"]] for r in found.to_pylist()} == expected


def test_top_equals_sorting(shop: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_BATCH_ROWS", 64)
    known = [r for r in rows(shop, "confirms") if r["latency_ns"] is not None]
    known.sort(key=lambda r: (-r["latency_ns"], r["connection_id"], r["channel"], r["publish_seq"]))
    found = shop.top("confirms", ["connection_id", "channel", "publish_seq"], "latency_ns", 25)
    assert [(r["connection_id"], r["channel"], r["publish_seq"]) for r in found] == [
        (r["connection_id"], r["channel"], r["publish_seq"]) for r in known[:25]
    ]


def test_missing_tables_and_columns_are_empty(tmp_path: Path) -> None:
    (tmp_path / "confirms").mkdir()
    pa.parquet.write_table(pa.table({"publish_ts_ns": [1, 2]}), tmp_path / "confirms" / "part.parquet")
    at = Tables(None, tmp_path)
    (batch,) = at.scan("confirms", ["publish_ts_ns", "outcome", "latency_ns", "returned"])
    assert batch.to_pylist()[1] == {"publish_ts_ns": 2, "outcome": None, "latency_ns": None, "returned": None}
    assert at.top("confirms", ["outcome"], "latency_ns", 3) == []
    assert at.rows("rpcs") == 0
    assert at.group("rpcs", ["request"], {"n": ("request", "count")}).num_rows == 0


def test_unfinished_parts_are_not_read(tmp_path: Path) -> None:
    synthetic.write(tmp_path, "rpcs", [{"request": "channel.open"}])
    (tmp_path / "rpcs" / ".part-00001.parquet").write_bytes(b"half")
    (tmp_path / "rpcs" / "_SUCCESS").write_bytes(b"")
    assert Tables(None, tmp_path).rows("rpcs") == 1


def test_arrow_parts_are_read(tmp_path: Path) -> None:
    (tmp_path / "captures").mkdir()
    with pa.ipc.new_file(tmp_path / "captures" / "part.arrow", pa.schema([("packets", pa.int64())])) as out:
        out.write(pa.record_batch({"packets": [5]}))
    assert Tables(tmp_path).rows("captures") == 1


def test_each_folder_leads_to_the_other(tmp_path: Path) -> None:
    dissected, analyzed = synthetic.shop(tmp_path, 50)
    for given in ([dissected], [analyzed], [dissected, analyzed], [analyzed, dissected]):
        found = tables.locate(given)
        assert found.dissected.resolve() == dissected.resolve()
        assert found.analyzed.resolve() == analyzed.resolve()


def test_statistics_of_other_tables_are_not_taken(tmp_path: Path) -> None:
    dissected, analyzed = synthetic.shop(tmp_path, 50)
    (analyzed / tables.NOTE).write_text(json.dumps({"tables": str(tmp_path / "others")}))
    assert tables.locate([dissected]).analyzed is None
    assert tables.locate([analyzed]).dissected is None


@pytest.mark.parametrize("note", ["", "[]", "{}", '{"tables": 3}', '{"tables": "\\u0000"}', "\xff"])
def test_a_bad_note_is_no_note(tmp_path: Path, note: str) -> None:
    _, analyzed = synthetic.shop(tmp_path, 50)
    (analyzed / tables.NOTE).write_text(note, encoding="latin-1")
    assert tables.locate([analyzed]).dissected is None


def test_what_is_no_folder_of_tables_is_reported(tmp_path: Path) -> None:
    dissected, _ = synthetic.shop(tmp_path, 50)
    (tmp_path / "file.pcap").write_bytes(b"")
    (tmp_path / "empty").mkdir()
    for given, message in (
        ([tmp_path / "none"], "no such folder"),
        ([tmp_path / "file.pcap"], "not a folder of tables"),
        ([tmp_path / "empty"], "no tables of"),
        ([dissected, dissected], "two folders of the same kind"),
    ):
        with pytest.raises((OSError, ValueError), match=message) as caught:
            tables.locate(given)
        assert "\n" not in str(caught.value)


def test_a_damaged_part_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "captures").mkdir()
    (tmp_path / "captures" / "part.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(NotTablesError, match="captures") as caught:
        Tables(tmp_path).rows("captures")
    assert "\n" not in str(caught.value)
