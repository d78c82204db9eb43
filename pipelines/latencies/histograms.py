"""Latencies of many groups as histograms: rows become groups, groups become fewer groups, groups give percentiles.

All steps are one: rows (each a group of its own) and groups of several parts are merged by the values of key columns.
These are encoded as integers, several of them as one integer, so that texts are compared only once per distinct value.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from amqpscope.pipelines.latencies.log_linear import BUCKETS, Integers, bucket_of, middle_of

NEVER = 2**63 - 1
"""The smallest latency of a group without any; the largest is then -1."""

DENSE = 8
"""So many times more codes than values are counted one by one rather than sorted."""


@dataclass(frozen=True)
class Histograms:
    """Groups, and their cells: the count of a group's latencies in a bucket.

    Attributes:
        groups: number of groups.
        keys: by name, what the groups are called; each has `groups` values, texts are large_string.
        figures: int64 or bool (figures, groups), whatever else is counted.
        least: int64 (groups), the smallest latency, ns; `NEVER` without one.
        most: int64 (groups), the largest latency, ns; -1 without one.
        group: int64 (cells), position of the cell's group.
        bucket: int64 (cells), number of the bucket.
        count: int64 (cells), latencies in it; None for one each.
        is_ordered: the groups are in the order of their keys, and the cells in that of group and bucket.
    """

    groups: int
    keys: dict[str, pa.Array]
    figures: Integers
    least: Integers
    most: Integers
    group: Integers
    bucket: Integers
    count: Integers | None
    is_ordered: bool = False

    def __len__(self) -> int:
        return self.groups + len(self.group)

    @property
    def latencies(self) -> Integers:
        """Latencies in each cell, int64 (cells)."""
        return np.ones(len(self.group), np.int64) if self.count is None else self.count

    def where(self, wanted: pa.Array) -> Histograms:
        """Return the groups for which `wanted` (bool) is true."""
        there = wanted.to_numpy(zero_copy_only=False)
        if there.all():
            return self
        cells = there[self.group]
        return Histograms(
            int(there.sum()),
            {name: key.filter(wanted) for name, key in self.keys.items()},
            self.figures[:, there],
            self.least[there],
            self.most[there],
            (np.cumsum(there) - 1)[self.group[cells]],
            self.bucket[cells],
            None if self.count is None else self.count[cells],
            self.is_ordered,
        )

    def by(self, columns: Iterable[str]) -> Histograms:
        """Return one group for all that are equal in these columns (null equals null), its cells by bucket."""
        return _gathered([self], columns)

    def ordered(self) -> Histograms:
        """Return the groups in the order of their keys, nulls last, and the cells by group and bucket."""
        if self.is_ordered or self.groups < 2:
            return self
        by = [(name, "ascending") for name in self.keys]
        order = pc.sort_indices(pa.table(self.keys), sort_keys=by).to_numpy()
        new = np.empty(self.groups, np.int64)
        new[order] = np.arange(self.groups)
        keys = {name: key.take(pa.array(order)) for name, key in self.keys.items()}
        return replace(_renumbered([self], [new], keys, self.groups), is_ordered=True)

    def counts(self) -> Integers:
        """Return the number of latencies of each group."""
        return np.bincount(self.group, self.count, self.groups).astype(np.int64)

    def percentiles(self, shares: Sequence[int]) -> Integers:
        """Return percentiles (ns; shares, groups); any number where a group has no latency. Groups must be ordered.

        Each is the middle of the bucket that holds the nearest rank, not below the group's smallest latency and not
        above its largest.

        Args:
            shares: the quantiles in parts of ten thousand.
        """
        if not len(self.group):
            return np.zeros((len(shares), self.groups), np.int64)
        counts = self.counts()
        rank = (counts * np.array(shares)[:, np.newaxis] + 9_999) // 10_000
        before = np.cumsum(counts) - counts
        reached = np.cumsum(self.latencies)
        cell = np.minimum(np.searchsorted(reached, before + rank), len(reached) - 1)
        return np.clip(middle_of(self.bucket[cell]), self.least, self.most)


def of_rows(keys: dict[str, pa.Array], latency_ns: Integers, figures: Integers) -> Histograms:
    """Return a group for each row.

    Args:
        keys: columns that name its group.
        latency_ns: int64 (rows), below zero where there is none.
        figures: bool (figures, rows), the counts that it adds to.
    """
    row = np.flatnonzero(latency_ns >= 0)
    least = np.where(latency_ns >= 0, latency_ns, NEVER)
    bucket = bucket_of(latency_ns[row])
    return Histograms(len(latency_ns), keys, figures, least, np.maximum(latency_ns, -1), row, bucket, None)


def fold(parts: Sequence[Histograms]) -> Histograms:
    """Return several histograms with the same keys as one."""
    return _gathered(parts, parts[0].keys)


def encoded(column: pa.Array) -> tuple[Integers, pa.Array]:
    """Return the positions of values among the distinct ones (-1 for null), and these."""
    made = column.dictionary_encode()
    position = made.indices.fill_null(-1) if made.null_count else made.indices
    return position.to_numpy().astype(np.int64), made.dictionary


def _gathered(parts: Sequence[Histograms], columns: Iterable[str]) -> Histograms:
    """Return one group for all of the parts that are equal in these columns."""
    keys = {name: pa.concat_arrays([part.keys[name] for part in parts]) for name in columns}
    ends = np.cumsum([part.groups for part in parts])
    new, groups = _numbered(list(keys.values()), int(ends[-1]))
    first = np.empty(groups, np.int64)
    first[new[::-1]] = np.arange(len(new) - 1, -1, -1)
    keys = {name: key.take(pa.array(first)) for name, key in keys.items()}
    return _renumbered(parts, np.split(new, ends[:-1]), keys, groups)


def _renumbered(
    parts: Sequence[Histograms], new: Sequence[Integers], keys: dict[str, pa.Array], groups: int
) -> Histograms:
    """Return `groups` groups of these keys; `new[p][g]` is the one for group g of part p."""
    figures = np.zeros((len(parts[0].figures), groups), np.int64)
    least, most = np.full(groups, NEVER), np.full(groups, -1)
    for part, number in zip(parts, new, strict=True):
        for total, figure in zip(figures, part.figures, strict=True):
            some = np.flatnonzero(figure)
            np.add.at(total, number[some], figure[some].astype(np.int64))
        np.minimum.at(least, number, part.least)
        np.maximum.at(most, number, part.most)
    code = np.concatenate([number[p.group] * BUCKETS + p.bucket for p, number in zip(parts, new, strict=True)])
    count = np.concatenate([part.latencies for part in parts]) if len(parts) > 1 else parts[0].count
    code, count = _summed(code, count)
    return Histograms(groups, keys, figures, least, most, code // BUCKETS, code % BUCKETS, count)


def _numbered(columns: Sequence[pa.Array], rows: int) -> tuple[Integers, int]:
    """Number the distinct rows from 0: return the number of each row, and the count of distinct ones."""
    code, codes = np.zeros(rows, np.int64), 1
    for column in columns:
        position, values = encoded(column)
        if codes * (len(values) + 1) > NEVER:
            code, codes = _dense(code, codes)
        code = code * (len(values) + 1) + position + 1
        codes *= len(values) + 1
    return _dense(code, codes)


def _dense(code: Integers, codes: int) -> tuple[Integers, int]:
    """Number the distinct ones of codes that are below `codes`."""
    if codes > 4 * len(code):
        position, values = encoded(pa.array(code))
        return position, len(values)
    there = np.zeros(codes, np.bool_)
    there[code] = True
    return (np.cumsum(there) - 1)[code], int(there.sum())


def _summed(code: Integers, count: Integers | None) -> tuple[Integers, Integers]:
    """Return the distinct codes, ascending, and the sum of the counts of each."""
    if count is None:
        least = code.min(initial=NEVER)
        if len(code) and code.max() - least < DENSE * len(code):
            counts = np.bincount(code - least)
            found = np.flatnonzero(counts)
            return found + least, counts[found]
        return np.unique(code, return_counts=True)
    if not len(code):
        return code, count
    order = np.argsort(code, kind="stable")  # parts are in order already: this merges them
    code = code[order]
    first = np.flatnonzero(np.concatenate([[True], code[1:] != code[:-1]]))
    return code[first], np.add.reduceat(count[order], first)
