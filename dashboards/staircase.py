"""The confirm staircase: publishes as the upper line, their answers as the lower one.

After tcptrace's time-sequence graph: the vertical distance between the lines is what is outstanding, the
horizontal one is latency. A publisher that waits for each confirm walks in step; a broker that stalls draws a
plateau below; a channel that dies leaves the lines apart for good.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from amqpscope.dashboards import theme, units
from amqpscope.dashboards.connections import endpoints
from amqpscope.dashboards.section import Figure, Key, Section, Single, missing
from amqpscope.dashboards.tables import Tables, plausible

STEPS = 480
"""Points of a line, where there are more events than can be drawn one by one."""

EXACT = 1000
"""Up to this many events every one is drawn."""

_MOST_MARKS = 150
_KEYS = ["connection_id", "channel", "channel_epoch", "publisher_id", "publisher_epoch"]
"""Within these publish numbers count: of AMQP 0-9-1 the channel, of streams the publisher; the others are null."""
_IDENTITY = [(key, "ascending") for key in _KEYS]
_COLUMNS = ["publish_ts_ns", "confirm_ts_ns", "publish_seq", "outcome", "returned"]


@dataclass(frozen=True)
class Mark:
    """How marked publishes are drawn, and their line of the legend."""

    marker: str
    key: Key


MARKS = {
    "nack": Mark("x", Key("red", "nack", "\N{MULTIPLICATION SIGN}")),
    "returned": Mark("^", Key("purple", "returned", "\N{BLACK UP-POINTING TRIANGLE}")),
    "none": Mark("D", Key("orange", "no answer", "\N{BLACK DIAMOND}")),
}
LINES = (Key("blue", "published"), Key("green", "answered"))


@dataclass(frozen=True)
class Channel:
    """One channel epoch, or publisher of a stream, with publishes in confirm mode; and why it is shown."""

    connection_id: int
    channel: int | None
    channel_epoch: int | None
    publisher_id: int | None
    publisher_epoch: int | None
    publishes: int
    nacks: int
    unanswered: int
    returned: int
    slowest_ns: int | None
    first_ns: int
    last_ns: int
    why: str = ""


@dataclass
class Stairs:
    """The two lines of one channel within a stretch of time.

    Attributes:
        times_ns: int64, rising.
        published: int64, publish number reached at each time.
        answered: int64, publish number reached if answers had come in order.
        marks: Kind to (int64 times, int64 publish numbers).
        exact: Whether each event has its point.
    """

    low_ns: int
    high_ns: int
    times_ns: np.ndarray
    published: np.ndarray
    answered: np.ndarray
    marks: dict[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    exact: bool = True


def channels(tables: Tables, most: int = 2) -> list[Channel]:
    """Return the busiest channels, those with most failures and the slowest confirm; each with several publishes."""
    outcome = pc.field("outcome")
    groups = tables.group(
        "confirms",
        _KEYS,
        {
            "publishes": ("publish_ts_ns", "count"),
            "nacks": ("nack", "sum"),
            "unanswered": ("unanswered", "sum"),
            "returned": ("back", "sum"),
            "slowest_ns": ("latency_ns", "max"),
            "first_ns": ("publish_ts_ns", "min"),
            "last_ns": ("last", "max"),
        },
        columns={
            "nack": _as_number(outcome == "nack"),
            "unanswered": _as_number(outcome == "none"),
            "back": _as_number(pc.field("returned")),
            "last": pc.coalesce(pc.field("confirm_ts_ns"), pc.field("publish_ts_ns")),
        },
        where=_timed(),
    )
    groups = groups.filter(pc.greater(groups["publishes"], 1))
    if not groups.num_rows:
        return []
    failures = pc.add(pc.add(groups["nacks"], groups["unanswered"]), groups["returned"])
    chosen: dict[int, list[str]] = {}
    for column, why in (
        (groups["publishes"], "busiest"),
        (failures, "most failures"),
        (groups["slowest_ns"], "slowest confirm"),
    ):
        largest = pc.max(column).as_py()
        if largest:
            chosen.setdefault(pc.index(column, largest).as_py(), []).append(why)
    busiest = pc.select_k_unstable(groups, k=most, sort_keys=[("publishes", "descending"), *_IDENTITY])
    for place in busiest.to_pylist():
        chosen.setdefault(place, ["among the busiest"])
    places = list(chosen)[:most]
    rows = groups.take(pa.array(places)).to_pylist()
    return [Channel(**row, why=", ".join(chosen[place])) for row, place in zip(rows, places, strict=True)]


def _as_number(condition: pc.Expression) -> pc.Expression:
    return pc.coalesce(condition.cast(pa.int64()), pc.scalar(0))


def query(tables: Tables, channel: Channel, low_ns: int | None = None, high_ns: int | None = None) -> Stairs:
    """Return the lines of a channel, over all its time or a part of it, in one pass."""
    low = channel.first_ns if low_ns is None else low_ns
    high = channel.last_ns if high_ns is None else high_ns
    edges = low + np.linspace(0, high - low, STEPS + 1).astype(np.int64)  # floats are too coarse for ns
    before, steps = np.zeros(2, np.int64), np.zeros((2, STEPS + 1), np.int64)
    events: list[list[np.ndarray]] = [[], []]
    kept, first_number = 0, None
    marks: dict[str, list[np.ndarray]] = {kind: [] for kind in MARKS}
    for batch in tables.scan("confirms", _COLUMNS, _of(channel) & _timed()):
        smallest = pc.min(batch["publish_seq"]).as_py()
        if smallest is not None and 0 <= smallest < 1 << 62:
            first_number = smallest if first_number is None else min(first_number, smallest)
        for line, column in enumerate(("publish_ts_ns", "confirm_ts_ns")):
            times = batch[column].drop_null().to_numpy()
            before[line] += np.count_nonzero(times < low)
            times = times[(times >= low) & (times <= high)]
            steps[line] += np.bincount(np.searchsorted(edges, times), minlength=STEPS + 1)[: STEPS + 1]
            kept += len(times)
            if kept <= EXACT:
                events[line].append(times)
        for kind, found in _marked(batch, low, high).items():
            marks[kind].append(found)
    base = (1 if first_number is None else first_number) - 1 + before
    exact = kept <= EXACT
    if exact:
        both = [np.sort(np.concatenate([*e, np.empty(0, np.int64)])) for e in events]
        times = np.unique(np.concatenate([*both, [low, high]]))
        lines = [b + np.searchsorted(e, times, side="right") for b, e in zip(base, both, strict=True)]
    else:
        times = edges
        lines = [b + np.cumsum(s) for b, s in zip(base, steps, strict=True)]
    turns = np.flatnonzero(np.any(np.diff(lines, axis=1, prepend=-1) != 0, axis=0))
    kept_points = np.union1d(turns, [0, len(times) - 1])
    times, lines = times[kept_points], [line[kept_points] for line in lines]
    thinned = {kind: _thin(np.concatenate(found, axis=1)) for kind, found in marks.items() if found}
    return Stairs(low, high, times, lines[0], lines[1], {k: v for k, v in thinned.items() if len(v[0])}, exact)


def worst_moment(tables: Tables, channel: Channel) -> tuple[int, int] | None:
    """Return the stretch of time around the slowest confirm of a channel, when it is short beside the whole."""
    slowest = tables.top(
        "confirms", ["publish_ts_ns", "confirm_ts_ns", "latency_ns"], "latency_ns", 1, _of(channel) & _timed()
    )
    if not slowest or not slowest[0]["confirm_ts_ns"]:
        return None
    begin, end = slowest[0]["publish_ts_ns"], slowest[0]["confirm_ts_ns"]
    margin = max((end - begin) // 2, 1000)
    if (end - begin + 2 * margin) * 5 > channel.last_ns - channel.first_ns:
        return None
    return begin - margin, end + margin


def _timed() -> pc.Expression:
    return plausible("publish_ts_ns") & (pc.field("confirm_ts_ns").is_null() | plausible("confirm_ts_ns"))


def _of(channel: Channel) -> pc.Expression:
    found = pc.scalar(True)
    for key in _KEYS:
        value = getattr(channel, key)
        found &= pc.field(key).is_null() if value is None else pc.field(key) == value
    return found


def _marked(batch: pa.Table, low: int, high: int) -> dict[str, np.ndarray]:
    """Return the marks in a batch: kind to int64 of shape (2, n), times and publish numbers."""
    numbered = batch["publish_seq"].is_valid()
    found = {}
    for kind in MARKS:
        time = "confirm_ts_ns" if kind == "nack" else "publish_ts_ns"
        is_kind = batch["returned"] if kind == "returned" else pc.equal(batch["outcome"], kind)
        chosen = pc.and_(pc.fill_null(is_kind, False), pc.and_(numbered, batch[time].is_valid()))
        rows = batch.filter(chosen)
        pair = np.stack([rows[time].to_numpy(), rows["publish_seq"].to_numpy()]).astype(np.int64)
        found[kind] = pair[:, (pair[0] >= low) & (pair[0] <= high)]
    return found


def _thin(marks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if marks.shape[1] > _MOST_MARKS:
        marks = marks[:, np.linspace(0, marks.shape[1] - 1, _MOST_MARKS).astype(int)]
    return marks[0], marks[1]


def draw(ax: Any, data: Stairs) -> None:
    """Draw the two lines, the room between them, and the marks."""
    x = (data.times_ns - data.low_ns) / 1e9
    ax.fill_between(x, data.answered, data.published, step="post", color=theme.INK["heat0"], linewidth=0)
    ax.plot(x, data.published, drawstyle="steps-post", color=theme.INK["blue"])
    ax.plot(x, data.answered, drawstyle="steps-post", color=theme.INK["green"])
    for kind, (times, numbers) in data.marks.items():
        ink = theme.INK[MARKS[kind].key.colour]
        x = (times - data.low_ns) / 1e9
        ax.plot(x, numbers, MARKS[kind].marker, color=ink, markersize=4, markeredgewidth=1.2, clip_on=False)
    ax.set_ylabel("publish number")
    theme.count_axis(ax.yaxis, 6)
    theme.time_axis(ax, data.low_ns, data.high_ns)


def draw_outstanding(ax: Any, data: Stairs) -> None:
    """Draw the number of outstanding publishes."""
    x = (data.times_ns - data.low_ns) / 1e9
    ax.fill_between(x, data.published - data.answered, step="post", color=theme.INK["heat2"], linewidth=0)
    ax.set_ylim(0)
    ax.set_ylabel("waiting")
    theme.count_axis(ax.yaxis, 2)
    theme.time_axis(ax, data.low_ns, data.high_ns)


def figure(name: str, channel: Channel, data: Stairs, title: str) -> Figure:
    """Return the drawing of one channel's lines."""
    waiting = units.count(int((data.published - data.answered).max(initial=0)))
    waiting = waiting if data.exact else f"about {waiting}"
    whole = (data.low_ns, data.high_ns) == (channel.first_ns, channel.last_ns)
    text = (
        f"{units.count(channel.publishes)} publishes, {units.count(channel.nacks)} nacks, "
        f"{units.count(channel.unanswered)} without an answer, {units.count(channel.returned)} returned; "
        f"at most {waiting} waiting at once"
        if whole
        else f"{units.duration(data.high_ns - data.low_ns)} around the slowest confirm of this channel "
        f"({units.duration(channel.slowest_ns)}); at most {waiting} waiting at once"
    )
    grain = "" if data.exact else f" Drawn in {STEPS} steps of time."
    return theme.render(
        name,
        [draw, draw_outstanding],
        data,
        title=title,
        height=360,
        ratios=(3, 1),
        legend=[*LINES, *(MARKS[kind].key for kind in data.marks)],
        alt=f"Confirm staircase: {text}.",
        caption=f"{text[0].upper()}{text[1:]}.{grain}",
    )


def section(tables: Tables) -> Section:
    """Return the section of staircases."""
    page = Section("staircase", "Confirm staircases")
    found = channels(tables)
    if not found:
        page.empty = missing(
            "confirms", there=tables.has("confirms"), nothing="No channel with several publishes in confirm mode."
        )
        return page
    page.lead = (
        "Publishes above, answers below: the vertical distance is what is outstanding, the horizontal one is latency. "
        "The lower line counts answers, whatever their order."
    )
    who = endpoints(tables, [c.connection_id for c in found])
    for place, channel in enumerate(found):
        sender = f"Channel {channel.channel}" if channel.publisher_id is None else f"Publisher {channel.publisher_id}"
        title = f"{sender} of {who.name(channel.connection_id)} ({channel.why})"
        if channel.last_ns <= channel.first_ns:
            page.parts.append(Single(title, f"{units.count(channel.publishes)} publishes, all at one moment."))
            continue
        page.parts.append(figure(f"stairs{place}", channel, query(tables, channel), title))
        worst = worst_moment(tables, channel) if "slowest" in channel.why else None
        moment = query(tables, channel, *worst) if worst else None
        if moment and moment.published[-1] - moment.published[0] > 1:
            page.parts.append(figure(f"worst{place}", channel, moment, "Its worst moment"))
    return page
