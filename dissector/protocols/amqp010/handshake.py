"""Handshakes: controls and commands of AMQP 0-10 to records of connections.

The roles of `ConnectionRecord.arguments` are those of AMQP 0-9-1: the dialogue is the same. A session that is refused
and a command that fails are shown as closed channels are there.
"""

import json
from typing import Any

import numpy as np

from amqpscope.dissector.fields.arrow import picked
from amqpscope.dissector.fields.decoding import Decoded
from amqpscope.dissector.handshakes.arguments import NOTHING, ArgumentsCache, PeerArguments
from amqpscope.dissector.handshakes.logins import CHALLENGES, Logins, challenged_name
from amqpscope.dissector.handshakes.record import ConnectionRecord, PacketRef
from amqpscope.dissector.kernels.arrays import Bytes, Ints
from amqpscope.dissector.protocols.amqp010.layout import IDS_BYTES
from amqpscope.dissector.protocols.amqp010.state import Frame
from amqpscope.dissector.protocols.registry import Context
from amqpscope.spec.model import Protocol

HEARTBEAT = "connection.heartbeat"
DETACHED, EXCEPTION = "session.detached", "execution.exception"
ARGUMENTS = {
    "start": {"mechanisms": "mechanisms"},
    "start-ok": {"mechanism": "mechanism"},
    "tune": {"channel_max": "channel_max", "frame_max": "max_frame_size", "heartbeat": "heartbeat_max"},
    "tune-ok": {"channel_max": "channel_max", "frame_max": "max_frame_size", "heartbeat": "heartbeat"},
    "open": {"virtual_host": "virtual_host"},
    "close": {"reply_code": "reply_code", "reply_text": "reply_text"},
}
"""Of controls of class connection what they say, and the columns where it is."""
COLUMNS = (
    *dict.fromkeys(column for columns in ARGUMENTS.values() for column in columns.values()),
    "server_properties", "client_properties", "host", "code", "error_code", "description",
)  # fmt: skip


class Amqp010Handshakes:
    """Reads controls and commands into the records of their connections."""

    def __init__(self, protocol: Protocol, context: Context) -> None:
        self.record = context.record
        self.accounting = context.accounting
        self.used = context.used
        self.arguments = ArgumentsCache()
        self.names = [m.full_name for m in protocol.methods]
        self.of_handshake = np.array(
            [
                m.full_name in (DETACHED, EXCEPTION) or (m.class_name == "connection" and m.full_name != HEARTBEAT)
                for m in protocol.methods
            ],
            np.bool_,
        )
        self.is_use = np.array([m.class_name != "connection" for m in protocol.methods], np.bool_) & ~self.of_handshake
        self.words = {
            domain.name: {choice.value: choice.name for choice in domain.choices} for domain in protocol.domains
        }
        self.logins = Logins(protocol, "connection.start-ok", "response", context.compiled)
        self.answers = Logins(protocol, "connection.secure-ok", "response", context.compiled, challenged_name)

    def relevant(self, rows: Ints) -> Ints:
        """Return indexes of the frames that `take` reads: those of handshakes, and first uses of connections."""
        return self.used.relevant(rows[Frame.SLOT], rows[Frame.METHOD], self.of_handshake, self.is_use)

    def take(self, frames: Ints, fields: Decoded, data: Bytes) -> None:
        """Read the frames of handshakes, and note who is in use.

        Args:
            frames: (Frame, n).
            fields: those of the operations that they complete.
            data: has the bytes of both.
        """
        index = self.relevant(frames)
        rows = frames[:, index]
        relevant = self.of_handshake[rows[Frame.METHOD]]
        self.accounting.add(rows[Frame.SLOT][relevant], rows[Frame.BYTES][relevant])
        self.used.note(rows[Frame.SLOT][~relevant])
        values = {name: picked(fields.columns[name], index) for name in COLUMNS}
        users = self._users(self.logins, rows, values["mechanism"], data)
        answers = self._users(self.answers, rows, values["mechanism"], data)
        wanted = (Frame.SLOT, Frame.SIDE, Frame.CHANNEL, Frame.METHOD, Frame.TS, Frame.PACKET, Frame.CAPTURE)
        for n, (slot, side, channel, method, *where) in enumerate(zip(*rows[wanted, :].tolist(), strict=True)):
            record, at = self.record(slot), PacketRef(*where)
            if not self.of_handshake[method]:
                record.use(side, at)
                continue
            if n in users:
                record.user, record.cut_login = users[n]
            elif n in answers and record.arguments.get("start-ok", NOTHING).get("mechanism") in CHALLENGES:
                record.user = answers[n][0]
            values_of = {name: held[n] for name, held in values.items()}
            self._note(record, self.names[method], channel, side, at, values_of, rows[Frame.CUT, n] == 0)

    def seal(self, slot: int) -> None:
        """Note that a connection is encrypted by its login mechanism from here on."""
        self.record(slot).facts["unread"] = True

    def _note(
        self, record: ConnectionRecord, name: str, channel: int, side: int, at: PacketRef, values: dict[str, Any],
        is_whole: bool,
    ) -> None:  # fmt: skip
        if name in (DETACHED, EXCEPTION):
            record.use(side, at)
            if why := self._failure(name, values):
                record.channel_error(at, f"channel {channel}: {why}")
            return
        role = name.removeprefix("connection.")
        if role == "start":
            record.describe("server", values["server_properties"])
            values["mechanisms"] = " ".join(map(str, json.loads(values["mechanisms"] or "[]")))
        elif role == "start-ok":
            record.describe("client", values["client_properties"])
        elif role == "tune-ok" and is_whole:
            values["heartbeat"] = values["heartbeat"] or 0  # absent, there is none
        elif role == "redirect":
            record.facts["redirected_to"] = values["host"]
        arguments = self._arguments(role, values)
        detail = arguments.detail + (f" as {record.user}" if role == "start-ok" and record.user else "")
        record.message(name, role, side, at, arguments, detail)

    def _arguments(self, role: str, values: dict[str, Any]) -> PeerArguments:
        held = ARGUMENTS.get(role, {})
        return self.arguments.of(role, tuple(held), tuple(values[column] for column in held.values()))

    def _failure(self, name: str, values: dict[str, Any]) -> str:
        """Return what is wrong with a session or command; empty where nothing is."""
        if name == DETACHED:
            code = values["code"] or 0
            return self.words["session.detach-code"].get(code, f"code {code}") if code else ""
        code = values["error_code"] or 0
        word, text = self.words["execution.error-code"].get(code, f"code {code}"), values["description"] or ""
        return text if text.startswith(word) else f"{word}: {text}".rstrip(": ")

    def _users(
        self, logins: Logins, rows: Ints, mechanisms: list[str | None], data: Bytes
    ) -> dict[int, tuple[str | None, bool]]:
        """Return the user's name of each login, and whether parts of the login are missing."""
        mine = np.flatnonzero(rows[Frame.METHOD] == logins.method)
        if not len(mine):
            return {}
        offset, length = rows[Frame.AT, mine] + IDS_BYTES, rows[Frame.BYTES, mine] - IDS_BYTES
        users = logins.users([mechanisms[n] for n in mine.tolist()], offset, length, data)
        return dict(zip(mine.tolist(), zip(users, (rows[Frame.CUT, mine] > 0).tolist(), strict=True), strict=True))
