"""Print messages: as lines that fit a terminal, as JSON, or as CSV."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from datetime import datetime, tzinfo
from typing import TextIO

from amqpscope.dashboards.messages import COLUMNS, UNKNOWN, Found, Row
from amqpscope.dissector.formatting import clean, duration, exact, instant, plain
from amqpscope.pipelines.findings import size
from amqpscope.spec.layout import paint

NARROWEST = 80
KINDS = {"publish": "pub", "deliver": "del", "get": "get"}
HEADS = {
    "packet": "PACKET", "time": "TIME", "kind": "", "client": "CLIENT", "exchange": "EXCHANGE", "routing_key": "KEY",
    "queue": "QUEUE", "size": "SIZE", "message_id": "ID", "answer": "ANSWER",
}  # fmt: skip
"""Columns of a line with their heads; those that no message has are left out."""
FLEXIBLE = ("client", "exchange", "routing_key", "queue", "message_id")
"""Columns that are cut where a line is too long, the widest first."""
DEFAULT_EXCHANGE = "(default)"
LEAST, LEAST_ANSWER, SIZE, ANSWER = 4, 14, 8, 30
"""Characters: of a cut column, of a cut answer; of a size and an answer, at most."""
DAY = 86_400 * 10**9
LOOKS = {
    "returned": "error", "nack": "error", "reject": "error", "none": "warning", "none,": "warning", "unknown:": "aside",
}  # fmt: skip
"""Colours of answers by a word of theirs (`layout.INKS`)."""


def json_lines(found: Found, out: TextIO, zone: tzinfo) -> None:
    """Print an object per line, without what is null."""
    for row in found.rows():
        there = {name: value for name, value in row.items() if value is not None}
        out.write(json.dumps(exact(_timed(there, zone)), ensure_ascii=False) + "\n")


def csv_lines(found: Found, out: TextIO, zone: tzinfo) -> None:
    """Print all columns, after a line of their names."""
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("ts", *COLUMNS))
    for row in found.rows():
        cells = _timed(row, zone).values()
        writer.writerow("" if c is None else clean(c) if isinstance(c, str) else plain(c) for c in cells)


def _timed(row: Row, zone: tzinfo) -> Row:
    return {"ts": None if row.get("ts_ns") is None else instant(row["ts_ns"], zone), **row}


def text_lines(found: Found, out: TextIO, zone: tzinfo, width: int) -> None:
    """Print a line per message that fits a terminal, after a line of heads.

    Args:
        found: the messages.
        out: gets the lines.
        zone: time zone of printed times.
        width: columns of the terminal; a line has 80 at least.
    """
    if not found.count:
        return
    first, last = found.times()
    with_day = last - first >= DAY
    widths = _widths(found, max(width, NARROWEST), with_day)
    for row in _rows(found, zone, with_day):
        cells = {name: _padded(row[name], room, name in ("packet", "size")) for name, room in widths.items()}
        if row is HEADS:
            out.write(paint(" ".join(cells.values()).rstrip(), "name") + "\n")
            continue
        look = next((look for word, look in LOOKS.items() if word in row["answer"].split()), "")
        if look:  # the last column: nothing is aligned after it
            cells["answer"] = paint(cells["answer"].rstrip(), look)
        out.write(" ".join(cells.values()).rstrip() + "\n")


def _rows(found: Found, zone: tzinfo, with_day: bool) -> Iterator[dict[str, str]]:
    yield HEADS
    for row in found.rows():
        shown: dict[str, str] = {name: "" if row[name] is None else clean(str(row[name])) for name in FLEXIBLE}
        if row["exchange"] == "":
            shown["exchange"] = DEFAULT_EXCHANGE
        line: dict[str, str] = shown | {
            "packet": "" if row["packet"] is None else str(row["packet"]),
            "time": _time(row["ts_ns"], zone, with_day),
            "kind": KINDS[row["kind"]],
            "size": "" if row["size"] is None else size(row["size"]).replace("bytes", "B"),
            "answer": answer(row),
        }
        yield line


def _widths(found: Found, width: int, with_day: bool) -> dict[str, int]:
    longest = found.longest(("packet", *FLEXIBLE))
    if found.has_default_exchange():
        longest["exchange"] = max(longest["exchange"], len(DEFAULT_EXCHANGE))
    widths = {name: max(longest[name], len(HEADS[name])) if longest.get(name) else 0 for name in HEADS}
    widths |= {"time": 18 if with_day else 12, "kind": 3, "size": SIZE, "answer": ANSWER}
    widths = {name: room for name, room in widths.items() if room}
    while sum(widths.values()) + len(widths) - 1 > width:
        least = {"answer": LEAST_ANSWER} | {name: LEAST for name in FLEXIBLE if name in widths}
        free = [name for name, few in least.items() if widths[name] > few]
        if not free:
            break
        widths[max(free, key=lambda name: widths[name])] -= 1
    return widths


def _padded(value: str, room: int, to_right: bool) -> str:
    short = value if len(value) <= room else value[: room - 1] + "\N{HORIZONTAL ELLIPSIS}"
    return short.rjust(room) if to_right else short.ljust(room)


def _time(ts_ns: int | None, zone: tzinfo, with_day: bool) -> str:
    if ts_ns is None:
        return ""
    seconds, rest = divmod(ts_ns, 10**9)
    when = datetime.fromtimestamp(seconds, zone)
    return f"{when:{'%m-%d %H:%M:%S' if with_day else '%H:%M:%S'}}.{rest // 10**6:03}"


def answer(row: Row) -> str:
    """Return what became of a message: its confirm or settlement and how late, or why there is none.

    What was not whole when its connection or the capture ended waits for none.
    What a gap may hide is unknown, and so is it where the number of a publish is (as in a connection that began before
    the capture); only what was certainly not answered is `none`.
    """
    if row.get("incomplete"):
        return "not whole"
    if row["outcome"] is None:
        return "-" if row["first_offset"] is None else f"{row['records']} from {row['first_offset']}"
    ending = row["ended_by"]
    if row["outcome"] == "none":
        if ending in UNKNOWN and row["kind"] == "publish" and row["publish_seq"] is None:
            return "unknown number"
        if ending in UNKNOWN:
            return "unknown: a gap" if ending == "gap" else f"unknown: {ending}"
        late = "" if row["waited_ns"] is None else f" {duration(row['waited_ns'])}"
        return f"none{late}, {ending}" if ending else f"none{late}"
    words = [row["outcome"]]
    if row["latency_ns"] is not None:
        words.append(duration(row["latency_ns"]))
    if row["returned"]:
        words.append("returned")
    if row["requeue"]:
        words.append("to requeue")
    return " ".join(words)
