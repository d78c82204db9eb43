"""A broker that stands still: nothing is answered on any connection, and what only looks like it."""

from __future__ import annotations

from pathlib import Path

from pamqp import commands

from tests.dissector.wire import CLIENT, SERVER, Tape, method
from tests.pipelines.analyzed import findings, related
from tests.pipelines.conversations import at, closed, connected, consume, declare, given, of_tapes, sent


def asks(tape: Tape, queue: str, seconds: float, until: float | None) -> Tape:
    """Declare a queue, then publish to it and wait for the confirm."""
    tape.play(
        [*declare(queue), (CLIENT, method(commands.Confirm.Select())), (SERVER, method(commands.Confirm.SelectOk()))]
    )
    at(tape, seconds).play([sent("", queue, 1)])
    tape.segment(SERVER)
    if until is not None:
        at(tape, until).play([(SERVER, method(commands.Basic.Ack(1, False)))])
    return tape


def declares(tape: Tape, queue: str, seconds: float, until: float) -> Tape:
    request, answer = declare(queue)
    at(tape, seconds).play([request])
    tape.segment(SERVER)
    return at(tape, until).play([answer])


def tapes(until: float = 6.0) -> list[Tape]:
    first = closed(asks(connected(40000, name="shop"), "a", 1, until))
    second = closed(declares(connected(40001, 0.1, name="audit"), "b", 2, until + 0.001))
    return [first, second]


def test_all_that_wait_are_answered_at_once(tmp_path: Path) -> None:
    statistics = of_tapes(tmp_path, *tapes())
    (row,) = related(statistics, "stalls")
    assert row["connections"] == 2 and row["until_ts_ns"] - row["since_ts_ns"] >= 4_900_000_000
    (found,) = findings(statistics, "cnx-stalled")
    assert found["severity"] == "error" and found["party"] == "broker"
    assert "answered nothing to anybody for 5 s" in found["text"] and "2 connections" in found["text"]
    assert not findings(statistics, "pub-late") and not findings(statistics, "chn-late"), "one event, one finding"


def test_who_gives_up_waited_too(tmp_path: Path) -> None:
    left = closed(asks(connected(40000, name="shop"), "a", 1, None))
    gone = asks(connected(40002, 0.2, name="till"), "c", 1.5, None)
    at(gone, 4).end()
    statistics = of_tapes(tmp_path, gone, tapes()[1], left)
    (row,) = related(statistics, "stalls")
    assert row["connections"] == 2 and row["gave_up"] == 1


def test_a_broker_that_goes_on_with_others(tmp_path: Path) -> None:
    reader = connected(40003, 0.3, name="reader").play([*declare("d"), *consume("d")])
    for number in range(1, 12):
        at(reader, 0.5 * number + 0.5).play([given("", "d", 1, number)])
    statistics = of_tapes(tmp_path, *tapes(), closed(reader))
    assert not related(statistics, "stalls") and not findings(statistics, "cnx-stalled")
    assert findings(statistics, "pub-late") and findings(statistics, "chn-late")


def test_one_connection_says_nothing_of_the_broker(tmp_path: Path) -> None:
    statistics = of_tapes(tmp_path, tapes()[0], closed(connected(40001, 0.1)))
    assert not related(statistics, "stalls") and findings(statistics, "pub-late")


def test_nobody_knows_of_a_capture_with_gaps(tmp_path: Path) -> None:
    first, second = tapes()
    lost = connected(40004, 0.3).play(declare("e"))
    del lost.packets[len(lost.packets) - 1]
    at(lost, 7).play(declare("f"))
    statistics = of_tapes(tmp_path, first, second, lost)
    assert not related(statistics, "stalls")
