"""Connections at random, with frames that are lost, of which it is known who answered whom."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from tests.pipelines.scenario import TICK, Connection

ANSWERS = {
    "basic.get": "basic.get-empty", "queue.bind": "queue.bind-ok", "queue.declare": "queue.declare-ok",
    "basic.consume": "basic.consume-ok", "basic.qos": "basic.qos-ok",
}  # fmt: skip


@dataclass
class Sent:
    """A frame as it was sent; `answers` is the frame that it answers."""

    from_client: bool
    columns: dict[str, Any]
    answers: Sent | None = None
    number: int | None = None
    """In the capture; None where it was lost."""


@dataclass
class MadeConnection:
    """What was sent, and how many requests may be open at once."""

    chance: random.Random
    at_once: int
    kinds: list[str]
    channels: int = 3
    sent: list[Sent] = field(default_factory=list)

    def talk(self, rounds: int) -> MadeConnection:
        open_: dict[int, list[Sent]] = {channel: [] for channel in range(1, self.channels + 1)}
        if self.at_once == 1:
            for _ in range(2):
                self.answer(self.ask(9, "basic.qos"))
        for _ in range(rounds):
            channel = self.chance.randint(1, self.channels)
            waiting = open_[channel]
            burst = self.chance.randint(2, self.at_once) if self.at_once > 1 else 1
            if not waiting:
                for _ in range(burst):
                    waiting.append(self.ask(channel, self.chance.choice(self.kinds)))
            elif self.at_once > 1 and self.chance.random() < 0.3 and len(waiting) < 2 * self.at_once:
                waiting.append(self.ask(channel, self.chance.choice(self.kinds)))
            else:
                for _ in range(self.chance.randint(1, len(waiting))):
                    kind = self.chance.choice(waiting).columns["method"]  # in their order among those of their kind
                    first = next(each for each in waiting if each.columns["method"] == kind)
                    waiting.remove(first)
                    self.answer(first)
            if self.chance.random() < 0.2:
                self.sent.append(Sent(self.chance.random() < 0.5, {"frame_type": "heartbeat", "channel": 0}))
        return self

    def ask(self, channel: int, kind: str) -> Sent:
        columns: dict[str, Any] = {"method": kind, "channel": channel}
        if kind == "queue.declare":
            columns["queue"] = self.chance.choice(["a", "b", "c", ""])
        if kind == "basic.consume":
            columns["consumer_tag"] = self.chance.choice([f"tag {len(self.sent)}", ""])
        self.sent.append(Sent(True, columns))
        return self.sent[-1]

    def answer(self, request: Sent) -> None:
        columns = {"method": ANSWERS[request.columns["method"]], "channel": request.columns["channel"]}
        for name in ("queue", "consumer_tag"):
            if name in request.columns:
                columns[name] = request.columns[name] or f"made up {len(self.sent)}"
        self.sent.append(Sent(False, columns, request))

    def captured(self, losing: float, at_once: int = 3, sides: tuple[bool, ...] = (True, False)) -> Connection:
        """A capture that lacks some of it: a gap now and then, of up to so many frames of a direction."""
        c = Connection()
        lacks = {True: 0, False: 0}
        lost = {True: False, False: False}
        for each in self.sent:
            side = each.from_client
            if not lacks[side] and side in sides and self.chance.random() < losing:
                lacks[side] = self.chance.randint(1, at_once)
            if lacks[side]:
                lacks[side] -= 1
                lost[side] = True
                continue
            if lost[side]:
                c.lose(side)
                lost[side] = False
            each.number = c.frame(side, **each.columns)
        return c

    def judged(self, rows: list[dict[str, Any]]) -> tuple[int, int, int]:
        """Rows with the answer that is theirs, those that lack it though it was captured, and those with another."""
        theirs = {each.answers.number: each.number for each in self.sent if each.answers}
        right = wrong = lacking = 0
        for row in rows:
            own = theirs.get(row["request_frame_no"])
            if row["response_frame_no"] is None:
                lacking += own is not None
                assert own is None or row["ended_by"] == "gap", row
            elif row["response_frame_no"] == own:
                right += 1
                assert row["latency_ns"] == (own - row["request_frame_no"]) * TICK
            else:
                wrong += 1
        assert len(rows) == sum(
            1 for each in self.sent if each.number is not None and each.columns.get("method") in ANSWERS
        )
        return right, lacking, wrong
