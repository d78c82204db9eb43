"""Streams as other clients have them: who may not read or write, and a reader that falls behind."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Iterator

import rstream  # type: ignore[import-not-found,unused-ignore]

from tests.captures.record.stream_peer import StreamPeer
from tests.captures.record.theme_streams import NODE, STREAM_PORT, ready
from tests.dissector.stream import wire
from tests.tickets.record.stage import Ticket, ticket
from tests.tickets.record.theme_streaming import DELIVER, SUBSCRIBE, _closed, _consumer, _made, _played, _producer

HEAD = """const { connect, Offset } = require('rabbitmq-stream-js-client');
    const path = require('path'), inside = path.dirname(require.resolve('rabbitmq-stream-js-client'));
    // brokers before 3.11 take the question for versions for an unknown frame
    require(path.join(inside, 'connection.js')).Connection.prototype.exchangeCommandVersions = async () => true;
    const sleep = ms => new Promise(done => setTimeout(done, ms));
    const open = (name, user) => connect({hostname: '127.0.0.1', port: 5552, username: user, password: user,
        vhost: '/', heartbeat: 0, frameMax: 0, connectionName: name});
    (async () => { """
TAIL = " process.exit(); })().catch(error => { console.error(error); process.exit(1); });"


def _node(text: str) -> subprocess.Popen[bytes]:
    """A script of rabbitmq-stream-js-client."""
    return subprocess.Popen(["node", "-e", HEAD + text + TAIL], cwd=NODE)


@contextlib.contextmanager
def _user(stage: Ticket, name: str, configure: str, write: str, read: str) -> Iterator[None]:
    """A user with these permissions, whose password is its name."""
    stage.broker.control("add_user", name, name)
    stage.broker.control("set_permissions", name, configure, write, read)
    try:
        yield
    finally:
        stage.broker.control("delete_user", name)


@ticket
def stream_read_only_js(stage: Ticket) -> None:
    """A client whose user may only read wants to publish."""
    ready(stage)
    asyncio.run(_made(stage.name))
    script = f"""const client = await open('exporter', 'viewer');
        try {{ await client.declarePublisher({{stream: '{stage.name}'}}); }} catch (refused) {{}} await sleep(300);
        await client.close();"""
    with _user(stage, "viewer", "^$", "^$", ".*"), stage.sniff(ports=(STREAM_PORT,)):
        _node(script).wait(20)


@ticket
def stream_may_not_create_js(stage: Ticket) -> None:
    """The same client wants a stream that is not there, and may not make it."""
    ready(stage)
    script = f"""const client = await open('exporter', 'viewer');
        for (let turn = 0; turn < 2; turn++) {{
            try {{ await client.createStream({{stream: '{stage.name}', arguments: {{}}}}); }} catch (refused) {{}}
            await sleep(300); }}
        await client.close();"""
    with _user(stage, "viewer", "^$", "^$", ".*"), stage.sniff(ports=(STREAM_PORT,)):
        _node(script).wait(20)


@ticket
def stream_write_only(stage: Ticket) -> None:
    """A reader whose user may only write, by rstream: it tries three times."""
    ready(stage)
    asyncio.run(_made(stage.name))

    async def play() -> None:
        for _ in range(3):
            reader = rstream.Consumer(
                "127.0.0.1", username="feeder", password="feeder", connection_name="billing", recovery_strategy=None
            )
            await reader.start()
            with contextlib.suppress(BaseException):
                await reader.subscribe(stage.name, lambda *_: None)
            await _closed(reader)
            await asyncio.sleep(0.2)

    with _user(stage, "feeder", "^$", ".*", "^$"):
        _played(stage, play())


def _read_js(stage: Ticket, work: int) -> None:
    ready(stage)
    asyncio.run(_made(stage.name))
    script = f"""const client = await open('indexer', 'guest'), cell = new Int32Array(new SharedArrayBuffer(4));
        await client.declareConsumer({{stream: '{stage.name}', offset: Offset.first()}},
            () => Atomics.wait(cell, 0, 0, {work}));
        await sleep(5000); await client.close();"""
    writer = f"""const client = await open('metrics', 'guest');
        const publisher = await client.declarePublisher({{stream: '{stage.name}'}});
        for (let turn = 0; turn < 50; turn++) {{
            for (let n = 0; n < 5; n++) await publisher.send(Buffer.from('reading'));
            await publisher.flush(); await sleep(50); }}
        await client.close();"""
    with stage.sniff(ports=(STREAM_PORT,)):
        reader = _node(script)
        time.sleep(1)
        _node(writer).wait(30)
        reader.wait(30)


@ticket
def stream_behind_js(stage: Ticket) -> None:
    """A reader that works 24 ms on each record, a hundred of which come each second, and on nothing else meanwhile."""
    _read_js(stage, 24)


@ticket
def stream_abreast_js(stage: Ticket) -> None:
    """The same with a millisecond."""
    _read_js(stage, 1)


def _written(stage: Ticket, count: int, body: bytes) -> None:
    """Fifteen batches of five records each second."""

    async def write() -> None:
        writer = await _producer("metrics")
        for _ in range(count):
            await writer.send_batch(stage.name, [body] * 5)
            await asyncio.sleep(0.065)
        await _closed(writer)

    asyncio.run(write())


def _blocking(stage: Ticket, work: float) -> None:
    ready(stage)
    asyncio.run(_made(stage.name))

    async def read() -> None:
        reader = await _consumer("mailer")
        await reader.subscribe(stage.name, lambda *_: time.sleep(work), initial_credit=10)
        reading = asyncio.ensure_future(reader.run())
        await asyncio.sleep(5)
        await _closed(reader)
        reading.cancel()

    with stage.sniff(ports=(STREAM_PORT,)):
        reader = threading.Thread(target=lambda: asyncio.run(read()))
        reader.start()
        time.sleep(0.3)
        _written(stage, 50, b"mail")
        reader.join()


@ticket
def stream_blocked_loop(stage: Ticket) -> None:
    """A reader whose handler keeps its event loop for 30 ms, and reads nothing meanwhile; its credit is ten."""
    _blocking(stage, 0.03)


@ticket
def stream_quick_loop(stage: Ticket) -> None:
    """The same with 2 ms."""
    _blocking(stage, 0.002)


def _reading(stage: Ticket, pause: float) -> None:
    ready(stage)
    asyncio.run(_made(stage.name))
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)

    def read() -> None:
        connection.connect(("127.0.0.1", STREAM_PORT))
        reader = StreamPeer("archive", connection, stage.events)
        reader.login()
        reader.call(SUBSCRIBE, struct.pack(">B", 1) + wire.string(stage.name) + struct.pack(">HH", 1, 500))
        end = time.monotonic() + 5
        with contextlib.suppress(TimeoutError):
            while time.monotonic() < end:
                connection.settimeout(1)
                reader.wait(DELIVER)
                time.sleep(pause)
        connection.close()

    with stage.sniff(ports=(STREAM_PORT,)):
        reader = threading.Thread(target=read)
        reader.start()
        time.sleep(0.3)
        _written(stage, 50, b"r" * 150)
        reader.join()


@ticket
def stream_unread(stage: Ticket) -> None:
    """A reader with credit for 500 chunks, which does not read them from its small TCP buffer as they come."""
    _reading(stage, 0.3)


@ticket
def stream_read(stage: Ticket) -> None:
    """One that reads them, with the same buffer."""
    _reading(stage, 0.001)
