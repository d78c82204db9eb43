"""Who waits for whom: answers and confirms that come too late, consumers that hold what others could do."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import Any

import aio_pika
import pika  # type: ignore[import-untyped]
import pika.exceptions  # type: ignore[import-untyped]

from tests.captures.record.theme_contents import AMQPLIB
from tests.tickets.record.stage import Ticket, ticket

DIRECT = "amq.rabbitmq.reply-to"


async def connected(client: str) -> aio_pika.abc.AbstractConnection:
    return await aio_pika.connect("amqp://127.0.0.1/?name=" + client, client_properties={"connection_name": client})


def run_amqplib(client: str, text: str, **values: Any) -> subprocess.Popen[bytes]:
    """Runs a script of amqplib: `channel` is open, and `values` are there."""
    given = "".join(f"const {name} = {json.dumps(value)};" for name, value in values.items())
    head = f"""const amqp = require('amqplib'), sleep = ms => new Promise(done => setTimeout(done, ms)); {given}
        (async () => {{ const connection = await amqp.connect('amqp://127.0.0.1',
            {{noDelay: true, clientProperties: {{connection_name: '{client}'}}}});
        connection.on('error', () => 0);"""
    return subprocess.Popen(["node", "-e", f"{head} {text} await connection.close(); }})()"], cwd=AMQPLIB)


def _calls(connection: pika.BlockingConnection, queue: str, patience: float, slow: range) -> None:
    """Eight calls by direct reply-to, each on a channel of its own, which is closed when patience ends."""
    for number in range(8):
        channel, answers = connection.channel(), []
        channel.basic_consume(DIRECT, lambda *parts, got=answers: got.append(parts), auto_ack=True)
        body = b"slow" if number in slow else b"fast"
        properties = pika.BasicProperties(reply_to=DIRECT, correlation_id=f"call {number}")
        channel.basic_publish("", queue, body, properties)
        end = time.monotonic() + patience
        while not answers and time.monotonic() < end:
            connection.process_data_events(0.02)
        channel.close()
    connection.sleep(1)


def _answered(stage: Ticket, slow: range) -> None:
    async def answer(ready: threading.Event, ends: threading.Event) -> None:
        connection = await connected("pricer")
        channel = await connection.channel()
        await channel.set_qos(20)
        queue = await channel.declare_queue(stage.name)

        async def work(message: aio_pika.abc.AbstractIncomingMessage) -> None:
            async with message.process():
                await asyncio.sleep(0.6 if message.body == b"slow" else 0.02)
                made = aio_pika.Message(b"42 EUR", correlation_id=message.correlation_id)
                await channel.default_exchange.publish(made, message.reply_to or "")

        await queue.consume(work)
        ready.set()
        while not ends.is_set():
            await asyncio.sleep(0.05)
        await connection.close()

    _ = stage.broker
    ready, ends = threading.Event(), threading.Event()
    with stage.sniff():
        server = threading.Thread(target=lambda: asyncio.run(answer(ready, ends)))
        server.start()
        ready.wait()
        connection = stage.pika("shop")
        _calls(connection, stage.name, 0.3, slow)
        connection.close()
        ends.set()
        server.join()


@ticket
def late_replies(stage: Ticket) -> None:
    """Six of eight calls by direct reply-to are answered after 0.6 s; the caller waits for half of that."""
    _answered(stage, range(2, 8))


@ticket
def replies_in_time(stage: Ticket) -> None:
    """All answers come in time; the broker returns them nevertheless, for they are mandatory."""
    _answered(stage, range(0))


@ticket
def late_replies_to_queues(stage: Ticket) -> None:
    """Each call has a queue for its answer, which is gone when the answer comes."""
    with stage.sniff():
        connection = stage.pika("shop")
        connection.channel().queue_declare(stage.name)
        script = """const channel = await connection.createChannel();
            await channel.consume(queue, async call => { await sleep(600);
                channel.sendToQueue(call.properties.replyTo, Buffer.from('17'),
                    {correlationId: call.properties.correlationId}); channel.ack(call); });
            await sleep(5000);"""
        server = run_amqplib("quoter", script, queue=stage.name)
        time.sleep(1)
        for number in range(8):
            channel, answers = connection.channel(), []
            queue = channel.queue_declare("", exclusive=True, auto_delete=True).method.queue
            channel.basic_consume(queue, lambda *parts, got=answers: got.append(parts), auto_ack=True)
            properties = pika.BasicProperties(reply_to=queue, correlation_id=f"call {number}")
            channel.basic_publish("", stage.name, b"how much", properties)
            end = time.monotonic() + 0.3
            while not answers and time.monotonic() < end:
                connection.process_data_events(0.02)
            channel.close()
        connection.sleep(1)
        connection.close()
        server.wait(20)


@ticket
def slow_server(stage: Ticket) -> None:
    """One worker of 0.1 s answers 25 calls a second: in the end all are answered, the last after seconds."""

    async def play() -> None:
        connection = await connected("calculator")
        channel = await connection.channel()
        await channel.set_qos(1)
        queue = await channel.declare_queue(stage.name)

        async def work(message: aio_pika.abc.AbstractIncomingMessage) -> None:
            async with message.process():
                await asyncio.sleep(0.1)
                made = aio_pika.Message(b"1", correlation_id=message.correlation_id)
                await channel.default_exchange.publish(made, message.reply_to or "")

        await queue.consume(work)
        caller = await connected("web")
        calls = await caller.channel()
        answers = await calls.declare_queue(exclusive=True)
        waiting = {str(number): asyncio.get_running_loop().create_future() for number in range(34)}

        async def answered(message: aio_pika.abc.AbstractIncomingMessage) -> None:
            waiting[message.correlation_id or ""].set_result(None)

        await answers.consume(answered, no_ack=True)
        for number in waiting:
            made = aio_pika.Message(b"?", correlation_id=number, reply_to=answers.name)
            await calls.default_exchange.publish(made, stage.name)
            await asyncio.sleep(0.04)
        await asyncio.gather(*waiting.values())
        await caller.close()
        await connection.close()

    _ = stage.broker
    with stage.sniff():
        asyncio.run(play())


@ticket
def stalled_broker(stage: Ticket) -> None:
    """The broker's process stands still three times, as behind a disk that hangs; TCP acknowledges meanwhile."""
    script = """const channel = await connection.createConfirmChannel(); await channel.assertQueue(queue);
        for (let number = 0; number < 120; number++) {
            channel.sendToQueue(queue, Buffer.from('value ' + number), {persistent: true}); await sleep(50); }
        await channel.waitForConfirms();"""
    _ = stage.broker
    with stage.sniff():
        client = run_amqplib("meter", script, queue=stage.name)
        for _ in range(3):
            time.sleep(0.8)
            stage.broker.pause(1.6)
        client.wait(20)


@ticket
def mute_alarm(stage: Ticket) -> None:
    """Memory runs low, and the client cannot be told: it lacks the capability connection.blocked."""
    _ = stage.broker
    with stage.sniff():
        properties = {
            "connection_name": "legacy",
            "capabilities": {"publisher_confirms": True, "basic.nack": True, "connection.blocked": False},
        }
        connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", client_properties=properties))
        channel = connection.channel()
        channel.queue_declare(stage.name)
        channel.confirm_delivery()
        for number in range(30):
            if number == 10:
                stage.broker.control("set_vm_memory_high_watermark", "0.0000001")
                relief = threading.Timer(4, stage.broker.control, ("set_vm_memory_high_watermark", "0.4"))
                relief.start()
            channel.basic_publish("", stage.name, b"x" * 500)
            time.sleep(0.03)
        relief.join()
        connection.close()


@contextlib.contextmanager
def _suspended(stage: Ticket) -> Iterator[None]:
    server = f"whereis('%2F_{stage.name}')"
    stage.broker.control("eval", f"sys:suspend({server}).")
    try:
        yield
    finally:
        stage.broker.control("eval", f"sys:resume({server}).")


@ticket
def quorum_stalls(stage: Ticket) -> None:
    """A quorum queue whose leader does not answer for four seconds, as without a majority."""
    with stage.sniff():
        connection = stage.pika("ledger")
        channel = connection.channel()
        channel.queue_declare(stage.name, durable=True, arguments={"x-queue-type": "quorum"})
        channel.confirm_delivery()
        for number in range(5):
            channel.basic_publish("", stage.name, f"entry {number}".encode())

        def stall() -> None:
            with _suspended(stage):
                begun.set()
                time.sleep(4)

        begun = threading.Event()
        other = threading.Thread(target=stall)
        other.start()
        begun.wait()
        for number in range(5, 15):
            channel.basic_publish("", stage.name, f"entry {number}".encode())
        other.join()
        connection.close()


@ticket
def quorum_hangs(stage: Ticket) -> None:
    """The same, and it has not answered when the capture ends; what is published then is all that its client sends."""

    async def play() -> None:
        connection = await connected("cashier")
        channel = await connection.channel()
        await channel.declare_queue(stage.name, durable=True, arguments={"x-queue-type": "quorum"})
        send = channel.default_exchange.publish
        for _ in range(5):
            await send(aio_pika.Message(b"sale"), stage.name)
        other = await connected("clock")
        ticks = await other.channel()
        await ticks.declare_queue("ticks", auto_delete=True)
        with _suspended(stage):
            sent = [asyncio.ensure_future(send(aio_pika.Message(b"sale"), stage.name)) for _ in range(15)]
            for _ in range(16):
                await ticks.default_exchange.publish(aio_pika.Message(b"tick"), "ticks")
                await asyncio.sleep(0.25)
            await asyncio.to_thread(sniffer.stop)
        await asyncio.gather(*sent)
        await connection.close()
        await other.close()

    with stage.sniff() as sniffer:
        asyncio.run(play())


def _batches(stage: Ticket, prefetch: int) -> None:
    async def play() -> None:
        connection = await connected("batcher")
        channel = await connection.channel()
        await channel.set_qos(prefetch)
        queue = await channel.declare_queue(stage.name)
        batch: list[aio_pika.abc.AbstractIncomingMessage] = []

        async def collect(message: aio_pika.abc.AbstractIncomingMessage) -> None:
            batch.append(message)
            if len(batch) == 10:
                await message.ack(multiple=True)
                batch.clear()

        await queue.consume(collect)
        feeder = await connected("feeder")
        feed = await feeder.channel()
        for number in range(60):
            await feed.default_exchange.publish(aio_pika.Message(f"item {number}".encode()), stage.name)
            await asyncio.sleep(0.1)
        await feeder.close()
        await connection.close()

    _ = stage.broker
    with stage.sniff():
        asyncio.run(play())


@ticket
def batch_beyond_prefetch(stage: Ticket) -> None:
    """A consumer acknowledges each tenth message, and its prefetch is five: it waits for ever."""
    _batches(stage, 5)


@ticket
def batch_within_prefetch(stage: Ticket) -> None:
    """The prefetch is as large as the batch."""
    _batches(stage, 10)


def _sharing(stage: Ticket, prefetch: int) -> None:
    script = """const channel = await connection.createChannel(); await channel.prefetch(prefetch);
        const jobs = []; let end = Date.now() + 6000;
        await channel.consume(queue, job => jobs.push(job), {consumerTag: tag, priority});
        while (Date.now() < end) { if (jobs.length) { await sleep(pause); channel.ack(jobs.shift()); }
            else await sleep(5); }"""
    with stage.sniff():
        connection = stage.pika("feed")
        channel = connection.channel()
        channel.queue_declare(stage.name)
        channel.confirm_delivery()
        clients = [
            run_amqplib(tag, script, queue=stage.name, tag=tag, prefetch=prefetch, priority=priority, pause=pause)
            for tag, priority, pause in (("favourite", 10, 60), ("spare", 0, 5))
        ]
        time.sleep(1.2)
        for number in range(45):
            channel.basic_publish("", stage.name, f"job {number}".encode())
        for client in clients:
            client.wait(20)
        connection.close()


@ticket
def favourite_consumer(stage: Ticket) -> None:
    """A slow consumer of a higher priority and a large prefetch gets everything; a fast one beside it nothing."""
    _sharing(stage, 200)


@ticket
def fair_consumers(stage: Ticket) -> None:
    """With a prefetch of two both have work."""
    _sharing(stage, 2)
