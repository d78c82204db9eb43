"""Who answered whom: confirms, settlements and requests, in plain loops over the rows of `frames()`."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice

from tests.reference.amqp import ALL_METHODS, ENDS, METHODS, Row, by_connection, messages, method_name, place

Epoch = tuple[int, int]  # channel and channel_epoch of one connection
NUMBERED = ("basic.ack", "basic.nack", "basic.reject")
CLOSES = ("channel.close", "connection.close")
ANSWERS = {
    method_name(method.name): {method_name(answer) for answer in method.valid_responses}
    for method in ALL_METHODS.values()
    if method.synchronous
}
PERCENTILES = {
    "p50_ns": (50, 100),
    "p90_ns": (90, 100),
    "p99_ns": (99, 100),
    "p999_ns": (999, 1000),
    "p9999_ns": (9999, 10000),
}


def epoch_of(row: Row) -> Epoch:
    """The channel and its epoch."""
    return row["channel"], row["channel_epoch"]


def _closes(frame: Row, epoch: Epoch) -> bool:
    """Whether a frame closes that channel, or all of them."""
    return frame["method"] == "connection.close" or (frame["method"] == "channel.close" and epoch_of(frame) == epoch)


def _ending(group: list[Row], message: Row) -> Row:
    """What kept a message from being answered, as `ended_by`, `end_ts_ns` and `end_frame_no`."""
    if cut_by := message.get("cut_by"):  # nobody waits for an answer to what is not whole
        why = "discarded" if cut_by == "sender" else cut_by
        return {"ended_by": why, "end_ts_ns": message["ts_ns"], "end_frame_no": message["frame_no"]}
    epoch = epoch_of(message)
    for frame in group:
        from_other_side = frame["from_client"] != message["from_client"]
        before = frame["frame_no"] < message["frame_no"]
        why = None
        if not before and from_other_side and _may_hide_an_answer(frame, message):
            why = "gap"
        elif _closes(frame, epoch):
            if not before:
                why = frame["method"].replace(".", "-")
            elif from_other_side:
                why = "discarded"
        if why:
            return {"ended_by": why, "end_ts_ns": frame["ts_ns"], "end_frame_no": frame["frame_no"]}
    fin_ts_ns, last_ts_ns = group[0]["fin_ts_ns"], group[0]["last_ts_ns"]
    if fin_ts_ns is not None:
        return {"ended_by": "connection-close", "end_ts_ns": fin_ts_ns, "end_frame_no": None}
    return {"ended_by": "capture-end", "end_ts_ns": last_ts_ns, "end_frame_no": None}


def _may_hide_an_answer(frame: Row, message: Row) -> bool:
    """Whether the answer may have been in the gap before a frame, or be the frame, which is not all there."""
    cut = frame["frame_type"] == "method" and frame["is_partial"] and epoch_of(frame) == epoch_of(message)
    unknown = frame["method"] is None or ("kind" in message and frame["method"] in NUMBERED and not frame["args"])
    return bool(frame["gap_before"] or (cut and unknown))


NOT_ENDED: Row = {"ended_by": None, "end_ts_ns": None, "end_frame_no": None}


def confirms(rows: list[Row]) -> list[Row]:
    """One row per publish with a `publish_seq`, by connection and number of its last frame."""
    return [row for group in by_connection(rows) for row in _confirms_of(group)]


def _confirms_of(group: list[Row]) -> list[Row]:
    contents = messages(group)
    publishes = [message for message in contents if message["kind"] == "publish" and message["from_client"]]
    reply_codes = _match_returns(publishes, [message for message in contents if message["kind"] == "return"])
    answers: dict[Epoch, _Answers] = {}
    for frame in group:
        if frame["method"] in ("basic.ack", "basic.nack") and not frame["from_client"] and frame["args"]:
            answers.setdefault(epoch_of(frame), _Answers()).add(frame)
    found = []
    for publish in publishes:
        if publish["publish_seq"] is None:
            continue
        row = place(publish) | {name: publish[name] for name in ("publish_seq", "exchange", "routing_key")}
        row |= {f"publish_{name}": publish[name] for name in ENDS}
        answer = answers.get(epoch_of(publish), _Answers()).to(publish)
        row |= {f"confirm_{name}": answer[name] if answer else None for name in ENDS}
        row["outcome"] = answer["method"].removeprefix("basic.") if answer else "none"
        row["multiple"] = answer["args"]["multiple"] if answer else None
        row["returned"] = publish["first_frame_no"] in reply_codes
        row["reply_code"] = reply_codes.get(publish["first_frame_no"])
        row |= NOT_ENDED if answer else _ending(group, publish)
        row["latency_ns"] = answer["ts_ns"] - publish["ts_ns"] if answer else None
        row["incomplete"] = publish["cut_by"] is not None
        found.append(row)
    return found


class _Answers:
    """The confirms a server sent on one channel epoch, in their order."""

    def __init__(self) -> None:
        self._single: dict[int, list[Row]] = {}  # by number
        self._multiple: list[Row] = []

    def add(self, frame: Row) -> None:
        if frame["args"]["multiple"]:
            self._multiple.append(frame)
        else:
            self._single.setdefault(frame["args"]["delivery_tag"], []).append(frame)

    def to(self, publish: Row) -> Row | None:
        """The earliest after the publish of a single answer for its number and a multiple answer for at least it."""
        number, sent = publish["publish_seq"], publish["frame_no"]
        behind = self._multiple[bisect_right(self._multiple, sent, key=lambda frame: frame["frame_no"]) :]
        candidates = [frame for frame in self._single.get(number, []) if frame["frame_no"] > sent][:1]
        candidates += list(islice((frame for frame in behind if frame["args"]["delivery_tag"] >= number), 1))
        return min(candidates, key=lambda frame: frame["frame_no"], default=None)


def _match_returns(publishes: list[Row], returns: list[Row]) -> dict[int, int]:
    """Reply codes by the `first_frame_no` of the publishes that came back."""
    waiting: dict[str, list[Row]] = {}
    for publish in sorted(publishes, key=lambda message: message["first_frame_no"]):
        if publish["mandatory"] and not publish["is_partial"]:
            waiting.setdefault(_likeness(publish), []).append(publish)
    reply_codes = {}
    for returned in returns:
        likes = waiting.get(_likeness(returned))
        if likes and not returned["is_partial"]:
            reply_codes[likes.pop(0)["first_frame_no"]] = returned["reply_code"]
    return reply_codes


def _likeness(message: Row) -> str:
    names = ("channel", "channel_epoch", "exchange", "routing_key", "properties", "headers", "body_size", "body_hash")
    return repr([message[name] for name in names])


@dataclass
class _Unsettled:
    """What a channel epoch knows of deliveries that are not settled."""

    outstanding: dict[int, Row] = field(default_factory=dict)  # by delivery tag
    transactional: bool = False
    open_work: list[tuple[Row, Row]] = field(default_factory=list)  # delivery and its answer, since the last commit
    under_way: list[list[tuple[Row, Row]]] = field(default_factory=list)  # of commits and rollbacks not yet answered
    recovering: bool = False
    closed_by_server: bool = False


def settlements(rows: list[Row]) -> list[Row]:
    """One row per delivery (of a consumer, or got), by connection and number of the delivery's last frame."""
    return [row for group in by_connection(rows) for row in _settlements_of(group)]


def _settlements_of(group: list[Row]) -> list[Row]:
    deliveries = {m["first_frame_no"]: m for m in messages(group) if m["kind"] in ("deliver", "get")}
    found: list[Row] = []
    states: dict[Epoch, _Unsettled] = {}
    for frame in group:
        state = states.setdefault(epoch_of(frame), _Unsettled())
        delivery = deliveries.get(frame["frame_no"])
        method = frame["method"]
        if delivery:
            row = _unsettled_row(delivery)
            found.append(row)
            if row["outcome"] != "auto":
                state.outstanding[delivery["delivery_tag"]] = row
        elif method in ("basic.ack", "basic.nack", "basic.reject") and frame["from_client"] and frame["args"]:
            if not state.recovering and not state.closed_by_server:
                _answer(state, frame)
        elif method == "tx.select":
            state.transactional = True
        elif method in ("tx.commit", "tx.rollback"):
            state.under_way.append(state.open_work)
            state.open_work = []
        elif method == "tx.commit-ok" and state.under_way:
            for row, answer in state.under_way.pop(0):
                _settle(row, answer, frame)
        elif method == "tx.rollback-ok" and state.under_way:
            for row, _ in state.under_way.pop(0):
                row |= {"ended_by": "rollback", "end_ts_ns": frame["ts_ns"], "end_frame_no": frame["frame_no"]}
                state.outstanding[row["delivery_tag"]] = row  # it can be settled anew
        elif method == "basic.recover":
            state.recovering = True
        elif method in ("basic.recover-ok", "basic.recover-async"):
            state.recovering = False
            for row in state.outstanding.values():
                if row["ended_by"] is None:
                    row |= {"ended_by": "recover", "end_ts_ns": frame["ts_ns"], "end_frame_no": frame["frame_no"]}
            state.outstanding.clear()
        elif method in CLOSES and not frame["from_client"]:
            for epoch, other in states.items():
                other.closed_by_server |= _closes(frame, epoch)
    by_last_frame = {message["frame_no"]: message for message in deliveries.values()}
    for row in found:
        if row["outcome"] == "none":
            if row["ended_by"] is None:
                row.update(_ending(group, by_last_frame[row["deliver_frame_no"]]))
            if row["order_frame_no"] is None:  # whether it had to be settled was not seen
                row["outcome"] = "unknown"
    return sorted(found, key=lambda row: row["deliver_frame_no"])


def _unsettled_row(delivery: Row) -> Row:
    names = ("kind", "consumer_tag", "queue", "delivery_tag", "order_frame_no")
    row = place(delivery) | {name: delivery[name] for name in names}
    row |= {f"deliver_{name}": delivery[name] for name in ENDS}
    row |= {f"settle_{name}": None for name in ENDS}
    row |= {"outcome": "auto" if delivery["no_ack"] else "none", "multiple": None, "requeue": None, "latency_ns": None}
    return row | NOT_ENDED | {"incomplete": delivery["cut_by"] is not None}


def _answer(state: _Unsettled, frame: Row) -> None:
    """A client's ack, nack or reject."""
    tag, multiple = frame["args"]["delivery_tag"], frame["args"].get("multiple", False)
    for number in list(state.outstanding):
        if number == tag or (multiple and (number < tag or tag == 0)):
            row = state.outstanding.pop(number)
            if state.transactional:
                state.open_work.append((row, frame))
            else:
                _settle(row, frame, frame)


def _settle(row: Row, answer: Row, effective: Row) -> None:
    """The answer says how, the effective frame (of a transaction: tx.commit-ok) when."""
    row |= NOT_ENDED
    row |= {f"settle_{name}": effective[name] for name in ENDS}
    row["outcome"] = answer["method"].removeprefix("basic.")
    row["multiple"] = answer["args"].get("multiple", False)
    row["requeue"] = answer["args"].get("requeue")
    row["latency_ns"] = effective["ts_ns"] - row["deliver_ts_ns"]


def rpcs(rows: list[Row]) -> list[Row]:
    """One row per synchronous request of either side that asks for an answer, by connection and `request_frame_no`."""
    return [row for group in by_connection(rows) for row in _rpcs_of(group)]


def _rpcs_of(group: list[Row]) -> list[Row]:
    found: list[Row] = []
    waiting: list[Row] = []
    for frame in group:
        method, from_client = frame["method"], frame["from_client"]
        for row in waiting:
            answered = row["from_client"] != from_client and epoch_of(row) == epoch_of(frame)
            if answered and method in ANSWERS[row["request"]]:
                _respond(row, frame, "ok", None)
                waiting.remove(row)
                break
        reply_code = frame["args"].get("reply_code")
        if method in CLOSES and reply_code not in (None, 200):
            refused = _refused(waiting, group, frame)
            if refused:
                _respond(refused, frame, "error", reply_code)
                waiting.remove(refused)
        if method in ANSWERS and not frame["args"].get("no_wait"):
            row = place(frame) | {"from_client": from_client, "request": method, "response": None}
            row |= {f"request_{name}": frame[name] for name in ENDS} | {"frame_no": frame["frame_no"]}
            row |= {f"response_{name}": None for name in ENDS}
            row |= {"latency_ns": None, "outcome": "none", "reply_code": None} | NOT_ENDED
            found.append(row)
            waiting.append(row)
    for row in waiting:
        row.update(_ending([frame for frame in group if _may_end(frame, row)], row))
    return found


def _may_end(frame: Row, request: Row) -> bool:
    """Closes that cross are both answered: only a close before it discards one, and none ends its wait."""
    return request["request"] not in CLOSES or frame["method"] not in CLOSES or frame["frame_no"] < request["frame_no"]


def _first_close(group: list[Row], epoch: Epoch, by_client: bool) -> Row:
    """What one side closed a channel epoch with; there must be such a frame."""
    return next(frame for frame in group if frame["from_client"] == by_client and _closes(frame, epoch))


def _refused(waiting: list[Row], group: list[Row], close: Row) -> Row | None:
    """The request that a close names by class and method: the oldest of the other side, where one channel has such."""
    named = METHODS.get(close["args"]["class_id"] << 16 | close["args"]["method_id"])
    oldest: dict[Epoch, Row] = {}
    for row in waiting:
        epoch = epoch_of(row)
        asked = row["request"] == named and row["from_client"] != close["from_client"] and _closes(close, epoch)
        if asked and _first_close(group, epoch, close["from_client"]) is close:
            oldest.setdefault(epoch, row)
    return next(iter(oldest.values())) if len(oldest) == 1 else None


def _respond(row: Row, frame: Row, outcome: str, reply_code: int | None) -> None:
    row |= {f"response_{name}": frame[name] for name in ENDS}
    row |= {"response": frame["method"], "outcome": outcome, "reply_code": reply_code}
    row["latency_ns"] = frame["ts_ns"] - row["request_ts_ns"]


def latency_summary(values: Iterable[int | None]) -> Row:
    """Exact percentiles of latencies: the smallest value that at least that share of all values does not exceed.

    None and negative values are left out. Without values `count` is 0 and the rest None.
    """
    ordered = sorted(value for value in values if value is not None and value >= 0)
    summary: Row = {"count": len(ordered)}
    for name, (part, whole) in PERCENTILES.items():
        rank = -(-len(ordered) * part // whole)  # rounded up
        summary[name] = ordered[max(rank, 1) - 1] if ordered else None
    summary["max_ns"] = ordered[-1] if ordered else None
    return summary
