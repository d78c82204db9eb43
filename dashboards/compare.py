"""What differs between two captures, or before and after a moment, by more than chance.

Latencies, rates and outcomes are counted in blocks of time. Drawing blocks again and again, with replacement, shows how
much a figure would differ by chance alone (bootstrap): messages of one block depend on each other, so they are drawn
together. A difference is reported where its interval of 99 % does not hold zero, and it is worth mentioning.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from amqpscope.dashboards import findings, percentiles, relations, units
from amqpscope.dashboards.section import Cell, Grid, Section, number
from amqpscope.dashboards.tables import Tables
from amqpscope.dissector.places import Place
from amqpscope.pipelines.latencies import log_linear
from amqpscope.pipelines.relations import compute
from amqpscope.spec.findings import SEVERITIES

BLOCKS, LEAST_BLOCKS = 32, 6
"""Blocks of time of each side; with fewer than the least that hold anything, chance cannot be told."""
LEAST = 20
"""Samples below which nothing is said of a group."""
DRAWS = 1_000
SHARES = {"median": 0.5, "90 %": 0.9, "99 %": 0.99}
WORTH = 0.1
"""Part by which a figure must differ at least."""
LEVEL = (0.5, 99.5)
"""Ends of the interval, in per cent."""
GROUPS = 200
"""Groups of a metric at most: those with most samples."""
_ROWS = """
    select 'confirm' as metric, coalesce(nullif(exchange, ''), 'queue ' || routing_key, stream) as name,
        publish_ts_ns as at_ns, latency_ns, outcome from confirms where publish_ts_ns is not null
    union all
    select 'settlement', queue, deliver_ts_ns, latency_ns, outcome from settlements where deliver_ts_ns is not null
    union all
    select 'rpc', request, request_ts_ns, latency_ns, outcome from rpcs where request_ts_ns is not null
    union all
    select 'transit', s.queue, t.publish_ts_ns, t.latency_ns, null
    from transits t join settlements s
        on t.deliver_connection_id = s.connection_id and t.deliver_frame_no = s.deliver_frame_no
    where t.publish_ts_ns is not null and not coalesce(t.redelivered, false)"""
LATENCIES = f"""
    with rows as ({_ROWS}), all_of_them as (
        select metric, cast(null as varchar) as name, at_ns, latency_ns, outcome from rows
        union all select * from rows where name is not null
    )
    select metric, name, cast(least((at_ns - $low) * $blocks // $span, $blocks - 1) as int) as block, latency_ns,
        coalesce(outcome in ('nack', 'reject', 'error', 'none'), false) as failed, count(*) as rows
    from all_of_them where at_ns >= $low and at_ns < $high
    group by all order by all"""  # noqa: S608 - constants
Counts = NDArray[np.float64]


@dataclass(frozen=True)
class Side:
    """One side of a comparison.

    Attributes:
        name: what people call it.
        folder: its statistics.
        low_ns: begin.
        high_ns: end (excluded).
    """

    name: str
    folder: Place
    low_ns: int
    high_ns: int


@dataclass(frozen=True)
class Difference:
    """A figure that differs, or is too uncertain to tell.

    Attributes:
        subject: of what, such as `publish to confirm`.
        group: of which exchange, queue or request; empty for all.
        figure: such as `99 %`.
        before: its value on the one side.
        after: on the other.
        low: the ratio of after to before is this at least.
        high: and this at most (99 %).
        kind: `latency` (ns), `rate` (per s) or `share`.
        differs: whether by more than chance, and worth mentioning.
    """

    subject: str
    group: str
    figure: str
    before: float
    after: float
    low: float
    high: float
    kind: str
    differs: bool


def whole(tables: Tables, name: str) -> Side:
    """Return a side that is all of the statistics."""
    assert tables.analyzed is not None
    ends = [
        (row["first_ts_ns"], row["last_ts_ns"])
        for row in relations.rows(tables, "endpoints", ["first_ts_ns", "last_ts_ns"])
        if row["first_ts_ns"] is not None and row["last_ts_ns"] is not None
    ]
    low, high = min((first for first, _ in ends), default=0), max((last for _, last in ends), default=0)
    return Side(name, tables.analyzed, low, max(high, low) + 1)


def parts(side: Side, at_ns: int) -> tuple[Side, Side]:
    """Return what is before and after a moment of a side."""
    return (
        Side(f"before {units.clock(at_ns, 1000)}", side.folder, side.low_ns, at_ns),
        Side(f"after {units.clock(at_ns, 1000)}", side.folder, at_ns, side.high_ns),
    )


def differences(before: Side, after: Side) -> list[Difference]:
    """Return all figures of both sides, those that differ first, the largest shift first."""
    one, other = _counted(before), _counted(after)
    drawn = [_draws(before), _draws(after)]
    found = []
    for key in one.keys() & other.keys():
        found += list(_of_group(key, (one[key], other[key]), drawn, (before, after)))
    return sorted(found, key=_place)


def _place(each: Difference) -> tuple[bool, bool, float]:
    shift = abs(float(np.log(each.after / each.before))) if each.before and each.after else np.inf
    return (not each.differs, bool(each.group), -shift)


@dataclass(frozen=True)
class _Group:
    """Latencies of a group, counted: rows are blocks of time."""

    values: NDArray[np.int64]
    counts: Counts
    rows: Counts
    failed: Counts


def _counted(side: Side) -> dict[tuple[str, str], _Group]:
    given = {"low": side.low_ns, "high": side.high_ns, "span": side.high_ns - side.low_ns, "blocks": BLOCKS}
    with compute.opened(side.folder, ("confirms", "settlements", "rpcs", "transits")) as database:
        reader = database.sql(LATENCIES, params=given).to_arrow_reader(1 << 16)
        grouped: dict[tuple[str, str], list[NDArray[np.int64]]] = {}
        for batch in reader:
            names = zip(batch["metric"].to_pylist(), batch["name"].to_pylist(), strict=True)
            columns = np.stack([
                batch["block"].to_numpy().astype(np.int64),
                batch["latency_ns"].fill_null(-1).to_numpy(),
                batch["failed"].to_numpy(zero_copy_only=False).astype(np.int64),
                batch["rows"].to_numpy(),
            ])  # fmt: skip
            keys = [(metric, name or "") for metric, name in names]
            edges = [0, *(i for i in range(1, len(keys)) if keys[i] != keys[i - 1]), len(keys)]
            for begin, end in pairwise(edges):
                if end > begin:
                    grouped.setdefault(keys[begin], []).append(columns[:, begin:end])
    most = sorted(grouped, key=lambda key: (bool(key[1]), -sum(int(p[3].sum()) for p in grouped[key])))[:GROUPS]
    return {key: _group(np.concatenate(grouped[key], axis=1)) for key in most}


def _group(rows: NDArray[np.int64]) -> _Group:
    block, latency, failed, count = rows
    known = latency >= 0
    buckets, place = np.unique(log_linear.bucket_of(latency[known]), return_inverse=True)
    counts = np.zeros((BLOCKS, len(buckets)))
    np.add.at(counts, (block[known], place), count[known])
    totals, bad = np.zeros(BLOCKS), np.zeros(BLOCKS)
    np.add.at(totals, block, count)
    np.add.at(bad, block, count * failed)
    return _Group(log_linear.middle_of(buckets), counts, totals, bad)


def _draws(side: Side) -> Counts:
    """Return how often each block is drawn (float64 of DRAWS by BLOCKS): the same for equal input."""
    generator = np.random.default_rng(side.high_ns % (1 << 32))
    return generator.multinomial(BLOCKS, np.full(BLOCKS, 1 / BLOCKS), size=DRAWS).astype(np.float64)


def _of_group(
    key: tuple[str, str], groups: tuple[_Group, _Group], drawn: Sequence[Counts], sides: tuple[Side, Side]
) -> Iterator[Difference]:
    metric, name = key
    subject = percentiles.NAMES[metric]
    if min(group.rows.sum() for group in groups) < LEAST:
        return
    is_sure = all(np.count_nonzero(group.rows) >= LEAST_BLOCKS for group in groups)
    if all(group.counts.sum() >= LEAST for group in groups):
        for figure, share in SHARES.items():
            values = [_percentile(group, group.counts.sum(axis=0)[None], share)[0] for group in groups]
            draws = [_percentile(group, draw @ group.counts, share) for group, draw in zip(groups, drawn, strict=True)]
            yield _difference(subject, name, figure, values, draws, "latency", is_sure)
    seconds = [max((side.high_ns - side.low_ns) / units.SECOND, 1e-9) for side in sides]
    values = [group.rows.sum() / span for group, span in zip(groups, seconds, strict=True)]
    draws = [draw @ group.rows / span for group, draw, span in zip(groups, drawn, seconds, strict=True)]
    yield _difference(subject, name, "per second", values, draws, "rate", is_sure)
    if metric in ("confirm", "settlement", "rpc") and any(group.failed.sum() for group in groups):
        values = [group.failed.sum() / group.rows.sum() for group in groups]
        draws = [draw @ g.failed / np.maximum(draw @ g.rows, 1) for g, draw in zip(groups, drawn, strict=True)]
        yield _difference(subject, name, "refused or unanswered", values, draws, "share", is_sure)


def _percentile(group: _Group, counts: Counts, share: float) -> Counts:
    """Return the value that a share of each row of counts does not exceed (ns); NaN for rows without any."""
    reached = np.cumsum(counts, axis=1)
    totals = reached[:, -1]
    place = (reached < np.ceil(share * totals)[:, None]).sum(axis=1)
    return np.where(totals > 0, group.values[np.minimum(place, len(group.values) - 1)], np.nan)


def _difference(
    subject: str, name: str, figure: str, values: Sequence[float], draws: Sequence[Counts], kind: str, is_sure: bool
) -> Difference:
    before, after = map(float, values)
    if kind == "share":
        shift = draws[1] - draws[0]
        low, high = np.nanpercentile(shift, LEVEL)
        differs = is_sure and (low > 0 or high < 0) and abs(after - before) >= WORTH / 10
        return Difference(subject, name, figure, before, after, float(low), float(high), kind, bool(differs))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = draws[1] / draws[0]
    ratio = ratio[np.isfinite(ratio)]
    low, high = np.percentile(ratio, LEVEL) if len(ratio) else (0.0, np.inf)
    differs = is_sure and (low > 1 or high < 1) and bool(before) and abs(after / before - 1) >= WORTH
    return Difference(subject, name, figure, before, after, float(low), float(high), kind, bool(differs))


def came_and_went(before: Side, after: Side) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the findings that only the one side has, and those that only the other has: by code and subject."""

    def subject(row: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(row[name] for name in ("code", "client", "queue", "exchange"))

    sides = []
    for side in (before, after):
        rows, _ = findings.read(Tables(None, side.folder))
        timed = [row for row in rows if row["first_ts_ns"] is None or _overlaps(row, side)]
        sides.append({subject(row): row for row in timed})
    one, other = sides
    return [one[key] for key in one if key not in other], [other[key] for key in other if key not in one]


def _overlaps(row: dict[str, Any], side: Side) -> bool:
    last = row["last_ts_ns"] if row["last_ts_ns"] is not None else row["first_ts_ns"]
    return bool(row["first_ts_ns"] < side.high_ns and last >= side.low_ns)


def value(difference: Difference, which: str) -> str:
    """Return a figure of a side as people read it."""
    found = getattr(difference, which)
    if difference.kind == "latency":
        return units.duration(found)
    return units.rate(found) if difference.kind == "rate" else units.share(found, 1)


def shift(difference: Difference) -> str:
    """Return by how much a figure differs, with its interval."""
    if difference.kind == "share":
        low, high = (f"{100 * end:+.1f}" for end in (difference.low, difference.high))
        return f"{100 * (difference.after - difference.before):+.1f} points ({low} to {high})"
    if not difference.before:
        return "from nothing"
    ratio, ends = difference.after / difference.before, (difference.low, difference.high)
    return f"{ratio:.2f} times ({ends[0]:.2f} to {ends[1]:.2f})"


def text(before: Side, after: Side, width: int) -> str:
    """Return the comparison for a terminal."""
    found = differences(before, after)
    sure = [each for each in found if each.differs]
    lines = [f"{units.visible(before.name)}  ->  {units.visible(after.name)}", ""]
    if not sure:
        lines.append(
            "Nothing differs by more than chance." if found else "Nothing to compare: too few messages on both sides."
        )
    for each in sure:
        of = f" of {units.visible(each.group, 40)}" if each.group else ""
        head = f"{each.subject}{of}, {each.figure}: {value(each, 'before')} -> {value(each, 'after')}"
        lines.append(f"- {head}, {shift(each)}")
    gone, new = came_and_went(before, after)
    for title, each_side in (("NO LONGER FOUND", gone), ("NEW", new)):
        if rows := [row for row in each_side if row["severity"] != SEVERITIES[-1]]:
            lines += ["", title, *(f"- {row['party'].upper()} {units.visible(row['text'], 400)}" for row in rows)]
    if found:
        lines += ["", f"{len(found)} figures compared; intervals of 99 % from {BLOCKS} blocks of time of each side."]
    wrapped = [textwrap.fill(line, width, subsequent_indent="  " if line.startswith("- ") else "") for line in lines]
    return "\n".join(wrapped) + "\n"


def data(before: Side, after: Side) -> dict[str, Any]:
    """Return the comparison for programs."""
    gone, new = came_and_went(before, after)
    return {
        "before": before.name, "after": after.name, "no_longer_found": gone, "new": new,
        "differences": [vars(each) for each in differences(before, after)],
    }  # fmt: skip


def sections(before: Side, after: Side) -> list[Section]:
    """Return the comparison as parts of a page."""
    found = differences(before, after)
    gone, new = came_and_went(before, after)
    page = Section("differences", "What differs by more than chance")
    heads = ["what", "of", "figure", before.name, after.name, "shift (99 %)", "differs"]
    page.parts = [
        Grid(
            "All figures",
            heads,
            [
                [
                    Cell(each.subject), Cell(each.group or "all"), Cell(each.figure), number(value(each, "before")),
                    number(value(each, "after")), Cell(shift(each)), Cell("yes" if each.differs else "no"),
                ]
                for each in found
            ],
        )
    ]  # fmt: skip
    if not found:
        page.empty = "Too few messages on both sides."
    other = Section("came", "Findings that came and went")
    rows = [("no longer found", row) for row in gone] + [("new", row) for row in new]
    other.parts = [
        Grid(
            "Findings",
            ["side", "severity", "party", "finding"],
            [[Cell(side), Cell(row["severity"]), Cell(row["party"]), Cell(row["text"], "prose")] for side, row in rows],
        )
    ]
    if not rows:
        other.empty = "Both have the same."
    return [page, other]
