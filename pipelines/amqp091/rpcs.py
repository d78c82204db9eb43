"""Requests and answers of AMQP 0-9-1."""

from __future__ import annotations

from typing import ClassVar

from amqpscope import spec
from amqpscope.pipelines.amqp091.frames import FRAMES
from amqpscope.pipelines.requests.rpcs_in_order import Asking, RpcsInOrder

DECLARES = ("queue.declare", "queue.declare-ok")


class Rpcs(RpcsInOrder):
    """The walk that writes rows of `rpcs`."""

    SOURCE = FRAMES
    ASKING: ClassVar[Asking] = Asking(
        columns=("no_wait", "reply_code", "class_id", "method_id", "queue", "consumer_tag", "reply_text"),
        keys={
            "queue": DECLARES,
            "consumer_tag": tuple(f"basic.{name}" for name in ("consume", "consume-ok", "cancel", "cancel-ok")),
        },
        opens=("channel.open", "channel.open-ok"),
        declares=DECLARES,
        about_queues=tuple(
            method.full_name
            for method in spec.load().methods
            if (method.responses or method.full_name in DECLARES) and any(f.name == "queue" for f in method.fields)
        ),
        waits="no_wait",
        refuses=("class_id", "method_id"),
    )
