"""Tickets: reproduced problems of users and their twins; what is found in each, and with a packet missing."""

import struct
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from amqpscope.spec import findings as rules
from tests.pipelines.analyzed import findings, walked
from tests.tickets import FOLDER, TICKETS

SAMPLE = 2
"""Packets of each ticket that are left out, one at a time."""


@cache
def found(path: Path) -> list[dict[str, Any]]:
    return findings(walked(path))


def above_notes(path: Path) -> list[dict[str, Any]]:
    return [row for row in found(path) if row["severity"] != "note"]


def test_every_capture_is_a_ticket() -> None:
    assert {path.stem for path in FOLDER.glob("*.pcap")} == TICKETS.keys()
    assert {each["twin"] for each in TICKETS.values() if "twin" in each} <= TICKETS.keys()
    assert {each["first"] for each in TICKETS.values()} - {""} <= {rule.code for rule in rules.load()}


@pytest.mark.parametrize("name", TICKETS)
def test_the_cause_is_first_and_nothing_else_is_claimed(name: str) -> None:
    rows, ticket = above_notes(FOLDER / f"{name}.pcap"), TICKETS[name]
    assert [row["code"] for row in rows] == [ticket["first"]] * bool(ticket["first"])
    assert all(word in rows[0]["text"] for word in ticket.get("words", ())), rows[0]["text"]


def without(path: Path, place: int) -> bytes:
    """The capture without one packet."""
    data = path.read_bytes()
    at = 24
    for _ in range(place):
        at += 16 + struct.unpack_from("<I", data, at + 8)[0]
    return data[:at] + data[at + 16 + struct.unpack_from("<I", data, at + 8)[0] :]


def packets(path: Path) -> int:
    data = path.read_bytes()
    at, count = 24, 0
    while at < len(data):
        at, count = at + 16 + struct.unpack_from("<I", data, at + 8)[0], count + 1
    return count


@pytest.mark.parametrize("name", TICKETS)
def test_a_missing_packet_makes_nothing_up(name: str, tmp_path: Path) -> None:
    path = FOLDER / f"{name}.pcap"
    count = packets(path)
    whole = {row["code"] for row in found(path)}
    for nth in range(SAMPLE):
        (tmp_path / "less.pcap").write_bytes(without(path, (2 * nth + 1) * count // (2 * SAMPLE)))
        less = {row["code"] for row in findings(walked(tmp_path / "less.pcap"))}
        assert {code for code in less - whole if not code.startswith("cap-")} == set()


def test_a_connection_that_nobody_closed_is_a_note() -> None:
    notes = {name: [(r["code"], r["text"]) for r in found(FOLDER / f"{name}.pcap") if r["code"] == "cnx-aborted"]
             for name in ("killed_client", "ended_client")}  # fmt: skip
    text = "cron ended 1 connection without connection.close"
    assert notes == {"killed_client": [("cnx-aborted", text)], "ended_client": []}
