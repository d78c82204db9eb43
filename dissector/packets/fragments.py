"""Reassemble IP fragments (RFC 791, section 3.2; RFC 8200, section 4.5) in bounded memory.

Fragments belong to one packet when they share addresses, identification and, in IPv4, the protocol. They may come in
any order. Fragments that overlap and are not copies make their packet unusable, as RFC 5722 demands. A complete packet
is remembered for a while, so that copies of its fragments, which mirrored ports deliver, are recognised.
"""

import struct
from bisect import bisect
from dataclasses import dataclass, field
from typing import NamedTuple

from amqpscope.dissector.kernels import limits
from amqpscope.dissector.kernels.coding import Coding

FRAGMENT_COST = 256
"""Bytes of memory that a fragment takes besides its data."""

LONGEST = 65_535
"""Most bytes of an IP packet."""

UDP = 17

Key = tuple[int, bytes, int, int]


class Fragment(NamedTuple):
    """A fragment of an IP packet.

    Attributes:
        version: version of IP, 4 or 6.
        addresses: addresses of sender and receiver.
        protocol: protocol of the payload; in IPv6 only the first fragment is sure to name it.
        ident: identification.
        begin: position of its data in the payload of the whole packet.
        end: end of its data in that payload.
        more: whether other fragments follow it.
        data: bytes captured; fewer than `end - begin` where the snap length cut them.
        useful: whether the packet may carry TCP, as far as this fragment shows.
        ttl: time to live, or hop limit.
    """

    version: int
    addresses: bytes
    protocol: int
    ident: int
    begin: int
    end: int
    more: bool
    data: bytes
    useful: bool = True
    ttl: int = 0

    @property
    def key(self) -> Key:
        """Return what the fragments of a packet share."""
        return self.version, self.addresses, self.protocol if self.version == 4 else 0, self.ident


class Whole(NamedTuple):
    """A reassembled IP packet.

    Attributes:
        data: captured bytes of header (without options or extension headers) and payload.
        size: size of the whole packet in bytes.
        runs: position in the packet and length of each run of bytes that was captured without a gap. The first begins
            at 0.
    """

    data: bytes
    size: int
    runs: list[tuple[int, int]]


@dataclass(slots=True)
class _Datagram:
    """State of a packet. `protocol` is -1 until its first fragment comes, `size` until its last one comes."""

    since_ns: int
    packet: int
    protocol: int = -1
    size: int = -1
    received: int = 0
    cost: int = 0
    begins: list[int] = field(default_factory=list)
    fragments: list[Fragment] = field(default_factory=list)
    complete: bool = False
    unusable: bool = False


STATE = Coding(_Datagram, Fragment)


class Fragments:
    """The fragmented packets of one capture point.

    Attributes:
        problems: problems since the caller last emptied the list: code, and message.
        cost: bytes of memory in use.
    """

    def __init__(self) -> None:
        self.problems: list[tuple[str, str]] = []
        self._known: dict[Key, _Datagram] = {}  # in the order of their first fragments
        self.cost = 0

    def add(self, fragment: Fragment, ts_ns: int, packet: int) -> Whole | None:
        """Take a fragment; `packet` is its number in the capture.

        Returns:
            The packet that it completes, or None.
        """
        self._expire(ts_ns)
        datagram = self._known.get(fragment.key)
        if datagram is not None and datagram.complete and not _is_copy(datagram, fragment):
            self._forget(fragment.key)  # a new packet has the same identification
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
            datagram.fragments.clear()
            datagram.begins.clear()
            return None
        self._make_room(fragment.key)
        if datagram.received != datagram.size:
            return None
        datagram.complete = True
        return _whole(datagram)

    def take_out(self) -> bytes:
        """Take out all packets."""
        taken = STATE.written(self._known)
        self.finish()
        return taken

    def put_back(self, data: bytes) -> None:
        """Put back what `take_out` returned."""
        self._known |= STATE.read(data)
        self.cost = sum(datagram.cost for datagram in self._known.values())

    def finish(self) -> int:
        """Forget all packets; return the number of incomplete ones."""
        missing = sum(_is_missing(datagram) for datagram in self._known.values())
        self._known.clear()
        self.cost = 0
        return missing

    def _take(self, datagram: _Datagram, fragment: Fragment) -> str | None:
        """Insert a fragment in its place, or return what is wrong with it."""
        at = bisect(datagram.begins, fragment.begin)
        before = datagram.fragments[at - 1] if at else None
        after = datagram.fragments[at] if at < len(datagram.fragments) else None
        if before is not None and (before.begin, before.end) == (fragment.begin, fragment.end):
            if not _equal(before.data, fragment.data):
                return "two fragments at the same offset have different bytes"
            if before.more != fragment.more:
                return "two fragments at the same offset differ in whether they are the last"
            return None
        size = fragment.end if not fragment.more else datagram.size
        if (before is not None and before.end > fragment.begin) or (after is not None and after.begin < fragment.end):
            return "fragments overlap"
        if size >= 0 and (max(fragment.end, datagram.fragments[-1].end if datagram.fragments else 0) > size):
            return "a fragment begins after the end of the last one"
        if datagram.size >= 0 and not fragment.more:
            return "there are two last fragments"
        datagram.size = size
        if fragment.begin == 0:
            datagram.protocol = fragment.protocol
        datagram.begins.insert(at, fragment.begin)
        datagram.fragments.insert(at, fragment)
        datagram.received += fragment.end - fragment.begin
        cost = len(fragment.data) + FRAGMENT_COST
        datagram.cost += cost
        self.cost += cost
        return None

    def _expire(self, ts_ns: int) -> None:
        """Drop packets that stayed incomplete for too long."""
        while self._known:
            key, oldest = next(iter(self._known.items()))
            if ts_ns - oldest.since_ns <= limits.FRAGMENTS_WAIT_NS:
                return
            self._drop(key, f"within {limits.FRAGMENTS_WAIT_NS // 1_000_000_000} s")

    def _make_room(self, mine: Key) -> None:
        while self.cost > limits.FRAGMENT_BYTES or len(self._known) > limits.FRAGMENTED_PACKETS:
            key = next(iter(self._known))
            if key == mine:
                return
            self._drop(key, "before too many others began")

    def _drop(self, key: Key, when: str) -> None:
        datagram = self._forget(key)
        if _is_missing(datagram):
            self.problems.append(
                ("ip-fragment", f"the IP packet that began in packet {datagram.packet} was not complete {when}")
            )

    def _forget(self, key: Key) -> _Datagram:
        datagram = self._known.pop(key)
        self.cost -= datagram.cost
        return datagram


def _is_missing(datagram: _Datagram) -> bool:
    """Return whether the packet is incomplete and may carry TCP."""
    return not (datagram.complete or datagram.unusable or datagram.fragments[0].protocol == UDP)


def _equal(one: bytes, other: bytes) -> bool:
    """Return whether bytes are equal, as far as both were captured."""
    common = min(len(one), len(other))
    return one[:common] == other[:common]


def _is_copy(datagram: _Datagram, fragment: Fragment) -> bool:
    """Return whether the fragment equals one of a complete packet."""
    at = bisect(datagram.begins, fragment.begin)
    if not at:
        return False
    known = datagram.fragments[at - 1]
    same = (known.begin, known.end, known.more) == (fragment.begin, fragment.end, fragment.more)
    return same and _equal(known.data, fragment.data)


def _whole(datagram: _Datagram) -> Whole:
    first = datagram.fragments[0]
    size, addresses = datagram.size, first.addresses
    if first.version == 4:
        header = struct.pack(">BBHHHBBH", 0x45, 0, 20 + size, 0, 0, first.ttl, datagram.protocol, 0) + addresses
    else:
        header = struct.pack(">IHBB", 0x60000000, size, datagram.protocol, first.ttl) + addresses
    data, runs = bytearray(header), [(0, len(header))]
    for fragment in datagram.fragments:
        place = len(header) + fragment.begin
        data += fragment.data
        if sum(runs[-1]) == place:
            runs[-1] = runs[-1][0], runs[-1][1] + len(fragment.data)
        elif fragment.data:
            runs.append((place, len(fragment.data)))
    return Whole(bytes(data), len(header) + size, runs)
