"""A simulated path.

A side writes, its window lets so much be under way, the link lets so many bytes a second through, each way takes its
time, and the receiver acknowledges each second segment. The capture is made at one of its ends.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from tests.dissector.builders import Packet
from tests.dissector.wire import CLIENT, T0, Tape, deliver, handshake, opening, publish

MS = 1_000_000
SEGMENT = 1448
BEAT = b"\x08\0\0\0\0\0\0\xce"
PUBLISHED, DELIVERED = (b"".join(made) for made in (publish(b"d" * 2_000_000), deliver(1, b"d" * 2_000_000)))
Delay = Callable[[float], float]
"""How long one way takes (ms), by the time (ms) at which a packet sets out."""


@dataclass
class NetworkPath:
    """What a side sends, through what; times in ms.

    Attributes:
        writes: when it writes, and how many bytes.
        rate: bytes a second that the link lets through.
        delay: of one way.
        window: bytes that may be under way.
        segment: bytes of a segment, of the sender's.
        answers: the receiver answers each so many bytes with a few bytes of its own; 0: never.
        at_sender: where the capture is made.
        answered: how long the receiver of a SYN takes; negative: a device on the path answers it.
    """

    writes: list[tuple[float, int]]
    rate: float = 100_000
    delay: Delay = lambda _: 10.0
    window: int = 64_000
    segment: int = SEGMENT
    answers: int = 4_000
    at_sender: bool = True
    side: int = CLIENT
    seen: list[tuple[float, int, int, bytes, int]] = field(default_factory=list)

    def packets(self, syn_ms: float | None = None) -> list[Packet]:
        """The packets of the capture: a handshake and a few requests, then what is written."""
        near, far = (self.side, 1 - self.side) if self.at_sender else (1 - self.side, self.side)
        self._talk()
        trip = 2 * self.delay(0)
        tape = Tape()
        at = [0.0, trip if syn_ms is None else syn_ms]
        at = [at[0], at[1] if near == CLIENT else 0.01, at[1] if near == CLIENT else at[1] + 0.01]
        now = at[-1] + 1
        for side, data in (*handshake(), *opening(1)):
            now += trip if side == far else 0.1
            tape.send(side, data)
            at.append(now)
        first = now + 1
        base = dict(enumerate(tape.next))
        for ts, side, pos, data, acked in sorted(self.seen, key=lambda one: one[0]):
            tape.segment(side, data, seq=base[side] + pos, ack=base[1 - side] + acked)
            at.append(first + ts)
        return [replace(each, ts_ns=T0 + int(ms * MS)) for each, ms in zip(tape.packets, at, strict=True)]

    def _talk(self) -> None:
        """Let time pass: `seen` becomes what the capture sees."""
        number, free, other_free = count(), 0.0, 0.0
        written = sent = acked = got = answered = owed = 0
        answers_acked = 0
        line: list[tuple[float, int, str, Any]] = [(ms, next(number), "write", size) for ms, size in self.writes]
        heapq.heapify(line)
        while line:
            now, _, what, value = heapq.heappop(line)
            if what == "write":
                written += value
            elif what == "data":
                pos, size, known = value
                self._see(now, at_sender=False, side=self.side, pos=pos, data=self._data(pos, size), acked=known)
                got, owed = pos + size, owed + 1
                while self.answers and got - answered * self.answers >= self.answers:
                    answered += 1
                    line_free = max(other_free, now)
                    self._reply(line, number, line_free, (answered - 1) * len(BEAT), BEAT, got)
                    owed = 0
                if owed >= 2:
                    self._reply(line, number, now, answered * len(BEAT), b"", got)
                    owed = 0
                elif owed:
                    heapq.heappush(line, (now + 40, next(number), "timer", got))
            elif what == "timer" and owed and value == got:
                self._reply(line, number, now, answered * len(BEAT), b"", got)
                owed = 0
            elif what == "reply":
                pos, data, upto = value
                acked, answers_acked = max(acked, upto), pos + len(data)
                self._see(now, at_sender=True, side=1 - self.side, pos=pos, data=data, acked=upto)
                if data and sent == written:  # nothing goes with which the acknowledgement could go
                    free = self._set_out(line, number, now, free, sent, b"", answers_acked)
            while sent < min(written, acked + self.window):
                size = min(self.segment, written - sent, max(acked + self.window - sent, 1))
                free = self._set_out(line, number, now, free, sent, self._data(sent, size), answers_acked)
                sent += size

    def _set_out(
        self, line: list[Any], number: Iterator[int], now: float, free: float, pos: int, data: bytes, acked: int
    ) -> float:
        self._see(now, at_sender=True, side=self.side, pos=pos, data=data, acked=acked)
        for begin in range(0, max(len(data), 1), SEGMENT):
            part = data[begin : begin + SEGMENT]
            free = max(free, now) + 1000 * (len(part) + 52) / self.rate
            arrives = free + self.delay(now)
            if part:
                heapq.heappush(line, (arrives, next(number), "data", (pos + begin, len(part), acked)))
            else:
                self._see(arrives, at_sender=False, side=self.side, pos=pos, data=b"", acked=acked)
        return free

    def _reply(self, line: list[Any], number: Iterator[int], now: float, pos: int, data: bytes, acked: int) -> None:
        self._see(now, at_sender=False, side=1 - self.side, pos=pos, data=data, acked=acked)
        heapq.heappush(line, (now + self.delay(now), next(number), "reply", (pos, data, acked)))

    def _data(self, pos: int, size: int) -> bytes:
        return (PUBLISHED if self.side == CLIENT else DELIVERED)[pos : pos + size]

    def _see(self, now: float, at_sender: bool, side: int, pos: int, data: bytes, acked: int) -> None:
        if at_sender == self.at_sender:
            self.seen.append((now, side, pos, data, acked))
