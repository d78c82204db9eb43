"""Calls that wait for each other, and consumers that pause among quick messages."""

from __future__ import annotations

import time

from tests.tickets.record.clients import ALL, Play, tickets

STEP = 0.08
"""Seconds from one reading to the next."""


def _call(play: Play, work: float, abreast: int) -> None:
    """Six calls at once to a server that needs some time for each."""
    with play.sniff():
        server, caller = play.publisher("pricing"), play.client("checkout")
        server.qos(count=abreast)
        server.consume(queue=play.name, tag="pricing")
        answers = f"{play.name}_answers"
        caller.channel_open()
        caller.declare(queue=answers, durable=False, exclusive=True)
        caller.consume(queue=answers, tag="answers", no_ack=True)
        for number in range(6):
            caller.publish(key=play.name, properties={"reply_to": answers, "correlation_id": f"call {number}"})
        for _ in range(6 // abreast):
            calls = [server.take() for _ in range(abreast)]
            time.sleep(work)
            for call in calls:
                server.publish(key=answers, body="9", properties={"correlation_id": call["correlation_id"]})
                server.ack(tag=call["tag"])
                caller.take()
        server.wait()
        caller.close()
        server.close()


@tickets(*ALL)
def calls_queue_up(play: Play) -> None:
    """A checkout hangs: each call takes 1.2 s, and five others are before the last one."""
    _call(play, 1.2, 1)


@tickets(*ALL)
def calls_abreast(play: Play) -> None:
    """The same server answers six at a time, in 0.8 s."""
    _call(play, 0.8, 6)


def _pause(play: Play, steps: int) -> None:
    """A worker of quick messages meets one that takes as long as it takes for some others to come."""
    with play.sniff():
        feed = play.publisher("meter")
        worker = play.worker("biller", 15)
        for number in range(60):
            feed.publish(key=play.name, body=f"reading {number}")
            if 15 <= number < 15 + steps:
                time.sleep(STEP)
                continue
            while taken := worker.take(seconds=STEP):
                worker.ack(tag=taken["tag"])
        feed.wait()
        worker.close()
        feed.close()


@tickets(*ALL)
def worker_pauses(play: Play) -> None:
    """One message takes two and a half seconds, and those that come meanwhile wait."""
    _pause(play, 31)


@tickets(*ALL)
def worker_breathes(play: Play) -> None:
    """The prefetch is full for less than a second."""
    _pause(play, 25)
