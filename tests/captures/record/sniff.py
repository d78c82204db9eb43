"""tcpdump (or dumpcap) around a scenario."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import time
from pathlib import Path

SETTLE = 0.4  # seconds for the kernel to hand over what was sent last


class Sniffer:
    """Captures into `path` from entry to exit.

    Args:
        path: the file to write.
        ports: TCP ports whose traffic is wanted.
        interface: as tcpdump's -i.
        options: further options of the tool.
        tool: tcpdump, or dumpcap for pcapng.
    """

    def __init__(
        self,
        path: Path,
        ports: tuple[int, ...],
        interface: str = "lo",
        options: tuple[str, ...] = (),
        tool: str = "tcpdump",
    ) -> None:  # fmt: skip
        self.path = path
        words = " or ".join(f"tcp port {port}" for port in ports)
        if tool == "tcpdump":
            self._command = ["tcpdump", "-i", interface, "-s", "0", "-U", "-n", "--immediate-mode", "-B", "131072"]
            self._command += ["-Z", "root", *options, "-w", str(path), words]
            # the kernel keeps a slot of the snap length for each packet: 128 MiB are 500 packets
            self._ready = "listening on"
        else:
            # a file of dumpcap is read while it is written only after it is closed, so no -U is needed
            self._command = ["dumpcap", "-f", words, "-s", "0", "-i", interface, *options, "-q", "-w", str(path)]
            self._ready = "File:"

    def __enter__(self) -> Sniffer:
        self.path.unlink(missing_ok=True)
        self._process = subprocess.Popen(self._command, stderr=subprocess.PIPE)
        said = ""
        end = time.monotonic() + 15
        assert self._process.stderr is not None
        descriptor = self._process.stderr.fileno()
        while self._ready not in said:
            waiting, _, _ = select.select([descriptor], [], [], max(0.0, end - time.monotonic()))
            text = os.read(descriptor, 4096).decode() if waiting else ""
            said += text
            if not text:
                self._process.kill()
                raise RuntimeError(f"{self._command[0]} did not begin: {said}")
        time.sleep(0.2)
        return self

    def stop(self, settle: float = SETTLE) -> None:
        """Ends the capture; safe to call twice.

        Raises:
            RuntimeError: when the kernel dropped packets: such a recording must be made again.
        """
        if self._process.poll() is not None:
            return
        time.sleep(settle)
        self._process.send_signal(signal.SIGINT)
        _, said = self._process.communicate(timeout=15)
        for path in self.path.parent.glob(f"{self.path.stem}*{self.path.suffix}"):
            path.chmod(0o644)
        dropped = re.search(rb"(\d+) packets dropped by kernel", said)
        if dropped and int(dropped.group(1)):
            raise RuntimeError(said.decode())

    def __exit__(self, *_: object) -> None:
        self.stop()
