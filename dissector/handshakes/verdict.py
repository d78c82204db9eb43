"""Judge one connection: find the rule that fits, the packets that prove it, and the time that each side took."""

import json
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, count, pairwise
from typing import Any, NamedTuple

from amqpscope.dissector.handshakes.arguments import NOTHING
from amqpscope.dissector.handshakes.cache import BoundedCache
from amqpscope.dissector.handshakes.facts import (
    ENDS,
    TIMED,
    Case,
    Facts,
    case_of,
    duration,
)
from amqpscope.dissector.handshakes.inputs import Inputs, SidedStep, Tcp, gather
from amqpscope.dissector.handshakes.record import ConnectionRecord, Step
from amqpscope.dissector.handshakes.timeline import timeline
from amqpscope.spec.handshakes import SEVERITIES, Cause, Handshakes, Rule, holds
from amqpscope.spec.model import Protocol

SLOW_NS = 1_000_000_000
"""A step that takes this long gets a note."""
UP = ("ok", "begun-before")
"""Outcomes of connections that came up: their ending is judged too."""
UP_STAGES = ("open-ok", "ready")
ENCRYPTED = "encrypted"
"""The state in which it is unknown whose turn it is."""
FIRSTS = ("bytes", "proxy", "header", "tls.hello", "tls.alert")
"""Steps with which a side begins; they prove verdicts on handshakes that went no further."""
TIMED_NAMES = frozenset(TIMED)
AGREED = ("channel_max", "frame_max", "heartbeat")
"""Arguments of connection.tune-ok that apply to the connection; those of connection.tune are a proposal."""
REFUSED = " refused"
"""Suffix of the names of steps that refuse something; they always prove the verdict."""
CAPABILITIES = ("connection.blocked", "consumer_cancel_notify", "authentication_failure_close")
"""Capabilities whose absence in a client gets a note."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A verdict on all connections that are alike; only the times and packets of their steps differ.

    Attributes:
        columns: columns of `connections` that are the same for all.
        texts: makes the other columns, whose texts depend on times; None where there are none.
        steps: JSON with a placeholder for each number of a step: time, time since the step before if any, packet.
        proof: JSON with a placeholder for the packet of each step of `evidence`.
        evidence: indexes of the steps that prove the verdict.
        waits: indexes of the steps of the handshake, and whether it was the client's turn; None without its beginning,
            or its last step.
        is_whole: whether no step of it is missing: else it is unknown whose turn it was.
        waiting: whether it was the client's turn (or the server's) when the capture ended; None: neither's.
        pairs: per step of the handshake: index of the step before, its index, its side and name.
        notes: the notes before and after those on slow steps.
        usual_notes: JSON of these, for connections without any other notes.
    """

    columns: dict[str, Any]
    texts: Callable[[Facts], dict[str, Any]] | None
    steps: str
    proof: str
    evidence: list[int]
    waits: list[tuple[int, bool]] | None
    is_whole: bool
    waiting: bool | None
    pairs: list[tuple[int, int, str, str]]
    notes: tuple[list[dict[str, Any]], list[dict[str, Any]]]
    usual_notes: str | None

    def of(
        self, record: ConnectionRecord, tcp: Tcp, steps: list[Step], facts: Facts | None, captures: Sequence[str]
    ) -> dict[str, Any]:
        """Return the columns of `connections` for one of them; its facts may be left out where no text names any."""
        times, packets, _ = zip(*[step.at for step in steps], strict=True) if steps else ((), (), ())
        numbers: list[int] = []
        if steps:
            took = [now - before if now > before else 0 for before, now in pairwise(times)]
            numbers += times[:1] + packets[:1]
            numbers += chain.from_iterable(zip(times[1:], took, packets[1:], strict=True))
        client_ns, server_ns, whole_ns = self._waits(times, tcp.until_ns)
        columns = self.columns | self.texts(facts) if self.texts and facts else self.columns
        return columns | {
            "handshake_ns": whole_ns,
            "handshake_client_ns": client_ns,
            "handshake_server_ns": server_ns,
            "handshake_steps": self.steps % tuple(numbers) if numbers else None,
            "handshake_evidence": self.proof % tuple([packets[n] for n in self.evidence]) if self.evidence else None,
            "handshake_notes": self._notes(record, steps, times, captures),
        }

    def _waits(self, times: Sequence[int], until_ns: int) -> tuple[int | None, int | None, int | None]:
        """Return the time for which the client, then the server was waited for, and the whole time."""
        if self.waits is None or not times:
            return None, None, None
        client = server = 0
        first = last = times[0]
        for place, is_client in self.waits:
            now = times[place]
            if now > last:
                if is_client:
                    client += now - last
                else:
                    server += now - last
                last = now
        if self.waiting is not None:
            if self.waiting:
                client += until_ns - last
            else:
                server += until_ns - last
            last = until_ns
        return (client, server, last - first) if self.is_whole else (None, None, last - first)

    def _notes(
        self, record: ConnectionRecord, steps: list[Step], times: Sequence[int], captures: Sequence[str]
    ) -> str | None:
        slow = [pair for pair in self.pairs if times[pair[1]] - times[pair[0]] >= SLOW_NS]
        if not slow and not record.channels_failed and not record.was_blocked:
            return self.usual_notes
        found = list(self.notes[0])
        for before, place, role, event in slow:
            took = duration(times[place] - times[before])
            found.append({"code": "slow-step", "detail": f"the {role} took {took} for {event}"})
        found += self.notes[1]
        for at, text in record.channel_errors:
            capture = captures[at.capture]
            note = {"code": "channel-closed", "detail": text, "packet": at.packet}
            found.append(note | ({"capture": capture} if capture != captures[steps[0].at.capture] else {}))
        more = record.channels_failed - len(record.channel_errors)
        if more:
            found.append({"code": "channel-closed", "detail": f"and {more} more"})
        if record.was_blocked:
            found.append({"code": "was-blocked", "detail": record.blocked or ""})
        return _json(found)


class _Known(NamedTuple):
    """Cached knowledge of connections that are alike: one verdict, or a case whose verdict depends on times."""

    number: int
    verdict: Verdict | None
    case: Case | None


class Judge:
    """Judges connections by the rules of `handshakes`; `protocol` has the names of reply codes and methods."""

    def __init__(self, handshakes: Handshakes, protocol: Protocol) -> None:
        self.handshakes = handshakes
        self.protocol = protocol
        self.lines = lines((*handshakes.outcomes, *handshakes.endings))
        self.numbers = count()
        self.alike: BoundedCache[Inputs, _Known] = BoundedCache()
        self.verdicts: BoundedCache[tuple[int, Hashable], Verdict] = BoundedCache()
        """Verdicts that depend on times, by the number of the case and the intervals in which its times lie."""

    def __call__(self, record: ConnectionRecord, tcp: Tcp, captures: Sequence[str]) -> dict[str, Any]:
        """Return the columns of `connections` on handshake and ending; `captures` are the names of the files."""
        steps = timeline(record, tcp)
        inputs = gather(record, tcp, steps)
        known = self.alike.get(inputs)
        if known and known.verdict:
            return known.verdict.of(record, tcp, steps, None, captures)
        case = (known and known.case) or case_of(inputs, self.handshakes, self.protocol)
        facts = case.facts(tcp, steps)
        verdict = self.verdicts.get((known.number, self._places(facts))) if known else None
        if verdict is None:
            verdict = self._judge(case, facts, _agreed(inputs), captures)
            size = len(verdict.steps) + len(str(inputs.arguments))
            if not known:
                timed = facts.are_timed or verdict.texts
                known = _Known(next(self.numbers), None if timed else verdict, case if timed else None)
                self.alike.keep(inputs, known, size)
            if known.case:
                self.verdicts.keep((known.number, self._places(facts)), verdict, size)
        return verdict.of(record, tcp, steps, facts, captures)

    def _places(self, facts: Facts) -> tuple[Hashable, ...]:
        """Return a key that is equal where the rules see no difference in times."""
        return tuple([_place_between(borders, facts[name]) for name, borders in self.lines.items()])

    def _judge(self, case: Case, facts: Facts, agreed: dict[str, Any], captures: Sequence[str]) -> Verdict:
        outcome = _first(self.handshakes.outcomes, facts)
        ending = None
        if outcome.code in UP and facts["stage"] in UP_STAGES and facts["seen"] == "both":
            ending = _first(self.handshakes.endings, facts)
        relevant = outcome if ending is None or _rank(outcome) > _rank(ending) else ending
        columns = agreed | {
            "handshake_stage": facts["stage"],
            "handshake_outcome": outcome.code,
            "ending": ending.code if ending else None,
            "severity": relevant.severity,
        }
        texts = partial(_texts, outcome, ending)
        depends = not TIMED_NAMES.isdisjoint(_named(outcome, ending, summaries=True))
        main = captures[case.steps[0].capture] if case.steps else None
        evidence = _evidence(relevant, case, relevant is ending)
        waits, waiting = (None, None) if outcome.code == "gap" else _turns(case)  # its last step is missing
        notes = _notes(facts)
        return Verdict(
            columns if depends else columns | texts(facts),
            texts if depends else None,
            f"[{','.join(_step(n, step, captures, main) for n, step in enumerate(case.steps))}]",
            f"[{','.join(_place(case.steps[n], captures, main) for n in evidence)}]",
            evidence,
            waits,
            not case.run.leaps,
            waiting,
            list(_pairs(case)),
            notes,
            _json(notes[0] + notes[1]),
        )


def lines(rules: Iterable[Rule]) -> dict[str, list[float]]:
    """Return the numbers with which rules compare each time-dependent fact, sorted; only by `min` and `max`."""
    borders: dict[str, set[float]] = {}
    for rule in rules:
        for name in rule.when.keys() & TIMED_NAMES:
            borders.setdefault(name, set()).update(rule.when[name][end] for end in rule.when[name])
    return {name: sorted(numbers) for name, numbers in sorted(borders.items())}


def _place_between(borders: list[float], fact: float | None) -> tuple[int, int] | None:
    return None if fact is None else (bisect_left(borders, fact), bisect_right(borders, fact))


def _texts(outcome: Cause, ending: Cause | None, facts: Facts) -> dict[str, Any]:
    """Return the columns whose texts name facts."""
    named = {name: _known(facts, name) for name in _named(outcome, ending)}
    return {
        "handshake_cause": filled(outcome.summary, facts),
        "ending_cause": filled(ending.summary, facts) if ending else None,
        "handshake_facts": _json({name: fact for name, fact in named.items() if fact is not None}),
    }


def _agreed(inputs: Inputs) -> dict[str, Any]:
    """Return what the methods of the handshake and the close filled, as columns."""
    arguments = dict(inputs.arguments)
    return {name: arguments.get("tune-ok", NOTHING).get(name) for name in AGREED} | {
        "mechanism": arguments.get("start-ok", NOTHING).get("mechanism"),
        "user": inputs.user,
        "vhost": arguments.get("open", NOTHING).get("virtual_host"),
        "reply_code": arguments.get("close", NOTHING).get("reply_code"),
        "reply_text": arguments.get("close", NOTHING).get("reply_text"),
    }


def filled(text: str, facts: Mapping[str, Any]) -> str:
    """Fill facts into a text; an unknown fact becomes a question mark."""
    known = {name: _known(facts, name) for name in _names(text)}
    return text.format_map({name: "?" if fact is None else fact for name, fact in known.items()})


def _known(facts: Mapping[str, Any], name: str) -> Any:
    try:
        return facts[name]  # not `get`: some facts are computed on access
    except KeyError:
        return None


def _first(rules: tuple[Rule, ...], facts: Mapping[str, Any]) -> Cause:
    return next(rule.cause for rule in rules if holds(rule.when, facts))


def _rank(cause: Cause) -> int:
    return SEVERITIES.index(cause.severity)


def _names(text: str) -> list[str]:
    return [part.split("}", 1)[0] for part in text.split("{")[1:]]


def _named(*causes: Cause | None, summaries: bool = False) -> list[str]:
    """Return the names of facts in the meaning and remedy of these causes, and on request in their summaries."""
    texts = [text for cause in causes if cause for text in (cause.meaning, cause.remedy, cause.summary * summaries)]
    return list(dict.fromkeys(name for text in texts for name in _names(text)))


def _evidence(cause: Cause, case: Case, is_ending: bool) -> list[int]:
    """Return the indexes of the steps that prove a cause: the last of the handshake, the end, and those it names."""
    last = max(case.run.taken, default=-1)
    firsts = () if is_ending or case.known["stage"] not in ("tcp", "tls", "header") else FIRSTS
    end = next((n for n, step in enumerate(case.steps) if step.event in ENDS), len(case.steps))
    return [
        n
        for n, step in enumerate(case.steps[: end + 1])
        if (n == last and not is_ending)
        or n == end
        or step.event in (*cause.evidence, *firsts)
        or step.event.endswith(REFUSED)
    ]


def _turns(case: Case) -> tuple[list[tuple[int, bool]] | None, bool | None]:
    """Return `waits` and `waiting` of a verdict. The time before an early end counts for the side whose turn it was.

    The time of a handshake that TLS hides is the time of its TLS handshake.
    """
    facts = case.known
    if not facts["begun"] or any(case.steps[n].event == "first use" for n in case.run.leaps):
        return None, None
    taken = set(case.run.taken)
    up = facts["stage"] in UP_STAGES or facts["state"] == ENCRYPTED
    waits = []
    for n, step in enumerate(case.steps):
        is_end = step.event in ENDS
        if step.event == "first use" or (is_end and up):
            break
        if n in taken or is_end:
            waits.append((n, ((facts["turn"] or step.role) if is_end else step.role) == "client"))
        if is_end:
            break
    waiting = facts["turn"] == "client" if facts["end"] == "none" and facts["turn"] and not up else None
    return waits, waiting


def _pairs(case: Case) -> Iterator[tuple[int, int, str, str]]:
    """Yield `pairs` of a verdict: steps between which none is missing."""
    before = None
    for n in sorted(case.run.taken):
        step = case.steps[n]
        if step.event != "first use":
            if before is not None and n not in case.run.leaps:
                yield before, n, step.role, step.event
            before = n


def _place(step: SidedStep, captures: Sequence[str], main: str | None) -> str:
    capture = captures[step.capture]
    return '{"packet":%d' + (f',"capture":{_quoted(capture)}' if capture != main else "") + "}"


def _step(number: int, step: SidedStep, captures: Sequence[str], main: str | None) -> str:
    """Return a step as JSON, with places for its numbers."""
    head = f'{{"step":{_quoted(step.event)},"from_client":{_quoted(step.role == "client")},"ts_ns":%d,'
    head += '"took_ns":%d,' if number else ""
    detail = f',"detail":{_quoted(step.detail)}' if step.detail else ""
    return head + _place(step, captures, main)[1:-1] + detail + "}"


def _quoted(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False).replace("%", "%%")


def _notes(facts: Facts) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    before = []
    if facts["syns"] > 1:
        before.append({"code": "syn-repeated", "detail": f"{facts['syns']} SYNs"})
    for role in ("client", "server"):
        again = facts[f"{role}_again"]
        if again:
            before.append({"code": "sent-again", "detail": f"the {role}, {again} time{'s' if again > 1 else ''}"})
    after = []
    if facts["roles_by"] == "lower-port":
        after.append({"code": "roles-unknown"})
    if facts["client_first"] == "proxy":
        after.append({"code": "behind-proxy"})
    if facts["is_tuned"] and facts["stage"] in UP_STAGES:
        settled, offered = facts["heartbeat"], facts["offered_heartbeat"]
        if settled == 0:
            after.append({"code": "heartbeat-off", "detail": f"the broker proposed {offered} s" if offered else ""})
        elif offered is not None and settled != offered:
            after.append({"code": "heartbeat-other", "detail": f"{settled} s, the broker proposed {offered} s"})
    if facts["capabilities"] is not None:
        lacking = [name for name in CAPABILITIES if name not in facts["capabilities"]]
        after += [{"code": f"no-{name.replace('.', '-').replace('_', '-')}"} for name in lacking]
    return before, after


def _json(value: Any) -> str | None:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")) if value else None
