"""Errors of AMQP 0-10: execution.exception, session.detached with a code, connection.close with one that is no success.

An exception names the command that failed by its id; so the queue and the exchange are known where the command was
seen, not too long ago.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from amqpscope import spec
from amqpscope.pipelines.amqp010.frames import FRAMES_010, PROTOCOL
from amqpscope.pipelines.amqp010.sessions import sessions_of
from amqpscope.pipelines.model.events import EV, Events, what
from amqpscope.pipelines.model.latest import last_before
from amqpscope.pipelines.model.refusals import FINE, REACH
from amqpscope.pipelines.model.remembered import Remembers
from amqpscope.pipelines.model.walk import Needs, Rows, conform

ERRORS = {
    "execution.exception": ("error_code", "description"),
    "session.detached": ("code", None),
    "connection.close": ("reply_code", "reply_text"),
}
"""Methods that report errors, and their columns for code and text."""
_METHODS = spec.load(PROTOCOL).methods
COMMANDS = tuple(method.full_name for method in _METHODS if method.kind == "command")
_NAMED = {(method.class_id, method.id): method.full_name for method in _METHODS if method.kind == "command"}
_ERRORS, _COMMANDS = ([what(FRAMES_010, name) for name in names] for names in (ERRORS, COMMANDS))
_EXCEPTION = what(FRAMES_010, "execution.exception")
_CONNECTION, _SESSION, _SIDE, _ID, _ORDER = range(5)
"""Columns of keys of commands."""
_OWN = ("queue", "exchange")
_NAMES = ("method", *_OWN)
_COMMAND_COLUMNS = (*_NAMES, "destination", "from_client", "session")
_ERROR_COLUMNS = (
    "connection_id", "channel", "channel_epoch", "from_client", "method", "frame_no", "capture", "packet", "ts_ns",
    "session", "command_id_sequence_no", "class_code", "command_code", "error_code", "description", "code",
    "reply_code", "reply_text",
)  # fmt: skip


class SessionErrors(Remembers):
    """The walk that writes `channel_errors` of AMQP 0-10: one row per error.

    State is the commands of the open connection within REACH.
    """

    tables = ("channel_errors",)
    STATE = ("_keys", "_names")
    needs: ClassVar[Mapping[int, Needs]] = {
        FRAMES_010: Needs((*_COMMAND_COLUMNS, *_ERROR_COLUMNS), (*COMMANDS, *ERRORS)),
    }

    def forget(self) -> None:
        """See `Remembers`."""
        self._keys = np.zeros((0, 5), np.int64)
        self._names = pa.table({name: pa.nulls(0, pa.string()) for name in _NAMES})

    def feed(self, events: Events) -> Iterator[Rows]:
        """Walk over a batch; yield rows of its errors."""
        if not len(events) or FRAMES_010 not in events.tables:
            return
        here = np.flatnonzero(events.among(_COMMANDS) & (events.matrix[:, EV.NUMBER] >= 0))
        commands = events.take(FRAMES_010, here, _COMMAND_COLUMNS)
        keys = np.concatenate([self._keys, self._keyed(events, here)])
        names = pa.concat_tables([self._names, _named(commands)])
        at = np.concatenate([np.full(len(self._keys), -1), here])
        errors = np.flatnonzero(events.among(_ERRORS))
        if len(errors):
            yield from self._errors(events, errors, keys, names, at)
        last, order = events.matrix[-1, [EV.CONNECTION, EV.ORDER]].tolist()
        mine = np.flatnonzero((keys[:, _CONNECTION] == last) & (keys[:, _ORDER] >= order - REACH))
        self._keys, self._names = keys[mine], names.take(pa.array(mine)).combine_chunks()

    def _keyed(self, events: Events, at: Any) -> Any:
        """Return keys of commands at these positions."""
        matrix = events.matrix[at]
        columns = (matrix[:, column] for column in (EV.CONNECTION, EV.FROM_CLIENT, EV.NUMBER, EV.ORDER))
        connection, side, number, order = columns
        return np.stack([connection, sessions_of(events, FRAMES_010, at), side, number, order], 1)

    def _errors(self, events: Events, errors: Any, keys: Any, names: pa.Table, at: Any) -> Iterator[Rows]:
        frames = events.take(FRAMES_010, errors, _ERROR_COLUMNS)
        code, text = pa.nulls(len(errors), pa.int32()), pa.nulls(len(errors), pa.string())
        for method, (of_code, of_text) in ERRORS.items():
            mine = pc.equal(frames["method"], method)
            code = pc.if_else(mine, frames[of_code], code)
            text = pc.if_else(mine, frames[of_text], text) if of_text else text
        failed = pc.and_(pc.is_valid(code), pc.invert(pc.is_in(code, value_set=pa.array(FINE, pa.int32()))))
        there = failed.to_numpy()
        if not there.any():
            return
        frames, code, text, errors = frames.filter(failed), code.filter(failed), text.filter(failed), errors[there]
        found = self._failed(events, errors, frames, keys, names, at)
        columns = {
            name: frames[name]
            for name in ("connection_id", "channel", "channel_epoch", "from_client", "method", "frame_no", "capture",
                         "packet", "ts_ns")
        }  # fmt: skip
        columns |= {"reply_code": code, "reply_text": text, "failed_method": found["method"]}
        columns |= {name: found[name] for name in _OWN}
        yield "channel_errors", conform("channel_errors", columns, len(errors))

    def _failed(
        self, events: Events, errors: Any, frames: pa.Table, keys: Any, names: pa.Table, at: Any
    ) -> dict[str, Any]:
        """Return method, queue and exchange of the commands that failed, null where there is none or it is unknown."""
        wanted = self._keyed(events, errors)
        wanted[:, _SIDE] = 1 - wanted[:, _SIDE]
        near = last_before(keys, at, wanted, errors, [_CONNECTION, _SESSION, _SIDE])
        last = np.append(keys[:, _ID], -1)[near]
        target = frames["command_id_sequence_no"].fill_null(-1).to_numpy()
        step = (target - last) & 0xFFFFFFFF
        wanted[:, _ID] = last + np.where(step >= 1 << 31, step - (1 << 32), step)
        found = last_before(keys, at, wanted, errors, [_CONNECTION, _SESSION, _SIDE, _ID])
        found[(target < 0) | (events.what[errors] != _EXCEPTION)] = -1
        rows = names.take(pa.array(found, mask=found < 0))
        codes = zip(*(frames[name].to_pylist() for name in ("class_code", "command_code")), strict=True)
        named = pa.array([_NAMED.get(each) for each in codes], pa.string())
        return {"method": pc.coalesce(rows["method"], named), **{name: rows[name] for name in _OWN}}


def _named(commands: pa.Table) -> pa.Table:
    """Return method, queue and exchange of commands; a client's transfer goes to an exchange."""
    publishes = pc.and_(pc.equal(commands["method"], "message.transfer"), commands["from_client"])
    to = pc.if_else(pc.fill_null(publishes, False), pc.fill_null(commands["destination"], ""), commands["exchange"])
    texts = (commands["method"], commands["queue"], to)
    return pa.table({name: each.cast(pa.string()) for name, each in zip(_NAMES, texts, strict=True)})
