"""What a ticket's scenario is, and the far link: a path whose packets take their time."""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pika  # type: ignore[import-untyped]

from tests.captures.record import lossy
from tests.captures.record.broker import PORT
from tests.captures.record.scenario import House, Scenario, Stage

FOLDER = Path(__file__).resolve().parent.parent
TICKETS: dict[str, Callable[[Ticket], None]] = {}


class Ticket(Stage):
    """A stage whose capture is a ticket's; no log or golden is kept: `tickets.toml` says what must be found."""

    def __init__(self, house: House, name: str) -> None:
        super().__init__(house, Scenario(name, "", lambda _: None, "pcap"))
        self.name = name

    @property
    def path(self) -> Path:
        """The capture's path."""
        return FOLDER / f"{self.name}.pcap"

    def write(self) -> None:
        """Closes what was not captured."""
        if self._backstage is not None:
            self._backstage.logout()

    def pika(self, client: str, host: str = "127.0.0.1", heartbeat: int = 60) -> pika.BlockingConnection:
        """A client of pika that gives its name."""
        _ = self.broker
        return pika.BlockingConnection(
            pika.ConnectionParameters(
                host,
                PORT,
                heartbeat=heartbeat,
                client_properties={"connection_name": client},
                blocked_connection_timeout=30,
            )
        )


def ticket(run: Callable[[Ticket], None]) -> Callable[[Ticket], None]:
    """Registers a function as the scenario of its name."""
    TICKETS[run.__name__] = run
    return run


class FarLink(lossy.Link):
    """A link on which each packet travels 20 ms, and none is lost."""

    DELAY = 0.02

    def _carries(self, packet: bytes, device: int) -> bool:
        """Return whether a packet from a device arrives."""
        return True

    def _carry(self) -> None:
        others = {self._client_device: self._server_device, self._server_device: self._client_device}
        under_way: deque[tuple[float, int, bytes]] = deque()
        while True:
            patience = max(0.0, under_way[0][0] - time.monotonic()) if under_way else 0.1
            ready, _, _ = select.select([*others, self._stop], [], [], patience)
            if self._stop in ready:
                return
            for device in ready:
                packet = os.read(device, 65536)
                if self._carries(packet, device):
                    under_way.append((time.monotonic() + self.DELAY, others[device], packet))
            while under_way and under_way[0][0] <= time.monotonic():
                _, device, packet = under_way.popleft()
                os.write(device, packet)


@contextmanager
def far_broker(link: FarLink | None = None) -> Iterator[str]:
    """The address of the node at the far end of a link of 20 ms each way, or of a given one."""
    link = link or FarLink()
    try:
        with lossy.listener(link, PORT) as server:
            threading.Thread(target=_accept, args=(server,), daemon=True).start()
            yield lossy.SERVER
            time.sleep(3 * FarLink.DELAY)
    finally:
        link.close()


def _accept(server: socket.socket) -> None:
    while True:
        try:
            near, _ = server.accept()
        except OSError:
            return
        broker = socket.create_connection(("127.0.0.1", PORT))
        for each in (near, broker):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for one, other in ((near, broker), (broker, near)):
            threading.Thread(target=_copy, args=(one, other), daemon=True).start()


def _copy(one: socket.socket, other: socket.socket) -> None:
    try:
        while data := one.recv(1 << 16):
            other.sendall(data)
        other.shutdown(socket.SHUT_WR)
    except OSError:
        pass
