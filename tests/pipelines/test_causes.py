"""Findings that name what lies behind them, and what they leave out where it does not."""

from __future__ import annotations

from pathlib import Path

from pamqp import commands

from tests.dissector.wire import ACK, CLIENT, RST, SERVER, Tape, Turn, method
from tests.pipelines.analyzed import findings, related
from tests.pipelines.conversations import (
    BEAT,
    at,
    begun_before,
    closed,
    connected,
    consume,
    declare,
    given,
    later,
    of_tapes,
    sent,
)

QOS = [(CLIENT, method(commands.Basic.Qos(prefetch_count=20))), (SERVER, method(commands.Basic.QosOk()))]


def text_of(code: str, folder: Path, *tapes: Tape) -> str:
    (row,) = findings(of_tapes(folder, *tapes), code)
    return str(row["text"])


def failed(text: str, reply_code: int = 406) -> list[Turn]:
    """The broker closes channel 1."""
    close = commands.Channel.Close(reply_code=reply_code, reply_text=text, class_id=60, method_id=80)
    return [(SERVER, method(close)), (CLIENT, method(commands.Channel.CloseOk()))]


def acknowledging(no_ack: bool) -> Tape:
    tape = connected(40000, name="sync").play([*declare("q"), *consume("q", no_ack=no_ack), given("", "q", 5)])
    tape.play([(CLIENT, method(commands.Basic.Ack(1))), *([] if no_ack else [(CLIENT, method(commands.Basic.Ack(1)))])])
    return closed(tape.play(failed("PRECONDITION_FAILED - unknown delivery tag 1")))


def test_who_acknowledges_what_needs_none(tmp_path: Path) -> None:
    said = text_of("con-unknown-tag", tmp_path, acknowledging(no_ack=True))
    assert "sync acknowledges deliveries of its consumer, which has automatic acknowledgement (no_ack)" in said
    assert "5 deliveries were settled when they were sent" in said and "unknown delivery tag" not in said
    said = text_of("con-unknown-tag", tmp_path, acknowledging(no_ack=False))
    assert "unknown delivery tag 1 (settled before" in said and "automatic" not in said


def timed_out(*then: Tape, again: bool = False) -> list[Tape]:
    tape = connected(40000, name="hd").play([*declare("q"), *consume("q", no_ack=False)])
    feed = connected(40001, 0.05, name="feed").play([sent("", "q", 30)])
    at(tape, 0.1).play([given("", "q", 1)])
    text = "PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out. Timeout value used: 8000 ms"
    at(tape, 9).play(failed(text))
    if again:
        tape.play([(CLIENT, method(commands.Channel.Open())), (SERVER, method(commands.Channel.OpenOk()))])
        tape.play(consume("q", no_ack=False))
    return [later(tape, 1).play([(CLIENT, BEAT)]), at(feed, 10).play([(CLIENT, BEAT)]), *then]


def test_a_consumer_that_timed_out_and_never_came_back(tmp_path: Path) -> None:
    said = text_of("con-406-timeout", tmp_path, *timed_out())
    assert "nobody consumes from q any more, and 30 messages are left in it" in said
    assert "any more" not in text_of("con-406-timeout", tmp_path, *timed_out(again=True))
    other = connected(40002, 0.2, name="other").play(consume("q", tag="other", no_ack=False))
    assert "any more" not in text_of("con-406-timeout", tmp_path, *timed_out(at(other, 10).play([(CLIENT, BEAT)])))


def test_what_a_client_had_in_hand_when_its_heartbeats_were_missed(tmp_path: Path) -> None:
    def missed(turn: Turn) -> Tape:
        tape = connected(40000, name="builder").play([*declare("q"), *consume("q", no_ack=False), turn])
        for beat in (30, 60, 90, 120, 150, 180):
            at(tape, beat).play([(SERVER, BEAT)])
            tape.segment(CLIENT)
        at(tape, 181).segment(SERVER, flags=RST | ACK)
        return tape

    assert "it had a message of queue q in hand for" in text_of("cnx-heartbeat", tmp_path, missed(given("", "q", 1)))
    assert "in hand" not in text_of("cnx-heartbeat", tmp_path, missed((SERVER, BEAT)))


def test_one_of_few_who_takes_all(tmp_path: Path) -> None:
    """The second comes while the first has most of them; without names they are called by their ports."""
    first = begun_before(40000, 0).play(
        [*QOS, *consume("q", tag="None1", no_ack=False), given("", "q", 9, tag="None1")]
    )
    for number in range(1, 10):
        at(first, 3 * number).play([(CLIENT, method(commands.Basic.Ack(number)))])
    second = begun_before(40001, 2).play([*consume("q", tag="None2", no_ack=False)])
    statistics = of_tapes(tmp_path, first, at(second, 28).play([(CLIENT, BEAT)]))
    (row,) = findings(statistics, "con-hoard")
    assert "consumer 10.0.0.1:40000 hoards: it got all 9" in row["text"] and "10.0.0.1:40001, which" in row["text"]
    assert {each["called"] for each in related(statistics, "consumers")} == {"10.0.0.1"}


def test_what_left_a_queue_is_not_known_where_a_reader_has_no_virtual_host(tmp_path: Path) -> None:
    feed = connected(40000, name="web").play([*declare("q"), sent("", "q", 30)])
    (row,) = related(of_tapes(tmp_path, closed(feed)), "queues")
    assert row["left_over"] == 30
    reader = begun_before(40001, 0.1).play([given("", "q", 30, number) for number in range(1, 2)])
    rows = related(of_tapes(tmp_path, closed(feed), reader), "queues")
    assert {(row["vhost"], row["left_over"]) for row in rows} == {("/", None), ("", None)}
