"""Findings: rules (spec/findings.toml) evaluated over statistics and relations, and the state of each rule.

A rule fires, is clear, is not applicable, or cannot be judged from this capture: silence is never praise. Where
connections cannot be read (encrypted, one direction), no rule is clear; where bytes are missing, those are not whose
events may lie in a gap.
"""

from __future__ import annotations

import datetime as dt
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pyarrow as pa

from amqpscope import spec
from amqpscope.dissector.formatting import duration
from amqpscope.pipelines.called import BY, Called, Select
from amqpscope.pipelines.model.walk import conform, schema
from amqpscope.spec import handshakes
from amqpscope.spec.findings import FIGURES, OPTIONAL, PLACE, SEVERITIES, Rule, RuleError, load

ASKED = ("endpoints", "queues")
"""Tables that are asked besides those that rules name."""
_Known = dict[str, "dict[str, Any] | None"]
"""First rows of selects, by their texts."""

FIRES, CLEAR, NOT_APPLICABLE, NOT_MEASURABLE = "fires", "clear", "not-applicable", "not-measurable"
_RANK = (FIRES, NOT_MEASURABLE, CLEAR, NOT_APPLICABLE)
"""Of several rules with one code, the first of these is the state."""
MOST = 100
"""Findings of one rule at most; the rest is counted in its state."""
MOST_COMPARED = 10_000
"""Findings of one rule that are compared with each other by their texts."""
NUMBERED = "amq.gen-"
"""How names of queues begin that the broker makes up: of which of them something is said does not matter either."""
_LONGEST = 300
"""Characters of a value in a text: names come from the wire."""


def evaluate(select: Select, rules: Sequence[Rule] | None = None, empty: Collection[str] = ()) -> dict[str, pa.Table]:
    """Return the tables `findings` and `rules`.

    Args:
        select: runs SQL over statistics and relations.
        rules: to evaluate; None: ours.
        empty: names of tables that have no rows: what selects from them is not run.

    Raises:
        RuleError: the SQL of a rule is wrong; one line with its code and what is wrong.
    """
    are_ours = rules is None
    rules, empty = (load(), empty) if rules is None else (rules, ())  # what users write is run, so that it is checked
    blind, lossy = _blindness(select)
    called = Called(select)
    found: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []
    states: dict[str, dict[str, Any]] = {}
    reason: str | None
    first: _Known = {}
    for place, rule in enumerate(rules):
        applies = _applies(select, rule, empty, first)
        can_fire = (applies or not are_ours) and needed_by(rule.source).isdisjoint(empty)
        rows = [row for row in _run(select, rule, rule.sql) if row.get("count")] if can_fire else []
        if rows:
            rows.sort(key=_weight)
            rows[:MOST] = [called.named(rule, row) for row in rows[:MOST]]
            things = [_thing(rule, row) for row in rows[:MOST_COMPARED]]
            counts = Counter(things)
            for row, thing in zip(rows[:MOST], things, strict=False):
                made = _finding(rule, row)
                made["such"] = counts[thing] - 1
                found.append((_order(rule, made["severity"], place), (rule.code, *thing), made))
            more = len(rows) - MOST
            state, reason = FIRES, f"{more} more" if more > 0 else None
        elif not applies:
            reason = blind if rule.party != "capture" else None
            state = NOT_MEASURABLE if reason else NOT_APPLICABLE
            reason = reason or "nothing of this kind in the capture"
        else:
            reason = None if rule.party == "capture" else blind or (lossy if rule.complete else None)
            reason = reason or _unsure(select, rule, first)
            state = NOT_MEASURABLE if reason else CLEAR
        known = states.get(rule.code)
        if known is None or _RANK.index(state) < _RANK.index(known["state"]):
            states[rule.code] = {"code": rule.code, "state": state, "reason": reason}
    found.sort(key=lambda each: each[0])
    numbers: dict[Any, int] = {}
    for _, what, made in found:
        made["thing"] = numbers.setdefault(what if what[1] else len(numbers), len(numbers))
    return {
        "findings": _table("findings", [made for *_, made in found]),
        "rules": _table("rules", list(states.values())),
    }


def needed_by(source: str) -> set[str]:
    """Return tables without whose rows a select has none: those that it begins with, and joins before all else.

    Args:
        source: SQL that follows its `from`, or `select 1 from` and that.
    """
    code = re.sub(r"^\s*select 1\s+from\s", "", re.sub(r"--[^\n]*", "", source))
    first = re.split(r"\(|\bleft\b|\bwhere\b", code)[0]
    return {*re.findall(r"(?:^|\bjoin\s)\s*([a-z_0-9]+)", first)}


def _applies(select: Select, rule: Rule, empty: Collection[str], known: _Known) -> bool:
    """Return whether a rule can say anything."""
    if not rule.applies:
        return True
    return needed_by(rule.applies).isdisjoint(empty) and _first(select, rule, rule.applies, known) is not None


def _unsure(select: Select, rule: Rule, known: _Known) -> str | None:
    """Return why the silence of a rule proves nothing; None where it does."""
    row = _first(select, rule, rule.unsure, known) if rule.unsure else None
    return None if row is None else str(row["reason"])


def _first(select: Select, rule: Rule, text: str, known: _Known) -> dict[str, Any] | None:
    """Return the first row that a text of a rule selects; many rules ask the same."""
    if text not in known:
        known[text] = next(iter(_run(select, rule, f"{text}\nlimit 1")), None)
    return known[text]


def _blindness(select: Select) -> tuple[str | None, str | None]:
    """Return why nothing can be said to be fine, and why what may lie in gaps cannot; None where it can."""
    row: dict[str, Any] = select(
        "select count(*) as connections, "
        "count(*) filter (where unreadable = 'encrypted') as encrypted, "
        "count(*) filter (where unreadable = 'one-direction') as one_way, "
        "count(*) filter (where coalesce(frames, 0) = 0) as empty, "
        "cast(coalesce(sum(lost_bytes), 0) + coalesce(sum(skipped_bytes), 0) as bigint) as lost from endpoints"
    )[0]
    total, lost = int(row["connections"]), int(row["lost"])
    blind: str | None = None
    if not total:
        blind = "no connection was captured"
    elif row["encrypted"]:
        blind = f"{row['encrypted']} of {total} connections are encrypted"
    elif row["one_way"]:
        blind = f"{row['one_way']} of {total} connections have one direction only"
    elif row["empty"] == total:
        blind = "no frame was decoded"
    return blind, f"{lost:,} bytes are missing" if lost else None


def _run(select: Select, rule: Rule, text: str) -> list[dict[str, Any]]:
    try:
        return select(text)
    except Exception as error:  # each engine has errors of its own
        reason = str(error).strip().splitlines()[0]
        raise RuleError(f"rule {rule.code}: {reason}") from error


def _weight(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what findings of one rule are sorted by, worst first."""
    is_note = row.get("severity") == SEVERITIES[-1]
    return is_note, -(row.get("cost_ns") or 0), -row["count"], row.get("first_ts_ns") or 0, str(row)


def _order(rule: Rule, severity: str, place: int) -> tuple[Any, ...]:
    """Return what findings are sorted by: the capture's own first, then those that are no notes, habits last."""
    is_note = severity == SEVERITIES[-1]
    return rule.party != "capture" or is_note, is_note, rule.habit, place


def _finding(rule: Rule, row: Mapping[str, Any]) -> dict[str, Any]:
    wanted = schema("findings").names
    made = {name: row.get(name) for name in wanted}
    made |= {
        "code": rule.code,
        "severity": row.get("severity") or rule.severity,
        "at_least": bool(row.get("uncertain")),
    }
    made["party"] = row.get("party") or _party(row.get("verdict")) or rule.party
    made["last_packet"] = row.get("last_packet")
    said = {**row, **row.get("said", {})}
    made["text"], made["advice"] = filled(rule.text, said), filled(rule.advice, said)
    if row.get("uncertain"):
        made["text"] = f"{made['text']}; {row['uncertain']:,} more unknown"
    packets = [each for each in (row.get("first_packet"), row.get("last_packet")) if each is not None]
    if packets and row.get("first_capture") == row.get("last_capture", row.get("first_capture")):
        first, last = min(packets), max(packets)  # a file may not be in the order of time
        made["filter"] = f"frame.number == {first}" if first == last else f"frame.number in {{{first}..{last}}}"
    return made


def _thing(rule: Rule, row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what a finding is about: those of one program that say the same but for figures are one thing to mend."""
    if not row.get("client"):
        return None, str(row)
    alike = {name: replica(str(row[name])) for name in (*BY, "consumer_tag") if row.get(name)}
    text = filled(rule.text, {**row, **row.get("said", {}), **alike}, figures=False)
    return alike["client"], row.get("server"), row.get("severity"), text


def replica(name: str) -> str:
    """Return the name of a program without what numbers its copies: worker-1, web0, orders-6b7c9d5f4-x2x9k.

    What has an address in it is left as it is: behind several of these are several programs.
    """
    name = name[:_LONGEST]
    if _ADDRESS.search(name):
        return name
    return "".join(_NUMBER.sub("#", part) for part in re.split(r"([^\W_]+)", name))


_ADDRESS = re.compile(r"[0-9]{1,3}(\.[0-9]{1,3}){3}|:[0-9a-f]{0,4}:")
_NUMBER = re.compile(r"(?<=[^\W\d_])\d+$|^.*\d[^\d].*$|^\d+$", re.DOTALL)
"""Of a word: the number behind its letters; else all of it."""


def _party(verdict: str | None) -> str | None:
    """Return who can mend what a verdict on a connection says, where that is not whom its rule names."""
    cause = handshakes.load().causes.get(verdict or "")
    return cause.party if cause else None


def filled(text: str, row: Mapping[str, Any], figures: bool = True) -> str:
    """Return a text with the values of a row in the place of {name} and {name:shown}; without `figures`, but for these.

    Names of clients that could be read as a part of the sentence are in quotation marks; a part in brackets is left
    out where a value in it is null.
    """
    text = OPTIONAL.sub(lambda part: _all_there(part[1], row), text)
    parts: list[str] = []
    at, is_one = 0, False
    for found in PLACE.finditer(text):
        value = row.get(found[1])
        if not figures and (found[2] in FIGURES or str(value).startswith(NUMBERED)):
            made = "#"
        elif found[2] == "remedy":
            made = remedy(str(value), row)
        elif found[2] == "reason":
            made = shown(value or named(row) or "it gave no reason", None)
        else:
            made = shown(value, found[2])
        if found[1] == "client" and " " in made:
            made = f'"{made}"'
        parts += [_agreeing(text[at : found.start()], is_one), made]
        if found[2] == "count" and figures:
            is_one = row.get(found[1]) == 1
        at = found.end()
    return "".join([*parts, _agreeing(text[at:], is_one)])


def _all_there(part: str, row: Mapping[str, Any]) -> str:
    """Return a part of a text, or nothing where a value in it is null."""
    return part if all(row.get(name) is not None for name, _ in PLACE.findall(part)) else ""


def _agreeing(text: str, is_one: bool) -> str:
    """Return the words behind a number: `connection(s)`, `publish(es)` in the singular or plural."""
    return text.replace("(s)", "" if is_one else "s").replace("(es)", "" if is_one else "es")


def shown(value: Any, how: str | None) -> str:
    """Return a value as people read it."""
    if value is None:
        return "an unknown number of" if how == "count" else "unknown"
    if how == "duration":
        return duration(int(value))
    if how == "time":
        seconds, ns = divmod(int(value), 10**9)
        at = dt.datetime.fromtimestamp(seconds, dt.UTC)
        return f"{at:%H:%M:%S}.{ns // 10**6:03}"
    if how == "count":
        return f"{int(value):,}"
    if how == "percent":
        return f"{100 * float(value):.0f} %"
    if how == "bytes":
        return size(int(value))
    if how == "consumer":
        return "a consumer" if MADE_UP in value else f"consumer {str(value)[:_LONGEST]}"
    if how == "per_second":
        return f"{float(value):.{0 if value >= 10 else 1}f}/s"
    return str(value)[:_LONGEST]


MADE_UP = "ctag"
"""In tags of consumers that brokers and client libraries make up, and that say nothing: amq.ctag-..., ctag1.9f3..."""


def named(row: Mapping[str, Any]) -> str | None:
    """Return the name of a code in its protocol (`error`: the method that has it), with the number; None: no code."""
    code = row.get("code")
    if code is None:
        return None
    if row.get("protocol") not in spec.names():
        return f"code {code}"
    protocol = spec.load(row["protocol"])
    for column in (f"{row.get('error')}.code", "error_code", "reply_code", "response_code"):
        name = protocol.names_of(column).get(code)
        if name:
            return f"{name} (code {code})"
    return f"code {code}"


def remedy(verdict: str, row: Mapping[str, Any]) -> str:
    """Return what to do about a verdict on a connection; where its text names a fact that is not in the row, where."""
    cause = handshakes.load().causes.get(verdict)
    text = cause.remedy if cause else ""
    facts = set(PLACE.findall(text))
    if not text or any(row.get(name) is None for name, _ in facts):
        return f"See amqpscope handshakes: it says what to do about {verdict}."
    return PLACE.sub(lambda found: shown(row[found[1]], None), text)


def size(count: int) -> str:
    """Return a number of bytes with its unit: 4.3 kB."""
    for unit, name in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count} bytes"


def _table(name: str, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    declared = schema(name)
    return conform(name, {f.name: pa.array([row.get(f.name) for row in rows], f.type) for f in declared}, len(rows))
