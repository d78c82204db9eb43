"""Verdicts on the page: what failed in real captures is listed, explained and drawn."""

from pathlib import Path

import pytest

from amqpscope.dashboards import failures, verdicts
from amqpscope.dashboards.section import Figure, Grid
from amqpscope.dashboards.tables import Tables
from amqpscope.dissector.cli import program
from amqpscope.dissector.handshakes import ladder

CAPTURES = Path(__file__).parents[1] / "captures"


def dissected(folder: Path, *names: str) -> Tables:
    assert program.main(["dissect", *(str(CAPTURES / f"{name}.pcap") for name in names), "-o", str(folder)]) == 0
    return Tables(folder)


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> Tables:
    return dissected(tmp_path_factory.mktemp("verdicts") / "tables", "failed_handshakes", "failed_calls")


def grids(tables: Tables) -> dict[str, Grid]:
    return {part.caption: part for part in verdicts.section(tables).parts if isinstance(part, Grid)}


def test_failures_stand_in_groups_with_what_to_do(failed: Tables) -> None:
    found = grids(failed)
    rows = [[cell.text for cell in row] for row in found["Connections by verdict"].rows]
    codes = [row[0] for row in rows]
    assert {"vhost-not-found", "auth-failed", "tls-on-plain-port", "http-on-amqp-port"} <= set(codes)
    assert all(cell.kind == "bad" for cell in next(zip(*found["Connections by verdict"].rows, strict=True))[:5])
    explained = {row[0].text: row for row in found["What it means, and what to do"].rows}
    assert set(explained) == set(codes)
    assert "rabbitmqctl add_vhost nowhere" in explained["vhost-not-found"][2].text


def test_errors_of_channels_have_their_text(failed: Tables) -> None:
    noted = {row[0].text: row for row in grids(failed)["Also noted"].rows}
    assert "NOT_FOUND" in noted["channel-closed"][4].text


def test_a_ladder_has_every_step_of_its_connection(failed: Tables) -> None:
    group = next(g for g in failures.query(failed).worst_first if g.first["handshake_outcome"] == "vhost-not-found")
    steps = ladder.steps(group.first)
    assert [s.name for s in steps[:4]] == ["SYN", "SYN-ACK", "ACK", "header"]
    assert [s.packet for s in steps] == sorted(s.packet or 0 for s in steps)
    assert [s.name for s in steps if s.is_proof][-1] == "connection.close"
    drawn = [p for p in verdicts.section(failed).parts if isinstance(p, Figure)]
    assert len(drawn) == failures.LADDERS
    assert all(figure.drawing.count("<g") for figure in drawn)


def test_where_nothing_failed_the_section_says_so(tmp_path: Path) -> None:
    section = verdicts.section(dissected(tmp_path / "tables", "pika_confirms"))
    assert "Connections: 1 of 1 came up, none ended badly." in section.empty or section.lead
    assert verdicts.section(Tables()).empty == "No connections."
