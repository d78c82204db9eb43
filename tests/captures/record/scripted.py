"""A server that says what the scenario wants said, for orders of answers that a broker cannot be made to give.

Client and server sit in one thread; TCP on loopback holds what one end has not read yet.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pamqp import commands

from tests.captures.record.broker import PORT
from tests.captures.record.peer import PROTOCOL_HEADER, Peer
from tests.captures.record.scenario import Stage

HOST = "127.0.0.2"  # so that the port can be AMQP's own while a broker runs on 127.0.0.1


@contextmanager
def listener() -> Iterator[socket.socket]:
    """A socket that clients can connect to."""
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((HOST, PORT))
        server.listen()
        yield server


def pair(
    stage: Stage, server: socket.socket, client: str, frame_max: int = 131072, source_port: int = 0
) -> tuple[Peer, Peer]:
    """A client and the server's end of its connection, not yet shaken hands."""
    near = stage.connect(client, HOST, frame_max=frame_max, source_port=source_port)
    far, _ = server.accept()
    return near, Peer(far, frame_max=frame_max)


def shake(
    client: Peer, server: Peer, channels: tuple[int, ...] = (1,), confirm: bool = False, heartbeat: int = 0
) -> None:
    """The whole handshake, with `channels` opened and, if wanted, in confirm mode."""
    client.socket.sendall(PROTOCOL_HEADER)
    server.receive()
    properties: Any = {"product": "scripted server", "capabilities": {"publisher_confirms": True, "basic.nack": True}}
    server.send(0, commands.Connection.Start(0, 9, properties, "PLAIN", "en_US"))
    client.wait(0, "connection.start")
    client.send(0, commands.Connection.StartOk({"product": "scripted peer"}, "PLAIN", "\0guest\0guest", "en_US"))
    server.wait(0, "connection.start-ok")
    server.send(0, commands.Connection.Tune(2047, client.frame_max, heartbeat))
    client.wait(0, "connection.tune")
    client.send(0, commands.Connection.TuneOk(2047, client.frame_max, heartbeat), commands.Connection.Open("/"))
    server.wait(0, "connection.open")
    server.send(0, commands.Connection.OpenOk())
    client.wait(0, "connection.open-ok")
    for number in channels:
        answer(client, server, number, commands.Channel.Open(), commands.Channel.OpenOk())
        if confirm:
            answer(client, server, number, commands.Confirm.Select(), commands.Confirm.SelectOk())


def answer(client: Peer, server: Peer, channel: int, request: object, response: object) -> None:
    """One request and its answer."""
    client.send(channel, request)
    server.drain(0.05)
    server.send(channel, response)
    client.receive()


def hang_up(client: Peer, server: Peer) -> None:
    """A polite end."""
    answer(client, server, 0, commands.Connection.Close(200, "bye", 0, 0), commands.Connection.CloseOk())
    client.socket.close()
    server.socket.close()
