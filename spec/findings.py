"""Load the rules of findings (findings.toml, or a user's)."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from amqpscope.errors import Error
from amqpscope.spec import documents

SEVERITIES = ("error", "warning", "note")
PARTIES = ("broker", "client", "network", "capture")
PLACE = re.compile(r"\{([a-z_]\w*)(?::(\w+))?\}")
"""A value in a text: its name, and how it is shown."""
OPTIONAL = re.compile(r"\[([^\[\]]*\{[^\[\]]*)\]")
"""A part of a text that is left out where a value in it is null."""
FIGURES = ("duration", "time", "count", "percent", "bytes", "per_second", "number")
"""What shows a value of which it does not matter whether it is another one."""
SHOWN = (*FIGURES, "consumer", "reason", "remedy")


class RuleError(Error, ValueError):
    """A rule is wrong; the message is one line with its name and what is wrong."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule: what it selects, and what is said of each row.

    Attributes:
        code: such as `con-slow`.
        severity: one of SEVERITIES; a value of this name stands in its place.
        party: who can mend it, one of PARTIES; a value of this name stands in its place, as does what a verdict says.
        source: SQL after `from`.
        where: SQL condition.
        group: SQL expressions that make one thing of many rows; None: each row is one thing.
        having: SQL condition on groups; empty for none.
        values: SQL expressions by the names that texts use; those of columns of `findings` fill these.
        text: what happens, with {name} for values.
        advice: what to do.
        applies: SQL that selects rows where the rule can say anything; empty: always.
        complete: whether its silence proves nothing where bytes are missing.
        unsure: SQL that selects why (`reason`) its silence proves nothing else; empty: it proves something.
        several: whether a row that is no group is about several connections all the same; it has the id of one.
        habit: whether it is no cause of what hurts now: it stands behind all that may be one.
    """

    code: str
    severity: str
    party: str
    source: str
    where: str
    text: str
    advice: str
    values: Mapping[str, str] = field(default_factory=dict)
    group: tuple[str, ...] | None = None
    having: str = ""
    applies: str = ""
    complete: bool = False
    unsure: str = ""
    several: bool = False
    habit: bool = False

    @property
    def is_about_one_connection(self) -> bool:
        """Whether each finding is about the connection that it has, not about several of which that is one."""
        connection = self.values.get("connection_id")
        return connection is not None and not self.several and (self.group is None or connection in self.group)

    @property
    def sql(self) -> str:
        """The select that makes its rows, one for each finding."""
        columns = ",\n".join(f"{expression}\nas {name}" for name, expression in _placed(self.values).items())
        parts = [f"select {columns}", f"from {self.source}", f"where {self.where}"]
        if self.group:
            parts.append(f"group by {', '.join(self.group)}")
        if self.having:
            parts.append(f"having {self.having}")
        return "\n".join(parts)  # a part may end in a comment


def _placed(values: Mapping[str, str]) -> dict[str, str]:
    """Return values in which the least and greatest packet of a group are the first and last ones in time.

    Packets are counted by file: a number says nothing without its capture, and names of captures have no order.
    """
    found = dict(values)
    for end, least in (("first", "min"), ("last", "max")):
        inner = {}
        for name in ("ts_ns", "packet", "capture"):
            of = re.fullmatch(rf"{least}\(([\w.]+)\)", values.get(f"{end}_{name}", ""))
            inner[name] = of[1] if of else ""
        if all(inner.values()):
            key = place(*inner.values())
            for name in ("packet", "capture"):  # broken clocks give no time
                column = inner[name]
                found[f"{end}_{name}"] = f"coalesce({least}_by({column}, {key}), {least}({column}))"
    return found


def place(ts_ns: str, packet: str, capture: str) -> str:
    """Return SQL by which packets of all captures are in the order of time, each in a place of its own."""
    return f"lpad(cast({ts_ns} as string), 20, '0') || lpad(cast({packet} as string), 12, '0') || {capture}"


@documents.caching
def load() -> tuple[Rule, ...]:
    """Load our rules, in the order in which findings of one severity stand."""
    return _rules(documents.read(documents.FOLDER / "findings.toml"), "findings.toml")


def user(path: Path) -> tuple[Rule, ...]:
    """Load a user's rules.

    Raises:
        RuleError: the file cannot be read, or a rule in it is wrong.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RuleError(f"{path}: cannot read: {error}") from error
    return _rules(document, str(path))


def _rules(document: Mapping[str, Any], name: str) -> tuple[Rule, ...]:
    found = document.get("rule")
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise RuleError(f"{name}: no [[rule]] in it")
    return tuple(_rule(each, name) for each in found)


def _rule(entry: Mapping[str, Any], name: str) -> Rule:
    code = entry.get("code")
    where = f"{name}: rule {code}"
    if not isinstance(code, str) or not re.fullmatch(r"[a-z][a-z0-9-]{1,40}", code):
        raise RuleError(f"{name}: a rule has no code of lower-case letters, digits and hyphens")
    for key, allowed in (("severity", SEVERITIES), ("party", PARTIES)):
        if entry.get(key) not in allowed:
            raise RuleError(f"{where}: {key} is not one of {', '.join(allowed)}")
    texts, values = entry.get("texts", {}), entry.get("values", {})
    if not isinstance(texts, dict) or not isinstance(texts.get("text"), str):
        raise RuleError(f"{where}: no text")
    if not isinstance(values, dict) or "count" not in values:
        raise RuleError(f"{where}: values have no count")
    for text in texts.values():
        for value, shown in PLACE.findall(text):
            if value not in values:
                raise RuleError(f"{where}: its text names {{{value}}}, which is not among its values")
            if shown and shown not in SHOWN:
                raise RuleError(f"{where}: {{{value}:{shown}}} is none of {', '.join(SHOWN)}")
    for key in ("from", "where"):
        if not isinstance(entry.get(key), str):
            raise RuleError(f"{where}: no {key}")
    group, several, habit = entry.get("group"), entry.get("several", False), entry.get("habit", False)
    if not isinstance(several, bool) or (several and "connection_id" not in values):
        raise RuleError(f"{where}: several is true or false, and says of which connections its connection_id is one")
    if not isinstance(habit, bool):
        raise RuleError(f"{where}: habit is true or false")
    return Rule(
        code, entry["severity"], entry["party"], entry["from"], entry["where"], texts["text"], texts.get("advice", ""),
        dict(values), None if group is None else tuple(group), entry.get("having", ""), entry.get("applies", ""),
        bool(entry.get("complete", False)), entry.get("unsure", ""), several, habit,
    )  # fmt: skip
