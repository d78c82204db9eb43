"""One end of an AMQP 0-9-1 connection on a plain socket: it sends exactly what a script says, when it says so.

What arrives is decoded by pamqp, which shares nothing with the code under test.
"""

from __future__ import annotations

import re
import socket
import struct
import time
from collections.abc import Callable, Mapping
from typing import Any

import pamqp.body
import pamqp.exceptions
import pamqp.frame
import pamqp.header
import pamqp.heartbeat
from pamqp import commands

from tests.captures.record import wire
from tests.captures.record.ledger import Content, Ledger

PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
CAPABILITIES = {
    "publisher_confirms": True, "basic.nack": True, "consumer_cancel_notify": True, "connection.blocked": True,
    "authentication_failure_close": True, "exchange_exchange_bindings": True,
}  # fmt: skip


def method_name(command: Any) -> str:
    """`Basic.GetOk` as the specification spells it: `basic.get-ok`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", command.name).lower()


def _arguments(command: Any) -> dict[str, Any]:
    names = {"exchange_type": "type", "nowait": "no_wait"}
    return {names.get(name, name): item for name, item in command if name not in ("response", "ticket", "new_secret")}


def plain(properties: Any) -> dict[str, Any]:
    """The properties pamqp has decoded, but for headers, whose type letters it does not keep."""
    known = {name: item for name, item in properties if item is not None and name not in ("headers", "message_type")}
    if not known.get("cluster_id"):
        known.pop("cluster_id", None)  # pamqp gives an empty one where there is none
    if properties.message_type is not None:
        known["type"] = properties.message_type
    if "timestamp" in known:
        known["timestamp"] = int(known["timestamp"].timestamp())
    return known


class Peer:
    """One end; with a ledger when it is the client.

    Args:
        connection: the connected socket.
        ledger: the client's book, or None for a scripted server.
        frame_max: for cutting bodies.
    """

    def __init__(self, connection: socket.socket, ledger: Ledger | None = None, frame_max: int = 131072) -> None:
        self.socket = connection
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.ledger = ledger
        self.frame_max = frame_max
        self.port = connection.getsockname()[1]
        self._received = b""
        self._queued: list[bytes] = []
        self._contents: dict[int, list[Any]] = {}
        self.heartbeats = 0

    @property
    def book(self) -> Ledger:
        """The client's ledger."""
        assert self.ledger is not None
        return self.ledger

    # sending

    def queue(self, channel: int, command: Any) -> None:
        """Puts a method after what the next `flush` sends."""
        if self.ledger:
            self.ledger.sent(channel, method_name(command), **_arguments(command))
        self._queued.append(wire.method(channel, command))

    def queue_raw(self, data: bytes) -> None:
        """Puts bytes after what the next `flush` sends."""
        self._queued.append(data)

    def flush(self) -> None:
        """Sends what is queued in one go."""
        data = b"".join(self._queued)
        self._queued.clear()
        self.socket.sendall(data)

    def send(self, channel: int, *sent: Any) -> None:
        """Sends methods of a channel in one go."""
        for command in sent:
            self.queue(channel, command)
        self.flush()

    def frames(
        self, channel: int, command: Any, body: bytes, properties: Mapping[str, Any] | None = None
    ) -> list[bytes]:
        """Notes a content as sent, and gives its frames for the caller to send."""
        properties = properties or {}
        if self.ledger:
            self.ledger.sent(channel, method_name(command), Content(body, properties), **_arguments(command))
        return wire.content(channel, command, body, properties, self.frame_max)

    def publish(
        self, channel: int, exchange: str, routing_key: str, body: bytes,
        properties: Mapping[str, Any] | None = None, mandatory: bool = False,
    ) -> None:  # fmt: skip
        """Queues a basic.publish with its content."""
        command = commands.Basic.Publish(exchange=exchange, routing_key=routing_key, mandatory=mandatory)
        self._queued += self.frames(channel, command, body, properties)

    # receiving

    def receive(self, seconds: float = 10.0) -> tuple[int, Any] | None:
        """The next frame with its channel.

        Returns:
            None when nothing came in time.

        Raises:
            ConnectionError: when the other end is gone.
        """
        end = time.monotonic() + seconds
        while not self._is_whole():
            left = end - time.monotonic()
            if left <= 0:
                return None
            self.socket.settimeout(left)
            try:
                data = self.socket.recv(1 << 20)
            except TimeoutError:
                return None
            if not data:
                raise ConnectionError("the other end has closed the connection")
            self._received += data
        size, channel, frame = pamqp.frame.unmarshal(self._received)
        self._received = self._received[size:]
        self._note(channel, frame)
        return channel, frame

    def _is_whole(self) -> bool:
        if self._received[:4] == b"AMQP":
            return len(self._received) >= 8
        return len(self._received) >= 7 and len(self._received) >= 8 + struct.unpack(">I", self._received[3:7])[0]

    def _note(self, channel: int, frame: Any) -> None:
        if isinstance(frame, pamqp.heartbeat.Heartbeat):
            self.heartbeats += 1
        elif isinstance(frame, pamqp.header.ContentHeader):
            self._contents[channel] += [frame, b""]
            self._complete(channel)
        elif isinstance(frame, pamqp.body.ContentBody):
            self._contents[channel][2] += frame.value
            self._complete(channel)
        elif isinstance(frame, pamqp.header.ProtocolHeader):
            return
        elif method_name(frame) in ("basic.deliver", "basic.get-ok", "basic.return", "basic.publish"):
            self._contents[channel] = [frame]
        elif self.ledger:
            self.ledger.told(channel, method_name(frame), **_arguments(frame))

    def _complete(self, channel: int) -> None:
        command, header, body = self._contents[channel]
        if len(body) < header.body_size:
            return
        del self._contents[channel]
        if self.ledger:
            content = Content(body, plain(header.properties))
            self.ledger.told(channel, method_name(command), content, **_arguments(command))

    def wait(self, channel: int, name: str, count: int = 1, seconds: float = 10.0) -> Any:
        """Reads on until a method has come `count` times on a channel, with its content, and gives the last one.

        Raises:
            TimeoutError: when it did not come.
            ConnectionError: when the other end closed the connection instead.
        """
        end = time.monotonic() + seconds
        while count:
            got = self.receive(max(0.01, end - time.monotonic()))
            if got is None:
                raise TimeoutError(f"no {name} on channel {channel}")
            if isinstance(got[1], commands.Connection.Close) and name != "connection.close":
                raise ConnectionAbortedError(got[1].reply_text)
            if got[0] == channel and hasattr(got[1], "name") and method_name(got[1]) == name:
                command = got[1]
                count -= 1
        while channel in self._contents:
            self.receive()
        return command

    def drain(self, seconds: float = 0.3) -> None:
        """Reads on until nothing has come for a while."""
        while self.receive(seconds) is not None:
            pass

    def until(self, condition: Callable[[], bool], seconds: float = 10.0) -> None:
        """Reads on until something is so.

        Raises:
            TimeoutError: when it did not become so.
        """
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end or self.receive(max(0.01, end - time.monotonic())) is None:
                raise TimeoutError("what was waited for did not happen")

    def call(self, channel: int, command: Any) -> Any:
        """Sends a synchronous request and waits for its -ok."""
        self.send(channel, command)
        return self.wait(channel, f"{method_name(command)}-ok")

    # beginning and end

    def login(
        self, vhost: str = "/", user: str = "guest", password: str = "guest", heartbeat: int = 0,
        channel_max: int = 2047, channels: tuple[int, ...] = (1,),
        capable: bool = True,
    ) -> None:  # fmt: skip
        """The client's side of the handshake; opens `channels` as well; a client may be one of few capabilities."""
        self.socket.sendall(PROTOCOL_HEADER)
        self.wait(0, "connection.start")
        secret = f"\0{user}\0{password}"
        properties: dict[str, Any] = {"product": "scripted peer", "capabilities": CAPABILITIES if capable else {}}
        properties["connection_name"] = self.ledger.client if self.ledger else ""
        self.send(0, commands.Connection.StartOk(properties, "PLAIN", secret, "en_US"))
        self.wait(0, "connection.tune")
        self.send(0, commands.Connection.TuneOk(channel_max, self.frame_max, heartbeat))
        self.call(0, commands.Connection.Open(vhost))
        for number in channels:
            self.call(number, commands.Channel.Open())

    def logout(self) -> None:
        """Closes the connection as a polite client does."""
        self.call(0, commands.Connection.Close(200, "bye", 0, 0))
        self.socket.close()

    def abort(self) -> None:
        """Ends the connection with a reset."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()
