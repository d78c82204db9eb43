"""Run the state machine of a handshake over the steps of both sides."""

from collections.abc import Sequence
from typing import NamedTuple

from amqpscope.spec.handshakes import Machine


class Run(NamedTuple):
    """The state that the machine reached, the indexes of the events that it took, and those before which some lack."""

    state: str
    taken: list[int]
    leaps: list[int]


def run(machine: Machine, events: Sequence[tuple[str, str]], leap: bool) -> Run:
    """Take (side, event) pairs, each side's in its own order.

    A side may send ahead: its next event waits until the machine reaches a state that expects it. With `leap`, for
    incomplete captures, the machine continues with any later event when none fits.
    """
    state = machine.start
    taken: list[int] = []
    leaps: list[int] = []
    waiting = list(range(len(events)))
    while True:
        found = _next(machine, state, events, waiting)
        if found is None and leap:
            found = _leap(machine, state, events, waiting)
            leaps += [found[0]] if found else []
        if found is None:
            return Run(state, taken, leaps)
        index, state = found
        taken.append(index)
        waiting.remove(index)


def _next(
    machine: Machine, state: str, events: Sequence[tuple[str, str]], waiting: list[int]
) -> tuple[int, str] | None:
    """Return the first event that the state expects; events that the machine does not know block no others."""
    blocked = set()
    for index in waiting:
        side, event = events[index]
        after = machine.transitions.get((state, side, event))
        if after and side not in blocked:
            return index, after
        if (side, event) in machine.events:
            blocked.add(side)
    return None


def _leap(
    machine: Machine, state: str, events: Sequence[tuple[str, str]], waiting: list[int]
) -> tuple[int, str] | None:
    for index in waiting:
        ahead = [
            after
            for (_, side, event), after in machine.transitions.items()
            if (side, event) == events[index] and machine.order[after] > machine.order[state]
        ]
        if ahead:
            return index, ahead[0]
    return None
