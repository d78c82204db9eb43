"""Live findings in Wireshark: its own programs read what is written; on loopback, where that may be captured."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import dpkt
import pytest

from amqpscope.dashboards import extcap
from amqpscope.dissector.cli.program import main
from tests.oracles import needs

TICKETS = Path(__file__).parents[1] / "tickets"
TICKET = TICKETS / "wrong_exchange.pcap"


def packets(path: Path) -> list[tuple[float, bytes]]:
    with path.open("rb") as file:
        return [(ts, data) for ts, data in dpkt.pcap.UniversalReader(file)]


def comments(path: Path) -> list[str]:
    command = ["tshark", "-r", str(path), "-Y", "frame.comment", "-T", "fields", "-e", "frame.comment"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


@needs("tshark")
def test_wireshark_lists_it(tmp_path: Path) -> None:
    for folder in ("wireshark/extcap", ".local/lib/wireshark/extcap"):  # of Wireshark 4.0, and of later ones
        assert main(["extcap", "--install", str(tmp_path / folder)]) == 0
    shown = subprocess.run(["tshark", "-D"], env=home(tmp_path), capture_output=True, text=True, check=True).stdout
    assert "amqpscope (Message brokers, with findings)" in shown
    command = ["tshark", "-L", "-i", "amqpscope"]
    assert "as the interface has it" in subprocess.run(command, env=home(tmp_path), capture_output=True, text=True,
                                                       check=True).stdout  # fmt: skip


def home(folder: Path) -> dict[str, str]:
    return os.environ | {"HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}


@needs("tshark")
def test_packets_pass_at_once_and_findings_on_the_next(tmp_path: Path) -> None:
    """All of a capture but its last packet; this one comes when the finding is there."""
    raw, shown = TICKET.read_bytes(), tmp_path / "shown.pcapng"
    last = len(packets(TICKET)[-1][1]) + 16
    begin, end = tmp_path / "begin", tmp_path / "end"
    begin.write_bytes(raw[:-last])
    end.write_bytes(raw[-last:])
    ready = tmp_path / "ready"
    writer = f"cat {begin}; while [ ! -e {ready} ]; do sleep 0.1; done; cat {end}"
    taken = extcap.Found._take

    def take(self: extcap.Found, summary: dict[str, object]) -> None:
        taken(self, summary)
        assert [data for _, data in packets(shown)] == [data for _, data in packets(TICKET)[:-1]]
        ready.touch()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(extcap.Found, "_take", take)
        extcap.capture(["sh", "-c", writer], shown)
    assert packets(shown) == packets(TICKET)
    (noted,) = comments(shown)
    assert noted.startswith("amqpscope [chn-error] ") and "404" in noted


def test_it_ends_when_the_reader_does(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = threading.Thread(target=lambda: fifo.open("rb").close())
    reader.start()
    extcap.capture(["sh", "-c", f"cat {TICKET}; exec sleep 600"], fifo)
    reader.join()


def loopback() -> None:
    if subprocess.run(["tcpdump", "-i", "lo", "-d"], check=False, capture_output=True).returncode:
        pytest.skip("capturing is not allowed here")


@needs("tcpdump")
def test_nothing_is_dropped_on_a_busy_machine(tmp_path: Path) -> None:
    """500 packets pass while tcpdump does not run."""
    loopback()
    out = tmp_path / "out.pcap"
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as client, out.open("wb") as written:
        command = extcap.tcpdump("lo", f"tcp port {server.getsockname()[1]}")
        with subprocess.Popen(command, stdout=written, stderr=subprocess.PIPE, text=True) as captured:
            assert captured.stderr is not None
            assert "listening" in captured.stderr.readline()
            captured.send_signal(signal.SIGSTOP)
            client.connect(server.getsockname())
            other, _ = server.accept()
            with other:
                for _ in range(250):
                    client.sendall(b"?")
                    other.recv(1)
            captured.send_signal(signal.SIGCONT)
            until = time.monotonic() + 30
            while out.stat().st_size < 250 * (16 + 66) and time.monotonic() < until:
                time.sleep(0.1)
            captured.terminate()
            said = captured.stderr.read()
    assert "\n0 packets dropped by kernel" in said, said
    assert int(said.split()[0]) >= 250, said


@needs("tshark", "tcpdump")
def test_live_on_loopback(tmp_path: Path) -> None:
    """A recorded connection, played between two sockets, captured by what Wireshark's own program runs."""
    loopback()
    out = tmp_path / "out.pcapng"
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        fifo = tmp_path / "fifo"
        os.mkfifo(fifo)
        command = [sys.executable, "-m", "amqpscope", "extcap", "--capture", "--interface", "lo", "--fifo", str(fifo)]
        command += ["--extcap-capture-filter", f"tcp port {port}"]
        with subprocess.Popen(command) as captured, fifo.open("rb") as read, out.open("wb") as written:
            copied = threading.Thread(target=shutil.copyfileobj, args=(read, written, 64))
            copied.start()
            until = time.monotonic() + 120
            while b"[chn-error]" not in out.read_bytes() and time.monotonic() < until:
                play(server)
                written.flush()
                time.sleep(1)
            captured.terminate()
            copied.join()
    assert captured.returncode == 0
    assert any(line.startswith("amqpscope [chn-error] ") for line in comments(out))


def play(server: socket.socket) -> None:
    """Send what a recorded connection had, by two sockets, in its order."""
    client = socket.create_connection(server.getsockname())
    other, _ = server.accept()
    with client, other:
        for _, data in packets(TICKET):
            tcp = dpkt.ethernet.Ethernet(data).data.data
            if tcp.data:
                sender, receiver = (other, client) if tcp.sport == 5672 else (client, other)
                sender.sendall(tcp.data)
                left = len(tcp.data)
                while left:
                    left -= len(receiver.recv(left))
