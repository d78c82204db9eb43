"""Messages that are the same at two places: of which publish is a delivery, where not all publishers were captured?"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from typing import Any

import aio_pika
import pika  # type: ignore[import-untyped]
from pamqp import commands

from tests.captures.record.broker import OTHER_PORT
from tests.captures.record.peer import Peer
from tests.captures.record.scenario import Stage, scenario
from tests.captures.record.theme_basics import pika_connection
from tests.captures.record.theme_contents import aio_connection

Publishing = Callable[[bytes, str | None], None]
"""Publishes a body with a message id to the queue `jobs`."""


def hidden(vhost: str) -> Peer:
    """A client whose packets are not captured."""
    peer = Peer(socket.create_connection(("127.0.0.1", OTHER_PORT)))
    peer.login(vhost)
    for queue in ("jobs", "done"):
        peer.call(1, commands.Queue.Declare(queue=queue))
    return peer


def both(stage: Stage, publish: Publishing, leave: Callable[[], None]) -> None:
    """Has messages of a publisher consumed and passed on in `one`, and equal ones of somebody else in `two`.

    The golden's `transits` say of each delivery whose it is: the publisher's, or (null) nobody's who was captured.
    """
    for name in ("one", "two"):
        stage.broker.control("add_vhost", name)
        stage.broker.control("set_permissions", "-p", name, "guest", ".*", ".*", ".*")
    worker, elsewhere = hidden("one"), hidden("two")
    rows: list[dict[str, Any]] = []
    with stage.sniff():
        readers = {name: stage.login(f"reader in {name}", vhost=name) for name in ("one", "two")}
        messages: list[tuple[bytes, str | None]] = [(b"job %d" % n, f"j-{n}" if n % 2 else None) for n in range(6)]
        for body, identity in messages:
            publish(body, identity)
            properties = {"message_id": identity} if identity else {}
            elsewhere.publish(1, "", "jobs", body, properties)
            worker.publish(1, "", "done", body, properties)
            elsewhere.flush()
            worker.flush()
        time.sleep(0.3)
        for name, queue in (("one", "jobs"), ("one", "done"), ("two", "jobs")):
            for body, identity in messages:
                readers[name].call(1, commands.Basic.Get(queue=queue, no_ack=True))
                publisher = "publisher" if (name, queue) == ("one", "jobs") else None
                row = {"client": f"reader in {name}", "routing_key": queue, "message_id": identity}
                rows.append(row | {"publisher": publisher, "body_size": len(body)})
        for reader in readers.values():
            reader.logout()
        leave()
    for peer in (worker, elsewhere):
        peer.logout()
    for name in ("one", "two"):
        stage.broker.control("delete_vhost", name)
    stage.golden["transits"] = rows
    stage.golden["counts"] = {"connections": 3, "basic.get-ok": 18, "basic.publish": 6}


@scenario(
    "scripted: ids and bodies that are equal in two virtual hosts, and passed on under another key by a hidden worker"
)
def passed_on(stage: Stage) -> None:
    _ = stage.broker
    made: list[Peer] = []

    def publish(body: bytes, identity: str | None) -> None:
        if not made:
            made.append(stage.login("publisher", vhost="one"))
        made[0].publish(1, "", "jobs", body, {"message_id": identity} if identity else {})
        made[0].flush()

    both(stage, publish, lambda: made[0].logout())  # noqa: PLW0108 - it is made by `publish`


@scenario(
    "pika: ids and bodies that are equal in two virtual hosts, and passed on under another key by a hidden worker"
)
def passed_on_pika(stage: Stage) -> None:
    _ = stage.broker
    made: list[Any] = []

    def publish(body: bytes, identity: str | None) -> None:
        if not made:
            connection, _ = pika_connection(stage, "publisher", virtual_host="one")
            made.append(connection.channel())
        made[0].basic_publish("", "jobs", body, pika.BasicProperties(message_id=identity))

    both(stage, publish, lambda: made[0].connection.close())  # noqa: PLW0108 - as above


@scenario(
    "aio-pika: ids and bodies that are equal in two virtual hosts, and passed on under another key by a hidden worker"
)
def passed_on_aio_pika(stage: Stage) -> None:
    _ = stage.broker
    loop = asyncio.new_event_loop()
    made: list[Any] = []

    async def send(body: bytes, identity: str | None) -> None:
        if not made:
            made.append((await aio_connection(stage, "publisher", vhost="one"))[0])
            made.append(await made[0].channel(publisher_confirms=True))
        await made[1].default_exchange.publish(aio_pika.Message(body, message_id=identity), "jobs")

    def publish(body: bytes, identity: str | None) -> None:
        loop.run_until_complete(send(body, identity))

    both(stage, publish, lambda: loop.run_until_complete(made[0].close()))
    loop.close()
