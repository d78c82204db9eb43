import random
from typing import Any

from amqpscope.pipelines.connections.gaps import Gaps
from tests.pipelines.scenario import TICK, Connection, arrow
from tests.pipelines.walks.properties import check_made, checked

Made = tuple[Connection, list[dict[str, Any]]]


def between_frames_of_its_side() -> Made:
    c = Connection()
    c.client("basic.publish")
    c.server("basic.ack")
    at = c.lose(True)
    c.client("basic.publish")
    return c, [{"from_client": True, "code": "tcp-gap", "since_ts_ns": 0, "ts_ns": at * TICK, "frame_no": at}]


def before_any_frame_of_its_side() -> Made:
    c = Connection(first_ts_ns=-TICK)
    c.client("basic.publish")
    c.client("basic.publish")
    at = c.lose(False)
    return c, [{"from_client": False, "since_ts_ns": -TICK, "ts_ns": at * TICK}]


def one_after_the_other() -> Made:
    c = Connection()
    c.server("basic.ack")
    first = c.lose(False)
    c.server("basic.ack")
    c.client("basic.publish")
    second = c.lose(False)
    return c, [
        {"since_ts_ns": 0, "ts_ns": first * TICK},
        {"since_ts_ns": first * TICK, "ts_ns": second * TICK},
    ]


def none() -> Made:
    c = Connection()
    c.client("basic.publish")
    return c, []


def test_a_gap_lasts_from_the_last_frame_of_its_side() -> None:
    made = [between_frames_of_its_side(), before_any_frame_of_its_side(), one_after_the_other(), none()]
    check_made(Gaps, made, "ts_ns")


def test_gaps_of_random_connections_are_those_of_a_plain_loop() -> None:
    chance = random.Random(3)
    made = []
    for _ in range(30):
        c, expected = Connection(), []
        heard = {True: 0, False: 0}
        for _ in range(chance.randrange(12)):
            side = chance.random() < 0.5
            if chance.random() < 0.3:
                at = c.lose(side)
                expected.append({"since_ts_ns": heard[side], "ts_ns": at * TICK})
            heard[side] = TICK * (c.client("basic.publish") if side else c.server("basic.ack"))
        made.append((c, expected))
    check_made(Gaps, made, "ts_ns")
    assert len(checked(Gaps, arrow(c for c, _ in made))) == sum(len(rows) for _, rows in made)
