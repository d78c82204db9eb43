"""What each of several clients does alike: the scenario once, a capture for each client."""

from __future__ import annotations

import contextlib
import time
from typing import Any

from tests.tickets.record.clients import Client, Play, Refused, tickets

ALL = ("amqp", "amqplib", "bunny")
TWO = ("amqplib", "bunny")


def _worker(play: Play, name: str, prefetch: int = 0, **consume: Any) -> Client:
    client = play.client(name)
    client.channel_open()
    if prefetch:
        client.qos(count=prefetch)
    client.consume(queue=play.name, tag=name, **consume)
    return client


def _expiring(play: Play, arguments: dict[str, Any], properties: dict[str, str], works: bool) -> None:
    """A queue whose messages live for a short time, with or without a consumer of its own; what dies is read."""
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{play.name}_dead"}
    with play.sniff():
        feed = play.client("feed")
        feed.channel_open(confirms=True)
        feed.declare(queue=f"{play.name}_dead")
        feed.declare(queue=play.name, arguments=arguments | dead)
        audit = play.client("audit")
        audit.channel_open()
        audit.consume(queue=f"{play.name}_dead", tag="audit")
        worker = _worker(play, "worker", 2) if works else None
        for number in range(12):
            given = properties | {"message_id": f"m{number}"}
            feed.publish(key=play.name, body=f"quote {number}", properties=given)
        feed.wait()
        if worker:
            while taken := worker.take(seconds=0.3):
                time.sleep(0.4)
                worker.ack(tag=taken["tag"])
        else:
            time.sleep(0.8)
        while taken := audit.take(seconds=0.3):
            audit.ack(tag=taken["tag"])
        for client in (worker, audit, feed):
            if client:
                client.close()


@tickets(*ALL)
def expired(play: Play) -> None:
    """A worker that is slower than the time to live of its queue's messages."""
    _expiring(play, {"x-message-ttl": 500}, {}, works=True)


@tickets("amqplib", "bunny")
def expired_each(play: Play) -> None:
    """The publisher gives each message a time to live; the declaration says nothing of it."""
    _expiring(play, {}, {"expiration": "500"}, works=True)


@tickets(*ALL)
def delay_queue(play: Play) -> None:
    """A queue that nobody reads: messages wait in it until they expire, and go on. That is how it is meant."""
    _expiring(play, {"x-message-ttl": 500}, {}, works=False)


@tickets(*ALL)
def channel_limit(play: Play) -> None:
    """The broker lets a user open six channels, and an application opens one for each thread."""
    play.broker.control("set_user_limits", "guest", '{"max-channels": 6}')
    try:
        with play.sniff():
            client = play.client("threads")
            with contextlib.suppress(Refused):
                for number in range(1, 9):
                    client.channel_open(channel=number)
                    client.declare(queue=play.name, channel=number)
            time.sleep(0.3)
    finally:
        play.broker.control("clear_user_limits", "guest", "max-channels")


@tickets("amqplib", "bunny")
def channels_used_up(play: Play) -> None:
    """Client and broker agreed on eight channels; the ninth is refused by the client's library, on no wire."""
    with play.sniff():
        client = play.client("threads", channel_max=8)
        with contextlib.suppress(Refused):
            for number in range(1, 11):
                client.channel_open(channel=number)
                client.declare(queue=play.name, channel=number)
        time.sleep(2)
        with contextlib.suppress(Refused):
            client.close()


@tickets("amqplib", "bunny", "amqp")
def six_channels(play: Play) -> None:
    """As many channels as the limit allows, one after the other, each closed before the next."""
    with play.sniff():
        client = play.client("threads", channel_max=8)
        for number in range(1, 7):
            client.channel_open(channel=number)
            client.declare(queue=play.name, channel=number)
        for number in range(1, 7):
            client.channel_close(channel=number)
        client.close()
