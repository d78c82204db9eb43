"""What each of several clients does alike: the scenario once, a capture for each client."""

from __future__ import annotations

import contextlib
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.captures.record.broker import PORT
from tests.captures.record.certificates import Authority
from tests.captures.record.theme_tls import TLS_PORT, _listen, _stop
from tests.tickets.record.clients import ALL, TWO, Play, Refused, tickets


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
        worker = play.worker("worker", 2) if works else None
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


def _in_tls(play: Play, version: str, days: int, begun: int = 1) -> None:
    """A few publishes in one version of TLS; the certificate is valid for some days, from one day ago on."""
    with tempfile.TemporaryDirectory(prefix="tls-") as name:
        authority = Authority(Path(name), "good")
        certificate = authority.issue("broker", days, begun)
        options = f"{{versions, ['{version}']}}", f"{{ciphers, ssl:cipher_suites(all, '{version}')}}"
        _listen(play.stage, "127.0.0.1", certificate, authority, *options)
        with play.sniff(ports=(TLS_PORT,)):
            client = play.publisher("vault", port=TLS_PORT, tls=version)
            client.publish(key=play.name, repeat=5)
            client.wait()
            client.close()
        _stop(play.stage, "127.0.0.1")


@tickets(*ALL)
def certificate_ends_soon(play: Play) -> None:
    """The broker's certificate ends in four days."""
    _in_tls(play, "tlsv1.2", 5)


@tickets("amqplib")
def certificate_ended(play: Play) -> None:
    """It ended three weeks ago, and the client does not look."""
    _in_tls(play, "tlsv1.2", 9, 30)


@tickets(*ALL)
def certificate_of_a_year(play: Play) -> None:
    """It ends in a year."""
    _in_tls(play, "tlsv1.2", 365)


@tickets(*ALL)
def old_tls(play: Play) -> None:
    """Client and broker speak TLS 1.0."""
    _in_tls(play, "tlsv1", 365)


@tickets(*ALL)
def tls_1_1(play: Play) -> None:
    """They speak TLS 1.1."""
    _in_tls(play, "tlsv1.1", 365)


@tickets("amqplib", "bunny")
def plain_port(play: Play) -> None:
    """A client begins with TLS, and the port has none: nothing that is encrypted was ever said."""
    with play.sniff():
        with contextlib.suppress(Refused):
            play.client("vault", port=PORT, tls=True)
        time.sleep(0.5)


@tickets(*ALL)
def large_messages(play: Play) -> None:
    """Six messages of a megabyte each, captured with a snap length: the sizes are in what is there."""
    with play.sniff(options=("-s", "150")):
        client = play.publisher("scans")
        for _ in range(6):
            client.publish(key=play.name, body="x" * 1_100_000)
            client.wait()
        client.close()


def _calling(play: Play, patience: float) -> None:
    """Six calls over a queue of answers; each is answered 0.2 s after it came."""
    with play.sniff():
        server = play.client("pricer")
        server.channel_open(channel=2)
        server.declare(queue=play.name, channel=2)
        server.consume(queue=play.name, tag="pricer", channel=2)
        server.channel_open()
        caller = play.client("shop")
        for number in range(6):
            caller.channel_open(channel=number + 1)
            answers = f"{play.name}_{number}"
            caller.declare(queue=answers, channel=number + 1, auto_delete=True)
            tag = caller.consume(queue=answers, channel=number + 1, no_ack=True, tag=f"call {number}")
            call = {"reply_to": answers, "correlation_id": str(number)}
            caller.publish(key=play.name, body="price", properties=call, channel=number + 1)
            caller.begin("take", channel=number + 1, seconds=patience)
            asked = server.take(channel=2)
            time.sleep(0.2)
            if patience < 0.2:
                caller.result()
                caller.cancel(tag=tag, channel=number + 1)
            answer = {"correlation_id": asked["correlation_id"]}
            server.publish(key=asked["reply_to"], body="9.90", properties=answer)
            server.ack(tag=asked["tag"], channel=2)
            if patience >= 0.2:
                caller.result()
                caller.cancel(tag=tag, channel=number + 1)
        time.sleep(0.2)
        caller.close()
        server.close()


@tickets("amqplib")
def impatient_calls(play: Play) -> None:
    """A caller that waits for 0.1 s, and is answered after 0.2 s."""
    _calling(play, 0.1)


@tickets(*TWO)
def patient_calls(play: Play) -> None:
    """It waits for a second."""
    _calling(play, 1)
