"""One row per connection: who spoke with whom, how far the handshake came, what was agreed, how it ended."""

import ipaddress
import re
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from dissector.amqp091 import layout as ly
from dissector.amqp091.protocol import IDS_OCTETS, Frames
from dissector.arrays import Ints, Octets
from dissector.detect import PROTOCOLS
from dissector.fields import Plan, decode
from dissector.reassembly import (
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
    C_USED,
    H_AGAIN,
    H_LOST,
    H_POS,
)
from dissector.tables import schema
from spec.model import Protocol

STAGES = ("tcp", "tls", "header", "start", "secure", "tune", "open", "open-ok", "ready")
"""How far a connection came, in order. AMQP 0-9-1 §2.2.4."""
REACHES = {
    "connection.start": "start",
    "connection.start-ok": "start",
    "connection.secure": "secure",
    "connection.secure-ok": "secure",
    "connection.tune": "tune",
    "connection.tune-ok": "tune",
    "connection.open": "open",
    "connection.open-ok": "open-ok",
}
"""Stage that a method shows. A method of another class shows `ready`."""
AGREED = ("channel_max", "frame_max", "heartbeat")
"""Arguments of connection.tune-ok that hold for the connection; until then those of connection.tune."""


@dataclass(slots=True)
class Story:
    """What the methods of one connection tell."""

    stage: str = "tcp"
    facts: dict[str, Any] = field(default_factory=dict)
    closed_by: str | None = None
    messages: int = 0
    skipped: int = 0

    def reach(self, stage: str) -> None:
        """Note a stage, unless a later one was reached before."""
        if STAGES.index(stage) > STAGES.index(self.stage):
            self.stage = stage


class Connections:
    """The stories of all open connections, by slot."""

    def __init__(self, protocol: Protocol, compiled: bool) -> None:
        self.compiled = compiled
        self.names = [m.full_name for m in protocol.methods]
        self.columns = [[a.column for a in m.fields if a.column] for m in protocol.methods]
        self.is_connection = np.array([m.class_name == "connection" for m in protocol.methods], np.bool_)
        self.start_ok = self.names.index("connection.start-ok")
        # The user's name stands in a secret; the plan that reads it leaves nothing but that name behind.
        self.login = Plan.of_methods(_opened(protocol, "connection.start-ok"), only=("response",))
        self.stories: dict[int, Story] = {}

    def story(self, slot: int) -> Story:
        """The story of a slot, begun when there is none."""
        if slot not in self.stories:
            self.stories[slot] = Story()
        return self.stories[slot]

    def take(self, frames: Frames, data: Octets, conn: Ints) -> None:
        """Read the frames that tell of their connection, and note who is ready."""
        rows = frames.rows
        method = rows[ly.R_METHOD]
        known = method >= 0
        headers = rows[ly.R_TYPE] == ly.PROTOCOL_HEADER
        telling = headers.copy()
        telling[known] |= self.is_connection[method[known]]
        for slot in np.unique(rows[ly.R_SLOT][known & ~telling]).tolist():
            self.story(slot).reach("ready")
        for i in np.flatnonzero(telling).tolist():
            story = self.story(int(rows[ly.R_SLOT, i]))
            if headers[i]:
                story.reach("header")
                continue
            name = self.names[method[i]]
            sender = "client" if rows[ly.R_SIDE, i] == conn[rows[ly.R_SLOT, i], C_CLIENT] else "server"
            values = {k: frames.fields.columns[k][i].as_py() for k in self.columns[method[i]]}
            self._tell(story, name, sender, values)
            if method[i] == self.start_ok:
                story.facts["user"] = self._user(rows[:, i], data, values["mechanism"])

    def _tell(self, story: Story, name: str, sender: str, values: dict[str, Any]) -> None:
        if name in REACHES:
            story.reach(REACHES[name])
        if name in ("connection.tune", "connection.tune-ok"):
            story.facts |= {k: values[k] for k in AGREED}
        elif name == "connection.start":
            story.facts["server_properties"] = values["server_properties"]
        elif name == "connection.start-ok":
            story.facts |= {k: values[k] for k in ("client_properties", "mechanism")}
        elif name == "connection.open":
            story.facts["vhost"] = values["virtual_host"]
        elif name == "connection.close" and story.closed_by is None:
            story.closed_by = f"{sender}-close"
            story.facts |= {k: values[k] for k in ("reply_code", "reply_text")}

    def _user(self, row: Ints, data: Octets, mechanism: str | None) -> str | None:
        one = np.ones(1, np.int64)
        decoded = decode(
            self.login, data, one * row[ly.R_OFFSET] + IDS_OCTETS, one * row[ly.R_LENGTH] - IDS_OCTETS,
            one * self.start_ok, np.ones(1, np.uint8), self.compiled,
        )  # fmt: skip
        response = decoded.columns["response"][0].as_py()
        return user_name(mechanism, response) if response else None

    def rows(self, slots: Ints, conn: Ints, half: Ints, captures: list[str]) -> pa.RecordBatch:
        """Rows of `connections` for connections that are over."""
        made = [self._row(slot, conn[slot], half[2 * slot : 2 * slot + 2], captures) for slot in slots.tolist()]
        return pa.RecordBatch.from_pylist(made, schema("connections"))

    def _row(self, slot: int, state: Ints, sides: Ints, captures: list[str]) -> dict[str, Any]:
        story = self.stories.pop(slot, None) or Story()
        client = int(state[C_CLIENT])
        if client < 0:
            client = 1 if state[C_A_PORT] < state[C_B_PORT] else 0
        both = endpoints(state)
        closed_by = story.closed_by
        if closed_by is None and state[C_CLOSER] >= 0:
            who = "client" if state[C_CLOSER] == client else "server"
            closed_by = f"{who}-{'rst' if state[C_CLOSED] == 4 else 'fin'}"
        outcome = "ok" if STAGES.index(story.stage) >= STAGES.index("open-ok") else "incomplete"
        if outcome != "ok" and closed_by is not None:
            outcome = "failed"
        return {
            "connection_id": int(state[C_ID]),
            "protocol": PROTOCOLS[state[C_PROTOCOL]] or "unknown",
            "client_ip": both[client][0],
            "client_port": both[client][1],
            "server_ip": both[1 - client][0],
            "server_port": both[1 - client][1],
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
            "handshake_stage": story.stage,
            "handshake_outcome": outcome,
            "closed_by": closed_by,
            "lost_bytes": int(sides[:, H_LOST].sum()),
            "retransmitted_bytes": int(sides[:, H_AGAIN].sum()),
            "skipped_bytes": story.skipped,
            **story.facts,
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
    if mechanism == "PLAIN":
        parts = response.split("\0")
        return parts[1] if len(parts) == 3 else None
    if mechanism == "AMQPLAIN":
        octets = response.encode()  # its lengths count octets, and behind the name may stand the password
        found = re.search(rb"\x05LOGINS\0\0\0([\0-\x7f])", octets)
        return octets[found.end() : found.end() + found[1][0]].decode(errors="ignore") if found else None
    if mechanism in ("ANONYMOUS", "RABBIT-CR-DEMO"):
        return response or None
    return None


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
