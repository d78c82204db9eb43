"""Numbers told from confirms: by hand, and for conversations and recordings of which a part was taken away."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame

from amqpscope.pipelines import numbers
from amqpscope.pipelines.buckets import CHANNEL, SMALL
from amqpscope.pipelines.confirms import confirms
from amqpscope.pipelines.holes import holes
from amqpscope.pipelines.numbers import QUIET_NS, numbered
from amqpscope.pipelines.schemas import schema
from tests.captures.damage.ways import Capture, late, lossy
from tests.captures.damage.ways import numbered as with_numbers
from tests.dissector.builders import Packet
from tests.dissector.runs import dissect_packets, recorded, rows
from tests.pipelines.conversations import CLIENTS, Conversation, Seen, conversation, damaged
from tests.pipelines.scenario import TICK, Connection, lost, tables

CASES = 140
RECORDED = (
    "pika_confirms", "many_confirms", "orders_pika", "orders_amqplib", "reject_publish", "mandatory_returns",
    "equal_returns", "second_confirm_select", "publish_before_confirm", "channel_reopened",
)  # fmt: skip
SEEDS = 2
SOURCES = ("amqp091_frames", "messages", "connections", "anomalies")


# By hand: a connection, and for each row of `confirms` the number, how it is known, and the latency in ticks.

Wanted = list[tuple[int, str, int | None]]
LONG = QUIET_NS // TICK


class Begun(Connection):
    """A connection whose beginning was not seen."""

    def send(self, **columns: Any) -> int:
        return self.publish(None, **({"publish_seq_unsure": True} | columns))

    def rest(self) -> None:
        """Nothing is said for long."""
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
    return c, [(number, "inferred", None) for number in (71, 72, 73)]


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
    """The pause is behind an answer that does not give the largest bound."""
    c = Begun()
    c.send()
    c.send()
    c.ack(71)
    c.rest()
    c.ack(72)
    c.send()
    c.ack(73)
    return c, [(71, "inferred", None), (72, "inferred", None), (73, "inferred", None)]


def stalls_while_one_is_under_way() -> tuple[Connection, Wanted]:
    """The broker takes long for once, and no other confirm tells of it."""
    c = Begun()
    c.send()
    c.send()
    c.ack(71)  # the first of both
    c.rest()
    c.send()
    c.send()
    return c, [(70, "inferred", None), (71, "inferred", None), (72, "inferred", None), (73, "inferred", None)]


def others_may_follow_the_last() -> tuple[Connection, Wanted]:
    """The last answer may be for a publish that the capture missed, which no hole tells."""
    c = Begun()
    c.send()
    c.send()
    c.ack(71)
    c.ack(72)
    c.rest()
    return c, [(71, "inferred", None), (72, "inferred", None)]


def an_answer_may_be_lost() -> tuple[Connection, Wanted]:
    c = Begun()
    c.send()
    c.ack(71)
    c.rest()
    c.lose(from_client=False)
    c.send()
    c.ack(72)
    return c, [(71, "inferred", None), (72, "inferred", None)]


def always_some_under_way() -> tuple[Connection, Wanted]:
    """A window of two: the numbers are one too small, for all that can be known."""
    c = Begun()
    for number in (70, 71, 72):
        c.send()
        c.ack(number)
    return c, [(number, "inferred", None) for number in (70, 71, 72)]


def several_holes() -> tuple[Connection, Wanted]:
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
        (8, "inferred", None), (9, "inferred", None),
    ]  # fmt: skip


def no_answers() -> tuple[Connection, Wanted]:
    """It need not be in confirm mode at all."""
    c = Begun()
    c.send()
    c.send()
    c.send(channel=2)
    c.ack(4, channel=2)
    return c, [(4, "inferred", None)]


def select_is_lost() -> tuple[Connection, Wanted]:
    """Two publishes before it have no number, another was lost with it."""
    c = Begun()
    c.publish(None, publish_seq_unsure=False)
    c.publish(None, publish_seq_unsure=False)
    c.lose(from_client=True)
    c.send()
    c.ack(2)
    c.send()
    return c, [(2, "inferred", None), (3, "inferred", None)]


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
    return c, [(70, "inferred", None), (71, "inferred", None), (72, "inferred", None)]


def read_behind_their_answers() -> tuple[Connection, Wanted]:
    """What follows a hole waits for it; meanwhile its answers are read."""
    c = Begun()
    c.publish(1)
    c.ack(1)
    begun = len(c.frames) * TICK
    c.ack(2)
    c.ack(3)
    c.rest()
    c.lose(from_client=True)
    hole = c.anomalies[-1]["ts_ns"] = c.end
    c.send(ts_ns=hole, first_ts_ns=begun)  # one before was lost
    c.send()
    c.ack(4)
    return c, [(1, "counted", 1), (3, "inferred", None), (4, "inferred", None)]


def numbers_that_cannot_be() -> tuple[Connection, Wanted]:
    c = Begun()
    c.send()
    c.send()
    c.ack(2**63 - 1)
    c.ack(-(2**63))
    c.ack(0, True)
    c.send()
    return c, [(2**63 - 2, "inferred", None), (2**63 - 1, "inferred", None)]


def across_buckets() -> tuple[Connection, Wanted]:
    """Times and frames far from each other."""
    c = Begun()
    for step in range(3):
        c.frames.extend({} for _ in range(70_000))
        c.send()
        c.ack(9 + step)
    c.frames = [frame for frame in c.frames if frame]
    return c, [(9, "inferred", None), (10, "inferred", None), (11, "inferred", None)]


BY_HAND = (
    waits_for_each, pauses_once, pauses_at_the_end, pauses_with_some_under_way, stalls_while_one_is_under_way,
    others_may_follow_the_last, an_answer_may_be_lost, always_some_under_way, several_holes, no_answers,
    select_is_lost, counted_from_the_first_select, counted_from_a_second_select, counted_by_the_client,
    counted_by_another, read_behind_their_answers, numbers_that_cannot_be, across_buckets,
)  # fmt: skip


# Recordings


class Part(NamedTuple):
    """A recording, or what is left of it: its tables, which packets these are, and whether it has all answers."""

    name: str
    packets: list[Packet]
    tables: dict[str, pa.Table]
    all_answers: bool


def rested(packets: list[Packet], whole: dict[str, pa.Table]) -> list[Packet]:
    """The same, with a long pause in front of the publishes before which all was confirmed."""
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
        packets, link = recorded(f"{name}.pcap")
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
        names = {identity: -1000 * number - k for k, identity in enumerate(ids, 1)}
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


class Told(NamedTuple):
    """A row of `confirms`, and what it may be: numbers, and times of the answer (None: not told)."""

    name: str
    row: dict[str, Any]
    numbers: set[int]
    answered_ns: set[int | None] | None


@pytest.fixture(scope="module")
def run(spark, tmp_path_factory) -> tuple[dict[int, list[dict[str, Any]]], list[Told], dict[str, Connection]]:
    by_hand = {scenario.__name__: scenario()[0] for scenario in BY_HAND}
    made: dict[int, tuple[Conversation, Seen]] = {}
    for seed in range(CASES):
        rnd = random.Random(seed)
        whole = conversation(rnd, list(CLIENTS)[seed % len(CLIENTS)])
        seen = damaged(rnd, whole)
        made[seen.connection.id] = whole, seen
    publishes = Publishes()
    stored = [publishes.add(number, part) for number, part in enumerate(parts())]
    folder = tmp_path_factory.mktemp("numbers")
    connections = [*by_hand.values(), *(seen.connection for _, seen in made.values())]
    read = {}
    for name, synthetic in zip(SOURCES, (*tables(spark, connections), None), strict=True):
        pq.write_table(pa.concat_tables(each[name] for each in stored), folder / f"{name}.parquet")
        read[name] = spark.read.schema(schema(name)).parquet(str(folder / f"{name}.parquet"))
        read[name] = read[name] if synthetic is None else read[name].unionByName(synthetic)
    places = holes(read["anomalies"], read["amqp091_frames"]).unionByName(lost(spark, connections))
    frames, messages, connected, _ = read.values()
    result = confirms(frames, numbered(messages, frames, connected, places), connected, places)
    found: dict[int, list[dict[str, Any]]] = {}
    for each in result.collect():
        found.setdefault(each["connection_id"], []).append(each.asDict())
    return found, [*_of_made(found, made), *_of_recorded(found, publishes)], by_hand


def _of_made(found: dict[int, list[dict[str, Any]]], made: dict[int, tuple[Conversation, Seen]]) -> Iterator[Told]:
    for identity, (whole, seen) in made.items():
        for row in found.get(identity, []):
            number = seen.publishes[row["publish_frame_no"]].number
            answer = whole.answer(number)
            yield Told(whole.client, row, {number}, {answer and answer.ts_ns} if seen.all_answers else None)


def _of_recorded(found: dict[int, list[dict[str, Any]]], publishes: Publishes) -> Iterator[Told]:
    sent: dict[Any, list[dict[str, Any]]] = {}
    last = None
    for identity, part in publishes.part.items():
        undamaged = part.name != last
        last = part.name
        for row in found.get(identity, []):
            key = publishes.keys[identity, row["publish_frame_no"]]
            if undamaged:
                sent.setdefault(key, []).append(row)
            elif key in sent:
                times = {each["confirm_ts_ns"] for each in sent[key]}
                numbers = {each["publish_seq"] for each in sent[key]}
                yield Told(part.name, row, numbers, times if part.all_answers else None)


@pytest.mark.parametrize("scenario", BY_HAND)
def test_scenario(run, scenario) -> None:
    found, _, by_hand = run
    mine = sorted(found.get(by_hand[scenario.__name__].id, []), key=lambda row: row["publish_seq"])
    told = [(row["publish_seq"], row["numbered_by"], row["latency_ns"]) for row in mine]
    assert told == [(number, by, ticks and ticks * TICK) for number, by, ticks in scenario()[1]]


def test_what_is_proven_is_right(run) -> None:
    """And what is inferred mostly; it has no latency."""
    score: Counter[Any] = Counter()
    for name, row, sent, answered_ns in run[1]:
        right = row["publish_seq"] in sent
        score[row["numbered_by"], right] += 1
        if row["numbered_by"] == "inferred":
            assert row["latency_ns"] is None
            continue
        assert right, (name, row, sent)
        if row["latency_ns"] is not None and answered_ns is not None:
            assert row["confirm_ts_ns"] in answered_ns, (name, row, answered_ns)
    assert score["proven", True] > 500
    assert score["inferred", True] > 3 * score["inferred", False]


def test_one_channel_is_many_tasks(spark, monkeypatch) -> None:
    """Windows go over a bucket, or along the buckets, or the holes, of a summary."""
    steps: list[DataFrame] = []

    def cut(rows: DataFrame) -> DataFrame:
        steps.append(rows)
        return spark.createDataFrame([], rows.schema)

    monkeypatch.setattr(numbers, "kept", cut)
    spark.conf.set(SMALL, "false")
    try:
        c, _ = several_holes()
        frames, messages, connections = tables(spark, [c])
        steps.append(numbers.numbered(messages, frames, connections, lost(spark, [c])))
    finally:
        spark.conf.set(SMALL, "true")
    plans = [step._jdf.queryExecution().analyzed().toString() for step in steps]
    windows = [line for plan in plans for line in plan.splitlines() if "Window [" in line]
    assert len(windows) > 10
    assert all("bucket#" in line or "segment#" in line for line in (w.split("], [", 1)[1] for w in windows))
