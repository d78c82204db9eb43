"""What is noted of a connection so that the numbers of its publishes can be derived: rows for `numbering_rules`."""

from __future__ import annotations

from collections.abc import Mapping
from mmap import mmap
from tempfile import TemporaryFile
from typing import IO, Any

import numpy as np

from amqpscope.pipelines.amqp091.confirms.numbering import derive
from amqpscope.pipelines.amqp091.confirms.numbering_rows import ALL_EPOCHS, entries, fold, widened
from amqpscope.pipelines.amqp091.confirms.numbering_rules import (
    BASE,
    CLIENT_CLOSES_ALL,
    CONFIRM,
    NONE,
    OVER,
    TURN,
    UNSURE,
)
from amqpscope.pipelines.model.events import CONNECTIONS, EV
from amqpscope.pipelines.model.store import SPILL, grown, release

KEEP = 1 << 16
"""Rows of a connection before its first publish without a certain number that are used."""

_CHANNELS = 1 << 16
_BEFORE_ALL = -(1 << 62)


def silences(matrix: Any) -> Any:
    """Return, for events that are connections, when they fell silent."""
    mine = matrix[matrix[:, EV.SOURCE] == CONNECTIONS]
    return np.where(mine[:, EV.NUMBER] >= 0, mine[:, EV.NUMBER], mine[:, EV.TS])


def _bases(count: int) -> Any:
    made = np.zeros((count, BASE.WIDTH), np.int64)
    made[:, BASE.AHEAD] = NONE
    return made


class Noted:
    """Rows of the open connection; beyond SPILL bytes they lie in a file."""

    def __init__(self, compiled: bool = False) -> None:
        self.compiled = compiled
        self.count = 0
        self._parts: list[Any] = []
        self._file: IO[bytes] | None = None
        """What is known from before the parts."""
        self._map: mmap | None = None
        self._bytes = 0
        """Parts in memory."""
        self._bases = _bases(16)
        self._epochs: dict[int, int] = {}
        """Number of each channel epoch by its key."""
        self._gap_ts = np.full(16, _BEFORE_ALL)
        self._missing = np.full(16, -1)
        self._gap = 0
        self._lost = 0
        self._silence = -1
        self._pending = 0
        """The last gaps behind which the client has sent nothing yet."""

    def add(self, matrix: Any, unsure: Any, given: Any = None) -> None:
        """Note events (see `entries`)."""
        found = entries(matrix, unsure, given)
        rows = found.rows
        silent = silences(matrix)
        if len(silent):
            self._silence = int(silent[-1])
        if len(rows):
            rows[:, TURN.GAP] += self._gap
            rows[:, TURN.LOST] += self._lost
            self._set_epochs(rows)
            self._append(rows)
        if found.begins >= 0:
            last = slice(self._gap + 1 - self._pending, self._gap + 1)
            self._missing[last] = widened(self._missing[last], found.begins == 1)
            self._pending = 0
        self._pending += found.pending
        self._gap_ts = grown(self._gap_ts, self._gap + 1 + len(found.gap_ts))
        self._gap_ts[self._gap + 1 : self._gap + 1 + len(found.gap_ts)] = found.gap_ts
        self._missing = grown(self._missing, self._gap + 1 + len(found.gap_ts))
        self._missing[self._gap + 1 : self._gap + 1 + len(found.gap_ts)] = found.missing
        self._gap += len(found.gap_ts)
        self._lost += len(found.lost)

    def _set_epochs(self, rows: Any) -> None:
        """Replace keys of channel epochs by numbers."""
        keys = rows[:, TURN.EPOCH]
        if (keys == keys[0]).all():
            keys, which = keys[:1], np.zeros(len(keys), np.int64)
        else:
            keys, which = np.unique(keys, return_inverse=True)
        numbers = [0 if key == ALL_EPOCHS else self._epochs.setdefault(key, len(self._epochs)) for key in keys.tolist()]
        rows[:, TURN.EPOCH] = np.array(numbers, np.int64)[which]
        have = len(self._bases)
        self._bases = grown(self._bases, len(self._epochs))
        self._bases[have:, BASE.AHEAD] = NONE

    def _append(self, rows: Any) -> None:
        self._parts.append(rows)
        self.count += len(rows)
        self._bytes += rows.nbytes
        if self._bytes > SPILL:
            self._file = self._file or TemporaryFile(prefix="amqpscope-")  # noqa: SIM115 - it goes with this
            self._write()

    def _write(self) -> None:
        assert self._file is not None
        for part in self._parts:
            self._file.write(part)
        self._parts, self._bytes = [], 0

    def rows(self) -> Any:
        """Return all rows (TURN), which the caller may write to."""
        if self._file is not None:
            self._write()
            self._file.flush()
            self._map = mmap(self._file.fileno(), 0)
            return np.frombuffer(self._map, np.int64).reshape(self.count, TURN.WIDTH)
        if len(self._parts) != 1:
            self._parts = [np.concatenate([np.zeros((0, TURN.WIDTH), np.int64), *self._parts])]
        return self._parts[0]

    def release(self, first: int, end: int) -> None:
        """Release rows of the file from memory, until they are used again."""
        width = 8 * TURN.WIDTH
        release(self._map, first * width, end * width)

    def first_unsure(self) -> int:
        """Return the row of the first publish without a certain number; -1 for none."""
        found = self.rows()[:, TURN.KIND] == UNSURE
        return int(np.argmax(found)) if found.any() else -1

    def fold(self, first: int) -> None:
        """Drop the rows before one of them, except for counts."""
        if first <= 0:
            return
        rows = self.rows()
        fold(rows[:first], self._bases)
        rows = rows[first:].copy()
        self._parts, self.count, self._bytes = [rows], len(rows), rows.nbytes
        self._file = self._map = None
        if len(self._epochs) > 2 * _CHANNELS:
            self._prune()

    def _prune(self) -> None:
        """Forget epochs that are over and have no rows."""
        last: dict[int, int] = {}
        for key in self._epochs:
            last[key >> 32] = max(key, last.get(key >> 32, key))
        rows = self.rows()
        used = np.zeros(len(self._epochs), bool)
        used[rows[rows[:, TURN.KIND] < CLIENT_CLOSES_ALL, TURN.EPOCH]] = True
        used[[self._epochs[key] for key in last.values()]] = True
        place = np.cumsum(used) - 1
        keys = np.array(list(self._epochs), np.int64)[used]
        self._epochs = {key: number for number, key in enumerate(keys.tolist())}
        bases = _bases(len(keys) + 16)
        bases[: len(keys)] = self._bases[: len(used)][used]
        self._bases = bases
        rows[:, TURN.EPOCH] = np.where(rows[:, TURN.KIND] < CLIENT_CLOSES_ALL, place[rows[:, TURN.EPOCH]], 0)

    def derive(self) -> Any:
        """End the connection: derive the numbers, and return the rows (see `numbering.derive`)."""
        over = np.full((1, TURN.WIDTH), -1, np.int64)
        over[0, [TURN.KIND, TURN.EPOCH]] = OVER, 0
        over[0, [TURN.TS, TURN.GAP, TURN.LOST]] = self._silence, self._gap, self._lost
        self._append(over)
        rows = self.rows()
        gaps = np.stack([self._gap_ts[: self._gap + 1], self._missing[: self._gap + 1]])
        derive(rows, self._bases[: len(self._epochs)], gaps, self.compiled, self.release)
        return rows

    def parts(self) -> dict[str, Any]:
        """Return the rows and what belongs to them, as parts of a state (`store.pack`)."""
        return {
            "rows": self.rows(),
            "bases": self._bases[: len(self._epochs)],
            "epochs": np.array(list(self._epochs), np.int64),
            "gap_ts": self._gap_ts[: self._gap + 1],
            "missing": self._missing[: self._gap + 1],
            "last": [self._lost, self._silence, self._pending],
        }

    def put_back(self, parts: Mapping[str, Any]) -> None:
        """Restore what `parts` returned."""
        self._bases, self._gap_ts, self._missing = parts["bases"], parts["gap_ts"], parts["missing"]
        self._gap = len(self._gap_ts) - 1
        self._append(parts["rows"])
        self._epochs = {key: number for number, key in enumerate(parts["epochs"].tolist())}
        self._lost, self._silence, self._pending = parts["last"]


def derive_whole(matrix: Any, unsure: Any, given: Any, compiled: bool) -> tuple[Any, Any, Any]:
    """Derive the numbers of publishes of connections that lie in one batch.

    Args:
        matrix: their events (EV), one connection after the other.
        unsure: see `entries`.
        given: see `entries`.
        compiled: whether kernels are compiled.

    Returns:
        Positions of publishes, their numbers (-1 for none derived here), how these are known (0 for none).
    """
    found = entries(matrix, unsure, given)
    identity = matrix[:, EV.CONNECTION]
    starts = np.flatnonzero(np.append(True, identity[1:] != identity[:-1]))
    ends = np.append(starts[1:], len(matrix)) - 1
    ordinal = np.repeat(np.arange(len(starts)), ends - starts + 1)
    # A connection begins with a gap before all times: the gap of another one does not count.
    gap, lost = (np.searchsorted(places, ends, "right") for places in (found.gaps, found.lost))
    begins = np.append(0, gap[:-1])
    gaps = np.stack([np.insert(found.gap_ts, begins, _BEFORE_ALL), np.insert(found.missing, begins, -1)])

    over = np.full((len(starts), TURN.WIDTH), -1, np.int64)
    over[:, TURN.KIND] = OVER
    mine = matrix[:, EV.SOURCE] == CONNECTIONS
    over[ordinal[mine], TURN.TS] = silences(matrix)
    over[:, TURN.GAP] = gap
    over[:, TURN.LOST] = lost
    rows = np.insert(found.rows, np.searchsorted(found.at, ends, "right"), over, axis=0)
    at = np.insert(found.at, np.searchsorted(found.at, ends, "right"), ends)
    of = ordinal[at]
    rows[:, TURN.GAP] += of

    # Channel epochs by number, those of a connection together.
    single = rows[:, TURN.KIND] < CLIENT_CLOSES_ALL
    key = rows[:, TURN.EPOCH]
    _, channel = np.unique(of[single] * _CHANNELS + (key[single] >> 32), return_inverse=True)
    epochs, number = np.unique(channel << 32 | (key[single] & 0xFFFFFFFF), return_inverse=True)
    owner = np.zeros(len(epochs), np.int64)
    owner[number] = of[single]
    rows[single, TURN.EPOCH] = number
    rows[~single, TURN.EPOCH] = np.searchsorted(owner, of[~single])
    rows[~single, TURN.NUMBER] = np.searchsorted(owner, of[~single], "right")
    _leave_out(rows, of)

    derive(rows, _bases(len(epochs)), gaps, compiled)
    publishes = rows[:, TURN.KIND] <= UNSURE
    return at[publishes], rows[publishes, TURN.NUMBER], rows[publishes, TURN.GIVEN]


def _leave_out(rows: Any, of: Any) -> None:
    """Leave out the confirms that `Noted` would have forgotten: more than KEEP rows before the first unsure publish."""
    if len(rows) <= KEEP:
        return
    unsure = np.flatnonzero(rows[:, TURN.KIND] == UNSURE)
    connections, first = np.unique(of[unsure], return_index=True)
    place = np.searchsorted(connections, of)
    known = place < len(connections)
    since = np.zeros(len(rows), np.int64)
    since[known] = unsure[first][place[known]] - KEEP
    rows[(rows[:, TURN.KIND] == CONFIRM) & (np.arange(len(rows)) < since), TURN.NUMBER] = 0
