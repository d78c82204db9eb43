"""Named limits of what a hostile or endless capture may cost. All have defaults; none is unlimited.

What is dropped at the limits of one connection depends on its packets alone: on neither batches nor other connections.

Limits over all connections protect the process: when one is reached, rows depend on which connections it has, and where
`By batch` stands here, on the size of batches. A single connection reaches its own limits before
(`..._PER_CONNECTION`, `..._PER_STREAM`, `TLS_HELD`, `TLS_TRIES`; channels have 65,536 numbers). Limits over all
connections are reported in a row of `anomalies` (`limit-reached`): `CONNECTIONS`, `IDENTITIES`, `WAITING_PARTS`,
`WAITING_BYTES`, `SENT`, `REMEMBERED`, `PENDING`, `TLS_SECRETS` and `TLS_MASTERS` in a row without a connection,
`UNPACKED` also at the frames that it concerns; `FRAGMENTS`, `CHANNELS`, `CONTENTS`, `BODIES`, `LONG_FRAMES` and
`TLS_HELD_ALL` at the
frame or connection that reached them; `FRAGMENT_BYTES_ALL` counts the packets among the incomplete ones
(`ip-fragment`).
"""

CONNECTIONS = 131_072
"""Open connections; above that, those idle longest are evicted and get their rows."""

IDENTITIES = 1 << 21
"""Identities remembered, so that no two connections have the same; above that, the older half is forgotten."""

CAPTURES = 64
"""Captures that are read side by side; if the times of more overlap, the others are read after them."""

WAITING_PARTS = 65_536
"""Buffered segments of all connections; above that, those of the connections with the most are emitted over their
gaps."""

WAITING_PARTS_PER_STREAM = 8_192
"""Buffered segments of one direction of a connection; each out-of-order segment is inserted among them."""

WAITING_BYTES = 64 << 20
"""Bytes in the buffered segments of all connections."""

WAITING_BYTES_PER_STREAM = 4 << 20
"""Bytes in the buffered segments of one direction of a connection."""

TCP_EVENTS_PER_CONNECTION = 20_000
"""Rows of `tcp_events` of one connection; the rest is counted (`tcp-events-left-out`)."""

SENT = 1 << 20
"""Segments of all connections that are remembered as sent; above that, events lack the segment they are about."""

SENT_PER_STREAM = 32
"""Segments of one direction of a connection that are remembered as sent, until they are acknowledged."""

UNACKED = 1 << 20
"""Frames of all connections that wait for TCP to acknowledge them; above that, those of the direction with the most are
forgotten. By batch."""

UNACKED_BYTES = 8 << 20
"""Bytes of one direction after a frame, beyond which it waits no longer for that."""

PAYLOAD = 16 << 20
"""Bytes of a method or header frame that are reassembled; a longer frame has its row, but no fields."""

FRAGMENTS = 1 << 20
"""Chunks of unfinished method and header frames of all connections; above that, frames have rows without fields."""

FRAGMENTS_PER_CONNECTION = 1 << 16
"""The same of one direction, or of all segments of a connection that go on in further frames (AMQP 0-10)."""

FRAME = 1 << 30
"""Bytes of a frame; a longer one counts as a lost frame boundary."""

STREAM_FRAME = 256 << 20
"""Bytes of a stream-protocol frame; a longer one counts as a lost boundary. Deliveries exceed the negotiated size."""

LONG_FRAME = 128 << 20
"""Bytes held of a stream-protocol frame until it is complete: its records, decoded. One that has more has no rows in
`messages`."""

LONG_FRAMES = 512 << 20
"""The same of all connections."""

SUB_BATCH = 64 << 20
"""Bytes of a sub-batch of a stream, decompressed; a larger one is not opened. Brokers refuse such ones since 4.3.5."""

UNPACKED_PER_STREAM = 64 << 20
"""Bytes to which the sub-batches unpack that begin in the same `STRETCH` of one direction; above that, the others of
these are not opened, but the first always is. A frame longer than a mebibyte has stretches of its own."""

STRETCH = 1 << 20
"""Bytes of one direction, or of a long frame, for which `UNPACKED_PER_STREAM` counts."""

UNPACKED = 512 << 20
"""The same of all connections at a time; above that, sub-batches are not opened. By batch."""

RECORD = 128
"""Bytes for which each record of a sub-batch counts there, besides its own: what its row takes."""

CHANNELS = 262_144
"""Channels with state, of all connections."""

CONTENTS = 64 << 20
"""Bytes of methods and headers with unfinished bodies, of all connections; above that, the largest are dropped of the
connection with the most."""

CONTENTS_PER_CONNECTION = 16 << 20
"""The same of one connection."""

PENDING = 1 << 20
"""Consumers, and gets and consumes without an answer yet, of all connections; above that, `no_ack` of their deliveries
is unknown."""

PENDING_PER_CONNECTION = 1 << 17
"""The same of one connection."""

CONSUMERS = 4_096
"""Consumers of a channel that are searched for one; `no_ack` of deliveries to older ones is unknown."""

RESYNC = 2 << 20
"""Bytes of one direction that are buffered and searched for the next frame, after its boundary was lost."""

HELD_CHUNKS = 8_192
"""Chunks of one connection buffered for that, both directions together; of all connections, `WAITING_BYTES`."""

UNKNOWN_ROLES = 256 << 10
"""Bytes of one connection buffered until a frame shows who is the client, where neither a SYN nor a port does."""

UNKNOWN_ROLES_CHUNKS = 1_024
"""Chunks buffered for that, both directions together; of all connections, `WAITING_BYTES`."""

PROBE = 1 << 20
"""Bytes of a connection in which its protocol is searched for; after that it stays unrecognised."""

HELD = 4_096
"""Bytes of one connection buffered until its protocol is known."""

HELD_MIDDLE = 64 << 10
"""The same for a connection that was open before the capture began; above that, the oldest bytes are skipped. Four
times as much when a frame longer than segments seems to have begun."""

FRAGMENT_BYTES = 16 << 20
"""Bytes of IP fragments of a capture point, kept for reassembly or to recognise copies; above that, the oldest packets
are evicted."""

FRAGMENT_BYTES_ALL = 64 << 20
"""The same of all capture points; above that, those of the least recently used point are evicted. By batch."""

FRAGMENTED_PACKETS = 8_192
"""Fragmented IP packets of a capture point."""

FRAGMENTS_WAIT_NS = 30_000_000_000
"""Time that a fragment waits for the others, by the time of packets; the same as in Linux."""

UNPACKING = 128 << 20
"""Bytes of memory of a decompressor (the dictionary of xz, the window of zstd); data that needs more is not
decompressed. `xz -9` needs 65 MiB, `zstd --long` 128 MiB."""

REMEMBERED = 512 << 20
"""Retained bytes of open connections: their properties, names of their streams, unfinished TLS records. Above that, the
connections with the most are evicted."""

PROPERTIES = 64 << 10
"""Characters of a peer's properties in `connections`; a longer text is only in its frame."""

TEXT = 4_096
"""Characters of any other text in `connections`; the rest of a longer one is only in its frame."""

BODY = 64 << 20
"""Bytes of a body that `--bodies full` keeps; a longer one is only counted and hashed."""

BODIES = 512 << 20
"""Bytes of all unfinished bodies that it keeps; above that, a body is only counted and hashed."""

BODIES_PER_CONNECTION = 128 << 20
"""The same of one connection."""

TLS_SECRETS = 1 << 20
"""Secrets kept of key logs; later ones are ignored."""

TLS_MESSAGE = 1 << 17
"""Bytes of a TLS handshake message; a longer one is skipped."""

TLS_HELD = 1 << 20
"""Bytes of one connection's records that wait for secrets; above that, the connection stays encrypted."""

TLS_HELD_ALL = 64 << 20
"""Bytes of all connections' records that wait for secrets; above that, a connection that would wait stays encrypted.
By batch."""

TLS_TRIES = 4_096
"""Record numbers tried for one record after a gap, and secrets tried for a resumed session."""

TLS_TRIES_ALL = 65_536
"""Record numbers tried in total for one direction; above that, records after a gap stay encrypted."""

TLS_MASTERS = 1 << 20
"""Secrets tried for all resumed sessions together (most of a minute); above that, a session without a secret of
its own stays encrypted. By batch."""
