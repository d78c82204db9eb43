"""The first section of the page: what the rules found, or what could not be judged."""

from pathlib import Path

import pytest

import amqpscope
from amqpscope.dashboards import findings, page
from amqpscope.dashboards.tables import Tables
from tests.dashboards import synthetic

CAPTURES = Path(__file__).parents[1] / "captures"


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Tables:
    return Tables(None, amqpscope.analyze(CAPTURES / "demo.pcap", tmp_path_factory.mktemp("demo") / "stats"))


def test_the_page_says_what_the_first_screen_says(demo: Tables) -> None:
    made = findings.section(demo)
    assert [each.severity for each in made.findings] == sorted(
        (each.severity for each in made.findings), key=("error", "warning", "note").index
    )
    assert "low on memory" in made.findings[0].text and made.findings[0].packet == 4864
    assert "frame.number in {4864..5272}" in made.findings[0].filter
    text = page.render(demo)
    assert "consumer warehouse-1 is too slow" in text and "x-max-length 40" in text
    assert "Publish again later" in text


def test_an_encrypted_capture_is_not_calm(tmp_path: Path) -> None:
    made = findings.section(Tables(None, amqpscope.analyze(CAPTURES / "tls_pika.pcap", tmp_path / "stats")))
    assert [each.text for each in made.findings if "cannot be read" in each.text]
    assert not made.empty


def test_a_healthy_capture_is_judged_by_rules(tmp_path: Path) -> None:
    made = findings.section(Tables(None, amqpscope.analyze(CAPTURES / "begun_before.pcap", tmp_path / "stats")))
    assert not made.findings and "rules found anything wrong" in made.empty


def test_older_statistics_claim_nothing(tmp_path: Path) -> None:
    synthetic.write(tmp_path, "confirms", [])
    made = findings.section(Tables(None, tmp_path))
    assert not made.findings and made.empty.startswith("Nothing could be judged")


def test_without_statistics_it_says_so(tmp_path: Path) -> None:
    assert "amqpscope analyze" in findings.section(Tables(tmp_path, None)).empty


def test_many_findings_are_cut_and_counted(demo: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings, "MOST", 3)
    made = findings.section(demo)
    assert len(made.findings) == 3 and made.note == "3 of 10 shown."
