"""Links that are full, and what only looks like it: bytes that wait before them, a longer path, a short burst."""

from __future__ import annotations

import os
import select
import time
from collections import deque

from tests.tickets.record.clients import ALL, TWO, Play, tickets
from tests.tickets.record.stage import FarLink, far_broker


class Narrow(FarLink):
    """A link of 10 ms each way that lets so many bytes a second through in each direction; the others wait."""

    DELAY = 0.01

    def __init__(self, rate: float) -> None:
        self._rate = rate
        super().__init__()

    def _carry(self) -> None:
        others = {self._client_device: self._server_device, self._server_device: self._client_device}
        under_way: dict[int, deque[tuple[float, bytes]]] = {device: deque() for device in others}
        free = dict.fromkeys(others, 0.0)
        while True:
            comes = [packets[0][0] for packets in under_way.values() if packets]
            patience = max(0.0, min(comes) - time.monotonic()) if comes else 0.1
            ready, _, _ = select.select([*others, self._stop], [], [], patience)
            if self._stop in ready:
                return
            for device in ready:
                packet, other = os.read(device, 65536), others[device]
                free[other] = max(free[other], time.monotonic()) + len(packet) / self._rate
                under_way[other].append((free[other] + self.DELAY, packet))
            for device, packets in under_way.items():
                while packets and packets[0][0] <= time.monotonic():
                    os.write(device, packets.popleft()[1])


class LosesTails(FarLink):
    """A link of 20 ms each way that loses the last packet of each fourth large message of the server."""

    def __init__(self, each: int) -> None:
        self._each, self._seen = each, 0
        super().__init__()

    def _carries(self, packet: bytes, device: int) -> bool:
        ends_one = packet[33] & 8 and 400 < len(packet) < 1400 and device == self._server_device
        self._seen += bool(ends_one)
        return not (ends_one and self._seen % self._each == 0)


def _send(play: Play, link: FarLink, client: str, bursts: int, count: int, size: int, pause: float = 0.0) -> None:
    """A client publishes in bursts, each without waiting for confirms, and waits for them at its end."""
    with far_broker(link) as far, play.sniff(interface="shaky"):
        sender = play.publisher(client, host=far)
        for _ in range(bursts):
            sender.publish(key=play.name, body="p" * size, repeat=count)
            time.sleep(pause)
        sender.wait()
        sender.close()


def _fetch(play: Play, link: FarLink, count: int, size: int, prefetch: int) -> None:
    """A branch office works off what has piled up, at the far end of a link."""
    with far_broker(link) as far:
        feeder = play.publisher("feeder")
        feeder.publish(key=play.name, body="p" * size, repeat=count)
        feeder.wait()
        with play.sniff(interface="shaky"):
            reader = play.worker("branch", prefetch=prefetch, host=far)
            for _ in range(count):
                reader.ack(tag=reader.take(seconds=5)["tag"])
            reader.close()


@tickets(*ALL)
def full_uplink(play: Play) -> None:
    """A camera sends more than its link lets through, for two seconds."""
    _send(play, Narrow(60_000), "camera", 1, 33, 4_000)


@tickets(*ALL)
def full_downlink(play: Play) -> None:
    """A branch office fetches what has piled up through a link that is full meanwhile."""
    _fetch(play, Narrow(60_000), 33, 4_000, 20)


@tickets(*ALL)
def far_burst(play: Play) -> None:
    """The path is as long, and lets everything through: the round trips stay as they are."""
    _send(play, FarLink(), "camera", 1, 30, 4_000)


@tickets(*TWO)
def full_for_a_moment(play: Play) -> None:
    """Bursts fill the link for a third of a second each; then nothing waits."""
    _send(play, Narrow(60_000), "sensor", 4, 5, 4_000, 1.0)


@tickets(*TWO)
def longer_path(play: Play) -> None:
    """While a client sends at a steady rate, its path becomes four times as long; nothing waits before it."""
    link = FarLink()
    link.DELAY = 0.01
    with far_broker(link) as far, play.sniff(interface="shaky"):
        sender = play.publisher("ticker", host=far)
        for number in range(400):
            if number == 130:
                link.DELAY = 0.04
            sender.publish(key=play.name, body="p" * 100)
            time.sleep(0.01)
        sender.wait()
        sender.close()


@tickets(*ALL)
def loses_tails(play: Play) -> None:
    """The last packet of some is lost: nothing in the capture is there twice, or in another order."""
    _fetch(play, LosesTails(4), 32, 3_500, 1)


@tickets(*TWO)
def loses_nothing(play: Play) -> None:
    """All of them arrive."""
    _fetch(play, LosesTails(1000), 32, 3_500, 1)
