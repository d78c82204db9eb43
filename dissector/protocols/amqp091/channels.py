"""AMQP 0-9-1 channels: what is remembered of each between its frames (specification §2.2.5).

A row a channel, found by (connection, number); lists of consumers, and of consumes and gets that wait for their
answer, share one pool of nodes.
"""

from amqpscope.dissector.kernels import limits
from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.hashing import mix
from amqpscope.dissector.kernels.kernel import i64, kernel
from amqpscope.dissector.kernels.pool import give_row, take_row
from amqpscope.dissector.protocols.amqp091.state import (
    BEGUN,
    OUT_OF_STEP,
    UNKNOWN,
    Channel,
    Channels,
    Content,
    Node,
    Usage,
)
from amqpscope.dissector.protocols.channels import add_channel, channel_at, drop_channel


@kernel
def channel_row(of: Channels, slot: int, number: int) -> int:
    """Return the row of this channel, made when it must be; -1: there is no room."""
    channels, contents = of.channels, of.contents
    row: int = channel_at(channels, of.table, slot, number)
    if row >= 0 or of.free[0] == 0:
        return row
    row = add_channel(channels, of.free, of.table, of.first, slot, number)
    channels[row, Channel.EPOCH] = 0
    channels[row, Channel.CONFIRM] = 0
    channels[row, Channel.SEQ] = 0
    channels[row, Channel.UNSURE] = UNKNOWN
    channels[row, Channel.OUT_OF_STEP] = BEGUN
    channels[row, Channel.CONSUMERS] = -1
    channels[row, Channel.CONSUMES] = -1
    channels[row, Channel.CONSUMES_END] = -1
    channels[row, Channel.GETS] = -1
    channels[row, Channel.GETS_END] = -1
    for k in range(2 * row, 2 * row + 2):
        for column in range(Content.WIDTH):
            contents[k, column] = 0
    return row


@kernel
def end_channel(of: Channels, row: int) -> None:
    """Forget a channel, the first one of its connection."""
    clear(of, row)
    drop_channel(of.channels, of.free, of.table, of.first, row)


@kernel
def take_node(of: Channels, row: int) -> int:
    """Take a node for a list of a channel; -1 when a limit forbids it."""
    slot = of.channels[row, Channel.SLOT]
    if of.free_nodes[0] == 0 or of.usage[slot, Usage.REQUESTS] >= limits.PENDING_PER_CONNECTION:
        return -1
    of.usage[slot, Usage.REQUESTS] += 1
    return take_row(of.free_nodes)


@kernel
def push(of: Channels, row: int, head: int, key: int, value: int) -> None:
    """Append a request to the list with columns head and head + 1; without room answers have none any more."""
    channels, nodes = of.channels, of.nodes
    channels[row, Channel.OUT_OF_STEP] &= ~BEGUN
    node = take_node(of, row)
    if node < 0:
        channels[row, Channel.OUT_OF_STEP] |= OUT_OF_STEP
        return
    nodes[node, Node.NEXT] = -1
    nodes[node, Node.KEY] = key
    nodes[node, Node.VALUE] = value
    if channels[row, head] < 0:
        channels[row, head] = node
    else:
        nodes[channels[row, head + 1], Node.NEXT] = node
    channels[row, head + 1] = node


@kernel
def shift(of: Channels, row: int, head: int) -> int:
    """Take the first node of a list (given back at once: its values stay until the next push), or -1."""
    node: int = of.channels[row, head]
    if node >= 0:
        of.channels[row, head] = of.nodes[node, Node.NEXT]
        of.usage[of.channels[row, Channel.SLOT], Usage.REQUESTS] -= 1
        give_row(of.free_nodes, node)
    return node


@kernel
def answered(of: Channels, row: int, head: int, key: int) -> int:
    """Take the request that an answer with this key (0: none) belongs to, by order; -1 when that is not known.

    An answer too many is to a request before the capture as long as none was seen; after one it shows that the
    client does not wait for answers, and so does one with the key of another request: then order shows nothing.
    """
    channels, nodes = of.channels, of.nodes
    node = shift(of, row, head)
    if node < 0:
        if channels[row, Channel.OUT_OF_STEP] != BEGUN:
            channels[row, Channel.OUT_OF_STEP] |= OUT_OF_STEP
    elif key != 0 and nodes[node, Node.KEY] != 0 and nodes[node, Node.KEY] != key:
        channels[row, Channel.OUT_OF_STEP] |= OUT_OF_STEP
    return node if channels[row, Channel.OUT_OF_STEP] in (0, BEGUN) else -1


@kernel
def clear(of: Channels, row: int) -> None:
    """Empty the lists of a channel."""
    while shift(of, row, Channel.CONSUMERS) >= 0:
        pass
    while shift(of, row, Channel.CONSUMES) >= 0:
        pass
    while shift(of, row, Channel.GETS) >= 0:
        pass


@kernel
def consumer(of: Channels, row: int, key: int) -> int:
    """Move the node of a consumer to the front of the list and return it; -1 when it is missing, or the key is 0."""
    if key == 0:
        return -1
    channels, nodes = of.channels, of.nodes
    before = -1
    node: int = channels[row, Channel.CONSUMERS]
    for _ in range(limits.CONSUMERS):
        if node < 0:
            break
        if nodes[node, Node.KEY] == key:
            if before >= 0:
                nodes[before, Node.NEXT] = nodes[node, Node.NEXT]
                nodes[node, Node.NEXT] = channels[row, Channel.CONSUMERS]
                channels[row, Channel.CONSUMERS] = node
            return node
        before = node
        node = nodes[node, Node.NEXT]
    return -1


@kernel
def add_consumer(of: Channels, row: int, key: int, no_ack: int) -> None:
    """Remember whether a consumer acknowledges, where it has a key."""
    if key == 0:
        return
    channels, nodes = of.channels, of.nodes
    node = consumer(of, row, key)
    if node < 0:
        node = take_node(of, row)
        if node < 0:
            return
        nodes[node, Node.NEXT] = channels[row, Channel.CONSUMERS]
        nodes[node, Node.KEY] = key
        channels[row, Channel.CONSUMERS] = node
    nodes[node, Node.VALUE] = no_ack


@kernel
def tag_hashes(offsets: Array, data: Array, out: Array) -> None:
    """Hash each text of a string column: 0 for empty or null ones, never 0 else."""
    for i in range(len(out)):
        h = 0
        if offsets[i + 1] > offsets[i]:
            h = 1
            for p in range(offsets[i], offsets[i + 1]):
                h = mix(h, i64(data[p]))
            if h == 0:
                h = 1
        out[i] = h
