"""One row per connection: its endpoints, how far its handshake came, what was negotiated, how it ended."""

import ipaddress
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from amqpscope.dissector.fields.arrow import array, of_rows
from amqpscope.dissector.formatting import endpoint
from amqpscope.dissector.handshakes import tls_facts
from amqpscope.dissector.handshakes.arguments import PeerArguments
from amqpscope.dissector.handshakes.first_use import FirstUses
from amqpscope.dissector.handshakes.inputs import Side, Tcp
from amqpscope.dissector.handshakes.record import CLASSES, FIRST, ConnectionRecord, PacketRef
from amqpscope.dissector.handshakes.verdict import Judge
from amqpscope.dissector.kernels.arrays import Bytes, Ints
from amqpscope.dissector.kernels.coding import Coding, Target
from amqpscope.dissector.packets.segments import FIN
from amqpscope.dissector.protocols import registry
from amqpscope.dissector.tables.guesses import Guesses
from amqpscope.dissector.tables.rows import kinds, record_batch
from amqpscope.dissector.tcp.roles import clients, roles_by
from amqpscope.dissector.tcp.state import (
    BOTH,
    REPEATS,
    ROLES_BY,
    SILENCE_NS,
    Chunk,
    Conn,
    Direction,
    Facts,
    Flows,
    Repeat,
)
from amqpscope.spec import handshakes
from amqpscope.spec.model import Protocol

FINS = 3
"""In Conn.CLOSED: both sides have closed the connection; more if one reset it."""
STATE = Coding(*CLASSES)
Endpoint = tuple[str, int]
"""Address and port."""
Halves = tuple[list[list[int]], list[list[list[int]]]]
"""The row of each side, and its retransmitted segments."""


class Closed(NamedTuple):
    """Ended connections.

    Attributes:
        records: the record of each.
        client: (n,): the client's side.
        roles_by: (n,): what shows that: an index into `ROLES_BY`.
        facts: (n, Facts): copies of their rows, as all further matrices.
        conn: (n, Conn).
        sides: (n, 2, Direction).
        repeats: (n, 2, REPEATS, Repeat).
        messages: (n,): number of messages of each.
    """

    records: list[ConnectionRecord]
    client: Ints
    roles_by: Ints
    facts: Ints
    conn: Ints
    sides: Ints
    repeats: Ints
    messages: Ints


class Connections:
    """The records of all open connections, by slot.

    `protocol` names the reply codes, `named` are the ports that the user names, `brokers` all where brokers listen.
    """

    def __init__(self, protocol: Protocol, compiled: bool, named: Iterable[int], brokers: Ints) -> None:
        self.named = frozenset(named)
        self.brokers = brokers
        self.spoken: Counter[str] = Counter()
        """Number of ended connections of each protocol."""
        self.contradicted: Counter[tuple[str, str]] = Counter()
        """Those of them whose port the user named, by what was named and what the content is."""
        self.guesses = Guesses()
        self.judge = Judge(handshakes.load(), protocol)
        self.records: defaultdict[int, ConnectionRecord] = defaultdict(ConnectionRecord)
        self.record = self.records.__getitem__
        """Return the record of a slot, a new one when there is none."""
        self.used = FirstUses(compiled)
        self.messages = np.zeros(0, np.int64)
        """Number of messages, by slot."""

    def begin(self, chunks: Ints, data: Bytes, inside: bool = False) -> None:
        """Keep the first bytes of each side; `inside`: of the content of TLS."""
        early = np.flatnonzero(chunks[Chunk.POS] < FIRST)
        rows = [Chunk.SLOT, Chunk.SIDE, Chunk.OFFSET, Chunk.LENGTH, Chunk.TS, Chunk.PACKET, Chunk.CAPTURE]
        for slot, side, offset, length, *at in zip(*chunks[np.ix_(np.array(rows), early)].tolist(), strict=True):
            first = data[offset : offset + min(length, FIRST)].tobytes() if offset >= 0 else None
            record = self.record(slot)
            firsts = record.firsts if inside else record.outer or record.firsts
            if firsts[1 - side].at is None and not firsts[1 - side].lost:
                firsts[side].is_earlier = True
            firsts[side].add(first, PacketRef(*at))

    def count_messages(self, slots: Ints, many: Ints | None = None) -> None:
        """Count messages: one, or the number in `many`, for the connection in each slot."""
        counts = np.bincount(slots, many, len(self.messages)).astype(np.int64, copy=False)
        counts[: len(self.messages)] += self.messages
        self.messages = counts

    def take_out(self, slots: Ints) -> bytes:
        """Take out the records of connections, and what is counted of them."""
        messages, used = self._count(slots), self.used.seen(slots)
        records = [self.records.pop(slot, None) for slot in slots.tolist()]
        arguments = [
            record and {role: (dict(each), each.detail) for role, each in record.arguments.items()}
            for record in records
        ]
        plain = [record and replace(record, arguments={}) for record in records]
        self.used.forget(slots)
        self.messages[slots[slots < len(self.messages)]] = 0
        return STATE.written([plain, arguments, messages, used])

    def put_back(self, data: bytes, target: Target) -> None:
        """Put back what `take_out` returned."""
        records, arguments, messages, used = STATE.read(data, target.captures)
        for slot, record, roles in zip(target.slots.tolist(), records, arguments, strict=True):
            if record:
                record.arguments = {role: PeerArguments.of(*each) for role, each in roles.items()}
                self.records[slot] = record
        self.used.note(target.slots[used])
        self.count_messages(target.slots, messages)

    def close(self, slots: Ints, flows: Flows) -> Closed:
        """Take ended connections out of the state; `rows` may judge them later."""
        records = [self.record(slot) for slot in slots.tolist()]
        for slot in slots.tolist():
            del self.records[slot]
        messages = self._count(slots)
        spoken = flows.facts[slots, Facts.PROTOCOL].tolist()
        for number, count in Counter(spoken).items():
            self.spoken[registry.name_of(number)] += count
        for number, record in zip(spoken, records, strict=True):
            if "contradicted_by" in record.facts:
                self.contradicted[registry.name_of(number), str(record.facts["contradicted_by"])] += 1
        self.used.forget(slots)
        self.messages[slots[slots < len(self.messages)]] = 0
        seen = self._seen(slots, flows, records, messages)
        self.guesses.note(seen.facts, seen.client, seen.roles_by)
        return seen

    def under_way(self, slots: Ints, flows: Flows, captures: list[str]) -> pa.RecordBatch:
        """Return the rows that open connections would have now."""
        records = [self.records.get(slot, ConnectionRecord()) for slot in slots.tolist()]
        return self.rows(self._seen(slots, flows, records, self._count(slots)), captures, None)

    def _seen(self, slots: Ints, flows: Flows, records: list[ConnectionRecord], messages: Ints) -> Closed:
        count = len(flows.facts)
        return Closed(
            records=records,
            client=clients(flows.facts, slots, self.brokers),
            roles_by=roles_by(flows.facts, slots, self.brokers),
            facts=flows.facts[slots],
            conn=flows.conn[slots],
            sides=flows.direction.reshape(count, 2, Direction.WIDTH)[slots],
            repeats=flows.repeats.reshape(count, 2, REPEATS, Repeat.WIDTH)[slots],
            messages=messages,
        )

    def _count(self, slots: Ints) -> Ints:
        """Return the number of messages of each of these."""
        counted = slots < len(self.messages)
        messages = np.zeros(len(slots), np.int64)
        messages[counted] = self.messages[slots[counted]]
        return messages

    def rows(self, closed: Closed, captures: list[str], end_ns: int | None) -> pa.RecordBatch:
        """Return rows of `connections`; `end_ns` is the end of all captures, once known. Any thread may call it."""
        columns = (closed.client, closed.roles_by, closed.facts, closed.conn, closed.sides, closed.repeats)
        each = zip(closed.records, *(column.tolist() for column in columns), strict=True)
        judged = [
            self._judged(record, conn, self._tcp((client, by), facts, conn, (sides, repeats), end_ns), captures)
            for record, client, by, facts, conn, sides, repeats in each
        ]
        numbers = _numbers(closed)
        others = {name: kind for name, kind in kinds("connections").items() if name not in numbers}
        return record_batch("connections", numbers | of_rows(judged, others))

    def _judged(self, record: ConnectionRecord, conn: list[int], tcp: Tcp, captures: list[str]) -> dict[str, Any]:
        """Return the columns of one connection that do not come from TCP state."""
        closed_by = None
        if record.closer is not None:
            closed_by = "client-close" if record.closer == tcp.client else "server-close"
        elif conn[Conn.CLOSER] >= 0:
            who = "client" if conn[Conn.CLOSER] == tcp.client else "server"
            closed_by = f"{who}-{'rst' if conn[Conn.CLOSED] == 4 else 'fin'}"
        elif record.evicted:
            closed_by = "evicted"
        judged = self.judge(record, tcp, captures)
        judged |= {
            "protocol": tcp.protocol,
            "roles_by": tcp.roles_by,
            "client_ip": tcp.address,
            "server_ip": tcp.server[0],
            "first_capture": captures[conn[Conn.FIRST_CAPTURE]],
            "last_capture": captures[conn[Conn.LAST_CAPTURE]],
            "vantage": captures[conn[Conn.VANTAGE_CAPTURE]],
            "closed_by": closed_by,
            "skipped_bytes": record.skipped,
        }
        return judged | record.columns | record.properties | tls_facts.columns(record.tls, tcp.client)

    def _tcp(
        self, roles: tuple[int, int], facts: list[int], conn: list[int], halves: Halves, end_ns: int | None
    ) -> Tcp:
        client, by = roles
        both = endpoints(facts)
        server = both[1 - client]
        sides, repeats = halves
        is_over = conn[Conn.CLOSED] >= FINS
        return Tcp(
            client=client,
            sides=(_side(sides[client], repeats[client]), _side(sides[1 - client], repeats[1 - client])),
            begun=bool(facts[Facts.SYN]),
            ack=_where(conn, Conn.UP_TS, Conn.UP_PACKET, Conn.UP_CAPTURE) if facts[Facts.SYN] & 2 else None,
            until_ns=conn[Conn.LAST_TS] if is_over else max(end_ns or 0, conn[Conn.LAST_TS]),
            lost=bool(sides[0][Direction.LOST] or sides[1][Direction.LOST]),
            protocol=registry.name_of(facts[Facts.PROTOCOL]),
            address=both[client][0],
            server=server,
            is_broker=server[1] in self.named,
            roles_by=ROLES_BY[by],
            closer=conn[Conn.CLOSER],
        )


def _numbers(closed: Closed) -> dict[str, pa.Array]:
    """Return the columns of `connections` that come from TCP state, and the counts of frames and messages."""
    client, facts, conn, half = closed.client, closed.facts.T, closed.conn.T, np.moveaxis(closed.sides, 2, 0)
    each = np.arange(len(client))
    lost = half[Direction.LOST].sum(axis=1)
    is_over = half[Direction.END] != 0
    end = np.where(is_over, half[Direction.END_TS], np.iinfo(np.int64).max).min(axis=1)
    # Without both SYNs, it is unknown when a window was full.
    scale = half[Direction.WSCALE]
    rtt = conn[Conn.UP_TS] - conn[Conn.SYN_TS]
    is_timed = (facts[Facts.SYN] == 3) & (conn[Conn.SYN_TS] > 0) & (rtt >= 0)
    up = half[Direction.SYN_TS][each, 1 - client]
    is_answered = is_timed & (half[Direction.SYNS][each, 1 - client] == 1) & (conn[Conn.UP_TS] >= up)
    is_unscaled = (scale.min(axis=1) < 0) & (scale != -2).all(axis=1)
    found = {
        "connection_id": array(facts[Facts.ID]),
        "first_packet": array(conn[Conn.FIRST_PACKET]),
        "last_packet": array(conn[Conn.LAST_PACKET]),
        "first_ts_ns": array(conn[Conn.FIRST_TS]),
        "last_ts_ns": array(conn[Conn.LAST_TS]),
        "syn_seen": array(facts[Facts.SYN] & 1 != 0),
        "packets": array(conn[Conn.PACKETS]),
        "bytes": array(half[Direction.POS].sum(axis=1) - lost),
        "frames": array(facts[Facts.FRAMES]),
        "messages": array(closed.messages),
        "rtt_ns": array(rtt, mask=~is_timed),
        "client_rtt_ns": array(conn[Conn.UP_TS] - up, mask=~is_answered),
        "closed_ts_ns": array(end, mask=~is_over.any(axis=1)),
        "lost_bytes": array(lost),
        "retransmitted_bytes": array(half[Direction.AGAIN].sum(axis=1)),
        "duplicated_bytes": array(half[Direction.TWICE].sum(axis=1)),
        "capture_points": array(conn[Conn.POINTS], pa.int32(), mask=conn[Conn.POINTS] < 2),
        "quiet_ns": _quiet(conn, half, end),
        "outlived_ns": array(conn[Conn.OUTLIVED_NS], mask=conn[Conn.OUTLIVED_NS] == 0),
    }
    ports = np.stack((facts[Facts.A_PORT], facts[Facts.B_PORT]), axis=1)
    for name, side in (("client", client), ("server", 1 - client)):
        found |= {
            f"{name}_port": array(ports[each, side], pa.int32()),
            f"{name}_ack_ns": array(trip := half[Direction.TRIP_NS][each, 1 - side], mask=trip < 0),
            f"{name}_bare_ack_ns": array(bare := half[Direction.BARE_TRIP_NS][each, 1 - side], mask=bare < 0),
            f"{name}_zero_window_ns": array(half[Direction.ZERO_NS][each, side]),
            f"{name}_full_window_ns": array(half[Direction.FULL_NS][each, side], mask=is_unscaled),
        }
    return found


def _quiet(conn: Ints, half: Ints, end: Ints) -> pa.Array:
    """Return the silence at the end of each connection (ns); null where none was long.

    Args:
        conn: (Conn, n).
        half: (Direction, n, 2).
        end: (n,): time of the first FIN or RST; the largest number where there is none.
    """
    sent = half[Direction.SENT_TS].max(axis=1)
    unacknowledged = (half[Direction.UNACKED_TS] > 0) @ np.array([1, 2])
    is_answered = (conn[Conn.HEARD] == BOTH) | (conn[Conn.HEARD] & unacknowledged == 0)
    after = np.where((end < np.iinfo(np.int64).max) & (sent > 0), end - sent, 0)
    quiet = np.where(is_answered, after, np.maximum(conn[Conn.QUIET_NS], after))
    return array(quiet, mask=quiet < SILENCE_NS)


def _side(half: list[int], repeats: list[list[int]]) -> Side:
    return Side(
        packets=half[Direction.PACKETS],
        syns=half[Direction.SYNS],
        syn=_where(half, Direction.SYN_TS, Direction.SYN_PACKET, Direction.SYN_CAPTURE)
        if half[Direction.SYNS]
        else None,
        end="fin" if half[Direction.END] == FIN else "rst" if half[Direction.END] else "",
        end_at=_where(half, Direction.END_TS, Direction.END_PACKET, Direction.END_CAPTURE)
        if half[Direction.END]
        else None,
        end_after=_where(half, Direction.END_TS, Direction.AFTER_PACKET, Direction.AFTER_CAPTURE),
        sent_ns=half[Direction.SENT_TS],
        last_ns=half[Direction.LAST_TS],
        unacknowledged_ns=half[Direction.UNACKED_TS],
        again_ns=half[Direction.AGAIN_TS],
        fin_lost=half[Direction.END] != FIN and half[Direction.SHOWN] == half[Direction.TOP] + 1,
        again=[
            (PacketRef(again[Repeat.TS], again[Repeat.PACKET], again[Repeat.CAPTURE]), again[Repeat.LENGTH])
            for again in repeats[: half[Direction.REPEATS]]
        ],
    )


def _where(row: list[int], ts: int, packet: int, capture: int) -> PacketRef | None:
    return PacketRef(row[ts], row[packet], row[capture]) if row[packet] else None


@lru_cache(4096)
def address(high: int, low: int) -> str:
    """Return an address as text, from its signed halves; IPv4 addresses are mapped ones."""
    number = (high & 0xFFFFFFFFFFFFFFFF) << 64 | (low & 0xFFFFFFFFFFFFFFFF)
    if number >> 32 == 0xFFFF:
        return str(ipaddress.IPv4Address(number & 0xFFFFFFFF))
    return str(ipaddress.IPv6Address(number))


def endpoints(facts: list[int]) -> tuple[Endpoint, Endpoint]:
    """Return addresses and ports of side 0 and side 1 of a connection, from its row of `facts`."""
    return (
        (address(facts[Facts.A_HI], facts[Facts.A_LO]), facts[Facts.A_PORT]),
        (address(facts[Facts.B_HI], facts[Facts.B_LO]), facts[Facts.B_PORT]),
    )


def ends(identity: int, facts: Ints) -> tuple[str, str]:
    """Return client and server of an open connection that has frames as `ip:port`."""
    slot = int(np.flatnonzero((facts[:, Facts.ID] == identity) & (facts[:, Facts.USED] != 0))[0])
    texts = sides(slot, facts)
    client = int(facts[slot, Facts.CLIENT])
    return texts[client], texts[1 - client]


def sides(slot: int, facts: Ints) -> tuple[str, str]:
    """Return both sides of an open connection as `ip:port`."""
    one, other = (endpoint(*each) for each in endpoints(facts[slot].tolist()))
    return one, other
