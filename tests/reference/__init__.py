"""A slow, independent reading of captures, to compare the dissector and the Spark jobs with.

It shares no code with the project: dpkt decodes the layers below TCP, pamqp the AMQP 0-9-1 frames, and the rest is
plain loops over lists of dicts, one per row. `frames()` reads a capture; all other tables are made from its rows.
Columns are named as in the project's tables; times and durations are in nanoseconds. `frame_no` counts from 0 in each
connection, `packet` from 1 in its file, `nth` (the nth connection of the same addresses and ports) from 0,
`publish_seq` from 1. Instead of `connection_id`, rows have `connection` (client, server, nth).

Where the tables' definitions leave a choice, this is what was chosen:

- `channel_epoch` changes with the channel.open itself; what follows a close belongs to the epoch before.
- `frame_no` orders both directions by packet. After a gap, frames count as readable when their own last byte came.
- A frame with a wrong end byte has a number in `frame_no`, and no row: nothing in it is believed. What follows is
  searched for after it.
- A proxy's header (PROXY protocol) before a direction is skipped.
- A frame cut off by the end of the capture has no row; a message cut off has one, without `body_hash`.
- A body's hash is of the bytes; of an empty body it is that of no bytes.
- In field tables decimals are unsigned and `L` is signed, as in the final draft. Times stay seconds.
- A message that is not whole is cut by its sender, which closes the channel, or ends (FIN, any RST);
  else by the end of the capture. Nobody answers it: it is `discarded` or of `capture-end` at its own last frame, and it
  is no delivery of `transits`. Where bytes are missing meanwhile, it may have been whole.
- What does not belong into a content (another method, a second header, a body without a header) ends it, unfinished.
- Confirms: the earliest answer after the publish counts; tag 0 has no special meaning. The oldest equal mandatory
  publish was returned even if it was confirmed by then. `reply_code` is the return's.
- Where nobody answered, `end_ts_ns` is the time of the frame that ended the wait: the close (`discarded` too: it is
  before the publish), the first frame after the gap, recover-ok, rollback-ok; without such a frame, the first FIN or
  RST (`connection-close`), or the connection's last packet (`capture-end`). Where somebody did, both are null.
- A message is `discarded` when its last frame comes after the other side's channel.close or connection.close. A
  client's settlement sent after the server's close settles nothing.
- In a transaction `settle_ts_ns` is that of tx.commit-ok. Settlements after tx.select count as transactional (not
  those after its -ok only), and belong to the commit or rollback sent next. Deliveries whose settlement was rolled
  back can be settled anew; if they are not, they were ended by `rollback`, whatever ends the channel later.
- basic.recover voids all that was delivered up to recover-ok and not settled before recover. The asynchronous
  variant acts at once.
- A delivery of outcome `unknown` has its `ended_by` like one of outcome `none`.
- `queue` is what the consume or get names. `no-ack` deliveries have no settle time and no latency; `multiple` is false
  for a reject, `requeue` null for an ack.
- Requests of the server (connection.start, tune, channel.close ...) are rows of `rpcs`, too. A peer's close with a
  reply code other than 200 is the error of the oldest open request of the other side that is of the method that it
  names by class and method; a close of the connection only where one channel alone has such. All other requests that
  are open then, and what was sent after, have the outcome `none`. Closes that are not answered wait until the
  connection ends.
- `flow_control.side` is the side that makes the other wait. An interval ends with its cause, the cancel, the close or
  the end of the connection; at the capture's end `end_ts_ns` stays null. Full windows begin with the last frame of
  the delivery that fills them; consumers are counted one by one, and besides all of a channel together when a global
  limit is set; deliveries of consumers that were not seen to begin count for the channel when they were settled.
  `rtt_ns` is the time from the SYN to the client's ACK; without it nothing is `proven`.
- Silence is counted from connection.tune-ok to the first connection.close, else from the first packet to the last. A
  frame is a sign of life from its first byte to its last; a connection without frames has no row.
- A delivery belongs to a publish of the hour before it, by the first that it has of message id (not empty), trace and
  span, and content; where several publishes share that, by the others in turn, among these publishes.
- Percentiles are nearest rank: a value that was measured.
"""

from tests.reference.amqp import Timestamp, body_hash, frames, messages
from tests.reference.pairs import confirms, latency_summary, rpcs, settlements
from tests.reference.signs import heartbeats
from tests.reference.transits import transits
from tests.reference.waits import flow_control

__all__ = [
    "Timestamp",
    "body_hash",
    "confirms",
    "flow_control",
    "frames",
    "heartbeats",
    "latency_summary",
    "messages",
    "rpcs",
    "settlements",
    "transits",
]  # fmt: skip
