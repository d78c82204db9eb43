"""Conditions of rules: what they say of statistics that differ from recorded ones in one thing."""

from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpscope.pipelines.findings import evaluate
from amqpscope.pipelines.model.walk import conform, schema
from amqpscope.pipelines.relations import database
from amqpscope.pipelines.relations.texts import tables_of, texts
from amqpscope.spec.findings import load
from tests.pipelines.analyzed import findings, related, statistics, walked
from tests.pipelines.scenario import arrow_table
from tests.tickets import FOLDER as TICKETS

SECOND = 10**9


def ticket(name: str) -> dict[str, pa.Table]:
    return walked(TICKETS / f"{name}.pcap")


def changed(table: pa.Table, **columns: Any) -> pa.Table:
    for name, values in columns.items():
        at = table.column_names.index(name)
        table = table.set_column(at, table.schema.field(name), pa.array(values, table.schema.field(name).type))
    return table


BROKER = {"connection_id": 1, "server": "b:5672", "client": "c", "protocol": "amqp-0-9-1", "last_ts_ns": 100 * SECOND}


def table(name: str, rows: list[dict[str, Any]]) -> pa.Table:
    """Rows of a declared table, as `arrow_table`; what they have besides its columns is left out."""
    names = {*schema(name).names}
    return arrow_table(name, [{each: row[each] for each in row.keys() & names} for row in rows])


def only(name: str, **tables: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of a relation whose text reads these rows."""
    with database.connect() as connection:
        for each in tables_of(texts()[name]):
            database.keep(connection, each, table(each, tables.get(each, [])))
        return database.rows(connection, texts()[name])


def codes(tables: dict[str, pa.Table]) -> list[str]:
    return [row["code"] for row in findings(tables)]


# ---------------------------------------------------------------------- a consumer that began before, and is too slow


@pytest.fixture(scope="module")
def begun() -> dict[str, pa.Table]:
    """It has all the time what its prefetch lets it; how long messages waited is not known."""
    tables = ticket("begun_and_slow")
    return tables | {"transits": tables["transits"].slice(0, 0)}


def test_what_was_published_meanwhile_shows_a_slow_consumer(begun: dict[str, pa.Table]) -> None:
    assert codes(begun) == ["con-slow", "cap-begun"]


def test_what_was_published_before_it_took_any_does_not(begun: dict[str, pa.Table]) -> None:
    times = {
        name: [each - 3600 * SECOND for each in begun["published"][name].to_pylist()]
        for name in ("ts_ns", "first_ts_ns", "last_ts_ns")
    }
    assert "con-slow" not in codes(begun | {"published": changed(begun["published"], **times)})


def test_what_was_published_in_another_virtual_host_does_not(begun: dict[str, pa.Table]) -> None:
    (publisher,) = set(begun["published"]["connection_id"].to_pylist())
    whose = begun["endpoints"]["connection_id"].to_pylist()
    elsewhere = changed(begun["endpoints"], vhost=["other" if each == publisher else "one" for each in whose])
    assert "con-slow" not in codes(begun | {"endpoints": elsewhere})
    one = changed(begun["endpoints"], vhost=["other" if each == publisher else None for each in whose])
    assert "con-slow" in codes(begun | {"endpoints": one}), "the consumer's may be that"


@given(st.data())
def test_what_was_published_meanwhile_is_that_of_a_plain_loop(data: st.DataObject) -> None:
    """Publishes in a second that began before the first delivery and ended after the last one do not occur here."""
    times = st.integers(0, 12)
    hosts = data.draw(st.lists(st.sampled_from([None, "a", "b"]), min_size=3, max_size=3))
    ends = [BROKER | {"connection_id": number, "vhost": host} for number, host in enumerate(hosts)]
    of = st.fixed_dictionaries({"connection_id": st.integers(0, 2), "routing_key": st.sampled_from("kl")})
    sent = [
        each | {"exchange": "e", "first_ts_ns": at, "last_ts_ns": at + data.draw(st.integers(0, 1)), "count": at}
        for each in data.draw(st.lists(of, max_size=8)) for at in [data.draw(times)]
    ]  # fmt: skip
    tags = {"channel": 1, "channel_epoch": 1}
    got = [
        each | tags | {"exchange": "e", "consumer_tag": str(number), "deliver_ts_ns": at}
        for number, each in enumerate(data.draw(st.lists(of, max_size=5)))
        for since in [data.draw(times)] for at in (since, since + 1 + data.draw(times))
    ]  # fmt: skip
    found = only(
        "begun", endpoints=ends, published=sent, settlements=got,
        consumers=[row | {"deliveries": 20} for row in got[::2]],
    )  # fmt: skip
    expected = {}
    for first, last in zip(got[::2], got[1::2], strict=True):
        mine = hosts[first["connection_id"]]
        expected[first["consumer_tag"]] = sum(
            row["count"] for row in sent
            if row["routing_key"] == first["routing_key"]
            if mine is None or hosts[row["connection_id"]] in (mine, None)
            if first["deliver_ts_ns"] <= row["first_ts_ns"] and row["last_ts_ns"] <= last["deliver_ts_ns"]
        )  # fmt: skip
    assert {row["consumer_tag"]: row["publishes"] for row in found} == expected


# ------------------------------------------------------------------------- confirms that cannot be told from refusals


def test_where_nobody_knows_what_was_refused_nothing_is_fine(begun: dict[str, pa.Table]) -> None:
    """The channel's numbers are not known, for it began before, and several publishes are under way at a time."""
    count = len(begun["confirms"])
    unknown_ends = {"outcome": ["none"] * count, "ended_by": ["gap"] * count, "latency_ns": [None] * count}
    begun = begun | {"confirms": changed(begun["confirms"], confirm_ts_ns=[None] * count, **unknown_ends)}
    states = {row["code"]: (row["state"], row["reason"]) for row in related(begun, "rules")}
    unknown = ("not-measurable", "which publishes were confirmed, and which refused, is not known")
    assert {states[code] for code in ("pub-nacked", "pub-late", "pub-unconfirmed")} == {unknown}
    (row,) = findings(begun, "cap-begun")
    assert "; nor which of 244 publishes the broker confirmed, and which it refused" in row["text"]


# ------------------------------------------------------------------------------------------- streams that are missing


@pytest.mark.parametrize(("stream", "found"), [("events", True), ("ordrs", False)])
def test_a_stream_is_missing_although_another_one_is_made(stream: str, found: bool) -> None:
    tables = ticket("stream_absent")
    last = tables["stream_metadata"]["ts_ns"].to_pylist()[-1]
    made = {"connection_id": tables["endpoints"]["connection_id"][0].as_py(), "from_client": True, "outcome": "ok"}
    made |= {"request": "create", "stream": stream, "request_ts_ns": last + 1, "response_ts_ns": last + 2}
    both = pa.concat_tables([tables["rpcs"], table("rpcs", [made])])
    assert bool(findings(tables | {"rpcs": both}, "str-missing")) is found


def test_partitions_of_a_super_stream_that_is_made_are_not_missing() -> None:
    """Whatever they are called: the client names them."""
    one = {"connection_id": 1, "frame_no": 1, "ts_ns": 1, "packet": 1, "command": "metadata", "response_code": 2}
    created = {"request_frame_no": 5, "connection_id": 1, "request": "create-super-stream", "stream": "invoices"}
    created |= {"outcome": "ok", "request_ts_ns": 2, "response_ts_ns": 3, "from_client": True}
    asked_for = [one | {"stream": name} for name in ("invoices-eu-west", "eu", "invoices-2024")]
    made = {"connection_id": 1, "frame_no": 5, "ts_ns": 2, "command": "create-super-stream"}
    tables = {
        "endpoints": table("endpoints", [BROKER]), "rpcs": table("rpcs", [created]),
        "stream_metadata": table(
            "stream_metadata", [*asked_for, *(made | {"stream": name} for name in ("invoices-eu-west", "eu"))]
        ),
    }  # fmt: skip
    assert [row["text"].split(",")[0] for row in findings(tables)] == ["c asked 1 time for stream invoices-2024"]


def sent_away(times: int = 4, uses: str = "other", ends: bool = True, of_one: bool = False) -> dict[str, pa.Table]:
    """A client that asks where a stream is, each time on another connection."""
    given = {"command": "metadata", "stream": "meters", "response_code": 1, "leader_host": "pod-0", "leader_port": 5552}
    numbers = [1 if of_one else number for number in range(1, times + 1)]
    ending = "client-gone" if ends else "open"
    return {
        "endpoints": table(
            "endpoints", [BROKER | {"connection_id": each, "ending": ending} for each in dict.fromkeys(numbers)]
        ),
        "stream_metadata": table("stream_metadata", [
            given | {"connection_id": each, "frame_no": at, "packet": at, "ts_ns": at * 10**9}
            for at, each in enumerate(numbers)
        ]),
        "rpcs": table("rpcs", [{"connection_id": 1, "request": "subscribe", "stream": uses, "request_frame_no": 1}]),
    }  # fmt: skip


def test_clients_that_are_sent_to_a_host_that_they_do_not_reach() -> None:
    (row,) = findings(sent_away(), "str-unreached")
    assert "on 4 connections" in row["text"] and "sent to pod-0:5552" in row["text"]
    for calm in (sent_away(uses="meters"), sent_away(ends=False), sent_away(of_one=True), sent_away(times=2)):
        assert findings(calm, "str-unreached") == []


def test_what_is_sure_of_streams_does_not_depend_on_other_protocols() -> None:
    """A publish of AMQP in a gap says nothing of what was refused of a stream."""
    lost = {"connection_id": 1, "outcome": "none", "ended_by": "gap", "exchange": "e", "routing_key": "k"}
    stored = {"connection_id": 1, "outcome": "ack", "publisher_id": 1, "stream": "s"}
    of_streams = [rule for rule in load() if rule.code == "pub-nacked" and "publisher_id is not null" in rule.where]
    with database.connect() as connection:
        for name, rows in (("endpoints", [BROKER | {"frames": 1}]), ("confirms", [lost, stored])):
            database.keep(connection, name, table(name, rows))
        (row,) = evaluate(partial(database.rows, connection), of_streams)["rules"].to_pylist()
    assert row["state"] == "clear"


# ------------------------------------------------------------------------------------------------------- what is cut


def ended(*connections: tuple[float, float | None], up: bool = True) -> dict[str, pa.Table]:
    """Connections of one server that it ended without a close: when, after which silence (s); `up` is the last one."""
    count = len(connections)
    columns: dict[str, list[Any]] = {
        "connection_id": list(range(count)), "server": ["b:5672"] * count, "client": ["c"] * count,
        "closed_by": ["server-fin"] * count, "severity": ["error"] * count,
        "ending": ["server-gone"] * (count - 1) + ["server-gone" if up else None],
        "quiet_ns": [None if each is None else int(each * SECOND) for _, each in connections],
        "closed_ts_ns": [10**18 + int(at * SECOND) for at, _ in connections],
        "last_packet": list(range(count)), "first_ts_ns": [10**18] * count, "last_ts_ns": [10**18 + 10**13] * count,
    }  # fmt: skip
    return {"endpoints": conform("endpoints", {name: pa.array(values) for name, values in columns.items()}, count)}


def cut(*connections: tuple[float, float | None], up: bool = True) -> list[int]:
    return sorted(row["connection_id"] for row in related(ended(*connections, up=up), "cuts"))


def test_silences_are_the_same_within_a_twentieth() -> None:
    assert cut((0, 60), (10, 61), (20, 120), (30, 124), (40, 300)) == [0, 1, 2, 3]
    assert cut((0, 60), (10, 64)) == []
    assert cut((0, 60), (0.5, 60)) == [], "at one time"


def test_connections_that_end_at_once_are_not_cut_for_their_silence() -> None:
    """The broker ends, and one of its connections was silent for as long as another one that was cut before."""
    ends = ((500, 61), (500.2, 30), (501.9, None))
    assert cut((0, 60), *ends) == []
    assert cut((0, 60), (200, 60), *ends) == [0, 1]
    found = findings(ended((0, 60), (200, 60), *ends))
    assert sorted((row["code"], row["count"]) for row in found) == [("cnx-aborted", 3), ("cnx-middlebox", 2)]


@pytest.mark.parametrize("other", [(500.2, 30), (499.5, None), (501, 0)])
def test_one_other_connection_that_ends_then_hides_no_cut(other: tuple[float, float | None]) -> None:
    assert cut((0, 60), (500, 61), other) == [0, 1]


def test_connections_that_did_not_come_up_hide_no_cut() -> None:
    """Somebody looks whether the port is open."""
    assert cut((0, 60), (500, 61), (500.2, 30), (500.3, None), up=False) == [0, 1]


def test_any_silence_is_compared() -> None:
    """Of none there is no logarithm, and of one of years twenty times as much is no int64."""
    years = 40 * 365 * 86_400
    assert cut((0, 0), (10, 0), (0, years), (1000, years + 1)) == [2, 3]


# ---------------------------------------------------------------------------------------- what was declared and deleted


def asked(*operations: dict[str, Any]) -> dict[str, pa.Table]:
    """Operations, a second apart, and their answers half a second later.

    Each has `outcome`; without it no answer is asked for. `name` is that of the queue in the answer.
    """
    rows = [
        {
            "connection_id": 1,
            "frame_no": at,
            "channel": 1,
            "channel_epoch": 1,
            "packet": at,
            "capture": f"{at}.pcap",
            "ts_ns": at * SECOND,
        }
        | each
        for at, each in enumerate(operations)
    ]
    answers = [
        {
            "connection_id": 1, "request_frame_no": row["frame_no"], "request": row.get("request", row["method"]),
            "outcome": row["outcome"], "ended_by": row.get("ended_by"), "queue": row.get("name", row.get("queue")),
            "response_ts_ns": row["ts_ns"] + SECOND // 2 if row["outcome"] == "ok" else None,
        }
        for row in rows if "outcome" in row
    ]  # fmt: skip
    return {
        "operations": table("operations", rows),
        "rpcs": table("rpcs", answers),
        "endpoints": table("endpoints", [BROKER]),
    }


def test_an_exchange_is_as_its_first_declaration_that_took_effect() -> None:
    """One was refused before it, and others follow."""
    declare = {"method": "exchange.declare", "exchange": "e"}
    kinds = [("topic", "error"), ("topic", "ok"), ("direct", None), ("fanout", "error"), ("headers", "ok")]
    rows = [declare | {"exchange_type": kind, "outcome": outcome} for kind, outcome in kinds]
    del rows[2]["outcome"]
    rows[1] |= {"passive": True}
    (row,) = related(asked(*rows), "exchanges")
    assert (row["type"], row["declared_packet"], row["declared_capture"]) == ("direct", 2, "2.pcap")


def test_a_declaration_whose_answer_was_not_captured_took_effect() -> None:
    declare = {"exchange_type": "topic", "outcome": "none", "ended_by": "gap", "queue": "q"}
    tables = asked(declare | {"method": "exchange.declare", "exchange": "e"}, declare | {"method": "queue.declare"})
    assert [(row["exchange"], row["type"]) for row in related(tables, "exchanges")] == [("e", "topic")]
    assert [(row["queue"], row["declared_packet"]) for row in related(tables, "queues")] == [("q", 1)]
    assert [row["outcome"] for row in related(tables, "changes")] == ["none"] * 2


@pytest.mark.parametrize("answer", [{"outcome": "error"}, {"outcome": "none", "ended_by": "channel-close"}])
def test_what_the_broker_refused_or_never_came_to_took_no_effect(answer: dict[str, Any]) -> None:
    tables = asked({"method": "queue.declare", "queue": "q"} | answer)
    assert related(tables, "changes") == related(tables, "exchanges") == related(tables, "queues") == []


@pytest.mark.parametrize("is_from_client", [False, True])
def test_what_the_broker_left_unanswered_as_it_closed_took_no_effect(is_from_client: bool) -> None:
    tables = asked({"method": "queue.delete", "queue": "q", "outcome": "none", "ended_by": "connection-close"})
    closed = {"connection_id": 1, "method": "connection.close", "from_client": is_from_client, "reply_code": 541}
    tables["channel_errors"] = table("channel_errors", [closed])
    assert len(related(tables, "deletions")) == is_from_client


def test_deletions_hold_until_the_next_declaration() -> None:
    """One wants no answer, one names the queue declared last by nothing, one finds nothing left to delete."""
    delete, declare = (
        {"method": "queue.delete", "queue": "q"},
        {"method": "queue.declare", "queue": "q", "outcome": "ok"},
    )
    rows = related(
        asked(
            declare, delete, declare | {"passive": True}, delete | {"outcome": "error"},
            delete | {"outcome": "ok", "queue": "", "name": "q"}, delete | {"outcome": "error", "request": "basic.get"},
            {"method": "exchange.delete", "exchange": "q", "queue": "q"},
        ),
        "deletions",
    )  # fmt: skip
    until = {(row["queue"], row["exchange"], row["packet"]): row["until_ts_ns"] for row in rows}
    assert until == {
        ("q", None, 1): 2 * SECOND, ("q", None, 4): None, (None, "q", 6): None,
    }  # fmt: skip


def test_operations_without_a_time_stand_beside_others() -> None:
    rows = [
        {"method": method, "queue": "q", "exchange": "e", "ts_ns": at}
        for method in ("queue.bind", "queue.unbind", "queue.delete") for at in (None, 1, -5)
    ]  # fmt: skip
    assert [row["from_ts_ns"] for row in related(asked(*rows), "routes")] == [1]


DELETED = {"method": "queue.delete", "queue": "q"}
AGAIN = {"method": "queue.declare", "queue": "q", "outcome": "ok"}
RETURNED = {"method": "basic.return", "exchange": "", "routing_key": "q"}
USED = {"method": "basic.consume", "queue": "q", "outcome": "ok"}
CAUSES = [
    ([DELETED], 0), ([DELETED, AGAIN], None), ([DELETED, AGAIN, DELETED], 2), ([DELETED, DELETED], 0),
    ([DELETED, USED, DELETED], 2), ([DELETED, USED], None),
]  # fmt: skip
"""What was asked for, and the deletion that it ends with."""


@pytest.mark.parametrize(("before", "cause"), CAUSES)
def test_the_deletion_behind_a_return_is_the_last_before_it(before: list[dict[str, Any]], cause: int | None) -> None:
    tables = asked(*before, RETURNED, DELETED)
    tables["published"] = table(
        "published", [{"connection_id": 1, "exchange": "", "routing_key": "q", "mandatories": 1}]
    )
    (row,) = findings(tables, "pub-unroutable")
    assert (f"c had deleted queue q in packet {cause}" in row["text"]) is (cause is not None)
    assert row["text"].count("had deleted") == (cause is not None)


REFUSED = {"connection_id": 1, "channel": 1, "channel_epoch": 1, "method": "channel.close", "reply_code": 406}


@pytest.mark.parametrize(
    ("second", "errors", "is_cause"),
    [
        ({"outcome": "ok"}, [], False), ({"outcome": "error"}, [], True), ({}, [], False),
        ({}, [REFUSED | {"failed_method": "queue.declare", "frame_no": 2, "from_client": False}], True),
    ],
)  # fmt: skip
def test_a_queue_expires_as_it_was_declared_last(
    second: dict[str, Any], errors: list[dict[str, Any]], is_cause: bool
) -> None:
    """What wanted no answer was refused where the channel's error is about it."""
    declare = {"method": "queue.declare", "queue": "q"}
    tables = asked(declare | {"expires_ms": 20, "outcome": "ok"}, declare | second, RETURNED)
    tables["channel_errors"] = table("channel_errors", errors)
    tables["published"] = table(
        "published", [{"connection_id": 1, "exchange": "", "routing_key": "q", "mandatories": 1}]
    )
    (row,) = [row for row in findings(tables) if row["code"] == "pub-unroutable"]
    assert ("it was declared with x-expires 20 ms (packet 0)" in row["text"]) is is_cause


@pytest.mark.parametrize(("before", "cause"), CAUSES)
def test_the_deletion_behind_an_error_is_the_last_before_it(before: list[dict[str, Any]], cause: int | None) -> None:
    tables = asked(*before, {"method": "queue.bind", "queue": "other"}, DELETED)
    error = {
        "connection_id": 1,
        "frame_no": 90,
        "channel": 1,
        "method": "channel.close",
        "reply_code": 404,
        "queue": "q",
    }
    error |= {
        "reply_text": "NOT_FOUND - no queue 'q' in vhost '/'",
        "ts_ns": len(before) * SECOND,
        "from_client": False,
    }
    tables["channel_errors"] = table("channel_errors", [error | {"failed_method": "basic.consume"}])
    (row,) = findings(tables, "chn-error")
    assert (f"c had deleted it in packet {cause}" in row["text"]) is (cause is not None)


@pytest.mark.parametrize(("before", "cause"), CAUSES)
def test_the_deletion_behind_a_cancel_is_the_last_before_it(before: list[dict[str, Any]], cause: int | None) -> None:
    consume = {"method": "basic.consume", "queue": "q", "consumer_tag": "tag", "ts_ns": 0}
    cancel = {"method": "basic.cancel", "consumer_tag": "tag", "from_client": False}
    tables = asked(*before, cancel, DELETED, consume | {"frame_no": -1})
    (row,) = findings(tables, "con-cancelled")
    assert (f"c had deleted the queue in packet {cause}" in row["text"]) is (cause is not None)


# ------------------------------------------------------------------------------------- what a broker answered too late

MOMENTS = st.integers(0, 12)
SPANS = st.lists(st.tuples(MOMENTS, MOMENTS), max_size=6).map(
    lambda spans: [span for span in spans if span[0] < span[1]]
)


def span(first: str, last: str, begin: int, end: int | None, **others: Any) -> dict[str, Any]:
    at = {first: begin * SECOND, last: None if end is None else end * SECOND}
    return {"connection_id": 1, "frame_no": begin, "capture": "a"} | at | others


@given(confirms=SPANS, requests=SPANS, blocks=SPANS, again=SPANS, last=st.sampled_from([None, 3, 11]))
def test_late_is_what_nothing_stopped_meanwhile(
    confirms: list[Any], requests: list[Any], blocks: list[Any], again: list[Any], last: int | None
) -> None:
    """Of two spans of time each began before the other one ended: all pairs tell."""
    given_blocks = [*blocks, *([(last, None)] if last is not None else [])]
    tables = {
        "endpoints": [BROKER | {"lost_bytes": 0}],
        "confirms": [
            span("publish_ts_ns", "confirm_ts_ns", *each, publish_frame_no=number,
                 latency_ns=(each[1] - each[0]) * SECOND)
            for number, each in enumerate(confirms)
        ],
        "rpcs": [
            span("request_ts_ns", "response_ts_ns", *each, request_frame_no=number, from_client=True, request="r",
                 latency_ns=(each[1] - each[0]) * SECOND)
            for number, each in enumerate(requests)
        ],
        "flow_control": [
            span("start_ts_ns", "end_ts_ns", *each, cause="connection-blocked", reason="memory", side="server",
                 start_capture="a", end_capture="a", start_packet=number, end_packet=number)
            for number, each in enumerate(given_blocks)
        ],
        "tcp_delays": [span("start_ts_ns", "end_ts_ns", *each, kind="retransmission", duration_ns=SECOND)
                       for each in again],
    }  # fmt: skip
    stops = [(begin, 100 if end is None else end) for begin, end in given_blocks]
    late = [(begin, end) for begin, end in confirms if end - begin > 1]

    def is_free(wait: tuple[int, int], others: list[tuple[int, int]]) -> bool:
        return not any(begin < wait[1] and end > wait[0] for begin, end in others)

    expected = [("publish", *wait) for wait in late if is_free(wait, [*stops, *again])]
    expected += [
        ("request", *wait) for wait in requests if wait[1] - wait[0] > 1 and is_free(wait, [*stops, *again, *late])
    ]
    rows = only("late", **tables)
    found = [(row["asked"], row["since_ts_ns"] // SECOND, row["until_ts_ns"] // SECOND) for row in rows]
    assert sorted(found) == sorted(expected)
    inside = [end - begin for begin, end in confirms if not is_free((begin, end), stops)]
    outside = [end - begin for begin, end in confirms if is_free((begin, end), stops)]
    assert [(row["late"], row["latest_ns"], row["outside_p99_ns"]) for row in only("blocks", **tables)] == [
        (
            sum(each > 1 for each in inside),
            max(inside, default=0) * SECOND or None,
            max(outside, default=0) * SECOND or None,
        )
    ][: len(given_blocks)]


def test_messages_that_a_storm_of_connections_repeats_are_found_with_the_first_of_them() -> None:
    """A pair of each two of 150 connections would be many."""
    ends = [BROKER | {"connection_id": number} for number in range(150)]
    confirms = [
        {
            "connection_id": number, "message_id": name, "exchange": "e", "routing_key": "k", "outcome": "none",
            "ended_by": "connection-close", "publish_ts_ns": number * SECOND, "end_ts_ns": number * SECOND + 1,
            "publish_packet": number, "publish_capture": "a", "publish_frame_no": number,
        }
        for number in range(150) for name in "ab"
    ]  # fmt: skip
    tables = {"endpoints": table("endpoints", ends), "confirms": table("confirms", confirms)}
    (row,) = [row for row in findings(tables) if row["code"] == "pub-dup"]
    assert (row["count"], row["first_packet"], row["last_packet"]) == (2, 1, 149)


def test_deliveries_behind_blocks_are_counted() -> None:
    blocks = [
        {
            "connection_id": 1, "cause": "connection-blocked", "start_ts_ns": begin * SECOND, "start_packet": begin,
            "end_ts_ns": end and end * SECOND, "end_packet": end, "start_capture": "a", "end_capture": "a",
        }
        for begin, end in ((2, 3), (10, 20), (30, 39))
    ]  # fmt: skip
    deliveries = [
        {
            "connection_id": 1, "kind": "deliver", "outcome": "ack", "deliver_ts_ns": begin * SECOND,
            "deliver_frame_no": begin, "settle_ts_ns": end and end * SECOND,
        }
        for begin, end in ((1, 4), (5, 10), (9, 11), (12, None), (20, 21), (31, 32))  # all but two
    ]  # fmt: skip
    tables = {
        "endpoints": table("endpoints", [BROKER]),
        "flow_control": table("flow_control", blocks),
        "settlements": table("settlements", deliveries),
    }
    (row,) = [row for row in findings(tables) if row["code"] == "cnx-pubcon"]
    assert (row["count"], row["first_packet"], row["last_packet"]) == (4, 2, 39)


# ------------------------------------------------------------------------------------- consumers that are too slow


SLOW = "consumer warehouse-1 is too slow: takes 21/s{}, prefetch 4 full 92 % of the time; queue warehouse grew by 359"


@pytest.mark.parametrize(
    ("left", "deliveries", "texts"),
    [(359, 20, [SLOW.format(" of 48/s")]), (359, 2000, [SLOW.format("")]), (90, 20, [])],
)
def test_where_equal_messages_hide_how_long_they_waited_the_queue_tells(
    left: int, deliveries: int, texts: list[str]
) -> None:
    """Several consumers share what comes in: its rate is not that of one."""
    with database.connect() as connection:
        tables = statistics("demo")
        queues = tables["queues"]
        of = queues["queue"].to_pylist().index("warehouse")
        known = {name: queues[name].to_pylist() for name in ("wait_max_ns", "wait_min_ns", "left_over", "outs")}
        for name, value in zip(known, (None, None, left, max(known["outs"][of], deliveries)), strict=True):
            known[name][of] = value
        for name, rows in (tables | {"queues": changed(queues, **known)}).items():
            database.keep(connection, name, rows)
        rules = [rule for rule in load() if rule.code == "con-slow"]
        made = evaluate(partial(database.rows, connection), rules)["findings"].to_pylist()
    assert [row["text"] for row in made] == texts


# ------------------------------------------------------------------------------------------------ records that are lost


def read_from(asked: int = 500, chunks: tuple[tuple[int, int], ...] = ((1200, 20), (1220, 20)), lost: int = 0) -> Any:
    """A subscription from an offset on, and the chunks (offset, records) that it got."""
    made = {"connection_id": 1, "stream": "clicks", "ts_ns": 2 * 10**9}
    deliveries = [
        made | {"frame_no": at, "packet": at, "chunk_id": first, "last_offset": first + count - 1, "records": count}
        for at, (first, count) in enumerate(chunks, 10)
    ]
    subscribe = {"connection_id": 1, "request": "subscribe", "outcome": "ok", "stream": "clicks", "from_offset": asked}
    return {
        "endpoints": table("endpoints", [BROKER | {"connection_id": 1, "lost_bytes": lost}]),
        "rpcs": table("rpcs", [subscribe | {"request_frame_no": 1, "request_packet": 1, "request_ts_ns": 10**9}]),
        "stream_deliveries": table("stream_deliveries", deliveries),
    }


def test_records_that_a_stream_no_longer_has() -> None:
    (row,) = findings(read_from(), "str-removed")
    assert "from offset 500 on and got it from 1,200 on: 700 records" in row["text"]
    for calm in (
        read_from(asked=1205), read_from(asked=0), read_from(chunks=((1200, 20), (1300, 20))), read_from(lost=1),
        read_from(chunks=((1200, 20),)),
    ):  # fmt: skip
        assert findings(calm, "str-removed") == []


def sent_again(confirmed: bool = True, count: int = 20) -> Any:
    """Records whose ids came before: confirmed then, or not."""
    one = {"connection_id": 1, "stream": "s", "publisher_reference": "p", "publisher_id": 0}
    first = one | {"outcome": "ack" if confirmed else "none", "deduplicated": False, "publish_ts_ns": 1}
    again = one | {"outcome": "ack", "deduplicated": True, "publish_ts_ns": 10, "publish_packet": 9}
    rows = [first | {"publish_seq": at, "confirm_ts_ns": 2 if confirmed else None} for at in range(count)]
    rows += [again | {"publish_seq": at, "confirm_ts_ns": 11} for at in range(count)]
    return {"endpoints": table("endpoints", [BROKER]), "confirms": table("confirms", rows)}


@pytest.mark.parametrize(
    ("confirmed", "count", "severity"), [(True, 20, "warning"), (True, 9, "note"), (False, 20, "note")]
)
def test_ids_that_were_confirmed_are_not_repeated_after_a_broken_connection(
    confirmed: bool, count: int, severity: str
) -> None:
    (row,) = findings(sent_again(confirmed, count), "str-dedup")
    assert row["severity"] == severity and ("had been confirmed" in row["text"]) is (severity == "warning")


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({}, True),
        ({"flow": {"start_ts_ns": 38 * SECOND, "duration_ns": SECOND}}, False),  # a moment before the end
        ({"mine": {"closed_ts_ns": 13 * SECOND, "ending": "closed"}}, False),
        ({"flow": {"end_ts_ns": 12 * SECOND}}, False),  # it gave some later
        ({"others": 240}, False),  # nobody is ahead, and nothing was stored
        ({"before": 9 * SECOND}, False),  # it always takes so long
    ],
)
def test_a_reader_of_a_stream_that_gives_no_credit_any_more(change: dict[str, Any], found: bool) -> None:
    """Its connection says nothing to the end of the capture; another one reads on."""
    at = {"server": "b:5552", "protocol": "rabbitmq-stream", "ending": "open", "lost_bytes": 0, "frames": 9}
    mine = at | {"connection_id": 1, "client": "risk", "last_ts_ns": 13 * SECOND} | change.get("mine", {})
    other = at | {"connection_id": 2, "client": "archive", "last_ts_ns": 40 * SECOND}
    spell = {"connection_id": 1, "subscription_id": 0, "cause": "stream-credit", "evidence": "possible"}
    last = spell | {"start_ts_ns": 12 * SECOND, "duration_ns": SECOND, "start_packet": 7} | change.get("flow", {})
    before = spell | {"start_ts_ns": SECOND, "duration_ns": change.get("before", 1000), "end_ts_ns": SECOND + 1000}
    chunk = {"subscription_id": 0, "stream": "trades", "frame_no": 3}
    tables = {
        "endpoints": table("endpoints", [mine, other]),
        "flow_control": table("flow_control", [before, last]),
        "stream_deliveries": table("stream_deliveries", [
            chunk | {"connection_id": 1, "last_offset": 240, "ts_ns": 12 * SECOND},
            chunk | {"connection_id": 2, "last_offset": change.get("others", 723), "ts_ns": 39 * SECOND},
        ]),
    }  # fmt: skip
    said = [row["text"] for row in findings(tables) if row["code"] == "str-credit0"]
    assert said == found * [
        "risk stands still: after 1 chunk of stream trades it gave no credit for 28 s, to the end, and is at least 483 "
        "records behind; archive, which reads it as well, is not"
    ]


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({}, True), ({"bytes": 40_000}, False), ({"closed_ts_ns": SECOND // 5}, False), ({"closed_ts_ns": None}, False),
        ({"unreadable": None}, False),
    ],
)  # fmt: skip
def test_logins_that_may_be_refused_within_tls(change: dict[str, Any], found: bool) -> None:
    one = {"server": "b:5671", "client_ip": "10.0.0.7", "first_ts_ns": 0, "closed_ts_ns": 3 * SECOND + 5_000_000,
           "bytes": 2_200, "unreadable": "encrypted", "frames": 0} | change  # fmt: skip
    tables = {"endpoints": table("endpoints", [one | {"connection_id": number} for number in range(3)])}
    said = [row["text"].split(":")[0] for row in findings(tables) if row["code"] == "cnx-refused"]
    assert said == found * ["10.0.0.7 may be refused at login"]


@pytest.mark.parametrize(
    ("same", "slow_ms", "found"), [(False, 40_000, True), (True, 40_000, False), (False, 100, False)]
)
def test_a_slow_one_of_workers_whose_queue_is_not_known(same: bool, slow_ms: int, found: bool) -> None:
    """All began before: two share the messages of a queue, a third reads all of another queue."""
    ends = [BROKER | {"connection_id": number, "client": name} for number, name in enumerate(("slow", "quick", "mail"))]
    numbers = {0: range(0, 90, 3), 1: range(90) if same else [n for n in range(90) if n % 3], 2: range(90)}
    given, transits = [], []
    for connection, of in numbers.items():
        for number in of:
            ms = slow_ms if connection == 0 else 20
            row = {"connection_id": connection, "deliver_frame_no": number, "deliver_ts_ns": number * SECOND}
            message = {"exchange": "orders", "routing_key": "paid"}
            given.append(
                row | message | {
                    "channel": 1, "channel_epoch": 0, "consumer_tag": "t", "kind": "deliver", "outcome": "ack",
                    "settle_ts_ns": number * SECOND + ms * 1_000_000, "latency_ns": ms * 1_000_000,
                }
            )  # fmt: skip
            transits.append(
                message | {
                    "publish_connection_id": 9, "publish_frame_no": number, "deliver_connection_id": connection,
                    "deliver_frame_no": number, "deliver_ts_ns": number * SECOND, "matched_by": "message-id",
                }
            )  # fmt: skip
    spread = [
        {
            "metric": "settlement", "grouping": "consumer_tag", "connection_id": number, "channel": 1,
            "channel_epoch": 0, "consumer_tag": "t", "count": 30,
            "p50_ns": (slow_ms if number == 0 else 20) * 1_000_000,
        }
        for number in numbers
    ]  # fmt: skip
    tables = {
        "endpoints": table("endpoints", ends), "settlements": table("settlements", given),
        "transits": table("transits", transits), "latency_summary": table("latency_summary", spread),
    }  # fmt: skip
    said = [row["text"] for row in findings(tables) if row["code"] == "con-slow"]
    assert [text for text in said if "consumer t is much slower than 1 other of its queue" in text] == said
    assert bool(said) is found


def test_who_got_requests_and_answered_none() -> None:
    ends = [BROKER | {"connection_id": number, "client": name} for number, name in ((1, "shop"), (2, "pricing"))]
    call = {"exchange": "", "routing_key": "rpc", "reply_to": "answers", "request_connection_id": 1}
    calls = [
        call | {
            "request_frame_no": number, "request_ts_ns": number * SECOND, "request_packet": number,
            "request_capture": "a", "correlation_id": str(number),
        } | (
            {"answer_ts_ns": number * SECOND + 1000, "latency_ns": 1000} if number % 5
            else {"ended_by": "capture-end", "end_ts_ns": 99 * SECOND}
        )
        for number in range(60)
    ]  # fmt: skip
    given = [
        {
            "connection_id": 1, "channel": 1, "channel_epoch": 1, "consumer_tag": "t", "kind": "deliver",
            "queue": "answers", "outcome": "ack", "deliver_frame_no": 1000 + number,
            "deliver_ts_ns": number * SECOND + 1000,
        }
        for number in range(60) if number % 5
    ]  # fmt: skip
    transits = [
        {
            "publish_connection_id": 1, "publish_frame_no": number, "deliver_connection_id": 2, "exchange": "",
            "routing_key": "rpc", "deliver_frame_no": number, "deliver_ts_ns": number * SECOND + 10,
        }
        for number in range(60)
    ]  # fmt: skip
    tables = {
        "endpoints": table("endpoints", ends), "calls": table("calls", calls),
        "settlements": table("settlements", given), "transits": table("transits", transits),
    }  # fmt: skip
    (row,) = [row for row in findings(tables) if row["code"] == "call-unanswered"]
    assert row["severity"] == "warning" and "shop gets no answer to 12 requests" in row["text"]
    assert "48 others were answered; pricing got 12 of these" in row["text"]


def test_what_came_back_and_was_published_again_is_a_note() -> None:
    end = BROKER | {"connection_id": 1, "client": "shop", "last_ts_ns": 60 * SECOND}
    back = {
        "connection_id": 1, "channel": 1, "method": "basic.return", "from_client": False, "exchange": "e",
        "routing_key": "k", "reply_code": 312, "reply_text": "NO_ROUTE", "ts_ns": 2 * SECOND, "packet": 7,
        "capture": "a",
    }  # fmt: skip

    def severity(last: int) -> str:
        """The second in which it was published has two, and the return came in between."""
        sent = {
            "connection_id": 1, "channel": 1, "exchange": "e", "routing_key": "k", "count": 2, "mandatories": 2,
            "ts_ns": 2 * SECOND, "first_ts_ns": 2 * SECOND - 1000, "last_ts_ns": last,
        }  # fmt: skip
        tables = {"endpoints": table("endpoints", [end]), "operations": table("operations", [back])}
        (row,) = [
            r for r in findings(tables | {"published": table("published", [sent])}) if r["code"] == "pub-unroutable"
        ]
        return str(row["severity"])

    assert severity(2 * SECOND + 1000) == "note"
    assert severity(60 * SECOND - 1000) == "error"  # it may still come back


@pytest.mark.parametrize(("ending", "said"), [("open", "39 s"), ("closed", "2 s")])
def test_a_window_that_stays_closed_is_closed_to_the_end(ending: str, said: str) -> None:
    """Its connection is silent since, others are not."""
    mine = (
        BROKER
        | {"last_ts_ns": 3 * SECOND, "ending": ending}
        | ({"closed_ts_ns": 3 * SECOND} if ending == "closed" else {})
    )
    other = BROKER | {"connection_id": 2, "client": "d", "last_ts_ns": 40 * SECOND}
    spell = {"connection_id": 1, "cause": "zero-window", "side": "client", "evidence": "proven", "start_packet": 7}
    spell |= {"start_ts_ns": SECOND, "duration_ns": 2 * SECOND, "start_capture": "a"}
    tables = {"endpoints": table("endpoints", [mine, other]), "flow_control": table("flow_control", [spell])}
    (row,) = [row for row in findings(tables) if row["code"] == "net-zerowin"]
    assert row["text"] == f"c did not read for {said}: its TCP window was closed"


def test_of_several_queues_that_is_named_which_delivers_again() -> None:
    """A message went to both, and one consumer puts it back."""
    ends = [BROKER | {"connection_id": number, "client": name} for number, name in enumerate(("mail", "crm"))]
    settlements, transits = [], []
    for number, connection in [(0, 0), *((number, 1) for number in range(1, 8))]:
        place = {"deliver_frame_no": number, "deliver_ts_ns": number * SECOND, "deliver_packet": 10 + number}
        again = number > 1
        settlements.append(
            place | {
                "connection_id": connection, "queue": ("mails", "sync")[connection], "redelivered": again,
                "outcome": "nack" if connection else "ack", "requeue": bool(connection), "deliver_capture": "a",
            }
        )  # fmt: skip
        transits.append(
            place | {
                "publish_connection_id": 9, "publish_frame_no": 5, "deliver_connection_id": connection, "latency_ns": 1,
                "redelivered": again,
            }
        )  # fmt: skip
    tables = {"endpoints": table("endpoints", ends), "settlements": table("settlements", settlements)}
    found = findings(tables | {"transits": table("transits", transits)})
    (row,) = [each for each in found if "get again" in each["text"]]
    assert row["text"].startswith("queue sync has 1 message that consumers get again and again, one of them 7 times")
    assert "; crm puts them back, by basic.nack or basic.reject" in row["text"]
    assert (row["first_packet"], row["last_packet"]) == (12, 17)


@pytest.mark.parametrize(
    ("change", "found"),
    [({}, True), ({"own": "1.1.1.1"}, False), ({"own": "3.3.3.3", "client": "map"}, False), ({"other": None}, False)],
)
def test_a_reader_that_does_not_come_back_to_a_stream_that_was_made_anew(change: dict[str, Any], found: bool) -> None:
    at = {"server": "b:5552", "protocol": "rabbitmq-stream", "last_ts_ns": 60 * SECOND}
    ends = [
        at | {"connection_id": 1, "client": "map", "client_ip": "1.1.1.1", "last_ts_ns": 20 * SECOND},
        at | {"connection_id": 2, "client": "eta", "client_ip": "2.2.2.2"},
        at | {"connection_id": 3, "client": change.get("client", "x"), "client_ip": change.get("own", "3.3.3.3")},
    ]
    again = {"request": "subscribe", "outcome": "ok", "stream": "positions", "request_ts_ns": 22 * SECOND}
    requests = [again | {"connection_id": 2}] if change.get("other", 1) else []
    requests += [again | {"connection_id": 3}] if "own" in change else []
    told = {"connection_id": 1, "command": "metadata-update", "stream": "positions", "ts_ns": 19 * SECOND, "packet": 7}
    chunk = {"connection_id": 1, "subscription_id": 0, "ts_ns": 18 * SECOND, "last_offset": 40, "frame_no": 3}
    tables = {
        "endpoints": table("endpoints", ends), "rpcs": table("rpcs", requests),
        "stream_metadata": table("stream_metadata", [told]), "stream_deliveries": table("stream_deliveries", [chunk]),
    }  # fmt: skip
    said = [row["text"] for row in findings(tables) if row["code"] == "str-cancelled"]
    assert said == found * [
        "map was told at 00:00:19.000 that stream positions, which it read, is not available any more; in 41 s it did "
        "not subscribe again, as eta did"
    ]
