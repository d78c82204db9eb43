"""Channels of connections: rows that are found by connection and number (`lookup`), and linked by connection."""

import numpy as np

from amqpscope.dissector.kernels.arrays import Array, Ints
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.kernels.lookup import enter, leave, row_of, table_of
from amqpscope.dissector.kernels.pool import Pool, chained, give_row, give_rows, grown, put_chains, take_row
from amqpscope.dissector.protocols.state import Channel

PLACES = 4
"""Places of the table for each row."""


@kernel
def channel_at(channels: Array, table: Array, slot: int, number: int) -> int:
    """Return the row of the channel of this number of a connection; -1: there is none."""
    return row_of(table, channels, Channel.SLOT, slot, Channel.CHANNEL, number)


@kernel
def add_channel(channels: Array, free: Array, table: Array, first: Array, slot: int, number: int) -> int:
    """Take a row for a channel that has none, and return it; it is the first of its connection. There must be one."""
    row: int = take_row(free)
    channels[row, Channel.USED] = 1
    channels[row, Channel.SLOT] = slot
    channels[row, Channel.CHANNEL] = number
    channels[row, Channel.NEXT] = first[slot]
    first[slot] = row
    enter(table, channels, Channel.SLOT, Channel.CHANNEL, row)
    return row


@kernel
def drop_channel(channels: Array, free: Array, table: Array, first: Array, row: int) -> None:
    """Forget a channel, the first of its connection."""
    leave(table, channels, Channel.SLOT, Channel.CHANNEL, row)
    first[channels[row, Channel.SLOT]] = channels[row, Channel.NEXT]
    channels[row, Channel.USED] = 0
    give_row(free, row)


class ChannelPool(Pool):
    """Channels of all connections.

    Attributes:
        table: finds them.
        first: (slots,): the first channel of each connection; -1: none.
    """

    def __init__(self, width: int, capacity: int, compiled: bool) -> None:
        self.compiled = compiled
        self.first: Ints = np.zeros(0, np.int64)
        super().__init__(width, capacity)

    def begin(self, capacity: int) -> None:
        """Make room for connections in this number of slots."""
        if len(self.first) < capacity:
            self.first = grown(self.first, capacity, -1)

    def grow(self, capacity: int) -> None:
        """Grow to `capacity` rows, a power of two."""
        super().grow(capacity)
        self._place()

    def take_out(self, slots: Ints) -> tuple[Ints, Ints, Ints]:
        """Remove the channels of connections. Return their places, their number for each connection, and their rows."""
        places, lengths = chained(self.rows, self.first[slots], Channel.NEXT)
        rows = self.rows[places]
        self.rows[places, Channel.USED] = 0
        give_rows(self.free, places)
        self.first[slots] = -1
        self._place()
        return places, lengths, rows

    def put_back(self, slots: Ints, lengths: Ints, rows: Ints) -> Ints:
        """Put rows back that `take_out` returned, for connections in these slots. Return their places."""
        rows[:, Channel.SLOT] = np.repeat(slots, lengths)
        places, self.first[slots], _ = put_chains(self.rows, self.free, rows, lengths, Channel.NEXT)
        self._place()
        return places

    def _place(self) -> None:
        columns, used = (Channel.SLOT, Channel.CHANNEL), np.flatnonzero(self.rows[:, Channel.USED]) + 1
        self.table = table_of(self.rows, columns, used, PLACES * len(self), self.compiled)
