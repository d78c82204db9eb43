"""Merge frames that walks need not see one by one: of several in one packet only the last one stays.

Most frames are contents, of which walks need only that their side sent something, and when. A frame that no walk needs
is dropped if the next frame of its connection is another such frame of the same side that begins in the same packet;
that frame then has the start time of the first. No walk sees a difference:

- There is no silence between them, for the next one begins no later than this one ends.
- Both sides were seen before, so no direction is missing, and it does not matter which frame was seen last.
- The bytes of content that a frame of AMQP 0-10 has are added to those of the next, which is of the same channel.
- Connections where frames may be missing keep all of theirs, for there it does.

Of frames that are wanted only as the last before a close (`walk.Needs.last`), such as basic.publish, those go as well
after which the next one is of the same method and channel, with no close between.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import call, kernel
from amqpscope.dissector.kernels.state import Matrix, column
from amqpscope.pipelines.model.connection import FRAME_CUT, GAP_WORDS
from amqpscope.pipelines.model.events import FRAMES_OF, WORDS, what
from amqpscope.pipelines.model.walk import Needs

_GAPS = pa.array([word for word in GAP_WORDS if word != FRAME_CUT], pa.int16())
"""Anomalies after which frames may be missing; nothing comes after a cut one."""
_CONTENT = "content_size"
_BOTH = 3
_LAST, _ALL = 1, 2
"""How frames of a method are wanted: the last before a close, or all."""


class SEEN(Matrix):
    """Columns of what was seen of each connection."""

    SIDES = column("bits of the sides that were seen; _LOSSY where all frames stay")
    BEFORE = column("the same, before its last row")
    LAST = column("its last row, -1 for none")


_LOSSY = -1


def wanted(needs: Sequence[Mapping[int, Needs]], source: int) -> Any:
    """Return how walks with these needs ask for the frames of a method (uint8 by EV.WHAT; 0: not at all).

    Args:
        needs: of the walks.
        source: a table whose frames are merged (`protocols.Frames.merges`).
    """
    made = np.zeros(WORDS, np.uint8)
    for names, last in ((each[source].names, each[source].last) for each in needs if source in each):
        if names is None:
            made[:] = _ALL
        for name in names or ():
            made[what(source, name)] = max(made[what(source, name)], _LAST if name in last else _ALL)
    return made


def with_gaps(anomalies: Iterable[pa.Table]) -> pa.Array:
    """Return the connections where frames may be missing, according to their anomalies.

    Args:
        anomalies: rows of `event_rows.prepared`, in parts.
    """
    parts = [part["connection_id"].filter(pc.is_in(part["what"], value_set=_GAPS)) for part in anomalies]
    return pa.chunked_array([chunk for part in parts for chunk in part.chunks], pa.int64()).unique().drop_null()


@cache
def _closes(source: int) -> Any:
    """Return which frames of a table close a channel or their connection (uint8 by EV.WHAT)."""
    frames, made = FRAMES_OF[source], np.zeros(WORDS, np.uint8)
    made[[what(source, name) for name in (*frames.closes, frames.closes_channel) if name]] = 1
    return made


def merged(source: int, frames: pa.Table, wanted: Any, apart: pa.Array, compiled: bool) -> pa.Table:
    """Return frames without those that a later one stands for, which has the times of all.

    Args:
        source: their table.
        frames: rows of `event_rows.prepared`, those of a connection mostly in their order.
        wanted: how walks ask for such frames (`wanted`).
        apart: connections that keep all of theirs.
        compiled: whether kernels run compiled.
    """
    identity = frames["connection_id"].combine_chunks().dictionary_encode()
    connection = identity.indices.fill_null(-1).to_numpy()
    lossy = pc.is_in(identity.dictionary, value_set=apart).to_numpy(zero_copy_only=False)
    frame, side, ts, first_ts, channel, epoch = (
        frames[name].cast(pa.int64()).fill_null(-1).to_numpy()
        for name in ("frame_no", "from_client", "ts_ns", "first_ts_ns", "channel", "channel_epoch")
    )
    word = frames["what"].to_numpy()
    asked = wanted[word]
    following, closes = np.full((len(lossy), 2), -1, np.int64), _closes(source)[word]
    call(supersede, compiled, connection, frame, word, channel, epoch, following, closes, asked)
    bare = (asked == 0) & (frames["cut"].to_numpy() == 0)
    begun = first_ts.copy()
    has_content = _CONTENT in frames.column_names
    content = frames[_CONTENT].fill_null(0).to_numpy().copy() if has_content else np.zeros(len(frames), np.int64)
    kept = np.ones(len(frames), np.uint8)
    seen = np.full((len(lossy), SEEN.WIDTH), -1, np.int64)
    seen[:, SEEN.SIDES] = np.where(lossy, _LOSSY, 0)
    call(merge, compiled, connection, frame, side, ts, begun, bare.view(np.uint8), seen, kept, channel, content)
    made = {"first_ts_ns": pa.array(begun, mask=first_ts < 0)} | ({_CONTENT: pa.array(content)} if has_content else {})
    for name, values in made.items():
        frames = frames.set_column(frames.column_names.index(name), name, values)
    return frames.filter(pa.array(kept.view(np.bool_)))


@kernel
def supersede(
    connection: Array, frame: Array, word: Array, channel: Array, epoch: Array, following: Array, closes: Array,
    asked: Array,
) -> None:  # fmt: skip
    """Find the frames that are not wanted because of the next of their method.

    Args:
        connection: number of each row's connection (int32), -1 for none.
        frame: number of the frame; as with all that follows, -1 for null.
        word: EV.WHAT.
        channel: its channel.
        epoch: channel_epoch.
        following: for each connection, the row after it that may take its place, and the number of that frame; -1 for
            none.
        closes: 1 for frames that close a channel or the connection.
        asked: how each is wanted; written: 0 for those whose place another takes.
    """
    for i in range(len(connection) - 1, -1, -1):
        of = connection[i]
        if of < 0:
            continue
        is_next = following[of, 1] == frame[i] + 1  # else a close may lie between that is in another part
        following[of, 1] = frame[i]
        if not is_next or closes[i] == 1:
            following[of, 0] = -1
        if asked[i] == _LAST:
            other = following[of, 0]
            if other >= 0 and word[i] == word[other] and channel[i] == channel[other] and epoch[i] == epoch[other]:
                asked[i] = 0
            following[of, 0] = i


@kernel
def merge(
    connection: Array, frame: Array, side: Array, ts: Array, begun: Array, bare: Array, seen: Array, kept: Array,
    channel: Array, content: Array,
) -> None:  # fmt: skip
    """Find the frames that the next one stands for.

    Args:
        connection: number of each row's connection (int32), -1 for none.
        frame: number of the frame; as with all that follows, -1 for null.
        side: 1 from the client, 0 from the server.
        ts: when its last byte came.
        begun: when its first byte came; written: of a frame that stands for others, when that of the first of them did.
        bare: 1 for frames that may be dropped.
        seen: SEEN.
        kept: written: 0 for frames that are dropped.
        channel: its channel.
        content: bytes of content; written: of a frame that stands for others, theirs as well.
    """
    for i in range(len(connection)):
        of = connection[i]
        if of < 0 or seen[of, SEEN.SIDES] == _LOSSY:
            continue
        last = seen[of, SEEN.LAST]
        if last >= 0 and frame[i] <= frame[last]:  # not in order: what was seen before is not known
            seen[of, SEEN.SIDES] = _LOSSY
            continue
        if (
            seen[of, SEEN.BEFORE] == _BOTH and bare[last] == 1 and bare[i] == 1 and side[i] == side[last]
            and frame[i] == frame[last] + 1 and begun[last] >= 0 and 0 <= begun[i] <= ts[last] <= ts[i]
            and (content[last] == 0 or channel[i] == channel[last])
        ):  # fmt: skip
            begun[i] = begun[last]
            content[i] += content[last]
            kept[last] = 0
        seen[of, SEEN.BEFORE] = seen[of, SEEN.SIDES]
        seen[of, SEEN.LAST] = i
        if side[i] >= 0:
            seen[of, SEEN.SIDES] |= 1 << side[i]
