"""The closed list of groupings of latencies, which of them a metric has, and which are made from which."""

from __future__ import annotations

ALL = "all"
"""The grouping with one group."""
COLUMNS = (
    "connection_id", "channel", "channel_epoch", "exchange", "routing_key", "queue", "consumer_tag", "request",
    "stream",
)  # fmt: skip
"""Columns that name a group; those that its grouping does not use are null."""

GROUPINGS: dict[str, tuple[str, ...]] = {
    ALL: (),
    "connection": ("connection_id",),
    "channel": ("connection_id", "channel", "channel_epoch"),
    "exchange": ("exchange",),
    "routing_key": ("exchange", "routing_key"),
    "queue": ("queue",),
    "consumer_tag": ("connection_id", "channel", "channel_epoch", "consumer_tag"),
    "request": ("request",),
    "stream": ("stream",),
}
"""The closed list of groupings, and the columns of each."""

NEEDED = {"channel": "channel", "exchange": "exchange", "routing_key": "exchange", "stream": "stream"}
"""The column that is not null in the rows of a grouping: streams have no channels and exchanges, others no streams."""

USED = {
    "confirm": ("all", "connection", "channel", "exchange", "routing_key", "stream"),
    "settlement": ("all", "connection", "channel", "exchange", "routing_key", "queue", "consumer_tag"),
    "rpc": ("all", "connection", "channel", "request"),
    "transit": ("all", "exchange", "routing_key"),
}
"""The groupings of each metric."""


def _finest(metric: str) -> dict[str, list[str]]:
    """Return the stored groupings, and which are made from each."""
    made: dict[str, list[str]] = {}
    for grouping in sorted(USED[metric], key=lambda grouping: -len(GROUPINGS[grouping])):
        of = next((kept for kept in made if {*GROUPINGS[grouping]} <= {*GROUPINGS[kept]}), grouping)
        made.setdefault(of, []).append(grouping)
    return made


FINEST = {metric: _finest(metric) for metric in USED}
"""By metric, the finest groupings, which are stored, and those that are made from each (itself included)."""
