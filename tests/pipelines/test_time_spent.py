"""Where the time of connections went, held against a plain loop over each moment."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amqpscope.pipelines.model.walk import conform
from tests.pipelines.analyzed import related, statistics, walked
from tests.thorough import examples
from tests.tickets import FOLDER as TICKETS

FIRST, LAST = 10, 60
OWNERS = ("unknown_ns", "network_ns", "broker_ns", "client_ns", "idle_ns")
ENDED = ("gap", "evicted", "capture-end", "channel-close")
TIMES = st.integers(0, 70)
UNIT_NS = 20_000_000
"""Ten of these are the longest for which a host holds an acknowledgement back."""


def table(name: str, rows: list[dict[str, Any]]) -> pa.Table:
    columns = {key: pa.array([row.get(key) for row in rows]) for row in rows for key in row}
    return conform(name, columns, len(rows))


def answered(begin: str, end: str, **others: Any) -> st.SearchStrategy[dict[str, Any]]:
    """A row of a request, with its answer or without."""
    given = {key: st.sampled_from(values) for key, values in others.items()}
    given |= {"request_acked_ts_ns": TIMES | st.none()}
    is_answered = st.fixed_dictionaries({begin: TIMES, end: TIMES} | given)
    is_not = st.fixed_dictionaries({begin: TIMES, "end_ts_ns": TIMES, "ended_by": st.sampled_from(ENDED)} | given)
    return is_answered | is_not


CONFIRMS = st.lists(answered("publish_ts_ns", "confirm_ts_ns"), max_size=4)
RPCS = st.lists(answered("request_ts_ns", "response_ts_ns", from_client=(True, False)), max_size=3)
SETTLEMENTS = st.lists(answered("deliver_ts_ns", "settle_ts_ns", outcome=("ack", "auto", "none")), max_size=4)
GAPS = st.lists(st.fixed_dictionaries({"since_ts_ns": TIMES | st.none(), "ts_ns": TIMES}), max_size=2)
WAITS = st.lists(
    st.fixed_dictionaries(
        {
            "start_ts_ns": TIMES,
            "end_ts_ns": TIMES,
            "side": st.sampled_from(["client", "server"]),
            "cause": st.sampled_from(["prefetch", "zero-window"]),
            "evidence": st.sampled_from(["proven", "possible"]),
        }
    ),
    max_size=2,
)


def owner(t: int, spans: list[tuple[int, Any, Any]]) -> int:
    """Who owns the time from t to t + 1."""
    found = [who for who, begin, end in spans if begin is not None and end is not None and begin <= t < end]
    return min(found, default=4)


def on_the_way(row: dict[str, Any], begin: str, way: int) -> int:
    """How long what is asked, or its answer, was on its way."""
    if row["request_acked_ts_ns"] is None:
        return way
    acked: int = row["request_acked_ts_ns"] - row[begin]
    return acked if acked < way else max(way, acked - 10)


def in_ns(row: dict[str, Any]) -> dict[str, Any]:
    """A row with its times in nanoseconds."""
    return {key: at * UNIT_NS if key.endswith("_ns") and at is not None else at for key, at in row.items()}


def spans_of(rows: list[dict[str, Any]], begin: str, end: str, who: Any, way: Any) -> list[tuple[int, Any, Any]]:
    made: list[tuple[int, Any, Any]] = []
    for row in rows:
        if row.get("outcome") != "auto":
            lost = row.get("ended_by") in ("gap", "evicted")
            made.append((0 if lost else who(row), row[begin], row.get(end, row.get("end_ts_ns"))))
            if end in row:
                made.append((1, row[begin], min(row[end], row[begin] + on_the_way(row, begin, way(row)))))
        elif row.get("ended_by") in ("gap", "evicted"):
            made.append((0, row[begin], row["end_ts_ns"]))
    return made


DELAYS = st.lists(
    st.fixed_dictionaries(
        {
            "start_ts_ns": TIMES,
            "end_ts_ns": TIMES,
            "kind": st.sampled_from(["retransmission", "held-write", "delayed-ack"]),
        }
    ),
    max_size=2,
)


@settings(deadline=None, max_examples=examples(60))
@given(CONFIRMS, RPCS, SETTLEMENTS, GAPS, WAITS, DELAYS, st.integers(0, 9), st.integers(0, 9))
def test_each_moment_has_the_first_owner_and_all_add_up(
    confirms: list[dict[str, Any]], rpcs: list[dict[str, Any]], settlements: list[dict[str, Any]],
    gaps: list[dict[str, Any]], waits: list[dict[str, Any]], delays: list[dict[str, Any]],
    to_client: int, to_server: int,
) -> None:  # fmt: skip
    end = {"connection_id": 1, "protocol": "amqp-0-9-1", "first_ts_ns": FIRST, "last_ts_ns": LAST}
    tables = {
        "endpoints": [end | {"rtt_ns": to_client + to_server, "client_rtt_ns": to_client}],
        "confirms": confirms, "rpcs": rpcs, "settlements": settlements, "gaps": gaps, "flow_control": waits,
        "tcp_delays": delays,
    }  # fmt: skip
    made = {name: table(name, [in_ns(row) | {"connection_id": 1} for row in rows]) for name, rows in tables.items()}
    (found,) = related(made, "time_spent")
    spans = [(0, row["since_ts_ns"], row["ts_ns"]) for row in gaps]
    spans += [(2 if row["side"] == "server" else 3, row["start_ts_ns"], row["end_ts_ns"]) for row in waits]
    spans += [
        (1, row["end_ts_ns"], row["end_ts_ns"] + to_server)
        for row in waits
        if (row["cause"], row["evidence"]) == ("prefetch", "proven")
    ]
    spans += [(1, row["start_ts_ns"], row["end_ts_ns"]) for row in delays if row["kind"] != "delayed-ack"]
    spans += spans_of(confirms, "publish_ts_ns", "confirm_ts_ns", lambda _: 2, lambda _: to_server)
    spans += spans_of(
        rpcs, "request_ts_ns", "response_ts_ns", lambda row: 2 if row["from_client"] else 3,
        lambda row: to_server if row["from_client"] else to_client,
    )  # fmt: skip
    spans += spans_of(settlements, "deliver_ts_ns", "settle_ts_ns", lambda _: 3, lambda _: to_client)
    expected = [0] * 5
    for t in range(FIRST, LAST):
        expected[owner(t, spans)] += 1
    assert [found[each] for each in OWNERS] == [units * UNIT_NS for units in expected]
    assert sum(expected) * UNIT_NS == found["wall_ns"] == (LAST - FIRST) * UNIT_NS


@pytest.mark.sampled(3)
@pytest.mark.parametrize("stem", ["demo", "blocked", "lossy_link", "stream_chunks", "qpid_messaging", "tls_failures"])
def test_slices_of_recordings_add_up_to_their_time(stem: str) -> None:
    rows = statistics(stem)["time_spent"].to_pylist()
    assert len(rows) == len(statistics(stem)["endpoints"])
    for row in rows:
        assert sum(row[each] for each in OWNERS) == row["wall_ns"] == row["last_ts_ns"] - row["first_ts_ns"]


def test_a_blocked_client_waits_for_the_broker() -> None:
    rows = {row["client"]: row for row in statistics("blocked")["time_spent"].to_pylist()}
    assert rows["told"]["broker_ns"] >= rows["told"]["blocked_ns"] > 10**9
    assert rows["consumer"]["broker_ns"] < 10**7


def test_what_is_encrypted_is_unknown() -> None:
    made = statistics("tls_sessions_13")
    encrypted = {row["connection_id"] for row in made["endpoints"].to_pylist() if row["tls_decrypted"] is False}
    rows = [row for row in made["time_spent"].to_pylist() if row["connection_id"] in encrypted]
    assert rows
    assert all(row["unknown_ns"] == row["wall_ns"] for row in rows)


def test_a_far_consumer_with_a_small_prefetch_waits_for_the_way() -> None:
    """Prefetch 1 over 40 ms: the broker sends the next message when it has the acknowledgement."""
    made = walked(TICKETS / "far_consumer.pcap")
    (row,) = [row for row in related(made, "time_spent") if row["client"] == "packer"]
    assert row["network_ns"] > 0.8 * row["wall_ns"]


@pytest.mark.parametrize("name", ["congested_path_mute", "congested_path_told"])
def test_what_tcp_acknowledges_late_was_on_its_way(name: str) -> None:
    """The path is slow for three seconds, longer than segments are sent again for; the broker answers at once."""
    (row,) = [row for row in related(walked(TICKETS / f"{name}.pcap"), "time_spent") if row["network_ns"]]
    assert row["network_ns"] > 0.7 * row["wall_ns"]
    assert row["broker_ns"] < 0.1 * row["wall_ns"]


def test_what_tcp_acknowledges_while_the_broker_stands_still_is_the_brokers() -> None:
    rows = [row for row in related(walked(TICKETS / "stalled_broker.pcap"), "time_spent") if row["client"] == "meter"]
    assert all(row["network_ns"] < 0.05 * row["wall_ns"] < row["broker_ns"] for row in rows)
