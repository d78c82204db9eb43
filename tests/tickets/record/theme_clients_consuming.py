"""Consumers of several languages: slow, far, forgetful and rejecting ones, and those that only look like them."""

from __future__ import annotations

import contextlib
import time

from tests.tickets.record.clients import ALL, TWO, Client, Play, Refused, tickets
from tests.tickets.record.stage import far_broker


def _work(worker: Client, pause: float = 0, count: int = 1000, seconds: float = 0.5) -> None:
    for _ in range(count):
        taken = worker.take(seconds=seconds)
        if not taken:
            return
        time.sleep(pause)
        worker.ack(tag=taken["tag"])


def _feeding(play: Play, per_second: float, count: int, pause: float) -> None:
    with play.sniff():
        feed = play.publisher("shop")
        worker = play.worker("packer", 4)
        begun = time.monotonic()
        sent = 0
        while sent < count:
            while sent < count and time.monotonic() - begun > sent / per_second:
                feed.publish(key=play.name, body=f"order {sent}", properties={"message_id": f"o{sent}"})
                sent += 1
            _work(worker, pause, 1, 0.05)
        feed.wait()
        if pause < 1 / per_second:
            _work(worker, pause)
        worker.close()
        feed.close()


@tickets("amqplib")
def slow_worker(play: Play) -> None:
    """It gets 50 messages a second, and works 60 ms on each."""
    _feeding(play, 50, 110, 0.06)


@tickets("bunny")
def quick_worker(play: Play) -> None:
    """It works as long, but gets ten a second."""
    _feeding(play, 10, 25, 0.06)


def _far(play: Play, prefetch: int) -> None:
    play.fill(60)
    with far_broker() as far, play.sniff(interface="shaky"):
        worker = play.worker("packer", prefetch, far)
        _work(worker, 0, 60)
        worker.close()


@tickets(*TWO)
def far_one_by_one(play: Play) -> None:
    """Prefetch 1, 40 ms away."""
    _far(play, 1)


@tickets(*ALL)
def far_many(play: Play) -> None:
    """As far away, with a prefetch of 30."""
    _far(play, 30)


def _forgetting(play: Play, every: int, batch: int = 1) -> None:
    play.fill(0)
    with play.sniff():
        worker = play.worker("scanner")
        for number in range(60):
            play.fill(1)
            taken = worker.take()
            time.sleep(0.01)
            if batch > 1 and number % batch == batch - 1:
                worker.ack(tag=taken["tag"], multiple=True)
            elif batch == 1 and number % every != every - 1:
                worker.ack(tag=taken["tag"])
        time.sleep(1)
        worker.close()


@tickets(*TWO)
def forgets_each_third(play: Play) -> None:
    """One path of its code does not acknowledge."""
    _forgetting(play, 3)


@tickets(*TWO)
def acks_in_tens(play: Play) -> None:
    """It acknowledges ten at once."""
    _forgetting(play, 1, 10)


@tickets("bunny")
def settles_at_the_end(play: Play) -> None:
    """It works on all, and acknowledges then."""
    play.fill(25)
    with play.sniff():
        worker = play.worker("archiver")
        taken = [worker.take() for _ in range(25)]
        worker.ack(tag=taken[-1]["tag"], multiple=True)
        time.sleep(0.2)
        worker.close()


def _giving_back(play: Play, most: int) -> None:
    with play.sniff():
        feed = play.publisher("shop")
        for number in range(8):
            feed.publish(key=play.name, body=f"order {number}", properties={"message_id": f"o{number}"})
        feed.wait()
        worker = play.worker("invoicer", 1)
        given_back = 0
        while taken := worker.take(seconds=0.5):
            time.sleep(0.02)
            if taken["body"] == "order 3" and given_back < most:
                given_back += 1
                worker.reject(tag=taken["tag"], requeue=True)
            else:
                worker.ack(tag=taken["tag"])
        worker.close()
        feed.close()


@tickets("amqplib", "bunny")
def poisoned(play: Play) -> None:
    """A message is put back each time, thirty times in all."""
    _giving_back(play, 30)


@tickets(*TWO)
def put_back_once(play: Play) -> None:
    """It is put back once, and succeeds then."""
    _giving_back(play, 1)


def _round(play: Play, most: int) -> None:
    with play.sniff():
        feed = play.client("biller")
        feed.channel_open(confirms=True)
        back = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": play.name, "x-message-ttl": 60}
        feed.declare(queue=f"{play.name}_later", arguments=back)
        away = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{play.name}_later"}
        feed.declare(queue=play.name, arguments=away)
        for number in range(8):
            feed.publish(key=play.name, body=f"bill {number}", properties={"message_id": f"b{number}"})
        feed.wait()
        worker = play.worker("biller", 8)
        given_back = 0
        end = time.monotonic() + 1.2
        while time.monotonic() < end:
            taken = worker.take(seconds=0.1)
            if taken and taken["body"] == "bill 3" and given_back < most:
                given_back += 1
                worker.reject(tag=taken["tag"])
            elif taken:
                worker.ack(tag=taken["tag"])
        worker.close()
        feed.close()


@tickets(*TWO)
def dead_letters_for_ever(play: Play) -> None:
    """Nobody counts the rounds of a job that always fails."""
    _round(play, 1000)


@tickets(*TWO)
def retried_twice(play: Play) -> None:
    """The third try succeeds."""
    _round(play, 2)


@tickets(*TWO)
def deleted_below(play: Play) -> None:
    """Its queue is deleted; the broker cancels it, and it waits on."""
    with play.sniff():
        admin = play.publisher("admin")
        worker = play.worker("worker-1")
        admin.publish(key=play.name)
        admin.wait()
        _work(worker, 0, 1)
        admin.delete(queue=play.name)
        for _ in range(6):
            time.sleep(1)
            worker.declare(queue=f"{play.name}_other")
        worker.close()
        admin.close()


@tickets("amqplib")
def deleted_and_gone(play: Play) -> None:
    """Its queue is deleted, and it ends."""
    with play.sniff():
        admin = play.publisher("admin")
        worker = play.worker("worker-1")
        admin.delete(queue=play.name)
        time.sleep(0.3)
        worker.close()
        admin.close()


def _getting(play: Play, filled: int) -> None:
    if filled:
        play.fill(filled)
    with play.sniff():
        client = play.client("cron")
        client.channel_open()
        client.declare(queue=play.name)
        for _ in range(30):
            client.get(queue=play.name, no_ack=True)
            time.sleep(0.02)
        client.close()


@tickets(*TWO)
def polls(play: Play) -> None:
    """It asks thirty times, and finds something twice."""
    _getting(play, 2)


@tickets(*TWO)
def fetches(play: Play) -> None:
    """It asks as often, and finds something each time."""
    _getting(play, 40)


@tickets(*ALL)
def without_limit(play: Play) -> None:
    """A backlog of more than a thousand messages, and no prefetch; names are short, as there are so many."""
    play.name = play.kind
    play.fill(1030)
    with play.sniff():
        worker = play.worker("w")
        _work(worker, 0.05, 20)
        time.sleep(0.5)
        worker.close()


@tickets(*ALL)
def without_limit_or_backlog(play: Play) -> None:
    """No prefetch either, and twenty messages."""
    play.fill(20)
    with play.sniff():
        worker = play.worker("w")
        _work(worker, 0.02, 20)
        worker.close()


def _hoarding(play: Play, prefetch: int) -> None:
    with play.sniff():
        feed = play.publisher("feed")
        first = play.worker("favourite", prefetch, priority=10)
        second = play.worker("spare", prefetch, priority=0)
        for number in range(24):
            feed.publish(key=play.name, body=f"job {number}")
        feed.wait()
        end = time.monotonic() + 4
        while time.monotonic() < end:
            taken = first.take(seconds=0.01)
            if taken:
                time.sleep(0.09)
                first.ack(tag=taken["tag"])
            while taken := second.take(seconds=0.001):
                second.ack(tag=taken["tag"])
        for client in (first, second, feed):
            client.close()


@tickets(*TWO)
def hoards(play: Play) -> None:
    """The first consumer has a higher priority and room for all."""
    _hoarding(play, 200)


@tickets(*TWO)
def shares(play: Play) -> None:
    """Both have room for two."""
    _hoarding(play, 2)


def _rejecting(play: Play, rejects: int) -> None:
    play.fill(25)
    with play.sniff():
        worker = play.worker("checker", 10)
        for number in range(25):
            taken = worker.take()
            if number < rejects:
                worker.reject(tag=taken["tag"])
            else:
                worker.ack(tag=taken["tag"])
        worker.close()


@tickets(*ALL)
def rejects_many(play: Play) -> None:
    """Much of what it gets is malformed."""
    _rejecting(play, 11)


@tickets(*ALL)
def rejects_one(play: Play) -> None:
    """One of twenty-five is."""
    _rejecting(play, 1)


@tickets(*TWO)
def times_out(play: Play) -> None:
    """One delivery is not acknowledged within the time-out."""
    environment = "application:set_env(rabbit, {}, {})."
    play.fill(4)
    play.broker.control("eval", environment.format("consumer_timeout", "1500"))
    play.broker.control("eval", environment.format("channel_tick_interval", "500"))
    try:
        with play.sniff():
            worker = play.worker("archive", 10)
            for number in range(4):
                taken = worker.take()
                if number != 2:
                    worker.ack(tag=taken["tag"])
            time.sleep(4)
            with contextlib.suppress(Refused):
                worker.close()
    finally:
        play.broker.control("eval", environment.format("consumer_timeout", "1800000"))
        play.broker.control("eval", environment.format("channel_tick_interval", "60000"))


def _settling(play: Play, twice: bool) -> None:
    play.fill(6)
    with play.sniff():
        worker = play.worker("billing", 10)
        for _ in range(6):
            taken = worker.take()
            worker.ack(tag=taken["tag"])
        if twice:
            with contextlib.suppress(Refused):
                worker.ack(tag=2)
        time.sleep(0.3)
        with contextlib.suppress(Refused):
            worker.close()


@tickets(*TWO)
def settles_twice(play: Play) -> None:
    """It acknowledges a message again."""
    _settling(play, twice=True)


@tickets(*TWO)
def settles_once(play: Play) -> None:
    """It does not."""
    _settling(play, twice=False)
