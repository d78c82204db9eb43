"""Handshakes: commands of the stream protocol to records of connections.

A command and its answer are steps of the same name; an answer with an error is a step `refused`, one with a challenge
a step `challenge`. The roles of `ConnectionRecord.arguments` are those of AMQP 0-9-1: the dialogue is the same, with
other names.
"""

import json
from typing import Any

import numpy as np

from amqpscope.dissector.fields.arrow import picked
from amqpscope.dissector.fields.decoding import Decoded
from amqpscope.dissector.handshakes.arguments import ArgumentsCache
from amqpscope.dissector.handshakes.logins import Logins
from amqpscope.dissector.handshakes.record import ConnectionRecord, PacketRef
from amqpscope.dissector.kernels.arrays import Bytes, Ints
from amqpscope.dissector.protocols.registry import Context
from amqpscope.dissector.protocols.stream.state import Frame
from amqpscope.spec.model import Protocol

OK, CHALLENGE = 1, 10
"""Response codes that are no errors."""
DIALOGUE = (
    "peer-properties", "sasl-handshake", "sasl-authenticate", "tune", "open", "close",
)  # fmt: skip
LONGEST_HEARTBEAT = 2**31 - 1
"""Seconds. Frames show what was really agreed."""
NEUTRAL = ("heartbeat", "exchange-command-versions")
"""Commands that are no use of the connection."""
ONE_ROUND = ("PLAIN", "AMQPLAIN")
"""Mechanisms whose logins all begin with the user's name."""
COLUMNS = (
    "response_code", "peer_properties", "mechanisms", "mechanism", "frame_max", "heartbeat", "virtual_host",
    "closing_code", "closing_reason",
)  # fmt: skip


class StreamHandshakes:
    """Reads commands into the records of their connections."""

    def __init__(self, protocol: Protocol, context: Context) -> None:
        self.accounting = context.accounting
        self.record = context.record
        self.used = context.used
        self.arguments = ArgumentsCache()
        self.names = [m.name for m in protocol.methods]
        self.is_answer = [m.class_id == 1 for m in protocol.methods]
        self.of_handshake = np.array([name in DIALOGUE for name in self.names], np.bool_)
        self.is_use = np.array([name not in DIALOGUE + NEUTRAL for name in self.names], np.bool_)
        self.words = {c.value: (c.name, c.doc) for c in protocol.constants if c.kind == "response"}
        self.logins = Logins(protocol, "sasl-authenticate", "sasl_data", context.compiled)

    def relevant(self, rows: Ints) -> Ints:
        """Return indexes of the frames that `take` reads: those of handshakes, and first uses of connections."""
        return self.used.relevant(rows[Frame.SLOT], rows[Frame.LAYOUT], self.of_handshake, self.is_use)

    def take(self, frames: Ints, fields: Decoded, data: Bytes) -> None:
        """Read the frames of handshakes, and note who is in use.

        Args:
            frames: (Frame, n).
            fields: those of the commands.
            data: has the bytes of both.
        """
        index = self.relevant(frames)
        rows = frames[:, index]
        relevant = self.of_handshake[rows[Frame.LAYOUT]]
        self.accounting.add(rows[Frame.SLOT][relevant], rows[Frame.LENGTH][relevant])
        self.used.note(rows[Frame.SLOT][~relevant])
        values = {name: picked(fields.columns[name], index) for name in COLUMNS}
        users = self._users(rows, values["mechanism"], data)
        wanted = (Frame.SLOT, Frame.SIDE, Frame.LAYOUT, Frame.TS, Frame.PACKET, Frame.CAPTURE)
        for n, (slot, side, kind, *where) in enumerate(zip(*rows[wanted, :].tolist(), strict=True)):
            record = self.record(slot)
            if not self.of_handshake[kind]:
                record.use(side, PacketRef(*where))
                continue
            if n in users:
                record.user, record.cut_login = users[n]
            self._note(record, kind, side, PacketRef(*where), {name: column[n] for name, column in values.items()})

    def _note(self, record: ConnectionRecord, kind: int, side: int, at: PacketRef, values: dict[str, Any]) -> None:
        name, is_answer, code = self.names[kind], self.is_answer[kind], values["response_code"]
        if is_answer and code == CHALLENGE:
            record.step(f"{name} challenge", side, at)
        elif is_answer and code not in (OK, None):
            words, doc = self.words.get(code, ("", f"code {code}"))
            arguments = self.arguments.of("refusal", ("code", "words", "doc", "of"), (code, words, doc, name))
            record.message(f"{name} refused", "refusal", side, at, arguments)
        elif name == "peer-properties":
            record.describe("server" if is_answer else "client", values["peer_properties"])
            record.step(name, side, at)
        elif name == "sasl-handshake" and is_answer:
            offered = " ".join(map(str, json.loads(values["mechanisms"] or "[]")))
            record.message(name, "start", side, at, self.arguments.of("start", ("mechanisms",), (offered,)))
        elif name == "sasl-authenticate" and not is_answer:
            arguments = self.arguments.of("start-ok", ("mechanism",), (values["mechanism"],))
            detail = arguments.detail + (f" as {record.user}" if record.user else "")
            record.message(name, "start-ok", side, at, arguments, detail)
        elif name == "tune":
            # Some clients' answers lack the bit that makes them answers; the broker speaks first.
            role = "tune-ok" if is_answer or "tune" in record.arguments else "tune"
            heartbeat = values["heartbeat"]
            if heartbeat is not None:  # 32 bits without a sign; the table has seconds that make sense
                heartbeat = min(heartbeat, LONGEST_HEARTBEAT)
            limits = ("frame_max", "heartbeat")
            record.message(name, role, side, at, self.arguments.of(role, limits, (values["frame_max"], heartbeat)))
        elif name == "open" and not is_answer:
            record.message(
                name, "open", side, at, self.arguments.of("open", ("virtual_host",), (values["virtual_host"],))
            )
        elif name == "close":
            closing = (values["closing_code"], values["closing_reason"])
            arguments = self.arguments.of("close", ("reply_code", "reply_text"), closing)
            event = "close-ok" if is_answer else "close"
            record.message(event, event, side, at, arguments, "" if is_answer else None)
        else:
            record.step(name, side, at)

    def _users(self, rows: Ints, mechanisms: list[str | None], data: Bytes) -> dict[int, tuple[str | None, bool]]:
        """Return the user's name of each login, and whether parts of the frame are missing."""
        mine = np.flatnonzero(rows[Frame.LAYOUT] == self.logins.method)
        if not len(mine):
            return {}
        # Of mechanisms with several rounds a later response, with a password in it, may be the first that is seen.
        wanted = [mechanisms[n] if mechanisms[n] in ONE_ROUND else None for n in mine.tolist()]
        users = self.logins.users(wanted, rows[Frame.OFFSET, mine], rows[Frame.LENGTH, mine], data)
        missing = (rows[Frame.MISSING, mine] > 0).tolist()
        return dict(zip(mine.tolist(), zip(users, missing, strict=True), strict=True))
