"""Print verdicts as a table, worst first, with their meaning, or as JSON; from rows of `connections`."""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, tzinfo
from itertools import accumulate
from typing import Any

from amqpscope.dissector.formatting import clean, counted, endpoint, instant, zone_name
from amqpscope.dissector.handshakes.facts import duration
from amqpscope.dissector.handshakes.verdict import SLOW_NS, filled
from amqpscope.spec.handshakes import SEVERITIES, Cause, Handshakes
from amqpscope.spec.layout import paint, paragraph, width

COLUMNS = (
    "connection_id", "protocol", "client_ip", "client_port", "server_ip", "server_port", "first_capture",
    "first_packet", "first_ts_ns", "last_ts_ns", "rtt_ns", "handshake_stage", "handshake_outcome", "handshake_cause",
    "ending", "ending_cause", "severity", "handshake_ns", "handshake_client_ns", "handshake_server_ns",
    "handshake_steps", "handshake_evidence", "handshake_notes", "handshake_facts", "closed_by", "reply_code",
    "reply_text", "vhost", "user", "mechanism", "channel_max", "frame_max", "heartbeat", "client_properties",
    "server_properties", "lost_bytes", "retransmitted_bytes",
)  # fmt: skip
"""Columns of `connections` that verdicts are printed from."""
TEXTS = ("handshake_steps", "handshake_evidence", "handshake_notes", "handshake_facts", "client_properties",
         "server_properties")  # fmt: skip
"""Those of them that hold JSON text."""
VERSION = 1
"""Of the JSON document; it changes when a key is renamed or removed, or its values change."""
MARKS = {"error": "ERROR", "warning": "WARNING", "note": "note", "fine": "ok"}
MOST_OF_IT = 0.8
"""Share of a slow handshake's time from which on one side is reported as slow."""
OFTEN = 3
"""Size of a group from which on its mean interval is reported."""
LINES = 60
"""Most lines of the table; JSON has all groups."""
CLIENTS = 1000
"""Most client addresses that are counted for a group."""
GROUPS = 100_000
"""Number of groups beyond which connections are grouped by verdict only."""
MEMBERS = 5
"""Most connections of a group that are named."""
NOTED = 5
"""Most details that are printed of a note."""

FIGURES = re.compile(r"\d[\d.]*( ns| µs| ms| s)?")
"""Figures; sentences that differ only in these count as equal."""
OF_FIRST = "figures of the first"
NAMES_OF_FIRST = "as the first has it"

Row = dict[str, Any]


@dataclass
class Group:
    """Connections with the same verdict: from one client address, or from any where nothing is wrong."""

    first: Row
    count: int = 0
    clients: set[str] = field(default_factory=set)
    members: list[tuple[str, str]] = field(default_factory=list)
    """The first clients with their ports: address and port together, and the port alone."""
    last_ns: int = 0
    is_uniform: bool = True
    """Whether all its sentences have the same figures."""

    def add(self, row: Row) -> None:
        """Add a connection."""
        self.count += 1
        self.is_uniform = self.is_uniform and sentence(row) == sentence(self.first)
        if len(self.clients) < CLIENTS:
            self.clients.add(row["client_ip"])
        if len(self.members) < MEMBERS:
            self.members.append((ends_of(row)[0], str(row["client_port"])))
        self.last_ns = max(self.last_ns, row["first_ts_ns"])

    @property
    def every_ns(self) -> int | None:
        """Return the mean time between the beginnings of its connections; None for a single one."""
        return (self.last_ns - self.first["first_ts_ns"]) // (self.count - 1) if self.count > 1 else None


class Listing:
    """All groups of connections, and the notes on them by code."""

    def __init__(self, handshakes: Handshakes, zone: tzinfo = UTC) -> None:
        self.handshakes = handshakes
        self.zone = zone
        self.groups: dict[tuple[Any, ...], Group] = {}
        self.others: dict[str, int] = {}
        """Connections of other protocols, by protocol."""
        self.notes: dict[str, list[tuple[Row, dict[str, Any]]]] = {}
        self.noted: dict[str, int] = {}

    def add(self, row: Row) -> None:
        """Add a connection."""
        if row["handshake_outcome"] == "not-amqp":
            self.others[row["protocol"]] = self.others.get(row["protocol"], 0) + 1
            return
        names = ["handshake_outcome", "ending", "server_ip", "server_port"]
        if row["severity"] != "fine":
            names += ["client_ip", "vhost", "user"]
        key = tuple(row[name] for name in (names if len(self.groups) < GROUPS else names[:2]))
        if len(self.groups) < GROUPS and row["severity"] != "fine":
            key = (*key, FIGURES.sub("", sentence(row)))
        if key not in self.groups:
            self.groups[key] = Group(row)
        self.groups[key].add(row)
        for note in json.loads(row["handshake_notes"] or "[]"):
            kept = self.notes.setdefault(note["code"], [])
            self.noted[note["code"]] = self.noted.get(note["code"], 0) + 1
            if len(kept) < NOTED:
                kept.append((row, note))

    @property
    def is_empty(self) -> bool:
        """Return whether no connection was added, not even of another protocol."""
        return not (self.groups or self.others)

    @property
    def worst_first(self) -> list[Group]:
        """Return the groups: first those that never came up, then by severity, size and time."""
        return sorted(
            self.groups.values(),
            key=lambda g: (
                not self._never_came_up(g.first),
                -SEVERITIES.index(g.first["severity"]),
                -g.count,
                g.first["first_ts_ns"],
            ),
        )

    def failing(self, part: str, severity: str) -> int:
        """Return the number of connections whose `handshake` or `ending` has this severity, or a worse one."""
        column = {"handshake": "handshake_outcome", "ending": "ending"}[part]
        worst = SEVERITIES[SEVERITIES.index(severity) :]
        return sum(
            group.count
            for group in self.groups.values()
            if group.first[column] and self.handshakes.causes[group.first[column]].severity in worst
        )

    def lines(self, most: int = LINES) -> Iterator[str]:
        """Return the lines of the table, at most this number, of the meaning of its codes, and of the notes."""
        groups = self.worst_first
        if not groups:
            yield "No connections to a message broker." + self._others()
            return
        total = sum(group.count for group in groups)
        first, last = self._days()
        days = f"on {first}" if first == last else f"from {first} to {last}"
        yield from paragraph(f"{counted(total, 'connection')} {days}: {self._summary()}.{self._others()}", 0)
        yield ""
        shown = groups[:most]
        inks = ["error" if self._never_came_up(group.first) else group.first["severity"] for group in shown]
        zone = zone_name(groups[0].first["first_ts_ns"], self.zone)
        heads = ["", "VERDICT", "CLIENT > SERVER", "REACHED", "TOOK", f"WHEN ({zone})", "WHAT"]
        yield from _table(heads, [self._cells(group, first == last) for group in shown], inks)
        if len(groups) > most:
            rest = counted(sum(group.count for group in groups[most:]), "connection")
            lines = counted(len(groups) - most, "line")
            yield from paragraph(f"and {lines} more, of {rest}; --format json has them all", 0)
        for cause, alike in by_cause(shown, self.handshakes):
            if cause.severity != "fine":
                yield ""
                yield from explain(alike[0].first, cause, alike)
        if self.notes:
            yield ""
            yield paint("Notes", "name")
            for code, kept in self.notes.items():
                yield ""
                yield f"  {paint(code, 'note')} ({self.noted[code]:,})"
                yield from paragraph(self.handshakes.notes[code], 4)
                for row, note in kept:
                    detail = f": {clean(note['detail'])}" if note.get("detail") else ""
                    packet = f", packet {note['packet']}" if "packet" in note else ""
                    yield from paragraph(f"{ends_of(row)[0]}{detail}{packet}", 4)
                if self.noted[code] > len(kept):
                    yield f"    and {self.noted[code] - len(kept)} more"

    def document(self, rows: Iterable[Row]) -> dict[str, Any]:
        """Return groups and connections for JSON, worst first."""
        groups = [
            {
                "text": self._text(g),
                "code": cause_of(g.first, self.handshakes).code,
                "severity": g.first["severity"],
                "connections": g.count,
                "client_ip": g.first["client_ip"] if len(g.clients) == 1 else None,
                "clients": len(g.clients),
                "server_ip": g.first["server_ip"],
                "server_port": g.first["server_port"],
                "vhost": g.first["vhost"],
                "user": g.first["user"],
                "first": instant(g.first["first_ts_ns"], self.zone),
                "first_ts_ns": g.first["first_ts_ns"],
                "last": instant(g.last_ns, self.zone),
                "last_ts_ns": g.last_ns,
                "every_ns": g.every_ns,
                "summary": sentence(g.first),
            }
            for g in self.worst_first
        ]
        ordered = sorted(rows, key=lambda r: (-SEVERITIES.index(r["severity"]), r["first_ts_ns"], r["connection_id"]))
        connections = [as_dict(row, self.handshakes, self.zone) for row in ordered]
        return {"version": VERSION, "groups": groups, "connections": connections}

    def _days(self) -> tuple[str, str]:
        """Return the first and the last day on which a group began."""
        begins = [group.first["first_ts_ns"] for group in self.groups.values()]
        first, last = (instant(ns, self.zone)[:10] for ns in (min(begins), max(begins)))
        return first, last

    def _text(self, group: Group) -> str:
        """Return a group in one sentence."""
        every = f", every {duration(group.every_ns)}" if group.count >= OFTEN and group.every_ns else ""
        what = sentence(group.first) + ("" if group.is_uniform else f" ({OF_FIRST})")
        return f"{counted(group.count, 'connection')} from {self._clients(group)}: {what}{every}"

    def _clients(self, group: Group) -> str:
        if len(group.clients) == 1:
            return str(group.first["client_ip"])
        return f"{len(group.clients)}{'' if len(group.clients) < CLIENTS else ' or more'} clients"

    def _never_came_up(self, row: Row) -> bool:
        return self.handshakes.causes[row["handshake_outcome"]].severity == "error"

    def _summary(self) -> str:
        counts = dict.fromkeys(reversed(SEVERITIES), 0)
        failed = up = 0
        for group in self.groups.values():
            if self._never_came_up(group.first):
                failed += group.count
            elif group.first["ending"]:
                up += group.count
                counts[group.first["severity"]] += group.count
        parts = [f"{failed} failed"] if failed else []
        parts += [f"{up} came up"] if up else []
        bad = counts["error"] + counts["warning"]
        if bad:
            parts.append(f"all {bad} ended badly" if bad == up > 1 else f"{bad} ended badly")
        rest = sum(group.count for group in self.groups.values()) - failed - up
        return ", ".join(parts + ([f"{rest} not judged"] if rest else []))

    def _others(self) -> str:
        if not self.others:
            return ""
        names = ", ".join(f"{n} {name}" for name, n in sorted(self.others.items()))
        return f" Left out: {counted(sum(self.others.values()), 'connection')} of other protocols ({names})."

    def _cells(self, group: Group, is_one_day: bool) -> list[str]:
        row = group.first
        client, server = ends_of(row)
        many = group.count > 1
        often = f"{group.count} x " if many else ""
        is_regular = group.count >= OFTEN and group.every_ns and row["severity"] != "fine"
        every = f", every {duration(group.every_ns or 0)}" if is_regular else ""
        took = duration(row["handshake_ns"]) if row["handshake_ns"] is not None else "?"
        slow = slow_side(row)
        return [
            "FAILED" if self._never_came_up(row) else MARKS[row["severity"]],
            often + cause_of(row, self.handshakes).code,
            f"{self._clients(group) if many else client} > {server}",
            row["handshake_stage"],
            f"{took}, {slow}" if slow else took,
            instant(row["first_ts_ns"], self.zone)[11 if is_one_day else 0 : 23].replace("T", " ") + every,
            clean(sentence(row)) + (self._members(group) if many else ""),
        ]

    def _members(self, group: Group) -> str:
        """Return the first connections of a group as text, from which the user can choose one."""
        figures = "" if group.is_uniform else f"{OF_FIRST}; "
        alone = len(group.clients) == 1
        names = ", ".join(port if alone else client for client, port in group.members)
        rest = group.count - len(group.members)
        return f" ({figures}{'client ports ' if alone else ''}{names}{f' and {rest:,} more' if rest else ''})"


def as_dict(row: Row, handshakes: Handshakes, zone: tzinfo = UTC) -> dict[str, Any]:
    """Return a connection as a dict for programs: its row with JSON texts parsed, and the meaning of its verdict."""
    plain = {name: _read(item) if name in TEXTS else item for name, item in row.items()}
    cause = cause_of(row, handshakes)
    facts = plain.pop("handshake_facts") or {}
    client, server = ends_of(row)
    for step in plain["handshake_steps"] or []:
        step["ts"] = instant(step["ts_ns"], zone)
    return plain | {
        "client": client,
        "server": server,
        "first": instant(row["first_ts_ns"], zone),
        "last": instant(row["last_ts_ns"], zone),
        "slow_side": slow_side(row),
        "code": cause.code,
        "summary": sentence(row),
        "meaning": filled(cause.meaning, facts),
        "remedy": filled(cause.remedy, facts),
    }


def cause_of(row: Row, handshakes: Handshakes) -> Cause:
    """Return the worse of outcome and ending; the ending where they are equal."""
    outcome = handshakes.causes[row["handshake_outcome"]]
    if not row["ending"]:
        return outcome
    ending = handshakes.causes[row["ending"]]
    return outcome if SEVERITIES.index(outcome.severity) > SEVERITIES.index(ending.severity) else ending


def sentence(row: Row) -> str:
    """Return the verdict on a connection as a sentence."""
    if row["ending"] and (row["severity"] in ("warning", "error") or row["handshake_outcome"] == "ok"):
        return str(row["ending_cause"])
    return str(row["handshake_cause"])


def by_cause(groups: Iterable[Group], handshakes: Handshakes) -> list[tuple[Cause, list[Group]]]:
    """Return the groups of each verdict, in the order of the first of each."""
    found: dict[str, tuple[Cause, list[Group]]] = {}
    for group in groups:
        cause = cause_of(group.first, handshakes)
        found.setdefault(cause.code, (cause, []))[1].append(group)
    return list(found.values())


def said_of(text: str, groups: list[Group]) -> str:
    """Return a text about a verdict with the facts of the first group; marked where it may not hold for the others."""
    texts = [filled(text, facts_of(group.first)) for group in groups]
    is_all = len(set(texts)) == 1 and (texts[0] == text or all(group.is_uniform for group in groups))
    return texts[0] if is_all else f"{texts[0]} ({NAMES_OF_FIRST})"


def facts_of(row: Row) -> dict[str, str]:
    """Return the facts that texts about a connection name."""
    return {name: clean(str(item)) for name, item in json.loads(row["handshake_facts"] or "{}").items()}


def explain(row: Row, cause: Cause, groups: list[Group] | None = None) -> Iterator[str]:
    """Return the lines that explain a code for one connection: its meaning, what to do, and the proof.

    Args:
        row: the connection.
        cause: its verdict.
        groups: those with that verdict, of which the connection is the first; None: it alone.
    """
    groups = groups or [Group(row)]
    yield paint(cause.code, cause.severity)
    for head, text in (
        ("Means", said_of(cause.meaning, groups)),
        ("Do", said_of(cause.remedy, groups)),
        ("Proof", proof(row)),
    ):
        lines = paragraph(text, 9)
        if lines:
            yield f"  {head + ':':7}{lines[0][9:]}"
            yield from lines[1:]


def proof(row: Row) -> str:
    """Return the packets that prove a verdict, as text."""
    found = json.loads(row["handshake_evidence"] or "[]")
    places = [
        str(place["packet"]) + (f" of {clean(place['capture'])}" if "capture" in place else "") for place in found
    ]
    packets = list(dict.fromkeys(places))
    if not packets:
        return ""
    return f"packet{'s' if len(packets) > 1 else ''} {', '.join(packets)} of {clean(row['first_capture'])}"


def ends_of(row: Row) -> tuple[str, str]:
    """Return client and server as `ip:port`."""
    client, server = (endpoint(row[f"{side}_ip"], row[f"{side}_port"]) for side in ("client", "server"))
    return client, server


def _read(text: str | None) -> Any:
    """Parse a JSON text; redacted properties, which are not JSON, stay as they are."""
    try:
        return json.loads(text or "null")
    except ValueError:
        return text


def slow_side(row: Row) -> str | None:
    """Return the side that took most of a slow handshake: `client` or `server`.

    None where it was not slow, or steps are missing.
    """
    if (row["handshake_ns"] or 0) < SLOW_NS or row["handshake_client_ns"] is None:
        return None
    side = max(("client", "server"), key=lambda side: row[f"handshake_{side}_ns"])
    return side if row[f"handshake_{side}_ns"] > MOST_OF_IT * row["handshake_ns"] else None


def _table(heads: list[str], rows: list[list[str]], inks: list[str]) -> Iterator[str]:
    """Return the lines of a table; `inks` are the colours of the first column.

    Columns that do not fit are below those that do: the last on lines of its own, then the others with their heads.
    """
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)][:-1]
    ends = list(accumulate(size + 2 for size in widths))
    count = max(sum(end <= width() for end in ends), 1)
    for row, ink in zip([heads, *rows], ["name", *inks], strict=True):
        fits = count == len(widths) and ends[-1] + len(row[-1]) <= width()
        line = "  ".join(map(str.ljust, row, [*widths[:count], *[0] * fits])).rstrip()
        mark = line if row is heads else row[0]
        yield paint(mark, ink) + line[len(mark) :]
        if not fits and row is not heads:
            yield from paragraph(row[-1], widths[0] + 4)
            others = zip(heads[count:-1], row[count:-1], strict=True)
            yield from paragraph(", ".join(f"{head} {cell}" for head, cell in others), widths[0] + 4)
