"""Delays by TCP, and the waits that they explain."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amqpscope.pipelines import jobs
from amqpscope.pipelines.connections import tcp_delays
from amqpscope.pipelines.model.listed import listed
from amqpscope.pipelines.model.walk import conform
from amqpscope.pipelines.run.runner import Runner
from tests.dissector.runs import FOLDER, dissect, rows
from tests.pipelines.analyzed import related, statistics
from tests.pipelines.scenario import arrow_table
from tests.thorough import examples


@pytest.mark.sampled(2)
@pytest.mark.parametrize("stem", ["demo", "lossy_link", "zero_window", "stream_errors"])
def test_each_delay_of_a_recording_has_its_times(stem: str) -> None:
    shown = rows(dissect(Path(FOLDER / f"{stem}.pcap"))["tcp_events"])
    last = {row["connection_id"]: row["last_ts_ns"] for row in statistics(stem)["endpoints"].to_pylist()}
    expected = []
    for row in shown:
        late = row["late_ns"] or 0
        since, until = row["ts_ns"] - late, row["ts_ns"]
        if row["kind"] == "zero-window":
            since, until = (
                row["ts_ns"],
                row["ts_ns"] + late if row["late_ns"] is not None else last[row["connection_id"]],
            )
        if row["kind"] != "reset":
            expected.append((row["kind"], row["packet"], row["of_packet"], since, until, until - since))
    names = ("kind", "packet", "of_packet", "start_ts_ns", "end_ts_ns", "duration_ns")
    found = [tuple(row[name] for name in names) for row in statistics(stem)["tcp_delays"].to_pylist()]
    assert expected and sorted(found, key=str) == sorted(expected, key=str)


def test_events_take_no_more_room_than_they_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """The row of their connection stands beside each, without the list of all."""
    sizes: list[int] = []

    def measured(*which: Any) -> Any:
        found = listed(*which)
        sizes.extend(each.nbytes for each in found or ())
        return found

    monkeypatch.setattr(tcp_delays, "listed", measured)
    row = {"connection_id": 1, "kind": "retransmission", "capture": "a.pcap", "ts_ns": 1, "ts": 0, "from_client": True}
    events = arrow_table("tcp_events", [row | {"packet": number} for number in range(2000)])
    ended = arrow_table("connections", [{"connection_id": 1, "protocol": "amqp", "first_ts_ns": 0, "last_ts_ns": 9}])
    runner = Runner(threads=0)
    for name, given_rows in {"tcp_events": events, "connections": ended}.items():
        runner.add(runner.prepare(name, given_rows))
    found = sum(len(each) for name, each in runner.finish() if name == "tcp_delays")
    assert found == 2000 and sum(sizes) < 2 * (events.nbytes + 2000 * ended.nbytes)


def table(name: str, made: list[dict[str, Any]]) -> pa.Table:
    columns = {key: pa.array([row.get(key) for row in made]) for row in made for key in row}
    return conform(name, columns, len(made))


TIMES = st.integers(0, 100)
PUBLISHES = st.lists(st.tuples(TIMES, TIMES), max_size=6)
DELAYS = st.lists(
    st.tuples(
        TIMES, TIMES, st.sampled_from(["retransmission", "held-write", "zero-window", "delayed-ack"]), st.booleans()
    ),
    max_size=6,
)
UNIT = 1_000_000


@settings(deadline=None, max_examples=examples(60))
@given(PUBLISHES, DELAYS)
def test_a_delay_explains_a_wait_of_which_it_is_half(
    publishes: list[tuple[int, int]], delays: list[tuple[int, int, str, bool]]
) -> None:
    waits = [(min(each), max(each), frame) for frame, each in enumerate(publishes)]
    late = [(min(a, b), max(a, b), kind, side) for a, b, kind, side in delays]
    made = {
        "endpoints": [{"connection_id": 1, "client": "c", "server": "s"}],
        "confirms": [
            {"publish_frame_no": frame, "publish_ts_ns": a * UNIT, "confirm_ts_ns": b * UNIT,
             "latency_ns": (b - a) * UNIT}
            for a, b, frame in waits
        ],
        "tcp_delays": [
            {"start_ts_ns": a * UNIT, "end_ts_ns": b * UNIT, "duration_ns": (b - a) * UNIT, "kind": kind,
             "from_client": side, "packet": 1, "capture": "x", "bytes": 5}
            for a, b, kind, side in late
        ],
    }  # fmt: skip
    tables = {name: table(name, [row | {"connection_id": 1} for row in rows]) for name, rows in made.items()}
    found = {(row["kind"], row["from_client"]): row for row in related(tables, "tcp_causes")}
    assert found.keys() == {(kind, side) for *_, kind, side in late if kind != "delayed-ack"}
    hit = set()
    for (kind, side), row in found.items():
        mine = [(a, b) for a, b, other, way in late if (other, way) == (kind, side)]
        union = sum(any(c <= t < d for c, d in mine) for t in range(100))
        explained = [
            (b - a, frame)
            for a, b, frame in waits
            if b - a >= 10 and 2 * sum(any(c <= t < d for c, d in mine) for t in range(a, b)) >= b - a
        ]
        hit |= {frame for _, frame in explained}
        assert (row["delays"], row["total_ns"]) == (len(mine), UNIT * union)
        assert (row["explained"], row["explained_ns"]) == (
            len(explained), UNIT * max(took for took, _ in explained) if explained else None,
        )  # fmt: skip
    others = [UNIT * (b - a) for a, b, frame in waits if b - a >= 10 and frame not in hit]
    assert all(row["others_ns"] == max(others, default=None) for row in found.values())


def test_delays_on_spark_are_the_same(spark: Any) -> None:
    tables = dissect(FOLDER / "stream_errors.pcap")
    here = jobs.tcp_delays(tables["connections"], tables["tcp_events"])
    there = jobs.tcp_delays(*(spark.createDataFrame(tables[name]) for name in ("connections", "tcp_events")))
    assert sorted(there.toArrow().to_pylist(), key=str) == sorted(here.to_pylist(), key=str)
    assert len(here) == 17
