"""What a capture's statistics say of its packets, as comments: findings, verdicts, and what answers what."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from amqpscope.dashboards import findings as rules
from amqpscope.dashboards import first_screen, relations, units
from amqpscope.dashboards.replacing import replacing
from amqpscope.dashboards.tables import Tables
from amqpscope.dissector.capture.commenting import Copied, copy
from amqpscope.pipelines.relations import compute

Row = dict[str, Any]
MARK = "amqpscope"
"""Every comment begins with it: `frame.comment contains "amqpscope"` finds all."""
BATCH = 1 << 14
TEXT = 300
SHEET = ("confirms", "settlements", "rpcs", "transits")
"""Statistics with what answers what."""
_PAIR = """
    select {begin}_packet as packet, 0 as part, '{begin}' as kind, {end}_packet as other, {end}_capture as file,
        outcome, ended_by, latency_ns as least_ns, latency_ns as most_ns, 1 as count, {what} as what
    from {table} where {begin}_packet is not null and {begin}_capture = $capture
    union all
    select {end}_packet, 1, '{end}', min({begin}_packet), min({begin}_capture), min(outcome), null, min(latency_ns),
        max(latency_ns), count(*), null
    from {table} where {end}_packet is not null and {end}_capture = $capture
    group by {end}_packet, {end}_frame_no, connection_id"""
_TRANSIT = """
    select deliver_packet, 2, 'transit', min(publish_packet), min(publish_capture), null, null, min(latency_ns),
        max(latency_ns), count(*), null
    from transits where deliver_packet is not null and publish_packet is not null and deliver_capture = $capture
    group by deliver_packet, deliver_frame_no, deliver_connection_id"""
_TO = "coalesce(nullif(exchange, ''), 'queue ' || routing_key, stream)"
PAIRS = " union all ".join((
    _PAIR.format(table="confirms", begin="publish", end="confirm", what=_TO),
    _PAIR.format(table="settlements", begin="deliver", end="settle", what="coalesce(queue, consumer_tag)"),
    _PAIR.format(table="rpcs", begin="request", end="response", what="request"),
    _TRANSIT,
)) + " order by 1, 2, 4"  # fmt: skip
"""What answers what, by packet; several answers in one frame are one row."""
NAMES = {
    "publish": ("publish", "confirm"), "confirm": ("confirms", "publish"), "deliver": ("delivery", "settlement"),
    "settle": ("settles", "delivery"), "request": ("request", "answer"), "response": ("answers", "request"),
}  # fmt: skip


def write(tables: Tables, capture: Path, name: str, out: Path) -> Copied:
    """Write a capture with comments on its packets, as pcapng.

    Args:
        tables: its statistics.
        capture: the capture.
        name: its name in them.
        out: the file to write, which must not be there.

    Raises:
        Error: the file is there, or cannot be written.
        CaptureError: the capture cannot be read.
    """
    assert tables.analyzed is not None
    with replacing(out) as other, other.open("wb") as file:
        return copy(str(capture), name, file, comments(tables, name), summary(tables))


def summary(tables: Tables) -> str:
    """Return the comment on the whole capture: the first screen, as text."""
    return f"{MARK}: {first_screen.text(first_screen.collect(tables), 100)}"


def comments(tables: Tables, name: str) -> Iterator[tuple[int, str]]:
    """Yield comments on the packets of a capture, in the order of packets.

    Args:
        tables: its statistics.
        name: of the capture in them.
    """
    early = sorted(_of_findings(tables, name) + _of_connections(tables, name), key=lambda each: each[0])
    place = 0
    for packet, text in _of_pairs(tables, name):
        while place < len(early) and early[place][0] <= packet:
            yield early[place]
            place += 1
        yield packet, text
    yield from early[place:]


def of_finding(row: Row) -> str:
    """Return the comment of a finding."""
    return units.visible(f"{MARK} [{row['code']}] {row['severity']}, {row['party']}: {row['text']}", TEXT)


def _of_findings(tables: Tables, name: str) -> list[tuple[int, str]]:
    assert tables.analyzed is not None
    found, _ = rules.read(tables)
    made = []
    for row in found:
        text = of_finding(row)
        ends = dict.fromkeys((row[f"{end}_capture"], row[f"{end}_packet"]) for end in ("first", "last"))
        for end, (capture, packet) in zip(("", " (the last of it)"), ends, strict=False):
            if packet is not None and capture == name:
                made.append((int(packet), text + end))
    return made


def _of_connections(tables: Tables, name: str) -> list[tuple[int, str]]:
    made = []
    for row in relations.rows(tables, "endpoints"):
        if row["first_capture"] != name or row["first_packet"] is None:
            continue
        verdict = row["ending"] or row["handshake_outcome"] or "no verdict"
        took = f", handshake {units.duration(row['handshake_ns'])}" if row["handshake_ns"] else ""
        text = f"{MARK} connection of {row['client'] or 'a client'}: {verdict}{took}"
        made.append((int(row["first_packet"]), units.visible(text, TEXT)))
        if row["severity"] in ("error", "warning") and row["last_packet"] is not None:
            cause = row["ending_cause"] or row["handshake_cause"] or ""
            what = f"{MARK} [{verdict}] {row['severity']}: {cause}".rstrip(": ")
            made.append((int(row["last_packet"]), units.visible(what, TEXT)))
    return made


def _of_pairs(tables: Tables, name: str) -> Iterator[tuple[int, str]]:
    assert tables.analyzed is not None
    with compute.opened(tables.analyzed, SHEET) as database:
        reader = database.sql(PAIRS, params={"capture": name}).to_arrow_reader(BATCH)
        for batch in reader:
            for row in batch.to_pylist():
                yield row["packet"], units.visible(_pair(row, name), TEXT)


def _pair(row: Row, name: str) -> str:
    where = f"packet {row['other']}" if row["file"] in (name, None) else f"packet {row['other']} of {row['file']}"
    if row["kind"] == "transit":
        return f"{MARK}: published {units.duration(row['most_ns'])} before, in {where}"
    verb, other = NAMES[row["kind"]]
    if row["outcome"] in ("nack", "reject", "error") and row["kind"] in ("confirm", "settle", "response"):
        verb = "refuses"
    if row["kind"] in ("publish", "deliver", "request"):
        what = f"{MARK}: {verb}{' of ' if row['kind'] == 'request' else ' to ' if verb == 'publish' else ' from '}"
        head = f"{what}{row['what'] or '(default)'}" if row["kind"] != "request" else f"{MARK}: {row['what']}"
        if row["other"] is None:
            why = f" ({row['ended_by']})" if row["ended_by"] else ""
            return f"{head}: {row['outcome'] or 'none'}, no {other}{why}"
        late = f" after {units.duration(row['most_ns'])}" if row["most_ns"] is not None else ""
        return f"{head}: {row['outcome']}{late}, in {where}"
    if row["count"] == 1:
        return f"{MARK}: {verb} the {other} in {where}, {units.duration(row['most_ns'])} before"
    spread = f"{units.duration(row['least_ns'])} to {units.duration(row['most_ns'])}"
    return f"{MARK}: {verb} {row['count']}, the first in {where}, {spread} before"


def lua(tables: Tables, name: str) -> str:
    """Return the findings and verdicts as a post-dissector for Wireshark, for the capture as it is.

    Packets with a finding get a tree `amqpscope` with the field `amqpscope.text`, and an expert information.
    """
    found = sorted(_of_findings(tables, name) + _of_connections(tables, name))
    lines = [f"  [{packet}] = {{{', '.join(_quoted(text) for text in texts)}}}," for packet, texts in _grouped(found)]
    return LUA.format(name=_quoted(name), notes="\n".join(lines))


def _grouped(found: Sequence[tuple[int, str]]) -> Iterator[tuple[int, list[str]]]:
    grouped: dict[int, list[str]] = {}
    for packet, text in found:
        grouped.setdefault(packet, []).append(text)
    yield from grouped.items()


def _quoted(text: str) -> str:
    """Return a text as a string of Lua: bytes that are no plain letters by their number."""
    return (
        '"'
        + "".join(chr(b) if b >= 0x20 and b < 0x7F and b not in b'"\\' else f"\\{b:03}" for b in text.encode())
        + '"'
    )


LUA = """-- What amqpscope found in the capture {name}: load it with `wireshark -X lua_script:FILE`.
local notes = {{
{notes}
}}
local amqpscope = Proto("amqpscope", "amqpscope findings")
local text = ProtoField.string("amqpscope.text", "Finding")
local group, severity = expert.group.COMMENTS_GROUP, expert.severity.NOTE
local finding = ProtoExpert.new("amqpscope.finding", "amqpscope finding", group, severity)
amqpscope.fields = {{ text }}
amqpscope.experts = {{ finding }}
function amqpscope.dissector(buffer, pinfo, tree)
  local found = notes[pinfo.number]
  if not found then return end
  local branch = tree:add(amqpscope)
  for _, each in ipairs(found) do
    branch:add(text, each)
    branch:add_proto_expert_info(finding, each)
  end
end
register_postdissector(amqpscope)
"""
_COLOURED = (("] error", "[65535,57311,56283][24929,4112,2570]"), ("] warning", "[65535,62194,52685][20560,14392,0]"),
             (MARK, "[59110,62708,65535][2056,15934,24929]"))  # fmt: skip
COLOURS = "# What amqpscope noted on packets.\n" + "".join(
    f'@amqpscope {text.strip("] ")}@frame.comment contains "{MARK}" and frame.comment contains "{text}"@{colours}\n'
    for text, colours in _COLOURED
)
PREFERENCES = """gui.column.format: "No.", "%m", "Time", "%t", "Source", "%s", "Destination", "%d", "Protocol", "%p",
 "amqpscope", "%Cus:frame.comment:0:R", "Info", "%i"
"""


def write_profile(folder: Path) -> None:
    """Write a profile of Wireshark: colours for comments, and a column that shows them.

    Raises:
        Error: it cannot be written, or something else is there.
    """
    with replacing(folder) as made:
        made.mkdir(parents=True)
        (made / "colorfilters").write_text(COLOURS, encoding="utf-8")
        (made / "preferences").write_text(PREFERENCES, encoding="utf-8")
