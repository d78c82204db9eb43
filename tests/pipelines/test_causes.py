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
    bind,
    closed,
    connected,
    consume,
    declare,
    exchange,
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


def test_a_queue_whose_last_consumer_was_thrown_out(tmp_path: Path) -> None:
    def said(comes_back: bool) -> str:
        feed = connected(40000, name="erp").play(declare("labels"))
        maker = connected(40001, 0.05, name="maker").play(consume("labels", no_ack=False))
        close = commands.Connection.Close(320, "CONNECTION_FORCED - maintenance", 0, 0)
        at(maker, 1).play([(SERVER, method(close, 0)), (CLIENT, method(commands.Connection.CloseOk(), 0))]).end()
        tapes = [closed(at(feed, 2).play([sent("", "labels", 20)])), maker]
        if comes_back:
            tapes.append(at(connected(40002, 1.5, name="maker").play(consume("labels")), 3).play([(CLIENT, BEAT)]))
        return text_of("cnx-forced", tmp_path, *tapes)

    assert "nobody consumes from labels since, and 20 messages are left in it" in said(comes_back=False)
    assert "nobody" not in said(comes_back=True)


def working(port: int, name: str, seconds: float, prefetch: int = 20) -> Tape:
    """A consumer of queue q that settles sixty messages one after the other, each after some seconds."""
    limit = [(CLIENT, method(commands.Basic.Qos(prefetch_count=prefetch))), (SERVER, method(commands.Basic.QosOk()))]
    tape = connected(port, 0.1, name=name).play([*limit, *consume("q", tag=name, no_ack=False)])
    last = 60
    tape.play([given("", "q", 1, number, tag=name) for number in range(1, prefetch + 1)])
    for number in range(1, last + 1):
        later(tape, seconds).play([(CLIENT, method(commands.Basic.Ack(number)))])
        if number + prefetch <= last:
            tape.play([given("", "q", 1, number + prefetch, tag=name)])
    return closed(tape)


def test_one_of_several_consumers_that_is_slow(tmp_path: Path) -> None:
    feed = connected(40000, name="web").play([*declare("q"), sent("", "q", 180)])
    quick = [working(40001, "thumb-0", 0.02), working(40002, "thumb-1", 0.02)]
    said = text_of("con-slow", tmp_path, closed(feed), *quick, working(40003, "thumb-2", 1.5))
    assert "consumer thumb-2 is much slower than 2 others of queue q" in said
    assert not findings(of_tapes(tmp_path, closed(feed), *quick, working(40003, "thumb-2", 0.1)), "con-slow")
    alone = of_tapes(tmp_path, closed(feed), working(40003, "thumb-2", 1.5))
    assert not [row for row in findings(alone, "con-slow") if "much slower" in row["text"]]


def test_who_stands_still_is_not_slow(tmp_path: Path) -> None:
    feed = connected(40000, name="web").play([*declare("q"), sent("", "q", 300)])
    tape = connected(40001, 0.1, name="invoicer").play(
        [(CLIENT, method(commands.Basic.Qos(prefetch_count=10))), (SERVER, method(commands.Basic.QosOk()))]
    )
    tape.play(consume("q", no_ack=False))
    for number in range(1, 71):
        later(tape, 0.05).play([given("", "q", 1, number), (CLIENT, method(commands.Basic.Ack(number)))])
    tape.play([given("", "q", 10, 71)])
    rows = findings(of_tapes(tmp_path, closed(feed), later(tape, 20).play([(CLIENT, BEAT)])))
    assert [row["code"] for row in rows if row["code"].startswith("con-")] == ["con-unsettled"]


def test_a_key_that_was_renamed(tmp_path: Path) -> None:
    def severity(former: int, again: bool) -> list[str]:
        tape = connected(40000, name="shop").play(
            [*exchange("shop"), *declare("q"), *bind("q", "shop", "order.created")]
        )
        tape.play([sent("shop", "order.created", former)] if former else [])
        later(tape, 1).play([sent("shop", "order.placed", 30)])
        if again:
            later(tape, 1).play([sent("shop", "order.created", 5)])
        reader = connected(40001, 0.5, name="billing").play(consume("q"))
        tapes = closed(tape), at(reader.play([given("shop", "order.created", former)] if former else []), 5)
        return [
            row["severity"]
            for row in findings(of_tapes(tmp_path, tapes[0], tapes[1].play([(CLIENT, BEAT)])), "pub-unbound")
        ]

    assert severity(20, again=False) == ["warning"]
    assert severity(20, again=True) == severity(0, again=False) == ["note"]
