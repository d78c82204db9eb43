"""Where a kernel that writes rows stands in its batch, and why it stopped."""

from __future__ import annotations

from typing import NamedTuple

from amqpscope.pipelines.model.store import declare


class State(NamedTuple):
    """Columns of `state`."""

    AT: int  # the next event of the batch
    BASE: int  # id of the first event of the batch
    OUT: int  # rows of `out`
    LIMIT: int  # how much may be outstanding


ST = declare(State)
NEEDS_OUTPUT_ROOM, NEEDS_PAGES, NEEDS_ACCOUNTS, NEEDS_ACTS, WAITING_FULL, DONE = range(6)
"""Why it returned: the caller makes room and calls it again, until it is done."""
