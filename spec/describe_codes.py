"""Describe codes, constants, domains and types in lines of plain text."""

import re

from amqpscope.spec import data, findings, handshakes
from amqpscope.spec.layout import aligned, paragraph, title
from amqpscope.spec.model import Anomaly, Choice, Constant, Domain, Protocol, WireType

OWNERS = {"rabbitmq": "RabbitMQ"}
"""Names of those whose additions are marked."""


def of_anomaly(anomaly: Anomaly) -> list[str]:
    """Describe an anomaly code."""
    return title(anomaly.code, f"anomaly, {anomaly.severity}") + paragraph(anomaly.doc)


def of_anomalies() -> list[str]:
    """Describe all anomaly codes."""
    codes = data.anomalies().values()
    return title("anomalies", f"{len(codes)} codes") + aligned([a.code, a.severity, a.doc] for a in codes)


def of_cause(cause: handshakes.Cause) -> list[str]:
    """Describe a verdict on a handshake: its meaning and what to do; capitals stand for facts of the connection."""
    lines = title(cause.code, f"verdict on a handshake, {cause.severity}") + paragraph(named(cause.summary))
    return [*lines, "", *aligned([["Means", named(cause.meaning)], ["Do", named(cause.remedy)]])]


def named(text: str) -> str:
    """Return a text in which facts are named in capitals: CLIENT for {client}, as in manual pages.

    What stands behind a word or a fact without a blank is a part that not all such texts have: it is left out.
    """
    text = re.sub(r"(?<=[\w)}])\{\w+\}", "", text).replace("(s)", "s")
    return re.sub(r"\{(\w+)(?::\w+)?\}", lambda found: found[1].upper().replace("_", "-"), text)


def of_finding(rule: findings.Rule) -> list[str]:
    """Describe a rule of findings: what it says, what to do, and what it selects."""
    lines = title(rule.code, f"finding, {rule.severity}, about the {rule.party}") + paragraph(named(rule.text))
    return [*lines, "", *aligned([["Do", named(rule.advice)], ["Where", f"{rule.source}: {rule.where}"]])]


def of_constant(constant: Constant, other: str = "") -> list[str]:
    """Describe a reply code or another constant."""
    what = f"reply code {constant.value}" if is_reply(constant) else f"constant, {constant.value}"
    effect = f", {closes(constant)}" if closes(constant) else ""
    return title(constant.name, what + other + effect + addition(constant.extension)) + paragraph(constant.doc)


def of_choice(choice: Choice, domain: Domain, protocol: Protocol) -> list[str]:
    """Describe a named value of an enumeration."""
    what = "code" if is_code(domain) else "value"
    return title(choice.name, f"{what} {choice.value} of {domain.name} of {protocol.name}") + paragraph(choice.doc)


def is_code(domain: Domain) -> bool:
    """Return whether its values are codes that people know by their numbers, such as 404."""
    return domain.name.endswith("-code") and any(choice.value >= 100 for choice in domain.choices)


def of_type(wire_type: WireType, protocol: Protocol) -> list[str]:
    """Describe a wire type."""
    return title(wire_type.name, " ".join(filter(None, ("type", code(wire_type), "of", protocol.name)))) + paragraph(
        wire_type.doc
    )


def code(wire_type: WireType) -> str:
    """Return the code of a type, where it has one."""
    return "" if wire_type.code is None else f"0x{wire_type.code:02x}"


def is_reply(constant: Constant) -> bool:
    """Return whether it is a reply code: 200, or one that closes a channel or connection."""
    return constant.kind is not None or constant.name == "reply-success"


def closes(constant: Constant) -> str:
    """Return what a reply code closes: the channel, the connection, or nothing."""
    if constant.returned:
        return "comes with basic.return, closes nothing"
    return {"soft": "closes the channel", "hard": "closes the connection"}.get(constant.kind or "", "")


def of_domain(domain: Domain, protocol: Protocol, other: str = "") -> list[str]:
    """Describe a domain, and the fields that use it."""
    lines = title(domain.name, ("type" if domain.name == domain.type else f"domain of type {domain.type}") + other)
    lines += paragraph(domain.doc)
    choices = [[str(c.value), c.name, "", c.doc] for c in domain.choices]
    if domain.name in ("reply-code", "response-code"):
        choices = [[str(c.value), c.name, closes(c), c.doc] for c in protocol.constants if is_reply(c)]
    lines += ["", *aligned(choices)] if choices else []
    holders = [(m.full_name, m.fields) for m in protocol.methods] + [(s.name, s.fields) for s in protocol.structs]
    used = [f"{name} ({f.name})" for name, fields in holders for f in fields if f.domain == domain.name]
    return [*lines, "", "  Used by", *aligned([[", ".join(used)]], 4)] if used else lines


def addition(extension: str | None) -> str:
    """Return a suffix that says whose addition something is."""
    return f", addition of {OWNERS.get(extension, extension)}" if extension else ""
