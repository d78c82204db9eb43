"""Read capture files as batches of packets: bytes and, for each packet, its position in them and its time.

Reading takes the memory of a few batches, whatever the size of the file. A file that is truncated or damaged is read up
to that place, and the place is noted; only a file that is not a capture at all is an error.
"""

from collections.abc import Iterator

import numpy as np

from amqpscope.dissector.capture.input import CaptureError, Input, Readable, describe
from amqpscope.dissector.capture.live import Watch
from amqpscope.dissector.capture.model import Before, CaptureInfo, Interface, PacketBatch, Problem, Range
from amqpscope.dissector.capture.pcap import PcapScanner, is_pcap
from amqpscope.dissector.capture.pcapng import SECTION_MAGIC, PcapngScanner
from amqpscope.dissector.capture.scanner import Packet, Scanner
from amqpscope.dissector.kernels.arrays import Bytes, Ints
from amqpscope.dissector.kernels.kernel import COMPILE_ABOVE
from amqpscope.dissector.kernels.reuse import Reuse

__all__ = ["CaptureError", "CaptureFile", "CaptureInfo", "Interface", "PacketBatch", "Problem"]

MAX_PACKETS = 1 << 17
"""Most packets in a batch: the columns of tiny packets would otherwise take more memory than the packets."""


TORN = "truncated inside packet {}"
"""The message about the packet inside which a file ends."""

_HEAD = 64  # bytes that show the format
_SHORTEST = 28  # bytes of the longest file header


class CaptureFile:
    """The packets of one capture file (pcap or pcapng, compressed or not), to be read once.

    Args:
        path: path of the file, `-` for standard input, or a binary file object.
        name: name of the file in messages.
        index: index of the capture, which every batch carries.
        batch_bytes: size of a batch in bytes. A larger packet makes its batch larger.
        spare: bytes of unused room after the packets of a batch. The default is twice the size of a batch, because
            nearly all its bytes may be reassembled from segments and then decompressed.
        compiled: whether kernels run compiled; by default they do when there is more than a little to read.
        alone: whether this is the only capture. Among others, an empty file is only a problem of that file: the newest
            file of a rotating capture is empty until the first packets are written.
        watch: waits for a capture that is still being written, and may end it.
        part: a range of the file, to which reading is limited; its `skip` is known.

    Attributes:
        info: what is known of the capture; complete after the iteration. Of a range, positions begin with the range,
            and what blocks with state say is missing.
        compiled: whether kernels run compiled, as far as that is decided.
        scanner: what finds the records of a range.
        over: number of bytes after the end of the range that belong to its last record; None where the file ends.

    Raises:
        CaptureError: while iterating: the file does not exist, or is not a capture.
    """

    def __init__(
        self,
        path: Readable,
        name: str,
        index: int,
        *,
        batch_bytes: int = 16 << 20,
        spare: int | None = None,
        compiled: bool | None = None,
        alone: bool = True,
        watch: Watch | None = None,
        part: Range | None = None,
    ) -> None:
        self.info = CaptureInfo()
        self.scanner: Scanner | None = None
        self.over: int | None = None
        self.compiled = bool(compiled)
        self._path, self._name, self._index = path, name, index
        self._batch_bytes = max(batch_bytes, _HEAD)
        self._spare = 2 * batch_bytes if spare is None else spare
        self._decide = compiled is None
        self._alone = alone
        self._watch = watch
        self._part = part
        self._stated = self.info if part is None else CaptureInfo()  # what the scanner learns of the file
        self._emitted = 0  # number of secrets in earlier batches

    def __iter__(self) -> Iterator[PacketBatch]:
        source = Input(self._path, self._name, self._watch, self._part)
        try:
            yield from self._batches(source)
        finally:
            source.close()

    @property
    def waiting(self) -> tuple[bytes, ...]:
        """TLS key logs that came after the last packet so far."""
        return tuple(self._stated.secrets[self._emitted :])

    def _batches(self, source: Input) -> Iterator[PacketBatch]:
        self.info.compression = source.compression
        capacity, need = self._batch_bytes, _HEAD
        position, filled, origin, ended = 0, 0, 0, False
        end: int | None = None  # of the range
        scanner: Scanner | None = None
        if self._part is not None:
            wanted = self._part.skip or 0
            scanner, origin = self._resumed(self._part), source.skip(wanted)
            if origin < wanted:  # one record goes beyond the whole range
                self.over, self.info.size = wanted - origin, wanted
                return
        buffers = Reuse(capacity + self._spare, np.uint8)
        matrices = Reuse((Packet.WIDTH, min(MAX_PACKETS, capacity // 16 + 1)), np.int64)
        buffer = buffers.take()
        last = False
        while not last:
            while need and not ended and filled - position < need:
                # after the end of a range, no byte more than its last record needs
                filled, ended = source.fill(buffer.data, filled, capacity if end is None else position + need)
                if ended and self._part is not None and end is None and source.go_on():
                    end, ended = origin + filled, False
                    break
            if scanner is None and not filled and not source.damage and not self._alone:
                self.info.truncated = True
                self.info.problem("capture-truncated", 0, None, "the file is empty")
                return
            if scanner is None:
                scanner, position = self._scanner(bytes(buffer[:filled][:_HEAD]), source)
            if self._decide:
                self.compiled = max(source.size or 0, origin + filled) >= COMPILE_ABOVE

            columns = matrices.take()
            position, rows, need, stop, changed = scanner.scan(buffer, position, filled, columns, origin, self.compiled)
            is_over = end is not None and origin + position >= end
            last = stop or is_over or (ended and need > 0)
            if stop:
                number, what = scanner.number + 1, scanner.nonsense(buffer, position)
                self.info.problem("header-unknown", number, origin + position, what)
            elif last and not is_over and position < filled:
                rows += self._remainder(scanner, buffer, position, filled, columns, rows, origin)
                position = filled
            if changed:
                last_ns = int(columns[Packet.TS_NS, rows - 1]) if rows else self.info.last_ts_ns or 0
                scanner = self._next_scanner(scanner, bytes(buffer[position:filled][:_HEAD]), last_ns)
                position += scanner.begin
            if rows == 0 and position + need <= capacity:
                continue
            # What is left moves to the front of the next buffer before the reader of this batch can overwrite it.
            capacity = max(self._batch_bytes, need)
            is_usual = capacity == self._batch_bytes
            following = buffers.take() if is_usual else np.empty(capacity + self._spare, np.uint8)
            following[: filled - position] = buffer[position:filled]
            if rows:
                consumed = source.taken if source.compression else origin + position
                yield self._batch(buffer, position, columns[:, :rows], consumed)
            buffer, position, filled, origin = following, 0, filled - position, origin + position
        self.info.size = origin + position
        if end is not None and is_over:
            self.over = origin + position - end
        elif scanner and self._part is None:
            scanner.finish()
        if source.damage:
            self.info.truncated = True
            self.info.problem("capture-truncated", 0, None, source.damage)

    def _resumed(self, part: Range) -> Scanner:
        """Return the scanner for the records of a range."""
        scanner = self.scanner = scanner_of(part.before.head, self._name, self._stated)
        scanner.resume(part.before)
        self._stated.secrets += part.before.secrets
        return scanner

    def _next_scanner(self, before: Scanner, head: bytes, last_ns: int) -> Scanner:
        """Return the scanner for a file of the other format that was appended to the one so far."""
        if self._part is None:
            before.finish()
        elif self.scanner is not None:
            self.scanner.is_mixed = True
        shown = self._stated.format
        scanner = scanner_of(head, self._name, self._stated)
        scanner.resume(Before(head, number=before.number, last_ns=last_ns))
        self._stated.format = shown
        return scanner

    def _scanner(self, head: bytes, source: Input) -> tuple[Scanner, int]:
        """Return the scanner for a file that begins with `head`, and the position where it begins to scan."""
        if source.damage and len(head) < _SHORTEST:
            raise CaptureError(f"{self._name}: {source.damage}")
        scanner = scanner_of(head, self._name, self._stated)
        return scanner, scanner.begin

    def _remainder(
        self, scanner: Scanner, data: Bytes, start: int, end: int, columns: Ints, row: int, origin: int
    ) -> int:
        """List the packet in `data[start:end]`, inside which the file ends, if all before its bytes is there.

        Returns:
            The number of packets, 0 or 1.
        """
        self.info.truncated = True
        number = scanner.number + 1
        self.info.problem("capture-truncated", number, origin + start, TORN.format(number))
        return int(scanner.torn(data, start, end, columns[:, row]))

    def _batch(self, data: Bytes, used: int, columns: Ints, consumed: int) -> PacketBatch:
        info, ts_ns = self.info, columns[Packet.TS_NS]
        if info.first_ts_ns is None:
            info.first_ts_ns = int(ts_ns[0])
        info.last_ts_ns = int(ts_ns[-1])
        info.packets += len(ts_ns)
        info.captured_bytes += int(columns[Packet.CAPLEN].sum())
        secrets = list(self.waiting)
        self._emitted += len(secrets)
        return PacketBatch(
            data=data,
            used=used,
            offset=columns[Packet.OFFSET],
            caplen=columns[Packet.CAPLEN],
            length=columns[Packet.LENGTH],
            ts_ns=ts_ns,
            packet=columns[Packet.PACKET],
            link=columns[Packet.LINK],
            capture=self._index,
            consumed=consumed,
            secrets=secrets,
        )


def scanner_of(head: bytes, name: str, info: CaptureInfo) -> Scanner:
    """Return the scanner for a capture that begins with `head`; `info` receives what it learns of the file.

    Raises:
        CaptureError: the file, which has this name in messages, is not a capture.
    """
    if is_pcap(head):
        return PcapScanner(head, name, info)
    if head.startswith(SECTION_MAGIC):
        return PcapngScanner(head, name, info)
    what = f"not a pcap or pcapng file ({describe(head)})" if head else "the file is empty"
    raise CaptureError(f"{name}: {what}")
