"""Statistics in a notebook: a function for each table of `analyze`, from tables of `dissect`.

Given pyarrow Tables, they walk in this process and return a pyarrow Table; given DataFrames, on Spark, and return a
DataFrame. Arguments are named after their tables: `frames` is `amqp091_frames`. `captures` says which captures have a
snap length: messages whose end it cuts then keep their times; `connections` has the addresses of rows; without
`anomalies` no gaps are known. Columns that a table lacks are null; a table that is left out has no rows.

Each raises a TypeError if one is missing, or some are pyarrow's and some are not, a ValueError if none is given, and a
TableError if one has the columns of another.

Only `analyze` knows whether `dissect` was given a time range, or was interrupted; here tables are taken as they are.
"""

# Declared functions have no body.
# mypy: disable-error-code="empty-body"

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

import pyarrow as pa

from amqpscope import spec
from amqpscope.errors import Error
from amqpscope.pipelines.model.walk import schema
from amqpscope.pipelines.model.when_read import completed, ends

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class TableError(Error, ValueError):
    """A function got another table than it expects; one line."""


Table = TypeVar("Table", pa.Table, "DataFrame")
F = TypeVar("F", bound="Callable[..., Any]")
HOUR_NS = 3_600_000_000_000
_NAMES = {"frames": "amqp091_frames"}
"""Tables whose arguments are not called as they are."""

__all__ = [
    "calls", "channel_errors", "commands", "confirms", "deaths", "endpoints", "failures", "flow_control", "gaps",
    "heartbeats", "latency_buckets", "latency_summary", "operations", "published", "relation", "rpcs",
    "settlements", "stream_credit", "stream_deliveries", "stream_metadata", "tcp_delays", "transits",
    "unconfirmed", "violations",
]  # fmt: skip


def _job(declared: F) -> F:
    """Return the function that is declared: it makes the table of its name, in this process or on Spark."""
    name, signature = declared.__name__, inspect.signature(declared)
    takes = _takes(name, signature)

    @functools.wraps(declared)
    def made(*tables: Any, **named: Any) -> Any:
        if not tables and not named:
            raise ValueError(takes)
        try:
            bound = signature.bind(*tables, **named).arguments
        except TypeError as error:
            raise TypeError(f"{takes}: {error}") from None
        given = {each: value for each, value in bound.items() if value is not None}
        window_ns = given.pop("window_ns", HOUR_NS)
        if not given:
            raise ValueError(takes)
        given = {_NAMES.get(each, each): rows for each, rows in given.items()}
        are_arrow = [isinstance(rows, pa.Table) for rows in given.values()]
        if any(are_arrow) and not all(are_arrow):
            raise TypeError(f"{name} takes pyarrow Tables or DataFrames, not both")
        for table, rows in given.items():
            _check(name, table, rows.column_names if isinstance(rows, pa.Table) else rows.columns)
        if not all(are_arrow):
            from amqpscope.pipelines.spark import jobs as jobs_on_spark  # noqa: PLC0415 - Spark is optional

            found = jobs_on_spark.job(name, given, window_ns)
        else:
            found = _summed(name, given) if name.startswith("latency_") else walked(name, given, window_ns)
        return _read(name, found, given.values())

    made.__doc__ = f"{declared.__doc__}\n\n{_arguments(signature)}"
    return cast("F", made)


def _takes(name: str, signature: inspect.Signature) -> str:
    """Return which tables a job takes, as a sentence."""
    tables = [each for each in signature.parameters.values() if each.name != "window_ns"]
    needed = [each.name for each in tables if each.default is each.empty]
    others = [each.name for each in tables if each.default is not each.empty]
    if not needed:
        return f"{name} needs one of {', '.join(others)}"
    return f"{name} needs {', '.join(needed)}" + (f", and takes {', '.join(others)}" if others else "")


def _arguments(signature: inspect.Signature) -> str:
    """Return what a docstring says of the arguments of a job."""
    found = ["Args:"]
    for name, each in signature.parameters.items():
        table = f"rows of the table `{_NAMES.get(name, name)}`"
        what = {"window_ns": "how far before a delivery to look for its publish (ns)"}.get(name, table)
        found.append(f"    {name}: {what}{'; None for none' if each.default is None else ''}.")
    return "\n".join(found)


@_job
def confirms(
    frames: Table,
    messages: Table,
    connections: Table,
    anomalies: Table | None = None,
    stream_frames: Table | None = None,
    captures: Table | None = None,
    amqp010_frames: Table | None = None,
    tcp_acks: Table | None = None,
) -> Table:
    """Return the table `confirms`: one row per publish in confirm mode, of any of the protocols."""


@_job
def settlements(
    frames: Table,
    messages: Table,
    connections: Table,
    anomalies: Table | None = None,
    captures: Table | None = None,
    amqp010_frames: Table | None = None,
    tcp_acks: Table | None = None,
) -> Table:
    """Return the table `settlements`: one row per delivery, pushed or got, and what settled it."""


@_job
def rpcs(
    frames: Table,
    connections: Table,
    anomalies: Table | None = None,
    stream_frames: Table | None = None,
    amqp010_frames: Table | None = None,
    tcp_acks: Table | None = None,
) -> Table:
    """Return the table `rpcs`: one row per synchronous request that asks for an answer, of either side."""


@_job
def commands(
    amqp010_frames: Table,
    messages: Table,
    connections: Table,
    anomalies: Table | None = None,
    captures: Table | None = None,
) -> Table:
    """Return the table `commands`: one row per command of AMQP 0-10, and when the other side completed it."""


@_job
def flow_control(
    frames: Table,
    messages: Table,
    connections: Table,
    anomalies: Table | None = None,
    stream_frames: Table | None = None,
    tcp_windows: Table | None = None,
    captures: Table | None = None,
    amqp010_frames: Table | None = None,
) -> Table:
    """Return the table `flow_control`: one row per interval in which one side made the other wait."""


@_job
def heartbeats(
    frames: Table, connections: Table, anomalies: Table | None = None, amqp010_frames: Table | None = None
) -> Table:
    """Return the table `heartbeats`: one row per connection of AMQP 0-9-1 or 0-10 and direction."""


@_job
def channel_errors(
    frames: Table, anomalies: Table | None = None, amqp010_frames: Table | None = None, connections: Table | None = None
) -> Table:
    """Return the table `channel_errors`: one row per channel, session or connection that was closed with an error."""


@_job
def stream_credit(stream_frames: Table, connections: Table, anomalies: Table | None = None) -> Table:
    """Return the table `stream_credit`: one row per frame that changes the credit of a subscription."""


@_job
def stream_deliveries(
    stream_frames: Table, connections: Table, anomalies: Table | None = None, messages: Table | None = None
) -> Table:
    """Return the table `stream_deliveries`: one row per chunk delivered, with its age and the consumer's lag."""


@_job
def stream_metadata(stream_frames: Table, connections: Table | None = None) -> Table:
    """Return the table `stream_metadata`: one row for each stream that an answer or an update of the broker names."""


@_job
def transits(
    messages: Table,
    window_ns: int = HOUR_NS,
    captures: Table | None = None,
    anomalies: Table | None = None,
    connections: Table | None = None,
    frames: Table | None = None,
    amqp010_frames: Table | None = None,
) -> Table:
    """Return the table `transits`: one row per delivery, with the publish that it came from."""


@_job
def failures(connections: Table) -> Table:
    """Return the table `failures`, of `connections`: one row per group of those that failed or ended badly alike."""


@_job
def endpoints(connections: Table) -> Table:
    """Return the table `endpoints`, of `connections`: one row per connection, with the names of its ends."""


@_job
def deaths(messages: Table, connections: Table | None = None) -> Table:
    """Return the table `deaths`, of `messages`: one row per delivery of a message that was dead-lettered before."""


@_job
def gaps(connections: Table, anomalies: Table, frames: Table | None = None) -> Table:
    """Return the table `gaps`: one row per place where bytes are missing, with frames (`amqp091_frames`) since when."""


@_job
def violations(anomalies: Table, connections: Table | None = None) -> Table:
    """Return the table `violations`, of `anomalies`: one row per thing that a peer sent and its protocol forbids."""


@_job
def calls(
    messages: Table, connections: Table | None = None, anomalies: Table | None = None, frames: Table | None = None
) -> Table:
    """Return the table `calls`, of `messages`; of the others it knows why a request has no answer."""


@_job
def tcp_delays(connections: Table, tcp_events: Table) -> Table:
    """Return the table `tcp_delays`: one row per time for which TCP delayed bytes."""


@_job
def operations(frames: Table, connections: Table | None = None) -> Table:
    """Return the table `operations`, of `amqp091_frames`: one row per method that sets something up or closes it."""


@_job
def published(messages: Table, connections: Table | None = None) -> Table:
    """Return the table `published`, of `messages`: the messages published, second by second."""


@_job
def unconfirmed(messages: Table, connections: Table | None = None) -> Table:
    """Return the table `unconfirmed`, of `messages`: one row per publish without a number."""


def relation(name: str, **statistics: Table) -> Table:
    """Return a table that follows from others by grouping and joining, such as `queues`.

    Args:
        name: one of `amqpscope.pipelines.relations.compute.NAMES`.
        statistics: tables of statistics, by name; those that are left out have no rows.

    Raises:
        TypeError: some are pyarrow Tables and some are not.
        ValueError: there is no relation of that name, or no table is given.
    """
    from amqpscope.pipelines.relations.compute import NAMES, compute  # noqa: PLC0415 - loads DuckDB

    if name not in NAMES:
        raise ValueError(f"no relation {name}; there are {', '.join(NAMES)}")
    if not statistics:
        raise ValueError(f"{name} needs tables of statistics")
    found: Any
    if all(isinstance(rows, pa.Table) for rows in statistics.values()):
        found = dict(compute(statistics, [name]))[name]
    elif any(isinstance(rows, pa.Table) for rows in statistics.values()):
        raise TypeError(f"{name} takes pyarrow Tables or DataFrames, not both")
    else:
        from amqpscope.pipelines.spark.relations import relations  # noqa: PLC0415 - Spark is optional

        given = dict(statistics)
        spark = next(iter(given.values())).sparkSession
        found = dict(relations(spark, given, [name]))[name]
    return cast("Table", _read(name, found, statistics.values()))


@_job
def latency_summary(
    confirms: Table | None = None,
    settlements: Table | None = None,
    rpcs: Table | None = None,
    transits: Table | None = None,
) -> Table:
    """Return the table `latency_summary`: percentiles by metric and group, of the metrics whose tables are given."""


@_job
def latency_buckets(
    confirms: Table | None = None,
    settlements: Table | None = None,
    rpcs: Table | None = None,
    transits: Table | None = None,
) -> Table:
    """Return the table `latency_buckets`: distributions by metric and group, of the metrics whose tables are given."""


def _read(name: str, rows: Any, given: Iterable[Any]) -> Any:
    """Return rows with the columns that they have where they are read."""
    if isinstance(rows, pa.Table):
        return completed(name, rows, ends(given))
    from amqpscope.pipelines.spark import when_read  # noqa: PLC0415 - Spark is optional

    return when_read.completed(name, rows, when_read.ends(given))


def _check(name: str, table: str, columns: Sequence[str]) -> None:
    """Check that these can be columns of a table: it has as many of them as any other table does.

    Raises:
        TableError: another table was given.
    """
    known = {each: len({*columns} & {*schema(each).names}) for each in spec.tables()}
    likely = max(known, key=lambda each: known[each])
    if known[table] < known[likely]:
        raise TableError(f"{name} expects the table `{table}` here, and got one with the columns of `{likely}`")


def walked(name: str, tables: Mapping[str, pa.Table], window_ns: int = HOUR_NS) -> pa.Table:
    """Return a table of statistics.

    Args:
        name: its name.
        tables: rows of tables of `dissect`, by their names.
        window_ns: how far before a delivery to look for its publish (ns).
    """
    from amqpscope.pipelines.run import kernels  # noqa: PLC0415 - nothing of it is needed for Spark
    from amqpscope.pipelines.run.engine import Engine  # noqa: PLC0415
    from amqpscope.pipelines.run.preparing import snapped  # noqa: PLC0415
    from amqpscope.pipelines.run.runner import NOTHING  # noqa: PLC0415

    found = [schema(name).empty_table()]
    compiled = kernels.begin(sum(rows.nbytes for rows in tables.values()))
    engine = Engine(compiled, window_ns, (name,), emit=lambda _, rows: found.append(rows))
    cut = snapped(tables["captures"]) if "captures" in tables else NOTHING
    for table, rows in tables.items():
        wanted = [column for column in engine.runner.columns(table) if column in rows.column_names]
        if wanted:
            engine.add(engine.runner.prepare(table, rows.select(wanted), cut))
    engine.finish()
    return pa.concat_tables(found)


def _summed(name: str, tables: Mapping[str, pa.Table]) -> pa.Table:
    """Return a table of latencies, from tables of pairs."""
    from amqpscope.pipelines.latencies.latency import Latencies  # noqa: PLC0415
    from amqpscope.pipelines.statistics import METRICS  # noqa: PLC0415

    latencies = Latencies()
    for table, rows in tables.items():
        latencies.add(METRICS[table], rows)
    return latencies.summary() if name == "latency_summary" else latencies.buckets()
