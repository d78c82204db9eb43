"""Errors of AMQP 0-10: cases by hand, and recordings in every manner."""

from __future__ import annotations

import random

from amqpscope.pipelines.amqp010.session_errors import SessionErrors
from amqpscope.pipelines.run.engine import walked
from tests.pipelines.walks.sessions010 import CAPTURES, Peers, any_peers, recorded, tables_of
from tests.pipelines.walks.talks import same_in_every_manner, together

COLUMNS = "frame_no method reply_code reply_text failed_method queue exchange"


def errors(*peers: Peers, columns: str = COLUMNS) -> list[tuple[object, ...]]:
    found = walked(tables_of(*peers), [SessionErrors()])["channel_errors"].to_pylist()
    found.sort(key=lambda row: (row["connection_id"], row["frame_no"]))
    return [tuple(row[name] for name in columns.split()) for row in found]


def test_an_exception_is_that_of_the_command_it_names():
    peers = Peers(1)
    peers.begin()
    peers.command(True, "queue.declare", queue="q")
    peers.transfer(True, destination="nowhere")
    peers.command(True, "queue.delete", session="t", queue="other")
    peers.command(True, "exchange.delete", exchange="e")
    for target in (1, 0, 2, 3):
        peers.command(False, "execution.exception", command_id_sequence_no=target, error_code=404, description="no",
                      class_code=8, command_code=3)  # fmt: skip
    assert errors(peers) == [
        (8, "execution.exception", 404, "no", "message.transfer", None, "nowhere"),
        (9, "execution.exception", 404, "no", "queue.declare", "q", None),
        (10, "execution.exception", 404, "no", "exchange.delete", None, "e"),
        (11, "execution.exception", 404, "no", "queue.purge", None, None),  # of which only the codes are known
    ]


def test_ids_wrap():
    peers = Peers(1)
    peers.begin(point=2**32 - 1)
    peers.command(True, "queue.declare", queue="q")
    peers.command(True, "queue.delete", queue="r")
    for target in (0, 2**32 - 1):
        peers.command(False, "execution.exception", command_id_sequence_no=target, error_code=404)
    assert errors(peers, columns="failed_method queue") == [("queue.delete", "r"), ("queue.declare", "q")]


def test_a_session_without_a_name_is_that_of_its_channel():
    peers = Peers(1)
    for channel in (1, 2):
        peers.ids[None, True] = 0
        peers.command(True, "queue.declare", session=None, channel=channel, queue=f"q{channel}")
    peers.command(False, "execution.exception", session=None, command_id_sequence_no=0, error_code=404)
    assert errors(peers, columns="failed_method queue") == [("queue.declare", "q1")]


def test_codes_of_success_are_no_errors():
    peers = Peers(1)
    peers.control(False, "session.detached", name="s", code=0)
    peers.control(True, "session.detached", name="s", code=None)
    peers.control(False, "session.detached", name="s", code=1)
    peers.control(True, "connection.close", None, 0, reply_code=200)
    peers.control(False, "connection.close", None, 0, reply_code=320, reply_text="down")
    assert errors(peers) == [
        (2, "session.detached", 1, None, None, None, None),
        (4, "connection.close", 320, "down", None, None, None),
    ]


def test_in_every_manner():
    chance = random.Random(1)
    made = tables_of(*(any_peers(chance, number) for number in range(1, 9)))
    same_in_every_manner(together([*map(recorded, CAPTURES), made]), SessionErrors, (1, 7, 100))
