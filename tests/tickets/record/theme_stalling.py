"""What stands still for all: the broker's process; and what only one queue, or all workers of one, do."""

from __future__ import annotations

import threading
import time

from tests.tickets.record.clients import ALL, TWO, Play, tickets


def _asking(play: Play, stops_all: bool) -> None:
    """A till publishes, and a clock asks for its queue, while the broker stands still, or the till's queue alone."""
    with play.sniff():
        till = play.client("till")
        till.channel_open(confirms=True)
        till.declare(queue=play.name, arguments={"x-queue-type": "quorum"})
        clock = play.client("clock")
        clock.channel_open()
        for number in range(20):
            till.publish(key=play.name, body=f"sale {number}")
            clock.declare(queue=f"{play.name}_ticks")
            time.sleep(0.05)
        till.wait()
        server = f"whereis('%2F_{play.name}')"
        if stops_all:
            still = threading.Thread(target=play.broker.pause, args=(3.0,))
            still.start()
            time.sleep(0.3)
        else:
            play.broker.control("eval", f"sys:suspend({server}).")
        till.publish(key=play.name, body="sale")
        till.begin("wait")
        for _ in range(1 if stops_all else 10):
            clock.declare(queue=f"{play.name}_ticks")
            time.sleep(0.25)
        if stops_all:
            still.join()
        else:
            play.broker.control("eval", f"sys:resume({server}).")
        till.result()
        for each in (till, clock):
            each.close()


@tickets(*ALL)
def broker_stands_still(play: Play) -> None:
    """Its process is stopped for three seconds; its host acknowledges what comes."""
    _asking(play, stops_all=True)


@tickets(*ALL)
def queue_stands_still(play: Play) -> None:
    """One quorum queue does not answer; the broker does."""
    _asking(play, stops_all=False)


def _locked(play: Play, seconds: float) -> None:
    """Two workers wait for one lock, and messages live for a second."""
    with play.sniff():
        feed = play.client("shop")
        feed.channel_open(confirms=True)
        feed.declare(queue=play.name, arguments={"x-message-ttl": 1000})
        workers = [play.client(f"pricer-{number}") for number in range(2)]
        for number, worker in enumerate(workers):
            worker.channel_open()
            worker.qos(count=2)
            worker.consume(queue=play.name, tag=f"pricer-{number}")
        ends = 0.0
        for number in range(200):
            feed.publish(key=play.name, body=f"basket {number}")
            if number == 50:
                ends = time.monotonic() + seconds
            while time.monotonic() >= ends:
                taken = [(each, each.take(seconds=0.02)) for each in workers]
                for each, message in taken:
                    if message:
                        each.ack(tag=message["tag"])
                if not any(message for _, message in taken):
                    break
            else:
                time.sleep(0.04)
        feed.wait()
        for each in (*workers, feed):
            each.close()


@tickets(*ALL)
def workers_wait_for_a_lock(play: Play) -> None:
    """They wait for two and a half seconds."""
    _locked(play, 2.5)


@tickets(*TWO)
def workers_share_a_lock(play: Play) -> None:
    """They wait for a third of a second."""
    _locked(play, 0.35)
