"""`no_ack` of what the broker delivers is that of the request it answers, and null where order does not tell which."""

import pytest
from pamqp import commands

from amqpscope.dissector.kernels import limits
from tests.dissector.runs import dissect_packets, rows
from tests.dissector.wire import CLIENT, SERVER, Tape, Turn, content, deliver, handshake, method, opening

BEGIN = handshake() + opening(1)


def get(no_ack: bool, channel: int = 1) -> Turn:
    return CLIENT, method(commands.Basic.Get(queue="q", no_ack=no_ack), channel)


def got(tag: int, channel: int = 1) -> Turn:
    answer = commands.Basic.GetOk(delivery_tag=tag, exchange="", routing_key="q", message_count=0)
    return SERVER, method(answer, channel) + b"".join(content(b"x", channel))


def consume(no_ack: bool, tag: str = "", nowait: bool = False) -> Turn:
    return CLIENT, method(commands.Basic.Consume(queue="q", consumer_tag=tag, no_ack=no_ack, nowait=nowait))


def consuming(tag: str) -> Turn:
    return SERVER, method(commands.Basic.ConsumeOk(consumer_tag=tag))


def delivered(tag: int, consumer: str) -> Turn:
    return SERVER, b"".join(deliver(tag, consumer=consumer))


def no_acks(tape: Tape) -> dict[int, bool | None]:
    """By delivery tag."""
    return {row["delivery_tag"]: row["no_ack"] for row in rows(dissect_packets(tape.packets)["messages"])}


def test_requests_without_room_leave_those_after_unpaired(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the channel is opened again. On other channels nothing changes."""
    monkeypatch.setattr(limits, "PENDING", 3)
    close = commands.Channel.Close(reply_code=200, reply_text="", class_id=0, method_id=0)
    again = [(CLIENT, method(close)), (SERVER, method(commands.Channel.CloseOk())), *opening(1)]
    tape = Tape().play([*BEGIN, *opening(2), get(True), got(1)])
    tape.play([get(True, 2), get(True), get(True), get(False), got(2), got(3), got(4), got(5, 2)])
    tape.play([get(True), got(6), get(True, 2), got(7, 2), *again, get(True), got(8)])
    assert no_acks(tape) == {1: True, 2: None, 3: None, 4: None, 5: True, 6: None, 7: True, 8: True}


def test_consumes_without_room_leave_those_after_unpaired(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PENDING", 2)
    tape = Tape().play([*BEGIN, consume(True), consume(True), consume(False)])
    tape.play([consuming(f"amq.{n}") for n in (1, 2, 3)])
    tape.play([delivered(n, f"amq.{n}") for n in (1, 2, 3)])
    assert no_acks(tape) == {1: None, 2: None, 3: None}


def test_requests_from_before_the_capture_are_answered_first() -> None:
    """An answer too many tells that the client does not wait for them, and then order tells nothing."""
    tape = Tape(syn=False).play([got(1), got(2), get(True), got(3), got(4), get(True), got(5), *opening(1)])
    tape.play([get(True), got(6)])
    assert no_acks(tape) == {1: None, 2: None, 3: True, 4: None, 5: None, 6: True}


def test_consumes_from_before_the_capture_are_answered_first() -> None:
    tape = Tape(syn=False).play([consuming("amq.0"), consume(True), consuming("amq.1"), consuming("amq.2")])
    tape.play([consume(True), consuming("amq.3"), *(delivered(n, f"amq.{n}") for n in range(4))])
    tape.play([*opening(1), consume(True), consuming("amq.4"), delivered(4, "amq.4")])
    assert no_acks(tape) == {0: None, 1: True, 2: None, 3: None, 4: True}


def test_a_consume_without_an_answer_leaves_the_order_known() -> None:
    tape = Tape(syn=False).play([consume(True, "c", nowait=True), consuming("amq.0")])
    tape.play([consume(True), consuming("amq.1"), delivered(0, "amq.0"), delivered(1, "amq.1"), delivered(2, "c")])
    assert no_acks(tape) == {0: None, 1: True, 2: True}


@pytest.mark.parametrize("syn", [True, False])
def test_an_answer_with_the_tag_of_another_consume_is_not_its_own(syn: bool) -> None:
    """One without a tag of its own is after it in order, and must not be taken for this answer's."""
    tape = Tape(syn=syn).play([*(BEGIN if syn else []), consume(False, "c"), consume(True), consuming("amq.0")])
    tape.play([consuming("c"), consuming("amq.1")])
    tape.play([delivered(n, name) for n, name in enumerate(("amq.0", "c", "amq.1"))])
    assert no_acks(tape) == {0: None, 1: False, 2: None}


def test_a_delivery_without_its_tag_is_of_no_consumer() -> None:
    """Nor is the answer to a consume, where its tag was not captured, of a consumer without one."""
    tape = Tape().play([*BEGIN, consume(True)])
    for side, data in (consuming("amq.0"), delivered(1, "amq.0")):
        tape.segment(side, data, kept=14 + 20 + 20 + 12)
        tape.next[side] += len(data)
    tape.play([delivered(2, "amq.0")])
    found = rows(dissect_packets(tape.packets)["messages"])
    assert {row["no_ack"] for row in found} == {None}
