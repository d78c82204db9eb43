"""What one connection shows of its handshake and its end, collected while it is dissected."""

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
"""Steps kept of one connection; those of its end are kept beyond."""
CLOSES = 4
"""Closes of either kind kept beyond these."""
CHANNEL_ERRORS = 16
"""Channels closed with an error that are told of one connection; the others are counted."""
CLOSING = frozenset({"close", "close-ok"})
ONCE = frozenset({"close", "refusal"})
"""Roles of which the first is kept, of others the latest."""
FIRST = 32
"""Bytes kept of the beginning of each side, to tell what they are."""
SHORTEST = 8
"""A side's first bytes count as said once there are so many (a protocol header is as long)."""


class PacketRef(NamedTuple):
    """A packet: its time, its number and the index of its capture."""

    ts_ns: int
    packet: int
    capture: int


class Step(NamedTuple):
    """Something that a side did."""

    event: str
    side: int
    at: PacketRef
    detail: str = ""


@dataclass(slots=True)
class FirstBytes:
    """The first bytes of a side, and the packet with which they were said; None before anything came."""

    octets: bytes = b""
    at: PacketRef | None = None
    lost: bool = False

    def add(self, octets: bytes | None, at: PacketRef) -> None:
        """Bytes that follow; None is a gap."""
        if octets is None:
            self.lost = self.lost or len(self.octets) < SHORTEST
        elif not self.lost and len(self.octets) < FIRST:
            if len(self.octets) < SHORTEST:
                self.at = at
            self.octets += octets[: FIRST - len(self.octets)]

    def opening(self) -> Opening | None:
        """What they are; None when there are none."""
        return opening(self.octets) if self.octets else None


@dataclass(slots=True)
class ConnectionRecord:
    """What is known of one connection; sides are 0 and 1, for which of them is the client may be found out late."""

    steps: list[Step] = field(default_factory=list)
    firsts: tuple[FirstBytes, FirstBytes] = field(default_factory=lambda: (FirstBytes(), FirstBytes()))
    told: dict[str, PeerArguments] = field(default_factory=dict)
    """What was said, by its role, which is the name of AMQP 0-9-1's method of class connection that says it:
    `start` (`mechanisms`), `start-ok` (`mechanism`), `tune` and `tune-ok` (`channel_max`, `frame_max`, `heartbeat`),
    `open` (`virtual_host`), `close` (`reply_code`, `reply_text`); and `refusal` (`code`, `words`, `of`) where a
    protocol answers with codes. The latest of each, but the first close and refusal."""
    facts: dict[str, Hashable] = field(default_factory=dict)
    """Further facts for rules to ask for and texts to name, as a protocol finds them; None: not known."""
    properties: dict[str, str | None] = field(default_factory=dict)
    """JSON text of what the peers say of themselves: `client_properties`, `server_properties`."""
    used: bool = False
    user: str | None = None
    cut_login: bool = False
    """Parts of connection.start-ok are missing: what it does not say is not known."""
    blocked: str | None = None
    """Reason for which the broker takes no messages now."""
    was_blocked: bool = False
    channel_errors: list[tuple[PacketRef, str]] = field(default_factory=list)
    channels_failed: int = 0
    closer: int | None = None
    """Side that said close first."""
    columns: dict[str, Any] = field(default_factory=dict)
    """Further columns of the connection's row, as a protocol finds them."""
    skipped: int = 0
    tls: Shown | None = None
    """What TLS shows, where there is TLS."""
    outer: tuple[FirstBytes, FirstBytes] | None = None
    """Where TLS was opened: the first bytes of TLS itself; `firsts` are those inside."""

    def open(self) -> None:
        """What TLS holds comes now."""
        self.outer, self.firsts = self.firsts, (FirstBytes(), FirstBytes())

    def describe(self, side: str, properties: str | None) -> None:
        """What a side (`client`, `server`) tells of itself."""
        fits = properties is None or len(properties) <= limits.PROPERTIES
        self.properties[f"{side}_properties"] = properties if fits else None

    def step(self, event: str, side: int, at: PacketRef, detail: str = "", beyond: int = 0) -> None:
        """Something that a side did; of such steps STEPS are kept, and `beyond`."""
        if len(self.steps) < STEPS + beyond:
            self.steps.append(Step(event, side, at, detail))

    def say(
        self, event: str, role: str, side: int, at: PacketRef, said: PeerArguments, detail: str | None = None
    ) -> None:
        """A step that says something; see `told`."""
        self.step(event, side, at, said.detail if detail is None else detail, CLOSES if role in CLOSING else 0)
        if role in ONCE:
            if role in self.told:
                return
            if role == "close":
                self.closer = side
        elif role == "blocked":
            self.blocked, self.was_blocked = said["reason"] or "", True
        elif role == "unblocked":
            self.blocked = None
        self.told[role] = said

    def channel_error(self, at: PacketRef, text: str) -> None:
        """The broker closed a channel."""
        self.channels_failed += 1
        if len(self.channel_errors) < CHANNEL_ERRORS:
            self.channel_errors.append((at, text))

    def use(self, side: int, at: PacketRef) -> None:
        """A frame of another class than connection: somebody uses the connection."""
        if not self.used:
            self.used = True
            self.steps.append(Step("first use", side, at))


CLASSES = (ConnectionRecord, PacketRef, Step, FirstBytes, *SHOWN)
"""What a record consists of, when it is written."""


def product(properties: str | None) -> str:
    """Product, version and platform in the JSON text of a peer's properties."""
    try:
        found = json.loads(properties or "")
    except ValueError:
        return "unknown product"
    known = [str(found[name]) for name in ("product", "version", "platform") if found.get(name)]
    return " ".join(known[:2]) + (f" ({known[2]})" if len(known) == 3 else "") if known else "unknown product"
