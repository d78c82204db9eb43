"""The lanes of the demo, against plain counting over the same rows."""

from pathlib import Path

import numpy as np
import pytest

import amqpscope
from amqpscope.dashboards import flow, lanes, overview, queues, swimlanes, units
from amqpscope.dashboards.tables import Tables
from tests.dashboards.synthetic import rows

CAPTURES = Path(__file__).parents[1] / "captures"


@pytest.fixture(scope="module")
def demo(demo_statistics: Path) -> Tables:
    return Tables(None, demo_statistics)


@pytest.fixture(scope="module")
def made(demo: Tables) -> lanes.Overview:
    first = overview.query(demo)
    assert first is not None and first.lanes is not None
    return first.lanes


def test_every_answer_is_a_point_with_its_packets(demo: Tables, made: lanes.Overview) -> None:
    curves = {curve.name: curve for curve in made.lanes[1].curves}
    for name, outcome in (("acks", "ack"), ("nacks (refused)", "nack")):
        expected = sorted(
            (r["confirm_ts_ns"] - made.low_ns, r["latency_ns"], r["publish_packet"], r["confirm_packet"])
            for r in rows(demo, "confirms")
            if r["outcome"] == outcome
        )
        packets = curves[name].packets
        shown = zip(
            curves[name].at.to_pylist(), curves[name].values.to_pylist(), packets["begin_packet"].to_pylist(),
            packets["end_packet"].to_pylist(), strict=True,
        )  # fmt: skip
        assert sorted(shown) == expected


def test_waits_are_those_of_first_deliveries_from_the_queue(demo: Tables, made: lanes.Overview) -> None:
    of = {(r["connection_id"], r["deliver_frame_no"]): r["queue"] for r in rows(demo, "settlements")}
    for curve in made.lanes[2].curves:
        expected = sorted(
            (r["deliver_ts_ns"] - made.low_ns, r["latency_ns"])
            for r in rows(demo, "transits")
            if of[r["deliver_connection_id"], r["deliver_frame_no"]] == curve.name
            and r["latency_ns"] is not None
            and not r["redelivered"]
        )
        assert sorted(zip(curve.at.to_pylist(), curve.values.to_pylist(), strict=True)) == expected
    assert [curve.name for curve in made.lanes[2].curves] == ["carts", "warehouse", "billing", "statistics"]


def test_rates_are_those_of_their_seconds(demo: Tables, made: lanes.Overview) -> None:
    published = made.lanes[0].curves[0]
    moments = np.array([r["deliver_ts_ns"] for r in rows(demo, "settlements")])
    delivered = made.lanes[0].curves[1]
    for at, value in zip(delivered.at.tolist(), delivered.values.tolist(), strict=True):
        begin = made.low_ns + at
        assert value == np.count_nonzero((moments >= begin) & (moments < begin + units.SECOND))
    assert published.values.sum() == 1178


def test_the_block_is_shaded(demo: Tables, made: lanes.Overview) -> None:
    (shade,) = made.shades
    blocks = [r for r in rows(demo, "flow_control") if r["cause"] == "connection-blocked"]
    low, high = min(r["start_ts_ns"] for r in blocks), max(r["end_ts_ns"] for r in blocks)
    assert shade[0] == pytest.approx(float(made.x.at(low - made.low_ns)), abs=0.01)
    assert shade[1] == pytest.approx(float(made.x.at(high - made.low_ns)), abs=0.01)


def test_consumers_have_their_limit(made: lanes.Overview) -> None:
    assert "warehouse-1 at its prefetch of 4" in made.lanes[3].title
    assert {key.text for key in made.lanes[3].legend} == {
        "statistics-1 (prefetch 100, dotted)", "billing-1 (prefetch 50, dotted)", "warehouse-1 (prefetch 4, dotted)"
    }  # fmt: skip
    highest = {curve.name: int(curve.values.max()) for curve in made.lanes[3].curves}
    assert highest == {"statistics-1 unacked": 100, "billing-1 unacked": 50, "warehouse-1 unacked": 4}


def test_data_of_the_script_are_the_points(made: lanes.Overview) -> None:
    data = lanes.data(made)
    for lane, curves in zip(made.lanes, data["lanes"], strict=True):
        for curve, given in zip(lane.curves, curves, strict=True):
            assert np.cumsum(given["t"]).tolist() == (np.asarray(curve.at) // 1000).tolist()
    assert data["captures"] == ["demo.pcap"]


def test_the_way_of_messages(demo: Tables) -> None:
    drawn, grid = flow.section(demo).parts
    clients, hubs, named, takers = ([node.name for node in column] for column in drawn.columns)
    assert clients == ["checkout", "web", "till"]
    assert "(default exchange) nobody" in hubs and named == ["statistics", "billing", "warehouse", "carts"]
    assert takers[0] == "statistics: statistics-1"
    assert [
        node.is_bad
        for node in drawn.columns[1]
        if node.name in ("(default exchange) carts", "(default exchange) nobody")
    ]
    assert sum(int(row[6].text.replace(",", "")) for row in grid.rows if row[0].text == "publish") == 1178


def test_queues_stand_with_what_is_left(demo: Tables) -> None:
    (grid,) = queues.section(demo).parts
    row = next(row for row in grid.rows if row[0].text == "warehouse")
    assert [cell.text for cell in row[1:4]] == ["643", "284", "+359"] and row[3].kind == "number bad"
    assert len(grid.rows) == 50 and grid.page == 8


def test_connections_have_lanes(demo: Tables, made: lanes.Overview) -> None:
    found = swimlanes.query(demo, made.low_ns, made.x)
    assert found is not None and {group.client for group in found.groups} == {
        "checkout", "web", "till", "billing", "statistics", "warehouse", "tenant"
    }  # fmt: skip
    blocked = {g.client for g in found.groups for lane in g.lanes for span in lane.spans if span.kind == "block"}
    assert blocked == {"checkout", "web", "till"}
    assert all(0 <= s.begin <= s.end <= 1 for g in found.groups for lane in g.lanes for s in lane.spans)


def test_what_tcp_delayed_and_rates_of_less_than_a_second(tmp_path: Path) -> None:
    tables = Tables(None, amqpscope.analyze(CAPTURES / "lossy_link.pcap", tmp_path / "stats"))
    first = overview.query(tables)
    assert first is not None and first.lanes is not None and first.swimlanes is not None
    texts = [s.text for g in first.swimlanes.groups for lane in g.lanes for s in lane.spans if s.kind == "resent"]
    delays = [row for row in rows(tables, "tcp_delays") if row["kind"] == "retransmission"]
    assert len(texts) == len(delays) > 0
    assert f"341 B of the broker sent again after {units.duration(206_000_000)}" in texts  # as tshark has it
    title = first.lanes.lanes[0].title  # 120 publishes and 40 deliveries in 0.66 s
    assert title == "Rates: 181 published per second, 181 at most; 60 delivered per second, 60 at most"
