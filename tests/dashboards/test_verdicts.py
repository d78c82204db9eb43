"""Verdicts on the page: what failed in real captures is listed, explained and drawn."""

from pathlib import Path

import pytest

from amqpscope.dashboards import failures, verdicts
from amqpscope.dashboards import ladders as ladders_of
from amqpscope.dashboards.section import Grid
from amqpscope.dashboards.tables import Tables
from amqpscope.dissector.cli import program
from amqpscope.dissector.handshakes import ladder
from amqpscope.dissector.handshakes.listing import ends_of

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
    ladders = [grid for grid in grids(failed).values() if list(grid.heads[:4]) == ["packet", "time", "client", "step"]]
    assert len(ladders) == failures.LADDERS
    known = {ends_of(g.first): ladder.steps(g.first) for g in failures.query(failed).worst_first}
    for grid in ladders:
        mine = known[tuple(grid.caption.split(": ", 1)[1].split(" \N{RIGHTWARDS ARROW} "))][-ladders_of.STEPS :]
        assert [row[3].text.removesuffix(" (proof)") for row in grid.rows] == [s.name for s in mine]
        assert [row[4].text == "\N{RIGHTWARDS ARROW}" for row in grid.rows] == [s.from_client for s in mine]
        assert [row[3].kind == "bad" for row in grid.rows] == [s.is_proof for s in mine]


def test_where_nothing_failed_the_section_says_so(tmp_path: Path) -> None:
    section = verdicts.section(dissected(tmp_path / "tables", "pika_confirms"))
    assert "Connections: 1 of 1 came up, none ended badly." in section.empty or section.lead
    assert verdicts.section(Tables()).empty == "No connections."
