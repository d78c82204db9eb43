"""Transits that cannot be: other brokers, virtual hosts, exchanges and keys; and deliveries that are repeated."""

from __future__ import annotations

import json
import random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpscope.pipelines import jobs
from amqpscope.pipelines.across.homes import HOME, Homes, digests
from amqpscope.pipelines.across.lost import LostPublishes, still_needed
from amqpscope.pipelines.across.transits import transits
from amqpscope.pipelines.latencies.latency import latency_summary
from amqpscope.pipelines.run.engine import batches
from tests.pipelines.scenario import TICK, Connection, arrow, arrow_table

Row = dict[str, Any]
HERE = {"server_ip": "10.0.0.1", "server_port": 5672, "vhost": "/"}


def named(cluster: str, **columns: Any) -> Row:
    return HERE | {"server_properties": json.dumps({"cluster_name": cluster, "product": "RabbitMQ"})} | columns


def how(publisher: Row, consumer: Row, published: Row, delivered: Row, *others: Row) -> str:
    """How a delivery is matched, with its publish on another connection, and more connections beside."""
    one, other = Connection(**publisher), Connection(**consumer)
    one.publish(None, **published)
    other.deliver(1, **delivered)
    other.messages[-1]["ts_ns"] += TICK
    tables = arrow([one, other, *(Connection(**each) for each in others)])
    (found,) = jobs.transits(tables["messages"], connections=tables["connections"]).to_pylist()
    assert (found["latency_ns"] is None) == (found["matched_by"] == "ambiguous") == (found["publish_frame_no"] is None)
    return str(found["matched_by"])


ID = {"message_id": "m"}
ALIKE = {"exchange": "e", "routing_key": "k"}
AFAR = {"headers": '{"x-received-from":[{"uri":"amqp://up"}]}'}


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("publisher", "consumer", "others", "matches"),
    [
        (HERE, HERE, [], True),
        (HERE, HERE | {"vhost": "b"}, [], False),
        (HERE, HERE | {"vhost": None}, [HERE], True),  # as far as known
        (HERE | {"vhost": None}, HERE, [HERE], True),
        (HERE | {"vhost": None}, HERE | {"vhost": None}, [HERE | {"vhost": None}], True),
        (HERE, HERE | {"vhost": None}, [HERE | {"vhost": "b"}], False),  # may be there
        (HERE | {"vhost": None}, HERE, [HERE | {"vhost": "b"}], False),
        (HERE | {"vhost": None}, HERE | {"vhost": None}, [HERE, HERE | {"vhost": "b"}], False),
        (HERE, HERE | {"vhost": None}, [HERE | {"server_ip": "10.0.0.2", "vhost": "b"}], True),  # at another broker
        (HERE, HERE | {"server_ip": "10.0.0.2"}, [], False),
        (HERE, HERE | {"server_ip": "10.0.0.2", "vhost": None}, [], False),
        (HERE, HERE | {"server_port": 5552}, [HERE | {"vhost": "b"}], True),  # its streams
        (HERE, HERE | {"server_port": 5673}, [], False),
        (named("r@1"), named("r@1", server_ip="10.0.0.2"), [HERE | {"vhost": "b"}], True),  # a node of the cluster
        (named("r@1"), HERE | {"server_ip": "10.0.0.2"}, [named("r@1", server_ip="10.0.0.2", vhost="b")], True),
        (named("r@1"), named("r@2"), [], False),
    ],
)
@pytest.mark.parametrize("message", [ID, {"trace_id": "t", "span_id": "s"}, {"body_hash": 7}])
def test_both_ends_are_at_the_same_broker_and_virtual_host(publisher, consumer, others, matches, message):
    kind = {"message_id": "message-id", "trace_id": "trace", "body_hash": "content"}[next(iter(message))]
    half_known = (publisher["vhost"] is None) != (consumer["vhost"] is None)  # equal contents may be elsewhere
    expected = kind if matches and not (half_known and kind == "content") else "ambiguous"
    assert how(publisher, consumer, ALIKE | message, ALIKE | message, *others) == expected


def test_contents_of_an_unknown_virtual_host_may_be_of_another_one():
    """Although one virtual host alone was seen; a correlation id tells enough, and nothing where neither is known."""
    body, unknown = ALIKE | {"body_hash": 7}, HERE | {"vhost": None}
    assert how(HERE, unknown, body, body) == how(unknown, HERE, body, body) == "ambiguous"
    assert how(unknown, unknown, body, body) == "content"
    call = body | {"correlation_id": "c"}
    assert how(HERE, unknown, call, call) == "content"


@pytest.mark.parametrize("consumer", [HERE | {"vhost": "b"}, HERE | {"server_ip": "10.0.0.9"}])
def test_federation_passes_a_message_on(consumer):
    assert how(HERE, consumer, ALIKE | ID, ALIKE | ID | AFAR) == "message-id"
    assert how(HERE, consumer, ALIKE | ID, ALIKE | ID | {"headers": '{"app":"x-received-from"}'}) == "ambiguous"


@pytest.mark.parametrize(
    ("published", "delivered", "matches"),
    [
        ({}, {}, True),
        ({}, {"routing_key": "other"}, False),
        ({}, {"exchange": "other"}, False),
        ({}, {"exchange": "", "routing_key": "q", "headers": '{"x-death":[{"count":1}]}'}, True),
        ({}, {"routing_key": "cc", "headers": '{"CC":["cc"]}'}, True),
        ({"headers": '{"BCC":["cc"]}'}, {"routing_key": "cc"}, True),
        ({}, {"routing_key": "cc", "headers": '{"note":"\\"x-death\\":[]"}'}, False),
        ({"exchange": None, "routing_key": None}, {"exchange": "", "routing_key": "s"}, True),  # of a stream
    ],
)
@pytest.mark.parametrize("message", [ID, {"trace_id": "t", "span_id": "s"}])
def test_another_exchange_or_key_has_a_reason(published, delivered, matches, message):
    found = how(HERE, HERE, ALIKE | message | published, ALIKE | message | delivered)
    assert found == ("ambiguous" if not matches else "trace" if "trace_id" in message else "message-id")


def test_one_connection_is_in_one_virtual_host():
    both = Connection(**HERE | {"vhost": None})
    both.publish(None, **ID)
    both.deliver(1, **ID)
    both.messages[-1]["ts_ns"] += TICK
    tables = arrow([both, Connection(**HERE), Connection(**HERE | {"vhost": "b"})])
    (found,) = jobs.transits(tables["messages"], connections=tables["connections"]).to_pylist()
    assert found["matched_by"] == "message-id"


def test_publishes_of_other_virtual_hosts_do_not_make_it_ambiguous():
    one, other, consumer = Connection(**HERE), Connection(**HERE | {"vhost": "b"}), Connection(**HERE | {"vhost": "b"})
    for publisher in (one, other):
        publisher.publish(None, **ID)
    consumer.deliver(1, **ID)
    consumer.messages[-1]["ts_ns"] += TICK
    tables = arrow([one, other, consumer])
    (found,) = jobs.transits(tables["messages"], connections=tables["connections"]).to_pylist()
    assert (found["matched_by"], found["publish_connection_id"]) == ("message-id", other.id)


def direct(token: str, **columns: Any) -> Row:
    return {"reply_to": f"amq.rabbitmq.reply-to{token}", "body_hash": 5} | columns


def test_a_correlation_id_pairs_a_direct_reply():
    asked = [direct("", correlation_id=each) for each in "ab"] + [direct("") for _ in "cd"]
    taken = [direct(".g1.x", correlation_id=each) for each in "ba"] + [direct(".g2.y") for _ in "cd"]
    client, server = Connection(), Connection()
    for each in asked:
        client.publish(None, **each)
    for tag, each in enumerate(taken, 1):
        server.deliver(tag, **each)
        server.messages[-1]["ts_ns"] += 100 * TICK
    found = transits(arrow([client, server])["messages"]).sort_by("deliver_frame_no").to_pylist()
    assert [row["matched_by"] for row in found] == ["content"] * 2 + ["ambiguous"] * 2
    frames = [message["frame_no"] for message in client.messages]
    assert [row["publish_frame_no"] for row in found][:2] == [frames[1], frames[0]]


def attempts(*deliveries: Row) -> list[tuple[int, bool]]:
    """The attempt of each delivery of one message, and whether it is matched."""
    producer, consumer = Connection(), Connection()
    producer.publish(None, **ID)
    for tag, each in enumerate(deliveries, 1):
        consumer.deliver(tag, **{**ID, **each})
        consumer.messages[-1]["ts_ns"] += 9 * TICK
    found = transits(arrow([producer, consumer])["messages"]).sort_by("deliver_frame_no").to_pylist()
    assert [row["message_id"] for row in found] == [each.get("message_id", "m") for each in deliveries]
    assert [row["redelivered"] for row in found] == [each.get("redelivered") for each in deliveries]
    return [(row["attempt"], row["latency_ns"] is not None) for row in found]


AGAIN, FIRST = {"redelivered": True}, {"redelivered": False}


def test_a_repeated_delivery_has_its_attempt():
    assert attempts(FIRST, AGAIN, AGAIN) == [(1, True), (2, True), (3, True)]
    assert attempts(FIRST, FIRST, AGAIN, AGAIN, AGAIN) == [(n, True) for n in (1, 1, 2, 2, 3)]  # of two queues
    assert attempts(AGAIN, AGAIN) == [(2, True), (3, True)]  # the first was not captured
    counted = [AGAIN | {"headers": f'{{"x-delivery-count":{n}}}'} for n in (1, 7)]
    assert attempts({}, *counted) == [(1, True), (2, True), (8, True)]
    assert attempts(AGAIN | {"message_id": "unknown"}) == [(2, False)]


def test_repeated_deliveries_are_in_no_percentile():
    producer, consumer = Connection(), Connection()
    for each in "ab":
        producer.publish(None, message_id=each)
    for tag, (name, again) in enumerate((("a", False), ("b", False), ("a", True)), 1):
        consumer.deliver(tag, message_id=name, redelivered=again)
        consumer.messages[-1]["ts_ns"] += 1000 * TICK * tag**3
    found = transits(arrow([producer, consumer])["messages"])
    summary = latency_summary(transits=found).to_pylist()[0]
    assert (summary["count"], summary["unusable"]) == (2, 1)
    assert summary["max_ns"] == max(row["latency_ns"] for row in found.to_pylist() if row["attempt"] == 1)


# --- compared with the rule in plain words


@given(seed=st.integers(0, 1 << 30))
def test_it_is_the_rule(seed):
    some = random.Random(seed)
    connections = [
        Connection(server_ip=some.choice(["1", "2"]), server_port=5672, vhost=some.choice(["a", "b", None]))
        for _ in range(4)
    ]
    rows, ids = [], {each.id: each.columns for each in connections}
    for number in range(12):
        kind = some.choice(["publish", "deliver"])
        rows.append(
            {"connection_id": some.choice(connections).id, "frame_no": number, "packet": number, "ts_ns": number,
             "kind": kind, "message_id": some.choice("xy"), "exchange": some.choice(["e", "f"]), "routing_key": "k",
             "protocol": "amqp-0-9-1", "headers": some.choice([None, None, '{"CC":["k"]}', '{"x-shovelled":true}'])}
        )  # fmt: skip

    homes = {(each["server_ip"], each["vhost"]) for each in ids.values() if each["vhost"]}

    def at_home(row: Row, other: Row) -> bool:
        here, there = ids[row["connection_id"]], ids[other["connection_id"]]
        if here["vhost"] is None or there["vhost"] is None:
            return True
        return (here["vhost"], here["server_ip"]) == (there["vhost"], there["server_ip"])

    def is_unsure(row: Row) -> bool:
        here = ids[row["connection_id"]]
        return here["vhost"] is None and len({vhost for server, vhost in homes if server == here["server_ip"]}) > 1

    def matched(row: Row) -> int | None:
        afar = "x-shovelled" in (row["headers"] or "")
        near = [each for each in rows if each["kind"] == "publish" and each["ts_ns"] <= row["ts_ns"]]
        near = [each for each in near if each["message_id"] == row["message_id"] and (afar or at_home(row, each))]
        if len(near) != 1:
            return None
        is_one = row["connection_id"] == near[0]["connection_id"]
        if not (afar or is_one) and (is_unsure(row) or is_unsure(near[0])):
            return None
        servers = {ids[each["connection_id"]]["server_ip"] for each in (row, near[0])}
        moved = row["headers"] or near[0]["headers"]
        fits = afar or (len(servers) == 1 and (moved or row["exchange"] == near[0]["exchange"]))
        return near[0]["frame_no"] if fits else None

    messages = arrow_table("messages", rows)
    found = jobs.transits(messages, connections=arrow(connections)["connections"]).to_pylist()
    mine = {row["deliver_frame_no"]: row["publish_frame_no"] for row in found}
    if len(homes) > 1 or len({each["server_ip"] for each in ids.values()}) > 1:
        assert mine == {row["frame_no"]: matched(row) for row in rows if row["kind"] == "deliver"}


def test_homes_are_remembered_as_long_as_messages_are():
    tables = arrow([Connection(**HERE), Connection(**HERE | {"vhost": "b"}), Connection(**HERE | {"server_ip": "2"})])
    walk = LostPublishes()
    rows = pa.concat_tables([part for events in batches(tables, [walk], 2) for _, part in walk.feed(events)])
    of = rows["connection_id"].to_numpy()
    nobody = pa.array([], pa.int64())
    assert len(still_needed(rows, 0, nobody, nobody)) == 0
    assert len(still_needed(rows, 0, pa.array(of[:1]), pa.array(of[:2]))) == 2
    home, broker = Homes(rows).of(of)
    assert len(set(home)) == 3 and len(set(broker)) == 2
    assert [*map(list, Homes(rows).of(of + 1000))] == [[0, 0, 0]] * 2
    assert pc.all(rows["server"].is_valid()).as_py()
    assert len(digests(tables["connections"])) == len(HOME)
