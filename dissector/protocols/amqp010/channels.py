"""AMQP 0-10 channels: a row each, found by connection and number, and the fields of its four tracks."""

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.protocols.amqp010.state import DOUBTFUL, LOST, SURE, Channel, Channels, Sender, Track
from amqpscope.dissector.protocols.channels import add_channel, channel_at


@kernel
def channel_row(of: Channels, senders: Array, client: int, slot: int, number: int) -> int:
    """Return the row of this channel, made when it must be; -1: there is no room.

    Of a new one nothing is known but what may be lost of its connection.
    """
    channels, tracks = of.channels, of.tracks
    row: int = channel_at(channels, of.table, slot, number)
    if row >= 0 or of.free[0] == 0:
        return row
    row = add_channel(channels, of.free, of.table, of.first, slot, number)
    channels[row, Channel.CLIENT_GAPPED] = senders[2 * slot + client, Sender.GAPPED]
    channels[row, Channel.SERVER_GAPPED] = senders[2 * slot + 1 - client, Sender.GAPPED]
    channels[row, Channel.EPOCH] = 0
    channels[row, Channel.SESSION] = -1
    for k in range(4):
        tracks[4 * row + k, Track.USED] = 0
        tracks[4 * row + k, Track.WITHIN] = 0
        tracks[4 * row + k, Track.LOST] = channels[row, Channel.CLIENT_GAPPED + k // 2]
    return row


@kernel
def certainty(before: int, how: int) -> int:
    """Return how sure it is that frames may be lost, after a gap that is LOST or FOUND."""
    if how == LOST:
        return DOUBTFUL if before == 0 else SURE
    return 0 if before == DOUBTFUL else before


@kernel
def lose_tracks(of: Channels, slot: int, server: int, how: int) -> None:
    """Note that frames of one direction of a connection may be lost, or that nothing but bytes of a body was.

    If they may, none of its assemblies may be joined with what follows.
    """
    channels, tracks = of.channels, of.tracks
    row = of.first[slot]
    while row >= 0:
        gapped = channels[row, Channel.CLIENT_GAPPED + server]
        channels[row, Channel.CLIENT_GAPPED + server] = certainty(gapped, how)
        for k in range(4 * row + 2 * server, 4 * row + 2 * server + 2):
            tracks[k, Track.LOST] = certainty(tracks[k, Track.LOST], how)
            tracks[k, Track.WITHIN] = 0
        row = channels[row, Channel.NEXT]
