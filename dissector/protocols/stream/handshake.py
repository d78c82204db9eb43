"""What commands of the stream protocol tell of their connection: frames to stories.

A command and its answer are steps of the same name; an answer with an error is a step `refused`, one with a challenge
a step `challenge`. The roles of `Story.told` are those of AMQP 0-9-1, for the dialogue is the same in other words.
"""

import json
from collections.abc import Callable
from typing import Any

import numpy as np

from amqpscope import spec
from amqpscope.dissector.fields.arrow import picked
from amqpscope.dissector.handshakes.arguments import Sayings
from amqpscope.dissector.handshakes.first_use import Used
from amqpscope.dissector.handshakes.logins import Logins
from amqpscope.dissector.handshakes.record import Story, Where
from amqpscope.dissector.kernels.accounting import Burden
from amqpscope.dissector.kernels.arrays import Ints, Octets
from amqpscope.dissector.protocols.stream import layout as sl
from amqpscope.dissector.protocols.stream.protocol import PROTOCOL, StreamFrames

OK, CHALLENGE = 1, 10
"""Response codes that are no errors."""
DIALOGUE = (
    "peer-properties", "sasl-handshake", "sasl-authenticate", "tune", "open", "close",
)  # fmt: skip
LONGEST_HEARTBEAT = 2**31 - 1
"""Seconds. Frames tell what was really said."""
NEUTRAL = ("heartbeat", "exchange-command-versions")
"""Commands that are no use of the connection."""
ONE_ROUND = ("PLAIN", "AMQPLAIN")
"""Mechanisms whose logins all begin with the user's name."""
COLUMNS = (
    "response_code", "peer_properties", "mechanisms", "mechanism", "frame_max", "heartbeat", "virtual_host",
    "closing_code", "closing_reason",
)  # fmt: skip


class Commands:
    """Reads commands into the stories that `story` gives by slot."""

    def __init__(self, compiled: bool, story: Callable[[int], Story], used: Used, burden: Burden) -> None:
        protocol = spec.load(PROTOCOL)
        self.burden = burden
        self.story = story
        self.used = used
        self.sayings = Sayings()
        self.names = [m.name for m in protocol.methods]
        self.is_answer = [m.class_id == 1 for m in protocol.methods]
        self.is_telling = np.array([name in DIALOGUE for name in self.names], np.bool_)
        self.is_use = np.array([name not in DIALOGUE + NEUTRAL for name in self.names], np.bool_)
        self.words = {c.value: (c.name, c.doc) for c in protocol.constants if c.kind == "response"}
        self.logins = Logins(protocol, "sasl-authenticate", "sasl_data", compiled)

    def telling(self, rows: Ints) -> Ints:
        """Indexes of the frames that `take` looks at: those that tell of their connection, and first uses of it."""
        return self.used.telling(rows[sl.R_SLOT], rows[sl.R_LAYOUT], self.is_telling, self.is_use)

    def take(self, frames: StreamFrames, data: Octets) -> None:
        """Read the frames that tell of their connection, and note who is in use."""
        index = self.telling(frames.rows)
        rows = frames.rows[:, index]
        telling = self.is_telling[rows[sl.R_LAYOUT]]
        self.burden.add(rows[sl.R_SLOT][telling], rows[sl.R_LENGTH][telling])
        self.used.note(rows[sl.R_SLOT][~telling])
        values = {name: picked(frames.fields.columns[name], index) for name in COLUMNS}
        users = self._users(rows, values["mechanism"], data)
        wanted = (sl.R_SLOT, sl.R_SIDE, sl.R_LAYOUT, sl.R_TS, sl.R_PACKET, sl.R_CAPTURE)
        for n, (slot, side, kind, *where) in enumerate(zip(*rows[wanted, :].tolist(), strict=True)):
            story = self.story(slot)
            if not self.is_telling[kind]:
                story.use(side, Where(*where))
                continue
            if n in users:
                story.user, story.cut_login = users[n]
            self._tell(story, kind, side, Where(*where), {name: column[n] for name, column in values.items()})

    def _tell(self, story: Story, kind: int, side: int, at: Where, values: dict[str, Any]) -> None:
        name, is_answer, code = self.names[kind], self.is_answer[kind], values["response_code"]
        if is_answer and code == CHALLENGE:
            story.step(f"{name} challenge", side, at)
        elif is_answer and code not in (OK, None):
            words, doc = self.words.get(code, ("", f"code {code}"))
            said = self.sayings.of("refusal", ("code", "words", "doc", "of"), (code, words, doc, name))
            story.say(f"{name} refused", "refusal", side, at, said)
        elif name == "peer-properties":
            story.describe("server" if is_answer else "client", values["peer_properties"])
            story.step(name, side, at)
        elif name == "sasl-handshake" and is_answer:
            offered = " ".join(map(str, json.loads(values["mechanisms"] or "[]")))
            story.say(name, "start", side, at, self.sayings.of("start", ("mechanisms",), (offered,)))
        elif name == "sasl-authenticate" and not is_answer:
            said = self.sayings.of("start-ok", ("mechanism",), (values["mechanism"],))
            detail = said.detail + (f" as {story.user}" if story.user else "")
            story.say(name, "start-ok", side, at, said, detail)
        elif name == "tune":
            # Some clients' answers lack the bit that makes them answers; the broker speaks first.
            role = "tune-ok" if is_answer or "tune" in story.told else "tune"
            heartbeat = values["heartbeat"]
            if heartbeat is not None:  # 32 bits without a sign; the table has seconds that make sense
                heartbeat = min(heartbeat, LONGEST_HEARTBEAT)
            limits = ("frame_max", "heartbeat")
            story.say(name, role, side, at, self.sayings.of(role, limits, (values["frame_max"], heartbeat)))
        elif name == "open" and not is_answer:
            story.say(name, "open", side, at, self.sayings.of("open", ("virtual_host",), (values["virtual_host"],)))
        elif name == "close":
            told = (values["closing_code"], values["closing_reason"])
            said = self.sayings.of("close", ("reply_code", "reply_text"), told)
            story.say("close-ok" if is_answer else "close", "close-ok" if is_answer else "close", side, at, said,
                      "" if is_answer else None)  # fmt: skip
        else:
            story.step(name, side, at)

    def _users(self, rows: Ints, mechanisms: list[str | None], data: Octets) -> dict[int, tuple[str | None, bool]]:
        """Of each login the user's name, and whether parts of the frame are missing."""
        mine = np.flatnonzero(rows[sl.R_LAYOUT] == self.logins.method)
        if not len(mine):
            return {}
        # Of mechanisms with several rounds a later response, with a password in it, may be the first that is seen.
        wanted = [mechanisms[n] if mechanisms[n] in ONE_ROUND else None for n in mine.tolist()]
        users = self.logins.users(wanted, rows[sl.R_OFFSET, mine], rows[sl.R_LENGTH, mine], data)
        missing = (rows[sl.R_MISSING, mine] > 0).tolist()
        return dict(zip(mine.tolist(), zip(users, missing, strict=True), strict=True))
