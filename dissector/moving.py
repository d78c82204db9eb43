"""Move the state of a dissector as bytes: take it out of one and put it back into another, in any process.

Both must have the same release and options. Slots and indexes of captures differ between dissectors: putting state back
translates them. With a key log, the bytes hold its secrets.
"""

import zlib
from typing import Any, NamedTuple

import numpy as np

from amqpscope.dissector.kernels.accounting import MemoryAccounting
from amqpscope.dissector.kernels.arrays import Bytes, Ints
from amqpscope.dissector.kernels.coding import PLAIN, Target
from amqpscope.dissector.kernels.retained import Buffer
from amqpscope.dissector.kernels.state import HEAD, StateError
from amqpscope.dissector.packets.decoder import PacketDecoder
from amqpscope.dissector.protocols.detection import Detector
from amqpscope.dissector.protocols.registry import Stage
from amqpscope.dissector.tables.connections import Connections
from amqpscope.dissector.tcp import moving
from amqpscope.dissector.tcp.gaps import Gaps
from amqpscope.dissector.tcp.reassembler import Reassembler
from amqpscope.dissector.tcp.state import Facts
from amqpscope.dissector.tls.stage import Tls

LEVEL = 1
"""Level of compression: most numbers are small."""


class Parts(NamedTuple):
    """All of a dissector that remembers something; `stages` by the number of their protocol."""

    packets: PacketDecoder
    tcp: Reassembler
    tls: Tls
    detector: Detector
    stages: dict[int, Stage]
    connections: Connections
    gaps: Gaps
    accounting: MemoryAccounting


def take_connections(parts: Parts, slots: Ints, data: Bytes) -> dict[str, Any]:
    """Take the connections in these slots out; `data` has the bytes that are retained of them."""
    spoken = parts.tcp.flows.facts[slots, Facts.PROTOCOL]
    return {
        "stages": {number: stage.take_out(slots[spoken == number], data) for number, stage in parts.stages.items()},
        "detector": parts.detector.take_out(slots),
        "tls": parts.tls.take_out(slots),
        "connections": parts.connections.take_out(slots),
        "gaps": parts.gaps.take_out(slots),
        "accounting": parts.accounting.take_out(slots),
        "tcp": moving.take_out(parts.tcp, slots, data),
    }


def put_connections(parts: Parts, state: dict[str, Any], captures: Ints, buffer: Buffer) -> None:
    """Put connections back. `captures` has for each index of a capture there what it is here."""
    slots = moving.put_back(parts.tcp, state["tcp"], captures, buffer)
    facts = parts.tcp.flows.facts
    spoken = facts[slots, Facts.PROTOCOL]
    target = Target(slots, len(facts), captures, buffer)
    parts.accounting.add(slots, state["accounting"])
    parts.connections.put_back(state["connections"], target)
    parts.tls.put_back(state["tls"], target, lambda slot: parts.connections.record(slot).tls)
    parts.detector.put_back(state["detector"], target)
    parts.gaps.put_back(state["gaps"], slots)
    for number, stage in parts.stages.items():
        stage.put_back(state["stages"][number], target._replace(slots=slots[spoken == number]))


def _take_whole(of: "Dissector") -> list[Any]:
    """Return the state that belongs to no open connection."""
    read, of.read = of.read, 0
    return [of.packets.take_out(), of.tcp.identities(), of.tls.keylog.written(), read]


def put_rest(parts: Parts, state: dict[str, Any], captures: Ints) -> None:
    """Put back what `take_rest` took."""
    parts.packets.put_back(state["packets"], captures)
    parts.tcp.remember(state["identities"])
    if state["secrets"]:
        parts.tls.keylog.add(state["secrets"])


def _captures(into: "Dissector", names: list[str], points: list[int]) -> Ints:
    """Return the indexes of captures here; append captures that are unknown here."""
    known = {name: index for index, name in enumerate(into.captures)}
    for name in names:
        if name not in places:
            places[name] = len(known)
            known.append(name)
    captures = np.array([places[name] for name in names] or [0], np.int64)
    for index, point in zip(captures[: len(points)].tolist(), points, strict=True):
        if index == len(known_points):
            known_points.append(int(captures[point]))
    return captures


def _head(of: "Dissector") -> bytes:
    """Return what identifies the state: the release, and what its numbers depend on."""
    own = of.options.protocol
    methods = [method.full_name for method in own.methods] if own else []
    what = (registry.names(), methods, of.options.bodies, of.options.handshakes)
    return f"amqpscope {version('amqpscope')} {zlib.crc32(repr(what).encode()):08x}\n".encode()


def opened(head: bytes, octets: bytes) -> Any:
    """The state of which `sealed` made bytes.

    Raises:
        StateError: they do not begin so, or are damaged.
    """
    if not octets.startswith(head):
        raise StateError("not the state of a dissector of this release with these options")
    check, body = octets[len(head) : len(head) + HEAD], octets[len(head) + HEAD :]
    if zlib.crc32(body).to_bytes(HEAD, "little") != check:
        raise StateError("the state of a dissector is damaged")
    return PLAIN.read(zlib.decompress(body))
