"""The first screen of the page: what the rules found, by party, or what could not be judged."""

import json
import re
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import amqpscope
from amqpscope.dashboards import findings, first_screen, overview, page
from amqpscope.dashboards.overview import First
from amqpscope.dashboards.section import Finding
from amqpscope.dashboards.tables import NOTE, Tables
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


def test_findings_about_one_thing_are_listed_below_the_first() -> None:
    empty = dict.fromkeys(("first_ts_ns", "last_ts_ns", "first_capture", "filter"))
    said = empty | {"code": "c", "severity": "note", "thing": 1, "such": 49}
    rows = [
        said | {"text": f"{packet} times", "first_packet": packet, "advice": "stop" if packet % 2 else "go on"}
        for packet in range(30, 0, -1)
    ]
    other, unknown = rows[0] | {"thing": 0, "such": 0}, rows[0] | {"thing": None, "such": None}
    assert findings.alike([other, *rows[:2], unknown, *rows[2:], unknown]) == [[other], rows, [unknown], [unknown]]
    made = findings.finding(rows[0], 0, rows[1:])
    assert (made.such, [each.packet for each in made.others]) == ("49 more such, 20 of them here", [*range(29, 9, -1)])
    assert [each.advice for each in made.others[:2]] == ["stop", ""] and not any(each.such for each in made.others)
    assert findings.finding(other).such == findings.finding(unknown).such == ""


def test_findings_of_an_earlier_format_are_things_of_their_own(
    demo: Tables, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert demo.analyzed is not None
    folder = Path(shutil.copytree(str(demo.analyzed), tmp_path / "statistics"))
    (part,) = (folder / "findings").glob("*.parquet")
    pq.write_table(pq.read_table(part).drop_columns(["thing", "such"]), part)
    note = folder / NOTE
    note.write_text(json.dumps(json.loads(note.read_text()) | {"format": 5}))
    assert main(["summary", str(folder)]) == 0
    assert "refused 56 of 96" in capsys.readouterr().out
    assert [each.such for each in listed(first(Tables(None, folder)))] == [""] * len(listed(first(demo)))


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
