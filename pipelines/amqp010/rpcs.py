"""Requests and answers of AMQP 0-10: its controls."""

from __future__ import annotations

from typing import ClassVar

from amqpscope.pipelines.amqp010.frames import FRAMES_010
from amqpscope.pipelines.requests.rpcs_in_order import Asking, RpcsInOrder


class Rpcs(RpcsInOrder):
    """The walk that writes rows of `rpcs`."""

    SOURCE = FRAMES_010
    ASKING: ClassVar[Asking] = Asking(
        columns=("name", "code", "reply_code", "reply_text", "queue"),
        keys={"name": tuple(f"session.{name}" for name in ("attach", "attached", "detach", "detached"))},
        code="code",
    )
