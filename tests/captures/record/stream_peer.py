"""A scripted client of the stream protocol: it sends bytes that the script writes and waits for whole frames."""

from __future__ import annotations

import socket
import struct
import time
from dataclasses import dataclass
from typing import Any

from tests.dissector.stream import wire


@dataclass(frozen=True)
class Told:
    """A frame that came: its key without the response bit, its version, and its body."""

    key: int
    version: int
    body: bytes


class StreamPeer:
    """One connection.

    Args:
        client: its name in the log.
        connection: the connected socket.
        events: the scenario's log.
    """

    def __init__(self, client: str, connection: socket.socket, events: list[dict[str, Any]]) -> None:
        self.client = client
        self.connection = connection
        self.events = events
        self.data = b""
        self.number = 0
        connection.settimeout(15)

    def note(self, what: str, **facts: Any) -> None:
        """Writes into the log."""
        self.events.append({"t_ns": time.time_ns(), "client": self.client, "what": what} | facts)

    def send(self, *frames: bytes) -> None:
        """Sends frames in one write."""
        for frame in frames:
            self.note("sent", key=int.from_bytes(frame[4:6], "big"), size=len(frame))
        self.connection.sendall(b"".join(frames))

    def next(self) -> Told | None:
        """The next frame; None when the other side has closed."""
        while len(self.data) < 4 or len(self.data) < 4 + struct.unpack_from(">I", self.data)[0]:
            more = self.connection.recv(65536)
            if not more:
                self.note("closed")
                return None
            self.data += more
        size, key, version = struct.unpack_from(">IHH", self.data)
        frame, self.data = self.data[: 4 + size], self.data[4 + size :]
        self.note("told", key=key, size=len(frame))
        return Told(key & 0x7FFF, version, frame[8:])

    def wait(self, key: int) -> Told:
        """The next frame of this command, others skipped.

        Raises:
            ConnectionError: the other side closed before.
        """
        while True:
            frame = self.next()
            if frame is None:
                raise ConnectionError(f"closed before {key} came")
            if frame.key == key:
                return frame

    def call(self, key: int, body: bytes = b"") -> tuple[int, bytes]:
        """A request and the code and rest of its answer."""
        self.number += 1
        self.send(wire.request(key, self.number, body))
        answer = self.wait(key).body
        number, code = struct.unpack_from(">IH", answer)
        assert number == self.number
        return code, answer[6:]

    def login(self, data: bytes = b"\0guest\0guest", vhost: str = "/") -> int:
        """The handshake; the last code that came."""
        self.call(17, wire.table({"product": "capture", "connection_name": self.client}))
        self.call(18)
        code, _ = self.call(19, wire.string("PLAIN") + wire.binary(data))
        if code != 1:
            return code
        tune = self.wait(20)
        self.send(wire.frame(0x8014, tune.body))
        return self.call(21, wire.string(vhost))[0]

    def close(self) -> None:
        """An orderly end."""
        self.call(22, struct.pack(">H", 1) + wire.string("OK"))
        while self.next() is not None:
            pass
        self.connection.close()
