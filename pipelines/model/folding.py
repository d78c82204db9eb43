"""Parts of a result, folded into one whenever they have grown: memory stays proportional to the result."""

from __future__ import annotations

from collections.abc import Callable, Sized
from typing import Generic, TypeVar

Part = TypeVar("Part", bound=Sized)

FEW = 1 << 18
"""Least number of rows of new parts before they are folded."""


class Folding(Generic[Part]):
    """One part, and later ones that are not yet folded into it.

    New parts accumulate until they have as many rows as the folded one (or `FEW`). So each row is folded a few times
    however many parts there are, and memory holds at most twice the result, or `FEW` rows more.
    """

    def __init__(self, fold: Callable[[list[Part]], Part], first: Part) -> None:
        """Begin with a part.

        Args:
            fold: makes one part of several; the order of the parts must not matter.
            first: a part; nothing is gained by folding it alone.
        """
        self._fold = fold
        self._parts = [first]
        self._new = 0

    def add(self, part: Part) -> None:
        """Add a part."""
        self._parts.append(part)
        self._new += len(part)
        if self._new > max(FEW, len(self._parts[0])):
            self.folded()

    def folded(self) -> Part:
        """Return all parts as one."""
        if len(self._parts) > 1:
            self._parts = [self._fold(self._parts)]
            self._new = 0
        return self._parts[0]

    def put(self, part: Part) -> None:
        """Replace the folded part by an equal one, such as the same in another order."""
        self._parts[0] = part
