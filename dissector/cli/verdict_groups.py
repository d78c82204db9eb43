"""Say what is wrong with hundreds of connections in a few lines, before the table of all of them."""

import json
from collections.abc import Iterator

from amqpscope.dissector.formatting import clean, counted
from amqpscope.dissector.handshakes.listing import MARKS, Listing, Row, cause_of
from amqpscope.dissector.handshakes.verdict import filled
from amqpscope.spec.handshakes import Cause
from amqpscope.spec.layout import aligned, paint

MANY = 100
"""Connections from which on their verdicts come first."""


def lines(listing: Listing) -> Iterator[str]:
    """Yield a line for each bad verdict on many connections, the most frequent first, with what to do about it."""
    if sum(group.count for group in listing.groups.values()) < MANY:
        return
    counts: dict[str, int] = {}
    firsts: dict[str, tuple[Row, Cause]] = {}
    for group in listing.worst_first:
        cause = cause_of(group.first, listing.handshakes)
        if cause.severity != "fine":
            counts[cause.code] = counts.get(cause.code, 0) + group.count
            firsts.setdefault(cause.code, (group.first, cause))
    rows = []
    for code in sorted(counts, key=lambda code: -counts[code]):
        row, cause = firsts[code]
        facts = {name: clean(str(item)) for name, item in json.loads(row["handshake_facts"] or "{}").items()}
        rows.append((MARKS[cause.severity], f"{counts[code]:,} x {code}", filled(cause.remedy, facts)))
    if not rows:
        return
    yield paint(f"What is wrong with {counted(sum(counts.values()), 'connection')}, and what to do", "name")
    yield ""
    yield from aligned(rows)
    yield ""
