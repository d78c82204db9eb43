"""The verdict on one connection: which rule fits, what proves it, how long each side took."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from dissector.handshakes.facts import ENDS, Facts, Tcp, Told, duration, gather
from dissector.handshakes.story import Story
from spec.handshakes import SEVERITIES, Cause, Handshakes, Rule, holds
from spec.model import Protocol

SLOW_NS = 1_000_000_000
"""A step that takes so long is noted."""
UP = ("ok", "begun-before")
"""Outcomes of connections that were up: what became of them afterwards is judged too."""
FIRSTS = ("octets", "proxy", "header", "tls.hello", "tls.alert")
"""What sides say first; where it went no further, that is what it is about."""
CAPABILITIES = ("connection.blocked", "consumer_cancel_notify", "authentication_failure_close")
"""Capabilities whose lack in a client is noted."""


def judge(
    story: Story, tcp: Tcp, handshakes: Handshakes, protocol: Protocol, captures: Sequence[str]
) -> dict[str, Any]:
    """The columns of `connections` that tell of the handshake and the end.

    Args:
        story: what was seen of AMQP.
        tcp: what was seen of TCP.
        handshakes: the rules.
        protocol: for the words of reply codes and methods.
        captures: names of captures, by the index that packets carry.
    """
    facts = gather(story, tcp, handshakes, protocol)
    values = facts.values
    outcome = _first(handshakes.outcomes, values)
    ending = None
    if outcome.code in UP and values["stage"] in ("open-ok", "ready") and values["seen"] == "both":
        ending = _first(handshakes.endings, values)
    telling = outcome if ending is None or _rank(outcome) > _rank(ending) else ending
    main = captures[facts.steps[0].step.at.capture] if facts.steps else None
    places = _evidence(telling, facts, telling is ending)
    client_ns, server_ns, whole_ns = _waits(facts)
    return {
        "handshake_stage": values["stage"],
        "handshake_outcome": outcome.code,
        "handshake_cause": say(outcome.summary, values),
        "ending": ending.code if ending else None,
        "ending_cause": say(ending.summary, values) if ending else None,
        "severity": telling.severity,
        "handshake_ns": whole_ns,
        "handshake_client_ns": client_ns,
        "handshake_server_ns": server_ns,
        "handshake_steps": _json([_step(told, before, captures, main) for before, told in _pairs(facts.steps)]),
        "handshake_evidence": _json([_place(told, captures, main) for told in places]),
        "handshake_notes": _json(list(_notes(story, facts, captures, main))),
        "handshake_facts": _json(
            {name: values[name] for name in _named(outcome, ending) if values.get(name) is not None}
        ),
    }


def say(text: str, values: dict[str, Any]) -> str:
    """A text with its facts filled in; what is not known is a question mark."""
    return text.format_map(dict.fromkeys(_names(text), "?") | {k: v for k, v in values.items() if v is not None})


def _first(rules: tuple[Rule, ...], values: dict[str, Any]) -> Cause:
    return next(rule.cause for rule in rules if holds(rule.when, values))


def _rank(cause: Cause) -> int:
    return SEVERITIES.index(cause.severity)


def _names(text: str) -> list[str]:
    return [part.split("}", 1)[0] for part in text.split("{")[1:]]


def _named(*causes: Cause | None) -> list[str]:
    """The facts that the meaning and remedy of these causes name."""
    texts = [text for cause in causes if cause for text in (cause.meaning, cause.remedy)]
    return list(dict.fromkeys(name for text in texts for name in _names(text)))


def _evidence(cause: Cause, facts: Facts, is_ending: bool) -> list[Told]:
    """The last step of the dialogue, what came besides it up to the end, and what the cause asks for by name."""
    last = max(facts.run.taken, default=-1)
    firsts = () if is_ending or facts.values["stage"] not in ("tcp", "tls", "header") else FIRSTS
    end = next((n for n, told in enumerate(facts.steps) if told.step.event in ENDS), len(facts.steps))
    return [
        told
        for n, told in enumerate(facts.steps[: end + 1])
        if (n == last and not is_ending) or n == end or told.step.event in cause.evidence or told.step.event in firsts
    ]


def _waits(facts: Facts) -> tuple[int | None, int | None, int | None]:
    """Time until each step of the dialogue, by the side that took it; and all of it.

    Time until an end without success is that of the side whose turn it was.
    """
    if not facts.values["begun"] or not facts.steps:
        return None, None, None
    taken = set(facts.run.taken)
    up = facts.values["stage"] in ("open-ok", "ready")
    sums = {"client": 0, "server": 0}
    first = last = facts.steps[0].step.at.ts_ns
    for n, told in enumerate(facts.steps):
        is_end = told.step.event in ENDS
        if told.step.event == "first use" or (is_end and up):
            break
        if n in taken or is_end:
            now = max(told.step.at.ts_ns, last)
            sums[(facts.values["turn"] or told.role) if is_end else told.role] += now - last
            last = now
        if is_end:
            break
    if facts.values["end"] == "none" and facts.values["turn"] and not up:
        sums[facts.values["turn"]] += facts.values["until_ns"] - last
        last = facts.values["until_ns"]
    return sums["client"], sums["server"], last - first


def _pairs(steps: list[Told]) -> Iterator[tuple[Told | None, Told]]:
    before = None
    for told in steps:
        yield before, told
        before = told


def _place(told: Told, captures: Sequence[str], main: str | None) -> dict[str, Any]:
    at = told.step.at
    capture = captures[at.capture]
    return {"packet": at.packet} | ({"capture": capture} if capture != main else {})


def _step(told: Told, before: Told | None, captures: Sequence[str], main: str | None) -> dict[str, Any]:
    at = told.step.at
    step = {"step": told.step.event, "from_client": told.role == "client", "ts_ns": at.ts_ns}
    step |= {"took_ns": max(at.ts_ns - before.step.at.ts_ns, 0)} if before else {}
    step |= _place(told, captures, main)
    return step | ({"detail": told.step.detail} if told.step.detail else {})


def _notes(story: Story, facts: Facts, captures: Sequence[str], main: str | None) -> Iterator[dict[str, Any]]:
    values = facts.values
    if values["syns"] > 1:
        yield {"code": "syn-repeated", "detail": f"{values['syns']} requests to connect"}
    taken = set(facts.run.taken)
    before = None
    for index, told in enumerate(facts.steps):
        if index in taken and told.step.event != "first use":
            if before and told.step.at.ts_ns - before.step.at.ts_ns >= SLOW_NS:
                took = duration(told.step.at.ts_ns - before.step.at.ts_ns)
                yield {"code": "slow-step", "detail": f"the {told.role} took {took} for {told.step.event}"}
            before = told
    if values["client_first"] == "proxy":
        yield {"code": "behind-proxy"}
    if story.told.get("connection.tune-ok") and values["stage"] in ("open-ok", "ready"):
        settled, offered = values["heartbeat"], values["offered_heartbeat"]
        if settled == 0:
            yield {"code": "heartbeat-off", "detail": f"the broker proposed {offered} s" if offered else ""}
        elif offered is not None and settled != offered:
            yield {"code": "heartbeat-other", "detail": f"{settled} s, the broker proposed {offered} s"}
    if values["capabilities"] is not None:
        for name in CAPABILITIES:
            if not values["capabilities"].get(name):
                yield {"code": f"no-{name.replace('.', '-').replace('_', '-')}"}
    for at, text in story.channel_errors:
        capture = captures[at.capture]
        note = {"code": "channel-closed", "detail": text, "packet": at.packet}
        yield note | ({"capture": capture} if capture != main else {})
    more = story.channels_failed - len(story.channel_errors)
    if more:
        yield {"code": "channel-closed", "detail": f"and {more} more"}
    if story.was_blocked:
        yield {"code": "was-blocked", "detail": values["blocked_reason"] or ""}


def _json(value: Any) -> str | None:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")) if value else None
