"""Which protocol a connection speaks, by content and in both directions, or as a port says.

A connection seen from its start is judged by its client's first bytes, which are held back until they are
enough. One that was under way when the capture began is judged by frames that follow each other; what does
not look like any is skipped and counted.
"""

import functools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from amqpscope.dissector.kernels import limits
from amqpscope.dissector.kernels.accounting import CHUNK_COST
from amqpscope.dissector.kernels.arrays import Ints
from amqpscope.dissector.kernels.coding import Coding, Target
from amqpscope.dissector.kernels.retained import Buffer
from amqpscope.dissector.protocols import registry
from amqpscope.dissector.protocols.client_side import HEADER, MAGIC, client_by_header, client_by_tls
from amqpscope.dissector.protocols.registry import TLS, UNKNOWN, Context, Recogniser
from amqpscope.dissector.tcp.roles import clients, roles_by
from amqpscope.dissector.tcp.state import BY_CONTENT, Chunk, Facts
from amqpscope.dissector.tls.records import boundary

HELLO = b"\x16\x03"
"""With this TLS begins, and nothing else that is known here."""
START = 16
"""Bytes of each direction that are looked at."""
PROXY_1, PROXY_2 = b"PROXY ", b"\r\n\r\n\0\r\nQUIT\n"
"""A proxy's header begins with these, and names the client (HAProxy's PROXY protocol, versions 1 and 2)."""
PROXY_LINE, PROXY_HEAD = 107, 16
"""The longest line of version 1 (§2.1), and the fixed part of version 2, whose end is the length of the rest (§2.2)."""
MOST_HELD = 256
"""Chunks of one connection held back until its protocol is known."""
CHAIN = 3
"""Heads of TLS records in a row by which TLS is recognised in the middle, on other ports than these."""


@dataclass(slots=True)
class Probe:
    """What is known of an undecided connection."""

    first_bytes: tuple[bytearray, bytearray] = field(default_factory=lambda: (bytearray(), bytearray()))
    held: list[tuple[Ints, bytes]] = field(default_factory=list)
    seen: int = 0
    skipped: int = 0
    held_bytes: int = 0
    header: int = -1
    """The side whose header waits for what the other side says, which shows who is the client."""
    proxy: int = 0
    """Bytes of a proxy's header before what the client says."""
    lost: list[bool] = field(default_factory=lambda: [False, False])
    """By side, whether the beginning lies in a gap: what is seen first is from the middle, and judged as such."""
    due: dict[tuple[int, int], int] = field(default_factory=dict)
    """By protocol and side, where a frame must end that is longer than chunks, if it is one."""


STATE = Coding(Probe)


class Detector:
    """Sorts chunks by protocol; `ports` are protocols that are forced, by port, `brokers` where brokers listen."""

    def __init__(self, context: Context, ports: dict[int, str], brokers: Ints) -> None:
        self.accounting = context.accounting
        self.record = context.record
        self.ports = {port: registry.number_of(name) for port, name in ports.items()}
        self.brokers = brokers
        self.serving = frozenset(brokers.tolist())
        self.tls_ports = registry.tls_ports()
        self.magics = (HELLO, *(header[:MAGIC] for plugin in registry.protocols() for header in plugin.headers))
        self.context = context
        self.probes: dict[int, Probe] = {}
        self.decided: dict[int, int] = {}
        """Slots decided since the caller last looked, with the number of bytes skipped before."""
        self.held: dict[int, int] = {}
        """Directions with bytes that were held back, since the caller last looked, and the position after these."""
        self.opened: set[int] = set()
        """Slots whose TLS was opened: what is judged now is what it carries."""

    @functools.cached_property
    def recognisers(self) -> list[tuple[int, Recogniser]]:
        """What sees protocols in the middle of connections, by number; made when the first of these is looked at."""
        return [(n, each.recogniser(self.context)) for n, each in registry.numbered() if each.recogniser]

    def sort(self, chunks: Ints, buffer: Buffer, facts: Ints) -> Ints:
        """Return the chunks of decided connections; those held back for one stand before the chunk that decides it."""
        slots = chunks[Chunk.SLOT]
        waiting = np.flatnonzero(facts[:, Facts.PROTOCOL].copy()[slots] == 0)
        if not len(waiting):
            return chunks
        undecided = np.unique(slots[waiting])
        facts[undecided, Facts.ROLES_BY] = roles_by(facts, undecided, self.brokers)
        facts[undecided, Facts.CLIENT] = clients(facts, undecided, self.brokers)
        keep = np.ones(chunks.shape[1], np.bool_)
        released: list[Ints] = []
        places: list[int] = []
        for i in self._undecided(waiting, slots, facts):
            slot = int(slots[i])
            probe = self.probes.get(slot)
            if probe is None:
                probe = self.probes[slot] = Probe()
            self._look(chunks[:, i], probe, buffer, facts, slot)
            if facts[slot, Facts.PROTOCOL] == 0:
                keep[i] = False
                continue
            released += self._release(slot, probe, buffer, facts)
            places += [i] * (len(released) - len(places))
            keep[i] = keep_after(chunks[:, i], probe.proxy, int(facts[slot, Facts.CLIENT]))
        if keep.all() and not released:
            return chunks
        rest = chunks[:, keep]
        if not released:
            return np.ascontiguousarray(rest)
        order = np.argsort(np.concatenate([places, np.flatnonzero(keep)]), kind="stable")
        return np.ascontiguousarray(np.concatenate([np.stack(released, axis=1), rest], axis=1)[:, order])

    def settle(self, ended: Ints, buffer: Buffer, facts: Ints) -> Ints:
        """Return the chunks of ended connections that never showed which protocol of several has their header."""
        released: list[Ints] = []
        for slot in ended.tolist():
            probe = self.probes.get(slot)
            if probe and (facts[slot, Facts.SYN] != 0 or probe.header >= 0) and probe.skipped == 0:
                facts[slot, Facts.PROTOCOL] = judge_start(*self._client_first(probe, facts, slot), waits=False) or 0
                if facts[slot, Facts.PROTOCOL] > 0:
                    released += self._release(slot, probe, buffer, facts)
        return np.stack(released, axis=1) if released else np.zeros((Chunk.WIDTH, 0), np.int64)

    def _release(self, slot: int, probe: Probe, buffer: Buffer, facts: Ints) -> list[Ints]:
        """Return the chunks that were held back of a connection that is decided."""
        released = []
        self.decided[slot] = probe.skipped
        self.accounting.change(slot, -probe.held_bytes - CHUNK_COST * len(probe.held))
        del self.probes[slot]
        for column, data in probe.held:
            if data:
                column[Chunk.OFFSET] = buffer.append(np.frombuffer(data, np.uint8))
            if keep_after(column, probe.proxy, int(facts[slot, Facts.CLIENT])):
                released.append(column)
                self.held[2 * slot + int(column[Chunk.SIDE])] = int(column[Chunk.POS] + column[Chunk.LENGTH])
        return released

    @staticmethod
    def _undecided(waiting: Ints, slots: Ints, facts: Ints) -> Iterator[int]:
        """Yield indexes of chunks whose connection is undecided by then; mostly the first of each decides."""
        _, first = np.unique(slots[waiting], return_index=True)
        yield from waiting[np.sort(first)].tolist()
        rest = np.delete(waiting, first)
        for i in rest[facts[slots[rest], Facts.PROTOCOL] == 0].tolist():
            if facts[slots[i], Facts.PROTOCOL] == 0:
                yield i

    def holding(self, facts: Ints) -> Iterator[tuple[int, int, int]]:
        """Return undecided connections with bytes held back that seem to be a broker's: the first's side and time."""
        for slot, probe in self.probes.items():
            if probe.held and self.may_serve(slot, facts):
                first, _ = probe.held[0]
                yield slot, int(first[Chunk.SIDE]), int(first[Chunk.TS])

    def may_serve(self, slot: int, facts: Ints) -> bool:
        """Return whether a connection is undecided, and seems to be a broker's."""
        ports = {int(facts[slot, Facts.A_PORT]), int(facts[slot, Facts.B_PORT])}
        return facts[slot, Facts.PROTOCOL] == 0 and not self.serving.isdisjoint(ports)

    def reopen(self, slot: int, facts: Ints) -> None:
        """Decide anew of a connection: its TLS was opened."""
        self.opened.add(slot)
        facts[slot, Facts.PROTOCOL] = 0

    def forget(self, slots: Ints, facts: Ints) -> dict[int, Probe]:
        """Drop what is known of connections that are over; returns the probes of the undecided among them."""
        gone = {slot: self.probes.pop(slot) for slot in slots.tolist() if slot in self.probes}
        for slot, probe in gone.items():
            probe.skipped += probe.held_bytes
            if slot in self.opened:
                facts[slot, Facts.PROTOCOL] = TLS
        self.opened.difference_update(slots.tolist())
        return gone

    def take_out(self, slots: Ints) -> bytes:
        """Take out what is known of undecided connections, and which ones' TLS was opened."""
        taken = []
        for slot in slots.tolist():
            probe = self.probes.pop(slot, None)
            columns, data = zip(*probe.held, strict=True) if probe and probe.held else ((), ())
            held = np.array(columns, np.int64).reshape(-1, Chunk.WIDTH)
            taken.append((probe and replace(probe, held=[]), Chunk.written(held), data, slot in self.opened))
            self.opened.discard(slot)
        return STATE.written(taken)

    def put_back(self, data: bytes, target: Target) -> None:
        """Put back what `take_out` took."""
        for slot, each in zip(target.slots.tolist(), STATE.read(data, target.captures), strict=True):
            probe, held, parts, is_open = each
            if is_open:
                self.opened.add(slot)
            if probe:
                columns = Chunk.read(held, target.captures)
                columns[:, Chunk.SLOT] = slot
                self.probes[slot] = replace(probe, held=list(zip(columns, parts, strict=True)))

    def _look(self, chunk: Ints, probe: Probe, buffer: Buffer, facts: Ints, slot: int) -> None:
        offset, length, side = int(chunk[Chunk.OFFSET]), int(chunk[Chunk.LENGTH]), int(chunk[Chunk.SIDE])
        probe.seen += length
        if offset < 0 and len(probe.first_bytes[side]) < HEADER:
            probe.first_bytes[side].clear()
            probe.lost[side] = True
        whole = facts[slot, Facts.SYN] != 0 and probe.skipped == 0 and self._begins(probe, facts, slot)
        most = limits.HELD if probe.first_bytes[side].startswith((PROXY_1[:1], PROXY_2[:1])) else START
        if offset >= 0 and len(probe.first_bytes[side]) < most:
            probe.first_bytes[side].extend(buffer.data[offset : offset + min(length, limits.HELD)].tobytes())
        header = proxy_header(bytes(probe.first_bytes[facts[slot, Facts.CLIENT]])) if whole else 0
        probe.proxy = header or 0
        forced = self._forced(probe, facts, slot)
        if forced and header is not None:
            facts[slot, Facts.PROTOCOL] = forced
            if whole:
                self._contradict(forced, slot, *self._client_first(probe, facts, slot))
            return
        if whole:
            client, server = self._client_first(probe, facts, slot)
            waits = offset >= 0 and probe.held_bytes + length <= limits.HELD
            verdict = judge_start(client, server, waits) if header is not None else None
            if verdict:
                facts[slot, Facts.PROTOCOL] = verdict
                return
            if verdict == 0 and facts[slot, Facts.SYN] & 1 and foreign(client):
                facts[slot, Facts.PROTOCOL] = UNKNOWN
                return
            if verdict is None and waits:
                self._hold(slot, probe, chunk, buffer.data[offset : offset + length].tobytes())
                return
        if facts[slot, Facts.SYN] != 0 and any(probe.lost) and serves_others(self._client_first(probe, facts, slot)[1]):
            facts[slot, Facts.PROTOCOL] = UNKNOWN
            return
        if offset >= 0:
            first = side if probe.header < 0 else probe.header
            data = bytes(probe.first_bytes[first][:START])
            is_first = probe.skipped == 0 and data.startswith(self.magics)
            if is_first and (verdict := judge_start(data[:HEADER], b"", waits=False)):
                waits = facts[slot, Facts.OPENER] < 0 and self._find_client(probe, facts, slot, first, verdict)
                if waits and probe.held_bytes + length <= limits.HELD:
                    probe.header = first
                    self._hold(slot, probe, chunk, buffer.data[offset : offset + length].tobytes())
                    return
                facts[slot, Facts.PROTOCOL] = verdict
                return
            if recognised := self._recognise(chunk, probe, buffer):
                facts[slot, Facts.PROTOCOL] = recognised
                return
            chain = 1 if self.tls_ports & {int(facts[slot, Facts.A_PORT]), int(facts[slot, Facts.B_PORT])} else CHAIN
            if slot not in self.opened and boundary(buffer.data[offset : offset + length].tobytes(), chain) >= 0:
                facts[slot, Facts.PROTOCOL] = TLS
                return
        self._hold_in_the_middle(slot, chunk, probe, buffer, facts[slot, Facts.SYN] == 0 or any(probe.lost))
        if probe.seen > limits.PROBE:
            facts[slot, Facts.PROTOCOL] = UNKNOWN

    def _find_client(self, probe: Probe, facts: Ints, slot: int, side: int, protocol: int) -> bool:
        """Note who is the client by what a side begins with; return whether the other side's answer may correct it."""
        mine, other = (bytes(probe.first_bytes[each]) for each in (side, 1 - side))
        waits = False
        client = None
        if protocol == TLS:
            client = client_by_tls(mine, side)
        elif probe.header >= 0 or not other:
            listening = [int(facts[slot, port]) in self.serving for port in (Facts.A_PORT, Facts.B_PORT)]
            listens = listening[side] if listening[0] != listening[1] else None
            client = client_by_header(registry.protocols()[protocol - 1], side, mine, other, listens)
            waits = client is None
            client = side if waits else client
        if client is not None:
            facts[slot, Facts.CLIENT], facts[slot, Facts.ROLES_BY] = client, BY_CONTENT
        return waits

    def _contradict(self, forced: int, slot: int, client: bytes, server: bytes) -> None:
        """Note where the first bytes are those of another protocol than the one that a port stands for."""
        found = judge_start(client, server, waits=False)
        own = registry.protocols()[forced - 1].headers if forced > 0 else ()
        name = registry.name_of(found) if found else ""
        if name and name != registry.name_of(forced) and not client.startswith(own):
            self.record(slot).facts["contradicted_by"] = name

    def _recognise(self, chunk: Ints, probe: Probe, buffer: Buffer) -> int:
        """Return the protocol whose frames these bytes are, 0 where they seem to be none."""
        begin, end, side = (
            int(chunk[Chunk.OFFSET]),
            int(chunk[Chunk.OFFSET] + chunk[Chunk.LENGTH]),
            int(chunk[Chunk.SIDE]),
        )
        for number, recogniser in self.recognisers:
            due = probe.due.get((number, side), -1)
            is_it, probe.due[number, side] = recogniser.look(buffer.data, begin, end, int(chunk[Chunk.POS]), due)
            if is_it:
                return number
        return 0

    def _hold(self, slot: int, probe: Probe, chunk: Ints, data: bytes) -> None:
        probe.held.append((chunk.copy(), data))
        probe.held_bytes += len(data)
        self.accounting.change(slot, len(data) + CHUNK_COST)

    def _hold_in_the_middle(self, slot: int, chunk: Ints, probe: Probe, buffer: Buffer, held: bool) -> None:
        """Keep the latest bytes of a connection not seen from its start; its frames may be longer than chunks."""
        offset, length = int(chunk[Chunk.OFFSET]), int(chunk[Chunk.LENGTH])
        most = limits.HELD_MIDDLE if held else 0
        most *= 4 if max(probe.due.values(), default=-1) >= 0 else 1
        data = buffer.data[offset : offset + length].tobytes() if offset >= 0 else b""
        self._hold(slot, probe, chunk, data)
        passed = 0
        while passed < len(probe.held) and (probe.held_bytes > most or len(probe.held) - passed > MOST_HELD):
            column, data = probe.held[passed]
            probe.held_bytes -= len(data)
            self.accounting.change(slot, -len(data) - CHUNK_COST)
            probe.skipped += int(column[Chunk.LENGTH])
            passed += 1
        del probe.held[:passed]

    def _forced(self, probe: Probe, facts: Ints, slot: int) -> int:
        """Return the protocol that a port stands for, 0 where content decides. TLS before it shows by its hello."""
        forced = self.ports.get(int(facts[slot, Facts.A_PORT])) or self.ports.get(int(facts[slot, Facts.B_PORT])) or 0
        if slot in self.opened:
            return 0 if forced == TLS else forced
        if forced == TLS or not any(data.startswith(HELLO[:1]) for data in probe.first_bytes):
            return forced
        return forced if judge_start(*self._client_first(probe, facts, slot)) == 0 else 0

    @staticmethod
    def _begins(probe: Probe, facts: Ints, slot: int) -> bool:
        """Return whether the first bytes of the client are no others', or those of the server where it said nothing."""
        client = int(facts[slot, Facts.CLIENT])
        return not probe.lost[client] and (bool(probe.first_bytes[client]) or not probe.lost[1 - client])

    def _client_first(self, probe: Probe, facts: Ints, slot: int) -> tuple[bytes, bytes]:
        """Return what the client and the server begin with, as far as that is known."""
        client = int(facts[slot, Facts.CLIENT])
        data = b"" if probe.lost[client] else probe.first_bytes[client][probe.proxy :]
        return bytes(data[:START]), b"" if probe.lost[1 - client] else bytes(probe.first_bytes[1 - client][:START])


def foreign(client: bytes) -> bool:
    """Return whether a client that begins so never speaks a known protocol: frames inside would be somebody's files.

    What a proxy puts before it is not looked at.
    """
    return bool(client) and not client.startswith(b"\0\0")


def serves_others(server: bytes) -> bool:
    """Return whether a server that begins so never speaks a known protocol, whatever its client began with."""
    begins = {HELLO[0], *(plugin.frames_begin for plugin in registry.protocols())}
    return bool(server) and judge_start(b"", server) == 0 and foreign(server) and server[0] not in begins


def proxy_header(client: bytes) -> int | None:
    """Return the size of the proxy header that begins a client's bytes: 0 for none, None while it is incomplete."""
    if client.startswith(PROXY_1):
        end = client.find(b"\r\n", 0, PROXY_LINE)
        return end + 2 if end > 0 else None if len(client) < PROXY_LINE else 0
    if client.startswith(PROXY_2):
        size = PROXY_HEAD + int.from_bytes(client[14:16], "big")
        return size if len(client) >= max(size, PROXY_HEAD) else None
    return None if client and (PROXY_1.startswith(client) or PROXY_2.startswith(client)) else 0


def keep_after(chunk: Ints, position: int, client: int) -> bool:
    """Remove from a chunk what the client sent before this position. Return whether anything is left."""
    cut = min(position - int(chunk[Chunk.POS]), int(chunk[Chunk.LENGTH])) if chunk[Chunk.SIDE] == client else 0
    if cut > 0:
        chunk[Chunk.POS] += cut
        chunk[Chunk.LENGTH] -= cut
        if chunk[Chunk.OFFSET] >= 0:
            chunk[Chunk.OFFSET] += cut
    return bool(chunk[Chunk.LENGTH] > 0)


def judge_start(client: bytes, server: bytes, waits: bool = True) -> int | None:
    """Return the protocol that a connection begins with; None when more bytes are needed, 0 when it is none of ours.

    Protocols with the same header differ in the first frame of either side; with `waits`, it is waited for, as is the
    header of a client after that of a broker, which may refuse it.
    """
    headers: dict[bytes, dict[int | None, int]] = {}
    for number, plugin in registry.numbered():
        for header in plugin.headers:
            headers.setdefault(header, {})[plugin.frames_begin] = number
    if not client:
        for header, sharing in headers.items():
            if server.startswith(header) and (len(server) > len(header) or not waits):
                return _sharer(sharing, server[len(header) :])
        return None if len(server) < MAGIC or any(server[:MAGIC] == header[:MAGIC] for header in headers) else 0
    if client.startswith(HELLO[:1]):
        if len(client) < 3:
            return None
        return TLS if client[1] == HELLO[1] and client[2] <= 4 else 0
    for header, sharing in headers.items():
        if client.startswith(header):
            frames = server or client[len(header) :]
            return None if len(sharing) > 1 and waits and not frames else _sharer(sharing, frames)
    if any(header.startswith(client) for header in headers):
        return None
    for number, plugin in registry.numbered():
        if begins := plugin.begins(client):
            return number
        if begins is None:
            return None
    return 0


def _sharer(sharing: dict[int | None, int], frames: bytes) -> int:
    """Return which of the protocols that share a header these frames are of, by the byte with which theirs begin."""
    return sharing.get(frames[0] if frames else None, sharing.get(None, 0))
