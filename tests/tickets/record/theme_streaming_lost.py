"""Streams whose records are gone before they are read, or read again; and those on a host that clients do not reach."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time
from collections.abc import Iterator
from typing import Any

import rstream  # type: ignore[import-not-found,unused-ignore]

from tests.captures.record.stream_peer import StreamPeer
from tests.captures.record.theme_streams import STREAM_PORT, peer, ready
from tests.dissector.stream import wire
from tests.tickets.record.stage import Ticket, ticket
from tests.tickets.record.theme_streaming import DELIVER, SUBSCRIBE, _asked, _closed, _consumer, _made, _producer
from tests.tickets.record.theme_streaming_others import _node

SHORT = {"max-length-bytes": 20000, "stream-max-segment-size-bytes": 5000}
"""Arguments of a stream that keeps some eighty of the records below."""
CREDIT = 9


def _written(stage: Ticket, arguments: dict[str, Any]) -> None:
    """A stream of 300 records of 200 bytes."""

    async def write() -> None:
        writer = await _producer("metrics")
        await writer.create_stream(stage.name, arguments=arguments)
        for _ in range(30):
            await writer.send_batch(stage.name, [rstream.AMQPMessage(body=b"m" * 200)] * 10)
            await asyncio.sleep(0.05)
        await _closed(writer)

    asyncio.run(write())


def _resumed_rstream(stage: Ticket, arguments: dict[str, Any]) -> None:
    ready(stage)

    async def read() -> None:
        reader = await _consumer("billing")
        from_41 = rstream.ConsumerOffsetSpecification(rstream.OffsetType.OFFSET, 41)
        await reader.subscribe(stage.name, lambda *_: None, offset_specification=from_41)
        reading = asyncio.ensure_future(reader.run())
        await asyncio.sleep(1.5)
        await _closed(reader)
        reading.cancel()

    with stage.sniff(ports=(STREAM_PORT,)):
        _written(stage, arguments)
        with contextlib.suppress(BaseException):
            asyncio.run(read())


@ticket
def stream_removed(stage: Ticket) -> None:
    """A reader by rstream comes back for what follows offset 40; the stream keeps 20 kB, and 60 kB were written."""
    _resumed_rstream(stage, SHORT)


@ticket
def stream_kept(stage: Ticket) -> None:
    """The same of a stream that keeps all."""
    _resumed_rstream(stage, {})


def _resumed_js(stage: Ticket, arguments: dict[str, Any]) -> None:
    ready(stage)
    script = f"""const client = await open('archive', 'guest');
        await client.declareConsumer({{stream: '{stage.name}', offset: Offset.offset(120n)}}, () => {{}});
        await sleep(1500); await client.close();"""
    with stage.sniff(ports=(STREAM_PORT,)):
        _written(stage, arguments)
        _node(script).wait(20)


@ticket
def stream_removed_js(stage: Ticket) -> None:
    """A reader by node.js asks for what follows offset 119."""
    _resumed_js(stage, SHORT)


@ticket
def stream_kept_js(stage: Ticket) -> None:
    """The same of a stream that keeps all."""
    _resumed_js(stage, {})


def _take(reader: StreamPeer, stream: str, offset: int) -> None:
    """Reads for a second from an offset on, with credit for each chunk."""
    reader.call(SUBSCRIBE, b"\1" + wire.string(stream) + wire.offset_spec(4, offset) + struct.pack(">H", 10))
    end = time.monotonic() + 1
    with contextlib.suppress(TimeoutError):
        while time.monotonic() < end:
            reader.connection.settimeout(1)
            reader.wait(DELIVER)
            reader.send(wire.frame(CREDIT, struct.pack(">BH", 1, 1)))
    reader.connection.settimeout(None)


def _resumed_peer(stage: Ticket, arguments: dict[str, Any]) -> None:
    ready(stage)
    with stage.sniff(ports=(STREAM_PORT,)):
        _written(stage, arguments)
        reader = peer(stage, "auditor")
        _take(reader, stage.name, 5)
        reader.connection.close()


@ticket
def stream_removed_peer(stage: Ticket) -> None:
    """A scripted reader asks for what follows offset 4."""
    _resumed_peer(stage, SHORT)


@ticket
def stream_kept_peer(stage: Ticket) -> None:
    """The same of a stream that keeps all."""
    _resumed_peer(stage, {})


@contextlib.contextmanager
def _named(stage: Ticket, host: str) -> Iterator[None]:
    """The broker gives clients this name of its host; the stream is made before."""
    ready(stage)
    asyncio.run(_made(stage.name))
    stage.broker.control("eval", f'application:set_env(rabbitmq_stream, advertised_host, "{host}").')
    try:
        with stage.sniff(ports=(STREAM_PORT,)):
            yield
    finally:
        stage.broker.control("eval", "application:unset_env(rabbitmq_stream, advertised_host).")


def _publishing_rstream(stage: Ticket, host: str) -> None:
    async def play() -> None:
        for _ in range(4):
            writer = await _producer("orders")
            with contextlib.suppress(Exception):
                await asyncio.wait_for(writer.send_wait(stage.name, b"order"), 2)
            await _closed(writer)
            await asyncio.sleep(1)

    with _named(stage, host), contextlib.suppress(BaseException):
        asyncio.run(play())


@ticket
def stream_unreached(stage: Ticket) -> None:
    """A publisher by rstream gets a host whose name it cannot resolve; its program tries again each second."""
    _publishing_rstream(stage, "rabbit-2.internal")


@ticket
def stream_reached(stage: Ticket) -> None:
    """The same with a name that it knows."""
    _publishing_rstream(stage, "localhost")


def _publishing_js(stage: Ticket, host: str) -> None:
    script = f"""for (let turn = 0; turn < 4; turn++) {{
        const client = await open('checkout', 'guest');
        try {{
            const publisher = await client.declarePublisher({{stream: '{stage.name}'}});
            await publisher.send(Buffer.from('order')); await publisher.flush();
        }} catch (unknown) {{}}
        await sleep(200); try {{ await client.close(); }} catch (gone) {{}} await sleep(1000); }}"""
    with _named(stage, host):
        _node(script).wait(30)


@ticket
def stream_unreached_js(stage: Ticket) -> None:
    """A publisher by node.js gets such a host."""
    _publishing_js(stage, "stream-node-0.cluster.local")


@ticket
def stream_reached_js(stage: Ticket) -> None:
    """The same with a name that it knows."""
    _publishing_js(stage, "localhost")


def _reading_peer(stage: Ticket, host: str) -> None:
    with _named(stage, host):
        for _ in range(4):
            asking = peer(stage, "report")
            answer = _asked(asking, stage.name)
            size = struct.unpack_from(">H", answer, 10)[0]
            host_name = answer[12 : 12 + size].decode()
            with contextlib.suppress(OSError):
                socket.create_connection((host_name, STREAM_PORT), timeout=1).close()
                _take(peer(stage, "report"), stage.name, 0)
            asking.close()
            time.sleep(0.8)


@ticket
def stream_unreached_peer(stage: Ticket) -> None:
    """A scripted reader asks where the stream is, and finds nobody there."""
    _reading_peer(stage, "10.255.0.7")


@ticket
def stream_reached_peer(stage: Ticket) -> None:
    """The same with a host that is there."""
    _reading_peer(stage, "127.0.0.1")


def _filled(stage: Ticket) -> None:
    """The stream has 300 records."""
    ready(stage)
    _written(stage, {})


def _again_rstream(stage: Ticket, stores: bool) -> None:
    """A program reads for a second, and starts again, four times: from what it stored, or from the first record."""

    async def read(offset: int) -> int:
        reader = await _consumer("projection")
        last = [offset]
        at = rstream.ConsumerOffsetSpecification(rstream.OffsetType.OFFSET, offset)

        def take(_: Any, context: Any) -> None:
            last[0] = context.offset + 1

        await reader.subscribe(stage.name, take, offset_specification=at)
        reading = asyncio.ensure_future(reader.run())
        await asyncio.sleep(1)
        await _closed(reader)
        reading.cancel()
        return last[0]

    _filled(stage)
    with stage.sniff(ports=(STREAM_PORT,)):
        offset = 0
        for _ in range(4):
            with contextlib.suppress(BaseException):
                reached = asyncio.run(read(offset))
                offset = reached if stores else 0


@ticket
def stream_read_again(stage: Ticket) -> None:
    """A program by rstream that stores no offset begins at the first record each time that it starts."""
    _again_rstream(stage, stores=False)


@ticket
def stream_read_on(stage: Ticket) -> None:
    """The same, from the record after the last one that it got."""
    _again_rstream(stage, stores=True)


def _again_js(stage: Ticket, offsets: str) -> None:
    _filled(stage)
    script = f"""let next = 0n; for (let turn = 0; turn < 4; turn++) {{
        const client = await open('search-index', 'guest');
        await client.declareConsumer({{stream: '{stage.name}', offset: {offsets}}},
            message => {{ next = message.offset + 1n; }});
        await sleep(800); await client.close(); await sleep(300); }}"""
    with stage.sniff(ports=(STREAM_PORT,)):
        _node(script).wait(30)


@ticket
def stream_read_again_js(stage: Ticket) -> None:
    """The same by node.js, which asks for the first record."""
    _again_js(stage, "Offset.first()")


@ticket
def stream_read_on_js(stage: Ticket) -> None:
    """The same, from the record after the last one that it got."""
    _again_js(stage, "Offset.offset(next)")


def _again_peer(stage: Ticket, offsets: tuple[int, ...]) -> None:
    _filled(stage)
    with stage.sniff(ports=(STREAM_PORT,)):
        for offset in offsets:
            reader = peer(stage, "ledger")
            _take(reader, stage.name, offset)
            reader.connection.close()
            time.sleep(0.3)


@ticket
def stream_read_again_peer(stage: Ticket) -> None:
    """A scripted reader begins at the same offset each time."""
    _again_peer(stage, (50, 50, 50))


@ticket
def stream_read_on_peer(stage: Ticket) -> None:
    """Another one at the end, where nothing is new."""
    _again_peer(stage, (0, 300, 300))
