"""Commands of AMQP 0-10: when the other side completed each of them, or which exception it caused.

Here any command is outstanding until it is completed, also a transfer, a result and what asks for nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from amqpscope.dissector.kernels.arrays import Ints
from amqpscope.pipelines.amqp010 import session_joins as sj
from amqpscope.pipelines.amqp010.command_batches import COMMANDS, KINDS, METHODS, SCOPE, batch_of
from amqpscope.pipelines.amqp010.commands import COMPLETED, EXCEPTION, MORE, OUT, OUTCOMES, ROLES, Batch
from amqpscope.pipelines.amqp010.frames import FRAMES_010
from amqpscope.pipelines.amqp010.session_walk import SessionWalk
from amqpscope.pipelines.model.ends import COLUMNS, ended, latency
from amqpscope.pipelines.model.events import CONNECTIONS, MESSAGES, Events, what
from amqpscope.pipelines.model.walk import Needs, Rows, conform, known

_PLACE = ("connection_id", "channel", "channel_epoch", "from_client", "session")
_ROLES = {name: role for name, role in ROLES.items() if role <= COMPLETED or role == EXCEPTION}
_TRANSFER = "message.transfer"
_COMMANDS = [
    *(what(FRAMES_010, name) for name in COMMANDS if name != _TRANSFER),
    *(what(MESSAGES, kind) for kind in KINDS),
]


class SessionCommands(SessionWalk):
    """Writes `commands`: a row for each command of AMQP 0-10, of either side."""

    VERSION = 3
    MESSAGE = (*_PLACE, "number", *COLUMNS)
    FRAME = (*_PLACE, "command_id", "method", *COLUMNS)
    tables = ("commands",)
    needs: Mapping[int, Needs] = {
        CONNECTIONS: Needs(SCOPE),
        FRAMES_010: Needs(
            ("session", "command_id_sequence_no", "code", "error_code", "timeout", "commands", "description"), METHODS
        ),
        MESSAGES: Needs(("session",), KINDS),
    }

    def _batch(self, events: Events, at: Ints) -> Batch:
        batch = batch_of(events, at, self.messages.base, _ROLES)
        _, more, _ = batch
        more[:, MORE.ASKS] = events.among(_COMMANDS)[at]
        return batch

    def _written(self, events: Events | None, out: Ints) -> Iterator[Rows]:
        transfers = self.messages.has(out[:, OUT.ROW])
        for mine, waiting in ((transfers, self.messages), (~transfers, self.frames)):
            if not mine.any():
                continue
            some = out[mine]
            rows = waiting.take(some[:, OUT.ROW])
            method, number = (
                (_TRANSFER, rows["number"]) if waiting is self.messages else (rows["method"], rows["command_id"])
            )
            answers = self._answers(events, some[:, OUT.ANSWER])
            sent = rows["ts_ns"].fill_null(0).to_numpy()
            columns = {
                **{name: rows[name] for name in _PLACE},
                **{f"sent_{name}": rows[name] for name in COLUMNS},
                **{f"answer_{name}": answers[name] for name in COLUMNS},
                **ended(some[:, OUT.BY], some[:, OUT.END_TS], sent),
                "method": method,
                "command_id": number,
                "outcome": pa.array(OUTCOMES, pa.string()).take(pa.array(some[:, OUT.OUTCOME])),
                "reply_code": known(some[:, OUT.CODE]),
                "reply_text": pc.if_else(pa.array(some[:, OUT.CODE] >= 0), answers["description"], None),
                "latency_ns": latency(sent, answers["ts_ns"], some[:, OUT.ANSWER] >= 0),
            }
            yield from sj.parted("commands", conform("commands", columns, len(some)), some[:, OUT.SESSION], number)
