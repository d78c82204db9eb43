"""A link between two network namespaces that loses, doubles, delays and reorders packets, always in the same way.

Each end is a TUN device; a thread carries packets between them. The client's namespace is the one the recorder runs
in, and its device is where the capture is made: packets of the client are seen before the link spoils them, those of
the server afterwards.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CLIENT, SERVER, DEVICE = "10.9.0.1", "10.9.0.2", "shaky"
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI, _CLONE_NEWNET = 0x400454CA, 0x0001, 0x1000, 0x40000000
_LIBC = ctypes.CDLL(None, use_errno=True)


def _check(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


class Link:
    """The two devices and the thread between them."""

    def __init__(self) -> None:
        self._near = self._here()
        _check(_LIBC.unshare(_CLONE_NEWNET))
        self._far = self._here()
        self._server_device = self._device(SERVER)
        _check(_LIBC.setns(self._near, _CLONE_NEWNET))
        self._client_device = self._device(CLIENT)
        self._stop, self._wake = os.pipe()
        self._thread = threading.Thread(target=self._carry)
        self._thread.start()

    @staticmethod
    def _here() -> int:
        return os.open("/proc/thread-self/ns/net", os.O_RDONLY)

    @staticmethod
    def _device(address: str) -> int:
        descriptor = os.open("/dev/net/tun", os.O_RDWR)
        fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH", DEVICE.encode(), _IFF_TUN | _IFF_NO_PI))
        subprocess.run(["ip", "address", "add", f"{address}/24", "dev", DEVICE], check=True)
        subprocess.run(["ip", "link", "set", DEVICE, "up"], check=True)
        if Path("/proc/sys/net/ipv6").exists():
            # no router solicitations among the packets
            Path(f"/proc/sys/net/ipv6/conf/{DEVICE}/disable_ipv6").write_text("1")
        return descriptor

    @contextmanager
    def far_side(self) -> Iterator[None]:
        """Sockets made in this block are in the server's namespace."""
        _check(_LIBC.setns(self._far, _CLONE_NEWNET))
        try:
            yield
        finally:
            _check(_LIBC.setns(self._near, _CLONE_NEWNET))

    def _carry(self) -> None:
        """Carries packets; of those with data, counted in each direction, some are spoiled."""
        others = {self._client_device: self._server_device, self._server_device: self._client_device}
        counted = dict.fromkeys(others, 0)
        held: dict[int, list[bytes]] = {device: [] for device in others}
        while True:
            ready, _, _ = select.select([*others, self._stop], [], [], 0.01)
            if self._stop in ready:
                return
            if not ready:
                for device, packets in held.items():  # nobody comes after whom they could go
                    while packets:
                        os.write(others[device], packets.pop(0))
            for device in ready:
                packet = os.read(device, 65536)
                out = [packet]
                if len(packet) > 100:
                    counted[device] += 1
                    number = counted[device]
                    if number % 13 == 0:
                        out = []
                    elif number % 17 == 0:
                        out = [packet, packet]
                    elif number % 7 == 0:
                        held[device].append(packet)
                        continue
                for data in out + held[device]:
                    os.write(others[device], data)
                held[device].clear()

    def close(self) -> None:
        """Takes the link down."""
        os.write(self._wake, b".")
        self._thread.join()
        for descriptor in (self._near, self._far, self._server_device, self._client_device, self._stop, self._wake):
            os.close(descriptor)


@contextmanager
def listener(link: Link, port: int) -> Iterator[socket.socket]:
    """A socket at the far end."""
    with link.far_side():
        server = socket.socket()
    with server:
        server.bind((SERVER, port))
        server.listen()
        yield server
