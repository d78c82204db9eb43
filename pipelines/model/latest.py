"""The last rows before others, by sorting: no loop runs over rows."""

from __future__ import annotations

from typing import Any

import numpy as np


def last_before(keys: Any, at: Any, wanted: Any, before: Any, columns: list[int]) -> Any:
    """Return the last row with the wanted key before a position.

    Args:
        keys: int64, rows.
        at: their positions.
        wanted: rows of the same columns.
        before: their positions.
        columns: what must be equal.

    Returns:
        A row for each that is wanted, -1 for none.
    """
    both = np.concatenate([keys[:, columns], wanted[:, columns]])
    is_wanted = np.arange(len(both)) >= len(keys)
    order = np.lexsort((~is_wanted, np.concatenate([at, before]), *both.T[::-1]))
    place = np.maximum.accumulate(np.where(is_wanted[order], -1, np.arange(len(order))))
    asked = np.flatnonzero(is_wanted[order])
    found = order[place[asked]]
    alike = (place[asked] >= 0) & np.all(both[found] == both[order[asked]], axis=1)
    result = np.full(len(wanted), -1)
    result[order[asked] - len(keys)] = np.where(alike, found, -1)
    return result
