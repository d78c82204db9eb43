"""What a protocol brings for statistics: its frames as events, what they do to their connection, and its walks.

A plug-in of the dissector names a `Statistics` of its own (`ProtocolPlugin.statistics`, such as
`amqpscope.pipelines.stream.statistics:STATISTICS`). Its module declares only; walks are imported when they are needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any

from amqpscope.dissector.protocols import registry

LEADING = ("connection_id", "frame_no", "from_client", "ts_ns", "first_ts_ns", "capture", "packet")
"""Columns that events of all tables of frames have."""


@dataclass(frozen=True)
class Contents:
    """Methods by which a server sends contents, one after the other on each channel.

    Attributes:
        first: those of messages that stand at their first frame.
        last: those of messages that stand at their last one.
    """

    first: tuple[str, ...] = ()
    last: tuple[str, ...] = ()


@dataclass(frozen=True)
class Frames:
    """The frames of a protocol as events.

    Attributes:
        table: their table.
        named_by: its column that says what happened.
        columns: the column for each of `events.EV` that only some protocols have, by its name there.
        derived: columns that `prepare` makes, of which others.
        prepare: a function ("module:name") from rows to rows with `derived`; None for none.
        spent: columns that only `prepare` reads.
        closes: methods that close the connection, where they are not answers.
        begins: methods with which the server may begin, unanswered: they do not show that the client spoke.
        begins_client: the same of the client.
        unnamed_shows: whether frames without a name show that both sides have spoken.
        closes_channel: the method that closes a channel; "" where channels are not closed.
        once: methods that ask, and occur once per channel epoch or connection.
        agrees: the method that agrees on heartbeats; "" where there are none.
        contents: how a server sends contents.
        merges: whether frames that no walk needs may stand for each other (`run.merging`).
        own_kinds: whether kinds of its messages have the name of the protocol in front.
    """

    table: str
    named_by: str = "method"
    columns: Mapping[str, str] = field(default_factory=dict)
    derived: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    prepare: str | None = None
    spent: tuple[str, ...] = ()
    closes: tuple[str, ...] = ()
    begins: tuple[str, ...] = ()
    begins_client: tuple[str, ...] = ()
    unnamed_shows: bool = False
    closes_channel: str = ""
    once: tuple[str, ...] = ()
    agrees: str = ""
    contents: Contents = Contents()
    merges: bool = False
    own_kinds: bool = False

    @property
    def leading(self) -> tuple[str, ...]:
        """Columns of the table that all of its events have."""
        used = (name for name in self.columns.values() if name not in self.derived)
        bases = (name for names in self.derived.values() for name in names)
        return tuple(dict.fromkeys((*LEADING, self.named_by, *used, *bases)))


@dataclass(frozen=True)
class Statistics:
    """What a protocol brings.

    Attributes:
        frames: see there.
        walks: its walks ("module:name" of a `members.Members`).
    """

    frames: Frames
    walks: str


def known() -> dict[str, Statistics]:
    """Return what protocols bring, by the name of each."""
    return {each.name: loaded(each.statistics) for each in registry.protocols() if each.statistics}


@cache
def loaded(reference: str) -> Any:
    """Return the object that "module:name" refers to."""
    module, _, name = reference.partition(":")
    return getattr(import_module(module), name)
