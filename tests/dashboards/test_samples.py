"""Few samples make no chart, negative waits are left out and counted, and acks and nacks are distinguished."""

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from amqpscope.dashboards import heatmap, outcomes, percentiles, slowest, staircase, summary, waits
from amqpscope.dashboards.section import Figure, Grid, Single
from amqpscope.dashboards.tables import Tables
from tests.dashboards import synthetic
from tests.dashboards.refusing import refusing
from tests.dashboards.synthetic import rows

START, SECOND = synthetic.START, synthetic.SECOND
CONFIRM = {"connection_id": 1, "channel": 1, "channel_epoch": 1, "outcome": "ack"}


def confirm(number: int, at: int, latency: int | None, **more: object) -> dict:
    answer = None if latency is None else at + latency
    times = {"publish_ts_ns": at, "confirm_ts_ns": answer, "latency_ns": latency}
    return CONFIRM | {"publish_seq": number} | times | more


def analyzed(folder: Path, confirms: list[dict]) -> Tables:
    synthetic.write(folder, "confirms", confirms)
    some, buckets = synthetic.summarise("confirm", confirms, {"ack"}, {"all": ()})
    synthetic.write(folder, "latency_summary", some)
    synthetic.write(folder, "latency_buckets", buckets)
    return Tables(None, folder)


def test_acks_and_nacks_have_percentiles_of_their_own(tmp_path: Path) -> None:
    at = Tables(*refusing(tmp_path))
    found = outcomes.query(at)
    for outcome, d in found.items():
        known = np.sort([r["latency_ns"] for r in rows(at, "confirms") if r["outcome"] == outcome])
        assert (d.samples, d.answered, d.max_ns) == (len(known), 1000, known[-1])
        for share in (0.5, 0.9, 0.99):
            exact = known[int(np.ceil(share * len(known))) - 1]
            assert exact <= d.at(share) <= exact * 1.008 + 1
    grid = next(p for p in summary.section(at).parts if isinstance(p, Grid) and p.caption == "Latency of everything")
    assert [row[0].text for row in grid.rows] == ["publish to confirm", "publish to ack", "publish to nack"]
    assert [row[4].text for row in grid.rows[1:]] == ["401 µs", "2 ms"]
    figure = next(p for p in summary.section(at).parts if isinstance(p, Figure))
    assert [key.text for key in figure.legend] == ["publish to ack, 1,000 answered", "publish to nack, 1,000 answered"]


@given(st.lists(st.integers(0, (1 << 62) - 1), min_size=1))
def test_buckets_are_those_of_the_statistics(latencies: list[int]) -> None:
    for latency, number in zip(latencies, outcomes.bucket(np.array(latencies)).tolist(), strict=True):
        expected, _, above = synthetic.bucket(latency)
        assert (number, outcomes.longest(number)) == (expected, above - 1)


def test_one_latency_has_no_axis(tmp_path: Path) -> None:
    at = analyzed(tmp_path, [confirm(1, START, 1_200_000)])
    parts = summary.section(at).parts
    assert not [p for p in parts if isinstance(p, Figure)]
    assert [p.text for p in parts if isinstance(p, Single)] == ["One latency, publish to confirm: 1.2 ms."]
    assert [p.text for p in heatmap.section(at).parts] == ["One latency: 1.2 ms."]


def test_one_latency_beside_others_stands_in_words() -> None:
    many = percentiles.curve("confirm", "blue", np.array([10, 20]), np.array([5, 5]))
    one = percentiles.curve("rpc", "green", np.array([3_000_000]), np.array([1]))
    figure, single = percentiles.parts([many, one])
    assert [key.text for key in figure.legend] == ["publish to confirm, 10 answered"]
    assert single.text == "One latency, request to answer: 3 ms."


def test_one_moment_has_no_axis_of_time(tmp_path: Path) -> None:
    at = analyzed(tmp_path, [confirm(n, START, 1_000_000 * n) for n in (1, 2, 3)])
    (part,) = heatmap.section(at).parts
    assert part.text == "3 latencies, the longest 3 ms, of messages published at 2026-10-14 17:46:40.000000 UTC."


def test_one_publish_is_no_worst_moment(tmp_path: Path) -> None:
    alone = [confirm(n, START + n * SECOND, 50_000_000 if n == 7 else 1_000) for n in range(1, 20)]
    at = analyzed(tmp_path, alone)
    assert [p.title for p in staircase.section(at).parts if "worst" in p.title] == []


def test_publishes_at_one_moment_have_no_staircase(tmp_path: Path) -> None:
    at = analyzed(tmp_path, [confirm(n, START, 0) for n in (1, 2)])
    assert [p.text for p in staircase.section(at).parts] == ["2 publishes, all at one moment."]


def wait(begin: int, length: int | None, **more: object) -> dict:
    end = None if length is None else begin + length
    return {"connection_id": 1, "cause": "connection-blocked", "evidence": "proven", "side": "server"} | {
        "start_ts_ns": begin, "end_ts_ns": end, "duration_ns": length, **more,
    }  # fmt: skip


def test_one_interval_has_no_axis(tmp_path: Path) -> None:
    synthetic.write(tmp_path, "flow_control", [wait(START, 3_670_000_000)])
    part = waits.section(Tables(None, tmp_path)).parts[0]
    assert isinstance(part, Single)
    assert part.text == "Connection blocked once, for 3.67 s, from 2026-10-14 17:46:40.000000 UTC on."


def test_negative_waits_are_left_out_and_counted(tmp_path: Path) -> None:
    synthetic.write(
        tmp_path,
        "flow_control",
        [
            wait(START, SECOND),
            wait(START + 2 * SECOND, SECOND),
            wait(START + 9 * SECOND, -SECOND),
            wait(START + 5 * SECOND, None, end_ts_ns=START),
        ],
    )
    section = waits.section(Tables(None, tmp_path))
    figure, totals, longest = section.parts
    assert isinstance(figure, Figure)
    assert [cell.text for cell in totals.rows[0]][2:] == ["2", "1 s", "2 s", "0"]
    assert totals.note.endswith("Left out: 2 intervals of negative length.")
    assert len(longest.rows) == 2


def test_only_negative_waits_are_reported_where_nothing_else_is(tmp_path: Path) -> None:
    synthetic.write(tmp_path, "flow_control", [wait(START, -SECOND)])
    assert (
        waits.section(Tables(None, tmp_path)).empty == "No flow control seen. Left out: 1 interval of negative length."
    )


def test_negative_latencies_are_left_out_and_counted(tmp_path: Path) -> None:
    good = [confirm(n, START + n * SECOND, 1000 * n) for n in range(1, 5)]
    none = [confirm(n, START, None, outcome="none", end_ts_ns=START + n - 10) for n in (9, 11)]
    at = analyzed(tmp_path, [*good, confirm(5, START + 5 * SECOND, -7), *none])
    assert heatmap.section(at).parts[0].caption.endswith("Left out: 1 with a negative latency.")
    assert all(r["latency_ns"] >= 0 for r in slowest.query(at, slowest.KINDS[0]))
    _, unanswered = slowest.section(at).parts
    assert len(unanswered.rows) == 1
    assert unanswered.note == "Left out: 1 with a negative wait."
