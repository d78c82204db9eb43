"""Confirms, settlements and requests of AMQP 0-10 sessions: cases by hand, and recordings in every manner."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from amqpscope.pipelines.amqp010.command_batches import pairs_of
from amqpscope.pipelines.amqp010.rpcs import Rpcs
from amqpscope.pipelines.amqp010.session_commands import SessionCommands
from amqpscope.pipelines.amqp010.session_statistics import SessionStatistics
from amqpscope.pipelines.connections.heartbeats import Heartbeats
from amqpscope.pipelines.model.numbers_in_text import numbers_in
from amqpscope.pipelines.run.engine import Engine, walked
from tests.pipelines.walks.sessions010 import CAPTURES, Peers, any_peers, lost, recorded, resumed, tables_of
from tests.pipelines.walks.talks import rows_of, same_in_every_manner, together, walk

ORDER = {"confirms": "publish", "settlements": "deliver", "rpcs": "request", "commands": "sent"}


def rows(*peers: Peers, table: str, columns: str) -> list[tuple[Any, ...]]:
    """Rows of a table of statistics in the order of their first ends."""
    parts: list[pa.Table] = []
    engine = Engine(tables=(table,), emit=lambda name, rows: parts.append(rows) if name == table else None)
    for name, found in tables_of(*peers).items():
        engine.add(engine.runner.prepare(name, found))
    engine.finish()
    found = [row for part in parts for row in part.to_pylist()]
    found = [row for row in found if table != "rpcs" or not row["request"].startswith("session.")]  # controls
    end = ORDER[table]
    found.sort(key=lambda row: (row[f"{end}_ts_ns"], row["connection_id"]))
    return [tuple(row[name] for name in columns.split()) for row in found]


def confirms(*peers: Peers, columns: str = "publish_seq outcome confirm_frame_no ended_by end_ts_ns") -> list[Any]:
    return rows(*peers, table="confirms", columns=columns)


def settlements(*peers: Peers, columns: str = "delivery_tag outcome settle_frame_no ended_by end_ts_ns") -> list[Any]:
    return rows(*peers, table="settlements", columns=columns)


def requests(*peers: Peers, columns: str = "request response outcome response_frame_no ended_by") -> list[Any]:
    return rows(*peers, table="rpcs", columns=columns)


def commands(*peers: Peers, columns: str = "method command_id outcome answer_frame_no ended_by") -> list[Any]:
    return rows(*peers, table="commands", columns=columns)


# ---------------------------------------------------------------------------------------------------------- confirms


def test_a_completed_set_confirms_what_is_new_in_it():
    peers = Peers(1)
    peers.begin()
    for _ in range(3):
        peers.transfer(True)
    first = peers.completed(False, (0, 0), (2, 2))
    peers.transfer(True)
    second = peers.completed(False, (0, 3))
    peers.completed(False, (0, 3))
    found = confirms(peers, columns="publish_seq outcome confirm_frame_no multiple latency_ns returned")
    assert found == [
        (0, "ack", first, True, 3000, False),
        (1, "ack", second, True, 4000, False),
        (2, "ack", first, True, 1000, False),
        (3, "ack", second, True, 1000, False),
    ]


def test_who_need_not_wait_has_a_row_if_it_was_completed():
    peers = Peers(1)
    peers.begin()
    peers.transfer(True, mode=1)
    done = peers.completed(False, (0, 0))
    peers.transfer(True, mode=1)
    assert confirms(peers) == [(0, "ack", done, None, None)]


def test_rejects_and_exceptions_refuse():
    peers = Peers(1)
    peers.begin()
    peers.transfer(True)
    peers.transfer(True)
    peers.transfer(True)
    peers.settle("reject", (0, 0), from_client=False, code=1, text="nowhere")
    peers.completed(False, (0, 0))
    peers.command(False, "execution.exception", command_id_sequence_no=1, error_code=404, description="none")
    peers.transfer(True)
    found = confirms(peers, columns="publish_seq outcome reply_code reply_text returned ended_by")
    assert found == [
        (0, "nack", 1, "nowhere", True, None),
        (1, "nack", 404, "none", False, None),
        (2, "none", None, None, False, "channel-close"),
        (3, "none", None, None, False, "discarded"),
    ]


def test_ids_wrap():
    peers = Peers(1)
    peers.begin(point=2**32 - 2)
    for number in range(2**32 - 2, 2**32 + 2):
        peers.ids["s", True] = number
        peers.transfer(True)
    done = peers.completed(False, (2**32 - 2, 0))
    assert confirms(peers) == [
        (2**32 - 2, "ack", done, None, None),
        (2**32 - 1, "ack", done, None, None),
        (2**32, "ack", done, None, None),
        (2**32 + 1, "none", None, "capture-end", 9000),
    ]


@pytest.mark.parametrize("ranges", [[(2**32 - 2, 4)], [(2**32 - 2, 2**32 - 1), (0, 4)]])
def test_sets_that_begin_before_the_wrap_when_the_session_goes_on_after_it(ranges):
    peers = Peers(1)
    peers.begin(point=3)
    peers.transfer(True)
    done = peers.completed(False, *ranges)
    assert confirms(peers) == [(3, "ack", done, None, None)]


@pytest.mark.parametrize("code", ["tcp-gap", "frame-head-wrong", "frame-too-short"])
def test_after_a_gap_completed_sets_say_nothing_of_what_was_sent_before(code):
    peers = Peers(1)
    peers.begin()
    peers.transfer(True)
    peers.lose(from_client=False, code=code)
    peers.transfer(True)
    done = peers.completed(False, (0, 1))
    assert confirms(peers) == [(0, "none", None, "gap", 5000), (1, "ack", done, None, None)]


def test_a_reject_after_a_gap_is_certain():
    peers = Peers(1)
    peers.begin()
    peers.transfer(True)
    peers.lose(from_client=False)
    peers.settle("reject", (0, 0), from_client=False, code=0)
    assert confirms(peers, columns="outcome reply_code") == [("nack", 0)]


def test_one_direction_missing():
    peers = Peers(1)
    peers.control(True, "session.attach", name="s")
    peers.transfer(True)
    assert confirms(peers, columns="outcome ended_by") == [("none", "gap")]


@pytest.mark.parametrize("from_client", [True, False])
def test_a_detached_session_answers_nothing(from_client):
    peers = Peers(1)
    peers.begin()
    peers.transfer(True)
    peers.control(from_client, "session.detach", name="s")
    peers.control(not from_client, "session.detached", name="s", code=0)
    peers.begin()  # another session of that name
    peers.transfer(True)
    peers.completed(False, (0, 0))
    assert confirms(peers, columns="outcome ended_by end_ts_ns latency_ns") == [
        ("none", "channel-close", 5000, None),
        ("ack", None, None, 1000),
    ]


def test_a_refused_attach_ends_no_session():
    peers = Peers(1)
    peers.begin()
    peers.transfer(True)
    peers.control(True, "session.attach", channel=2, name="s")
    peers.control(False, "session.detached", channel=2, name="s", code=1)
    done = peers.completed(False, (0, 0))
    assert confirms(peers) == [(0, "ack", done, None, None)]


def test_a_session_with_a_timeout_goes_on_on_another_channel():
    peers = Peers(1)
    peers.begin()
    peers.control(True, "session.request-timeout", timeout=300)
    peers.control(False, "session.timeout", timeout=300)
    peers.transfer(True)
    peers.transfer(True)
    peers.control(True, "session.detach", name="s")
    peers.control(False, "session.detached", name="s", code=0)
    peers.begin(channel=2, point=1)
    peers.transfer(True, channel=2)  # once more
    done = peers.completed(False, (0, 1), channel=2)
    assert confirms(peers, columns="publish_seq publish_frame_no confirm_frame_no") == [(0, 6, done), (1, 7, done)]


def test_a_session_that_the_broker_does_not_know_any_more():
    peers = Peers(1)
    peers.begin()
    peers.control(False, "session.timeout", timeout=300)
    peers.transfer(True)
    peers.begin(channel=2)
    peers.control(False, "session.expected", channel=2, commands="[]")
    peers.transfer(True, channel=2)
    done = peers.completed(False, (0, 0), channel=2)
    assert confirms(peers, columns="confirm_frame_no ended_by end_ts_ns") == [
        (None, "channel-close", 10000),
        (done, None, None),
    ]


@pytest.mark.parametrize("timeout", [300, None])
def test_a_session_goes_on_on_another_connection(timeout):
    both = lost(timeout=timeout), resumed()
    assert confirms(*both, columns="connection_id outcome confirm_ts_ns latency_ns ended_by end_ts_ns multiple") == [
        (1, "ack", 104_000, 99_000, None, None, False)
    ]
    assert settlements(*both, columns="connection_id outcome settle_ts_ns ended_by multiple") == [
        (1, "ack", 105_000, None, False)
    ]
    assert requests(*both, columns="connection_id request response outcome ended_by") == [
        (1, "execution.sync", "session.completed", "ok", None)
    ]
    assert commands(*both, columns="connection_id from_client method command_id answer_ts_ns ended_by") == [
        (1, True, "message.transfer", 0, 104_000, None),
        (1, False, "message.transfer", 0, None, "connection-close"),
        (1, True, "execution.sync", 1, 104_000, None),
        (2, True, "message.accept", 2, None, "capture-end"),
    ]


@pytest.mark.parametrize(
    "other", [resumed(user="other"), resumed(server_ip="::2"), resumed(vhost="v"), resumed(point=0), Peers(2)]
)
def test_other_sessions_say_nothing(other):
    assert confirms(lost(), other) == [(0, "none", None, "connection-close", 9000)]
    assert settlements(lost(), other) == [(0, "none", None, "connection-close", 9000)]
    assert requests(lost(), other, columns="outcome ended_by") == [("none", "connection-close")]


def test_a_session_without_a_timeout_ends_with_its_connection():
    assert confirms(lost(timeout=0), resumed()) == [(0, "none", None, "connection-close", 9000)]
    parts = walk(tables_of(lost(timeout=0)), SessionStatistics)
    assert {*parts} == {"confirms", "settlements", "rpcs"}


def test_only_sessions_that_may_go_on_are_brought_together():
    peers = Peers(1)
    peers.begin()
    peers.transfer(True)
    peers.completed(False, (0, 0))
    assert {*walk(tables_of(peers), SessionStatistics)} == {"confirms"}
    assert {*walk(tables_of(resumed()), SessionStatistics)} == {
        "confirms_of_sessions", "settlements_of_sessions", "rpcs_of_sessions",
    }  # fmt: skip


def test_an_evicted_command():
    peers = Peers(1)
    peers.begin()
    for _ in range(3):
        peers.transfer(True)
    found = walk(tables_of(peers), lambda: SessionStatistics(limit=2))["confirms"]
    assert sorted(row["ended_by"] for row in pa.concat_tables(found).to_pylist()) == [
        "capture-end", "capture-end", "evicted",
    ]  # fmt: skip


# ------------------------------------------------------------------------------------------------------- settlements


def test_deliveries_are_accepted_rejected_and_released():
    peers = Peers(1)
    peers.begin()
    peers.command(True, "message.subscribe", queue="q", destination="d")
    for _ in range(5):
        peers.transfer(False)
    peers.completed(True, (0, 4))  # received, and not accepted
    accepted = peers.settle("accept", (0, 1))
    rejected = peers.settle("reject", (3, 3), code=0)
    released = peers.settle("release", (2, 2))
    columns = "delivery_tag consumer_tag queue outcome settle_frame_no multiple requeue ended_by"
    assert settlements(peers, columns=columns) == [
        (0, "d", "q", "ack", accepted, True, None, None),
        (1, "d", "q", "ack", accepted, True, None, None),
        (2, "d", "q", "nack", released, False, True, None),
        (3, "d", "q", "reject", rejected, False, False, None),
        (4, "d", "q", "none", None, None, None, "capture-end"),
    ]


def test_what_need_not_be_accepted_is_settled_by_itself():
    peers = Peers(1)
    peers.begin()
    peers.transfer(False, mode=1)
    peers.transfer(False, acquire=1)
    peers.transfer(False, acquire=1)
    peers.transfer(False, acquire=1)
    peers.completed(True, (0, 1))
    taken = peers.settle("accept", (3, 3))
    peers.transfer(False, accept_mode=None, no_ack=None)
    assert settlements(peers, columns="delivery_tag outcome settle_frame_no requeue ended_by end_ts_ns") == [
        (0, "auto", None, None, None, None),
        (1, "auto", None, None, None, None),
        (2, "auto", None, None, None, None),
        (3, "ack", taken, None, None, None),
        (4, "unknown", None, None, "capture-end", 11000),
    ]


def test_in_a_transaction_what_is_accepted_takes_effect_with_the_commit():
    peers = Peers(1)
    peers.begin()
    peers.command(True, "tx.select")
    for _ in range(4):
        peers.transfer(False)
    peers.settle("accept", (0, 0), (2, 2))
    peers.command(True, "tx.commit")
    peers.settle("accept", (1, 1))
    done = peers.completed(False, (0, 2))
    peers.command(True, "tx.rollback")
    peers.settle("accept", (3, 3))
    found = settlements(peers, columns="delivery_tag outcome settle_frame_no multiple ended_by end_ts_ns")
    assert found == [
        (0, "ack", done, True, None, None),
        (1, "none", None, None, "rollback", 13000),
        (2, "ack", done, True, None, None),
        (3, "none", None, None, "capture-end", 15000),
    ]


def test_a_rollback_ends_what_was_accepted_before_it():
    peers = Peers(1)
    peers.begin()
    peers.command(True, "tx.select")
    for number in (0, 1):
        peers.transfer(False)
        peers.settle("accept", (number, number))
        peers.command(True, "tx.rollback")
    peers.settle("accept", (1, 1))
    peers.control(True, "session.detach", name="s")
    assert settlements(peers) == [
        (0, "none", None, "rollback", 7000),
        (1, "none", None, "channel-close", 12000),
    ]


def test_after_a_rollback_a_gap_may_hold_what_settles():
    peers = Peers(1)
    peers.begin()
    peers.command(True, "tx.select")
    peers.transfer(False)
    peers.settle("accept", (0, 0))
    peers.command(True, "tx.rollback")
    peers.lose(from_client=True)
    peers.command(True, "message.flow", command_id=None)
    assert settlements(peers) == [(0, "none", None, "gap", 8000)]


def test_a_gap_that_is_known_when_the_session_is_over():
    """As where the last segments of a direction are missing."""
    peers = Peers(1)
    peers.begin()
    peers.transfer(False)
    peers.control(False, "session.detached", name="s", code=0)
    peers.lose(from_client=True)
    assert settlements(peers) == [(0, "none", None, "gap", 6000)]
    assert commands(peers, columns="ended_by") == [("gap",)]


@pytest.mark.parametrize("who", ["client", "server", "nobody"])
def test_a_commit_whose_completion_never_came(who):
    """The server completed it in a gap, or the session ended first."""
    peers, other = Peers(1), Peers(2)
    for each in (peers, other):
        each.begin()
        each.command(True, "tx.select")
        each.transfer(False)
        each.settle("accept", (0, 0))
        each.command(True, "tx.commit")
        if each is peers:
            each.lose(from_client=False)
            each.control(False, "session.flush")
        if who != "nobody":
            each.control(who == "client", "session.detach", name="s")
    ended = {"client": ("channel-close", 8000), "server": ("channel-close", 8000), "nobody": ("capture-end", 8000)}[who]
    assert settlements(peers) == [(0, "none", None, "gap", 8000)]
    assert settlements(other) == [(0, "none", None, *ended)]


def test_a_commit_whose_completion_may_be_lost():
    peers = Peers(1)
    peers.begin()
    peers.command(True, "tx.select")
    peers.transfer(False)
    peers.settle("accept", (0, 0))
    peers.command(True, "tx.commit")
    peers.lose(from_client=False)
    peers.completed(False, (0, 2))
    assert settlements(peers) == [(0, "none", None, "gap", 8000)]


def test_a_commit_whose_id_is_unknown():
    peers = Peers(1)
    peers.begin()
    peers.command(True, "tx.select")
    peers.transfer(False)
    peers.settle("accept", (0, 0))
    peers.command(True, "tx.commit", command_id=None)
    peers.completed(False, (0, 2))
    assert settlements(peers) == [(0, "none", None, "gap", 9000)]


def branch(peers: Peers, how: str, xid: str, status: int | None = None) -> int:
    """A command of dtx and its result; return the frame number of that."""
    number = peers.command(True, f"dtx.{how}", xid=f'{{"format":1,"global_id":"{xid}"}}', sync=False)
    value = None if status is None else f'{{"$dtx.xa-result":{{"status":{status}}}}}'
    peers.command(False, "execution.result", sync=False, command_id_sequence_no=number, value=value)
    return len(peers.frames) - 1


@pytest.mark.parametrize(
    ("how", "status", "outcome", "ended_by"),
    [
        ("commit", 0, "ack", None), ("commit", 4, "ack", None), ("commit", 1, "none", "rollback"),
        ("rollback", 0, "none", "rollback"), ("rollback", 4, "ack", None), ("prepare", 2, "none", "rollback"),
        ("commit", 6, "unknown", "channel-close"), ("prepare", 0, "unknown", "channel-close"),
        ("commit", None, "unknown", "channel-close"), ("end", 0, "unknown", "channel-close"),
    ],
)  # fmt: skip
def test_in_a_distributed_transaction_what_is_accepted_takes_effect_with_the_result(how, status, outcome, ended_by):
    peers = Peers(1)
    peers.begin()
    peers.command(True, "dtx.select")
    branch(peers, "start", "a", 0)
    for _ in range(5):
        peers.transfer(False)
    peers.settle("accept", (1, 2))
    branch(peers, "end", "a", 0)
    outside = peers.settle("accept", (3, 3))
    branch(peers, "start", "b", 0)
    peers.settle("accept", (4, 4))
    branch(peers, "end", "b", 0)
    branch(peers, "prepare", "a", 0)
    done = branch(peers, how, "a", status)
    branch(peers, "start", "c", 0)
    peers.settle("accept", (5, 5))
    peers.control(True, "session.detach", name="s")
    found = settlements(peers, columns="delivery_tag outcome settle_frame_no multiple ended_by")
    in_branch = (outcome, done, True) if outcome == "ack" else (outcome, None, None)
    assert found == [
        (1, *in_branch, ended_by),
        (2, *in_branch, ended_by),
        (3, "ack", outside, False, None),
        (4, "unknown", None, None, "channel-close"),
        (5, "none", None, None, "channel-close"),  # its branch went with the session
    ]


def test_whether_a_branch_is_open_is_unknown_after_a_gap():
    peers = Peers(1)
    peers.begin()
    peers.command(True, "dtx.select")
    for _ in range(2):
        peers.transfer(False)
    peers.settle("accept", (0, 0))
    peers.lose(from_client=True)
    peers.settle("accept", (1, 1))
    assert settlements(peers, columns="delivery_tag outcome ended_by") == [(0, "ack", None), (1, "none", "gap")]


def joined_in_the_middle() -> Peers:
    """A session whose beginning is not in the capture, with an accepted delivery and one that is outstanding."""
    peers = Peers(1)
    peers.transfer(False)
    peers.transfer(False)
    peers.settle("accept", (0, 0))
    return peers


@pytest.mark.parametrize(
    ("then", "outcome", "ended_by"),
    [
        ("tx.commit", "ack", None), ("tx.rollback", "none", "rollback"), ("dtx.end", "none", "capture-end"),
        ("tx.select", "ack", None), ("dtx.select", "ack", None), ("dtx.start", "ack", None), (None, "ack", None),
    ],
)  # fmt: skip
def test_what_was_accepted_before_the_first_sign_of_a_transaction(then, outcome, ended_by):
    """It is part of one that ends then; before one that begins it is in none."""
    peers = joined_in_the_middle()
    accepted = len(peers.frames) - 1
    if then is not None:
        peers.command(True, then, xid="a" if then in ("dtx.start", "dtx.end") else None)
    done = peers.completed(False, (0, 1))
    at = None if outcome != "ack" else done if then == "tx.commit" else accepted
    found = settlements(peers, columns="delivery_tag outcome settle_frame_no ended_by")
    assert found == [(0, outcome, at, ended_by), (1, "none", None, "capture-end")]


def test_no_transaction_lasts_longer_than_a_minute_if_its_beginning_was_not_seen():
    peers = joined_in_the_middle()
    peers.transfer(False)
    for row in (peers.frames[-1], peers.messages[-1]):
        row["ts_ns"] += 60_000_000_000
    peers.command(True, "tx.rollback")
    assert settlements(peers, columns="delivery_tag outcome settle_frame_no ended_by")[0] == (0, "ack", 2, None)


def test_a_transaction_may_end_in_a_gap():
    """What was accepted before the gap may be committed, or in none; what comes after it is part of what ends then."""
    peers = Peers(1)
    peers.begin()
    peers.transfer(False)
    peers.transfer(False)
    peers.transfer(False)
    peers.settle("accept", (0, 0))
    peers.lose(from_client=True)
    peers.settle("accept", (1, 1))
    peers.lose(from_client=True)
    peers.settle("accept", (2, 2))
    peers.command(True, "tx.commit")
    peers.completed(False, (0, 3))
    assert settlements(peers, columns="delivery_tag outcome ended_by") == [
        (0, "ack", None),
        (1, "none", "gap"),
        (2, "ack", None),
    ]


def test_a_branch_that_is_not_over_at_the_end_of_the_capture():
    peers = Peers(1)
    peers.begin()
    branch(peers, "start", "a", 0)
    peers.transfer(False)
    peers.settle("accept", (1, 1))
    branch(peers, "end", "a", 0)
    assert settlements(peers, columns="delivery_tag outcome ended_by") == [(1, "none", "capture-end")]


def test_sessions_that_were_attached_before_the_capture():
    """They have no names, and are those of their channels; ids are those that answers prove."""
    peers = Peers(1)
    for channel in (1, 2):
        peers.ids[None, True] = peers.ids[None, False] = 7
        peers.transfer(True, session=None, channel=channel)
        peers.transfer(False, session=None, channel=channel)
    done = peers.completed(False, (0, 7), session=None, channel=2)
    taken = peers.settle("accept", (7, 7), session=None)
    assert confirms(peers, columns="channel publish_seq outcome confirm_frame_no ended_by") == [
        (1, 7, "none", None, "capture-end"),
        (2, 7, "ack", done, None),
    ]
    assert settlements(peers, columns="channel delivery_tag settle_frame_no") == [(1, 7, taken), (2, 7, None)]


@pytest.mark.parametrize("sent", [1, 2, 3])
def test_what_was_sent_before_the_name_of_a_session_was_seen_is_of_it(sent):
    """The capture begins behind session.attach; session.attached has the name."""
    peers = Peers(1)
    peers.ids["s", True] = 0
    for number in range(sent):
        peers.ids[None, True] = number
        peers.transfer(True, session=None)
    peers.control(False, "session.attached", name="s")
    done = peers.completed(False, (0, sent - 1))
    peers.ids["s", True] = sent
    peers.transfer(True)
    assert confirms(peers, columns="publish_seq outcome confirm_frame_no ended_by") == [
        *((number, "ack", done, None) for number in range(sent)),
        (sent, "none", None, "capture-end"),
    ]


def test_of_a_command_without_an_id_no_answer_is_known():
    """As in the middle of a capture: its row says so, unless none is needed."""
    peers = Peers(1)
    for mode, acquire in ((0, 0), (1, 0), (0, 1)):
        peers.transfer(False, mode=mode, acquire=acquire, delivery_tag=None)
    peers.settle("accept", (7, 7))
    peers.transfer(True, publish_seq=None)
    peers.transfer(True, mode=1, publish_seq=None)
    peers.command(True, "execution.sync", command_id=None)
    peers.completed(False, (0, 20))
    assert settlements(peers) == [
        (None, "none", None, "gap", 0),
        (None, "auto", None, None, None),
        (None, "unknown", None, "gap", 2000),
    ]
    assert confirms(peers) == [(None, "none", None, "gap", 4000)]
    assert requests(peers) == [("execution.sync", None, "none", None, "gap")]


# ---------------------------------------------------------------------------------------------------------- requests


def test_commands_that_ask():
    peers = Peers(1)
    peers.begin()
    peers.command(True, "queue.declare", queue="q", sync=False)
    peers.command(True, "queue.query", queue="q", sync=False)
    result = len(peers.frames)
    peers.command(False, "execution.result", sync=False, command_id_sequence_no=1)
    peers.command(True, "execution.sync")
    done = peers.completed(False, (0, 2))
    peers.command(True, "queue.delete", queue="r")
    failed = len(peers.frames)
    peers.command(False, "execution.exception", sync=False, command_id_sequence_no=3, error_code=404, description="no")
    peers.command(True, "execution.sync")
    columns = "request queue response outcome response_frame_no reply_code reply_text ended_by"
    assert requests(peers, columns=columns) == [
        ("queue.query", "q", "execution.result", "ok", result, None, None, None),
        ("execution.sync", None, "session.completed", "ok", done, None, None, None),
        ("queue.delete", "r", "execution.exception", "error", failed, 404, "no", None),
        ("execution.sync", None, None, "none", None, None, None, "discarded"),
    ]


def test_steps_of_distributed_transactions_fail_by_their_result():
    peers = Peers(1)
    peers.begin()
    for number, (name, status) in enumerate([("start", "{}"), ("end", '{"status":7}'), ("prepare", '{"status":1}')]):
        peers.command(True, f"dtx.{name}", xid='{"format":1}', sync=False)
        value = f'{{"$dtx.xa-result":{status}}}'
        peers.command(False, "execution.result", sync=False, command_id_sequence_no=number, value=value)
    assert requests(peers, columns="request outcome reply_code") == [
        ("dtx.start", "ok", None),
        ("dtx.end", "ok", None),
        ("dtx.prepare", "error", 1),
    ]


# ---------------------------------------------------------------------------------------------------------- commands


def test_every_command_is_completed_or_fails():
    """Also results, what asks for nothing, and ids that wrap."""
    peers = Peers(1)
    peers.begin(point=2**32 - 2)
    peers.command(True, "queue.declare", sync=False)
    peers.command(True, "queue.query", sync=False)
    peers.ids["s", True] = 2**32
    result = peers.command(False, "execution.result", sync=False, command_id_sequence_no=2**32 - 1)
    peers.transfer(True, mode=1)
    first = peers.completed(False, (2**32 - 2, 0))
    delivery = peers.transfer(False)
    second = peers.completed(True, (result, delivery))
    peers.settle("accept", (delivery, delivery))
    peers.command(True, "queue.delete", sync=False)
    failed = len(peers.frames)
    peers.command(False, "execution.exception", sync=False, command_id_sequence_no=2, error_code=404, description="no")
    peers.command(True, "message.flow", sync=False)
    columns = "from_client method command_id outcome answer_frame_no reply_code reply_text ended_by latency_ns"
    assert commands(peers, columns=columns) == [
        (True, "queue.declare", 2**32 - 2, "ok", first, None, None, None, 4000),
        (True, "queue.query", 2**32 - 1, "ok", first, None, None, None, 3000),
        (False, "execution.result", result, "ok", second, None, None, None, 4000),
        (True, "message.transfer", 2**32, "ok", first, None, None, None, 1000),
        (False, "message.transfer", delivery, "ok", second, None, None, None, 1000),
        (True, "message.accept", 2**32 + 1, "none", None, None, None, "channel-close", None),
        (True, "queue.delete", 2**32 + 2, "error", failed, 404, "no", None, 1000),
        (False, "execution.exception", delivery + 1, "none", None, None, None, "channel-close", None),
        (True, "message.flow", 2**32 + 3, "none", None, None, None, "discarded", None),
    ]


def test_commands_that_gaps_hide():
    peers = Peers(1)
    peers.begin()
    peers.command(True, "message.flow", sync=False)
    peers.lose(from_client=False)
    peers.command(True, "message.flow", sync=False)
    peers.command(True, "message.flow", sync=False, command_id=None)
    done = peers.completed(False, (0, 2))
    assert commands(peers) == [
        ("message.flow", 0, "none", None, "gap"),
        ("message.flow", 1, "ok", done, None),
        ("message.flow", None, "none", None, "gap"),
    ]


# ------------------------------------------------------------------------------------------------------ in any manner


def test_pairs_are_read_from_texts():
    texts = pa.chunked_array([["[[0,3],[7,7]]", None, "[]"], ["[[1]]", "[[4294967295,12]]", "", "x9 8"]], pa.string())
    pairs, ends = pairs_of(texts)
    assert pairs.tolist() == [[0, 3], [7, 7], [2**32 - 1, 12], [9, 8]]
    assert ends.tolist() == [0, 2, 2, 2, 2, 3, 3, 4]
    assert pairs_of(texts.slice(1, 2))[1].tolist() == [0, 0, 0]


def test_numbers_beyond_63_bits_are_negative():
    texts = pa.chunked_array([["[18446744073709551615,9223372036854775807]", None, "[9223372036854775808,0]", "[]"]])
    numbers, ends = numbers_in(texts)
    assert [number if number >= 0 else None for number in numbers.tolist()] == [None, 2**63 - 1, None, 0]
    assert ends.tolist() == [0, 2, 2, 4, 4]
    assert [len(each) for each in numbers_in(texts.slice(3))] == [0, 2]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("make", "seed"), [*((SessionStatistics, seed) for seed in range(3)), (SessionCommands, 3)])
def test_anything_in_every_manner(make, seed):
    chance = random.Random(seed)
    same_in_every_manner(tables_of(*(any_peers(chance, number) for number in range(1, 8))), make)


@pytest.mark.parametrize("make", [SessionStatistics, SessionCommands])
def test_recordings_in_every_manner(make):
    same_in_every_manner(together(map(recorded, CAPTURES)), make, (7, 100))


@pytest.mark.parametrize("make", [Rpcs, Heartbeats])
def test_controls_and_heartbeats_in_every_manner(make):
    chance = random.Random(7)
    made = tables_of(*(any_peers(chance, number) for number in range(1, 6)))
    same_in_every_manner(together([*map(recorded, CAPTURES), made]), make, (7, 100))


@pytest.mark.parametrize(
    ("name", "code", "found"),
    [
        ("s", 0, ("session.detached", "ok", None)),
        ("s", 3, ("session.detached", "error", 3)),
        ("", 3, ("session.detached", "error", 3)),
        ("t", 0, (None, "none", None)),
    ],
)
def test_a_detached_answers_the_request_that_is_open(name, code, found):
    peers = Peers(1)
    peers.begin()
    peers.control(True, "session.detach", name="s")
    peers.control(False, "session.detached", name=name, code=code)
    rows = walked(tables_of(peers), [Rpcs()])["rpcs"].to_pylist()
    answers = {row["request"]: (row["response"], row["outcome"], row["reply_code"]) for row in rows}
    assert answers == {"session.attach": ("session.attached", "ok", None), "session.detach": found}


def test_a_detached_may_refuse_an_attach():
    peers = Peers(1)
    peers.control(True, "session.attach", name="s")
    peers.control(False, "session.detached", name="s", code=1)
    (row,) = walked(tables_of(peers), [Rpcs()])["rpcs"].to_pylist()
    assert (row["request"], row["response"], row["outcome"], row["reply_code"]) == (
        "session.attach", "session.detached", "error", 1,
    )  # fmt: skip


@pytest.mark.compiled
def test_compiled():
    chance = random.Random(3)
    made = tables_of(*(any_peers(chance, number) for number in range(1, 20)))
    found = together([*map(recorded, CAPTURES), made])
    plain, compiled = (walk(found, lambda c=c: SessionStatistics(compiled=c), 500) for c in (False, True))
    names: set[str] = {*plain, *compiled}

    def sorted_rows(parts: dict[str, list[pa.Table]], name: str) -> list[str]:
        return sorted(map(repr, rows_of(parts, name)))

    assert {name: sorted_rows(plain, name) for name in names} == {name: sorted_rows(compiled, name) for name in names}
