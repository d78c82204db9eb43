"""Named limits: what a hostile or endless capture may cost. All have defaults; none is unlimited.

What is given up at limits of one connection, and at those on how many are open and what is remembered of them, depends
on the packets alone, not on how many are read at a time. So it does at limits over all connections while these take
turns as their packets come; but the first bytes of a connection, until its protocol is known, and what is in TLS come
to their turn by batch. Where it says `by batch`, the limit is on what one batch brings, or on just those.
"""

CONNECTIONS = 131_072
"""Connections held open at a time; beyond, those idle longest are given up (and have their row)."""

IDENTITIES = 1 << 21
"""Connections that are remembered so that none has the identity of another; then half of them are forgotten."""

CAPTURES = 64
"""Captures that are read side by side; where the times of more overlap, the others are read behind them."""

WAITING_PARTS = 65_536
"""Segments that wait for an earlier one, over all connections; beyond, where most wait the gap before them counts as
lost."""

WAITING_PARTS_PER_STREAM = 8_192
"""Segments that wait in one direction of one connection; each that comes out of order is sorted in among them."""

WAITING_BYTES = 64 << 20
"""Bytes in these."""

WAITING_BYTES_PER_STREAM = 4 << 20
"""Bytes that wait in one direction of one connection."""

PAYLOAD = 16 << 20
"""Bytes of a method or header frame that are put together; a longer one keeps its row, without fields."""

FRAGMENTS = 1 << 20
"""Pieces of unfinished method and header frames, over all connections; beyond, as for a payload that is too long."""

FRAME = 1 << 30
"""A longer frame is taken for a lost boundary."""

STREAM_FRAME = 256 << 20
"""A longer frame of the stream protocol is taken for a lost boundary; deliveries do not keep to the agreed size."""

SUB_BATCH = 64 << 20
"""Bytes of one sub-batch of a stream, unpacked; a larger one is not opened. Brokers refuse such ones since 4.3.5."""

UNPACKED = 256 << 20
"""Bytes of all sub-batches unpacked at a time; beyond, they are not opened. By batch."""

RECORDS = 1 << 21
"""Records of all packed sub-batches at a time; beyond, they are not opened. Each may say that it has 65,535. By
batch."""

CHANNELS = 262_144
"""Channels with state at a time, over all connections."""

CONTENTS = 64 << 20
"""Bytes of methods and headers whose body goes on, over all channels; beyond, the largest of them are given up."""

PENDING = 1 << 20
"""Consumers, and gets and consumes that wait for their answer, over all channels; beyond, it is not known of
what is delivered whether it is acknowledged."""

CONSUMERS = 4_096
"""Consumers of a channel that are looked through for one; what an older one acknowledges is not known."""

RESYNC = 2 << 20
"""Bytes of one direction that are held back and searched for the next frame, where the way to it was lost."""

HELD_PIECES = 8_192
"""Pieces that one connection holds back for that, both directions together; of all connections, `WAITING_BYTES`."""

PROBE = 1 << 20
"""Bytes of a connection after which an unrecognised protocol stays unrecognised."""

HELD = 4_096
"""Bytes of one connection held back until its protocol is known."""

HELD_MIDDLE = 64 << 10
"""The same for one that was under way when the capture began; beyond, the oldest are passed over. Four times as much
where a frame seems to have begun that is longer than segments."""

HELD_IN_ALL = 32 << 20
"""Bytes of all connections held back so; beyond, they are passed over. By batch."""

FRAGMENT_BYTES = 16 << 20
"""Bytes of IP fragments of a capture point that wait for others, or to know copies by; beyond, the oldest packets are
given up."""

FRAGMENT_BYTES_ALL = 64 << 20
"""The same of all capture points; beyond, those of the point out of use for longest are given up. By batch."""

FRAGMENTED_PACKETS = 8_192
"""IP packets of a capture point of which fragments wait."""

FRAGMENTS_WAIT_NS = 30_000_000_000
"""How long a fragment waits for the others, by the time of packets. Linux waits as long."""

UNPACKING = 128 << 20
"""Bytes that a decompressor may take (the dictionary of xz, the window of zstd); data that need more are not unpacked.
`xz -9` needs 65 MiB, `zstd --long` 128 MiB."""

REMEMBERED = 512 << 20
"""Bytes read of open connections that are remembered until more comes or they end: what they say of themselves, names
of their streams, unfinished records of TLS. Beyond, the connections with the most are given up."""

PROPERTIES = 64 << 10
"""Characters of what a peer tells of itself that `connections` repeats; a longer text is only in its frame."""

TEXT = 4_096
"""Characters of any other text that `connections` repeats; the rest of a longer one is only in its frame."""

BODY = 64 << 20
"""Bytes of a body kept with `--bodies full`; a longer one is counted and hashed only."""

BODIES = 512 << 20
"""Bytes of all bodies so kept that go on; one that comes to lie beyond is counted and hashed only."""

TLS_SECRETS = 1 << 20
"""Secrets kept of key logs; later ones are not used."""

TLS_MESSAGE = 1 << 17
"""Bytes of a message of the TLS handshake; a longer one is passed over."""

TLS_HELD = 1 << 20
"""Bytes of one connection's records that wait for secrets; beyond, the connection stays encrypted."""

TLS_HELD_ALL = 64 << 20
"""Bytes of all connections' records that wait for secrets; beyond, a connection that would wait stays encrypted. By
batch."""

TLS_TRIES = 4_096
"""Record numbers tried behind a gap before the next record is looked at, and secrets tried for a resumed session."""

TLS_TRIES_ALL = 65_536
"""Record numbers tried for one direction of a connection in all; beyond, what is behind a gap stays encrypted."""

TLS_MASTERS = 1 << 20
"""Secrets tried for all resumed sessions together (most of a minute); beyond, one without its own stays encrypted. By
batch."""
