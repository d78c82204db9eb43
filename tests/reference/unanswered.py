"""Why nobody answered a frame, and until when it was outstanding: plainly, from what a connection shows."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

ASKS, CLOSES, CLOSES_ALL, OPENS, IS_OPEN, SAYS_NOTHING = range(6)
"""What a frame does: it asks what nobody answers, closes its channel, or the connection, or opens the channel anew, or
answers that."""


@dataclass(frozen=True)
class Frame:
    """A frame; `behind_gap`: frames of its side may be missing before it."""

    from_client: bool
    does: int = SAYS_NOTHING
    behind_gap: bool = False


def unanswered(frames: list[Frame], asked: int, silence: str) -> tuple[str, int | None]:
    """Return why nobody answered a frame, and the frame at which that was certain; None: the connection's silence.

    Args:
        frames: all of the connection.
        asked: the one that asks.
        silence: what ended a connection that nobody closes.
    """
    by_client = frames[asked].from_client
    opened = max([at for at, frame in enumerate(frames[:asked]) if frame.does == OPENS], default=-1)
    following = next((at for at, frame in enumerate(frames) if at > asked and frame.does == OPENS), len(frames))
    again = [at for at, frame in enumerate(frames) if at > following and frame.does in (OPENS, IS_OPEN)]
    reopened = again[0] if again and frames[again[0]].does == IS_OPEN else len(frames)
    of_channel = [at for at in range(opened + 1, following) if frames[at].does == CLOSES]
    by_server = min((at for at in of_channel if not frames[at].from_client), default=following)
    anew = [at for at in range(by_server, following) if frames[at].does == IS_OPEN]
    reopened = min([reopened, *anew])  # behind a close of this epoch: the frame that opens the next one is missing
    of_all = [at for at, frame in enumerate(frames) if frame.does == CLOSES_ALL]
    for close in _first(frames, of_channel):
        missed = [begins for begins, behind in _gaps(frames, from_client=True) if behind > close][:1]
        if close < asked and (close < reopened < asked or (missed and missed[0] < asked)):
            return "gap", asked  # the channel was opened again in it
    heard = [at for at in (*of_channel, *of_all) if at < asked and frames[at].from_client != by_client]
    if heard:
        return "discarded", min(heard)
    ends = [(at, "channel-close") for at in _first(frames, of_channel) if at > asked]
    ends += [(at, "connection-close") for at in _first(frames, of_all) if at > asked]
    end, why = min(ends, default=(len(frames), silence))
    lost = [(begins, behind) for begins, behind in _gaps(frames, not by_client) if behind > asked][:1]
    if not lost and not any(frame.from_client != by_client for frame in frames):
        lost = [(-1, len(frames) - 1)]
    if reopened < end:  # it was closed before, by frames that are missing
        return "gap", min([reopened, *(behind for _, behind in lost)])
    own = end < len(frames) and frames[end].does in (CLOSES, CLOSES_ALL) and not by_client and frames[end].from_client
    last = max([at for at, frame in enumerate(frames) if not frame.from_client], default=-1)
    if by_client and last < end < len(frames) and frames[end].from_client and silence == "capture-end":
        why, end = silence, len(frames)  # the server answers in order: what it did not say yet, the capture lacks
    if lost and (own or lost[0][0] < end):  # clients acknowledge also after their own close
        return "gap", lost[0][1]
    return why, end if end < len(frames) else None


def _first(frames: list[Frame], closes: list[int]) -> list[int]:
    """Of each side the first close."""
    sides = [frames[at].from_client for at in closes]
    return [at for n, at in enumerate(closes) if sides.index(sides[n]) == n]


def _gaps(frames: list[Frame], from_client: bool) -> list[tuple[int, int]]:
    """Gaps of a side: its last frame before each (-1: none), and the frame behind it."""
    own = [-1, *(at for at, frame in enumerate(frames) if frame.from_client == from_client)]
    return [(before, behind) for before, behind in pairwise(own) if frames[behind].behind_gap]
