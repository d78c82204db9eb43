"""Requests of one key that wait, by their places: an answer is that to the oldest of its own place, as far as known.

A place is a home and a broker (`homes`). A request is in three lines: that of its place, of its broker, and of all; one
that was answered stays there until it is the first.
"""

from __future__ import annotations

from collections import deque

Place = tuple[int, int]
"""Home and broker, as `homes.Homes.of` numbers them."""
_ANY = -1
"""Stands for each home, in the line of a broker, and of all (broker 0)."""


def may_be_one(one: Place, other: Place) -> bool:
    """Return whether two places may be the same, as far as known."""
    if one[0] and other[0]:
        return one[0] == other[0]
    return not (one[1] and other[1]) or one[1] == other[1]


def _asked(place: Place) -> tuple[Place, ...]:
    """Return the lines with all requests that may be in a place."""
    home, broker = place
    if not broker:
        return ((_ANY, 0),)
    return ((home, broker), (0, broker), (0, 0)) if home else ((_ANY, broker), (0, 0))


class Waiting:
    """Requests that wait, by number: numbers rise."""

    def __init__(self) -> None:
        self._open: dict[int, tuple[Place, bool]] = {}
        """Their places, and whether another one waited when it came."""
        self._lines: dict[Place, deque[int]] = {}
        self._latest: dict[Place, int] = {}
        """The latest request of each line, which may be answered."""

    def __len__(self) -> int:
        return len(self._open)

    def ask(self, request: int, place: Place, shared: bool = False) -> None:
        """Add a request; `shared`: another one is known to have waited together with it."""
        shared = shared or self.oldest(place) is not None
        self._open[request] = place, shared
        for line in {place, (_ANY, place[1]), (_ANY, 0)}:
            self._lines.setdefault(line, deque()).append(request)
            self._latest[line] = request

    def oldest(self, place: Place = (0, 0)) -> int | None:
        """Return the oldest request that may be in a place; None for none."""
        return min((line[0] for each in _asked(place) if (line := self._line(each))), default=None)

    def take(self, request: int) -> bool:
        """Remove a request; return whether another one of its place waited together with it."""
        shared = self.is_shared(request)
        del self._open[request]
        return shared

    def is_shared(self, request: int) -> bool:
        """Return whether another one of its place waited together with a request."""
        place, shared = self._open[request]
        return shared or any(self._latest.get(line, -1) > request for line in _asked(place))

    def rest(self) -> dict[int, bool]:
        """Return the requests that wait, and which are shared."""
        return {request: self.is_shared(request) for request in self._open}

    def _line(self, of: Place) -> deque[int] | None:
        line = self._lines.get(of)
        while line and line[0] not in self._open:
            line.popleft()
        return line
