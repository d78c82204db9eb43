"""Messages that were not whole when their connection or the capture ended: nobody has them, and nobody waits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pamqp import commands

from tests.dissector.builders import pcap
from tests.dissector.runs import dissect_packets, rows
from tests.dissector.wire import ACK, CLIENT, FIN, RST, SERVER, Tape, content, deliver, handshake, method, opening
from tests.dissector.wire import publish as published
from tests.pipelines.analyzed import findings, related, walked

SELECT = [(CLIENT, method(commands.Confirm.Select())), (SERVER, method(commands.Confirm.SelectOk()))]
DECLARE = [
    (CLIENT, method(commands.Queue.Declare(queue="q"))),
    (SERVER, method(commands.Queue.DeclareOk(queue="q", message_count=0, consumer_count=0))),
]
CONSUME = [
    (CLIENT, method(commands.Basic.Consume(queue="q", consumer_tag="c"))),
    (SERVER, method(commands.Basic.ConsumeOk(consumer_tag="c"))),
]
BEAT = (CLIENT, b"\x08\x00\x00\x00\x00\x00\x00\xce")
Ending = Callable[[Tape], Tape]
Row = dict[str, Any]


def publish(body: bytes = b"first", key: str = "q", **properties: Any) -> bytes:
    command = commands.Basic.Publish(exchange="", routing_key=key)
    return method(command) + b"".join(content(body, **properties))


def begun(size: int = 900, **properties: Any) -> bytes:
    """A publish of which the last bytes were not sent."""
    return publish(b"z" * 1000, **properties)[: size - 1000]


def resets(tape: Tape) -> Tape:
    tape.segment(CLIENT, flags=RST | ACK)
    return tape


def is_reset(tape: Tape) -> Tape:
    tape.segment(SERVER, flags=RST | ACK)
    return tape


def loses_a_packet(tape: Tape) -> Tape:
    """Bytes were sent that the capture lacks: the publish may have been whole."""
    tape.next[CLIENT] += 1000
    return resets(tape)


def later(tape: Tape, seconds: float) -> Tape:
    """Let its next packet come later."""
    tape.start_ns += int(seconds * 10**9)
    return tape


def goes_on(tape: Tape) -> Tape:
    return later(tape, 5).play([(SERVER, BEAT[1])])


def closes_the_channel(tape: Tape) -> Tape:
    close = commands.Channel.Close(reply_code=200, reply_text="", class_id=0, method_id=0)
    return tape.play([(CLIENT, method(close)), (SERVER, method(commands.Channel.CloseOk()))])


def confirming(*turns: tuple[int, bytes]) -> Tape:
    """One publish is confirmed; then these turns."""
    ack = (SERVER, method(commands.Basic.Ack(delivery_tag=1)))
    return Tape().play([*handshake(), *opening(1), *DECLARE, *SELECT, (CLIENT, publish()), ack, *turns])


def analyzed(folder: Path, tape: Tape) -> dict[str, Any]:
    (folder / "made.pcap").write_bytes(pcap(tape.packets, ns=True))
    return walked(folder / "made.pcap")


def lasts(tape: Tape) -> list[Row]:
    return [row for row in rows(dissect_packets(tape.packets)["messages"]) if row["is_partial"]]


@pytest.mark.parametrize(
    ("ends", "cut_by", "ended_by"),
    [
        (resets, "sender", "discarded"), (is_reset, "sender", "discarded"), (Tape.end, "sender", "discarded"),
        (goes_on, "capture-end", "capture-end"), (loses_a_packet, None, "connection-close"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("size", [900, 100, -20])
def test_a_publish_that_is_cut_is_not_published(
    size: int, ends: Ending, cut_by: str | None, ended_by: str, tmp_path: Path
) -> None:
    tape = ends(confirming((CLIENT, begun(size))))
    (message,) = lasts(tape)
    assert (message["cut_by"], message["publish_seq"]) == (cut_by, 2)
    made = analyzed(tmp_path, tape)
    _, cut = sorted(made["confirms"].to_pylist(), key=lambda row: row["publish_seq"])
    assert (cut["outcome"], cut["ended_by"], cut["incomplete"]) == ("none", ended_by, cut_by is not None)
    assert cut_by is None or cut["end_ts_ns"] == cut["publish_ts_ns"], "nobody waits for an answer"
    count = 1 if cut_by else 2
    assert sum(made["published"]["count"].to_pylist()) == count
    (queue,), (client,), (spent,) = (related(made, name) for name in ("queues", "clients", "time_spent"))
    assert (queue["ins"], client["publishes"], client["unanswered"]) == (count, count, count - 1)
    assert sum(row["publishes"] for row in related(made, "rates") if row["grouping"] == "all") == count
    assert len(related(made, "lifecycles")) == count == sum(row["publishes"] for row in related(made, "paces"))
    assert max(row["high"] for row in related(made, "occupancy")) == 1
    (less,) = related(analyzed(tmp_path, ends(confirming())), "time_spent")
    assert (spent["broker_ns"] == less["broker_ns"]) or cut_by is None


def test_the_rest_lies_where_the_capture_has_a_gap(tmp_path: Path) -> None:
    """What is missing in the middle may have been the end of the publish."""
    tape = confirming((CLIENT, begun(400)))
    tape.next[CLIENT] += 600
    made = analyzed(tmp_path, resets(tape.play([(CLIENT, publish())])))
    assert not any(made["confirms"]["incomplete"].to_pylist())


def test_a_publish_before_whose_end_its_channel_is_closed_is_not_published(tmp_path: Path) -> None:
    tape = closes_the_channel(confirming((CLIENT, method(commands.Basic.Publish(routing_key="q")))))
    made = analyzed(tmp_path, tape)
    assert [row["incomplete"] for row in made["confirms"].to_pylist()].count(True) == 1
    assert sum(made["published"]["count"].to_pylist()) == 1


@pytest.mark.parametrize("ends", [resets, goes_on])
def test_a_delivery_that_is_cut_is_not_delivered(ends: Ending, tmp_path: Path) -> None:
    parts = b"".join(deliver(1)), b"".join(deliver(2, b"y" * 500))[:-100]
    ack = (CLIENT, method(commands.Basic.Ack(delivery_tag=1)))
    tape = Tape().play([*handshake(), *opening(1), *DECLARE, *CONSUME, (SERVER, parts[0]), ack, (SERVER, parts[1])])
    made = analyzed(tmp_path, ends(tape))
    assert [row["incomplete"] for row in made["settlements"].to_pylist()].count(True) == 1
    (consumer,), (client,) = related(made, "consumers"), related(made, "clients")
    assert (consumer["deliveries"], consumer["unsettled"], client["deliveries"]) == (1, 0, 1)
    assert sum(row["deliveries"] for row in related(made, "rates") if row["grouping"] == "all") == 1
    assert [row["deliver_frame_no"] for row in made["transits"].to_pylist()] == [
        row["deliver_frame_no"] for row in made["settlements"].to_pylist() if not row["incomplete"]
    ]
    (spent,) = related(made, "time_spent")
    assert spent["client_ns"] < 10_000_000, "it does not have what it would have to settle"
    texts = [row["text"] for row in findings(made, "cnx-aborted")]
    assert [("1 of its deliveries not settled" in text) for text in texts] == [True] * (ends is resets)


def test_a_message_that_is_sent_anew_is_no_duplicate(tmp_path: Path) -> None:
    """Its first half was cut; whole it came once."""
    tapes = []
    for port in (40000, 40001):
        tape = later(Tape(port=port), port - 40000.0).play([*handshake(), *opening(1), *DECLARE, *SELECT])
        for number in range(3):
            tape.play([(CLIENT, publish(key="q", message_id=f"{port if number else 0}-{number}"))])
            tape.play([(SERVER, method(commands.Basic.Ack(delivery_tag=number + 1)))])
        tapes.append(tape)
    tapes[0].play([(CLIENT, begun(message_id="40001-1"))]).end(RST | ACK)
    (tmp_path / "made.pcap").write_bytes(pcap([each for tape in tapes for each in tape.packets], ns=True))
    made = walked(tmp_path / "made.pcap")
    assert findings(made, "pub-dup") == []


def test_the_end_says_what_was_begun(tmp_path: Path) -> None:
    (row,) = findings(analyzed(tmp_path, resets(confirming((CLIENT, begun())))), "cnx-aborted")
    assert "with 1 publish begun but not whole: not published" in row["text"]
    assert "not known" not in row["text"]
    (row,) = findings(analyzed(tmp_path, resets(confirming((CLIENT, publish() + begun())))), "cnx-aborted")
    assert "with 1 unconfirmed publish: whether they arrived is not known, with 1 publish begun" in row["text"]


def test_what_is_still_being_sent_is_not_unconfirmed(tmp_path: Path) -> None:
    assert findings(analyzed(tmp_path, goes_on(confirming((CLIENT, begun())))), "pub-unconfirmed") == []
    assert findings(analyzed(tmp_path, goes_on(confirming((CLIENT, publish())))), "pub-unconfirmed") != []


def test_without_confirms_it_is_not_published_either(tmp_path: Path) -> None:
    tape = Tape().play([*handshake(), *opening(1), (CLIENT, b"".join(published(b"x"))), (CLIENT, begun())])
    made = analyzed(tmp_path, tape.end(FIN | ACK))
    assert sum(made["published"]["count"].to_pylist()) == 1
    assert [row["incomplete"] for row in made["unconfirmed"].to_pylist()] == [False, True]


def test_a_publish_that_another_one_interrupts_may_be_damaged(tmp_path: Path) -> None:
    """A header with a flipped bit belongs to another channel."""
    tape = confirming((CLIENT, method(commands.Basic.Publish(routing_key="q"))), (CLIENT, publish()))
    assert not any(analyzed(tmp_path, tape.end())["confirms"]["incomplete"].to_pylist())
