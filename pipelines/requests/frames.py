"""What the machine that pairs requests with answers needs of a frame."""

from __future__ import annotations

from typing import NamedTuple

SUCCESS = 200
"""The reply code of a close without an error."""


class Frame(NamedTuple):
    """What the machine needs of a frame; -1 for null."""

    side: int
    number: int
    ts: int
    channel: int
    epoch: int
    is_cut: int
    """1 where its content is unknown."""
    is_partial: int
    asks: int
    """Kind that it asks."""
    answers: int
    """Kind that it answers."""
    may_answer: int
    """Another kind, which it answers where none of that one is open."""
    waits: int
    """1 for a request that asks for an answer, 0 for one that does not; -1: unknown."""
    code: int
    """Reply code."""
    refuses: int
    """Kind of request that a close names; UNKNOWN where that part of it is missing."""
    opens: int
    """1 for what opens a channel, 2 for its answer."""
    declares: int
    """1 for a request that declares a queue, 2 for its answer."""
    key: int
    """Digest of what an answer repeats of its request; 0 for nothing."""
    name: int
    """The name of a queue that is declared, as a number; of other requests NO_NAME where it is empty."""
