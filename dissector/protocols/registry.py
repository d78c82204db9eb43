"""The protocols that are known: ours, and those that plug-ins bring.

A protocol is one of the `PROTOCOLS` in a module of its folder; of a plug-in, an entry point of the group
`amqpscope.protocols` (see `amqpscope.spec.documents`). Whoever wants to know something of protocols asks here.
"""

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from amqpscope import spec
from amqpscope.dissector.handshakes.first_use import FirstUses
from amqpscope.dissector.handshakes.record import ConnectionRecord
from amqpscope.dissector.kernels.accounting import MemoryAccounting
from amqpscope.dissector.kernels.arrays import Bytes, Ints
from amqpscope.dissector.kernels.coding import Target
from amqpscope.dissector.kernels.retained import Buffer, Ranges
from amqpscope.dissector.protocols.rows import Faults, Made
from amqpscope.errors import Error
from amqpscope.spec import documents
from amqpscope.spec.model import Protocol as Specification

TLS, UNKNOWN = -1, -2
"""Numbers of connections that speak no protocol that is described; those of protocols begin with 1, 0 is undecided."""
OTHERS = {TLS: "tls", UNKNOWN: "unknown", 0: "unknown"}
FOLDERS = ("amqp091", "amqp010", "stream", "amqp100")
"""Ours. Where several could be meant, the first is."""

_added: dict[str, "ProtocolPlugin"] = {}


class ProtocolError(Error):
    """A protocol cannot be what is asked for; one line."""


@dataclass(frozen=True, slots=True)
class Context:
    """What a stage has of the dissector that it belongs to.

    Attributes:
        compiled: whether kernels run compiled.
        bodies: `none`, `hash` or `full`.
        handshakes: only frames of handshakes are decoded.
        accounting: what is remembered of connections is counted here.
        record: the record of a connection, by slot.
        used: whose first use was seen.
        documents: specifications that stand for our own, by the protocol's name.
        reached: messages about limits of the process that were reached; stages add them.
    """

    compiled: bool
    bodies: str
    handshakes: bool
    accounting: MemoryAccounting
    record: Callable[[int], ConnectionRecord]
    used: FirstUses
    documents: dict[str, Specification]
    reached: set[str] = field(default_factory=set)

    def specification(self, name: str) -> Specification:
        """Return the specification of a protocol: the user's, or our own."""
        return self.documents.get(name) or spec.load(name)


class Stage(Protocol):
    """What a protocol does with the chunks of its connections. Chunks are (tcp.state.Chunk, n)."""

    @property
    def ranges(self) -> Sequence[Ranges]:
        """Bytes that must outlive their batch."""

    def begin(self, slots: Ints, states: Ints, capacity: int) -> None:
        """Take over connections; `states` are HEAD where a stream is seen from its start, else SEARCH."""

    def feed(self, chunks: Ints, count: int, buffer: Buffer, facts: Ints) -> Iterator[Made | Faults]:
        """Take the first `count` chunks."""

    def end(self, slots: Ints, facts: Ints, buffer: Buffer) -> Iterator[Made | Faults]:
        """Forget connections that are over, and yield what was under way."""

    def take_out(self, slots: Ints, data: Bytes) -> bytes:
        """Take the state of connections out; `data` has the bytes that are retained of them."""

    def put_back(self, data: bytes, target: Target) -> None:
        """Put back what `take_out` took.

        Raises:
            StateError: the bytes are of another release.
        """

    def end_lost(self, slots: Ints) -> NDArray[np.bool_]:
        """Return which connections may lack the last frames of a direction."""

    def holding(self, slots: Ints) -> Iterator[tuple[int, int, bool, int]]:
        """Return which of these connections hold chunks back.

        Also the side searched, whether it showed no frame, and the time of the first of these chunks (ns).
        """


class Recogniser(Protocol):
    """Sees a protocol in the middle of connections."""

    def look(self, data: Bytes, begin: int, end: int, position: int, due: int) -> tuple[bool, int]:
        """Return whether bytes are frames of the protocol.

        Args:
            data: has the bytes, from `begin` to `end`.
            begin: where in it they begin.
            end: where in it they end.
            position: of the first of them in its stream.
            due: what was returned for the bytes of the same direction before, else -1.

        Returns:
            Whether they are, and where in the stream a frame must end that is longer than these; -1: there is none.
        """


@dataclass(frozen=True, slots=True)
class ProtocolPlugin:
    """One protocol.

    Attributes:
        name: as in tables and on the command line; its document in `spec` is called so too.
        headers: first bytes of a client that can be nothing else.
        frames_begin: first byte of the first frame, by which it differs from another with the same header; None: of
            these, it is the one whose first frame begins with any other byte.
        begins: whether a client that begins with these bytes speaks it; None when more are needed. It is asked
            when they are nobody's header.
        answers: whether a broker that accepts a client answers with the header.
        client_waits: whether the client then waits for the broker's first frame.
        ports: where its brokers listen.
        tls_ports: where they listen for TLS.
        recogniser: makes what sees it in the middle; None where it is not recognised there.
        stage: makes what decodes it; None where it is known by its header alone.
        has_rows: whether its frames have rows in a table; else they are counted at most.
        version_of: the protocol of which it is a version, which tables name instead; None: they name it.
        statistics: what it brings for statistics ("module:object" of a `pipelines.model.protocols.Statistics`, which
            is imported when it is needed); None for nothing.
    """

    name: str
    headers: tuple[bytes, ...] = ()
    frames_begin: int | None = None
    begins: Callable[[bytes], bool | None] = lambda _: False
    answers: bool = False
    client_waits: bool = False
    ports: tuple[int, ...] = ()
    tls_ports: tuple[int, ...] = ()
    recogniser: Callable[[Context], Recogniser] | None = None
    stage: Callable[[Context], Stage] | None = None
    has_rows: bool = True
    version_of: str | None = None
    statistics: str | None = None


class Stages(dict[int, Stage]):
    """The stages of the decoded protocols by number; each is made when a connection first speaks its protocol."""

    def __init__(self, context: Context) -> None:
        super().__init__()
        self.context = context
        self.decoded = {number: plugin.stage for number, plugin in numbered() if plugin.stage}
        self.with_rows = [number for number, plugin in numbered() if plugin.stage and plugin.has_rows]

    def __missing__(self, number: int) -> Stage:
        stage = self[number] = self.decoded[number](self.context)
        return stage


def add(plugin: ProtocolPlugin, document: Path) -> None:
    """Add a protocol, as an entry point does; `document` is its specification.

    Raises:
        ValueError: one of this name is known.
    """
    if plugin.name in names():
        raise ValueError(f"{plugin.name}: a protocol of this name is known")
    documents.add(document)
    _added[plugin.name] = plugin


def remove(name: str) -> None:
    """Forget a protocol that was added."""
    del _added[name]
    documents.remove(name)


def protocols() -> tuple[ProtocolPlugin, ...]:
    """Return all protocols; a connection's state holds the place here, from 1 on."""
    return (*_installed(), *_added.values())


def numbered() -> Iterator[tuple[int, ProtocolPlugin]]:
    """Return all protocols with their numbers."""
    return enumerate(protocols(), 1)


def names() -> tuple[str, ...]:
    """Return the names of all protocols, and `tls` and `unknown`."""
    return (*(plugin.name for plugin in protocols()), OTHERS[TLS], OTHERS[UNKNOWN])


def shown_names() -> tuple[str, ...]:
    """Return what the column `protocol` may hold: `names` without versions of other protocols."""
    versions = {plugin.name for plugin in protocols() if plugin.version_of}
    return tuple(name for name in names() if name not in versions)


def decoded() -> dict[str, int]:
    """Return the numbers of what `--port` may name: the protocols that are decoded, and `tls` and `unknown`."""
    return {plugin.name: number for number, plugin in numbered() if plugin.stage} | {"tls": TLS, "unknown": UNKNOWN}


def number_of(name: str) -> int:
    """Return the number of a protocol that is given for a port.

    Raises:
        ProtocolError: there is none of this name, or it is not decoded.
    """
    known = decoded()
    if name in known:
        return known[name]
    reason = "is known by its header, but not decoded" if name in names() else "is not a known protocol"
    raise ProtocolError(f"{name} {reason}; known are {', '.join(known)}")


def name_of(number: int) -> str:
    """Return the name of a protocol in tables, by its number."""
    return OTHERS.get(number) or shown_name(protocols()[number - 1].name)


def shown_name(name: str) -> str:
    """Return the name of a protocol in tables."""
    return next((plugin.version_of for plugin in protocols() if plugin.name == name), None) or name


def ports() -> frozenset[int]:
    """Return where brokers listen, with TLS or without."""
    return frozenset(port for plugin in protocols() for port in plugin.ports + plugin.tls_ports)


def tls_ports() -> frozenset[int]:
    """Return where brokers listen for TLS."""
    return frozenset(port for plugin in protocols() for port in plugin.tls_ports)


@functools.cache
def _installed() -> tuple[ProtocolPlugin, ...]:
    own = (import_module(f"amqpscope.dissector.protocols.{folder}.protocol").PROTOCOLS for folder in FOLDERS)
    return (*itertools.chain.from_iterable(own), *(entry.load() for entry in entry_points(group=documents.GROUP)))
