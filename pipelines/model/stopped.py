"""Where a kernel that writes rows stands in its batch, and why it stopped."""

from __future__ import annotations

from amqpscope.dissector.kernels.state import Matrix, column


class ST(Matrix):
    """Columns of `state`."""

    AT = column("the next event of the batch")
    BASE = column("id of the first event of the batch")
    OUT = column("rows of `out`")
    LIMIT = column("how much may be outstanding")


NEEDS_OUTPUT_ROOM, NEEDS_PAGES, NEEDS_ACCOUNTS, NEEDS_ACTS, WAITING_FULL, DONE = range(6)
"""Why it returned: the caller makes room and calls it again, until it is done."""
