"""Charts as markup of the page: marks as SVG that stretches, labels as text beside it.

Each panel is an SVG without proportions of its own, so a chart is as wide as there is room, and a part of its time is
shown by another `viewBox`. Lines keep their width; dots are ends of lines without length. Nothing here comes from a
capture: numbers, and texts of `chart.Scale`.
"""

from __future__ import annotations

import html
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from amqpscope.dashboards.chart import Boxes, Chart, Dots, Line, Mark, Panel, Scale

WIDTH, HEIGHT = 100_000, 1_000
"""Of a panel, in its own units."""
LAST = 0.95
"""Share of the axis from which on a label ends at its place, so that it stays on the page."""
GLYPHS = {"x": "\N{MULTIPLICATION SIGN}", "^": "\N{BLACK UP-POINTING TRIANGLE}", "D": "\N{BLACK DIAMOND}"}
Ints = NDArray[np.int64]


def markup(chart: Chart, alt: str, overlay: str = "", with_axis: bool = True) -> str:
    """Return a chart as HTML.

    Args:
        chart: what to draw.
        alt: what it shows, in words.
        overlay: markup to lay over each panel.
        with_axis: whether the horizontal axis has its labels.
    """
    grid = _grid(chart.x) if chart.grid else ""
    parts = [f'<div class="chart" role="img" aria-label="{html.escape(alt)}">']
    parts += [_panel(panel, chart.x, grid, overlay + _skipped(chart.x)) for panel in chart.panels]
    if not with_axis:
        return "".join(parts) + "</div>"
    parts.append(f'<div class="x">{"".join(_ticks(chart.x, "left"))}</div>')
    if chart.x.title:
        parts.append(f'<div class="axis">{html.escape(chart.x.title)}</div>')
    return "".join(parts) + "</div>"


def _panel(panel: Panel, x: Scale, grid: str, overlay: str) -> str:
    title = f'<span class="unit">{html.escape(panel.y.title)}</span>' if panel.y.title else ""
    rules = "".join(f"M0 {HEIGHT - y}h{WIDTH}" for y in _places(panel.y, HEIGHT))
    drawn = "".join(_mark(mark, x, panel.y) for mark in panel.marks)
    glyphs = "".join(_glyphs(mark, x, panel.y) for mark in panel.marks if isinstance(mark, Dots) and mark.glyph)
    return (
        f'<div class="panel" style="height:{panel.height}px"><div class="y">{title}'
        f'{"".join(_ticks(panel.y, "bottom"))}</div><div class="plot">'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" aria-hidden="true">'
        f'<path class="rule" d="{rules}"/><path class="rule grid" d="{grid}"/>{drawn}</svg>'
        f"{overlay}{glyphs}</div></div>"
    )


def _skipped(x: Scale) -> str:
    """Return marks where stretches of time are skipped."""
    shares = list(x.shares)
    return "".join(
        f'<b class="skip" style="--a:{begin:.5f};--b:{end:.5f}" title="idle"></b>'
        for begin, end in zip(shares[1:-1:2], shares[2::2], strict=True)
    )


def _grid(x: Scale) -> str:
    return "".join(f"M{at} 0v{HEIGHT}" for at in _places(x, WIDTH))


def _places(scale: Scale, size: int) -> list[int]:
    return [round(float(scale.at(value)) * size) for value, _ in scale.ticks]


def _ticks(scale: Scale, side: str) -> Iterator[str]:
    for value, text in scale.ticks:
        share = float(scale.at(value))
        end = ' class="end"' if side == "left" and share > LAST else ""
        yield f'<span{end} style="{side}:{share:.2%}">{html.escape(text)}</span>'


def _mark(mark: Mark, x: Scale, y: Scale) -> str:
    if isinstance(mark, Boxes):
        return f'<path fill="var(--{mark.colour})" d="{_boxes(mark, x, y)}"/>'
    if isinstance(mark, Dots):
        if mark.glyph:
            return ""
        across, up = _integers(mark.xs, x, WIDTH), HEIGHT - _integers(mark.ys, y, HEIGHT)
        known = (across >= 0) & (up <= HEIGHT)
        found = _dots(sorted({*zip(across[known].tolist(), up[known].tolist(), strict=True)}))
        style = f'stroke="var(--{mark.colour})" stroke-width="{mark.size:g}" stroke-linecap="{mark.cap}"'
        return f'<path class="dots" {style} d="{found}"/>'
    path = _line(mark, x, y)
    if mark.base is not None:
        return f'<path fill="var(--{mark.colour})" d="{path}"/>'
    dash = f' stroke-dasharray="{mark.dash}"' if mark.dash else ""
    return f'<path class="line" stroke="var(--{mark.colour})" stroke-width="{mark.width:g}"{dash} d="{path}"/>'


def _dots(places: list[tuple[int, int]]) -> str:
    """Return lines without length at these places, each relative to the one before."""
    at, found = (0, 0), []
    for across, up in places:
        found.append(f"m{across - at[0]} {up - at[1]}h0")
        at = across, up
    return "".join(found)


def _integers(values: Any, scale: Scale, size: int) -> Ints:
    """Return places (int64), -1 for what is not known."""
    shares = scale.at(values)
    return np.where(np.isnan(shares), -1, np.round(np.nan_to_num(shares) * size)).astype(np.int64)


def _boxes(mark: Boxes, x: Scale, y: Scale) -> str:
    left, right = _integers(mark.left, x, WIDTH), _integers(mark.right, x, WIDTH)
    low, high = _integers(mark.low, y, HEIGHT), _integers(mark.high, y, HEIGHT)
    at, found = (0, 0), []
    for a, b, c, d in zip(left.tolist(), right.tolist(), low.tolist(), high.tolist(), strict=True):
        if d > c:  # each begins relative to the one before, where it ended as well
            found.append(f"m{a - at[0]} {HEIGHT - d - at[1]}h{b - a}v{d - c}h{a - b}z")
            at = a, HEIGHT - d
    return "".join(found)


def _line(mark: Line, x: Scale, y: Scale) -> str:
    across, up = _integers(mark.xs, x, WIDTH), HEIGHT - _integers(mark.ys, y, HEIGHT)
    base = None if mark.base is None else HEIGHT - _integers(mark.base, y, HEIGHT)
    known = (across >= 0) & (up <= HEIGHT)
    edges = np.flatnonzero(np.diff(known.astype(np.int8), prepend=0, append=0))
    found = []
    for begin, end in zip(edges[::2], edges[1::2], strict=True):
        forth = _path(across[begin:end], up[begin:end], mark.steps)
        if base is None:
            found.append(forth)
        else:
            back = _path(
                across[begin:end][::-1], base[begin:end][::-1], {"post": "pre", "pre": "post"}.get(mark.steps, "")
            )
            found.append(f"{forth}L{back[1:]}z")
    return "".join(found)


def _path(across: Ints, up: Ints, steps: str) -> str:
    """Return a path in relative steps; rounded places are subtracted, so errors do not add up."""
    parts = [f"M{across[0]} {up[0]}"]
    for dx, dy in zip(np.diff(across).tolist(), np.diff(up).tolist(), strict=True):
        if not (dx or dy):
            continue
        if steps and dx and dy:
            parts.append(f"h{dx}v{dy}" if steps == "post" else f"v{dy}h{dx}")
        else:
            parts.append(f"l{dx} {dy}" if dx and dy else f"h{dx}" if dx else f"v{dy}")
    return "".join(parts)


def _glyphs(mark: Dots, x: Scale, y: Scale) -> str:
    glyph = GLYPHS[mark.glyph]
    places = zip(x.at(mark.xs).tolist(), y.at(mark.ys).tolist(), strict=True)
    marks = "".join(f'<i style="--at:{across:.4f};bottom:{up:.1%}">{glyph}</i>' for across, up in places)
    return f'<span aria-hidden="true" style="color:var(--{mark.colour})">{marks}</span>'
