"""What a verdict comes from: what TCP shows, and from that and the record of a connection all but its times."""

import json
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from amqpscope.dissector.handshakes import tls_facts
from amqpscope.dissector.handshakes.arguments import PeerArguments
from amqpscope.dissector.handshakes.cache import BoundedCache
from amqpscope.dissector.handshakes.record import ConnectionRecord, PacketRef, Step
from amqpscope.spec.handshakes import Opening

ROLES = ("client", "server")


class Side(NamedTuple):
    """What TCP shows of one side."""

    packets: int
    """Without SYNs."""
    syns: int
    syn: PacketRef | None
    end: str
    """`fin`, `rst` or empty."""
    end_at: PacketRef | None
    sent_ns: int
    """Time of its last data; 0: none."""
    again: Sequence[tuple[PacketRef, int]] = ()
    """Packets that were sent again, the first of them, with the bytes that they carry; 0: SYN."""
    fin_lost: bool = False
    """Its FIN was not captured: the numbers of later packets count it."""
    end_after: PacketRef | None = None
    """The last packet with bytes that its end acknowledges, where the capture has it after the end."""
    last_ns: int = 0
    """Time of its last packet of any kind before any FIN or RST; 0: none."""
    unacknowledged_ns: int = 0
    """Since when bytes of it are not acknowledged, before any FIN or RST; 0: all are."""
    again_ns: int = 0
    """Time of its last data that were sent again, before any FIN or RST; 0: none."""

    @property
    def lost_ns(self) -> int:
        """Since when bytes of it are sent again without an acknowledgement; 0: none are.

        Whoever sends does so until they are acknowledged (RFC 6298, 5.4): where nothing was sent again, they were, and
        the capture lacks it.
        """
        return self.unacknowledged_ns if self.again_ns > self.unacknowledged_ns else 0


class Tcp(NamedTuple):
    """What TCP shows of a connection. `sides` are (client, server); `client` is the client's side number."""

    client: int
    sides: tuple[Side, Side]
    begun: bool
    ack: PacketRef | None
    until_ns: int
    lost: bool
    protocol: str
    server: tuple[str, int]
    address: str = ""
    is_broker: bool = False
    """The user named the port's protocol."""
    roles_by: str = ""
    """What shows who is the client, as in `connections`."""
    closer: int = -1
    """Side that sent the first FIN or RST; -1: none."""


class SidedStep(NamedTuple):
    """A step with the role of its side; without time and packet, which differ between connections that are alike."""

    role: str
    event: str
    detail: str
    capture: int


class Inputs(NamedTuple):
    """All that a verdict comes from but times. Connections of which it is equal share a case.

    Whoever judges gets nothing else of a connection; so nothing that makes a difference can be left out of it.
    """

    protocol: str
    server: tuple[str, int]
    is_broker: bool
    roles_by: str
    begun: bool
    lost: bool
    syns: tuple[int, int]
    """Of the client and the server, as all pairs here."""
    has_packets: tuple[bool, bool]
    has_sent: tuple[bool, bool]
    """Whether a side sent data."""
    is_lost: tuple[bool, bool]
    """Whether the first bytes of a side are missing from the capture."""
    openings: tuple[Opening | None, Opening | None]
    """What the first bytes of each side are; None where there are none."""
    roles: tuple[str, ...]
    """Of the steps, in their order, as the three that follow."""
    events: tuple[str, ...]
    details: tuple[str, ...]
    captures: tuple[int, ...]
    arguments: tuple[tuple[str, PeerArguments], ...]
    facts: tuple[tuple[str, Hashable], ...]
    capabilities: frozenset[str] | None
    user: str | None
    cut_login: bool
    blocked: str | None
    closer: str
    """The role that sent close first; `none`."""
    end_lost: bool
    """Whether the last frames of a side may be missing."""
    fin_lost: bool
    """Whether a FIN is missing."""
    evicted: bool
    tls: tuple[tuple[str, Hashable], ...]

    @property
    def steps(self) -> list[SidedStep]:
        """The steps."""
        return list(map(SidedStep, self.roles, self.events, self.details, self.captures))

    @property
    def kinds(self) -> list[str]:
        """Kinds of the first bytes of each side: `none` when there are none, `lost` when the capture lacks them."""
        each = zip(self.openings, self.is_lost, strict=True)
        return [found.kind if found else "lost" if lost else "none" for found, lost in each]


def gather(record: ConnectionRecord, tcp: Tcp, steps: list[Step]) -> Inputs:
    """Return the inputs of one connection; `steps` are those of its `timeline`."""
    client, sides = tcp.client, tcp.sides
    firsts = record.firsts[client], record.firsts[1 - client]
    events, who, at, details = zip(*steps, strict=True) if steps else ((), (), (), ())
    return Inputs(
        protocol=tcp.protocol,
        server=tcp.server,
        is_broker=tcp.is_broker,
        roles_by=tcp.roles_by,
        begun=tcp.begun,
        lost=tcp.lost,
        syns=(sides[0].syns, sides[1].syns),
        has_packets=(sides[0].packets > 0, sides[1].packets > 0),
        has_sent=(sides[0].sent_ns > 0, sides[1].sent_ns > 0),
        is_lost=(firsts[0].lost, firsts[1].lost),
        openings=(firsts[0].opening(), firsts[1].opening()),
        roles=tuple([ROLES[side != client] for side in who]),
        events=events,
        details=details,
        captures=tuple([packet.capture for packet in at]),
        arguments=tuple(record.arguments.items()),
        facts=tuple(record.facts.items()),
        capabilities=capabilities(record.properties.get("client_properties")),
        user=record.user,
        cut_login=record.cut_login,
        blocked=record.blocked,
        closer="none" if record.closer is None else ROLES[record.closer != client],
        end_lost=record.end_lost,
        fin_lost=sides[0].fin_lost or sides[1].fin_lost,
        evicted=record.evicted,
        tls=tuple(tls_facts.facts(record.tls, client).items()) if record.tls else (),
    )


def capabilities(properties: str | None) -> frozenset[str] | None:
    """Return the capabilities that the JSON text of a peer's properties announces; None where these are not known."""
    if properties is None:
        return None
    found = _capabilities.get(properties)
    if found is None:
        try:
            named = json.loads(properties).get("capabilities")
        except ValueError:
            return None
        found = frozenset(name for name, is_there in named.items() if is_there) if isinstance(named, dict) else NONE
        _capabilities.keep(properties, found, len(properties))
    return found


NONE: frozenset[str] = frozenset()
_capabilities: BoundedCache[str, frozenset[str]] = BoundedCache()
