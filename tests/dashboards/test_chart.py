"""Charts as data, and as markup: places are those of a plain calculation, whatever the numbers."""

import re

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpscope.dashboards import chart, svg, units
from amqpscope.dashboards.chart import Boxes, Chart, Dots, Line, Panel, Scale
from amqpscope.dashboards.series import COLUMNS, EXACT, Points

SECOND = units.SECOND


def ends(path: str) -> list[tuple[int, int]]:
    """The points of a path of relative steps."""
    at, found = (0, 0), []
    for kind, first, second in re.findall(r"([MhvlL])(-?\d+)(?: (-?\d+))?", path):
        one, two = int(first), int(second or 0)
        at = {"M": (one, two), "L": (one, two), "h": (at[0] + one, at[1]), "v": (at[0], at[1] + one)}.get(
            kind, (at[0] + one, at[1] + two)
        )
        found.append(at)
    return found


def test_rounding_does_not_add_up() -> None:
    xs = np.arange(1000) * 0.33
    line = Line(xs, xs * 0.17, "blue")
    text = svg.markup(Chart(Scale((0.0, 330.0)), [Panel(Scale((0.0, 60.0)), [line])]), "a line")
    path = re.findall(r'class="line"[^>]* d="([^"]+)"', text)[0]
    x, y = ends(path)[-1]
    assert (x, y) == (round(999 * 0.33 / 330 * svg.WIDTH), svg.HEIGHT - round(999 * 0.33 * 0.17 / 60 * svg.HEIGHT))


@pytest.mark.parametrize(("steps", "turn"), [("post", (50, 10)), ("pre", (0, 20))])
def test_steps_hold_their_value(steps: str, turn: tuple[int, int]) -> None:
    scale = Scale((0.0, 100.0))
    text = svg.markup(Chart(scale, [Panel(scale, [Line([0, 50], [10, 20], "blue", steps)])]), "steps")
    found = ends(re.findall(r'class="line"[^>]* d="([^"]+)"', text)[0])
    assert (found[1][0] * 100 // svg.WIDTH, 100 - found[1][1] * 100 // svg.HEIGHT) == turn


def test_what_is_not_known_has_no_mark() -> None:
    scale = Scale((0.0, 10.0))
    marks = [Line([0, 1, 2, 3], [1, np.nan, 2, 3], "blue"), Dots([1, np.nan], [np.nan, 2], "red")]
    text = svg.markup(Chart(scale, [Panel(scale, marks)]), "gaps")
    assert re.findall(r'class="line"[^>]* d="([^"]+)"', text)[0].count("M") == 2
    assert re.findall(r'class="dots"[^>]* d="([^"]*)"', text) == [""]


def test_boxes_without_height_are_not_drawn() -> None:
    scale = Scale((0.0, 10.0))
    box = Boxes(np.array([0, 5]), np.array([5, 10]), np.array([0, 0]), np.array([0, 10]), "blue")
    text = svg.markup(Chart(scale, [Panel(scale, [box])]), "boxes")
    assert re.findall(r'fill="var\(--blue\)" d="([^"]+)"', text) == ["m50000 0h50000v1000h-50000z"]


def test_names_are_escaped() -> None:
    text = svg.markup(Chart(Scale((0.0, 1.0), title="<b>"), []), '"><script>')
    assert "<script" not in text and "<b>" not in text


def test_idle_stretches_are_skipped() -> None:
    moments = np.array([0, SECOND, 2 * SECOND, 1000 * SECOND, 1001 * SECOND], np.int64)
    busy = chart.busy(moments, 0, 1001 * SECOND)
    assert len(busy) == 2
    scale = chart.time(0, 1001 * SECOND, busy)
    assert float(scale.at(0)) == 0 and float(scale.at(1001 * SECOND)) == 1
    assert 0.1 < float(scale.at(2 * SECOND)) < 0.6 < float(scale.at(1000 * SECOND)) < 0.95
    assert "skipped" in scale.title
    values = np.linspace(0, 1001 * SECOND, 1000)
    assert (np.diff(scale.at(values)) >= 0).all()


def test_what_is_known_by_the_second_has_no_idle_stretch_of_a_second() -> None:
    moments = np.array([0, SECOND, 2 * SECOND], np.int64)
    assert chart.busy(moments, 0, 2 * SECOND, SECOND) == [(0, 2 * SECOND)]


@given(st.lists(st.integers(0, 10**15), max_size=20), st.integers(0, 10**15), st.integers(1, 10**15))
def test_a_scale_of_time_rises_and_has_its_ends(moments: list[int], low: int, span: int) -> None:
    high = low + span
    busy = chart.busy(np.array(moments, np.int64), low, high)
    scale = chart.time(low, high, busy)
    assert float(scale.at(0)) == 0 and float(scale.at(span)) == 1
    assert list(scale.shares) == sorted(scale.shares) and list(scale.knots) == sorted(scale.knots)
    assert all(0 <= float(scale.at(value)) <= 1 for value, _ in scale.ticks)


@given(st.floats(0, 1e18), st.floats(0, 1e18))
def test_scales_hold_their_ends(one: float, other: float) -> None:
    low, high = sorted((one, other))
    for scale in (chart.latency(low, high), chart.linear(high)):
        assert scale.low <= max(low, 1) * 1.0001 and scale.high * 1.0001 >= min(high, scale.high)
        assert scale.high > scale.low and scale.ticks
    assert chart.linear(high).high * 1.0001 >= high
    assert chart.latency(low, high).high * 1.0001 >= max(high, 1)


@given(st.integers(1, 3 * EXACT), st.integers(0, 3 * EXACT - 1), st.integers(1, 5), st.randoms(use_true_random=False))
def test_a_lone_spike_never_disappears(count: int, spike: int, parts: int, random: object) -> None:
    spike %= count
    at, value = np.arange(count) * 1000, np.full(count, 1000)
    value[spike] = 10**9
    packets = pa.array(np.arange(count))
    rows = pa.table([pa.array(at), pa.array(value), packets, packets, pa.nulls(count, pa.string())],
                    names=["at", "value", "begin_packet", "end_packet", "begin_capture"])  # fmt: skip
    points = Points(Scale((0.0, float(count * 1000))))
    step = -(-count // parts)
    for begin in range(0, count, step):
        points.add(rows.slice(begin, step))
    kept = points.rows()
    assert points.count == count and len(kept) <= max(EXACT, COLUMNS)
    top = kept.filter(pa.array(kept["value"].to_numpy() == 10**9))
    assert top["at"].to_pylist() == [spike * 1000] and top["end_packet"].to_pylist() == [spike]
    assert points.is_exact == (count <= EXACT)
    if not points.is_exact:
        columns, least = points.least()
        assert set(least.tolist()) <= {1000, 10**9} and len(columns) == len(np.unique(at * COLUMNS // (count * 1000)))
