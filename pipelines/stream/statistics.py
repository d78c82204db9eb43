"""The stream protocol for statistics: its frames as events, and its walks."""

from amqpscope.pipelines.model.protocols import Frames, Statistics

STATISTICS = Statistics(
    Frames(
        "stream_frames",
        named_by="command",
        columns={"PARTIAL": "is_partial", "CUT": "is_partial", "RESPONSE": "is_response"},
        closes=("close",),
        begins_client=("peer-properties",),
        unnamed_shows=True,
    ),
    walks="amqpscope.pipelines.stream.members:MEMBERS",
)
