"""What one connection shows of its handshake and its end, collected while it is dissected."""

import json
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from spec.handshakes import opening

STEPS = 64
"""Steps kept of one connection; those of its end are kept beyond."""
CLOSES = 4
"""Closes of either kind kept beyond these."""
CHANNEL_ERRORS = 16
"""Channels closed with an error that are told of one connection; the others are counted."""
FIRST = 32
"""Octets kept of the beginning of each side, to tell what they are."""
SHORTEST = 8
"""A side's first octets count as said once there are so many (a protocol header is as long)."""


class Where(NamedTuple):
    """A packet: its time, its number and the index of its capture."""

    ts_ns: int
    packet: int
    capture: int


class Said(dict[str, Any]):
    """The arguments of a method. Where two connections say the same, it is mostly one object; so it is compared."""

    detail = ""
    """What to say of it in a few words."""
    __hash__ = object.__hash__  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return self is other


NOTHING = Said()
"""Arguments of a method that did not come."""


class Step(NamedTuple):
    """Something that a side did."""

    event: str
    side: int
    at: Where
    detail: str = ""


@dataclass(slots=True)
class First:
    """The first octets of a side, and the packet with which they were said; None before anything came."""

    octets: bytes = b""
    at: Where | None = None
    lost: bool = False

    def add(self, octets: bytes | None, at: Where) -> None:
        """Octets that follow; None is a hole."""
        if octets is None:
            self.lost = self.lost or len(self.octets) < SHORTEST
        elif not self.lost and len(self.octets) < FIRST:
            if len(self.octets) < SHORTEST:
                self.at = at
            self.octets += octets[: FIRST - len(self.octets)]

    def kind(self) -> str:
        """What they are: `none` when there are none, `lost` when the capture lacks them."""
        if not self.octets:
            return "lost" if self.lost else "none"
        return opening(self.octets).kind


@dataclass(slots=True)
class Story:
    """What is known of one connection; sides are 0 and 1, for which of them is the client may be found out late."""

    steps: list[Step] = field(default_factory=list)
    firsts: tuple[First, First] = field(default_factory=lambda: (First(), First()))
    told: dict[str, Said] = field(default_factory=dict)
    """Arguments of connection methods, by name: the latest of each, the first connection.close."""
    properties: dict[str, str | None] = field(default_factory=dict)
    """JSON text of what the peers say of themselves: `client_properties`, `server_properties`."""
    used: bool = False
    user: str | None = None
    cut_login: bool = False
    """Parts of connection.start-ok are missing: what it does not say is not known."""
    blocked: str | None = None
    """Reason for which the broker takes no messages now."""
    was_blocked: bool = False
    channel_errors: list[tuple[Where, str]] = field(default_factory=list)
    channels_failed: int = 0
    closer: int | None = None
    """Side of the first connection.close."""
    messages: int = 0
    skipped: int = 0

    def method(self, name: str, side: int, at: Where, values: Said, detail: str) -> None:
        """A connection method."""
        closing = name in ("connection.close", "connection.close-ok")
        if len(self.steps) < STEPS + (CLOSES if closing else 0):
            self.steps.append(Step(name, side, at, detail))
        if name == "connection.close":
            if self.closer is not None:
                return
            self.closer = side
        elif name == "connection.blocked":
            self.blocked, self.was_blocked = values["reason"] or "", True
        elif name == "connection.unblocked":
            self.blocked = None
        self.told[name] = values

    def channel_error(self, at: Where, text: str) -> None:
        """The broker closed a channel."""
        self.channels_failed += 1
        if len(self.channel_errors) < CHANNEL_ERRORS:
            self.channel_errors.append((at, text))

    def use(self, side: int, at: Where) -> None:
        """A frame of another class than connection: somebody uses the connection."""
        if not self.used:
            self.used = True
            self.steps.append(Step("first use", side, at))


def detail(name: str, values: Said) -> str:
    """What to say of a connection method in a few words."""
    if name == "connection.start":
        return f"offers {values['mechanisms']}"
    if name == "connection.start-ok":
        return f"{values['mechanism']}"
    if name in ("connection.tune", "connection.tune-ok"):
        channels, frame, beat = (values[k] for k in ("channel_max", "frame_max", "heartbeat"))
        return f"channel-max {channels}, frame-max {frame}, heartbeat {beat} s"
    if name == "connection.open":
        return f"vhost {values['virtual_host']}"
    if name == "connection.close":
        return f"{values['reply_code']} {values['reply_text']}"
    if name == "connection.blocked":
        return values["reason"] or ""
    return ""


def product(properties: str | None) -> str:
    """Product, version and platform in the JSON text of a peer's properties."""
    try:
        found = json.loads(properties or "")
    except ValueError:
        return "unknown product"
    known = [str(found[name]) for name in ("product", "version", "platform") if found.get(name)]
    return " ".join(known[:2]) + (f" ({known[2]})" if len(known) == 3 else "") if known else "unknown product"
