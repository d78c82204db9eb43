"""Opening and scanning the folders that `dissect` and `analyze` write.

Everything here works by batches: a scan holds some batches, a group its groups, a ranking its best rows,
whatever the size of the tables. A table that is missing has no rows, a column that is missing has nulls: older
and newer folders are read alike.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from amqpscope import spec
from amqpscope.dissector.fields.columns import TYPES
from amqpscope.dissector.places import Place, arrow, files, place
from amqpscope.dissector.tables import formats
from amqpscope.dissector.tables.output import NOTE, digest
from amqpscope.errors import Error, MissingError, reason

if TYPE_CHECKING:
    import pyarrow.dataset as ds

DISSECTED, ANALYZED = (
    tuple(name for name, table in spec.tables().items() if table.written_by == by) for by in ("dissect", "analyze")
)
FRAMES = ("amqp091_frames", "stream_frames", "amqp010_frames")

_BATCH_ROWS = 1 << 17
_MOST_PARTIAL_ROWS = 1 << 20
_TIE_BREAKERS = (
    "connection_id",
    "channel",
    "channel_epoch",
    "publish_seq",
    "delivery_tag",
    "request_ts_ns",
    "frame_no",
)


class NotTablesError(Error, ValueError):
    """What was given is not a folder of tables; the message says which and what was looked for."""


class Tables:
    """The tables of one analysis, from one folder or two.

    Attributes:
        dissected: Folder that `dissect` wrote, or None.
        analyzed: Folder that `analyze` wrote, or None.
        computed: Tables that follow from statistics and that the folder lacks, once they were asked for.
    """

    def __init__(self, dissected: Place | None = None, analyzed: Place | None = None) -> None:
        self.dissected = dissected
        self.analyzed = analyzed
        self.computed: dict[str, pa.Table] = {}
        self._datasets: dict[str, ds.Dataset | None] = {}
        self._columns: dict[str, frozenset[str]] = {}

    def dataset(self, name: str) -> ds.Dataset | None:
        """Return the table as a dataset, or None when it is missing or has no parts.

        Columns that are declared and that its parts lack are there, with nulls.

        Raises:
            NotTablesError: A part cannot be read.
        """
        if name not in self._datasets:
            folder = self.analyzed if name in ANALYZED else self.dissected or self.analyzed
            found = _open(folder / name) if folder else None
            self._columns[name] = frozenset(found.schema.names if found is not None else ())
            self._datasets[name] = _completed(found, name) if found is not None else None
        return self._datasets[name]

    def columns(self, name: str) -> frozenset[str]:
        """Return the columns that the parts of a table have; none when it is missing."""
        self.dataset(name)
        return self._columns[name]

    def has(self, name: str) -> bool:
        """Return whether the table is there, with or without rows."""
        return self.dataset(name) is not None

    def rows(self, name: str, where: pc.Expression | None = None) -> int:
        """Return the number of rows, of all or of those that a filter lets pass."""
        dataset = self.dataset(name)
        try:
            return int(dataset.count_rows(filter=where)) if dataset is not None else 0
        except (pa.ArrowException, KeyError) as error:
            raise NotTablesError(f"table {name} cannot be read: {reason(error)}") from error

    def unfinished(self) -> list[tuple[Place, str]]:
        """Return the folders whose writing was interrupted, and the command that writes them.

        Tables of a directory that is followed are as complete as it is.
        """
        folders = ((self.dissected, "dissect"), (self.analyzed, "analyze"))
        notes = [(folder, command, _note(folder)) for folder, command in folders if folder]
        stopped = (n for n in notes if n[2].get("complete") is False and not n[2].get("followed"))
        return [(folder, command) for folder, command, _ in stopped]

    def goes_on(self) -> bool:
        """Return whether the statistics are of a directory that is followed, and has not come to its end."""
        note = _note(self.analyzed) if self.analyzed else {}
        return bool(note.get("followed")) and note.get("complete") is False

    def outdated(self) -> bool:
        """Return whether the statistics were made of other tables than those that are there now."""
        if not (self.dissected and self.analyzed):
            return False
        made_of, now = _note(self.analyzed).get("made_of"), digest(self.dissected)
        return None not in (made_of, now) and made_of != now

    def scan(
        self, name: str, columns: Sequence[str] | Mapping[str, pc.Expression], where: pc.Expression | None = None
    ) -> Iterator[pa.Table]:
        """Yield the table in batches, each a `pyarrow.Table` of the columns asked for, in no particular order."""
        dataset = self.dataset(name)
        if dataset is None:
            return
        if not isinstance(columns, Mapping):
            columns = {c: pc.field(c) for c in columns}
        try:
            for batch in dataset.to_batches(
                columns=dict(columns), filter=where, batch_size=_BATCH_ROWS, batch_readahead=2, fragment_readahead=1
            ):
                if batch.num_rows:
                    yield pa.Table.from_batches([batch])
        except (pa.ArrowException, KeyError) as error:
            raise NotTablesError(f"table {name} cannot be read: {reason(error)}") from error

    def top(
        self,
        name: str,
        columns: Sequence[str] | Mapping[str, pc.Expression],
        by: str,
        most: int,
        where: pc.Expression | None = None,
    ) -> list[dict[str, Any]]:
        """Return the rows with the largest values of a column, largest first, ties in the order of identity."""
        best: pa.Table | None = None
        dataset = self.dataset(name)
        if dataset is None:
            return []
        told_apart = [c for c in _TIE_BREAKERS if c in dataset.schema.names]
        asked = {c: pc.field(c) for c in [*columns, by, *told_apart]}
        if isinstance(columns, Mapping):
            asked |= columns
        ties = [(c, "ascending") for c in told_apart]
        valid = asked[by].is_valid()
        for batch in self.scan(name, asked, valid if where is None else valid & where):
            if best is not None and best.num_rows == most:
                batch = batch.filter(pc.greater_equal(batch[by], best[by][-1]))  # noqa: PLW2901 - few are left
            both = batch if best is None else pa.concat_tables([best, batch])
            order = pc.select_k_unstable(both, k=most, sort_keys=[(by, "descending"), *ties])
            best = both.take(order)
        return best.select(list(dict.fromkeys([*columns, by]))).to_pylist() if best is not None else []

    def group(
        self,
        name: str,
        keys: Sequence[str],
        aggregates: Mapping[str, tuple[str, str]],
        columns: Mapping[str, pc.Expression] | None = None,
        where: pc.Expression | None = None,
    ) -> pa.Table:
        """Return aggregates per group; memory grows with the number of groups only.

        Args:
            name: Table.
            keys: Columns to group by.
            aggregates: Name of the result to (column, `sum` | `min` | `max` | `count`); `count` counts rows.
            columns: Columns computed for this, by name, beside those of the table.
            where: Filter.

        Returns:
            One row per group, ordered by the keys.
        """
        needed = {c: pc.field(c) for c in [*keys, *(c for c, how in aggregates.values() if how != "count")]}
        needed.update(columns or {})
        first = [([], "count_all") if how == "count" else (c, how) for c, how in aggregates.values()]
        again = [(out, "sum" if how == "count" else how) for out, (_, how) in aggregates.items()]
        names = [*keys, *aggregates]
        partial: list[pa.Table] = []
        held = 0
        for batch in self.scan(name, needed, where):
            partial.append(_named(batch.group_by(keys, use_threads=False).aggregate(first), names, len(keys)))
            held += partial[-1].num_rows
            if held > _MOST_PARTIAL_ROWS:
                partial = [_named(_together(partial, keys, again), names, len(keys))]
                held = partial[0].num_rows
        if not partial:
            return pa.table({n: pa.nulls(0, pa.int64()) for n in names})
        result = _named(_together(partial, keys, again), names, len(keys))
        return result.sort_by([(k, "ascending") for k in keys]) if keys else result


def plausible(column: str) -> pc.Expression:
    """Return a filter for times and durations from 0 to 2^62 ns (1970 to 2116); others come from broken clocks."""
    value = pc.field(column)
    return (value >= 0) & (value < 1 << 62)


def locate(paths: Sequence[Place]) -> Tables:
    """Return the tables that one or two folders belong to.

    A folder of `analyze` names that of `dissect` in its note; beside a folder of `dissect` that of `analyze` is
    looked for, in it and next to it, by the same note.

    Raises:
        NotTablesError: A path is no folder of tables, or two are of the same kind.
        MissingError: A folder is not there.
        FormatError: Another release wrote a folder, or two releases wrote two.
        OSError: A folder cannot be read.
    """
    dissected: Place | None = None
    analyzed: Place | None = None
    for path in paths:
        if not path.exists():
            raise MissingError(f"no such folder: {path}")
        if not path.is_dir():
            raise NotTablesError(f"not a folder of tables: {path} (captures go through `amqpscope dissect` first)")
        is_dissected = _holds(path, DISSECTED[1:])
        is_analyzed = _holds(path, ANALYZED)
        if not (is_dissected or is_analyzed):
            raise NotTablesError(f"no tables of `amqpscope dissect` or `analyze` in {path}")
        if (is_dissected and dissected) or (is_analyzed and analyzed):
            raise NotTablesError(f"two folders of the same kind: {dissected or analyzed} and {path}")
        dissected = path if is_dissected else dissected
        analyzed = path if is_analyzed else analyzed
    if analyzed and not dissected:
        dissected = _noted(analyzed)
    elif dissected and not analyzed:
        near = (p for folder in (dissected, dissected.absolute().parent) for p in _folders(folder))
        analyzed = next((p for p in near if _holds(p, ANALYZED) and _same(_noted(p), dissected)), None)
    notes = [(folder, _note(folder)) for folder in (dissected, analyzed) if folder]
    for each in notes:
        formats.check(*each)
    if len(notes) > 1:
        formats.check_same(*notes)
    return Tables(dissected, analyzed)


def _noted(folder: Place) -> Place | None:
    """Return the folder of `dissect` that the note in a folder of `analyze` names, if it is there."""
    named = _note(folder).get("tables")
    if not isinstance(named, str) or "\0" in named:
        return None
    for candidate in (folder / named, place(named)):  # an absolute path stays as it is
        if _holds(candidate, DISSECTED[1:]):
            return candidate
    return None


def _note(folder: Place) -> dict[str, Any]:
    """Return the note in a folder; empty when there is none that can be read.

    `complete` says whether the writing of the folder came to an end. In that of `analyze` `tables` names the folder of
    `dissect` that it was made from, and `made_of` is the digest of that folder's note.
    """
    try:
        note = json.loads((folder / NOTE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return note if isinstance(note, dict) else {}


def _same(one: Place | None, other: Place) -> bool:
    return one is not None and one.resolve() == other.resolve()


def _folders(folder: Place) -> list[Place]:
    try:
        return sorted(p for p in folder.iterdir() if p.is_dir())
    except OSError:
        return []


def _holds(folder: Place, names: Sequence[str]) -> bool:
    return any((folder / name).is_dir() for name in names)


def _open(folder: Place) -> ds.Dataset | None:
    if not folder.is_dir():
        return None
    import pyarrow.dataset as ds  # noqa: PLC0415 - with pandas it takes 0.3 s, and a summary needs none

    # Names that begin with a dot or underscore are parts being written, and notes.
    parts = sorted(p for p in files(folder) if p.suffix in {".parquet", ".arrow"} and p.name[0] not in "._")
    if not parts:
        return None
    kind: Any = "ipc"
    if parts[0].suffix == ".parquet":  # whole column chunks are not kept: they can be most of the memory
        kind = ds.ParquetFileFormat(default_fragment_scan_options=ds.ParquetFragmentScanOptions(pre_buffer=False))
    try:
        found = [arrow(p) for p in parts if p.suffix == parts[0].suffix]
        return ds.dataset([path for path, _ in found], filesystem=found[0][1], format=kind)
    except (pa.ArrowException, OSError) as error:
        raise NotTablesError(f"{folder} cannot be read: {reason(error)}") from error


def _completed(dataset: ds.Dataset, name: str) -> ds.Dataset:
    """Return the dataset with the columns that are declared and that it lacks."""
    table = spec.tables()[name]
    table = table.with_methods(spec.load(table.methods_of)) if table.methods_of else table
    lacking = [pa.field(c.name, TYPES[c.type]) for c in table.columns if c.name not in dataset.schema.names]
    return dataset.replace_schema(pa.schema([*dataset.schema, *lacking])) if lacking else dataset


def _named(table: pa.Table, names: Sequence[str], keys: int) -> pa.Table:
    """Return the aggregated columns under their own names; pyarrow puts the keys first."""
    assert table.num_columns == len(names) >= keys
    return table.rename_columns(list(names))


def _together(partial: list[pa.Table], keys: Sequence[str], again: list[tuple[str, str]]) -> pa.Table:
    return pa.concat_tables(partial).group_by(list(keys), use_threads=False).aggregate(again)
