"""Consumers: slow ones and far ones, loops, polls, cancelled ones, and those that do not acknowledge."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator

import aio_pika
import pika  # type: ignore[import-untyped]
import pika.exceptions  # type: ignore[import-untyped]
from pamqp import commands

from tests.tickets.record.stage import Ticket, far_broker, ticket

URL = "amqp://guest:guest@127.0.0.1/?name="


@contextlib.contextmanager
def producing(stage: Ticket, queue: str, per_second: float, count: int) -> Iterator[threading.Thread]:
    """A producer with confirms beside what the block does; its queue is declared before the block begins."""
    connection = stage.pika("shop")
    channel = connection.channel()
    channel.queue_declare(queue, auto_delete=False)
    channel.confirm_delivery()

    def produce() -> None:
        for number in range(count):
            channel.basic_publish("", queue, f"order {number}".encode(), pika.BasicProperties(message_id=f"o{number}"))
            connection.sleep(1 / per_second)
        connection.close()

    thread = threading.Thread(target=produce)
    thread.start()
    yield thread
    thread.join()


async def working(name: str, queue: str, prefetch: int, work: float, seconds: float) -> None:
    """A consumer of aio-pika that takes its time for each message."""
    connection = await aio_pika.connect(URL + name, client_properties={"connection_name": name})
    channel = await connection.channel()
    await channel.set_qos(prefetch_count=prefetch)
    taken = await channel.get_queue(queue, ensure=False)
    at_work = asyncio.Lock()

    async def take(message: aio_pika.abc.AbstractIncomingMessage) -> None:
        async with at_work:
            await asyncio.sleep(work)
            await message.ack()

    await taken.consume(take)
    await asyncio.sleep(seconds)
    await connection.close()


@ticket
def slow_consumer(stage: Ticket) -> None:
    """A consumer that works 50 ms on each message, and gets 60 a second."""
    with stage.sniff(), producing(stage, "slow_consumer", 60, 240):
        asyncio.run(working("packer", "slow_consumer", 4, 0.05, 4))


@ticket
def busy_consumer(stage: Ticket) -> None:
    """Its prefetch of one is full most of the time as well, but it keeps up: 15 a second, 50 ms each."""
    with stage.sniff(), producing(stage, "busy_consumer", 15, 50):
        asyncio.run(working("packer", "busy_consumer", 1, 0.05, 4))


@ticket
def far_consumer(stage: Ticket) -> None:
    """A consumer with prefetch 1 that acknowledges at once, 40 ms away; the queue grows all the same."""
    with far_broker() as far, stage.sniff(interface="shaky"):
        connection = stage.pika("shop", far)
        channel = connection.channel()
        channel.queue_declare("far_consumer")
        channel.confirm_delivery()
        for number in range(10):
            channel.basic_publish("", "far_consumer", f"order {number}".encode())
        other = stage.pika("packer", far)
        packing = other.channel()
        packing.basic_qos(prefetch_count=1)
        batch = stage.backstage
        for number in range(200):
            batch.publish(1, "", "far_consumer", f"more {number}".encode())
        batch.flush()
        packing.basic_consume("far_consumer", lambda ch, m, _p, _b: ch.basic_ack(m.delivery_tag))
        other.process_data_events(3)
        end = time.monotonic() + 3
        while time.monotonic() < end:
            other.process_data_events(0.2)
        other.close()
        connection.close()


@ticket
def far_worker(stage: Ticket) -> None:
    """As far away and with prefetch 1, but its work takes 200 ms: the round trip is not what it waits for."""
    for number in range(30):
        if not number:
            stage.backstage.call(1, commands.Queue.Declare(queue="far_worker"))
        stage.backstage.publish(1, "", "far_worker", f"job {number}".encode())
    stage.backstage.flush()
    with far_broker() as far, stage.sniff(interface="shaky"):
        other = stage.pika("packer", far)
        channel = other.channel()
        channel.basic_qos(prefetch_count=1)

        def work(_channel: object, method: pika.spec.Basic.Deliver, *_: object) -> None:
            time.sleep(0.2)
            channel.basic_ack(method.delivery_tag)

        channel.basic_consume("far_worker", work)
        end = time.monotonic() + 6
        while time.monotonic() < end:
            other.process_data_events(0.2)
        other.close()


@ticket
def requeue_loop(stage: Ticket) -> None:
    """Two messages that cannot be worked on are put back each time."""

    async def play() -> None:
        connection = await aio_pika.connect(URL, client_properties={"connection_name": "importer"})
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=10)
        queue = await channel.declare_queue("requeue_loop")
        for number in range(20):
            body = b"broken" if number in (7, 12) else b"fine"
            message = aio_pika.Message(body + str(number).encode(), message_id=f"m{number}")
            await channel.default_exchange.publish(message, "requeue_loop")

        async def take(message: aio_pika.abc.AbstractIncomingMessage) -> None:
            await asyncio.sleep(0.02)
            await (message.nack(requeue=True) if message.body.startswith(b"broken") else message.ack())

        await queue.consume(take)
        await asyncio.sleep(2)
        await connection.close()

    with stage.sniff():
        asyncio.run(play())


def retrying(stage: Ticket, queue: str, rounds: int) -> None:
    """A consumer that rejects its one bad job `rounds` times; a queue with a TTL brings it back after 80 ms."""
    with stage.sniff():
        connection = stage.pika("biller")
        channel = connection.channel()
        back = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue, "x-message-ttl": 80}
        channel.queue_declare(f"{queue}_later", arguments=back)
        away = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{queue}_later"}
        channel.queue_declare(queue, arguments=away)
        channel.confirm_delivery()
        channel.basic_qos(prefetch_count=10)
        for number in range(12):
            body = b"broken" if number == 5 else b"fine"
            channel.basic_publish("", queue, body, pika.BasicProperties(message_id=f"bill{number}"))
        seen: list[bytes] = []

        def take(_channel: object, method: pika.spec.Basic.Deliver, _: object, body: bytes) -> None:
            seen.append(body)
            if body == b"broken" and seen.count(body) <= rounds:
                channel.basic_reject(method.delivery_tag, requeue=False)
            else:
                channel.basic_ack(method.delivery_tag)

        channel.basic_consume(queue, take)
        end = time.monotonic() + 2
        while time.monotonic() < end:
            connection.process_data_events(0.1)
        connection.close()


@ticket
def dead_letter_cycle(stage: Ticket) -> None:
    """A job that fails each time goes round by dead-letter exchanges, and nobody counts the rounds."""
    retrying(stage, "dead_letter_cycle", 1000)


@ticket
def planned_retry(stage: Ticket) -> None:
    """The same queues, but the job succeeds with the third try."""
    retrying(stage, "planned_retry", 2)


@ticket
def equal_payloads(stage: Ticket) -> None:
    """The same payload again and again, all of them new messages."""
    with stage.sniff():
        connection = stage.pika("sensor")
        channel = connection.channel()
        channel.queue_declare("equal_payloads")
        channel.confirm_delivery()
        channel.basic_qos(prefetch_count=10)
        channel.basic_consume("equal_payloads", lambda ch, m, _p, _b: ch.basic_ack(m.delivery_tag))
        for _ in range(60):
            channel.basic_publish("", "equal_payloads", b'{"ok": true}')
            connection.process_data_events(0.02)
        connection.close()


@ticket
def polling(stage: Ticket) -> None:
    """basic.get ten times a second, of a queue that is empty mostly."""
    with stage.sniff():
        connection = stage.pika("cron")
        channel = connection.channel()
        channel.queue_declare("polling")
        channel.confirm_delivery()
        for turn in range(40):
            if turn % 10 == 0:
                channel.basic_publish("", "polling", b"job")
            channel.basic_get("polling", auto_ack=True)
            connection.sleep(0.05)
        connection.close()


@ticket
def batch_job(stage: Ticket) -> None:
    """basic.get as fast as it goes, until the queue is empty."""
    peer = stage.backstage
    peer.call(1, commands.Queue.Declare(queue="batch_job"))
    for number in range(80):
        peer.publish(1, "", "batch_job", f"row {number}".encode())
    peer.flush()
    peer.drain(0.2)
    with stage.sniff():
        connection = stage.pika("nightly")
        channel = connection.channel()
        while True:
            method, _, _ = channel.basic_get("batch_job")
            if method is None:
                break
            channel.basic_ack(method.delivery_tag)
        connection.close()


def _losing(stage: Ticket, again: bool) -> None:
    queue = stage.name
    stage.backstage.call(1, commands.Queue.Declare(queue=queue))
    with stage.sniff():
        peer = stage.login("worker")
        peer.call(1, commands.Basic.Qos(0, 10, False))
        peer.call(1, commands.Basic.Consume(queue=queue, consumer_tag="worker-1"))
        stage.backstage.call(1, commands.Queue.Delete(queue=queue))
        peer.wait(1, "basic.cancel")
        if again:
            time.sleep(0.5)
            peer.call(1, commands.Queue.Declare(queue=queue))
            peer.call(1, commands.Basic.Consume(queue=queue, consumer_tag="worker-2"))
        peer.drain(6)
        peer.logout()


@ticket
def queue_deleted(stage: Ticket) -> None:
    """Somebody deletes the queue; the consumer does nothing about it."""
    _losing(stage, again=False)


@ticket
def queue_deleted_handled(stage: Ticket) -> None:
    """Somebody deletes the queue; the consumer declares it and consumes again."""
    _losing(stage, again=True)


@ticket
def double_ack(stage: Ticket) -> None:
    """A delivery acknowledged twice."""
    with stage.sniff():
        connection = stage.pika("billing")
        channel = connection.channel()
        channel.queue_declare("double_ack")
        channel.confirm_delivery()
        for number in range(3):
            channel.basic_publish("", "double_ack", str(number).encode())

        def take(_channel: object, method: pika.spec.Basic.Deliver, *_: object) -> None:
            channel.basic_ack(method.delivery_tag)
            channel.basic_ack(method.delivery_tag)

        channel.basic_consume("double_ack", take)
        with contextlib.suppress(pika.exceptions.ChannelClosedByBroker):
            for _ in range(5):
                connection.process_data_events(0.2)
        connection.close()


@ticket
def recovered(stage: Ticket) -> None:
    """basic.recover voids the tags; what is delivered again is acknowledged with its new one."""
    with stage.sniff():
        peer = stage.login("billing")
        peer.call(1, commands.Confirm.Select())
        peer.call(1, commands.Queue.Declare(queue="recovered"))
        peer.call(1, commands.Basic.Qos(0, 10, False))
        for number in range(3):
            peer.publish(1, "", "recovered", str(number).encode())
        peer.flush()
        peer.wait(1, "basic.ack")
        peer.call(1, commands.Basic.Consume(queue="recovered", consumer_tag="b"))
        peer.drain(0.3)
        peer.call(1, commands.Basic.Recover(True))
        peer.drain(0.3)
        for tag in (4, 5, 6):
            peer.send(1, commands.Basic.Ack(tag))
        peer.drain(0.2)
        peer.logout()


@ticket
def ack_too_late(stage: Ticket) -> None:
    """The broker closes the channel of a consumer that does not acknowledge within its time-out."""
    environment = "application:set_env(rabbit, {}, {})."
    stage.broker.control("eval", environment.format("consumer_timeout", "1500"))
    stage.broker.control("eval", environment.format("channel_tick_interval", "500"))
    try:
        with stage.sniff():
            peer = stage.login("archive")
            peer.call(1, commands.Confirm.Select())
            peer.call(1, commands.Queue.Declare(queue="ack_too_late"))
            peer.call(1, commands.Basic.Qos(0, 10, False))
            for number in range(4):
                peer.publish(1, "", "ack_too_late", str(number).encode())
            peer.flush()
            peer.call(1, commands.Basic.Consume(queue="ack_too_late", consumer_tag="archive-1"))
            peer.drain(0.3)
            for tag in (1, 2, 4):
                peer.send(1, commands.Basic.Ack(tag))
            peer.wait(1, "channel.close")
            peer.send(1, commands.Channel.CloseOk())
            peer.logout()
    finally:
        stage.broker.control("eval", environment.format("consumer_timeout", "1800000"))
        stage.broker.control("eval", environment.format("channel_tick_interval", "60000"))


def _forgetful(stage: Ticket, forgets: bool) -> None:
    queue = stage.name
    with stage.sniff():
        peer = stage.login("mailer")
        peer.call(1, commands.Confirm.Select())
        peer.call(1, commands.Queue.Declare(queue=queue))
        peer.call(1, commands.Basic.Qos(0, 200, False))
        peer.call(1, commands.Basic.Consume(queue=queue, consumer_tag="mailer-1"))
        for number in range(150):
            peer.publish(1, "", queue, f"mail {number}".encode())
            peer.flush()
            peer.wait(1, "basic.deliver")
            if number != 20 and not (forgets and number % 3 == 0):
                peer.send(1, commands.Basic.Ack(number + 1))
            time.sleep(0.02)
        if not forgets:
            peer.send(1, commands.Basic.Ack(21))
        peer.drain(0.3)
        peer.logout()


@ticket
def forgotten_acks(stage: Ticket) -> None:
    """Every third delivery is never acknowledged."""
    _forgetful(stage, forgets=True)


@ticket
def one_long_job(stage: Ticket) -> None:
    """One delivery is worked on all the time, and acknowledged in the end."""
    _forgetful(stage, forgets=False)
