"""AMQP 0-9-1 for statistics: its frames as events, and its walks."""

from amqpscope.pipelines.model.protocols import Contents, Frames, Statistics

CLOSES = ("connection.close",)
STATISTICS = Statistics(
    Frames(
        "amqp091_frames",
        columns={
            "PARTIAL": "is_partial", "CHANNEL": "channel", "EPOCH": "channel_epoch", "NUMBER": "delivery_tag",
            "MULTIPLE": "multiple", "CUT": "cut",
        },
        derived={"cut": ("is_partial", "frame_type", "method", "delivery_tag", "multiple")},
        prepare="amqpscope.pipelines.amqp091.frames:prepared",
        spent=("frame_type",),
        closes=CLOSES,
        begins=("connection.start", *CLOSES),
        closes_channel="channel.close",
        once=("connection.start", "connection.tune", "connection.open", "channel.open"),
        agrees="connection.tune-ok",
        contents=Contents(("basic.deliver", "basic.get-ok"), ("basic.return",)),
        merges=True,
    ),
    walks="amqpscope.pipelines.amqp091.members:MEMBERS",
)  # fmt: skip
