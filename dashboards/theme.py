"""Colours and the way from a drawing function to SVG that fits both light and dark pages.

Drawing functions use the names in `INK`: fixed colours, safe for colour-blind eyes (after Okabe and Ito, 2008).
On the way out each becomes a CSS variable, so the page chooses the shade for light, dark and print. Text stays
text, in the page's font. No text from a capture is ever drawn: what is drawn is ours, names stand in HTML.
"""

from collections.abc import Callable, Sequence
from io import BytesIO
from typing import Any

from amqpscope.dashboards import layout, svg
from amqpscope.dashboards.section import Figure, Key

INK = {
    "ink": "#1b1f24",
    "muted": "#5b6470",
    "rule": "#d5d9de",
    "paper": "#fdfdfc",
    "blue": "#0072b2",
    "orange": "#b58900",
    "green": "#00795a",
    "red": "#bf3a1e",
    "purple": "#a3507f",
    "sky": "#56b4e9",
    "heat0": "#dbe9f3",
    "heat1": "#b3d1e6",
    "heat2": "#84b5d5",
    "heat3": "#5397c1",
    "heat4": "#2a78a8",
    "heat5": "#145a87",
    "heat6": "#083d61",
}
"""Name to colour on light pages."""

DARK = {
    "ink": "#e6e8ea",
    "muted": "#9aa4af",
    "rule": "#363d45",
    "paper": "#15181c",
    "blue": "#58b0e8",
    "orange": "#e8c04a",
    "green": "#3cc79c",
    "red": "#ff7d5c",
    "purple": "#e29cc4",
    "sky": "#2f7fb3",
    "heat0": "#16293a",
    "heat1": "#1b3d59",
    "heat2": "#22557d",
    "heat3": "#2f73a6",
    "heat4": "#4f96c9",
    "heat5": "#86bce2",
    "heat6": "#cde6f7",
}
"""The same names on dark pages."""

HEAT = [name for name in INK if name.startswith("heat")]
"""Names of the steps of the sequential scale, least first."""

SERIES = ("blue", "orange", "green", "purple", "sky")
"""Names for lines that stand beside each other."""

_POINTS_PER_PIXEL = 0.72
_WIDTH = 920
_SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.size": 8.6,
    "axes.edgecolor": INK["rule"],
    "axes.labelcolor": INK["muted"],
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "axes.grid": True,
    "grid.color": INK["rule"],
    "grid.linewidth": 0.5,
    "xtick.color": INK["rule"],
    "ytick.color": INK["rule"],
    "xtick.labelcolor": INK["muted"],
    "ytick.labelcolor": INK["muted"],
    "text.color": INK["ink"],
    "lines.linewidth": 1.4,
    "path.simplify": True,
}

Draw = Callable[[Any, Any], None]
"""`draw(axes, data)`: puts data on a matplotlib axes, and nothing else."""


def render(
    name: str,
    draws: Sequence[Draw],
    data: Any,
    *,
    title: str,
    height: int,
    alt: str,
    caption: str,
    legend: Sequence[Key] = (),
    ratios: Sequence[int] = (1,),
) -> Figure:
    """Draw data; on narrow screens the drawing scrolls, as tables do.

    Args:
        name: Identifier, unique on the page.
        draws: One function for each axes, from the top; they share the horizontal axis.
        data: What they all draw.
        title: Heading.
        height: Height in CSS pixels.
        alt: What the picture shows, in words.
        caption: Text below the picture.
        legend: What the colours stand for.
        ratios: Relative heights of the axes.
    """
    return Figure(title, _svg(name, draws, data, height, alt, ratios), alt, caption, legend)


def time_axis(ax: Any, low_ns: int, high_ns: int) -> None:
    """Label a horizontal axis whose data are seconds since `low_ns`."""
    from amqpscope.dashboards import units  # noqa: PLC0415

    ticks, title = units.time_ticks(low_ns, high_ns, 8)
    ax.set_xticks([(t - low_ns) / 1e9 for t, _ in ticks], [text for _, text in ticks])
    ax.set_xlabel(title)
    ax.set_xlim(0, max(high_ns - low_ns, 1) / 1e9)


def latency_axis(axis: Any) -> None:
    """Label a logarithmic axis whose data are nanoseconds."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator  # noqa: PLC0415

    from amqpscope.dashboards import units  # noqa: PLC0415

    axis.set_major_locator(LogLocator(10, numticks=20))
    axis.set_major_formatter(FuncFormatter(lambda value, _: units.duration(value)))
    axis.set_minor_locator(NullLocator())  # each tick is an artist, and takes as long as a line


def count_axis(axis: Any, most: int) -> None:
    """Label an axis whose data are counts, with at most this number of ticks."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator  # noqa: PLC0415

    from amqpscope.dashboards import units  # noqa: PLC0415

    axis.set_major_locator(MaxNLocator(most, integer=True))
    axis.set_major_formatter(FuncFormatter(lambda value, _: units.count(round(value))))


def _svg(name: str, draws: Sequence[Draw], data: Any, height: int, alt: str, ratios: Sequence[int]) -> str:
    import matplotlib as mpl  # noqa: PLC0415 - a second that only this command pays
    from matplotlib.figure import Figure as Canvas  # noqa: PLC0415

    with mpl.rc_context({**_SETTINGS, "svg.hashsalt": name}):
        inch = 72 / _POINTS_PER_PIXEL
        canvas = Canvas(figsize=(_WIDTH / inch, height / inch), dpi=72)
        canvas.patch.set_alpha(0)
        all_axes = canvas.subplots(len(draws), 1, sharex=True, squeeze=False, height_ratios=list(ratios))[:, 0]
        for ax, draw in zip(all_axes, draws, strict=True):
            ax.tick_params(length=3, width=0.6)
            ax.set_axisbelow(True)
            draw(ax, data)
            ax.label_outer()
        layout.place(canvas, list(all_axes), ratios, _SETTINGS["font.size"])
        written = BytesIO()
        canvas.savefig(written, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return svg.inline(written.getvalue(), name, alt, INK)
