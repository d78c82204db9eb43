"""AMQP 1.0 as far as its handshake goes: headers, SASL, open and close, read into records.

A connection begins with a header for SASL or for AMQP itself, and after SASL comes a second header (AMQP 1.0, sections
2.2 and 5.3.2). Frames are those of section 2.3; which of their performatives and fields are looked at, stands in
`spec/handshakes.toml`. After close, or KEPT bytes of a side, nothing is read any more.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from amqpscope.dissector.handshakes.arguments import ArgumentsCache
from amqpscope.dissector.handshakes.logins import user_name
from amqpscope.dissector.handshakes.record import ConnectionRecord, PacketRef
from amqpscope.dissector.kernels.arrays import Ints
from amqpscope.dissector.kernels.coding import Coding, Target
from amqpscope.dissector.kernels.retained import Buffer
from amqpscope.dissector.protocols.amqp100.objects import MalformedError, value
from amqpscope.dissector.protocols.registry import Context
from amqpscope.dissector.tcp.state import Chunk
from amqpscope.spec import amqp100, handshakes

KEPT = 1 << 14
"""Bytes of each side that are read; a frame may not be larger either."""
HEADER_BYTES, HEAD_BYTES = 8, 8
SASL_OK = 0
VHOST = "vhost:"
"""With this RabbitMQ's name for a virtual host begins, in the hostname of open."""


@dataclass(slots=True)
class _Direction:
    """What was not read yet of one side, and the number of bytes that came in all."""

    unread: bytearray = field(default_factory=bytearray)
    came: int = 0
    headers: int = 0


STATE = Coding(_Direction)


class Amqp10Handshakes:
    """Reads the beginnings of connections into their records."""

    def __init__(self, context: Context) -> None:
        self.record = context.record
        self.accounting = context.accounting
        self.arguments = ArgumentsCache()
        self.names = {code: name for names in amqp100.load().performatives.values() for code, name in names.items()}
        self.fields = handshakes.load().performatives
        self.directions: dict[int, tuple[_Direction, _Direction]] = {}
        """Of connections whose handshake goes on."""

    def begin(self, slots: Ints) -> None:
        """Take over connections that were seen from their start."""
        for slot in slots.tolist():
            self.directions[slot] = _Direction(), _Direction()

    def end(self, slots: Ints) -> None:
        """Forget connections that are over."""
        for slot in slots.tolist():
            self.directions.pop(slot, None)

    def take_out(self, slots: Ints) -> bytes:
        """Take out what was not read yet of connections."""
        return STATE.written([self.directions.pop(slot, None) for slot in slots.tolist()])

    def put_back(self, data: bytes, target: Target) -> None:
        """Put back what `take_out` took."""
        for slot, directions in zip(target.slots.tolist(), STATE.read(data, target.captures), strict=True):
            if directions:
                self.directions[slot] = directions

    def feed(self, chunks: Ints, buffer: Buffer) -> None:
        """Take chunks of their streams."""
        rows = (Chunk.SLOT, Chunk.SIDE, Chunk.OFFSET, Chunk.LENGTH, Chunk.TS, Chunk.PACKET, Chunk.CAPTURE)
        going = np.isin(chunks[Chunk.SLOT], np.fromiter(self.directions, np.int64, len(self.directions)))
        for slot, side, offset, length, *at in zip(*chunks[rows, :][:, going].tolist(), strict=True):
            if slot in self.directions:
                before = self._remembered(slot)
                data = buffer.data[offset : offset + min(length, KEPT)].tobytes() if offset >= 0 else None
                self._take(slot, side, data, PacketRef(*at))
                self.accounting.change(slot, self._remembered(slot) - before)

    def _remembered(self, slot: int) -> int:
        """Return the size of unread bytes and of steps' texts."""
        unread = sum(len(direction.unread) for direction in self.directions.get(slot, ()))
        return unread + sum(len(step.detail) for step in self.record(slot).steps)

    def _take(self, slot: int, side: int, data: bytes | None, at: PacketRef) -> None:
        direction, record = self.directions[slot][side], self.record(slot)
        over = data is None
        if data is not None:
            direction.unread += data
            direction.came += len(data)
            try:
                over = self._read(direction, record, side, at)
            except MalformedError:
                over = True
            if direction.came > KEPT:
                over = True
        if over:
            record.facts["unread"] = not record.used
            del self.directions[slot]

    def _read(self, direction: _Direction, record: ConnectionRecord, side: int, at: PacketRef) -> bool:
        """Read what is whole; whether the handshake is over."""
        data = direction.unread
        while len(data) >= HEAD_BYTES:
            if data.startswith(b"AMQP"):
                direction.headers += 1
                if direction.headers > 1:  # the first is a step anyhow
                    record.step("header", side, at, handshakes.opening(bytes(data[:HEADER_BYTES])).doc)
                del data[:HEADER_BYTES]
                continue
            size, offset = int.from_bytes(data[:4]), 4 * data[4]
            if size > KEPT or not HEAD_BYTES <= offset <= max(size, HEAD_BYTES) or size < HEAD_BYTES:
                raise MalformedError
            if len(data) < size:
                return False
            if size > offset:
                self._perform(bytes(data[offset:size]), record, side, at)
            del data[:size]
            if "close" in record.arguments:
                return True
        return False

    def _perform(self, data: bytes, record: ConnectionRecord, side: int, at: PacketRef) -> None:
        described, _ = value(data, 0)
        code, fields = described if isinstance(described, tuple) else (None, None)
        name = self.names.get(code, "") if isinstance(code, int) else ""
        if name not in self.fields or not isinstance(fields, list):
            record.use(side, at)
            return
        self._tell(name, dict(zip(self.fields[name], fields, strict=False)), record, side, at)

    def _tell(self, name: str, values: dict[str, Any], record: ConnectionRecord, side: int, at: PacketRef) -> None:
        of = self.arguments.of
        if name == "sasl-mechanisms":
            offered = values.get("mechanisms")
            names = " ".join(map(str, offered)) if isinstance(offered, list) else str(offered or "")
            record.message(name, "start", side, at, of("start", ("mechanisms",), (names,)))
        elif name == "sasl-init":
            mechanism = str(values.get("mechanism"))
            response = values.get("response")
            text = response.decode("latin-1") if isinstance(response, bytes) else ""
            record.user = user_name(mechanism, text) if text else None
            arguments = of("start-ok", ("mechanism",), (mechanism,))
            record.message(
                name, "start-ok", side, at, arguments, arguments.detail + (f" as {record.user}" if record.user else "")
            )
        elif name == "sasl-outcome" and values.get("code") != SASL_OK:
            code = values["code"] if isinstance(values.get("code"), int) else -1
            words, doc = handshakes.load().sasl_codes.get(code, ("unknown", f"code {code}"))
            arguments = of("refusal", ("code", "words", "doc", "of"), (code, words, doc, "the login"))
            record.message(f"{name} refused", "refusal", side, at, arguments)
        elif name == "open":
            host = values.get("hostname")
            if isinstance(host, str) and host.startswith(VHOST):
                record.arguments["open"] = of("open", ("virtual_host",), (host[len(VHOST) :],))
            limits = [f"{key} {values[key]}" for key in ("hostname", "max-frame-size") if values.get(key) is not None]
            record.step(name, side, at, ", ".join(limits))
        elif name == "close":
            error = values.get("error")
            parts = error[1] if isinstance(error, tuple) and isinstance(error[1], list) else []
            reason = ": ".join(part for part in parts[:2] if part and isinstance(part, str)) or None
            record.message(
                name,
                "close",
                side,
                at,
                of("close", ("reply_code", "reply_text"), (None if reason else 0, reason)),
                reason or "",
            )
        else:
            record.step(name, side, at)
