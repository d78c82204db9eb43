"""What stands still, or goes, at work: handlers that hang, brokers that answer late, clients and queues that end."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time

import pika  # type: ignore[import-untyped]
import pika.exceptions  # type: ignore[import-untyped]
from pamqp import commands

from tests.captures.record.broker import PORT
from tests.captures.record.peer import Peer
from tests.tickets.record.clients import ALL, Play, Refused, tickets
from tests.tickets.record.stage import Ticket, ticket
from tests.tickets.record.theme_consuming import producing, working
from tests.tickets.record.theme_waiting import run_amqplib


def _working(play: Play, settled: int, still: float, after: int = 0) -> None:
    """A worker that settles some of 30 jobs, then none for a while, then some more."""
    with play.sniff():
        feed = play.publisher("feed")
        worker = play.worker("worker", 5)
        for number in range(30):
            feed.publish(key=play.name, body=f"job {number}", properties={"message_id": f"j{number}"})
        feed.wait()
        for _ in range(settled):
            worker.ack(tag=worker.take()["tag"])
        time.sleep(still)
        for _ in range(after):
            worker.ack(tag=worker.take()["tag"])
        worker.close()
        feed.close()


@tickets(*ALL)
def handler_hangs(play: Play) -> None:
    """A handler hangs after ten messages; heartbeats go on, and what it has fills its prefetch."""
    _working(play, 10, 6.5)


@tickets(*ALL)
def handler_pauses(play: Play) -> None:
    """The handler stands still for three seconds, and goes on."""
    _working(play, 10, 3, 20)


@ticket
def shared_limit(stage: Ticket) -> None:
    """Two consumers share the prefetch of their channel; one never acknowledges, so the other one gets no more."""
    with stage.sniff():
        mixer = stage.pika("mixer")
        channel = mixer.channel()
        slow, quick = f"{stage.name}_slow", stage.name
        for queue in (slow, quick):
            channel.queue_declare(queue)
        channel.basic_qos(prefetch_count=10, global_qos=True)
        channel.basic_consume(slow, lambda *_: None)
        channel.basic_consume(quick, lambda ch, method, *_: ch.basic_ack(method.delivery_tag))
        feed = stage.pika("feed")
        other = feed.channel()
        other.confirm_delivery()
        for number in range(36):
            other.basic_publish("", quick if number % 3 else slow, b"job")
            mixer.sleep(0.03)
        mixer.sleep(6)
        mixer.close()
        feed.close()


@tickets(*ALL)
def slow_answers(play: Play) -> None:
    """The broker's host stops for two and a half seconds; a client fetches meanwhile."""
    play.fill(20)
    with play.sniff():
        client = play.client("fetcher")
        client.channel_open()
        stop = threading.Timer(0.2, lambda: play.broker.pause(2.5))
        stop.start()
        for _ in range(20):
            client.ack(tag=client.get(queue=play.name)["tag"])
            time.sleep(0.05)
        stop.join()
        client.close()


@tickets(*ALL)
def slow_questions(play: Play) -> None:
    """The client itself stops for as long; the broker answers at once."""
    play.fill(20)
    with play.sniff():
        client = play.client("fetcher")
        client.channel_open()
        for number in range(20):
            client.ack(tag=client.get(queue=play.name)["tag"])
            time.sleep(2.5 if number == 5 else 0.05)
        client.close()


@ticket
def restarted(stage: Ticket) -> None:
    """The broker is stopped and started again; a client tries to connect until it is there."""
    script = """await connection.close(); const end = Date.now() + 16000; let number = 0;
        while (Date.now() < end) { try {
            const one = await amqp.connect('amqp://127.0.0.1', {clientProperties: {connection_name: name}});
            let gone = false; one.on('close', () => gone = true); one.on('error', () => 0);
            const channel = await one.createConfirmChannel(); channel.on('error', () => 0);
            await channel.assertQueue('orders');
            while (!gone && Date.now() < end) { channel.sendToQueue('orders', Buffer.from('order ' + number++));
                await Promise.race([channel.waitForConfirms().catch(() => 0), sleep(500)]); await sleep(100); }
            if (!gone) await one.close(); } catch (e) { await sleep(700); } }
        process.exit();"""
    _ = stage.broker
    with stage.sniff():
        client = run_amqplib("shop", script, name="orders-api")
        time.sleep(3)
        stage.broker.control("stop_app")
        time.sleep(2)
        stage.broker.control("start_app")
        client.wait(40)


@tickets("amqp")
def vhost_goes(play: Play) -> None:
    """A virtual host is deleted while its client is at work, and the client comes back."""
    play.broker.control("add_vhost", "tenant7")
    play.broker.control("set_permissions", "-p", "tenant7", "guest", ".*", ".*", ".*")
    with play.sniff():
        client = play.client("tenant", vhost="tenant7")
        client.channel_open()
        client.declare(queue=play.name)
        for number in range(5):
            client.publish(key=play.name, body=f"page {number}")
        time.sleep(0.3)
        play.broker.control("delete_vhost", "tenant7")
        for _ in range(2):
            with contextlib.suppress(Refused):
                play.client("tenant", vhost="tenant7")


@tickets(*ALL)
def killed_at_work(play: Play) -> None:
    """A worker is killed with deliveries in its hands; another one gets them again."""
    with play.sniff():
        feed = play.publisher("feed")
        first = play.worker("worker-a", 6)
        for number in range(20):
            feed.publish(key=play.name, body=f"task {number}", properties={"message_id": f"t{number}"})
        feed.wait()
        for _ in range(5):
            first.ack(tag=first.take()["tag"])
        first.kill()
        time.sleep(0.3)
        second = play.worker("worker-b", 6)
        while taken := second.take(seconds=0.5):
            second.ack(tag=taken["tag"])
        second.close()
        feed.close()


@tickets(*ALL)
def killed_when_done(play: Play) -> None:
    """A worker is killed when it has settled all that it had."""
    with play.sniff():
        feed = play.publisher("feed")
        worker = play.worker("worker", 6)
        for number in range(10):
            feed.publish(key=play.name, body=f"task {number}")
        feed.wait()
        while taken := worker.take(seconds=0.5):
            worker.ack(tag=taken["tag"])
        worker.kill()
        time.sleep(0.3)
        feed.close()


@ticket
def queue_expires(stage: Ticket) -> None:
    """A queue is deleted because nobody consumes from it for two seconds; its publisher goes on."""
    with stage.sniff():
        client = stage.pika("alerts")
        channel = client.channel()
        channel.queue_declare(stage.name, arguments={"x-expires": 2000})
        channel.confirm_delivery()
        for number in range(40):
            with contextlib.suppress(pika.exceptions.UnroutableError):
                channel.basic_publish("", stage.name, f"alert {number}".encode(), mandatory=True)
            client.sleep(0.1)
        client.close()


def _later(stage: Ticket, work: float) -> None:
    """A consumer of which the capture has the middle only: it gets 60 a second."""
    with producing(stage, stage.name, 60, 420):
        consumer = threading.Thread(target=lambda: asyncio.run(working("packer", stage.name, 5, work, 7)))
        consumer.start()
        time.sleep(2)
        with stage.sniff():
            time.sleep(4)
        consumer.join()


@ticket
def begun_and_slow(stage: Ticket) -> None:
    """A capture of some seconds of a consumer that has been too slow for a while."""
    _later(stage, 0.06)


@ticket
def begun_and_quick(stage: Ticket) -> None:
    """Such a capture of one that keeps up."""
    _later(stage, 0.002)


@tickets("bunny")
def many_pods(play: Play) -> None:
    """A user may have three connections, and five replicas start."""
    play.broker.control("set_user_limits", "guest", '{"max-connections": 3}')
    try:
        with play.sniff():
            pods = []
            for number in range(5):
                with contextlib.suppress(Refused):
                    pods.append(play.client(f"pod-{number}"))
            time.sleep(0.3)
            for pod in pods:
                pod.close()
    finally:
        play.broker.control("clear_user_limits", "guest", "max-connections")


def _without_acks(stage: Ticket, reads: bool) -> None:
    queue = stage.name
    stage.backstage.call(1, commands.Queue.Declare(queue=queue))
    with stage.sniff():
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", PORT))
        peer = Peer(connection, stage.ledger("feed"))
        peer.login()
        peer.call(1, commands.Basic.Consume(queue=queue, consumer_tag="feed-1", no_ack=True))
        for _ in range(60):
            stage.backstage.publish(1, "", queue, b"x" * (20 if reads else 2000))
            stage.backstage.flush()
            if reads:
                peer.wait(1, "basic.deliver")
            time.sleep(0.02)
        peer.drain(0.5)
        peer.logout()


@ticket
def auto_ack_flood(stage: Ticket) -> None:
    """A consumer without acknowledgements does not read what it gets: its window closes."""
    _without_acks(stage, reads=False)


@ticket
def auto_ack_trickle(stage: Ticket) -> None:
    """A consumer without acknowledgements that keeps up."""
    _without_acks(stage, reads=True)
