"""Requests and answers of AMQP 0-10: its controls."""

from __future__ import annotations

from typing import ClassVar

from amqpscope.pipelines.amqp010.frames import FRAMES_010
from amqpscope.pipelines.requests import rpcs
from amqpscope.pipelines.requests.rpcs import Asking


class Rpcs(rpcs.Rpcs):
    """The walk that writes rows of `rpcs`."""

    ASKING: ClassVar[Asking] = Asking(
        FRAMES_010,
        columns=("name", "code", "reply_code", "reply_text", "queue"),
        keys={"name": tuple(f"session.{name}" for name in ("attach", "attached", "detach", "detached"))},
        code="code",
    )
