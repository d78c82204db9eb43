"""The slowest messages, and those never answered, with what is needed to look them up in the capture."""

from dataclasses import dataclass
from typing import Any

import pyarrow.compute as pc

from amqpscope.dashboards import filters, units
from amqpscope.dashboards.connections import Endpoints, endpoints
from amqpscope.dashboards.section import Cell, Column, Grid, Section, missing, number, of_all
from amqpscope.dashboards.tables import Tables

MOST = 10_000
"""Messages listed of each kind: the slowest."""
PAGE = 8
LONGEST = 240
"""Characters of a text that the script shows."""
EXACT = 1 << 53
"""Beyond it, scripts have no whole numbers."""


@dataclass(frozen=True)
class Kind:
    """Where a kind of message is found: table, prefixes of the columns of both ends, number, name columns."""

    title: str
    table: str
    begin: str
    end: str
    number: str
    names: tuple[str, ...]


KINDS = (
    Kind(
        "Slowest confirms",
        "confirms",
        "publish",
        "confirm",
        "publish_seq",
        ("exchange", "routing_key", "message_id", "stream"),
    ),
    Kind("Slowest acknowledgements", "settlements", "deliver", "settle", "delivery_tag", ("queue", "consumer_tag")),
)


def query(tables: Tables, kind: Kind, most: int = MOST) -> list[dict[str, Any]]:
    """Return the slowest of a kind; their ends are in `begin_*` and `end_*`."""
    known = pc.field("latency_ns") >= 0
    return [_row(kind, r) for r in tables.top(kind.table, _columns(kind), "latency_ns", most, known)]


def unanswered(tables: Tables, kind: Kind, most: int = MOST) -> list[dict[str, Any]]:
    """Return those of a kind without an answer, longest waiting first; the end is where waiting ended."""
    columns = {name: pc.field(name) for name in [*_columns(kind), "end_ts_ns"]}
    columns["waited"] = pc.coalesce(pc.subtract(pc.field("end_ts_ns"), pc.field(f"{kind.begin}_ts_ns")), 0)
    return [_row(kind, r) for r in tables.top(kind.table, columns, "waited", most, _unanswered(kind))]


def _unanswered(kind: Kind) -> pc.Expression:
    """Return what holds for those without an answer, but for waits that end before they begin."""
    begin, end = pc.field(f"{kind.begin}_ts_ns"), pc.field("end_ts_ns")
    return (pc.field("outcome") == "none") & (begin.is_null() | end.is_null() | (end >= begin))


def _columns(kind: Kind) -> list[str]:
    ends = [f"{side}_{what}" for side in (kind.begin, kind.end) for what in ("capture", "packet", "ts_ns")]
    return [
        "connection_id",
        "channel",
        "channel_epoch",
        kind.number,
        *kind.names,
        "outcome",
        "multiple",
        "ended_by",
        "latency_ns",
        *ends,
    ]


def _row(kind: Kind, row: dict[str, Any]) -> dict[str, Any]:
    ends = {
        f"{name}_{what}": row[f"{side}_{what}"]
        for name, side in (("begin", kind.begin), ("end", kind.end))
        for what in ("capture", "packet", "ts_ns")
    }
    return {**row, **ends, "number": row[kind.number]}


def section(tables: Tables) -> Section:
    """Return the section of single messages."""
    page = Section("slowest", "Slowest messages")
    page.lead = (
        "Packet numbers are those that Wireshark shows for the file named beside them; copy the filter into its "
        "filter bar."
    )
    for kind in KINDS:
        rows = query(tables, kind)
        if rows:
            who = endpoints(tables, [r["connection_id"] for r in rows])
            total = tables.rows(kind.table, pc.field("latency_ns") >= 0)
            page.parts.append(_grid(kind, kind.title, rows, who, of_all(len(rows), total)))
        left = unanswered(tables, kind)
        if left:
            who = endpoints(tables, [r["connection_id"] for r in left])
            total = tables.rows(kind.table, _unanswered(kind))
            negative = tables.rows(kind.table, pc.field("outcome") == "none") - total
            title = "Publishes not confirmed" if kind.begin == "publish" else "Deliveries not settled"
            notes = [
                of_all(len(left), total),
                f"Left out: {units.count(negative)} with a negative wait." if negative else "",
            ]
            page.parts.append(_grid(kind, title, left, who, " ".join(filter(None, notes))))
    if not page.parts:
        page.empty = missing("confirms", there=tables.has("confirms"), nothing="No confirms and no acknowledgements.")
    return page


def _grid(kind: Kind, title: str, rows: list[dict[str, Any]], who: Endpoints, note: str) -> Grid:
    waited = "waited" in rows[0]
    names = [n for n in kind.names if any(r[n] is not None for r in rows)]
    heads = [
        *("waited" if waited else "latency", kind.number.replace("_", " "), "Wireshark filter", kind.begin),
        *(n.replace("_", " ") for n in names),
        *("channel", "connection", "ended by" if waited else "outcome", "packets", "file"),
    ]
    cells = [
        [
            number(units.duration(r["waited"] if waited else r["latency_ns"])),
            number(units.count(r["number"])),
            Cell("\n".join(filters.of_ends(r, who.port(r["connection_id"]))), "filter"),
            Cell(units.instant(r["begin_ts_ns"])),
            *(Cell(_text(r[n], n)) for n in names),
            number(units.count(r["channel"])),
            Cell(who.name(r["connection_id"]), "mono"),
            Cell(_outcome(r, waited)),
            number(_packets(r)),
            Cell(_file(r), "mono"),
        ]
        for r in rows[:PAGE]
    ]
    return Grid(title, heads, cells, note, page=PAGE, more=_more(rows[PAGE:], names, waited, who))


def _more(rows: list[dict[str, Any]], names: list[str], waited: bool, who: Endpoints) -> list[Column]:
    """Return the columns of the rows behind the first page, in the order of `_grid`."""
    if not rows:
        return []
    took = "waited" if waited else "latency_ns"
    identities = [r["connection_id"] for r in rows]
    connections = {each: (who.port(each), units.visible(who.name(each), LONGEST)) for each in set(identities)}
    return [
        Column("number", "text", [units.duration(r[took]) for r in rows]),
        Column("number", "count", [n if _exact(n := r["number"]) else units.count(n) for r in rows]),
        Column("filter", "filter", [_filter(r, connections[r["connection_id"]][0]) for r in rows]),
        Column("text", "instant", [_microseconds(r["begin_ts_ns"]) for r in rows]),
        *(Column("text", "text", _texts([_text(r[n], n) for r in rows])) for n in names),
        Column("number", "count", [r["channel"] for r in rows]),
        Column("mono", "text", [connections[each][1] for each in identities]),
        Column("text", "text", [_outcome(r, waited) for r in rows]),
        Column("number", "packets", [[r[f"{end}_packet"] for end in _ends(r)] for r in rows]),
        Column("mono", "text", _texts([_file(r) for r in rows])),
    ]


def _exact(value: int | None) -> bool:
    """Return whether a script can hold a number, or there is none."""
    return value is None or -EXACT < value < EXACT


def _microseconds(ns: int | None) -> int | str | None:
    return ns // 1000 if ns is not None and 0 <= ns < EXACT * 1000 else units.instant(ns)


def _filter(row: dict[str, Any], port: int | None) -> Any:
    """Return the port, where both packets are in one file, and in their column; else the filters as text."""
    packets = {row[f"{end}_packet"] for end in _ends(row)}
    if port is None or None in packets or (len(packets) > 1 and row["begin_capture"] != row["end_capture"]):
        return "\n".join(filters.of_ends(row, port))
    return port


def _texts(texts: list[str]) -> list[str]:
    """Return texts as they may be shown; equal ones are looked at once."""
    shown = {text: units.visible(text, LONGEST) for text in set(texts)}
    return [shown[text] for text in texts]


def _text(value: str | None, column: str) -> str:
    if value is None:
        return units.NONE
    return "(default)" if value == "" and column == "exchange" else value


def _outcome(row: dict[str, Any], waited: bool) -> str:
    if waited:
        return row["ended_by"] or units.NONE
    return f"{row['outcome']}{', multiple' if row['multiple'] else ''}"


def _packets(row: dict[str, Any]) -> str:
    return " … ".join("?" if row[f"{e}_packet"] is None else str(row[f"{e}_packet"]) for e in _ends(row))


def _file(row: dict[str, Any]) -> str:
    files = dict.fromkeys(row[f"{e}_capture"] or units.NONE for e in _ends(row))
    return " … ".join(files)


def _ends(row: dict[str, Any]) -> tuple[str, ...]:
    return ("begin",) if row["end_packet"] is None else ("begin", "end")
