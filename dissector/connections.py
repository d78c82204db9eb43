"""One row per connection: who spoke with whom, how far the handshake came, what was agreed, how it ended."""

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from dissector.amqp091 import layout as ly
from dissector.amqp091.protocol import IDS_OCTETS, Frames
from dissector.arrays import Ints, Octets
from dissector.detect import PROTOCOLS
from dissector.fields import Plan, decode
from dissector.handshakes.facts import Side, Tcp
from dissector.handshakes.story import FIRST, Story, Where, detail
from dissector.handshakes.verdict import judge
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

AGREED = ("channel_max", "frame_max", "heartbeat")
"""Arguments of connection.tune-ok that hold for the connection; until then those of connection.tune."""
CHANNEL_FAILED = 300
"""Reply codes from here on are errors."""


class Closed(NamedTuple):
    """Connections that are over: their stories, and copies of their rows of `conn` and `half`."""

    stories: list[Story]
    states: Ints
    sides: Ints


class Connections:
    """The stories of all open connections, by slot; `brokers` are ports that the user names."""

    def __init__(self, protocol: Protocol, compiled: bool, brokers: Iterable[int] = ()) -> None:
        self.compiled = compiled
        self.protocol = protocol
        self.brokers = frozenset(brokers)
        self.handshakes = handshakes.load()
        self.names = [m.full_name for m in protocol.methods]
        self.columns = [[a.column for a in m.fields if a.column] for m in protocol.methods]
        self.is_telling = np.array(
            [m.class_name == "connection" or m.full_name == "channel.close" for m in protocol.methods], np.bool_
        )
        self.ids = {(m.class_id, m.id): m.full_name for m in protocol.methods}
        self.start_ok = self.names.index("connection.start-ok")
        # The user's name stands in a secret; the plan that reads it leaves nothing but that name behind.
        self.login = Plan.of_methods(_opened(protocol, "connection.start-ok"), only=("response",))
        self.stories: dict[int, Story] = {}

    def story(self, slot: int) -> Story:
        """The story of a slot, begun when there is none."""
        if slot not in self.stories:
            self.stories[slot] = Story()
        return self.stories[slot]

    def begin(self, pieces: Ints, data: Octets) -> None:
        """Keep the first octets of each side."""
        for i in np.flatnonzero(pieces[S_POS] < FIRST).tolist():
            slot, side, offset, length = (int(pieces[row, i]) for row in (S_SLOT, S_SIDE, S_OFFSET, S_LENGTH))
            at = Where(int(pieces[S_TS, i]), int(pieces[S_PACKET, i]), int(pieces[S_CAPTURE, i]))
            octets = data[offset : offset + min(length, FIRST)].tobytes() if offset >= 0 else None
            self.story(slot).firsts[side].add(octets, at)

    def telling(self, rows: Ints) -> Ints:
        """Indexes of the frames that `take` looks at: those that tell of their connection, and first uses of it."""
        method = rows[ly.R_METHOD]
        telling = np.zeros(len(method), np.bool_)
        known = method >= 0
        telling[known] = self.is_telling[method[known]]
        others = np.flatnonzero(known & ~telling)
        _, first = np.unique(rows[ly.R_SLOT][others], return_index=True)
        telling[others[first]] = True
        return np.flatnonzero(telling)

    def take(self, frames: Frames, data: Octets) -> None:
        """Read the frames that tell of their connection, and note who is in use."""
        rows = frames.rows
        index = self.telling(rows)
        methods = rows[ly.R_METHOD][index].tolist()
        wanted = {name for m in set(methods) if self.is_telling[m] for name in self.columns[m]}
        columns = {name: frames.fields.columns[name].take(pa.array(index)).to_pylist() for name in wanted}
        responses = self._responses(rows[:, index], data)
        for n, (i, method) in enumerate(zip(index.tolist(), methods, strict=True)):
            story, side = self.story(int(rows[ly.R_SLOT, i])), int(rows[ly.R_SIDE, i])
            at = Where(int(rows[ly.R_TS, i]), int(rows[ly.R_PACKET, i]), int(rows[ly.R_CAPTURE, i]))
            if not self.is_telling[method]:
                story.use(side, at)
                continue
            name = self.names[method]
            values = {column: columns[column][n] for column in self.columns[method]}
            if method == self.start_ok:
                response = responses[n]
                story.user = user_name(values["mechanism"], response) if response else None
                story.cut_login = bool(rows[ly.R_MISSING, i])
            if name == "channel.close":
                story.use(side, at)
                if (values["reply_code"] or 0) >= CHANNEL_FAILED:
                    story.channel_error(at, self._failure(int(rows[ly.R_CHANNEL, i]), values))
                continue
            story.method(name, side, at, values, detail(name, values, story.user))

    def _failure(self, channel: int, values: dict[str, Any]) -> str:
        cause = self.ids.get((values["class_id"], values["method_id"]))
        text = values["reply_text"] or str(values["reply_code"])
        return f"channel {channel}: {text}" + (f" ({cause})" if cause and cause not in text else "")

    def _responses(self, rows: Ints, data: Octets) -> list[str | None]:
        """The responses of start-ok frames among these, for the names in them; they go no further."""
        mine = rows[ly.R_METHOD] == self.start_ok
        if not mine.any():
            return [None] * len(mine)
        decoded = decode(
            self.login, data, np.where(mine, rows[ly.R_OFFSET] + IDS_OCTETS, 0),
            np.where(mine, rows[ly.R_LENGTH] - IDS_OCTETS, 0), np.where(mine, self.start_ok, -1),
            np.ones(len(mine), np.uint8), self.compiled,
        )  # fmt: skip
        texts: list[str | None] = decoded.columns["response"].to_pylist()
        return texts

    def close(self, slots: Ints, conn: Ints, half: Ints) -> Closed:
        """Take connections that are over out of the state; `rows` may judge them later."""
        stories = [self.story(slot) for slot in slots.tolist()]
        for slot in slots.tolist():
            del self.stories[slot]
        return Closed(stories, conn[slots], half.reshape(len(conn), 2, -1)[slots])

    def rows(self, closed: Closed, captures: list[str], clock: int | None) -> pa.RecordBatch:
        """Rows of `connections`; `clock` is the end of all captures, once it is there. Any thread may do it."""
        made = [self._row(*one, captures, clock) for one in zip(*closed, strict=True)]
        return pa.RecordBatch.from_pylist(made, schema("connections"))

    def _row(self, story: Story, state: Ints, sides: Ints, captures: list[str], clock: int | None) -> dict[str, Any]:
        tcp = self._tcp(state, sides, clock)
        both = endpoints(state)
        closed_by = None
        if story.closer is not None:
            closed_by = "client-close" if story.closer == tcp.client else "server-close"
        elif state[C_CLOSER] >= 0:
            who = "client" if state[C_CLOSER] == tcp.client else "server"
            closed_by = f"{who}-{'rst' if state[C_CLOSED] == 4 else 'fin'}"
        return {
            "connection_id": int(state[C_ID]),
            "protocol": tcp.protocol,
            "client_ip": both[tcp.client][0],
            "client_port": both[tcp.client][1],
            "server_ip": tcp.server[0],
            "server_port": tcp.server[1],
            "first_capture": captures[state[C_FIRST_CAPTURE]],
            "first_packet": int(state[C_FIRST_PACKET]),
            "last_packet": int(state[C_LAST_PACKET]),
            "first_ts_ns": int(state[C_FIRST_TS]),
            "last_ts_ns": int(state[C_LAST_TS]),
            "syn_seen": bool(state[C_SYN] & 1),
            "packets": int(state[C_PACKETS]),
            "bytes": int(sides[:, H_POS].sum() - sides[:, H_LOST].sum()),
            "frames": int(state[C_FRAMES]),
            "messages": story.messages,
            "vantage": captures[state[C_FIRST_CAPTURE]],
            "rtt_ns": int(state[C_RTT]) if state[C_RTT] >= 0 else None,
            "closed_by": closed_by,
            "lost_bytes": int(sides[:, H_LOST].sum()),
            "retransmitted_bytes": int(sides[:, H_AGAIN].sum()),
            "skipped_bytes": story.skipped,
            **_agreed(story),
            **judge(story, tcp, self.handshakes, self.protocol, captures),
        }

    def _tcp(self, state: Ints, sides: Ints, clock: int | None) -> Tcp:
        client = int(state[C_CLIENT])
        if client < 0:
            client = 1 if state[C_A_PORT] < state[C_B_PORT] else 0
        server = endpoints(state)[1 - client]
        return Tcp(
            client=client,
            sides=(_side(sides[client]), _side(sides[1 - client])),
            begun=bool(state[C_SYN]),
            ack=_where(state, C_UP_TS, C_UP_PACKET, C_UP_CAPTURE),
            until_ns=max(clock or 0, int(state[C_LAST_TS])),
            lost=bool(sides[:, H_LOST].any()),
            protocol=PROTOCOLS[state[C_PROTOCOL]] or "unknown",
            server=server,
            is_broker=server[1] in self.brokers,
        )


def _side(half: Ints) -> Side:
    return Side(
        packets=int(half[H_PACKETS]),
        syns=int(half[H_SYNS]),
        syn=_where(half, H_SYN_TS, H_SYN_PACKET, H_SYN_CAPTURE) if half[H_SYNS] else None,
        end={0: "", FIN: "fin"}.get(int(half[H_END]), "rst"),
        end_at=_where(half, H_END_TS, H_END_PACKET, H_END_CAPTURE) if half[H_END] else None,
        said_ns=int(half[H_SAID_TS]),
    )


def _where(row: Ints, ts: int, packet: int, capture: int) -> Where | None:
    return Where(int(row[ts]), int(row[packet]), int(row[capture])) if row[packet] else None


def _agreed(story: Story) -> dict[str, Any]:
    """What the methods of the handshake and the close say, as columns."""
    told = story.told
    tuned = told.get("connection.tune-ok") or told.get("connection.tune") or {}
    return {name: tuned.get(name) for name in AGREED} | {
        "server_properties": told.get("connection.start", {}).get("server_properties"),
        "client_properties": told.get("connection.start-ok", {}).get("client_properties"),
        "mechanism": told.get("connection.start-ok", {}).get("mechanism"),
        "user": story.user,
        "vhost": told.get("connection.open", {}).get("virtual_host"),
        "reply_code": told.get("connection.close", {}).get("reply_code"),
        "reply_text": told.get("connection.close", {}).get("reply_text"),
    }


def address(high: int, low: int) -> str:
    """An address from its signed halves; IPv4 addresses are mapped ones."""
    number = (high & 0xFFFFFFFFFFFFFFFF) << 64 | (low & 0xFFFFFFFFFFFFFFFF)
    if number >> 32 == 0xFFFF:
        return str(ipaddress.IPv4Address(number & 0xFFFFFFFF))
    return str(ipaddress.IPv6Address(number))


def endpoints(state: Ints) -> tuple[tuple[str, int], tuple[str, int]]:
    """Addresses and ports of side 0 and side 1 of a connection."""
    return (
        (address(int(state[C_A_HI]), int(state[C_A_LO])), int(state[C_A_PORT])),
        (address(int(state[C_B_HI]), int(state[C_B_LO])), int(state[C_B_PORT])),
    )


def ends(identity: int, conn: Ints) -> tuple[str, str]:
    """Client and server of an open connection as `ip:port`."""
    slot = np.flatnonzero((conn[:, C_ID] == identity) & (conn[:, C_USED] == 1))[0]
    texts = [f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}" for ip, port in endpoints(conn[slot])]
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
