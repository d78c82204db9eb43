"""Connections refused, thrown out, lost and wasted; operations that fail; publishers and consumers without limits."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time

import aio_pika
import pika  # type: ignore[import-untyped]
import pika.exceptions  # type: ignore[import-untyped]

from tests.captures.record.broker import PORT
from tests.tickets.record.stage import Ticket, far_broker, ticket


def _login(client: str, password: str = "guest", vhost: str = "/") -> pika.BlockingConnection:
    return pika.BlockingConnection(
        pika.ConnectionParameters(
            "127.0.0.1",
            PORT,
            vhost,
            pika.PlainCredentials("guest", password),
            client_properties={"connection_name": client},
        )
    )


def _refused(times: int, then_right: bool) -> None:
    for _ in range(times):
        with contextlib.suppress(pika.exceptions.AMQPConnectionError):
            _login("biller", "wrong")
        time.sleep(0.4)
    if then_right:
        connection = _login("biller")
        connection.sleep(0.5)
        connection.close()


@ticket
def wrong_password(stage: Ticket) -> None:
    """A client whose password is wrong, and that tries again and again."""
    _ = stage.broker
    with stage.sniff():
        _refused(5, then_right=False)


@ticket
def mistyped_password(stage: Ticket) -> None:
    """A password mistyped once."""
    _ = stage.broker
    with stage.sniff():
        _refused(1, then_right=True)


@ticket
def wrong_vhost(stage: Ticket) -> None:
    """A virtual host that does not exist."""

    async def play() -> None:
        with contextlib.suppress(aio_pika.exceptions.AMQPError, ConnectionError):
            await aio_pika.connect("amqp://guest:guest@127.0.0.1/orders", client_properties={"connection_name": "web"})

    _ = stage.broker
    with stage.sniff():
        asyncio.run(play())


@ticket
def connection_per_message(stage: Ticket) -> None:
    """A script that connects for each message, as a web request does in PHP."""
    with stage.sniff():
        for number in range(20):
            connection = stage.pika("php")
            channel = connection.channel()
            channel.queue_declare(stage.name)
            channel.confirm_delivery()
            channel.basic_publish("", stage.name, f"hit {number}".encode())
            connection.close()
            time.sleep(0.1)


@ticket
def pool_of_connections(stage: Ticket) -> None:
    """Twenty connections that are opened at once, and stay."""
    with stage.sniff():
        connections = [stage.pika("pool") for _ in range(20)]
        channels = [each.channel() for each in connections]
        channels[0].queue_declare(stage.name)
        for number, channel in enumerate(channels):
            channel.confirm_delivery()
            channel.basic_publish("", stage.name, f"hit {number}".encode())
        time.sleep(6)
        for each in connections:
            each.close()


def _declaring(stage: Ticket, each_time: bool) -> None:
    with stage.sniff():
        connection = stage.pika("mailer")
        channel = connection.channel()
        channel.confirm_delivery()
        for number in range(30):
            name = f"{stage.name}_{0 if each_time else number}"
            channel.queue_declare(name)
            if each_time:
                channel.basic_publish("", name, f"mail {number}".encode())
                connection.sleep(0.02)
        for number in range(0 if each_time else 300):
            channel.basic_publish("", f"{stage.name}_{number % 30}", f"mail {number}".encode())
        connection.close()


@ticket
def declare_each_time(stage: Ticket) -> None:
    """A publisher that declares its queue before each message."""
    _declaring(stage, each_time=True)


@ticket
def thirty_queues(stage: Ticket) -> None:
    """One that declares thirty queues, once each, and then publishes to them."""
    _declaring(stage, each_time=False)


@ticket
def thrown_out_by_operator(stage: Ticket) -> None:
    """An operator closes all connections."""
    with stage.sniff():
        connection = stage.pika("reporter")
        connection.channel()
        stage.broker.control("close_all_connections", "maintenance at night")
        with contextlib.suppress(pika.exceptions.AMQPConnectionError):
            connection.sleep(5)


KILLED = """
import sys, os, signal, pika
port = int(sys.argv[1])
connection = pika.BlockingConnection(
    pika.ConnectionParameters("127.0.0.1", port, client_properties={"connection_name": "cron"})
)
channel = connection.channel()
channel.queue_declare("killed_client")
channel.confirm_delivery()
for number in range(20):
    channel.basic_publish("", "killed_client", b"job")
if sys.argv[2] == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
connection.close()
"""


def _process(stage: Ticket, ending: str) -> None:
    _ = stage.broker
    with stage.sniff():
        subprocess.run([sys.executable, "-c", KILLED, str(PORT), ending], check=ending != "kill")
        time.sleep(0.3)


@ticket
def killed_client(stage: Ticket) -> None:
    """A process that is killed with its connection open."""
    _process(stage, "kill")


@ticket
def ended_client(stage: Ticket) -> None:
    """The same process, which ends by itself."""
    _process(stage, "end")


@ticket
def exclusive_queue(stage: Ticket) -> None:
    """A second client wants to consume from the exclusive queue of a first one."""
    with stage.sniff():
        first, second = stage.pika("node-1"), stage.pika("node-2")
        first.channel().queue_declare(stage.name, exclusive=True)
        with contextlib.suppress(pika.exceptions.ChannelClosedByBroker):
            second.channel().basic_consume(stage.name, lambda *_: None)
        for each in (first, second):
            each.close()


@ticket
def shared_queue(stage: Ticket) -> None:
    """Two clients that consume from one queue."""
    with stage.sniff():
        clients = [stage.pika("node-1"), stage.pika("node-2")]
        clients[0].channel().queue_declare(stage.name)
        for each in clients:
            each.channel().basic_consume(stage.name, lambda *_: None)
        for each in clients:
            each.close()


def _without_confirms(stage: Ticket, count: int) -> None:
    with stage.sniff():
        connection = stage.pika("sensor")
        channel = connection.channel()
        channel.queue_declare(stage.name)
        for number in range(count):
            channel.basic_publish("", stage.name, f"value {number}".encode())
        connection.close()


@ticket
def fire_and_forget(stage: Ticket) -> None:
    """A publisher without confirms."""
    _without_confirms(stage, 200)


@ticket
def transactions_only(stage: Ticket) -> None:
    """One that publishes in transactions instead."""
    with stage.sniff():
        connection = stage.pika("sensor")
        channel = connection.channel()
        channel.queue_declare(stage.name)
        channel.tx_select()
        for number in range(200):
            channel.basic_publish("", stage.name, f"value {number}".encode())
            if number % 20 == 19:
                channel.tx_commit()
        connection.close()


def _asking(stage: Ticket, host: str) -> None:
    connection = stage.pika("admin", host)
    channel = connection.channel()
    channel.queue_declare(stage.name)
    for _ in range(60):
        channel.queue_declare(stage.name, passive=True)
    connection.close()


@ticket
def far_requests(stage: Ticket) -> None:
    """Sixty questions one after the other, 40 ms away."""
    with far_broker() as far, stage.sniff(interface="shaky"):
        _asking(stage, far)


@ticket
def near_requests(stage: Ticket) -> None:
    """The same on one machine."""
    with stage.sniff():
        _asking(stage, "127.0.0.1")


def _consuming(stage: Ticket, acks: bool) -> None:
    with stage.sniff():
        connection = stage.pika("archiver")
        channel = connection.channel()
        channel.queue_declare(stage.name)
        channel.confirm_delivery()
        for number in range(40):
            channel.basic_publish("", stage.name, f"page {number}".encode())
        consumer = connection.channel()
        consumer.basic_qos(prefetch_count=50)
        last = 0
        for method, _properties, _body in consumer.consume(stage.name, inactivity_timeout=0.3):
            if method is None:
                break
            last = method.delivery_tag
        if acks:
            consumer.basic_ack(last, multiple=True)
        connection.close()


@ticket
def never_acknowledged(stage: Ticket) -> None:
    """A consumer that forgot to acknowledge, and gets all again the next time."""
    _consuming(stage, acks=False)


@ticket
def acknowledged_at_once(stage: Ticket) -> None:
    """One that acknowledges all deliveries together, at its end."""
    _consuming(stage, acks=True)
