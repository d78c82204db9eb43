"""AMQP 1.0 as far as its handshake goes: headers, SASL, open and close, read into stories.

A connection begins with a header for SASL or for AMQP itself, and after SASL comes a second header (AMQP 1.0, sections
2.2 and 5.3.2). Frames are those of section 2.3; which of their performatives and fields are looked at, stands in
`spec/handshakes.toml`. Behind close, or KEPT octets of a side, nothing is read any more.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from amqpscope.dissector.handshakes.arguments import Sayings
from amqpscope.dissector.handshakes.logins import user_name
from amqpscope.dissector.handshakes.record import Story, Where
from amqpscope.dissector.kernels.accounting import Burden
from amqpscope.dissector.kernels.arrays import Ints
from amqpscope.dissector.kernels.retained import Buffer
from amqpscope.dissector.protocols.amqp10.objects import MalformedError, value
from amqpscope.dissector.tcp.layout import S_CAPTURE, S_LENGTH, S_OFFSET, S_PACKET, S_SIDE, S_SLOT, S_TS
from amqpscope.spec import amqp10, handshakes

KEPT = 1 << 14
"""Octets of each side that are read; a frame may not be larger either."""
HEADER_OCTETS, HEAD_OCTETS = 8, 8
SASL_OK = 0
VHOST = "vhost:"
"""With this RabbitMQ's name for a virtual host begins, in the hostname of open."""


@dataclass(slots=True)
class _Half:
    """What was not read yet of one side, and how many octets came in all."""

    octets: bytearray = field(default_factory=bytearray)
    came: int = 0
    headers: int = 0


class Layers:
    """Reads the beginnings of connections into the stories that `story` gives by slot."""

    def __init__(self, story: Callable[[int], Story], burden: Burden) -> None:
        self.story = story
        self.burden = burden
        self.sayings = Sayings()
        self.names = {code: name for names in amqp10.load().performatives.values() for code, name in names.items()}
        self.fields = handshakes.load().performatives
        self.halves: dict[int, tuple[_Half, _Half]] = {}
        """Of connections whose handshake goes on."""

    def begin(self, slots: Ints) -> None:
        """Take over connections that were seen from their start."""
        for slot in slots.tolist():
            self.halves[slot] = _Half(), _Half()

    def end(self, slots: Ints) -> None:
        """Forget connections that are over."""
        for slot in slots.tolist():
            self.halves.pop(slot, None)

    def feed(self, pieces: Ints, buffer: Buffer) -> None:
        """Take pieces of their streams."""
        rows = (S_SLOT, S_SIDE, S_OFFSET, S_LENGTH, S_TS, S_PACKET, S_CAPTURE)
        going = np.isin(pieces[S_SLOT], np.fromiter(self.halves, np.int64, len(self.halves)))
        for slot, side, offset, length, *at in zip(*pieces[rows, :][:, going].tolist(), strict=True):
            if slot in self.halves:
                before = self._remembered(slot)
                octets = buffer.data[offset : offset + min(length, KEPT)].tobytes() if offset >= 0 else None
                self._take(slot, side, octets, Where(*at))
                self.burden.change(slot, self._remembered(slot) - before)

    def _remembered(self, slot: int) -> int:
        """Octets not read yet, and characters of steps."""
        unread = sum(len(half.octets) for half in self.halves.get(slot, ()))
        return unread + sum(len(step.detail) for step in self.story(slot).steps)

    def _take(self, slot: int, side: int, octets: bytes | None, at: Where) -> None:
        half, story = self.halves[slot][side], self.story(slot)
        over = octets is None
        if octets is not None:
            half.octets += octets
            half.came += len(octets)
            try:
                over = self._read(half, story, side, at)
            except MalformedError:
                over = True
            if half.came > KEPT:
                over = True
        if over:
            story.facts["unread"] = not story.used
            del self.halves[slot]

    def _read(self, half: _Half, story: Story, side: int, at: Where) -> bool:
        """Read what is whole; whether the handshake is over."""
        octets = half.octets
        while len(octets) >= HEAD_OCTETS:
            if octets.startswith(b"AMQP"):
                half.headers += 1
                if half.headers > 1:  # the first is a step anyhow
                    story.step("header", side, at, handshakes.opening(bytes(octets[:HEADER_OCTETS])).doc)
                del octets[:HEADER_OCTETS]
                continue
            size, offset = int.from_bytes(octets[:4]), 4 * octets[4]
            if size > KEPT or not HEAD_OCTETS <= offset <= max(size, HEAD_OCTETS) or size < HEAD_OCTETS:
                raise MalformedError
            if len(octets) < size:
                return False
            if size > offset:
                self._perform(bytes(octets[offset:size]), story, side, at)
            del octets[:size]
            if "close" in story.told:
                return True
        return False

    def _perform(self, octets: bytes, story: Story, side: int, at: Where) -> None:
        described, _ = value(octets, 0)
        code, fields = described if isinstance(described, tuple) else (None, None)
        name = self.names.get(code, "") if isinstance(code, int) else ""
        if name not in self.fields or not isinstance(fields, list):
            story.use(side, at)
            return
        self._tell(name, dict(zip(self.fields[name], fields, strict=False)), story, side, at)

    def _tell(self, name: str, values: dict[str, Any], story: Story, side: int, at: Where) -> None:
        of = self.sayings.of
        if name == "sasl-mechanisms":
            offered = values.get("mechanisms")
            names = " ".join(map(str, offered)) if isinstance(offered, list) else str(offered or "")
            story.say(name, "start", side, at, of("start", ("mechanisms",), (names,)))
        elif name == "sasl-init":
            mechanism = str(values.get("mechanism"))
            response = values.get("response")
            text = response.decode("latin-1") if isinstance(response, bytes) else ""
            story.user = user_name(mechanism, text) if text else None
            said = of("start-ok", ("mechanism",), (mechanism,))
            story.say(name, "start-ok", side, at, said, said.detail + (f" as {story.user}" if story.user else ""))
        elif name == "sasl-outcome" and values.get("code") != SASL_OK:
            code = values["code"] if isinstance(values.get("code"), int) else -1
            words, doc = handshakes.load().sasl_codes.get(code, ("unknown", f"code {code}"))
            said = of("refusal", ("code", "words", "doc", "of"), (code, words, doc, "the login"))
            story.say(f"{name} refused", "refusal", side, at, said)
        elif name == "open":
            host = values.get("hostname")
            if isinstance(host, str) and host.startswith(VHOST):
                story.told["open"] = of("open", ("virtual_host",), (host[len(VHOST) :],))
            limits = [f"{key} {values[key]}" for key in ("hostname", "max-frame-size") if values.get(key) is not None]
            story.step(name, side, at, ", ".join(limits))
        elif name == "close":
            error = values.get("error")
            parts = error[1] if isinstance(error, tuple) and isinstance(error[1], list) else []
            told = ": ".join(part for part in parts[:2] if part and isinstance(part, str)) or None
            story.say(
                name,
                "close",
                side,
                at,
                of("close", ("reply_code", "reply_text"), (None if told else 0, told)),
                told or "",
            )
        else:
            story.step(name, side, at)
