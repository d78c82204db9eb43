"""Staircases: publishes as the upper line and their confirms as the lower one; deliveries and settlements likewise.

After tcptrace's time-sequence graph: the vertical distance between the lines is what is outstanding, the
horizontal one is latency. A publisher that waits for each confirm walks in step; a broker that stalls draws a
plateau below; a consumer at its prefetch keeps the lines as far apart as that; a channel that dies leaves them apart.
"""

from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from amqpscope.dashboards import relations, units
from amqpscope.dashboards.chart import Chart, Dots, Line, Mark, Panel, linear, time
from amqpscope.dashboards.connections import endpoints
from amqpscope.dashboards.section import Figure, Key, Section, Single, missing
from amqpscope.dashboards.tables import Tables, plausible

STEPS = 280
"""Points of a line, where there are more events than can be drawn one by one."""

EXACT = 560
"""Up to this many events every one is drawn."""

_MOST_MARKS = 150


@dataclass(frozen=True)
class Kind:
    """What a staircase is of.

    Attributes:
        table: where its rows are.
        begin: prefix of the columns of the upper line.
        end: of the lower one.
        number: column of the number that the upper line reaches.
        keys: columns within which these numbers count.
        refused: outcomes of answers that refuse.
        words: what one is called, several, an answer that refuses, and its answer.
        where: which rows of the table are meant.
    """

    table: str
    begin: str
    end: str
    number: str
    keys: tuple[str, ...]
    refused: tuple[str, ...]
    words: tuple[str, str, str, str]
    where: pc.Expression


CONFIRMS = Kind(
    "confirms", "publish", "confirm", "publish_seq",
    ("connection_id", "channel", "channel_epoch", "publisher_id", "publisher_epoch"), ("nack",),
    ("publish", "publishes", "nacks", "confirm"), pc.scalar(True),
)  # fmt: skip
SETTLEMENTS = Kind(
    "settlements", "deliver", "settle", "delivery_tag", ("connection_id", "channel", "channel_epoch"),
    ("nack", "reject"), ("delivery", "deliveries", "rejected", "acknowledgement"),
    (pc.field("kind") == "deliver") & ~pc.field("outcome").isin(["auto", "unknown"]),
)  # fmt: skip


@dataclass(frozen=True)
class Shape:
    """How marked publishes are drawn, and their line of the legend."""

    marker: str
    key: Key


MARKS = {
    "nack": Shape("x", Key("red", "nack", "\N{MULTIPLICATION SIGN}")),
    "returned": Shape("^", Key("purple", "returned", "\N{BLACK UP-POINTING TRIANGLE}")),
    "none": Shape("D", Key("orange", "no answer", "\N{BLACK DIAMOND}")),
}
LINES = {
    "confirms": (Key("blue", "published"), Key("green", "answered (dashed)")),
    "settlements": (Key("blue", "delivered"), Key("green", "settled (dashed)")),
}


@dataclass(frozen=True)
class Channel:
    """One channel epoch, or publisher of a stream, with its publishes or deliveries; and why it is shown."""

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
    kind: Kind = CONFIRMS


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


def channels(tables: Tables, most: int = 2, kind: Kind = CONFIRMS) -> list[Channel]:
    """Return the busiest channels, those with most failures and the slowest answer; each with several rows."""
    outcome = pc.field("outcome")
    has_returns = kind is CONFIRMS
    groups = tables.group(
        kind.table,
        kind.keys,
        {
            "publishes": (f"{kind.begin}_ts_ns", "count"),
            "nacks": ("nack", "sum"),
            "unanswered": ("unanswered", "sum"),
            "returned": ("back", "sum"),
            "slowest_ns": ("latency_ns", "max"),
            "first_ns": (f"{kind.begin}_ts_ns", "min"),
            "last_ns": ("last", "max"),
        },
        columns={
            "nack": _as_number(outcome.isin(list(kind.refused))),
            "unanswered": _as_number(outcome == "none"),
            "back": _as_number(pc.field("returned")) if has_returns else pc.scalar(0),
            "last": pc.coalesce(pc.field(f"{kind.end}_ts_ns"), pc.field(f"{kind.begin}_ts_ns")),
        },
        where=_timed(kind),
    )
    groups = groups.filter(pc.greater(groups["publishes"], 1))
    if not groups.num_rows:
        return []
    failures = pc.add(pc.add(groups["nacks"], groups["unanswered"]), groups["returned"])
    chosen: dict[int, list[str]] = {}
    for column, why in (
        (groups["publishes"], "busiest"),
        (failures, "most failures"),
        (groups["slowest_ns"], f"slowest {kind.words[3]}"),
    ):
        largest = pc.max(column).as_py()
        if largest:
            chosen.setdefault(pc.index(column, largest).as_py(), []).append(why)
    identity = [(key, "ascending") for key in kind.keys]
    busiest = pc.select_k_unstable(groups, k=most, sort_keys=[("publishes", "descending"), *identity])
    for place in busiest.to_pylist():
        chosen.setdefault(place, ["among the busiest"])
    places = list(chosen)[:most]
    rows = groups.take(pa.array(places)).to_pylist()
    none = {"publisher_id": None, "publisher_epoch": None}
    return [
        Channel(**(none | row), why=", ".join(chosen[place]), kind=kind)
        for row, place in zip(rows, places, strict=True)
    ]


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
    marks: dict[str, list[np.ndarray]] = {name: [] for name in MARKS}
    kind = channel.kind
    moments = [f"{kind.begin}_ts_ns", f"{kind.end}_ts_ns"]
    columns = [*moments, kind.number, "outcome", *(["returned"] if kind is CONFIRMS else ())]
    for batch in tables.scan(kind.table, columns, _of(channel) & _timed(kind)):
        smallest = pc.min(batch[kind.number]).as_py()
        if smallest is not None and 0 <= smallest < 1 << 62:
            first_number = smallest if first_number is None else min(first_number, smallest)
        for line, column in enumerate(moments):
            times = batch[column].drop_null().to_numpy()
            before[line] += np.count_nonzero(times < low)
            times = times[(times >= low) & (times <= high)]
            steps[line] += np.bincount(np.searchsorted(edges, times), minlength=STEPS + 1)[: STEPS + 1]
            kept += len(times)
            if kept <= EXACT:
                events[line].append(times)
        for name, found in _marked(batch, kind, low, high).items():
            marks[name].append(found)
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
    thinned = {name: _thin(np.concatenate(found, axis=1)) for name, found in marks.items() if found}
    return Stairs(low, high, times, lines[0], lines[1], {k: v for k, v in thinned.items() if len(v[0])}, exact)


def worst_moment(tables: Tables, channel: Channel) -> tuple[int, int] | None:
    """Return the stretch of time around the slowest answer of a channel, when it is short beside the whole."""
    kind = channel.kind
    ends = [f"{kind.begin}_ts_ns", f"{kind.end}_ts_ns"]
    slowest = tables.top(kind.table, [*ends, "latency_ns"], "latency_ns", 1, _of(channel) & _timed(kind))
    if not slowest or not slowest[0][ends[1]]:
        return None
    begin, end = (slowest[0][name] for name in ends)
    margin = max((end - begin) // 2, 1000)
    if (end - begin + 2 * margin) * 5 > channel.last_ns - channel.first_ns:
        return None
    return begin - margin, end + margin


def _timed(kind: Kind) -> pc.Expression:
    begin, end = f"{kind.begin}_ts_ns", f"{kind.end}_ts_ns"
    return plausible(begin) & (pc.field(end).is_null() | plausible(end)) & kind.where


def _of(channel: Channel) -> pc.Expression:
    found = pc.scalar(True)
    for key in channel.kind.keys:
        value = getattr(channel, key)
        found &= pc.field(key).is_null() if value is None else pc.field(key) == value
    return found


def _marked(batch: pa.Table, kind: Kind, low: int, high: int) -> dict[str, np.ndarray]:
    """Return the marks in a batch: name to int64 of shape (2, n), times and numbers."""
    numbered = batch[kind.number].is_valid()
    found = {}
    for name in MARKS:
        if name == "returned" and kind is not CONFIRMS:
            continue
        time_of = f"{kind.end if name == 'nack' else kind.begin}_ts_ns"
        outcomes = pa.array(kind.refused if name == "nack" else (name,))
        is_one = batch["returned"] if name == "returned" else pc.is_in(batch["outcome"], value_set=outcomes)
        chosen = pc.and_(pc.fill_null(is_one, False), pc.and_(numbered, batch[time_of].is_valid()))
        rows = batch.filter(chosen)
        pair = np.stack([rows[time_of].to_numpy(), rows[kind.number].to_numpy()]).astype(np.int64)
        found[name] = pair[:, (pair[0] >= low) & (pair[0] <= high)]
    return found


def _thin(marks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if marks.shape[1] > _MOST_MARKS:
        marks = marks[:, np.linspace(0, marks.shape[1] - 1, _MOST_MARKS).astype(int)]
    return marks[0], marks[1]


def drawn(data: Stairs, limit: int | None = None) -> Chart:
    """Return the two lines with the room between them and marks; below, what is outstanding, and what limits it."""
    xs = data.times_ns - data.low_ns
    marks: list[Mark] = [
        Line(xs, data.published, "heat0", "post", base=data.answered),
        Line(xs, data.published, "blue", "post"),
        Line(xs, data.answered, "green", "post", dash="5 2"),
    ]
    for kind, (times, numbers) in data.marks.items():
        marks.append(Dots(times - data.low_ns, numbers, MARKS[kind].key.colour, glyph=MARKS[kind].marker))
    outstanding = data.published - data.answered
    waiting: list[Mark] = [Line(xs, outstanding, "heat2", "post", base=np.zeros(len(xs)))]
    most = int(outstanding.max(initial=1))
    if limit:
        waiting.append(Line(np.array([0, xs[-1]]), np.array([limit, limit]), "red", dash="6 3"))
        most = max(most, limit)
    low, high = float(data.answered.min()), float(data.published.max())
    return Chart(
        time(data.low_ns, data.high_ns),
        [
            Panel(linear(max(high, low + 1), 5, "number", low), marks, 230),
            Panel(linear(most, 2, "waiting"), waiting, 70),
        ],
    )


def figure(channel: Channel, data: Stairs, title: str, limit: int | None = None) -> Figure:
    """Return the drawing of one channel's lines."""
    waiting = units.count(int((data.published - data.answered).max(initial=0)))
    waiting = waiting if data.exact else f"about {waiting}"
    whole = (data.low_ns, data.high_ns) == (channel.first_ns, channel.last_ns)
    _, several, refused, answer = channel.kind.words
    returned = f", {units.count(channel.returned)} returned" if channel.kind is CONFIRMS else ""
    text = (
        f"{units.count(channel.publishes)} {several}, {units.count(channel.nacks)} {refused}, "
        f"{units.count(channel.unanswered)} without an answer{returned}; at most {waiting} waiting at once"
        if whole
        else f"{units.duration(data.high_ns - data.low_ns)} around the slowest {answer} of this channel "
        f"({units.duration(channel.slowest_ns)}); at most {waiting} waiting at once"
    )
    grain = "" if data.exact else f" Drawn in {STEPS} steps of time."
    limited = f" Dashed below: the prefetch, {limit}." if limit else ""
    return Figure(
        title,
        drawn(data, limit),
        f"Staircase: {text}.",
        f"{text[0].upper()}{text[1:]}.{limited}{grain}",
        [*LINES[channel.kind.table], *(_key(name, channel.kind) for name in data.marks)],
    )


def _key(name: str, kind: Kind) -> Key:
    """Return the line of a legend for marks: what refuses has another name for deliveries."""
    return replace(MARKS[name].key, text=kind.words[2]) if name == "nack" and kind is SETTLEMENTS else MARKS[name].key


def _limit(tables: Tables, channel: Channel) -> int | None:
    """Return the prefetch of a channel's deliveries, where it has one consumer."""
    found = [
        row["prefetch"]
        for row in relations.rows(tables, "consumers", ["connection_id", "channel", "channel_epoch", "prefetch"])
        if all(row[key] == getattr(channel, key) for key in SETTLEMENTS.keys)
    ]
    return found[0] if len(found) == 1 else None


def section(tables: Tables) -> Section:
    """Return the section of staircases: confirms, then deliveries."""
    page = Section("staircase", "Staircases of confirms and deliveries")
    found = [*channels(tables), *channels(tables, 2, SETTLEMENTS)]
    if not found:
        page.empty = missing(
            "confirms", there=tables.has("confirms"), nothing="No channel with several publishes in confirm mode."
        )
        return page
    page.lead = (
        "Publishes or deliveries above, answers below: the vertical distance is what is outstanding, the horizontal "
        "one is latency. The lower line counts answers, whatever their order."
    )
    who = endpoints(tables, [c.connection_id for c in found])
    for channel in found:
        sender = f"Channel {channel.channel}" if channel.publisher_id is None else f"Publisher {channel.publisher_id}"
        _, several, *_ = channel.kind.words
        title = f"{several.capitalize()} on {sender.lower()} of {who.name(channel.connection_id)} ({channel.why})"
        if channel.last_ns <= channel.first_ns:
            page.parts.append(Single(title, f"{units.count(channel.publishes)} {several}, all at one moment."))
            continue
        limit = _limit(tables, channel) if channel.kind is SETTLEMENTS else None
        page.parts.append(figure(channel, query(tables, channel), title, limit))
        worst = worst_moment(tables, channel) if channel.kind is CONFIRMS and "slowest" in channel.why else None
        moment = query(tables, channel, *worst) if worst else None
        if moment and moment.published[-1] - moment.published[0] > 1:
            page.parts.append(figure(channel, moment, "Its worst moment"))
    return page
