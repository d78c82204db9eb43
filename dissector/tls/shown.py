"""What TLS shows of one connection, with its keys or without."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple

from amqpscope.dissector.tls.certificates import Certificate
from amqpscope.dissector.tls.messages import ClientHello, ServerHello, suite_name, version_name
from amqpscope.dissector.tls.records import At

ALERTS = 8
"""Alerts kept of a connection."""
STEPS = 32
"""Steps kept of a connection."""
FATAL = 2


class Step(NamedTuple):
    """Something that a side did."""

    event: str
    side: int
    at: At
    detail: str = ""


class Fault(NamedTuple):
    """Something for `anomalies`: a code, on which connection, by which side, where, and what to say of it."""

    code: str
    slot: int
    side: int
    at: At
    told: str


class Sent(NamedTuple):
    """A certificate, and where it was sent."""

    certificate: Certificate
    at: At


class Alert(NamedTuple):
    """An alert that could be read."""

    side: int
    level: int
    number: int
    at: At


@dataclass(slots=True)
class Shown:
    """All of it; sides are those of the connection (0, 1)."""

    client: int | None = None
    hello: ClientHello | None = None
    chosen: ServerHello | None = None
    resumed: bool | None = None
    protocol: str | None = None
    """ALPN: what was chosen."""
    certificates: list[Sent | None] = field(default_factory=lambda: [None, None])
    """Of side 0 and 1."""
    bare: list[bool] = field(default_factory=lambda: [False, False])
    """The side sent a Certificate message without any."""
    asked: bool = False
    """The server asked for the client's certificate."""
    steps: list[Step] = field(default_factory=list)
    alerts: list[Alert] = field(default_factory=list)
    hidden: int | None = None
    """The side that, by the length of its last record, ended the handshake with an alert that cannot be read."""
    accepted: bool = False
    """The server went on when the handshake was done."""
    decrypted: bool = False

    def step(self, event: str, side: int, at: At, detail: str = "") -> None:
        """One more."""
        if len(self.steps) < STEPS:
            self.steps.append(Step(event, side, at, detail))

    def alert(self, alert: Alert) -> None:
        """One more."""
        if len(self.alerts) < ALERTS:
            self.alerts.append(alert)

    @property
    def version(self) -> int | None:
        """The version that the server chose."""
        return self.chosen.version if self.chosen else None

    @property
    def fatal(self) -> Alert | None:
        """The alert that ended it. TLS 1.3 goes by what it says, not by its level (RFC 8446 section 6)."""
        return next((a for a in self.alerts if a.number not in (0, 90, 100) and (a.level == FATAL or a.number)), None)


CLASSES = (Shown, Step, Sent, Alert, At, ClientHello, ServerHello, Certificate)
"""What it consists of, when it is written."""


def offers(hello: ClientHello) -> str:
    """A ClientHello in a few words."""
    versions = ", ".join(version_name(number) for number in hello.versions[:4])
    return f"offers {versions}" + (f" for {hello.server_name}" if hello.server_name else "")


def choice(chosen: ServerHello) -> str:
    """A ServerHello in a few words."""
    return f"{version_name(chosen.version)}, {suite_name(chosen.suite)}"


def owner(sent: Sent | None) -> str:
    """A certificate in a few words; whether it was valid goes by the time at which it was sent."""
    if sent is None:
        return "none"
    certificate, (_, ts_ns, _) = sent
    names = list(dict.fromkeys([certificate.subject, *certificate.names]))
    validity = f"valid until {day(certificate.ends_s)}"
    if ts_ns < certificate.begins_s * 1_000_000_000:
        validity = f"not valid before {day(certificate.begins_s)}"
    elif ts_ns >= (certificate.ends_s + 1) * 1_000_000_000:
        validity = f"expired on {day(certificate.ends_s)}"
    return f"{listed(names)}, by {certificate.issuer}, {validity}"


def listed(names: Sequence[str], most: int = 4) -> str:
    """Names, not too many of them."""
    shown = ", ".join(name for name in names[:most] if name)
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")


def day(seconds: int) -> str:
    """A day to read."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d}"
