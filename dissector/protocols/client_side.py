"""Who is the client of a connection whose SYN was not captured: by its first bytes, by frames, or by ports.

What both sides may send shows nothing. Where ports show nothing either, it is held back until something follows that
only one side may send, so that all rows agree; how long, is bounded.
"""

from collections.abc import Callable
from typing import Any

from amqpscope.dissector.kernels import limits
from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import kernel, specialize
from amqpscope.dissector.protocols.candidates import Own
from amqpscope.dissector.protocols.pending_chunks import first_held, gather, processed
from amqpscope.dissector.protocols.registry import ProtocolPlugin
from amqpscope.dissector.protocols.resync import ANY_TIME, DECIDED, NO_ROOM, WAIT, search
from amqpscope.dissector.protocols.state import SEARCH, Cursor, Parser, ParserState, PendingChunk
from amqpscope.dissector.tcp.state import BY_CONTENT, BY_LOWER_PORT, Facts
from amqpscope.spec import tls

UNKNOWN_NS = 120_000_000_000
"""So long frames wait for one that shows who is the client."""
HEADER, MAGIC = 8, 4
"""Bytes of a protocol header, and those of them that name its protocol; the others are its version."""
HEADS = 9
"""Bytes of the heads of a TLS record and of its first message."""


def client_by_header(plugin: ProtocolPlugin, side: int, mine: bytes, other: bytes, listens: bool | None) -> int | None:
    """Return the client's side of a connection whose first header came from `side`; None: the other side will show it.

    A broker that accepts a client answers with a header, too, if its protocol has it so.

    Args:
        plugin: the protocol.
        side: whose header came first.
        mine: its first bytes.
        other: what the other side sent after that, as far as it came.
        listens: whether its port is a broker's; None: ports do not show it.
    """
    if not plugin.answers:
        return side
    if listens or (plugin.client_waits and len(mine) > HEADER) or not mine.startswith(other[:MAGIC]):
        return 1 - side
    return None if listens is None and not other else side


def client_by_tls(data: bytes, side: int) -> int | None:
    """Return the client's side if a side begins with a TLS message that only one side sends; None if not.

    One that is encrypted may begin with a number, whose upper bytes are zero, or with random bytes.
    """
    message = tls.load().messages.get(data[5]) if len(data) >= HEADS else None
    is_whole = int.from_bytes(data[6:HEADS]) + 4 <= int.from_bytes(data[3:5])
    if message is None or not (message.sender and is_whole and any(data[5:HEADS])):
        return None
    return side if message.sender == "client" else 1 - side


# ------------------------------------------------------------------------------------------------------ by frames


@kernel
def sender(data: Array, p: int, end: int, own: Own) -> int:
    """Return who sends the frames that follow each other from p on: 1 the client, 2 the server, 3 unknown."""
    return 3


def build_kernels(**own: Any) -> Callable[..., int]:
    """Return `find_client` for a protocol, with its kernels; `sender` and `search` are templates."""
    return specialize(find_client, **own, look_for_client=specialize(look_for_client, **own))


@kernel
def find_client(walk: ParserState, row: int, own: Own) -> int:
    """Determine the client before the first frame of a connection is emitted, if frames show it.

    Where ports say nothing, frames that both sides may send wait for one of either direction that only one may send.
    """
    parsers, facts, held = walk.parsers, walk.facts, walk.held
    slot = row // 2
    if facts[slot, Facts.ROLES_BY] >= BY_CONTENT or facts[slot, Facts.FRAMES] > 0:
        return DECIDED
    if walk.cursor[Cursor.ARENA] + limits.UNKNOWN_ROLES + 8 > len(walk.data):
        return NO_ROOM
    waits = facts[slot, Facts.ROLES_BY] == BY_LOWER_PORT and may_wait(walk, slot)
    if look_for_client(walk, row, not waits, own) or facts[slot, Facts.ROLES_BY] != BY_LOWER_PORT:
        return DECIDED
    other = row ^ 1
    first = first_held(walk, other)
    if first >= 0 and held[first, PendingChunk.OFFSET] >= 0 and parsers[other, Parser.STATE] == SEARCH:
        if parsers[other, Parser.UNTIL] < 0 and search(walk, other, own) == NO_ROOM:
            return NO_ROOM
        if parsers[other, Parser.UNTIL] >= 0 and parsers[other, Parser.FOUND] == 1:
            waits = not look_for_client(walk, other, not waits, own) and waits
    return WAIT if waits else DECIDED


@kernel
def may_wait(walk: ParserState, slot: int) -> bool:
    """Return whether frames of a connection may wait longer for one that shows who is the client."""
    parsers, held, cursor = walk.parsers, walk.held, walk.cursor
    queue = 2 * slot
    if cursor[Cursor.HELD] > limits.WAITING_BYTES:
        cursor[Cursor.CROWDED] = 1
        return False
    waited = (
        held[parsers[queue, Parser.QUEUE_END], PendingChunk.TS] - held[parsers[queue, Parser.QUEUE], PendingChunk.TS]
    )
    return bool(
        parsers[queue, Parser.OVER] == 0
        and parsers[queue, Parser.BYTES] + parsers[queue + 1, Parser.BYTES] < limits.UNKNOWN_ROLES
        and parsers[queue, Parser.QUEUED] < limits.UNKNOWN_ROLES_CHUNKS
        and waited < UNKNOWN_NS
    )


@kernel
def look_for_client(walk: ParserState, row: int, is_last: bool, own: Own) -> bool:
    """Look for a frame that only one side may send, after the boundary of a direction; return whether there is one.

    Unless this is the last look, there must be more bytes than at the one before; an eighth more where they are many.
    """
    parsers, facts = walk.parsers, walk.facts
    slot, queue, size, looked = row // 2, row // 2 * 2, parsers[row, Parser.BYTES], parsers[row, Parser.LOOKED]
    if not is_last and (size == looked or (size > ANY_TIME and 8 * size < 9 * looked)):
        return False
    parsers[row, Parser.LOOKED] = size
    first = first_held(walk, row)
    n, _count, _ended, _snapped = gather(walk, row, limits.UNKNOWN_ROLES)
    base = walk.cursor[Cursor.ARENA]
    place = parsers[row, Parser.UNTIL] - walk.held[first, PendingChunk.POS] - processed(walk, queue, first)
    who = sender(walk.data, base + place, base + n, own)
    if who == 3:
        return False
    facts[slot, Facts.CLIENT] = row & 1 if who == 1 else 1 - (row & 1)
    facts[slot, Facts.ROLES_BY] = BY_CONTENT
    return True
