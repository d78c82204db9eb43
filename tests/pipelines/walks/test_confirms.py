from __future__ import annotations

import random
from functools import partial
from typing import Any

import numpy as np
import pytest

from amqpscope.dissector.kernels.kernel import call
from amqpscope.pipelines import jobs
from amqpscope.pipelines.amqp091.confirms import returns
from amqpscope.pipelines.amqp091.confirms.confirms import Confirms
from amqpscope.pipelines.model import store
from amqpscope.pipelines.run.engine import walked
from tests.pipelines.scenario import TICK, Connection, arrow
from tests.pipelines.walks.properties import check_made


def up(connection: Connection) -> Connection:
    """A connection of which the server was seen."""
    connection.server("channel.open-ok")
    return connection


# Each scenario gives a connection and, for each publish number in order, the columns that must be.


def single_acks() -> tuple[Connection, list[dict[str, Any]]]:
    c = up(Connection())
    first, second = c.publish(1, message_id="m", routing_key="k"), c.publish(2)
    late, early = c.ack(2), c.ack(1)
    return c, [
        {
            "publish_seq": 1,
            "channel": 1,
            "channel_epoch": 1,
            "protocol": "amqp-0-9-1",
            "outcome": "ack",
            "multiple": False,
            "publish_frame_no": first,
            "publish_packet": first + 1,
            "publish_capture": "a.pcap",
            "publish_ts_ns": first * TICK,
            "confirm_frame_no": early,
            "confirm_packet": early + 1,
            "confirm_capture": "a.pcap",
            "confirm_ts_ns": early * TICK,
            "latency_ns": (early - first) * TICK,
            "returned": False,
            "reply_code": None,
            "ended_by": None,
            "end_ts_ns": None,
            "message_id": "m",
            "routing_key": "k",
            "exchange": "",
            "body_size": 5,
            "records": 1,
            "stream": None,
        },
        {"publish_seq": 2, "confirm_frame_no": late, "latency_ns": (late - second) * TICK},
    ]


def many_answered_behind_a_gap() -> tuple[Connection, list[dict[str, Any]]]:
    """What answers many does not tell whether one of them had an answer that was lost; one of its own does."""
    c = up(Connection())
    c.publish(1)
    c.publish(2)
    gap = c.lose(from_client=False)
    c.ack(2)
    c.publish(3)
    many = c.ack(3, True)
    lost = {"outcome": "none", "ended_by": "gap", "end_ts_ns": gap * TICK, "latency_ns": None}
    return c, [lost, {"outcome": "ack", "confirm_frame_no": gap}, {"outcome": "ack", "confirm_frame_no": many}]


def answered_in_front_of_the_close() -> tuple[Connection, list[dict[str, Any]]]:
    """That something was lost shows after the close."""
    c = up(Connection())
    c.publish(1, mandatory=True)
    c.client("channel.close", reply_code=200)
    gap = c.lose(from_client=False)
    c.server("channel.close-ok")
    return c, [{"outcome": "none", "ended_by": "gap", "end_ts_ns": gap * TICK, "returned": None}]


def times_of_what_was_not_finished() -> tuple[Connection, list[dict[str, Any]]]:
    c = up(Connection())
    c.publish(1, is_partial=True, unfinished=True)
    c.ack(1)
    return c, [{"outcome": "ack", "latency_ns": None}]


def multiple_after_out_of_order_singles() -> tuple[Connection, list[dict[str, Any]]]:
    c = up(Connection())
    for number in range(1, 8):
        c.publish(number)
    five, two, all_to_6, again, seven = c.ack(5), c.ack(2), c.ack(6, True), c.ack(3), c.ack(7, True)
    answers = [
        (all_to_6, True),
        (two, False),
        (all_to_6, True),
        (all_to_6, True),
        (five, False),
        (all_to_6, True),
        (seven, True),
    ]
    assert again > all_to_6  # too late: 3 was covered before
    return c, [{"outcome": "ack", "confirm_frame_no": frame, "multiple": multiple} for frame, multiple in answers]


def rejected_publish() -> tuple[Connection, list[dict[str, Any]]]:
    c = up(Connection())
    for number in range(1, 5):
        c.publish(number)
    c.ack(1)
    no = c.nack(3, True)
    last = c.nack(4)
    return c, [
        {"outcome": "ack"},
        {"outcome": "nack", "multiple": True, "confirm_frame_no": no},
        {"outcome": "nack", "multiple": True, "confirm_frame_no": no},
        {"outcome": "nack", "multiple": False, "confirm_frame_no": last},
    ]


def before_confirm_mode() -> tuple[Connection, list[dict[str, Any]]]:
    c = up(Connection())
    c.publish(None)
    c.client("confirm.select")
    c.publish(1)
    c.server("confirm.select-ok")
    c.publish(2)
    c.client("confirm.select")
    c.server("confirm.select-ok")
    c.publish(3)
    c.ack(3, True)
    return c, [
        {"publish_seq": 1, "outcome": "ack"},
        {"publish_seq": 2, "outcome": "ack"},
        {"publish_seq": 3, "outcome": "ack"},
    ]


def publishes_without_a_number() -> tuple[Connection, list[dict[str, Any]]]:
    """After a gap in what the client says; no answer there is for a publish before it but what covers all."""
    c = up(Connection())
    c.publish(1)
    c.publish(2)
    c.lose(from_client=True)
    c.publish(None, mandatory=True)
    c.message("return", reply_code=312)
    c.publish(None)
    single = c.ack(2)
    c.ack(4)
    all_to_5 = c.ack(5, True)
    return c, [
        {"publish_seq": 1, "outcome": "ack", "confirm_frame_no": all_to_5, "returned": False},
        {"publish_seq": 2, "outcome": "ack", "confirm_frame_no": single, "returned": False},
    ]


def equal_returns() -> tuple[Connection, list[dict[str, Any]]]:
    c = up(Connection())
    c.publish(1, mandatory=True, body_hash=1)
    c.publish(2, mandatory=False, body_hash=1)  # not mandatory: cannot be returned
    c.publish(3, mandatory=True, body_hash=2)
    c.publish(4, mandatory=True, body_hash=1)
    c.publish(5, mandatory=True, body_hash=1)
    c.publish(6, mandatory=True, body_hash=1, content_type="text/plain")  # other properties
    for _ in range(2):
        c.message("return", body_hash=1, reply_code=312, cluster_id="")
    c.ack(4)
    c.ack(6, True)
    c.message("return", body_hash=7, reply_code=312)  # of nothing that was seen
    return c, [
        {
            "publish_seq": number,
            "returned": number in (1, 4),
            "reply_code": 312 if number in (1, 4) else None,
            "outcome": "ack",
        }
        for number in range(1, 7)
    ]


def behind_the_servers_close() -> tuple[Connection, list[dict[str, Any]]]:
    c = up(Connection())
    c.publish(1)
    c.publish(2)
    c.ack(1)
    close = c.server("channel.close", reply_code=404)
    c.publish(3)
    c.client("channel.close-ok")
    c.publish(4)
    return c, [
        {"outcome": "ack", "ended_by": None, "end_ts_ns": None},
        {
            "outcome": "none",
            "ended_by": "channel-close",
            "end_ts_ns": close * TICK,
            "latency_ns": None,
            "confirm_frame_no": None,
        },
        {"outcome": "none", "ended_by": "discarded", "end_ts_ns": close * TICK},
        {"outcome": "none", "ended_by": "discarded", "multiple": None},
    ]


def same_number_opened_again() -> tuple[Connection, list[dict[str, Any]]]:
    c = up(Connection())
    c.publish(1)
    c.publish(2)
    c.ack(1)
    close = c.client("channel.close")
    c.server("channel.close-ok")
    c.client("channel.open", epoch=2)
    c.publish(1, epoch=2)
    c.ack(5, True, epoch=2)
    return c, [
        {"channel_epoch": 1, "outcome": "ack", "multiple": False},
        {"channel_epoch": 1, "outcome": "none", "ended_by": "channel-close", "end_ts_ns": close * TICK},
        {"channel_epoch": 2, "outcome": "ack", "multiple": True},
    ]


def opened_again_after_an_unseen_close() -> tuple[Connection, list[dict[str, Any]]]:
    c = up(Connection())
    c.publish(1)
    c.client("channel.open", epoch=2)
    is_open = c.server("channel.open-ok", epoch=2)
    return c, [{"outcome": "none", "ended_by": "gap", "end_ts_ns": is_open * TICK}]


def opened_twice() -> tuple[Connection, list[dict[str, Any]]]:
    """Nothing is missing: the client opens what is open, and the server closes the connection for that."""
    c = up(Connection(closed_by="server"))
    c.publish(1)
    c.client("channel.open", epoch=2)
    close = c.server("connection.close", channel=0, epoch=0, reply_code=504)
    return c, [{"outcome": "none", "ended_by": "connection-close", "end_ts_ns": close * TICK}]


def connection_closed() -> tuple[Connection, list[dict[str, Any]]]:
    c = up(Connection(closed_by="client"))
    c.publish(1)
    close = c.client("connection.close", channel=0, epoch=0)
    c.server("connection.close-ok", channel=0, epoch=0)
    return c, [{"outcome": "none", "ended_by": "connection-close", "end_ts_ns": close * TICK}]


def connection_closed_by_the_server() -> tuple[Connection, list[dict[str, Any]]]:
    c = up(Connection(closed_by="server"))
    c.publish(1)
    close = c.server("connection.close", channel=0, epoch=0, reply_code=320)
    c.publish(2)
    return c, [
        {"ended_by": "connection-close", "end_ts_ns": close * TICK, "reply_code": None},
        {"ended_by": "discarded", "end_ts_ns": close * TICK},
    ]


def reset_without_a_close() -> tuple[Connection, list[dict[str, Any]]]:
    c = up(Connection(closed_by="server-reset", last_ts_ns=77 * TICK))
    c.publish(1)
    return c, [{"ended_by": "connection-close", "end_ts_ns": 77 * TICK}]


def returned_perhaps() -> tuple[Connection, list[dict[str, Any]]]:
    """Of a publish that is cut it is unknown whether a return is its own."""
    c = up(Connection())
    c.publish(1, mandatory=True, is_partial=True, body_hash=None)
    c.message("return", reply_code=312)
    c.ack(1)
    return c, [{"outcome": "ack", "returned": None, "reply_code": None}]


def capture_ends() -> tuple[Connection, list[dict[str, Any]]]:
    c = up(Connection(last_ts_ns=55 * TICK))
    c.publish(1)
    return c, [{"outcome": "none", "ended_by": "capture-end", "end_ts_ns": 55 * TICK}]


def answer_may_lie_in_a_gap() -> tuple[Connection, list[dict[str, Any]]]:
    c = up(Connection())
    c.publish(1)
    c.lose(from_client=True)  # no answer comes from there
    c.publish(2)
    first = c.lose(from_client=False)
    c.server("channel.flow")
    c.publish(3)
    second = c.lose(from_client=False)
    c.server("channel.flow")
    c.publish(1, channel=2)
    c.publish(4)
    c.ack(2)
    close = c.client("channel.close")
    c.server("channel.flow")
    c.lose(from_client=False)  # too late for channel 1
    last = c.server("channel.close-ok")
    return c, [
        {"outcome": "none", "ended_by": "gap", "end_ts_ns": first * TICK},
        {"outcome": "ack", "ended_by": None, "end_ts_ns": None},
        {"outcome": "none", "ended_by": "gap", "end_ts_ns": second * TICK},
        {"outcome": "none", "ended_by": "channel-close", "end_ts_ns": close * TICK},
        {"channel": 2, "outcome": "none", "ended_by": "gap", "end_ts_ns": last * TICK},
    ]


def an_unknown_method_that_may_have_been_an_answer() -> tuple[Connection, list[dict[str, Any]]]:
    """A bit of its ids was flipped, say."""
    c = up(Connection())
    c.publish(1)
    unknown = c.server(None, frame_type="method")
    c.publish(2)
    return c, [
        {"outcome": "none", "ended_by": "gap", "end_ts_ns": unknown * TICK},
        {"outcome": "none", "ended_by": "capture-end"},
    ]


def answers_cut_by_a_gap() -> tuple[Connection, list[dict[str, Any]]]:
    c = up(Connection())
    c.publish(1)
    c.publish(2)
    c.publish(3)
    c.publish(1, channel=2)
    c.ack(1, None, is_partial=True)  # perhaps it was `multiple`; that it is for 1 is certain
    c.server("basic.deliver", is_partial=True)
    tag = c.ack(None, None, is_partial=True)
    c.publish(4)
    ids = c.server(None, is_partial=True, frame_type="method")
    c.publish(5)
    return c, [
        {"outcome": "ack", "ended_by": None},
        {"outcome": "none", "ended_by": "gap", "end_ts_ns": (tag - 2) * TICK},
        {"outcome": "none", "ended_by": "gap", "end_ts_ns": (tag - 2) * TICK},
        {"outcome": "none", "ended_by": "gap", "end_ts_ns": ids * TICK},
        {"outcome": "none", "ended_by": "capture-end"},
        {"channel": 2, "outcome": "none", "ended_by": "capture-end"},
    ]


def connection_without_a_row() -> tuple[Connection, list[dict[str, Any]]]:
    c = up(Connection(connection_id=-1))  # of a dissection that was killed
    sent = c.publish(1)
    return c, [{"outcome": "none", "ended_by": "capture-end", "end_ts_ns": sent * TICK}]


def times_that_cannot_be() -> tuple[Connection, list[dict[str, Any]]]:
    c = up(Connection())
    c.publish(1, ts_ns=-(2**62) - 1)
    second = c.publish(2)
    c.ack(1, ts_ns=2**62)
    c.ack(2, ts_ns=2**62)
    return c, [{"outcome": "ack", "latency_ns": None}, {"outcome": "ack", "latency_ns": 2**62 - second * TICK}]


def answers_before_their_publish() -> tuple[Connection, list[dict[str, Any]]]:
    c = up(Connection())
    c.publish(1)
    early = c.ack(4, multiple=True)  # says nothing of what is published after it
    c.ack(2)
    c.publish(2)
    c.ack(3)
    c.publish(3)
    c.publish(4)
    second = c.ack(2)
    late = c.ack(9, multiple=True)
    c.publish(5)
    return c, [
        {"confirm_frame_no": early, "multiple": True},
        {"confirm_frame_no": second, "multiple": False},
        {"confirm_frame_no": late, "multiple": True},
        {"confirm_frame_no": late, "multiple": True},
        {"outcome": "none", "confirm_frame_no": None, "latency_ns": None},
    ]


def answers_of_other_channels_and_of_the_client() -> tuple[Connection, list[dict[str, Any]]]:
    c = up(Connection())
    c.publish(1)
    c.publish(1, channel=2)
    c.ack(1, client=True)
    c.ack(9, True, channel=2)
    return c, [{"channel": 1, "outcome": "none"}, {"channel": 2, "outcome": "ack"}]


def across_pages() -> tuple[Connection, list[dict[str, Any]]]:
    c = up(Connection())
    numbers = [1, 65535, 65536, 131072, 196607, 10**15]
    for number in numbers:
        c.publish(number)
    c.ack(65535)
    far = c.ack(10**15, True)
    near = c.ack(65536, True)
    assert near > far
    return c, [
        {"publish_seq": number, "confirm_frame_no": far if number != 65535 else far - 1, "multiple": number != 65535}
        for number in numbers
    ]


SCENARIOS = {
    f.__name__: f
    for f in (
        single_acks,
        many_answered_behind_a_gap,
        answered_in_front_of_the_close,
        times_of_what_was_not_finished,
        multiple_after_out_of_order_singles,
        rejected_publish,
        before_confirm_mode,
        publishes_without_a_number,
        equal_returns,
        behind_the_servers_close,
        same_number_opened_again,
        opened_again_after_an_unseen_close,
        opened_twice,
        connection_closed,
        connection_closed_by_the_server,
        reset_without_a_close,
        capture_ends,
        returned_perhaps,
        answer_may_lie_in_a_gap,
        answers_cut_by_a_gap,
        an_unknown_method_that_may_have_been_an_answer,
        answers_before_their_publish,
        times_that_cannot_be,
        connection_without_a_row,
        answers_of_other_channels_and_of_the_client,
        across_pages,
    )
}


def random_connection(seed: int) -> tuple[Connection, list[dict[str, Any]]]:
    """Publishes and answers at random; what must be is found by a loop over the frames."""
    chance = random.Random(seed)
    c = up(Connection())
    step = chance.choice([1, 1, 30000])  # now and then over several buckets
    numbers: list[int] = []
    sent: dict[int, int] = {}
    losses: list[int] = []
    for _ in range(chance.randint(1, 40)):
        if chance.random() < 0.5:
            numbers.append((numbers[-1] if numbers else 0) + chance.randint(1, step))
            sent[numbers[-1]] = c.publish(numbers[-1])
        elif numbers and chance.random() < 0.1:
            losses.append(c.lose(from_client=False))
        elif numbers:
            answer = chance.choice([c.ack, c.ack, c.nack])
            answer(max(1, chance.choice(numbers) + chance.choice([0, 0, 0, 1, -1])), chance.random() < 0.4)
    expected = []
    for number in numbers:
        answers = [
            f
            for f in c.frames
            if f.get("method") in ("basic.ack", "basic.nack")
            and f["frame_no"] > sent[number]
            and (f["delivery_tag"] == number or (f["multiple"] and f["delivery_tag"] >= number))
        ]
        first = min(answers, key=lambda f: f["frame_no"]) if answers else None
        behind = [loss for loss in losses if loss > sent[number]]
        if first and first["multiple"] and behind and behind[0] <= first["frame_no"]:
            alone = [f for f in answers if not f["multiple"]]
            first = min(alone, key=lambda f: f["frame_no"]) if alone else None
        expected.append(
            {
                "publish_seq": number,
                "outcome": first["method"].removeprefix("basic.") if first else "none",
                "confirm_frame_no": first and first["frame_no"],
                "multiple": first and first["multiple"],
                "ended_by": None if first else "gap" if behind else "capture-end",
                "end_ts_ns": None if first else behind[0] * TICK if behind else c.end,
            }
        )
    return c, expected


def one_direction_missing() -> tuple[Connection, list[dict[str, Any]]]:
    c = Connection()
    c.publish(1, mandatory=True)
    last = c.publish(2)
    nothing = {"outcome": "none", "ended_by": "gap", "end_ts_ns": last * TICK}
    return c, [nothing | {"returned": None}, nothing | {"returned": False}]


SCENARIOS["one_direction_missing"] = one_direction_missing
MADE = {name: scenario() for name, scenario in SCENARIOS.items()}
MADE |= {f"random {seed}": random_connection(seed) for seed in range(200)}
ORDER = ("channel", "channel_epoch", "publish_seq")
FEW = list(MADE.values())[:: len(MADE) // 24]
"""Some of them: batches of few events take long."""


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(name):
    check_made(Confirms, [MADE[name]], *ORDER, sizes=())


def test_rows_depend_on_nothing_but_events():
    check_made(Confirms, FEW, *ORDER, sizes=(1, 7))
    check_made(Confirms, MADE.values(), *ORDER, sizes=(1000,))


@pytest.mark.compiled
def test_compiled():
    check_made(partial(Confirms, compiled=True), MADE.values(), *ORDER, sizes=(1000,))


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.compiled)])
def test_what_lies_in_files_is_the_same(monkeypatch, compiled):
    monkeypatch.setattr(store, "SPILL", 1 << 10)
    monkeypatch.setattr(store, "STEP", 1 << 8)

    def small() -> Confirms:
        walk = Confirms(compiled=compiled)
        walk.waiting.room = walk.answers.room = 500
        return walk

    check_made(small, FEW, *ORDER, sizes=(7,))


def test_returns_of_more_than_are_expected_are_not_known(monkeypatch):
    monkeypatch.setattr(returns, "EXPECTED", 2)
    c = up(Connection())
    for number in range(1, 5):
        c.publish(number, mandatory=True, body_hash=number)
    for number in (1, 3):
        c.message("return", from_client=False, body_hash=number, reply_code=312)
    c.ack(3, True)
    c.publish(5, mandatory=True, body_hash=5)
    c.ack(5)
    found = {row["publish_seq"]: row["returned"] for row in walked(arrow([c]), [Confirms()])["confirms"].to_pylist()}
    assert found == {1: True, 2: False, 3: None, 4: None, 5: False}


@pytest.mark.parametrize("answered", [returns.LATE, 0])
def test_a_publish_of_unknown_number_may_be_returned(monkeypatch, answered):
    """The capture begins in its channel's life: nobody knows which number each publish has, so none is answered."""
    monkeypatch.setattr(returns, "LATE", answered)
    c = up(Connection())
    for number in range(3):
        c.publish(None, publish_seq_unsure=True, mandatory=number < 2, body_hash=number)
    c.message("return", body_hash=0, reply_code=312)
    for number in (71, 72, 73):
        c.ack(number)
    tables = arrow([c])
    found = jobs.confirms(*(tables[name] for name in ("amqp091_frames", "messages", "connections", "anomalies")))
    columns = ("publish_seq", "numbered_by", "outcome", "ended_by", "returned", "reply_code", "latency_ns")
    nothing = (None, None, "none", "gap")
    expected = [(*nothing, True, 312, None), (*nothing, None, None, None), (*nothing, False, None, None)]
    if not answered:
        expected[0] = expected[1]
    rows = sorted(found.to_pylist(), key=lambda row: row["publish_frame_no"])
    assert [tuple(row[name] for name in columns) for row in rows] == expected


def test_one_message_on_many_channels_is_found_on_its_own():
    made = returns.roomy(returns.fresh(), 256)
    for account in range(8):
        for epoch in range(16):
            for _ in range(2):
                call(returns.expect, False, made, account, epoch, 77, 1)
    assert np.count_nonzero(made[1]) == 128
    found = [call(returns.answer, False, made, 7, 15, 77, 312) for _ in range(3)]
    assert found == [254, 255, -1]


def test_what_waits_beyond_the_limit_is_evicted():
    c = up(Connection())
    for number in range(1, 8):
        c.publish(number)
    c.ack(7, True)
    rows = walked(arrow([c]), [Confirms(limit=5)])["confirms"].to_pylist()
    ended = {row["publish_seq"]: (row["outcome"], row["ended_by"]) for row in rows}
    assert ended == dict.fromkeys(range(1, 6), ("ack", None)) | dict.fromkeys((6, 7), ("none", "evicted"))
