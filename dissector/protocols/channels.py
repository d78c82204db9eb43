"""Channels of connections: rows that are found by connection and number, and linked by connection.

The hash table holds row + 1, 0 where it is free, with linear probing. Removing a row moves those after it back, so that
the table has no other free places than those.
"""

import numpy as np

from amqpscope.dissector.kernels.arrays import Array, Ints
from amqpscope.dissector.kernels.hashing import mix
from amqpscope.dissector.kernels.kernel import call, kernel
from amqpscope.dissector.kernels.pool import Pool, chained, give_row, give_rows, grown, put_chains, take_row
from amqpscope.dissector.protocols.state import Channel

PLACES = 4
"""Places of the table for each row."""


@kernel
def home(slot: int, number: int, mask: int) -> int:
    """Return the place of the table where the search for a channel begins."""
    return mix(mix(7, slot), number) & mask


@kernel
def channel_at(channels: Array, table: Array, slot: int, number: int) -> int:
    """Return the row of the channel of this number of a connection; -1: there is none."""
    mask = len(table) - 1
    place = home(slot, number, mask)
    while table[place] != 0:
        row: int = table[place] - 1
        if channels[row, Channel.SLOT] == slot and channels[row, Channel.CHANNEL] == number:
            return row
        place = (place + 1) & mask
    return -1


@kernel
def add_channel(channels: Array, free: Array, table: Array, first: Array, slot: int, number: int) -> int:
    """Take a row for a channel that has none, and return it; it is the first of its connection. There must be one."""
    row: int = take_row(free)
    channels[row, Channel.USED] = 1
    channels[row, Channel.SLOT] = slot
    channels[row, Channel.CHANNEL] = number
    channels[row, Channel.NEXT] = first[slot]
    first[slot] = row
    place_channel(channels, table, row)
    return row


@kernel
def place_channel(channels: Array, table: Array, row: int) -> None:
    """Write a channel into the table."""
    mask = len(table) - 1
    place = home(channels[row, Channel.SLOT], channels[row, Channel.CHANNEL], mask)
    while table[place] != 0:
        place = (place + 1) & mask
    table[place] = row + 1


@kernel
def drop_channel(channels: Array, free: Array, table: Array, first: Array, row: int) -> None:
    """Forget a channel, the first of its connection."""
    mask = len(table) - 1
    slot = channels[row, Channel.SLOT]
    place = home(slot, channels[row, Channel.CHANNEL], mask)
    while table[place] != row + 1:
        place = (place + 1) & mask
    later = place
    while table[later] != 0:
        later = (later + 1) & mask
        other = table[later] - 1
        if other >= 0:
            begin = home(channels[other, Channel.SLOT], channels[other, Channel.CHANNEL], mask)
            if (later - begin) & mask >= (later - place) & mask:  # its search passes the place that becomes free
                table[place] = other + 1
                place = later
    table[place] = 0
    first[slot] = channels[row, Channel.NEXT]
    channels[row, Channel.USED] = 0
    give_row(free, row)


@kernel
def place_channels(channels: Array, table: Array) -> None:
    """Write all channels in use into an empty table."""
    for row in range(channels.shape[0]):
        if channels[row, Channel.USED]:
            place_channel(channels, table, row)


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
        self.table: Ints = np.zeros(PLACES * len(self), np.int64)
        call(place_channels, self.compiled, self.rows, self.table)
