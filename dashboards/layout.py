"""Where the axes of a drawing stand.

matplotlib can find that out by drawing twice and measuring every text. Text is shown in the page's font, so what it
measures is not what is seen; margins by the number of letters are as good, and take half the time.
"""

from collections.abc import Sequence
from typing import Any

_LETTER = 0.62
"""Width of a letter as a part of the font size: that of a digit in a wide font."""
_GAP = 14
"""Between axes that stand above each other, in points."""
_EDGE = 6
"""Around everything, in points."""


def place(canvas: Any, all_axes: Sequence[Any], ratios: Sequence[int], font_size: float) -> None:
    """Put axes that share their horizontal axis above each other, with room for their labels.

    Args:
        canvas: The figure.
        all_axes: Its axes, from the top, with ticks and labels set.
        ratios: Their relative heights.
        font_size: Of all texts, in points.
    """
    whole_width, whole_height = canvas.get_figwidth() * 72, canvas.get_figheight() * 72
    shown = [ax for ax in all_axes if ax.axison]
    letter, line = _LETTER * font_size, 1.35 * font_size
    titled = any(ax.get_ylabel() for ax in shown)
    ticks = max((len(text) for ax in shown for _, text in _labels(ax.yaxis)), default=0) * letter
    left = (line + 2 if titled else 0) + (ticks + 6 if shown else 0) + _EDGE
    width = whole_width - left - _EDGE
    if shown:
        width -= _beyond(all_axes[-1], letter, width)
    bottom = 2 * line + 8 if shown else _EDGE
    height = whole_height - bottom - _EDGE - _GAP * (len(all_axes) - 1)
    top = whole_height - _EDGE
    for ax, ratio in zip(all_axes, ratios, strict=True):
        tall = height * ratio / sum(ratios)
        ax.set_position((left / whole_width, (top - tall) / whole_height, width / whole_width, tall / whole_height))
        ax.yaxis.set_label_coords((_EDGE + line - left) / width, 0.5)
        ax.xaxis.set_label_coords(0.5, -(line + 8) / tall)
        top -= tall + _GAP


def _beyond(ax: Any, letter: float, width: float) -> float:
    """Return how far the last label of the horizontal axis reaches beyond the right end, in points."""
    labels = _labels(ax.xaxis)
    if not labels:
        return 0
    low, high = (ax.transScale.transform((x, 1))[0] for x in sorted(ax.get_xlim()))
    last, text = labels[-1]
    at = ax.transScale.transform((last, 1))[0]
    return max(len(text) * letter / 2 - _EDGE - width * float((high - at) / (high - low)), 0)


def _labels(axis: Any) -> list[tuple[float, str]]:
    """Return the places and texts of the ticks within the view, in their order."""
    low, high = sorted(axis.get_view_interval())
    places = axis.get_majorticklocs()
    texts = axis.get_major_formatter().format_ticks(places)
    return [(at, text) for at, text in zip(places, texts, strict=True) if low <= at <= high]
