"""Waits for credit of AMQP 0-10: cases by hand, and recordings in every manner."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from amqpscope.pipelines.amqp010.message_credit import MessageCredit
from amqpscope.pipelines.run.engine import walked
from tests.pipelines.walks.sessions010 import CAPTURES, Peers, recorded, tables_of
from tests.pipelines.walks.talks import same_in_every_manner, together, walk

UNLIMITED = 0xFFFFFFFF


def waits(*peers: Peers, columns: str = "start_frame_no end_frame_no end_ts_ns evidence") -> list[tuple[Any, ...]]:
    found = walked(tables_of(*peers), [MessageCredit()])["flow_control"].to_pylist()
    found.sort(key=lambda row: (row["connection_id"], row["start_frame_no"]))
    return [tuple(row[name] for name in columns.split()) for row in found]


def subscribed(messages: int | None = 2, size: int | None = UNLIMITED, mode: int = 0, **columns: Any) -> Peers:
    """A session whose frames 4 to 7 subscribe, set the mode, and grant messages and bytes."""
    peers = Peers(1, **columns)
    peers.begin()
    peers.command(True, "message.subscribe", queue="q", destination="d")
    peers.command(True, "message.set-flow-mode", destination="d", flow_mode=mode)
    peers.flow(0, messages)
    peers.flow(1, size)
    return peers


def test_a_wait_begins_with_the_last_message_and_ends_with_more_credit():
    peers = subscribed()
    for _ in range(2):
        peers.transfer(False)
    peers.command(True, "execution.sync")
    more = peers.flow(0, 1)
    peers.transfer(False)
    columns = "channel channel_epoch consumer_tag cause start_frame_no end_frame_no end_ts_ns duration_ns side evidence"
    assert waits(peers, columns=columns) == [
        (1, 1, "d", "message-credit", 9, more, 11000, 2000, "client", "proven"),
        (1, 1, "d", "message-credit", 12, None, None, 1000, "client", "possible"),
    ]


def test_a_wait_after_which_nothing_comes_may_be_none():
    peers = subscribed(messages=1)
    peers.transfer(False)
    more = peers.flow(0, 1)
    assert waits(peers) == [(8, more, 9000, "possible")]


def test_bytes_are_those_of_header_and_body():
    peers = subscribed(messages=None, size=25)
    peers.control(False, None, segment_type="header", size=27)  # 15 bytes after the head of 12
    peers.transfer(False)  # 10 bytes
    assert waits(peers, columns="start_frame_no end_frame_no") == [(9, None)]


@pytest.mark.parametrize("value", [UNLIMITED, None])
def test_unlimited_credit_is_never_used_up(value):
    peers = subscribed(messages=value, size=value)
    for _ in range(5):
        peers.transfer(False)
    assert waits(peers) == []


def test_with_a_window_completion_gives_credit_back():
    peers = subscribed(mode=1)
    for _ in range(2):
        peers.transfer(False)
    peers.settle("accept", (0, 1))
    back = peers.completed(True, (0, 0))
    peers.transfer(False)
    peers.completed(True, (0, 2))
    assert waits(peers) == [(9, back, 11000, "proven"), (12, 13, 13000, "possible")]


def test_after_a_stop_completion_gives_nothing_back():
    peers = subscribed(mode=1)
    peers.transfer(False)
    peers.command(True, "message.stop", destination="d")
    stopped = peers.completed(False, (0, 4))
    peers.completed(True, (0, 0))
    assert waits(peers, columns="start_frame_no end_frame_no") == [(stopped, None)]


def test_without_a_window_it_does_not():
    peers = subscribed(messages=1)
    peers.transfer(False)
    peers.completed(True, (0, 0))
    assert waits(peers, columns="start_frame_no end_frame_no") == [(8, None)]


def test_a_flush_takes_effect_when_it_is_completed():
    peers = subscribed(messages=9)
    peers.command(True, "message.flush", destination="d")  # the fifth command
    peers.transfer(False)
    done = peers.completed(False, (0, 4))
    more = peers.flow(0, 1)
    both = peers.flow(1, UNLIMITED)
    assert (done, more) == (10, 11)
    assert waits(peers) == [(done, both, 12000, "possible")]


@pytest.mark.parametrize(
    ("seen", "code", "end"), [(True, 0, 9), (False, 0, None), (False, None, None), (False, 4, 9), (False, 1, None)]
)
def test_a_session_that_is_detached_without_a_detach_lacks_frames_of_the_client(seen, code, end):
    """They may have granted credit before, so when the wait ended is unknown."""
    peers = subscribed(messages=1)
    peers.transfer(False)
    if seen:
        peers.control(True, "session.detach", name="s")
    peers.control(False, "session.detached", name="s", code=code)
    assert waits(peers, columns="start_frame_no end_frame_no") == [(8, end)]


def test_what_is_granted_after_a_stop_counts():
    peers = subscribed(messages=9)
    peers.command(True, "message.stop", destination="d")
    peers.flow(0, 1)
    peers.flow(1, UNLIMITED)
    peers.completed(False, (0, 6))
    last = peers.transfer(False)
    assert last == 0
    assert waits(peers, columns="start_frame_no end_frame_no") == [(12, None)]


def test_before_its_first_credit_a_subscription_does_not_wait():
    peers = Peers(1)
    peers.begin()
    peers.command(True, "message.subscribe", queue="q", destination="d")
    peers.flow(0, 5)
    assert waits(peers) == []


def test_a_cancel_a_detach_and_a_close_end_waits():
    for end, columns in (("message.cancel", {"destination": "d"}), ("session.detach", {}), ("connection.close", {})):
        peers = subscribed(messages=1)
        peers.transfer(False)
        over = peers.control(True, end, **columns)
        peers.transfer(False)
        assert waits(peers) == [(8, over, 9000, "possible")]


def test_other_subscriptions_have_credit_of_their_own():
    peers = subscribed(messages=1)
    peers.command(True, "message.subscribe", queue="q", destination="e")
    for unit in range(2):
        peers.flow(unit, UNLIMITED, destination="e")
    peers.transfer(False, destination="e")
    peers.transfer(False, destination="unknown")
    assert waits(peers) == []


def test_after_a_gap_credit_is_unknown_until_a_stop():
    peers = subscribed()
    peers.transfer(False)
    peers.lose(from_client=False)
    peers.transfer(False)
    peers.transfer(False)
    assert waits(peers) == []
    peers.command(True, "message.stop", destination="d")
    peers.completed(False, (0, 4))
    assert waits(peers) == []  # there may have been none before
    peers.flow(0, 1)
    peers.flow(1, None)
    last = len(peers.frames)
    peers.transfer(False)
    assert waits(peers, columns="start_frame_no end_frame_no") == [(last, None)]


def test_a_stop_of_which_the_id_is_unknown():
    peers = subscribed(messages=1)
    peers.transfer(False)
    peers.command(True, "message.stop", destination="d", command_id=None)
    peers.flow(0, 9)
    more = peers.flow(1, None)
    assert waits(peers) == [(8, more, 11000, "possible")]
    peers.command(True, "message.stop", destination="d", command_id=None)
    peers.transfer(False)
    assert len(waits(peers)) == 1


def test_a_gap_cuts_off_a_wait():
    peers = subscribed(messages=1)
    peers.transfer(False)
    peers.lose(from_client=True)
    peers.flow(0, 1)
    peers.transfer(False)
    assert waits(peers, columns="start_frame_no end_frame_no end_ts_ns duration_ns") == [(8, None, None, 1000)]


def any_credit(chance: random.Random, number: int) -> Peers:
    """A connection on which anything happens to the credit of two subscriptions."""
    peers = Peers(number)
    peers.begin()
    for destination in ("d", "e"):
        peers.command(True, "message.subscribe", queue="q", destination=destination)
        for unit in range(2):
            peers.flow(unit, chance.choice((1, 3, UNLIMITED)), destination=destination)
    for _ in range(chance.randrange(60)):
        to = {"destination": chance.choice("dde")}
        lower = chance.randrange(20)
        some: list[Callable[[], object]] = [
            *(lambda to=to: peers.transfer(False, **to) for _ in range(4)),
            lambda to=to: peers.flow(chance.randrange(2), chance.choice((1, 25, 100, None)), **to),
            lambda lower=lower: peers.completed(chance.random() < 0.5, (lower, lower + 3)),
            lambda to=to: peers.command(True, chance.choice(("message.stop", "message.flush")), **to),
            lambda to=to: peers.command(True, "message.set-flow-mode", flow_mode=chance.choice((0, 1, None)), **to),
        ]
        chance.choice(some)()
        if chance.random() < 0.05:
            chance.choice(
                [
                    lambda to=to: peers.command(True, "message.cancel", **to),
                    lambda to=to: peers.command(True, "message.subscribe", queue="q", **to),
                    lambda: peers.lose(chance.random() < 0.5),
                    lambda: peers.control(True, "session.detached", code=chance.choice((0, 1, None))),
                ]
            )()
    return peers


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(3))
def test_anything_in_every_manner(seed):
    chance = random.Random(seed)
    same_in_every_manner(tables_of(*(any_credit(chance, number) for number in range(1, 8))), MessageCredit)


def test_recordings_in_every_manner():
    made = tables_of(any_credit(random.Random(9), 1))
    same_in_every_manner(together([*map(recorded, CAPTURES), made]), MessageCredit, (7, 100))


@pytest.mark.compiled
def test_compiled():
    chance = random.Random(3)
    made = tables_of(*(any_credit(chance, number) for number in range(1, 30)))
    found = together([*map(recorded, CAPTURES), made])
    plain, compiled = (walk(found, lambda c=c: MessageCredit(compiled=c), 500)["flow_control"] for c in (False, True))
    assert pa.concat_tables(plain).to_pylist() == pa.concat_tables(compiled).to_pylist()
