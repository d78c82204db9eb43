"""Alarms of memory that the broker reports to a publisher, or cannot; and a slow path, which is none."""

from __future__ import annotations

import socket
import threading
import time

import pika  # type: ignore[import-untyped]

from tests.captures.record.broker import PORT
from tests.tickets.record.clients import Play, tickets
from tests.tickets.record.stage import FarLink, Ticket, far_broker, ticket

LOW, USUAL = "0.0000001", "0.4"


@tickets("amqp", "amqplib", "bunny")
def mute_alarm(play: Play) -> None:
    """Memory runs low for three seconds; the client lacks the capability by which the broker would report it."""
    with play.sniff():
        client = play.publisher("legacy", mute=True)
        client.publish(key=play.name, body="before", repeat=10)
        client.wait()
        play.broker.control("set_vm_memory_high_watermark", LOW)
        relief = threading.Timer(3, play.broker.control, ("set_vm_memory_high_watermark", USUAL))
        relief.start()
        client.publish(key=play.name, body="then", repeat=5)
        client.wait()
        relief.join()
        client.publish(key=play.name, body="after", repeat=5)
        client.wait()
        client.close()


def _flooding(stage: Ticket, capable: bool) -> None:
    """A client that reads nothing publishes 8 MB without confirms while memory is low for three seconds."""
    _ = stage.broker
    with stage.sniff(options=("-s", "200")):
        client = stage.login("gauge", capable=capable)
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 17)
        for number in range(40):
            if number == 4:
                stage.broker.control("set_vm_memory_high_watermark", LOW)
                relief = threading.Timer(3, stage.broker.control, ("set_vm_memory_high_watermark", USUAL))
                relief.start()
            client.publish(1, "", "nowhere", bytes(100_000))
            client.flush()
        relief.join()
        client.drain(0.5)
        client.logout()


@ticket
def mute_alarm_full(stage: Ticket) -> None:
    """It gets no report, and goes on until TCP has no room."""
    _flooding(stage, capable=False)


@ticket
def told_alarm_full(stage: Ticket) -> None:
    """The same: it gets the report, and does not care."""
    _flooding(stage, capable=True)


class Congested(FarLink):
    """A far link on which packets need a second and a half for some time."""

    def slow(self, seconds: float) -> None:
        """Be slow for so long."""
        self.DELAY = 1.5
        time.sleep(seconds)
        self.DELAY = FarLink.DELAY


def _congested(stage: Ticket, capable: bool) -> None:
    _ = stage.broker
    link = Congested()
    with far_broker(link) as far, stage.sniff(interface="shaky"):
        capabilities = {"publisher_confirms": True, "basic.nack": True, "connection.blocked": capable}
        properties = {"connection_name": "legacy", "capabilities": capabilities}
        connection = pika.BlockingConnection(pika.ConnectionParameters(far, PORT, client_properties=properties))
        channel = connection.channel()
        channel.queue_declare(stage.name)
        channel.confirm_delivery()
        for number in range(30):
            if number == 10:
                slow = threading.Thread(target=link.slow, args=(3,))
                slow.start()
            channel.basic_publish("", stage.name, b"x" * 500)
            time.sleep(0.03)
        slow.join()
        connection.close()


@ticket
def congested_path_mute(stage: Ticket) -> None:
    """No alarm: the path is slow for three seconds; the broker could not have reported one."""
    _congested(stage, capable=False)


@ticket
def congested_path_told(stage: Ticket) -> None:
    """The same, and the broker would have reported one."""
    _congested(stage, capable=True)
