"""AMQP 0-9-1 channels: what is remembered of each between its frames (specification §2.2.5).

A row a channel, found by (connection, number); lists of consumers, and of consumes and gets that wait for their
answer, share one pool of nodes.
"""

from amqpscope.dissector.kernels import limits
from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.hashing import mix
from amqpscope.dissector.kernels.kernel import i64, kernel
from amqpscope.dissector.kernels.pool import give_row, take_row
from amqpscope.dissector.protocols.amqp091.layout import (
    B_WIDTH,
    BEGUN,
    N_CHANNEL,
    N_CONSUMERS,
    N_CONSUMES,
    N_CONSUMES_END,
    N_GETS,
    N_GETS_END,
    N_NEXT,
    N_SLOT,
    N_STRAYED,
    N_UNSURE,
    N_USED,
    N_WIDTH,
    Q_TOMBSTONES,
    STRAYED,
    UNKNOWN,
    Z_KEY,
    Z_NEXT,
    Z_VALUE,
)


@kernel
def channel_row(
    slot: int, number: int, make: int, channels: Array, contents: Array, lanes: Array, table: Array, first: Array,
    free: Array, control: Array,
) -> int:  # fmt: skip
    """The row of this channel, made when it must be; -1 when there is none (or no room)."""
    mask = len(table) - 1
    place = mix(mix(7, slot), number) & mask
    spare = -1
    while table[place] != 0:
        if table[place] > 0:
            row = table[place] - 1
            if channels[row, N_SLOT] == slot and channels[row, N_CHANNEL] == number:
                return row
        elif spare < 0:
            spare = place
        place = (place + 1) & mask
    if make == 0 or free[0] == 0:
        return -1
    if spare >= 0:
        place = spare
        control[Q_TOMBSTONES] -= 1
    row = take_row(free)
    table[place] = row + 1
    for column in range(N_WIDTH):
        channels[row, column] = 0
    channels[row, N_USED] = 1
    channels[row, N_SLOT] = slot
    channels[row, N_CHANNEL] = number
    channels[row, N_NEXT] = first[slot]
    channels[row, N_UNSURE] = UNKNOWN
    channels[row, N_STRAYED] = BEGUN
    first[slot] = row
    channels[row, N_CONSUMERS] = -1
    channels[row, N_CONSUMES] = -1
    channels[row, N_CONSUMES_END] = -1
    channels[row, N_GETS] = -1
    channels[row, N_GETS_END] = -1
    for k in range(2 * row, 2 * row + 2):
        for column in range(B_WIDTH):
            contents[k, column] = 0
    return row


@kernel
def push(channels: Array, row: int, head: int, nodes: Array, free: Array, key: int, value: int) -> None:
    """Append a request to the list with columns head and head + 1; without room answers have none any more."""
    channels[row, N_STRAYED] &= ~BEGUN
    if free[0] == 0:
        channels[row, N_STRAYED] |= STRAYED
        return
    node = take_row(free)
    nodes[node, Z_NEXT] = -1
    nodes[node, Z_KEY] = key
    nodes[node, Z_VALUE] = value
    if channels[row, head] < 0:
        channels[row, head] = node
    else:
        nodes[channels[row, head + 1], Z_NEXT] = node
    channels[row, head + 1] = node


@kernel
def shift(channels: Array, row: int, head: int, nodes: Array, free: Array) -> int:
    """Take the first node of a list (given back at once: its values stay until the next push), or -1."""
    node = channels[row, head]
    if node >= 0:
        channels[row, head] = nodes[node, Z_NEXT]
        give_row(free, node)
    return node


@kernel
def answered(channels: Array, row: int, head: int, nodes: Array, free: Array, key: int) -> int:
    """Take the request that an answer with this key (0: none) belongs to, by order; -1 when that is not known.

    An answer too many is to a request in front of the capture as long as none was seen; behind one it tells that the
    client does not wait for answers, and so does one with the key of another request: then order tells nothing.
    """
    node = shift(channels, row, head, nodes, free)
    if node < 0:
        if channels[row, N_STRAYED] != BEGUN:
            channels[row, N_STRAYED] |= STRAYED
    elif key != 0 and nodes[node, Z_KEY] != 0 and nodes[node, Z_KEY] != key:
        channels[row, N_STRAYED] |= STRAYED
    return node if channels[row, N_STRAYED] in (0, BEGUN) else -1


@kernel
def clear(channels: Array, row: int, nodes: Array, free: Array) -> None:
    """Empty the lists of a channel."""
    while shift(channels, row, N_CONSUMERS, nodes, free) >= 0:
        pass
    while shift(channels, row, N_CONSUMES, nodes, free) >= 0:
        pass
    while shift(channels, row, N_GETS, nodes, free) >= 0:
        pass


@kernel
def consumer(channels: Array, row: int, nodes: Array, key: int) -> int:
    """The node of a consumer, moved to the front of the list; -1 when it is not there, or the key is none (0)."""
    if key == 0:
        return -1
    before = -1
    node = channels[row, N_CONSUMERS]
    for _ in range(limits.CONSUMERS):
        if node < 0:
            break
        if nodes[node, Z_KEY] == key:
            if before >= 0:
                nodes[before, Z_NEXT] = nodes[node, Z_NEXT]
                nodes[node, Z_NEXT] = channels[row, N_CONSUMERS]
                channels[row, N_CONSUMERS] = node
            return node
        before = node
        node = nodes[node, Z_NEXT]
    return -1


@kernel
def add_consumer(channels: Array, row: int, nodes: Array, free: Array, key: int, no_ack: int) -> None:
    """Remember whether a consumer acknowledges, where it has a key."""
    if key == 0:
        return
    node = consumer(channels, row, nodes, key)
    if node < 0:
        if free[0] == 0:
            return
        node = take_row(free)
        nodes[node, Z_NEXT] = channels[row, N_CONSUMERS]
        nodes[node, Z_KEY] = key
        channels[row, N_CONSUMERS] = node
    nodes[node, Z_VALUE] = no_ack


@kernel
def place_channels(channels: Array, table: Array) -> None:
    """Fill an empty hash table with the channels in use."""
    mask = len(table) - 1
    for row in range(channels.shape[0]):
        if channels[row, N_USED]:
            place = mix(mix(7, channels[row, N_SLOT]), channels[row, N_CHANNEL]) & mask
            while table[place] != 0:
                place = (place + 1) & mask
            table[place] = row + 1


@kernel
def tag_hashes(offsets: Array, octets: Array, out: Array) -> None:
    """Hash each text of a string column: 0 for empty or null ones, never 0 else."""
    for i in range(len(out)):
        h = 0
        if offsets[i + 1] > offsets[i]:
            h = 1
            for p in range(offsets[i], offsets[i + 1]):
                h = mix(h, i64(octets[p]))
            if h == 0:
                h = 1
        out[i] = h
