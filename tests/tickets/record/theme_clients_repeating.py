"""Clients of several languages that do something again and again: publish back, consume anew, ask in vain."""

from __future__ import annotations

import time

from tests.tickets.record.clients import ALL, Play, tickets


def _publish_back(play: Play, most: int) -> None:
    """A worker that publishes what fails into its own queue, under the id that it has."""
    with play.sniff():
        feed = play.publisher("uploads")
        worker = play.client("thumbnailer")
        worker.channel_open()
        worker.qos(count=5)
        worker.consume(queue=play.name, tag="thumbnailer")
        for number in range(20):
            feed.publish(key=play.name, body=f"image {number}", properties={"message_id": f"i{number}"})
        feed.wait()
        attempts: dict[str, int] = {}
        while taken := worker.take(seconds=0.5):
            name = taken["body"].split()[1]
            attempts[name] = attempts.get(name, 0) + 1
            if int(name) % 10 == 3 and attempts[name] <= most:
                worker.publish(key=play.name, body=taken["body"], properties={"message_id": f"i{name}"})
                time.sleep(0.01)
            worker.ack(tag=taken["tag"])
        worker.close()
        feed.close()


@tickets(*ALL)
def publishes_back(play: Play) -> None:
    """Two images fail each time: here forty times, and then for ever."""
    _publish_back(play, 40)


@tickets(*ALL)
def tries_thrice(play: Play) -> None:
    """They are tried three times in all."""
    _publish_back(play, 2)


def _consume_anew(play: Play, cancels: bool) -> None:
    with play.sniff():
        feed = play.publisher("crm")
        worker = play.client("sync-agent")
        worker.channel_open()
        for number in range(40):
            worker.consume(queue=play.name, tag=f"sync-{number}")
            feed.publish(key=play.name, body=f"contact {number}")
            if taken := worker.take():
                worker.ack(tag=taken["tag"])
            time.sleep(0.05)
            if cancels:
                worker.cancel(tag=f"sync-{number}")
        worker.close()
        feed.close()


@tickets(*ALL)
def consumes_anew(play: Play) -> None:
    """Each run of a job begins a consumer, and none ends it."""
    _consume_anew(play, False)


@tickets(*ALL)
def consumes_in_turn(play: Play) -> None:
    """Each run ends its consumer."""
    _consume_anew(play, True)


def _ask(play: Play, answers: bool) -> None:
    with play.sniff():
        shop = play.publisher("checkout")
        shop.declare(queue=f"{play.name}.answers", durable=False)
        shop.consume(queue=f"{play.name}.answers", tag="answers", no_ack=True)
        if answers:
            server = play.worker("pricing", 5)
        for number in range(6):
            asks = {"reply_to": f"{play.name}.answers", "correlation_id": f"c{number}", "expiration": "300"}
            shop.publish(key=play.name, body=f"price of {number}", properties=asks)
            shop.wait()
            if answers:
                taken = server.take()
                server.publish(
                    key=f"{play.name}.answers", body=f"{number} EUR", properties={"correlation_id": f"c{number}"}
                )
                server.ack(tag=taken["tag"])
            shop.take(seconds=0.4)
        time.sleep(1.2)
        shop.close()


@tickets(*ALL)
def asks_nobody(play: Play) -> None:
    """No server consumes the queue of requests; they expire."""
    _ask(play, False)


@tickets(*ALL)
def asks_a_server(play: Play) -> None:
    """The same requests, with a server."""
    _ask(play, True)


def _give_up(play: Play, **declared: str) -> None:
    """A quorum queue that lets a message go when it was put back three times."""
    with play.sniff():
        feed = play.client("shop")
        feed.channel_open(confirms=True)
        feed.declare(queue=play.name, arguments={"x-queue-type": "quorum", "x-delivery-limit": 2, **declared})
        for number in range(10):
            feed.publish(key=play.name, body=f"payment {number}", properties={"message_id": f"p{number}"})
        feed.wait()
        worker = play.worker("bank", 3)
        while taken := worker.take(seconds=0.5):
            if taken["body"] in ("payment 2", "payment 5"):
                worker.reject(tag=taken["tag"], requeue=True)
            else:
                worker.ack(tag=taken["tag"])
        worker.close()
        feed.close()


@tickets(*ALL)
def gives_up(play: Play) -> None:
    """Two payments are put back three times, and are gone."""
    _give_up(play)


@tickets(*ALL)
def gives_up_aside(play: Play) -> None:
    """They go to an exchange for what failed."""
    _give_up(play, **{"x-dead-letter-exchange": "amq.fanout"})
