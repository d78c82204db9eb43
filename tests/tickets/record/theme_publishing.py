"""Publishers: refused, returned, blocked, waiting for each confirm; channels and connections wasted or lost."""

from __future__ import annotations

import asyncio
import contextlib
import time

import aio_pika
import pika  # type: ignore[import-untyped]
import pika.exceptions  # type: ignore[import-untyped]
from pamqp import commands

from tests.captures.record.theme_flow import HEARTBEAT
from tests.tickets.record.stage import Ticket, far_broker, ticket


def _filling(stage: Ticket, overflow: str) -> None:
    with stage.sniff():
        connection = stage.pika("web")
        channel = connection.channel()
        channel.queue_declare(stage.name, arguments={"x-max-length": 10, "x-overflow": overflow})
        channel.confirm_delivery()
        for number in range(40):
            with contextlib.suppress(pika.exceptions.NackError):
                channel.basic_publish("", stage.name, f"cart {number}".encode())
            connection.sleep(0.03)
        connection.close()


@ticket
def full_queue(stage: Ticket) -> None:
    """A queue of at most ten messages that refuses more."""
    _filling(stage, "reject-publish")


@ticket
def dropping_queue(stage: Ticket) -> None:
    """A queue of at most ten messages that drops its oldest."""
    _filling(stage, "drop-head")


def _mandatory(stage: Ticket, keys: tuple[str, ...], binds_after: int = 0) -> None:
    with stage.sniff():
        connection = stage.pika("checkout")
        channel = connection.channel()
        channel.exchange_declare(f"{stage.name}_orders", "direct")
        channel.queue_declare(stage.name)
        channel.queue_bind(stage.name, f"{stage.name}_orders", "paid")
        channel.confirm_delivery()
        for turn in range(30):
            if binds_after and turn == binds_after:
                channel.queue_bind(stage.name, f"{stage.name}_orders", keys[0])
            with contextlib.suppress(pika.exceptions.UnroutableError):
                channel.basic_publish(f"{stage.name}_orders", keys[turn % len(keys)], b"order", mandatory=True)
            connection.sleep(0.03)
        connection.close()


@ticket
def unroutable(stage: Ticket) -> None:
    """Mandatory publishes with a key in the plural; the queue is bound with the singular."""
    _mandatory(stage, ("paid", "payed"))


@ticket
def routable(stage: Ticket) -> None:
    """Mandatory publishes that all have a queue."""
    _mandatory(stage, ("paid",))


@ticket
def bound_late(stage: Ticket) -> None:
    """The first publishes come back; then the queue is bound, and the rest arrives."""
    _mandatory(stage, ("cancelled",), binds_after=3)


@ticket
def memory_alarm(stage: Ticket) -> None:
    """The broker runs low on memory, and blocks a publisher that had 20 ms between its messages."""

    async def play() -> None:
        connection = await aio_pika.connect(client_properties={"connection_name": "till"})
        channel = await connection.channel()
        await channel.declare_queue("memory_alarm")
        waiting = []
        for number in range(100):
            if number in (30, 60):
                mark = "0.0000001" if number == 30 else "0.4"
                await asyncio.to_thread(stage.broker.control, "set_vm_memory_high_watermark", mark)
            message = aio_pika.Message(f"receipt {number}".encode(), message_id=f"r{number}")
            waiting.append(asyncio.ensure_future(channel.default_exchange.publish(message, "memory_alarm")))
            await asyncio.sleep(0.02)
        await asyncio.gather(*waiting)
        await connection.close()

    _ = stage.broker
    with stage.sniff():
        asyncio.run(play())


@ticket
def slow_producer(stage: Ticket) -> None:
    """A publisher that has something to say twice a second."""
    with stage.sniff():
        connection = stage.pika("till")
        channel = connection.channel()
        channel.queue_declare("slow_producer")
        channel.confirm_delivery()
        for number in range(10):
            channel.basic_publish("", "slow_producer", f"receipt {number}".encode())
            connection.sleep(0.5)
        connection.close()


def _one_at_a_time(stage: Ticket, thinks: float) -> None:
    with far_broker() as far, stage.sniff(interface="shaky"):
        connection = stage.pika("loader", far)
        channel = connection.channel()
        channel.queue_declare(stage.name)
        channel.confirm_delivery()
        for number in range(50):
            channel.basic_publish("", stage.name, f"row {number}".encode())
            if thinks:
                connection.sleep(thinks)
        connection.close()


@ticket
def one_confirm_at_a_time(stage: Ticket) -> None:
    """A publisher that waits for each confirm, 40 ms away, and has the next message ready."""
    _one_at_a_time(stage, 0)


@ticket
def thinking_producer(stage: Ticket) -> None:
    """As far away, one at a time; but between two messages it works for 60 ms."""
    _one_at_a_time(stage, 0.06)


@ticket
def other_arguments(stage: Ticket) -> None:
    """A queue that is there without a time-to-live is declared with one; the client tries five times."""
    with stage.sniff():
        connection = stage.pika("reports")
        connection.channel().queue_declare("other_arguments")
        for _ in range(5):
            with contextlib.suppress(pika.exceptions.ChannelClosedByBroker):
                connection.channel().queue_declare("other_arguments", arguments={"x-message-ttl": 60000})
        connection.close()


@ticket
def passive_test(stage: Ticket) -> None:
    """A passive declaration asks whether a queue is there; it is not, and is declared then."""
    with stage.sniff():
        connection = stage.pika("reports")
        with contextlib.suppress(pika.exceptions.ChannelClosedByBroker):
            connection.channel().queue_declare("passive_test", passive=True)
        channel = connection.channel()
        channel.queue_declare("passive_test")
        channel.confirm_delivery()
        channel.basic_publish("", "passive_test", b"report")
        connection.close()


@ticket
def channel_per_message(stage: Ticket) -> None:
    """A channel is opened for each message, and closed."""
    with stage.sniff():
        connection = stage.pika("api")
        connection.channel().queue_declare("channel_per_message")
        for number in range(25):
            channel = connection.channel()
            channel.confirm_delivery()
            channel.basic_publish("", "channel_per_message", str(number).encode())
            channel.close()
            connection.sleep(0.02)
        connection.close()


@ticket
def fifty_channels(stage: Ticket) -> None:
    """A pool of fifty channels, opened at the start, used all along, and closed in the end."""
    with stage.sniff():
        peer = stage.login("pool", channels=tuple(range(1, 51)))
        peer.call(1, commands.Queue.Declare(queue="fifty_channels"))
        for number in range(1, 51):
            peer.call(number, commands.Confirm.Select())
        for turn in range(4):
            for number in range(1, 51):
                peer.publish(number, "", "fifty_channels", f"{turn} {number}".encode())
            peer.flush()
            peer.drain(0.2)
        for number in range(1, 51):
            peer.call(number, commands.Channel.Close(200, "bye", 0, 0))
        peer.logout()


@ticket
def leaking_channels(stage: Ticket) -> None:
    """A channel is opened for each message, and never closed."""
    with stage.sniff():
        peer = stage.login("leaky")
        peer.call(1, commands.Queue.Declare(queue="leaking_channels"))
        for number in range(2, 62):
            peer.call(number, commands.Channel.Open())
            peer.call(number, commands.Confirm.Select())
            peer.publish(number, "", "leaking_channels", b"once")
            peer.flush()
            peer.wait(number, "basic.ack")
            time.sleep(0.03)
        peer.logout()


@ticket
def silent_client(stage: Ticket) -> None:
    """A client that agreed to heartbeats of a second and sends none: the broker closes."""
    with stage.sniff():
        peer = stage.login("frozen", heartbeat=1)
        peer.call(1, commands.Queue.Declare(queue="silent_client", auto_delete=True))
        with contextlib.suppress(ConnectionError):
            peer.drain(5)
        peer.socket.close()


@ticket
def idle_client(stage: Ticket) -> None:
    """A client that has nothing to say but heartbeats."""
    with stage.sniff():
        peer = stage.login("idle", heartbeat=1)
        for _ in range(10):
            peer.socket.sendall(HEARTBEAT)
            peer.drain(0.4)
        peer.logout()


def _reconnecting(stage: Ticket, dies: bool) -> None:
    with stage.sniff():
        first = stage.login("relay")
        first.call(1, commands.Confirm.Select())
        first.call(1, commands.Queue.Declare(queue=stage.name))
        for number in range(10):
            first.publish(1, "", stage.name, b"tick", {"message_id": f"{'a' if dies else number}-{number}"})
        first.flush()
        if dies:
            first.abort()
        else:
            first.drain(0.3)
            first.logout()
        time.sleep(0.3)
        second = stage.connect("relay again")
        second.book.client = "relay"
        second.login()
        second.call(1, commands.Confirm.Select())
        for number in range(10):
            second.publish(1, "", stage.name, b"tick", {"message_id": f"{'a' if dies else number + 50}-{number}"})
        second.flush()
        second.drain(0.3)
        second.logout()


@ticket
def published_again(stage: Ticket) -> None:
    """The connection breaks with confirms outstanding; all of it is published again on the next one."""
    _reconnecting(stage, dies=True)


@ticket
def equal_ticks(stage: Ticket) -> None:
    """The client connects anew, and goes on with equal payloads of other messages."""
    _reconnecting(stage, dies=False)
