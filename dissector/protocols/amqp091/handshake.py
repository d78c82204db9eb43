"""Handshakes: AMQP 0-9-1's methods to records of connections."""

from typing import Any, NamedTuple

import numpy as np

from amqpscope.dissector.fields.arrow import picked
from amqpscope.dissector.fields.decoding import Decoded
from amqpscope.dissector.fields.secrets import with_secrets
from amqpscope.dissector.handshakes.arguments import NOTHING, ArgumentsCache, PeerArguments
from amqpscope.dissector.handshakes.cache import BoundedCache
from amqpscope.dissector.handshakes.logins import CHALLENGES, Logins, challenged_name
from amqpscope.dissector.handshakes.record import PacketRef
from amqpscope.dissector.kernels.arrays import Bytes, Ints
from amqpscope.dissector.protocols.amqp091 import layout as ly
from amqpscope.dissector.protocols.amqp091.state import Frame
from amqpscope.dissector.protocols.registry import Context
from amqpscope.spec.model import Protocol

CHANNEL_FAILED = 300
"""Reply codes from here on are errors."""
PROPERTIES = {"client_properties": "client", "server_properties": "server"}
"""Arguments that may differ from connection to connection, so they are kept apart from the others."""


class _Arguments(NamedTuple):
    """What a method says."""

    event: str
    role: str
    values: PeerArguments
    properties: dict[str, str | None]


class Amqp091Handshakes:
    """Reads methods into the records of their connections."""

    def __init__(self, protocol: Protocol, context: Context) -> None:
        self.record = context.record
        self.accounting = context.accounting
        self.used = context.used
        self.arguments = ArgumentsCache()
        self.known: BoundedCache[bytes, _Arguments] = BoundedCache()
        """By bytes, for most connections say the same; none that a secret is in."""
        self.has_secret = with_secrets(protocol)
        self.names = [m.full_name for m in protocol.methods]
        self.roles = [name.removeprefix("connection.") for name in self.names]
        self.columns = [tuple(a.column for a in m.fields if a.column) for m in protocol.methods]
        self.of_handshake = np.array(
            [m.class_name == "connection" or m.full_name == "channel.close" for m in protocol.methods], np.bool_
        )
        self.introduces = np.array([m.class_name == "connection" for m in protocol.methods], np.bool_)
        self.ids = {(m.class_id, m.id): m.full_name for m in protocol.methods}
        self.logins = Logins(protocol, "connection.start-ok", "response", context.compiled)
        self.answers = Logins(protocol, "connection.secure-ok", "response", context.compiled, challenged_name)

    def relevant(self, rows: Ints) -> Ints:
        """Return indexes of the frames that `take` reads: those of handshakes, and first uses of connections."""
        return self.used.relevant(rows[Frame.SLOT], rows[Frame.METHOD], self.of_handshake, ~self.of_handshake)

    def take(self, frames: Ints, fields: Decoded, data: Bytes) -> None:
        """Read the frames of handshakes, and note who is in use.

        Args:
            frames: (Frame, n).
            fields: their methods' arguments.
            data: has the bytes of both.
        """
        index = self.relevant(frames)
        rows = frames[:, index]
        introduces = self.introduces[rows[Frame.METHOD]]
        self.accounting.add(rows[Frame.SLOT][introduces], rows[Frame.LENGTH][introduces])
        self.used.note(rows[Frame.SLOT][~self.of_handshake[rows[Frame.METHOD]]])
        found = self._arguments(rows, index, fields, data)
        users = self._users(self.logins, rows, found, data)
        answers = self._users(self.answers, rows, found, data)
        wheres = map(PacketRef, *rows[(Frame.TS, Frame.PACKET, Frame.CAPTURE), :].tolist())
        senders = rows[(Frame.SLOT, Frame.SIDE, Frame.CHANNEL), :].tolist()
        for n, (slot, side, channel, at, arguments) in enumerate(zip(*senders, wheres, found, strict=True)):
            record = self.record(slot)
            if arguments is None:
                record.use(side, at)
                continue
            event, role, values, properties = arguments
            detail = values.detail
            if event == "channel.close":
                record.use(side, at)
                if (values["reply_code"] or 0) >= CHANNEL_FAILED:
                    record.channel_error(at, self._failure(channel, values))
                continue
            if n in users:
                record.user, record.cut_login = users[n]
                detail += f" as {record.user}" if record.user else ""
            elif n in answers and record.arguments.get("start-ok", NOTHING).get("mechanism") in CHALLENGES:
                record.user = answers[n][0]
            for announcer, text in properties.items():
                record.describe(announcer, text)
            if role == "redirect":
                record.facts["redirected_to"] = values["host"]
            record.message(event, role, side, at, values, detail)

    def _arguments(self, rows: Ints, index: Ints, fields: Decoded, data: Bytes) -> list[_Arguments | None]:
        """Return the arguments of the frames at `index` whose methods belong to a handshake; `rows` are theirs."""
        methods = rows[Frame.METHOD]
        found: list[_Arguments | None] = [None] * len(index)
        is_new = self.of_handshake[methods]
        same = np.flatnonzero(is_new & ~self.has_secret[methods] & (rows[Frame.MISSING] == 0))
        begins, content = rows[Frame.OFFSET, same], data.data
        ends = begins + rows[Frame.LENGTH, same]
        keys = {}
        for n, begin, end in zip(same.tolist(), begins.tolist(), ends.tolist(), strict=True):
            key = bytes(content[begin:end])
            found[n] = self.known.get(key)
            if found[n] is None:
                keys[n] = key
            else:
                is_new[n] = False
        for method in np.unique(methods[is_new]).tolist():
            mine = np.flatnonzero(is_new & (methods == method))
            columns = {name: picked(fields.columns[name], index[mine]) for name in self.columns[method]}
            apart = [(whose, columns.pop(name)) for name, whose in PROPERTIES.items() if name in columns]
            event, role, names = self.names[method], self.roles[method], tuple(columns)
            for place, (n, *values) in enumerate(zip(mine.tolist(), *columns.values(), strict=True)):
                properties = {whose: texts[place] for whose, texts in apart}
                made = found[n] = _Arguments(event, role, self.arguments.of(role, names, tuple(values)), properties)
                if n in keys:
                    self.known.keep(keys[n], made, len(keys[n]) + sum(len(text or "") for text in properties.values()))
        return found

    def _failure(self, channel: int, values: dict[str, Any]) -> str:
        cause = self.ids.get((values["class_id"], values["method_id"]))
        text = values["reply_text"] or str(values["reply_code"])
        return f"channel {channel}: {text}" + (f" ({cause})" if cause and cause not in text else "")

    def _users(
        self, logins: Logins, rows: Ints, found: list[_Arguments | None], data: Bytes
    ) -> dict[int, tuple[str | None, bool]]:
        """Return the user's name of each start-ok, and whether parts of the frame are missing."""
        mine = np.flatnonzero(rows[Frame.METHOD] == logins.method)
        if not len(mine):
            return {}
        mechanisms = [arguments.values.get("mechanism") if (arguments := found[n]) else None for n in mine.tolist()]
        offset, length = rows[Frame.OFFSET, mine] + ly.IDS_BYTES, rows[Frame.LENGTH, mine] - ly.IDS_BYTES
        users = logins.users(mechanisms, offset, length, data)
        missing = (rows[Frame.MISSING, mine] > 0).tolist()
        return dict(zip(mine.tolist(), zip(users, missing, strict=True), strict=True))
