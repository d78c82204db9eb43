"""IP fragments to whole packets (RFC 791, section 3.2; RFC 8200, section 4.5), in bounded memory.

A packet is put together by what its fragments have in common: addresses, identification, and in IPv4 the protocol. The
order in which they come does not matter. Fragments that overlap otherwise than as copies make their packet unusable, as
RFC 5722 has it. A packet that was complete is remembered for a while, so that copies of its fragments, as mirrored
ports give, are known as such.
"""

import struct
from bisect import bisect
from dataclasses import dataclass, field
from typing import NamedTuple

from amqpscope.dissector.kernels import limits

PIECE_COST = 256
"""Bytes that a fragment takes besides its own."""

LONGEST = 65_535
"""Bytes of an IP packet."""

UDP = 17

Key = tuple[int, bytes, int, int]


class Fragment(NamedTuple):
    """A part of an IP packet.

    Attributes:
        version: of IP, 4 or 6.
        addresses: of sender and receiver.
        protocol: what the packet carries; of IPv6 only the first fragment tells for sure.
        ident: identification.
        begin: place of its bytes in the payload of the whole packet.
        end: where they end.
        more: whether others follow behind it.
        octets: captured; fewer than `end - begin` where the snap length cut them.
        useful: whether the packet may carry TCP, as far as this fragment tells.
    """

    version: int
    addresses: bytes
    protocol: int
    ident: int
    begin: int
    end: int
    more: bool
    octets: bytes
    useful: bool = True

    @property
    def key(self) -> Key:
        """What the fragments of a packet have in common."""
        return self.version, self.addresses, self.protocol if self.version == 4 else 0, self.ident


class Whole(NamedTuple):
    """An IP packet put together.

    Attributes:
        octets: what was captured of header (without options or extension headers) and payload.
        size: bytes of the whole packet.
        runs: place in the packet and number of bytes, for each run of them that was captured without a gap. The first
            begins at 0.
    """

    octets: bytes
    size: int
    runs: list[tuple[int, int]]


@dataclass(slots=True)
class _Datagram:
    """What is known of a packet. `protocol` is that of its first fragment, -1 before; `size` -1 before the last one."""

    since_ns: int
    packet: int
    protocol: int = -1
    size: int = -1
    octets: int = 0
    cost: int = 0
    begins: list[int] = field(default_factory=list)
    pieces: list[Fragment] = field(default_factory=list)
    complete: bool = False
    unusable: bool = False


class Fragments:
    """All packets of which fragments came at one capture point.

    Attributes:
        problems: what went wrong since the caller last emptied the list: code, and text for people.
        cost: bytes that are held.
    """

    def __init__(self) -> None:
        self.problems: list[tuple[str, str]] = []
        self._known: dict[Key, _Datagram] = {}  # in the order in which they began
        self.cost = 0

    def add(self, fragment: Fragment, ts_ns: int, packet: int) -> Whole | None:
        """Take a fragment; `packet` is its number in the capture.

        Returns:
            The packet that it completes.
        """
        self._expire(ts_ns)
        datagram = self._known.get(fragment.key)
        if datagram is not None and datagram.complete and not _is_copy(datagram, fragment):
            self._forget(fragment.key)  # the number is used again
            datagram = None
        if datagram is None:
            datagram = self._known[fragment.key] = _Datagram(ts_ns, packet)
        if datagram.complete or datagram.unusable:
            return None
        wrong = self._take(datagram, fragment) if fragment.useful else None
        if wrong:
            self.problems.append(("ip-fragment-overlap", wrong))
        if wrong or not fragment.useful:
            self.cost -= datagram.cost
            datagram.unusable, datagram.cost = True, 0
            datagram.pieces.clear()
            datagram.begins.clear()
            return None
        self._make_room(fragment.key)
        if datagram.octets != datagram.size:
            return None
        datagram.complete = True
        return _whole(datagram)

    def finish(self) -> int:
        """Forget all; the number of packets that were not complete."""
        missing = sum(_is_missing(datagram) for datagram in self._known.values())
        self._known.clear()
        self.cost = 0
        return missing

    def _take(self, datagram: _Datagram, fragment: Fragment) -> str | None:
        """Put a fragment in its place, or tell what is wrong with it."""
        at = bisect(datagram.begins, fragment.begin)
        before = datagram.pieces[at - 1] if at else None
        after = datagram.pieces[at] if at < len(datagram.pieces) else None
        if before is not None and (before.begin, before.end) == (fragment.begin, fragment.end):
            if not _equal(before.octets, fragment.octets):
                return "two fragments for the same place have other octets"
            if before.more != fragment.more:
                return "of two fragments for the same place one is the last"
            return None
        size = fragment.end if not fragment.more else datagram.size
        if (before is not None and before.end > fragment.begin) or (after is not None and after.begin < fragment.end):
            return "fragments overlap"
        if size >= 0 and (max(fragment.end, datagram.pieces[-1].end if datagram.pieces else 0) > size):
            return "a fragment lies behind the last one"
        if datagram.size >= 0 and not fragment.more:
            return "there are two last fragments"
        datagram.size = size
        if fragment.begin == 0:
            datagram.protocol = fragment.protocol
        datagram.begins.insert(at, fragment.begin)
        datagram.pieces.insert(at, fragment)
        datagram.octets += fragment.end - fragment.begin
        cost = len(fragment.octets) + PIECE_COST
        datagram.cost += cost
        self.cost += cost
        return None

    def _expire(self, ts_ns: int) -> None:
        """Give up what waited too long."""
        while self._known:
            key, oldest = next(iter(self._known.items()))
            if ts_ns - oldest.since_ns <= limits.FRAGMENTS_WAIT_NS:
                return
            self._give_up(key, f"within {limits.FRAGMENTS_WAIT_NS // 1_000_000_000} s")

    def _make_room(self, mine: Key) -> None:
        while self.cost > limits.FRAGMENT_BYTES or len(self._known) > limits.FRAGMENTED_PACKETS:
            key = next(iter(self._known))
            if key == mine:
                return
            self._give_up(key, "before too many others")

    def _give_up(self, key: Key, when: str) -> None:
        datagram = self._forget(key)
        if _is_missing(datagram):
            self.problems.append(
                ("ip-fragment", f"an IP packet that began in packet {datagram.packet} was not complete {when}")
            )

    def _forget(self, key: Key) -> _Datagram:
        datagram = self._known.pop(key)
        self.cost -= datagram.cost
        return datagram


def _is_missing(datagram: _Datagram) -> bool:
    """Whether TCP may have been lost with it."""
    return not (datagram.complete or datagram.unusable or datagram.pieces[0].protocol == UDP)


def _equal(one: bytes, other: bytes) -> bool:
    """Whether bytes are the same, as far as both were captured."""
    common = min(len(one), len(other))
    return one[:common] == other[:common]


def _is_copy(datagram: _Datagram, fragment: Fragment) -> bool:
    """Whether the fragment is one of those that made up the packet."""
    at = bisect(datagram.begins, fragment.begin)
    if not at:
        return False
    known = datagram.pieces[at - 1]
    same = (known.begin, known.end, known.more) == (fragment.begin, fragment.end, fragment.more)
    return same and _equal(known.octets, fragment.octets)


def _whole(datagram: _Datagram) -> Whole:
    first = datagram.pieces[0]
    size, addresses = datagram.size, first.addresses
    if first.version == 4:
        header = struct.pack(">BBHHHBBH", 0x45, 0, 20 + size, 0, 0, 0, datagram.protocol, 0) + addresses
    else:
        header = struct.pack(">IHBB", 0x60000000, size, datagram.protocol, 0) + addresses
    octets, runs = bytearray(header), [(0, len(header))]
    for piece in datagram.pieces:
        place = len(header) + piece.begin
        octets += piece.octets
        if sum(runs[-1]) == place:
            runs[-1] = runs[-1][0], runs[-1][1] + len(piece.octets)
        elif piece.octets:
            runs.append((place, len(piece.octets)))
    return Whole(bytes(octets), len(header) + size, runs)
