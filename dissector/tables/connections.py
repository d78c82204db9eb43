"""One row per connection: who spoke with whom, how far the handshake came, what was agreed, how it ended."""

import ipaddress
from collections import defaultdict
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from amqpscope.dissector.fields.arrow import array, of_rows
from amqpscope.dissector.handshakes import tls_facts
from amqpscope.dissector.handshakes.facts import Side, Tcp
from amqpscope.dissector.handshakes.first_use import FirstUses
from amqpscope.dissector.handshakes.record import FIRST, ConnectionRecord, PacketRef
from amqpscope.dissector.handshakes.verdict import Judge
from amqpscope.dissector.kernels.arrays import Ints, Octets
from amqpscope.dissector.protocols import registry
from amqpscope.dissector.tables.rows import record_batch, schema
from amqpscope.dissector.tcp.layout import (
    C_A_HI,
    C_A_LO,
    C_A_PORT,
    C_B_HI,
    C_B_LO,
    C_B_PORT,
    C_CLIENT,
    C_CLOSED,
    C_CLOSER,
    C_FIRST_CAPTURE,
    C_FIRST_PACKET,
    C_FIRST_TS,
    C_FRAMES,
    C_ID,
    C_LAST_PACKET,
    C_LAST_TS,
    C_PACKETS,
    C_PROTOCOL,
    C_RTT,
    C_SYN,
    C_UP_CAPTURE,
    C_UP_PACKET,
    C_UP_TS,
    C_USED,
    C_VANTAGE,
    FIN,
    H_AGAIN,
    H_END,
    H_END_CAPTURE,
    H_END_PACKET,
    H_END_TS,
    H_FULL_NS,
    H_LOST,
    H_PACKETS,
    H_POS,
    H_REPEAT,
    H_REPEATS,
    H_SAID_TS,
    H_SYN_CAPTURE,
    H_SYN_PACKET,
    H_SYN_TS,
    H_SYNS,
    H_TWICE,
    H_WSCALE,
    H_ZERO_NS,
    REPEAT_WIDTH,
    S_CAPTURE,
    S_LENGTH,
    S_OFFSET,
    S_PACKET,
    S_POS,
    S_SIDE,
    S_SLOT,
    S_TS,
)
from amqpscope.spec import handshakes
from amqpscope.spec.model import Protocol

Endpoint = tuple[str, int]
"""Address and port."""


class Closed(NamedTuple):
    """Connections that are over: their records, copies of their rows of `conn` and `half`, and their messages."""

    records: list[ConnectionRecord]
    states: Ints
    sides: Ints
    messages: Ints


class Connections:
    """The records of all open connections, by slot.

    `brokers` are ports that the user names; `protocol` has the words of reply codes.
    """

    def __init__(self, protocol: Protocol, compiled: bool, brokers: Iterable[int] = ()) -> None:
        self.brokers = frozenset(brokers)
        self.judge = Judge(handshakes.load(), protocol)
        self.records: defaultdict[int, ConnectionRecord] = defaultdict(ConnectionRecord)
        self.record = self.records.__getitem__
        """The record of a slot, begun when there is none."""
        self.used = FirstUses(compiled)
        self.messages = np.zeros(0, np.int64)
        """How many were seen, by slot."""

    def begin(self, pieces: Ints, data: Octets, inside: bool = False) -> None:
        """Keep the first bytes of each side; `inside`: of what TLS holds."""
        early = np.flatnonzero(pieces[S_POS] < FIRST)
        rows = [S_SLOT, S_SIDE, S_OFFSET, S_LENGTH, S_TS, S_PACKET, S_CAPTURE]
        for slot, side, offset, length, *at in zip(*pieces[np.ix_(np.array(rows), early)].tolist(), strict=True):
            octets = data[offset : offset + min(length, FIRST)].tobytes() if offset >= 0 else None
            record = self.record(slot)
            firsts = record.firsts if inside else record.outer or record.firsts
            firsts[side].add(octets, PacketRef(*at))

    def count_messages(self, slots: Ints, many: Ints | None = None) -> None:
        """Count messages, each (or so many of them) of the connection in this slot."""
        counts = np.bincount(slots, many, len(self.messages)).astype(np.int64, copy=False)
        counts[: len(self.messages)] += self.messages
        self.messages = counts

    def close(self, slots: Ints, conn: Ints, half: Ints) -> Closed:
        """Take connections that are over out of the state; `rows` may judge them later."""
        records = [self.record(slot) for slot in slots.tolist()]
        for slot in slots.tolist():
            del self.records[slot]
        self.used.forget(slots)
        counted = slots < len(self.messages)
        messages = np.zeros(len(slots), np.int64)
        messages[counted] = self.messages[slots[counted]]
        self.messages[slots[counted]] = 0
        return Closed(records, conn[slots], half.reshape(len(conn), 2, -1)[slots], messages)

    def rows(self, closed: Closed, captures: list[str], clock: int | None) -> pa.RecordBatch:
        """Rows of `connections`; `clock` is the end of all captures, once it is there. Any thread may do it."""
        client = _clients(closed.states)
        halves = zip(closed.sides[:, 0].tolist(), closed.sides[:, 1].tolist(), strict=True)
        each = zip(closed.records, closed.states.tolist(), client.tolist(), halves, strict=True)
        told = [
            self._told(record, state, self._tcp(state, side, both, clock), captures)
            for record, state, side, both in each
        ]
        names = schema("connections")
        numbers = _numbers(closed, client)
        return record_batch(names, numbers | of_rows(told, [field for field in names if field.name not in numbers]))

    def _told(self, record: ConnectionRecord, state: list[int], tcp: Tcp, captures: list[str]) -> dict[str, Any]:
        """The columns of one connection that are no numbers of TCP."""
        closed_by = None
        if record.closer is not None:
            closed_by = "client-close" if record.closer == tcp.client else "server-close"
        elif state[C_CLOSER] >= 0:
            who = "client" if state[C_CLOSER] == tcp.client else "server"
            closed_by = f"{who}-{'rst' if state[C_CLOSED] == 4 else 'fin'}"
        told = self.judge(record, tcp, captures)
        told |= {
            "protocol": tcp.protocol,
            "client_ip": tcp.address,
            "server_ip": tcp.server[0],
            "first_capture": captures[state[C_FIRST_CAPTURE]],
            "vantage": captures[state[C_VANTAGE]],
            "closed_by": closed_by,
            "skipped_bytes": record.skipped,
        }
        return told | record.columns | record.properties | tls_facts.columns(record.tls, tcp.client)

    def _tcp(self, state: list[int], client: int, sides: tuple[list[int], list[int]], clock: int | None) -> Tcp:
        both = endpoints(state)
        server = both[1 - client]
        return Tcp(
            client=client,
            sides=(_side(sides[client]), _side(sides[1 - client])),
            begun=bool(state[C_SYN]),
            ack=_where(state, C_UP_TS, C_UP_PACKET, C_UP_CAPTURE),
            until_ns=max(clock or 0, state[C_LAST_TS]),
            lost=bool(sides[0][H_LOST] or sides[1][H_LOST]),
            protocol=registry.name_of(state[C_PROTOCOL]),
            address=both[client][0],
            server=server,
            is_broker=server[1] in self.brokers,
        )


def _clients(states: Ints) -> Ints:
    """The client's side of each connection. Where nobody said anything, the server has the lower port."""
    client = states[:, C_CLIENT]
    return np.where(client < 0, states[:, C_A_PORT] < states[:, C_B_PORT], client).astype(np.int64)


def _numbers(closed: Closed, client: Ints) -> dict[str, pa.Array]:
    """The columns of `connections` that are numbers of TCP, and how many frames and messages there were."""
    state, half = closed.states.T, np.moveaxis(closed.sides, 2, 0)
    each = np.arange(len(client))
    lost = half[H_LOST].sum(axis=1)
    is_over = half[H_END] != 0
    end = np.where(is_over, half[H_END_TS], np.iinfo(np.int64).max).min(axis=1)
    # Where a SYN was not seen, when a window was full is not known.
    scale = half[H_WSCALE]
    is_unscaled = (scale.min(axis=1) < 0) & (scale != -2).all(axis=1)
    found = {
        "connection_id": array(state[C_ID]),
        "first_packet": array(state[C_FIRST_PACKET]),
        "last_packet": array(state[C_LAST_PACKET]),
        "first_ts_ns": array(state[C_FIRST_TS]),
        "last_ts_ns": array(state[C_LAST_TS]),
        "syn_seen": array(state[C_SYN] & 1 != 0),
        "packets": array(state[C_PACKETS]),
        "bytes": array(half[H_POS].sum(axis=1) - lost),
        "frames": array(state[C_FRAMES]),
        "messages": array(closed.messages),
        "rtt_ns": array(state[C_RTT], mask=state[C_RTT] < 0),
        "closed_ts_ns": array(end, mask=~is_over.any(axis=1)),
        "lost_bytes": array(lost),
        "retransmitted_bytes": array(half[H_AGAIN].sum(axis=1)),
        "duplicated_bytes": array(half[H_TWICE].sum(axis=1)),
    }
    ports = np.stack((state[C_A_PORT], state[C_B_PORT]), axis=1)
    for name, side in (("client", client), ("server", 1 - client)):
        found |= {
            f"{name}_port": array(ports[each, side], pa.int32()),
            f"{name}_zero_window_ns": array(half[H_ZERO_NS][each, side]),
            f"{name}_full_window_ns": array(half[H_FULL_NS][each, side], mask=is_unscaled),
        }
    return found


def _side(half: list[int]) -> Side:
    return Side(
        packets=half[H_PACKETS],
        syns=half[H_SYNS],
        syn=_where(half, H_SYN_TS, H_SYN_PACKET, H_SYN_CAPTURE) if half[H_SYNS] else None,
        end="fin" if half[H_END] == FIN else "rst" if half[H_END] else "",
        end_at=_where(half, H_END_TS, H_END_PACKET, H_END_CAPTURE) if half[H_END] else None,
        said_ns=half[H_SAID_TS],
        again=[
            (PacketRef(*half[place : place + 3]), half[place + 3])
            for place in range(H_REPEAT, H_REPEAT + half[H_REPEATS] * REPEAT_WIDTH, REPEAT_WIDTH)
        ]
        if half[H_REPEATS]
        else [],
    )


def _where(row: list[int], ts: int, packet: int, capture: int) -> PacketRef | None:
    return PacketRef(row[ts], row[packet], row[capture]) if row[packet] else None


@lru_cache(4096)
def address(high: int, low: int) -> str:
    """An address from its signed halves; IPv4 addresses are mapped ones."""
    number = (high & 0xFFFFFFFFFFFFFFFF) << 64 | (low & 0xFFFFFFFFFFFFFFFF)
    if number >> 32 == 0xFFFF:
        return str(ipaddress.IPv4Address(number & 0xFFFFFFFF))
    return str(ipaddress.IPv6Address(number))


def endpoints(state: list[int]) -> tuple[Endpoint, Endpoint]:
    """Addresses and ports of side 0 and side 1 of a connection, of its row of `conn`."""
    return (
        (address(state[C_A_HI], state[C_A_LO]), state[C_A_PORT]),
        (address(state[C_B_HI], state[C_B_LO]), state[C_B_PORT]),
    )


def ends(identity: int, conn: Ints) -> tuple[str, str]:
    """Client and server of an open connection as `ip:port`."""
    slot = int(np.flatnonzero((conn[:, C_ID] == identity) & (conn[:, C_USED] != 0))[0])
    texts = sides(slot, conn)
    client = int(conn[slot, C_CLIENT])
    return texts[client], texts[1 - client]


def sides(slot: int, conn: Ints) -> tuple[str, str]:
    """Both sides of an open connection as `ip:port`."""
    one, other = (f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}" for ip, port in endpoints(conn[slot].tolist()))
    return one, other
