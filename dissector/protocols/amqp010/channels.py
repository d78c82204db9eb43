"""AMQP 0-10 channels: a row each, found by connection and number, and the fields of its four tracks."""

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.hashing import mix
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.kernels.pool import give_row, take_row
from amqpscope.dissector.protocols.amqp010.state import Assembly, Channel, Channels, Sender, Track


@kernel
def channel_row(of: Channels, senders: Array, client: int, slot: int, number: int, make: int) -> int:
    """Return the row of this channel, made when it must be; -1 when there is none (or no room)."""
    table, channels = of.table, of.channels
    mask = len(table) - 1
    place = mix(mix(10, slot), number) & mask
    spare = -1
    while table[place] != 0:
        if table[place] > 0:
            row: int = table[place] - 1
            if channels[row, Channel.SLOT] == slot and channels[row, Channel.CHANNEL] == number:
                return row
        elif spare < 0:
            spare = place
        place = (place + 1) & mask
    if make == 0 or of.free[0] == 0:
        return -1
    if spare >= 0:
        place = spare
        of.assembly[Assembly.TOMBSTONES] -= 1
    row = take_row(of.free)
    table[place] = row + 1
    begin_channel(of, senders, client, row, slot, number)
    return row


@kernel
def begin_channel(of: Channels, senders: Array, client: int, row: int, slot: int, number: int) -> None:
    """Fill the row of a channel that nothing is known of but what may be lost of its connection."""
    channels, tracks = of.channels, of.tracks
    channels[row, Channel.USED] = 1
    channels[row, Channel.SLOT] = slot
    channels[row, Channel.CHANNEL] = number
    channels[row, Channel.NEXT] = of.first[slot]
    channels[row, Channel.CLIENT_GAPPED] = senders[2 * slot + client, Sender.GAPPED]
    channels[row, Channel.SERVER_GAPPED] = senders[2 * slot + 1 - client, Sender.GAPPED]
    channels[row, Channel.EPOCH] = 0
    channels[row, Channel.SESSION] = -1
    for k in range(4):
        tracks[4 * row + k, Track.USED] = 0
        tracks[4 * row + k, Track.WITHIN] = 0
        tracks[4 * row + k, Track.LOST] = channels[row, Channel.CLIENT_GAPPED + k // 2]
    of.first[slot] = row


@kernel
def end_channel(of: Channels, row: int) -> None:
    """Forget a channel, the first one of its connection."""
    channels, table = of.channels, of.table
    mask = len(table) - 1
    slot = channels[row, Channel.SLOT]
    place = mix(mix(10, slot), channels[row, Channel.CHANNEL]) & mask
    while table[place] != row + 1:
        place = (place + 1) & mask
    table[place] = -1
    of.assembly[Assembly.TOMBSTONES] += 1
    of.first[slot] = channels[row, Channel.NEXT]
    channels[row, Channel.USED] = 0
    give_row(of.free, row)


@kernel
def place_channels(channels: Array, table: Array) -> None:
    """Fill an empty hash table with the channels in use."""
    mask = len(table) - 1
    for row in range(channels.shape[0]):
        if channels[row, Channel.USED]:
            place = mix(mix(10, channels[row, Channel.SLOT]), channels[row, Channel.CHANNEL]) & mask
            while table[place] != 0:
                place = (place + 1) & mask
            table[place] = row + 1


@kernel
def lose_tracks(of: Channels, slot: int, server: int) -> None:
    """Mark one direction of a connection as having lost frames: no assembly of it may be joined with what follows."""
    channels, tracks = of.channels, of.tracks
    row = of.first[slot]
    while row >= 0:
        channels[row, Channel.CLIENT_GAPPED + server] = 1
        for k in range(4 * row + 2 * server, 4 * row + 2 * server + 2):
            tracks[k, Track.LOST] = 1
            tracks[k, Track.WITHIN] = 0
        row = channels[row, Channel.NEXT]
