"""Ways to the broker and within it: balancers, exchanges, and queues that cannot take what comes."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import subprocess
import threading
import time

import aio_pika
import pika  # type: ignore[import-untyped]
import pika.exceptions  # type: ignore[import-untyped]

from tests.captures.record.broker import PORT
from tests.tickets.record.stage import Ticket, ticket
from tests.tickets.record.theme_waiting import connected, run_amqplib


class Balancer:
    """A proxy before the broker that ends connections on which nothing came for some seconds, without a word."""

    ADDRESS = "127.0.0.2"

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind((self.ADDRESS, PORT))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._carry, args=(near,), daemon=True).start()

    def _carry(self, near: socket.socket) -> None:
        with near, socket.create_connection(("127.0.0.1", PORT)) as far:
            others = {near: far, far: near}
            while ready := select.select([near, far], [], [], self._patience)[0]:
                data = ready[0].recv(65536)
                if not data:
                    return
                others[ready[0]].sendall(data)

    def close(self) -> None:
        """Takes no more connections."""
        self._listener.shutdown(socket.SHUT_RDWR)  # else its thread holds the address
        self._listener.close()


@ticket
def idle_cut(stage: Ticket) -> None:
    """A load balancer ends connections that are idle for six seconds; three clients meet it, each for itself."""
    _ = stage.broker
    balancer = Balancer(6)
    script = """await connection.close();
        for (let turn = 0; turn < 2; turn++) {
            const one = await amqp.connect('amqp://127.0.0.2',
                {noDelay: true, clientProperties: {connection_name: name}});
            const ended = new Promise(done => one.on('close', done)); one.on('error', () => 0);
            const channel = await one.createConfirmChannel(); await channel.assertQueue('events');
            channel.sendToQueue('events', Buffer.from('hello')); await channel.waitForConfirms(); await ended; }
        process.exit();"""
    with stage.sniff():
        clients = []
        for number in range(3):
            clients.append(run_amqplib("first", script, name=f"api-{number}"))
            time.sleep(1.3)
        for client in clients:
            client.wait(30)
    balancer.close()
    whole = stage.path.with_suffix(".whole")
    stage.path.rename(whole)
    near = ["tcpdump", "-r", str(whole), "-w", str(stage.path), f"host {Balancer.ADDRESS}"]
    subprocess.run(near, check=True, stderr=subprocess.DEVNULL)
    whole.unlink()


@ticket
def wrong_exchange(stage: Ticket) -> None:
    """A channel with forty publishes under way and a consumer; one of them names an exchange that is not there."""

    async def play() -> None:
        connection = await connected("backoffice")
        channel = await connection.channel()
        good = await channel.declare_exchange("good", "direct")
        bad = await channel.get_exchange("god", ensure=False)
        queue = await channel.declare_queue(stage.name)
        await queue.bind(good, "key")

        async def work(message: aio_pika.abc.AbstractIncomingMessage) -> None:
            await asyncio.sleep(0.2)
            await message.ack()

        await queue.consume(work)
        for number in range(10):
            await good.publish(aio_pika.Message(f"first {number}".encode()), "key")
        sent = [good.publish(aio_pika.Message(f"then {number}".encode()), "key") for number in range(20)]
        sent += [bad.publish(aio_pika.Message(b"lost"), "key")]
        sent += [good.publish(aio_pika.Message(f"last {number}".encode()), "key") for number in range(20)]
        await asyncio.gather(*sent, return_exceptions=True)
        await asyncio.sleep(0.5)
        with contextlib.suppress(Exception):
            await connection.close()

    _ = stage.broker
    with stage.sniff():
        asyncio.run(play())


@ticket
def standby(stage: Ticket) -> None:
    """A second consumer asks again and again for a queue that another one consumes exclusively."""
    script = """for (let turn = 0; turn < 3; turn++) { const channel = await connection.createChannel();
            channel.on('error', () => 0);
            try { await channel.consume(queue, job => channel.ack(job)); } catch (refused) {} await sleep(500); }"""
    with stage.sniff():
        connection = stage.pika("leader")
        channel = connection.channel()
        channel.queue_declare(stage.name)
        channel.confirm_delivery()
        channel.basic_consume(stage.name, lambda ch, method, *_: ch.basic_ack(method.delivery_tag), exclusive=True)
        other = run_amqplib("standby", script, queue=stage.name)
        for number in range(20):
            channel.basic_publish("", stage.name, f"part {number}".encode())
            connection.process_data_events(0.1)
        other.wait(20)
        connection.close()


@ticket
def alternate_exchange(stage: Ticket) -> None:
    """Nothing comes back, for an alternate exchange takes what has no queue; what it takes nobody reads."""
    with stage.sniff():
        connection = stage.pika("router")
        channel = connection.channel()
        channel.exchange_declare("others", "fanout")
        channel.queue_declare(f"{stage.name}_lost")
        channel.queue_bind(f"{stage.name}_lost", "others")
        channel.exchange_declare("main", "topic", arguments={"alternate-exchange": "others"})
        channel.queue_declare(stage.name)
        channel.queue_bind(stage.name, "main", "order.eu.#")
        channel.confirm_delivery()
        for number in range(24):
            channel.basic_publish("main", f"order.{('eu', 'us')[number % 2]}.new", b"order", mandatory=True)
            connection.sleep(0.02)
        connection.close()


@ticket
def delayed_messages(stage: Ticket) -> None:
    """Messages wait in a queue until they expire, and go on from there: a delay."""
    with stage.sniff():
        connection = stage.pika("delayer")
        channel = connection.channel()
        channel.queue_declare(stage.name)
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": stage.name}
        channel.queue_declare(f"{stage.name}_wait", arguments=arguments)
        channel.confirm_delivery()
        channel.basic_consume(stage.name, lambda ch, method, *_: ch.basic_ack(method.delivery_tag))
        for number in range(20):
            properties = pika.BasicProperties(expiration="500")
            channel.basic_publish("", f"{stage.name}_wait", f"later {number}".encode(), properties)
            connection.sleep(0.05)
        connection.sleep(1)
        connection.close()


@ticket
def full_in_bytes(stage: Ticket) -> None:
    """A queue of at most 20 kB that refuses more."""
    with stage.sniff():
        connection = stage.pika("scanner")
        channel = connection.channel()
        channel.queue_declare(stage.name, arguments={"x-max-length-bytes": 20000, "x-overflow": "reject-publish"})
        channel.confirm_delivery()
        for _ in range(12):
            with contextlib.suppress(pika.exceptions.NackError):
                channel.basic_publish("", stage.name, b"z" * 3000)
            connection.sleep(0.03)
        connection.close()


@ticket
def full_vhost(stage: Ticket) -> None:
    """A virtual host that takes two connections, and a pool of five."""
    stage.broker.control("add_vhost", "tenant")
    stage.broker.control("set_permissions", "-p", "tenant", "guest", ".*", ".*", ".*")
    stage.broker.control("set_vhost_limits", "-p", "tenant", '{"max-connections": 2}')
    with stage.sniff():
        opened = []
        for _ in range(5):
            with contextlib.suppress(pika.exceptions.AMQPConnectionError):
                names = {"connection_name": "pool"}
                to = pika.ConnectionParameters("127.0.0.1", PORT, "tenant", client_properties=names)
                opened.append(pika.BlockingConnection(to))
            time.sleep(0.3)
        for connection in opened:
            connection.close()
    stage.broker.control("delete_vhost", "tenant")


@ticket
def exchange_goes(stage: Ticket) -> None:
    """An exchange is deleted by another client; its publisher opens a channel after each refusal, and goes on."""
    with stage.sniff():
        client, admin = stage.pika("ingest"), stage.pika("admin")
        channel, other = client.channel(), admin.channel()
        channel.exchange_declare(stage.name, "fanout")
        channel.confirm_delivery()
        for number in range(12):
            if number == 8:
                other.exchange_delete(stage.name)
            try:
                channel.basic_publish(stage.name, "", b"row")
            except pika.exceptions.ChannelClosedByBroker:
                channel = client.channel()
                channel.confirm_delivery()
        client.close()
        admin.close()
