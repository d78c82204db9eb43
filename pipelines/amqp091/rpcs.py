"""Requests and answers of AMQP 0-9-1."""

from __future__ import annotations

from typing import ClassVar

from amqpscope import spec
from amqpscope.pipelines.amqp091.frames import FRAMES
from amqpscope.pipelines.requests import rpcs
from amqpscope.pipelines.requests.rpcs import Asking

DECLARES = ("queue.declare", "queue.declare-ok")


class Rpcs(rpcs.Rpcs):
    """The walk that writes rows of `rpcs`."""

    ASKING: ClassVar[Asking] = Asking(
        FRAMES,
        columns=("no_wait", "reply_code", "class_id", "method_id", "queue", "consumer_tag", "reply_text"),
        keys={
            "queue": DECLARES,
            "consumer_tag": tuple(f"basic.{name}" for name in ("consume", "consume-ok", "cancel", "cancel-ok")),
        },
        opens="channel.open",
        declares=DECLARES,
        about_queues=tuple(
            method.full_name
            for method in spec.load().methods
            if (method.responses or method.full_name in DECLARES) and any(f.name == "queue" for f in method.fields)
        ),
        waits="no_wait",
        refuses=("class_id", "method_id"),
    )
