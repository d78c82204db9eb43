"""A slow, independent reading of captures, to compare the dissector and the Spark jobs with.

It shares no code with the project: dpkt decodes the layers below TCP, pamqp the AMQP 0-9-1 frames, and the rest is
plain loops over lists of dicts. Columns are named as in the tables; times and durations are in nanoseconds.
`frame_no` counts from 0 in each connection, `packet` from 1 in the file, `nth` (the nth connection of the same
addresses and ports) from 0, `publish_seq` from 1.
"""

from tests.reference.amqp import Timestamp, body_hash, frames, messages

__all__ = ["Timestamp", "body_hash", "frames", "messages"]
