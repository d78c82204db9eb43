"""Relations computed in this process, of the tables of a folder of statistics or in memory."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import pyarrow as pa
import pyarrow.compute as pc

from amqpscope.dissector.places import Place
from amqpscope.pipelines.findings import ASKED, evaluate
from amqpscope.pipelines.folder import parts, read_parts, suffices, weight
from amqpscope.pipelines.model.events import decoded
from amqpscope.pipelines.model.walk import conform, schema
from amqpscope.pipelines.relations import database, routes
from amqpscope.pipelines.relations.texts import (
    CHANGES,
    MADE,
    SOURCES,
    begins_with,
    needed,
    read_by_rules,
    tables_of,
    texts,
)
from amqpscope.spec.findings import Rule

if TYPE_CHECKING:
    import duckdb

BY_CONNECTION = ("changes", "time_spent", "occupancy", "tcp_causes", "paces")
"""Relations of which no row needs rows of several connections, and which join or sort as many rows as there are."""
SHARE = 1 << 20
"""Rows of statistics from which the rows of such a relation are computed at a time."""
BEGIN = re.compile(r"^(with|select)\b", re.MULTILINE)
"""Where a text begins, after what it says of itself."""
AT_A_TIME = 1 << 17
"""Rows of a relation that are in memory besides the database."""
SECOND = 1_000_000_000
FINDINGS = ("findings", "rules")
"""Made by rules, of all others."""
MOST_BUCKETS = 3_600
"""Buckets of time of a subject at most: a second, doubled until there are no more."""


NAMES = ("routes", "routed", *texts(), *FINDINGS)
"""All relations that are tables of statistics, in the order in which they are computed."""


def compute(given: Mapping[str, pa.Table], wanted: Iterable[str] | None = None) -> Iterator[tuple[str, pa.Table]]:
    """Yield relations with their names, in the declared columns.

    Args:
        given: the statistics; those that are missing count as empty.
        wanted: names of relations; None: all.
    """
    plan = Plan.of(wanted)
    tables = {name: given.get(name, schema(name).empty_table()) for name in plan.sources}
    with database.connect(rows=sum(map(len, tables.values()))) as connection:
        for name, rows in tables.items():
            database.view(connection, name, rows, schema(name))
        yield from _whole(_computed(connection, plan))


def of_folder(
    folder: Place, wanted: Iterable[str] | None = None, rules: Sequence[Rule] | None = None
) -> Iterator[tuple[str, pa.Table]]:
    """Yield relations of a folder of statistics, as `compute` does.

    Args:
        folder: what `analyze` wrote.
        wanted: names of relations; None: all.
        rules: of findings; None: ours.

    Raises:
        ReadError: a table cannot be read.
    """
    return _whole(in_parts(folder, wanted, rules))


def in_parts(
    folder: Place, wanted: Iterable[str] | None = None, rules: Sequence[Rule] | None = None
) -> Iterator[tuple[str, pa.Table]]:
    """Do as `of_folder`, with some rows of a relation at a time."""
    plan = Plan.of(wanted, rules)
    with opened(folder, plan.sources) as connection:
        yield from _computed(connection, plan, rules)


def _whole(found: Iterable[tuple[str, pa.Table]]) -> Iterator[tuple[str, pa.Table]]:
    """Yield the rows of each relation together."""
    for name, each in groupby(found, itemgetter(0)):
        yield name, pa.concat_tables(rows for _, rows in each)


@contextmanager
def opened(folder: Place, names: Iterable[str]) -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield a database with tables of a folder of statistics; those that are missing are empty.

    Args:
        folder: what `analyze` wrote.
        names: of the tables.

    Raises:
        ReadError: a table cannot be read.
    """
    viewed = folder if isinstance(folder, Path) and database.may_view(folder) else None
    local = {name: [file for file in parts(folder, name) if isinstance(file, Path)] if viewed else [] for name in names}
    rows = sum(weight(folder, name, ())[0] for name in local)
    with database.connect(viewed, rows) as connection:
        for name, files in local.items():
            suffices(folder, name, schema(name).names)
            if files:
                database.view(connection, name, files, schema(name))
                continue
            read = map(decoded, read_parts(folder, name, schema(name).names))
            whole = pa.concat_tables([schema(name).empty_table(), *read], promote_options="default")
            database.view(connection, name, whole, schema(name))
        yield connection


class Plan(NamedTuple):
    """What is computed for some relations.

    Attributes:
        asked: the names of the relations.
        run: texts to run, in order.
        read: all tables that these, Python and rules read.
    """

    asked: set[str]
    run: tuple[str, ...]
    read: set[str]

    @classmethod
    def of(cls, wanted: Iterable[str] | None, rules: Sequence[Rule] | None = None) -> Self:
        """Return the plan; the arguments are those of `of_folder`."""
        asked = set(NAMES if wanted is None else wanted)
        read: set[str] = set()
        if asked & {*FINDINGS}:
            read = {*ASKED, *read_by_rules()} if rules is None else {*SOURCES, *texts()}
        run = needed(asked | read)
        read = read.union(*(tables_of(texts()[name]) for name in run))
        if (asked | read) & {*MADE}:
            read = read.union(*(tables_of(each) for each in (ENDPOINTS, SETUP, KEYS, QUEUES)))
        return cls(asked, run, read)

    @property
    def sources(self) -> list[str]:
        """The statistics among what is read."""
        return [name for name in SOURCES if name in self.read]


def _computed(
    connection: duckdb.DuckDBPyConnection, plan: Plan, rules: Sequence[Rule] | None = None
) -> Iterator[tuple[str, pa.Table]]:
    asked, run, read = plan
    if "endpoints" in plan.sources:
        database.merge_brokers(connection)
    none = database.empty(connection)
    for name in run:
        if begins_with(name) in none:
            none.add(name)
            database.keep_none(connection, name, schema(name))
        elif name in read:
            _keep(connection, name)
        shares = [f"from {name}"] if name in none | read else _in_shares(connection, name)
        for text in shares if name in asked else ():
            reader = connection.sql(text).to_arrow_reader(AT_A_TIME)
            yield name, declared(name, reader.schema.empty_table())
            for batch in reader:
                yield name, declared(name, pa.Table.from_batches([batch]))
        if name == CHANGES and (asked | read) & {*MADE}:
            for made, rows in _made(connection).items():
                database.keep(connection, made, rows)
                if made in asked:
                    yield made, rows
    if asked & {*FINDINGS}:
        yield from evaluate(partial(database.rows, connection), rules, database.empty(connection)).items()


def _keep(connection: duckdb.DuckDBPyConnection, name: str) -> None:
    """Keep the rows of a relation, which other texts read, as a table."""
    for number, text in enumerate(_in_shares(connection, name)):
        database.run(connection, f"insert into {name} {text}" if number else f"create table {name} as {text}")


def _in_shares(connection: duckdb.DuckDBPyConnection, name: str) -> list[str]:
    """Return the text of a relation; of BY_CONNECTION several, each for a share of the connections.

    What windows over moments need lies in memory: it is bounded by the size of a share, as far as connections are many.
    """
    text = database.tolerant(texts()[name])
    read = [each for each in tables_of(text) if name in BY_CONNECTION and each in SOURCES]
    count = 1 + sum(len(connection.table(each)) for each in read) // SHARE
    if count == 1:
        return [text]
    of = "{} as not materialized (select * from main.{} where connection_id % {} = {})"
    shares = [", ".join(of.format(each, each, count, number) for each in read) for number in range(count)]
    begins = BEGIN.search(text)
    assert begins is not None
    head, rest = text[: begins.start()], text[begins.end() :]
    return [f"{head}with {share}{',' if begins[0] == 'with' else ' select'}{rest}" for share in shares]


def declared(name: str, rows: pa.Table) -> pa.Table:
    """Return what a text yields as rows of its table.

    Raises:
        ValueError: a column is missing or is not declared.
    """
    wanted = schema(name)
    if set(rows.column_names) != set(wanted.names):
        odd = sorted(set(rows.column_names) ^ set(wanted.names))
        raise ValueError(f"relation {name}: column {odd[0]} is not in both its text and its declaration")
    return conform(name, {each: rows[each] for each in wanted.names}, len(rows))


def _made(connection: duckdb.DuckDBPyConnection) -> dict[str, pa.Table]:
    """Return the tables that Python makes; of operations some are in memory at a time."""
    endpoints, keys, queues = (connection.sql(each).to_arrow_table() for each in (ENDPOINTS, KEYS, QUEUES))
    return python_tables(endpoints, connection.sql(SETUP).to_arrow_reader(AT_A_TIME >> 3), keys, queues)


ENDPOINTS = "select first_ts_ns, last_ts_ns from endpoints where server is not null"
SETUP = """
    select server, vhost, done_ts_ns, method, passive, exchange, exchange_type, to_exchange, source_exchange, queue,
        routing_key, arguments, packet
    from changes where done_ts_ns is not null
    order by done_ts_ns nulls first, connection_id nulls first, frame_no nulls first"""
KEYS = """
    select n.server, coalesce(n.vhost, '') as vhost, p.exchange, p.routing_key
    from published p join endpoints n on p.connection_id = n.connection_id
    where p.exchange is not null and p.routing_key is not null and n.server is not null
    group by n.server, coalesce(n.vhost, ''), p.exchange, p.routing_key"""
QUEUES = """
    with named as (
        select connection_id, queue from settlements group by connection_id, queue
        union all
        select connection_id, queue from rpcs group by connection_id, queue
    )
    select n.server, coalesce(n.vhost, '') as vhost, q.queue
    from named q join endpoints n on q.connection_id = n.connection_id
    where q.queue is not null and n.server is not null
    group by n.server, coalesce(n.vhost, ''), q.queue"""
"""What `python_tables` takes, of either engine."""


def python_tables(
    endpoints: pa.Table, setup: Iterable[pa.RecordBatch], keys: pa.Table, queues: pa.Table
) -> dict[str, pa.Table]:
    """Return the tables that Python makes (`MADE`).

    Args:
        endpoints: what ENDPOINTS selects; the others likewise.
        setup: SETUP.
        keys: KEYS.
        queues: QUEUES.
    """
    found = routes.bindings(setup)
    routed = routes.routed_table(found, _tuples(keys), _tuples(queues))
    return {"routes": routes.routes_table(found), "routed": routed, "clock": clock(endpoints)}


def _tuples(rows: pa.Table) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in rows.columns), strict=True))


def clock(endpoints: pa.Table) -> pa.Table:
    """Return the width of buckets of time: one row, `id` 1, `first_ts_ns`, `last_ts_ns`, `width_ns`."""
    first, last = pc.min(endpoints["first_ts_ns"]).as_py() or 0, pc.max(endpoints["last_ts_ns"]).as_py() or 0
    width = SECOND
    while (last - first) // width >= MOST_BUCKETS:
        width *= 2
    columns = {"id": [1], "first_ts_ns": [first], "last_ts_ns": [last], "width_ns": [width]}
    return pa.table({name: pa.array(values, pa.int64()) for name, values in columns.items()})
