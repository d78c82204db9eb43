"""Queues of transits: by hand, and those that the walk over settlements finds by other means."""

import numpy as np
import pyarrow as pa
import pytest

from amqpscope.pipelines import jobs
from amqpscope.pipelines.across.consumed import Queues
from amqpscope.pipelines.across.lost import LOST, SCHEMA
from amqpscope.pipelines.amqp091 import consumed
from amqpscope.pipelines.amqp091.consumed import ConsumedQueues
from amqpscope.pipelines.model.walk import Collected
from amqpscope.pipelines.run.engine import in_order
from tests.pipelines.analyzed import statistics
from tests.pipelines.scenario import Connection, arrow
from tests.pipelines.walks.properties import manners, over

RECORDED = (
    "demo",
    "gets",
    "orders_aio_pika",
    "lossy_link",
    "transactions",
    "begun_before",
    "qpid_messaging",
    "qpid_plain",
)


def queues(c: Connection) -> dict[int, str | None]:
    """The queue of each delivery, by its last frame."""
    tables = arrow([c])
    others = {"connections": tables["connections"], "anomalies": tables["anomalies"]}
    found = jobs.transits(tables["messages"], frames=tables["amqp091_frames"], **others)
    return {row["deliver_frame_no"]: row["queue"] for row in found.to_pylist()}


def test_consumers_and_gets() -> None:
    c, expected = Connection(), {}
    expected[c.deliver(1, "from before")] = None
    c.server("queue.declare-ok", queue="amq.gen-1")
    c.client("basic.consume", consumer_tag="c", queue="")
    expected[c.deliver(2, "c")] = "amq.gen-1"
    c.client("basic.consume", consumer_tag="", queue="two")
    c.server("basic.consume-ok", consumer_tag="amq.ctag-1")
    expected[c.deliver(3, "amq.ctag-1")] = "two"
    c.client("basic.cancel", consumer_tag="c")
    expected[c.deliver(4, "c")] = "amq.gen-1"
    c.server("basic.cancel-ok", consumer_tag="c")
    expected[c.deliver(5, "c")] = None
    c.client("basic.consume", consumer_tag="c", queue="three", no_wait=True)
    expected[c.deliver(6, "c")] = "three"
    expected[c.deliver(1, "c", channel=2)] = None
    expected[c.deliver(1, "c", epoch=2)] = None
    for queue in ("a", "b", "b", "a"):
        c.client("basic.get", queue=queue)
    expected[c.message("get", delivery_tag=7)] = "a"
    expected[c.message("get", delivery_tag=8)] = "b"
    c.server("basic.get-empty")
    expected[c.message("get", delivery_tag=9)] = "a"
    expected[c.message("get", delivery_tag=10)] = None
    expected[c.deliver(11, None)] = None  # type: ignore[arg-type] - its tag is lost
    assert queues(c) == expected


def test_a_gap_makes_it_uncertain_which_get_is_answered() -> None:
    c = Connection()
    c.client("basic.get", queue="a")
    c.client("basic.get", queue="b")
    c.lose(from_client=False)
    first, second = (c.message("get", delivery_tag=tag) for tag in (1, 2))
    c.client("basic.get", queue="b")
    third = c.message("get", delivery_tag=3)
    assert queues(c) == {first: None, second: None, third: "b"}


def test_too_many_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumed, "MOST", 2)
    c = Connection()
    for _ in range(3):
        c.client("basic.get", queue="a")
    c.message("get", delivery_tag=1)
    assert {*queues(c).values()} == {None}


def made(found: Collected) -> list[str]:
    return sorted(map(repr, pa.concat_tables(found.parts[LOST]).to_pylist()))


def test_any_batches_yield_the_same() -> None:
    c = Connection()
    for number in range(40):
        c.client("basic.consume", consumer_tag=f"c{number % 3}" if number % 4 else "", queue=f"q{number % 5}")
        c.server("basic.consume-ok", consumer_tag=f"c{number % 3}" if number % 4 else f"amq.{number}")
        c.client("basic.get", queue=f"q{number % 7}")
        c.message("get", delivery_tag=number)
    other = Connection()
    other.client("basic.consume", consumer_tag="c", queue="q")
    tables = arrow([c, other])
    whole = made(over(ConsumedQueues, in_order(tables, [ConsumedQueues()]), 1 << 20))
    assert len(whole) > 60
    for size, moved in manners((1, 2, 7)):
        assert made(over(ConsumedQueues, in_order(tables, [ConsumedQueues()]), size, moved)) == whole


def test_nothing_is_known_without_rows() -> None:
    one = np.array([1])
    assert Queues(SCHEMA.empty_table()).of(one, one).to_pylist() == [None]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("stem", RECORDED)
def test_queues_of_transits_are_those_of_settlements(stem: str) -> None:
    found = statistics(stem)
    key = ("connection_id", "deliver_frame_no", "queue")
    settled = {row[:2]: row[2] for row in zip(*(found["settlements"][name].to_pylist() for name in key), strict=True)}
    transits = found["transits"]
    of = zip(*(transits[name].to_pylist() for name in (f"deliver_{key[0]}", *key[1:])), strict=True)
    assert all(settled.get((connection, frame)) == queue for connection, frame, queue in of)
