"""Numbers and text from captures in a form that people read, and that is safe to show.

Captures are hostile: text from them may hold control characters, marks that turn the direction of writing,
and megabytes of anything. `visible` is applied to every text on the page.
"""

import unicodedata
from datetime import UTC, datetime

from amqpscope.dissector import formatting
from amqpscope.dissector.formatting import three_figures

LONGEST_TEXT = 120
"""Texts from captures are shown up to this many characters."""

NONE = "\N{EN DASH}"
"""Shown where there is no value."""

SECOND = 1_000_000_000

_HIDDEN = {"Cc", "Cf", "Co", "Cs", "Cn", "Zl", "Zp"}
_TIME_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)


def visible(text: str, longest: int = LONGEST_TEXT) -> str:
    """Return the text with invisible characters spelled out by their number, and cut to a length."""
    if len(text) <= longest and text.isprintable():
        return text
    shown = [f"\\u{{{ord(c):x}}}" if unicodedata.category(c) in _HIDDEN else c for c in text[: longest + 1]]
    if sum(map(len, shown)) <= longest:
        return "".join(shown)
    while sum(map(len, shown)) >= longest:
        shown.pop()
    return "".join(shown) + "\N{HORIZONTAL ELLIPSIS}"


def duration(ns: float | None) -> str:
    """Return a duration in nanoseconds as text of three figures: `412 µs`, `1.23 ms`, `3 min 20 s`."""
    return NONE if ns is None else formatting.duration(ns)


def between(first: int | None, last: int | None) -> int | None:
    """Return the time between two, None when one of them is not known."""
    return None if first is None or last is None else last - first


def size(number: float | None) -> str:
    """Return a number of bytes in decimal units: `812 B`, `4.1 kB`, `1.23 GB`."""
    if number is None:
        return NONE
    for unit, scale in (("B", 1), ("kB", 10**3), ("MB", 10**6), ("GB", 10**9)):
        if number / scale < 999.5:
            return f"{three_figures(number / scale)} {unit}"
    return f"{three_figures(number / 10**12)} TB"


def count(number: int | None) -> str:
    """Return an integer with commas between thousands."""
    return NONE if number is None else f"{number:,}"


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a count with its noun, in the plural unless it is one: `1 queue`, `1,200 queues`."""
    return f"{count(number)} {noun if number == 1 else plural or f'{noun}s'}"


def rate(each: float) -> str:
    """Return a number per second: `1,839`, `8.4`, `0.03`; what is there, but seldom, is no zero."""
    return f"{each:,.0f}" if each >= 10 or not each else f"{max(each, 0.001):.2g}"


def share(part: float, whole: float) -> str:
    """Return a part of a whole in per cent, which says 0 or 100 only when it is."""
    if not whole:
        return NONE
    percent = 100 * part / whole
    if 0 < percent < 0.1:
        return "< 0.1 %"
    if 99.9 < percent < 100:
        return "> 99.9 %"
    return f"{percent:.1f} %".replace(".0 %", " %")


def instant(ns: int | None, step_ns: int = 1_000) -> str:
    """Return a time (nanoseconds since the epoch) as UTC date and time, as fine as a step needs."""
    if ns is None:
        return NONE
    try:
        date = datetime.fromtimestamp(ns // SECOND, UTC).strftime("%Y-%m-%d")
    except (OverflowError, ValueError, OSError):
        return f"{ns} ns"
    return f"{date} {clock(ns, step_ns)}"


def clock(ns: int, step_ns: int) -> str:
    """Return a time of day (UTC), with as many digits of the second as a step needs."""
    seconds, rest = divmod(ns, SECOND)
    of_day = seconds % 86_400
    text = f"{of_day // 3600:02}:{of_day // 60 % 60:02}:{of_day % 60:02}"
    digits = 0
    while digits < 9 and step_ns % 10 ** (9 - digits):
        digits += 1
    return f"{text}.{rest:09}"[: len(text) + 1 + digits] if digits else text


def time_ticks(low_ns: int, high_ns: int, most: int) -> tuple[list[tuple[int, str]], str]:
    """Return round times between two, about `most` of them, and the name of the axis.

    Spans under ten seconds count from their start (`1.5 ms`), longer ones show the time of day.

    Returns:
        Pairs of nanoseconds since the epoch and label; and what the labels are.
    """
    span = max(high_ns - low_ns, 1)
    least = span / max(most, 1)
    step = 1
    while step < least:  # 1, 2, 5, 10, ... ns
        step = step * 5 // 2 if str(step).startswith("2") else step * 2
    if span < 10 * SECOND:
        ticks = [(low_ns + t, duration(t) if t else "0") for t in range(0, span + 1, step)]
        return ticks, f"time since {instant(low_ns)} UTC"
    if step >= SECOND:
        days = -(-int(least) // (86_400 * SECOND)) * 86_400
        step = next((s for s in _TIME_STEPS if s * SECOND >= least), days) * SECOND
    first = -(-low_ns // step) * step
    ticks = [(t, clock(t, step)) for t in range(first, high_ns + 1, step)]
    return ticks, f"time of day (UTC), {instant(low_ns, SECOND).split()[0]}"
