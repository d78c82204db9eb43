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
    close_lost         bool: only the answer to that close was captured
    fin_lost           bool: a FIN is missing, which may have been the first
    end_lost           bool: the last frames of a side, its FIN or the agreed heartbeat may be missing
    refused_known      bool: nothing is missing before the close, or it names the method that it refuses
    ended_by           side that ended it first, by close or by TCP: `client`, `server`, `none`
    reply_code, reply_text       of that connection.close; `refused_method`: the method that it names
    reply_known        bool: that text was captured
    refusal            first response code that is an error, of protocols that answer with codes
    quiet_s            seconds from the last step to the end of the connection, or of the capture
    login_known        bool: the client's login was captured, up to its user if it has one
    mechanism_offered, response_wellformed, capable_auth   bool
    channel_max_above, frame_max_above, frame_max_below    bool: against what the broker proposed; below 4096
    user, server_port, server_loopback
    unread             bool: parts of the handshake were not understood
    redirected_to      address to which the broker sent the client
    contradicted_by    protocol that the content shows, where --port names another one
    blocked            bool: the broker takes no messages at the end
    roles_by           what shows who is the client, as in `connections`
    evicted            bool: it was no longer followed, for lack of room or because nothing came for long
    client_beats, server_beats   time before the end without new bytes of a side, in heartbeat intervals
    client_quiet_beats, server_quiet_beats   the same without any packet of a side
    client_unacknowledged_s, server_unacknowledged_s   seconds before the end for which bytes of a side were not
                       acknowledged though it sent them again; None where all were, or none again
    client_unanswered_s, server_unanswered_s   the same, where no packet of the other side came in that time
    tail_lost_s        seconds at the end of the capture for which no packet came though one was due, see `_tail_lost`
    tls, tls_*         see dissector/handshakes/tls_facts.py
"""

import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from amqpscope.dissector.fields.decoding import REDACTED
from amqpscope.dissector.formatting import endpoint
from amqpscope.dissector.handshakes import tls_facts
from amqpscope.dissector.handshakes.arguments import NOTHING, PeerArguments
from amqpscope.dissector.handshakes.dialogue import Run, run
from amqpscope.dissector.handshakes.inputs import ROLES, Inputs, SidedStep, Tcp
from amqpscope.dissector.handshakes.record import Step
from amqpscope.dissector.handshakes.timeline import AGAIN
from amqpscope.spec.handshakes import Handshakes, Machine
from amqpscope.spec.model import Protocol

Arguments: TypeAlias = Mapping[str, PeerArguments]
ENDS = frozenset({"connection.close", "close", "tcp.fin", "tcp.rst"})
ANSWERS = frozenset({"connection.close-ok", "close-ok"})
"""Steps that answer a close."""

OF_SIDES = ("silence", "beats", "quiet", "quiet_beats", "unacknowledged", "unacknowledged_s", "unanswered_s")
TIMED = ("quiet_s", "quiet", "last", "dark", "tail_lost_s", *(f"{role}_{name}" for role in ROLES for name in OF_SIDES))
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
            "tail_lost_s": _tail_lost(tcp) if over is None else None,
        }
        dark = 0
        for role, side, other in zip(ROLES, tcp.sides, tcp.sides[::-1], strict=True):
            silence, quiet, unacknowledged = (
                max(over - since, 0) if over is not None and since else None
                for since in (side.sent_ns, side.last_ns, side.lost_ns)
            )
            is_unanswered = other.last_ns <= side.lost_ns
            facts |= {
                f"{role}_silence": _text(silence),
                f"{role}_beats": self._beats(silence),
                f"{role}_quiet": _text(quiet),
                f"{role}_quiet_beats": self._beats(quiet),
                f"{role}_unacknowledged": _text(unacknowledged),
                f"{role}_unacknowledged_s": _seconds(unacknowledged),
                f"{role}_unanswered_s": _seconds(unacknowledged) if is_unanswered else None,
            }
            dark = max(dark, unacknowledged or 0)
        return facts | {"dark": duration(dark)}

    def _beats(self, ns: int | None) -> float | None:
        return ns / 1e9 / self.interval if ns is not None and self.interval else None


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


def _tail_lost(tcp: Tcp) -> float | None:
    """Return the seconds up to the end of the capture without a packet, though bytes are not acknowledged.

    The receiver's machine acknowledges them, or the sender's sends them again, after twice the time of the try before
    (RFC 6298): where neither comes for long, the capture lacks packets. None: all are acknowledged, or the next try may
    not be due.
    """
    since = min((side.unacknowledged_ns for side in tcp.sides if side.unacknowledged_ns), default=None)
    if since is None:
        return None
    last = max(side.last_ns for side in tcp.sides)
    quiet = tcp.until_ns - last
    return quiet / 1e9 if quiet > 2 * (last - since) else None


def _text(ns: int | None) -> str | None:
    return None if ns is None else duration(ns)


def _seconds(ns: int | None) -> float | None:
    return None if ns is None else ns / 1e9


def case_of(inputs: Inputs, handshakes: Handshakes, protocol: Protocol) -> Case:
    """Return the case of all connections with these inputs."""
    begins = inputs.openings[0] is not None and inputs.openings[0].begins
    tls = tls_facts.NOTHING | dict(inputs.tls)
    begun = inputs.begun or begins or bool(tls["tls_begun"])
    steps = inputs.steps
    seen = _seen(inputs)
    machine = handshakes.machine(inputs.protocol, inputs.server[1])
    # After the first end nobody goes on with the dialogue, though bytes may still be under way.
    end = next((n for n, step in enumerate(steps) if step.event in ENDS), len(steps))
    events = [(step.role, step.event) for step in steps[:end]]
    # Either shows that the server has accepted, seen or not.
    spoken = any(inputs.has_sent) or (inputs.has_packets[0] and inputs.begun)
    unseen = spoken and not inputs.syns[1]
    ran = run(machine, events, leap=inputs.lost or unseen or not begun or seen != "both")
    arguments = dict(inputs.arguments)
    closing = _closing(arguments, protocol)
    refused = machine.reached("client", closing["refused_method"]) if inputs.lost else None
    ran = ran._replace(state=refused or ran.state)
    state = machine.states[ran.state]
    ends = _ends(inputs.closer, steps)
    is_silent = inputs.begun and inputs.has_packets[1] and not inputs.has_sent[1]
    gaps = inputs.lost or ends["close_lost"] or (unseen and is_silent)
    kinds = inputs.kinds
    address, port = inputs.server
    known: dict[str, Any] = {
        "protocol": inputs.protocol,
        "amqp": inputs.protocol in handshakes.machines
        or inputs.is_broker
        or port in handshakes.ports
        or any(found is not None and found.amqp for found in inputs.openings)
        or (any(inputs.is_lost) and not any(inputs.openings))
        # Where TCP itself failed, no protocol is known.
        or (inputs.begun and not inputs.syns[1] and kinds == ["none", "none"]),
        "seen": seen,
        "begun": begun,
        "gaps": gaps,
        "stage": state.stage,
        "state": state.name,
        "turn": state.turn,
        "syns": inputs.syns[0],
        "syn_acks": inputs.syns[1],
        "syn_ack": spoken or inputs.syns[1] > 0,
        "client_first": kinds[0],
        "server_first": kinds[1],
        "server_port": port,
        "server_loopback": ipaddress.ip_address(address).is_loopback,
        "server": endpoint(address, port),
        "due": state.due,
        "blocked": inputs.blocked is not None,
        "evicted": inputs.evicted,
        "roles_by": inputs.roles_by,
        "blocked_reason": inputs.blocked or None,
        "fin_lost": inputs.fin_lost,
        "end_lost": inputs.end_lost or inputs.fin_lost or (gaps and "tune" in arguments and "tune-ok" not in arguments),
        "refused_known": not gaps or refused is not None,
    }
    openings = zip(ROLES, inputs.openings, strict=True)
    known |= {f"{role}_first_doc": found.doc if found else None for role, found in openings}
    known |= ends | _agreement(inputs, arguments, machine) | closing | _refusal(arguments)
    known["sure"] = _sure(known, state.doc if ran.taken else "there was a connection")
    known |= {f"{role}_again": sum(step.event == AGAIN and role == step.role for step in steps) for role in ROLES}
    known |= {"unread": None, "redirected_to": None, "contradicted_by": None} | dict(inputs.facts) | tls
    return Case(known, _times(arguments, steps, ran, handshakes.words), steps, ran)


def duration(ns: int) -> str:
    """Return a duration as text."""
    for unit, size in (("s", 1_000_000_000), ("ms", 1_000_000), ("µs", 1_000)):
        if ns >= size:
            number = ns / size
            return f"{number:.0f} {unit}" if number >= 100 else f"{number:.3g} {unit}"
    return f"{max(ns, 0)} ns"


def _seen(inputs: Inputs) -> str:
    client, server = (bool(n or has) for n, has in zip(inputs.syns, inputs.has_packets, strict=True))
    if server:
        return "both" if client else "server"
    return "client" if inputs.has_packets[0] else "syn"


def _ends(close: str, steps: list[SidedStep]) -> dict[str, Any]:
    end = next((f"{step.role}-{step.event[4:]}" for step in steps if step.event in ("tcp.fin", "tcp.rst")), "none")
    answered = next((step.role for step in steps if step.event in ANSWERS), None)
    close_lost = close == "none" and answered is not None
    if close_lost:
        close = "server" if answered == "client" else "client"
    ended_by = close if close != "none" else end.split("-", maxsplit=1)[0]
    return {"end": end, "close": close, "close_lost": close_lost, "ended_by": ended_by}


def _sure(known: dict[str, Any], reached: str) -> str:
    """Return what is known of a handshake of which parts are missing."""
    if known["close"] == "none":
        return reached
    reply = f": {known['reply']}" if known["reply"] else ""
    return f"{reached}, and the {known['close']} closed the connection{reply}"


def _times(arguments: Arguments, steps: list[SidedStep], ran: Run, words: Mapping[str, str]) -> Times:
    over = next((n for n, step in enumerate(steps) if step.event in ("tcp.fin", "tcp.rst")), None)
    done = ran.taken + [n for n, step in enumerate(steps) if step.event == "bytes"]
    return Times(over, done, arguments.get("tune-ok", NOTHING).get("heartbeat"), words)


def _agreement(inputs: Inputs, arguments: Arguments, machine: Machine) -> dict[str, Any]:
    start, login = arguments.get("start", NOTHING), arguments.get("start-ok", NOTHING)
    offer, settled = arguments.get("tune", NOTHING), arguments.get("tune-ok", NOTHING)
    offered, mechanism = start.get("mechanisms"), login.get("mechanism")
    mechanism = None if mechanism == REDACTED else mechanism  # of a malformed login
    capable = inputs.capabilities if machine.capabilities and not inputs.cut_login else None
    above = {
        f"{name}_above": _is_above(settled.get(name), offer.get(name)) if settled and offer else None
        for name in ("channel_max", "frame_max")
    }
    return above | {
        "frame_max_below": 0 < (settled.get("frame_max") or 0) < machine.frame_min
        if settled and machine.frame_min
        else None,
        "channel_max": settled.get("channel_max"),
        "asked_channels": _limit(settled.get("channel_max"), "{} channels", "any number of channels"),
        "asked_frames": _limit(settled.get("frame_max"), "{} bytes", "any size"),
        "frame_max": settled.get("frame_max"),
        "is_tuned": bool(settled),
        "heartbeat": settled.get("heartbeat"),
        "offered_channel_max": offer.get("channel_max"),
        "offered_frame_max": offer.get("frame_max"),
        "offered_heartbeat": offer.get("heartbeat"),
        "login_known": bool(login) and (inputs.user is not None or not inputs.cut_login),
        "mechanism": mechanism,
        "mechanisms": offered,
        "mechanism_offered": mechanism in offered.split() if mechanism and offered else None,
        "response_wellformed": None
        if inputs.cut_login or mechanism not in ("PLAIN", "AMQPLAIN")
        else inputs.user is not None,
        "capable_auth": None if capable is None else "authentication_failure_close" in capable,
        "capabilities": capable,
        "user": inputs.user,
        "who": f'user "{inputs.user}"' if inputs.user else "the client",
        "vhost": arguments.get("open", NOTHING).get("virtual_host"),
    }


def _is_above(settled: int | None, offered: int | None) -> bool:
    """Return whether a limit exceeds the one offered; 0 is no limit."""
    return settled is not None and bool(offered) and (settled == 0 or settled > (offered or 0))


def _limit(number: int | None, text: str, unlimited: str) -> str | None:
    """Return a limit as text; 0 is none."""
    return None if number is None else text.format(number) if number else unlimited


def _refusal(arguments: Arguments) -> dict[str, Any]:
    refusal = arguments.get("refusal", NOTHING)
    return {
        "refusal": refusal.get("code"),
        "refusal_words": refusal.get("words"),
        "refusal_doc": refusal.get("doc"),
        "refused": refusal.get("of"),
    }


def _closing(arguments: Arguments, protocol: Protocol) -> dict[str, Any]:
    values = arguments.get("close", NOTHING)
    code, text = values.get("reply_code"), values.get("reply_text")
    words = next((constant.doc for constant in protocol.constants if constant.value == code), "")
    ids = values.get("class_id"), values.get("method_id")
    name = next((m.full_name for m in protocol.methods if (m.class_id, m.id) == ids), None)
    return {
        "reply_code": code,
        "reply_text": text,
        "reply_known": text is not None,
        "reply": text or (str(code) if code is not None else None),
        "refused_method": name,
        "method_words": f"{words} The reply names {name}." if name else words or "The broker gave no reason.",
    }
