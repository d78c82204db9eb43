"""Connections of publishers of all kinds with a broker, and what captures have of them that miss a part."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from amqpscope.pipelines.amqp091.confirms.numbering_rules import QUIET_NS
from tests.pipelines.scenario import Connection

MS, S = 10**6, 10**9
HOLE_NS = S
"""So long the dissector waits for bytes that are missing (`amqpscope.dissector.tcp.order`)."""


@dataclass
class Event:
    """A publish of this number, or a confirm."""

    ts_ns: int
    number: int
    is_publish: bool
    multiple: bool = False
    negative: bool = False
    counter: bool = False
    """The client put the number into a header."""


@dataclass
class MadeConnection:
    """What was sent, in the order of time; the client is one of `CLIENTS`."""

    client: str
    events: list[Event] = field(default_factory=list)

    def answer(self, number: int) -> Event | None:
        """What confirms this publish."""
        sent = next(e for e in self.events if e.is_publish and e.number == number)
        answers = [e for e in self.events if not e.is_publish and e.ts_ns >= sent.ts_ns]
        answers = [e for e in answers if e.number == number or (e.multiple and e.number > number)]
        return min(answers, key=lambda e: e.ts_ns, default=None)


CLIENTS = {
    # publishes under way at most, publishes of a batch that is waited for, pause between publishes (least, most)
    "waits for each": (1, 0, (0, 3 * MS)),
    "waits for each, slowly": (1, 0, (0, 4 * S)),
    "waits for batches": (99, 8, (0, MS)),
    "steady window": (5, 0, (0, 0)),
    "window": (12, 0, (0, 3 * MS)),
    "does not wait": (1000, 0, (0, 40 * MS)),
    "periodic": (1000, 0, (1500 * MS, 1500 * MS)),
}


BROKERS = [(100_000, MS), (MS, 20 * MS), (50 * MS, 200 * MS), (1600 * MS, 10 * MS), (2 * S, 6 * S)]
"""The least time to a confirm, and how much more it may be."""


def made_connection(
    rnd: random.Random, client: str, publishes: tuple[int, int] = (10, 60), changes: bool = False
) -> MadeConnection:
    """Publishes as this client sends them, and the answers of a broker that takes less than `QUIET_NS` for each.

    `changes`: at one place the broker becomes slower or faster, and its answers may come in another order.
    """
    window, batch, between = CLIENTS[client]
    base, spread = rnd.choice(BROKERS)
    tick = rnd.choice([1, MS, 20 * MS])
    in_order = rnd.random() < 0.6
    sent: list[int] = []
    answered: list[int] = []
    now = rnd.randrange(S)
    total = rnd.randint(*publishes)
    change = rnd.randrange(total) if changes else total
    for number in range(1, total):
        if number == change:
            base, spread = rnd.choice(BROKERS)
            in_order = rnd.random() < 0.6
        now += rnd.randint(*between)
        if len(sent) >= window:
            now = max(now, sorted(answered)[len(sent) - window] + rnd.randint(1, 50_000))
        if batch and number % batch == 1 and answered:
            now = max(now, max(answered) + rnd.randint(1, 50_000))
        if rnd.random() < 0.05:
            now += rnd.choice([rnd.randrange(5 * S), rnd.randint(QUIET_NS, 8 * QUIET_NS)])
        at = now + base + rnd.randrange(spread)
        at = max(at, answered[-1]) if in_order and answered else at
        answered.append(min(-(-at // tick) * tick, now + QUIET_NS - 1))
        sent.append(now)
    made = MadeConnection(client)
    counter = rnd.random() < 0.1
    made.events = [Event(ts, number, True, counter=counter) for number, ts in enumerate(sent, 1)]
    for at in sorted(set(answered)):
        # as RabbitMQ groups them: `multiple` up to what is still under way, the others alone
        group = [number for number, ts in enumerate(answered, 1) if ts == at]
        waiting = [n for n, (ts, begun) in enumerate(zip(answered, sent, strict=True), 1) if ts > at >= begun]
        below = [number for number in group if not waiting or number < waiting[0]] if len(group) > 1 else []
        if below:
            made.events.append(Event(at, below[-1], False, multiple=True))
        for number in group[len(below) :]:
            made.events.append(Event(at, number, False, negative=rnd.random() < 0.1))
    made.events.sort(key=lambda event: (event.ts_ns, not event.is_publish))
    return made


@dataclass
class Seen:
    """What a capture has of a connection: its tables, the publishes by their frames, whether it has all answers."""

    connection: Connection
    publishes: dict[int, Event]
    all_answers: bool


def damaged(rnd: random.Random, made: MadeConnection, begins_late: float = 0.6) -> Seen:
    """A capture that begins in the middle (with this chance), or misses packets, or both; it may end early."""
    events = made.events
    late = rnd.random() < begins_late
    begin = rnd.randrange(len(events) // 2) if late else 0
    stop = len(events) if rnd.random() < 0.5 else rnd.randrange(begin + 1, len(events) + 1)
    last_ns = events[stop - 1].ts_ns + rnd.choice([0, rnd.randrange(2 * S), rnd.randrange(60 * S)])
    if stop < len(events):
        last_ns = min(last_ns, events[stop].ts_ns)
    lost = _lost(rnd, events, rnd.randint(0 if late else 1, 3))
    seen = Seen(Connection(last_ts_ns=last_ns), {}, all(events[i].is_publish for i in lost))
    counted, epoch = not late, 0 if late else 1
    for read_ns, event, side in _read(rnd, events, begin, stop, lost):
        if event is None:
            seen.connection.lose(from_client=side)
            seen.connection.anomalies[-1]["ts_ns"] = read_ns
            counted = counted and not side
        elif side:
            frame = seen.connection.publish(
                event.number if counted else None,
                publish_seq_unsure=not counted,
                epoch=epoch,
                ts_ns=read_ns,
                first_ts_ns=event.ts_ns,
                headers=f'{{"publishId":"{event.number}"}}' if event.counter else None,
            )
            seen.publishes[frame] = event
        else:
            answer = seen.connection.nack if event.negative else seen.connection.ack
            answer(event.number, event.multiple, ts_ns=read_ns, epoch=epoch)
    return seen


def _lost(rnd: random.Random, events: list[Event], gaps: int) -> set[int]:
    """Places of events that the capture misses: some publishes in a row, so many times, and now and then answers."""
    publishes = [i for i, event in enumerate(events) if event.is_publish]
    lost: set[int] = set()
    for _ in range(gaps):
        first = rnd.randrange(len(publishes))
        lost |= set(publishes[first : first + rnd.randint(1, 3)])
    if rnd.random() < 0.3:
        lost |= {i for i, event in enumerate(events) if not event.is_publish and rnd.random() < 0.1}
    return lost


def _read(
    rnd: random.Random, events: list[Event], begin: int, stop: int, lost: set[int]
) -> list[tuple[int, Event | None, bool]]:
    """Events and gaps (None) in the order in which they are read, with the time, and whether of the client.

    After a gap bytes of that direction may wait until it is certain that it will not be filled.
    """
    placed: list[tuple[int, int, Event | None, bool]] = []
    until, gap = {True: -1, False: -1}, {True: False, False: False}
    for place, event in enumerate(events[begin:stop], begin):
        side = event.is_publish
        if place in lost:
            gap[side] = True
            continue
        if gap[side]:
            gap[side] = False
            if until[side] < event.ts_ns:
                until[side] = event.ts_ns + rnd.choice([0, HOLE_NS])
            placed.append((until[side], place, None, side))
        placed.append((max(event.ts_ns, until[side]), place, event, side))
    return [(read_ns, event, side) for read_ns, _, event, side in sorted(placed, key=lambda each: each[:2])]
