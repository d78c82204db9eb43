"""What the page says of small recordings of one problem each."""

from pathlib import Path

import pytest

from amqpscope.dashboards import flow, lanes, overview, page
from amqpscope.dashboards.flow import Flow
from amqpscope.dashboards.tables import Tables
from amqpscope.dissector.cli.program import main

TICKETS = Path(__file__).parents[1] / "tickets"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("statistics")


def statistics(folder: Path, name: str) -> Tables:
    if not (folder / name).exists():
        assert main(["analyze", str(TICKETS / f"{name}.pcap"), "-o", str(folder / name)]) == 0
    return Tables(None, folder / name)


def test_a_busy_capture_of_a_second_has_no_idle_stretch(folder: Path) -> None:
    """40 publishes, 25 ms apart; its rates are in two buckets of a second, which the capture cuts."""
    made = lanes.query(statistics(folder, "full_queue"))
    assert made and "skipped" not in made.x.title and len(made.x.knots) == 2
    assert made.lanes[0].title == "Rates: 31 published per second"


def test_what_is_bound_nowhere_was_published_all_the_same(folder: Path) -> None:
    drawn = flow.section(statistics(folder, "unroutable")).parts[0]
    assert isinstance(drawn, Flow)
    assert {node.name: node.text.partition(",")[0] for node in drawn.columns[1]} == {
        "unroutable_orders paid": "15", "unroutable_orders payed": "15"
    }  # fmt: skip


def test_a_headline_without_problems_names_the_notes(folder: Path) -> None:
    first = overview.query(statistics(folder, "far_worker"))
    assert first and first.headline.startswith("None of ") and first.headline.endswith(" 1 note below.")


def test_what_is_empty_is_said_in_one_place(folder: Path, tmp_path: Path) -> None:
    page.write(statistics(folder, "wrong_password"), tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    before, _, after = text.partition('<section id="empty"')
    assert 'class="empty"' not in before and after.count("<li id=") >= 4 and "No flow control seen." in after
