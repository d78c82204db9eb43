"""Handshakes as data: state machines, what first bytes can be, and the rules that name a cause (handshakes.toml)."""

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
"""How far a connection came, in order."""


@dataclass(frozen=True, slots=True)
class State:
    """A state of the dialogue; `turn` is the side that must speak next, and what it owes; empty where none must."""

    name: str
    stage: str
    turn: str
    owes: str
    doc: str


@dataclass(frozen=True)
class Machine:
    """The dialogue of a protocol. `transitions` are by (state, side, event)."""

    name: str
    title: str
    start: str
    states: Mapping[str, State]
    transitions: Mapping[tuple[str, str, str], str]
    ports: tuple[int, ...] = ()
    """Where brokers listen for it, with TLS or without."""
    frame_min: int = 0
    """The smallest frame size that may be agreed; 0 where there is none."""
    capabilities: bool = False
    """Whether clients tell theirs among their properties."""

    @functools.cached_property
    def order(self) -> dict[str, int]:
        """The place of each state in the dialogue."""
        return {name: place for place, name in enumerate(self.states)}

    @functools.cached_property
    def events(self) -> set[tuple[str, str]]:
        """All (side, event) pairs that it knows."""
        return {(side, event) for _, side, event in self.transitions}


@dataclass(frozen=True, slots=True, eq=False)
class Opening:
    """One of the things that the first bytes of a side can be."""

    kind: str
    pattern: re.Pattern[bytes]
    doc: str
    step: str
    """The step that it is: `header`, `tls.hello` and so on; empty where the frames in it are steps themselves."""
    amqp: bool
    """Whether somebody wants AMQP, of whatever version."""

    @property
    def begins(self) -> bool:
        """Whether it is only said at the beginning of a connection by one of the protocols that are known."""
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
    """Steps that prove it, besides the last ones."""
    anomaly: str | None = None
    """Code of the anomaly that a connection with this outcome is."""


@dataclass(frozen=True, slots=True)
class Rule:
    """The cause where all conditions hold; see `holds`."""

    cause: Cause
    when: Mapping[str, Any]


@dataclass(frozen=True)
class Handshakes:
    """All of the document."""

    machines: Mapping[str, Machine]
    openings: tuple[Opening, ...]
    outcomes: tuple[Rule, ...]
    endings: tuple[Rule, ...]
    notes: Mapping[str, str]
    words: Mapping[str, str]
    """What to call events in a sentence."""
    performatives: Mapping[str, tuple[str, ...]]
    """Performatives of AMQP 1.0 that are looked at, with the names of their first fields."""
    sasl_codes: Mapping[int, tuple[str, str]]
    """Name and meaning of AMQP 1.0's outcomes of SASL."""
    causes: Mapping[str, Cause] = field(default_factory=dict)
    """Of outcomes and endings, by code."""

    @functools.cached_property
    def ports(self) -> frozenset[int]:
        """Where brokers listen."""
        return frozenset(port for machine in self.machines.values() for port in machine.ports)

    def machine(self, protocol: str, port: int) -> Machine:
        """The dialogue of a protocol; of one that is not known, that which its server's port stands for."""
        usual, *others = (machine for machine in self.machines.values() if machine.ports)
        by_port = next((machine for machine in others if protocol == UNKNOWN and port in machine.ports), usual)
        return self.machines.get(protocol, by_port)


@documents.caching
def load() -> Handshakes:
    """The document, and in front of its openings and rules those that plug-ins bring."""
    document = dict(documents.read(documents.FOLDER / "handshakes.toml"))
    for more in documents.plug_ins("handshake"):
        for part, entries in more.items():
            behind = part in ("machine", "note")
            document[part] = [*document[part], *entries] if behind else [*entries, *document[part]]
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
    """What the first bytes of a side are; there must be some."""
    return _opening(data, documents.generation())


@functools.lru_cache(256)
def _opening(data: bytes, _: object) -> Opening:
    return next(opening for opening in load().openings if opening.pattern.match(data))


def holds(when: Mapping[str, Any], facts: Mapping[str, Any]) -> bool:
    """Whether all conditions hold.

    A condition is a value that the fact must equal, a list of such values, or a table of `min`, `max` (both included)
    and `like` (a regular expression to be found in it). A fact that is not known (None) fulfils none.
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
    """A cause; rules that only repeat its code have it too."""
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
