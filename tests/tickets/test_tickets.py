"""Tickets: reproduced problems of users and their twins; what is found in each, and with a packet missing."""

from functools import cache
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from amqpscope.spec import findings as rules
from tests.pipelines.analyzed import findings, walked
from tests.tickets import FOLDER, TICKETS
from tests.tickets.missing import made_up, records


@cache
def found(path: Path) -> list[dict[str, Any]]:
    return findings(walked(path))


def above_notes(path: Path) -> list[dict[str, Any]]:
    return [row for row in found(path) if row["severity"] != "note"]


def test_every_capture_is_a_ticket() -> None:
    assert {path.stem for path in FOLDER.glob("*.pcap")} == TICKETS.keys()
    assert {each["twin"] for each in TICKETS.values() if "twin" in each} <= TICKETS.keys()
    assert {each["first"] for each in TICKETS.values()} - {""} <= {rule.code for rule in rules.load()}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", TICKETS)
def test_the_cause_is_first_and_nothing_else_is_claimed(name: str) -> None:
    rows, ticket = above_notes(FOLDER / f"{name}.pcap"), TICKETS[name]
    assert [row["code"] for row in rows] == [ticket["first"]] * bool(ticket["first"])
    assert all(word in rows[0]["text"] for word in ticket.get("words", ())), rows[0]["text"]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", list(TICKETS)[::3])
def test_a_missing_packet_makes_nothing_up(name: str) -> None:
    """One packet of each third ticket; `tests.tickets.missing` leaves out all of all."""
    path = FOLDER / f"{name}.pcap"
    place = crc32(name.encode()) % len(records(path.read_bytes()))
    assert made_up(name, place, {row["code"] for row in found(path)}) == set()


def test_a_connection_that_nobody_closed_is_a_note() -> None:
    notes = {name: [(r["code"], r["text"]) for r in found(FOLDER / f"{name}.pcap") if r["code"] == "cnx-aborted"]
             for name in ("killed_client", "ended_client")}  # fmt: skip
    text = "cron ended 1 connection without connection.close"
    assert notes == {"killed_client": [("cnx-aborted", text)], "ended_client": []}
