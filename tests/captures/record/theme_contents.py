"""What is in messages: properties, headers of every type, bodies from nothing to a megabyte, many channels."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import aio_pika
from pamqp import commands
from yarl import URL

from tests.captures.record import scripted, wire
from tests.captures.record.broker import PORT
from tests.captures.record.ledger import Content, Ledger
from tests.captures.record.scenario import Stage, must_hold, scenario
from tests.captures.record.theme_deliveries import Ack, delivered

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
AMQPLIB = Path(os.environ.get("AMQPLIB", "/tmp/amqpscope-node"))
EVERY_TYPE: dict[str, wire.Typed] = {
    "true": ("t", True), "false": ("t", False), "b": ("b", -128), "B": ("B", 255), "s": ("s", -32768),
    "u": ("u", 65535), "I": ("I", -(2**31)), "i": ("i", 2**32 - 1), "l": ("l", -(2**63)), "l max": ("l", 2**63 - 1),
    "f": ("f", 0.5), "d": ("d", -1.0e300), "D": ("D", (2, 1999)), "D whole": ("D", (0, 7)),
    "S": ("S", "grüße"), "S empty": ("S", ""), "T": ("T", 1_700_000_000), "V": ("V", None), "x": ("x", b"\x00\xce\xff"),
    "F empty": ("F", {}), "A empty": ("A", []),
    "F": ("F", {"inner": ("F", {"deep": ("A", [("l", 2**53 + 1), ("S", "x"), ("F", {"deeper": ("V", None)})])})}),
    "A": ("A", [("b", 1), ("S", "two"), ("d", 3.25), ("A", [("t", True)]), ("T", 0), ("x", b"")]),
    "traceparent": ("S", TRACE),
}  # fmt: skip
EVERY_PROPERTY: dict[str, Any] = {
    "content_type": "application/json", "content_encoding": "utf-8", "headers": EVERY_TYPE, "delivery_mode": 2,
    "priority": 9, "correlation_id": "c-1", "reply_to": "answers", "expiration": "60000", "message_id": "m-1",
    "timestamp": 1_700_000_001, "type": "order", "user_id": "guest", "app_id": "shop", "cluster_id": "old",
}  # fmt: skip


@scenario("every property, each one alone, and headers of every type letter the broker takes, there and back")
def field_types(stage: Stage) -> None:
    with stage.sniff():
        peer = stage.login("both")
        peer.call(1, commands.Queue.Declare(queue="typed", exclusive=True))
        peer.call(1, commands.Confirm.Select())
        peer.publish(1, "", "typed", b'{"all": true}', EVERY_PROPERTY)
        for name, content in EVERY_PROPERTY.items():
            # an expiry of a minute is long enough
            peer.publish(1, "", "typed", f"only {name}".encode(), {name: content if name != "headers" else {}})
        peer.publish(1, "", "typed", b"no property at all")
        peer.flush()
        peer.until(lambda: all(row["outcome"] == "ack" for row in peer.book.confirms))
        peer.call(1, commands.Basic.Consume(queue="typed", consumer_tag="c", no_ack=True))
        delivered(peer, 16)
        peer.logout()
    must_hold(stage, wire.table(EVERY_TYPE))
    stage.keep("messages")
    stage.golden["counts"] = {"basic.publish": 16, "basic.deliver": 16}


@scenario(
    "scripted server: a field type the broker refuses (L), a string that is no text, an empty name, a method table"
)
def odd_fields(stage: Stage) -> None:
    headers: dict[str, wire.Typed] = {"L": ("L", 2**64 - 1), "S not text": ("S", b"\xff\xfe"), "": ("S", "no name")}
    with scripted.listener() as server, stage.sniff():
        client, far = scripted.pair(stage, server, "producer")
        scripted.shake(client, far)
        client.publish(1, "", "odd", b"odd", {"headers": headers})
        arguments: Any = {"x-dead-letter-exchange": "", "x-max-priority": 10, "x-message-ttl": 2**40}
        client.queue(1, commands.Queue.Declare(queue="odd", arguments=arguments, nowait=True))
        client.flush()
        far.socket.recv(1 << 16)
        scripted.hang_up(client, far)
    must_hold(stage, wire.table(headers))
    stage.keep("messages")
    stage.golden["counts"] = {"basic.publish": 1, "queue.declare": 1}


@scenario("aio-pika: orders with nested headers, decimals, times, bytes and a traceparent over a topic exchange")
def orders_aio_pika(stage: Stage) -> None:
    _ = stage.broker
    asyncio.run(_orders(stage))
    stage.keep("confirms", "settlements", "messages")
    stage.golden["counts"] = {"connections": 2, "basic.publish": 8}


async def aio_connection(stage: Stage, client: str, vhost: str = "", **options: Any) -> tuple[Any, Ledger]:
    """A connection of aio-pika with its book."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        local = probe.getsockname()
    connection = aio_pika.Connection(
        URL(f"amqp://guest:guest@127.0.0.1:{PORT}/{vhost}?heartbeat=0&name={client}"), **options
    )
    connection.kwargs["local_addr"] = local  # handed on to asyncio; the port in use cannot be asked for
    await connection.connect()
    stage.address(client, local, ("127.0.0.1", PORT))
    return connection, stage.ledger(client)


async def _orders(stage: Stage) -> None:
    at = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)
    orders = []
    for number, region in enumerate(["eu", "us", "eu", "apac", "eu", "us", "apac", "mars"], 1):
        lines = [{"quantity": number, "sku": f"sku-{number}"}, {"quantity": 300 * number, "sku": "sku-0"}]
        headers: dict[str, Any] = {
            "attempt": number - 1, "due": at, "express": number % 2 == 0, "lines": lines, "none": None,
            "ratio": number / 4, "seal": bytearray([number, 0xCE, 0]), "serial": 2**40 + number,
            "shop": {"country": {"code": region.upper()}, "floor": -number}, "total": Decimal(f"{number}9.95"),
            "traceparent": TRACE[:-4] + f"{number:02}-01" if number < 8 else "not a trace",
        }  # fmt: skip
        orders.append((f"orders.{region}.new", f'{{"order": {number}}}'.encode(), headers))

    with stage.sniff():
        shop, shop_book = await aio_connection(stage, "shop")
        store, store_book = await aio_connection(stage, "store")
        channel = await store.channel()
        store_book.sent(1, "channel.open")
        await channel.set_qos(prefetch_count=5)
        exchange = await channel.declare_exchange("shop", aio_pika.ExchangeType.TOPIC)
        eu = await channel.declare_queue("orders-eu", auto_delete=True)
        every = await channel.declare_queue("orders-all", auto_delete=True)
        await eu.bind(exchange, "orders.eu.*")
        await every.bind(exchange, "orders.#")
        finished = asyncio.Event()

        async def handle(message: Any) -> None:
            content = Content(message.body, _aio_properties(message))
            store_book.told(
                1, "basic.deliver", content, consumer_tag=message.consumer_tag, delivery_tag=message.delivery_tag,
                exchange=message.exchange, routing_key=message.routing_key, redelivered=message.redelivered,
            )  # fmt: skip
            await asyncio.sleep(0.002 * (message.delivery_tag % 3))
            store_book.sent(1, "basic.ack", delivery_tag=message.delivery_tag, multiple=False)
            await message.ack()
            if all(row["outcome"] == "ack" for row in store_book.settlements) and len(store_book.settlements) == 11:
                finished.set()

        for tag, queue in (("eu", eu), ("all", every)):
            store_book.sent(1, "basic.consume", consumer_tag=tag, queue=queue.name, no_ack=False)
            await queue.consume(handle, consumer_tag=tag)
        outgoing = await shop.channel(publisher_confirms=True)
        shop_book.sent(1, "channel.open")
        shop_book.sent(1, "confirm.select")
        topic = await outgoing.get_exchange("shop", ensure=False)
        for number, (key, body, headers) in enumerate(orders, 1):
            message = aio_pika.Message(
                body, headers=headers, content_type="application/json", content_encoding="utf-8",
                delivery_mode=aio_pika.DeliveryMode.PERSISTENT, priority=number % 3, correlation_id=f"c-{number}",
                reply_to="receipts", expiration=30, message_id=f"order-{number}", timestamp=at, type="order.new",
                user_id="guest", app_id="shop",
            )  # fmt: skip
            typed = {name: _as_pamqp(item) for name, item in sorted(headers.items())}
            content = Content(body, _aio_properties(message) | {"headers": typed})
            shop_book.sent(1, "basic.publish", content, exchange="shop", routing_key=key, mandatory=True)
            told = await topic.publish(message, routing_key=key)
            shop_book.told(1, "basic.ack", delivery_tag=told.delivery_tag, multiple=told.multiple)
        await asyncio.wait_for(finished.wait(), 10)
        await store.close()
        await shop.close()
    for row in shop_book.messages:
        fields = row["headers"]
        assert fields["attempt"]["type"] == "b" and fields["serial"]["type"] == "l"
    must_hold(stage, *[wire.table({n: _as_pamqp(i) for n, i in sorted(headers.items())}) for *_, headers in orders])


def _aio_properties(message: Any) -> dict[str, Any]:
    given = message.properties
    others = ("headers", "timestamp", "type", "cluster_id")
    names = [name for name in wire.PROPERTIES if name not in others]
    known = {name: getattr(given, name) for name in names if getattr(given, name) is not None}
    known["delivery_mode"] = int(known["delivery_mode"])
    return known | {"timestamp": int(given.timestamp.timestamp()), "type": given.message_type}


def _as_pamqp(item: Any) -> wire.Typed:
    """The type letter pamqp picks, written down from its documentation: the smallest integer type that will do."""
    if isinstance(item, bool):
        return "t", item
    if isinstance(item, int):
        ranges = (("b", -128, 127), ("s", -(2**15), 2**15 - 1), ("u", 0, 2**16 - 1), ("I", -(2**31), 2**31 - 1))
        for letter, low, high in ranges:
            if low <= item <= high:
                return letter, item
        return "l", item
    if isinstance(item, float):
        return "f", item
    if isinstance(item, Decimal):
        return "D", (-int(item.as_tuple().exponent), int(item.scaleb(-int(item.as_tuple().exponent))))
    if isinstance(item, datetime):
        return "T", int(item.timestamp())
    if isinstance(item, bytearray):
        return "x", bytes(item)
    if isinstance(item, dict):
        return "F", {name: _as_pamqp(inner) for name, inner in sorted(item.items())}
    if isinstance(item, list):
        return "A", [_as_pamqp(inner) for inner in item]
    return ("V", None) if item is None else ("S", item)


@scenario("amqplib (Node.js): orders with its explicit header types over a topic exchange, confirms, acks, a nack")
def orders_amqplib(stage: Stage) -> None:
    _ = stage.broker
    script = Path(__file__).with_name("orders_amqplib.cjs")
    environment = {"PATH": os.environ["PATH"], "NODE_PATH": str(AMQPLIB / "node_modules"), "HOME": "/nonexistent"}
    books: dict[str, Ledger] = {}
    with stage.sniff():
        node = subprocess.Popen(
            ["node", str(script), str(PORT)], env=environment, stdout=subprocess.PIPE, text=True, encoding="utf-8"
        )
        assert node.stdout is not None
        for line in node.stdout:
            said = json.loads(line)
            client = said["client"]
            if "port" in said:
                stage.address(client, ("127.0.0.1", said["port"]), ("127.0.0.1", PORT))
                books[client] = stage.ledger(client)
                continue
            content = None
            if "body" in said:
                properties = said["properties"]
                if "headers" in said:
                    properties |= {"headers": _from_json({"type": "F", "value": said["headers"]})[1]}
                content = Content(said["body"].encode(), properties)
            note = getattr(books[client], said["way"])
            note(said["channel"], said["method"], content, **said["arguments"])
        assert node.wait(20) == 0
    sent = [event for event in stage.events if event["method"] == "basic.publish"]
    must_hold(stage, *[wire.table(_from_json({"type": "F", "value": event["headers"]})[1]) for event in sent])
    stage.keep("confirms", "settlements", "messages")
    stage.golden["counts"] = {"connections": 2, "basic.publish": 6}


def _from_json(item: dict[str, Any]) -> wire.Typed:
    letter: str = item["type"]
    content: Any = item.get("value")
    if letter == "F":
        return letter, {name: _from_json(inner) for name, inner in content.items()}
    if letter == "A":
        return letter, [_from_json(inner) for inner in content]
    if letter == "D":
        return letter, (item["scale"], content)
    return letter, bytes.fromhex(content) if letter == "x" else content


def megabyte() -> bytes:
    """1,000,000 bytes of numbered lines."""
    return b"".join(b"line %010d\n" % number for number in range(62500))


@scenario("a message of 1,000,000 bytes with the usual frame_max of 131072: eight body frames")
def large_message(stage: Stage) -> None:
    with stage.sniff():
        peer = stage.login("producer")
        _publish_large(peer)
    stage.keep("confirms", "messages")
    stage.golden["counts"] = {"basic.publish": 1, "body frames": 8}


@scenario("a message of 1,000,000 bytes with the smallest frame_max, 4096: 245 body frames")
def large_message_small_frames(stage: Stage) -> None:
    with stage.sniff():
        peer = stage.login("producer", frame_max=4096)
        _publish_large(peer)
    stage.keep("confirms", "messages")
    stage.golden["counts"] = {"basic.publish": 1, "body frames": 245}


def _publish_large(peer: Any) -> None:
    peer.call(1, commands.Queue.Declare(queue="large", exclusive=True))
    peer.call(1, commands.Confirm.Select())
    peer.publish(1, "", "large", megabyte(), {"content_type": "text/plain"})
    peer.flush()
    peer.wait(1, "basic.ack")
    peer.logout()


@scenario("frame_max 4096 and bodies of 0, 1, 4087 to 4089, 8176 and 8177 bytes, of frame ends, and of AMQP frames")
def body_sizes(stage: Stage) -> None:
    inside = b"".join(wire.content(1, commands.Basic.Publish(routing_key="never sent"), b"never sent", {}, 4096))
    with stage.sniff():
        peer = stage.login("both", frame_max=4096)
        peer.call(1, commands.Queue.Declare(queue="sizes", exclusive=True))
        peer.call(1, commands.Confirm.Select())
        for body in [b"s" * size for size in (0, 1, 4087, 4088, 4089, 8176, 8177)] + [wire.END * 50, inside * 60]:
            peer.publish(1, "", "sizes", body)
            peer.flush()
        peer.until(lambda: all(row["outcome"] == "ack" for row in peer.book.confirms))
        peer.call(1, commands.Basic.Consume(queue="sizes", consumer_tag="c"))
        delivered(peer, 9)
        peer.send(1, Ack(0, True))
        peer.logout()
    stage.keep("messages", "confirms", "settlements")
    frames = sum(-(-row["body_size"] // 4088) for row in peer.book.messages)
    stage.golden["counts"] = {"basic.publish": 9, "basic.deliver": 9, "body frames": frames}


@scenario("raw: fifty channels whose method, header and body frames are sent in turn, in segments that end anywhere")
def interleaved_channels(stage: Stage) -> None:
    with stage.sniff():
        channels = tuple(range(1, 51))
        peer = stage.login("both", channels=(1,), frame_max=4096)
        for number in channels[1:]:
            peer.queue(number, commands.Channel.Open())
        peer.flush()
        peer.until(lambda: all(row["outcome"] == "ok" for row in peer.book.rpcs))
        peer.call(1, commands.Queue.Declare(queue="crowd", exclusive=True))
        for number in channels:
            peer.queue(number, commands.Confirm.Select())
        peer.flush()
        peer.until(lambda: all(row["outcome"] == "ok" for row in peer.book.rpcs))
        frames = {
            number: peer.frames(
                number, commands.Basic.Publish(routing_key="crowd"), f"{number:03}".encode() * (number * 20),
                {"app_id": f"channel {number}"},
            )
            for number in channels
        }  # fmt: skip
        data = b""
        while any(frames.values()):
            for number in channels:
                if frames[number]:
                    data += frames[number].pop(0)
        for at in range(0, len(data), 1013):
            peer.socket.sendall(data[at : at + 1013])
        peer.until(lambda: all(row["outcome"] == "ack" for row in peer.book.confirms))
        peer.logout()
    stage.keep("confirms", "messages")
    stage.golden["counts"] = {"channel.open": 50, "basic.publish": 50}
    stage.golden["notes"] = "messages are in the order of their channels; on the wire those of fewer frames end first"
