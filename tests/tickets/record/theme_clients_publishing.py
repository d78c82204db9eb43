"""What each of several clients does alike when it publishes and declares: the scenario once, a capture for each."""

from __future__ import annotations

import contextlib
import time

from tests.tickets.record.clients import ALL, TWO, Play, Refused, tickets
from tests.tickets.record.stage import far_broker


def _publishing(play: Play, count: int, confirms: bool) -> None:
    with play.sniff():
        client = play.client("sensor")
        client.channel_open(confirms=confirms)
        client.declare(queue=play.name)
        client.publish(key=play.name, body="21.5", repeat=count)
        if confirms:
            client.wait()
        time.sleep(0.2)
        client.close()


@tickets(*TWO)
def unconfirmed_readings(play: Play) -> None:
    """Sixty publishes, without confirms."""
    _publishing(play, 60, confirms=False)


@tickets(*TWO)
def confirmed_readings(play: Play) -> None:
    """The same with confirms."""
    _publishing(play, 60, confirms=True)


def _far(play: Play, each: int) -> None:
    with far_broker() as far, play.sniff(interface="shaky"):
        client = play.publisher("loader", host=far)
        for _ in range(30 // each):
            client.publish(key=play.name, body="row", repeat=each)
            client.wait()
        client.close()


@tickets(*TWO)
def far_and_one_by_one(play: Play) -> None:
    """Each confirm is waited for, 40 ms away."""
    _far(play, 1)


@tickets(*TWO)
def far_in_batches(play: Play) -> None:
    """Ten publishes are waited for at once."""
    _far(play, 10)


def _overflowing(play: Play, limit: int) -> None:
    with play.sniff():
        client = play.client("scanner")
        client.channel_open(confirms=True)
        client.declare(queue=play.name, arguments={"x-max-length": limit, "x-overflow": "reject-publish"})
        for number in range(20):
            client.publish(key=play.name, body=f"scan {number}")
            with contextlib.suppress(Refused):
                client.wait()
        client.close()


@tickets(*ALL)
def refused_scans(play: Play) -> None:
    """The queue takes five and refuses more."""
    _overflowing(play, 5)


@tickets(*TWO)
def room_for_scans(play: Play) -> None:
    """It takes fifty."""
    _overflowing(play, 50)


@tickets(*TWO)
def mistyped_key(play: Play) -> None:
    """The key that it publishes with is bound to nothing."""
    with play.sniff():
        client = play.publisher("checkout")
        client.exchange(exchange=f"{play.name}_orders")
        client.bind(queue=play.name, exchange=f"{play.name}_orders", key="paid")
        for number in range(12):
            client.publish(exchange=f"{play.name}_orders", key=("paid", "payed")[number % 2], mandatory=True)
        client.wait()
        client.close()


def _binding(play: Play, bound: str) -> None:
    """A shop publishes with the key `orders.created`, not mandatory, while a mailer consumes."""
    with play.sniff():
        client = play.publisher("shop")
        client.exchange(exchange=f"{play.name}_events", kind="topic")
        client.bind(queue=play.name, exchange=f"{play.name}_events", key=bound)
        worker = play.worker("mailer", prefetch=10)
        client.publish(exchange=f"{play.name}_events", key="orders.created", repeat=15)
        client.wait()
        while taken := worker.take(seconds=0.3):
            worker.ack(tag=taken["tag"])
        worker.close()
        client.close()


@tickets(*ALL)
def fits_no_binding(play: Play) -> None:
    """The queue is bound with a key that is spelt in another way."""
    _binding(play, "order.created")


@tickets(*ALL)
def fits_a_binding(play: Play) -> None:
    """It is bound with a pattern."""
    _binding(play, "orders.*")


def _keeping(play: Play, limit: int) -> None:
    """Forty messages for a dashboard, which consumes once they are there."""
    with play.sniff():
        client = play.client("telemetry")
        client.channel_open(confirms=True)
        client.declare(queue=play.name, arguments={"x-max-length": limit})
        client.publish(key=play.name, body="21.5", repeat=40)
        client.wait()
        worker = play.worker("dashboard", prefetch=5)
        while taken := worker.take(seconds=0.3):
            worker.ack(tag=taken["tag"])
        worker.close()
        client.close()


@tickets(*ALL)
def drops_oldest(play: Play) -> None:
    """The queue keeps ten, and drops the oldest."""
    _keeping(play, 10)


@tickets(*ALL)
def room_for_all(play: Play) -> None:
    """It keeps a hundred."""
    _keeping(play, 100)


def _answering(play: Play, patient: bool) -> None:
    """A page asks with a queue of its own for the answer, three times; each answer takes 0.3 s."""
    with play.sniff():
        worker = play.publisher("quotes")
        worker.consume(queue=play.name, tag="quotes")
        for number in range(3):
            client, answers = play.client("page"), f"amq_answers_{number}"
            client.channel_open()
            client.declare(queue=answers, exclusive=True, durable=False)
            client.publish(key=play.name, properties={"reply_to": answers, "correlation_id": f"quote {number}"})
            taken = worker.take()
            if not patient:
                client.close()
            time.sleep(0.3)
            worker.publish(
                key=taken["reply_to"], properties={"correlation_id": taken["correlation_id"]}, mandatory=True
            )
            worker.wait()
            worker.ack(tag=taken["tag"])
            if patient:
                client.get(queue=answers, no_ack=True)
                client.close()
        worker.close()


@tickets(*ALL)
def answers_to_nobody(play: Play) -> None:
    """The page is gone before the answer."""
    _answering(play, patient=False)


@tickets(*ALL)
def answers_waited_for(play: Play) -> None:
    """It waits."""
    _answering(play, patient=True)


def _hanging(play: Play, stops: bool) -> None:
    """A quorum queue that does not answer; the capture ends before it does, or at once."""
    with play.sniff() as sniffer:
        client = play.client("cashier")
        client.channel_open(confirms=True)
        client.declare(queue=play.name, arguments={"x-queue-type": "quorum"})
        client.publish(key=play.name, body="sale", repeat=5)
        client.wait()
        other = play.client("clock")
        other.channel_open()
        other.declare(queue=f"{play.name}_ticks")
        server = f"whereis('%2F_{play.name}')"
        play.broker.control("eval", f"sys:suspend({server}).")
        client.publish(key=play.name, body="sale", repeat=15)
        for _ in range(12 if stops else 1):
            other.publish(key=f"{play.name}_ticks", body="tick")
            time.sleep(0.25)
        sniffer.stop()
        play.broker.control("eval", f"sys:resume({server}).")


@tickets(*TWO)
def hangs(play: Play) -> None:
    """The capture ends three seconds later."""
    _hanging(play, stops=True)


@tickets(*ALL)
def ends_early(play: Play) -> None:
    """It ends a quarter of a second later."""
    _hanging(play, stops=False)


def _alarm(play: Play, consumes: bool) -> None:
    with play.sniff():
        client = play.publisher("till")
        worker = client
        if not consumes:
            worker = play.client("reader")
        worker.channel_open(channel=2)
        worker.consume(queue=play.name, channel=2, tag="reader")
        for number in range(16):
            client.publish(key=play.name, body=f"receipt {number}")
            if number == 4:
                play.broker.control("set_vm_memory_high_watermark", "0.0000001")
            if number > 4:
                time.sleep(0.05)
        play.broker.control("set_vm_memory_high_watermark", "0.4")
        client.wait()
        while taken := worker.take(channel=2, seconds=0.3):
            worker.ack(tag=taken["tag"], channel=2)
        client.close()
        if not consumes:
            worker.close()


@tickets(*ALL)
def alarm_for_both(play: Play) -> None:
    """A connection that publishes and consumes is blocked."""
    _alarm(play, consumes=True)


@tickets(*ALL)
def alarm_for_one(play: Play) -> None:
    """Another connection consumes."""
    _alarm(play, consumes=False)


def _declaring(play: Play, each_time: bool) -> None:
    with play.sniff():
        client = play.publisher("mailer")
        for number in range(25):
            if each_time:
                client.declare(queue=play.name)
            client.publish(key=play.name, body=f"mail {number}")
        client.wait()
        client.close()


@tickets(*TWO)
def declares_each_time(play: Play) -> None:
    """It declares its queue before each message."""
    _declaring(play, each_time=True)


@tickets(*TWO)
def declares_once(play: Play) -> None:
    """It does so once."""
    _declaring(play, each_time=False)


def _contradicting(play: Play, arguments: dict[str, int]) -> None:
    with play.sniff():
        first = play.client("orders-v1")
        first.channel_open()
        first.declare(queue=play.name, arguments={"x-message-ttl": 60000})
        second = play.client("orders-v2")
        for number in range(1, 4):
            second.channel_open(channel=number)
            with contextlib.suppress(Refused):
                second.declare(queue=play.name, channel=number, arguments=arguments)
        second.close()
        first.close()


@tickets(*TWO)
def other_ttl(play: Play) -> None:
    """The next version of an application declares its queue with another time to live."""
    _contradicting(play, {"x-message-ttl": 30000})


@tickets(*TWO)
def same_ttl(play: Play) -> None:
    """With the same."""
    _contradicting(play, {"x-message-ttl": 60000})


def _asking(play: Play, makes: bool) -> None:
    with play.sniff():
        client = play.client("checker")
        client.channel_open()
        with contextlib.suppress(Refused):
            client.declare(queue=play.name, passive=True)
        client.channel_open(channel=2)
        if makes:
            client.declare(queue=play.name, channel=2)
        client.close()


@tickets(*TWO)
def asks_in_vain(play: Play) -> None:
    """It asks for a queue that is not there."""
    _asking(play, makes=False)


@tickets(*TWO)
def asks_and_makes(play: Play) -> None:
    """It asks, and makes the queue then."""
    _asking(play, makes=True)


@tickets("amqp")
def one_channel(play: Play) -> None:
    """Twenty messages on one channel."""
    _publishing(play, 15, confirms=True)
