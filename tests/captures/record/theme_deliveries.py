"""What became of deliveries: settled one by one or many at once, voided, held back, never settled."""

from __future__ import annotations

import time
from typing import Any

from pamqp import commands

from tests.captures.record.ledger import Ledger
from tests.captures.record.peer import Peer
from tests.captures.record.scenario import Stage, scenario

Ack, Nack, Reject = commands.Basic.Ack, commands.Basic.Nack, commands.Basic.Reject


def fill(stage: Stage, queue: str, count: int) -> None:
    """Makes a queue with messages in it, unseen by the capture."""
    stage.backstage.call(1, commands.Queue.Declare(queue=queue))
    more(stage, queue, count)


def more(stage: Stage, queue: str, count: int) -> None:
    """Puts messages into a queue, unseen by the capture."""
    for number in range(1, count + 1):
        stage.backstage.publish(1, "", queue, f"{queue} {number}".encode(), {"app_id": queue})
    stage.backstage.flush()
    stage.backstage.call(1, commands.Queue.Declare(queue=queue, passive=True))  # they are there when this is answered


def delivered(peer: Peer, count: int) -> None:
    """Waits until so many deliveries have come in all, and no more than those."""
    peer.until(lambda: len(peer.book.settlements) >= count)
    peer.drain(0.1)
    assert len(peer.book.settlements) == count, len(peer.book.settlements)


def outcomes(book: Ledger) -> list[tuple[Any, ...]]:
    """What a scenario's own expectation is compared with."""
    names = ("channel", "delivery_tag", "outcome", "multiple", "ended_by")
    return [tuple(row[name] for name in names) for row in book.settlements]


@scenario("a no-ack consumer and one that acks, on one channel: outcome auto beside ack")
def no_ack_consumer(stage: Stage) -> None:
    fill(stage, "automatic", 3)
    fill(stage, "manual", 3)
    with stage.sniff():
        peer = stage.login("consumer")
        peer.call(1, commands.Basic.Consume(queue="automatic", consumer_tag="auto", no_ack=True))
        delivered(peer, 3)
        peer.call(1, commands.Basic.Consume(queue="manual", consumer_tag="hand"))
        delivered(peer, 6)
        peer.send(1, Ack(4), Ack(6, True))
        more(stage, "automatic", 1)
        delivered(peer, 7)
        peer.logout()
    assert [row[2] for row in outcomes(peer.book)] == ["auto"] * 3 + ["ack"] * 3 + ["auto"]
    stage.keep("settlements", "messages", "rpcs")
    stage.golden["counts"] = {"basic.deliver": 7, "basic.ack": 2}


@scenario("nine basic.get in one segment over two queues, get-empty among the answers; one of them no-ack")
def gets(stage: Stage) -> None:
    fill(stage, "many", 4)
    fill(stage, "few", 1)
    with stage.sniff():
        peer = stage.login("getter")
        for queue, no_ack in (
            ("many", False), ("few", False), ("few", False), ("many", True), ("few", False), ("many", False),
            ("many", False), ("many", False), ("few", False),
        ):  # fmt: skip
            peer.queue(1, commands.Basic.Get(queue=queue, no_ack=no_ack))
        peer.flush()
        peer.until(lambda: all(row["outcome"] == "ok" for row in peer.book.rpcs))
        peer.drain(0.1)
        peer.send(1, Ack(1), Ack(4, True))
        peer.logout()
    answers = [row["response"] for row in peer.book.rpcs if row["request"] == "basic.get"]
    ok, empty = "basic.get-ok", "basic.get-empty"
    assert answers == [ok, ok, empty, ok, empty, ok, ok, empty, empty], answers
    assert [row[1:3] for row in outcomes(peer.book)] == [(1, "ack"), (2, "ack"), (3, "auto"), (4, "ack"), (5, "none")]
    stage.keep("settlements", "messages", "rpcs")
    stage.golden["counts"] = {"basic.get": 9, "basic.get-ok": 5, "basic.get-empty": 4}


@scenario("basic.recover: four tags of five are void, their messages come again under new ones")
def recover(stage: Stage) -> None:
    fill(stage, "recovered", 5)
    with stage.sniff():
        peer = stage.login("consumer")
        peer.call(1, commands.Basic.Consume(queue="recovered", consumer_tag="c"))
        delivered(peer, 5)
        peer.send(1, Ack(2))
        peer.call(1, commands.Basic.Recover(requeue=True))
        delivered(peer, 9)
        peer.send(1, Ack(7), Ack(9, True))
        peer.logout()
    assert [row[2:] for row in outcomes(peer.book)] == [
        ("none", None, "recover"), ("ack", False, None), ("none", None, "recover"), ("none", None, "recover"),
        ("none", None, "recover"), ("ack", True, None), ("ack", False, None), ("ack", True, None), ("ack", True, None),
    ]  # fmt: skip
    assert [row["redelivered"] for row in peer.book.messages] == [False] * 5 + [True] * 4
    stage.keep("settlements", "messages", "rpcs")
    stage.golden["counts"] = {"basic.deliver": 9, "basic.recover": 1}


@scenario("basic.recover-async, which is not answered: all tags void, all messages come again")
def recover_async(stage: Stage) -> None:
    fill(stage, "recovered-async", 3)
    with stage.sniff():
        peer = stage.login("consumer")
        peer.call(1, commands.Basic.Consume(queue="recovered-async", consumer_tag="c"))
        delivered(peer, 3)
        peer.send(1, commands.Basic.RecoverAsync(requeue=True))
        delivered(peer, 6)
        peer.send(1, Ack(0, True))
        peer.logout()
    assert [row[4] for row in outcomes(peer.book)] == ["recover"] * 3 + [None] * 3
    stage.keep("settlements", "rpcs")
    stage.golden["counts"] = {"basic.deliver": 6, "basic.recover-async": 1}


@scenario("tx.select, acks and publishes before tx.commit and tx.rollback; an ack rolled back and given again, or not")
def transactions(stage: Stage) -> None:
    fill(stage, "tx", 6)
    stage.backstage.call(1, commands.Queue.Declare(queue="tx-out"))
    with stage.sniff():
        peer = stage.login("both")
        peer.call(1, commands.Tx.Select())
        peer.call(1, commands.Basic.Consume(queue="tx", consumer_tag="c"))
        delivered(peer, 6)

        def publish(*bodies: bytes) -> None:
            for body in bodies:
                peer.publish(1, "", "tx-out", body)
            peer.flush()

        peer.send(1, Ack(2, True))
        publish(b"committed 1", b"committed 2")
        time.sleep(0.1)
        peer.call(1, commands.Tx.Commit())  # 1 and 2 are settled here
        peer.send(1, Ack(3), Nack(4, False, False))
        publish(b"rolled back")
        peer.call(1, commands.Tx.Rollback())
        peer.send(1, Ack(3))
        publish(b"committed 3")
        peer.call(1, commands.Tx.Commit())  # 3 is settled here; 4 never is
        peer.send(1, Ack(5))
        peer.call(1, commands.Tx.Rollback())
        peer.logout()  # 6 was never touched
    left = stage.backstage.call(1, commands.Queue.Declare(queue="tx-out", passive=True))
    assert left.message_count == 3
    assert [row[1:] for row in outcomes(peer.book)] == [
        (1, "ack", True, None), (2, "ack", True, None), (3, "ack", False, None), (4, "none", None, "rollback"),
        (5, "none", None, "rollback"), (6, "none", None, "connection-close"),
    ]  # fmt: skip
    stage.keep("settlements", "messages", "rpcs")
    stage.golden["counts"] = {"tx.commit": 2, "tx.rollback": 2, "basic.publish": 4, "basic.deliver": 6}


@scenario("tag 0 with `multiple`: an ack of all that is outstanding (a got message too), then a nack of all")
def tag_zero(stage: Stage) -> None:
    fill(stage, "zero", 4)
    fill(stage, "zero-get", 1)
    with stage.sniff():
        peer = stage.login("consumer")
        peer.call(1, commands.Basic.Consume(queue="zero", consumer_tag="c"))
        delivered(peer, 4)
        peer.send(1, commands.Basic.Get(queue="zero-get"))
        delivered(peer, 5)
        peer.send(1, Ack(2))
        peer.send(1, Ack(0, True))
        more(stage, "zero", 3)
        delivered(peer, 8)
        peer.send(1, Nack(0, True, False))
        more(stage, "zero", 1)
        delivered(peer, 9)
        peer.send(1, Reject(9, False))
        peer.logout()
    assert [row[2:4] for row in outcomes(peer.book)] == [
        ("ack", True), ("ack", False), ("ack", True), ("ack", True), ("ack", True),
        ("nack", True), ("nack", True), ("nack", True), ("reject", False),
    ]  # fmt: skip
    stage.keep("settlements", "messages")
    stage.golden["counts"] = {"basic.deliver": 8, "basic.get-ok": 1, "basic.ack": 2, "basic.nack": 1}


@scenario("reject and nack with requeue: the same messages come back as redelivered until they are acked")
def requeued(stage: Stage) -> None:
    fill(stage, "back", 3)
    with stage.sniff():
        peer = stage.login("consumer")
        peer.call(1, commands.Basic.Qos(prefetch_count=3))
        peer.call(1, commands.Basic.Consume(queue="back", consumer_tag="c"))
        delivered(peer, 3)
        peer.send(1, Reject(1, True))
        delivered(peer, 4)
        peer.send(1, Nack(4, True, True))
        delivered(peer, 7)
        peer.send(1, Ack(7, True))
        peer.logout()
    names = ("outcome", "multiple", "requeue")
    assert [tuple(row[name] for name in names) for row in peer.book.settlements] == [
        ("reject", False, True), ("nack", True, True), ("nack", True, True), ("nack", True, True),
        ("ack", True, None), ("ack", True, None), ("ack", True, None),
    ]  # fmt: skip
    stage.keep("settlements", "messages")
    stage.golden["counts"] = {"basic.deliver": 7}


@scenario("prefetch of 3 per consumer, of 2 for a consumer begun later, of 4 for a whole channel; acks held back")
def prefetch(stage: Stage) -> None:
    for queue in ("wide", "late", "shared-a", "shared-b"):
        fill(stage, queue, 8)
    fill(stage, "got", 2)
    with stage.sniff():
        peer = stage.login("consumer", channels=(1, 2, 3))
        book = peer.book

        def settle(channel: int, *settling: Any) -> dict[str, Any]:
            peer.send(channel, *settling)
            return stage.events[-1]

        # channel 1: every consumer may hold 3
        peer.call(1, commands.Basic.Qos(prefetch_count=3))
        peer.call(1, commands.Basic.Consume(queue="wide", consumer_tag="three"))
        delivered(peer, 3)
        full = stage.events[-1]
        time.sleep(0.2)
        book.waited(1, "three", full, settle(1, Ack(1)))
        delivered(peer, 4)
        full = stage.events[-1]
        time.sleep(0.2)
        book.waited(1, "three", full, settle(1, Ack(4, True)))
        delivered(peer, 7)
        book.waited(1, "three", stage.events[-1], None)
        # channel 2: the first consumer is begun before the limit and has none
        peer.call(2, commands.Basic.Consume(queue="late", consumer_tag="unlimited"))
        delivered(peer, 15)
        peer.call(2, commands.Basic.Qos(prefetch_count=2))
        more(stage, "late", 4)
        delivered(peer, 19)
        settle(2, Ack(0, True))
        peer.call(2, commands.Basic.Cancel(consumer_tag="unlimited"))
        more(stage, "late", 4)
        peer.call(2, commands.Basic.Consume(queue="late", consumer_tag="two"))
        delivered(peer, 21)
        full = stage.events[-1]
        time.sleep(0.2)
        book.waited(2, "two", full, settle(2, Ack(14)))
        delivered(peer, 22)
        book.waited(2, "two", stage.events[-1], None)
        # channel 3: both consumers together may hold 4; got messages do not count
        peer.call(3, commands.Basic.Qos(prefetch_count=4, global_=True))
        peer.send(3, commands.Basic.Get(queue="got"))
        peer.send(3, commands.Basic.Get(queue="got"))
        delivered(peer, 24)
        peer.call(3, commands.Basic.Consume(queue="shared-a", consumer_tag="a"))
        delivered(peer, 28)
        full = stage.events[-1]
        peer.call(3, commands.Basic.Consume(queue="shared-b", consumer_tag="b"))
        peer.drain(0.2)
        book.waited(3, None, full, settle(3, Ack(4, False)))
        delivered(peer, 29)
        full = stage.events[-1]
        settle(3, Ack(2, True))  # the got ones: opens nothing
        peer.drain(0.2)
        delivered(peer, 29)
        book.waited(3, None, full, settle(3, Ack(7, True)))
        delivered(peer, 33)
        book.waited(3, None, stage.events[-1], None)
        peer.logout()
    stage.keep("settlements", "flow_control", "rpcs")
    stage.golden["counts"] = {"basic.qos": 3, "basic.consume": 5, "basic.deliver": 31, "basic.get-ok": 2}


@scenario("the capture begins while a consumer and a producer are at work: neither consume nor confirm.select is seen")
def begun_before(stage: Stage) -> None:
    fill(stage, "ongoing", 0)
    stage.golden["notes"] = "channel 1 of both was opened before: epoch 0; numbers of its publishes cannot be known"
    consumer, producer = stage.login("consumer before"), stage.login("producer before")
    consumer.call(1, commands.Basic.Consume(queue="ongoing", consumer_tag="c"))
    producer.call(1, commands.Confirm.Select())
    for _ in range(3):
        producer.publish(1, "", "ongoing", b"before")
    producer.flush()
    delivered(consumer, 3)
    consumer.send(1, Ack(2))
    producer.until(lambda: all(row["outcome"] == "ack" for row in producer.book.confirms))
    time.sleep(0.2)
    consumer.ledger = book = stage.succeed("consumer before", "consumer")
    producer.ledger = stage.succeed("producer before", "producer")
    with stage.sniff():
        for number in range(1, 7):
            producer.publish(1, "", "ongoing", f"during {number}".encode(), {"message_id": f"d-{number}"})
        producer.flush()
        producer.wait(1, "basic.ack")
        delivered(consumer, 6)  # tags 4 to 9
        consumer.send(1, Ack(4))
        consumer.send(1, Ack(3))  # a delivery that was not seen
        consumer.send(1, Ack(7, True))  # 5, 6, 7
        consumer.call(2, commands.Channel.Open())
        consumer.call(2, commands.Basic.Consume(queue="ongoing", consumer_tag="c"))
        consumer.call(1, commands.Basic.Cancel(consumer_tag="c"))
        producer.publish(1, "", "ongoing", b"seen from the start")
        producer.flush()
        delivered(consumer, 7)
        consumer.send(2, Ack(1))
        producer.drain(0.1)
    assert not producer.book.confirms
    consumer.ledger = producer.ledger = None  # what comes now is not in the capture
    consumer.logout()
    producer.logout()
    assert [row[:3] for row in outcomes(book)] == [
        (1, 4, "ack"), (1, 5, "ack"), (1, 6, "ack"), (1, 7, "ack"), (1, 8, "unknown"), (1, 9, "unknown"), (2, 1, "ack"),
    ]  # fmt: skip
    stage.keep("settlements", "messages", "rpcs")
    stage.golden["counts"] = {"connections": 2, "basic.publish": 7, "basic.deliver": 7}


@scenario("the queue is deleted under a consumer: a server-sent basic.cancel; what it holds can still be acked")
def server_cancel(stage: Stage) -> None:
    fill(stage, "doomed", 3)
    with stage.sniff():
        peer = stage.login("consumer")
        peer.call(1, commands.Basic.Consume(queue="doomed", consumer_tag="c"))
        delivered(peer, 3)
        stage.backstage.call(1, commands.Queue.Delete(queue="doomed"))
        peer.wait(1, "basic.cancel")
        peer.send(1, Ack(3, True))
        peer.drain(0.1)
        peer.logout()
    stage.keep("settlements", "rpcs")
    stage.golden["counts"] = {"basic.deliver": 3, "basic.cancel": 1}


@scenario("an ack of a tag that was never given: the broker closes the channel; acks sent behind its close do nothing")
def unknown_tag(stage: Stage) -> None:
    fill(stage, "tags", 3)
    with stage.sniff():
        peer = stage.login("consumer")
        peer.call(1, commands.Basic.Consume(queue="tags", consumer_tag="c"))
        delivered(peer, 3)
        peer.send(1, Ack(1), Ack(99))
        peer.wait(1, "channel.close")
        peer.send(1, Ack(2))
        peer.send(1, commands.Channel.CloseOk())
        peer.logout()
    assert [row[2:] for row in outcomes(peer.book)] == [
        ("ack", False, None), ("none", None, "channel-close"), ("none", None, "channel-close")
    ]  # fmt: skip
    stage.keep("settlements", "rpcs")
    stage.golden["counts"] = {"basic.deliver": 3, "basic.ack": 3, "channel.close": 1}
