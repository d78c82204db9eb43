"""Whether `amqpscope spec` knows every code that commands print and tables hold."""

import json
from pathlib import Path

import pytest

import amqpscope
from amqpscope import spec
from amqpscope.dissector.cli.program import main
from amqpscope.spec import codes, describe
from tests.dissector.recordings import ours

FOLDER = Path(__file__).parent / "captures"
CODED = ("orders_pika", "mandatory_returns", "refused_opens", "heartbeats", "stream_super", "qpid_props", "blocked")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("stem", CODED)
def test_every_code_in_tables_and_documents_is_described(stem: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Columns that hold codes: those of lists, and codes of anomalies, verdicts and notes."""
    path = FOLDER / f"{stem}.pcap"
    found = ours(path) | amqpscope.analyze(path)
    known = describe.names(spec.load())
    seen = set()
    for name, table in found.items():
        for listed in codes.load():
            for column in (column for column in table.schema.names if listed.are_of(name, column)):
                there = set(table[column].to_pylist()) - {None}
                values = {code.name for code in listed.values}
                assert there <= (known if column == "protocol" else values), (name, column)
                seen |= there
        coded = {"anomalies": ["code"], "failures": ["code"], "connections": ["handshake_outcome", "ending"]}
        seen |= {code for column in coded.get(name, ()) for code in table[column].to_pylist()} - {None}
    assert main(["handshakes", str(path), "--format", "json"]) == 0
    for row in json.loads(capsys.readouterr().out)["connections"]:
        seen |= {note["code"] for note in row["handshake_notes"] or ()}
    assert {"warning", "error", "fine", "note"} & seen and seen <= known


def test_lists_are_of_columns_that_exist() -> None:
    for listed in codes.load():
        names = [code.name for code in listed.values]
        assert len(set(names)) == len(names)
        for column in listed.columns:
            table, _, name = column.rpartition(".")
            tables = [spec.tables()[table]] if table else spec.tables().values()
            assert any(name == each.name for table in tables for each in table.columns), column
