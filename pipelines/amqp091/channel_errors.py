"""Channel errors: channels and connections that were closed with an error, and what it is about.

A close names the class and method of the request that it refuses. The queue and the exchange are those of the last such
request of the other side on that channel (connection.close: on any channel, where channels do not differ). They are
unknown if unseen frames may lie between the two. One sort finds the last request before each error of a batch, so no
loop runs over requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from amqpscope import spec
from amqpscope.pipelines.amqp091.frames import FRAMES, PROTOCOL
from amqpscope.pipelines.model.connection import GAP_WORDS, GAPS
from amqpscope.pipelines.model.events import ANOMALIES, EV, Events, what
from amqpscope.pipelines.model.latest import last_before
from amqpscope.pipelines.model.remembered import FINE, REACH, RemembersRequests
from amqpscope.pipelines.model.walk import Needs, Rows, conform

_AMQP = spec.load(PROTOCOL)
REQUESTS = tuple(
    method.full_name
    for method in _AMQP.methods
    if method.from_client and {"queue", "exchange"} & {field.name for field in method.fields}
)
"""Methods of clients that name a queue or an exchange."""
DECLARED = "queue.declare-ok"
"""The queue that an empty name means."""
CLOSES = ("channel.close", "connection.close")

_CLOSE, _CONNECTION_CLOSE = (what(FRAMES, method) for method in CLOSES)
_REQUESTS = [what(FRAMES, method) for method in REQUESTS]
_DECLARED, _DECLARE = what(FRAMES, DECLARED), what(FRAMES, "queue.declare")
_METHODS = {(method.class_id, method.id): method.full_name for method in _AMQP.methods}
_NAMES = ("queue", "exchange")
_CLOSE_COLUMNS = (
    "connection_id", "channel", "channel_epoch", "from_client", "method", "reply_code", "reply_text", "frame_no",
    "capture", "packet", "ts_ns",
)  # fmt: skip
_KEY = (EV.CONNECTION, EV.FROM_CLIENT, EV.WHAT, EV.CHANNEL, EV.EPOCH, EV.ORDER)
_CONNECTION, _SIDE, _WORD, _CHANNEL, _EPOCH, _ORDER = range(6)
"""Columns of keys."""
_ON_CHANNEL, _ON_ANY = [_CONNECTION, _SIDE, _WORD, _CHANNEL, _EPOCH], [_CONNECTION, _SIDE, _WORD]
_OF_SIDE = [_CONNECTION, _SIDE]
_CUT = 0
"""EV.WHAT of a frame whose content is unknown."""


def _as_said(texts: pa.ChunkedArray, names: pa.Table) -> pa.Table:
    """Return names of queues and exchanges, those that the broker's text says instead of the last request's.

    Clients that do not wait have other requests under way behind the one that failed.
    """
    columns = {}
    for name in _NAMES:
        said = pc.struct_field(pc.extract_regex(texts, rf"{name} '(?P<name>[^']+)' in vhost"), "name")
        meant = pc.if_else(pc.equal(said, "amq.default"), "", said)
        columns[name] = pc.if_else(pc.is_valid(names[name]), pc.coalesce(meant, names[name]), names[name])
    return pa.table(columns)


class ChannelErrors(RemembersRequests):
    """The walk that writes `channel_errors`: one row per close with an error.

    State is the last request of each method on each channel of the open connection, within REACH.
    """

    NAME, VERSION, WIDTH, TEXTS = "channel_errors", 1, len(_KEY), _NAMES
    needs: ClassVar[Mapping[int, Needs]] = {
        ANOMALIES: Needs((), GAPS),
        FRAMES: Needs(
            ("reply_code", "reply_text", "class_id", "method_id", *_NAMES), (*REQUESTS, DECLARED, *CLOSES), REQUESTS
        ),
    }

    def feed(self, events: Events) -> Iterator[Rows]:
        """Walk over a batch; yield rows of its errors."""
        if not len(events):
            return
        closes = np.flatnonzero(events.among((_CLOSE, _CONNECTION_CLOSE)))
        if len(closes):
            code = events.take(FRAMES, closes, ["reply_code"])["reply_code"]
            failed = pc.and_(pc.is_valid(code), pc.invert(pc.is_in(code, value_set=pa.array(FINE, code.type))))
            closes = closes[failed.to_numpy()]
        if len(closes):
            yield "channel_errors", self._errors(events, closes)
        self._remember(events)

    def _errors(self, events: Events, closes: Any) -> pa.Table:
        """Return rows for these closes."""
        frames = events.take(FRAMES, closes, (*_CLOSE_COLUMNS, "class_id", "method_id"))
        ids = [frames[name].fill_null(0).to_numpy().astype(np.int64) for name in ("class_id", "method_id")]
        kinds, kind = np.unique(ids[0] << 32 | ids[1], return_inverse=True)
        names_of_kinds = [_named(each >> 32, each & 0xFFFFFFFF) for each in kinds.tolist()]
        failed = pa.array(names_of_kinds, pa.string()).take(pa.array(kind))
        words = [what(FRAMES, name) if name in REQUESTS else -1 for name in names_of_kinds]
        word = np.array(words, np.int64)[kind]
        seen = _Seen(self._keys, events)
        names = _as_said(frames["reply_text"], self._names_of(events, seen, seen.requests(closes, word)))
        columns = {
            **{name: frames[name] for name in _CLOSE_COLUMNS},
            "failed_method": failed,
            **{name: names[name] for name in _NAMES},
        }
        return conform("channel_errors", columns, len(closes))

    def _names_of(self, events: Events, seen: _Seen, places: Any) -> pa.Table:
        """Return queues and exchanges of these rows of `seen`, null for -1; an empty queue is the last declared one."""
        found = self._fetched(events, seen, places)
        empty = pc.fill_null(pc.equal(found["queue"], ""), False).to_numpy()
        if not empty.any():
            return found
        declared = np.full(len(places), -1)
        declared[empty] = seen.declared(places[empty])
        meant = self._fetched(events, seen, declared)["queue"]
        return found.set_column(0, "queue", pc.if_else(empty, meant, found["queue"]))

    def _fetched(self, events: Events, seen: _Seen, places: Any) -> pa.Table:
        earlier = len(self._keys)
        old, new = (places >= 0) & (places < earlier), places >= earlier
        fresh = events.take(FRAMES, seen.at[places[new]], _NAMES).cast(self._names.schema)
        row = np.zeros(len(places), np.int64)
        row[old], row[new] = np.arange(old.sum()), old.sum() + np.arange(new.sum())
        return pa.concat_tables([self._names.take(places[old]), fresh]).take(pa.array(row, mask=places < 0))

    def _remember(self, events: Events) -> None:
        """Remember what later errors of the last connection of the batch may be about."""
        last, order = events.matrix[-1, [EV.CONNECTION, EV.ORDER]].tolist()
        first = int(np.argmax(events.matrix[:, EV.CONNECTION] == last))
        events = events.slice(first, len(events) - first)
        seen = _Seen(self._keys, events)
        mine = np.flatnonzero((seen.keys[:, _CONNECTION] == last) & (seen.keys[:, _ORDER] >= order - REACH))
        keys = seen.keys[mine]
        # A gap makes those of its side before it unknown.
        gap = last_before(seen.gap_keys, seen.gaps, keys, np.full(len(keys), len(events)), _OF_SIDE)
        mine = mine[seen.at[mine] > _at(seen.gaps, gap)]
        # The last one of each method on each channel: the first, seen from the end.
        keys, mine = seen.keys[mine[::-1]], mine[::-1]
        kind = (keys[:, _WORD] << 17) | (keys[:, _SIDE] << 16) | keys[:, _CHANNEL]
        kept = np.sort(mine[np.unique(kind, return_index=True)[1]])
        names = self._names_of(events, seen, kept).combine_chunks()
        self._keys, self._names = seen.keys[kept], names


class _Seen:
    """Remembered requests, and those of a batch; also queue.declare-ok, and frames with unknown content.

    Attributes:
        keys: what is in `_KEY` of each (int64), in their order.
        at: their positions in the batch; those before it are negative.
        gap_keys: `keys` of gaps.
        gaps: positions of these.
    """

    def __init__(self, earlier: Any, events: Events) -> None:
        matrix = events.matrix
        noted = events.among((*_REQUESTS, _DECLARED))
        if events.lacking:
            noted |= (matrix[:, EV.CUT] == 1) & (events.source == FRAMES)
        here = np.flatnonzero(noted)
        self.keys = np.concatenate([earlier, matrix[here[:, None], _KEY]])
        self.at = np.concatenate([np.arange(-len(earlier), 0), here])
        self.gaps = np.flatnonzero(events.among(GAP_WORDS) & (matrix[:, EV.FROM_CLIENT] >= 0))
        self.gap_keys = matrix[self.gaps[:, None], _KEY]
        self._matrix = matrix

    def requests(self, closes: Any, word: Any) -> Any:
        """Return the last request before each close, -1 where it is unknown.

        Args:
            closes: positions.
            word: EV.WHAT of the methods that they name; -1 for methods without a queue or an exchange.
        """
        wanted = self._matrix[closes[:, None], _KEY]
        wanted[:, _SIDE] = 1 - wanted[:, _SIDE]
        wanted[:, _WORD] = word
        of_channel = self._matrix[closes, EV.WHAT] == _CLOSE
        gap = _at(self.gaps, last_before(self.gap_keys, self.gaps, wanted, closes, _OF_SIDE))
        on_channel = last_before(self.keys, self.at, wanted, closes, _ON_CHANNEL)
        on_any = last_before(self.keys, self.at, wanted, closes, _ON_ANY)
        other = np.where(on_any >= 0, self._on_other_channels()[on_any], -1)
        other[_at(self.at, other) < gap] = -1
        on_any[self._in_reach(other, wanted[:, _ORDER]) >= 0] = -1
        found = np.where(word >= 0, np.where(of_channel, on_channel, on_any), -1)
        wanted[:, _WORD] = _CUT
        cuts = [last_before(self.keys, self.at, wanted, closes, columns) for columns in (_ON_CHANNEL, _ON_ANY)]
        cut = _at(self.at, np.where(of_channel, *cuts))
        found[_at(self.at, found) < np.maximum(gap, cut)] = -1
        return self._in_reach(found, wanted[:, _ORDER])

    def _on_other_channels(self) -> Any:
        """Return for each request the last of its method before it on another channel, -1 for none; and one more -1."""
        keys = self.keys
        order = np.lexsort((self.at, *keys[:, _ON_ANY].T[::-1]))
        same = np.all(keys[order[1:]][:, _ON_ANY] == keys[order[:-1]][:, _ON_ANY], axis=1)
        moved = keys[order[1:], _CHANNEL] != keys[order[:-1], _CHANNEL]
        place = np.arange(len(order))
        # Where a method begins, and where the channel changes: what lies just before that.
        begin = np.maximum.accumulate(np.where(np.append(True, ~same)[: len(order)], place, 0))
        change = np.maximum.accumulate(np.where(np.append(False, same & moved)[: len(order)], place, 0))
        result = np.full(len(order) + 1, -1)
        result[order] = np.where(change > begin, order[np.maximum(change, 1) - 1], -1)
        return result

    def _in_reach(self, found: Any, order: Any) -> Any:
        """Return these rows, with -1 for those more than REACH frames back."""
        if not len(self.keys):
            return found
        return np.where((found >= 0) & (self.keys[found, _ORDER] >= order - REACH), found, -1)

    def declared(self, requests: Any) -> Any:
        """Return the last queue.declare-ok on the channel before each of these requests, -1 where it is unknown."""
        wanted, before = self.keys[requests], self.at[requests]
        wanted[:, _SIDE] = 1 - wanted[:, _SIDE]
        means = wanted[:, _WORD] != _DECLARE
        wanted[:, _WORD] = _DECLARED
        found = last_before(self.keys, self.at, wanted, before, _ON_CHANNEL)
        gap = last_before(self.gap_keys, self.gaps, wanted, before, _OF_SIDE)
        known = means & (_at(self.at, found) > _at(self.gaps, gap))
        return self._in_reach(np.where(known, found, -1), wanted[:, _ORDER])


def _named(class_id: int, method_id: int) -> str | None:
    """Return the name of a method by its ids; None where a close names none (0)."""
    if class_id == method_id == 0:
        return None
    return _METHODS.get((class_id, method_id), f"{class_id}.{method_id}")


def _at(positions: Any, places: Any) -> Any:
    """Return the positions of these places; for -1 one before all."""
    before = np.full(len(places), np.iinfo(np.int64).min)
    return np.where(places < 0, before, positions[places]) if len(positions) else before
