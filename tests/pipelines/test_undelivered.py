"""Messages that came into queues, or to exchanges, and went to nobody: what is said, and what is not to be said."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pamqp import commands

from tests.captures.damage.recordings import recorded
from tests.dissector.builders import pcap
from tests.dissector.wire import CLIENT, SERVER, T0, Tape, Turn, method
from tests.pipelines.analyzed import findings, related, walked
from tests.pipelines.conversations import (
    BEAT,
    BYE,
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
    returned,
    sent,
)
from tests.tickets import FOLDER as TICKETS

CODES = ("pub-dropped", "con-expired", "con-missing", "pub-unbound", "con-late-reply", "pub-unroutable", "pub-sync")


def found(folder: Path, *tapes: Tape) -> dict[str, str]:
    """The texts of what those rules find in connections, by code."""
    return {row["code"]: row["text"] for row in findings(of_tapes(folder, *tapes)) if row["code"] in CODES}


LIMITED, AGEING = {"x_max_length": 10}, {"x_message_ttl": 100}


def filled(count: int = 40, **arguments: Any) -> Tape:
    """A queue that messages come into; its connection goes on for some seconds."""
    tape = connected(40000).play([*declare("q", **arguments), sent("", "q", count)])
    return later(tape, 5).play([(CLIENT, BEAT)])


def test_what_a_queue_drops_and_what_expires(tmp_path: Path) -> None:
    assert "at least 30 went" in found(tmp_path, filled(**LIMITED))["pub-dropped"]
    assert "40 expired" in found(tmp_path, filled(**AGEING))["con-expired"]
    assert found(tmp_path, filled(10, **LIMITED)) == {}
    assert found(tmp_path, filled(x_message_ttl=60_000)) == {}
    assert found(tmp_path, filled(**LIMITED, x_overflow="reject-publish")) == {}
    for odd in (-(1 << 63), -1):
        assert found(tmp_path, filled(x_max_length=odd)) == {} == found(tmp_path, filled(x_message_ttl=odd))
    beats = begun_before(40001, 0.05).play([(CLIENT, BEAT), (SERVER, BEAT)])
    assert "pub-dropped" in found(tmp_path, filled(**LIMITED), beats), "it took nothing"


def test_a_queue_of_the_last_values_is_meant(tmp_path: Path) -> None:
    reads = connected(40001, 0.01).play(consume("q"))
    for limits, severity in (
        (LIMITED, "warning"),
        ({"x_max_length": 1}, "note"),
        ({**LIMITED, "x_overflow": "drop-head"}, "note"),
    ):
        made = [*filled(**limits).packets, *reads.packets]
        (tmp_path / "made.pcap").write_bytes(pcap(sorted(made, key=lambda each: each.ts_ns), ns=True))
        (row,) = findings(walked(tmp_path / "made.pcap"), "pub-dropped")
        assert row["severity"] == severity


@pytest.mark.parametrize(("comes_first", "left"), [(True, 40), (False, None)])
def test_a_purge_before_all_messages_takes_none(comes_first: bool, left: int | None, tmp_path: Path) -> None:
    purge = [
        (CLIENT, method(commands.Queue.Purge(queue="q"))),
        (SERVER, method(commands.Queue.PurgeOk(message_count=0))),
    ]
    tape = connected(40000).play([*declare("q"), *(purge if comes_first else [])]).play([sent("", "q", 40)])
    tape.play([] if comes_first else purge)
    (tmp_path / "made.pcap").write_bytes(pcap(tape.packets, ns=True))
    (row,) = related(walked(tmp_path / "made.pcap"), "queues")
    assert row["left_over"] == left


ENDS: dict[str, list[Turn]] = {
    "it stays": [],
    "its cancel": [
        (CLIENT, method(commands.Basic.Cancel(consumer_tag="c"))),
        (SERVER, method(commands.Basic.CancelOk(consumer_tag="c"))),
    ],
    "its channel": [
        (CLIENT, method(commands.Channel.Close(200, "", 0, 0))),
        (SERVER, method(commands.Channel.CloseOk())),
    ],
    "its connection": [(CLIENT, method(BYE, 0)), (SERVER, method(commands.Connection.CloseOk(), 0))],
}


@pytest.mark.parametrize("how", ENDS)
def test_a_queue_that_goes_with_its_last_consumer_takes_nothing_from_there_on(how: str, tmp_path: Path) -> None:
    """However that ended."""
    command = commands.Queue.Declare(queue="q", auto_delete=True)
    made = [(CLIENT, method(command)), (SERVER, method(commands.Queue.DeclareOk("q", 0, 0)))]
    reader = connected(40001).play([*made, *consume("q"), *ENDS[how]])
    web = connected(40000, 2).play([sent("", "q", 40)])
    tables = of_tapes(tmp_path, reader.end() if how == "its connection" else reader, web)
    (queue,), (consumer,) = related(tables, "queues"), related(tables, "consumers")
    assert (queue["ins"], consumer["ended_ts_ns"] is None) == ((40, True) if how == "it stays" else (None, False))


def lossy() -> Tape:
    """A consumer that got all, of which the capture lacks some packets."""
    tape = connected(40001, 0.01).play(consume("q"))
    for number in range(1, 41):
        tape.play([given("", "q", 1, number)])
        if number % 2:
            tape.packets.pop()
    tape.segment(CLIENT)
    return tape


def encrypted() -> Tape:
    """A connection over TLS, at another port."""
    tape = Tape(port=40001)
    packets, _ = recorded(str(TICKETS / "encrypted.pcap"))
    tape.packets += [replace(each, ts_ns=each.ts_ns - packets[0].ts_ns + T0 + 50_000_000) for each in packets]
    return tape


OTHERS: dict[str, Callable[[dict[str, Any]], list[Tape]]] = {
    "a consumer that began before the capture": lambda limits: [
        filled(**limits),
        begun_before(40001, 0.05).play([given("", "q", 40, 100)]),
    ],
    "one that began before it, at another port": lambda limits: [
        filled(**limits),
        Tape(port=40001, server_port=5673, start_ns=T0 + 50_000_000, syn=False, isn=(5000, 6000))
        .play([given("", "q", 40, 100)]),
    ],
    "a consumer that cannot be read": lambda limits: [filled(**limits), encrypted()],
    "publishes that a blocked broker does not read": lambda limits: [
        later(connected(40000).play([
            *declare("q", **limits),
            (SERVER, method(commands.Connection.Blocked(reason="low on memory"), 0)), sent("", "q", 40),
        ]), 5).play([(CLIENT, BEAT)]),
    ],
    "deliveries that the capture lost": lambda limits: [filled(**limits), lossy()],
    "a consumer at another node": lambda limits: [
        filled(**limits),
        connected(40001, 0.01, server_port=5673).play([*consume("q"), given("", "q", 40)]),
    ],
    "a queue that goes with its connection": lambda limits: [
        closed(connected(40000).play([*declare("q", exclusive=True, **limits), sent("", "q", 8)])),
        closed(connected(40001, 2).play([*declare("q", exclusive=True, **limits), sent("", "q", 8)])),
        closed(connected(40002, 20)),
    ],
    "a queue that is purged": lambda limits: [
        filled(**limits).play([(CLIENT, method(commands.Queue.Purge(queue="q")))])
        .play([(SERVER, method(commands.Queue.PurgeOk(message_count=10)))]),
    ],
    "transactions, which may be rolled back": lambda limits: [
        later(
            connected(40000).play([
                *declare("q", **limits),
                (CLIENT, method(commands.Tx.Select())), (SERVER, method(commands.Tx.SelectOk())),
                sent("", "q", 40),
                (CLIENT, method(commands.Tx.Rollback())), (SERVER, method(commands.Tx.RollbackOk())),
            ]), 5,
        ).play([(CLIENT, BEAT)]),
    ],
}  # fmt: skip


@pytest.mark.parametrize("limits", [LIMITED, AGEING], ids=["limit", "age"])
@pytest.mark.parametrize("case", OTHERS)
def test_others_did_not_lose_them(case: str, limits: dict[str, Any], tmp_path: Path) -> None:
    assert found(tmp_path, *OTHERS[case](limits)) == {}


def fanned(shared: int = 30, **of: Any) -> list[Tape]:
    """Two queues that get the same messages, of which one is read."""
    first = connected(40000).play([*exchange("e", "fanout"), *exchange("f", "fanout")])
    first.play([*declare("a"), *declare("b"), *bind("a", "e", ""), *bind("b", "e", ""), *bind("a", "f", "")])
    reader = connected(40001, 0.5).play([*consume("b"), given("e", "", shared), *of.get("reads", [])])
    first.play([sent("e", "", shared), *of.get("more", [])])
    return [first, reader]


def test_a_queue_that_nobody_reads_while_another_one_is_read(tmp_path: Path) -> None:
    assert "Queue a took 30 messages of exchange e" in found(tmp_path, *fanned())["con-missing"]
    text = found(tmp_path, *fanned(more=[sent("f", "", 50)]))["con-missing"]
    assert "took 30 messages of exchange e" in text, "those of the other exchange are not the same"
    assert found(tmp_path, *fanned(shared=5, more=[sent("f", "", 50)])) == {}
    third = connected(40003, 0.2).play([*declare("c"), *bind("c", "e", "")])
    assert "took 30 messages of exchange e" in found(tmp_path, *fanned(), third)["con-missing"]
    before = begun_before(40002, 0.6).play([given("e", "", 30, 100)])
    assert found(tmp_path, *fanned(), before) == {}, "it may read that queue"


def keyed(*setup: Turn, key: str = "orders.created", **kind: Any) -> Tape:
    """Messages with a key that is spelt in another way than the binding."""
    tape = connected(40000).play([*exchange("e", **kind), *declare("q"), *declare("p")])
    tape.play([*bind("q", "e", "order.created"), *bind("p", "e", "another"), *setup])
    return later(tape, 2).play([sent("e", key, 12)])


def test_a_key_that_fits_no_binding(tmp_path: Path) -> None:
    text = found(tmp_path, keyed())["pub-unbound"]
    assert '(2, such as "order.created" to q in packet' in text, "of one binding"
    assert found(tmp_path, keyed(key="order.created")) == {}
    assert found(tmp_path, keyed(alternate_exchange="rest")) == {}
    aside = [
        (CLIENT, method(commands.Exchange.Bind(destination="d", source="e", routing_key="#"))),
        (SERVER, method(commands.Exchange.BindOk())),
    ]
    assert found(tmp_path, keyed(*exchange("d"), *aside)) == {}, "it leads further"
    assert found(tmp_path, keyed(), begun_before(40001, 3).play([given("e", "orders.created", 12, 9)])) == {}
    assert (
        found(tmp_path, keyed(), connected(40001, 3, 5673).play([*consume("z"), given("e", "orders.created", 12)]))
        == {}
    )


def answered(*of_owner: Turn, closes: bool = True, then: Tape | None = None) -> list[Tape]:
    """Messages to a queue that was exclusive to a connection, and come back."""
    owner = connected(40000).play([*declare("mine", exclusive=True), *of_owner])
    sender = connected(40001, 5).play([sent("", "mine", 2, mandatory=True), returned("mine", 2)])
    return [closed(owner) if closes else owner, sender, *([then] if then else [])]


DELETE: list[Turn] = [
    (CLIENT, method(commands.Queue.Delete(queue="mine"))),
    (SERVER, method(commands.Queue.DeleteOk(message_count=0))),
]


def test_answers_to_a_queue_that_went_with_its_connection(tmp_path: Path) -> None:
    assert "exclusive to 10.0.0.1" in found(tmp_path, *answered())["con-late-reply"]
    for tapes in (
        answered(*DELETE, closes=False),
        answered(*DELETE),
        answered(then=connected(40002, 1).play([*declare("mine"), *DELETE])),
        answered(then=begun_before(40002, 1).play([*declare("mine"), *DELETE])),
        answered(then=connected(40002, 1, 5673).play(declare("mine"))),
    ):
        assert {*found(tmp_path, *tapes)} == {"pub-unroutable"}


def commits(pipelined: bool, acks: bool) -> Tape:
    """Forty transactions, one after the other or at once, of a message each or of acknowledgements."""
    tape = connected(40000).play([*declare("q"), (CLIENT, method(commands.Tx.Select()))])
    tape.play([(SERVER, method(commands.Tx.SelectOk()))])
    if acks:
        command = commands.Basic.Consume(queue="q", consumer_tag="c")
        tape.play([(CLIENT, method(command)), (SERVER, method(commands.Basic.ConsumeOk(consumer_tag="c")))])
        tape.play([given("", "q", 40), sent("", "q", 1)])
    for number in range(1, 41):
        does = (CLIENT, method(commands.Basic.Ack(delivery_tag=number))) if acks else sent("", "q", 1)
        tape.play([does, (CLIENT, method(commands.Tx.Commit()))])
        if not pipelined:
            tape.send(SERVER, method(commands.Tx.CommitOk()))
            tape.packets[-1] = replace(tape.packets[-1], ts_ns=tape.packets[-1].ts_ns + 40_000_000)
            later(tape, 0.04)
    if pipelined:
        later(tape, 1).play([(SERVER, method(commands.Tx.CommitOk()) * 40)])
    return tape


def test_transactions_that_are_waited_for(tmp_path: Path) -> None:
    assert "40 transactions for 40 messages" in found(tmp_path, commits(False, False))["pub-sync"]
    assert found(tmp_path, commits(True, False)) == {}
    paused = later(commits(True, False), 45).play([sent("", "q", 1), (CLIENT, method(commands.Tx.Commit()))])
    assert found(tmp_path, paused.play([(SERVER, method(commands.Tx.CommitOk()))])) == {}
    assert found(tmp_path, commits(False, True)) == {}


def test_what_a_later_message_passed_has_expired(tmp_path: Path) -> None:
    """The capture ends sooner than the last message would: what stood before it is gone."""

    def said(*late: Turn, **arguments: Any) -> str:
        tape = connected(40000, name="app").play([*declare("q", x_message_ttl=60_000, **arguments)])
        tape.play([sent("", "q", 1, message_id=f"m{number}") for number in range(4)])
        reader = connected(40001, 0.02, name="reader").play([*consume("q", no_ack=True), *late])
        return found(tmp_path, closed(tape), closed(reader)).get("con-expired", "")

    passed, first = given("", "q", 1, message_id="m3"), given("", "q", 1, message_id="m0")
    assert "4 that came, 1 were delivered and 3 expired" in said(passed)
    assert said(first) == "" and said() == "", "they may wait"
    assert said(passed, x_max_priority=3) == "", "the last may come first"
