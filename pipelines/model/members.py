"""Members of statistics: walks, the stages before them, and how their rows go on.

- Walks over connections see all events of one connection after the other, possibly after a stage that changes them.
- Walks over keys see rows that walks over connections yielded under a name of their own, grouped and sorted by columns.
- Of some rows, other connections decide a column at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from amqpscope.pipelines.model.events import Events
from amqpscope.pipelines.model.walk import Needs, Rows, Walk


class Stage(Protocol):
    """A stage before a walk, which changes the events that the walk reads."""

    @property
    def needs(self) -> Mapping[int, Needs]:
        """What it needs."""

    def feed(self, events: Events) -> Iterator[Events]:
        """Take a batch; yield events that are final, of this batch and of earlier ones."""
        ...

    def finish(self) -> Iterator[Events]:
        """Yield the events that are still held."""
        ...

    def take_out(self) -> bytes:
        """Return the state of the open connection, as a walk does."""
        ...

    def put_back(self, state: bytes) -> None:
        """Restore the state that `take_out` returned."""
        ...


class KeyedWalk(Protocol):
    """A pass over sorted rows that are not events."""

    def feed(self, rows: pa.Table) -> Iterator[Rows]:
        """Walk over a batch."""
        ...

    def finish(self) -> Iterator[Rows]:
        """Yield the rows of everything that is still outstanding."""
        ...


class KeyWalk(KeyedWalk, Protocol):
    """A pass over the rows of one key, which goes on later."""

    def take_out(self) -> bytes:
        """Return its state as versioned bytes, and reset the walk."""
        ...

    def put_back(self, state: bytes) -> None:
        """Restore the state that `take_out` returned."""
        ...


class OverConnections(NamedTuple):
    """A walk over connections.

    Attributes:
        walk: makes the walk; called with whether kernels run compiled.
        before: makes the stage before it; None for no stage.
    """

    walk: Callable[..., Walk]
    before: Callable[..., Stage] | None = None


class OverKeys(NamedTuple):
    """A walk over keys.

    Attributes:
        of: name of the rows that it walks over.
        tables: tables that it writes.
        schema: of these rows.
        key: columns that group rows.
        order: columns by which they are sorted, the key first.
        walk: makes it; called with whether kernels run compiled, `--transit-window`, and rows of `given`.
        given: name and schema of rows of walks over connections, of which it gets all; None for none.
        shares: whether walks over connections write its tables as well.
        alone: makes one for a single key, whose state can be taken out; None where that need not be.
        patience_ns: where there is none, how long after its last row a key is over, while more rows may come.
        still_needed: returns the rows of `given` that later rows may need; called with those, a time (ns) that later
            rows are not before, connections that go on, and those of rows that wait. None for all.
    """

    of: str
    tables: tuple[str, ...]
    schema: pa.Schema
    key: tuple[str, ...]
    order: tuple[str, ...]
    walk: Callable[[bool, int, pa.Table | None], KeyedWalk]
    given: tuple[str, pa.Schema] | None = None
    shares: bool = False
    alone: Callable[[bool], KeyWalk] | None = None
    patience_ns: int = 24 * 3_600_000_000_000
    still_needed: Callable[[pa.Table, int, pa.Array, pa.Array], pa.Table] | None = None


class Resolved(NamedTuple):
    """Rows of which other connections decide a column.

    Attributes:
        of: name of the rows that walks over connections yield for the decision.
        schema: of these rows.
        undecided: returns which rows (bool) need the decision.
        facts: makes the facts that decide, from all rows of that name.
        resolve: fills in the column.
    """

    of: str
    schema: pa.Schema
    undecided: Callable[[pa.Table], Any]
    facts: Callable[[pa.Table], pa.Table]
    resolve: Callable[[pa.Table, pa.Table], pa.Table]


@dataclass(frozen=True)
class Members:
    """What a protocol adds to statistics (`protocols.Statistics.walks`).

    Attributes:
        over_connections: walks over connections.
        over_keys: walks over keys.
        resolved: tables with a column that is decided at the end.
    """

    over_connections: tuple[OverConnections, ...] = ()
    over_keys: tuple[OverKeys, ...] = ()
    resolved: Mapping[str, Resolved] = field(default_factory=dict)
