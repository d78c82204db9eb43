"""A small shop at work for a quarter of a minute: what a report is made from to show what a report is."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import threading
import time
from collections import Counter
from typing import Any

import aio_pika
import pika  # type: ignore[import-untyped]
from aio_pika.exceptions import DeliveryError

from tests.captures.record.scenario import Stage, scenario
from tests.captures.record.theme_basics import pika_connection
from tests.captures.record.theme_contents import aio_connection

SECONDS = 14.0
REGIONS = ("eu", "us", "apac")
# queue, binding, prefetch, seconds of work per message, how many are acked at once
CONSUMERS = (
    ("billing", "orders.*.new", 50, 0.001, 1),
    ("warehouse", "orders.eu.*", 4, 0.045, 1),
    ("statistics", "orders.#", 100, 0.0, 25),
)


class Shop:
    """What all of it shares: the stage, the clock and what was counted."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.random = random.Random(20)
        self.counts: Counter[str] = Counter()
        self.begun = time.monotonic()
        self.topology = asyncio.Event()

    @property
    def now(self) -> float:
        """Seconds since the shop opened."""
        return time.monotonic() - self.begun

    async def rest(self, seconds: float) -> None:
        """Sleeps around so many seconds."""
        await asyncio.sleep(seconds * self.random.uniform(0.5, 1.5))

    def note(self, client: str, what: str) -> None:
        """An entry of the log."""
        self.stage.events.append({"t_ns": time.time_ns(), "client": client, "what": what})


@scenario("demo: a shop with producers in confirm mode, consumers of all speeds, calls, stalls, a blocked interval")
def demo(stage: Stage) -> None:
    _ = stage.broker
    logging.getLogger("aiormq").setLevel(logging.CRITICAL)  # it tells of every blocked connection
    shop = Shop(stage)
    with stage.sniff():
        asyncio.run(_open(shop))
    stage.golden["notes"] = "counted by the clients: " + json.dumps(dict(sorted(shop.counts.items())))
    stage.golden["counts"] = {
        "connections": 7,
        "basic.publish": sum(count for name, count in shop.counts.items() if name.endswith("publishes")),
        "basic.return": shop.counts["checkout returns"],
    }


async def _open(shop: Shop) -> None:
    incident = threading.Thread(target=_incidents, args=(shop,))
    till = threading.Thread(target=_till, args=(shop,))
    shop.begun = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for queue, binding, prefetch, work, batch in CONSUMERS:
            group.create_task(_consume(shop, queue, binding, prefetch, work, batch))
        group.create_task(_calls(shop))
        await asyncio.sleep(0.5)
        for thread in (incident, till):
            thread.start()
        group.create_task(_checkout(shop))
        group.create_task(_web(shop))
    for thread in (incident, till):
        await asyncio.to_thread(thread.join)


def _incidents(shop: Shop) -> None:
    broker = shop.stage.broker
    for at, seconds in ((3.0, 0.35), (11.0, 0.12)):
        time.sleep(max(0.0, at - shop.now))
        shop.note("broker", f"stopped for {seconds} s")
        broker.pause(seconds)
        if at == 3.0:
            time.sleep(max(0.0, 6.0 - shop.now))
            broker.control("set_vm_memory_high_watermark", "0.0000001")
            shop.note("broker", "memory alarm")
            time.sleep(0.8)
            broker.control("set_vm_memory_high_watermark", "0.4")
            shop.note("broker", "memory alarm over")


def _order(shop: Shop, number: int) -> tuple[str, bytes, dict[str, Any]]:
    region = REGIONS[min(int(shop.random.expovariate(1.2)), 2)]
    lines = [{"sku": f"sku-{shop.random.randrange(500)}", "quantity": shop.random.randrange(1, 9)}
             for _ in range(1 + int(shop.random.expovariate(0.4)))]  # fmt: skip
    body = json.dumps({"order": number, "lines": lines}).encode()
    trace = f"00-{shop.random.getrandbits(128):032x}-{shop.random.getrandbits(64):016x}-01"
    return f"orders.{region}.new", body, {"traceparent": trace, "region": region, "attempt": 1}


async def _checkout(shop: Shop) -> None:
    """Persistent orders in confirm mode, several of them under way at once; some are for nobody and come back."""
    connection, _ = await aio_connection(shop.stage, "checkout")
    channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
    exchange = await channel.get_exchange("orders", ensure=False)
    sending = set()

    async def publish(number: int) -> None:
        key, body, headers = _order(shop, number)
        if number % 97 == 0:
            exchange_used, key = channel.default_exchange, "nobody"
        else:
            exchange_used = exchange
        message = aio_pika.Message(
            body, headers=headers, content_type="application/json", delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
            message_id=f"order-{number}", timestamp=int(time.time()), app_id="checkout",
        )  # fmt: skip
        shop.counts["checkout publishes"] += 1
        try:
            await exchange_used.publish(message, routing_key=key, mandatory=True)
        except DeliveryError:
            shop.counts["checkout returns"] += 1

    number = 0
    while shop.now < SECONDS - 1.0:
        for _ in range(1 + int(shop.random.expovariate(0.5))):
            number += 1
            task = asyncio.create_task(publish(number))
            sending.add(task)
            task.add_done_callback(sending.discard)
        await shop.rest(0.05)
    await asyncio.gather(*sending)
    await connection.close()


async def _web(shop: Shop) -> None:
    """Clicks without confirms, in bursts, on two channels, to a queue that refuses what is too much."""
    connection, _ = await aio_connection(shop.stage, "web")
    clicks, carts = (
        await connection.channel(publisher_confirms=False),
        await connection.channel(publisher_confirms=True),
    )
    arguments = {"x-max-length": 40, "x-overflow": "reject-publish"}
    queue = await carts.declare_queue("carts", arguments=arguments, auto_delete=True)
    topic = await clicks.get_exchange("orders", ensure=False)
    while shop.now < SECONDS - 1.5:
        for _ in range(shop.random.randrange(2, 9)):
            shop.counts["web publishes"] += 1
            click = aio_pika.Message(b"click " * shop.random.randrange(1, 30), type="click")
            await topic.publish(click, routing_key="orders.eu.seen", mandatory=False)
        for _ in range(3):
            shop.counts["web publishes"] += 1
            try:
                await carts.default_exchange.publish(aio_pika.Message(b"cart"), routing_key="carts")
            except DeliveryError:
                shop.counts["web nacks"] += 1
        await shop.rest(0.3)
    while await queue.get(fail=False, no_ack=True) is not None:
        shop.counts["web gets"] += 1
    await connection.close()


async def _consume(shop: Shop, name: str, binding: str, prefetch: int, work: float, batch: int) -> None:
    connection, _ = await aio_connection(shop.stage, name)
    channel = await connection.channel()
    await channel.set_qos(prefetch_count=prefetch)
    exchange = await channel.declare_exchange("orders", aio_pika.ExchangeType.TOPIC, durable=True)
    queue = await channel.declare_queue(name, durable=True)
    await queue.bind(exchange, binding)
    waiting: asyncio.Queue[Any] = asyncio.Queue()
    await queue.consume(waiting.put, consumer_tag=f"{name}-1")
    seen = 0
    while shop.now < SECONDS:
        try:
            message = await asyncio.wait_for(waiting.get(), 0.2)
        except TimeoutError:
            continue
        seen += 1
        shop.counts[f"{name} deliveries"] += 1
        if work:
            await asyncio.sleep(shop.random.uniform(0.5, 1.5) * work)
        if name == "billing" and seen % 50 == 0:
            await message.nack(requeue=False)
            shop.counts["billing nacks"] += 1
        elif seen % batch == 0:
            await message.ack(multiple=batch > 1)
            shop.counts[f"{name} acks"] += 1
    await connection.close()


def _till(shop: Shop) -> None:
    """An old program that waits for every confirm; it is notified when it is blocked."""
    connection, book = pika_connection(shop.stage, "till")
    connection.add_on_connection_blocked_callback(lambda *_: book.told(0, "connection.blocked"))
    connection.add_on_connection_unblocked_callback(lambda *_: book.told(0, "connection.unblocked"))
    channel = connection.channel()
    channel.confirm_delivery()
    number = 0
    while shop.now < SECONDS - 1.2:
        number += 1
        properties = pika.BasicProperties(message_id=f"till-{number}", delivery_mode=2, headers={"till": number % 3})
        channel.basic_publish("orders", "orders.us.new", b"receipt " * 40, properties)
        shop.counts["till publishes"] += 1
        connection.sleep(0.04)
    connection.close()


async def _calls(shop: Shop) -> None:
    """Somebody who declares, binds and deletes all the time, and once asks for a queue that is not there."""
    connection, _ = await aio_connection(shop.stage, "tenant")
    await asyncio.sleep(0.8)
    turn = 0
    while shop.now < SECONDS - 0.8:
        turn += 1
        channel = await connection.channel()
        queue = await channel.declare_queue(f"session-{turn}", auto_delete=True)
        await queue.bind("orders", f"orders.{turn}.*")
        await queue.get(fail=False)
        if turn % 8 == 0:
            try:
                await channel.get_queue("not there")
            except aio_pika.exceptions.ChannelNotFoundEntity:
                shop.counts["calls refused"] += 1
        else:
            await queue.delete()
            await channel.close()
        shop.counts["queues declared"] += 1
        await shop.rest(0.25)
    await connection.close()
