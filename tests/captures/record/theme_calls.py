"""Requests and their answers: all of topology, without answers (no-wait), with errors, and pipelined."""

from __future__ import annotations

import threading
import time
from typing import Any

import pika  # type: ignore[import-untyped]
from pamqp import commands

from tests.captures.record.scenario import Stage, scenario
from tests.captures.record.theme_basics import pika_connection

Exchange, Queue, Basic = commands.Exchange, commands.Queue, commands.Basic


@scenario("every request of classes exchange and queue, with arguments, each waited for")
def topology(stage: Stage) -> None:
    arguments: Any = {"x-message-ttl": 60000, "x-queue-type": "classic", "x-max-priority": 5}
    with stage.sniff():
        peer = stage.login("client")
        for command in (
            Exchange.Declare(exchange="t-source", exchange_type="topic", durable=True, auto_delete=False),
            Exchange.Declare(exchange="t-sink", exchange_type="headers", internal=True, auto_delete=True),
            Exchange.Declare(exchange="t-source", exchange_type="topic", passive=True),
            Exchange.Bind(destination="t-sink", source="t-source", routing_key="a.#"),
            Queue.Declare(queue="t-queue", durable=True, arguments=arguments),
            Queue.Declare(queue="", exclusive=True, auto_delete=True),
            Queue.Bind(queue="t-queue", exchange="t-sink", arguments={"x-match": "any", "kind": "order"}),
            Queue.Bind(queue="t-queue", exchange="t-source", routing_key="grüße.*"),
            Queue.Purge(queue="t-queue"),
            Queue.Unbind(queue="t-queue", exchange="t-source", routing_key="grüße.*"),
            Exchange.Unbind(destination="t-sink", source="t-source", routing_key="a.#"),
            Queue.Delete(queue="t-queue", if_unused=True, if_empty=True),
            Exchange.Delete(exchange="t-source", if_unused=True),
        ):
            peer.call(1, command)
        peer.call(1, commands.Channel.Close(200, "", 0, 0))
        peer.logout()
    assert all(row["outcome"] == "ok" for row in peer.book.rpcs)
    stage.keep("rpcs")
    stage.golden["counts"] = {"queue.declare": 2, "exchange.declare": 3, "channel.close": 1}


@scenario("requests with no-wait, which have no answer, between some that have; confirm.select among them")
def no_wait(stage: Stage) -> None:
    with stage.sniff():
        peer = stage.login("client")
        peer.queue(1, Queue.Declare(queue="n-first", exclusive=True, nowait=True))
        peer.queue(1, Queue.Declare(queue="n-second", exclusive=True))
        peer.queue(1, Exchange.Declare(exchange="n-exchange", exchange_type="fanout", auto_delete=True, nowait=True))
        peer.queue(1, Queue.Bind(queue="n-first", exchange="n-exchange", nowait=True))
        peer.queue(1, Queue.Bind(queue="n-second", exchange="n-exchange"))
        peer.queue(1, commands.Confirm.Select(nowait=True))
        for number in range(1, 4):
            peer.publish(1, "n-exchange", "", f"number {number}".encode())
        peer.flush()
        peer.until(lambda: all(row["outcome"] == "ack" for row in peer.book.confirms))
        peer.queue(1, Basic.Consume(queue="n-first", consumer_tag="quiet", no_ack=True, nowait=True))
        peer.queue(1, Queue.Purge(queue="n-second", nowait=True))
        peer.flush()
        peer.until(lambda: len(peer.book.settlements) == 3)
        peer.queue(1, Basic.Cancel(consumer_tag="quiet", nowait=True))
        peer.queue(1, Queue.Delete(queue="n-first", nowait=True))
        peer.queue(1, Queue.Delete(queue="n-second"))
        peer.flush()
        peer.wait(1, "queue.delete-ok")
        peer.logout()
    requests = [row["request"] for row in peer.book.rpcs]
    assert requests == [
        "connection.open",
        "channel.open",
        "queue.declare",
        "queue.bind",
        "queue.delete",
        "connection.close",
    ]
    stage.keep("rpcs", "confirms", "settlements", "messages")
    stage.golden["counts"] = {"queue.declare": 2, "queue.declare-ok": 1, "queue.bind-ok": 1, "confirm.select-ok": 0}


@scenario(
    "requests answered by channel.close (404, 406, 405), others pipelined behind them, and by connection.close (504)"
)
def failed_calls(stage: Stage) -> None:
    stage.backstage.call(1, Queue.Declare(queue="here"))
    with stage.sniff():
        peer = stage.login("client", channels=(1, 2, 3))

        def fails(channel: int, code: int, *sent: Any) -> None:
            for command in sent:
                peer.queue(channel, command)
            peer.flush()
            close = peer.wait(channel, "channel.close")
            assert close.reply_code == code, close.reply_text
            failing = sent[0]
            assert (close.class_id, close.method_id) == (failing.index >> 16, failing.frame_id)
            peer.book.failed(channel, peer.book.rpcs[-len(sent)]["request"], code)
            peer.send(channel, commands.Channel.CloseOk())

        fails(
            1,
            404,
            Queue.Declare(queue="not here", passive=True),
            Queue.Declare(queue="never"),
            Queue.Purge(queue="here"),
        )
        fails(2, 406, Queue.Declare(queue="here", durable=True))
        fails(3, 404, Basic.Get(queue="not here"), Basic.Get(queue="here"))
        other = stage.login("owner")
        other.call(1, Queue.Declare(queue="mine", exclusive=True))
        peer.call(1, commands.Channel.Open())
        fails(1, 405, Basic.Consume(queue="mine", consumer_tag="c"))
        peer.queue(4, Queue.Declare(queue="on a channel that is not open"))
        peer.flush()
        close = peer.wait(0, "connection.close")
        assert close.reply_code == 504, close.reply_text
        peer.send(0, commands.Connection.CloseOk())
        peer.socket.close()
        other.logout()
    peer.book.rpcs.pop()
    outcomes = [(row["request"], row["outcome"], row["reply_code"]) for row in peer.book.rpcs[4:]]
    assert outcomes[:3] == [
        ("queue.declare", "error", 404),
        ("queue.declare", "none", None),
        ("queue.purge", "none", None),
    ]
    stage.keep("rpcs")
    stage.golden["notes"] = (
        "the last request, on a channel that is not open, is answered by connection.close 504: not stated here"
    )
    stage.golden["counts"] = {"channel.close": 4, "connection.close": 2}


@scenario("pika: calls over a queue for replies, over direct replies, one that nobody answers, one answered elsewhere")
def rpc_calls(stage: Stage) -> None:
    """A server, and a client that calls it; the log has each call with when it was answered."""
    stage.backstage.call(1, commands.Queue.Declare(queue="rpc", durable=True))
    stage.backstage.call(1, commands.Queue.Declare(queue="rpc-nobody", durable=True))
    stop = threading.Event()
    server = threading.Thread(target=_serve, args=(stage, stop))
    with stage.sniff():
        server.start()
        calls = _call(stage)
        stop.set()
        server.join()
    stage.golden["calls"] = calls
    stage.golden["counts"] = {"connections": 3, "basic.publish": 15, "basic.deliver": 14}


def _serve(stage: Stage, stop: threading.Event) -> None:
    connection, _ = pika_connection(stage, "server")
    channel = connection.channel()
    for method, properties, body in channel.consume("rpc", auto_ack=True, inactivity_timeout=0.05):
        if method is not None:
            time.sleep(0.002)
            answer = pika.BasicProperties(correlation_id=properties.correlation_id)
            channel.basic_publish("", properties.reply_to, body.upper(), answer)
        if stop.is_set():
            break
    channel.cancel()
    connection.close()


def _call(stage: Stage) -> list[dict[str, Any]]:
    """Call the server: three times over a queue, three over direct replies, in vain, and with an answer elsewhere."""
    connection, _ = pika_connection(stage, "caller")
    listener, _ = pika_connection(stage, "listener")
    channel, other = connection.channel(), listener.channel()
    own = channel.queue_declare("", exclusive=True).method.queue
    elsewhere = other.queue_declare("", exclusive=True).method.queue
    answers: set[str] = set()

    def heard(_: Any, __: Any, properties: Any, ___: bytes) -> None:
        answers.add(properties.correlation_id)

    for on, queue in ((channel, own), (channel, "amq.rabbitmq.reply-to"), (other, elsewhere)):
        on.basic_consume(queue, heard, auto_ack=True)
    calls = []
    for number in range(8):
        reply_to = own if number < 3 or number == 6 else elsewhere if number == 7 else "amq.rabbitmq.reply-to"
        to = "rpc-nobody" if number == 6 else "rpc"
        name = f"call-{number}"
        channel.basic_publish("", to, b"work", pika.BasicProperties(reply_to=reply_to, correlation_id=name))
        end = time.monotonic() + 0.5
        while name not in answers and time.monotonic() < end:
            (listener if number == 7 else connection).process_data_events(0.01)
        calls.append({"correlation_id": name, "reply_to": reply_to, "answered": name in answers})
    listener.close()
    connection.close()
    return calls
