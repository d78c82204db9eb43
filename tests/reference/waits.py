"""Who was held back, by what and how long: `flow_control()` over the rows of `frames()`."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.reference.amqp import Row, by_connection, place
from tests.reference.pairs import Epoch, epoch_of, settlements

SOON_NS = 1_000_000
NOT_IMPLEMENTED = 540
STOPS = {
    ("connection.blocked", None): ("connection-blocked", True),
    ("connection.unblocked", None): ("connection-blocked", False),
    ("channel.flow", False): ("channel-flow", True),
    ("channel.flow", True): ("channel-flow", False),
}


def flow_control(rows: list[Row]) -> list[Row]:
    """One row per interval, by connection and `start_frame_no`.

    `side` is the side that makes the other wait. What is still going on when the capture ends has no `end_ts_ns`.
    """
    found = []
    for group in by_connection(rows):
        intervals = _stops_of(group) + _full_windows_of(group)
        fin_ts_ns = group[0]["fin_ts_ns"]
        for row in intervals:
            if row["end_ts_ns"] is None and fin_ts_ns is not None:
                row["end_ts_ns"] = fin_ts_ns
            row["duration_ns"] = None if row["end_ts_ns"] is None else row["end_ts_ns"] - row["start_ts_ns"]
        found += sorted(intervals, key=lambda row: (row["start_frame_no"], row["consumer_tag"] or ""))
    return found


def _interval(frame: Row, cause: str, from_client: bool, consumer_tag: str | None, evidence: str) -> Row:
    row = place(frame) | {"consumer_tag": consumer_tag, "cause": cause, "side": "client" if from_client else "server"}
    row |= {"start_ts_ns": frame["ts_ns"], "start_frame_no": frame["frame_no"]}
    return row | {"end_ts_ns": None, "end_frame_no": None, "duration_ns": None, "evidence": evidence}


def _end(row: Row, frame: Row) -> None:
    row |= {"end_ts_ns": frame["ts_ns"], "end_frame_no": frame["frame_no"]}


def _stops_of(group: list[Row]) -> list[Row]:
    """connection.blocked and channel.flow, until they are taken back or nothing is left to wait for."""
    found: list[Row] = []
    going_on: dict[tuple[Epoch, str, bool], Row] = {}
    for frame in group:
        cause, begins = STOPS.get((frame["method"], frame["args"].get("active")), (None, False))
        if cause:
            key = (epoch_of(frame), cause, frame["from_client"])
            if begins and key not in going_on:
                going_on[key] = _interval(frame, cause, frame["from_client"], None, "proven")
                found.append(going_on[key])
            elif not begins and key in going_on:
                _end(going_on.pop(key), frame)
        refused = frame["method"] == "connection.close" and frame["args"].get("reply_code") == NOT_IMPLEMENTED
        for key in list(going_on):
            if refused and key[1] == "channel-flow" and key[2] != frame["from_client"]:
                found.remove(going_on.pop(key))  # the broker does not do it
            elif frame["method"] == "connection.close" and frame["from_client"] and key[1:] == ("channel-flow", True):
                found.remove(going_on.pop(key))  # nobody knows that the broker would have done it
            elif _is_over(frame, key[0]):
                _end(going_on.pop(key), frame)
    return found


def _is_over(frame: Row, epoch: Epoch) -> bool:
    return frame["method"] == "connection.close" or (frame["method"] == "channel.close" and epoch_of(frame) == epoch)


@dataclass
class _Window:
    """Deliveries that may be unsettled at once: of one consumer, or (tag None) of all consumers of a channel."""

    consumer_tag: str | None
    limit: int = 0  # 0: no limit
    unsettled: set[int] = field(default_factory=set)
    full: Row | None = None
    opened: Row | None = None  # the interval that an acknowledgement ended, until a delivery follows

    def update(self, frame: Row, found: list[Row]) -> None:
        """Begin or end an interval after something has changed."""
        is_full = self.limit > 0 and len(self.unsettled) >= self.limit
        if is_full and self.full is None:
            self.full = _interval(frame, "prefetch", True, self.consumer_tag, "possible")
            found.append(self.full)
        elif not is_full and self.full is not None:
            _end(self.full, frame)
            self.full = None

    def delivered(self, frame: Row, tag: int, found: list[Row]) -> None:
        """A delivery shows that the broker had waited, when it follows soon enough."""
        soon_ns = max(SOON_NS, 2 * (frame["rtt_ns"] or 0))
        if self.opened and frame["ts_ns"] - self.opened["end_ts_ns"] <= soon_ns:
            self.opened["evidence"] = "proven"
        self.opened = None
        self.unsettled.add(tag)
        self.update(frame, found)

    def settled(self, frame: Row, tags: set[int], found: list[Row]) -> None:
        """Deliveries were settled, all by one frame."""
        was_full = self.full
        self.unsettled -= tags
        self.update(frame, found)
        if was_full and self.full is None:
            self.opened = was_full

    def close(self, frame: Row) -> None:
        """Nobody waits any more."""
        if self.full is not None:
            _end(self.full, frame)
        self.full, self.limit = None, 0


def _full_windows_of(group: list[Row]) -> list[Row]:
    found: list[Row] = []
    delivered: dict[int, Row] = {}
    settled: dict[int, list[Row]] = {}
    for row in settlements(group):
        if row["kind"] == "deliver" and row["outcome"] not in ("auto", "unknown"):
            delivered[row["deliver_frame_no"]] = row
            released = row["settle_frame_no"]
            if row["ended_by"] == "recover":
                released = row["end_frame_no"]
            if released is not None:
                settled.setdefault(released, []).append(row)
    limits: dict[Epoch, int] = {}  # for consumers begun from now on
    limit_of_consume: dict[int, int] = {}
    channels: dict[Epoch, _Window] = {}
    consumers: dict[Epoch, dict[int | None, _Window]] = {}  # by the frame of their consume
    for frame in group:
        epoch = epoch_of(frame)
        whole = channels.setdefault(epoch, _Window(None))
        single = consumers.setdefault(epoch, {})
        if frame["method"] == "basic.qos" and frame["args"]:
            if frame["args"]["global"]:
                whole.limit = frame["args"]["prefetch_count"]
                whole.update(frame, found)
            else:
                limits[epoch] = frame["args"]["prefetch_count"]
        elif frame["method"] == "basic.consume":
            limit_of_consume[frame["frame_no"]] = limits.get(epoch, 0)
        elif frame["method"] == "basic.cancel" and frame["args"]:
            for window in single.values():
                if window.consumer_tag == frame["args"]["consumer_tag"]:
                    window.close(frame)
        for other, window in channels.items():
            if _is_over(frame, other):
                window.close(frame)
                for window_of_consumer in consumers[other].values():
                    window_of_consumer.close(frame)
        if frame["frame_no"] in delivered:
            row = delivered[frame["frame_no"]]
            consume = row["order_frame_no"]
            if consume not in single:
                single[consume] = _Window(row["consumer_tag"], limit_of_consume.get(consume, 0))
            single[consume].delivered(frame, row["delivery_tag"], found)
            whole.delivered(frame, row["delivery_tag"], found)
        if frame["frame_no"] in settled:
            tags = {row["delivery_tag"] for row in settled[frame["frame_no"]]}
            for window in (whole, *single.values()):
                window.settled(frame, tags, found)
    return found
