"""The book a client keeps of what it sent and received, and the golden tables that follow from it.

It knows no frames: a client reports methods by name and in order. What became of a publish or a delivery is worked
out one message at a time, as an application would do it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import xxhash

from tests.captures.record import wire

# requests of clients that ask for an answer; each is answered by its name with -ok, but for basic.get
REQUESTS = {
    "connection.open", "connection.close", "connection.update-secret", "channel.open", "channel.close", "channel.flow",
    "exchange.declare", "exchange.delete", "exchange.bind", "exchange.unbind", "queue.declare", "queue.bind",
    "queue.unbind", "queue.purge", "queue.delete", "basic.qos", "basic.consume", "basic.cancel", "basic.get",
    "basic.recover", "confirm.select", "tx.select", "tx.commit", "tx.rollback",
}  # fmt: skip
DELIVERIES = {"basic.deliver": "deliver", "basic.get-ok": "get", "basic.return": "return", "basic.publish": "publish"}


def body_hash(body: bytes) -> int:
    """xxHash64 with seed 42 as a signed 64-bit number."""
    unsigned = xxhash.xxh64_intdigest(body, seed=42)
    return unsigned - (1 << 64) if unsigned >> 63 else unsigned


@dataclass
class Content:
    """A message as its sender or receiver sees it; `headers` are typed pairs, or None when the types are not known."""

    body: bytes
    properties: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Sizes, hash and properties, with headers in the typed spelling of `wire.as_json`."""
        plain: dict[str, Any] = {"body_size": len(self.body), "body_hash": body_hash(self.body)}
        plain["properties"] = {name: item for name, item in self.properties.items() if name != "headers"}
        if self.properties.get("headers") is not None:
            plain["headers"] = wire.table_as_json(self.properties["headers"])
        return plain


def _likeness(exchange: str, routing_key: str, content: Content) -> tuple[Any, ...]:
    """What a return has in common with its publish."""
    properties = sorted((name, item) for name, item in content.properties.items() if name != "headers")
    return exchange, routing_key, content.body, str(properties)


@dataclass
class _Channel:
    epoch: int = 0
    next_seq: int | None = None
    unconfirmed: dict[int, dict[str, Any]] = field(default_factory=dict)
    unreturned: list[tuple[dict[str, Any] | None, tuple[Any, ...]]] = field(default_factory=list)
    unsettled: dict[int, dict[str, Any]] = field(default_factory=dict)
    consumers: dict[str, dict[str, Any]] = field(default_factory=dict)
    consuming: list[dict[str, Any]] = field(default_factory=list)
    getting: list[dict[str, Any]] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    transactional: bool = False
    pending: dict[int, tuple[str, bool, bool | None]] = field(default_factory=dict)
    closed_by_other: bool = False
    stopped: dict[str, Any] | None = None


class Ledger:
    """The book of one connection.

    Args:
        client: the role's name, unique in its scenario.
        events: the scenario's log, shared by all its clients.
    """

    def __init__(self, client: str, events: list[dict[str, Any]]) -> None:
        self.client = client
        self.events = events
        self.confirms: list[dict[str, Any]] = []
        self.settlements: list[dict[str, Any]] = []
        self.messages: list[dict[str, Any]] = []
        self.rpcs: list[dict[str, Any]] = []
        self.flow_control: list[dict[str, Any]] = []
        self._channels: dict[int, _Channel] = {}
        self._blocked: dict[str, Any] | None = None

    def channel(self, number: int) -> _Channel:
        """The state of a channel, made when it is first asked for."""
        return self._channels.setdefault(number, _Channel())

    def sent(self, channel: int, method: str, content: Content | None = None, **arguments: Any) -> None:
        """The client has sent a method."""
        self._note("sent", channel, method, content, arguments)

    def told(self, channel: int, method: str, content: Content | None = None, **arguments: Any) -> None:
        """The client has been told a method."""
        self._note("told", channel, method, content, arguments)

    def _note(self, way: str, channel: int, method: str, content: Content | None, arguments: dict[str, Any]) -> None:
        event = {"t_ns": time.time_ns(), "client": self.client, "way": way, "channel": channel, "method": method}
        event |= {name: item for name, item in arguments.items() if isinstance(item, str | int | type(None))}
        if content is not None:
            event |= content.as_json()
        self.events.append(event)
        state = self.channel(channel)
        handler = getattr(self, f"_{way}_{method.replace('.', '_').replace('-', '_')}", None)
        if way == "sent" and method == "channel.open":
            self._forget(channel, "channel-close")
            state = self._channels[channel] = _Channel(epoch=state.epoch + 1)
        if way == "sent" and method in REQUESTS and not arguments.get("no_wait"):
            row = self._row(channel) | {"request": method, "response": None, "outcome": "none", "reply_code": None}
            self.rpcs.append(row)
            state.requests.append(row)
        elif way == "told":
            self._answer(state, method)
        if method in DELIVERIES and content is not None:
            self._message(way, channel, method, content, arguments)
        if handler:
            handler(channel, state, content, **arguments)

    def _row(self, channel: int) -> dict[str, Any]:
        return {"client": self.client, "channel": channel, "channel_epoch": self.channel(channel).epoch}

    def _answer(self, state: _Channel, method: str) -> None:
        for at, row in enumerate(state.requests):
            if method in (f"{row['request']}-ok", f"{row['request']}-empty"):
                row |= {"response": method, "outcome": "ok"}
                del state.requests[at]
                return

    def _message(self, way: str, channel: int, method: str, content: Content, arguments: dict[str, Any]) -> None:
        names = ("exchange", "routing_key", "consumer_tag", "delivery_tag", "redelivered", "mandatory")
        row = self._row(channel) | {"kind": DELIVERIES[method], "from_client": way == "sent"}
        row |= {name: arguments.get(name) for name in names}
        if method == "basic.publish":
            row["publish_seq"] = self.channel(channel).next_seq
        self.messages.append(row | content.as_json())

    # what a producer does and hears

    def _sent_confirm_select(self, channel: int, state: _Channel, _: None, **__: Any) -> None:
        if state.next_seq is None:
            state.next_seq = 1

    def _sent_basic_publish(
        self, channel: int, state: _Channel, content: Content, exchange: str = "", routing_key: str = "",
        mandatory: bool = False, **_: Any
    ) -> None:  # fmt: skip
        row = None
        if state.next_seq is not None:
            row = self._row(channel) | {
                "publish_seq": state.next_seq, "exchange": exchange, "routing_key": routing_key, "outcome": "none",
                "multiple": None, "returned": False, "reply_code": None,
                "ended_by": "discarded" if state.closed_by_other else None,
            }  # fmt: skip
            self.confirms.append(row)
            if state.closed_by_other:
                del row["reply_code"]
            else:
                state.unconfirmed[state.next_seq] = row
            state.next_seq += 1
        if mandatory:
            state.unreturned.append((row, _likeness(exchange, routing_key, content)))

    def _told_basic_return(
        self, channel: int, state: _Channel, content: Content, exchange: str = "", routing_key: str = "",
        reply_code: int | None = None, **_: Any
    ) -> None:  # fmt: skip
        wanted = _likeness(exchange, routing_key, content)
        for at, (row, key) in enumerate(state.unreturned):
            if key == wanted:
                if row is not None:
                    row |= {"returned": True, "reply_code": reply_code}
                del state.unreturned[at]
                return
        raise AssertionError(f"a return of what was never published: {wanted}")

    def _confirm(self, state: _Channel, outcome: str, tag: int, multiple: bool) -> None:
        for seq in [s for s in state.unconfirmed if s == tag or (multiple and (s <= tag or tag == 0))]:
            state.unconfirmed.pop(seq).update(outcome=outcome, multiple=multiple)

    def _told_basic_ack(
        self, channel: int, state: _Channel, _: None, delivery_tag: int = 0, multiple: bool = False, **__: Any
    ) -> None:
        self._confirm(state, "ack", delivery_tag, multiple)

    def _told_basic_nack(
        self, channel: int, state: _Channel, _: None, delivery_tag: int = 0, multiple: bool = False, **__: Any
    ) -> None:
        self._confirm(state, "nack", delivery_tag, multiple)

    # what a consumer does and hears

    def _sent_basic_consume(
        self, channel: int, state: _Channel, _: None, consumer_tag: str = "", queue: str = "", no_ack: bool = False,
        no_wait: bool = False, **__: Any
    ) -> None:  # fmt: skip
        order = {"queue": queue, "no_ack": no_ack}
        if consumer_tag:
            state.consumers[consumer_tag] = order
        state.consuming.append(order)

    def _told_basic_consume_ok(self, channel: int, state: _Channel, _: None, consumer_tag: str = "", **__: Any) -> None:
        state.consumers[consumer_tag] = state.consuming.pop(0)

    def _sent_basic_get(
        self, channel: int, state: _Channel, _: None, queue: str = "", no_ack: bool = False, **__: Any
    ) -> None:
        state.getting.append({"queue": queue, "no_ack": no_ack})

    def _told_basic_get_empty(self, channel: int, state: _Channel, _: None, **__: Any) -> None:
        state.getting.pop(0)

    def _told_basic_get_ok(
        self, channel: int, state: _Channel, content: Content, delivery_tag: int = 0, **_: Any
    ) -> None:
        self._deliver(channel, state, None, delivery_tag, state.getting.pop(0))

    def _told_basic_deliver(
        self, channel: int, state: _Channel, content: Content, consumer_tag: str = "", delivery_tag: int = 0, **_: Any
    ) -> None:
        self._deliver(channel, state, consumer_tag, delivery_tag, state.consumers.get(consumer_tag))

    def _deliver(
        self, channel: int, state: _Channel, consumer_tag: str | None, delivery_tag: int, order: dict[str, Any] | None
    ) -> None:
        self.messages[-1]["no_ack"] = order and order["no_ack"]
        row = self._row(channel) | {
            "consumer_tag": consumer_tag, "queue": order and order["queue"], "delivery_tag": delivery_tag,
            "outcome": "none", "multiple": None, "requeue": None, "ended_by": None,
        }  # fmt: skip
        self.settlements.append(row)
        if order is None:
            row["outcome"] = "unknown"
        elif order["no_ack"]:
            row["outcome"] = "auto"
            return
        state.unsettled[delivery_tag] = row

    def _settle(self, state: _Channel, outcome: str, tag: int, multiple: bool, requeue: bool | None) -> None:
        for number in [n for n in state.unsettled if n == tag or (multiple and (n <= tag or tag == 0))]:
            if state.transactional:
                state.pending.setdefault(number, (outcome, multiple, requeue))
            else:
                state.unsettled.pop(number).update(outcome=outcome, multiple=multiple, requeue=requeue)

    def _sent_basic_ack(
        self, channel: int, state: _Channel, _: None, delivery_tag: int = 0, multiple: bool = False, **__: Any
    ) -> None:
        self._settle(state, "ack", delivery_tag, multiple, None)

    def _sent_basic_nack(
        self, channel: int, state: _Channel, _: None, delivery_tag: int = 0, multiple: bool = False,
        requeue: bool = True, **__: Any
    ) -> None:  # fmt: skip
        self._settle(state, "nack", delivery_tag, multiple, requeue)

    def _sent_basic_reject(
        self, channel: int, state: _Channel, _: None, delivery_tag: int = 0, requeue: bool = True, **__: Any
    ) -> None:
        self._settle(state, "reject", delivery_tag, False, requeue)

    def _sent_basic_recover(self, channel: int, state: _Channel, _: None, **__: Any) -> None:
        self._end(state.unsettled, "recover")

    def _sent_basic_recover_async(self, channel: int, state: _Channel, _: None, **__: Any) -> None:
        self._end(state.unsettled, "recover")

    def _told_tx_select_ok(self, channel: int, state: _Channel, _: None, **__: Any) -> None:
        state.transactional = True

    def _told_tx_commit_ok(self, channel: int, state: _Channel, _: None, **__: Any) -> None:
        for number, (outcome, multiple, requeue) in state.pending.items():
            row = state.unsettled.pop(number)
            row |= {"outcome": outcome, "multiple": multiple, "requeue": requeue, "ended_by": None}
        state.pending.clear()

    def _told_tx_rollback_ok(self, channel: int, state: _Channel, _: None, **__: Any) -> None:
        for number in state.pending:
            state.unsettled[number]["ended_by"] = "rollback"
        state.pending.clear()

    # ends and stops

    def _told_channel_close(
        self, channel: int, state: _Channel, _: None, reply_code: int = 0, class_id: int = 0, method_id: int = 0,
        **__: Any
    ) -> None:  # fmt: skip
        for row in state.unconfirmed.values():
            row.pop("reply_code", None)  # whether the close's own code stands here is not for the client to say
        self._forget(channel, "channel-close")
        state.closed_by_other = True

    def _sent_channel_close_ok(self, channel: int, state: _Channel, _: None, **__: Any) -> None:
        state.closed_by_other = False
        state.next_seq = None

    def _sent_channel_close(self, channel: int, _: _Channel, __: None, **___: Any) -> None:
        self._forget(channel, "channel-close")

    def _told_channel_close_ok(self, channel: int, state: _Channel, _: None, **__: Any) -> None:
        state.next_seq = None

    def _sent_connection_close(self, *_: Any, **__: Any) -> None:
        self.close("connection-close")

    def _told_connection_close(self, *_: Any, **__: Any) -> None:
        self.close("connection-close")

    def _told_connection_blocked(self, channel: int, _: _Channel, __: None, **___: Any) -> None:
        if self._blocked is None:
            self._blocked = self._row(0) | {"consumer_tag": None, "cause": "connection-blocked", "evidence": "proven"}
            self._blocked |= {"start_ns": time.time_ns(), "end_ns": None}
            self.flow_control.append(self._blocked)

    def _told_connection_unblocked(self, channel: int, _: _Channel, __: None, **___: Any) -> None:
        if self._blocked is not None:
            self._blocked["end_ns"] = time.time_ns()
            self._blocked = None

    def _told_channel_flow(self, channel: int, state: _Channel, _: None, active: bool = True, **__: Any) -> None:
        if not active and state.stopped is None:
            state.stopped = self._row(channel) | {"consumer_tag": None, "cause": "channel-flow", "evidence": "proven"}
            state.stopped |= {"start_ns": time.time_ns(), "end_ns": None}
            self.flow_control.append(state.stopped)
        elif active and state.stopped is not None:
            state.stopped["end_ns"] = time.time_ns()
            state.stopped = None

    def waited(self, channel: int, consumer_tag: str | None, start: dict[str, Any], end: dict[str, Any] | None) -> None:
        """A prefetch window was full from one event to another: said by the scenario, which held the acks back."""
        row = self._row(channel) | {"consumer_tag": consumer_tag, "cause": "prefetch", "start_ns": start["t_ns"]}
        self.flow_control.append(row | {"end_ns": end and end["t_ns"]})

    def failed(self, channel: int, request: str, reply_code: int) -> None:
        """A request was answered by the other side's close: said by the scenario, which knows which one it was."""
        for row in self.channel(channel).requests:
            if row["request"] == request:
                row |= {"outcome": "error", "reply_code": reply_code}
                self.channel(channel).requests.remove(row)
                return
        raise AssertionError(f"no {request} is waiting on channel {channel}")

    def _end(self, rows: dict[int, dict[str, Any]], why: str) -> None:
        for row in rows.values():
            row["ended_by"] = row["ended_by"] or why
        rows.clear()

    def _forget(self, channel: int, why: str) -> None:
        state = self.channel(channel)
        self._end(state.unconfirmed, why)
        self._end(state.unsettled, why)

    def close(self, why: str = "capture-end") -> None:
        """What is still open ends here: with the connection, or with the capture."""
        for number in self._channels:
            self._forget(number, why)
        for row in self.settlements:
            if row["outcome"] == "unknown":
                row.pop("ended_by", None)
