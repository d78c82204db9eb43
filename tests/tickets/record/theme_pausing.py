"""Calls that wait for each other, and consumers that pause among quick messages."""

from __future__ import annotations

import asyncio
import time

import aio_pika
import pika  # type: ignore[import-untyped]

from tests.tickets.record.stage import Ticket, ticket
from tests.tickets.record.theme_waiting import connected, run_amqplib

PUBLISHER = """const channel = await connection.createConfirmChannel();
    for (let number = 0; number < 120; number++) {
        channel.sendToQueue(queue, Buffer.from('reading ' + number)); await sleep(30); }
    await channel.waitForConfirms();"""
CONSUMER = """const channel = await connection.createChannel(); await channel.prefetch(15);
    let seen = 0;
    await channel.consume(queue, async message => {
        if (++seen === 30) { const end = Date.now() + pause; while (Date.now() < end); }
        channel.ack(message); });
    await sleep(6000);"""
SERVER = """const channel = await connection.createChannel(); await channel.prefetch(abreast);
    await channel.consume(queue, async call => { await sleep(work);
        channel.sendToQueue(call.properties.replyTo, Buffer.from('9'), {correlationId: call.properties.correlationId});
        channel.ack(call); });
    await sleep(9000);"""
CALLER = """const channel = await connection.createChannel();
    const answers = (await channel.assertQueue('', {exclusive: true})).queue;
    await channel.consume(answers, () => 0, {noAck: true});
    for (let number = 0; number < 6; number++)
        channel.sendToQueue(queue, Buffer.from('?'), {correlationId: 'call ' + number, replyTo: answers});
    await sleep(8500);"""


def _call(stage: Ticket, work: float, abreast: int) -> None:
    """Six calls at once to a server that needs some time for each."""

    async def serve() -> None:
        connection = await connected("pricing")
        channel = await connection.channel()
        await channel.set_qos(abreast)
        queue = await channel.declare_queue(stage.name)

        async def answer(call: aio_pika.abc.AbstractIncomingMessage) -> None:
            async with call.process():
                await asyncio.sleep(work)
                made = aio_pika.Message(b"9", correlation_id=call.correlation_id)
                await channel.default_exchange.publish(made, call.reply_to or "")

        await queue.consume(answer)
        caller = await connected("checkout")
        calls = await caller.channel()
        answers = await calls.declare_queue(exclusive=True)
        await answers.consume(lambda _: asyncio.sleep(0), no_ack=True)
        for number in range(6):
            made = aio_pika.Message(b"?", correlation_id=f"call {number}", reply_to=answers.name)
            await calls.default_exchange.publish(made, stage.name)
        await asyncio.sleep(6 * work / abreast + 1)
        await caller.close()
        await connection.close()

    _ = stage.broker
    with stage.sniff():
        asyncio.run(serve())


@ticket
def calls_queue_up(stage: Ticket) -> None:
    """A checkout hangs: each call takes 1.2 s, and five others are before the last one."""
    _call(stage, 1.2, 1)


@ticket
def calls_abreast(stage: Ticket) -> None:
    """The same server answers six at a time, in 0.8 s."""
    _call(stage, 0.8, 6)


def _call_by_amqplib(stage: Ticket, work: int, abreast: int) -> None:
    stage.pika("operator").channel().queue_declare(stage.name)
    with stage.sniff():
        server = run_amqplib("pricing", SERVER, queue=stage.name, work=work, abreast=abreast)
        time.sleep(0.7)
        caller = run_amqplib("checkout", CALLER, queue=stage.name)
        caller.wait(20)
        server.wait(20)


@ticket
def calls_queue_up_amqplib(stage: Ticket) -> None:
    """By amqplib."""
    _call_by_amqplib(stage, 1100, 1)


@ticket
def calls_abreast_amqplib(stage: Ticket) -> None:
    """By amqplib, six at a time."""
    _call_by_amqplib(stage, 700, 6)


def _pause(stage: Ticket, pause: float) -> None:
    """A worker of quick messages meets one that takes long."""
    with stage.sniff():
        connection = stage.pika("biller")
        channel = connection.channel()
        channel.queue_declare(stage.name)
        channel.basic_qos(prefetch_count=15)
        seen = []

        def work(on: pika.channel.Channel, method: pika.spec.Basic.Deliver, *_: object) -> None:
            seen.append(method.delivery_tag)
            if len(seen) == 30:
                time.sleep(pause)
            on.basic_ack(method.delivery_tag)

        channel.basic_consume(stage.name, work)
        meter = run_amqplib("meter", PUBLISHER, queue=stage.name)
        connection.sleep(6)
        meter.wait(20)
        connection.close()


@ticket
def worker_pauses(stage: Ticket) -> None:
    """One message of 120 takes two seconds, and all others wait."""
    _pause(stage, 2.4)


@ticket
def worker_breathes(stage: Ticket) -> None:
    """It takes less than a second."""
    _pause(stage, 0.8)


def _pause_by_amqplib(stage: Ticket, pause: int) -> None:
    stage.pika("operator").channel().queue_declare(stage.name)
    with stage.sniff():
        worker = run_amqplib("biller", CONSUMER, queue=stage.name, pause=pause)
        time.sleep(0.7)
        run_amqplib("meter", PUBLISHER, queue=stage.name).wait(20)
        worker.wait(20)


@ticket
def worker_pauses_amqplib(stage: Ticket) -> None:
    """By amqplib: a loop keeps its only thread."""
    _pause_by_amqplib(stage, 2200)


@ticket
def worker_breathes_amqplib(stage: Ticket) -> None:
    """By amqplib, less than a second."""
    _pause_by_amqplib(stage, 700)
