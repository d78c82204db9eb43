"""AMQP 0-10 for statistics: its frames as events, and its walks."""

from amqpscope.pipelines.model.protocols import Contents, Frames, Statistics

CLOSES = ("connection.close",)
STATISTICS = Statistics(
    Frames(
        "amqp010_frames",
        columns={
            "PARTIAL": "is_partial",
            "CHANNEL": "channel",
            "EPOCH": "channel_epoch",
            "NUMBER": "command_id",
            "CUT": "cut",
        },
        derived={"cut": ("is_partial", "segment_type"), "content_size": ("segment_type", "size")},
        prepare="amqpscope.pipelines.amqp010.frames:prepared",
        spent=("segment_type", "size"),
        closes=CLOSES,
        begins=("connection.start", *CLOSES),
        once=("connection.start", "connection.tune", "connection.open"),
        agrees="connection.tune-ok",
        contents=Contents(("message.transfer",)),
        merges=True,
        own_kinds=True,
    ),
    walks="amqpscope.pipelines.amqp010.members:MEMBERS",
)
