"""The command `amqpscope extcap`: Wireshark captures by it, and shows findings as they appear.

Wireshark runs each program in its extcap folder: with `--extcap-interfaces` to learn what it offers, with `--capture`
to write a pcapng to a fifo (https://www.wireshark.org/docs/wsdg_html_chunked/ChCaptureExtcap.html). Packets go there as
they come. Beside them, what came so far is summed up again and again; what is new is a comment on the next packet.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

MARK = "amqpscope"
"""The name of the interface."""
MOST_BYTES = 1 << 30
"""Bytes of a capture that are summed up; a longer one goes on, and no finding is added."""
OFFERED = f"""\
extcap {{version=1.0}}{{help=https://www.wireshark.org/docs/man-pages/extcap.html}}
interface {{value={MARK}}}{{display=Message brokers, with findings}}"""
LINKS = "dlt {number=1}{name=EN10MB}{display=as the interface has it}"
ASKED = """\
arg {number=0}{call=--interface}{display=Interface}{type=string}{default=any}{tooltip=as tcpdump -i takes it}"""


def tcpdump(interface: str, only: str) -> list[str]:
    """Return the command that writes packets of an interface to its output, each within a second.

    Not with --immediate-mode: for it the kernel keeps a slot of the snap length (256 KiB) for each packet, so its
    buffer of 2 MiB is full after a few, however small they are.
    """
    return ["tcpdump", "-i", interface, "-U", "-q", "-w", "-", *shlex.split(only)]


def capture(command: Sequence[str], fifo: Path) -> None:
    """Write what a command captures to a fifo, with findings as comments, until it or the reader ends.

    Raises:
        Error: the command cannot be run, or writes no capture; or the fifo cannot be written.
    """
    from amqpscope.dissector.capture import commenting  # noqa: PLC0415
    from amqpscope.dissector.capture.live import Watch  # noqa: PLC0415
    from amqpscope.errors import Error, reason  # noqa: PLC0415

    with tempfile.TemporaryDirectory(prefix="amqpscope-") as folder, Watch() as watch:
        try:
            source = subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0)  # noqa: S603
        except OSError as error:
            raise Error(f"cannot run {command[0]}: {reason(error)}") from error
        assert source.stdout is not None
        found = Found(Path(folder))
        watch.look = found.look
        try:
            with fifo.open("wb", buffering=0) as shown, found.capture.open("wb", buffering=0) as kept:
                both: Any = _Both((shown, kept))
                read: Any = source.stdout
                commenting.copy(read, command[0], both, found, f"{MARK}: live", watch)
        except BrokenPipeError:
            pass  # Wireshark has stopped
        except OSError as error:
            raise Error(f"{fifo}: cannot write: {reason(error)}") from error
        finally:
            for process in (source, found.running):
                if process is not None:
                    process.terminate()
                    process.wait()


class _Both:
    """Writes to several files."""

    def __init__(self, files: Iterable[BinaryIO]) -> None:
        self._files = tuple(files)

    def write(self, data: bytes) -> None:
        for file in self._files:
            view = memoryview(data)
            while view:
                view = view[file.write(view) :]


class Found:
    """Sums up a capture that grows, by a process at a time; comments on packets are findings that are new.

    A process is begun once a second, and not sooner after the one before than that took: the longer the capture, the
    rarer, so that this takes half a processor at most.

    Args:
        folder: for the capture and what is found in it.

    Attributes:
        capture: the file.
        running: the process, where one runs.
    """

    def __init__(self, folder: Path) -> None:
        self.capture, self._out = folder / "live.pcapng", folder / "summary.json"
        self.running: subprocess.Popen[bytes] | None = None
        self._new: list[str] = []
        self._known: set[tuple[Any, ...]] = set()
        self._size = 0
        self._began = self._next = 0.0

    def of_packet(self, number: int) -> list[str]:
        """Return comments on the next packet: findings that no packet had yet."""
        new, self._new = self._new, []
        return new

    def look(self) -> None:
        """Take what a process found, or begin one."""
        now, size = time.monotonic(), self.capture.stat().st_size
        if self.running is not None:
            if self.running.poll() is None:
                return
            if self.running.returncode == 0:
                self._take(json.loads(self._out.read_bytes()))
            self.running, self._next = None, 2 * now - self._began
        if self._size < size < MOST_BYTES and now >= self._next:
            self._size, self._began = size, now
            command = [sys.executable, "-m", "amqpscope", "summary", "--format", "json", str(self.capture)]
            with self._out.open("wb") as out:
                self.running = subprocess.Popen(command, stdout=out, stderr=subprocess.DEVNULL)  # noqa: S603

    def _take(self, summary: dict[str, Any]) -> None:
        from amqpscope.dashboards import annotate  # noqa: PLC0415

        for row in summary["findings"]:
            subject = tuple(row[name] for name in ("code", "client", "server", "queue", "exchange", "channel"))
            if subject not in self._known:
                self._known.add(subject)
                self._new.append(annotate.of_finding(row))


class Extcap:
    """`amqpscope extcap`: an interface of Wireshark."""

    name = "extcap"
    help = "capture in Wireshark, with findings as packet comments as they appear"
    requires: tuple[str, ...] = ()
    extra: str | None = None
    examples = (
        ("extcap --install ~/.local/lib/wireshark/extcap", 'an interface for Wireshark; its "About" names the folder'),
        ("extcap --capture --interface lo --fifo /tmp/fifo", "what Wireshark runs"),
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        parser.add_argument("--install", metavar="DIR", type=Path, help="write a program there that Wireshark runs")
        for option, what in (("interfaces", "print what is offered"), ("dlts", "print the link layers of that"),
                             ("config", "print what may be asked of it")):  # fmt: skip
            parser.add_argument(f"--extcap-{option}", action="store_true", help=f"{what}, for Wireshark")
        parser.add_argument("--extcap-version", metavar="V", help="the version of Wireshark; not used")
        parser.add_argument("--extcap-interface", metavar="NAME", help="which of the offered interfaces; there is one")
        parser.add_argument(
            "--extcap-capture-filter", metavar="FILTER", default="tcp", help="as of tcpdump; tcp if none"
        )
        parser.add_argument("--capture", action="store_true", help="capture, by tcpdump, which must be allowed to")
        parser.add_argument("--interface", metavar="NAME", default="any", help="where to capture (default: any)")
        parser.add_argument("--fifo", metavar="PATH", type=Path, help="where to write the capture, as pcapng")

    def run(self, arguments: argparse.Namespace) -> int:
        """Answer, capture, or write the program.

        Raises:
            Error: nothing is asked for; or there is no capture, or something cannot be written.
        """
        from amqpscope.errors import Error, reason  # noqa: PLC0415

        if arguments.install:
            program = arguments.install / MARK
            try:
                program.parent.mkdir(parents=True, exist_ok=True)
                program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m amqpscope extcap "$@"\n')
                program.chmod(0o755)
            except OSError as error:
                raise Error(f"{program}: cannot write: {reason(error)}") from error
            sys.stderr.write(f"{program}\n")
        elif arguments.extcap_interfaces:
            sys.stdout.write(f"{OFFERED}\n")
        elif arguments.extcap_dlts:
            sys.stdout.write(f"{LINKS}\n")
        elif arguments.extcap_config:
            sys.stdout.write(f"{ASKED}\n")
        elif arguments.capture and arguments.fifo:
            capture(tcpdump(arguments.interface, arguments.extcap_capture_filter), arguments.fifo)
        else:
            raise Error("nothing to do: give --install DIR; Wireshark gives --capture and --fifo")
        return 0
