"""What an operator meets at night: streams, TLS, paths that lose or swallow packets, limits of queues, namesakes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import aio_pika
import pika  # type: ignore[import-untyped]
import pika.exceptions  # type: ignore[import-untyped]
import rstream  # type: ignore[import-not-found,unused-ignore]

from tests.captures.record import lossy
from tests.captures.record.broker import PORT
from tests.captures.record.certificates import NAME, Authority, context
from tests.captures.record.theme_streams import STREAM_PORT, ready
from tests.captures.record.theme_tls import TLS_PORT, _listen, _stop
from tests.tickets.record.stage import FarLink, Ticket, _accept, ticket

LOGIN: dict[str, Any] = {"host": "127.0.0.1", "port": STREAM_PORT, "username": "guest", "password": "guest"}


def _poison(stage: Ticket, arguments: dict[str, Any]) -> None:
    with stage.sniff():
        connection = stage.pika("invoicer")
        channel = connection.channel()
        channel.queue_declare("dead")
        channel.queue_declare(stage.name, durable=True, arguments=arguments)
        channel.confirm_delivery()
        for number in range(5):
            channel.basic_publish("", stage.name, f"invoice {number}".encode())
        for method, _properties, body in channel.consume(stage.name, inactivity_timeout=0.6):
            if method is None:
                break
            connection.sleep(0.02)
            if body == b"invoice 2":
                channel.basic_nack(method.delivery_tag, requeue=True)
            else:
                channel.basic_ack(method.delivery_tag)
        channel.cancel()
        connection.close()


@ticket
def delivery_limit(stage: Ticket) -> None:
    """A message that its consumer gives back each time, until the limit of its quorum queue puts it aside."""
    _poison(
        stage,
        {
            "x-queue-type": "quorum",
            "x-delivery-limit": 20,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": "dead",
        },
    )


def _following(stage: Ticket, pause: float) -> None:
    async def play() -> None:
        producer = rstream.Producer(
            "127.0.0.1", STREAM_PORT, username="guest", password="guest", connection_name="meter"
        )
        await producer.start()
        await producer.create_stream(stage.name, exists_ok=True)
        consumer = rstream.Consumer(
            "127.0.0.1", STREAM_PORT, username="guest", password="guest", connection_name="chart"
        )
        await consumer.start()
        seen = 0

        async def on_message(_message: Any, _context: Any) -> None:
            nonlocal seen
            seen += 1
            await asyncio.sleep(pause)

        await consumer.subscribe(stage.name, on_message, initial_credit=1)
        for second in range(40):
            for number in range(5):
                await producer.send(stage.name, f"value {second} {number}".encode())
            await asyncio.sleep(0.1)
        await asyncio.sleep(0.3)
        await consumer.close()
        await producer.close()

    ready(stage)
    with stage.sniff((STREAM_PORT,)):
        asyncio.run(play())


@ticket
def stream_little_credit(stage: Ticket) -> None:
    """A consumer of a stream that works slowly and gives credit for one chunk at a time."""
    _following(stage, 0.04)


@ticket
def stream_keeps_up(stage: Ticket) -> None:
    """One that works fast."""
    _following(stage, 0.0)


@ticket
def encrypted(stage: Ticket) -> None:
    """TLS whose keys nobody has, before a queue that refuses what is published."""
    with tempfile.TemporaryDirectory(prefix="tls-") as name:
        authority = Authority(Path(name), "good")
        _listen(stage, "127.0.0.1", authority.issue("broker"), authority, "{versions, ['tlsv1.3', 'tlsv1.2']}")
        made = context(authority, Path(name) / "keylog", "1.2", "ECDHE-ECDSA-AES128-GCM-SHA256")
        with stage.sniff(ports=(TLS_PORT,)):
            connection = pika.BlockingConnection(
                pika.ConnectionParameters(
                    "127.0.0.1",
                    TLS_PORT,
                    ssl_options=pika.SSLOptions(made, NAME),
                    client_properties={"connection_name": "vault"},
                )
            )
            channel = connection.channel()
            channel.queue_declare(stage.name, arguments={"x-max-length": 5, "x-overflow": "reject-publish"})
            channel.confirm_delivery()
            for number in range(20):
                with contextlib.suppress(pika.exceptions.NackError):
                    channel.basic_publish("", stage.name, f"secret {number}".encode())
            connection.close()
        _stop(stage, "127.0.0.1")


@contextlib.contextmanager
def _far(link: lossy.Link) -> Iterator[str]:
    try:
        with lossy.listener(link, PORT) as server:
            threading.Thread(target=_accept, args=(server,), daemon=True).start()
            yield lossy.SERVER
            time.sleep(0.1)
    finally:
        link.close()


class Swallowing(FarLink):
    """A far link that swallows all packets from a time on."""

    def __init__(self) -> None:
        self.swallow = False
        super().__init__()

    def _carry(self) -> None:
        others = {self._client_device: self._server_device, self._server_device: self._client_device}
        while True:
            ready_now, _, _ = select.select([*others, self._stop], [], [], 0.1)
            if self._stop in ready_now:
                return
            for device in ready_now:
                packet = os.read(device, 65536)
                if not self.swallow:
                    os.write(others[device], packet)


@ticket
def silent_path(stage: Ticket) -> None:
    """A firewall forgets a connection without heartbeats: what is published then goes nowhere."""
    _ = stage.broker
    link = Swallowing()
    with _far(link) as far, stage.sniff(interface="shaky"):
        connection = stage.pika("till", far, heartbeat=0)
        channel = connection.channel()
        channel.queue_declare(stage.name)
        for number in range(10):
            channel.basic_publish("", stage.name, f"sale {number}".encode())
        connection.sleep(1)
        link.swallow = True
        for number in range(10, 20):
            channel.basic_publish("", stage.name, f"sale {number}".encode())
            connection.sleep(0.5)
        connection.sleep(4)


@ticket
def consumes_again(stage: Ticket) -> None:
    """The queue of a consumer is deleted and declared anew; the broker cancels it, and it consumes again."""

    async def play() -> None:
        url = "amqp://guest:guest@127.0.0.1/?name=alerts"
        connection = await aio_pika.connect(url, client_properties={"connection_name": "alerts"})
        channel = await connection.channel()
        admin = await (await aio_pika.connect(url, client_properties={"connection_name": "admin"})).channel()
        queue = await channel.declare_queue(stage.name)

        async def work(message: aio_pika.abc.AbstractIncomingMessage) -> None:
            await message.ack()

        await queue.consume(work)
        for number in range(5):
            await admin.default_exchange.publish(aio_pika.Message(f"alert {number}".encode()), stage.name)
        await asyncio.sleep(0.2)
        await admin.queue_delete(stage.name)
        await asyncio.sleep(0.3)
        queue = await channel.declare_queue(stage.name)
        await queue.consume(work)
        for number in range(5, 10):
            await admin.default_exchange.publish(aio_pika.Message(f"alert {number}".encode()), stage.name)
        await asyncio.sleep(0.2)
        await connection.close()

    _ = stage.broker
    with stage.sniff():
        asyncio.run(play())


@contextlib.contextmanager
def _from(address: str) -> Iterator[None]:
    plain: Callable[..., Any] = socket.socket.connect

    def connect(self: socket.socket, to: Any) -> Any:
        self.bind((address, 0))
        return plain(self, to)

    with mock.patch.object(socket.socket, "connect", connect):
        yield


@ticket
def namesakes(stage: Ticket) -> None:
    """Two hosts run an application of one name; one of them never acknowledges."""
    with stage.sniff():
        with _from("127.0.0.21"):
            good = stage.pika("worker")
        with _from("127.0.0.22"):
            bad = stage.pika("worker")
        producer = stage.pika("source").channel()
        producer.queue_declare(stage.name)
        producer.confirm_delivery()
        counts = {"good": 0, "bad": 0}
        for name, connection in (("good", good), ("bad", bad)):
            channel = connection.channel()
            channel.basic_qos(prefetch_count=20)

            def on(ch: Any, method: Any, _p: Any, _b: bytes, name: str = name) -> None:
                counts[name] += 1
                if name == "good":
                    ch.basic_ack(method.delivery_tag)

            channel.basic_consume(stage.name, on)
        for number in range(60):
            producer.basic_publish("", stage.name, f"job {number}".encode())
            good.process_data_events(0)
            bad.process_data_events(0)
        good.sleep(0.3)
        bad.close()
        good.sleep(0.2)
        good.close()


def _delete(stage: Ticket) -> None:
    admin = stage.pika("admin")
    admin.channel().queue_delete(stage.name)
    admin.close()


def _mailing(stage: Ticket, deleted_at: int | None) -> None:
    """Publishes and consumes; the queue is deleted before a publish, or when both are done."""
    with stage.sniff():
        mailer, shop = stage.pika("mailer"), stage.pika("shop")
        work, sales = mailer.channel(), shop.channel()
        work.queue_declare(stage.name)
        work.basic_consume(stage.name, lambda channel, method, *_: channel.basic_ack(method.delivery_tag))
        sales.confirm_delivery()
        for number in range(22):
            if number == deleted_at:
                _delete(stage)
            with contextlib.suppress(pika.exceptions.UnroutableError):
                sales.basic_publish("", stage.name, b"mail", mandatory=True)
            mailer.process_data_events(0.02)
        mailer.sleep(6)
        mailer.close()
        shop.close()
        if deleted_at is None:
            _delete(stage)


@ticket
def deleted_in_use(stage: Ticket) -> None:
    """Somebody deletes a queue to which one client publishes, and from which another one consumes."""
    _mailing(stage, 10)


@ticket
def deleted_after_use(stage: Ticket) -> None:
    """Somebody deletes it when both have closed their connections."""
    _mailing(stage, None)


@ticket
def unknown_method(stage: Ticket) -> None:
    """A client sends a method that AMQP does not have, twice; the broker ends its connections without a close."""
    with stage.sniff():
        for number in range(2):
            client = stage.login(f"tool-{number}")
            client.queue_raw(struct.pack(">BHIHHB", 1, 1, 4, 60, 999, 0xCE))
            client.flush()
            time.sleep(0.5)
            client.socket.close()


@ticket
def may_not_configure(stage: Ticket) -> None:
    """A user may only read: its declarations and its publish are refused, and its connection stays."""
    stage.broker.control("add_user", "viewer", "viewer")
    stage.broker.control("set_permissions", "viewer", "^$", "^$", ".*")
    with stage.sniff():
        login = {"credentials": pika.PlainCredentials("viewer", "viewer")}
        names = {"client_properties": {"connection_name": "report"}}
        client = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", PORT, **login, **names))
        for _ in range(3):
            with contextlib.suppress(pika.exceptions.AMQPChannelError):
                client.channel().queue_declare("report")
            client.sleep(0.2)
        client.close()
