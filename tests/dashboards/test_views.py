"""The numbers after each picture, against slow counting over the same rows."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from amqpscope.dashboards import (
    captured,
    connections,
    filters,
    heatmap,
    percentiles,
    rpcs,
    slowest,
    staircase,
    summary,
    verdicts,
    waits,
)
from amqpscope.dashboards.section import of_all
from amqpscope.dashboards.tables import Tables
from tests.dashboards import synthetic
from tests.dashboards.synthetic import rows


def test_curve_reads_percentiles_to_a_bucket(shop: Tables) -> None:
    curves = {c.metric: c for c in percentiles.query(shop)}
    for metric, table in (("confirm", "confirms"), ("settlement", "settlements"), ("rpc", "rpcs")):
        known = np.sort([r["latency_ns"] for r in rows(shop, table) if r["latency_ns"] is not None])
        c = curves[metric]
        assert c.samples == len(known)
        assert c.inverse[-1] == len(known)
        assert c.latency_ns[-1] == known[-1]
        for q in (0.5, 0.9, 0.99):
            exact = known[int(np.ceil(q * len(known))) - 1]
            assert exact <= percentiles.at(c, q) <= exact * 1.009 + 1


def test_curve_of_known_buckets() -> None:
    c = percentiles.curve("confirm", "blue", np.array([10, 20, 30]), np.array([90, 9, 1]))
    assert c.inverse.tolist() == pytest.approx([10, 100, 100])
    assert [percentiles.at(c, q) for q in (0.5, 0.9, 0.95, 0.99)] == [10, 10, 20, 20]


def test_heat_map_counts_everything_once(shop: Tables) -> None:
    for metric in heatmap.METRICS:
        data = heatmap.query(shop, metric)
        all_rows = rows(shop, metric.table)
        known = [r for r in all_rows if r["latency_ns"] is not None]
        assert data.counts.sum() == len(known)
        assert data.started.sum() == len(all_rows)
        assert data.failed.sum() == sum(r["outcome"] in metric.failed for r in all_rows)
        row = known[len(known) // 2]
        step = (row[metric.start] - data.low_ns) * heatmap.COLUMNS // (data.high_ns - data.low_ns)
        place = int((np.log2(row["latency_ns"]) - data.first_log2) * data.per_octave)
        assert data.counts[place, step] > 0


def test_heat_map_shows_the_stall_when_it_was(shop: Tables) -> None:
    data = heatmap.query(shop, heatmap.METRICS[0])
    slow = data.counts[int((np.log2(500e6) - data.first_log2) * data.per_octave) :].sum(axis=0)
    at = np.flatnonzero(slow)
    stall = synthetic.START + int(0.4 * 90 * synthetic.SECOND)
    times = data.low_ns + at * (data.high_ns - data.low_ns) / heatmap.COLUMNS
    assert np.abs(times - stall).max() < 3 * synthetic.SECOND


def test_heat_levels() -> None:
    level = heatmap.levels(np.array([[0, 1, 2, 100]]))
    assert level[0, 0] == -1
    assert level[0, 1] == 0
    assert level[0, 3] == 6
    assert heatmap.levels(np.zeros((2, 2), int)).max() == -1


def test_staircase_is_exact_where_it_can_be(shop: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staircase, "EXACT", 1000)
    channel = next(c for c in staircase.channels(shop, 3) if (c.connection_id, c.channel) == (100, 2))
    data = staircase.query(shop, channel)
    mine = [r for r in rows(shop, "confirms") if (r["connection_id"], r["channel"]) == (100, 2)]
    assert data.exact
    assert channel.publishes == len(mine)
    for moment in data.low_ns + np.linspace(0, data.high_ns - data.low_ns, 50).astype(int):
        place = np.searchsorted(data.times_ns, moment, side="right") - 1
        assert data.published[place] == sum(r["publish_ts_ns"] <= moment for r in mine)
        assert data.answered[place] == sum((r["confirm_ts_ns"] or 2**63) <= moment for r in mine)
    assert len(data.marks["none"][0]) == 5
    assert (data.published >= data.answered).all()
    assert data.published[-1] - data.answered[-1] == 5


def test_staircase_in_steps_ends_at_the_same_numbers(shop: Tables) -> None:
    channel = next(c for c in staircase.channels(shop) if (c.connection_id, c.channel) == (100, 1))
    assert "busiest" in channel.why
    data = staircase.query(shop, channel)
    mine = [r for r in rows(shop, "confirms") if (r["connection_id"], r["channel"]) == (100, 1)]
    assert not data.exact
    assert len(data.times_ns) <= staircase.STEPS + 1
    assert data.published[-1] == len(mine) == channel.publishes
    assert data.answered[-1] == sum(r["outcome"] != "none" for r in mine)
    place = len(data.times_ns) // 2
    assert data.published[place] == sum(r["publish_ts_ns"] <= data.times_ns[place] for r in mine)
    nacked = [r["publish_seq"] for r in mine if r["outcome"] == "nack"]
    assert sorted(data.marks["nack"][1].tolist()) == nacked
    assert channel.nacks == len(nacked)


def test_worst_moment_holds_the_slowest_confirm(shop: Tables) -> None:
    channel = staircase.channels(shop)[0]
    low, high = staircase.worst_moment(shop, channel)
    mine = [r for r in rows(shop, "confirms") if (r["connection_id"], r["channel"]) == (100, 1) and r["latency_ns"]]
    slowest_row = max(mine, key=lambda r: r["latency_ns"])
    assert low < slowest_row["publish_ts_ns"] < slowest_row["confirm_ts_ns"] < high
    data = staircase.query(shop, channel, low, high)
    place = np.searchsorted(data.times_ns, slowest_row["publish_ts_ns"], side="right") - 1
    everything = [r for r in rows(shop, "confirms") if (r["connection_id"], r["channel"]) == (100, 1)]
    outstanding = sum(
        r["publish_ts_ns"] <= slowest_row["publish_ts_ns"] < (r["confirm_ts_ns"] or 2**63) for r in everything
    )
    assert data.published[place] - data.answered[place] == outstanding


def test_lanes_are_filled_where_intervals_are(shop: Tables) -> None:
    data = waits.query(shop, captured.end(shop))
    assert data.causes == ["connection-blocked", "channel-flow", "prefetch"]
    width = (data.high_ns - data.low_ns) / waits.STEPS
    blocked = data.filled["proven"][0]
    expected = np.zeros(waits.STEPS, bool)
    for row in rows(shop, "flow_control"):
        if row["cause"] == "connection-blocked":
            end = row["end_ts_ns"] or data.high_ns
            begin_step, end_step = (int((t - data.low_ns) / width) for t in (row["start_ts_ns"], end))
            expected[begin_step : min(end_step, waits.STEPS - 1) + 1] = True
    assert np.count_nonzero(blocked != expected) <= 4  # a step more or less at an end
    assert not data.filled["proven"][1].any()
    totals = {(r["cause"], r["evidence"]): r for r in waits.totals(shop)}
    assert totals["connection-blocked", "proven"]["intervals"] == 2
    assert totals["connection-blocked", "proven"]["open"] == 1
    assert totals["connection-blocked", "proven"]["longest_ns"] == 6 * synthetic.SECOND


def test_slowest_and_their_filters(shop: Tables) -> None:
    confirms = slowest.query(shop, slowest.KINDS[0], 3)
    assert [r["latency_ns"] for r in confirms] == sorted(
        (r["latency_ns"] for r in rows(shop, "confirms") if r["latency_ns"]), reverse=True
    )[:3]
    row = {"begin_capture": "a", "begin_packet": 123, "end_capture": "a", "end_packet": 456}
    assert filters.of_ends(row, 40112) == ["tcp.port == 40112 && frame.number in {123, 456}"]
    assert filters.of_ends({**row, "end_packet": 123}, None) == ["frame.number == 123"]
    assert filters.of_ends({**row, "end_capture": "b"}, 1) == [
        "tcp.port == 1 && frame.number == 123",
        "tcp.port == 1 && frame.number == 456",
    ]
    assert filters.of_ends({**row, "begin_packet": None, "end_packet": None}, 1) == []


def test_unanswered_are_ranked_by_their_wait(shop: Tables) -> None:
    found = slowest.unanswered(shop, slowest.KINDS[0], 100)
    expected = sorted(
        (r["end_ts_ns"] - r["publish_ts_ns"] for r in rows(shop, "confirms") if r["outcome"] == "none"), reverse=True
    )
    assert [r["waited"] for r in found] == expected


def test_requests_with_errors_come_first(shop: Tables) -> None:
    first = rpcs.query(shop)[0]
    assert (first["request"], first["errors"], first["count"]) == ("queue.declare", 1, 17)
    assert rpcs.errors(shop) == [{"request": "queue.declare", "reply_code": 406, "count": 1}]


def test_commands_are_counted_by_what_became_of_them(tmp_path: Path) -> None:
    sent = {"connection_id": 1, "from_client": True, "sent_ts_ns": 5}
    accepted = {"method": "message.accept", "outcome": "ok", "latency_ns": 7}
    synthetic.write(
        tmp_path,
        "commands",
        [sent | row for row in (accepted, accepted | {"outcome": "none", "latency_ns": None}, accepted)]
        + [sent | {"method": "queue.bind", "outcome": "error", "latency_ns": 9}],
    )
    assert rpcs.commands(Tables(None, tmp_path)) == [
        {"method": "queue.bind", "from_client": True, "count": 1, "max_ns": 9, "completed": 0, "failed": 1, "open": 0},
        {
            "method": "message.accept", "from_client": True, "count": 3, "max_ns": 7, "completed": 2, "failed": 0,
            "open": 1,
        },
    ]  # fmt: skip


def test_failed_handshakes_come_first_and_the_rest_is_counted(shop: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = connections.query(shop, 30)
    assert listed[0]["handshake_outcome"] == "vhost-not-found"
    assert len(listed) == len({r["connection_id"] for r in listed}) == 30
    monkeypatch.setattr(connections, "MOST", 30)
    section = connections.section(shop)
    assert section.parts[0].note == "30 of 40 shown."


def test_capture_points_are_named_where_there_are_several(shop: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    assert connections.vantages(shop) == ""
    counted = pa.table({"vantage": ["client.pcap", "broker.pcap", ""], "count": [2, 5, 1]})
    monkeypatch.setattr(shop, "group", lambda *_, **__: counted)
    assert connections.vantages(shop) == "broker.pcap, client.pcap"


def test_what_is_shown_of_all_is_counted() -> None:
    assert of_all(15, 1_500) == "15 of 1,500 shown."
    assert of_all(15, 15) == ""


def test_losses_stand_first_and_are_summed(shop: Tables) -> None:
    data = captured.query(shop)
    assert data.sums["packets"] == 21_737
    assert data.sums["dropped"] == 12
    assert data.sums["truncated"] == 1
    assert data.lost["lost_bytes"] == 2_920
    assert [(r["code"], r["count"], r["connections"]) for r in data.anomalies] == [
        ("capture-truncated", 1, 0),
        ("tcp-gap", 2, 1),
        ("bytes-skipped", 1, 1),
        ("content-abandoned", 3, 3),
    ]


def test_numbers_that_are_not_certain_stand_with_what_was_lost(tmp_path: Path) -> None:
    unsure = [{"connection_id": 1, "publish_seq_unsure": value} for value in (True, True, False, None)]
    synthetic.write(tmp_path / "tables", "captures")
    synthetic.write(tmp_path / "tables", "messages", unsure)
    shown = {reading.name: reading.value for reading in captured.section(Tables(tmp_path / "tables")).losses}
    assert shown["publishes of uncertain number"] == "2"


def test_percentiles_that_samples_cannot_show_are_muted(shop: Tables) -> None:
    (row,) = summary.query(shop, "rpc", "all")
    cells = summary.values(row)
    assert [("muted" in c.kind) for c in cells[3:8]] == [False, False, True, True, True]


def test_one_operation_is_enough(tmp_path: Path) -> None:
    one = {"publish_ts_ns": 10**18, "confirm_ts_ns": 10**18, "latency_ns": 0, "outcome": "ack", "publish_seq": 1}
    synthetic.write(tmp_path, "confirms", [{"connection_id": 1, "channel": 1, "channel_epoch": 0, **one}])
    at = Tables(None, tmp_path)
    data = heatmap.query(at, heatmap.METRICS[0])
    assert data.counts.sum() == 1
    assert staircase.channels(at) == []
    assert "One latency: 0 ns." in heatmap.part(data).text


def test_publishes_at_one_instant_have_a_staircase(tmp_path: Path) -> None:
    rows = [
        {"connection_id": 1, "channel": 1, "channel_epoch": 0, "publish_ts_ns": 10**18, "confirm_ts_ns": 10**18,
         "latency_ns": 0, "outcome": "ack", "publish_seq": n}
        for n in (7, 8)
    ]  # fmt: skip
    synthetic.write(tmp_path, "confirms", rows)
    at = Tables(None, tmp_path)
    (channel,) = staircase.channels(at)
    stairs = staircase.query(at, channel)
    assert (stairs.published[-1], stairs.answered[-1]) == (8, 8)
    staircase.section(at)


EXTREMES = (-(2**63), 0, 10**18, 2**63 - 1, None)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("low", EXTREMES)
@pytest.mark.parametrize("high", EXTREMES)
def test_no_time_is_too_strange(tmp_path: Path, low: int | None, high: int | None) -> None:
    row = {"connection_id": 1, "channel": 1, "channel_epoch": 1, "start_packet": low, "latency_ns": high}
    times = [
        {**row, "publish_ts_ns": a, "confirm_ts_ns": b, "end_ts_ns": b, "publish_seq": a, "outcome": o}
        for a, b in ((low, high), (high, low), (low, low))
        for o in ("ack", "nack", "none")
    ]
    del row["latency_ns"]
    synthetic.write(tmp_path, "confirms", [{k: v for k, v in t.items() if k != "start_packet"} for t in times])
    waited = {"start_ts_ns": low, "end_ts_ns": high, "duration_ns": high, "cause": "prefetch", "evidence": "proven"}
    synthetic.write(tmp_path, "flow_control", [{**row, **waited}])
    synthetic.write(
        tmp_path, "connections", [{"connection_id": 1, "first_ts_ns": low, "last_ts_ns": high, "bytes": low}]
    )
    at = Tables(tmp_path, tmp_path)
    for view in (captured, verdicts, connections, summary, heatmap, staircase, waits, slowest, rpcs):
        view.section(at)
