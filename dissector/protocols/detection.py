"""Which protocol a connection speaks, by content and in both directions, or as a port says.

A connection seen from its start is judged by its client's first bytes, which are held back until they are
enough. One that was under way when the capture began is judged by frames that follow each other; what does
not look like any is passed over and counted.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from amqpscope.dissector.kernels import limits
from amqpscope.dissector.kernels.accounting import PIECE_COST, MemoryAccounting
from amqpscope.dissector.kernels.arrays import Ints
from amqpscope.dissector.kernels.kernel import call
from amqpscope.dissector.kernels.retained import Buffer
from amqpscope.dissector.protocols.amqp091 import layout as ly
from amqpscope.dissector.protocols.amqp091.boundary import frame_follows, long_frame
from amqpscope.dissector.protocols.amqp091.boundary import looks_like_frames as looks_like_amqp
from amqpscope.dissector.protocols.stream.boundary import looks_like_frames as looks_like_stream
from amqpscope.dissector.tcp.layout import (
    C_A_PORT,
    C_B_PORT,
    C_CLIENT,
    C_PROTOCOL,
    C_SYN,
    S_LENGTH,
    S_OFFSET,
    S_POS,
    S_SIDE,
    S_SLOT,
)
from amqpscope.dissector.tcp.state import Facts
from amqpscope.dissector.tls.records import boundary
from amqpscope.spec.model import Protocol

PROTOCOLS = ("", "amqp-0-9-1", "amqp-0-10", "rabbitmq-stream", "amqp-1.0", "tls", "unknown")
"""Protocol names by their number in the connection's state; 0 is undecided."""
AMQP_0_9_1, AMQP_0_10, STREAM, AMQP_1_0, TLS, UNKNOWN = range(1, len(PROTOCOLS))
HELLO = b"\x16\x03"
"""With this TLS begins, and nothing else that is known here."""
HELLOS = (1, 2)
"""Of client and server: the byte behind the head of a record. Any other message may be of either side."""
START = 16
"""Bytes of each direction that are looked at."""
PROXY_1, PROXY_2 = b"PROXY ", b"\r\n\r\n\0\r\nQUIT\n"
"""With these a proxy's header begins that tells whose connection it is (HAProxy's PROXY protocol, versions 1 and 2)."""
PROXY_LINE, PROXY_HEAD = 107, 16
"""The longest line of version 1 (§2.1), and the fixed part of version 2, whose end is the length of the rest (§2.2)."""
SERVER_PORTS = {5672, 5671, 5552, 5551}
TLS_PORTS = {5671, 5551}
MOST_HELD = 256
"""Pieces of one connection held back until its protocol is known."""
CHAIN = 3
"""Heads of TLS records in a row by which TLS is recognised in the middle, on other ports than these."""

HEADERS = {
    b"\x00\x00\x09\x01": AMQP_0_9_1,
    b"\x01\x01\x00\x09": AMQP_0_9_1,
    b"\x01\x01\x09\x01": AMQP_0_9_1,
    b"\x01\x01\x08\x00": AMQP_0_9_1,
    b"\x01\x01\x00\x08": AMQP_0_9_1,
    b"\x01\x01\x00\x0a": AMQP_0_10,
    b"\x00\x01\x00\x00": AMQP_1_0,
    b"\x02\x01\x00\x00": AMQP_1_0,
    b"\x03\x01\x00\x00": AMQP_1_0,
}
"""What follows `AMQP`. 0-8 and 0-9 frame as 0-9-1 does; unknown versions are read so too."""


@dataclass(slots=True)
class Probe:
    """What is known of an undecided connection."""

    octets: tuple[bytearray, bytearray] = field(default_factory=lambda: (bytearray(), bytearray()))
    held: list[tuple[Ints, bytes]] = field(default_factory=list)
    seen: int = 0
    skipped: int = 0
    octets_held: int = 0
    proxy: int = 0
    """Bytes of a proxy's header in front of what the client says."""
    due: list[int] = field(default_factory=lambda: [-1, -1])
    """Of each side, where a frame must end that is longer than pieces, if it is one; -1: none."""


class Detector:
    """Sorts pieces by protocol; `ports` are forced ones, `layouts` is the table of the stream protocol's layouts.

    What is held back counts in `accounting`.
    """

    def __init__(
        self, protocol: Protocol, ports: dict[int, str], compiled: bool, layouts: Ints, accounting: MemoryAccounting
    ) -> None:  # fmt: skip
        self.accounting = accounting
        self.layouts = layouts
        self.compiled = compiled
        self.ports = {port: PROTOCOLS.index(name) for port, name in ports.items()}
        self.methods = ly.method_table([(m.class_id, m.id) for m in protocol.methods])
        self.probes: dict[int, Probe] = {}
        self.held = 0
        self.decided: dict[int, int] = {}
        """Slots decided since the caller last looked, with the bytes passed over before."""
        self.opened: set[int] = set()
        """Slots whose TLS was opened: what is judged now is what it carries."""

    def sort(self, pieces: Ints, buffer: Buffer, conn: Ints) -> Ints:
        """Hand on the pieces of decided connections; those held back for one come first when it is decided."""
        slots = pieces[S_SLOT]
        waiting = np.flatnonzero(conn[:, C_PROTOCOL].copy()[slots] == 0)
        if not len(waiting):
            return pieces
        keep = np.ones(pieces.shape[1], np.bool_)
        released: list[Ints] = []
        for i in self._undecided(waiting, slots, conn):
            slot = int(slots[i])
            probe = self.probes.get(slot)
            if probe is None:
                probe = self.probes[slot] = Probe()
                self._orient_by_port(conn, slot)
            self._look(pieces[:, i], probe, buffer, conn, slot)
            if conn[slot, C_PROTOCOL] == 0:
                keep[i] = False
                continue
            self.decided[slot] = probe.skipped
            self.held -= probe.octets_held
            self.accounting.change(slot, -probe.octets_held - PIECE_COST * len(probe.held))
            del self.probes[slot]
            for column, octets in probe.held:
                if octets:
                    column[S_OFFSET] = buffer.append(np.frombuffer(octets, np.uint8))
                if behind(column, probe.proxy, int(conn[slot, C_CLIENT])):
                    released.append(column)
            keep[i] = behind(pieces[:, i], probe.proxy, int(conn[slot, C_CLIENT]))
        if keep.all() and not released:
            return pieces
        rest = pieces[:, keep]
        return np.ascontiguousarray(np.concatenate([np.stack(released, axis=1), rest], axis=1) if released else rest)

    @staticmethod
    def _undecided(waiting: Ints, slots: Ints, conn: Ints) -> Iterator[int]:
        """Indexes of pieces whose connection is undecided when its turn comes; mostly the first of each decides."""
        _, first = np.unique(slots[waiting], return_index=True)
        yield from waiting[np.sort(first)].tolist()
        rest = np.delete(waiting, first)
        for i in rest[conn[slots[rest], C_PROTOCOL] == 0].tolist():
            if conn[slots[i], C_PROTOCOL] == 0:
                yield i

    def holding(self, conn: Ints) -> Iterator[tuple[int, int]]:
        """Undecided connections that hold bytes back and seem to be a broker's, and the side of the first."""
        brokers = SERVER_PORTS | self.ports.keys()
        for slot, probe in self.probes.items():
            if probe.held and brokers & {int(conn[slot, C_A_PORT]), int(conn[slot, C_B_PORT])}:
                yield slot, int(probe.held[0][0][S_SIDE])

    def reopen(self, slot: int, facts: Ints) -> None:
        """Decide anew of a connection: its TLS was opened."""
        self.opened.add(slot)
        facts[slot, Facts.PROTOCOL] = 0

    def forget(self, slots: Ints, facts: Ints) -> dict[int, Probe]:
        """Drop what is known of connections that are over; returns the probes of the undecided among them."""
        gone = {slot: self.probes.pop(slot) for slot in slots.tolist() if slot in self.probes}
        for slot, probe in gone.items():
            self.held -= probe.octets_held
            probe.skipped += probe.octets_held
            if slot in self.opened:
                facts[slot, Facts.PROTOCOL] = TLS
        self.opened.difference_update(slots.tolist())
        return gone

    def _orient_by_port(self, conn: Ints, slot: int) -> None:
        if conn[slot, C_CLIENT] >= 0:
            return
        if conn[slot, Facts.OPENER] >= 0:
            conn[slot, C_CLIENT] = conn[slot, Facts.OPENER]
            return
        a, b = int(conn[slot, C_A_PORT]), int(conn[slot, C_B_PORT])
        known = SERVER_PORTS | self.ports.keys()
        if (a in known) != (b in known):
            conn[slot, C_CLIENT] = 1 if a in known else 0
        else:
            conn[slot, C_CLIENT] = 1 if a < b else 0

    def _look(self, piece: Ints, probe: Probe, buffer: Buffer, conn: Ints, slot: int) -> None:
        offset, length, side = int(piece[S_OFFSET]), int(piece[S_LENGTH]), int(piece[S_SIDE])
        probe.seen += length
        whole = conn[slot, C_SYN] != 0 and probe.skipped == 0
        most = limits.HELD if probe.octets[side].startswith((PROXY_1[:1], PROXY_2[:1])) else START
        if offset >= 0 and len(probe.octets[side]) < most:
            probe.octets[side].extend(buffer.data[offset : offset + min(length, limits.HELD)].tobytes())
        header = proxy_header(bytes(probe.octets[conn[slot, C_CLIENT]])) if whole else 0
        probe.proxy = header or 0
        forced = self._forced(probe, conn, slot)
        if forced and header is not None:
            conn[slot, C_PROTOCOL] = forced
            return
        if whole and offset >= 0:
            client, server = self._client_first(probe, conn, slot)
            verdict = judge_start(client, server) if header is not None else None
            if verdict:
                conn[slot, C_PROTOCOL] = verdict
                return
            if verdict == 0 and conn[slot, C_SYN] & 1 and foreign(client):
                conn[slot, C_PROTOCOL] = UNKNOWN
                return
            if verdict is None and probe.octets_held + length <= limits.HELD:
                self._hold(slot, probe, piece, buffer.data[offset : offset + length].tobytes())
                return
        if offset >= 0:
            start = call(looks_like_amqp, self.compiled, buffer.data, offset, offset + length, self.methods)
            octets = bytes(probe.octets[side][:8])
            is_first = probe.skipped == 0 and octets.startswith((b"AMQP", HELLO))
            if is_first and (verdict := judge_start(octets, b"")):
                conn[slot, C_PROTOCOL] = verdict
                if verdict != TLS:
                    conn[slot, C_CLIENT] = side
                elif conn[slot, C_SYN] == 0 and len(octets) > 5 and octets[5] in HELLOS:
                    conn[slot, C_CLIENT] = side if octets[5] == HELLOS[0] else 1 - side
                return
            if start >= 0 or self._ends(piece, probe, buffer):
                conn[slot, C_PROTOCOL] = AMQP_0_9_1
                return
            start = call(looks_like_stream, self.compiled, buffer.data, offset, offset + length, self.layouts)
            if start >= 0:
                conn[slot, C_PROTOCOL] = STREAM
                return
            chain = 1 if TLS_PORTS & {int(conn[slot, C_A_PORT]), int(conn[slot, C_B_PORT])} else CHAIN
            if slot not in self.opened and boundary(buffer.data[offset : offset + length].tobytes(), chain) >= 0:
                conn[slot, C_PROTOCOL] = TLS
                return
        self._hold_in_the_middle(slot, piece, probe, buffer, conn[slot, C_SYN] == 0)
        if probe.seen > limits.PROBE:
            conn[slot, C_PROTOCOL] = UNKNOWN

    def _ends(self, piece: Ints, probe: Probe, buffer: Buffer) -> bool:
        """Whether a frame longer than pieces ends in this one, where its head said; else looks for such a head."""
        offset, length, side = int(piece[S_OFFSET]), int(piece[S_LENGTH]), int(piece[S_SIDE])
        end = offset + length
        due = probe.due[side] - int(piece[S_POS]) + offset if probe.due[side] >= 0 else -1
        if due > end - 7:
            return False
        if due >= offset and call(frame_follows, self.compiled, buffer.data, offset, due, end, self.methods):
            return True
        begin = call(long_frame, self.compiled, buffer.data, offset, end, self.methods)
        octets = int.from_bytes(buffer.data[begin + 3 : begin + 7].tobytes(), "big") + ly.OVERHEAD
        probe.due[side] = int(piece[S_POS]) + begin - offset + octets if begin >= 0 else -1
        return False

    def _hold(self, slot: int, probe: Probe, piece: Ints, octets: bytes) -> None:
        probe.held.append((piece.copy(), octets))
        probe.octets_held += len(octets)
        self.held += len(octets)
        self.accounting.change(slot, len(octets) + PIECE_COST)

    def _hold_in_the_middle(self, slot: int, piece: Ints, probe: Probe, buffer: Buffer, held: bool) -> None:
        """Keep the latest bytes of a connection not seen from its start; its frames may be longer than pieces."""
        offset, length = int(piece[S_OFFSET]), int(piece[S_LENGTH])
        most = limits.HELD_MIDDLE if held and self.held < limits.HELD_IN_ALL else 0
        most *= 4 if max(probe.due) >= 0 else 1
        octets = buffer.data[offset : offset + length].tobytes() if offset >= 0 else b""
        self._hold(slot, probe, piece, octets)
        passed = 0
        while passed < len(probe.held) and (probe.octets_held > most or len(probe.held) - passed > MOST_HELD):
            column, octets = probe.held[passed]
            probe.octets_held -= len(octets)
            self.held -= len(octets)
            self.accounting.change(slot, -len(octets) - PIECE_COST)
            probe.skipped += int(column[S_LENGTH])
            passed += 1
        del probe.held[:passed]

    def _forced(self, probe: Probe, conn: Ints, slot: int) -> int:
        """The protocol that a port stands for, 0 where content decides. TLS in front of it shows by its hello."""
        forced = self.ports.get(int(conn[slot, C_A_PORT])) or self.ports.get(int(conn[slot, C_B_PORT])) or 0
        if slot in self.opened:
            return 0 if forced == TLS else forced
        if forced == TLS or not any(octets.startswith(HELLO[:1]) for octets in probe.octets):
            return forced
        return forced if judge_start(*self._client_first(probe, conn, slot)) == 0 else 0

    def _client_first(self, probe: Probe, conn: Ints, slot: int) -> tuple[bytes, bytes]:
        client = int(conn[slot, C_CLIENT])
        octets = probe.octets[client][probe.proxy :]
        return bytes(octets[:START]), bytes(probe.octets[1 - client][:START])


def foreign(client: bytes) -> bool:
    """Whether a client that begins so will never speak a protocol of ours: frames in it would be somebody's files.

    What a proxy puts in front of it is not looked at.
    """
    return bool(client) and not client.startswith(b"\0\0")


def proxy_header(client: bytes) -> int | None:
    """Bytes of a proxy's header with which a client's bytes begin: 0 when it is none, None when it is not whole."""
    if client.startswith(PROXY_1):
        end = client.find(b"\r\n", 0, PROXY_LINE)
        return end + 2 if end > 0 else None if len(client) < PROXY_LINE else 0
    if client.startswith(PROXY_2):
        octets = PROXY_HEAD + int.from_bytes(client[14:16], "big")
        return octets if len(client) >= max(octets, PROXY_HEAD) else None
    return None if client and (PROXY_1.startswith(client) or PROXY_2.startswith(client)) else 0


def behind(piece: Ints, position: int, client: int) -> bool:
    """Leave out of a piece what the client said before this position; False when nothing is left."""
    cut = min(position - int(piece[S_POS]), int(piece[S_LENGTH])) if piece[S_SIDE] == client else 0
    if cut > 0:
        piece[S_POS] += cut
        piece[S_LENGTH] -= cut
        if piece[S_OFFSET] >= 0:
            piece[S_OFFSET] += cut
    return bool(piece[S_LENGTH] > 0)


def judge_start(client: bytes, server: bytes) -> int | None:
    """The protocol that a connection begins with; None when more bytes are needed, 0 when it is none of ours."""
    if not client:
        return None if len(server) < len(b"AMQP") or server.startswith(b"AMQP") else 0
    if client.startswith(b"AMQP"):
        return HEADERS.get(client[4:8], AMQP_0_9_1) if len(client) >= 8 else None
    if client[:1] == b"\x16":
        if len(client) < 3:
            return None
        return TLS if client[1] == 3 and client[2] <= 4 else 0
    if b"AMQP".startswith(client[:4]):
        return None
    if len(client) < 8:
        return None if b"\x00\x00".startswith(client[:2]) else 0
    if client[4:8] == b"\x00\x11\x00\x01" and client[:2] == b"\x00\x00":
        return STREAM
    return 0
