"""What AMQP 0-9-1's methods tell of their connection: frames to stories."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from dissector.amqp091 import layout as ly
from dissector.amqp091.protocol import IDS_OCTETS, Frames
from dissector.arrays import Ints, Octets
from dissector.arrow import picked
from dissector.burden import Burden
from dissector.handshakes.logins import Logins
from dissector.handshakes.sayings import Said, Sayings
from dissector.handshakes.story import Story, Where
from dissector.handshakes.use import Used
from spec.model import Protocol

CHANNEL_FAILED = 300
"""Reply codes from here on are errors."""
PROPERTIES = {"client_properties": "client", "server_properties": "server"}
"""Arguments that may differ from connection to connection, so they are kept apart from the others."""


class _Arguments(NamedTuple):
    """What a method says."""

    said: Said
    properties: dict[str, str | None]


class Methods:
    """Reads methods into the stories that `story` gives by slot."""

    def __init__(
        self, protocol: Protocol, compiled: bool, story: Callable[[int], Story], used: Used, burden: Burden
    ) -> None:
        self.story = story
        self.burden = burden
        self.used = used
        self.sayings = Sayings()
        self.names = [m.full_name for m in protocol.methods]
        self.roles = [name.removeprefix("connection.") for name in self.names]
        self.columns = [tuple(a.column for a in m.fields if a.column) for m in protocol.methods]
        self.is_telling = np.array(
            [m.class_name == "connection" or m.full_name == "channel.close" for m in protocol.methods], np.bool_
        )
        self.introduces = np.array([m.class_name == "connection" for m in protocol.methods], np.bool_)
        self.ids = {(m.class_id, m.id): m.full_name for m in protocol.methods}
        self.logins = Logins(protocol, "connection.start-ok", "response", compiled)

    def telling(self, rows: Ints) -> Ints:
        """Indexes of the frames that `take` looks at: those that tell of their connection, and first uses of it."""
        return self.used.telling(rows[ly.R_SLOT], rows[ly.R_METHOD], self.is_telling, ~self.is_telling)

    def take(self, frames: Frames, data: Octets) -> None:
        """Read the frames that tell of their connection, and note who is in use."""
        index = self.telling(frames.rows)
        rows = frames.rows[:, index]
        introduces = self.introduces[rows[ly.R_METHOD]]
        self.burden.add(rows[ly.R_SLOT][introduces], rows[ly.R_LENGTH][introduces])
        self.used.note(rows[ly.R_SLOT][~self.is_telling[rows[ly.R_METHOD]]])
        said = self._said(rows[ly.R_METHOD], index, frames)
        users = self._users(rows, said, data)
        wanted = (ly.R_SLOT, ly.R_SIDE, ly.R_METHOD, ly.R_CHANNEL, ly.R_TS, ly.R_PACKET, ly.R_CAPTURE)
        for n, (slot, side, method, channel, *where) in enumerate(zip(*rows[wanted, :].tolist(), strict=True)):
            story, at, arguments = self.story(slot), Where(*where), said[n]
            if arguments is None:
                story.use(side, at)
                continue
            name, detail = self.names[method], arguments.said.detail
            if name == "channel.close":
                story.use(side, at)
                if (arguments.said["reply_code"] or 0) >= CHANNEL_FAILED:
                    story.channel_error(at, self._failure(channel, arguments.said))
                continue
            if n in users:
                story.user, story.cut_login = users[n]
                detail += f" as {story.user}" if story.user else ""
            for side_told, text in arguments.properties.items():
                story.describe(side_told, text)
            story.say(name, self.roles[method], side, at, arguments.said, detail)

    def _said(self, methods: Ints, index: Ints, frames: Frames) -> list[_Arguments | None]:
        """The arguments of the frames at `index` whose methods tell of their connection."""
        said: list[_Arguments | None] = [None] * len(index)
        for method in np.unique(methods[self.is_telling[methods]]).tolist():
            mine = np.flatnonzero(methods == method)
            columns = {name: picked(frames.fields.columns[name], index[mine]) for name in self.columns[method]}
            apart = [(whose, columns.pop(name)) for name, whose in PROPERTIES.items() if name in columns]
            role, names = self.roles[method], tuple(columns)
            for place, (n, *values) in enumerate(zip(mine.tolist(), *columns.values(), strict=True)):
                properties = {whose: texts[place] for whose, texts in apart}
                said[n] = _Arguments(self.sayings.of(role, names, tuple(values)), properties)
        return said

    def _failure(self, channel: int, values: dict[str, Any]) -> str:
        cause = self.ids.get((values["class_id"], values["method_id"]))
        text = values["reply_text"] or str(values["reply_code"])
        return f"channel {channel}: {text}" + (f" ({cause})" if cause and cause not in text else "")

    def _users(self, rows: Ints, said: list[_Arguments | None], data: Octets) -> dict[int, tuple[str | None, bool]]:
        """Of each start-ok the user's name, and whether parts of the frame are missing."""
        mine = np.flatnonzero(rows[ly.R_METHOD] == self.logins.method)
        if not len(mine):
            return {}
        mechanisms = [arguments.said["mechanism"] for n in mine.tolist() if (arguments := said[n])]
        offset, length = rows[ly.R_OFFSET, mine] + IDS_OCTETS, rows[ly.R_LENGTH, mine] - IDS_OCTETS
        users = self.logins.users(mechanisms, offset, length, data)
        missing = (rows[ly.R_MISSING, mine] > 0).tolist()
        return dict(zip(mine.tolist(), zip(users, missing, strict=True), strict=True))
