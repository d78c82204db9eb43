"""The plain things first, as ordinary client libraries do them."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pika  # type: ignore[import-untyped]
from pamqp import commands

from tests.captures.record import wire
from tests.captures.record.broker import OTHER_PORT, PORT
from tests.captures.record.ledger import Content, Ledger
from tests.captures.record.scenario import Stage, must_hold, scenario


def pika_connection(stage: Stage, client: str, **options: Any) -> tuple[pika.BlockingConnection, Ledger]:
    """A blocking pika connection with its book."""
    properties = {"connection_name": client}
    usual = {"host": "127.0.0.1", "port": PORT, "heartbeat": 0, "client_properties": properties}
    connection = pika.BlockingConnection(pika.ConnectionParameters(**usual | options))
    plain = connection._impl._transport._sock  # the port is nowhere to be had in public
    stage.address(client, plain.getsockname(), plain.getpeername())
    return connection, stage.ledger(client)


@scenario("pika: ten publishes, each waited for with a confirm (BlockingChannel.confirm_delivery)")
def pika_confirms(stage: Stage) -> None:
    stage.backstage.call(1, commands.Queue.Declare(queue="basic", durable=True))
    with stage.sniff():
        ten_publishes(stage)
    stage.keep("confirms", "messages")
    stage.golden["counts"] = {"connections": 1, "basic.publish": 10, "basic.ack": 10}


def ten_publishes(stage: Stage, **options: Any) -> None:
    """What a producer with pika does; `options` are those of its connection."""
    connection, book = pika_connection(stage, "producer", **options)
    channel = connection.channel()
    book.sent(1, "channel.open")
    book.told(1, "channel.open-ok")
    book.sent(1, "confirm.select")
    channel.confirm_delivery()
    book.told(1, "confirm.select-ok")
    for number in range(1, 11):
        content = Content(f"order {number}".encode(), {"content_type": "text/plain", "delivery_mode": 2})
        book.sent(1, "basic.publish", content, exchange="", routing_key="basic", mandatory=False)
        properties = pika.BasicProperties(content_type="text/plain", delivery_mode=2)
        channel.basic_publish("", "basic", content.body, properties)  # raises on a nack
        book.told(1, "basic.ack", delivery_tag=number, multiple=False)
    connection.close()
    book.close("connection-close")


@scenario("pika: a consumer with a prefetch of 4 gets ten messages; single and `multiple` acks, reject, nack")
def pika_consume(stage: Stage) -> None:
    stage.backstage.call(1, commands.Queue.Declare(queue="consumed"))
    for number in range(1, 11):
        stage.backstage.publish(1, "", "consumed", f"item {number}".encode(), {"message_id": f"m-{number}"})
    stage.backstage.flush()
    with stage.sniff():
        connection, book = pika_connection(stage, "consumer")
        channel = connection.channel()
        book.sent(1, "channel.open")
        book.told(1, "channel.open-ok")
        book.sent(1, "basic.qos", prefetch_count=4)
        channel.basic_qos(prefetch_count=4)
        book.told(1, "basic.qos-ok")

        def settle(how: str, tag: int, **options: Any) -> None:
            book.sent(1, f"basic.{how}", delivery_tag=tag, **options)
            getattr(channel, f"basic_{how}")(tag, **options)

        def on_message(_: Any, method: Any, properties: Any, body: bytes) -> None:
            tag = method.delivery_tag
            content = Content(body, {"message_id": properties.message_id})
            book.told(
                1, "basic.deliver", content, consumer_tag=method.consumer_tag, delivery_tag=tag,
                exchange=method.exchange, routing_key=method.routing_key, redelivered=method.redelivered,
            )  # fmt: skip
            if tag in (1, 2):
                settle("ack", tag, multiple=False)
            elif tag == 5:
                settle("ack", tag, multiple=True)  # 3, 4, 5
            elif tag == 6:
                settle("reject", tag, requeue=False)
            elif tag == 7:
                settle("nack", tag, multiple=False, requeue=False)
            elif tag == 9:
                settle("ack", tag, multiple=True)  # 8, 9; number 10 is left
                channel.connection.call_later(0.2, channel.stop_consuming)

        book.sent(1, "basic.consume", consumer_tag="eater", queue="consumed", no_ack=False)
        channel.basic_consume("consumed", on_message, consumer_tag="eater")
        book.told(1, "basic.consume-ok", consumer_tag="eater")
        channel.start_consuming()
        connection.close()
        book.close("connection-close")
    outcomes = [(row["delivery_tag"], row["outcome"], row["multiple"]) for row in book.settlements]
    assert outcomes[2:5] == [(3, "ack", True), (4, "ack", True), (5, "ack", True)], outcomes
    assert len(outcomes) == 10 and outcomes[9][1] == "none"
    stage.keep("settlements", "messages")
    stage.golden["counts"] = {"connections": 1, "basic.deliver": 10}


@scenario("a publish with a confirm and a consume with an ack on a port that says nothing of AMQP (25999)")
def other_port(stage: Stage) -> None:
    _ = stage.broker
    with stage.sniff(ports=(OTHER_PORT,)):
        peer = stage.login("both", port=OTHER_PORT)
        peer.call(1, commands.Queue.Declare(queue="elsewhere", exclusive=True))
        peer.call(1, commands.Confirm.Select())
        peer.publish(1, "", "elsewhere", b"over here", {"delivery_mode": 1})
        peer.flush()
        peer.wait(1, "basic.ack")
        peer.send(1, commands.Basic.Consume(queue="elsewhere", consumer_tag="c"))
        peer.wait(1, "basic.deliver")
        peer.send(1, commands.Basic.Ack(delivery_tag=1))
        peer.logout()
    stage.keep("confirms", "settlements", "messages", "rpcs")


@scenario("pika: orders over a topic exchange with headers of all the types it can send, mandatory, some returned")
def orders_pika(stage: Stage) -> None:
    stage.backstage.call(1, commands.Exchange.Declare(exchange="pika-orders", exchange_type="topic"))
    stage.backstage.call(1, commands.Queue.Declare(queue="pika-eu"))
    stage.backstage.call(1, commands.Queue.Bind(queue="pika-eu", exchange="pika-orders", routing_key="orders.eu.*"))
    with stage.sniff():
        connection, book = pika_connection(stage, "shop")
        channel = connection.channel()
        book.sent(1, "channel.open")
        book.sent(1, "confirm.select")
        channel.confirm_delivery()
        tables = []
        for number, key in enumerate(("orders.eu.new", "orders.us.new", "orders.eu.paid", "orders.us.paid"), 1):
            typed: dict[str, wire.Typed] = {
                "traceparent": ("S", f"00-{number:032x}-{number:016x}-01"), "seal": ("x", bytes([number, 0xCE])),
                "express": ("t", number % 2 == 0), "count": ("I", -number), "serial": ("l", 2**40 + number),
                "total": ("D", (2, 1995 + number)), "at": ("T", 1_700_000_000 + number), "none": ("V", None),
                "shop": ("F", {"floor": ("I", number), "lines": ("A", [("S", "größe"), ("I", 1), ("F", {})])}),
            }  # fmt: skip
            plain = {"content_type": "application/json", "delivery_mode": 2, "message_id": f"pika-{number}"}
            given: dict[str, Any] = {
                "traceparent": typed["traceparent"][1], "seal": typed["seal"][1], "express": number % 2 == 0,
                "count": -number, "serial": 2**40 + number, "total": Decimal(1995 + number) / 100,
                "at": datetime.fromtimestamp(1_700_000_000 + number, UTC), "none": None,
                "shop": {"floor": number, "lines": ["größe", 1, {}]},
            }  # fmt: skip
            content = Content(f'{{"order": {number}}}'.encode(), plain | {"headers": typed})
            book.sent(1, "basic.publish", content, exchange="pika-orders", routing_key=key, mandatory=True)
            properties = pika.BasicProperties(headers=given, **plain)
            try:
                channel.basic_publish("pika-orders", key, content.body, properties, mandatory=True)
            except pika.exceptions.UnroutableError as error:
                assert len(error.messages) == 1
                back = error.messages[0].method
                named = {"exchange": back.exchange, "routing_key": back.routing_key, "reply_code": back.reply_code}
                book.told(1, "basic.return", Content(content.body, plain), **named)
            book.told(1, "basic.ack", delivery_tag=number, multiple=False)
            tables.append(wire.table(typed))
        connection.close()
        book.close("connection-close")
    must_hold(stage, *tables)
    assert [row["returned"] for row in book.confirms] == [False, True, False, True]
    stage.keep("confirms", "messages")
    stage.golden["counts"] = {"basic.publish": 4, "basic.return": 2, "basic.ack": 4}
