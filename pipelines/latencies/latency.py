"""Latency as log-linear buckets and as percentiles, by a closed list of groupings.

It stores counts by group and bucket, exact extremes and a few sums, so partial results of any split of the rows merge
to the same tables. Percentiles come from the buckets: off by less than 0.4 %, exact below 256 ns and where a group has
one latency only.

Only the finest groupings of a metric are stored, and the others are made from them: connections from channels,
exchanges from routing keys. So what is stored has no more rows than the result, except for rows without a channel.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from amqpscope.pipelines.latencies import histograms
from amqpscope.pipelines.latencies.groupings import ALL, COLUMNS, FINEST, GROUPINGS, NEEDED, USED
from amqpscope.pipelines.latencies.histograms import Histograms
from amqpscope.pipelines.latencies.log_linear import BITS, Integers, high_of, low_of
from amqpscope.pipelines.latencies.partials import COUNTS, FIGURES, PARTIAL, column, named, of_rows, to_rows
from amqpscope.pipelines.model.folding import Folding
from amqpscope.pipelines.model.walk import Rows, conform, schema

__all__ = [
    "BITS",
    "COLUMNS",
    "COUNTS",
    "GROUPINGS",
    "PARTIAL",
    "PERCENTILES",
    "Latencies",
    "latency_buckets",
    "latency_summary",
]

PERCENTILES = {"p50_ns": 5_000, "p90_ns": 9_000, "p99_ns": 9_900, "p999_ns": 9_990, "p9999_ns": 9_999}
"""Columns of `latency_summary` and their quantiles, in parts of ten thousand."""

Result = tuple[str, str, Histograms]
"""A metric, a grouping and its groups."""

_CENSORED = ("capture-end", "gap", "evicted")
_FAILED = ("nack", "reject", "error")
_NOT_ANSWERED = ("none", "auto", "unknown")
_SUMMARY = schema("latency_summary")


class Latencies:
    """Latencies that were added and partial results that were merged, as two tables.

    Rows may come in any order and number of batches. Memory grows with the number of groups and of their buckets.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], Folding[Histograms]] = {}
        self._made: list[Result] = []
        """What both tables are made of, once it was asked for."""

    def add(self, metric: str, rows: pa.Table | pa.RecordBatch) -> None:
        """Add rows of a metric.

        Args:
            metric: `confirm`, `settlement`, `rpc` or `transit`.
            rows: rows of the table `confirms`, `settlements`, `rpcs` or `transits`; other columns than those used may
                be missing.

        Raises:
            KeyError: there is no such metric, or a column is missing.
        """
        finest = FINEST[metric]
        names = {name for grouping in finest for name in GROUPINGS[grouping]}
        keys = {name: column(rows, name, _SUMMARY.field(name).type) for name in names}
        each = histograms.of_rows(keys, *_judged(rows))
        for grouping, made in finest.items():
            needed = {NEEDED.get(name) for name in made}
            # Rows that count for none of them are dropped.
            some = _with(each, needed.pop()) if len(needed) == 1 else each
            if some.groups:
                self._keep(metric, grouping, some.by(GROUPINGS[grouping]))

    def __len__(self) -> int:
        """The groups that are kept."""
        return sum(len(kept.folded()) for kept in self._kept.values())

    def partial(self) -> pa.Table:
        """Return what was added and merged so far as rows of `PARTIAL`, in no particular order."""
        tables = [PARTIAL.empty_table()]
        for (metric, grouping), kept in self._kept.items():
            tables.append(to_rows(metric, grouping, kept.folded()))
        return pa.concat_tables(tables)

    def merge(self, *partials: pa.Table) -> None:
        """Add partial results of others.

        Raises:
            ValueError: rows are no such result.
            KeyError: a column is missing.
        """
        for partial in partials:
            rows = partial.select(PARTIAL.names).cast(PARTIAL)
            groupings = rows.select(["metric", "grouping"])
            for found in groupings.group_by(["metric", "grouping"]).aggregate([]).to_pylist():
                metric, grouping = found["metric"], found["grouping"]
                if metric not in FINEST or grouping not in (*FINEST[metric], ALL):
                    raise ValueError(f"not kept in partial results: {metric} by {grouping}")
                of_it = pc.and_(pc.equal(rows["metric"], metric), pc.equal(rows["grouping"], grouping))
                self._keep(metric, grouping, of_rows(grouping, rows.filter(of_it)))

    def by_connection(self, unfinished: pa.Array) -> Iterator[Rows]:
        """Yield rows of both tables of the groupings by connection, and keep of these only what ALL is made of.

        For tasks, which see all rows of their connections: nobody has to bring these together.

        Args:
            unfinished: connections of which there will be more rows: all is kept of them.
        """
        results: list[Result] = []
        for (metric, kept), folding in list(self._kept.items()):
            if "connection_id" not in GROUPINGS[kept]:
                continue
            found = folding.folded().ordered()
            open_still = pc.is_in(found.keys["connection_id"], value_set=unfinished)
            del self._kept[metric, kept]
            if pc.any(open_still).as_py():
                self._keep(metric, kept, found.where(open_still))
                found = found.where(pc.invert(open_still))
            made = [grouping for grouping in FINEST[metric][kept] if grouping != ALL]
            results += [(metric, grouping, _made_of(kept, found, grouping).ordered()) for grouping in made]
            self._keep(metric, ALL, found.by(()))
        yield "latency_buckets", _bucket_rows(results)
        yield "latency_summary", _summary_rows(results)

    def rows(self) -> Iterator[Rows]:
        """Yield the rows of `buckets` and of `summary`, a grouping at a time."""
        for result in self._groups():
            yield "latency_buckets", _bucket_rows([result])
            yield "latency_summary", _summary_rows([result])

    def buckets(self) -> pa.Table:
        """Return the table `latency_buckets`, ordered by metric, grouping, group and bucket.

        Metrics and groupings are in the order of their lists, nulls last. Latencies below zero are left out.
        """
        return _bucket_rows(self._results())

    def summary(self) -> pa.Table:
        """Return the table `latency_summary`, ordered as `buckets`.

        `count` is of answers, good and bad, with a latency of at least zero, and the percentiles are theirs. Each
        request counts in one of `count`, `unusable` (answered, but without such a latency: clocks stepped, the publish
        of a delivery is ambiguous, or the delivery is repeated), `censored` (the
        capture may have missed the answer) and `unanswered` (a close, a recover or a rollback came first); so they add
        up. `failed` is of bad answers (nack, reject, error) and all that is `unanswered`.
        """
        return _summary_rows(self._results())

    def _keep(self, metric: str, grouping: str, found: Histograms) -> None:
        self._made = []
        kept = self._kept.get((metric, grouping))
        if kept is None:
            self._kept[metric, grouping] = Folding(histograms.fold, found)
        else:
            kept.add(found)

    def _results(self) -> list[Result]:
        """Return metric, grouping and the groups of it, in order."""
        self._made = self._made or list(self._groups())
        return self._made

    def _groups(self) -> Iterator[Result]:
        for metric, used in USED.items():
            kept_as = {grouping: kept for kept, made in FINEST[metric].items() for grouping in made}
            for grouping in used:
                parts = []
                for name in dict.fromkeys((kept_as[grouping], grouping)):
                    kept = self._kept.get((metric, name))
                    if kept is not None:
                        kept.put(kept.folded().ordered())  # once for all that are made of it
                        parts.append(_made_of(name, kept.folded(), grouping))
                if parts:
                    yield metric, grouping, (parts[0] if len(parts) == 1 else histograms.fold(parts)).ordered()


def latency_buckets(
    confirms: pa.Table | None = None,
    settlements: pa.Table | None = None,
    rpcs: pa.Table | None = None,
    transits: pa.Table | None = None,
) -> pa.Table:
    """Return the table `latency_buckets`: counts of latencies by metric, group and log-linear bucket.

    Args:
        confirms: the table `confirms`; None leaves the metric out, as with the others.
        settlements: the table `settlements`.
        rpcs: the table `rpcs`.
        transits: the table `transits`.

    Raises:
        ValueError: there is no table.
    """
    return _added(confirms, settlements, rpcs, transits).buckets()


def latency_summary(
    confirms: pa.Table | None = None,
    settlements: pa.Table | None = None,
    rpcs: pa.Table | None = None,
    transits: pa.Table | None = None,
) -> pa.Table:
    """Return the table `latency_summary`: counts, percentiles and maximum of latencies by metric and group.

    Arguments and errors are those of `latency_buckets`; `Latencies.summary` says what is counted.
    """
    return _added(confirms, settlements, rpcs, transits).summary()


def _bucket_rows(results: Iterable[Result]) -> pa.Table:
    """Return ordered groups as rows of `latency_buckets`."""
    tables = []
    for metric, grouping, found in results:
        low, high = low_of(found.bucket), high_of(found.bucket)
        values = {"bucket": found.bucket, "low_ns": low, "high_ns": high, "count": found.latencies}
        columns = named(metric, grouping, found, found.group) | values
        tables.append(conform("latency_buckets", columns, len(found.group)))
    return pa.concat_tables(tables) if tables else schema("latency_buckets").empty_table()


def _summary_rows(results: Iterable[Result]) -> pa.Table:
    """Return ordered groups as rows of `latency_summary`."""
    tables = []
    for metric, grouping, found in results:
        count = found.counts()
        values = dict(zip(PERCENTILES, found.percentiles([*PERCENTILES.values()]), strict=True))
        values["max_ns"] = found.most
        columns = named(metric, grouping, found, np.arange(found.groups)) | {"count": count}
        columns |= zip(FIGURES, found.figures, strict=True)
        none = count == 0
        columns |= {name: pa.array(value, mask=none) for name, value in values.items()}
        tables.append(conform("latency_summary", columns, found.groups))
    return pa.concat_tables(tables) if tables else _SUMMARY.empty_table()


def _added(*tables: pa.Table | None) -> Latencies:
    if all(table is None for table in tables):
        raise ValueError("no table to summarise")
    latencies = Latencies()
    for metric, table in zip(USED, tables, strict=True):
        if table is not None:
            latencies.add(metric, table)
    return latencies


def _judged(rows: pa.Table | pa.RecordBatch) -> tuple[Integers, Integers]:
    """Return the latency of each row (-1 where none is usable), and bools (4, rows): which figures it counts for."""
    latency_ns = column(rows, "latency_ns", pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
    usable = latency_ns >= 0
    if "outcome" not in rows.schema.names:  # transits: matched, or ambiguous
        if "attempt" in rows.schema.names:
            latency_ns = np.where(column(rows, "attempt", pa.int64()).fill_null(1).to_numpy() > 1, -1, latency_ns)
            usable = latency_ns >= 0
        no = np.zeros(len(usable), np.bool_)
        return latency_ns, np.stack([no, no, no, ~usable])
    outcome = histograms.encoded(column(rows, "outcome", pa.string()))
    ended_by = histograms.encoded(column(rows, "ended_by", pa.string()))
    # `auto` and `unknown` ones need no answer, or may need none.
    ended = _among(outcome, ["none"]) & (ended_by[0] >= 0)
    censored = ended & _among(ended_by, _CENSORED)
    unanswered = ended & ~censored
    answered = (outcome[0] >= 0) & ~_among(outcome, _NOT_ANSWERED)
    return latency_ns, np.stack([_among(outcome, _FAILED) | unanswered, censored, unanswered, answered & ~usable])


def _among(column: tuple[Integers, pa.Array], words: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Return where an encoded column is one of these words; a null is not."""
    position, values = column
    is_one = np.array([value in words for value in (*values.to_pylist(), None)])
    return is_one[position]


def _made_of(kept: str, found: Histograms, grouping: str) -> Histograms:
    """Return the groups of a grouping, made of those of one that is kept."""
    found = _with(found, NEEDED.get(grouping))
    return found if grouping == kept else found.by(GROUPINGS[grouping])


def _with(groups: Histograms, needed: str | None) -> Histograms:
    """Return the groups where this column is not null."""
    return groups.where(groups.keys[needed].is_valid()) if needed else groups
