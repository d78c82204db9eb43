"""Gather the facts about one handshake that the rules of `spec/handshakes.toml` ask for and their texts name.

Facts that rules ask for (None where unknown):

    protocol           name of the protocol
    amqp               bool: it is, or may be, a broker's connection: its port is a broker's, it carries AMQP or
                       streams, or TCP itself failed
    seen               `both`; `syn`: only SYNs; `client`, `server`: packets of one side only
    begun              bool: the beginning of the connection was captured
    gaps              bool: bytes are missing from the capture
    stage, state, turn the state that the handshake reached, and whose turn it was
    syns, syn_acks     number of each; `syn_ack`: bool
    client_first, server_first   kind of the first bytes of each side
    end                first FIN or RST: `client-fin`, `client-rst`, `server-fin`, `server-rst`, `none`
    close              sender of the first connection.close: `client`, `server`, `none`
    ended_by           side that ended it first, by close or by TCP: `client`, `server`, `none`
    reply_code, reply_text       of that connection.close
    refusal            first response code that is an error, of protocols that answer with codes
    quiet_s            seconds from the last step to the end of the connection, or of the capture
    mechanism_offered, response_wellformed, capable_auth   bool
    channel_max_above, frame_max_above, frame_max_below    bool: against what the broker proposed; below 4096
    user, server_port, server_loopback
    unread             bool: parts of the handshake could not be decoded
    blocked            bool: the broker accepts no messages when the capture ends
    client_beats, server_beats   time without a frame from a side before the end, in heartbeat intervals
    tls, tls_*         see dissector/handshakes/tls_facts.py
"""

import ipaddress
import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from amqpscope.dissector.fields.decoding import REDACTED
from amqpscope.dissector.handshakes import tls_facts
from amqpscope.dissector.handshakes.arguments import NOTHING
from amqpscope.dissector.handshakes.cache import BoundedCache
from amqpscope.dissector.handshakes.dialogue import Run, run
from amqpscope.dissector.handshakes.record import ConnectionRecord, FirstBytes, PacketRef, Step
from amqpscope.spec.handshakes import Handshakes, Machine, opening
from amqpscope.spec.model import Protocol

ROLES = ("client", "server")
AGAIN = "tcp.again"
"""The step of sending something again."""
ENDS = frozenset({"connection.close", "close", "tcp.fin", "tcp.rst"})
USUAL = ("amqp-0-9-1", "amqp-frames")
"""Kinds of first bytes that determine the bytes."""


class Side(NamedTuple):
    """TCP facts of one side."""

    packets: int
    """Without SYNs."""
    syns: int
    syn: PacketRef | None
    end: str
    """`fin`, `rst` or empty."""
    end_at: PacketRef | None
    said_ns: int
    """Time of its last data; 0: none."""
    again: Sequence[tuple[PacketRef, int]] = ()
    """The first retransmitted packets, with the number of bytes that they carry; 0: SYN."""


class Tcp(NamedTuple):
    """TCP facts of a connection. `sides` are (client, server); `client` is the client's side number."""

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


class SidedStep(NamedTuple):
    """A step with the role of its side."""

    role: str
    step: Step


TIMED = ("quiet_s", "quiet", "last", "client_silence", "client_beats", "server_silence", "server_beats")
"""Facts that depend on times."""


class Facts(dict[str, Any]):
    """Facts by name. Those that depend on times are computed when the first of them is asked for."""

    def __init__(self, known: dict[str, Any], timed: Callable[[], dict[str, Any]]) -> None:
        super().__init__(known)
        self.timed = timed
        self.are_timed = False

    def __missing__(self, name: str) -> Any:
        if self.are_timed or name not in TIMED:
            raise KeyError(name)
        self.are_timed = True
        self.update(self.timed())
        return self[name]


class Times(NamedTuple):
    """The steps from which time-dependent facts are computed: the same ones for all connections that are alike."""

    over: int | None
    """The first FIN or RST."""
    done: list[int]
    """Steps of the handshake, and steps of kind `bytes`."""
    interval: int | None
    """The heartbeat, in seconds."""
    words: Mapping[str, str]

    def facts(self, tcp: Tcp, steps: list[Step]) -> dict[str, Any]:
        """Return the time since the last step before the end, and the time since each side last sent data."""
        over = None if self.over is None else steps[self.over].at.ts_ns
        last = max((steps[n] for n in reversed(self.done)), key=lambda step: step.at.ts_ns, default=None)
        quiet = max((tcp.until_ns if over is None else over) - last.at.ts_ns, 0) if last else None
        facts = {
            "quiet_s": quiet / 1e9 if quiet is not None else None,
            "quiet": duration(quiet) if quiet is not None else None,
            "last": self.words.get(last.event, last.event) if last else None,
        }
        for role, side in zip(ROLES, tcp.sides, strict=True):
            silence = over - side.said_ns if over is not None and side.said_ns else None
            facts[f"{role}_silence"] = duration(silence) if silence is not None else None
            facts[f"{role}_beats"] = silence / 1e9 / self.interval if silence is not None and self.interval else None
        return facts


@dataclass(frozen=True, slots=True)
class Case:
    """The basis of a verdict, the same for all connections that are alike: steps, and facts except those of `times`."""

    known: dict[str, Any]
    times: Times
    steps: list[SidedStep]
    run: Run

    def facts(self, tcp: Tcp, steps: list[Step]) -> Facts:
        """Return all facts of one of them."""
        return Facts(self.known, lambda: self.times.facts(tcp, steps))


def gather(record: ConnectionRecord, tcp: Tcp, steps: list[Step], handshakes: Handshakes, protocol: Protocol) -> Case:
    """Return the case of one connection; `steps` are those of its `timeline`."""
    first = record.firsts[tcp.client], record.firsts[1 - tcp.client]
    kinds = [side.kind() for side in first]
    openings = [opening(side.octets) if side.octets else None for side in first]
    begun = tcp.begun or (openings[0] is not None and openings[0].begins) or tls_facts.is_begun(record.tls)
    told = [SidedStep(ROLES[step.side != tcp.client], step) for step in steps]
    seen = _seen(tcp)
    machine = handshakes.machine(tcp.protocol, tcp.server[1])
    # After the first end the handshake stops, though bytes may still arrive.
    end = next((n for n, (_, step) in enumerate(told) if step.event in ENDS), len(told))
    events = [(role, step.event) for role, step in told[:end]]
    spoken = any(side.said_ns for side in tcp.sides)  # so the server has accepted, seen or not
    unseen = spoken and not tcp.sides[1].syns
    ran = run(machine, events, leap=tcp.lost or unseen or not begun or seen != "both")
    state = machine.states[ran.state]
    known: dict[str, Any] = {
        "protocol": tcp.protocol,
        "amqp": tcp.protocol in handshakes.machines
        or tcp.is_broker
        or tcp.server[1] in handshakes.ports
        or any(found is not None and found.amqp for found in openings)
        # Where TCP itself failed, the protocol is unknown.
        or (tcp.begun and not tcp.sides[1].syns and kinds == ["none", "none"]),
        "seen": seen,
        "begun": begun,
        "gaps": tcp.lost,
        "stage": state.stage,
        "state": state.name,
        "turn": state.turn,
        "syns": tcp.sides[0].syns,
        "syn_acks": tcp.sides[1].syns,
        "syn_ack": spoken or tcp.sides[1].syns > 0,
        "client_first": kinds[0],
        "server_first": kinds[1],
        "server_port": tcp.server[1],
        "server_loopback": ipaddress.ip_address(tcp.server[0]).is_loopback,
        "server": f"[{tcp.server[0]}]:{tcp.server[1]}" if ":" in tcp.server[0] else f"{tcp.server[0]}:{tcp.server[1]}",
        "owed": state.owes,
        "blocked": record.blocked is not None,
        "blocked_reason": record.blocked or None,
    }
    known |= {f"{role}_first_doc": found.doc if found else None for role, found in zip(ROLES, openings, strict=True)}
    known |= _ends(record, tcp, told) | _agreement(record, machine) | _closing(record, protocol) | _refusal(record)
    known |= {f"{role}_again": sum(step.event == AGAIN and role == of for of, step in told) for role in ROLES}
    known |= {"unread": None} | record.facts | tls_facts.facts(record.tls, tcp.client)
    return Case(known, _times(record, told, ran, handshakes.words), told, ran)


def case_key(record: ConnectionRecord, tcp: Tcp, steps: list[Step]) -> tuple[Hashable, ...]:
    """Return a key that is equal for connections whose case is the same."""
    client = tcp.client
    firsts = record.firsts[client], record.firsts[1 - client]
    kinds = firsts[0].kind(), firsts[1].kind()
    events, sides, _, details = zip(*steps, strict=True) if steps else ((), (), (), ())
    return (
        events, tuple([side == client for side in sides]), details, places(steps)[2],
        kinds, None if kinds == USUAL else (firsts[0].octets, firsts[1].octets),
        tuple(record.told.values()), capabilities(record.properties.get("client_properties")),
        tuple(record.facts.items()),
        record.user, record.cut_login, record.blocked, record.was_blocked,
        record.closer == client, record.closer is None,
        tcp.server, tcp.begun, tcp.lost, tcp.protocol, tcp.is_broker,
        tuple([(side.syns, side.packets > 0) for side in tcp.sides]),
        tuple(tls_facts.facts(record.tls, client).values()) if record.tls else None,
    )  # fmt: skip


def places(steps: list[Step]) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return the times, packets and captures of steps."""
    times, packets, captures = zip(*[step.at for step in steps], strict=True) if steps else ((), (), ())
    return times, packets, captures


def duration(ns: int) -> str:
    """Return a duration as text."""
    for unit, size in (("s", 1_000_000_000), ("ms", 1_000_000), ("µs", 1_000)):
        if ns >= size:
            number = ns / size
            return f"{number:.0f} {unit}" if number >= 100 else f"{number:.3g} {unit}"
    return f"{max(ns, 0)} ns"


def timeline(record: ConnectionRecord, tcp: Tcp) -> list[Step]:
    """Return the steps of both sides, each in its own order, merged by time; at equal times the client's first."""
    client = tcp.client
    merged = _merged(_queue(record, tcp, client, 0), _queue(record, tcp, 1 - client, 1))
    if tcp.sides[0].again or tcp.sides[1].again:
        return _with_repeats(merged, tcp)
    return merged


def _queue(record: ConnectionRecord, tcp: Tcp, side: int, index: int) -> list[Step]:
    """Return the steps of one side, the client's (0) or the server's (1)."""
    shown = tcp.sides[index]
    queue = []
    if shown.syn:
        again = f"sent {shown.syns} times" if shown.syns > 1 else ""
        queue.append(Step("tcp.syn-ack" if index else "tcp.syn", side, shown.syn, again))
    if tcp.ack and index == 0:
        queue.append(Step("tcp.ack", side, tcp.ack))
    if first := _first_step(record, tcp, side, (record.outer or record.firsts)[side]):
        queue.append(first)
    spoken = [step for step in record.steps if step.side == side]
    if record.outer and (inner := _first_step(record, tcp, side, record.firsts[side])):
        spoken.insert(0, inner)
    queue += _merged(tls_facts.steps(record.tls, side), spoken) if record.tls else spoken
    if shown.end and shown.end_at:
        queue.append(Step(f"tcp.{shown.end}", side, shown.end_at))
    return queue


def _with_repeats(steps: list[Step], tcp: Tcp) -> list[Step]:
    """Insert retransmissions between the steps, up to the first use, where the handshake ends."""
    used = next((step.at.ts_ns for step in steps if step.event == "first use"), None)
    repeats = [
        Step(AGAIN, side, at, f"{length} byte{'s' * (length > 1)}" if length else "SYN or SYN-ACK")
        for side, shown in zip((tcp.client, 1 - tcp.client), tcp.sides, strict=True)
        for at, length in shown.again
        if used is None or at.ts_ns < used
    ]
    return _merged(steps, sorted(repeats, key=lambda step: step.at.ts_ns))


def _first_step(record: ConnectionRecord, tcp: Tcp, side: int, first: FirstBytes) -> Step | None:
    """Return the step that the first bytes of a side make, if they make one."""
    if not first.at or not first.octets:
        return None
    event: str | None
    event, doc = _opening_event(first.octets)
    if record.tls and event in ("tls.hello", "tls.alert"):
        event, doc = tls_facts.opening(event, record.tls, side)
    is_first = tcp.begun or event == "header" or (event == "tls.hello" and tls_facts.is_begun(record.tls))
    return Step(event, side, first.at, doc) if event and is_first else None


def _merged(ours: list[Step], theirs: list[Step]) -> list[Step]:
    """Merge both queues by time, though time may run backwards within one."""
    merged: list[Step] = []
    theirs = theirs[::-1]
    for step in ours:
        now = step.at.ts_ns
        while theirs and theirs[-1].at.ts_ns < now:
            merged.append(theirs.pop())
        merged.append(step)
    return merged + theirs[::-1]


def _opening_event(octets: bytes) -> tuple[str, str]:
    """Return the step that the first bytes of a side make (empty: none), and its detail."""
    first = opening(octets)
    return first.step, f"{first.doc}: {octets[:8].hex(' ')}" if first.kind == "other" else first.doc


def _seen(tcp: Tcp) -> str:
    client, server = tcp.sides
    if server.packets or server.syns:
        return "both" if client.packets or client.syns else "server"
    return "client" if client.packets else "syn"


def _ends(record: ConnectionRecord, tcp: Tcp, steps: list[SidedStep]) -> dict[str, Any]:
    end = next((f"{role}-{step.event[4:]}" for role, step in steps if step.event in ("tcp.fin", "tcp.rst")), "none")
    close = "none" if record.closer is None else ROLES[record.closer != tcp.client]
    return {"end": end, "close": close, "ended_by": close if close != "none" else end.split("-", maxsplit=1)[0]}


def _times(record: ConnectionRecord, told: list[SidedStep], ran: Run, words: Mapping[str, str]) -> Times:
    over = next((n for n, (_, step) in enumerate(told) if step.event in ("tcp.fin", "tcp.rst")), None)
    done = ran.taken + [n for n, (_, step) in enumerate(told) if step.event == "bytes"]
    return Times(over, done, record.told.get("tune-ok", NOTHING).get("heartbeat"), words)


def _agreement(record: ConnectionRecord, machine: Machine) -> dict[str, Any]:
    start, login = record.told.get("start", NOTHING), record.told.get("start-ok", NOTHING)
    offer, settled = record.told.get("tune", NOTHING), record.told.get("tune-ok", NOTHING)
    offered, mechanism = start.get("mechanisms"), login.get("mechanism")
    mechanism = None if mechanism == REDACTED else mechanism  # of a malformed login
    tells = machine.capabilities and not record.cut_login
    capable = capabilities(record.properties.get("client_properties")) if tells else None
    above = {
        f"{name}_above": _is_above(settled.get(name), offer.get(name)) if settled and offer else None
        for name in ("channel_max", "frame_max")
    }
    return above | {
        "frame_max_below": 0 < (settled.get("frame_max") or 0) < machine.frame_min
        if settled and machine.frame_min
        else None,
        "channel_max": settled.get("channel_max"),
        "frame_max": settled.get("frame_max"),
        "is_tuned": bool(settled),
        "heartbeat": (settled or offer).get("heartbeat"),
        "offered_channel_max": offer.get("channel_max"),
        "offered_frame_max": offer.get("frame_max"),
        "offered_heartbeat": offer.get("heartbeat"),
        "mechanism": mechanism,
        "mechanisms": offered,
        "mechanism_offered": mechanism in offered.split() if mechanism and offered else None,
        "response_wellformed": None
        if record.cut_login or mechanism not in ("PLAIN", "AMQPLAIN")
        else record.user is not None,
        "capable_auth": None if capable is None else "authentication_failure_close" in capable,
        "capabilities": capable,
        "user": record.user,
        "who": f'user "{record.user}"' if record.user else "the client",
        "vhost": record.told.get("open", NOTHING).get("virtual_host"),
    }


def _is_above(settled: int | None, offered: int | None) -> bool:
    """Return whether a limit exceeds the one offered; 0 is no limit."""
    return settled is not None and bool(offered) and (settled == 0 or settled > (offered or 0))


def _refusal(record: ConnectionRecord) -> dict[str, Any]:
    said = record.told.get("refusal", NOTHING)
    return {
        "refusal": said.get("code"),
        "refusal_words": said.get("words"),
        "refusal_doc": said.get("doc"),
        "refused": said.get("of"),
    }


def _closing(record: ConnectionRecord, protocol: Protocol) -> dict[str, Any]:
    values = record.told.get("close", NOTHING)
    code, text = values.get("reply_code"), values.get("reply_text")
    words = next((constant.doc for constant in protocol.constants if constant.value == code), "")
    ids = values.get("class_id"), values.get("method_id")
    name = next((m.full_name for m in protocol.methods if (m.class_id, m.id) == ids), None)
    return {
        "reply_code": code,
        "reply_text": text,
        "reply": text or (str(code) if code is not None else None),
        "method_words": f"{words} The reply names {name}." if name else words or "The broker gave no reason.",
    }


def capabilities(properties: str | None) -> frozenset[str] | None:
    """Return the capabilities that the JSON text of a peer's properties announces; None where unknown."""
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
