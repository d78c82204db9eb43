"""What no broker tells: who is left out, comes back again, or is not reached any more."""

from __future__ import annotations

import contextlib
import time

from pamqp import commands

from tests.tickets.record.clients import ALL, Client, Play, Refused, tickets
from tests.tickets.record.stage import far_broker


def _renaming(play: Play, removes: bool) -> None:
    """A consumer whose queue was bound before binds another key, and perhaps removes the one that all use."""
    exchange = f"{play.name}_sales"
    play.fill(0)
    away = play.stage.backstage
    away.call(1, commands.Exchange.Declare(exchange=exchange, exchange_type="topic", durable=True))
    away.call(1, commands.Queue.Bind(queue=play.name, exchange=exchange, routing_key="placed"))
    with play.sniff():
        feed = play.client("orders")
        feed.channel_open(confirms=True)
        worker = play.worker("billing", 10)
        for count in (20, 40):
            for number in range(count):
                feed.publish(key="placed", exchange=exchange, properties={"message_id": f"{count}-{number}"})
            feed.wait()
            while taken := worker.take(seconds=0.3):
                worker.ack(tag=taken["tag"])
            if count == 20:
                worker.bind(queue=play.name, exchange=exchange, key="placed.v2")
                if removes:
                    worker.unbind(queue=play.name, exchange=exchange, key="placed")
                time.sleep(1.2)
        worker.close()
        feed.close()


@tickets(*ALL)
def key_renamed(play: Play) -> None:
    """A consumer renames the key that publishers use."""
    _renaming(play, removes=True)


@tickets(*ALL)
def key_added(play: Play) -> None:
    """It binds the new one beside it."""
    _renaming(play, removes=False)


def _leaving_out(play: Play, late: bool) -> None:
    """A worker that acknowledges four of five messages at once, and the others never, or with the next ones."""
    with play.sniff():
        feed = play.publisher("feed")
        worker = play.worker("coupons", 5)
        for number in range(40):
            feed.publish(key=play.name, properties={"message_id": f"c{number}"})
        feed.wait()
        left: list[int] = []
        taken = 0
        while got := worker.take(seconds=0.5):
            taken += 1
            time.sleep(0.02)
            if taken % 5:
                worker.ack(tag=got["tag"])
            else:
                left.append(got["tag"])
            if late and len(left) == 2:
                worker.ack(tag=left.pop(0))
        while late and left:
            worker.ack(tag=left.pop(0))
        time.sleep(6)
        worker.close()
        feed.close()


@tickets(*ALL)
def leaves_some_out(play: Play) -> None:
    """What it leaves out fills its prefetch in the end."""
    _leaving_out(play, late=False)


@tickets(*ALL)
def settles_some_late(play: Play) -> None:
    """It acknowledges them a moment later."""
    _leaving_out(play, late=True)


def _putting_back(play: Play, times: int) -> None:
    """Two workers put one message back, which was published before the capture."""
    feed = play.publisher("feed")
    feed.publish(key=play.name, body="bad", properties={"message_id": "claim-7"})
    feed.wait()
    with play.sniff():
        workers = [play.worker(name, 2) for name in ("assessor-a", "assessor-b")]
        for number in range(10):
            feed.publish(key=play.name, body="good", properties={"message_id": f"claim-{10 + number}"})
            feed.wait()
            for worker in workers:
                while got := worker.take(seconds=0.05):
                    if got["body"] == "bad" and times > 0:
                        times -= 1
                        worker.reject(tag=got["tag"], requeue=True)
                    else:
                        worker.ack(tag=got["tag"])
                    if got["body"] == "bad":
                        break
        for worker in workers:
            worker.close()
    feed.close()


@tickets(*ALL)
def put_back_by_two(play: Play) -> None:
    """Each time."""
    _putting_back(play, 1000)


@tickets(*ALL)
def put_back_by_two_once(play: Play) -> None:
    """Once; then it is done."""
    _putting_back(play, 1)


def _limited(play: Play, fails: int) -> None:
    """A quorum queue, declared before, delivers a message three times at most."""
    play.fill(0, **{"x-queue-type": "quorum", "x-delivery-limit": 2})
    with play.sniff():
        feed = play.client("portal")
        feed.channel_open(confirms=True)
        worker = play.worker("kyc", 5)
        for body in ("bad", "bad", "good", "bad", "bad"):
            feed.publish(key=play.name, body=body)
        feed.wait()
        counts: dict[str, int] = {"bad": 0}
        while got := worker.take(seconds=0.5):
            if got["body"] == "bad" and counts["bad"] < 4 * fails:
                counts["bad"] += 1
                worker.reject(tag=got["tag"], requeue=True)
            else:
                worker.ack(tag=got["tag"])
        time.sleep(5.5)
        feed.publish(key=play.name, body="good")
        feed.wait()
        if got := worker.take():
            worker.ack(tag=got["tag"])
        worker.close()
        feed.close()


@tickets(*ALL)
def limit_declared_before(play: Play) -> None:
    """Four messages fail each time, and are dropped."""
    _limited(play, 3)


@tickets(*ALL)
def limit_not_reached(play: Play) -> None:
    """They fail once, and come again."""
    _limited(play, 1)


def _answering(play: Play, stale: bool) -> None:
    """A server answers calls; the caller connects anew in between, with another queue for answers."""
    with play.sniff():
        server = play.client("prices")
        server.channel_open()
        server.declare(queue=play.name)
        server.consume(queue=play.name, tag="prices")
        known: str | None = None
        for turn in ("cart-1", "cart-2"):
            caller = play.client(turn)
            caller.channel_open()
            replies = f"{play.name}_{turn}"
            caller.declare(queue=replies, durable=False, exclusive=True)
            caller.consume(queue=replies, tag=replies, no_ack=True)
            for number in range(3):
                called = {"reply_to": replies, "correlation_id": f"{turn}-{number}"}
                caller.publish(key=play.name, properties=called)
                got = server.take(seconds=2)
                server.ack(tag=got["tag"])
                known = known if stale and known else got["reply_to"]
                server.publish(key=known, properties={"correlation_id": got["correlation_id"]})
                caller.take(seconds=1.2)
            caller.close()
        server.close()


@tickets(*ALL)
def stale_answers(play: Play) -> None:
    """The server goes on to answer to the first queue."""
    _answering(play, stale=True)


@tickets(*ALL)
def fresh_answers(play: Play) -> None:
    """It answers to the queue that each call names."""
    _answering(play, stale=False)


def _connecting(play: Play, closes: bool) -> None:
    """A virtual host that allows eight connections; one client opens one after the other."""
    vhost = play.name
    play.broker.control("add_vhost", vhost)
    play.broker.control("set_permissions", "-p", vhost, "guest", ".*", ".*", ".*")
    play.broker.control("set_vhost_limits", "-p", vhost, '{"max-connections": 8}')
    with play.sniff():
        shop = play.client("shop", vhost=vhost)
        held: list[Client] = []
        for _ in range(7):
            held.append(play.client("reports", vhost=vhost))
            held[-1].channel_open()
            if closes:
                held[-1].close()
        for _ in range(4):
            with contextlib.suppress(Refused):
                play.client("checkout", vhost=vhost).close()
            time.sleep(0.3)
        shop.close()
        for each in held if not closes else ():
            each.close()
    play.broker.control("delete_vhost", vhost)


@tickets(*ALL)
def holds_connections(play: Play) -> None:
    """It closes none, so others are refused."""
    _connecting(play, closes=False)


@tickets(*ALL)
def closes_connections(play: Play) -> None:
    """It closes each."""
    _connecting(play, closes=True)


def _sending(play: Play, again: bool) -> None:
    """A client that publishes five messages on each of four connections, without confirms."""
    with play.sniff():
        worker = play.client("archive")
        worker.channel_open()
        worker.declare(queue=play.name)
        worker.qos(count=10)
        worker.consume(queue=play.name, tag="archive")
        for turn in range(4):
            client = play.client("export")
            client.channel_open()
            for number in range(5):
                client.publish(
                    key=play.name, properties={"message_id": f"inv-{number if again else 5 * turn + number}"}
                )
            for _ in range(5):
                worker.ack(tag=worker.take()["tag"])
            client.close()
        worker.close()


@tickets(*ALL)
def sends_again(play: Play) -> None:
    """The same ones each time."""
    _sending(play, again=True)


@tickets(*ALL)
def sends_others(play: Play) -> None:
    """Others each time."""
    _sending(play, again=False)


def _growing(play: Play, reads: bool) -> None:
    """A monitor asks for the length of a queue that gets messages."""
    play.fill(0)
    with play.sniff():
        monitor = play.client("monitor")
        monitor.channel_open()
        feed = play.client("feed")
        feed.channel_open(confirms=True)
        worker = play.worker("reader", 20) if reads else None
        for _ in range(6):
            for _ in range(8):
                feed.publish(key=play.name)
            feed.wait()
            while worker and (got := worker.take(seconds=0.1)):
                worker.ack(tag=got["tag"])
            monitor.declare(queue=play.name, passive=True)
            time.sleep(2.2)
        monitor.close()
        feed.close()
        if worker:
            worker.close()


@tickets(*ALL)
def nobody_reads(play: Play) -> None:
    """Nobody consumes from it, as the broker says each time."""
    _growing(play, reads=False)


@tickets(*ALL)
def somebody_reads(play: Play) -> None:
    """A consumer takes them."""
    _growing(play, reads=True)


def _dying(play: Play, at: str) -> None:
    """A worker that is killed whenever it gets some message, and begun again; it acknowledges others."""
    with play.sniff():
        feed = play.publisher("upload")
        for number in range(30):
            feed.publish(key=play.name, body=f"photo {number}", properties={"message_id": f"photo-{number}"})
        feed.wait()
        deaths = 0
        while deaths < 4:
            worker = play.worker("thumbs", 4)
            while got := worker.take(seconds=0.5):
                if got["body"] == at or (
                    at == "any" and int(got["body"].split()[1]) % 6 == 5 and not got["redelivered"]
                ):
                    break
                worker.ack(tag=got["tag"])
            time.sleep(0.2)
            worker.kill()
            deaths += 1
            time.sleep(0.3)
        feed.close()


@tickets(*ALL)
def dies_at_one(play: Play) -> None:
    """Always the same one."""
    _dying(play, "photo 10")


@tickets(*ALL)
def dies_at_any(play: Play) -> None:
    """Another one each time."""
    _dying(play, "any")


def _showing(play: Play, binds: bool) -> None:
    """Three clients with queues of their own for what an exchange fans out; one of them may forget its binding."""
    exchange = f"{play.name}_departures"
    with play.sniff():
        feed = play.client("flight-ops")
        feed.channel_open(confirms=True)
        feed.exchange(exchange=exchange, kind="fanout")
        boards = []
        for name in ("hall-a", "hall-b", "hall-c"):
            board = play.client(name)
            board.channel_open()
            board.declare(queue=f"{play.name}_{name}", durable=False, exclusive=True)
            if binds or name != "hall-b":
                board.bind(queue=f"{play.name}_{name}", exchange=exchange, key="")
            board.consume(queue=f"{play.name}_{name}", tag=name, no_ack=True)
            boards.append(board)
        for number in range(12):
            feed.publish(key="", exchange=exchange, body=f"flight {number}")
            feed.wait()
            time.sleep(0.45)
        for board in boards:
            board.close()
        feed.close()


@tickets(*ALL)
def forgets_to_bind(play: Play) -> None:
    """Its queue gets nothing."""
    _showing(play, binds=False)


@tickets(*ALL)
def binds_each(play: Play) -> None:
    """All get what is sent."""
    _showing(play, binds=True)


def _committing(play: Play, each: int) -> None:
    """A worker far away publishes a message for each that it gets, and commits both."""
    play.fill(120)
    with far_broker() as host, play.sniff(interface="shaky"):
        worker = play.client("depot", host=host)
        worker.channel_open()
        worker.transact()
        worker.qos(count=30)
        worker.consume(queue=play.name, tag="depot")
        feed = play.publisher("hq", host=host)
        for number in range(90):
            feed.publish(key=play.name, properties={"message_id": f"t{number}"})
            if got := worker.take(seconds=1):
                worker.publish(key=f"{play.name}_done", body=got["body"])
                worker.ack(tag=got["tag"])
                if number % each == each - 1:
                    worker.commit()
        feed.wait()
        worker.close()
        feed.close()


@tickets("amqp", "bunny")
def commits_each_far(play: Play) -> None:
    """One transaction for each message."""
    _committing(play, 1)


@tickets("amqp", "bunny")
def commits_many_far(play: Play) -> None:
    """One for thirty."""
    _committing(play, 30)


def _batching(play: Play, batch: int) -> None:
    """A worker that began before the capture acknowledges a batch, or what it has after a second and a half."""
    play.fill(60)
    worker = play.worker("loader", 10)
    feed = play.publisher("clicks")
    with play.sniff():
        tag, held, since = 0, 0, time.monotonic()
        end = since + 14
        while time.monotonic() < end:
            feed.publish(key=play.name)
            time.sleep(0.03)
            if got := worker.take(seconds=0.05):
                tag, held = got["tag"], held + 1
            if held and (held == batch or time.monotonic() - since > 1.5):
                worker.ack(tag=tag, multiple=True)
                held, since = 0, time.monotonic()
        feed.wait()
    worker.close()
    feed.close()


@tickets(*ALL)
def batch_larger_than_its_limit(play: Play) -> None:
    """It waits for forty, and may have ten."""
    _batching(play, 40)


@tickets(*ALL)
def batch_within_its_limit(play: Play) -> None:
    """It waits for five."""
    _batching(play, 5)
