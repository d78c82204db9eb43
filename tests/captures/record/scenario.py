"""What a scenario is: a function that is given a stage, on which clients act while a sniffer runs."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.captures.record.broker import OTHER_PORT, PORT, Broker
from tests.captures.record.ledger import Ledger
from tests.captures.record.peer import Peer
from tests.captures.record.sniff import SETTLE, Sniffer

FOLDER = Path(__file__).resolve().parent.parent
FAKE_PORT = 25998  # where scripted servers listen


@dataclass(frozen=True)
class Scenario:
    """A scenario by its name, with one sentence for the README."""

    name: str
    about: str
    run: Callable[[Stage], None]
    suffix: str

    @property
    def file(self) -> str:
        """The capture's name; without a suffix it is a folder of files that belong together."""
        return f"{self.name}.{self.suffix}" if self.suffix else self.name


SCENARIOS: dict[str, Scenario] = {}


def scenario(about: str, suffix: str = "pcap") -> Callable[[Callable[[Stage], None]], Callable[[Stage], None]]:
    """Registers a function as the scenario of its name."""

    def register(run: Callable[[Stage], None]) -> Callable[[Stage], None]:
        SCENARIOS[run.__name__] = Scenario(run.__name__, about, run, suffix)
        return run

    return register


class House:
    """The broker of a whole run, started when the first scenario asks for it."""

    def __init__(self) -> None:
        self._broker: Broker | None = None

    @property
    def broker(self) -> Broker:
        """The running node."""
        if self._broker is None:
            self._broker = Broker().__enter__()
        return self._broker

    def close(self) -> None:
        """Stops the node if it runs."""
        if self._broker is not None:
            self._broker.close()


class Stage:
    """Where one scenario is played.

    Attributes:
        golden: what is written as the golden, besides the parts asked for with `keep`.
    """

    def __init__(self, house: House, played: Scenario) -> None:
        self._house = house
        self._scenario = played
        self.events: list[dict[str, Any]] = []
        self.ledgers: dict[str, Ledger] = {}
        self._addresses: list[dict[str, Any]] = []
        self.golden: dict[str, Any] = {}
        self._parts: tuple[str, ...] = ()
        self._backstage: Peer | None = None

    @property
    def broker(self) -> Broker:
        """The running node."""
        return self._house.broker

    @property
    def path(self) -> Path:
        """The capture's path."""
        return FOLDER / self._scenario.file

    @property
    def backstage(self) -> Peer:
        """A connection over a port that is not captured, for what must be there before."""
        if self._backstage is None:
            _ = self.broker
            self._backstage = Peer(socket.create_connection(("127.0.0.1", OTHER_PORT)))
            self._backstage.login()
        return self._backstage

    def ledger(self, client: str) -> Ledger:
        """A new client's book."""
        assert client not in self.ledgers
        self.ledgers[client] = Ledger(client, self.events)
        return self.ledgers[client]

    def succeed(self, former: str, client: str) -> Ledger:
        """A new book for a connection that goes on while the capture begins; what was before is forgotten."""
        del self.ledgers[former]
        self.events.clear()
        self._addresses = [row | {"client": client} if row["client"] == former else row for row in self._addresses]
        return self.ledger(client)

    def address(self, client: str, local: tuple[Any, ...], remote: tuple[Any, ...]) -> None:
        """Says which addresses a client's connection has."""
        ends = {"client_ip": local[0], "client_port": local[1], "server_ip": remote[0], "server_port": remote[1]}
        self._addresses.append({"client": client} | ends)

    def connect(
        self, client: str, host: str = "127.0.0.1", port: int = PORT, frame_max: int = 131072, source_port: int = 0
    ) -> Peer:
        """A connected scripted client, not logged in; a given source port is taken even if it was in use just now."""
        if port == PORT and host in ("127.0.0.1", "::1"):
            _ = self.broker
        connection = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if source_port:
            connection.bind((host, source_port))
        connection.connect((host, port))
        self.address(client, connection.getsockname(), connection.getpeername())
        return Peer(connection, self.ledger(client), frame_max)

    def login(self, client: str, **options: Any) -> Peer:
        """A scripted client that is logged in and has channel 1 open."""
        names = ("host", "port", "frame_max", "source_port")
        peer = self.connect(client, **{name: options.pop(name) for name in names if name in options})
        peer.login(**options)
        return peer

    @contextmanager
    def sniff(
        self, ports: tuple[int, ...] = (PORT,), interface: str = "lo", options: tuple[str, ...] = (),
        tool: str = "tcpdump", settle: float = SETTLE,
    ) -> Iterator[Sniffer]:  # fmt: skip
        """Captures while the block runs."""
        if PORT in ports:
            _ = self.broker  # its start is not to be in the capture
        if tool == "tcpdump" and interface != "lo" and "-y" not in options:
            options = (*options, "-y", "RAW")
        path = self.path if self._scenario.suffix else self.path / "part.pcap"
        with Sniffer(path, ports, interface, options, tool) as sniffer:
            yield sniffer
            sniffer.stop(settle)

    def keep(self, *parts: str) -> None:
        """Which tables of the ledgers the golden has."""
        self._parts = parts

    def write(self) -> None:
        """Writes the log and the golden beside the capture."""
        if self._backstage is not None:
            self._backstage.logout()
        for ledger in self.ledgers.values():
            ledger.close()
        golden: dict[str, Any] = {"scenario": self._scenario.name, "about": self._scenario.about}
        golden["clients"] = self._addresses
        for part in self._parts:
            golden[part] = [row for ledger in self.ledgers.values() for row in getattr(ledger, part)]
        _write(FOLDER / f"{self._scenario.name}.golden.json", golden | self.golden)
        log = {"scenario": self._scenario.name, "clients": self._addresses, "events": self.events}
        _write(FOLDER / f"{self._scenario.name}.log.json", log)


def must_hold(stage: Stage, *data: bytes) -> None:
    """The capture really holds what the golden states, as bytes."""
    recorded = stage.path.read_bytes()
    for part in data:
        assert part in recorded, part


def _write(path: Path, document: dict[str, Any]) -> None:
    """JSON with one row of a table per line, so that a difference can be read."""
    entries = []
    for name, item in document.items():
        if isinstance(item, list) and item:
            text = "[\n  " + ",\n  ".join(json.dumps(row, ensure_ascii=False) for row in item) + "\n ]"
        else:
            text = json.dumps(item, ensure_ascii=False)
        entries.append(f" {json.dumps(name)}: {text}")
    path.write_text("{\n" + ",\n".join(entries) + "\n}\n", encoding="utf-8")
