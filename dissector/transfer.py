"""What the stages of a dissector remember of connections, taken out as values and put back into those of another.

Slots and indexes of captures differ from dissector to dissector: they are translated when state is put back.
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
from amqpscope.dissector.protocols.acknowledged import Acknowledged
from amqpscope.dissector.protocols.detection import Detector
from amqpscope.dissector.protocols.registry import Stages
from amqpscope.dissector.tables.connections import Connections
from amqpscope.dissector.tcp import transfer
from amqpscope.dissector.tcp.gaps import Gaps
from amqpscope.dissector.tcp.reassembler import Reassembler
from amqpscope.dissector.tcp.state import Facts
from amqpscope.dissector.tls.stage import Tls

LEVEL = 1
"""Of compression: most numbers are small."""


class Parts(NamedTuple):
    """All of a dissector that remembers something."""

    packets: PacketDecoder
    tcp: Reassembler
    tls: Tls
    detector: Detector
    stages: Stages
    connections: Connections
    gaps: Gaps
    acked: Acknowledged
    accounting: MemoryAccounting


def take_connections(parts: Parts, slots: Ints, data: Bytes) -> dict[str, Any]:
    """Take the connections in these slots out; `data` has the bytes that are retained of them."""
    spoken = parts.tcp.flows.facts[slots, Facts.PROTOCOL]
    return {
        "stages": {
            number: stage.take_out(slots[spoken == number], data)
            for number, stage in parts.stages.items()
            if (spoken == number).any()
        },
        "detector": parts.detector.take_out(slots),
        "tls": parts.tls.take_out(slots),
        "connections": parts.connections.take_out(slots),
        "gaps": parts.gaps.take_out(slots),
        "acked": parts.acked.take_out(slots),
        "accounting": parts.accounting.take_out(slots),
        "tcp": transfer.take_out(parts.tcp, slots, data),
    }


def put_connections(parts: Parts, state: dict[str, Any], captures: Ints, buffer: Buffer) -> None:
    """Put connections back. `captures` has for each index of a capture there what it is here."""
    slots = transfer.put_back(parts.tcp, state["tcp"], captures, buffer)
    facts = parts.tcp.flows.facts
    spoken = facts[slots, Facts.PROTOCOL]
    target = Target(slots, len(facts), captures, buffer)
    parts.accounting.add(slots, state["accounting"])
    parts.connections.put_back(state["connections"], target)
    parts.tls.put_back(state["tls"], target, lambda slot: parts.connections.record(slot).tls)
    parts.detector.put_back(state["detector"], target)
    parts.gaps.put_back(state["gaps"], slots, captures)
    parts.acked.put_back(state["acked"], slots)
    for number, data in state["stages"].items():
        parts.stages[number].put_back(data, target._replace(slots=slots[spoken == number]))


def take_rest(parts: Parts) -> dict[str, Any]:
    """Take out what belongs to no open connection."""
    return {
        "packets": parts.packets.take_out(),
        "identities": parts.tcp.identities(),
        "secrets": parts.tls.keylog.written(),
    }


def put_rest(parts: Parts, state: dict[str, Any], captures: Ints) -> None:
    """Put back what `take_rest` took."""
    parts.packets.put_back(state["packets"], captures)
    parts.tcp.remember(state["identities"])
    if state["secrets"]:
        parts.tls.keylog.add(state["secrets"])


def merge_captures(names: list[str], points: list[int], known: list[str], known_points: list[int]) -> Ints:
    """Return what the indexes of captures are where others are known; those that are not known there are appended.

    `points` are the indexes of captures, too.
    """
    places = {name: index for index, name in enumerate(known)}
    for name in names:
        if name not in places:
            places[name] = len(known)
            known.append(name)
    captures = np.array([places[name] for name in names] or [0], np.int64)
    for index, point in zip(captures[: len(points)].tolist(), points, strict=True):
        if index == len(known_points):
            known_points.append(int(captures[point]))
    return captures


def sealed(head: bytes, state: Any) -> bytes:
    """Return state as bytes that begin with `head`."""
    data = zlib.compress(PLAIN.written(state), LEVEL)
    return head + zlib.crc32(data).to_bytes(HEAD, "little") + data


def opened(head: bytes, data: bytes) -> Any:
    """Return the state from which `sealed` made bytes.

    Raises:
        StateError: they do not begin so, or are damaged.
    """
    if not data.startswith(head):
        raise StateError("not the state of a dissector of this release with these options")
    check, body = data[len(head) : len(head) + HEAD], data[len(head) + HEAD :]
    if zlib.crc32(body).to_bytes(HEAD, "little") != check:
        raise StateError("the state of a dissector is damaged")
    return PLAIN.read(zlib.decompress(body))
