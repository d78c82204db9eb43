"""Load handshakes as data: state machines, kinds of first bytes, and rules that name causes (handshakes.toml)."""

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from amqpscope.spec import documents

Severity = Literal["fine", "note", "warning", "error"]
SEVERITIES: tuple[Severity, ...] = ("fine", "note", "warning", "error")
"""In rising order."""
UNKNOWN = "unknown"
"""The name of a protocol that was not recognised."""
STAGES = ("tcp", "tls", "header", "start", "secure", "tune", "open", "open-ok", "ready")
"""Stages of a handshake, in order."""


@dataclass(frozen=True, slots=True)
class State:
    """A state of a handshake. `turn` is the side that must send next and `due` what it must send; empty: neither."""

    name: str
    stage: str
    turn: str
    due: str
    doc: str


@dataclass(frozen=True)
class Machine:
    """The handshake of a protocol. `transitions` are by (state, side, event)."""

    name: str
    title: str
    start: str
    states: Mapping[str, State]
    transitions: Mapping[tuple[str, str, str], str]
    ports: tuple[int, ...] = ()
    """Where brokers listen for it, with TLS or without."""
    frame_min: int = 0
    """The smallest frame size that may be negotiated; 0 where there is none."""
    capabilities: bool = False
    """Whether clients announce their capabilities among their properties."""

    @functools.cached_property
    def order(self) -> dict[str, int]:
        """Return the position of each state in the handshake."""
        return {name: place for place, name in enumerate(self.states)}

    def reached(self, side: str, event: str | None) -> str | None:
        """Return the state that an event of a side leads to; None where the handshake has no such event."""
        return next((after for (_, *found), after in self.transitions.items() if found == [side, event]), None)

    @functools.cached_property
    def events(self) -> set[tuple[str, str]]:
        """Return all (side, event) pairs of the machine."""
        return {(side, event) for _, side, event in self.transitions}


@dataclass(frozen=True, slots=True, eq=False)
class Opening:
    """A kind of first bytes of a side."""

    kind: str
    pattern: re.Pattern[bytes]
    doc: str
    step: str
    """The step that the bytes make: `header`, `tls.hello` and so on; empty where their frames are steps themselves."""
    amqp: bool
    """Whether the side wants AMQP, of any version."""

    @property
    def begins(self) -> bool:
        """Return whether the bytes occur only at the beginning of a connection of a known protocol."""
        return self.step in ("", "header")


@dataclass(frozen=True, slots=True)
class Cause:
    """What a code means, written for somebody who knows no AMQP; texts name facts in braces."""

    code: str
    severity: Severity
    summary: str
    meaning: str
    remedy: str
    evidence: tuple[str, ...] = ()
    """Steps that prove it, in addition to the last ones."""
    anomaly: str | None = None
    """Code of the anomaly that a connection with this outcome gets."""
    party: str | None = None
    """Who can mend a failure, where that is not the client."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A cause and the conditions that must all hold; see `holds`."""

    cause: Cause
    when: Mapping[str, Any]


@dataclass(frozen=True)
class Handshakes:
    """The whole document."""

    machines: Mapping[str, Machine]
    openings: tuple[Opening, ...]
    outcomes: tuple[Rule, ...]
    endings: tuple[Rule, ...]
    notes: Mapping[str, str]
    words: Mapping[str, str]
    """Names of events in sentences."""
    performatives: Mapping[str, tuple[str, ...]]
    """Performatives of AMQP 1.0's handshake, with the names of their first fields."""
    sasl_codes: Mapping[int, tuple[str, str]]
    """Name and meaning of AMQP 1.0's SASL outcomes, by code."""
    causes: Mapping[str, Cause] = field(default_factory=dict)
    """Causes of outcomes and endings, by code."""

    @functools.cached_property
    def ports(self) -> frozenset[int]:
        """Return the ports where brokers listen."""
        return frozenset(port for machine in self.machines.values() for port in machine.ports)

    def machine(self, protocol: str, port: int) -> Machine:
        """Return the machine of a protocol; for an unknown protocol, the machine of the server's port."""
        usual, *others = (machine for machine in self.machines.values() if machine.ports)
        by_port = next((machine for machine in others if protocol == UNKNOWN and port in machine.ports), usual)
        return self.machines.get(protocol, by_port)


@documents.caching
def load() -> Handshakes:
    """Load the document, with the openings and rules of plug-ins before its own."""
    document = dict(documents.read(documents.FOLDER / "handshakes.toml"))
    for more in documents.plug_ins("handshake"):
        for part, entries in more.items():
            is_last = part in ("machine", "note")
            document[part] = [*document[part], *entries] if is_last else [*entries, *document[part]]
    causes = {
        entry["code"]: _cause(entry) for part in ("outcome", "ending") for entry in document[part] if "summary" in entry
    }
    outcomes, endings = (
        tuple(Rule(causes[entry["code"]], entry["when"]) for entry in document[part]) for part in ("outcome", "ending")
    )
    openings = tuple(
        Opening(
            entry["kind"],
            re.compile(entry["bytes"].encode("latin-1"), re.DOTALL),
            entry["doc"],
            entry.get("step", "bytes"),
            entry.get("amqp", False),
        )
        for entry in document["opening"]
    )
    machines: dict[str, Machine] = {}
    for entry in document["machine"]:
        machines[entry["name"]] = _machine(entry, machines.get(entry.get("follows")))
    notes = {entry["code"]: entry["doc"] for entry in document["note"]}
    performatives = {name: tuple(fields) for name, fields in document["performatives"].items()}
    codes = {entry["code"]: (entry["name"], entry["doc"]) for entry in document["sasl-code"]}
    return Handshakes(machines, openings, outcomes, endings, notes, document["words"], performatives, codes, causes)


def opening(data: bytes) -> Opening:
    """Return the kind of the first bytes of a side; there must be at least one byte."""
    return _opening(data, documents.generation())


@functools.lru_cache(256)
def _opening(data: bytes, _: object) -> Opening:
    return next(opening for opening in load().openings if opening.pattern.match(data))


def holds(when: Mapping[str, Any], facts: Mapping[str, Any]) -> bool:
    """Return whether all conditions hold.

    A condition is a value that the fact must equal, a list of such values, or a table of `min`, `max` (both included)
    and `like` (a regular expression to be found in it). An unknown fact (None) fulfils none of these.
    """
    return all(_fits(condition, facts[name]) for name, condition in when.items())


def _fits(condition: Any, fact: Any) -> bool:
    if isinstance(condition, list):
        return fact in condition
    if not isinstance(condition, dict):
        return bool(fact == condition)
    if fact is None:
        return False
    if "like" in condition and not re.search(condition["like"], fact):
        return False
    return bool(condition.get("min", fact) <= fact <= condition.get("max", fact))


def _cause(entry: dict[str, Any]) -> Cause:
    """Return a cause; rules that only repeat its code share it."""
    texts = {name: item for name, item in entry.items() if name != "when"}
    return Cause(**texts | {"evidence": tuple(texts.get("evidence", ()))})


def _machine(entry: dict[str, Any], before: Machine | None) -> Machine:
    states = dict(before.states if before else {})
    states |= {state["name"]: State(**state) for state in entry["states"]}
    transitions = dict(before.transitions if before else {})
    transitions |= {(state, side, event): after for state, side, event, after in entry["transitions"]}
    return Machine(
        entry["name"],
        entry["title"],
        before.start if before else entry["start"],
        states,
        transitions,
        tuple(entry.get("ports", ())),
        entry.get("frame-min", 0),
        entry.get("capabilities", False),
    )
