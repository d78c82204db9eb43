"""Numbers derived from confirms: by hand, and for connections and recordings of which a part was taken away."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from amqpscope.pipelines.amqp091.confirms import deferred_events, numbering, numbering_log
from amqpscope.pipelines.amqp091.confirms.numbering_rules import EXPECTS, QUIET_NS
from amqpscope.pipelines.amqp091.confirms.numbers import Numbering
from amqpscope.pipelines.amqp091.frames import FRAMES
from amqpscope.pipelines.model.events import ANOMALIES, MESSAGES, Events
from amqpscope.pipelines.run import engine
from tests.captures.damage.ways import Capture, late, lossy
from tests.captures.damage.ways import numbered as with_numbers
from tests.dissector.builders import Packet
from tests.dissector.recordings import covered
from tests.dissector.runs import dissect_packets, rows
from tests.pipelines.made_connections import CLIENTS, MadeConnection, Seen, damaged, made_connection
from tests.pipelines.scenario import TICK, Connection, arrow

CASES = 140
RECORDED = (
    "pika_confirms", "many_confirms", "orders_pika", "orders_amqplib", "reject_publish", "mandatory_returns",
    "equal_returns", "second_confirm_select", "publish_before_confirm", "channel_reopened",
)  # fmt: skip
SEEDS = 2
SOURCES = ("connections", "anomalies", "amqp091_frames", "messages")
CHANNEL = ("connection_id", "channel", "channel_epoch")
ANSWER = ("delivery_tag", "multiple")
GAPS = ("tcp-gap", "bytes-skipped", "frame-type-unknown", "frame-too-large", "frame-end-wrong", "header-unknown")
Row = dict[str, Any]


def numbered(
    tables: dict[str, pa.Table], size: int = engine.BATCH, compiled: bool = False, again: bool = False, **how: Any
) -> list[Events]:
    """What comes out of the stage; with `again` the state is taken out after each batch, and put back into another."""
    stage = Numbering(compiled, **how)
    found = []
    for batch in engine.batches(tables, [stage], size):
        found += stage.feed(batch)
        if again:
            state = stage.take_out()
            stage = Numbering(compiled, **how)
            stage.put_back(state)
    return [*found, *stage.finish()]


def rows_of(batches: Iterable[Events], source: int, *columns: str) -> list[Row]:
    """Rows of a source in the order of events, with these columns or all."""
    found: list[Row] = []
    for each in batches:
        if source in each.tables:
            rows = each.rows_of(source)
            found += (rows.select(columns) if columns else rows).to_pylist()
    return found


def confirms(batches: list[Events]) -> list[Row]:
    """Publishes that expect a confirm, and the first answer to each, where none that came before may be lost.

    Plain loops; of a publish without a number the answer is not known.
    """
    answers: dict[Any, list[Row]] = {}
    for row in rows_of(batches, FRAMES, *CHANNEL, "frame_no", "ts_ns", "method", "from_client", *ANSWER):
        if row["method"] in ("basic.ack", "basic.nack") and not row["from_client"] and row["delivery_tag"] is not None:
            answers.setdefault(tuple(row[name] for name in CHANNEL), []).append(row)
    lost: dict[int, list[int]] = {}
    for row in rows_of(batches, ANOMALIES):
        if not row["from_client"] and row["code"] in GAPS:
            lost.setdefault(row["connection_id"], []).append(row["frame_no"])
    found = []
    for row in rows_of(batches, MESSAGES):
        if row["kind"] != "publish" or row["number"] is None:
            continue
        if row["number"] == EXPECTS:
            assert row["publish_seq"] is None and row["numbered_by"] is None
            found.append(row | {"confirm_ts_ns": None, "latency_ns": None})
            continue
        number, sent = row["publish_seq"], row["frame_no"]
        gap = min((frame for frame in lost.get(row["connection_id"], ()) if frame > sent), default=1 << 62)
        after = (
            each
            for each in answers.get(tuple(row[name] for name in CHANNEL), ())
            if each["frame_no"] > sent
            and (
                each["delivery_tag"] >= number and each["frame_no"] < gap
                if each["multiple"]
                else each["delivery_tag"] == number
            )
        )
        answer = next(after, None)  # they are in order
        when = answer and answer["ts_ns"]
        timed = answer is not None and not row["unfinished"]
        latency = when - row["ts_ns"] if timed else None
        found.append(row | {"confirm_ts_ns": when, "latency_ns": latency})
    return found


# By hand: a connection, and for each row of `confirms` the number, how it is known, and the latency in ticks.

Wanted = list[tuple[int | None, str | None, int | None]]
UNKNOWN = (None, None, None)
"""A publish that expects a confirm of an unknown number."""
LONG = QUIET_NS // TICK


class Begun(Connection):
    """A connection whose beginning was not seen."""

    def send(self, **columns: Any) -> int:
        return self.publish(None, **({"publish_seq_unsure": True} | columns))

    def rest(self) -> None:
        """Nothing is sent for long."""
        self.waited = getattr(self, "waited", 0) + LONG

    def frame(self, *args: Any, **columns: Any) -> int:
        ts_ns = (len(self.frames) + getattr(self, "waited", 0)) * TICK
        return super().frame(*args, **({"ts_ns": ts_ns, "first_ts_ns": ts_ns} | columns))

    @property
    def end(self) -> int:
        return (len(self.frames) + getattr(self, "waited", 0)) * TICK


def waits_for_each() -> tuple[Connection, Wanted]:
    c = Begun()
    for number in (71, 72, 73):
        c.send()
        c.ack(number)
    return c, [UNKNOWN] * 3


def pauses_once() -> tuple[Connection, Wanted]:
    c = Begun()
    c.send()
    c.ack(71)
    c.rest()
    c.send()
    c.send()
    c.nack(73, True)
    c.send()
    return c, [(71, "proven", 1), (72, "proven", 4), (73, "proven", 1), (74, "proven", None)]


def pauses_at_the_end() -> tuple[Connection, Wanted]:
    c = Begun()
    c.send()
    c.ack(71)
    c.send()
    c.ack(72)
    c.rest()
    return c, [(71, "proven", 1), (72, "proven", 1)]


def pauses_with_some_under_way() -> tuple[Connection, Wanted]:
    """The pause is after an answer that does not give the largest bound."""
    c = Begun()
    c.send()
    c.send()
    c.ack(71)
    c.rest()
    c.ack(72)
    c.send()
    c.ack(73)
    return c, [UNKNOWN, UNKNOWN, UNKNOWN]


def stalls_while_one_is_under_way() -> tuple[Connection, Wanted]:
    """The broker takes long for once, and no other confirm tells of it."""
    c = Begun()
    c.send()
    c.send()
    c.ack(71)  # the first of both
    c.rest()
    c.send()
    c.send()
    return c, [UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN]


def others_may_follow_the_last() -> tuple[Connection, Wanted]:
    """The last answer may be for a publish that the capture missed, which no gap tells."""
    c = Begun()
    c.send()
    c.send()
    c.ack(71)
    c.ack(72)
    c.rest()
    return c, [UNKNOWN, UNKNOWN]


def an_answer_may_be_lost() -> tuple[Connection, Wanted]:
    c = Begun()
    c.send()
    c.ack(71)
    c.rest()
    c.lose(from_client=False)
    c.send()
    c.ack(72)
    return c, [UNKNOWN, UNKNOWN]


def always_some_under_way() -> tuple[Connection, Wanted]:
    """A window of two: the numbers are one too small, for all that can be known."""
    c = Begun()
    for number in (70, 71, 72):
        c.send()
        c.ack(number)
    return c, [UNKNOWN] * 3


def turns(c: Begun, numbers: Iterable[int], behind: int = 0, ticks: int = 250_000) -> None:
    """A publish, the answer to it or to an earlier one after some ticks, and a pause."""
    for number in numbers:
        c.send()
        c.waited = getattr(c, "waited", 0) + behind
        c.ack(number)
        c.waited += ticks


def takes_turns() -> tuple[Connection, Wanted]:
    c = Begun()
    turns(c, range(71, 91))
    c.send()
    return c, [*((number, "proven", 1) for number in range(71, 91)), (91, "proven", None)]


def takes_turns_too_seldom() -> tuple[Connection, Wanted]:
    c = Begun()
    turns(c, range(71, 90))
    c.send()
    return c, [UNKNOWN] * 20


def pauses_no_longer_than_ten_answers() -> tuple[Connection, Wanted]:
    """Some may always be under way, so that each answer is to the publish before."""
    c = Begun()
    turns(c, range(71, 101), behind=25_000)
    c.send()
    return c, [UNKNOWN] * 31


def is_held_back_until_the_next_publish() -> tuple[Connection, Wanted]:
    """Each confirm waits in the broker's system for an acknowledgement, which comes with the publish after it."""
    c = Begun()
    turns(c, range(71, 121), ticks=30_000)
    c.send()
    return c, [UNKNOWN] * 51


def takes_turns_seldom() -> tuple[Connection, Wanted]:
    """Every third time: that may be by chance."""
    c = Begun()
    for number in range(71, 146, 3):
        turns(c, [number])
        turns(c, [number, number + 1], behind=25_000)
    c.send()
    return c, [UNKNOWN] * 76


def takes_turns_and_lacks_an_answer() -> tuple[Connection, Wanted]:
    c = Begun()
    turns(c, range(71, 86))
    c.lose(from_client=False)
    turns(c, range(86, 101))
    c.send()
    return c, [UNKNOWN] * 31


def several_gaps() -> tuple[Connection, Wanted]:
    c = Begun()
    c.publish(1)
    c.publish(2)
    c.ack(2, True)
    c.lose(from_client=True)
    c.send()
    c.ack(5)
    c.rest()
    c.send()
    c.ack(6)
    c.send()
    c.ack(7)
    c.lose(from_client=True)
    c.send()
    c.ack(8)
    c.send()
    c.ack(9)
    c.lose(from_client=True)
    c.send()  # no answer tells of it
    return c, [
        (1, "counted", 4), (2, "counted", 1), (5, "proven", 1), (6, "proven", 1), (7, "proven", 1),
        UNKNOWN, UNKNOWN,
    ]  # fmt: skip


def no_answers() -> tuple[Connection, Wanted]:
    """It need not be in confirm mode at all."""
    c = Begun()
    c.send()
    c.send()
    c.send(channel=2)
    c.ack(4, channel=2)
    return c, [UNKNOWN]


def select_is_lost() -> tuple[Connection, Wanted]:
    """Two publishes before it have no number, another was lost with it."""
    c = Begun()
    c.publish(None, publish_seq_unsure=False)
    c.publish(None, publish_seq_unsure=False)
    c.lose(from_client=True)
    c.send()
    c.ack(2)
    c.send()
    return c, [UNKNOWN, UNKNOWN]


def counted_from_the_first_select() -> tuple[Connection, Wanted]:
    c = Begun()
    c.send()
    c.publish(1, publish_seq_unsure=True)
    c.publish(2, publish_seq_unsure=True)
    c.ack(2)
    return c, [(1, "counted", None), (2, "counted", 1)]


def counted_from_a_second_select() -> tuple[Connection, Wanted]:
    c = Begun()
    c.publish(1, publish_seq_unsure=True)
    c.ack(4)
    c.rest()
    c.publish(2, publish_seq_unsure=True)
    c.ack(5)
    return c, [(4, "proven", 1), (5, "proven", 1)]


def counted_by_the_client() -> tuple[Connection, Wanted]:
    c = Begun()
    c.send(headers='{"a":[1],"x-dotnet-pub-seq-no":70}')
    c.send()
    c.ack(70)
    c.send(headers='{"x-dotnet-pub-seq-no":"72"}')
    c.ack(71)
    c.ack(72)
    return c, [(70, "proven", 4), (71, "proven", 5), (72, "proven", 2)]


def counted_by_another() -> tuple[Connection, Wanted]:
    """Headers were passed on: the numbers are of another channel."""
    c = Begun()
    for number in (70, 71, 72):
        c.send(headers=f'{{"x-dotnet-pub-seq-no":"{number - 60}"}}')
        c.ack(number)
    return c, [UNKNOWN, UNKNOWN, UNKNOWN]


def read_behind_their_answers() -> tuple[Connection, Wanted]:
    """What follows a gap waits for it; meanwhile its answers are read."""
    c = Begun()
    c.publish(1)
    c.ack(1)
    begun = len(c.frames) * TICK
    c.ack(2)
    c.ack(3)
    c.rest()
    c.lose(from_client=True)
    gap = c.anomalies[-1]["ts_ns"] = c.end
    c.send(ts_ns=gap, first_ts_ns=begun)  # one before was lost
    c.send()
    c.ack(4)
    return c, [(1, "counted", 1), UNKNOWN, UNKNOWN]


def numbers_that_cannot_be() -> tuple[Connection, Wanted]:
    c = Begun()
    c.send()
    c.send()
    c.ack(2**63 - 1)
    c.ack(-(2**63))
    c.ack(0, True)
    c.send()
    return c, [UNKNOWN, UNKNOWN]


def across_buckets() -> tuple[Connection, Wanted]:
    """Times and frames far from each other."""
    c = Begun()
    for step in range(3):
        c.frames.extend({} for _ in range(70_000))
        c.send()
        c.ack(9 + step)
    c.frames = [frame for frame in c.frames if frame]
    return c, [UNKNOWN, UNKNOWN, UNKNOWN]


def still_waits_for_each() -> tuple[Connection, Wanted]:
    """Two publishes are lost, but not their confirms: those of a client with two outstanding would look the same."""
    c = Begun()
    for number in range(1, 31):
        c.publish(number)
        c.ack(number)
    c.ack(31)
    c.ack(32)
    c.lose(from_client=True)
    for number in range(33, 50):
        c.send()
        c.ack(number)
    return c, [*((number, "counted", 1) for number in range(1, 31)), *[UNKNOWN] * 17]


def steady_window_after_a_gap() -> tuple[Connection, Wanted]:
    """Two are outstanding all the time, before the gap, too; what the confirms show after it is one too small."""
    c = Begun()
    c.publish(1)
    for number in range(2, 31):
        c.publish(number)
        c.ack(number - 1)
    c.ack(30)
    c.ack(31)
    c.lose(from_client=True)
    for number in range(34, 50):
        c.send()
        c.ack(number - 1)
    return c, [*((number, "counted", {1: 4, 30: 2}.get(number, 5)) for number in range(1, 31)), *[UNKNOWN] * 16]


def content_behind_a_gap() -> tuple[Connection, Wanted]:
    """The method of a publish is lost, its content is not; something of the broker is read between."""
    c = Begun()
    for number in (1, 2, 3):
        c.publish(number)
        c.ack(number)
    c.lose(from_client=True)
    c.anomalies[-1]["detail"] = "19 bytes not captured"
    c.frame(False)
    c.frame(True, frame_type="header")
    c.frame(True)
    c.ack(4)
    for number in (5, 6):
        c.send()
        c.ack(number)
    return c, [*((n, "counted", 1) for n in (1, 2, 3)), *((n, "proven", 1) for n in (5, 6))]


def content_behind_a_gap_with_others_under_way() -> tuple[Connection, Wanted]:
    """As it is before, but one publish is always unconfirmed: nothing shows that one is missing."""
    c = Begun()
    c.publish(1)
    c.publish(2)
    c.ack(1)
    c.publish(3)
    c.ack(2)
    c.lose(from_client=True)
    c.anomalies[-1]["detail"] = "19 bytes not captured"
    c.frame(False)
    c.frame(True, frame_type="header")
    c.frame(True)
    c.ack(3)
    for number in (5, 6):
        c.send()
        c.ack(number - 1)
    return c, [(1, "counted", 4), (2, "counted", 5), (3, "counted", 5), UNKNOWN, UNKNOWN]


BY_HAND = (
    waits_for_each, takes_turns, takes_turns_too_seldom, pauses_no_longer_than_ten_answers, takes_turns_seldom,
    is_held_back_until_the_next_publish,
    takes_turns_and_lacks_an_answer, pauses_once, pauses_at_the_end, pauses_with_some_under_way,
    stalls_while_one_is_under_way,
    others_may_follow_the_last, an_answer_may_be_lost, always_some_under_way, several_gaps, no_answers,
    select_is_lost, counted_from_the_first_select, counted_from_a_second_select, counted_by_the_client,
    counted_by_another, read_behind_their_answers, numbers_that_cannot_be, across_buckets, still_waits_for_each,
    steady_window_after_a_gap, content_behind_a_gap, content_behind_a_gap_with_others_under_way,
)  # fmt: skip


# Recordings


class Part(NamedTuple):
    """A recording, or what is left of it: its tables, which packets these are, and whether it has all answers."""

    name: str
    packets: list[Packet]
    tables: dict[str, pa.Table]
    all_answers: bool


def rested(packets: list[Packet], whole: dict[str, pa.Table]) -> list[Packet]:
    """The same, with a long pause before the publishes that follow a complete confirm."""
    sent, confirmed = Counter[Any](), Counter[Any]()
    events = [(row["first_packet"], 1, row) for row in rows(whole["messages"]) if row["publish_seq"]]
    answers = [row for row in rows(whole["amqp091_frames"]) if row["method"] in ("basic.ack", "basic.nack")]
    events += [(row["packet"], 0, row) for row in answers if not row["from_client"]]
    quiet, last = set(), -1
    for packet, is_publish, row in sorted(events, key=lambda event: event[:2]):
        channel = tuple(row[name] for name in CHANNEL)
        if is_publish:
            if sent == confirmed and packet > last and sent:
                quiet.add(packet)
            last = packet
            sent[channel] += 1
        else:
            confirmed[channel] += row["delivery_tag"] - confirmed[channel] if row["multiple"] else 1
    found, shift = [], 0
    for number, packet in enumerate(packets, 1):
        shift += 2 * QUIET_NS * (number in quiet)
        found.append(replace(packet, ts_ns=packet.ts_ns + shift))
    return found


def parts() -> Iterator[Part]:
    """Recordings, each followed by what is left of it when it begins later, or packets are lost."""
    for name in RECORDED:
        packets, link = covered(f"{name}.pcap")
        packets = rested(with_numbers(packets), dissect_packets(packets, link))
        yield Part(name, packets, dissect_packets(packets, link), True)
        capture = Capture(packets, link)
        for seed in range(SEEDS):
            rnd = random.Random(f"{name} {seed}")
            for left, all_answers in (
                (late(capture, rnd, rnd.uniform(0.2, 0.9)), True), (lossy(capture, rnd, 0.02), False)
            ):  # fmt: skip
                yield Part(name, left, dissect_packets(left, link), all_answers)


class Publishes:
    """The publishes of recordings, by what identifies them in whatever is left: where they begin and what they say."""

    def __init__(self) -> None:
        self.keys: dict[tuple[int, int], Any] = {}
        self.part: dict[int, Part] = {}

    def add(self, number: int, part: Part) -> dict[str, pa.Table]:
        """Take a part; returns its tables, with its own identities of connections."""
        ids = sorted(set(part.tables["connections"]["connection_id"].to_pylist()))
        names = {identity: 10**9 + 1000 * number + k for k, identity in enumerate(ids, 1)}
        for row in part.tables["messages"].to_pylist():
            says = tuple(row[name] for name in ("channel", "exchange", "routing_key", "message_id", "body_hash"))
            begins = part.packets[row["first_packet"] - 1].interface
            self.keys[names[row["connection_id"]], row["frame_no"]] = (part.name, begins, *says)
        self.part |= dict.fromkeys(names.values(), part)
        found = {}
        for table in SOURCES:
            column = [names.get(identity) for identity in part.tables[table]["connection_id"].to_pylist()]
            found[table] = part.tables[table].set_column(0, "connection_id", pa.array(column, pa.int64()))
        return found


# All cases in one run


class Numbered(NamedTuple):
    """A publish with its number, and what that may be: numbers, and times of the answer (None: unknown)."""

    name: str
    row: Row
    numbers: set[int]
    answered_ns: set[int | None] | None


def made_connections(
    seeds: Iterable[int], begins_late: float = 0.6, **how: Any
) -> dict[int, tuple[MadeConnection, Seen]]:
    made = {}
    for seed in seeds:
        rnd = random.Random(seed)
        whole = made_connection(rnd, list(CLIENTS)[seed % len(CLIENTS)], **how)
        seen = damaged(rnd, whole, begins_late)
        made[seen.connection.id] = whole, seen
    return made


class Cases(NamedTuple):
    """Tables of all cases, and what they are made of."""

    tables: dict[str, pa.Table]
    by_hand: dict[str, Connection]
    made: dict[int, tuple[MadeConnection, Seen]]
    publishes: Publishes


@pytest.fixture(scope="module")
def cases() -> Cases:
    by_hand = {scenario.__name__: scenario()[0] for scenario in BY_HAND}
    made = made_connections(range(CASES))
    publishes = Publishes()
    stored = [publishes.add(number, part) for number, part in enumerate(parts())]
    synthetic = arrow([*by_hand.values(), *(seen.connection for _, seen in made.values())])
    tables = {name: pa.concat_tables([synthetic[name], *(each[name] for each in stored)]) for name in SOURCES}
    return Cases(tables, by_hand, made, publishes)


@pytest.fixture(scope="module")
def derived(cases) -> dict[int, list[Row]]:
    found: dict[int, list[Row]] = {}
    for row in confirms(numbered(cases.tables)):
        found.setdefault(row["connection_id"], []).append(row)
    return found


def _of_made(found: dict[int, list[Row]], made: dict[int, tuple[MadeConnection, Seen]]) -> Iterator[Numbered]:
    for identity, (whole, seen) in made.items():
        for row in found.get(identity, []):
            number = seen.publishes[row["frame_no"]].number
            answer = whole.answer(number)
            yield Numbered(whole.client, row, {number}, {answer and answer.ts_ns} if seen.all_answers else None)


def _of_recorded(found: dict[int, list[Row]], publishes: Publishes) -> Iterator[Numbered]:
    sent: dict[Any, list[Row]] = {}
    last = None
    for identity, part in publishes.part.items():
        undamaged = part.name != last
        last = part.name
        for row in found.get(identity, []):
            key = publishes.keys[identity, row["frame_no"]]
            if undamaged:
                sent.setdefault(key, []).append(row)
            elif key in sent:
                times = {each["confirm_ts_ns"] for each in sent[key]}
                numbers = {each["publish_seq"] for each in sent[key]}
                yield Numbered(part.name, row, numbers, times if part.all_answers else None)


@pytest.mark.parametrize("scenario", BY_HAND)
def test_scenario(cases, derived, scenario) -> None:
    mine = derived.get(cases.by_hand[scenario.__name__].id, [])
    found = [(row["publish_seq"], row["numbered_by"], row["latency_ns"]) for row in mine]
    assert found == [(number, by, ticks and ticks * TICK) for number, by, ticks in scenario()[1]]


def test_what_has_a_number_has_the_right_one(cases, derived) -> None:
    score: Counter[Any] = Counter()
    for name, row, sent, answered_ns in [*_of_made(derived, cases.made), *_of_recorded(derived, cases.publishes)]:
        score[row["numbered_by"]] += 1
        assert row["publish_seq"] is None or row["publish_seq"] in sent, (name, row, sent)
        if row["latency_ns"] is not None and answered_ns is not None:
            assert row["confirm_ts_ns"] in answered_ns, (name, row, answered_ns)
    assert score["proven"] > 500


def test_what_is_proven_where_brokers_change_is_right() -> None:
    """Long connections, and brokers that become faster or slower: a steady window looks like one that waits."""
    made = made_connections(range(350), 0.1, publishes=(30, 200), changes=True)
    found: dict[int, list[Row]] = {}
    for row in confirms(numbered(arrow(seen.connection for _, seen in made.values()))):
        found.setdefault(row["connection_id"], []).append(row)
    proven = 0
    for name, row, sent, _ in _of_made(found, made):
        assert row["publish_seq"] is None or row["publish_seq"] in sent, (name, row, sent)
        proven += row["numbered_by"] == "proven"
    assert proven > 100


def room(missing: str, lost: int, window: int, whole: bool = True) -> Counter[Any]:
    """How numbers are known after a gap in which publishes were lost, of a client with so many under way."""
    rnd = random.Random(f"{missing} {lost} {window}")
    c, acked = Connection(), 0
    for number in range(1, 301):
        if number == 100 + lost:
            c.lose(from_client=True)
            c.anomalies[-1]["detail"] = missing
        if number < 100 or number >= 100 + lost:
            cut = number == 99 and not whole
            c.publish(number if number < 100 else None, publish_seq_unsure=number >= 100, is_partial=cut)
        while number - acked > window or (acked < number and rnd.random() < 0.3):
            acked += 1
            c.ack(acked)
    found = confirms(numbered(arrow([c])))
    sent = [*range(1, 100), *range(100 + lost, 301)]
    assert all(row["publish_seq"] in (None, number) for row, number in zip(found, sent, strict=False))
    return Counter(row["numbered_by"] for row in found[99:])


@pytest.mark.parametrize("window", [0, 1, 5])
@pytest.mark.parametrize(
    ("missing", "lost"),
    [("67 bytes not captured", 1), ("130 bytes not captured", 3), ("8 bytes not captured", 0),
     ("1,170 bytes not captured", 30)],
)  # fmt: skip
def test_numbers_go_on_where_a_gap_has_room_for_no_more_than_the_confirms_show(missing, lost, window):
    assert {*room(missing, lost, window)} == {"proven"}


@pytest.mark.parametrize("whole", [True, False])
def test_numbers_are_not_proven_where_a_gap_has_room_for_more(whole):
    assert {*room("130 bytes not captured", 2, 1)} == {None}
    assert {*room("67 bytes not captured", 1, 1, whole=False)} == {None}  # it may cut another
    assert {*room("67 bytes skipped", 1, 1)} == {None}


# Any batches, any state


def publishes(batches: Iterable[Events]) -> list[tuple[Any, ...]]:
    names = ("connection_id", "frame_no", "publish_seq", "number", "numbered_by", "publish_seq_unsure")
    rows = rows_of(batches, MESSAGES, "kind", *names)
    return [tuple(row[name] for name in names) for row in rows if row["kind"] == "publish"]


@pytest.fixture(scope="module")
def some() -> dict[str, pa.Table]:
    """Cases of all kinds, with connections in between of which every number is certain."""
    certain = [Connection() for _ in range(5)]
    for c in certain:
        for number in range(1, 4):
            c.publish(number)
            c.ack(number)
    made = made_connections(range(1000, 1021))
    seen = [each.connection for _, each in made.values()]
    by_hand = [scenario()[0] for scenario in BY_HAND if scenario is not across_buckets]
    return arrow([*by_hand[:9], *certain[:3], *seen, *certain[3:], *by_hand[9:]])


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("size", "again", "keep"),
    [
        (1, False, 6),
        (2, True, 6),
        (3, False, numbering_log.KEEP),
        (7, True, numbering_log.KEEP),
        (7, False, 6),
        (1000, True, 6),
    ],
)
def test_any_batches_give_the_same(some, monkeypatch, size: int, again: bool, keep: int) -> None:
    monkeypatch.setattr(numbering_log, "KEEP", keep)
    monkeypatch.setattr("amqpscope.pipelines.amqp091.confirms.numbers.KEEP", keep)
    monkeypatch.setattr(deferred_events, "BLOCK", 40)
    if size < 3:
        ids = {i for rows in some.values() for i in rows["connection_id"].to_pylist()}
        few = pa.array(sorted(ids)[1::4], pa.int64())  # numbers of connections depend on the tests before
        some = {name: rows.filter(pc.is_in(rows["connection_id"], value_set=few)) for name, rows in some.items()}
    whole = publishes(numbered(some))
    assert publishes(numbered(some, size, again=again, room=2000 if size == 3 else 1 << 27)) == whole
    assert len(whole) > 100


@pytest.mark.parametrize("keep", [numbering_log.KEEP, 6])
def test_what_lies_in_files_is_the_same(some, monkeypatch, keep: int) -> None:
    whole = publishes(numbered(some))
    monkeypatch.setattr(numbering_log, "KEEP", keep)
    monkeypatch.setattr("amqpscope.pipelines.amqp091.confirms.numbers.KEEP", keep)
    expected = publishes(numbered(some))
    monkeypatch.setattr(deferred_events, "BLOCK", 40)
    monkeypatch.setattr(numbering_log, "SPILL", 2000)
    monkeypatch.setattr(numbering, "STEP", 7)
    assert publishes(numbered(some, 10, room=2000)) == expected
    assert keep == 6 or expected == whole


def test_each_connection_alone(some) -> None:
    found = publishes(numbered(some))
    alone = []
    for identity in dict.fromkeys(row[0] for row in found):
        mine = {name: rows.filter(pa.compute.equal(rows["connection_id"], identity)) for name, rows in some.items()}
        alone += publishes(numbered(mine))
    assert alone == found


@pytest.mark.compiled
def test_compiled(some) -> None:
    assert publishes(numbered(some, compiled=True)) == publishes(numbered(some))
    assert publishes(numbered(some, 50, compiled=True)) == publishes(numbered(some))


def test_nothing_is_held_where_all_numbers_are_certain() -> None:
    c = Connection()
    for number in range(1, 50):
        c.publish(number)
        c.ack(number)
    stage = Numbering()
    batches = list(engine.batches(arrow([c]), [stage], 10))
    for batch in batches:
        (passed,) = stage.feed(batch)
        assert len(passed) == len(batch)
        assert (passed.matrix == batch.matrix).all()
    assert list(stage.finish()) == []


@pytest.mark.parametrize("size", [7, 1000])
def test_what_is_held_comes_again(size: int) -> None:
    """Of frames that are not asked for those that tell how far each side was, and that it spoke."""
    c = Begun()
    c.server("connection.start")
    c.client("connection.start-ok")
    for number in range(1, 30):
        c.send()
        c.frame(False, frame_type="heartbeat")
        c.ack(number + 4)
    c.deliver(1)
    c.ack(1, client=True)
    c.lose(from_client=False)
    c.client("channel.close")
    tables = arrow([c, Connection()])
    found = numbered(tables, size)
    assert all((each.matrix == Events(each.tables, each.source, each.row).matrix).all() for each in found)
    frames = [row for row in rows_of(found, FRAMES) if row["connection_id"] == c.id]
    numbers = [row["frame_no"] for row in frames]
    assert numbers == sorted(numbers)

    def last(rows: list[Row], side: bool, before: int) -> int:
        return max(
            (row["frame_no"] for row in rows if row["from_client"] == side and row["frame_no"] < before), default=-1
        )

    for place in (row["frame_no"] for row in c.frames if row.get("method") == "basic.ack"):
        assert [last(frames, side, place) for side in (False, True)] == [
            last(c.frames, side, place) for side in (False, True)
        ]
    wanted = [row["frame_no"] for row in c.frames if row.get("method") not in (None, "basic.publish", "basic.deliver")]
    assert set(wanted) <= set(numbers)
    assert [row["frame_no"] for row in rows_of(found, ANOMALIES)] == [row["frame_no"] for row in c.anomalies]


def test_headers() -> None:
    c = Begun()
    for headers in (
        '{"x-dotnet-pub-seq-no":7}', '{"a":{"x-dotnet-pub-seq-no":7}}', '{"a":"{\\"x-dotnet-pub-seq-no\\":7}"}',
        '{"a":{},"x-dotnet-pub-seq-no":"10"}', '{"x-dotnet-pub-seq-no":7.5}', '{"x-dotnet-pub-seq-no":true}', None,
        '{"x-dotnet-pub-seq-no":14, "b":1}', '{"x-dotnet-pub-seq-no":-3}', '["x-dotnet-pub-seq-no"]',
        '{"x-dotnet-pub-seq-no":18446744073709551615}', "{",
    ):  # fmt: skip
        c.send(headers=headers)
        c.ack(7 + len(c.messages) - 1)
    found = rows_of(numbered(arrow([c])), MESSAGES)
    assert [(row["publish_seq"], row["numbered_by"]) for row in found] == [(n, "proven") for n in range(7, 19)]


def test_a_state_of_something_else() -> None:
    with pytest.raises(ValueError, match="not a state"):
        Numbering().put_back(b"nonsense")


@pytest.mark.parametrize("size", [1, 3, 100])
@pytest.mark.parametrize("again", [False, True])
def test_after_a_frame_in_which_others_may_lie_nothing_is_counted(size: int, again: bool) -> None:
    c, other = Connection(), Connection()
    for number in (1, 2, 3, 4):
        if number == 3:
            c.lose(from_client=True)
            c.anomalies[-1]["code"] = "bytes-left-over"
        c.publish(number)
        other.publish(number)
    found = rows_of(numbered(arrow([c, other]), size, again=again), MESSAGES)
    numbers = {each.id: [row["publish_seq"] for row in found if row["connection_id"] == each.id] for each in (c, other)}
    assert numbers == {c.id: [1, 2, None, None], other.id: [1, 2, 3, 4]}
