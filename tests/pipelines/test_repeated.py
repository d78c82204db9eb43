"""What is done again and again (published back, consumed anew, asked in vain), and what only looks like it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pamqp import commands

from amqpscope.pipelines.findings import replica
from tests.dissector.wire import CLIENT, SERVER, Tape, Turn, content, method, opening
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


def text_of(code: str, folder: Path, *tapes: Tape) -> str:
    """The text of the one finding of a rule; empty where it has none."""
    rows = findings(of_tapes(folder, *tapes), code)
    assert len(rows) <= 1
    return rows[0]["text"] if rows else ""


# ------------------------------------------------------------------------------------------------ published back


def worked(*turns: Turn, into: str = "q", times: int = 6, own: bool = False, new_ids: bool = False) -> list[Tape]:
    """A worker that publishes a message of queue q again under its id, after each delivery."""
    web = connected(40000, name="web").play([*declare("q"), *turns])
    worker = connected(40001, 0.005, name="worker-1").play(consume("q"))
    if own:
        worker.play([sent("", "q", 1, message_id="m0")])
    else:
        web.start_ns += 10_000_000
        web.play([sent("", "q", 1, message_id="m0")])
    worker.start_ns += 20_000_000
    for number in range(1, times + 1):
        name = f"m{number - 1 if new_ids else 0}"
        headers = {"attempt": number}
        worker.play([given("", "q", 1, number, message_id=name, headers={"attempt": number - 1} if number > 1 else {})])
        if into != "q":
            headers["x-death"] = [{"queue": into, "reason": "expired", "count": 1}]
        worker.play([sent("", into, 1, message_id=f"m{number if new_ids else 0}", headers=headers)])
    return [web, later(worker, 1).play([(CLIENT, BEAT)])]


def test_a_message_that_its_consumer_publishes_back(tmp_path: Path) -> None:
    found = text_of("con-redelivery-loop", tmp_path, *worked())
    assert "worker-1 publishes 1 message of queue q again and again" in found and "6 times" in found
    assert text_of("con-redelivery-loop", tmp_path, *worked(times=4)) == "", "four attempts"
    assert text_of("con-redelivery-loop", tmp_path, *worked(own=True)) == "", "it asks itself"
    assert text_of("con-redelivery-loop", tmp_path, *worked(new_ids=True)) == "", "work that makes more work"
    assert text_of("con-redelivery-loop", tmp_path, *worked(*declare("next"), into="next")) == "", "the next step"


def test_attempts_that_come_to_an_end_are_no_loop(tmp_path: Path) -> None:
    def tried(times: int) -> str:
        web, worker = worked(times=times)
        worker.play([given("", "q", 1, times + 1, message_id="m0")])
        return text_of("con-redelivery-loop", tmp_path, web, worker)

    assert tried(6) == "" and "12 times" in tried(12)


def test_without_ids_it_is_a_remark(tmp_path: Path) -> None:
    def fed(others: int) -> list[dict[str, Any]]:
        web = connected(40000, name="web").play([*declare("q"), sent("", "q", others)])
        worker = connected(40001, 0.1, name="worker").play([*consume("q"), given("", "q", 60), sent("", "q", 60)])
        return findings(of_tapes(tmp_path, web, worker), "con-redelivery-loop")

    (row,) = fed(10)
    assert row["severity"] == "note" and "worker publishes 60 messages to queue q, which it consumes" in row["text"]
    assert fed(13) == [] == fed(0)


def test_whose_message_it_was(tmp_path: Path) -> None:
    """One that nobody else was seen to publish may be meant: a tick, under one id."""
    for seen, severity in ((True, "warning"), (False, "note")):
        web, worker = worked()
        first = web if seen else connected(40000).play(declare("q"))
        (row,) = findings(of_tapes(tmp_path, first, worker), "con-redelivery-loop")
        assert row["severity"] == severity


@pytest.mark.parametrize(("name", "is_own"), [("worker.publisher", True), ("workers", False), ("work", False)])
def test_a_consumer_may_publish_on_a_connection_of_its_own(name: str, is_own: bool, tmp_path: Path) -> None:
    web = connected(40000, name="web").play([*declare("q"), sent("", "q", 1, message_id="m0")])
    takes, gives = connected(40001, 0.1, name="worker").play(consume("q")), connected(40002, 0.1, name=name)
    for number in range(12):
        at(takes, 1 + number).play([given("", "q", 1, number + 1, message_id="m0")])
        at(gives, 1.1 + number).play([sent("", "q", 1, message_id="m0")])
    assert bool(text_of("con-redelivery-loop", tmp_path, web, takes, gives)) is is_own


def test_copies_that_publish_it_back_in_turn(tmp_path: Path) -> None:
    web = connected(40000, name="web").play([*declare("q"), sent("", "q", 1, message_id="m0")])
    copies = [connected(40001 + at, 0.1, name=f"worker-{at}").play(consume("q")) for at in range(3)]
    for number in range(12):
        tape = at(copies[number % 3], 1 + number)
        tape.play([given("", "q", 1, number // 3 + 1, message_id="m0"), sent("", "q", 1, message_id="m0")])
    found = text_of("con-redelivery-loop", tmp_path, web, *copies)
    assert "worker-0 and 2 more publish" in found and "12 times" in found


def test_a_message_that_comes_back_through_a_queue_that_delays(tmp_path: Path) -> None:
    web = connected(40000, name="web").play([*declare("q"), *declare("wait", x_message_ttl=10)])
    web.play([sent("", "q", 1, message_id="m0")])
    worker = connected(40001, 0.005, name="worker").play(consume("q"))
    for number in range(1, 7):
        death = [{"queue": "wait", "reason": "expired", "count": 1, "exchange": "", "routing-keys": ["wait"]}]
        headers = {"x-death": death} if number > 1 else {}
        later(worker, 0.05).play([given("", "q", 1, number, message_id="m0", headers=headers)])
        worker.play([sent("", "wait", 1, message_id="m0", headers={"attempt": number})])
    found = text_of("con-redelivery-loop", tmp_path, web, worker)
    assert "of queue q again and again" in found and "through queue wait" in found and "6 times" in found


# ------------------------------------------------------------------------------------------------------ consumers


def consumers(
    count: int = 50, every: float = 0.1, cancels: str = "", names: str = "q", rest: float = 0, closes: bool = False
) -> Tape:
    """Consumers that are begun one after the other.

    Args:
        cancels: when: "each" before the next one, "all" at the end, or only its answer was seen ("answered").
        closes: each has a channel, which is closed.
    """
    tape = connected(40000).play(declare("q"))

    def cancel(number: int) -> None:
        asked, answered = commands.Basic.Cancel(f"t{number}"), commands.Basic.CancelOk(f"t{number}")
        tape.play([(CLIENT, method(asked))] * (cancels != "answered") + [(SERVER, method(answered))])

    for number in range(count):
        later(tape, every).play(consume(names.format(number), f"t{number}"))
        if cancels in ("each", "answered"):
            cancel(number)
        if closes:
            tape.play(
                [(CLIENT, method(commands.Channel.Close(200, "", 0, 0))), (SERVER, method(commands.Channel.CloseOk()))]
            )
            tape.play(opening(1))
    later(tape, rest)
    for number in range(count if cancels == "all" else 0):
        cancel(number)
    return closed(tape)


def test_consumers_that_nobody_cancels(tmp_path: Path) -> None:
    found = text_of("con-leak", tmp_path, consumers())
    assert "50 of queue q" in found and "1 channel" in found
    assert "50 of queue q" in text_of("con-leak", tmp_path, consumers(cancels="all")), "as it closes"
    assert "50 of queue q" in text_of("con-leak", tmp_path, consumers(rest=60)), "and then rests"
    assert text_of("con-leak", tmp_path, consumers(cancels="each")) == ""
    assert text_of("con-leak", tmp_path, consumers(cancels="answered")) == "", "the request was not captured"
    assert text_of("con-leak", tmp_path, consumers(closes=True)) == "", "a channel takes its consumers with it"
    assert text_of("con-leak", tmp_path, consumers(every=0.01)) == "", "a pool"
    assert text_of("con-leak", tmp_path, consumers(names="q{}")) == "", "of many queues"
    assert text_of("con-leak", tmp_path, consumers(names="")) == "", "of the queue that was declared last"
    assert text_of("con-leak", tmp_path, consumers(19, 1)) == ""
    (row,) = findings(of_tapes(tmp_path, consumers(25, 1)), "con-leak")
    assert row["severity"] == "note", "they may be more workers"


def test_consumers_of_several_channels_may_share_a_tag(tmp_path: Path) -> None:
    tape = connected(40000).play(declare("q"))
    for number in range(2, 6):
        tape.play(opening(number))
        for command in (commands.Basic.Consume(queue="q", consumer_tag="c", no_ack=True),):
            tape.play([(CLIENT, method(command, number)), (SERVER, method(commands.Basic.ConsumeOk("c"), number))])
        deliver = method(commands.Basic.Deliver("c", 1, False, "", "q"), number) + b"".join(content(b"x", number))
        tape.play([(SERVER, deliver)])
    rows = of_tapes(tmp_path, tape)
    assert len(related(rows, "consumers")) == 4
    assert [row["consumers"] for row in related(rows, "queues")] == [4]


# --------------------------------------------------------------------------------------------- limits and bindings


def sharing(is_global: bool = True, slow: float = 2) -> list[Tape]:
    """A worker with a slow queue and a quick one, on one channel."""
    web = connected(40000, name="web").play([*declare("slow"), *declare("quick")])
    web.play([turn for number in range(20) for turn in (
        sent("", "slow", 1, message_id=f"s{number}"), sent("", "quick", 1, message_id=f"q{number}"),
    )])  # fmt: skip
    qos = commands.Basic.Qos(prefetch_count=1, global_=is_global)
    worker = connected(40001, name="worker").play([(CLIENT, method(qos)), (SERVER, method(commands.Basic.QosOk()))])
    worker.play([*consume("slow", "s", no_ack=False), *consume("quick", "q", no_ack=False)])
    for number in range(5):
        for kind, queue, work in (("s", "slow", slow), ("q", "quick", 0.005)):
            tag = 2 * number + (1 if kind == "s" else 2)
            begin = 1 + number * (slow + 0.1) + (slow + 0.02 if kind == "q" else 0)
            at(worker, begin).play([given("", queue, 1, tag, kind, message_id=f"{kind}{number}")])
            at(worker, begin + work).play([(CLIENT, method(commands.Basic.Ack(tag)))])
    return [web, later(worker, 1).play([(CLIENT, BEAT)])]


def test_quick_work_waits_where_slow_work_has_the_limit(tmp_path: Path) -> None:
    found = text_of("con-slow", tmp_path, *sharing())
    assert "worker: consumers of channel 1 share one prefetch of 1" in found
    assert "a message of queue slow takes 2" in found and "those of quick" in found
    assert text_of("con-slow", tmp_path, *sharing(is_global=False)) == ""
    assert text_of("con-slow", tmp_path, *sharing(slow=0.01)) == ""


def begun_and_slow(slow_from: int = 20, work: float = 0.3) -> list[Tape]:
    """A consumer that began before the capture, with a prefetch of two: quick at first, then behind."""
    web, worker = begun_before(40000, 0), begun_before(40001, 0)
    free, arrivals, acks = 0.0, [], []
    for number in range(120):
        takes = 0.001 if number < slow_from else work
        sent_at = number / 8
        given_at = max(sent_at + 0.001, acks[number - 2] + 0.001 if number > 1 else 0)
        free = max(free, given_at) + takes
        arrivals.append((sent_at, "web", number))
        acks.append(free)
        arrivals += [(given_at, "given", number), (free, "ack", number)]
    for when, what, number in sorted(arrivals, key=lambda each: (each[0], each[1] == "ack")):
        if what == "web":
            at(web, 1 + when).play([sent("", "q", 1, message_id=f"m{number}")])
        elif what == "given":
            at(worker, 1 + when).play([given("", "q", 1, number + 1, message_id=f"m{number}")])
        else:
            at(worker, 1 + when).play([(CLIENT, method(commands.Basic.Ack(number + 1)))])
    return [web, worker]


def test_a_consumer_that_falls_behind_in_a_capture_without_its_beginning(tmp_path: Path) -> None:
    found = text_of("con-slow", tmp_path, *begun_and_slow())
    assert "is too slow" in found and "has 2 deliveries all the time" in found
    assert text_of("con-slow", tmp_path, *begun_and_slow(work=0.1)) == "", "it keeps up"


def unbound(by: str = "terraform", again: str = "pages.*", deleted: bool = False, leaves: bool = False) -> list[Tape]:
    cms = connected(40000, name="cms").play([*exchange("e"), *declare("q"), *bind("q", "e", "page.*")])
    reader = connected(40001, name="purger").play([*consume("q")])
    at(cms, 1).play([sent("e", "page.new", 20)])
    at(reader, 1.1).play([given("e", "page.new", 20)])
    operator = reader if by == "purger" else connected(40002, name=by)
    at(operator, 2).play([
        (CLIENT, method(commands.Queue.Unbind(queue="q", exchange="e", routing_key="page.*"))),
        (SERVER, method(commands.Queue.UnbindOk())), *bind("q", "e", again),
    ])  # fmt: skip
    if deleted:
        operator.play(
            [(CLIENT, method(commands.Queue.Delete(queue="q"))), (SERVER, method(commands.Queue.DeleteOk(0)))]
        )
    if leaves:
        closed(reader)
    at(cms, 4).play([sent("e", "page.new", 30)])
    return [cms, reader, *([operator] if operator is not reader else [])]


def test_a_queue_that_was_unbound_under_its_consumer(tmp_path: Path) -> None:
    found = text_of("con-unbound", tmp_path, *unbound())
    assert 'terraform unbound queue q from exchange e (key "page.*") and bound it with "pages.*": at least 30' in found
    assert "purger still consumes there" in found
    assert text_of("con-unbound", tmp_path, *unbound(by="purger")) == "", "it gave the key up"
    assert text_of("con-unbound", tmp_path, *unbound(again="page.#")) == "", "they come still"
    assert (
        text_of("con-unbound", tmp_path, *unbound(deleted=True))
        == ""
        == text_of("con-unbound", tmp_path, *unbound(leaves=True))
    )


def fanning(auto_delete: bool, deletes: bool = False) -> Tape:
    """A publisher whose exchange is gone."""
    command = commands.Exchange.Declare(exchange="e", exchange_type="fanout", auto_delete=auto_delete)
    tape = connected(40000, name="presence").play(
        [(CLIENT, method(command)), (SERVER, method(commands.Exchange.DeclareOk()))]
    )
    if deletes:
        tape.play(
            [(CLIENT, method(commands.Exchange.Delete(exchange="e"))), (SERVER, method(commands.Exchange.DeleteOk()))]
        )
    gone = commands.Channel.Close(404, "NOT_FOUND - no exchange 'e' in vhost '/'", 60, 40)
    return tape.play([sent("e", "k", 1), (SERVER, method(gone)), (CLIENT, method(commands.Channel.CloseOk()))])


def test_why_an_exchange_is_gone(tmp_path: Path) -> None:
    says = "it was declared auto-delete (packet"
    assert says in text_of("chn-error", tmp_path, fanning(auto_delete=True))
    assert "goes with its last binding" in text_of("chn-error", tmp_path, fanning(auto_delete=True))
    assert says not in text_of("chn-error", tmp_path, fanning(auto_delete=False))
    assert says not in text_of("chn-error", tmp_path, fanning(auto_delete=True, deletes=True)), "somebody deleted it"


# --------------------------------------------------------------------------------------------------------- requests


def asked(answers: int = 0, reply_to: str = "mine", reads: bool = True, served: bool = False, wait: float = 5) -> Tape:
    tape = connected(40000, name="shop").play([*declare("price"), *declare("mine")])
    tape.play(consume(reply_to, "replies") if reads else [])
    for number in range(5):
        tape.play([sent("", "price", 1, correlation_id=f"c{number}", reply_to=reply_to, expiration="400")])
        if number < answers:
            tape.play([given("", reply_to, 1, number + 1, "replies", correlation_id=f"c{number}")])
    later(tape, wait)
    tape.play([*consume("price", "server"), given("", "price", 5, tag="server")] if served else [(CLIENT, BEAT)])
    return tape


def severity(folder: Path, tape: Tape) -> str:
    (row,) = findings(of_tapes(folder, tape), "call-unanswered")
    return row["severity"]


def test_requests_that_nobody_answers(tmp_path: Path) -> None:
    found = text_of("call-unanswered", tmp_path, asked())
    assert "shop gets no answer to 5 requests" in found and "they expire after 400 ms" in found
    assert "nobody that was captured takes them" in found
    assert severity(tmp_path, asked()) == "warning"
    assert severity(tmp_path, asked(served=True)) == "note", "it may need long"
    assert severity(tmp_path, asked(answers=2, served=True)) == "note"
    assert "2 others were answered" in text_of("call-unanswered", tmp_path, asked(answers=2, served=True))
    assert text_of("call-unanswered", tmp_path, asked(reads=False)) == "", "it does not wait"
    assert text_of("call-unanswered", tmp_path, asked(wait=0.1)) == "", "not long enough"
    assert text_of("call-unanswered", tmp_path, asked(answers=3)) == "", "two are few"
    unnamed = asked(served=True).play([given("", "mine", 5, tag="replies")])
    assert text_of("call-unanswered", tmp_path, unnamed) == "", "answers without the id"
    assert findings(of_tapes(tmp_path, asked()), "con-expired") == []


def called(kept: float, works: float) -> list[Tape]:
    """Calls whose server is quick or slow, and whose caller takes answers at once, or late."""
    server = connected(40001, name="tax").play([*declare("tax"), *consume("tax")])
    caller = connected(40000, name="shop").play([*declare("mine"), *consume("mine")])
    for number in range(1, 4):
        named = {"correlation_id": f"c{number}", "message_id": f"m{number}"}
        answer = {"correlation_id": f"c{number}", "message_id": f"a{number}"}
        at(caller, 10 * number).play([sent("", "tax", 1, reply_to="mine", **named)])
        at(server, 10 * number + 0.01).play([given("", "tax", 1, number, reply_to="mine", **named)])
        at(server, 10 * number + 0.01 + works).play([sent("", "mine", 1, **answer)])
        at(caller, 10 * number + 0.02 + works + kept).play([given("", "mine", 1, number, **answer)])
    return [server, caller]


def test_who_keeps_an_answer(tmp_path: Path) -> None:
    found = text_of("call-late", tmp_path, *called(kept=2, works=0.005))
    assert "answers wait up to 2.0" in found and "in queue mine before shop takes them" in found
    assert "tax takes up to 5" in found and "ms for one" in found
    assert "tax takes up to 2" in text_of("call-late", tmp_path, *called(kept=0, works=2))
    assert "before shop takes" not in text_of("call-late", tmp_path, *called(kept=0, works=2))


# ------------------------------------------------------------------------------------------------ time to live of each


def aged(*, others: int = 0, seconds: float = 5, life: str = "100", **arguments: Any) -> Tape:
    tape = connected(40000).play(
        [*declare("q", **arguments), sent("", "q", 40, expiration=life), sent("", "q", others)]
    )
    return later(tape, seconds).play([(CLIENT, BEAT)])


@pytest.mark.parametrize(
    ("tape", "left", "says"),
    [
        (aged(), None, "expire after 100 ms (expiration, which their publishers give): of 40 that came"),
        (aged(x_message_ttl=1000), None, "expire after 100 ms (expiration"),
        (aged(life="5000", x_message_ttl=1000), None, "expire after 1 s (x-message-ttl"),
        (aged(others=1), None, ""),
        (aged(others=1, x_message_ttl=1000), None, "expire after 1 s (x-message-ttl"),
        (aged(life="60000"), 40, ""),
        (aged(life="soon"), 40, ""),
        (aged(life="9" * 40), 40, ""),
    ],
)
def test_messages_with_a_time_to_live_of_their_own(tape: Tape, left: int | None, says: str, tmp_path: Path) -> None:
    assert says in text_of("con-expired", tmp_path, tape)
    assert bool(says) == bool(text_of("con-expired", tmp_path, tape))
    (row,) = related(of_tapes(tmp_path, tape), "queues")
    assert row["expirations"] == 40
    assert row["left_over"] == left


# ------------------------------------------------------------------------------------------- what is known by its key


def settled(number: int, requeue: bool) -> Turn:
    return CLIENT, method(commands.Basic.Nack(delivery_tag=number, requeue=requeue))


def begun(name: str = "", keys: tuple[str, ...] = ("q",), back: int = 6) -> Tape:
    """A consumer that began before the capture and puts a message back again and again."""
    tape = begun_before(40000, 0)
    for number in range(1, back + 1):
        key = keys[number % len(keys)]
        tape.play([given(name, key, 1, number, redelivered=number > 1, message_id="m"), settled(number, True)])
    return tape.play([given("", keys[0], 1, back + 1, message_id="n"), settled(back + 1, False)])


def test_a_queue_is_known_by_the_key_of_the_default_exchange(tmp_path: Path) -> None:
    def of(tape: Tape) -> tuple[list[Any], list[Any]]:
        rows = of_tapes(tmp_path, tape)
        return [row["queue"] for row in related(rows, "consumers")], [
            (row["queue"], row["outs"], row["redeliveries"], row["rejected"]) for row in related(rows, "queues")
        ]

    assert of(begun()) == (["q"], [("q", 2, 5, 7)])
    assert of(begun(name="e"))[0] == [None]
    assert of(begun(keys=("q", "r")))[0] == [None]


def test_both_of_two_queues_of_one_name_are_named_with_their_virtual_hosts(tmp_path: Path) -> None:
    def aging(port: int, vhost: str) -> Tape:
        tape = connected(port, vhost=vhost).play([*declare("q", x_message_ttl=100), sent("", "q", 40)])
        return later(tape, 5).play([(CLIENT, BEAT)])

    rows = findings(of_tapes(tmp_path, aging(40000, "blue"), aging(40001, "green")), "con-expired")
    assert sorted(row["text"][:45] for row in rows) == [
        "Messages of queue q of virtual host blue expi", "Messages of queue q of virtual host green exp",
    ]  # fmt: skip
    assert {row["queue"] for row in rows} == {"q"}
    (row,) = findings(of_tapes(tmp_path, aging(40000, "blue")), "con-expired")
    assert "virtual host" not in row["text"]


# ------------------------------------------------------------------------------------------------- limits of deliveries


def limited(limit: int = 2, deliveries: int = 3, **arguments: Any) -> Tape:
    tape = connected(40000, name="bank")
    tape.play([*declare("q", x_queue_type="quorum", x_delivery_limit=limit, **arguments), *consume("q", no_ack=False)])
    number = 0
    for each in ("a", "b"):
        tape.play([sent("", "q", 1, message_id=each)])
        for count in range(deliveries):
            number += 1
            headers = {"x-delivery-count": count} if count else {}
            command = commands.Basic.Deliver("c", number, count > 0, "", "q")
            made = method(command) + b"".join(content(b"x", message_id=each, headers=headers))
            tape.play([(SERVER, made), settled(number, True)])
    return later(tape, 1).play([(CLIENT, BEAT)])


def test_what_is_put_back_at_the_last_delivery_is_gone(tmp_path: Path) -> None:
    found = text_of("con-redelivery-loop", tmp_path, limited())
    assert "bank put 2 messages of queue q back at the last of 3 deliveries (x-delivery-limit 2" in found
    assert "they are dropped" in found
    (row,) = findings(of_tapes(tmp_path, limited(x_dead_letter_exchange="dead")), "con-redelivery-loop")
    assert row["severity"] == "note" and "they went to exchange dead" in row["text"]
    assert text_of("con-redelivery-loop", tmp_path, limited(limit=3)) == ""
    assert text_of("con-redelivery-loop", tmp_path, limited(deliveries=2)) == ""


def test_a_queue_at_two_addresses_may_be_one(tmp_path: Path) -> None:
    """Of one broker, captured on several interfaces, or of a cluster."""

    def figures(cluster: str, other: str) -> list[tuple[Any, ...]]:
        there: dict[str, Any] = {"port": 40001, "seconds": 0.1, "server_port": 5673, "cluster": other}
        web = connected(40000, cluster=cluster).play([*declare("q"), sent("", "q", 10)])
        read = connected(**there).play([*declare("q"), *consume("q"), given("", "q", 3)])
        found = related(of_tapes(tmp_path, web, read), "queues")
        return sorted(((row["ins"], row["outs"], row["left_over"]) for row in found), key=str)

    assert figures("a", "a") == [(10, 3, 7)]
    assert figures("a", "b") == [(10, 0, 10), (None, 3, None)]
    assert figures("", "b") == figures("", "") == [(None, 0, None), (None, 3, None)]


def test_what_a_dead_consumer_held_is_left_in_the_queue(tmp_path: Path) -> None:
    def left(breaks: bool) -> int | None:
        web = connected(40000).play([*declare("q"), sent("", "q", 10)])
        worker = connected(40001, 0.1).play([*consume("q", no_ack=False), given("", "q", 3)])
        worker.play([(CLIENT, method(commands.Basic.Ack(1)))])
        (row,) = related(of_tapes(tmp_path, web, worker.end() if breaks else worker), "queues")
        found: int | None = row["left_over"]
        return found

    assert left(breaks=False) == 7 and left(breaks=True) == 9


# ---------------------------------------------------------------------------------------------------------- replicas


def test_copies_of_a_program_are_one_thing(tmp_path: Path) -> None:
    assert replica("worker-1") == replica("worker-22") == "worker-#" and replica("web0") == "web#"
    assert replica("queue1->queue2") == "queue#->queue#" and replica("v2 2b") == "v# #"
    assert replica("pika 10.0.0.5") == "pika 10.0.0.5" and replica("fe80::1") == "fe80::1"
    assert replica("orders-6b7c9d5f4-x2x9k") == "orders-#-#" and replica("billing") == "billing"
    assert len(replica("a" * 100_000)) <= 300
    bound = [*exchange("e", "fanout"), *declare("q"), *bind("q", "e", "")]
    tapes = [
        connected(40000 + at, at / 10, name=name).play([*(bound if not at else []), sent("e", "k", 40)])
        for at, name in enumerate(("web-1", "web-2", "mail"))
    ]
    rows = findings(of_tapes(tmp_path, *tapes), "pub-noconfirm")
    assert sorted((row["client"], row["such"]) for row in rows) == [("mail", 0), ("web-1", 1), ("web-2", 1)]


def test_clients_without_names_are_called_by_their_ports(tmp_path: Path) -> None:
    """Where there are several; they are one thing all the same, if they do the same."""

    def waiting(port: int, begun: bool) -> Tape:
        tape = begun_before(port, 0.1 * (port - 40000)) if begun else connected(port, 0.1 * (port - 40000), name="app")
        select = [(CLIENT, method(commands.Confirm.Select())), (SERVER, method(commands.Confirm.SelectOk()))]
        for number in range(1, 31):
            tape.play([*(select if number == 1 else []), sent("e", "k", 1)])
            later(tape, 0.02).play([(SERVER, method(commands.Basic.Ack(number)))])
        return tape

    def said(*tapes: Tape) -> list[str]:
        rows = findings(of_tapes(tmp_path, *tapes), "pub-sync")
        assert {row["such"] for row in rows} == {len(rows) - 1}
        assert {row["client"] for row in rows} <= {"10.0.0.1", "app"}
        return sorted(row["text"].split(" waits")[0] for row in rows)

    assert said(waiting(40000, True), waiting(40001, True)) == ["10.0.0.1:40000", "10.0.0.1:40001"]
    assert said(waiting(40000, True)) == ["10.0.0.1"]
    assert said(waiting(40000, False), waiting(40001, False)) == ["app", "app"]
