"""Messages wait in a queue although there is a consumer: the broker holds them back, or has good reason to."""

from __future__ import annotations

import time

from pamqp import commands

from tests.tickets.record.clients import ALL, TWO, Client, Play, tickets
from tests.tickets.record.stage import Ticket, ticket

CONSUMING = "P <- rabbit_channel:list_local(), {consumer_count, N} <- rabbit_channel:info(P, [consumer_count]), N > 0"


def _drain(worker: Client) -> None:
    while taken := worker.take(seconds=0.3):
        worker.ack(tag=taken["tag"])


def _ask(client: Client, queue: str) -> None:
    """Ask for the number of messages three times, as a monitor does."""
    for _ in range(3):
        client.declare(queue=queue, passive=True)
        time.sleep(1.5)


@tickets(*ALL)
def channel_hangs(play: Play) -> None:
    """A consumer with room for ten gets nothing more, for its channel in the broker hangs; later it goes on."""
    with play.sniff():
        feed = play.publisher("feed")
        worker = play.worker("worker", 10)
        feed.publish(key=play.name, repeat=5)
        feed.wait()
        _drain(worker)
        play.broker.control("eval", f"[sys:suspend(P) || {CONSUMING}].")
        feed.publish(key=play.name, repeat=30)
        feed.wait()
        _ask(feed, play.name)
        play.broker.control("eval", "[sys:resume(P) || P <- rabbit_channel:list_local()].")
        _drain(worker)
        worker.close()
        feed.close()


@tickets("amqplib", "bunny")
def holds_ten(play: Play) -> None:
    """The same, but it is the consumer that holds ten messages for three seconds."""
    with play.sniff():
        feed = play.publisher("feed")
        worker = play.worker("worker", 10)
        feed.publish(key=play.name, repeat=30)
        feed.wait()
        _ask(feed, play.name)
        _drain(worker)
        worker.close()
        feed.close()


@tickets("amqplib")
def stands_by(play: Play) -> None:
    """A queue with a single active consumer, which holds its ten; another one stands by."""
    with play.sniff():
        feed = play.client("feed")
        feed.channel_open(confirms=True)
        feed.declare(queue=play.name, arguments={"x-single-active-consumer": True})
        worker, other = play.worker("worker", 10), play.worker("standby", 10)
        feed.publish(key=play.name, repeat=30)
        feed.wait()
        _ask(feed, play.name)
        _drain(worker)
        for client in (worker, other, feed):
            client.close()


@tickets(*TWO)
def held_elsewhere(play: Play) -> None:
    """A queue with a single active consumer, as its policy says; that one is another host's, and holds its five."""
    away, queue = play.stage.backstage, play.name
    alone = {"x-single-active-consumer": True}
    away.call(1, commands.Queue.Declare(queue=queue, durable=True, arguments=alone))
    away.call(1, commands.Basic.Qos(prefetch_count=5))
    away.call(1, commands.Basic.Consume(queue=queue, consumer_tag="elsewhere"))
    with play.sniff():
        feed = play.client("feed")
        feed.channel_open(confirms=True)
        worker = play.worker("worker", 10)
        feed.publish(key=queue, repeat=30)
        feed.wait()
        _ask(feed, queue)
        worker.close()
        feed.close()
    away.call(1, commands.Queue.Delete(queue=queue))


@ticket
def stream_as_queue(stage: Ticket) -> None:
    """A stream declared as a queue: its messages stay in it, and a consumer waits for those that come next."""
    stage.backstage.call(
        1, commands.Queue.Declare(queue=stage.name, durable=True, arguments={"x-queue-type": "stream"})
    )
    for _ in range(20):
        stage.backstage.publish(1, "", stage.name, b"reading")
    stage.backstage.flush()
    time.sleep(6)  # until the broker has counted them
    with stage.sniff():
        feed, worker = stage.pika("feed"), stage.pika("worker")
        sending, taking = feed.channel(), worker.channel()
        sending.queue_declare(stage.name, durable=True, arguments={"x-queue-type": "stream"})
        sending.confirm_delivery()
        taking.basic_qos(prefetch_count=10)
        taking.basic_consume(
            stage.name,
            lambda ch, method, *_: ch.basic_ack(method.delivery_tag),
            arguments={"x-stream-offset": "next"},
        )
        for _ in range(3):
            sending.queue_declare(stage.name, passive=True)
            worker.sleep(1.5)
        for _ in range(5):
            sending.basic_publish("", stage.name, b"reading")
        worker.sleep(0.3)
        worker.close()
        feed.close()
