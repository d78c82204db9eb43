from __future__ import annotations

import random
from functools import partial
from typing import Any

import pytest

from amqpscope.pipelines.amqp091.settlements.settlements import Settlements
from amqpscope.pipelines.run.engine import walked
from tests.pipelines.scenario import TICK, Connection, arrow
from tests.pipelines.walks.properties import check_made


def up(connection: Connection) -> Connection:
    """A connection of which both sides were seen."""
    connection.client("channel.open")
    connection.server("channel.open-ok")
    return connection


# Each scenario gives a connection and, for each delivery in the order of tags, the columns that must be.


def singly() -> tuple[Connection, list[dict[str, Any]]]:
    c = up(Connection())
    c.client("basic.consume", consumer_tag="c", queue="orders", no_ack=False)
    c.server("basic.consume-ok", consumer_tag="c")
    one, two, three, _ = (c.deliver(tag, routing_key="k", redelivered=tag == 2) for tag in range(1, 5))
    ack = c.ack(1, client=True)
    nack = c.nack(3, client=True, requeue=True)
    reject = c.client("basic.reject", delivery_tag=2, requeue=False)
    return c, [
        {
            "delivery_tag": 1,
            "protocol": "amqp-0-9-1",
            "kind": "deliver",
            "consumer_tag": "c",
            "queue": "orders",
            "exchange": "",
            "routing_key": "k",
            "redelivered": False,
            "body_size": 5,
            "deliver_frame_no": one,
            "deliver_packet": one + 1,
            "deliver_capture": "a.pcap",
            "deliver_ts_ns": one * TICK,
            "settle_frame_no": ack,
            "settle_packet": ack + 1,
            "settle_capture": "a.pcap",
            "settle_ts_ns": ack * TICK,
            "outcome": "ack",
            "multiple": False,
            "requeue": None,
            "ended_by": None,
            "end_ts_ns": None,
            "latency_ns": (ack - one) * TICK,
        },
        {"outcome": "reject", "requeue": False, "latency_ns": (reject - two) * TICK, "redelivered": True},
        {"outcome": "nack", "requeue": True, "latency_ns": (nack - three) * TICK},
        {"outcome": "none", "ended_by": "capture-end", "end_ts_ns": c.end, "settle_frame_no": None, "latency_ns": None},
    ]


def multiple() -> tuple[Connection, list[dict[str, Any]]]:
    c = up(Connection())
    for tag in range(1, 6):
        c.deliver(tag)
    single = c.ack(2, client=True)
    all_to_3 = c.ack(3, True, client=True)
    rest = c.nack(5, True, client=True, requeue=True)
    return c, [
        {"settle_frame_no": all_to_3, "outcome": "ack", "multiple": True},
        {"settle_frame_no": single, "outcome": "ack", "multiple": False},
        {"settle_frame_no": all_to_3, "outcome": "ack", "multiple": True},
        {"settle_frame_no": rest, "outcome": "nack", "multiple": True, "requeue": True},
        {"settle_frame_no": rest, "outcome": "nack"},
    ]


def tag_zero_means_all_outstanding() -> tuple[Connection, list[dict[str, Any]]]:
    c = up(Connection())
    c.deliver(1)
    c.deliver(2)
    first = c.ack(0, True, client=True)
    c.deliver(3)
    second = c.ack(0, True, client=True)
    c.deliver(4)
    c.ack(0, client=True)  # a single one of tag 0 is of no delivery
    return c, [
        {"settle_frame_no": first, "multiple": True},
        {"settle_frame_no": first},
        {"settle_frame_no": second},
        {"outcome": "none"},
    ]


def multiple_reaches_nothing_later() -> tuple[Connection, list[dict[str, Any]]]:
    c = up(Connection())
    c.deliver(1)
    early = c.ack(100, True, client=True)
    c.deliver(2)
    late = c.ack(2, True, client=True)
    return c, [{"settle_frame_no": early}, {"settle_frame_no": late}]


def no_ack() -> tuple[Connection, list[dict[str, Any]]]:
    c = up(Connection())
    c.client("basic.consume", consumer_tag="c", queue="q", no_ack=True)
    c.deliver(1, no_ack=True)
    c.ack(1, client=True)  # against the protocol
    return c, [
        {
            "outcome": "auto",
            "settle_ts_ns": None,
            "latency_ns": None,
            "ended_by": None,
            "end_ts_ns": None,
            "multiple": None,
        }
    ]


def consumer_from_before_the_capture() -> tuple[Connection, list[dict[str, Any]]]:
    c = up(Connection())
    c.deliver(7, no_ack=None, epoch=0)
    c.deliver(8, no_ack=None, epoch=0)
    ack = c.ack(7, client=True, epoch=0)
    return c, [
        {"outcome": "ack", "settle_frame_no": ack, "queue": None, "ended_by": None},
        {"outcome": "unknown", "ended_by": "capture-end", "end_ts_ns": c.end},
    ]


def gets_pipelined() -> tuple[Connection, list[dict[str, Any]]]:
    c = up(Connection())
    for queue in ("a", "b", "c"):
        c.client("basic.get", queue=queue)
    got = c.message("get", delivery_tag=1, no_ack=False)
    c.server("basic.get-empty")
    c.message("get", delivery_tag=2, no_ack=True)
    ack = c.ack(1, client=True)
    return c, [
        {"kind": "get", "queue": "a", "consumer_tag": None, "outcome": "ack", "latency_ns": (ack - got) * TICK},
        {"kind": "get", "queue": "c", "outcome": "auto"},
    ]


def gets_of_unknown_requests() -> tuple[Connection, list[dict[str, Any]]]:
    """What is acknowledged along with another may be what needs no acknowledgement."""
    c = up(Connection())
    for queue in ("a", "b", "a"):
        c.client("basic.get", queue=queue)
    for tag in (1, 2, 3):
        c.message("get", delivery_tag=tag, no_ack=None)
    ack = c.ack(2, multiple=True, client=True)
    return c, [
        {"outcome": "unknown", "queue": None, "ended_by": "gap"},
        {"outcome": "ack", "queue": None, "settle_frame_no": ack},
        {"outcome": "unknown", "queue": None, "ended_by": "capture-end"},
    ]


def recover() -> tuple[Connection, list[dict[str, Any]]]:
    c = up(Connection())
    c.deliver(1)
    c.deliver(2)
    c.deliver(3)
    c.ack(2, client=True)
    c.client("basic.recover", requeue=True)
    c.deliver(4)  # was on its way
    done = c.server("basic.recover-ok")
    c.deliver(5, redelivered=True)
    c.deliver(6, redelivered=True)
    c.ack(6, True, client=True)
    return c, [
        {"outcome": "none", "ended_by": "recover", "end_ts_ns": done * TICK, "latency_ns": None, "multiple": None},
        {"outcome": "ack"},
        {"outcome": "none", "ended_by": "recover"},
        {"outcome": "none", "ended_by": "recover", "end_ts_ns": done * TICK, "settle_frame_no": None},
        {"outcome": "ack", "multiple": True, "redelivered": True},
        {"outcome": "ack", "multiple": True},
    ]


def recover_behind_a_lost_ack() -> tuple[Connection, list[dict[str, Any]]]:
    """What was delivered before the gap may have been acknowledged; nothing is between recover and its answer."""
    c = up(Connection())
    c.deliver(1)
    c.deliver(2)
    lost = c.lose(from_client=True)
    c.ack(1, client=True)
    c.deliver(3)
    c.client("basic.recover", requeue=True)
    c.lose(from_client=True)
    c.client("basic.qos")
    done = c.server("basic.recover-ok")
    return c, [
        {"outcome": "ack", "ended_by": None},
        {"outcome": "none", "ended_by": "gap", "end_ts_ns": lost * TICK},
        {"outcome": "none", "ended_by": "recover", "end_ts_ns": done * TICK},
    ]


def recover_async_behind_a_lost_nack() -> tuple[Connection, list[dict[str, Any]]]:
    c = up(Connection())
    c.deliver(1)
    lost = c.lose(from_client=True)
    recovered = c.client("basic.recover-async", requeue=True)
    c.deliver(2)
    c.client("basic.recover-async", requeue=True)
    return c, [
        {"outcome": "none", "ended_by": "gap", "end_ts_ns": lost * TICK},
        {"outcome": "none", "ended_by": "recover", "end_ts_ns": (recovered + 4) * TICK},
    ]


def recover_that_was_lost() -> tuple[Connection, list[dict[str, Any]]]:
    """Before it may have been acknowledged what it would void."""
    c = up(Connection())
    c.deliver(1)
    lost = c.lose(from_client=True)
    c.client("basic.qos")
    c.server("basic.recover-ok")
    return c, [{"outcome": "none", "ended_by": "gap", "end_ts_ns": lost * TICK}]


def recover_async() -> tuple[Connection, list[dict[str, Any]]]:
    c = up(Connection())
    c.deliver(1)
    c.client("basic.recover-async", requeue=True)
    c.deliver(2)
    return c, [{"outcome": "none", "ended_by": "recover"}, {"outcome": "none", "ended_by": "capture-end"}]


def transaction() -> tuple[Connection, list[dict[str, Any]]]:
    c = up(Connection())
    for tag in range(1, 8):
        c.deliver(tag)
    plain = c.ack(1, client=True)
    c.client("tx.select")
    c.server("tx.select-ok")
    c.ack(2, client=True)
    c.nack(3, client=True, requeue=False)
    c.client("tx.commit")
    c.ack(4, client=True)  # after the commit: belongs to what follows
    committed = c.server("tx.commit-ok")
    c.ack(5, True, client=True)
    c.client("tx.rollback")
    back = c.server("tx.rollback-ok")
    c.ack(5, client=True)
    c.client("tx.commit")
    again = c.server("tx.commit-ok")
    c.ack(6, client=True)  # never committed
    return c, [
        {"outcome": "ack", "settle_frame_no": plain},
        {
            "outcome": "ack",
            "settle_frame_no": committed,
            "settle_ts_ns": committed * TICK,
            "settle_packet": committed + 1,
        },
        {"outcome": "nack", "settle_frame_no": committed, "requeue": False},
        {"outcome": "none", "ended_by": "rollback", "end_ts_ns": back * TICK, "settle_frame_no": None},
        {"outcome": "ack", "settle_frame_no": again, "multiple": False},
        {"outcome": "none", "ended_by": "capture-end"},
        {"outcome": "none", "ended_by": "capture-end"},
    ]


def commit_without_an_answer() -> tuple[Connection, list[dict[str, Any]]]:
    c = up(Connection())
    c.client("tx.select")
    c.deliver(1)
    c.ack(1, client=True)
    c.client("tx.commit")
    c.server("channel.close", reply_code=406)
    return c, [{"outcome": "none", "ended_by": "channel-close"}]


def closed_and_opened_again() -> tuple[Connection, list[dict[str, Any]]]:
    c = up(Connection())
    c.deliver(1)
    close = c.client("channel.close")
    c.deliver(2)  # was on its way
    c.server("channel.close-ok")
    c.client("channel.open", epoch=2)
    c.deliver(1, epoch=2)
    c.ack(0, True, client=True, epoch=2)
    return c, [
        {"channel_epoch": 1, "outcome": "none", "ended_by": "channel-close", "end_ts_ns": close * TICK},
        {"channel_epoch": 1, "outcome": "none", "ended_by": "discarded", "end_ts_ns": close * TICK},
        {"channel_epoch": 2, "outcome": "ack"},
    ]


def tag_of_a_consumer_used_again() -> tuple[Connection, list[dict[str, Any]]]:
    c = up(Connection())
    c.client("basic.consume", consumer_tag="c", queue="one")
    c.server("basic.consume-ok", consumer_tag="c")
    c.client("basic.consume", consumer_tag="", queue="two")
    c.server("basic.consume-ok", consumer_tag="amq.ctag-1")
    c.deliver(1, "c")
    c.deliver(2, "amq.ctag-1")
    c.client("basic.cancel", consumer_tag="c")
    c.client("basic.consume", consumer_tag="c", queue="three", no_wait=True)
    c.deliver(3, "c")
    return c, [{"queue": "one"}, {"queue": "two"}, {"queue": "three"}]


def across_buckets() -> tuple[Connection, list[dict[str, Any]]]:
    c = up(Connection())
    tags = [1, 65535, 65536, 200_000]
    for tag in tags:
        c.deliver(tag)
    last = c.ack(0, True, client=True)
    return c, [{"delivery_tag": tag, "settle_frame_no": last} for tag in tags]


def sent_after_the_servers_close() -> tuple[Connection, list[dict[str, Any]]]:
    c = up(Connection())
    c.deliver(1)
    c.deliver(2)
    c.deliver(1, channel=2)
    c.ack(7, client=True)  # was never given
    close = c.server("channel.close", reply_code=406)
    c.ack(2, True, client=True)
    c.ack(1, client=True, channel=2)
    c.server("connection.close", channel=0, epoch=0, reply_code=320)
    c.ack(1, client=True, channel=2)
    return c, [
        {"outcome": "none", "ended_by": "channel-close", "end_ts_ns": close * TICK},
        {"outcome": "none", "ended_by": "channel-close"},
        {"channel": 2, "outcome": "ack"},
    ]


def gap() -> tuple[Connection, list[dict[str, Any]]]:
    c = up(Connection())
    c.deliver(1)
    c.deliver(2)
    c.lose(from_client=False)  # no acknowledgement comes from there
    lost = c.lose(from_client=True)
    c.ack(2, client=True)
    c.deliver(3)
    c.deliver(1, channel=2)
    cut = c.frame(True, method="basic.nack", is_partial=True)
    c.deliver(4)
    return c, [
        {"outcome": "none", "ended_by": "gap", "end_ts_ns": lost * TICK},
        {"outcome": "ack", "ended_by": None},
        {"outcome": "none", "ended_by": "gap", "end_ts_ns": cut * TICK},
        {"outcome": "none", "ended_by": "capture-end"},
        {"channel": 2, "outcome": "none", "ended_by": "capture-end"},
    ]


def times_that_cannot_be() -> tuple[Connection, list[dict[str, Any]]]:
    c = up(Connection())
    c.deliver(1, ts_ns=-(2**63))
    c.ack(1, client=True, ts_ns=2**63 - 1)
    return c, [{"outcome": "ack", "latency_ns": None}]


def acknowledged_before_its_delivery() -> tuple[Connection, list[dict[str, Any]]]:
    c = up(Connection())
    c.ack(1, client=True)
    c.deliver(1)
    late = c.ack(1, client=True)
    return c, [{"outcome": "ack", "settle_frame_no": late}]


def many_acknowledged_behind_a_gap() -> tuple[Connection, list[dict[str, Any]]]:
    """What acknowledges many does not tell whether one of them was acknowledged in the gap."""
    c = up(Connection())
    c.deliver(1)
    c.deliver(2)
    gap = c.lose(from_client=True)
    c.ack(1, client=True)
    c.deliver(3)
    c.ack(3, True, client=True)
    return c, [
        {"outcome": "ack", "settle_frame_no": gap},
        {"outcome": "none", "ended_by": "gap", "end_ts_ns": gap * TICK, "latency_ns": None},
        {"outcome": "ack", "multiple": True},
    ]


def gap_behind_a_rollback() -> tuple[Connection, list[dict[str, Any]]]:
    """What was brought back may have been acknowledged again in it."""
    c = up(Connection())
    c.deliver(1)
    c.client("tx.select")
    c.server("tx.select-ok")
    c.ack(1, client=True)
    c.client("tx.rollback")
    c.server("tx.rollback-ok")
    gap = c.lose(from_client=True)
    c.client("tx.commit")
    c.server("tx.commit-ok")
    return c, [{"outcome": "none", "ended_by": "gap", "end_ts_ns": gap * TICK}]


def transaction_around_a_gap() -> tuple[Connection, list[dict[str, Any]]]:
    """A rollback may be lost; so is the beginning of it all."""
    c = up(Connection())
    c.deliver(1)
    c.lose(from_client=True)
    c.ack(1, client=True)
    c.client("tx.commit")
    done = c.server("tx.commit-ok")
    c.deliver(2)
    c.ack(2, client=True)
    c.lose(from_client=True)
    c.client("tx.commit")
    c.server("tx.commit-ok")
    return c, [
        {"outcome": "ack", "settle_frame_no": done},
        {"outcome": "none", "ended_by": "gap", "latency_ns": None},
    ]


def begun_inside_a_transaction() -> tuple[Connection, list[dict[str, Any]]]:
    c = up(Connection())
    c.deliver(7, epoch=0)
    c.ack(7, client=True, epoch=0)
    c.client("tx.commit", epoch=0)
    done = c.server("tx.commit-ok", epoch=0)
    return c, [{"outcome": "ack", "settle_frame_no": done}]


def deliveries_that_come_late() -> tuple[Connection, list[dict[str, Any]]]:
    """What the client sends before them in the order of frames may acknowledge them."""
    c = up(Connection(closed_by="client-close"))
    c.ack(1, client=True)
    c.deliver(1)
    c.deliver(2)
    c.delay(6, messages=2)
    c.deliver(3)
    last = c.ack(3, True, client=True)
    unknown = {"outcome": "none", "ended_by": "gap", "latency_ns": None}
    return c, [unknown, unknown, {"outcome": "ack", "settle_frame_no": last}]


def opened_again_in_a_gap() -> tuple[Connection, list[dict[str, Any]]]:
    c = up(Connection(closed_by="client-close"))
    c.client("channel.close")
    c.server("channel.close-ok")
    c.lose(from_client=True)
    c.deliver(1)
    return c, [{"outcome": "none", "ended_by": "gap"}]


def closed_unseen() -> tuple[Connection, list[dict[str, Any]]]:
    """The answer shows that the channel was closed."""
    c = up(Connection(closed_by="client-close"))
    c.deliver(1)
    c.server("channel.close-ok")
    return c, [{"outcome": "none", "ended_by": "channel-close"}]


def closed_for_a_mistake_perhaps() -> tuple[Connection, list[dict[str, Any]]]:
    c = up(Connection())
    for tag in range(1, 6):
        c.deliver(tag)
    c.ack(1, client=True)
    c.ack(99, client=True)
    c.ack(2, client=True)
    gap = c.lose(from_client=False)
    c.ack(3, client=True)
    c.server("basic.qos-ok")  # nothing concerns deliveries
    c.ack(4, client=True)
    c.deliver(6)  # so it was not closed
    c.ack(5, client=True)
    c.ack(6, client=True)
    unsure = {"outcome": "none", "ended_by": "gap", "end_ts_ns": gap * TICK}
    return c, [{"outcome": "ack"}, {"outcome": "ack"}, unsure, unsure, {"outcome": "ack"}, {"outcome": "ack"}]


def closed_for_a_mistake_perhaps_behind_a_gap() -> tuple[Connection, list[dict[str, Any]]]:
    """A larger tag than one delivered behind the first gap does not lie in that."""
    c = up(Connection())
    c.lose(from_client=False)
    c.deliver(4)
    c.ack(9, client=True)
    gap = c.lose(from_client=False)
    c.ack(4, client=True)
    return c, [{"outcome": "none", "ended_by": "gap", "end_ts_ns": gap * TICK}]


def lost_after_its_own_close() -> tuple[Connection, list[dict[str, Any]]]:
    """Clients acknowledge also after they closed."""
    c = up(Connection(closed_by="client-close"))
    c.deliver(1)
    c.client("connection.close", channel=0, epoch=0)
    c.server("connection.close-ok", channel=0, epoch=0)
    c.lose(from_client=True)
    return c, [{"outcome": "none", "ended_by": "gap"}]


def of_a_consumer_that_may_not_acknowledge() -> tuple[Connection, list[dict[str, Any]]]:
    c = up(Connection())
    c.client("basic.consume", consumer_tag="c", queue="q")
    c.deliver(1, consumer="unseen", no_ack=None)
    c.deliver(2)
    c.ack(2, True, client=True)
    return c, [{"ended_by": "gap", "latency_ns": None}, {"outcome": "ack"}]


def cut_at_the_end() -> tuple[Connection, list[dict[str, Any]]]:
    """The length of the last frame may be wrong: an acknowledgement may lie in it."""
    c = up(Connection(closed_by="client-close"))
    c.deliver(1)
    c.lose(from_client=True)
    c.anomalies[-1]["code"] = "frame-cut"
    return c, [{"outcome": "none", "ended_by": "gap"}]


SCENARIOS = {
    f.__name__: f
    for f in (
        many_acknowledged_behind_a_gap,
        gap_behind_a_rollback,
        transaction_around_a_gap,
        begun_inside_a_transaction,
        singly,
        multiple,
        tag_zero_means_all_outstanding,
        multiple_reaches_nothing_later,
        no_ack,
        consumer_from_before_the_capture,
        gets_pipelined,
        gets_of_unknown_requests,
        recover,
        recover_behind_a_lost_ack,
        recover_async_behind_a_lost_nack,
        recover_that_was_lost,
        recover_async,
        transaction,
        commit_without_an_answer,
        closed_and_opened_again,
        tag_of_a_consumer_used_again,
        across_buckets,
        sent_after_the_servers_close,
        gap,
        acknowledged_before_its_delivery,
        times_that_cannot_be,
        deliveries_that_come_late,
        opened_again_in_a_gap,
        closed_unseen,
        closed_for_a_mistake_perhaps,
        closed_for_a_mistake_perhaps_behind_a_gap,
        lost_after_its_own_close,
        of_a_consumer_that_may_not_acknowledge,
        cut_at_the_end,
    )
}


def random_connection(seed: int) -> tuple[Connection, list[dict[str, Any]]]:
    """Deliveries, acknowledgements, recovers and transactions at random; a loop keeps the books as a broker would."""
    chance = random.Random(seed)
    c = up(Connection())
    tag = 0
    expected: dict[int, dict[str, Any]] = {}
    outstanding: list[int] = []
    pending: list[tuple[list[int], dict[str, Any]]] = []
    in_transaction = False
    step = chance.choice([1, 1, 40000])
    for _ in range(chance.randint(1, 50)):
        what = chance.choice(["deliver"] * 4 + ["single", "single", "multiple", "multiple", "recover", "tx"])
        if what == "deliver":
            tag += chance.randint(1, step)
            c.deliver(tag)
            outstanding.append(tag)
            expected[tag] = {"delivery_tag": tag, "outcome": "none", "settle_frame_no": None, "ended_by": "capture-end"}
        elif what in ("single", "multiple"):
            number = chance.choice([*outstanding, tag, 0]) if what == "multiple" else chance.choice([*outstanding, tag])
            settle = chance.choice([c.ack, c.ack, c.nack])
            frame = settle(number, what == "multiple", client=True)
            if what == "multiple":
                reached = [each for each in outstanding if number == 0 or each <= number]
            else:
                reached = [each for each in outstanding if each == number]
            row = {
                "outcome": settle.__name__,
                "settle_frame_no": frame,
                "multiple": what == "multiple",
                "ended_by": None,
            }
            outstanding = [each for each in outstanding if each not in reached]
            if in_transaction:
                pending.append((reached, row))
            else:
                for each in reached:
                    expected[each] |= row
        elif what == "recover" and chance.random() < 0.3:
            c.client("basic.recover", requeue=True)
            c.server("basic.recover-ok")
            for each in outstanding:
                expected[each]["ended_by"] = "recover"
            outstanding = []
        elif what == "tx" and not in_transaction:
            c.client("tx.select")
            c.server("tx.select-ok")
            in_transaction = True
        elif what == "tx":
            kept = chance.random() < 0.6
            c.client("tx.commit" if kept else "tx.rollback")
            done = c.server("tx.commit-ok" if kept else "tx.rollback-ok")
            for reached, row in pending:
                for each in reached:
                    if kept:
                        expected[each] |= row | {"settle_frame_no": done}
                    else:
                        expected[each]["ended_by"] = "rollback"
                        outstanding.append(each)
            pending = []
    return c, [expected[each] for each in sorted(expected)]


MADE = {name: scenario() for name, scenario in SCENARIOS.items()}
MADE |= {f"random {seed}": random_connection(seed) for seed in range(200)}
ORDER = ("channel", "channel_epoch", "delivery_tag")
FEW = list(MADE.values())[:: len(MADE) // 24]
"""Some of them: batches of few events take long."""


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(name):
    check_made(Settlements, [MADE[name]], *ORDER, sizes=())


def test_rows_depend_on_nothing_but_events():
    check_made(Settlements, FEW, *ORDER, sizes=(1, 7))
    check_made(Settlements, MADE.values(), *ORDER, sizes=(1000,))


@pytest.mark.compiled
def test_compiled():
    check_made(partial(Settlements, compiled=True), MADE.values(), *ORDER, sizes=(1000,))


def test_what_waits_beyond_the_limit_is_evicted():
    c = up(Connection())
    for tag in range(1, 8):
        c.deliver(tag)
    c.ack(7, True, client=True)
    rows = walked(arrow([c]), [Settlements(limit=5)])["settlements"].to_pylist()
    ended = {row["delivery_tag"]: (row["outcome"], row["ended_by"]) for row in rows}
    assert ended == dict.fromkeys(range(1, 6), ("ack", None)) | dict.fromkeys((6, 7), ("none", "evicted"))
