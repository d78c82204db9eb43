"""Streams: what client libraries do, every request and error that the broker knows, chunks of all kinds."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pika  # type: ignore[import-untyped]
import rstream  # type: ignore[import-not-found,unused-ignore]
from rstream import compression, connection  # type: ignore[import-not-found,unused-ignore]

from tests.captures.record.broker import PORT
from tests.captures.record.ledger import body_hash
from tests.captures.record.scenario import Stage, scenario
from tests.captures.record.stream_peer import StreamPeer
from tests.dissector.stream import wire

STREAM_PORT = 5552
NODE = Path(os.environ.get("STREAM_JS", "/tmp/stream-node"))


def ready(stage: Stage) -> None:
    """The broker takes streams."""
    stage.broker.plugin("rabbitmq_stream", STREAM_PORT)


def peer(stage: Stage, client: str, login: bool = True) -> StreamPeer:
    """A scripted client."""
    plain = socket.create_connection(("127.0.0.1", STREAM_PORT))
    stage.address(client, plain.getsockname(), plain.getpeername())
    made = StreamPeer(client, plain, stage.events)
    if login:
        assert made.login() == 1
    return made


def record(kind: str, client: str, stream: str, body: bytes, **facts: Any) -> dict[str, Any]:
    """A row of the golden's records."""
    row = {"kind": kind, "client": client, "stream": stream} | facts
    return row | {"body_size": len(body), "body_hash": body_hash(body)}


@contextmanager
def watched(stage: Stage) -> Iterator[list[str]]:
    """Notes the addresses of rstream's connections; yields the names of their roles, which may be set before."""
    names: list[str] = []
    plain = connection.Connection.open

    async def opening(self: Any) -> None:
        await plain(self)
        name = f"rstream-{len(stage._addresses) + 1}"
        names.append(name)
        writer = self._writer
        stage.address(name, writer.get_extra_info("sockname"), writer.get_extra_info("peername"))

    decode = connection.decode_frame

    def marked(data: bytes, *rest: Any) -> Any:
        """The client waits for a response bit that brokers before 3.11.1 do not set for route and partitions."""
        return decode((b"\x80" if data[:2] in (b"\0\x18", b"\0\x19") else data[:1]) + data[1:], *rest)

    connection.Connection.open = opening  # type: ignore[method-assign,unused-ignore]
    connection.decode_frame = marked
    try:
        yield names
    finally:
        connection.Connection.open = plain  # type: ignore[method-assign,unused-ignore]
        connection.decode_frame = decode


@scenario(
    "rstream: named producer, single and batched, sub-batches plain and gzip; a consumer with a credit of 2; offsets"
)
def stream_rstream(stage: Stage) -> None:
    ready(stage)
    rows: list[dict[str, Any]] = []
    bodies = [f"order {n} ".encode() * (n + 1) for n in range(30)]

    def note(what: str, **facts: Any) -> None:
        stage.events.append({"t_ns": time.time_ns(), "client": "rstream", "what": what} | facts)

    async def play() -> None:
        async def confirmed(status: Any) -> None:
            note("confirmed", publishing_id=status.message_id, confirmed=status.is_confirmed)

        login: dict[str, Any] = {"host": "127.0.0.1", "port": STREAM_PORT, "username": "guest", "password": "guest"}
        async with rstream.Producer(**login, default_batch_publishing_delay=0.1) as producer:
            await producer.create_stream("orders", exists_ok=True, arguments={"max-length-bytes": 10_000_000})
            for body in bodies[:3]:
                number = await producer.send_wait("orders", body, publisher_name="shop")
                rows.append(record("publish", "shop", "orders", body, publish_seq=number))
            await producer.send_batch("orders", bodies[3:20], "shop", confirmed)
            for k, body in enumerate(bodies[3:20], 4):
                rows.append(record("publish", "shop", "orders", body, publish_seq=k))
            await asyncio.sleep(0.5)
            for begin, kind in ((20, compression.CompressionType.No), (25, compression.CompressionType.Gzip)):
                part = bodies[begin : begin + 5]
                await producer.send_sub_entry("orders", part, kind, "shop", confirmed)
                await asyncio.sleep(0.5)
                rows.extend(record("publish", "shop", "orders", body, publish_seq=begin + 5) for body in part)
        got: list[bytes] = []
        async with rstream.Consumer(**login) as consumer:
            enough = asyncio.Event()

            async def on_message(message: bytes, context: Any) -> None:
                got.append(bytes(message))
                rows.append(record("deliver", "reader", "orders", got[-1], offset=context.offset))
                if len(got) == len(bodies):
                    await consumer.store_offset("orders", "reader", context.offset)
                    enough.set()

            await consumer.subscribe(
                "orders", on_message, decoder=bytes, initial_credit=2, subscriber_name="reader",
                offset_specification=rstream.ConsumerOffsetSpecification(rstream.OffsetType.FIRST, None),
            )  # fmt: skip
            await asyncio.wait_for(enough.wait(), 20)
            note("stored", offset=await consumer.query_offset("orders", "reader"))
            await consumer.unsubscribe(next(iter(consumer._subscribers)))
        assert got == bodies

    with stage.sniff(ports=(STREAM_PORT,)), watched(stage):
        asyncio.run(play())
    stage.golden["records"] = rows


@scenario("rstream: a super stream written by hash and read with a credit of 1; a named publisher that sends ids again")
def stream_super(stage: Stage) -> None:
    ready(stage)
    stage.broker.streams("add_super_stream", "invoices", "--partitions", "3")
    rows: list[dict[str, Any]] = []
    login: dict[str, Any] = {"host": "127.0.0.1", "port": STREAM_PORT, "username": "guest", "password": "guest"}
    first = rstream.ConsumerOffsetSpecification(rstream.OffsetType.FIRST, None)

    async def key(message: Any) -> str:
        return str(message.application_properties["id"])

    async def invoices() -> None:
        async with rstream.SuperStreamProducer(**login, super_stream="invoices", routing_extractor=key) as producer:
            for n in range(12):
                body = b"invoice %d" % n
                properties = rstream.Properties(message_id=f"i-{n}", group_id="invoices")
                message = rstream.AMQPMessage(
                    body=body, application_properties={"id": str(n), "n": n}, properties=properties
                )
                await producer.send(message)
                rows.append(record("publish", "invoices", "invoices", body, message_id=f"i-{n}"))
            await asyncio.sleep(1)
        enough = asyncio.Event()
        got: list[bytes] = []

        async def on_message(message: Any, context: Any) -> None:
            got.append(bytes(message.body))
            told = {"offset": context.offset, "message_id": message.properties.message_id.decode()}
            rows.append(record("deliver", "reader", context.stream, got[-1], **told))
            if len(got) == 12:
                enough.set()

        async with rstream.SuperStreamConsumer(**login, super_stream="invoices") as consumer:
            await consumer.subscribe(
                on_message, decoder=rstream.amqp_decoder, initial_credit=1, offset_specification=first
            )
            await asyncio.wait_for(enough.wait(), 20)

    async def twice() -> None:
        """Ids 1 to 5, and from another connection 4 to 7: of these the broker keeps two."""
        bodies = [b"sent %d" % n for n in range(8)]
        for numbers, create in ((range(1, 6), True), (range(4, 8), False)):
            async with rstream.Producer(**login) as producer:
                if create:
                    await producer.create_stream("twice")
                for n in numbers:
                    message = rstream.RawMessage(bodies[n], publishing_id=n)
                    await producer.send_wait("twice", message, publisher_name="shop")
                    kept = create or n > 5
                    rows.append(record("publish", "shop", "twice", bodies[n], publish_seq=n, deduplicated=not kept))
        got: list[bytes] = []
        enough = asyncio.Event()

        async def on_message(message: bytes, context: Any) -> None:
            got.append(bytes(message))
            rows.append(record("deliver", "reader", "twice", got[-1], offset=context.offset))
            if len(got) == 7:
                enough.set()

        async with rstream.Consumer(**login) as consumer:
            await consumer.subscribe("twice", on_message, decoder=bytes, initial_credit=1, offset_specification=first)
            await asyncio.wait_for(enough.wait(), 20)
            await asyncio.sleep(0.5)
        assert got == bodies[1:], got

    async def play() -> None:
        await invoices()
        await twice()

    with stage.sniff(ports=(STREAM_PORT,)), watched(stage):
        asyncio.run(play())
    stage.golden["records"] = rows


@scenario("rabbitmq-stream-js-client: AMQP 1.0 messages with properties and annotations, a gzip sub-batch, a consumer")
def stream_js(stage: Stage) -> None:
    ready(stage)
    rows: list[dict[str, Any]] = []
    environment = {"PATH": os.environ["PATH"], "NODE_PATH": str(NODE / "node_modules"), "HOME": "/nonexistent"}
    script = Path(__file__).parent / "stream_js.cjs"
    with stage.sniff(ports=(STREAM_PORT,)):
        run = subprocess.run(
            ["node", str(script), str(STREAM_PORT)],
            env=environment, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert run.returncode == 0, run.stderr
    for line in run.stdout.splitlines():
        said = json.loads(line)
        if "local" in said:
            stage.address(f"js-{len(stage._addresses) + 1}", said["local"], said["remote"])
            continue
        stage.events.append(dict(said))
        if said["text"].startswith("packed"):
            del said["offset"]  # the client counts from 0 in sub-batches
        if said["what"] in ("publish", "deliver"):
            rows.append({"kind": said.pop("what")} | {k: v for k, v in said.items() if k != "t_ns"})
    assert len([row for row in rows if row["kind"] == "deliver"]) == 8
    stage.golden["records"] = rows


def attempt(stage: Stage, client: str, *data: bytes, login: bool = True) -> None:
    """A connection that says something and waits for what comes of it."""
    made = peer(stage, client, login)
    made.send(*data)
    while made.next() is not None:
        if made.events[-1]["key"] == 22:
            made.send(wire.response(22, 1, 1))
    made.connection.close()


@scenario("scripted client: every request that the broker knows and what it answers; super streams; a stream deleted")
def stream_calls(stage: Stage) -> None:
    ready(stage)
    stage.broker.streams("add_super_stream", "inv", "--partitions", "3")
    codes: dict[str, int] = {}
    with stage.sniff(ports=(STREAM_PORT,)):
        made = peer(stage, "caller")

        def call(name: str, key: int, body: bytes) -> bytes:
            codes[name], rest = made.call(key, body)
            return rest

        spec = wire.string("calls")
        call("create", 13, spec + wire.table({"max-age": "1h"}))
        call("create again", 13, spec + wire.table({"max-age": "1h"}))
        call("create otherwise", 13, spec + wire.table({"max-age": "2h"}))
        call("create without a name", 13, wire.string("") + wire.table({}))
        call("declare", 1, b"\x05" + wire.string("ref") + spec)
        call("declare the id again", 1, b"\x05" + wire.string("other") + spec)
        call("declare for no stream", 1, b"\x06" + wire.string("") + wire.string("nosuch"))
        made.send(wire.publish(5, [(n, wire.simple(b"m%d" % n)) for n in (5, 6, 7)]))
        made.wait(3)
        made.send(wire.publish(5, [(n, wire.simple(b"again %d" % n)) for n in (6, 7, 8)]))
        made.wait(3)
        made.wait(3)
        made.send(wire.publish(9, [(n, wire.simple(b"nobody")) for n in (1, 2)]))
        made.wait(4)
        assert call("sequence", 5, wire.string("ref") + spec) == struct.pack(">Q", 8)
        call("sequence of no stream", 5, wire.string("ref") + wire.string("nosuch"))
        call("subscribe", 7, b"\x07" + spec + wire.offset_spec(4, 1) + struct.pack(">H", 10))
        made.wait(8)
        call("subscribe again", 7, b"\x07" + spec + wire.offset_spec(1) + struct.pack(">H", 10))
        call("subscribe to none", 7, b"\x08" + wire.string("nosuch") + wire.offset_spec(5, 0) + struct.pack(">H", 1))
        made.send(wire.frame(9, struct.pack(">BH", 7, 3)))
        made.send(wire.frame(9, struct.pack(">BH", 99, 1)))
        made.wait(9)
        made.send(wire.frame(10, wire.string("cons1") + spec + struct.pack(">Q", 2)))
        time.sleep(0.5)
        assert call("offset", 11, wire.string("cons1") + spec) == struct.pack(">Q", 2)
        call("offset of nobody", 11, wire.string("nobody") + spec)
        call("unsubscribe", 12, b"\x07")
        call("unsubscribe again", 12, b"\x07")
        call("delete publisher", 6, b"\x05")
        call("delete publisher again", 6, b"\x05")
        made.number += 1
        made.send(wire.request(15, made.number, wire.strings(["calls", "nosuch"])))
        made.wait(15)
        call("partitions", 25, wire.string("inv"))
        call("route", 24, wire.string("1") + wire.string("inv"))
        call("route nowhere", 24, wire.string("none") + wire.string("inv"))
        call("partitions of none", 25, wire.string("nosuch"))
        call("declare a name", 1, b"\x05" + wire.string("ref") + spec)
        call("delete", 14, spec)
        made.wait(16)
        call("delete again", 14, spec)
        made.send(wire.HEARTBEAT)
        made.close()
    stage.golden["codes"] = codes
    assert codes["create again"] == 5 and codes["route"] == 1, codes


@scenario("scripted clients: logins that fail, frames that the broker does not know, and how it ends such connections")
def stream_errors(stage: Stage) -> None:
    ready(stage)
    with stage.sniff(ports=(STREAM_PORT,)):
        for client, data in (("wrong-password", b"\0guest\0wr0ng-pw"), ("malformed", b"guest")):
            made = peer(stage, client, login=False)
            made.login(data)
            while made.next() is not None:
                pass
        made = peer(stage, "no-vhost", login=False)
        assert made.login(vhost="nosuch") == 12
        while made.next() is not None:
            pass
        for client, frame in (
            ("unknown-command", wire.frame(0x63, b"what?")),
            ("unknown-version", wire.publish_2(1, [(1, "f", b"m")])),
            ("later-command", wire.request(28, 9, wire.string("s"))),
            ("versions", wire.request(27, 9, struct.pack(">I3H", 1, 8, 1, 2))),
            ("unreadable", wire.request(13, 9, b"\xff\xff")),
            ("too-short", struct.pack(">I", 1) + b"\0"),
            ("cut-entries", wire.publish(1, [(1, wire.simple(b"message"))], count=1)[:-3].replace(
                struct.pack(">I", 28), struct.pack(">I", 25), 1
            )),
        ):  # fmt: skip
            attempt(stage, client, frame)
        attempt(stage, "before-login", wire.frame(0x63, b"what?"), login=False)
    stage.golden["secrets"] = ["wr0ng-pw"]


@scenario("scripted clients: chunks of all kinds with trailers (chunk_selector all), sub-batches, a credit of 1, AMQP")
def stream_chunks(stage: Stage) -> None:
    ready(stage)
    rows: list[dict[str, Any]] = []
    with stage.sniff(ports=(STREAM_PORT,)):
        writer = peer(stage, "writer")
        spec = wire.string("chunks")
        assert writer.call(13, spec + wire.table({}))[0] == 1
        assert writer.call(1, b"\x00" + wire.string("ref") + spec)[0] == 1
        number, offset, kinds = 0, 0, []

        def written(bodies: list[bytes], *entries: bytes) -> None:
            nonlocal number, offset
            first = number
            parts = []
            for entry in entries:
                number += 1
                parts.append((number, entry))
            writer.send(wire.publish(0, parts))
            writer.wait(3)
            for k, body in enumerate(bodies):
                seq = first + 1 + (k if len(entries) > 1 else 0)
                rows.append(record("publish", "writer", "chunks", body, publish_seq=seq))
                kinds.append(body)

        written([b"one"], wire.simple(b"one"))
        written([b"two", b"", b"x" * 5000], wire.simple(b"two"), wire.simple(b""), wire.simple(b"x" * 5000))
        inner = [b"a", b"bb", b"ccc"]
        written(inner, wire.sub_batch(wire.messages(inner), 3))
        packed = [b"zip " * 100, b"zap " * 100]
        plain = wire.messages(packed)
        written(packed, wire.sub_batch(gzip.compress(plain, mtime=0), 2, 1, len(plain)))
        writer.send(wire.frame(10, wire.string("cons1") + spec + struct.pack(">Q", 4)))
        time.sleep(0.5)
        with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", PORT)) as broker:
            channel = broker.channel()
            channel.confirm_delivery()
            properties = pika.BasicProperties(
                content_type="text/plain", message_id="m-1", headers={"n": 5, "s": "text"}, priority=3, delivery_mode=2,
            )  # fmt: skip
            channel.basic_publish("", "chunks", b"by AMQP", properties)
        for client, selector in (("reader", {}), ("all", {"chunk_selector": "all"})):
            reader = peer(stage, client)
            body = b"\x01" + spec + wire.offset_spec(1) + struct.pack(">H", 1) + wire.table(selector)
            assert reader.call(7, body)[0] == 1
            end = time.monotonic() + 2
            reader.connection.settimeout(0.7)
            while time.monotonic() < end:
                try:
                    reader.wait(8)
                except TimeoutError:
                    break
                reader.send(wire.frame(9, struct.pack(">BH", 1, 1)))
            reader.connection.settimeout(15)
            reader.close()
        writer.close()
    stage.golden["records"] = rows


@scenario("scripted clients: a consumer behind 62 records that gives credit late; ids that are twice in a frame")
def stream_lag(stage: Stage) -> None:
    ready(stage)
    spec = wire.string("lag")
    with stage.sniff(ports=(STREAM_PORT,)):
        writer = peer(stage, "writer")
        assert writer.call(13, spec + wire.table({}))[0] == 1
        for publisher, reference in ((0, ""), (1, "again")):
            assert writer.call(1, bytes([publisher]) + wire.string(reference) + spec)[0] == 1
        for number in range(0, 60, 3):
            writer.send(wire.publish(0, [(number + k, wire.simple(b"record %d" % (number + k))) for k in range(3)]))
            writer.wait(3)
            time.sleep(0.01)
        writer.send(wire.publish(1, [(1, wire.simple(b"a")), (1, wire.simple(b"b")), (2, wire.simple(b"c"))]))
        told = 0
        while told < 3:
            told += int.from_bytes(writer.wait(3).body[1:5], "big")
        reader = peer(stage, "reader")
        body = b"\x01" + spec + wire.offset_spec(1) + struct.pack(">H", 1) + wire.table({})
        assert reader.call(7, body)[0] == 1
        reader.connection.settimeout(1)
        chunks = 0
        while True:
            try:
                reader.wait(8)
            except TimeoutError:
                break
            chunks += 1
            time.sleep(0.03)
            reader.send(wire.frame(9, struct.pack(">BH", 1, 1)))
        reader.connection.settimeout(15)
        reader.close()
        writer.close()
    stage.golden["lag"] = {"stored": 62, "dropped": [1], "chunks": chunks}


@scenario("rstream: a slow consumer with a credit of 1 behind 120 records; a named and a nameless producer repeat ids")
def stream_behind(stage: Stage) -> None:
    ready(stage)
    login: dict[str, Any] = {"host": "127.0.0.1", "port": STREAM_PORT, "username": "guest", "password": "guest"}

    async def play() -> None:
        async with rstream.Producer(**login) as producer:
            await producer.create_stream("behind")
            for begin in range(0, 120, 10):
                await producer.send_batch("behind", [b"record %d" % n for n in range(begin, begin + 10)])
                await asyncio.sleep(0.02)
            repeated = [rstream.RawMessage(b"again %d" % k, publishing_id=n) for k, n in enumerate((1001, 1001, 1002))]
            await producer.send_batch("behind", repeated)  # nameless: all are kept
            await asyncio.sleep(0.3)
        async with rstream.Producer(**login) as producer:
            repeated = [rstream.RawMessage(b"named %d" % k, publishing_id=n) for k, n in enumerate((1, 1, 2))]
            await producer.send_batch("behind", repeated, "shop")
            await asyncio.sleep(0.3)
        seen: set[int] = set()
        enough = asyncio.Event()

        async def on_message(message: bytes, context: Any) -> None:
            seen.add(context.offset)
            await asyncio.sleep(0.002)
            if len(seen) == 125:
                enough.set()

        first = rstream.ConsumerOffsetSpecification(rstream.OffsetType.FIRST, None)
        async with rstream.Consumer(**login) as consumer:
            await consumer.subscribe("behind", on_message, decoder=bytes, initial_credit=1, offset_specification=first)
            await asyncio.wait_for(enough.wait(), 20)
        assert len(seen) == 125, len(seen)

    with stage.sniff(ports=(STREAM_PORT,)), watched(stage):
        asyncio.run(play())
    stage.golden["lag"] = {"stored": 125, "dropped": [1]}
