"""Facts about one handshake: what the rules of `spec/handshakes.toml` ask for, and what their texts name.

Facts that rules ask for (None where it is not known):

    amqp               bool: a broker's port, or anything of AMQP or streams was seen
    seen               `both`; `syn`: only requests to connect; `client`, `server`: packets of one side only
    begun              bool: the beginning of the connection was captured
    holes              bool: octets are missing from the capture
    stage, state, turn where the dialogue came to, and whose turn it was
    syns, syn_acks     how often they were sent; `syn_ack`: bool
    client_first, server_first   kind of the first octets of each side
    end                first FIN or RST: `client-fin`, `client-rst`, `server-fin`, `server-rst`, `none`
    close              sender of the first connection.close: `client`, `server`, `none`
    ended_by           who ended it first, by either: `client`, `server`, `none`
    reply_code, reply_text       of that connection.close
    quiet_s            seconds from the last step to the end of the connection, or of the capture
    mechanism_offered, response_wellformed, capable_auth   bool
    channel_max_above, frame_max_above, frame_max_below    bool: against what the broker proposed; below 4096
    user, server_port, server_loopback
    blocked            bool: the broker takes no messages at the end
    client_beats, server_beats   silence of a side before the end, in heartbeat intervals
"""

import heapq
import ipaddress
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from dissector.handshakes.machine import Run, run
from dissector.handshakes.story import Step, Story, Where
from spec.handshakes import Handshakes, Machine
from spec.model import Protocol

SERVER_PORTS = frozenset({5672, 5671, 5552, 5551})
FRAME_MIN = 4096
"""AMQP 0-9-1, frame-min-size."""
ROLES = ("client", "server")
ENDS = frozenset({"connection.close", "tcp.fin", "tcp.rst"})
AMQP_KINDS = frozenset({"amqp-0-9-1", "amqp-0-9", "amqp-0-8", "amqp-0-10", "amqp-1.0", "amqp-other", "amqp-frames"})


class Side(NamedTuple):
    """What TCP shows of one side."""

    packets: int
    """Without SYNs."""
    syns: int
    syn: Where | None
    end: str
    """`fin`, `rst` or empty."""
    end_at: Where | None
    said_ns: int
    """Time of its last data; 0: none."""


@dataclass(frozen=True, slots=True)
class Tcp:
    """What TCP shows of a connection. `sides` are (client, server); `client` is the client's side number."""

    client: int
    sides: tuple[Side, Side]
    begun: bool
    ack: Where | None
    until_ns: int
    lost: bool
    protocol: str
    server: tuple[str, int]
    is_broker: bool = False
    """The user named the port's protocol."""


class Told(NamedTuple):
    """A step with the role of its side."""

    role: str
    step: Step


@dataclass(frozen=True, slots=True)
class Facts:
    """All that there is to judge by."""

    values: dict[str, Any]
    steps: list[Told]
    run: Run
    machine: Machine


def gather(story: Story, tcp: Tcp, handshakes: Handshakes, protocol: Protocol) -> Facts:
    """The facts of one connection."""
    kinds = [story.firsts[side].kind(handshakes.openings) for side in (tcp.client, 1 - tcp.client)]
    begun = tcp.begun or kinds[0] in AMQP_KINDS
    steps = _timeline(story, tcp, kinds, handshakes)
    seen = _seen(tcp)
    machine = handshakes.machines["amqp-0-9-1"]
    # Behind the first end nobody goes on with the dialogue, though octets may still be under way.
    end = next((n for n, told in enumerate(steps) if told.step.event in ENDS), len(steps))
    events = [(told.role, told.step.event) for told in steps[:end]]
    ran = run(machine, events, leap=tcp.lost or not begun or seen != "both")
    state = machine.states[ran.state]
    values: dict[str, Any] = {
        "amqp": _is_amqp(tcp, kinds),
        "seen": seen,
        "begun": begun,
        "holes": tcp.lost,
        "stage": state.stage,
        "state": state.name,
        "turn": state.turn,
        "until_ns": tcp.until_ns,
        "syns": tcp.sides[0].syns,
        "syn_acks": tcp.sides[1].syns,
        "syn_ack": tcp.sides[1].syns > 0,
        "client_first": kinds[0],
        "server_first": kinds[1],
        "server_port": tcp.server[1],
        "server_loopback": ipaddress.ip_address(tcp.server[0]).is_loopback,
        "server": f"[{tcp.server[0]}]:{tcp.server[1]}" if ":" in tcp.server[0] else f"{tcp.server[0]}:{tcp.server[1]}",
        "owed": state.owes,
        "blocked": story.blocked is not None,
        "blocked_reason": story.blocked or None,
    }
    values |= {
        f"{role}_first_doc": next((o.doc for o in handshakes.openings if o.kind == kind), None)
        for role, kind in zip(ROLES, kinds, strict=True)
    }
    values |= _ends(story, tcp, steps, ran, handshakes)
    values |= _agreement(story) | _closing(story, protocol) | _beats(story, tcp, steps)
    if kinds[1] == "tls-alert":
        octets = story.firsts[1 - tcp.client].octets
        number = octets[6] if len(octets) > 6 else -1
        name, doc = handshakes.alerts.get(number, (str(number), "The server ended TLS with an alert."))
        values |= {"alert": name, "alert_meaning": doc}
    return Facts(values, steps, ran, machine)


def duration(ns: int) -> str:
    """A duration to read."""
    for unit, size in (("s", 1_000_000_000), ("ms", 1_000_000), ("µs", 1_000)):
        if ns >= size:
            number = ns / size
            return f"{number:.0f} {unit}" if number >= 100 else f"{number:.3g} {unit}"
    return f"{max(ns, 0)} ns"


def _timeline(story: Story, tcp: Tcp, kinds: list[str], handshakes: Handshakes) -> list[Told]:
    """The steps of both sides, each side's in its own order, merged by time."""
    queues: list[list[Step]] = []
    for index, side in enumerate((tcp.client, 1 - tcp.client)):
        shown = tcp.sides[index]
        queue = []
        if shown.syn:
            again = f"sent {shown.syns} times" if shown.syns > 1 else ""
            queue.append(Step("tcp.syn-ack" if index else "tcp.syn", side, shown.syn, again))
        if tcp.ack and index == 0:
            queue.append(Step("tcp.ack", side, tcp.ack))
        first = story.firsts[side]
        event = _opening_event(kinds[index])
        if first.at and event and (tcp.begun or event == "header"):
            doc = next(opening.doc for opening in handshakes.openings if opening.kind == kinds[index])
            if kinds[index] == "other":
                doc = f"{doc}: {first.octets[:8].hex(' ')}"
            queue.append(Step(event, side, first.at, doc))
        queue += [step for step in story.steps if step.side == side]
        if shown.end and shown.end_at:
            queue.append(Step(f"tcp.{shown.end}", side, shown.end_at))
        queues.append(queue)
    merged = heapq.merge(*queues, key=lambda step: step.at.ts_ns)
    return [Told(ROLES[step.side != tcp.client], step) for step in merged]


def _opening_event(kind: str) -> str | None:
    if kind in ("none", "lost", "amqp-frames"):
        return None
    if kind in AMQP_KINDS:
        return "header"
    return {"tls": "tls.hello", "tls-alert": "tls.alert", "proxy": "proxy"}.get(kind, "octets")


def _seen(tcp: Tcp) -> str:
    client, server = tcp.sides
    if server.packets or server.syns:
        return "both" if client.packets or client.syns else "server"
    return "client" if client.packets else "syn"


def _is_amqp(tcp: Tcp, kinds: list[str]) -> bool:
    known = tcp.protocol in ("amqp-0-9-1", "amqp-0-10", "rabbitmq-stream", "amqp-1.0")
    return known or tcp.is_broker or tcp.server[1] in SERVER_PORTS or bool(AMQP_KINDS & set(kinds))


def _ends(story: Story, tcp: Tcp, steps: list[Told], ran: Run, handshakes: Handshakes) -> dict[str, Any]:
    ends = [told for told in steps if told.step.event in ("tcp.fin", "tcp.rst")]
    end = f"{ends[0].role}-{ends[0].step.event[4:]}" if ends else "none"
    close = "none" if story.closer is None else ROLES[story.closer != tcp.client]
    over = ends[0].step.at.ts_ns if ends else tcp.until_ns
    done = [steps[index] for index in ran.taken] + [told for told in steps if told.step.event == "octets"]
    last = max(reversed(done), key=lambda told: told.step.at.ts_ns, default=None)
    quiet = max(over - last.step.at.ts_ns, 0) if last else None
    return {
        "end": end,
        "close": close,
        "ended_by": close if close != "none" else end.split("-", maxsplit=1)[0],
        "quiet_s": quiet / 1e9 if quiet is not None else None,
        "quiet": duration(quiet) if quiet is not None else None,
        "last": handshakes.words.get(last.step.event, last.step.event) if last else None,
    }


def _agreement(story: Story) -> dict[str, Any]:
    start, login = story.told.get("connection.start", {}), story.told.get("connection.start-ok", {})
    offer, settled = story.told.get("connection.tune", {}), story.told.get("connection.tune-ok", {})
    offered, mechanism = start.get("mechanisms"), login.get("mechanism")
    capable = None if story.cut_login else capabilities(login.get("client_properties"))
    above = {
        f"{name}_above": settled[name] is not None
        and bool(offer[name])
        and (settled[name] == 0 or settled[name] > offer[name])
        if settled and offer
        else None
        for name in ("channel_max", "frame_max")
    }
    return above | {
        "frame_max_below": 0 < (settled.get("frame_max") or 0) < FRAME_MIN if settled else None,
        "channel_max": settled.get("channel_max"),
        "frame_max": settled.get("frame_max"),
        "heartbeat": (settled or offer).get("heartbeat"),
        "offered_channel_max": offer.get("channel_max"),
        "offered_frame_max": offer.get("frame_max"),
        "offered_heartbeat": offer.get("heartbeat"),
        "mechanism": mechanism,
        "mechanisms": offered,
        "mechanism_offered": mechanism in offered.split() if mechanism and offered else None,
        "response_wellformed": None
        if story.cut_login or mechanism not in ("PLAIN", "AMQPLAIN")
        else story.user is not None,
        "capable_auth": None if capable is None else bool(capable.get("authentication_failure_close")),
        "capabilities": capable,
        "user": story.user,
        "who": f"user {story.user}" if story.user else "the client",
        "vhost": story.told.get("connection.open", {}).get("virtual_host"),
    }


def _closing(story: Story, protocol: Protocol) -> dict[str, Any]:
    values = story.told.get("connection.close", {})
    code, text = values.get("reply_code"), values.get("reply_text")
    words = next((constant.doc for constant in protocol.constants if constant.value == code), "")
    ids = values.get("class_id"), values.get("method_id")
    name = next((m.full_name for m in protocol.methods if (m.class_id, m.id) == ids), None)
    return {
        "reply_code": code,
        "reply_text": text,
        "reply": text or (str(code) if code is not None else None),
        "method_words": f"{words} It came upon {name}."
        if name
        else words or "The broker found a fault with the client.",
    }


def _beats(story: Story, tcp: Tcp, steps: list[Told]) -> dict[str, Any]:
    """Silence before the end, by the side that the other one may have missed."""
    settled = story.told.get("connection.tune-ok", {})
    interval = settled.get("heartbeat")
    ends = [told.step.at.ts_ns for told in steps if told.step.event in ("tcp.fin", "tcp.rst")]
    facts: dict[str, Any] = {}
    for role, side in zip(ROLES, tcp.sides, strict=True):
        silence = ends[0] - side.said_ns if ends and side.said_ns else None
        facts[f"{role}_silence"] = duration(silence) if silence is not None else None
        facts[f"{role}_beats"] = silence / 1e9 / interval if silence is not None and interval else None
    return facts


def capabilities(properties: str | None) -> Mapping[str, Any] | None:
    """The capabilities in the JSON text of a peer's properties; None where these are not known."""
    if properties is None:
        return None
    try:
        found = json.loads(properties).get("capabilities")
    except ValueError:
        return None
    return found if isinstance(found, dict) else {}
