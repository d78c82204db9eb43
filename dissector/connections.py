"""One row per connection: who spoke with whom, how far the handshake came, what was agreed, how it ended."""

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from dissector.amqp091 import layout as ly
from dissector.amqp091.protocol import IDS_OCTETS, Frames
from dissector.arrays import Ints, Octets
from dissector.detect import PROTOCOLS
from dissector.fields import Plan, decode
from dissector.handshakes.facts import Side, Tcp
from dissector.handshakes.memory import Memory
from dissector.handshakes.story import FIRST, Said, Story, Where, detail
from dissector.handshakes.verdict import Judge
from dissector.tables import schema
from dissector.tcp.layout import (
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
    FIN,
    H_AGAIN,
    H_END,
    H_END_CAPTURE,
    H_END_PACKET,
    H_END_TS,
    H_LOST,
    H_PACKETS,
    H_POS,
    H_SAID_TS,
    H_SYN_CAPTURE,
    H_SYN_PACKET,
    H_SYN_TS,
    H_SYNS,
    S_CAPTURE,
    S_LENGTH,
    S_OFFSET,
    S_PACKET,
    S_POS,
    S_SIDE,
    S_SLOT,
    S_TS,
)
from spec import handshakes
from spec.model import Protocol

CHANNEL_FAILED = 300
"""Reply codes from here on are errors."""
PROPERTIES = ("client_properties", "server_properties")
"""Arguments that may differ from connection to connection, so they are kept apart from the others."""


Endpoint = tuple[str, int]
"""Address and port."""


class Closed(NamedTuple):
    """Connections that are over: their stories, and copies of their rows of `conn` and `half`."""

    stories: list[Story]
    states: Ints
    sides: Ints


class _Arguments(NamedTuple):
    """What a method says."""

    said: Said
    properties: dict[str, str | None]


class Connections:
    """The stories of all open connections, by slot; `brokers` are ports that the user names."""

    def __init__(self, protocol: Protocol, compiled: bool, brokers: Iterable[int] = ()) -> None:
        self.compiled = compiled
        self.protocol = protocol
        self.brokers = frozenset(brokers)
        self.judge = Judge(handshakes.load(), protocol)
        self.said: Memory[tuple[Any, ...], Said] = Memory()
        self.names = [m.full_name for m in protocol.methods]
        self.columns = [tuple(a.column for a in m.fields if a.column) for m in protocol.methods]
        self.is_telling = np.array(
            [*(m.class_name == "connection" or m.full_name == "channel.close" for m in protocol.methods), False],
            np.bool_,
        )
        self.ids = {(m.class_id, m.id): m.full_name for m in protocol.methods}
        self.start_ok = self.names.index("connection.start-ok")
        # The user's name stands in a secret; the plan that reads it leaves nothing but that name behind.
        self.login = Plan.of_methods(_opened(protocol, "connection.start-ok"), only=("response",))
        self.stories: dict[int, Story] = {}
        self.used = np.zeros(0, np.bool_)
        """Slots whose first use was seen."""

    def story(self, slot: int) -> Story:
        """The story of a slot, begun when there is none."""
        if slot not in self.stories:
            self.stories[slot] = Story()
        return self.stories[slot]

    def begin(self, pieces: Ints, data: Octets) -> None:
        """Keep the first octets of each side."""
        early = np.flatnonzero(pieces[S_POS] < FIRST)
        rows = (S_SLOT, S_SIDE, S_OFFSET, S_LENGTH, S_TS, S_PACKET, S_CAPTURE)
        for slot, side, offset, length, *at in zip(*pieces[rows, :][:, early].tolist(), strict=True):
            octets = data[offset : offset + min(length, FIRST)].tobytes() if offset >= 0 else None
            self.story(slot).firsts[side].add(octets, Where(*at))

    def telling(self, rows: Ints) -> Ints:
        """Indexes of the frames that `take` looks at: those that tell of their connection, and first uses of it."""
        method, slot = rows[ly.R_METHOD], rows[ly.R_SLOT]
        most = int(slot.max(initial=-1)) + 1
        if most > len(self.used):
            self.used = np.concatenate([self.used, np.zeros(2 * most - len(self.used), np.bool_)])
        telling = self.is_telling[method]  # of -1, which is none, it is the last
        others = np.flatnonzero(~telling & (method >= 0) & ~self.used[slot])
        _, first = np.unique(slot[others], return_index=True)
        telling[others[first]] = True
        return np.flatnonzero(telling)

    def take(self, frames: Frames, data: Octets) -> None:
        """Read the frames that tell of their connection, and note who is in use."""
        index = self.telling(frames.rows)
        rows = frames.rows[:, index]
        self.used[rows[ly.R_SLOT][~self.is_telling[rows[ly.R_METHOD]]]] = True
        said = self._said(rows[ly.R_METHOD], index, frames)
        logins = self._logins(rows, said, data)
        wanted = (ly.R_SLOT, ly.R_SIDE, ly.R_METHOD, ly.R_CHANNEL, ly.R_TS, ly.R_PACKET, ly.R_CAPTURE)
        for n, (slot, side, method, channel, *where) in enumerate(zip(*rows[wanted, :].tolist(), strict=True)):
            story, at, arguments = self.story(slot), Where(*where), said[n]
            if arguments is None:
                story.use(side, at)
                continue
            name, detail = self.names[method], arguments.said.detail
            if name == "channel.close":
                story.use(side, at)
                if (arguments.said["reply_code"] or 0) >= CHANNEL_FAILED:
                    story.channel_error(at, self._failure(channel, arguments.said))
                continue
            if n in logins:
                story.user, story.cut_login = logins[n]
                detail += f" as {story.user}" if story.user else ""
            story.properties |= arguments.properties
            story.method(name, side, at, arguments.said, detail)

    def _said(self, methods: Ints, index: Ints, frames: Frames) -> list[_Arguments | None]:
        """The arguments of the frames at `index` whose methods tell of their connection."""
        said: list[_Arguments | None] = [None] * len(index)
        for method in np.unique(methods[self.is_telling[methods]]).tolist():
            mine = np.flatnonzero(methods == method)
            names = self.columns[method]
            at = pa.array(index[mine])
            columns = {name: frames.fields.columns[name].take(at).to_pylist() for name in names}
            apart = [(name, columns.pop(name)) for name in PROPERTIES if name in columns]
            for place, (n, *values) in enumerate(zip(mine.tolist(), *columns.values(), strict=True)):
                properties = {name: texts[place] for name, texts in apart}
                said[n] = _Arguments(self._shared(method, tuple(values)), properties)
        return said

    def _shared(self, method: int, values: tuple[Any, ...]) -> Said:
        """The arguments of a method, one object for all that are equal."""
        said = self.said.get((method, values))
        if said is None:
            names = [name for name in self.columns[method] if name not in PROPERTIES]
            said = Said(zip(names, values, strict=True))
            said.detail = detail(self.names[method], said)
            self.said.keep((method, values), said, sum(len(v) for v in values if isinstance(v, str)))
        return said

    def _failure(self, channel: int, values: dict[str, Any]) -> str:
        cause = self.ids.get((values["class_id"], values["method_id"]))
        text = values["reply_text"] or str(values["reply_code"])
        return f"channel {channel}: {text}" + (f" ({cause})" if cause and cause not in text else "")

    def _logins(self, rows: Ints, said: list[_Arguments | None], data: Octets) -> dict[int, tuple[str | None, bool]]:
        """Of each start-ok the user's name, and whether parts of the frame are missing; responses go no further."""
        mine = np.flatnonzero(rows[ly.R_METHOD] == self.start_ok)
        if not len(mine):
            return {}
        decoded = decode(
            self.login, data, rows[ly.R_OFFSET, mine] + IDS_OCTETS, rows[ly.R_LENGTH, mine] - IDS_OCTETS,
            np.full(len(mine), self.start_ok), np.ones(len(mine), np.uint8), self.compiled,
        )  # fmt: skip
        responses = decoded.columns["response"].to_pylist()
        found = {}
        for n, response, missing in zip(mine.tolist(), responses, rows[ly.R_MISSING, mine].tolist(), strict=True):
            arguments = said[n]
            mechanism = arguments.said["mechanism"] if arguments else None
            found[n] = user_name(mechanism, response) if response else None, bool(missing)
        return found

    def close(self, slots: Ints, conn: Ints, half: Ints) -> Closed:
        """Take connections that are over out of the state; `rows` may judge them later."""
        stories = [self.story(slot) for slot in slots.tolist()]
        for slot in slots.tolist():
            del self.stories[slot]
        self.used[slots[slots < len(self.used)]] = False
        return Closed(stories, conn[slots], half.reshape(len(conn), 2, -1)[slots])

    def rows(self, closed: Closed, captures: list[str], clock: int | None) -> pa.RecordBatch:
        """Rows of `connections`; `clock` is the end of all captures, once it is there. Any thread may do it."""
        halves = zip(closed.sides[:, 0].tolist(), closed.sides[:, 1].tolist(), strict=True)
        each = zip(closed.stories, closed.states.tolist(), halves, strict=True)
        made = [self._row(story, state, sides, captures, clock) for story, state, sides in each]
        return pa.RecordBatch.from_pylist(made, schema("connections"))

    def _row(
        self, story: Story, state: list[int], sides: tuple[list[int], list[int]], captures: list[str], clock: int | None
    ) -> dict[str, Any]:
        both = endpoints(state)
        tcp = self._tcp(state, sides, both, clock)
        closed_by = None
        if story.closer is not None:
            closed_by = "client-close" if story.closer == tcp.client else "server-close"
        elif state[C_CLOSER] >= 0:
            who = "client" if state[C_CLOSER] == tcp.client else "server"
            closed_by = f"{who}-{'rst' if state[C_CLOSED] == 4 else 'fin'}"
        lost = sides[0][H_LOST] + sides[1][H_LOST]
        return {
            "connection_id": state[C_ID],
            "protocol": tcp.protocol,
            "client_ip": both[tcp.client][0],
            "client_port": both[tcp.client][1],
            "server_ip": tcp.server[0],
            "server_port": tcp.server[1],
            "first_capture": captures[state[C_FIRST_CAPTURE]],
            "first_packet": state[C_FIRST_PACKET],
            "last_packet": state[C_LAST_PACKET],
            "first_ts_ns": state[C_FIRST_TS],
            "last_ts_ns": state[C_LAST_TS],
            "syn_seen": bool(state[C_SYN] & 1),
            "packets": state[C_PACKETS],
            "bytes": sides[0][H_POS] + sides[1][H_POS] - lost,
            "frames": state[C_FRAMES],
            "messages": story.messages,
            "vantage": captures[state[C_FIRST_CAPTURE]],
            "rtt_ns": state[C_RTT] if state[C_RTT] >= 0 else None,
            "closed_by": closed_by,
            "lost_bytes": lost,
            "retransmitted_bytes": sides[0][H_AGAIN] + sides[1][H_AGAIN],
            "skipped_bytes": story.skipped,
            "server_properties": story.properties.get("server_properties"),
            "client_properties": story.properties.get("client_properties"),
            **self.judge(story, tcp, captures),
        }

    def _tcp(
        self, state: list[int], sides: tuple[list[int], list[int]], both: tuple[Endpoint, Endpoint], clock: int | None
    ) -> Tcp:
        client = state[C_CLIENT]
        if client < 0:
            client = 1 if state[C_A_PORT] < state[C_B_PORT] else 0
        server = both[1 - client]
        return Tcp(
            client=client,
            sides=(_side(sides[client]), _side(sides[1 - client])),
            begun=bool(state[C_SYN]),
            ack=_where(state, C_UP_TS, C_UP_PACKET, C_UP_CAPTURE),
            until_ns=max(clock or 0, state[C_LAST_TS]),
            lost=bool(sides[0][H_LOST] or sides[1][H_LOST]),
            protocol=PROTOCOLS[state[C_PROTOCOL]] or "unknown",
            server=server,
            is_broker=server[1] in self.brokers,
        )


def _side(half: list[int]) -> Side:
    return Side(
        packets=half[H_PACKETS],
        syns=half[H_SYNS],
        syn=_where(half, H_SYN_TS, H_SYN_PACKET, H_SYN_CAPTURE) if half[H_SYNS] else None,
        end="fin" if half[H_END] == FIN else "rst" if half[H_END] else "",
        end_at=_where(half, H_END_TS, H_END_PACKET, H_END_CAPTURE) if half[H_END] else None,
        said_ns=half[H_SAID_TS],
    )


def _where(row: list[int], ts: int, packet: int, capture: int) -> Where | None:
    return Where(row[ts], row[packet], row[capture]) if row[packet] else None


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
    slot = np.flatnonzero((conn[:, C_ID] == identity) & (conn[:, C_USED] == 1))[0]
    texts = [f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}" for ip, port in endpoints(conn[slot].tolist())]
    client = int(conn[slot, C_CLIENT])
    return texts[client], texts[1 - client]


def user_name(mechanism: str | None, response: str) -> str | None:
    """The user's name in a first SASL response, and nothing else of it.

    RFC 4616 for PLAIN; AMQPLAIN is a field table; RabbitMQ's RABBIT-CR-DEMO has the password in its second response.
    """
    name: str | None = None
    if mechanism == "PLAIN":
        parts = response.split("\0")
        name = parts[1] if len(parts) == 3 and parts[2] else None
    elif mechanism == "AMQPLAIN":
        octets = response.encode()  # its lengths count octets, and behind the name may stand the password
        found = re.search(rb"\x05LOGINS\0\0\0([\0-\x7f])", octets)
        name = octets[found.end() : found.end() + found[1][0]].decode(errors="ignore") if found else None
    elif mechanism == "RABBIT-CR-DEMO":
        name = response
    # A name with control characters in it is no name: a length lies, and what follows may be the password.
    return name if name and name.isprintable() else None


def _opened(protocol: Protocol, full_name: str) -> Protocol:
    """The protocol with no fields but those of one method, none of them secret."""
    classes = tuple(
        replace(
            k,
            methods=tuple(
                replace(m, fields=tuple(replace(a, secret=False) for a in m.fields if m.full_name == full_name))
                for m in k.methods
            ),
        )
        for k in protocol.classes
    )
    return replace(protocol, classes=classes)
