"""Which publish was confirmed, returned, refused or never answered."""

from __future__ import annotations

from typing import Any

from pamqp import commands

from tests.captures.record import scripted
from tests.captures.record.scenario import Stage, scenario


def outcomes(stage: Stage, client: str) -> list[tuple[Any, ...]]:
    """What a scenario's own expectation is compared with."""
    return [
        (row["publish_seq"], row["outcome"], row["multiple"], row["ended_by"]) for row in stage.ledgers[client].confirms
    ]


@scenario("confirm.select and six publishes in one segment: all are numbered, though confirm.select-ok comes later")
def publish_before_select_ok(stage: Stage) -> None:
    stage.backstage.call(1, commands.Queue.Declare(queue="early"))
    with stage.sniff():
        peer = stage.login("producer")
        peer.queue(1, commands.Confirm.Select())
        for number in range(1, 7):
            peer.publish(1, "", "early", f"early {number}".encode())
        peer.flush()
        peer.until(lambda: all(row["outcome"] == "ack" for row in peer.book.confirms))
        peer.logout()
    assert [row[0] for row in outcomes(stage, "producer")] == [1, 2, 3, 4, 5, 6]
    stage.keep("confirms", "messages", "rpcs")
    stage.golden["counts"] = {"confirm.select": 1, "basic.publish": 6}


@scenario("a second confirm.select after three publishes does not begin the numbers again")
def second_confirm_select(stage: Stage) -> None:
    stage.backstage.call(1, commands.Queue.Declare(queue="twice"))
    with stage.sniff():
        peer = stage.login("producer")
        peer.call(1, commands.Confirm.Select())
        for number in range(1, 7):
            if number == 4:
                peer.call(1, commands.Confirm.Select())
            peer.publish(1, "", "twice", f"twice {number}".encode())
            peer.flush()
            assert peer.wait(1, "basic.ack").delivery_tag == number
        peer.logout()
    stage.keep("confirms", "messages", "rpcs")
    stage.golden["counts"] = {"confirm.select": 2, "basic.publish": 6, "basic.ack": 6}


@scenario("three publishes before confirm.select have no number; the three behind it are 1 to 3")
def publish_before_confirm(stage: Stage) -> None:
    stage.backstage.call(1, commands.Queue.Declare(queue="plain"))
    with stage.sniff():
        peer = stage.login("producer")
        for number in range(1, 4):
            peer.publish(1, "", "plain", f"unnumbered {number}".encode())
        peer.flush()
        peer.call(1, commands.Confirm.Select(nowait=False))
        for number in range(1, 4):
            peer.publish(1, "", "plain", f"numbered {number}".encode())
        peer.flush()
        peer.until(lambda: all(row["outcome"] == "ack" for row in peer.book.confirms))
        peer.logout()
    assert [row["publish_seq"] for row in peer.book.messages] == [None, None, None, 1, 2, 3]
    stage.keep("confirms", "messages")
    stage.golden["counts"] = {"basic.publish": 6}


@scenario("mandatory publishes with and without a route, some of them equal, against the broker: returns, then acks")
def mandatory_returns(stage: Stage) -> None:
    stage.backstage.call(1, commands.Queue.Declare(queue="there", durable=True))
    with stage.sniff():
        peer = stage.login("producer")
        peer.call(1, commands.Confirm.Select())
        for key, body, mandatory in (
            ("nowhere", b"same", True), ("there", b"durable", True), ("nowhere", b"same", False),
            ("nowhere", b"same", True), ("there", b"durable", False), ("nowhere", b"other", True),
            ("nowhere", b"", True), ("there", b"durable", True),
        ):  # fmt: skip
            peer.publish(1, "", key, body, {"delivery_mode": 2, "correlation_id": "same"}, mandatory)
        peer.flush()
        peer.until(lambda: all(row["outcome"] == "ack" for row in peer.book.confirms))
        peer.logout()
    returned = [row["publish_seq"] for row in peer.book.confirms if row["returned"]]
    assert returned == [1, 4, 6, 7], returned
    stage.keep("confirms", "messages")
    stage.golden["counts"] = {"basic.publish": 8, "basic.return": 4}


@scenario("scripted server: several equal mandatory publishes, returns among acks out of order, then `multiple` acks")
def equal_returns(stage: Stage) -> None:
    same = {"content_type": "text/plain", "message_id": "a"}
    with scripted.listener() as server, stage.sniff():
        client, far = scripted.pair(stage, server, "producer")
        scripted.shake(client, far, confirm=True)
        sent: list[tuple[bytes, dict[str, Any], bool]] = [
            (b"same", same, True), (b"same", same, True), (b"same", same, False), (b"same", same, True),
            (b"other", same, True), (b"same", same | {"message_id": "b"}, True), (b"plain", {}, False),
            (b"plain", {}, False), (b"same", same, True),
        ]  # fmt: skip
        for body, properties, mandatory in sent:
            client.publish(1, "amq.topic", "orders.none", body, properties, mandatory)
        client.flush()
        far.drain(0.1)

        def give_back(body: bytes, properties: dict[str, Any]) -> None:
            back = commands.Basic.Return(312, "NO_ROUTE", "amq.topic", "orders.none")
            for data in far.frames(1, back, body, properties):
                far.queue_raw(data)
            far.flush()

        far.send(1, commands.Basic.Ack(7, False))
        give_back(b"same", same)  # the oldest that is mandatory and equal: 1
        give_back(b"other", same)  # 5
        give_back(b"same", same)  # 2
        far.send(1, commands.Basic.Ack(5, False), commands.Basic.Ack(2, False))
        far.send(1, commands.Basic.Ack(1, False))
        far.send(1, commands.Basic.Ack(4, True))  # 3 and 4
        give_back(b"same", same | {"message_id": "b"})  # 6
        give_back(b"same", same)  # 4: a return that comes after its ack
        far.send(1, commands.Basic.Ack(8, True))  # 6 and 8
        far.send(1, commands.Basic.Nack(9, False))
        client.drain(0.2)
        scripted.hang_up(client, far)
    assert [row[1:3] for row in outcomes(stage, "producer")] == [
        ("ack", False), ("ack", False), ("ack", True), ("ack", True), ("ack", False), ("ack", True), ("ack", False),
        ("ack", True), ("nack", False),
    ]  # fmt: skip
    assert [row["publish_seq"] for row in client.book.confirms if row["returned"]] == [1, 2, 4, 5, 6]
    stage.keep("confirms", "messages")
    stage.golden["counts"] = {"basic.publish": 9, "basic.return": 5, "basic.ack": 6, "basic.nack": 1}


@scenario("a queue of at most three messages that refuses more (x-overflow reject-publish): acks and nacks")
def reject_publish(stage: Stage) -> None:
    limits: Any = {"x-max-length": 3, "x-overflow": "reject-publish"}
    with stage.sniff():
        peer = stage.login("producer")
        peer.call(1, commands.Queue.Declare(queue="short", exclusive=True, arguments=limits))
        peer.call(1, commands.Confirm.Select())
        for number in range(1, 9):
            peer.publish(1, "", "short", f"place {number}".encode())
            peer.flush()
            # the broker checks the length when it hears from the queue, so a pause makes the outcome certain
            peer.until(lambda: peer.book.confirms[-1]["outcome"] != "none")
        peer.logout()
    assert [row[1] for row in outcomes(stage, "producer")] == ["ack"] * 3 + ["nack"] * 5
    stage.keep("confirms", "messages", "rpcs")
    stage.golden["counts"] = {"basic.publish": 8}


@scenario("a publish to a missing exchange with more behind it, and more behind the broker's channel.close: discarded")
def publish_behind_close(stage: Stage) -> None:
    stage.backstage.call(1, commands.Queue.Declare(queue="good"))
    with stage.sniff():
        peer = stage.login("producer", channels=(1, 2))
        peer.call(1, commands.Confirm.Select())
        peer.call(2, commands.Confirm.Select())
        peer.publish(1, "", "good", b"arrives")
        peer.flush()
        peer.wait(1, "basic.ack")
        peer.publish(1, "no.such.exchange", "good", b"the bad one")
        peer.publish(1, "", "good", b"pipelined 3")
        peer.publish(1, "", "good", b"pipelined 4", mandatory=True)
        peer.flush()
        peer.wait(1, "channel.close")
        peer.publish(1, "", "good", b"discarded 5")
        peer.publish(1, "", "good", b"discarded 6")
        peer.publish(2, "", "good", b"on another channel")
        peer.flush()
        peer.wait(2, "basic.ack")
        peer.send(1, commands.Channel.CloseOk())
        peer.call(1, commands.Channel.Open())
        peer.call(1, commands.Confirm.Select())
        peer.publish(1, "", "good", b"after all")
        peer.flush()
        peer.wait(1, "basic.ack")
        peer.logout()
    assert [(row["channel"], row["channel_epoch"], row["publish_seq"], row["outcome"], row["ended_by"])
            for row in peer.book.confirms] == [
        (1, 1, 1, "ack", None), (1, 1, 2, "none", "channel-close"), (1, 1, 3, "none", "channel-close"),
        (1, 1, 4, "none", "channel-close"), (1, 1, 5, "none", "discarded"), (1, 1, 6, "none", "discarded"),
        (2, 1, 1, "ack", None), (1, 2, 1, "ack", None),
    ]  # fmt: skip
    stage.keep("confirms", "messages", "rpcs")
    stage.golden["counts"] = {"basic.publish": 8, "channel.close": 1, "channel.open": 3}


@scenario("channel 1 opened four times: with confirms, without, with, and with consumers of the same tag each time")
def channel_reopened(stage: Stage) -> None:
    stage.backstage.call(1, commands.Queue.Declare(queue="again"))
    with stage.sniff():
        peer = stage.login("both", channels=())
        for turn in range(1, 5):
            peer.call(1, commands.Channel.Open())
            if turn != 2:
                peer.call(1, commands.Confirm.Select())
            for number in range(1, 4):
                peer.publish(1, "", "again", f"turn {turn} number {number}".encode())
            peer.flush()
            peer.until(lambda: all(row["outcome"] == "ack" for row in peer.book.confirms))
            # what is left of the turn before comes first
            wanted = len(peer.book.settlements) + 3 + (turn > 1)
            peer.send(1, commands.Basic.Consume(queue="again", consumer_tag="same"))
            peer.until(lambda wanted=wanted: len(peer.book.settlements) == wanted)  # type: ignore[misc]
            peer.send(1, commands.Basic.Ack(2, turn == 3), *[commands.Basic.Ack(1)] * (turn != 3))
            if turn > 1:
                peer.send(1, commands.Basic.Ack(4))
            peer.call(1, commands.Channel.Close(200, "next", 0, 0))  # delivery 3 stays unsettled
        peer.logout()
    kept = [(row["channel_epoch"], row["delivery_tag"], row["ended_by"]) for row in peer.book.settlements]
    assert [row for row in kept if row[2]] == [(turn, 3, "channel-close") for turn in range(1, 5)], kept
    assert [row["publish_seq"] for row in peer.book.messages if row["kind"] == "publish"] == [
        1,
        2,
        3,
        None,
        None,
        None,
    ] + [1, 2, 3] * 2
    stage.keep("confirms", "settlements", "messages", "rpcs")
    stage.golden["counts"] = {"channel.open": 4, "channel.close": 4, "basic.publish": 12, "basic.deliver": 15}


@scenario("scripted server: publishes that nobody answers: a channel's close, a connection's close, the capture's end")
def never_confirmed(stage: Stage) -> None:
    with scripted.listener() as server:
        with stage.sniff():
            closing, far = scripted.pair(stage, server, "closes")
            scripted.shake(closing, far, channels=(1, 2, 3), confirm=True)
            for number in (1, 2, 3):
                for _ in range(3):
                    closing.publish(number, "", "silent", f"channel {number}".encode())
            closing.flush()
            far.drain(0.1)
            for number in (1, 2, 3):
                far.send(number, commands.Basic.Ack(2, False))
            closing.until(lambda: sum(row["outcome"] == "ack" for row in closing.book.confirms) == 3)
            scripted.answer(closing, far, 1, commands.Channel.Close(200, "", 0, 0), commands.Channel.CloseOk())
            far.send(2, commands.Channel.Close(541, "INTERNAL_ERROR", 0, 0))
            closing.wait(2, "channel.close")
            closing.send(2, commands.Channel.CloseOk())
            far.drain(0.1)
            far.send(0, commands.Connection.Close(320, "CONNECTION_FORCED - shutdown", 0, 0))
            closing.wait(0, "connection.close")
            closing.send(0, commands.Connection.CloseOk())
            far.drain(0.1)
            closing.socket.close()
            far.socket.close()
            waiting, other = scripted.pair(stage, server, "waits")
            scripted.shake(waiting, other, confirm=True)
            for number in range(1, 6):
                waiting.publish(1, "", "silent", f"waits {number}".encode())
            waiting.flush()
            other.drain(0.1)
            other.send(1, commands.Basic.Ack(3, True))
            waiting.wait(1, "basic.ack")
        waiting.socket.close()
        other.socket.close()
    ends = [(row["channel"], row["publish_seq"], row["ended_by"]) for row in closing.book.confirms if row["ended_by"]]
    assert ends == [(1, 1, "channel-close"), (1, 3, "channel-close"), (2, 1, "channel-close"), (2, 3, "channel-close"),
                    (3, 1, "connection-close"), (3, 3, "connection-close")], ends  # fmt: skip
    stage.keep("confirms")
    stage.golden["counts"] = {"connections": 2, "basic.publish": 14, "basic.ack": 4}


@scenario("300 persistent publishes without waiting, to a durable queue: the broker groups its acks as it likes")
def many_confirms(stage: Stage) -> None:
    stage.backstage.call(1, commands.Queue.Declare(queue="stored", durable=True))
    with stage.sniff():
        peer = stage.login("producer")
        peer.call(1, commands.Confirm.Select())
        for number in range(1, 301):
            peer.publish(1, "", "stored", f"stored {number:03}".encode(), {"delivery_mode": 2})
            if number % 7 == 0:
                peer.flush()
        peer.flush()
        peer.until(lambda: all(row["outcome"] == "ack" for row in peer.book.confirms))
        peer.logout()
    stage.keep("confirms")
    stage.golden["counts"] = {"basic.publish": 300}
