"""What TLS shows of one connection, with or without its keys."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple

from amqpscope.dissector.tls.certificates import Certificate
from amqpscope.dissector.tls.messages import ClientHello, ServerHello, suite_name, version_name
from amqpscope.dissector.tls.records import At

ALERTS = 8
"""Most alerts kept of a connection."""
STEPS = 32
"""Most steps kept of a connection."""
FATAL = 2


class Step(NamedTuple):
    """A step that one side took."""

    event: str
    side: int
    at: At
    detail: str = ""


class Fault(NamedTuple):
    """A row for `anomalies`: code, connection, side, packet and message."""

    code: str
    slot: int
    side: int
    at: At
    detail: str


class Sent(NamedTuple):
    """A certificate, and the packet that carried it."""

    certificate: Certificate
    at: At


class Alert(NamedTuple):
    """A decoded alert."""

    side: int
    level: int
    number: int
    at: At


@dataclass(slots=True)
class Shown:
    """All that is known of the handshake; sides are those of the connection (0, 1)."""

    client: int | None = None
    hello: ClientHello | None = None
    chosen: ServerHello | None = None
    resumed: bool | None = None
    protocol: str | None = None
    """The protocol chosen by ALPN."""
    certificates: list[Sent | None] = field(default_factory=lambda: [None, None])
    """Certificates of side 0 and 1."""
    bare: list[bool] = field(default_factory=lambda: [False, False])
    """Whether a side sent an empty Certificate message."""
    asked: bool = False
    """Whether the server asked for the client's certificate."""
    steps: list[Step] = field(default_factory=list)
    alerts: list[Alert] = field(default_factory=list)
    hidden: int | None = None
    """The side that ended the handshake with an encrypted alert, recognised by its length."""
    accepted: bool = False
    """Whether the server sent data after the handshake."""
    decrypted: bool = False

    def step(self, event: str, side: int, at: At, detail: str = "") -> None:
        """Add a step."""
        if len(self.steps) < STEPS:
            self.steps.append(Step(event, side, at, detail))

    def alert(self, alert: Alert) -> None:
        """Add an alert."""
        if len(self.alerts) < ALERTS:
            self.alerts.append(alert)

    @property
    def version(self) -> int | None:
        """Return the version that the server chose."""
        return self.chosen.version if self.chosen else None

    @property
    def fatal(self) -> Alert | None:
        """Return the alert that ended the connection. TLS 1.3 ignores its level (RFC 8446 section 6)."""
        return next((a for a in self.alerts if a.number not in (0, 90, 100) and (a.level == FATAL or a.number)), None)


CLASSES = (Shown, Step, Sent, Alert, At, ClientHello, ServerHello, Certificate)
"""What it consists of, when it is written."""


def offers(hello: ClientHello) -> str:
    """Describe a ClientHello in a few words."""
    versions = ", ".join(version_name(number) for number in hello.versions[:4])
    return f"offers {versions}" + (f" for {hello.server_name}" if hello.server_name else "")


def choice(chosen: ServerHello) -> str:
    """Describe a ServerHello in a few words."""
    return f"{version_name(chosen.version)}, {suite_name(chosen.suite)}"


def owner(sent: Sent | None) -> str:
    """Describe a certificate in a few words, with its validity at the time it was sent."""
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
    """List names, but not too many."""
    shown = ", ".join(name for name in names[:most] if name)
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")


def day(seconds: int) -> str:
    """Format a day."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d}"
