"""Say what is wrong with hundreds of connections in a few lines, before the table of all of them."""

from collections.abc import Iterator

from amqpscope.dissector.formatting import counted
from amqpscope.dissector.handshakes.listing import MARKS, Listing, by_cause, said_of
from amqpscope.spec.layout import aligned, paint

MANY = 100
"""Connections from which on their verdicts come first."""


def lines(listing: Listing) -> Iterator[str]:
    """Yield a line for each bad verdict on many connections, the most frequent first, with what to do about it."""
    if sum(group.count for group in listing.groups.values()) < MANY:
        return
    bad = [each for each in by_cause(listing.worst_first, listing.handshakes) if each[0].severity != "fine"]
    counts = {cause.code: sum(group.count for group in groups) for cause, groups in bad}
    rows = [
        (MARKS[cause.severity], f"{counts[cause.code]:,} x {cause.code}", said_of(cause.remedy, groups))
        for cause, groups in sorted(bad, key=lambda each: -counts[each[0].code])
    ]
    if not rows:
        return
    yield paint(f"What is wrong with {counted(sum(counts.values()), 'connection')}, and what to do", "name")
    yield ""
    yield from aligned(rows)
    yield ""
