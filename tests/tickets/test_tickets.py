"""Tickets: reproduced problems of users and their twins; what is found in each, and with a packet missing."""

from functools import cache
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from amqpscope.spec import findings as rules
from tests.pipelines.analyzed import findings, walked
from tests.tickets import FOLDER, TICKETS, is_derived, path_of, sample
from tests.tickets.derived import CHANGES, made, places
from tests.tickets.missing import codes, made_up, recorded
from tests.tickets.recall import ONLY_NOTES


@cache
def found(path: Path) -> list[dict[str, Any]]:
    return findings(walked(path))


def above_notes(path: Path) -> list[dict[str, Any]]:
    return [row for row in found(path) if row["severity"] != "note"]


def test_every_capture_is_a_ticket() -> None:
    assert {path.stem for path in FOLDER.glob("*.pcap")} <= TICKETS.keys()
    assert all(path_of(name).exists() for name in TICKETS if not is_derived(name))
    assert {each["twin"] for each in TICKETS.values() if "twin" in each} <= TICKETS.keys()
    assert {each["by"][0] for each in TICKETS.values() if "by" in each} <= CHANGES.keys()
    named = {code for each in TICKETS.values() for key in ("notes", "also", "near") for code in each.get(key, ())}
    assert (named | {each["first"] for each in TICKETS.values()}) - {""} <= {rule.code for rule in rules.load()}


@pytest.mark.parametrize("name", sample())
def test_the_cause_is_first_and_nothing_else_is_claimed(name: str) -> None:
    """Of a sample; `tests.tickets.recall` counts all."""
    path, ticket = path_of(name), TICKETS[name]
    rows = above_notes(path)
    assert [row["code"] for row in rows][:1] == [ticket["first"]] * bool(ticket["first"])
    assert {row["code"] for row in rows} - {ticket["first"]} == {*ticket.get("also", ())} - {ticket["first"]}
    notes = {row["code"] for row in found(path)} - {row["code"] for row in rows}
    assert notes >= {*ticket.get("notes", ())}
    assert not [code for code in ticket.get("near", ()) if code in notes and code in ONLY_NOTES]
    assert all(word in rows[0]["text"] for word in ticket.get("words", ())), rows[0]["text"]


@pytest.mark.parametrize("name", [name for name in recorded() if name in sample()][::12])
def test_a_missing_packet_makes_nothing_up(name: str) -> None:
    """One packet of some tickets; `tests.tickets.missing` leaves out all of all."""
    path = path_of(name)
    place = crc32(name.encode()) % len(list(places(path.read_bytes())))
    assert made_up(name, place, {row["code"] for row in found(path)}) == set()


def test_a_lost_request_for_confirms_is_no_lack_of_confirms() -> None:
    """Packet 16 asks for confirms; without it, those that come tell that it was asked."""
    assert made_up("killed_at_work_amqp", 15) == set()


def test_a_lost_prefetch_is_no_room_for_more() -> None:
    """Packet 36 says that the consumer takes ten, and it holds ten."""
    assert made_up("holds_ten_bunny", 35) == set()


def test_what_is_left_of_a_loop_is_not_made_up() -> None:
    """Packet 41 is one of three refusals: two are no loop, and refusals all the same."""
    assert made_up("full_vhost", 40) == set()


def test_a_connection_that_nobody_closed_is_a_note() -> None:
    notes = {name: [(r["code"], r["text"]) for r in found(FOLDER / f"{name}.pcap") if r["code"] == "cnx-aborted"]
             for name in ("killed_client", "ended_client")}  # fmt: skip
    text = "cron ended 1 connection without connection.close"
    assert notes == {"killed_client": [("cnx-aborted", text)], "ended_client": []}


@pytest.mark.parametrize(("name", "code"), [("expired_amqplib", "con-expired"), ("drops_oldest_amqp", "pub-dropped")])
def test_deliveries_that_were_not_captured_are_not_lost(tmp_path: Path, name: str, code: str) -> None:
    """Of one direction only there are publishes without deliveries."""
    one_way = tmp_path / "one_way.pcap"
    one_way.write_bytes(made(path_of(name).read_bytes(), ["one_way", 1]))
    assert code in codes(path_of(name))
    assert code not in codes(one_way)
