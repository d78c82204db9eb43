"""Collect what is known of one connection's handshake and ending while it is dissected."""

import json
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from amqpscope.dissector.handshakes.arguments import PeerArguments
from amqpscope.dissector.kernels import limits
from amqpscope.dissector.tls.shown import CLASSES as SHOWN
from amqpscope.dissector.tls.shown import Shown
from amqpscope.spec.handshakes import Opening, opening

STEPS = 64
"""Most steps stored of one connection; closes may follow beyond."""
CLOSES = 4
"""Most steps of a close or close-ok stored beyond these."""
CHANNEL_ERRORS = 16
"""Most channel errors that are reported of one connection; the others are counted."""
CLOSING = frozenset({"close", "close-ok"})
ONCE = frozenset({"close", "refusal"})
"""Roles of which the first message counts; of others, the latest."""
FIRST = 32
"""Most bytes stored of the beginning of each side, to recognise them."""
SHORTEST = 8
"""Number of bytes from which on a side's first bytes can be recognised: the length of a protocol header."""


class PacketRef(NamedTuple):
    """A packet: its time, its number and the index of its capture file."""

    ts_ns: int
    packet: int
    capture: int


class Step(NamedTuple):
    """A step of one side."""

    event: str
    side: int
    at: PacketRef
    detail: str = ""


@dataclass(slots=True)
class FirstBytes:
    """The first bytes of a side, and the packet that completed them; None before any."""

    data: bytes = b""
    at: PacketRef | None = None
    lost: bool = False
    is_earlier: bool = False
    """Whether the other side had sent nothing before them."""

    def add(self, data: bytes | None, at: PacketRef) -> None:
        """Append bytes; None is a gap."""
        if data is None:
            self.lost = self.lost or len(self.data) < SHORTEST
        elif not self.lost and len(self.data) < FIRST:
            if len(self.data) < SHORTEST:
                self.at = at
            self.data += data[: FIRST - len(self.data)]

    def opening(self) -> Opening | None:
        """Return what they are; None when there are none."""
        return opening(self.data) if self.data else None


@dataclass(slots=True)
class ConnectionRecord:
    """What is known of one connection. Sides are 0 and 1, because the client may be determined late."""

    steps: list[Step] = field(default_factory=list)
    firsts: tuple[FirstBytes, FirstBytes] = field(default_factory=lambda: (FirstBytes(), FirstBytes()))
    arguments: dict[str, PeerArguments] = field(default_factory=dict)
    """Arguments of the handshake's messages by role, which is the name of AMQP 0-9-1's method of class connection:
    `start` (`mechanisms`), `start-ok` (`mechanism`), `tune` and `tune-ok` (`channel_max`, `frame_max`, `heartbeat`),
    `open` (`virtual_host`), `close` (`reply_code`, `reply_text`); and `refusal` (`code`, `words`, `of`) where a
    protocol answers with codes. The latest of each, but the first close and refusal."""
    facts: dict[str, Hashable] = field(default_factory=dict)
    """Further facts for rules and texts, as a protocol finds them; None: unknown."""
    properties: dict[str, str | None] = field(default_factory=dict)
    """JSON text of the properties that the peers announce: `client_properties`, `server_properties`."""
    used: bool = False
    user: str | None = None
    cut_login: bool = False
    """Parts of connection.start-ok are missing, so absent arguments are unknown."""
    blocked: str | None = None
    """Reason for which the broker accepts no messages now."""
    was_blocked: bool = False
    channel_errors: list[tuple[PacketRef, str]] = field(default_factory=list)
    channels_failed: int = 0
    closer: int | None = None
    """Side that sent the first close."""
    columns: dict[str, Any] = field(default_factory=dict)
    """Further columns of the connection's row, as a protocol finds them."""
    skipped: int = 0
    end_lost: bool = False
    """Whether the last frames of a side may be missing: its last boundary was lost, and not found again."""
    evicted: bool = False
    """Whether it ends because it is no longer followed."""
    tls: Shown | None = None
    """Observations of TLS; None without TLS."""
    outer: tuple[FirstBytes, FirstBytes] | None = None
    """The first bytes of TLS itself where it is decrypted; `firsts` are then those inside."""

    def open(self) -> None:
        """Continue with the decrypted content of TLS."""
        self.outer, self.firsts = self.firsts, (FirstBytes(), FirstBytes())

    def describe(self, side: str, properties: str | None) -> None:
        """Store the properties of a side (`client`, `server`)."""
        fits = properties is None or len(properties) <= limits.PROPERTIES
        self.properties[f"{side}_properties"] = properties if fits else None

    def step(self, event: str, side: int, at: PacketRef, detail: str = "", beyond: int = 0) -> None:
        """Append a step, unless STEPS and `beyond` are stored."""
        if len(self.steps) < STEPS + beyond:
            self.steps.append(Step(event, side, at, detail))

    def message(
        self, event: str, role: str, side: int, at: PacketRef, arguments: PeerArguments, detail: str | None = None
    ) -> None:
        """Append the step of a message and store its arguments; see `ConnectionRecord.arguments`."""
        self.step(event, side, at, arguments.detail if detail is None else detail, CLOSES if role in CLOSING else 0)
        if role in ONCE:
            if role in self.arguments:
                return
            if role == "close":
                self.closer = side
        elif role == "blocked":
            self.blocked, self.was_blocked = arguments["reason"] or "", True
        elif role == "unblocked":
            self.blocked = None
        self.arguments[role] = arguments

    def channel_error(self, at: PacketRef, text: str) -> None:
        """Note that the broker closed a channel."""
        self.channels_failed += 1
        if len(self.channel_errors) < CHANNEL_ERRORS:
            self.channel_errors.append((at, text))

    def use(self, side: int, at: PacketRef) -> None:
        """Note the first frame after the handshake: the connection is in use."""
        if not self.used:
            self.used = True
            self.steps.append(Step("first use", side, at))


CLASSES = (ConnectionRecord, PacketRef, Step, FirstBytes, *SHOWN)
"""What a record consists of, when it is written."""


def product(properties: str | None) -> str:
    """Return product, version and platform from the JSON text of a peer's properties."""
    try:
        found = json.loads(properties or "")
    except ValueError:
        return "unknown product"
    known = [str(found[name]) for name in ("product", "version", "platform") if found.get(name)]
    return " ".join(known[:2]) + (f" ({known[2]})" if len(known) == 3 else "") if known else "unknown product"
