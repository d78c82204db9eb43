"""The first screen of the page: what the rules found, by party, or what could not be judged."""

import re
from pathlib import Path

import pytest

import amqpscope
from amqpscope.dashboards import findings, first_screen, overview, page
from amqpscope.dashboards.overview import First
from amqpscope.dashboards.section import Finding
from amqpscope.dashboards.tables import Tables
from amqpscope.dissector.cli.program import main
from tests.dashboards import synthetic

CAPTURES = Path(__file__).parents[1] / "captures"
TICKETS = CAPTURES.parent / "tickets"


@pytest.fixture(scope="module")
def demo(demo_statistics: Path) -> Tables:
    return Tables(None, demo_statistics)


def first(tables: Tables) -> First:
    made = overview.query(tables)
    assert made is not None
    return made


def listed(made: First) -> list[Finding]:
    return [finding for _, found in made.parties for finding in found]


def test_the_page_says_what_the_first_screen_says(demo: Tables) -> None:
    made = first(demo)
    assert made.headline.startswith("The broker blocked 3 publishing connections for up to 1.94 s")
    assert "Besides, consumer warehouse-1 is too slow" in made.headline
    by_party = dict(made.parties)
    assert {party: len(found) for party, found in by_party.items()} == {"broker": 2, "client": 8, "network": 0}
    block = by_party["broker"][0]
    assert (block.severity, block.code, block.packet) == ("error", "pub-blocked", 4864)
    assert block.filter == "frame.number in {4864..5272}"
    assert block.span is not None and 1_900_000 < block.span[1] - block.span[0] < 1_960_000
    text = page.render(demo)
    assert "consumer warehouse-1 is too slow" in text and "x-max-length 40" in text
    assert "Publish again later" in text


def said(text: str, **columns: object) -> dict[str, object]:
    return {"code": "c", "severity": "note", "server": "s", "client": "web", "text": text} | columns


def test_what_is_said_of_one_client_again_and_again_is_one_thing() -> None:
    same = [
        said(f"web waits {wait} ({size}) from {at}, in packet {packet}: {share}")
        for wait, size, at, packet, share in (
            ("1.94 s", "12.5 kB", "15:06:47.823", "7", "3%"), ("1 s", "0 kB", "05:00:00", "1,207,001", "100%"),
        )
    ]  # fmt: skip
    others = [
        said("web publishes to queue a1"), said("web publishes to queue a2"), said('web publishes with key "7"'),
        said('web publishes with key "8"'), said("web waits 3 s"), said("of 10.0.0.1:5672"),
        said("of 10.0.0.2:5672"), said("of 10.0.0.1"), said("of 10.0.0.2"), said("web waits 3 s", client="other"),
        said("web waits 3 s", severity="error"), said("a path is dead", client=None),
        said("a path is dead", client=None),
    ]  # fmt: skip
    grouped = findings.alike([same[0], *others, same[1]])
    assert grouped == [same, *([each] for each in others)]


def test_findings_that_say_the_same_are_listed_below_the_first() -> None:
    row = dict.fromkeys(("first_ts_ns", "last_ts_ns", "advice", "first_packet", "first_capture", "filter"))
    rows = [row | said(f"web polls {number} times", first_packet=number) for number in range(30, 0, -1)]
    first, *others = rows
    made = findings.finding(first, 0, others)
    assert (made.such, [each.packet for each in made.others]) == ("29 more such", [*range(29, 9, -1)])
    assert findings.finding(first).such == "" and findings.finding(first).others == []


def test_numbers_that_are_zero_have_no_box(demo: Tables) -> None:
    shown = {reading.name: reading.value for reading in first(demo).numbers}
    assert shown["refused"] == "56" and shown["returned"] == "7" and shown["rejected"] == "18"
    assert shown["missing in the capture"] == "nothing" and "delivered again" not in shown
    assert shown["published"] == "84 per s" and shown["confirm, median / 99 %"].startswith("3.48 ms")


def test_an_encrypted_capture_is_not_calm(tmp_path: Path) -> None:
    made = first(Tables(None, amqpscope.analyze(CAPTURES / "tls_pika.pcap", tmp_path / "stats")))
    assert made.parties[0][0] == "capture" and [each.text for each in listed(made) if "cannot be read" in each.text]
    assert "found anything wrong" not in made.headline


def test_a_healthy_capture_is_judged_by_rules(tmp_path: Path) -> None:
    made = first(Tables(None, amqpscope.analyze(CAPTURES / "begun_before.pcap", tmp_path / "stats")))
    assert [each.code for each in listed(made)] == ["cap-begun"] and "rules found anything wrong" in made.headline


def test_older_statistics_claim_nothing(tmp_path: Path) -> None:
    synthetic.write(tmp_path, "confirms", [])
    made = first(Tables(None, tmp_path))
    assert not listed(made) and made.headline.startswith("Nothing could be judged")


def test_without_statistics_there_is_no_first_screen(tmp_path: Path) -> None:
    assert overview.query(Tables(tmp_path, None)) is None


def test_many_findings_are_cut_and_counted(demo: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings, "MOST", 3)
    made = first(demo)
    assert len(listed(made)) == 3 and made.left_out.startswith("7 more: ")


def test_a_headline_writes_a_name_as_it_is() -> None:
    row = {"severity": "error", "party": "network", "client": "till", "text": "till: nothing gets through"}
    assert overview.headline([row], []) == "till: nothing gets through."
    assert overview.headline([row | {"client": "x", "text": "all is late"}], []) == "All is late."


def test_clients_that_publish_to_streams_and_namesakes(tmp_path: Path) -> None:
    data = first_screen.collect(Tables(None, amqpscope.analyze(CAPTURES / "stream_rstream.pcap", tmp_path / "stats")))
    assert "rstream-producer  stream orders 30" in first_screen.text(data)
    data["clients"] = [row | {"addresses": 2} for row in data["clients"]]
    assert "rstream-producer (2 addresses)  stream orders 30" in first_screen.text(data)


@pytest.mark.parametrize("command", ["summary", "messages"])
def test_heads_and_what_is_wrong_are_painted_where_asked_for(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [command, str(TICKETS / "ack_too_late.pcap")]
    shown = {}
    for when in ("never", "always"):
        main([*words, "--color", when])
        shown[when] = capsys.readouterr().out
    assert "\x1b[" not in shown["never"] and "\x1b[1m" in shown["always"]
    assert re.sub(r"\x1b\[[0-9;]*m", "", shown["always"]) == shown["never"]
    assert ("\x1b[1;31m1 CLIENT\x1b[0m" in shown["always"]) == (command == "summary")
