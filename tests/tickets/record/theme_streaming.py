"""Streams: those that are not there, or go; subscriptions that fall behind; publishers that repeat themselves."""

from __future__ import annotations

import asyncio
import contextlib
import struct
import time
from collections.abc import Coroutine
from typing import Any

import rstream  # type: ignore[import-not-found,unused-ignore]

from tests.captures.record.stream_peer import StreamPeer
from tests.captures.record.theme_streams import STREAM_PORT, peer, ready
from tests.dissector.stream import wire
from tests.tickets.record.stage import Ticket, ticket

METADATA, CREATE, SUBSCRIBE, DELIVER = 15, 13, 7, 8
LOGIN = {"username": "guest", "password": "guest"}


async def _producer(name: str) -> Any:
    made = rstream.Producer(
        "127.0.0.1", connection_name=name, default_batch_publishing_delay=0.05, recovery_strategy=None, **LOGIN
    )
    await made.start()
    return made


async def _consumer(name: str) -> Any:
    made = rstream.Consumer("127.0.0.1", connection_name=name, recovery_strategy=None, **LOGIN)
    await made.start()
    return made


async def _made(name: str) -> None:
    producer = await _producer("setup")
    await producer.create_stream(name, exists_ok=True)
    await producer.close()


def _played(stage: Ticket, play: Coroutine[Any, Any, None]) -> None:
    with stage.sniff(ports=(STREAM_PORT,)), contextlib.suppress(BaseException):
        asyncio.run(play)


async def _closed(*clients: Any) -> None:
    for client in clients:
        with contextlib.suppress(BaseException):
            await asyncio.wait_for(client.close(), 2)


def _asked(client: StreamPeer, stream: str) -> bytes:
    client.number += 1
    client.send(wire.request(METADATA, client.number, struct.pack(">I", 1) + wire.string(stream)))
    return client.wait(METADATA).body


@ticket
def stream_absent(stage: Ticket) -> None:
    """A reader whose stream has a mistyped name tries three times."""
    ready(stage)

    async def play() -> None:
        for _ in range(3):
            reader = await _consumer("reporter")
            with contextlib.suppress(BaseException):
                await reader.subscribe("ordrs", lambda *_: None)
            await _closed(reader)

    _played(stage, play())


@ticket
def stream_absent_peer(stage: Ticket) -> None:
    """A client asks for a stream that does not exist, and then subscribes to it all the same."""
    ready(stage)
    with stage.sniff(ports=(STREAM_PORT,)):
        client = peer(stage, "auditor")
        _asked(client, "ordrs")
        client.call(SUBSCRIBE, struct.pack(">B", 1) + wire.string("ordrs") + struct.pack(">HH", 1, 10))
        client.close()


@ticket
def stream_made(stage: Ticket) -> None:
    """A client asks for a stream, creates it where it is not there, and asks again."""
    ready(stage)
    with stage.sniff(ports=(STREAM_PORT,)):
        client = peer(stage, "auditor")
        _asked(client, stage.name)
        client.call(CREATE, wire.string(stage.name) + struct.pack(">I", 0))
        _asked(client, stage.name)
        client.close()


@ticket
def stream_deleted(stage: Ticket) -> None:
    """A stream is deleted while one client writes to it and another one reads."""
    ready(stage)
    asyncio.run(_made(stage.name))

    async def play() -> None:
        reader, writer = await _consumer("viewer"), await _producer("writer")
        await reader.subscribe(stage.name, lambda *_: None)
        reading = asyncio.ensure_future(reader.run())
        for _ in range(10):
            await writer.send(stage.name, b"reading")
            await asyncio.sleep(0.05)
        erase = f'rabbit_stream_manager:delete(<<"/">>, <<"{stage.name}">>, <<"guest">>).'
        await asyncio.to_thread(stage.broker.control, "eval", erase)
        for _ in range(10):
            with contextlib.suppress(BaseException):
                await asyncio.wait_for(writer.send(stage.name, b"reading"), 1)
            await asyncio.sleep(0.05)
        await asyncio.sleep(1)
        await _closed(writer, reader)
        reading.cancel()

    _played(stage, play())


def _lagging(stage: Ticket, work: float) -> None:
    ready(stage)
    asyncio.run(_made(stage.name))

    async def play() -> None:
        reader, writer = await _consumer("indexer"), await _producer("metrics")
        first = rstream.ConsumerOffsetSpecification(rstream.OffsetType.FIRST, None)

        async def take(*_: Any) -> None:
            await asyncio.sleep(work)

        await reader.subscribe(stage.name, take, initial_credit=2, offset_specification=first)
        reading = asyncio.ensure_future(reader.run())
        for _ in range(80):
            await writer.send_batch(stage.name, [b"r" * 20] * 5)
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.5)
        await _closed(writer, reader)
        reading.cancel()

    _played(stage, play())


@ticket
def stream_behind(stage: Ticket) -> None:
    """A reader that needs 24 ms for a record, of which it gets 100 a second: it gives credit when it is done."""
    _lagging(stage, 0.024)


@ticket
def stream_abreast(stage: Ticket) -> None:
    """The same reader with a millisecond for each."""
    _lagging(stage, 0.001)


def _credited(stage: Ticket, pause: float, credit: int) -> None:
    ready(stage)
    asyncio.run(_made(stage.name))

    async def write() -> None:
        writer = await _producer("feed")
        for _ in range(100):
            await writer.send_batch(stage.name, [b"r" * 20] * 5)
            await asyncio.sleep(0.04)
        await _closed(writer)

    def read() -> None:
        reader = peer(stage, "dash")
        reader.call(SUBSCRIBE, struct.pack(">B", 1) + wire.string(stage.name) + struct.pack(">HH", 1, credit))
        end = time.monotonic() + 5
        while time.monotonic() < end:
            with contextlib.suppress(TimeoutError):
                reader.connection.settimeout(1)
                reader.wait(DELIVER)
                time.sleep(pause)
                reader.send(wire.frame(9, struct.pack(">BH", 1, 1)))
        reader.connection.close()

    async def play() -> None:
        reading = asyncio.create_task(asyncio.to_thread(read))
        await asyncio.sleep(0.2)
        await write()
        await reading

    _played(stage, play())


@ticket
def stream_behind_peer(stage: Ticket) -> None:
    """A reader that gives credit for a chunk when it has worked on it for 150 ms; two come meanwhile."""
    _credited(stage, 0.15, 1)


@ticket
def stream_abreast_peer(stage: Ticket) -> None:
    """One that needs 2 ms, with credit for ten chunks."""
    _credited(stage, 0.002, 10)


@ticket
def stream_repeats(stage: Ticket) -> None:
    """An import that is begun again, with the ids of the first time."""
    ready(stage)
    asyncio.run(_made(stage.name))

    async def play() -> None:
        for _ in range(2):
            writer = await _producer("importer")
            rows = [rstream.RawMessage(b"row", publishing_id=number) for number in range(1, 41)]
            await writer.send_batch(stage.name, rows, publisher_name="importer")
            await asyncio.sleep(0.5)
            await _closed(writer)

    _played(stage, play())


@ticket
def stream_goes_on(stage: Ticket) -> None:
    """An import that is begun again behind the last id that the broker has."""
    ready(stage)
    asyncio.run(_made(stage.name))

    async def play() -> None:
        for turn in range(2):
            writer = await _producer("importer")
            rows = [rstream.RawMessage(b"row", publishing_id=40 * turn + number) for number in range(1, 41)]
            await writer.send_batch(stage.name, rows, publisher_name="importer")
            await asyncio.sleep(0.5)
            await _closed(writer)

    _played(stage, play())


@ticket
def stream_offsets(stage: Ticket) -> None:
    """A consumer asks for its offset, of which there is none, and stores it again and again; it keeps up."""
    ready(stage)
    asyncio.run(_made(stage.name))

    async def play() -> None:
        meter, dash = await _producer("meter"), await _consumer("dash")
        count = 0

        async def work(_: Any, context: Any) -> None:
            nonlocal count
            count += 1
            if count % 20 == 0:
                await dash.store_offset(stage.name, "dash", context.offset)

        with contextlib.suppress(Exception):
            await dash.query_offset(stage.name, "dash")
        await dash.subscribe(stage.name, work)
        reading = asyncio.ensure_future(dash.run())
        for number in range(60):
            await meter.send(stage.name, b"reading %d" % number)
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.5)
        reading.cancel()
        await _closed(dash, meter)

    _played(stage, play())
