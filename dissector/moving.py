"""Move the state of a dissector as bytes: take it out of one and put it back into another, in any process.

Both must have the same release and options. Slots and indexes of captures differ between dissectors: putting state back
translates them. With a key log, the bytes hold its secrets.
"""

import zlib
from collections.abc import Iterable
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np

from amqpscope.dissector.kernels.arrays import Ints
from amqpscope.dissector.kernels.coding import PLAIN, Target
from amqpscope.dissector.kernels.retained import Buffer
from amqpscope.dissector.kernels.state import HEAD, StateError
from amqpscope.dissector.protocols import registry
from amqpscope.dissector.tcp import moving
from amqpscope.dissector.tcp.state import Facts

if TYPE_CHECKING:
    from amqpscope.dissector.dissector import Dissector

LEVEL = 1
"""Level of compression: most numbers are small."""


def take_out(of: "Dissector", connections: Iterable[int] | None) -> bytes:
    """Take state out; see `Dissector.take_out`."""
    facts = of.tcp.flows.facts
    slots = np.flatnonzero(facts[:, Facts.USED])
    if connections is not None:
        slots = slots[np.isin(facts[slots, Facts.ID], np.fromiter(connections, np.int64))]
    buffer = of.resume(Buffer(np.zeros(0, np.uint8), 0))
    spoken = facts[slots, Facts.PROTOCOL]
    state = {
        "captures": [of.captures, of.points],
        "stages": {n: stage.take_out(slots[spoken == n], buffer.data) for n, stage in of.stages.items()},
        "detector": of.detector.take_out(slots),
        "tls": of.tls.take_out(slots),
        "connections": of.connections.take_out(slots),
        "gaps": of.holes.take_out(slots),
        "accounting": of.accounting.take_out(slots),
        "tcp": moving.take_out(of.tcp, slots, buffer.data),
        "end_ns": of.end_ns,
        "whole": _take_whole(of) if connections is None else None,
    }
    of.retain(buffer)
    octets = zlib.compress(PLAIN.written(state), LEVEL)
    return _head(of) + zlib.crc32(octets).to_bytes(HEAD, "little") + octets


def put_back(into: "Dissector", octets: bytes) -> None:
    """Put state back; see `Dissector.put_back`."""
    state = _read(into, octets)
    captures = _captures(into, *state["captures"])
    buffer = into.resume(Buffer(np.zeros(0, np.uint8), 0))
    slots = moving.put_back(into.tcp, state["tcp"], captures, buffer)
    into.end_ns = max(into.end_ns, state["end_ns"])
    facts = into.tcp.flows.facts
    spoken = facts[slots, Facts.PROTOCOL]
    target = Target(slots, len(facts), captures, buffer)
    into.accounting.add(slots, state["accounting"])
    into.connections.put_back(state["connections"], target)
    into.tls.put_back(state["tls"], target, lambda slot: into.connections.record(slot).tls)
    into.detector.put_back(state["detector"], target)
    into.holes.put_back(state["gaps"], slots)
    for number, stage in into.stages.items():
        stage.put_back(state["stages"][number], target._replace(slots=slots[spoken == number]))
    if state["whole"] is not None:
        _put_whole(into, state["whole"], captures)
    into.retain(target.buffer)


def _take_whole(of: "Dissector") -> list[Any]:
    """Return the state that belongs to no open connection."""
    read, of.read = of.read, 0
    return [of.packets.take_out(), of.tcp.identities(), of.tls.keylog.written(), read]


def _put_whole(into: "Dissector", state: list[Any], captures: Ints) -> None:
    packets, identities, secrets, read = state
    into.packets.put_back(packets, captures)
    into.tcp.remember(identities)
    if secrets:
        into.tls.keylog.add(secrets)
    into.read += read


def _captures(into: "Dissector", names: list[str], points: list[int]) -> Ints:
    """Return the indexes of captures here; append captures that are unknown here."""
    known = {name: index for index, name in enumerate(into.captures)}
    for name in names:
        if name not in known:
            known[name] = len(into.captures)
            into.captures.append(name)
    captures = np.array([known[name] for name in names] or [0], np.int64)
    for index, point in zip(captures[: len(points)].tolist(), points, strict=True):
        if index == len(into.points):
            into.points.append(int(captures[point]))
    into.tcp.place(into.points or [0] * len(into.captures))
    return captures


def _head(of: "Dissector") -> bytes:
    """Return what identifies the state: the release, and what its numbers depend on."""
    own = of.options.protocol
    methods = [method.full_name for method in own.methods] if own else []
    what = (registry.names(), methods, of.options.bodies, of.options.handshakes)
    return f"amqpscope {version('amqpscope')} {zlib.crc32(repr(what).encode()):08x}\n".encode()


def _read(into: "Dissector", octets: bytes) -> Any:
    head = _head(into)
    if not octets.startswith(head):
        raise StateError("not the state of a dissector of this release with these options")
    body = octets[len(head) + HEAD :]
    if zlib.crc32(body).to_bytes(HEAD, "little") != octets[len(head) : len(head) + HEAD]:
        raise StateError("the state of a dissector is damaged")
    return PLAIN.read(zlib.decompress(body))
