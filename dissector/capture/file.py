"""Read capture files as batches of packets: bytes and, for each packet, its position in them and its time.

Reading takes the memory of a few batches, whatever the size of the file. A file that is truncated or damaged is read up
to that place, and the place is noted; only a file that is not a capture at all is an error.
"""

from collections.abc import Iterator

import numpy as np

from amqpscope.dissector.capture.input import CaptureError, Input, Readable, describe
from amqpscope.dissector.capture.live import Watch
from amqpscope.dissector.capture.model import CaptureInfo, Interface, PacketBatch, Problem
from amqpscope.dissector.capture.pcap import PcapScanner, is_pcap
from amqpscope.dissector.capture.pcapng import SECTION_MAGIC, PcapngScanner
from amqpscope.dissector.capture.scanner import Packet, Scanner
from amqpscope.dissector.kernels.arrays import Bytes, Ints
from amqpscope.dissector.kernels.kernel import COMPILE_ABOVE
from amqpscope.dissector.kernels.reuse import Reuse

__all__ = ["CaptureError", "CaptureFile", "CaptureInfo", "Interface", "PacketBatch", "Problem"]

MAX_PACKETS = 1 << 17
"""Most packets in a batch: the columns of tiny packets would otherwise take more memory than the packets."""


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

    Attributes:
        info: what is known of the capture; complete after the iteration.
        compiled: whether kernels run compiled, as far as that is decided.

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
    ) -> None:
        self.info = CaptureInfo()
        self.compiled = bool(compiled)
        self._path, self._name, self._index = path, name, index
        self._batch_bytes = max(batch_bytes, _HEAD)
        self._spare = 2 * batch_bytes if spare is None else spare
        self._decide = compiled is None
        self._alone = alone
        self._watch = watch
        self._emitted = 0  # number of secrets in earlier batches

    def __iter__(self) -> Iterator[PacketBatch]:
        source = Input(self._path, self._name, self._watch)
        try:
            yield from self._batches(source)
        finally:
            source.close()

    def _batches(self, source: Input) -> Iterator[PacketBatch]:
        self.info.compression = source.compression
        capacity, need = self._batch_bytes, _HEAD
        buffers = Reuse(capacity + self._spare, np.uint8)
        matrices = Reuse((Packet.WIDTH, min(MAX_PACKETS, capacity // 16 + 1)), np.int64)
        buffer = buffers.take()
        position, filled, origin, ended = 0, 0, 0, False
        scanner: Scanner | None = None
        last = False
        while not last:
            while need and not ended and filled - position < need:
                filled, ended = source.fill(buffer.data, filled, capacity)
            if scanner is None and not filled and not source.damage and not self._alone:
                self.info.truncated = True
                self.info.problem("capture-truncated", 0, None, "the file is empty")
                return
            if scanner is None:
                scanner, position = self._scanner(bytes(buffer[:filled][:_HEAD]), source)
            if self._decide:
                self.compiled = max(source.size or 0, origin + filled) >= COMPILE_ABOVE

            columns = matrices.take()
            position, rows, need, stop = scanner.scan(buffer, position, filled, columns, origin, self.compiled)
            last = stop or (ended and need > 0)
            if last and not stop and position < filled:
                rows += scanner.remainder(buffer, position, filled, columns, rows, origin)
                position = filled
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
        if scanner:
            scanner.finish()
        if source.damage:
            self.info.truncated = True
            self.info.problem("capture-truncated", 0, None, source.damage)

    def _scanner(self, head: bytes, source: Input) -> tuple[Scanner, int]:
        """Return the scanner for a file that begins with `head`, and the position where it begins to scan."""
        if source.damage and len(head) < _SHORTEST:
            raise CaptureError(f"{self._name}: {source.damage}")
        if is_pcap(head):
            return PcapScanner(head, self._name, self.info), 24
        if head.startswith(SECTION_MAGIC):
            return PcapngScanner(head, self._name, self.info), 0
        if not head:
            raise CaptureError(f"{self._name}: the file is empty")
        raise CaptureError(f"{self._name}: not a pcap or pcapng file ({describe(head)})")

    def _batch(self, data: Bytes, used: int, columns: Ints, consumed: int) -> PacketBatch:
        info, ts_ns = self.info, columns[Packet.TS_NS]
        if info.first_ts_ns is None:
            info.first_ts_ns = int(ts_ns[0])
        info.last_ts_ns = int(ts_ns[-1])
        info.packets += len(ts_ns)
        info.captured_bytes += int(columns[Packet.CAPLEN].sum())
        secrets, self._emitted = info.secrets[self._emitted :], len(info.secrets)
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
