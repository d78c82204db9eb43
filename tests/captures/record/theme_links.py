"""One short session, seen through different files and link layers; and a port used again."""

from __future__ import annotations

import socket
import time

from pamqp import commands

from tests.captures.record import lossy, scripted
from tests.captures.record.broker import PORT
from tests.captures.record.peer import Peer
from tests.captures.record.scenario import Stage, scenario
from tests.captures.record.theme_deliveries import Ack, delivered


def session(stage: Stage, client: str = "both", host: str = "127.0.0.1") -> None:
    """Three publishes with confirms and their deliveries with acks."""
    peer = stage.login(client, host=host)
    peer.call(1, commands.Queue.Declare(queue="session", exclusive=True))
    _exchange(peer)
    peer.logout()


def _exchange(peer: Peer) -> None:
    peer.call(1, commands.Confirm.Select())
    for number in range(1, 4):
        peer.publish(1, "", "session", f"message {number} ".encode() * 30, {"message_id": f"m-{number}"})
        peer.flush()
        peer.until(lambda: peer.book.confirms[-1]["outcome"] == "ack")
    peer.call(1, commands.Basic.Consume(queue="session", consumer_tag="c"))
    delivered(peer, 3)
    peer.send(1, Ack(1), Ack(3, True))


def _keep(stage: Stage) -> None:
    stage.keep("confirms", "settlements", "messages", "rpcs")
    stage.golden["counts"] = {"basic.publish": 3, "basic.deliver": 3}


@scenario("a short session over IPv6 (::1)")
def ipv6(stage: Stage) -> None:
    with stage.sniff():
        session(stage, host="::1")
    _keep(stage)


@scenario("the same on `-i any`: Linux cooked capture, version 2 (SLL2)")
def any_sll2(stage: Stage) -> None:
    with stage.sniff(interface="any", options=("-y", "LINUX_SLL2")):
        session(stage)
    _keep(stage)


@scenario("the same on `-i any`: Linux cooked capture, version 1 (SLL), IPv6")
def any_sll(stage: Stage) -> None:
    with stage.sniff(interface="any", options=("-y", "LINUX_SLL")):
        session(stage, host="::1")
    _keep(stage)


@scenario("the same with times in nanoseconds")
def nanoseconds(stage: Stage) -> None:
    with stage.sniff(options=("--time-stamp-precision=nano",)):
        session(stage)
    _keep(stage)


@scenario("the same as pcapng by dumpcap, with two interfaces of which one (any) has another link layer", "pcapng")
def two_interfaces(stage: Stage) -> None:
    # the second interface's filter lets nothing through: a packet must not be there twice
    with stage.sniff(tool="dumpcap", options=("-i", "any", "-f", "tcp port 9")):
        session(stage)
    _keep(stage)


@scenario("the same as pcapng on lo and on any at once: every packet is there twice, in two link layers", "pcapng")
def seen_twice(stage: Stage) -> None:
    with stage.sniff(tool="dumpcap", options=("-i", "any")):
        session(stage)
    _keep(stage)


@scenario("the same with a snap length of 200: the bodies' ends are cut off")
def snapped(stage: Stage) -> None:
    with stage.sniff(options=("-s", "200")):
        peer = stage.login("both")
        peer.call(1, commands.Queue.Declare(queue="session", exclusive=True))
        peer.call(1, commands.Confirm.Select())
        peer.call(1, commands.Basic.Consume(queue="session", consumer_tag="c"))
        for number in range(1, 4):
            # one at a time, so that every method begins a segment
            peer.publish(1, "", "session", b"longer than the snap length " * 20)
            peer.flush()
            peer.until(lambda: peer.book.confirms[-1]["outcome"] == "ack")
            delivered(peer, number)
        peer.send(1, Ack(1))
        peer.send(1, Ack(3, True))
        peer.logout()
    stage.keep("confirms", "settlements")
    stage.golden["notes"] = "connection.start and the bodies are cut; what confirms and settlements need is all there"
    stage.golden["counts"] = {"basic.publish": 3, "basic.deliver": 3}


@scenario("the same client port three times: ended by a reset, by a reset in the middle of a frame, and politely")
def port_reused(stage: Stage) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with stage.sniff():
        for client in ("first", "second", "third"):
            peer = stage.login(client, source_port=port)
            peer.call(1, commands.Queue.Declare(queue=f"port-{client}", auto_delete=True))
            peer.call(1, commands.Confirm.Select())
            for number in range(1, 4):
                peer.publish(1, "", f"port-{client}", f"{client} {number}".encode())
            peer.flush()
            peer.until(lambda book=peer.book: all(row["outcome"] == "ack" for row in book.confirms))  # type: ignore[misc]
            if client == "second":
                peer.socket.sendall(b"\x01\x00\x01\x00\x00")  # five bytes of a frame's head
            if client == "third":
                peer.logout()
            else:
                peer.abort()
    stage.keep("confirms", "messages", "rpcs")
    stage.golden["counts"] = {"connections": 3, "basic.publish": 9, "connection.open": 3}


@scenario("scripted server behind a link (raw IP) that loses, doubles and reorders: 120 publishes, 40 deliveries")
def lossy_link(stage: Stage) -> None:
    link = lossy.Link()
    try:
        with lossy.listener(link, PORT) as server, stage.sniff(interface=lossy.DEVICE):
            client = stage.connect("both", lossy.SERVER)
            far = Peer(server.accept()[0])
            scripted.shake(client, far, confirm=True)
            client.queue(1, commands.Basic.Consume(queue="far", consumer_tag="c"))
            for number in range(1, 121):
                client.publish(1, "x", f"key.{number}", f"publish {number} ".encode() * (number % 40))
                client.flush()
                if number % 3 == 0:
                    deliver = commands.Basic.Deliver("c", number // 3, False, "x", "back")
                    for data in far.frames(1, deliver, f"delivery {number} ".encode() * (number % 50)):
                        far.queue_raw(data)
                    far.queue(1, commands.Basic.Ack(number, True))
                    far.flush()
            far.drain(0.5)
            client.until(lambda: client.book.confirms[-1]["outcome"] == "ack")
            client.send(1, Ack(40, True))
            scripted.hang_up(client, far)
    finally:
        link.close()
    stage.keep("confirms", "settlements", "messages")
    stage.golden["counts"] = {"connections": 1, "basic.publish": 120, "basic.deliver": 40, "basic.ack": 41}


@scenario("files of one rotated capture: two connections go on from file to file, messages across the borders", "")
def rotated(stage: Stage) -> None:
    stage.path.mkdir(exist_ok=True)
    for old in stage.path.glob("*.pcap"):
        old.unlink()
    with stage.sniff(tool="dumpcap", options=("-P", "-b", "packets:40")):
        producer, consumer = stage.login("producer"), stage.login("consumer")
        consumer.call(1, commands.Queue.Declare(queue="rotated", auto_delete=True))
        consumer.call(1, commands.Basic.Consume(queue="rotated", consumer_tag="c"))
        producer.call(1, commands.Confirm.Select())
        for number in range(1, 16):
            # cut into segments by hand, so that some message lies across each border
            for data in producer.frames(
                1, commands.Basic.Publish(routing_key="rotated"), f"rotated {number} ".encode() * 40, {}
            ):
                producer.socket.sendall(data)
                time.sleep(0.002)
            producer.until(lambda: producer.book.confirms[-1]["outcome"] == "ack")
            delivered(consumer, number)
            if number % 3 == 0:
                consumer.send(1, Ack(number, number % 2 == 0), *[Ack(number - 1), Ack(number - 2)] * (number % 2))
        producer.logout()
        consumer.logout()
    for number, part in enumerate(sorted(stage.path.glob("*.pcap")), 1):
        part.rename(stage.path / f"part-{number}.pcap")
    stage.keep("confirms", "settlements", "messages", "rpcs")
    stage.golden["counts"] = {"connections": 2, "basic.publish": 15, "basic.deliver": 15}
