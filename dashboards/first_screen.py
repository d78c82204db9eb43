"""The first screen: what is wrong, by whom, where to look; as text for a terminal, and as data for programs."""

from __future__ import annotations

import datetime as dt
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from amqpscope.dashboards import relations, time_spent
from amqpscope.dashboards.findings import alike, calm, such
from amqpscope.dashboards.tables import Tables
from amqpscope.dashboards.units import rate
from amqpscope.dissector.formatting import clean, duration
from amqpscope.pipelines.findings import size
from amqpscope.spec.findings import SEVERITIES, Rule, load

Row = dict[str, Any]
WIDTH = 80
"""Columns of a terminal that has no size."""
WIDEST = 120
MOST_COLUMNS = 72
"""Below this width the table of queues has no columns for refusals."""
MOST_FINDINGS, MOST_QUEUES, MOST_CLIENTS, MOST_TIMES = 12, 8, 6, 4
"""Lines of each list; what is left out is counted."""
TABLES = ("captures", "endpoints", "findings", "rules", "queues", "clients", "topology", "rates", "time_spent")
LEAST_NAME = 12
"""Characters of a name that are always shown, where figures can be cut instead."""
LEAST_BUCKETS = 3
"""Buckets below which a course over time says no more than the mean above."""
NANO = 10**9
Ink = Callable[[str, str], str]
"""Returns a text in a colour of `layout.INKS`."""
_TIED = "\N{NO-BREAK SPACE}"
"""Between a word and its number, where a line must not break."""


def collect(tables: Tables, rules: Sequence[Rule] | None = None) -> dict[str, Any]:
    """Return what the first screen shows, as `--format json` prints it.

    Args:
        tables: the statistics; tables that follow from them and that they lack are computed.
        rules: of findings, besides ours; None: those whose findings are there already.

    Raises:
        ReadError: a table cannot be read.
        RuleError: a rule is wrong.
    """
    relations.prepare(tables, TABLES, [*load(), *rules] if rules else None)
    rows = partial(relations.rows, tables)
    captures, endpoints, findings = rows("captures"), rows("endpoints"), rows("findings")
    everything = [row for row in rows("rates") if row["grouping"] == "all"]
    first = min((row["first_ts_ns"] for row in captures or endpoints if row["first_ts_ns"] is not None), default=None)
    last = max((row["last_ts_ns"] for row in captures or endpoints if row["last_ts_ns"] is not None), default=None)
    unreadable = [row for row in findings if row["party"] == "capture" and row["severity"] != SEVERITIES[-1]]
    queues = sorted(rows("queues"), key=_weight, reverse=True)
    return {
        "captures": [row["capture"] for row in captures],
        "first_ts_ns": first,
        "last_ts_ns": last,
        "goes_on": tables.goes_on(),
        "packets": sum(row["packets"] or 0 for row in captures),
        "lost_bytes": sum(row["lost_bytes"] or 0 for row in endpoints),
        "brokers": _brokers(endpoints),
        "connections": len(endpoints),
        "came_up": sum(_is_up(row) and not _was_up(row) for row in endpoints),
        "began_before": sum(map(_was_up, endpoints)),
        "are_read": any(map(_is_up, endpoints)),
        "publishes": sum(row["publishes"] for row in everything),
        "deliveries": sum(row["deliveries"] for row in everything),
        "not_readable": unreadable,
        "findings": [row for row in findings if row not in unreadable],
        "network": {
            "rtt_ns": sorted(row["rtt_ns"] for row in endpoints if row["rtt_ns"] is not None),
            "retransmitted_bytes": sum(row["retransmitted_bytes"] or 0 for row in endpoints),
        },
        "queues": queues,
        "clients": sorted(
            rows("clients"), key=lambda row: (-row["publishes"] - row["deliveries"], row["client"] or "")
        ),
        "topology": rows("topology"),
        "rates": sorted(everything, key=lambda row: row["ts_ns"]),
        "time_spent": rows("time_spent"),
        "rules": rows("rules"),
    }


def _weight(row: Row) -> tuple[int, int, int]:
    return (row["outs"] + (row["ins"] or 0) + row["nacked"], row["consumers"], row["polls"])


def _brokers(endpoints: Sequence[Row]) -> list[str]:
    """Return the brokers by name and address; one that refused a connection has its name from others, if any.

    Addresses of one cluster are one broker: nodes, interfaces, ports for TLS and streams.
    """
    named: dict[str, dict[str, None]] = {}
    homes = {row["server"]: row["cluster_name"] for row in endpoints if row["cluster_name"]}
    for row in endpoints:
        name = f"{row['server_product'] or ''} {row['server_version'] or ''}".strip()
        named.setdefault(row["server"], {}).update({name: None} if name else {})
    places: dict[tuple[str, str], list[str]] = {}
    for server, names in named.items():
        for name in names or ["broker"]:
            places.setdefault((name, homes.get(server, server)), []).append(server)
    return [f"{name} at {_listed(servers)}" for (name, _), servers in places.items()]


def _listed(names: Sequence[str]) -> str:
    """Return names as a text; of more than three, the first two and how many there are besides."""
    if len(names) > 3:
        names = [*names[:2], f"{len(names) - 2} more"]
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def text(data: Mapping[str, Any], width: int = WIDTH, states: bool = False, ink: Ink = lambda text, _: text) -> str:
    """Return the first screen as text.

    Args:
        data: what `collect` returned.
        width: columns.
        states: whether to list all rules with their states.
        ink: paints heads, and who is to act by severity.
    """
    blocks = [_head(data, width), _unreadable(data, width, ink), _wrong(data, width, ink)]
    if data["findings"] or not data["not_readable"]:
        for block in (_queues(data["queues"], width), _clients(data, width), _times(data, width), _rates(data, width)):
            head, line, rest = block.partition("\n")
            blocks.append(ink(head, "name") + line + rest if block else "")
    if states:
        blocks.append(
            "\n".join(f"{row['code']:22} {row['state']:15} {row['reason'] or ''}".rstrip() for row in data["rules"])
        )
    blocks.append(_more(data))
    return "\n\n".join(block for block in blocks if block) + "\n"


def _is_up(row: Row) -> bool:
    return row["handshake_stage"] in ("open-ok", "ready")


def _was_up(row: Row) -> bool:
    """Return whether a connection began before the capture."""
    return bool(row["handshake_outcome"] == "begun-before")


def _head(data: Mapping[str, Any], width: int) -> str:
    names = [clean(name) for name in data["captures"]]
    name = names[0] if len(names) == 1 else f"{len(names)} captures" if names else "no captures"
    first, last = data["first_ts_ns"], data["last_ts_ns"]
    lost = f"{size(data['lost_bytes'])} missing" if data["lost_bytes"] else "no gaps"
    if first is None or last is None:
        return f"{name}: no packets"
    head = f"{name}  {_day(first)} to {_clock(last)} UTC, {duration(last - first)}, {data['packets']:,} packets, {lost}"
    span = max((last - first) / NANO, 1e-9)
    up, before, total = data["came_up"], data["began_before"], data["connections"]
    unread = not data["are_read"] and bool(data["not_readable"])
    whole = {1: "which", 2: "both"}.get(total, "all")
    came = f"{whole} came up" if up == total else f"{up} came up"
    if before:
        came = f"{whole} began before the capture" if before == total else f"{came}, {before} began before the capture"
    came = "what they do is not known" if unread else came
    clients = len(data["clients"])
    # without a name a client is an address, which several may share
    one, many = ("address", "addresses") if before == total and clients else ("client", "clients")
    who = f"{clients:,} {one if clients == 1 else many}"
    counted = f"{who}, {total:,} connection{'s' * (total != 1)}, {came}"
    brokers = "; ".join(map(clean, data["brokers"][:3])) + (
        f" and {len(data['brokers']) - 3} more" * (len(data["brokers"]) > 3)
    )
    parts = [brokers or "no broker", counted]
    if not unread:
        parts.append(f"{rate(data['publishes'] / span)} publishes/s, {rate(data['deliveries'] / span)} deliveries/s")
    line = "; ".join(parts) if total else "no connection of a known protocol"
    lines = [head]
    if total or not data["goes_on"]:
        lines.append(line)
    if data["goes_on"]:
        lines.append("the capture goes on: connections that are open count as if it ended here")
    return "\n".join(part for text in lines for part in textwrap.wrap(text, width))


def _unreadable(data: Mapping[str, Any], width: int, ink: Ink) -> str:
    lines = []
    for row in data["not_readable"]:
        said = f"NOT READABLE  {clean(row['text'])} {clean(row['advice'])}"
        first, *rest = textwrap.wrap(said, width, subsequent_indent=" " * 14)
        lines += [first.replace("NOT READABLE", ink("NOT READABLE", row["severity"]), 1), *rest]
    return "\n".join(lines)


def _wrong(data: Mapping[str, Any], width: int, ink: Ink) -> str:
    findings = data["findings"]
    grouped = alike(findings)
    worse = [rows for rows in grouped if rows[0]["severity"] != SEVERITIES[-1]]
    notes = [rows for rows in grouped if rows[0]["severity"] == SEVERITIES[-1]]
    lines = [ink("WHAT IS WRONG", "name")] if worse else []
    room = len(str(min(len(worse), MOST_FINDINGS))) + 1
    for number, (row, *_) in enumerate(worse[:MOST_FINDINGS], 1):
        head = f"{number:<{room}}{row['party'].upper():8} "
        body = _text_of(row) + _packets(row, len(data["captures"]) > 1)
        wrapped = textwrap.wrap(body, width, initial_indent=head, subsequent_indent=" " * len(head))
        wrapped[0] = ink(head.rstrip(), row["severity"]) + wrapped[0][len(head.rstrip()) :]
        lines += [line.replace(_TIED, " ") for line in wrapped]
    if len(worse) > MOST_FINDINGS:
        lines.append(f"and {len(worse) - MOST_FINDINGS} more: --format json has all of them")
    if not worse and not data["not_readable"]:
        yet = " yet" if data["goes_on"] else ""
        said = calm(data["rules"]) if data["connections"] else f"Nothing to judge{yet}: no connection was decoded."
        lines += textwrap.wrap(said, width)
    for row, *_ in notes:
        lines += textwrap.wrap(f"- {_text_of(row)}", width, subsequent_indent="  ")
    network = data["network"]
    is_said = any(row["party"] == "network" for row, *_ in worse)
    is_said = is_said or any(row["code"] == "net-full" for row, *_ in notes)
    if data["connections"] and not is_said and network["rtt_ns"]:
        least, most = (duration(network["rtt_ns"][at]) for at in (0, -1))
        trips = f"round trips {least} to {most}" if least != most else f"round trip {least}"
        again = size(network["retransmitted_bytes"])
        some, none = ("hardly any sign", "no sign")
        if any(2 * row["network_ns"] > row["wall_ns"] for row in data["time_spent"]):  # bytes were long on their way
            some, none = ("little was lost", "nothing was lost")
        sign = some if network["retransmitted_bytes"] else none
        said = f"- network: {sign} ({trips}, {again} sent again)"
        lines += textwrap.wrap(said, width, subsequent_indent="  ")
    return "\n".join(lines)


def _text_of(row: Row) -> str:
    """Return the text of a finding, and how many more are about the same thing."""
    return f"{clean(row['text'])} ({such(row)})" if row["such"] else clean(row["text"])


def _packets(row: Row, several: bool) -> str:
    """Return which packets show a finding; of several captures with the name, and the first where they are of two."""
    first, last = row["first_packet"], row["last_packet"]
    if first is None:
        return ""
    of = f" of {clean(row['first_capture'])}" if several and row["first_capture"] else ""
    if last in (None, first) or (several and not row["filter"]):
        return f"  packet{_TIED}{first}{of}"
    return f"  packets{_TIED}{first}-{last}{of}"


def _queues(queues: Sequence[Row], width: int) -> str:
    busy = [
        row for row in queues if row["ins"] is None or row["outs"] or row["ins"] or row["nacked"] or row["consumers"]
    ]
    rest = len(queues) - len(busy[:MOST_QUEUES])
    if not busy:
        return ""
    rows = [["QUEUE", "IN", "OUT", "LEFT", "WAIT p50/max", "CONSUMER (limit)", "NACK", "REJ"]]
    vhosts = Counter(name for name, _ in {(row["queue"], row["vhost"]) for row in queues})
    servers = Counter(row["queue"] for row in queues)
    for row in busy[:MOST_QUEUES]:
        wait = (
            f"{duration(row['wait_p50_ns'])} / {duration(row['wait_max_ns'])}"
            if row["wait_p50_ns"] is not None
            else "?"
        )
        of = f"{row['vhost'] or '?'}: " if vhosts[row["queue"]] > 1 else ""
        of = of or (f"{row['server']}: " if servers[row["queue"]] > 1 else "")
        rows.append([
            clean(of + row["queue"]), _number(row["ins"]), _number(row["outs"]), _signed(row["left_over"]),
            wait if row["waits"] or row["outs"] else "-", _readers(row), _number(row["nacked"] or None, "-"),
            _number(row["rejected"] or None, "-"),
        ])  # fmt: skip
    shown = 8 if width >= MOST_COLUMNS else 6
    lengths = [max(len(row[at]) for row in rows) + 2 for at in range(8)]
    if sum(lengths) - 2 > width and all(row[6:] == ["-", "-"] for row in rows[1:]):
        shown = 6
    lines = _columns([row[:shown] for row in rows], "lrrrllrr"[:shown], width, cut=(0, 5))
    if rest:
        lines.append(f"and {rest:,} more queue{'s' * (rest != 1)}")
    return "\n".join(lines)


def _readers(row: Row) -> str:
    if row["consumers"] == 1:
        limit = "?" if row["prefetch"] is None else "none" if row["prefetch"] == 0 else str(row["prefetch"])
        return f"{clean(row['called'] or row['consumer_tag'])} ({limit})"
    if row["consumers"]:
        return f"{row['consumers']} consumers"
    return "basic.get" if row["gets"] else "none"


def _clients(data: Mapping[str, Any], width: int) -> str:
    edges = [row for row in data["topology"] if row["edge"] == "publish"]
    first, last = data["first_ts_ns"], data["last_ts_ns"]
    span = max(((last or 0) - (first or 0)) / NANO, 1e-9)
    rows = [["CLIENT", "PUBLISHES TO", "per s"]]
    publishing = [row for row in data["clients"] if row["publishes"]]
    for row in publishing[:MOST_CLIENTS]:
        places: dict[str, int] = {}
        for edge in edges:
            if (edge["client"], edge["server"]) == (row["client"], row["server"]):
                name = edge["exchange"] or f"queue {edge['routing_key']}"
                name = f"stream {edge['queue']}" if edge["exchange"] is None else name
                places[name] = places.get(name, 0) + edge["messages"]
        most = sorted(places.items(), key=lambda each: -each[1])
        where = ", ".join(f"{clean(name)} {count:,}" for name, count in most[:3])
        where += f" and {len(most) - 3} more" if len(most) > 3 else ""
        several = f" ({row['addresses']:,} addresses)" if (row["addresses"] or 0) > 1 else ""
        rows.append([clean(row["client"]) + several, where, rate(row["publishes"] / span)])
    if len(rows) == 1:
        return ""
    lines = _columns(rows, "llr", width, cut=(0, 1))
    if len(publishing) > MOST_CLIENTS:
        more = len(publishing) - MOST_CLIENTS
        lines.append(f"and {more:,} more client{'s' * (more != 1)} that publish{'es' * (more == 1)}")
    return "\n".join(lines)


def _times(data: Mapping[str, Any], width: int) -> str:
    """Return where the time of connections went: of those that findings name, and those that waited longest."""
    rows = time_spent.telling(data["time_spent"], data["findings"], MOST_TIMES)
    lines = ["WHERE TIME WENT"] if rows else []
    for row in rows:
        said = f"{clean(row['client'] or 'client')} (port {row['client_port']}) {time_spent.sentence(row)}"
        lines += textwrap.wrap(said, width, subsequent_indent="  ")
    return "\n".join(lines)


def _rates(data: Mapping[str, Any], width: int) -> str:
    """Return publishes and deliveries over time, in as many buckets as fit; those with a block in brackets."""
    rates = data["rates"]
    if not rates or not (data["publishes"] or data["deliveries"]):
        return ""
    first, step = rates[0]["ts_ns"], rates[0]["width_ns"]
    count = (rates[-1]["ts_ns"] - first) // step + 1
    if count < LEAST_BUCKETS:
        return ""
    together = -(-count // max((width - 6) // 6, 1))
    step *= together
    blocks = [row for row in data["findings"] if row["code"] == "pub-blocked"]
    is_blocked = [
        any(row["first_ts_ns"] < first + (at + 1) * step and row["last_ts_ns"] > first + at * step for row in blocks)
        for at in range(-(-count // together))
    ]
    legend = ", [ ] blocked" if any(is_blocked) else ""
    lines = [f"PER SECOND, each {duration(step)} from {_clock(first)}{legend}"]
    for name, column in (("in", "publishes"), ("out", "deliveries")):
        sums = [0] * len(is_blocked)
        for row in rates:
            sums[(row["ts_ns"] - first) // step] += row[column]
        shown = [f"{each * NANO / step:.0f}" for each in sums]
        lines.append(f"{name:3}" + "".join(
            (f"[{each}]" if blocked else f"{each} ").rjust(6) for each, blocked in zip(shown, is_blocked, strict=True)
        ).rstrip())  # fmt: skip
    return "\n".join(lines)


def _more(data: Mapping[str, Any]) -> str:
    names = [clean(name) for name in data["captures"][:1]] or ["CAPTURE"]
    return f"more: --format json | amqpscope handshakes {names[0]} | amqpscope report {names[0]} -o page.html"


def failing(data: Mapping[str, Any], wanted: Iterable[str]) -> list[Row]:
    """Return the findings that `--fail-on` asks for: codes, or severities and what is worse."""
    found = []
    for each in wanted:
        worst = SEVERITIES[: SEVERITIES.index(each) + 1] if each in SEVERITIES else ()
        found += [
            row for row in [*data["findings"], *data["not_readable"]] if row["code"] == each or row["severity"] in worst
        ]
    return found


def _columns(rows: Sequence[Sequence[str]], sides: str, width: int, cut: Sequence[int]) -> list[str]:
    """Return rows in columns; where a line is too long, the widest names are cut, and figures if that does not do.

    Args:
        rows: texts; the first are the heads.
        sides: of the columns, l or r.
        width: columns of the terminal.
        cut: places of the names.
    """
    widths = [max(len(row[at]) for row in rows) for at in range(len(sides))]
    for places, least in ((cut, LEAST_NAME), (range(len(sides)), 4)):
        while sum(widths) + 2 * (len(widths) - 1) > width and max(widths[at] for at in places) > least:
            widths[max(places, key=lambda at: widths[at])] -= 1
    lines = []
    for row in rows:
        cells = [_cut(each, room) for each, room in zip(row, widths, strict=True)]
        made = [c.ljust(w) if s == "l" else c.rjust(w) for c, w, s in zip(cells, widths, sides, strict=True)]
        lines.append("  ".join(made).rstrip())
    return lines


def _cut(value: str, room: int) -> str:
    return value if len(value) <= room else value[: room - 1] + "\N{HORIZONTAL ELLIPSIS}"


def _number(value: int | None, missing: str = "?") -> str:
    return missing if value is None else f"{value:,}"


def _signed(value: int | None) -> str:
    return "?" if value is None else f"{value:+,}" if value else "0"


def _day(ts_ns: int) -> str:
    return f"{_moment(ts_ns):%Y-%m-%d %H:%M:%S}"


def _clock(ts_ns: int) -> str:
    return f"{_moment(ts_ns):%H:%M:%S}"


def _moment(ts_ns: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(ts_ns // NANO, dt.UTC)
