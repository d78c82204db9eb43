"""Names as numbers, for kernels: strings do not enter them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from amqpscope.pipelines.model.walk import known

NONE, NO_NAME = -1, 0
"""Numbers of null and of an empty name; other names have numbers from 1 on."""
NAMES_AT_MOST = 1 << 16
"""Names beyond which unused ones are forgotten."""


class Names:
    """Names, by number; numbers stay."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._next = NO_NAME + 1
        self._room = NAMES_AT_MOST

    def numbers(self, texts: pa.Array) -> Any:
        """Return the numbers of names, NO_NAME for an empty one, -1 for null."""
        found = texts.dictionary_encode()
        known_as = np.empty(len(found.dictionary) + 1, np.int64)
        known_as[-1] = NONE
        for place, name in enumerate(found.dictionary.to_pylist()):
            known_as[place] = self._number(name) if name else NO_NAME
        return known_as[found.indices.fill_null(-1).to_numpy(zero_copy_only=False)]

    def _number(self, name: str) -> int:
        number = self._numbers.setdefault(name, self._next)
        self._next += number == self._next
        return number

    def take(self, numbers: Any) -> pa.Array:
        """Return names by number, null for -1."""
        wanted = np.unique(numbers[numbers > NO_NAME])
        if not len(wanted):
            return pa.nulls(len(numbers), pa.string())
        needed = set(wanted.tolist())
        names = {number: name for name, number in self._numbers.items() if number in needed}
        texts = pa.array([names[number] for number in wanted.tolist()], pa.string())
        place = np.where(numbers > NO_NAME, np.searchsorted(wanted, numbers), NONE)
        return texts.take(known(place))

    def prune(self, *references: Any) -> None:
        """Forget names that none of these arrays refers to, once there are many."""
        if len(self._numbers) > self._room:
            needed = set(np.unique(np.concatenate(references)).tolist())
            self._numbers = {name: number for name, number in self._numbers.items() if number in needed}
            self._room = max(NAMES_AT_MOST, 2 * len(self._numbers))

    def table(self) -> pa.Table:
        """Return all names, for `put_back`."""
        columns = {"name": list(self._numbers), "number": list(self._numbers.values())}
        return pa.table(columns, pa.schema([("name", pa.string()), ("number", pa.int64())]))

    def put_back(self, names: pa.Table) -> None:
        """Restore what `table` returned."""
        self._numbers = dict(zip(names["name"].to_pylist(), names["number"].to_pylist(), strict=True))
        self._next = max(self._numbers.values(), default=NO_NAME) + 1
