"""Comparisons: equal traffic does not differ, slower traffic does, and figures are those of plain sorting."""

import json
from pathlib import Path

import numpy as np
import pytest

from amqpscope.dashboards import compare
from amqpscope.dashboards.compare import Difference, Side
from amqpscope.dashboards.tables import Tables
from amqpscope.dissector.cli.program import main
from tests.dashboards import synthetic
from tests.dashboards.synthetic import rows
from tests.thorough import THOROUGH

SMALL = Path(__file__).parents[1] / "captures" / "pika_confirms.pcap"
SECOND = synthetic.SECOND
SEEDS = range(12 if THOROUGH else 3)


def side(folder: Path, seed: int, times: float = 1.0, nacked: float = 0.01, count: int = 3000) -> Side:
    """Confirms of a minute whose latencies are log-normal."""
    random = np.random.default_rng(seed)
    at = np.sort(random.uniform(0, 60 * SECOND, count)).astype(np.int64) + synthetic.START
    latency = (random.lognormal(np.log(2e6), 0.8, count) * times).astype(np.int64)
    outcomes = np.where(random.random(count) < nacked, "nack", "ack")
    columns = zip(at.tolist(), latency.tolist(), outcomes.tolist(), strict=True)
    made = [
        {"connection_id": 1, "channel": 1, "exchange": "orders", "publish_ts_ns": t, "latency_ns": took, "outcome": how}
        for t, took, how in columns
    ]
    synthetic.write(folder, "confirms", made)
    return Side(folder.name, folder, synthetic.START, synthetic.START + 60 * SECOND)


def of(found: list[Difference], figure: str) -> Difference:
    return next(each for each in found if each.figure == figure and not each.group)


def test_equal_traffic_differs_by_chance_only(tmp_path: Path) -> None:
    wrong = total = 0
    for seed in SEEDS:
        one, other = side(tmp_path / f"a{seed}", seed), side(tmp_path / f"b{seed}", seed + 1000)
        found = compare.differences(one, other)
        wrong += sum(each.differs for each in found)
        total += len(found)
    assert total >= 5 * len(SEEDS) and wrong <= total * 0.02


def test_slower_traffic_differs(tmp_path: Path) -> None:
    for seed in SEEDS:
        one, other = side(tmp_path / f"a{seed}", seed), side(tmp_path / f"b{seed}", seed + 1000, times=1.5, nacked=0.1)
        found = compare.differences(one, other)
        median = of(found, "median")
        assert median.differs and median.low < 1.5 < median.high
        assert of(found, "refused or unanswered").differs
        assert not of(found, "per second").differs


def test_figures_are_those_of_sorting(tmp_path: Path) -> None:
    one, other = side(tmp_path / "a", 1), side(tmp_path / "b", 2)
    for each in compare.differences(one, other):
        if each.kind == "latency":
            for value, folder in ((each.before, one.folder), (each.after, other.folder)):
                known = np.sort([r["latency_ns"] for r in rows(Tables(None, folder), "confirms")])
                exact = known[int(np.ceil(compare.SHARES[each.figure] * len(known))) - 1]
                assert value == pytest.approx(exact, rel=0.005)
    assert of(compare.differences(one, other), "per second").before == pytest.approx(50)


def test_few_messages_say_nothing(tmp_path: Path) -> None:
    one, other = side(tmp_path / "a", 1, count=15), side(tmp_path / "b", 2, count=5000)
    assert compare.differences(one, other) == []
    assert "too few messages" in compare.text(one, other, 80)


def test_a_moment_that_holds_all_is_not_sure(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    burst = [
        {"connection_id": 1, "publish_ts_ns": synthetic.START + n, "latency_ns": 1000 + n, "outcome": "ack"}
        for n in range(500)
    ]
    synthetic.write(folder, "confirms", burst)
    one = Side("burst", folder, synthetic.START, synthetic.START + 60 * SECOND)
    assert not any(each.differs for each in compare.differences(one, side(tmp_path / "b", 2)))


def test_the_block_shows_before_and_after(
    demo_statistics: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    stats = demo_statistics
    assert main(["compare", str(stats), "--at", "09:49:03.39"]) == 0
    shown = capsys.readouterr().out
    assert "publish to confirm, 99 %: 162 ms -> 1.87 s" in shown and "blocked 3 publishing" in shown.split("NEW")[1]
    assert all(len(line) <= 100 for line in shown.splitlines())  # the width of tests
    assert main(["compare", str(stats), str(stats), "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["new"] == found["no_longer_found"] == [] and not any(d["differs"] for d in found["differences"])
    page = tmp_path / "page.html"
    assert main(["compare", str(stats), "--at", "09:49:03.39", "-o", str(page)]) == 0
    assert "162 ms" in page.read_text() and "Findings that came and went" in page.read_text()


def test_what_cannot_be_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for words, said in (
        ([str(SMALL)], "takes two captures"),
        ([str(SMALL), str(SMALL), "--at", "09:49"], "takes two captures"),
        ([str(SMALL), "--at", "2020-01-01"], "outside of the capture"),
        ([str(SMALL), str(tmp_path / "none")], "no such file"),
    ):
        assert main(["compare", *words]) == 2
        error = capsys.readouterr().err.strip()
        assert said in error and len(error.splitlines()) == 1
