"""Charts as pictures: by matplotlib, as figures for notebooks and as files (`amqpscope plot`)."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from amqpscope.dashboards import heatmap, lanes, percentiles, sizes, staircase, streams, theme, units, waits
from amqpscope.dashboards.chart import Boxes, Chart, Dots, Line, Mark, Panel, Scale
from amqpscope.dashboards.replacing import replacing
from amqpscope.dashboards.section import Figure as Drawn
from amqpscope.dashboards.tables import Tables
from amqpscope.errors import Error

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 150
WIDTH_IN, PIXELS_PER_INCH = 9.6, 96
MAKER = "amqpscope plot"
FORMATS: dict[str, dict[str, str | None]] = {
    "png": {"Software": MAKER}, "svg": {"Creator": MAKER, "Date": None}, "pdf": {"Creator": MAKER},
}  # fmt: skip
"""What pictures of a format note: what made them, and no date."""
_ENDS = 1 << 20
"""Bytes at the beginning or the end of a picture in which its notes lie."""
_GLYPHS = {"x": "x", "^": "^", "D": "D"}


class PlotError(Error):
    """There is nothing to draw, or no such picture; the message is one line."""


def names() -> tuple[str, ...]:
    """Return the names of all pictures."""
    return tuple(_MAKERS)


def check(name: str, path: Path) -> None:
    """Check that a picture can be made and its format is known, before anything is read for it.

    Raises:
        PlotError: no picture has that name; or the name of the file says nothing of its format, or it is none of ours.
    """
    if name not in _MAKERS:
        near = difflib.get_close_matches(name, _MAKERS, 1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(_MAKERS)}"
        raise PlotError(f"no picture is called {name!r}; {hint}")
    if path.suffix.removeprefix(".").lower() not in FORMATS:
        raise PlotError(f"{path}: its format is not known; end its name with .{', .'.join(FORMATS)}")
    if path.is_file():
        with path.open("rb") as file:
            found = file.read(_ENDS)
            file.seek(max(len(found), path.stat().st_size - _ENDS))
            found += file.read(_ENDS)
        if found and MAKER.encode() not in found:
            raise PlotError(f"{path} is a file that is no picture of amqpscope; name another file, or remove it")


def figure(name: str, tables: Tables) -> Figure:
    """Return a picture of statistics as a figure of matplotlib.

    Args:
        name: one of `names`.
        tables: the statistics.

    Raises:
        KeyError: no picture has that name.
        PlotError: there is nothing to draw.
    """
    found = _MAKERS[name](tables)
    if found is None:
        raise PlotError(f"nothing to draw for {name}: {_NOTHING[name]}")
    return draw(found)


def save(name: str, tables: Tables, path: Path) -> None:
    """Write a picture of statistics to a file that `check` allows, as its name says: PNG, SVG or PDF.

    Raises:
        PlotError: see `figure`.
        Error: the file cannot be written.
    """
    kind = path.suffix.removeprefix(".").lower()
    made = figure(name, tables)
    with replacing(path) as file:
        made.savefig(file, format=kind, dpi=DPI, metadata=FORMATS[kind])


def draw(drawn: Drawn) -> Figure:
    """Return a chart as a figure of matplotlib, with its title and legend."""
    import matplotlib as mpl  # noqa: PLC0415 - only this pays
    from matplotlib.figure import Figure  # noqa: PLC0415

    heights = [panel.height for panel in drawn.chart.panels]
    settings: Any = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "text.parse_math": False,
                     "svg.fonttype": "none", "svg.hashsalt": "amqpscope"}  # fmt: skip
    with mpl.rc_context(settings):
        made = Figure(figsize=(WIDTH_IN, (sum(heights) + 130) / PIXELS_PER_INCH), layout="constrained")
        axes = made.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
        for ax, panel in zip(axes, drawn.chart.panels, strict=True):
            _panel(ax, panel, drawn.chart)
        axes[-1].set_xlabel(drawn.chart.x.title)
        if drawn.title:
            made.suptitle(units.visible(drawn.title), fontsize=11, x=0.01, ha="left")
        _legend(axes[0], [(key.colour, key.text) for key in drawn.legend])
    return made


def _legend(ax: Any, keys: Sequence[tuple[str, str]], place: str = "lower left") -> None:
    from matplotlib.lines import Line2D  # noqa: PLC0415

    if not keys:
        return
    handles = [Line2D([], [], color=theme.INK[colour], lw=0, marker="o", markersize=4) for colour, _ in keys]
    labels = [units.visible(text, 40) for _, text in keys]
    at = (0, 1) if place == "lower left" else (1, 1)
    ax.legend(handles, labels, loc=place, bbox_to_anchor=at, ncols=4, frameon=False, fontsize=8, handletextpad=0.1)


def _panel(ax: Any, panel: Panel, chart: Chart) -> None:
    _axis(ax.xaxis, chart.x)
    _axis(ax.yaxis, panel.y)
    ax.set_xlim(0, 1)
    ax.set_ylim(0, 1)
    ax.set_ylabel(panel.y.title)
    if panel.title:
        ax.set_title(units.visible(panel.title), loc="left", fontsize=9)
        _legend(ax, panel.keys, "upper right")
    ax.grid(visible=True, color=theme.INK["rule"], linewidth=0.6)
    ax.set_axisbelow(True)
    for mark in panel.marks:
        _mark(ax, mark, chart.x, panel.y)


def _axis(axis: Any, scale: Scale) -> None:
    axis.set_ticks([float(scale.at(value)) for value, _ in scale.ticks], [text for _, text in scale.ticks])


def _mark(ax: Any, mark: Mark, x: Scale, y: Scale) -> None:
    colour = theme.INK[mark.colour]
    if isinstance(mark, Boxes):
        from matplotlib.collections import PolyCollection  # noqa: PLC0415

        left, right, low, high = x.at(mark.left), x.at(mark.right), y.at(mark.low), y.at(mark.high)
        corners: Any = np.stack(
            [np.stack(pair, -1) for pair in ((left, low), (left, high), (right, high), (right, low))], 1
        )
        ax.add_collection(PolyCollection(corners, facecolor=colour, linewidth=0))
    elif isinstance(mark, Dots):
        marker = _GLYPHS.get(mark.glyph, "s" if mark.cap == "square" else "o")
        size = 5 if mark.glyph else mark.size * 0.8
        edge = 1 if mark.glyph else 0
        ax.plot(x.at(mark.xs), y.at(mark.ys), marker, color=colour, markersize=size, markeredgewidth=edge)
    else:
        _line(ax, mark, x.at(mark.xs), y, colour)


def _line(ax: Any, mark: Line, xs: Any, y: Scale, colour: str) -> None:
    steps: Any = {"post": "steps-post", "pre": "steps-pre"}.get(mark.steps, "default")
    if mark.base is not None:
        step: Any = mark.steps or None
        ax.fill_between(xs, y.at(mark.base), y.at(mark.ys), step=step, color=colour, linewidth=0)
        return
    dashes = {"dashes": [float(part) for part in mark.dash.split()]} if mark.dash else {}
    ax.plot(xs, y.at(mark.ys), color=colour, linewidth=mark.width * 0.8, drawstyle=steps, **dashes)


def _lanes(tables: Tables) -> Drawn | None:
    found = lanes.query(tables)
    if found is None:
        return None
    panels = [
        replace(lane.panel, title=lane.title, keys=[(key.colour, key.text) for key in lane.legend], height=110)
        for lane in found.lanes
    ]
    return Drawn("", Chart(found.x, panels), "", "")


def _percentiles(tables: Tables) -> Drawn | None:
    curves = [curve for curve in percentiles.query(tables) if curve.samples > 1]
    return percentiles.figure(curves) if curves else None


def _heat(metric: heatmap.Metric) -> Callable[[Tables], Drawn | None]:
    def made(tables: Tables) -> Drawn | None:
        data = heatmap.query(tables, metric)
        found = heatmap.part(data) if data else None
        return found if isinstance(found, Drawn) else None

    return made


def _first(view: Any) -> Callable[[Tables], Drawn | None]:
    return lambda tables: next((part for part in view.section(tables).parts if isinstance(part, Drawn)), None)


_MAKERS: dict[str, Callable[[Tables], Drawn | None]] = {
    "lanes": _lanes,
    "percentiles": _percentiles,
    "confirm-heat": _heat(heatmap.METRICS[0]),
    "settlement-heat": _heat(heatmap.METRICS[1]),
    "staircase": _first(staircase),
    "flow-control": _first(waits),
    "streams": _first(streams),
    "sizes": _first(sizes),
}
_NOTHING = {
    "lanes": "nothing was published or delivered",
    "percentiles": "there are no latencies",
    "confirm-heat": "there are no confirms",
    "settlement-heat": "there are no acknowledgements",
    "staircase": "no channel has several confirms or acknowledgements",
    "flow-control": "no flow control was seen",
    "streams": "nothing was delivered from streams",
    "sizes": "there are no messages, or only statistics were given and not the tables of `amqpscope dissect`",
}
